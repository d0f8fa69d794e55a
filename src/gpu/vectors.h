// The widest vectors in which a call's heads can be read and written: 16 bytes where addresses,
// strides and widths allow it, else less.
#ifndef LIBROPE_SRC_GPU_VECTORS_H_
#define LIBROPE_SRC_GPU_VECTORS_H_

#include <cstdint>

#include "call/fused_plan.h"
#include "call/plan.h"
#include "gpu/params.h"
#include "math/pairing.h"

namespace rope::gpu {

int32_t PairsPerLane(Form form, int32_t element_bytes);

// Of an address and strides, some of which are not used: what must be a multiple of vectors in
// bytes.
int64_t BitsOfHeads(const void* data, const HeadStrides& strides, int64_t outer, int64_t inner,
                    int32_t heads);

// `cached`: which of the tensors goes to slots; -1: none.
Form ChooseForm(const Plan& plan, const Tensor* tensors, int32_t count, int32_t cached,
                ChannelOrder order);

// A kernel with vectors of the most bytes that a copy allows.
Variant VariantOf(const Plan& plan, const Copy& copy);

// Whether a copy can be made by threads that have at most `most` vectors of a head. Wide heads that
// lie side by side are cut anew.
bool FitInto(const Plan& plan, int64_t vector, int64_t most, Copy* copy);

}  // namespace rope::gpu

#endif  // LIBROPE_SRC_GPU_VECTORS_H_
