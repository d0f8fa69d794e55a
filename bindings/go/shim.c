#include "shim.h"

#include <stdlib.h>
#include <string.h>

// Where there is no memory for a message.
static const struct {
  int32_t status;
  char text[16];
} kOutOfMemory = {ROPE_ERROR_OUT_OF_MEMORY, "out of memory"};

static ropego_error* fail(rope_status status) {
  const char* text = rope_last_error();
  size_t size = strlen(text) + 1;
  ropego_error* error = malloc(sizeof *error + size);
  if (error == NULL) return (ropego_error*)&kOutOfMemory;
  error->status = status;
  memcpy(error->text, text, size);
  return error;
}

void ropego_error_free(ropego_error* error) {
  if (error != (ropego_error*)&kOutOfMemory) free(error);
}

int32_t ropego_has_memory(size_t bytes) {
  void* volatile block = malloc(bytes);  // volatile: else the pair is optimised away
  if (block == NULL) return 0;
  free(block);
  return 1;
}

static inline ropego_error* result(rope_status status) {
  return __builtin_expect(status == ROPE_OK, 1) ? NULL : fail(status);
}

static inline void set_tensor(rope_tensor* to, const ropego_tensor* from, uint8_t* data) {
  to->data = data;
  to->dtype = from->dtype;
  to->layout = from->layout;
  to->heads = from->heads;
  to->head_dim = from->head_dim;
  to->stride_batch = from->stride_batch;
  to->stride_token = from->stride_token;
  to->stride_head = from->stride_head;
}

static inline void set_positions(rope_positions* to, const ropego_positions* from,
                                 const uint8_t* ids, const int32_t* cu_seqlens,
                                 const int32_t* freq_sets) {
  to->kind = from->kind;
  to->sequences = from->sequences;
  to->cu_seqlens = cu_seqlens;
  to->freq_sets = freq_sets;
  to->shard = from->shard.scheme != 0 ? &from->shard : NULL;
  to->batch_repeat = from->batch_repeat;
  to->stride_axis = from->stride_axis;
  to->stride_batch = from->stride_batch;
  to->stride_token = from->stride_token;
  if (from->type == 1) {
    to->ids_i64 = &from->offset;
  } else if (from->kind == ROPE_POSITIONS_OFFSET) {
    to->offset = from->offset;
  } else if (from->kind == ROPE_POSITIONS_SEQ_OFFSETS) {
    if (from->type == 4) to->offsets_i32 = (const int32_t*)ids;
    if (from->type == 8) to->offsets_i64 = (const int64_t*)ids;
  } else {
    if (from->type == 4) to->ids_i32 = (const int32_t*)ids;
    if (from->type == 8) to->ids_i64 = (const int64_t*)ids;
    if (from->type == -4) to->ids_f32 = (const float*)ids;
  }
}

static inline rope_cos_sin make_rows(const ropego_rows* from, uint8_t* cos, uint8_t* sin) {
  rope_cos_sin rows = ROPE_INIT(rope_cos_sin);
  rows.format = from->format;
  rows.dtype = from->dtype;
  rows.pairs = from->pairs;
  rows.batch = from->batch;
  rows.stride_token = from->stride_token;
  rows.heads = from->heads;
  rows.stride_head = from->stride_head;
  rows.data = cos;
  rows.sin = sin;
  return rows;
}

// `rows` is the memory of args->cos_sin.
static inline void set_args(rope_qk_args* args, const ropego_call* call, uint8_t* q, uint8_t* k,
                            uint8_t* q_out, uint8_t* k_out, const uint8_t* ids,
                            const int32_t* cu_seqlens, const int32_t* freq_sets, rope_cos_sin* rows,
                            uint8_t* cos, uint8_t* sin, const rope_pool* pool) {
  args->operation = call->operation;
  args->batch = call->batch;
  args->tokens = call->tokens;
  set_tensor(&args->q, &call->q, q);
  set_tensor(&args->k, &call->k, k);
  set_tensor(&args->q_out, &call->q_out, q_out);
  set_tensor(&args->k_out, &call->k_out, k_out);
  set_positions(&args->positions, &call->positions, ids, cu_seqlens, freq_sets);
  if (call->rows.format != 0) {
    *rows = make_rows(&call->rows, cos, sin);
    args->cos_sin = rows;
  }
  if (pool != NULL) args->runner = rope_pool_runner(pool);
}

ropego_error* ropego_apply_qk(const rope_context* context, const ropego_call* call, uint8_t* q,
                              uint8_t* k, uint8_t* q_out, uint8_t* k_out, const uint8_t* ids,
                              const int32_t* cu_seqlens, const int32_t* freq_sets, uint8_t* cos,
                              uint8_t* sin, const rope_pool* pool) {
  rope_qk_args args = ROPE_INIT(rope_qk_args);
  rope_cos_sin rows;
  set_args(&args, call, q, k, q_out, k_out, ids, cu_seqlens, freq_sets, &rows, cos, sin, pool);
  return result(rope_apply_qk(context, &args));
}

static inline rope_kv_cache make_cache(const ropego_cache* from, uint8_t* k, uint8_t* v,
                                       const uint8_t* slots, const int32_t* page_starts,
                                       const int32_t* starts) {
  rope_kv_cache cache = ROPE_INIT(rope_kv_cache);
  cache.kind = from->kind;
  cache.pages = from->pages;
  cache.page_size = from->page_size;
  set_tensor(&cache.k, &from->k, k);
  set_tensor(&cache.v, &from->v, v);
  if (from->kind == ROPE_SLOTS_MAPPED) {
    if (from->slot_bytes == 4) cache.slots_i32 = (const int32_t*)slots;
    if (from->slot_bytes == 8) cache.slots_i64 = (const int64_t*)slots;
    cache.slots_length = from->slots_length;
    return cache;
  }
  if (from->kind == ROPE_SLOTS_PAGED) cache.page_table = (const int32_t*)slots;
  cache.page_table_stride = from->page_table_stride;
  cache.page_starts = page_starts;
  cache.starts = starts;
  return cache;
}

static inline rope_fused make_fused(const ropego_append_call* append, const rope_kv_cache* cache,
                                    uint8_t* v, uint8_t* v_out) {
  rope_fused fused = ROPE_INIT(rope_fused);
  fused.cache = cache;
  set_tensor(&fused.v, &append->v, v);
  set_tensor(&fused.v_out, &append->v_out, v_out);
  return fused;
}

ropego_error* ropego_append(const rope_context* context, const ropego_append_call* append, uint8_t* q,
                            uint8_t* k, uint8_t* v, uint8_t* q_out, uint8_t* k_out, uint8_t* v_out,
                            uint8_t* cache_k, uint8_t* cache_v, const uint8_t* slots,
                            const int32_t* page_starts, const int32_t* starts, const uint8_t* ids,
                            const int32_t* cu_seqlens, const int32_t* freq_sets, uint8_t* cos,
                            uint8_t* sin, const rope_pool* pool) {
  rope_qk_args args = ROPE_INIT(rope_qk_args);
  rope_cos_sin rows;
  set_args(&args, &append->call, q, k, q_out, k_out, ids, cu_seqlens, freq_sets, &rows, cos, sin, pool);
  const rope_kv_cache cache =
      make_cache(&append->cache, cache_k, cache_v, slots, page_starts, starts);
  const rope_fused fused = make_fused(append, &cache, v, v_out);
  args.fused = &fused;
  return result(rope_apply_qk(context, &args));
}

// `scale` is the memory of what it returns, which is NULL if there is none.
static inline const rope_scale* set_scale(rope_scale* scale, const ropego_scale* from, uint8_t* data) {
  if (!from->given) return NULL;
  const rope_scale init = ROPE_INIT(rope_scale);
  *scale = init;
  scale->computed = from->computed;
  scale->value = from->value;
  scale->dtype = from->dtype;
  scale->group = from->group;
  scale->power_of_two = from->power_of_two;
  scale->round_first = from->round_first;
  scale->min_scale = from->min_scale;
  scale->data = data;
  scale->stride_batch = from->stride_batch;
  scale->stride_token = from->stride_token;
  scale->stride_head = from->stride_head;
  return scale;
}

ropego_error* ropego_move(const rope_context* context, const ropego_move_call* move, uint8_t* q,
                          uint8_t* k, uint8_t* q_out, uint8_t* k_out, uint8_t* source_k,
                          uint8_t* source_v, const uint8_t* source_slots,
                          const int32_t* source_page_starts, const int32_t* source_starts,
                          uint8_t* source_k_scales, uint8_t* source_v_scales, uint8_t* cache_k,
                          uint8_t* cache_v, uint8_t* k_scales, uint8_t* v_scales, const uint8_t* slots,
                          const int32_t* page_starts, const int32_t* starts, const uint8_t* ids,
                          const uint8_t* from_ids, const int32_t* cu_seqlens,
                          const int32_t* from_cu_seqlens, const int32_t* freq_sets,
                          const int32_t* from_freq_sets, const rope_pool* pool) {
  rope_qk_args args = ROPE_INIT(rope_qk_args);
  set_args(&args, &move->call, q, k, q_out, k_out, ids, cu_seqlens, freq_sets, NULL, NULL, NULL, pool);
  rope_fused fused = ROPE_INIT(rope_fused);
  rope_positions from;
  if (move->from.kind != 0) {
    memset(&from, 0, sizeof from);
    set_positions(&from, &move->from, from_ids, from_cu_seqlens, from_freq_sets);
    fused.from_positions = &from;
  }
  rope_kv_cache source, cache;
  rope_scale of_source_k, of_source_v, of_k, of_v;
  if (move->cache.kind != 0) {
    source = make_cache(&move->source, source_k, source_v, source_slots, source_page_starts,
                        source_starts);
    cache = make_cache(&move->cache, cache_k, cache_v, slots, page_starts, starts);
    source.k.scale = set_scale(&of_source_k, &move->source_k_scale, source_k_scales);
    source.v.scale = set_scale(&of_source_v, &move->source_v_scale, source_v_scales);
    cache.k.scale = set_scale(&of_k, &move->k_scale, k_scales);
    cache.v.scale = set_scale(&of_v, &move->v_scale, v_scales);
    fused.source = &source;
    fused.cache = &cache;
  }
  args.fused = &fused;
  return result(rope_apply_qk(context, &args));
}

// `norm` and `before` are its memory.
static inline const rope_norm* set_norm(rope_norm* norm, rope_tensor* before,
                                        const ropego_norm* from, const uint8_t* weight,
                                        const uint8_t* bias, const float* rstd, uint8_t* x,
                                        float* weight_grad, float* bias_grad) {
  if (!from->given) return NULL;
  *norm = (rope_norm)ROPE_INIT(rope_norm);
  norm->kind = from->kind;
  norm->eps = from->eps;
  norm->weight = weight;
  norm->bias = bias;
  norm->weight_dtype = from->weight_dtype;
  norm->span = from->span;
  norm->order = from->order;
  norm->rounding = from->rounding;
  norm->weight_stride_head = from->weight_stride_head;
  norm->rstd = rstd;
  norm->weight_grad = weight_grad;
  norm->bias_grad = bias_grad;
  norm->grad_parts = from->grad_parts;
  if (from->x.dtype != 0) {
    memset(before, 0, sizeof *before);
    set_tensor(before, &from->x, x);
    norm->x = before;
  }
  return norm;
}

// The scales of four outputs and of a cache.
typedef struct scale_memory {
  rope_scale q_out, k_out, v_out, rest_out, k, v;
} scale_memory;

// Sets what a call has besides norms; `scales` is the memory of its scales.
static inline void set_beside(rope_qk_args* args, rope_fused* fused, rope_kv_cache* cache,
                              scale_memory* scales, const ropego_fused* beside, uint8_t* rest,
                              uint8_t* rest_out, uint8_t* q_out_scales, uint8_t* k_out_scales,
                              uint8_t* v_out_scales, uint8_t* rest_out_scales, uint8_t* k_scales,
                              uint8_t* v_scales) {
  set_tensor(&fused->rest, &beside->rest, rest);
  set_tensor(&fused->rest_out, &beside->rest_out, rest_out);
  args->q_out.scale = set_scale(&scales->q_out, &beside->q_out_scale, q_out_scales);
  args->k_out.scale = set_scale(&scales->k_out, &beside->k_out_scale, k_out_scales);
  fused->v_out.scale = set_scale(&scales->v_out, &beside->v_out_scale, v_out_scales);
  fused->rest_out.scale = set_scale(&scales->rest_out, &beside->rest_out_scale, rest_out_scales);
  if (cache == NULL) return;
  cache->k.scale = set_scale(&scales->k, &beside->k_scale, k_scales);
  cache->v.scale = set_scale(&scales->v, &beside->v_scale, v_scales);
}

ropego_error* ropego_apply_fused(
    const rope_context* context, const ropego_append_call* append, const ropego_fused* beside,
    uint8_t* q, uint8_t* k, uint8_t* v, uint8_t* rest, uint8_t* q_out, uint8_t* k_out,
    uint8_t* v_out, uint8_t* rest_out, uint8_t* cache_k, uint8_t* cache_v, uint8_t* q_out_scales,
    uint8_t* k_out_scales, uint8_t* v_out_scales, uint8_t* rest_out_scales, uint8_t* k_scales,
    uint8_t* v_scales, const uint8_t* slots, const int32_t* page_starts, const int32_t* starts,
    const uint8_t* q_weight, const uint8_t* q_bias, const float* q_rstd, uint8_t* q_x,
    float* q_weight_grad, float* q_bias_grad, const uint8_t* k_weight, const uint8_t* k_bias,
    const float* k_rstd, uint8_t* k_x, float* k_weight_grad, float* k_bias_grad,
    const uint8_t* v_weight, const uint8_t* v_bias, const float* v_rstd, uint8_t* v_x,
    float* v_weight_grad, float* v_bias_grad, const uint8_t* ids, const int32_t* cu_seqlens,
    const int32_t* freq_sets, uint8_t* cos, uint8_t* sin, const rope_pool* pool) {
  rope_qk_args args = ROPE_INIT(rope_qk_args);
  rope_cos_sin rows;
  set_args(&args, &append->call, q, k, q_out, k_out, ids, cu_seqlens, freq_sets, &rows, cos, sin, pool);
  rope_fused fused = make_fused(append, NULL, v, v_out);
  rope_kv_cache cache;
  scale_memory scales;
  if (append->cache.kind != 0) {
    cache = make_cache(&append->cache, cache_k, cache_v, slots, page_starts, starts);
    fused.cache = &cache;
  }
  set_beside(&args, &fused, append->cache.kind != 0 ? &cache : NULL, &scales, beside, rest, rest_out,
             q_out_scales, k_out_scales, v_out_scales, rest_out_scales, k_scales, v_scales);
  rope_norm q_norm, k_norm, v_norm;
  rope_tensor of_q, of_k, of_v;
  fused.q_norm = set_norm(&q_norm, &of_q, &beside->q, q_weight, q_bias, q_rstd, q_x, q_weight_grad,
                          q_bias_grad);
  fused.k_norm = set_norm(&k_norm, &of_k, &beside->k, k_weight, k_bias, k_rstd, k_x, k_weight_grad,
                          k_bias_grad);
  fused.v_norm = set_norm(&v_norm, &of_v, &beside->v, v_weight, v_bias, v_rstd, v_x, v_weight_grad,
                          v_bias_grad);
  args.fused = &fused;
  return result(rope_apply_qk(context, &args));
}

ropego_error* ropego_prepared_create(const rope_context* context, const ropego_append_call* append,
                                     const ropego_fused* beside, const uint8_t* slots,
                                     const int32_t* page_starts, const int32_t* starts,
                                     const uint8_t* ids, const int32_t* cu_seqlens,
                                     const int32_t* freq_sets, uint8_t* cos, uint8_t* sin,
                                     const rope_pool* pool, rope_prepared** out) {
  rope_qk_args args = ROPE_INIT(rope_qk_args);
  rope_cos_sin rows;
  rope_kv_cache cache;
  scale_memory scales;
  set_args(&args, &append->call, NULL, NULL, NULL, NULL, ids, cu_seqlens, freq_sets, &rows, cos,
           sin, pool);
  rope_fused fused = make_fused(append, NULL, NULL, NULL);
  if (append->cache.kind != 0) {
    cache = make_cache(&append->cache, NULL, NULL, slots, page_starts, starts);
    fused.cache = &cache;
  }
  rope_norm q_norm, k_norm, v_norm;
  rope_tensor unused;  // prepared calls have no x
  if (beside != NULL) {
    set_beside(&args, &fused, append->cache.kind != 0 ? &cache : NULL, &scales, beside, NULL, NULL,
               NULL, NULL, NULL, NULL, NULL, NULL);
    fused.q_norm = set_norm(&q_norm, &unused, &beside->q, NULL, NULL, NULL, NULL, NULL, NULL);
    fused.k_norm = set_norm(&k_norm, &unused, &beside->k, NULL, NULL, NULL, NULL, NULL, NULL);
    fused.v_norm = set_norm(&v_norm, &unused, &beside->v, NULL, NULL, NULL, NULL, NULL, NULL);
  }
  if (beside != NULL || append->cache.kind != 0) args.fused = &fused;
  return result(rope_prepared_create(context, &args, out));
}

ropego_error* ropego_prepared_call(const rope_prepared* prepared, uint8_t* q, uint8_t* q_out,
                                   uint8_t* k, uint8_t* k_out, uint8_t* v, uint8_t* v_out,
                                   uint8_t* rest, uint8_t* rest_out, uint8_t* q_out_scales,
                                   uint8_t* k_out_scales, uint8_t* v_out_scales,
                                   uint8_t* rest_out_scales, uint8_t* cache_k, uint8_t* cache_v,
                                   uint8_t* cache_k_scales, uint8_t* cache_v_scales,
                                   uint8_t* q_norm_weight, uint8_t* q_norm_bias, uint8_t* q_norm_rstd,
                                   uint8_t* k_norm_weight, uint8_t* k_norm_bias, uint8_t* k_norm_rstd,
                                   uint8_t* v_norm_weight, uint8_t* v_norm_bias, uint8_t* v_norm_rstd) {
  rope_qk_data data = ROPE_INIT(rope_qk_data);
  data.q = q;
  data.q_out = q_out;
  data.k = k;
  data.k_out = k_out;
  data.v = v;
  data.v_out = v_out;
  data.rest = rest;
  data.rest_out = rest_out;
  data.q_out_scales = q_out_scales;
  data.k_out_scales = k_out_scales;
  data.v_out_scales = v_out_scales;
  data.rest_out_scales = rest_out_scales;
  data.cache_k = cache_k;
  data.cache_v = cache_v;
  data.cache_k_scales = cache_k_scales;
  data.cache_v_scales = cache_v_scales;
  data.q_norm_weight = q_norm_weight;
  data.q_norm_bias = q_norm_bias;
  data.q_norm_rstd = (const float*)q_norm_rstd;
  data.k_norm_weight = k_norm_weight;
  data.k_norm_bias = k_norm_bias;
  data.k_norm_rstd = (const float*)k_norm_rstd;
  data.v_norm_weight = v_norm_weight;
  data.v_norm_bias = v_norm_bias;
  data.v_norm_rstd = (const float*)v_norm_rstd;
  return result(rope_prepared_apply(prepared, &data));
}

ropego_error* ropego_prepared_apply(const rope_prepared* prepared, uint8_t* q, uint8_t* k,
                                    uint8_t* q_out, uint8_t* k_out) {
  rope_qk_data data = ROPE_INIT(rope_qk_data);
  data.q = q;
  data.k = k;
  data.q_out = q_out;
  data.k_out = k_out;
  return result(rope_prepared_apply(prepared, &data));
}

ropego_error* ropego_prepared_append(const rope_prepared* prepared, uint8_t* q, uint8_t* k,
                                     uint8_t* v, uint8_t* q_out, uint8_t* k_out, uint8_t* v_out,
                                     uint8_t* cache_k, uint8_t* cache_v) {
  rope_qk_data data = ROPE_INIT(rope_qk_data);
  data.q = q;
  data.k = k;
  data.q_out = q_out;
  data.k_out = k_out;
  data.v = v;
  data.v_out = v_out;
  data.cache_k = cache_k;
  data.cache_v = cache_v;
  return result(rope_prepared_apply(prepared, &data));
}

ropego_error* ropego_apply_thd(const rope_context* context, int32_t dtype, int64_t tokens,
                               const int64_t* positions, uint8_t* q, int32_t q_heads, uint8_t* k,
                               int32_t k_heads) {
  return result(rope_apply_thd(context, dtype, tokens, positions, q, q_heads, k, k_heads));
}

ropego_error* ropego_cos_sin_fill(const rope_context* context, const ropego_call* call,
                                  const uint8_t* ids, const int32_t* cu_seqlens,
                                  const int32_t* freq_sets, uint8_t* cos, uint8_t* sin) {
  rope_positions positions;
  memset(&positions, 0, sizeof positions);
  set_positions(&positions, &call->positions, ids, cu_seqlens, freq_sets);
  rope_cos_sin rows = make_rows(&call->rows, cos, sin);
  return result(rope_cos_sin_fill(context, call->batch, call->tokens, &positions, &rows, NULL));
}

ropego_error* ropego_shard_ids(const ropego_call* call, const uint8_t* offsets,
                               const int32_t* cu_seqlens, int64_t* ids, int64_t* numbers) {
  rope_positions positions;
  memset(&positions, 0, sizeof positions);
  set_positions(&positions, &call->positions, offsets, cu_seqlens, NULL);
  return result(rope_shard_ids(call->batch, call->tokens, &positions, ids, numbers));
}

ropego_error* ropego_context_create(const rope_config* configs, int32_t count, int32_t sets,
                                    rope_context** out) {
  if (!sets) return result(rope_context_create(configs, out));
  const rope_config* pointers[256];
  for (int32_t i = 0; i < count && i < 256; ++i) pointers[i] = &configs[i];
  return result(rope_context_create_sets(pointers, count, out));
}

ropego_error* ropego_config_next_change(const rope_config* config, int64_t seq_len, int64_t* next) {
  return result(rope_config_next_change(config, seq_len, next));
}

ropego_error* ropego_config_digest(const rope_config* config, rope_digest same, rope_digest_text* digest) {
  return result(rope_config_digest(config, same, digest));
}

ropego_error* ropego_context_info(const rope_context* context, int32_t freq_set, rope_info* info) {
  memset(info, 0, sizeof *info);
  info->struct_size = sizeof *info;
  return result(rope_context_info(context, freq_set, info));
}

ropego_error* ropego_context_inv_freq(const rope_context* context, int32_t freq_set, double* out,
                                      int32_t count) {
  return result(rope_context_inv_freq(context, freq_set, out, count));
}

ropego_error* ropego_pool_create(int32_t threads, rope_pool** out) {
  return result(rope_pool_create(threads, out));
}

// keys: `count` names, each with its final 0, one behind the other.
ropego_error* ropego_model_create(const uint8_t* json, size_t length, const char* keys,
                                  int32_t count, rope_model** out) {
  if (count == 0) return result(rope_model_create((const char*)json, length, out));
  const char* names[256];  // librope refuses more, before it reads one
  for (int32_t i = 0; i < count && i < 256; ++i) {
    names[i] = keys;
    keys += strlen(keys) + 1;
  }
  return result(rope_model_create_accepting((const char*)json, length, names, count, out));
}

ropego_error* ropego_model_create_gguf(const uint8_t* data, size_t size, rope_model** out) {
  return result(rope_model_create_gguf(data, size, out));
}

ropego_error* ropego_model_create_gguf_values(const rope_gguf_value* values, int32_t count,
                                              const rope_gguf_factors* factors,
                                              int32_t factor_count, rope_model** out) {
  return result(rope_model_create_gguf_values(values, count, factors, factor_count, out));
}

ropego_error* ropego_model_load_gguf(const char* path, rope_model** out) {
  return result(rope_model_load_gguf(path, out));
}

ropego_error* ropego_model_layer_type(const rope_model* model, int32_t layer, int32_t* type) {
  return result(rope_model_layer_type(model, layer, type));
}

ropego_error* ropego_model_digest(const rope_model* model, int32_t type, rope_digest same,
                                  rope_digest_text* digest) {
  return result(rope_model_digest(model, type, same, digest));
}

ropego_error* ropego_model_config(const rope_model* model, int32_t type, rope_config* config) {
  memset(config, 0, sizeof *config);
  config->struct_size = sizeof *config;
  return result(rope_model_config(model, type, config));
}

ropego_error* ropego_model_latent_ids(const rope_model* model, int32_t type, const int32_t* grids,
                                      int32_t count, int64_t text, const double* scales, float* ids,
                                      int64_t capacity, int64_t* tokens) {
  rope_latent_grid* own = calloc(count > 0 ? (size_t)count : 1, sizeof *own);
  if (own == NULL) return (ropego_error*)&kOutOfMemory;
  for (int32_t i = 0; i < count; ++i, grids += 3) {
    own[i].t = grids[0];
    own[i].h = grids[1];
    own[i].w = grids[2];
  }
  rope_latent_args args = ROPE_INIT(rope_latent_args);
  args.count = count;
  args.grids = own;
  args.text = text;
  args.fps = scales[0];
  args.scale_t = scales[1];
  args.scale_h = scales[2];
  args.scale_w = scales[3];
  ropego_error* error = result(rope_model_latent_ids(model, type, &args, ids, capacity, tokens));
  free(own);
  return error;
}

// t_intervals: NULL, or one for each part.
ropego_error* ropego_prompt_ids(const int64_t* parts, const double* t_intervals, int32_t count,
                                int64_t start, int64_t* ids, int64_t tokens, int64_t* next) {
  rope_prompt_part* own = calloc(count > 0 ? (size_t)count : 1, sizeof *own);
  if (own == NULL) return (ropego_error*)&kOutOfMemory;
  for (int32_t i = 0; i < count; ++i, parts += 5) {
    own[i].text = parts[0];
    own[i].t = (int32_t)parts[1];
    own[i].h = (int32_t)parts[2];
    own[i].w = (int32_t)parts[3];
    own[i].t_interval = (int32_t)parts[4];
  }
  ropego_error* error =
      result(t_intervals == NULL
                 ? rope_prompt_ids(own, count, start, ids, tokens, next)
                 : rope_prompt_ids_timed(own, t_intervals, count, start, ids, tokens, next));
  free(own);
  return error;
}
