#include "call/check_append.h"

#include <cstddef>
#include <cstdint>

#include "base/limits.h"
#include "base/struct_size.h"
#include "call/beside_shape.h"
#include "call/check_cache.h"
#include "call/check_scale.h"
#include "call/check_token.h"
#include "call/slot_run.h"
#include "call/tensor_kind.h"
#include "math/element.h"
#include "math/operation.h"
#include "math/scale.h"
#include "math/slots.h"

namespace rope {
namespace {

// In all but address, head_dim and scale, and reserved fields of b are 0.
bool AreAlike(const rope_tensor& a, const rope_tensor& b) {
  return a.dtype == b.dtype && a.layout == b.layout && a.heads == b.heads &&
         a.stride_batch == b.stride_batch && a.stride_token == b.stride_token &&
         a.stride_head == b.stride_head && b.reserved == 0;
}

// Whether the cache keeps heads as they are, or as codes.
bool Keeps(rope_dtype cached, rope_dtype dtype, const rope_tensor& k, const rope_tensor& v) {
  if (cached == dtype) return k.scale == nullptr && v.scale == nullptr;
  return IsCode(cached);
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
  if (!AreAlike(k, v) || v.scale != nullptr || !AreAlike(c.k, c.v)) return false;
  const auto head_dim = [&](const rope_tensor& t) {
    return t.head_dim != 0 ? t.head_dim : context.head_dim;
  };
  const int32_t dim = head_dim(k);
  if (v.head_dim != dim || c.v.head_dim != dim || head_dim(c.k) != dim) return false;
  if (!Keeps(c.k.dtype, k.dtype, c.k, c.v) || c.k.heads != k.heads) return false;
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

// The scales of k and of v in the cache, where these are codes.
struct CachedScales {
  GroupScales of[2];
  BesideShape shapes[2];
};

// Whether they are as they must be, of heads of so many channels.
bool ReadScales(const Call& call, const Names& names, const rope_kv_cache& c, int64_t channels,
                CachedScales* scales) {
  const Call pages = {call.function, call.context, c.pages, c.page_size};
  const rope_tensor* const cached[] = {&c.k, &c.v};
  constexpr Beside kWhich[] = {kCacheK, kCacheV};
  for (int n = 0; n < 2; ++n) {
    scales->shapes[n].present = false;
    if (CheckScale(pages, names.beside[kWhich[n]], *cached[n], channels, ScaleOwner::kCache,
                   DataOf::kCall, &scales->of[n], &scales->shapes[n]) != ROPE_OK) {
      return false;
    }
    if (scales->shapes[n].present) {
      scales->of[n].data = static_cast<char*>(cached[n]->scale->data);
    }
  }
  return true;
}

// Whether v and the memory of the cache, of so many bytes, lie as they must, as ranges that do not
// meet. `scales`: null, or those of the cache.
bool LieApart(const rope_fused& f, int64_t cache_bytes, const Shapes& shapes, const Tensor& q,
              const Tensor& k, const CachedScales* scales) {
  const Range v = RangeOf(f.v.data, shapes.k.in.extent),
              k_cache = RangeOf(f.cache->k.data, cache_bytes),
              v_cache = RangeOf(f.cache->v.data, cache_bytes);
  const auto aligned = [](const Range& range, rope_dtype dtype) {
    return (range.base & (static_cast<uintptr_t>(ElementSize(dtype)) - 1)) == 0;
  };
  const rope_dtype cached = f.cache->k.dtype;
  bool apart = aligned(v, k.dtype) & aligned(k_cache, cached) & aligned(v_cache, cached);
  apart &= (v.end >= v.base) & (k_cache.end >= k_cache.base) & (v_cache.end >= v_cache.base);
  apart &= AreApart(k_cache, v_cache) & AreApart(k_cache, v) & AreApart(v_cache, v);
  // What a call that turns one token reads and writes besides, with the scales of the cache.
  Range others[5];
  bool written[5];
  int count = 0;
  const auto check = [&](const void* data, const Reach& reach, bool write) {
    const Range range = RangeOf(data, reach.extent);
    apart &= AreApart(range, k_cache) & AreApart(range, v_cache);
    apart &= !write | AreApart(range, v);
    others[count] = range;
    written[count++] = write;
  };
  check(k.in, shapes.k.in, false);  // as v is: they may be one
  if (shapes.q.present) check(q.in, shapes.q.in, true);
  if (!shapes.q.in_place) check(q.out, shapes.q.out, true);
  for (int n = 0; scales != nullptr && n < 2; ++n) {
    const BesideShape& shape = scales->shapes[n];
    if (!shape.present) continue;
    const Range range = RangeOf(scales->of[n].data, shape.extent);
    apart &= aligned(range, shape.dtype) & (range.end >= range.base);
    apart &= AreApart(range, k_cache) & AreApart(range, v_cache);
    apart &= !shape.written | AreApart(range, v);
    for (int i = 0; i < count; ++i) {
      apart &= !(shape.written | written[i]) | AreApart(range, others[i]);
    }
    others[count] = range;
    written[count++] = shape.written;
  }
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

// The place of the only token is looked up once, for k and v, and for their scales. It is an output
// as any then.
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
  for (Output* const output : {&fused->outputs[fused->cached], &v.output}) {
    if (!output->HasScaleArray()) continue;
    output->scales.data += TokenOffset(output->scales.strides, slot.page, slot.index);
  }
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
  const int64_t width = shapes->k.in.width, channels = width / ElementSize(k.dtype);
  const bool codes = c.k.dtype != k.dtype;
  CachedScales scales;
  int64_t bytes;
  if ((codes && !ReadScales(call, names, c, channels, &scales)) ||
      !DescribePages(c, BytesOf(c.k.dtype, channels), &k.out_strides, &bytes) ||
      !LieApart(*args.fused, bytes, *shapes, tensors[0], k, codes ? &scales : nullptr) ||
      CheckCache(call, "", c, positions, &fused->slots) != ROPE_OK) {
    return false;
  }
  k.out = static_cast<char*>(c.k.data);
  k.out_span = StoredSpanStart(context, c.k);
  k.copies_rest = context.rotary_dim != context.head_dim && channels == context.head_dim;
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
  v.output.SetLike(c.v.dtype);
  v.norm = nullptr;
  if (codes) {
    Output& of_k = fused->outputs[fused->cached];
    of_k.SetLike(c.k.dtype);
    of_k.scales_at = kCacheKScales;
    of_k.scales = scales.of[0];
    v.output.scales_at = kCacheVScales;
    v.output.scales = scales.of[1];
    fused->converts = true;
  }
  fused->dropped = c.dropped;
  if (one && context.backend->host_memory) PlaceToken(&k, fused);
  return true;
}

}  // namespace rope
