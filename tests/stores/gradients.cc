// Calls of BACKWARD: gradients of q, k and v through norms and without, of repeated heads, and
// those of weights and biases; in place and elsewhere.
#include <string>
#include <vector>

#include "stores/norms.h"
#include "stores/work.h"

namespace rope::testing::stores {
namespace {

// The dtype of the output has to round what a kernel multiplies: heads are added, or copied, into
// the output, turn there, and pass their norm there.
Times TurnsInOutput(bool normed) {
  return {1, normed ? 3 : 2, "gradients that turn, rounded, in the output, and pass a norm there"};
}
// A part is cleared, and each head that shares weights adds to it.
Times Sum(int64_t heads) {
  return {1, static_cast<int>(1 + heads), "gradients of weights, to which each head adds its own"};
}

class Gradient {
 public:
  Gradient(Random* r, int head_dim, rope_dtype dtype, bool normed, bool in_place)
      : r_(*r),
        head_dim_(head_dim),
        dtype_(dtype),
        normed_(normed),
        in_place_(in_place),
        config_(Config(head_dim)) {
    config_.pairing =
        r->Of({ROPE_PAIRING_HALVES, ROPE_PAIRING_INTERLEAVED, ROPE_PAIRING_INTERLEAVED_TO_HALVES});
    if (r->Sometimes(3)) {
      config_.rotary_dim = head_dim / 2;
      config_.rotary_offset = r->Of({0, head_dim / 2});
    }
    if (r->Sometimes(3)) config_.rounding = ROPE_ROUNDING_EAGER;
    rows_ = r->Pick(1, 2);
    tokens_ = r->Of({1, 3});
    repeats_ = in_place ? 1 : r->Pick(1, 3);
    parts_ = r->Pick(1, 3);
    Watch();
  }

 private:
  Shape ShapeOf(int heads, int width) const { return {rows_, tokens_, heads, width}; }

  void Watch() {
    Work work(std::string("gradient ") + std::to_string(head_dim_) +
              (config_.rotary_dim != 0 ? " partial " : " ") + NameOfPairing(config_.pairing) + " " +
              NameOf(dtype_) + (config_.rounding != 0 ? " eager" : "") +
              (in_place_ ? " in place" : " elsewhere") +
              (repeats_ != 1 ? ", heads repeated " + std::to_string(repeats_) + " times" : "") +
              ", " + std::to_string(rows_) + " x " + std::to_string(tokens_));
    work_ = &work;
    rope_qk_args args = Args(rows_, tokens_);
    rope_fused fused = ROPE_INIT(rope_fused);
    args.operation = ROPE_OPERATION_BACKWARD;
    args.positions = Offset(4711);
    args.fused = &fused;
    Add("q", "q_out", 3, head_dim_, true, &args.q, &args.q_out, &norms_[0], &x_[0], &fused.q_norm);
    Add("k", "k_out", 2, head_dim_, true, &args.k, &args.k_out, &norms_[1], &x_[1], &fused.k_norm);
    Add("v", "v_out", 2, 37, false, &fused.v, &fused.v_out, &norms_[2], &x_[2], &fused.v_norm);
    work.Make(ContextOf(config_), args);
  }

  void Add(const char* in_name, const char* out_name, int heads, int width, bool turns,
           rope_tensor* in, rope_tensor* out, rope_norm* norm, rope_tensor* x,
           const rope_norm** field) {
    const Heads given =
        work_->Tensor(in_name, dtype_, ShapeOf(repeats_ * heads, width), ROPE_LAYOUT_BSHD);
    Heads written = given;
    *in = given.tensor;
    if (!in_place_) {
      written = work_->Tensor(out_name, dtype_, ShapeOf(heads, width), ROPE_LAYOUT_BHSD);
      *out = written.tensor;
    }
    if (!turns) {
      *out = written.tensor;  // of v it is required
      in->head_dim = out->head_dim = width;
    }
    const bool rounds = config_.rounding == ROPE_ROUNDING_EAGER && dtype_ != ROPE_DTYPE_F32;
    const bool passes = normed_ || repeats_ != 1;
    const Times times = turns && rounds && passes ? TurnsInOutput(normed_) : kOnce;
    const bool partial = turns && in_place_ && !normed_ && config_.rotary_dim != 0;
    // Values in place, which nothing norms, are there already.
    if (turns || !in_place_ || normed_) {
      for (const Place& token : Tokens(rows_, tokens_)) {
        work_->Stores(written, token, partial ? config_.rotary_offset : 0,
                      partial ? config_.rotary_dim : width, times);
      }
    }
    if (!normed_) return;
    *norm = RandomNorm(work_, &r_, {dtype_, heads, width, turns, config_}, false);
    norm->order = ROPE_NORM_ORDER_BEFORE;
    *field = norm;
    work_->Describe(", " + NameOf(*norm));
    *x = work_->Tensor("x", dtype_, ShapeOf(heads, width), ROPE_LAYOUT_BSHD).tensor;
    x->head_dim = turns ? 0 : width;
    norm->x = x;
    const bool of_each = norm->weight_stride_head != 0;
    const int64_t weights = of_each ? heads * width : width,
                  adding = rows_ * tokens_ * (of_each ? 1 : heads);
    const auto sums = [&](const char* name) {
      float* const memory =
          reinterpret_cast<float*>(work_->Numbers(name, ROPE_DTYPE_F32, parts_ * weights));
      work_->Stores(memory, parts_ * weights * int64_t{sizeof(float)}, Sum(adding));
      norm->grad_parts = parts_;
      return memory;
    };
    if (norm->weight != nullptr) norm->weight_grad = sums("weight_grad");
    if (norm->bias != nullptr) norm->bias_grad = sums("bias_grad");
  }

  Random& r_;
  const int head_dim_;
  const rope_dtype dtype_;
  const bool normed_, in_place_;
  rope_config config_;
  int64_t rows_, tokens_;
  int repeats_, parts_;
  Work* work_ = nullptr;
  rope_norm norms_[3];
  rope_tensor x_[3];
};

}  // namespace

void WatchGradients() {
  Random r(4);
  for (const int head_dim : kHeadDims) {
    for (const rope_dtype dtype : {ROPE_DTYPE_F32, ROPE_DTYPE_F16, ROPE_DTYPE_BF16}) {
      for (const bool normed : {false, true}) {
        for (const bool in_place : {false, true}) {
          for (int i = 0; i < 2; ++i) Gradient(&r, head_dim, dtype, normed, in_place);
        }
      }
    }
  }
}

}  // namespace rope::testing::stores
