// Fused calls whose tensors, caches, scales and weights begin right behind, or end right before, a
// page without access: no byte beside them is read or written, on any instruction set. Heads of
// sizes that fill vectors and that do not, as codes, blocks of Q8_0 and other dtypes, with norms
// and without, appended and moved.
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

#include "math/element.h"
#include "support/enumerators.h"
#include "support/handles.h"
#include "support/memory.h"
#include "support/random.h"
#include "support/targets.h"

namespace rope::testing {
namespace {

constexpr int kPageSize = 4, kPages = 6, kSlots = kPages * kPageSize, kHeads = 3;

class GuardedFusedTest : public TargetTest {
 protected:
  // Each piece of memory is beside one page, at the edge that the call is for.
  char* Memory(int64_t bytes) {
    memory_.push_back(std::make_unique<Guarded>(static_cast<size_t>(bytes), edge_));
    return memory_.back()->as<char>();
  }
  char* Numbers(Random* r, rope_dtype dtype, int64_t count) {
    char* const data = Memory(BytesOf(dtype, count));
    for (int64_t i = 0; i < count; ++i) {
      StoreElement(dtype, data, i, static_cast<float>(r->Below(2001) - 1000) / 250);
    }
    return data;
  }

  // A tensor of `places` tokens or slots. Codes have scales of their own.
  rope_tensor Heads(Random* r, rope_dtype dtype, int head_dim, int64_t places, rope_layout layout,
                    bool computed) {
    rope_tensor tensor = {};
    tensor.dtype = dtype;
    tensor.heads = kHeads;
    tensor.layout = layout;
    const bool in_slots = layout == ROPE_LAYOUT_NHD || layout == ROPE_LAYOUT_HND;
    const int64_t channels = places * kHeads * head_dim;
    if (IsInEightBits(dtype)) {
      tensor.data = Memory(BytesOf(dtype, channels));
      std::memset(tensor.data, 0x11, static_cast<size_t>(BytesOf(dtype, channels)));
    } else {
      tensor.data = Numbers(r, dtype, channels);
    }
    if (!IsCode(dtype)) return tensor;
    scales_.push_back(std::make_unique<rope_scale>(ROPE_INIT(rope_scale)));
    rope_scale& scale = *scales_.back();
    tensor.scale = &scale;
    if (!computed && r->Sometimes(2)) {
      scale.value = 0.125f;
      return tensor;
    }
    scale.computed = computed;
    const bool bytes = computed && r->Sometimes(2);
    scale.dtype = bytes ? ROPE_DTYPE_E8M0 : ROPE_DTYPE_F32;
    scale.power_of_two = bytes;
    scale.group = r->Of({0, head_dim / 2});
    const int64_t groups = scale.group == 0 ? 1 : 2, of_page = in_slots ? kPageSize : places;
    scale.stride_head = groups;
    scale.stride_token = kHeads * groups;
    scale.stride_batch = of_page * scale.stride_token;
    const int64_t count = places * kHeads * groups;
    scale.data = Memory(bytes ? count : 4 * count);
    if (bytes) {
      std::memset(scale.data, 127, static_cast<size_t>(count));
    } else {
      for (int64_t i = 0; i < count; ++i) StoreElement(ROPE_DTYPE_F32, scale.data, i, 0.5f);
    }
    return tensor;
  }

  rope_kv_cache Cache(Random* r, rope_dtype dtype, int head_dim, rope_layout layout, bool computed,
                      int tokens) {
    rope_kv_cache cache = ROPE_INIT(rope_kv_cache);
    cache.kind = ROPE_SLOTS_MAPPED;
    cache.pages = kPages;
    cache.page_size = kPageSize;
    cache.k = Heads(r, dtype, head_dim, kSlots, layout, computed);
    cache.v = Heads(r, dtype, head_dim, kSlots, layout, computed);
    cache.v.head_dim = head_dim;
    auto* const slots = reinterpret_cast<int64_t*>(Memory(8 * tokens));
    for (int i = 0; i < tokens; ++i) slots[i] = kSlots - 1 - i;
    if (tokens > 4) slots[2] = -1;
    cache.slots_i64 = slots;
    cache.slots_length = tokens;
    return cache;
  }

  Edge edge_ = Edge::kStart;
  std::vector<std::unique_ptr<Guarded>> memory_;
  std::vector<std::unique_ptr<rope_scale>> scales_;
};
INSTANTIATE_TARGETS(GuardedFusedTest);

constexpr rope_dtype kNumbers[] = {ROPE_DTYPE_F32, ROPE_DTYPE_F16, ROPE_DTYPE_BF16};
constexpr rope_dtype kStored[] = {ROPE_DTYPE_F32,     ROPE_DTYPE_F16, ROPE_DTYPE_BF16,
                                  ROPE_DTYPE_F8_E4M3, ROPE_DTYPE_I8,  ROPE_DTYPE_Q8_0};

TEST_P(GuardedFusedTest, AppendsTouchNothingBeside) {
  Random r(20261205);
  for (const int head_dim : {32, 64, 96, 128, 160, 256}) {
    for (const rope_dtype from : kNumbers) {
      for (const rope_dtype to : kStored) {
        for (const Edge edge : {Edge::kStart, Edge::kEnd}) {
          edge_ = edge;
          memory_.clear();
          scales_.clear();
          const int tokens = r.Of({1, 3, 17});
          const bool computed = r.Sometimes(2);
          const rope_layout layout = r.Of({ROPE_LAYOUT_NHD, ROPE_LAYOUT_HND});
          rope_qk_args args = Args(1, tokens);
          args.q = Heads(&r, from, head_dim, tokens, ROPE_LAYOUT_BSHD, false);
          args.k = Heads(&r, from, head_dim, tokens, ROPE_LAYOUT_BSHD, false);
          args.q_out = Heads(&r, to, head_dim, tokens, ROPE_LAYOUT_BSHD, computed);
          args.positions = Offset(r.Below(1000));
          const rope_kv_cache cache = Cache(&r, to, head_dim, layout, computed, tokens);
          rope_fused fused = ROPE_INIT(rope_fused);
          fused.cache = &cache;
          fused.v = Heads(&r, from, head_dim, tokens, ROPE_LAYOUT_BSHD, false);
          fused.v.head_dim = head_dim;
          rope_norm norm = ROPE_INIT(rope_norm);
          norm.kind = ROPE_NORM_KIND_RMS;
          norm.eps = 1e-6;
          norm.rounding = r.Of(
              {ROPE_NORM_ROUNDING_FLOAT32, ROPE_NORM_ROUNDING_ROUNDED, ROPE_NORM_ROUNDING_EAGER});
          norm.weight_dtype = from;
          norm.weight = Numbers(&r, from, head_dim);
          if (r.Sometimes(2)) fused.q_norm = fused.k_norm = &norm;
          args.fused = &fused;
          const Context context =
              Create(Config(head_dim, r.Of({ROPE_PAIRING_HALVES, ROPE_PAIRING_INTERLEAVED})));
          ASSERT_OK(rope_apply_qk(context.get(), &args)) << head_dim << " " << from << " " << to;
        }
      }
    }
  }
}

TEST_P(GuardedFusedTest, MovesTouchNothingBeside) {
  Random r(20261206);
  for (const int head_dim : {32, 64, 96, 128, 160, 256}) {
    for (const rope_dtype dtype : kStored) {
      for (const Edge edge : {Edge::kStart, Edge::kEnd}) {
        for (const bool in_place : {false, true}) {
          edge_ = edge;
          memory_.clear();
          scales_.clear();
          const int tokens = r.Of({1, 3, 17});
          const rope_layout layout = r.Of({ROPE_LAYOUT_NHD, ROPE_LAYOUT_HND});
          const rope_kv_cache source = Cache(&r, dtype, head_dim, layout, true, tokens),
                              cache = Cache(&r, dtype, head_dim, layout, true, tokens);
          rope_fused fused = ROPE_INIT(rope_fused);
          fused.source = &source;
          fused.cache = in_place ? &source : &cache;
          rope_qk_args args = ROPE_INIT(rope_qk_args);
          args.batch = 1;
          args.tokens = tokens;
          args.operation = ROPE_OPERATION_SHIFT;
          auto* const distance = reinterpret_cast<int64_t*>(Memory(8));
          *distance = 3;
          args.positions.kind = ROPE_POSITIONS_IDS_STRIDED;
          args.positions.ids_i64 = distance;
          args.fused = &fused;
          const Context context =
              Create(Config(head_dim, r.Of({ROPE_PAIRING_HALVES, ROPE_PAIRING_INTERLEAVED})));
          ASSERT_OK(rope_apply_qk(context.get(), &args)) << head_dim << " " << dtype;
        }
      }
    }
  }
}

}  // namespace
}  // namespace rope::testing
