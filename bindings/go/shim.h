// The flat face of librope that Go calls. A Go struct may not hold Go pointers when C sees it, so
// numbers travel in structs without pointers and every array is an argument of its own. An error
// comes back with its text in the same crossing: librope keeps messages per thread, and a goroutine
// may be on another thread at the next crossing.
#ifndef LIBROPE_GO_SHIM_H_
#define LIBROPE_GO_SHIM_H_

#include <librope/model.h>
#include <librope/rope.h>

// Before 1.0 a minor version may change the ABI.
#if ROPE_VERSION_MAJOR != 0 || ROPE_VERSION_MINOR != 1
#error \
    "this package needs librope 0.1: let pkg-config find that version, or take the package of yours"
#endif

// NULL is success. Go gives it back with ropego_error_free.
typedef struct ropego_error {
  int32_t status;
  char text[];
} ropego_error;
void ropego_error_free(ropego_error* error);

// Whether malloc has as much: 1 or 0.
int32_t ropego_has_memory(size_t bytes);

typedef struct ropego_tensor {
  int32_t dtype, layout, heads, head_dim;
  int64_t stride_batch, stride_token, stride_head;
} ropego_tensor;

typedef struct ropego_positions {
  int32_t kind, sequences;
  int64_t offset;
  int32_t
      type;  // of the array: 4, 8: int32_t, int64_t; -4: float; 0: there is none; 1: offset is it
  int32_t unused;
  int64_t batch_repeat;
  int64_t stride_axis, stride_batch, stride_token;
  rope_shard shard;  // scheme 0: there is none
} ropego_positions;

typedef struct ropego_rows {
  int32_t format, dtype, pairs, heads;  // format 0: there are none
  int64_t batch, stride_token, stride_head;
} ropego_rows;

typedef struct ropego_call {
  int64_t batch, tokens;
  int32_t operation, unused;
  ropego_tensor q, k, q_out, k_out;
  ropego_positions positions;
  ropego_rows rows;
} ropego_call;

typedef struct ropego_cache {
  int32_t kind, page_size;
  int32_t slot_bytes, unused;  // of MAPPED: 4, 8: int32_t, int64_t
  int64_t pages, slots_length, page_table_stride;
  ropego_tensor k, v;  // dtype 0: there is none
} ropego_cache;

typedef struct ropego_norm {
  int32_t given;  // 0: there is none
  int32_t kind, weight_dtype, span, order, rounding;
  double eps;
  int64_t weight_stride_head;
  ropego_tensor x;  // dtype 0: there is none
  int32_t grad_parts, unused;
} ropego_norm;

typedef struct ropego_scale {
  int32_t given;  // 0: there is none
  int32_t computed, dtype, group, power_of_two, round_first;
  float value;
  int32_t unused;
  double min_scale;
  int64_t stride_batch, stride_token, stride_head;
} ropego_scale;

// What few calls have.
typedef struct ropego_fused {
  ropego_norm q, k, v;  // norms
  // Of outputs, and of the cache.
  ropego_scale q_out_scale, k_out_scale, v_out_scale, rest_out_scale, k_scale, v_scale;
  ropego_tensor rest, rest_out;
} ropego_fused;

typedef struct ropego_append_call {
  ropego_call call;
  ropego_tensor v, v_out;
  ropego_cache cache;
} ropego_append_call;

typedef struct ropego_move_call {
  ropego_call call;
  ropego_positions from;        // kind 0: there are none
  ropego_cache source, cache;  // kind 0: there is none
  ropego_scale source_k_scale, source_v_scale, k_scale, v_scale;
} ropego_move_call;

// Arrays as bytes: pointers to a type without pointers cost no check in cgo.
ropego_error* ropego_apply_qk(const rope_context* context, const ropego_call* call, uint8_t* q,
                              uint8_t* k, uint8_t* q_out, uint8_t* k_out, const uint8_t* ids,
                              const int32_t* cu_seqlens, const int32_t* freq_sets, uint8_t* cos,
                              uint8_t* sin, const rope_pool* pool);
// slots: the numbers of MAPPED, or the page table.
ropego_error* ropego_append(const rope_context* context, const ropego_append_call* append, uint8_t* q,
                            uint8_t* k, uint8_t* v, uint8_t* q_out, uint8_t* k_out, uint8_t* v_out,
                            uint8_t* cache_k, uint8_t* cache_v, const uint8_t* slots,
                            const int32_t* page_starts, const int32_t* starts, const uint8_t* ids,
                            const int32_t* cu_seqlens, const int32_t* freq_sets, uint8_t* cos,
                            uint8_t* sin, const rope_pool* pool);
// The same with all else that a call may have, and without a cache where its kind is 0.
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
    const int32_t* freq_sets, uint8_t* cos, uint8_t* sin, const rope_pool* pool);
ropego_error* ropego_move(const rope_context* context, const ropego_move_call* move, uint8_t* q,
                          uint8_t* k, uint8_t* q_out, uint8_t* k_out, uint8_t* source_k,
                          uint8_t* source_v, const uint8_t* source_slots,
                          const int32_t* source_page_starts, const int32_t* source_starts,
                          uint8_t* source_k_scales, uint8_t* source_v_scales, uint8_t* cache_k,
                          uint8_t* cache_v, uint8_t* k_scales, uint8_t* v_scales, const uint8_t* slots,
                          const int32_t* page_starts, const int32_t* starts, const uint8_t* ids,
                          const uint8_t* from_ids, const int32_t* cu_seqlens,
                          const int32_t* from_cu_seqlens, const int32_t* freq_sets,
                          const int32_t* from_freq_sets, const rope_pool* pool);
// Of the tensors the call has everything but where they lie. beside: NULL, or scales and rest;
// without it and with cache.kind 0 there is nothing but q and k.
ropego_error* ropego_prepared_create(const rope_context* context, const ropego_append_call* append,
                                     const ropego_fused* beside, const uint8_t* slots, const int32_t* page_starts,
                                     const int32_t* starts, const uint8_t* ids,
                                     const int32_t* cu_seqlens, const int32_t* freq_sets,
                                     uint8_t* cos, uint8_t* sin, const rope_pool* pool,
                                     rope_prepared** out);
ropego_error* ropego_prepared_apply(const rope_prepared* prepared, uint8_t* q, uint8_t* k,
                                    uint8_t* q_out, uint8_t* k_out);
ropego_error* ropego_prepared_append(const rope_prepared* prepared, uint8_t* q, uint8_t* k,
                                     uint8_t* v, uint8_t* q_out, uint8_t* k_out, uint8_t* v_out,
                                     uint8_t* cache_k, uint8_t* cache_v);
ropego_error* ropego_prepared_call(const rope_prepared* prepared, uint8_t* q, uint8_t* q_out,
                                   uint8_t* k, uint8_t* k_out, uint8_t* v, uint8_t* v_out,
                                   uint8_t* rest, uint8_t* rest_out, uint8_t* q_out_scales,
                                   uint8_t* k_out_scales, uint8_t* v_out_scales,
                                   uint8_t* rest_out_scales, uint8_t* cache_k, uint8_t* cache_v,
                                   uint8_t* cache_k_scales, uint8_t* cache_v_scales,
                                   uint8_t* q_norm_weight, uint8_t* q_norm_bias, uint8_t* q_norm_rstd,
                                   uint8_t* k_norm_weight, uint8_t* k_norm_bias, uint8_t* k_norm_rstd,
                                   uint8_t* v_norm_weight, uint8_t* v_norm_bias, uint8_t* v_norm_rstd);
ropego_error* ropego_apply_thd(const rope_context* context, int32_t dtype, int64_t tokens,
                               const int64_t* positions, uint8_t* q, int32_t q_heads, uint8_t* k,
                               int32_t k_heads);
ropego_error* ropego_cos_sin_fill(const rope_context* context, const ropego_call* call,
                                  const uint8_t* ids, const int32_t* cu_seqlens,
                                  const int32_t* freq_sets, uint8_t* cos, uint8_t* sin);
ropego_error* ropego_shard_ids(const ropego_call* call, const uint8_t* offsets,
                               const int32_t* cu_seqlens, int64_t* ids, int64_t* numbers);

// The tables in the configs are C memory.
ropego_error* ropego_context_create(const rope_config* configs, int32_t count, int32_t sets,
                                    rope_context** out);
ropego_error* ropego_config_digest(const rope_config* config, rope_digest same, rope_digest_text* digest);
ropego_error* ropego_config_next_change(const rope_config* config, int64_t seq_len, int64_t* next);
ropego_error* ropego_context_info(const rope_context* context, int32_t freq_set, rope_info* info);
ropego_error* ropego_context_inv_freq(const rope_context* context, int32_t freq_set, double* out,
                                      int32_t count);
ropego_error* ropego_pool_create(int32_t threads, rope_pool** out);
ropego_error* ropego_model_create(const uint8_t* json, size_t length, const char* keys,
                                  int32_t count, rope_model** out);
ropego_error* ropego_model_create_gguf(const uint8_t* data, size_t size, rope_model** out);
ropego_error* ropego_model_create_gguf_values(const rope_gguf_value* values, int32_t count,
                                              const rope_gguf_factors* factors,
                                              int32_t factor_count, rope_model** out);
ropego_error* ropego_model_load_gguf(const char* path, rope_model** out);
ropego_error* ropego_model_layer_type(const rope_model* model, int32_t layer, int32_t* type);
ropego_error* ropego_model_digest(const rope_model* model, int32_t type, rope_digest same,
                                  rope_digest_text* digest);
ropego_error* ropego_model_config(const rope_model* model, int32_t type, rope_config* config);
// grids: t, h and w of each; scales: fps, scale_t, scale_h, scale_w.
ropego_error* ropego_model_latent_ids(const rope_model* model, int32_t type, const int32_t* grids,
                                      int32_t count, int64_t text, const double* scales, float* ids,
                                      int64_t capacity, int64_t* tokens);
ropego_error* ropego_prompt_ids(const int64_t* parts, const double* t_intervals, int32_t count,
                                int64_t start, int64_t* ids, int64_t tokens, int64_t* next);

#endif  // LIBROPE_GO_SHIM_H_
