// What a model's code decides without saying so in config.json, as a table: which channels form a
// pair, where values are rounded, and the defaults of the configuration class. A model_type that
// the table does not know is read by its keys alone; its pairing stays 0, which
// rope_context_create refuses, because no key tells it.
//
// Sources: the modelling and configuration files of transformers, one line per model_type that has
// RoPE, checked against the running classes by tests/model_oracle_test.cc; and the remote code of
// families that transformers does not have. Where transformers disagrees with the trained model the
// table follows the model: MiniMax rotates rotary_dim channels.
#ifndef LIBROPE_SRC_MODEL_FAMILIES_H_
#define LIBROPE_SRC_MODEL_FAMILIES_H_

#include <cstdint>
#include <string_view>

#include "librope/rope.h"

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
  kInterleavedToHalves  // DeepSeek-V3; halves if the configuration says "rope_interleave": false
};

// Which channels of a head rotate.
enum class Span : uint8_t {
  kWhole,      // of the class's own rule: all. Scaled types honour partial_rotary_factor even there
  kPartial,    // the first head_dim * partial_rotary_factor, or rotary_dim
  kMla,        // [qk_nope_head_dim | qk_rope_head_dim]; the key head_dim means something else there
  kTrailing,   // the last qk_rope_head_dim of head_dim
  kProjection  // the first max(projection_dim / (2 * num_attention_heads), 32): CLVP
};

// Where head_dim comes from if the key head_dim is absent, or in spite of it.
enum class HeadDim : uint8_t {
  kKey,        // head_dim, else the class default, else hidden_size / num_attention_heads
  kQuotient,   // always hidden_size / num_attention_heads
  kTwice,      // attention_head_dim, else 2 * hidden_size / num_attention_heads: Zamba 2
  kKvChannels  // kv_channels
};

// Which layers have which kind of RoPE. "period" is the class default of the pattern.
enum class Layers : uint8_t {
  kUniform,        // the same RoPE wherever layer_types says attention
  kLastOfPeriod,   // layer_types, else full_attention where (i + 1) % period == 0
  kFirstOfPeriod,  // layer_types, else full_attention where i % period == 0
  kFirstAndLast,   // the same, and layer 0: MiMo
  kFirstTwo,       // layer_types, else full where i % period == 1, and layer 0: dots3-note
  kLastForced,     // as kLastOfPeriod, and the very last layer is full: Gemma 4
  kFullIsNope,     // as kLastOfPeriod, but full_attention layers have no RoPE
  kNoRopeLayers,   // no_rope_layers[i] (1: RoPE), else (i + 1) % period != 0
  kLinearHybrid,   // as kLastOfPeriod, but the other layers are not attention
  kFromLast,       // no RoPE where (layers - 1 - i) % period == 0, whatever layer_types says: Muse
  kCompressed,     // compress_ratios[i] != 0: "compress", else "main": DeepSeek-V4
  kNone            // no layer has RoPE
};

// The defaults of one of two kinds of RoPE in a model.
struct KindDefaults {
  const char* theta_key;  // nullptr: no key beside the dictionary, as in OLMo 3
  double theta;
  double partial = 1;
  const char* head_dim_key = nullptr;  // nullptr: head_dim
  int head_dim = 0;
  const char* nope_key = nullptr;  // replaces qk_nope_head_dim, with its default
  int nope = 0;
  const char* rope_key = nullptr;  // replaces qk_rope_head_dim
  double nested_partial = 0;       // not 0: instead of `partial` in a dictionary of the file
};

// To which kinds a rope dictionary applies that does not tell them apart.
enum class Flat : uint8_t { kFull, kBoth, kNeither };

// Two kinds of RoPE, for full_attention and for sliding_attention.
struct TwoRopes {
  KindDefaults full, sliding;
  Flat flat;
  bool proportional = false;  // the default rope_type of full_attention
  const char* full_name = "full_attention";
  const char* sliding_name = "sliding_attention";
};

// Several ids per token.
enum class Axes : uint8_t {
  kOne,          // but sections in the rope dictionary are honoured
  kChunked,      // t..t h..h w..w
  kInterleaved,  // thwthw..tt
  kErnie,        // hwhw..hwt..t; sections are listed h, w, t
  kAlternating   // two ids, pair by pair: NeoMME
};

struct Family {
  const char* model_type;
  Style style;
  double theta = 10000;
  int head_dim = 0;  // class default, 0: hidden_size / num_attention_heads
  Span span = Span::kWhole;
  double partial = 1;
  Layers layers = Layers::kUniform;
  int period = 0;
  HeadDim head_rule = HeadDim::kKey;
  const TwoRopes* two_ropes = nullptr;
  Axes axes = Axes::kOne;
  int section[3] = {0, 0, 0};                      // class default
  int rotary_dim = 0;                              // class default
  int original = 0;    // class default of original_max_position_embeddings; 0: it has none
  int qk_nope_head_dim = 0, qk_rope_head_dim = 0;  // class defaults, of kMla
  const char* rope = nullptr;  // the class's rope dictionary if the text has none
};

// nullptr if unknown. One suffix of a nested configuration ("_text") is ignored.
const Family* FindFamily(std::string_view model_type);

// Whether models of this type are known to have other position encodings, or none.
bool IsWithoutRope(std::string_view model_type);

// Whether `suffix` is the end of `text`, and not all of it.
bool EndsWith(std::string_view text, std::string_view suffix);

// Writes pairing, rounding and angle.
void SetStyle(Style style, rope_config* config);

}  // namespace rope::model

#endif  // LIBROPE_SRC_MODEL_FAMILIES_H_
