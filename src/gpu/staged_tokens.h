// The tokens of a block of the kernels in steps: where each is and was, which slots it has, and its
// rows of cos and sin in shared memory.
#ifndef LIBROPE_SRC_GPU_STAGED_TOKENS_H_
#define LIBROPE_SRC_GPU_STAGED_TOKENS_H_

#include <cstdint>

#include "gpu/kernel.h"
#include "gpu/staged_params.h"

namespace rope::gpu {

ROPE_HD uint32_t NumberInBlock(const Thread& i) { return i.y * kStagedLanes + i.x; }

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

  // kMoves: whether it may be one of REROTATE.
  template <bool kMoves>
  ROPE_HD static MovedToken Of(const StagedParams& p, TokenIndex at) {
    const Token token = LocateTokenBy<WideSearch>(p.source.positions, at.batch, at.index);
    MovedToken moved = {token, token, HasSet(p.source, token)};
    if (kMoves && p.before.given && moved.is_there) moved.FindBefore(p, at);
    return moved;
  }

 private:
  ROPE_HD void FindBefore(const StagedParams& p, TokenIndex at) {
    from = LocateTokenBy<WideSearch>(p.before.positions, at.batch, at.index);
    is_there = p.source.all_sets == 1 ||
               FrequencySetOf(p.before.positions, from.sequence, p.source.all_sets) == p.before.set;
  }
};

// The heads of a block at once: of each of its tokens `block_heads`, from `first` on.
struct BlockHeads {
  const StagedParams& p;
  const StagedSide& side;
  CosSin* rows;
  StagedToken* tokens;
  uint32_t first;

  ROPE_HD uint32_t block_tokens() const { return p.block_tokens; }

  // Of one of them: its token, and which of the token's heads it is.
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

  // Where a head of a token is read, and written or has what `strides` lead to, in bytes.
  ROPE_HD int64_t InOffset(const StagedToken& t, uint32_t head) const {
    return HeadOffset(side.in_strides, side.from_slots ? t.read_page : t.batch,
                      side.from_slots ? t.read_slot : t.index, head);
  }
  ROPE_HD int64_t OutOffset(const HeadStrides& strides, const StagedToken& t, uint32_t head) const {
    return HeadOffset(strides, side.to_slots ? t.written_page : t.batch,
                      side.to_slots ? t.written_slot : t.index, head);
  }
};

// Those of a block's own side, of which `block_y` tells the number.
ROPE_HD BlockHeads HeadsOfBlock(const StagedParams& p, uint32_t block_y, char* shared) {
  uint32_t own = p.first_block + block_y;
  int32_t s = 0;
  while (s + 1 < p.side_count && own >= p.sides[s].blocks) own -= p.sides[s++].blocks;
  return {p, p.sides[s], reinterpret_cast<CosSin*>(shared + p.rows_at),
          reinterpret_cast<StagedToken*>(shared + p.tokens_at), own * p.sides[s].block_heads};
}

// Steps. kDecodes: whether heads may be read in 8 bits; kMoves: whether they may be those of
// REROTATE.
template <rope_dtype kType, bool kDecodes, bool kMoves, class Memory>
struct StagedTokens {
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
    const MovedToken moved = MovedToken::Of<kMoves>(p, at);
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

  // As many warps for each token as there are.
  ROPE_HD static void MakeRows(const StagedParams& p, const Thread& i, CosSin* rows) {
    const CosSinSource& source = p.source;
    const uint32_t warps = 1u << p.row_shift, first = (i.y & (warps - 1)) * kStagedLanes + i.x;
    for (uint32_t t = i.y >> p.row_shift; t < p.block_tokens; t += kStagedWarps >> p.row_shift) {
      const uint32_t n = i.block_x * p.block_tokens + t;
      if (n >= source.tokens.count) return;
      const TokenIndex at = SplitToken(source.tokens, n);
      const MovedToken moved = MovedToken::Of<kMoves>(p, at);
      if (!moved.is_there) continue;
      for (uint32_t pair = first; pair < source.pairs; pair += warps * kStagedLanes) {
        PairRow row;
        if (source.kind == CosSinKind::kRows) {
          row = ReadPairRow(source, at, static_cast<int32_t>(pair));
        } else {
          row.first = row.second = kMoves && p.before.given
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
};

}  // namespace rope::gpu

#endif  // LIBROPE_SRC_GPU_STAGED_TOKENS_H_
