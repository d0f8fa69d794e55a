// Random calls and configs with something wrong in them, without anything that the library would
// read and that is not there. A change that breaks no rule is as good.
#ifndef LIBROPE_TESTS_BITS_BROKEN_CALL_H_
#define LIBROPE_TESTS_BITS_BROKEN_CALL_H_

#include <cmath>
#include <cstdint>
#include <vector>

#include "call.h"
#include "librope/rope.h"

namespace bits {

inline void BreakConfig(Random& r, rope_config* c) {
  static const std::vector<double> kTable(1024, 1.5);
  static const std::vector<uint8_t> kAxes(1024, 1);
  const int32_t number =
      r.Of({-1, 0, 1, 2, 3, 4, 5, 8, 9, 64, 99, 1023, 1024, 1026, INT32_MAX, INT32_MIN});
  const double value =
      r.Of({-1.0, 0.0, 0.5, 1.0, 2.0, 8.0, 1e9, 1e300, double(INFINITY), double(NAN)});
  const int64_t length = r.Of<int64_t>({-1, 0, 1, 4096, INT64_MAX});
  const double* table = r.Sometimes(3) ? nullptr : kTable.data();
  switch (r.Pick(0, 31)) {
    case 0:
      c->struct_size = static_cast<uint32_t>(r.Of({0, 4, 20, 100, 254, 256, 260, 5000}));
      break;
    case 1: c->head_dim = number; break;
    case 2: c->theta = value; break;
    case 3: c->pairing = number; break;
    case 4: c->rotary_dim = number; break;
    case 5: c->rotary_offset = number; break;
    case 6: c->angle = number; break;
    case 7: c->rounding = number; break;
    case 8: c->inv_freq_dtype = number; break;
    case 9: c->scaling = number; break;
    case 10: c->yarn_no_truncate = number; break;
    case 11: c->factor = value; break;
    case 12: c->attention_factor = value; break;
    case 13: c->max_position_embeddings = length; break;
    case 14: c->original_max_position_embeddings = length; break;
    case 15: c->seq_len = length; break;
    case 16: c->beta_fast = value; break;
    case 17: c->beta_slow = value; break;
    case 18: c->mscale = value; break;
    case 19: c->mscale_all_dim = value; break;
    case 20: c->low_freq_factor = value; break;
    case 21: c->high_freq_factor = value; break;
    case 22: c->axes = number; break;
    case 23: c->mrope_interleaved = number; break;
    case 24: c->mrope_section[r.Below(4)] = number; break;
    case 25: c->table_length = r.Of({-1, 0, 1, 8, 16, 32, 64}); break;
    case 26: c->ids_per_axis = number; break;
    case 27: c->short_factor = c->long_factor = table; break;
    case 28: c->freq_factors = table; break;
    case 29: c->inv_freq = table; break;
    case 30: c->pair_axis = r.Sometimes(3) ? nullptr : kAxes.data(); break;
    default: c->device = r.Of({-1, 0, 1, 3, 99}), c->device_index = r.Of({-1, 0, 1}); break;
  }
}

inline void BreakTensor(Random& r, rope_tensor* t) {
  switch (r.Pick(0, 8)) {
    case 0: t->data = r.Sometimes(2) ? nullptr : static_cast<char*>(t->data) + 1; break;
    case 1: t->dtype = r.Of({-1, 0, 4, 99}); break;
    case 2: t->layout = r.Of({-1, 0, 5, 99}); break;
    case 3: t->heads = r.Of({-1, 0, INT32_MIN}); break;
    case 4: t->head_dim = r.Of({-1, 7, 4096}); break;
    case 5: t->stride_batch = r.Of({-1, -8}); break;
    case 6: t->stride_token = r.Of<int64_t>({-1, INT64_MAX}), t->stride_head = INT64_MAX; break;
    case 7: t->reserved = 1; break;
    default: t->scale = reinterpret_cast<rope_scale*>(t); break;
  }
}

inline void BreakPositions(Random& r, rope_positions* p) {
  static const int64_t kNumbers[2] = {0, 0};
  switch (r.Pick(0, 9)) {
    case 0: p->kind = r.Of({-1, 0, 8, 99}); break;
    case 1: p->sequences = r.Of({-1, INT32_MIN}); break;
    case 2: p->offset = p->kind == 1 ? p->offset : 7; break;
    case 3: p->offsets_i64 = p->kind == 2 ? nullptr : kNumbers; break;
    case 4: p->ids_i64 = p->kind >= kIdsT ? nullptr : kNumbers; break;
    case 5: p->ids_i32 = nullptr, p->ids_f32 = nullptr; break;
    case 6: p->freq_sets = reinterpret_cast<const int32_t*>(r.Sometimes(2) ? 0 : 0x1001); break;
    case 7: p->stride_token = -1; break;
    case 8: p->reserved[r.Below(3) % 2] = 1; break;
    default: p->reserved[1] = 1; break;
  }
}

inline void BreakCall(Random& r, rope_qk_args* args, rope_cos_sin* rows) {
  switch (r.Pick(0, 12)) {
    case 0: args->struct_size = static_cast<uint32_t>(r.Of({0, 4, 100, 7000})); break;
    case 1: args->operation = r.Of({-1, 3, 4, 99}); break;
    case 2: args->batch = r.Of<int64_t>({-1, 0, INT64_MIN}); break;
    case 3: args->tokens = r.Of<int64_t>({-1, 0, INT64_MIN}); break;
    case 4: args->fused = reinterpret_cast<const rope_fused*>(args); break;
    case 5: args->stream = args; break;
    case 6: args->k_out = args->q; break;
    case 7: args->q_out = args->k; break;
    case 8: BreakTensor(r, r.Sometimes(2) ? &args->q : &args->k); break;
    case 9: BreakTensor(r, r.Sometimes(2) ? &args->q_out : &args->k_out); break;
    default:
      if (args->cos_sin == nullptr) {
        BreakPositions(r, &args->positions);
        break;
      }
      switch (r.Pick(0, 8)) {
        case 0: rows->struct_size = static_cast<uint32_t>(r.Of({0, 4, 7000})); break;
        case 1: rows->format = r.Of({-1, 0, 7, 8, 9, 10, 99}); break;
        case 2: rows->dtype = r.Of({-1, 0, 4, 99}); break;
        case 3: rows->pairs += r.Of({-1, 1}); break;
        case 4: rows->batch = r.Of({-1, 0, 7}); break;
        case 5: rows->stride_token = r.Of<int64_t>({-1, 1, INT64_MAX}); break;
        case 6: rows->data = r.Sometimes(2) ? nullptr : static_cast<char*>(rows->data) + 1; break;
        case 7: rows->sin = rows->sin == nullptr ? rows->data : nullptr; break;
        default: args->positions.kind = 1; break;
      }
  }
}

}  // namespace bits

#endif  // LIBROPE_TESTS_BITS_BROKEN_CALL_H_
