/* Sequences whose frequencies depend on their length (LongRoPE, dynamic NTK), for
 * guides/long-contexts.md: which context a request takes, and one batch with requests of both
 * kinds. */
#include <librope/model.h>
#include <string.h>

#include "check.h"

/* Phi-3's shape, with 8 pairs to be short. */
static const char config_json[] =
    "{\"model_type\": \"phi3\", \"hidden_size\": 64, \"num_attention_heads\": 4,"
    " \"num_hidden_layers\": 2, \"max_position_embeddings\": 131072, \"rope_theta\": 10000.0,"
    " \"original_max_position_embeddings\": 4096, \"rope_scaling\": {\"type\": \"longrope\","
    " \"short_factor\": [1, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7],"
    " \"long_factor\": [1, 2, 4, 8, 16, 24, 32, 64]}}";

enum { BATCH = 3, HEADS = 4, HEAD_DIM = 16, MAX_CONTEXTS = 8 };

static rope_config config; /* of one kind of layer; the model stays, because it owns the factors */

/* The contexts made so far. Each tells for which lengths it is right. */
static struct {
  rope_context* rope;
  int64_t valid_from, valid_below;
} made[MAX_CONTEXTS];
static int contexts;

/* seq_len: how many tokens the sequence has when attention runs, prompt and decoded ones together.
 */
static const rope_context* context_for(int64_t seq_len) {
  for (int i = 0; i < contexts; ++i) {
    if (seq_len >= made[i].valid_from && seq_len < made[i].valid_below) return made[i].rope;
  }
  rope_context* rope;
  rope_info info = ROPE_INIT(rope_info);
  config.seq_len = seq_len;
  check(rope_context_create(&config, &rope)); /* microseconds */
  check(rope_context_info(rope, 0, &info));
  expect(contexts < MAX_CONTEXTS, "LongRoPE has two kinds of lengths");
  made[contexts].rope = rope;
  made[contexts].valid_from = info.valid_from;
  made[contexts].valid_below = info.valid_below;
  ++contexts;
  return rope;
}

/* One decode step of a batch: sequence b has past[b] tokens and gets one more. */
static void decode_batch(const rope_context* both, int64_t switch_at, const int32_t* past,
                         float* q) {
  int32_t sets[BATCH];
  for (int b = 0; b < BATCH; ++b) sets[b] = past[b] + 1 >= switch_at; /* 0: short, 1: long */
  rope_qk_args args = ROPE_INIT(rope_qk_args);
  args.batch = BATCH;
  args.tokens = 1;
  args.q =
      (rope_tensor){.data = q, .dtype = ROPE_DTYPE_F32, .layout = ROPE_LAYOUT_BSHD, .heads = HEADS};
  args.positions.kind = ROPE_POSITIONS_SEQ_OFFSETS;
  args.positions.offsets_i32 = past;
  args.positions.freq_sets = sets;
  check(rope_apply_qk(both, &args));
}

int main(void) {
  rope_model* model;
  check(rope_model_create(config_json, strlen(config_json), &model));
  config.struct_size = sizeof config;
  check(rope_model_config(model, 0, &config));

  /* Requests of any length share two contexts. */
  expect(context_for(10) == context_for(4096), "4096 tokens are short");
  expect(context_for(4097) != context_for(4096), "4097 are long");
  expect(context_for(4097) == context_for(131072), "and so are all above");
  expect(contexts == 2, "two contexts");
  int64_t switch_at;
  check(rope_config_next_change(&config, 1, &switch_at));
  expect(switch_at == 4097, "the first length of the long frequencies");

  /* One context that has both, for batches. */
  rope_config below = config, above = config;
  below.seq_len = 1;
  above.seq_len = switch_at;
  const rope_config* sets[2] = {&below, &above};
  rope_context* both;
  check(rope_context_create_sets(sets, 2, &both));
  const int32_t past[BATCH] = {100, 4095, 90000};
  float q[BATCH][HEADS][HEAD_DIM], alone[BATCH][HEADS][HEAD_DIM];
  fill(q[0][0], sizeof q / sizeof(float));
  memcpy(alone, q, sizeof q);
  decode_batch(both, switch_at, past, q[0][0]);

  /* Each sequence by a call of its own: the same bits. */
  for (int b = 0; b < BATCH; ++b) {
    const int64_t position = past[b];
    check(rope_apply_thd(context_for(past[b] + 1), ROPE_DTYPE_F32, 1, &position, alone[b], HEADS,
                         NULL, 0));
  }
  expect(memcmp(q, alone, sizeof q) == 0, "in a batch the same bits");

  /* A context does not go beyond its lengths by mistake. */
  const int64_t too_far = 4096;
  expect(rope_apply_thd(context_for(10), ROPE_DTYPE_F32, 1, &too_far, q, HEADS, NULL, 0) ==
             ROPE_ERROR_INVALID_ARGUMENT,
         "refused");
  puts(rope_last_error());
  for (int i = 0; i < contexts; ++i) rope_context_destroy(made[i].rope);
  rope_context_destroy(both);
  rope_model_destroy(model);
  return 0;
}
