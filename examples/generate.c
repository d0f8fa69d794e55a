/* A small engine that generates text: two sequences in a paged cache, prompts first, then one token
 * of each per step. A call is prepared once for all layers of a step; in each layer it norms q and
 * k, turns them, and stores the turned keys and the values in pages, straight from the packed
 * projection. The model has Qwen3's shape and random weights; what it says is nonsense, but each
 * token is that of plain code: one sequence, a contiguous cache, and norm and rotation by their
 * formulas.
 *
 *     cc generate.c $(pkg-config --cflags --libs librope) -lm && ./a.out */
#include <librope/model.h>
#include <librope/rope.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { VOCABULARY = 128, HIDDEN = 64, LAYERS = 3, Q_HEADS = 4, HEADS = 2, DIM = 32, INNER = 96 };
enum { Q = Q_HEADS * DIM, KV = HEADS * DIM, PACKED = Q + 2 * KV };
enum { SEQUENCES = 2, LONGEST = 96, PAGE_SIZE = 8, PAGES = 24, WIDTH = LONGEST / PAGE_SIZE };

#define EPS 1e-6f /* of norms */

static const char config_json[] =
    "{\"model_type\": \"qwen3\", \"hidden_size\": 64, \"head_dim\": 32, \"num_attention_heads\": 4,"
    " \"num_key_value_heads\": 2, \"num_hidden_layers\": 3, \"rope_theta\": 1000000.0}";
static const char* const prompts[SEQUENCES] = {"Position is", "Once upon a time, a wheel began to"};

/* Of column-major matrices: what one output needs lies together. */
static struct {
  float qkv[PACKED][HIDDEN], q_norm[DIM], k_norm[DIM], o[HIDDEN][Q];
  float gate[INNER][HIDDEN], up[INNER][HIDDEN], down[HIDDEN][INNER];
} layers[LAYERS];
static float embedding[VOCABULARY][HIDDEN], head[VOCABULARY][HIDDEN];

static void check(rope_status status) {
  if (status == ROPE_OK) return;
  fprintf(stderr, "%s\n", rope_last_error());
  exit(1);
}

static void fill(float* to, size_t count, float center, float scale) {
  static uint32_t state = 1;
  for (size_t i = 0; i < count; ++i) {
    state = state * 1664525u + 1013904223u;
    to[i] = center + scale * ((float)(state >> 8) / 8388608.0f - 1.0f);
  }
}

static void make_weights(void) {
  fill(embedding[0], VOCABULARY * HIDDEN, 0, 1);
  fill(head[0], VOCABULARY * HIDDEN, 0, 1);
  for (int l = 0; l < LAYERS; ++l) {
    fill((float*)&layers[l], sizeof layers[l] / sizeof(float), 0, 0.2f);
    fill(layers[l].q_norm, DIM, 2, 0.5f);
    fill(layers[l].k_norm, DIM, 2, 0.5f);
  }
}

static void multiply(const float* weights, int rows, int columns, const float* x, float* out) {
  for (int r = 0; r < rows; ++r) {
    out[r] = 0;
    for (int c = 0; c < columns; ++c) out[r] += weights[r * columns + c] * x[c];
  }
}

/* RMS norm; w: NULL for a weight of 1. */
static void norm(const float* x, const float* w, int count, float* out) {
  float sum = 0;
  for (int c = 0; c < count; ++c) sum += x[c] * x[c];
  const float scale = 1 / sqrtf(sum / (float)count + EPS);
  for (int c = 0; c < count; ++c) out[c] = x[c] * scale * (w != NULL ? w[c] : 1);
}

/* One token's q over `count` tokens; at(memory, i): where the heads of token i begin. */
typedef const float* (*locate)(const void* sequence, const float* memory, int i);

static void attend(const float* q, const float* keys, const float* values, const void* sequence,
                   locate at, int count, float* out) {
  for (int h = 0; h < Q_HEADS; ++h) {
    const int from = h / (Q_HEADS / HEADS) * DIM;
    float scores[LONGEST], most = -INFINITY, sum = 0;
    for (int i = 0; i < count; ++i) {
      const float* const k = at(sequence, keys, i) + from;
      scores[i] = 0;
      for (int c = 0; c < DIM; ++c) scores[i] += q[h * DIM + c] * k[c] / sqrtf(DIM);
      most = fmaxf(most, scores[i]);
    }
    memset(&out[h * DIM], 0, DIM * sizeof(float));
    for (int i = 0; i < count; ++i) sum += scores[i] = expf(scores[i] - most);
    for (int i = 0; i < count; ++i) {
      const float* const v = at(sequence, values, i) + from;
      for (int c = 0; c < DIM; ++c) out[h * DIM + c] += scores[i] / sum * v[c];
    }
  }
}

/* x of one token before attention becomes its packed q, k and v. */
static void project(int layer, const float* x, float* packed) {
  float normed[HIDDEN];
  norm(x, NULL, HIDDEN, normed);
  multiply(layers[layer].qkv[0], PACKED, HIDDEN, normed, packed);
}

/* What follows attention. */
static void finish(int layer, const float* attended, float* x) {
  float out[HIDDEN], normed[HIDDEN], gate[INNER], up[INNER];
  multiply(layers[layer].o[0], HIDDEN, Q, attended, out);
  for (int c = 0; c < HIDDEN; ++c) x[c] += out[c];
  norm(x, NULL, HIDDEN, normed);
  multiply(layers[layer].gate[0], INNER, HIDDEN, normed, gate);
  multiply(layers[layer].up[0], INNER, HIDDEN, normed, up);
  for (int c = 0; c < INNER; ++c) gate[c] *= up[c] / (1 + expf(-gate[c]));
  multiply(layers[layer].down[0], HIDDEN, INNER, gate, out);
  for (int c = 0; c < HIDDEN; ++c) x[c] += out[c];
}

/* The likeliest printable character. */
static char next(const float* x) {
  float normed[HIDDEN], logits[VOCABULARY];
  norm(x, NULL, HIDDEN, normed);
  multiply(head[0], VOCABULARY, HIDDEN, normed, logits);
  int best = ' ';
  for (int id = ' '; id <= '~'; ++id) best = logits[id] > logits[best] ? id : best;
  return (char)best;
}

/* ---- The engine: pages, and one call in each layer ---- */

static float k_pages[LAYERS][PAGES][PAGE_SIZE][HEADS][DIM];
static float v_pages[LAYERS][PAGES][PAGE_SIZE][HEADS][DIM];

static const float* in_pages(const void* sequence, const float* memory, int i) {
  const int32_t* const pages = sequence;
  return &memory[(pages[i / PAGE_SIZE] * PAGE_SIZE + i % PAGE_SIZE) * KV];
}

static rope_tensor tensor(float* data, rope_layout layout, int32_t heads) {
  rope_tensor t = {.data = data, .dtype = ROPE_DTYPE_F32, .layout = layout, .heads = heads};
  t.head_dim = DIM;
  return t;
}

/* Heads of the packed projection: the next token is PACKED elements away. */
static rope_tensor packed_heads(float* data, int32_t heads) {
  rope_tensor t = tensor(data, ROPE_LAYOUT_STRIDED, heads);
  t.stride_token = PACKED;
  t.stride_head = DIM;
  return t;
}

static rope_norm head_norm(void) {
  rope_norm n = ROPE_INIT(rope_norm);
  n.kind = ROPE_NORM_KIND_RMS;
  n.eps = EPS;
  n.weight_dtype = ROPE_DTYPE_F32;
  return n;
}

static void generate(const rope_context* rope, char texts[SEQUENCES][LONGEST + 1]) {
  int32_t table[SEQUENCES][WIDTH], lengths[SEQUENCES] = {0}; /* tokens in the cache */
  int32_t ends[SEQUENCES + 1] = {0};
  int pages = 0, steps = 0;
  memset(table, -1, sizeof table); /* no page yet */
  for (; strlen(texts[0]) < LONGEST || strlen(texts[1]) < LONGEST; ++steps) {
    static float x[SEQUENCES * LONGEST][HIDDEN], packed[SEQUENCES * LONGEST][PACKED];
    for (int s = 0; s < SEQUENCES; ++s) {
      const int end = (int)strlen(texts[s]);
      ends[s + 1] = ends[s];
      if (end == LONGEST) continue;
      for (int i = lengths[s]; i < end; ++i) {
        memcpy(x[ends[s + 1]++], embedding[(int)texts[s][i]], sizeof x[0]);
        /* Pages go round as they are needed: those of a sequence do not lie in a row. */
        if (i % PAGE_SIZE == 0) table[s][i / PAGE_SIZE] = pages++ * 5 % PAGES;
      }
    }

    rope_qk_args args = ROPE_INIT(rope_qk_args);
    args.batch = 1;
    args.tokens = ends[SEQUENCES];
    args.positions.kind = ROPE_POSITIONS_SEQ_OFFSETS;
    args.positions.offsets_i32 = lengths;
    args.positions.cu_seqlens = ends;
    args.positions.sequences = SEQUENCES;
    args.q = packed_heads(NULL, Q_HEADS); /* is normed and turned in place */
    args.k = packed_heads(NULL, HEADS);   /* is only read */
    rope_kv_cache cache = ROPE_INIT(rope_kv_cache);
    cache.kind = ROPE_SLOTS_PAGED;
    cache.pages = PAGES;
    cache.page_size = PAGE_SIZE;
    cache.page_table = &table[0][0];
    cache.page_table_stride = WIDTH;
    cache.starts = lengths;
    cache.k = cache.v = tensor(NULL, ROPE_LAYOUT_NHD, HEADS);
    rope_fused fused = ROPE_INIT(rope_fused);
    fused.cache = &cache;
    fused.v = packed_heads(NULL, HEADS);
    const rope_norm norm_of_heads = head_norm();
    fused.q_norm = fused.k_norm = &norm_of_heads;
    args.fused = &fused;
    rope_prepared* call;
    check(rope_prepared_create(rope, &args, &call));

    /* What is the layer's own. */
    rope_qk_data data = ROPE_INIT(rope_qk_data);
    data.q = &packed[0][0];
    data.k = &packed[0][Q];
    data.v = &packed[0][Q + KV];
    for (int l = 0; l < LAYERS; ++l) {
      for (int i = 0; i < args.tokens; ++i) project(l, x[i], packed[i]);
      data.q_norm_weight = layers[l].q_norm;
      data.k_norm_weight = layers[l].k_norm;
      data.cache_k = k_pages[l];
      data.cache_v = v_pages[l];
      check(rope_prepared_apply(call, &data));
      for (int s = 0; s < SEQUENCES; ++s) {
        for (int i = ends[s]; i < ends[s + 1]; ++i) {
          float out[Q];
          attend(packed[i], k_pages[l][0][0][0], v_pages[l][0][0][0], table[s], &in_pages,
                 lengths[s] + i - ends[s] + 1, out);
          finish(l, out, x[i]);
        }
      }
    }
    rope_prepared_destroy(call);
    for (int s = 0; s < SEQUENCES; ++s) {
      if (ends[s + 1] == ends[s]) continue;
      lengths[s] += ends[s + 1] - ends[s];
      texts[s][lengths[s]] = next(x[ends[s + 1] - 1]);
    }
  }
  printf("%d steps, %d pages\n", steps, pages);
}

/* ---- The same plainly: one sequence, and nothing of librope ---- */

static const float* in_a_row(const void* sequence, const float* memory, int i) {
  (void)sequence;
  return &memory[i * KV];
}

static void rotate(float* x, int position) {
  for (int c = 0; c < DIM / 2; ++c) {
    const float angle = (float)position * (float)pow(1000000.0, -2.0 * c / DIM);
    const float x0 = x[c], x1 = x[c + DIM / 2];
    x[c] = x0 * cosf(angle) - x1 * sinf(angle);
    x[c + DIM / 2] = x1 * cosf(angle) + x0 * sinf(angle);
  }
}

static void generate_plainly(char text[LONGEST + 1]) {
  static float k_cache[LAYERS][LONGEST][KV], v_cache[LAYERS][LONGEST][KV];
  const int prompt = (int)strlen(text);
  for (int i = 0; i < LONGEST; ++i) {
    float x[HIDDEN], packed[PACKED], out[Q];
    memcpy(x, embedding[(int)text[i]], sizeof x);
    for (int l = 0; l < LAYERS; ++l) {
      project(l, x, packed);
      for (int h = 0; h < Q_HEADS + HEADS; ++h) {
        float* const at = &packed[h * DIM];
        norm(at, h < Q_HEADS ? layers[l].q_norm : layers[l].k_norm, DIM, at);
        rotate(at, i);
      }
      memcpy(k_cache[l][i], &packed[Q], sizeof k_cache[l][i]);
      memcpy(v_cache[l][i], &packed[Q + KV], sizeof v_cache[l][i]);
      attend(packed, k_cache[l][0], v_cache[l][0], NULL, &in_a_row, i + 1, out);
      finish(l, out, x);
    }
    if (i + 1 >= prompt && i + 1 < LONGEST) text[i + 1] = next(x);
  }
}

int main(void) {
  make_weights();
  rope_model* model;
  check(rope_model_create(config_json, sizeof config_json - 1, &model));
  rope_config config = ROPE_INIT(rope_config);
  check(rope_model_config(model, 0, &config)); /* all layers of this model are of one type */
  rope_context* rope;
  check(rope_context_create(&config, &rope));

  static char texts[SEQUENCES][LONGEST + 1], plain[LONGEST + 1];
  for (int s = 0; s < SEQUENCES; ++s) strcpy(texts[s], prompts[s]);
  generate(rope, texts);
  int failures = 0;
  for (int s = 0; s < SEQUENCES; ++s) {
    memset(plain, 0, sizeof plain);
    strcpy(plain, prompts[s]);
    generate_plainly(plain);
    printf("%s|%s\n", prompts[s], texts[s] + strlen(prompts[s]));
    failures += strcmp(texts[s], plain) != 0;
  }
  printf(failures ? "not the text of plain code\n" : "the same text as without librope\n");
  rope_context_destroy(rope);
  rope_model_destroy(model);
  return failures != 0;
}
