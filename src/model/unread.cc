#include "model/unread.h"

#include <algorithm>
#include <string>

#include "model/families.h"
#include "model/typo.h"

namespace rope::model {
namespace {

// A value that changes nothing.
struct Harmless {
  std::string_view key;
  double value;  // of a flag: 0 or 1
};

constexpr double kAny = -1;  // whatever the value

constexpr Harmless kHarmless[] = {
    // Numbers that leave everything as it is.
    {"attention_factor", 1},
    {"attn_factor", 1},
    {"beta_fast", 32},
    {"beta_slow", 1},
    {"compression_ratio", 1},
    {"extrapolation_factor", 1},
    {"factor", 1},
    {"mscale", 1},
    {"mscale_all_dim", 0},
    {"mscale_all_dim", 1},
    {"rope_position_scale", 1},
    {"rope_ratio", 1},
    {"rope_scaling_factor", 1},
    {"rotary_emb_fraction", 1},
    {"rotary_emb_scale_base", 0},
    {"rotary_scaling_factor", 0},
    {"rotary_scaling_factor", 1},
    // Features that are off.
    {"alibi", 0},
    {"mla_use_nope", 0},
    {"mrope_interleaved", 0},
    {"no_rope", 0},
    {"nope_on_global_attention", 0},
    {"rotary_value", 0},  // RoFormer: only q and k rotate
    {"use_alibi", 0},
    {"use_dynamic_ntk", 0},
    {"use_mla_nope", 0},
    {"use_mrope", 0},
    // RoPE that is on.
    {"apply_yarn_scaling", 1},
    {"attn_use_rope", 1},
    {"lightning_use_rope", 1},
    {"linear_rope", 1},
    {"original_rope", 1},  // ChatGLM
    {"rope", 1},
    {"rope_3d", 1},  // ERNIE 4.5 VL
    {"rotary", 1},   // GPT-J
    {"use_rope", 1},
    {"use_rotary", 1},
    {"use_rotary_embedding", 1},
    {"use_rotary_embeddings", 1},
    {"use_rotary_pos_emb", 1},  // HunYuan
    // Which kernel runs, how large its cache is, in which precision it works.
    {"apply_rope_fusion", kAny},
    {"cache_rope_tensor", kAny},
    {"fuse_rope", kAny},
    {"fused_single_qkv_rope", kAny},
    {"k_rope_only_layernorm", kAny},
    {"no_rope_fusion", kAny},
    {"rope_full_precision", kAny},
    {"rope_max_length", kAny},
    {"rope_use_fp32_in_outer_product", kAny},
    {"use_fused_rope", kAny},
    // Notes about the training, and what the attention does beside the rotation (rope.h says so).
    {"alibi_bias_max", kAny},
    {"finetuned", kAny},
    {"llama_4_scaling_beta", kAny},
    {"memory_attention_rope_dropout", kAny},     // SAM 2: of the attention
    {"memory_attention_rope_feat_sizes", kAny},  // the ids of a picture, not their angles
    {"memory_attention_rope_k_sizes", kAny},
    {"memory_attention_rope_q_sizes", kAny},
    {"sparse_indexer_use_rope", 1},
    // Of other kinds of scaling: a length that is no number of this one.
    {"max_position_embeddings", kAny},
    {"original_max_position_embeddings", kAny},
};

// position_embedding_type, position_encoding_type ..
bool SpeaksOfPositions(std::string_view key) {
  return EndsWith(key, "_type") && key.substr(0, 10) == "position_e";
}

bool HasNothing(const Value& value) {
  const auto* list = value.As<Value::Array>();
  const auto* object = value.As<Value::Object>();
  const auto* text = value.As<std::string>();
  return value.IsNull() || (list != nullptr && list->empty()) ||
         (object != nullptr && object->empty()) || (text != nullptr && text->empty());
}

bool IsHarmless(std::string_view key, const Value& value) {
  if (HasNothing(value)) return true;
  if (const auto* kind = value.As<std::string>()) {
    // "rope", "rotary", and with the pairing that FillHead has checked "rope_gptj"; "absolute" is
    // what the base class of many encoders writes into every file, also where they rotate.
    const bool rope = kind->rfind("rope", 0) == 0 || kind->rfind("rotary", 0) == 0;
    return SpeaksOfPositions(key) && (rope || *kind == "absolute");
  }
  const auto* flag = value.As<bool>();
  const Value number = flag != nullptr ? Value{*flag ? 1.0 : 0.0} : value;
  return std::any_of(std::begin(kHarmless), std::end(kHarmless), [&](const Harmless& harmless) {
    return harmless.key == key && (harmless.value == kAny || Same(number, Value{harmless.value}));
  });
}

[[noreturn]] void RejectKey(const Dict& dict, std::string_view key, const Value& value) {
  const std::string_view nearest = NearestKey(key);
  Reject(
      ROPE_ERROR_UNSUPPORTED,
      "%s (%s) may change the rotation and was not used, as this kind of model does not read it or "
      "another key says something else%s%s: remove it if it has no effect",
      dict.Path(key).c_str(), Show(value).c_str(), nearest.empty() ? "" : "; the nearest key is ",
      std::string(nearest).c_str());
}

bool IsWordOfRope(std::string_view word) {
  const bool europe = word == "europe";
  if (word.substr(0, 4) == "rope" || (EndsWith(word, "rope") && !europe)) return true;
  for (std::string_view known : {"alibi", "nope", "ntk", "rotary", "theta", "thetas", "yarn"}) {
    if (word == known) return true;
  }
  return false;
}

}  // namespace

bool SpeaksOfRope(std::string_view key) {
  if (key == "compression_ratio") return true;  // ERNIE 4.5 divides positions by it
  std::string word;
  for (const char c : key) {
    const bool upper = c >= 'A' && c <= 'Z';
    const bool between = c == '_' || c == '-' || c == '.';
    if ((upper || between) && IsWordOfRope(word)) return true;
    if (upper || between) word.clear();
    if (!between) word += upper ? static_cast<char>(c - 'A' + 'a') : c;
  }
  return IsWordOfRope(word) || SpeaksOfPositions(key);
}

void RejectUnread(const Dict& dict, const Dict& elsewhere) {
  for (const auto& [key, value] : dict.members()) {
    if (value.read || !SpeaksOfRope(key) || IsHarmless(key, value)) continue;
    const Value* other = elsewhere.Peek(key);
    if (other == nullptr || !Same(value, *other)) RejectKey(dict, key, value);
  }
}

void RejectUnreadOfRope(const Dict& dict) {
  for (const auto& [key, value] : dict.members()) {
    const bool of_one_kind = value.As<Value::Object>() != nullptr;  // has its own turn
    if (!value.read && !of_one_kind && !IsHarmless(key, value)) RejectKey(dict, key, value);
  }
}

}  // namespace rope::model
