// A random valid call of rope_fused, all from one seed: what is appended to a cache and written to
// outputs of another dtype, norms, moves, gradients. Draws what it always drew, as call.h does.
#ifndef LIBROPE_TESTS_BITS_FUSED_CALL_H_
#define LIBROPE_TESTS_BITS_FUSED_CALL_H_

#include <algorithm>
#include <cstdint>
#include <deque>
#include <initializer_list>
#include <numeric>
#include <utility>
#include <vector>

#include "call.h"
#include "hash.h"
#include "librope/rope.h"

namespace bits {

enum class Fused { kAppend, kNorm, kMove, kGradient };

class FusedCall : public Call {
 public:
  explicit FusedCall(uint64_t seed) : Call(seed, true) {}

  // False where the configuration makes no context.
  bool Make(Fused what) {
    MakeConfig();
    if (random().Sometimes(6)) config_.rounding = ROPE_ROUNDING_NATIVE;
    factor_step_ = 0.125;
    if (Create() != ROPE_OK) return false;
    Hash unused;
    HashInfo(&unused);
    args_ = ROPE_INIT(rope_qk_args);
    args_.batch = random().Of({1, 1, 2, 3});
    args_.tokens = random().Of({1, 1, 2, 3, 5, 9, 17});
    if (config_.head_dim > 128) args_.tokens = std::min<int64_t>(args_.tokens, 3);
    args_.fused = &fused_;
    switch (what) {
      case Fused::kAppend: MakeAppend(false); break;
      case Fused::kNorm: MakeAppend(true); break;
      case Fused::kMove: MakeMove(); break;
      case Fused::kGradient: MakeGradients(); break;
    }
    return true;
  }

 private:
  bool nope() const { return config_.scaling == ROPE_SCALING_NOPE; }
  bool native() const { return config_.rounding == ROPE_ROUNDING_NATIVE; }
  bool is_code(int dtype) const { return dtype > kBf16; }
  int WidthOf(const rope_tensor& t) const { return t.head_dim != 0 ? t.head_dim : info_.head_dim; }
  int DtypeOfHeads() { return native() ? ROPE_DTYPE_F16 : random().Pick(kF32, kBf16); }
  int AnyCodes(int width) {
    return random().Of({ROPE_DTYPE_F8_E4M3, ROPE_DTYPE_F8_E5M2, ROPE_DTYPE_I8,
                        width % 32 == 0 ? ROPE_DTYPE_Q8_0 : ROPE_DTYPE_F8_E4M3});
  }

  // Cos and sin of the call. `rows`: those of the caller, too.
  void MakeTurns(bool rows) {
    if (rows && random().Sometimes(4)) {
      rows_ = MakeRows(false);
      args_.cos_sin = &rows_;
    } else {
      args_.positions = MakePositions();
    }
  }

  char* NewBytes(int64_t size) {
    Buffer& b = NewBuffer(kF32, static_cast<size_t>(size + 3) / 4);
    b.dtype = kBytes;
    return b.bytes.data();
  }
  void* NewElements(int dtype, int64_t count) {
    if (dtype == ROPE_DTYPE_Q8_0) return NewBytes(count / 32 * 34);
    if (is_code(dtype)) return NewBytes(count);
    return NewBuffer(dtype, static_cast<size_t>(count)).bytes.data();
  }

  // [outer, inner, heads] in the order of a layout, without gaps; scales where it needs them.
  rope_tensor NewTensor(int dtype, int heads, int head_dim, int layout, int64_t outer,
                        int64_t inner) {
    rope_tensor t{};
    t.dtype = dtype;
    t.heads = heads;
    t.head_dim = head_dim;
    t.layout = layout;
    t.data = NewElements(dtype, outer * inner * heads * WidthOf(t));
    if (is_code(dtype) && dtype != ROPE_DTYPE_Q8_0) t.scale = NewScale(t, outer, inner);
    return t;
  }

  const rope_scale* NewScale(const rope_tensor& t, int64_t outer, int64_t inner) {
    Random& r = random();
    rope_scale& s = scales_.emplace_back(ROPE_INIT(rope_scale));
    s.round_first = r.Sometimes(3) ? 1 : 0;
    if (r.Sometimes(3)) {
      s.value = r.Of({0.02f, 0.5f, 1.0f});
      return &s;
    }
    const int width = WidthOf(t), groups = width % 2 == 0 && r.Sometimes(3) ? 2 : 1;
    s.group = groups == 1 ? r.Of({0, width}) : width / 2;
    s.dtype = r.Of({ROPE_DTYPE_F32, ROPE_DTYPE_F32, ROPE_DTYPE_E8M0});
    s.computed = r.Pick(0, 1);
    if (s.computed != 0) {
      s.power_of_two = s.dtype == ROPE_DTYPE_E8M0 ? 1 : r.Pick(0, 1);
      s.min_scale = r.Of({0.0, 0.0, 0.001});
    }
    s.stride_head = groups;
    s.stride_token = int64_t{t.heads} * groups;
    s.stride_batch = inner * s.stride_token;
    const int64_t count = outer * s.stride_batch;
    s.data = s.dtype == ROPE_DTYPE_F32 ? NewElements(kF32, count) : NewBytes(count);
    if (s.dtype == ROPE_DTYPE_E8M0) {
      for (int64_t i = 0; i < count; ++i) {
        static_cast<uint8_t*>(s.data)[i] = static_cast<uint8_t>(r.Pick(120, 134));
      }
    }
    return &s;
  }

  // Where tokens go: slots of their own, or nowhere.
  void MakeSlots(rope_kv_cache* c) {
    Random& r = random();
    const rope_positions& p = args_.positions;
    const int64_t count = args_.batch * args_.tokens,
                  sequences = p.cu_seqlens != nullptr ? p.sequences : args_.batch;
    *c = ROPE_INIT(rope_kv_cache);
    c->kind = r.Pick(ROPE_SLOTS_MAPPED, ROPE_SLOTS_LINEAR);
    c->page_size = r.Of({1, 3, 16});
    const auto shuffled = [&](int64_t size) {
      std::vector<int32_t> numbers(static_cast<size_t>(size));
      std::iota(numbers.begin(), numbers.end(), 0);
      for (size_t i = numbers.size(); i > 1; --i) {
        if (r.Sometimes(2)) {
          std::swap(numbers[i - 1], numbers[static_cast<size_t>(r.Below(static_cast<int64_t>(i)))]);
        }
      }
      for (int32_t& n : numbers) n = r.Sometimes(9) ? -1 : n;
      return numbers;
    };
    if (c->kind == ROPE_SLOTS_MAPPED) {
      c->pages = count / c->page_size + 1;
      const std::vector<int32_t> slots = shuffled(c->pages * c->page_size);
      c->slots_length = r.Sometimes(4) ? r.Pick(1, static_cast<int>(count)) : count;
      if (r.Sometimes(2)) {
        c->slots_i32 = Keep(slots);
      } else {
        c->slots_i64 = Keep(std::vector<int64_t>(slots.begin(), slots.end()));
      }
      return;
    }
    const bool linear = c->kind == ROPE_SLOTS_LINEAR;
    std::vector<int32_t> starts;
    for (int64_t s = 0; s < sequences; ++s) starts.push_back(r.Pick(0, 5));
    c->starts = Keep(starts);
    if (linear) {
      c->page_size = static_cast<int32_t>(args_.tokens) + 5;
      c->pages = sequences;
      return;
    }
    c->page_size = std::max(c->page_size, 3);
    c->page_table_stride = (args_.tokens + 5) / c->page_size + 1;
    c->pages = sequences * c->page_table_stride;
    c->page_table = Keep(shuffled(c->pages));
  }
  rope_tensor NewPages(int dtype, int heads, int head_dim, const rope_kv_cache& c) {
    const int layout = random().Of({ROPE_LAYOUT_NHD, ROPE_LAYOUT_HND});
    return NewTensor(dtype, heads, head_dim, layout, c.pages, c.page_size);
  }

  // Of what is stored: the dtype of the input, another one, or codes.
  int DtypeOfOutput(int dtype, int width, bool turns) {
    Random& r = random();
    if (r.Sometimes(3)) return AnyCodes(width);
    return (turns && native()) || r.Sometimes(2) ? dtype : r.Pick(kF32, kBf16);
  }
  // `alike`: of the dtype and the heads of its input.
  rope_tensor NewOutput(const rope_tensor& in, bool turns, bool alike) {
    const int repeats = alike || fused_.source != nullptr ? 1 : random().Of({1, 1, 2});
    const int dtype = alike ? in.dtype : DtypeOfOutput(in.dtype, WidthOf(in), turns);
    return NewTensor(dtype, in.heads * repeats, in.head_dim, random().Pick(1, 3), args_.batch,
                     args_.tokens);
  }
  rope_tensor NewInput(int heads) {  // of v or rest
    Random& r = random();
    return NewTensor(r.Pick(kF32, kBf16), heads, r.Of({1, 5, 16, 32, 64, 96}), r.Pick(1, 3),
                     args_.batch, args_.tokens);
  }

  // The norm of a tensor. Sets *alike where its output must be like it.
  const rope_norm* NewNorm(const rope_tensor& t, bool turns, bool* alike) {
    Random& r = random();
    const bool backward = args_.operation == ROPE_OPERATION_BACKWARD;
    rope_norm& n = norms_.emplace_back(ROPE_INIT(rope_norm));
    n.kind = r.Pick(ROPE_NORM_KIND_RMS, ROPE_NORM_KIND_LAYER_BIAS);
    const bool has_mean = n.kind >= ROPE_NORM_KIND_LAYER;
    n.span = r.Sometimes(2)         ? ROPE_NORM_SPAN_HEAD
             : has_mean || backward ? ROPE_NORM_SPAN_ALL_HEADS
                                    : r.Pick(ROPE_NORM_SPAN_ALL_HEADS, ROPE_NORM_SPAN_GIVEN);
    n.order = turns && !backward ? r.Pick(0, 1) : 0;
    n.rounding = r.Pick(ROPE_NORM_ROUNDING_FLOAT32, ROPE_NORM_ROUNDING_EAGER);
    const bool all = n.span == ROPE_NORM_SPAN_ALL_HEADS, late = n.order != 0 || has_mean;
    const bool products = config_.rounding == ROPE_ROUNDING_EAGER || native();
    if (t.dtype != kF32 && turns && !nope() && n.rounding == ROPE_NORM_ROUNDING_FLOAT32 &&
        (products || (all && late))) {
      n.rounding = r.Pick(ROPE_NORM_ROUNDING_ROUNDED, ROPE_NORM_ROUNDING_EAGER);
    }
    *alike |= all && late;
    if (n.span == ROPE_NORM_SPAN_GIVEN) {
      std::vector<float> rstd;
      for (int64_t i = 0; i < args_.batch * args_.tokens; ++i) {
        rstd.push_back(0.25f + 0.001f * static_cast<float>(r.Pick(0, 999)));
      }
      n.rstd = Keep(rstd);
    } else {
      n.eps = r.Of({1e-6, 1e-5, 0.25});
    }
    if (n.kind == ROPE_NORM_KIND_RMS_PLAIN) return &n;
    const int width = WidthOf(t);
    n.weight_dtype = r.Pick(kF32, kBf16);
    if (n.span != ROPE_NORM_SPAN_HEAD || r.Sometimes(3)) {
      n.weight_stride_head = width + r.Pick(0, 3);
    }
    const int64_t count = n.weight_stride_head * (t.heads - 1) + width;
    n.weight = NewElements(n.weight_dtype, count);
    if (n.kind == ROPE_NORM_KIND_LAYER_BIAS) n.bias = NewElements(n.weight_dtype, count);
    return &n;
  }

  void MakeAppend(bool norms) {
    Random& r = random();
    MakeTurns(norms);
    if (!norms && r.Sometimes(4)) {
      args_.operation =
          args_.positions.kind >= kIdsT ? ROPE_OPERATION_SHIFT : ROPE_OPERATION_INVERSE;
    }
    const auto wants_norm = [&] { return norms && !r.Sometimes(4); };
    if (!r.Sometimes(3)) {
      const bool apart = r.Sometimes(2);
      args_.q = MakeTensor(DtypeOfHeads(), r.Of({1, 3, 4, 8}), apart);
      bool alike = false;
      if (wants_norm()) fused_.q_norm = NewNorm(args_.q, true, &alike);
      if (apart) args_.q_out = NewOutput(args_.q, true, alike);
    }
    const bool cached = !norms || r.Sometimes(2), in_place = r.Sometimes(3);
    args_.k = MakeTensor(DtypeOfHeads(), r.Of({1, 2, 3, 8}), !in_place);
    fused_.v = NewInput(args_.k.heads);
    bool k_alike = false, v_alike = false;
    if (wants_norm()) fused_.k_norm = NewNorm(args_.k, true, &k_alike);
    if (wants_norm()) fused_.v_norm = NewNorm(fused_.v, false, &v_alike);
    if (in_place) {
      args_.k_out = args_.k;
    } else if (!cached || r.Sometimes(4)) {
      args_.k_out = NewOutput(args_.k, true, k_alike);
    }
    if (!cached || r.Sometimes(4)) {
      fused_.v_out = r.Sometimes(2) ? fused_.v : NewOutput(fused_.v, false, v_alike);
    }
    if (r.Sometimes(4)) {
      fused_.rest = NewInput(r.Of({1, 2, 5}));
      fused_.rest_out = NewOutput(fused_.rest, false, false);
    }
    if (!cached) return;
    MakeSlots(&cache_);
    const auto store = [&](const rope_tensor& in, bool turns, bool alike) {
      const int dtype = alike ? in.dtype : DtypeOfOutput(in.dtype, WidthOf(in), turns);
      return NewPages(dtype, in.heads, in.head_dim, cache_);
    };
    cache_.k = store(args_.k, true, k_alike);
    cache_.v = store(fused_.v, false, v_alike);
    fused_.cache = &cache_;
  }

  void MakeMove() {
    Random& r = random();
    args_.operation = r.Of({ROPE_OPERATION_FORWARD, ROPE_OPERATION_SHIFT, ROPE_OPERATION_REROTATE,
                            ROPE_OPERATION_REROTATE});
    do {
      args_.positions = MakePositions();
    } while (args_.operation == ROPE_OPERATION_SHIFT && args_.positions.kind < kIdsT);
    if (args_.operation == ROPE_OPERATION_REROTATE) {
      // Offsets of batch rows are not those of packed sequences.
      const auto by_rows = [](const rope_positions& p) {
        return p.kind == ROPE_POSITIONS_SEQ_OFFSETS && p.cu_seqlens == nullptr;
      };
      do {
        from_ = MakePositions();
      } while (by_rows(from_) != by_rows(args_.positions) &&
               (from_.cu_seqlens != nullptr) != (args_.positions.cu_seqlens != nullptr));
      fused_.from_positions = &from_;
    }
    const int heads = r.Of({1, 2, 3, 8}), head_dim = r.Sometimes(4) ? info_.rotary_dim : 0;
    const int width = head_dim != 0 ? head_dim : info_.head_dim;
    const auto dtype_of_k = [&] {
      return native() ? ROPE_DTYPE_F16 : r.Sometimes(2) ? AnyCodes(width) : r.Pick(kF32, kBf16);
    };
    const bool has_v = r.Sometimes(2);
    const int v_width = r.Of({5, 16, 64, 96});
    const auto dtype_of_v = [&] {
      return r.Sometimes(2) ? AnyCodes(v_width) : r.Pick(kF32, kBf16);
    };
    MakeSlots(&source_);
    source_.k = NewPages(dtype_of_k(), heads, head_dim, source_);
    if (has_v) source_.v = NewPages(dtype_of_v(), heads, v_width, source_);
    fused_.source = &source_;
    cache_ = source_;  // in place, unless
    if (r.Sometimes(2)) {
      MakeSlots(&cache_);
      cache_.k = NewPages(dtype_of_k(), heads, head_dim, cache_);
      if (has_v) cache_.v = NewPages(dtype_of_v(), heads, v_width, cache_);
    }
    fused_.cache = &cache_;
    const auto output = [&](int dtype, int dim) {
      return NewTensor(dtype, heads, dim, r.Pick(1, 3), args_.batch, args_.tokens);
    };
    if (r.Sometimes(4)) args_.k_out = output(dtype_of_k(), head_dim);
    if (has_v && r.Sometimes(4)) fused_.v_out = output(dtype_of_v(), v_width);
  }

  // The gradient of q, k or v: of heads that were repeated, and of a norm.
  void MakeGradient(int dtype, int head_dim, bool turns, rope_tensor* in, rope_tensor* out,
                    const rope_norm** norm_of) {
    Random& r = random();
    const int heads = r.Of({1, 2, 3, 8}), repeats = r.Of({1, 1, 2, 4});
    const auto tensor = [&](int count) {
      return NewTensor(dtype, count, head_dim, r.Pick(1, 3), args_.batch, args_.tokens);
    };
    *in = tensor(heads * repeats);
    if (repeats > 1 || r.Sometimes(2)) {
      *out = tensor(heads);
    } else if (!turns) {
      *out = *in;
    }
    if (r.Sometimes(4)) return;
    rope_tensor& x = x_.emplace_back(tensor(heads));
    bool unused = false;
    *norm_of = NewNorm(x, turns, &unused);
    rope_norm& norm = norms_.back();
    norm.x = &x;
    if (norm.weight == nullptr) return;
    norm.grad_parts = parts_;
    const int64_t count = int64_t{parts_} * (norm.weight_stride_head != 0 ? heads : 1) * WidthOf(x);
    norm.weight_grad = static_cast<float*>(NewElements(kF32, count));
    if (norm.bias != nullptr) norm.bias_grad = static_cast<float*>(NewElements(kF32, count));
  }

  void MakeGradients() {
    Random& r = random();
    args_.operation = ROPE_OPERATION_BACKWARD;
    MakeTurns(true);
    parts_ = r.Of({1, 2, 5});
    const auto head_dim = [&] { return r.Sometimes(4) ? info_.rotary_dim : 0; };
    MakeGradient(DtypeOfHeads(), head_dim(), true, &args_.q, &args_.q_out, &fused_.q_norm);
    if (r.Sometimes(2)) {
      MakeGradient(DtypeOfHeads(), head_dim(), true, &args_.k, &args_.k_out, &fused_.k_norm);
    }
    if (r.Sometimes(2)) {
      MakeGradient(r.Pick(kF32, kBf16), r.Of({5, 16, 64, 96}), false, &fused_.v, &fused_.v_out,
                   &fused_.v_norm);
    }
  }

  rope_fused fused_ = ROPE_INIT(rope_fused);
  rope_positions from_{};
  rope_kv_cache cache_ = ROPE_INIT(rope_kv_cache), source_ = ROPE_INIT(rope_kv_cache);
  int parts_ = 0;
  std::deque<rope_scale> scales_;
  std::deque<rope_norm> norms_;
  std::deque<rope_tensor> x_;
};

}  // namespace bits

#endif  // LIBROPE_TESTS_BITS_FUSED_CALL_H_
