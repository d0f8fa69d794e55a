// Norms of q, k and v: random calls have the bits of a reference in scalar steps, on every
// instruction set; what the rounding promises to be separate calls is these; errors name what they
// are about, and write nothing.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "librope/rope.h"
#include "support/elements.h"
#include "support/enumerators.h"
#include "support/errors.h"
#include "support/handles.h"
#include "support/norm_call.h"
#include "support/norm_reference.h"
#include "support/prepared_call.h"
#include "support/random.h"
#include "support/single_tokens.h"
#include "support/targets.h"

namespace rope::testing {
namespace {

// q or k with its output and its norm.
struct Side {
  Memory in, out;
  bool in_place = true, normed = false;
  int in_width = 0, out_width = 0;  // channels of a described head
  Weighted norm;
};

class NormTest : public NormCalls {
 protected:
  Side MakeSide(Random* random, rope_dtype dtype) {
    Side side;
    const int heads = random->Sometimes(6) ? random->Pick(60, 140) : random->Pick(1, 12);
    const auto width = [&] { return random->Sometimes(4) ? rotary_ : config_.head_dim; };
    side.in_width = width();
    side.in = Memory(random, dtype, batch_, tokens_, heads, side.in_width, side.in_width);
    side.in_place = random->Sometimes(2);
    side.out_width = side.in_place ? side.in_width : width();
    side.normed = !random->Sometimes(6);
    if (side.normed) {
      side.norm = Weighted(random, heads, side.in_width, batch_ * tokens_, true, true);
      rope_norm& n = side.norm.norm;
      const bool rounds =
          config_.rounding == ROPE_ROUNDING_EAGER || config_.rounding == ROPE_ROUNDING_NATIVE;
      if (SizeOf(dtype) == 2 && !nope() && n.rounding == ROPE_NORM_ROUNDING_FLOAT32 &&
          (rounds || (n.span == ROPE_NORM_SPAN_ALL_HEADS &&
                      (n.order != 0 || n.kind >= ROPE_NORM_KIND_LAYER)))) {
        n.rounding = random->Pick(1, 2);
      }
      if (n.order != 0) side.out_width = side.in_width;
    }
    if (!side.in_place) {
      side.out = Memory(random, dtype, batch_, tokens_, heads, side.out_width, side.out_width);
    }
    Fill(random, side.in, side.in_width);
    return side;
  }

  // The results of a token in f32, for the channels that are described of the input.
  std::vector<Head> Want(const Side& side, const std::vector<Head>& x, int64_t token) const {
    const rope_dtype dtype = side.in.tensor.dtype;
    const int first = side.in_width == config_.head_dim ? config_.rotary_offset : 0;
    const rope_norm& norm = side.norm.norm;
    const auto turn = [&](std::vector<Head>* heads) {
      for (Head& head : *heads) Turn(ROPE_OPERATION_FORWARD, dtype, rows_[token], first, &head);
    };
    std::vector<Head> y = x;
    const auto normed = [&](const std::vector<Head>& heads) {
      const NormReference reference =
          side.norm.Reference(side.in.tensor.heads, side.in_width, dtype, kernels().fused);
      return reference.Of(heads, norm.rstd != nullptr ? norm.rstd[token] : 0);
    };
    if (side.normed && norm.order == ROPE_NORM_ORDER_BEFORE) y = normed(y);
    turn(&y);
    if (side.normed && norm.order == ROPE_NORM_ORDER_AFTER) {
      for (Head& head : y) {
        for (float& value : head) {
          if (norm.rounding != 0) value = static_cast<float>(Rounded(dtype, value));
        }
      }
      y = normed(y);
    }
    return y;
  }

  // `before` is what the input held. at(batch, token, head): the output, or null.
  template <class At>
  void Expect(const Side& side, const Memory& before, Memory* out, std::vector<char> image,
              const At& at) {
    const rope_dtype dtype = side.in.tensor.dtype;
    const int size = SizeOf(dtype), offset = config_.rotary_offset;
    const bool all = side.in_width == side.out_width;
    const int from = all || side.in_width == rotary_ ? 0 : offset,
              to = all || side.out_width == rotary_ ? 0 : offset,
              count = all ? side.in_width : rotary_;
    for (int64_t b = 0; b < batch_; ++b) {
      for (int64_t t = 0; t < tokens_; ++t) {
        const std::vector<Head> want =
            Want(side, HeadsAt(before, b, t, side.in_width), b * tokens_ + t);
        for (int h = 0; h < side.in.tensor.heads; ++h) {
          char* const got = at(b, t, h);
          if (got == nullptr) continue;
          for (int c = 0; c < count; ++c) {
            char* const element = got + (to + c) * size;
            alignas(8) char wanted[8];
            WriteElement(dtype, wanted, want[h][from + c]);
            ASSERT_TRUE(IsSame(dtype, element, wanted, 0))
                << "channel " << from + c << " of head " << h << ", token " << t << ": "
                << ReadElement(dtype, element) << ", not " << ReadElement(dtype, wanted);
            std::memcpy(image.data() + (element - out->bytes.data()), element, size);
          }
        }
      }
    }
    ASSERT_TRUE(image == out->bytes) << "more was written";
  }

  static std::string Describe(const rope_config& config, const Side& side) {
    const rope_norm& n = side.norm.norm;
    std::string text;
    const auto add = [&](const char* name, int64_t value) {
      text += std::string(name) + " " + std::to_string(value) + ", ";
    };
    add("head_dim", config.head_dim), add("rotary_dim", config.rotary_dim);
    add("offset", config.rotary_offset), add("pairing", config.pairing);
    add("rounding", config.rounding), add("scaling", config.scaling);
    add("dtype", side.in.tensor.dtype), add("heads", side.in.tensor.heads);
    add("in_width", side.in_width), add("out_width", side.out_width);
    add("in_place", side.in_place), add("normed", side.normed), add("kind", n.kind);
    add("span", n.span), add("order", n.order), add("norm rounding", n.rounding);
    add("weight_dtype", n.weight_dtype), add("weight_stride", n.weight_stride_head);
    return text;
  }
};
INSTANTIATE_TARGETS(NormTest);

TEST_P(NormTest, RandomCallsHaveTheBitsOfTheReference) {
  const int count = LongTests() ? 5000 : ShortTests() ? 120 : 1000;
  // Each target has cases of its own: much of what they are about is common to all.
  const uint64_t first = std::hash<std::string>()(kernels().target) % 1000000;
  for (int n = 0; n < count; ++n) {
    Random random(first + static_cast<uint64_t>(n));
    Configure(&random);
    batch_ = random.Pick(1, 2);
    tokens_ = random.Sometimes(3) ? random.Pick(1, 40) : random.Pick(1, 3);
    rope_qk_args args = Args(batch_, tokens_);
    MakeTurns(&random, &args);
    const std::vector<rope_dtype> dtypes = DtypesOf(config_.rounding);
    const auto dtype = [&] { return dtypes[random.Below(static_cast<int64_t>(dtypes.size()))]; };
    Side q = MakeSide(&random, dtype()), k = MakeSide(&random, dtype());
    const Memory q_before = CopyOf(q.in), k_before = CopyOf(k.in);
    const std::vector<char> q_image = q.in_place ? q.in.bytes : q.out.bytes,
                            k_image = k.in_place ? k.in.bytes : k.out.bytes;
    rope_fused fused = ROPE_INIT(rope_fused);
    args.fused = &fused;
    args.q = q.in.tensor;
    args.k = k.in.tensor;
    if (!q.in_place) args.q_out = q.out.tensor;
    if (!k.in_place) args.k_out = k.out.tensor;
    if (q.normed) fused.q_norm = &q.norm.norm;
    if (k.normed) fused.k_norm = &k.norm.norm;
    SCOPED_TRACE("case " + std::to_string(n) + " q: " + Describe(config_, q) +
                 " k: " + Describe(config_, k) + " full " + std::to_string(full_) + " positions " +
                 std::to_string(args.positions.kind));
    ASSERT_EQ(rope_apply_qk(context_.get(), &args), ROPE_OK) << rope_last_error();
    for (Side* side : {&q, &k}) {
      Memory* const out = side->in_place ? &side->in : &side->out;
      Expect(*side, side == &q ? q_before : k_before, out, side == &q ? q_image : k_image,
             [&](int64_t b, int64_t t, int h) { return out->At(b, t, h); });
      if (HasFatalFailure()) return;
    }
    if (!q.in_place) {
      ASSERT_TRUE(q.in.bytes == q_before.bytes);
    }
    if (!k.in_place) {
      ASSERT_TRUE(k.in.bytes == k_before.bytes);
    }
    // Prepared, it writes the same.
    std::vector<char>&q_bytes = q.in_place ? q.in.bytes : q.out.bytes,
    &k_bytes = k.in_place ? k.in.bytes : k.out.bytes;
    const std::vector<char> q_written = q_bytes, k_written = k_bytes;
    std::copy(q_image.begin(), q_image.end(), q_bytes.begin());
    std::copy(k_image.begin(), k_image.end(), k_bytes.begin());
    ASSERT_EQ(ApplyPrepared(context_.get(), args), ROPE_OK) << rope_last_error();
    ASSERT_TRUE(IsTurnedAlike(q.in.tensor.dtype, q_bytes, q_written)) << "prepared";
    ASSERT_TRUE(IsTurnedAlike(k.in.tensor.dtype, k_bytes, k_written)) << "prepared";
  }
}

// Whatever bits a NaN of the weights or of r has, which narrowing to bf16 would carry away.
TEST_P(NormTest, NanStaysNan) {
  constexpr int kWidth = 70;
  const uint32_t nans[] = {0x7f800001u, 0xffffffffu, 0x7fc00000u, 0xff80ffffu};
  for (rope_pairing pairing : {ROPE_PAIRING_HALVES, ROPE_PAIRING_INTERLEAVED}) {
    for (rope_norm_rounding rounding = 0; rounding <= ROPE_NORM_ROUNDING_EAGER; ++rounding) {
      for (uint32_t nan : nans) {
        for (bool of_weights : {false, true}) {
          const Context context = Create(Config(kWidth, pairing));
          std::vector<uint16_t> x(kWidth, 0x3f80);
          std::vector<float> weights(kWidth, of_weights ? BitsFloat(nan) : 1.0f);
          const float rstd = of_weights ? 1.0f : BitsFloat(nan);
          rope_norm norm = ROPE_INIT(rope_norm);
          norm.kind = ROPE_NORM_KIND_RMS;
          norm.span = ROPE_NORM_SPAN_GIVEN;
          norm.rounding = rounding;
          norm.rstd = &rstd;
          norm.weight = weights.data();
          norm.weight_dtype = ROPE_DTYPE_F32;
          rope_fused fused = ROPE_INIT(rope_fused);
          fused.q_norm = &norm;
          rope_qk_args args = Args(1, 1);
          args.q = Tensor(x.data(), ROPE_DTYPE_BF16, 1);
          args.positions = Offset(3);
          args.fused = &fused;
          ASSERT_EQ(rope_apply_qk(context.get(), &args), ROPE_OK) << rope_last_error();
          for (uint16_t bits : x) ASSERT_TRUE(IsNan16(kBrain, bits)) << std::hex << bits;
        }
      }
    }
  }
}

// Heads with weights of their own, of which some are made ready at once: the bits of calls on one
// head each, in place and where the span alone is written. The norm is GIVEN, so that heads do not
// know of each other.
TEST_P(NormTest, WeightsOfHeadsAreThoseOfCallsOnOne) {
  constexpr int kHeads = 19, kTokens = 2, kGap = 3;
  Random random(7);
  const float rstd[kTokens] = {0.7f, 1.3f};
  for (int head_dim : {32, 64, 96, 128, 160, 320, 576, 1024}) {
    for (int rotary_dim : {head_dim, head_dim / 2}) {
      for (rope_pairing pairing : {ROPE_PAIRING_HALVES, ROPE_PAIRING_INTERLEAVED}) {
        rope_config config = Config(head_dim, pairing);
        config.rotary_dim = rotary_dim;
        const Context context = Create(config);
        for (rope_dtype dtype = 1; dtype <= kLastDtype; ++dtype) {
          SCOPED_TRACE("head_dim " + std::to_string(head_dim) + ", rotary_dim " +
                       std::to_string(rotary_dim) + ", pairing " + std::to_string(pairing) +
                       ", dtype " + std::to_string(dtype));
          const int stride = head_dim + (random.Sometimes(2) ? kGap : 0);
          std::vector<float> weights(static_cast<size_t>(kHeads * stride));
          for (float& w : weights) w = static_cast<float>(random.Pick(-40, 40)) / 16;
          Memory whole(&random, dtype, 1, kTokens, kHeads, head_dim, 0);
          Fill(&random, whole, head_dim);
          Memory apart = CopyOf(whole);
          rope_norm norm = ROPE_INIT(rope_norm);
          norm.kind = ROPE_NORM_KIND_RMS;
          norm.span = ROPE_NORM_SPAN_GIVEN;
          norm.rstd = rstd;
          norm.weight = weights.data();
          norm.weight_dtype = ROPE_DTYPE_F32;
          norm.weight_stride_head = stride;
          rope_fused fused = ROPE_INIT(rope_fused);
          fused.q_norm = &norm;
          rope_qk_args args = Args(1, kTokens);
          args.positions = Offset(5);
          args.fused = &fused;
          Memory whole_span(&random, dtype, 1, kTokens, kHeads, rotary_dim, rotary_dim);
          Memory apart_span = CopyOf(whole_span);
          for (const bool span_alone : {true, false}) {  // in place last, as it changes the input
            args.q = whole.tensor;
            args.q_out = span_alone ? whole_span.tensor : rope_tensor{};
            norm.weight = weights.data();
            ASSERT_EQ(rope_apply_qk(context.get(), &args), ROPE_OK) << rope_last_error();
            for (int h = 0; h < kHeads; ++h) {
              args.q = apart.tensor;
              args.q.data = apart.At(0, 0, h);
              args.q.heads = 1;
              if (span_alone) {
                args.q_out = apart_span.tensor;
                args.q_out.data = apart_span.At(0, 0, h);
                args.q_out.heads = 1;
              }
              norm.weight = &weights[static_cast<size_t>(h * stride)];
              ASSERT_EQ(rope_apply_qk(context.get(), &args), ROPE_OK) << rope_last_error();
            }
            ASSERT_TRUE(whole_span.bytes == apart_span.bytes);
          }
          ASSERT_TRUE(whole.bytes == apart.bytes);
        }
      }
    }
  }
}

// What ROUNDED and EAGER promise: the bits of a call that norms, with a NOPE context, and one that
// rotates, in this order or, AFTER, in the other.
TEST_P(NormTest, RoundedIsTwoCalls) {
  constexpr int kHeads = 5;
  for (int n = 0; n < 300; ++n) {
    Random random(static_cast<uint64_t>(n));
    Configure(&random);
    if (nope()) continue;
    rope_config config = config_;
    config.scaling = ROPE_SCALING_NOPE;
    const Context nope_context = Create(config);
    batch_ = 1, tokens_ = random.Pick(1, 20);
    const std::vector<rope_dtype> dtypes = DtypesOf(config_.rounding);
    const rope_dtype dtype = dtypes[random.Below(static_cast<int64_t>(dtypes.size()))];
    Memory fused_memory(&random, dtype, 1, tokens_, kHeads, config_.head_dim, 0);
    Fill(&random, fused_memory, config_.head_dim);
    Memory apart_memory = CopyOf(fused_memory);
    Weighted norm(&random, kHeads, config_.head_dim, tokens_, true, true);
    if (norm.norm.rounding == 0) norm.norm.rounding = ROPE_NORM_ROUNDING_ROUNDED;

    std::vector<int64_t> ids;
    for (int64_t t = 0; t < 2 * tokens_; ++t) ids.push_back(random.Pick(-100, 100000));
    rope_qk_args args = Args(1, tokens_);
    args.positions =
        Ids(config_.axes == 2 ? ROPE_POSITIONS_IDS_ABT : ROPE_POSITIONS_IDS_T, ids.data());
    args.q = fused_memory.tensor;
    rope_fused fused = ROPE_INIT(rope_fused);
    fused.q_norm = &norm.norm;
    args.fused = &fused;
    ASSERT_EQ(rope_apply_qk(context_.get(), &args), ROPE_OK) << rope_last_error();

    args.q = apart_memory.tensor;
    rope_qk_args turn = args;
    turn.fused = nullptr;
    const bool after = norm.norm.order == ROPE_NORM_ORDER_AFTER;
    if (after) {
      ASSERT_EQ(rope_apply_qk(context_.get(), &turn), ROPE_OK) << rope_last_error();
    }
    ASSERT_EQ(rope_apply_qk(nope_context.get(), &args), ROPE_OK) << rope_last_error();
    if (!after) {
      ASSERT_EQ(rope_apply_qk(context_.get(), &turn), ROPE_OK) << rope_last_error();
    }
    ASSERT_TRUE(fused_memory.bytes == apart_memory.bytes) << n;
  }
}

// Slots and outputs get what an output of a call of its own gets; v is normed on its way.
TEST_P(NormTest, SlotsHaveTheBitsOfOutputs) {
  constexpr int kHeads = 3, kPages = 5, kPageSize = 8, kWidth = 96;
  for (int n = 0; n < 200; ++n) {
    Random random(static_cast<uint64_t>(n) + 50);
    config_ = Config(64, random.Pick(1, 3));
    if (random.Sometimes(2)) config_.rotary_dim = 32, config_.rotary_offset = 16;
    rotary_ = config_.rotary_dim != 0 ? config_.rotary_dim : 64;
    if (random.Sometimes(5)) config_.scaling = ROPE_SCALING_NOPE;
    context_ = Create(config_);
    batch_ = 1, tokens_ = random.Pick(1, 30);
    const rope_dtype dtype = random.Pick(1, kLastDtype);
    Memory k(&random, dtype, 1, tokens_, kHeads, 64, 0),
        k_out(&random, dtype, 1, tokens_, kHeads, 64, 0),
        v(&random, dtype, 1, tokens_, kHeads, kWidth, kWidth),
        v_out(&random, dtype, 1, tokens_, kHeads, kWidth, kWidth);
    Fill(&random, k, 64);
    Fill(&random, v, kWidth);
    Weighted k_norm(&random, kHeads, 64, tokens_, true, true),
        v_norm(&random, kHeads, kWidth, tokens_, false, true);
    if (k_norm.norm.rounding == 0 && SizeOf(dtype) == 2 && !nope() &&
        (k_norm.norm.kind > 3 || k_norm.norm.order != 0)) {
      k_norm.norm.rounding = ROPE_NORM_ROUNDING_EAGER;
    }
    v_norm.norm.order = 0;
    const Memory k_before = CopyOf(k), v_before = CopyOf(v);
    std::vector<int32_t> slots;
    for (int i = 0; i < kPages * kPageSize; ++i) slots.push_back(i);
    for (size_t i = slots.size() - 1; i > 0; --i) {
      if (random.Sometimes(3)) std::swap(slots[i], slots[random.Below(static_cast<int64_t>(i))]);
    }
    if (random.Sometimes(2)) slots[tokens_ / 2] = -1;

    // To k_out and v_out alone.
    rope_fused fused = ROPE_INIT(rope_fused);
    fused.k_norm = &k_norm.norm;
    fused.v_norm = &v_norm.norm;
    fused.v = v.tensor;
    fused.v_out = v_out.tensor;
    rope_qk_args args = Args(1, tokens_);
    args.positions = Offset(7);
    args.k = k.tensor;
    args.k_out = k_out.tensor;
    args.fused = &fused;
    ASSERT_EQ(rope_apply_qk(context_.get(), &args), ROPE_OK) << rope_last_error();

    // To slots, too, and in place.
    std::vector<char> k_pages(kPages * kPageSize * kHeads * 64 * SizeOf(dtype)),
        v_pages(kPages * kPageSize * kHeads * kWidth * SizeOf(dtype));
    rope_kv_cache cache = ROPE_INIT(rope_kv_cache);
    cache.kind = ROPE_SLOTS_MAPPED;
    cache.pages = kPages;
    cache.page_size = kPageSize;
    cache.slots_i32 = slots.data();
    cache.slots_length = tokens_;
    cache.k = Tensor(k_pages.data(), dtype, kHeads, ROPE_LAYOUT_NHD);
    cache.v = Tensor(v_pages.data(), dtype, kHeads, ROPE_LAYOUT_NHD);
    cache.v.head_dim = kWidth;
    fused.cache = &cache;
    args.k_out = args.k;
    fused.v_out = fused.v;
    const bool twice = random.Sometimes(2);
    if (!twice) args.k_out = {}, fused.v_out = {};
    ASSERT_EQ(rope_apply_qk(context_.get(), &args), ROPE_OK) << rope_last_error();
    for (int64_t t = 0; t < tokens_; ++t) {
      for (int h = 0; h < kHeads; ++h) {
        const auto k_bytes = static_cast<size_t>(64 * SizeOf(dtype)),
                   v_bytes = static_cast<size_t>(kWidth * SizeOf(dtype));
        const char *k_want = k_out.At(0, t, h), *v_want = v_out.At(0, t, h);
        if (slots[t] >= 0) {
          const auto at = static_cast<size_t>(slots[t] * kHeads + h);
          ASSERT_EQ(std::memcmp(k_pages.data() + at * k_bytes, k_want, k_bytes), 0) << n;
          ASSERT_EQ(std::memcmp(v_pages.data() + at * v_bytes, v_want, v_bytes), 0) << n;
        }
        const Memory &k_now = twice ? k_out : k_before, &v_now = twice ? v_out : v_before;
        ASSERT_EQ(std::memcmp(k.At(0, t, h), k_now.At(0, t, h), k_bytes), 0) << n;
        ASSERT_EQ(std::memcmp(v.At(0, t, h), v_now.At(0, t, h), v_bytes), 0) << n;
      }
    }
    // And v_out is the reference's.
    for (int64_t t = 0; t < tokens_; ++t) {
      const float given = v_norm.norm.rstd != nullptr ? v_norm.rstd[t] : 0;
      const std::vector<Head> want = v_norm.Reference(kHeads, kWidth, dtype, kernels().fused)
                                         .Of(HeadsAt(v_before, 0, t, kWidth), given);
      for (int h = 0; h < kHeads; ++h) {
        for (int c = 0; c < kWidth; ++c) {
          alignas(8) char wanted[8];
          WriteElement(dtype, wanted, want[h][c]);
          ASSERT_TRUE(IsSame(dtype, v_out.At(0, t, h) + c * SizeOf(dtype), wanted, 0)) << n;
        }
      }
    }
  }
}

}  // namespace
}  // namespace rope::testing
