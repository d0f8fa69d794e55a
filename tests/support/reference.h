// What a call must compute, written from the definitions of the header and not from the library:
// where each element lies, which position turns it, by which angle. Angles are exact (quad
// precision) or the f32 product, cos and sin those of long double.
#ifndef LIBROPE_TESTS_SUPPORT_REFERENCE_H_
#define LIBROPE_TESTS_SUPPORT_REFERENCE_H_

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <vector>

#include "elements.h"
#include "librope/rope.h"
#include "quad.h"

namespace rope::testing {

struct Position {
  bool is_float;
  int64_t integer;
  float coordinate;
};

struct Turn {
  long double cos, sin;
};

// The sequence of a token, and its index there.
struct Place {
  int64_t sequence, index;
};

// `t`: among the tokens of all ranks.
inline Place PlaceOf(const rope_positions& p, int64_t b, int64_t t) {
  if (p.cu_seqlens == nullptr) return {b, t};
  for (int32_t s = 0; s < p.sequences; ++s) {
    if (p.cu_seqlens[s] <= t && t < p.cu_seqlens[s + 1]) return {s, t - p.cu_seqlens[s]};
  }
  return {-1, -1};
}

inline Position PositionOf(const rope_positions& p, int64_t batch, int64_t tokens, int axes,
                           int64_t b, int64_t t, int axis) {
  const auto add = [](int64_t x, int64_t y) {
    return Position{false,
                    static_cast<int64_t>(static_cast<uint64_t>(x) + static_cast<uint64_t>(y)), 0};
  };
  const Place place = PlaceOf(p, b, t);
  int64_t at = 0;
  switch (p.kind) {
    case ROPE_POSITIONS_OFFSET: return add(p.offset, place.index);
    case ROPE_POSITIONS_SEQ_OFFSETS:
      return add(p.offsets_i32 ? p.offsets_i32[place.sequence] : p.offsets_i64[place.sequence],
                 place.index);
    case ROPE_POSITIONS_IDS_T: at = t; break;
    case ROPE_POSITIONS_IDS_BT: at = b * tokens + t; break;
    case ROPE_POSITIONS_IDS_ABT: at = (axis * batch + b) * tokens + t; break;
    case ROPE_POSITIONS_IDS_BTA: at = (b * tokens + t) * axes + axis; break;
    case ROPE_POSITIONS_IDS_STRIDED:
      at = axis * p.stride_axis + b * p.stride_batch + t * p.stride_token;
      break;
    default: std::abort();  // a kind that is not described here
  }
  if (p.ids_f32 != nullptr) return {true, 0, p.ids_f32[at]};
  return {false, p.ids_i32 != nullptr ? p.ids_i32[at] : p.ids_i64[at], 0};
}

// Cos and sin of position * inv_freq (radians). Under DIVIDE inv_freq is the inverse of a float.
inline Turn TurnOf(rope_angle angle, Quad inv_freq, Position position) {
  if (angle != ROPE_ANGLE_EXACT) {
    const float at = position.is_float ? position.coordinate : static_cast<float>(position.integer);
    const auto f = static_cast<double>(inv_freq);
    const float radians =
        angle == ROPE_ANGLE_DIVIDE ? at / static_cast<float>(1 / f) : at * static_cast<float>(f);
    return {std::cos(static_cast<long double>(radians)),
            std::sin(static_cast<long double>(radians))};
  }
  const Quad at = position.is_float ? Quad(position.coordinate) : Quad(position.integer);
  const auto radians = static_cast<long double>(FractionOf(at * inv_freq / (2 * Pi())) * 2 * Pi());
  return {std::cos(radians), std::sin(radians)};
}

// The same of the general angle: the sum of position[a] * frequency[a].
inline Turn TurnOfSum(rope_angle angle, const std::vector<Quad>& frequency,
                      const std::vector<Position>& position) {
  float rounded = 0;
  Quad exact = 0;
  for (size_t a = 0; a < frequency.size(); ++a) {
    const Position& p = position[a];
    const float at = p.is_float ? p.coordinate : static_cast<float>(p.integer);
    const volatile float product = at * static_cast<float>(static_cast<double>(frequency[a]));
    rounded = a == 0 ? product : rounded + product;
    exact = exact + (p.is_float ? Quad(p.coordinate) : Quad(p.integer)) * frequency[a];
  }
  const auto radians = angle == ROPE_ANGLE_FLOAT32
                           ? static_cast<long double>(rounded)
                           : static_cast<long double>(FractionOf(exact / (2 * Pi())) * 2 * Pi());
  return {std::cos(radians), std::sin(radians)};
}

// The first element of a head.
inline int64_t HeadOffset(const rope_tensor& t, int64_t batch, int64_t tokens, int64_t width,
                          int64_t b, int64_t token, int64_t h) {
  switch (t.layout) {
    case ROPE_LAYOUT_BSHD: return ((b * tokens + token) * t.heads + h) * width;
    case ROPE_LAYOUT_BHSD: return ((b * t.heads + h) * tokens + token) * width;
    case ROPE_LAYOUT_SBHD: return ((token * batch + b) * t.heads + h) * width;
    default: return b * t.stride_batch + token * t.stride_token + h * t.stride_head;
  }
}

// The channels of a pair, inside the rotated span.
struct Channels {
  int in0, in1, out0, out1;
};

inline Channels ChannelsOfPair(const rope_config& c, rope_operation operation, int pair) {
  const int pairs = (c.rotary_dim ? c.rotary_dim : c.head_dim) / 2;
  if (c.pairing == ROPE_PAIRING_INTERLEAVED) {
    return {2 * pair, 2 * pair + 1, 2 * pair, 2 * pair + 1};
  }
  if (c.pairing == ROPE_PAIRING_HALVES_PER_AXIS) {
    int first = 0, a = 0;
    while (pair >= first + c.mrope_section[a]) first += c.mrope_section[a++];
    const int x0 = 2 * first + pair - first, x1 = x0 + c.mrope_section[a];
    return {x0, x1, x0, x1};
  }
  const bool moves = c.pairing == ROPE_PAIRING_INTERLEAVED_TO_HALVES &&
                     operation != ROPE_OPERATION_SHIFT && operation != ROPE_OPERATION_REROTATE;
  if (!moves) return {pair, pair + pairs, pair, pair + pairs};
  if (operation == ROPE_OPERATION_FORWARD) return {2 * pair, 2 * pair + 1, pair, pair + pairs};
  return {pair, pair + pairs, 2 * pair, 2 * pair + 1};
}

// The channel of one member (0 or 1) of a pair; not of HALVES_PER_AXIS.
inline int ChannelOf(rope_pairing pairing, int pairs, int pair, int member) {
  return pairing == ROPE_PAIRING_INTERLEAVED ? 2 * pair + member : pair + member * pairs;
}

inline int AxisOfPair(const rope_config& c, int pair) {
  if (c.axes <= 1) return 0;
  if (c.pair_axis != nullptr) return c.pair_axis[pair];
  if (c.mrope_interleaved) {
    const int a = pair % c.axes;
    return pair < c.axes * c.mrope_section[a] ? a : 0;
  }
  int a = 0;
  for (int end = c.mrope_section[0]; pair >= end; end += c.mrope_section[++a]) {
  }
  return a;
}

// cos and sin with the attention factor a, as the operation uses them.
inline Turn ScaledTurn(Turn turn, rope_operation operation, long double a) {
  switch (operation) {
    case ROPE_OPERATION_BACKWARD: return {a * turn.cos, -a * turn.sin};
    case ROPE_OPERATION_INVERSE: return {turn.cos / a, -turn.sin / a};
    case ROPE_OPERATION_SHIFT: return turn;
    case ROPE_OPERATION_FORWARD: return {a * turn.cos, a * turn.sin};
    default: std::abort();  // an operation that is not described here
  }
}

// ROPE_ROUNDING_NATIVE: a * b + c * d of f16 numbers, the second product rounded to f16 and added
// by one multiply-add. Doubles hold the products; a sum that they do not hold has one part that is
// too small to reach the rounding boundary next to the other.
inline double NativeSum(double a, double b, double c, double d) {
  return Rounded(ROPE_DTYPE_F16, a * b + Rounded(ROPE_DTYPE_F16, c * d));
}

}  // namespace rope::testing

#endif  // LIBROPE_TESTS_SUPPORT_REFERENCE_H_
