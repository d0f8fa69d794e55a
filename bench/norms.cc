// QK norm: the heads of q and k are normed and turned in place, in one call. Beside it the same in
// two calls (a norm with a NOPE context, and the rotation), in one call that rounds as these do,
// both also as eager code rounds, as one layer of a prepared call, the rotation alone, and sweeps
// over the same bytes.
#include "norms.h"

#include <benchmark/benchmark.h>
#include <librope/rope.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "check.h"
#include "contexts.h"
#include "handles.h"
#include "sweeps.h"
#include "tensors.h"

namespace bench {
namespace {

// Heads of q and k have the norm, in place, where `norm` is not null.
rope_qk_args ArgsOf(const Tensors& t, const rope_fused* fused) {
  rope_qk_args args = ROPE_INIT(rope_qk_args);
  args.batch = 1;
  args.tokens = t.tokens;
  args.q = Heads(t.q.get(), t.dtype, kQHeads);
  args.k = Heads(t.k.get(), t.dtype, kKHeads);
  args.positions.kind = ROPE_POSITIONS_OFFSET;
  args.positions.offset = 1000;
  args.fused = fused;
  return args;
}

enum class Calls { kOne, kTwo, kPrepared, kRotation };
struct Contender {
  const char* name;
  Calls calls;
  rope_norm_rounding rounding;
};
constexpr Contender kContenders[] = {
    {"rope", Calls::kOne, ROPE_NORM_ROUNDING_FLOAT32},
    {"rope_rounded", Calls::kOne, ROPE_NORM_ROUNDING_ROUNDED},
    {"rope_eager", Calls::kOne, ROPE_NORM_ROUNDING_EAGER},
    {"rope_two_calls", Calls::kTwo, ROPE_NORM_ROUNDING_ROUNDED},
    {"rope_two_eager_calls", Calls::kTwo, ROPE_NORM_ROUNDING_EAGER},
    {"rope_prepared", Calls::kPrepared, ROPE_NORM_ROUNDING_FLOAT32},
    {"rope_without_norm", Calls::kRotation, 0},
};

// A call with one norm for q and k, without addresses, which `data` gets.
Prepared PrepareNormed(const rope_context* context, rope_qk_args args, rope_norm norm,
                       rope_qk_data* data) {
  data->q = std::exchange(args.q.data, nullptr);
  data->k = std::exchange(args.k.data, nullptr);
  data->q_norm_weight = data->k_norm_weight = std::exchange(norm.weight, nullptr);
  rope_fused fused = *args.fused;
  fused.q_norm = fused.k_norm = &norm;
  args.fused = &fused;
  return Prepare(context, args);
}

// Which heads share an inverse root, and weights.
enum class Shared { kByHead, kByAllHeads };

// What a contender calls, described once.
class Normed {
 public:
  Normed(const Tensors& tensors, rope_pairing pairing, Shared shared, const Contender& contender)
      : calls_(contender.calls),
        rope_(Create(pairing, ROPE_SCALING_DEFAULT)),
        nope_(Create(pairing, ROPE_SCALING_NOPE)),
        weights_(NormWeights(kQHeads * kDim)),
        normed_(ArgsOf(tensors, &fused_)),
        plain_(ArgsOf(tensors, nullptr)) {
    norm_.kind = ROPE_NORM_KIND_RMS;
    norm_.eps = 1e-6;
    norm_.weight = weights_.data();
    norm_.weight_dtype = ROPE_DTYPE_BF16;
    norm_.rounding = contender.rounding;
    if (shared == Shared::kByAllHeads) {
      norm_.span = ROPE_NORM_SPAN_ALL_HEADS;
      norm_.weight_stride_head = kDim;
    }
    fused_.q_norm = fused_.k_norm = &norm_;
    if (calls_ == Calls::kPrepared) prepared_ = PrepareNormed(rope_.get(), normed_, norm_, &data_);
  }
  Normed(const Normed&) = delete;
  Normed& operator=(const Normed&) = delete;

  rope_status operator()() const {
    if (calls_ == Calls::kPrepared) return rope_prepared_apply(prepared_.get(), &data_);
    rope_status status = ROPE_OK;
    if (calls_ == Calls::kTwo) status |= rope_apply_qk(nope_.get(), &normed_);
    return status | rope_apply_qk(rope_.get(), calls_ == Calls::kOne ? &normed_ : &plain_);
  }

 private:
  Calls calls_;
  Context rope_, nope_;
  std::vector<uint16_t> weights_;
  rope_norm norm_ = ROPE_INIT(rope_norm);
  rope_fused fused_ = ROPE_INIT(rope_fused);
  rope_qk_args normed_, plain_;
  rope_qk_data data_ = ROPE_INIT(rope_qk_data);
  Prepared prepared_;
};

// q and k after a call, which finds them as they were made and leaves them so.
Bytes After(const Tensors& t, const Normed& call) {
  Bytes q, k, after;
  AddBytes(&q, t.q.get(), t.q_bytes());
  AddBytes(&k, t.k.get(), t.k_bytes());
  if (call() == ROPE_OK) {
    AddBytes(&after, t.q.get(), t.q_bytes());
    AddBytes(&after, t.k.get(), t.k_bytes());
  }
  std::memcpy(t.q.get(), q.data(), q.size());
  std::memcpy(t.k.get(), k.data(), k.size());
  return after;
}

// A norm that rounds has the bits of two calls.
void Check(const std::string& group, const Tensors& tensors, rope_pairing pairing, Shared shared) {
  if (tensors.tokens > kMostChecked) return;
  for (const Contender& one : kContenders) {
    for (const Contender& two : kContenders) {
      if (one.calls != Calls::kOne || two.calls != Calls::kTwo || one.rounding != two.rounding)
        continue;
      ExpectSame(group, one.name, After(tensors, Normed(tensors, pairing, shared, one)), two.name,
                 After(tensors, Normed(tensors, pairing, shared, two)));
    }
  }
}

void Norms(rope_dtype dtype, rope_pairing pairing, int64_t tokens,
           Shared shared = Shared::kByHead) {
  const std::string group = std::string("norms_") +
                            (shared == Shared::kByAllHeads ? "all_heads_" : "") + DtypeName(dtype) +
                            (pairing == ROPE_PAIRING_HALVES ? "_halves_" : "_interleaved_") +
                            std::to_string(tokens);
  const auto checked = std::make_shared<bool>(false);
  for (const Contender& contender : kContenders) {
    const std::string name = group + "/" + contender.name;
    benchmark::RegisterBenchmark(name.c_str(), [=](benchmark::State& state) {
      const Tensors& tensors = GetTensors(dtype, tokens);
      if (!std::exchange(*checked, true)) Check(group, tensors, pairing, shared);
      const Normed call(tensors, pairing, shared, contender);
      rope_status status = ROPE_OK;
      for (auto _ : state) {
        status |= call();
        benchmark::ClobberMemory();
      }
      if (status != ROPE_OK) state.SkipWithError(rope_last_error());
      state.counters["tokens"] = static_cast<double>(tokens);
    });
  }
  static volatile float one = 1;
  for (const Sweep& sweep : RmwSweeps()) {
    benchmark::RegisterBenchmark((group + "/" + sweep.name).c_str(), [=](benchmark::State& state) {
      const Tensors& t = GetTensors(dtype, tokens);
      for (auto _ : state) {
        sweep.run(static_cast<float*>(t.q.get()), t.q_bytes(), one);
        sweep.run(static_cast<float*>(t.k.get()), t.k_bytes(), one);
        benchmark::ClobberMemory();
      }
      state.counters["tokens"] = static_cast<double>(tokens);
    });
  }
}

}  // namespace

void RegisterNorms() {
  for (const rope_dtype dtype : {ROPE_DTYPE_F32, ROPE_DTYPE_BF16, ROPE_DTYPE_F16}) {
    for (const int64_t tokens : {1, 16, 512, 2048, 8192, 32768}) {
      Norms(dtype, ROPE_PAIRING_HALVES, tokens);
    }
    Norms(dtype, ROPE_PAIRING_INTERLEAVED, 16);
    Norms(dtype, ROPE_PAIRING_INTERLEAVED, 2048);
    for (const int64_t tokens : {1, 2, 16, 512, 2048, 8192, 32768}) {
      Norms(dtype, ROPE_PAIRING_HALVES, tokens, Shared::kByAllHeads);
    }
  }
}

}  // namespace bench
