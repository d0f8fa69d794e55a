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

constexpr char kV[] = "args->fused->v", kVOut[] = "args->fused->v_out",
               kCacheK[] = "args->fused->cache->k", kCacheV[] = "args->fused->cache->v";

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
  Regions(const Call& call, const Names& names, const Shapes& shapes, const Tensor tensors[2])
      : call_(call), names_(names), shapes_(shapes), q_(tensors[0]), k_(tensors[shapes.q.present]) {
    AddPair(q_, shapes.q);
    AddPair(k_, shapes.k);
    first_ = count_;
  }

  // Where the next one is to be described.
  Memory* Next() { return &beside_[count_ - first_]; }

  // It may not meet those before, unless both are only read.
  rope_status Add() {
    const Memory& added = *Next();
    const Range range = {added.base, added.end, added.written};
    for (int i = 0; i < count_; ++i) {
      const Range& before = ranges_[i];
      if (before.end <= range.base || range.end <= before.base) continue;
      if (!before.written && !range.written) continue;
      if (rope_status s = Compare(i, added)) return s;
    }
    ranges_[count_++] = range;
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
    AddRange(t.in, shape.in, shape.in_place && !shape.only_read);
    if (!shape.in_place) AddRange(t.out, shape.out, true);
  }

  rope_status Compare(int i, const Memory& added) const {
    Memory rotated[4];
    const Tensor tensors[] = {shapes_.q.present ? q_ : k_, k_};
    MemoryOf(call_, names_, shapes_, tensors, rotated);
    const Memory& m = i < first_ ? rotated[i] : beside_[i - first_];
    if (AreDisjoint({m.of, m.base}, {added.of, added.base})) return ROPE_OK;
    return Fail(ROPE_ERROR_INVALID_ARGUMENT, "%s: %s overlaps %s", call_.function, added.name,
                m.name);
  }

  const Call& call_;
  const Names& names_;
  const Shapes& shapes_;
  const Tensor q_, k_;  // as they were: k's output becomes the cache
  Range ranges_[8];
  Memory beside_[4];
  int count_ = 0, first_;
};

// A tensor that is read or written besides q, k and their outputs.
rope_status DescribeMemory(const Call& call, const char* name, const rope_tensor& t,
                           TensorKind kind, bool written, HeadStrides* strides, Memory* memory) {
  Reach reach;
  HeadStrides elements;
  if (rope_status s = DescribeBeside(call, name, t, kind, written, &elements, &reach)) return s;
  const HeadStrides s = *strides = InBytes(elements, ElementSize(t.dtype));
  memory->name = name;
  memory->of = {{call.batch, call.tokens, t.heads}, {s.batch, s.token, s.head}, reach.width};
  memory->base = reinterpret_cast<uintptr_t>(t.data);
  memory->end = memory->base + static_cast<uintptr_t>(reach.extent);
  memory->written = written;
  return ROPE_OK;
}

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

// k, whose result goes to slots.
rope_status CheckCachedK(const Call& call, const Call& pages, const Names& names,
                         const rope_tensor& cached, const Shapes& shapes, Regions* regions,
                         Tensor tensors[3], int32_t* count, FusedPlan* fused) {
  const rope_context& context = call.context;
  HeadStrides strides;
  const Memory& out = *regions->Next();
  if (rope_status s = DescribeMemory(pages, kCacheK, cached, TensorKind::kCachedHeads, true,
                                     &strides, regions->Next())) {
    return s;
  }
  const int32_t n = shapes.q.present;
  Tensor& k = tensors[n];
  if (rope_status s = CheckAlike(call, kCacheK, cached, names.k, k.dtype, k.heads)) return s;
  if (rope_status s = regions->Add()) return s;
  // Before k_out: in place, k would be gone.
  if (!shapes.k.only_read) tensors[(*count)++] = k;
  k.out = static_cast<char*>(cached.data);
  k.out_strides = strides;
  k.out_span = SpanStart(context, cached);
  const int64_t whole = int64_t{context.head_dim} * ElementSize(k.dtype);
  k.copies_rest =
      context.rotary_dim != context.head_dim && shapes.k.in.width == whole && out.of.width == whole;
  fused->cached = n;
  return ROPE_OK;
}

// v, to one place.
rope_status CheckCopy(const Call& call, const char* name, const rope_tensor& to, TensorKind kind,
                      const rope_tensor& v, const HeadStrides& in_strides, const Memory& in,
                      Regions* regions, FusedPlan* fused) {
  HeadStrides strides;
  const Memory& out = *regions->Next();
  if (rope_status s = DescribeMemory(call, name, to, kind, true, &strides, regions->Next())) {
    return s;
  }
  if (rope_status s = CheckAlike(call, name, to, kV, v.dtype, v.heads)) return s;
  if (to.head_dim != v.head_dim) {
    return Fail(ROPE_ERROR_INVALID_ARGUMENT, "%s: %s.head_dim (%d) must be that of %s (%d)",
                call.function, name, to.head_dim, kV, v.head_dim);
  }
  const bool in_place = !IsInCache(kind) && to.data == v.data && AreEqual(in.of, out.of);
  if (in_place) return ROPE_OK;
  if (rope_status s = regions->Add()) return s;
  Copy& copy = fused->copies[fused->copy_count++];
  copy.in = static_cast<const char*>(v.data);
  copy.out = static_cast<char*>(to.data);
  copy.in_strides = in_strides;
  copy.out_strides = strides;
  copy.width = in.of.width;
  copy.heads = v.heads;
  copy.to_slots = IsInCache(kind);
  return ROPE_OK;
}

}  // namespace

rope_status ReadFused(const Call& call, const rope_qk_args& args, FusedArgs* given) {
  const char* const function = call.function;
  if (!call.context.backend->has_fused) {
    return Fail(ROPE_ERROR_UNSUPPORTED,
                "%s: args->fused must be NULL in a %s context in this version", function,
                call.context.backend->name);
  }
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
                  kCacheK, kCacheV);
    }
    if (given->caches_k && IsAbsent(args.k)) return Needs(call, kCacheK, "args->k");
    if (given->caches_v && !given->has_v) return Needs(call, kCacheV, kV);
    if (rope_status s = CheckPagesAndSlots(call, cache)) return s;
  }
  if (given->has_v_out && !given->has_v) return Needs(call, kVOut, kV);
  if (!given->has_v || given->has_v_out || given->caches_v) return ROPE_OK;
  return Fail(ROPE_ERROR_INVALID_ARGUMENT,
              "%s: %s is set, but neither v_out nor cache->v is, where it would go", function, kV);
}

rope_status CheckFused(const Call& call, const Names& names, const FusedArgs& given,
                       const Shapes& shapes, const PositionSource& positions, Tensor tensors[3],
                       int32_t* count, FusedPlan* fused) {
  const rope_fused& f = *given.fused;
  const rope_kv_cache* const cache = given.cache;
  fused->cached = -1;
  fused->copy_count = 0;
  Regions regions(call, names, shapes, tensors);
  const Call pages = {call.function, call.context, cache != nullptr ? cache->pages : 0,
                      cache != nullptr ? cache->page_size : 0};
  if (given.caches_k) {
    if (rope_status s =
            CheckCachedK(call, pages, names, cache->k, shapes, &regions, tensors, count, fused)) {
      return s;
    }
  }
  if (given.has_v) {
    HeadStrides strides;
    const Memory& in = *regions.Next();
    // Written if v_out is v, which follows.
    if (rope_status s = DescribeMemory(call, kV, f.v, TensorKind::kOthers, f.v_out.data == f.v.data,
                                       &strides, regions.Next())) {
      return s;
    }
    if (rope_status s = regions.Add()) return s;
    if (given.has_v_out) {
      if (rope_status s = CheckCopy(call, kVOut, f.v_out, TensorKind::kOthers, f.v, strides, in,
                                    &regions, fused)) {
        return s;
      }
    }
    if (given.caches_v) {
      if (rope_status s = CheckCopy(pages, kCacheV, cache->v, TensorKind::kCachedOthers, f.v,
                                    strides, in, &regions, fused)) {
        return s;
      }
    }
  }
  return cache != nullptr ? CheckCache(call, *cache, positions, &fused->slots) : ROPE_OK;
}

}  // namespace rope
