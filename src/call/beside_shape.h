// What the checks of a call keep of a Beside, in whatever file it is described.
#ifndef LIBROPE_SRC_CALL_BESIDE_SHAPE_H_
#define LIBROPE_SRC_CALL_BESIDE_SHAPE_H_

#include <cstdint>

#include "call/overlap.h"
#include "librope/rope.h"

namespace rope {

// A tensor besides q, k and their outputs, or scales, as far as it is known without its address.
struct BesideShape {
  bool present, written;
  rope_dtype dtype;
  int32_t element;  // bytes
  Footprint of;
  int64_t extent;
};

}  // namespace rope

#endif  // LIBROPE_SRC_CALL_BESIDE_SHAPE_H_
