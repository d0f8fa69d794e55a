// Heads of bf16 and f32 that turn and become codes, by a scale of each head or of parts of it,
// given or computed: the scales and codes are those of the numbers that the same call gives in f32.
// Heads of some sizes never leave the registers on their way (cpu/rotations_coded.cc), those of
// others do.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "math/code.h"
#include "math/element.h"
#include "support/codes.h"
#include "support/enumerators.h"
#include "support/handles.h"
#include "support/prepared_call.h"
#include "support/random.h"
#include "support/scales.h"
#include "support/targets.h"

namespace rope::testing {
namespace {

constexpr int kPages = 12, kPageSize = 4, kSlots = kPages * kPageSize, kCanary = 0x55;

// Heads in 8 bits with their scales, in pages or as an output.
struct Codes {
  std::vector<uint8_t> codes;
  std::vector<float> scales;
  rope_scale scale = ROPE_INIT(rope_scale);
  rope_tensor tensor = {};

  // `places`: tokens, or slots of a cache.
  Codes(rope_dtype dtype, int heads, int head_dim, const rope_scale& of, int64_t places,
        bool cached, rope_layout layout)
      : codes(static_cast<size_t>(places * heads * head_dim), kCanary),
        scales(static_cast<size_t>(places * heads * 8), 0.75f),
        scale(of) {
    const int64_t groups = of.group == 0 ? 1 : head_dim / of.group;
    scale.stride_head = groups;
    scale.stride_token = heads * groups;
    scale.stride_batch = (cached ? kPageSize : places) * scale.stride_token;
    scale.data = scales.data();
    tensor = Tensor(codes.data(), dtype, heads, layout);
    tensor.scale = &scale;
  }
  Codes(const Codes&) = delete;
  Codes& operator=(const Codes&) = delete;

  // Where a head's codes, and its scales, begin.
  int64_t CodesAt(int64_t place, int head, int head_dim, bool hnd) const {
    const int64_t heads = tensor.heads;
    if (!hnd) return (place * heads + head) * head_dim;
    return ((place / kPageSize * heads + head) * kPageSize + place % kPageSize) * head_dim;
  }
  char* ScaleAt(std::vector<float>* in, int64_t place, int head, int64_t group) const {
    const int64_t index = place * scale.stride_token + head * scale.stride_head + group;
    return reinterpret_cast<char*>(in->data()) + index * SizeOfScale(scale);
  }
};

// Numbers of the sizes of a model, with some of any bits.
struct Inputs {
  rope_dtype dtype;
  size_t count;
  mutable std::vector<char> bytes;  // for tensors, which are not constant

  Inputs(Random* random, rope_dtype of, int64_t elements)
      : dtype(of),
        count(static_cast<size_t>(elements)),
        bytes(count * static_cast<size_t>(ElementSize(of))) {
    for (size_t i = 0; i < count; ++i) {
      const float value = static_cast<float>(random->Below(1 << 20) - (1 << 19)) / (1 << 17);
      const uint32_t bits =
          random->Sometimes(2000) ? static_cast<uint32_t>(random->Next()) : FloatBits(value);
      const uint32_t element = dtype == ROPE_DTYPE_F32 ? bits : bits >> 16;  // little-endian
      std::memcpy(At(i), &element, static_cast<size_t>(ElementSize(dtype)));
    }
  }
  char* At(size_t i) const { return &bytes[i * static_cast<size_t>(ElementSize(dtype))]; }
};

class CodedScalesTest : public TargetTest {
 protected:
  void Check(Random* random, int head_dim, rope_pairing pairing, rope_dtype dtype, rope_scale of) {
    const int tokens = random->Of({1, 2, 9, 20}), heads = random->Of({1, 3, 8});
    rope_config config = Config(head_dim, pairing);
    std::vector<double> frequencies;
    if (random->Sometimes(4)) {  // of each head
      for (int i = 0; i < heads * head_dim / 2; ++i) frequencies.push_back(1.0 / (1 + i));
      config.frequency = frequencies.data();
      config.freq_heads = heads;
      config.table_length = head_dim / 2;
    }
    const Context context = Create(config);
    const Inputs in(random, random->Of({ROPE_DTYPE_BF16, ROPE_DTYPE_F32}),
                    tokens * 2 * heads * head_dim);
    const size_t of_k = in.count / 2;
    std::vector<int64_t> slots(kSlots);
    for (int i = 0; i < kSlots; ++i) slots[static_cast<size_t>(i)] = (i * 29 + 5) % kSlots;
    if (tokens > 2) slots[2] = -1;
    const bool hnd = random->Sometimes(3);
    Codes q(dtype, heads, head_dim, of, tokens, false, ROPE_LAYOUT_BSHD);
    Codes k(dtype, heads, head_dim, of, kSlots, true, hnd ? ROPE_LAYOUT_HND : ROPE_LAYOUT_NHD);

    rope_qk_args args = Args(1, tokens);
    const rope_layout layout = random->Of({ROPE_LAYOUT_BSHD, ROPE_LAYOUT_BHSD});
    args.q = Tensor(in.At(0), in.dtype, heads, layout);
    args.k = Tensor(in.At(of_k), in.dtype, heads, layout);
    args.positions = Offset(random->Below(100000));
    std::vector<float> turned(in.count);
    rope_fused converts = ROPE_INIT(rope_fused);
    rope_qk_args wide = args;
    wide.fused = &converts;
    wide.q_out = Tensor(turned.data(), ROPE_DTYPE_F32, heads);
    wide.k_out = Tensor(&turned[of_k], ROPE_DTYPE_F32, heads);
    ASSERT_OK(rope_apply_qk(context.get(), &wide));

    std::vector<uint8_t> want_q = q.codes, want_k = k.codes;
    std::vector<float> want_q_scales = q.scales, want_k_scales = k.scales;
    for (int t = 0; t < tokens; ++t) {
      for (int h = 0; h < heads; ++h) {
        const float* const x = &turned[static_cast<size_t>((t * heads + h) * head_dim)];
        Store(q, t, h, false, x, head_dim, &want_q, &want_q_scales);
        const int64_t slot = slots[static_cast<size_t>(t)];
        if (slot >= 0) Store(k, slot, h, hnd, x + of_k, head_dim, &want_k, &want_k_scales);
      }
    }

    rope_kv_cache cache = ROPE_INIT(rope_kv_cache);
    cache.kind = ROPE_SLOTS_MAPPED;
    cache.pages = kPages;
    cache.page_size = kPageSize;
    cache.slots_i64 = slots.data();
    cache.slots_length = tokens;
    cache.k = k.tensor;
    rope_fused fused = ROPE_INIT(rope_fused);
    fused.cache = &cache;
    args.fused = &fused;
    args.q_out = q.tensor;
    const std::vector<float> given = q.scales, given_k = k.scales;
    for (const bool prepared : {false, true}) {
      std::fill(q.codes.begin(), q.codes.end(), kCanary);
      std::fill(k.codes.begin(), k.codes.end(), kCanary);
      q.scales = given;
      k.scales = given_k;
      ASSERT_OK(prepared ? ApplyPrepared(context.get(), args)
                         : rope_apply_qk(context.get(), &args));
      ASSERT_TRUE(q.codes == want_q && k.codes == want_k) << "prepared " << prepared;
      ASSERT_TRUE(HaveSameBits(q.scales, want_q_scales) && HaveSameBits(k.scales, want_k_scales))
          << "prepared " << prepared;
    }
  }

 private:
  static bool HaveSameBits(const std::vector<float>& a, const std::vector<float>& b) {
    return std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
  }
  static void Store(const Codes& to, int64_t place, int head, bool hnd, const float* x,
                    int head_dim, std::vector<uint8_t>* codes, std::vector<float>* scales) {
    const int64_t group = to.scale.group == 0 ? head_dim : to.scale.group;
    uint8_t* at = codes->data() + to.CodesAt(place, head, head_dim, hnd);
    for (int64_t g = 0; g * group < head_dim; ++g, x += group) {
      char* const scale_at = to.ScaleAt(scales, place, head, g);
      if (to.scale.computed != 0) {
        WriteScale(to.scale, scale_at, ComputedScale(to.scale, to.tensor.dtype, x, group));
      }
      const float inverse = 1 / ReadScale(to.scale, scale_at);
      for (int64_t c = 0; c < group; ++c) {
        *at++ = NearestCode(CodeOf(to.tensor.dtype), x[c] * inverse);
      }
    }
  }
};
INSTANTIATE_TARGETS(CodedScalesTest);

TEST_P(CodedScalesTest, AreThoseOfTheNumbersInF32) {
  Random random(20261201);
  for (const int head_dim : {16, 32, 64, 96, 128, 192, 256}) {
    for (const rope_pairing pairing : {ROPE_PAIRING_HALVES, ROPE_PAIRING_INTERLEAVED}) {
      for (const rope_dtype dtype : {ROPE_DTYPE_F8_E4M3, ROPE_DTYPE_F8_E5M2, ROPE_DTYPE_I8}) {
        for (int kind = 0; kind < 12; ++kind) {
          rope_scale scale = ROPE_INIT(rope_scale);
          scale.dtype = ROPE_DTYPE_F32;
          scale.group = random.Of({0, 0, head_dim / 2});
          scale.computed = kind % 4 != 0;
          if (kind % 4 >= 2) {
            scale.power_of_two = 1;
            if (kind % 4 == 3) scale.dtype = ROPE_DTYPE_E8M0;
          }
          if (scale.computed != 0) scale.min_scale = random.Of({0.0, 0.0, 0.03125});
          SCOPED_TRACE(::testing::Message() << "head_dim " << head_dim << " pairing " << pairing
                                            << " dtype " << dtype << " kind " << kind);
          Check(&random, head_dim, pairing, dtype, scale);
          if (HasFatalFailure()) return;
        }
      }
    }
  }
}

}  // namespace
}  // namespace rope::testing
