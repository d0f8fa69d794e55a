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

// What positions are: where a token is, how far it moves, or where it is moved to from another.
enum class Positions : uint8_t { kPlaces, kDistances, kFromPlaces };

struct OperationRule {
  const char* name;
  Way way;
  bool negates_angle;
  Factor factor;
  bool takes_rows;  // rows of cos and sin instead of positions; and norms
  Positions positions;
  bool is_cached;  // results may be stored in a cache: all but gradients

  constexpr bool by_distance() const { return positions == Positions::kDistances; }
  // Of gradients: they pass norms back, and those of repeated heads are added.
  constexpr bool is_gradient() const { return !is_cached; }
  constexpr bool has_from() const { return positions == Positions::kFromPlaces; }
};

// By number.
inline constexpr OperationRule kOperations[] = {
    // a R(p) x
    {"FORWARD", Way::kForward, false, Factor::kAttention, true, Positions::kPlaces, true},
    // a R(-p) x
    {"BACKWARD", Way::kBack, true, Factor::kAttention, true, Positions::kPlaces, false},
    // 1/a R(-p) x
    {"INVERSE", Way::kBack, true, Factor::kInverseAttention, false, Positions::kPlaces, true},
    // R(p) x
    {"SHIFT", Way::kAfter, false, Factor::kOne, false, Positions::kDistances, true},
    // a/a' R(p) R'(-p') x, whose factor is that of two sets
    {"REROTATE", Way::kAfter, false, Factor::kOne, false, Positions::kFromPlaces, true},
};
static_assert(std::size(kOperations) == ROPE_OPERATION_REROTATE + 1);

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
