// BACKWARD with norms: random calls have the bits of a reference in scalar steps, on every
// instruction set; what they give is the gradient, by central differences; parts of the gradients
// of weights agree, whatever runs them.
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
#include "support/gradient_call.h"
#include "support/gradient_reference.h"
#include "support/handles.h"
#include "support/norm_call.h"
#include "support/norm_reference.h"
#include "support/random.h"

namespace rope::testing {
namespace {

class GradientTest : public GradientCalls {
 protected:
  int64_t PartOf(int64_t token) const {
    int64_t part = 0;
    while ((part + 1) * batch_ * tokens_ / parts_ <= token) ++part;
    return part;
  }

  // The gradients of a token in f32, of all channels of the input.
  std::vector<Head> Want(GradientSide* side, bool turns, const std::vector<Head>& gradients,
                         const std::vector<Head>& x, int64_t token) {
    const rope_dtype dtype = side->in.tensor.dtype;
    const int first = side->in_width == config_.head_dim ? config_.rotary_offset : 0;
    const bool rounds =
        config_.rounding == ROPE_ROUNDING_EAGER || config_.rounding == ROPE_ROUNDING_NATIVE;
    std::vector<Head> y = SumsOfHeads(gradients, side->repeats);
    for (Head& head : y) {
      const bool products = turns && rounds && !nope();
      for (float& value : head) {
        if (products) value = static_cast<float>(Rounded(dtype, value));
      }
      if (turns) Turn(ROPE_OPERATION_BACKWARD, dtype, rows_[token], first, &head);
    }
    if (!side->normed) return y;
    std::vector<Head> none;
    const bool grows = parts_ != 0;
    const size_t part = grows ? static_cast<size_t>(PartOf(token)) : 0;
    const GradientReference reference = {
        side->norm.Reference(static_cast<int>(x.size()), side->in_width, dtype, kernels().fused),
        grows ? &side->want_weight[part] : &none, grows ? &side->want_bias[part] : &none};
    return reference.Of(y, x);
  }

  void Expect(GradientSide* side, bool turns, const Memory& gradients, std::vector<char> image) {
    const rope_dtype dtype = side->in.tensor.dtype;
    const int size = SizeOf(dtype), offset = config_.rotary_offset;
    Memory& out = side->written();
    const bool all = side->in_width == side->out_width;
    const int from = all || side->in_width == rotary_ ? 0 : offset,
              to = all || side->out_width == rotary_ ? 0 : offset,
              count = all ? side->in_width : rotary_;
    for (int64_t b = 0; b < batch_; ++b) {
      for (int64_t t = 0; t < tokens_; ++t) {
        const std::vector<Head> want =
            Want(side, turns, HeadsAt(gradients, b, t, side->in_width),
                 HeadsAt(side->x, b, t, side->out_width), b * tokens_ + t);
        for (int h = 0; h < out.tensor.heads; ++h) {
          for (int c = 0; c < count; ++c) {
            char* const element = out.At(b, t, h) + (to + c) * size;
            alignas(8) char wanted[8];
            WriteElement(dtype, wanted, want[h][from + c]);
            ASSERT_TRUE(IsSame(dtype, element, wanted, 0))
                << "channel " << from + c << " of head " << h << ", token " << t << ": "
                << ReadElement(dtype, element) << ", not " << ReadElement(dtype, wanted);
            std::memcpy(image.data() + (element - out.bytes.data()), element, size);
          }
        }
      }
    }
    ASSERT_TRUE(image == out.bytes) << "more was written";
    ExpectGrad(side->weight_grad, side->want_weight, "weight");
    ExpectGrad(side->bias_grad, side->want_bias, "bias");
  }

  static void ExpectGrad(const std::vector<float>& got,
                         const std::vector<std::vector<Head>>& of_parts, const char* name) {
    size_t at = 0;
    for (const auto& part : of_parts) {
      for (const Head& row : part) {
        for (float want : row) {
          const float value = got[at++];
          ASSERT_TRUE((std::isnan(value) && std::isnan(want)) ||
                      std::memcmp(&value, &want, sizeof(float)) == 0)
              << name << " gradient " << at - 1 << ": " << value << ", not " << want;
        }
      }
    }
    ASSERT_EQ(at, got.size());
  }
};
INSTANTIATE_TARGETS(GradientTest);

TEST_P(GradientTest, RandomCallsHaveTheBitsOfTheReference) {
  const int count = LongTests() ? 5000 : ShortTests() ? 120 : 1000;
  int means_in_f32 = 0;
  for (int n = 0; n < count; ++n) {
    Random random(static_cast<uint64_t>(n) + 40000);
    Configure(&random);
    batch_ = random.Pick(1, 2);
    tokens_ = random.Sometimes(3) ? random.Pick(1, 30) : random.Pick(1, 3);
    parts_ = random.Sometimes(4) ? 0 : random.Pick(1, 7);
    rope_qk_args args = Args(batch_, tokens_);
    args.operation = ROPE_OPERATION_BACKWARD;
    MakeTurns(&random, &args);
    const std::vector<rope_dtype> dtypes = DtypesOf(config_.rounding);
    const auto dtype = [&] { return dtypes[random.Below(static_cast<int64_t>(dtypes.size()))]; };
    GradientSide q = MakeSide(&random, dtype(), true), k = MakeSide(&random, dtype(), true),
                 v = MakeSide(&random, random.Pick(1, kLastDtype), false);
    rope_fused fused = ROPE_INIT(rope_fused);
    args.fused = &fused;
    args.q = q.in.tensor;
    args.k = k.in.tensor;
    fused.v = v.in.tensor;
    fused.v_out = v.written().tensor;
    if (!q.in_place) args.q_out = q.out.tensor;
    if (!k.in_place) args.k_out = k.out.tensor;
    const auto give = [](GradientSide* side, const rope_norm** norm) {
      if (!side->normed) return;
      side->norm.norm.x = &side->x.tensor;
      *norm = &side->norm.norm;
    };
    give(&q, &fused.q_norm), give(&k, &fused.k_norm), give(&v, &fused.v_norm);
    const bool has_v = q.normed || k.normed || random.Sometimes(2);
    if (!has_v) args.fused = nullptr;  // gradients of repeated heads need none
    SCOPED_TRACE("case " + std::to_string(n) + " q: " + Describe(q) + " k: " + Describe(k) +
                 " v: " + Describe(v) + " full " + std::to_string(full_) + " positions " +
                 std::to_string(args.positions.kind) + " tokens " + std::to_string(tokens_));
    const Memory before[] = {CopyOf(q.in), CopyOf(k.in), CopyOf(v.in)},
                 x_before[] = {CopyOf(q.x), CopyOf(k.x), CopyOf(v.x)};
    GradientSide* const sides[] = {&q, &k, &v};
    std::vector<char> images[3];
    for (int i = 0; i < 3; ++i) images[i] = sides[i]->written().bytes;
    ASSERT_EQ(rope_apply_qk(context_.get(), &args), ROPE_OK) << rope_last_error();
    for (int i = 0; i < (has_v ? 3 : 2); ++i) {
      SCOPED_TRACE("qkv"[i]);
      Expect(sides[i], i != 2, before[i], images[i]);
      if (HasFatalFailure()) return;
      ASSERT_TRUE(sides[i]->x.bytes == x_before[i].bytes);
      if (!sides[i]->in_place) {
        ASSERT_TRUE(sides[i]->in.bytes == before[i].bytes);
      }
    }
    means_in_f32 += q.mean_in_f32 + k.mean_in_f32;
  }
  EXPECT_GT(means_in_f32, 1);
}

// What ROUNDED and EAGER promise, as of FORWARD: the bits of a call that turns the gradients back
// in their dtype, adding those of repeated heads, and one of the norm alone, with a NOPE context.
TEST_P(GradientTest, RoundedIsTwoCalls) {
  int compared = 0;
  for (int n = 0; n < 400; ++n) {
    Random random(static_cast<uint64_t>(n) + 90000);
    Configure(&random);
    batch_ = random.Pick(1, 2), tokens_ = random.Pick(1, 20), parts_ = random.Pick(0, 5);
    const std::vector<rope_dtype> dtypes = DtypesOf(config_.rounding);
    const rope_dtype dtype = dtypes[random.Below(static_cast<int64_t>(dtypes.size()))];
    GradientSide sides[] = {MakeSide(&random, dtype, true),
                            MakeSide(&random, random.Pick(1, kLastDtype), false)};
    GradientSide &q = sides[0], &v = sides[1];
    if (nope() || !q.normed || !v.normed) continue;
    ++compared;
    SCOPED_TRACE("case " + std::to_string(n) + " q: " + Describe(q) + " v: " + Describe(v));
    rope_config config = config_;
    config.scaling = ROPE_SCALING_NOPE;
    const Context nope_context = Create(config);
    std::vector<int64_t> ids;
    for (int64_t t = 0; t < 2 * batch_ * tokens_; ++t) ids.push_back(random.Pick(-100, 100000));
    rope_qk_args args = Args(batch_, tokens_);
    args.operation = ROPE_OPERATION_BACKWARD;
    args.positions =
        Ids(config_.axes == 2 ? ROPE_POSITIONS_IDS_ABT : ROPE_POSITIONS_IDS_BT, ids.data());
    rope_fused fused = ROPE_INIT(rope_fused);
    args.fused = &fused;
    args.q = q.in.tensor;
    fused.v = v.in.tensor;

    // Apart, between the calls in memory of their own.
    Memory between[2];
    std::vector<float> weight_grads[2], bias_grads[2];
    rope_norm norms[2];
    for (int i = 0; i < 2; ++i) {
      GradientSide& side = sides[i];
      const rope_tensor& x = side.x.tensor;
      between[i] = Memory(&random, x.dtype, batch_, tokens_, x.heads, side.in_width, side.in_width);
      rope_norm& norm = side.norm.norm;
      if (norm.rounding == ROPE_NORM_ROUNDING_FLOAT32) norm.rounding = ROPE_NORM_ROUNDING_ROUNDED;
      norm.x = &x;
      weight_grads[i] = side.weight_grad, bias_grads[i] = side.bias_grad;
      norms[i] = norm;
      if (norm.weight_grad != nullptr) norms[i].weight_grad = weight_grads[i].data();
      if (norm.bias_grad != nullptr) norms[i].bias_grad = bias_grads[i].data();
    }
    args.q_out = between[0].tensor;
    fused.v_out = between[1].tensor;
    ASSERT_OK(rope_apply_qk(context_.get(), &args));
    rope_qk_args alone = args;
    rope_fused of_norms = ROPE_INIT(rope_fused);
    alone.fused = &of_norms;
    alone.q = alone.q_out = between[0].tensor;
    of_norms.v = of_norms.v_out = between[1].tensor;
    of_norms.q_norm = &norms[0], of_norms.v_norm = &norms[1];
    ASSERT_OK(rope_apply_qk(nope_context.get(), &alone));

    // In one call.
    args.q_out = q.in_place ? rope_tensor{} : q.out.tensor;
    fused.v_out = v.written().tensor;
    fused.q_norm = &q.norm.norm, fused.v_norm = &v.norm.norm;
    ASSERT_OK(rope_apply_qk(context_.get(), &args));
    for (int i = 0; i < 2; ++i) {
      SCOPED_TRACE("qv"[i]);
      GradientSide& side = sides[i];
      const auto bytes = static_cast<size_t>(side.in_width * SizeOf(side.x.tensor.dtype));
      for (int64_t b = 0; b < batch_; ++b) {
        for (int64_t t = 0; t < tokens_; ++t) {
          for (int h = 0; h < side.x.tensor.heads; ++h) {
            ASSERT_EQ(std::memcmp(side.written().At(b, t, h), between[i].At(b, t, h), bytes), 0)
                << "head " << h << " of token " << t << " of row " << b;
          }
        }
      }
      const auto expect_same = [](const std::vector<float>& one, const std::vector<float>& two) {
        ASSERT_EQ(one.size(), two.size());
        EXPECT_TRUE(one.empty() ||
                    std::memcmp(one.data(), two.data(), one.size() * sizeof(float)) == 0);
      };
      expect_same(side.weight_grad, weight_grads[i]);
      expect_same(side.bias_grad, bias_grads[i]);
    }
    if (HasFailure()) return;
  }
  EXPECT_GT(compared, 150);
}

// A call in f32 without gaps: q of kTokens tokens with a norm, each of its heads `repeats` times in
// the output, and what is known of it in doubles.
struct Example {
  static constexpr int kDim = 20, kHeads = 3, kTokens = 2, kPairs = kDim / 2;
  static constexpr int kCount = kTokens * kHeads * kDim;
  const int repeats;
  rope_config config;
  rope_norm norm = ROPE_INIT(rope_norm);
  std::vector<float> x, weights, biases, cos, sin, gradient;

  Example(rope_norm_kind kind, rope_norm_span span, rope_pairing pairing, bool weights_by_head,
          int repeats)
      : repeats(repeats) {
    Random random(static_cast<uint64_t>(kind * 100 + span * 10 + pairing));
    config = Config(kDim, pairing);
    const auto fill = [&](std::vector<float>* values, int count) {
      for (int i = 0; i < count; ++i) {
        values->push_back(static_cast<float>(random.Pick(-4000, 4000)) / 2048.0f + 0.1f);
      }
    };
    fill(&x, kCount), fill(&gradient, repeats * kCount), fill(&cos, kTokens * kPairs);
    fill(&sin, kTokens * kPairs), fill(&weights, kHeads * kDim), fill(&biases, kHeads * kDim);
    norm.kind = kind;
    norm.span = span;
    norm.eps = 0.125;
    if (kind == ROPE_NORM_KIND_RMS_PLAIN) return;
    norm.weight_dtype = ROPE_DTYPE_F32;
    norm.weight_stride_head = weights_by_head ? kDim : 0;
    norm.weight = weights.data();
    if (kind == ROPE_NORM_KIND_LAYER_BIAS) norm.bias = biases.data();
  }
  Example(const Example&) = delete;

  // The sum of what FORWARD gives times the gradient, with these in the places of x, .. .
  double Loss(const std::vector<double>& xs, const std::vector<double>& ws,
              const std::vector<double>& bs) const {
    const bool layer = norm.kind >= ROPE_NORM_KIND_LAYER;
    const int together = norm.span == ROPE_NORM_SPAN_ALL_HEADS ? kHeads * kDim : kDim;
    double loss = 0;
    for (int first = 0; first < kCount; first += together) {
      double mean = 0, square = 0;
      for (int c = 0; c < together; ++c) mean += layer ? xs[first + c] / together : 0;
      for (int c = 0; c < together; ++c) {
        square += (xs[first + c] - mean) * (xs[first + c] - mean) / together;
      }
      const double r = 1 / std::sqrt(square + norm.eps);
      for (int head = first; head < first + together; head += kDim) {
        const int token = head / (kHeads * kDim), row = head / kDim % kHeads;
        std::vector<double> n(kDim);
        for (int c = 0; c < kDim; ++c) {
          const int at = (norm.weight_stride_head != 0 ? row * kDim : 0) + c;
          n[c] = (xs[head + c] - mean) * r;
          if (norm.weight != nullptr) n[c] *= ws[at];
          if (norm.kind == ROPE_NORM_KIND_RMS_ONE_PLUS) n[c] += (xs[head + c] - mean) * r;
          if (norm.bias != nullptr) n[c] += bs[at];
        }
        for (int p = 0; p < kPairs; ++p) {
          const Channels c = ChannelsOfPair(config, ROPE_OPERATION_FORWARD, p);
          const double a = cos[token * kPairs + p], b = sin[token * kPairs + p];
          for (int r = 0; r < repeats; ++r) {
            const float* const of_repeat = &gradient[repeats * head + r * kDim];
            loss += (n[c.in0] * a - n[c.in1] * b) * of_repeat[c.out0];
            loss += (n[c.in1] * a + n[c.in0] * b) * of_repeat[c.out1];
          }
        }
      }
    }
    return loss;
  }
};

std::vector<double> AsDoubles(const std::vector<float>& values) {
  return {values.begin(), values.end()};
}

// <dy, J dx> for every x, weight and bias alone: what BACKWARD gives is how the loss grows.
TEST_P(GradientTest, AreThoseOfCentralDifferences) {
  for (rope_norm_kind kind = 1; kind <= ROPE_NORM_KIND_LAYER_BIAS; ++kind) {
    for (int n = 0; n < 3 * 4; ++n) {
      const rope_norm_span span = n / 3 / 2;
      const rope_pairing pairing = n % 3 + 1;
      Example example(kind, span, pairing, n / 3 % 2 == 1 || span == ROPE_NORM_SPAN_ALL_HEADS,
                      n % 2 + 1);
      SCOPED_TRACE("kind " + std::to_string(kind) + ", case " + std::to_string(n));
      const int rows = example.norm.weight_stride_head != 0 ? Example::kHeads : 1;
      std::vector<float> dx(Example::kCount), dw(rows * Example::kDim), db(rows * Example::kDim);
      rope_tensor x = Tensor(example.x.data(), ROPE_DTYPE_F32, Example::kHeads);
      rope_norm norm = example.norm;
      norm.x = &x;
      if (norm.weight != nullptr) norm.grad_parts = 1, norm.weight_grad = dw.data();
      if (norm.bias != nullptr) norm.bias_grad = db.data();
      rope_fused fused = ROPE_INIT(rope_fused);
      fused.q_norm = &norm;
      const rope_cos_sin cos_sin = Rows(ROPE_COS_SIN_SPLIT, ROPE_DTYPE_F32, Example::kPairs, 1,
                                        example.cos.data(), example.sin.data());
      rope_qk_args args = Args(1, Example::kTokens);
      args.operation = ROPE_OPERATION_BACKWARD;
      args.fused = &fused;
      args.cos_sin = &cos_sin;
      args.q = Tensor(example.gradient.data(), ROPE_DTYPE_F32, example.repeats * Example::kHeads);
      args.q_out = Tensor(dx.data(), ROPE_DTYPE_F32, Example::kHeads);
      const Context context = Create(example.config);
      ASSERT_EQ(rope_apply_qk(context.get(), &args), ROPE_OK) << rope_last_error();

      std::vector<double> xs = AsDoubles(example.x), ws = AsDoubles(example.weights),
                          bs = AsDoubles(example.biases);
      const auto expect = [&](const std::vector<float>& got, std::vector<double>* values) {
        constexpr double kStep = 1e-5;
        for (size_t i = 0; i < got.size(); ++i) {
          const double at = (*values)[i];
          (*values)[i] = at + kStep;
          const double above = example.Loss(xs, ws, bs);
          (*values)[i] = at - kStep;
          const double below = example.Loss(xs, ws, bs);
          (*values)[i] = at;
          ASSERT_NEAR(got[i], (above - below) / (2 * kStep), 2e-5) << i;
        }
      };
      expect(dx, &xs);
      if (norm.weight_grad != nullptr) expect(dw, &ws);
      if (norm.bias_grad != nullptr) expect(db, &bs);
      if (HasFatalFailure()) return;
    }
  }
}

// The gradient of a packed projection: q, k and v side by side in one row for each token, in the
// gradient as in what was given, each with a norm. Alone they have the same bits, and between the
// rows nothing is written.
TEST_P(GradientTest, OfPackedQkvAreThoseOfEachAlone) {
  constexpr int kDim = 32, kQ = 4, kOthers = 2, kTokens = 9, kGap = 5;
  constexpr int kRow = (kQ + 2 * kOthers) * kDim + kGap;
  struct Part {
    int first, heads;
  };
  constexpr Part kParts[] = {{0, kQ}, {kQ, kOthers}, {kQ + kOthers, kOthers}};
  for (rope_dtype dtype : {ROPE_DTYPE_F32, ROPE_DTYPE_F16, ROPE_DTYPE_BF16}) {
    Random random(static_cast<uint64_t>(dtype));
    const int size = SizeOf(dtype);
    std::vector<char> x(static_cast<size_t>(kTokens * kRow * size)), gradient = x;
    std::vector<float> weight(kDim);
    for (std::vector<char>* values : {&x, &gradient}) {
      for (int i = 0; i < kTokens * kRow; ++i) {
        WriteElement(dtype, values->data() + i * size, random.Pick(-999, 999) / 256.0);
      }
    }
    for (float& w : weight) w = random.Pick(-999, 999) / 256.0f;
    const Context context = Create(Config(kDim));
    const auto part = [&](std::vector<char>* of, const Part& p) {
      rope_tensor t = Tensor(of->data() + p.first * kDim * size, dtype, p.heads);
      SetStrides(&t, 0, kRow, kDim);
      return t;
    };
    // Of those that are named, into `gradient` itself.
    const auto apply = [&](bool q, bool k, bool v, std::vector<char>* to,
                           std::vector<float>* grad) {
      rope_tensor xs[3];
      rope_norm norms[3];
      grad->assign(3 * kDim, 0.0f);
      for (int i = 0; i < 3; ++i) {
        xs[i] = part(&x, kParts[i]);
        norms[i] = ROPE_INIT(rope_norm);
        norms[i].kind = ROPE_NORM_KIND_RMS;
        norms[i].rounding = ROPE_NORM_ROUNDING_ROUNDED;
        norms[i].eps = 1e-6;
        norms[i].weight = weight.data();
        norms[i].weight_dtype = ROPE_DTYPE_F32;
        norms[i].x = &xs[i];
        norms[i].weight_grad = grad->data() + i * kDim;
        norms[i].grad_parts = 1;
      }
      rope_fused fused = ROPE_INIT(rope_fused);
      rope_qk_args args = Args(1, kTokens);
      args.operation = ROPE_OPERATION_BACKWARD;
      args.positions = Offset(100);
      args.fused = &fused;
      if (q) args.q = part(to, kParts[0]), fused.q_norm = &norms[0];
      if (k) args.k = part(to, kParts[1]), fused.k_norm = &norms[1];
      if (v) {
        fused.v = fused.v_out = part(to, kParts[2]);
        fused.v.head_dim = fused.v_out.head_dim = xs[2].head_dim = kDim;
        fused.v_norm = &norms[2];
      }
      ASSERT_OK(rope_apply_qk(context.get(), &args));
    };
    std::vector<char> packed = gradient, alone = gradient;
    std::vector<float> grad, grad_alone[3];
    apply(true, true, true, &packed, &grad);
    apply(true, false, false, &alone, &grad_alone[0]);
    apply(false, true, false, &alone, &grad_alone[1]);
    // A call has q or k: here one that is not kept.
    std::vector<char> other = gradient;
    apply(true, false, true, &other, &grad_alone[2]);
    for (int t = 0; t < kTokens; ++t) {
      const size_t v = static_cast<size_t>((t * kRow + kParts[2].first * kDim) * size);
      std::copy_n(&other[v], kOthers * kDim * size, &alone[v]);
      for (int i = 0; i < kGap * size; ++i) {
        const size_t gap = static_cast<size_t>(((t + 1) * kRow - kGap) * size + i);
        ASSERT_EQ(packed[gap], gradient[gap]);
      }
    }
    EXPECT_TRUE(packed == alone) << "dtype " << dtype;
    EXPECT_FALSE(packed == gradient) << "dtype " << dtype;
    for (int i = 0; i < 3; ++i) {
      EXPECT_TRUE(std::equal(&grad[i * kDim], &grad[i * kDim] + kDim, &grad_alone[i][i * kDim]))
          << "dtype " << dtype << ", weights of "
          << "qkv"[i];
    }
  }
}

// Runs the tasks from the last one to the first.
int32_t Backwards(void*, rope_task_fn fn, void* task, uint32_t count) {
  while (count > 0) fn(task, --count);
  return 0;
}

// However many parts there are, they add up to the same; who runs them changes no bit.
TEST_P(GradientTest, PartsAgreeAndThreadsChangeNothing) {
  constexpr int kDim = 64, kHeads = 8, kTokens = 1500;  // 3 MiB: several tasks
  constexpr size_t kCount = size_t{kDim} * kHeads * kTokens;
  Random random(1);
  std::vector<float> x(kCount), gradient(kCount), weight(kDim, 0.75f);
  for (float& value : x) value = static_cast<float>(random.Pick(-4000, 4000)) / 2048.0f;
  for (float& value : gradient) value = static_cast<float>(random.Pick(-4000, 4000)) / 2048.0f;
  const Context context = Create(Config(kDim));
  const Pool pool = CreatePool(3);
  const rope_runner* const of_pool = rope_pool_runner(pool.get());
  const rope_runner backwards = {&Backwards, nullptr};
  std::vector<double> sums[3];
  const int all_parts[] = {1, 7, kTokens};
  for (int n = 0; n < 3; ++n) {
    const int parts = all_parts[n];
    std::vector<float> first_dx, first_grad;
    for (const rope_runner* runner :
         {static_cast<const rope_runner*>(nullptr), &backwards, of_pool}) {
      std::vector<float> dx(kCount), grad(static_cast<size_t>(parts * kDim), 7.0f);
      const rope_tensor x_tensor = Tensor(x.data(), ROPE_DTYPE_F32, kHeads);
      rope_norm norm = ROPE_INIT(rope_norm);
      norm.kind = ROPE_NORM_KIND_RMS;
      norm.eps = 1e-6;
      norm.weight = weight.data();
      norm.weight_dtype = ROPE_DTYPE_F32;
      norm.x = &x_tensor;
      norm.weight_grad = grad.data();
      norm.grad_parts = parts;
      rope_fused fused = ROPE_INIT(rope_fused);
      fused.q_norm = &norm;
      rope_qk_args args = Args(3, kTokens / 3);
      args.operation = ROPE_OPERATION_BACKWARD;
      args.fused = &fused;
      args.runner = runner;
      args.positions = Offset(5);
      args.q = Tensor(gradient.data(), ROPE_DTYPE_F32, kHeads);
      args.q_out = Tensor(dx.data(), ROPE_DTYPE_F32, kHeads);
      ASSERT_EQ(rope_apply_qk(context.get(), &args), ROPE_OK) << rope_last_error();
      if (runner == nullptr) {
        first_dx = dx, first_grad = grad;
        continue;
      }
      ASSERT_EQ(std::memcmp(dx.data(), first_dx.data(), kCount * sizeof(float)), 0) << parts;
      ASSERT_EQ(std::memcmp(grad.data(), first_grad.data(), grad.size() * sizeof(float)), 0)
          << parts;
    }
    sums[n].assign(kDim, 0);
    for (size_t i = 0; i < first_grad.size(); ++i) sums[n][i % kDim] += first_grad[i];
  }
  for (int c = 0; c < kDim; ++c) {
    // Terms of the size of 1, of which there are kTokens * kHeads.
    ASSERT_NEAR(sums[1][c], sums[0][c], 1e-6 * kTokens * kHeads);
    ASSERT_NEAR(sums[2][c], sums[0][c], 1e-6 * kTokens * kHeads);
  }
}

}  // namespace
}  // namespace rope::testing
