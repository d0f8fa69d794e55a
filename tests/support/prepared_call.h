// Any call of the CPU made as a prepared one, which must have its bits.
#ifndef LIBROPE_TESTS_SUPPORT_PREPARED_CALL_H_
#define LIBROPE_TESTS_SUPPORT_PREPARED_CALL_H_

#include "librope/rope.h"
#include "support/handles.h"

namespace rope::testing {

// A description without addresses, and the addresses.
class PreparedCall {
 public:
  explicit PreparedCall(const rope_qk_args& args) : args_(args) {
    Move(&args_.q, &data.q);
    Move(&args_.k, &data.k);
    Move(&args_.q_out, &data.q_out, &q_scale_, &data.q_out_scales);
    Move(&args_.k_out, &data.k_out, &k_scale_, &data.k_out_scales);
    if (args.fused == nullptr) return;
    fused_ = *args.fused;
    args_.fused = &fused_;
    Move(&fused_.v, &data.v);
    Move(&fused_.v_out, &data.v_out, &v_scale_, &data.v_out_scales);
    Move(&fused_.rest, &data.rest);
    Move(&fused_.rest_out, &data.rest_out, &rest_scale_, &data.rest_out_scales);
    Move(&fused_.q_norm, &q_norm_, &data.q_norm_weight, &data.q_norm_bias, &data.q_norm_rstd);
    Move(&fused_.k_norm, &k_norm_, &data.k_norm_weight, &data.k_norm_bias, &data.k_norm_rstd);
    Move(&fused_.v_norm, &v_norm_, &data.v_norm_weight, &data.v_norm_bias, &data.v_norm_rstd);
    if (fused_.cache == nullptr) return;
    cache_ = *fused_.cache;
    fused_.cache = &cache_;
    Move(&cache_.k, &data.cache_k, &cache_k_scale_, &data.cache_k_scales);
    Move(&cache_.v, &data.cache_v, &cache_v_scale_, &data.cache_v_scales);
  }
  PreparedCall(const PreparedCall&) = delete;
  PreparedCall& operator=(const PreparedCall&) = delete;

  const rope_qk_args& args() const { return args_; }
  rope_qk_data data = ROPE_INIT(rope_qk_data);

 private:
  static void Move(rope_tensor* t, void** to) {
    *to = t->data;
    t->data = nullptr;
  }
  static void Move(rope_tensor* t, void** to, rope_scale* scale, void** scales) {
    Move(t, to);
    if (t->scale == nullptr) return;
    *scale = *t->scale;
    t->scale = scale;
    *scales = scale->data;
    scale->data = nullptr;
  }
  static void Move(const rope_norm** from, rope_norm* to, const void** weight, const void** bias,
                   const float** rstd) {
    if (*from == nullptr) return;
    *to = **from;
    *from = to;
    *weight = to->weight;
    *bias = to->bias;
    *rstd = to->rstd;
    to->weight = to->bias = nullptr;
    to->rstd = nullptr;
  }

  rope_qk_args args_;
  rope_fused fused_;
  rope_kv_cache cache_;
  rope_scale q_scale_, k_scale_, v_scale_, rest_scale_, cache_k_scale_, cache_v_scale_;
  rope_norm q_norm_, k_norm_, v_norm_;
};

// Prepares a call, and makes it once.
inline rope_status ApplyPrepared(const rope_context* context, const rope_qk_args& args) {
  const PreparedCall call(args);
  rope_prepared* made = nullptr;
  if (rope_status s = rope_prepared_create(context, &call.args(), &made)) return s;
  const Prepared prepared(made);
  return rope_prepared_apply(made, &call.data);
}

}  // namespace rope::testing

#endif  // LIBROPE_TESTS_SUPPORT_PREPARED_CALL_H_
