// Calls that do more than rotate and store. Their heads pass through shared memory as f32, so that
// one kernel for each dtype serves every pairing and rounding: such calls are rare, or few bytes.
// What threads do stands in steps between barriers; they share nothing else than memory, so that a
// test on the host can do each step for all threads of a block before the next
// (tests/gpu/staged_walk.h).
//
// In shared memory a head has the first members of its pairs, then the second ones, then the
// channels before the span, then those behind it, whatever the pairing is.
#ifndef LIBROPE_SRC_GPU_STAGED_H_
#define LIBROPE_SRC_GPU_STAGED_H_

#include <cstdint>

#include "gpu/kernel.h"
#include "gpu/staged_norm.h"
#include "gpu/staged_output.h"
#include "gpu/staged_params.h"
#include "gpu/staged_tokens.h"

namespace rope::gpu {

// kConverts: outputs may differ from their inputs. Kernels of their own, so that the others know
// nothing of it.
template <rope_dtype kType, bool kWide, bool kConverts, class Memory>
struct StagedKernel {
  static constexpr int kSize = ElementSize(kType);
  static constexpr int kElements = kWide ? 16 / kSize : 1;  // of a vector
  static constexpr int kBytes = kElements * kSize;
  static constexpr bool kDecodes = kConverts && kType == ROPE_DTYPE_F32;
  static constexpr int kOutput = kWide ? 4 : 1;  // channels at a time of an output that differs
  using Tokens = StagedTokens<kType, kDecodes, true, Memory>;

  // All of a block. block.Each(step): for every thread, and a barrier.
  template <class Block>
  ROPE_HD static void Run(const StagedParams& p, const Block& block, char* shared) {
    Heads heads = {HeadsOfBlock(p, block.y(), shared), reinterpret_cast<float*>(shared)};
    const StagedSide& side = heads.side;
    const StagedNorm& norm = side.norm;
    const uint32_t begin = heads.first,
                   end = norm.all_heads ? side.heads : begin + side.block_heads;
    const NormOfHeads<kType, Heads> normed = {{norm, heads, shared + p.norms_at}};
    const OutputOfHeads<kType, kOutput, kElements / kOutput, kDecodes, Memory, Heads> output = {
        side.output, heads, reinterpret_cast<uint32_t*>(shared + p.scales_at)};
    block.Each([&](const Thread& i) {
      Tokens::FindToken(p, i, heads.tokens);
      if (side.turns) Tokens::MakeRows(p, i, heads.rows);
    });
    if constexpr (kDecodes) {
      if (side.input != 0 && side.turns) block.Each([&](const Thread& i) { heads.FindTurns(i); });
    }
    const int first_pass = FirstPassOf(norm);
    ROPE_LOOP
    for (int n = first_pass; n <= kWriteHeads; ++n) {
      const auto pass = static_cast<StagedPass>(n);
      ROPE_LOOP
      for (heads.first = begin; heads.first < end; heads.first += side.block_heads) {
        // Between two passes all heads stay where they are, if there are no others.
        const bool loads = pass == first_pass || begin + side.block_heads < end;
        if (IsStaged(side) && loads) {
          block.Each([&](const Thread& i) { heads.Load(i); });
        }
        if (pass == kWriteHeads && norm.is_there && !norm.after) {
          block.Each([&](const Thread& i) { normed.Apply(i); });
        }
        if (side.turns && (norm.after ? loads : pass == kWriteHeads)) {
          block.Each([&](const Thread& i) { heads.Rotate(i); });
        }
        if (pass != kWriteHeads) {
          block.Each([&](const Thread& i) { normed.AddChannels(i, pass, heads.first == begin); });
          if (norm.all_heads) block.Each([&](const Thread& i) { normed.AddHeads(i); });
          const bool is_last = heads.first + side.block_heads >= end;
          if (is_last) block.Each([&](const Thread& i) { normed.Finish(i, pass); });
          continue;
        }
        if (norm.is_there && norm.after) {
          block.Each([&](const Thread& i) { normed.Apply(i); });
        }
        if constexpr (kConverts) {
          if (side.output.is_there) {
            output.Run(block);
            continue;
          }
        }
        block.Each([&](const Thread& i) { heads.Store(i); });
      }
    }
  }

 private:
  ROPE_HD static bool IsStaged(const StagedSide& side) {
    return side.turns || side.norm.is_there || (kConverts && side.output.is_there);
  }

  // Where shared memory has a channel.
  struct Place {
    uint32_t at;
    bool is_in_span;
    bool turns;       // in this launch
    bool alternates;  // the next channel is the second member of this one's pair
  };

  // Those that are in shared memory at once.
  struct Heads : BlockHeads {
    float* values;

    ROPE_HD Heads(const BlockHeads& of_block, float* at) : BlockHeads(of_block), values(at) {}
    ROPE_HD uint32_t count() const { return p.block_tokens * side.block_heads; }
    ROPE_HD float* ValuesOf(uint32_t head) const { return values + head * p.head_values; }

    ROPE_HD Place PlaceOf(uint32_t channel, bool interleaved) const {
      if (!side.turns) return {channel, false, false, false};
      const auto pairs = static_cast<uint32_t>(p.source.all_pairs);
      const uint32_t own = channel - side.span_at;
      if (channel < side.span_at) return {2 * pairs + channel, false, false, false};
      if (own >= 2 * pairs) return {channel, false, false, false};
      int32_t s = 0;
      for (int32_t n = 1; n < p.segment_count; ++n) {
        s += own >= static_cast<uint32_t>(p.segments[n].first_channel) ? 1 : 0;
      }
      const auto first_channel = static_cast<uint32_t>(p.segments[s].first_channel),
                 first_pair = static_cast<uint32_t>(p.segments[s].first_pair),
                 members = static_cast<uint32_t>(p.segments[s].pairs);
      const uint32_t c = own - first_channel;
      const bool second = interleaved ? (c & 1) != 0 : c >= members;
      const uint32_t pair = first_pair + (interleaved ? c / 2 : second ? c - members : c);
      const bool turns = pair - static_cast<uint32_t>(p.source.first_pair) < p.source.pairs;
      return {pair + (second ? pairs : 0), true, turns, interleaved};
    }

    // A vector of one of the heads.
    struct Part {
      const StagedToken* token;  // null: not to be moved
      uint32_t at, head;         // of these, and of the token
      uint32_t channel;          // its first
    };
    ROPE_HD Part PartOf(uint32_t n) const {
      const uint32_t at = side.by_vectors(n);
      const bool goes = n < count() * side.vectors && IsThere(at);
      return {goes ? tokens + TokenOf(at) : nullptr, at, NumberOfHead(at),
              (n - at * side.vectors) * kElements};
    }
    ROPE_HD const char* In(const Part& part) const {
      return side.in + (InOffset(*part.token, part.head) + int64_t{part.channel} * kSize);
    }
    ROPE_HD char* Out(const Part& part) const {
      return side.out +
             (OutOffset(side.out_strides, *part.token, part.head) + int64_t{part.channel} * kSize);
    }

    // Whether a token turns: the codes of one that does not stay. A warp for each token.
    ROPE_HD void FindTurns(const Thread& i) const {
      const bool always = p.per_channel || p.reads_interleaved != p.writes_interleaved;
      for (uint32_t t = i.y; t < p.block_tokens; t += kStagedWarps) {
        if (!IsTokenThere(t)) continue;
        bool turns = always;
        for (uint32_t pair = i.x; pair < p.source.pairs && !turns; pair += kStagedLanes) {
          turns = !IsNoTurn(rows[t * p.source.pairs + pair]);
        }
        if (turns) Memory::Max(&tokens[t].turns, 1);
      }
    }

    ROPE_HD void LoadCodes(const Thread& i) const {
      ROPE_LOOP
      for (uint32_t n = NumberInBlock(i); n < count() * side.vectors; n += kStagedThreads) {
        const Part part = PartOf(n);
        if (part.token == nullptr) continue;
        float own[kElements];
        Decode(part, own);
        Put(own, PlaceOf(part.channel, p.reads_interleaved), ValuesOf(part.at));
      }
    }
    ROPE_HD void Decode(const Part& part, float* own) const {
      const StagedInput& input = p.inputs[side.input - 1];
      const StagedToken& t = *part.token;
      const char* at = side.in + HeadOffset(side.in_strides, t.read_page, t.read_slot, part.head);
      const uint32_t group = input.by_group(side.input_first + part.channel);
      const bool is_q8 = input.dtype == ROPE_DTYPE_Q8_0;
      float scale = input.scale;
      uint32_t codes;
      if (is_q8) {  // at even addresses alone
        const char* const block = at + group * kQ8Bytes;
        scale = FloatFromF16(static_cast<uint16_t>(Memory::template Load<2>(block).words[0]));
        at = block + (kQ8Bytes - kQ8Channels) + (part.channel - group * kQ8Channels);
      } else {
        at += part.channel;
        if (input.scales != nullptr) {
          scale = ReadScale<Memory>(
              input.scale_dtype,
              input.scales + HeadOffset(input.scale_strides, t.read_page, t.read_slot, part.head),
              group);
        }
      }
      if constexpr (kElements == 4) {
        codes = is_q8 ? Memory::template Load<2>(at).words[0] |
                            Memory::template Load<2>(at + 2).words[0] << 16
                      : Memory::template Load<4>(at).words[0];
      } else {
        codes = Memory::template Load<1>(at).words[0];
      }
      const Code code = is_q8 ? Code::kInt8 : CodeOf(input.dtype);
      ROPE_UNROLL
      for (int j = 0; j < kElements; ++j) {
        own[j] = Multiply(FloatFromCode(code, static_cast<uint8_t>(codes >> (8 * j))), scale);
      }
    }

    // Two vectors of a thread are on their way at once.
    ROPE_HD void Load(const Thread& i) const {
      if constexpr (kDecodes) {
        if (side.input != 0) return LoadCodes(i);
      }
      ROPE_LOOP
      for (uint32_t n = NumberInBlock(i); n < count() * side.vectors; n += 2 * kStagedThreads) {
        Vector<kBytes> data[2];
        Part parts[2];
        Place places[2];
        ROPE_UNROLL
        for (uint32_t u = 0; u < 2; ++u) {
          parts[u] = PartOf(n + u * kStagedThreads);
          places[u] = PlaceOf(parts[u].channel, p.reads_interleaved);
          const bool stages_all = side.norm.is_there || (kConverts && side.output.is_there);
          if (!places[u].turns && !stages_all) parts[u].token = nullptr;
          if (parts[u].token != nullptr) data[u] = Memory::template Load<kBytes>(In(parts[u]));
        }
        ROPE_UNROLL
        for (uint32_t u = 0; u < 2; ++u) {
          if (parts[u].token == nullptr) continue;
          float own[kElements];
          Unpack<kType, kElements>(data[u], own);
          Put(own, places[u], ValuesOf(parts[u].at));
        }
      }
    }

    ROPE_HD void Rotate(const Thread& i) const {
      const auto all = static_cast<uint32_t>(p.source.all_pairs);
      for (uint32_t at = i.y; at < count(); at += kStagedWarps) {
        if constexpr (kDecodes) {
          if (side.input != 0 && tokens[TokenOf(at)].turns == 0) continue;
        }
        const CosSin* const row = rows + side.by_block_heads(at) * p.source.pairs;
        const CosSin* const second_row =
            row + (p.per_channel ? p.block_tokens * p.source.pairs : 0);
        float* const head = ValuesOf(at) + p.source.first_pair;
        for (uint32_t pair = i.x; pair < p.source.pairs; pair += kStagedLanes) {
          const Pair turned = RotateBy(p.arithmetic, kType, {head[pair], head[all + pair]},
                                       row[pair], second_row[pair]);
          // A norm that rounds finds the result rounded.
          const bool rounds = side.norm.after && side.norm.rounding != ROPE_NORM_ROUNDING_FLOAT32;
          head[pair] = rounds ? RoundTo(kType, turned.x0) : turned.x0;
          head[all + pair] = rounds ? RoundTo(kType, turned.x1) : turned.x1;
        }
      }
    }

    ROPE_HD void Store(const Thread& i) const {
      ROPE_LOOP
      for (uint32_t n = NumberInBlock(i); n < count() * side.vectors; n += kStagedThreads) {
        const Part part = PartOf(n);
        if (part.token == nullptr) continue;
        const Place place = PlaceOf(part.channel, p.writes_interleaved);
        const bool stays =
            !place.is_in_span && part.channel >= side.copy_begin && part.channel < side.copy_end;
        if (!place.turns && !stays) continue;
        Vector<kBytes> data;
        if (place.turns || side.norm.is_there) {
          float own[kElements];
          Get<kElements>(ValuesOf(part.at), place, own);
          Pack<kType, kElements>(own, &data);
        } else {
          const char* const in = In(part);
          if (in == Out(part)) continue;
          data = Memory::template Load<kBytes>(in);
        }
        Memory::template Store<kBytes>(Out(part), data);
      }
    }

    // Groups of floats that lie side by side, aligned to their size.
    template <int kCount>
    struct alignas(kCount * sizeof(float)) Group {
      float values[kCount];
    };

    ROPE_HD void Put(const float* own, const Place& place, float* head) const {
      if constexpr (kElements == 1) {
        head[place.at] = own[0];
      } else if (place.alternates) {
        constexpr int kHalf = kElements / 2;
        const auto all = static_cast<uint32_t>(p.source.all_pairs);
        Group<kHalf> firsts, seconds;
        ROPE_UNROLL
        for (int j = 0; j < kHalf; ++j) {
          firsts.values[j] = own[2 * j];
          seconds.values[j] = own[2 * j + 1];
        }
        *reinterpret_cast<Group<kHalf>*>(head + place.at) = firsts;
        *reinterpret_cast<Group<kHalf>*>(head + all + place.at) = seconds;
      } else {
        ROPE_UNROLL
        for (int g = 0; g < kElements; g += 4) {
          Group<4> group;
          ROPE_UNROLL
          for (int j = 0; j < 4; ++j) group.values[j] = own[g + j];
          *reinterpret_cast<Group<4>*>(head + place.at + g) = group;
        }
      }
    }
    template <int kCount>
    ROPE_HD void Get(const float* head, const Place& place, float* own) const {
      if constexpr (kCount == 1) {
        own[0] = head[place.at];
      } else if (place.alternates) {
        constexpr int kHalf = kCount / 2;
        const auto all = static_cast<uint32_t>(p.source.all_pairs);
        const auto firsts = *reinterpret_cast<const Group<kHalf>*>(head + place.at),
                   seconds = *reinterpret_cast<const Group<kHalf>*>(head + all + place.at);
        ROPE_UNROLL
        for (int j = 0; j < kHalf; ++j) {
          own[2 * j] = firsts.values[j];
          own[2 * j + 1] = seconds.values[j];
        }
      } else {
        ROPE_UNROLL
        for (int g = 0; g < kCount; g += 4) {
          const auto group = *reinterpret_cast<const Group<4>*>(head + place.at + g);
          ROPE_UNROLL
          for (int j = 0; j < 4; ++j) own[g + j] = group.values[j];
        }
      }
    }
  };
};

}  // namespace rope::gpu

#endif  // LIBROPE_SRC_GPU_STAGED_H_
