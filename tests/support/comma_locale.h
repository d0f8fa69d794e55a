// A locale whose decimal point is a comma, as long as the object lives.
#ifndef LIBROPE_TESTS_SUPPORT_COMMA_LOCALE_H_
#define LIBROPE_TESTS_SUPPORT_COMMA_LOCALE_H_

#include <gtest/gtest.h>

#include <clocale>
#include <cstdlib>
#include <cstring>
#include <string>

namespace rope::testing {

// German; made from glibc's sources (Debian's package locales) if it is not installed.
class CommaLocale {
 public:
  CommaLocale() {
    if (Set()) return;
    const std::string folder = ::testing::TempDir() + "librope_locale";
    const std::string make = "mkdir -p '" + folder + "' && localedef -i de_DE -f UTF-8 '" + folder +
                             "/de_DE.UTF-8' >/dev/null 2>&1";
    if (std::system(make.c_str()) != 0) return;
    setenv("LOCPATH", folder.c_str(), 1);
    Set();
  }
  ~CommaLocale() { std::setlocale(LC_ALL, "C"); }
  CommaLocale(const CommaLocale&) = delete;
  CommaLocale& operator=(const CommaLocale&) = delete;

  bool is_set() const { return set_; }

 private:
  bool Set() {
    set_ = std::setlocale(LC_ALL, "de_DE.UTF-8") != nullptr &&
           std::strcmp(std::localeconv()->decimal_point, ",") == 0;
    return set_;
  }

  bool set_ = false;
};

}  // namespace rope::testing

#endif  // LIBROPE_TESTS_SUPPORT_COMMA_LOCALE_H_
