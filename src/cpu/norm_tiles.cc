#include "cpu/norm_tiles.h"

#include <hwy/base.h>

#include <algorithm>
#include <cmath>

#include "base/limits.h"
#include "cpu/caches.h"
#include "cpu/scalar.h"
#include "cpu/stage.h"
#include "math/element.h"
#include "math/operation.h"
#include "math/pairing.h"

namespace rope::cpu {
namespace {

// The most bytes and heads of a tile: the L1 cache holds it and the next one, for which the memory
// is asked meanwhile. Where each head has weights of its own, those of a few heads at a time serve
// several tokens, which may be more than the L1 cache holds.
constexpr int kTileBytes = 16 << 10, kTileHeads = 64, kTileHeadsByWeights = 128, kWeightedHeads = 8;
constexpr int kQuarters = 4;  // of a head

// What a tile has to know before its heads are written: inverse roots and means of its tokens'
// heads, token after token. Heads that are normed together share theirs, which is there for as many
// as are written at a time.
struct Moments {
  alignas(64) float roots[kTileHeadsByWeights];
  alignas(64) float means[kTileHeadsByWeights];
};

// A value for each channel of a head; in the order of a kernel's row, with its padding.
struct ChannelValues {
  static constexpr int kFloats = kMaxHeadDim + 2 * kTablePadding;
  alignas(64) float values[kFloats];
};

// Heads [head, head + heads) of tokens [token, token + tokens) of a block.
struct Tile {
  int token, tokens;
  int32_t head, heads;
  int32_t moments;  // of each token

  // Bytes from a head to the same one of the next tile.
  int64_t Step(const Tensor& tensor) const {
    return heads != tensor.heads ? heads * tensor.in_strides.head
                                 : tokens * tensor.in_strides.token;
  }
};

// As SumInOrder() adds sums of heads, as many at a time as there are running sums.
float SumOverHeads(const NormOf& of, NormSum what, const char* in, const float* mean) {
  const Tensor& t = of.tensor;
  float sums[kRunningSums], means[kRunningSums], running[kRunningSums] = {};
  if (mean != nullptr) std::fill_n(means, kRunningSums, *mean);
  const auto sum_heads = of.kernels.norm_sums[t.dtype - 1][static_cast<int>(what)];
  // The next token, all of it: no other pass asks for what is summed.
  const int64_t ahead = of.prefetch_last != nullptr && in + t.in_strides.token <= of.prefetch_last
                            ? t.in_strides.token
                            : 0;
  for (int32_t h = 0; h < t.heads; h += kRunningSums) {
    const int32_t count = std::min(t.heads - h, kRunningSums);
    sum_heads({in + h * t.in_strides.head, t.in_strides.head, count, of.norm.channels, means, sums,
               ahead, kQuarters, of.prefetch_into_l1});
    for (int32_t i = 0; i < count; ++i) running[i] += sums[i];
  }
  return AddHalves(running);
}

// Repeats each of the first `tokens` values `heads` times, in its place.
void RepeatForHeads(int tokens, int heads, float* values) {
  for (int t = tokens - 1; t >= 0; --t) std::fill_n(values + t * heads, heads, values[t]);
}

// Of tokens of which all heads are normed together; for `heads` of each.
void FindMomentsForHeads(const NormOf& of, const char* in, int64_t token, int tokens, int heads,
                         float* roots, float* means) {
  const Norm& norm = of.norm;
  if (norm.span == ROPE_NORM_SPAN_GIVEN) {
    for (int t = 0; t < tokens; ++t) {  // NaN is the one that narrowing to bf16 keeps
      const float root = norm.rstd[token + t];
      roots[t] = std::isnan(root) ? QuietNan() : root;
    }
    RepeatForHeads(tokens, heads, roots);
    return;
  }
  for (int t = 0; t < tokens; ++t, in += of.tensor.in_strides.token) {
    FindTokenMoments(of, in, roots + t, means + t);
  }
  RepeatForHeads(tokens, heads, roots);
  if (norm.rule.has_mean) RepeatForHeads(tokens, heads, means);
}

// Of heads that are normed singly. Roots have room for whole vectors.
void FindHeadMoments(const NormOf& of, const char* in, const Tile& tile, float* roots,
                     float* means) {
  const Norm& norm = of.norm;
  const HeadStrides& strides = of.tensor.in_strides;
  const auto& sums = of.kernels.norm_sums[of.tensor.dtype - 1];
  const auto n = static_cast<float>(norm.channels);
  const int count = tile.tokens * tile.heads;
  const auto add = [&](NormSum what, float* to) {
    const auto sum_heads = sums[static_cast<int>(what)];
    const int quarters = NormTilesOf(*of.context.caches, of.tensor.dtype).quarters;
    SummedHeads summed = {in, strides.head, tile.heads,         norm.channels, means, to,
                          0,  quarters,     of.prefetch_into_l1};
    int rows = tile.tokens;
    if (tile.heads == 1) {  // tokens follow each other as heads do elsewhere
      summed.step = strides.token;
      summed.count = tile.tokens;
      rows = 1;
    }
    const int64_t ahead = tile.Step(of.tensor);
    for (int row = 0; row < rows; ++row) {
      const char* const asked = summed.in + (summed.count - 1) * summed.step + ahead;
      summed.prefetch_ahead = quarters != 0 && asked <= of.prefetch_last ? ahead : 0;
      sum_heads(summed);
      summed.in += strides.token;
      summed.means += tile.heads;
      summed.sums += tile.heads;
    }
  };
  // Whole vectors of roots are made of sums behind these, too.
  const int whole = (count + kMaxLanes - 1) / kMaxLanes * kMaxLanes;
  std::fill(roots + count, roots + whole, 0.0f);
  if (norm.rule.has_mean) {
    add(NormSum::kValues, means);
    for (int i = 0; i < count; ++i) means[i] /= n;
    add(NormSum::kDistances, roots);
  } else {
    add(NormSum::kSquares, roots);
  }
  of.kernels.inverse_roots(roots, count, n, norm.eps);
}

// The largest tile of a tensor's first tokens. Where heads are normed together and weighted apart,
// all heads of as many tokens as a quarter of the inner caches holds.
Tile LargestTile(const NormOf& of, int count) {
  const Norm& norm = of.norm;
  const Tensor& tensor = of.tensor;
  const bool by_head = norm.span == ROPE_NORM_SPAN_HEAD;
  const Caches& caches = *of.context.caches;
  if (!by_head && norm.weight_stride != 0) {
    const int32_t moments = std::min(tensor.heads, kWeightedHeads);
    const int64_t bytes = int64_t{tensor.heads} * norm.channels * ElementSize(tensor.dtype);
    const int64_t tokens =
        std::clamp<int64_t>(caches.inner / 4 / bytes, 1, kTileHeadsByWeights / moments);
    return {0, static_cast<int>(std::min<int64_t>(count, tokens)), 0, tensor.heads, moments};
  }
  const int of_memory = of.in_cache ? 0 : NormTilesOf(caches, tensor.dtype).channels;
  const int channels = of_memory != 0 ? of_memory : kTileBytes / ElementSize(tensor.dtype);
  const int most = norm.weight_stride != 0 ? kTileHeadsByWeights
                                           : std::clamp(channels / norm.channels, 1, kTileHeads);
  const int32_t heads = by_head && HeadsLieApart(tensor) ? 1 : std::min(tensor.heads, most);
  return {0, std::min(count, most / heads), 0, heads, heads};
}

// apply(tile, moments) for the tiles of `count` tokens, whose first head is at `in`.
template <class Apply>
void ForEachTile(const NormOf& of, const char* in, int64_t token, int count, const Apply& apply) {
  const Tensor& tensor = of.tensor;
  const bool by_head = of.norm.span == ROPE_NORM_SPAN_HEAD;
  const Tile largest = LargestTile(of, count);
  Moments moments;
  Tile tile = largest;
  for (; tile.token < count; tile.token += largest.tokens) {
    tile.tokens = std::min(largest.tokens, count - tile.token);
    if (!by_head) {
      FindMomentsForHeads(of, in + tile.token * tensor.in_strides.token, token + tile.token,
                          tile.tokens, tile.moments, moments.roots, moments.means);
    }
    for (tile.head = 0; tile.head < tensor.heads; tile.head += largest.heads) {
      tile.heads = std::min(largest.heads, tensor.heads - tile.head);
      if (by_head) {
        tile.moments = tile.heads;
        FindHeadMoments(of, in + HeadOffset(tensor.in_strides, 0, tile.token, tile.head), tile,
                        moments.roots, moments.means);
      }
      apply(tile, moments);
    }
  }
}

// The weights or biases of a norm from a channel of a head on.
const char* ValuesAt(const Norm& norm, const char* first, int32_t head, int channel) {
  return first + head * norm.weight_stride + channel * ElementSize(norm.weight_dtype);
}

// Of channels of a head in f32, in their order.
void WidenWeights(const NormOf& of, int32_t head, int channel, int count, float* to) {
  const Norm& norm = of.norm;
  if (norm.weight == nullptr) {
    std::fill_n(to, count, 1.0f);
    return;
  }
  of.kernels.widen_weights[norm.weight_dtype - 1](ValuesAt(norm, norm.weight, head, channel), count,
                                                  norm.rule.one_plus, to);
}
// bf16, in the order of RowOrder::kEvenOdd.
void WidenEvenOdd(const NormOf& of, int32_t head, int channel, int count, float* to) {
  const Norm& norm = of.norm;
  of.kernels.widen_even_odd(ValuesAt(norm, norm.weight, head, channel), count, norm.rule.one_plus,
                            to);
}
void WidenBiases(const NormOf& of, int32_t head, int channel, int count, float* to) {
  const Norm& norm = of.norm;
  of.kernels.widen_weights[norm.weight_dtype - 1](ValuesAt(norm, norm.bias, head, channel), count,
                                                  false, to);
}

// widen(of, head, channel, count, to) for all channels of `heads` heads, which lie behind each
// other in `to`.
template <class Widen>
void WidenHeads(const NormOf& of, int32_t head, int32_t heads, const Widen& widen, float* to) {
  const Norm& norm = of.norm;
  if (norm.weight_stride == int64_t{norm.channels} * ElementSize(norm.weight_dtype)) {
    widen(of, head, 0, heads * norm.channels, to);
    return;
  }
  for (int32_t h = 0; h < heads; ++h) widen(of, head + h, 0, norm.channels, to + h * norm.channels);
}

// The weights of heads for one pass, head after head: those of first and second members in the
// order of rows, and those of the channels before and behind the span.
struct OrderedWeights {
  ChannelValues memory;
  // Of the first head.
  const float *first, *second;
  const float *before, *behind;
};

// Where the weights of a head lie. One head has room always: its padding is at most that of the
// memory.
struct OrderedPlaces {
  int second, rest, step;
  // There is room for the weights of as many, in order and as they are read, which may be more.
  int heads;
  bool whole;  // TurnsWhole()

  OrderedPlaces(const NormOf& of, const OnePass& pass) {
    const int pairs = of.context.pairs;
    whole = TurnsWhole(of.kernels, of.context, of.norm, pass.order, pass.row_order);
    const bool by_channel = pass.row_order == RowOrder::kPerChannel;
    const int padded = PaddedPairs(pairs);
    second = by_channel ? 0 : padded;
    rest = 2 * padded;
    const int others = pass.writes_rest ? of.norm.channels - of.context.rotary_dim : 0;
    step = rest + (others + kMaxLanes - 1) / kMaxLanes * kMaxLanes;
    heads = ChannelValues::kFloats / std::max(step, of.norm.channels);
  }
};

void OrderSpan(const NormOf& of, const OnePass& pass, const float* natural, float* first,
               float* second) {
  for (const Segment& segment : of.context.segments) {
    const float* const from = natural + segment.first_channel;
    const int p = segment.first_pair;
    if (ReadsInterleaved(pass.order)) {
      for (int i = 0; i < segment.pairs; ++i) {
        first[p + i] = from[2 * i];
        second[p + i] = from[2 * i + 1];
      }
    } else if (pass.row_order == RowOrder::kEvenOdd) {
      of.kernels.order_row(pass.row_order, &segment, 1, first, second, from - p,
                           from + segment.pairs - p);
    } else {
      std::copy_n(from, segment.pairs, first + p);
      std::copy_n(from + segment.pairs, segment.pairs, second + p);
    }
  }
}

// Not inlined: what it needs of the stack is free again when heads turn.
HWY_NOINLINE void OrderWeights(const NormOf& of, const OnePass& pass, const OrderedPlaces& places,
                               int32_t head, int32_t heads, OrderedWeights* ordered) {
  ChannelValues widened;
  const bool even_odd = pass.row_order == RowOrder::kEvenOdd;
  const bool at_once = places.whole && even_odd && of.norm.weight_dtype == ROPE_DTYPE_BF16 &&
                       of.norm.weight != nullptr;
  const bool sorts = even_odd && !at_once;
  WidenHeads(of, head, heads, at_once ? WidenEvenOdd : WidenWeights,
             places.whole && !sorts ? ordered->memory.values : widened.values);
  const int channels = of.norm.channels, span = of.context.rotary_dim,
            before = of.tensor.in_span / ElementSize(of.tensor.dtype);
  float* first = ordered->memory.values;
  ordered->first = first;
  ordered->second = first + places.second;
  ordered->before = first + places.rest;
  ordered->behind = ordered->before + before;
  if (places.whole) {
    if (sorts) {
      Segment all = {};
      all.pairs = heads * channels / 2;
      of.kernels.order_row(pass.row_order, &all, 1, first, first + all.pairs, widened.values,
                           widened.values + all.pairs);
    }
    return;
  }
  const float* natural = widened.values;
  for (int32_t h = 0; h < heads; ++h, natural += channels, first += places.step) {
    if (pass.row_order == RowOrder::kPerChannel) {
      std::copy_n(natural + before, span, first);
    } else {
      OrderSpan(of, pass, natural + before, first, first + places.second);
    }
    if (!pass.writes_rest) continue;
    float* const rest = first + places.rest;
    std::copy_n(natural, before, rest);
    std::copy_n(natural + before + span, channels - before - span, rest + before);
  }
}

// Of a tile: `heads` heads of tokens from one of the block on, whose moments these are.
struct TileHeads {
  const char* in;
  char* out;
  int token, tokens, heads;
  const float *roots, *means;
  int moment_stride;  // from token to token
};

// Channels that do not turn; the weights of the first head, and its biases or null.
void NormChannels(const NormOf& of, const ChannelPart& part, const TileHeads& tile,
                  const float* weights, const float* biases, int32_t weight_step) {
  const Tensor& t = of.tensor;
  const int size = ElementSize(t.dtype);
  NormedHeads normed;
  normed.in_step = t.in_strides.head;
  normed.out_step = t.out_strides.head;
  normed.count = tile.heads;
  normed.channels = part.channels;
  normed.weights = weights;
  normed.biases = biases;
  normed.weight_step = weight_step;
  normed.eager = of.norm.rounding == ROPE_NORM_ROUNDING_EAGER;
  for (int i = 0; i < tile.tokens; ++i) {
    normed.in = tile.in + i * t.in_strides.token + part.in * size;
    normed.out = tile.out + i * t.out_strides.token + part.out * size;
    normed.roots = tile.roots + i * tile.moment_stride;
    normed.means = of.norm.rule.has_mean ? tile.means + i * tile.moment_stride : nullptr;
    of.kernels.norm_heads[t.dtype - 1](normed);
  }
}

// apply(tile, heads) for the heads of all tiles, as they are written, of which read(first, count)
// makes the weights before: once where all share them, else of at most `most` heads.
template <class Read, class Apply>
void ForEachWeights(const NormOf& of, const char* in, const WrittenRuns& out, int64_t token,
                    int most, const Read& read, const Apply& apply) {
  const bool shared = of.norm.weight_stride == 0, by_head = of.norm.span == ROPE_NORM_SPAN_HEAD;
  if (shared) read(0, 1);
  ForEachTile(of, in, token, out.Tokens(), [&](const Tile& tile, const Moments& moments) {
    const int step = shared ? tile.heads : std::min(most, tile.moments);
    for (int32_t skipped = 0; skipped < tile.heads; skipped += step) {
      const int32_t head = tile.head + skipped, heads = std::min(step, tile.heads - skipped);
      if (!shared) read(head, heads);
      for (int n = 0; n < out.count; ++n) {
        const WrittenRun& run = out.runs[n];
        const int first = std::max(tile.token, run.token),
                  last = std::min(tile.token + tile.tokens, run.token + run.count);
        if (first >= last) continue;
        int moment = (first - tile.token) * tile.moments;
        if (by_head) moment += skipped;
        apply(tile,
              TileHeads{in + HeadOffset(of.tensor.in_strides, 0, first, head),
                        run.out + HeadOffset(of.tensor.out_strides, 0, first - run.token, head),
                        first, last - first, heads, moments.roots + moment, moments.means + moment,
                        tile.moments});
      }
    }
  });
}

// The step from head to head of weights that lie so far apart.
int32_t WeightStep(const Norm& norm, int32_t apart) { return norm.weight_stride == 0 ? 0 : apart; }

}  // namespace

Norms::Norms(const Plan& plan, const Kernels& kernels, ChannelOrder order, const Tensor* given,
             const FusedPlan& fused)
    : given(given), some(false) {
  for (int n = 0; n < plan.tensor_count; ++n) {
    Tensor& t = tensors[n];
    t = given[n];
    passes[n] = NormPass::kNone;
    const Norm* const norm = fused.norms[n];
    const bool adds = fused.outputs[n].sums != 1;
    if ((norm == nullptr && !adds) || IsStaged(fused, n, t.dtype)) continue;
    some = true;
    if (kOperations[plan.operation].is_gradient()) {
      passes[n] = NormPass::kGradient;
      continue;
    }
    if (TakesOnePass(kernels, order, *plan.context, *norm, t.dtype)) {
      passes[n] = NormPass::kWithRotation;
    } else if (norm->after) {
      passes[n] = NormPass::kAfter;
    } else {
      passes[n] = NormPass::kBefore;
      t.in = t.out;
      t.in_strides = t.out_strides;
      t.in_span = t.out_span;
      t.copies_rest = false;
    }
  }
}

void FindTokenMoments(const NormOf& of, const char* in, float* root, float* mean) {
  const Norm& norm = of.norm;
  const float n = static_cast<float>(norm.channels) * static_cast<float>(of.tensor.heads);
  if (norm.rule.has_mean) *mean = SumOverHeads(of, NormSum::kValues, in, nullptr) / n;
  const float sum = norm.rule.has_mean ? SumOverHeads(of, NormSum::kDistances, in, mean)
                                       : SumOverHeads(of, NormSum::kSquares, in, nullptr);
  *root = InverseRoot(sum, n, norm.eps);
}

void NormTokens(const NormOf& of, const ChannelPart& part, const char* in, const WrittenRuns& out,
                int64_t token) {
  ChannelValues weights, biases;
  const bool has_bias = of.norm.rule.has_bias;
  const int channels = of.norm.channels, step = WeightStep(of.norm, channels);
  ForEachWeights(
      of, in, out, token, ChannelValues::kFloats / channels,
      [&](int32_t head, int32_t heads) {
        WidenHeads(of, head, heads, WidenWeights, weights.values);
        if (has_bias) WidenHeads(of, head, heads, WidenBiases, biases.values);
      },
      [&](const Tile&, const TileHeads& heads) {
        NormChannels(of, part, heads, weights.values + part.in,
                     has_bias ? biases.values + part.in : nullptr, step);
      });
}

void NormInBuffer(const NormOf& of, const char* in, int64_t token, int tokens, int32_t first,
                  int32_t heads, bool from_memory, rope_dtype dtype, char* to) {
  const Norm& norm = of.norm;
  const int size = ElementSize(dtype);
  const int64_t head_bytes = int64_t{norm.channels} * size;
  Tensor waiting = {};
  waiting.out_strides = {0, heads * head_bytes, head_bytes};
  waiting.in_strides = from_memory ? of.tensor.in_strides : waiting.out_strides;
  waiting.heads = heads;
  waiting.dtype = dtype;
  const NormOf in_buffer = {of.kernels, of.context, norm, waiting};
  const char* const from = from_memory ? in + first * of.tensor.in_strides.head : to;
  alignas(64) float roots[kMostNormedHeads], means[kMostNormedHeads];
  if (norm.span == ROPE_NORM_SPAN_HEAD) {
    FindHeadMoments(in_buffer, from, {0, tokens, 0, heads, heads}, roots, means);
  } else {
    FindMomentsForHeads(of, in, token, tokens, heads, roots, means);
  }
  // A part of the channels at a time, as the stack has no room for the weights of all.
  constexpr int kChannels = 128;
  alignas(64) float weights[kChannels], biases[kChannels];
  const bool shared = norm.weight_stride == 0;
  const int step = shared ? heads : 1;
  for (int c = 0; c < norm.channels; c += kChannels) {
    const int channels = std::min(kChannels, norm.channels - c);
    for (int32_t h = 0; h < heads; h += step) {
      WidenWeights(of, first + h, c, channels, weights);
      if (norm.rule.has_bias) WidenBiases(of, first + h, c, channels, biases);
      NormChannels(in_buffer, {c, c, channels},
                   {from + h * waiting.in_strides.head, to + h * head_bytes, 0, tokens, step,
                    roots + h, means + h, heads},
                   weights, norm.rule.has_bias ? biases : nullptr, 0);
    }
  }
}

void NormAndRotate(const NormOf& of, const OnePass& pass, const Block& block,
                   const WrittenRuns& out, int64_t token) {
  const Tensor& tensor = of.tensor;
  const int before = tensor.in_span / ElementSize(tensor.dtype), span = of.context.rotary_dim;
  const ChannelPart parts[2] = {{0, 0, before},
                                {before + span, before + span, of.norm.channels - before - span}};
  NormOf asking = of;
  // Over all heads the rotation alone asks: it took 1.02 to 1.06 of the time where sums did, too.
  if (of.norm.span == ROPE_NORM_SPAN_HEAD) asking.prefetch_last = block.prefetch_last;
  asking.prefetch_into_l1 = block.prefetch_into_l1;
  asking.in_cache = block.in_cache;
  const OrderedPlaces places(of, pass);
  const int32_t step = WeightStep(of.norm, places.step);
  OrderedWeights weights;
  Tensor part = tensor;
  Block b = block;
  b.tensor = &part;
  b.weight_step = step;
  ForEachWeights(
      asking, block.in - tensor.in_span, out, token, places.heads,
      [&](int32_t head, int32_t heads) { OrderWeights(of, pass, places, head, heads, &weights); },
      [&](const Tile& tile, const TileHeads& heads) {
        part.heads = heads.heads;
        b.in = heads.in + tensor.in_span;
        b.out = heads.out + tensor.out_span;
        b.cos = block.cos + heads.token * block.row_stride;
        b.sin = block.sin + heads.token * block.row_stride;
        b.tokens = heads.tokens;
        b.prefetch_ahead = tile.Step(tensor);  // the sums have read this tile
        b.weight0 = weights.first;
        b.weight1 = weights.second;
        b.roots = heads.roots;
        b.root_stride = heads.moment_stride;
        pass.rotate(b);
        if (!pass.writes_rest) return;
        if (parts[0].channels != 0) {
          NormChannels(of, parts[0], heads, weights.before, nullptr, step);
        }
        if (parts[1].channels != 0) {
          NormChannels(of, parts[1], heads, weights.behind, nullptr, step);
        }
      });
}

void NormAndRotateByChannels(const NormOf& of, const OnePass& pass, const ChannelRow& row,
                             const char* in, char* out, int64_t token) {
  const Norm& norm = of.norm;
  const Tensor& tensor = of.tensor;
  const int size = ElementSize(tensor.dtype), before = tensor.in_span / size;
  const rope_norm_rounding rounding = RoundingOf(norm, tensor.dtype);
  const auto vectors =
      of.kernels.rotate_by_channels[ROPE_DTYPE_F32 - 1][static_cast<int>(Arithmetic::kFused)];
  const char* weights = nullptr;
  const WrittenRun run = {0, 1, out};
  ForEachWeights(
      of, in, {&run, 1}, token, 1,
      [&](int32_t head, int32_t) { weights = norm.weight + head * norm.weight_stride; },
      [&](const Tile&, const TileHeads& heads) {
        for (int h = 0; h < heads.heads; ++h) {
          const char* const head_in = heads.in + h * tensor.in_strides.head;
          char* const head_out = heads.out + h * tensor.out_strides.head;
          float x[kMaxHeadDim];
          for (int c = 0; c < norm.channels; ++c) {
            float weight = norm.weight != nullptr ? LoadElement(norm.weight_dtype, weights, c) : 1;
            if (norm.rule.one_plus) weight = 1 + weight;
            x[c] = RoundedChannel(rounding, tensor.dtype, LoadElement(tensor.dtype, head_in, c),
                                  heads.roots[h], weight);
          }
          char* const turned = reinterpret_cast<char*>(x + before);
          RotateHead(ROPE_DTYPE_F32, pass.order, Arithmetic::kFused, of.context.segments.data(),
                     static_cast<int32_t>(of.context.segments.size()), turned, turned, row,
                     vectors);
          const int first = pass.writes_rest ? 0 : before,
                    last = pass.writes_rest ? norm.channels : before + of.context.rotary_dim;
          const int to = tensor.out_span / size - before;  // where channel 0 would be
          for (int c = first; c < last; ++c) StoreElement(tensor.dtype, head_out, to + c, x[c]);
        }
      });
}

}  // namespace rope::cpu
