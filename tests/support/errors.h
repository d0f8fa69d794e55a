// Expectations about errors: the status, the message, and that nothing was written.
#ifndef LIBROPE_TESTS_SUPPORT_ERRORS_H_
#define LIBROPE_TESTS_SUPPORT_ERRORS_H_

#include <gtest/gtest.h>

#include <functional>
#include <initializer_list>
#include <string>
#include <vector>

#include "librope/rope.h"

namespace rope::testing {

// The message of the last error names the function, and each of `parts`: field, value, rule.
template <class Parts>
void ExpectMessageWith(const char* function, const Parts& parts) {
  const std::string message = rope_last_error();
  EXPECT_EQ(message.rfind(std::string(function) + ": ", 0), 0u) << message;
  for (const char* part : parts) {
    EXPECT_NE(message.find(part), std::string::npos) << "no \"" << part << "\" in: " << message;
  }
  EXPECT_LT(message.size(), 512u);
  EXPECT_EQ(message.find('\n'), std::string::npos);
}
inline void ExpectMessage(const char* function, std::initializer_list<const char*> parts) {
  ExpectMessageWith(function, parts);
}

// One row of a table of bad inputs: a valid T is changed, and must be refused.
template <class T>
struct BadInput {
  const char* name;
  std::function<void(T*)> change;
  rope_status status;
  std::vector<const char*> parts;
};

template <class T>
void ExpectParts(const char* function, const BadInput<T>& bad, rope_status got) {
  SCOPED_TRACE(bad.name);
  EXPECT_EQ(got, bad.status) << rope_last_error();
  ExpectMessageWith(function, bad.parts);
}

inline constexpr rope_status kInvalid = ROPE_ERROR_INVALID_ARGUMENT;
inline constexpr rope_status kUnsupported = ROPE_ERROR_UNSUPPORTED;

}  // namespace rope::testing

#endif  // LIBROPE_TESTS_SUPPORT_ERRORS_H_
