#include "call/check_fused.h"

#include <cstdint>

#include "base/limits.h"
#include "base/status.h"
#include "base/struct_size.h"
#include "call/check_cache.h"
#include "call/check_norm.h"
#include "call/check_output.h"
#include "call/check_scale.h"
#include "call/overlap.h"
#include "math/element.h"
#include "math/operation.h"

namespace rope {
namespace {

rope_status CheckReserved(const Call& call, const char* name, int64_t reserved) {
  if (reserved == 0) return ROPE_OK;
  return Fail(ROPE_ERROR_UNSUPPORTED, "%s: %s->reserved must be 0 in this version", call.function,
              name);
}

rope_status Needs(const Call& call, const char* name, const char* needs) {
  return Fail(ROPE_ERROR_INVALID_ARGUMENT, "%s: %s is set, but %s is absent", call.function, name,
              needs);
}

rope_status CheckFrom(const Call& call, rope_operation operation, const rope_positions* from) {
  const bool needs = kOperations[operation].has_from();
  if (needs && !call.context.backend->has_moves) {
    return Fail(ROPE_ERROR_UNSUPPORTED,
                "%s: args->operation must not be REROTATE in a %s context in this version",
                call.function, call.context.backend->name);
  }
  if ((from != nullptr) == needs) return ROPE_OK;
  return Fail(ROPE_ERROR_INVALID_ARGUMENT,
              needs ? "%s: args->fused->from_positions (NULL) is required with REROTATE: where the "
                      "keys were before"
                    : "%s: args->fused->from_positions is set, but only REROTATE uses it",
              call.function);
}

// pages and page_size take the places of batch and tokens in the checks of a cache's memory.
rope_status CheckPagesAndSlots(const Call& call, const char* name, const rope_kv_cache& cache) {
  if (cache.pages < 1) {
    return Fail(ROPE_ERROR_INVALID_ARGUMENT,
                "%s: %s->pages (%lld) is required, and must be positive", call.function, name,
                static_cast<long long>(cache.pages));
  }
  if (cache.page_size < 1 || cache.page_size > kMaxPageSize) {
    return Fail(ROPE_ERROR_INVALID_ARGUMENT,
                "%s: %s->page_size (%d) is required, and must be from 1 to %d", call.function, name,
                cache.page_size, kMaxPageSize);
  }
  return ROPE_OK;
}

// An output of what is read in slots.
rope_status DescribeMoved(const Call& call, const char* name, const rope_tensor& out,
                          TensorKind kind, const char* in_name, const rope_tensor& in,
                          rope_operation operation, Beside scales, Output* output,
                          HeadStrides* strides, BesideShape* beside) {
  if (out.heads != in.heads) {
    return Fail(ROPE_ERROR_INVALID_ARGUMENT, "%s: %s.heads (%d) must be that of %s (%d)",
                call.function, name, out.heads, in_name, in.heads);
  }
  output->SetLike(in.dtype);
  if (out.dtype == in.dtype && !IsInEightBits(in.dtype)) return ROPE_OK;
  return DescribeUnlike(call, name, out, kind, in_name, in, operation, DataOf::kCall, scales,
                        output, strides, beside);
}

HeadStrides StridesOf(const BesideShape& shape) {
  return {shape.of.strides[0], shape.of.strides[1], shape.of.strides[2]};
}

// k, whose result goes to slots.
rope_status DescribeCachedK(const Call& call, const Call& pages, const Names& names,
                            const rope_tensor& given_k, const rope_tensor& cached,
                            rope_operation operation, DataOf data_of, const Shapes& shapes,
                            Tensor tensors[3], int32_t* count, BesideShape* beside,
                            FusedPlan* fused) {
  const rope_context& context = call.context;
  const char* const name = names.beside[kCacheK];
  BesideShape& shape = beside[kCacheK];
  constexpr TensorKind kKind = kBesideKinds[kCacheK];
  if (rope_status s = DescribeBeside(pages, name, cached, kKind, data_of, &shape)) return s;
  const int32_t n = shapes.q.present;
  Tensor& k = tensors[n];
  // Before k_out: in place, k would be gone.
  if (!shapes.k.only_read()) {
    fused->outputs[*count] = fused->outputs[n];
    tensors[(*count)++] = k;
  }
  k.out_strides = StridesOf(shape);
  k.out_span = StoredSpanStart(context, cached);
  k.copies_rest = context.rotary_dim != context.head_dim && IsWhole(context, given_k) &&
                  IsWhole(context, cached);
  fused->cached = n;
  return DescribeOutput(pages, name, cached, kKind, names.k, given_k, operation, data_of,
                        kCacheKScales, &fused->outputs[n], &k.out_strides, beside);
}

// What the stages of an output that differs from its input do not do.
rope_status CheckNormOf(const Call& call, const char* name, const Norm& norm, rope_dtype dtype,
                        const Output& output) {
  if (output.IsLike(dtype)) return ROPE_OK;
  if (norm.gradients.x != nullptr) {
    return Fail(ROPE_ERROR_UNSUPPORTED,
                "%s: %s must be NULL with BACKWARD where an output has another dtype than its "
                "input, in this version",
                call.function, name);
  }
  if (norm.span != ROPE_NORM_SPAN_ALL_HEADS || !(norm.after || norm.rule.has_mean)) return ROPE_OK;
  return Fail(
      ROPE_ERROR_UNSUPPORTED,
      "%s: %s->span (ROPE_NORM_SPAN_ALL_HEADS) must be another one with %s, where an output "
      "has another dtype or more heads than its input, in this version",
      call.function, name, norm.after ? "ROPE_NORM_ORDER_AFTER" : "a mean");
}

// What does not turn, to one place.
rope_status DescribeCopy(const Call& call, const Names& names, Beside from, const rope_tensor& in,
                         const Norm* norm, Beside to, const rope_tensor& out, Beside scales,
                         rope_operation operation, DataOf data_of, BesideShape* beside,
                         Copies* copies) {
  const char *const name = names.beside[to], *const in_name = names.beside[from];
  const TensorKind kind = kBesideKinds[to];
  BesideShape& shape = beside[to];
  if (rope_status s = DescribeBeside(call, name, out, kind, data_of, &shape)) return s;
  if (out.head_dim != in.head_dim) {
    return Fail(ROPE_ERROR_INVALID_ARGUMENT, "%s: %s.head_dim (%d) must be that of %s (%d)",
                call.function, name, out.head_dim, in_name, in.head_dim);
  }
  Copy& copy = copies->of[copies->count++];
  copy.from = from;
  copy.to = to;
  copy.in_strides = StridesOf(beside[from]);
  copy.out_strides = StridesOf(shape);
  copy.width = beside[from].of.width;
  copy.heads = in.heads;
  copy.dtype = in.dtype;
  copy.norm = norm;
  if (from == kSourceV) {
    return DescribeMoved(call, name, out, kind, in_name, in, operation, scales, &copy.output,
                         &copy.out_strides, beside);
  }
  if (rope_status s = DescribeOutput(call, name, out, kind, in_name, in, operation, data_of, scales,
                                     &copy.output, &copy.out_strides, beside)) {
    return s;
  }
  copy.heads /= copy.output.sums;
  return norm != nullptr
             ? CheckNormOf(call, kNormNames[kNormedV].norm, *norm, copy.dtype, copy.output)
             : ROPE_OK;
}

// k of `source`, to one place.
rope_status DescribeMovedK(const Call& call, const Names& names, Beside which, Beside scales,
                           const rope_tensor& to, const rope_tensor& k, rope_operation operation,
                           FusedShapes* shapes, Tensor* tensor, Output* output) {
  const rope_context& context = call.context;
  const char* const name = names.beside[which];
  BesideShape& out = shapes->beside[which];
  if (rope_status s = DescribeBeside(call, name, to, kBesideKinds[which], DataOf::kCall, &out)) {
    return s;
  }
  tensor->in_strides = StridesOf(shapes->beside[kSourceK]);
  tensor->out_strides = StridesOf(out);
  tensor->in_span = StoredSpanStart(context, k);
  tensor->out_span = StoredSpanStart(context, to);
  tensor->heads = k.heads;
  tensor->dtype = IsInEightBits(k.dtype) ? ROPE_DTYPE_F32 : k.dtype;
  tensor->copies_rest =
      context.rotary_dim != context.head_dim && IsWhole(context, k) && IsWhole(context, to);
  return DescribeMoved(call, name, to, kBesideKinds[which], names.beside[kSourceK], k, operation,
                       scales, output, &tensor->out_strides, shapes->beside);
}

// What is known of a source without addresses: its k, behind q in the tensors, and its v.
rope_status DescribeSource(const Call& call, const Call& pages, const Names& names,
                           const FusedArgs& given, rope_operation operation, Tensor tensors[3],
                           int32_t* count, FusedShapes* shapes, FusedPlan* fused) {
  const rope_kv_cache& source = *given.source;
  const Call source_pages = {call.function, call.context, source.pages, source.page_size};
  const auto describe = [&](Beside which, Beside scales, const rope_tensor& t, int32_t width,
                            SourceHeads* heads) -> rope_status {
    const char* const name = names.beside[which];
    if (rope_status s = DescribeBeside(source_pages, name, t, kBesideKinds[which], DataOf::kCall,
                                       &shapes->beside[which])) {
      return s;
    }
    heads->dtype = t.dtype;
    return IsCode(t.dtype) ? CheckScale(source_pages, name, t, width, ScaleOwner::kSource,
                                        DataOf::kCall, &heads->scales, &shapes->beside[scales])
                           : ROPE_OK;
  };
  const auto move_to = [&](const Call& where, Beside which, Beside scales, const rope_tensor& to) {
    const int32_t n = (*count)++;
    return DescribeMovedK(where, names, which, scales, to, source.k, operation, shapes, &tensors[n],
                          &fused->outputs[n]);
  };
  const int32_t width = source.k.head_dim != 0 ? source.k.head_dim : call.context.head_dim;
  if (rope_status s = describe(kSourceK, kSourceKScales, source.k, width, &fused->source_k)) {
    return s;
  }
  fused->gathered = *count;
  if (!IsAbsent(*given.k_out)) {
    if (rope_status s = move_to(call, kKOut, kKOutScales, *given.k_out)) return s;
  }
  if (given.caches_k) {
    fused->cached = *count;
    if (rope_status s = move_to(pages, kCacheK, kCacheKScales, given.cache->k)) return s;
  }
  return given.has_v
             ? describe(kSourceV, kSourceVScales, source.v, source.v.head_dim, &fused->source_v)
             : ROPE_OK;
}

// The norms of q and k, of calls without a source.
rope_status CheckNorms(const Call& call, const rope_fused& f, bool backward, DataOf data_of,
                       const Shapes& shapes, const BesideShape& cached, int32_t row_heads,
                       const Tensor tensors[3], int32_t count, GradientShapes* gradients,
                       FusedPlan* fused) {
  const auto check = [&](Normed which, const rope_norm* norm, const char* of,
                         const TensorShape& shape, int32_t first, int32_t last, bool keeps_width,
                         Norm* to) -> rope_status {
    if (norm == nullptr) return ROPE_OK;
    const char* const name = kNormNames[which].norm;
    if (!shape.present) return Needs(call, name, of);
    const Tensor& t = tensors[first];
    const auto channels = static_cast<int32_t>(shape.in.width / ElementSize(t.dtype));
    const Output& output = fused->outputs[last];
    keeps_width &= shape.in_place || shape.out.width == BytesOf(output.dtype, channels);
    const NormedTensor tensor = {t.dtype, t.heads, channels, true, keeps_width, backward};
    if (rope_status s =
            CheckNorm(call, kNormNames[which], norm, tensor, data_of, to, &gradients[which])) {
      return s;
    }
    if (row_heads != 1 && backward) {
      return Fail(ROPE_ERROR_UNSUPPORTED,
                  "%s: %s must be NULL with BACKWARD where heads have rows or frequencies of their "
                  "own, in this version",
                  call.function, name);
    }
    if (row_heads != 1 && (to->span == ROPE_NORM_SPAN_ALL_HEADS || to->weight_stride != 0)) {
      return Fail(ROPE_ERROR_UNSUPPORTED,
                  "%s: %s must have ROPE_NORM_SPAN_HEAD and weight_stride_head 0 where heads have "
                  "rows or frequencies of their own, in this version",
                  call.function, name);
    }
    for (int32_t n = first; n <= last; ++n) {
      fused->norms[n] = to;
      if (rope_status s = CheckNormOf(call, name, *to, t.dtype, fused->outputs[n])) return s;
    }
    return ROPE_OK;
  };
  const int32_t k = shapes.q.present;
  if (rope_status s = check(kQ, f.q_norm, "args->q", shapes.q, 0, 0, true, &fused->q_norm)) {
    return s;
  }
  const bool keeps_width = !cached.present || ChannelsOf(cached.dtype, cached.of.width) ==
                                                  ChannelsOf(tensors[k].dtype, shapes.k.in.width);
  return check(kK, f.k_norm, "args->k", shapes.k, k, count - 1, keeps_width, &fused->k_norm);
}

// A part is what one task adds, for all norms.
rope_status CheckGradParts(const Call& call, const rope_fused& f, FusedPlan* fused) {
  const rope_norm* const norms[] = {f.q_norm, f.k_norm, f.v_norm};
  const Norm* const checked[] = {&fused->q_norm, &fused->k_norm, &fused->v_norm};
  int first = 0;
  for (int n = 0; n < 3; ++n) {
    const int32_t parts = norms[n] != nullptr ? checked[n]->gradients.parts : 0;
    if (parts == 0 || parts == fused->grad_parts) continue;
    if (fused->grad_parts != 0) {
      return Fail(ROPE_ERROR_INVALID_ARGUMENT,
                  "%s: %s->grad_parts (%d) must be that of %s (%d), or 0 without gradients of "
                  "weights",
                  call.function, kNormNames[n].norm, parts, kNormNames[first].norm,
                  fused->grad_parts);
    }
    fused->grad_parts = parts;
    first = n;
  }
  return ROPE_OK;
}

rope_status ReadCache(const Call& call, const rope_qk_args& args, const char* name,
                      const rope_kv_cache* cache, rope_kv_cache* copy, const rope_kv_cache** read) {
  *read = cache;
  if (cache->struct_size != sizeof(rope_kv_cache)) {
    if (rope_status s = CopyStruct(call.function, name, cache, copy)) return s;
    *read = copy;
  }
  if (rope_status s = CheckReserved(call, name, (*read)->reserved)) return s;
  if (!kOperations[args.operation].is_cached) {
    return Fail(ROPE_ERROR_UNSUPPORTED,
                "%s: %s must be NULL with BACKWARD: gradients are not cached", call.function, name);
  }
  if (args.positions.batch_repeat <= 1) return ROPE_OK;
  return Fail(ROPE_ERROR_UNSUPPORTED,
              "%s: %s must be NULL with args->positions.batch_repeat (%lld)", call.function, name,
              static_cast<long long>(args.positions.batch_repeat));
}

rope_status ReadSource(const Call& call, const rope_qk_args& args, DataOf data_of,
                       FusedArgs* given) {
  constexpr char kName[] = "args->fused->source";
  const auto& names = kNamesOfArgs.beside;
  if (data_of == DataOf::kApplication) {
    return Fail(ROPE_ERROR_UNSUPPORTED, "%s: %s must be NULL in a prepared call in this version",
                call.function, kName);
  }
  if (!call.context.backend->has_moves) {
    return Fail(ROPE_ERROR_UNSUPPORTED, "%s: %s must be NULL in a %s context in this version",
                call.function, kName, call.context.backend->name);
  }
  if (rope_status s =
          ReadCache(call, args, kName, given->fused->source, &given->source_copy, &given->source)) {
    return s;
  }
  const bool has_k = !IsAbsent(args.k);
  if (has_k || given->has_v) {
    return Fail(ROPE_ERROR_INVALID_ARGUMENT,
                "%s: %s is set, and so is %s, which must be absent: k and v are read in slots",
                call.function, kName, has_k ? "args->k" : names[kV]);
  }
  if (IsAbsent(given->source->k)) {
    return Fail(ROPE_ERROR_INVALID_ARGUMENT, "%s: %s is required", call.function, names[kSourceK]);
  }
  given->has_v = !IsAbsent(given->source->v);
  given->k_out = &args.k_out;
  return CheckPagesAndSlots(call, kName, *given->source);
}

// The first norm, as messages call it, or null.
const char* NameOfNorm(const rope_fused& fused) {
  return fused.q_norm != nullptr   ? kNormNames[kQ].norm
         : fused.k_norm != nullptr ? kNormNames[kK].norm
         : fused.v_norm != nullptr ? kNormNames[kNormedV].norm
                                   : nullptr;
}

// Where norms are served.
rope_status CheckNormed(const Call& call, const char* name, rope_operation operation,
                        DataOf data_of, bool has_source) {
  const Backend& backend = *call.context.backend;
  if (!kOperations[operation].takes_rows) {
    return Fail(ROPE_ERROR_UNSUPPORTED,
                "%s: %s must be NULL with ROPE_OPERATION_%s: norms need FORWARD or BACKWARD",
                call.function, name, kOperations[operation].name);
  }
  if (kOperations[operation].is_gradient() && !backend.has_gradients) {
    return Fail(ROPE_ERROR_UNSUPPORTED,
                "%s: %s must be NULL with BACKWARD in a %s context in this version", call.function,
                name, backend.name);
  }
  if (data_of == DataOf::kApplication && kOperations[operation].is_gradient()) {
    return Fail(ROPE_ERROR_UNSUPPORTED,
                "%s: %s must be NULL with BACKWARD in a prepared call in this version",
                call.function, name);
  }
  if (!has_source) return ROPE_OK;
  return Fail(ROPE_ERROR_UNSUPPORTED,
              "%s: %s must be NULL with args->fused->source in this version", call.function, name);
}

rope_status CheckRest(const Call& call, bool has_rest, bool has_rest_out) {
  const auto& names = kNamesOfArgs.beside;
  if (has_rest == has_rest_out) return ROPE_OK;
  return has_rest ? Needs(call, names[kRest], names[kRestOut])
                  : Needs(call, names[kRestOut], names[kRest]);
}

}  // namespace

rope_status CheckNoTokens(const Call& call, const rope_qk_args& args) {
  if (!kOperations[args.operation].is_gradient()) return ROPE_OK;
  rope_fused fused;
  if (rope_status s = CopyStruct(call.function, "args->fused", args.fused, &fused)) return s;
  const rope_norm* const norms[] = {fused.q_norm, fused.k_norm, fused.v_norm};
  for (int n = 0; n < 3; ++n) {
    if (norms[n] == nullptr) continue;
    rope_norm norm;
    if (rope_status s = CopyStruct(call.function, kNormNames[n].norm, norms[n], &norm)) return s;
    if (norm.grad_parts != 0) {
      return Fail(ROPE_ERROR_INVALID_ARGUMENT,
                  "%s: %s->grad_parts (%d) must be 0 in a call without tokens, which writes "
                  "nothing: the gradients are zeros",
                  call.function, kNormNames[n].norm, norm.grad_parts);
    }
  }
  return ROPE_OK;
}

rope_status CheckNoRows(const Call& call, const rope_qk_args& args) {
  constexpr char kRequired[] = "args->batch (0) is required";
  if (args.q.data != nullptr || args.k.data != nullptr) {
    return Fail(
        ROPE_ERROR_INVALID_ARGUMENT,
        "%s: %s: 1 for packed sequences. Where there are no rows, q.data and k.data are NULL",
        call.function, kRequired);
  }
  if (args.fused == nullptr) return ROPE_OK;
  if (rope_status s = CheckNoTokens(call, args)) return s;
  rope_fused fused;
  if (rope_status s = CopyStruct(call.function, "args->fused", args.fused, &fused)) return s;
  if (fused.source == nullptr) return ROPE_OK;
  return Fail(ROPE_ERROR_INVALID_ARGUMENT,
              "%s: %s with args->fused->source: 1 for packed sequences. Where nothing moves, "
              "args->tokens is 0",
              call.function, kRequired);
}

rope_status ReadFused(const Call& call, const rope_qk_args& args, DataOf data_of,
                      FusedArgs* given) {
  const char* const function = call.function;
  const auto& names = kNamesOfArgs.beside;
  given->fused = args.fused;
  if (args.fused == nullptr) {
    given->fused_copy = ROPE_INIT(rope_fused);
    given->fused = &given->fused_copy;
  } else if (args.fused->struct_size != sizeof(rope_fused)) {
    if (rope_status s = CopyStruct(function, "args->fused", args.fused, &given->fused_copy))
      return s;
    given->fused = &given->fused_copy;
  }
  const rope_fused& fused = *given->fused;
  if (rope_status s = CheckReserved(call, "args->fused", fused.reserved)) return s;
  if (rope_status s = CheckFrom(call, args.operation, fused.from_positions)) return s;
  given->has_v = !IsAbsent(fused.v);
  given->has_v_out = !IsAbsent(fused.v_out);
  given->has_rest = !IsAbsent(fused.rest);
  given->has_scales =
      args.q_out.scale != nullptr || args.k_out.scale != nullptr || fused.v_out.scale != nullptr;
  given->cache = given->source = nullptr;
  given->caches_k = given->caches_v = false;
  Beside v = kV;
  if (fused.source != nullptr) {
    v = kSourceV;
    if (rope_status s = ReadSource(call, args, data_of, given)) return s;
  }
  if (fused.cache != nullptr) {
    if (rope_status s = ReadCache(call, args, "args->fused->cache", fused.cache, &given->cache_copy,
                                  &given->cache)) {
      return s;
    }
    const rope_kv_cache& cache = *given->cache;
    given->caches_k = !IsAbsent(cache.k);
    given->caches_v = !IsAbsent(cache.v);
    given->has_scales |= cache.k.scale != nullptr || cache.v.scale != nullptr;
    if (!given->caches_k && !given->caches_v) {
      return Fail(ROPE_ERROR_INVALID_ARGUMENT, "%s: %s and %s must not both be absent", function,
                  names[kCacheK], names[kCacheV]);
    }
    const bool has_k = given->source != nullptr || !IsAbsent(args.k);
    if (given->caches_k && !has_k) return Needs(call, names[kCacheK], "args->k");
    if (given->caches_v && !given->has_v) return Needs(call, names[kCacheV], names[v]);
    if (rope_status s = CheckPagesAndSlots(call, "args->fused->cache", cache)) return s;
  }
  if (given->source != nullptr && !given->caches_k && IsAbsent(*given->k_out)) {
    return Fail(ROPE_ERROR_INVALID_ARGUMENT,
                "%s: %s is set, but neither args->k_out nor cache->k is, where it would go",
                function, names[kSourceK]);
  }
  if (const char* const name = NameOfNorm(fused)) {
    if (rope_status s =
            CheckNormed(call, name, args.operation, data_of, given->source != nullptr)) {
      return s;
    }
  }
  if (given->has_v_out && !given->has_v) return Needs(call, names[kVOut], names[v]);
  if (fused.v_norm != nullptr && !given->has_v)
    return Needs(call, kNormNames[kNormedV].norm, names[kV]);
  if (rope_status s = CheckRest(call, given->has_rest, !IsAbsent(fused.rest_out))) return s;
  if (!given->has_v || given->has_v_out || given->caches_v) return ROPE_OK;
  return Fail(ROPE_ERROR_INVALID_ARGUMENT,
              "%s: %s is set, but neither v_out nor cache->v is, where it would go", function,
              names[v]);
}

void StartShapes(const FusedArgs& given, FusedShapes* shapes) {
  shapes->count = given.source != nullptr              ? kBesides
                  : given.has_rest || given.has_scales ? kSourceK
                                                       : kRest;
  for (int which = 0; which < shapes->count; ++which) shapes->beside[which].present = false;
}

rope_status CheckFusedShapes(const Call& call, const Names& names, const FusedArgs& given,
                             const rope_qk_args& args, DataOf data_of, const Shapes& shapes,
                             const PositionSource& positions, int32_t row_heads, Tensor tensors[3],
                             int32_t* count, FusedShapes* fused_shapes, FusedPlan* fused) {
  const rope_fused& f = *given.fused;
  const rope_kv_cache *const cache = given.cache, *const source = given.source;
  BesideShape* const beside = fused_shapes->beside;
  fused_shapes->pages = cache != nullptr ? cache->pages : 0;
  fused_shapes->page_size = cache != nullptr ? cache->page_size : 0;
  const bool backward = kOperations[args.operation].is_gradient();
  GradientShapes* const gradients = fused_shapes->gradients;
  fused_shapes->has_gradients = backward && NameOfNorm(f) != nullptr;
  for (int n = 0; fused_shapes->has_gradients && n < 3; ++n) gradients[n].present = false;
  const Call pages = {call.function, call.context, fused_shapes->pages, fused_shapes->page_size};
  if (source != nullptr) {
    fused_shapes->source_pages = source->pages;
    fused_shapes->source_page_size = source->page_size;
    if (rope_status s = DescribeSource(call, pages, names, given, args.operation, tensors, count,
                                       fused_shapes, fused)) {
      return s;
    }
  } else {
    if (given.caches_k) {
      if (rope_status s = DescribeCachedK(call, pages, names, args.k, cache->k, args.operation,
                                          data_of, shapes, tensors, count, beside, fused)) {
        return s;
      }
    }
    if (rope_status s = CheckNorms(call, f, backward, data_of, shapes, beside[kCacheK], row_heads,
                                   tensors, *count, gradients, fused)) {
      return s;
    }
  }
  if (given.has_v) {
    const Beside from = source != nullptr ? kSourceV : kV;
    const rope_tensor& v = source != nullptr ? source->v : f.v;
    // If v_out is v, it is written, as v_out says.
    if (from == kV) {
      if (rope_status s =
              DescribeBeside(call, names.beside[kV], v, kBesideKinds[kV], data_of, &beside[kV])) {
        return s;
      }
    }
    const Norm* norm = nullptr;
    if (f.v_norm != nullptr) {
      const int32_t heads = backward ? f.v_out.heads : v.heads;
      const NormedTensor normed = {v.dtype, heads, v.head_dim, false, true, backward};
      if (rope_status s = CheckNorm(call, kNormNames[kNormedV], f.v_norm, normed, data_of,
                                    &fused->v_norm, &gradients[kNormedV])) {
        return s;
      }
      norm = &fused->v_norm;
    }
    // Last where it may be in place, as v would be gone: in v_out, or in the slots of a source.
    for (const bool to_cache : {source == nullptr, source != nullptr}) {
      if (!(to_cache ? given.caches_v : given.has_v_out)) continue;
      if (rope_status s = DescribeCopy(to_cache ? pages : call, names, from, v, norm,
                                       to_cache ? kCacheV : kVOut, to_cache ? cache->v : f.v_out,
                                       to_cache ? kCacheVScales : kVOutScales, args.operation,
                                       data_of, beside, &fused->copies)) {
        return s;
      }
    }
  }
  if (given.has_rest) {
    if (rope_status s = DescribeBeside(call, names.beside[kRest], f.rest, kBesideKinds[kRest],
                                       data_of, &beside[kRest])) {
      return s;
    }
    if (rope_status s =
            DescribeCopy(call, names, kRest, f.rest, nullptr, kRestOut, f.rest_out, kRestOutScales,
                         args.operation, data_of, beside, &fused->copies)) {
      return s;
    }
  }
  if (fused_shapes->has_gradients) {
    if (rope_status s = CheckGradParts(call, f, fused)) return s;
  }
  if (source != nullptr) {
    fused->source_dropped = source->dropped;
    if (rope_status s =
            CheckCache(call, "args->fused->source->", *source, positions, &fused->source)) {
      return s;
    }
  }
  if (cache == nullptr) return ROPE_OK;
  fused->dropped = cache->dropped;
  return CheckCache(call, "args->fused->cache->", *cache, positions, &fused->slots);
}

}  // namespace rope
