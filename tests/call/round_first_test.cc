// What a scale's round_first promises: the codes and the scales, bit for bit, of two calls, of
// which one norms and rotates in the dtype of its input, and the other, with a NOPE context, codes.
// From every dtype to every 8-bit code, by scales of every kind, to outputs and to slots.
#include <gtest/gtest.h>

#include <cstdint>
#include <initializer_list>
#include <string>
#include <vector>

#include "librope/rope.h"
#include "support/elements.h"
#include "support/enumerators.h"
#include "support/handles.h"
#include "support/random.h"
#include "support/targets.h"

namespace rope::testing {
namespace {

enum class Place { kOutputs, kMappedNhd, kPagedHnd };
enum class Scales { kValue, kGiven, kGivenE8m0, kComputed, kComputedPowers, kComputedE8m0 };
constexpr Place kPlaces[] = {Place::kOutputs, Place::kMappedNhd, Place::kPagedHnd};
constexpr Scales kScales[] = {Scales::kValue,    Scales::kGiven,          Scales::kGivenE8m0,
                              Scales::kComputed, Scales::kComputedPowers, Scales::kComputedE8m0};
constexpr int kBatch = 2, kPages = 6, kPageSize = 4, kSlots = kPages * kPageSize;

bool IsComputed(Scales scales) { return scales >= Scales::kComputed; }
bool IsE8m0(Scales scales) {
  return scales == Scales::kGivenE8m0 || scales == Scales::kComputedE8m0;
}

// [kBatch, tokens, heads, width] of numbers.
struct Numbers {
  rope_tensor tensor;
  std::vector<char> bytes;

  Numbers(Random* r, rope_dtype dtype, int tokens, int heads, int width) {
    const int64_t count = int64_t{kBatch} * tokens * heads * width;
    bytes.resize(static_cast<size_t>(count * SizeOf(dtype)));
    for (int64_t i = 0; i < count; ++i) {
      WriteElement(dtype, &bytes[i * SizeOf(dtype)],
                   r->Pick(-30000, 30000) / 8192.0 * (r->Sometimes(40) ? 0.0 : 1.0));
    }
    tensor = Tensor(bytes.data(), dtype, heads);
    tensor.head_dim = width;
  }
  Numbers(const Numbers& other) : tensor(other.tensor), bytes(other.bytes) {
    tensor.data = bytes.data();
  }
};

// Codes with their scales: an output, or the heads of a cache.
struct Coded {
  rope_tensor tensor;
  rope_scale scale = ROPE_INIT(rope_scale);
  std::vector<uint8_t> codes, scales;

  Coded(Random* r, rope_dtype code, Scales kind, Place place, int tokens, int heads, int width,
        int group) {
    const bool cached = place != Place::kOutputs;
    const int rows = cached ? kPages : kBatch, row = cached ? kPageSize : tokens;
    codes.assign(static_cast<size_t>(rows * row * heads * width), 0x5a);
    tensor = Tensor(codes.data(), code, heads,
                    place == Place::kOutputs     ? ROPE_LAYOUT_BSHD
                    : place == Place::kMappedNhd ? ROPE_LAYOUT_NHD
                                                 : ROPE_LAYOUT_HND);
    tensor.head_dim = width;
    if (kind == Scales::kValue) {
      scale.value = r->Of({0.0078125f, 0.013f, 0.0371f});
      return;
    }
    scale.computed = IsComputed(kind) ? 1 : 0;
    scale.power_of_two = kind > Scales::kComputed ? 1 : 0;
    scale.dtype = IsE8m0(kind) ? ROPE_DTYPE_E8M0 : ROPE_DTYPE_F32;
    scale.group = group;
    if (IsComputed(kind) && r->Sometimes(3)) scale.min_scale = 0.01;
    const int groups = group != 0 ? width / group : 1;
    const int count = rows * row * heads * groups;
    scales.resize(static_cast<size_t>(IsE8m0(kind) ? count : 4 * count));
    for (int i = 0; i < count; ++i) {
      if (IsE8m0(kind)) {
        scales[i] = static_cast<uint8_t>(127 - r->Pick(4, 8));
      } else {
        WriteElement(ROPE_DTYPE_F32, &scales[4 * i], r->Pick(80, 400) / 8192.0);
      }
    }
    scale.data = scales.data();
    scale.stride_batch = row * heads * groups;
    scale.stride_token = place == Place::kPagedHnd ? groups : heads * groups;
    scale.stride_head = place == Place::kPagedHnd ? row * groups : groups;
  }
  Coded(const Coded& other)
      : tensor(other.tensor), scale(other.scale), codes(other.codes), scales(other.scales) {
    tensor.data = codes.data();
    scale.data = scales.empty() ? nullptr : scales.data();
  }

  const rope_tensor& Described(bool round_first) {
    scale.round_first = round_first ? 1 : 0;
    tensor.scale = &scale;
    return tensor;
  }
  bool operator==(const Coded& other) const {
    return codes == other.codes && scales == other.scales;
  }
};

// Where the four tensors of a call go.
struct Outputs {
  Coded q, k, v, rest;
};

// Slots of a cache for kBatch rows of tokens, of which one goes nowhere.
struct Slots {
  std::vector<int64_t> mapped;
  const std::vector<int32_t> table = {4, 0, 3, 5, 1, 2}, starts = {2, 1};

  explicit Slots(int tokens) {
    for (int t = 0; t < kBatch * tokens; ++t) mapped.push_back((t * 7 + 3) % kSlots);
    if (tokens > 1) mapped[1] = -1;
  }
  rope_kv_cache Describe(Place place, Outputs* to, bool round_first) const {
    rope_kv_cache cache = ROPE_INIT(rope_kv_cache);
    cache.pages = kPages;
    cache.page_size = kPageSize;
    cache.k = to->k.Described(round_first);
    cache.v = to->v.Described(round_first);
    if (place == Place::kMappedNhd) {
      cache.kind = ROPE_SLOTS_MAPPED;
      cache.slots_i64 = mapped.data();
      cache.slots_length = static_cast<int64_t>(mapped.size());
    } else {
      cache.kind = ROPE_SLOTS_PAGED;
      cache.page_table = table.data();
      cache.page_table_stride = kPages / kBatch;
      cache.starts = starts.data();
    }
    return cache;
  }
};

struct Inputs {
  Numbers q, k, v, rest;
};

class RoundFirst : public TargetTest {
 protected:
  // Norms of q, k and v, or none of them.
  struct Norms {
    std::vector<float> weight;
    rope_norm norm = ROPE_INIT(rope_norm);
    explicit Norms(Random* r) {
      for (int i = 0; i < 128; ++i) weight.push_back(r->Pick(-300, 300) / 256.0f);
      norm.kind = ROPE_NORM_KIND_RMS;
      norm.eps = 1e-6;
      norm.weight = weight.data();
      norm.weight_dtype = ROPE_DTYPE_F32;
    }
    void Give(rope_fused* fused) const { fused->q_norm = fused->k_norm = fused->v_norm = &norm; }
  };

  static rope_qk_args ArgsOf(const Inputs& in, int tokens, rope_fused* fused) {
    rope_qk_args args = Args(kBatch, tokens);
    args.positions = Offset(1234);
    args.q = in.q.tensor;
    args.k = in.k.tensor;
    fused->v = in.v.tensor;
    args.fused = fused;
    return args;
  }
  // From `in` to codes.
  static void Code(const Context& context, const Inputs& in, int tokens, const Norms* norms,
                   Place place, const Slots& slots, bool round_first, Outputs* to) {
    rope_fused fused = ROPE_INIT(rope_fused);
    rope_qk_args args = ArgsOf(in, tokens, &fused);
    args.q_out = to->q.Described(round_first);
    fused.rest = in.rest.tensor;
    fused.rest_out = to->rest.Described(round_first);
    rope_kv_cache cache;
    if (place == Place::kOutputs) {
      args.k_out = to->k.Described(round_first);
      fused.v_out = to->v.Described(round_first);
    } else {
      cache = slots.Describe(place, to, round_first);
      fused.cache = &cache;
    }
    if (norms != nullptr) norms->Give(&fused);
    ASSERT_OK(rope_apply_qk(context.get(), &args));
  }
  // In place, in the dtype of each.
  static void Rotate(const Context& context, int tokens, const Norms* norms, Inputs* in) {
    rope_fused fused = ROPE_INIT(rope_fused);
    rope_qk_args args = ArgsOf(*in, tokens, &fused);
    fused.v_out = fused.v;
    if (norms != nullptr) norms->Give(&fused);
    ASSERT_OK(rope_apply_qk(context.get(), &args));
  }

  // Codes that would be others without round_first.
  int Compare(const rope_config& config, rope_dtype dtype, rope_dtype code, uint64_t seed) {
    Random r(seed);
    rope_config plain = config;
    plain.scaling = ROPE_SCALING_NOPE;
    plain.rounding = ROPE_ROUNDING_FLOAT32;
    const Context context = Create(config), nope = Create(plain);
    int others = 0;
    for (Scales scales : kScales) {
      for (Place place : kPlaces) {
        for (const bool normed : {false, true}) {
          SCOPED_TRACE("scales " + std::to_string(static_cast<int>(scales)) + ", place " +
                       std::to_string(static_cast<int>(place)) + (normed ? ", normed" : ""));
          const int tokens = r.Of({1, 6}), heads = r.Pick(1, 3), width = config.head_dim;
          const int group = r.Of({0, 16});
          // 16-bit norms of FLOAT32 are for contexts that round by FLOAT32 or COS_SIN.
          Norms norms(&r);
          if (config.rounding == ROPE_ROUNDING_EAGER) {
            norms.norm.rounding = ROPE_NORM_ROUNDING_ROUNDED;
          }
          const Norms* const given = normed ? &norms : nullptr;
          const Slots slots(tokens);
          const Inputs in = {{&r, dtype, tokens, 2 * heads, width},
                             {&r, dtype, tokens, heads, width},
                             {&r, dtype, tokens, heads, 80},
                             {&r, dtype, tokens, heads, 48}};
          const Outputs empty = {
              {&r, code, scales, Place::kOutputs, tokens, 2 * heads, width, group},
              {&r, code, scales, place, tokens, heads, width, group},
              {&r, code, scales, place, tokens, heads, 80, group},
              {&r, code, scales, Place::kOutputs, tokens, heads, 48, group}};
          Outputs one = empty, two = empty, without = empty;
          Code(context, in, tokens, given, place, slots, true, &one);
          Inputs between = in;
          Rotate(context, tokens, given, &between);
          Code(nope, between, tokens, nullptr, place, slots, false, &two);
          Code(context, in, tokens, given, place, slots, false, &without);
          EXPECT_TRUE(one.q == two.q) << "q";
          EXPECT_TRUE(one.k == two.k) << "k";
          EXPECT_TRUE(one.v == two.v) << "v";
          EXPECT_TRUE(one.rest == two.rest) << "rest";
          EXPECT_FALSE(one.k == empty.k) << "nothing was written";
          if (HasFailure()) return 0;
          others += one.q == without.q && one.k == without.k ? 0 : 1;
        }
      }
    }
    return others;
  }
};
INSTANTIATE_TARGETS(RoundFirst);

TEST_P(RoundFirst, IsTwoCalls) {
  rope_config part = Config(96, ROPE_PAIRING_HALVES);
  part.rotary_dim = 64;
  part.rotary_offset = 16;
  uint64_t seed = 1;
  for (rope_config config : {Config(64, ROPE_PAIRING_HALVES), Config(64, ROPE_PAIRING_INTERLEAVED),
                             Config(128, ROPE_PAIRING_INTERLEAVED_TO_HALVES), part}) {
    for (rope_rounding rounding :
         {ROPE_ROUNDING_FLOAT32, ROPE_ROUNDING_COS_SIN, ROPE_ROUNDING_EAGER}) {
      config.rounding = rounding;
      for (rope_dtype dtype = 1; dtype <= kLastDtype; ++dtype) {
        for (rope_dtype code : {ROPE_DTYPE_F8_E4M3, ROPE_DTYPE_F8_E5M2, ROPE_DTYPE_I8}) {
          const int others = Compare(config, dtype, code, seed++);
          ASSERT_FALSE(HasFailure())
              << "head_dim " << config.head_dim << ", pairing " << config.pairing << ", rounding "
              << rounding << ", dtype " << dtype << " to " << code;
          // These calls can tell: of 16 bits, and where a context would not round anyway.
          const bool tells = SizeOf(dtype) == 2 && rounding == ROPE_ROUNDING_FLOAT32;
          EXPECT_EQ(others != 0, tells)
              << "rounding " << rounding << ", dtype " << dtype << " to " << code;
        }
      }
    }
  }
}

}  // namespace
}  // namespace rope::testing
