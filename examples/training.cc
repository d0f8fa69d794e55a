// The backward pass of Megatron's attention, whose projection lies as [tokens, batch, groups, q +
// 2, head_dim]: the q heads of a group, then its k, then its v. Each group is a batch row, and
// those of a sequence share its positions. One call turns the gradients of q, k and v, which lie in
// the same order, into that of the projection, and into those of the norms' weights. The program
// compares them with how much the loss grows along directions in which all of these change.
#include <librope/rope.hpp>

#include <cmath>
#include <cstdio>
#include <utility>
#include <vector>

namespace {

constexpr int kTokens = 6, kBatch = 2, kGroups = 2, kQHeads = 4, kDim = 64, kParts = 3;
constexpr int kWidth = (kQHeads + 2) * kDim;  // of a group
using Floats = std::vector<float>;

Floats Numbers(int seed, int count) {
  Floats x(count);
  for (int i = 0; i < count; ++i) x[i] = std::sin(seed * (1 + 0.37f * i));
  return x;
}

double Dot(const Floats& a, const Floats& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += double{a[i]} * b[i];
  return sum;
}

// Some heads of each group.
rope_tensor Heads(const Floats& packed, int first, int count) {
  float* const data = const_cast<float*>(packed.data()) + first * kDim;
  const int64_t token = kBatch * kGroups * kWidth;
  return rope::WithHeadDim(rope::Strided(data, ROPE_DTYPE_F32, count, kWidth, token, kDim), kDim);
}

// Turns what one packed array has into another.
void Turn(const rope::Context& context, rope_operation operation, const Floats& from, Floats* to,
          const rope_norm& q_norm, const rope_norm& k_norm) {
  const int32_t offsets[kBatch] = {7, 1000};
  rope_fused fused = ROPE_INIT(rope_fused);
  fused.v = Heads(from, kQHeads + 1, 1);
  fused.v_out = Heads(*to, kQHeads + 1, 1);
  fused = rope::WithNorms(fused, &q_norm, &k_norm);
  rope_qk_args args = ROPE_INIT(rope_qk_args);
  args.operation = operation;
  args.batch = kBatch * kGroups;
  args.tokens = kTokens;
  args.positions = rope::SeqOffsets(offsets);
  args.positions.batch_repeat = kGroups;
  args.q = Heads(from, 0, kQHeads);
  args.k = Heads(from, kQHeads, 1);
  args.q_out = Heads(*to, 0, kQHeads);
  args.k_out = Heads(*to, kQHeads, 1);
  args.fused = &fused;
  context.Apply(args);
}

struct Layer {
  Floats projected, q_weight, k_weight;
};

rope_norm Norm(const Floats& weight) {
  return rope::MakeNorm(ROPE_NORM_KIND_RMS, 1e-6, weight.data(), ROPE_DTYPE_F32);
}

// What attention reads times the gradients that it gives.
double Loss(const rope::Context& context, const Layer& at, const Floats& given) {
  Floats turned(at.projected.size());
  Turn(context, ROPE_OPERATION_FORWARD, at.projected, &turned, Norm(at.q_weight),
       Norm(at.k_weight));
  return Dot(turned, given);
}

int Run() {
  rope_config config = ROPE_INIT(rope_config);
  config.head_dim = kDim;
  config.theta = 10000;
  config.pairing = ROPE_PAIRING_HALVES;
  const rope::Context context(config);
  const int count = kTokens * kBatch * kGroups * kWidth;
  const Layer layer = {Numbers(1, count), Numbers(2, kDim), Numbers(3, kDim)};
  const Floats given = Numbers(4, count);

  Layer grad = {Floats(count), Floats(kDim), Floats(kDim)};
  Floats q_parts(kParts * kDim), k_parts(kParts * kDim);  // work for as many threads
  const rope_tensor q = Heads(layer.projected, 0, kQHeads), k = Heads(layer.projected, kQHeads, 1);
  Turn(context, ROPE_OPERATION_BACKWARD, given, &grad.projected,
       rope::WithGradients(Norm(layer.q_weight), q, q_parts.data(), kParts),
       rope::WithGradients(Norm(layer.k_weight), k, k_parts.data(), kParts));
  for (int i = 0; i < kParts * kDim; ++i) {
    grad.q_weight[i % kDim] += q_parts[i];
    grad.k_weight[i % kDim] += k_parts[i];
  }

  for (const auto& [name, member] :
       {std::pair{"the projection", &Layer::projected}, std::pair{"q's weight", &Layer::q_weight},
        std::pair{"k's weight", &Layer::k_weight}}) {
    const Floats direction = Numbers(5, static_cast<int>((layer.*member).size()));
    const float step = 1.0f / 256;
    Layer above = layer, below = layer;
    for (size_t i = 0; i < direction.size(); ++i) {
      (above.*member)[i] += step * direction[i];
      (below.*member)[i] -= step * direction[i];
    }
    const double slope = (Loss(context, above, given) - Loss(context, below, given)) / (2 * step);
    const double told = Dot(grad.*member, direction);
    std::printf("%-15s %10.5f, the loss grows by %10.5f\n", name, told, slope);
    if (!(std::fabs(told - slope) < 1e-3)) return 1;
  }
  return 0;
}

}  // namespace

int main() {
  try {
    return Run();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
