#include "support/load_json.h"

#include <gtest/gtest.h>

#include <fstream>

namespace rope::testing {

nlohmann::json LoadJson(const std::string& file) {
  const std::string path = ROPE_TEST_DATA "/" + file;
  std::ifstream stream(path);
  if (!stream) ADD_FAILURE() << "cannot read " << path;
  return nlohmann::json::parse(stream);
}

const nlohmann::json& Golden() {
  static const nlohmann::json records = LoadJson("golden.json");
  return records;
}

}  // namespace rope::testing
