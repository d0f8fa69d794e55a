// A step of an engine: q turns in place, k turns into the pages of a cache, v is copied there;
// where the pages are in 8 bits, both are coded, by one given scale, by one for each head, or as
// blocks of Q8_0. Beside it what does no more than move the same bytes between the same addresses
// (q by a sweep, k and v by copies), the rotation in place followed by copies or by a call that
// codes, and the rotation in place alone.
#include "append.h"

#include <benchmark/benchmark.h>
#include <librope/rope.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "check.h"
#include "contexts.h"
#include "handles.h"
#include "step.h"
#include "tensors.h"

namespace bench {
namespace {

// What a call leaves to others.
enum class Way { kOneCall, kPrepared, kThenCopies, kThenCodes, kInPlace };

// What a contender calls, described once.
class Call {
 public:
  Call(const Step& step, Way way)
      : step_(step),
        way_(way),
        context_(Create(ROPE_PAIRING_HALVES, ROPE_SCALING_DEFAULT)),
        nope_(Create(ROPE_PAIRING_HALVES, ROPE_SCALING_NOPE)),
        k_scale_(step.Scale(step.k_scales.get())),
        v_scale_(step.Scale(step.v_scales.get())),
        cache_(step.Cache(&k_scale_, &v_scale_)),
        args_(step.Args()) {
    fused_.cache = &cache_;
    fused_.v = step.Described(step.v.get(), kHeads, ROPE_LAYOUT_BSHD);
    stored_ = args_;
    stored_.q = rope_tensor{};
    stored_.fused = &fused_;
    if (way == Way::kOneCall || way == Way::kPrepared) args_.fused = &fused_;
    if (way != Way::kPrepared) return;
    data_.q = std::exchange(args_.q.data, nullptr);
    data_.k = std::exchange(args_.k.data, nullptr);
    data_.v = std::exchange(fused_.v.data, nullptr);
    data_.cache_k = std::exchange(cache_.k.data, nullptr);
    data_.cache_v = std::exchange(cache_.v.data, nullptr);
    if (step.pages == Pages::kComputedI8) {
      data_.cache_k_scales = std::exchange(k_scale_.data, nullptr);
      data_.cache_v_scales = std::exchange(v_scale_.data, nullptr);
    }
    prepared_ = Prepare(context_.get(), args_);
  }
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  rope_status operator()() const {
    rope_status status = way_ == Way::kPrepared ? rope_prepared_apply(prepared_.get(), &data_)
                                                : rope_apply_qk(context_.get(), &args_);
    if (way_ == Way::kThenCopies) step_.CopyToSlots(CopyOrdinary);
    if (way_ == Way::kThenCodes) status |= rope_apply_qk(nope_.get(), &stored_);
    return status;
  }

 private:
  const Step& step_;
  Way way_;
  Context context_, nope_;
  rope_scale k_scale_, v_scale_;
  rope_kv_cache cache_;
  rope_fused fused_ = ROPE_INIT(rope_fused);
  rope_qk_args args_, stored_;
  Prepared prepared_;
  rope_qk_data data_ = ROPE_INIT(rope_qk_data);
};

// Keys of 16 bits are coded from f32 in one call, and behind a rotation of its own from what it has
// rounded; given scales can say `round_first`.
void Check(const std::string& group, const Step& step) {
  if (step.dtype != ROPE_DTYPE_F32 && step.pages != Pages::kSame &&
      step.pages != Pages::kRoundedE4m3) {
    return;
  }
  if (static_cast<int64_t>(step.slots.size()) > kMostChecked) return;
  const Way second = step.pages == Pages::kSame ? Way::kThenCopies : Way::kThenCodes;
  const Bytes by_one = step.After(Call(step, Way::kOneCall));
  ExpectSame(group, "one call", by_one, "the calls apart", step.After(Call(step, second)));
  ExpectSame(group, "one call", by_one, "a prepared one", step.After(Call(step, Way::kPrepared)));
}

void Append(rope_dtype dtype, Pages pages, bool by_heads, int64_t sequences, int64_t tokens) {
  const int64_t all = sequences * tokens;
  const std::string group = std::string("append_") + DtypeName(dtype) +
                            kPagesNames[static_cast<int>(pages)] + (by_heads ? "_hnd_" : "_nhd_") +
                            std::to_string(all);
  // Made by the contender that runs first.
  const auto shared = std::make_shared<std::unique_ptr<Step>>();
  const auto add = [=](const std::string& contender, auto body) {
    benchmark::RegisterBenchmark((group + "/" + contender).c_str(), [=](benchmark::State& state) {
      if (*shared == nullptr) {
        *shared = std::make_unique<Step>(dtype, pages, by_heads, sequences, tokens);
        Check(group, **shared);
      }
      body(state, **shared);
      state.counters["tokens"] = static_cast<double>(all);
    });
  };
  const auto call = [=](const std::string& contender, Way way) {
    add(contender, [=](benchmark::State& state, const Step& step) {
      const Call run(step, way);
      rope_status status = ROPE_OK;
      for (auto _ : state) {
        status |= run();
        benchmark::ClobberMemory();
      }
      if (status != ROPE_OK) state.SkipWithError(rope_last_error());
    });
  };
  call("rope", Way::kOneCall);
  call("rope_prepared", Way::kPrepared);
  if (pages == Pages::kSame) {
    call("rope_then_copies", Way::kThenCopies);
  } else {
    call("rope_then_codes", Way::kThenCodes);
  }
  call("rope_in_place_alone", Way::kInPlace);
  AddMoves(add, dtype, pages);
}

}  // namespace

void RegisterAppend() {
  for (const rope_dtype dtype : {ROPE_DTYPE_F32, ROPE_DTYPE_BF16}) {
    for (const bool by_heads : {false, true}) {
      Append(dtype, Pages::kSame, by_heads, 1, 1);
      Append(dtype, Pages::kSame, by_heads, 64, 1);
      for (const int64_t tokens : {8, 512, 2048, 8192, 32768}) {
        Append(dtype, Pages::kSame, by_heads, 1, tokens);
      }
    }
  }
  Append(ROPE_DTYPE_F16, Pages::kSame, false, 64, 1);
  for (const int64_t tokens : {1, 8, 512, 2048, 8192, 32768}) {
    Append(ROPE_DTYPE_F16, Pages::kSame, false, 1, tokens);
  }
  for (const Pages pages : {Pages::kGivenE4m3, Pages::kComputedI8}) {
    Append(ROPE_DTYPE_BF16, pages, false, 64, 1);
    for (const int64_t tokens : {1, 8, 512, 2048, 8192, 32768}) {
      Append(ROPE_DTYPE_BF16, pages, false, 1, tokens);
    }
    Append(ROPE_DTYPE_BF16, pages, true, 1, 2048);
  }
  for (const int64_t tokens : {512, 2048}) {
    Append(ROPE_DTYPE_BF16, Pages::kRoundedE4m3, false, 1, tokens);
    Append(ROPE_DTYPE_F32, Pages::kGivenE4m3, false, 1, tokens);
    Append(ROPE_DTYPE_BF16, Pages::kGivenE5m2, false, 1, tokens);
  }
  Append(ROPE_DTYPE_BF16, Pages::kQ80, false, 64, 1);
  Append(ROPE_DTYPE_BF16, Pages::kQ80, false, 1, 2048);
  Append(ROPE_DTYPE_BF16, Pages::kQ80, false, 1, 8192);
  Append(ROPE_DTYPE_F32, Pages::kQ80, false, 1, 2048);
}

}  // namespace bench
