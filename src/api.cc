// The C edge: every exported function but those of status.cc, pool.cc and model/. Checks
// handles, catches what C++ throws, hands over to the plan and the backend. No maths.
#include <algorithm>
#include <cstring>
#include <memory>
#include <new>
#include <string>

#include "base/aligned.h"
#include "base/dtype_text.h"
#include "base/guard.h"
#include "base/limits.h"
#include "base/status.h"
#include "base/struct_size.h"
#include "call/join_batch.h"
#include "call/plan.h"
#include "call/prepared.h"
#include "call/shard_ids.h"
#include "context/config.h"
#include "context/context.h"
#include "context/digest.h"
#include "context/frequencies.h"
#include "math/cos_sin_format.h"
#include "math/element.h"

namespace rope {
namespace {

rope_status Apply(const char* function, const Names& names, const rope_context* context,
                  const rope_qk_args* args) {
  Plan plan;
  Shapes shapes;
  FusedPlan fused;
  if (rope_status s = MakePlan(function, names, context, args, DataOf::kCall, &plan, &shapes,
                               &fused, nullptr)) {
    return s;
  }
  if (plan.tensor_count == 0) return ROPE_OK;
  if (plan.batch != 1) JoinBatch(&plan, &fused);
  return context->backend->apply(plan);
}

rope_status Null(const char* function, const char* argument) {
  return Fail(ROPE_ERROR_INVALID_ARGUMENT, "%s: %s (NULL) must not be NULL", function, argument);
}

rope_status CheckSet(const char* function, const rope_context* context, int32_t freq_set) {
  if (context == nullptr) return Null(function, "context");
  if (freq_set < 0 || static_cast<size_t>(freq_set) >= context->sets.size()) {
    return Fail(ROPE_ERROR_INVALID_ARGUMENT, "%s: freq_set (%d) must be from 0 to %zu", function,
                freq_set, context->sets.size() - 1);
  }
  return ROPE_OK;
}

rope_status Create(const char* function, const rope_config* const* configs, int32_t count,
                   rope_context** out) {
  if (out == nullptr) return Null(function, "out");
  return Guard(function, [&]() -> rope_status {
    std::unique_ptr<rope_context> context;
    if (rope_status s = CreateContext(function, configs, count, &context)) return s;
    *out = context.release();
    return ROPE_OK;
  });
}

// A tensor of the short call as one of the full call. What its arguments can break is told in their
// own names.
rope_status ThdTensor(const char* name, rope_dtype dtype, void* data, int32_t heads,
                      rope_tensor* tensor) {
  if ((data == nullptr) != (heads == 0) || heads < 0) {
    return Fail(
        ROPE_ERROR_INVALID_ARGUMENT,
        "rope_apply_thd: %s (%s) and %s_heads (%d) must both be given and positive, or NULL "
        "and 0",
        name, data != nullptr ? "set" : "NULL", name, heads);
  }
  if (data == nullptr) return ROPE_OK;
  if (!IsAligned(data, static_cast<size_t>(ElementSize(dtype)))) {
    return Fail(ROPE_ERROR_INVALID_ARGUMENT,
                "rope_apply_thd: %s (%p) must be aligned to its element (%d bytes)", name, data,
                ElementSize(dtype));
  }
  tensor->data = data;
  tensor->dtype = dtype;
  tensor->layout = ROPE_LAYOUT_BSHD;
  tensor->heads = heads;
  return ROPE_OK;
}

}  // namespace
}  // namespace rope

using namespace rope;  // NOLINT: the rest of this file is the C API

int32_t rope_version(void) {
  return ROPE_VERSION_MAJOR * 10000 + ROPE_VERSION_MINOR * 100 + ROPE_VERSION_PATCH;
}

rope_status rope_context_create(const rope_config* config, rope_context** out) {
  return Create("rope_context_create", &config, 1, out);
}

rope_status rope_context_create_sets(const rope_config* const* configs, int32_t count,
                                     rope_context** out) {
  static constexpr char kFunction[] = "rope_context_create_sets";
  if (configs == nullptr) return Null(kFunction, "configs");
  if (count < 1 || count > kMaxFrequencySets) {
    return Fail(ROPE_ERROR_INVALID_ARGUMENT, "%s: count (%d) must be from 1 to %d", kFunction,
                count, kMaxFrequencySets);
  }
  return Create(kFunction, configs, count, out);
}

void rope_context_destroy(rope_context* context) { delete context; }

rope_status rope_config_next_change(const rope_config* config, int64_t seq_len, int64_t* next) {
  static constexpr char kFunction[] = "rope_config_next_change";
  if (next == nullptr) return Null(kFunction, "next");
  if (seq_len < 0) {
    return Fail(ROPE_ERROR_INVALID_ARGUMENT, "%s: seq_len (%lld) must not be negative", kFunction,
                static_cast<long long>(seq_len));
  }
  Config checked;
  if (rope_status s = CheckConfig(kFunction, config, &checked, SeqLen::kAny)) return s;
  *next = LengthsLike(checked, seq_len).End();
  return ROPE_OK;
}

rope_status rope_config_digest(const rope_config* config, rope_digest same,
                               rope_digest_text* digest) {
  static constexpr char kFunction[] = "rope_config_digest";
  if (digest == nullptr) return Null(kFunction, "digest");
  if (rope_status s = CheckSame(kFunction, same)) return s;
  return Guard(kFunction, [=]() -> rope_status {
    std::string text;
    if (rope_status s = DigestOf(kFunction, config, same, &text)) return s;
    *digest = AsDigest(text);
    return ROPE_OK;
  });
}

rope_status rope_context_info(const rope_context* context, int32_t freq_set, rope_info* info) {
  static constexpr char kFunction[] = "rope_context_info";
  if (rope_status s = CheckSet(kFunction, context, freq_set)) return s;
  if (info == nullptr) return Null(kFunction, "info");
  if (rope_status s = CheckStruct(kFunction, "info", info)) return s;
  const FrequencySet& set = context->sets[static_cast<size_t>(freq_set)];
  rope_info values{};
  values.struct_size = info->struct_size;
  values.head_dim = context->head_dim;
  values.rotary_dim = context->rotary_dim;
  values.rotary_offset = context->rotary_offset;
  values.pairs = context->pairs;
  values.axes = context->axes;
  values.freq_sets = static_cast<int32_t>(context->sets.size());
  values.freq_heads = context->freq_heads > 1 ? context->freq_heads : 0;
  values.inv_freq_count = static_cast<int32_t>(set.inv_freq.size());
  values.attention_factor = set.attention_factor;
  values.softmax_factor = set.softmax_factor;
  values.valid_below = set.valid_below;
  values.valid_from = set.valid_from;
  std::memcpy(info, &values, std::min<size_t>(info->struct_size, sizeof(values)));
  return ROPE_OK;
}

rope_status rope_context_inv_freq(const rope_context* context, int32_t freq_set, double* out,
                                  int32_t count) {
  static constexpr char kFunction[] = "rope_context_inv_freq";
  if (rope_status s = CheckSet(kFunction, context, freq_set)) return s;
  if (out == nullptr) return Null(kFunction, "out");
  const auto& values = context->sets[static_cast<size_t>(freq_set)].inv_freq;
  if (count < 0 || static_cast<size_t>(count) != values.size()) {
    return Fail(ROPE_ERROR_INVALID_ARGUMENT, "%s: count (%d) must be the number of %s (%zu)",
                kFunction, count, context->sums ? "axes * freq_heads * pairs" : "pairs",
                values.size());
  }
  if (!IsAligned(out, alignof(double))) {
    return Fail(ROPE_ERROR_INVALID_ARGUMENT, "%s: out (%p) must be aligned to %zu bytes", kFunction,
                static_cast<void*>(out), alignof(double));
  }
  std::copy(values.begin(), values.end(), out);
  return ROPE_OK;
}

const char* rope_context_backend(const rope_context* context) {
  return context != nullptr ? context->backend_name : "";
}

rope_status rope_apply_thd(const rope_context* context, rope_dtype dtype, int64_t tokens,
                           const int64_t* positions, void* q, int32_t q_heads, void* k,
                           int32_t k_heads) {
  static constexpr char kFunction[] = "rope_apply_thd";
  static constexpr Names kNames = {"", "positions", "q", "k", "", "", "", {}};
  if (context != nullptr &&
      (!context->backend->host_memory || context->axes != 1 || context->sets.size() != 1)) {
    return Fail(
        ROPE_ERROR_INVALID_ARGUMENT,
        "%s: context (of %s, with %d axes and %zu frequency sets) must work in main memory and "
        "have one axis and one frequency set: use rope_apply_qk",
        kFunction, context->backend->name, context->axes, context->sets.size());
  }
  if (context != nullptr && context->freq_heads != 1) {
    return Fail(ROPE_ERROR_INVALID_ARGUMENT,
                "%s: context (with %d freq_heads) must have frequencies that all heads share: use "
                "rope_apply_qk",
                kFunction, context->freq_heads);
  }
  rope_qk_args args = ROPE_INIT(rope_qk_args);
  args.batch = 1;
  args.tokens = tokens;
  args.positions.kind = ROPE_POSITIONS_IDS_T;
  args.positions.ids_i64 = positions;
  if (tokens > 0) {  // an empty rank's pointers may be NULL
    if (positions == nullptr) return Null(kFunction, "positions");
    if (!IsAligned(positions, alignof(int64_t))) {
      return Fail(ROPE_ERROR_INVALID_ARGUMENT, "%s: positions (%p) must be aligned to %zu bytes",
                  kFunction, static_cast<const void*>(positions), alignof(int64_t));
    }
    if (!IsDtype(dtype)) {
      return dtype == 0 ? Fail(ROPE_ERROR_INVALID_ARGUMENT, "%s: dtype (0) is required", kFunction)
                        : Fail(ROPE_ERROR_UNSUPPORTED,
                               "%s: dtype (%s) must be F32, F16 or BF16 in this version", kFunction,
                               DtypeText(dtype).text);
    }
    if (tokens > INT64_MAX / static_cast<int64_t>(sizeof(int64_t))) {
      return Fail(ROPE_ERROR_INVALID_ARGUMENT,
                  "%s: tokens (%lld): their positions reach beyond the address space", kFunction,
                  static_cast<long long>(tokens));
    }
    if (rope_status s = ThdTensor("q", dtype, q, q_heads, &args.q)) return s;
    if (rope_status s = ThdTensor("k", dtype, k, k_heads, &args.k)) return s;
  }
  return Apply(kFunction, kNames, context, &args);
}

rope_status rope_apply_qk(const rope_context* context, const rope_qk_args* args) {
  return Apply("rope_apply_qk", kNamesOfArgs, context, args);
}

int64_t rope_cos_sin_width(rope_cos_sin_format format, int32_t pairs) {
  return IsFormat(format) && pairs > 0 ? kCosSinFormats[format].Width(pairs) : 0;
}

int32_t rope_cos_sin_tensors(rope_cos_sin_format format) {
  return IsFormat(format) ? kCosSinFormats[format].tensors : 0;
}

rope_status rope_cos_sin_fill(const rope_context* context, int64_t batch, int64_t tokens,
                              const rope_positions* positions, const rope_cos_sin* out,
                              void* stream) {
  FillPlan plan;
  if (rope_status s = MakeFillPlan("rope_cos_sin_fill", context, batch, tokens, positions, out,
                                   stream, &plan)) {
    return s;
  }
  return batch == 0 || tokens == 0 ? ROPE_OK : context->backend->fill(plan);
}

rope_status rope_shard_ids(int64_t batch, int64_t tokens, const rope_positions* positions,
                           int64_t* ids, int64_t* numbers) {
  return WriteShardIds("rope_shard_ids", batch, tokens, positions, ids, numbers);
}

rope_status rope_prepared_create(const rope_context* context, const rope_qk_args* args,
                                 rope_prepared** out) {
  static constexpr char kFunction[] = "rope_prepared_create";
  if (out == nullptr) return Null(kFunction, "out");
  return Guard(kFunction, [&]() -> rope_status {
    std::unique_ptr<rope_prepared> prepared;
    if (rope_status s = Prepare(kFunction, context, args, &prepared)) return s;
    *out = prepared.release();
    return ROPE_OK;
  });
}

rope_status rope_prepared_apply(const rope_prepared* prepared, const rope_qk_data* data) {
  return ApplyPrepared(prepared, data);
}

void rope_prepared_destroy(rope_prepared* prepared) { delete prepared; }
