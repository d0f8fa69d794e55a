// The words around the table of docs/models.md.
#ifndef LIBROPE_TESTS_MODEL_ORACLE_DOCUMENT_H_
#define LIBROPE_TESTS_MODEL_ORACLE_DOCUMENT_H_

#include <map>
#include <ostream>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "oracle_deviations.h"
#include "oracle_table.h"

namespace rope::testing {

inline constexpr char kIntroduction[] =
    R"(<!-- Written by tests/model/model_oracle_test.cc: do not edit. -->
# Models

Which models' RoPE librope reads from their `config.json`, and how near it comes to the models'
own code. Every line is measured: a real `transformers` ran its rotary class and its apply
function on the configuration, and the test compares what librope makes of the same text. The
frequencies must be the same f32 numbers, bit for bit. No line is from reading alone. (Families of
which transformers has no code, such as ChatGLM, DBRX and Qwen 1, have no line: they are from
reading.)

    cmake --build build --target model_oracle_test
    LIBROPE_MODELS_TABLE=docs/models.md build/tests/model_oracle_test    # writes this file anew

The recorded results are in `tests/data/oracle`, so that the test needs neither Python nor
network; `tests/oracle` says how they are made. The test's last lines give the counts over all
models.

## How to read the table

A line is a `model_type`, of its language model unless it says otherwise. Real configurations,
those written by hand and the defaults of the configuration class share a line, which shows the
worst.

- **configs**: how many configurations were compared, and how many of them are published ones.
- **(*)**: one of them differs on purpose, see below; the numbers are those of the others.
- **layer types**: librope's names, as of `rope_model_layer_type_name`. Layers without RoPE
  (`nope`) are compared as well, layer by layer, and are not listed.
- **rope_type**: how the frequencies follow from theta. `axial` is the name for towers.
- **style**: pairing and rounding in the words of `rope.h`; then how many ids a token has, and
  which channels of a head turn if not all do.
- **verified against**: the version of transformers; in brackets the class that stood for remote
  code. It has the same frequencies and pairing; where that code is known to round otherwise, the
  case is in the list of differences.
- **rotated f32**: the largest error of cos, sin and rotated f32 values below position 4096,
  relative to the size of the pair. The test allows 2e-6, at any position: the angle is the same f32
  number, because the frequency is.
- **16 bit**: rotated bf16 and f16 tensors, from the model's cos and sin. *exact*: bit for bit,
  required of every `eager` model. *1 rounding*: models that compute in f32, where librope may
  fuse a product and a sum and torch does not; an element may be rounded to the neighbour.

)";

inline constexpr char kTowers[] = R"(
## Ids of vision towers

The type `vision` takes several ids per token, and the towers differ in their order:

- (row, column): Qwen-VL and all towers like it, GLM-V, ERNIE-VL, Kimi-K2.5, Pixtral, DINOv3.
- (column, row): Gemma 4, SAM; Llama 4 and Muse, which count from 1.
- (frame, row, column): MiniMax-M3.

DINOv3 takes float coordinates: the centre of a patch, from -1 to 1, times 2 pi.
)";

inline constexpr char kLayerKeys[] = R"(
## Which keys tell layers apart

Each class has its own, and without them its own pattern (`src/model/class_layers.h`). A key of another
class is refused unless it says what is so anyway: one that makes all layers attention in a class where
they are, windows that RoPE does not depend on, a period beside the class's own list. All other classes
may have `layer_types`, and all of their layers are attention.

| key | read in |
|---|---|
| `layer_types` | all but those of the keys that are marked (*) |
| `sliding_window_pattern` | Cohere 2, EmbeddingGemma 2, EXAONE 4 (also as letters), Gemma 3, PLaMo 3, T5Gemma 2 |
| `global_attn_every_n_layers` | AFMoE, ModernBERT |
| `hybrid_layer_pattern` | MiMo V2 |
| `attention_windows` | UltraBERT |
| `full_attention_interval` | Alice AI, Qwen 3 Next, 3.5 and 4 |
| `layer_group_size` | Bailing's hybrids |
| `layers_block_type` | Bailing V3, Granite's hybrid, Zamba 2 |
| `full_attn_idxs` | LFM 2 |
| `full_attention_layers` | GigaChat 3.5 |
| `attn_type_list` | MiniMax 01 and M1 |
| `compress_ratios` | DeepSeek V4 |
| `attn_layer_indices` (*) | Bamba |
| `block_types` (*) | RecurrentGemma |
| `cross_attention_layers` (*) | Llama 3.2 Vision |
| `mamba_step` (*) | PLaMo 2 |
| `mixer_types` (*) | MiniCPM-SALA |
| `hybrid_layers_types_block`, `num_hybrid_layers_block`, `first_layers_types`, `last_layers_types` (*) | IQuest Q1: the block so many times, between the layers of the beginning and of the end, as vLLM and SGLang read it. There `no_rope_layers` has the numbers of layers without RoPE |
| `no_rope_layers`, `no_rope_layer_interval` | Llama 4, Mistral Large 4, SmolLM 3, where `layer_types` is about masks |
| `layer_rope_theta` | Granite SWA: the theta of each layer. Muse: 0 for a layer without RoPE, and the one theta |

Gemma 4 and EmbeddingGemma 2 make the last layer full attention, whatever a list says. Dense layers of
Cohere 2 MoE turn, be they full attention, unless `prefix_dense_sliding_window_pattern` is not 1. Of a
model_type that is not known the lists count, and must agree where there are several; a period, and a list
that only one class gives a meaning to, are refused.
)";

inline constexpr char kRefused[] = R"(
## Models that are refused

Public code does not establish their RoPE, or it is none that a `rope_config` can say. Their texts are
refused by `model_type` or by the key that is named here; where a text holds nothing of the kind, it is
read as one of an unknown model, which leaves the pairing to the caller.

| model_type | why |
|---|---|
| efficientloftr | rotates a feature map that it has aggregated; no position ids |
| lightglue | its frequencies are weights, not numbers of its configuration: `positional_encoder.projector.weight`, transposed to [2 axes, pairs], is `config.frequency`; interleaved, ids are the normalised key points |
| musicflamingo's audio encoder | angles are products of a window's and a frame's number, in f64. Its language model is read |
| parakeet_encoder, nemotron_asr_streaming, seamless_m4t_v2 | relative positions, no RoPE. wav2vec2-bert and wav2vec2-conformer are read, and have RoPE if position_embeddings_type is "rotary" |
| jurassic3 | use_positional_embeddings is off, and no public code has it on; its rope_theta is not used |
| vjepa2 | turns the two channels of a pair by different angles: no rotation, and so no configuration. Rows of cos and sin hold it. With n = head_dim / 3 / 2, rounded down: write them as `ROPE_COS_SIN_FULL_HALVES` in a context of `ROPE_PAIRING_HALVES_PER_AXIS` with `rotary_dim` 6 n, three sections of n pairs, and three times the frequencies of a head of 2 n channels with theta 10000; ids are (frame, row, column). Read the same rows as `ROPE_COS_SIN_FULL_INTERLEAVED` in one of `ROPE_PAIRING_INTERLEAVED`. `cos_sin_fill_test` compares that with the model |
| intern_s1_pro and others with FoPE | `fope_*`: cos and sin are sums of several, by coefficients of the checkpoint, and of no angle. Rows for each head of k hold them (`rope_cos_sin.heads`). Where the frequencies are fewer than the pairs, engines differ: the sin of the other pairs is 0 in vLLM and 1 in lmdeploy |
| deepseek_ocr2's tower | its encoder is a Qwen2 whose sizes no file says (`vision_config.encoder_config`); the language model is read |
| openpangu's PanguProMoEV2 | `qk_rope_dim`: the one engine that has it gives it no theta. PanguEmbedded, pangu_ultra_moe and openpangu_vl are read, the last one without its tower, whose angles are rounded to 16 bits |
| telechat, telechat2 | their own code raises theta with the length, and engines do not. telechat3 is read |
| esmfold2's atom encoder | has no model_type; `spatial_rope_base_frequency` .. are of four ids per atom (x, y, z in floats, and a number), whose frequencies are given by hand: `inv_freq` and `pair_axis`, zeros for the pairs of a head that are left over. Its language model is read |
| pp_doclayout_v2's reading order | has no model_type; `relation_bias_theta` is of a bias of the attention, and no RoPE |

Classes whose defaults do not work in transformers either, and of which a file with all keys is read: glm_image
and glm46v (sections that add up to half of the pairs), hunyuan_vl (no sections).

Models of which engines alone have the code (vLLM, SGLang, mlx-lm), and which are read as these do:
alice_ai, arctic, bailing_moe_v3_vl, bailingmm_moe_v2_lite, deepseek_v41, deepseek_vl_v2, dots_ocr,
dots_vlm, gigachat3_5, grok-1 and grok-2, interns2_mobius, intern_s2_preview, iquest_q1, isaac,
jet_nemotron, jet_vlm, k2_horizon, keye, kimi_k3's tower, kimi_vl with its MoonViT, llada2_moe,
locateanything, mimo_v2, minicpm_sala, moondream3, moss_vl, nanbeige, openpangu, ouro, param2moe,
phi3small, plamo2, plamo3, sarvam, sdar, solar, spark2_5, step3_text, step3_vl, teleflm, telechat3.
`model_engines_test` compares them with the formula.
)";

inline constexpr char kAfterDeviations[] = R"(
Position ids of prompts with images and videos are compared by `model_position_ids_test`: 48
prompts of five models, the same in 42. The others, all of Qwen2-VL and Qwen2.5-VL, are listed
there: after a video whose last frame has a larger id than its rows and columns, transformers 5
counts the text from the rows and columns alone, below the ids of the last frames. librope starts
each run above all ids before it, as the models were trained. Frames that are not a whole number of
ids apart (0.7 seconds at 2 ids a second) are those of `rope_prompt_ids_timed`.

A flat `rope_scaling` that names its scaling by `type` alone is read as if it said `rope_type`, in all
classes, and as transformers 4 read it. transformers 5 does not look at `type` where the class has two
kinds of layers (Gemma 3 and 3n, T5Gemma 2, OLMo 3, ModernBERT, Perception Encoder's audio and video), whose
dictionaries say `"rope_type": "default"` before: it does not scale there, in silence. Write `rope_type`.
(`model_layers_test`.)

## When a key is refused

`rope_model_create` marks what it looks up. Whatever else speaks of RoPE (rope, rotary, theta, nope,
yarn, ntk, alibi, inv_freq .., and pos_emb, pe_type and their relatives where they name something) must
have a value that is known to change nothing, or the text is refused:

    rope_scaling.attn_factor (0.8782488562869419) may change the rotation and was not used, as this kind of
    model does not read it or another key says something else; the nearest key is attention_factor:
    accept it by name if it has no effect

- The key is a misspelling, or another program's word: write the one that transformers reads. So for the keys
  that tell layers apart: a number, a word of letters or a list in a key that nearly is the class's own.
- Two places differ (`rope_theta` beside and inside the dictionary, `rope_scaling` and
  `rope_parameters`, `type` and `rope_type`): remove the one that is wrong. transformers 5 takes the
  dictionary, `rope_scaling` and `rope_type`; other programs take the others. Files that went through
  transformers 4 and 5 may hold a stale `rope_theta` of 10000 at the top. A `rope_theta` or a share of the head in
  `rope_parameters` alone must also stand beside `rope_scaling`, or be the class's default, which counts there.
- `rope_theta` (or the class's own word for it) is null, for which transformers has no number, or a kind of layer in `rope_parameters` is,
  for which some classes take their defaults and others nothing: give the number or the dictionary. (Kinds
  that the class does not know, and Cohere's, have no RoPE then.)
- A kind of layer is not in `rope_parameters`, and layers are of it: Gemma 3, ModernBERT, NeoMME and OLMo 3
  have defaults of the class for it, other classes fail.
- A label of `layer_types` is none that this version knows (`cross_attention`, `hybrid_attention`): such layers
  may have no RoPE. Write `full_attention`, or `nope` for a layer without. `kda` and `gla` are linear
  attention, without RoPE.
- A key tells layers apart, and the class has another one for that (see above), or a label of `layer_types`
  is no attention (`mamba`) where all layers of the class are.
- The word is another family's: `rotary_emb_base` or `rotary_pct` in a Llama, `rope_theta` in a GPT-NeoX, a
  GPT-J or a Gemma 4, whose classes do not read it. It passes where it repeats what is used. So it is in
  vision towers: `embed_dim` in a Qwen2.5-VL, `head_dim` where the class divides its width. Where the whole model's
  class has one class for its language model or its tower, `model_type` inside `text_config` or
  `vision_config` decides nothing, as in transformers. A size that `head_dim` follows from is missing where only
  another family's word has it (`n_head` in a Llama).
- A vision tower whose sizes the file leaves to its class, so that there is no type `vision`, says more of its
  RoPE than the theta of the class.
- `rope_parameters` has a dictionary for each kind of layer and the class reads one for all, or the other
  way round; its kinds lack `rope_theta` where the class reads none beside them (Gemma 4, Laguna); or the
  class reads no dictionary at all (GPT-J, CodeGen, RoFormer), or no `rope_scaling` (Cohere 2 MoE).
- A dictionary stands inside a dictionary (`rope_parameters.rope_scaling`): one of them is to hold the keys.
- `rope_interleave` is false in a class that turns neighbours whatever it says (GLM-5, DeepSeek V3.2, LongCat, Mistral
  Large 4, A.X K2, Bailing's hybrid, dots3). DeepSeek V3, A.X K1, GLM-4.7 Flash, Mistral 4 and Youtu read it, and
  engines do for bailing_moe_v3_vl, gigachat3_5, pangu_ultra_moe and sarvam_mla. `indexer_rope_interleave` is
  read by engines, and by no class of transformers: it must say what the class does. Either of them is null,
  which Python takes for false, where it is true by default.
- `use_rope` is false, or another switch of that kind, where the class has none: if q and k do not turn,
  replace it by `nope` for every layer in `layer_types` (by hand: `ROPE_SCALING_NOPE`).
- A key of the dictionary stands beside it (`factor`, `beta_fast`, `attention_factor`, `low_freq_factor`,
  `alpha` ..), where no class reads it: move it into the dictionary.
- `use_mla` denies the one kind of attention that the class has (DeepSeek-V2 has both), the dictionary of a
  MiniMax has a share of the head that its `rotary_dim` is not, or sizes stand around a `decoder` that is not there.
- `head_dim` is not what the class computes instead of reading it (RecurrentGemma, DeepSeek-OCR 2, Falcon).
- `rope_scaling` of a Step 3.5 is for other layers than those of full attention (`yarn_only_types`), which
  transformers scales alone.
- `per_layer_config` gives layers of one RoPE heads of several widths, or has an entry whose key is no number
  of a layer: transformers refuses that, too.
- A `rope_type` is none that the class knows (Phi-3: `default` and `longrope`).
- YaRN of a DeepSeek-V4 by kinds has no `attention_factor`: 1 in the model's own code, not in transformers.
- `factor` of a Phi-3 is not the ratio of its two lengths: transformers takes the factor, Phi-3's own code
  and engines the ratio.
- The model's own code ignores the key (`partial_rotary_factor` in a Llama): decide what the weights
  were trained with. If they were trained by that code, remove the key.
- The key is new, or of a model that this version does not know: its RoPE is not offered yet. A
  `rope_config` can still be filled in by hand, with `inv_freq` if need be.

A program that knows better accepts keys by name or path, and the text is read as if they were not
there, be it in a list, `blocks[0].rope_theta` (a message shows letters beyond ASCII as JSON does, `\u00e4`; a name is the text itself): `rope_model_create_accepting` in C, `Model(config, accepted_keys=["attn_factor"])` in Python and
`rope::Model(text, {"attn_factor"})` in C++, `Model::from_json_accepting` in Rust, `FromJSON(text,
"attn_factor")` in Go. A name that spares no key is an error.

Refusals that can be overruled so end with "accept it by name if it has no effect": keys that were not read,
and keys that deny what the model's code does (pairs, orders of sections, a tower's `rope_type`, other words
for `head_dim` in unknown models, transformers' `layer_types` in another program's file). The others cannot: a
value that is wrong in itself, two places that differ, a label of a layer, a feature that this version
lacks. There the text must change.

The keys that are known to change nothing stand in one table, `kHarmless` of `unread.cc`.
`dual_chunk_attention_config` is read as transformers reads it, not at all, and is a note of the model
(`rope_model_note`): other programs give tokens beyond one chunk other positions.

## Other programs' configurations

`rope_model_create` reads four more kinds of text, known by keys that transformers' have not. The first
note of such a model (`rope_model_note`; `librope inspect` prints it) says which it was; every key that
speaks of RoPE is used or refused here, too. `model_dialects_test` compares the rotation with that of
the programs themselves.

| text | known by | pairs | keys |
|---|---|---|---|
| Meta's `params.json` (Llama 1 to 4) | `dim`, `n_layers`, `n_heads`, and `multiple_of` or `ffn_dim_multiplier`; no `model_type` | neighbours | `rope_theta` (10000 if `vocab_size` is -1), `use_scaled_rope`, `rope_scaling_factor`, `rope_high_freq_factor`, `nope_layer_interval` |
| Mistral's `params.json` | `dim`, `n_layers`, `n_heads`, `hidden_dim` | neighbours | `rope_theta` (required), `yarn`, `qk_rope_head_dim`, `qk_nope_head_dim`, `vision_encoder` |
| Megatron-LM's arguments | `tensor_model_parallel_size` or `rotary_base` | `rotary_interleaved` | `position_embedding_type`, `rotary_base`, `rotary_percent`, `rotary_seq_len_interpolation_factor`, `use_rope_scaling`, `rope_scaling_factor`, `no_rope_freq`, `mrope_section`, `multi_latent_attention` with `rope_type`, `rotary_scaling_factor`, `mscale` .., `apply_rope_fusion` (decides the rounding of "rope") |
| MaxText's configuration | `base_emb_dim`, `base_num_decoder_layers` or a `.._timescale` | `rope_type`, `rope_interleave` | `model_name` (required: MaxText chooses by it), `rope_type`, `rope_max_timescale`, `rope_min_timescale`, `local_rope_max_timescale`, `rope_linear_scaling_factor`, `rope_use_scale`, those of YaRN, `attention_type`, `decoder_block`, `nope_layer_interval`, `inhomogeneous_layer_cycle_interval` |

- The pairs are those of the program's own weights: q and k of Meta's and Mistral's files are permuted in
  the files of transformers, whose `config.json` says halves.
- Megatron's arguments are those of a checkpoint (`torch.load(..)["args"]`), complete with their defaults:
  `json.dump(vars(args), file, default=str)`. MaxText's are `base.yml` with a model's file over it; what
  is missing is MaxText's default.
- Megatron's parser has no argument for the original length and the betas of latent attention. Without them they
  are 4096, 32 and 1, as its class has them; before megatron-core 0.14 the length was `max_position_embeddings`, and
  so the file must say it where that is another.
- `decoder_block` tells which layers of MaxText turn: none of `gpt3`, two in each of `gemma2`, the last of every
  `inhomogeneous_layer_cycle_interval` of `qwen3_next` and `qwen3_5`. Blocks that this version does not read are
  refused (Gemma 4, DeepSeek-V4), and so is `use_mrope`.
- `head_dim` in Meta's file and in the tower of Mistral's must be the quotient that their code takes instead.
- MaxText's angles are `ROPE_ANGLE_DIVIDE`, but with YaRN: [precision](guides/precision.md) says what XLA
  makes of them.
- Llama 3.2 1B and 3B: Meta's code scales by 8, the `config.json` of the same weights by 32. Their
  `params.json` is refused unless it gives `rope_scaling_factor`. Llama 4's code has other numbers than
  Llama 3's: where `moe_args` and `nope_layer_interval` are there and null, the file must say them.
- Voxtral's `whisper_model_args` are of its audio tower: not used, and a note of the model.
- What none of these programs has is refused: `layer_types` in all of them, two vision encoders of Mistral, a
  factor of Meta's without `use_scaled_rope` or where that is false, hybrid patterns of Megatron
  (`hybrid_override_pattern`, `is_hybrid_model`, `experimental_attention_variant`), keys of RoPE that are null in MaxText's.
- DeepSeek's inference code scales by defaults that its `config_671B.json` does not name: texts with
  `moe_inter_dim` and no `model_type` are refused.
- mlx's repositories have transformers' text with `quantization` beside it, which is no key of RoPE. The
  `config.json` beside GGUF files is transformers' or next to empty: read the GGUF file.

## What is not covered

- Parts beside the language model, for which `rope_model_layer_type_name` has no name: text
  encoders, decoders of speech and codecs of multi-part models, and audio towers. The test skips
  them by rule; an engine gives such a part's own configuration to `rope_model_create`, or fills
  in a `rope_config`. Of models that are built on another one (`vlm_config` of ColPali, ColQwen2,
  ColModernVBert and pi0) that one is read, and the action expert of pi0 (`dit_config`) is such a part.
)";

inline void WriteDocument(const Table& table, const std::vector<std::string>& out_of_reach,
                          const std::string& versions, std::ostream& out) {
  out << kIntroduction << "## " << table.families() << " model types, verified against " << versions
      << "\n\n";
  std::stringstream summary;
  table.Summary(summary);
  for (std::string line; std::getline(summary, line);) out << "- " << line << "\n";
  out << "\n";
  table.WriteRows(out);
  out << kTowers << kLayerKeys << kRefused
      << "\n## Where librope differs\n\nOn purpose, each for the reason given. The list is strict: "
         "the "
         "test fails if one of these no longer\ndiffers.\n\n| case | what differs | why "
         "|\n|---|---|---|\n";
  std::string previous;
  for (const Deviation& deviation : Deviations()) {
    out << "| " << (deviation.test == previous ? "" : deviation.test) << " | " << deviation.kind
        << (deviation.rope.empty() || deviation.rope == "text" ? "" : " of " + deviation.rope)
        << " | " << deviation.reason << " |\n";
    previous = deviation.test;
  }
  out << kAfterDeviations << "\n  Skipped:\n";
  std::map<std::string, std::set<std::string>> parts;
  for (const std::string& entry : out_of_reach) {
    const size_t colon = entry.find(": ");
    parts[entry.substr(colon + 2)].insert(entry.substr(0, colon));
  }
  for (const auto& [part, models] : parts) out << "  - " << part << ": " << Join(models) << "\n";
  out << R"(- Models whose code transformers does not have and for which no class of it stands:
  Qwen 1, ChatGLM, `phi-msft`, OLMo 1 in its own program's words (`hf_olmo`), and Phi-4-mini-flash, which
  has no RoPE. The table of families has them from reading their remote code, and so Qwen 1's dynamic NTK (`ROPE_SCALING_DYNAMIC_STEPS`) and the rounding of MiniCPM and Baichuan 2.
  Baichuan 1 and 2 share their `model_type` and all keys of RoPE; `vocab_size` (64000 and 125696)
  tells which code it is: 1 rounds as Llama, 2 computes in f32.
- Configurations that leave the number of layers to the class: their kinds are read, and
  `rope_model_layer_type` refuses every layer. The test gives these texts the number.
- What `tests/oracle/README.md` lists as skipped: models without usable defaults, learned or
  64-bit angles (LightGlue, MusicFlamingo), a rotation of head 0 alone. What LightGlue and FoPE turn by is
  compared in `general_angle_test` and `row_heads_test`.
- Tensors that only a checkpoint has: the scale of frequencies of Mistral Large 4
  (`freq_factors`), frequencies that were rounded when a model was saved in 16 bits
  (`inv_freq_dtype`).
)";
}

}  // namespace rope::testing

#endif  // LIBROPE_TESTS_MODEL_ORACLE_DOCUMENT_H_
