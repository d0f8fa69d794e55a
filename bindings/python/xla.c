/* The handlers behind librope.jax: rope_apply_qk and rope_cos_sin_fill as custom calls of XLA on
 * the CPU.
 *
 * Attributes are values, never addresses, since executables are cached on disk: the bytes of
 * rope_config with its pointers zero, the tables behind it, and how the dimensions are ordered.
 * Leading dimensions beyond those of the layout are vmap's: the call is made for each. */
#include <stdlib.h>
#include <string.h>

#include <librope/rope.h>

#include "xla_ffi.h"

enum { kTensors = 2, kTables = 4 };

/* -- attributes ------------------------------------------------------------------------------ */

static void* attribute(const XlaAttributes* attributes, const char* name, int32_t kind) {
  for (int64_t i = 0; i < attributes->size; ++i) {
    const XlaText* key = attributes->names[i];
    if (key->size == strlen(name) && memcmp(key->data, name, key->size) == 0) {
      return attributes->kinds[i] == kind ? attributes->values[i] : NULL;
    }
  }
  return NULL;
}

/* An i32 attribute, or NULL. */
static const int32_t* number(const XlaAttributes* attributes, const char* name) {
  const XlaValue* scalar = attribute(attributes, name, kXlaScalar);
  return scalar != NULL && scalar->dtype == kXlaS32 ? scalar->value : NULL;
}

static XlaError* fail(const XlaFrame* frame, const char* message) {
  XlaErrorRequest request;
  memset(&request, 0, sizeof request);
  request.struct_size = sizeof request;
  request.message = message;
  request.code = kXlaInvalidArgument;
  return frame->api->make_error(&request);
}

/* Fails with the library's last error, less its C names: "rope_apply_qk: args->positions: position
 * .." */
static XlaError* fail_call(const XlaFrame* frame) {
  char text[512] = "librope: ";
  size_t size = strlen(text);
  const char* from = strstr(rope_last_error(), ": ");
  from = from != NULL ? from + 2 : rope_last_error();
  while (*from != '\0' && size < sizeof text - 1) {
    if (strncmp(from, "args->", 6) == 0) {
      from += 6;
    } else if (strncmp(from, "config->", 8) == 0) {
      from += 8;
    } else {
      text[size++] = *from++;
    }
  }
  text[size] = '\0';
  return fail(frame, text);
}

static XlaError* fail_version(const XlaFrame* frame) {
  return fail(frame, "librope: the custom call was not made by this version of librope.jax");
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
static const rope_context* context_of(const XlaArray* config, const XlaArray* tables,
                                      const XlaArray* pair_axis, int32_t which) {
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

/* The context that the attributes name. NULL: *error is what the handler returns. */
static const rope_context* context_of_call(const XlaFrame* frame, XlaError** error) {
  const XlaAttributes* attributes = &frame->attributes;
  const XlaArray* config = attribute(attributes, "config", kXlaArray);
  const XlaArray* tables = attribute(attributes, "tables", kXlaArray);
  const XlaArray* pair_axis = attribute(attributes, "pair_axis", kXlaArray);
  const int32_t* which = number(attributes, "which");
  if (!config || !tables || !pair_axis || !which) {
    *error = fail_version(frame);
    return NULL;
  }
  const rope_context* context = context_of(config, tables, pair_axis, *which);
  if (context == NULL) *error = fail_call(frame);
  return context;
}

/* -- arrays ---------------------------------------------------------------------------------- */

static rope_dtype dtype_of(int32_t type) {
  switch (type) {
    case kXlaF32: return ROPE_DTYPE_F32;
    case kXlaF16: return ROPE_DTYPE_F16;
    case kXlaBf16: return ROPE_DTYPE_BF16;
    default: return 0;
  }
}

static int64_t product(const int64_t* dims, int64_t from, int64_t to) {
  int64_t result = 1;
  for (; from < to; ++from) result *= dims[from];
  return result;
}

/* Fills a dense tensor whose last dimensions are ordered as layout says. 0: it has too few. */
static int describe(const XlaBuffer* buffer, const XlaText* layout, rope_tensor* tensor,
                    int64_t* batch, int64_t* tokens) {
  const int64_t lead = buffer->rank - (int64_t)layout->size;
  if (lead < 0) return 0;
  int64_t step = 1;
  tensor->dtype = dtype_of(buffer->dtype);
  tensor->layout = ROPE_LAYOUT_STRIDED;
  tensor->heads = 1;
  *batch = *tokens = 1;
  for (int64_t i = (int64_t)layout->size - 1; i >= 0; --i) {
    const int64_t size = buffer->dims[lead + i];
    switch (layout->data[i]) {
      case 'd': tensor->head_dim = (int32_t)size; break;
      case 'h': tensor->heads = (int32_t)size, tensor->stride_head = step; break;
      case 'b': *batch = size, tensor->stride_batch = step; break;
      default: *tokens = size, tensor->stride_token = step; break;
    }
    step *= size;
  }
  return 1;
}

/* Positions: "o" is one offset per sequence, else an order of a, b and t. A final w is a dimension
 * of two i32 words that make an int64, for programs in which JAX has no 64-bit integers. */
typedef struct Positions {
  const XlaBuffer* buffer;
  int wide;
  int64_t lead, count; /* dimensions of vmap, elements of one call */
} Positions;

static int describe_positions(const XlaBuffer* buffer, const XlaText* layout, Positions* at,
                              rope_positions* p) {
  int64_t letters = (int64_t)layout->size;
  at->buffer = buffer;
  at->lead = buffer->rank - letters;
  at->wide = letters > 0 && layout->data[letters - 1] == 'w';
  if (at->lead < 0 || (at->wide && buffer->dims[buffer->rank - 1] != 2)) return 0;
  letters -= at->wide;
  at->count = product(buffer->dims, at->lead, at->lead + letters);
  if (letters == 1 && layout->data[0] == 'o') {
    p->kind = ROPE_POSITIONS_SEQ_OFFSETS;
    return 1;
  }
  p->kind = ROPE_POSITIONS_IDS_STRIDED;
  int64_t step = 1;
  for (int64_t i = letters - 1; i >= 0; --i) {
    const int64_t size = buffer->dims[at->lead + i], stride = size == 1 ? 0 : step;
    switch (layout->data[i]) {
      case 'a': p->stride_axis = stride; break;
      case 'b': p->stride_batch = stride; break;
      default: p->stride_token = stride; break;
    }
    step *= size;
  }
  return 1;
}

/* Points at the positions of one call. 0: not a dtype of positions. */
static int point_positions(const Positions* at, int64_t slice, rope_positions* p) {
  const int offsets = p->kind == ROPE_POSITIONS_SEQ_OFFSETS;
  const int64_t first = slice * at->count;
  const int32_t type = at->wide && at->buffer->dtype == kXlaS32 ? kXlaS64 : at->buffer->dtype;
  switch (type) {
    case kXlaS32:
      *(offsets ? &p->offsets_i32 : &p->ids_i32) = (const int32_t*)at->buffer->data + first;
      return 1;
    case kXlaS64:
      *(offsets ? &p->offsets_i64 : &p->ids_i64) = (const int64_t*)at->buffer->data + first;
      return 1;
    case kXlaF32: p->ids_f32 = (const float*)at->buffer->data + first; return !offsets;
    default: return 0;
  }
}

static const char kPositionTypes[] =
    "librope: positions must be int32, int64 or float32, offsets int32 or int64";

/* Whether XLA asks for the version of the ABI, which is then given. */
static int tell_version(const XlaFrame* frame) {
  XlaExtension* extension = frame->extensions;
  if (extension == NULL || extension->type != kXlaMetadata) return 0;
  XlaHandlerMetadata* metadata = ((XlaMetadataExtension*)extension)->metadata;
  metadata->version.major = kXlaAbiMajor;
  metadata->version.minor = kXlaAbiMinor;
  metadata->traits = 0;
  return 1;
}

/* -- the handlers ---------------------------------------------------------------------------- */

/* One or two tensors, then positions; the results are the rotated tensors. */
XlaError* librope_xla_apply(XlaFrame* frame) {
  if (tell_version(frame)) return NULL;
  const XlaAttributes* attributes = &frame->attributes;
  const int32_t* operation = number(attributes, "operation");
  const XlaText* layouts[kTensors] = {attribute(attributes, "layout", kXlaString),
                                      attribute(attributes, "layout_k", kXlaString)};
  const XlaText* order = attribute(attributes, "positions_layout", kXlaString);
  const int64_t tensors = frame->results.size;
  if (!operation || !layouts[0] || !layouts[1] || !order || tensors < 1 || tensors > kTensors ||
      frame->arguments.size != tensors + 1) {
    return fail_version(frame);
  }
  XlaError* error = NULL;
  const rope_context* context = context_of_call(frame, &error);
  if (context == NULL) return error;

  rope_qk_args args = ROPE_INIT(rope_qk_args);
  args.operation = *operation;
  rope_tensor* in[kTensors] = {&args.q, &args.k};
  rope_tensor* out[kTensors] = {&args.q_out, &args.k_out};
  int64_t slices = 1, counts[kTensors];
  for (int64_t i = 0; i < tensors; ++i) {
    const XlaBuffer* buffer = frame->arguments.items[i];
    if (!describe(buffer, layouts[i], in[i], &args.batch, &args.tokens)) {
      return fail_version(frame);
    }
    *out[i] = *in[i];
    const int64_t lead = buffer->rank - (int64_t)layouts[i]->size;
    slices = product(buffer->dims, 0, lead);
    counts[i] = product(buffer->dims, lead, buffer->rank);
  }
  if (args.batch == 0) return NULL;
  Positions at;
  if (!describe_positions(frame->arguments.items[tensors], order, &at, &args.positions)) {
    return fail_version(frame);
  }
  for (int64_t s = 0; s < slices; ++s) {
    for (int64_t i = 0; i < tensors; ++i) {
      const XlaBuffer *from = frame->arguments.items[i], *to = frame->results.items[i];
      const int64_t bytes = counts[i] * (from->dtype == kXlaF32 ? 4 : 2);
      in[i]->data = (char*)from->data + s * bytes;
      out[i]->data = (char*)to->data + s * bytes;
    }
    if (!point_positions(&at, s, &args.positions)) return fail(frame, kPositionTypes);
    if (rope_apply_qk(context, &args) != ROPE_OK) return fail_call(frame);
  }
  return NULL;
}

/* Positions; the results are rows of cos and sin, [batch, tokens, width] or [tokens, width]. */
XlaError* librope_xla_cos_sin(XlaFrame* frame) {
  if (tell_version(frame)) return NULL;
  const XlaAttributes* attributes = &frame->attributes;
  const int32_t* format = number(attributes, "format");
  const XlaText* layout = attribute(attributes, "layout", kXlaString);
  const XlaText* order = attribute(attributes, "positions_layout", kXlaString);
  const int64_t results = frame->results.size;
  if (!format || !layout || !order || results < 1 || results > 2 || frame->arguments.size != 1) {
    return fail_version(frame);
  }
  XlaError* error = NULL;
  const rope_context* context = context_of_call(frame, &error);
  if (context == NULL) return error;
  rope_info info = ROPE_INIT(rope_info);
  if (rope_context_info(context, 0, &info) != ROPE_OK) return fail_call(frame);

  const XlaBuffer* row = frame->results.items[0];
  rope_tensor shape;
  memset(&shape, 0, sizeof shape);
  int64_t batch, tokens;
  if (!describe(row, layout, &shape, &batch, &tokens)) return fail_version(frame);
  const int64_t lead = row->rank - (int64_t)layout->size;
  const int64_t bytes = product(row->dims, lead, row->rank) * (row->dtype == kXlaF32 ? 4 : 2);

  rope_positions positions;
  memset(&positions, 0, sizeof positions);
  Positions at;
  if (!describe_positions(frame->arguments.items[0], order, &at, &positions)) {
    return fail_version(frame);
  }
  rope_cos_sin out = ROPE_INIT(rope_cos_sin);
  out.format = *format;
  out.dtype = shape.dtype;
  out.pairs = info.pairs;
  out.batch = batch;
  for (int64_t s = 0; s < product(row->dims, 0, lead); ++s) {
    out.data = (char*)row->data + s * bytes;
    if (results == 2)
      out.sin = (char*)((const XlaBuffer*)frame->results.items[1])->data + s * bytes;
    if (!point_positions(&at, s, &positions)) return fail(frame, kPositionTypes);
    if (rope_cos_sin_fill(context, batch, tokens, &positions, &out, NULL) != ROPE_OK) {
      return fail_call(frame);
    }
  }
  return NULL;
}
