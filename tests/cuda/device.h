// A GPU as its tests see it: memory with canaries around it, and calls on copies there of all that
// they point to in the host's memory. Without a device the tests are skipped with the library's
// reason.
#ifndef LIBROPE_TESTS_CUDA_DEVICE_H_
#define LIBROPE_TESTS_CUDA_DEVICE_H_

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <type_traits>
#include <vector>

#include "support/machine.h"
#include "librope/rope.h"
#include "support/handles.h"
#include "support/heap.h"
#include "support/random.h"

namespace rope::testing {

#define CUDA_OK(call) ASSERT_EQ(call, cudaSuccess)

// Fewer cases under compute-sanitizer, which is slow, and where kernels are walked.
inline int Cases(int full) {
  const char* divide = std::getenv("ROPE_TEST_DIVIDE");
  return divide != nullptr ? std::max(1, full / std::atoi(divide)) : full;
}

// Memory that every byte outside of a call's own was filled with.
inline constexpr int kPoison = 0xa5;

class DeviceBytes {
 public:
  explicit DeviceBytes(size_t size) : size_(size) {
    EXPECT_EQ(cudaMalloc(&data_, size + 1), cudaSuccess);
    EXPECT_EQ(cudaMemset(data_, kPoison, size + 1), cudaSuccess);
  }
  ~DeviceBytes() { cudaFree(data_); }
  DeviceBytes(const DeviceBytes&) = delete;
  DeviceBytes& operator=(const DeviceBytes&) = delete;

  char* data() const { return static_cast<char*>(data_); }
  size_t size() const { return size_; }
  template <class T>
  T* as() const {
    return static_cast<T*>(data_);
  }
  void CopyFrom(const void* host, size_t bytes, size_t at = 0) {
    EXPECT_EQ(cudaMemcpy(data() + at, host, bytes, cudaMemcpyHostToDevice), cudaSuccess);
  }
  template <class T>
  std::vector<T> Read() const {
    std::vector<T> host(size_ / sizeof(T));
    EXPECT_EQ(cudaMemcpy(host.data(), data_, host.size() * sizeof(T), cudaMemcpyDeviceToHost),
              cudaSuccess);
    return host;
  }

 private:
  void* data_ = nullptr;
  size_t size_;
};

// What arguments of a call point to, on the device.
class DeviceCopies {
 public:
  // The same arguments with the addresses of the copies.
  template <class T>
  T* Of(const T* given) {
    if (given == nullptr) return nullptr;
    const auto copy = std::make_shared<T>(*given);
    structs_.push_back(copy);
    ForEachWord(copy.get(), [this](uintptr_t word) { return AddressOnDevice(word); });
    Connect(*given, copy.get());
    ForEachWord(copy.get(), [](uintptr_t word) {
      EXPECT_GT(word - reinterpret_cast<uintptr_t>(&word), size_t{1} << 20) << "on the stack";
      return word;
    });
    return copy.get();
  }

  // From where the copies are of, once more.
  void CopyAgain() {
    for (const auto& [at, copy] : copies_) copy.bytes->CopyFrom(at, copy.size, copy.first);
  }
  // And to there: what a call has written appears. `changed`: it may have.
  void CopyBack(bool changed) {
    for (const auto& [at, copy] : copies_) {
      const std::vector<char> all = copy.bytes->Read<char>();
      const char* const begin = all.data() + copy.first;
      const auto is_canary = [](char c) { return c == static_cast<char>(kPoison); };
      EXPECT_TRUE(std::all_of(all.data(), begin, is_canary)) << "before a block";
      EXPECT_TRUE(std::all_of(begin + copy.size, all.data() + all.size(), is_canary))
          << "behind a block";
      EXPECT_TRUE(changed || std::memcmp(at, begin, copy.size) == 0) << "written by no call";
      std::memcpy(at, begin, copy.size);
    }
  }

 private:
  // Of a block of the heap, at the same place of a line, with canaries around it.
  struct Copy {
    std::unique_ptr<DeviceBytes> bytes;
    size_t first, size;
  };
  static constexpr size_t kLineBytes = 64;

  template <class T, class Replace>
  static void ForEachWord(T* t, Replace replace) {
    static_assert(std::is_trivially_copyable_v<T> && sizeof(T) % sizeof(uintptr_t) == 0);
    uintptr_t words[sizeof(T) / sizeof(uintptr_t)];
    std::memcpy(words, t, sizeof(T));
    for (uintptr_t& word : words) word = replace(word);
    std::memcpy(t, words, sizeof(T));
  }

  // Of what a word of a struct points to in the heap; other words are no addresses.
  uintptr_t AddressOnDevice(uintptr_t word) {
    const Block block = BlockAt(word);
    if (block.data == nullptr) return word;
    const auto address = reinterpret_cast<uintptr_t>(block.data);
    Copy& copy = copies_[block.data];
    if (copy.bytes == nullptr) {
      copy.first = kLineBytes + address % kLineBytes;
      copy.size = block.size;
      copy.bytes = std::make_unique<DeviceBytes>(copy.first + block.size + kLineBytes);
      copy.bytes->CopyFrom(block.data, block.size, copy.first);
    }
    return reinterpret_cast<uintptr_t>(copy.bytes->data() + copy.first) + (word - address);
  }

  // The other structs, which the library reads on the host.
  template <class T>
  void Connect(const T&, T*) {}
  void Connect(const rope_tensor& given, rope_tensor* t) { t->scale = Of(given.scale); }
  void Connect(const rope_norm& given, rope_norm* n) { n->x = Of(given.x); }
  void Connect(const rope_positions& given, rope_positions* p) { p->shard = Of(given.shard); }
  void Connect(const rope_kv_cache& given, rope_kv_cache* c) {
    Connect(given.k, &c->k), Connect(given.v, &c->v);
  }
  void Connect(const rope_fused& given, rope_fused* f) {
    Connect(given.v, &f->v), Connect(given.v_out, &f->v_out);
    Connect(given.rest, &f->rest), Connect(given.rest_out, &f->rest_out);
    f->cache = Of(given.cache), f->source = Of(given.source);
    f->from_positions = Of(given.from_positions);
    f->q_norm = Of(given.q_norm), f->k_norm = Of(given.k_norm), f->v_norm = Of(given.v_norm);
  }
  void Connect(const rope_qk_args& given, rope_qk_args* a) {
    Connect(given.q, &a->q), Connect(given.q_out, &a->q_out);
    Connect(given.k, &a->k), Connect(given.k_out, &a->k_out);
    Connect(given.positions, &a->positions);
    a->cos_sin = Of(given.cos_sin), a->fused = Of(given.fused);
  }

  std::map<char*, Copy> copies_;
  std::vector<std::shared_ptr<void>> structs_;
};

inline rope_config OnDevice(rope_config config) {
  config.device = ROPE_DEVICE_CUDA;
  return config;
}

class Device : public Machine {
 public:
  Context Create(const std::vector<rope_config>& configs) override {
    std::vector<rope_config> here;
    for (const rope_config& config : configs) here.push_back(OnDevice(config));
    return CreateSets(here);
  }

  rope_status Apply(const Context& context, const rope_qk_args& args,
                    const std::vector<MemorySpan>&, Random*) override {
    return Apply(context, args);
  }
  rope_status Apply(const Context& context, const rope_qk_args& args) {
    DeviceCopies copies;
    return Finish(&copies, rope_apply_qk(context.get(), copies.Of(&args)));
  }
  rope_status Fill(const Context& context, int64_t batch, int64_t tokens,
                   const rope_positions& positions, const rope_cos_sin& rows) {
    DeviceCopies copies;
    return Finish(&copies, rope_cos_sin_fill(context.get(), batch, tokens, copies.Of(&positions),
                                             copies.Of(&rows), nullptr));
  }

 private:
  static rope_status Finish(DeviceCopies* copies, rope_status status) {
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    copies->CopyBack(status == ROPE_OK);
    return status;
  }
};

// The tests of a class that has it are skipped without a device.
template <class Base>
class OnDeviceOnly : public Base {
 protected:
  void SetUp() override {
    Base::SetUp();
    const rope_config config = OnDevice(Config(128));
    rope_context* context = nullptr;
    const rope_status s = rope_context_create(&config, &context);
    const Context owned(context);
    if (s == ROPE_ERROR_UNAVAILABLE) GTEST_SKIP() << rope_last_error();
    ASSERT_EQ(s, ROPE_OK) << rope_last_error();
    CUDA_OK(cudaSetDevice(0));
  }
  Device device_;
};

}  // namespace rope::testing

#endif  // LIBROPE_TESTS_CUDA_DEVICE_H_
