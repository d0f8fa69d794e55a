// Random calls of BACKWARD with norms and sums of heads.
#ifndef LIBROPE_TESTS_SUPPORT_GRADIENT_CALL_H_
#define LIBROPE_TESTS_SUPPORT_GRADIENT_CALL_H_

#include <string>
#include <vector>

#include "librope/rope.h"
#include "support/elements.h"
#include "support/norm_call.h"
#include "support/norm_reference.h"
#include "support/random.h"

namespace rope::testing {

// q, k or v: the gradient of what FORWARD has written, what it was given, and where the gradient of
// that goes.
struct GradientSide {
  Memory in, x, out;
  bool in_place = true, normed = false;
  bool mean_in_f32 = false;  // 16 bits that turn, by a LayerNorm of each head that rounds nothing
  int repeats = 1;
  int in_width = 0, out_width = 0;
  Weighted norm;
  std::vector<float> weight_grad, bias_grad;
  // Of each part.
  std::vector<std::vector<Head>> want_weight, want_bias;

  Memory& written() { return in_place ? in : out; }
};

// A call whose weights have gradients in some number of parts.
class GradientCalls : public NormCalls {
 protected:
  int parts_ = 0;
  bool of_models_ = false;  // norms as most models have them, of all tensors

  GradientSide MakeSide(Random* random, rope_dtype dtype, bool turns) {
    GradientSide side;
    const int heads = random->Sometimes(6) ? random->Pick(30, 70) : random->Pick(1, 12);
    side.normed = !random->Sometimes(5) || of_models_;
    const int v_width = random->Sometimes(2) ? random->Pick(1, 200) : 128;
    const auto width = [&] {
      return !turns ? v_width : random->Sometimes(4) ? rotary_ : config_.head_dim;
    };
    side.in_width = side.out_width = width();
    side.in_place = random->Sometimes(2);
    if (turns && !side.normed && !side.in_place) side.out_width = width();
    if (!side.in_place && !of_models_ && random->Sometimes(2)) side.repeats = random->Pick(2, 4);
    side.in =
        Memory(random, dtype, batch_, tokens_, heads * side.repeats, side.in_width, side.in_width);
    side.x = Memory(random, dtype, batch_, tokens_, heads, side.out_width, side.out_width);
    if (!side.in_place) {
      side.out = Memory(random, dtype, batch_, tokens_, heads, side.out_width, side.out_width);
    }
    Fill(random, side.in, side.in_width);
    Fill(random, side.x, side.out_width);
    if (!side.normed) return side;
    side.norm = Weighted(random, heads, side.in_width, batch_ * tokens_, turns, !of_models_);
    rope_norm& n = side.norm.norm;
    n.order = 0;
    if (of_models_) {
      if (n.span == ROPE_NORM_SPAN_GIVEN) n.eps = 1e-6;
      n.span = ROPE_NORM_SPAN_HEAD;
      n.rstd = nullptr;
      n.weight_stride_head = 0;
    }
    if (n.span == ROPE_NORM_SPAN_GIVEN) {
      n.span = random->Pick(0, 1);
      n.eps = 1e-6;
      n.rstd = nullptr;
    }
    const bool rounds =
        config_.rounding == ROPE_ROUNDING_EAGER || config_.rounding == ROPE_ROUNDING_NATIVE;
    if (turns && SizeOf(dtype) == 2 && !nope() && n.rounding == ROPE_NORM_ROUNDING_FLOAT32) {
      const bool has_mean = n.kind >= ROPE_NORM_KIND_LAYER;
      if (rounds || (has_mean && n.span == ROPE_NORM_SPAN_ALL_HEADS)) {
        n.rounding = random->Pick(1, 2);
      } else {
        side.mean_in_f32 = has_mean;
      }
    }
    if (parts_ == 0) return side;
    const int rows = n.weight_stride_head != 0 ? heads : 1;
    const auto want = [&](bool has, std::vector<float>* grad,
                          std::vector<std::vector<Head>>* of_parts, float** field) {
      of_parts->resize(static_cast<size_t>(parts_));
      if (!has || random->Sometimes(4)) return;
      grad->assign(static_cast<size_t>(parts_ * rows * side.in_width), -123.5f);
      *field = grad->data();
      for (auto& part : *of_parts) part.assign(static_cast<size_t>(rows), Head(side.in_width, 0));
      n.grad_parts = parts_;
    };
    want(n.weight != nullptr, &side.weight_grad, &side.want_weight, &n.weight_grad);
    want(n.bias != nullptr, &side.bias_grad, &side.want_bias, &n.bias_grad);
    return side;
  }

  std::string Describe(const GradientSide& side) const {
    const rope_norm& n = side.norm.norm;
    std::string text;
    const auto add = [&](const char* name, int64_t value) {
      text += std::string(name) + " " + std::to_string(value) + ", ";
    };
    add("head_dim", config_.head_dim), add("rotary_dim", config_.rotary_dim);
    add("offset", config_.rotary_offset), add("pairing", config_.pairing);
    add("rounding", config_.rounding), add("scaling", config_.scaling);
    add("dtype", side.in.tensor.dtype), add("heads", side.x.tensor.heads);
    add("repeats", side.repeats), add("in_width", side.in_width), add("out_width", side.out_width);
    add("in_place", side.in_place), add("normed", side.normed), add("kind", n.kind);
    add("span", n.span), add("norm rounding", n.rounding), add("weight_dtype", n.weight_dtype);
    add("weight_stride", n.weight_stride_head), add("grad_parts", n.grad_parts);
    return text;
  }
};

}  // namespace rope::testing

#endif  // LIBROPE_TESTS_SUPPORT_GRADIENT_CALL_H_
