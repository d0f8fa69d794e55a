// Recorded expectations: the JSON files of tests/data. Parsed in one object, because a parser takes
// the compiler longer than most tests.
#ifndef LIBROPE_TESTS_SUPPORT_LOAD_JSON_H_
#define LIBROPE_TESTS_SUPPORT_LOAD_JSON_H_

#include <nlohmann/json.hpp>
#include <string>

namespace rope::testing {

// `file` is relative to tests/data. A file that cannot be read fails the test.
nlohmann::json LoadJson(const std::string& file);

// golden.json: "golden" has records of published tests and tables, "derived" f64 values of
// documented formulas.
const nlohmann::json& Golden();

}  // namespace rope::testing

#endif  // LIBROPE_TESTS_SUPPORT_LOAD_JSON_H_
