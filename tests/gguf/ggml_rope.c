/* One head through ggml's own rope, for record.py: ggml_rope_ext, or ggml_rope_multi if there are
 * sections. Writes y[positions][head_dim]. */
#include <string.h>

#include "ggml-cpu.h"
#include "ggml.h"

struct numbers {
  int n_dims, mode, n_ctx_orig, offset;
  float freq_base, freq_scale, ext_factor, attn_factor, beta_fast, beta_slow;
  int sections[4];
};

int rotate(const struct numbers* n, int head_dim, int tokens, const int* ids, const float* factors,
           const float* x, float* y) {
  struct ggml_init_params params = {64 << 20, NULL, false};
  struct ggml_context* context = ggml_init(params);
  const int multi = n->sections[0] + n->sections[1] + n->sections[2] + n->sections[3] != 0;
  struct ggml_tensor* a = ggml_new_tensor_3d(context, GGML_TYPE_F32, head_dim, 1, tokens);
  struct ggml_tensor* b = ggml_new_tensor_1d(context, GGML_TYPE_I32, multi ? 4 * tokens : tokens);
  struct ggml_tensor* c = NULL;
  memcpy(a->data, x, ggml_nbytes(a));
  memcpy(b->data, ids, ggml_nbytes(b));
  if (factors != NULL) {
    c = ggml_new_tensor_1d(context, GGML_TYPE_F32, n->n_dims / 2);
    memcpy(c->data, factors, ggml_nbytes(c));
  }
  int sections[4];
  memcpy(sections, n->sections, sizeof sections);
  /* What stands before the rotated channels is a view of its own in llama.cpp's graphs. */
  struct ggml_tensor* span = ggml_cont(
      context, ggml_view_3d(context, a, head_dim - n->offset, 1, tokens, a->nb[1], a->nb[2],
                            (size_t)n->offset * sizeof(float)));
  struct ggml_tensor* r =
      multi ? ggml_rope_multi(context, span, b, c, n->n_dims, sections, n->mode, n->n_ctx_orig,
                              n->freq_base, n->freq_scale, n->ext_factor, n->attn_factor,
                              n->beta_fast, n->beta_slow)
            : ggml_rope_ext(context, span, b, c, n->n_dims, n->mode, n->n_ctx_orig, n->freq_base,
                            n->freq_scale, n->ext_factor, n->attn_factor, n->beta_fast,
                            n->beta_slow);
  struct ggml_cgraph* graph = ggml_new_graph(context);
  ggml_build_forward_expand(graph, r);
  const int status = ggml_graph_compute_with_ctx(context, graph, 1);
  const float* rotated = (const float*)r->data;
  for (int t = 0; t < tokens; ++t) {
    memcpy(y + t * head_dim, x + t * head_dim, (size_t)n->offset * sizeof(float));
    memcpy(y + t * head_dim + n->offset, rotated + t * (head_dim - n->offset),
           (size_t)(head_dim - n->offset) * sizeof(float));
  }
  ggml_free(context);
  return status;
}
