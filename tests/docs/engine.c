/* A serving engine's step: continuous batching over a paged KV cache. The tokens of all requests,
 * whole prompts and single decoded tokens alike, lie one after the other in one fused QKV
 * projection. q and k are rotated there, in place, and the keys then go to the pages of their
 * sequences, once and for good. Checked is what such an engine relies on: the keys in the cache
 * have the right angles, and the same bits however prompts are cut into chunks and whoever shares
 * the step. */
#include <librope/model.h>
#include <librope/rope.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char config_json[] =
    "{\"model_type\": \"gemma3_text\", \"hidden_size\": 512, \"num_hidden_layers\": 12,"
    " \"num_attention_heads\": 8, \"num_key_value_heads\": 2, \"head_dim\": 64,"
    " \"max_position_embeddings\": 131072, \"rope_theta\": 1000000, \"rope_local_base_freq\": "
    "10000,"
    " \"rope_scaling\": {\"rope_type\": \"linear\", \"factor\": 8.0}}";

enum { LAYERS = 12, Q_HEADS = 8, KV_HEADS = 2, HEAD_DIM = 64, MAX_KINDS = 8 };
enum { ROW = (Q_HEADS + 2 * KV_HEADS) * HEAD_DIM }; /* q, k, v of one token */
enum { SEQUENCES = 3, MAX_TOKENS = 64, PAGE = 16, PAGES = SEQUENCES * MAX_TOKENS / PAGE };

static rope_context* contexts[MAX_KINDS];
static int32_t kind_of_layer[LAYERS];
static uint16_t qkv[SEQUENCES * MAX_TOKENS * ROW];                   /* bf16 */
static uint16_t key_cache[LAYERS][PAGES][PAGE][KV_HEADS * HEAD_DIM]; /* and one like it for v */

static void check(rope_status status) {
  if (status == ROPE_OK) return;
  fprintf(stderr, "%s\n", rope_last_error());
  exit(1);
}

static void load_rope(void) {
  rope_model* model;
  check(rope_model_create(config_json, strlen(config_json), &model));
  const int32_t kinds = rope_model_layer_type_count(model);
  if (kinds > MAX_KINDS) exit(1);
  for (int32_t kind = 0; kind < kinds; ++kind) {
    rope_config config = ROPE_INIT(rope_config);
    check(rope_model_config(model, kind, &config));
    check(rope_context_create(&config, &contexts[kind]));
  }
  for (int32_t layer = 0; layer < LAYERS; ++layer) {
    check(rope_model_layer_type(model, layer, &kind_of_layer[layer]));
  }
  rope_model_destroy(model); /* contexts keep what they need */
}

/* Stands for the projection of a layer and the norms of q and k: multiples of 1/64, which bf16
 * holds. */
static int projected(int layer, int sequence, int position, int channel) {
  return (layer * 7 + sequence * 31 + position * 13 + channel * 5) % 127 - 63;
}
static void project(int layer, const int32_t* past, const int32_t* cu_seqlens) {
  for (int s = 0; s < SEQUENCES; ++s) {
    for (int32_t t = cu_seqlens[s]; t < cu_seqlens[s + 1]; ++t) {
      for (int c = 0; c < ROW; ++c) {
        const float x = (float)projected(layer, s, past[s] + t - cu_seqlens[s], c) / 64;
        uint32_t bits;
        memcpy(&bits, &x, sizeof bits);
        qkv[t * ROW + c] = (uint16_t)(bits >> 16);
      }
    }
  }
}

/* Where the keys of a token lie: the pages of a sequence are anywhere. */
static uint16_t* key_slot(int layer, int sequence, int position) {
  const int page = (position / PAGE) * SEQUENCES + (sequence + 1) % SEQUENCES;
  return key_cache[layer][page][position % PAGE];
}

/* One step of the engine: sequence s has past[s] tokens in the cache and brings new_tokens[s]. */
static void step(const int32_t* past, const int32_t* new_tokens) {
  int32_t cu_seqlens[SEQUENCES + 1] = {0};
  for (int s = 0; s < SEQUENCES; ++s) cu_seqlens[s + 1] = cu_seqlens[s] + new_tokens[s];

  /* Described once per step: nothing in it depends on the layer. */
  rope_qk_args args = ROPE_INIT(rope_qk_args);
  args.batch = 1; /* packed sequences are one row of tokens */
  args.tokens = cu_seqlens[SEQUENCES];
  args.q.data = qkv;
  args.q.dtype = ROPE_DTYPE_BF16;
  args.q.layout = ROPE_LAYOUT_STRIDED;
  args.q.heads = Q_HEADS;
  args.q.stride_token = ROW;
  args.q.stride_head = HEAD_DIM;
  args.k = args.q;
  args.k.data = qkv + Q_HEADS * HEAD_DIM;
  args.k.heads = KV_HEADS; /* GQA: fewer heads, nothing else */
  args.positions.kind = ROPE_POSITIONS_SEQ_OFFSETS;
  args.positions.offsets_i32 = past;
  args.positions.cu_seqlens = cu_seqlens;
  args.positions.sequences = SEQUENCES;

  for (int layer = 0; layer < LAYERS; ++layer) {
    project(layer, past, cu_seqlens);
    check(rope_apply_qk(contexts[kind_of_layer[layer]], &args));
    for (int s = 0; s < SEQUENCES; ++s) {
      for (int32_t t = cu_seqlens[s]; t < cu_seqlens[s + 1]; ++t) {
        memcpy(key_slot(layer, s, past[s] + t - cu_seqlens[s]), qkv + t * ROW + Q_HEADS * HEAD_DIM,
               sizeof key_cache[0][0][0]);
      }
    }
    /* attention(layer): q from qkv, keys from the pages */
  }
}

/* Steps of at most `chunk` tokens of each sequence, until each has its tokens. */
static void serve(const int32_t* lengths, int32_t chunk) {
  int32_t past[SEQUENCES] = {0}, new_tokens[SEQUENCES];
  for (int work = 1; work;) {
    work = 0;
    for (int s = 0; s < SEQUENCES; ++s) {
      const int32_t left = lengths[s] - past[s];
      new_tokens[s] = left < chunk ? left : chunk;
      work += new_tokens[s];
    }
    if (work) step(past, new_tokens);
    for (int s = 0; s < SEQUENCES; ++s) past[s] += new_tokens[s];
  }
}

static double from_bf16(uint16_t x) {
  const uint32_t bits = (uint32_t)x << 16;
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

/* The largest error of a key in the cache, in channels of size 1. */
static double worst_key(const int32_t* lengths) {
  double worst = 0;
  for (int layer = 0; layer < LAYERS; ++layer) {
    const int full = layer % 6 == 5; /* every sixth layer sees all tokens */
    for (int s = 0; s < SEQUENCES; ++s) {
      for (int p = 0; p < lengths[s]; ++p) {
        for (int i = 0; i < HEAD_DIM / 2; ++i) {
          const double angle =
              full ? p * pow(1e6, -2.0 * i / HEAD_DIM) / 8 : p * pow(1e4, -2.0 * i / HEAD_DIM);
          const int c = Q_HEADS * HEAD_DIM + i;
          const double x0 = projected(layer, s, p, c) / 64.0;
          const double x1 = projected(layer, s, p, c + HEAD_DIM / 2) / 64.0;
          const uint16_t* key = key_slot(layer, s, p);
          worst = fmax(worst, fabs(from_bf16(key[i]) - (x0 * cos(angle) - x1 * sin(angle))));
          worst = fmax(
              worst, fabs(from_bf16(key[i + HEAD_DIM / 2]) - (x1 * cos(angle) + x0 * sin(angle))));
        }
      }
    }
  }
  return worst;
}

int main(void) {
  load_rope();
  const int32_t lengths[SEQUENCES] = {20, 64, 7};
  serve(lengths, MAX_TOKENS); /* each prompt at once */
  const double worst = worst_key(lengths);
  printf("keys are right within %.1e, in bf16\n", worst);

  static uint16_t whole[LAYERS][PAGES][PAGE][KV_HEADS * HEAD_DIM];
  memcpy(whole, key_cache, sizeof whole);
  int same = 1;
  for (int32_t chunk = 1; chunk <= 13; chunk += 4) { /* 1: decoding, token by token */
    memset(key_cache, 0, sizeof key_cache);
    serve(lengths, chunk);
    same = same && memcmp(whole, key_cache, sizeof whole) == 0;
  }
  puts(same ? "in chunks of 1, 5, 9 and 13 tokens: the same bits" : "chunks differ");
  for (int kind = 0; kind < MAX_KINDS; ++kind) rope_context_destroy(contexts[kind]);
  return !(same && worst < 0.02);
}
