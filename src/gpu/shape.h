// The shape of a launch: how many threads a block has for heads and tokens, and how many blocks.
#ifndef LIBROPE_SRC_GPU_SHAPE_H_
#define LIBROPE_SRC_GPU_SHAPE_H_

#include <cstdint>

#include "gpu/params.h"

namespace rope::gpu {

template <class T>
constexpr T DivideUp(T a, T b) {
  return (a + b - 1) / b;
}

struct Shape {
  uint32_t x, y, z;         // threads of a block
  uint32_t grid_x, grid_y;  // blocks
  uint32_t heads_per_thread;
};

// What decides the shape of a launch.
struct Work {
  uint32_t lanes;             // threads for one head
  uint32_t heads[kMaxSides];  // of q, k, ..; 0: absent
  int64_t tokens;
  uint32_t row_bytes;  // shared memory for cos and sin of one token
  int32_t multiprocessors;
};

// Many tokens: two heads for each thread and whole tokens in a block of 128 to 320 threads. Few:
// one head for each thread, small blocks, several for a token. grid_y may be more than a grid can
// have.
Shape ShapeOf(const Work& work);

}  // namespace rope::gpu

#endif  // LIBROPE_SRC_GPU_SHAPE_H_
