// The calls of a layer that do more than rotate, in bf16 with 32 + 8 heads of 128: QK norm, keys
// and values to pages in 16 and in 8 bits, keys that move in their pages, and the gradients of QK
// norm. Beside each the same in two calls: a norm or an append by a NOPE context, and the rotation.
#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "cuda_rows.h"
#include "cuda_timer.h"
#include "handles.h"
#include "librope/rope.h"

namespace bench {
namespace {

constexpr int kDim = 128, kQHeads = 32, kKHeads = 8;
constexpr int64_t kQBytes = kQHeads * kDim * 2, kKBytes = kKHeads * kDim * 2;  // of a token
constexpr int kMostParts = 264;  // of the gradients of weights: two for each multiprocessor

const char* NameOf(rope_dtype dtype) {
  return dtype == ROPE_DTYPE_BF16 ? "bf16" : dtype == ROPE_DTYPE_I8 ? "i8" : "e4m3";
}

// A call with all that it points to. Of the buffers: in has q, k and v of all tokens, or those and
// what was normed; out has a cache of keys, one of values, and their scales.
class Fused {
 public:
  Fused(Timer* timer, int64_t tokens, int64_t at) : timer_(timer), tokens_(tokens), at_(at) {
    args_.batch = 1;
    args_.tokens = tokens;
    args_.stream = timer->stream();
    args_.positions.kind = ROPE_POSITIONS_SEQ_OFFSETS;
    args_.fused = &fused_;
  }
  Fused(const Fused&) = delete;
  Fused& operator=(const Fused&) = delete;

  void TakeQ() { args_.q = Heads(In(0), ROPE_DTYPE_BF16, kQHeads); }
  void TakeK() { args_.k = Heads(In(kQBytes), ROPE_DTYPE_BF16, kKHeads); }
  void Norm(const void* weight) {
    for (rope_norm* norm : {&q_norm_, &k_norm_}) {
      norm->kind = ROPE_NORM_KIND_RMS;
      norm->eps = 1e-6;
      norm->weight = weight;
      norm->weight_dtype = ROPE_DTYPE_BF16;
    }
    fused_.q_norm = &q_norm_;
    fused_.k_norm = &k_norm_;
  }
  void At(const int64_t* offset) { args_.positions.offsets_i64 = offset; }

  // k and v to pages, or k of `source` alone.
  void Store(rope_dtype dtype, const int64_t* slots) {
    if (fused_.source == nullptr) {
      fused_.v = Heads(In(kQBytes + kKBytes), ROPE_DTYPE_BF16, kKHeads);
      fused_.v.head_dim = kDim;
    }
    Describe(dtype, slots, &cache_);
    fused_.cache = &cache_;
  }
  // k from pages, which turns by `distances`.
  void Shift(rope_dtype dtype, const int64_t* slots, const int64_t* distances) {
    Describe(dtype, slots, &source_);
    source_.v = rope_tensor{};
    fused_.source = &source_;
    args_.operation = ROPE_OPERATION_SHIFT;
    args_.positions = rope_positions{};
    args_.positions.kind = ROPE_POSITIONS_IDS_T;
    args_.positions.ids_i64 = distances;
  }
  void KeysBeside() { args_.k_out = Heads(In(kQBytes), ROPE_DTYPE_BF16, kKHeads); }
  void KeysAlone() { fused_.v = cache_.v = rope_tensor{}; }

  void Backward() { args_.operation = ROPE_OPERATION_BACKWARD; }
  // Gradients into `out`, or in place there.
  void Beside() {
    args_.q_out = Heads(Out(0), ROPE_DTYPE_BF16, kQHeads);
    args_.k_out = Heads(Out(kQBytes), ROPE_DTYPE_BF16, kKHeads);
  }
  void InPlaceThere() {
    Beside();
    args_.q = std::exchange(args_.q_out, rope_tensor{});
    args_.k = std::exchange(args_.k_out, rope_tensor{});
  }
  void Weights(float* gradients) {
    q_x_ = Heads(In(kQBytes + kKBytes), ROPE_DTYPE_BF16, kQHeads);
    k_x_ = Heads(In(2 * kQBytes + kKBytes), ROPE_DTYPE_BF16, kKHeads);
    q_norm_.x = &q_x_, k_norm_.x = &k_x_;
    q_norm_.weight_grad = gradients;
    k_norm_.weight_grad = gradients + kMostParts * kDim;
    q_norm_.grad_parts = k_norm_.grad_parts =
        static_cast<int32_t>(std::min<int64_t>(kMostParts, tokens_));
  }

  void Run(const Context& context) const { Check(rope_apply_qk(context.get(), &args_)); }

 private:
  // Behind so many bytes of each token.
  char* In(int64_t bytes) const { return timer_->in() + at_ + tokens_ * bytes; }
  char* Out(int64_t bytes) const { return timer_->out() + at_ + tokens_ * bytes; }

  void Describe(rope_dtype dtype, const int64_t* slots, rope_kv_cache* cache) {
    const int64_t count = Pages(tokens_) * kPageSize;
    const int64_t size = count * kKBytes / (dtype == ROPE_DTYPE_BF16 ? 1 : 2);
    char* const data = timer_->out() + at_;
    cache->kind = ROPE_SLOTS_MAPPED;
    cache->pages = Pages(tokens_);
    cache->page_size = kPageSize;
    cache->slots_i64 = slots;
    cache->slots_length = tokens_;
    cache->k = Heads(data, dtype, kKHeads, ROPE_LAYOUT_NHD);
    cache->v = Heads(data + size, dtype, kKHeads, ROPE_LAYOUT_NHD);
    cache->k.head_dim = cache->v.head_dim = kDim;
    if (dtype == ROPE_DTYPE_BF16) return;
    for (rope_scale* scale : {&k_scale_, &v_scale_}) {
      scale->computed = 1;
      scale->dtype = ROPE_DTYPE_F32;
      scale->data = data + 2 * size + (scale == &v_scale_ ? count * kKHeads * 4 : 0);
      scale->stride_head = 1;
      scale->stride_token = kKHeads;
      scale->stride_batch = kPageSize * kKHeads;
    }
    cache->k.scale = &k_scale_;
    cache->v.scale = &v_scale_;
  }

  Timer* const timer_;
  const int64_t tokens_, at_;
  rope_norm q_norm_ = ROPE_INIT(rope_norm), k_norm_ = ROPE_INIT(rope_norm);
  rope_scale k_scale_ = ROPE_INIT(rope_scale), v_scale_ = ROPE_INIT(rope_scale);
  rope_tensor q_x_{}, k_x_{};
  rope_kv_cache cache_ = ROPE_INIT(rope_kv_cache), source_ = ROPE_INIT(rope_kv_cache);
  rope_fused fused_ = ROPE_INIT(rope_fused);
  rope_qk_args args_ = ROPE_INIT(rope_qk_args);
};

class Layers {
 public:
  explicit Layers(Timer* timer) : timer_(timer) {}

  void Measure(int64_t full) {
    const int64_t tokens = Divided(full);
    tokens_ = tokens;
    in_graph_ = full <= 256;
    const std::vector<int64_t> slots = ShuffledSlots(tokens);
    Check(cudaMemcpy(slots_, slots.data(), slots.size() * sizeof(int64_t), cudaMemcpyHostToDevice));
    Norms();
    Append(ROPE_DTYPE_BF16, true);
    for (const rope_dtype dtype : {ROPE_DTYPE_F8_E4M3, ROPE_DTYPE_I8}) Append(dtype, false);
    Append(ROPE_DTYPE_F8_E4M3, true);
    for (const rope_dtype dtype : {ROPE_DTYPE_BF16, ROPE_DTYPE_F8_E4M3}) Move(dtype);
    Gradients();
  }

 private:
  // make(call) describes a call from its place on.
  template <class Make>
  Timer::Call CallOf(const Context& context, Make make) {
    return [this, &context, make](int64_t at) {
      Fused call(timer_, tokens_, at);
      call.At(offset_);
      make(&call);
      call.Run(context);
    };
  }
  static Timer::Call Then(Timer::Call first, Timer::Call second) {
    return [first, second](int64_t at) { first(at), second(at); };
  }
  void Row(const char* kind, const std::string& dtype, int64_t read, int64_t written,
           const Timer::Call& call, const Timer::Call& separate) {
    // Bytes of a token: at most q, k and what was normed of them. A page may be a part of one.
    const int64_t room = std::max(tokens_ * 2 * (kQBytes + kKBytes),
                                  Pages(tokens_) * kPageSize * 2 * (kKBytes + 4 * kKHeads));
    bench::Measure(timer_, {kind,
                            {"32+8x128", tokens_, kQHeads, kKHeads, kDim},
                            dtype,
                            "halves",
                            "in",
                            tokens_ * read,
                            tokens_ * written,
                            room,
                            in_graph_,
                            call,
                            separate});
  }

  void Norms() {
    const auto rotate = [](Fused* c) { c->TakeQ(), c->TakeK(); };
    const auto norm = [this, rotate](Fused* c) { rotate(c), c->Norm(weights_); };
    Row("qknorm", "bf16", kQBytes + kKBytes, kQBytes + kKBytes, CallOf(rope_, norm),
        Then(CallOf(nope_, norm), CallOf(rope_, rotate)));
  }

  // q in place, k and v to pages. With norms: as a layer does; the norms are the other call.
  void Append(rope_dtype dtype, bool norms) {
    const bool coded = dtype != ROPE_DTYPE_BF16;
    const auto rotate = [](Fused* c) { c->TakeQ(), c->TakeK(); };
    const auto norm = [this, rotate](Fused* c) { rotate(c), c->Norm(weights_); };
    const auto store = [this, dtype](Fused* c) { c->TakeK(), c->Store(dtype, slots_); };
    const auto append = [store](Fused* c) { c->TakeQ(), store(c); };
    const auto both = [this, append](Fused* c) { append(c), c->Norm(weights_); };
    const int64_t written = kQBytes + (coded ? kKBytes + 2 * 4 * kKHeads : 2 * kKBytes);
    Row(norms ? "layer" : "append", coded ? std::string("bf16>") + NameOf(dtype) : "bf16",
        kQBytes + 2 * kKBytes, written, norms ? CallOf(rope_, both) : CallOf(rope_, append),
        norms ? Then(CallOf(nope_, norm), CallOf(rope_, append))
              : Then(CallOf(rope_, rotate), CallOf(nope_, store)));
  }

  // Keys that turn in their slots; else they are turned into a tensor, and stored again.
  void Move(rope_dtype dtype) {
    const int64_t bytes = dtype == ROPE_DTYPE_BF16 ? kKBytes : kKBytes / 2 + 4 * kKHeads;
    const auto shift = [this, dtype](Fused* c) { c->Shift(dtype, slots_, distances_); };
    const auto move = [this, dtype, shift](Fused* c) {
      shift(c), c->Store(dtype, slots_), c->KeysAlone();
    };
    const auto load = [shift](Fused* c) { shift(c), c->KeysBeside(); };
    const auto store = [this, dtype](Fused* c) {
      c->TakeK(), c->Store(dtype, slots_), c->KeysAlone();
    };
    Row("move", NameOf(dtype), bytes, bytes, CallOf(rope_, move),
        Then(CallOf(rope_, load), CallOf(nope_, store)));
  }

  void Gradients() {
    const auto turn = [](Fused* c) { c->TakeQ(), c->TakeK(), c->Backward(), c->Beside(); };
    const auto with_norm = [this](Fused* c) { c->Norm(weights_), c->Weights(gradients_); };
    const auto both = [turn, with_norm](Fused* c) { turn(c), with_norm(c); };
    const auto norm = [with_norm](Fused* c) { c->Backward(), c->InPlaceThere(), with_norm(c); };
    Row("gradient", "bf16", 2 * (kQBytes + kKBytes), kQBytes + kKBytes, CallOf(rope_, both),
        Then(CallOf(rope_, turn), CallOf(nope_, norm)));
  }

  Timer* const timer_;
  const Context rope_ = CreateOnDevice(kDim, ROPE_PAIRING_HALVES),
                nope_ = CreateOnDevice(kDim, ROPE_PAIRING_HALVES, ROPE_SCALING_NOPE);
  int64_t* const offset_ = ToDevice({0});
  int64_t* const slots_ = ToDevice(std::vector<int64_t>(kMostTokens));
  int64_t* const distances_ = ToDevice(std::vector<int64_t>(kMostTokens, 64));
  const void* const weights_ =
      ToDevice(std::vector<int64_t>(kDim / 4, 0x3f803f803f803f80));  // ones of bf16
  float* const gradients_ =
      reinterpret_cast<float*>(ToDevice(std::vector<int64_t>(kMostParts * kDim)));
  int64_t tokens_ = 0;
  bool in_graph_ = false;
};

}  // namespace

void MeasureFused(Timer* timer) {
  Layers layers(timer);
  for (const int64_t tokens : {1, 32, 256, 1024, 8192, 32768}) layers.Measure(tokens);
}

}  // namespace bench
