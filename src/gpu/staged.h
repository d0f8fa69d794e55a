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

namespace rope::gpu {

// A token of a block.
struct StagedToken {
  int64_t batch, index;
  int64_t read_page, written_page;  // below 0: nowhere
  int32_t read_slot, written_slot;
  bool is_there;   // in this launch
  uint32_t turns;  // not 0: its heads turn. Of heads that are read in 8 bits
};

// The frequency of a pair, of REROTATE.
struct FrequencyBefore : LaunchFrequency {
  bool whole_turns;

  ROPE_HD FrequencyBefore OfAxis(int axis) const {
    return {LaunchFrequency::OfAxis(axis), whole_turns};
  }
  ROPE_HD uint64_t turns_fraction() const {
    return whole_turns ? all.whole_turns[at].fraction : all.turns[at];
  }
};

// A rotation by `to`, and back by `from`. In f64, where the products are exact: rounded once.
ROPE_HD CosSin TurnedBack(CosSin to, CosSin from, double factor) {
  const double c = to.cos, s = to.sin, from_c = from.cos, from_s = from.sin;
  return {static_cast<float>((c * from_c + s * from_s) * factor),
          static_cast<float>((s * from_c - c * from_s) * factor)};
}

// The difference of integer positions, on one axis.
ROPE_HD int64_t DistanceOf(const PositionSource& to, const Token& token, const PositionSource& from,
                           const Token& from_token, int axis) {
  return static_cast<int64_t>(static_cast<uint64_t>(IntegerPosition(to, token, axis)) -
                              static_cast<uint64_t>(IntegerPosition(from, from_token, axis)));
}

// cos and sin of a pair, of REROTATE.
class MoveOfPair {
 public:
  ROPE_HD MoveOfPair(const StagedParams& p, const Token& token, const Token& from_token,
                     uint32_t pair)
      : p_(p),
        token_(token),
        from_token_(from_token),
        set_(SetOf(p.source, token) - p.source.first_set),
        first_axis_(!p.source.sums && p.source.axes > 1 ? p.source.axis[pair] : 0),
        axes_(p.source.sums ? p.source.axes : 1),
        to_{FrequencyOf(p.source, set_, pair), p.before.whole_turns},
        from_{FrequencyOf(p.source, p.before.at, pair), p.before.whole_turns} {}

  ROPE_HD CosSin Make() const {
    const PositionsBefore& before = p_.before;
    const AngleRule rule = before.rule_after;
    if (rule == AngleRule::kExact || rule == AngleRule::kCoordinate) return OfPhases();
    return TurnedBack(OfPosition(to_, p_.source.positions, token_),
                      OfPosition(from_, before.positions, from_token_), before.factors[set_]);
  }

 private:
  // f32 angles.
  ROPE_HD CosSin OfPosition(const FrequencyBefore& frequency, const PositionSource& positions,
                            const Token& token) const {
    const AngleRule rule = p_.before.rule_after;
    return p_.source.sums ? CosSinOfSum(rule, frequency, positions, token, axes_)
                          : CosSinOfPair(rule, frequency, positions, token, first_axis_);
  }

  // EXACT.
  ROPE_HD CosSin OfPhases() const {
    const PositionsBefore& before = p_.before;
    const PositionSource &to = p_.source.positions, &from = before.positions;
    const bool integers =
        before.rule == AngleRule::kExact && before.rule_after == AngleRule::kExact;
    if (integers && p_.source.first_set + set_ == before.set) {  // as SHIFT
      if (!p_.source.sums) {
        return CosSinOfPosition(to_.turns_fraction(),
                                DistanceOf(to, token_, from, from_token_, first_axis_));
      }
      uint64_t phase = 0;
      for (int a = 0; a < axes_; ++a) {
        phase += to_.OfAxis(a).turns_fraction() *
                 static_cast<uint64_t>(DistanceOf(to, token_, from, from_token_, a));
      }
      return CosSinOfSignedPhase(phase);
    }
    if (!IsFinite(before.rule_after, to, token_) || !IsFinite(before.rule, from, from_token_)) {
      return {QuietNan(), QuietNan()};
    }
    uint64_t phase = 0;
    for (int a = first_axis_; a < first_axis_ + axes_; ++a) {
      const int term = a - first_axis_;
      phase += AxisPhase(before.rule_after, to, token_, a)(to_.OfAxis(term));
      phase -= AxisPhase(before.rule, from, from_token_, a)(from_.OfAxis(term));
    }
    const CosSin value = CosSinOfSignedPhase(phase);
    const auto factor = static_cast<float>(before.factors[set_]);
    return {Multiply(value.cos, factor), Multiply(value.sin, factor)};
  }
  ROPE_HD bool IsFinite(AngleRule rule, const PositionSource& positions, const Token& token) const {
    return rule == AngleRule::kExact || HasFinitePosition(positions, token, p_.source.axes);
  }

  const StagedParams& p_;
  const Token &token_, &from_token_;
  const int32_t set_, first_axis_, axes_;
  const FrequencyBefore to_, from_;
};

// A token of a launch, where it is and where it was.
struct MovedToken {
  Token token, from;
  bool is_there;

  ROPE_HD MovedToken(const StagedParams& p, TokenIndex at)
      : token(LocateTokenBy<WideSearch>(p.source.positions, at.batch, at.index)), from(token) {
    is_there = HasSet(p.source, token);
    if (!p.before.given || !is_there) return;
    from = LocateTokenBy<WideSearch>(p.before.positions, at.batch, at.index);
    is_there = p.source.all_sets == 1 ||
               FrequencySetOf(p.before.positions, from.sequence, p.source.all_sets) == p.before.set;
  }
};

// kConverts: outputs may differ from their inputs. Kernels of their own, so that the others know
// nothing of it.
template <rope_dtype kType, bool kWide, bool kConverts, class Memory>
struct StagedKernel {
  static constexpr int kSize = ElementSize(kType);
  static constexpr int kElements = kWide ? 16 / kSize : 1;  // of a vector
  static constexpr int kBytes = kElements * kSize;
  static constexpr bool kDecodes = kConverts && kType == ROPE_DTYPE_F32;
  static constexpr int kOutput = kWide ? 4 : 1;  // channels at a time of an output that differs

  // All of a block. block.Each(step): for every thread, and a barrier.
  template <class Block>
  ROPE_HD static void Run(const StagedParams& p, const Block& block, char* shared) {
    uint32_t own = p.first_block + block.y();
    int32_t s = 0;
    while (s + 1 < p.side_count && own >= p.sides[s].blocks) own -= p.sides[s++].blocks;
    const StagedSide& side = p.sides[s];
    const StagedNorm& norm = side.norm;
    const uint32_t begin = own * side.block_heads,
                   end = norm.all_heads ? side.heads : begin + side.block_heads;
    Heads heads = {p,
                   side,
                   reinterpret_cast<float*>(shared),
                   reinterpret_cast<CosSin*>(shared + p.rows_at),
                   reinterpret_cast<StagedToken*>(shared + p.tokens_at),
                   begin};
    const NormOfHeads<kType, Heads> normed = {{norm, heads, shared + p.norms_at}};
    const OutputOfHeads<kType, kOutput, kElements / kOutput, kDecodes, Memory, Heads> output = {
        side.output, heads, reinterpret_cast<uint32_t*>(shared + p.scales_at)};
    block.Each([&](const Thread& i) {
      FindToken(p, i, heads.tokens);
      if (side.turns) MakeRows(p, i, heads.rows);
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

  ROPE_HD static Slot FindSlot(const SlotUse& use, const Token& token, int64_t row_tokens,
                               bool counts) {
    if (use.slots.kind == 0) return {0, 0};
    const Slot slot = SlotOf(use.slots, token, row_tokens, use.page_size);
    if (slot.page == kMissing && use.dropped != nullptr && counts) Memory::Increment(use.dropped);
    return slot;
  }

  // By one thread for each token.
  ROPE_HD static void FindToken(const StagedParams& p, const Thread& i, StagedToken* tokens) {
    const uint32_t t = NumberInBlock(i), n = i.block_x * p.block_tokens + t;
    if (t >= p.block_tokens) return;
    StagedToken& found = tokens[t];
    found.is_there = false;
    if (n >= p.source.tokens.count) return;
    const TokenIndex at = SplitToken(p.source.tokens, n);
    const MovedToken moved(p, at);
    found.batch = at.batch;
    found.index = at.index;
    found.is_there = moved.is_there;
    if constexpr (kDecodes) found.turns = 0;
    if (!moved.is_there) return;
    const bool counts = p.first_block + i.block_y == 0;  // one of all blocks of a token
    Slot slot = FindSlot(p.read, moved.token, p.row_tokens, counts);
    found.read_page = slot.page;
    found.read_slot = slot.index;
    if (slot.page >= 0) slot = FindSlot(p.written, moved.token, p.row_tokens, counts);
    found.written_page = slot.page;
    found.written_slot = slot.index;
  }

  // A warp for each token.
  ROPE_HD static void MakeRows(const StagedParams& p, const Thread& i, CosSin* rows) {
    const CosSinSource& source = p.source;
    for (uint32_t t = i.y; t < p.block_tokens; t += kStagedWarps) {
      const uint32_t n = i.block_x * p.block_tokens + t;
      if (n >= source.tokens.count) return;
      const TokenIndex at = SplitToken(source.tokens, n);
      const MovedToken moved(p, at);
      if (!moved.is_there) continue;
      for (uint32_t pair = i.x; pair < source.pairs; pair += kStagedLanes) {
        PairRow row;
        if (source.kind == CosSinKind::kRows) {
          row = ReadPairRow(source, at, static_cast<int32_t>(pair));
        } else {
          row.first = row.second = p.before.given
                                       ? MoveOfPair(p, moved.token, moved.from, pair).Make()
                                       : MakeCosSin(source, moved.token, pair);
        }
        CosSin* const to = rows + t * source.pairs + pair;
        Memory::StoreRow(to, Rounded(p, row.first));
        if (p.per_channel) {
          Memory::StoreRow(to + p.block_tokens * source.pairs, Rounded(p, row.second));
        }
      }
    }
  }

  ROPE_HD static CosSin Rounded(const StagedParams& p, CosSin value) {
    if (!p.rounds_rows) return value;
    return {RoundTo(kType, value.cos), RoundTo(kType, value.sin)};
  }

  // Where shared memory has a channel.
  struct Place {
    uint32_t at;
    bool is_in_span;
    bool turns;       // in this launch
    bool alternates;  // the next channel is the second member of this one's pair
  };

  // The heads of a block that are in shared memory at once: of each of its tokens `block_heads`,
  // from `first` on.
  struct Heads {
    const StagedParams& p;
    const StagedSide& side;
    float* values;
    CosSin* rows;
    StagedToken* tokens;
    uint32_t first;

    ROPE_HD uint32_t block_tokens() const { return p.block_tokens; }
    ROPE_HD uint32_t count() const { return p.block_tokens * side.block_heads; }
    ROPE_HD float* ValuesOf(uint32_t head) const { return values + head * p.head_values; }

    // Of a head that is in shared memory: its token, and which of the token's heads it is.
    ROPE_HD uint32_t TokenOf(uint32_t at) const { return side.by_block_heads(at); }
    ROPE_HD uint32_t NumberOfHead(uint32_t at) const {
      return first + at - TokenOf(at) * side.block_heads;
    }
    // The token's number, counted through all batch rows.
    ROPE_HD int64_t RowOf(uint32_t at) const {
      const StagedToken& token = tokens[TokenOf(at)];
      return token.batch * p.row_tokens + token.index;
    }
    // Whether anything is read and written for it.
    ROPE_HD bool IsTokenThere(uint32_t t) const {
      const StagedToken& token = tokens[t];
      return token.is_there && (!side.from_slots || token.read_page >= 0) &&
             (!side.to_slots || token.written_page >= 0);
    }
    ROPE_HD bool IsThere(uint32_t at) const {
      return IsTokenThere(TokenOf(at)) && NumberOfHead(at) < side.heads;
    }

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
      const StagedToken& t = *part.token;
      const int64_t outer = side.from_slots ? t.read_page : t.batch,
                    inner = side.from_slots ? t.read_slot : t.index;
      return side.in +
             (HeadOffset(side.in_strides, outer, inner, part.head) + int64_t{part.channel} * kSize);
    }
    ROPE_HD char* Out(const Part& part) const {
      const StagedToken& t = *part.token;
      const int64_t outer = side.to_slots ? t.written_page : t.batch,
                    inner = side.to_slots ? t.written_slot : t.index;
      return side.out + (HeadOffset(side.out_strides, outer, inner, part.head) +
                         int64_t{part.channel} * kSize);
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
