/* The handler behind librope.jax: rope_apply_qk as a custom call of XLA on the CPU.
 *
 * Arguments: one or two tensors, then positions. Results: the rotated tensors. Attributes are
 * values, never addresses, since executables are cached on disk: the bytes of rope_config with its
 * pointers zero, the tables behind it, and how the dimensions are ordered. Leading dimensions beyond
 * those of the layout are vmap's: the call is made for each. The header is
 * that of the jaxlib it is built with. */
#include <stdlib.h>
#include <string.h>

#include <librope/rope.h>

#include "xla/ffi/api/c_api.h"

enum { kTensors = 2, kTables = 4 };

/* -- attributes ------------------------------------------------------------------------------ */

static void* attribute(const XLA_FFI_Attrs* attrs, const char* name, XLA_FFI_AttrType type) {
  for (int64_t i = 0; i < attrs->size; ++i) {
    const XLA_FFI_ByteSpan* key = attrs->names[i];
    if (key->len == strlen(name) && memcmp(key->ptr, name, key->len) == 0) {
      return attrs->types[i] == type ? attrs->attrs[i] : NULL;
    }
  }
  return NULL;
}

static XLA_FFI_Error* fail(const XLA_FFI_CallFrame* frame, XLA_FFI_Error_Code code,
                           const char* message) {
  XLA_FFI_Error_Create_Args args;
  memset(&args, 0, sizeof args);
  args.struct_size = XLA_FFI_Error_Create_Args_STRUCT_SIZE;
  args.message = message;
  args.errc = code;
  return frame->api->XLA_FFI_Error_Create(&args);
}

/* -- contexts -------------------------------------------------------------------------------- */

/* Made once per configuration and kept: a program has as many as it has kinds of layers. */
typedef struct Known {
  struct Known* next;
  rope_context* context;
  size_t size;
  unsigned char bytes[];
} Known;

static Known* known_contexts;

static rope_context* find(const Known* from, const unsigned char* bytes, size_t size) {
  for (; from != NULL; from = from->next) {
    if (from->size == size && memcmp(from->bytes, bytes, size) == 0) return from->context;
  }
  return NULL;
}

/* The context of a configuration, or NULL and rope_last_error(). */
static const rope_context* context_of(const XLA_FFI_Array* config, const XLA_FFI_Array* tables,
                                      const XLA_FFI_Array* pair_axis, int32_t which) {
  const size_t table_bytes = tables->size * sizeof(double);
  const size_t size = config->size + table_bytes + pair_axis->size + sizeof which;
  Known* made = malloc(sizeof(Known) + size);
  if (made == NULL) return NULL;
  unsigned char* at = made->bytes;
  memcpy(at, config->data, config->size), at += config->size;
  if (table_bytes != 0) memcpy(at, tables->data, table_bytes);
  at += table_bytes;
  if (pair_axis->size != 0) memcpy(at, pair_axis->data, pair_axis->size);
  memcpy(at + pair_axis->size, &which, sizeof which);
  made->size = size;

  Known* head = __atomic_load_n(&known_contexts, __ATOMIC_ACQUIRE);
  rope_context* context = find(head, made->bytes, size);
  if (context != NULL) {
    free(made);
    return context;
  }
  rope_config full;
  memset(&full, 0, sizeof full);
  memcpy(&full, config->data, config->size < sizeof full ? config->size : sizeof full);
  const double* table = tables->data;
  const double** fields[kTables] = {&full.short_factor, &full.long_factor, &full.freq_factors,
                                    &full.inv_freq};
  for (int i = 0; i < kTables; ++i) {
    if ((which & (1 << i)) == 0) continue;
    *fields[i] = table;
    table += full.table_length;
  }
  if (pair_axis->size != 0) full.pair_axis = pair_axis->data;
  if (rope_context_create(&full, &made->context) != ROPE_OK) {
    free(made);
    return NULL;
  }
  /* Two threads may both make it: the loser's copy is used and kept as well. */
  made->next = head;
  while (!__atomic_compare_exchange_n(&known_contexts, &made->next, made, 0, __ATOMIC_RELEASE,
                                      __ATOMIC_RELAXED)) {
  }
  return made->context;
}

/* -- the call -------------------------------------------------------------------------------- */

static rope_dtype dtype_of(XLA_FFI_DataType type) {
  switch (type) {
    case XLA_FFI_DataType_F32: return ROPE_F32;
    case XLA_FFI_DataType_F16: return ROPE_F16;
    case XLA_FFI_DataType_BF16: return ROPE_BF16;
    default: return 0;
  }
}

static int64_t product(const int64_t* dims, int64_t from, int64_t to) {
  int64_t result = 1;
  for (; from < to; ++from) result *= dims[from];
  return result;
}

/* Fills a dense tensor whose last strlen(layout) dimensions are ordered as layout says. */
static int describe(const XLA_FFI_Buffer* buffer, const XLA_FFI_ByteSpan* layout,
                    rope_tensor* tensor, rope_qk_args* args) {
  const int64_t lead = buffer->rank - (int64_t)layout->len;
  if (lead < 0) return 0;
  int64_t step = 1;
  tensor->dtype = dtype_of(buffer->dtype);
  tensor->layout = ROPE_LAYOUT_STRIDED;
  tensor->heads = 1;
  int64_t batch = 1, tokens = 1;
  for (int64_t i = (int64_t)layout->len - 1; i >= 0; --i) {
    const int64_t size = buffer->dims[lead + i];
    switch (layout->ptr[i]) {
      case 'd': tensor->head_dim = (int32_t)size; break;
      case 'h': tensor->heads = (int32_t)size, tensor->stride_head = step; break;
      case 'b': batch = size, tensor->stride_batch = step; break;
      default: tokens = size, tensor->stride_token = step; break;
    }
    step *= size;
  }
  args->batch = batch;
  args->tokens = tokens;
  return 1;
}

static void describe_positions(const XLA_FFI_Buffer* buffer, const XLA_FFI_ByteSpan* layout,
                               rope_positions* p) {
  if (layout->len == 1 && layout->ptr[0] == 'o') {
    p->kind = ROPE_POSITIONS_SEQ_OFFSETS;
    return;
  }
  p->kind = ROPE_POSITIONS_IDS_STRIDED;
  int64_t step = 1;
  const int64_t lead = buffer->rank - (int64_t)layout->len;
  for (int64_t i = (int64_t)layout->len - 1; i >= 0; --i) {
    const int64_t size = buffer->dims[lead + i], stride = size == 1 ? 0 : step;
    switch (layout->ptr[i]) {
      case 'a': p->stride_axis = stride; break;
      case 'b': p->stride_batch = stride; break;
      default: p->stride_token = stride; break;
    }
    step *= size;
  }
}

static int point_positions(const XLA_FFI_Buffer* buffer, int64_t slice, int64_t count,
                           rope_positions* p) {
  const int offsets = p->kind == ROPE_POSITIONS_SEQ_OFFSETS;
  switch (buffer->dtype) {
    case XLA_FFI_DataType_S32: {
      const int32_t* at = (const int32_t*)buffer->data + slice * count;
      *(offsets ? &p->offsets_i32 : &p->ids_i32) = at;
      return 1;
    }
    case XLA_FFI_DataType_S64: {
      const int64_t* at = (const int64_t*)buffer->data + slice * count;
      *(offsets ? &p->offsets_i64 : &p->ids_i64) = at;
      return 1;
    }
    case XLA_FFI_DataType_F32:
      p->ids_f32 = (const float*)buffer->data + slice * count;
      return !offsets;
    default: return 0;
  }
}

static XLA_FFI_Error* execute(XLA_FFI_CallFrame* frame) {
  const XLA_FFI_Attrs* attrs = &frame->attrs;
  const XLA_FFI_Array* config = attribute(attrs, "config", XLA_FFI_AttrType_ARRAY);
  const XLA_FFI_Array* tables = attribute(attrs, "tables", XLA_FFI_AttrType_ARRAY);
  const XLA_FFI_Array* pair_axis = attribute(attrs, "pair_axis", XLA_FFI_AttrType_ARRAY);
  const XLA_FFI_Scalar* which = attribute(attrs, "which", XLA_FFI_AttrType_SCALAR);
  const XLA_FFI_Scalar* operation = attribute(attrs, "operation", XLA_FFI_AttrType_SCALAR);
  const XLA_FFI_ByteSpan* layouts[kTensors] = {
      attribute(attrs, "layout", XLA_FFI_AttrType_STRING),
      attribute(attrs, "layout_k", XLA_FFI_AttrType_STRING)};
  const XLA_FFI_ByteSpan* order = attribute(attrs, "positions_layout", XLA_FFI_AttrType_STRING);
  const int64_t tensors = frame->rets.size;
  if (!config || !tables || !pair_axis || !which || which->dtype != XLA_FFI_DataType_S32 ||
      !operation || operation->dtype != XLA_FFI_DataType_S32 || !layouts[0] || !layouts[1] ||
      !order || tensors < 1 || tensors > kTensors || frame->args.size != tensors + 1) {
    return fail(frame, XLA_FFI_Error_Code_INVALID_ARGUMENT,
                "librope: the custom call was not made by this version of librope.jax");
  }
  const rope_context* context =
      context_of(config, tables, pair_axis, *(const int32_t*)which->value);
  if (context == NULL) {
    return fail(frame, XLA_FFI_Error_Code_INVALID_ARGUMENT, rope_last_error());
  }

  rope_qk_args args = ROPE_INIT(rope_qk_args);
  args.operation = *(const int32_t*)operation->value;
  rope_tensor* in[kTensors] = {&args.q, &args.k};
  rope_tensor* out[kTensors] = {&args.q_out, &args.k_out};
  int64_t slices = 1, counts[kTensors + 1];
  for (int64_t i = 0; i < tensors; ++i) {
    const XLA_FFI_Buffer* buffer = frame->args.args[i];
    if (!describe(buffer, layouts[i], in[i], &args)) {
      return fail(frame, XLA_FFI_Error_Code_INVALID_ARGUMENT, "librope: too few dimensions");
    }
    *out[i] = *in[i];
    const int64_t lead = buffer->rank - (int64_t)layouts[i]->len;
    slices = product(buffer->dims, 0, lead);
    counts[i] = product(buffer->dims, lead, buffer->rank);
  }
  const XLA_FFI_Buffer* positions = frame->args.args[tensors];
  const int64_t lead = positions->rank - (int64_t)order->len;
  counts[tensors] = product(positions->dims, lead, positions->rank);
  describe_positions(positions, order, &args.positions);

  for (int64_t s = 0; s < slices; ++s) {
    for (int64_t i = 0; i < tensors; ++i) {
      const XLA_FFI_Buffer *from = frame->args.args[i], *to = frame->rets.rets[i];
      const int64_t bytes = counts[i] * (from->dtype == XLA_FFI_DataType_F32 ? 4 : 2);
      in[i]->data = (char*)from->data + s * bytes;
      out[i]->data = (char*)to->data + s * bytes;
    }
    if (!point_positions(positions, s, counts[tensors], &args.positions)) {
      return fail(frame, XLA_FFI_Error_Code_INVALID_ARGUMENT,
                  "librope: positions must be int32, int64 or float32, offsets int32 or int64");
    }
    if (rope_apply_qk(context, &args) != ROPE_OK) {
      return fail(frame, XLA_FFI_Error_Code_INVALID_ARGUMENT, rope_last_error());
    }
  }
  return NULL;
}

XLA_FFI_Error* librope_xla_apply(XLA_FFI_CallFrame* frame) {
  XLA_FFI_Extension_Base* extension = frame->extension_start;
  if (extension != NULL && extension->type == XLA_FFI_Extension_Metadata) {
    XLA_FFI_Metadata* metadata = ((XLA_FFI_Metadata_Extension*)extension)->metadata;
    metadata->api_version.major_version = XLA_FFI_API_MAJOR;
    metadata->api_version.minor_version = XLA_FFI_API_MINOR;
    metadata->traits = 0;
    return NULL;
  }
  return execute(frame);
}
