// A call that norms heads, and has a short way through the checks (call/check_append.h), is refused
// where the long way refuses it, with its message, and else does the same: every field changed.
// Those whose rope_fused is that of a later version, with zeros at its end, go the long way.
#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "support/handles.h"
#include "support/short_way.h"

namespace rope::testing {
namespace {

constexpr int kDim = 8, kRotary = 4, kHeads = 2, kMost = 3;
WaysMemory memory;
char *const kQ = memory.at(1024), *const kK = memory.at(2048), *const kV = memory.at(3072);
char *const kCacheK = memory.at(4096), *const kCacheV = memory.at(5120),
            *const kOut = memory.at(6144);
char* const kWeights = memory.at(7168);

// A call with everything that it points to.
struct All {
  rope_qk_args args;
  LaterFused later;
  rope_kv_cache cache, source;
  rope_norm q, k, v;
  rope_positions from;
  rope_tensor x;
  rope_scale scale_of_k, scale_of_v;
  int64_t slots[kMost];
  float rstd[kMost], grads[kDim];

  rope_fused& fused() { return later.fused; }
  void Store() {
    fused().cache = &cache;
    fused().v = Tensor(kV, args.k.dtype, kHeads);
    fused().v.head_dim = kDim;
  }
};

using Change = FieldChange<All>;

rope_norm Rms(rope_norm_span span, int64_t stride) {
  rope_norm norm = ROPE_INIT(rope_norm);
  norm.kind = ROPE_NORM_KIND_RMS;
  norm.eps = 1e-6;
  norm.span = span;
  norm.weight = kWeights;
  norm.weight_dtype = ROPE_DTYPE_BF16;
  norm.weight_stride_head = stride;
  return norm;
}

void Start(All* a, int tokens, bool stores, bool together, rope_dtype dtype) {
  *a = All{};
  a->args = Args(1, tokens);
  a->args.positions = Offset(70);
  a->args.q = Tensor(kQ, dtype, kHeads);
  a->args.k = Tensor(kK, dtype, kHeads);
  a->fused() = ROPE_INIT(rope_fused);
  a->args.fused = &a->fused();
  a->q = a->k = a->v =
      Rms(together ? ROPE_NORM_SPAN_ALL_HEADS : ROPE_NORM_SPAN_HEAD, together ? kDim : 0);
  a->fused().q_norm = &a->q;
  a->fused().k_norm = &a->k;
  a->cache = ROPE_INIT(rope_kv_cache);
  a->cache.kind = ROPE_SLOTS_MAPPED;
  a->cache.pages = a->cache.page_size = 2;
  a->cache.slots_i64 = a->slots;
  a->cache.slots_length = tokens;
  a->cache.k = Tensor(kCacheK, dtype, kHeads, ROPE_LAYOUT_NHD);
  a->cache.v = Tensor(kCacheV, dtype, kHeads, ROPE_LAYOUT_NHD);
  a->cache.v.head_dim = kDim;
  a->source = a->cache;
  for (int i = 0; i < kMost; ++i) a->slots[i] = 3 - i, a->rstd[i] = 0.5f;
  if (stores) a->Store();
}

template <rope_norm All::*kNorm>
void AddNormChanges(const std::string& name, std::vector<Change>* all) {
  const auto add = [&](const char* field, void (*make)(All*, int64_t),
                       std::vector<int64_t> values = {1}) {
    all->push_back({name + field, make, values});
  };
  add("struct_size", [](All* a, int64_t v) { (a->*kNorm).struct_size = static_cast<uint32_t>(v); },
      {0, 8, sizeof(rope_norm)});
  add("reserved", [](All* a, int64_t) { (a->*kNorm).reserved = 1; });
  add("kind",
      [](All* a, int64_t v) {
        (a->*kNorm).kind = static_cast<rope_norm_kind>(v % 8);
        if (v >= 8) (a->*kNorm).bias = kWeights + 64;
      },
      {-1, 0, 1, 2, 3, 4, 5, 6, 11, 12, 13});
  add("plain", [](All* a, int64_t) {
    (a->*kNorm).kind = ROPE_NORM_KIND_RMS_PLAIN, (a->*kNorm).weight = nullptr;
    (a->*kNorm).weight_dtype = 0, (a->*kNorm).weight_stride_head = 0;
  });
  add("span", [](All* a, int64_t v) { (a->*kNorm).span = static_cast<rope_norm_span>(v); },
      {-1, 0, 1, 2, 3});
  add("given",
      [](All* a, int64_t v) {
        (a->*kNorm).span = ROPE_NORM_SPAN_GIVEN, (a->*kNorm).eps = 0;
        (a->*kNorm).rstd = v == 0 ? a->rstd : reinterpret_cast<float*>(kWeights + v);
      },
      {0, 2});
  add("order", [](All* a, int64_t v) { (a->*kNorm).order = static_cast<rope_norm_order>(v); },
      {-1, 0, 1, 2});
  add("rounding",
      [](All* a, int64_t v) { (a->*kNorm).rounding = static_cast<rope_norm_rounding>(v); },
      {-1, 0, 1, 2, 3});
  add("eps", [](All* a, int64_t v) { (a->*kNorm).eps = static_cast<double>(v); }, {-1, 0, 1});
  add("eps beyond f32", [](All* a, int64_t v) { (a->*kNorm).eps = v == 0 ? std::nan("") : 1e300; },
      {0, 1});
  add("weight", [](All* a, int64_t v) { (a->*kNorm).weight = v == 0 ? nullptr : kWeights + v; },
      {0, 1, 2});
  add("bias", [](All* a, int64_t v) { (a->*kNorm).bias = kWeights + v; }, {1, 2});
  add("weight_dtype",
      [](All* a, int64_t v) { (a->*kNorm).weight_dtype = static_cast<rope_dtype>(v); },
      {-1, 0, 1, 2, 3, 4});
  add("weight_stride_head", [](All* a, int64_t v) { (a->*kNorm).weight_stride_head = v; },
      {-1, 0, 1, kRotary, kDim, 9, INT64_MAX});
  add("rstd", [](All* a, int64_t) { (a->*kNorm).rstd = a->rstd; });
  add("x", [](All* a, int64_t) { (a->*kNorm).x = &a->x; });
  add("weight_grad", [](All* a, int64_t) { (a->*kNorm).weight_grad = a->grads; });
  add("bias_grad", [](All* a, int64_t) { (a->*kNorm).bias_grad = a->grads; });
  add("grad_parts", [](All* a, int64_t v) { (a->*kNorm).grad_parts = static_cast<int32_t>(v); },
      {-1, 1});
}

void StoreCodes(All* a, bool computed) {
  a->Store();
  a->scale_of_k = a->scale_of_v = ROPE_INIT(rope_scale);
  a->cache.k.dtype = a->cache.v.dtype = ROPE_DTYPE_F8_E4M3;
  a->cache.k.scale = &a->scale_of_k;
  a->cache.v.scale = &a->scale_of_v;
  int n = 0;
  for (rope_scale* scale : {&a->scale_of_k, &a->scale_of_v}) {
    scale->value = computed ? 0.0f : 0.5f;
    if (!computed) continue;
    scale->computed = 1;
    scale->data = kOut + 256 * n++;
    scale->dtype = ROPE_DTYPE_F32;
    scale->stride_batch = 4, scale->stride_token = 2, scale->stride_head = 1;
  }
}

std::vector<Change> Changes() {
  std::vector<Change> all;
  const auto add = [&](const char* name, void (*make)(All*, int64_t),
                       std::vector<int64_t> values = {1}) {
    all.push_back({name, make, values});
  };
  AddNormChanges<&All::q>("q_norm.", &all);
  AddNormChanges<&All::k>("k_norm.", &all);
  add("nothing", [](All*, int64_t) {});
  add("no norm", [](All* a, int64_t v) { (&a->fused().q_norm)[v] = nullptr; }, {0, 1});
  add("no norms", [](All* a, int64_t) { a->fused().q_norm = a->fused().k_norm = nullptr; });
  add("v_norm without v", [](All* a, int64_t) { a->fused().v = {}, a->fused().v_norm = &a->v; });
  add("v_norm", [](All* a, int64_t) { a->Store(), a->fused().v_norm = &a->v; });
  add("v_norm alone", [](All* a, int64_t) {
    a->Store(), a->fused().v_norm = &a->v, a->fused().q_norm = a->fused().k_norm = nullptr;
  });
  add("v_norm of a kind",
      [](All* a, int64_t v) {
        a->Store(), a->fused().v_norm = &a->v, a->v.kind = static_cast<rope_norm_kind>(v);
      },
      {-1, 0, 1, 2, 4});
  add("v_norm after",
      [](All* a, int64_t) { a->Store(), a->fused().v_norm = &a->v, a->v.order = 1; });
  add("no q",
      [](All* a, int64_t v) { a->args.q = {}, a->fused().q_norm = v == 0 ? nullptr : &a->q; },
      {0, 1});
  add("no k",
      [](All* a, int64_t v) { a->args.k = {}, a->fused().k_norm = v == 0 ? nullptr : &a->k; },
      {0, 1});
  add("operation", [](All* a, int64_t v) { a->args.operation = static_cast<rope_operation>(v); },
      {-1, 0, 1, 2, 3, 4, 5});
  add("ids",
      [](All* a, int64_t v) {
        a->args.positions = Ids(ROPE_POSITIONS_IDS_T, a->slots);
        a->args.operation = static_cast<rope_operation>(v);
      },
      {0, 3});
  add("tokens", [](All* a, int64_t v) { a->args.tokens = v; }, {-1, 0, 1, 2});
  add("batch", [](All* a, int64_t v) { a->args.batch = v; }, {-1, 0});
  add("heads of q", [](All* a, int64_t v) { a->args.q.heads = static_cast<int32_t>(v); },
      {-1, 0, 1, 3});
  add("spans of q", [](All* a, int64_t v) { a->args.q.head_dim = static_cast<int32_t>(v); },
      {-1, 1, kRotary, kDim});
  add("spans of k", [](All* a, int64_t v) { a->args.k.head_dim = static_cast<int32_t>(v); },
      {-1, 1, kRotary, kDim});
  add("spans", [](All* a, int64_t) {
    for (rope_tensor* t : {&a->args.q, &a->args.k, &a->fused().v, &a->cache.k, &a->cache.v}) {
      t->head_dim = kRotary;
    }
    if (a->fused().cache == nullptr) a->fused().v = {};
    a->q.weight_stride_head = a->k.weight_stride_head = a->q.weight_stride_head != 0 ? kRotary : 0;
  });
  add("q in k", [](All* a, int64_t v) { a->args.q.data = kK + v; }, {0, 32});
  add("q at the end",
      [](All* a, int64_t) { a->args.q.data = reinterpret_cast<void*>(UINTPTR_MAX - 15); });
  add("q_out", [](All* a, int64_t) { a->args.q_out = a->args.q, a->args.q_out.data = kOut; });
  add("q_out of another width",
      [](All* a, int64_t v) {
        a->args.q_out = a->args.q, a->args.q_out.data = kOut;
        (v / 2 == 0 ? a->args.q : a->args.q_out).head_dim = kRotary;
        a->q.order = static_cast<rope_norm_order>(v % 2);
      },
      {0, 1, 2, 3});
  add("k_out", [](All* a, int64_t) { a->args.k_out = a->args.k, a->args.k_out.data = kOut; });
  add("v without a cache", [](All* a, int64_t) { a->Store(), a->fused().cache = nullptr; });
  add("v_out", [](All* a, int64_t) {
    a->Store(), a->fused().v_out = a->fused().v, a->fused().v_out.data = kOut;
  });
  add("rest", [](All* a, int64_t) {
    a->fused().rest = Tensor(kOut, ROPE_DTYPE_F32, 1), a->fused().rest.head_dim = kDim;
    a->fused().rest_out = a->fused().rest, a->fused().rest_out.data = kOut + 512;
  });
  add("source", [](All* a, int64_t) { a->fused().source = &a->source; });
  add("from_positions", [](All* a, int64_t) { a->fused().from_positions = &a->from; });
  add("fused.reserved", [](All* a, int64_t) { a->fused().reserved = 1; });
  add("fused.struct_size",
      [](All* a, int64_t v) { a->fused().struct_size = static_cast<uint32_t>(v); },
      {0, 8, offsetof(rope_fused, q_norm), 4097});
  add("a slot", [](All* a, int64_t v) { a->Store(), a->slots[0] = v; }, {-1, 0, 4, INT64_MAX});
  add("codes", [](All* a, int64_t v) { StoreCodes(a, v != 0); }, {0, 1});
  add("codes of v normed",
      [](All* a, int64_t v) { StoreCodes(a, v != 0), a->fused().v_norm = &a->v; }, {0, 1});
  add("codes normed after",
      [](All* a, int64_t v) { StoreCodes(a, v != 0), a->k.order = ROPE_NORM_ORDER_AFTER; }, {0, 1});
  add("codes normed by a mean",
      [](All* a, int64_t v) { StoreCodes(a, v != 0), a->k.kind = ROPE_NORM_KIND_LAYER; }, {0, 1});
  return all;
}

TEST(NormFields, ShortWayDoesWhatTheLongWayDoes) {
  rope_config config = Config(kDim);
  config.rotary_dim = kRotary;
  config.rotary_offset = 2;
  rope_config nope = config, rounded = config, native = config, whole = Config(kDim);
  nope.scaling = ROPE_SCALING_NOPE;
  rounded.rounding = ROPE_ROUNDING_COS_SIN;
  native.rounding = ROPE_ROUNDING_NATIVE;  // of f16 alone
  int accepted = 0, calls = 0;
  for (const rope_config& c : {config, nope, rounded, native, whole}) {
    const Context context = Create(c);
    for (const Change& change : Changes()) {
      for (const int64_t value : change.values) {
        for (int way = 0; way < 24; ++way) {
          const int tokens = way % 2 == 0 ? 1 : kMost;
          const bool stores = way / 2 % 2 == 0, together = way / 4 % 2 == 0;
          const std::string name =
              change.name + " " + std::to_string(value) + ", way " + std::to_string(way);
          accepted += ExpectOneResult<All>(context.get(), &memory, name, [&](All* a) {
            Start(a, tokens, stores, together, 1 + way / 8);
            change.make(a, value);
          });
          ++calls;
        }
      }
    }
  }
  EXPECT_GT(accepted, calls / 5);
}

}  // namespace
}  // namespace rope::testing
