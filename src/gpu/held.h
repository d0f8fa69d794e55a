// Calls of staged.h with heads of 64, 128 or 256 channels, as most models have them, in registers.
// A few lanes of a warp have a head, each all vectors whose channels belong to the same running
// sums of a norm (math/norm.h): a channel is added, normed, turned and written by the thread that
// has loaded it. As many heads as a warp has at once, of any tensor, are a unit. cos and sin of a
// block's tokens are made once for the units of all tensors; behind that no warp waits for another.
// Both members of a pair must belong to one thread, a head has one scale at most, and NATIVE is for
// others; HeldVectors of staged_launch.cc says which calls are so.
//
// What threads do stands in steps: of a block between barriers, of a warp between those of a warp.
#ifndef LIBROPE_SRC_GPU_HELD_H_
#define LIBROPE_SRC_GPU_HELD_H_

#include <cstdint>

#include "gpu/arithmetic.h"
#include "gpu/kernel.h"
#include "gpu/staged_norm.h"
#include "gpu/staged_output.h"
#include "gpu/staged_params.h"
#include "gpu/staged_tokens.h"
#include "math/norm.h"
#include "math/rotate.h"

namespace rope::gpu {

// kVectors: of a thread, a multiple of 2.
template <rope_dtype kType, int kVectors, class Memory>
struct HeldKernel {
  static constexpr int kSize = ElementSize(kType);
  static constexpr int kElements = 16 / kSize;  // of a vector
  static constexpr uint32_t kLanes = HeldLanes(kType), kRow = kRunningSums;
  static constexpr uint32_t kWidth = kVectors * kRow;
  using Tokens = StagedTokens<kType, false, false, Memory>;

  // block.Each(step): for every thread, and a barrier of the block. block.EachWarp(do): do(warp)
  // for every warp, where warp.Each(step) is for each of its threads, and a barrier of the warp.
  // State<T>: a T of each thread.
  template <class Block>
  ROPE_HD static void Run(const StagedParams& p, const Block& block, char* shared) {
    block.WaitForPrevious();
    const uint32_t begin = (p.first_block + block.y()) * p.block_units,
                   end = Least(begin + p.block_units, UnitsOf(p));
    typename Block::template State<Held> held;
    block.Each([&](const Thread& i) {
      // The memory is asked for heads before anything is computed, unless a token's slot tells
      // where.
      if (begin + i.y < end) {
        const Unit unit = UnitOf(p, begin + i.y, shared);
        if (!unit.side.from_slots) unit.LoadByIndex(i, &held[i]);
      }
      Tokens::FindToken(p, i, TokensOf(p, shared));
      LoadWeights(p, i, shared);
      if (p.source.pairs != 0) Tokens::MakeRows(p, i, RowsOf(p, shared));
    });
    block.EachWarp([&](const auto& warp) {
      ROPE_LOOP
      for (uint32_t n = begin + warp.y(); n < end; n += kStagedWarps) {
        RunUnit(UnitOf(p, n, shared), warp, n == begin + warp.y(), held);
      }
    });
  }

 private:
  // Of a thread: its part of a head, where it is written, and what it is normed and divided by.
  struct Held {
    Vector<16> vectors[kVectors];
    uint32_t at;  // the head, of all that the block's tokens have of a tensor
    bool is_there;
    float mean, root, inverse;
  };
  static constexpr uint32_t kHeads = kStagedLanes / kLanes;  // of a warp

  struct alignas(16) Four {
    float values[4];
  };
  // A vector that is to be written.
  struct Made {
    uint32_t vector;  // of the thread
    bool is_turned;
    Vector<16> raw;  // as it was read
    float values[kElements];
  };

  ROPE_HD static uint32_t Least(uint32_t a, uint32_t b) { return a < b ? a : b; }
  ROPE_HD static CosSin* RowsOf(const StagedParams& p, char* shared) {
    return reinterpret_cast<CosSin*>(shared + p.rows_at);
  }
  ROPE_HD static StagedToken* TokensOf(const StagedParams& p, char* shared) {
    return reinterpret_cast<StagedToken*>(shared + p.tokens_at);
  }
  ROPE_HD static uint32_t UnitsOf(const StagedParams& p) {
    uint32_t units = 0;
    for (int32_t s = 0; s < p.side_count; ++s) units += p.sides[s].blocks;
    return units;
  }

  // Weights and biases of all tensors, each kWidth of both.
  ROPE_HD static float* WeightsOf(const StagedParams& p, int32_t side, char* shared) {
    return reinterpret_cast<float*>(shared + p.weights_at) +
           static_cast<uint32_t>(side) * (2 * kWidth);
  }
  ROPE_HD static void LoadWeights(const StagedParams& p, const Thread& i, char* shared) {
    for (int32_t s = 0; s < p.side_count; ++s) {
      const StagedNorm& norm = p.sides[s].norm;
      if (!norm.is_there) continue;
      float* const to = WeightsOf(p, s, shared);
      for (uint32_t c = NumberInBlock(i); c < kWidth; c += kStagedThreads) {
        to[c] = WeightOf(norm, 0, c);
        if (norm.rule.has_bias) to[kWidth + c] = LoadElement(norm.weight_dtype, norm.bias, c);
      }
    }
  }

  // Heads of a warp, from `first_head` on.
  struct Unit : BlockHeads {
    uint32_t first_head;
    const float* weights;  // null: no norm
    float* exchange;       // of the block

    ROPE_HD Unit(const BlockHeads& of_block, uint32_t head, const float* own, float* sums)
        : BlockHeads(of_block), first_head(head), weights(own), exchange(sums) {}

    ROPE_HD uint32_t HeadOf(const Thread& i) const { return first_head + i.x / kLanes; }
    ROPE_HD static uint32_t PlaceOf(const Thread& i) {
      return i.x % kLanes * static_cast<uint32_t>(kElements);
    }
    ROPE_HD float* SumsOf(const Thread& i) const {
      return exchange + (i.y * kHeads + i.x / kLanes) * kHeldSumStride;
    }
    ROPE_HD bool IsHead(uint32_t at) const { return at < p.block_tokens * side.heads; }

    // Tokens that are nowhere are read as well: they are not known yet.
    ROPE_HD void LoadByIndex(const Thread& i, Held* held) const {
      const uint32_t at = HeadOf(i), t = TokenOf(at), n = i.block_x * p.block_tokens + t;
      if (!IsHead(at) || n >= p.source.tokens.count) return;
      const TokenIndex index = SplitToken(p.source.tokens, n);
      Load(i, HeadOffset(side.in_strides, index.batch, index.index, NumberOfHead(at)), held);
    }
    ROPE_HD void Load(const Thread& i, int64_t offset, Held* held) const {
      const char* const in = side.in + (offset + int64_t{PlaceOf(i)} * kSize);
      ROPE_UNROLL
      for (int v = 0; v < kVectors; ++v) {
        held->vectors[v] =
            Memory::template Load<16>(in + static_cast<uint32_t>(v) * (kRow * kSize));
      }
    }
    ROPE_HD void Find(const Thread& i, bool is_loaded, Held* held) const {
      held->at = HeadOf(i);
      held->is_there = IsHead(held->at) && IsTokenThere(TokenOf(held->at));
      held->mean = 0.0f;
      if (!held->is_there) return;
      const StagedToken& token = tokens[TokenOf(held->at)];
      if (side.from_slots || !is_loaded) Load(i, InOffset(token, NumberOfHead(held->at)), held);
      if (side.norm.rstd != nullptr) held->root = side.norm.rstd[RowOf(held->at)];
    }
  };

  ROPE_HD static Unit UnitOf(const StagedParams& p, uint32_t n, char* shared) {
    int32_t s = 0;
    while (s + 1 < p.side_count && n >= p.sides[s].blocks) n -= p.sides[s++].blocks;
    const StagedSide& side = p.sides[s];
    const BlockHeads heads = {p, side, RowsOf(p, shared), TokensOf(p, shared), 0};
    return {heads, n * kHeads, side.norm.is_there ? WeightsOf(p, s, shared) : nullptr,
            reinterpret_cast<float*>(shared + p.norms_at)};
  }

  template <class Warp, class States>
  ROPE_HD static void RunUnit(const Unit& unit, const Warp& warp, bool is_loaded, States& held) {
    const StagedSide& side = unit.side;
    warp.Each([&](const Thread& i) { unit.Find(i, is_loaded, &held[i]); });
    ROPE_LOOP
    for (int n = FirstPassOf(side.norm); n < kWriteHeads; ++n) {
      const auto pass = static_cast<StagedPass>(n);
      warp.Each([&](const Thread& i) { AddChannels(unit, i, pass, held[i]); });
      warp.Each([&](const Thread& i) { FinishSum(unit, i, pass, &held[i]); });
    }
    const bool has_scale = side.output.groups != 0, computes = has_scale && side.output.computed;
    warp.Each([&](const Thread& i) {
      held[i].inverse = side.output.inverse;
      if (has_scale && !computes) FindScale(unit, i, &held[i]);
    });
    // Where a scale is computed, all is made twice: the first time for the largest size alone.
    ROPE_LOOP
    for (int writes = computes ? 0 : 1; writes < 2; ++writes) {
      warp.Each([&](const Thread& i) { Visit(unit, i, writes != 0, held[i]); });
      if (writes == 0) warp.Each([&](const Thread& i) { FindScale(unit, i, &held[i]); });
    }
  }

  ROPE_HD static void AddChannels(const Unit& unit, const Thread& i, StagedPass pass,
                                  const Held& held) {
    const NormRule& rule = unit.side.norm.rule;
    if (pass == kSumValues) {
      AddVectors(unit, i, held, [](float sum, float x) { return Add(sum, x); });
    } else if (rule.has_mean) {
      const float mean = held.mean;
      AddVectors(unit, i, held, [=](float sum, float x) { return AddSquare(sum, x, mean); });
    } else {
      AddVectors(unit, i, held, [](float sum, float x) { return Fma(x, x, sum); });
    }
  }
  template <class AddOne>
  ROPE_HD static void AddVectors(const Unit& unit, const Thread& i, const Held& held,
                                 const AddOne& add) {
    float own[kElements] = {};
    ROPE_UNROLL
    for (int v = 0; v < kVectors; ++v) {
      float x[kElements];
      Unpack<kType, kElements>(held.vectors[v], x);
      ROPE_UNROLL
      for (int j = 0; j < kElements; ++j) own[j] = add(own[j], x[j]);
    }
    float* const to = unit.SumsOf(i) + Unit::PlaceOf(i);
    ROPE_UNROLL
    for (int g = 0; g < kElements; g += 4) {
      *reinterpret_cast<Four*>(to + g) = {{own[g], own[g + 1], own[g + 2], own[g + 3]}};
    }
  }

  // Each thread of a head adds up all of its sums, as AddHalves does.
  ROPE_HD static void FinishSum(const Unit& unit, const Thread& i, StagedPass pass, Held* held) {
    constexpr int kLeft = 8;
    const float* const sums = unit.SumsOf(i);
    float left[kLeft];
    ROPE_UNROLL
    for (int g = 0; g < kLeft; g += 4) {
      Four of[kRunningSums / kLeft];
      ROPE_UNROLL
      for (int n = 0; n < kRunningSums / kLeft; ++n) {
        of[n] = *reinterpret_cast<const Four*>(sums + n * kLeft + g);
      }
      ROPE_UNROLL
      for (int j = 0; j < 4; ++j) {
        left[g + j] =
            Add(Add(of[0].values[j], of[2].values[j]), Add(of[1].values[j], of[3].values[j]));
      }
    }
    const float sum = SumOfEach<1, kLeft>(left);
    const StagedNorm& norm = unit.side.norm;
    if (pass == kSumValues) {
      held->mean = QuickDivide(sum, norm.terms);
    } else {
      held->root = QuickInverseRoot(sum, norm.terms, norm.eps);
    }
  }

  ROPE_HD static void FindScale(const Unit& unit, const Thread& i, Held* held) {
    if (!held->is_there) return;
    const StagedOutput& output = unit.side.output;
    const StagedToken& token = unit.tokens[unit.TokenOf(held->at)];
    char* const scale =
        output.scales + unit.OutOffset(output.scale_strides, token, unit.NumberOfHead(held->at));
    float value;
    if (output.computed) {
      uint32_t largest = 0;
      ROPE_UNROLL
      for (uint32_t n = 0; n < kLanes; ++n) {
        const uint32_t size = FloatBits(unit.SumsOf(i)[n]);
        largest = size > largest ? size : largest;
      }
      const Code code = CodeOf(output.dtype);
      const float exact = QuickDivide(BitsFloat(largest), LargestOf(code));
      value = ScaleAtLeast(exact, output.least, output.power_of_two);
      if (i.x % kLanes == 0) {
        if (output.scale_dtype == ROPE_DTYPE_E8M0) {
          Memory::template Store<1>(scale, Vector<1>{{E8m0FromPowerOfTwo(value)}});
        } else {
          Memory::template Store<4>(scale, Vector<4>{{FloatBits(value)}});
        }
      }
    } else {
      value = ReadScale<Memory>(output.scale_dtype, scale, 0);
    }
    held->inverse = QuickDivide(1.0f, value);
  }

  // visit(made) for the vectors of a thread, normed and turned: two at a time, of pairs in halves
  // both members.
  template <class Visit>
  ROPE_HD static void ForEachVector(const Unit& unit, const Thread& i, const Held& held,
                                    const Visit& visit) {
    if (!held.is_there) return;
    const uint32_t place = Unit::PlaceOf(i), pairs = unit.side.turns ? unit.p.source.pairs : 0;
    const bool adjacent = unit.p.reads_interleaved;
    const CosSin* const row = unit.rows + unit.TokenOf(held.at) * unit.p.source.pairs;
    // How many vectors the members of a pair are apart; adjacent ones are in the same.
    const uint32_t apart = adjacent ? 0 : pairs / kRow;
    ROPE_UNROLL
    for (uint32_t n = 0; n < kVectors / 2; ++n) {
      const bool in_halves = n < apart;
      Made made[2];
      made[0].vector = in_halves ? n : 2 * n;
      made[1].vector = in_halves ? n + apart : 2 * n + 1;
      made[0].raw = in_halves ? held.vectors[n] : held.vectors[2 * n];
      made[1].raw = held.vectors[2 * n + 1];
      ROPE_UNROLL
      for (uint32_t far = 1; far < kVectors && n + far < kVectors; far *= 2) {
        if (in_halves && far == apart) made[1].raw = held.vectors[n + far];
      }
      ROPE_UNROLL
      for (int m = 0; m < 2; ++m) Take(unit, place, held, &made[m]);
      if (in_halves) {
        made[0].is_turned = made[1].is_turned = true;
        TurnHalves(unit, row + (n * kRow + place), &made[0], &made[1]);
      } else {
        ROPE_UNROLL
        for (int m = 0; m < 2; ++m) {
          const uint32_t channel = made[m].vector * kRow;
          made[m].is_turned = adjacent && channel < 2 * pairs;
          if (made[m].is_turned) TurnAdjacent(unit, row + (channel + place) / 2, &made[m]);
        }
      }
      visit(made[0]);
      visit(made[1]);
    }
  }

  ROPE_HD static void TurnHalves(const Unit& unit, const CosSin* row, Made* first, Made* second) {
    ByArithmetic(unit, [&](const auto& rotate) {
      ROPE_UNROLL
      for (int j = 0; j < kElements; j += 2) {
        const TwoRows rows = Memory::template LoadRows<false>(row + j);
        ROPE_UNROLL
        for (int k = 0; k < 2; ++k) {
          rotate(rows.values[k], &first->values[j + k], &second->values[j + k]);
        }
      }
    });
  }
  ROPE_HD static void TurnAdjacent(const Unit& unit, const CosSin* row, Made* made) {
    ByArithmetic(unit, [&](const auto& rotate) {
      ROPE_UNROLL
      for (int j = 0; j < kElements; j += 4) {
        const TwoRows rows = Memory::template LoadRows<false>(row + j / 2);
        ROPE_UNROLL
        for (int k = 0; k < 2; ++k) {
          float* const x = made->values + j + 2 * k;
          rotate(rows.values[k], x, x + 1);
        }
      }
    });
  }
  // The branch is outside of loops.
  template <class Turn>
  ROPE_HD static void ByArithmetic(const Unit& unit, const Turn& turn) {
    const auto put = [](Pair turned, float* x0, float* x1) {
      *x0 = turned.x0;
      *x1 = turned.x1;
    };
    if (unit.p.arithmetic == Arithmetic::kFused) {
      turn([&](CosSin by, float* x0, float* x1) { put(Rotate({*x0, *x1}, by, by), x0, x1); });
    } else {
      turn([&](CosSin by, float* x0, float* x1) {
        put(RotateEager(kType, {*x0, *x1}, by, by), x0, x1);
      });
    }
  }

  // The values of a vector, normed.
  ROPE_HD static void Take(const Unit& unit, uint32_t place, const Held& held, Made* made) {
    Unpack<kType, kElements>(made->raw, made->values);
    if (unit.weights == nullptr) return;
    const float* const weights = unit.weights + (made->vector * kRow + place);
    const StagedNorm& norm = unit.side.norm;
    if (norm.rounding == ROPE_NORM_ROUNDING_FLOAT32 && !norm.rule.has_mean) {
      ROPE_UNROLL
      for (int g = 0; g < kElements; g += 4) {
        const auto weight = *reinterpret_cast<const Four*>(weights + g);
        ROPE_UNROLL
        for (int j = 0; j < 4; ++j) {
          float& x = made->values[g + j];
          x = Multiply(Multiply(x, held.root), weight.values[j]);
        }
      }
      return;
    }
    const bool rounds = norm.rounding != ROPE_NORM_ROUNDING_FLOAT32,
               is_eager = norm.rounding == ROPE_NORM_ROUNDING_EAGER, has_bias = norm.rule.has_bias;
    const auto round = [=](float value) { return is_eager ? RoundTo(kType, value) : value; };
    ROPE_UNROLL
    for (uint32_t j = 0; j < kElements; ++j) {
      float& x = made->values[j];
      x = NormedChannel(x, held.mean, held.root, weights[j],
                        has_bias ? weights[kWidth + j] : kNoBias, round);
      if (rounds) x = RoundTo(kType, x);
    }
  }

  // Writes a head, or finds its largest size.
  ROPE_HD static void Visit(const Unit& unit, const Thread& i, bool writes, const Held& held) {
    if (!held.is_there) return;
    const StagedSide& side = unit.side;
    const StagedOutput& output = side.output;
    const StagedToken& token = unit.tokens[unit.TokenOf(held.at)];
    const uint32_t head = unit.NumberOfHead(held.at), place = Unit::PlaceOf(i);
    char* const out = side.out + unit.OutOffset(side.out_strides, token, head);
    const bool in_place = side.in + unit.InOffset(token, head) == out;
    uint32_t largest = 0;
    ForEachVector(unit, i, held, [&](Made& made) {
      const uint32_t channel = made.vector * kRow + place;
      if (output.is_there) {
        if (output.rounds) {
          ROPE_UNROLL
          for (int j = 0; j < kElements; ++j) made.values[j] = RoundTo(kType, made.values[j]);
        }
        if (!writes) {
          largest = LargestSize(made, largest);
        } else if (output.dtype <= kDtypes) {
          StoreNumbers<kElements, Memory>(output.dtype, made.values, out, channel);
        } else {
          StoreCodes(output.dtype, made.values, held.inverse, out + channel);
        }
        return;
      }
      // What is not changed keeps its bits, whatever it is.
      Vector<16> data = made.raw;
      if (side.norm.is_there || made.is_turned) {
        Pack<kType, kElements>(made.values, &data);
      } else if (in_place) {
        return;
      }
      Memory::template Store<16>(out + channel * kSize, data);
    });
    if (!writes) unit.SumsOf(i)[i.x % kLanes] = BitsFloat(largest);
  }

  ROPE_HD static uint32_t LargestSize(const Made& made, uint32_t largest) {
    ROPE_UNROLL
    for (int j = 0; j < kElements; ++j) {
      const uint32_t size = SizeForScale(made.values[j]);
      largest = size > largest ? size : largest;
    }
    return largest;
  }

  ROPE_HD static void StoreCodes(rope_dtype dtype, const float* values, float inverse, char* to) {
    Vector<kElements> codes = {};
    const auto code_by = [&](auto two_codes) {
      ROPE_UNROLL
      for (int j = 0; j < kElements; j += 2) {
        codes.words[j / 4] |=
            two_codes(Multiply(values[j], inverse), Multiply(values[j + 1], inverse))
            << (8 * (j % 4));
      }
    };
    if (dtype == ROPE_DTYPE_F8_E4M3) {
      code_by([](float a, float b) { return TwoCodes<Code::kE4m3>(a, b); });
    } else if (dtype == ROPE_DTYPE_F8_E5M2) {
      code_by([](float a, float b) { return TwoCodes<Code::kE5m2>(a, b); });
    } else {
      code_by([](float a, float b) { return TwoCodes<Code::kInt8>(a, b); });
    }
    Memory::template Store<kElements>(to, codes);
  }
};

}  // namespace rope::gpu

#endif  // LIBROPE_SRC_GPU_HELD_H_
