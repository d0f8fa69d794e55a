// Recorded expectations: the JSON files of tests/data.
#ifndef LIBROPE_TESTS_SUPPORT_LOAD_JSON_H_
#define LIBROPE_TESTS_SUPPORT_LOAD_JSON_H_

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

namespace rope::testing {

// `file` is relative to tests/data. A file that cannot be read fails the test.
inline nlohmann::json LoadJson(const std::string& file) {
  const std::string path = ROPE_TEST_DATA "/" + file;
  std::ifstream stream(path);
  if (!stream) ADD_FAILURE() << "cannot read " << path;
  return nlohmann::json::parse(stream);
}

}  // namespace rope::testing

#endif  // LIBROPE_TESTS_SUPPORT_LOAD_JSON_H_
