// Quotients, roots and codes of a GPU that begin with an approximation are those of IEEE 754 and of
// math/code.h: of all floats, of 2^34 quotients of random bits, and of as many of significands
// alone.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cstdint>

#include "device.h"

extern "C" void CountDifferent(uint32_t round, unsigned long long* different);

namespace rope::testing {
namespace {

TEST(CudaArithmetic, IsThatOfTheHost) {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) GTEST_SKIP() << "no CUDA device";
  DeviceBytes different(sizeof(unsigned long long));
  ASSERT_EQ(cudaMemset(different.data(), 0, different.size()), cudaSuccess);
  for (int round = 0; round < Cases(4); ++round) {
    CountDifferent(static_cast<uint32_t>(round), different.as<unsigned long long>());
  }
  ASSERT_EQ(cudaGetLastError(), cudaSuccess);
  EXPECT_EQ(different.Read<unsigned long long>()[0], 0u);
}

}  // namespace
}  // namespace rope::testing
