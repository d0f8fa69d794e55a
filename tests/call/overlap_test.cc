// Brute force: random small tensors, of which every touched byte is listed. No accepted call lets
// outputs overlap what the call touches elsewhere, and a refused call writes nothing.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <iterator>
#include <random>
#include <sstream>
#include <vector>

#include "support/elements.h"
#include "support/errors.h"
#include "support/handles.h"
#include "support/reference.h"

namespace rope::testing {
namespace {

// Elements of two and four bytes, q and k of different dtypes, heads that are whole or the rotated
// span alone. What one call touches is counted in bytes.
class RandomTensors {
 public:
  static constexpr int kBytes = 2048;

  struct Head {
    int dim, rotary_dim, rotary_offset;
  };
  static constexpr Head kHeads[] = {{2, 2, 0}, {4, 2, 0}, {4, 2, 2}, {6, 4, 2}};

  Context MakeContext() const {
    rope_config config = Config(head_.dim, ROPE_PAIRING_HALVES, 10);
    config.rotary_dim = head_.rotary_dim;
    config.rotary_offset = head_.rotary_offset;
    return Create(config);
  }

  explicit RandomTensors(int head) : head_(kHeads[head]), random_(11 + head) {}

  rope_qk_args Next() {
    rope_qk_args args = Args(From(1, 3), From(1, 3));
    args.positions = Offset(1);
    args.q = Random(From(1, 3), From(1, 3));
    if (From(0, 1)) {
      args.k = Random(From(1, 3), From(1, 3));
      if (From(0, 1)) {  // as in one packed buffer
        args.k = args.q;
        args.k.heads = From(1, 3);
        args.k.data = AnyOf(args.k.dtype);
      }
    }
    if (From(0, 1)) args.q_out = Output(args.q);
    if (args.k.data != nullptr && From(0, 2) == 0) args.k_out = Output(args.k);
    return args;
  }

  // How often each byte belongs to a tensor, and the bytes in the order of the elements.
  struct Touched {
    Touched(const RandomTensors& shapes, const rope_qk_args& args, const rope_tensor& t) {
      if (t.data == nullptr) return;
      const int64_t base = static_cast<const char*>(t.data) - shapes.memory;
      const int64_t width = t.head_dim != 0 ? t.head_dim : shapes.head_.dim, size = SizeOf(t.dtype);
      for (int64_t b = 0; b < args.batch; ++b) {
        for (int64_t s = 0; s < args.tokens; ++s) {
          for (int h = 0; h < t.heads; ++h) {
            const int64_t head = HeadOffset(t, args.batch, args.tokens, width, b, s, h);
            for (int64_t i = 0; i < width * size; ++i) {
              const int64_t at = base + head * size + i;
              repeats |= count[at]++ > 0;
              order.push_back(at);
            }
          }
        }
      }
    }
    bool Meets(const Touched& other) const {
      for (int64_t at : order) {
        if (other.count[at]) return true;
      }
      return false;
    }
    unsigned char count[kBytes] = {};
    bool repeats = false;
    std::vector<int64_t> order;
  };

  std::string Describe(const rope_qk_args& args) const {
    std::ostringstream text;
    text << "batch " << args.batch << " tokens " << args.tokens;
    for (const rope_tensor* t : {&args.q, &args.k, &args.q_out, &args.k_out}) {
      if (t->data == nullptr) continue;
      text << "\n  at byte " << static_cast<const char*>(t->data) - memory << " dtype " << t->dtype
           << " heads " << t->heads << " of " << t->head_dim << " layout " << t->layout
           << " strides " << t->stride_batch << " " << t->stride_token << " " << t->stride_head;
    }
    return text.str();
  }

  alignas(4) char memory[kBytes];

 private:
  int From(int a, int b) { return std::uniform_int_distribution<int>(a, b)(random_); }
  void* AnyOf(rope_dtype dtype) { return memory + From(0, 40) * SizeOf(dtype); }

  rope_tensor Random(rope_dtype dtype, int heads) {
    rope_tensor t = Tensor(AnyOf(dtype), dtype, heads, From(1, 3));
    if (From(0, 2) == 0) t.head_dim = head_.rotary_dim;
    if (From(0, 1)) {
      t.layout = ROPE_LAYOUT_STRIDED;
      t.stride_head = From(0, 12);
      t.stride_token = From(0, 24);
      t.stride_batch = From(0, 48);
    }
    return t;
  }

  rope_tensor Output(const rope_tensor& in) {
    if (From(0, 1)) return Random(in.dtype, in.heads);
    rope_tensor out = in;
    if (From(0, 1)) out.data = AnyOf(in.dtype);
    if (From(0, 2) == 0) out.head_dim = From(0, 1) ? head_.rotary_dim : 0;
    return out;
  }

  Head head_;
  std::mt19937 random_;
};

bool IsHarmful(const RandomTensors& shapes, const rope_qk_args& args) {
  using Touched = RandomTensors::Touched;
  const Touched q(shapes, args, args.q), k(shapes, args, args.k);
  const Touched q_out(shapes, args, args.q_out.data ? args.q_out : args.q);
  const Touched k_out(shapes, args, args.k_out.data ? args.k_out : args.k);
  const auto alone = [](const Touched& in, const Touched& out) {
    return out.repeats || (in.order != out.order && in.Meets(out));
  };
  return alone(q, q_out) || alone(k, k_out) || q_out.Meets(k_out) || q_out.Meets(k) ||
         k_out.Meets(q);
}

TEST(Overlap, NoAcceptedCallOverlapsByAByte) {
  constexpr char kBefore = 0x3c;  // as f16: 1.06, which a rotation changes
  const int count = LongTests() ? 1000000 : 100000;
  for (int head = 0; head < 4; ++head) {
    RandomTensors shapes(head);
    const Context context = shapes.MakeContext();
    int accepted = 0, refused_harmful = 0, refused_harmless = 0;
    for (int n = 0; n < count; ++n) {
      const rope_qk_args args = shapes.Next();
      std::fill(std::begin(shapes.memory), std::end(shapes.memory), kBefore);
      const bool harmful = IsHarmful(shapes, args);
      if (rope_apply_qk(context.get(), &args) == ROPE_OK) {
        ++accepted;
        ASSERT_FALSE(harmful) << shapes.Describe(args);
        continue;
      }
      ++(harmful ? refused_harmful : refused_harmless);
      const auto changed = std::count_if(std::begin(shapes.memory), std::end(shapes.memory),
                                         [](char byte) { return byte != kBefore; });
      ASSERT_EQ(changed, 0) << shapes.Describe(args);
    }
    std::printf("  accepted %d, refused %d harmful and %d harmless calls\n", accepted,
                refused_harmful, refused_harmless);
    EXPECT_GT(accepted, count / 20) << head;
    EXPECT_GT(refused_harmful, count / 20) << head;
    // The proof is incomplete, but must not refuse much that is harmless.
    EXPECT_LT(refused_harmless, accepted / 10) << head;
  }
}

// The stride of a dimension with one element is never taken, so it decides nothing.
TEST(Overlap, StridesOfOneElementAreIgnored) {
  constexpr int64_t T = 3, H = 2, D = 8;
  static float x[T * 2 * H * D];
  const Context context = Create(Config(D));
  for (int64_t odd : {int64_t{0}, int64_t{1}, int64_t{7}, 2 * H * D + 1, int64_t{1} << 40}) {
    rope_qk_args args = Args(1, T);
    args.positions = Offset(0);
    args.q = Tensor(x, ROPE_DTYPE_F32, H, ROPE_LAYOUT_STRIDED);
    args.q.stride_batch = odd;
    args.q.stride_token = 2 * H * D;
    args.q.stride_head = D;
    args.k = args.q;
    args.k.data = x + H * D;
    EXPECT_OK(rope_apply_qk(context.get(), &args)) << odd;
    args.k.heads = 1;
    args.k.stride_head = odd;
    EXPECT_OK(rope_apply_qk(context.get(), &args)) << odd;
  }
  // Also where strides of both tensors are looked at together.
  static float y[256];
  rope_qk_args args = Args(1, 4);
  args.positions = Offset(0);
  args.q = args.k = Tensor(y, ROPE_DTYPE_F32, H);
  SetStrides(&args.q, 17, 32, 16);
  args.k.data = y + D;
  SetStrides(&args.k, 0, 64, 32);
  EXPECT_OK(rope_apply_qk(context.get(), &args));
}

// A head that is repeated takes the room of all its copies.
TEST(Overlap, RepeatedHeadsAreAllWritten) {
  constexpr int kDim = 8;
  const Context context = Create(Config(kDim));
  float q[kDim] = {}, x[4 * kDim] = {};
  rope_qk_args args = Args(1, 1);
  args.positions = Offset(3);
  args.q = Tensor(q, ROPE_DTYPE_F32, 1);
  args.q_out = Tensor(x, ROPE_DTYPE_F32, 2);
  for (int at : {0, 1, kDim, 2 * kDim - 1}) {
    args.k = Tensor(x + at, ROPE_DTYPE_F32, 1);
    EXPECT_EQ(rope_apply_qk(context.get(), &args), ROPE_ERROR_INVALID_ARGUMENT) << at;
    ExpectMessage("rope_apply_qk", {"args->q_out overlaps args->k"});
  }
  args.k = Tensor(x + 2 * kDim, ROPE_DTYPE_F32, 1);
  EXPECT_OK(rope_apply_qk(context.get(), &args));
}

// The packed layouts of real code are all accepted.
TEST(Overlap, PackedQkvLayoutsAreAccepted) {
  constexpr int64_t B = 2, T = 3, H = 4, D = 8;
  static float x[B * T * H * 3 * D];
  const Context context = Create(Config(D));
  const struct {
    const char* name;
    int64_t batch, token, head, k;
  } layouts[] = {
      {"bs3hd", T * 3 * H * D, 3 * H * D, D, H * D}, {"sb3hd", 3 * H * D, B * 3 * H * D, D, H * D},
      {"bsh3d", T * 3 * H * D, 3 * H * D, 3 * D, D}, {"sbh3d", 3 * H * D, B * 3 * H * D, 3 * D, D},
      {"b3hsd", 3 * H * T * D, D, T * D, H * T * D}, {"3bshd", T * H * D, H * D, D, B * T * H * D},
      {"bhs3d", H * T * 3 * D, 3 * D, T * 3 * D, D},
  };
  for (const auto& layout : layouts) {
    rope_qk_args args = Args(B, T);
    args.positions = Offset(0);
    args.q = Tensor(x, ROPE_DTYPE_F32, H, ROPE_LAYOUT_STRIDED);
    args.q.stride_batch = layout.batch;
    args.q.stride_token = layout.token;
    args.q.stride_head = layout.head;
    args.k = args.q;
    args.k.data = x + layout.k;
    EXPECT_OK(rope_apply_qk(context.get(), &args)) << layout.name;
  }
}

// Sums of window and gap near the end of the address space do not wrap into an acceptance.
TEST(Overlap, HugeStridesDoNotWrap) {
  static float x[64];
  const Context context = Create(Config(8));
  rope_qk_args args = Args(1, 2);
  args.positions = Offset(0);
  args.q = Tensor(x + 16, ROPE_DTYPE_F32, 1, ROPE_LAYOUT_STRIDED);
  args.q.stride_token = (int64_t{1} << 61) - 1024;
  // The last head of k's last token is q's last token.
  args.k = Tensor(x, ROPE_DTYPE_F32, 2, ROPE_LAYOUT_STRIDED);
  args.k.stride_token = int64_t{1} << 60;
  args.k.stride_head = args.q.stride_token + 16 - args.k.stride_token;
  // Modulo q's stride k's window begins near the end, and the two together exceed 63 bits.
  EXPECT_EQ(rope_apply_qk(context.get(), &args), ROPE_ERROR_INVALID_ARGUMENT);
  for (float v : x) EXPECT_EQ(v, 0);
}

}  // namespace
}  // namespace rope::testing
