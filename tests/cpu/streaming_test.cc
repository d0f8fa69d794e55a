// The rotations with non-temporal stores, which calls use only for outputs larger than the cache:
// they give the bits of the others.
#include <gtest/gtest.h>
#include <hwy/cache_control.h>

#include <cstring>
#include <random>
#include <vector>

#include "math/element.h"
#include "support/enumerators.h"
#include "support/handles.h"
#include "support/memory.h"
#include "support/targets.h"

namespace rope::testing {
namespace {

class StreamingTest : public TargetTest {};
INSTANTIATE_TARGETS(StreamingTest);

constexpr int kTokens = 4, kHeads = 3;

TEST_P(StreamingTest, GivesTheBitsOfOrdinaryStores) {
  int tried = 0;
  for (rope_dtype dtype = 1; dtype <= kLastDtype; ++dtype) {
    for (int order = 0; order < kChannelOrders; ++order) {
      std::vector<cpu::Kernels::Rotation> rotations(
          std::begin(kernels().rotations[dtype - 1][order]),
          std::end(kernels().rotations[dtype - 1][order]));
      if (dtype == ROPE_DTYPE_BF16) {
        rotations.push_back(kernels().rotations_of_rare_ties[order]);
      }
      for (const cpu::Kernels::Rotation& rotation : rotations) {
        if (rotation.rotate_streaming == nullptr) continue;
        ++tried;
        for (int dim : {64, 128, 192, 256, 512, 1024}) {
          const int pairs = dim / 2, size = ElementSize(dtype);
          if (pairs * size % 64 != 0) continue;  // halves in whole lines, as the backend asks
          std::mt19937 random(21);
          std::normal_distribution<float> normal;
          const auto count = static_cast<size_t>(dim * kHeads * kTokens);
          std::vector<char> in(count * size + kLine), plain = in, streamed = in;
          for (size_t i = 0; i < count; ++i) StoreElement(dtype, FromLine(&in), i, normal(random));
          std::vector<float> row(4 * kTokens * dim + 16);
          float* cos = FromLine(&row);
          for (float& v : row) v = normal(random);
          const Segment segment = {0, 0, pairs};
          rope::Tensor tensor{};
          tensor.in_strides.head = int64_t{dim} * size;
          tensor.in_strides.token = kHeads * tensor.in_strides.head;
          tensor.out_strides = tensor.in_strides;
          tensor.heads = kHeads;
          cpu::Block block{};
          block.tensor = &tensor;
          block.in = FromLine(&in);
          block.tokens = kTokens;
          block.cos = cos;
          block.sin = cos + 2 * dim;  // twice as long in the order per channel
          block.row_stride = 16;
          block.segments = &segment;
          block.segment_count = 1;
          block.prefetch_ahead = 2 * dim * size;
          block.prefetch_last = block.in + (count - dim) * size;
          block.in_cache = true;
          block.out = FromLine(&plain);
          rotation.rotate(block);
          block.out = FromLine(&streamed);
          rotation.rotate_streaming(block);
          hwy::FlushStream();
          EXPECT_EQ(std::memcmp(FromLine(&plain), FromLine(&streamed), count * size), 0)
              << "dtype " << dtype << " order " << static_cast<int>(rotation.order) << " dim "
              << dim;
          EXPECT_NE(std::memcmp(FromLine(&plain), FromLine(&in), count * size), 0);
        }
      }
    }
  }
  const bool scalar = std::string(kernels().target) == "SCALAR";
  EXPECT_EQ(tried > 0, !scalar) << "no rotation of this target streams";
}

// Such stores need whole lines: an output beyond the cache that begins within a line is written the
// ordinary way. Of the large call the first task alone runs.
TEST_P(StreamingTest, NeverWritesIntoTheMiddleOfALine) {
  constexpr int kDim = 128;
  constexpr int64_t kMany = 1 << 18;  // 64 MiB of 16-bit elements: no cache keeps that many
  constexpr size_t kTaskBytes = 256 << 10;  // the least
  const rope_runner first_task = {[](void*, rope_task_fn fn, void* task, uint32_t) {
                                    fn(task, 0);
                                    return 1;  // the others would take their time
                                  },
                                  nullptr};
  constexpr size_t kBytes = kMany * kDim * kMaxElementSize;
  const Untouched in(kBytes), out(kBytes + kLine);
  for (rope_dtype dtype = 1; dtype <= kLastDtype; ++dtype) {
    for (rope_pairing pairing : {ROPE_PAIRING_HALVES, ROPE_PAIRING_INTERLEAVED}) {
      const Context context = Create(Config(kDim, pairing));
      const auto elements = static_cast<int64_t>(kTaskBytes) / ElementSize(dtype);
      for (int64_t i = 0; i < elements; ++i) {
        StoreElement(dtype, in.data(), i, 0.01f * static_cast<float>(i % 1000));
      }
      std::vector<char> want(in.data(), in.data() + kTaskBytes);
      rope_qk_args args = Args(1, elements / kDim);
      args.q = Tensor(want.data(), dtype, 1);
      args.positions = Offset(5);
      ASSERT_OK(rope_apply_qk(context.get(), &args));
      for (int bytes : {16, 32, 48}) {
        args = Args(1, kMany);
        args.q = Tensor(in.data(), dtype, 1);
        args.q_out = Tensor(out.data() + bytes, dtype, 1);
        args.positions = Offset(5);
        args.runner = &first_task;
        ASSERT_EQ(rope_apply_qk(context.get(), &args), ROPE_ERROR_RUNNER);
        EXPECT_EQ(std::memcmp(out.data() + bytes, want.data(), kTaskBytes), 0)
            << bytes << " dtype " << dtype;
      }
    }
  }
}

}  // namespace
}  // namespace rope::testing
