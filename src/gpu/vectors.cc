#include "gpu/vectors.h"

#include <iterator>

#include "math/element.h"

namespace rope::gpu {

int32_t PairsPerLane(Form form, int32_t element_bytes) {
  if (form == kSingle) return 1;
  return form == kHalves2 || form == kAdjacent2 ? 2 : 16 / element_bytes;
}

int64_t BitsOfHeads(const void* data, const HeadStrides& strides, int64_t outer, int64_t inner,
                    int32_t heads) {
  int64_t bits = reinterpret_cast<intptr_t>(data);
  if (outer > 1) bits |= strides.batch;
  if (inner > 1) bits |= strides.token;
  if (heads > 1) bits |= strides.head;
  return bits;
}

namespace {

// The same of an output, in which pages and slots may take the places of batch rows and tokens.
int64_t BitsOfOut(const Plan& plan, const void* data, const HeadStrides& strides, int32_t heads,
                  bool to_slots) {
  if (!to_slots) return BitsOfHeads(data, strides, plan.batch, plan.tokens, heads);
  const SlotSource& slots = plan.fused->slots;
  return BitsOfHeads(data, strides, slots.pages, slots.page_size, heads);
}

// Whether every vector of `pairs` elements, rotated or copied, is aligned to its size.
bool AreVectorsAligned(const Plan& plan, const Tensor& t, bool to_slots, int32_t pairs) {
  const rope_context& context = *plan.context;
  const int64_t size = ElementSize(t.dtype);
  int64_t offsets = BitsOfHeads(t.in + t.in_span, t.in_strides, plan.batch, plan.tokens, t.heads) |
                    BitsOfOut(plan, t.out + t.out_span, t.out_strides, t.heads, to_slots);
  if (t.copies_rest) offsets |= t.in_span | context.head_dim * size;
  if (context.nope) {
    offsets |= context.rotary_dim * size;
  } else {
    for (const Segment& segment : context.segments) {
      offsets |= (segment.first_channel | segment.pairs) * size;
    }
  }
  return offsets % (pairs * size) == 0;
}

}  // namespace

Form ChooseForm(const Plan& plan, const Tensor* tensors, int32_t count, int32_t cached,
                ChannelOrder order) {
  static constexpr Form kWide[] = {kHalves16, kAdjacent16, kToHalves16, kToInterleaved16};
  static constexpr Form kNarrow[] = {kHalves2, kAdjacent2, kSingle, kSingle};
  static_assert(std::size(kWide) == kChannelOrders && std::size(kNarrow) == kChannelOrders);
  for (const Form form : {kWide[order], kNarrow[order]}) {
    const int32_t pairs = PairsPerLane(form, ElementSize(tensors[0].dtype));
    bool aligned = true;
    for (int32_t n = 0; n < count; ++n)
      aligned = aligned && AreVectorsAligned(plan, tensors[n], n == cached, pairs);
    if (aligned) return form;
  }
  return kSingle;
}

namespace {

bool IsAligned(const Plan& plan, const Copy& c, int64_t vector) {
  const int64_t bits = c.width | BitsOfHeads(c.in, c.in_strides, plan.batch, plan.tokens, c.heads) |
                       BitsOfOut(plan, c.out, c.out_strides, c.heads, c.ToSlots());
  return bits % vector == 0;
}

}  // namespace

Variant VariantOf(const Plan& plan, const Copy& copy) {
  static constexpr Variant kCandidates[] = {{ROPE_DTYPE_F32, kHalves16, Arithmetic::kFused},
                                            {ROPE_DTYPE_F32, kHalves2, Arithmetic::kFused},
                                            {ROPE_DTYPE_F32, kSingle, Arithmetic::kFused}};
  for (const Variant& v : kCandidates) {
    const int32_t bytes = PairsPerLane(v.form, ElementSize(v.dtype)) * ElementSize(v.dtype);
    if (IsAligned(plan, copy, bytes)) return v;
  }
  return {ROPE_DTYPE_F16, kSingle, Arithmetic::kFused};
}

bool FitInto(const Plan& plan, int64_t vector, int64_t most, Copy* copy) {
  if (!IsAligned(plan, *copy, vector)) return false;
  if (copy->width <= most * vector) return true;
  const bool side_by_side =
      copy->in_strides.head == copy->width && copy->out_strides.head == copy->width;
  if (copy->heads > 1 && !side_by_side) return false;
  const int64_t vectors = copy->heads * copy->width / vector;
  for (int64_t own = most; 2 * own > most; --own) {
    if (vectors % own != 0) continue;
    copy->heads = static_cast<int32_t>(vectors / own);
    copy->width = own * vector;
    copy->in_strides.head = copy->out_strides.head = copy->width;
    return true;
  }
  return false;
}

}  // namespace rope::gpu
