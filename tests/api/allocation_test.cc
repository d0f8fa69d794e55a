// What the library allocates: little for a context, nothing in a call; and no thread of its own.
#include <dirent.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <new>
#include <string>
#include <vector>

#include "librope/model.h"
#include "support/enumerators.h"
#include "support/handles.h"

// With a sanitizer malloc is the sanitizer's: operator new alone is counted there.
#if defined(__GLIBC__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define ROPE_COUNTS_MALLOC 1
extern "C" {
void* __libc_malloc(size_t size);
void* __libc_calloc(size_t count, size_t size);
void* __libc_realloc(void* old, size_t size);
void* __libc_memalign(size_t alignment, size_t size);
}
#endif

namespace {
std::atomic<int64_t> calls{0}, bytes{0};
void Count(size_t size) {
  ++calls;
  bytes += static_cast<int64_t>(size);
}
}  // namespace

#if defined(ROPE_COUNTS_MALLOC)
// These come before those of the C library, for this program and for librope.so.
extern "C" {
void* malloc(size_t size) {
  Count(size);
  return __libc_malloc(size);
}
void* calloc(size_t count, size_t size) {
  Count(count * size);
  return __libc_calloc(count, size);
}
void* realloc(void* old, size_t size) {
  Count(size);
  return __libc_realloc(old, size);
}
void* aligned_alloc(size_t alignment, size_t size) {
  Count(size);
  return __libc_memalign(alignment, size);
}
int posix_memalign(void** out, size_t alignment, size_t size) {
  Count(size);
  *out = __libc_memalign(alignment, size);
  return *out != nullptr ? 0 : 12;
}
}
#else
void* operator new(size_t size) {
  Count(size);
  if (void* memory = std::malloc(size != 0 ? size : 1)) return memory;
  throw std::bad_alloc();
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }
#endif

namespace rope::testing {
namespace {

int Threads() {
  int count = 0;
  DIR* tasks = opendir("/proc/self/task");
  if (tasks == nullptr) return -1;
  while (readdir(tasks) != nullptr) ++count;
  closedir(tasks);
  return count;
}

TEST(Allocation, TheCounterCounts) {
  const int64_t before = calls;
  void* volatile memory = ::operator new(100);
  ::operator delete(memory);
  EXPECT_GT(calls, before);
}

TEST(Allocation, AContextOfHeadDim128IsBelow8KiB) {
  for (rope_angle angle : {ROPE_ANGLE_FLOAT32, ROPE_ANGLE_EXACT}) {
    for (int64_t length : {int64_t{4096}, int64_t{1} << 40}) {  // whatever the position
      rope_config config = Config(128, ROPE_PAIRING_HALVES, 500000);
      config.angle = angle;
      config.scaling = ROPE_SCALING_DYNAMIC;
      config.factor = 2;
      config.max_position_embeddings = 4096;
      config.seq_len = length;
      const Context first = Create(config);  // what is made once per process is not counted
      rope_context* context = nullptr;
      const int64_t before = bytes;
      const rope_status status = rope_context_create(&config, &context);
      const int64_t used = bytes - before;
      ASSERT_EQ(status, ROPE_OK);
      std::printf("  all allocations while creating a context: %ld bytes\n",
                  static_cast<long>(used));
      EXPECT_LT(used, 8192);  // temporary ones included
      EXPECT_GT(used, 64 * 4);
      rope_context_destroy(context);
    }
  }
}

int32_t Sequentially(void*, rope_task_fn fn, void* task, uint32_t count) {
  for (uint32_t i = 0; i < count; ++i) fn(task, i);
  return 0;
}

TEST(Allocation, CallsAllocateNothingAndStartNoThread) {
  constexpr int kDim = 128, kTokens = 2400, kHeads = 4;
  std::vector<char> q(kDim * kTokens * kHeads * kMaxElementSize), out(q.size()),
      row(kDim * kTokens * kMaxElementSize), sin(row.size());
  std::vector<int64_t> ids(kTokens, 5);
  const rope_runner runner = {Sequentially, nullptr};
  for (rope_pairing pairing :
       {ROPE_PAIRING_HALVES, ROPE_PAIRING_INTERLEAVED, ROPE_PAIRING_INTERLEAVED_TO_HALVES}) {
    for (rope_rounding rounding = 0; rounding <= kLastRounding; ++rounding) {
      for (rope_angle angle : {ROPE_ANGLE_FLOAT32, ROPE_ANGLE_EXACT}) {
        rope_config config = Config(kDim, pairing);
        config.rounding = rounding;
        config.angle = angle;
        const Context context = Create(config);
        rope_positions positions = Offset(7);
        rope_cos_sin packed = Rows(ROPE_COS_SIN_PACKED, ROPE_DTYPE_F32, kDim / 2, 1, row.data());
        rope_cos_sin full =
            Rows(ROPE_COS_SIN_FULL_HALVES, ROPE_DTYPE_BF16, kDim / 2, 1, row.data(), sin.data());
        rope_qk_args args = Args(1, kTokens);
        const int threads = Threads();
        rope_status status = ROPE_OK;
        const auto check = [&](const char* what, int64_t before) {
          EXPECT_EQ(calls, before) << what;
          EXPECT_EQ(status, ROPE_OK) << what << rope_last_error();
        };
        for (rope_dtype dtype : DtypesOf(rounding)) {
          int64_t before = calls;
          status = rope_apply_thd(context.get(), dtype, kTokens, ids.data(), q.data(), kHeads,
                                  nullptr, 0);
          check("rope_apply_thd", before);
          for (bool parallel : {false, true}) {
            for (const rope_cos_sin* rows : {static_cast<rope_cos_sin*>(nullptr), &packed, &full}) {
              args.q = Tensor(q.data(), dtype, kHeads);
              args.q_out = Tensor(out.data(), dtype, kHeads);
              args.positions = rows ? rope_positions{} : positions;
              args.cos_sin = rows;
              args.runner = parallel ? &runner : nullptr;
              before = calls;
              status = rope_apply_qk(context.get(), &args);
              check("rope_apply_qk", before);
              const Prepared prepared = Prepare(context, args);
              const rope_qk_data data = DataOf(args);
              before = calls;
              status = rope_prepared_apply(prepared.get(), &data);
              check("rope_prepared_apply", before);
            }
          }
        }
        for (const rope_cos_sin* rows : {&packed, &full}) {
          const int64_t before = calls;
          status = rope_cos_sin_fill(context.get(), 1, kTokens, &positions, rows, nullptr);
          check("rope_cos_sin_fill", before);
        }
        args.batch = -1;  // nor does an error, but the thread's first
        EXPECT_NE(rope_apply_qk(context.get(), &args), ROPE_OK);
        const int64_t before = calls;
        EXPECT_NE(rope_apply_qk(context.get(), &args), ROPE_OK);
        EXPECT_EQ(calls, before);
        EXPECT_EQ(Threads(), threads);
      }
    }
  }
}

TEST(Allocation, APoolCallAllocatesNothing) {
  const Pool pool = CreatePool(3);
  const Context context = Create(Config(128));
  std::vector<float> q(128 * 8000);
  rope_qk_args args = Args(1, 8000);
  args.q = Tensor(q.data(), ROPE_DTYPE_F32, 1);
  args.positions = Offset(0);
  args.runner = rope_pool_runner(pool.get());
  ASSERT_OK(rope_apply_qk(context.get(), &args));  // the workers have started
  const int64_t before = calls;
  const rope_status status = rope_apply_qk(context.get(), &args);
  EXPECT_EQ(calls, before);
  EXPECT_EQ(status, ROPE_OK);
}

TEST(Allocation, ACallWithACacheAllocatesNothing) {
  constexpr int kDim = 16, kTokens = 3;
  const Context context = Create(Config(kDim));
  std::vector<float> k(kTokens * kDim), v(k.size()), k_pages(8 * kDim), v_pages(k_pages.size());
  const int64_t slots[kTokens] = {7, -1, 2};
  rope_kv_cache cache = ROPE_INIT(rope_kv_cache);
  cache.kind = ROPE_SLOTS_MAPPED;
  cache.pages = 2;
  cache.page_size = 4;
  cache.slots_i64 = slots;
  cache.slots_length = kTokens;
  cache.k = cache.v = Tensor(k_pages.data(), ROPE_DTYPE_F32, 1, ROPE_LAYOUT_NHD);
  cache.v.data = v_pages.data();
  rope_fused fused = ROPE_INIT(rope_fused);
  fused.cache = &cache;
  fused.v = Tensor(v.data(), ROPE_DTYPE_F32, 1);
  fused.v.head_dim = cache.v.head_dim = kDim;
  rope_qk_args args = Args(1, kTokens);
  args.k = Tensor(k.data(), ROPE_DTYPE_F32, 1);
  args.positions = Offset(0);
  args.fused = &fused;
  int64_t before = calls;
  rope_status status = rope_apply_qk(context.get(), &args);
  EXPECT_EQ(calls, before);
  EXPECT_EQ(status, ROPE_OK) << rope_last_error();
  rope_fused move = ROPE_INIT(rope_fused);
  const rope_positions was = args.positions;
  move.source = move.cache = &cache;
  move.from_positions = &was;
  rope_qk_args moved = Args(1, kTokens);
  moved.operation = ROPE_OPERATION_REROTATE;
  moved.positions = Offset(7);
  moved.fused = &move;
  before = calls;
  status = rope_apply_qk(context.get(), &moved);
  EXPECT_EQ(calls, before);
  EXPECT_EQ(status, ROPE_OK) << rope_last_error();
  rope_qk_data data = DataOf(args);
  data.v = v.data();
  data.cache_k = k_pages.data();
  data.cache_v = v_pages.data();
  fused.v.data = cache.k.data = cache.v.data = nullptr;
  const Prepared prepared = Prepare(context, args);
  before = calls;
  status = rope_prepared_apply(prepared.get(), &data);
  EXPECT_EQ(calls, before);
  EXPECT_EQ(status, ROPE_OK) << rope_last_error();
}

// What the header says of its size; the rest of the object is below 4 KiB.
TEST(Allocation, APreparedCallTakes8BytesPerTokenAndPair) {
  constexpr int kTokens = 512, kPairs = 64, kObject = 4096;
  for (rope_pairing pairing : {ROPE_PAIRING_HALVES, ROPE_PAIRING_INTERLEAVED}) {
    for (rope_dtype k : {ROPE_DTYPE_F32, ROPE_DTYPE_BF16}) {
      const Context context = Create(Config(2 * kPairs, pairing));
      rope_qk_args args = Args(1, kTokens);
      args.q = Tensor(nullptr, ROPE_DTYPE_F32, 4);
      args.k = Tensor(nullptr, k, 1);
      args.positions = Offset(0);
      const int64_t before = bytes;
      const Prepared prepared = Prepare(context, args);
      const int64_t used = bytes - before;
      const bool interleaved = pairing == ROPE_PAIRING_INTERLEAVED;
      const int64_t of_f32 = kTokens * kPairs * (interleaved ? 16 : 8);
      const int64_t of_k = k == ROPE_DTYPE_F32 ? 0 : kTokens * kPairs * 8;
      EXPECT_LE(used, of_f32 + of_k + kObject);
#if defined(ROPE_COUNTS_MALLOC)
      EXPECT_GE(used, of_f32 + of_k);
#endif
    }
  }
}

// However large the text is: a name and the keys that bear it.
TEST(Allocation, AnAcceptedKeyTakesLittle) {
  std::string text = R"({"model_type": "llama", "head_dim": 64, "swa_rope_theta": 7, "x": [0)";
  for (int i = 0; i < 1000; ++i) text += ", 0";
  const std::string plain = text + "], \"padding\": 1}";
  text += "], \"mixed_rope\": 1}";
  const auto used = [](const std::string& config, const std::vector<const char*>& keys) {
    rope_model* model = nullptr;
    const int64_t before = bytes;
    const rope_status status = rope_model_create_accepting(
        config.data(), config.size(), keys.data(), static_cast<int32_t>(keys.size()), &model);
    const int64_t after = bytes;
    EXPECT_EQ(status, ROPE_OK) << rope_last_error();
    rope_model_destroy(model);
    return after - before;
  };
  used(plain, {"swa_rope_theta"});  // what is made once per process is not counted
  const int64_t one = used(plain, {"swa_rope_theta"});
  const int64_t two = used(text, {"swa_rope_theta", "mixed_rope"});
  EXPECT_LT(two - one, 1024);
}

// "Functions that create an object allocate; the others do not."
TEST(Allocation, QuestionsAllocateNothing) {
  const std::vector<double> factors(64, 2.0);
  rope_config config = Config(128);
  config.scaling = ROPE_SCALING_LONGROPE;
  config.max_position_embeddings = 16384;
  config.original_max_position_embeddings = 4096;
  config.seq_len = 5000;
  config.short_factor = config.long_factor = factors.data();
  config.table_length = 64;
  const Context context = Create(config);
  const std::string text = R"({"model_type": "phi3", "head_dim": 128, "num_hidden_layers": 2})";
  rope_model* model = nullptr;
  ASSERT_OK(rope_model_create(text.data(), text.size(), &model));
  const rope_prompt_part part = {2, 1, 2, 2, 0};
  int64_t ids[3 * 6], next = 0;
  int32_t type = -1;
  rope_info info = ROPE_INIT(rope_info);
  rope_config read = ROPE_INIT(rope_config);
  std::vector<double> inv_freq(64);

  const int64_t before = calls;
  int bad = rope_config_next_change(&config, 5000, &next) != ROPE_OK;
  bad += rope_context_info(context.get(), 0, &info) != ROPE_OK;
  bad += rope_context_inv_freq(context.get(), 0, inv_freq.data(), 64) != ROPE_OK;
  bad += rope_context_backend(context.get())[0] != 'c';
  bad += rope_model_layer_type_count(model) != 1;
  bad += rope_model_layer_type_name(model, 0) == nullptr;
  bad += rope_model_layer_type(model, 1, &type) != ROPE_OK;
  bad += rope_model_config(model, 0, &read) != ROPE_OK;
  bad += rope_model_note(model, 0) != nullptr;
  bad += rope_prompt_ids(&part, 1, 0, ids, 6, &next) != ROPE_OK;
  const double t_interval = 1.5;
  bad += rope_prompt_ids_timed(&part, &t_interval, 1, 0, ids, 6, &next) != ROPE_OK;
  EXPECT_EQ(calls, before);
  EXPECT_EQ(bad, 0) << rope_last_error();
  rope_model_destroy(model);
}

}  // namespace
}  // namespace rope::testing
