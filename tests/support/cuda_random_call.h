// Random calls of rope_apply_qk and rope_cos_sin_fill for the tests of the CUDA backend: every
// pairing, policy, position kind, row format, layout and alignment. Uses the public API alone, and
// headers that need no library.
#ifndef LIBROPE_TESTS_SUPPORT_CUDA_RANDOM_CALL_H_
#define LIBROPE_TESTS_SUPPORT_CUDA_RANDOM_CALL_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "librope/rope.h"
#include "math/cos_sin_format.h"
#include "math/element.h"

namespace rope {

struct ContextDeleter {
  void operator()(rope_context* c) const { rope_context_destroy(c); }
};
using ContextPtr = std::unique_ptr<rope_context, ContextDeleter>;

// A tensor of the call, with the buffers that it and its output lie in.
struct NamedTensor {
  rope_tensor *in, *out;
  size_t in_buffer = 0, out_buffer = 0;
  bool present = false, in_place = true;
  bool slice = false;  // of the input or the output: the rest is not copied
};

// A call and everything it points to.
class RandomCall {
 public:
  explicit RandomCall(uint32_t seed) : random_(seed) {}

  int Pick(int low, int high) { return std::uniform_int_distribution<int>(low, high)(random_); }
  template <class T>
  T Of(std::initializer_list<T> values) {
    return *(values.begin() + Pick(0, static_cast<int>(values.size()) - 1));
  }

  void MakeContext() {
    config_ = ROPE_INIT(rope_config);
    config_.head_dim = Of({16, 24, 36, 64, 64, 72, 80, 96, 128, 128, 256, 512, 1024});
    if (config_.head_dim > 256 && Pick(0, 3) != 0) config_.head_dim = 128;
    config_.theta = 10000;
    config_.pairing = Pick(1, 4);
    config_.angle = Pick(0, 1);
    config_.rounding = Pick(0, 2);
    if (config_.pairing == ROPE_PAIRING_HALVES_PER_AXIS) {
      config_.axes = Pick(2, 4);
      int left = config_.head_dim / 2;
      for (int a = 0; a < config_.axes; ++a) {
        config_.mrope_section[a] = a + 1 == config_.axes ? left : left / 2 / 8 * Of({0, 1, 8});
        left -= config_.mrope_section[a];
      }
      return;
    }
    if (Pick(0, 3) == 0) {
      config_.scaling = ROPE_SCALING_YARN;  // an attention factor that is not 1
      config_.factor = 4;
      config_.original_max_position_embeddings = 4096;
    }
    if (Pick(0, 2) == 0) {
      config_.rotary_dim = std::min(config_.head_dim, Of({8, 16, 20, 32, 64, 128}));
      if (Pick(0, 1) == 0) {
        config_.rotary_offset = config_.head_dim - config_.rotary_dim;
        if (Pick(0, 3) == 0) config_.rotary_offset /= 2;
      }
    }
    if (Pick(0, 15) == 0) {
      config_.scaling = ROPE_SCALING_NOPE;
      config_.theta = 0;
      config_.factor = 0;
      config_.original_max_position_embeddings = 0;
      return;
    }
    if (Pick(0, 4) == 0) {
      config_.axes = Pick(2, 5);
      const int pairs = (config_.rotary_dim != 0 ? config_.rotary_dim : config_.head_dim) / 2;
      for (int i = 0; i < pairs; ++i) {
        axes_.push_back(static_cast<uint8_t>(Pick(0, config_.axes - 1)));
      }
      config_.pair_axis = axes_.data();
      config_.table_length = pairs;
    }
    if (Pick(0, 4) == 0) sets_ = Of({2, 3, 5, 40});
  }

  ContextPtr Create(rope_device device = ROPE_DEVICE_CPU) {
    config_.device = device;
    std::vector<rope_config> configs(static_cast<size_t>(sets_), config_);
    std::vector<const rope_config*> pointers;
    for (auto& c : configs) {
      c.theta *= 1.0 + 0.01 * static_cast<double>(&c - configs.data());
      pointers.push_back(&c);
    }
    rope_context* context = nullptr;
    const rope_status s = rope_context_create_sets(pointers.data(), sets_, &context);
    EXPECT_EQ(s, ROPE_OK) << rope_last_error();
    return ContextPtr(context);
  }

  std::vector<char>& Bytes(size_t size) {
    buffers_.push_back(std::make_unique<std::vector<char>>(size));
    return *buffers_.back();
  }

  rope_positions MakePositions(const rope_info& info, int64_t batch, int64_t tokens) {
    rope_positions p{};
    const bool few_axes = info.axes == 1;
    p.kind = few_axes ? Pick(1, 7) : Pick(3, 7);
    const auto position = [&]() -> int64_t {
      if (Pick(0, 9) == 0) return Of<int64_t>({INT32_MAX, -5, 8388607, 8388608, 131071, 1 << 24});
      return Pick(0, 5000);
    };
    if (batch == 1 && Pick(0, 1) == 0) {
      p.sequences = Pick(1, 40);
      std::vector<int32_t> cuts = {0, static_cast<int32_t>(tokens)};
      for (int i = 1; i < p.sequences; ++i) cuts.push_back(Pick(0, static_cast<int>(tokens)));
      std::sort(cuts.begin(), cuts.end());
      p.cu_seqlens = Copy(cuts);
    }
    const int64_t sequences = p.sequences != 0 ? p.sequences : batch;
    if (info.freq_sets > 1) {
      std::vector<int32_t> sets;
      for (int64_t i = 0; i < sequences; ++i) sets.push_back(Pick(0, sets_ - 1));
      p.freq_sets = Copy(sets);
    }
    const int64_t axes = info.axes;
    int64_t ids = 0;
    switch (p.kind) {
      case ROPE_POSITIONS_OFFSET: p.offset = Of<int64_t>({0, 77, int64_t{1} << 40, -3}); return p;
      case ROPE_POSITIONS_SEQ_OFFSETS: ids = sequences; break;
      case ROPE_POSITIONS_IDS_T: ids = tokens; break;
      case ROPE_POSITIONS_IDS_BT: ids = batch * tokens; break;
      case ROPE_POSITIONS_IDS_STRIDED:
        p.stride_axis = Pick(0, 3);
        p.stride_batch = Pick(0, 9);
        p.stride_token = Pick(0, 2);
        ids = 4 * axes + 10 * batch + 3 * tokens;
        break;
      default: ids = axes * batch * tokens;
    }
    const bool offsets = p.kind == ROPE_POSITIONS_SEQ_OFFSETS;
    switch (Pick(0, offsets ? 1 : 2)) {
      case 0: {
        std::vector<int32_t> v;
        for (int64_t i = 0; i < ids; ++i) v.push_back(static_cast<int32_t>(position()));
        (offsets ? p.offsets_i32 : p.ids_i32) = Copy(v);
        break;
      }
      case 1: {
        std::vector<int64_t> v;
        for (int64_t i = 0; i < ids; ++i) v.push_back(position() * Of<int64_t>({1, 1, 1000003}));
        (offsets ? p.offsets_i64 : p.ids_i64) = Copy(v);
        break;
      }
      default: {
        std::vector<float> v;
        for (int64_t i = 0; i < ids; ++i) {
          v.push_back(static_cast<float>(position()) * Of({1.0f, 0.37f, 1e-6f, 1e20f}));
        }
        if (Pick(0, 9) == 0) v[0] = INFINITY;
        p.ids_f32 = Copy(v);
      }
    }
    return p;
  }

  rope_cos_sin MakeRows(const rope_info& info, int64_t batch, int64_t tokens, bool write) {
    rope_cos_sin rows = ROPE_INIT(rope_cos_sin);
    rows.format = Pick(1, write ? 9 : 6);
    rows.dtype = Pick(1, 3);
    rows.pairs = info.pairs;
    rows.batch = write || Pick(0, 1) == 0 ? batch : 1;
    const int64_t width = 2 * info.pairs;
    rows.stride_token = Pick(0, 1) == 0 ? width + Pick(0, 5) : 0;
    const bool two = kCosSinFormats[rows.format].tensors == 2;
    const auto count = static_cast<size_t>(batch * tokens * (width + 6));
    for (void** data : {&rows.data, two ? &rows.sin : nullptr}) {
      if (data == nullptr) continue;
      auto& bytes = Bytes(count * 4);
      for (size_t i = 0; i < count; ++i) {
        StoreElement(rows.dtype, bytes.data(), static_cast<int64_t>(i),
                     static_cast<float>(Pick(-1000, 1000)) * 0.001f);
      }
      *data = bytes.data();
    }
    return rows;
  }

  // A whole rope_apply_qk call for contexts made by Create.
  void MakeApply(const rope_context* context) {
    rope_info info = ROPE_INIT(rope_info);
    EXPECT_EQ(rope_context_info(context, 0, &info), ROPE_OK);
    args_ = ROPE_INIT(rope_qk_args);
    args_.batch = Of({1, 1, 2, 3});
    args_.tokens = Of({1, 2, 5, 9, 17, 33});
    if (Pick(0, 3) == 0) {
      rows_ = MakeRows(info, args_.batch, args_.tokens, false);
      args_.cos_sin = &rows_;
      args_.operation = Pick(0, 1);
    } else {
      args_.positions = MakePositions(info, args_.batch, args_.tokens);
      const bool distances = args_.positions.kind >= ROPE_POSITIONS_IDS_T;
      args_.operation = Pick(0, distances ? 3 : 2);  // SHIFT takes no other kind
    }
    const rope_dtype dtype = Pick(1, 3);
    named_[0].in = &args_.q, named_[0].out = &args_.q_out;
    named_[1].in = &args_.k, named_[1].out = &args_.k_out;
    const int which = Of({3, 3, 3, 1, 2});
    for (int n = 0; n < 2; ++n) {
      if ((which >> n & 1) == 0) continue;
      NamedTensor& t = named_[n];
      t.present = true;
      t.in_place = Pick(0, 1) == 0;
      t.slice = Pick(0, 5) == 0;
      const rope_dtype own = n == 0 || Pick(0, 4) != 0 ? dtype : Pick(1, 3);
      const int heads = n == 0 ? Of({1, 3, 8, 14, 32}) : Of({1, 2, 8});
      *t.in = MakeTensor(info, own, heads, t.slice, !t.in_place);
      t.in_buffer = t.out_buffer = buffers_.size() - 1;
      if (t.in_place) continue;
      const bool out_slice = Pick(0, 5) == 0;
      *t.out = MakeTensor(info, own, heads, out_slice, false);
      t.slice = t.slice || out_slice;
      t.out_buffer = buffers_.size() - 1;
    }
  }

  // A tensor with a buffer of its own; its bytes are random numbers, and a few special ones.
  rope_tensor MakeTensor(const rope_info& info, rope_dtype dtype, int heads, bool slice,
                         bool input_only) {
    const int64_t batch = args_.batch, tokens = args_.tokens;
    rope_tensor t{};
    t.dtype = dtype;
    t.heads = heads;
    t.head_dim = slice ? info.rotary_dim : 0;
    const int64_t dim = slice ? info.rotary_dim : info.head_dim;
    const int element = ElementSize(dtype);
    t.layout = Pick(1, 4);
    int64_t elements = batch * tokens * heads * dim;
    if (t.layout == ROPE_LAYOUT_STRIDED) {
      const int64_t pad = Of({0, 1, 2, 8, 16});
      t.stride_head = dim + pad;
      t.stride_token = heads * t.stride_head + Of({0, 8, 3});
      t.stride_batch = tokens * t.stride_token;
      if (Pick(0, 2) == 0) {  // heads outside of tokens
        t.stride_token = dim + pad;
        t.stride_head = tokens * t.stride_token;
        t.stride_batch = heads * t.stride_head;
      }
      elements = batch * t.stride_batch;
      if (input_only && Pick(0, 2) == 0) t.stride_head = 0;
    }
    const int shift = Pick(0, 3) == 0 ? Pick(0, 9) : 0;
    auto& bytes = Bytes(static_cast<size_t>((elements + 64) * element + 128));
    for (size_t i = 0; i < bytes.size() / static_cast<size_t>(element); ++i) {
      float value = static_cast<float>(Pick(-100000, 100000)) * 0.0001f;
      if (Pick(0, 99) == 0) value = Of({0.0f, -0.0f, INFINITY, 1e-7f, -1e-41f, 65504.0f, 1e38f});
      StoreElement(dtype, bytes.data(), static_cast<int64_t>(i), value);
    }
    const auto base = reinterpret_cast<uintptr_t>(bytes.data()) + 63;
    t.data = reinterpret_cast<char*>(base / 64 * 64) + shift * element;
    return t;
  }

  template <class T>
  const T* Copy(const std::vector<T>& values) {
    auto& bytes = Bytes(values.size() * sizeof(T));
    std::memcpy(bytes.data(), values.data(), bytes.size());
    return reinterpret_cast<const T*>(bytes.data());
  }

  // All bytes, so that two runs can start from the same.
  std::vector<std::vector<char>> Snapshot() const {
    std::vector<std::vector<char>> all;
    for (const auto& b : buffers_) all.push_back(*b);
    return all;
  }
  void Restore(const std::vector<std::vector<char>>& all) {
    for (size_t i = 0; i < all.size(); ++i) *buffers_[i] = all[i];
  }

  rope_config config_;
  rope_qk_args args_;
  rope_cos_sin rows_;
  NamedTensor named_[2];
  int sets_ = 1;
  std::vector<uint8_t> axes_;
  std::vector<std::unique_ptr<std::vector<char>>> buffers_;
  std::mt19937 random_;
};

// Equal bits, or NaN in both.
inline bool IsSame(rope_dtype dtype, const char* a, const char* b, int64_t index) {
  if (std::memcmp(a + index * ElementSize(dtype), b + index * ElementSize(dtype),
                  static_cast<size_t>(ElementSize(dtype))) == 0) {
    return true;
  }
  const float x = LoadElement(dtype, a, index), y = LoadElement(dtype, b, index);
  return x != x && y != y;
}

}  // namespace rope

#endif  // LIBROPE_TESTS_SUPPORT_CUDA_RANDOM_CALL_H_
