// Heads of the sizes of models that are normed and turned on their way to another dtype have the
// bytes of three calls: a norm in its own call, the rotation, and a NOPE call that converts. Tokens
// go to slots far apart or to outputs; heads are more than what converts them holds at once;
// weights are shared or of each head.
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "librope/rope.h"
#include "math/element.h"
#include "support/elements.h"
#include "support/enumerators.h"
#include "support/handles.h"
#include "support/q8_0.h"
#include "support/random.h"
#include "support/targets.h"

namespace rope::testing {
namespace {

constexpr int kTokens = 7, kSlots = 16;

struct Heads {
  int query, key, head_dim;
};
// 4 KiB hold 16, 8, 4 and 32 heads of these in 16 bits, half as many in f32.
constexpr Heads kHeads[] = {{40, 8, 128}, {5, 1, 256}, {13, 7, 512}, {64, 2, 64}};
// From 16 bits under ROUNDED and EAGER to codes of heads that are rounded first; from f32 to all.
struct Way {
  rope_dtype from, to;
  rope_norm_rounding rounding;
};
constexpr Way kWays[] = {{ROPE_DTYPE_BF16, ROPE_DTYPE_F8_E4M3, ROPE_NORM_ROUNDING_ROUNDED},
                         {ROPE_DTYPE_BF16, ROPE_DTYPE_I8, ROPE_NORM_ROUNDING_EAGER},
                         {ROPE_DTYPE_F16, ROPE_DTYPE_F8_E5M2, ROPE_NORM_ROUNDING_ROUNDED},
                         {ROPE_DTYPE_F32, ROPE_DTYPE_F8_E4M3, ROPE_NORM_ROUNDING_FLOAT32},
                         {ROPE_DTYPE_F32, ROPE_DTYPE_BF16, ROPE_NORM_ROUNDING_FLOAT32},
                         {ROPE_DTYPE_F32, ROPE_DTYPE_Q8_0, ROPE_NORM_ROUNDING_FLOAT32}};

// Where the heads of a call go, in another dtype.
struct Converted {
  std::vector<char> query, key;
  rope_scale scale = ROPE_INIT(rope_scale);
  rope_kv_cache cache = ROPE_INIT(rope_kv_cache);
  std::vector<int64_t> slots = {0, 5, -1, 15, 8, 9, 3};  // two of them follow each other

  Converted(const Heads& heads, rope_dtype dtype)
      : query(static_cast<size_t>(
                  BytesInMemory(dtype, int64_t{kTokens} * heads.query * heads.head_dim)),
              '\x5a'),
        key(static_cast<size_t>(BytesInMemory(dtype, int64_t{kSlots} * heads.key * heads.head_dim)),
            '\x5a') {
    scale.value = 0.0371f;
  }

  void Give(const Heads& heads, rope_dtype dtype, bool round_first, bool to_slots,
            rope_qk_args* args, rope_fused* fused) {
    scale.round_first = round_first ? 1 : 0;
    args->q_out = Tensor(query.data(), dtype, heads.query);
    rope_tensor k =
        Tensor(key.data(), dtype, heads.key, to_slots ? ROPE_LAYOUT_NHD : ROPE_LAYOUT_BSHD);
    if (IsCode(dtype)) args->q_out.scale = k.scale = &scale;
    if (!to_slots) {
      args->k_out = k;
      return;
    }
    cache.kind = ROPE_SLOTS_MAPPED;
    cache.pages = kSlots;
    cache.page_size = 1;
    cache.slots_i64 = slots.data();
    cache.slots_length = kTokens;
    cache.k = k;
    fused->cache = &cache;
  }
  bool operator==(const Converted& other) const { return query == other.query && key == other.key; }
};

// q and k, normed by weights of one dtype: [kTokens, heads, head_dim], or the heads outside.
struct Inputs {
  std::vector<char> query, key;
  rope_layout layout;

  Inputs(Random* r, const Heads& heads, rope_dtype dtype, rope_layout layout) : layout(layout) {
    const auto fill = [&](int count, std::vector<char>* bytes) {
      const int64_t channels = int64_t{kTokens} * count * heads.head_dim;
      bytes->resize(static_cast<size_t>(channels * SizeOf(dtype)));
      for (int64_t i = 0; i < channels; ++i) {
        WriteElement(dtype, &(*bytes)[static_cast<size_t>(i * SizeOf(dtype))],
                     r->Pick(-30000, 30000) / 8192.0);
      }
    };
    fill(heads.query, &query);
    fill(heads.key, &key);
  }
  rope_qk_args Args(const Heads& heads, rope_dtype dtype) {
    rope_qk_args args = testing::Args(1, kTokens);
    args.positions = Offset(321);
    args.q = Tensor(query.data(), dtype, heads.query, layout);
    args.k = Tensor(key.data(), dtype, heads.key, layout);
    return args;
  }
};

struct Norms {
  std::vector<char> weights;
  rope_norm query = ROPE_INIT(rope_norm), key = query;

  Norms(Random* r, const Heads& heads, rope_norm_span span, bool by_head,
        rope_norm_rounding rounding) {
    query.kind = ROPE_NORM_KIND_RMS;
    query.span = span;
    query.rounding = rounding;
    query.eps = 1e-6;
    query.weight_dtype = static_cast<rope_dtype>(r->Pick(1, 3));
    query.weight_stride_head = by_head ? heads.head_dim : 0;
    const int64_t count = int64_t{heads.head_dim} * heads.query, size = SizeOf(query.weight_dtype);
    weights.resize(static_cast<size_t>(count * size));
    for (int64_t i = 0; i < count; ++i) {
      WriteElement(query.weight_dtype, &weights[static_cast<size_t>(i * size)],
                   r->Pick(-500, 500) / 256.0);
    }
    query.weight = weights.data();
    key = query;
  }
  void Give(rope_fused* fused) const {
    fused->q_norm = &query;
    fused->k_norm = &key;
  }
};

class NormedCodes : public TargetTest {};
INSTANTIATE_TARGETS(NormedCodes);

TEST_P(NormedCodes, HeadsOfModelsHaveTheBytesOfThreeCalls) {
  Random r(29);
  for (const Heads& heads : kHeads) {
    for (const bool partial : {false, true}) {
      rope_config config =
          Config(heads.head_dim, partial ? ROPE_PAIRING_INTERLEAVED : ROPE_PAIRING_HALVES);
      if (partial) {
        config.rotary_dim = heads.head_dim / 2;
        config.rotary_offset = heads.head_dim / 4;
      }
      rope_config plain = config;
      plain.scaling = ROPE_SCALING_NOPE;
      const Context context = Create(config), nope = Create(plain);
      for (const Way& way : kWays) {
        for (int turn = 0; turn < 8; ++turn) {
          const bool by_head = turn % 2 != 0, together = by_head && turn % 4 == 3,
                     to_slots = turn < 4;
          SCOPED_TRACE("head_dim " + std::to_string(heads.head_dim) + ", partial " +
                       std::to_string(partial) + ", from " + std::to_string(way.from) + " to " +
                       std::to_string(way.to) + ", turn " + std::to_string(turn));
          const Norms norms(&r, heads, together ? ROPE_NORM_SPAN_ALL_HEADS : ROPE_NORM_SPAN_HEAD,
                            by_head, way.rounding);
          Inputs in(&r, heads, way.from, r.Sometimes(3) ? ROPE_LAYOUT_BHSD : ROPE_LAYOUT_BSHD);
          Converted one(heads, way.to), three = one;
          const Converted none = one;
          const bool rounds = SizeOf(way.from) == 2 && IsCode(way.to);
          {
            rope_fused fused = ROPE_INIT(rope_fused);
            rope_qk_args args = in.Args(heads, way.from);
            args.fused = &fused;
            norms.Give(&fused);
            one.Give(heads, way.to, rounds, to_slots, &args, &fused);
            ASSERT_OK(rope_apply_qk(context.get(), &args));
          }
          rope_fused normed = ROPE_INIT(rope_fused), converted = normed;
          norms.Give(&normed);
          rope_qk_args args = in.Args(heads, way.from);
          args.fused = &normed;
          ASSERT_OK(rope_apply_qk(nope.get(), &args));
          args.fused = nullptr;
          ASSERT_OK(rope_apply_qk(context.get(), &args));
          args.fused = &converted;
          three.Give(heads, way.to, false, to_slots, &args, &converted);
          ASSERT_OK(rope_apply_qk(nope.get(), &args));
          EXPECT_TRUE(one == three);
          EXPECT_FALSE(one == none) << "nothing was written";
          if (HasFailure()) return;
        }
      }
    }
  }
}

}  // namespace
}  // namespace rope::testing
