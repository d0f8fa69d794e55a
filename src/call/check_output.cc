#include "call/check_output.h"

#include <cstdint>

#include "base/dtype_text.h"
#include "base/status.h"
#include "call/check_scale.h"
#include "math/element.h"
#include "math/operation.h"

namespace rope {
namespace {

// From a head of the input to the next.
bool Repeat(int32_t repeats, int64_t* stride) {
  return !__builtin_mul_overflow(*stride, int64_t{repeats}, stride);
}

// The gradient of heads that were repeated.
rope_status CheckSums(const Call& call, const char* name, const rope_tensor& out,
                      const char* in_name, const rope_tensor& in, Output* output) {
  if (in.heads % out.heads != 0) {
    return Fail(ROPE_ERROR_INVALID_ARGUMENT,
                "%s: %s.heads (%d) must be that of %s (%d), or divide it", call.function, name,
                out.heads, in_name, in.heads);
  }
  if (!call.context.backend->has_gradients) {
    return Fail(ROPE_ERROR_UNSUPPORTED,
                "%s: %s.heads (%d) must be that of %s (%d) with BACKWARD in a %s context in this "
                "version",
                call.function, name, out.heads, in_name, in.heads, call.context.backend->name);
  }
  if (out.dtype != in.dtype) {
    return Fail(ROPE_ERROR_UNSUPPORTED,
                "%s: %s.dtype (%s) must be that of %s (%s), whose heads are added, in this version",
                call.function, name, DtypeText(out.dtype).text, in_name, DtypeText(in.dtype).text);
  }
  output->sums = in.heads / out.heads;
  return ROPE_OK;
}

// Where the span of whole heads in Q8_0 is read or written alone, it must consist of blocks.
rope_status CheckSpanOfBlocks(const Call& call, const char* name, const rope_tensor& t,
                              const rope_tensor& other, TensorKind kind) {
  const rope_context& context = call.context;
  if (t.dtype != ROPE_DTYPE_Q8_0 || !DoesTurn(kind) || !IsWhole(context, t) ||
      IsWhole(context, other) ||
      ((context.rotary_offset | context.rotary_dim) & (kQ8Channels - 1)) == 0) {
    return ROPE_OK;
  }
  return Fail(ROPE_ERROR_INVALID_ARGUMENT,
              "%s: %s holds whole heads of Q8_0, and only their span (%d channels from %d on) is "
              "read or written, which must begin and end with a block of %d",
              call.function, name, context.rotary_dim, context.rotary_offset, kQ8Channels);
}

}  // namespace

rope_status DescribeUnlike(const Call& call, const char* name, const rope_tensor& out,
                           TensorKind kind, const char* in_name, const rope_tensor& in,
                           rope_operation operation, DataOf data_of, Beside scales, Output* output,
                           HeadStrides* strides, BesideShape* beside) {
  const rope_context& context = call.context;
  if (kOperations[operation].is_gradient() && out.heads != in.heads) {
    return CheckSums(call, name, out, in_name, in, output);
  }
  const bool in_cache = IsInCache(kind);
  output->dtype = out.dtype;
  output->scales_at = scales;
  output->repeats = out.heads / in.heads;
  if (out.heads % in.heads != 0 || (in_cache && output->repeats != 1)) {
    return Fail(ROPE_ERROR_INVALID_ARGUMENT, "%s: %s.heads (%d) must be %s %s (%d)", call.function,
                name, out.heads, in_cache ? "that of" : "a multiple of those of", in_name,
                in.heads);
  }
  if (!Repeat(output->repeats, &strides->head)) return FailBeyond(call, name, out.heads, kind);
  if (rope_status s = CheckSpanOfBlocks(call, name, out, in, kind)) return s;
  if (rope_status s = CheckSpanOfBlocks(call, in_name, in, out, kind)) return s;
  if (!IsCode(out.dtype)) return ROPE_OK;
  const bool turns = DoesTurn(kind), whole = turns && IsWhole(context, out);
  const int64_t width = whole ? context.head_dim : turns ? context.rotary_dim : out.head_dim;
  if (rope_status s =
          CheckScale(call, name, out, width, in_cache ? ScaleOwner::kCache : ScaleOwner::kOutput,
                     data_of, &output->scales, &beside[scales])) {
    return s;
  }
  if (!Repeat(output->repeats, &output->scales.strides.head)) {
    return FailBeyond(call, name, out.heads, kind);
  }
  if (!beside[scales].present || !whole || IsWhole(context, in) ||
      context.rotary_dim == context.head_dim) {
    return ROPE_OK;
  }
  return Fail(ROPE_ERROR_INVALID_ARGUMENT,
              "%s: %s holds whole heads and its input their rotated span alone: with scale->data, "
              "both must hold the same channels",
              call.function, name);
}

}  // namespace rope
