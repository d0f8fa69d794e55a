// The checks of a call. Ordered so that a kept decode call pays for comparisons only: no copies of
// the arguments, no division, one overflow test for all products.
#include "plan.h"

#include <cstddef>

#include "element.h"
#include "operation.h"
#include "overlap.h"
#include "pointer.h"
#include "source.h"
#include "status.h"
#include "structs.h"

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

class PlanMaker {
 public:
  PlanMaker(const char* function, const rope_context* context, int64_t batch, int64_t tokens)
      : function_(function), context_(context), batch_(batch), tokens_(tokens) {}

  rope_status CheckSizes(const char* names) {
    if (batch_ < 0 || tokens_ < 0) {
      return Fail(ROPE_ERROR_INVALID_ARGUMENT, "%s: %s%s (%lld) must not be negative", function_,
                  names, batch_ < 0 ? "batch" : "tokens",
                  static_cast<long long>(batch_ < 0 ? batch_ : tokens_));
    }
    int64_t product;
    if (__builtin_mul_overflow(batch_, tokens_, &product)) {
      return Fail(ROPE_ERROR_INVALID_ARGUMENT, "%s: %sbatch * tokens must fit into 63 bits",
                  function_, names);
    }
    return ROPE_OK;
  }

  // One described tensor: its fields, the strides that its layout means (elements), and its bytes.
  rope_status Describe(const char* name, const rope_tensor& t, HeadStrides* strides,
                       Footprint* footprint) const {
    if (t.reserved != 0 || t.reserved_ptr != nullptr) {
      return Fail(ROPE_ERROR_UNSUPPORTED, "%s: %s.%s must be 0 in this version", function_,
                  name, t.reserved != 0 ? "reserved" : "reserved_ptr");
    }
    if (t.data == nullptr) {
      return Fail(ROPE_ERROR_INVALID_ARGUMENT,
                  "%s: %s.data (NULL) must not be NULL in a tensor with other fields set",
                  function_, name);
    }
    if (t.dtype < 1 || t.dtype > ROPE_BF16) return Unknown(name, "dtype", t.dtype);
    if (t.layout < 1 || t.layout > ROPE_LAYOUT_STRIDED) return Unknown(name, "layout", t.layout);
    if (t.heads < 1) {
      return Fail(ROPE_ERROR_INVALID_ARGUMENT, "%s: %s.heads (%d) must be positive", function_,
                  name, t.heads);
    }
    if (t.head_dim != 0 && t.head_dim != context_->head_dim && t.head_dim != context_->rotary_dim) {
      return Fail(ROPE_ERROR_INVALID_ARGUMENT,
                  "%s: %s.head_dim (%d) must be 0, the context's head_dim (%d) or its "
                  "rotary_dim (%d)",
                  function_, name, t.head_dim, context_->head_dim, context_->rotary_dim);
    }
    const int64_t dim = t.head_dim != 0 ? t.head_dim : context_->head_dim;
    if (rope_status s = ResolveStrides(name, t, dim, strides)) return s;

    const int size = ElementSize(t.dtype);
    const auto base = reinterpret_cast<uintptr_t>(t.data);
    if (!IsAligned(t.data, static_cast<size_t>(size))) {
      return Fail(ROPE_ERROR_INVALID_ARGUMENT,
                  "%s: %s.data (%p) must be aligned to its element (%d bytes)", function_,
                  name, t.data, size);
    }
    *footprint = {base,
                  {batch_, tokens_, t.heads},
                  {strides->batch * size, strides->token * size, strides->head * size},
                  dim * size};
    return ROPE_OK;
  }

 private:
  rope_status Unknown(const char* name, const char* field, int32_t value) const {
    if (value == 0) {
      return Fail(ROPE_ERROR_INVALID_ARGUMENT, "%s: %s.%s (0) is required", function_, name,
                  field);
    }
    return Fail(ROPE_ERROR_UNSUPPORTED, "%s: %s.%s (%d) is not known to this version",
                function_, name, field, value);
  }

  rope_status ResolveStrides(const char* name, const rope_tensor& t, int64_t dim,
                             HeadStrides* strides) const {
    if (t.layout == ROPE_LAYOUT_STRIDED) {
      *strides = {t.stride_batch, t.stride_token, t.stride_head};
      if ((t.stride_batch | t.stride_token | t.stride_head) < 0) {
        return Fail(ROPE_ERROR_INVALID_ARGUMENT,
                    "%s: %s.stride_batch, stride_token and stride_head (%lld, %lld, %lld) "
                    "must not be negative",
                    function_, name, static_cast<long long>(t.stride_batch),
                    static_cast<long long>(t.stride_token), static_cast<long long>(t.stride_head));
      }
    } else {
      if ((t.stride_batch | t.stride_token | t.stride_head) != 0) {
        return Fail(ROPE_ERROR_INVALID_ARGUMENT,
                    "%s: %s.stride_batch, stride_token and stride_head (%lld, %lld, %lld) "
                    "must be 0 without ROPE_LAYOUT_STRIDED",
                    function_, name, static_cast<long long>(t.stride_batch),
                    static_cast<long long>(t.stride_token), static_cast<long long>(t.stride_head));
      }
      // Wrapping products: when the sizes are large enough to wrap, Fits() below says no.
      const auto w = static_cast<uint64_t>(dim), h = static_cast<uint64_t>(t.heads),
                 s = static_cast<uint64_t>(tokens_), b = static_cast<uint64_t>(batch_);
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
    if (!Fits(t, dim, *strides)) {
      return Fail(ROPE_ERROR_INVALID_ARGUMENT,
                  "%s: %s (batch %lld, tokens %lld, heads %d, its strides) reaches beyond "
                  "the address space",
                  function_, name, static_cast<long long>(batch_), static_cast<long long>(tokens_),
                  t.heads);
    }
    return ROPE_OK;
  }

  // Every byte offset fits into 63 bits, and base + offset into the address space.
  bool Fits(const rope_tensor& t, int64_t dim, const HeadStrides& s) const {
    const int64_t any = batch_ | tokens_ | s.batch | s.token | s.head;
    if ((any >> 29) == 0) return true;  // products below 2^58
    int64_t extent = dim, product;
    const int64_t counts[3] = {batch_, tokens_, t.heads}, strides[3] = {s.batch, s.token, s.head};
    if (t.layout != ROPE_LAYOUT_STRIDED) {
      return !__builtin_mul_overflow(batch_, tokens_, &product) &&
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

  const char* function_;
  const rope_context* context_;
  int64_t batch_, tokens_;
};

// The fields of one named tensor of the call.
struct Described {
  bool present = false;
  bool in_place = true;
  const char* name;
  const char* out_name;
  Footprint in, out;
};

// Runner and stream belong to one device each.
rope_status CheckPlace(const char* function, const char* name, const rope_context& context,
                       const rope_runner* runner, const void* stream) {
  const Backend& backend = *context.backend;
  if (stream != nullptr && !backend.has_streams) {
    return Fail(ROPE_ERROR_INVALID_ARGUMENT, "%s: %sstream must be NULL in a %s context", function,
                name, backend.name);
  }
  if (runner != nullptr && !backend.has_runner) {
    return Fail(ROPE_ERROR_INVALID_ARGUMENT, "%s: %srunner must be NULL in a %s context", function,
                name, backend.name);
  }
  if (runner != nullptr && runner->parallel_for == nullptr) {
    return Fail(ROPE_ERROR_INVALID_ARGUMENT, "%s: %srunner->parallel_for (NULL) must not be NULL",
                function, name);
  }
  return ROPE_OK;
}

// SHIFT goes by distances, which are no positions.
rope_status CheckShift(const char* function, rope_position_kind kind) {
  if (kind >= ROPE_POSITIONS_IDS_T) return ROPE_OK;
  return Fail(ROPE_ERROR_INVALID_ARGUMENT,
              "%s: args->positions.kind (%d) must be IDS_* with SHIFT, which moves token i by ids[i]: "
              "OFFSET and SEQ_OFFSETS would move it by offset + i. One distance for all tokens is "
              "IDS_STRIDED with strides 0",
              function, kind);
}

// Positions or rows: exactly one.
rope_status ReadSource(const char* function, const rope_context& context, const rope_qk_args& args,
                       Plan* plan) {
  plan->has_rows = args.cos_sin != nullptr;
  if (!plan->has_rows) {
    if (rope_status s = ReadPositions(function, "args->positions.", context, args.batch,
                                      args.tokens, args.positions, &plan->positions)) {
      return s;
    }
    return kOperations[args.operation].by_distance ? CheckShift(function, args.positions.kind)
                                                   : ROPE_OK;
  }
  if (!IsZero(args.positions)) {
    return Fail(ROPE_ERROR_INVALID_ARGUMENT,
                "%s: args->positions must be zero with args->cos_sin: exactly one of them gives "
                "the angles",
                function);
  }
  if (!kOperations[args.operation].takes_rows) {
    return Fail(ROPE_ERROR_INVALID_ARGUMENT,
                "%s: args->operation (%d) must be FORWARD or BACKWARD with args->cos_sin, whose "
                "rows hold the attention factor",
                function, args.operation);
  }
  return ReadRows(function, "args->cos_sin", context, args.batch, args.tokens, args.cos_sin,
                  RowUse::kRead, &plan->rows);
}

int SpanStart(const rope_context& context, const rope_tensor& t) {
  const bool whole = t.head_dim == 0 || t.head_dim == context.head_dim;
  return whole ? context.rotary_offset * ElementSize(t.dtype) : 0;
}

rope_status DescribeTensor(const char* function, const PlanMaker& maker,
                           const rope_context& context, const rope_tensor& in,
                           const rope_tensor& out, Described* described, Tensor* tensor) {
  described->present = !IsAbsent(in);
  described->in_place = IsAbsent(out);
  if (!described->present) {
    if (described->in_place) return ROPE_OK;
    return Fail(ROPE_ERROR_INVALID_ARGUMENT, "%s: %s is set, but %s is absent",
                function, described->out_name, described->name);
  }
  HeadStrides strides;
  if (rope_status s = maker.Describe(described->name, in, &strides, &described->in)) return s;
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
    if (rope_status s = maker.Describe(described->out_name, out, &strides, &described->out)) {
      return s;
    }
    if (out.dtype != in.dtype) {
      return Fail(ROPE_ERROR_UNSUPPORTED,
                  "%s: %s.dtype (%d) must be that of %s (%d) in this version", function,
                  described->out_name, out.dtype, described->name, in.dtype);
    }
    if (out.heads != in.heads) {
      return Fail(ROPE_ERROR_INVALID_ARGUMENT,
                  "%s: %s.heads (%d) must be that of %s (%d)", function,
                  described->out_name, out.heads, described->name, in.heads);
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
                "%s: %s: strides let heads, tokens or batch rows of an output overlap",
                function, described->in_place ? described->name : described->out_name);
  }
  if (!described->in_place) {
    if (IsSame(described->in, described->out)) {
      tensor->copies_rest = false;
    } else if (!AreDisjoint(described->in, described->out)) {
      return Fail(ROPE_ERROR_INVALID_ARGUMENT,
                  "%s: %s overlaps %s, and must be exactly it or disjoint from it",
                  function, described->out_name, described->name);
    }
  }
  return ROPE_OK;
}

rope_status CheckApart(const char* function, const char* a_name, const Footprint& a,
                       const char* b_name, const Footprint& b) {
  if (AreDisjoint(a, b)) return ROPE_OK;
  return Fail(ROPE_ERROR_INVALID_ARGUMENT, "%s: %s overlaps %s", function, a_name,
              b_name);
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

rope_status MakePlan(const char* function, const Names& names, const rope_context* context,
                     const rope_qk_args* args, Plan* plan) {
  if (context == nullptr || args == nullptr) {
    return Fail(ROPE_ERROR_INVALID_ARGUMENT, "%s: %s (NULL) must not be NULL", function,
                context == nullptr ? "context" : "args");
  }
  rope_qk_args extended;
  if (args->struct_size != sizeof(rope_qk_args)) {
    if (rope_status s = CopyStruct(function, "args", args, &extended)) return s;
    args = &extended;
  }
  if (args->reserved != nullptr) {
    return Fail(ROPE_ERROR_UNSUPPORTED, "%s: args->reserved must be NULL in this version",
                function);
  }
  if (!IsOperation(args->operation)) {
    return Fail(ROPE_ERROR_UNSUPPORTED, "%s: args->operation (%d) is not known to this version",
                function, args->operation);
  }
  PlanMaker maker(function, context, args->batch, args->tokens);
  if (rope_status s = maker.CheckSizes(names.args)) return s;
  plan->function = function;
  plan->context = context;
  plan->operation = args->operation;
  plan->batch = args->batch;
  plan->tokens = args->tokens;
  plan->runner = args->runner;
  plan->stream = args->stream;
  plan->tensor_count = 0;
  if (args->tokens == 0) return ROPE_OK;  // pointers may be NULL
  if (args->batch == 0) {
    if (args->q.data == nullptr && args->k.data == nullptr) return ROPE_OK;
    return Fail(ROPE_ERROR_INVALID_ARGUMENT,
                "%s: args->batch (0) is required: 1 for packed sequences. Where there are no rows, "
                "q.data and k.data are NULL",
                function);
  }
  if (rope_status s = CheckPlace(function, names.args, *context, args->runner, args->stream)) return s;
  if (rope_status s = ReadSource(function, *context, *args, plan)) return s;

  Described q, k;
  q.name = names.q, q.out_name = "args->q_out", k.name = names.k, k.out_name = "args->k_out";
  int32_t count = 0;
  if (rope_status s = DescribeTensor(function, maker, *context, args->q, args->q_out, &q,
                                     &plan->tensors[count])) {
    return s;
  }
  count += q.present;
  if (rope_status s = DescribeTensor(function, maker, *context, args->k, args->k_out, &k,
                                     &plan->tensors[count])) {
    return s;
  }
  count += k.present;
  if (count == 0) {
    return Fail(ROPE_ERROR_INVALID_ARGUMENT, "%s: %s and %s must not both be absent", function,
                names.q, names.k);
  }
  if (count == 2) {
    if (rope_status s = CheckDisjoint(function, q, k)) return s;
  }
  // Last, because it may look at every position: how many there are is known to be possible by now.
  if (!plan->has_rows && !kOperations[args->operation].by_distance) {
    if (rope_status s = CheckValidity(function, names.positions, *context, args->batch, args->tokens,
                                      plan->positions)) {
      return s;
    }
  }
  plan->tensor_count = count;
  return ROPE_OK;
}

rope_status MakeFillPlan(const char* function, const rope_context* context, int64_t batch,
                         int64_t tokens, const rope_positions* positions, const rope_cos_sin* out,
                         void* stream, FillPlan* plan) {
  if (context == nullptr || positions == nullptr || out == nullptr) {
    return Fail(ROPE_ERROR_INVALID_ARGUMENT, "%s: %s (NULL) must not be NULL", function,
                context == nullptr     ? "context"
                : positions == nullptr ? "positions"
                                       : "out");
  }
  PlanMaker maker(function, context, batch, tokens);
  if (rope_status s = maker.CheckSizes("")) return s;
  if (rope_status s = CheckPlace(function, "", *context, nullptr, stream)) return s;
  plan->function = function;
  plan->context = context;
  plan->batch = batch;
  plan->tokens = tokens;
  plan->stream = stream;
  if (batch == 0 || tokens == 0) return ROPE_OK;
  if (rope_status s = ReadPositions(function, "positions->", *context, batch, tokens, *positions,
                                    &plan->positions)) {
    return s;
  }
  if (rope_status s =
          ReadRows(function, "out", *context, batch, tokens, out, RowUse::kWrite, &plan->rows)) {
    return s;
  }
  if (context->nope) plan->positions = PositionSource{};  // 1 and 0, by offset 0
  return CheckValidity(function, "positions", *context, batch, tokens, plan->positions);
}

}  // namespace rope
