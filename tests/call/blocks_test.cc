// q, k, v and rest that a call codes in blocks of Q8_0, in outputs and in the slots of a cache, on
// every instruction set: each byte is that of ggml's definition, and a prepared call writes the
// same ones.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <vector>

#include "support/elements.h"
#include "support/handles.h"
#include "support/prepared_call.h"
#include "support/q8_0.h"
#include "support/random.h"
#include "support/targets.h"

namespace rope::testing {
namespace {

// Numbers of a dtype, [batch, tokens, heads, dim], as a tensor and as floats.
struct Input {
  Input(Random* r, rope_dtype dtype, int64_t tokens, int heads, int dim)
      : values(tokens * heads * dim), data(values.size()) {
    for (int64_t i = 0; i < static_cast<int64_t>(values.size()); i += kBlock) {
      const double size = r->Sometimes(9) ? 0 : std::ldexp(1, r->Pick(-24, 24));
      for (int64_t c = i; c < i + kBlock; ++c) {
        double x = (r->Below(4001) - 2000) * size;
        if (r->Sometimes(300)) x = r->Of<double>({NAN, INFINITY, -INFINITY});
        values[c] = static_cast<float>(Rounded(dtype, x));
        WriteElement(dtype, Element(dtype, c), values[c]);
      }
    }
    t = Tensor(data.data(), dtype, heads);
    t.head_dim = dim;
  }
  void* Element(rope_dtype dtype, int64_t i) {
    return reinterpret_cast<char*>(data.data()) + i * SizeOf(dtype);
  }

  std::vector<float> values;
  std::vector<float> data;  // of any dtype
  rope_tensor t;
};

// Memory of Q8_0, [outer, inner, heads, dim] in some order or with gaps, and what it must become.
struct Blocks {
  Blocks(Random* r, bool in_cache, int64_t outer, int64_t inner, int heads, int dim)
      : inner(inner) {
    const rope_layout inner_first = in_cache ? ROPE_LAYOUT_NHD : ROPE_LAYOUT_BSHD;
    const rope_layout heads_first = in_cache ? ROPE_LAYOUT_HND : ROPE_LAYOUT_BHSD;
    t = Tensor(nullptr, ROPE_DTYPE_Q8_0, heads, r->Of({inner_first, heads_first}));
    const bool by_head = t.layout == heads_first;
    SetAll(inner * heads * dim, by_head ? dim : heads * dim, by_head ? inner * dim : dim);
    if (r->Sometimes(2)) {
      const int64_t head = dim + kBlock * r->Pick(0, 2), token = heads * head + kBlock;
      SetAll(inner * token + kBlock * r->Pick(0, 1), token, head);
      SetStrides(&t, batch_stride, token_stride, head_stride);
    }
    t.head_dim = dim;
    bytes.assign(outer * batch_stride / kBlock * kBlockBytes, 0x55);
    want = bytes;
    t.data = bytes.data();
  }
  void SetAll(int64_t batch, int64_t token, int64_t head) {
    batch_stride = batch, token_stride = token, head_stride = head;
  }
  // The heads of one token, in place number `at`.
  void Store(const float* x, int64_t at) {
    for (int h = 0; h < t.heads; ++h) {
      const int64_t first = at / inner * batch_stride + at % inner * token_stride + h * head_stride;
      for (int64_t c = 0; c < t.head_dim; c += kBlock, x += kBlock) {
        WriteBlock(x, &want[(first + c) / kBlock * kBlockBytes]);
      }
    }
  }

  int64_t inner, batch_stride, token_stride, head_stride;
  std::vector<char> bytes, want;
  rope_tensor t;
};

// What the call makes of q or k before it is coded.
std::vector<float> Turned(const Context& context, bool in_f32, const Input& from,
                          rope_qk_args args) {
  std::vector<float> x = from.values, memory(x.size());
  const rope_dtype dtype = in_f32 ? ROPE_DTYPE_F32 : from.t.dtype;
  const auto element = [&](size_t i) {
    return reinterpret_cast<char*>(memory.data()) + i * SizeOf(dtype);
  };
  for (size_t i = 0; i < x.size(); ++i) WriteElement(dtype, element(i), x[i]);
  args.q = Tensor(memory.data(), dtype, from.t.heads);
  EXPECT_OK(rope_apply_qk(context.get(), &args));
  for (size_t i = 0; i < x.size(); ++i) {
    x[i] = static_cast<float>(ReadElement(dtype, element(i)));
  }
  return x;
}

class BlocksOnTarget : public TargetTest {};

TEST_P(BlocksOnTarget, AreThoseOfGgml) {
  for (int n = 0; n < (LongTests() ? 20000 : 400); ++n) {
    Random r(n);
    rope_config config = Config(32 * r.Pick(1, 4));
    config.rounding = r.Of({ROPE_ROUNDING_FLOAT32, ROPE_ROUNDING_FLOAT32, ROPE_ROUNDING_EAGER});
    config.pairing = r.Of({ROPE_PAIRING_HALVES, ROPE_PAIRING_INTERLEAVED});
    config.rotary_dim = r.Sometimes(3) ? 2 * r.Pick(1, 16) : config.head_dim;
    config.scaling = r.Sometimes(5) ? ROPE_SCALING_NOPE : ROPE_SCALING_DEFAULT;
    const Context context = Create(config);
    const int batch = r.Pick(1, 2), tokens = r.Pick(1, r.Of({1, 4, 30}));
    const int heads = r.Pick(1, 3), v_dim = 32 * r.Pick(1, 3), page_size = r.Pick(1, 5);
    const int64_t count = int64_t{batch} * tokens, pages = count / page_size + 3;
    const auto input = [&](int dim) {
      const auto dtype = r.Of({ROPE_DTYPE_F32, ROPE_DTYPE_F16, ROPE_DTYPE_BF16});
      return Input(&r, dtype, count, heads, dim);
    };
    Input q = input(config.head_dim), k = input(config.head_dim), v = input(v_dim),
          rest = input(64);
    Blocks q_out(&r, false, batch, tokens, heads, config.head_dim);
    Blocks v_out(&r, false, batch, tokens, heads, v_dim);
    Blocks rest_out(&r, false, batch, tokens, heads, 64);
    Blocks cache_k(&r, true, pages, page_size, heads, config.head_dim);
    Blocks cache_v(&r, true, pages, page_size, heads, v_dim);
    Blocks* const all[] = {&q_out, &v_out, &rest_out, &cache_k, &cache_v};
    std::vector<int64_t> slots;
    for (int64_t i = 0; i < count; ++i) {
      slots.push_back(r.Sometimes(6) ? -1 : (i * 7 + n) % (pages * page_size));
      for (int64_t j = 0; j < i; ++j) {
        if (slots[j] == slots[i]) slots[i] = -1;
      }
    }

    rope_qk_args args = Args(batch, tokens);
    args.positions = Offset(r.Pick(0, 5000));
    const bool in_f32 = config.rounding == ROPE_ROUNDING_FLOAT32;
    const auto turned_q = Turned(context, in_f32, q, args);
    const auto turned_k = Turned(context, in_f32, k, args);
    for (int64_t i = 0; i < count; ++i) {
      const int64_t width = int64_t{heads} * config.head_dim, v_width = int64_t{heads} * v_dim;
      q_out.Store(&turned_q[i * width], i);
      v_out.Store(&v.values[i * v_width], i);
      rest_out.Store(&rest.values[i * heads * 64], i);
      if (slots[i] < 0) continue;
      cache_k.Store(&turned_k[i * width], slots[i]);
      cache_v.Store(&v.values[i * v_width], slots[i]);
    }

    rope_kv_cache cache = ROPE_INIT(rope_kv_cache);
    cache.kind = ROPE_SLOTS_MAPPED;
    cache.pages = pages;
    cache.page_size = page_size;
    cache.slots_i64 = slots.data();
    cache.slots_length = count;
    cache.k = cache_k.t, cache.v = cache_v.t;
    rope_fused fused = ROPE_INIT(rope_fused);
    fused.cache = &cache;
    fused.v = v.t, fused.v_out = v_out.t;
    fused.rest = rest.t, fused.rest_out = rest_out.t;
    args.fused = &fused;
    args.q = q.t, args.q_out = q_out.t, args.k = k.t;
    ASSERT_OK(rope_apply_qk(context.get(), &args));
    for (Blocks* one : all) {
      ASSERT_EQ(one->bytes, one->want) << n;
      one->bytes.assign(one->bytes.size(), 0x55);
    }

    ASSERT_OK(ApplyPrepared(context.get(), args));
    for (const Blocks* one : all) ASSERT_EQ(one->bytes, one->want) << n << ", prepared";
  }
}

INSTANTIATE_TARGETS(BlocksOnTarget);

}  // namespace
}  // namespace rope::testing
