#include "call/check_move.h"

#include <cstddef>
#include <cstdint>

#include "base/limits.h"
#include "base/struct_size.h"
#include "call/check_cache.h"
#include "call/check_tensors.h"
#include "call/overlap.h"
#include "call/slot_run.h"
#include "call/tensor_kind.h"
#include "math/element.h"
#include "math/operation.h"
#include "math/slots.h"

namespace rope {
namespace {

// Whether k, and v where there is one, are described as they must be in a cache, like `k`.
bool IsOf(const rope_kv_cache& c, const rope_tensor& k, int32_t dim, const rope_context& context,
          bool has_v) {
  if (c.struct_size != sizeof(c) || c.reserved != 0) return false;
  if (c.pages < 1 || c.page_size < 1 || c.page_size > kMaxPageSize) return false;
  if (c.k.data == nullptr || c.k.scale != nullptr || !AreAlike(k, c.k)) return false;
  if ((c.k.head_dim != 0 ? c.k.head_dim : context.head_dim) != dim) return false;
  if (!has_v) return IsAbsent(c.v);
  return c.v.data != nullptr && c.v.scale == nullptr && AreAlike(k, c.v) && c.v.head_dim == dim;
}

// Whether k and v move from one cache to one that is described alike, and nothing else is in the
// structs, which are those of this version.
bool IsMove(const rope_context& context, const rope_qk_args& args) {
  const rope_fused& f = *args.fused;
  if (f.struct_size != sizeof(f) || f.reserved != 0) return false;
  if (f.source == nullptr || f.cache == nullptr || !context.backend->has_moves) return false;
  constexpr size_t kTensors = offsetof(rope_qk_args, q), kV = offsetof(rope_fused, v),
                   kBehindTensors = offsetof(rope_qk_args, positions),
                   kBehindV = offsetof(rope_fused, from_positions);
  if (!IsZeroFrom<kTensors, kBehindTensors>(args) || !IsZeroFrom<kV, kBehindV>(f)) return false;
  if (!IsZeroFrom<offsetof(rope_fused, q_norm)>(f)) return false;
  const OperationRule& rule = kOperations[args.operation];
  if (!rule.is_cached || rule.has_from() != (f.from_positions != nullptr)) return false;
  if (args.positions.batch_repeat > 1) return false;
  const rope_tensor& k = f.source->k;
  if (!IsDtype(k.dtype) || !IsFor(context.rounding.arithmetic, k.dtype) || k.heads < 1) {
    return false;
  }
  const int32_t dim = k.head_dim != 0 ? k.head_dim : context.head_dim;
  if (dim != context.head_dim && dim != context.rotary_dim) return false;
  const bool has_v = !IsAbsent(f.source->v);
  return IsOf(*f.source, k, dim, context, has_v) && IsOf(*f.cache, k, dim, context, has_v);
}

// Where a call reads and writes one of k and v.
struct Passage {
  Range from, to;
  bool in_place;

  bool IsApartFrom(const Passage& other) const {
    return AreApart(from, other.from) & AreApart(from, other.to) & AreApart(to, other.from) &
           AreApart(to, other.to);
  }
};

// The only token moves from its place to its place, which are looked up once for k and v. These are
// inputs and outputs as any then. False where it is nowhere.
bool PlaceToken(Tensor* k, FusedPlan* fused) {
  const Slot from = SlotOfOnlyToken(fused->source), to = SlotOfOnlyToken(fused->slots);
  if (from.page < 0 || to.page < 0) return false;
  const int64_t in = TokenOffset(k->in_strides, from.page, from.index),
                out = TokenOffset(k->out_strides, to.page, to.index);
  k->in += in;
  k->out += out;
  if (fused->copies.count != 0) {
    Copy& v = fused->copies.of[0];
    v.from = kV;
    v.to = kVOut;
    v.in += in;
    v.out += out;
    if (v.in == v.out) fused->copies.count = 0;
  }
  fused->cached = -1;
  fused->gathered = FusedPlan::kNone;
  fused->slots.kind = fused->source.kind = 0;
  return true;
}

}  // namespace

bool CheckMove(const Call& call, const rope_qk_args& args, const PositionSource& positions,
               Tensor* k, FusedPlan* fused, bool* compares) {
  const rope_context& context = call.context;
  if (!IsMove(context, args)) return false;
  const rope_kv_cache &source = *args.fused->source, &cache = *args.fused->cache;
  const bool whole = IsWhole(context, source.k), has_v = source.v.data != nullptr;
  const rope_dtype dtype = source.k.dtype;
  const int size = ElementSize(dtype);
  const int64_t width = int64_t{whole ? context.head_dim : context.rotary_dim} * size;
  int64_t from_bytes, to_bytes;
  if (!DescribePages(source, width, &k->in_strides, &from_bytes) ||
      !DescribePages(cache, width, &k->out_strides, &to_bytes)) {
    return false;
  }
  const bool same_pages = source.pages == cache.pages && source.page_size == cache.page_size;
  bool right = true;
  const auto passage_of = [&](const void* from, const void* to) {
    const Passage p = {RangeOf(from, from_bytes), RangeOf(to, to_bytes), from == to};
    right &= ((p.from.base | p.to.base) & (static_cast<uintptr_t>(size) - 1)) == 0;
    right &= p.from.fits() & p.to.fits();
    right &= p.in_place ? same_pages : AreApart(p.from, p.to);
    return p;
  };
  const Passage of_k = passage_of(source.k.data, cache.k.data);
  *compares = of_k.in_place;
  if (has_v) {
    const Passage of_v = passage_of(source.v.data, cache.v.data);
    right &= of_k.IsApartFrom(of_v);
    *compares |= of_v.in_place;
  }
  if (!right || CheckCache(call, "", source, positions, &fused->source) != ROPE_OK ||
      CheckCache(call, "", cache, positions, &fused->slots) != ROPE_OK) {
    return false;
  }
  k->in = static_cast<const char*>(source.k.data);
  k->out = static_cast<char*>(cache.k.data);
  k->in_span = k->out_span = whole ? context.rotary_offset * size : 0;
  k->heads = source.k.heads;
  k->dtype = dtype;
  k->copies_rest = whole && context.rotary_dim != context.head_dim;
  fused->cached = fused->gathered = 0;
  fused->outputs[0].SetLike(dtype);
  fused->source_k.dtype = fused->source_v.dtype = dtype;
  fused->dropped = cache.dropped;
  fused->source_dropped = source.dropped;
  if (has_v) fused->CopyLike(*k, width, kSourceV, source.v.data, kCacheV, cache.v.data);
  *compares &= context.backend->host_memory;
  if (call.batch != 1 || call.tokens != 1 || positions.place != PositionSource::kRows ||
      !context.backend->host_memory) {
    return true;
  }
  *compares = false;
  return PlaceToken(k, fused);
}

}  // namespace rope
