// What each operation does to cos and sin, and what it may be given.
#ifndef LIBROPE_SRC_MATH_OPERATION_H_
#define LIBROPE_SRC_MATH_OPERATION_H_

#include <cstdint>
#include <iterator>

#include "librope/rope.h"

namespace rope {

// From the channels of the model, back to them, or where FORWARD has put them.
enum class Way : uint8_t { kForward, kBack, kAfter };

// What multiplies the rotation; a is the attention factor.
enum class Factor : uint8_t { kAttention, kInverseAttention, kOne };

struct OperationRule {
  Way way;
  bool negates_angle;
  Factor factor;
  bool takes_rows;   // rows of cos and sin instead of positions
  bool by_distance;  // positions are distances
  bool is_cached;    // results may be stored in a cache
};

// By number.
inline constexpr OperationRule kOperations[] = {
    {Way::kForward, false, Factor::kAttention, true, false, true},      // FORWARD    a R(p) x
    {Way::kBack, true, Factor::kAttention, true, false, false},         // BACKWARD   a R(-p) x
    {Way::kBack, true, Factor::kInverseAttention, false, false, true},  // INVERSE  1/a R(-p) x
    {Way::kAfter, false, Factor::kOne, false, true, true},              // SHIFT        R(p) x
};
static_assert(std::size(kOperations) == ROPE_OPERATION_SHIFT + 1);

constexpr bool IsOperation(rope_operation operation) {
  return operation >= 0 && operation < static_cast<rope_operation>(std::size(kOperations));
}

// The operation that the rows of rope_cos_sin_fill are for.
inline constexpr rope_operation kFillOperation = ROPE_OPERATION_FORWARD;

// What multiplies cos and sin.
struct Scales {
  float cos, sin;
};

inline Scales ScalesOf(rope_operation operation, double attention_factor) {
  const OperationRule& rule = kOperations[operation];
  const auto factor = rule.factor == Factor::kOne ? 1.0f
                      : rule.factor == Factor::kAttention
                          ? static_cast<float>(attention_factor)
                          : static_cast<float>(1 / attention_factor);
  return {factor, rule.negates_angle ? -factor : factor};
}

}  // namespace rope

#endif  // LIBROPE_SRC_MATH_OPERATION_H_
