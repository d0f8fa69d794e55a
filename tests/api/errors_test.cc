// Errors of the other functions; out of memory; messages and threads.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <new>
#include <string>
#include <thread>
#include <vector>

#include "support/enumerators.h"
#include "support/errors.h"
#include "support/handles.h"

namespace {
std::atomic<int64_t> allocations_left{-1};  // negative: no limit
}

// Fails when the count is used up. The library's own allocations come here, too.
void* operator new(size_t size) {
  if (allocations_left >= 0 && allocations_left-- == 0) {
    allocations_left = 0;
    throw std::bad_alloc();
  }
  if (void* memory = std::malloc(size != 0 ? size : 1)) return memory;
  throw std::bad_alloc();
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }

namespace rope::testing {
namespace {

constexpr int kDim = 8, kPairs = kDim / 2;

TEST(Status, TextsAreDifferentAndNeverNull) {
  for (int a = ROPE_ERROR_INTERNAL; a <= ROPE_OK; ++a) {
    ASSERT_NE(rope_status_string(a), nullptr);
    for (int b = a + 1; b <= ROPE_OK; ++b)
      EXPECT_STRNE(rope_status_string(a), rope_status_string(b));
  }
  for (int unknown : {1, -9, INT32_MIN, INT32_MAX}) {
    EXPECT_STREQ(rope_status_string(unknown), "unknown status");
  }
}

TEST(LastError, IsOfThisThreadAndSuccessDoesNotClearIt) {
  EXPECT_NE(rope_last_error(), nullptr);
  rope_config bad = Config(63);
  rope_context* out = nullptr;
  ASSERT_EQ(rope_context_create(&bad, &out), kInvalid);
  const std::string mine = rope_last_error();
  std::thread([] {
    EXPECT_STREQ(rope_last_error(), "");
    rope_pool* pool = nullptr;
    EXPECT_EQ(rope_pool_create(-1, &pool), kInvalid);
    ExpectMessage("rope_pool_create", {"threads (-1)"});
  }).join();
  EXPECT_EQ(rope_last_error(), mine);
  EXPECT_NE(Create(Config(64)), nullptr);
  EXPECT_EQ(rope_last_error(), mine);
}

TEST(Info, RefusesBadArgumentsAndWritesNothing) {
  const Context context = Create(Config(kDim));
  rope_info info = ROPE_INIT(rope_info);
  info.pairs = 77;
  const rope_info before = info;
  EXPECT_EQ(rope_context_info(nullptr, 0, &info), kInvalid);
  ExpectMessage("rope_context_info", {"context", "NULL"});
  EXPECT_EQ(rope_context_info(context.get(), 0, nullptr), kInvalid);
  ExpectMessage("rope_context_info", {"info", "NULL"});
  for (int set : {-1, 1}) {
    EXPECT_EQ(rope_context_info(context.get(), set, &info), kInvalid);
    ExpectMessage("rope_context_info", {"freq_set (", "from 0 to 0"});
  }
  EXPECT_EQ(std::memcmp(&info, &before, sizeof(info)), 0);
  info.struct_size = 0;
  EXPECT_EQ(rope_context_info(context.get(), 0, &info), kInvalid);
  EXPECT_EQ(info.pairs, 77);
}

TEST(Info, WritesAsMuchAsTheCallersStructHas) {
  const Context context = Create(Config(kDim));
  rope_info info;
  std::memset(&info, 0x55, sizeof(info));
  info.struct_size = offsetof(rope_info, axes);  // an older program's
  ASSERT_OK(rope_context_info(context.get(), 0, &info));
  EXPECT_EQ(info.pairs, kPairs);
  EXPECT_EQ(info.axes, 0x55555555);
  struct Newer {
    rope_info known;
    int64_t later;
  } newer = {};
  newer.known.struct_size = sizeof(newer);
  EXPECT_OK(rope_context_info(context.get(), 0, &newer.known));
  EXPECT_EQ(newer.known.head_dim, kDim);
  EXPECT_EQ(newer.known.struct_size, sizeof(newer));
  newer.later = 1;
  EXPECT_EQ(rope_context_info(context.get(), 0, &newer.known), kUnsupported);
}

TEST(Info, TellsTheShapeOfTheContext) {
  rope_config config = Config(16);
  config.rotary_dim = 8;
  config.rotary_offset = 6;
  config.axes = 2;
  config.mrope_section[0] = 1;
  config.mrope_section[1] = 3;
  rope_info info = ROPE_INIT(rope_info);
  ASSERT_OK(rope_context_info(Create(config).get(), 0, &info));
  EXPECT_EQ(info.head_dim, 16);
  EXPECT_EQ(info.rotary_dim, 8);
  EXPECT_EQ(info.rotary_offset, 6);
  EXPECT_EQ(info.pairs, 4);
  EXPECT_EQ(info.axes, 2);
  EXPECT_EQ(info.freq_sets, 1);
}

TEST(InvFreq, RefusesBadArgumentsAndWritesNothing) {
  const Context context = Create(Config(kDim));
  double out[kPairs + 1] = {-1, -1, -1, -1, -1};
  const char* name = "rope_context_inv_freq";
  EXPECT_EQ(rope_context_inv_freq(nullptr, 0, out, kPairs), kInvalid);
  EXPECT_EQ(rope_context_inv_freq(context.get(), 0, nullptr, kPairs), kInvalid);
  ExpectMessage(name, {"out", "NULL"});
  for (int count : {kPairs - 1, kPairs + 1, 0, -1}) {
    EXPECT_EQ(rope_context_inv_freq(context.get(), 0, out, count), kInvalid);
    ExpectMessage(name, {"count (", "(4)"});
  }
  EXPECT_EQ(rope_context_inv_freq(context.get(), 1, out, kPairs), kInvalid);
  ExpectMessage(name, {"freq_set (1)"});
  auto* misaligned = reinterpret_cast<double*>(reinterpret_cast<char*>(out) + 4);
  EXPECT_EQ(rope_context_inv_freq(context.get(), 0, misaligned, kPairs), kInvalid);
  ExpectMessage(name, {"out (", "aligned"});
  for (double v : out) EXPECT_EQ(v, -1);
}

TEST(Backend, OfNoContextIsEmpty) {
  EXPECT_STREQ(rope_context_backend(nullptr), "");
  EXPECT_EQ(rope_pool_runner(nullptr), nullptr);
  rope_pool_destroy(nullptr);
}

TEST(PoolErrors, NameTheArgumentAndMakeNoPool) {
  auto* const untouched = reinterpret_cast<rope_pool*>(0x1234);
  rope_pool* pool = untouched;
  EXPECT_EQ(rope_pool_create(2, nullptr), kInvalid);
  ExpectMessage("rope_pool_create", {"out", "NULL"});
  for (int threads : {-1, INT32_MIN, 4097, INT32_MAX}) {
    EXPECT_EQ(rope_pool_create(threads, &pool), kInvalid);
    ExpectMessage("rope_pool_create", {"threads (", "4096"});
  }
  EXPECT_EQ(pool, untouched);
}

struct Fill {
  int64_t batch = 1, tokens = 2;
  rope_positions positions = Offset(0);
  rope_cos_sin rows;
};

TEST(FillErrors, EachIsRefusedWithItsMessage) {
  static float data[64], sin[64];
  using F = Fill;
  static double misaligned[4];
  const BadInput<F> cases[] = {
      {"batch negative", [](F* f) { f->batch = -1; }, kInvalid, {"batch (-1)", "negative"}},
      {"tokens negative", [](F* f) { f->tokens = -2; }, kInvalid, {"tokens (-2)"}},
      {"kind", [](F* f) { f->positions.kind = 0; }, kInvalid, {"positions->kind (0)"}},
      {"format missing", [](F* f) { f->rows.format = 0; }, kInvalid, {"out->format (0)"}},
      {"format unknown",
       [](F* f) { f->rows.format = Formats().back() + 1; },
       kUnsupported,
       {"out->format (", "not known to this version"}},
      {"format negative", [](F* f) { f->rows.format = -1; }, kUnsupported, {"out->format (-1)"}},
      {"dtype missing", [](F* f) { f->rows.dtype = 0; }, kInvalid, {"out->dtype (0)"}},
      {"dtype unknown",
       [](F* f) { f->rows.dtype = kLastDtype + 1; },
       kUnsupported,
       {"out->dtype (ROPE_DTYPE_F8_E4M3)", "F32, F16 or BF16"}},
      {"16-bit angles",
       [](F* f) { f->rows.format = ROPE_COS_SIN_ANGLES, f->rows.dtype = ROPE_DTYPE_BF16; },
       kInvalid,
       {"dtype (ROPE_DTYPE_BF16)", "angles"}},
      {"pairs", [](F* f) { f->rows.pairs = kDim; }, kInvalid, {"out->pairs (8)", "(4)"}},
      {"another batch", [](F* f) { f->rows.batch = 2; }, kInvalid, {"out->batch (2)", "(1)"}},
      {"a shared row", [](F* f) { f->batch = 2; }, kInvalid, {"out->batch (1)", "(2)"}},
      {"data NULL", [](F* f) { f->rows.data = nullptr; }, kInvalid, {"data (NULL)"}},
      {"sin in vain", [](F* f) { f->rows.sin = sin; }, kInvalid, {"sin"}},
      {"sin missing",
       [](F* f) { f->rows.format = ROPE_COS_SIN_FULL_HALVES; },
       kInvalid,
       {"sin (NULL)"}},
      {"data misaligned",
       [](F* f) { f->rows.data = reinterpret_cast<char*>(misaligned) + 2; },
       kInvalid,
       {"aligned"}},
      {"stride negative", [](F* f) { f->rows.stride_token = -8; }, kInvalid, {"stride_token (-8)"}},
      {"stride short",
       [](F* f) { f->rows.stride_token = 7; },
       kInvalid,
       {"stride_token (7)", "(8)"}},
      {"stride overflows",
       [](F* f) { f->rows.stride_token = INT64_MAX; },
       kInvalid,
       {"stride_token"}},
      {"sin is data",
       [](F* f) { f->rows.format = ROPE_COS_SIN_SPLIT, f->rows.sin = f->rows.data; },
       kInvalid,
       {"out->sin (", "overlaps data", "disjoint"}},
      {"sin one element behind data",
       [](F* f) {
         f->rows.format = ROPE_COS_SIN_FULL_HALVES;
         f->rows.sin = static_cast<float*>(f->rows.data) + 1;
       },
       kInvalid,
       {"out->sin (", "overlaps data"}},
      {"struct_size", [](F* f) { f->rows.struct_size = 4; }, kInvalid, {"struct_size (4)"}},
  };
  const Context context = Create(Config(kDim));
  for (const auto& bad : cases) {
    Fill fill;
    fill.rows = Rows(ROPE_COS_SIN_PACKED, ROPE_DTYPE_F32, kPairs, 1, data);
    bad.change(&fill);
    ExpectParts("rope_cos_sin_fill", bad,
                rope_cos_sin_fill(context.get(), fill.batch, fill.tokens, &fill.positions,
                                  &fill.rows, nullptr));
    for (int i = 0; i < 64; ++i) ASSERT_TRUE(data[i] == 0 && sin[i] == 0) << bad.name;
  }
  const rope_positions positions = Offset(0);
  const rope_cos_sin rows = Rows(ROPE_COS_SIN_PACKED, ROPE_DTYPE_F32, kPairs, 1, data);
  EXPECT_EQ(rope_cos_sin_fill(nullptr, 1, 2, &positions, &rows, nullptr), kInvalid);
  ExpectMessage("rope_cos_sin_fill", {"context", "NULL"});
  EXPECT_EQ(rope_cos_sin_fill(context.get(), 1, 2, nullptr, &rows, nullptr), kInvalid);
  ExpectMessage("rope_cos_sin_fill", {"positions", "NULL"});
  EXPECT_EQ(rope_cos_sin_fill(context.get(), 1, 2, &positions, nullptr, nullptr), kInvalid);
  ExpectMessage("rope_cos_sin_fill", {"out", "NULL"});
  EXPECT_EQ(rope_cos_sin_fill(context.get(), 1, 2, &positions, &rows, data), kInvalid);
  ExpectMessage("rope_cos_sin_fill", {"stream", "NULL"});
}

TEST(OutOfMemory, IsAStatusOfEveryFunctionThatAllocates) {
  const rope_config a = Config(128), b = Config(128, ROPE_PAIRING_HALVES, 5);
  const rope_config* configs[] = {&a, &b};
  rope_context* context = nullptr;
  rope_pool* pool = nullptr;
  const auto fails_until_it_succeeds = [](auto call, const char* function) {
    for (int n = 0; n < 1000; ++n) {
      allocations_left = n;
      const rope_status status = call();
      allocations_left = -1;
      if (status == ROPE_OK) return n;
      EXPECT_EQ(status, ROPE_ERROR_OUT_OF_MEMORY);
      ExpectMessage(function, {"out of memory"});
    }
    return -1;
  };
  EXPECT_GT(fails_until_it_succeeds(
                [&] {
                  const rope_status status = rope_context_create(&a, &context);
                  EXPECT_EQ(status == ROPE_OK, context != nullptr);
                  return status;
                },
                "rope_context_create"),
            1);
  rope_context_destroy(context);
  context = nullptr;
  EXPECT_GT(fails_until_it_succeeds([&] { return rope_context_create_sets(configs, 2, &context); },
                                    "rope_context_create_sets"),
            1);
  rope_context_destroy(context);
  EXPECT_GT(fails_until_it_succeeds([&] { return rope_pool_create(3, &pool); }, "rope_pool_create"),
            1);
  rope_pool_destroy(pool);
}

}  // namespace
}  // namespace rope::testing
