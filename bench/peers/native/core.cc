// What the runner and its workers share: the clock around a contender, the numbers that q and k
// hold, positions, rows of cos and sin, and the comparison of results. In C++ because these walk
// over gigabytes, and because a call from Python costs more than a decode step.
#include <librope/rope.h>
#include <time.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>

#include "peer.h"

namespace {

double Seconds(clockid_t clock) {
  timespec t;
  clock_gettime(clock, &t);
  return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9;
}

float FromBits(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

double ReadF16(uint16_t bits) {  // finite ones
  const int exponent = bits >> 10 & 31;
  const int mantissa = bits & 1023;
  const double value =
      exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25);
  if (exponent == 31) return std::nan("");
  return bits & 0x8000 ? -value : value;
}

double Read(int dtype, const void* data, int64_t i) {
  if (dtype == PEER_F32) return static_cast<double>(static_cast<const float*>(data)[i]);
  const uint16_t bits = static_cast<const uint16_t*>(data)[i];
  if (dtype == PEER_F16) return ReadF16(bits);
  return static_cast<double>(FromBits(static_cast<uint32_t>(bits) << 16));
}

}  // namespace

extern "C" {

// The number of the layout that core.cc and protocol.py must agree on.
int64_t peers_case_size() { return sizeof(peer_case); }

// Seconds that `repeat` runs take: of the whole process's CPU time, or by the wall clock.
double peers_time(void (*run)(void*), void* prepared, int64_t repeat, int wall) {
  const clockid_t clock = wall ? CLOCK_MONOTONIC : CLOCK_PROCESS_CPUTIME_ID;
  const double start = Seconds(clock);
  for (int64_t i = 0; i < repeat; ++i) run(prepared);
  return Seconds(clock) - start;
}

void peers_nothing(void*) {}

// The same +-0.5 to 1 whenever it is called with the same seed.
void peers_fill(int dtype, void* data, int64_t count, uint32_t seed) {
  uint32_t state = seed * 2654435761u + 1;
  for (int64_t i = 0; i < count; ++i) {
    state ^= state << 13, state ^= state >> 17, state ^= state << 5;
    const uint32_t sign = state & 0x80000000u;
    if (dtype == PEER_F32) {
      static_cast<uint32_t*>(data)[i] = sign | 0x3f000000u | (state & 0x7fffffu);
    } else {
      const uint32_t value =
          dtype == PEER_BF16 ? 0x3f00u | (state & 0x7fu) : 0x3800u | (state & 0x3ffu);
      static_cast<uint16_t*>(data)[i] = static_cast<uint16_t>(sign >> 16 | value);
    }
  }
}

// Growing with random gaps, one in three left out, as in rope_bench; a single token is one in the
// middle of a conversation.
void peers_positions(int64_t* positions, int64_t tokens) {
  std::mt19937 random(5);
  for (int64_t t = 0, p = 0; t < tokens; ++t) positions[t] = p += 1 + (random() % 2);
  if (tokens == 1) positions[0] = 12345;
}

// cos and sin in f32, [tokens, head_dim / 2] each, of the positions, or of 0 .. if they are NULL.
int peers_rows(const int64_t* positions, int64_t tokens, int32_t head_dim, double theta, float* cos,
               float* sin) {
  rope_config config = ROPE_INIT(rope_config);
  config.head_dim = head_dim;
  config.theta = theta;
  config.pairing = ROPE_PAIRING_HALVES;
  rope_context* context = nullptr;
  if (rope_context_create(&config, &context) != ROPE_OK) return 1;
  rope_positions at = {};
  at.kind = positions == nullptr ? ROPE_POSITIONS_OFFSET : ROPE_POSITIONS_IDS_T;
  at.ids_i64 = positions;
  rope_cos_sin rows = ROPE_INIT(rope_cos_sin);
  rows.format = ROPE_COS_SIN_SPLIT;
  rows.dtype = ROPE_DTYPE_F32;
  rows.pairs = head_dim / 2;
  rows.batch = 1;
  rows.data = cos;
  rows.sin = sin;
  const rope_status status = rope_cos_sin_fill(context, 1, tokens, &at, &rows, nullptr);
  rope_context_destroy(context);
  return status == ROPE_OK ? 0 : 2;
}

// The largest distance of a pair's two results from the expected ones, in units of the pair's
// length: what a rotation keeps, so the measure is the same for large and small pairs. Of [tokens,
// heads, head_dim], the first `dense` tokens and then every `step`-th. Infinity if one is no
// number.
double peers_error(int dtype, int pairing, const void* result, const void* expected, int64_t tokens,
                   int32_t heads, int32_t head_dim, int64_t dense, int64_t step) {
  double worst = 0;
  const int32_t half = head_dim / 2;
  for (int64_t t = 0; t < tokens; t += t < dense ? 1 : step) {
    for (int32_t h = 0; h < heads; ++h) {
      const int64_t head = (t * heads + h) * head_dim;
      for (int32_t i = 0; i < half; ++i) {
        const int64_t a = head + (pairing == PEER_HALVES ? i : 2 * i);
        const int64_t b = head + (pairing == PEER_HALVES ? i + half : 2 * i + 1);
        const double e0 = Read(dtype, expected, a), e1 = Read(dtype, expected, b);
        const double d0 = Read(dtype, result, a) - e0, d1 = Read(dtype, result, b) - e1;
        const double error = std::max(std::abs(d0), std::abs(d1)) / std::hypot(e0, e1);
        if (!(error <= 1e9)) return HUGE_VAL;
        worst = std::max(worst, error);
      }
    }
  }
  return worst;
}

}  // extern "C"
