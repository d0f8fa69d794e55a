// Calls that do more than rotate, on tensors that lie anywhere in a small memory: an accepted one
// leaves what it leaves where each tensor has a copy of that memory for itself, and a refused one
// writes nothing. Covers v, rest, outputs, caches, what is moved in them, codes of 8 bits and their
// scales, repeated heads, and gradients of norms.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
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

using Bytes = std::vector<char>;

// What a call has that others have not.
enum Feature {
  kMove,
  kMoveInPlace,
  kCodes,
  kBlocks,         // of Q8_0
  kBytesOfScales,  // E8M0
  kGroups,         // scales for parts of a head
  kScalesInPages,  // behind the codes of each page
  kRest,
  kRepeatedHeads,
  kRepeatedRows,  // positions that batch rows share
  kBiasGrad,
  kGradOfHeads,  // weights of each head
  kFeatures
};
constexpr const char* kNames[] = {
    "moves",          "moves in place", "codes",           "Q8_0",
    "E8M0",           "groups",         "scales in pages", "rest",
    "repeated heads", "repeated rows",  "bias_grad",       "gradients of each head"};
static_assert(std::size(kNames) == kFeatures);

// A call whose structs can be pointed anywhere.
class FusedCall {
 public:
  explicit FusedCall(uint64_t seed)
      : r_(seed), dim_(r_.Sometimes(8) ? 32 : 4), far_(dim_ == 4 ? 320 : 1280), memory_(24 * far_) {
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

  int dim() const { return dim_; }
  bool Has(Feature feature) const { return has_[feature]; }

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
      if (*copy == memory_) continue;
      for (size_t i = 0; i < memory_.size(); ++i) {
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

  // Exactly where another is, near the others, or so that they may be apart. No tensor has more
  // than four times far_.
  int Put(void** at, int size) {
    const auto count = static_cast<int64_t>(places_.size());
    const int64_t near = r_.Below(far_ / size) * size;
    const int64_t offset = count > 0 && r_.Sometimes(16)
                               ? places_[r_.Below(count)].offset / size * size
                           : r_.Sometimes(8) ? near
                                             : (count * far_ + near / 8) / size * size;
    places_.push_back({at, offset % (static_cast<int64_t>(memory_.size()) - 4 * far_), -1});
    return static_cast<int>(places_.size()) - 1;
  }
  // In place.
  int PutOn(void** at, int other) {
    places_.push_back({at, places_[other].offset, other});
    return static_cast<int>(places_.size()) - 1;
  }
  // As many bytes behind another, or not quite.
  void PutBehind(void** at, int other, int64_t bytes, int size) {
    const int64_t more = r_.Sometimes(4) ? r_.Pick(-3, 3) * size : 0;
    places_.push_back({at, std::max<int64_t>(0, places_[other].offset + bytes + more), -1});
  }

  static int AlignmentOf(rope_dtype dtype) {
    return dtype == ROPE_DTYPE_Q8_0 ? 2 : dtype > ROPE_DTYPE_BF16 ? 1 : SizeOf(dtype);
  }
  rope_dtype AnyDtype() { return r_.Pick(ROPE_DTYPE_F32, ROPE_DTYPE_F16); }
  rope_dtype AnyCodes(int width) {
    has_[kCodes] = true;
    if (width % 32 != 0 || !r_.Sometimes(2)) return r_.Pick(ROPE_DTYPE_F8_E4M3, ROPE_DTYPE_I8);
    has_[kBlocks] = true;
    return ROPE_DTYPE_Q8_0;
  }
  int AnyWidth() { return dim_ == 32 ? 32 : r_.Pick(1, 5); }

  rope_tensor Described(rope_dtype dtype, int heads, int width) {
    rope_tensor t = Tensor(nullptr, dtype, heads, r_.Pick(1, 3));
    t.head_dim = width;
    const int step = dim_ == 4 ? 1 : r_.Of({8, 32});
    const auto stride = [&](int most) { return r_.Pick(0, most * dim_ / 4 / step) * step; };
    if (r_.Sometimes(3)) SetStrides(&t, stride(48), stride(24), stride(12));
    return t;
  }

  // The scales of codes, in rows of `inner` tokens or slots; of heads of `width` channels.
  rope_scale* MakeScale(int heads, int width, int64_t inner) {
    rope_scale* const scale = &scales_[scales_used_++];
    *scale = ROPE_INIT(rope_scale);
    if (r_.Sometimes(4)) {
      scale->value = 0.25f;
      return scale;
    }
    scale->computed = r_.Sometimes(2) ? 1 : 0;
    scale->dtype = r_.Of({ROPE_DTYPE_F32, ROPE_DTYPE_E8M0});
    has_[kBytesOfScales] |= scale->dtype == ROPE_DTYPE_E8M0;
    scale->power_of_two = scale->computed != 0 && scale->dtype == ROPE_DTYPE_E8M0 ? 1 : 0;
    scale->group = r_.Sometimes(2) ? 0 : width % 2 == 0 ? width / 2 : 1;
    const int groups = scale->group == 0 ? 1 : width / scale->group;
    has_[kGroups] |= groups > 1;
    scale->stride_head = groups;
    scale->stride_token = int64_t{heads} * groups;
    scale->stride_batch = inner * heads * groups;
    return scale;
  }
  static int SizeOfScale(const rope_scale& scale) { return scale.dtype == ROPE_DTYPE_F32 ? 4 : 1; }

  // An output of `in` at one of its places: the same, or any.
  void MakeOutput(const rope_tensor& in, int place, rope_tensor* out) {
    *out = in;
    if (r_.Sometimes(2)) {
      PutOn(&out->data, place);
    } else {
      MakeOutputApart(in, out);
    }
  }
  void MakeOutputApart(const rope_tensor& in, rope_tensor* out) {
    *out = in;
    if (r_.Sometimes(2)) *out = Described(in.dtype, in.heads, in.head_dim);
    if (args_.operation != ROPE_OPERATION_BACKWARD) {
      if (fused_.source == nullptr && r_.Sometimes(3)) {
        out->heads *= 2;
        has_[kRepeatedHeads] = true;
      }
      const int width = in.head_dim != 0 ? in.head_dim : dim_;
      if (r_.Sometimes(4)) out->dtype = AnyCodes(width);
      if (out->dtype > ROPE_DTYPE_BF16 && out->dtype != ROPE_DTYPE_Q8_0) {
        rope_scale* const scale = MakeScale(out->heads, width, args_.tokens);
        if (scale->value == 0) Put(&scale->data, SizeOfScale(*scale));
        out->scale = scale;
      }
    }
    Put(&out->data, AlignmentOf(out->dtype));
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
  // Of k or v of a cache. Returns its place.
  int MakePages(const rope_kv_cache& cache, rope_dtype dtype, int heads, int head_dim,
                rope_tensor* t) {
    const int width = head_dim != 0 ? head_dim : dim_;
    if (r_.Sometimes(3)) dtype = AnyCodes(width);
    *t = Tensor(nullptr, dtype, heads, r_.Of({ROPE_LAYOUT_NHD, ROPE_LAYOUT_HND}));
    t->head_dim = head_dim;
    const int place = Put(&t->data, AlignmentOf(dtype));
    if (dtype <= ROPE_DTYPE_BF16 || dtype == ROPE_DTYPE_Q8_0) return place;
    rope_scale* const scale = MakeScale(heads, width, cache.page_size);
    t->scale = scale;
    if (scale->value != 0) return place;
    const int size = SizeOfScale(*scale);
    if (r_.Sometimes(2)) {
      Put(&scale->data, size);
      return place;
    }
    // Pages of codes with their scales behind them.
    has_[kScalesInPages] = true;
    const int64_t codes = int64_t{cache.page_size} * heads * width,
                  first = (codes + size - 1) / size * size;
    places_[place].offset = places_[place].offset / size * size;
    PutBehind(&scale->data, place, first, size);
    const int64_t page = first + scale->stride_batch * size;
    SetStrides(t, page, int64_t{heads} * width, width);
    scale->stride_batch = page / size;
    return place;
  }

  // Described as others, elsewhere; the scales now and then exactly where those of the others are.
  void MakePagesLike(const rope_tensor& other, rope_tensor* t) {
    *t = other;
    Put(&t->data, AlignmentOf(t->dtype));
    if (t->scale == nullptr || t->scale->value != 0) return;
    rope_scale* const scale = &scales_[scales_used_++];
    *scale = *other.scale;
    t->scale = scale;
    const int place = Put(&scale->data, SizeOfScale(*scale));
    if (!r_.Sometimes(3)) return;
    for (const Place& of_other : places_) {
      if (of_other.at == &other.scale->data) places_[place].offset = of_other.offset;
    }
  }

  void ShareRows() {
    if (args_.batch == 1 || !r_.Sometimes(3)) return;
    args_.positions.batch_repeat = args_.batch;
    has_[kRepeatedRows] = true;
  }

  void MakeAppend() {
    const int heads = r_.Pick(1, 2), width = AnyWidth();
    args_.k = Described(AnyDtype(), heads, 0);
    const int k = Put(&args_.k.data, SizeOf(args_.k.dtype));
    fused_.v = Described(AnyDtype(), heads, width);
    const int v = Put(&fused_.v.data, SizeOf(fused_.v.dtype));
    if (r_.Sometimes(2)) {
      args_.q = Described(AnyDtype(), r_.Pick(1, 2), 0);
      const int q = Put(&args_.q.data, SizeOf(args_.q.dtype));
      if (r_.Sometimes(3)) MakeOutput(args_.q, q, &args_.q_out);
    }
    if (r_.Sometimes(3)) {
      has_[kRest] = true;
      fused_.rest = Described(AnyDtype(), r_.Pick(1, 2), AnyWidth());
      const int rest = Put(&fused_.rest.data, SizeOf(fused_.rest.dtype));
      MakeOutput(fused_.rest, rest, &fused_.rest_out);
    }
    if (r_.Sometimes(2)) MakeOutput(args_.k, k, &args_.k_out);
    const bool out = r_.Sometimes(2);
    if (out) MakeOutput(fused_.v, v, &fused_.v_out);
    if (out && r_.Sometimes(3)) {
      ShareRows();
      return;
    }
    MakeCache(&cache_);
    MakeSlots(&cache_, &slots_);
    MakePages(cache_, args_.k.dtype, heads, 0, &cache_.k);
    MakePages(cache_, fused_.v.dtype, heads, width, &cache_.v);
    fused_.cache = &cache_;
  }

  // From slots to others of the same memory, or of another, or in their slots.
  void MakeMove() {
    has_[kMove] = true;
    args_.operation =
        r_.Of({ROPE_OPERATION_FORWARD, ROPE_OPERATION_SHIFT, ROPE_OPERATION_REROTATE});
    if (args_.operation == ROPE_OPERATION_SHIFT) {  // all by one distance
      args_.positions = Ids(ROPE_POSITIONS_IDS_STRIDED, &distance_);
    } else if (args_.operation == ROPE_OPERATION_REROTATE) {
      from_ = Offset(7);
      fused_.from_positions = &from_;
    }
    const int heads = r_.Pick(1, 2), width = AnyWidth();
    const bool has_v = r_.Sometimes(2);
    MakeCache(&source_);
    MakeSlots(&source_, &source_slots_);
    fused_.source = &source_;
    const int k = MakePages(source_, AnyDtype(), heads, 0, &source_.k),
              v = has_v ? MakePages(source_, AnyDtype(), heads, width, &source_.v) : 0;
    cache_ = source_;
    MakeSlots(&cache_, &slots_);
    if (r_.Sometimes(2)) slots_ = source_slots_;
    fused_.cache = &cache_;
    const auto make_destination = [&](const rope_tensor& from, int place, rope_tensor* to) {
      if (r_.Sometimes(2)) {
        has_[kMoveInPlace] = true;
        PutOn(&to->data, place);
      } else if (r_.Sometimes(2)) {
        MakePagesLike(from, to);
      } else {
        MakePages(cache_, AnyDtype(), heads, from.head_dim, to);
      }
    };
    make_destination(source_.k, k, &cache_.k);
    if (has_v) make_destination(source_.v, v, &cache_.v);
    const auto make_output = [&](int head_dim, rope_tensor* out) {
      if (r_.Sometimes(4)) MakeOutputApart(Described(AnyDtype(), heads, head_dim), out);
    };
    make_output(0, &args_.k_out);
    if (has_v) make_output(width, &fused_.v_out);
  }

  // The gradient of q, k or v, of what FORWARD was given, and of weights and biases.
  void MakeGradient(int i, rope_tensor* in, rope_tensor* out, const rope_norm** of, int head_dim) {
    const int heads = r_.Pick(1, 2), width = head_dim != 0 ? head_dim : dim_;
    const int repeats = r_.Sometimes(3) ? 2 : 1;
    has_[kRepeatedHeads] |= repeats > 1;
    *in = Described(AnyDtype(), heads * repeats, head_dim);
    const int place = Put(&in->data, SizeOf(in->dtype));
    if (repeats > 1) {
      MakeOutputApart(Described(in->dtype, heads, head_dim), out);
    } else if (head_dim != 0 || r_.Sometimes(2)) {
      MakeOutput(*in, place, out);
    }
    x_[i] = Described(in->dtype, heads, head_dim);
    Put(&x_[i].data, SizeOf(in->dtype));
    rope_norm& norm = norms_[i];
    norm = ROPE_INIT(rope_norm);
    norm.kind = r_.Of({ROPE_NORM_KIND_RMS, ROPE_NORM_KIND_LAYER_BIAS});
    norm.rounding = ROPE_NORM_ROUNDING_ROUNDED;
    norm.eps = 0.25;
    norm.weight_dtype = ROPE_DTYPE_F32;
    norm.weight = weights_.data();
    if (norm.kind == ROPE_NORM_KIND_LAYER_BIAS) norm.bias = weights_.data();
    norm.x = &x_[i];
    if (r_.Sometimes(2)) {
      norm.weight_stride_head = width;
      has_[kGradOfHeads] |= heads > 1;
    }
    norm.grad_parts = 1 + static_cast<int>(args_.tokens % 2);
    Put(reinterpret_cast<void**>(&norm.weight_grad), 4);
    if (norm.bias != nullptr) {
      Put(reinterpret_cast<void**>(&norm.bias_grad), 4);
      has_[kBiasGrad] = true;
    }
    *of = &norm;
  }

  void MakeGradients() {
    args_.operation = ROPE_OPERATION_BACKWARD;
    MakeGradient(0, &args_.q, &args_.q_out, &fused_.q_norm, 0);
    if (r_.Sometimes(3)) MakeGradient(1, &args_.k, &args_.k_out, &fused_.k_norm, 0);
    if (r_.Sometimes(3)) MakeGradient(2, &fused_.v, &fused_.v_out, &fused_.v_norm, AnyWidth());
    ShareRows();
  }

  Random r_;
  const int dim_, far_;  // channels of k, and bytes from tensor to tensor
  Bytes memory_;
  std::array<bool, kFeatures> has_{};
  std::vector<Place> places_;
  std::vector<Bytes*> homes_;
  rope_qk_args args_;
  rope_fused fused_ = ROPE_INIT(rope_fused);
  rope_positions from_{};
  const int64_t distance_ = -3;
  rope_kv_cache cache_ = ROPE_INIT(rope_kv_cache), source_ = ROPE_INIT(rope_kv_cache);
  std::vector<int64_t> slots_, source_slots_;
  std::array<rope_scale, 6> scales_{};
  size_t scales_used_ = 0;
  std::array<rope_tensor, 3> x_{};
  std::array<rope_norm, 3> norms_{};
  // Elsewhere: no call checks where weights lie.
  const std::vector<float> weights_ = std::vector<float>(64, 1.5f);
};

TEST(OverlapFused, AcceptedCallsLeaveWhatTheyLeaveApart) {
  const int count = LongTests() ? 2000000 : ShortTests() ? 20000 : 100000;
  const Context narrow = Create(Config(4, ROPE_PAIRING_HALVES, 10)), wide = Create(Config(32));
  int accepted = 0, overlapping = 0, other = 0;
  std::array<int, kFeatures> with{};
  Bytes together, apart;
  for (int n = 0; n < count; ++n) {
    FusedCall call(static_cast<uint64_t>(n));
    const Context& context = call.dim() == 4 ? narrow : wide;
    const rope_status s = call.ApplyTogether(context, &together);
    const rope_status alone = call.ApplyApart(context, &apart);
    if (s == ROPE_OK) {
      ++accepted;
      ASSERT_EQ(alone, ROPE_OK) << "call " << n << ": " << rope_last_error();
      ASSERT_TRUE(together == apart) << "call " << n;
      for (int f = 0; f < kFeatures; ++f) with[f] += call.Has(static_cast<Feature>(f));
      continue;
    }
    ASSERT_TRUE(call.IsAsBefore(together)) << "call " << n;
    ++(alone == ROPE_OK ? overlapping : other);
  }
  std::printf("  accepted %d, refused %d for what they overlap and %d for other reasons\n",
              accepted, overlapping, other);
  EXPECT_GT(accepted, count / 10);
  EXPECT_GT(overlapping, count / 20);
  for (int f = 0; f < kFeatures; ++f) {
    std::printf("  %d accepted with %s\n", with[f], kNames[f]);
    EXPECT_GT(with[f], count / 100) << kNames[f];
  }
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
