/* Helpers compiled into librope._ffi. build_ffi.py declares the functions marked "cffi".
 *
 * A prepared call is a rope_qk_args without addresses, made once per combination of shapes, strides
 * and dtypes and shared by all threads. A call copies it to the stack, puts the addresses in and
 * crosses into the library: one crossing instead of one per field, and no struct that two threads
 * could write. */

typedef struct {
  void *q, *k, *q_out, *k_out, *positions, *cu_seqlens, *freq_sets;
} Addresses;

static int32_t run(const rope_context* context, const rope_qk_args* prepared, const Addresses* at,
                   int64_t offset, void* stream, void* runner) {
  rope_qk_args args = *prepared;
  if (args.batch != 0) { /* an array without rows may have an address, too */
    args.q.data = at->q;
    args.k.data = at->k;
    args.q_out.data = at->q_out;
    args.k_out.data = at->k_out;
  }
  if (args.positions.kind == ROPE_POSITIONS_OFFSET) args.positions.offset = offset;
  /* The prepared call marks with any address which of the arrays it reads. An int for SHIFT is one
   * id for all tokens. */
  if (args.positions.ids_i64) args.positions.ids_i64 = at->positions ? at->positions : &offset;
  if (args.positions.ids_i32) args.positions.ids_i32 = at->positions;
  if (args.positions.ids_f32) args.positions.ids_f32 = at->positions;
  if (args.positions.offsets_i64) args.positions.offsets_i64 = at->positions;
  if (args.positions.offsets_i32) args.positions.offsets_i32 = at->positions;
  args.positions.cu_seqlens = at->cu_seqlens;
  args.positions.freq_sets = at->freq_sets;
  args.stream = stream;
  args.runner = runner;
  return rope_apply_qk(context, &args);
}

/* cffi */ static int32_t call_buffers(const rope_context* context, const rope_qk_args* prepared,
                                       void* q, void* k, void* positions, int64_t offset) {
  const Addresses at = {q, k, NULL, NULL, positions, NULL, NULL};
  return run(context, prepared, &at, offset, NULL, NULL);
}

/* The same from numbers: data_ptr() of torch, __array_interface__, DLPack. */
/* cffi */ static int32_t call_addresses(const rope_context* context, const rope_qk_args* prepared,
                                         uintptr_t q, uintptr_t k, uintptr_t q_out,
                                         uintptr_t k_out, uintptr_t positions, int64_t offset,
                                         uintptr_t cu_seqlens, uintptr_t freq_sets,
                                         uintptr_t stream, void* runner) {
  const Addresses at = {(void*)q,         (void*)k,          (void*)q_out,    (void*)k_out,
                        (void*)positions, (void*)cu_seqlens, (void*)freq_sets};
  return run(context, prepared, &at, offset, (void*)stream, runner);
}

/* Rows instead of positions. */
/* cffi */ static int32_t call_rows(const rope_context* context, const rope_qk_args* prepared,
                                    const rope_cos_sin* prepared_rows, uintptr_t q, uintptr_t k,
                                    uintptr_t q_out, uintptr_t k_out, uintptr_t cosine,
                                    uintptr_t sine, uintptr_t stream, void* runner) {
  rope_qk_args args = *prepared;
  rope_cos_sin rows = *prepared_rows;
  if (args.batch != 0) {
    args.q.data = (void*)q;
    args.k.data = (void*)k;
    args.q_out.data = (void*)q_out;
    args.k_out.data = (void*)k_out;
  }
  rows.data = (void*)cosine;
  rows.sin = (void*)sine;
  args.cos_sin = &rows;
  args.stream = (void*)stream;
  args.runner = runner;
  return rope_apply_qk(context, &args);
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
