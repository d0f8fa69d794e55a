#include "call/check_fused_addresses.h"

#include <algorithm>
#include <cstdint>
#include <iterator>

#include "base/status.h"
#include "call/overlap.h"
#include "math/element.h"

namespace rope {
namespace {

// What may be exactly what it is made of; scales if the codes in `owner` are, too.
struct InPlace {
  Beside in, out, owner;
};
constexpr InPlace kInPlace[] = {{kV, kVOut, kV},
                                {kRest, kRestOut, kRest},
                                {kSourceK, kCacheK, kSourceK},
                                {kSourceV, kCacheV, kSourceV},
                                {kSourceKScales, kCacheKScales, kSourceK},
                                {kSourceVScales, kCacheVScales, kSourceV}};

bool IsSame(const FusedShapes& shapes, const FusedAddresses& addresses, const InPlace& pair) {
  const BesideShape &in = shapes.beside[pair.in], &out = shapes.beside[pair.out];
  return in.present && out.present && out.written &&
         addresses.beside[pair.in] == addresses.beside[pair.out] && in.dtype == out.dtype &&
         AreEqual(in.of, out.of);
}

// Inputs that are outputs, too, and these outputs, by bits.
unsigned WhatIsInPlace(const FusedShapes& shapes, const FusedAddresses& addresses) {
  unsigned same = 0;
  for (const InPlace& pair : kInPlace) {
    if (pair.in >= shapes.count) break;
    if (!IsSame(shapes, addresses, pair)) continue;
    if (pair.owner == pair.in || (same >> pair.owner & 1) != 0)
      same |= 1u << pair.in | 1u << pair.out;
  }
  return same;
}

// All memory of the call, to be compared with each other. Most does not meet: what it consists of
// is asked for only where ranges do.
class Regions {
 public:
  Regions(const Call& call, const Names& names, const Shapes& shapes, const Tensor tensors[3],
          const Output outputs[3])
      : call_(call), names_(names), shapes_(shapes), tensors_(tensors), outputs_(outputs) {
    AddPair(tensors[0], shapes.q);
    AddPair(tensors[shapes.k_at()], shapes.k);
    first_ = count_;
  }

  // It may not meet those before, unless both are only read.
  rope_status Add(const char* name, const Footprint& of, int64_t extent, const void* data,
                  bool written) {
    const auto base = reinterpret_cast<uintptr_t>(data);
    const uintptr_t end = base + static_cast<uintptr_t>(extent);
    for (int i = 0; i < count_; ++i) {
      const Range& before = ranges_[i];
      if (before.end <= base || end <= before.base || !(before.written || written)) continue;
      if (rope_status s = Compare(i, {name, of, base})) return s;
    }
    added_[count_ - first_] = {name, &of};
    ranges_[count_++] = {base, end, written};
    return ROPE_OK;
  }

 private:
  struct Range {
    uintptr_t base, end;
    bool written;
  };

  void AddRange(const char* data, const Reach& reach, bool written) {
    const auto base = reinterpret_cast<uintptr_t>(data);
    ranges_[count_++] = {base, base + static_cast<uintptr_t>(reach.extent), written};
  }
  // In the order of MemoryOf.
  void AddPair(const Tensor& t, const TensorShape& shape) {
    if (!shape.present) return;
    AddRange(t.in, shape.in, shape.in_place && !shape.only_read());
    if (!shape.in_place) AddRange(t.out, shape.out, true);
  }

  __attribute__((noinline)) rope_status Compare(int i, const Memory& added) const {
    Memory rotated[4], before;
    bool may_be_equal = false;
    if (i < first_) {
      MemoryOf(call_, names_, shapes_, tensors_, outputs_, rotated);
      before = rotated[i];
    } else {
      const auto& [name, of] = added_[i - first_];
      before = {name, *of, ranges_[i].base};
      const auto& beside = names_.beside;
      may_be_equal = (name == beside[kV] && added.name == beside[kVOut]) ||
                     (name == beside[kRest] && added.name == beside[kRestOut]);
    }
    if (AreDisjoint({before.of, before.base}, {added.of, added.base})) return ROPE_OK;
    return FailOverlap(call_.function, added, before, may_be_equal ? kExactlyOrApart : "");
  }

  const Call& call_;
  const Names& names_;
  const Shapes& shapes_;
  const Tensor* const tensors_;
  const Output* const outputs_;
  static constexpr int kMost = kBesides + 3 * std::size(kNormNames);
  Range ranges_[4 + kMost];
  struct {
    const char* name;
    const Footprint* of;
  } added_[kMost];
  int count_ = 0, first_;
};

// Whether b, which begins so many bytes behind a, and a step alike from page to page and from slot
// to slot, and are apart in a slot: parts of the rows of a cache, as codes and their scales are.
bool ArePartsOfRows(const Footprint& a, const Footprint& b, uint64_t gap) {
  const auto in_slot = [](const Footprint& of) {
    return static_cast<uint64_t>((of.counts[2] - 1) * of.strides[2] + of.width);
  };
  const int64_t row = a.strides[1];
  return (a.counts[1] == b.counts[1]) & (a.strides[0] == b.strides[0]) & (row == b.strides[1]) &
         (in_slot(a) <= gap) & (gap + in_slot(b) <= static_cast<uint64_t>(row)) &
         (a.strides[0] - row >= (a.counts[1] - 1) * row);
}

// Whether all lies as it mostly does: aligned, inside the address space, and in ranges that meet no
// other, or as parts of rows. No branch for each of what every call has: what is not so is looked
// at by CheckEach, which says what is wrong, if anything is. `same`: which are in place, by bits.
bool LieApart(const Shapes& shapes, const Tensor tensors[3], const FusedShapes& fused_shapes,
              const FusedAddresses& addresses, unsigned same) {
  struct {
    Range range;
    bool written;
    const Footprint* of;  // null: q, k and their outputs
  } before[4 + kBesides];
  int count = 0;
  const auto add = [&](const Range& range, bool written, const Footprint* of) {
    before[count++] = {range, written, of};
  };
  const auto add_pair = [&](const Tensor& t, const TensorShape& shape) {
    if (!shape.present) return;
    add(RangeOf(t.in, shape.in.extent), shape.in_place && !shape.only_read(), nullptr);
    if (!shape.in_place) add(RangeOf(t.out, shape.out.extent), true, nullptr);
  };
  add_pair(tensors[0], shapes.q);
  add_pair(tensors[shapes.k_at()], shapes.k);
  bool apart = true;
  for (int which = 0; which < fused_shapes.count; ++which) {
    const BesideShape& shape = fused_shapes.beside[which];
    if (!shape.present) continue;
    const Range range = RangeOf(addresses.beside[which], shape.extent);
    apart &= (range.base & static_cast<uintptr_t>(shape.element - 1)) == 0;
    apart &= range.base < range.end;
    const bool in_place = (same >> which & 1) != 0, written = shape.written | in_place;
    if (in_place && shape.written) continue;  // its input is there, or will be
    for (int i = 0; i < count; ++i) {
      if (AreApart(before[i].range, range) | !(before[i].written | written)) continue;
      const Footprint* const of = before[i].of;
      const uintptr_t base = before[i].range.base;
      if (of == nullptr) return false;
      apart &= range.base >= base ? ArePartsOfRows(*of, shape.of, range.base - base)
                                  : ArePartsOfRows(shape.of, *of, base - range.base);
    }
    add(range, written, &shape.of);
  }
  return apart;
}

// What BACKWARD reads and writes for norms.
rope_status CheckGradientAddresses(const Call& call, const FusedShapes& shapes,
                                   const FusedPlan& fused, Regions* regions) {
  const Norm* const norms[] = {&fused.q_norm, &fused.k_norm, &fused.v_norm};
  for (int n = 0; n < 3; ++n) {
    const GradientShapes& shape = shapes.gradients[n];
    if (!shape.present) continue;
    const NormNames& names = kNormNames[n];
    const NormGradients& gradients = norms[n]->gradients;
    if (rope_status s =
            CheckAddressBeside(call, names.x, ".data", shape.x, TensorKind::kOthers, gradients.x)) {
      return s;
    }
    if (rope_status s = regions->Add(names.x, shape.x.of, shape.x.extent, gradients.x, false))
      return s;
    const auto add = [&](const char* name, const float* data) -> rope_status {
      if (data == nullptr) return ROPE_OK;
      if (static_cast<uint64_t>(shape.weights.width) >
          UINTPTR_MAX - reinterpret_cast<uintptr_t>(data)) {
        return Fail(ROPE_ERROR_INVALID_ARGUMENT,
                    "%s: %s (%p) with %d parts reaches beyond the address space", call.function,
                    name, static_cast<const void*>(data), gradients.parts);
      }
      return regions->Add(name, shape.weights, shape.weights.width, data, true);
    };
    if (rope_status s = add(names.weight_grad, gradients.weight)) return s;
    if (rope_status s = add(names.bias_grad, gradients.bias)) return s;
  }
  return ROPE_OK;
}

// The addresses one by one, and each with those before. `same`: which are in place, by bits.
__attribute__((noinline)) rope_status CheckEach(const Call& call, const Names& names,
                                                const Shapes& shapes, const Tensor tensors[3],
                                                const FusedShapes& fused_shapes,
                                                const FusedAddresses& addresses,
                                                const FusedPlan& fused, unsigned same) {
  const Call pages = {call.function, call.context, fused_shapes.pages, fused_shapes.page_size};
  const Call source = {call.function, call.context, fused_shapes.source_pages,
                       fused_shapes.source_page_size};
  Regions regions(call, names, shapes, tensors, fused.outputs);
  for (int n = 0; n < fused_shapes.count; ++n) {
    const auto which = static_cast<Beside>(n);
    const BesideShape& shape = fused_shapes.beside[which];
    if (!shape.present) continue;
    const TensorKind kind = kBesideKinds[which];
    const void* const data = addresses.beside[which];
    if (rope_status s = CheckAddressBeside(IsOfSource(which) ? source
                                           : IsInCache(kind) ? pages
                                                             : call,
                                           names.beside[which], IsScales(which) ? "" : names.data,
                                           shape, kind, data)) {
      return s;
    }
    const bool in_place = (same >> which & 1) != 0;
    if (in_place && shape.written) continue;
    if (rope_status s = regions.Add(names.beside[which], shape.of, shape.extent, data,
                                    shape.written || in_place)) {
      return s;
    }
  }
  return fused_shapes.has_gradients ? CheckGradientAddresses(call, fused_shapes, fused, &regions)
                                    : ROPE_OK;
}

// Of the tensors to the last one, of the copies, and of the source.
void PlaceScales(void* const* at, int32_t last, FusedPlan* fused) {
  const auto place = [at](Output* output) {
    if (output->HasScaleArray()) output->scales.data = static_cast<char*>(at[output->scales_at]);
  };
  for (int32_t n = 0; n <= last; ++n) place(&fused->outputs[n]);
  for (int32_t n = 0; n < fused->copies.count; ++n) place(&fused->copies.of[n].output);
  if (fused->source.kind == 0) return;
  fused->source_k.scales.data = static_cast<char*>(at[kSourceKScales]);
  fused->source_v.scales.data = static_cast<char*>(at[kSourceVScales]);
}

void* ScalesAt(const rope_tensor& t) { return t.scale != nullptr ? t.scale->data : nullptr; }

}  // namespace

FusedAddresses AddressesOf(const FusedArgs& given, const rope_qk_args& args, int32_t count) {
  static constexpr rope_kv_cache kNone{};
  const rope_fused& f = *given.fused;
  const rope_kv_cache& cache = given.cache != nullptr ? *given.cache : kNone;
  FusedAddresses to;
  to.beside[kCacheK] = cache.k.data;
  to.beside[kV] = f.v.data;
  to.beside[kVOut] = f.v_out.data;
  to.beside[kCacheV] = cache.v.data;
  if (count == kRest) return to;
  to.beside[kRest] = f.rest.data;
  to.beside[kRestOut] = f.rest_out.data;
  to.beside[kQOutScales] = ScalesAt(args.q_out);
  to.beside[kKOutScales] = ScalesAt(args.k_out);
  to.beside[kCacheKScales] = ScalesAt(cache.k);
  to.beside[kVOutScales] = ScalesAt(f.v_out);
  to.beside[kCacheVScales] = ScalesAt(cache.v);
  to.beside[kRestOutScales] = ScalesAt(f.rest_out);
  if (count == kSourceK) return to;
  to.beside[kSourceK] = given.source->k.data;
  to.beside[kSourceV] = given.source->v.data;
  to.beside[kSourceKScales] = ScalesAt(given.source->k);
  to.beside[kSourceVScales] = ScalesAt(given.source->v);
  to.beside[kKOut] = args.k_out.data;
  return to;
}

bool IsOneMemory(const FusedShapes& shapes, const FusedAddresses& addresses) {
  return (WhatIsInPlace(shapes, addresses) & (1u << kSourceK | 1u << kSourceV)) != 0;
}

rope_status CheckFusedAddresses(const Call& call, const Names& names, const Shapes& shapes,
                                const FusedShapes& fused_shapes, const FusedAddresses& addresses,
                                Tensor tensors[3], FusedPlan* fused) {
  const BesideShape* const beside = fused_shapes.beside;
  void* const* const at = addresses.beside;
  const unsigned same = WhatIsInPlace(fused_shapes, addresses);
  const bool gathers = fused->gathered != FusedPlan::kNone;
  if (fused_shapes.has_gradients || !LieApart(shapes, tensors, fused_shapes, addresses, same)) {
    if (rope_status s =
            CheckEach(call, names, shapes, tensors, fused_shapes, addresses, *fused, same)) {
      return s;
    }
  }
  if (gathers) {
    Tensor* t = &tensors[fused->gathered];
    for (const Beside out : {kKOut, kCacheK}) {
      if (!beside[out].present) continue;
      t->in = static_cast<const char*>(at[kSourceK]);
      t++->out = static_cast<char*>(at[out]);
    }
  } else if (fused->cached >= 0) {
    tensors[fused->cached].in = tensors[shapes.k_at()].in;
    tensors[fused->cached].out = static_cast<char*>(at[kCacheK]);
  }
  Copies& copies = fused->copies;
  for (int n = 0; n < copies.count; ++n) {
    Copy& copy = copies.of[n];
    copy.in = static_cast<const char*>(at[copy.from]);
    copy.out = static_cast<char*>(at[copy.to]);
  }
  if ((same & (1u << kV | 1u << kRest)) != 0) {
    const auto is_none = [](const Copy& copy) {
      return copy.in == copy.out && !copy.ToSlots() && copy.norm == nullptr;
    };
    Copy* const end = std::remove_if(copies.of, copies.of + copies.count, is_none);
    copies.count = static_cast<int32_t>(end - copies.of);
  }
  if (fused_shapes.count > kQOutScales) {
    const int32_t last = gathers ? std::max(fused->cached, fused->gathered) : shapes.k_at();
    PlaceScales(at, gathers || shapes.k.present ? last : 0, fused);
  }
  return ROPE_OK;
}

}  // namespace rope
