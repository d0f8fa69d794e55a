// Rows of caches as engines of MLA lay them out, of bytes that tensors of several dtypes and their
// scales share: against packers written from the public descriptions of these rows, which each
// names. For any machine; what it is compared with is turned and normed by the CPU, each in a call
// of its own.
#ifndef LIBROPE_TESTS_SUPPORT_MLA_ROWS_H_
#define LIBROPE_TESTS_SUPPORT_MLA_ROWS_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "support/codes.h"
#include "support/elements.h"
#include "support/handles.h"
#include "support/machine.h"
#include "support/random.h"

namespace rope::testing {

class MlaRows {
 public:
  explicit MlaRows(Machine* machine) : machine_(machine) {}

  // 512 e4m3 of the latent, normed or not, four f32 scales of 128 channels each; 64 bf16 that turn.
  // In the same row, 656 bytes: FlashMLA's README, "FP8 KV Cache", and V32_FP8Sparse of quant.py in
  // its tests, whose scales are powers of two (those of vLLM's fp8_ds_mla are any). In a cache of
  // their own beside rows of 528 bytes: quantize_k_cache_separate of SGLang's dsa/quant_k_cache.py.
  void ExpectFourGroups(int row_bytes, bool power_of_two, bool normed);
  // DeepSeek-V4: rows of 448 e4m3 and 64 bf16 that turn; behind the rows of a page, eight bytes a
  // token: seven e8m0 scales of 64 channels each, and a byte that nobody writes, 584 bytes
  // together. The bytes of a page are a multiple of 576: MODEL1_FP8Sparse of quant.py in FlashMLA's
  // tests, and SGLang's deepseek_v4_memory_pool.py. Normed: over all 512 channels, by a call that
  // norms and turns them where they are, storing the span, and one with a NOPE context that codes
  // the others.
  void ExpectScalesBehindRows(int page_size, bool normed);
  // 576 bytes: 512 and 64 e4m3 with one scale that was given: concat_and_cache_mla of vLLM's
  // cache_kernels.cu.
  void ExpectOneScale();
  // 132 bytes, the keys of DeepSeek-V3.2's indexer: in a page all rows of 128 e4m3, then a scale in
  // f32 for each: kv_cache_cast_to_fp8 of test_attention.py in DeepGEMM's tests, and
  // indexer_k_quant_and_cache of vLLM's cache_kernels.cu. The first half of a head turns; normed:
  // behind a LayerNorm with bias.
  void ExpectIndexer(bool normed);
  // A decode step with absorbed weights: 512 channels of a query that do not turn and 64 that do,
  // from two tensors into rows of 576 e4m3.
  void ExpectAbsorbedQueries();
  // A prefill step: in each head of the keys, 128 channels of its own and the 64 that all share.
  void ExpectPrefillKeys();

 private:
  static constexpr int kTokens = 37, kPageSize = 16, kPages = 4, kSpan = 64;

  // bf16 numbers of one head a token, and slots for them.
  struct Rows {
    explicit Rows(int width, int page_size = kPageSize) : width(width), values(kTokens * width) {
      Random r(static_cast<uint64_t>(width));
      for (uint16_t& value : values) {
        WriteElement(ROPE_DTYPE_BF16, &value,
                     (r.Below(4001) - 2000) / 128.0 * std::ldexp(1, -r.Pick(0, 9)));
      }
      for (int t = 0; t < kTokens; ++t) slots.push_back((t * 29 + 5) % (kPages * page_size));
    }

    float At(int token, int channel) const {
      return static_cast<float>(ReadElement(ROPE_DTYPE_BF16, &values[token * width + channel]));
    }
    uint16_t* Row(int token) { return &values[token * width]; }
    rope_tensor Tensor(int first, int channels) {
      rope_tensor t{};
      t.data = &values[first];
      t.dtype = ROPE_DTYPE_BF16;
      t.heads = 1;
      t.head_dim = channels;
      SetStrides(&t, 0, width, 0);
      return t;
    }
    // Channels [first, first + channels) by a call on the CPU that does nothing else.
    Rows After(const rope_config& config, int first, int channels, const rope_norm* norm) const {
      Rows after = *this;
      rope_fused fused = ROPE_INIT(rope_fused);
      fused.k_norm = norm;
      rope_qk_args args = Args(1, kTokens);
      args.k = after.Tensor(first, channels);
      args.positions = Offset(100);
      args.fused = norm != nullptr ? &fused : nullptr;
      EXPECT_OK(rope_apply_qk(Create(config).get(), &args));
      return after;
    }

    int width;
    std::vector<uint16_t> values;
    std::vector<int64_t> slots;
  };

  // The memory of a cache, whose bytes all differ from their neighbours, and what describes it.
  struct Cache {
    Cache(const Rows& rows, int64_t page_bytes, int page_size = kPageSize)
        : bytes(static_cast<size_t>(kPages * page_bytes)) {
      for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<uint8_t>(i * 37 + i / 256);
      cache.kind = ROPE_SLOTS_MAPPED;
      cache.pages = kPages;
      cache.page_size = page_size;
      cache.slots_i64 = rows.slots.data();
      cache.slots_length = kTokens;
    }

    std::vector<uint8_t> bytes;
    rope_kv_cache cache = ROPE_INIT(rope_kv_cache);
  };

  // Weights and biases of a norm that rounds to bf16, as a kernel of its own would.
  struct Norm {
    Norm(rope_norm_kind kind, int channels) {
      Random r(7);
      for (int i = 0; i < 2 * channels; ++i) {
        WriteElement(ROPE_DTYPE_BF16, &parameters.emplace_back(), r.Pick(-100, 300) / 128.0);
      }
      norm.kind = kind;
      norm.eps = 1e-6;
      norm.rounding = ROPE_NORM_ROUNDING_ROUNDED;
      norm.weight = parameters.data();
      norm.weight_dtype = ROPE_DTYPE_BF16;
      if (kind == ROPE_NORM_KIND_LAYER_BIAS) norm.bias = parameters.data() + channels;
    }

    std::vector<uint16_t> parameters;
    rope_norm norm = ROPE_INIT(rope_norm);
  };

  static rope_tensor Strided(void* data, rope_dtype dtype, int width, int64_t page, int64_t slot) {
    rope_tensor t{};
    t.data = data;
    t.dtype = dtype;
    t.heads = 1;
    t.head_dim = width;
    SetStrides(&t, page, slot, 0);
    return t;
  }
  static float PowerOfTwoAbove(float value) { return std::exp2(std::ceil(std::log2(value))); }
  static float Largest(const Rows& rows, int token, int first, int count) {
    float largest = 0;
    for (int c = first; c < first + count; ++c) {
      largest = std::max(largest, std::fabs(rows.At(token, c)));
    }
    return largest;
  }
  static rope_config Nope(int width) {
    rope_config config = Config(width);
    config.scaling = ROPE_SCALING_NOPE;
    return config;
  }

  // `rows` are latents, then the span that turns.
  void Store(const rope_config& config, Rows* rows, Cache* cache, std::vector<uint8_t>* keys,
             const Norm* norm) {
    rope_fused fused = ROPE_INIT(rope_fused);
    fused.cache = &cache->cache;
    fused.v = rows->Tensor(0, rows->width - kSpan);
    if (norm != nullptr) fused.v_norm = &norm->norm;
    rope_qk_args args = Args(1, kTokens);
    args.k = rows->Tensor(rows->width - kSpan, kSpan);
    args.positions = Offset(100);
    args.fused = &fused;
    std::vector<MemorySpan> memory = {SpanOf(rows->values, true), SpanOf(rows->slots, true),
                                      SpanOf(cache->bytes)};
    if (keys != nullptr) memory.push_back(SpanOf(*keys));
    if (norm != nullptr) memory.push_back(SpanOf(norm->parameters, true));
    Apply(config, args, memory);
  }
  void Apply(const rope_config& config, const rope_qk_args& args,
             const std::vector<MemorySpan>& memory) {
    ASSERT_OK(machine_->Apply(machine_->Create({config}), args, memory, &random_));
  }

  static rope_config OfSpan() { return Config(kSpan, ROPE_PAIRING_INTERLEAVED); }

  Machine* machine_;
  Random random_{1};
};

inline void MlaRows::ExpectFourGroups(int row_bytes, bool power_of_two, bool normed) {
  const bool apart = row_bytes == 528;
  Rows rows(512 + kSpan);
  const Norm norm(ROPE_NORM_KIND_RMS, 512);
  const Rows turned = rows.After(OfSpan(), 512, kSpan, nullptr),
             latents = normed ? rows.After(Nope(512), 0, 512, &norm.norm) : rows;
  Cache cache(rows, kPageSize * row_bytes);
  std::vector<uint8_t> want = cache.bytes;
  std::vector<uint8_t> keys(apart ? kPages * kPageSize * 2 * kSpan : 0, 0x33), want_keys = keys;
  for (int t = 0; t < kTokens; ++t) {
    uint8_t* const row = &want[rows.slots[t] * row_bytes];
    for (int g = 0; g < 4; ++g) {
      float scale = std::max(Largest(latents, t, 128 * g, 128) / 448.0f, 1e-4f);
      if (power_of_two) scale = PowerOfTwoAbove(scale);
      const float inverse = 1.0f / scale;
      std::memcpy(row + 512 + 4 * g, &scale, 4);
      for (int c = 128 * g; c < 128 * (g + 1); ++c) {
        row[c] = NearestCode(Code::kE4m3, latents.At(t, c) * inverse);
      }
    }
    std::memcpy(apart ? &want_keys[rows.slots[t] * 2 * kSpan] : row + 528,
                &turned.values[t * turned.width + 512], 2 * kSpan);
  }
  rope_scale scale = ROPE_INIT(rope_scale);
  scale.computed = 1;
  scale.dtype = ROPE_DTYPE_F32;
  scale.group = 128;
  scale.power_of_two = power_of_two ? 1 : 0;
  scale.min_scale = 1e-4;
  scale.data = cache.bytes.data() + 512;
  scale.stride_batch = kPageSize * row_bytes / 4;
  scale.stride_token = row_bytes / 4;
  cache.cache.v =
      Strided(cache.bytes.data(), ROPE_DTYPE_F8_E4M3, 512, kPageSize * row_bytes, row_bytes);
  cache.cache.v.scale = &scale;
  cache.cache.k = apart ? Strided(keys.data(), ROPE_DTYPE_BF16, kSpan, kPageSize * kSpan, kSpan)
                        : Strided(cache.bytes.data() + 528, ROPE_DTYPE_BF16, kSpan,
                                  kPageSize * row_bytes / 2, row_bytes / 2);
  Store(OfSpan(), &rows, &cache, &keys, normed ? &norm : nullptr);
  EXPECT_TRUE(cache.bytes == want);
  EXPECT_TRUE(keys == want_keys);
}

inline void MlaRows::ExpectScalesBehindRows(int page_size, bool normed) {
  constexpr int kRow = 576, kCodes = 448;
  const int page_bytes = (page_size * 584 + kRow - 1) / kRow * kRow;
  Rows rows(kCodes + kSpan, page_size);
  const Norm norm(ROPE_NORM_KIND_RMS, kCodes + kSpan);
  const Rows first =
      normed ? rows.After(Nope(kCodes + kSpan), 0, kCodes + kSpan, &norm.norm) : rows;
  const Rows turned = first.After(OfSpan(), kCodes, kSpan, nullptr);
  Cache cache(rows, page_bytes, page_size);
  std::vector<uint8_t> want = cache.bytes;
  for (int t = 0; t < kTokens; ++t) {
    uint8_t* const page = &want[rows.slots[t] / page_size * page_bytes];
    const int64_t slot = rows.slots[t] % page_size;
    uint8_t* const row = page + slot * kRow;
    for (int g = 0; g < 7; ++g) {
      const float scale = PowerOfTwoAbove(std::max(Largest(first, t, 64 * g, 64) / 448.0f, 1e-4f));
      page[page_size * kRow + slot * 8 + g] = static_cast<uint8_t>(127 + std::ilogb(scale));
      for (int c = 64 * g; c < 64 * (g + 1); ++c) {
        row[c] = NearestCode(Code::kE4m3, first.At(t, c) / scale);
      }
    }
    std::memcpy(row + kCodes, &turned.values[t * turned.width + kCodes], 2 * kSpan);
  }
  rope_scale scale = ROPE_INIT(rope_scale);
  scale.computed = 1;
  scale.dtype = ROPE_DTYPE_E8M0;
  scale.group = 64;
  scale.power_of_two = 1;
  scale.min_scale = 1e-4;
  scale.data = cache.bytes.data() + page_size * kRow;
  scale.stride_batch = page_bytes;
  scale.stride_token = 8;
  rope_tensor codes = Strided(cache.bytes.data(), ROPE_DTYPE_F8_E4M3, kCodes, page_bytes, kRow);
  codes.scale = &scale;
  const rope_tensor span =
      Strided(cache.bytes.data() + kCodes, ROPE_DTYPE_BF16, kSpan, page_bytes / 2, kRow / 2);
  cache.cache.k = span;
  if (!normed) {
    cache.cache.v = codes;
    Store(OfSpan(), &rows, &cache, nullptr, nullptr);
    EXPECT_TRUE(cache.bytes == want);
    return;
  }
  rope_config whole = Config(kCodes + kSpan, ROPE_PAIRING_INTERLEAVED);
  whole.rotary_dim = kSpan;
  whole.rotary_offset = kCodes;
  rope_fused fused = ROPE_INIT(rope_fused);
  fused.cache = &cache.cache;
  fused.k_norm = &norm.norm;
  rope_qk_args args = Args(1, kTokens);
  args.k = args.k_out = rows.Tensor(0, kCodes + kSpan);
  args.positions = Offset(100);
  args.fused = &fused;
  const std::vector<MemorySpan> memory = {SpanOf(rows.values), SpanOf(rows.slots, true),
                                          SpanOf(cache.bytes), SpanOf(norm.parameters, true)};
  Apply(whole, args, memory);
  EXPECT_TRUE(rows.values == turned.values);
  fused.k_norm = nullptr;
  args.k = rows.Tensor(0, kCodes);
  args.k_out = rope_tensor{};
  cache.cache.k = codes;
  Apply(Nope(kCodes), args, memory);
  EXPECT_TRUE(cache.bytes == want);
}

inline void MlaRows::ExpectOneScale() {
  constexpr int kRow = 576;
  Rows rows(512 + kSpan);
  const Rows turned = rows.After(OfSpan(), 512, kSpan, nullptr);
  Cache cache(rows, kPageSize * kRow);
  std::vector<uint8_t> want = cache.bytes;
  for (int t = 0; t < kTokens; ++t) {
    for (int c = 0; c < kRow; ++c) {
      want[rows.slots[t] * kRow + c] = NearestCode(Code::kE4m3, turned.At(t, c) * 4.0f);
    }
  }
  rope_scale scale = ROPE_INIT(rope_scale);
  scale.value = 0.25f;
  scale.round_first = 1;  // as a kernel behind that of the rotation would
  cache.cache.v = Strided(cache.bytes.data(), ROPE_DTYPE_F8_E4M3, 512, kPageSize * kRow, kRow);
  cache.cache.k =
      Strided(cache.bytes.data() + 512, ROPE_DTYPE_F8_E4M3, kSpan, kPageSize * kRow, kRow);
  cache.cache.v.scale = cache.cache.k.scale = &scale;
  Store(OfSpan(), &rows, &cache, nullptr, nullptr);
  EXPECT_TRUE(cache.bytes == want);
}

inline void MlaRows::ExpectIndexer(bool normed) {
  constexpr int kRow = 128, kPage = kPageSize * 132;
  rope_config config = Config(kRow);
  config.rotary_dim = kSpan;
  Rows rows(kRow);
  const Norm norm(ROPE_NORM_KIND_LAYER_BIAS, kRow);
  const Rows first = normed ? rows.After(Nope(kRow), 0, kRow, &norm.norm) : rows,
             turned = first.After(Config(kSpan), 0, kSpan, nullptr);
  Cache cache(rows, kPage);
  std::vector<uint8_t> want = cache.bytes;
  for (int t = 0; t < kTokens; ++t) {
    const int64_t page = rows.slots[t] / kPageSize, slot = rows.slots[t] % kPageSize;
    const float scale = std::max(Largest(turned, t, 0, kRow), 1e-4f) / 448.0f;
    const float inverse = 1.0f / scale;
    std::memcpy(&want[page * kPage + kPageSize * kRow + slot * 4], &scale, 4);
    for (int c = 0; c < kRow; ++c) {
      want[page * kPage + slot * kRow + c] = NearestCode(Code::kE4m3, turned.At(t, c) * inverse);
    }
  }
  rope_scale scale = ROPE_INIT(rope_scale);
  scale.computed = 1;
  scale.round_first = 1;
  scale.dtype = ROPE_DTYPE_F32;
  scale.min_scale = 1e-4 / 448;
  scale.data = cache.bytes.data() + kPageSize * kRow;
  scale.stride_batch = kPage / 4;
  scale.stride_token = 1;
  cache.cache.k = Strided(cache.bytes.data(), ROPE_DTYPE_F8_E4M3, kRow, kPage, kRow);
  cache.cache.k.scale = &scale;
  rope_fused fused = ROPE_INIT(rope_fused);
  fused.cache = &cache.cache;
  if (normed) fused.k_norm = &norm.norm;
  rope_qk_args args = Args(1, kTokens);
  args.k = rows.Tensor(0, kRow);
  args.positions = Offset(100);
  args.fused = &fused;
  Apply(config, args,
        {SpanOf(rows.values, true), SpanOf(rows.slots, true), SpanOf(cache.bytes),
         SpanOf(norm.parameters, true)});
  EXPECT_TRUE(cache.bytes == want);
}

inline void MlaRows::ExpectAbsorbedQueries() {
  constexpr int kRow = 576;
  Rows rows(kRow);
  const Rows turned = rows.After(OfSpan(), 512, kSpan, nullptr);
  std::vector<uint8_t> queries(kTokens * kRow, 0x33), want = queries;
  for (int t = 0; t < kTokens; ++t) {
    for (int c = 0; c < kRow; ++c) {
      want[t * kRow + c] = NearestCode(Code::kE4m3, turned.At(t, c) * 4.0f);
    }
  }
  rope_scale scale = ROPE_INIT(rope_scale);
  scale.value = 0.25f;
  scale.round_first = 1;
  rope_fused fused = ROPE_INIT(rope_fused);
  fused.rest = rows.Tensor(0, 512);
  fused.rest_out = Strided(queries.data(), ROPE_DTYPE_F8_E4M3, 512, 0, kRow);
  rope_qk_args args = Args(1, kTokens);
  args.q = rows.Tensor(512, kSpan);
  args.q_out = Strided(queries.data() + 512, ROPE_DTYPE_F8_E4M3, kSpan, 0, kRow);
  args.q_out.scale = fused.rest_out.scale = &scale;
  args.positions = Offset(100);
  args.fused = &fused;
  Apply(OfSpan(), args, {SpanOf(rows.values, true), SpanOf(queries)});
  EXPECT_TRUE(queries == want);
}

inline void MlaRows::ExpectPrefillKeys() {
  constexpr int kHeads = 5, kOwn = 128, kHead = kOwn + kSpan;
  Rows rows(512 + kSpan);
  const Rows turned = rows.After(OfSpan(), 512, kSpan, nullptr);
  std::vector<uint16_t> own(kTokens * kHeads * kOwn), keys(kTokens * kHeads * kHead), want = keys;
  for (size_t i = 0; i < own.size(); ++i) own[i] = static_cast<uint16_t>(i);
  for (int h = 0; h < kTokens * kHeads; ++h) {
    std::memcpy(&want[h * kHead], &own[h * kOwn], 2 * kOwn);
    std::memcpy(&want[h * kHead + kOwn], &turned.values[h / kHeads * turned.width + 512],
                2 * kSpan);
  }
  const auto part = [&](int first, int width) {
    rope_tensor t = Tensor(&keys[first], ROPE_DTYPE_BF16, kHeads);
    t.head_dim = width;
    SetStrides(&t, 0, kHeads * kHead, kHead);
    return t;
  };
  rope_fused fused = ROPE_INIT(rope_fused);
  fused.rest = Tensor(own.data(), ROPE_DTYPE_BF16, kHeads);
  fused.rest.head_dim = kOwn;
  fused.rest_out = part(0, kOwn);
  rope_qk_args args = Args(1, kTokens);
  args.k = rows.Tensor(512, kSpan);
  args.k_out = part(kOwn, kSpan);
  args.positions = Offset(100);
  args.fused = &fused;
  Apply(OfSpan(), args, {SpanOf(rows.values, true), SpanOf(own, true), SpanOf(keys)});
  EXPECT_TRUE(keys == want);
}

// All of them.
inline void ExpectMlaRows(Machine* machine) {
  MlaRows rows(machine);
  for (const bool normed : {false, true}) {
    SCOPED_TRACE(normed ? "normed" : "not normed");
    for (const bool power_of_two : {false, true}) {
      SCOPED_TRACE(power_of_two ? "powers of two" : "any scale");
      rows.ExpectFourGroups(656, power_of_two, normed);
      rows.ExpectFourGroups(528, power_of_two, normed);
    }
    rows.ExpectIndexer(normed);
    for (const int page_size : {16, 64}) rows.ExpectScalesBehindRows(page_size, normed);
  }
  rows.ExpectOneScale();
  rows.ExpectAbsorbedQueries();
  rows.ExpectPrefillKeys();
}

}  // namespace rope::testing

#endif  // LIBROPE_TESTS_SUPPORT_MLA_ROWS_H_
