// librope from C++: rope.hpp owns the handles and turns failures into exceptions.
#include <librope/rope.hpp>

#include <cmath>
#include <cstdio>
#include <vector>

namespace {

constexpr int kBatch = 2, kTokens = 1000, kQHeads = 8, kKHeads = 2, kDim = 128;

double Norm(const std::vector<float>& x) {
  double sum = 0;
  for (const float value : x) sum += double{value} * value;
  return std::sqrt(sum);
}

constexpr char kConfigJson[] = R"({
  "model_type": "llama", "hidden_size": 1024, "num_attention_heads": 8, "num_key_value_heads": 2,
  "num_hidden_layers": 16, "max_position_embeddings": 131072, "rope_theta": 500000.0,
  "rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
                   "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}})";

int Run() {
  const rope::Model model(kConfigJson);  // or fill a rope_config by hand
  const rope::Context context(model.Config(model.LayerType(0)));
  const rope::Pool pool;  // optional: threads for large calls
  std::printf("%s: %d pairs, the slowest turns once in %.0f positions, on %s\n",
              model.layer_type_name(0), context.Info().pairs,
              2 * std::acos(-1.0) / context.InvFreq().back(), context.backend());

  // Queries out of place, keys in place, in the [batch, heads, tokens, dim] order of transformers.
  // Each sequence of the batch continues where its own cache ends.
  std::vector<float> q(size_t{kBatch} * kQHeads * kTokens * kDim), k(q.size() / 4), rotated(q);
  for (size_t i = 0; i < q.size(); ++i) q[i] = std::sin(0.01f * static_cast<float>(i));
  for (size_t i = 0; i < k.size(); ++i) k[i] = std::cos(0.01f * static_cast<float>(i));
  const int32_t cache_lengths[kBatch] = {0, 4096};

  rope_qk_args args = ROPE_INIT(rope_qk_args);
  args.batch = kBatch;
  args.tokens = kTokens;
  args.q = rope::Bhsd(q.data(), ROPE_DTYPE_F32, kQHeads);
  args.q_out = rope::Bhsd(rotated.data(), ROPE_DTYPE_F32, kQHeads);
  args.k = rope::Bhsd(k.data(), ROPE_DTYPE_F32, kKHeads);
  args.positions = rope::SeqOffsets(cache_lengths);
  args.runner = pool.runner();
  const double k_norm = Norm(k);
  context.Apply(args);
  std::printf("a rotation keeps lengths: |q| %.4f -> %.4f, |k| %.4f -> %.4f\n", Norm(q),
              Norm(rotated), k_norm, Norm(k));
  if (std::fabs(Norm(rotated) / Norm(q) - 1) > 1e-6) return 1;
  if (std::fabs(Norm(k) / k_norm - 1) > 1e-6) return 1;

  // Undone, in place, with the status instead of an exception.
  args.operation = ROPE_OPERATION_INVERSE;
  args.q = args.q_out;
  args.q_out = rope_tensor{};
  if (context.TryApply(args) != ROPE_OK) return 1;
  double worst = 0;
  for (size_t i = 0; i < q.size(); ++i) {
    const double difference = std::fabs(double{rotated[i]} - q[i]);
    if (!(difference <= worst)) worst = difference;
  }
  std::printf("undone, q is back within %.1e\n", worst);
  if (worst > 1e-6) return 1;

  // A mistake is told, not guessed around.
  try {
    args.k.heads = 0;
    context.Apply(args);
    return 1;
  } catch (const rope::Error& error) {
    std::printf("error %d: %s\n", error.status(), error.what());
    return error.status() == ROPE_ERROR_INVALID_ARGUMENT ? 0 : 1;
  }
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
