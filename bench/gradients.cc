// The gradients of QK norm: those of the normed and turned heads of q and k become those of the
// heads, and those of the weights, in one call. Beside it the same in two calls (the rotation, then
// the norm by a NOPE context), rounded as it is or as eager code does, and the rotation alone.
#include "gradients.h"

#include <benchmark/benchmark.h>
#include <librope/rope.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "contexts.h"
#include "handles.h"
#include "tensors.h"

namespace bench {
namespace {

struct Contender {
  const char* name;
  bool norms, two_calls;
  rope_norm_rounding rounding;
  int parts;
};
constexpr Contender kContenders[] = {
    {"rope", true, false, ROPE_NORM_ROUNDING_FLOAT32, 8},
    {"rope_eager", true, false, ROPE_NORM_ROUNDING_EAGER, 8},
    {"rope_no_weights", true, false, ROPE_NORM_ROUNDING_FLOAT32, 0},
    {"rope_two_calls", true, true, ROPE_NORM_ROUNDING_ROUNDED, 8},
    {"rope_two_eager_calls", true, true, ROPE_NORM_ROUNDING_EAGER, 8},
    {"rope_without_norm", false, false, 0, 0},
};

void Run(benchmark::State& state, rope_dtype dtype, int64_t tokens, const Contender& contender) {
  const Tensors& x = GetTensors(dtype, tokens);
  const Context rope = Create(ROPE_PAIRING_HALVES, ROPE_SCALING_DEFAULT),
                nope = Create(ROPE_PAIRING_HALVES, ROPE_SCALING_NOPE);
  std::vector<char> q(x.q_bytes(), 0x3c), k(x.k_bytes(), 0x3c), q_out(q), k_out(k);
  const std::vector<uint16_t> weights(kDim, 0x3f80);
  std::vector<float> q_grad(kDim * 8), k_grad(kDim * 8);
  const rope_tensor q_x = Heads(x.q.get(), dtype, kQHeads), k_x = Heads(x.k.get(), dtype, kKHeads);
  rope_norm q_norm = ROPE_INIT(rope_norm);
  q_norm.kind = ROPE_NORM_KIND_RMS;
  q_norm.eps = 1e-6;
  q_norm.weight = weights.data();
  q_norm.weight_dtype = ROPE_DTYPE_BF16;
  q_norm.rounding = contender.rounding;
  q_norm.grad_parts = contender.parts;
  rope_norm k_norm = q_norm;
  q_norm.x = &q_x;
  k_norm.x = &k_x;
  if (contender.parts != 0) q_norm.weight_grad = q_grad.data(), k_norm.weight_grad = k_grad.data();
  rope_fused fused = ROPE_INIT(rope_fused);
  fused.q_norm = &q_norm;
  fused.k_norm = &k_norm;
  rope_qk_args args = ROPE_INIT(rope_qk_args);
  args.operation = ROPE_OPERATION_BACKWARD;
  args.batch = 1;
  args.tokens = tokens;
  args.q = Heads(q.data(), dtype, kQHeads);
  args.k = Heads(k.data(), dtype, kKHeads);
  args.q_out = Heads(q_out.data(), dtype, kQHeads);
  args.k_out = Heads(k_out.data(), dtype, kKHeads);
  args.positions.kind = ROPE_POSITIONS_OFFSET;
  args.positions.offset = 1000;
  if (contender.norms && !contender.two_calls) args.fused = &fused;
  rope_qk_args second = args;  // in place, on what the rotation has written
  second.q = args.q_out;
  second.k = args.k_out;
  second.q_out = second.k_out = rope_tensor{};
  second.fused = &fused;
  rope_status status = rope != nullptr && nope != nullptr ? ROPE_OK : ROPE_ERROR_INTERNAL;
  for (auto _ : state) {
    status |= rope_apply_qk(rope.get(), &args);
    if (contender.two_calls) status |= rope_apply_qk(nope.get(), &second);
    benchmark::ClobberMemory();
  }
  if (status != ROPE_OK) state.SkipWithError(rope_last_error());
  state.counters["tokens"] = static_cast<double>(tokens);
}

}  // namespace

void RegisterGradients() {
  for (const rope_dtype dtype : {ROPE_DTYPE_F32, ROPE_DTYPE_BF16, ROPE_DTYPE_F16}) {
    for (const int64_t tokens : {1, 16, 512, 4096, 32768}) {
      for (const Contender& contender : kContenders) {
        const std::string name = std::string("gradients_") + DtypeName(dtype) + "_" +
                                 std::to_string(tokens) + "/" + contender.name;
        benchmark::RegisterBenchmark(
            name.c_str(), [=](benchmark::State& state) { Run(state, dtype, tokens, contender); });
      }
    }
  }
}

}  // namespace bench
