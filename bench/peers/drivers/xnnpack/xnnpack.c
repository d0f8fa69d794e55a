/* XNNPACK's rope operator (xnn_*_rope_nthc_*), out of the library that executorch's wheel carries;
 * the wheel has no headers, so what is used is declared here. It takes rows of cos and sin in the
 * type of the tensor, halves only. Its thread pool is pthreadpool's. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "peer.h"

typedef struct xnn_operator* xnn_operator_t;
typedef struct pthreadpool* pthreadpool_t;
enum { xnn_status_success = 0 };

int xnn_initialize(const void* allocator);
int xnn_create_rope_nthc_f32(uint32_t flags, xnn_operator_t* op);
int xnn_create_rope_nthc_f16(uint32_t flags, xnn_operator_t* op);
int xnn_reshape_rope_nthc_f32(xnn_operator_t op, size_t batch, size_t tokens, size_t heads,
                              size_t channels, pthreadpool_t pool);
int xnn_reshape_rope_nthc_f16(xnn_operator_t op, size_t batch, size_t tokens, size_t heads,
                              size_t channels, pthreadpool_t pool);
int xnn_setup_rope_nthc_f32(xnn_operator_t op, const float* in, const float* weights, float* out);
int xnn_setup_rope_nthc_f16(xnn_operator_t op, const void* in, const void* weights, void* out);
int xnn_run_operator(xnn_operator_t op, pthreadpool_t pool);
int xnn_delete_operator(xnn_operator_t op);
pthreadpool_t pthreadpool_create(size_t threads);
void pthreadpool_destroy(pthreadpool_t pool);

struct prepared {
  xnn_operator_t q, k;
  pthreadpool_t pool;
  void* weights; /* [tokens, head_dim]: cos of all pairs, then sin */
};

const char* peer_contenders(void) { return "xnnpack"; }

static void* Weights(const peer_case* c) {
  const size_t half = (size_t)c->head_dim / 2, tokens = (size_t)c->tokens;
  const size_t size = c->dtype == PEER_F32 ? sizeof(float) : sizeof(_Float16);
  char* weights = malloc(tokens * 2 * half * size + 64);
  for (size_t t = 0; t < tokens; ++t) {
    for (size_t i = 0; i < 2 * half; ++i) {
      const float value = i < half ? c->cos[t * half + i] : c->sin[t * half + i - half];
      const size_t at = t * 2 * half + i;
      if (c->dtype == PEER_F32) {
        ((float*)(void*)weights)[at] = value;
      } else {
        ((_Float16*)(void*)weights)[at] = (_Float16)value;
      }
    }
  }
  return weights;
}

static int Operator(const struct prepared* p, const peer_case* c, const void* in, void* out,
                    int heads, xnn_operator_t* op) {
  const size_t tokens = (size_t)c->tokens, n = (size_t)heads, dim = (size_t)c->head_dim;
  int status;
  if (c->dtype == PEER_F32) {
    (status = xnn_create_rope_nthc_f32(0, op)) != 0 ||
        (status = xnn_reshape_rope_nthc_f32(*op, 1, tokens, n, dim, p->pool)) != 0 ||
        (status = xnn_setup_rope_nthc_f32(*op, in, p->weights, out));
  } else {
    (status = xnn_create_rope_nthc_f16(0, op)) != 0 ||
        (status = xnn_reshape_rope_nthc_f16(*op, 1, tokens, n, dim, p->pool)) != 0 ||
        (status = xnn_setup_rope_nthc_f16(*op, in, p->weights, out));
  }
  return status;
}

void peer_release(void* prepared) {
  struct prepared* p = prepared;
  if (p->q != NULL) xnn_delete_operator(p->q);
  if (p->k != NULL) xnn_delete_operator(p->k);
  if (p->pool != NULL) pthreadpool_destroy(p->pool);
  free(p->weights);
  free(p);
}

void* peer_prepare(const char* contender, const peer_case* c, char* why, size_t why_size) {
  (void)contender;
  if (c->pairing != PEER_HALVES || c->dtype == PEER_BF16) {
    snprintf(why, why_size, "%s",
             c->dtype == PEER_BF16 ? "its rope knows f32 and f16" : "its rope knows halves only");
    return NULL;
  }
  int status = xnn_initialize(NULL);
  struct prepared* p = calloc(1, sizeof *p);
  if (c->threads > 1) p->pool = pthreadpool_create((size_t)c->threads);
  p->weights = Weights(c);
  if (status == 0) status = Operator(p, c, c->q, c->q_out, c->q_heads, &p->q);
  if (status == 0) status = Operator(p, c, c->k, c->k_out, c->k_heads, &p->k);
  if (status == 0) return p;
  snprintf(why, why_size, status == 5 ? "not on this CPU (unsupported hardware)" : "xnn_status %d",
           status);
  peer_release(p);
  return NULL;
}

void peer_run(void* prepared) {
  const struct prepared* p = prepared;
  if (xnn_run_operator(p->q, p->pool) != 0 || xnn_run_operator(p->k, p->pool) != 0) abort();
}

void peer_export(void* prepared) { (void)prepared; }
