// Random contexts and heads of which one token is turned alone, and among others.
#ifndef LIBROPE_TESTS_SUPPORT_SINGLE_TOKENS_H_
#define LIBROPE_TESTS_SUPPORT_SINGLE_TOKENS_H_

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "librope/rope.h"
#include "math/element.h"
#include "support/elements.h"
#include "support/enumerators.h"
#include "support/handles.h"
#include "support/random.h"

namespace rope::testing {

// A random context of one row for each token.
inline rope_config RandomConfig(Random* random) {
  const int head_dim = random->Of({2, 6, 16, 64, 72, 80, 96, 128, 256, 1024});
  rope_config config = Config(head_dim, random->Pick(1, ROPE_PAIRING_INTERLEAVED_TO_HALVES));
  config.rounding = random->Pick(0, kLastRounding);
  config.angle =
      random->Of({ROPE_ANGLE_FLOAT32, ROPE_ANGLE_EXACT, ROPE_ANGLE_DIVIDE, ROPE_ANGLE_GGML});
  config.attention_factor = random->Of({0.0, 1.25});
  if (head_dim > 6 && random->Sometimes(3)) {
    config.rotary_dim = head_dim / 2;
    config.rotary_offset = random->Of({0, head_dim / 2});
  }
  return config;
}

// Such a context, and the dtypes that it turns.
class RandomContext {
 public:
  explicit RandomContext(Random* random) : RandomContext(random, RandomConfig(random)) {}
  RandomContext(Random* random, const rope_config& given)
      : config(given), random_(random), dtypes_(DtypesOf(config.rounding)) {
    rope_context* made = nullptr;
    if (rope_context_create(&config, &made) == ROPE_OK) context_.reset(made);
  }

  // Else there is none: GGML has few pairings.
  bool exists() const { return context_ != nullptr && !dtypes_.empty(); }
  const rope_context* get() const { return context_.get(); }
  const Context& context() const { return context_; }
  rope_dtype Dtype() {
    return dtypes_[static_cast<size_t>(random_->Below(static_cast<int64_t>(dtypes_.size())))];
  }

  const rope_config config;

 private:
  Random* random_;
  Context context_;
  std::vector<rope_dtype> dtypes_;
};

// Heads of tokens that follow each other, every second one of which is used.
struct Heads {
  std::vector<char> in, out;
  rope_tensor of, to;
};

inline Heads MakeHeads(Random* random, const rope_config& config, rope_dtype dtype, bool in_place) {
  Heads heads;
  const int size = ElementSize(dtype), count = random->Pick(1, 9);
  const auto bytes = static_cast<size_t>(3 * count * 2 * config.head_dim * size);
  heads.in.resize(bytes);
  heads.out.resize(bytes);
  for (char& byte : heads.in) byte = static_cast<char>(random->Next());
  for (size_t at = 1; at < bytes && random->Sometimes(2); at += 2) heads.in[at] &= 0x47;
  heads.of = Tensor(heads.in.data(), dtype, count, ROPE_LAYOUT_STRIDED);
  const int64_t step = config.head_dim * random->Pick(1, 2);
  SetStrides(&heads.of, 3 * count * step, count * step, step);
  heads.to = heads.of;
  heads.to.data = heads.out.data();
  if (in_place) heads.to = {};
  return heads;
}

// q and k of such a context, mostly of one dtype.
struct RandomHeads {
  Heads q, k;

  RandomHeads(Random* random, RandomContext* context) {
    const bool in_place = random->Sometimes(2);
    const rope_dtype of_q = context->Dtype();
    q = MakeHeads(random, context->config, of_q, in_place);
    const rope_dtype of_k = random->Sometimes(4) ? context->Dtype() : of_q;
    k = MakeHeads(random, context->config, of_k, in_place);
  }
};

inline void MoveBy(rope_tensor* t, int64_t token) {
  if (t->data == nullptr) return;
  t->data = static_cast<char*>(t->data) + token * t->stride_token * ElementSize(t->dtype);
}

// The same bits; which NaN it is depends on how the compiler orders a product.
inline ::testing::AssertionResult IsTurnedAlike(rope_dtype dtype, const std::vector<char>& a,
                                                const std::vector<char>& b) {
  const auto count = static_cast<int64_t>(a.size()) / ElementSize(dtype);
  for (int64_t i = 0; i < count; ++i) {
    if (IsSame(dtype, a.data(), b.data(), i)) continue;
    return ::testing::AssertionFailure() << "element " << i << " of dtype " << dtype;
  }
  return ::testing::AssertionResult(a.size() == b.size());
}

}  // namespace rope::testing

#endif  // LIBROPE_TESTS_SUPPORT_SINGLE_TOKENS_H_
