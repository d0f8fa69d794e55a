#include "call/check_tensors.h"

#include <cstddef>
#include <iterator>

#include "base/aligned.h"
#include "base/dtype_text.h"
#include "base/limits.h"
#include "base/status.h"
#include "call/check_output.h"
#include "call/overlap.h"
#include "math/element.h"
#include "math/rounding.h"

namespace rope {

namespace {

__attribute__((noinline)) bool FitsAnyhow(const Call& call, const rope_tensor& t, int64_t dim,
                                          const HeadStrides& s) {
  int64_t extent = dim, product;
  const int64_t counts[3] = {call.batch, call.tokens, t.heads},
                strides[3] = {s.batch, s.token, s.head};
  if (t.layout != ROPE_LAYOUT_STRIDED) {
    return !__builtin_mul_overflow(call.batch, call.tokens, &product) &&
           !__builtin_mul_overflow(product, t.heads, &product) &&
           !__builtin_mul_overflow(product, dim * AlignmentOf(t.dtype), &product);
  }
  for (int d = 0; d < 3; ++d) {
    if (__builtin_mul_overflow(counts[d] - 1, strides[d], &product) ||
        __builtin_add_overflow(extent, product, &extent) ||
        // Strides are kept in bytes even where they are never taken.
        __builtin_mul_overflow(strides[d], int64_t{AlignmentOf(t.dtype)}, &product)) {
      return false;
    }
  }
  return !__builtin_mul_overflow(extent, int64_t{AlignmentOf(t.dtype)}, &extent);
}

// Every byte offset fits into 63 bits; `s` in elements.
inline bool Fits(const Call& call, const rope_tensor& t, int64_t dim, const HeadStrides& s) {
  const int64_t any = call.batch | call.tokens | s.batch | s.token | s.head;
  return (any >> 29) == 0 || FitsAnyhow(call, t, dim, s);  // products below 2^58
}

// Of heads of a width, in its unit. Wrapping products: when the sizes are large enough to wrap,
// Fits() says no.
template <bool kInCache>
HeadStrides NamedStrides(rope_layout layout, int64_t batch, int64_t tokens, int32_t heads,
                         int64_t width) {
  const auto w = static_cast<uint64_t>(width), h = static_cast<uint64_t>(heads),
             s = static_cast<uint64_t>(tokens), b = static_cast<uint64_t>(batch);
  uint64_t sb, st, sh;
  if (kInCache) layout += ROPE_LAYOUT_BSHD - ROPE_LAYOUT_NHD;
  if (layout == ROPE_LAYOUT_BSHD) {
    sh = w, st = h * w, sb = s * st;
  } else if (layout == ROPE_LAYOUT_BHSD) {
    st = w, sh = s * w, sb = h * sh;
  } else {
    sh = w, sb = h * w, st = b * sb;
  }
  return {static_cast<int64_t>(sb), static_cast<int64_t>(st), static_cast<int64_t>(sh)};
}

// In elements.
template <TensorKind kKind>
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
    *strides = NamedStrides<IsInCache(kKind)>(t.layout, call.batch, call.tokens, t.heads, dim);
  }
  if (Fits(call, t, dim, *strides)) return ROPE_OK;
  return FailBeyond(call, name, t.heads, kKind);
}

rope_status Unknown(const Call& call, const char* name, const char* field, int32_t value) {
  if (value == 0) {
    return Fail(ROPE_ERROR_INVALID_ARGUMENT, "%s: %s.%s (0) is required", call.function, name,
                field);
  }
  return Fail(ROPE_ERROR_UNSUPPORTED, "%s: %s.%s (%d) is not known to this version", call.function,
              name, field, value);
}

template <TensorKind kKind>
bool IsLayout(rope_layout layout) {
  constexpr bool kInCache = IsInCache(kKind);
  return layout >= (kInCache ? ROPE_LAYOUT_STRIDED : ROPE_LAYOUT_BSHD) &&
         layout <= (kInCache ? ROPE_LAYOUT_HND : ROPE_LAYOUT_STRIDED);
}

// By number.
constexpr const char* kLayoutNames[] = {"", "BSHD", "BHSD", "SBHD", "STRIDED", "NHD", "HND"};
static_assert(std::size(kLayoutNames) == ROPE_LAYOUT_HND + 1);

template <TensorKind kKind>
rope_status FailLayout(const Call& call, const char* name, rope_layout layout) {
  if (layout <= 0 || layout > ROPE_LAYOUT_HND) return Unknown(call, name, "layout", layout);
  return Fail(ROPE_ERROR_INVALID_ARGUMENT,
              IsInCache(kKind)
                  ? "%s: %s.layout (ROPE_LAYOUT_%s) must be NHD, HND or STRIDED, as it is a cache"
                  : "%s: %s.layout (ROPE_LAYOUT_%s) must be BSHD, BHSD, SBHD or STRIDED: only a "
                    "cache has it",
              call.function, name, kLayoutNames[layout]);
}

// Whether the context turns what counts as a dtype.
rope_status CheckTurns(const Call& call, const char* name, rope_dtype dtype, rope_dtype counts_as) {
  if (IsFor(call.context.rounding.arithmetic, counts_as)) return ROPE_OK;
  return Fail(ROPE_ERROR_INVALID_ARGUMENT,
              "%s: %s.dtype (%s) must be ROPE_DTYPE_F16, which is all that a context with "
              "ROPE_ROUNDING_NATIVE rotates",
              call.function, name, DtypeText(dtype).text);
}

// A dtype that is not computed with.
template <TensorKind kKind>
rope_status CheckCode(const Call& call, const char* name, rope_dtype dtype) {
  if (IsInEightBits(dtype)) {
    constexpr bool kIsSource = IsInput(kKind) && IsInCache(kKind);
    if (kIsSource && DoesTurn(kKind)) return CheckTurns(call, name, dtype, ROPE_DTYPE_F32);
    if (kIsSource || !IsInput(kKind)) return ROPE_OK;
    return Fail(ROPE_ERROR_UNSUPPORTED,
                "%s: %s.dtype (%s) must be F32, F16 or BF16: only outputs and caches have 8 bits "
                "in this version",
                call.function, name, DtypeText(dtype).text);
  }
  if (dtype != ROPE_DTYPE_E8M0) return Unknown(call, name, "dtype", dtype);
  return Fail(ROPE_ERROR_INVALID_ARGUMENT, "%s: %s.dtype (%s) must not be that of scales",
              call.function, name, DtypeText(dtype).text);
}

// What most tensors have not.
rope_status CheckRare(const Call& call, const char* name, const rope_tensor& t) {
  if (t.reserved != 0) {
    return Fail(ROPE_ERROR_UNSUPPORTED, "%s: %s.reserved must be 0 in this version", call.function,
                name);
  }
  const bool has_own = t.dtype == ROPE_DTYPE_Q8_0;
  if (!IsDtype(t.dtype) && !has_own) return ROPE_OK;
  return Fail(ROPE_ERROR_INVALID_ARGUMENT,
              has_own
                  ? "%s: %s.scale (%p) must be NULL with dtype (%s), whose blocks have their own"
                  : "%s: %s.scale (%p) must be NULL with dtype (%s), which is none of 8 bits",
              call.function, name, static_cast<const void*>(t.scale), DtypeText(t.dtype).text);
}

// A tensor of a prepared call gets its address later.
rope_status CheckData(const Call& call, const char* name, const void* data, DataOf data_of) {
  if ((data != nullptr) == (data_of == DataOf::kCall)) return ROPE_OK;
  if (data == nullptr) {
    return Fail(ROPE_ERROR_INVALID_ARGUMENT,
                "%s: %s.data (NULL) must not be NULL in a tensor with other fields set",
                call.function, name);
  }
  return Fail(ROPE_ERROR_INVALID_ARGUMENT,
              "%s: %s.data (%p) must be NULL: each rope_prepared_apply is given the data",
              call.function, name, data);
}

// Heads and strides of Q8_0.
rope_status CheckBlocks(const Call& call, const char* name, int64_t dim, const HeadStrides& s) {
  if (dim % kQ8Channels != 0) {
    return Fail(ROPE_ERROR_INVALID_ARGUMENT,
                "%s: %s must have a head_dim (%lld) that is a multiple of %d, the channels of a "
                "block of Q8_0",
                call.function, name, static_cast<long long>(dim), kQ8Channels);
  }
  if (((s.batch | s.token | s.head) & (kQ8Channels - 1)) == 0) return ROPE_OK;
  return Fail(ROPE_ERROR_INVALID_ARGUMENT,
              "%s: %s.stride_batch, stride_token and stride_head (%lld, %lld, %lld) must be "
              "multiples of %d, the channels of a block of Q8_0",
              call.function, name, static_cast<long long>(s.batch), static_cast<long long>(s.token),
              static_cast<long long>(s.head), kQ8Channels);
}

// Compiled for each kind: q and k are described in every call.
template <TensorKind kKind>
__attribute__((noinline)) rope_status DescribeAs(const Call& call, const char* name,
                                                 const rope_tensor& t, DataOf data_of,
                                                 HeadStrides* strides, Reach* reach) {
  if (t.reserved != 0 || t.scale != nullptr) {
    if (rope_status s = CheckRare(call, name, t)) return s;
  }
  if (rope_status s = CheckData(call, name, t.data, data_of)) return s;
  if (!IsDtype(t.dtype)) {
    if (rope_status s = CheckCode<kKind>(call, name, t.dtype)) return s;
  } else if (DoesTurn(kKind) && !IsFor(call.context.rounding.arithmetic, t.dtype)) {
    return CheckTurns(call, name, t.dtype, t.dtype);
  }
  if (!IsLayout<kKind>(t.layout)) return FailLayout<kKind>(call, name, t.layout);
  if (t.heads < 1) {
    return Fail(ROPE_ERROR_INVALID_ARGUMENT, "%s: %s.heads (%d) must be positive", call.function,
                name, t.heads);
  }
  if (!DoesTurn(kKind) && (t.head_dim < 1 || t.head_dim > kMaxHeadDim)) {
    return Fail(ROPE_ERROR_INVALID_ARGUMENT,
                "%s: %s.head_dim (%d) is required, and must be from 1 to %d", call.function, name,
                t.head_dim, kMaxHeadDim);
  }
  if (DoesTurn(kKind) && t.head_dim != 0 && t.head_dim != call.context.head_dim &&
      t.head_dim != call.context.rotary_dim) {
    return Fail(ROPE_ERROR_INVALID_ARGUMENT,
                "%s: %s.head_dim (%d) must be 0, the context's head_dim (%d) or its "
                "rotary_dim (%d)",
                call.function, name, t.head_dim, call.context.head_dim, call.context.rotary_dim);
  }
  const int64_t dim = t.head_dim != 0 ? t.head_dim : call.context.head_dim;
  if (rope_status s = ResolveStrides<kKind>(call, name, t, dim, strides)) return s;
  constexpr bool kIsStored = !IsInput(kKind) || IsInCache(kKind);
  const auto bytes = [&](int64_t channels) {
    return kIsStored ? BytesOf(t.dtype, channels) : channels * ElementSize(t.dtype);
  };
  if (kIsStored && t.dtype == ROPE_DTYPE_Q8_0) {
    if (rope_status s = CheckBlocks(call, name, dim, *strides)) return s;
  }
  reach->width = bytes(dim);
  reach->extent =
      bytes(HeadOffset(*strides, call.batch - 1, call.tokens - 1, t.heads - 1)) + reach->width;
  return ROPE_OK;
}

Footprint FootprintOf(const Call& call, int32_t heads, const HeadStrides& strides,
                      const Reach& reach) {
  return {
      {call.batch, call.tokens, heads}, {strides.batch, strides.token, strides.head}, reach.width};
}

// q or k with its output. All of `tensor` but its addresses; and with a FusedPlan all of `output`
// and its scales in `beside`. Compiled for both.
template <bool kFused>
rope_status DescribePair(const Call& call, const char* name, const rope_tensor& in,
                         const char* out_name, const rope_tensor& out, rope_operation operation,
                         DataOf data_of, TensorShape* shape, Tensor* tensor, Beside scales,
                         Output* output, BesideShape* beside) {
  const char* const function = call.function;
  const rope_context& context = call.context;
  shape->present = !IsAbsent(in);
  shape->in_place = IsAbsent(out);
  if (!shape->present) {
    if (shape->in_place) return ROPE_OK;
    return Fail(ROPE_ERROR_INVALID_ARGUMENT, "%s: %s is set, but %s is absent", function, out_name,
                name);
  }
  HeadStrides strides;
  if (rope_status s = DescribeAs<TensorKind::kHeads>(call, name, in, data_of, &strides, &shape->in))
    return s;
  const int size = ElementSize(in.dtype);
  // From registers into both: a copy of the one would wait for its stores.
  const HeadStrides in_bytes = InBytes(strides, size);
  tensor->in_strides = in_bytes;
  tensor->out_strides = in_bytes;
  tensor->heads = in.heads;
  tensor->dtype = in.dtype;
  tensor->in_span = tensor->out_span = SpanStart(context, in);
  tensor->copies_rest = false;
  if (kFused) output->SetLike(in.dtype);
  if (!shape->in_place) {
    if (rope_status s = DescribeAs<TensorKind::kHeadsOut>(call, out_name, out, data_of, &strides,
                                                          &shape->out)) {
      return s;
    }
    if (!kFused && (out.dtype != in.dtype || out.heads != in.heads)) return kNeedsFusedPlan;
    tensor->out_strides = kFused ? StoredInBytes(strides, out.dtype) : InBytes(strides, size);
    tensor->out_span = kFused ? StoredSpanStart(context, out) : SpanStart(context, out);
    const int64_t whole = static_cast<int64_t>(context.head_dim) * size;
    tensor->copies_rest =
        context.rotary_dim != context.head_dim && shape->in.width == whole && IsWhole(context, out);
  }
  // Named layouts are contiguous.
  const rope_tensor& written = shape->in_place ? in : out;
  if (written.layout == ROPE_LAYOUT_STRIDED && !shape->only_read() &&
      !IsInjective(FootprintOf(call, written.heads, tensor->out_strides,
                               shape->in_place ? shape->in : shape->out))) {
    return Fail(ROPE_ERROR_INVALID_ARGUMENT,
                "%s: %s: strides let heads, tokens or batch rows of an output overlap: from one to "
                "the next %lld, %lld and %lld bytes, a head has %lld",
                function, shape->in_place ? name : out_name,
                static_cast<long long>(tensor->out_strides.head),
                static_cast<long long>(tensor->out_strides.token),
                static_cast<long long>(tensor->out_strides.batch),
                static_cast<long long>(shape->in_place ? shape->in.width : shape->out.width));
  }
  if (!kFused || shape->in_place) return ROPE_OK;
  if (rope_status s =
          DescribeOutput(call, out_name, out, TensorKind::kHeadsOut, name, in, operation, data_of,
                         scales, output, &tensor->out_strides, beside)) {
    return s;
  }
  tensor->heads /= output->sums;
  return ROPE_OK;
}

template <TensorKind kKind>
rope_status CheckAddressAs(const Call& call, const char* name, const char* data_name, int32_t heads,
                           int size, int64_t extent, const void* data) {
  if (!IsAligned(data, static_cast<size_t>(size))) {
    return Fail(ROPE_ERROR_INVALID_ARGUMENT,
                "%s: %s%s (%p) must be aligned to its element (%d bytes)", call.function, name,
                data_name, data, size);
  }
  if (static_cast<uint64_t>(extent) > UINTPTR_MAX - reinterpret_cast<uintptr_t>(data)) {
    return FailBeyond(call, name, heads, kKind);
  }
  return ROPE_OK;
}

rope_status CheckAddress(const Call& call, const char* name, const char* data_name,
                         const Tensor& tensor, const Reach& reach, const void* data) {
  return CheckAddressAs<TensorKind::kHeads>(call, name, data_name, tensor.heads,
                                            ElementSize(tensor.dtype), reach.extent, data);
}

// The output of a tensor beside it. A call without a FusedPlan pays for nothing here.
struct SameOutput {
  struct Times {
    static constexpr int32_t repeats = 1, sums = 1;
  };

  SameOutput(const Output* /*outputs*/, int32_t /*tensor*/) {}
  static Times in() { return {}; }
  static Times out() { return {}; }
  static bool IsLike(rope_dtype) { return true; }
  static rope_status Check(const Call& call, const char* name, const char* data_name,
                           const Tensor& tensor, const Reach& reach, const void* data) {
    return CheckAddress(call, name, data_name, tensor, reach, data);
  }
};
struct OtherOutput {
  struct Times {
    int32_t repeats, sums;
  };

  OtherOutput(const Output* outputs, int32_t tensor) : output(outputs[tensor]) {}
  Times in() const { return {1, output.sums}; }
  Times out() const { return {output.repeats, 1}; }
  bool IsLike(rope_dtype in) const { return output.IsLike(in); }
  rope_status Check(const Call& call, const char* name, const char* data_name, const Tensor& tensor,
                    const Reach& reach, const void* data) const {
    return CheckAddressAs<TensorKind::kHeads>(call, name, data_name, tensor.heads * output.repeats,
                                              AlignmentOf(output.dtype), reach.extent, data);
  }

  const Output& output;
};

// A tensor of the call in memory.
template <class Other>
struct Placed : Other::Times {
  const char* name;
  const void* data;
  const Tensor& tensor;
  const HeadStrides& strides;
  const Reach& reach;

  Footprint Of(const Call& call) const {
    HeadStrides each = strides;
    if (this->repeats != 1) each.head /= this->repeats;
    return FootprintOf(call, tensor.heads * this->repeats * this->sums, each, reach);
  }
  Memory In(const Call& call) const { return {name, Of(call), reinterpret_cast<uintptr_t>(data)}; }
};

template <class Other>
Placed<Other> In(const char* name, const Tensor& tensor, const TensorShape& shape,
                 const Other& output) {
  return {output.in(), name, tensor.in, tensor, tensor.in_strides, shape.in};
}
// In place: the input, also of k whose result goes to slots, which have the output's strides.
template <class Other>
Placed<Other> Out(const char* name, const Tensor& tensor, const TensorShape& shape,
                  const Other& output) {
  if (shape.in_place) return In(name, tensor, shape, output);
  return {output.out(), name, tensor.out, tensor, tensor.out_strides, shape.out};
}

template <class Other>
__attribute__((noinline)) bool AreApartInside(const Call& call, const Placed<Other>& a,
                                              const Placed<Other>& b) {
  const Footprint of_a = a.Of(call), of_b = b.Of(call);
  return AreDisjoint({of_a, reinterpret_cast<uintptr_t>(a.data)},
                     {of_b, reinterpret_cast<uintptr_t>(b.data)});
}

// AreDisjoint() asks for the ranges, too; most are apart, and need no footprints.
template <class Other>
inline bool AreApart(const Call& call, const Placed<Other>& a, const Placed<Other>& b) {
  return ReachApart(a.data, a.reach, b.data, b.reach) || AreApartInside(call, a, b);
}

template <class Other>
rope_status CheckOutput(const Call& call, const char* name, const char* out_name,
                        const char* data_name, const TensorShape& shape, const Other& output,
                        Tensor* tensor) {
  const char* const in = tensor->in;
  char* const out = tensor->out;
  if (rope_status s = output.Check(call, out_name, data_name, *tensor, shape.out, out)) return s;
  const Placed<Other> in_memory = In(name, *tensor, shape, output),
                      out_memory = Out(out_name, *tensor, shape, output);
  if (in != out) {
    if (AreApart(call, in_memory, out_memory)) return ROPE_OK;
  } else if (output.IsLike(tensor->dtype) && AreEqual(in_memory.Of(call), out_memory.Of(call))) {
    tensor->copies_rest = false;
    return ROPE_OK;
  }
  return FailOverlap(call.function, out_memory.In(call), in_memory.In(call), kExactlyOrApart);
}

template <class Other>
rope_status CheckApart(const Call& call, const Placed<Other>& a, const Placed<Other>& b) {
  if (AreApart(call, a, b)) return ROPE_OK;
  return FailOverlap(call.function, a.In(call), b.In(call), "");
}

// What one call rotates must not be read or written by it elsewhere.
template <class Other>
rope_status CheckDisjoint(const Call& call, const Names& names, const Shapes& shapes,
                          const Tensor& q, const Other& q_output, const Tensor& k,
                          const Other& k_output) {
  const bool q_in_place = shapes.q.in_place, k_in_place = shapes.k.in_place;
  const Placed<Other> q_out = Out(q_in_place ? names.q : names.q_out, q, shapes.q, q_output),
                      k_out = Out(k_in_place ? names.k : names.k_out, k, shapes.k, k_output);
  if (rope_status s = CheckApart(call, q_out, k_out)) return s;
  if (!q_in_place && !shapes.k.only_read()) {
    if (rope_status s = CheckApart(call, In(names.q, q, shapes.q, q_output), k_out)) return s;
  }
  if (!k_in_place) {
    if (rope_status s = CheckApart(call, q_out, In(names.k, k, shapes.k, k_output))) return s;
  }
  return ROPE_OK;
}

template <class Other>
rope_status CheckAddressesAs(const Call& call, const Names& names, const Shapes& shapes,
                             const Addresses& addresses, const Output* outputs, Tensor tensors[3]) {
  Tensor &q = tensors[0], &k = tensors[shapes.k_at()];
  const Other q_output(outputs, 0), k_output(outputs, shapes.k_at());
  const auto place = [&](const TensorShape& shape, const char* name, void* in, const char* out_name,
                         void* out, const Other& output, Tensor* tensor) -> rope_status {
    if (!shape.present) return ROPE_OK;
    tensor->in = static_cast<const char*>(in);
    tensor->out = static_cast<char*>(shape.in_place ? in : out);
    if (rope_status s = CheckAddress(call, name, names.data, *tensor, shape.in, in)) return s;
    if (shape.in_place) return ROPE_OK;
    return CheckOutput(call, name, out_name, names.data, shape, output, tensor);
  };
  if (rope_status s =
          place(shapes.q, names.q, addresses.q, names.q_out, addresses.q_out, q_output, &q)) {
    return s;
  }
  if (rope_status s =
          place(shapes.k, names.k, addresses.k, names.k_out, addresses.k_out, k_output, &k)) {
    return s;
  }
  if (!shapes.q.present || !shapes.k.present) return ROPE_OK;
  return CheckDisjoint(call, names, shapes, q, q_output, k, k_output);
}

template <TensorKind kKind>
rope_status DescribeBesideAs(const Call& call, const char* name, const rope_tensor& t,
                             DataOf data_of, BesideShape* shape) {
  HeadStrides elements{};
  Reach reach{};
  if (rope_status s = DescribeAs<kKind>(call, name, t, data_of, &elements, &reach)) return s;
  const HeadStrides s = StoredInBytes(elements, t.dtype);
  shape->present = true;
  shape->written = !IsInput(kKind);
  shape->dtype = t.dtype;
  shape->element = AlignmentOf(t.dtype);
  shape->of = {{call.batch, call.tokens, t.heads}, {s.batch, s.token, s.head}, reach.width};
  shape->extent = reach.extent;
  // Named layouts are contiguous.
  if (IsInput(kKind) || t.layout != ROPE_LAYOUT_STRIDED || IsInjective(shape->of)) return ROPE_OK;
  return Fail(
      ROPE_ERROR_INVALID_ARGUMENT,
      "%s: %s: strides let heads, %s overlap: from one to the next %lld, %lld and %lld bytes, "
      "a head has %lld",
      call.function, name,
      IsInCache(kKind) ? "slots or pages of a cache" : "tokens or batch rows of an output",
      static_cast<long long>(s.head), static_cast<long long>(s.token),
      static_cast<long long>(s.batch), static_cast<long long>(reach.width));
}

}  // namespace

rope_status DescribeBeside(const Call& call, const char* name, const rope_tensor& t,
                           TensorKind kind, DataOf data_of, BesideShape* shape) {
  const auto describe = [&](auto as) { return as(call, name, t, data_of, shape); };
  switch (kind) {
    case TensorKind::kHeads: return describe(&DescribeBesideAs<TensorKind::kHeads>);
    case TensorKind::kOthers: return describe(&DescribeBesideAs<TensorKind::kOthers>);
    case TensorKind::kSourceHeads: return describe(&DescribeBesideAs<TensorKind::kSourceHeads>);
    case TensorKind::kSourceOthers: return describe(&DescribeBesideAs<TensorKind::kSourceOthers>);
    case TensorKind::kHeadsOut: return describe(&DescribeBesideAs<TensorKind::kHeadsOut>);
    case TensorKind::kOthersOut: return describe(&DescribeBesideAs<TensorKind::kOthersOut>);
    case TensorKind::kCachedHeads: return describe(&DescribeBesideAs<TensorKind::kCachedHeads>);
    default: return describe(&DescribeBesideAs<TensorKind::kCachedOthers>);
  }
}

bool DescribePages(const rope_kv_cache& c, int64_t width, HeadStrides* strides, int64_t* bytes) {
  const rope_tensor& t = c.k;
  if (t.layout == ROPE_LAYOUT_STRIDED || !IsLayout<TensorKind::kCachedHeads>(t.layout)) {
    return false;
  }
  if ((t.stride_batch | t.stride_token | t.stride_head | t.reserved) != 0) return false;
  *strides = NamedStrides<true>(t.layout, c.pages, c.page_size, t.heads, width);
  return !__builtin_mul_overflow(width * t.heads, int64_t{c.page_size}, bytes) &&
         !__builtin_mul_overflow(*bytes, c.pages, bytes);
}

rope_status CheckAddressBeside(const Call& call, const char* name, const char* data_name,
                               const BesideShape& shape, TensorKind kind, const void* data) {
  const auto check = IsInCache(kind) ? &CheckAddressAs<TensorKind::kCachedOthers>
                                     : &CheckAddressAs<TensorKind::kOthers>;
  return check(call, name, data_name, static_cast<int32_t>(shape.of.counts[2]), shape.element,
               shape.extent, data);
}

template <bool kFused>
rope_status CheckShapesOf(const Call& call, const Names& names, const rope_qk_args& args,
                          DataOf data_of, Shapes* shapes, Tensor tensors[3], Output* outputs,
                          BesideShape* beside) {
  if (rope_status s =
          DescribePair<kFused>(call, names.q, args.q, names.q_out, args.q_out, args.operation,
                               data_of, &shapes->q, &tensors[0], kQOutScales, outputs, beside)) {
    return s;
  }
  const int32_t k = shapes->q.present;
  if (rope_status s = DescribePair<kFused>(call, names.k, args.k, names.k_out, args.k_out,
                                           args.operation, data_of, &shapes->k, &tensors[k],
                                           kKOutScales, kFused ? &outputs[k] : nullptr, beside)) {
    return s;
  }
  if (shapes->count() != 0) return ROPE_OK;
  return Fail(ROPE_ERROR_INVALID_ARGUMENT, "%s: %s and %s must not both be absent", call.function,
              names.q, names.k);
}

rope_status CheckShapes(const Call& call, const Names& names, const rope_qk_args& args,
                        DataOf data_of, Shapes* shapes, Tensor tensors[3]) {
  return CheckShapesOf<false>(call, names, args, data_of, shapes, tensors, nullptr, nullptr);
}
rope_status CheckShapes(const Call& call, const Names& names, const rope_qk_args& args,
                        DataOf data_of, Shapes* shapes, Tensor tensors[3], Output outputs[3],
                        BesideShape* beside) {
  return CheckShapesOf<true>(call, names, args, data_of, shapes, tensors, outputs, beside);
}

rope_status CheckShapeOfQ(const Call& call, const Names& names, const rope_qk_args& args,
                          DataOf data_of, Shapes* shapes, Tensor tensors[3], Output outputs[3],
                          BesideShape* beside) {
  shapes->k.present = false;
  shapes->k.in_place = true;
  return DescribePair<true>(call, names.q, args.q, names.q_out, args.q_out, args.operation, data_of,
                            &shapes->q, &tensors[0], kQOutScales, outputs, beside);
}

rope_status CheckAddresses(const Call& call, const Names& names, const Shapes& shapes,
                           const Addresses& addresses, Tensor tensors[3]) {
  return CheckAddressesAs<SameOutput>(call, names, shapes, addresses, nullptr, tensors);
}
rope_status CheckAddresses(const Call& call, const Names& names, const Shapes& shapes,
                           const Addresses& addresses, const Output outputs[3], Tensor tensors[3]) {
  return CheckAddressesAs<OtherOutput>(call, names, shapes, addresses, outputs, tensors);
}

void MemoryOf(const Call& call, const Names& names, const Shapes& shapes, const Tensor tensors[3],
              const Output outputs[3], Memory memory[4]) {
  const auto add = [&](const Placed<OtherOutput>& placed) { *memory++ = placed.In(call); };
  const auto add_pair = [&](const char* name, const char* out_name, int32_t n,
                            const TensorShape& shape) {
    if (!shape.present) return;
    const OtherOutput output(outputs, n);
    add(In(name, tensors[n], shape, output));
    if (!shape.in_place) add(Out(out_name, tensors[n], shape, output));
  };
  add_pair(names.q, names.q_out, 0, shapes.q);
  add_pair(names.k, names.k_out, shapes.k_at(), shapes.k);
}

}  // namespace rope
