// What all checks of a call are told.
#ifndef LIBROPE_SRC_CALL_CALL_H_
#define LIBROPE_SRC_CALL_CALL_H_

#include <cstdint>

#include "context/context.h"

namespace rope {

struct Call {
  const char* function;  // public name, for messages
  const rope_context& context;
  int64_t batch, tokens;
};

// The tensors of rope_fused, and the scales of what is in 8 bits, in the order in which they are
// compared with those before. Few calls have those from kRest on; from kSourceK on they are those
// of calls with a source, whose k_out is one of them.
enum Beside {
  kCacheK,
  kV,
  kVOut,
  kCacheV,
  kRest,
  kRestOut,
  kQOutScales,
  kKOutScales,
  kCacheKScales,
  kVOutScales,
  kCacheVScales,
  kRestOutScales,
  kSourceK,
  kSourceV,
  kSourceKScales,
  kSourceVScales,
  kKOut,
  kBesides
};
constexpr bool IsScalesOut(Beside which) { return which >= kQOutScales && which <= kRestOutScales; }
constexpr bool IsScales(Beside which) {
  return IsScalesOut(which) || which == kSourceKScales || which == kSourceVScales;
}
constexpr bool IsOfSource(Beside which) { return which >= kSourceK && which <= kSourceVScales; }

// How messages call the arguments: fields of rope_qk_args or rope_qk_data, or arguments of
// rope_apply_thd.
struct Names {
  const char *args, *positions;
  const char *q, *k, *q_out, *k_out;
  const char* data;  // behind tensors: where they lie
  const char* beside[kBesides];
};

inline constexpr Names kNamesOfArgs = {
    "args->",
    "args->positions",
    "args->q",
    "args->k",
    "args->q_out",
    "args->k_out",
    ".data",
    {"args->fused->cache->k", "args->fused->v", "args->fused->v_out", "args->fused->cache->v",
     "args->fused->rest", "args->fused->rest_out", "args->q_out.scale->data",
     "args->k_out.scale->data", "args->fused->cache->k.scale->data",
     "args->fused->v_out.scale->data", "args->fused->cache->v.scale->data",
     "args->fused->rest_out.scale->data", "args->fused->source->k", "args->fused->source->v",
     "args->fused->source->k.scale->data", "args->fused->source->v.scale->data", "args->k_out"}};

// Whether a call gives the addresses of its tensors, or is prepared and each application does.
enum class DataOf : bool { kCall, kApplication };

}  // namespace rope

#endif  // LIBROPE_SRC_CALL_CALL_H_
