// The stack that a call needs, as the header states it: every kind of call on a thread with 64 KiB,
// below which lies a page without access. Sanitizers need more, so this is not built with them.
#include <gtest/gtest.h>
#include <pthread.h>

#include <functional>
#include <string>
#include <vector>

#include "base/limits.h"
#include "support/handles.h"

namespace rope::testing {
namespace {

void* Call(void* body) {
  (*static_cast<const std::function<void()>*>(body))();
  return nullptr;
}

void OnSmallStack(const std::function<void()>& body) {
  pthread_attr_t attributes;
  ASSERT_EQ(pthread_attr_init(&attributes), 0);
  ASSERT_EQ(pthread_attr_setstacksize(&attributes, 64 << 10), 0);
  pthread_t thread;
  ASSERT_EQ(pthread_create(&thread, &attributes, &Call, const_cast<std::function<void()>*>(&body)),
            0);
  pthread_join(thread, nullptr);
  pthread_attr_destroy(&attributes);
}

constexpr int kDim = kMaxHeadDim, kTokens = 3;

TEST(Stack, OfApplyAndFill) {
  std::vector<float> x(kTokens * kDim), y(x.size()), cos(x.size()), sin(x.size());
  for (rope_pairing pairing :
       {ROPE_PAIRING_HALVES, ROPE_PAIRING_INTERLEAVED, ROPE_PAIRING_INTERLEAVED_TO_HALVES}) {
    for (rope_rounding rounding : {ROPE_ROUNDING_FLOAT32, ROPE_ROUNDING_EAGER}) {
      for (rope_angle angle : {ROPE_ANGLE_FLOAT32, ROPE_ANGLE_EXACT, ROPE_ANGLE_GGML}) {
        rope_config config = Config(kDim, pairing);
        config.rounding = rounding;
        config.angle = angle;
        config.axes = 2;
        config.mrope_section[0] = config.mrope_section[1] = kDim / 4;
        const int64_t ids[2 * kTokens] = {1, 2, 3, 4, 5, 6};
        for (rope_dtype dtype : {ROPE_DTYPE_F32, ROPE_DTYPE_F16, ROPE_DTYPE_BF16}) {
          OnSmallStack([&] {
            const Context context = Create(config);
            rope_qk_args args = Args(1, kTokens);
            args.q = Tensor(x.data(), dtype, 1);
            args.q_out = Tensor(y.data(), dtype, 1);
            args.positions.kind = ROPE_POSITIONS_IDS_BTA;
            args.positions.ids_i64 = ids;
            EXPECT_OK(rope_apply_qk(context.get(), &args));
            const rope_cos_sin rows =
                Rows(ROPE_COS_SIN_FULL_INTERLEAVED, dtype, kDim / 2, 1, cos.data(), sin.data());
            EXPECT_OK(
                rope_cos_sin_fill(context.get(), 1, kTokens, &args.positions, &rows, nullptr));
            args.positions = rope_positions{};
            args.cos_sin = &rows;
            EXPECT_OK(rope_apply_qk(context.get(), &args));
            sin[0] = 7;  // values of its own in each channel
            EXPECT_OK(rope_apply_qk(context.get(), &args));
            EXPECT_NE(rope_apply_qk(nullptr, &args), ROPE_OK);
          });
        }
      }
    }
  }
}

TEST(Stack, OfModels) {
  std::string deep;  // as deep as texts may be, and deeper
  for (int depth : {30, 100000}) {
    deep = R"({"model_type": "llama", "hidden_size": 64, "num_attention_heads": 1, "x": )" +
           std::string(static_cast<size_t>(depth), '[') +
           std::string(static_cast<size_t>(depth), ']') + "}";
    OnSmallStack([&] {
      rope_model* model = nullptr;
      const rope_status status = rope_model_create(deep.data(), deep.size(), &model);
      EXPECT_EQ(status, depth == 30 ? ROPE_OK : ROPE_ERROR_PARSE) << rope_last_error();
      rope_model_destroy(model);
    });
  }
}

}  // namespace
}  // namespace rope::testing
