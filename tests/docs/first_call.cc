// The first call of docs/index.md in C++.
#include <librope/rope.hpp>

#include <cstdio>
#include <vector>

int main() try {
  rope_config config = ROPE_INIT(rope_config);
  config.head_dim = 128;
  config.theta = 500000;
  config.pairing = ROPE_PAIRING_HALVES;
  const rope::Context context(config);

  constexpr int kTokens = 2;
  const int64_t positions[kTokens] = {5, 6};
  std::vector<float> q(kTokens * 32 * 128, 1.0f);  // [tokens, heads, head_dim]
  std::vector<float> k(kTokens * 8 * 128, 1.0f);
  context.Apply(ROPE_DTYPE_F32, kTokens, positions, q.data(), 32, k.data(), 8);  // every layer

  std::printf("rotated on %s\n", context.backend());
  return q[0] == k[0] && q[0] != 1.0f ? 0 : 1;  // the first pairs were the same, and have moved
} catch (const rope::Error& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
