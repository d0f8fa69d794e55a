// A call that moves keys, and has a short way through the checks (call/check_move.h), is refused
// where the long way refuses it, with its message, and else does the same: every field changed.
// Those whose rope_fused is that of a later version, with zeros at its end, go the long way.
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "support/handles.h"
#include "support/short_way.h"

namespace rope::testing {
namespace {

constexpr int kDim = 8, kRotary = 4, kHeads = 2, kPages = 4, kPageSize = 2, kMost = 3;
WaysMemory memory;
// k and v of source and of cache, where these are not one memory.
char *const kSourceK = memory.at(1024), *const kSourceV = memory.at(2048);
char *const kCacheK = memory.at(4096), *const kCacheV = memory.at(5120);

// A call with everything that it points to, of so many tokens.
struct All {
  rope_qk_args args;
  rope_positions from;
  LaterFused later;
  rope_kv_cache source, cache;
  int64_t to_ids[kMost], from_ids[kMost], source_slots[kMost], slots[kMost];
  int32_t ids32[kMost], slots32[kMost], table[kPages], start[1], cu[2];
  float idsf[kMost];
  rope_scale scale;
  rope_norm norm;
  rope_shard shard;
  rope_cos_sin rows;
  rope_runner runner;
  rope_fused& fused() { return later.fused; }
};

using Change = FieldChange<All>;

// From slots 0 to 2 to slots 5 to 3, or in place; of spans alone, or of whole heads.
void Start(All* a, int tokens, bool one_memory, bool spans, rope_operation operation) {
  std::memset(a, 0, sizeof(*a));
  a->args = Args(1, tokens);
  a->args.operation = operation;
  a->args.positions.kind = ROPE_POSITIONS_IDS_T;
  a->args.positions.ids_i64 = a->to_ids;
  a->from = a->args.positions;
  a->from.ids_i64 = a->from_ids;
  a->fused() = ROPE_INIT(rope_fused);
  a->fused().source = &a->source;
  a->fused().cache = &a->cache;
  a->fused().from_positions = operation == ROPE_OPERATION_REROTATE ? &a->from : nullptr;
  a->args.fused = &a->fused();
  a->source = ROPE_INIT(rope_kv_cache);
  a->source.kind = ROPE_SLOTS_MAPPED;
  a->source.pages = kPages;
  a->source.page_size = kPageSize;
  a->source.slots_length = tokens;
  a->source.k = Tensor(kSourceK, ROPE_DTYPE_F32, kHeads, ROPE_LAYOUT_NHD);
  a->source.k.head_dim = spans ? kRotary : 0;
  a->source.v = a->source.k;
  a->source.v.data = kSourceV;
  a->source.v.head_dim = spans ? kRotary : kDim;
  a->cache = a->source;
  if (!one_memory) a->cache.k.data = kCacheK, a->cache.v.data = kCacheV;
  a->source.slots_i64 = a->source_slots;
  a->cache.slots_i64 = a->slots;
  for (int i = 0; i < kMost; ++i) {
    a->source_slots[i] = i;
    a->slots[i] = a->slots32[i] = 5 - i;
    a->to_ids[i] = 3 + 2 * i, a->from_ids[i] = 70 + i;
    a->ids32[i] = 9 + i, a->idsf[i] = 0.5f + static_cast<float>(i);
  }
  for (int i = 0; i < kPages; ++i) a->table[i] = kPages - 1 - i;
  a->cu[1] = tokens;
  a->shard = ShardOf(ROPE_SHARD_CONTIGUOUS, 0, 1);
}

void Paged(rope_kv_cache* c, All* a) {
  c->kind = ROPE_SLOTS_PAGED;
  c->slots_i64 = nullptr;
  c->slots_length = 0;
  c->page_table = a->table;
  c->page_table_stride = kPages;
  c->starts = a->start;
}

template <rope_kv_cache All::*kCache, rope_tensor rope_kv_cache::*kTensor>
void AddTensorChanges(const std::string& name, std::vector<Change>* all) {
  const auto add = [&](const char* field, void (*make)(All*, int64_t),
                       std::vector<int64_t> values) {
    all->push_back({name + field, make, values});
  };
  add("reserved", [](All* a, int64_t) { (a->*kCache.*kTensor).reserved = 1; }, {1});
  add("dtype", [](All* a, int64_t v) { (a->*kCache.*kTensor).dtype = static_cast<rope_dtype>(v); },
      {-1, 0, 1, 2, 3, 4, 5, 7, 8});
  add("layout",
      [](All* a, int64_t v) { (a->*kCache.*kTensor).layout = static_cast<rope_layout>(v); },
      {-1, 0, 1, 2, 3, 4, 5, 6, 7});
  add("heads", [](All* a, int64_t v) { (a->*kCache.*kTensor).heads = static_cast<int32_t>(v); },
      {-1, 0, 1, 3, INT32_MAX});
  add("head_dim",
      [](All* a, int64_t v) { (a->*kCache.*kTensor).head_dim = static_cast<int32_t>(v); },
      {-1, 0, 1, kRotary, 6, kDim, 16});
  add("strides", [](All* a, int64_t v) { (&(a->*kCache.*kTensor).stride_batch)[v] = kDim; },
      {0, 1, 2});
  add("STRIDED", [](All* a, int64_t v) { SetStrides(&(a->*kCache.*kTensor), 4 * v, 2 * v, v); },
      {-1, 0, kRotary, kDim, 12, INT64_MAX / 8});
  add("scale", [](All* a, int64_t) { (a->*kCache.*kTensor).scale = &a->scale; }, {1});
  add("data", [](All* a, int64_t v) { (a->*kCache.*kTensor).data = memory.at(v); },
      {0, 1, 2, 4, 1024, 1028, 1536, 2048, 2560, 4096, 4608, 5120, 5632});
  add("no data", [](All* a, int64_t) { (a->*kCache.*kTensor).data = nullptr; }, {1});
  add("data at the end",
      [](All* a, int64_t v) {
        (a->*kCache.*kTensor).data =
            reinterpret_cast<void*>(UINTPTR_MAX - static_cast<uintptr_t>(v));
      },
      {3, 7, 15});
  add("absent", [](All* a, int64_t) { a->*kCache.*kTensor = {}; }, {1});
}

template <rope_kv_cache All::*kCache>
void AddCacheChanges(const std::string& name, std::vector<Change>* all) {
  const auto add = [&](const char* field, void (*make)(All*, int64_t),
                       std::vector<int64_t> values = {1}) {
    all->push_back({name + field, make, values});
  };
  AddTensorChanges<kCache, &rope_kv_cache::k>(name + "k.", all);
  AddTensorChanges<kCache, &rope_kv_cache::v>(name + "v.", all);
  add("struct_size", [](All* a, int64_t v) { (a->*kCache).struct_size = static_cast<uint32_t>(v); },
      {0, 8, sizeof(rope_kv_cache) - 8, sizeof(rope_kv_cache)});
  add("reserved", [](All* a, int64_t) { (a->*kCache).reserved = 1; });
  add("kind", [](All* a, int64_t v) { (a->*kCache).kind = static_cast<rope_slot_kind>(v); },
      {-1, 0, 1, 2, 3, 4});
  add("pages", [](All* a, int64_t v) { (a->*kCache).pages = v; }, {-1, 0, 1, 3, 5, INT64_MAX});
  add("page_size", [](All* a, int64_t v) { (a->*kCache).page_size = static_cast<int32_t>(v); },
      {-1, 0, 1, 3, 1 << 30, INT32_MAX});
  add("pages of another size",
      [](All* a, int64_t) { (a->*kCache).page_size = 4, (a->*kCache).pages = 2; });
  add("dropped",
      [](All* a, int64_t) { (a->*kCache).dropped = reinterpret_cast<uint32_t*>(a->table); });
  add("slots_length", [](All* a, int64_t v) { (a->*kCache).slots_length = v; }, {-1, 0, 1, 2, 9});
  add("no slots", [](All* a, int64_t) { (a->*kCache).slots_i64 = nullptr; });
  add("both slots", [](All* a, int64_t) { (a->*kCache).slots_i32 = a->slots32; });
  add("slots of 32 bits", [](All* a, int64_t) {
    (a->*kCache).slots_i64 = nullptr, (a->*kCache).slots_i32 = a->slots32;
  });
  add("starts of MAPPED", [](All* a, int64_t) { (a->*kCache).starts = a->start; });
  add("paged, a page",
      [](All* a, int64_t v) { Paged(&(a->*kCache), a), a->table[0] = static_cast<int32_t>(v); },
      {-2, -1, 0, 1, 3, kPages});
  add("paged, a start",
      [](All* a, int64_t v) { Paged(&(a->*kCache), a), a->start[0] = static_cast<int32_t>(v); },
      {-1, 0, 1, 5, 7, 8, INT32_MAX});
  add("paged, a stride",
      [](All* a, int64_t v) { Paged(&(a->*kCache), a), (a->*kCache).page_table_stride = v; },
      {-1, 0, 1, 2});
  add("paged without starts",
      [](All* a, int64_t) { Paged(&(a->*kCache), a), (a->*kCache).starts = nullptr; });
  add("linear",
      [](All* a, int64_t v) {
        Paged(&(a->*kCache), a), (a->*kCache).kind = ROPE_SLOTS_LINEAR;
        (a->*kCache).page_table = nullptr, (a->*kCache).page_table_stride = 0;
        a->start[0] = static_cast<int32_t>(v);
      },
      {-1, 0, 1, 2});
  add("absent", [](All* a, int64_t) { a->*kCache = {}; });
}

template <rope_positions* (*kPositions)(All*)>
void AddPositionChanges(const std::string& name, std::vector<Change>* all) {
  const auto add = [&](const char* field, void (*make)(All*, int64_t),
                       std::vector<int64_t> values = {1}) {
    all->push_back({name + field, make, values});
  };
  add("kind", [](All* a, int64_t v) { kPositions(a)->kind = static_cast<rope_position_kind>(v); },
      {-1, 0, 1, 2, 3, 4, 5, 6, 7});
  add("OFFSET", [](All* a, int64_t v) { *kPositions(a) = Offset(v); }, {-5, 0, 9, INT64_MAX});
  add("no ids", [](All* a, int64_t) { kPositions(a)->ids_i64 = nullptr; });
  add("ids of 32 bits",
      [](All* a, int64_t) { kPositions(a)->ids_i64 = nullptr, kPositions(a)->ids_i32 = a->ids32; });
  add("ids of two kinds", [](All* a, int64_t) { kPositions(a)->ids_i32 = a->ids32; });
  add("coordinates",
      [](All* a, int64_t) { kPositions(a)->ids_i64 = nullptr, kPositions(a)->ids_f32 = a->idsf; });
  add("ids that are not aligned", [](All* a, int64_t) {
    kPositions(a)->ids_i64 = reinterpret_cast<int64_t*>(reinterpret_cast<char*>(a->to_ids) + 4);
  });
  add("offset", [](All* a, int64_t) { kPositions(a)->offset = 1; });
  add("batch_repeat", [](All* a, int64_t v) { kPositions(a)->batch_repeat = v; }, {-1, 0, 1, 2});
  add("cu_seqlens",
      [](All* a, int64_t v) {
        kPositions(a)->cu_seqlens = a->cu, kPositions(a)->sequences = static_cast<int32_t>(v);
      },
      {0, 1, 2});
  add("sequences", [](All* a, int64_t) { kPositions(a)->sequences = 1; });
  add("IDS_STRIDED",
      [](All* a, int64_t v) {
        kPositions(a)->kind = ROPE_POSITIONS_IDS_STRIDED, kPositions(a)->stride_token = v;
      },
      {-1, 0, 1});
  add("shard", [](All* a, int64_t) { kPositions(a)->shard = &a->shard; });
}
rope_positions* PositionsOf(All* a) { return &a->args.positions; }
rope_positions* PositionsBefore(All* a) { return &a->from; }

std::vector<Change> Changes() {
  std::vector<Change> all;
  AddCacheChanges<&All::source>("source.", &all);
  AddCacheChanges<&All::cache>("cache.", &all);
  AddPositionChanges<&PositionsOf>("positions.", &all);
  AddPositionChanges<&PositionsBefore>("from_positions.", &all);
  const auto add = [&](const char* name, void (*make)(All*, int64_t),
                       std::vector<int64_t> values = {1}) {
    all.push_back({name, make, values});
  };
  add("nothing", [](All*, int64_t) {});
  add("operation", [](All* a, int64_t v) { a->args.operation = static_cast<rope_operation>(v); },
      {-1, 0, 1, 2, 3, 4, 5});
  add("tokens", [](All* a, int64_t v) { a->args.tokens = v; }, {-1, 0, 1, 2});
  add("batch", [](All* a, int64_t v) { a->args.batch = v; }, {-1, 0, 2});
  add("a slot that is read", [](All* a, int64_t v) { a->source_slots[0] = v; },
      {-1, 2, 5, 7, 8, INT64_MAX, INT64_MIN});
  add("a slot that is written", [](All* a, int64_t v) { a->slots[0] = v; },
      {-1, 0, 1, 2, 4, 7, 8, INT64_MAX, INT64_MIN});
  add("one place", [](All* a, int64_t v) { a->slots[v] = a->source_slots[v]; }, {0, 1, 2});
  add("no v", [](All* a, int64_t) { a->source.v = a->cache.v = {}; });
  add("dtype of all",
      [](All* a, int64_t v) {
        for (rope_kv_cache* c : {&a->source, &a->cache}) {
          c->k.dtype = c->v.dtype = static_cast<rope_dtype>(v);
        }
      },
      {0, 1, 2, 3, 4, 5});
  add("layout of all",
      [](All* a, int64_t v) {
        for (rope_kv_cache* c : {&a->source, &a->cache}) {
          c->k.layout = c->v.layout = static_cast<rope_layout>(v);
        }
      },
      {0, 1, ROPE_LAYOUT_NHD, ROPE_LAYOUT_HND});
  add("heads of all",
      [](All* a, int64_t v) {
        for (rope_kv_cache* c : {&a->source, &a->cache}) {
          c->k.heads = c->v.heads = static_cast<int32_t>(v);
        }
      },
      {-1, 0, 1, 3});
  add("head_dim of all",
      [](All* a, int64_t v) {
        for (rope_kv_cache* c : {&a->source, &a->cache}) {
          c->k.head_dim = c->v.head_dim = static_cast<int32_t>(v);
        }
      },
      {-1, 0, 2, kRotary, 6, kDim});
  add("scales of all", [](All* a, int64_t) {
    for (rope_kv_cache* c : {&a->source, &a->cache}) c->k.scale = &a->scale;
  });
  add("keys of one memory", [](All* a, int64_t) { a->cache.k.data = a->source.k.data; });
  add("values of one memory", [](All* a, int64_t) { a->cache.v.data = a->source.v.data; });
  add("one memory of k or of v, and a slot that another token reads",
      [](All* a, int64_t v) {
        rope_tensor &apart = v == 0 ? a->cache.v : a->cache.k,
                    &one = v == 0 ? a->cache.k : a->cache.v;
        one.data = v == 0 ? a->source.k.data : a->source.v.data;
        apart.data = kCacheK;
        a->slots[0] = 2;
      },
      {0, 1});
  add("keys where values are",
      [](All* a, int64_t) { std::swap(a->cache.k.data, a->cache.v.data); });
  add("fused.struct_size",
      [](All* a, int64_t v) { a->fused().struct_size = static_cast<uint32_t>(v); },
      {0, 8, offsetof(rope_fused, source), 4097});
  add("fused.reserved", [](All* a, int64_t) { a->fused().reserved = 1; });
  add("no source", [](All* a, int64_t) { a->fused().source = nullptr; });
  add("no cache", [](All* a, int64_t) { a->fused().cache = nullptr; });
  add("no from", [](All* a, int64_t) { a->fused().from_positions = nullptr; });
  add("from", [](All* a, int64_t) { a->fused().from_positions = &a->from; });
  add("v", [](All* a, int64_t) {
    a->fused().v = Tensor(memory.at(0), ROPE_DTYPE_F32, kHeads), a->fused().v.head_dim = kDim;
  });
  add("v_out", [](All* a, int64_t) {
    a->fused().v_out = Tensor(memory.at(0), ROPE_DTYPE_F32, kHeads);
    a->fused().v_out.head_dim = a->source.v.head_dim;
  });
  add("rest", [](All* a, int64_t) {
    a->fused().rest = Tensor(memory.at(0), ROPE_DTYPE_F32, kHeads), a->fused().rest.head_dim = kDim;
    a->fused().rest_out = a->fused().rest, a->fused().rest_out.data = memory.at(512);
  });
  add("norms",
      [](All* a, int64_t v) {
        a->norm = ROPE_INIT(rope_norm);
        (&a->fused().q_norm)[v] = &a->norm;
      },
      {0, 1, 2});
  add("q", [](All* a, int64_t) { a->args.q = Tensor(memory.at(0), ROPE_DTYPE_F32, kHeads); });
  add("q in the pages",
      [](All* a, int64_t) { a->args.q = Tensor(a->cache.k.data, ROPE_DTYPE_F32, kHeads); });
  add("k", [](All* a, int64_t) { a->args.k = Tensor(memory.at(0), ROPE_DTYPE_F32, kHeads); });
  add("q_out",
      [](All* a, int64_t) { a->args.q_out = Tensor(memory.at(0), ROPE_DTYPE_F32, kHeads); });
  add("k_out",
      [](All* a, int64_t) { a->args.k_out = Tensor(memory.at(0), ROPE_DTYPE_F32, kHeads); });
  add("cos_sin", [](All* a, int64_t) { a->args.cos_sin = &a->rows; });
  add("stream", [](All* a, int64_t) { a->args.stream = memory.at(0); });
  add("runner", [](All* a, int64_t) { a->args.runner = &a->runner; });
  return all;
}

TEST(MoveFields, ShortWayDoesWhatTheLongWayDoes) {
  rope_config config = Config(kDim);
  config.rotary_dim = kRotary;
  config.rotary_offset = 2;
  rope_config nope = config, rounded = config, exact = config, native = config;
  nope.scaling = ROPE_SCALING_NOPE;
  rounded.rounding = ROPE_ROUNDING_COS_SIN;
  exact.angle = ROPE_ANGLE_EXACT;
  native.rounding = ROPE_ROUNDING_NATIVE;  // of f16 alone
  int accepted = 0, calls = 0;
  for (const rope_config& c : {config, nope, rounded, exact, native}) {
    const Context context = Create(c);
    for (const Change& change : Changes()) {
      for (const int64_t value : change.values) {
        for (int way = 0; way < 24; ++way) {
          constexpr rope_operation kMoves[] = {ROPE_OPERATION_SHIFT, ROPE_OPERATION_REROTATE,
                                               ROPE_OPERATION_FORWARD};
          const int tokens = way % 2 == 0 ? 1 : kMost;
          const bool one_memory = way / 2 % 2 == 0, spans = way / 4 % 2 == 0;
          const rope_operation operation = kMoves[way / 8];
          const std::string name =
              change.name + " " + std::to_string(value) + ", way " + std::to_string(way);
          accepted += ExpectOneResult<All>(context.get(), &memory, name, [&](All* a) {
            Start(a, tokens, one_memory, spans, operation);
            change.make(a, value);
          });
          ++calls;
        }
      }
    }
  }
  EXPECT_GT(accepted, calls / 6);
}

}  // namespace
}  // namespace rope::testing
