// Heads as models have them, many of which threads of a GPU hold (src/gpu/held.h): wholly or partly
// turned, with the span in front, behind or in the middle, in halves and side by side.
#ifndef LIBROPE_TESTS_GPU_MODEL_HEADS_H_
#define LIBROPE_TESTS_GPU_MODEL_HEADS_H_

#include <vector>

#include "librope/rope.h"
#include "support/handles.h"
#include "support/machine.h"

namespace rope::testing {

inline std::vector<rope_config> ModelHeads() {
  struct Head {
    int dim, rotary, offset;
  };
  constexpr Head kHalves[] = {
      {64, 64, 0},    {128, 128, 0}, {256, 256, 0}, {128, 64, 0},   {128, 64, 64},  {192, 64, 128},
      {256, 128, 0},  {96, 64, 0},   {160, 128, 0}, {224, 64, 128}, {256, 64, 192}, {128, 64, 16},
      {320, 256, 24}, {512, 192, 0}, {256, 64, 0},  {64, 32, 0},    {256, 192, 0}};
  constexpr Head kAdjacent[] = {{64, 64, 0},    {128, 128, 0}, {256, 256, 0}, {96, 96, 0},
                                {192, 64, 128}, {128, 48, 16}, {128, 64, 0}};
  std::vector<rope_config> configs;
  const auto add = [&](const Head& head, rope_pairing pairing) {
    rope_config config = Config(head.dim, pairing);
    config.rotary_dim = head.rotary;
    config.rotary_offset = head.offset;
    config.rounding = configs.size() % 3 + ROPE_ROUNDING_FLOAT32;
    configs.push_back(config);
  };
  for (const Head& head : kHalves) add(head, ROPE_PAIRING_HALVES);
  for (const Head& head : kAdjacent) add(head, ROPE_PAIRING_INTERLEAVED);
  for (const int dim : {64, 128, 256}) {
    configs.push_back(Config(dim));
    configs.back().scaling = ROPE_SCALING_NOPE;
  }
  return configs;
}

// Those of calls with norms.
inline std::vector<rope_config> NormedModelHeads() {
  std::vector<rope_config> configs = ModelHeads();
  for (const rope_pairing pairing : {ROPE_PAIRING_HALVES, ROPE_PAIRING_INTERLEAVED}) {
    configs.push_back(Config(128, pairing));
    configs.back().rounding = ROPE_ROUNDING_NATIVE;
  }
  return configs;
}

}  // namespace rope::testing

#endif  // LIBROPE_TESTS_GPU_MODEL_HEADS_H_
