// Calls with norms, 8-bit caches, moves and gradients in CUDA graphs: replays see what arrays on
// the device hold then, outlive the context, and have the CPU's bytes.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <initializer_list>
#include <utility>
#include <vector>

#include "device.h"
#include "librope/rope.h"
#include "support/elements.h"
#include "support/handles.h"
#include "support/random.h"

namespace rope::testing {
namespace {

using CudaGraphs = OnDeviceOnly<::testing::Test>;

constexpr int kDim = 128, kQHeads = 16, kHeads = 4, kPages = 4, kPageSize = 8, kParts = 3;

std::vector<uint16_t> Numbers(size_t count, Random* r) {
  std::vector<uint16_t> values(count);
  for (uint16_t& value : values) WriteElement(ROPE_DTYPE_BF16, &value, r->Pick(-900, 900) / 256.0);
  return values;
}

// A call with all that it points to; two of them are alike.
struct Step {
  Random r{5};
  std::vector<int64_t> place = {0}, slot = {0}, from_slot = {0};
  std::vector<uint16_t> q = Numbers(kQHeads * kDim, &r), k = Numbers(kHeads * kDim, &r),
                        v = Numbers(kHeads * kDim, &r), x = Numbers(kQHeads * kDim, &r);
  std::vector<float> weights = std::vector<float>(kDim, 0.75f),
                     weight_grad = std::vector<float>(kParts * kDim);
  std::vector<char> cache = std::vector<char>(2 * kPages * kPageSize * kHeads * kDim, 0x31);
  std::vector<float> scales = std::vector<float>(2 * kPages * kPageSize * kHeads, 0.5f);
  rope_norm norm = ROPE_INIT(rope_norm);
  rope_scale k_scale = ROPE_INIT(rope_scale), v_scale = ROPE_INIT(rope_scale);
  rope_kv_cache kv = ROPE_INIT(rope_kv_cache), source = ROPE_INIT(rope_kv_cache);
  rope_fused fused = ROPE_INIT(rope_fused);
  rope_tensor of_x = Tensor(x.data(), ROPE_DTYPE_BF16, kQHeads);
  rope_qk_args args = Args(1, 1);

  Step() {
    norm.kind = ROPE_NORM_KIND_RMS;
    norm.eps = 1e-6;
    norm.weight = weights.data();
    norm.weight_dtype = ROPE_DTYPE_F32;
    args.positions.kind = ROPE_POSITIONS_SEQ_OFFSETS;
    args.positions.offsets_i64 = place.data();
    args.fused = &fused;
  }
  Step(const Step&) = delete;

  // QK norm, and keys and values in e4m3 with computed scales.
  void Append() {
    args.q = Tensor(q.data(), ROPE_DTYPE_BF16, kQHeads);
    args.k = Tensor(k.data(), ROPE_DTYPE_BF16, kHeads);
    fused.v = Tensor(v.data(), ROPE_DTYPE_BF16, kHeads);
    fused.v.head_dim = kDim;
    fused.q_norm = fused.k_norm = &norm;
    DescribeCache(&kv, &slot);
    fused.cache = &kv;
  }

  // Keys and values that stay where they are, or go to other slots of the same cache.
  void Move() {
    args.operation = ROPE_OPERATION_SHIFT;
    args.positions = Ids(ROPE_POSITIONS_IDS_T, place.data());
    DescribeCache(&kv, &slot), DescribeCache(&source, &from_slot);
    fused.cache = &kv;
    fused.source = &source;
  }

  // Of QK norm, with those of the weights.
  void Gradients() {
    args.operation = ROPE_OPERATION_BACKWARD;
    args.q = Tensor(q.data(), ROPE_DTYPE_BF16, kQHeads);
    fused.q_norm = &norm;
    norm.x = &of_x;
    norm.weight_grad = weight_grad.data();
    norm.grad_parts = kParts;
  }

  void ExpectSame(const Step& other, int64_t step) const {
    EXPECT_EQ(q, other.q) << step;
    EXPECT_EQ(cache, other.cache) << step;
    EXPECT_EQ(scales, other.scales) << step;
    EXPECT_EQ(weight_grad, other.weight_grad) << step;
  }

 private:
  void DescribeCache(rope_kv_cache* c, std::vector<int64_t>* slots) {
    c->kind = ROPE_SLOTS_MAPPED;
    c->pages = kPages;
    c->page_size = kPageSize;
    c->slots_i64 = slots->data();
    c->slots_length = 1;
    c->k = Tensor(cache.data(), ROPE_DTYPE_F8_E4M3, kHeads, ROPE_LAYOUT_NHD);
    c->v = Tensor(cache.data() + cache.size() / 2, ROPE_DTYPE_F8_E4M3, kHeads, ROPE_LAYOUT_HND);
    c->v.head_dim = kDim;
    c->k.scale = &k_scale, c->v.scale = &v_scale;
    for (rope_scale* s : {&k_scale, &v_scale}) {
      s->computed = 1;
      s->dtype = ROPE_DTYPE_F32;
      s->data = scales.data() + (s == &v_scale ? scales.size() / 2 : 0);
      s->stride_head = 1;
      s->stride_token = kHeads;
      s->stride_batch = kPageSize * kHeads;
    }
  }
};

// A captured call, the first of its context, which is gone when it is replayed.
class Captured {
 public:
  Captured(Context context, const rope_qk_args& given) {
    EXPECT_EQ(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), cudaSuccess);
    rope_qk_args* const args = copies_.Of(&given);
    args->stream = stream_;
    EXPECT_EQ(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeGlobal), cudaSuccess);
    status_ = rope_apply_qk(context.get(), args);
    EXPECT_EQ(cudaStreamEndCapture(stream_, &graph_), cudaSuccess);
    EXPECT_EQ(cudaGraphGetNodes(graph_, nullptr, &nodes_), cudaSuccess);
    EXPECT_EQ(cudaGraphInstantiate(&exec_, graph_, 0), cudaSuccess);
  }
  ~Captured() {
    cudaGraphExecDestroy(exec_);
    cudaGraphDestroy(graph_);
    cudaStreamDestroy(stream_);
  }
  Captured(const Captured&) = delete;
  Captured& operator=(const Captured&) = delete;

  // On what the memory of the call holds now.
  void Replay() {
    copies_.CopyAgain();
    EXPECT_EQ(cudaGraphLaunch(exec_, stream_), cudaSuccess);
    EXPECT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
    copies_.CopyBack(true);
  }
  rope_status status() const { return status_; }
  size_t nodes() const { return nodes_; }

 private:
  DeviceCopies copies_;
  cudaStream_t stream_ = nullptr;
  cudaGraph_t graph_ = nullptr;
  cudaGraphExec_t exec_ = nullptr;
  rope_status status_ = ROPE_ERROR_INTERNAL;
  size_t nodes_ = 0;
};

// Replays of a call, which is one kernel, have the CPU's bytes at each moment: set(step, moment).
template <class Moment, class Set>
void ExpectReplays(Context on_device, void (Step::*describe)(),
                   std::initializer_list<Moment> moments, const Set& set) {
  const Context cpu = Create(Config(kDim));
  Step there, here;
  (there.*describe)(), (here.*describe)();
  Captured captured(std::move(on_device), there.args);
  ASSERT_OK(captured.status());
  EXPECT_EQ(captured.nodes(), 1u);
  int64_t moment = 0;
  for (const Moment& m : moments) {
    set(&there, m), set(&here, m);
    ASSERT_OK(rope_apply_qk(cpu.get(), &here.args));
    captured.Replay();
    there.ExpectSame(here, moment++);
  }
}

TEST_F(CudaGraphs, NormedAppendsInEightBitsGoToTheSlotsOfTheMoment) {
  ExpectReplays(device_.Create({Config(kDim)}), &Step::Append, {3, 17, -1, 30},
                [](Step* s, int slot) { s->place[0] = 1000 + slot, s->slot[0] = slot; });
}

TEST_F(CudaGraphs, MovesInEightBitsGoToTheSlotsOfTheMoment) {
  struct Moved {
    int64_t from, to, distance;
  };
  ExpectReplays(device_.Create({Config(kDim)}), &Step::Move,
                {Moved{3, 3, 5}, {3, 20, -70}, {20, 7, 0}, {-1, 4, 1}, {4, -1, 1}},
                [](Step* s, const Moved& m) {
                  s->place[0] = m.distance, s->slot[0] = m.to, s->from_slot[0] = m.from;
                });
}

TEST_F(CudaGraphs, ReplaysOverwriteTheGradientsOfWeights) {
  ExpectReplays(device_.Create({Config(kDim)}), &Step::Gradients, {0, 9, 5000},
                [](Step* s, int position) { s->place[0] = position; });
}

// Two places of k, and more pairs than a launch has: several nodes, or none.
TEST_F(CudaGraphs, CallsOfSeveralLaunchesAreWholeOrNotThere) {
  rope_config config = Config(kDim);
  config.angle = ROPE_ANGLE_EXACT;
  const Context cpu = Create(config);
  Step on_cpu, on_device;
  for (Step* s : {&on_cpu, &on_device}) {
    s->Append();
    s->args.k_out = Tensor(s->x.data(), ROPE_DTYPE_F16, kHeads);  // of another dtype
  }
  Captured captured(device_.Create({config}), on_device.args);
  ASSERT_OK(captured.status());
  EXPECT_GE(captured.nodes(), 1u);
  ASSERT_OK(rope_apply_qk(cpu.get(), &on_cpu.args));
  captured.Replay();
  on_device.ExpectSame(on_cpu, 0);
  EXPECT_EQ(on_device.x, on_cpu.x);

  config = Config(512);
  config.angle = ROPE_ANGLE_EXACT;
  Step wide;
  wide.args.q = Tensor(wide.q.data(), ROPE_DTYPE_BF16, kQHeads * kDim / 512);
  wide.norm.kind = ROPE_NORM_KIND_RMS_PLAIN;
  wide.norm.weight = nullptr;
  wide.norm.weight_dtype = 0;
  wide.fused.q_norm = &wide.norm;
  const Captured refused(device_.Create({config}), wide.args);
  EXPECT_EQ(refused.status(), ROPE_ERROR_UNSUPPORTED);
  EXPECT_EQ(refused.nodes(), 0u);
}

}  // namespace
}  // namespace rope::testing
