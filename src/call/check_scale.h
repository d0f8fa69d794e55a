// The checks of a rope_scale: of an output in 8 bits, which must have one, and of no other tensor.
#ifndef LIBROPE_SRC_CALL_CHECK_SCALE_H_
#define LIBROPE_SRC_CALL_CHECK_SCALE_H_

#include "call/beside_shape.h"
#include "call/call.h"
#include "math/scale.h"

namespace rope {

// Of an output of `width` channels whose dtype is a code: `shape` is not present if one value
// serves all. In a cache, as with tensors, pages and slots take the places of batch rows and tokens
// in `call`.
rope_status CheckScale(const Call& call, const char* name, const rope_tensor& t, int64_t width,
                       bool in_cache, DataOf data_of, GroupScales* scales, BesideShape* shape);

}  // namespace rope

#endif  // LIBROPE_SRC_CALL_CHECK_SCALE_H_
