/* What a GGUF file says of RoPE: its kinds of layers, and which layer is of which kind.
 *
 *     cc gguf.c $(pkg-config --cflags --libs librope) -lm && ./a.out model.gguf
 *
 * Without a file it reads a header of its own: a Gemma 3 of 6 layers, whose last one sees
 * everything. */
#include <librope/model.h>

#include <stdio.h>
#include <string.h>

static int Print(const rope_model* model) {
  for (int32_t type = 0; type < rope_model_layer_type_count(model); ++type) {
    rope_config config = ROPE_INIT(rope_config);
    if (rope_model_config(model, type, &config) != ROPE_OK) return 1;
    printf("%d %s: head_dim %d, theta %g, %s\n", (int)type, rope_model_layer_type_name(model, type),
           (int)config.head_dim, config.theta,
           config.scaling == ROPE_SCALING_NOPE          ? "no RoPE"
           : config.pairing == ROPE_PAIRING_INTERLEAVED ? "pairs of neighbours"
                                                        : "pairs of two halves");
    if (config.scaling == ROPE_SCALING_DYNAMIC || config.scaling == ROPE_SCALING_LONGROPE) {
      config.seq_len = 4096; /* what the program knows */
    }
    rope_context* rope;
    if (rope_context_create(&config, &rope) != ROPE_OK) return 1;
    rope_context_destroy(rope); /* an engine keeps it: its layers of this kind use it */
  }
  int32_t type;
  printf("layers:");
  for (int32_t layer = 0; rope_model_layer_type(model, layer, &type) == ROPE_OK; ++layer) {
    printf(" %d", (int)type);
  }
  printf("\n");
  return 0;
}

static unsigned char file[512];
static size_t used;

static void Add(const void* bytes, size_t size) {
  memcpy(file + used, bytes, size);
  used += size;
}

static void AddString(const char* text) {
  const uint64_t size = strlen(text);
  Add(&size, sizeof size);
  Add(text, size);
}

static void AddNumber(const char* key, uint32_t type,
                      const void* value) { /* 4: uint32, 6: float32 */
  AddString(key);
  Add(&type, sizeof type);
  Add(value, 4);
}

/* The metadata of a file: magic, version, no tensors, 6 keys. */
static void MakeFile(void) {
  const uint32_t version = 3, string = 8, numbers[] = {6, 2560, 256, 1024};
  const uint64_t counts[] = {0, 6};
  const float base = 1000000;
  Add("GGUF", 4);
  Add(&version, sizeof version);
  Add(counts, sizeof counts);
  AddString("general.architecture");
  Add(&string, sizeof string);
  AddString("gemma3");
  AddNumber("gemma3.block_count", 4, &numbers[0]);
  AddNumber("gemma3.embedding_length", 4, &numbers[1]);
  AddNumber("gemma3.attention.key_length", 4, &numbers[2]);
  AddNumber("gemma3.attention.sliding_window", 4, &numbers[3]);
  AddNumber("gemma3.rope.freq_base", 6, &base);
}

int main(int argc, char** argv) {
  rope_model* model;
  rope_status status;
  if (argc > 1) {
    status = rope_model_load_gguf(argv[1], &model);
  } else {
    MakeFile();
    status = rope_model_create_gguf(file, used, &model);
  }
  if (status != ROPE_OK) {
    fprintf(stderr, "%s\n", rope_last_error());
    return 1;
  }
  int wrong = Print(model);
  if (argc == 1) { /* five layers with a window and a base of 10000, then one with a million */
    int32_t first = -1, last = -1;
    wrong |= rope_model_layer_type(model, 0, &first) != ROPE_OK;
    wrong |= rope_model_layer_type(model, 5, &last) != ROPE_OK;
    wrong |= first == last || rope_model_layer_type_count(model) != 2;
  }
  rope_model_destroy(model);
  return wrong;
}
