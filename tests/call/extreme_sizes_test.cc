// Sizes, strides and addresses at the ends of their types: where products and sums would wrap, a
// call is refused, and what lies one step before is accepted. Nothing is dereferenced: pointers are
// made up, and the runner runs no task.
#include <gtest/gtest.h>

#include <vector>

#include "support/errors.h"
#include "support/handles.h"
#include "support/prepared_call.h"

namespace rope::testing {
namespace {

constexpr int kDim = 8;
constexpr int64_t kTokens = int64_t{1} << 17;  // enough for the runner

// Reports success without calling anything.
struct Idle {
  rope_runner runner{&Idle::Run, this};
  int calls = 0;
  uint32_t count = 0;

  static int32_t Run(void* self, rope_task_fn, void*, uint32_t count) {
    auto* idle = static_cast<Idle*>(self);
    ++idle->calls;
    idle->count = count;
    return 0;
  }
};

// Made-up memory at `address`.
template <class T>
T* At(uint64_t address) {
  return reinterpret_cast<T*>(static_cast<uintptr_t>(address));
}
constexpr uint64_t kSomewhere = uint64_t{1} << 40;

using A = rope_qk_args;

struct Extreme {
  const char* name;
  void (*change)(A*);
  bool fits;
};

// The last 2^40 bytes of the address space.
void AtTheEnd(A* a) { a->q.data = At<float>(0 - (uint64_t{1} << 40)); }
void IdsOfStrides(A* a, int64_t batch, int64_t token) {
  a->positions = Ids(ROPE_POSITIONS_IDS_STRIDED, At<int64_t>(kSomewhere));
  a->positions.stride_batch = batch;
  a->positions.stride_token = token;
}
rope_cos_sin rows;
void RowsOfStride(A* a, int64_t token) {
  a->positions = rope_positions{};
  rows = Rows(ROPE_COS_SIN_PACKED, ROPE_DTYPE_F32, kDim / 2, 1, At<float>(2 * kSomewhere));
  rows.stride_token = token;
  a->cos_sin = &rows;
}

constexpr int64_t Power(int n) { return int64_t{1} << n; }

const Extreme kCases[] = {
    {"as it is", [](A*) {}, true},
    {"2^61 bytes", [](A* a) { a->batch = a->tokens = Power(28); }, true},
    {"2^65 bytes", [](A* a) { a->batch = a->tokens = Power(30) + 1; }, false},
    {"2^64 bytes by the heads", [](A* a) { a->batch = a->tokens = Power(31) + 1, a->q.heads = 4; },
     false},
    {"a strided extent of 2^62 bytes",
     [](A* a) { a->tokens = Power(20) + 1, SetStrides(&a->q, 0, Power(40), 8); }, true},
    {"a strided extent of 2^64 bytes",
     [](A* a) { a->tokens = Power(20) + 1, SetStrides(&a->q, 0, Power(42), 8); }, false},
    {"contiguous to the last byte but 32", [](A* a) { AtTheEnd(a), a->tokens = Power(35) - 1; },
     true},
    {"contiguous beyond the last byte", [](A* a) { AtTheEnd(a), a->tokens = Power(36); }, false},
    {"strided to the last byte but 32",
     [](A* a) { AtTheEnd(a), a->tokens = Power(35) - 1, SetStrides(&a->q, 0, kDim, kDim); }, true},
    {"strided beyond the last byte",
     [](A* a) { AtTheEnd(a), a->tokens = Power(36), SetStrides(&a->q, 0, kDim, kDim); }, false},
    {"ids within 2^62 bytes", [](A* a) { IdsOfStrides(a, 0, Power(42)); }, true},
    {"ids within 2^64 bytes", [](A* a) { IdsOfStrides(a, 0, Power(44)); }, false},
    {"ids whose strides add up to 2^63",
     [](A* a) { a->batch = 2, a->tokens = kTokens + 1, IdsOfStrides(a, Power(62), Power(45)); },
     false},
    {"rows within 2^61 bytes", [](A* a) { RowsOfStride(a, Power(42)); }, true},
    {"rows within 2^64 bytes", [](A* a) { RowsOfStride(a, Power(45)); }, false},
};

class ExtremeSizes : public ::testing::Test {
 protected:
  // A device without runners would touch what is made up.
  void SetUp() override {
    const Context context = Create(Config(kDim));
    float head[kDim] = {};
    Idle idle;
    A args = Args(1, 1);
    args.q = Tensor(head, ROPE_DTYPE_F32, 1);
    args.positions = Offset(0);
    args.runner = &idle.runner;
    if (rope_apply_qk(context.get(), &args) != ROPE_OK) GTEST_SKIP() << rope_last_error();
  }
};

TEST_F(ExtremeSizes, AreRefusedWhereTheyWouldWrapAndNotBefore) {
  const Context context = Create(Config(kDim));
  for (const Extreme& e : kCases) {
    SCOPED_TRACE(e.name);
    Idle idle;
    A args = Args(1, kTokens);
    args.q = Tensor(At<float>(kSomewhere), ROPE_DTYPE_F32, 1);
    args.positions = Offset(0);
    args.runner = &idle.runner;
    e.change(&args);
    const rope_status status = rope_apply_qk(context.get(), &args);
    EXPECT_EQ(status, e.fits ? ROPE_ERROR_RUNNER : kInvalid);  // Idle runs no task
    EXPECT_EQ(idle.calls, e.fits ? 1 : 0);
    if (!e.fits) ExpectMessage("rope_apply_qk", {"address space"});
  }
}

// Contexts that are right up to a length look at positions, but not at more than there can be.
TEST_F(ExtremeSizes, AreNoReasonToWalkThroughAllPositions) {
  rope_config config = Config(kDim);
  config.scaling = ROPE_SCALING_DYNAMIC;
  config.factor = 2;
  config.max_position_embeddings = Power(50);
  config.seq_len = 1;
  const Context context = Create(config);
  const int64_t id = 7;
  float row[2 * kDim];
  for (bool rows : {false, true}) {
    A args = Args(rows ? INT64_MAX : 1, rows ? 1 : INT64_MAX);
    args.q = Tensor(At<float>(kSomewhere), ROPE_DTYPE_F32, 1);
    args.positions = Offset(INT64_MIN);
    EXPECT_EQ(rope_apply_qk(context.get(), &args), kInvalid);
    ExpectMessage("rope_apply_qk", {"address space"});
    const rope_cos_sin out = Rows(ROPE_COS_SIN_PACKED, ROPE_DTYPE_F32, kDim / 2, args.batch, row);
    EXPECT_EQ(
        rope_cos_sin_fill(context.get(), args.batch, args.tokens, &args.positions, &out, nullptr),
        kInvalid);
    ExpectMessage("rope_cos_sin_fill", {"address space"});
  }
  // As many as fit: nothing is walked here, so this ends at once.
  Idle idle;
  A args = Args(1, Power(40));
  args.q = Tensor(At<float>(kSomewhere), ROPE_DTYPE_F32, 1);
  args.runner = &idle.runner;
  for (rope_position_kind kind : {ROPE_POSITIONS_OFFSET, ROPE_POSITIONS_IDS_STRIDED}) {
    args.positions = rope_positions{};
    args.positions.kind = kind;
    if (kind == ROPE_POSITIONS_IDS_STRIDED) args.positions.ids_i64 = &id;
    EXPECT_EQ(rope_apply_qk(context.get(), &args), ROPE_ERROR_RUNNER);  // Idle runs no task
    EXPECT_EQ(std::exchange(idle.calls, 0), 1);
  }
  args.tokens = Power(40);
  args.positions = Offset(Power(50) - Power(39));  // the limit is in the middle
  EXPECT_EQ(rope_apply_qk(context.get(), &args), kInvalid);
  ExpectMessage("rope_apply_qk",
                {"position 1125899906842624 of token 549755813888 in batch row 0"});
}

// Tasks are counted in 32 bits: beyond 2^32 tokens of 1 MiB each a task has several.
TEST_F(ExtremeSizes, AreCutIntoTasksThat32BitsCount) {
  const Context context = Create(Config(1024));
  for (int64_t tokens : {Power(32) - 1, Power(32), Power(33) + 1}) {
    Idle idle;
    A args = Args(1, tokens);
    args.q = Tensor(At<float>(kSomewhere), ROPE_DTYPE_F32, 256);
    args.positions = Offset(0);
    args.runner = &idle.runner;
    ASSERT_EQ(rope_apply_qk(context.get(), &args), ROPE_ERROR_RUNNER);
    EXPECT_GE(idle.count, 1u << 31) << tokens;
  }
}

// Keys that are only read may be one row for all tokens, however many.
TEST_F(ExtremeSizes, AreThoseOfKeysInOnePlaceToo) {
  const Context context = Create(Config(kDim));
  float row[kDim] = {}, slot[kDim];
  A args = Args(1, INT64_MAX);
  args.k = Tensor(row, ROPE_DTYPE_F32, 1, ROPE_LAYOUT_STRIDED);
  args.positions = Offset(0);
  const int64_t nowhere = -1;
  rope_kv_cache cache = ROPE_INIT(rope_kv_cache);
  cache.kind = ROPE_SLOTS_MAPPED;
  cache.pages = cache.page_size = 1;
  cache.k = Tensor(slot, ROPE_DTYPE_F32, 1, ROPE_LAYOUT_NHD);
  cache.slots_i64 = &nowhere;
  cache.slots_length = 1;
  rope_fused fused = ROPE_INIT(rope_fused);
  fused.cache = &cache;
  args.fused = &fused;
  uint32_t tasks = 0;
  // Of the tasks the last, which is one token.
  rope_runner runner = {[](void* tasks, rope_task_fn run, void* task, uint32_t count) {
                          run(task, count - 1);
                          *static_cast<uint32_t*>(tasks) = count;
                          return int32_t{0};
                        },
                        &tasks};
  args.runner = &runner;
  EXPECT_EQ(rope_apply_qk(context.get(), &args), ROPE_ERROR_RUNNER);  // not all
  EXPECT_GE(tasks, 1u << 31);

  const int32_t page = 0, start = INT32_MAX;
  cache.kind = ROPE_SLOTS_PAGED;
  cache.slots_i64 = nullptr;
  cache.slots_length = 0;
  cache.page_table = &page;
  cache.page_table_stride = 1;
  cache.starts = &start;
  EXPECT_EQ(rope_apply_qk(context.get(), &args), kInvalid);
  ExpectMessage("rope_apply_qk", {"page_table: sequence 0 has 1 pages of 1"});
}

// Strides of 0 repeat an element of an input, so that few bytes are more slots than 63 bits count.
TEST(ExtremeSlots, PagesThatRepeatAreAsManyAsTheyLike) {
  const Context context = Create(Config(kDim));
  float row[kDim] = {1}, out[kDim];
  A args = Args(1, 1);
  const int64_t distance = 5;
  args.operation = ROPE_OPERATION_SHIFT;
  args.positions = Ids(ROPE_POSITIONS_IDS_T, &distance);
  args.k_out = Tensor(out, ROPE_DTYPE_F32, 1);
  rope_kv_cache source = ROPE_INIT(rope_kv_cache);
  source.kind = ROPE_SLOTS_MAPPED;
  source.page_size = 1 << 30;
  source.k = Tensor(row, ROPE_DTYPE_F32, 1, ROPE_LAYOUT_STRIDED);
  source.slots_length = 1;
  rope_fused fused = ROPE_INIT(rope_fused);
  fused.source = &source;
  args.fused = &fused;
  for (const int64_t pages : {int64_t{1} << 33, int64_t{1} << 34, INT64_MAX}) {
    source.pages = pages;
    for (const int64_t slot : {int64_t{2}, int64_t{1} << 61}) {
      source.slots_i64 = &slot;
      EXPECT_OK(rope_apply_qk(context.get(), &args)) << pages << " pages, slot " << slot;
    }
  }
}

// What a slot's number is multiplied by is not, where there is no such slot.
TEST(ExtremeSlots, SlotsThatAreNotUsedMayLieAnywhere) {
  const Context context = Create(Config(kDim));
  constexpr int kTokens = 5;
  float k[kTokens * kDim] = {1}, slot[kDim] = {}, weight[kDim] = {1};
  A args = Args(1, kTokens);
  args.k = Tensor(k, ROPE_DTYPE_F32, 1);
  args.positions = Offset(0);
  const int64_t slots[kTokens] = {-1, -1, -1, -1, 0};
  rope_kv_cache cache = ROPE_INIT(rope_kv_cache);
  cache.kind = ROPE_SLOTS_MAPPED;
  cache.pages = 1;
  cache.page_size = 2;
  cache.slots_i64 = slots;
  cache.slots_length = kTokens;
  cache.k = Tensor(slot, ROPE_DTYPE_F32, 1, ROPE_LAYOUT_STRIDED);
  rope_norm norm = ROPE_INIT(rope_norm);
  norm.kind = ROPE_NORM_KIND_LAYER;  // a pass of its own
  norm.eps = 1e-5;
  norm.weight = weight;
  norm.weight_dtype = ROPE_DTYPE_F32;
  rope_fused fused = ROPE_INIT(rope_fused);
  fused.cache = &cache;
  args.fused = &fused;
  const rope_norm* const none = nullptr;
  const rope_norm* const layer = &norm;
  for (const rope_norm* k_norm : {none, layer}) {
    fused.k_norm = k_norm;
    for (const int64_t stride : {int64_t{1} << 59, int64_t{1} << 60}) {
      cache.k.stride_token = stride;
      EXPECT_OK(rope_apply_qk(context.get(), &args));
      EXPECT_OK(ApplyPrepared(context.get(), args));
    }
  }
}

}  // namespace
}  // namespace rope::testing
