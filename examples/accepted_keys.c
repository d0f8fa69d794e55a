/* A configuration with a key of another program: refused, until somebody who knows that the key
 * changes nothing accepts it by name. Notes tell what else a text says about its attention.
 *
 *     cc accepted_keys.c $(pkg-config --cflags --libs librope) -lm && ./a.out */
#include <librope/model.h>

#include <stdio.h>
#include <string.h>

static const char kConfig[] =
    "{\"model_type\": \"qwen2\", \"hidden_size\": 3584, \"num_attention_heads\": 28,"
    " \"num_hidden_layers\": 28, \"max_position_embeddings\": 32768, \"rope_theta\": 1000000.0,"
    " \"rope_scaling\": {\"rope_type\": \"yarn\", \"factor\": 4.0, \"attn_factor\": 0.9,"
    " \"original_max_position_embeddings\": 32768},"
    " \"dual_chunk_attention_config\": {\"chunk_size\": 262144}}";

int main(void) {
  rope_model* model = NULL;
  if (rope_model_create(kConfig, sizeof kConfig - 1, &model) != ROPE_ERROR_UNSUPPORTED) return 1;
  printf("refused: %s\n\n", rope_last_error());

  /* A name, wherever it stands, or a path. */
  const char* const keys[] = {"rope_scaling.attn_factor"};
  if (rope_model_create_accepting(kConfig, sizeof kConfig - 1, keys, 1, &model) != ROPE_OK) {
    fprintf(stderr, "%s\n", rope_last_error());
    return 1;
  }
  rope_config config = ROPE_INIT(rope_config);
  if (rope_model_config(model, 0, &config) != ROPE_OK) return 1;
  printf("read without it: YaRN by %g\n", config.factor);
  for (int32_t i = 0; rope_model_note(model, i) != NULL; ++i) {
    printf("note: %s\n", rope_model_note(model, i));
  }
  const int good = config.factor == 4 && rope_model_note(model, 0) != NULL;
  rope_model_destroy(model);

  /* A name that spares nothing is an error, so that lists of names stay true. */
  const char* const idle[] = {"rope_scaling.attn_factor", "rope_theta"};
  if (rope_model_create_accepting(kConfig, sizeof kConfig - 1, idle, 2, &model) !=
      ROPE_ERROR_INVALID_ARGUMENT) {
    return 1;
  }
  printf("\nrefused: %s\n", rope_last_error());
  return good && strstr(rope_last_error(), "accepted_keys[1]") != NULL ? 0 : 1;
}
