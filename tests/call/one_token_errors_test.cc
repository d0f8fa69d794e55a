// A call on one token, which has ways of its own through the checks (call/check_token.h,
// call/check_append.h), is refused where a prepared call is, which has none, and else does the
// same: every field changed.
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "support/handles.h"
#include "support/random.h"

namespace rope::testing {
namespace {

constexpr int kDim = 8, kRotary = 4, kSize = 4096;
alignas(64) char memory[kSize], before[kSize];
char* const kQ = memory + 1024;
char* const kK = memory + 2048;
char* const kOut = memory + 3072;
int32_t ids32[] = {5, 6, 7}, cu[] = {0, 1}, sets[] = {0, 0};
int64_t ids64[] = {5, 6, 7};
float idsf[] = {5, 6, 7};
rope_fused fused = ROPE_INIT(rope_fused);
rope_kv_cache cache;
int64_t slot64;
int32_t slot32, table[2], start;
rope_scale scale_of_k, scale_of_v;
rope_shard shard = ShardOf(ROPE_SHARD_CONTIGUOUS, 0, 1);
rope_cos_sin rows;
int32_t RunAll(void*, rope_task_fn task, void* opaque, uint32_t count) {
  for (uint32_t i = 0; i < count; ++i) task(opaque, i);
  return 0;
}
const rope_runner kRunner = {RunAll, nullptr}, kRunnerWithoutFunction = {nullptr, nullptr};

using A = rope_qk_args;
struct Change {
  std::string name;
  void (*make)(A* a, int64_t value);
  std::vector<int64_t> values = {1};
};

void Output(A* a, rope_tensor A::*out, const rope_tensor& of, char* data) {
  a->*out = of;
  (a->*out).data = data;
}
template <rope_tensor A::*kTensor>
void AddChanges(const std::string& name, std::vector<Change>* all) {
  const auto add = [&](const char* field, void (*make)(A*, int64_t), std::vector<int64_t> values) {
    all->push_back({name + field, make, values});
  };
  const int64_t far = int64_t{1} << 29, farther = int64_t{1} << 61;
  add("reserved", [](A* a, int64_t) { (a->*kTensor).reserved = 1; }, {1});
  add("scale",
      [](A* a, int64_t) { (a->*kTensor).scale = reinterpret_cast<const rope_scale*>(memory); },
      {1});
  add("dtype", [](A* a, int64_t v) { (a->*kTensor).dtype = static_cast<rope_dtype>(v); },
      {-1, 0, 1, 2, 3, 4});
  add("layout", [](A* a, int64_t v) { (a->*kTensor).layout = static_cast<rope_layout>(v); },
      {-1, 0, 1, 2, 3, 4, 5, 6, 7});
  add("heads", [](A* a, int64_t v) { (a->*kTensor).heads = static_cast<int32_t>(v); },
      {-1, 0, 1, 3});
  add("head_dim", [](A* a, int64_t v) { (a->*kTensor).head_dim = static_cast<int32_t>(v); },
      {-1, 1, 2, kRotary, 6, kDim, 16});
  add("strides without STRIDED", [](A* a, int64_t v) { (&(a->*kTensor).stride_batch)[v] = kDim; },
      {0, 1, 2});
  add("stride_batch", [](A* a, int64_t v) { SetStrides(&(a->*kTensor), v, 0, kDim); },
      {-1, 0, 5, far - 1, far, farther, INT64_MAX, INT64_MIN});
  add("stride_token", [](A* a, int64_t v) { SetStrides(&(a->*kTensor), 0, v, kDim); },
      {-1, 0, 5, far - 1, far, farther, INT64_MAX, INT64_MIN});
  add("stride_head", [](A* a, int64_t v) { SetStrides(&(a->*kTensor), 0, 0, v); },
      {-1, 0, 1, kDim - 1, kDim, 2 * kDim, INT64_MAX, INT64_MIN});
  add("stride_head of the span",
      [](A* a, int64_t v) {
        SetStrides(&(a->*kTensor), 0, 0, v);
        (a->*kTensor).head_dim = kRotary;
      },
      {kRotary - 1, kRotary, kDim});
  add("stride_head of one head",
      [](A* a, int64_t v) {
        SetStrides(&(a->*kTensor), 0, 0, v);
        (a->*kTensor).heads = 1;
      },
      {-1, 0, 1, kDim});
  add("data", [](A* a, int64_t v) { (a->*kTensor).data = v == 0 ? nullptr : kOut + v; },
      {0, 1, 2, 4, 8});
  add("data at the end",
      [](A* a, int64_t v) {
        (a->*kTensor).data = reinterpret_cast<void*>(UINTPTR_MAX - static_cast<uintptr_t>(v));
      },
      {1, 7, 15});
  add("absent", [](A* a, int64_t) { a->*kTensor = {}; }, {1});
  add("absent but for data", [](A* a, int64_t) { a->*kTensor = {}, (a->*kTensor).data = kOut; },
      {1});
}

// k and v, spans alone, to slot 3 of two pages of two.
void StoreInCache(A* a) {
  cache = ROPE_INIT(rope_kv_cache);
  cache.kind = ROPE_SLOTS_MAPPED;
  cache.pages = cache.page_size = 2;
  slot64 = slot32 = 3;
  table[0] = 1, table[1] = 0;
  start = 3;
  cache.slots_i64 = &slot64;
  cache.slots_length = 1;
  cache.k = Tensor(memory, a->k.dtype, 2, ROPE_LAYOUT_NHD);
  cache.v = Tensor(memory + 512, a->k.dtype, 2, ROPE_LAYOUT_NHD);
  fused = ROPE_INIT(rope_fused);
  fused.cache = &cache;
  fused.v = Tensor(memory + 3584, a->k.dtype, 2);
  for (rope_tensor* t : {&a->k, &cache.k, &cache.v, &fused.v}) t->head_dim = kRotary;
  a->fused = &fused;
}
void Paged(A* a) {
  StoreInCache(a);
  cache.kind = ROPE_SLOTS_PAGED;
  cache.slots_i64 = nullptr;
  cache.slots_length = 0;
  cache.page_table = table;
  cache.page_table_stride = 2;
  cache.starts = &start;
}

// The same as codes, by one scale, or by one of each head in the floats from `memory + 896` on.
void StoreCodes(A* a, bool array) {
  StoreInCache(a);
  int n = 0;
  for (rope_scale* scale : {&scale_of_k, &scale_of_v}) {
    *scale = ROPE_INIT(rope_scale);
    if (!array) {
      scale->value = 0.5f;
      continue;
    }
    scale->data = memory + 896 + 64 * n++;
    scale->dtype = ROPE_DTYPE_F32;
    scale->stride_batch = 4;
    scale->stride_token = 2;
    scale->stride_head = 1;
  }
  cache.k.dtype = cache.v.dtype = ROPE_DTYPE_F8_E4M3;
  cache.k.scale = &scale_of_k;
  cache.v.scale = &scale_of_v;
}
void ComputeScales(A* a) {
  StoreCodes(a, true);
  scale_of_k.computed = scale_of_v.computed = 1;
}

// Of a tensor of a call with a cache; each call of `tensor` begins with StoreInCache.
template <rope_tensor* (*kTensor)(A*)>
void AddCacheChanges(const std::string& name, std::vector<Change>* all) {
  const auto add = [&](const char* field, void (*make)(A*, int64_t), std::vector<int64_t> values) {
    all->push_back({name + field, make, values});
  };
  add("reserved", [](A* a, int64_t) { kTensor(a)->reserved = 1; }, {1});
  add("dtype", [](A* a, int64_t v) { kTensor(a)->dtype = static_cast<rope_dtype>(v); },
      {-1, 0, 1, 2, 3, 4, 7});
  add("layout", [](A* a, int64_t v) { kTensor(a)->layout = static_cast<rope_layout>(v); },
      {-1, 0, 1, 2, 3, 4, 5, 6, 7});
  add("heads", [](A* a, int64_t v) { kTensor(a)->heads = static_cast<int32_t>(v); }, {-1, 0, 1, 3});
  add("head_dim", [](A* a, int64_t v) { kTensor(a)->head_dim = static_cast<int32_t>(v); },
      {-1, 0, 2, kDim, 16});
  add("strides", [](A* a, int64_t v) { SetStrides(kTensor(a), 4 * v, 2 * v, v); },
      {-1, 0, 3, kRotary, kDim, INT64_MAX / 4});
  add("data", [](A* a, int64_t v) { kTensor(a)->data = memory + v; },
      {0, 2, 4, 32, 512, 1024, 2048, 3584, 3600});
  add("no data", [](A* a, int64_t) { kTensor(a)->data = nullptr; }, {1});
  add("data at the end",
      [](A* a, int64_t v) {
        kTensor(a)->data = reinterpret_cast<void*>(UINTPTR_MAX - static_cast<uintptr_t>(v));
      },
      {7, 15});
  add("absent", [](A* a, int64_t) { *kTensor(a) = {}; }, {1});
}

rope_tensor* KeysOf(A* a) { return StoreInCache(a), &a->k; }
rope_tensor* QueriesOf(A* a) { return StoreInCache(a), &a->q; }
rope_tensor* CachedKeysOf(A* a) { return StoreInCache(a), &cache.k; }
rope_tensor* CachedValuesOf(A* a) { return StoreInCache(a), &cache.v; }
rope_tensor* ValuesOf(A* a) { return StoreInCache(a), &fused.v; }

// `scale` is that of k or of v.
template <rope_scale* kScale>
void AddScaleChanges(const std::string& name, std::vector<Change>* all) {
  const auto add = [&](const char* field, void (*make)(A*, int64_t), std::vector<int64_t> values) {
    all->push_back({name + field, make, values});
  };
  add("struct_size",
      [](A* a, int64_t v) { StoreCodes(a, false), kScale->struct_size = static_cast<uint32_t>(v); },
      {8, sizeof(rope_scale)});
  add("reserved", [](A* a, int64_t v) { StoreCodes(a, v == 1), kScale->reserved = 1; }, {0, 1});
  add("value", [](A* a, int64_t v) { StoreCodes(a, false), kScale->value = static_cast<float>(v); },
      {-1, 1, 3, int64_t{1} << 62});
  add("value and data", [](A* a, int64_t) { StoreCodes(a, true), kScale->value = 1; }, {1});
  add("round_first",
      [](A* a, int64_t v) { StoreCodes(a, false), kScale->round_first = static_cast<int32_t>(v); },
      {-1, 0, 1, 2});
  add("computed",
      [](A* a, int64_t v) { StoreCodes(a, true), kScale->computed = static_cast<int32_t>(v); },
      {-1, 0, 1, 2});
  add("computed value", [](A* a, int64_t) { StoreCodes(a, false), kScale->computed = 1; }, {1});
  add("power_of_two",
      [](A* a, int64_t v) { ComputeScales(a), kScale->power_of_two = static_cast<int32_t>(v); },
      {-1, 0, 1, 2});
  add("power_of_two of a value",
      [](A* a, int64_t v) { StoreCodes(a, v == 1), kScale->power_of_two = 1; }, {0, 1});
  add("min_scale",
      [](A* a, int64_t v) { ComputeScales(a), kScale->min_scale = static_cast<double>(v); },
      {-1, 0, 1});
  add("dtype",
      [](A* a, int64_t v) { StoreCodes(a, true), kScale->dtype = static_cast<rope_dtype>(v); },
      {-1, 0, 1, 2, 7, 8});
  add("group", [](A* a, int64_t v) { StoreCodes(a, true), kScale->group = v; }, {-1, 0, 2, 3, 4});
  add("group of a value", [](A* a, int64_t) { StoreCodes(a, false), kScale->group = 2; }, {1});
  add("strides", [](A* a, int64_t v) { ComputeScales(a), (&kScale->stride_batch)[v] = 0; },
      {0, 1, 2});
  add("a negative stride",
      [](A* a, int64_t v) { StoreCodes(a, true), (&kScale->stride_batch)[v] = -1; }, {0, 1, 2});
  add("a stride of a value",
      [](A* a, int64_t v) { StoreCodes(a, false), (&kScale->stride_batch)[v] = 1; }, {0, 1, 2});
  // At the other's, at the cache's k and v, at v, k and q, and not aligned.
  add("given data", [](A* a, int64_t v) { StoreCodes(a, true), kScale->data = memory + v; },
      {896, 960, 912, 0, 512, 3584, 2048, 1024, 898});
  add("computed data", [](A* a, int64_t v) { ComputeScales(a), kScale->data = memory + v; },
      {896, 960, 912, 0, 512, 3584, 2048, 1024, 898});
  add("data at the end",
      [](A* a, int64_t v) {
        StoreCodes(a, true);
        kScale->data = reinterpret_cast<void*>(UINTPTR_MAX - static_cast<uintptr_t>(v));
      },
      {3, 7});
}

void AddCacheChanges(std::vector<Change>* all) {
  const auto add = [&](const char* name, void (*make)(A*, int64_t), std::vector<int64_t> values) {
    all->push_back({name, make, values});
  };
  add("a cache of a kind", [](A* a, int64_t v) { StoreInCache(a), cache.kind = v; },
      {-1, 0, 1, 2, 3, 4});
  add("paged, of a kind", [](A* a, int64_t v) { Paged(a), cache.kind = v; }, {-1, 0, 1, 2, 3, 4});
  add("pages", [](A* a, int64_t v) { StoreInCache(a), cache.pages = v; },
      {-1, 0, 1, 2, 3, INT64_MAX});
  add("page_size", [](A* a, int64_t v) { StoreInCache(a), cache.page_size = v; },
      {-1, 0, 1, 2, 3, 1 << 30, INT32_MAX});
  add("cache.reserved", [](A* a, int64_t) { StoreInCache(a), cache.reserved = 1; }, {1});
  add("cache.struct_size", [](A* a, int64_t v) { StoreInCache(a), cache.struct_size = v; },
      {8, sizeof(rope_kv_cache)});
  add("a slot", [](A* a, int64_t v) { StoreInCache(a), slot64 = v; },
      {-9, -1, 0, 3, 4, 1 << 20, INT64_MAX});
  add("both slots", [](A* a, int64_t) { StoreInCache(a), cache.slots_i32 = &slot32; }, {1});
  add("no slots", [](A* a, int64_t) { StoreInCache(a), cache.slots_i64 = nullptr; }, {1});
  add("slots_length", [](A* a, int64_t v) { StoreInCache(a), cache.slots_length = v; },
      {-1, 0, 1, 2});
  add("a page", [](A* a, int64_t v) { Paged(a), table[1] = static_cast<int32_t>(v); },
      {-1, 0, 1, 2});
  add("a start", [](A* a, int64_t v) { Paged(a), start = static_cast<int32_t>(v); },
      {-1, 0, 3, 4, INT32_MAX});
  add("page_table_stride", [](A* a, int64_t v) { Paged(a), cache.page_table_stride = v; },
      {-1, 0, 1, 2});
  add("no page_table", [](A* a, int64_t) { Paged(a), cache.page_table = nullptr; }, {1});
  add("no starts", [](A* a, int64_t) { Paged(a), cache.starts = nullptr; }, {1});
  add("dropped", [](A* a, int64_t) { StoreInCache(a), cache.dropped = &fused.reserved; }, {1});
  add("fused.reserved", [](A* a, int64_t) { StoreInCache(a), fused.reserved = 1; }, {1});
  add("v_out",
      [](A* a, int64_t v) {
        StoreInCache(a), fused.v_out = fused.v, fused.v_out.data = memory + v;
      },
      {3072, 3584, 3600, 512});
  add("rest",
      [](A* a, int64_t v) {
        StoreInCache(a), fused.rest = fused.rest_out = fused.v;
        fused.rest.data = memory + 3712, fused.rest_out.data = memory + v;
      },
      {3712, 3072, 1024});
  add("k_out",
      [](A* a, int64_t v) { StoreInCache(a), a->k_out = a->k, a->k_out.data = memory + v; },
      {2048, 2052, 3072, 1024});
  add("an operation with a cache",
      [](A* a, int64_t v) { StoreInCache(a), a->operation = static_cast<rope_operation>(v); },
      {-1, 0, 1, 2, 3, 4, 5});
  add("two tokens with a cache", [](A* a, int64_t) { StoreInCache(a), a->tokens = 2; }, {1});
  add("a runner with a cache",
      [](A* a, int64_t v) {
        StoreInCache(a), a->runner = v != 0 ? &kRunner : &kRunnerWithoutFunction;
      },
      {0, 1});
  add("a stream with a cache", [](A* a, int64_t) { StoreInCache(a), a->stream = memory; }, {1});
  add("codes of a dtype",
      [](A* a, int64_t v) {
        StoreCodes(a, v > 8), cache.k.dtype = cache.v.dtype = static_cast<rope_dtype>(v % 9);
      },
      {1, 2, 3, 4, 5, 6, 7, 8, 13, 14, 15, 16});
  add("codes of two dtypes", [](A* a, int64_t) { StoreCodes(a, false), cache.v.dtype = 5; }, {1});
  add("codes of v alone",
      [](A* a, int64_t) {
        StoreCodes(a, false), cache.k.dtype = a->k.dtype, cache.k.scale = nullptr;
      },
      {1});
  add("no scale",
      [](A* a, int64_t v) { StoreCodes(a, false), (v == 0 ? cache.k : cache.v).scale = nullptr; },
      {0, 1});
  add("a scale of v", [](A* a, int64_t) { StoreCodes(a, false), fused.v.scale = &scale_of_v; },
      {1});
  add("scales of what is no code",
      [](A* a, int64_t) { StoreCodes(a, false), cache.k.dtype = cache.v.dtype = a->k.dtype; }, {1});
  add("codes in a slot", [](A* a, int64_t v) { StoreCodes(a, true), slot64 = v; },
      {-1, 0, 1, 2, 3, 4});
  add("computed scales in a slot", [](A* a, int64_t v) { ComputeScales(a), slot64 = v; },
      {-1, 0, 1, 2, 3, 4});
  AddScaleChanges<&scale_of_k>("scale of k: ", all);
  AddScaleChanges<&scale_of_v>("scale of v: ", all);
  AddCacheChanges<&KeysOf>("k with a cache: ", all);
  AddCacheChanges<&QueriesOf>("q with a cache: ", all);
  AddCacheChanges<&CachedKeysOf>("cache.k.", all);
  AddCacheChanges<&CachedValuesOf>("cache.v.", all);
  AddCacheChanges<&ValuesOf>("v.", all);
}

std::vector<Change> Changes() {
  std::vector<Change> all;
  AddChanges<&A::q>("q.", &all);
  AddChanges<&A::k>("k.", &all);
  AddCacheChanges(&all);
  const auto add = [&](const char* name, void (*make)(A*, int64_t),
                       std::vector<int64_t> values = {1}) {
    all.push_back({name, make, values});
  };
  add("nothing", [](A*, int64_t) {});
  add("batch", [](A* a, int64_t v) { a->batch = v; }, {-1, 0, 2});
  add("tokens", [](A* a, int64_t v) { a->tokens = v; }, {-1, 0, 2});
  add("operation", [](A* a, int64_t v) { a->operation = static_cast<rope_operation>(v); },
      {-1, 0, 1, 2, 3, 4, 5});
  // k from inside of q to behind it.
  add("k near q", [](A* a, int64_t v) { a->k.data = kQ + v; }, {0, 4, 16, 32, 60, 64, -32, -64});
  add("q and k packed",
      [](A* a, int64_t v) {
        SetStrides(&a->q, 0, 0, 2 * kDim);
        SetStrides(&a->k, 0, 0, 2 * kDim);
        a->k.data = kQ + v;
      },
      {4, 16, 32});
  add("q_out", [](A* a, int64_t v) { Output(a, &A::q_out, a->q, v == 0 ? kQ : kOut); }, {0, 1});
  add("k_out", [](A* a, int64_t v) { Output(a, &A::k_out, a->k, v == 0 ? kK : kQ); }, {0, 1});
  add("a word of the outputs",
      [](A* a, int64_t v) { std::memset(reinterpret_cast<char*>(&a->q_out) + 8 * v, 1, 1); },
      {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15});
  add("kind", [](A* a, int64_t v) { a->positions.kind = static_cast<rope_position_kind>(v); },
      {-1, 0, 1, 2, 3, 4, 5, 6, 7, 8});
  add("sequences", [](A* a, int64_t v) { a->positions.sequences = static_cast<int32_t>(v); },
      {-1, 1});
  add("cu_seqlens",
      [](A* a, int64_t v) { a->positions.cu_seqlens = cu, a->positions.sequences = v; }, {0, 1});
  add("freq_sets", [](A* a, int64_t) { a->positions.freq_sets = sets; });
  add("shard", [](A* a, int64_t) { a->positions.shard = &shard; });
  add("offset", [](A* a, int64_t v) { a->positions.offset = v; }, {-3, 0, 9, INT64_MAX, INT64_MIN});
  add("offsets_i32", [](A* a, int64_t) { a->positions.offsets_i32 = ids32; });
  add("offsets_i64", [](A* a, int64_t) { a->positions.offsets_i64 = ids64; });
  add("ids_i32",
      [](A* a, int64_t v) {
        a->positions.ids_i32 = reinterpret_cast<int32_t*>(reinterpret_cast<char*>(ids32) + v);
      },
      {0, 2});
  add("ids_i64",
      [](A* a, int64_t v) {
        a->positions.ids_i64 = reinterpret_cast<int64_t*>(reinterpret_cast<char*>(ids64) + v);
      },
      {0, 4});
  add("ids_f32", [](A* a, int64_t) { a->positions.ids_f32 = idsf; });
  add("only ids_f32", [](A* a, int64_t) {
    a->positions.ids_i32 = nullptr, a->positions.ids_i64 = nullptr;
    a->positions.ids_f32 = idsf;
  });
  add("no ids",
      [](A* a, int64_t) { a->positions.ids_i32 = nullptr, a->positions.ids_i64 = nullptr; });
  add("a stride of ids", [](A* a, int64_t v) { (&a->positions.stride_axis)[v] = 1; }, {0, 1, 2});
  add("batch_repeat", [](A* a, int64_t v) { a->positions.batch_repeat = v; }, {-1, 1, 2});
  add("positions.reserved", [](A* a, int64_t v) { a->positions.reserved[v] = 1; }, {0, 1});
  add("cos_sin",
      [](A* a, int64_t v) {
        if (v == 1) a->positions = {};
        rows = Rows(ROPE_COS_SIN_PACKED, ROPE_DTYPE_F32, kRotary / 2, 1, memory);
        a->cos_sin = &rows;
      },
      {0, 1});
  add("runner", [](A* a, int64_t) { a->runner = &kRunner; });
  add("runner without its function", [](A* a, int64_t) { a->runner = &kRunnerWithoutFunction; });
  add("stream", [](A* a, int64_t) { a->stream = memory; });
  add("fused",
      [](A* a, int64_t v) {
        fused = ROPE_INIT(rope_fused);
        fused.struct_size = static_cast<uint32_t>(v);
        a->fused = &fused;
      },
      {8, sizeof(rope_fused)});
  return all;
}

void Fill() {
  Random random(1);
  for (size_t at = 0; at < sizeof(memory); at += 4) {
    const float value = static_cast<float>(random.Pick(-999, 999)) / 256;
    std::memcpy(memory + at, &value, sizeof(value));
  }
}

// The same by a prepared call, following no pointer that a change may have spoilt.
rope_status ApplySpoilt(const rope_context* context, const A& args) {
  A without = WithoutData(args);
  rope_qk_data data = DataOf(args);
  rope_fused beside;
  rope_kv_cache stored;
  rope_scale scale_k, scale_v;
  if (args.fused != nullptr && args.fused->cache != nullptr) {
    beside = *args.fused;
    stored = *beside.cache;
    const auto take = [](rope_tensor* t) { return std::exchange(t->data, nullptr); };
    data.v = take(&beside.v), data.v_out = take(&beside.v_out);
    data.rest = take(&beside.rest), data.rest_out = take(&beside.rest_out);
    data.cache_k = take(&stored.k), data.cache_v = take(&stored.v);
    const auto take_scale = [](rope_tensor* t, rope_scale* scale) -> void* {
      if (t->scale == nullptr) return nullptr;
      *scale = *t->scale;
      t->scale = scale;
      return std::exchange(scale->data, nullptr);
    };
    data.cache_k_scales = take_scale(&stored.k, &scale_k);
    data.cache_v_scales = take_scale(&stored.v, &scale_v);
    beside.cache = &stored;
    without.fused = &beside;
  }
  rope_prepared* made = nullptr;
  if (rope_status s = rope_prepared_create(context, &without, &made)) return s;
  const Prepared prepared(made);
  return rope_prepared_apply(made, &data);
}

std::vector<Context> Contexts() {
  rope_config config = Config(kDim);
  config.rotary_dim = kRotary;
  config.rotary_offset = kDim - kRotary;
  std::vector<Context> all;
  all.push_back(Create(config));
  all.push_back(CreateSets({config, config}));
  rope_config other = config;
  other.rounding = ROPE_ROUNDING_NATIVE;
  all.push_back(Create(other));
  other = config;
  other.scaling = ROPE_SCALING_DYNAMIC;
  other.factor = 2;
  other.max_position_embeddings = 4;
  other.seq_len = 5;
  all.push_back(Create(other));
  other = config;
  other.scaling = ROPE_SCALING_NOPE;
  other.theta = 0;
  all.push_back(Create(other));
  other = config;
  other.axes = 2;
  other.mrope_section[0] = 1;
  other.mrope_section[1] = 1;
  all.push_back(Create(other));
  other.ids_per_axis = 1;
  all.push_back(Create(other));
  return all;
}

TEST(OneToken, IsRefusedAsAPreparedCallIs) {
  const std::vector<Context> contexts = Contexts();
  int passed = 0, refused = 0;
  for (const Change& change : Changes()) {
    for (const int64_t value : change.values) {
      for (size_t c = 0; c < contexts.size(); ++c) {
        for (int kind = 0; kind < 3; ++kind) {
          for (rope_dtype dtype : {ROPE_DTYPE_F32, ROPE_DTYPE_F16}) {
            A args = Args(1, 1);
            args.q = Tensor(kQ, dtype, 2);
            args.k = Tensor(kK, dtype, 2);
            args.positions = kind == 0   ? Offset(3)
                             : kind == 1 ? Ids(ROPE_POSITIONS_IDS_T, ids32)
                                         : Ids(ROPE_POSITIONS_IDS_BT, ids64);
            change.make(&args, value);
            SCOPED_TRACE(change.name + " " + std::to_string(value) + ", context " +
                         std::to_string(c) + ", positions " + std::to_string(kind) + ", dtype " +
                         std::to_string(dtype));
            Fill();
            std::memcpy(before, memory, sizeof(memory));
            const rope_status status = rope_apply_qk(contexts[c].get(), &args);
            char after[kSize];
            std::memcpy(after, memory, sizeof(memory));
            Fill();
            ASSERT_EQ(status, ApplySpoilt(contexts[c].get(), args)) << rope_last_error();
            ASSERT_EQ(std::memcmp(after, memory, sizeof(memory)), 0);
            if (status != ROPE_OK) {
              ASSERT_EQ(std::memcmp(after, before, sizeof(memory)), 0);
            }
            ++(status == ROPE_OK ? passed : refused);
          }
        }
      }
    }
  }
  EXPECT_GT(passed, 1000);
  EXPECT_GT(refused, 1000);
}

}  // namespace
}  // namespace rope::testing
