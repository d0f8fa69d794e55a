// The steps of an engine whose cache has 8 bits, by the owners and functions of rope.hpp: a prompt,
// whose q and k are normed and turned on the way, k and v into pages of e4m3; a cut, behind which
// the keys move in their slots; and a token that attends to what is left. The call of a step is
// prepared once, and each layer gives its weights and pages. The program compares it all with
// norms, rotations and attention in double, of numbers that were never coded.
#include <librope/rope.hpp>

#include <cmath>
#include <cstdio>
#include <vector>

namespace {

constexpr int kDim = 64, kQHeads = 4, kHeads = 2, kRow = kHeads * kDim, kPages = 8, kPageSize = 4;
constexpr int kLayers = 2;
constexpr int kPrompt = 10, kCut = kPageSize, kKept = kPrompt - kCut;
constexpr double kEps = 1e-6, kTheta = 10000, kHalfStep = 1.0 / 16;  // a code has 3 fraction bits

using Floats = std::vector<float>;
using Doubles = std::vector<double>;

// Pages of keys or values: codes, and a scale for each slot and head.
rope_scale ScaleAt(float* scales) {
  return rope::ComputedScale(scales, kPageSize * kHeads, kHeads, 1);
}
rope_tensor Pages(uint8_t* codes, const rope_scale& scale) {
  return rope::WithScale(rope::Nhd(codes, ROPE_DTYPE_F8_E4M3, kHeads), scale);
}

// Those of a layer.
struct Codes {
  std::vector<uint8_t> codes = std::vector<uint8_t>(kPages * kPageSize * kRow);
  Floats scales = Floats(kPages * kPageSize * kHeads);

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

// The new tokens of a step.
struct Heads {
  Floats q, k, v;

  Heads(int seed, int tokens)
      : q(Numbers(seed, tokens * kQHeads * kDim)),
        k(Numbers(seed + 1, tokens * kRow)),
        v(Numbers(seed + 2, tokens * kRow)) {}
};

struct Layer {
  Floats q_weight, k_weight;
  Codes keys, values;

  explicit Layer(int seed) : q_weight(Numbers(seed, kDim)), k_weight(Numbers(seed + 1, kDim)) {
    for (Floats* weight : {&q_weight, &k_weight}) {
      for (float& w : *weight) w = 1 + w / 4;
    }
  }
};

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

// How far a layer is off, at most.
struct Off {
  double q = 0, keys = 0, values = 0, attention = 0;
};

// Of the last token: `q` as it was and as it has turned; `k` and `v` are all that were given.
// Token t of what is left is in slot(t). Keys that moved were coded twice, values once.
template <class Slot>
void Compare(const Layer& layer, const Floats& q_before, const Floats& q, const Floats& k,
             const Floats& v, const Slot& slot, Off* off) {
  const Codes &keys = layer.keys, &values = layer.values;
  for (int h = 0; h < kHeads; ++h) {
    std::vector<Doubles> turned;
    for (int t = 0; t <= kKept; ++t) {
      const int at = (kCut + t) * kRow + h * kDim;
      turned.push_back(Turned(&k[at], layer.k_weight, t));
      const double smallest = keys.scales[slot(t) * kHeads + h] / 64;  // of codes of one distance
      for (int i = 0; i < kDim / 2; ++i) {
        const int j = i + kDim / 2;
        const double of_pair = std::hypot(keys.At(slot(t), h, i) - turned[t][i],
                                          keys.At(slot(t), h, j) - turned[t][j]);
        Raise(&off->keys, of_pair / (std::hypot(turned[t][i], turned[t][j]) + smallest));
      }
      for (int c = 0; c < kDim; ++c) {
        const double x = v[at + c], least = values.scales[slot(t) * kHeads + h] / 64;
        const double of_value = std::fabs(values.At(slot(t), h, c) - x);
        Raise(&off->values, of_value / (std::fabs(x) + least));
      }
    }
    for (int n = h * kQHeads / kHeads; n < (h + 1) * kQHeads / kHeads; ++n) {
      const Doubles want_q = Turned(&q_before[n * kDim], layer.q_weight, kKept);
      const Doubles got_q(&q[n * kDim], &q[n * kDim] + kDim);
      const Doubles want = Attend(
          want_q, kKept + 1, [&](int t, int c) { return turned[t][c]; },
          [&](int t, int c) { return v[(kCut + t) * kRow + h * kDim + c]; });
      Doubles got = Attend(
          got_q, kKept + 1, [&](int t, int c) { return keys.At(slot(t), h, c); },
          [&](int t, int c) { return values.At(slot(t), h, c); });
      for (int c = 0; c < kDim; ++c) {
        Raise(&off->q, std::fabs(got_q[c] - want_q[c]));
        got[c] -= want[c];
      }
      Raise(&off->attention, Largest(got) / Largest(want));
    }
  }
}

int Run() {
  rope_config config = ROPE_INIT(rope_config);
  config.head_dim = kDim;
  config.theta = kTheta;
  config.pairing = ROPE_PAIRING_HALVES;
  const rope::Context context(config);
  std::vector<Layer> layers;
  for (int n = 0; n < kLayers; ++n) layers.emplace_back(10 * n + 1);
  const int32_t table[] = {5, 2, 7};  // pages of the one sequence

  // New tokens behind the `past` that are in the pages from `pages` on, of each layer; q turns in
  // place, and k and v are only read. What all layers have in common is described without memory.
  const auto step = [&](const int32_t* pages, int32_t past, int tokens, std::vector<Heads>* heads) {
    const rope_scale scale = ScaleAt(nullptr);
    rope_kv_cache cache = rope::PagedCache(kPages, kPageSize, pages, 3, &past);
    cache.k = Pages(nullptr, scale);
    cache.v = rope::WithHeadDim(cache.k, kDim);
    const rope_norm norm = rope::MakeNorm(ROPE_NORM_KIND_RMS, kEps, nullptr, ROPE_DTYPE_F32);
    rope_qk_args args = ROPE_INIT(rope_qk_args);
    args.batch = 1;
    args.tokens = tokens;
    args.q = rope::Bshd(nullptr, ROPE_DTYPE_F32, kQHeads);
    args.k = rope::Bshd(nullptr, ROPE_DTYPE_F32, kHeads);
    const rope_fused fused =
        rope::WithNorms(rope::Append(cache, rope::WithHeadDim(args.k, kDim)), &norm, &norm);
    args.positions = rope::Offset(past);
    args.fused = &fused;
    const rope::Prepared prepared(context, args);
    for (int n = 0; n < kLayers; ++n) {
      Layer& layer = layers[n];
      Heads& given = (*heads)[n];
      rope_qk_data data = ROPE_INIT(rope_qk_data);
      data.q = given.q.data();
      data.k = given.k.data();
      data.v = given.v.data();
      data.q_norm_weight = layer.q_weight.data();
      data.k_norm_weight = layer.k_weight.data();
      data.cache_k = layer.keys.codes.data();
      data.cache_k_scales = layer.keys.scales.data();
      data.cache_v = layer.values.codes.data();
      data.cache_v_scales = layer.values.scales.data();
      prepared.Apply(data);
    }
  };
  std::vector<Heads> prompt, token;
  for (int n = 0; n < kLayers; ++n) prompt.emplace_back(100 + 10 * n, kPrompt);
  step(table, 0, kPrompt, &prompt);

  // The first page is free again; the keys behind it are those of tokens 0 and on.
  const int32_t none = 0;
  for (Layer& layer : layers) {
    const rope_scale of_keys = ScaleAt(layer.keys.scales.data());
    const rope_scale of_values = ScaleAt(layer.values.scales.data());
    rope_kv_cache kept = rope::PagedCache(kPages, kPageSize, table + 1, 2, &none);
    kept.k = Pages(layer.keys.codes.data(), of_keys);
    kept.v = rope::WithHeadDim(Pages(layer.values.codes.data(), of_values), kDim);
    const rope_positions before = rope::Offset(kCut);
    const rope_fused fused = rope::Move(kept, kept, &before);
    rope_qk_args args = ROPE_INIT(rope_qk_args);
    args.operation = ROPE_OPERATION_REROTATE;
    args.batch = 1;
    args.tokens = kKept;
    args.positions = rope::Offset(0);
    args.fused = &fused;
    context.Apply(args);
  }

  // One more token, behind those that were kept.
  for (int n = 0; n < kLayers; ++n) token.emplace_back(200 + 10 * n, 1);
  const std::vector<Heads> token_before = token;
  step(table + 1, kKept, 1, &token);

  Off off;
  const auto slot = [&](int t) { return table[1 + t / kPageSize] * kPageSize + t % kPageSize; };
  for (int n = 0; n < kLayers; ++n) {
    const Heads& last = token_before[n];
    Floats k = prompt[n].k, v = prompt[n].v;
    k.insert(k.end(), last.k.begin(), last.k.end());
    v.insert(v.end(), last.v.begin(), last.v.end());
    Compare(layers[n], last.q, token[n].q, k, v, slot, &off);
  }
  std::printf("off by up to: q %.0e, keys %.3f of their pair, values %.3f, attention %.3f\n", off.q,
              off.keys, off.values, off.attention);
  return off.q < 1e-5 && off.keys < 2.2 * kHalfStep && off.values < 1.001 * kHalfStep &&
                 off.attention < 2 * kHalfStep
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
