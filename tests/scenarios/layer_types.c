/* Gemma 3 (two layer types) and SmolLM3 (layers without RoPE) straight from config.json. */
#include <librope/model.h>

#include "scenario.h"
static const char gemma[] =
    "{\"model_type\":\"gemma3_text\",\"hidden_size\":2560,\"num_attention_heads\":8,\"head_dim\":"
    "256,"
    "\"max_position_embeddings\":131072,\"rope_theta\":1000000,\"rope_local_base_freq\":10000,"
    "\"rope_scaling\":{\"factor\":8.0,\"rope_type\":\"linear\"},\"num_hidden_layers\":12}";
static const char smol[] =
    "{\"model_type\":\"smollm3\",\"hidden_size\":2048,\"num_attention_heads\":16,\"num_key_value_"
    "heads\":4,"
    "\"rope_theta\":2000000.0,\"no_rope_layer_interval\":4,\"num_hidden_layers\":8}";
enum { MAX_TYPES = 8, MAX_LAYERS = 64 };
static rope_context* contexts[MAX_TYPES];
static rope_context* rope_of_layer[MAX_LAYERS];
static void load(const char* json, size_t length, int layers) {
  rope_model* model;
  must_succeed(rope_model_create(json, length, &model));
  for (int32_t t = 0; t < rope_model_layer_type_count(model); ++t) {
    rope_config config = ROPE_INIT(rope_config);
    must_succeed(rope_model_config(model, t, &config));
    must_succeed(rope_context_create(&config, &contexts[t]));
    printf("   %s: theta %g, scaling %d\n", rope_model_layer_type_name(model, t), config.theta,
           config.scaling);
  }
  for (int32_t layer = 0; layer < layers; ++layer) {
    int32_t type;
    must_succeed(rope_model_layer_type(model, layer, &type));
    rope_of_layer[layer] = contexts[type];
  }
  rope_model_destroy(model);
}
int main(void) {
  enum { D = 128, H = 2 };
  load(gemma, sizeof gemma - 1, 12);
  double a[128], b[128];
  must_succeed(rope_context_inv_freq(rope_of_layer[5], 0, a, 128)); /* full: every sixth */
  must_succeed(rope_context_inv_freq(rope_of_layer[4], 0, b, 128));
  must_be(a[0] == 0.125 && fabs(a[10] - pow(1e6, -20.0 / 256) / 8) < 1e-7 && b[0] == 1 &&
          fabs(b[10] - pow(1e4, -20.0 / 256)) < 1e-7);
  rope_context_destroy(contexts[0]);
  rope_context_destroy(contexts[1]);
  load(smol, sizeof smol - 1, 8);
  for (int layer = 0; layer < 8; ++layer) { /* the engine's loop needs no special case for NoPE */
    float *q = random_floats(H * D), *q0 = copy_of(q, H * D);
    int64_t position = 17;
    must_succeed(rope_apply_thd(rope_of_layer[layer], ROPE_DTYPE_F32, 1, &position, q, H, NULL, 0));
    must_be(!memcmp(q, q0, sizeof(float) * H * D) == (layer % 4 == 3));
  }
  rope_context_destroy(contexts[0]);
  rope_context_destroy(contexts[1]);
  static const char typo[] =
      "{\"model_type\":\"llama\",\"head_dim\":64,\"num_hidden_layers\":1,\"rope_scaling\":{\"rope_"
      "type\":\"lama3\"}}";
  rope_model* model;
  must_fail(ROPE_ERROR_PARSE, rope_model_create(typo, sizeof typo - 1, &model));
  puts("ok");
  return 0;
}
