// What the CPU says of its caches is read as its manuals say, and as the kernel reads it.
#include "cpu/caches.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <string>
#include <vector>

namespace rope::testing {
namespace {

enum Type : unsigned { kData = 1, kInstructions = 2, kUnified = 3 };

cpu::CacheLeaf Leaf(Type type, unsigned level, unsigned ways, unsigned sets) {
  constexpr unsigned kLine = 64, kPartitions = 1;
  return {type | level << 5, (ways - 1) << 22 | (kPartitions - 1) << 12 | (kLine - 1), sets - 1};
}

cpu::Caches Read(const std::vector<cpu::CacheLeaf>& leaves) {
  return cpu::CachesOf(leaves.data(), static_cast<int>(leaves.size()));
}

TEST(CachesTest, ReadsTheLeavesOfCpuid) {
  // An EPYC of the second generation: 32 KiB twice, 512 KiB, and 16 MiB for each four cores.
  const cpu::Caches caches = Read({Leaf(kData, 1, 8, 64), Leaf(kInstructions, 1, 8, 64),
                                   Leaf(kUnified, 2, 8, 1024), Leaf(kUnified, 3, 16, 16384)});
  EXPECT_EQ(caches.inner, 512 << 10);
  EXPECT_EQ(caches.last, 8 << 20);  // half
}

TEST(CachesTest, LeavesInstructionsOut) {
  const cpu::Caches caches =
      Read({Leaf(kData, 2, 8, 2048), Leaf(kInstructions, 2, 8, 512), Leaf(kUnified, 3, 8, 16384)});
  EXPECT_EQ(caches.inner, 1 << 20);
  EXPECT_EQ(caches.last, 4 << 20);
}

void ExpectTiles(const cpu::NormTiles& got, const cpu::NormTiles& want) {
  EXPECT_EQ(got.ask, want.ask);
  EXPECT_EQ(got.channels, want.channels);
  EXPECT_EQ(got.quarters, want.quarters);
}

// L1 and L2 caches of CPUs that were measured in several ways.
TEST(CachesTest, AsksAsWasFoundToHelp) {
  struct Case {
    unsigned first_ways, second_ways, second_sets;
    cpu::Ask f32, narrow;
    int l1_ahead, l2_ahead;
    cpu::NormTiles normed_f32, normed_narrow;
  };
  using cpu::Ask;
  constexpr cpu::NormTiles kZen5 = {Ask::kIntoL1, 0, 2}, kZen4 = {Ask::kIntoL2, 0, 0},
                           kZen3 = {Ask::kIntoL2, 2048, 2};
  for (const Case& c : {
           Case{8, 8, 2048, Ask::kNot, Ask::kIntoL2, 8, 6, kZen4, kZen4},        // 32 KiB, 1 MiB
           Case{8, 8, 1024, Ask::kIntoL2, Ask::kIntoL2, 8, 6, kZen3, kZen3},     // 32 KiB, 512 KiB
           Case{12, 16, 1024, Ask::kIntoL1, Ask::kIntoL1, 12, 6, kZen5, kZen5},  // 48 KiB, 1 MiB
           Case{12, 16, 2048, Ask::kIntoBoth, Ask::kIntoBoth, 4, 24,             // 48 KiB, 2 MiB
                cpu::NormTiles{Ask::kIntoL2, 2048, 1}, kZen5},
       }) {
    const cpu::Caches caches =
        Read({Leaf(kData, 1, c.first_ways, 64), Leaf(kInstructions, 1, 8, 64),
              Leaf(kUnified, 2, c.second_ways, c.second_sets)});
    SCOPED_TRACE(::testing::Message() << c.first_ways << " ways, " << c.second_sets << " sets");
    EXPECT_EQ(caches.f32, c.f32);
    EXPECT_EQ(caches.narrow, c.narrow);
    EXPECT_EQ(caches.l1_ahead, c.l1_ahead << 10);
    EXPECT_EQ(caches.l2_ahead, c.l2_ahead << 10);
    ExpectTiles(caches.normed_f32, c.normed_f32);
    ExpectTiles(caches.normed_narrow, c.normed_narrow);
  }
  EXPECT_EQ(Read({}).f32, Ask::kIntoL2);
  EXPECT_EQ(Read({}).narrow, Ask::kIntoL2);
  ExpectTiles(Read({}).normed_f32, {Ask::kIntoL2, 0, 2});
}

TEST(CachesTest, TakesUsualSizesForWhatIsNotSaidAndNoMore) {
  const cpu::Caches unknown = Read({});
  EXPECT_EQ(unknown.inner, 512 << 10);
  EXPECT_EQ(unknown.last, 16 << 20);
  // A machine without a third cache, or one that does not show it.
  EXPECT_EQ(Read({Leaf(kData, 1, 8, 64), Leaf(kUnified, 2, 8, 1024)}).last, 16 << 20);
  // A virtual machine that shows 16 MiB and 256 MiB.
  const cpu::Caches large = Read({Leaf(kUnified, 2, 16, 16384), Leaf(kUnified, 3, 16, 262144)});
  EXPECT_EQ(large.inner, 2 << 20);
  EXPECT_EQ(large.last, 16 << 20);
}

#if defined(__linux__) && defined(__x86_64__)

// In bytes; 0: the kernel does not show its caches here, as in some sandboxes.
int64_t SizeByKernel(int level) {
  for (int i = 0; i < 8; ++i) {
    const std::string folder = "/sys/devices/system/cpu/cpu0/cache/index" + std::to_string(i) + "/";
    int of_level = 0;
    int64_t kib = 0;
    std::string type;
    std::ifstream(folder + "level") >> of_level;
    std::ifstream(folder + "type") >> type;
    std::ifstream(folder + "size") >> kib;
    if (of_level == level && type != "Instruction") return kib << 10;
  }
  return 0;
}

TEST(CachesTest, AgreesWithTheKernel) {
  const cpu::Caches caches = cpu::FindCaches();
  const int64_t inner = SizeByKernel(2), last = SizeByKernel(3);
  if (inner == 0 || last == 0) GTEST_SKIP() << "the kernel shows no L2 or no L3 cache here";
  EXPECT_EQ(caches.inner, std::min<int64_t>(inner, 2 << 20));
  EXPECT_EQ(caches.last, std::min<int64_t>(last / 2, 16 << 20));
}

#endif

}  // namespace
}  // namespace rope::testing
