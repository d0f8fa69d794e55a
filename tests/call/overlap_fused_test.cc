// Calls that do more than rotate, on tensors that lie anywhere in a small memory: an accepted one
// leaves what it leaves where each tensor has a copy of that memory for itself, and a refused one
// writes nothing. Covers v, outputs, caches, what is moved in them, scales, and gradients of norms.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <initializer_list>
#include <iterator>
#include <memory>
#include <numeric>
#include <utility>
#include <vector>

#include "support/elements.h"
#include "support/handles.h"
#include "support/random.h"

namespace rope::testing {
namespace {

constexpr int kBytes = 4096, kFar = 320;
using Bytes = std::vector<char>;

// A call whose structs can be pointed anywhere.
class FusedCall {
 public:
  explicit FusedCall(uint64_t seed) : r_(seed), memory_(kBytes) {
    for (char& byte : memory_) byte = static_cast<char>(r_.Pick(0x20, 0x3b));  // f16 of 0.01 to 1
    args_ = Args(r_.Pick(1, 2), r_.Pick(1, 3));
    args_.positions = Offset(1);
    args_.fused = &fused_;
    const int what = r_.Pick(0, 3);
    if (what == 0) {
      MakeGradients();
    } else if (what == 1) {
      MakeMove();
    } else {
      MakeAppend();
    }
  }
  FusedCall(const FusedCall&) = delete;

  // With all tensors in one memory.
  rope_status ApplyTogether(const Context& context, Bytes* memory) {
    *memory = memory_;
    for (const Place& place : places_) *place.at = memory->data() + place.offset;
    return rope_apply_qk(context.get(), &args_);
  }

  // With a copy of it for each; what they have changed, in one.
  rope_status ApplyApart(const Context& context, Bytes* memory) {
    std::vector<std::unique_ptr<Bytes>> copies;
    for (const Place& place : places_) {
      if (place.like < 0) copies.push_back(std::make_unique<Bytes>(memory_));
      Bytes* const own = place.like < 0 ? copies.back().get() : homes_[place.like];
      homes_.push_back(own);
      *place.at = own->data() + place.offset;
    }
    const rope_status s = rope_apply_qk(context.get(), &args_);
    homes_.clear();
    *memory = memory_;
    for (const auto& copy : copies) {
      for (int i = 0; i < kBytes; ++i) {
        if ((*copy)[i] != memory_[i]) (*memory)[i] = (*copy)[i];
      }
    }
    return s;
  }

  bool IsAsBefore(const Bytes& memory) const { return memory == memory_; }

 private:
  struct Place {
    void** at;
    int64_t offset;
    int like;  // the place that it is one with; -1: none
  };

  // Near the others, or so that they may be apart.
  int Put(void** at, int size) {
    const int64_t near = r_.Below(kFar / size) * size;
    const int64_t offset =
        r_.Sometimes(6) ? near
                        : (static_cast<int64_t>(places_.size()) * kFar + near / 8) / size * size;
    places_.push_back({at, offset % (kBytes - 2 * kFar), -1});
    return static_cast<int>(places_.size()) - 1;
  }
  // In place.
  int PutOn(void** at, int other) {
    places_.push_back({at, places_[other].offset, other});
    return static_cast<int>(places_.size()) - 1;
  }

  rope_tensor Described(rope_dtype dtype, int heads, int width) {
    rope_tensor t = Tensor(nullptr, dtype, heads, r_.Pick(1, 3));
    t.head_dim = width;
    if (r_.Sometimes(3)) SetStrides(&t, r_.Pick(0, 48), r_.Pick(0, 24), r_.Pick(0, 12));
    return t;
  }
  rope_dtype AnyDtype() { return r_.Pick(ROPE_DTYPE_F32, ROPE_DTYPE_F16); }

  // An output of `in` at one of its places: the same, or any.
  void MakeOutput(const rope_tensor& in, int place, rope_tensor* out) {
    *out = in;
    if (r_.Sometimes(2)) {
      PutOn(&out->data, place);
      return;
    }
    if (r_.Sometimes(2)) *out = Described(in.dtype, in.heads, in.head_dim);
    Put(&out->data, SizeOf(in.dtype));
  }

  void MakeCache(rope_kv_cache* cache) {
    cache->kind = ROPE_SLOTS_MAPPED;
    cache->page_size = r_.Pick(1, 3);
    cache->pages = args_.batch * args_.tokens / cache->page_size + 1;
  }
  // Each token has one of its own, or none.
  void MakeSlots(rope_kv_cache* cache, std::vector<int64_t>* slots) {
    const int64_t count = args_.batch * args_.tokens;
    slots->resize(static_cast<size_t>(cache->pages * cache->page_size));
    std::iota(slots->begin(), slots->end(), int64_t{0});
    for (size_t i = slots->size() - 1; i > 0; --i) {
      std::swap((*slots)[i], (*slots)[r_.Below(static_cast<int64_t>(i) + 1)]);
    }
    slots->resize(static_cast<size_t>(count));
    if (r_.Sometimes(4)) (*slots)[r_.Below(count)] = -1;
    cache->slots_i64 = slots->data();
    cache->slots_length = count;
  }
  rope_tensor Pages(rope_dtype dtype, int heads, int width, rope_scale* scale, int32_t page_size) {
    rope_tensor t = Tensor(nullptr, dtype, heads, r_.Of({ROPE_LAYOUT_NHD, ROPE_LAYOUT_HND}));
    t.head_dim = width;
    if (dtype != ROPE_DTYPE_I8) return t;
    *scale = ROPE_INIT(rope_scale);
    if (r_.Sometimes(3)) {
      scale->value = 0.25f;
    } else {  // an array, computed or given
      scale->computed = r_.Sometimes(2) ? 1 : 0;
      scale->dtype = ROPE_DTYPE_F32;
      scale->stride_head = 1;
      scale->stride_token = heads;
      scale->stride_batch = int64_t{heads} * page_size;
      Put(&scale->data, 4);
    }
    t.scale = scale;
    return t;
  }

  void MakeAppend() {
    const int heads = r_.Pick(1, 2), width = r_.Pick(1, 5);
    args_.k = Described(AnyDtype(), heads, 0);
    const int k = Put(&args_.k.data, SizeOf(args_.k.dtype));
    fused_.v = Described(AnyDtype(), heads, width);
    const int v = Put(&fused_.v.data, SizeOf(fused_.v.dtype));
    if (r_.Sometimes(2)) {
      args_.q = Described(AnyDtype(), r_.Pick(1, 2), 0);
      const int q = Put(&args_.q.data, SizeOf(args_.q.dtype));
      if (r_.Sometimes(3)) MakeOutput(args_.q, q, &args_.q_out);
    }
    if (r_.Sometimes(2)) MakeOutput(args_.k, k, &args_.k_out);
    const bool out = r_.Sometimes(2);
    if (out) MakeOutput(fused_.v, v, &fused_.v_out);
    if (out && r_.Sometimes(3)) return;
    MakeCache(&cache_);
    MakeSlots(&cache_, &slots_);
    const auto stored = [&](rope_dtype dtype) { return r_.Sometimes(3) ? ROPE_DTYPE_I8 : dtype; };
    cache_.k = Pages(stored(args_.k.dtype), heads, 0, &k_scale_, cache_.page_size);
    Put(&cache_.k.data, 4);
    cache_.v = Pages(stored(fused_.v.dtype), heads, width, &v_scale_, cache_.page_size);
    Put(&cache_.v.data, 4);
    fused_.cache = &cache_;
  }

  // From slots to others of the same memory, or of another.
  void MakeMove() {
    args_.operation = ROPE_OPERATION_SHIFT;
    const int heads = r_.Pick(1, 2);
    MakeCache(&source_);
    MakeSlots(&source_, &source_slots_);
    const rope_dtype dtype = r_.Sometimes(3) ? ROPE_DTYPE_I8 : AnyDtype();
    source_.k = Pages(dtype, heads, 0, &k_scale_, source_.page_size);
    const int k = Put(&source_.k.data, 4);
    fused_.source = &source_;
    cache_ = source_;
    MakeSlots(&cache_, &slots_);
    if (r_.Sometimes(2)) slots_ = source_slots_;
    fused_.cache = &cache_;
    if (r_.Sometimes(2)) {
      PutOn(&cache_.k.data, k);
      return;
    }
    cache_.k = Pages(AnyDtype(), heads, 0, nullptr, cache_.page_size);
    Put(&cache_.k.data, 4);
  }

  void MakeGradients() {
    args_.operation = ROPE_OPERATION_BACKWARD;
    const int heads = r_.Pick(1, 2);
    args_.q = Described(AnyDtype(), heads, 0);
    const int q = Put(&args_.q.data, SizeOf(args_.q.dtype));
    if (r_.Sometimes(2)) MakeOutput(args_.q, q, &args_.q_out);
    x_ = Described(args_.q.dtype, heads, 0);
    Put(&x_.data, SizeOf(x_.dtype));
    norm_ = ROPE_INIT(rope_norm);
    norm_.kind = ROPE_NORM_KIND_RMS;
    norm_.rounding = ROPE_NORM_ROUNDING_ROUNDED;
    norm_.eps = 0.25;
    norm_.weight_dtype = ROPE_DTYPE_F32;
    norm_.weight = weight_;
    norm_.x = &x_;
    norm_.grad_parts = static_cast<int32_t>(r_.Pick(1, 2));
    Put(reinterpret_cast<void**>(&norm_.weight_grad), 4);
    fused_.q_norm = &norm_;
  }

  Random r_;
  Bytes memory_;
  std::vector<Place> places_;
  std::vector<Bytes*> homes_;
  rope_qk_args args_;
  rope_fused fused_ = ROPE_INIT(rope_fused);
  rope_kv_cache cache_ = ROPE_INIT(rope_kv_cache), source_ = ROPE_INIT(rope_kv_cache);
  std::vector<int64_t> slots_, source_slots_;
  rope_scale k_scale_{}, v_scale_{};
  rope_tensor x_{};
  rope_norm norm_{};
  float weight_[4] = {0.5f, 1.0f, 1.5f, -2.0f};  // elsewhere: no call checks where weights lie
};

TEST(OverlapFused, AcceptedCallsLeaveWhatTheyLeaveApart) {
  const int count = LongTests() ? 2000000 : ShortTests() ? 20000 : 100000;
  const Context context = Create(Config(4, ROPE_PAIRING_HALVES, 10));
  int accepted = 0, overlapping = 0, other = 0;
  Bytes together, apart;
  for (int n = 0; n < count; ++n) {
    FusedCall call(static_cast<uint64_t>(n));
    const rope_status s = call.ApplyTogether(context, &together);
    const rope_status alone = call.ApplyApart(context, &apart);
    if (s == ROPE_OK) {
      ++accepted;
      ASSERT_EQ(alone, ROPE_OK) << "call " << n << ": " << rope_last_error();
      ASSERT_TRUE(together == apart) << "call " << n;
      continue;
    }
    ASSERT_TRUE(call.IsAsBefore(together)) << "call " << n;
    ++(alone == ROPE_OK ? overlapping : other);
  }
  std::printf("  accepted %d, refused %d for what they overlap and %d for other reasons\n",
              accepted, overlapping, other);
  EXPECT_GT(accepted, count / 10);
  EXPECT_GT(overlapping, count / 20);
}

// Parts of rows in one memory, of which bytes are counted: k of two channels in two pages of two
// slots, and v of one, there or as the three tokens of the call, with strides like those of k or
// not.
TEST(OverlapFused, AcceptedPartsOfRowsMeetNowhere) {
  const Context context = Create(Config(2));
  constexpr int kSlots = 2, kPages = 2, kTokens = 3, kFirst = 8, kMost = 64;
  std::vector<float> memory(kMost), apart(kMost);
  int accepted = 0;
  const auto check = [&](bool is_input, int page, int slot, int v_page, int v_slot, int gap) {
    const int64_t to[kTokens] = {3, -1, -1};
    rope_kv_cache cache = ROPE_INIT(rope_kv_cache);
    cache.kind = ROPE_SLOTS_MAPPED;
    cache.pages = kPages;
    cache.page_size = kSlots;
    cache.slots_i64 = to;
    cache.slots_length = kTokens;
    cache.k = Tensor(&memory[kFirst], ROPE_DTYPE_F32, 1);
    SetStrides(&cache.k, page, slot, 2);
    rope_fused fused = ROPE_INIT(rope_fused);
    fused.cache = &cache;
    rope_tensor &v = is_input ? fused.v : cache.v, &other = is_input ? cache.v : fused.v;
    v = Tensor(&memory[kFirst + gap], ROPE_DTYPE_F32, 1);
    SetStrides(&v, v_page, v_slot, 1);
    other = Tensor(apart.data(), ROPE_DTYPE_F32, 1);
    if (is_input) other.layout = ROPE_LAYOUT_NHD;
    v.head_dim = other.head_dim = 1;
    rope_qk_args args = Args(1, kTokens);
    float k[2 * kTokens] = {};
    args.k = Tensor(k, ROPE_DTYPE_F32, 1);
    args.positions = Offset(1);
    args.fused = &fused;
    if (rope_apply_qk(context.get(), &args) != ROPE_OK) return;
    ++accepted;
    int uses[kMost] = {};
    for (int p = 0; p < kPages; ++p) {
      for (int s = 0; s < kSlots; ++s) {
        for (int c = 0; c < 2; ++c) ++uses[kFirst + p * page + s * slot + c];
      }
    }
    for (int p = 0; p < (is_input ? 1 : kPages); ++p) {
      for (int s = 0; s < (is_input ? kTokens : kSlots); ++s) {
        ++uses[kFirst + gap + p * v_page + s * v_slot];
      }
    }
    EXPECT_EQ(std::count_if(uses, uses + kMost, [](int n) { return n > 1; }), 0)
        << is_input << " " << page << " " << slot << " " << v_page << " " << v_slot << " " << gap;
  };
  for (int page = 0; page <= 12; ++page) {
    for (int slot = 1; slot <= 6; ++slot) {
      for (int gap = -6; gap <= 6; ++gap) {
        for (const bool is_input : {false, true}) {
          for (int more = 0; more <= 2; ++more) {
            check(is_input, page, slot, page + more, slot, gap);
            check(is_input, page, slot, page, slot + more, gap);
          }
        }
      }
    }
  }
  EXPECT_GT(accepted, 500);
}

}  // namespace
}  // namespace rope::testing
