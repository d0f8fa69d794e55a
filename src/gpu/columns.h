// Calls of staged.h whose heads are cut into columns. A few threads have a head, each all vectors
// whose channels belong to the same running sums of a norm (math/norm.h): a channel is added,
// normed, turned and written by the thread that has loaded it, eight or four at a time and as they
// are in memory. Shared memory keeps a thread's vectors until then, with the sums, weights and
// rows. Both members of a pair of HALVES must lie in one column, adjacent channels do; FitsColumns
// of staged_launch.cc says which calls have such heads.
//
// As in staged.h, what threads do stands in steps between barriers.
#ifndef LIBROPE_SRC_GPU_COLUMNS_H_
#define LIBROPE_SRC_GPU_COLUMNS_H_

#include <cstdint>

#include "gpu/kernel.h"
#include "gpu/staged_norm.h"
#include "gpu/staged_output.h"
#include "gpu/staged_params.h"
#include "gpu/staged_tokens.h"
#include "math/norm.h"
#include "math/rotate.h"

namespace rope::gpu {

template <rope_dtype kType, class Memory>
struct ColumnKernel {
  static constexpr int kSize = ElementSize(kType);
  static constexpr int kElements = 16 / kSize;  // of a vector
  static constexpr uint32_t kLanes = ColumnLanes(kType), kRow = kRunningSums;
  using Tokens = StagedTokens<kType, false, Memory>;

  // All of a block. block.Each(step): for every thread, and a barrier.
  template <class Block>
  ROPE_HD static void Run(const StagedParams& p, const Block& block, char* shared) {
    const Heads heads = {HeadsOfBlock(p, block.y(), shared), reinterpret_cast<Vector<16>*>(shared),
                         reinterpret_cast<float*>(shared + p.weights_at)};
    const StagedSide& side = heads.side;
    const StagedNorm& norm = side.norm;
    const Sums sums = {{norm, heads, shared + p.norms_at}};
    const Output output = {side.output, heads, reinterpret_cast<uint32_t*>(shared + p.scales_at)};
    const auto computes = [&] { return side.output.groups != 0 && side.output.computed; };
    // The memory is asked for heads before anything is computed, unless a token's slot tells where.
    block.Each([&](const Thread& i) {
      if (!side.from_slots) heads.LoadByIndex(i);
      Tokens::FindToken(p, i, heads.tokens);
      if (norm.is_there) heads.LoadWeights(i);
      if (side.turns) Tokens::MakeRows(p, i, heads.rows);
      if (computes()) output.ClearSizes(i);
    });
    if (side.from_slots) block.Each([&](const Thread& i) { heads.LoadBySlot(i); });
    ROPE_LOOP
    for (int n = FirstPassOf(norm); n < kWriteHeads; ++n) {
      const auto pass = static_cast<StagedPass>(n);
      block.Each([&](const Thread& i) { heads.AddChannels(i, pass, sums); });
      block.Each([&](const Thread& i) { sums.Finish(i, pass); });
    }
    if (computes()) {
      block.Each([&](const Thread& i) {
        heads.ForEachVector(i, sums, [&](uint32_t at, const Made& made) {
          uint32_t largest = 0;
          ROPE_UNROLL
          for (int j = 0; j < kElements; ++j) {
            const uint32_t size = SizeForScale(output.Rounded(made.values[j]));
            largest = size > largest ? size : largest;
          }
          const uint32_t group = side.output.by_group(made.channel - side.output.first);
          Memory::Max(output.groups + (at * side.output.groups + group), largest);
        });
      });
    }
    if (!side.output.is_there) {
      block.Each([&](const Thread& i) {
        heads.ForEachVector(i, sums, [&](uint32_t at, const Made& made) { heads.Store(at, made); });
      });
      return;
    }
    ROPE_LOOP
    for (uint32_t r = 0; r < side.output.repeats; ++r) {
      if (side.output.groups != 0 && (r == 0 || !side.output.computed)) {
        block.Each([&](const Thread& i) { output.FindScales(i, r); });
      }
      block.Each([&](const Thread& i) {
        heads.ForEachVector(i, sums, [&](uint32_t at, const Made& made) {
          output.StoreChannels(made.values, at, r, made.channel);
        });
      });
    }
  }

 private:
  struct Heads;
  using Sums = NormOfHeads<kType, Heads>;
  using Output = OutputOfHeads<kType, kElements, 1, false, Memory, Heads>;

  // A vector that is to be written.
  struct Made {
    uint32_t channel;  // its first
    uint32_t read;     // the number of the vector that it is made of
    float values[kElements];
  };
  struct alignas(16) Four {
    float values[4];
  };
  // cos and sin of two pairs; second members may have their own.
  struct Rows {
    TwoRows first, second;
  };
  struct Moments {
    float mean, root;
  };

  struct Heads : BlockHeads {
    Vector<16>* vectors;  // the first of every thread that has some, then the second ones
    float* weights;       // of all channels, then biases

    ROPE_HD Heads(const BlockHeads& of_block, Vector<16>* own, float* own_weights)
        : BlockHeads(of_block), vectors(own), weights(own_weights) {}
    ROPE_HD uint32_t count() const { return p.block_tokens * side.block_heads; }
    ROPE_HD bool IsOwn(uint32_t at) const { return at < count() && IsThere(at); }

    // Of a thread: its head, and where in each row of kRow channels its own begin.
    ROPE_HD static uint32_t HeadOf(const Thread& i) { return NumberInBlock(i) / kLanes; }
    ROPE_HD static uint32_t PlaceInRow(const Thread& i) {
      return NumberInBlock(i) % kLanes * static_cast<uint32_t>(kElements);
    }
    ROPE_HD Vector<16>* VectorsOf(const Thread& i) const { return vectors + NumberInBlock(i); }
    ROPE_HD uint32_t step() const { return count() * kLanes; }
    ROPE_HD uint32_t column() const { return side.vectors / kLanes; }  // vectors of a thread

    // Tokens that are nowhere are read as well: they are not known yet.
    ROPE_HD void LoadByIndex(const Thread& i) const {
      const uint32_t at = HeadOf(i), t = TokenOf(at), n = i.block_x * p.block_tokens + t;
      if (at >= count() || NumberOfHead(at) >= side.heads || n >= p.source.tokens.count) return;
      const TokenIndex index = SplitToken(p.source.tokens, n);
      Load(i, HeadOffset(side.in_strides, index.batch, index.index, NumberOfHead(at)));
    }
    ROPE_HD void LoadBySlot(const Thread& i) const {
      const uint32_t at = HeadOf(i);
      if (IsOwn(at)) Load(i, InOffset(tokens[TokenOf(at)], NumberOfHead(at)));
    }
    // Several vectors are on their way at once.
    ROPE_HD void Load(const Thread& i, int64_t offset) const {
      constexpr uint32_t kAtOnce = 4;
      const char* const in = side.in + (offset + int64_t{PlaceInRow(i)} * kSize);
      Vector<16>* const to = VectorsOf(i);
      ROPE_LOOP
      for (uint32_t v = 0; v < column(); v += kAtOnce) {
        Vector<16> data[kAtOnce];
        ROPE_UNROLL
        for (uint32_t u = 0; u < kAtOnce; ++u) {  // the last one again, where there are no more
          const uint32_t own = v + u < column() ? v + u : column() - 1u;
          data[u] = Memory::template Load<16>(in + own * (kRow * kSize));
        }
        ROPE_UNROLL
        for (uint32_t u = 0; u < kAtOnce; ++u) {
          if (v + u < column()) to[(v + u) * step()] = data[u];
        }
      }
    }

    ROPE_HD void LoadWeights(const Thread& i) const {
      const StagedNorm& norm = side.norm;
      for (uint32_t c = NumberInBlock(i); c < norm.channels; c += kStagedThreads) {
        weights[c] = WeightOf(norm, 0, c);
        weights[norm.channels + c] =
            norm.rule.has_bias ? LoadElement(norm.weight_dtype, norm.bias, c) : kNoBias;
      }
    }

    template <class Sums>
    ROPE_HD void AddChannels(const Thread& i, StagedPass pass, const Sums& sums) const {
      const uint32_t at = HeadOf(i);
      if (!IsOwn(at)) return;
      float* const to = sums.SumsOfHead(at) + PlaceInRow(i);
      if (pass == kSumValues) {
        AddVectors(i, to, [](float sum, float x) { return Add(sum, x); });
      } else if (side.norm.rule.has_mean) {
        const float mean = sums.MomentsOf(at).mean;
        AddVectors(i, to, [=](float sum, float x) { return AddSquare(sum, x, mean); });
      } else {
        AddVectors(i, to, [](float sum, float x) { return Fma(x, x, sum); });
      }
    }
    template <class AddOne>
    ROPE_HD void AddVectors(const Thread& i, float* to, const AddOne& add) const {
      float own[kElements] = {};
      for (uint32_t v = 0; v < column(); ++v) {
        float x[kElements];
        Unpack<kType, kElements>(VectorsOf(i)[v * step()], x);
        ROPE_UNROLL
        for (int j = 0; j < kElements; ++j) own[j] = add(own[j], x[j]);
      }
      ROPE_UNROLL
      for (int j = 0; j < kElements; ++j) to[j] = own[j];
    }

    // visit(at, made) for all vectors of a thread that are to be written, normed and turned; `at`:
    // its head.
    template <class Sums, class Visit>
    ROPE_HD void ForEachVector(const Thread& i, const Sums& sums, const Visit& visit) const {
      const uint32_t at = HeadOf(i), place = PlaceInRow(i), pairs = p.source.pairs;
      if (!IsOwn(at)) return;
      const Moments moments = MomentsOf(at, sums);
      const CosSin* const row = rows + TokenOf(at) * pairs;
      ROPE_LOOP
      for (uint32_t v = 0; v < column(); ++v) {
        const uint32_t own = v * kRow + place, channel = own - side.span_at;
        const bool in_span = IsInSpan(own), in_halves = in_span && !p.reads_interleaved;
        if (in_span ? in_halves && channel >= pairs
                    : own < side.copy_begin || own >= side.copy_end) {
          continue;  // the second member of pairs goes with the first one
        }
        Made made[2];
        made[0].channel = own;
        made[0].read = NumberInBlock(i) + v * step();
        Take(moments, &made[0]);
        if (in_halves) {
          made[1].channel = own + pairs;
          made[1].read = made[0].read + pairs / kRow * step();
          Take(moments, &made[1]);
          TurnHalves(row + channel, &made[0], &made[1]);
        } else if (in_span) {
          TurnAdjacent(row + channel / 2, &made[0]);
        }
        ROPE_UNROLL
        for (int m = 0; m < 2; ++m) {
          if (m == 0 || in_halves) visit(at, made[m]);
        }
      }
    }

    // What is not changed keeps its bits, whatever it is.
    ROPE_HD void Store(uint32_t at, const Made& made) const {
      const StagedToken& token = tokens[TokenOf(at)];
      const int64_t channel = int64_t{made.channel} * kSize;
      const uint32_t head = NumberOfHead(at);
      char* const out = side.out + (OutOffset(side.out_strides, token, head) + channel);
      Vector<16> data;
      if (IsInSpan(made.channel) || side.norm.is_there) {
        Pack<kType, kElements>(made.values, &data);
      } else if (side.in + (InOffset(token, head) + channel) == out) {
        return;
      } else {
        data = vectors[made.read];
      }
      Memory::template Store<16>(out, data);
    }

   private:
    ROPE_HD bool IsInSpan(uint32_t channel) const {
      return side.turns && channel - side.span_at < 2 * p.source.pairs;
    }

    template <class Sums>
    ROPE_HD Moments MomentsOf(uint32_t at, const Sums& sums) const {
      const StagedNorm& norm = side.norm;
      if (!norm.is_there) return {};
      return {norm.rule.has_mean ? sums.MomentsOf(at).mean : 0.0f,
              norm.rstd != nullptr ? norm.rstd[RowOf(at)] : sums.MomentsOf(at).root};
    }

    // The values of a vector, normed.
    ROPE_HD void Take(Moments moments, Made* made) const {
      Unpack<kType, kElements>(vectors[made->read], made->values);
      const StagedNorm& norm = side.norm;
      if (!norm.is_there) return;
      if (norm.rounding != ROPE_NORM_ROUNDING_FLOAT32) {
        NormBy<false, true>(moments, made);
      } else if (norm.rule.has_mean || norm.rule.has_bias) {
        NormBy<false, false>(moments, made);
      } else {
        NormBy<true, false>(moments, made);
      }
    }
    // kIsPlain: neither mean nor bias.
    template <bool kIsPlain, bool kRounds>
    ROPE_HD void NormBy(Moments moments, Made* made) const {
      const bool is_eager = kRounds && side.norm.rounding == ROPE_NORM_ROUNDING_EAGER;
      const auto round = [&](float value) { return is_eager ? RoundTo(kType, value) : value; };
      ROPE_UNROLL
      for (int g = 0; g < kElements; g += 4) {
        const float* const own = weights + made->channel + g;
        const auto weight = *reinterpret_cast<const Four*>(own);
        const auto bias =
            kIsPlain ? Four{} : *reinterpret_cast<const Four*>(own + side.norm.channels);
        ROPE_UNROLL
        for (int j = 0; j < 4; ++j) {
          float& x = made->values[g + j];
          const float w = weight.values[j];
          x = kIsPlain ? WeightedChannel(x, moments.root, w, round)
                       : NormedChannel(x, moments.mean, moments.root, w, bias.values[j], round);
          if (kRounds) x = RoundTo(kType, x);
        }
      }
    }

    ROPE_HD Rows RowsAt(const CosSin* row) const {
      Rows own;
      own.first = own.second = Memory::template LoadRows<false>(row);
      if (p.per_channel) {
        own.second = Memory::template LoadRows<false>(row + p.block_tokens * p.source.pairs);
      }
      return own;
    }

    ROPE_HD void TurnHalves(const CosSin* row, Made* first, Made* second) const {
      ByArithmetic([&](const auto& rotate) {
        ROPE_UNROLL
        for (int j = 0; j < kElements; j += 2) {
          const Rows own = RowsAt(row + j);
          ROPE_UNROLL
          for (int k = 0; k < 2; ++k) {
            float &x0 = first->values[j + k], &x1 = second->values[j + k];
            const Pair turned = rotate({x0, x1}, own.first.values[k], own.second.values[k]);
            x0 = turned.x0;
            x1 = turned.x1;
          }
        }
      });
    }

    ROPE_HD void TurnAdjacent(const CosSin* row, Made* made) const {
      ByArithmetic([&](const auto& rotate) {
        ROPE_UNROLL
        for (int j = 0; j < kElements; j += 4) {
          const Rows own = RowsAt(row + j / 2);
          ROPE_UNROLL
          for (int k = 0; k < 2; ++k) {
            float* const x = made->values + j + 2 * k;
            const Pair turned = rotate({x[0], x[1]}, own.first.values[k], own.second.values[k]);
            x[0] = turned.x0;
            x[1] = turned.x1;
          }
        }
      });
    }

    // The branch is outside of loops.
    template <class Turn>
    ROPE_HD void ByArithmetic(const Turn& turn) const {
      const Arithmetic arithmetic = p.arithmetic;
      if (arithmetic == Arithmetic::kFused) {
        turn([](Pair x, CosSin first, CosSin second) { return Rotate(x, first, second); });
      } else {
        turn([=](Pair x, CosSin first, CosSin second) {
          return RotateBy(arithmetic, kType, x, first, second);
        });
      }
    }
  };
};

}  // namespace rope::gpu

#endif  // LIBROPE_SRC_GPU_COLUMNS_H_
