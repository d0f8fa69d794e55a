// The checks of what a call does besides rotating q and k, the first of the two steps of
// check_tensors.h: what it is.
#ifndef LIBROPE_SRC_CALL_CHECK_FUSED_H_
#define LIBROPE_SRC_CALL_CHECK_FUSED_H_

#include "call/call.h"
#include "call/check_norm.h"
#include "call/check_tensors.h"
#include "call/fused_plan.h"

namespace rope {

// What they are, by Beside. Scales are like what they belong to.
inline constexpr TensorKind kBesideKinds[kBesides] = {
    TensorKind::kCachedHeads,  TensorKind::kOthers,       TensorKind::kOthersOut,
    TensorKind::kCachedOthers, TensorKind::kOthers,       TensorKind::kOthersOut,
    TensorKind::kOthersOut,    TensorKind::kOthersOut,    TensorKind::kCachedOthers,
    TensorKind::kOthersOut,    TensorKind::kCachedOthers, TensorKind::kOthersOut,
    TensorKind::kSourceHeads,  TensorKind::kSourceOthers, TensorKind::kSourceOthers,
    TensorKind::kSourceOthers, TensorKind::kHeadsOut};

// rope_qk_args.fused as this version knows it, or an empty one; the copies are of structs of
// another size.
struct FusedArgs {
  const rope_fused* fused;
  const rope_kv_cache *cache, *source;  // null: none
  const rope_tensor* k_out;             // of calls with a source
  // has_v: in source, if there is one.
  bool has_v, has_v_out, has_rest, has_scales, caches_k, caches_v;
  rope_fused fused_copy;
  rope_kv_cache cache_copy, source_copy;
};

// What is known of the tensors of rope_fused without their addresses.
struct FusedShapes {
  BesideShape beside[kBesides];
  // Of these: kRest of most calls, with scales or a rest kSourceK, with a source all.
  int32_t count;
  int64_t pages, page_size;  // of the cache, if there is one
  int64_t source_pages, source_page_size;
  bool has_gradients;           // of norms
  GradientShapes gradients[3];  // with these: of the norms of q, k and v
};

// A call without tokens writes nothing, which gradients of weights would expect.
rope_status CheckNoTokens(const Call& call, const rope_qk_args& args);

// One without batch rows does nothing, which who forgets `batch` does not expect.
rope_status CheckNoRows(const Call& call, const rope_qk_args& args);

// What can be said before q and k are known: sizes, and that what belongs together is there.
rope_status ReadFused(const Call& call, const rope_qk_args& args, DataOf data_of, FusedArgs* given);

// With no tensor yet: before CheckShapes.
void StartShapes(const FusedArgs& given, FusedShapes* shapes);

// After CheckShapes, or CheckShapeOfQ with a source. The tensors of a Plan, which has `count` of
// them, become q, k to the cache, and k to k_out, as far as the call has them; with a source q, k
// to k_out, and k to the cache. `row_heads`: Plan's.
rope_status CheckFusedShapes(const Call& call, const Names& names, const FusedArgs& given,
                             const rope_qk_args& args, DataOf data_of, const Shapes& shapes,
                             const PositionSource& positions, int32_t row_heads, Tensor tensors[3],
                             int32_t* count, FusedShapes* fused_shapes, FusedPlan* fused);

}  // namespace rope

#endif  // LIBROPE_SRC_CALL_CHECK_FUSED_H_
