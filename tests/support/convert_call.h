// Random calls whose outputs have another dtype than their input, are in 8 bits, Q8_0 too, or
// repeat its heads, with norms or without, turned by an offset or as a random call is, and what
// they must write by the definition: the result in f32, or under a policy that rounds in the
// input's dtype, normed before or behind that, and converted once. All tensors lie in one buffer.
#ifndef LIBROPE_TESTS_SUPPORT_CONVERT_CALL_H_
#define LIBROPE_TESTS_SUPPORT_CONVERT_CALL_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <deque>
#include <limits>
#include <vector>

#include "math/element.h"
#include "support/codes.h"
#include "support/elements.h"
#include "support/enumerators.h"
#include "support/handles.h"
#include "support/norm_reference.h"
#include "support/q8_0.h"
#include "support/random.h"
#include "support/random_call.h"
#include "support/scales.h"
#include "support/written_bytes.h"

namespace rope::testing {

// Numbers of one tensor, [batch, tokens, heads, width].
struct ConvertNumbers {
  int64_t tokens, heads, width;
  std::vector<float> values;

  float* Head(int64_t token, int64_t head) { return &values[(token * heads + head) * width]; }
};

// An output, and its scales.
struct ConvertedOutput {
  rope_tensor t{};
  rope_scale scale = ROPE_INIT(rope_scale);
  bool cached = false;
  rope_dtype in_dtype = 0;
  int repeats = 1;
  bool turns = false;
};

// The norm of an input, or none (kind 0), with all that it points to.
struct ConvertNorm {
  rope_norm norm = ROPE_INIT(rope_norm);
  std::vector<float> weight, bias, rstd;
};

// A random call: q to q_out, k to k_out or a cache, v to v_out or the cache, rest to rest_out.
class ConvertCall {
 public:
  // `norms`: some inputs are normed, with fused multiply-add or without. `rows`, if any: at most so
  // many rows of one token each.
  ConvertCall(const rope_config& config, bool norms, bool fused, uint64_t seed, int rows = 0)
      : config_(config), norms_are_fused_(fused), r_(seed) {
    batch_ = r_.Pick(1, 3);
    tokens_ = r_.Pick(1, r_.Of({3, 40}));
    if (rows != 0) {
      batch_ = r_.Pick(2, rows);
      tokens_ = 1;
    }
    args_ = Args(batch_, tokens_);
    args_.positions = Offset(r_.Pick(0, 3000));
    args_.operation = r_.Of({ROPE_OPERATION_FORWARD, ROPE_OPERATION_INVERSE});
    MakeTensors(norms);
  }

  // One that turns as `turns` does, by positions of any kind or by rows of cos and sin.
  ConvertCall(const RandomCall& turns, bool norms, bool fused, uint64_t seed)
      : config_(turns.config()), norms_are_fused_(fused), r_(seed) {
    batch_ = turns.args.batch;
    tokens_ = turns.args.tokens;
    args_ = Args(batch_, tokens_);
    args_.positions = turns.args.positions;
    args_.cos_sin = turns.args.cos_sin;
    if (turns.args.operation != ROPE_OPERATION_BACKWARD) args_.operation = turns.args.operation;
    row_heads_ = std::max({1, turns.rows.heads, config_.freq_heads});
    if (args_.cos_sin == nullptr && args_.positions.cu_seqlens == nullptr && r_.Sometimes(3)) {
      args_.positions.batch_repeat = batch_ % 2 == 0 ? r_.Of({int64_t{2}, batch_}) : batch_;
    }
    MakeTensors(norms);
  }

  // Not copied: its calls point to it.
  ConvertCall(const ConvertCall&) = delete;

  // The call, on `memory`.
  const rope_qk_args& args() {
    args_.q = At(q_), args_.q_out = At(&q_out_);
    args_.k = At(k_), args_.k_out = At(&k_out_);
    fused_ = ROPE_INIT(rope_fused);
    fused_.v = At(v_), fused_.v_out = At(&v_out_);
    if (rest_out_.t.heads != 0) fused_.rest = At(rest_), fused_.rest_out = At(&rest_out_);
    cache_.k = At(&k_cache_), cache_.v = At(&v_cache_);
    if (k_cache_.t.heads != 0 || v_cache_.t.heads != 0) fused_.cache = &cache_;
    if (q_norm_.norm.kind != 0) fused_.q_norm = &q_norm_.norm;
    if (k_norm_.norm.kind != 0) fused_.k_norm = &k_norm_.norm;
    if (v_norm_.norm.kind != 0) fused_.v_norm = &v_norm_.norm;
    args_.fused = &fused_;
    return args_;
  }
  std::vector<char>& memory() { return memory_; }
  bool is_normed() const {
    return q_norm_.norm.kind != 0 || k_norm_.norm.kind != 0 || v_norm_.norm.kind != 0;
  }
  // Heads of q and k that were written as these codes.
  int64_t turned(rope_dtype code) const { return turned_[code]; }

  // All of memory behind the call, if it is as it was before. `context`: of the CPU.
  std::vector<char> Want(const Context& context) {
    std::vector<char> want = memory_;
    WriteRotated(context, q_, q_norm_, q_out_, &want);
    WriteRotated(context, k_, k_norm_, k_out_, &want);
    WriteRotated(context, k_, k_norm_, k_cache_, &want);
    const ConvertNumbers v = Normed(NumbersOf(v_), v_, v_norm_);
    Write(v, 0, 0, v_.head_dim, v_out_, &want);
    Write(v, 0, 0, v_.head_dim, v_cache_, &want);
    Write(NumbersOf(rest_), 0, 0, rest_.head_dim, rest_out_, &want);
    return want;
  }
  void ExpectMemory(const std::vector<char>& want) const { ExpectBytes(memory_, written_, want); }

 private:
  void MakeTensors(bool norms) {
    span_ = config_.rotary_dim != 0 ? config_.rotary_dim : config_.head_dim;
    MakeSlots();
    const rope_dtype dtype =
        config_.rounding == ROPE_ROUNDING_NATIVE ? ROPE_DTYPE_F16 : r_.Pick(1, kLastDtype);
    const auto width = [&] { return r_.Sometimes(3) ? span_ : r_.Of({0, config_.head_dim}); };
    q_ = Place(dtype, row_heads_ * r_.Pick(1, 12 / row_heads_), width(), false);
    k_ = Place(dtype, row_heads_ * r_.Pick(1, 3), width(), false);
    v_ = Place(r_.Pick(1, kLastDtype), r_.Pick(1, 3), r_.Of({1, 7, 64, 96, 512, 1024}), false);
    rest_ = Place(r_.Pick(1, kLastDtype), r_.Pick(1, 3), r_.Of({1, 16, 64, 80}), false);
    Fill();
    const bool stores = args_.positions.batch_repeat <= 1;
    const auto turned = [&](const rope_tensor& in, bool cached) {
      return PlaceOutput(in, width(), cached, true);
    };
    const auto copied = [&](const rope_tensor& in, bool cached) {
      return PlaceOutput(in, in.head_dim, cached, false);
    };
    q_out_ = turned(q_, false);
    if (!stores || !r_.Sometimes(3)) k_out_ = turned(k_, false);
    if (k_out_.t.heads == 0 || (stores && r_.Sometimes(2))) k_cache_ = turned(k_, true);
    if (!stores || !r_.Sometimes(3)) v_out_ = copied(v_, false);
    if (v_out_.t.heads == 0 || (stores && r_.Sometimes(2))) v_cache_ = copied(v_, true);
    if (r_.Sometimes(2)) rest_out_ = copied(rest_, false);
    // In place: what goes to the cache is read before.
    if (k_cache_.t.heads != 0 && r_.Sometimes(3)) k_out_ = {k_, {}, false, k_.dtype, 1};
    if (v_cache_.t.heads != 0 && r_.Sometimes(3)) v_out_ = {v_, {}, false, v_.dtype, 1};
    if (!norms) return;
    args_.operation = ROPE_OPERATION_FORWARD;
    MakeNorm(q_, {&q_out_}, &q_norm_);
    MakeNorm(k_, {&k_out_, &k_cache_}, &k_norm_);
    MakeNorm(v_, {}, &v_norm_);
  }

  // Any norm that the context and the outputs of q, k (turning) or v allow, or none.
  void MakeNorm(const rope_tensor& in, const std::vector<const ConvertedOutput*>& turning,
                ConvertNorm* to) {
    if (r_.Sometimes(4)) return;
    rope_norm& n = to->norm;
    const auto width = static_cast<size_t>(Width(in));
    n.kind = r_.Pick(ROPE_NORM_KIND_RMS, ROPE_NORM_KIND_LAYER_BIAS);
    const bool layer = n.kind >= ROPE_NORM_KIND_LAYER;
    n.eps = 1e-5;
    n.rounding = r_.Pick(ROPE_NORM_ROUNDING_FLOAT32, ROPE_NORM_ROUNDING_EAGER);
    const bool is_rounded =
        config_.rounding != ROPE_ROUNDING_FLOAT32 && config_.scaling != ROPE_SCALING_NOPE;
    if (is_rounded && n.rounding == ROPE_NORM_ROUNDING_FLOAT32) {
      n.rounding = ROPE_NORM_ROUNDING_ROUNDED;
    }
    bool same_width = !turning.empty();
    const bool apart = !turning.empty() && row_heads_ > 1;  // normed singly, by the same weights
    for (const ConvertedOutput* out : turning) {
      same_width &= out->t.heads == 0 || Width(out->t) == Width(in);
    }
    if (same_width && r_.Sometimes(3)) {
      n.order = ROPE_NORM_ORDER_AFTER;
    } else if (!layer && !apart) {
      n.span = r_.Pick(ROPE_NORM_SPAN_HEAD, ROPE_NORM_SPAN_GIVEN);
    }
    if (n.span == ROPE_NORM_SPAN_GIVEN) {
      n.eps = 0;
      for (int64_t i = 0; i < batch_ * tokens_; ++i) to->rstd.push_back(r_.Pick(1, 900) / 512.0f);
      n.rstd = to->rstd.data();
    }
    if (n.kind == ROPE_NORM_KIND_RMS_PLAIN) return;
    n.weight_dtype = ROPE_DTYPE_F32;
    if (!apart && (n.span != ROPE_NORM_SPAN_HEAD || r_.Sometimes(2))) {
      n.weight_stride_head = static_cast<int64_t>(width);
    }
    for (size_t i = 0; i < width * static_cast<size_t>(in.heads); ++i) {
      to->weight.push_back(r_.Pick(-300, 900) / 512.0f);
      to->bias.push_back(r_.Pick(-300, 900) / 512.0f);
    }
    n.weight = to->weight.data();
    if (n.kind == ROPE_NORM_KIND_LAYER_BIAS) n.bias = to->bias.data();
  }

  ConvertNumbers Normed(ConvertNumbers numbers, const rope_tensor& t, const ConvertNorm& norm) {
    if (norm.norm.kind == 0) return numbers;
    const auto heads = static_cast<size_t>(numbers.heads);
    const auto rows = [&](const void* used, const std::vector<float>& values) {
      std::vector<Head> of_heads;
      for (size_t h = 0; h < heads && used != nullptr; ++h) {
        const float* const row = &values[h * static_cast<size_t>(norm.norm.weight_stride_head)];
        of_heads.emplace_back(row, row + numbers.width);
      }
      return of_heads;
    };
    const NormReference reference = {norm.norm, rows(norm.norm.weight, norm.weight),
                                     rows(norm.norm.bias, norm.bias), t.dtype, norms_are_fused_};
    for (int64_t token = 0; token < numbers.tokens; ++token) {
      std::vector<Head> x;
      for (int64_t h = 0; h < numbers.heads; ++h) {
        x.emplace_back(numbers.Head(token, h), numbers.Head(token, h) + numbers.width);
      }
      x = reference.Of(x, norm.rstd.empty() ? 0 : norm.rstd[static_cast<size_t>(token)]);
      for (size_t h = 0; h < heads; ++h) {
        std::copy(x[h].begin(), x[h].end(), numbers.Head(token, static_cast<int64_t>(h)));
      }
    }
    return numbers;
  }

  void MakeSlots() {
    cache_.kind = ROPE_SLOTS_MAPPED;
    cache_.page_size = r_.Of({1, 3, 16});
    cache_.pages = batch_ * tokens_ / cache_.page_size + r_.Pick(1, 3);
    for (int64_t i = 0; i < batch_ * tokens_; ++i) slots_.push_back(i);
    for (int64_t& slot : slots_) {
      if (r_.Sometimes(5)) std::swap(slot, slots_[r_.Below(batch_ * tokens_)]);
    }
    for (int64_t& slot : slots_) {
      if (r_.Sometimes(9)) slot = -1;
    }
    cache_.slots_i64 = slots_.data();
    cache_.slots_length = batch_ * tokens_;
  }

  int64_t Width(const rope_tensor& t) const {
    return t.head_dim != 0 ? t.head_dim : config_.head_dim;
  }

  // Behind all others, with canaries between them; `data` is an offset.
  rope_tensor Place(rope_dtype dtype, int heads, int head_dim, bool cached) {
    rope_tensor t = Tensor(nullptr, dtype, heads);
    t.head_dim = head_dim;
    const int64_t outer = cached ? cache_.pages : batch_,
                  inner = cached ? cache_.page_size : tokens_, width = Width(t);
    if (r_.Sometimes(2)) {  // adjacent heads, or heads outside
      const int64_t unit = dtype == ROPE_DTYPE_Q8_0 ? kBlock : 1;
      const int64_t head = width + unit * r_.Of({0, 0, 3});
      if (r_.Sometimes(3)) {
        SetStrides(&t, heads * inner * head, head, inner * head);
      } else {
        const int64_t token = heads * head + unit * r_.Of({0, 0, 5});
        SetStrides(&t, inner * token, token, head);
      }
    } else {
      t.layout = cached ? r_.Of({ROPE_LAYOUT_NHD, ROPE_LAYOUT_HND})
                        : r_.Of({ROPE_LAYOUT_BSHD, ROPE_LAYOUT_BHSD});
    }
    const size_t offset = (memory_.size() + 15) / 4 * 4;
    const int64_t last = ElementOf(t, outer - 1, inner - 1, heads - 1, inner) + width;
    memory_.resize(offset + static_cast<size_t>(BytesInMemory(dtype, last)) + 8, 0x5a);
    t.data = reinterpret_cast<void*>(offset);
    return t;
  }

  // Any dtype that an output may have.
  rope_dtype OutputDtype(const rope_tensor& in, int64_t width, bool turns) {
    const bool whole = width == config_.head_dim;
    const bool alone = whole && Width(in) != width;  // of whole heads, the span
    const int64_t blocks = turns && alone ? width | span_ | config_.rotary_offset : width;
    if (blocks % kBlock == 0 && r_.Sometimes(4)) return ROPE_DTYPE_Q8_0;
    if (!turns || config_.rounding != ROPE_ROUNDING_NATIVE) {
      return r_.Pick(ROPE_DTYPE_F32, ROPE_DTYPE_I8);
    }
    return r_.Of({ROPE_DTYPE_F16, ROPE_DTYPE_F8_E4M3, ROPE_DTYPE_F8_E5M2, ROPE_DTYPE_I8});
  }

  // An output of `in`, with scales behind it if it is of codes.
  ConvertedOutput PlaceOutput(const rope_tensor& in, int head_dim, bool cached, bool turns) {
    ConvertedOutput out;
    const bool once = cached || in.heads > 3 || (turns && row_heads_ > 1);
    const int repeats = once ? 1 : r_.Of({1, 1, 1, 2, 5});
    const rope_dtype dtype = OutputDtype(in, head_dim != 0 ? head_dim : config_.head_dim, turns);
    out.t = Place(dtype, in.heads * repeats, head_dim, cached);
    out.turns = turns;
    out.repeats = repeats;
    out.cached = cached;
    out.in_dtype = in.dtype;
    if (!IsCode(out.t.dtype)) return out;
    rope_scale& s = out.scale;
    s.round_first = r_.Pick(0, 1);
    const int64_t width = Width(out.t);
    if (r_.Sometimes(3) || width > Width(in)) {
      s.value = static_cast<float>(std::ldexp(r_.Pick(1, 999), r_.Pick(-20, -8)));
      return out;
    }
    s.computed = r_.Pick(0, 1);
    s.dtype = r_.Of({ROPE_DTYPE_F32, ROPE_DTYPE_E8M0});
    s.power_of_two = s.computed != 0 && (s.dtype == ROPE_DTYPE_E8M0 || r_.Sometimes(2));
    if (s.computed != 0 && r_.Sometimes(2)) s.min_scale = r_.Of({1e-4, 0.0123, 1e-12});
    while (r_.Sometimes(2)) {
      s.group = static_cast<int32_t>(r_.Of({width, width / 2, width / 4, int64_t{16}}));
      if (s.group == 0 || width % s.group != 0) s.group = 0;
    }
    const int64_t groups = s.group == 0 ? 1 : width / s.group;
    const int64_t outer = cached ? cache_.pages : batch_,
                  inner = cached ? cache_.page_size : tokens_;
    s.stride_head = groups + r_.Of({0, 0, 1});
    s.stride_token = s.stride_head * out.t.heads + r_.Of({0, 0, 3});
    s.stride_batch = s.stride_token * inner + r_.Of({0, 0, 7});
    if (s.computed == 0 && r_.Sometimes(3)) s.stride_token = s.stride_batch = 0;
    const size_t at = (memory_.size() + 7) / 4 * 4, size = static_cast<size_t>(SizeOfScale(s));
    memory_.resize(at +
                       static_cast<size_t>(s.stride_batch * outer + s.stride_token * inner +
                                           s.stride_head * out.t.heads) *
                           size +
                       8,
                   0x5a);
    s.data = reinterpret_cast<void*>(at);
    if (s.computed != 0) return out;
    for (size_t i = at; i + size <= memory_.size(); i += size) {
      if (s.dtype == ROPE_DTYPE_E8M0) {
        memory_[i] = static_cast<char>(r_.Pick(117, 128));
      } else {
        WriteElement(ROPE_DTYPE_F32, &memory_[i], std::ldexp(r_.Pick(1, 999), -14));
      }
    }
    return out;
  }

  // The scale of a group, given or by the definition.
  float ScaleOf(const ConvertedOutput& out, const float* x, int64_t count, size_t at,
                std::vector<char>* want) {
    const rope_scale& s = out.scale;
    if (s.data == nullptr) return s.value;
    if (s.computed == 0) return ReadScale(s, &(*want)[at]);
    const float scale = ComputedScale(s, out.t.dtype, x, count);
    WriteScale(s, &(*want)[at], scale);
    return scale;
  }

  rope_tensor At(ConvertedOutput* out) {
    rope_tensor at = At(out->t);
    if (!IsCode(out->t.dtype)) return at;
    scales_.push_back(out->scale);
    rope_scale& s = scales_.back();
    if (s.data != nullptr) s.data = memory_.data() + reinterpret_cast<size_t>(s.data);
    at.scale = &s;
    return at;
  }

  rope_tensor At(const rope_tensor& t) {
    rope_tensor at = t;
    if (t.heads != 0) at.data = memory_.data() + reinterpret_cast<size_t>(t.data);
    return at;
  }

  // Which element of a tensor, by its strides or its layout.
  int64_t ElementOf(const rope_tensor& t, int64_t b, int64_t s, int64_t h, int64_t inner) const {
    const int64_t width = Width(t);
    if (t.layout == ROPE_LAYOUT_STRIDED) {
      return b * t.stride_batch + s * t.stride_token + h * t.stride_head;
    }
    const bool heads_inside = t.layout == ROPE_LAYOUT_BSHD || t.layout == ROPE_LAYOUT_NHD;
    return heads_inside ? ((b * inner + s) * t.heads + h) * width
                        : ((b * t.heads + h) * inner + s) * width;
  }

  // Inputs: numbers of all sizes, and some NaN and infinities.
  void Fill() {
    for (const rope_tensor& t : {q_, k_, v_, rest_}) {
      ForEachHead(t, [&](int64_t, int64_t, size_t at) {
        for (int64_t c = 0; c < Width(t); ++c) {
          double value = (r_.Below(2001) - 1000) / 256.0;
          if (r_.Sometimes(20)) value *= 0x1p-20;
          if (r_.Sometimes(20)) value *= 0x1p13;
          if (r_.Sometimes(500)) value = r_.Of({INFINITY, -INFINITY, NAN});
          WriteElement(t.dtype, memory_.data() + at + c * SizeOf(t.dtype), value);
        }
      });
    }
  }

  // run(token, head, offset): of a tensor that is no cache.
  template <class Run>
  void ForEachHead(const rope_tensor& t, const Run& run) {
    for (int64_t b = 0; b < batch_; ++b) {
      for (int64_t s = 0; s < tokens_; ++s) {
        for (int h = 0; h < t.heads; ++h) {
          const int64_t element = ElementOf(t, b, s, h, tokens_);
          run(b * tokens_ + s, int64_t{h},
              reinterpret_cast<size_t>(t.data) + static_cast<size_t>(element * SizeOf(t.dtype)));
        }
      }
    }
  }

  ConvertNumbers NumbersOf(const rope_tensor& t) {
    ConvertNumbers numbers = {batch_ * tokens_, t.heads, Width(t), {}};
    numbers.values.resize(batch_ * tokens_ * t.heads * Width(t));
    ForEachHead(t, [&](int64_t token, int64_t head, size_t at) {
      for (int64_t c = 0; c < numbers.width; ++c) {
        numbers.Head(token, head)[c] =
            static_cast<float>(ReadElement(t.dtype, memory_.data() + at + c * SizeOf(t.dtype)));
      }
    });
    return numbers;
  }

  // The rotation, in f32 or, if the policy or a norm behind it rounds, in the input's dtype.
  ConvertNumbers Rotated(const Context& context, const rope_tensor& t, const ConvertNorm& norm) {
    const bool after = norm.norm.order == ROPE_NORM_ORDER_AFTER;
    const bool rounds = config_.rounding != ROPE_ROUNDING_FLOAT32 ||
                        (after && norm.norm.rounding != ROPE_NORM_ROUNDING_FLOAT32);
    ConvertNumbers numbers = after ? NumbersOf(t) : Normed(NumbersOf(t), t, norm);
    const rope_dtype dtype = rounds ? t.dtype : ROPE_DTYPE_F32;
    const size_t size = static_cast<size_t>(SizeOf(dtype));
    std::vector<char> heads(numbers.values.size() * size);
    for (size_t i = 0; i < numbers.values.size(); ++i) {
      WriteElement(dtype, &heads[i * size], numbers.values[i]);
    }
    rope_qk_args args = args_;
    args.fused = nullptr;
    args.k = args.k_out = args.q_out = rope_tensor{};
    args.q = Tensor(heads.data(), dtype, t.heads);
    args.q.head_dim = t.head_dim;
    EXPECT_OK(rope_apply_qk(context.get(), &args));
    for (size_t i = 0; i < numbers.values.size(); ++i) {
      numbers.values[i] = static_cast<float>(ReadElement(dtype, &heads[i * size]));
    }
    if (!after) return numbers;
    numbers = Normed(numbers, t, norm);
    for (float& value : numbers.values) {
      if (config_.rounding != ROPE_ROUNDING_FLOAT32) {
        value = static_cast<float>(Rounded(t.dtype, value));
      }
    }
    return numbers;
  }

  void WriteRotated(const Context& context, const rope_tensor& in, const ConvertNorm& norm,
                    const ConvertedOutput& out, std::vector<char>* want) {
    if (out.t.heads == 0) return;
    const bool in_whole = Width(in) == config_.head_dim,
               out_whole = Width(out.t) == config_.head_dim;
    const bool all = in_whole && out_whole;
    Write(Rotated(context, in, norm), all || !in_whole ? 0 : config_.rotary_offset,
          all || !out_whole ? 0 : config_.rotary_offset, all ? config_.head_dim : span_, out, want);
  }

  // `count` channels from the in_first-th on.
  void Write(ConvertNumbers numbers, int64_t in_first, int64_t out_first, int64_t count,
             const ConvertedOutput& out, std::vector<char>* want) {
    for (int64_t token = 0; token < numbers.tokens && out.t.heads != 0; ++token) {
      int64_t b = token / tokens_, s = token % tokens_;
      if (out.cached) {
        const int64_t slot = slots_[token];
        if (slot < 0) continue;
        b = slot / cache_.page_size, s = slot % cache_.page_size;
      }
      for (int h = 0; h < out.t.heads; ++h) {
        const int64_t element = ElementOf(out.t, b, s, h, out.cached ? cache_.page_size : tokens_);
        const size_t at = reinterpret_cast<size_t>(out.t.data) +
                          static_cast<size_t>(BytesInMemory(out.t.dtype, element + out_first));
        const rope_scale& scale = out.scale;
        const int64_t scales =
            b * scale.stride_batch + s * scale.stride_token + h * scale.stride_head;
        Head values(numbers.Head(token, h / out.repeats) + in_first,
                    numbers.Head(token, h / out.repeats) + in_first + count);
        WriteHead(
            out, values.data(), count, at,
            reinterpret_cast<size_t>(scale.data) + static_cast<size_t>(scales * SizeOfScale(scale)),
            want);
      }
    }
  }

  void WriteHead(const ConvertedOutput& out, float* values, int64_t count, size_t at, size_t scales,
                 std::vector<char>* want) {
    const rope_dtype dtype = out.t.dtype;
    turned_[dtype] += out.turns;
    if (dtype == ROPE_DTYPE_Q8_0) {
      for (int64_t c = 0; c < count; c += kBlock, at += kBlockBytes) {
        WriteBlock(values + c, &(*want)[at]);
      }
      return;
    }
    if (dtype <= kLastDtype) {
      for (int64_t c = 0; c < count; ++c, at += static_cast<size_t>(SizeOf(dtype))) {
        WriteElement(dtype, &(*want)[at], values[c]);
        written_.push_back({dtype, at});
      }
      return;
    }
    if (out.scale.round_first != 0) {
      for (int64_t c = 0; c < count; ++c) {
        values[c] = static_cast<float>(Rounded(out.in_dtype, values[c]));
      }
    }
    const int64_t group = out.scale.group != 0 ? out.scale.group : count;
    for (int64_t g = 0; g * group < count; ++g) {
      const float* const x = values + g * group;
      const size_t of_group =
          scales + static_cast<size_t>(g) * static_cast<size_t>(SizeOfScale(out.scale));
      const float inverse = 1 / ScaleOf(out, x, group, of_group, want);
      for (int64_t c = 0; c < group; ++c) {
        const float scaled = x[c] * inverse;
        (*want)[at++] = static_cast<char>(NearestCode(static_cast<Code>(dtype - 4), scaled));
      }
    }
  }

  const rope_config config_;
  const bool norms_are_fused_;
  Random r_;
  int span_, row_heads_ = 1;
  int64_t batch_, tokens_, turned_[ROPE_DTYPE_Q8_0 + 1] = {};
  rope_qk_args args_;
  rope_fused fused_ = ROPE_INIT(rope_fused);
  rope_kv_cache cache_ = ROPE_INIT(rope_kv_cache);
  rope_tensor q_{}, k_{}, v_{}, rest_{};
  ConvertNorm q_norm_, k_norm_, v_norm_;
  ConvertedOutput q_out_, k_out_, k_cache_, v_out_, v_cache_, rest_out_;
  std::deque<rope_scale> scales_;
  std::vector<int64_t> slots_;
  std::vector<char> memory_;
  std::vector<WrittenNumber> written_;
};

inline std::vector<rope_config> ConvertConfigs() {
  std::vector<rope_config> configs;
  for (rope_pairing pairing = 1; pairing <= kLastPairing; ++pairing) {
    for (int head_dim : {32, 128, 80, 1024}) {
      rope_config config = Config(head_dim, pairing);
      if (head_dim == 80) {  // part of the head, which other channels surround
        config.rotary_dim = 48;
        config.rotary_offset = 20;
      }
      if (pairing == ROPE_PAIRING_HALVES_PER_AXIS) {
        config.axes = 2;
        config.mrope_section[0] = 7;
        const int channels = config.rotary_dim != 0 ? config.rotary_dim : head_dim;
        config.mrope_section[1] = channels / 2 - 7;
      }
      configs.push_back(config);
      config.scaling = ROPE_SCALING_YARN;
      config.factor = 4;
      config.original_max_position_embeddings = 4096;
      configs.push_back(config);  // with an attention factor
    }
  }
  const size_t plain = configs.size();
  for (rope_rounding rounding :
       {ROPE_ROUNDING_EAGER, ROPE_ROUNDING_COS_SIN, ROPE_ROUNDING_NATIVE}) {
    for (size_t i = 0; i < plain; i += 3) {
      configs.push_back(configs[i]);
      configs.back().rounding = rounding;
    }
  }
  for (int head_dim : {80, 128}) {
    rope_config config = Config(head_dim);
    config.rotary_dim = 64;
    config.scaling = ROPE_SCALING_NOPE;
    configs.push_back(config);
    config.rounding = ROPE_ROUNDING_COS_SIN;  // whose norms may be of FLOAT32 all the same
    configs.push_back(config);
  }
  rope_config blocks = Config(128);  // whose span is whole blocks of Q8_0, too
  blocks.rotary_dim = 64;
  blocks.rotary_offset = 32;
  configs.push_back(blocks);
  return configs;
}

}  // namespace rope::testing

#endif  // LIBROPE_TESTS_SUPPORT_CONVERT_CALL_H_
