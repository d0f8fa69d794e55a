// RoPE as one would write it with Highway, compiled for every instruction set:
//   highway         rows of cos and sin from a table; f32 arithmetic, conversions by PromoteTo and
//                   DemoteTo (whose bf16 may be truncated, as Highway 1.0 does without the
//                   instruction)
//   highway_sincos  no table: Highway's own Sin and Cos of a float angle, anew for each head, as
//                   gemma.cpp does it; f32, in place, halves
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "highway.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <hwy/contrib/math/math-inl.h>

#include "peer.h"

HWY_BEFORE_NAMESPACE();
namespace peers {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

template <typename T>
struct Element;

template <>
struct Element<float> {
  template <class D>
  static hn::Vec<D> Load(D d, const float* x) {
    return hn::LoadU(d, x);
  }
  template <class D>
  static void Store(hn::Vec<D> v, D d, float* x) {
    hn::StoreU(v, d, x);
  }
};

template <typename T>
struct Narrow {
  template <class D>
  static hn::Vec<D> Load(D d, const T* x) {
    return hn::PromoteTo(d, hn::LoadU(hn::Rebind<T, D>(), x));
  }
  template <class D>
  static void Store(hn::Vec<D> v, D, T* x) {
    const hn::Rebind<T, D> d;
    hn::StoreU(hn::DemoteTo(d, v), d, x);
  }
};
template <>
struct Element<hwy::bfloat16_t> : Narrow<hwy::bfloat16_t> {};
template <>
struct Element<hwy::float16_t> : Narrow<hwy::float16_t> {};

// Heads of one token; dim / 2 is a multiple of every vector's lanes here.
template <typename T>
void Halves(const float* cos, const float* sin, const T* x, T* y, size_t heads, size_t dim) {
  const hn::CappedTag<float, 64> d;
  const size_t half = dim / 2;
  for (size_t h = 0; h < heads; ++h, x += dim, y += dim) {
    for (size_t i = 0; i < half; i += hn::Lanes(d)) {
      const auto c = hn::LoadU(d, cos + i), s = hn::LoadU(d, sin + i);
      const auto a = Element<T>::Load(d, x + i), b = Element<T>::Load(d, x + half + i);
      Element<T>::Store(hn::NegMulAdd(b, s, hn::Mul(a, c)), d, y + i);
      Element<T>::Store(hn::MulAdd(a, s, hn::Mul(b, c)), d, y + half + i);
    }
  }
}

void Interleaved(const float* cos, const float* sin, const float* x, float* y, size_t heads,
                 size_t dim) {
  const hn::CappedTag<float, 64> d;
  for (size_t h = 0; h < heads; ++h, x += dim, y += dim) {
    for (size_t i = 0; i < dim / 2; i += hn::Lanes(d)) {
      const auto c = hn::LoadU(d, cos + i), s = hn::LoadU(d, sin + i);
      hn::Vec<decltype(d)> a, b;
      hn::LoadInterleaved2(d, x + 2 * i, a, b);
      hn::StoreInterleaved2(hn::NegMulAdd(b, s, hn::Mul(a, c)), hn::MulAdd(a, s, hn::Mul(b, c)), d,
                            y + 2 * i);
    }
  }
}

void SinCos(const float* inv_freq, float position, float* x, size_t heads, size_t dim) {
  const hn::CappedTag<float, 64> d;
  const size_t half = dim / 2;
  const auto p = hn::Set(d, position);
  for (size_t h = 0; h < heads; ++h, x += dim) {
    for (size_t i = 0; i < half; i += hn::Lanes(d)) {
      const auto angle = hn::Mul(p, hn::LoadU(d, inv_freq + i));
      const auto c = hn::Cos(d, angle), s = hn::Sin(d, angle);
      const auto a = hn::LoadU(d, x + i), b = hn::LoadU(d, x + half + i);
      hn::StoreU(hn::NegMulAdd(b, s, hn::Mul(a, c)), d, x + i);
      hn::StoreU(hn::MulAdd(a, s, hn::Mul(b, c)), d, x + half + i);
    }
  }
}

void Table(const peer_case& c, const void* x, void* y, size_t heads, int64_t first, int64_t count) {
  const size_t dim = static_cast<size_t>(c.head_dim);
  for (int64_t t = first; t < first + count; ++t) {
    const size_t row = static_cast<size_t>(c.positions[t]) * (dim / 2);
    const float *cos = c.table_cos + row, *sin = c.table_sin + row;
    const size_t at = static_cast<size_t>(t) * heads * dim;
    if (c.dtype == PEER_F32) {
      const auto* from = static_cast<const float*>(x) + at;
      auto* to = static_cast<float*>(y) + at;
      if (c.pairing == PEER_HALVES) {
        Halves(cos, sin, from, to, heads, dim);
      } else {
        Interleaved(cos, sin, from, to, heads, dim);
      }
    } else if (c.dtype == PEER_BF16) {
      Halves(cos, sin, static_cast<const hwy::bfloat16_t*>(x) + at,
             static_cast<hwy::bfloat16_t*>(y) + at, heads, dim);
    } else {
      Halves(cos, sin, static_cast<const hwy::float16_t*>(x) + at,
             static_cast<hwy::float16_t*>(y) + at, heads, dim);
    }
  }
}

void Angles(const peer_case& c, const float* inv_freq, float* x, size_t heads, int64_t first,
            int64_t count) {
  const size_t dim = static_cast<size_t>(c.head_dim);
  for (int64_t t = first; t < first + count; ++t) {
    SinCos(inv_freq, static_cast<float>(c.positions[t]), x + static_cast<size_t>(t) * heads * dim,
           heads, dim);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace peers
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include <cmath>
#include <vector>

#include "contender.h"
#include "split.h"

namespace peers {
namespace {

HWY_EXPORT(Table);
HWY_EXPORT(Angles);

class Highway : public Contender {
 public:
  Highway(const peer_case& c, bool table) : c_(c), table_(table), split_(c.threads) {
    if (table) {
      if (c.dtype != PEER_F32 && c.pairing != PEER_HALVES)
        throw Unable("f32 only when interleaved");
      return;
    }
    if (c.dtype != PEER_F32 || c.pairing != PEER_HALVES || !InPlace(c)) {
      throw Unable("f32 halves in place only");
    }
    for (int i = 0; i < c.head_dim / 2; ++i) {
      inv_freq_.push_back(static_cast<float>(std::pow(c.theta, -2.0 * i / c.head_dim)));
    }
  }

  void Run() override {
    split_.Run(c_.tokens, [this](int64_t first, int64_t count) {
      Part(c_.q, c_.q_out, static_cast<size_t>(c_.q_heads), first, count);
      Part(c_.k, c_.k_out, static_cast<size_t>(c_.k_heads), first, count);
    });
  }

 private:
  void Part(void* x, void* y, size_t heads, int64_t first, int64_t count) const {
    if (table_) {
      HWY_DYNAMIC_DISPATCH(Table)(c_, x, y, heads, first, count);
    } else {
      HWY_DYNAMIC_DISPATCH(Angles)
      (c_, inv_freq_.data(), static_cast<float*>(x), heads, first, count);
    }
  }

  const peer_case c_;
  const bool table_;
  const Split split_;
  std::vector<float> inv_freq_;
};

}  // namespace

const char* Names() { return "highway highway_sincos"; }

std::unique_ptr<Contender> Make(const std::string& name, const peer_case& c) {
  return std::make_unique<Highway>(c, name == "highway");
}

}  // namespace peers
#endif  // HWY_ONCE
