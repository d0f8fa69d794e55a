// Norms of q, k and v: random calls have the bits of a reference in scalar steps, on every
// instruction set; what the rounding promises to be separate calls is these; errors name what they
// are about, and write nothing.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "librope/rope.h"
#include "support/elements.h"
#include "support/enumerators.h"
#include "support/errors.h"
#include "support/handles.h"
#include "support/norm_reference.h"
#include "support/random.h"
#include "support/reference.h"
#include "support/targets.h"

namespace rope::testing {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

// A tensor that is read, and one that is written: [batch, tokens, heads] in some order, with gaps.
struct Memory {
  rope_tensor tensor{};
  std::vector<char> bytes;

  Memory() = default;
  Memory(Random* random, rope_dtype dtype, int64_t batch, int64_t tokens, int heads, int width,
         int described) {
    const int64_t gap = random->Below(2) * random->Pick(1, 40);
    int64_t head = width + gap, token = heads * head, row = tokens * token;
    if (random->Sometimes(3)) token = width + gap, head = tokens * token, row = heads * head;
    bytes.assign(static_cast<size_t>(batch * row * SizeOf(dtype)), '\x5a');
    tensor = Tensor(bytes.data(), dtype, heads);
    SetStrides(&tensor, row, token, head);
    tensor.head_dim = described;
  }
  char* At(int64_t batch, int64_t token, int head) const {
    return static_cast<char*>(tensor.data) +
           (batch * tensor.stride_batch + token * tensor.stride_token + head * tensor.stride_head) *
               SizeOf(tensor.dtype);
  }
};

std::vector<Head> HeadsAt(const Memory& memory, int64_t batch, int64_t token, int width) {
  std::vector<Head> heads;
  for (int h = 0; h < memory.tensor.heads; ++h) {
    heads.emplace_back();
    for (int c = 0; c < width; ++c) {
      heads.back().push_back(static_cast<float>(ReadElement(
          memory.tensor.dtype, memory.At(batch, token, h) + c * SizeOf(memory.tensor.dtype))));
    }
  }
  return heads;
}

// A norm with its weights.
struct Weighted {
  rope_norm norm = ROPE_INIT(rope_norm);
  std::vector<char> weights, biases;
  std::vector<float> rstd;

  Weighted() = default;
  Weighted(Random* random, int heads, int width, int64_t tokens, bool turns, bool all) {
    norm.kind = random->Pick(1, all ? 5 : 3);
    norm.span = random->Sometimes(2) ? 0 : random->Pick(0, norm.kind <= 3 ? 2 : 1);
    norm.order = turns && all ? random->Pick(0, 1) : 0;
    norm.rounding = random->Pick(0, 2);
    if (norm.span != ROPE_NORM_SPAN_GIVEN) norm.eps = random->Of({1e-6, 1e-5, 1e-12, 0.25});
    if (norm.span == ROPE_NORM_SPAN_GIVEN) {
      for (int64_t t = 0; t < tokens; ++t) rstd.push_back(0.25f + 0.001f * random->Pick(0, 999));
      norm.rstd = rstd.data();
    }
    if (norm.kind == ROPE_NORM_KIND_RMS_PLAIN) return;
    norm.weight_dtype = random->Pick(1, 3);
    if ((norm.span != ROPE_NORM_SPAN_HEAD && heads > 1) || random->Sometimes(3)) {
      norm.weight_stride_head = width + random->Pick(0, 3);
    }
    const int64_t count = norm.weight_stride_head * (heads - 1) + width;
    const auto fill = [&](std::vector<char>* values) {
      values->resize(static_cast<size_t>(count * SizeOf(norm.weight_dtype)));
      for (int64_t i = 0; i < count; ++i) {
        WriteElement(norm.weight_dtype, values->data() + i * SizeOf(norm.weight_dtype),
                     random->Sometimes(50) ? -0.0 : (random->Pick(-2000, 2000)) / 1024.0);
      }
    };
    fill(&weights);
    norm.weight = weights.data();
    if (norm.kind == ROPE_NORM_KIND_LAYER_BIAS) {
      fill(&biases);
      norm.bias = biases.data();
    }
  }

  NormReference Reference(int heads, int width, rope_dtype dtype, bool fused) const {
    NormReference reference{norm, {}, {}, dtype, fused};
    const auto read = [&](const std::vector<char>& values, std::vector<Head>* to) {
      for (int h = 0; h < heads && !values.empty(); ++h) {
        to->emplace_back();
        for (int c = 0; c < width; ++c) {
          to->back().push_back(static_cast<float>(ReadElement(
              norm.weight_dtype,
              values.data() + (h * norm.weight_stride_head + c) * SizeOf(norm.weight_dtype))));
        }
      }
    };
    read(weights, &reference.weights);
    read(biases, &reference.biases);
    return reference;
  }
};

// One row of cos and sin for each member of a pair; `by_channels`: they differ.
struct TokenRow {
  std::vector<float> cos0, sin0, cos1, sin1;
  bool by_channels;
};

// q or k with its output and its norm.
struct Side {
  Memory in, out;
  bool in_place = true, normed = false;
  int in_width = 0, out_width = 0;  // channels of a described head
  Weighted norm;
};

class NormTest : public TargetTest {
 protected:
  rope_config config_;
  int rotary_ = 0;
  Context context_;
  int64_t batch_ = 1, tokens_ = 1;
  std::vector<TokenRow> rows_;
  std::vector<float> cos_, sin_;
  bool full_ = false;

  void Configure(Random* random) {
    const int dim = random->Sometimes(2)   ? random->Of({64, 80, 96, 128, 256})
                    : random->Sometimes(9) ? random->Of({512, 1000, 1024})
                                           : 2 * random->Pick(1, 70);
    config_ = Config(dim, random->Pick(1, kLastPairing));
    rotary_ = dim;
    if (dim >= 8 && random->Sometimes(3)) {
      rotary_ = 2 * random->Pick(2, dim / 2);
      config_.rotary_dim = rotary_;
      config_.rotary_offset = random->Pick(0, dim - rotary_);
    }
    config_.rounding = random->Sometimes(2) ? 0 : random->Pick(0, kLastRounding);
    if (config_.pairing == ROPE_PAIRING_HALVES_PER_AXIS) {
      if (rotary_ < 4) {
        config_.pairing = ROPE_PAIRING_HALVES;
      } else {
        config_.axes = 2;
        config_.mrope_section[0] = 1 + rotary_ / 7;
        config_.mrope_section[1] = rotary_ / 2 - config_.mrope_section[0];
        if (config_.mrope_section[1] < 1) config_.mrope_section[0] = 1;
        config_.mrope_section[1] = rotary_ / 2 - config_.mrope_section[0];
      }
    }
    if (random->Sometimes(8)) {
      config_.scaling = ROPE_SCALING_NOPE;
      config_.pairing = random->Sometimes(2) ? 0 : ROPE_PAIRING_HALVES;
      config_.axes = 0;
      std::memset(config_.mrope_section, 0, sizeof(config_.mrope_section));
    }
    context_ = Create(config_);
  }

  bool nope() const { return config_.scaling == ROPE_SCALING_NOPE; }

  // Rows of the caller, whose bits are known; some have other values in each channel of a pair.
  rope_cos_sin MakeRows(Random* random) {
    const int pairs = rotary_ / 2;
    full_ = config_.pairing != ROPE_PAIRING_HALVES_PER_AXIS && random->Sometimes(3);
    rows_.clear(), cos_.clear(), sin_.clear();
    for (int64_t t = 0; t < batch_ * tokens_; ++t) {
      TokenRow row;
      row.by_channels = full_ && random->Sometimes(2);
      for (int p = 0; p < 2 * pairs; ++p) {
        const bool again = p >= pairs && !row.by_channels;
        const float cos = again ? row.cos0[p - pairs]
                                : static_cast<float>(random->Pick(-5000, 5000)) / 4999.0f,
                    sin = again ? row.sin0[p - pairs]
                                : static_cast<float>(random->Pick(-5000, 5000)) / 4999.0f;
        (p < pairs ? row.cos0 : row.cos1).push_back(cos);
        (p < pairs ? row.sin0 : row.sin1).push_back(sin);
      }
      cos_.insert(cos_.end(), row.cos0.begin(), row.cos0.end());
      sin_.insert(sin_.end(), row.sin0.begin(), row.sin0.end());
      if (full_) {
        cos_.insert(cos_.end(), row.cos1.begin(), row.cos1.end());
        sin_.insert(sin_.end(), row.sin1.begin(), row.sin1.end());
      }
      rows_.push_back(row);
    }
    return Rows(full_ ? ROPE_COS_SIN_FULL_HALVES : ROPE_COS_SIN_SPLIT, ROPE_DTYPE_F32, pairs,
                batch_, cos_.data(), sin_.data());
  }

  void Fill(Random* random, const Memory& memory, int width) const {
    const rope_dtype dtype = memory.tensor.dtype;
    const double scale = random->Of({1.0, 1.0, 100.0, 0.01});
    for (int64_t b = 0; b < batch_; ++b) {
      for (int64_t t = 0; t < tokens_; ++t) {
        for (int h = 0; h < memory.tensor.heads; ++h) {
          for (int c = 0; c < width; ++c) {
            double x = scale * random->Pick(-3000, 3000) / 1024;
            if (random->Sometimes(5000))
              x = random->Of({std::nan(""), double{kInf}, 0x1p-149, 1e30});
            WriteElement(dtype, memory.At(b, t, h) + c * SizeOf(dtype), x);
          }
        }
      }
    }
  }

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

  // Turns the span, which begins at channel `first`.
  void Turn(rope_dtype dtype, const TokenRow& row, int first, Head* head) const {
    if (nope()) return;
    const auto round = [&](float v) { return static_cast<float>(Rounded(dtype, v)); };
    const bool rounds_rows = config_.rounding != ROPE_ROUNDING_FLOAT32;
    const auto of_row = [&](float v) { return rounds_rows ? round(v) : v; };
    const Head x = *head;
    for (int p = 0; p < rotary_ / 2; ++p) {
      const Channels c = ChannelsOfPair(config_, ROPE_OPERATION_FORWARD, p);
      const float x0 = x[first + c.in0], x1 = x[first + c.in1], c0 = of_row(row.cos0[p]),
                  s0 = of_row(row.sin0[p]), c1 = of_row(row.cos1[p]), s1 = of_row(row.sin1[p]);
      float y0, y1;
      if (config_.rounding == ROPE_ROUNDING_EAGER) {
        const float a = round(x0 * c0), b = round(x1 * s0), d = round(x1 * c1), e = round(x0 * s1);
        y0 = a - b, y1 = d + e;
      } else if (config_.rounding == ROPE_ROUNDING_NATIVE) {
        y0 = static_cast<float>(NativeSum(x0, c0, -x1, s0));
        y1 = static_cast<float>(NativeSum(x1, c1, x0, s1));
      } else if (kernels().fused || row.by_channels) {
        y0 = std::fma(x0, c0, -(x1 * s0)), y1 = std::fma(x1, c1, x0 * s1);
      } else {
        const float a = x0 * c0, b = x1 * s0, d = x1 * c1, e = x0 * s1;
        y0 = a - b, y1 = d + e;
      }
      (*head)[first + c.out0] = y0;
      (*head)[first + c.out1] = y1;
    }
  }

  // The results of a token in f32, for the channels that are described of the input.
  std::vector<Head> Want(const Side& side, const std::vector<Head>& x, int64_t token) const {
    const rope_dtype dtype = side.in.tensor.dtype;
    const int first = side.in_width == config_.head_dim ? config_.rotary_offset : 0;
    const rope_norm& norm = side.norm.norm;
    const auto turn = [&](std::vector<Head>* heads) {
      for (Head& head : *heads) Turn(dtype, rows_[token], first, &head);
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

Memory CopyOf(const Memory& memory) {
  Memory copy = memory;
  copy.tensor.data = copy.bytes.data();
  return copy;
}

TEST_P(NormTest, RandomCallsHaveTheBitsOfTheReference) {
  const int count = LongTests() ? 20000 : 120;
  // Each target has cases of its own: much of what they are about is common to all.
  const uint64_t first = std::hash<std::string>()(kernels().target) % 1000000;
  for (int n = 0; n < count; ++n) {
    Random random(first + static_cast<uint64_t>(n));
    Configure(&random);
    batch_ = random.Pick(1, 2);
    tokens_ = random.Sometimes(3) ? random.Pick(1, 40) : random.Pick(1, 3);
    const rope_cos_sin rows = MakeRows(&random);
    const std::vector<rope_dtype> dtypes = DtypesOf(config_.rounding);
    const auto dtype = [&] { return dtypes[random.Below(static_cast<int64_t>(dtypes.size()))]; };
    Side q = MakeSide(&random, dtype()), k = MakeSide(&random, dtype());
    const Memory q_before = CopyOf(q.in), k_before = CopyOf(k.in);
    const std::vector<char> q_image = q.in_place ? q.in.bytes : q.out.bytes,
                            k_image = k.in_place ? k.in.bytes : k.out.bytes;
    rope_qk_args args = Args(batch_, tokens_);
    rope_fused fused = ROPE_INIT(rope_fused);
    args.fused = &fused;
    args.cos_sin = &rows;
    args.q = q.in.tensor;
    args.k = k.in.tensor;
    if (!q.in_place) args.q_out = q.out.tensor;
    if (!k.in_place) args.k_out = k.out.tensor;
    if (q.normed) fused.q_norm = &q.norm.norm;
    if (k.normed) fused.k_norm = &k.norm.norm;
    SCOPED_TRACE("case " + std::to_string(n) + " q: " + Describe(config_, q) +
                 " k: " + Describe(config_, k) + " full " + std::to_string(full_));
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
