// q and k of the benchmarks, made when one first needs them and kept.
#ifndef LIBROPE_BENCH_TENSORS_H_
#define LIBROPE_BENCH_TENSORS_H_

#include <librope/rope.h>

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>
#include <random>
#include <utility>
#include <vector>

namespace bench {

inline constexpr int kQHeads = 32, kKHeads = 8, kDim = 128, kPairs = kDim / 2;
inline size_t ElementSize(rope_dtype dtype) {
  return dtype == ROPE_DTYPE_F32 ? 4 : dtype == ROPE_DTYPE_I8 ? 1 : 2;
}
// Blocks of 32 numbers of Q8_0 have 34 bytes.
inline size_t BytesOf(rope_dtype dtype, size_t count) {
  return dtype == ROPE_DTYPE_Q8_0 ? count / 32 * 34 : count * ElementSize(dtype);
}
inline const char* DtypeName(rope_dtype dtype) {
  return dtype == ROPE_DTYPE_F32    ? "f32"
         : dtype == ROPE_DTYPE_BF16 ? "bf16"
         : dtype == ROPE_DTYPE_I8   ? "i8"
         : dtype == ROPE_DTYPE_Q8_0 ? "q8_0"
                                    : "f16";
}

struct Free {
  void operator()(void* p) const { std::free(p); }
};
using Buffer = std::unique_ptr<void, Free>;

inline Buffer MakeBuffer(rope_dtype dtype, size_t count) {
  const size_t bytes = (BytesOf(dtype, count) + 4095) / 4096 * 4096;
  Buffer buffer(std::aligned_alloc(4096, bytes));
  if (buffer == nullptr) throw std::bad_alloc();
  std::mt19937 random(3);
  for (size_t i = 0; i < count; ++i) {  // +-0.5 to 1 in the bits of the type
    const uint32_t bits = random();
    const uint32_t sign = bits & 0x80000000u;
    if (dtype == ROPE_DTYPE_F32) {
      static_cast<uint32_t*>(buffer.get())[i] = sign | 0x3f000000u | (bits & 0x7fffffu);
    } else if (dtype == ROPE_DTYPE_I8) {  // odd ones: sweeps find no subnormal f32 there
      static_cast<uint8_t*>(buffer.get())[i] = static_cast<uint8_t>(bits | 1);
    } else if (dtype == ROPE_DTYPE_Q8_0) {  // likewise; 0x2121 is a scale of 0.01
      uint8_t* const block = static_cast<uint8_t*>(buffer.get()) + i / 32 * 34;
      block[0] = block[1] = 0x21;
      block[2 + i % 32] = static_cast<uint8_t>(bits | 1);
    } else {
      const uint32_t half =
          dtype == ROPE_DTYPE_BF16 ? 0x3f00u | (bits & 0x7fu) : 0x3800u | (bits & 0x3ffu);
      static_cast<uint16_t*>(buffer.get())[i] = static_cast<uint16_t>(sign >> 16 | half);
    }
  }
  return buffer;
}

// Weights of a norm in bf16, 0.75 each. In place and again and again, channels with smaller weights
// than others become subnormal, on which some CPUs take a hundred times as long; and where all are
// 1, a product that is rounded is no other.
inline std::vector<uint16_t> NormWeights(size_t count) {
  return std::vector<uint16_t>(count, 0x3f40);
}

// q and k of one size, shared by all contenders of a group.
struct Tensors {
  rope_dtype dtype;
  int64_t tokens;
  Buffer q, k, q_out, k_out;

  size_t q_count() const { return static_cast<size_t>(tokens) * kQHeads * kDim; }
  size_t k_count() const { return static_cast<size_t>(tokens) * kKHeads * kDim; }
  size_t q_bytes() const { return q_count() * ElementSize(dtype); }
  size_t k_bytes() const { return k_count() * ElementSize(dtype); }
};

inline Tensors& GetTensors(rope_dtype dtype, int64_t tokens, bool out = false) {
  static std::vector<std::unique_ptr<Tensors>> all;
  for (const auto& t : all) {
    if (t->dtype == dtype && t->tokens == tokens && (t->q_out != nullptr) == out) return *t;
  }
  auto t = std::make_unique<Tensors>();
  t->dtype = dtype;
  t->tokens = tokens;
  t->q = MakeBuffer(dtype, t->q_count());
  t->k = MakeBuffer(dtype, t->k_count());
  if (out) {
    t->q_out = MakeBuffer(dtype, t->q_count());
    t->k_out = MakeBuffer(dtype, t->k_count());
  }
  all.push_back(std::move(t));
  return *all.back();
}

}  // namespace bench

#endif  // LIBROPE_BENCH_TENSORS_H_
