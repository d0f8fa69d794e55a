// A number in a message: printf's %g, but the same in every locale.
#ifndef LIBROPE_SRC_BASE_DECIMAL_H_
#define LIBROPE_SRC_BASE_DECIMAL_H_

#include <charconv>
#include <cstdint>

namespace rope {

// A temporary: Fail(.., "theta (%s)", Decimal(theta).text).
struct Decimal {
  char text[32];

  explicit Decimal(int32_t value) { *std::to_chars(text, text + sizeof(text) - 1, value).ptr = 0; }
  explicit Decimal(double value) {
    constexpr int kDigits = 6;  // as %g
    *std::to_chars(text, text + sizeof(text) - 1, value, std::chars_format::general, kDigits).ptr =
        0;
  }
};

}  // namespace rope

#endif  // LIBROPE_SRC_BASE_DECIMAL_H_
