// A call on one token, which has ways of its own through the checks (call/check_token.h) and
// through the CPU backend (cpu/one_token.h): it is refused where a prepared call is, which has
// neither, and turns heads as a call on more tokens does. In a cache, prepared or not, it is what a
// call and copies are.
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "math/element.h"
#include "support/cache_call.h"
#include "support/elements.h"
#include "support/enumerators.h"
#include "support/handles.h"
#include "support/prepared_call.h"
#include "support/random.h"
#include "support/targets.h"

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
  if (args.fused != nullptr && args.fused->cache != nullptr) {
    beside = *args.fused;
    stored = *beside.cache;
    const auto take = [](rope_tensor* t) { return std::exchange(t->data, nullptr); };
    data.v = take(&beside.v), data.v_out = take(&beside.v_out);
    data.rest = take(&beside.rest), data.rest_out = take(&beside.rest_out);
    data.cache_k = take(&stored.k), data.cache_v = take(&stored.v);
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

class OneTokenOf : public TargetTest {};

// A random context of one row for each token.
rope_config RandomConfig(Random* random) {
  const int head_dim = random->Of({2, 6, 16, 64, 72, 80, 96, 128, 256, 1024});
  rope_config config = Config(head_dim, random->Pick(1, ROPE_PAIRING_INTERLEAVED_TO_HALVES));
  config.rounding = random->Pick(0, kLastRounding);
  config.angle =
      random->Of({ROPE_ANGLE_FLOAT32, ROPE_ANGLE_EXACT, ROPE_ANGLE_DIVIDE, ROPE_ANGLE_GGML});
  config.attention_factor = random->Of({0.0, 1.25});
  if (head_dim > 6 && random->Sometimes(3)) {
    config.rotary_dim = head_dim / 2;
    config.rotary_offset = random->Of({0, head_dim / 2});
  }
  return config;
}

// Heads of tokens that follow each other, every second one of which is used.
struct Heads {
  std::vector<char> in, out;
  rope_tensor of, to;
};

Heads MakeHeads(Random* random, const rope_config& config, rope_dtype dtype, bool in_place) {
  Heads heads;
  const int size = ElementSize(dtype), count = random->Pick(1, 9);
  const auto bytes = static_cast<size_t>(3 * count * 2 * config.head_dim * size);
  heads.in.resize(bytes);
  heads.out.resize(bytes);
  for (char& byte : heads.in) byte = static_cast<char>(random->Next());
  for (size_t at = 1; at < bytes && random->Sometimes(2); at += 2) heads.in[at] &= 0x47;
  heads.of = Tensor(heads.in.data(), dtype, count, ROPE_LAYOUT_STRIDED);
  const int64_t step = config.head_dim * random->Pick(1, 2);
  SetStrides(&heads.of, 3 * count * step, count * step, step);
  heads.to = heads.of;
  heads.to.data = heads.out.data();
  if (in_place) heads.to = {};
  return heads;
}

void MoveBy(rope_tensor* t, int64_t token) {
  if (t->data == nullptr) return;
  t->data = static_cast<char*>(t->data) + token * t->stride_token * ElementSize(t->dtype);
}

// The same bits; which NaN it is depends on how the compiler orders a product.
::testing::AssertionResult IsTurnedAlike(rope_dtype dtype, const std::vector<char>& a,
                                         const std::vector<char>& b) {
  const auto count = static_cast<int64_t>(a.size()) / ElementSize(dtype);
  for (int64_t i = 0; i < count; ++i) {
    if (IsSame(dtype, a.data(), b.data(), i)) continue;
    return ::testing::AssertionFailure() << "element " << i << " of dtype " << dtype;
  }
  return ::testing::AssertionResult(a.size() == b.size());
}

TEST_P(OneTokenOf, TurnsAsOneOfThree) {
  for (int seed = 0; seed < 3000; ++seed) {
    Random random(static_cast<uint64_t>(seed) + 1);
    const rope_config config = RandomConfig(&random);
    rope_context* made = nullptr;
    if (rope_context_create(&config, &made) != ROPE_OK) continue;  // GGML of few pairings
    const Context context(made);
    const std::vector<rope_dtype> dtypes = DtypesOf(config.rounding);
    if (dtypes.empty()) continue;
    const auto dtype = [&] {
      return dtypes[static_cast<size_t>(random.Below(static_cast<int64_t>(dtypes.size())))];
    };
    const bool in_place = random.Sometimes(2);
    const rope_dtype of_q = dtype();
    Heads q = MakeHeads(&random, config, of_q, in_place),
          k = MakeHeads(&random, config, random.Sometimes(4) ? dtype() : of_q, in_place);
    const int64_t first =
        random.Of<int64_t>({0, 77, -5, int64_t{1} << 24, int64_t{1} << 40}) + random.Below(1000);
    const int64_t ids[] = {first, first + 1, first + 2};
    const float coordinates[] = {0.5f, static_cast<float>(random.Below(4096)), 2};
    const int32_t runs[] = {0, 1, 3};
    A all = Args(1, 3);
    all.operation = random.Pick(0, ROPE_OPERATION_SHIFT);
    const bool counted = all.operation != ROPE_OPERATION_SHIFT && random.Sometimes(2);
    const bool packed = counted && random.Sometimes(3);
    const bool floats = !counted && config.angle != ROPE_ANGLE_EXACT && random.Sometimes(3);
    all.positions = counted  ? Offset(first)
                    : floats ? Ids(ROPE_POSITIONS_IDS_T, coordinates)
                             : Ids(ROPE_POSITIONS_IDS_T, ids);
    if (packed) all.positions.cu_seqlens = runs, all.positions.sequences = 2;
    all.q = q.of, all.k = k.of, all.q_out = q.to, all.k_out = k.to;

    A one = all;
    one.tokens = 1;
    if (packed) {
      one.positions = Offset(first);  // the second sequence begins with this token
    } else if (counted) {
      one.positions.offset += 1;
    } else {
      one.positions.ids_i64 += floats ? 0 : 1;
      if (floats) ++one.positions.ids_f32;
    }
    for (rope_tensor* t : {&one.q, &one.k, &one.q_out, &one.k_out}) MoveBy(t, 1);
    if (random.Sometimes(4)) one.q = one.q_out = all.q = all.q_out = {};

    const std::vector<char> q_in = q.in, k_in = k.in;
    SCOPED_TRACE("seed " + std::to_string(seed));
    const rope_status status = rope_apply_qk(context.get(), &all);
    const auto middle = [](const Heads& heads) {
      const std::vector<char>& bytes = heads.to.data != nullptr ? heads.out : heads.in;
      const auto token = static_cast<size_t>(heads.of.stride_token * ElementSize(heads.of.dtype));
      return std::vector<char>(bytes.begin() + static_cast<ptrdiff_t>(token),
                               bytes.begin() + static_cast<ptrdiff_t>(2 * token));
    };
    const std::vector<char> q_turned = middle(q), k_turned = middle(k);
    q.in = q_in, k.in = k_in;
    q.out.assign(q.out.size(), 0), k.out.assign(k.out.size(), 0);
    ASSERT_EQ(rope_apply_qk(context.get(), &one), status) << rope_last_error();
    if (status != ROPE_OK) continue;
    ASSERT_TRUE(IsTurnedAlike(q.of.dtype, middle(q), q_turned));
    ASSERT_TRUE(IsTurnedAlike(k.of.dtype, middle(k), k_turned));
  }
}

TEST_P(OneTokenOf, GoesToItsSlot) {
  int stored = 0;
  for (uint64_t seed = 1; seed <= 3000; ++seed) {
    Random random(seed);
    const rope_config config = RandomConfig(&random);
    rope_context* made = nullptr;
    if (rope_context_create(&config, &made) != ROPE_OK) continue;
    const Context context(made);
    const std::vector<rope_dtype> dtypes = DtypesOf(config.rounding);
    if (dtypes.empty()) continue;
    const auto dtype = [&] {
      return dtypes[static_cast<size_t>(random.Below(static_cast<int64_t>(dtypes.size())))];
    };
    CacheWish wish;
    wish.alike = random.Sometimes(2);  // for which there is a short way to a plan
    wish.kind = random.Pick(ROPE_SLOTS_MAPPED, ROPE_SLOTS_LINEAR);
    wish.variant = random.Sometimes(2);
    wish.dtype = dtype();
    wish.q_dtype = random.Sometimes(4) ? dtype() : wish.dtype;
    wish.cache_layout = random.Pick(ROPE_LAYOUT_STRIDED, ROPE_LAYOUT_HND);
    wish.layout = random.Pick(1, ROPE_LAYOUT_STRIDED);
    wish.keys = random.Of({Keys::kCacheOnly, Keys::kInPlace, Keys::kOut});
    wish.positions = ROPE_POSITIONS_OFFSET + random.Pick(0, 3);
    wish.packed = random.Sometimes(3);
    wish.most_tokens = wish.most_batch = 1;
    CacheCall call(config, wish, seed);
    stored += static_cast<int>(call.stored());
    SCOPED_TRACE("seed " + std::to_string(seed));
    const A& args = call.args();
    const Lines unturned = call.memory(), want = call.Want(context);
    ASSERT_EQ(rope_apply_qk(context.get(), &args), ROPE_OK) << rope_last_error();
    ASSERT_TRUE(call.memory() == want);
    const PreparedCall described(args);
    const Prepared prepared = Prepare(context, described.args());
    ASSERT_NE(prepared, nullptr);
    call.Scribble();
    for (int layer = 0; layer < 2; ++layer) {
      call.Restore(unturned);
      ASSERT_EQ(rope_prepared_apply(prepared.get(), &described.data), ROPE_OK) << rope_last_error();
      ASSERT_TRUE(call.memory() == want) << layer;
    }
  }
  EXPECT_GT(stored, 1000);
}

INSTANTIATE_TARGETS(OneTokenOf);

}  // namespace
}  // namespace rope::testing
