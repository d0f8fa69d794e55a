// Random calls whose outputs and caches have another dtype than their input, are in 8 bits or
// repeat heads, and moves of what is in 8 bits, on a machine: the bytes of the definition and of
// the CPU.
#ifndef LIBROPE_TESTS_GPU_OUTPUT_CASES_H_
#define LIBROPE_TESTS_GPU_OUTPUT_CASES_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "librope/rope.h"
#include "math/element.h"
#include "support/convert_call.h"
#include "support/handles.h"
#include "support/machine.h"
#include "support/move_codes_call.h"
#include "support/random.h"

namespace rope::testing {

struct OutputTally {
  int refused = 0, several = 0, normed = 0;
};

// One call against the definition.
inline void RunOutputs(const rope_config& config, bool norms, uint64_t seed, Machine* machine,
                       OutputTally* tally) {
  SCOPED_TRACE("seed " + std::to_string(seed));
  const Context cpu = Create(config), device = machine->Create({config});
  ConvertCall call(config, norms, true, seed);
  Random r(seed);
  const std::vector<char> want = call.Want(cpu);
  const rope_status s = machine->Apply(device, call.args(), {SpanOf(call.memory())}, &r);
  if (s == ROPE_ERROR_UNSUPPORTED) {
    EXPECT_GT(Info(device).pairs, 128) << rope_last_error();
    ++tally->refused;
    return;
  }
  ASSERT_OK(s);
  call.ExpectMemory(want);
  tally->several += machine->launches > 1;
  tally->normed += call.is_normed();
}

// So many rounds through these configurations.
inline void RunAllOutputs(const std::vector<rope_config>& configs, int rounds, Machine* machine,
                          OutputTally* tally) {
  uint64_t seed = 1;
  for (int n = 0; n < rounds; ++n) {
    for (const rope_config& config : configs) {
      for (const bool norms : {false, true}) {
        RunOutputs(config, norms, seed++, machine, tally);
        ASSERT_FALSE(::testing::Test::HasFailure())
            << "head_dim " << config.head_dim << " rotary_dim " << config.rotary_dim << " pairing "
            << config.pairing << " rounding " << config.rounding;
      }
    }
  }
}

// What the definition's calls do not have: rows of cos and sin, for each head as well, several
// frequency sets, blocks of Q8_0, batch rows that share positions. The CPU says what is right.
struct OwnCall {
  static constexpr int kDim = 64, kHeads = 4, kPages = 5, kPageSize = 4;
  enum Way { kRows, kRowHeads, kSets, kRepeated, kWays };

  OwnCall(Way way, Random* r) : way_(way) {
    for (int s = 0; s < (way == kSets ? 12 : 1); ++s) {
      configs_.push_back(Config(kDim, r->Of({ROPE_PAIRING_HALVES, ROPE_PAIRING_INTERLEAVED})));
      configs_.back().pairing = configs_[0].pairing;
      configs_.back().angle = ROPE_ANGLE_EXACT;
      configs_.back().theta = 10000 + 1000 * s;
    }
    batch_ = way == kRepeated ? 6 : r->Pick(1, 3);
    tokens_ = r->Pick(1, 5);
    args_ = Args(batch_, tokens_);
    for (int64_t i = 0; i < batch_ * tokens_; ++i) {
      ids_.push_back(r->Pick(0, 9000));
      slots_.push_back((i * 7 + 3) % (kPages * kPageSize));
      sets_.push_back(r->Pick(0, 11));
    }
    if (r->Sometimes(2)) slots_[0] = -1;
    if (batch_ * tokens_ > 1 && r->Sometimes(2)) slots_[1] = kPages * kPageSize + 3;  // missing
    if (way == kRows || way == kRowHeads) {
      rows_ = Rows(ROPE_COS_SIN_PACKED, ROPE_DTYPE_F32, kDim / 2, batch_, nullptr);
      rows_.heads = way == kRowHeads ? 2 : 0;
      for (int64_t i = 0; i < 2 * batch_ * tokens_ * kDim; ++i) {
        values_.push_back(static_cast<float>(r->Pick(-50, 50)) / 50);
      }
    }
    for (int64_t i = 0; i < batch_ * tokens_ * kHeads * kDim; ++i) {
      in_.push_back(static_cast<float>(r->Pick(-1000, 1000)) / 100);
    }
    out_.resize(static_cast<size_t>(8 + batch_ * tokens_ * kHeads * kDim * 4), 0x5a);
    cache_.resize(static_cast<size_t>(8 + kPages * kPageSize * kHeads * kDim * 2), 0x5a);
    scales_.resize(static_cast<size_t>(batch_ * tokens_ * kHeads * 4), 0.25f);
    cached_scales_.resize(kPages * kPageSize * kHeads * 4, 0.25f);
    out_dtype_ = Dtype(r);
    cache_dtype_ = Dtype(r);
    computed_ = r->Pick(0, 1);
    at_ = r->Of({0, 4, 6});
    repeats_ = way == kRowHeads ? 1 : r->Of({1, 2});
  }
  OwnCall(const OwnCall&) = delete;

  // The call; a device counts what is missing, and the CPU is not asked for it.
  const rope_qk_args& args(bool on_cpu, uint32_t* dropped) {
    args_.q = Tensor(in_.data(), ROPE_DTYPE_F32, kHeads);
    args_.k = args_.q;
    args_.q_out = Tensor(out_.data() + at_, out_dtype_, kHeads * repeats_, ROPE_LAYOUT_BHSD);
    if (IsCode(out_dtype_)) args_.q_out.scale = Scale(scales_, tokens_, &of_out_);
    fused_ = ROPE_INIT(rope_fused);
    kv_ = ROPE_INIT(rope_kv_cache);
    own_slots_ = slots_;
    for (int64_t& slot : own_slots_) {
      if (on_cpu && slot >= kPages * kPageSize) slot = -1;
    }
    kv_.kind = ROPE_SLOTS_MAPPED;
    kv_.pages = kPages;
    kv_.page_size = kPageSize;
    kv_.slots_i64 = own_slots_.data();
    kv_.slots_length = batch_ * tokens_;
    kv_.dropped = dropped;
    kv_.k = Tensor(cache_.data() + at_, cache_dtype_, kHeads, ROPE_LAYOUT_HND);
    if (IsCode(cache_dtype_)) {
      kv_.k.scale = Scale(cached_scales_, kPageSize, &of_cache_);
    }
    args_.positions = rope_positions{};
    if (way_ == kRows || way_ == kRowHeads) {
      rows_.data = values_.data();
      if (way_ == kRowHeads) rows_.heads = 2;
      args_.cos_sin = &rows_;
    } else {
      args_.positions = Ids(ROPE_POSITIONS_IDS_BT, ids_.data());
      if (way_ == kSets) args_.positions.freq_sets = sets_.data();
      if (way_ == kRepeated) args_.positions.batch_repeat = 3;
    }
    if (way_ == kRepeated) {
      args_.k = rope_tensor{};
    } else {
      fused_.cache = &kv_;
    }
    args_.fused = &fused_;
    return args_;
  }
  uint32_t missing() const {
    return static_cast<uint32_t>(
        way_ == kRepeated ? 0 : std::count_if(slots_.begin(), slots_.end(), [](int64_t slot) {
          return slot >= kPages * kPageSize;
        }));
  }
  std::vector<MemorySpan> spans() const {
    return {SpanOf(in_), SpanOf(out_), SpanOf(cache_), SpanOf(scales_), SpanOf(cached_scales_)};
  }

  std::vector<rope_config> configs_;
  std::vector<float> in_, scales_, cached_scales_, values_;
  std::vector<char> out_, cache_;

 private:
  static rope_dtype Dtype(Random* r) {
    return r->Of(
        {ROPE_DTYPE_BF16, ROPE_DTYPE_F8_E4M3, ROPE_DTYPE_F8_E5M2, ROPE_DTYPE_I8, ROPE_DTYPE_Q8_0});
  }
  const rope_scale* Scale(std::vector<float>& of, int64_t inner, rope_scale* s) {
    *s = ROPE_INIT(rope_scale);
    s->data = of.data();
    s->dtype = ROPE_DTYPE_F32;
    s->computed = computed_;
    s->group = kDim / 2;
    s->stride_head = 2;
    s->stride_token = 2 * kHeads * 2;
    s->stride_batch = s->stride_token * inner;
    return s;
  }

  const Way way_;
  int64_t batch_, tokens_;
  rope_qk_args args_;
  rope_fused fused_;
  rope_kv_cache kv_;
  rope_cos_sin rows_;
  rope_scale of_out_, of_cache_;
  std::vector<int64_t> ids_, slots_, own_slots_;
  std::vector<int32_t> sets_;
  rope_dtype out_dtype_, cache_dtype_;
  int computed_, at_, repeats_;
};

// Returns how many tokens had slots that do not exist.
inline uint32_t RunOwnCalls(int cases, Machine* machine) {
  Random r(5);
  uint32_t missing = 0;
  for (int n = 0; n < cases && !::testing::Test::HasFailure(); ++n) {
    SCOPED_TRACE("case " + std::to_string(n));
    const auto way = static_cast<OwnCall::Way>(n % OwnCall::kWays);
    OwnCall call(way, &r);
    const Context cpu = CreateSets(call.configs_), device = machine->Create(call.configs_);
    const auto out = call.out_, cache = call.cache_;
    const auto scales = call.scales_, cached_scales = call.cached_scales_;
    EXPECT_OK(rope_apply_qk(cpu.get(), &call.args(true, nullptr)));
    const auto want_out = call.out_, want_cache = call.cache_;
    const auto want_scales = call.scales_, want_cached = call.cached_scales_;
    std::copy(out.begin(), out.end(), call.out_.begin());
    std::copy(cache.begin(), cache.end(), call.cache_.begin());
    std::copy(scales.begin(), scales.end(), call.scales_.begin());
    std::copy(cached_scales.begin(), cached_scales.end(), call.cached_scales_.begin());
    std::vector<uint32_t> dropped(1);
    EXPECT_OK(machine->Apply(device, call.args(false, dropped.data()), call.spans(), &r));
    EXPECT_EQ(want_out, call.out_);
    EXPECT_EQ(want_cache, call.cache_);
    EXPECT_EQ(want_scales, call.scales_);
    EXPECT_EQ(want_cached, call.cached_scales_);
    EXPECT_EQ(dropped[0], call.missing());
    missing += dropped[0];
  }
  return missing;
}

// Keys and values in 8 bits that move, come into 8 bits or leave them, in place as well.
inline void RunMovesOfCodes(uint64_t seeds, Machine* machine) {
  int64_t kept = 0, coded = 0;
  for (uint64_t seed = 1; seed <= seeds; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Random r(seed);
    const std::vector<rope_config> sets = MoveCodesSets(&r);
    const Context cpu = CreateSets(sets), device = machine->Create(sets);
    MoveCodesCall call(sets, seed);
    const std::vector<char> want = call.Want(cpu);
    ASSERT_OK(machine->Apply(device, call.args(), {SpanOf(call.memory())}, &r));
    call.ExpectMemory(want);
    ASSERT_FALSE(::testing::Test::HasFailure());
    kept += call.kept();
    coded += call.coded();
  }
  EXPECT_GT(kept, static_cast<int64_t>(seeds));
  EXPECT_GT(coded, static_cast<int64_t>(100 * seeds));
}

}  // namespace rope::testing

#endif  // LIBROPE_TESTS_GPU_OUTPUT_CASES_H_
