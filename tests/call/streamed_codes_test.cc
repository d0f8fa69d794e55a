// Calls that no cache holds write codes of 8 bits past the caches, where these are whole lines:
// they are those of many small calls on the same tokens, which do not, and nothing else is written.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "math/element.h"
#include "support/enumerators.h"
#include "support/handles.h"
#include "support/random.h"
#include "support/targets.h"

namespace rope::testing {
namespace {

constexpr int kHeads = 4, kTokens = 5000, kPageSize = 16, kPages = kTokens / kPageSize + 2;
constexpr int kPlaces = kPages * kPageSize, kLine = 64, kCanary = 0x55;
constexpr int kTensors = 3;  // q as an output, k and v in pages

struct Case {
  rope_dtype from, to;
  int head_dim;
  rope_scale scale;
  bool normed, hnd;
  int beside;  // bytes behind a line at which outputs begin
};

class StreamedCodesTest : public TargetTest {
 protected:
  struct Result {
    std::vector<uint8_t> codes;
    std::vector<float> scales;
  };

  // By calls on `most` tokens.
  static void Run(const Case& c, const Context& context, std::vector<char>* in, int most,
                  Result* result) {
    const int64_t token_bytes = kHeads * c.head_dim, of_tensor = kPlaces * token_bytes;
    result->codes.assign(static_cast<size_t>(kTensors * of_tensor + 2 * kLine), kCanary);
    result->scales.assign(static_cast<size_t>(kTensors * kPlaces * kHeads * 2), 0.75f);
    uint8_t* const first_line =
        result->codes.data() + kLine - reinterpret_cast<uintptr_t>(result->codes.data()) % kLine;
    std::vector<int64_t> slots(kTokens);
    for (int i = 0; i < kTokens; ++i) {  // a page after the other, from the last but one on
      slots[static_cast<size_t>(i)] = (kPages - 2 - i / kPageSize) * kPageSize + i % kPageSize;
    }
    rope_norm norm = ROPE_INIT(rope_norm);
    norm.kind = ROPE_NORM_KIND_RMS_PLAIN;
    norm.eps = 1e-6;
    norm.rounding = ROPE_NORM_ROUNDING_ROUNDED;
    for (int first = 0; first < kTokens; first += most) {
      const int tokens = std::min(most, kTokens - first);
      rope_scale scales[kTensors];
      rope_tensor inputs[kTensors], outputs[kTensors];
      for (int n = 0; n < kTensors; ++n) {
        scales[n] = c.scale;
        const bool cached = n != 0;
        if (c.scale.value == 0) {
          const int groups = c.scale.group == 0 ? 1 : c.head_dim / c.scale.group,
                    of_token = kHeads * groups;
          scales[n].stride_head = groups;
          scales[n].stride_token = of_token;
          scales[n].stride_batch = (cached ? kPageSize : kPlaces) * of_token;
          scales[n].data =
              &result->scales[static_cast<size_t>((n * kPlaces + (cached ? 0 : first)) * of_token)];
        }
        const int64_t element = (int64_t{n} * kTokens + first) * token_bytes;
        inputs[n] = Tensor(in->data() + element * ElementSize(c.from), c.from, kHeads);
        outputs[n] =
            Tensor(first_line + c.beside + n * of_tensor + (cached ? 0 : first * token_bytes), c.to,
                   kHeads,
                   !cached ? ROPE_LAYOUT_BSHD
                   : c.hnd ? ROPE_LAYOUT_HND
                           : ROPE_LAYOUT_NHD);
        outputs[n].scale = &scales[n];
      }
      rope_kv_cache cache = ROPE_INIT(rope_kv_cache);
      cache.kind = ROPE_SLOTS_MAPPED;
      cache.pages = kPages;
      cache.page_size = kPageSize;
      cache.slots_i64 = &slots[static_cast<size_t>(first)];
      cache.slots_length = tokens;
      cache.k = outputs[1];
      cache.v = outputs[2];
      cache.v.head_dim = inputs[2].head_dim = c.head_dim;
      rope_fused fused = ROPE_INIT(rope_fused);
      fused.cache = &cache;
      fused.v = inputs[2];
      if (c.normed) fused.q_norm = fused.k_norm = &norm;
      rope_qk_args args = Args(1, tokens);
      args.q = inputs[0];
      args.k = inputs[1];
      args.q_out = outputs[0];
      args.positions = Offset(first);
      args.fused = &fused;
      ASSERT_OK(rope_apply_qk(context.get(), &args));
    }
    // Where the first line begins differs.
    result->codes.erase(result->codes.begin(),
                        result->codes.begin() + (first_line - result->codes.data()));
    result->codes.resize(static_cast<size_t>(kTensors * of_tensor + kLine));
  }
};
INSTANTIATE_TARGETS(StreamedCodesTest);

TEST_P(StreamedCodesTest, AreThoseOfSmallCalls) {
  Random r(20261202);
  for (int n = 0; n < 24; ++n) {
    Case c = {};
    c.from = n % 2 == 0 ? ROPE_DTYPE_F32 : ROPE_DTYPE_BF16;
    c.to = r.Of({ROPE_DTYPE_F8_E4M3, ROPE_DTYPE_F8_E5M2, ROPE_DTYPE_I8});
    c.head_dim = r.Of({64, 96, 128, 192});  // 96: not whole lines
    c.scale = ROPE_INIT(rope_scale);
    c.scale.value = n % 4 < 2 ? 0.0625f : 0.0f;
    c.scale.round_first = r.Sometimes(3);
    if (c.scale.value == 0) {
      c.scale.dtype = ROPE_DTYPE_F32;
      c.scale.computed = !r.Sometimes(3);
      c.scale.group = r.Of({0, c.head_dim / 2});
    }
    c.normed = n % 3 == 0;
    c.hnd = r.Sometimes(2);
    c.beside = n % 5 == 4 ? 1 + static_cast<int>(r.Below(63)) : 0;
    const rope_pairing pairing = r.Sometimes(3) ? ROPE_PAIRING_INTERLEAVED : ROPE_PAIRING_HALVES;
    SCOPED_TRACE(::testing::Message()
                 << n << ": " << c.from << " to " << c.to << ", head_dim " << c.head_dim);
    const Context context = Create(Config(c.head_dim, pairing));
    std::vector<char> in(static_cast<size_t>(int64_t{kTensors} * kTokens * kHeads * c.head_dim *
                                             ElementSize(c.from)));
    for (int64_t i = 0; i < int64_t{kTensors} * kTokens * kHeads * c.head_dim; ++i) {
      StoreElement(c.from, in.data(), i,
                   r.Sometimes(5000)
                       ? BitsFloat(static_cast<uint32_t>(r.Next()))
                       : static_cast<float>(r.Below(1 << 20) - (1 << 19)) / (1 << 17));
    }
    Result large, small;
    Run(c, context, &in, kTokens, &large);
    Run(c, context, &in, 64, &small);
    ASSERT_TRUE(large.codes == small.codes);
    ASSERT_EQ(
        std::memcmp(large.scales.data(), small.scales.data(), large.scales.size() * sizeof(float)),
        0);
    if (HasFatalFailure()) return;
  }
}

// Codes of keys and values that go to other pages: those of values as they are, or by other scales,
// in groups that are lines or not.
TEST_P(StreamedCodesTest, AreThoseOfSmallCallsWhereTheyAreMoved) {
  constexpr int kMoved = 12000, kMovedPages = kMoved / kPageSize, kDim = 192;
  constexpr int64_t kOfToken = kHeads * kDim;
  Random r(20261204);
  const Context context = Create(Config(kDim));
  for (const int group : {0, 96, 48, 64, -1}) {  // -1: as they are
    const rope_dtype dtype = r.Of({ROPE_DTYPE_F8_E4M3, ROPE_DTYPE_I8});
    std::vector<uint8_t> codes(2 * kMoved * kOfToken + kLine);
    for (uint8_t& code : codes) code = static_cast<uint8_t>(r.Next());
    std::vector<float> scales(2 * kMoved * kHeads);
    for (float& scale : scales) scale = std::ldexp(1.0f, static_cast<int>(r.Below(8)) - 4);
    std::vector<int64_t> slots(kMoved);
    for (int i = 0; i < kMoved; ++i) slots[static_cast<size_t>(i)] = i;
    int64_t distance = 5;
    // `most`: tokens of a call.
    const auto run = [&](int most) {
      Result result;
      result.codes.assign(2 * kMoved * kOfToken + 2 * kLine, kCanary);
      result.scales.assign(2 * kMoved * kHeads * 4, 0.75f);
      uint8_t* const first_line =
          result.codes.data() + kLine - reinterpret_cast<uintptr_t>(result.codes.data()) % kLine;
      rope_scale from_scales[2], to_scales[2];
      rope_tensor from[2], to[2];
      for (int n = 0; n < 2; ++n) {  // k, v
        const auto describe = [&](uint8_t* data, float* of, int groups, rope_scale* scale) {
          *scale = ROPE_INIT(rope_scale);
          scale->dtype = ROPE_DTYPE_F32;
          scale->computed = 1;
          scale->group = groups == 1 ? 0 : kDim / groups;
          scale->stride_head = groups;
          scale->stride_token = kHeads * groups;
          scale->stride_batch = kPageSize * kHeads * groups;
          scale->data = of;
          rope_tensor tensor = Tensor(data, dtype, kHeads, ROPE_LAYOUT_NHD);
          tensor.scale = scale;
          if (n == 1) tensor.head_dim = kDim;
          return tensor;
        };
        from[n] = describe(&codes[static_cast<size_t>(n * kMoved * kOfToken)],
                           &scales[static_cast<size_t>(n * kMoved * kHeads)], 1, &from_scales[n]);
        to[n] = describe(first_line + n * kMoved * kOfToken,
                         &result.scales[static_cast<size_t>(n * kMoved * kHeads * 4)],
                         n == 0 || group <= 0 ? 1 : kDim / group, &to_scales[n]);
        if (n == 1 && group == 0) to_scales[n].power_of_two = 1;
      }
      for (int first = 0; first < kMoved; first += most) {
        rope_kv_cache source = ROPE_INIT(rope_kv_cache);
        source.kind = ROPE_SLOTS_MAPPED;
        source.pages = kMovedPages;
        source.page_size = kPageSize;
        source.slots_i64 = &slots[static_cast<size_t>(first)];
        source.slots_length = std::min(most, kMoved - first);
        rope_kv_cache cache = source;
        source.k = from[0];
        source.v = from[1];
        cache.k = to[0];
        cache.v = to[1];
        rope_fused fused = ROPE_INIT(rope_fused);
        fused.source = &source;
        fused.cache = &cache;
        rope_qk_args args = ROPE_INIT(rope_qk_args);
        args.batch = 1;
        args.tokens = static_cast<int32_t>(source.slots_length);
        args.operation = ROPE_OPERATION_SHIFT;
        args.positions.kind = ROPE_POSITIONS_IDS_STRIDED;
        args.positions.ids_i64 = &distance;
        args.fused = &fused;
        EXPECT_OK(rope_apply_qk(context.get(), &args));
      }
      result.codes.erase(result.codes.begin(),
                         result.codes.begin() + (first_line - result.codes.data()));
      result.codes.resize(2 * kMoved * kOfToken + kLine);
      return result;
    };
    const Result large = run(kMoved), small = run(64);
    ASSERT_TRUE(large.codes == small.codes) << group;
    ASSERT_EQ(
        std::memcmp(large.scales.data(), small.scales.data(), large.scales.size() * sizeof(float)),
        0)
        << group;
  }
}

}  // namespace
}  // namespace rope::testing
