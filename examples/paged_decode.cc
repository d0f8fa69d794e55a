// A small engine: sequences decode together, in pages that are allotted as they grow. Each step
// turns q and stores k and v in one call. Attention over the pages is that over contiguous caches.
#include <librope/rope.hpp>

#include <cmath>
#include <cstdio>
#include <vector>

constexpr int kDim = 64, kQHeads = 4, kHeads = 2, kRow = kHeads * kDim, kSequences = 3;
constexpr int kPageSize = 4, kPages = 16, kWidth = 6;  // the most pages of a sequence
using Floats = std::vector<float>;

// Attention of one token's q over the k and v of `slots`, in their order.
static Floats Attend(const float* q, const Floats& keys, const Floats& values,
                     const std::vector<int>& slots) {
  Floats out(kQHeads * kDim);
  for (int h = 0; h < kQHeads; ++h) {
    float sum = 0;
    for (const int slot : slots) {
      const int at = slot * kRow + h / (kQHeads / kHeads) * kDim;
      float score = 0;
      for (int c = 0; c < kDim; ++c) score += q[h * kDim + c] * keys[at + c] / 8;
      sum += std::exp(score);
      for (int c = 0; c < kDim; ++c) out[h * kDim + c] += std::exp(score) * values[at + c];
    }
    for (int c = 0; c < kDim; ++c) out[h * kDim + c] /= sum;
  }
  return out;
}

// Stands for a projection: numbers that depend on sequence, place, and what they are for.
static void Project(int sequence, int place, int what, int heads, Floats* to) {
  const int seed = 100 * sequence + 3 * place + what;
  for (int i = 0; i < heads * kDim; ++i) to->push_back(std::sin(seed + 0.37f * i));
}

int main() {
  rope_config config = ROPE_INIT(rope_config);
  config.head_dim = kDim;
  config.theta = 10000;
  config.pairing = ROPE_PAIRING_HALVES;
  const rope::Context context(config);

  Floats keys(kPages * kPageSize * kRow), values(keys.size());
  Floats plain_k[kSequences], plain_v[kSequences];  // the same in contiguous caches
  std::vector<int32_t> free, table(kSequences * kWidth, -1);
  for (int page = 0; page < kPages; ++page) free.push_back(page * 7 % kPages);  // not adjacent
  int32_t lengths[kSequences] = {};                                             // before the step
  for (int step = 0; step < 8; ++step) {
    // The prompts first, packed; then a token of each sequence.
    Floats q, k, v;
    int32_t ends[kSequences + 1] = {};
    for (int s = 0; s < kSequences; ++s) {
      const int end = lengths[s] + (step > 0 ? 1 : 5 + 4 * (s - 1));
      for (int place = lengths[s]; place < end; ++place) {
        Project(s, place, 0, kQHeads, &q);
        Project(s, place, 1, kHeads, &k);
        Project(s, place, 2, kHeads, &v);
        if (place % kPageSize != 0) continue;
        table[s * kWidth + place / kPageSize] = free.back();
        free.pop_back();
      }
      ends[s + 1] = ends[s] + end - lengths[s];
    }

    // The engine's own call, for each layer: this one has one. It needs no k_out; the check does.
    Floats turned(k.size());
    rope_kv_cache cache = rope::PagedCache(kPages, kPageSize, table.data(), kWidth, lengths);
    cache.k = rope::Nhd(keys.data(), ROPE_DTYPE_F32, kHeads);
    cache.v = rope::WithHeadDim(rope::Nhd(values.data(), ROPE_DTYPE_F32, kHeads), kDim);
    const rope_tensor v_new = rope::Bshd(v.data(), ROPE_DTYPE_F32, kHeads);
    const rope_fused fused = rope::Append(cache, rope::WithHeadDim(v_new, kDim));
    rope_qk_args args = ROPE_INIT(rope_qk_args);
    args.batch = 1;
    args.tokens = ends[kSequences];
    args.q = rope::Bshd(q.data(), ROPE_DTYPE_F32, kQHeads);
    args.k = rope::Bshd(k.data(), ROPE_DTYPE_F32, kHeads);
    args.k_out = rope::Bshd(turned.data(), ROPE_DTYPE_F32, kHeads);
    args.positions = rope::Packed(lengths, ends, kSequences);
    args.fused = &fused;
    context.Apply(args);

    for (int s = 0; s < kSequences; ++s) {
      plain_k[s].insert(plain_k[s].end(), &turned[ends[s] * kRow],
                        turned.data() + ends[s + 1] * kRow);
      plain_v[s].insert(plain_v[s].end(), &v[ends[s] * kRow], v.data() + ends[s + 1] * kRow);
      lengths[s] += ends[s + 1] - ends[s];
      std::vector<int> slots, all;
      for (int n = 0; n < lengths[s]; all.push_back(n++))
        slots.push_back(table[s * kWidth + n / kPageSize] * kPageSize + n % kPageSize);
      const float* const last = &q[(ends[s + 1] - 1) * kQHeads * kDim];
      const Floats paged = Attend(last, keys, values, slots);
      if (paged != Attend(last, plain_k[s], plain_v[s], all) || !(std::fabs(paged[0]) > 0))
        return 1;
    }
  }
  std::printf("%d, %d, %d tokens in %d pages\n", lengths[0], lengths[1], lengths[2],
              kPages - static_cast<int>(free.size()));
}
