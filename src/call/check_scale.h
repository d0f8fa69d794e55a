// The checks of a rope_scale: of what is in 8 bits, which must have one, and of no other tensor.
#ifndef LIBROPE_SRC_CALL_CHECK_SCALE_H_
#define LIBROPE_SRC_CALL_CHECK_SCALE_H_

#include "call/beside_shape.h"
#include "call/call.h"
#include "math/scale.h"

namespace rope {

// Whose it is. In a cache, as with tensors, pages and slots take the places of batch rows and
// tokens in the Call. Those of a source are read, also if they were computed when it was written.
enum class ScaleOwner { kOutput, kCache, kSource };

// Of heads of `width` channels whose dtype is a code: `shape` is not present if one value serves
// all.
rope_status CheckScale(const Call& call, const char* name, const rope_tensor& t, int64_t width,
                       ScaleOwner of, DataOf data_of, GroupScales* scales, BesideShape* shape);

}  // namespace rope

#endif  // LIBROPE_SRC_CALL_CHECK_SCALE_H_
