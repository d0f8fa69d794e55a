// Calls with a cache, each wrong in one place, and what the message about it names.
#ifndef LIBROPE_TESTS_SUPPORT_BAD_CACHES_H_
#define LIBROPE_TESTS_SUPPORT_BAD_CACHES_H_

#include <cstdint>
#include <cstring>

#include "support/errors.h"
#include "support/handles.h"

namespace rope::testing::bad_caches {

inline constexpr int kDim = 8, kTokens = 4, kHeads = 2, kPages = 4, kPageSize = 2;
inline constexpr char kFunction[] = "rope_apply_qk";
inline float memory[4096], before[4096];

// A call with everything that it points to.
struct All {
  rope_qk_args args;
  rope_fused fused;
  rope_kv_cache cache;
  int64_t slots[kTokens];
  int32_t slots32[kTokens], table[6], page_starts[3], starts[2], cu[3];
  rope_cos_sin rows;
};
using Bad = BadInput<All>;

inline void Connect(All* a) {
  a->args.fused = &a->fused;
  a->fused.cache = &a->cache;
}

inline All Good() {
  All a{};
  a.args = Args(1, kTokens);
  a.args.q = Tensor(memory, ROPE_DTYPE_F32, kHeads);
  a.args.k = Tensor(memory + 512, ROPE_DTYPE_F32, kHeads);
  a.args.positions = Offset(3);
  a.fused = ROPE_INIT(rope_fused);
  a.fused.v = Tensor(memory + 1024, ROPE_DTYPE_F32, kHeads);
  a.fused.v.head_dim = 6;
  rope_kv_cache& c = a.cache = ROPE_INIT(rope_kv_cache);
  c.kind = ROPE_SLOTS_MAPPED;
  c.pages = kPages;
  c.page_size = kPageSize;
  c.k = Tensor(memory + 2048, ROPE_DTYPE_F32, kHeads, ROPE_LAYOUT_NHD);
  c.v = Tensor(memory + 3072, ROPE_DTYPE_F32, kHeads, ROPE_LAYOUT_HND);
  c.v.head_dim = 6;
  c.slots_length = kTokens;
  for (int i = 0; i < kTokens; ++i) a.slots[i] = a.slots32[i] = 7 - i;
  return a;
}
inline void Mapped(All* a) { a->cache.slots_i64 = a->slots; }

// The same, with v described as k is: calls for which there is a short way.
inline All GoodAlike() {
  All a = Good();
  a.fused.v.head_dim = a.cache.v.head_dim = kDim;
  a.cache.v.layout = a.cache.k.layout;
  return a;
}

inline void Sequences(All* a) {  // of 3 tokens and 1
  a->cu[1] = 3, a->cu[2] = 4;
  a->args.positions.cu_seqlens = a->cu;
  a->args.positions.sequences = 2;
  a->starts[0] = 1, a->starts[1] = 2;
  a->cache.starts = a->starts;
  a->cache.slots_length = 0;
}
inline void Paged(All* a) {
  Sequences(a);
  a->cache.kind = ROPE_SLOTS_PAGED;
  a->cache.page_table = a->table;
  a->cache.page_table_stride = 3;
  const int32_t table[] = {3, 1, 99, 99, 2, 99};  // 99 is not read
  std::memcpy(a->table, table, sizeof(table));
}
inline void ByStarts(All* a) {
  Paged(a);
  a->cache.page_table_stride = 0;
  a->cache.page_starts = a->page_starts;
  a->page_starts[1] = 3, a->page_starts[2] = 6;
}
inline void Linear(All* a) {
  Sequences(a);
  a->cache.kind = ROPE_SLOTS_LINEAR;
  a->cache.page_size = 4;
}

// What could be rest, or rest_out.
inline rope_tensor Rest() {
  rope_tensor rest = Tensor(memory + 3584, ROPE_DTYPE_F32, kHeads);
  rest.head_dim = 4;
  return rest;
}
inline void CopyRest(All* a) {  // to memory of its own
  a->fused.rest = a->fused.rest_out = Rest();
  a->fused.rest_out.data = memory + 3840;
}

inline const Bad kBad[] = {
    // The structs.
    {"fused struct_size",
     [](All* a) { a->fused.struct_size = 8; },
     kInvalid,
     {"args->fused->struct_size (8)", "ROPE_INIT"}},
    {"fused reserved", [](All* a) { a->fused.reserved = 1; }, kUnsupported, {"fused->reserved"}},
    {"cache struct_size",
     [](All* a) { a->cache.struct_size = 0; },
     kInvalid,
     {"args->fused->cache->struct_size (0)", "ROPE_INIT"}},
    {"cache reserved",
     [](All* a) { a->cache.reserved = 1; },
     kUnsupported,
     {"args->fused->cache->reserved"}},
    {"gradients",
     [](All* a) { a->args.operation = ROPE_OPERATION_BACKWARD; },
     kUnsupported,
     {"args->fused->cache", "BACKWARD"}},
    // What belongs together.
    {"an empty cache",
     [](All* a) { a->cache.k = a->cache.v = rope_tensor{}; },
     kInvalid,
     {"cache->k", "cache->v", "both be absent"}},
    {"cache->k without k",
     [](All* a) { a->args.k = rope_tensor{}; },
     kInvalid,
     {"args->fused->cache->k is set", "args->k is absent"}},
    {"cache->v without v",
     [](All* a) { a->fused.v = rope_tensor{}; },
     kInvalid,
     {"args->fused->cache->v is set", "args->fused->v is absent"}},
    {"v_out without v",
     [](All* a) {
       a->fused.v_out = a->fused.v;
       a->cache.v = a->fused.v = rope_tensor{};
     },
     kInvalid,
     {"args->fused->v_out is set", "args->fused->v is absent"}},
    {"v without a destination",
     [](All* a) { a->cache.v = rope_tensor{}; },
     kInvalid,
     {"args->fused->v is set", "v_out", "cache->v"}},
    {"v without a cache",
     [](All* a) { a->fused.cache = nullptr; },
     kInvalid,
     {"args->fused->v is set", "v_out", "cache->v"}},
    {"rest without rest_out",
     [](All* a) { a->fused.rest = Rest(); },
     kInvalid,
     {"args->fused->rest is set, but args->fused->rest_out is absent"}},
    {"rest_out without rest",
     [](All* a) { a->fused.rest_out = Rest(); },
     kInvalid,
     {"args->fused->rest_out is set, but args->fused->rest is absent"}},
    {"rest_out of another width",
     [](All* a) {
       CopyRest(a);
       a->fused.rest_out.head_dim = 2;
     },
     kInvalid,
     {"args->fused->rest_out.head_dim (2) must be that of args->fused->rest (4)"}},
    {"rest_out with heads that are no multiple",
     [](All* a) {
       CopyRest(a);
       a->fused.rest_out.heads = 3;
     },
     kInvalid,
     {"args->fused->rest_out.heads (3) must be a multiple of those of args->fused->rest (2)"}},
    {"rest with a scale",
     [](All* a) {
       CopyRest(a);
       a->fused.rest.scale = reinterpret_cast<const rope_scale*>(memory);
     },
     kInvalid,
     {"args->fused->rest.scale (0x", "must be NULL with dtype (ROPE_DTYPE_F32)"}},
    {"rest_out with a scale, but not of 8 bits",
     [](All* a) {
       CopyRest(a);
       a->fused.rest_out.scale = reinterpret_cast<const rope_scale*>(memory);
     },
     kInvalid,
     {"args->fused->rest_out.scale (0x", "must be NULL with dtype (ROPE_DTYPE_F32)"}},
    {"rest_out of 8 bits without a scale",
     [](All* a) {
       CopyRest(a);
       a->fused.rest_out.dtype = ROPE_DTYPE_I8;
     },
     kInvalid,
     {"args->fused->rest_out.scale (NULL) is required by its dtype (ROPE_DTYPE_I8)"}},
    // Sizes of the cache.
    {"pages", [](All* a) { a->cache.pages = 0; }, kInvalid, {"cache->pages (0)", "required"}},
    {"pages negative", [](All* a) { a->cache.pages = -1; }, kInvalid, {"cache->pages (-1)"}},
    {"page_size",
     [](All* a) { a->cache.page_size = 0; },
     kInvalid,
     {"cache->page_size (0)", "required"}},
    {"page_size too large",
     [](All* a) { a->cache.page_size = (1 << 30) + 1; },
     kInvalid,
     {"cache->page_size (1073741825)", "1073741824"}},
    // Its memory.
    {"layout of a tensor in a cache",
     [](All* a) { a->cache.k.layout = ROPE_LAYOUT_BSHD; },
     kInvalid,
     {"args->fused->cache->k.layout (ROPE_LAYOUT_BSHD)", "NHD, HND or STRIDED"}},
    {"layout unknown",
     [](All* a) { a->cache.v.layout = 7; },
     kUnsupported,
     {"args->fused->cache->v.layout (7)", "not known"}},
    {"layout missing",
     [](All* a) { a->cache.v.layout = 0; },
     kInvalid,
     {"args->fused->cache->v.layout (0)", "required"}},
    {"layout of a cache in q",
     [](All* a) { a->args.q.layout = ROPE_LAYOUT_NHD; },
     kInvalid,
     {"args->q.layout (ROPE_LAYOUT_NHD)", "only a cache"}},
    {"layout of a cache in v",
     [](All* a) { a->fused.v.layout = ROPE_LAYOUT_HND; },
     kInvalid,
     {"args->fused->v.layout (ROPE_LAYOUT_HND)", "only a cache"}},
    {"data missing",
     [](All* a) { a->cache.k.data = nullptr; },
     kInvalid,
     {"args->fused->cache->k.data (NULL)"}},
    {"data misaligned",
     [](All* a) { a->cache.k.data = reinterpret_cast<char*>(memory + 2048) + 2; },
     kInvalid,
     {"args->fused->cache->k.data (0x", "aligned"}},
    {"v misaligned",
     [](All* a) { a->fused.v.data = reinterpret_cast<char*>(memory + 1024) + 1; },
     kInvalid,
     {"args->fused->v.data (0x", "aligned"}},
    {"dtype unknown",
     [](All* a) { a->fused.v.dtype = 9; },
     kUnsupported,
     {"args->fused->v.dtype (9)", "not known"}},
    {"heads of another",
     [](All* a) { a->cache.k.heads = 1; },
     kInvalid,
     {"args->fused->cache->k.heads (1)", "args->k (2)"}},
    {"heads of another, v",
     [](All* a) { a->cache.v.heads = 3; },
     kInvalid,
     {"args->fused->cache->v.heads (3)", "args->fused->v (2)"}},
    {"heads missing",
     [](All* a) { a->cache.v.heads = 0; },
     kInvalid,
     {"args->fused->cache->v.heads (0)", "positive"}},
    {"head_dim of no kind",
     [](All* a) { a->cache.k.head_dim = 6; },
     kInvalid,
     {"args->fused->cache->k.head_dim (6)", "head_dim (8)"}},
    {"head_dim of v missing",
     [](All* a) { a->fused.v.head_dim = 0; },
     kInvalid,
     {"args->fused->v.head_dim (0)", "required", "1024"}},
    {"head_dim of v too large",
     [](All* a) { a->fused.v.head_dim = 1025; },
     kInvalid,
     {"args->fused->v.head_dim (1025)", "1024"}},
    {"head_dim of another",
     [](All* a) { a->cache.v.head_dim = 4; },
     kInvalid,
     {"args->fused->cache->v.head_dim (4)", "must be that of args->fused->v ("}},
    {"strides of a named layout",
     [](All* a) { a->cache.k.stride_token = a->cache.v.stride_token = 8; },
     kInvalid,
     {"args->fused->cache->k.stride_batch", "STRIDED"}},
    {"strides negative",
     [](All* a) { SetStrides(&a->cache.k, -32, 16, 8); },
     kInvalid,
     {"args->fused->cache->k.stride_batch", "(-32, 16, 8)"}},
    {"slots overlap",
     [](All* a) { SetStrides(&a->cache.k, 32, 8, 8); },
     kInvalid,
     {"args->fused->cache->k", "heads, slots or pages", "overlap"}},
    {"pages overlap",
     [](All* a) { SetStrides(&a->cache.v, 0, 12, 6); },
     kInvalid,
     {"args->fused->cache->v", "heads, slots or pages", "overlap"}},
    {"beyond the address space",
     [](All* a) { a->cache.pages = INT64_MAX / 16; },
     kInvalid,
     {"args->fused->cache->k (pages", "page_size 2", "address space"}},
    {"pages whose bytes wrap",
     [](All* a) { a->cache.pages = (int64_t{1} << 57) + kPages; },
     kInvalid,
     {"args->fused->cache->k (pages", "page_size 2", "address space"}},
    {"the end of the address space",
     [](All* a) { a->cache.k.data = reinterpret_cast<void*>(~uintptr_t{63}); },
     kInvalid,
     {"args->fused->cache->k (pages 4", "address space"}},
    {"strides beyond the address space",
     [](All* a) { SetStrides(&a->cache.k, INT64_MAX / 4, 16, 8); },
     kInvalid,
     {"args->fused->cache->k (pages 4", "address space"}},
    {"scales of a tensor that is none of 8 bits",
     [](All* a) { a->cache.v.scale = reinterpret_cast<const rope_scale*>(memory); },
     kInvalid,
     {"args->fused->cache->v.scale (0x", "must be NULL with dtype (ROPE_DTYPE_F32)"}},
    // What meets what.
    {"cache->k over q",
     [](All* a) { a->cache.k.data = memory + 60; },
     kInvalid,
     {"args->fused->cache->k overlaps args->q"}},
    {"cache->k over k",
     [](All* a) { a->cache.k.data = a->args.k.data; },
     kInvalid,
     {"args->fused->cache->k overlaps args->k"}},
    {"cache->k over k_out",
     [](All* a) {
       a->args.k_out = a->args.k;
       a->args.k_out.data = memory + 2048 + 100;
     },
     kInvalid,
     {"args->fused->cache->k overlaps args->k_out"}},
    {"v over q_out",
     [](All* a) {
       a->args.q_out = a->args.q;
       a->args.q_out.data = a->fused.v.data;
     },
     kInvalid,
     {"args->fused->v overlaps args->q_out"}},
    {"v over cache->k",
     [](All* a) { a->fused.v.data = memory + 2048; },
     kInvalid,
     {"args->fused->v overlaps args->fused->cache->k"}},
    {"cache->v over cache->k",
     [](All* a) { a->cache.v.data = memory + 2048 + 127; },
     kInvalid,
     {"args->fused->cache->v overlaps args->fused->cache->k"}},
    {"cache->v over v",
     [](All* a) { a->cache.v.data = a->fused.v.data; },
     kInvalid,
     {"args->fused->cache->v overlaps args->fused->v"}},
    {"v_out over v, and not it",
     [](All* a) {
       a->fused.v_out = a->fused.v;
       a->fused.v_out.layout = ROPE_LAYOUT_BHSD;
     },
     kInvalid,
     {"args->fused->v_out overlaps args->fused->v", "must be exactly it or disjoint from it"}},
    {"v, written, over k",
     [](All* a) {
       a->fused.v = a->args.k;
       a->fused.v.head_dim = a->cache.v.head_dim;
       a->fused.v_out = a->fused.v;
     },
     kInvalid,
     {"args->fused->v overlaps args->k"}},
    {"v_out overlaps itself",
     [](All* a) {
       a->fused.v_out = a->fused.v;
       a->fused.v_out.data = memory + 1536;
       SetStrides(&a->fused.v_out, 0, 3, 6);
     },
     kInvalid,
     {"args->fused->v_out", "strides let heads"}},
    {"rest_out over rest, and not it",
     [](All* a) {
       CopyRest(a);
       a->fused.rest_out.data = memory + 3584 + 4;
     },
     kInvalid,
     {"args->fused->rest_out overlaps args->fused->rest", "must be exactly it or disjoint from it"}},
    {"rest, written, over q",
     [](All* a) {
       a->fused.rest = Rest();
       a->fused.rest.data = a->args.q.data;
       a->fused.rest_out = a->fused.rest;
     },
     kInvalid,
     {"args->fused->rest overlaps args->q"}},
    {"rest_out over q",
     [](All* a) {
       CopyRest(a);
       a->fused.rest_out.data = a->args.q.data;
     },
     kInvalid,
     {"args->fused->rest_out overlaps args->q"}},
    {"rest over cache->v",
     [](All* a) {
       CopyRest(a);
       a->fused.rest.data = a->cache.v.data;
     },
     kInvalid,
     {"args->fused->rest overlaps args->fused->cache->v"}},
    {"rest_out over cache->k",
     [](All* a) {
       CopyRest(a);
       a->fused.rest_out.data = a->cache.k.data;
     },
     kInvalid,
     {"args->fused->rest_out overlaps args->fused->cache->k"}},
    {"rest_out overlaps itself",
     [](All* a) {
       CopyRest(a);
       SetStrides(&a->fused.rest_out, 0, 3, 4);
     },
     kInvalid,
     {"args->fused->rest_out", "strides let heads"}},
    // Slots.
    {"kind missing", [](All* a) { a->cache.kind = 0; }, kInvalid, {"cache->kind (0)", "required"}},
    {"kind unknown",
     [](All* a) { a->cache.kind = 4; },
     kUnsupported,
     {"cache->kind (4)", "not known"}},
    {"kind negative", [](All* a) { a->cache.kind = -1; }, kUnsupported, {"cache->kind (-1)"}},
    {"no slots",
     [](All* a) { a->cache.slots_i64 = nullptr; },
     kInvalid,
     {"slots_i32, slots_i64: 0 arrays", "exactly 1"}},
    {"two arrays of slots",
     [](All* a) { a->cache.slots_i32 = a->slots32; },
     kInvalid,
     {"slots_i32, slots_i64: 2 arrays", "exactly 1"}},
    {"slots misaligned",
     [](All* a) {
       a->cache.slots_i64 = reinterpret_cast<int64_t*>(reinterpret_cast<char*>(a->slots) + 4);
     },
     kInvalid,
     {"slots_i64 (0x", "aligned to 8"}},
    {"slots_length missing",
     [](All* a) { a->cache.slots_length = 0; },
     kInvalid,
     {"slots_length (0)", "required"}},
    {"slots_length negative",
     [](All* a) { a->cache.slots_length = -1; },
     kInvalid,
     {"slots_length (-1)", "positive"}},
    {"a slot that does not exist",
     [](All* a) { a->slots[3] = kPages * kPageSize; },
     kInvalid,
     {"slots_i64[3] (8)", "below 8", "4 pages of 2"}},
    {"a slot that does not exist, 32 bits",
     [](All* a) {
       a->cache.slots_i64 = nullptr;
       a->cache.slots_i32 = a->slots32;
       a->slots32[0] = INT32_MAX;
     },
     kInvalid,
     {"slots_i32[0] (2147483647)", "below 8"}},
    {"dropped, of a CPU, which refuses such slots",
     [](All* a) { a->cache.dropped = reinterpret_cast<uint32_t*>(a->slots32); },
     kInvalid,
     {"args->fused->cache->dropped must be NULL in a "}},
    {"starts of MAPPED",
     [](All* a) { a->cache.starts = a->starts; },
     kInvalid,
     {"starts is set", "ROPE_SLOTS_MAPPED"}},
    {"page_table of MAPPED",
     [](All* a) { a->cache.page_table = a->table; },
     kInvalid,
     {"page_table is set", "ROPE_SLOTS_MAPPED"}},
    {"page_starts of MAPPED",
     [](All* a) { a->cache.page_starts = a->page_starts; },
     kInvalid,
     {"page_starts is set", "ROPE_SLOTS_MAPPED"}},
    {"page_table_stride of MAPPED",
     [](All* a) { a->cache.page_table_stride = 1; },
     kInvalid,
     {"page_table_stride is set", "ROPE_SLOTS_MAPPED"}},
    // Pages.
    {"slots of PAGED",
     [](All* a) { Paged(a), a->cache.slots_i32 = a->slots32; },
     kInvalid,
     {"slots_i32 is set", "ROPE_SLOTS_PAGED"}},
    {"slots_length of PAGED",
     [](All* a) { Paged(a), a->cache.slots_length = 4; },
     kInvalid,
     {"slots_length is set", "ROPE_SLOTS_PAGED"}},
    {"no page_table",
     [](All* a) { Paged(a), a->cache.page_table = nullptr; },
     kInvalid,
     {"page_table (NULL)", "required"}},
    {"no starts",
     [](All* a) { Paged(a), a->cache.starts = nullptr; },
     kInvalid,
     {"starts (NULL)", "required"}},
    {"no rows of pages",
     [](All* a) { Paged(a), a->cache.page_table_stride = 0; },
     kInvalid,
     {"page_table_stride (0)", "page_starts (NULL)", "exactly one"}},
    {"rows of pages twice",
     [](All* a) { Paged(a), a->cache.page_starts = a->page_starts; },
     kInvalid,
     {"page_table_stride (3)", "page_starts (set)", "exactly one"}},
    {"page_table_stride negative",
     [](All* a) { Paged(a), a->cache.page_table_stride = -1; },
     kInvalid,
     {"page_table_stride (-1)", "negative"}},
    {"page_table_stride too large",
     [](All* a) { Paged(a), a->cache.page_table_stride = INT64_MAX / 2; },
     kInvalid,
     {"page_table_stride", "address space"}},
    {"starts misaligned",
     [](All* a) {
       Paged(a);
       a->cache.starts = reinterpret_cast<int32_t*>(reinterpret_cast<char*>(a->starts) + 2);
     },
     kInvalid,
     {"starts (0x", "aligned to 4"}},
    {"starts negative",
     [](All* a) { Paged(a), a->starts[1] = -1; },
     kInvalid,
     {"starts[1] (-1)", "negative"}},
    {"starts behind its row",
     [](All* a) { Paged(a), a->starts[0] = 4; },
     kInvalid,
     {"page_table", "sequence 0 has 3 pages of 2", "4 to 6"}},
    {"a page that does not exist",
     [](All* a) { Paged(a), a->table[4] = kPages; },
     kInvalid,
     {"page_table[4] (4)", "sequence 1", "pages (4)"}},
    {"page_starts negative",
     [](All* a) { ByStarts(a), a->page_starts[0] = -1; },
     kInvalid,
     {"page_starts[0]", "(-1, 3)", "never decreasing"}},
    {"page_starts decreases",
     [](All* a) { ByStarts(a), a->page_starts[2] = 2; },
     kInvalid,
     {"page_starts[1]", "(3, 2)", "never decreasing"}},
    {"starts behind its row of page_starts",
     [](All* a) { ByStarts(a), a->page_starts[2] = 4; },
     kInvalid,
     {"page_table", "sequence 1 has 1 pages of 2", "2 to 2"}},
    {"starts without sequences of rows of cos and sin",
     [](All* a) {
       Paged(a);
       a->args.positions = rope_positions{};
       a->rows = Rows(ROPE_COS_SIN_PACKED, ROPE_DTYPE_F32, kDim / 2, 1, memory + 1800);
       a->args.cos_sin = &a->rows;
       a->starts[0] = 3;  // one sequence: four tokens
     },
     kInvalid,
     {"sequence 0 has 3 pages of 2", "3 to 6"}},
    // A page for each sequence.
    {"page_table of LINEAR",
     [](All* a) { Linear(a), a->cache.page_table = a->table; },
     kInvalid,
     {"page_table is set", "ROPE_SLOTS_LINEAR"}},
    {"fewer pages than sequences",
     [](All* a) { Linear(a), a->cache.pages = 1; },
     kInvalid,
     {"pages (1)", "sequences (2)"}},
    {"beyond the page",
     [](All* a) { Linear(a), a->starts[0] = 2; },
     kInvalid,
     {"starts[0] (2)", "3 tokens", "index 4", "page_size (4)"}},
};

}  // namespace rope::testing::bad_caches

#endif  // LIBROPE_TESTS_SUPPORT_BAD_CACHES_H_
