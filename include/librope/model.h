/* librope: from a model's config.json or GGUF file to configurations of rope.h, and the position
 * ids of a prompt with images and video, or of the latents of a diffusion model.
 *
 * The rules in section 1 of rope.h hold here, too. Nothing in this file is needed to rotate: a
 * program that knows its configuration includes rope.h alone.
 *
 * ------------------------------------------------------------------------------------------------
 * Models
 *
 *     rope_model_create(json, length, &model);
 *     for (t = 0; t < rope_model_layer_type_count(model); ++t) {
 *       rope_model_config(model, t, &config);
 *       config.seq_len = tokens;                // what the program knows: seq_len, device
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

/* Reads a model's config.json, or its rope_parameters (rope_scaling) dictionary alone. Such a
 * dictionary has no layers, and leaves to the caller head_dim, pairing, and whatever it does not
 * contain (theta, lengths). The text is untrusted; it needs no terminating 0, length must not count
 * one, and it is not kept; it may have at most 16 MiB, 4096 layers and 256 kinds of layers. An
 * unknown rope_type, a missing or misspelt key, a wrong type or an impossible value is
 * ROPE_ERROR_PARSE. If a text is accepted,
 * rope_context_create accepts its configurations as soon as seq_len, and what is left to the
 * caller, are set.
 *
 * Four other programs' configurations are read as well, known by keys that only they have: Meta's
 * and Mistral's params.json, Megatron-LM's arguments and MaxText's configuration (as JSON). The
 * pairing is then that of the program's own weights (Meta's and Mistral's: ROPE_PAIRING_INTERLEAVED),
 * the first note says which program it was, and a text that could be two of them is
 * ROPE_ERROR_UNSUPPORTED. docs/models.md lists their keys.
 *
 * What a text says about RoPE and this version does not use (a share of the head in a family whose
 * class rotates the whole head, two different values of theta, numbers of another program's YaRN)
 * is ROPE_ERROR_UNSUPPORTED with the name of the key, unless its value is known to change nothing:
 * programs would read such a text differently. Whoever knows that a key has no effect can accept it
 * by name, see rope_model_create_accepting.
 *
 * model_type decides what no key tells: which channels form a pair, and where values are rounded.
 * Both are those of the checkpoint as transformers reads it; q and k weights that were permuted for
 * GGUF need ROPE_PAIRING_INTERLEAVED instead. Only the rotation is read. What else a model does to
 * q and k (norms, the scaling of q by position in Llama 4 and Ministral 3, llama_4_scaling_beta) is
 * up to the engine. A text with a _class_name instead is the transformer/config.json of a pipeline
 * of diffusers, whose class decides all that; docs/diffusers.md lists those that are read, and
 * rope_model_latent_ids gives their ids. A model_type that is known to have no RoPE (gpt2, opt, bloom, bert, t5, ..) is
 * ROPE_ERROR_UNSUPPORTED, and so is an unknown one without any key of RoPE. An unknown one with
 * such keys is read; it must give its rope_theta, and leaves the pairing (0) to the caller.
 *
 * The caller owns *out. Returns ROPE_OK, or INVALID_ARGUMENT, UNSUPPORTED, OUT_OF_MEMORY, PARSE or
 * INTERNAL. */
ROPE_API rope_status rope_model_create(const char* json, size_t length,
                                       rope_model** out) ROPE_MUST_CHECK;

/* The same for a caller who knows of some keys that they change nothing, although this version
 * would refuse the text because of them. accepted_keys has `count` (at most 256) names, terminated
 * by 0: a key wherever it stands, "attn_factor", or its path,
 * "text_config.rope_scaling.attn_factor". A name must spare a key: one that does not occur, or
 * occurs where it is read or known to change nothing, is ROPE_ERROR_INVALID_ARGUMENT, so that a
 * list of names cannot outlive its reason. Other errors than that of a key which was not used
 * remain.
 *
 * Returns what rope_model_create returns. */
ROPE_API rope_status rope_model_create_accepting(const char* json, size_t length,
                                                 const char* const* accepted_keys, int32_t count,
                                                 rope_model** out) ROPE_MUST_CHECK;

/* Reads the metadata of a GGUF file (version 2 or 3, little-endian): the keys of its architecture,
 * and its frequency factors (one tensor, or a long and a short one). The bytes are untrusted and
 * not kept. They may be the beginning of the file alone, without the weights; if they end too
 * early, the error says how many bytes are needed to get further. The rest is as for
 * rope_model_create: a missing key, one of another type, or one that speaks of RoPE and is not
 * read, is an error. docs/gguf.md lists the architectures that are read.
 *
 * The pairing is that of the weights in the file, whose q and k are permuted for some architectures
 * (llama: ROPE_PAIRING_INTERLEAVED). The frequencies are those of the model, computed under
 * ROPE_ANGLE_FLOAT32; for the bits of llama.cpp set config.angle to ROPE_ANGLE_GGML. Files with
 * factors for two lengths are LONGROPE: seq_len decides; llama.cpp takes the size of its context
 * for it.
 *
 * Returns what rope_model_create returns. */
ROPE_API rope_status rope_model_create_gguf(const void* data, size_t size,
                                            rope_model** out) ROPE_MUST_CHECK;

/* The same for a file, of which it reads as much as it needs. Of a model in several parts this is
 * the first, "model-00001-of-00003.gguf", whose keys count. The others are read where they are
 * there, and must be there if its frequency factors may be in them: a tensor of factors in two parts,
 * or a key of another part that says another thing about the model than the first, is an error.
 *
 * Returns what rope_model_create returns; INVALID_ARGUMENT also if a file cannot be read. */
ROPE_API rope_status rope_model_load_gguf(const char* path, rope_model** out) ROPE_MUST_CHECK;

/* A key of a GGUF file and its value, as a program that has parsed the file holds them. Frozen. */
typedef struct rope_gguf_value {
  const char* key; /* "llama.rope.freq_base" */
  uint32_t type;   /* the number of the format (ggml's gguf_type): 4 uint32, 8 string, 9 array .. */
  uint32_t element; /* of an array: the type of its elements */
  uint64_t count;   /* of an array: of its elements; of a string: of its bytes; else not read */
  const void* data; /* the number, the bytes, or the elements, in the byte order of the machine; not
                       read where these are strings or arrays */
} rope_gguf_value;

/* A tensor of frequency factors: rope_freqs.weight, or one of the two with factors for long and for
 * short contexts. Frozen. */
typedef struct rope_gguf_factors {
  const char* name;
  const float* values;
  uint64_t count;
} rope_gguf_factors;

/* Reads the metadata of a GGUF file that the program has parsed already. All keys of the file may
 * be given, in any order; those of the architecture and general.architecture must be, and all
 * tensors whose names have "rope" in them. Nothing is kept. The rest is as for
 * rope_model_create_gguf.
 *
 * Returns what rope_model_create returns. */
ROPE_API rope_status rope_model_create_gguf_values(const rope_gguf_value* values, int32_t count,
                                                   const rope_gguf_factors* factors,
                                                   int32_t factor_count,
                                                   rope_model** out) ROPE_MUST_CHECK;

/* Returns the note with this number, from 0; NULL if there is none. A note is a sentence about
 * something that the text says, that programs treat differently, and that is no part of a
 * rope_config: dual_chunk_attention_config; about how a text of another program than transformers
 * was read; or, as in "full_attention: theta (11158840) follows from ..", about a field of a
 * configuration that several numbers of the text made: to replace one of these, change the text and
 * read it again, as a field that is replaced in the rope_config alone is the text's no longer. The
 * text of a note lives as long as the model. */
ROPE_API const char* rope_model_note(const rope_model* model, int32_t index);

/* Destroys a model. NULL is allowed. Tables of its configurations go with it. */
ROPE_API void rope_model_destroy(rope_model* model);

/* Returns how many kinds of RoPE the model has: at least 1, and 0 for NULL. */
ROPE_API int32_t rope_model_layer_type_count(const rope_model* model);

/* Returns the name of a kind: "full_attention", "sliding_attention", "nope", "vision", "indexer",
 * ...; NULL if the number is out of range. The name lives as long as the model. */
ROPE_API const char* rope_model_layer_type_name(const rope_model* model, int32_t type);

/* Sets *type to the kind of one layer of the language model. A layer without RoPE has a kind like
 * any other, whose configuration says ROPE_SCALING_NOPE, so the loop of an engine needs no special
 * case. Layers are numbered from 0.
 *
 * Returns ROPE_OK, or INVALID_ARGUMENT beyond the last layer, which is also how to learn their
 * number; it does so for every layer if the text does not tell how many there are
 * (num_hidden_layers, or a list with an entry for each). */
ROPE_API rope_status rope_model_layer_type(const rope_model* model, int32_t layer,
                                           int32_t* type) ROPE_MUST_CHECK;

/* Overwrites *config, of which only struct_size must be set before. Tables in it belong to the
 * model: keep the model as long as the configuration, which rope_config_next_change and later
 * contexts read as well; contexts copy what they need.
 *
 * A program sets what is its own: device, seq_len, rounding, angle, and what the text leaves open. A
 * number of the text that it replaces here does not take along what followed from it: attention_factor
 * from factor and mscale, rotary_dim and rotary_offset from head_dim, freq_factors from theta, and what
 * a note of the model says. Change the text and read it again.
 *
 * Returns ROPE_OK, or INVALID_ARGUMENT, or UNSUPPORTED if the model needs a field beyond
 * struct_size. */
ROPE_API rope_status rope_model_config(const rope_model* model, int32_t type,
                                       rope_config* config) ROPE_MUST_CHECK;

/* Sets *digest to that of one kind of RoPE: rope_config_digest of its configuration. With type -1 it
 * is that of the model: which RoPE each layer has, and the kinds that no layer has (towers, indexers)
 * by their names. Names of kinds that layers have do not count, nor do spelling and dialect. What a
 * text leaves to the caller (the pairing of an unknown model_type, head_dim of a rope dictionary
 * alone) is an error here: complete its configuration, and take rope_config_digest.
 *
 * Returns ROPE_OK, or INVALID_ARGUMENT, UNSUPPORTED, OUT_OF_MEMORY or INTERNAL. */
ROPE_API rope_status rope_model_digest(const rope_model* model, int32_t type, rope_digest same,
                                       rope_digest_text* digest) ROPE_MUST_CHECK;

/* ------------------------------------------------------------------------------------------------
 * Prompts
 *
 * The position ids of multimodal prompts, as get_rope_index of Qwen-VL and its relatives makes
 * them. A text token has one id on all axes. The token at (frame, row, column) of a grid has the id
 * of the grid's start plus (frame * t_interval, row, column). Each part starts above all ids before
 * it, as the models were trained; transformers 5 starts the text after a long video at a lower id.
 */

/* Some text, then at most one image or video. Frozen. */
typedef struct rope_prompt_part {
  int64_t text;       /* tokens of text */
  int32_t t, h, w;    /* the grid of visual tokens, after merging; t = 0: there is none */
  int32_t t_interval; /* ids from one frame to the next; 0: 1 */
} rope_prompt_part;

/* Writes ids[3, tokens] (the axes t, h, w), which begin at `start`; tokens must be the sum over the
 * parts. Sets *next to the id of the token after them, where decoding continues.
 *
 * Returns ROPE_OK or INVALID_ARGUMENT. */
ROPE_API rope_status rope_prompt_ids(const rope_prompt_part* parts, int32_t count, int64_t start,
                                     int64_t* ids, int64_t tokens, int64_t* next) ROPE_MUST_CHECK;

/* The same for videos whose frames are not a whole number of ids apart (Qwen2.5-VL:
 * tokens_per_second * second_per_grid_ts). t_intervals[i] is that number of part i, or 0, and its
 * t_interval counts; one of both must be 0. Frame f has the id of the grid's start plus f times the
 * number, rounded down: the product is that of two f32, as in transformers.
 *
 * Returns ROPE_OK or INVALID_ARGUMENT. */
ROPE_API rope_status rope_prompt_ids_timed(const rope_prompt_part* parts, const double* t_intervals,
                                           int32_t count, int64_t start, int64_t* ids,
                                           int64_t tokens, int64_t* next) ROPE_MUST_CHECK;

/* ------------------------------------------------------------------------------------------------
 * Latents
 *
 * The ids that the pipelines of diffusers give to the tokens of a diffusion transformer, text and
 * latents. docs/diffusers.md has them for each class. */

/* One image or video, in tokens: what is left of its latents after patching (or packing). Frozen. */
typedef struct rope_latent_grid {
  int32_t t, h, w; /* frames (1 for an image), rows, columns: all positive */
  int32_t reserved;
} rope_latent_grid;

typedef struct rope_latent_args {
  uint32_t struct_size;
  int32_t count;                 /* of grids */
  const rope_latent_grid* grids; /* that which is made, then those that it is made from */
  int64_t text;                  /* tokens of text in the attention with the latents; or 0 */
  double fps; /* frames per second of a video. Cosmos: 0: an image; LTX-Video, LTX-2: required */
  /* Kandinsky 5: ids are divided by it; 0: 1. LTX-Video: pixels of a latent; 0: 8, 32, 32. */
  double scale_t, scale_h, scale_w;
} rope_latent_args;

/* Writes ids[axes, tokens], with the axes of the configuration of `type`, for use as
 * ROPE_POSITIONS_IDS_ABT with batch 1. Tokens are in the order in which the model's attention has
 * them. Sets *tokens to their number; `capacity` must be the number of values in ids, axes * tokens.
 * With ids NULL and capacity 0 only *tokens is set. Ids are whole numbers up to 2^24, or fractions,
 * rounded as the pipeline rounds them.
 *
 * Returns ROPE_OK, or INVALID_ARGUMENT, or UNSUPPORTED if the model is none of diffusers. */
ROPE_API rope_status rope_model_latent_ids(const rope_model* model, int32_t type,
                                           const rope_latent_args* args, float* ids,
                                           int64_t capacity, int64_t* tokens) ROPE_MUST_CHECK;

#ifdef __cplusplus
} /* extern "C" */
#endif
#endif /* LIBROPE_MODEL_H_ */
