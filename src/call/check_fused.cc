#include "call/check_fused.h"

#include <cstdint>

#include "base/status.h"
#include "base/struct_size.h"
#include "call/check_cache.h"
#include "call/overlap.h"
#include "math/element.h"
#include "math/operation.h"

namespace rope {
namespace {

constexpr TensorKind kKinds[kBesides] = {TensorKind::kCachedHeads, TensorKind::kOthers,
                                         TensorKind::kOthers, TensorKind::kCachedOthers};

rope_status CheckReserved(const Call& call, const char* name, int64_t reserved) {
  if (reserved == 0) return ROPE_OK;
  return Fail(ROPE_ERROR_UNSUPPORTED, "%s: %s->reserved must be 0 in this version", call.function,
              name);
}

rope_status Needs(const Call& call, const char* name, const char* needs) {
  return Fail(ROPE_ERROR_INVALID_ARGUMENT, "%s: %s is set, but %s is absent", call.function, name,
              needs);
}

// pages and page_size take the places of batch and tokens in the checks of a cache's memory.
rope_status CheckPagesAndSlots(const Call& call, const rope_kv_cache& cache) {
  constexpr int32_t kMostSlots = 1 << 30;
  if (cache.pages < 1) {
    return Fail(ROPE_ERROR_INVALID_ARGUMENT,
                "%s: args->fused->cache->pages (%lld) is required, and must be positive",
                call.function, static_cast<long long>(cache.pages));
  }
  if (cache.page_size < 1 || cache.page_size > kMostSlots) {
    return Fail(ROPE_ERROR_INVALID_ARGUMENT,
                "%s: args->fused->cache->page_size (%d) is required, and must be from 1 to %d",
                call.function, cache.page_size, kMostSlots);
  }
  return ROPE_OK;
}

// All memory of the call, to be compared with each other. Most does not meet: what it consists of
// is asked for only where ranges do.
class Regions {
 public:
  Regions(const Call& call, const Names& names, const Shapes& shapes, const Tensor tensors[3])
      : call_(call), names_(names), shapes_(shapes), tensors_(tensors) {
    AddPair(tensors[0], shapes.q);
    AddPair(tensors[shapes.k_at()], shapes.k);
    first_ = count_;
  }

  // It may not meet those before, unless both are only read.
  rope_status Add(Beside which, const BesideShape& shape, const void* data, bool written) {
    const auto base = reinterpret_cast<uintptr_t>(data);
    const uintptr_t end = base + static_cast<uintptr_t>(shape.extent);
    for (int i = 0; i < count_; ++i) {
      const Range& before = ranges_[i];
      if (before.end <= base || end <= before.base || !(before.written || written)) continue;
      if (rope_status s = Compare(i, which, {names_.beside[which], shape.of, base})) return s;
    }
    beside_[count_ - first_] = {which, &shape};
    ranges_[count_++] = {base, end, written};
    return ROPE_OK;
  }

 private:
  struct Range {
    uintptr_t base, end;
    bool written;
  };

  void AddRange(const char* data, const Reach& reach, bool written) {
    const auto base = reinterpret_cast<uintptr_t>(data);
    ranges_[count_++] = {base, base + static_cast<uintptr_t>(reach.extent), written};
  }
  // In the order of MemoryOf.
  void AddPair(const Tensor& t, const TensorShape& shape) {
    if (!shape.present) return;
    AddRange(t.in, shape.in, shape.in_place && !shape.only_read());
    if (!shape.in_place) AddRange(t.out, shape.out, true);
  }

  __attribute__((noinline)) rope_status Compare(int i, Beside which, const Memory& added) const {
    Memory rotated[4], before;
    bool may_be_equal = false;
    if (i < first_) {
      MemoryOf(call_, names_, shapes_, tensors_, rotated);
      before = rotated[i];
    } else {
      const auto& [which_before, shape] = beside_[i - first_];
      before = {names_.beside[which_before], shape->of, ranges_[i].base};
      may_be_equal = which_before == kV && which == kVOut;
    }
    if (AreDisjoint({before.of, before.base}, {added.of, added.base})) return ROPE_OK;
    return Fail(ROPE_ERROR_INVALID_ARGUMENT, "%s: %s overlaps %s%s", call_.function, added.name,
                before.name, may_be_equal ? ", and must be exactly it or disjoint from it" : "");
  }

  const Call& call_;
  const Names& names_;
  const Shapes& shapes_;
  const Tensor* const tensors_;
  Range ranges_[4 + kBesides];
  struct {
    Beside which;
    const BesideShape* shape;
  } beside_[kBesides];
  int count_ = 0, first_;
};

rope_status CheckAlike(const Call& call, const char* out_name, const rope_tensor& out,
                       const char* name, rope_dtype dtype, int32_t heads) {
  if (out.dtype != dtype) {
    return Fail(ROPE_ERROR_UNSUPPORTED, "%s: %s.dtype (%d) must be that of %s (%d) in this version",
                call.function, out_name, out.dtype, name, dtype);
  }
  if (out.heads == heads) return ROPE_OK;
  return Fail(ROPE_ERROR_INVALID_ARGUMENT, "%s: %s.heads (%d) must be that of %s (%d)",
              call.function, out_name, out.heads, name, heads);
}

HeadStrides StridesOf(const BesideShape& shape) {
  return {shape.of.strides[0], shape.of.strides[1], shape.of.strides[2]};
}

// k, whose result goes to slots.
rope_status DescribeCachedK(const Call& call, const Call& pages, const Names& names,
                            const rope_tensor& cached, DataOf data_of, const Shapes& shapes,
                            Tensor tensors[3], int32_t* count, BesideShape* shape,
                            FusedPlan* fused) {
  const rope_context& context = call.context;
  const char* const name = names.beside[kCacheK];
  if (rope_status s = DescribeBeside(pages, name, cached, kKinds[kCacheK], true, data_of, shape)) {
    return s;
  }
  const int32_t n = shapes.q.present;
  Tensor& k = tensors[n];
  if (rope_status s = CheckAlike(call, name, cached, names.k, k.dtype, k.heads)) return s;
  // Before k_out: in place, k would be gone.
  if (!shapes.k.only_read()) tensors[(*count)++] = k;
  k.out_strides = StridesOf(*shape);
  k.out_span = SpanStart(context, cached);
  const int64_t whole = int64_t{context.head_dim} * ElementSize(k.dtype);
  k.copies_rest = context.rotary_dim != context.head_dim && shapes.k.in.width == whole &&
                  shape->of.width == whole;
  fused->cached = n;
  return ROPE_OK;
}

// v, to one place.
rope_status DescribeCopy(const Call& call, const Names& names, Beside which, const rope_tensor& to,
                         const rope_tensor& v, DataOf data_of, FusedShapes* shapes,
                         Copies* copies) {
  const char *const name = names.beside[which], *const v_name = names.beside[kV];
  BesideShape& shape = shapes->beside[which];
  if (rope_status s = DescribeBeside(call, name, to, kKinds[which], true, data_of, &shape)) {
    return s;
  }
  if (rope_status s = CheckAlike(call, name, to, v_name, v.dtype, v.heads)) return s;
  if (to.head_dim != v.head_dim) {
    return Fail(ROPE_ERROR_INVALID_ARGUMENT, "%s: %s.head_dim (%d) must be that of %s (%d)",
                call.function, name, to.head_dim, v_name, v.head_dim);
  }
  Copy& copy = copies->of[copies->count++];
  copy.in_strides = StridesOf(shapes->beside[kV]);
  copy.out_strides = StridesOf(shape);
  copy.width = shape.of.width;
  copy.heads = v.heads;
  copy.to_slots = IsInCache(kKinds[which]);
  return ROPE_OK;
}

}  // namespace

rope_status ReadFused(const Call& call, const rope_qk_args& args, FusedArgs* given) {
  const char* const function = call.function;
  const auto& names = kNamesOfArgs.beside;
  given->fused = args.fused;
  if (args.fused->struct_size != sizeof(rope_fused)) {
    if (rope_status s = CopyStruct(function, "args->fused", args.fused, &given->fused_copy))
      return s;
    given->fused = &given->fused_copy;
  }
  const rope_fused& fused = *given->fused;
  if (rope_status s = CheckReserved(call, "args->fused", fused.reserved)) return s;
  given->has_v = !IsAbsent(fused.v);
  given->has_v_out = !IsAbsent(fused.v_out);
  given->cache = fused.cache;
  given->caches_k = given->caches_v = false;
  if (fused.cache != nullptr) {
    if (fused.cache->struct_size != sizeof(rope_kv_cache)) {
      if (rope_status s =
              CopyStruct(function, "args->fused->cache", fused.cache, &given->cache_copy)) {
        return s;
      }
      given->cache = &given->cache_copy;
    }
    const rope_kv_cache& cache = *given->cache;
    if (rope_status s = CheckReserved(call, "args->fused->cache", cache.reserved)) return s;
    if (!kOperations[args.operation].is_cached) {
      return Fail(ROPE_ERROR_UNSUPPORTED,
                  "%s: args->fused->cache must be NULL with BACKWARD: gradients are not cached",
                  function);
    }
    given->caches_k = !IsAbsent(cache.k);
    given->caches_v = !IsAbsent(cache.v);
    if (!given->caches_k && !given->caches_v) {
      return Fail(ROPE_ERROR_INVALID_ARGUMENT, "%s: %s and %s must not both be absent", function,
                  names[kCacheK], names[kCacheV]);
    }
    if (given->caches_k && IsAbsent(args.k)) return Needs(call, names[kCacheK], "args->k");
    if (given->caches_v && !given->has_v) return Needs(call, names[kCacheV], names[kV]);
    if (rope_status s = CheckPagesAndSlots(call, cache)) return s;
  }
  if (given->has_v_out && !given->has_v) return Needs(call, names[kVOut], names[kV]);
  if (!given->has_v || given->has_v_out || given->caches_v) return ROPE_OK;
  return Fail(ROPE_ERROR_INVALID_ARGUMENT,
              "%s: %s is set, but neither v_out nor cache->v is, where it would go", function,
              names[kV]);
}

rope_status CheckFusedShapes(const Call& call, const Names& names, const FusedArgs& given,
                             DataOf data_of, const Shapes& shapes, const PositionSource& positions,
                             Tensor tensors[3], int32_t* count, FusedShapes* fused_shapes,
                             FusedPlan* fused) {
  const rope_fused& f = *given.fused;
  const rope_kv_cache* const cache = given.cache;
  BesideShape* const beside = fused_shapes->beside;
  for (int which = 0; which < kBesides; ++which) beside[which].present = false;
  fused_shapes->pages = cache != nullptr ? cache->pages : 0;
  fused_shapes->page_size = cache != nullptr ? cache->page_size : 0;
  fused->cached = -1;
  fused->copies.count = 0;
  const Call pages = {call.function, call.context, fused_shapes->pages, fused_shapes->page_size};
  if (given.caches_k) {
    if (rope_status s = DescribeCachedK(call, pages, names, cache->k, data_of, shapes, tensors,
                                        count, &beside[kCacheK], fused)) {
      return s;
    }
  }
  if (given.has_v) {
    // If v_out is v, it is written, as v_out says.
    if (rope_status s =
            DescribeBeside(call, names.beside[kV], f.v, kKinds[kV], false, data_of, &beside[kV])) {
      return s;
    }
    if (given.has_v_out) {
      if (rope_status s = DescribeCopy(call, names, kVOut, f.v_out, f.v, data_of, fused_shapes,
                                       &fused->copies)) {
        return s;
      }
    }
    if (given.caches_v) {
      if (rope_status s = DescribeCopy(pages, names, kCacheV, cache->v, f.v, data_of, fused_shapes,
                                       &fused->copies)) {
        return s;
      }
    }
  }
  fused->slots.kind = 0;
  fused->dropped = nullptr;
  if (cache == nullptr) return ROPE_OK;
  fused->dropped = cache->dropped;
  return CheckCache(call, *cache, positions, &fused->slots);
}

rope_status CheckFusedAddresses(const Call& call, const Names& names, const Shapes& shapes,
                                const FusedShapes& fused_shapes, const FusedAddresses& addresses,
                                int32_t cached, Tensor tensors[3], Copies* copies) {
  const BesideShape* const beside = fused_shapes.beside;
  void* const* const at = addresses.beside;
  const Call pages = {call.function, call.context, fused_shapes.pages, fused_shapes.page_size};
  // v_out may be v itself.
  const bool in_place =
      beside[kVOut].present && at[kVOut] == at[kV] && AreEqual(beside[kV].of, beside[kVOut].of);
  Regions regions(call, names, shapes, tensors);
  for (int which = 0; which < kBesides; ++which) {
    const BesideShape& shape = beside[which];
    if (!shape.present) continue;
    if (rope_status s =
            CheckAddressBeside(IsInCache(kKinds[which]) ? pages : call, names.beside[which],
                               names.data, shape, kKinds[which], at[which])) {
      return s;
    }
    if (which == kVOut && in_place) continue;
    const bool written = which != kV || in_place;
    if (rope_status s = regions.Add(static_cast<Beside>(which), shape, at[which], written)) {
      return s;
    }
  }
  if (cached >= 0) {
    tensors[cached].in = tensors[shapes.k_at()].in;
    tensors[cached].out = static_cast<char*>(at[kCacheK]);
  }
  // In place the first one is none.
  if (in_place && --copies->count > 0) copies->of[0] = copies->of[1];
  for (int n = 0; n < copies->count; ++n) {
    Copy& copy = copies->of[n];
    copy.in = static_cast<const char*>(at[kV]);
    copy.out = static_cast<char*>(at[copy.to_slots ? kCacheV : kVOut]);
  }
  return ROPE_OK;
}

}  // namespace rope
