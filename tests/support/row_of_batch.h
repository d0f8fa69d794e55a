// A call on one row of the batch of another call, described anew: its tensors, positions, slots,
// scales and norms begin where those of the row do.
#ifndef LIBROPE_TESTS_SUPPORT_ROW_OF_BATCH_H_
#define LIBROPE_TESTS_SUPPORT_ROW_OF_BATCH_H_

#include <gtest/gtest.h>

#include <cstdint>

#include "support/q8_0.h"
#include "support/reference.h"

namespace rope::testing {

class RowOfBatch {
 public:
  // Of row b of a call whose positions are those of batch rows. Nothing is prepared.
  RowOfBatch(const rope_config& config, const rope_qk_args& whole, int64_t b)
      : config_(config), whole_(whole), b_(b), args(whole) {
    args.batch = 1;
    Take(&args.q, nullptr), Take(&args.k, nullptr);
    Take(&args.q_out, &scales_[0]), Take(&args.k_out, &scales_[1]);
    TakePositions();
    if (whole.fused == nullptr) return;
    fused_ = *whole.fused;
    args.fused = &fused_;
    Take(&fused_.v, nullptr), Take(&fused_.v_out, &scales_[2]);
    Take(&fused_.rest, nullptr), Take(&fused_.rest_out, &scales_[3]);
    const rope_norm** const norms[] = {&fused_.q_norm, &fused_.k_norm, &fused_.v_norm};
    for (int n = 0; n < 3; ++n) {
      if (*norms[n] == nullptr) continue;
      norms_[n] = **norms[n];
      if (norms_[n].rstd != nullptr) norms_[n].rstd += b * whole.tokens;
      *norms[n] = &norms_[n];
    }
    if (fused_.cache != nullptr) TakeSlots();
  }
  RowOfBatch(const RowOfBatch&) = delete;

 private:
  const rope_config& config_;
  const rope_qk_args& whole_;
  const int64_t b_;

 public:
  rope_qk_args args;

 private:
  void Take(rope_tensor* t, rope_scale* scale) {
    if (t->heads == 0) return;
    const int64_t width = t->head_dim != 0 ? t->head_dim : config_.head_dim;
    const auto at = [&](int64_t b, int64_t token, int64_t h) {
      return HeadOffset(*t, whole_.batch, whole_.tokens, width, b, token, h);
    };
    const int64_t first = at(b_, 0, 0), token = at(0, 1, 0), head = at(0, 0, 1);
    t->data = static_cast<char*>(t->data) + BytesInMemory(t->dtype, first);
    t->layout = ROPE_LAYOUT_STRIDED;
    SetStrides(t, 0, token, head);
    if (t->scale == nullptr || scale == nullptr) return;
    *scale = *t->scale;
    t->scale = scale;
    if (scale->data == nullptr) return;
    const int64_t size = scale->dtype == ROPE_DTYPE_F32 ? 4 : 1;
    scale->data = static_cast<char*>(scale->data) + b_ * scale->stride_batch * size;
  }

  template <class T>
  static void Move(const T** array, int64_t by) {
    if (*array != nullptr) *array += by;
  }

  void TakePositions() {
    rope_positions& p = args.positions;
    ASSERT_TRUE(p.cu_seqlens == nullptr && p.shard == nullptr && p.batch_repeat <= 1);
    Move(&p.freq_sets, b_);
    Move(&p.offsets_i32, b_), Move(&p.offsets_i64, b_);
    const int64_t axes = config_.axes != 0 ? config_.axes : 1, tokens = whole_.tokens;
    int64_t by = 0;
    switch (p.kind) {
      case ROPE_POSITIONS_IDS_BT: by = b_ * tokens; break;
      case ROPE_POSITIONS_IDS_BTA: by = b_ * tokens * axes; break;
      case ROPE_POSITIONS_IDS_STRIDED: by = b_ * p.stride_batch; break;
      case ROPE_POSITIONS_IDS_ABT:
        by = b_ * tokens;
        p.kind = ROPE_POSITIONS_IDS_STRIDED;
        p.stride_axis = whole_.batch * tokens;
        p.stride_token = 1;
        break;
      default: break;
    }
    Move(&p.ids_i32, by), Move(&p.ids_i64, by), Move(&p.ids_f32, by);
  }

  void TakeSlots() {
    cache_ = *fused_.cache;
    fused_.cache = &cache_;
    const int64_t tokens = whole_.tokens;
    if (cache_.kind == ROPE_SLOTS_MAPPED) {
      cache_.slots_length -= b_ * tokens;
      if (cache_.slots_length >= 1) {
        Move(&cache_.slots_i32, b_ * tokens), Move(&cache_.slots_i64, b_ * tokens);
      } else {  // padding
        static constexpr int32_t kNowhere = -1;
        cache_.slots_i32 = &kNowhere;
        cache_.slots_i64 = nullptr;
        cache_.slots_length = 1;
      }
      return;
    }
    Move(&cache_.starts, b_);
    if (cache_.page_starts != nullptr) {
      Move(&cache_.page_starts, b_);
    } else if (cache_.kind == ROPE_SLOTS_PAGED) {
      Move(&cache_.page_table, b_ * cache_.page_table_stride);
    } else {  // a sequence owns a page
      cache_.pages -= b_;
      for (rope_tensor* t : {&cache_.k, &cache_.v}) {
        if (t->heads == 0) continue;
        const int64_t width = t->head_dim != 0 ? t->head_dim : config_.head_dim;
        const int64_t page = t->layout == ROPE_LAYOUT_STRIDED ? t->stride_batch
                                                              : cache_.page_size * t->heads * width;
        t->data = static_cast<char*>(t->data) + BytesInMemory(t->dtype, b_ * page);
      }
    }
  }

  rope_fused fused_ = ROPE_INIT(rope_fused);
  rope_kv_cache cache_ = ROPE_INIT(rope_kv_cache);
  rope_scale scales_[4];
  rope_norm norms_[3];
};

}  // namespace rope::testing

#endif  // LIBROPE_TESTS_SUPPORT_ROW_OF_BATCH_H_
