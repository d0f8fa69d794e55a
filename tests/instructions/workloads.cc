// Fixed pieces of work for callgrind: each is repeated, and the instructions of all repetitions are
// written out under its name. instructions_test.py starts this program and compares.
#include <valgrind/callgrind.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "librope/model.h"
#include "librope/rope.h"

namespace {

using std::string_literals::operator""s;

constexpr int kRepetitions = 8;  // instructions_test.py divides by it
constexpr int kQueryHeads = 32, kKeyHeads = 8;

[[noreturn]] void Fail(const char* what) {
  std::fprintf(stderr, "%s: %s\n", what, rope_last_error());
  std::exit(1);
}

// Does the work once unmeasured, so that what happens at a first call does not count.
void Measure(const std::string& name, const std::function<rope_status()>& work) {
  if (work() != ROPE_OK) Fail(name.c_str());
  CALLGRIND_ZERO_STATS;
  for (int i = 0; i < kRepetitions; ++i) {
    if (work() != ROPE_OK) Fail(name.c_str());
  }
  CALLGRIND_DUMP_STATS_AT(name.c_str());
}

rope_config Llama(int head_dim) {
  rope_config config = ROPE_INIT(rope_config);
  config.head_dim = head_dim;
  config.theta = 500000;
  config.pairing = ROPE_PAIRING_HALVES;
  return config;
}

class Context {
 public:
  explicit Context(const rope_config& config) : head_dim_(config.head_dim) {
    if (rope_context_create(&config, &context_) != ROPE_OK) Fail("rope_context_create");
  }
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;
  ~Context() { rope_context_destroy(context_); }
  const rope_context* get() const { return context_; }
  int head_dim() const { return head_dim_; }

 private:
  rope_context* context_ = nullptr;
  int head_dim_;
};

// A call on contiguous q and k, and their memory.
class Call {
 public:
  Call(const Context& context, rope_dtype dtype, int64_t tokens, int query_heads, int key_heads)
      : context_(context), q_(Floats(tokens * query_heads)), k_(Floats(tokens * key_heads)) {
    args.batch = 1;
    args.tokens = tokens;
    args.positions.kind = ROPE_POSITIONS_OFFSET;
    args.positions.offset = 4711;
    args.q.data = q_.data();
    args.q.dtype = dtype;
    args.q.layout = ROPE_LAYOUT_BSHD;
    args.q.heads = query_heads;
    if (key_heads == 0) return;
    args.k = args.q;
    args.k.data = k_.data();
    args.k.heads = key_heads;
  }
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  rope_status Run() const { return rope_apply_qk(context_.get(), &args); }

  rope_qk_args args = ROPE_INIT(rope_qk_args);

 private:
  // Enough for every dtype; zero in all of them.
  std::vector<float> Floats(int64_t heads) const {
    return std::vector<float>(static_cast<size_t>(heads * context_.head_dim()));
  }

  const Context& context_;
  std::vector<float> q_, k_;
};

struct Dtype {
  const char* name;
  rope_dtype dtype;
};
constexpr Dtype kF32 = {"f32", ROPE_DTYPE_F32}, kF16 = {"f16", ROPE_DTYPE_F16},
                kBf16 = {"bf16", ROPE_DTYPE_BF16};

void MeasureCall(const std::string& name, const rope_config& config, Dtype dtype, int64_t tokens,
                 int query_heads = kQueryHeads, int key_heads = kKeyHeads) {
  const Context context(config);
  const Call call(context, dtype.dtype, tokens, query_heads, key_heads);
  Measure(name + "_" + dtype.name, [&] { return call.Run(); });
}

// Decode and a short prefill, as every engine calls them.
void Heads() {
  for (const rope_pairing pairing : {ROPE_PAIRING_HALVES, ROPE_PAIRING_INTERLEAVED}) {
    rope_config config = Llama(128);
    config.pairing = pairing;
    const std::string name = pairing == ROPE_PAIRING_HALVES ? "halves" : "interleaved";
    for (const Dtype dtype : {kF32, kF16, kBf16}) {
      MeasureCall("one_head_" + name, config, dtype, 1, 1, 0);
      MeasureCall("decode_" + name, config, dtype, 1);
      MeasureCall("64_tokens_" + name, config, dtype, 64);
    }
  }
  for (const int head_dim : {64, 72, 80, 96, 112, 192, 256}) {
    for (const Dtype dtype : {kF32, kBf16}) {
      MeasureCall("16_tokens_head_dim_" + std::to_string(head_dim), Llama(head_dim), dtype, 16);
    }
  }
}

// What changes how rows are made, rounded or read.
void Rows() {
  rope_config exact = Llama(128);
  exact.angle = ROPE_ANGLE_EXACT;
  MeasureCall("decode_exact", exact, kBf16, 1);
  const Context far_away(Llama(128));
  Call far(far_away, ROPE_DTYPE_BF16, 1, kQueryHeads, kKeyHeads);
  far.args.positions.offset = 1 << 28;
  Measure("decode_far_bf16", [&] { return far.Run(); });
  rope_config eager = Llama(128);
  eager.rounding = ROPE_ROUNDING_EAGER;
  MeasureCall("decode_eager", eager, kBf16, 1);
  MeasureCall("decode_eager", eager, kF16, 1);
  rope_config native = Llama(128);
  native.rounding = ROPE_ROUNDING_NATIVE;
  MeasureCall("decode_native", native, kF16, 1);
  rope_config axes = Llama(128);
  axes.axes = 3;
  axes.mrope_section[0] = 16;
  axes.mrope_section[1] = axes.mrope_section[2] = 24;
  const Context three(axes);
  Call mrope(three, ROPE_DTYPE_BF16, 16, kQueryHeads, kKeyHeads);
  std::vector<int32_t> ids(3 * 16);
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>(7 * i);
  mrope.args.positions = rope_positions{};
  mrope.args.positions.kind = ROPE_POSITIONS_IDS_ABT;
  mrope.args.positions.ids_i32 = ids.data();
  Measure("16_tokens_mrope_bf16", [&] { return mrope.Run(); });

  const Context context(Llama(128));
  for (const rope_cos_sin_format format :
       {ROPE_COS_SIN_PACKED, ROPE_COS_SIN_FULL_HALVES, ROPE_COS_SIN_ANGLES}) {
    constexpr int kTokens = 16;
    std::vector<float> data(kTokens * 128), sin(kTokens * 128);
    rope_cos_sin rows = ROPE_INIT(rope_cos_sin);
    rows.format = format;
    rows.dtype = ROPE_DTYPE_F32;
    rows.pairs = 64;
    rows.batch = 1;
    rows.data = data.data();
    if (rope_cos_sin_tensors(format) == 2) rows.sin = sin.data();
    const std::string name = format == ROPE_COS_SIN_PACKED        ? "packed"
                             : format == ROPE_COS_SIN_FULL_HALVES ? "full"
                                                                  : "angles";
    rope_positions positions{};
    positions.kind = ROPE_POSITIONS_OFFSET;
    Measure("fill_16_rows_" + name, [&] {
      return rope_cos_sin_fill(context.get(), 1, kTokens, &positions, &rows, nullptr);
    });
    if (format == ROPE_COS_SIN_ANGLES) continue;
    Call call(context, ROPE_DTYPE_BF16, kTokens, kQueryHeads, kKeyHeads);
    call.args.positions = rope_positions{};
    call.args.cos_sin = &rows;
    Measure("16_tokens_with_rows_" + name + "_bf16", [&] { return call.Run(); });
    if (format != ROPE_COS_SIN_FULL_HALVES) continue;
    for (size_t i = 0; i < data.size(); i += 128)
      data[i] = 1;  // and 0 for the pair's other channel
    for (const Dtype dtype : {kF32, kBf16}) {
      call.args.q.dtype = call.args.k.dtype = dtype.dtype;
      Measure("16_tokens_with_rows_per_channel_"s + dtype.name, [&] { return call.Run(); });
    }
  }
}

// Where the call comes from, and where its results go.
void Calls() {
  const Context context(Llama(128));
  std::vector<float> q(kQueryHeads * 128), k(kKeyHeads * 128);
  const int64_t position = 4711;
  Measure("decode_thd_f32", [&] {
    return rope_apply_thd(context.get(), ROPE_DTYPE_F32, 1, &position, q.data(), kQueryHeads,
                          k.data(), kKeyHeads);
  });
  rope_config partial = Llama(128);
  partial.rotary_dim = 32;
  const Context quarter(partial);
  constexpr int kTokens = 16;
  Call call(quarter, ROPE_DTYPE_BF16, kTokens, kQueryHeads, kKeyHeads);
  std::vector<uint16_t> q_out(kTokens * kQueryHeads * 128), k_out(kTokens * kKeyHeads * 128);
  call.args.q_out = call.args.q;
  call.args.q_out.data = q_out.data();
  call.args.k_out = call.args.k;
  call.args.k_out.data = k_out.data();
  Measure("16_tokens_partial_out_of_place_bf16", [&] { return call.Run(); });
}

// A decode step of 32 layers: what is made once, and what each layer takes.
void Prepared() {
  const Context halves(Llama(128));
  Call alone(halves, ROPE_DTYPE_F32, 1, 1, 0);
  rope_qk_data head = ROPE_INIT(rope_qk_data);
  head.q = alone.args.q.data;
  alone.args.q.data = nullptr;
  rope_prepared* one_head = nullptr;
  if (rope_prepared_create(halves.get(), &alone.args, &one_head) != ROPE_OK) Fail("prepare");
  Measure("one_head_prepared_f32", [&] { return rope_prepared_apply(one_head, &head); });
  rope_prepared_destroy(one_head);
  for (const rope_pairing pairing : {ROPE_PAIRING_HALVES, ROPE_PAIRING_INTERLEAVED}) {
    rope_config config = Llama(128);
    config.pairing = pairing;
    const Context context(config);
    for (const Dtype dtype : {kF32, kBf16}) {
      Call call(context, dtype.dtype, 1, kQueryHeads, kKeyHeads);
      rope_qk_data data = ROPE_INIT(rope_qk_data);
      data.q = call.args.q.data;
      data.k = call.args.k.data;
      call.args.q.data = call.args.k.data = nullptr;
      const std::string name =
          std::string(pairing == ROPE_PAIRING_HALVES ? "halves_" : "interleaved_") + dtype.name;
      Measure("prepare_" + name, [&] {
        rope_prepared* prepared = nullptr;
        const rope_status status = rope_prepared_create(context.get(), &call.args, &prepared);
        rope_prepared_destroy(prepared);
        return status;
      });
      rope_prepared* prepared = nullptr;
      if (rope_prepared_create(context.get(), &call.args, &prepared) != ROPE_OK) Fail("prepare");
      Measure("decode_prepared_" + name, [&] { return rope_prepared_apply(prepared, &data); });
      rope_prepared_destroy(prepared);
    }
  }
}

// A step into pages of 16 slots: of the dtype of k, or in 8 bits by a given scale, or by one
// computed for each head.
void Appends() {
  constexpr int kPages = 8, kPageSize = 16, kSlots = kPages * kPageSize;
  const Context context(Llama(128));
  std::vector<float> memory(2 * kSlots * kKeyHeads * 128), scales(2 * kSlots * kKeyHeads);
  std::vector<float> v(static_cast<size_t>(64 * kKeyHeads * 128));
  std::vector<int64_t> slots(64);
  for (int i = 0; i < 64; ++i) slots[static_cast<size_t>(i)] = 5 + i;
  const auto append = [&](const std::string& name, Dtype dtype, rope_dtype stored, int64_t tokens,
                          bool prepares) {
    Call call(context, dtype.dtype, tokens, kQueryHeads, kKeyHeads);
    rope_scale scale[2] = {ROPE_INIT(rope_scale), ROPE_INIT(rope_scale)};
    rope_kv_cache cache = ROPE_INIT(rope_kv_cache);
    cache.kind = ROPE_SLOTS_MAPPED;
    cache.pages = kPages;
    cache.page_size = kPageSize;
    cache.slots_i64 = slots.data();
    cache.slots_length = tokens;
    for (const int n : {0, 1}) {
      rope_tensor& t = n == 0 ? cache.k : cache.v;
      t.data = &memory[static_cast<size_t>(n) * memory.size() / 2];
      t.dtype = stored;
      t.layout = ROPE_LAYOUT_NHD;
      t.heads = kKeyHeads;
      t.head_dim = 128;
      if (stored == dtype.dtype) continue;
      t.scale = &scale[n];
      scale[n].value = 0.01f;
      if (stored == ROPE_DTYPE_F8_E4M3) continue;
      scale[n].value = 0;
      scale[n].computed = 1;
      scale[n].dtype = ROPE_DTYPE_F32;
      scale[n].data = &scales[static_cast<size_t>(n) * scales.size() / 2];
      scale[n].stride_batch = kPageSize * kKeyHeads;
      scale[n].stride_token = kKeyHeads;
      scale[n].stride_head = 1;
    }
    rope_fused fused = ROPE_INIT(rope_fused);
    fused.cache = &cache;
    fused.v = call.args.k;
    fused.v.data = v.data();
    fused.v.head_dim = 128;
    call.args.fused = &fused;
    if (!prepares) {
      Measure(name + "_" + dtype.name, [&] { return call.Run(); });
      return;
    }
    rope_qk_data data = ROPE_INIT(rope_qk_data);
    data.q = std::exchange(call.args.q.data, nullptr);
    data.k = std::exchange(call.args.k.data, nullptr);
    data.v = std::exchange(fused.v.data, nullptr);
    data.cache_k = std::exchange(cache.k.data, nullptr);
    data.cache_v = std::exchange(cache.v.data, nullptr);
    rope_prepared* prepared = nullptr;
    if (rope_prepared_create(context.get(), &call.args, &prepared) != ROPE_OK) Fail("prepare");
    Measure(name + "_" + dtype.name, [&] { return rope_prepared_apply(prepared, &data); });
    rope_prepared_destroy(prepared);
  };
  for (const Dtype dtype : {kF32, kBf16}) {
    append("append", dtype, dtype.dtype, 1, false);
    append("append_prepared", dtype, dtype.dtype, 1, true);
  }
  append("append_to_e4m3", kBf16, ROPE_DTYPE_F8_E4M3, 1, false);
  append("append_to_i8", kBf16, ROPE_DTYPE_I8, 1, false);
  append("append_64_tokens_to_e4m3", kBf16, ROPE_DTYPE_F8_E4M3, 64, false);
  append("append_64_tokens_to_i8", kBf16, ROPE_DTYPE_I8, 64, false);
}

constexpr char kLlama31[] = R"({
  "model_type": "llama", "hidden_size": 4096, "num_attention_heads": 32, "num_hidden_layers": 32,
  "rope_theta": 500000.0, "max_position_embeddings": 131072,
  "rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
                   "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}})";

void Create() {
  const auto create = [](const rope_config& config) {
    rope_context* context = nullptr;
    const rope_status status = rope_context_create(&config, &context);
    rope_context_destroy(context);
    return status;
  };
  Measure("create_default", [&] { return create(Llama(128)); });
  rope_config exact = Llama(128);
  exact.angle = ROPE_ANGLE_EXACT;
  Measure("create_exact", [&] { return create(exact); });
  rope_config yarn = Llama(128);
  yarn.scaling = ROPE_SCALING_YARN;
  yarn.factor = 4;
  yarn.original_max_position_embeddings = 32768;
  Measure("create_yarn", [&] { return create(yarn); });
  Measure("read_config_json", [&] {
    rope_model* model = nullptr;
    const rope_status status = rope_model_create(kLlama31, std::strlen(kLlama31), &model);
    rope_model_destroy(model);
    return status;
  });
}

}  // namespace

int main() {
  const Context context(Llama(128));
  // The head that instructions_test.py reads.
  std::printf("%s\n%s\n%d\n", rope_context_backend(context.get()), __VERSION__, kRepetitions);
  std::fflush(stdout);
  Heads();
  Rows();
  Calls();
  Prepared();
  Appends();
  Create();
  return 0;
}
