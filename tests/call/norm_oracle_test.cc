// Norms beside the rotation are those of transformers' own modules (data/norms.json): bit for bit
// where the model rounds each step and its sum is exact, so that it has no order; else within what
// two orders of a sum, and a fused multiply-add, can make.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "librope/rope.h"
#include "model/oracle_array.h"
#include "support/elements.h"
#include "support/handles.h"
#include "support/load_json.h"
#include "support/targets.h"

namespace rope::testing {
namespace {

using Json = nlohmann::json;

rope_dtype DtypeOf(const OracleArray& array) {
  return array.dtype == "f32"   ? ROPE_DTYPE_F32
         : array.dtype == "f16" ? ROPE_DTYPE_F16
                                : ROPE_DTYPE_BF16;
}

// The number of a name among these, from `first` on.
int32_t NumberOf(const Json& name, const std::vector<const char*>& names, int32_t first) {
  const auto at = std::find(names.begin(), names.end(), name.get<std::string>());
  EXPECT_NE(at, names.end()) << name;
  return first + static_cast<int32_t>(at - names.begin());
}

class NormOracleTest : public TargetTest {};
INSTANTIATE_TARGETS(NormOracleTest);

TEST_P(NormOracleTest, IsThatOfTheModel) {
  const Json all = LoadJson("norms.json");
  ASSERT_EQ(all["cases"].size(), 30u);
  int exact_cases = 0;
  for (const Json& c : all["cases"]) {
    SCOPED_TRACE(c["name"].get<std::string>());
    OracleArray x(c["x"]), cos(c["cos"]), sin(c["sin"]);
    const OracleArray weight(c["weight"]), want(c["y"]);
    const rope_dtype dtype = DtypeOf(x);
    const auto tokens = x.shape[0];
    const auto heads = static_cast<int>(x.shape[1]), dim = static_cast<int>(x.shape[2]);
    rope_config config = Config(dim);
    config.pairing = NumberOf(c["pairing"], {"HALVES", "INTERLEAVED"}, ROPE_PAIRING_HALVES);
    config.rounding = NumberOf(c["rounding"], {"FLOAT32", "EAGER", "COS_SIN"}, 0);
    const Context context = Create(config);
    rope_norm norm = ROPE_INIT(rope_norm);
    norm.kind =
        NumberOf(c["kind"], {"RMS", "RMS_ONE_PLUS", "RMS_PLAIN", "LAYER"}, ROPE_NORM_KIND_RMS);
    norm.span = NumberOf(c["span"], {"HEAD", "ALL_HEADS"}, 0);
    norm.order = NumberOf(c["order"], {"BEFORE", "AFTER"}, 0);
    norm.rounding = NumberOf(c["norm_rounding"], {"FLOAT32", "ROUNDED", "EAGER"}, 0);
    norm.eps = c["eps"];
    norm.weight = weight.bytes.data();
    norm.weight_dtype = DtypeOf(weight);
    if (weight.ToFloat().size() != static_cast<size_t>(dim)) norm.weight_stride_head = dim;
    rope_fused fused = ROPE_INIT(rope_fused);
    fused.q_norm = &norm;
    const bool halves = config.pairing == ROPE_PAIRING_HALVES;
    const rope_cos_sin rows =
        Rows(halves ? ROPE_COS_SIN_FULL_HALVES : ROPE_COS_SIN_FULL_INTERLEAVED, DtypeOf(cos),
             dim / 2, 1, cos.bytes.data(), sin.bytes.data());
    rope_qk_args args = Args(1, tokens);
    args.q = Tensor(x.bytes.data(), dtype, heads);
    args.cos_sin = &rows;
    args.fused = &fused;
    ASSERT_EQ(rope_apply_qk(context.get(), &args), ROPE_OK) << rope_last_error();

    const bool bits = c["exact"] && config.rounding == ROPE_ROUNDING_EAGER &&
                      norm.order == ROPE_NORM_ORDER_BEFORE;
    exact_cases += bits;
    const double unit = dtype == ROPE_DTYPE_F32   ? 8 * 0x1p-24
                        : dtype == ROPE_DTYPE_F16 ? 0x1p-11
                                                  : 0x1p-8;
    const std::vector<float> got = x.ToFloat(), y = want.ToFloat();
    size_t other = 0;
    for (size_t i = 0; i < got.size(); ++i) {
      const size_t head = i - i % static_cast<size_t>(dim), channel = i - head;
      const size_t partner =
          head + (halves ? (channel + static_cast<size_t>(dim) / 2) % static_cast<size_t>(dim)
                         : channel ^ 1);
      other += got[i] != y[i];
      if (bits) {
        ASSERT_TRUE(IsSame(dtype, x.bytes.data(), want.bytes.data(), static_cast<int64_t>(i)))
            << got[i] << ", not " << y[i];
      } else {
        ASSERT_NEAR(got[i], y[i], 4 * unit * std::hypot(y[i], y[partner])) << i;
      }
    }
    // Few sums lie so near to where 16 bits are rounded that their order is seen.
    EXPECT_LE(other, dtype == ROPE_DTYPE_F32 ? got.size() : got.size() / 50);
  }
  EXPECT_EQ(exact_cases, 6);
}

}  // namespace
}  // namespace rope::testing
