// A layer with QK norm: q is normed and turned in place, k is normed and turned into the pages of a
// cache, v is copied there; pages of e4m3 take both as codes of one given scale. Beside it the same
// by three steps (the norm by a NOPE context, the rotation in place, then copies or a NOPE call
// that codes), and what does no more than move the same bytes between the same addresses.
#include "norm_append.h"

#include <benchmark/benchmark.h>
#include <librope/rope.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "check.h"
#include "contexts.h"
#include "handles.h"
#include "step.h"
#include "tensors.h"

namespace bench {
namespace {

enum class Way { kOneCall, kPrepared, kThreeSteps };
struct Contender {
  const char* name;
  Way way;
  rope_norm_rounding rounding;
};
constexpr Contender kContenders[] = {
    {"rope", Way::kOneCall, ROPE_NORM_ROUNDING_FLOAT32},
    {"rope_prepared", Way::kPrepared, ROPE_NORM_ROUNDING_FLOAT32},
    {"rope_rounded", Way::kOneCall, ROPE_NORM_ROUNDING_ROUNDED},
    {"rope_three_calls", Way::kThreeSteps, ROPE_NORM_ROUNDING_ROUNDED},
    {"rope_eager", Way::kOneCall, ROPE_NORM_ROUNDING_EAGER},
    {"rope_three_eager_calls", Way::kThreeSteps, ROPE_NORM_ROUNDING_EAGER},
};

// What a contender calls, described once. Where the norm rounds, codes are of keys that were
// rounded to bf16 first, as the three steps have them.
class Call {
 public:
  Call(const Step& step, const Contender& contender)
      : step_(step),
        way_(contender.way),
        context_(Create(ROPE_PAIRING_HALVES, ROPE_SCALING_DEFAULT)),
        nope_(Create(ROPE_PAIRING_HALVES, ROPE_SCALING_NOPE)),
        weights_(NormWeights(kDim)),
        scale_(step.Scale(nullptr)),
        cache_(step.Cache(&scale_, &scale_)),
        args_(step.Args()) {
    scale_.round_first = contender.rounding != ROPE_NORM_ROUNDING_FLOAT32;
    norm_.kind = ROPE_NORM_KIND_RMS;
    norm_.eps = 1e-6;
    norm_.weight = weights_.data();
    norm_.weight_dtype = ROPE_DTYPE_BF16;
    norm_.rounding = contender.rounding;
    normed_.q_norm = normed_.k_norm = &norm_;
    stored_.cache = &cache_;
    stored_.v = step.Described(step.v.get(), kHeads, ROPE_LAYOUT_BSHD);
    if (way_ == Way::kThreeSteps) {
      norm_args_ = store_args_ = args_;
      norm_args_.fused = &normed_;
      store_args_.q = rope_tensor{};
      store_args_.fused = &stored_;
      return;
    }
    stored_.q_norm = stored_.k_norm = &norm_;
    args_.fused = &stored_;
    if (way_ != Way::kPrepared) return;
    data_.q = std::exchange(args_.q.data, nullptr);
    data_.k = std::exchange(args_.k.data, nullptr);
    data_.v = std::exchange(stored_.v.data, nullptr);
    data_.cache_k = std::exchange(cache_.k.data, nullptr);
    data_.cache_v = std::exchange(cache_.v.data, nullptr);
    data_.q_norm_weight = data_.k_norm_weight = std::exchange(norm_.weight, nullptr);
    prepared_ = Prepare(context_.get(), args_);
  }
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  rope_status operator()() const {
    if (way_ == Way::kPrepared) return rope_prepared_apply(prepared_.get(), &data_);
    if (way_ == Way::kOneCall) return rope_apply_qk(context_.get(), &args_);
    rope_status status = rope_apply_qk(nope_.get(), &norm_args_);
    status |= rope_apply_qk(context_.get(), &args_);
    if (step_.pages == Pages::kSame) {
      step_.CopyToSlots(CopyOrdinary);
    } else {
      status |= rope_apply_qk(nope_.get(), &store_args_);
    }
    return status;
  }

 private:
  const Step& step_;
  Way way_;
  Context context_, nope_;
  std::vector<uint16_t> weights_;
  rope_scale scale_;
  rope_norm norm_ = ROPE_INIT(rope_norm);
  rope_kv_cache cache_;
  rope_fused normed_ = ROPE_INIT(rope_fused), stored_ = normed_;
  rope_qk_args args_, norm_args_ = ROPE_INIT(rope_qk_args), store_args_ = norm_args_;
  Prepared prepared_;
  rope_qk_data data_ = ROPE_INIT(rope_qk_data);
};

// Each pair of kContenders is by one rounding.
void Check(const std::string& group, const Step& step) {
  if (static_cast<int64_t>(step.slots.size()) > kMostChecked) return;
  for (size_t i = 0; i < std::size(kContenders); i += 2) {
    const Contender &one = kContenders[i], &other = kContenders[i + 1];
    ExpectSame(group, one.name, step.After(Call(step, one)), other.name,
               step.After(Call(step, other)));
  }
}

void NormAppend(Pages pages, int64_t sequences, int64_t tokens) {
  const int64_t all = sequences * tokens;
  const std::string group = std::string("norm_append_bf16") + kPagesNames[static_cast<int>(pages)] +
                            "_nhd_" + std::to_string(all);
  // Made by the contender that runs first.
  const auto shared = std::make_shared<std::unique_ptr<Step>>();
  const auto add = [=](const std::string& contender, auto body) {
    benchmark::RegisterBenchmark((group + "/" + contender).c_str(), [=](benchmark::State& state) {
      if (*shared == nullptr) {
        *shared = std::make_unique<Step>(ROPE_DTYPE_BF16, pages, false, sequences, tokens);
        Check(group, **shared);
      }
      body(state, **shared);
      state.counters["tokens"] = static_cast<double>(all);
    });
  };
  for (const Contender& contender : kContenders) {
    add(contender.name, [=](benchmark::State& state, const Step& step) {
      const Call run(step, contender);
      rope_status status = ROPE_OK;
      for (auto _ : state) {
        status |= run();
        benchmark::ClobberMemory();
      }
      if (status != ROPE_OK) state.SkipWithError(rope_last_error());
    });
  }
  AddMoves(add, ROPE_DTYPE_BF16, pages);
}

}  // namespace

void RegisterNormAppend() {
  for (const Pages pages : {Pages::kSame, Pages::kGivenE4m3}) {
    NormAppend(pages, 64, 1);
    for (const int64_t tokens : {1, 8, 512, 2048, 8192, 32768}) NormAppend(pages, 1, tokens);
  }
}

}  // namespace bench
