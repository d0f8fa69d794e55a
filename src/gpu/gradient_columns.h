// Calls of gradient.h whose heads are cut into columns, as those of columns.h are: a few threads
// have a head in their registers, each all channels that belong to the same running sums of a norm
// (math/norm.h), four of each row of 32. Both members of a pair of HALVES lie in one column,
// adjacent channels do; FitsColumns of gradient_launch.cc says which calls have such heads.
//
// Heads pass through a block as many at a time as it has threads for, in the order in which
// gradients of weights are added: of tokens, and of the heads of each. What is added waits in
// shared memory until the next heads are on their way: then one thread for each channel adds it.
// Where there are many parts a block has q and k of its tokens, which share rows of cos and sin.
#ifndef LIBROPE_SRC_GPU_GRADIENT_COLUMNS_H_
#define LIBROPE_SRC_GPU_GRADIENT_COLUMNS_H_

#include <cstdint>

#include "gpu/arithmetic.h"
#include "gpu/gradient_params.h"
#include "gpu/kernel.h"
#include "gpu/staged_norm.h"
#include "gpu/staged_tokens.h"
#include "math/element.h"
#include "math/norm.h"
#include "math/rotate.h"

namespace rope::gpu {

template <rope_dtype kType, class Memory>
struct GradientColumnKernel {
  static constexpr uint32_t kElements = kGradientElements, kLanes = kGradientLanes,
                            kHeads = kGradientColumnHeads, kRow = kRunningSums,
                            kWidth = kGradientRows * kRow;
  static constexpr int kRows = kGradientRows;
  static constexpr int kSize = ElementSize(kType), kBytes = kSize * static_cast<int>(kElements);
  static_assert(kHeads * kLanes == kStagedThreads && kElements * kLanes == kRow);

  // Channels of a thread that lie side by side.
  struct alignas(16) Four {
    float values[kElements];
  };

  // Where a token's heads begin, in bytes.
  struct Place {
    int64_t in, x, out;
  };

  // Heads that are in registers at once: of some tokens of one side, counted through them.
  struct Tile {
    uint32_t first_token, tokens;  // of the launch
    uint32_t side, at;             // the first of the heads

    ROPE_HD uint32_t heads(const GradientParams& p) const { return tokens * p.sides[side].heads; }
    ROPE_HD uint32_t count(const GradientParams& p) const {
      const uint32_t left = heads(p) - at;
      return left < kHeads ? left : kHeads;
    }
  };

  // What a thread holds from step to step.
  struct Held {
    Vector<kBytes> in[kRows], x[kRows];
    char* out;
    uint32_t token;
    bool is_there;  // a head
    Four gradient[kRows], scaled[kRows];
    float sums[kElements];
    float root;
  };

  // All of a block. block.Each(step): for every thread, and a barrier; EachAlone: without one;
  // AddAcross: adds values of the threads of a warp; State: of each thread.
  template <class Block>
  ROPE_HD static void Run(const GradientParams& p, const Block& block, char* shared) {
    const GradientColumnKernel own = {p,
                                      reinterpret_cast<float*>(shared),
                                      reinterpret_cast<CosSin*>(shared + p.rows_at),
                                      reinterpret_cast<uint32_t*>(shared + p.tokens_at),
                                      reinterpret_cast<float*>(shared + p.sums_at),
                                      reinterpret_cast<Place*>(shared + p.x_at),
                                      block.x()};
    own.Pass(block);
  }

  const GradientParams& p;
  float* staged;  // gradients of heads, and behind them their factors
  CosSin* rows;
  uint32_t* tokens;  // of those with rows: whether they are in this launch
  float* weights;    // of each side; behind them the gradients of these
  Place* places;     // of these tokens, of each side
  uint32_t part;

 private:
  struct TokenSpan {
    uint32_t first, last;
  };
  // Sides of a block, and heads in shared memory whose weights' gradients have not grown yet.
  struct Sides {
    uint32_t first, last;
  };
  struct Waiting {
    uint32_t side, count;
  };

  ROPE_HD float* GradientsOf(uint32_t head) const { return staged + head * kWidth; }
  ROPE_HD float* FactorsOf(uint32_t head) const { return GradientsOf(kHeads + head); }
  ROPE_HD float* WeightsOf(uint32_t side) const { return weights + side * kWidth; }
  ROPE_HD float* SumsOf(uint32_t side) const {
    return WeightsOf(static_cast<uint32_t>(p.side_count) + side);
  }
  ROPE_HD static uint32_t HeadOf(const Thread& i) { return NumberInBlock(i) / kLanes; }
  ROPE_HD static uint32_t PlaceInRow(const Thread& i) {
    return NumberInBlock(i) % kLanes * kElements;
  }

  template <class Block>
  ROPE_HD void Pass(const Block& block) const {
    typename Block::template State<Held> held;
    const uint32_t first = p.columns.together ? 0 : block.y();
    const Sides sides = {first,
                         p.columns.together ? static_cast<uint32_t>(p.side_count) : first + 1};
    if (p.sides[first].has_parts && block.x() >= p.parts.count) return;
    const TokenSpan own = TokensOf(p.sides[first], block.x());
    Tile tile = {own.first, TokensFrom(own.first, own.last), first, 0};
    Waiting waiting = {first, 0};
    block.EachAlone([&](const Thread& i) {
      for (uint32_t s = sides.first; s < sides.last; ++s) Begin(i, s);
    });
    ROPE_LOOP
    while (tile.first_token < own.last) {
      if (tile.side == first && tile.at == 0) {
        block.Each([&](const Thread& i) { FindPlaces(i, sides, tile); });
        block.Each([&](const Thread& i) {
          Load(i, tile, &held[i]);
          MakeRows(i, tile);
        });
      }
      const StagedNorm& norm = p.sides[tile.side].norm;
      const bool rounds = norm.rounding != ROPE_NORM_ROUNDING_FLOAT32 ||
                          p.arithmetic != Arithmetic::kFused || p.per_channel;
      if (norm.channels == kWidth) {
        rounds ? PassTile<true, true>(block, own.last, sides, &tile, &waiting, held)
               : PassTile<true, false>(block, own.last, sides, &tile, &waiting, held);
      } else {
        rounds ? PassTile<false, true>(block, own.last, sides, &tile, &waiting, held)
               : PassTile<false, false>(block, own.last, sides, &tile, &waiting, held);
      }
    }
    block.EachAlone([&](const Thread& i) {
      AddWeights(i, waiting);
      for (uint32_t s = sides.first; s < sides.last; ++s) End(i, s);
    });
  }

  // Some heads; and the next ones of the same tokens are loaded. kAll: they have all channels that
  // there is room for. kAny: with any rounding, and rows of each channel.
  template <bool kAll, bool kAny, class Block, class AllHeld>
  ROPE_HD void PassTile(const Block& block, uint32_t last, const Sides& sides, Tile* tile,
                        Waiting* waiting, AllHeld& held) const {
    const uint32_t s = tile->side;
    const GradientSide& side = p.sides[s];
    const uint32_t channels = kAll ? kWidth : side.norm.channels;
    block.EachAlone([&](const Thread& i) {
      AddWeights(i, *waiting);
      AddSquares(channels, &held[i]);
    });
    AddColumns(block, held);
    block.EachAlone([&](const Thread& i) {
      Held& head = held[i];
      head.root = InverseRootOf(side, Sum(head));
      if (side.span != 0 && p.source.set_count != p.source.all_sets) {
        head.is_there &= tokens[head.token] != 0;
      }
      Turn<kAny>(i, side, &head);
      AddProducts<kAny>(i, s, channels, &head);
    });
    AddColumns(block, held);
    block.Each([&](const Thread& i) { Write<kAny>(i, s, channels, held[i]); });
    *waiting = {s, side.has_parts ? tile->count(p) : 0};
    const uint32_t first_token = tile->first_token;
    Advance(last, sides, tile);
    block.Each([&](const Thread& i) {
      if (side.has_parts) Stage<kAny>(i, side, channels, held[i]);
      if (tile->first_token == first_token) Load(i, *tile, &held[i]);
    });
  }

  ROPE_HD TokenSpan TokensOf(const GradientSide& side, uint32_t block_x) const {
    const int64_t own = p.columns.block_tokens;
    return side.has_parts
               ? TokenSpan{InLaunch(p.parts.FirstToken(block_x) - p.first_token),
                           InLaunch(p.parts.FirstToken(block_x + 1) - p.first_token)}
               : TokenSpan{InLaunch(own * block_x), InLaunch(own * (int64_t{block_x} + 1))};
  }
  ROPE_HD uint32_t InLaunch(int64_t token) const {
    const int64_t count = p.source.tokens.count;
    return static_cast<uint32_t>(token < 0 ? 0 : token < count ? token : count);
  }
  ROPE_HD uint32_t TokensFrom(uint32_t first, uint32_t last) const {
    return last - first < p.columns.row_tokens ? last - first : p.columns.row_tokens;
  }

  // To the next heads: of these tokens, of the next side of them, of the next tokens.
  ROPE_HD void Advance(uint32_t last, const Sides& sides, Tile* tile) const {
    tile->at += kHeads;
    if (tile->at < tile->heads(p)) return;
    tile->at = 0;
    if (++tile->side < sides.last) return;
    tile->side = sides.first;
    tile->first_token += tile->tokens;
    tile->tokens = TokensFrom(tile->first_token, last);
  }

  ROPE_HD void Begin(const Thread& i, uint32_t s) const {
    const GradientSide& side = p.sides[s];
    const uint32_t c = NumberInBlock(i);
    if (c >= side.norm.channels) return;
    WeightsOf(s)[c] = WeightOf(side.norm, 0, c);
    if (!side.has_parts) return;
    // Else the part has begun in an earlier launch.
    const bool begins = p.parts.FirstToken(part) >= p.first_token;
    SumsOf(s)[c] = begins ? 0.0f : side.weight_grad[part * side.weights + c];
  }
  ROPE_HD void End(const Thread& i, uint32_t s) const {
    const GradientSide& side = p.sides[s];
    const uint32_t c = NumberInBlock(i);
    if (!side.has_parts || c >= side.norm.channels) return;
    side.weight_grad[part * side.weights + c] = SumsOf(s)[c];
  }

  ROPE_HD void MakeRows(const Thread& i, const Tile& tile) const {
    const CosSinSource& source = p.source;
    const uint32_t pairs = source.pairs;
    ROPE_LOOP
    for (uint32_t n = NumberInBlock(i); n < tile.tokens * pairs; n += kStagedThreads) {
      const uint32_t t = p.columns.by_pairs(n), pair = n - t * pairs;
      const TokenIndex at = SplitToken(source.tokens, tile.first_token + t);
      PairRow row;
      bool is_there = true;
      if (source.kind == CosSinKind::kRows) {
        row = ReadPairRow(source, at, static_cast<int32_t>(pair));
      } else {
        const Token token =
            LocateTokenBy<WideSearch>(source.positions, p.by_repeat(at.batch), at.index);
        is_there = HasSet(source, token);
        if (is_there) row.first = row.second = MakeCosSin(source, token, pair);
      }
      if (pair == 0) tokens[t] = is_there ? 1 : 0;
      if (!is_there) continue;
      Memory::StoreRow(rows + n, Rounded(row.first));
      if (p.per_channel) {
        Memory::StoreRow(rows + (p.columns.row_tokens * pairs + n), Rounded(row.second));
      }
    }
  }
  ROPE_HD CosSin Rounded(CosSin value) const {
    if (!p.rounds_rows) return value;
    return {RoundTo(kType, value.cos), RoundTo(kType, value.sin)};
  }

  // By one thread for each token and side.
  ROPE_HD void FindPlaces(const Thread& i, const Sides& sides, const Tile& tile) const {
    const uint32_t n = NumberInBlock(i), t = n % kMostRowTokens,
                   s = sides.first + n / kMostRowTokens;
    if (s >= sides.last || t >= tile.tokens) return;
    const GradientSide& side = p.sides[s];
    const TokenIndex at = SplitToken(p.source.tokens, tile.first_token + t);
    places[s * kMostRowTokens + t] = {TokenOffset(side.in_strides, at.batch, at.index),
                                      TokenOffset(side.x_strides, at.batch, at.index),
                                      TokenOffset(side.out_strides, at.batch, at.index)};
  }

  // Threads without a head read the last one, so that nothing waits for a branch.
  ROPE_HD void Load(const Thread& i, const Tile& tile, Held* held) const {
    const GradientSide& side = p.sides[tile.side];
    const uint32_t own = tile.at + HeadOf(i), heads = tile.heads(p),
                   at = own < heads ? own : heads - 1;
    held->is_there = own < heads;
    held->token = side.by_heads(at);
    const Place& place = places[tile.side * kMostRowTokens + held->token];
    const uint32_t head = at - held->token * side.heads;
    const auto offset = [&](int64_t of_token, const HeadStrides& strides) {
      // Those of heads have 32 bits.
      return of_token + static_cast<int64_t>(uint64_t{head} * static_cast<uint32_t>(strides.head)) +
             PlaceInRow(i) * kSize;
    };
    const char *const in = side.in + offset(place.in, side.in_strides), *const x =
                                                                            side.x +
                                                                            offset(place.x,
                                                                                   side.x_strides);
    held->out = side.out + offset(place.out, side.out_strides);
    ROPE_UNROLL
    for (int r = 0; r < kRows; ++r) {
      if (r * kRow >= side.norm.channels) continue;
      held->x[r] = Memory::template Load<kBytes>(x + r * (kRow * kSize));
      held->in[r] = Memory::template Load<kBytes>(in + r * (kRow * kSize));
    }
  }

  // The sums of the columns of a head, of its threads: those that lie 16, 8 and 4 channels apart.
  template <class Block, class AllHeld>
  ROPE_HD static void AddColumns(const Block& block, AllHeld& held) {
    ROPE_UNROLL
    for (uint32_t apart = kLanes / 2; apart != 0; apart /= 2) {
      block.template AddAcross<static_cast<int>(kElements)>(
          apart, [&](const Thread& i) { return held[i].sums; });
    }
  }
  ROPE_HD static float Sum(const Held& held) {
    return Add(Add(held.sums[0], held.sums[2]), Add(held.sums[1], held.sums[3]));
  }

  ROPE_HD static void AddSquares(uint32_t channels, Held* held) {
    ROPE_UNROLL
    for (uint32_t j = 0; j < kElements; ++j) held->sums[j] = 0;
    ROPE_UNROLL
    for (int r = 0; r < kRows; ++r) {
      if (r * kRow >= channels) continue;
      float* const x = held->scaled[r].values;
      Unpack<kType, kElements>(held->x[r], x);
      ROPE_UNROLL
      for (uint32_t j = 0; j < kElements; ++j) held->sums[j] = Fma(x[j], x[j], held->sums[j]);
    }
  }

  // As InverseRoot.
  ROPE_HD float InverseRootOf(const GradientSide& side, float sum) const {
    return QuickDivide(1.0f, QuickRoot(Add(MeanOf(side, sum), side.norm.eps)));
  }
  // The quotient by a power of two is a product.
  ROPE_HD static float MeanOf(const GradientSide& side, float sum) {
    return side.inverse_terms != 0 ? Multiply(sum, side.inverse_terms)
                                   : QuickDivide(sum, side.norm.terms);
  }

  // cos and sin of two pairs; second members may have their own.
  struct Rows {
    TwoRows first, second;
  };
  template <bool kAny>
  ROPE_HD Rows RowsAt(const CosSin* row) const {
    Rows own;
    own.first = own.second = Memory::template LoadRows<false>(row);
    if (kAny && p.per_channel) {
      own.second = Memory::template LoadRows<false>(row + p.columns.row_tokens * p.source.pairs);
    }
    return own;
  }

  template <bool kAny>
  ROPE_HD void Turn(const Thread& i, const GradientSide& side, Held* held) const {
    ROPE_UNROLL
    for (int r = 0; r < kRows; ++r) Unpack<kType, kElements>(held->in[r], held->gradient[r].values);
    const auto plain = [](Pair x, CosSin first, CosSin second) { return Rotate(x, first, second); };
    if (side.span != 0) {
      if (!kAny || p.arithmetic == Arithmetic::kFused) {
        TurnBy<kAny>(i, side, held, plain);
      } else if (kType != ROPE_DTYPE_F16 || p.arithmetic == Arithmetic::kEager) {
        TurnBy<kAny>(i, side, held, [](Pair x, CosSin first, CosSin second) {
          return RotateEager(kType, x, first, second);
        });
      } else {
        TurnBy<kAny>(i, side, held, [](Pair x, CosSin first, CosSin second) {
          return RotateNative(x, first, second);
        });
      }
    }
    if (kAny && side.norm.rounding != ROPE_NORM_ROUNDING_FLOAT32) {
      ROPE_UNROLL
      for (int r = 0; r < kRows; ++r) Round(&held->gradient[r]);
    }
  }
  template <bool kAny, class RotateOne>
  ROPE_HD void TurnBy(const Thread& i, const GradientSide& side, Held* held,
                      const RotateOne& rotate) const {
    const auto turn = [&](const Rows& own, int pair, float* x0, float* x1) {
      const Pair turned = rotate({*x0, *x1}, own.first.values[pair], own.second.values[pair]);
      *x0 = turned.x0;
      *x1 = turned.x1;
    };
    const CosSin* const row = rows + held->token * p.source.pairs;
    if (p.reads_interleaved) {
      ROPE_UNROLL
      for (int r = 0; r < kRows; ++r) {
        if (r * kRow >= side.span) continue;
        float* const g = held->gradient[r].values;
        const Rows two = RowsAt<kAny>(row + (PlaceInRow(i) + r * kRow) / 2);
        turn(two, 0, g, g + 1);
        turn(two, 1, g + 2, g + 3);
      }
      return;
    }
    const int half = static_cast<int>(p.source.pairs / kRow);
    ROPE_UNROLL
    for (int h = 1; h <= kRows / 2; ++h) {
      if (h != half) continue;
      ROPE_UNROLL
      for (int r = 0; r < h; ++r) {
        float *const first = held->gradient[r].values, *const second = held->gradient[r + h].values;
        ROPE_UNROLL
        for (uint32_t j = 0; j < kElements; j += 2) {
          const Rows two = RowsAt<kAny>(row + (PlaceInRow(i) + r * kRow + j));
          turn(two, 0, first + j, second + j);
          turn(two, 1, first + j + 1, second + j + 1);
        }
      }
    }
  }
  ROPE_HD static void Round(Four* of) {
    ROPE_UNROLL
    for (uint32_t j = 0; j < kElements; ++j) of->values[j] = RoundTo(kType, of->values[j]);
  }

  // Gradients with respect to what the norm multiplies by weights.
  template <bool kAny>
  ROPE_HD Four Weighted(const Thread& i, uint32_t s, int r, const Held& held) const {
    Four weighted = *reinterpret_cast<const Four*>(WeightsOf(s) + (r * kRow + PlaceInRow(i)));
    ROPE_UNROLL
    for (uint32_t j = 0; j < kElements; ++j) {
      weighted.values[j] = Multiply(held.gradient[r].values[j], weighted.values[j]);
    }
    if (kAny && p.sides[s].norm.rounding == ROPE_NORM_ROUNDING_EAGER) Round(&weighted);
    return weighted;
  }

  template <bool kAny>
  ROPE_HD void AddProducts(const Thread& i, uint32_t s, uint32_t channels, Held* held) const {
    ROPE_UNROLL
    for (uint32_t j = 0; j < kElements; ++j) held->sums[j] = 0;
    ROPE_UNROLL
    for (int r = 0; r < kRows; ++r) {
      if (r * kRow >= channels) continue;
      const Four weighted = Weighted<kAny>(i, s, r, *held);
      ROPE_UNROLL
      for (uint32_t j = 0; j < kElements; ++j) {
        float& scaled = held->scaled[r].values[j];
        scaled = Multiply(scaled, held->root);
        held->sums[j] = Fma(weighted.values[j], scaled, held->sums[j]);
      }
    }
  }

  template <bool kAny>
  ROPE_HD void Write(const Thread& i, uint32_t s, uint32_t channels, const Held& held) const {
    const float mean_product = MeanOf(p.sides[s], Sum(held));
    ROPE_UNROLL
    for (int r = 0; r < kRows; ++r) {
      if (r * kRow >= channels) continue;
      const Four weighted = Weighted<kAny>(i, s, r, held);
      float values[kElements];
      ROPE_UNROLL
      for (uint32_t j = 0; j < kElements; ++j) {
        values[j] =
            GradientOfRms(held.scaled[r].values[j], weighted.values[j], mean_product, held.root);
      }
      Vector<kBytes> data;
      Pack<kType, kElements>(values, &data);
      if (held.is_there) Memory::template Store<kBytes>(held.out + r * (kRow * kSize), data);
    }
  }

  // For AddWeights. What no head has changes no sum.
  template <bool kAny>
  ROPE_HD void Stage(const Thread& i, const GradientSide& side, uint32_t channels,
                     const Held& held) const {
    float *const gradients = GradientsOf(HeadOf(i)) + PlaceInRow(i), *const factors =
                                                                         FactorsOf(HeadOf(i)) +
                                                                         PlaceInRow(i);
    const auto stage = [&](const auto& gradient, const auto& factor) {
      ROPE_UNROLL
      for (int r = 0; r < kRows; ++r) {
        if (r * kRow >= channels) continue;
        *reinterpret_cast<Four*>(gradients + r * kRow) = gradient(r);
        *reinterpret_cast<Four*>(factors + r * kRow) = factor(r);
      }
    };
    const auto gradient = [&](int r) { return held.gradient[r]; };
    if (!held.is_there) {
      stage([](int) { return Four{{-0.0f, -0.0f, -0.0f, -0.0f}}; }, [](int) { return Four{}; });
    } else if (kAny && side.norm.rounding == ROPE_NORM_ROUNDING_EAGER) {
      stage(gradient, [&](int r) {
        Four factor = held.scaled[r];
        Round(&factor);
        return factor;
      });
    } else {
      stage(gradient, [&](int r) { return held.scaled[r]; });
    }
  }

  // Of heads that are staged, in their order.
  ROPE_HD void AddWeights(const Thread& i, const Waiting& waiting) const {
    const uint32_t c = NumberInBlock(i);
    if (waiting.count == 0 || c >= p.sides[waiting.side].norm.channels) return;
    constexpr uint32_t kAtOnce = 16;
    static_assert(kHeads % kAtOnce == 0);
    float& sum = SumsOf(waiting.side)[c];
    float own = sum;
    ROPE_LOOP
    for (uint32_t head = 0; head < waiting.count; head += kAtOnce) {
      const float *const gradients = GradientsOf(head) + c, *const factors = FactorsOf(head) + c;
      ROPE_UNROLL
      for (uint32_t u = 0; u < kAtOnce; ++u) {
        own = Fma(gradients[u * kWidth], factors[u * kWidth], own);
      }
    }
    sum = own;
  }
};

}  // namespace rope::gpu

#endif  // LIBROPE_SRC_GPU_GRADIENT_COLUMNS_H_
