// A random valid call of rope_apply_qk or rope_cos_sin_fill: its configuration, positions or rows,
// tensors, and the memory of all of them. Everything follows from one seed, and nothing but the C
// API is used. What the call must do is for others to say: check_call.h computes it, and the tests
// of CUDA ask the CPU.
#ifndef LIBROPE_TESTS_SUPPORT_RANDOM_CALL_H_
#define LIBROPE_TESTS_SUPPORT_RANDOM_CALL_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "librope/rope.h"
#include "support/handles.h"
#include "support/random.h"

namespace rope::testing {

class RandomCall {
 public:
  enum Range {
    kEverything,
    // What check_call.h can compute: rows that follow from positions of up to 2^37, frequencies
    // without a ramp, one rounding, and finite elements of ordinary size.
    kComputable
  };

  // q or k, and where they and their outputs lie.
  struct CallTensor {
    const char* name;
    rope_tensor *in, *out;
    size_t in_buffer = 0, out_buffer = 0;
    bool present = false, in_place = true;
    bool is_slice = false;  // the input or the output is the rotated span alone
  };
  struct Buffer {
    rope_dtype dtype;  // 0: positions
    std::vector<char> bytes;
  };

  // Draws the configurations. MakeApply or MakeFill draws the rest.
  RandomCall(uint64_t seed, Range range);
  RandomCall(const RandomCall&) = delete;
  RandomCall& operator=(const RandomCall&) = delete;

  rope_config ConfigOf(int set) const;
  Context CreateContext(rope_device device = TestDevice()) const;

  void MakeApply();  // `args`, with `rows` if it uses any
  void MakeFill();   // batch, tokens and positions of `args`, and `rows`

  // All memory, so that two calls can begin with the same.
  std::vector<Buffer> Snapshot() const { return buffers; }
  void Restore(const std::vector<Buffer>& all);

  int64_t WidthOf(const rope_tensor& t) const { return t.head_dim ? t.head_dim : config_.head_dim; }
  int pairs() const { return config_.rotary_dim / 2; }
  const rope_config& config() const { return config_; }  // of the first set
  int sets() const { return sets_; }
  std::string Describe() const;

  bool single_tokens = false;  // rows of one token each, in MakeApply: as engines decode
  rope_qk_args args = ROPE_INIT(rope_qk_args);
  rope_cos_sin rows = ROPE_INIT(rope_cos_sin);
  CallTensor tensors[2] = {{"q", &args.q, &args.q_out}, {"k", &args.k, &args.k_out}};
  std::vector<Buffer> buffers;
  Random random;

 private:
  void MakeConfig();
  void MakeFrequencies();
  void MakeSums();
  void MakeAxes();
  int64_t Position();
  void MakePositions();
  void MakeShard();
  void MakeRows(bool written);
  void MakeTensor(rope_tensor* t, bool only_read);
  int32_t OneOf(const std::vector<int32_t>& numbers);
  std::vector<char>& NewBuffer(rope_dtype dtype, size_t bytes);
  template <class T>
  const T* Keep(const std::vector<T>& values);

  Range range_;
  // Sizes and distances are multiples of it: 8, so that vectors are aligned, as those of models; 2
  // or 1.
  int grain_;
  rope_config config_ = ROPE_INIT(rope_config);
  int sets_ = 1;
  std::vector<std::vector<double>> inv_freq_;   // of each set
  std::vector<std::vector<double>> frequency_;  // likewise
  std::vector<uint8_t> pair_axis_;
  rope_shard shard_{};
};

}  // namespace rope::testing

#endif  // LIBROPE_TESTS_SUPPORT_RANDOM_CALL_H_
