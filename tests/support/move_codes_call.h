// Random calls that move keys and values from slots to slots, in 8 bits on one side or both, and
// what they must write by the definition: codes times their scales in f32, turned as f32, and coded
// as by an append; or left as they are, where nothing turns and scales are described alike. All
// lies in one buffer.
#ifndef LIBROPE_TESTS_SUPPORT_MOVE_CODES_CALL_H_
#define LIBROPE_TESTS_SUPPORT_MOVE_CODES_CALL_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "support/codes.h"
#include "support/elements.h"
#include "support/enumerators.h"
#include "support/handles.h"
#include "support/q8_0.h"
#include "support/random.h"
#include "support/reference.h"
#include "support/scales.h"
#include "support/written_bytes.h"

namespace rope::testing {

// A random call of FORWARD, INVERSE, SHIFT or REROTATE.
class MoveCodesCall {
 public:
  // `sets`: those of the context. Draws other numbers than a test that has drawn them by the same
  // seed.
  MoveCodesCall(const std::vector<rope_config>& sets, uint64_t seed)
      : config_(sets[0]), sets_of_context_(sets), r_(seed + (uint64_t{1} << 32)) {
    axes_ = std::max(config_.axes, 1);
    span_ = config_.rotary_dim != 0 ? config_.rotary_dim : config_.head_dim;
    batch_ = r_.Pick(1, 2);
    tokens_ = r_.Pick(1, r_.Of({3, 40}));
    args_ = Args(batch_, tokens_);
    args_.operation = r_.Of({ROPE_OPERATION_SHIFT, ROPE_OPERATION_REROTATE, ROPE_OPERATION_FORWARD,
                             ROPE_OPERATION_INVERSE});
    MakePositions();
    MakeSlots();
    MakeTensors();
  }

  // Not copied: its calls point to it.
  MoveCodesCall(const MoveCodesCall&) = delete;

  // The call, on `memory`; once.
  const rope_qk_args& args() {
    Connect();
    return args_;
  }
  std::vector<char>& memory() { return memory_; }

  // All of memory behind the call, before it is made. `context`: of the CPU.
  std::vector<char> Want(const Context& context) {
    std::vector<char> want = memory_;
    Numbers k = NumbersOf(source_k_);
    const Numbers turned = Turned(context, k);
    for (const Part* to : {&k_out_, &cache_k_}) Move(k, turned, source_k_, *to, true, &want);
    Numbers v = NumbersOf(source_v_);
    for (const Part* to : {&v_out_, &cache_v_}) Move(v, v, source_v_, *to, false, &want);
    return want;
  }
  void ExpectMemory(const std::vector<char>& want) const { ExpectBytes(memory_, written_, want); }
  int64_t kept() const { return kept_; }
  int64_t coded() const { return coded_; }
  // Of keys that are read from 8 bits, or as they are.
  bool reads_codes() const { return IsInEightBits(source_k_.t.dtype); }
  rope_operation operation() const { return args_.operation; }

 private:
  static bool IsBlocks(rope_dtype dtype) { return dtype == ROPE_DTYPE_Q8_0; }
  static bool IsInEightBits(rope_dtype dtype) { return dtype > kLastDtype; }
  static bool IsCodes(rope_dtype dtype) { return IsInEightBits(dtype) && !IsBlocks(dtype); }

  // A tensor of [outer, inner] tokens with its scales; `data` and `scale.data` are offsets.
  struct Part {
    rope_tensor t{};
    rope_scale scale = ROPE_INIT(rope_scale);
    int64_t outer, inner;

    bool present() const { return t.heads != 0; }
  };

  // Numbers of one tensor, [tokens, heads, width].
  struct Numbers {
    int64_t heads, width;
    std::vector<float> values;

    float* Head(int64_t token, int64_t head) { return &values[(token * heads + head) * width]; }
  };

  enum class Way { kApart, kStay, kElsewhere };

  void MakePositions() {
    const int64_t count = batch_ * tokens_;
    const bool by_distance = args_.operation == ROPE_OPERATION_SHIFT;
    for (int64_t i = 0; i < axes_ * count; ++i) {
      from_ids_.push_back(r_.Pick(0, kLastId));
      ids_.push_back(by_distance ? r_.Pick(-2000, 2000) : r_.Pick(0, kLastId));
    }
    for (int64_t i = 0; i < count; ++i) {
      if (!r_.Sometimes(3)) continue;
      for (int64_t id = i; id < axes_ * count; id += count) {  // on all axes
        ids_[id] = args_.operation == ROPE_OPERATION_REROTATE ? from_ids_[id] : 0;
      }
    }
    const auto last = static_cast<int>(sets_of_context_.size()) - 1;
    for (int64_t b = 0; b < batch_; ++b) {
      sets_.push_back(r_.Pick(0, last));
      from_sets_.push_back(r_.Pick(0, last));
    }
    args_.positions = Ids(ROPE_POSITIONS_IDS_ABT, ids_.data());
    from_ = Ids(ROPE_POSITIONS_IDS_ABT, from_ids_.data());
    if (last == 0) return;
    args_.positions.freq_sets = sets_.data();
    from_.freq_sets = from_sets_.data();
  }

  // Whether a token's keys turn by nothing, and are multiplied by 1.
  bool Stays(int64_t token) const {
    const int32_t set = sets_[token / tokens_];
    if (config_.scaling == ROPE_SCALING_NOPE) return true;
    const int64_t count = batch_ * tokens_;
    bool same = true, zero = true;
    for (int64_t id = token; id < axes_ * count; id += count) {
      same &= ids_[id] == from_ids_[id];
      zero &= ids_[id] == 0;
    }
    if (args_.operation == ROPE_OPERATION_REROTATE) {
      return same && set == from_sets_[token / tokens_];
    }
    if (args_.operation == ROPE_OPERATION_SHIFT) return zero;
    const rope_config& of = sets_of_context_[set];
    const bool multiplies = of.scaling == ROPE_SCALING_YARN ||
                            of.scaling == ROPE_SCALING_LONGROPE || of.attention_factor > 0;
    return zero && !multiplies && config_.pairing != ROPE_PAIRING_INTERLEAVED_TO_HALVES;
  }

  // Numbers from `first` on, in runs, some of them nowhere.
  std::vector<int64_t> Slots(int64_t first) {
    const int64_t count = batch_ * tokens_;
    std::vector<int64_t> slots;
    for (int64_t i = 0; i < count; ++i) slots.push_back(first + i);
    for (int64_t& slot : slots) {
      if (r_.Sometimes(5)) std::swap(slot, slots[r_.Below(count)]);
    }
    for (int64_t& slot : slots) {
      if (r_.Sometimes(9)) slot = -1;
    }
    return slots;
  }

  void MakeSlots() {
    const int64_t count = batch_ * tokens_;
    way_ = r_.Of({Way::kApart, Way::kStay, Way::kElsewhere});
    source_.kind = cache_.kind = ROPE_SLOTS_MAPPED;
    source_.slots_length = cache_.slots_length = count;
    source_.page_size = r_.Of({1, 3, 16});
    source_.pages = count / source_.page_size + r_.Pick(1, 3);
    from_slots_ = Slots(0);
    if (way_ == Way::kApart) {
      cache_.page_size = r_.Of({1, 3, 16});
      cache_.pages = count / cache_.page_size + r_.Pick(1, 3);
      slots_ = Slots(0);
    } else {
      if (way_ == Way::kElsewhere) source_.pages *= 2;
      cache_.pages = source_.pages;
      cache_.page_size = source_.page_size;
      slots_ = way_ == Way::kStay ? from_slots_ : Slots(source_.pages / 2 * source_.page_size);
    }
  }

  int64_t Width(const rope_tensor& t) const {
    return t.head_dim != 0 ? t.head_dim : config_.head_dim;
  }

  // Behind all others, with canaries between them.
  size_t Reserve(int64_t bytes) {
    const size_t offset = (memory_.size() + 15) / 4 * 4;
    memory_.resize(offset + static_cast<size_t>(bytes) + 8, 0x5a);
    return offset;
  }

  Part Place(rope_dtype dtype, int heads, int head_dim, const rope_kv_cache* pages) {
    Part part;
    part.outer = pages != nullptr ? pages->pages : batch_;
    part.inner = pages != nullptr ? pages->page_size : tokens_;
    rope_tensor& t = part.t;
    t = Tensor(nullptr, dtype, heads);
    t.head_dim = head_dim;
    const int64_t width = Width(t);
    if (r_.Sometimes(2)) {  // adjacent heads, or heads outside
      const int64_t unit = IsBlocks(dtype) ? kBlock : 1;
      const int64_t head = width + unit * r_.Of({0, 0, 3});
      if (r_.Sometimes(3)) {
        SetStrides(&t, heads * part.inner * head, head, part.inner * head);
      } else {
        const int64_t token = heads * head + unit * r_.Of({0, 0, 5});
        SetStrides(&t, part.inner * token, token, head);
      }
    } else {
      t.layout = pages != nullptr ? r_.Of({ROPE_LAYOUT_NHD, ROPE_LAYOUT_HND})
                                  : r_.Of({ROPE_LAYOUT_BSHD, ROPE_LAYOUT_BHSD});
    }
    const int64_t elements = ElementOf(part, part.outer - 1, part.inner - 1, heads - 1) + width;
    t.data = reinterpret_cast<void*>(Reserve(BytesInMemory(dtype, elements)));
    return part;
  }

  // Any scales of a part in 8 bits, of whose numbers `held` channels a head are known: as `like`
  // describes them, if it is not null.
  void MakeScale(int64_t held, const rope_scale* like, Part* part) {
    if (!IsCodes(part->t.dtype)) return;
    rope_scale& s = part->scale;
    const int64_t width = Width(part->t);
    if (like != nullptr) {
      s = *like;
      if (s.data == nullptr) return;
    } else {
      s = ROPE_INIT(rope_scale);
      s.round_first = r_.Pick(0, 1);
      if (r_.Sometimes(3) || width > held) {
        s.value = static_cast<float>(std::ldexp(r_.Pick(1, 999), r_.Pick(-20, -8)));
        return;
      }
      s.computed = r_.Pick(0, 1);
      s.dtype = r_.Of({ROPE_DTYPE_F32, ROPE_DTYPE_E8M0});
      s.power_of_two = s.computed != 0 && (s.dtype == ROPE_DTYPE_E8M0 || r_.Sometimes(2));
      if (s.computed != 0 && r_.Sometimes(2)) s.min_scale = r_.Of({1e-4, 0.0123, 1e-12});
      if (r_.Sometimes(2)) s.group = static_cast<int32_t>(r_.Of({width, width / 2, width / 4}));
      if (s.group != 0 && width % s.group != 0) s.group = 0;
    }
    const int64_t groups = s.group == 0 ? 1 : width / s.group;
    s.stride_head = groups + r_.Of({0, 0, 1});
    s.stride_token = s.stride_head * part->t.heads + r_.Of({0, 0, 3});
    s.stride_batch = s.stride_token * part->inner + r_.Of({0, 0, 7});
    const int64_t count = s.stride_batch * part->outer, size = SizeOfScale(s);
    const size_t at = Reserve(count * size);
    s.data = reinterpret_cast<void*>(at);
    for (int64_t i = 0; i < count; ++i) {
      char* const scale = &memory_[at + static_cast<size_t>(i * size)];
      WriteScale(s, scale, std::ldexp(size == 1 ? 1 : r_.Pick(1, 999), r_.Pick(-12, -2)));
    }
  }

  void MakeTensors() {
    const auto width = [&] { return r_.Sometimes(3) ? span_ : r_.Of({0, config_.head_dim}); };
    const auto make = [&](int head_dim, Part* from, Part* cache, Part* out) {
      const bool turns = head_dim == 0;
      const bool blocks = turns ? (config_.head_dim | span_ | config_.rotary_offset) % kBlock == 0
                                : head_dim % kBlock == 0;
      const bool native =
          turns && config_.rounding == ROPE_ROUNDING_NATIVE;  // f16 or, there, codes
      const auto dtype = [&]() -> rope_dtype {
        const rope_dtype any = r_.Pick(ROPE_DTYPE_F32, ROPE_DTYPE_I8);
        if (blocks && r_.Sometimes(4)) return ROPE_DTYPE_Q8_0;
        return native && any <= kLastDtype ? ROPE_DTYPE_F16 : any;
      };
      const auto dim = [&] { return turns ? width() : head_dim; };
      *from = Place(native            ? ROPE_DTYPE_F16
                    : r_.Sometimes(2) ? dtype()
                                      : r_.Pick(ROPE_DTYPE_F8_E4M3, ROPE_DTYPE_I8),
                    r_.Sometimes(8) ? r_.Pick(4, 30) : r_.Pick(1, 3),  // also more than one part
                    dim(), &source_);
      Fill(*from);
      MakeScale(Width(from->t), nullptr, from);
      const int64_t held = Width(from->t);
      if (!r_.Sometimes(5)) {
        if (way_ != Way::kApart && !r_.Sometimes(6)) {
          *cache = *from;
          const rope_scale* const like = &from->scale;
          if (r_.Sometimes(4)) MakeScale(held, r_.Sometimes(2) ? like : nullptr, cache);
        } else {
          *cache = Place(r_.Sometimes(2) ? from->t.dtype : dtype(), from->t.heads, dim(), &cache_);
          const bool alike = Width(cache->t) == held && IsCodes(from->t.dtype) && r_.Sometimes(2);
          MakeScale(held, alike ? &from->scale : nullptr, cache);
        }
      }
      if (!cache->present() || r_.Sometimes(3)) {
        *out = Place(dtype(), from->t.heads, dim(), nullptr);
        MakeScale(held, nullptr, out);
      }
    };
    make(0, &source_k_, &cache_k_, &k_out_);
    if (!r_.Sometimes(3)) make(r_.Of({1, 7, 40, 64}), &source_v_, &cache_v_, &v_out_);
  }

  // Codes are any; NaN and infinities are some.
  void Fill(const Part& part) {
    const bool any = r_.Sometimes(3);
    for (int64_t b = 0; b < part.outer; ++b) {
      for (int64_t s = 0; s < part.inner; ++s) {
        for (int h = 0; h < part.t.heads; ++h) {
          for (int64_t c = 0; c < Width(part.t); ++c) {
            char* const head = &memory_[OffsetOf(part, b, s, h)];
            if (IsBlocks(part.t.dtype)) {
              char* const block = head + BytesInMemory(part.t.dtype, c);
              if (c % kBlock == 0) {
                WriteElement(ROPE_DTYPE_F16, block, std::ldexp(r_.Pick(0, 999), r_.Pick(-24, -8)));
              }
              block[2 + c % kBlock] = static_cast<char>(r_.Below(256));
              continue;
            }
            char* const at = head + BytesInMemory(part.t.dtype, c);
            if (!IsCodes(part.t.dtype)) {
              WriteElement(part.t.dtype, at, (r_.Below(2001) - 1000) / 256.0);
              continue;
            }
            do {
              *at = static_cast<char>(r_.Below(256));
            } while (!any && !std::isfinite(ValueAt(part, head, c)));
          }
        }
      }
    }
  }

  // Without its scale.
  static double ValueAt(const Part& part, const char* head, int64_t c) {
    if (IsBlocks(part.t.dtype)) return ReadFromBlocks(head, c);
    const char* const at = head + BytesInMemory(part.t.dtype, c);
    if (!IsCodes(part.t.dtype)) return ReadElement(part.t.dtype, at);
    return ValueOfCode(static_cast<Code>(part.t.dtype - ROPE_DTYPE_F8_E4M3),
                       static_cast<uint8_t>(*at));
  }

  int64_t ElementOf(const Part& part, int64_t b, int64_t s, int64_t h) const {
    const rope_tensor& t = part.t;
    const int64_t width = Width(t);
    if (t.layout == ROPE_LAYOUT_STRIDED) {
      return b * t.stride_batch + s * t.stride_token + h * t.stride_head;
    }
    const bool heads_inside = t.layout == ROPE_LAYOUT_BSHD || t.layout == ROPE_LAYOUT_NHD;
    return heads_inside ? ((b * part.inner + s) * t.heads + h) * width
                        : ((b * t.heads + h) * part.inner + s) * width;
  }
  size_t OffsetOf(const Part& part, int64_t b, int64_t s, int64_t h) const {
    return reinterpret_cast<size_t>(part.t.data) +
           static_cast<size_t>(BytesInMemory(part.t.dtype, ElementOf(part, b, s, h)));
  }
  static size_t ScalesOf(const Part& part, int64_t b, int64_t s, int64_t h) {
    const rope_scale& scale = part.scale;
    return reinterpret_cast<size_t>(scale.data) +
           static_cast<size_t>(
               (b * scale.stride_batch + s * scale.stride_token + h * scale.stride_head) *
               SizeOfScale(scale));
  }
  int64_t GroupOf(const Part& part) const {
    return part.scale.group != 0 ? part.scale.group : Width(part.t);
  }

  // The value of everything that is read.
  Numbers NumbersOf(const Part& part) {
    Numbers numbers = {part.t.heads, Width(part.t), {}};
    numbers.values.resize(batch_ * tokens_ * numbers.heads * numbers.width);
    for (int64_t i = 0; i < batch_ * tokens_ && part.present(); ++i) {
      const int64_t slot = from_slots_[i];
      for (int h = 0; h < part.t.heads && slot >= 0; ++h) {
        const int64_t page = slot / part.inner, n = slot % part.inner;
        const char* const at = &memory_[OffsetOf(part, page, n, h)];
        for (int64_t c = 0; c < numbers.width; ++c) {
          float value = static_cast<float>(ValueAt(part, at, c));
          if (IsCodes(part.t.dtype)) {
            const rope_scale& s = part.scale;
            value *= s.data == nullptr ? s.value
                                       : ReadScale(s, &memory_[ScalesOf(part, page, n, h) +
                                                               c / GroupOf(part) * SizeOfScale(s)]);
          }
          numbers.Head(i, h)[c] = value;
        }
      }
    }
    return numbers;
  }

  // The keys turned: as f32, or as their dtype, if the policy rounds to it.
  Numbers Turned(const Context& context, Numbers k) {
    const bool rounds =
        config_.rounding != ROPE_ROUNDING_FLOAT32 && !IsInEightBits(source_k_.t.dtype);
    const rope_dtype dtype = rounds ? source_k_.t.dtype : ROPE_DTYPE_F32;
    const auto size = static_cast<size_t>(SizeOf(dtype));
    std::vector<char> heads(k.values.size() * size);
    for (size_t i = 0; i < k.values.size(); ++i) WriteElement(dtype, &heads[i * size], k.values[i]);
    rope_fused only_from = ROPE_INIT(rope_fused);
    only_from.from_positions = &from_;
    rope_qk_args args = args_;
    args.fused = args_.operation == ROPE_OPERATION_REROTATE ? &only_from : nullptr;
    args.k = Tensor(heads.data(), dtype, static_cast<int>(k.heads));
    args.k.head_dim = source_k_.t.head_dim;
    EXPECT_OK(rope_apply_qk(context.get(), &args));
    for (size_t i = 0; i < k.values.size(); ++i) {
      k.values[i] = static_cast<float>(ReadElement(dtype, &heads[i * size]));
    }
    return k;
  }

  // Whether what does not turn keeps its codes.
  bool KeepsCodes(const Part& from, const Part& to, size_t from_scales, size_t to_scales) const {
    const rope_scale &a = from.scale, &b = to.scale;
    if (from.t.dtype != to.t.dtype) return false;
    if (IsBlocks(from.t.dtype)) return true;
    if (a.data == nullptr || b.data == nullptr) return a.data == b.data && a.value == b.value;
    if (a.computed != b.computed || a.dtype != b.dtype || Width(from.t) != Width(to.t) ||
        GroupOf(from) != GroupOf(to)) {
      return false;
    }
    return a.computed != 0 ? a.power_of_two == b.power_of_two && a.min_scale == b.min_scale
                           : from_scales == to_scales;
  }

  // Tokens of one part to another.
  void Move(Numbers still, Numbers turned, const Part& from, const Part& to, bool turns,
            std::vector<char>* want) {
    const bool in_whole = Width(from.t) == config_.head_dim,
               out_whole = Width(to.t) == config_.head_dim;
    const bool all = !turns || (in_whole && out_whole);
    const int64_t in_first = all || !in_whole ? 0 : config_.rotary_offset,
                  out_first = all || !out_whole ? 0 : config_.rotary_offset,
                  count = all ? Width(to.t) : span_;
    const bool to_slots = &to == &cache_k_ || &to == &cache_v_;
    for (int64_t i = 0; i < batch_ * tokens_ && to.present(); ++i) {
      const int64_t slot = from_slots_[i], to_slot = to_slots ? slots_[i] : i;
      if (slot < 0 || to_slot < 0) continue;
      const int64_t b = to_slot / to.inner, s = to_slot % to.inner;
      for (int h = 0; h < to.t.heads; ++h) {
        const size_t at = OffsetOf(to, b, s, h) +
                          static_cast<size_t>(BytesInMemory(to.t.dtype, out_first)),
                     from_at = OffsetOf(from, slot / from.inner, slot % from.inner, h),
                     scales = ScalesOf(to, b, s, h),
                     from_scales = ScalesOf(from, slot / from.inner, slot % from.inner, h);
        const bool stays = IsInEightBits(from.t.dtype) && (!turns || Stays(i));
        if (stays && KeepsCodes(from, to, from_scales, scales)) {
          std::copy_n(
              &memory_[from_at + static_cast<size_t>(BytesInMemory(from.t.dtype, in_first))],
              BytesInMemory(to.t.dtype, count), &(*want)[at]);
          if (to.scale.computed != 0) {
            std::copy_n(&memory_[from_scales], Width(to.t) / GroupOf(to) * SizeOfScale(to.scale),
                        &(*want)[scales]);
          }
          ++kept_;
          continue;
        }
        const float* const x = (stays ? still : turned).Head(i, h) + in_first;
        WriteHead(from, to, {x, x + count}, at, scales, want);
      }
    }
  }

  void WriteHead(const Part& from, const Part& to, std::vector<float> x, size_t at, size_t scales,
                 std::vector<char>* want) {
    const rope_dtype dtype = to.t.dtype;
    if (IsBlocks(dtype)) {
      for (size_t c = 0; c < x.size(); c += kBlock, at += kBlockBytes) {
        WriteBlock(&x[c], &(*want)[at]);
        ++coded_;
      }
      return;
    }
    if (!IsCodes(dtype)) {
      for (size_t c = 0; c < x.size(); ++c, at += static_cast<size_t>(SizeOf(dtype))) {
        WriteElement(dtype, &(*want)[at], x[c]);
        written_.push_back({dtype, at});
      }
      return;
    }
    const rope_scale& s = to.scale;
    if (s.round_first != 0 && !IsInEightBits(from.t.dtype)) {
      for (float& value : x) value = static_cast<float>(Rounded(from.t.dtype, value));
    }
    const auto count = static_cast<int64_t>(x.size());
    const int64_t group = s.group != 0 ? s.group : count;
    for (int64_t first = 0; first < count; first += group, scales += SizeOfScale(s)) {
      float scale = s.value;
      if (s.computed != 0) {
        scale = ComputedScale(s, dtype, &x[first], group);
        WriteScale(s, &(*want)[scales], scale);
      } else if (s.data != nullptr) {
        scale = ReadScale(s, &memory_[scales]);
      }
      const float inverse = 1 / scale;
      for (int64_t c = first; c < first + group; ++c, ++at) {
        (*want)[at] = static_cast<char>(
            NearestCode(static_cast<Code>(dtype - ROPE_DTYPE_F8_E4M3), x[c] * inverse));
        ++coded_;
      }
    }
  }

  rope_tensor At(Part* part) {
    rope_tensor at = part->t;
    if (!part->present()) return at;
    at.data = memory_.data() + reinterpret_cast<size_t>(at.data);
    if (!IsCodes(at.dtype)) return at;
    rope_scale& s = part->scale;
    if (s.data != nullptr) s.data = memory_.data() + reinterpret_cast<size_t>(s.data);
    at.scale = &s;
    return at;
  }

  void Connect() {
    source_.slots_i64 = from_slots_.data();
    cache_.slots_i64 = slots_.data();
    source_.k = At(&source_k_), source_.v = At(&source_v_);
    cache_.k = At(&cache_k_), cache_.v = At(&cache_v_);
    fused_.source = &source_;
    if (cache_k_.present() || cache_v_.present()) fused_.cache = &cache_;
    fused_.v_out = At(&v_out_);
    args_.k_out = At(&k_out_);
    if (args_.operation == ROPE_OPERATION_REROTATE) fused_.from_positions = &from_;
    args_.fused = &fused_;
  }

  static constexpr int kLastId = 4000;  // within LongRoPE's short set

  const rope_config config_;
  const std::vector<rope_config> sets_of_context_;
  Random r_;
  int span_, axes_;
  int64_t batch_, tokens_, kept_ = 0, coded_ = 0;
  Way way_;
  rope_qk_args args_;
  rope_positions from_{};
  rope_fused fused_ = ROPE_INIT(rope_fused);
  rope_kv_cache source_ = ROPE_INIT(rope_kv_cache), cache_ = ROPE_INIT(rope_kv_cache);
  Part source_k_, source_v_, cache_k_, cache_v_, k_out_, v_out_;
  std::vector<int64_t> ids_, from_ids_, slots_, from_slots_;
  std::vector<int32_t> sets_, from_sets_;
  std::vector<char> memory_;
  std::vector<WrittenNumber> written_;
};

// Frequency sets: one or two, of many kinds.
inline std::vector<rope_config> MoveCodesSets(Random* r) {
  static constexpr double kShort[16] = {1, 1, 1, 1, 1, 1.1, 1.2, 1.3, 1.4, 1.5, 2, 2, 2, 2, 2, 2},
                          kLong[16] = {1, 1, 1.5, 2, 3, 4, 6, 8, 12, 16, 20, 24, 28, 32, 32, 32};
  if (r->Sometimes(8)) {  // across LongRoPE's switch
    rope_config config = Config(32);
    config.scaling = ROPE_SCALING_LONGROPE;
    config.table_length = 16;
    config.short_factor = kShort;
    config.long_factor = kLong;
    config.original_max_position_embeddings = 4096;
    config.factor = 32;
    config.seq_len = 4096;
    rope_config beyond = config;
    beyond.seq_len = 4097;
    return {config, beyond};
  }
  std::vector<rope_config> configs = {Config(32), Config(32, ROPE_PAIRING_INTERLEAVED), Config(64),
                                      Config(128), Config(128, ROPE_PAIRING_INTERLEAVED)};
  for (rope_pairing pairing : {ROPE_PAIRING_HALVES, ROPE_PAIRING_INTERLEAVED_TO_HALVES}) {
    configs.push_back(Config(24, pairing));
    configs.back().rotary_dim = 16;
    configs.back().rotary_offset = 8;
  }
  for (size_t i = 0; i < 6; ++i) {
    configs.push_back(configs[i]);
    configs.back().angle = ROPE_ANGLE_EXACT;
  }
  // Turns so small that their cosines are 1.
  configs.push_back(Config(64));
  configs.back().scaling = ROPE_SCALING_LINEAR;
  configs.back().factor = 1e7;
  configs.push_back(Config(128));
  configs.back().rotary_dim = 64;
  configs.back().rotary_offset = 32;
  configs.push_back(Config(64));
  configs.back().scaling = ROPE_SCALING_NOPE;
  for (rope_rounding rounding :
       {ROPE_ROUNDING_EAGER, ROPE_ROUNDING_COS_SIN, ROPE_ROUNDING_NATIVE}) {
    configs.push_back(Config(48));
    configs.back().rounding = rounding;
  }
  configs.push_back(Config(64));
  configs.back().scaling = ROPE_SCALING_YARN;
  configs.back().factor = 4;
  configs.back().original_max_position_embeddings = 1024;
  configs.push_back(Config(48));
  configs.back().axes = 3;
  for (int axis = 0; axis < 3; ++axis) configs.back().mrope_section[axis] = 8;
  const rope_config config = configs[r->Below(static_cast<int64_t>(configs.size()))];
  if (config.scaling == ROPE_SCALING_NOPE || !r->Sometimes(4)) return {config};
  rope_config other = config;
  other.theta = 500000, other.attention_factor = 1.25;
  return {config, other};
}

}  // namespace rope::testing

#endif  // LIBROPE_TESTS_SUPPORT_MOVE_CODES_CALL_H_
