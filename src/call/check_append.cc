#include "call/check_append.h"

#include <cstddef>
#include <cstdint>

#include "base/limits.h"
#include "base/struct_size.h"
#include "call/beside_shape.h"
#include "call/check_cache.h"
#include "call/check_norm.h"
#include "call/check_scale.h"
#include "call/check_token.h"
#include "call/overlap.h"
#include "call/slot_run.h"
#include "call/tensor_kind.h"
#include "math/element.h"
#include "math/operation.h"
#include "math/scale.h"
#include "math/slots.h"

namespace rope {
namespace {

// Whether the cache keeps heads as they are, or as codes.
bool Keeps(rope_dtype cached, rope_dtype dtype, const rope_tensor& k, const rope_tensor& v) {
  if (cached == dtype) return k.scale == nullptr && v.scale == nullptr;
  return IsCode(cached);
}

// Whether nothing is there behind v but norms.
bool IsAllButNorms(const rope_fused& f) {
  constexpr size_t kNorms = offsetof(rope_fused, q_norm), kBehind = offsetof(rope_fused, rest);
  return IsZeroFrom<offsetof(rope_fused, v_out), kNorms>(f) && IsZeroFrom<kBehind>(f);
}

// Whether k and v, which are there, are described alike, and go to a contiguous cache, and nothing
// else is in the structs, which are those of this version.
bool IsAppend(const rope_context& context, const rope_qk_args& args) {
  const rope_fused& f = *args.fused;
  const rope_tensor &k = args.k, &v = f.v;
  if (f.struct_size != sizeof(f) || f.cache == nullptr || !AreAlike(k, v)) return false;
  const rope_kv_cache& c = *f.cache;
  if (c.struct_size != sizeof(c) || (c.reserved | f.reserved) != 0) return false;
  if (!IsAllButNorms(f) || !IsAbsent(args.k_out)) return false;
  const OperationRule& rule = kOperations[args.operation];
  if (!rule.is_cached || rule.has_from() || args.positions.batch_repeat > 1) return false;
  if (k.data == nullptr || v.data == nullptr || c.k.data == nullptr || c.v.data == nullptr) {
    return false;
  }
  if (v.scale != nullptr || !AreAlike(c.k, c.v)) return false;
  const auto head_dim = [&](const rope_tensor& t) {
    return t.head_dim != 0 ? t.head_dim : context.head_dim;
  };
  const int32_t dim = head_dim(k);
  if (v.head_dim != dim || c.v.head_dim != dim || head_dim(c.k) != dim) return false;
  if (!Keeps(c.k.dtype, k.dtype, c.k, c.v) || c.k.heads != k.heads) return false;
  return c.pages >= 1 && c.page_size >= 1 && c.page_size <= kMaxPageSize;
}

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
// meet: without a branch for each. `scales`: null, or those of the cache.
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
  apart &= v.fits() & k_cache.fits() & v_cache.fits();
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
    apart &= aligned(range, shape.dtype) & range.fits();
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

bool HasNorms(const rope_fused& f) {
  return f.q_norm != nullptr || f.k_norm != nullptr || f.v_norm != nullptr;
}

// Whether the norms of q, k and v are as they must be. Apart: most calls have none.
__attribute__((noinline)) bool ReadNorms(const Call& call, const rope_qk_args& args,
                                         const Shapes& shapes, const Tensor* tensors,
                                         FusedPlan* fused) {
  const rope_fused& f = *args.fused;
  const OperationRule& rule = kOperations[args.operation];
  if (!rule.takes_rows || rule.is_gradient()) return false;
  const auto read = [&](Normed which, const rope_norm* norm, const NormedTensor& normed, Norm* to) {
    GradientShapes none;
    return CheckNorm(call, kNormNames[which], norm, normed, DataOf::kCall, to, &none) == ROPE_OK;
  };
  const auto read_turned = [&](Normed which, const rope_norm* norm, const TensorShape& shape,
                               int32_t n, Norm* to) {
    if (norm == nullptr) return true;
    if (!shape.present) return false;
    const Tensor& t = tensors[n];
    const auto channels = static_cast<int32_t>(shape.in.width / ElementSize(t.dtype));
    const bool keeps_width = shape.in_place || shape.out.width == shape.in.width;
    fused->norms[n] = to;
    return read(which, norm, {t.dtype, t.heads, channels, true, keeps_width, false}, to);
  };
  if (!read_turned(kQ, f.q_norm, shapes.q, 0, &fused->q_norm)) return false;
  if (!read_turned(kK, f.k_norm, shapes.k, shapes.q.present, &fused->k_norm)) return false;
  if (f.v_norm == nullptr) return true;
  if (IsAbsent(f.v)) return false;
  const NormedTensor v = {f.v.dtype, f.v.heads, f.v.head_dim, false, true, false};
  return read(kNormedV, f.v_norm, v, &fused->v_norm);
}

// q in place and, if it has one, k of the only token.
__attribute__((always_inline)) inline bool ReadToken(const rope_context& context,
                                                     const rope_qk_args& args, bool has_k,
                                                     Shapes* shapes, Tensor tensors[3]) {
  TensorShape &q = shapes->q, &k = shapes->k;
  q.in_place = k.in_place = k.cached = true;
  q.present = !IsAbsent(args.q);
  k.present = has_k;
  q.cached = false;
  if (q.present && !ReadHeads(context, args.q, &tensors[0], &q.in)) return false;
  if (has_k && !ReadHeads(context, args.k, &tensors[q.present], &k.in)) return false;
  return !q.present || !has_k || ReachApart(args.q.data, q.in, args.k.data, k.in);
}

// The place of the only token is looked up once, for k and v, and for their scales. It is an output
// as any then.
void PlaceToken(Tensor* k, FusedPlan* fused) {
  const Slot slot = SlotOfOnlyToken(fused->slots);
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
  if (!one || !IsAbsent(args.q_out) || !ReadToken(context, args, true, shapes, tensors)) {
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
      (HasNorms(*args.fused) && !ReadNorms(call, args, *shapes, tensors, fused)) ||
      CheckCache(call, "", c, positions, &fused->slots) != ROPE_OK) {
    return false;
  }
  k.out = static_cast<char*>(c.k.data);
  k.out_span = StoredSpanStart(context, c.k);
  k.copies_rest = context.rotary_dim != context.head_dim && channels == context.head_dim;
  fused->cached = shapes->q.present;
  for (int n = 0; n <= fused->cached; ++n) fused->outputs[n].SetLike(tensors[n].dtype);
  Copy& v = *fused->CopyLike(k, width, kV, args.fused->v.data, kCacheV, c.v.data);
  if (args.fused->v_norm != nullptr) v.norm = &fused->v_norm;
  if (codes) {
    Output& of_k = fused->outputs[fused->cached];
    of_k.SetLike(c.k.dtype);
    of_k.scales_at = kCacheKScales;
    of_k.scales = scales.of[0];
    v.output.SetLike(c.v.dtype);
    v.output.scales_at = kCacheVScales;
    v.output.scales = scales.of[1];
    fused->converts = true;
    for (const Norm* norm : {fused->norms[fused->cached], v.norm}) {
      if (norm != nullptr && norm->span == ROPE_NORM_SPAN_ALL_HEADS) return false;
    }
  }
  fused->dropped = c.dropped;
  if (one && context.backend->host_memory) PlaceToken(&k, fused);
  return true;
}

bool CheckNormedToken(const Call& call, const rope_qk_args& args, Shapes* shapes, Tensor tensors[3],
                      FusedPlan* fused) {
  const rope_fused& f = *args.fused;
  if (f.struct_size != sizeof(f) || f.reserved != 0 || f.cache != nullptr) return false;
  if (!IsAbsent(f.v) || !IsAllButNorms(f) || !IsAbsent(args.q_out) || !IsAbsent(args.k_out)) {
    return false;
  }
  const bool has_k = !IsAbsent(args.k);
  if (!ReadToken(call.context, args, has_k, shapes, tensors)) return false;
  shapes->k.cached = false;
  fused->copies.count = 0;
  for (int n = 0; n < shapes->count(); ++n) fused->outputs[n].SetLike(tensors[n].dtype);
  return HasNorms(f) && ReadNorms(call, args, *shapes, tensors, fused);
}

}  // namespace rope
