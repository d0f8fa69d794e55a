/* ggml's ggml_rope_ext, as llama.cpp runs it: a graph of two nodes, planned once, computed by the
 * CPU backend with a thread pool that is kept. ggml forms cos and sin itself, by multiplying a
 * float angle on from pair to pair. install.py compiles this with the ggml of llama-cpp-python. */
#include <stdio.h>
#include <stdlib.h>

#include "ggml-cpu.h"
#include "ggml.h"
#include "peer.h"

struct prepared {
  struct ggml_context* context;
  struct ggml_cgraph* graph;
  struct ggml_cplan plan;
  struct ggml_threadpool* pool;
  int32_t* positions;
};

const char* peer_contenders(void) { return "ggml"; }

static void Add(struct prepared* p, const struct peer_case* c, struct ggml_tensor* positions,
                void* data, void* out, int heads) {
  struct ggml_tensor* x =
      ggml_new_tensor_3d(p->context, c->dtype == PEER_F32 ? GGML_TYPE_F32 : GGML_TYPE_F16,
                         c->head_dim, heads, c->tokens);
  x->data = data;
  const int mode = c->pairing == PEER_HALVES ? GGML_ROPE_TYPE_NEOX : GGML_ROPE_TYPE_NORMAL;
  struct ggml_tensor* y = (data == out ? ggml_rope_ext_inplace : ggml_rope_ext)(
      p->context, x, positions, NULL, c->head_dim, mode, 131072, (float)c->theta, 1, 0, 1, 32, 1);
  y->data = out;
  ggml_build_forward_expand(p->graph, y);
}

void* peer_prepare(const char* contender, const peer_case* c, char* why, size_t why_size) {
  (void)contender;
  if (c->dtype == PEER_BF16) {
    snprintf(why, why_size, "its CPU rope knows f32 and f16");
    return NULL;
  }
  struct prepared* p = calloc(1, sizeof *p);
  struct ggml_init_params params = {4 << 20, NULL, true};
  p->context = ggml_init(params);
  p->graph = ggml_new_graph(p->context);
  p->positions = malloc((size_t)c->tokens * sizeof *p->positions);
  for (int64_t t = 0; t < c->tokens; ++t) p->positions[t] = (int32_t)c->positions[t];
  struct ggml_tensor* positions = ggml_new_tensor_1d(p->context, GGML_TYPE_I32, c->tokens);
  positions->data = p->positions;
  Add(p, c, positions, c->q, c->q_out, c->q_heads);
  Add(p, c, positions, c->k, c->k_out, c->k_heads);
  struct ggml_threadpool_params pool = ggml_threadpool_params_default(c->threads);
  p->pool = ggml_threadpool_new(&pool);
  p->plan = ggml_graph_plan(p->graph, c->threads, p->pool);
  if (p->plan.work_size > 0) p->plan.work_data = malloc(p->plan.work_size);
  return p;
}

void peer_run(void* prepared) {
  struct prepared* p = prepared;
  if (ggml_graph_compute(p->graph, &p->plan) != GGML_STATUS_SUCCESS) abort();
}

void peer_export(void* prepared) { (void)prepared; }

void peer_release(void* prepared) {
  struct prepared* p = prepared;
  ggml_threadpool_free(p->pool);
  free(p->plan.work_data);
  free(p->positions);
  ggml_free(p->context);
  free(p);
}
