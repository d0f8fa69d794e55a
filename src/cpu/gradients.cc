#include "cpu/gradients.h"

#include <hwy/base.h>

#include <algorithm>
#include <cstring>

#include "base/limits.h"
#include "cpu/channel_heads.h"
#include "cpu/norm_tiles.h"
#include "math/element.h"

namespace rope::cpu {
namespace {

// Heads in f32: 4 KiB of them, and no more than their numbers have place.
struct Stage {
  static constexpr int kFloats = kMaxHeadDim, kHeads = kMaxLanes;
  alignas(64) float normed[kFloats];
  alignas(64) float roots[kHeads], means[kHeads], products[kHeads], weighted[kHeads];
};

// A token of the block.
struct TokenAt {
  const char *in, *x;
  char* out;
  int index;
};

char* HeadOut(const GradientOf& of, const TokenAt& token, int32_t head) {
  return token.out + head * of.out_strides.head;
}

// Not inlined: its stack is free again when gradients pass the norm.
HWY_NOINLINE void Turn(const GradientOf& of, const TurnBack& turn, rope_dtype dtype, int index,
                       char* heads, int64_t step, int32_t count) {
  if (turn.rows == nullptr && turn.row == nullptr) return;
  char* const span = heads + turn.span * ElementSize(dtype);
  Tensor tensor = {};
  tensor.in_strides = tensor.out_strides = {0, step * count, step};
  tensor.heads = count;
  tensor.dtype = dtype;
  if (turn.row != nullptr) {
    RotateHeads(of.kernels, of.context, turn.order, turn.arithmetic, tensor, span, span, *turn.row);
    return;
  }
  Block block = *turn.rows;
  block.tensor = &tensor;
  block.in = block.out = span;
  block.cos += index * block.row_stride;
  block.sin += index * block.row_stride;
  block.tokens = 1;
  block.prefetch_last = nullptr;
  block.in_cache = true;
  of.kernels.rotations[dtype - 1][turn.order][static_cast<int>(turn.arithmetic)].rotate(block);
}

// Heads of a token, turned back on their way to the stage.
HWY_NOINLINE void ReadTurned(const GradientOf& of, const TurnBack& turn, const TokenAt& token,
                             int32_t head, int32_t count, float* stage) {
  Tensor tensor = {};
  const int64_t in_step = of.in_strides.head, out_step = of.channels * int64_t{sizeof(float)};
  tensor.in_strides = {0, in_step * count, in_step};
  tensor.out_strides = {0, out_step * count, out_step};
  tensor.heads = count;
  tensor.dtype = of.dtype;
  Block block = *turn.rows;
  block.tensor = &tensor;
  block.in = token.in + head * in_step;
  block.out = reinterpret_cast<char*>(stage);
  block.cos += token.index * block.row_stride;
  block.sin += token.index * block.row_stride;
  block.tokens = 1;
  turn.reading->rotate(block);
}

// Whether heads turn in the output, whose dtype has to round what the kernel multiplies.
bool TurnsInOutput(const GradientOf& of, const TurnBack& turn) {
  return (turn.rows != nullptr || turn.row != nullptr) && IsNarrow(of.dtype) &&
         TurnsIn(of.dtype, turn.arithmetic) == of.dtype;
}

// Heads [head, head + count) of a token, each the sum of its inputs.
void Add(const GradientOf& of, const TokenAt& token, int32_t head, int32_t count, float* stage) {
  for (int32_t h = 0; h < count; ++h) {
    const int64_t first = int64_t{head + h} * of.sums;
    of.kernels.add_heads[of.dtype - 1](token.in + first * of.in_strides.head, of.in_strides.head,
                                       of.sums, of.channels, stage + h * of.channels);
  }
}

// The same, narrowed, turned back in the output.
void TurnInOutput(const GradientOf& of, const TurnBack& turn, const TokenAt& token, int32_t head,
                  int32_t count, float* stage) {
  Add(of, token, head, count, stage);
  for (int32_t h = 0; h < count; ++h) {
    of.kernels.narrow[of.dtype - 1](stage + h * of.channels, HeadOut(of, token, head + h),
                                    of.channels);
  }
  Turn(of, turn, of.dtype, token.index, HeadOut(of, token, head), of.out_strides.head, count);
}

// Heads of a token, added and turned back, to the stage. `again`: once more.
void Load(const GradientOf& of, const TurnBack& turn, const TokenAt& token, int32_t head,
          int32_t count, bool again, float* stage) {
  const int32_t width = of.channels;
  if (turn.reading != nullptr) {
    ReadTurned(of, turn, token, head, count, stage);
  } else if (TurnsInOutput(of, turn)) {
    if (!again) TurnInOutput(of, turn, token, head, count, stage);
    for (int32_t h = 0; h < count; ++h) {
      of.kernels.widen[of.dtype - 1](HeadOut(of, token, head + h), stage + h * width, width);
    }
  } else {
    Add(of, token, head, count, stage);
    Turn(of, turn, ROPE_DTYPE_F32, token.index, reinterpret_cast<char*>(stage),
         int64_t{width} * int64_t{sizeof(float)}, count);
  }
  if (of.norm != nullptr && of.norm->rounding != ROPE_NORM_ROUNDING_FLOAT32) {
    of.kernels.round_row[of.dtype - 1](stage, count * width);
  }
}

// Means and inverse roots of heads that are normed singly.
void FindMoments(const GradientOf& of, const char* x, int32_t count, Stage* stage) {
  const Norm& norm = *of.norm;
  const int64_t step = norm.gradients.x_strides.head;
  const auto n = static_cast<float>(norm.channels);
  const auto sum = [&](NormSum what, float* to) {
    of.kernels.norm_sums[of.dtype - 1][static_cast<int>(what)](
        {x, step, count, norm.channels, stage->means, to, 0, 0, false});
  };
  std::fill_n(stage->roots, Stage::kHeads, 0.0f);  // whole vectors are read
  if (norm.rule.has_mean) {
    sum(NormSum::kValues, stage->means);
    for (int32_t h = 0; h < count; ++h) stage->means[h] /= n;
    sum(NormSum::kDistances, stage->roots);
  } else {
    sum(NormSum::kSquares, stage->roots);
  }
  of.kernels.inverse_roots(stage->roots, count, n, norm.eps);
}

// The gradients of a norm: one object for a block.
class GradientPass {
 public:
  GradientPass(const GradientOf& of, const TurnBack& turn, int64_t part) : of_(of), turn_(turn) {
    const NormGradients& gradients = of.norm->gradients;
    const int64_t first = part * gradients.weights;
    weight_grad_ = gradients.weight != nullptr ? gradients.weight + first : nullptr;
    bias_grad_ = gradients.bias != nullptr ? gradients.bias + first : nullptr;
    if (SharesWeights()) WidenWeights(0);
  }

  void PassToken(const TokenAt& token) {
    const bool apart = of_.norm->span == ROPE_NORM_SPAN_HEAD;
    if (!apart) FindTokenMeans(token);
    ForEachPart([&](int32_t head, int32_t count) {
      Load(of_, turn_, token, head, count, !apart, stage_.normed);
      if (apart) {
        FindMoments(of_, HeadX(token, head), count, &stage_);
        Sum(token, head, count);
        const auto n = static_cast<float>(of_.channels);
        for (int32_t h = 0; h < count; ++h) {
          stage_.products[h] /= n;
          if (of_.norm->rule.has_mean) stage_.weighted[h] /= n;
        }
      }
      ForEachWeights(token, head, count, of_.kernels.norm_gradients[of_.dtype - 1]);
    });
  }

 private:
  bool SharesWeights() const { return of_.norm->weight_stride == 0; }
  const char* HeadX(const TokenAt& token, int32_t head) const {
    return token.x + head * of_.norm->gradients.x_strides.head;
  }

  void WidenWeights(int32_t head) {
    const Norm& norm = *of_.norm;
    if (norm.weight == nullptr) {
      std::fill_n(weights_, norm.channels, 1.0f);
      return;
    }
    of_.kernels.widen_weights[norm.weight_dtype - 1](norm.weight + head * norm.weight_stride,
                                                     norm.channels, norm.rule.one_plus, weights_);
  }

  // apply(head, count) for as many heads as the stage holds, one after the other.
  template <class Apply>
  void ForEachPart(const Apply& apply) const {
    const int32_t most = std::min(Stage::kFloats / of_.channels, Stage::kHeads);
    for (int32_t head = 0; head < of_.heads; head += most) {
      apply(head, std::min(most, of_.heads - head));
    }
  }

  // A kernel of the heads of the stage, as far as they share weights.
  void ForEachWeights(const TokenAt& token, int32_t head, int32_t count,
                      void (*kernel)(const NormedGradients&)) {
    const Norm& norm = *of_.norm;
    const int32_t step = SharesWeights() ? count : 1;
    for (int32_t h = 0; h < count; h += step) {
      NormedGradients heads;
      heads.normed = stage_.normed + h * of_.channels;
      heads.normed_step = of_.channels;
      heads.x = HeadX(token, head + h);
      heads.x_step = norm.gradients.x_strides.head;
      heads.out = HeadOut(of_, token, head + h);
      heads.out_step = of_.out_strides.head;
      heads.count = step;
      heads.channels = of_.channels;
      heads.weights = weights_;
      heads.roots = stage_.roots + h;
      heads.means = norm.rule.has_mean ? stage_.means + h : nullptr;
      heads.eager = norm.rounding == ROPE_NORM_ROUNDING_EAGER;
      heads.products = stage_.products + h;
      heads.weighted = stage_.weighted + h;
      heads.weight = weight_grad_;
      heads.bias = bias_grad_;
      if (!SharesWeights()) {
        WidenWeights(head + h);
        const int64_t of_head = int64_t{head + h} * of_.channels;
        if (heads.weight != nullptr) heads.weight += of_head;
        if (heads.bias != nullptr) heads.bias += of_head;
      }
      kernel(heads);
    }
  }

  void Sum(const TokenAt& token, int32_t head, int32_t count) {
    ForEachWeights(token, head, count, of_.kernels.gradient_sums[of_.dtype - 1]);
  }

  // Of heads that are normed together, which are read once more for it.
  void FindTokenMeans(const TokenAt& token) {
    const Norm& norm = *of_.norm;
    Tensor x = {};
    x.in_strides = norm.gradients.x_strides;
    x.heads = of_.heads;
    x.dtype = of_.dtype;
    float root, mean = 0;
    FindTokenMoments({of_.kernels, of_.context, norm, x}, token.x, &root, &mean);
    std::fill_n(stage_.roots, Stage::kHeads, root);
    std::fill_n(stage_.means, Stage::kHeads, mean);
    float products[kRunningSums] = {}, weighted[kRunningSums] = {};
    ForEachPart([&](int32_t head, int32_t count) {
      Load(of_, turn_, token, head, count, false, stage_.normed);
      Sum(token, head, count);
      for (int32_t h = 0; h < count; ++h) {
        products[(head + h) % kRunningSums] += stage_.products[h];
        if (norm.rule.has_mean) weighted[(head + h) % kRunningSums] += stage_.weighted[h];
      }
    });
    const float n = static_cast<float>(of_.channels) * static_cast<float>(of_.heads);
    std::fill_n(stage_.products, Stage::kHeads, SumOf(products, kRunningSums) / n);
    std::fill_n(stage_.weighted, Stage::kHeads, SumOf(weighted, kRunningSums) / n);
  }

  const GradientOf& of_;
  const TurnBack& turn_;
  float *weight_grad_, *bias_grad_;
  alignas(64) float weights_[kMaxHeadDim];
  Stage stage_;
};

// Gradients of heads without a norm.
void AddToken(const GradientOf& of, const TurnBack& turn, const TokenAt& token) {
  alignas(64) float stage[Stage::kFloats];
  const int32_t most = Stage::kFloats / of.channels;
  for (int32_t head = 0; head < of.heads; head += most) {
    const int32_t count = std::min(most, of.heads - head);
    Load(of, turn, token, head, count, false, stage);
    if (TurnsInOutput(of, turn)) continue;
    for (int32_t h = 0; h < count; ++h) {
      of.kernels.narrow[of.dtype - 1](stage + h * of.channels, HeadOut(of, token, head + h),
                                      of.channels);
    }
  }
}

}  // namespace

void PassGradients(const GradientOf& of, const TurnBack& turn, const char* in, const char* x,
                   char* out, int64_t part, int count) {
  const auto token_at = [&](int i) {
    return TokenAt{in + i * of.in_strides.token,
                   of.norm != nullptr ? x + i * of.norm->gradients.x_strides.token : nullptr,
                   out + i * of.out_strides.token, i};
  };
  if (of.norm == nullptr) {
    for (int i = 0; i < count; ++i) AddToken(of, turn, token_at(i));
    return;
  }
  GradientPass pass(of, turn, part);
  for (int i = 0; i < count; ++i) pass.PassToken(token_at(i));
}

void ClearParts(const NormGradients& gradients, int64_t first, int64_t last) {
  const auto bytes = static_cast<size_t>((last - first) * gradients.weights) * sizeof(float);
  const int64_t at = first * gradients.weights;
  if (gradients.weight != nullptr) std::memset(gradients.weight + at, 0, bytes);
  if (gradients.bias != nullptr) std::memset(gradients.bias + at, 0, bytes);
}

}  // namespace rope::cpu
