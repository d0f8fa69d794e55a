// The stack that calls need, as section 1 of the header states it: each call runs on a stack of 64
// KiB that was painted before, below which lies a page without access, and what it changed is
// counted. Sanitizers need more, so this is not built with them; the smaller figures are those of
// optimised code.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <functional>
#include <map>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "base/limits.h"
#include "context/context.h"
#include "librope/model.h"
#include "model/gguf_bytes.h"
#include "support/enumerators.h"
#include "support/handles.h"
#include "support/targets.h"

namespace {
bool out_of_memory = false;
}  // namespace

// These stand before the system's for the whole program. Not inline: compilers would compare one
// with the other's malloc.
__attribute__((noinline)) void* operator new(size_t bytes) {
  void* memory = out_of_memory ? nullptr : std::malloc(bytes);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
__attribute__((noinline)) void operator delete(void* memory) noexcept { std::free(memory); }
__attribute__((noinline)) void operator delete(void* memory, size_t) noexcept { std::free(memory); }

namespace rope::testing {
namespace {

constexpr size_t kWhole = 64 << 10;
#ifdef __OPTIMIZE__
constexpr size_t kApply = 48 << 10, kFillAndCreate = 16 << 10, kModelCreate = 16 << 10,
                 kOther = 8 << 10;
#else
constexpr size_t kApply = kWhole, kFillAndCreate = kWhole, kModelCreate = kWhole, kOther = kWhole;
#endif

class Stack {
 public:
  Stack() : page_(static_cast<size_t>(sysconf(_SC_PAGESIZE))) {
    memory_ = static_cast<unsigned char*>(
        mmap(nullptr, page_ + kWhole, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    mprotect(memory_, page_, PROT_NONE);
  }
  ~Stack() { munmap(memory_, page_ + kWhole); }
  Stack(const Stack&) = delete;
  Stack& operator=(const Stack&) = delete;

  // How many bytes the body's call changed.
  size_t UsedBy(const std::function<void()>& body) {
    constexpr int kPaint = 0xa5;
    unsigned char* const begin = memory_ + page_;
    std::memset(begin, kPaint, kWhole);
    body_ = &body;
    ucontext_t caller, callee;
    getcontext(&callee);
    callee.uc_stack.ss_sp = begin;
    callee.uc_stack.ss_size = kWhole;
    callee.uc_link = &caller;
    makecontext(
        &callee, [] { (*body_)(); }, 0);
    swapcontext(&caller, &callee);
    unsigned char block[512];  // of a stack most is as it was
    std::memset(block, kPaint, sizeof(block));
    size_t unused = 0;
    while (unused < kWhole && std::memcmp(begin + unused, block, sizeof(block)) == 0) {
      unused += sizeof(block);
    }
    while (unused < kWhole && begin[unused] == kPaint) ++unused;
    return kWhole - unused;
  }

 private:
  static inline const std::function<void()>* body_;
  size_t page_;
  unsigned char* memory_;
};

// What the calls under each bound needed at most, printed at the end.
class Most {
 public:
  size_t Note(const char* bound, size_t bytes) {
    most_[bound] = std::max(most_[bound], bytes);
    return bytes;
  }
  ~Most() {
    for (const auto& [bound, bytes] : most_) std::printf("  %s: %zu bytes\n", bound, bytes);
  }

 private:
  std::map<const char*, size_t> most_;
};
Most most;

// `call` is an expression, and its value a status; nothing else runs on the small stack.
#define EXPECT_STACK(bound, expected, call)                                           \
  do {                                                                                \
    rope_status status_ = ROPE_OK;                                                    \
    const size_t bytes_ = most.Note(#bound, stack.UsedBy([&] { status_ = (call); })); \
    EXPECT_LE(bytes_, static_cast<size_t>(bound));                                    \
    EXPECT_EQ(status_, expected) << rope_last_error();                                \
  } while (false)
// The same for a call without a status.
#define EXPECT_STACK_OF(bound, call) EXPECT_STACK(bound, ROPE_OK, ((void)(call), ROPE_OK))

// The status of a call for which there is no memory.
template <class Call>
rope_status WithoutMemory(Call call) {
  out_of_memory = true;
  const rope_status status = call();
  out_of_memory = false;
  return status;
}

TEST(Stack, IsCounted) {
  Stack stack;
  const auto take = [&](size_t bytes) {
    return stack.UsedBy([&] {
      auto* taken = static_cast<volatile unsigned char*>(__builtin_alloca(bytes));
      taken[0] = taken[bytes - 1] = 1;
    });
  };
  const size_t nothing = take(1);
  EXPECT_LT(nothing, 1024u);
  EXPECT_GE(take(40000), 40000u);
  EXPECT_LE(take(40000), 40000u + nothing + 64);
}

constexpr int kDim = kMaxHeadDim, kTokens = 3;

rope_config ConfigWithAxes(rope_pairing pairing, int axes) {
  rope_config config = Config(kDim, pairing);
  config.axes = axes;
  for (int a = 0; axes > 1 && a < axes; ++a) config.mrope_section[a] = kDim / 2 / axes;
  return config;
}

class StackOnTarget : public TargetTest {
 protected:
  // Calls with positions and with the caller's rows, in place or not.
  void ApplyAndFill(const rope_context* context, rope_dtype dtype, bool in_place,
                    const rope_positions& positions) {
    rope_qk_args args = Args(1, kTokens);
    args.q = Tensor(x.data(), dtype, 1);
    args.k = Tensor(y.data(), dtype, 1);
    if (!in_place) {
      args.q_out = Tensor(x_out.data(), dtype, 1);
      args.k_out = Tensor(y_out.data(), dtype, 1);
    }
    args.positions = positions;
    Apply(context, args);
    PrepareAndApply(context, args);
    if (in_place) {
      rope_kv_cache cache = ROPE_INIT(rope_kv_cache);
      cache.kind = ROPE_SLOTS_LINEAR;
      cache.pages = 1;
      cache.page_size = kTokens;
      cache.starts = &kNoneFilled;
      cache.k = Tensor(x_out.data(), dtype, 1, ROPE_LAYOUT_HND);
      cache.v = Tensor(y_out.data(), dtype, 1, ROPE_LAYOUT_NHD);
      rope_fused fused = ROPE_INIT(rope_fused);
      fused.cache = &cache;
      fused.v = Tensor(cos.data(), dtype, 1);
      fused.v.head_dim = cache.v.head_dim = kDim;
      args.fused = &fused;
      EXPECT_STACK(kApply, ROPE_OK, rope_apply_qk(context, &args));
      rope_qk_data data = DataOf(args);
      data.v = std::exchange(fused.v.data, nullptr);
      data.cache_k = std::exchange(cache.k.data, nullptr);
      data.cache_v = std::exchange(cache.v.data, nullptr);
      PrepareAndApply(context, args, data);
      args.fused = nullptr;
      Move(context, cache, dtype, positions);
    }
    ApplyWithNorms(context, args);
    args.positions = rope_positions{};
    for (rope_cos_sin_format format : Formats()) {
      SCOPED_TRACE("format " + std::to_string(format));
      const rope_cos_sin rows =
          Rows(format, HoldsAngles(format) ? ROPE_DTYPE_F32 : dtype, kDim / 2, 1, cos.data(),
               rope_cos_sin_tensors(format) == 2 ? sin.data() : nullptr);
      EXPECT_STACK(kFillAndCreate, ROPE_OK,
                   rope_cos_sin_fill(context, 1, kTokens, &positions, &rows, nullptr));
      if (!IsRead(format)) continue;
      args.cos_sin = &rows;
      Apply(context, args);
      PrepareAndApply(context, args);
      sin[0] ^= 1;  // FULL: values of its own in each channel
      Apply(context, args);
      PrepareAndApply(context, args);
    }
    args.operation = -1;
    EXPECT_STACK(kOther, ROPE_ERROR_UNSUPPORTED, rope_apply_qk(context, &args));
  }

  // Of what the cache holds, in place: its slots are compared.
  void Move(const rope_context* context, rope_kv_cache cache, rope_dtype dtype,
            const rope_positions& positions) {
    cache.k = Tensor(x_out.data(), dtype, 1, ROPE_LAYOUT_HND);
    cache.v = rope_tensor{};
    rope_fused fused = ROPE_INIT(rope_fused);
    fused.cache = fused.source = &cache;
    fused.from_positions = &positions;
    rope_qk_args args = Args(1, kTokens);
    args.operation = ROPE_OPERATION_REROTATE;
    args.positions = positions;
    args.fused = &fused;
    EXPECT_STACK(kApply, ROPE_OK, rope_apply_qk(context, &args));
  }

  // Of one row of weights and of one for each head; some are refused.
  void ApplyWithNorms(const rope_context* context, rope_qk_args args) {
    rope_fused fused = ROPE_INIT(rope_fused);
    rope_norm norm = ROPE_INIT(rope_norm);
    norm.eps = 1e-6;
    norm.weight = cos.data();
    norm.weight_dtype = ROPE_DTYPE_F32;
    fused.q_norm = fused.k_norm = &norm;
    args.fused = &fused;
    for (rope_norm_kind kind : {ROPE_NORM_KIND_RMS, ROPE_NORM_KIND_LAYER_BIAS}) {
      for (rope_norm_rounding rounding : {ROPE_NORM_ROUNDING_FLOAT32, ROPE_NORM_ROUNDING_EAGER}) {
        norm.kind = kind;
        norm.rounding = rounding;
        norm.bias = kind == ROPE_NORM_KIND_LAYER_BIAS ? sin.data() : nullptr;
        norm.weight_stride_head = kind == ROPE_NORM_KIND_RMS ? 0 : kDim;
        const rope_status expected = rope_apply_qk(context, &args);
        EXPECT_STACK(kApply, expected, rope_apply_qk(context, &args));
      }
    }
    PassNorms(context, args);
  }

  // Gradients of heads that are normed singly and together, whose channels may move as they turn
  // back.
  void PassNorms(const rope_context* context, rope_qk_args args) {
    args.operation = ROPE_OPERATION_BACKWARD;
    for (rope_tensor* t : {&args.q, &args.k, &args.q_out, &args.k_out}) t->dtype = args.k.dtype;
    rope_tensor of_x = args.k;
    of_x.data = cos.data();
    rope_norm norm = ROPE_INIT(rope_norm);
    norm.kind = ROPE_NORM_KIND_RMS_PLAIN;
    norm.eps = 1e-6;
    norm.x = &of_x;
    rope_fused fused = ROPE_INIT(rope_fused);
    fused.k_norm = &norm;
    args.fused = &fused;
    args.q = args.q_out = {};
    for (rope_norm_span span : {ROPE_NORM_SPAN_HEAD, ROPE_NORM_SPAN_ALL_HEADS}) {
      norm.span = span;
      const rope_status expected = rope_apply_qk(context, &args);
      EXPECT_STACK(kApply, expected, rope_apply_qk(context, &args));
    }
  }

  // Also to an output of another dtype, by way of f32 in a buffer.
  void Apply(const rope_context* context, rope_qk_args args) {
    EXPECT_STACK(kApply, ROPE_OK, rope_apply_qk(context, &args));
    if (context->rounding.arithmetic == Arithmetic::kNative) return;
    const rope_dtype other = 1 + args.q.dtype % kLastDtype;
    args.q_out = Tensor(x_out.data(), other, 1);
    EXPECT_STACK(kApply, ROPE_OK, rope_apply_qk(context, &args));
    ApplyWithNorms(context, args);
  }

  void PrepareAndApply(const rope_context* context, const rope_qk_args& args) {
    PrepareAndApply(context, args, DataOf(args));
  }
  void PrepareAndApply(const rope_context* context, const rope_qk_args& args,
                       const rope_qk_data& data) {
    const rope_qk_args without = WithoutData(args);
    rope_prepared* prepared = nullptr;
    EXPECT_STACK(kApply, ROPE_OK, rope_prepared_create(context, &without, &prepared));
    EXPECT_STACK(kApply, ROPE_OK, rope_prepared_apply(prepared, &data));
    EXPECT_STACK_OF(kOther, rope_prepared_destroy(prepared));
  }

  static constexpr int32_t kNoneFilled = 0;
  Stack stack;
  // Of any dtype.
  std::vector<char> x = std::vector<char>(kTokens * kDim * kMaxElementSize), y = x, x_out = x,
                    y_out = x, cos = x, sin = x;
};

// Keys whose heads have rows of their own, and go to slots that are looked up.
TEST_P(StackOnTarget, OfHeadsNormedOnTheirWayToCodes) {
  constexpr int kHeads = 2;
  const Context context = Create(Config(kDim));
  std::vector<char> k(kHeads * x.size()), row(k), weights(kDim * sizeof(float)), codes(k.size());
  const int64_t slots[kTokens] = {2, 0, 1};
  rope_scale scale = ROPE_INIT(rope_scale);
  scale.value = 1;
  scale.round_first = 1;
  rope_kv_cache cache = ROPE_INIT(rope_kv_cache);
  cache.kind = ROPE_SLOTS_MAPPED;
  cache.pages = 1;
  cache.page_size = cache.slots_length = kTokens;
  cache.slots_i64 = slots;
  cache.k = Tensor(codes.data(), ROPE_DTYPE_F8_E4M3, kHeads, ROPE_LAYOUT_NHD);
  cache.k.scale = &scale;
  rope_norm norm = ROPE_INIT(rope_norm);
  norm.kind = ROPE_NORM_KIND_RMS;
  norm.eps = 1e-6;
  norm.weight = weights.data();
  norm.weight_dtype = ROPE_DTYPE_F32;
  rope_fused fused = ROPE_INIT(rope_fused);
  fused.cache = &cache;
  fused.k_norm = &norm;
  for (rope_dtype dtype = 1; dtype <= kLastDtype; ++dtype) {
    for (rope_cos_sin_format format : Formats()) {
      if (!IsRead(format)) continue;
      norm.rounding =
          dtype == ROPE_DTYPE_F32 ? ROPE_NORM_ROUNDING_FLOAT32 : ROPE_NORM_ROUNDING_EAGER;
      rope_cos_sin rows =
          Rows(format, HoldsAngles(format) ? ROPE_DTYPE_F32 : dtype, kDim / 2, 1, row.data(),
               rope_cos_sin_tensors(format) == 2 ? row.data() : nullptr);
      rows.heads = kHeads;
      rope_qk_args args = Args(1, kTokens);
      args.k = Tensor(k.data(), dtype, kHeads);
      args.cos_sin = &rows;
      args.fused = &fused;
      EXPECT_STACK(kApply, ROPE_OK, rope_apply_qk(context.get(), &args));
    }
  }
}

TEST_P(StackOnTarget, OfApplyAndFill) {
  const int64_t ids[4 * kTokens] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};
  const float coordinates[4 * kTokens] = {1, 2.5f, 3, 4};
  for (rope_pairing pairing = 1; pairing <= kLastPairing; ++pairing) {
    for (int axes : {1, 4}) {
      if (axes == 1 && pairing == ROPE_PAIRING_HALVES_PER_AXIS) continue;
      for (rope_rounding rounding = 0; rounding <= kLastRounding; ++rounding) {
        for (rope_angle angle :
             {ROPE_ANGLE_FLOAT32, ROPE_ANGLE_EXACT, ROPE_ANGLE_GGML, ROPE_ANGLE_DIVIDE}) {
          rope_config config = ConfigWithAxes(pairing, axes);
          config.rounding = rounding;
          config.angle = angle;
          const Context context = Create(config);
          rope_positions positions{};
          positions.kind = ROPE_POSITIONS_IDS_BTA;
          for (rope_dtype dtype : DtypesOf(rounding)) {
            for (bool in_place : {false, true}) {
              for (bool floats : {false, true}) {
                SCOPED_TRACE(::testing::Message()
                             << "pairing " << pairing << " axes " << axes << " rounding "
                             << rounding << " angle " << angle << " dtype " << dtype << " in place "
                             << in_place << " coordinates " << floats);
                positions.ids_i64 = floats ? nullptr : ids;
                positions.ids_f32 = floats ? coordinates : nullptr;
                ApplyAndFill(context.get(), dtype, in_place, positions);
              }
            }
          }
        }
      }
    }
  }
}

TEST_P(StackOnTarget, OfTheShortCall) {
  const int64_t ids[kTokens] = {1, 2, 3};
  for (rope_angle angle :
       {ROPE_ANGLE_FLOAT32, ROPE_ANGLE_EXACT, ROPE_ANGLE_GGML, ROPE_ANGLE_DIVIDE}) {
    rope_config config = Config(kDim);
    config.angle = angle;
    const Context context = Create(config);
    for (rope_dtype dtype = 1; dtype <= kLastDtype; ++dtype) {
      EXPECT_STACK(kApply, ROPE_OK,
                   rope_apply_thd(context.get(), dtype, kTokens, ids, x.data(), 1, y.data(), 1));
    }
    EXPECT_STACK(kOther, ROPE_ERROR_INVALID_ARGUMENT,
                 rope_apply_thd(context.get(), ROPE_DTYPE_F32, -1, ids, x.data(), 1, y.data(), 1));
  }
}
INSTANTIATE_TARGETS(StackOnTarget);

TEST(Stack, OfContexts) {
  Stack stack;
  const std::vector<double> factors(kDim / 2, 2.0);
  for (rope_scaling scaling = ROPE_SCALING_DEFAULT; scaling <= kLastScaling; ++scaling) {
    SCOPED_TRACE("scaling " + std::to_string(scaling));
    rope_config config = Config(kDim);
    config.scaling = scaling;
    const ScalingRule& rule = kScalingRules[scaling];
    if (rule.uses & kFactor) config.factor = 4;
    if (rule.uses & kMaxPosition) config.max_position_embeddings = 16384;
    if (rule.needs & kSeqLen) config.seq_len = 20000;
    if (rule.needs & kOriginal) config.original_max_position_embeddings = 4096;
    if (rule.needs & kLlamaNumbers) config.low_freq_factor = 1, config.high_freq_factor = 4;
    if (rule.Is(kHasTables)) {
      config.short_factor = config.long_factor = factors.data();
      config.table_length = kDim / 2;
    }
    for (rope_angle angle :
         {ROPE_ANGLE_FLOAT32, ROPE_ANGLE_EXACT, ROPE_ANGLE_GGML, ROPE_ANGLE_DIVIDE}) {
      if (angle == ROPE_ANGLE_GGML && !rule.Is(kHasGgml)) continue;
      if (angle == ROPE_ANGLE_DIVIDE && !rule.Is(kHasTimescale)) continue;
      config.angle = angle;
      const std::vector<const rope_config*> many(kMaxFrequencySets, &config);
      rope_context *one = nullptr, *sets = nullptr;
      EXPECT_STACK(kFillAndCreate, ROPE_OK, rope_context_create(&config, &one));
      EXPECT_STACK(kFillAndCreate, ROPE_OK,
                   rope_context_create_sets(many.data(), kMaxFrequencySets, &sets));
      int64_t next;
      EXPECT_STACK(kOther, ROPE_OK, rope_config_next_change(&config, 20000, &next));
      rope_digest_text digest;
      EXPECT_STACK(kFillAndCreate, ROPE_OK,
                   rope_config_digest(&config, ROPE_DIGEST_ROTATION, &digest));
      rope_info info = ROPE_INIT(rope_info);
      EXPECT_STACK(kOther, ROPE_OK, rope_context_info(sets, 255, &info));
      EXPECT_STACK(kOther, ROPE_ERROR_INVALID_ARGUMENT, rope_context_info(sets, 256, &info));
      std::vector<double> inv_freq(kDim / 2);
      EXPECT_STACK(kOther, ROPE_OK, rope_context_inv_freq(one, 0, inv_freq.data(), kDim / 2));
      EXPECT_STACK_OF(kOther, rope_context_backend(one));
      EXPECT_STACK_OF(kOther, rope_context_destroy(one));
      EXPECT_STACK_OF(kOther, rope_context_destroy(sets));
      rope_context* none = nullptr;
      EXPECT_STACK(kFillAndCreate, ROPE_ERROR_OUT_OF_MEMORY,
                   WithoutMemory([&] { return rope_context_create(&config, &none); }));
      rope_config bad = config;
      bad.attention_factor = 1e300;
      EXPECT_STACK(kFillAndCreate, ROPE_ERROR_INVALID_ARGUMENT, rope_context_create(&bad, &none));
      EXPECT_STACK(kFillAndCreate, ROPE_ERROR_INVALID_ARGUMENT,
                   rope_config_digest(&bad, ROPE_DIGEST_ROTATION, &digest));
      EXPECT_STACK(kFillAndCreate, ROPE_ERROR_OUT_OF_MEMORY, WithoutMemory([&] {
                     return rope_config_digest(&config, ROPE_DIGEST_ROTATION, &digest);
                   }));
    }
  }
}

// Opened `depth` times, and closed again.
std::string Nested(int depth, const std::string& open, const std::string& close) {
  std::string text = R"({"model_type": "llama", "head_dim": 64, "num_hidden_layers": 2, "x": )";
  for (int i = 0; i < depth; ++i) text += open;
  text += "1";
  for (int i = 0; i < depth; ++i) text += close;
  return text + "}";
}

TEST(Stack, OfModels) {
  Stack stack;
  struct Case {
    std::string text;
    rope_status want;
  };
  std::vector<Case> cases;
  for (int depth : {0, 1, 62, 63, 64, 100000}) {  // the outer object is the first of 64 levels
    const rope_status want = depth < 64 ? ROPE_OK : ROPE_ERROR_PARSE;
    cases.push_back({Nested(depth, "[", "]"), want});
    cases.push_back({Nested(depth, R"({"a": )", "}"), want});
  }
  std::string kinds = R"({"model_type": "nobody_knows", "head_dim": 64, "layer_types": ["k0"],
                          "rope_parameters": {"k0": {"rope_theta": 1})";
  for (int i = 1; i < 256; ++i) {
    kinds += ", \"k" + std::to_string(i) + R"(": {"rope_theta": 1e)" + std::to_string(i) + "}";
  }
  cases.push_back({kinds + "}}", ROPE_OK});
  const std::string long_text(1000000, '1');
  for (const std::string& text :
       {std::string(), std::string("["), "{\"" + long_text + "\": ", "\"" + long_text,
        "{\"rope_theta\": " + long_text + "}", std::string(R"({"rope_theta": -1.5e308})"),
        R"({"model_type": "llama", "head_dim": 64, "rope_scaling": {"rope_type": ")" + long_text +
            "\"}}"}) {
    cases.push_back({text, ROPE_ERROR_PARSE});
  }
  cases.push_back({"{\"model_type\": \"" + long_text + "\"}", ROPE_ERROR_UNSUPPORTED});
  for (const auto& [text, want] : cases) {
    SCOPED_TRACE(text.substr(0, 200));
    rope_model* model = nullptr;
    EXPECT_STACK(kModelCreate, want, rope_model_create(text.data(), text.size(), &model));
    constexpr const char* kAccepted[] = {"nothing"};
    rope_model* accepting = nullptr;
    EXPECT_STACK(kModelCreate, want == ROPE_OK ? ROPE_ERROR_INVALID_ARGUMENT : want,
                 rope_model_create_accepting(text.data(), text.size(), kAccepted, 1, &accepting));
    rope_model* none = nullptr;
    EXPECT_STACK(kModelCreate, ROPE_ERROR_OUT_OF_MEMORY, WithoutMemory([&, &source = text] {
                   return rope_model_create(source.data(), source.size(), &none);
                 }));
    if (model == nullptr) continue;
    rope_config config = ROPE_INIT(rope_config);
    EXPECT_STACK(kOther, ROPE_OK, rope_model_config(model, 0, &config));
    EXPECT_STACK(kOther, ROPE_ERROR_INVALID_ARGUMENT, rope_model_config(model, -1, &config));
    int32_t type;
    EXPECT_STACK(kOther, ROPE_OK, rope_model_layer_type(model, 0, &type));
    EXPECT_STACK(kOther, ROPE_ERROR_INVALID_ARGUMENT, rope_model_layer_type(model, 2, &type));
    rope_digest_text digest;
    EXPECT_STACK(kFillAndCreate, ROPE_OK,
                 rope_model_digest(model, -1, ROPE_DIGEST_ANGLES, &digest));
    EXPECT_STACK_OF(kOther, rope_model_layer_type_count(model));
    EXPECT_STACK_OF(kOther, rope_model_layer_type_name(model, 0));
    EXPECT_STACK_OF(kOther, rope_model_destroy(model));
  }
}

TEST(Stack, OfGgufFiles) {
  Stack stack;
  GgufBytes keys("llama");
  for (int i = 0; i < 10000; ++i) keys.Uint("key_" + std::to_string(i), 1);
  const std::string good =
      GgufBytes("llama").Tensor("rope_freqs.weight", std::vector<float>(32, 2)).Bytes();
  const std::string path = ::testing::TempDir() + "stack_test.gguf";
  for (const auto& [bytes, want] : std::vector<std::pair<std::string, rope_status>>{
           {good, ROPE_OK},
           {keys.Bytes(), ROPE_OK},
           {good.substr(0, good.size() - 1), ROPE_ERROR_PARSE},
           {GgufBytes("llama").Uint("rope.new", 1).Bytes(), ROPE_ERROR_UNSUPPORTED}}) {
    rope_model* model = nullptr;
    EXPECT_STACK(kModelCreate, want, rope_model_create_gguf(bytes.data(), bytes.size(), &model));
    rope_model_destroy(model);
    std::ofstream(path, std::ios::binary) << bytes;
    model = nullptr;
    EXPECT_STACK(kModelCreate, want, rope_model_load_gguf(path.c_str(), &model));
    rope_model_destroy(model);
    rope_model* none = nullptr;
    EXPECT_STACK(kModelCreate, ROPE_ERROR_OUT_OF_MEMORY, WithoutMemory([&, &source = bytes] {
                   return rope_model_create_gguf(source.data(), source.size(), &none);
                 }));
  }
  const uint32_t width = 64;
  std::vector<rope_gguf_value> values(10000, {"x", 4, 0, 0, &width});
  std::vector<std::string> names;
  for (size_t i = 0; i < values.size(); ++i) names.push_back("key_" + std::to_string(i));
  for (size_t i = 0; i < values.size(); ++i) values[i].key = names[i].c_str();
  values[0] = {"general.architecture", 8, 0, 5, "llama"};
  values[1].key = "llama.block_count";
  values[2].key = "llama.attention.key_length";
  rope_model* model = nullptr;
  EXPECT_STACK(kModelCreate, ROPE_OK,
               rope_model_create_gguf_values(values.data(), static_cast<int32_t>(values.size()),
                                             nullptr, 0, &model));
  rope_model_destroy(model);
  EXPECT_EQ(std::remove(path.c_str()), 0);
}

TEST(Stack, OfPromptIds) {
  Stack stack;
  const rope_prompt_part parts[] = {{2, 1, 2, 2, 0}, {3, 0, 0, 0, 0}};
  int64_t ids[3 * 9], next;
  EXPECT_STACK(kOther, ROPE_OK, rope_prompt_ids(parts, 2, 0, ids, 9, &next));
  EXPECT_STACK(kOther, ROPE_ERROR_INVALID_ARGUMENT, rope_prompt_ids(parts, 2, 0, ids, 8, &next));
}

TEST(Stack, OfLatentIds) {
  Stack stack;
  constexpr std::string_view kText = R"({"_class_name": "QwenImageTransformer2DModel"})";
  rope_model* model = nullptr;
  EXPECT_STACK(kModelCreate, ROPE_OK, rope_model_create(kText.data(), kText.size(), &model));
  const rope_latent_grid grid = {1, 2, 2, 0};
  rope_latent_args args = ROPE_INIT(rope_latent_args);
  args.count = 1;
  args.grids = &grid;
  float ids[3 * 4];
  int64_t tokens;
  EXPECT_STACK(kOther, ROPE_OK, rope_model_latent_ids(model, 0, &args, ids, 12, &tokens));
  EXPECT_STACK(kOther, ROPE_ERROR_INVALID_ARGUMENT,
               rope_model_latent_ids(model, 0, &args, ids, 8, &tokens));
  rope_model_destroy(model);
}

TEST(Stack, OfPools) {
  Stack stack;
  rope_pool* pool = nullptr;
  EXPECT_STACK(kOther, ROPE_OK, rope_pool_create(2, &pool));
  EXPECT_STACK(kOther, ROPE_ERROR_INVALID_ARGUMENT, rope_pool_create(-1, &pool));
  const Context context = Create(Config(128));
  constexpr int kMany = 8000;
  std::vector<float> x(128 * kMany);
  rope_qk_args args = Args(1, kMany);
  args.q = Tensor(x.data(), ROPE_DTYPE_F32, 1);
  args.positions = Offset(0);
  args.runner = rope_pool_runner(pool);
  EXPECT_STACK(kApply, ROPE_OK, rope_apply_qk(context.get(), &args));
  EXPECT_STACK_OF(kOther, rope_pool_destroy(pool));
}

}  // namespace
}  // namespace rope::testing
