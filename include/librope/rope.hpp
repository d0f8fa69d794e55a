/* librope for C++17: owners for the handles of rope.h and model.h, and nothing else.
 *
 *     rope_config config = ROPE_INIT(rope_config);
 *     config.head_dim = 128;
 *     config.theta = 500000;
 *     config.pairing = ROPE_PAIRING_HALVES;
 *     const rope::Context context(config);                                   // throws rope::Error
 *     context.Apply(ROPE_DTYPE_BF16, tokens, positions, q, 32, k, 8);              // every layer
 *
 * Those two are the manual: the structs, the constants and their rules are the same here. This
 * header adds
 *
 * - Context, Prepared, Pool and Model, which destroy what they own. They can be moved and not
 *   copied; one that was moved from may only be destroyed or assigned to.
 * - Error, thrown where an object cannot be created. Calls come twice: TryApply returns a status
 *   and never throws, Apply throws Error instead. Neither allocates unless it throws. Programs
 *   without exceptions use rope.h.
 * - Functions that start the plain structs, so that a call reads as one expression.
 *
 * Header-only: everything is inline over the C API, so the compiler and the standard library of the
 * program need not be those of librope.so. The inline namespace keeps these names apart from any
 * other version of this header in the same program. */
#ifndef LIBROPE_ROPE_HPP_
#define LIBROPE_ROPE_HPP_

#if defined(__GNUC__) && !defined(__cpp_exceptions)
#error "librope/rope.hpp reports errors by exceptions: with -fno-exceptions use librope/rope.h"
#endif

#include <librope/model.h>
#include <librope/rope.h>

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace rope {
inline namespace v0 {

/* ------------------------------------------------------------------------------------------------
 * Errors */

/* A status other than ROPE_OK; what() is rope_last_error() of that moment. */
class Error : public std::runtime_error {
 public:
  Error(rope_status status, const std::string& message)
      : std::runtime_error(message), status_(status) {}
  rope_status status() const noexcept { return status_; }

 private:
  rope_status status_;
};

/* Throws Error unless status is ROPE_OK. To be called on the thread that got the status, before its
 * next call of librope: the message is that thread's. One that has had no error gets the status in
 * words. */
inline void Check(rope_status status) {
  if (status == ROPE_OK) return;
  const char* const message = rope_last_error();
  throw Error(status, *message != '\0' ? message : rope_status_string(status));
}

/* ------------------------------------------------------------------------------------------------
 * Tensors and positions for rope_qk_args */

/* batch and tokens are those of the call. An input is only read where there is an output, so the
 * data of a const array may be cast for it. */
inline rope_tensor MakeTensor(void* data, rope_dtype dtype, rope_layout layout, int32_t heads) {
  rope_tensor tensor = {};
  tensor.data = data;
  tensor.dtype = dtype;
  tensor.layout = layout;
  tensor.heads = heads;
  return tensor;
}
inline rope_tensor Bshd(void* data, rope_dtype dtype, int32_t heads) {
  return MakeTensor(data, dtype, ROPE_LAYOUT_BSHD, heads);
}
inline rope_tensor Bhsd(void* data, rope_dtype dtype, int32_t heads) {
  return MakeTensor(data, dtype, ROPE_LAYOUT_BHSD, heads);
}
inline rope_tensor Sbhd(void* data, rope_dtype dtype, int32_t heads) {
  return MakeTensor(data, dtype, ROPE_LAYOUT_SBHD, heads);
}
/* Strides in elements, literally. */
inline rope_tensor Strided(void* data, rope_dtype dtype, int32_t heads, int64_t stride_batch,
                           int64_t stride_token, int64_t stride_head) {
  rope_tensor tensor = MakeTensor(data, dtype, ROPE_LAYOUT_STRIDED, heads);
  tensor.stride_batch = stride_batch;
  tensor.stride_token = stride_token;
  tensor.stride_head = stride_head;
  return tensor;
}

/* The memory of a cache: contiguous [pages, page_size, heads, head_dim], and heads before slots. */
inline rope_tensor Nhd(void* data, rope_dtype dtype, int32_t heads) {
  return MakeTensor(data, dtype, ROPE_LAYOUT_NHD, heads);
}
inline rope_tensor Hnd(void* data, rope_dtype dtype, int32_t heads) {
  return MakeTensor(data, dtype, ROPE_LAYOUT_HND, heads);
}
/* The same tensor with a head_dim: required for values, whose width is their own. */
inline rope_tensor WithHeadDim(rope_tensor tensor, int32_t head_dim) {
  tensor.head_dim = head_dim;
  return tensor;
}

/* Where the tokens of a call go; k and v are for the caller to set. `slots` has a number for each
 * of `length` tokens. */
inline rope_kv_cache MappedCache(int64_t pages, int32_t page_size, const int32_t* slots,
                                 int64_t length) {
  rope_kv_cache cache = ROPE_INIT(rope_kv_cache);
  cache.kind = ROPE_SLOTS_MAPPED;
  cache.pages = pages;
  cache.page_size = page_size;
  cache.slots_i32 = slots;
  cache.slots_length = length;
  return cache;
}
inline rope_kv_cache MappedCache(int64_t pages, int32_t page_size, const int64_t* slots,
                                 int64_t length) {
  rope_kv_cache cache = MappedCache(pages, page_size, static_cast<const int32_t*>(nullptr), length);
  cache.slots_i64 = slots;
  return cache;
}
/* Each sequence has a row of `row` pages in page_table, and starts[s] slots of them are filled. */
inline rope_kv_cache PagedCache(int64_t pages, int32_t page_size, const int32_t* page_table,
                                int64_t row, const int32_t* starts) {
  rope_kv_cache cache = ROPE_INIT(rope_kv_cache);
  cache.kind = ROPE_SLOTS_PAGED;
  cache.pages = pages;
  cache.page_size = page_size;
  cache.page_table = page_table;
  cache.page_table_stride = row;
  cache.starts = starts;
  return cache;
}
/* The row of sequence s is page_table[page_starts[s]] to page_table[page_starts[s + 1] - 1]. */
inline rope_kv_cache PagedCache(int64_t pages, int32_t page_size, const int32_t* page_table,
                                const int32_t* page_starts, const int32_t* starts) {
  rope_kv_cache cache = PagedCache(pages, page_size, page_table, int64_t{0}, starts);
  cache.page_starts = page_starts;
  return cache;
}
/* Sequence s owns page s. */
inline rope_kv_cache LinearCache(int64_t sequences, int32_t length, const int32_t* starts) {
  rope_kv_cache cache = ROPE_INIT(rope_kv_cache);
  cache.kind = ROPE_SLOTS_LINEAR;
  cache.pages = sequences;
  cache.page_size = length;
  cache.starts = starts;
  return cache;
}

/* What args.fused points to: k and v go to the cache, which must live until the call returns; a
 * temporary one gives none.
 *
 *     rope_kv_cache cache = rope::PagedCache(pages, 16, page_table, row, lengths);
 *     cache.k = rope::Nhd(keys, ROPE_DTYPE_BF16, 8);
 *     cache.v = rope::WithHeadDim(rope::Nhd(values, ROPE_DTYPE_BF16, 8), 128);
 *     const rope_tensor v_new = rope::WithHeadDim(rope::Bshd(v, ROPE_DTYPE_BF16, 8), 128);
 *     const rope_fused fused = rope::Append(cache, v_new);
 *     args.fused = &fused; */
inline rope_fused Append(const rope_kv_cache& cache, const rope_tensor& v = rope_tensor{}) {
  rope_fused fused = ROPE_INIT(rope_fused);
  fused.cache = &cache;
  fused.v = v;
  return fused;
}
rope_fused Append(const rope_kv_cache&& cache, const rope_tensor& v = rope_tensor{}) = delete;

/* The same where keys and values move from slots to slots, in place if source and cache are the
 * same. All must live until the call returns; `from` are the positions before, of REROTATE.
 *
 *     const rope_positions before = rope::Offset(cut), after = rope::Offset(0);
 *     const rope_fused fused = rope::Move(cache, cache, &before);
 *     args.operation = ROPE_OPERATION_REROTATE;
 *     args.positions = after;
 *     args.fused = &fused; */
inline rope_fused Move(const rope_kv_cache& source, const rope_kv_cache& cache,
                       const rope_positions* from = nullptr) {
  rope_fused fused = ROPE_INIT(rope_fused);
  fused.source = &source;
  fused.cache = &cache;
  fused.from_positions = from;
  return fused;
}
rope_fused Move(const rope_kv_cache&& source, const rope_kv_cache& cache,
                const rope_positions* from = nullptr) = delete;
rope_fused Move(const rope_kv_cache& source, const rope_kv_cache&& cache,
                const rope_positions* from = nullptr) = delete;
rope_fused Move(const rope_kv_cache&& source, const rope_kv_cache&& cache,
                const rope_positions* from = nullptr) = delete;

/* A norm of q, k or v, each head on its own, with one row of weights for all heads; NULL and 0 for
 * RMS_PLAIN. Beside a 16-bit context that rounds EAGER, as those of most models do, `rounding` must
 * be ROUNDED or EAGER. */
inline rope_norm MakeNorm(rope_norm_kind kind, double eps, const void* weight,
                          rope_dtype weight_dtype,
                          rope_norm_rounding rounding = ROPE_NORM_ROUNDING_FLOAT32) {
  rope_norm norm = ROPE_INIT(rope_norm);
  norm.kind = kind;
  norm.eps = eps;
  norm.weight = weight;
  norm.weight_dtype = weight_dtype;
  norm.rounding = rounding;
  return norm;
}

/* What args.fused points to, with norms of q, k and v beside what it has; null for none. They must
 * live until the call returns.
 *
 *     const rope_norm q_norm = rope::MakeNorm(ROPE_NORM_KIND_RMS, 1e-6, weight, ROPE_DTYPE_BF16);
 *     const rope_fused fused = rope::WithNorms(rope::Append(cache, v_new), &q_norm, nullptr); */
inline rope_fused WithNorms(rope_fused fused, const rope_norm* q, const rope_norm* k,
                            const rope_norm* v = nullptr) {
  fused.q_norm = q;
  fused.k_norm = k;
  fused.v_norm = v;
  return fused;
}

/* The same norm for BACKWARD: `x` is what FORWARD was given, and must live until the call returns;
 * parts are those of the weights' gradient, if it is wanted. */
inline rope_norm WithGradients(rope_norm norm, const rope_tensor& x, float* weight_grad = nullptr,
                               int32_t parts = 0) {
  norm.x = &x;
  norm.weight_grad = weight_grad;
  norm.grad_parts = parts;
  return norm;
}
rope_norm WithGradients(rope_norm, const rope_tensor&&, float* = nullptr, int32_t = 0) = delete;

/* The scale of all that an output or cache in 8 bits stores; see WithScale. */
inline rope_scale GivenScale(float value) {
  rope_scale scale = ROPE_INIT(rope_scale);
  scale.value = value;
  return scale;
}

/* Scales that are computed from what is stored, and written to `data`: one for each head, or for
 * each group of its channels, which are adjacent. Strides count scales, and lead from batch row to
 * batch row, from token to token, and from head to head; in a cache from page to page, from slot to
 * slot, and from head to head. */
inline rope_scale ComputedScale(float* data, int64_t stride_batch, int64_t stride_token,
                                int64_t stride_head, int32_t group = 0) {
  rope_scale scale = ROPE_INIT(rope_scale);
  scale.computed = 1;
  scale.dtype = ROPE_DTYPE_F32;
  scale.data = data;
  scale.stride_batch = stride_batch;
  scale.stride_token = stride_token;
  scale.stride_head = stride_head;
  scale.group = group;
  return scale;
}
/* The same as powers of two, of which the exponent is kept. */
inline rope_scale ComputedScale(uint8_t* data, int64_t stride_batch, int64_t stride_token,
                                int64_t stride_head, int32_t group = 0) {
  rope_scale scale =
      ComputedScale(static_cast<float*>(nullptr), stride_batch, stride_token, stride_head, group);
  scale.power_of_two = 1;
  scale.dtype = ROPE_DTYPE_E8M0;
  scale.data = data;
  return scale;
}

/* The tensor with its scales, which must live until the call returns; a temporary one gives none.
 *
 *     const rope_scale scale = rope::GivenScale(0.01f);
 *     cache.k = rope::WithScale(rope::Nhd(codes, ROPE_DTYPE_F8_E4M3, 8), scale); */
inline rope_tensor WithScale(rope_tensor tensor, const rope_scale& scale) {
  tensor.scale = &scale;
  return tensor;
}
rope_tensor WithScale(rope_tensor tensor, const rope_scale&& scale) = delete;

/* Token i of every sequence is at offset + i. */
inline rope_positions Offset(int64_t offset) {
  rope_positions positions = {};
  positions.kind = ROPE_POSITIONS_OFFSET;
  positions.offset = offset;
  return positions;
}
/* Token i of sequence s is at offsets[s] + i. */
inline rope_positions SeqOffsets(const int32_t* offsets) {
  rope_positions positions = {};
  positions.kind = ROPE_POSITIONS_SEQ_OFFSETS;
  positions.offsets_i32 = offsets;
  return positions;
}
inline rope_positions SeqOffsets(const int64_t* offsets) {
  rope_positions positions = {};
  positions.kind = ROPE_POSITIONS_SEQ_OFFSETS;
  positions.offsets_i64 = offsets;
  return positions;
}
/* Packed sequences (batch 1): sequence s is tokens cu_seqlens[s] to cu_seqlens[s + 1] - 1, and its
 * token i is at offsets[s] + i. */
template <class Integer>
inline rope_positions Packed(const Integer* offsets, const int32_t* cu_seqlens, int32_t sequences) {
  rope_positions positions = SeqOffsets(offsets);
  positions.cu_seqlens = cu_seqlens;
  positions.sequences = sequences;
  return positions;
}
/* kind: one of ROPE_POSITIONS_IDS_*, which says the shape of ids. */
inline rope_positions Ids(rope_position_kind kind, const int32_t* ids) {
  rope_positions positions = {};
  positions.kind = kind;
  positions.ids_i32 = ids;
  return positions;
}
inline rope_positions Ids(rope_position_kind kind, const int64_t* ids) {
  rope_positions positions = {};
  positions.kind = kind;
  positions.ids_i64 = ids;
  return positions;
}
inline rope_positions Ids(rope_position_kind kind, const float* ids) {
  rope_positions positions = {};
  positions.kind = kind;
  positions.ids_f32 = ids;
  return positions;
}

/* What one of `world` ranks has of a sequence (section 13 of rope.h). */
inline rope_shard ContiguousShard(int32_t rank, int32_t world) {
  rope_shard shard = {};
  shard.scheme = ROPE_SHARD_CONTIGUOUS;
  shard.rank = rank;
  shard.world = world;
  return shard;
}
inline rope_shard ZigzagShard(int32_t rank, int32_t world) {
  rope_shard shard = ContiguousShard(rank, world);
  shard.scheme = ROPE_SHARD_ZIGZAG;
  return shard;
}
inline rope_shard StripedShard(int32_t rank, int32_t world, int32_t block = 1) {
  rope_shard shard = ContiguousShard(rank, world);
  shard.scheme = ROPE_SHARD_STRIPED;
  shard.block = block;
  return shard;
}
/* Each document of cu_seqlens is divided by itself. */
inline rope_shard PerDocument(rope_shard shard) {
  shard.per_document = 1;
  return shard;
}
/* A second group of ranks divides what a rank of the first one has: ring and Ulysses are
 * Then(ZigzagShard(ring_rank, ring), ContiguousShard(ulysses_rank, ulysses)). Throws if there would
 * be a third group, or if the inner one is PerDocument. */
inline rope_shard Then(rope_shard outer, const rope_shard& inner) {
  if (outer.inner_scheme != 0 || inner.inner_scheme != 0) {
    throw Error(ROPE_ERROR_INVALID_ARGUMENT, "Then: there are two groups of ranks at most");
  }
  if (inner.per_document != 0) {
    throw Error(ROPE_ERROR_INVALID_ARGUMENT,
                "Then: inner.per_document (1) must be 0: it divides a row");
  }
  for (const int32_t unused :
       {outer.inner_rank, outer.inner_world, outer.inner_block, inner.inner_rank, inner.inner_world,
        inner.inner_block, inner.reserved[0], inner.reserved[1], inner.reserved[2]}) {
    if (unused == 0) continue;
    throw Error(ROPE_ERROR_INVALID_ARGUMENT,
                "Then: outer and inner must have 0 in what they do not use: inner_rank, "
                "inner_world, inner_block, reserved");
  }
  outer.inner_scheme = inner.scheme;
  outer.inner_rank = inner.rank;
  outer.inner_world = inner.world;
  outer.inner_block = inner.block;
  return outer;
}
/* Positions of whole sequences on a rank, for OFFSET and SEQ_OFFSETS. The shard must live until the
 * call returns; a temporary one gives none. */
inline rope_positions OnRank(const rope_shard& shard, rope_positions positions) {
  positions.shard = &shard;
  return positions;
}
rope_positions OnRank(const rope_shard&& shard, rope_positions positions) = delete;

/* The positions of a rank's tokens as ids[batch, tokens], and their numbers[tokens] in a row of all
 * ranks: rope_shard_ids. Either may be null. */
inline void ShardIds(int64_t batch, int64_t tokens, const rope_positions& positions, int64_t* ids,
                     int64_t* numbers = nullptr) {
  Check(rope_shard_ids(batch, tokens, &positions, ids, numbers));
}

/* ------------------------------------------------------------------------------------------------
 * Context */

/* What belongs to the model: frequencies, pairing, policies. Immutable: a const Context may be used
 * by any number of threads at once. */
class Context {
 public:
  explicit Context(const rope_config& config) { Check(rope_context_create(&config, &context_)); }
  /* Several sets of frequencies, of which positions.freq_sets names one per sequence. */
  Context(const rope_config* const* configs, int32_t count) {
    Check(rope_context_create_sets(configs, count, &context_));
  }
  ~Context() { rope_context_destroy(context_); }
  Context(Context&& other) noexcept : context_(std::exchange(other.context_, nullptr)) {}
  Context& operator=(Context&& other) noexcept {
    if (this != &other) {
      rope_context_destroy(context_);
      context_ = std::exchange(other.context_, nullptr);
    }
    return *this;
  }
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  /* Rotates the q and k that args describe: rope_apply_qk. */
  [[nodiscard]] rope_status TryApply(const rope_qk_args& args) const noexcept {
    return rope_apply_qk(context_, &args);
  }
  void Apply(const rope_qk_args& args) const { Check(TryApply(args)); }

  /* The short call, rope_apply_thd: contiguous [tokens, heads, head_dim] in place, token t by
   * positions[t]. q or k may be null with 0 heads. */
  [[nodiscard]] rope_status TryApply(rope_dtype dtype, int64_t tokens, const int64_t* positions,
                                     void* q, int32_t q_heads, void* k,
                                     int32_t k_heads) const noexcept {
    return rope_apply_thd(context_, dtype, tokens, positions, q, q_heads, k, k_heads);
  }
  void Apply(rope_dtype dtype, int64_t tokens, const int64_t* positions, void* q, int32_t q_heads,
             void* k, int32_t k_heads) const {
    Check(TryApply(dtype, tokens, positions, q, q_heads, k, k_heads));
  }

  /* Writes rows of cos and sin: rope_cos_sin_fill. */
  [[nodiscard]] rope_status TryFillCosSin(int64_t batch, int64_t tokens,
                                          const rope_positions& positions, const rope_cos_sin& out,
                                          void* stream = nullptr) const noexcept {
    return rope_cos_sin_fill(context_, batch, tokens, &positions, &out, stream);
  }
  void FillCosSin(int64_t batch, int64_t tokens, const rope_positions& positions,
                  const rope_cos_sin& out, void* stream = nullptr) const {
    Check(TryFillCosSin(batch, tokens, positions, out, stream));
  }

  /* Resolved sizes and factors of one frequency set. */
  rope_info Info(int32_t freq_set = 0) const {
    rope_info info = ROPE_INIT(rope_info);
    Check(rope_context_info(context_, freq_set, &info));
    return info;
  }
  /* One inv_freq per pair, or the table of config.frequency. Allocates the vector. */
  std::vector<double> InvFreq(int32_t freq_set = 0) const {
    const int32_t count = Info(freq_set).inv_freq_count;
    std::vector<double> values(static_cast<std::size_t>(count));
    Check(rope_context_inv_freq(context_, freq_set, values.data(), count));
    return values;
  }
  /* For logs, such as "cpu AVX3". Lives as long as the context; a temporary one gives none. */
  const char* backend() const& noexcept { return rope_context_backend(context_); }
  const char* backend() const&& = delete;

  /* The C handle; it stays owned by this object. */
  const rope_context* get() const& noexcept { return context_; }
  const rope_context* get() const&& = delete;

 private:
  rope_context* context_ = nullptr;
};

/* ------------------------------------------------------------------------------------------------
 * Prepared */

/* The call that args describe, without addresses, for every layer of a forward pass: checked once,
 * with its rows made once. Any number of threads may use a const Prepared at once.
 *
 *     args.q = rope::Bshd(nullptr, ROPE_DTYPE_BF16, 32);
 *     args.k = rope::Bshd(nullptr, ROPE_DTYPE_BF16, 8);
 *     const rope::Prepared prepared(context, args);
 *     prepared.Apply(q, k);                                                       // every layer */
class Prepared {
 public:
  /* The context, and the pool of args.runner, must live as long as this object; a temporary Context
   * gives none. Nothing else is kept. */
  Prepared(const Context& context, const rope_qk_args& args) {
    Check(rope_prepared_create(context.get(), &args, &prepared_));
  }
  Prepared(const Context&& context, const rope_qk_args& args) = delete;
  ~Prepared() { rope_prepared_destroy(prepared_); }
  Prepared(Prepared&& other) noexcept : prepared_(std::exchange(other.prepared_, nullptr)) {}
  Prepared& operator=(Prepared&& other) noexcept {
    if (this != &other) {
      rope_prepared_destroy(prepared_);
      prepared_ = std::exchange(other.prepared_, nullptr);
    }
    return *this;
  }
  Prepared(const Prepared&) = delete;
  Prepared& operator=(const Prepared&) = delete;

  /* Rotates the tensors at these addresses: rope_prepared_apply. Those of args.fused, such as the
   * pages of the layer's cache, are given here. */
  [[nodiscard]] rope_status TryApply(const rope_qk_data& data) const noexcept {
    return rope_prepared_apply(prepared_, &data);
  }
  void Apply(const rope_qk_data& data) const { Check(TryApply(data)); }

  /* The same, with null for each tensor that args did not describe. */
  [[nodiscard]] rope_status TryApply(void* q, void* k, void* q_out = nullptr,
                                     void* k_out = nullptr) const noexcept {
    rope_qk_data data = ROPE_INIT(rope_qk_data);
    data.q = q;
    data.k = k;
    data.q_out = q_out;
    data.k_out = k_out;
    return TryApply(data);
  }
  void Apply(void* q, void* k, void* q_out = nullptr, void* k_out = nullptr) const {
    Check(TryApply(q, k, q_out, k_out));
  }

  /* The C handle; it stays owned by this object. */
  const rope_prepared* get() const& noexcept { return prepared_; }
  const rope_prepared* get() const&& = delete;

 private:
  rope_prepared* prepared_ = nullptr;
};

/* ------------------------------------------------------------------------------------------------
 * Pool */

/* Threads for programs that have none of their own: args.runner = pool.runner(). */
class Pool {
 public:
  /* threads: how many work, the caller's included; 0: one per CPU of this process. */
  explicit Pool(int32_t threads = 0) { Check(rope_pool_create(threads, &pool_)); }
  ~Pool() { rope_pool_destroy(pool_); }
  Pool(Pool&& other) noexcept : pool_(std::exchange(other.pool_, nullptr)) {}
  Pool& operator=(Pool&& other) noexcept {
    if (this != &other) {
      rope_pool_destroy(pool_);
      pool_ = std::exchange(other.pool_, nullptr);
    }
    return *this;
  }
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  /* Lives as long as the pool, also when the Pool object is moved; a temporary one gives none. */
  const rope_runner* runner() const& noexcept { return rope_pool_runner(pool_); }
  const rope_runner* runner() const&& = delete;

 private:
  rope_pool* pool_ = nullptr;
};

/* ------------------------------------------------------------------------------------------------
 * Model */

/* Equal for configurations that rotate alike, however they say it (docs/digest.md). */
inline std::string Digest(const rope_config& config, rope_digest same = ROPE_DIGEST_ROTATION) {
  rope_digest_text digest;
  Check(rope_config_digest(&config, same, &digest));
  return digest.text;
}

/* The kinds of RoPE that a model's config.json or GGUF file describes. */
class Model {
 public:
  /* accepted_keys: known to change nothing, as of rope_model_create_accepting. Texts with a NUL
   * character, behind which C would not read, throw here and in LoadGguf. */
  explicit Model(std::string_view json, const std::vector<std::string>& accepted_keys = {}) {
    if (accepted_keys.empty()) {
      Check(rope_model_create(json.data(), json.size(), &model_));
      return;
    }
    std::vector<const char*> keys;
    for (std::size_t i = 0; i < accepted_keys.size(); ++i) {
      keys.push_back(TextOf("Model: accepted_keys[" + std::to_string(i) + "]", accepted_keys[i]));
    }
    Check(rope_model_create_accepting(json.data(), json.size(), keys.data(),
                                      static_cast<int32_t>(keys.size()), &model_));
  }
  /* Of the bytes of a GGUF file, or of its beginning, and of the file itself. */
  static Model FromGguf(std::string_view bytes) {
    Model model;
    Check(rope_model_create_gguf(bytes.data(), bytes.size(), &model.model_));
    return model;
  }
  /* Of the keys and factors of a GGUF file that the program has parsed already. */
  static Model FromGgufValues(const std::vector<rope_gguf_value>& values,
                              const std::vector<rope_gguf_factors>& factors = {}) {
    Model model;
    Check(rope_model_create_gguf_values(values.data(), static_cast<int32_t>(values.size()),
                                        factors.data(), static_cast<int32_t>(factors.size()),
                                        &model.model_));
    return model;
  }
  static Model LoadGguf(const std::string& path) {
    Model model;
    Check(rope_model_load_gguf(TextOf("Model::LoadGguf: path", path), &model.model_));
    return model;
  }
  ~Model() { rope_model_destroy(model_); }
  Model(Model&& other) noexcept : model_(std::exchange(other.model_, nullptr)) {}
  Model& operator=(Model&& other) noexcept {
    if (this != &other) {
      rope_model_destroy(model_);
      model_ = std::exchange(other.model_, nullptr);
    }
    return *this;
  }
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;

  /* How many kinds, at least 1. */
  int32_t layer_types() const noexcept { return rope_model_layer_type_count(model_); }
  /* "full_attention", ...; null for a number out of range. Lives as long as the model; a temporary
   * one gives none. */
  const char* layer_type_name(int32_t type) const& noexcept {
    return rope_model_layer_type_name(model_, type);
  }
  const char* layer_type_name(int32_t type) const&& = delete;
  /* The note with this number, from 0; null if there is none. Lives as long, too. */
  const char* note(int32_t index) const& noexcept { return rope_model_note(model_, index); }
  const char* note(int32_t index) const&& = delete;
  /* The kind of one layer of the language model. */
  int32_t LayerType(int32_t layer) const {
    int32_t type = 0;
    Check(rope_model_layer_type(model_, layer, &type));
    return type;
  }
  /* The configuration of one kind. Its tables belong to the model: keep the model as long as the
   * config, which later contexts and rope_config_next_change read, too. A temporary Model gives
   * none. Set what is the program's: seq_len, device; to replace a number of the text, change the text:
   * what followed from it would stay (rope_model_config). */
  rope_config Config(int32_t type) const& {
    rope_config config = ROPE_INIT(rope_config);
    Check(rope_model_config(model_, type, &config));
    return config;
  }
  rope_config Config(int32_t type) const&& = delete;
  /* The ids of a diffusion model: [axes, tokens], with the axes of Config(type). */
  std::vector<float> LatentIds(int32_t type, const rope_latent_args& args) const {
    rope_config config = ROPE_INIT(rope_config);
    Check(rope_model_config(model_, type, &config));
    int64_t tokens = 0;
    Check(rope_model_latent_ids(model_, type, &args, nullptr, 0, &tokens));
    const int64_t axes = config.axes > 1 ? config.axes : 1;
    std::vector<float> ids(static_cast<std::size_t>(axes * tokens));
    Check(rope_model_latent_ids(model_, type, &args, ids.data(), axes * tokens, &tokens));
    return ids;
  }
  /* Of one kind, or of the model with -1: equal for the same RoPE, however it is described. */
  std::string Digest(int32_t type = -1, rope_digest same = ROPE_DIGEST_ROTATION) const {
    rope_digest_text digest;
    Check(rope_model_digest(model_, type, same, &digest));
    return digest.text;
  }

 private:
  Model() = default;

  /* `what` names the text in the message. */
  static const char* TextOf(const std::string& what, const std::string& text) {
    const std::size_t end = text.find('\0');
    if (end == std::string::npos) return text.c_str();
    throw Error(ROPE_ERROR_INVALID_ARGUMENT, what + " (\"" + text.substr(0, end) +
                                                 "\" and more) must not have a NUL character");
  }

  rope_model* model_ = nullptr;
};

}  // namespace v0
}  // namespace rope

#endif  // LIBROPE_ROPE_HPP_
