// What BACKWARD does besides turning back, as cpu/gradients.h says it: gradients of repeated heads
// are added, and those of normed heads become those of what was normed. One kernel for each dtype,
// in steps as those of staged.h.
//
// A warp has a head, and a lane of it every 32nd channel, as sums of math/norm.h are added, or
// every 32nd pair: all accesses of a warp lie side by side, whatever alignment they have. Heads
// turn between memory and registers, and lie in shared memory as what was normed lies in memory.
//
// Gradients of weights are added in the order of tokens and heads. A block has the tokens of one
// part, some at a time, and a thread of it some of the channels, whose sums go on in memory: so
// they do from launch to launch, too. What is added is in shared memory by then, and read once.
//
// These kernels take every call. gradient_columns.h has faster ones for most calls with norms.
#ifndef LIBROPE_SRC_GPU_GRADIENT_H_
#define LIBROPE_SRC_GPU_GRADIENT_H_

#include <cstdint>

#include "gpu/gradient_params.h"
#include "gpu/kernel.h"
#include "gpu/staged_norm.h"
#include "math/element.h"
#include "math/norm.h"
#include "math/rotate.h"

namespace rope::gpu {

// A token of a block.
struct GradientToken {
  Token located;  // among the rows of positions
  int64_t batch;
  bool is_there;  // in this launch
};

// Of heads that are normed together.
struct GradientMoments {
  float mean, root;
  float mean_weighted, mean_product;
};

// What is done with heads each time they are in shared memory.
enum class GradientPass : int { kSumValues, kSumSquares, kSumWeighted, kSumProducts, kWrite };

template <rope_dtype kType, class Memory>
struct GradientKernel {
  static constexpr int kSize = ElementSize(kType);
  static constexpr int kAtOnce = 4;  // channels that a lane loads before it uses them

  // All of a block. block.Each(step): for every thread, and a barrier.
  template <class Block>
  ROPE_HD static void Run(const GradientParams& p, const Block& block, char* shared) {
    uint32_t own = p.first_block + block.y();
    int32_t s = 0;
    while (s + 1 < p.side_count && own >= p.sides[s].blocks) own -= p.sides[s++].blocks;
    const GradientSide& side = p.sides[s];
    const uint32_t begin = own * side.block_heads,
                   end = side.one_block ? side.heads : begin + side.block_heads;
    Heads heads = {p,
                   side,
                   reinterpret_cast<float*>(shared),
                   reinterpret_cast<float*>(shared + p.x_at),
                   reinterpret_cast<CosSin*>(shared + p.rows_at),
                   reinterpret_cast<GradientToken*>(shared + p.tokens_at),
                   TokensOf(p, side, block.x()),
                   begin};
    const GradientOfHeads norm = {{side.norm, heads, shared + p.sums_at}};
    const WeightGradients weights = {norm, block.x()};
    if (side.has_parts) {
      if (block.x() >= p.parts.count) return;
      // Else the part has begun in an earlier launch.
      if (p.parts.FirstToken(block.x()) >= p.first_token) {
        block.Each([&](const Thread& i) { weights.Clear(i, begin, end); });
      }
    }
    ROPE_LOOP
    for (; heads.tokens_left.first < heads.tokens_left.last;
         heads.tokens_left.first += side.block_tokens) {
      block.Each([&](const Thread& i) { heads.FindToken(i); });
      if (side.span != 0) block.Each([&](const Thread& i) { heads.MakeRows(i); });
      // Heads that are normed together or, if each is on its own, those that are there at once.
      const uint32_t together = side.norm.all_heads ? side.heads : side.block_heads;
      ROPE_LOOP
      for (uint32_t head = begin; head < end; head += together) {
        PassHeads(block, head, head + together, weights, &heads);
      }
    }
  }

 private:
  // Tokens of a launch.
  struct TokenSpan {
    uint32_t first, last;
  };

  ROPE_HD static TokenSpan TokensOf(const GradientParams& p, const GradientSide& side,
                                    uint32_t block_x) {
    const int64_t tokens = side.block_tokens;
    return side.has_parts ? TokenSpan{InLaunch(p, p.parts.FirstToken(block_x) - p.first_token),
                                      InLaunch(p, p.parts.FirstToken(block_x + 1) - p.first_token)}
                          : TokenSpan{InLaunch(p, tokens * block_x),
                                      InLaunch(p, tokens * (int64_t{block_x} + 1))};
  }
  ROPE_HD static uint32_t InLaunch(const GradientParams& p, int64_t token) {
    const int64_t count = p.source.tokens.count;
    return static_cast<uint32_t>(token < 0 ? 0 : token < count ? token : count);
  }

  ROPE_HD static int FirstPassOf(const StagedNorm& norm) {
    return static_cast<int>(!norm.is_there       ? GradientPass::kWrite
                            : norm.rule.has_mean ? GradientPass::kSumValues
                                                 : GradientPass::kSumSquares);
  }

  // Where a pair is read and written, from the first channel of a head on.
  struct PairPlace {
    uint32_t read[2], written[2];
  };

  // A head of a block: where it is in memory, and in shared memory.
  struct Head {
    const char *in, *x;
    uint32_t at;  // of those in shared memory
  };

  // The heads of a block that are in shared memory at once: of each of its tokens `block_heads`,
  // from `first` on.
  struct Heads {
    const GradientParams& p;
    const GradientSide& side;
    float *gradients, *xs;
    CosSin* rows;
    GradientToken* tokens;
    TokenSpan tokens_left;
    uint32_t first;

    ROPE_HD uint32_t block_tokens() const { return side.block_tokens; }
    ROPE_HD uint32_t count() const { return side.block_tokens * side.block_heads; }
    ROPE_HD float* GradientOf(uint32_t at) const { return gradients + at * side.norm.channels; }
    ROPE_HD float* XOf(uint32_t at) const { return xs + at * side.norm.channels; }

    // Of a head that is in shared memory: its token, and which of the token's heads it is.
    ROPE_HD uint32_t TokenOf(uint32_t at) const { return side.by_block_heads(at); }
    ROPE_HD uint32_t NumberOfHead(uint32_t at) const {
      return first + at - TokenOf(at) * side.block_heads;
    }
    ROPE_HD bool IsTokenThere(uint32_t t) const { return tokens[t].is_there; }
    ROPE_HD bool IsThere(uint32_t at) const {
      return IsTokenThere(TokenOf(at)) && NumberOfHead(at) < side.heads;
    }
    ROPE_HD Head HeadAt(uint32_t at) const {
      const GradientToken& t = tokens[TokenOf(at)];
      const int64_t head = NumberOfHead(at);
      const int64_t index = t.located.index;
      return {side.in + HeadOffset(side.in_strides, t.batch, index, head * side.sums),
              side.x + HeadOffset(side.x_strides, t.batch, index, head), at};
    }

    ROPE_HD char* OutputOf(uint32_t at) const {
      const GradientToken& t = tokens[TokenOf(at)];
      return side.out + HeadOffset(side.out_strides, t.batch, t.located.index, NumberOfHead(at));
    }

    // By one thread for each token.
    ROPE_HD void FindToken(const Thread& i) const {
      const uint32_t t = NumberInBlock(i), n = tokens_left.first + t;
      if (t >= side.block_tokens) return;
      GradientToken& found = tokens[t];
      found.is_there = false;
      if (n >= tokens_left.last) return;
      const TokenIndex at = SplitToken(p.source.tokens, n);
      found.batch = at.batch;
      found.located =
          LocateTokenBy<WideSearch>(p.source.positions, p.by_repeat(at.batch), at.index);
      found.is_there = side.span == 0 || HasSet(p.source, found.located);
    }

    // A warp for each token.
    ROPE_HD void MakeRows(const Thread& i) const {
      const CosSinSource& source = p.source;
      for (uint32_t t = i.y; t < side.block_tokens; t += kStagedWarps) {
        if (!tokens[t].is_there) continue;
        const Token& token = tokens[t].located;
        ROPE_LOOP
        for (uint32_t pair = i.x; pair < source.pairs; pair += kStagedLanes) {
          PairRow row;
          if (source.kind == CosSinKind::kRows) {
            row = ReadPairRow(source, {token.batch, token.index}, static_cast<int32_t>(pair));
          } else {
            row.first = row.second = MakeCosSin(source, token, pair);
          }
          CosSin* const to = rows + t * source.pairs + pair;
          Memory::StoreRow(to, Rounded(row.first));
          if (p.per_channel) {
            Memory::StoreRow(to + side.block_tokens * source.pairs, Rounded(row.second));
          }
        }
      }
    }
    ROPE_HD CosSin Rounded(CosSin value) const {
      if (!p.rounds_rows) return value;
      return {RoundTo(kType, value.cos), RoundTo(kType, value.sin)};
    }

    // A warp for each head: added and turned back, with what was normed into shared memory, or
    // without a norm to the output.
    ROPE_HD void Load(const Thread& i) const {
      for (uint32_t at = i.y; at < count(); at += kStagedWarps) {
        if (!IsThere(at)) continue;
        const Head head = HeadAt(at);
        if (side.span != 0) LoadPairs(i, head);
        if (p.with_rest) LoadRest(i, head);
      }
    }

    ROPE_HD void LoadPairs(const Thread& i, const Head& head) const {
      constexpr int kPairs = kAtOnce / 2;
      const uint32_t pairs = p.source.pairs;
      const CosSin* const row = rows + TokenOf(head.at) * pairs;
      ROPE_LOOP
      for (uint32_t pair = i.x; pair < pairs; pair += kPairs * kStagedLanes) {
        uint32_t read[kAtOnce], written[kAtOnce];
        ROPE_UNROLL
        for (int j = 0; j < kPairs; ++j) {
          const uint32_t own = pair + static_cast<uint32_t>(j) * kStagedLanes;
          const PairPlace place = PlaceOf(own < pairs ? own : pair);
          read[2 * j] = place.read[0], read[2 * j + 1] = place.read[1];
          written[2 * j] = place.written[0], written[2 * j + 1] = place.written[1];
        }
        float y[kAtOnce], x[kAtOnce];
        LoadChannels(head, read, written, y, x);
        ROPE_UNROLL
        for (int j = 0; j < kPairs; ++j) {
          const uint32_t own = pair + static_cast<uint32_t>(j) * kStagedLanes;
          if (own >= pairs) continue;
          const Pair turned = TurnBack({y[2 * j], y[2 * j + 1]}, row + own);
          Put(head, written[2 * j], turned.x0, x[2 * j]);
          Put(head, written[2 * j + 1], turned.x1, x[2 * j + 1]);
        }
      }
    }

    ROPE_HD void LoadRest(const Thread& i, const Head& head) const {
      ROPE_LOOP
      for (uint32_t c = i.x; c < side.rest; c += kAtOnce * kStagedLanes) {
        uint32_t channels[kAtOnce];
        ROPE_UNROLL
        for (int j = 0; j < kAtOnce; ++j) {
          const uint32_t next = c + static_cast<uint32_t>(j) * kStagedLanes,
                         own = next < side.rest ? next : c;
          channels[j] = own < side.span_at ? own : own + side.span;
        }
        float y[kAtOnce], x[kAtOnce];
        LoadChannels(head, channels, channels, y, x);
        ROPE_UNROLL
        for (int j = 0; j < kAtOnce; ++j) {
          if (c + static_cast<uint32_t>(j) * kStagedLanes >= side.rest) continue;
          Put(head, channels[j], y[j], x[j]);
        }
      }
    }

    // The sums of heads, and what was normed where they are written.
    ROPE_HD void LoadChannels(const Head& head, const uint32_t* read, const uint32_t* written,
                              float* y, float* x) const {
      ROPE_UNROLL
      for (int j = 0; j < kAtOnce; ++j) {
        x[j] = side.norm.is_there ? LoadChannel(head.x, written[j]) : 0.0f;
        y[j] = LoadChannel(head.in, read[j]);
      }
      const char* in = head.in;
      ROPE_LOOP
      for (uint32_t m = 1; m < side.sums; ++m) {
        in += side.in_strides.head;
        ROPE_UNROLL
        for (int j = 0; j < kAtOnce; ++j) y[j] = Add(y[j], LoadChannel(in, read[j]));
      }
    }
    ROPE_HD static float LoadChannel(const char* head, uint32_t channel) {
      float value;
      Unpack<kType, 1>(Memory::template Load<kSize>(head + channel * kSize), &value);
      return value;
    }

    ROPE_HD PairPlace PlaceOf(uint32_t pair) const {
      const uint32_t own = static_cast<uint32_t>(p.source.first_pair) + pair;
      int32_t s = 0;
      for (int32_t n = 1; n < p.segment_count; ++n) {
        s += own >= static_cast<uint32_t>(p.segments[n].first_pair) ? 1 : 0;
      }
      const Segment& segment = p.segments[s];
      const int at = static_cast<int>(own) - segment.first_pair;
      const PairIndex read = ChannelsOf(p.reads_interleaved, at, segment.pairs),
                      written = ChannelsOf(p.writes_interleaved, at, segment.pairs);
      const uint32_t begin = side.span_at + static_cast<uint32_t>(segment.first_channel);
      return {
          {begin + static_cast<uint32_t>(read.first), begin + static_cast<uint32_t>(read.second)},
          {begin + static_cast<uint32_t>(written.first),
           begin + static_cast<uint32_t>(written.second)}};
    }

    // Where products are rounded, so is the sum that they are made of.
    ROPE_HD Pair TurnBack(Pair x, const CosSin* row) const {
      if (p.arithmetic != Arithmetic::kFused) {
        x = {RoundTo(kType, x.x0), RoundTo(kType, x.x1)};
      }
      return RotateBy(p.arithmetic, kType, x, row[0],
                      row[p.per_channel ? side.block_tokens * p.source.pairs : 0]);
    }

    ROPE_HD void Put(const Head& head, uint32_t channel, float gradient, float x) const {
      if (!side.norm.is_there) return Store(OutputOf(head.at), channel, gradient);
      const bool rounds = side.norm.rounding != ROPE_NORM_ROUNDING_FLOAT32;
      GradientOf(head.at)[channel] = rounds ? RoundTo(kType, gradient) : gradient;
      XOf(head.at)[channel] = x;
    }
    ROPE_HD static void Store(char* head, uint32_t channel, float value) {
      Vector<kSize> data;
      Pack<kType, 1>(&value, &data);
      Memory::template Store<kSize>(head + channel * kSize, data);
    }
  };

  // Gradients that pass a norm.
  struct GradientOfHeads : SumsOfHeads<GradientMoments, Heads> {
    using Base = SumsOfHeads<GradientMoments, Heads>;
    using Base::heads, Base::norm, Base::MomentsOf;

    // What a channel of a head is made of, and what of.
    struct OfHead {
      const StagedNorm& norm;
      const float *gradient, *x;
      int64_t weights;  // where those of the head begin, in bytes
      GradientMoments moments;

      ROPE_HD bool is_eager() const { return norm.rounding == ROPE_NORM_ROUNDING_EAGER; }
      ROPE_HD float Scaled(uint32_t c) const {
        return Multiply(norm.rule.has_mean ? Add(x[c], -moments.mean) : x[c], moments.root);
      }
      ROPE_HD float Weighted(uint32_t c) const {
        const float product = Multiply(gradient[c], WeightOf(norm, weights, c));
        return is_eager() ? RoundTo(kType, product) : product;
      }
      // By which the gradient of a channel grows that of its weight.
      ROPE_HD float Factor(uint32_t c) const {
        return is_eager() ? RoundTo(kType, Scaled(c)) : Scaled(c);
      }
    };
    ROPE_HD OfHead Of(uint32_t at) const {
      return {norm, heads.GradientOf(at), heads.XOf(at),
              heads.NumberOfHead(at) * norm.weight_stride, MomentsOf(at)};
    }

    ROPE_HD void AddChannels(const Thread& i, GradientPass pass, bool is_first) const {
      Base::AddChannels(i, is_first, [&](uint32_t at) {
        const OfHead head = Of(at);
        return [head, pass](float sum, uint32_t c) {
          switch (pass) {
            case GradientPass::kSumValues: return Add(sum, head.x[c]);
            case GradientPass::kSumSquares:
              return AddSquare(sum, head.x[c], head.norm.rule.has_mean ? head.moments.mean : 0.0f);
            case GradientPass::kSumWeighted: return Add(sum, head.Weighted(c));
            default: return Fma(head.Weighted(c), head.Scaled(c), sum);
          }
        };
      });
    }

    ROPE_HD void Finish(const Thread& i, GradientPass pass) const {
      Base::Finish(i, [&](GradientMoments* of, float sum) {
        if (pass == GradientPass::kSumSquares) {
          of->root = InverseRoot(sum, norm.terms, norm.eps);
          return;
        }
        float& mean = pass == GradientPass::kSumValues     ? of->mean
                      : pass == GradientPass::kSumWeighted ? of->mean_weighted
                                                           : of->mean_product;
        mean = Divide(sum, norm.terms);
      });
    }

    // A warp for each head.
    ROPE_HD void Write(const Thread& i) const {
      for (uint32_t at = i.y; at < heads.count(); at += kStagedWarps) {
        if (!heads.IsThere(at)) continue;
        const OfHead head = Of(at);
        char* const out = heads.OutputOf(at);
        const float mean_weighted = norm.rule.has_mean ? head.moments.mean_weighted : 0.0f;
        for (uint32_t c = i.x; c < norm.channels; c += kStagedLanes) {
          const ChannelGradient g = {head.Scaled(c), head.Weighted(c), mean_weighted,
                                     head.moments.mean_product};
          Heads::Store(out, c, GradientOfChannel(g, head.moments.root));
        }
      }
    }
  };

  // The gradients of weights and biases in a part.
  struct WeightGradients {
    const GradientOfHeads& of;
    uint32_t part;

    ROPE_HD bool shares_row() const { return of.norm.weight_stride == 0; }
    // The first weight of a head.
    ROPE_HD int64_t RowOf(uint32_t number) const {
      return part * of.heads.side.weights + (shares_row() ? 0 : int64_t{number} * of.norm.channels);
    }

    // Of heads [begin, end).
    ROPE_HD void Clear(const Thread& i, uint32_t begin, uint32_t end) const {
      const GradientSide& side = of.heads.side;
      const uint32_t rows = shares_row() ? 1 : (end < side.heads ? end : side.heads) - begin;
      for (uint32_t n = NumberInBlock(i); n < rows * of.norm.channels; n += kStagedThreads) {
        if (side.weight_grad != nullptr) side.weight_grad[RowOf(begin) + n] = 0;
        if (side.bias_grad != nullptr) side.bias_grad[RowOf(begin) + n] = 0;
      }
    }

    // Those of the heads in shared memory. A thread has channels of all of them or, where heads
    // have weights of their own, a warp has one head of each token.
    ROPE_HD void Add(const Thread& i) const {
      const uint32_t channels = of.norm.channels, heads = of.heads.side.block_heads;
      if (shares_row()) {
        for (uint32_t c = NumberInBlock(i); c < channels; c += kStagedThreads) AddChannel(0, 1, c);
        return;
      }
      for (uint32_t h = i.y; h < heads; h += kStagedWarps) {
        if (of.heads.NumberOfHead(h) >= of.heads.side.heads) continue;
        for (uint32_t c = i.x; c < channels; c += kStagedLanes) AddChannel(h, heads, c);
      }
    }

   private:
    // Of every `step`th head from `at` on.
    ROPE_HD void AddChannel(uint32_t at, uint32_t step, uint32_t channel) const {
      const GradientSide& side = of.heads.side;
      const int64_t place = RowOf(of.heads.NumberOfHead(at)) + channel;
      float weight = side.weight_grad != nullptr ? side.weight_grad[place] : 0.0f,
            bias = side.bias_grad != nullptr ? side.bias_grad[place] : 0.0f;
      ROPE_LOOP
      for (; at < of.heads.count(); at += step) {
        if (!of.heads.IsThere(at)) continue;
        const auto head = of.Of(at);
        weight = Fma(head.gradient[channel], head.Factor(channel), weight);
        bias = rope::Add(bias, head.gradient[channel]);
      }
      if (side.weight_grad != nullptr) side.weight_grad[place] = weight;
      if (side.bias_grad != nullptr) side.bias_grad[place] = bias;
    }
  };

  // Heads [begin, end) of the block's tokens, block_heads at a time.
  template <class Block>
  ROPE_HD static void PassHeads(const Block& block, uint32_t begin, uint32_t end,
                                const WeightGradients& weights, Heads* heads) {
    const GradientSide& side = heads->side;
    const GradientOfHeads& norm = weights.of;
    const int first_pass = FirstPassOf(side.norm);
    ROPE_LOOP
    for (int n = first_pass; n <= static_cast<int>(GradientPass::kWrite); ++n) {
      const auto pass = static_cast<GradientPass>(n);
      if (pass == GradientPass::kSumWeighted && !side.norm.rule.has_mean) continue;
      ROPE_LOOP
      for (heads->first = begin; heads->first < end; heads->first += side.block_heads) {
        // Between two passes all heads stay where they are, if there are no others.
        if (n == first_pass || begin + side.block_heads < end) {
          block.Each([&](const Thread& i) { heads->Load(i); });
        }
        if (!side.norm.is_there) continue;
        if (pass == GradientPass::kWrite) {
          block.Each([&](const Thread& i) {
            norm.Write(i);
            if (side.has_parts) weights.Add(i);
          });
          continue;
        }
        block.Each([&](const Thread& i) { norm.AddChannels(i, pass, heads->first == begin); });
        if (side.norm.all_heads) block.Each([&](const Thread& i) { norm.AddHeads(i); });
        const bool is_last = heads->first + side.block_heads >= end;
        if (is_last) block.Each([&](const Thread& i) { norm.Finish(i, pass); });
      }
    }
  }
};

}  // namespace rope::gpu

#endif  // LIBROPE_SRC_GPU_GRADIENT_H_
