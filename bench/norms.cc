// QK norm: the heads of q and k are normed and turned in place, in one call. Beside it the same in
// two calls (a norm with a NOPE context, and the rotation), in one call that rounds as these do, as
// one layer of a prepared call, the rotation alone, and sweeps over the same bytes.
#include "norms.h"

#include <benchmark/benchmark.h>
#include <librope/rope.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

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
    {"rope_prepared", Calls::kPrepared, ROPE_NORM_ROUNDING_FLOAT32},
    {"rope_without_norm", Calls::kRotation, 0},
};

// A call with one norm for q and k, without addresses, which `data` gets. Null: it cannot be made.
Prepared Prepare(const rope_context* context, rope_qk_args args, rope_norm norm,
                 rope_qk_data* data) {
  data->q = std::exchange(args.q.data, nullptr);
  data->k = std::exchange(args.k.data, nullptr);
  data->q_norm_weight = data->k_norm_weight = std::exchange(norm.weight, nullptr);
  rope_fused fused = *args.fused;
  fused.q_norm = fused.k_norm = &norm;
  args.fused = &fused;
  rope_prepared* prepared = nullptr;
  if (rope_prepared_create(context, &args, &prepared) != ROPE_OK) return nullptr;
  return Prepared(prepared);
}

// Which heads share an inverse root, and weights.
enum class Shared { kByHead, kByAllHeads };

void Run(benchmark::State& state, rope_dtype dtype, rope_pairing pairing, int64_t tokens,
         Shared shared, const Contender& contender) {
  const Tensors& tensors = GetTensors(dtype, tokens);
  const Context rope = Create(pairing, ROPE_SCALING_DEFAULT),
                nope = Create(pairing, ROPE_SCALING_NOPE);
  const std::vector<uint16_t> weights(kQHeads * kDim, 0x3f80);
  rope_norm norm = ROPE_INIT(rope_norm);
  norm.kind = ROPE_NORM_KIND_RMS;
  norm.eps = 1e-6;
  norm.weight = weights.data();
  norm.weight_dtype = ROPE_DTYPE_BF16;
  norm.rounding = contender.rounding;
  if (shared == Shared::kByAllHeads) {
    norm.span = ROPE_NORM_SPAN_ALL_HEADS;
    norm.weight_stride_head = kDim;
  }
  rope_fused fused = ROPE_INIT(rope_fused);
  fused.q_norm = fused.k_norm = &norm;
  const rope_qk_args normed = ArgsOf(tensors, &fused), plain = ArgsOf(tensors, nullptr);
  rope_status status = rope != nullptr && nope != nullptr ? ROPE_OK : ROPE_ERROR_INTERNAL;
  rope_qk_data data = ROPE_INIT(rope_qk_data);
  const bool is_prepared = contender.calls == Calls::kPrepared;
  const Prepared prepared = is_prepared ? Prepare(rope.get(), normed, norm, &data) : nullptr;
  for (auto _ : state) {
    if (is_prepared) {
      status |= rope_prepared_apply(prepared.get(), &data);
    } else {
      if (contender.calls == Calls::kTwo) status |= rope_apply_qk(nope.get(), &normed);
      status |= rope_apply_qk(rope.get(), contender.calls == Calls::kOne ? &normed : &plain);
    }
    benchmark::ClobberMemory();
  }
  if (status != ROPE_OK) state.SkipWithError(rope_last_error());
  state.counters["tokens"] = static_cast<double>(tokens);
}

void Norms(rope_dtype dtype, rope_pairing pairing, int64_t tokens,
           Shared shared = Shared::kByHead) {
  const std::string group = std::string("norms_") +
                            (shared == Shared::kByAllHeads ? "all_heads_" : "") + DtypeName(dtype) +
                            (pairing == ROPE_PAIRING_HALVES ? "_halves_" : "_interleaved_") +
                            std::to_string(tokens);
  for (const Contender& contender : kContenders) {
    benchmark::RegisterBenchmark(
        (group + "/" + contender.name).c_str(),
        [=](benchmark::State& state) { Run(state, dtype, pairing, tokens, shared, contender); });
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
    for (const int64_t tokens : {1, 2, 16, 2048}) {
      Norms(dtype, ROPE_PAIRING_HALVES, tokens, Shared::kByAllHeads);
    }
  }
}

}  // namespace bench
