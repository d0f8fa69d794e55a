#include "call/check_tensors.h"

#include <cstddef>

#include "base/aligned.h"
#include "base/status.h"
#include "call/overlap.h"
#include "math/element.h"

namespace rope {
namespace {

bool IsAbsent(const rope_tensor& t) {
  return t.data == nullptr && t.dtype == 0 && t.layout == 0 && t.heads == 0 && t.head_dim == 0 &&
         (t.stride_batch | t.stride_token | t.stride_head | t.reserved) == 0 &&
         t.reserved_ptr == nullptr;
}

HeadStrides InBytes(const HeadStrides& elements, int64_t size) {
  return {elements.batch * size, elements.token * size, elements.head * size};
}

// Every byte offset fits into 63 bits, and base + offset into the address space.
bool Fits(const Call& call, const rope_tensor& t, int64_t dim, const HeadStrides& s) {
  const int64_t any = call.batch | call.tokens | s.batch | s.token | s.head;
  if ((any >> 29) == 0) return true;  // products below 2^58
  int64_t extent = dim, product;
  const int64_t counts[3] = {call.batch, call.tokens, t.heads},
                strides[3] = {s.batch, s.token, s.head};
  if (t.layout != ROPE_LAYOUT_STRIDED) {
    return !__builtin_mul_overflow(call.batch, call.tokens, &product) &&
           !__builtin_mul_overflow(product, t.heads, &product) &&
           !__builtin_mul_overflow(product, dim * ElementSize(t.dtype), &product) &&
           static_cast<uint64_t>(product) <= UINTPTR_MAX - reinterpret_cast<uintptr_t>(t.data);
  }
  for (int d = 0; d < 3; ++d) {
    if (__builtin_mul_overflow(counts[d] - 1, strides[d], &product) ||
        __builtin_add_overflow(extent, product, &extent) ||
        // The footprint keeps a stride in bytes even where it is never taken.
        __builtin_mul_overflow(strides[d], int64_t{ElementSize(t.dtype)}, &product)) {
      return false;
    }
  }
  return !__builtin_mul_overflow(extent, int64_t{ElementSize(t.dtype)}, &extent) &&
         static_cast<uint64_t>(extent) <= UINTPTR_MAX - reinterpret_cast<uintptr_t>(t.data);
}

rope_status ResolveStrides(const Call& call, const char* name, const rope_tensor& t, int64_t dim,
                           HeadStrides* strides) {
  if (t.layout == ROPE_LAYOUT_STRIDED) {
    *strides = {t.stride_batch, t.stride_token, t.stride_head};
    if ((t.stride_batch | t.stride_token | t.stride_head) < 0) {
      return Fail(ROPE_ERROR_INVALID_ARGUMENT,
                  "%s: %s.stride_batch, stride_token and stride_head (%lld, %lld, %lld) "
                  "must not be negative",
                  call.function, name, static_cast<long long>(t.stride_batch),
                  static_cast<long long>(t.stride_token), static_cast<long long>(t.stride_head));
    }
  } else {
    if ((t.stride_batch | t.stride_token | t.stride_head) != 0) {
      return Fail(ROPE_ERROR_INVALID_ARGUMENT,
                  "%s: %s.stride_batch, stride_token and stride_head (%lld, %lld, %lld) "
                  "must be 0 without ROPE_LAYOUT_STRIDED",
                  call.function, name, static_cast<long long>(t.stride_batch),
                  static_cast<long long>(t.stride_token), static_cast<long long>(t.stride_head));
    }
    // Wrapping products: when the sizes are large enough to wrap, Fits() says no.
    const auto w = static_cast<uint64_t>(dim), h = static_cast<uint64_t>(t.heads),
               s = static_cast<uint64_t>(call.tokens), b = static_cast<uint64_t>(call.batch);
    uint64_t sb, st, sh;
    if (t.layout == ROPE_LAYOUT_BSHD) {
      sh = w, st = h * w, sb = s * st;
    } else if (t.layout == ROPE_LAYOUT_BHSD) {
      st = w, sh = s * w, sb = h * sh;
    } else {
      sh = w, sb = h * w, st = b * sb;
    }
    *strides = {static_cast<int64_t>(sb), static_cast<int64_t>(st), static_cast<int64_t>(sh)};
  }
  if (!Fits(call, t, dim, *strides)) {
    return Fail(ROPE_ERROR_INVALID_ARGUMENT,
                "%s: %s (batch %lld, tokens %lld, heads %d, its strides) reaches beyond "
                "the address space",
                call.function, name, static_cast<long long>(call.batch),
                static_cast<long long>(call.tokens), t.heads);
  }
  return ROPE_OK;
}

rope_status Unknown(const Call& call, const char* name, const char* field, int32_t value) {
  if (value == 0) {
    return Fail(ROPE_ERROR_INVALID_ARGUMENT, "%s: %s.%s (0) is required", call.function, name,
                field);
  }
  return Fail(ROPE_ERROR_UNSUPPORTED, "%s: %s.%s (%d) is not known to this version", call.function,
              name, field, value);
}

// One described tensor: its fields, the strides that its layout means (elements), and its bytes.
rope_status Describe(const Call& call, const char* name, const rope_tensor& t, HeadStrides* strides,
                     Footprint* footprint) {
  if (t.reserved != 0 || t.reserved_ptr != nullptr) {
    return Fail(ROPE_ERROR_UNSUPPORTED, "%s: %s.%s must be 0 in this version", call.function, name,
                t.reserved != 0 ? "reserved" : "reserved_ptr");
  }
  if (t.data == nullptr) {
    return Fail(ROPE_ERROR_INVALID_ARGUMENT,
                "%s: %s.data (NULL) must not be NULL in a tensor with other fields set",
                call.function, name);
  }
  if (!IsDtype(t.dtype)) return Unknown(call, name, "dtype", t.dtype);
  if (t.layout < 1 || t.layout > ROPE_LAYOUT_STRIDED)
    return Unknown(call, name, "layout", t.layout);
  if (t.heads < 1) {
    return Fail(ROPE_ERROR_INVALID_ARGUMENT, "%s: %s.heads (%d) must be positive", call.function,
                name, t.heads);
  }
  if (t.head_dim != 0 && t.head_dim != call.context.head_dim &&
      t.head_dim != call.context.rotary_dim) {
    return Fail(ROPE_ERROR_INVALID_ARGUMENT,
                "%s: %s.head_dim (%d) must be 0, the context's head_dim (%d) or its "
                "rotary_dim (%d)",
                call.function, name, t.head_dim, call.context.head_dim, call.context.rotary_dim);
  }
  const int64_t dim = t.head_dim != 0 ? t.head_dim : call.context.head_dim;
  if (rope_status s = ResolveStrides(call, name, t, dim, strides)) return s;

  const int size = ElementSize(t.dtype);
  const auto base = reinterpret_cast<uintptr_t>(t.data);
  if (!IsAligned(t.data, static_cast<size_t>(size))) {
    return Fail(ROPE_ERROR_INVALID_ARGUMENT,
                "%s: %s.data (%p) must be aligned to its element (%d bytes)", call.function, name,
                t.data, size);
  }
  *footprint = {base,
                {call.batch, call.tokens, t.heads},
                {strides->batch * size, strides->token * size, strides->head * size},
                dim * size};
  return ROPE_OK;
}

// The fields of one named tensor of the call.
struct Described {
  bool present = false;
  bool in_place = true;
  const char* name;
  const char* out_name;
  Footprint in, out;
};

int SpanStart(const rope_context& context, const rope_tensor& t) {
  const bool whole = t.head_dim == 0 || t.head_dim == context.head_dim;
  return whole ? context.rotary_offset * ElementSize(t.dtype) : 0;
}

rope_status DescribeTensor(const Call& call, const rope_tensor& in, const rope_tensor& out,
                           Described* described, Tensor* tensor) {
  const char* const function = call.function;
  const rope_context& context = call.context;
  described->present = !IsAbsent(in);
  described->in_place = IsAbsent(out);
  if (!described->present) {
    if (described->in_place) return ROPE_OK;
    return Fail(ROPE_ERROR_INVALID_ARGUMENT, "%s: %s is set, but %s is absent", function,
                described->out_name, described->name);
  }
  HeadStrides strides;
  if (rope_status s = Describe(call, described->name, in, &strides, &described->in)) return s;
  const int size = ElementSize(in.dtype);
  tensor->in = tensor->out = static_cast<char*>(in.data);
  if (!described->in_place) tensor->out = static_cast<char*>(out.data);
  tensor->in_strides = tensor->out_strides = InBytes(strides, size);
  tensor->in_span = tensor->out_span = SpanStart(context, in);
  tensor->heads = in.heads;
  tensor->dtype = in.dtype;
  tensor->copies_rest = false;
  if (described->in_place) {
    described->out = described->in;
  } else {
    if (rope_status s = Describe(call, described->out_name, out, &strides, &described->out)) {
      return s;
    }
    if (out.dtype != in.dtype) {
      return Fail(ROPE_ERROR_UNSUPPORTED,
                  "%s: %s.dtype (%d) must be that of %s (%d) in this version", function,
                  described->out_name, out.dtype, described->name, in.dtype);
    }
    if (out.heads != in.heads) {
      return Fail(ROPE_ERROR_INVALID_ARGUMENT, "%s: %s.heads (%d) must be that of %s (%d)",
                  function, described->out_name, out.heads, described->name, in.heads);
    }
    tensor->out_strides = InBytes(strides, size);
    tensor->out_span = SpanStart(context, out);
    const int64_t whole = static_cast<int64_t>(context.head_dim) * size;
    tensor->copies_rest = context.rotary_dim != context.head_dim && described->in.width == whole &&
                          described->out.width == whole;
  }
  // Named layouts are contiguous.
  const rope_tensor& written = described->in_place ? in : out;
  if (written.layout == ROPE_LAYOUT_STRIDED && !IsInjective(described->out)) {
    return Fail(ROPE_ERROR_INVALID_ARGUMENT,
                "%s: %s: strides let heads, tokens or batch rows of an output overlap", function,
                described->in_place ? described->name : described->out_name);
  }
  if (!described->in_place) {
    if (IsSame(described->in, described->out)) {
      tensor->copies_rest = false;
    } else if (!AreDisjoint(described->in, described->out)) {
      return Fail(ROPE_ERROR_INVALID_ARGUMENT,
                  "%s: %s overlaps %s, and must be exactly it or disjoint from it", function,
                  described->out_name, described->name);
    }
  }
  return ROPE_OK;
}

rope_status CheckApart(const char* function, const char* a_name, const Footprint& a,
                       const char* b_name, const Footprint& b) {
  if (AreDisjoint(a, b)) return ROPE_OK;
  return Fail(ROPE_ERROR_INVALID_ARGUMENT, "%s: %s overlaps %s", function, a_name, b_name);
}

// What one call rotates must not be read or written by it elsewhere.
rope_status CheckDisjoint(const char* function, const Described& q, const Described& k) {
  const char* q_out = q.in_place ? q.name : q.out_name;
  const char* k_out = k.in_place ? k.name : k.out_name;
  if (rope_status s = CheckApart(function, q_out, q.out, k_out, k.out)) return s;
  if (!q.in_place) {
    if (rope_status s = CheckApart(function, q.name, q.in, k_out, k.out)) return s;
  }
  if (!k.in_place) {
    if (rope_status s = CheckApart(function, q_out, q.out, k.name, k.in)) return s;
  }
  return ROPE_OK;
}

}  // namespace

rope_status CheckTensors(const Call& call, const Names& names, const rope_qk_args& args,
                         Tensor tensors[2], int32_t* count) {
  Described q, k;
  q.name = names.q, q.out_name = "args->q_out", k.name = names.k, k.out_name = "args->k_out";
  if (rope_status s = DescribeTensor(call, args.q, args.q_out, &q, &tensors[0])) return s;
  if (rope_status s = DescribeTensor(call, args.k, args.k_out, &k, &tensors[q.present])) return s;
  *count = q.present + k.present;
  if (*count == 0) {
    return Fail(ROPE_ERROR_INVALID_ARGUMENT, "%s: %s and %s must not both be absent", call.function,
                names.q, names.k);
  }
  return *count == 2 ? CheckDisjoint(call.function, q, k) : ROPE_OK;
}

}  // namespace rope
