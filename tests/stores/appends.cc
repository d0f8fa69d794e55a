// Calls that store k and v in the slots of a cache, q beside it, and what else they turn or copy:
// every dtype of caches, scales, norms and kinds of slots.
#include <string>
#include <vector>

#include "stores/norms.h"
#include "stores/work.h"

namespace rope::testing::stores {
namespace {

constexpr rope_dtype kFrom[] = {ROPE_DTYPE_F32, ROPE_DTYPE_F16, ROPE_DTYPE_BF16};
constexpr rope_dtype kTo[] = {ROPE_DTYPE_F32,     ROPE_DTYPE_F16,     ROPE_DTYPE_BF16,
                              ROPE_DTYPE_F8_E4M3, ROPE_DTYPE_F8_E5M2, ROPE_DTYPE_I8,
                              ROPE_DTYPE_Q8_0};

class Append {
 public:
  Append(Random* r, int head_dim, rope_dtype from, rope_dtype to, Content content)
      : r_(*r), head_dim_(head_dim), from_(from), to_(to), config_(Config(head_dim)) {
    config_.pairing =
        r->Of({ROPE_PAIRING_HALVES, ROPE_PAIRING_INTERLEAVED, ROPE_PAIRING_INTERLEAVED_TO_HALVES});
    if (r->Sometimes(3)) {
      config_.rotary_dim = head_dim / 2;
      config_.rotary_offset = r->Of({0, head_dim / 2});
    }
    if (r->Sometimes(4)) config_.rounding = ROPE_ROUNDING_EAGER;
    one_token_ = r->Sometimes(3);
    rows_ = one_token_ ? 1 : r->Pick(1, 2);
    tokens_ = one_token_ ? 1 : rows_ == 1 ? 5 : 3;
    kind_ = r->Of({ROPE_SLOTS_MAPPED, ROPE_SLOTS_PAGED, ROPE_SLOTS_LINEAR});
    layout_ = r->Of({ROPE_LAYOUT_NHD, ROPE_LAYOUT_HND, ROPE_LAYOUT_STRIDED});
    scale_ = ScaleKind{r->Pick(0, 4)};
    has_norms_ = r->Sometimes(2);
    prepared_ = r->Sometimes(4);
    const bool is_code = IsCode(to);
    name_ = std::string("append ") + std::to_string(head_dim) +
            (config_.rotary_dim != 0 ? " partial " : " ") + NameOfPairing(config_.pairing) + " " +
            NameOf(from) + " to " + NameOf(to) +
            (is_code ? std::string(" ") + NameOf(scale_) : "") + " " + NameOfLayout(layout_) + " " +
            NameOfSlots(kind_) + (config_.rounding != 0 ? " eager" : "") + ", " +
            std::to_string(rows_) + " x " + std::to_string(tokens_) +
            (prepared_ ? ", prepared" : "") + (content == Content::kRare ? ", rare numbers" : "");
    Watch(content);
  }

 private:
  Shape ShapeOf(int heads, int width) const { return {rows_, tokens_, heads, width}; }

  void Watch(Content content) {
    Work work(name_, content);
    work_ = &work;
    rope_qk_args args = Args(rows_, tokens_);
    rope_fused fused = ROPE_INIT(rope_fused);
    rope_kv_cache cache = ROPE_INIT(rope_kv_cache);
    args.positions = Offset(r_.Of({0, 4711}));
    args.fused = &fused;
    fused.cache = &cache;
    places_ = PutTokens(&work, kind_, rows_, tokens_, 0, &cache);
    const Shape slots = {cache.pages, kPageSize, kKeyHeads, head_dim_};
    AddQ(&args, &fused);
    AddK(slots, &args, &fused, &cache);
    AddV(slots, &fused, &cache);
    if (r_.Sometimes(3)) AddRest(&fused);
    const Context& context = ContextOf(config_);
    prepared_ ? work.MakePrepared(context, args) : work.Make(context, args);
  }

  // In place, or to an output of the dtype of the cache, whose heads may be repeated.
  void AddQ(rope_qk_args* args, rope_fused* fused) {
    const Heads q = work_->Tensor("q", from_, ShapeOf(kQueryHeads, head_dim_), ROPE_LAYOUT_BSHD);
    args->q = q.tensor;
    const bool in_place = r_.Sometimes(2);
    const int repeats = in_place ? 1 : r_.Pick(1, 2);
    Heads out = q;
    if (!in_place) {
      out = work_->Tensor("q_out", to_, ShapeOf(repeats * kQueryHeads, head_dim_), ROPE_LAYOUT_BHSD,
                          scale_);
      args->q_out = out.tensor;
    }
    const bool converted = !in_place && (to_ != from_ || repeats != 1);
    const Times times = AddNorm(kQueryHeads, converted, &q_norm_, &fused->q_norm);
    StoresTurned(out, Tokens(rows_, tokens_), in_place, times);
  }

  // To the cache, and perhaps to an output or in place.
  void AddK(const Shape& slots, rope_qk_args* args, rope_fused* fused, rope_kv_cache* cache) {
    const Heads k = work_->Tensor("k", from_, ShapeOf(kKeyHeads, head_dim_), ROPE_LAYOUT_BSHD);
    const Heads cached = work_->Tensor("cache->k", to_, slots, layout_, scale_);
    args->k = k.tensor;
    cache->k = cached.tensor;
    const int where = r_.Pick(0, 2);  // k_out: nowhere, in place, elsewhere
    Heads out = k;
    if (where == 2) {
      out = work_->Tensor("k_out", from_, ShapeOf(kKeyHeads, head_dim_), ROPE_LAYOUT_SBHD);
    }
    if (where != 0) args->k_out = out.tensor;
    AddNorm(kKeyHeads, to_ != from_, &k_norm_, &fused->k_norm);
    StoresTurned(cached, places_, false, TimesOfNorm(k_norm_, fused->k_norm, to_ != from_));
    if (where != 0) {
      StoresTurned(out, Tokens(rows_, tokens_), where == 1,
                   TimesOfNorm(k_norm_, fused->k_norm, false));
    }
  }

  // Heads of another width than those of k.
  void AddV(const Shape& of_k, rope_fused* fused, rope_kv_cache* cache) {
    const int width = to_ == ROPE_DTYPE_Q8_0 ? 96 : r_.Of({37, 96});
    Shape slots = of_k;
    slots.width = width;
    const Heads v = work_->Tensor("v", from_, ShapeOf(kKeyHeads, width), ROPE_LAYOUT_BSHD);
    const Heads cached = work_->Tensor("cache->v", to_, slots, layout_, scale_);
    fused->v = v.tensor;
    cache->v = cached.tensor;
    fused->v.head_dim = cache->v.head_dim = width;
    if (has_norms_ && r_.Sometimes(2)) {
      v_norm_ = RandomNorm(work_, &r_, {from_, kKeyHeads, width, false, config_}, to_ != from_);
      fused->v_norm = &v_norm_;
      work_->Describe(", v " + NameOf(v_norm_));
    }
    for (const Place& place : places_) work_->Stores(cached, place, 0, width);
    if (!r_.Sometimes(3)) return;
    const Heads out = work_->Tensor("v_out", from_, ShapeOf(kKeyHeads, width), ROPE_LAYOUT_BHSD);
    fused->v_out = out.tensor;
    fused->v_out.head_dim = width;
    for (const Place& token : Tokens(rows_, tokens_)) work_->Stores(out, token, 0, width);
  }

  void AddRest(rope_fused* fused) {
    const int width = to_ == ROPE_DTYPE_Q8_0 ? 64 : 50;
    const Heads rest = work_->Tensor("rest", from_, ShapeOf(1, width), ROPE_LAYOUT_STRIDED),
                out = work_->Tensor("rest_out", to_, ShapeOf(1, width), ROPE_LAYOUT_BSHD, scale_);
    fused->rest = rest.tensor;
    fused->rest_out = out.tensor;
    fused->rest.head_dim = fused->rest_out.head_dim = width;
    for (const Place& token : Tokens(rows_, tokens_)) work_->Stores(out, token, 0, width);
  }

  NormedHeads OfHeads(int heads) const { return {from_, heads, head_dim_, true, config_}; }

  Times AddNorm(int heads, bool converted, rope_norm* norm, const rope_norm** field) {
    if (!has_norms_) return kOnce;
    *norm = RandomNorm(work_, &r_, OfHeads(heads), converted);
    *field = norm;
    work_->Describe(", " + NameOf(*norm));
    return TimesOf(*norm, OfHeads(heads), converted);
  }
  Times TimesOfNorm(const rope_norm& norm, const rope_norm* given, bool converted) const {
    return given == nullptr ? kOnce : TimesOf(norm, OfHeads(0), converted);
  }

  // In place channels outside the span stay, unless they are normed.
  void StoresTurned(const Heads& heads, const std::vector<Place>& places, bool in_place,
                    Times times) {
    const bool span_alone = in_place && !has_norms_ && config_.rotary_dim != 0;
    const int first = span_alone ? config_.rotary_offset : 0,
              channels = span_alone ? config_.rotary_dim : head_dim_;
    for (const Place& place : places) work_->Stores(heads, place, first, channels, times);
  }

  static constexpr int kQueryHeads = 3, kKeyHeads = 2;

  Random& r_;
  const int head_dim_;
  const rope_dtype from_, to_;
  rope_config config_;
  bool one_token_, has_norms_, prepared_;
  int64_t rows_, tokens_;
  rope_slot_kind kind_;
  rope_layout layout_;
  ScaleKind scale_;
  std::string name_;
  Work* work_ = nullptr;
  std::vector<Place> places_;
  rope_norm q_norm_, k_norm_, v_norm_;
};

}  // namespace

void WatchAppends() {
  Random r(2);
  for (const int head_dim : kHeadDims) {
    for (const rope_dtype from : kFrom) {
      for (const rope_dtype to : kTo) {
        if (to == ROPE_DTYPE_Q8_0 && head_dim % 32 != 0) continue;
        for (int i = 0; i < 2; ++i) {
          Append(&r, head_dim, from, to, i == 1 ? Content::kRare : Content::kOrdinary);
        }
      }
    }
  }
}

}  // namespace rope::testing::stores
