// What a model's code decides without saying so in config.json, as a table: which channels form a
// pair, where values are rounded, and the defaults of the configuration class. A model_type that
// the table does not know is read by its keys alone; its pairing stays 0, which
// rope_context_create refuses, because no key tells it.
//
// A theta of 0: the code has no default that is known, so the file must say it.
//
// Sources: the modelling and configuration files of transformers, one line per model_type that has
// RoPE, checked against the running classes by tests/model/model_oracle_test.cc; and the remote
// code of families that transformers does not have, or that of vLLM and SGLang. Where transformers
// disagrees with the trained model the table follows the model: MiniMax rotates rotary_dim
// channels.
#ifndef LIBROPE_SRC_MODEL_FAMILIES_H_
#define LIBROPE_SRC_MODEL_FAMILIES_H_

#include <cstdint>
#include <string_view>

#include "librope/rope.h"
#include "model/class_layers.h"
#include "model/class_ropes.h"
#include "model/condition.h"

namespace rope::model {

// Pairing and rounding of the apply function.
enum class Style : uint8_t {
  kHalves,              // in the dtype of x: most models
  kHalvesFloat32,       // cos and sin never rounded: OLMo, Qwen 1, MiniCPM, Baichuan 2
  kHalvesCosSin,        // f32 with rounded cos and sin: ESM, ModernBERT, HunYuan-VL, phi-msft
  kHalvesNegated,       // in the dtype of x, by the angle -theta: NanoChat
  kInterleaved,         // in the dtype of x: GPT-J, GLM-4, Helium
  kInterleavedFloat32,  // complex64, ERNIE, DeepSeek-V4
  kInterleavedCosSin,   // Cohere
  kInterleavedFloat64,  // in the dtype of x, but angles in f64: RoFormer
  kInterleavedToHalves  // DeepSeek-V3
};

// Which channels of a head rotate.
enum class Span : uint8_t {
  kWhole,     // of the class's own rule: all; under "proportional" head_dim * partial_rotary_factor
  kPartial,   // the first head_dim * partial_rotary_factor, or rotary_dim
  kMla,       // [qk_nope_head_dim | qk_rope_head_dim]; the key head_dim means something else there
  kTrailing,  // the last qk_rope_head_dim of head_dim
  kProjection  // the first max(projection_dim / (2 * num_attention_heads), 32): CLVP
};

// Where head_dim comes from if the key head_dim is absent, or in spite of it.
enum class HeadDim : uint8_t {
  kKey,         // head_dim, else the class default, else hidden_size / num_attention_heads
  kQuotient,    // always hidden_size / num_attention_heads
  kTwice,       // attention_head_dim, else 2 * hidden_size / num_attention_heads: Zamba 2
  kKvChannels,  // kv_channels
  kPerHead      // hidden_size_per_head: PLaMo 2
};

// How the kinds of RoPE of a model follow from its file.
enum class Kinds : uint8_t {
  kDictionaries,  // one for the dictionary, or for each inside it; two if the family has two_ropes
  kCompressed,    // "main" without scaling, "compress" with another theta: DeepSeek-V4
  kScaledLayers,  // "scaled" where rope_scaling_layers lists the layer, else "unscaled": Molmo 2
  kByLayer        // theta and share of the head listed by layer, scaled yarn_only_types: Step 3.5
};

// Which rope dictionaries a class reads: those of older files (rope_scaling), of newer ones
// (rope_parameters).
enum class Dictionaries : uint8_t { kBoth, kNewer, kNone };

// Which rope_types a class knows beside "default".
enum class Scalings : uint8_t { kAll, kLongrope, kNone };

// Several ids per token.
enum class Axes : uint8_t {
  kOne,          // but sections in the rope dictionary are honoured
  kChunked,      // t..t h..h w..w
  kInterleaved,  // thwthw..tt
  kErnie,        // hwhw..hwt..t; sections are listed h, w, t
  kBailing,      // the same; sections are listed t, h, w, in or around the language model
  kQuarters,     // half of the pairs t, a quarter h, a quarter w: Isaac
  kEvenly,       // each as evenly over the pairs as its number allows: openPangu-VL
  kAlternating   // two ids, pair by pair: NeoMME
};

// Another style, if the file says so.
struct OtherStyle {
  Condition when;
  Style style = Style::kHalves;
};

// Keys that only one family's code reads, beside those that all have.
enum class OwnKeys : uint8_t {
  kNone,
  kAlpha,           // alpha in the rope dictionary: HunYuan
  kNtk,             // rope_type "ntk": GTE
  kOriginalType,    // rope_type beside the dictionary, "original": Grok
  kDynamicNtk,      // use_dynamic_ntk, seq_length: Qwen 1
  kRotary,          // rotary, a dictionary of its own: InternLM 1
  kAttentionTheta,  // attn_config.rope_theta: DBRX
  kRopeRatio,       // rope_ratio, which multiplies theta: ChatGLM
  kRopeHeadDim,     // rope_head_dim, half of it in each half of a head: K2 Horizon
  kUseMla,          // use_mla: DeepSeek-V2, whose own code has both kinds of attention
  kCycles           // H_cycles, L_cycles: how often HRM goes through its layers
};

// The lightning indexer of sparse attention, whose heads have a rotation of their own.
enum class Indexer : uint8_t {
  kNone,
  kHalves,       // first channels, in halves
  kInterleaved,  // first channels, interleaved to halves
  kTrailing      // last channels, in the style of the family
};

// Keys that only models of another kind with the same model_type have.
struct NotOffered {
  const char* keys[4] = {};  // ends with nullptr
  const char* kind = nullptr;
};

struct Family {
  const char* model_type = nullptr;
  Style style = Style::kHalves;
  double theta = 10000;
  int head_dim = 0;  // class default, 0: hidden_size / num_attention_heads
  // The class's own words for hidden_size and num_attention_heads; nullptr: none.
  const char *hidden_key = nullptr, *heads_key = nullptr;
  Span span = Span::kWhole;
  double partial = 1;
  const LayerRule* layers = &kAllLayers;
  HeadDim head_rule = HeadDim::kKey;
  const TwoRopes* two_ropes = nullptr;
  Axes axes = Axes::kOne;
  int section[3] = {0, 0, 0};  // class default
  bool reads_rotary_dim = false;
  int rotary_dim = 0;  // class default
  int original = 0;    // class default of original_max_position_embeddings; 0: it has none
  int qk_nope_head_dim = 0, qk_rope_head_dim = 0;  // class defaults, of kMla
  const char* rope = nullptr;  // the class's rope dictionary if the text has none
  Dictionaries dictionaries = Dictionaries::kBoth;
  bool by_kind = false;  // the dictionary has one for each kind of layer, beside two_ropes
  Scalings scalings = Scalings::kAll;
  // What the class reads beside its rope dictionary; nullptr: nothing. What other classes read
  // there may repeat the value in use.
  const char* theta_key = "rope_theta";
  const char* older_theta_key = nullptr;  // of the code that the weights came with
  const char* share_key = "partial_rotary_factor";
  bool share_inside = true;  // the class reads partial_rotary_factor in its dictionary
  Kinds kinds = Kinds::kDictionaries;
  const char* stray_positions[2] = {};  // a position_embedding_type that the code does not read
  const char* main_name = nullptr;  // of the one kind; nullptr: full_attention or sliding_attention
  Condition lacks_rope;
  OtherStyle other;
  bool reads_interleave = false;  // of kInterleavedToHalves: "rope_interleave": false means halves
  OwnKeys own_keys = OwnKeys::kNone;
  Indexer indexer = Indexer::kNone;
  int layers_each = 1;            // attention layers in one of num_layers: LongCat has two
  bool yarn_is_longrope = false;  // Phi-3's code says yarn and means lists of factors
  double compress_theta = 0;      // class default of compress_rope_theta
  rope_dtype inv_freq_dtype = 0;  // in which checkpoints keep the frequencies: ESM's are f16
  NotOffered not_offered;
};

// The row of the table; nullptr if it has none.
const Family* FindRow(std::string_view model_type);

// The same for all names of a model. nullptr if unknown. One suffix of a nested configuration
// ("_text") is ignored.
const Family* FindFamily(std::string_view model_type);

// The model_type of the language model inside a model whose class has one for it; empty if it goes
// by what the language model calls itself.
std::string_view TextTypeOf(std::string_view outer_type);

// Whether a class has a word of this name, which looks like a misspelt one of RoPE.
bool IsOwnWord(std::string_view model_type, std::string_view key);

// The model_type whose RoPE a model has that is known without it, if its position_embedding_type is
// "rotary"; empty if there is none.
std::string_view RotaryVariant(std::string_view model_type);

// The model_type of a model with this architecture that calls itself by the name of another model;
// empty if it does not.
std::string_view RenamedType(std::string_view model_type, std::string_view architecture);

// Whether models of this type are known to have other position encodings, or none.
bool IsWithoutRope(std::string_view model_type);

// Why models of this type are not offered; nullptr if it is not known that they are not.
const char* WhyRefused(std::string_view model_type);

// Whether `suffix` is the end of `text`, and not all of it.
bool EndsWith(std::string_view text, std::string_view suffix);

// What stands around the language model's configuration, by the model_type of the whole.
struct OuterModel {
  std::string_view model_type;
  bool is_prefix;
  const char* text_key;    // of the language model, beside text_config and the like; nullptr: none
  const char* other_rope;  // a key of RoPE that is about another part of the model; nullptr: none
  // The family of its language model, which calls itself by the name of another; nullptr: it does
  // not.
  const char* text_type = nullptr;
  const char* inner_key = nullptr;  // of the language model inside text_key: Moondream 3
  // JSON: what its class gives the language model that does not say it, before the defaults of the
  // language model's own class.
  const char* text_defaults = nullptr;
};
const OuterModel& FindOuterModel(std::string_view model_type);

// Writes pairing, rounding and angle.
void SetStyle(Style style, rope_config* config);

}  // namespace rope::model

#endif  // LIBROPE_SRC_MODEL_FAMILIES_H_
