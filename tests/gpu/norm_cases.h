// Random calls with norms on a machine and on the CPU: the same bytes, whatever else the call does.
#ifndef LIBROPE_TESTS_GPU_NORM_CASES_H_
#define LIBROPE_TESTS_GPU_NORM_CASES_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "librope/rope.h"
#include "support/elements.h"
#include "support/enumerators.h"
#include "support/handles.h"
#include "support/machine.h"
#include "support/norm_call.h"
#include "support/random.h"

namespace rope::testing {

// Of one target: all have the bits of the others (norm_test).
class NormCases : public NormCalls {
 protected:
  // A tensor of the call, to one or two places.
  struct Side {
    rope_dtype dtype;
    int heads, width;  // of the input
    bool in_place, cached, normed;
    Memory in, out, cache;
    Weighted norm;
  };

  Side MakeSide(Random* random, bool turns, bool cached, bool heads_apart) {
    Side side;
    side.dtype = random->Pick(1, kLastDtype);
    if (config_.rounding == ROPE_ROUNDING_NATIVE && turns) side.dtype = ROPE_DTYPE_F16;
    side.heads = random->Sometimes(6) ? random->Pick(30, 70) : random->Pick(1, 12);
    if (heads_apart) side.heads = 2 * random->Pick(1, 5);
    const auto width = [&] {
      return turns ? random->Sometimes(4) ? rotary_ : config_.head_dim : 0;
    };
    side.width = turns ? width() : random->Of({16, 40, 96, 160});
    side.in = Memory(random, side.dtype, batch_, tokens_, side.heads, side.width, side.width);
    side.in_place = random->Sometimes(2);
    side.cached = cached;
    side.normed = !random->Sometimes(5);
    int out_width = side.in_place || !turns ? side.width : width();
    if (side.normed) {
      side.norm = Weighted(random, side.heads, side.width, batch_ * tokens_, turns, true);
      rope_norm& n = side.norm.norm;
      if (heads_apart && (n.span != ROPE_NORM_SPAN_HEAD || n.weight_stride_head != 0)) {
        side.normed = false;
      }
      const bool rounds =
          config_.rounding == ROPE_ROUNDING_EAGER || config_.rounding == ROPE_ROUNDING_NATIVE;
      if (turns && side.dtype != ROPE_DTYPE_F32 && !nope() &&
          (rounds || n.span == ROPE_NORM_SPAN_ALL_HEADS) &&
          n.rounding == ROPE_NORM_ROUNDING_FLOAT32) {
        n.rounding = random->Pick(1, 2);
      }
      if (n.order != 0) out_width = side.width;
    }
    if (!side.in_place) {
      side.out = Memory(random, side.dtype, batch_, tokens_, side.heads, out_width, out_width);
    }
    if (cached) {
      const int cached_width = side.normed ? side.width : out_width;
      side.cache =
          Memory(random, side.dtype, kPages, kPageSize, side.heads, cached_width, cached_width);
    }
    Fill(random, side.in, side.width);
    return side;
  }
  static constexpr int kPages = 9, kPageSize = 8;

  static std::string Describe(const Side& side) {
    const rope_norm& n = side.norm.norm;
    std::string text;
    for (const int64_t value :
         {int64_t{side.dtype}, int64_t{side.heads}, int64_t{side.width}, int64_t{side.in_place},
          int64_t{side.cached}, int64_t{side.normed}, int64_t{n.kind}, int64_t{n.span},
          int64_t{n.order}, int64_t{n.rounding}}) {
      text += std::to_string(value) + " ";
    }
    return text + "(dtype, heads, width, in place, cached, normed, kind, span, order, rounding)";
  }

  void RunCase(uint64_t seed, Machine* machine);

  // What configurations are taken from; empty: any.
  std::vector<rope_config> like_;

  int refused_ = 0, together_ = 0, several_ = 0, in_f32_ = 0, cached_ = 0, apart_ = 0, sets_ = 0,
      rows_given_ = 0;
};

inline void NormCases::RunCase(uint64_t seed, Machine* machine) {
  Random random(seed);
  if (like_.empty()) {
    Configure(&random);
  } else {
    config_ = like_[seed % like_.size()];
    rotary_ = config_.rotary_dim != 0 ? config_.rotary_dim : config_.head_dim;
    context_ = Create(config_);
  }
  config_.angle = random.Of({ROPE_ANGLE_FLOAT32, ROPE_ANGLE_EXACT});
  const bool with_rows = random.Sometimes(3), by_axes = config_.axes == 2;
  const bool with_sets = !with_rows && !nope() && random.Sometimes(6);
  std::vector<double> frequency;
  const bool heads_apart = !with_rows && !with_sets && !nope() && !by_axes && random.Sometimes(8);
  if (heads_apart) {
    for (int i = 0; i < rotary_; ++i) frequency.push_back(random.Pick(1, 1000) / 1000.0);
    config_.frequency = frequency.data();
    config_.theta = 0;
    config_.axes = 1;
    config_.freq_heads = 2;
    config_.table_length = rotary_ / 2;
  }
  std::vector<rope_config> configs = {config_};
  for (int s = 1; with_sets && s < 10; ++s) {
    configs.push_back(config_);
    configs.back().theta = 10000 + 1000 * s;
  }
  const Context cpu = CreateSets(configs), device = machine->Create(configs);
  ASSERT_TRUE(cpu != nullptr && device != nullptr) << rope_last_error();
  const bool with_shard = !with_rows && !by_axes && random.Sometimes(5);
  const bool packed = !with_rows && !by_axes && !with_shard && random.Sometimes(3);
  batch_ = packed ? 1 : random.Pick(1, 2);
  tokens_ = random.Sometimes(3) ? 2 * random.Pick(1, 12) : 2 * random.Pick(1, 2);
  rope_cos_sin rows{};
  if (with_rows) rows = MakeRows(&random);

  rope_qk_args args = Args(batch_, tokens_);
  rope_fused fused = ROPE_INIT(rope_fused);
  args.fused = &fused;
  std::vector<int64_t> ids;
  for (int64_t i = 0; i < 2 * batch_ * tokens_; ++i) ids.push_back(random.Pick(-100, 100000));
  const std::vector<int32_t> cuts = {0, random.Pick(0, static_cast<int>(tokens_)),
                                     static_cast<int32_t>(tokens_)};
  std::vector<int32_t> sets;
  for (int i = 0; i < 2; ++i) sets.push_back(random.Pick(0, 9));
  rope_shard shard{};
  shard.scheme = random.Of({ROPE_SHARD_CONTIGUOUS, ROPE_SHARD_ZIGZAG, ROPE_SHARD_STRIPED});
  shard.world = 3;
  shard.rank = random.Pick(0, 2);
  if (with_rows) {
    args.cos_sin = &rows;
  } else if (by_axes) {
    args.positions = Ids(ROPE_POSITIONS_IDS_ABT, ids.data());
  } else if (with_shard || packed || random.Sometimes(2)) {
    args.positions = Offset(random.Pick(0, 5000));
    if (with_shard) args.positions.shard = &shard;
    if (packed) {
      args.positions.cu_seqlens = cuts.data();
      args.positions.sequences = 2;
    }
  } else {
    args.positions = Ids(ROPE_POSITIONS_IDS_BT, ids.data());
  }
  if (with_sets) args.positions.freq_sets = sets.data();

  const bool cached = random.Sometimes(3), with_q = !random.Sometimes(6);
  Side q = MakeSide(&random, true, false, heads_apart),
       k = MakeSide(&random, true, cached, heads_apart),
       v = MakeSide(&random, false, cached && random.Sometimes(2), false);
  const bool with_v = v.cached || random.Sometimes(2);
  rope_kv_cache cache = ROPE_INIT(rope_kv_cache);
  std::vector<int32_t> slots;
  if (cached) {
    for (int32_t i = 0; i < batch_ * tokens_; ++i)
      slots.push_back((i * 7 + 3) % (kPages * kPageSize));
    if (random.Sometimes(2)) slots[0] = -1;
    cache.kind = ROPE_SLOTS_MAPPED;
    cache.pages = kPages;
    cache.page_size = kPageSize;
    cache.slots_i32 = slots.data();
    cache.slots_length = batch_ * tokens_;
    cache.k = k.cache.tensor;
    if (v.cached) cache.v = v.cache.tensor;
    fused.cache = &cache;
  }
  if (with_q) {
    args.q = q.in.tensor;
    if (!q.in_place) args.q_out = q.out.tensor;
    if (q.normed) fused.q_norm = &q.norm.norm;
  }
  args.k = k.in.tensor;
  if (k.normed) fused.k_norm = &k.norm.norm;
  const bool k_twice = !cached || random.Sometimes(2);
  if (k_twice) args.k_out = k.in_place ? k.in.tensor : k.out.tensor;
  if (with_v) {
    fused.v = v.in.tensor;
    if (v.normed) fused.v_norm = &v.norm.norm;
    if (!v.cached || random.Sometimes(2)) fused.v_out = v.in_place ? v.in.tensor : v.out.tensor;
  }
  if (fused.q_norm == nullptr && fused.k_norm == nullptr && fused.v_norm == nullptr) return;

  std::vector<Memory*> all;
  for (Side* side : {&q, &k, &v}) {
    for (Memory* memory : {&side->in, &side->out, &side->cache}) {
      if (!memory->bytes.empty()) all.push_back(memory);
    }
  }
  std::vector<std::vector<char>> before, want;
  for (const Memory* memory : all) before.push_back(memory->bytes);
  const rope_status on_cpu = rope_apply_qk(cpu.get(), &args);
  ASSERT_EQ(on_cpu, ROPE_OK) << rope_last_error();
  std::vector<MemorySpan> spans;
  for (size_t n = 0; n < all.size(); ++n) {
    want.push_back(all[n]->bytes);
    std::copy(before[n].begin(), before[n].end(), all[n]->bytes.begin());
    spans.push_back(SpanOf(all[n]->bytes));
  }
  const rope_status s = machine->Apply(device, args, spans, &random);
  if (s == ROPE_ERROR_UNSUPPORTED) {
    EXPECT_GT(rotary_ / 2, 64) << rope_last_error();
    ++refused_;
    return;
  }
  ASSERT_EQ(s, ROPE_OK) << rope_last_error();
  for (size_t n = 0; n < all.size(); ++n) {
    const rope_dtype dtype = all[n]->tensor.dtype;
    const auto count = static_cast<int64_t>(want[n].size()) / SizeOf(dtype);
    for (int64_t i = 0; i < count; ++i) {
      ASSERT_TRUE(IsSame(dtype, want[n].data(), all[n]->bytes.data(), i))
          << "memory " << n << " of " << all.size() << ", element " << i << " of " << count << ": "
          << ReadElement(dtype, all[n]->bytes.data() + i * SizeOf(dtype)) << ", on the CPU "
          << ReadElement(dtype, want[n].data() + i * SizeOf(dtype)) << "; head_dim "
          << config_.head_dim << " rotary_dim " << rotary_ << " pairing " << config_.pairing
          << " rounding " << config_.rounding << " scaling " << config_.scaling << " rows "
          << with_rows << "; q: " << Describe(q) << "; k: " << Describe(k)
          << "; v: " << Describe(v);
    }
  }
  several_ += machine->launches > 1;
  cached_ += cached;
  apart_ += heads_apart;
  sets_ += with_sets;
  rows_given_ += with_rows;
  const rope_norm& n = k.norm.norm;
  together_ += k.normed && n.span == ROPE_NORM_SPAN_ALL_HEADS && k.heads > 32;
  in_f32_ += k.normed && k.dtype != ROPE_DTYPE_F32 && !nope() && n.rounding == 0 &&
             (n.order != 0 || n.kind >= ROPE_NORM_KIND_LAYER);
}

}  // namespace rope::testing

#endif  // LIBROPE_TESTS_GPU_NORM_CASES_H_
