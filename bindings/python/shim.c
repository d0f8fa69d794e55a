/* Helpers compiled into librope._ffi. build_ffi.py declares the functions marked "cffi".
 *
 * A template is a rope_qk_args without addresses, made once per combination of shapes, strides and
 * dtypes and shared by all threads. A call copies it to the stack, puts the addresses in and crosses
 * into the library: one crossing instead of one per field, and no struct that two threads could
 * write. */

#include <stdbool.h>
#include <stddef.h>
#include <string.h>

typedef struct {
  void *q, *k, *q_out, *k_out, *positions, *cu_seqlens, *freq_sets, *cos, *sin;
} Addresses;

/* Makes a call of a template. offset is the int, where positions is one. */
static void place(rope_qk_args* args, const rope_qk_args* template, const Addresses* at,
                  int64_t* offset, void* stream, void* runner) {
  *args = *template;
  if (args->batch != 0) { /* an array without rows may have an address, too */
    args->q.data = at->q;
    args->k.data = at->k;
    args->q_out.data = at->q_out;
    args->k_out.data = at->k_out;
  }
  rope_positions* p = &args->positions;
  if (p->kind == ROPE_POSITIONS_OFFSET) p->offset = *offset;
  /* The template marks with any address which of the arrays it reads, and none for an int for SHIFT,
   * which is one id for all tokens. */
  const bool by_int =
      p->kind == ROPE_POSITIONS_IDS_STRIDED && !p->ids_i64 && !p->ids_i32 && !p->ids_f32;
  if (p->ids_i64) p->ids_i64 = at->positions;
  if (by_int) p->ids_i64 = offset;
  if (p->ids_i32) p->ids_i32 = at->positions;
  if (p->ids_f32) p->ids_f32 = at->positions;
  if (p->offsets_i64) p->offsets_i64 = at->positions;
  if (p->offsets_i32) p->offsets_i32 = at->positions;
  p->cu_seqlens = at->cu_seqlens;
  p->freq_sets = at->freq_sets;
  args->stream = stream;
  args->runner = runner;
}

/* Rows of cosines and sines instead of positions, where there are any. */
static void place_rows(rope_qk_args* args, rope_cos_sin* angles, const rope_cos_sin* rows,
                       void* cos, void* sin) {
  if (rows == NULL) return;
  *angles = *rows;
  angles->data = cos;
  angles->sin = sin;
  args->cos_sin = angles;
}

/* cffi */ static int32_t call_buffers(const rope_context* context, const rope_qk_args* template,
                                       void* q, void* k, void* positions, int64_t offset) {
  const Addresses at = {.q = q, .k = k, .positions = positions};
  rope_qk_args args;
  place(&args, template, &at, &offset, NULL, NULL);
  return rope_apply_qk(context, &args);
}

/* The same from numbers: data_ptr() of torch, __array_interface__, DLPack. rows: of cos and sin,
 * instead of positions, or NULL. */
/* cffi */ static int32_t call_addresses(const rope_context* context, const rope_qk_args* template,
                                         const rope_cos_sin* rows, int64_t offset,
                                         uintptr_t stream, void* runner, uintptr_t q, uintptr_t k,
                                         uintptr_t q_out, uintptr_t k_out, uintptr_t positions,
                                         uintptr_t cu_seqlens, uintptr_t freq_sets, uintptr_t cos,
                                         uintptr_t sin) {
  const Addresses at = {(void*)q,         (void*)k,          (void*)q_out,
                        (void*)k_out,     (void*)positions,  (void*)cu_seqlens,
                        (void*)freq_sets, (void*)cos,        (void*)sin};
  rope_qk_args args;
  rope_cos_sin angles;
  place(&args, template, &at, &offset, (void*)stream, runner);
  place_rows(&args, &angles, rows, at.cos, at.sin);
  return rope_apply_qk(context, &args);
}

/* What a call does besides: templates of a rope_fused and, where there is one, of a rope_kv_cache,
 * and the addresses of their arrays. */
typedef struct {
  const rope_fused* fused;
  const rope_kv_cache* cache;
  void *v, *v_out, *cache_k, *cache_v, *slots, *page_table, *page_starts, *starts, *rest, *rest_out;
} Beside;

static void place_beside(rope_qk_args* args, rope_fused* fused, rope_kv_cache* cache,
                         const Beside* at) {
  *fused = *at->fused;
  if (args->batch != 0) {
    fused->v.data = at->v;
    fused->v_out.data = at->v_out;
    fused->rest.data = at->rest;
    fused->rest_out.data = at->rest_out;
  }
  if (at->cache != NULL) {
    *cache = *at->cache;
    cache->k.data = at->cache_k;
    cache->v.data = at->cache_v;
    if (cache->slots_i64) cache->slots_i64 = at->slots; /* marked, as positions are */
    if (cache->slots_i32) cache->slots_i32 = at->slots;
    cache->page_table = at->page_table;
    cache->page_starts = at->page_starts;
    cache->starts = at->starts;
    fused->cache = cache;
  }
  args->fused = fused;
}

/* Norms of q, k and v: templates, of which kind 0 is none, and weight, bias and rstd of each. */
static void place_norms(rope_fused* fused, rope_norm* placed, const rope_norm* norms,
                        const uintptr_t* arrays) {
  const rope_norm** const fields[] = {&fused->q_norm, &fused->k_norm, &fused->v_norm};
  for (int i = 0; i < 3; ++i) {
    if (norms[i].kind == 0) continue;
    placed[i] = norms[i];
    placed[i].weight = (const void*)arrays[3 * i];
    placed[i].bias = (const void*)arrays[3 * i + 1];
    placed[i].rstd = (const float*)arrays[3 * i + 2];
    *fields[i] = &placed[i];
  }
}

/* cffi */ static int32_t call_fused(const rope_context* context, const rope_qk_args* template,
                                     const rope_cos_sin* rows, const rope_fused* fused,
                                     const rope_kv_cache* cache, int64_t offset, uintptr_t stream,
                                     void* runner, uintptr_t q, uintptr_t k, uintptr_t q_out,
                                     uintptr_t k_out, uintptr_t positions, uintptr_t cu_seqlens,
                                     uintptr_t freq_sets, uintptr_t cos, uintptr_t sin, uintptr_t v,
                                     uintptr_t v_out, uintptr_t cache_k, uintptr_t cache_v,
                                     uintptr_t slots, uintptr_t page_table, uintptr_t page_starts,
                                     uintptr_t starts) {
  const Addresses at = {(void*)q,         (void*)k,          (void*)q_out,
                        (void*)k_out,     (void*)positions,  (void*)cu_seqlens,
                        (void*)freq_sets, (void*)cos,        (void*)sin};
  const Beside beside = {
      fused,          cache,        (void*)v,          (void*)v_out,       (void*)cache_k,
      (void*)cache_v, (void*)slots, (void*)page_table, (void*)page_starts, (void*)starts};
  rope_qk_args args;
  rope_cos_sin angles;
  rope_fused placed;
  rope_kv_cache placed_cache;
  place(&args, template, &at, &offset, (void*)stream, runner);
  place_rows(&args, &angles, rows, at.cos, at.sin);
  place_beside(&args, &placed, &placed_cache, &beside);
  return rope_apply_qk(context, &args);
}

/* Scales that are arrays, in the order of rope_qk_data. Those with one value, and those that are none,
 * have no dtype, and stay where the templates point. */
static void place_scales(rope_qk_args* args, rope_fused* fused, rope_kv_cache* cache,
                         rope_scale* placed, const rope_scale* scales, const uintptr_t* arrays) {
  rope_tensor* const outputs[] = {&args->q_out,  &args->k_out, &cache->k,
                                  &fused->v_out, &cache->v,    &fused->rest_out};
  for (int i = 0; i < 6; ++i) {
    if (scales[i].dtype == 0) continue;
    placed[i] = scales[i];
    placed[i].data = (void*)arrays[i];
    outputs[i]->scale = &placed[i];
  }
}

/* The addresses of all arrays of a call, in this order. */
enum { kBeside = 9, kNormed = kBeside + 10, kScaled = kNormed + 9 };

static Beside beside_of(const rope_fused* fused, const rope_kv_cache* cache,
                        const uintptr_t* arrays) {
  Beside beside = {.fused = fused, .cache = cache};
  memcpy(&beside.v, arrays + kBeside, (kNormed - kBeside) * sizeof *arrays);
  return beside;
}

/* The same with all that a call can have. norms, scales: NULL, or templates. */
/* cffi */ static int32_t call_all(const rope_context* context, const rope_qk_args* template,
                                   const rope_cos_sin* rows, const rope_fused* fused,
                                   const rope_kv_cache* cache, const rope_norm* norms,
                                   const rope_scale* scales, int64_t offset, uintptr_t stream,
                                   void* runner, const uintptr_t* arrays) {
  Addresses at;
  memcpy(&at, arrays, sizeof at);
  const Beside beside = beside_of(fused, cache, arrays);
  rope_qk_args args;
  rope_cos_sin angles;
  rope_fused placed;
  rope_kv_cache placed_cache;
  rope_norm placed_norms[3];
  rope_scale placed_scales[6];
  place(&args, template, &at, &offset, (void*)stream, runner);
  place_rows(&args, &angles, rows, at.cos, at.sin);
  place_beside(&args, &placed, &placed_cache, &beside);
  if (norms) place_norms(&placed, placed_norms, norms, arrays + kNormed);
  if (scales) place_scales(&args, &placed, &placed_cache, placed_scales, scales, arrays + kScaled);
  return rope_apply_qk(context, &args);
}

/* The same of NumPy arrays, for the step of an engine: the memory of the cache is known. */
/* cffi */ static int32_t step_buffers(const rope_context* context, const rope_qk_args* template,
                                       const rope_fused* fused, const rope_kv_cache* cache,
                                       int64_t offset, void* q, void* k, void* q_out, void* v,
                                       void* positions, void* cu_seqlens, void* slots,
                                       void* page_table, void* starts, uintptr_t cache_k,
                                       uintptr_t cache_v) {
  const Addresses at = {
      .q = q, .k = k, .q_out = q_out, .positions = positions, .cu_seqlens = cu_seqlens};
  const Beside beside = {.fused = fused,
                         .cache = cache,
                         .v = v,
                         .cache_k = (void*)cache_k,
                         .cache_v = (void*)cache_v,
                         .slots = slots,
                         .page_table = page_table,
                         .starts = starts};
  rope_qk_args args;
  rope_fused placed;
  rope_kv_cache placed_cache;
  place(&args, template, &at, &offset, NULL, NULL);
  place_beside(&args, &placed, &placed_cache, &beside);
  return rope_apply_qk(context, &args);
}

/* The largest of some int32. */
/* cffi */ static int32_t largest(uintptr_t values, int64_t count) {
  const int32_t* at = (const int32_t*)values;
  int32_t most = INT32_MIN;
  for (int64_t i = 0; i < count; ++i) most = at[i] > most ? at[i] : most;
  return most;
}

/* A call that is kept. offset must live as long, and args reads it where it has no positions but an
 * int for SHIFT; elsewhere the int is args->positions.offset. */
/* cffi */ static void keep_call(rope_qk_args* args, const rope_qk_args* template, int64_t* offset,
                                 uintptr_t stream, void* runner, uintptr_t q, uintptr_t k,
                                 uintptr_t q_out, uintptr_t k_out, uintptr_t positions,
                                 uintptr_t cu_seqlens, uintptr_t freq_sets) {
  const Addresses at = {(void*)q,         (void*)k,          (void*)q_out,    (void*)k_out,
                        (void*)positions, (void*)cu_seqlens, (void*)freq_sets, NULL, NULL};
  place(args, template, &at, offset, (void*)stream, runner);
}

/* What it does besides, after keep_call(): fused, cache, norms[3] and scales[6] are where that is kept.
 * arrays: the addresses of all. */
/* cffi */ static void keep_all(rope_qk_args* args, rope_fused* fused, rope_kv_cache* cache,
                                rope_norm* norms, rope_scale* scales,
                                const rope_fused* fused_template,
                                const rope_kv_cache* cache_template,
                                const rope_norm* norm_templates,
                                const rope_scale* scale_templates, const uintptr_t* arrays) {
  const Beside beside = beside_of(fused_template, cache_template, arrays);
  place_beside(args, fused, cache, &beside);
  if (norm_templates) place_norms(fused, norms, norm_templates, arrays + kNormed);
  if (scale_templates) {
    place_scales(args, fused, cache, scales, scale_templates, arrays + kScaled);
  }
}

/* A prepared call of a template: it reads positions, rows and slots now, and is given tensors, what
 * norms read and the memory of a cache later. fused: NULL where it rotates and nothing else. norms:
 * NULL, or templates. */
/* cffi */ static int32_t prepare_call(const rope_context* context, const rope_qk_args* template,
                                       const rope_cos_sin* rows, const rope_fused* fused,
                                       const rope_kv_cache* cache, const rope_norm* norms,
                                       int64_t offset, void* runner, uintptr_t positions,
                                       uintptr_t cu_seqlens, uintptr_t freq_sets, uintptr_t cos,
                                       uintptr_t sin, uintptr_t slots, uintptr_t page_table,
                                       uintptr_t page_starts, uintptr_t starts,
                                       rope_prepared** out) {
  const Addresses at = {.positions = (void*)positions,
                        .cu_seqlens = (void*)cu_seqlens,
                        .freq_sets = (void*)freq_sets};
  const Beside beside = {.fused = fused,
                         .cache = cache,
                         .slots = (void*)slots,
                         .page_table = (void*)page_table,
                         .page_starts = (void*)page_starts,
                         .starts = (void*)starts};
  rope_qk_args args;
  rope_cos_sin angles;
  rope_fused placed;
  rope_kv_cache placed_cache;
  rope_norm placed_norms[3];
  const uintptr_t later[9] = {0};
  place(&args, template, &at, &offset, NULL, runner);
  place_rows(&args, &angles, rows, (void*)cos, (void*)sin);
  if (fused != NULL) place_beside(&args, &placed, &placed_cache, &beside);
  if (norms != NULL) place_norms(&placed, placed_norms, norms, later);
  return rope_prepared_create(context, &args, out);
}

/* cffi */ static int32_t prepared_buffers(const rope_prepared* prepared, void* q, void* k,
                                           void* q_out, void* k_out) {
  rope_qk_data data = ROPE_INIT(rope_qk_data);
  data.q = q;
  data.k = k;
  data.q_out = q_out;
  data.k_out = k_out;
  return rope_prepared_apply(prepared, &data);
}

/* cffi */ static int32_t prepared_addresses(const rope_prepared* prepared, uintptr_t q, uintptr_t k,
                                             uintptr_t q_out, uintptr_t k_out) {
  return prepared_buffers(prepared, (void*)q, (void*)k, (void*)q_out, (void*)k_out);
}

_Static_assert(sizeof(rope_qk_data) == 2 * sizeof(uint32_t) + 25 * sizeof(void*),
               "_prepared_append.py has an address for each pointer, and norms read the last nine");

/* Of all that a layer can have: the addresses of rope_qk_data, in their order. */
/* cffi */ static int32_t prepared_all(const rope_prepared* prepared, const uintptr_t* arrays) {
  rope_qk_data data = ROPE_INIT(rope_qk_data);
  memcpy(&data.q, arrays, sizeof data - offsetof(rope_qk_data, q));
  return rope_prepared_apply(prepared, &data);
}

/* norms: NULL, or the addresses of what norms read. */
/* cffi */ static int32_t prepared_append(const rope_prepared* prepared, uintptr_t q, uintptr_t k,
                                          uintptr_t q_out, uintptr_t k_out, uintptr_t v,
                                          uintptr_t v_out, uintptr_t cache_k, uintptr_t cache_v,
                                          const void* norms) {
  rope_qk_data data = ROPE_INIT(rope_qk_data);
  data.q = (void*)q;
  data.k = (void*)k;
  data.q_out = (void*)q_out;
  data.k_out = (void*)k_out;
  data.v = (void*)v;
  data.v_out = (void*)v_out;
  data.cache_k = (void*)cache_k;
  data.cache_v = (void*)cache_v;
  if (norms) {
    memcpy(&data.q_norm_weight, norms, sizeof data - offsetof(rope_qk_data, q_norm_weight));
  }
  return rope_prepared_apply(prepared, &data);
}

/* The same of NumPy arrays; the memory of a cache is known. */
/* cffi */ static int32_t prepared_step(const rope_prepared* prepared, void* q, void* k, void* q_out,
                                        void* k_out, void* v, uintptr_t cache_k, uintptr_t cache_v,
                                        const void* norms) {
  return prepared_append(prepared, (uintptr_t)q, (uintptr_t)k, (uintptr_t)q_out, (uintptr_t)k_out,
                         (uintptr_t)v, 0, cache_k, cache_v, norms);
}

/* For the benchmark: the C call alone, n times. */
/* cffi */ static int32_t call_repeatedly(const rope_context* context, const rope_qk_args* args,
                                          int64_t n) {
  int32_t status = 0;
  for (int64_t i = 0; i < n && status == 0; ++i) status = rope_apply_qk(context, args);
  return status;
}

/* The addresses of the handlers in xla.c, for jax.ffi. */
struct XlaError;
struct XlaFrame;
extern struct XlaError* librope_xla_apply(struct XlaFrame* frame);
extern struct XlaError* librope_xla_cos_sin(struct XlaFrame* frame);

/* cffi */ static uintptr_t xla_apply(void) { return (uintptr_t)&librope_xla_apply; }
/* cffi */ static uintptr_t xla_cos_sin(void) { return (uintptr_t)&librope_xla_cos_sin; }
