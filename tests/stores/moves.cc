// Calls that move keys and values from slots to slots: in place, to other slots of the same memory,
// and to another cache, whose dtype may be another; keys in 8 bits, too.
#include <iterator>
#include <string>
#include <vector>

#include "stores/work.h"

namespace rope::testing::stores {
namespace {

constexpr rope_dtype kStored[] = {ROPE_DTYPE_F32,     ROPE_DTYPE_F16,     ROPE_DTYPE_BF16,
                                  ROPE_DTYPE_F8_E4M3, ROPE_DTYPE_F8_E5M2, ROPE_DTYPE_I8,
                                  ROPE_DTYPE_Q8_0};
enum class Where { kInPlace, kOtherSlots, kOtherCache };
constexpr const char* kNamesOfWhere[] = {"in place", "to other slots", "to another cache"};

bool HasBlocks(int channels) { return channels % 32 == 0; }

class Move {
 public:
  Move(Random* r, int head_dim, rope_dtype from, Where where, rope_operation operation)
      : r_(*r),
        head_dim_(head_dim),
        from_(from),
        to_(from),
        where_(where),
        operation_(operation),
        config_(Config(head_dim)) {
    config_.pairing = r->Of({ROPE_PAIRING_HALVES, ROPE_PAIRING_INTERLEAVED});
    config_.angle = ROPE_ANGLE_EXACT;
    if (where == Where::kOtherCache && r->Sometimes(2)) {
      do to_ = kStored[r->Below(std::size(kStored))];
      while (to_ == ROPE_DTYPE_Q8_0 && !HasBlocks(head_dim));
    }
    if (r->Sometimes(3)) {
      config_.rotary_dim = head_dim / 2;
      config_.rotary_offset = r->Of({0, head_dim / 2});
    }
    rows_ = r->Pick(1, 2);
    tokens_ = rows_ == 1 ? r->Of({1, 5}) : 3;
    // Pages and rows of slots of both places would meet.
    kind_ = where == Where::kOtherSlots
                ? ROPE_SLOTS_MAPPED
                : r->Of({ROPE_SLOTS_MAPPED, ROPE_SLOTS_PAGED, ROPE_SLOTS_LINEAR});
    layout_ = r->Of({ROPE_LAYOUT_NHD, ROPE_LAYOUT_HND, ROPE_LAYOUT_STRIDED});
    scale_ = ScaleKind{r->Pick(0, 4)};
    Watch();
  }

 private:
  // Memory of keys or of values, in a cache or a source.
  struct Memory {
    Heads k, v;
  };
  Memory AddMemory(Work* work, const char* k_name, const char* v_name, rope_dtype dtype,
                   rope_kv_cache* cache) const {
    const int v_width = from_ == ROPE_DTYPE_Q8_0 || to_ == ROPE_DTYPE_Q8_0 ? 32 : 37;
    Memory memory = {
        work->Tensor(k_name, dtype, {cache->pages, kPageSize, kHeads, head_dim_}, layout_, scale_),
        work->Tensor(v_name, dtype, {cache->pages, kPageSize, kHeads, v_width}, layout_, scale_)};
    cache->k = memory.k.tensor;
    cache->v = memory.v.tensor;
    cache->v.head_dim = v_width;
    return memory;
  }

  void Watch() const {
    const bool has_scale = IsCode(from_) || IsCode(to_);
    Work work(std::string(operation_ == ROPE_OPERATION_SHIFT ? "shift " : "rerotate ") +
              std::to_string(head_dim_) + (config_.rotary_dim != 0 ? " partial " : " ") +
              NameOfPairing(config_.pairing) + " " + NameOf(from_) + " to " + NameOf(to_) +
              (has_scale ? std::string(" ") + NameOf(scale_) : "") + " " + NameOfLayout(layout_) +
              " " + NameOfSlots(kind_) + " " + kNamesOfWhere[static_cast<int>(where_)] + ", " +
              std::to_string(rows_) + " x " + std::to_string(tokens_));
    rope_kv_cache source = ROPE_INIT(rope_kv_cache), cache = ROPE_INIT(rope_kv_cache);
    const std::vector<Place> from = PutTokens(&work, kind_, rows_, tokens_, 0, &source);
    const Memory read = AddMemory(&work, "source->k", "source->v", from_, &source);
    std::vector<Place> to = from;
    Memory written = read;
    if (where_ == Where::kInPlace) {
      cache = source;
    } else {
      to = PutTokens(&work, kind_, rows_, tokens_, 1, &cache);
      if (where_ == Where::kOtherCache) {
        written = AddMemory(&work, "cache->k", "cache->v", to_, &cache);
      } else {
        cache.k = source.k, cache.v = source.v;
      }
    }
    rope_fused fused = ROPE_INIT(rope_fused);
    fused.source = &source;
    fused.cache = &cache;
    rope_qk_args args = Args(rows_, tokens_);
    args.operation = operation_;
    args.fused = &fused;
    // The last token stays where it was.
    std::vector<int64_t> before, after;
    const auto count = static_cast<size_t>(rows_ * tokens_);
    for (size_t i = 0; i < count; ++i) {
      before.push_back(operation_ == ROPE_OPERATION_SHIFT ? 0 : 7 * static_cast<int64_t>(i));
      after.push_back(before.back() + (i == count - 1 ? 0 : 5 - 3 * static_cast<int64_t>(i)));
    }
    args.positions = Ids(ROPE_POSITIONS_IDS_BT, work.Array("positions", after));
    const rope_positions from_positions =
        Ids(ROPE_POSITIONS_IDS_BT, work.Array("from_positions", before));
    if (operation_ == ROPE_OPERATION_REROTATE) fused.from_positions = &from_positions;
    const bool has_k_out = r_.Sometimes(4);
    Heads k_out = {};
    if (has_k_out) {
      k_out = work.Tensor("k_out", IsInEightBits(from_) ? ROPE_DTYPE_F32 : from_,
                          {rows_, tokens_, kHeads, head_dim_}, ROPE_LAYOUT_BHSD);
      args.k_out = k_out.tensor;
    }
    const std::vector<Place> tokens = Tokens(rows_, tokens_);
    for (size_t i = 0; i < count; ++i) {
      if (from[i].page < 0) continue;
      if (has_k_out) work.Stores(k_out, tokens[i], 0, head_dim_);
      if (where_ != Where::kInPlace) {
        work.Stores(written.k, to[i], 0, head_dim_);
        work.Stores(written.v, to[i], 0, written.v.width);
        continue;
      }
      // Values are there already, and so are codes that do not turn, and numbers beside the span;
      // of heads in 8 bits that turn all is coded anew.
      if (!IsInEightBits(from_)) {
        work.Stores(written.k, to[i], config_.rotary_offset, Span());
      } else if (i != count - 1) {
        work.Stores(written.k, to[i], 0, head_dim_);
      }
    }
    work.Make(ContextOf(config_), args);
  }

  int Span() const { return config_.rotary_dim != 0 ? config_.rotary_dim : head_dim_; }

  static constexpr int kHeads = 2;

  Random& r_;
  const int head_dim_;
  rope_dtype from_, to_;
  const Where where_;
  const rope_operation operation_;
  rope_config config_;
  int64_t rows_, tokens_;
  rope_slot_kind kind_;
  rope_layout layout_;
  ScaleKind scale_;
};

}  // namespace

void WatchMoves() {
  Random r(3);
  for (const int head_dim : kHeadDims) {
    for (const rope_dtype dtype : kStored) {
      if (dtype == ROPE_DTYPE_Q8_0 && !HasBlocks(head_dim)) continue;
      for (const Where where : {Where::kInPlace, Where::kOtherSlots, Where::kOtherCache}) {
        for (const rope_operation operation : {ROPE_OPERATION_SHIFT, ROPE_OPERATION_REROTATE}) {
          Move(&r, head_dim, dtype, where, operation);
        }
      }
    }
  }
}

}  // namespace rope::testing::stores
