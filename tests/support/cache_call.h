// A random call that stores keys and values in a cache, and what memory must be after it by a plain
// reference: rope_apply_qk into a tensor, then a loop that copies by the slots' definition.
// Everything lies in one buffer, so that what is written where no slot is shows as well.
#ifndef LIBROPE_TESTS_SUPPORT_CACHE_CALL_H_
#define LIBROPE_TESTS_SUPPORT_CACHE_CALL_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>
#include <numeric>
#include <sstream>
#include <string>
#include <type_traits>
#include <vector>

#include "support/elements.h"
#include "support/enumerators.h"
#include "support/handles.h"
#include "support/random.h"
#include "support/reference.h"

namespace rope::testing {

// Bytes from the start of a cache line.
template <class T>
struct FromLines : std::allocator<T> {
  template <class U>
  struct rebind {
    using other = FromLines<U>;
  };
  T* allocate(size_t n) {
    return static_cast<T*>(::operator new (n * sizeof(T), std::align_val_t{64}));
  }
  void deallocate(T* at, size_t) { ::operator delete (at, std::align_val_t{64}); }
};
using Lines = std::vector<char, FromLines<char>>;

// What becomes of k besides.
enum class Keys { kCacheOnly, kInPlace, kOut };

// How a random call is to be.
struct CacheWish {
  rope_slot_kind kind = ROPE_SLOTS_MAPPED;
  bool variant = false;  // slots_i64, page_starts
  rope_dtype dtype = ROPE_DTYPE_F32;
  rope_layout cache_layout = ROPE_LAYOUT_NHD, layout = ROPE_LAYOUT_BSHD;
  Keys keys = Keys::kCacheOnly;
  rope_position_kind positions = ROPE_POSITIONS_OFFSET;
  bool packed = false;  // cu_seqlens
  int least_tokens = 1, most_tokens = 24, most_batch = 3, most_heads = 3, head_multiple = 1;
  bool aligned = false;
  int unit = 4;            // bytes to whose multiples tensors are aligned
  rope_dtype q_dtype = 0;  // 0: dtype
  int v_dim = 0;           // 0: any
  int sets = 1;            // of frequencies
  bool alike = false;      // v is described as k is, and both go to a contiguous cache
  bool missing = false;    // some slots, pages or indices do not exist
};

class CacheCall {
 public:
  // Draws other numbers than a test that has drawn the wish by the same seed.
  CacheCall(const rope_config& config, const CacheWish& wish, uint64_t seed)
      : config_(config), wish_(wish), r_(seed + (uint64_t{1} << 32)) {
    batch_ = wish.packed || wish.aligned ? 1 : r_.Pick(1, wish.most_batch);
    tokens_ = r_.Pick(wish.least_tokens, wish.most_tokens);
    args_ = Args(batch_, tokens_);
    if (r_.Sometimes(4)) args_.operation = ROPE_OPERATION_INVERSE;
    MakePositions();
    MakeSlots();
    MakeTensors();
  }

  const rope_qk_args& args() {
    cache_.k = At(k_cache_, memory_);
    cache_.v = At(v_cache_, memory_);
    fused_.cache = &cache_;
    fused_.v = At(v_, memory_);
    fused_.v_out = At(v_out_, memory_);
    args_.q = At(q_, memory_);
    args_.q_out = At(q_out_, memory_);
    args_.k = At(k_, memory_);
    args_.k_out = At(k_out_, memory_);
    args_.fused = &fused_;
    return args_;
  }
  // All numbers that a prepared call has read become others.
  void Scribble() {
    for (auto* numbers : {&slots_, &ids_}) std::fill(numbers->begin(), numbers->end(), 1 << 20);
    for (auto* numbers : {&slots_i32_, &cu_, &starts_, &table_, &page_starts_, &sets_}) {
      std::fill(numbers->begin(), numbers->end(), 1 << 20);
    }
  }
  rope_kv_cache* cache() { return &cache_; }

  // The call on other memory, where move(data, bytes) has copied parts of this.
  struct Moved {
    rope_qk_args args;
    rope_fused fused;
    rope_kv_cache cache;
  };
  template <class Move>
  void MoveTo(Moved* to, Move move) {
    args();
    *to = {args_, fused_, cache_};
    to->args.fused = &to->fused;
    to->fused.cache = &to->cache;
    char* const there = move(memory_.data(), memory_.size());
    for (rope_tensor* t : {&to->args.q, &to->args.k, &to->args.q_out, &to->args.k_out, &to->fused.v,
                           &to->fused.v_out, &to->cache.k, &to->cache.v}) {
      if (t->data != nullptr) t->data = there + (static_cast<char*>(t->data) - memory_.data());
    }
    const auto array = [&](auto& pointer, const auto& values) {
      if (pointer == nullptr) return;
      char* const at =
          move(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(values[0]));
      pointer = reinterpret_cast<std::remove_reference_t<decltype(pointer)>>(at);
    };
    rope_positions& positions = to->args.positions;
    array(positions.offsets_i64, ids_), array(positions.ids_i64, ids_);
    array(positions.cu_seqlens, cu_), array(positions.freq_sets, sets_);
    array(to->cache.slots_i32, slots_i32_), array(to->cache.slots_i64, slots_);
    array(to->cache.page_table, table_), array(to->cache.page_starts, page_starts_);
    array(to->cache.starts, starts_);
  }
  void RunBy(const rope_runner* runner) { args_.runner = runner; }
  // Rows of cos and sin in place of positions.
  void ReadRows(const rope_cos_sin* rows) {
    args_.positions = rope_positions{};
    args_.operation = ROPE_OPERATION_FORWARD;
    args_.cos_sin = rows;
  }
  int64_t batch() const { return batch_; }
  int64_t tokens() const { return tokens_; }
  const Lines& memory() const { return memory_; }
  void Restore(const Lines& memory) { std::copy(memory.begin(), memory.end(), memory_.begin()); }

  // What `memory` must be after the call.
  Lines Want(const Context& context) {
    Lines want = memory_, rotated(KeyBytes());
    rope_qk_args plain = args_;
    plain.fused = nullptr;
    plain.runner = nullptr;
    // k, rotated as it was before the call.
    Lines before = memory_;
    plain.q = plain.q_out = rope_tensor{};
    plain.k = At(k_, before);
    plain.k_out = Tensor(rotated.data(), wish_.dtype, k_.heads);
    plain.k_out.head_dim = k_cache_.head_dim;
    if (k_cache_.heads != 0) {
      EXPECT_OK(rope_apply_qk(context.get(), &plain));
    }
    // q, and k where it goes besides.
    plain.q = At(q_, want);
    plain.q_out = At(q_out_, want);
    const bool both = k_out_.heads != 0 || k_cache_.heads == 0;
    plain.k = both ? At(k_, want) : rope_tensor{};
    plain.k_out = both ? At(k_out_, want) : rope_tensor{};
    if (plain.q.heads != 0 || plain.k.heads != 0) {
      EXPECT_OK(rope_apply_qk(context.get(), &plain));
    }
    const int64_t dim = Width(k_cache_), size = SizeOf(wish_.dtype);
    const bool whole = Width(k_) == config_.head_dim && dim == config_.head_dim;
    const int64_t span = config_.rotary_dim != 0 ? config_.rotary_dim : config_.head_dim;
    const int64_t first = whole || dim == span ? 0 : config_.rotary_offset;
    const int64_t width = whole ? dim : span;
    for (int64_t b = 0; b < batch_; ++b) {
      for (int64_t t = 0; t < tokens_; ++t) {
        const int64_t slot = SlotOf(b, t);
        for (int h = 0; h < k_cache_.heads && slot >= 0; ++h) {
          const int64_t from = ((b * tokens_ + t) * k_.heads + h) * dim + first;
          std::memcpy(want.data() + CacheOffset(k_cache_, slot, h) + first * size,
                      rotated.data() + from * size, width * size);
        }
        for (int h = 0; h < v_.heads; ++h) {
          const char* const from = memory_.data() + OffsetOf(v_, b, t, h);
          const size_t bytes = v_.head_dim * SizeOf(v_.dtype);
          if (v_out_.heads != 0) std::memcpy(want.data() + OffsetOf(v_out_, b, t, h), from, bytes);
          if (v_cache_.heads != 0 && slot >= 0) {
            std::memcpy(want.data() + CacheOffset(v_cache_, slot, h), from, bytes);
          }
        }
      }
    }
    return want;
  }

  int64_t stored() const {
    return Count([](int64_t slot) { return slot >= 0; });
  }
  int64_t missing() const {
    return Count([](int64_t slot) { return slot == kMissing; });
  }

 private:
  static constexpr int64_t kMissing = -2;

  template <class Is>
  int64_t Count(Is is) const {
    int64_t count = 0;
    for (int64_t b = 0; b < batch_; ++b) {
      for (int64_t t = 0; t < tokens_; ++t) count += is(SlotOf(b, t));
    }
    return count;
  }

  // A slot number, by the header's definitions; -1: nowhere; kMissing: there is none.
  int64_t SlotOf(int64_t b, int64_t t) const {
    const int64_t page_size = cache_.page_size, at = b * tokens_ + t;
    if (wish_.kind == ROPE_SLOTS_MAPPED) {
      if (at >= cache_.slots_length || slots_[at] < 0) return -1;
      return slots_[at] < cache_.pages * page_size ? slots_[at] : kMissing;
    }
    int64_t s = b, i = t;
    if (wish_.packed) {
      for (s = 0; cu_[s + 1] <= t;) ++s;
      i = t - cu_[s];
    }
    const int64_t n = starts_[s] + i;
    if (starts_[s] < 0) return kMissing;
    if (wish_.kind == ROPE_SLOTS_LINEAR) return n < page_size ? s * page_size + n : kMissing;
    const int64_t row = wish_.variant ? page_starts_[s] : s * cache_.page_table_stride;
    const int64_t end = wish_.variant ? page_starts_[s + 1] : row + cache_.page_table_stride;
    if (row + n / page_size >= end) return kMissing;
    const int32_t page = table_[row + n / page_size];
    if (page >= cache_.pages) return kMissing;
    return page < 0 ? -1 : page * page_size + n % page_size;
  }

  void MakePositions() {
    args_.positions.kind = wish_.positions;
    for (int i = 0; i < batch_ * tokens_; ++i) ids_.push_back(r_.Pick(0, 5000));
    if (wish_.positions == ROPE_POSITIONS_OFFSET) {
      args_.positions.offset = r_.Pick(0, 1000);
    } else if (wish_.positions == ROPE_POSITIONS_SEQ_OFFSETS) {
      args_.positions.offsets_i64 = ids_.data();
    } else {
      args_.positions.ids_i64 = ids_.data();
    }
    sequences_ = batch_;
    if (wish_.packed) MakeSequences();
    if (wish_.sets == 1) return;
    for (int64_t s = 0; s < sequences_; ++s) sets_.push_back(r_.Pick(0, wish_.sets - 1));
    args_.positions.freq_sets = sets_.data();
  }

  void MakeSequences() {
    cu_ = {0};
    while (cu_.back() < tokens_) {
      cu_.push_back(std::min<int32_t>(static_cast<int32_t>(tokens_), cu_.back() + r_.Pick(0, 9)));
    }
    sequences_ = static_cast<int64_t>(cu_.size()) - 1;
    while (static_cast<int64_t>(ids_.size()) < sequences_) ids_.push_back(7);
    if (args_.positions.offsets_i64 != nullptr) args_.positions.offsets_i64 = ids_.data();
    if (args_.positions.ids_i64 != nullptr) args_.positions.ids_i64 = ids_.data();
    args_.positions.cu_seqlens = cu_.data();
    args_.positions.sequences = static_cast<int32_t>(sequences_);
  }

  int64_t CountOf(int64_t sequence) const {
    return wish_.packed ? cu_[sequence + 1] - cu_[sequence] : tokens_;
  }

  void MakeSlots() {
    cache_.kind = wish_.kind;
    cache_.page_size = wish_.aligned ? 16 : r_.Of({1, 2, 3, 7, 16});
    const int64_t page_size = cache_.page_size, count = batch_ * tokens_;
    if (wish_.kind == ROPE_SLOTS_MAPPED) {
      cache_.pages = (count + page_size - 1) / page_size + r_.Pick(0, 3);
      // Runs of slots in a random order, some of them nowhere.
      std::vector<int64_t> all(cache_.pages * page_size);
      std::iota(all.begin(), all.end(), 0);
      for (size_t run = 0; run < all.size();) {
        const size_t length = std::min<size_t>(all.size() - run, r_.Pick(1, 20));
        if (r_.Sometimes(2)) {
          std::rotate(all.begin(), all.begin() + run, all.begin() + run + length);
        }
        run += length;
      }
      slots_.assign(all.begin(), all.begin() + count);
      for (int64_t& slot : slots_) {
        if (r_.Sometimes(9)) slot = -r_.Pick(1, 3);
        if (IsMissing()) slot = static_cast<int64_t>(all.size()) + r_.Of({0, 1, 1 << 20});
      }
      cache_.slots_length = r_.Sometimes(3) ? r_.Pick(1, static_cast<int>(count)) : count;
      slots_i32_.assign(slots_.begin(), slots_.end());
      if (wish_.variant) {
        cache_.slots_i64 = slots_.data();
      } else {
        cache_.slots_i32 = slots_i32_.data();
      }
      return;
    }
    int64_t most = 0, last = 0;
    for (int64_t s = 0; s < sequences_; ++s) {
      starts_.push_back(IsMissing() ? -r_.Pick(1, 3) : r_.Pick(0, 20));
      last = starts_.back() + CountOf(s);
      most = std::max(most, last);
    }
    cache_.starts = starts_.data();
    if (wish_.kind == ROPE_SLOTS_LINEAR) {
      cache_.page_size = static_cast<int32_t>(most) + r_.Pick(0, 3);
      if (wish_.missing) cache_.page_size = std::max(1, cache_.page_size - r_.Pick(0, 9));
      cache_.pages = sequences_ + r_.Pick(0, 2);
      return;
    }
    int64_t row = (most + page_size - 1) / page_size + r_.Pick(0, 2);
    if (wish_.missing) row = std::max<int64_t>(1, row - r_.Pick(0, 3));
    std::vector<int32_t> free(sequences_ * row + 5);
    std::iota(free.begin(), free.end(), 0);
    cache_.pages = static_cast<int64_t>(free.size());
    if (r_.Sometimes(2)) {
      for (size_t i = 0; i < free.size(); ++i) std::swap(free[i], free[r_.Below(free.size())]);
    }
    const int64_t skipped = wish_.variant ? r_.Pick(0, 2) : 0;
    table_.assign(skipped, 1 << 20);  // is not read
    for (int64_t s = 0; s < sequences_; ++s) {
      page_starts_.push_back(static_cast<int32_t>(table_.size()));
      int64_t needed = (starts_[s] + CountOf(s) + page_size - 1) / page_size;
      if (wish_.missing) needed = std::clamp<int64_t>(needed - r_.Pick(0, 1), 0, row);
      for (int64_t i = 0; i < (wish_.variant ? needed : row); ++i) {
        const bool is_read = i >= starts_[s] / page_size && i < needed && CountOf(s) > 0;
        table_.push_back(!is_read          ? 1 << 20
                         : IsMissing()     ? static_cast<int32_t>(cache_.pages)
                         : r_.Sometimes(8) ? -1
                                           : free[s * row + i]);
      }
    }
    page_starts_.push_back(static_cast<int32_t>(table_.size()));
    if (table_.empty()) table_.push_back(1 << 20);
    cache_.page_table = table_.data();
    if (wish_.variant) {
      cache_.page_starts = page_starts_.data();
    } else {
      cache_.page_table_stride = row;
    }
  }

  bool IsMissing() { return wish_.missing && r_.Sometimes(7); }

  // A described tensor whose data is an offset in `memory_`.
  static rope_tensor At(const rope_tensor& t, Lines& memory) {
    rope_tensor at = t;
    if (t.heads != 0) at.data = memory.data() + reinterpret_cast<intptr_t>(t.data);
    return at;
  }
  int64_t Width(const rope_tensor& t) const {
    return t.head_dim != 0 ? t.head_dim : config_.head_dim;
  }
  size_t KeyBytes() const { return batch_ * tokens_ * k_.heads * config_.head_dim * 4; }
  int64_t OffsetOf(const rope_tensor& t, int64_t b, int64_t s, int64_t h) const {
    return reinterpret_cast<intptr_t>(t.data) +
           HeadOffset(t, batch_, tokens_, Width(t), b, s, h) * SizeOf(t.dtype);
  }
  int64_t CacheOffset(const rope_tensor& t, int64_t slot, int64_t h) const {
    const int64_t page = slot / cache_.page_size, n = slot % cache_.page_size, width = Width(t);
    int64_t at;
    if (t.layout == ROPE_LAYOUT_STRIDED) {
      at = page * t.stride_batch + n * t.stride_token + h * t.stride_head;
    } else if (t.layout == ROPE_LAYOUT_NHD) {
      at = ((page * cache_.page_size + n) * t.heads + h) * width;
    } else {
      at = ((page * t.heads + h) * cache_.page_size + n) * width;
    }
    return reinterpret_cast<intptr_t>(t.data) + at * SizeOf(t.dtype);
  }

  // Places a tensor behind all others, with canaries between them.
  rope_tensor Place(rope_dtype dtype, int heads, int head_dim, rope_layout layout, int64_t outer,
                    int64_t inner) {
    rope_tensor t = Tensor(nullptr, dtype, heads, layout);
    t.head_dim = head_dim;
    const int64_t width = Width(t);
    int64_t elements = outer * inner * heads * width;
    if (layout == ROPE_LAYOUT_STRIDED) {
      // Dimensions in any order, with gaps.
      int order[] = {0, 1, 2};
      std::swap(order[0], order[r_.Pick(0, 2)]);
      std::swap(order[1], order[r_.Pick(1, 2)]);
      const int64_t counts[] = {outer, inner, heads};
      int64_t strides[3], reach = width;
      for (int d : order) {
        strides[d] = reach + (wish_.aligned ? 0 : r_.Pick(0, 5) * (wish_.unit / 4));
        reach = strides[d] * counts[d];
      }
      SetStrides(&t, strides[0], strides[1], strides[2]);
      elements = reach;
    }
    Put(&t, elements);
    return t;
  }

  void Put(rope_tensor* t, int64_t elements) {
    const int64_t unit = wish_.aligned ? 64 : wish_.unit;
    const int64_t offset = (end_ + unit - 1) / unit * unit + unit * r_.Pick(1, 20);
    end_ = offset + elements * SizeOf(t->dtype);
    t->data = reinterpret_cast<void*>(offset);
  }

  // Another described as `t` is, but for its head_dim.
  rope_tensor PlaceAs(rope_tensor t, int64_t outer, int64_t inner) {
    const int64_t width = t.head_dim = static_cast<int32_t>(Width(t));
    const int64_t elements = t.layout == ROPE_LAYOUT_STRIDED
                                 ? (outer - 1) * t.stride_batch + (inner - 1) * t.stride_token +
                                       (t.heads - 1) * t.stride_head + width
                                 : outer * inner * t.heads * width;
    Put(&t, elements);
    return t;
  }

  void MakeTensors() {
    const int span = config_.rotary_dim != 0 ? config_.rotary_dim : config_.head_dim;
    const auto width = [&] { return r_.Sometimes(3) ? span : r_.Of({0, config_.head_dim}); };
    const auto heads = [&] { return wish_.head_multiple * r_.Pick(1, wish_.most_heads); };
    const rope_dtype dtype = wish_.dtype;
    if (!r_.Sometimes(3)) {
      q_ = Place(wish_.q_dtype != 0 ? wish_.q_dtype : dtype, 2 * heads(), 0, wish_.layout, batch_,
                 tokens_);
      if (r_.Sometimes(3)) q_out_ = Place(q_.dtype, q_.heads, 0, wish_.layout, batch_, tokens_);
    }
    k_ = Place(dtype, heads(), width(), wish_.layout, batch_, tokens_);
    if (wish_.alike) {
      v_ = PlaceAs(k_, batch_, tokens_);
      k_cache_ =
          Place(dtype, k_.heads, k_.head_dim, wish_.cache_layout, cache_.pages, cache_.page_size);
      v_cache_ = PlaceAs(k_cache_, cache_.pages, cache_.page_size);
      return Fill();
    }
    if (wish_.keys == Keys::kInPlace) k_out_ = k_;
    if (wish_.keys == Keys::kOut) {
      k_out_ = Place(dtype, k_.heads, width(), r_.Pick(1, 4), batch_, tokens_);
    }
    if (!r_.Sometimes(6)) {  // else v alone goes to the cache
      k_cache_ =
          Place(dtype, k_.heads, width(), wish_.cache_layout, cache_.pages, cache_.page_size);
    }
    if (k_cache_.heads == 0 || !r_.Sometimes(4)) {
      const rope_dtype v_dtype = r_.Sometimes(3) ? r_.Pick(1, kLastDtype) : dtype;
      const int dim = wish_.v_dim != 0 ? wish_.v_dim
                      : wish_.aligned  ? 64
                                       : r_.Of({1, 5, 16, 40, config_.head_dim});
      v_ = Place(v_dtype, heads(), dim, wish_.layout, batch_, tokens_);
      const bool to_cache = k_cache_.heads == 0 || !r_.Sometimes(4);
      if (to_cache) {
        v_cache_ =
            Place(v_dtype, v_.heads, dim, wish_.cache_layout, cache_.pages, cache_.page_size);
      }
      if (!to_cache || r_.Sometimes(3)) {
        v_out_ = r_.Sometimes(3) && to_cache
                     ? v_
                     : Place(v_dtype, v_.heads, dim, r_.Pick(1, 4), batch_, tokens_);
      }
    }
    Fill();
  }

  void Fill() {
    memory_.resize(end_ + 64);
    for (size_t i = 0; i < memory_.size(); i += 2) {  // small numbers in every dtype
      const auto bits = static_cast<uint16_t>(0x3c00 + r_.Below(0x400) + r_.Below(2) * 0x8000);
      std::memcpy(memory_.data() + i, &bits, std::min<size_t>(2, memory_.size() - i));
    }
  }

  const rope_config config_;
  const CacheWish wish_;
  Random r_;
  int64_t batch_, tokens_, sequences_ = 0, end_ = 0;
  rope_qk_args args_;
  rope_kv_cache cache_ = ROPE_INIT(rope_kv_cache);
  rope_fused fused_ = ROPE_INIT(rope_fused);
  rope_tensor q_{}, q_out_{}, k_{}, k_out_{}, k_cache_{}, v_{}, v_out_{}, v_cache_{};
  std::vector<int64_t> slots_, ids_;
  std::vector<int32_t> slots_i32_, cu_, starts_, table_, page_starts_, sets_;
  Lines memory_;
};

// A call for a device, whose slots need not exist, with its context.
struct CacheCase {
  rope_config config;
  CacheWish wish;
  bool rows, row_heads;

  std::string Describe() const {
    std::ostringstream text;
    text << "head_dim " << config.head_dim << " rotary_dim " << config.rotary_dim << " offset "
         << config.rotary_offset << " pairing " << config.pairing << " angle " << config.angle
         << " rounding " << config.rounding << " scaling " << config.scaling << " kind "
         << wish.kind << " dtype " << wish.dtype << " q_dtype " << wish.q_dtype << " layouts "
         << wish.layout << " " << wish.cache_layout << " keys " << static_cast<int>(wish.keys)
         << " positions " << wish.positions << " packed " << wish.packed << " unit " << wish.unit
         << " v_dim " << wish.v_dim << " sets " << wish.sets << " rows " << rows << row_heads;
    return text.str();
  }
};

// The heads, dtypes, alignments and slots that models and caches have, and others.
inline CacheCase RandomCacheCase(Random* random) {
  Random& r = *random;
  CacheCase e{};
  const rope_pairing pairing = r.Pick(1, kLastPairing);
  const int dim = r.Sometimes(25) ? 512 : r.Of({8, 12, 16, 24, 64, 128});
  e.config = Config(dim, pairing);
  if (r.Sometimes(3)) {
    e.config.rotary_dim = dim / 2;
    e.config.rotary_offset = r.Of({0, dim / 4, dim / 2});
  }
  e.config.angle = r.Of({ROPE_ANGLE_FLOAT32, ROPE_ANGLE_EXACT});
  if (pairing == ROPE_PAIRING_HALVES_PER_AXIS) {
    const int pairs = (e.config.rotary_dim != 0 ? e.config.rotary_dim : dim) / 2;
    e.config.axes = 2;
    e.config.mrope_section[0] = pairs / 2;
    e.config.mrope_section[1] = pairs - pairs / 2;
  }
  CacheWish& w = e.wish;
  w.kind = r.Pick(ROPE_SLOTS_MAPPED, ROPE_SLOTS_LINEAR);
  w.variant = r.Sometimes(2);
  w.dtype = r.Pick(1, kLastDtype);
  if (r.Sometimes(6)) w.q_dtype = r.Pick(1, kLastDtype);
  e.config.rounding = r.Pick(ROPE_ROUNDING_FLOAT32, ROPE_ROUNDING_EAGER);
  if (r.Sometimes(4)) {
    w.dtype = ROPE_DTYPE_F16, w.q_dtype = 0;
    e.config.rounding = ROPE_ROUNDING_NATIVE;
  }
  if (r.Sometimes(8)) e.config.scaling = ROPE_SCALING_NOPE;
  w.cache_layout = r.Pick(ROPE_LAYOUT_STRIDED, ROPE_LAYOUT_HND);
  w.layout = r.Pick(ROPE_LAYOUT_BSHD, ROPE_LAYOUT_STRIDED);
  w.keys = r.Of({Keys::kCacheOnly, Keys::kInPlace, Keys::kOut});
  w.positions = ROPE_POSITIONS_OFFSET + r.Pick(0, 3);
  w.packed = r.Sometimes(2);
  w.most_tokens = r.Of({1, 24});
  w.most_batch = r.Of({1, 3, 20});
  w.unit = r.Of({4, 8, 16, 64});
  if (w.unit >= 16 && !r.Sometimes(4)) w.v_dim = r.Of({64, 96, 128, 256, 512});
  w.missing = r.Sometimes(2);
  if (r.Sometimes(6) && e.config.scaling == 0) w.sets = 12;
  e.rows = w.sets == 1 && r.Sometimes(10) && e.config.rounding != ROPE_ROUNDING_NATIVE;
  e.row_heads = e.rows && r.Sometimes(2);
  if (e.row_heads) w.head_multiple = 2;
  if (e.rows) w.packed = false;  // the sequences are the batch rows
  return e;
}

}  // namespace rope::testing

#endif  // LIBROPE_TESTS_SUPPORT_CACHE_CALL_H_
