// The kernels of calls that pass through shared memory, without a GPU: each step of a block for all
// of its threads, then the next.
#ifndef LIBROPE_TESTS_GPU_STAGED_WALK_H_
#define LIBROPE_TESTS_GPU_STAGED_WALK_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <set>
#include <tuple>
#include <vector>

#include "cpu/kernels.h"
#include "cuda/traits.h"
#include "gpu/kernel.h"
#include "gpu/launch.h"
#include "librope/rope.h"
#include "support/handles.h"
#include "support/machine.h"
#include "support/random.h"
#include "walk.h"
#include "warps.h"

namespace rope::gpu {

// All threads of a warp, step by step.
struct HostWarp {
  uint32_t block_x, block_y, number;
  bool backwards;  // the order of threads

  uint32_t y() const { return number; }
  template <class Step>
  void Each(const Step& step) const {
    for (uint32_t n = 0; n < kStagedLanes; ++n) {
      step(Thread{block_x, block_y, backwards ? kStagedLanes - 1 - n : n, number, 0, kStagedLanes,
                  kStagedWarps, 1});
    }
  }
};

// And of a block: of all warps, or of one that is a fiber beside the others.
struct HostBlock {
  uint32_t block_x, block_y;
  bool backwards;  // the order of threads
  Warps* warps = nullptr;
  uint32_t warp = 0;

  uint32_t x() const { return block_x; }
  uint32_t y() const { return block_y; }
  template <class Step>
  void Each(const Step& step) const {
    EachAlone(step);
    if (warps != nullptr) warps->Wait(warp);
  }
  template <class Step>
  void EachAlone(const Step& step) const {
    EachWarp([&](const HostWarp& own) { own.Each(step); });
  }
  void WaitForPrevious() const {}
  template <class Do>
  void EachWarp(const Do& all) const {
    if (warps != nullptr) return all(HostWarp{block_x, block_y, warp, backwards});
    for (uint32_t n = 0; n < kStagedWarps; ++n) {
      all(HostWarp{block_x, block_y, backwards ? kStagedWarps - 1 - n : n, backwards});
    }
  }
  template <class T>
  struct State {
    std::vector<T> of_threads = std::vector<T>(kStagedThreads);
    T& operator[](const Thread& i) { return of_threads[i.y * kStagedLanes + i.x]; }
  };

  // Adds to kCount values of each thread those of the one `apart` lanes from it, up or down.
  template <int kCount, class ValuesOf>
  void AddAcross(uint32_t apart, const ValuesOf& values_of) const {
    EachWarp([&](const HostWarp& own) {
      float values[kStagedLanes][kCount];
      own.Each([&](const Thread& i) { std::copy_n(values_of(i), kCount, values[i.x]); });
      own.Each([&](const Thread& i) {
        for (int j = 0; j < kCount; ++j) values_of(i)[j] += values[i.x ^ apart][j];
      });
    });
  }
};

// run(block) of all warps.
template <class Run>
void RunBlock(const HostBlock& block, const Run& run) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  run(block);  // they lose sight of fibers
#else
  Warps warps;
  warps.Run([&](uint32_t n) {
    run(HostBlock{block.block_x, block.block_y, block.backwards, &warps, n});
  });
#endif
}

inline std::set<int> walked_staged;  // kernels, by number

// How heads lay that were held: dtype, the vectors of a thread, how many pairs turn, and whether
// their channels are side by side.
inline std::set<std::tuple<rope_dtype, int, int, bool>> walked_heads;
inline void NoteHeads(const StagedLaunch& l) {
  for (int32_t s = 0; s < l.params.side_count; ++s) {
    const StagedSide& side = l.params.sides[s];
    const uint32_t pairs = side.turns ? l.params.source.pairs : 0;
    walked_heads.insert({l.variant.dtype, l.variant.held, static_cast<int>(pairs),
                         pairs != 0 && l.params.reads_interleaved});
  }
}

struct WalkedStaged {
  int launches = 0, gradients = 0;  // gradients: of these, launches of gradient.h
  bool backwards = false;           // the order of blocks and threads, which must not matter
  bool walk = true;
  std::vector<StagedLaunch> kept;
};

// All threads of a block.
void WalkStagedBlock(const StagedLaunch& l, const HostBlock& block);

// What a grid and its blocks may have.
inline void ExpectLimits(const Shape& shape, uint32_t shared_bytes) {
  EXPECT_EQ(shape.x * shape.y * shape.z, kStagedThreads);
  EXPECT_LE(shape.grid_y, 65535u);
  EXPECT_LE(shape.grid_x, static_cast<uint32_t>(INT32_MAX));
  EXPECT_LE(shared_bytes, 48u << 10);
}

// walk(block) for all blocks of a grid.
template <class Walk>
void WalkBlocks(const Shape& shape, bool backwards, const Walk& walk) {
  const uint32_t blocks = shape.grid_x * shape.grid_y;
  for (uint32_t n = 0; n < blocks; ++n) {
    const uint32_t own = backwards ? blocks - 1 - n : n;
    walk(HostBlock{own % shape.grid_x, own / shape.grid_x, backwards});
  }
}

// A StagedLaunchFn; `data` is a WalkedStaged.
inline rope_status WalkStaged(const StagedLaunch& l, void* data) {
  auto* const w = static_cast<WalkedStaged*>(data);
  ++w->launches;
  walked_staged.insert(StagedIndexOf(l.variant));
  if (l.variant.held != 0) NoteHeads(l);
  ExpectLimits(l.shape, l.shared_bytes);
  if (!w->walk) {
    w->kept.push_back(l);
    return ROPE_OK;
  }
  WalkBlocks(l.shape, w->backwards, [&](const HostBlock& block) { WalkStagedBlock(l, block); });
  return ROPE_OK;
}

// Of calls that go through these kernels alone.
inline constexpr LaunchFns kStagedWalks = {nullptr, nullptr, &WalkStaged, nullptr};

// Calls of contexts as CUDA has them, beside those of the CPU.
inline constexpr Backend kStagedDevice = cuda::MakeBackend(nullptr, nullptr, nullptr);

struct Planned {
  Plan plan;
  Shapes shapes;
  FusedPlan fused;
  FusedShapes fused_shapes;

  rope_status Make(const rope::testing::Context& device, const rope_qk_args& args) {
    constexpr Names kNames = {"", "", "q", "k", "q_out", "k_out", ".data", {}};
    return MakePlan("test", kNames, device.get(), &args, DataOf::kCall, &plan, &shapes, &fused,
                    &fused_shapes);
  }
};

using rope::testing::MemorySpan;
using rope::testing::SpanOf;

// Walks a call of `device` on memory that holds all of its tensors.
inline rope_status WalkCall(const rope::testing::Context& device, const rope_qk_args& args,
                            const std::vector<MemorySpan>& memory, rope::testing::Random* r,
                            WalkedStaged* walked, const LaunchFns& walks = kStagedWalks) {
  Planned planned;
  if (rope_status s = planned.Make(device, args)) return s;
  *arena = Arena{};
  std::vector<std::vector<uint8_t>> writes;
  for (const MemorySpan& span : memory) writes.emplace_back(span.size);
  for (size_t n = 0; n < memory.size(); ++n) {
    arena->ranges.push_back({memory[n].data, memory[n].data + memory[n].size,
                             memory[n].is_read ? nullptr : &writes[n]});
  }
  walked->backwards = r->Sometimes(2);
  const rope_status s = ForEachLaunchOfCall(planned.plan, r->Of({1, 4, 132}), walks, walked);
  EXPECT_FALSE(arena->failed) << "outside of memory, or written twice";
  EXPECT_TRUE(s == ROPE_OK || (walked->launches == 0 && arena->bytes_written == 0));
  return s;
}

// The walked grid.
class Walker : public rope::testing::Machine {
 public:
  explicit Walker(const LaunchFns& walks = kStagedWalks) : walks_(walks) {}

  rope::testing::Context Create(const std::vector<rope_config>& configs) override {
    rope::testing::Context context = rope::testing::CreateSets(configs);
    context->backend = &kStagedDevice;
    return context;
  }
  rope_status Apply(const rope::testing::Context& context, const rope_qk_args& args,
                    const std::vector<MemorySpan>& memory, rope::testing::Random* random) override {
    WalkedStaged walked;
    const rope_status s = WalkCall(context, args, memory, random, &walked, walks_);
    launches = walked.launches;
    gradients = walked.gradients;
    return s;
  }

 private:
  const LaunchFns& walks_;
};

class StagedGrid : public ::testing::Test {
 protected:
  void SetUp() override {
    const rope::cpu::Kernels* kernels = nullptr;
    ASSERT_EQ(rope::cpu::ChooseKernels("StagedGrid", &kernels), ROPE_OK) << rope_last_error();
    if (!kernels->fused) GTEST_SKIP() << "this CPU has no fused multiply-add";
    arena = &arena_;
  }
  Arena arena_;
};

}  // namespace rope::gpu

#endif  // LIBROPE_TESTS_GPU_STAGED_WALK_H_
