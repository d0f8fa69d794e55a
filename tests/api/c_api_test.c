/* Every function of the C API from strict C99, and the promises of the header that a compiler can
 * check. */
#include <librope/model.h>
#include <librope/rope.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int failures;
#define CHECK(x)                                                                      \
  do {                                                                                \
    if (!(x)) {                                                                       \
      fprintf(stderr, "%s:%d: %s [%s]\n", __FILE__, __LINE__, #x, rope_last_error()); \
      ++failures;                                                                     \
    }                                                                                 \
  } while (0)

/* Sizes are part of the ABI. */
#define STATIC_CHECK(name, x) typedef char name[(x) ? 1 : -1]
STATIC_CHECK(status_is_32_bits, sizeof(rope_status) == 4);
STATIC_CHECK(config_is_in_8_byte_units, sizeof(rope_config) % 8 == 0);
STATIC_CHECK(args_is_in_8_byte_units, sizeof(rope_qk_args) % 8 == 0);
STATIC_CHECK(info_is_in_8_byte_units, sizeof(rope_info) % 8 == 0);
STATIC_CHECK(rows_are_in_8_byte_units, sizeof(rope_cos_sin) % 8 == 0);
STATIC_CHECK(cache_is_in_8_byte_units, sizeof(rope_kv_cache) % 8 == 0);
STATIC_CHECK(fused_is_in_8_byte_units, sizeof(rope_fused) % 8 == 0);
STATIC_CHECK(norm_is_in_8_byte_units, sizeof(rope_norm) % 8 == 0);
STATIC_CHECK(scale_is_in_8_byte_units, sizeof(rope_scale) % 8 == 0);
STATIC_CHECK(config_begins_with_its_size, offsetof(rope_config, struct_size) == 0);
STATIC_CHECK(args_begin_with_their_size, offsetof(rope_qk_args, struct_size) == 0);
STATIC_CHECK(args_64, sizeof(void*) != 8 || sizeof(rope_qk_args) == 440);
STATIC_CHECK(cache_64, sizeof(void*) != 8 || sizeof(rope_kv_cache) == 216);
STATIC_CHECK(fused_64, sizeof(void*) != 8 || sizeof(rope_fused) == 312);
STATIC_CHECK(norm_64, sizeof(void*) != 8 || sizeof(rope_norm) == 96);
STATIC_CHECK(scale_64, sizeof(void*) != 8 || sizeof(rope_scale) == 72);
STATIC_CHECK(null_tensor_pointers_64, sizeof(void*) != 8 || sizeof(rope_tensor) == 64);

static int32_t sequentially(void* pool, rope_task_fn fn, void* task, uint32_t count) {
  uint32_t i;
  (void)pool;
  for (i = 0; i < count; ++i) fn(task, i);
  return 0;
}

int main(void) {
  enum { D = 64, T = 3, H = 2 };
  static float q[T * H * D], k[T * D], row[T * D];
  const int64_t positions[T] = {0, 1, 2};
  rope_config config = ROPE_INIT(rope_config), other = ROPE_INIT(rope_config);
  rope_context *context = NULL, *sets = NULL;
  int64_t next = 0;
  int i;

  CHECK(rope_version() ==
        ROPE_VERSION_MAJOR * 10000 + ROPE_VERSION_MINOR * 100 + ROPE_VERSION_PATCH);
  CHECK(strcmp(rope_status_string(ROPE_OK), "ok") == 0);
  CHECK(rope_last_error() != NULL);

  config.head_dim = D;
  config.theta = 10000;
  config.pairing = ROPE_PAIRING_HALVES;
  CHECK(rope_context_create(&config, &context) == ROPE_OK);
  other = config;
  other.theta = 500000;
  {
    const rope_config* configs[2];
    configs[0] = &config;
    configs[1] = &other;
    CHECK(rope_context_create_sets(configs, 2, &sets) == ROPE_OK);
  }
  CHECK(rope_config_next_change(&config, 1, &next) == ROPE_OK && next == INT64_MAX);
  rope_digest_text digest;
  CHECK(rope_config_digest(&config, ROPE_DIGEST_BITS, &digest) == ROPE_OK);
  CHECK(strncmp(digest.text, "bits1:", 6) == 0 && strlen(digest.text) == 6 + 64);
  {
    rope_info info = ROPE_INIT(rope_info);
    double inv_freq[D / 2];
    CHECK(rope_context_info(sets, 1, &info) == ROPE_OK);
    CHECK(info.head_dim == D && info.rotary_dim == D && info.pairs == D / 2 && info.freq_sets == 2);
    CHECK(info.axes == 1 && info.rotary_offset == 0 && info.attention_factor == 1);
    CHECK(rope_context_inv_freq(sets, 1, inv_freq, D / 2) == ROPE_OK);
    CHECK(inv_freq[0] == 1 && fabs(inv_freq[1] - pow(500000, -2.0 / D)) < 1e-7);
  }
  CHECK(strncmp(rope_context_backend(context), "cpu ", 4) == 0);

  for (i = 0; i < T * H * D; ++i) q[i] = 1;
  for (i = 0; i < T * D; ++i) k[i] = 1;
  CHECK(rope_apply_thd(context, ROPE_DTYPE_F32, T, positions, q, H, k, 1) == ROPE_OK);
  CHECK(q[0] == 1 && fabs(q[H * D] - (cos(1) - sin(1))) < 1e-6);
  {
    const rope_runner runner = {sequentially, NULL};
    rope_pool* pool = NULL;
    rope_cos_sin rows = ROPE_INIT(rope_cos_sin);
    rope_positions from = {.kind = ROPE_POSITIONS_OFFSET};
    rope_qk_args args = {
        .struct_size = sizeof args,
        .operation = ROPE_OPERATION_INVERSE,
        .batch = 1,
        .tokens = T,
        .q = {.data = q, .dtype = ROPE_DTYPE_F32, .layout = ROPE_LAYOUT_BSHD, .heads = H},
        .positions = {.kind = ROPE_POSITIONS_OFFSET},
        .runner = &runner,
    };
    CHECK(rope_apply_qk(context, &args) == ROPE_OK);
    for (i = 0; i < T * H * D; ++i) CHECK(fabs(q[i] - 1) < 1e-6);
    rows.format = ROPE_COS_SIN_PACKED;
    rows.dtype = ROPE_DTYPE_F32;
    rows.pairs = D / 2;
    rows.batch = 1;
    rows.data = row;
    CHECK(rope_cos_sin_fill(context, 1, T, &from, &rows, NULL) == ROPE_OK);
    CHECK(rope_cos_sin_tensors(rows.format) == 1);
    CHECK(rope_cos_sin_width(rows.format, D / 2) == D);
    CHECK(row[0] == 1 && row[D / 2] == 0 && fabs(row[D] - cos(1)) < 1e-6);
    CHECK(rope_pool_create(2, &pool) == ROPE_OK);
    CHECK(rope_pool_runner(pool) != NULL);
    rope_pool_destroy(pool);
  }
  {
    static const char json[] = "{\"model_type\":\"llama\",\"head_dim\":64,\"num_hidden_layers\":2}";
    rope_model* model = NULL;
    int32_t type = -1;
    CHECK(rope_model_create(json, sizeof json - 1, &model) == ROPE_OK);
    CHECK(rope_model_layer_type_count(model) == 1);
    CHECK(rope_model_layer_type_name(model, 0) != NULL);
    CHECK(rope_model_layer_type(model, 1, &type) == ROPE_OK && type == 0);
    CHECK(rope_model_config(model, 0, &config) == ROPE_OK && config.head_dim == D);
    CHECK(rope_model_note(model, 0) == NULL && rope_model_note(NULL, 0) == NULL);
    rope_model_destroy(model);
    model = NULL;
    CHECK(rope_model_create_accepting(json, sizeof json - 1, NULL, 0, &model) == ROPE_OK);
    rope_model_destroy(model);
  }
  {
    const rope_prompt_part run = {.text = 2};
    int64_t ids[6];
    CHECK(rope_prompt_ids(&run, 1, 5, ids, 2, &next) == ROPE_OK);
    CHECK(ids[0] == 5 && ids[5] == 6 && next == 7);
  }
  {
    static const char text[] = "{\"_class_name\": \"FluxTransformer2DModel\"}";
    const rope_latent_grid grid = {.t = 1, .h = 1, .w = 2};
    const rope_latent_args latents = {
        .struct_size = sizeof latents, .count = 1, .grids = &grid, .text = 1};
    rope_model* diffusion = NULL;
    float ids[9];
    CHECK(rope_model_create(text, sizeof text - 1, &diffusion) == ROPE_OK);
    CHECK(rope_model_latent_ids(diffusion, 0, &latents, ids, 9, &next) == ROPE_OK);
    CHECK(ids[8] == 1 && next == 3);
    rope_model_destroy(diffusion);
  }
  rope_context_destroy(context);
  rope_context_destroy(sets);
  if (failures == 0) puts("ok");
  return failures != 0;
}
