// Calls that no cache holds write codes of 8 bits past the caches, where these are whole lines:
// they are those of many small calls on the same tokens, which do not, and nothing else is written.
#include <gtest/gtest.h>

#include <algorithm>
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

}  // namespace
}  // namespace rope::testing
