// What BACKWARD does besides turning back, to heads in f32 in the L1 cache: gradients of repeated
// heads are added, and those of normed channels become those of what was normed, by the steps of
// math/norm.h. Included once per target.
#if defined(LIBROPE_SRC_CPU_GRADIENT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LIBROPE_SRC_CPU_GRADIENT_INL_H_
#undef LIBROPE_SRC_CPU_GRADIENT_INL_H_
#else
#define LIBROPE_SRC_CPU_GRADIENT_INL_H_
#endif

#include "cpu/norm-inl.h"
#include "cpu/stages-inl.h"

HWY_BEFORE_NAMESPACE();
namespace rope::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// What the norm of a head multiplied by the weight, and the gradient with respect to that.
template <class E, bool kMeans, bool kEager>
struct HeadGradient {
  float root, mean;

  template <class D>
  HWY_INLINE hn::Vec<D> Scaled(D d, const typename E::Raw* x) const {
    auto value = E::Load(d, x);
    if constexpr (kMeans) value = hn::Sub(value, hn::Set(d, mean));
    return hn::Mul(value, hn::Set(d, root));
  }
  template <class D>
  static HWY_INLINE hn::Vec<D> Weighted(D d, hn::Vec<D> normed, const float* weight) {
    const auto product = hn::Mul(normed, hn::LoadU(d, weight));
    return kEager ? E::Round(d, product) : product;
  }
};

template <class E, bool kMeans, bool kEager>
struct GradientSum {
  HeadGradient<E, kMeans, kEager> head;
  RunningSums products, weighted;

  HWY_INLINE explicit GradientSum(HeadGradient<E, kMeans, kEager> of) : head(of) {}

  // kRunningSums channels.
  HWY_INLINE void Add(const float* normed, const float* weights, const typename E::Raw* x) {
    const FullTag d;
    const int n = LanesOf(d);
    for (int v = 0; v < RunningSums::Vectors(); ++v) {
      const auto gradient = head.Weighted(d, hn::LoadU(d, normed + v * n), weights + v * n);
      products.Set(v, hn::MulAdd(gradient, head.Scaled(d, x + v * n), products.Get(v)));
      if constexpr (kMeans) weighted.Set(v, hn::Add(weighted.Get(v), gradient));
    }
  }
};

template <class E, bool kMeans, bool kEager>
void SumGradients(const NormedGradients& heads) {
  using Raw = typename E::Raw;
  const int whole = heads.channels - heads.channels % kRunningSums;
  const auto rest = static_cast<size_t>(heads.channels - whole);
  HWY_ALIGN float rest_normed[kRunningSums] = {}, rest_weights[kRunningSums] = {};
  HWY_ALIGN Raw rest_x[kRunningSums] = {};
  std::memcpy(rest_weights, heads.weights + whole, rest * sizeof(float));
  for (int h = 0; h < heads.count; ++h) {
    const float* const normed = heads.normed + h * heads.normed_step;
    const auto* x = reinterpret_cast<const Raw*>(heads.x + h * heads.x_step);
    GradientSum<E, kMeans, kEager> sum({heads.roots[h], kMeans ? heads.means[h] : 0.0f});
    for (int c = 0; c < whole; c += kRunningSums) sum.Add(normed + c, heads.weights + c, x + c);
    if (rest != 0) {  // nothing behind the head is read, and zeros add nothing
      std::memcpy(rest_normed, normed + whole, rest * sizeof(float));
      std::memcpy(rest_x, x + whole, rest * sizeof(Raw));
      sum.Add(rest_normed, rest_weights, rest_x);
    }
    heads.products[h] = sum.products.Total();
    if constexpr (kMeans) heads.weighted[h] = sum.weighted.Total();
  }
}

template <class E, bool kMeans, bool kEager>
void PassGradients(const NormedGradients& heads) {
  using Raw = typename E::Raw;
  for (int h = 0; h < heads.count; ++h) {
    const float* const normed = heads.normed + h * heads.normed_step;
    const auto* x = reinterpret_cast<const Raw*>(heads.x + h * heads.x_step);
    auto* out = reinterpret_cast<Raw*>(heads.out + h * heads.out_step);
    const HeadGradient<E, kMeans, kEager> head = {heads.roots[h], kMeans ? heads.means[h] : 0.0f};
    const float mean_product = heads.products[h], mean_weighted = kMeans ? heads.weighted[h] : 0.0f;
    ForEachVector(heads.channels, [&](auto d, int64_t c) HWY_ATTR {
      const auto gradient = hn::LoadU(d, normed + c), scaled = head.Scaled(d, x + c);
      if (heads.weight != nullptr) {
        const auto factor = kEager ? E::Round(d, scaled) : scaled;
        const auto sum = hn::LoadU(d, heads.weight + c);
        hn::StoreU(hn::MulAdd(gradient, factor, sum), d, heads.weight + c);
      }
      if (heads.bias != nullptr) {
        hn::StoreU(hn::Add(hn::LoadU(d, heads.bias + c), gradient), d, heads.bias + c);
      }
      auto weighted = head.Weighted(d, gradient, heads.weights + c);
      if constexpr (kMeans) weighted = hn::Sub(weighted, hn::Set(d, mean_weighted));
      const auto y = hn::NegMulAdd(hn::Set(d, mean_product), scaled, weighted);
      StoreNarrow<E>(d, hn::Mul(y, hn::Set(d, head.root)), out + c);
    });
  }
}

template <class E>
void SumAnyGradients(const NormedGradients& heads) {
  if (heads.means != nullptr) {
    heads.eager ? SumGradients<E, true, true>(heads) : SumGradients<E, true, false>(heads);
  } else {
    heads.eager ? SumGradients<E, false, true>(heads) : SumGradients<E, false, false>(heads);
  }
}

template <class E>
void PassAnyGradients(const NormedGradients& heads) {
  if (heads.means != nullptr) {
    heads.eager ? PassGradients<E, true, true>(heads) : PassGradients<E, true, false>(heads);
  } else {
    heads.eager ? PassGradients<E, false, true>(heads) : PassGradients<E, false, false>(heads);
  }
}

template <class E>
void AddHeads(const void* heads, int64_t step, int count, int channels, float* sum) {
  const auto* first = static_cast<const char*>(heads);
  ForEachVector(channels, [&](auto d, int64_t c) HWY_ATTR {
    auto total = E::Load(d, reinterpret_cast<const typename E::Raw*>(first) + c);
    for (int h = 1; h < count; ++h) {
      total = hn::Add(total,
                      E::Load(d, reinterpret_cast<const typename E::Raw*>(first + h * step) + c));
    }
    hn::StoreU(total, d, sum + c);
  });
}

template <class E>
void FillGradients(Kernels& kernels) {
  kernels.gradient_sums[E::kDtype - 1] = &SumAnyGradients<E>;
  kernels.norm_gradients[E::kDtype - 1] = &PassAnyGradients<E>;
  kernels.add_heads[E::kDtype - 1] = &AddHeads<E>;
}

template <class... E>
void FillGradients(Kernels& kernels, Elements<E...>) {
  (FillGradients<E>(kernels), ...);
}

void FillGradients(Kernels& kernels) { FillGradients(kernels, AllElements()); }

}  // namespace HWY_NAMESPACE
}  // namespace rope::cpu
HWY_AFTER_NAMESPACE();

#endif  // include guard
