// Multi-head latent attention of DeepSeek-V3 with FlashMLA's rows of 656 bytes: 512 channels of the
// latent become e4m3 with an f32 scale for each 128 of them, the key of 64 channels turns and stays
// in bf16 behind them; `mla` has 128 query heads of 192 channels as well, whose last 64 turn in
// place, `mla_row` has none. Beside it the same by separate calls (the rotation in place, a copy of
// the keys, a NOPE call that codes the latents), and what does no more than move the same bytes: a
// sweep over the spans of q, and the row's bytes stored from the same numbers.
#include "mla.h"

#include <benchmark/benchmark.h>
#include <librope/rope.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "check.h"
#include "handles.h"
#include "sweeps.h"
#include "tensors.h"

namespace bench {
namespace {

constexpr int kHeads = 128, kHead = 192, kSpan = 64, kLatent = 512, kGroup = 128;
constexpr int kInput = kLatent + kSpan;  // a token of latent and key, in bf16
constexpr int kScales = kLatent, kKey = kScales + kLatent / kGroup * 4, kRow = kKey + 2 * kSpan;
constexpr int kPageSize = 64;         // FlashMLA's
constexpr int64_t kLeastPages = 512;  // more slots than the caches hold
static_assert(kRow == 656);

Context Make(const rope_config& config) {
  rope_context* context = nullptr;
  return Context(rope_context_create(&config, &context) == ROPE_OK ? context : nullptr);
}
rope_config Turning() {
  rope_config config = ROPE_INIT(rope_config);
  config.head_dim = kHead;
  config.rotary_dim = kSpan;
  config.rotary_offset = kHead - kSpan;
  config.pairing = ROPE_PAIRING_INTERLEAVED;
  config.theta = 10000;
  return config;
}
// Of latents, as k of a call of their own.
rope_config Coding() {
  rope_config config = ROPE_INIT(rope_config);
  config.head_dim = kLatent;
  config.scaling = ROPE_SCALING_NOPE;
  return config;
}

// One head a token, of rows of so many elements.
rope_tensor Strided(void* data, rope_dtype dtype, int width, int64_t row) {
  rope_tensor t = Heads(data, dtype, 1, ROPE_LAYOUT_STRIDED);
  t.head_dim = width;
  t.stride_batch = kPageSize * row;
  t.stride_token = row;
  t.stride_head = width;
  return t;
}

// What all contenders of a group share.
struct Step {
  explicit Step(int64_t tokens)
      : tokens(tokens), page_count(std::max(tokens / kPageSize, kLeastPages)) {
    q = MakeBuffer(ROPE_DTYPE_BF16, tokens * kHeads * kHead);
    input = MakeBuffer(ROPE_DTYPE_BF16, tokens * kInput);
    cache = MakeBuffer(ROPE_DTYPE_I8, CacheBytes());
    std::vector<int64_t> order(static_cast<size_t>(page_count));
    std::iota(order.begin(), order.end(), int64_t{0});
    std::shuffle(order.begin(), order.end(), std::mt19937(7));
    for (int64_t t = 0; t < tokens; ++t) {
      slots.push_back(order[t / kPageSize] * kPageSize + t % kPageSize);
    }
  }

  size_t CacheBytes() const { return static_cast<size_t>(page_count) * kPageSize * kRow; }
  size_t QBytes() const { return static_cast<size_t>(tokens) * kHeads * kHead * 2; }
  size_t InputBytes() const { return static_cast<size_t>(tokens) * kInput * 2; }
  uint16_t* Latent(int64_t token) const {
    return static_cast<uint16_t*>(input.get()) + token * kInput;
  }
  uint16_t* Key(int64_t token) const { return Latent(token) + kLatent; }
  uint8_t* Row(int64_t token) const {
    return static_cast<uint8_t*>(cache.get()) + slots[token] * kRow;
  }
  void CopyKeys() const {
    for (int64_t t = 0; t < tokens; ++t) std::memcpy(Row(t) + kKey, Key(t), 2 * kSpan);
  }
  // The row's bytes as they would be if coding were a choice of bytes.
  void CopyRows() const {
    for (int64_t t = 0; t < tokens; ++t) {
      const uint8_t* const from = reinterpret_cast<const uint8_t*>(Latent(t));
      uint8_t* const __restrict to = Row(t);
      for (int i = 0; i < kLatent; ++i) to[i] = from[2 * i + 1];
      std::memcpy(to + kScales, from, kKey - kScales);
      std::memcpy(to + kKey, Key(t), 2 * kSpan);
    }
  }

  int64_t tokens, page_count;
  Buffer q, input, cache;
  std::vector<int64_t> slots;
};

enum class Way { kOneCall, kPrepared, kThenCodes };

// What a contender calls, described once.
class Call {
 public:
  Call(const Step& step, bool with_q, Way way)
      : step_(step), way_(way), context_(Make(Turning())), nope_(Make(Coding())) {
    uint8_t* const rows = static_cast<uint8_t*>(step.cache.get());
    scale_.computed = 1;
    scale_.dtype = ROPE_DTYPE_F32;
    scale_.group = kGroup;
    scale_.data = rows + kScales;
    scale_.stride_batch = kPageSize * kRow / 4;
    scale_.stride_token = kRow / 4;
    cache_.kind = ROPE_SLOTS_MAPPED;
    cache_.pages = step.page_count;
    cache_.page_size = kPageSize;
    cache_.slots_i64 = step.slots.data();
    cache_.slots_length = step.tokens;
    const rope_tensor latents = Strided(step.Latent(0), ROPE_DTYPE_BF16, kLatent, kInput);
    rope_tensor codes = Strided(rows, ROPE_DTYPE_F8_E4M3, kLatent, kRow);
    codes.scale = &scale_;
    fused_.cache = &cache_;
    args_.batch = 1;
    args_.tokens = step.tokens;
    args_.positions.kind = ROPE_POSITIONS_OFFSET;
    args_.positions.offset = 1000;
    stored_ = args_;
    args_.k = Strided(step.Key(0), ROPE_DTYPE_BF16, kSpan, kInput);
    if (with_q) args_.q = Heads(step.q.get(), ROPE_DTYPE_BF16, kHeads);
    if (way == Way::kThenCodes) {
      stored_.k = latents;
      cache_.k = codes;
      stored_.fused = &fused_;
      return;
    }
    cache_.k = Strided(rows + kKey, ROPE_DTYPE_BF16, kSpan, kRow / 2);
    cache_.v = codes;
    fused_.v = latents;
    args_.fused = &fused_;
    if (way != Way::kPrepared) return;
    data_.q = std::exchange(args_.q.data, nullptr);
    data_.k = std::exchange(args_.k.data, nullptr);
    data_.v = std::exchange(fused_.v.data, nullptr);
    data_.cache_k = std::exchange(cache_.k.data, nullptr);
    data_.cache_v = std::exchange(cache_.v.data, nullptr);
    data_.cache_v_scales = std::exchange(scale_.data, nullptr);
    prepared_ = Prepare(context_.get(), args_);
  }
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  rope_status operator()() const {
    if (way_ == Way::kPrepared) return rope_prepared_apply(prepared_.get(), &data_);
    rope_status status = rope_apply_qk(context_.get(), &args_);
    if (way_ != Way::kThenCodes) return status;
    step_.CopyKeys();
    return status | rope_apply_qk(nope_.get(), &stored_);
  }

  // The rows, and q, of numbers as they were made.
  Bytes After() const {
    Bytes q, input, after;
    AddBytes(&q, step_.q.get(), step_.QBytes());
    AddBytes(&input, step_.input.get(), step_.InputBytes());
    std::memset(step_.cache.get(), 0x33, step_.CacheBytes());
    if ((*this)() == ROPE_OK) {
      AddBytes(&after, step_.q.get(), step_.QBytes());
      AddBytes(&after, step_.cache.get(), step_.CacheBytes());
    }
    std::memcpy(step_.q.get(), q.data(), q.size());
    std::memcpy(step_.input.get(), input.data(), input.size());
    return after;
  }

 private:
  const Step& step_;
  Way way_;
  Context context_, nope_;
  rope_scale scale_ = ROPE_INIT(rope_scale);
  rope_kv_cache cache_ = ROPE_INIT(rope_kv_cache);
  rope_fused fused_ = ROPE_INIT(rope_fused);
  rope_qk_args args_ = ROPE_INIT(rope_qk_args), stored_ = args_;
  Prepared prepared_;
  rope_qk_data data_ = ROPE_INIT(rope_qk_data);
};

void Mla(bool with_q, int64_t tokens) {
  const std::string group = (with_q ? "mla_" : "mla_row_") + std::to_string(tokens);
  // Made by the contender that runs first.
  const auto shared = std::make_shared<std::unique_ptr<Step>>();
  const auto add = [=](const std::string& contender, auto body) {
    benchmark::RegisterBenchmark((group + "/" + contender).c_str(), [=](benchmark::State& state) {
      if (*shared == nullptr) {
        *shared = std::make_unique<Step>(tokens);
        const Bytes by_one = Call(**shared, with_q, Way::kOneCall).After();
        ExpectSame(group, "one call", by_one, "the calls apart",
                   Call(**shared, with_q, Way::kThenCodes).After());
        ExpectSame(group, "one call", by_one, "a prepared one",
                   Call(**shared, with_q, Way::kPrepared).After());
      }
      body(state, **shared);
      state.counters["tokens"] = static_cast<double>(tokens);
    });
  };
  const auto call = [=](const char* contender, Way way) {
    add(contender, [=](benchmark::State& state, const Step& step) {
      const Call run(step, with_q, way);
      rope_status status = ROPE_OK;
      for (auto _ : state) {
        status |= run();
        benchmark::ClobberMemory();
      }
      if (status != ROPE_OK) state.SkipWithError(rope_last_error());
    });
  };
  call("rope", Way::kOneCall);
  call("rope_prepared", Way::kPrepared);
  call("rope_then_codes", Way::kThenCodes);
  if (!with_q) {
    add("move_row", [](benchmark::State& state, const Step& step) {
      for (auto _ : state) {
        step.CopyRows();
        benchmark::ClobberMemory();
      }
    });
    return;
  }
  static volatile float one = 1;
  for (const Sweep& sweep : RmwSweeps()) {
    // A span has 128 bytes, of which a sweep takes four vectors at once.
    if (4 * sweep.vector_bytes > 2 * kSpan) continue;
    add("move_" + sweep.name, [=](benchmark::State& state, const Step& step) {
      for (auto _ : state) {
        uint16_t* span = static_cast<uint16_t*>(step.q.get()) + kHead - kSpan;
        for (int64_t i = 0; i < step.tokens * kHeads; ++i, span += kHead) {
          sweep.run(reinterpret_cast<float*>(span), 2 * kSpan, one);
        }
        step.CopyRows();
        benchmark::ClobberMemory();
      }
    });
  }
}

}  // namespace

void RegisterMla() {
  for (const int64_t tokens : {1, 8, 64, 512, 2048}) {
    Mla(true, tokens);
    Mla(false, tokens);
  }
  Mla(false, 8192);
  Mla(false, 32768);
}

}  // namespace bench
