#include "call/check_fused.h"

#include <cstdint>

#include "base/status.h"
#include "base/struct_size.h"
#include "call/check_cache.h"
#include "call/overlap.h"
#include "math/element.h"

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

// The tensors that are read, written, or both, to be compared with each other.
class Regions {
 public:
  Regions(const Call& call, const Names& names, const Shapes& shapes, const Tensor tensors[2])
      : call_(call), count_(MemoryOf(call, names, shapes, tensors, memory_)) {}

  // One more that may not meet those before, unless both are only read.
  rope_status Add(const Memory& added) {
    const Region region = {added.of, added.base};
    for (int i = 0; i < count_; ++i) {
      const Memory& m = memory_[i];
      if (!(m.written || added.written) || AreDisjoint({m.of, m.base}, region)) continue;
      return Fail(ROPE_ERROR_INVALID_ARGUMENT, "%s: %s overlaps %s", call_.function, added.name,
                  m.name);
    }
    memory_[count_++] = added;
    return ROPE_OK;
  }

 private:
  const Call& call_;
  Memory memory_[8];
  int count_;
};

// A tensor that is read or written besides q, k and their outputs.
struct Described {
  HeadStrides strides;  // bytes
  Memory memory;
};

rope_status DescribeMemory(const Call& call, const char* name, const rope_tensor& t,
                           TensorKind kind, bool written, Described* out) {
  Reach reach;
  HeadStrides elements;
  if (rope_status s = DescribeBeside(call, name, t, kind, &elements, &reach)) return s;
  out->strides = InBytes(elements, ElementSize(t.dtype));
  const HeadStrides& s = out->strides;
  out->memory = {name,
                 {{call.batch, call.tokens, t.heads}, {s.batch, s.token, s.head}, reach.width},
                 reinterpret_cast<uintptr_t>(t.data),
                 written};
  if (!written || IsInjective(out->memory.of)) return ROPE_OK;
  return Fail(ROPE_ERROR_INVALID_ARGUMENT,
              IsInCache(kind)
                  ? "%s: %s: strides let heads, slots or pages of a cache overlap"
                  : "%s: %s: strides let heads, tokens or batch rows of an output overlap",
              call.function, name);
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
                         Plan* plan, FusedPlan* fused) {
  const rope_context& context = call.context;
  Described out;
  if (rope_status s = DescribeMemory(pages, kCacheK, cached, TensorKind::kCachedHeads, true, &out))
    return s;
  const int32_t n = shapes.q.present;
  Tensor& k = plan->tensors[n];
  if (rope_status s = CheckAlike(call, kCacheK, cached, names.k, k.dtype, k.heads)) return s;
  if (rope_status s = regions->Add(out.memory)) return s;
  // Before k_out: in place, k would be gone.
  if (!shapes.k.only_read) plan->tensors[plan->tensor_count++] = k;
  k.out = static_cast<char*>(cached.data);
  k.out_strides = out.strides;
  k.out_span = SpanStart(context, cached);
  const int64_t whole = int64_t{context.head_dim} * ElementSize(k.dtype);
  k.copies_rest = context.rotary_dim != context.head_dim && shapes.k.in.width == whole &&
                  out.memory.of.width == whole;
  fused->cached = n;
  return ROPE_OK;
}

// v, to one place.
rope_status CheckCopy(const Call& call, const char* name, const rope_tensor& to, TensorKind kind,
                      const rope_tensor& v, const Described& in, Regions* regions,
                      FusedPlan* fused) {
  Described out;
  if (rope_status s = DescribeMemory(call, name, to, kind, true, &out)) return s;
  if (rope_status s = CheckAlike(call, name, to, kV, v.dtype, v.heads)) return s;
  if (to.head_dim != v.head_dim) {
    return Fail(ROPE_ERROR_INVALID_ARGUMENT, "%s: %s.head_dim (%d) must be that of %s (%d)",
                call.function, name, to.head_dim, kV, v.head_dim);
  }
  const bool in_place =
      !IsInCache(kind) && to.data == v.data && AreEqual(in.memory.of, out.memory.of);
  if (in_place) return ROPE_OK;
  if (rope_status s = regions->Add(out.memory)) return s;
  fused->copies[fused->copy_count++] = {static_cast<const char*>(v.data),
                                        static_cast<char*>(to.data),
                                        in.strides,
                                        out.strides,
                                        in.memory.of.width,
                                        v.heads,
                                        IsInCache(kind)};
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
  given->cache = fused.cache;
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
    if (args.operation == ROPE_OPERATION_BACKWARD) {
      return Fail(ROPE_ERROR_UNSUPPORTED,
                  "%s: args->fused->cache must be NULL with BACKWARD: gradients are not cached",
                  function);
    }
    if (IsAbsent(cache.k) && IsAbsent(cache.v)) {
      return Fail(ROPE_ERROR_INVALID_ARGUMENT, "%s: %s and %s must not both be absent", function,
                  kCacheK, kCacheV);
    }
    if (!IsAbsent(cache.k) && IsAbsent(args.k)) return Needs(call, kCacheK, "args->k");
    if (!IsAbsent(cache.v) && IsAbsent(fused.v)) return Needs(call, kCacheV, kV);
    if (rope_status s = CheckPagesAndSlots(call, cache)) return s;
  }
  const bool to_cache = given->cache != nullptr && !IsAbsent(given->cache->v);
  if (IsAbsent(fused.v)) return IsAbsent(fused.v_out) ? ROPE_OK : Needs(call, kVOut, kV);
  if (!IsAbsent(fused.v_out) || to_cache) return ROPE_OK;
  return Fail(ROPE_ERROR_INVALID_ARGUMENT,
              "%s: %s is set, but neither v_out nor cache->v is, where it would go", function, kV);
}

rope_status CheckFused(const Call& call, const Names& names, const FusedArgs& given,
                       const Shapes& shapes, Plan* plan, FusedPlan* fused) {
  const rope_fused& f = *given.fused;
  const rope_kv_cache* const cache = given.cache;
  fused->cached = -1;
  fused->copy_count = 0;
  Regions regions(call, names, shapes, plan->tensors);
  const Call pages = {call.function, call.context, cache != nullptr ? cache->pages : 0,
                      cache != nullptr ? cache->page_size : 0};
  if (given.caches_k()) {
    if (rope_status s = CheckCachedK(call, pages, names, cache->k, shapes, &regions, plan, fused)) {
      return s;
    }
  }
  if (!IsAbsent(f.v)) {
    Described in;
    if (rope_status s = DescribeMemory(call, kV, f.v, TensorKind::kOthers, false, &in)) return s;
    in.memory.written = f.v_out.data == f.v.data;  // in place, if it is equal, which follows
    if (rope_status s = regions.Add(in.memory)) return s;
    if (!IsAbsent(f.v_out)) {
      if (rope_status s =
              CheckCopy(call, kVOut, f.v_out, TensorKind::kOthers, f.v, in, &regions, fused)) {
        return s;
      }
    }
    if (cache != nullptr && !IsAbsent(cache->v)) {
      if (rope_status s = CheckCopy(pages, kCacheV, cache->v, TensorKind::kCachedOthers, f.v, in,
                                    &regions, fused)) {
        return s;
      }
    }
  }
  return cache != nullptr ? CheckCache(call, *cache, plan->positions, &fused->slots) : ROPE_OK;
}

}  // namespace rope
