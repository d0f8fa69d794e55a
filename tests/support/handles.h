// Contexts and other handles as values, and errors as expectations.
#ifndef LIBROPE_TESTS_SUPPORT_HANDLES_H_
#define LIBROPE_TESTS_SUPPORT_HANDLES_H_

#include <gtest/gtest.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "librope/rope.h"

namespace rope::testing {

struct Destroy {
  void operator()(rope_context* context) const { rope_context_destroy(context); }
  void operator()(rope_pool* pool) const { rope_pool_destroy(pool); }
  void operator()(rope_prepared* prepared) const { rope_prepared_destroy(prepared); }
};
using Context = std::unique_ptr<rope_context, Destroy>;
using Pool = std::unique_ptr<rope_pool, Destroy>;
using Prepared = std::unique_ptr<rope_prepared, Destroy>;

// The device of configurations that name none: that of LIBROPE_TEST_DEVICE, a number, or the CPU.
// Any device will do whose backend works in main memory. A value that cannot be meant ends the
// program: tests that went on would be tests of the CPU.
inline rope_device TestDevice() {
  static const rope_device kDevice = [] {
    const char* const value = std::getenv("LIBROPE_TEST_DEVICE");
    if (value == nullptr) return rope_device{ROPE_DEVICE_CPU};
    char* end = nullptr;
    const long number = std::strtol(value, &end, 10);
    const char* problem = "must be the number of a device";
    if (end != value && *end == '\0' && number > 0 && number <= INT32_MAX) {
      rope_config config = ROPE_INIT(rope_config);
      config.head_dim = 2;
      config.pairing = ROPE_PAIRING_HALVES;
      config.theta = 10000;
      config.device = static_cast<rope_device>(number);
      rope_context* made = nullptr;
      rope_status status = rope_context_create(&config, &made);
      const Context context(made);
      // The call for main memory alone.
      if (status == ROPE_OK) {
        status = rope_apply_thd(made, ROPE_DTYPE_F32, 0, nullptr, nullptr, 0, nullptr, 0);
      }
      if (status == ROPE_OK) return config.device;
      problem = rope_last_error();
    }
    std::fprintf(stderr, "LIBROPE_TEST_DEVICE (%s): %s\n", value, problem);
    std::exit(1);
  }();
  return kDevice;
}

inline rope_config OnTestDevice(rope_config config) {
  if (config.device == 0 && TestDevice() != ROPE_DEVICE_CPU) config.device = TestDevice();
  return config;
}

inline Context Create(const rope_config& given) {
  const rope_config config = OnTestDevice(given);
  rope_context* context = nullptr;
  const rope_status status = rope_context_create(&config, &context);
  EXPECT_EQ(status, ROPE_OK) << rope_last_error();
  return Context(context);
}

// With a frequency set for each configuration.
inline Context CreateSets(std::vector<rope_config> configs) {
  std::vector<const rope_config*> pointers;
  for (rope_config& config : configs) {
    config = OnTestDevice(config);
    pointers.push_back(&config);
  }
  rope_context* context = nullptr;
  const auto count = static_cast<int32_t>(configs.size());
  EXPECT_EQ(rope_context_create_sets(pointers.data(), count, &context), ROPE_OK)
      << rope_last_error();
  return Context(context);
}

inline Pool CreatePool(int32_t threads) {
  rope_pool* pool = nullptr;
  EXPECT_EQ(rope_pool_create(threads, &pool), ROPE_OK) << rope_last_error();
  return Pool(pool);
}

// The smallest configuration of a head.
inline rope_config Config(int head_dim, rope_pairing pairing = ROPE_PAIRING_HALVES,
                          double theta = 10000) {
  rope_config config = ROPE_INIT(rope_config);
  config.head_dim = head_dim;
  config.pairing = pairing;
  config.theta = theta;
  return config;
}

// Of its first set of frequencies.
inline rope_info Info(const Context& context) {
  rope_info info = ROPE_INIT(rope_info);
  EXPECT_EQ(rope_context_info(context.get(), 0, &info), ROPE_OK) << rope_last_error();
  return info;
}
inline rope_info Info(const rope_config& config) { return Info(Create(config)); }

inline std::vector<double> InvFreq(const Context& context) {
  std::vector<double> values(static_cast<size_t>(Info(context).pairs));
  EXPECT_EQ(
      rope_context_inv_freq(context.get(), 0, values.data(), static_cast<int32_t>(values.size())),
      ROPE_OK)
      << rope_last_error();
  return values;
}
inline std::vector<double> InvFreq(const rope_config& config) { return InvFreq(Create(config)); }

inline rope_tensor Tensor(void* data, rope_dtype dtype, int heads,
                          rope_layout layout = ROPE_LAYOUT_BSHD) {
  rope_tensor tensor{};
  tensor.data = data;
  tensor.dtype = dtype;
  tensor.layout = layout;
  tensor.heads = heads;
  return tensor;
}

inline void SetStrides(rope_tensor* t, int64_t batch, int64_t token, int64_t head) {
  t->layout = ROPE_LAYOUT_STRIDED;
  t->stride_batch = batch;
  t->stride_token = token;
  t->stride_head = head;
}

inline rope_qk_args Args(int64_t batch, int64_t tokens) {
  rope_qk_args args = ROPE_INIT(rope_qk_args);
  args.batch = batch;
  args.tokens = tokens;
  return args;
}

inline rope_positions Offset(int64_t offset) {
  rope_positions positions{};
  positions.kind = ROPE_POSITIONS_OFFSET;
  positions.offset = offset;
  return positions;
}

inline rope_shard ShardOf(rope_shard_scheme scheme, int rank, int world, int block = 0) {
  rope_shard shard{};
  shard.scheme = scheme;
  shard.rank = rank;
  shard.world = world;
  shard.block = block;
  return shard;
}

// A second group of ranks divides what a rank of the first one has.
inline rope_shard Then(rope_shard outer, const rope_shard& inner) {
  outer.inner_scheme = inner.scheme;
  outer.inner_rank = inner.rank;
  outer.inner_world = inner.world;
  outer.inner_block = inner.block;
  return outer;
}

inline rope_shard PerDocument(rope_shard shard) {
  shard.per_document = 1;
  return shard;
}

inline rope_positions Ids(rope_position_kind kind, const int32_t* ids) {
  rope_positions positions{};
  positions.kind = kind;
  positions.ids_i32 = ids;
  return positions;
}
inline rope_positions Ids(rope_position_kind kind, const int64_t* ids) {
  rope_positions positions{};
  positions.kind = kind;
  positions.ids_i64 = ids;
  return positions;
}
inline rope_positions Ids(rope_position_kind kind, const float* ids) {
  rope_positions positions{};
  positions.kind = kind;
  positions.ids_f32 = ids;
  return positions;
}

inline rope_cos_sin Rows(rope_cos_sin_format format, rope_dtype dtype, int pairs, int64_t batch,
                         void* data, void* sin = nullptr) {
  rope_cos_sin rows = ROPE_INIT(rope_cos_sin);
  rows.format = format;
  rows.dtype = dtype;
  rows.pairs = pairs;
  rows.batch = batch;
  rows.data = data;
  rows.sin = sin;
  return rows;
}

// The call that rope_prepared_create takes: without addresses.
inline rope_qk_args WithoutData(rope_qk_args args) {
  args.q.data = args.k.data = args.q_out.data = args.k_out.data = nullptr;
  return args;
}

// And its addresses.
inline rope_qk_data DataOf(const rope_qk_args& args) {
  rope_qk_data data = ROPE_INIT(rope_qk_data);
  data.q = args.q.data;
  data.k = args.k.data;
  data.q_out = args.q_out.data;
  data.k_out = args.k_out.data;
  return data;
}

inline Prepared Prepare(const Context& context, const rope_qk_args& args) {
  rope_prepared* prepared = nullptr;
  const rope_qk_args without = WithoutData(args);
  EXPECT_EQ(rope_prepared_create(context.get(), &without, &prepared), ROPE_OK) << rope_last_error();
  return Prepared(prepared);
}

#define EXPECT_OK(call) EXPECT_EQ((call), ROPE_OK) << rope_last_error()
#define ASSERT_OK(call) ASSERT_EQ((call), ROPE_OK) << rope_last_error()

inline bool IsOn(const char* variable) {
  const char* value = std::getenv(variable);
  return value != nullptr && std::string(value) != "0";
}
// Longer loops, for a machine with time; shorter ones, for one that is emulated.
inline bool LongTests() { return IsOn("LIBROPE_TEST_LONG"); }
inline bool ShortTests() { return IsOn("LIBROPE_TEST_SHORT"); }

}  // namespace rope::testing

#endif  // LIBROPE_TESTS_SUPPORT_HANDLES_H_
