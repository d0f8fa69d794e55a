// Each call that moves keys and is refused names its field, value and rule, and writes nothing.
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <vector>

#include "support/errors.h"
#include "support/handles.h"

namespace rope::testing {
namespace {

constexpr int kDim = 8, kTokens = 4, kHeads = 2, kPages = 8, kPageSize = 2;
constexpr char kFunction[] = "rope_apply_qk";
float memory[4096], before[4096];

const int32_t kRuns[] = {0, 1, kTokens};

// A call with everything that it points to: from slots 0 to 3 to slots 11 to 8 of one memory.
struct All {
  rope_qk_args args;
  rope_positions from;
  rope_fused fused;
  rope_kv_cache source, cache;
  rope_scale source_scale, scale;
  int64_t source_slots[kTokens], slots[kTokens];
  int32_t table[4], starts[1];
};
using Bad = BadInput<All>;

void Connect(All* a) {
  a->args.fused = &a->fused;
  a->fused.source = &a->source;
  a->fused.cache = &a->cache;
  a->fused.from_positions = &a->from;
}

All Good() {
  All a{};
  a.args = Args(1, kTokens);
  a.args.operation = ROPE_OPERATION_REROTATE;
  a.args.positions = Offset(3);
  a.from = Offset(70);
  a.fused = ROPE_INIT(rope_fused);
  a.source = ROPE_INIT(rope_kv_cache);
  a.source.kind = ROPE_SLOTS_MAPPED;
  a.source.pages = kPages;
  a.source.page_size = kPageSize;
  a.source.k = Tensor(memory, ROPE_DTYPE_F32, kHeads, ROPE_LAYOUT_NHD);
  a.source.v = Tensor(memory + 1024, ROPE_DTYPE_F32, kHeads, ROPE_LAYOUT_HND);
  a.source.v.head_dim = 6;
  a.source.slots_length = kTokens;
  a.cache = a.source;
  for (int i = 0; i < kTokens; ++i) a.source_slots[i] = i, a.slots[i] = 11 - i;
  return a;
}

void Mapped(All* a) {
  a->source.slots_i64 = a->source_slots;
  a->cache.slots_i64 = a->slots;
}

// k in codes with computed scales, as `source` and `cache` describe it.
void InCodes(All* a) {
  a->source.v = a->cache.v = rope_tensor{};
  a->source_scale = ROPE_INIT(rope_scale);
  a->source_scale.computed = 1;
  a->source_scale.dtype = ROPE_DTYPE_F32;
  a->source_scale.data = memory + 3000;
  a->source_scale.stride_batch = kPageSize * kHeads;
  a->source_scale.stride_token = kHeads;
  a->source_scale.stride_head = 1;
  a->scale = a->source_scale;
  a->source.k.dtype = a->cache.k.dtype = ROPE_DTYPE_I8;
  a->source.k.scale = &a->source_scale;
  a->cache.k.scale = &a->scale;
}

const Bad kBad[] = {
    {"dropped, of a CPU, which refuses such slots",
     [](All* a) { a->cache.dropped = reinterpret_cast<uint32_t*>(a->starts); },
     kInvalid,
     {"args->fused->cache->dropped must be NULL in a "}},
    {"dropped of the source",
     [](All* a) { a->source.dropped = reinterpret_cast<uint32_t*>(a->starts); },
     kInvalid,
     {"args->fused->source->dropped must be NULL in a "}},
    // from_positions.
    {"none",
     [](All* a) { a->fused.from_positions = nullptr; },
     kInvalid,
     {"args->fused->from_positions (NULL) is required with REROTATE"}},
    {"no fused",
     [](All* a) { a->args.fused = nullptr; },
     kInvalid,
     {"args->fused (NULL) is required with REROTATE"}},
    {"another operation",
     [](All* a) { a->args.operation = ROPE_OPERATION_FORWARD; },
     kInvalid,
     {"args->fused->from_positions is set", "REROTATE"}},
    {"kind",
     [](All* a) { a->from.kind = 0; },
     kInvalid,
     {"args->fused->from_positions->kind (0) is required"}},
    {"an array that is not used",
     [](All* a) { a->from.ids_i64 = a->slots; },
     kInvalid,
     {"args->fused->from_positions->ids_i64 is set"}},
    {"sets",
     [](All* a) { a->from.freq_sets = a->starts; },
     kInvalid,
     {"args->fused->from_positions->freq_sets must be NULL"}},
    {"an offset for all of several sequences",
     [](All* a) {
       a->args.positions.cu_seqlens = kRuns, a->args.positions.sequences = 2;
       a->from = {}, a->from.kind = ROPE_POSITIONS_SEQ_OFFSETS, a->from.offsets_i32 = kRuns;
     },
     kInvalid,
     {"args->fused->from_positions->cu_seqlens (NULL) is required with SEQ_OFFSETS, because "
      "args->positions.sequences is 2"}},
    {"several sequences to one offset",
     [](All* a) {
       a->from.cu_seqlens = kRuns, a->from.sequences = 2;
       a->args.positions = {}, a->args.positions.kind = ROPE_POSITIONS_SEQ_OFFSETS;
       a->args.positions.offsets_i32 = kRuns;
     },
     kInvalid,
     {"args->positions.cu_seqlens (NULL) is required with SEQ_OFFSETS, because "
      "args->fused->from_positions->sequences is 2"}},
    // The structs.
    {"source struct_size",
     [](All* a) { a->source.struct_size = 0; },
     kInvalid,
     {"args->fused->source->struct_size (0)", "ROPE_INIT"}},
    {"source reserved",
     [](All* a) { a->source.reserved = 1; },
     kUnsupported,
     {"args->fused->source->reserved"}},
    {"gradients",
     [](All* a) {
       a->args.operation = ROPE_OPERATION_BACKWARD;
       a->fused.from_positions = nullptr;
     },
     kUnsupported,
     {"args->fused->source", "BACKWARD"}},
    {"no batch",
     [](All* a) { a->args.batch = 0; },
     kInvalid,
     {"args->batch (0) is required with args->fused->source: 1 for packed sequences"}},
    // What belongs together.
    {"k",
     [](All* a) { a->args.k = Tensor(memory + 3000, ROPE_DTYPE_F32, kHeads); },
     kInvalid,
     {"args->fused->source is set, and so is args->k"}},
    {"v",
     [](All* a) {
       a->fused.v = Tensor(memory + 3000, ROPE_DTYPE_F32, kHeads);
       a->fused.v.head_dim = 6;
     },
     kInvalid,
     {"args->fused->source is set, and so is args->fused->v"}},
    {"no keys",
     [](All* a) { a->source.k = rope_tensor{}; },
     kInvalid,
     {"args->fused->source->k is required"}},
    {"keys go nowhere",
     [](All* a) { a->cache.k = rope_tensor{}; },
     kInvalid,
     {"args->fused->source->k is set", "k_out", "cache->k"}},
    {"values go nowhere",
     [](All* a) { a->cache.v = rope_tensor{}; },
     kInvalid,
     {"args->fused->source->v is set", "v_out", "cache->v"}},
    {"values from nowhere",
     [](All* a) { a->source.v = rope_tensor{}; },
     kInvalid,
     {"args->fused->cache->v is set", "args->fused->source->v is absent"}},
    {"no destination at all",
     [](All* a) { a->fused.cache = nullptr; },
     kInvalid,
     {"args->fused->source->k is set", "k_out"}},
    // Its fields.
    {"pages", [](All* a) { a->source.pages = 0; }, kInvalid, {"source->pages (0)", "required"}},
    {"page_size",
     [](All* a) { a->source.page_size = -1; },
     kInvalid,
     {"source->page_size (-1)", "required"}},
    {"slot kind", [](All* a) { a->source.kind = 0; }, kInvalid, {"source->kind (0) is required"}},
    {"a slot that does not exist",
     [](All* a) { a->source_slots[2] = 16; },
     kInvalid,
     {"args->fused->source->slots_i64[2] (16) must be below 16"}},
    {"starts",
     [](All* a) {
       a->source.kind = ROPE_SLOTS_LINEAR;
       a->source.slots_i64 = nullptr;
       a->source.slots_length = 0;
     },
     kInvalid,
     {"args->fused->source->starts (NULL) is required"}},
    {"layout",
     [](All* a) { a->source.k.layout = ROPE_LAYOUT_BSHD; },
     kInvalid,
     {"args->fused->source->k.layout (ROPE_LAYOUT_BSHD)", "NHD"}},
    {"heads",
     [](All* a) { a->cache.k.heads = 1; },
     kInvalid,
     {"args->fused->cache->k.heads (1) must be that of args->fused->source->k (2)"}},
    {"k_out",
     [](All* a) { a->args.k_out = Tensor(memory + 3000, ROPE_DTYPE_F32, 1); },
     kInvalid,
     {"args->k_out.heads (1) must be that of args->fused->source->k (2)"}},
    {"aligned",
     [](All* a) {
       a->source.k.data = reinterpret_cast<char*>(memory + 2048) + 2;
       a->source.v = a->cache.v = rope_tensor{};
     },
     kInvalid,
     {"args->fused->source->k.data", "aligned"}},
    // 8 bits.
    {"no scale of codes that are read",
     [](All* a) { InCodes(a), a->source.k.scale = nullptr; },
     kInvalid,
     {"args->fused->source->k.scale (NULL) is required by its dtype (ROPE_DTYPE_I8)"}},
    {"no scale of codes that are written",
     [](All* a) { InCodes(a), a->cache.k.scale = nullptr; },
     kInvalid,
     {"args->fused->cache->k.scale (NULL) is required by its dtype (ROPE_DTYPE_I8)"}},
    {"a scale of what has none",
     [](All* a) { InCodes(a), a->source.k.dtype = a->cache.k.dtype = ROPE_DTYPE_F32; },
     kInvalid,
     {"args->fused->source->k.scale (0x", "must be NULL with dtype (ROPE_DTYPE_F32)"}},
    {"value of a source",
     [](All* a) {
       InCodes(a), a->source_scale = ROPE_INIT(rope_scale), a->source_scale.value = -1;
     },
     kInvalid,
     {"args->fused->source->k.scale->value (-1) must be from 2^-126 to 2^126"}},
    {"group of a source",
     [](All* a) { InCodes(a), a->source_scale.group = 3; },
     kInvalid,
     {"args->fused->source->k.scale->group (3) must divide 8"}},
    {"dtype of scales that are read",
     [](All* a) { InCodes(a), a->source_scale.dtype = ROPE_DTYPE_BF16; },
     kInvalid,
     {"args->fused->source->k.scale->dtype (ROPE_DTYPE_BF16) must be F32 or E8M0"}},
    {"values without a scale",
     [](All* a) {
       InCodes(a), a->source.v = a->cache.v = a->source.k, a->source.v.scale = nullptr;
     },
     kInvalid,
     {"args->fused->source->v.head_dim (0) is required"}},
    {"misaligned scales of a source",
     [](All* a) { InCodes(a), a->source_scale.data = reinterpret_cast<char*>(memory + 3000) + 2; },
     kInvalid,
     {"args->fused->source->k.scale->data (0x", "(4 bytes)"}},
    {"scales of a source among the keys that are written",
     [](All* a) { InCodes(a), a->source_scale.data = memory + 2; },
     kInvalid,
     {"args->fused->source->k.scale->data overlaps args->fused->"}},
    {"computed scales beside those that are read",
     [](All* a) { InCodes(a), a->scale.data = memory + 3001; },
     kInvalid,
     {"args->fused->source->k.scale->data overlaps args->fused->cache->k.scale->data"}},
    {"scales alone are one memory",
     [](All* a) { InCodes(a), a->cache.k.data = memory + 2048; },
     kInvalid,
     {"args->fused->source->k.scale->data overlaps args->fused->cache->k.scale->data"}},
    {"values alone are one memory",
     [](All* a) { a->cache.k.data = memory + 2048, a->slots[0] = 2; },
     kInvalid,
     {"token 2 of batch row 0 is read in slot 2"}},
    // Memory.
    {"k_out in the source",
     [](All* a) { a->args.k_out = Tensor(memory + 16, ROPE_DTYPE_F32, kHeads); },
     kInvalid,
     {"args->k_out overlaps args->fused->source->k"}},
    {"other pages of the same memory",
     [](All* a) {
       a->cache.k.data = memory + kPageSize * kHeads * kDim;
       a->cache.v = a->source.v = rope_tensor{};
     },
     kInvalid,
     {"args->fused->source->k overlaps args->fused->cache->k"}},
    {"the same memory, described in another way",
     [](All* a) {
       a->cache.pages = 2 * kPages, a->cache.page_size = 1;
       a->cache.v = a->source.v = rope_tensor{};
     },
     kInvalid,
     {"args->fused->source->k overlaps args->fused->cache->k"}},
    // Slots of one memory.
    {"read behind a write",
     [](All* a) { a->slots[0] = 2; },
     kInvalid,
     {"args->fused->source: token 2 of batch row 0 is read in slot 2", "for another token"}},
    {"one by one",
     [](All* a) {
       for (int i = 0; i < kTokens; ++i) a->slots[i] = i + 1;
     },
     kInvalid,
     {"token 1 of batch row 0 is read in slot 1"}},
    {"in a circle",
     [](All* a) {
       for (int i = 0; i < kTokens; ++i) a->slots[i] = (i + 1) % kTokens;
     },
     kInvalid,
     {"token 0 of batch row 0 is read in slot 0"}},
    {"turned twice",
     [](All* a) {
       a->source_slots[3] = a->source_slots[1];
       for (int i = 0; i < kTokens; ++i) a->slots[i] = a->source_slots[i];
     },
     kInvalid,
     {"token 1 of batch row 0 is read in slot 1"}},
    {"stays, and is read elsewhere",
     [](All* a) { a->slots[1] = 1, a->source_slots[2] = 1; },
     kInvalid,
     {"token 2 of batch row 0 is read in slot 1"}},
    {"values alone are one memory",
     [](All* a) {
       a->cache.k.data = memory + 2048;
       a->slots[0] = 2;
     },
     kInvalid,
     {"token 2 of batch row 0 is read in slot 2"}},
    {"keys alone are one memory",
     [](All* a) {
       a->cache.v.data = memory + 2048;
       a->slots[0] = 2;
     },
     kInvalid,
     {"token 2 of batch row 0 is read in slot 2"}},
    {"a page that two sequences share",
     [](All* a) {
       a->args.batch = 2, a->args.tokens = 2;
       a->source.kind = ROPE_SLOTS_PAGED;
       a->source.slots_i64 = nullptr, a->source.slots_length = 0;
       a->source.page_table = a->table;
       a->source.page_table_stride = 1;
       a->source.starts = a->starts;
       a->table[0] = a->table[1] = 5;
       static int32_t zeros[2];
       a->source.starts = zeros;
       a->cache = a->source;
     },
     kInvalid,
     {"token 0 of batch row 0 is read in slot 10"}},
};

TEST(MoveErrors, NameFieldValueAndRule) {
  const Context context = Create(Config(kDim));
  for (const Bad& bad : kBad) {
    All a = Good();
    Connect(&a);
    Mapped(&a);
    for (int i = 0; i < 4096; ++i) memory[i] = static_cast<float>(i);
    std::memcpy(before, memory, sizeof(memory));
    EXPECT_OK(rope_apply_qk(context.get(), &a.args));
    EXPECT_NE(std::memcmp(memory, before, sizeof(memory)), 0);
    std::memcpy(before, memory, sizeof(memory));
    bad.change(&a);
    ExpectParts(kFunction, bad, rope_apply_qk(context.get(), &a.args));
    EXPECT_EQ(std::memcmp(memory, before, sizeof(memory)), 0) << bad.name;
  }
}

// What a context of f16 turns is f16.
TEST(MoveErrors, CodesDoNotTurnInF16) {
  rope_config config = Config(kDim);
  config.rounding = ROPE_ROUNDING_NATIVE;
  const Context context = Create(config);
  All a = Good();
  Connect(&a);
  Mapped(&a);
  InCodes(&a);
  EXPECT_EQ(rope_apply_qk(context.get(), &a.args), kInvalid);
  ExpectMessage(kFunction, {"args->fused->source->k.dtype (ROPE_DTYPE_I8) must be ROPE_DTYPE_F16"});
}

TEST(MoveErrors, PreparedCallsHaveNoSource) {
  const Context context = Create(Config(kDim));
  All a = Good();
  Connect(&a);
  Mapped(&a);
  a.source.k.data = a.source.v.data = a.cache.k.data = a.cache.v.data = nullptr;
  rope_prepared* prepared = nullptr;
  EXPECT_EQ(rope_prepared_create(context.get(), &a.args, &prepared), kUnsupported);
  ExpectMessage("rope_prepared_create", {"args->fused->source must be NULL in a prepared call"});
}

// Slots far apart, and more of them than one window of bits holds: what is allowed, and what is
// not.
TEST(MoveErrors, SlotsAreComparedHoweverFarApart) {
  const Context context = Create(Config(2));
  constexpr int kMany = 1000;
  constexpr int64_t kSlots = 300000;
  std::vector<float> keys(2 * kSlots, 1);
  for (int clash : {-1, 0, 1, 500, kMany - 1}) {
    std::vector<int64_t> from(kMany), to(kMany);
    for (int i = 0; i < kMany; ++i) {
      from[i] = (i * 7919ll + 11) * 2 % kSlots;  // even
      to[i] = (i * 104729ll) * 2 % kSlots + 1;   // odd
    }
    if (clash >= 0) to[kMany / 2 - clash / 3] = from[clash];
    rope_kv_cache source = ROPE_INIT(rope_kv_cache);
    source.kind = ROPE_SLOTS_MAPPED;
    source.pages = kSlots;
    source.page_size = 1;
    source.k = Tensor(keys.data(), ROPE_DTYPE_F32, 1, ROPE_LAYOUT_NHD);
    source.slots_length = kMany;
    rope_kv_cache cache = source;
    source.slots_i64 = from.data();
    cache.slots_i64 = to.data();
    rope_fused fused = ROPE_INIT(rope_fused);
    fused.source = &source;
    fused.cache = &cache;
    rope_qk_args args = Args(1, kMany);
    args.positions = Offset(0);
    args.fused = &fused;
    const rope_status status = rope_apply_qk(context.get(), &args);
    const bool stays = clash >= 0 && kMany / 2 - clash / 3 == clash;
    EXPECT_EQ(status, clash < 0 || stays ? ROPE_OK : kInvalid) << clash;
    if (status != ROPE_OK) {
      const std::string token = "token " + std::to_string(clash) + " of";
      ExpectMessage(kFunction, {token.c_str(), "is written for another token"});
    }
  }
}

}  // namespace
}  // namespace rope::testing
