// A random valid call of the C API, all from one seed: config, positions or rows, tensors. Apart
// from support/random_call.h, which grows with the library: hashes of two versions can be compared
// only if both draw the same numbers for the same calls, so this draws what it always drew. Numbers
// stand in place of the names of enumerators for the same reason.
#ifndef LIBROPE_TESTS_BITS_CALL_H_
#define LIBROPE_TESTS_BITS_CALL_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "hash.h"
#include "librope/rope.h"
#include "support/random.h"

namespace bits {

inline constexpr int kBytes = 0, kF32 = 1, kBf16 = 3;  // dtypes; bytes: no numbers, but codes
inline constexpr int kStrided = 4;                     // layout
inline constexpr int kPerAxis = 4;                     // pairing
inline constexpr uint32_t kFirstInfo = 64;             // rope_info before it had freq_heads
inline constexpr int kSplit = 3, kFullHalves = 4, kFullInterleaved = 5;  // formats of rows
inline constexpr int kIdsT = 3;  // the first kind of positions with ids

inline int SizeOf(int dtype) { return dtype == kF32 ? 4 : 2; }

// Makes every NaN of a buffer the same.
inline void UnifyNans(int dtype, std::vector<char>* bytes) {
  if (dtype == kF32) {
    for (size_t i = 0; i + 4 <= bytes->size(); i += 4) {
      uint32_t bits;
      std::memcpy(&bits, &(*bytes)[i], 4);
      if ((bits & 0x7fffffffu) > 0x7f800000u) bits = 0x7fc00000u;
      std::memcpy(&(*bytes)[i], &bits, 4);
    }
    return;
  }
  const uint16_t infinity = dtype == kBf16 ? 0x7f80 : 0x7c00,
                 nan = dtype == kBf16 ? 0x7fc0 : 0x7e00;
  for (size_t i = 0; i + 2 <= bytes->size(); i += 2) {
    uint16_t bits;
    std::memcpy(&bits, &(*bytes)[i], 2);
    if ((bits & 0x7fff) > infinity) bits = nan;
    std::memcpy(&(*bytes)[i], &bits, 2);
  }
}

using rope::testing::Random;

// Config, arrays and tensors of one call, all from one seed.
class Call {
 public:
  // own_frequencies: those of the caller, else theta and a scaling.
  Call(uint64_t seed, bool own_frequencies) : random_(seed), own_(own_frequencies) {}
  ~Call() { rope_context_destroy(context_); }
  Call(const Call&) = delete;

  void MakeConfig() {
    Random& r = random_;
    config_ = ROPE_INIT(rope_config);
    rope_config& c = config_;
    c.head_dim = r.Of(
        {2, 4, 6, 10, 16, 24, 34, 36, 64, 64, 66, 72, 80, 96, 128, 128, 192, 256, 258, 512, 1024});
    if (c.head_dim > 128 && !r.Sometimes(4)) c.head_dim = 128;
    c.pairing = r.Pick(1, 4);
    c.rounding = r.Pick(0, 2);
    c.angle = r.Pick(0, 1);
    if (r.Sometimes(2)) c.attention_factor = 0.7 + 0.1 * r.Pick(0, 8);
    if (r.Sometimes(3)) {
      c.rotary_dim = r.Sometimes(2) ? std::min(c.head_dim, r.Of({8, 16, 20, 32, 64, 128}))
                                    : 2 * r.Pick(1, c.head_dim / 2);
      if (r.Sometimes(2))
        c.rotary_offset = r.Of({c.head_dim - c.rotary_dim, (c.head_dim - c.rotary_dim) / 2});
    }
    const int pairs = (c.rotary_dim != 0 ? c.rotary_dim : c.head_dim) / 2;
    if (r.Sometimes(20)) {
      c.scaling = 7;  // NOPE
      c.attention_factor = 0;
    } else if (own_) {
      MakeInvFreq(pairs);
    } else {
      MakeScaling(pairs);
    }
    const int table = c.scaling == 6 ? c.head_dim / 2 : pairs;
    if (c.pairing == kPerAxis || r.Sometimes(4)) MakeAxes(table);
    if (c.inv_freq != nullptr || c.pair_axis != nullptr || c.freq_factors != nullptr ||
        c.short_factor != nullptr) {
      c.table_length = table;
    }
    if (r.Sometimes(5)) sets_ = r.Of({2, 3, 5, 40});
  }

  rope_status Create() {
    std::vector<rope_config> configs(static_cast<size_t>(sets_), config_);
    std::vector<const rope_config*> pointers;
    std::vector<std::vector<double>> tables(configs.size());
    for (size_t n = 0; n < configs.size(); ++n) {
      rope_config& c = configs[n];
      c.theta *= 1 + 0.01 * static_cast<double>(n);
      c.attention_factor *= 1 + factor_step_ * static_cast<double>(n);
      if (c.inv_freq != nullptr) {
        for (int i = 0; i < c.table_length; ++i)
          tables[n].push_back(c.inv_freq[i] * (1 - 0.01 * static_cast<double>(n)));
        c.inv_freq = tables[n].data();
      }
      pointers.push_back(&c);
    }
    return rope_context_create_sets(pointers.data(), sets_, &context_);
  }

  // Frequencies and facts of every set.
  void HashInfo(Hash* hash) {
    for (int n = 0; n < sets_; ++n) {
      info_ = ROPE_INIT(rope_info);
      info_.struct_size = kFirstInfo;  // what was added since is not hashed
      hash->Status(rope_context_info(context_, n, &info_));
      hash->Bytes(&info_, kFirstInfo);
      std::vector<double> values(static_cast<size_t>(info_.pairs));
      hash->Status(rope_context_inv_freq(context_, n, values.data(), info_.pairs));
      hash->Bytes(values.data(), values.size() * sizeof(double));
    }
  }

  void MakeArgs(int64_t tokens = 0) {
    Random& r = random_;
    args_ = ROPE_INIT(rope_qk_args);
    args_.batch = r.Of({1, 1, 2, 3});
    args_.tokens = tokens != 0 ? tokens : r.Of({1, 1, 2, 3, 5, 9, 17, 33});
    if (config_.head_dim > 128 && tokens == 0) args_.tokens = std::min<int64_t>(args_.tokens, 5);
    if (r.Sometimes(4)) {
      rows_ = MakeRows(false);
      args_.cos_sin = &rows_;
      args_.operation = r.Pick(0, 1);
    } else {
      args_.positions = MakePositions();
      args_.operation = r.Pick(0, args_.positions.kind >= kIdsT ? 3 : 2);
    }
    const int which = r.Of({3, 3, 3, 1, 2}), dtype = r.Pick(1, 3);
    for (int n = 0; n < 2; ++n) {
      if ((which >> n & 1) == 0) continue;
      const int own = r.Sometimes(4) ? r.Pick(1, 3) : dtype;
      const int heads = n == 0 ? r.Of({1, 3, 4, 8, 14}) : r.Of({1, 2, 8});
      const bool in_place = r.Sometimes(2);
      (n == 0 ? args_.q : args_.k) = MakeTensor(own, heads, !in_place);
      if (!in_place) (n == 0 ? args_.q_out : args_.k_out) = MakeTensor(own, heads, false);
    }
  }

  void HashBuffers(Hash* hash) {
    for (Buffer& b : buffers_) {
      if (b.dtype != kBytes) UnifyNans(b.dtype, &b.bytes);
      hash->Bytes(b.bytes.data(), b.bytes.size());
    }
  }

  // rope_cos_sin_fill of random rows.
  void Fill(Hash* hash) {
    args_ = ROPE_INIT(rope_qk_args);
    args_.batch = random_.Of({1, 1, 2, 3});
    args_.tokens = random_.Of({1, 2, 5, 9, 17});
    const rope_positions positions = MakePositions();
    const rope_cos_sin rows = MakeRows(true);
    hash->Status(
        rope_cos_sin_fill(context_, args_.batch, args_.tokens, &positions, &rows, nullptr));
    HashBuffers(hash);
  }

  // rope_apply_thd, where the context allows it.
  void ShortCall(Hash* hash) {
    const int tokens = random_.Pick(1, 9), dtype = random_.Pick(1, 3);
    std::vector<int64_t> positions;
    for (int i = 0; i < tokens; ++i) positions.push_back(Position());
    const auto tensor = [&](int heads) {
      return NewBuffer(dtype, static_cast<size_t>(tokens) * static_cast<size_t>(heads) *
                                  static_cast<size_t>(config_.head_dim))
          .bytes.data();
    };
    char* q = tensor(4);
    char* k = tensor(2);
    hash->Status(rope_apply_thd(context_, dtype, tokens, positions.data(), q, 4, k, 2));
    HashBuffers(hash);
  }

  Random& random() { return random_; }
  rope_config config_;
  rope_qk_args args_;
  rope_cos_sin rows_;
  rope_context* context_ = nullptr;
  rope_info info_;
  double factor_step_ = 0;  // by which attention factors grow from set to set

  struct Buffer {
    int dtype;
    std::vector<char> bytes;
  };

  // `elements` elements, most of them small numbers; a few special ones, and one NaN.
  Buffer& NewBuffer(int dtype, size_t elements) {
    buffers_.push_back(
        {dtype, std::vector<char>((elements + 64) * static_cast<size_t>(SizeOf(dtype)))});
    Buffer& b = buffers_.back();
    for (size_t i = 0; i < b.bytes.size(); i += 8) {
      uint64_t bits = random_.Next();
      const bool special = (bits >> 60) == 0 && (bits >> 56 & 1) == 0;
      if (dtype == kF32) {  // from 2^-7 to 2^8
        if (!special) bits = (bits & 0x87ffffff87ffffffu) + 0x3c0000003c000000u;
        bits = WithoutNans<uint32_t>(bits, 0x7f800000u);
      } else if (dtype == kBf16) {
        if (!special) bits = (bits & 0x87ff87ff87ff87ffu) + 0x3c003c003c003c00u;
        bits = WithoutNans<uint16_t>(bits, 0x7f80u);
      } else {
        if (!special) bits = (bits & 0x9fff9fff9fff9fffu) + 0x2000200020002000u;
        bits = WithoutNans<uint16_t>(bits, 0x7c00u);
      }
      std::memcpy(&b.bytes[i], &bits, std::min<size_t>(8, b.bytes.size() - i));
    }
    return b;
  }

  rope_tensor MakeTensor(int dtype, int heads, bool input_only) {
    Random& r = random_;
    rope_tensor t{};
    t.dtype = dtype;
    t.heads = heads;
    const bool slice = r.Sometimes(6);
    t.head_dim = slice ? info_.rotary_dim : r.Of({0, info_.head_dim});
    const int64_t dim = slice ? info_.rotary_dim : info_.head_dim;
    const int64_t batch = args_.batch, tokens = args_.tokens;
    t.layout = r.Pick(1, 4);
    int64_t elements = batch * tokens * heads * dim;
    if (t.layout == kStrided) {
      const int64_t pad = r.Of({0, 1, 2, 8, 16});
      t.stride_head = dim + pad;
      t.stride_token = heads * t.stride_head + r.Of({0, 8, 3});
      t.stride_batch = tokens * t.stride_token;
      if (r.Sometimes(3)) {  // heads outside of tokens
        t.stride_token = dim + pad;
        t.stride_head = tokens * t.stride_token;
        t.stride_batch = heads * t.stride_head;
      }
      elements = batch * t.stride_batch;
      if (input_only && r.Sometimes(3)) t.stride_head = 0;
    }
    const int shift = r.Sometimes(4) ? r.Pick(0, 9) : 0;
    Buffer& b = NewBuffer(dtype, static_cast<size_t>(elements) + 64);
    const auto base = reinterpret_cast<uintptr_t>(b.bytes.data());
    const auto aligned = (base + 63) / 64 * 64 + static_cast<uintptr_t>(shift * SizeOf(dtype));
    // Where the buffer lies must not decide what it holds behind the tensor.
    std::rotate(b.bytes.begin(), b.bytes.end() - static_cast<int64_t>(aligned - base),
                b.bytes.end());
    t.data = b.bytes.data() + (aligned - base);
    shifts_.push_back({buffers_.size() - 1, aligned - base});
    return t;
  }

  // Undoes what MakeTensor did for alignment.
  void Unshift() {
    for (const auto& [index, by] : shifts_) {
      auto& bytes = buffers_[index].bytes;
      std::rotate(bytes.begin(), bytes.begin() + static_cast<int64_t>(by), bytes.end());
    }
  }

 protected:
  template <class T>
  const T* Keep(const std::vector<T>& values) {
    auto bytes = std::make_unique<std::vector<char>>(values.size() * sizeof(T) + 1);
    std::memcpy(bytes->data(), values.data(), values.size() * sizeof(T));
    arrays_.push_back(std::move(bytes));
    return reinterpret_cast<const T*>(arrays_.back()->data());
  }

  rope_positions MakePositions() {
    Random& r = random_;
    rope_positions p{};
    const int64_t batch = args_.batch, tokens = args_.tokens;
    p.kind = r.Pick(info_.axes == 1 ? 1 : kIdsT, 7);
    if (batch == 1 && r.Sometimes(2)) {
      p.sequences = r.Pick(1, 20);
      std::vector<int32_t> cuts = {0, static_cast<int32_t>(tokens)};
      for (int i = 1; i < p.sequences; ++i)
        cuts.push_back(static_cast<int32_t>(r.Below(tokens + 1)));
      std::sort(cuts.begin(), cuts.end());
      p.cu_seqlens = Keep(cuts);
    }
    const int64_t sequences = p.sequences != 0 ? p.sequences : batch;
    if (sets_ > 1) {
      std::vector<int32_t> sets;
      for (int64_t i = 0; i < sequences; ++i) sets.push_back(static_cast<int32_t>(r.Below(sets_)));
      p.freq_sets = Keep(sets);
    }
    int64_t ids = 0;
    switch (p.kind) {
      case 1:
        p.offset = config_.seq_len != 0 ? 3 : r.Of<int64_t>({0, 77, int64_t{1} << 40, -3});
        return p;
      case 2: ids = sequences; break;
      case 3: ids = tokens; break;
      case 4: ids = batch * tokens; break;
      case 7:
        p.stride_axis = r.Pick(0, 3);
        p.stride_batch = r.Pick(0, 9);
        p.stride_token = r.Pick(0, 2);
        ids = 3 * info_.axes + 9 * batch + 2 * tokens;
        break;
      default: ids = info_.axes * batch * tokens;
    }
    const bool offsets = p.kind == 2, bounded = config_.seq_len != 0;
    switch (r.Pick(0, offsets ? 1 : 2)) {
      case 0: (offsets ? p.offsets_i32 : p.ids_i32) = Numbers<int32_t>(ids, 1); break;
      case 1:
        (offsets ? p.offsets_i64 : p.ids_i64) =
            Numbers<int64_t>(ids, bounded ? 1 : r.Of({1, 1, 1000003}));
        break;
      default: {
        std::vector<float> values;
        for (int64_t i = 0; i < ids; ++i) {
          values.push_back(static_cast<float>(Position()) *
                           (bounded ? 1.0f : r.Of({1.0f, 0.37f, 1e-6f, 1e20f})));
        }
        if (!bounded && r.Sometimes(9)) values[0] = INFINITY;
        p.ids_f32 = Keep(values);
      }
    }
    return p;
  }

  rope_cos_sin MakeRows(bool write) {
    Random& r = random_;
    rope_cos_sin rows = ROPE_INIT(rope_cos_sin);
    rows.format = r.Pick(1, write ? 9 : 6);
    rows.dtype = rows.format >= 8 ? kF32 : r.Pick(1, 3);
    rows.pairs = info_.pairs;
    rows.batch = write || r.Sometimes(2) ? args_.batch : 1;
    const int64_t width = 2 * info_.pairs;
    rows.stride_token = r.Sometimes(2) ? width + r.Pick(0, 5) : 0;
    const auto count = static_cast<size_t>(args_.batch * args_.tokens * (width + 5));
    const bool two =
        rows.format == kSplit || rows.format == kFullHalves || rows.format == kFullInterleaved;
    for (void** data : {&rows.data, &rows.sin}) {
      if (data == &rows.sin && !two) continue;
      Buffer& b = NewBuffer(rows.dtype, count);
      if (!write && r.Sometimes(30)) {  // a NaN as the models' own code would give
        const uint32_t nan = rows.dtype == kF32    ? 0x7fc00000u
                             : rows.dtype == kBf16 ? 0x7fc0u
                                                   : 0x7e00u;
        std::memcpy(&b.bytes[0], &nan, static_cast<size_t>(SizeOf(rows.dtype)));
      }
      *data = b.bytes.data();
    }
    return rows;
  }

 private:
  template <class T>
  static uint64_t WithoutNans(uint64_t bits, uint64_t infinity) {
    for (size_t at = 0; at < 64; at += 8 * sizeof(T)) {
      const uint64_t low = static_cast<T>(bits >> at);
      const uint64_t magnitude = low & (static_cast<T>(~T{0}) >> 1);
      if (magnitude > infinity) bits ^= (magnitude & ~infinity) << at;  // infinity
    }
    return bits;
  }

  void MakeInvFreq(int pairs) {
    double value = 1;
    const double ratio = random_.Of({0.5, 0.8, 0.93, 0.99});
    const bool wild = random_.Sometimes(3);  // negative ones and 0, too
    for (int i = 0; i < pairs; ++i) {
      inv_freq_.push_back(wild ? random_.Pick(-1000, 1000) / 700.0 : value);
      value *= ratio;
    }
    config_.inv_freq = inv_freq_.data();
    config_.theta = random_.Of({0.0, 10000.0});
    if (random_.Sometimes(4)) MakeTable(pairs, &config_.freq_factors);
  }

  void MakeScaling(int pairs) {
    Random& r = random_;
    rope_config& c = config_;
    c.theta = r.Of({100.0, 10000.0, 500000.0, 1e6, 12345.678});
    c.scaling = r.Of({0, 1, 2, 3, 4, 5, 6, 8});
    if (r.Sometimes(6)) c.angle = 2, c.scaling = r.Of({0, 1, 3});  // GGML
    if (r.Sometimes(8)) c.inv_freq_dtype = r.Pick(2, 3);
    if (c.scaling != 0 && (c.scaling != 6 || r.Sometimes(2)))
      c.factor = r.Of({1.5, 2.0, 4.0, 8.0, 40.0});
    switch (c.scaling) {
      case 2:
      case 8:
        c.max_position_embeddings = r.Of({64, 4096});
        c.seq_len = r.Of({1, 63, 64, 65, 5000, 40000});
        break;
      case 3:
        c.original_max_position_embeddings = r.Of({2048, 4096, 32768});
        c.yarn_no_truncate = r.Pick(0, 1);
        if (r.Sometimes(3)) c.beta_fast = r.Of({32.0, 16.5}), c.beta_slow = r.Of({0.0, 1.0, 2.25});
        if (r.Sometimes(3))
          c.mscale = r.Of({0.0, 1.0, 0.707}), c.mscale_all_dim = r.Of({0.0, 1.0, 0.8});
        break;
      case 4:
        c.original_max_position_embeddings = r.Of({64, 4096});
        c.seq_len = r.Of({1, 64, 65, 5000});
        MakeTable(pairs, &c.short_factor);
        MakeTable(pairs, &c.long_factor);
        break;
      case 5:
        c.original_max_position_embeddings = 8192;
        c.low_freq_factor = 1;
        c.high_freq_factor = r.Of({1.0, 4.0});
        break;
      case 6: c.rotary_offset = 0; break;
      default: break;
    }
    if (r.Sometimes(5)) MakeTable(c.scaling == 6 ? c.head_dim / 2 : pairs, &c.freq_factors);
  }

  void MakeTable(int length, const double** table) {
    auto values = std::make_unique<std::vector<double>>();
    for (int i = 0; i < length; ++i) values->push_back(0.5 + random_.Pick(1, 4000) / 1000.0);
    *table = values->data();
    tables_.push_back(std::move(values));
  }

  void MakeAxes(int pairs) {
    Random& r = random_;
    rope_config& c = config_;
    const bool per_axis = c.pairing == kPerAxis;
    c.axes = r.Pick(2, per_axis ? 4 : 8);
    if (!per_axis && (c.axes > 4 || r.Sometimes(2))) {
      for (int i = 0; i < pairs; ++i) pair_axis_.push_back(static_cast<uint8_t>(r.Below(c.axes)));
      c.pair_axis = pair_axis_.data();
      return;
    }
    int left = pairs;
    for (int a = 0; a < c.axes; ++a) {
      c.mrope_section[a] = a + 1 == c.axes ? left : r.Of({left / 2, left / 2 / 8 * 8, 0});
      left -= c.mrope_section[a];
    }
    if (!per_axis && c.axes <= 3) c.mrope_interleaved = r.Pick(0, 1);
  }

  int64_t Position() {
    Random& r = random_;
    if (config_.seq_len != 0) return r.Below(60);
    if (r.Sometimes(9)) {
      return r.Of<int64_t>({INT32_MAX, -5, 8388607, 8388608, 131071, 1 << 24, INT64_MIN, 0});
    }
    return r.Below(5000);
  }

  template <class T>
  const T* Numbers(int64_t count, int64_t times) {
    std::vector<T> values;
    for (int64_t i = 0; i < count; ++i) {
      values.push_back(
          static_cast<T>(static_cast<uint64_t>(Position()) * static_cast<uint64_t>(times)));
    }
    return Keep(values);
  }

  Random random_;
  bool own_;
  int sets_ = 1;
  std::vector<double> inv_freq_;
  std::vector<uint8_t> pair_axis_;
  std::vector<std::unique_ptr<std::vector<double>>> tables_;
  std::vector<std::unique_ptr<std::vector<char>>> arrays_;
  std::vector<Buffer> buffers_ = [] {  // pointers into its elements' bytes stay valid
    std::vector<Buffer> buffers;
    buffers.reserve(16);
    return buffers;
  }();
  std::vector<std::pair<size_t, size_t>> shifts_;
};

}  // namespace bits

#endif  // LIBROPE_TESTS_BITS_CALL_H_
