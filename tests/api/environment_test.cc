// Where calls are made from, as section 1 of the header states it: other rounding modes, denormal
// numbers switched off, a child process, a signal handler.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/time.h>
#include <unistd.h>

#include <atomic>
#include <cfenv>
#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <vector>
#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#include "librope/model.h"
#include "support/child.h"
#include "support/elements.h"
#include "support/enumerators.h"
#include "support/handles.h"
#include "support/random_values.h"
#include "support/targets.h"

namespace rope::testing {
namespace {

constexpr int kDim = 128, kTokens = 40;

// --- floating point -----------------------------------------------------------------------------

constexpr int kNoDenormals = -1;  // beside the rounding modes of the system
constexpr int kModes[] = {FE_UPWARD, FE_DOWNWARD, FE_TOWARDZERO, kNoDenormals};

// The mode of this thread for as long as the value lives.
class FloatMode {
 public:
  explicit FloatMode(int mode) {
    std::fegetenv(&before_);
    if (mode != kNoDenormals) {
      std::fesetround(mode);
      return;
    }
#if defined(__x86_64__)
    _mm_setcsr(_mm_getcsr() | 0x8040);  // FTZ and DAZ
#elif defined(__aarch64__)
    uint64_t control;
    asm volatile("mrs %0, fpcr" : "=r"(control));
    asm volatile("msr fpcr, %0" ::"r"(control | uint64_t{1} << 24));  // FZ
#endif
  }
  ~FloatMode() { std::fesetenv(&before_); }
  FloatMode(const FloatMode&) = delete;
  FloatMode& operator=(const FloatMode&) = delete;

 private:
  std::fenv_t before_;
};

// An array that calls write, between bytes that they must not.
class Array {
 public:
  Array(rope_dtype dtype, size_t count)
      : dtype_(dtype), count_(count), bytes_(2 * kMargin + count * Size(), kCanary) {}
  void* data() { return bytes_.data() + kMargin; }
  void Set(size_t i, double value) { WriteElement(dtype_, &bytes_[kMargin + i * Size()], value); }
  std::vector<double> Values() const {
    std::vector<double> values;
    for (size_t i = 0; i < count_; ++i) {
      values.push_back(ReadElement(dtype_, &bytes_[kMargin + i * Size()]));
    }
    return values;
  }
  bool IsWhole() const {
    for (size_t i = 0; i < kMargin; ++i) {
      if (bytes_[i] != kCanary || bytes_[bytes_.size() - 1 - i] != kCanary) return false;
    }
    return true;
  }

 private:
  static constexpr size_t kMargin = 128;
  static constexpr unsigned char kCanary = 0xa5;
  size_t Size() const { return static_cast<size_t>(SizeOf(dtype_)); }
  rope_dtype dtype_;
  size_t count_;
  std::vector<unsigned char> bytes_;
};

// What the functions return and write, from the creation of the context to its end.
struct Results {
  std::vector<rope_status> statuses;
  std::vector<double> values;   // of arrays of dtype
  std::vector<double> numbers;  // of contexts, and rows in f32
  bool whole = true;
};

Results CallAll(const rope_config& config, rope_dtype dtype, int mode) {
  Array q(dtype, kTokens * kDim), k(dtype, kTokens * kDim), k_out(dtype, kTokens * kDim),
      x(dtype, kTokens * kDim), rows(ROPE_DTYPE_F32, kTokens * kDim), narrow(dtype, kTokens * kDim);
  const std::vector<float> random = RandomValues(kTokens * kDim);
  for (size_t i = 0; i < random.size(); ++i) {
    for (Array* array : {&q, &k, &x}) array->Set(i, random[i]);
  }
  for (int i = 0; i < kDim; ++i) {  // one token of the numbers that a mode of their own concerns
    const double value = i % 3 == 0 ? std::numeric_limits<float>::denorm_min() : 0x1p-130 * i;
    for (Array* array : {&q, &k, &x}) array->Set(3 * kDim + static_cast<size_t>(i), value);
  }
  int64_t ids[kTokens];
  for (int i = 0; i < kTokens; ++i) ids[i] = 25 * i;
  rope_qk_args args = Args(1, kTokens);
  args.q = Tensor(q.data(), dtype, 1);
  args.k = Tensor(k.data(), dtype, 1);
  args.k_out = Tensor(k_out.data(), dtype, 1);
  args.positions = Ids(ROPE_POSITIONS_IDS_T, ids);
  const int pairs = kDim / 2;
  const rope_cos_sin wide = Rows(ROPE_COS_SIN_PACKED, ROPE_DTYPE_F32, pairs, 1, rows.data());
  const rope_cos_sin other = Rows(ROPE_COS_SIN_COMPLEX, dtype, pairs, 1, narrow.data());
  rope_context* context = nullptr;
  rope_info info = ROPE_INIT(rope_info);
  std::vector<double> inv_freq(pairs);
  int64_t next = 0;

  Results results;
  const auto call = [&](rope_status status) { results.statuses.push_back(status); };
  {
    const FloatMode of_the_calls(mode);
    call(rope_context_create(&config, &context));
    call(rope_context_info(context, 0, &info));
    call(rope_context_inv_freq(context, 0, inv_freq.data(), pairs));
    call(rope_config_next_change(&config, 1000, &next));
    call(rope_apply_qk(context, &args));
    call(rope_apply_thd(context, dtype, kTokens, ids, x.data(), 1, nullptr, 0));
    call(rope_cos_sin_fill(context, 1, kTokens, &args.positions, &wide, nullptr));
    call(rope_cos_sin_fill(context, 1, kTokens, &args.positions, &other, nullptr));
    args.positions = rope_positions{};
    args.cos_sin = &wide;
    call(rope_apply_qk(context, &args));  // q for the second time
    call(rope_apply_thd(context, dtype, -1, ids, x.data(), 1, nullptr, 0));
    rope_context_destroy(context);
  }
  for (const Array* array : {&q, &k, &k_out, &x, &narrow}) {
    const std::vector<double> values = array->Values();
    results.values.insert(results.values.end(), values.begin(), values.end());
    results.whole &= array->IsWhole();
  }
  results.whole &= rows.IsWhole();
  results.numbers = rows.Values();
  results.numbers.insert(results.numbers.end(), inv_freq.begin(), inv_freq.end());
  for (double number : {info.attention_factor, info.softmax_factor}) {
    results.numbers.push_back(number);
  }
  results.statuses.push_back(static_cast<rope_status>(next % 100000));
  return results;
}

double LargestDifference(const std::vector<double>& a, const std::vector<double>& b) {
  double largest = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    // NaN, where the other is none, is larger than every bound.
    const double difference = std::fabs(a[i] - b[i]);
    if (!(difference <= largest)) largest = std::isnan(difference) ? HUGE_VAL : difference;
  }
  return largest;
}

class OtherFloats : public TargetTest {};

TEST_P(OtherFloats, ChangeLastBitsOnly) {
  for (rope_scaling scaling : {ROPE_SCALING_DEFAULT, ROPE_SCALING_DYNAMIC, ROPE_SCALING_YARN}) {
    for (rope_angle angle :
         {ROPE_ANGLE_FLOAT32, ROPE_ANGLE_EXACT, ROPE_ANGLE_GGML, ROPE_ANGLE_DIVIDE}) {
      if (angle == ROPE_ANGLE_GGML && scaling == ROPE_SCALING_DYNAMIC) continue;
      if (angle == ROPE_ANGLE_DIVIDE && scaling != ROPE_SCALING_DEFAULT) continue;
      for (rope_pairing pairing : {ROPE_PAIRING_HALVES, ROPE_PAIRING_INTERLEAVED}) {
        for (rope_rounding rounding = 0; rounding <= kLastRounding; ++rounding) {
          for (rope_dtype dtype : DtypesOf(rounding)) {
            if (scaling != ROPE_SCALING_DEFAULT && dtype != ROPE_DTYPE_F32) continue;
            rope_config config = Config(kDim, pairing);
            config.angle = angle;
            config.rounding = rounding;
            config.scaling = scaling;
            if (scaling != ROPE_SCALING_DEFAULT) {
              config.factor = 4;
              config.max_position_embeddings = 2048;
              config.seq_len = 3000;
            }
            if (scaling == ROPE_SCALING_YARN) {
              config.seq_len = config.max_position_embeddings = 0;
              config.original_max_position_embeddings = 2048;
            }
            const Results want = CallAll(config, dtype, FE_TONEAREST);
            ASSERT_EQ(want.statuses[0], ROPE_OK) << rope_last_error();
            ASSERT_TRUE(want.whole);
            for (int mode : kModes) {
              SCOPED_TRACE(::testing::Message()
                           << "scaling " << scaling << " angle " << angle << " pairing " << pairing
                           << " rounding " << rounding << " dtype " << dtype << " mode " << mode);
              const Results got = CallAll(config, dtype, mode);
              EXPECT_EQ(got.statuses, want.statuses);
              EXPECT_TRUE(got.whole);
              // An angle of 1000 has steps of 6e-5 in f32, and ggml's adds up 64 of them; bf16 has
              // steps of 1/32 of values from 4 on, and rounds q twice.
              EXPECT_LE(LargestDifference(got.numbers, want.numbers), 1e-3);
              EXPECT_LE(LargestDifference(got.values, want.values), !IsNarrow(dtype) ? 5e-3
                                                                    : dtype == ROPE_DTYPE_F16
                                                                        ? 2e-2
                                                                        : 0.13);
              if (!IsNarrow(dtype)) {
                EXPECT_TRUE(got.values != want.values) << "the mode was not in force";
              }
            }
          }
        }
      }
    }
  }
}
INSTANTIATE_TARGETS(OtherFloats);

// A thread's mode is its own matter: calls leave it as it is.
TEST(Floats, AreLeftAsTheyWere) {
  const FloatMode around(FE_UPWARD);
  const Context context = Create(Config(kDim));
  float x[kDim] = {1, 2, 3};
  const int64_t position = 3;
  EXPECT_OK(rope_apply_thd(context.get(), ROPE_DTYPE_F32, 1, &position, x, 1, nullptr, 0));
  EXPECT_EQ(std::fegetround(), FE_UPWARD);
}

TEST(Floats, ModelsAreReadInAnyMode) {
  const std::string text = R"({"model_type": "llama", "head_dim": 128, "num_hidden_layers": 2,
      "rope_theta": 500000.1, "rope_scaling": {"rope_type": "yarn", "factor": 1.1, "beta_fast": 31.7,
      "original_max_position_embeddings": 8192}})";
  const auto read = [&](int mode, rope_config* config) {
    const FloatMode of_the_calls(mode);
    rope_model* model = nullptr;
    rope_status status = rope_model_create(text.data(), text.size(), &model);
    if (status == ROPE_OK) status = rope_model_config(model, 0, config);
    rope_model_destroy(model);
    return status;
  };
  rope_config want = ROPE_INIT(rope_config);
  ASSERT_OK(read(FE_TONEAREST, &want));
  for (int mode : kModes) {
    rope_config got = ROPE_INIT(rope_config);
    ASSERT_OK(read(mode, &got));
    EXPECT_NEAR(got.theta, want.theta, 1e-9);
    EXPECT_NEAR(got.factor, want.factor, 1e-15);
    EXPECT_NEAR(got.beta_fast, want.beta_fast, 1e-14);
    EXPECT_EQ(got.scaling, want.scaling);
    EXPECT_EQ(got.original_max_position_embeddings, want.original_max_position_embeddings);
  }
}

// --- a child process ----------------------------------------------------------------------------

// What the parent made, used and destroyed in the child; and the parent goes on.
TEST(Fork, AChildUsesAndDestroysWhatItsParentMade) {
  const rope_config config = Config(kDim);
  Context context = Create(config);
  const std::string text = R"({"model_type": "llama", "head_dim": 128, "num_hidden_layers": 2})";
  rope_model* model = nullptr;
  ASSERT_OK(rope_model_create(text.data(), text.size(), &model));
  const int64_t position = 100;
  const std::vector<float> given = RandomValues(kDim);
  std::vector<float> want = given;
  ASSERT_OK(
      rope_apply_thd(context.get(), ROPE_DTYPE_F32, 1, &position, want.data(), 1, nullptr, 0));
  rope_qk_args args = Args(1, 1);
  args.q = Tensor(nullptr, ROPE_DTYPE_F32, 1);
  args.positions = Offset(position);
  Prepared prepared = Prepare(context, args);
  ASSERT_NE(rope_apply_thd(nullptr, ROPE_DTYPE_F32, 1, &position, want.data(), 1, nullptr, 0),
            ROPE_OK);
  const std::string message = rope_last_error();

  const auto use = [&] {
    std::vector<float> x = given;
    if (rope_apply_thd(context.get(), ROPE_DTYPE_F32, 1, &position, x.data(), 1, nullptr, 0)) {
      return 1;
    }
    if (x != want) return 2;
    x = given;
    rope_qk_data data = ROPE_INIT(rope_qk_data);
    data.q = x.data();
    if (rope_prepared_apply(prepared.get(), &data) || x != want) return 8;
    std::vector<float> row(kDim);
    const rope_positions positions = Offset(0);
    const rope_cos_sin rows = Rows(ROPE_COS_SIN_PACKED, ROPE_DTYPE_F32, kDim / 2, 1, row.data());
    if (rope_cos_sin_fill(context.get(), 1, 1, &positions, &rows, nullptr)) return 3;
    if (row[0] != 1 || row[kDim / 2] != 0) return 4;
    rope_config read = ROPE_INIT(rope_config);
    if (rope_model_config(model, 0, &read) || read.head_dim != kDim) return 5;
    if (rope_last_error() != message) return 6;
    if (rope_model_config(model, 7, &read) == ROPE_OK || rope_last_error() == message) return 7;
    prepared.reset();
    context.reset();
    rope_model_destroy(model);
    return 0;
  };
  ExpectChildEnds([&] { _exit(use()); });  // with the number of what went wrong
  EXPECT_EQ(use(), 0) << "in the parent, after the child has destroyed its own";
}

// --- a signal handler ---------------------------------------------------------------------------

// Calls of a handler in the midst of the same calls, with the same context.
struct Interrupted {
  Context context = Create(Config(kDim));
  Prepared prepared;
  std::vector<float> given = RandomValues(kTokens * kDim);
  std::vector<float> want, row;
  std::vector<int64_t> ids;
  // The handler's own memory, made before.
  std::vector<float> x, mine;
  std::atomic<int> calls{0}, bad{0};

  Interrupted() : ids(kTokens) {
    for (int i = 0; i < kTokens; ++i) ids[static_cast<size_t>(i)] = 1000 * i;
    x = want = given;
    row.resize(kTokens * kDim);
    EXPECT_TRUE(Rotate(&want));
    EXPECT_TRUE(Fill(&row));
    mine = row;
    rope_qk_args args = Args(1, kTokens);
    args.q = Tensor(nullptr, ROPE_DTYPE_F32, 1);
    args.positions = Ids(ROPE_POSITIONS_IDS_T, ids.data());
    prepared = Prepare(context, args);
  }
  bool RotatePrepared(std::vector<float>* values) {
    rope_qk_data data = ROPE_INIT(rope_qk_data);
    data.q = values->data();
    return rope_prepared_apply(prepared.get(), &data) == ROPE_OK;
  }
  bool Rotate(std::vector<float>* values) {
    return rope_apply_thd(context.get(), ROPE_DTYPE_F32, kTokens, ids.data(), values->data(), 1,
                          nullptr, 0) == ROPE_OK;
  }
  bool Fill(std::vector<float>* values) {
    const rope_positions positions = Ids(ROPE_POSITIONS_IDS_T, ids.data());
    const rope_cos_sin rows =
        Rows(ROPE_COS_SIN_PACKED, ROPE_DTYPE_F32, kDim / 2, 1, values->data());
    return rope_cos_sin_fill(context.get(), 1, kTokens, &positions, &rows, nullptr) == ROPE_OK;
  }
  void Handle() {
    std::copy(given.begin(), given.end(), x.begin());
    std::fill(mine.begin(), mine.end(), 0.0f);
    bad += !Rotate(&x) || x != want || !Fill(&mine) || mine != row;
    std::copy(given.begin(), given.end(), x.begin());
    bad += !RotatePrepared(&x) || x != want;
    ++calls;
  }
};
Interrupted* interrupted;

TEST(Signals, HandlersMayApplyAndFill) {
  Interrupted state;
  interrupted = &state;
  struct sigaction action = {}, before = {};
  action.sa_handler = [](int) { interrupted->Handle(); };
  ASSERT_EQ(sigaction(SIGALRM, &action, &before), 0);
  // Again only when the last one has been handled: a handler that takes longer than the interval,
  // as under a sanitizer, would leave no time for anything else.
  const itimerval once = {{0, 0}, {0, 200}};
  std::vector<float> x, row(state.row.size());
  int bad = 0;
  for (int handled = -1; state.calls < 300;) {
    if (handled != state.calls) {
      handled = state.calls;
      ASSERT_EQ(setitimer(ITIMER_REAL, &once, nullptr), 0);
    }
    x = state.given;
    bad += !state.Rotate(&x) || x != state.want || !state.Fill(&row) || row != state.row;
    x = state.given;
    bad += !state.RotatePrepared(&x) || x != state.want;
  }
  sigaction(SIGALRM, &before, nullptr);
  EXPECT_EQ(bad, 0);
  EXPECT_EQ(state.bad, 0);
}

}  // namespace
}  // namespace rope::testing
