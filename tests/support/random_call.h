// A random valid call of rope_apply_qk, its memory, and the check of every byte of it.
#ifndef LIBROPE_TESTS_SUPPORT_RANDOM_CALL_H_
#define LIBROPE_TESTS_SUPPORT_RANDOM_CALL_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "handles.h"
#include "reference.h"

namespace rope::testing {

class RandomCall {
 public:
  explicit RandomCall(unsigned seed) : random_(seed) {
    MakeConfig();
    MakeContext();
    args_ = Args(Pick({1, 1, 2, 3}), Pick({1, 2, 3, 5, 9, 40}));
    MakePositions();
    const int which = Below(3);  // q and k, q alone, k alone
    if (which != 2) q_ = MakeTensor(&args_.q, &args_.q_out);
    if (which != 1) k_ = MakeTensor(&args_.k, &args_.k_out);
    const bool distances = args_.positions.kind >= ROPE_POSITIONS_IDS_T;
    args_.operation = Below(distances ? 4 : 3);  // SHIFT takes no other kind
  }

  void Run() {
    ASSERT_OK(rope_apply_qk(context_.get(), &args_));
    if (q_.in) Check("q", args_.q, args_.q_out, &q_);
    if (k_.in) Check("k", args_.k, args_.k_out, &k_);
  }

  std::string Describe() const {
    std::ostringstream text;
    text << "head_dim " << config_.head_dim << " span " << config_.rotary_dim << " at "
         << config_.rotary_offset << " pairing " << config_.pairing << " angle " << config_.angle
         << " axes " << config_.axes << " operation " << args_.operation << " batch " << args_.batch
         << " tokens " << args_.tokens << " positions " << args_.positions.kind;
    return text.str();
  }

 private:
  // A tensor's allocation: random bytes, of which the call may change only the output's elements.
  struct Memory {
    std::unique_ptr<std::vector<unsigned char>> in, out;  // out: NULL in place
    std::vector<unsigned char> in_before, out_before;
  };

  int Below(int n) { return static_cast<int>(random_() % static_cast<unsigned>(n)); }
  int Pick(std::vector<int> of) { return of[Below(static_cast<int>(of.size()))]; }
  bool Sometimes(int one_in) { return Below(one_in) == 0; }

  void MakeConfig() {
    config_ = Config(Pick({2, 4, 6, 10, 16, 34, 64, 66, 80, 128, 192, 258}), 1 + Below(4),
                     Pick({100, 10000, 500000}));
    config_.rotary_dim = config_.head_dim;
    if (Sometimes(2)) {
      config_.rotary_dim = 2 * (1 + Below(config_.head_dim / 2));
      config_.rotary_offset = Below(config_.head_dim - config_.rotary_dim + 1);
    }
    config_.angle = Below(2);
    if (Sometimes(2)) config_.attention_factor = 0.7 + 0.1 * Below(9);
    const int pairs = config_.rotary_dim / 2;
    if (config_.pairing == ROPE_PAIRING_HALVES_PER_AXIS || Sometimes(3)) {
      MakeAxes(pairs);
    }
    if (Sometimes(4)) {  // caller's frequencies, some of them 0 or negative
      for (int i = 0; i < pairs; ++i) inv_freq_.push_back((Below(2001) - 1000) / 700.0);
      config_.inv_freq = inv_freq_.data();
    } else if (Sometimes(3)) {
      config_.scaling = ROPE_SCALING_LINEAR;
      config_.factor = 1 + Below(8);
    }
    if (config_.inv_freq != nullptr || config_.pair_axis != nullptr) config_.table_length = pairs;
  }

  void MakeAxes(int pairs) {
    const bool per_axis = config_.pairing == ROPE_PAIRING_HALVES_PER_AXIS;
    config_.axes = 2 + Below(per_axis ? 3 : 7);
    if (!per_axis && (config_.axes > 4 || Sometimes(2))) {
      for (int i = 0; i < pairs; ++i)
        pair_axis_.push_back(static_cast<uint8_t>(Below(config_.axes)));
      config_.pair_axis = pair_axis_.data();
      return;
    }
    for (int i = 0; i < pairs; ++i) ++config_.mrope_section[Below(config_.axes)];
    if (per_axis || config_.axes > 3 || !Sometimes(2)) return;
    config_.mrope_interleaved = 1;  // as many pairs of each axis as i mod axes can give
    std::fill(config_.mrope_section, config_.mrope_section + 4, 0);
    const int each = pairs / config_.axes;
    for (int a = 1; a < config_.axes; ++a) config_.mrope_section[a] = Below(each + 1);
    config_.mrope_section[0] = pairs - config_.mrope_section[1] - config_.mrope_section[2];
  }

  void MakeContext() {
    context_ = Create(config_);
    ASSERT_NE(context_, nullptr);
    const int pairs = config_.rotary_dim / 2;
    std::vector<double> given(pairs);
    ASSERT_OK(rope_context_inv_freq(context_.get(), 0, given.data(), pairs));
    for (int i = 0; i < pairs; ++i) {
      Quad f = given[i];  // FLOAT32: f32 values, tested elsewhere
      if (config_.angle == ROPE_ANGLE_EXACT && config_.inv_freq == nullptr) {
        f = InverseFrequency(config_.theta, i, config_.rotary_dim);
        if (config_.scaling == ROPE_SCALING_LINEAR) f /= Quad(config_.factor);
      }
      frequencies_.push_back(f);
    }
  }

  // Up to 2^37, where 64 fraction bits of a frequency are still exact enough.
  int64_t RandomId() {
    const auto id = static_cast<int64_t>(random_()) >> Pick({26, 34, 50});
    return Sometimes(5) ? -id : id;
  }

  void MakePositions() {
    rope_positions& p = args_.positions;
    const int axes = std::max(1, config_.axes);
    p.kind = 1 + Below(7);
    if (args_.batch == 1 && Sometimes(2)) MakeSequences(&p);
    if (p.kind == ROPE_POSITIONS_OFFSET) {
      p.offset = RandomId();
      return;
    }
    int64_t count = axes * args_.batch * args_.tokens;
    if (p.kind == ROPE_POSITIONS_SEQ_OFFSETS) {
      count = p.cu_seqlens != nullptr ? p.sequences : args_.batch;
    } else if (p.kind == ROPE_POSITIONS_IDS_STRIDED) {
      p.stride_token = Below(3);
      p.stride_batch = Below(20);
      p.stride_axis = Below(30);
      count = (args_.tokens - 1) * p.stride_token + (args_.batch - 1) * p.stride_batch +
              (axes - 1) * p.stride_axis + 1;
    }
    for (int64_t i = 0; i < count; ++i) {
      ids64_.push_back(RandomId());
      ids32_.push_back(static_cast<int32_t>(ids64_.back()));
      ids_f32_.push_back(static_cast<float>(Below(2001) - 1000) / 64.0f);
    }
    const bool offsets = p.kind == ROPE_POSITIONS_SEQ_OFFSETS;
    const int type = Below(offsets ? 2 : 3);
    (offsets ? p.offsets_i32 : p.ids_i32) = type == 0 ? ids32_.data() : nullptr;
    (offsets ? p.offsets_i64 : p.ids_i64) = type == 1 ? ids64_.data() : nullptr;
    if (type == 2) p.ids_f32 = ids_f32_.data();
  }

  void MakeSequences(rope_positions* p) {  // some of them empty
    p->sequences = 1 + Below(5);
    for (int i = 0; i <= p->sequences; ++i) {
      cu_seqlens_.push_back(Below(static_cast<int>(args_.tokens) + 1));
    }
    std::sort(cu_seqlens_.begin(), cu_seqlens_.end());
    cu_seqlens_.front() = 0;
    cu_seqlens_.back() = static_cast<int32_t>(args_.tokens);
    p->cu_seqlens = cu_seqlens_.data();
  }

  int64_t WidthOf(const rope_tensor& t) const { return t.head_dim ? t.head_dim : config_.head_dim; }

  int64_t ExtentOf(const rope_tensor& t) const {
    return HeadOffset(t, args_.batch, args_.tokens, WidthOf(t), args_.batch - 1, args_.tokens - 1,
                      t.heads - 1) +
           WidthOf(t);
  }

  // A layout whose elements lie apart; inputs that are not written may repeat some.
  void MakeLayout(rope_tensor* t, bool may_repeat) {
    t->layout = 1 + Below(4);
    t->head_dim = Pick({0, config_.head_dim, config_.rotary_dim});
    if (t->layout != ROPE_LAYOUT_STRIDED) return;
    int64_t* strides[3] = {&t->stride_batch, &t->stride_token, &t->stride_head};
    const int64_t counts[3] = {args_.batch, args_.tokens, t->heads};
    int order[3] = {0, 1, 2};
    std::shuffle(order, order + 3, random_);
    int64_t next = WidthOf(*t);
    for (int d : order) {
      *strides[d] = next + (Sometimes(2) ? Below(9) : 0);
      next = *strides[d] * counts[d];
      if (may_repeat && Sometimes(3)) *strides[d] = 0;
    }
  }

  std::unique_ptr<std::vector<unsigned char>> Allocate(rope_tensor* t) {
    const int size = SizeOf(t->dtype), before = Below(9), behind = Below(9);
    const int64_t count = ExtentOf(*t) + before + behind;
    auto memory = std::make_unique<std::vector<unsigned char>>(count * size);
    std::normal_distribution<double> normal(0, 3);
    for (int64_t i = 0; i < count; ++i)
      WriteElement(t->dtype, memory->data() + i * size, normal(random_));
    t->data = memory->data() + before * size;
    return memory;
  }

  Memory MakeTensor(rope_tensor* in, rope_tensor* out) {
    Memory memory;
    in->dtype = 1 + Below(3);
    in->heads = Pick({1, 1, 2, 5});
    const bool in_place = Sometimes(2);
    MakeLayout(in, !in_place);
    memory.in = Allocate(in);
    memory.in_before = *memory.in;
    if (in_place) {
      if (Sometimes(3)) *out = *in;  // the same tensor, described
      return memory;
    }
    out->dtype = in->dtype;
    out->heads = in->heads;
    MakeLayout(out, false);
    memory.out = Allocate(out);
    memory.out_before = *memory.out;
    return memory;
  }

  // The turn of a pair at a token, unscaled.
  Turn TurnAt(int64_t b, int64_t t, int pair) const {
    const Position p = PositionOf(args_.positions, args_.batch, args_.tokens,
                                  std::max(1, config_.axes), b, t, AxisOfPair(config_, pair));
    return TurnOf(config_.angle, frequencies_[pair], p);
  }

  void Check(const char* name, const rope_tensor& in, const rope_tensor& out, Memory* memory) {
    const bool in_place = memory->out == nullptr;
    const rope_tensor& to = in_place ? in : out;
    std::vector<unsigned char>& got = in_place ? *memory->in : *memory->out;
    // What memory must hold: what it held, plus the elements that prove right below.
    std::vector<unsigned char> want = in_place ? memory->in_before : memory->out_before;
    const int size = SizeOf(in.dtype);
    const auto at_of = [&](const rope_tensor& t, const std::vector<unsigned char>& bytes,
                           int64_t i) {
      return static_cast<const unsigned char*>(t.data) - bytes.data() + i * size;
    };
    const bool whole_in = WidthOf(in) == config_.head_dim,
               whole_out = WidthOf(to) == config_.head_dim;
    const double a = config_.attention_factor != 0 ? config_.attention_factor : 1;
    const double unit = std::max({1.0, a, 1 / a}) * (1.5e-7 + 5 * 0x1p-24);
    for (int64_t b = 0; b < args_.batch; ++b) {
      for (int64_t t = 0; t < args_.tokens; ++t) {
        for (int h = 0; h < in.heads; ++h) {
          const int64_t from = HeadOffset(in, args_.batch, args_.tokens, WidthOf(in), b, t, h);
          const int64_t target = HeadOffset(to, args_.batch, args_.tokens, WidthOf(to), b, t, h);
          if (!in_place && whole_in && whole_out) {  // the rest is copied
            std::memcpy(&want[at_of(to, got, target)],
                        &memory->in_before[at_of(in, *memory->in, from)], config_.head_dim * size);
          }
          const int64_t span_in = from + (whole_in ? config_.rotary_offset : 0);
          const int64_t span_out = target + (whole_out ? config_.rotary_offset : 0);
          for (int i = 0; i < config_.rotary_dim / 2; ++i) {
            const Channels c = ChannelsOfPair(config_, args_.operation, i);
            const auto load = [&](int channel) {
              return ReadElement(in.dtype,
                                 &memory->in_before[at_of(in, *memory->in, span_in + channel)]);
            };
            const double x0 = load(c.in0), x1 = load(c.in1);
            const Turn r = ScaledTurn(TurnAt(b, t, i), args_.operation, a);
            const auto cos = static_cast<double>(r.cos), sin = static_cast<double>(r.sin);
            const double tolerance = unit * (std::fabs(x0) + std::fabs(x1));
            const auto accept = [&](int channel, double value) {
              const auto at = at_of(to, got, span_out + channel);
              const double stored = ReadElement(in.dtype, &got[at]);
              ASSERT_GE(stored, Rounded(in.dtype, value - tolerance))
                  << name << " b " << b << " t " << t << " h " << h << " channel " << channel
                  << " of " << value;
              ASSERT_LE(stored, Rounded(in.dtype, value + tolerance))
                  << name << " b " << b << " t " << t << " h " << h << " channel " << channel
                  << " of " << value;
              std::memcpy(&want[at], &got[at], size);
            };
            accept(c.out0, x0 * cos - x1 * sin);
            accept(c.out1, x1 * cos + x0 * sin);
            if (::testing::Test::HasFatalFailure()) return;
          }
        }
      }
    }
    EXPECT_TRUE(want == got) << name << ": bytes outside the rotated channels changed";
    EXPECT_TRUE(in_place || memory->in_before == *memory->in) << name << ": the input changed";
  }

  std::mt19937_64 random_;
  rope_config config_;
  std::vector<double> inv_freq_;
  std::vector<uint8_t> pair_axis_;
  Context context_;
  std::vector<Quad> frequencies_;
  rope_qk_args args_;
  std::vector<int64_t> ids64_;
  std::vector<int32_t> ids32_, cu_seqlens_;
  std::vector<float> ids_f32_;
  Memory q_, k_;
};

}  // namespace rope::testing

#endif  // LIBROPE_TESTS_SUPPORT_RANDOM_CALL_H_
