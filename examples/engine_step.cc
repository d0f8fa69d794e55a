// The steps of an engine whose cache has 8 bits, by the owners and functions of rope.hpp: a prompt,
// whose q and k are normed and turned on the way, k and v into pages of e4m3; a cut, behind which
// the keys move in their slots; and a token that attends to what is left. The program compares it
// all with norms, rotations and attention in double, of numbers that were never coded.
#include <librope/rope.hpp>

#include <cmath>
#include <cstdio>
#include <vector>

namespace {

constexpr int kDim = 64, kQHeads = 4, kHeads = 2, kRow = kHeads * kDim, kPages = 8, kPageSize = 4;
constexpr int kPrompt = 10, kCut = kPageSize, kKept = kPrompt - kCut;
constexpr double kEps = 1e-6, kTheta = 10000, kHalfStep = 1.0 / 16;  // a code has 3 fraction bits

using Floats = std::vector<float>;
using Doubles = std::vector<double>;

// Keys or values of the layer: codes, and a scale for each slot and head.
struct Codes {
  std::vector<uint8_t> codes = std::vector<uint8_t>(kPages * kPageSize * kRow);
  Floats scales = Floats(kPages * kPageSize * kHeads);
  rope_scale scale = rope::ComputedScale(scales.data(), kPageSize* kHeads, kHeads, 1);

  rope_tensor Pages() {
    return rope::WithScale(rope::Nhd(codes.data(), ROPE_DTYPE_F8_E4M3, kHeads), scale);
  }
  double At(int slot, int head, int channel) const {
    const int code = codes[slot * kRow + head * kDim + channel], exponent = code >> 3 & 15;
    const double size =
        exponent == 0 ? (code & 7) / 512.0 : std::ldexp(8 + (code & 7), exponent - 10);
    return (code & 0x80 ? -size : size) * scales[slot * kHeads + head];
  }
};

// Stands for a projection, or for weights.
Floats Numbers(int seed, int count) {
  Floats x;
  for (int i = 0; i < count; ++i) x.push_back(std::sin(static_cast<float>(seed) + 0.37f * i));
  return x;
}

// A head after norm and rotation, in double.
Doubles Turned(const float* head, const Floats& weight, int position) {
  double square = 0;
  for (int c = 0; c < kDim; ++c) square += double{head[c]} * head[c] / kDim;
  Doubles x, out(kDim);
  for (int c = 0; c < kDim; ++c) x.push_back(head[c] / std::sqrt(square + kEps) * weight[c]);
  for (int i = 0; i < kDim / 2; ++i) {
    const double angle = position * std::pow(kTheta, -2.0 * i / kDim);
    out[i] = x[i] * std::cos(angle) - x[i + kDim / 2] * std::sin(angle);
    out[i + kDim / 2] = x[i + kDim / 2] * std::cos(angle) + x[i] * std::sin(angle);
  }
  return out;
}

// Of one head of q over `count` tokens, whose keys and values are functions of token and channel.
template <class Key, class Value>
Doubles Attend(const Doubles& q, int count, const Key& key, const Value& value) {
  double sum = 0;
  Doubles out(kDim);
  for (int t = 0; t < count; ++t) {
    double score = 0;
    for (int c = 0; c < kDim; ++c) score += q[c] * key(t, c) / std::sqrt(kDim);
    sum += std::exp(score);
    for (int c = 0; c < kDim; ++c) out[c] += std::exp(score) * value(t, c);
  }
  for (double& x : out) x /= sum;
  return out;
}

// The larger one; NaN is larger than all.
void Raise(double* worst, double off) {
  if (!(off <= *worst)) *worst = off;
}

double Largest(const Doubles& x) {
  double largest = 0;
  for (const double value : x) Raise(&largest, std::fabs(value));
  return largest;
}

int Run() {
  rope_config config = ROPE_INIT(rope_config);
  config.head_dim = kDim;
  config.theta = kTheta;
  config.pairing = ROPE_PAIRING_HALVES;
  const rope::Context context(config);
  Floats q_weight = Numbers(1, kDim), k_weight = Numbers(2, kDim);
  for (Floats* weight : {&q_weight, &k_weight}) {
    for (float& w : *weight) w = 1 + w / 4;
  }
  const rope_norm q_norm =
      rope::MakeNorm(ROPE_NORM_KIND_RMS, kEps, q_weight.data(), ROPE_DTYPE_F32);
  const rope_norm k_norm =
      rope::MakeNorm(ROPE_NORM_KIND_RMS, kEps, k_weight.data(), ROPE_DTYPE_F32);
  Codes keys, values;
  const int32_t table[] = {5, 2, 7};  // pages of the one sequence

  // New tokens behind the `past` that are in the pages from `pages` on; q turns in place.
  const auto step = [&](const int32_t* pages, int32_t past, Floats* q, Floats* k, Floats* v) {
    rope_kv_cache cache = rope::PagedCache(kPages, kPageSize, pages, 3, &past);
    cache.k = keys.Pages();
    cache.v = rope::WithHeadDim(values.Pages(), kDim);
    const rope_tensor v_new = rope::Bshd(v->data(), ROPE_DTYPE_F32, kHeads);
    const rope_fused fused =
        rope::WithNorms(rope::Append(cache, rope::WithHeadDim(v_new, kDim)), &q_norm, &k_norm);
    rope_qk_args args = ROPE_INIT(rope_qk_args);
    args.batch = 1;
    args.tokens = static_cast<int64_t>(k->size()) / kRow;
    args.q = rope::Bshd(q->data(), ROPE_DTYPE_F32, kQHeads);
    args.k = rope::Bshd(k->data(), ROPE_DTYPE_F32, kHeads);  // only read
    args.positions = rope::Offset(past);
    args.fused = &fused;
    context.Apply(args);
  };
  Floats q = Numbers(3, kPrompt * kQHeads * kDim), k = Numbers(4, kPrompt * kRow);
  Floats v = Numbers(5, kPrompt * kRow);
  step(table, 0, &q, &k, &v);

  // The first page is free again; the keys behind it are those of tokens 0 and on.
  const int32_t none = 0;
  rope_kv_cache kept = rope::PagedCache(kPages, kPageSize, table + 1, 2, &none);
  kept.k = keys.Pages();
  kept.v = rope::WithHeadDim(values.Pages(), kDim);
  const rope_positions before = rope::Offset(kCut);
  const rope_fused fused = rope::Move(kept, kept, &before);
  rope_qk_args args = ROPE_INIT(rope_qk_args);
  args.operation = ROPE_OPERATION_REROTATE;
  args.batch = 1;
  args.tokens = kKept;
  args.positions = rope::Offset(0);
  args.fused = &fused;
  context.Apply(args);

  // One more token, behind those that were kept.
  q = Numbers(6, kQHeads * kDim);
  const Floats q_before = q, k_new = Numbers(7, kRow), v_new = Numbers(8, kRow);
  Floats k_one = k_new, v_one = v_new;
  step(table + 1, kKept, &q, &k_one, &v_one);
  k.insert(k.end(), k_new.begin(), k_new.end());
  v.insert(v.end(), v_new.begin(), v_new.end());

  // Keys that moved were coded twice, values once.
  double of_keys = 0, of_values = 0, of_q = 0, of_attention = 0;
  const auto slot = [&](int t) { return table[1 + t / kPageSize] * kPageSize + t % kPageSize; };
  for (int h = 0; h < kHeads; ++h) {
    std::vector<Doubles> turned;
    for (int t = 0; t <= kKept; ++t) {
      const int at = (kCut + t) * kRow + h * kDim;
      turned.push_back(Turned(&k[at], k_weight, t));
      const double smallest = keys.scales[slot(t) * kHeads + h] / 64;  // of codes of one distance
      for (int i = 0; i < kDim / 2; ++i) {
        const int j = i + kDim / 2;
        const double off = std::hypot(keys.At(slot(t), h, i) - turned[t][i],
                                      keys.At(slot(t), h, j) - turned[t][j]);
        Raise(&of_keys, off / (std::hypot(turned[t][i], turned[t][j]) + smallest));
      }
      for (int c = 0; c < kDim; ++c) {
        const double x = v[at + c], least = values.scales[slot(t) * kHeads + h] / 64;
        const double off = std::fabs(values.At(slot(t), h, c) - x);
        Raise(&of_values, off / (std::fabs(x) + least));
      }
    }
    for (int n = h * kQHeads / kHeads; n < (h + 1) * kQHeads / kHeads; ++n) {
      const Doubles want_q = Turned(&q_before[n * kDim], q_weight, kKept);
      const Doubles got_q(&q[n * kDim], &q[n * kDim] + kDim);
      const Doubles want = Attend(
          want_q, kKept + 1, [&](int t, int c) { return turned[t][c]; },
          [&](int t, int c) { return v[(kCut + t) * kRow + h * kDim + c]; });
      Doubles got = Attend(
          got_q, kKept + 1, [&](int t, int c) { return keys.At(slot(t), h, c); },
          [&](int t, int c) { return values.At(slot(t), h, c); });
      for (int c = 0; c < kDim; ++c) {
        Raise(&of_q, std::fabs(got_q[c] - want_q[c]));
        got[c] -= want[c];
      }
      Raise(&of_attention, Largest(got) / Largest(want));
    }
  }
  std::printf("off by up to: q %.0e, keys %.3f of their pair, values %.3f, attention %.3f\n", of_q,
              of_keys, of_values, of_attention);
  return of_q < 1e-5 && of_keys < 2.2 * kHalfStep && of_values < 1.001 * kHalfStep &&
                 of_attention < 2 * kHalfStep
             ? 0
             : 1;
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
