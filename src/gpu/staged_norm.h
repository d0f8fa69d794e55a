// The norm of heads that wait in shared memory: their sums in the order of math/norm.h, a warp for
// each head, then their channels. Where all heads of a token are normed together, these pass
// through shared memory some at a time, once for each sum and once more to be written.
#ifndef LIBROPE_SRC_GPU_STAGED_NORM_H_
#define LIBROPE_SRC_GPU_STAGED_NORM_H_

#include <cstdint>

#include "gpu/kernel.h"
#include "gpu/staged_params.h"
#include "gpu/staged_tokens.h"
#include "math/element.h"
#include "math/norm.h"

namespace rope::gpu {

// What is done with heads each time they are in shared memory.
enum StagedPass : int { kSumValues, kSumSquares, kWriteHeads };

ROPE_HD int FirstPassOf(const StagedNorm& norm) {
  if (!norm.is_there || norm.rstd != nullptr) return kWriteHeads;
  return norm.rule.has_mean ? kSumValues : kSumSquares;
}

// What a channel is multiplied by; `row`: where the weights of its head begin, in bytes.
ROPE_HD float WeightOf(const StagedNorm& norm, int64_t row, uint32_t channel) {
  if (!norm.rule.has_weight) return 1.0f;
  const float weight = LoadElement(norm.weight_dtype, norm.weight + row, channel);
  return norm.rule.one_plus ? Add(1.0f, weight) : weight;
}

// What adds up heads in shared memory, one value in each lane of a warp: of a head; and of a token
// whose heads are normed together, of the heads whose numbers are alike modulo the lanes. Behind
// these sums lies what becomes of them: Moments of each head, or of each such token.
template <class Moments, class Heads>
struct SumsOfHeads {
  const StagedNorm& norm;
  const Heads& heads;
  char* shared;  // of a block's norms

  static_assert(kRunningSums == kStagedLanes);
  ROPE_HD float* SumsOfHead(uint32_t head) const {
    return reinterpret_cast<float*>(shared) + head * kStagedSumStride;
  }
  ROPE_HD float* SumsOfToken(uint32_t token) const { return SumsOfHead(heads.count() + token); }
  ROPE_HD Moments* AllMoments() const {
    return reinterpret_cast<Moments*>(SumsOfToken(heads.block_tokens()));
  }
  ROPE_HD Moments& MomentsOf(uint32_t head) const {
    return AllMoments()[norm.all_heads ? heads.TokenOf(head) : head];
  }

  // add_of(head): what adds a channel to a running sum. `is_first`: no heads of the tokens were
  // added before.
  template <class AddOf>
  ROPE_HD void AddChannels(const Thread& i, bool is_first, const AddOf& add_of) const {
    const uint32_t n = NumberInBlock(i);
    if (norm.all_heads && is_first) {
      for (uint32_t at = n; at < heads.block_tokens() * kStagedSumStride; at += kStagedThreads) {
        SumsOfToken(0)[at] = 0;
      }
    }
    for (uint32_t head = i.y; head < heads.count(); head += kStagedWarps) {
      if (!heads.IsThere(head)) continue;
      const auto add = add_of(head);
      float sum = 0;
      for (uint32_t c = i.x; c < norm.channels; c += kStagedLanes) sum = add(sum, c);
      SumsOfHead(head)[i.x] = sum;
    }
  }

  // By one thread for each head; never more of a token than a warp has lanes.
  ROPE_HD void AddHeads(const Thread& i) const {
    const uint32_t head = NumberInBlock(i);
    if (head >= heads.count() || !heads.IsThere(head)) return;
    float& sum = SumsOfToken(heads.TokenOf(head))[heads.NumberOfHead(head) % kStagedLanes];
    sum = Add(sum, AddHalves(SumsOfHead(head)));
  }

  // By one thread for each head, or for each token whose heads are normed together.
  // finish(moments, sum).
  template <class FinishOne>
  ROPE_HD void Finish(const Thread& i, const FinishOne& finish) const {
    const uint32_t n = NumberInBlock(i);
    if (n >= (norm.all_heads ? heads.block_tokens() : heads.count())) return;
    if (!(norm.all_heads ? heads.IsTokenThere(n) : heads.IsThere(n))) return;
    finish(&AllMoments()[n], AddHalves(norm.all_heads ? SumsOfToken(n) : SumsOfHead(n)));
  }
};

// The norm of a StagedKernel's heads: values, and which of the launch's they are.
template <rope_dtype kType, class Heads>
struct NormOfHeads : SumsOfHeads<StagedMoments, Heads> {
  using Base = SumsOfHeads<StagedMoments, Heads>;
  using Base::heads, Base::norm, Base::MomentsOf;

  ROPE_HD void AddChannels(const Thread& i, StagedPass pass, bool is_first) const {
    Base::AddChannels(i, is_first, [&](uint32_t head) {
      const float* const values = heads.ValuesOf(head);
      const float mean = pass == kSumSquares && norm.rule.has_mean ? MomentsOf(head).mean : 0.0f;
      return [=](float sum, uint32_t c) {
        const float x = values[heads.PlaceOf(c, norm.interleaved).at];
        return pass == kSumValues ? Add(sum, x) : AddSquare(sum, x, mean);
      };
    });
  }

  ROPE_HD void Finish(const Thread& i, StagedPass pass) const {
    Base::Finish(i, [&](StagedMoments* of, float sum) {
      if (pass == kSumValues) {
        of->mean = Divide(sum, norm.terms);
      } else {
        of->root = InverseRoot(sum, norm.terms, norm.eps);
      }
    });
  }

  ROPE_HD void Apply(const Thread& i) const {
    const auto round = [&](float value) {
      return norm.rounding == ROPE_NORM_ROUNDING_EAGER ? RoundTo(kType, value) : value;
    };
    for (uint32_t head = i.y; head < heads.count(); head += kStagedWarps) {
      if (!heads.IsThere(head)) continue;
      float* const values = heads.ValuesOf(head);
      const int64_t row = heads.NumberOfHead(head) * norm.weight_stride;
      const float root = norm.rstd != nullptr ? norm.rstd[heads.RowOf(head)] : MomentsOf(head).root,
                  mean = norm.rule.has_mean ? MomentsOf(head).mean : 0.0f;
      for (uint32_t c = i.x; c < norm.channels; c += kStagedLanes) {
        const float bias =
            norm.rule.has_bias ? LoadElement(norm.weight_dtype, norm.bias + row, c) : kNoBias;
        float& x = values[heads.PlaceOf(c, norm.interleaved).at];
        x = NormedChannel(x, mean, root, WeightOf(norm, row, c), bias, round);
        if (norm.rounding != ROPE_NORM_ROUNDING_FLOAT32) x = RoundTo(kType, x);
      }
    }
  }
};

}  // namespace rope::gpu

#endif  // LIBROPE_SRC_GPU_STAGED_NORM_H_
