// Random calls with norms: tensors with gaps, weights, and rows of cos and sin whose bits are
// known: those of the caller, or of positions.
#ifndef LIBROPE_TESTS_SUPPORT_NORM_CALL_H_
#define LIBROPE_TESTS_SUPPORT_NORM_CALL_H_

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <optional>
#include <vector>

#include "librope/rope.h"
#include "support/elements.h"
#include "support/enumerators.h"
#include "support/handles.h"
#include "support/norm_reference.h"
#include "support/random.h"
#include "support/reference.h"
#include "support/row_positions.h"
#include "support/targets.h"

namespace rope::testing {

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

inline std::vector<Head> HeadsAt(const Memory& memory, int64_t batch, int64_t token, int width) {
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

// A context and what turns its heads, drawn at random.
class NormCalls : public TargetTest {
 protected:
  rope_config config_;
  int rotary_ = 0;
  Context context_;
  int64_t batch_ = 1, tokens_ = 1;
  std::vector<TokenRow> rows_;
  std::vector<float> cos_, sin_;
  bool full_ = false;
  rope_cos_sin table_{};
  std::optional<RowPositions> positions_;

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

  // Rows of the caller in half of the calls, else positions, under an angle of their own. Of those
  // rope_cos_sin_fill tells the rows, which other tests look at.
  void MakeTurns(Random* random, rope_qk_args* args) {
    if (random->Sometimes(2)) {
      table_ = MakeRows(random);
      args->cos_sin = &table_;
      return;
    }
    config_.angle = random->Of({ROPE_ANGLE_FLOAT32, ROPE_ANGLE_EXACT});
    if (!nope()) config_.attention_factor = random->Of({0.0, 0.8, 1.25});
    context_ = Create(config_);
    positions_.emplace(random, random->Pick(1, kLastPositionKind), batch_,
                       static_cast<int32_t>(tokens_),
                       batch_ == 1 && tokens_ > 1 && random->Sometimes(2), false);
    args->positions = positions_->p;
    full_ = false;
    rows_.assign(static_cast<size_t>(batch_ * tokens_), TokenRow{});
    if (nope()) return;
    const int pairs = rotary_ / 2;
    cos_.assign(rows_.size() * static_cast<size_t>(pairs), 0.0f);
    sin_ = cos_;
    const rope_cos_sin filled =
        Rows(ROPE_COS_SIN_SPLIT, ROPE_DTYPE_F32, pairs, batch_, cos_.data(), sin_.data());
    EXPECT_OK(
        rope_cos_sin_fill(context_.get(), batch_, tokens_, &args->positions, &filled, nullptr));
    for (size_t t = 0; t < rows_.size(); ++t) {
      const auto of_token = [&](const std::vector<float>& values) {
        const auto first = values.begin() + static_cast<std::ptrdiff_t>(t) * pairs;
        return std::vector<float>(first, first + pairs);
      };
      rows_[t].cos0 = rows_[t].cos1 = of_token(cos_);
      rows_[t].sin0 = rows_[t].sin1 = of_token(sin_);
    }
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
              x = random->Of(
                  {std::nan(""), std::numeric_limits<double>::infinity(), 0x1p-149, 1e30});
            WriteElement(dtype, memory.At(b, t, h) + c * SizeOf(dtype), x);
          }
        }
      }
    }
  }

  // Turns the span, which begins at channel `first`.
  void Turn(rope_operation operation, rope_dtype dtype, const TokenRow& row, int first,
            Head* head) const {
    if (nope()) return;
    const auto round = [&](float v) { return static_cast<float>(Rounded(dtype, v)); };
    const bool rounds_rows = config_.rounding != ROPE_ROUNDING_FLOAT32;
    const auto of_row = [&](float v) { return rounds_rows ? round(v) : v; };
    const bool back = operation == ROPE_OPERATION_BACKWARD;
    const Head x = *head;
    for (int p = 0; p < rotary_ / 2; ++p) {
      const Channels c = ChannelsOfPair(config_, operation, p);
      const float x0 = x[first + c.in0], x1 = x[first + c.in1], c0 = of_row(row.cos0[p]),
                  c1 = of_row(row.cos1[p]), s0 = of_row(back ? -row.sin1[p] : row.sin0[p]),
                  s1 = of_row(back ? -row.sin0[p] : row.sin1[p]);
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
};

inline Memory CopyOf(const Memory& memory) {
  Memory copy = memory;
  copy.tensor.data = copy.bytes.data();
  return copy;
}

}  // namespace rope::testing

#endif  // LIBROPE_TESTS_SUPPORT_NORM_CALL_H_
