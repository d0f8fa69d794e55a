#include "model/unread.h"

#include <algorithm>
#include <string>

#include "model/accept.h"
#include "model/families.h"
#include "model/scaling.h"
#include "model/typo.h"

namespace rope::model {
namespace {

// A value that changes nothing.
struct Harmless {
  std::string_view key;
  double value;           // of a flag: 0 or 1
  bool switches = false;  // the other value means that q and k do not turn
};

constexpr double kAny = -1;  // whatever the value

constexpr Harmless kHarmless[] = {
    // Numbers that leave everything as it is.
    {"alpha", 1},
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
    {"position_scale", 1},
    {"rope_position_scale", 1},
    {"rope_ratio", 1},
    {"rope_scale", 1},
    {"rope_scaling_factor", 1},
    {"rot_pct", 1},
    {"rotary_emb_fraction", 1},
    {"rotary_emb_scale_base", 0},
    {"rotary_scaling_factor", 0},
    {"rotary_scaling_factor", 1},
    {"scaling_factor", 1},
    {"truncate", 1},
    // Features that are off.
    {"alibi", 0},
    {"mla_use_nope", 0},
    {"mrope_interleaved", 0},
    {"no_pos_emb", 0, true},
    {"no_rope", 0, true},
    {"nope_on_global_attention", 0},
    {"position_embedding_xdrope", 0},
    {"position_interpolation", 0},
    {"rope_rotate_half_dims", 0},
    {"rotary_value", 0},  // RoFormer: only q and k rotate
    {"use_alibi", 0},
    {"use_dynamic_ntk", 0},
    {"use_long_context", 0},
    {"use_mla_nope", 0},
    {"use_mrope", 0},
    // RoPE that is on.
    {"apply_yarn_scaling", 1},
    {"attn_use_rope", 1, true},
    {"lightning_use_rope", 1, true},
    {"linear_rope", 1},
    {"original_rope", 1},  // ChatGLM
    {"rope", 1, true},
    {"rot_emb", 1, true},
    {"rotary", 1, true},  // GPT-J
    {"use_pos_emb", 1, true},
    {"use_rope", 1, true},
    {"use_rotary", 1, true},
    {"use_rotary_embedding", 1, true},
    {"use_rotary_embeddings", 1, true},
    {"use_rotary_pos_emb", 1, true},  // HunYuan
    // Which kernel runs, how large its cache is, in which precision it works.
    {"apply_rope_fusion", kAny},
    {"cache_rope_tensor", kAny},
    {"flash_rotary", kAny},
    {"fuse_rope", kAny},
    {"fused_single_qkv_rope", kAny},
    {"k_rope_only_layernorm", kAny},
    {"no_rope_fusion", kAny},
    {"rope_full_precision", kAny},
    {"rope_max_length", kAny},
    {"rope_use_fp32_in_outer_product", kAny},
    {"use_fused_rope", kAny},
    // Notes about the training, and what the attention does beside the rotation (model.h says so).
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

// The same, and words of other programs for it: pos_emb, positional_encoding, pe_type .. They count
// where a name or a dictionary is said; files have sizes and flags in keys that sound alike.
bool NamesPositions(std::string_view key, const Value& value) {
  if (SpeaksOfPositions(key)) return true;
  if (value.As<std::string>() == nullptr && value.As<Value::Object>() == nullptr) return false;
  for (std::string_view ending : {"_type", "_kind", "_mode", "_style"}) {
    if (!EndsWith(key, ending)) continue;
    key.remove_suffix(ending.size());
    if (key == "pos" || key == "position") return true;
  }
  if (key == "pe" || key == "posemb" || key == "posenc") return true;
  for (std::string_view thing : {"_emb", "_embd", "_embed", "_embedding", "_embeddings", "_enc",
                                 "_encoding", "_encodings"}) {
    if (!EndsWith(key, thing)) continue;
    const std::string_view rest = key.substr(0, key.size() - thing.size());
    if (rest == "pos" || rest == "position" || rest == "positional") return true;
  }
  return false;
}

bool HasNothing(const Value& value) {
  const auto* list = value.As<Value::Array>();
  const auto* object = value.As<Value::Object>();
  const auto* text = value.As<std::string>();
  return value.IsNull() || (list != nullptr && list->empty()) ||
         (object != nullptr && object->empty()) || (text != nullptr && text->empty());
}

// A rope dictionary that a class does not read, and that says nothing but what goes without saying.
bool SaysDefault(const Value::Object& dict) {
  return std::all_of(dict.begin(), dict.end(), [](const auto& member) {
    const bool of_type = member.first == "rope_type" || member.first == "type";
    return of_type && NameTheSameScaling(member.second, Value{std::string("default")});
  });
}

bool IsHarmless(std::string_view key, const Value& value) {
  if (HasNothing(value)) return true;
  if (key == "rope_scaling" || key == "rope_parameters") {
    const auto* dict = value.As<Value::Object>();
    return dict != nullptr && SaysDefault(*dict);
  }
  if (const auto* kind = value.As<std::string>()) {
    if (key == "rope_pos_id_version") return *kind == "default";  // InternVL: ids as elsewhere
    if (key == "pos_emb_type") return *kind == "divided_fixed";   // Kimi: added to patches
    const std::string name = Letters(*kind);
    const bool rope = name == "rope" || name == "rotary" || name == "rotaryembedding";
    // With the pairing that FillHead has checked.
    const bool with_pairing = *kind == "rope_gptj" || *kind == "rope_gpt_neox";
    return NamesPositions(key, value) && (rope || with_pairing);
  }
  const auto* flag = value.As<bool>();
  const Value number = flag != nullptr ? Value{*flag ? 1.0 : 0.0} : value;
  return std::any_of(std::begin(kHarmless), std::end(kHarmless), [&](const Harmless& harmless) {
    return harmless.key == key && (harmless.value == kAny || Same(number, Value{harmless.value}));
  });
}

// A key of a dictionary inside `dict`.
const Value* PeekInside(const Dict& dict, const char* dictionary, std::string_view key) {
  const Value* inside = dict.Peek(dictionary);
  const auto* members = inside != nullptr ? inside->As<Value::Object>() : nullptr;
  if (members == nullptr) return nullptr;
  const auto member = members->find(key);
  return member != members->end() ? &member->second : nullptr;
}

// Whether a flag has the value that its entry of the table does not have.
bool SwitchesOff(std::string_view key, const Value& value) {
  const auto* flag = value.As<bool>();
  return flag != nullptr &&
         std::any_of(std::begin(kHarmless), std::end(kHarmless), [&](const Harmless& harmless) {
           return harmless.switches && harmless.key == key && harmless.value != (*flag ? 1 : 0);
         });
}

void RejectKey(const Dict& dict, std::string_view key, const Value& value) {
  if (IsSpared(value)) return;
  if (SwitchesOff(key, value)) {
    Reject(
        ROPE_ERROR_UNSUPPORTED,
        "%s (%s) is not read by this kind of model, and may say that q and k do not turn: if so, "
        "replace it by \"nope\" for every layer in layer_types, or set ROPE_SCALING_NOPE in a "
        "configuration by hand; else %s",
        dict.Path(key).c_str(), Show(value).c_str(), kAcceptIt);
  }
  const std::string_view nearest = NearestKey(key);
  Reject(
      ROPE_ERROR_UNSUPPORTED,
      "%s (%s) may change the rotation and was not used, as this kind of model does not read it or "
      "another key says something else%s%s: %s",
      dict.Path(key).c_str(), Show(value).c_str(), nearest.empty() ? "" : "; the nearest key is ",
      std::string(nearest).c_str(), kAcceptIt);
}

// The entries of per_layer_config, whose keys are those of a configuration.
void RejectUnreadOfLayers(const Dict& dict, const Value& entries) {
  const auto* layers = entries.As<Value::Object>();
  if (layers == nullptr) return;
  const std::string path = dict.Path("per_layer_config") + ".";
  for (const auto& [layer, entry] : *layers) {
    if (entry.As<Value::Object>() != nullptr) RejectUnread(Dict(entry, path + Printable(layer)));
  }
}

// Dictionaries in a list are those of layers, or of other parts, and dictionaries inside them of
// their attention: what repeats the configuration's own key is harmless.
void RejectUnreadOfList(const Dict& dict, std::string_view key, const Value& value) {
  const auto* list = value.As<Value::Array>();
  for (size_t i = 0; list != nullptr && i < list->size(); ++i) {
    if ((*list)[i].As<Value::Object>() == nullptr) continue;
    const Dict entry((*list)[i], dict.Path(key) + "[" + std::to_string(i) + "]");
    RejectUnread(entry, dict);
    for (const auto& [name, inside] : entry.members()) {
      if (inside.As<Value::Object>() != nullptr) RejectUnread(Dict(inside, entry.Path(name)), dict);
    }
  }
}

// mrope, rope2, rotarypct, thetas ..
bool IsWordOfRope(std::string_view word) {
  while (!word.empty() && word.back() >= '0' && word.back() <= '9') word.remove_suffix(1);
  if (word == "europe") return false;
  for (std::string_view beginning : {"rope", "rotary", "ntk", "yarn"}) {
    if (word.substr(0, beginning.size()) == beginning) return true;
  }
  if (EndsWith(word, "rope")) return true;
  for (std::string_view known :
       {"alibi", "fope", "nope", "nopos", "rotemb", "theta", "thetas", "xpos"}) {
    if (word == known) return true;
  }
  return false;
}

// Keys of a rope dictionary, and what other programs call them, that mean so many other things that
// they count in the language model's own configuration alone, as numbers and flags.
bool IsFlattened(std::string_view key, const Value& value) {
  if (value.As<int64_t>() == nullptr && value.As<double>() == nullptr &&
      value.As<bool>() == nullptr) {
    return false;
  }
  for (std::string_view known :
       {"alpha", "base", "factor", "scaling_factor", "timescale", "truncate"}) {
    if (key == known) return true;
  }
  return false;
}

// Numbers of RoPE that are called by no word of it, however they are spelt: inv_freq, freqBase ..
bool NamesNumbersOfRope(std::string_view key) {
  constexpr size_t kLongest = 64;  // of a key that somebody has typed
  if (key.size() > kLongest) return false;
  const std::string letters = Letters(key);
  for (std::string_view known :
       {"attentionfactor", "attnfactor", "axesdim", "basefreq", "betafast", "betaslow", "freqbase",
        "freqfactor", "freqsbase", "frequencybase", "invfreq", "longfactor", "maxtimescale",
        "maxwavelength", "mintimescale", "positioninterpolation", "positionscale", "shortfactor"}) {
    if (letters.find(known) != std::string::npos) return true;
  }
  for (std::string_view known : {"longmscale", "mscale", "mscalealldim", "nopelayers", "noposemb",
                                 "shortmscale", "useposemb"}) {
    if (letters == known) return true;
  }
  return false;
}

// rot_dim, qk_rot_dim: words of keys, while tensors of old files are called rot_embd, too.
bool SaysRot(std::string_view key) {
  if (key.substr(0, 4) == "rot_" || EndsWith(key, "_rot")) return true;
  return key.find("_rot_") != std::string_view::npos;
}

// Words end at separators, and where `humps` also at capitals: ropeTheta, NTKAlpha, but useRoPE.
bool HasWordOfRope(std::string_view key, bool humps) {
  const auto is_upper = [](char c) { return c >= 'A' && c <= 'Z'; };
  const auto is_lower = [](char c) { return c >= 'a' && c <= 'z'; };
  std::string word;
  for (size_t i = 0; i < key.size(); ++i) {
    const char c = key[i];
    const bool between = c == '_' || c == '-' || c == '.';
    const bool hump = is_upper(c) && i != 0 &&
                      (is_lower(key[i - 1]) || (i + 1 < key.size() && is_lower(key[i + 1])));
    if (between || (humps && hump)) {
      if (IsWordOfRope(word)) return true;
      word.clear();
    }
    if (!between) word += is_upper(c) ? static_cast<char>(c - 'A' + 'a') : c;
  }
  return IsWordOfRope(word);
}

}  // namespace

bool SpeaksOfRope(std::string_view key) {
  if (key == "compression_ratio") return true;  // ERNIE 4.5 divides positions by it
  if (key == "use_long_context") return true;   // Zamba 2's own code raises theta, others do not
  return HasWordOfRope(key, true) || HasWordOfRope(key, false) || SpeaksOfPositions(key) ||
         NamesNumbersOfRope(key);
}

bool TellsOfRope(std::string_view key, const Value& value) {
  const auto* kind = SpeaksOfPositions(key) ? value.As<std::string>() : nullptr;
  return kind != nullptr ? HasWordOfRope(*kind, false) : SpeaksOfRope(key);
}

void RejectNulls(const Dict& root, std::string_view except) {
  for (const auto& [key, value] : root.members()) {
    if (value.IsNull() && key != except && SpeaksOfRope(key)) root.RejectNull(key);
  }
}

void RejectUnread(const Dict& dict, const Dict& elsewhere) {
  for (const auto& [key, value] : dict.members()) {
    if (key == "per_layer_config") RejectUnreadOfLayers(dict, value);
    RejectUnreadOfList(dict, key, value);
    const bool speaks = SpeaksOfRope(key) || NamesPositions(key, value) || SaysRot(key) ||
                        (!elsewhere.exists() && IsFlattened(key, value));
    if (value.read || !speaks || IsHarmless(key, value)) continue;
    const Value* other = elsewhere.Peek(key);
    for (const char* dictionary : {"rope_parameters", "rope_scaling"}) {
      if (other == nullptr) other = PeekInside(elsewhere, dictionary, key);
    }
    if (other == nullptr || !Same(value, *other)) RejectKey(dict, key, value);
  }
}

void RejectUnreadOfAttention(const Dict& dict, const Dict& elsewhere) {
  for (const char* key :
       {"attention", "attention_config", "attn", "attn_config", "self_attention"}) {
    const Value* attention = dict.Peek(key);
    const bool is_dict = attention != nullptr && attention->As<Value::Object>() != nullptr;
    if (is_dict) RejectUnread(dict.Child(key), elsewhere);
  }
}

void RejectUnreadOfRope(const Dict& dict, bool has_kinds) {
  for (const auto& [key, value] : dict.members()) {
    const bool of_one_kind = has_kinds && value.As<Value::Object>() != nullptr;
    const bool used = value.read && value.As<Value::Object>() == nullptr;
    if (!used && !of_one_kind && !IsHarmless(key, value)) RejectKey(dict, key, value);
  }
}

void RejectRopeBesideNope(const Dict& text, const Dict& dict) {
  for (const char* key : {"rope_type", "type"}) {
    if (dict.String(key).value_or("default") != "default") RejectKey(dict, key, *dict.Find(key));
  }
  for (const auto& [key, value] : text.members()) {
    const auto* flag = value.As<bool>();
    const bool on = EndsWith(key, "use_rope") || key == "use_rope" || key == "rotary";
    const bool off = key == "mla_use_nope" || key == "use_mla_nope";
    if (flag != nullptr && ((on && *flag) || (off && !*flag))) RejectKey(text, key, value);
    const auto* kind = value.As<std::string>();
    if (kind == nullptr || !NamesPositions(key, value)) continue;
    const bool rope = HasWordOfRope(*kind, false) && *kind != "nope" && *kind != "alibi";
    if (rope) RejectKey(text, key, value);
  }
}

}  // namespace rope::model
