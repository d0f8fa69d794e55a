// The checks of what a call does besides rotating q and k, the second step: where its tensors lie.
#ifndef LIBROPE_SRC_CALL_CHECK_FUSED_ADDRESSES_H_
#define LIBROPE_SRC_CALL_CHECK_FUSED_ADDRESSES_H_

#include "call/check_fused.h"

namespace rope {

// Where they lie, as many as FusedShapes::count; null where one is absent.
struct FusedAddresses {
  void* beside[kBesides];
};

// Where `given` says they lie: tensors, and scales.
FusedAddresses AddressesOf(const FusedArgs& given, const rope_qk_args& args, int32_t count);

// After CheckAddresses. Completes k to the cache, the copies and the scales; a copy of a tensor to
// itself is none, if it has no norm.
rope_status CheckFusedAddresses(const Call& call, const Names& names, const Shapes& shapes,
                                const FusedShapes& fused_shapes, const FusedAddresses& addresses,
                                Tensor tensors[3], FusedPlan* fused);

// Whether source and cache are one memory, of k or of v. CheckMoves compares their slots then.
bool IsOneMemory(const FusedShapes& shapes, const FusedAddresses& addresses);

}  // namespace rope

#endif  // LIBROPE_SRC_CALL_CHECK_FUSED_ADDRESSES_H_
