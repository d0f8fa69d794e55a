// Rows of caches as engines lay them out, of bytes that tensors of several dtypes and their scales
// share: against packers written from the public descriptions of these rows.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "support/codes.h"
#include "support/elements.h"
#include "support/handles.h"
#include "support/random.h"

namespace rope::testing {
namespace {

constexpr int kTokens = 37, kPageSize = 16, kPages = 4, kSpan = 64;

// bf16 numbers of one head a token: `latent` channels that do not turn, then the span that does.
struct Rows {
  explicit Rows(int latent) : latent(latent), values(kTokens * (latent + kSpan)) {
    Random r(static_cast<uint64_t>(latent));
    for (uint16_t& value : values) {
      WriteElement(ROPE_DTYPE_BF16, &value,
                   (r.Below(4001) - 2000) / 128.0 * std::ldexp(1, -r.Pick(0, 9)));
    }
    for (int t = 0; t < kTokens; ++t) slots.push_back((t * 29 + 5) % (kPages * kPageSize));
  }

  float At(int token, int channel) const {
    return static_cast<float>(
        ReadElement(ROPE_DTYPE_BF16, &values[token * (latent + kSpan) + channel]));
  }
  rope_tensor Tensor(int first, int width) {
    rope_tensor t{};
    t.data = &values[first];
    t.dtype = ROPE_DTYPE_BF16;
    t.heads = 1;
    t.head_dim = width;
    SetStrides(&t, 0, latent + kSpan, 0);
    return t;
  }
  // The spans, turned: bf16, token after token.
  std::vector<uint16_t> Turned(const Context& context) {
    std::vector<uint16_t> spans;
    for (int t = 0; t < kTokens; ++t) {
      const auto first = values.begin() + t * (latent + kSpan) + latent;
      spans.insert(spans.end(), first, first + kSpan);
    }
    rope_qk_args args = Args(1, kTokens);
    args.k = rope::testing::Tensor(spans.data(), ROPE_DTYPE_BF16, 1);
    args.positions = Offset(100);
    EXPECT_OK(rope_apply_qk(context.get(), &args));
    return spans;
  }

  int latent;
  std::vector<uint16_t> values;
  std::vector<int64_t> slots;
};

// The memory of a cache and what describes it.
struct Cache {
  explicit Cache(Rows* rows, int64_t page_bytes) : bytes(kPages * page_bytes, 0x33) {
    cache.kind = ROPE_SLOTS_MAPPED;
    cache.pages = kPages;
    cache.page_size = kPageSize;
    cache.slots_i64 = rows->slots.data();
    cache.slots_length = kTokens;
  }

  void Store(Rows* rows, const Context& context) {
    rope_fused fused = ROPE_INIT(rope_fused);
    fused.cache = &cache;
    if (cache.v.heads != 0) fused.v = rows->Tensor(0, rows->latent);
    rope_qk_args args = Args(1, kTokens);
    args.k = rows->Tensor(rows->latent, kSpan);
    args.positions = Offset(100);
    args.fused = &fused;
    ASSERT_OK(rope_apply_qk(context.get(), &args));
  }

  std::vector<uint8_t> bytes;
  rope_kv_cache cache = ROPE_INIT(rope_kv_cache);
};

rope_tensor Strided(uint8_t* data, rope_dtype dtype, int width, int64_t page, int64_t slot) {
  rope_tensor t{};
  t.data = data;
  t.dtype = dtype;
  t.heads = 1;
  t.head_dim = width;
  SetStrides(&t, page, slot, 0);
  return t;
}

float PowerOfTwoAbove(float value) { return std::exp2(std::ceil(std::log2(value))); }

float Largest(const Rows& rows, int token, int first, int count) {
  float largest = 0;
  for (int c = first; c < first + count; ++c) {
    largest = std::max(largest, std::fabs(rows.At(token, c)));
  }
  return largest;
}

// 512 e4m3, four f32 scales of 128 channels each, powers of two; 64 bf16 that turn, in the same row
// or, where that is all of a row, in a cache of their own.
void ExpectFourGroups(int row_bytes) {
  const bool apart = row_bytes == 528;
  const Context context = Create(Config(kSpan, ROPE_PAIRING_INTERLEAVED));
  Rows rows(512);
  Cache cache(&rows, kPageSize * row_bytes);
  std::vector<uint8_t> want = cache.bytes;
  std::vector<uint8_t> keys(apart ? kPages * kPageSize * 2 * kSpan : 0, 0x33), want_keys = keys;
  const std::vector<uint16_t> turned = rows.Turned(context);
  for (int t = 0; t < kTokens; ++t) {
    uint8_t* const row = &want[rows.slots[t] * row_bytes];
    for (int g = 0; g < 4; ++g) {
      const float scale = PowerOfTwoAbove(std::max(Largest(rows, t, 128 * g, 128) / 448.0f, 1e-4f));
      std::memcpy(row + 512 + 4 * g, &scale, 4);
      for (int c = 128 * g; c < 128 * (g + 1); ++c) {
        row[c] = NearestCode(Code::kE4m3, rows.At(t, c) / scale);
      }
    }
    std::memcpy(apart ? &want_keys[rows.slots[t] * 2 * kSpan] : row + 528, &turned[t * kSpan],
                2 * kSpan);
  }
  rope_scale scale = ROPE_INIT(rope_scale);
  scale.computed = 1;
  scale.dtype = ROPE_DTYPE_F32;
  scale.group = 128;
  scale.power_of_two = 1;
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
  cache.Store(&rows, context);
  EXPECT_TRUE(cache.bytes == want);
  EXPECT_TRUE(keys == want_keys);
}

TEST(MlaRows, Of656BytesAreThoseOfFlashMla) { ExpectFourGroups(656); }
TEST(MlaRows, Of528BytesLeaveTheKeysApart) { ExpectFourGroups(528); }

// A decode step with absorbed weights: 512 channels of a query that do not turn and 64 that do,
// from two tensors into rows of 576 e4m3.
TEST(MlaRows, OfAbsorbedQueriesHaveRestAndSpan) {
  const Context context = Create(Config(kSpan, ROPE_PAIRING_INTERLEAVED));
  constexpr int kRow = 576;
  Rows rows(512);
  const std::vector<uint16_t> turned = rows.Turned(context);
  std::vector<uint8_t> queries(kTokens * kRow, 0x33), want = queries;
  for (int t = 0; t < kTokens; ++t) {
    for (int c = 0; c < kRow; ++c) {
      const double value =
          c < 512 ? rows.At(t, c) : ReadElement(ROPE_DTYPE_BF16, &turned[t * kSpan + c - 512]);
      want[t * kRow + c] = NearestCode(Code::kE4m3, value * 4.0);
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
  ASSERT_OK(rope_apply_qk(context.get(), &args));
  EXPECT_TRUE(queries == want);
}

// A prefill step: in each head of the keys, 128 channels of its own and the 64 that all share.
TEST(MlaRows, OfPrefillKeysShareTheSpan) {
  const Context context = Create(Config(kSpan, ROPE_PAIRING_INTERLEAVED));
  constexpr int kHeads = 5, kOwn = 128, kHead = kOwn + kSpan;
  Rows rows(512);
  const std::vector<uint16_t> turned = rows.Turned(context);
  std::vector<uint16_t> own(kTokens * kHeads * kOwn), keys(kTokens * kHeads * kHead), want = keys;
  for (size_t i = 0; i < own.size(); ++i) own[i] = static_cast<uint16_t>(i);
  for (int h = 0; h < kTokens * kHeads; ++h) {
    std::memcpy(&want[h * kHead], &own[h * kOwn], 2 * kOwn);
    std::memcpy(&want[h * kHead + kOwn], &turned[h / kHeads * kSpan], 2 * kSpan);
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
  ASSERT_OK(rope_apply_qk(context.get(), &args));
  EXPECT_TRUE(keys == want);
}

// DeepSeek-V4: rows of 448 e4m3 and 64 bf16 that turn; behind the rows of a page, eight bytes a
// token: seven e8m0 scales of 64 channels each.
TEST(MlaRows, Of584BytesAreThoseOfDeepSeekV4) {
  const Context context = Create(Config(kSpan, ROPE_PAIRING_INTERLEAVED));
  constexpr int kRow = 576, kPage = kPageSize * 584;
  Rows rows(448);
  Cache cache(&rows, kPage);
  std::vector<uint8_t> want = cache.bytes;
  const std::vector<uint16_t> turned = rows.Turned(context);
  for (int t = 0; t < kTokens; ++t) {
    const int64_t page = rows.slots[t] / kPageSize, slot = rows.slots[t] % kPageSize;
    uint8_t* const row = &want[page * kPage + slot * kRow];
    for (int g = 0; g < 7; ++g) {
      const float scale = PowerOfTwoAbove(std::max(Largest(rows, t, 64 * g, 64) / 448.0f, 1e-4f));
      want[page * kPage + kPageSize * kRow + slot * 8 + g] =
          static_cast<uint8_t>(127 + std::ilogb(scale));
      for (int c = 64 * g; c < 64 * (g + 1); ++c) {
        row[c] = NearestCode(Code::kE4m3, rows.At(t, c) / scale);
      }
    }
    std::memcpy(row + 448, &turned[t * kSpan], 2 * kSpan);
  }
  rope_scale scale = ROPE_INIT(rope_scale);
  scale.computed = 1;
  scale.dtype = ROPE_DTYPE_E8M0;
  scale.group = 64;
  scale.power_of_two = 1;
  scale.min_scale = 1e-4;
  scale.data = cache.bytes.data() + kPageSize * kRow;
  scale.stride_batch = kPage;
  scale.stride_token = 8;
  cache.cache.v = Strided(cache.bytes.data(), ROPE_DTYPE_F8_E4M3, 448, kPage, kRow);
  cache.cache.v.scale = &scale;
  cache.cache.k = Strided(cache.bytes.data() + 448, ROPE_DTYPE_BF16, kSpan, kPage / 2, kRow / 2);
  cache.Store(&rows, context);
  EXPECT_TRUE(cache.bytes == want);
}

// 512 and 64 e4m3 with one scale that was given.
TEST(MlaRows, Of576BytesHaveOneScale) {
  const Context context = Create(Config(kSpan, ROPE_PAIRING_INTERLEAVED));
  constexpr int kRow = 576;
  Rows rows(512);
  Cache cache(&rows, kPageSize * kRow);
  std::vector<uint8_t> want = cache.bytes;
  const std::vector<uint16_t> turned = rows.Turned(context);
  for (int t = 0; t < kTokens; ++t) {
    uint8_t* const row = &want[rows.slots[t] * kRow];
    for (int c = 0; c < 512; ++c) row[c] = NearestCode(Code::kE4m3, rows.At(t, c) * 4.0f);
    for (int c = 0; c < kSpan; ++c) {
      const auto value = ReadElement(ROPE_DTYPE_BF16, &turned[t * kSpan + c]);
      row[512 + c] = NearestCode(Code::kE4m3, value * 4.0);
    }
  }
  rope_scale scale = ROPE_INIT(rope_scale);
  scale.value = 0.25f;
  scale.round_first = 1;  // as a kernel behind that of the rotation would
  cache.cache.v = Strided(cache.bytes.data(), ROPE_DTYPE_F8_E4M3, 512, kPageSize * kRow, kRow);
  cache.cache.k =
      Strided(cache.bytes.data() + 512, ROPE_DTYPE_F8_E4M3, kSpan, kPageSize * kRow, kRow);
  cache.cache.v.scale = cache.cache.k.scale = &scale;
  cache.Store(&rows, context);
  EXPECT_TRUE(cache.bytes == want);
}

// The keys of an indexer: in a page all rows of 128 e4m3, then a scale in f32 for each. Its first
// half turns, so that the key is one head of 128.
TEST(MlaRows, Of132BytesAreThoseOfAnIndexer) {
  rope_config config = Config(128);
  config.rotary_dim = kSpan;
  config.rotary_offset = 64;
  const Context context = Create(config);
  constexpr int kRow = 128, kPage = kPageSize * 132;
  Rows rows(64);
  Cache cache(&rows, kPage);
  std::vector<uint8_t> want = cache.bytes;
  const Context of_span = Create(Config(kSpan));
  const std::vector<uint16_t> turned = rows.Turned(of_span);
  for (int t = 0; t < kTokens; ++t) {
    const int64_t page = rows.slots[t] / kPageSize, slot = rows.slots[t] % kPageSize;
    float key[128], largest = 1e-4f;
    for (int c = 0; c < 128; ++c) {
      key[c] = c < 64
                   ? rows.At(t, c)
                   : static_cast<float>(ReadElement(ROPE_DTYPE_BF16, &turned[t * kSpan + c - 64]));
      largest = std::max(largest, std::fabs(key[c]));
    }
    const float scale = largest / 448.0f, inverse = 1.0f / scale;
    std::memcpy(&want[page * kPage + kPageSize * kRow + slot * 4], &scale, 4);
    for (int c = 0; c < 128; ++c) {
      want[page * kPage + slot * kRow + c] = NearestCode(Code::kE4m3, key[c] * inverse);
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
  cache.cache.k = Strided(cache.bytes.data(), ROPE_DTYPE_F8_E4M3, 128, kPage, kRow);
  cache.cache.k.scale = &scale;
  rope_fused fused = ROPE_INIT(rope_fused);
  fused.cache = &cache.cache;
  rope_qk_args args = Args(1, kTokens);
  args.k = rows.Tensor(0, 128);
  args.positions = Offset(100);
  args.fused = &fused;
  ASSERT_OK(rope_apply_qk(context.get(), &args));
  EXPECT_TRUE(cache.bytes == want);
}

}  // namespace
}  // namespace rope::testing
