/* librope: from a model's config.json to configurations of rope.h, and the position ids of a prompt
 * with images and video.
 *
 * The rules in section 1 of rope.h hold here, too. Nothing in this file is needed to rotate: a
 * program that knows its configuration includes rope.h alone.
 *
 * ------------------------------------------------------------------------------------------------
 * Models: from config.json to configurations
 *
 *     rope_model_create(json, length, &model);
 *     for (t = 0; t < rope_model_layer_type_count(model); ++t) {
 *       rope_model_config(model, t, &config);
 *       config.seq_len = tokens;                // what is the program's: seq_len, device
 *       rope_context_create(&config, &rope[t]);
 *     }
 *     rope_model_layer_type(model, layer, &type);                  // this layer uses rope[type] */
#ifndef LIBROPE_MODEL_H_
#define LIBROPE_MODEL_H_

#include <librope/rope.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct rope_model rope_model;

/* Reads a model's config.json, or its rope_parameters (rope_scaling) dictionary alone, which has no
 * layers and leaves to the caller head_dim, pairing, and what it does not hold (theta, lengths).
 * Unknown rope_type, missing or misspelt key, wrong type or impossible value: ROPE_ERROR_PARSE.
 * What a text says of RoPE and this version does not use (a share of the head in a family whose
 * class turns the whole head, two values of theta, numbers of another program's YaRN) is
 * ROPE_ERROR_UNSUPPORTED with the key's name, unless its value is known to change nothing: programs
 * would differ. Such a key can be removed from the text by who knows that it has no effect.
 * Where a text is accepted, rope_context_create accepts its configs, once seq_len and what is left
 * to the caller are set. The text is untrusted, needs no final 0, and is not kept; at most 16 MiB,
 * 4096 layers, 256 kinds.
 *
 * model_type decides what no key tells: which channels form a pair, and where values are rounded.
 * Both are those of the checkpoint as transformers reads it: q and k weights that were permuted for
 * GGUF need ROPE_PAIRING_INTERLEAVED instead. Only the rotation is read: what else a model does to
 * q and k (norms, Llama 4's and Ministral 3's scale of q by position, llama_4_scaling_beta) is the
 * engine's. A model_type known to have no RoPE (gpt2, opt, bloom, bert, t5, ..) is
 * ROPE_ERROR_UNSUPPORTED, as is an unknown one without any key of RoPE; an unknown one with such
 * keys is read, needs its rope_theta, and leaves the pairing (0) to the caller. */
ROPE_API rope_status rope_model_create(const char* json, size_t length,
                                       rope_model** out) ROPE_MUST_CHECK;
ROPE_API void rope_model_destroy(rope_model* model); /* NULL is allowed */

/* How many kinds of RoPE the model has, at least 1, and their names: "full_attention",
 * "sliding_attention", "nope", "vision", "indexer", ...; NULL for a number out of range. Names live
 * as long as the model. */
ROPE_API int32_t rope_model_layer_type_count(const rope_model* model);
ROPE_API const char* rope_model_layer_type_name(const rope_model* model, int32_t type);

/* The kind of one layer of the language model. Layers without RoPE have a kind like any other,
 * whose config says ROPE_SCALING_NOPE: the engine's loop needs no special case. Layers are numbered
 * from 0; ROPE_ERROR_INVALID_ARGUMENT beyond the last, which is how their number can be learnt, and
 * for every layer if the text does not tell how many there are (num_hidden_layers, or a list with
 * an entry for each). */
ROPE_API rope_status rope_model_layer_type(const rope_model* model, int32_t layer,
                                           int32_t* type) ROPE_MUST_CHECK;

/* Overwrites *config, of which only struct_size must be set. Tables in it belong to the model: keep
 * the model as long as a config of it (rope_config_next_change and later contexts read them, too);
 * contexts copy what they need. ROPE_ERROR_UNSUPPORTED if the model needs a field beyond
 * struct_size. */
ROPE_API rope_status rope_model_config(const rope_model* model, int32_t type,
                                       rope_config* config) ROPE_MUST_CHECK;

/* ------------------------------------------------------------------------------------------------
 * Position ids of multimodal prompts (get_rope_index of Qwen-VL and relatives)
 *
 * A text token has one id on all axes; the token at (frame, row, column) of a grid has its start
 * plus (frame * t_interval, row, column). Each part starts above all ids before it, as the models
 * were trained; transformers 5 starts the text after a long video lower. */

/* Text, then at most one image or video. Frozen. */
typedef struct rope_prompt_part {
  int64_t text;       /* tokens of text */
  int32_t t, h, w;    /* grid of visual tokens, after merging; t = 0: none */
  int32_t t_interval; /* ids from one frame to the next; 0: 1 */
} rope_prompt_part;

/* Writes ids[3, tokens] (axes t, h, w) beginning at `start`; tokens must be the sum over the parts.
 * *next is the id of the token after them, where decoding continues. */
ROPE_API rope_status rope_prompt_ids(const rope_prompt_part* parts, int32_t count, int64_t start,
                                     int64_t* ids, int64_t tokens, int64_t* next) ROPE_MUST_CHECK;

#ifdef __cplusplus
} /* extern "C" */
#endif
#endif /* LIBROPE_MODEL_H_ */
