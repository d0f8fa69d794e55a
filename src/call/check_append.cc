#include "call/check_append.h"

#include <cstddef>
#include <cstdint>

#include "base/limits.h"
#include "base/struct_size.h"
#include "call/check_cache.h"
#include "call/check_token.h"
#include "call/slot_run.h"
#include "math/element.h"
#include "math/operation.h"
#include "math/slots.h"

namespace rope {
namespace {

// In all but address and head_dim, and reserved fields of b are 0.
bool AreAlike(const rope_tensor& a, const rope_tensor& b) {
  return a.dtype == b.dtype && a.layout == b.layout && a.heads == b.heads &&
         a.stride_batch == b.stride_batch && a.stride_token == b.stride_token &&
         a.stride_head == b.stride_head && b.reserved == 0 && b.scale == nullptr;
}

// Whether k and v, which are there, are described alike, and go to a contiguous cache, and nothing
// else is in the structs, which are those of this version.
bool IsAppend(const rope_context& context, const rope_qk_args& args) {
  const rope_fused& f = *args.fused;
  if (f.struct_size != sizeof(f) || f.reserved != 0 || f.cache == nullptr) return false;
  const rope_kv_cache& c = *f.cache;
  if (c.struct_size != sizeof(c) || c.reserved != 0) return false;
  if (!IsZeroFrom<offsetof(rope_fused, v_out)>(f) || !IsAbsent(args.k_out)) return false;
  const OperationRule& rule = kOperations[args.operation];
  if (!rule.is_cached || rule.has_from() || args.positions.batch_repeat > 1) return false;
  const rope_tensor &k = args.k, &v = f.v;
  if (k.data == nullptr || v.data == nullptr || c.k.data == nullptr || c.v.data == nullptr) {
    return false;
  }
  if (!AreAlike(k, v) || !AreAlike(c.k, c.v)) return false;
  const auto head_dim = [&](const rope_tensor& t) {
    return t.head_dim != 0 ? t.head_dim : context.head_dim;
  };
  const int32_t dim = head_dim(k);
  if (v.head_dim != dim || c.v.head_dim != dim || head_dim(c.k) != dim) return false;
  if (c.k.dtype != k.dtype || c.k.heads != k.heads) return false;
  return c.pages >= 1 && c.page_size >= 1 && c.page_size <= kMaxPageSize;
}

// Bytes of memory.
struct Range {
  uintptr_t base, end;
};
Range RangeOf(const void* data, int64_t bytes) {
  const auto base = reinterpret_cast<uintptr_t>(data);
  return {base, base + static_cast<uintptr_t>(bytes)};
}
// No branch for each, here and below.
bool AreApart(const Range& a, const Range& b) { return (a.end <= b.base) | (b.end <= a.base); }

// Whether v and the memory of the cache, of so many bytes, lie as they must, as ranges that do not
// meet.
bool LieApart(const rope_fused& f, int64_t cache_bytes, const Shapes& shapes, const Tensor& q,
              const Tensor& k) {
  const Range v = RangeOf(f.v.data, shapes.k.in.extent),
              k_cache = RangeOf(f.cache->k.data, cache_bytes),
              v_cache = RangeOf(f.cache->v.data, cache_bytes);
  const auto element = static_cast<uintptr_t>(ElementSize(k.dtype));
  bool apart = ((v.base | k_cache.base | v_cache.base) & (element - 1)) == 0;
  apart &= (v.end >= v.base) & (k_cache.end >= k_cache.base) & (v_cache.end >= v_cache.base);
  apart &= AreApart(k_cache, v_cache) & AreApart(k_cache, v) & AreApart(v_cache, v);
  const auto check = [&](const void* data, const Reach& reach, bool read) {
    const Range range = RangeOf(data, reach.extent);
    apart &= AreApart(range, k_cache) & AreApart(range, v_cache);
    apart &= read | AreApart(range, v);
  };
  check(k.in, shapes.k.in, true);  // as v is: they may be one
  if (shapes.q.present) check(q.in, shapes.q.in, false);
  if (!shapes.q.in_place) check(q.out, shapes.q.out, false);
  return apart;
}

// q in place and k of the only token.
bool ReadToken(const rope_context& context, const rope_qk_args& args, Shapes* shapes,
               Tensor tensors[3]) {
  if (!IsAbsent(args.q_out)) return false;
  TensorShape &q = shapes->q, &k = shapes->k;
  q.in_place = k.in_place = k.present = k.cached = true;
  q.present = !IsAbsent(args.q);
  q.cached = false;
  if (!q.present) return ReadHeads(context, args.k, &tensors[0], &k.in);
  return ReadHeads(context, args.q, &tensors[0], &q.in) &&
         ReadHeads(context, args.k, &tensors[1], &k.in) &&
         ReachApart(args.q.data, q.in, args.k.data, k.in);
}

// The place of the only token is looked up once, for k and v. It is an output as any then.
void PlaceToken(Tensor* k, FusedPlan* fused) {
  const Slot slot = WithPageOf(fused->slots.page_size, [&](auto page_of) {
    return SlotOf(fused->slots, Token{}, 1, page_of);
  });
  if (slot.page < 0) return;
  const int64_t offset = TokenOffset(k->out_strides, slot.page, slot.index);
  Copy& v = fused->copies.of[0];
  k->out += offset;
  v.out += offset;
  v.to = kVOut;
  fused->cached = -1;
  fused->slots.kind = 0;
}

}  // namespace

bool CheckAppend(const Call& call, const Names& names, const rope_qk_args& args,
                 const PositionSource& positions, Shapes* shapes, Tensor tensors[3],
                 FusedPlan* fused) {
  const rope_context& context = call.context;
  if (!IsAppend(context, args)) return false;
  const bool one = call.batch == 1 && call.tokens == 1 && positions.place == PositionSource::kRows;
  if (!one || !ReadToken(context, args, shapes, tensors)) {
    shapes->q.cached = false;
    shapes->k.cached = true;
    if (CheckShapes(call, names, args, DataOf::kCall, shapes, tensors) != ROPE_OK) return false;
    const Addresses addresses = {args.q.data, args.k.data, args.q_out.data, nullptr};
    if (CheckAddresses(call, names, *shapes, addresses, tensors) != ROPE_OK) return false;
  }

  const rope_kv_cache& c = *args.fused->cache;
  Tensor& k = tensors[shapes->q.present];
  const int64_t width = shapes->k.in.width;
  int64_t bytes;
  if (!DescribePages(c, width, &k.out_strides, &bytes) ||
      !LieApart(*args.fused, bytes, *shapes, tensors[0], k) ||
      CheckCache(call, "", c, positions, &fused->slots) != ROPE_OK) {
    return false;
  }
  k.out = static_cast<char*>(c.k.data);
  k.copies_rest = context.rotary_dim != context.head_dim &&
                  width == int64_t{context.head_dim} * ElementSize(k.dtype);
  fused->cached = shapes->q.present;
  for (int n = 0; n <= fused->cached; ++n) fused->outputs[n].SetLike(tensors[n].dtype);
  fused->copies.count = 1;
  Copy& v = fused->copies.of[0];
  v.from = kV;
  v.to = kCacheV;
  v.in = static_cast<const char*>(args.fused->v.data);
  v.out = static_cast<char*>(c.v.data);
  v.in_strides = k.in_strides;
  v.out_strides = k.out_strides;
  v.width = width;
  v.heads = k.heads;
  v.dtype = k.dtype;
  v.output.SetLike(k.dtype);
  v.norm = nullptr;
  fused->dropped = c.dropped;
  if (one && context.backend->host_memory) PlaceToken(&k, fused);
  return true;
}

}  // namespace rope
