#include "model/rope_dictionary.h"

#include <algorithm>
#include <string>

#include "base/limits.h"
#include "model/layers.h"
#include "model/scaling.h"
#include "model/typo.h"
#include "model/unread.h"

namespace rope::model {
namespace {

[[noreturn]] void RejectDifference(const Dict& legacy, const Dict& current, std::string_view key) {
  Reject(ROPE_ERROR_UNSUPPORTED,
         "%s and %s must say the same, and differ in \"%s\": remove the one that does not count",
         legacy.Name().c_str(), current.Name().c_str(), Printable(key).c_str());
}

// Files for two generations of transformers carry both dictionaries, and programs differ in which
// of them they read. rope_parameters may have what stands beside rope_scaling.
void CheckBothDictionaries(const Dict& legacy, const Dict& current) {
  const auto differ = [&](std::string_view key) { RejectDifference(legacy, current, key); };
  for (const auto& [key, value] : legacy.members()) {
    const Value* other = current.Peek(key);
    if (other == nullptr && key == "type") other = current.Peek("rope_type");
    if (value.IsNull() || (other != nullptr && Same(value, *other))) continue;
    const bool of_type = key == "type" || key == "rope_type";
    if (!of_type || other == nullptr || !NameTheSameScaling(value, *other)) differ(key);
  }
  for (const auto& [key, value] : current.members()) {
    const bool stood_beside = key == "rope_theta" || key == "partial_rotary_factor";
    const bool is_type = key == "rope_type" && legacy.Mentions("type");
    if (!value.IsNull() && !stood_beside && !is_type && !legacy.Mentions(key)) differ(key);
  }
}

// Whether programs that read rope_scaling, which does not have `key`, come to the same value. What
// stands beside the dictionaries is compared where it is read.
bool FollowsWithout(const Dict& text, const Family* family, std::string_view key,
                    const Value& value) {
  if (family == nullptr) return text.Peek(key) != nullptr;
  const bool theta = key == "rope_theta";
  const char* const rotary_dim = family->reads_rotary_dim ? "rotary_dim" : nullptr;
  for (const char* word : {theta ? family->theta_key : family->share_key,
                           theta ? family->older_theta_key : rotary_dim}) {
    if (word != nullptr && text.Peek(word) != nullptr) return true;
  }
  return Same(value, Value{theta ? family->theta : family->partial});
}

// Numbers that rope_parameters alone has.
void CheckStoodBeside(const Dict& text, const Family* family, const Dict& legacy,
                      const Dict& current) {
  for (const char* key : {"rope_theta", "partial_rotary_factor"}) {
    const Value* alone = current.Peek(key);
    if (alone == nullptr || legacy.Peek(key) != nullptr) continue;
    if (!FollowsWithout(text, family, key, *alone)) RejectDifference(legacy, current, key);
  }
}

// A dictionary of kinds of layers which are all null: it has no kind with RoPE, and is none of one
// kind either.
void RejectNullKinds(const Dict& dict) {
  if (IsNested(dict)) return;
  for (const auto& [key, value] : dict.members()) {
    const bool is_kind = EndsWith(key, "_attention") || key == kMain || key == kCompress;
    if (!is_kind || !value.IsNull()) continue;
    Reject(ROPE_ERROR_UNSUPPORTED,
           "%s (null) must be a dictionary, or stand beside that of another kind of layer: "
           "programs differ in whether layers of no kind rotate",
           dict.Path(key).c_str());
  }
}

// Old and new files merged by hand: a dictionary in the dictionary, which would pass for a kind of
// layer.
void RejectDictionaryInside(const Dict& dict) {
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    const Value* inside = dict.Peek(key);
    if (inside == nullptr || inside->As<Value::Object>() == nullptr) continue;
    Reject(ROPE_ERROR_UNSUPPORTED,
           "%s (%s) must not stand inside a rope dictionary, where it is not read: its keys belong "
           "into %s itself",
           dict.Path(key).c_str(), Show(*inside).c_str(), dict.Name().c_str());
  }
}

}  // namespace

Dict RopeDictionaryOf(const Dict& text, const Family* family) {
  const Dictionaries read = family != nullptr ? family->dictionaries : Dictionaries::kBoth;
  const bool older = read == Dictionaries::kBoth, newer = read != Dictionaries::kNone;
  const Dict legacy = older ? text.Child("rope_scaling") : Dict();
  const Dict current = newer ? text.Child("rope_parameters") : Dict();
  for (const Dict& dict : {legacy, current}) {
    RejectNullKinds(dict);
    RejectDictionaryInside(dict);
  }
  if (legacy.empty()) return current;
  if (current.empty()) return legacy;
  CheckBothDictionaries(legacy, current);
  CheckStoodBeside(text, family, legacy, current);
  return current;
}

bool IsNested(const Dict& dict) {
  return std::any_of(dict.members().begin(), dict.members().end(), [](const auto& member) {
    return member.second.template As<Value::Object>() != nullptr && !IsRopeKey(member.first);
  });
}

bool IsBareDictionary(const Dict& root) {
  for (const char* key : {"model_type",      "architectures",     "hidden_size",
                          "n_embd",          "d_model",           "num_attention_heads",
                          "n_head",          "num_hidden_layers", "dim",
                          "n_heads",         "n_layers",          "vocab_size",
                          "rope_scaling",    "rope_parameters",   "text_config",
                          "vision_config",   "thinker_config",    "llm_config",
                          "language_config", "vlm_config"}) {
    if (root.Mentions(key)) return false;
  }
  for (const char* key :
       {"rope_type", "type", "rope_theta", "factor", "mrope_section", "partial_rotary_factor"}) {
    if (root.Peek(key) != nullptr) return true;
  }
  return IsNested(root);
}

void AddBareDictionary(const Dict& root, ParsedModel* out) {
  out->bare = true;
  const auto add = [out](std::string_view name, const Dict& dict) {
    LayerType type;
    type.name = name;
    RopeKeys keys;
    keys.dict = dict;
    keys.default_theta = 0;
    keys.latent = true;  // what mscale_all_dim means is left to the caller, like the head
    const auto head_dim = dict.Integer("head_dim", 2, kMaxHeadDim);
    type.config.head_dim = static_cast<int32_t>(head_dim.value_or(0));
    FillRope(keys, &type);
    RejectUnreadOfRope(dict, false);
    out->types.push_back(std::move(type));
  };
  if (!IsNested(root)) {
    RejectNullKinds(root);
    add(kFull, root);
    return;
  }
  RejectTypos(root);
  RejectUnreadOfRope(root, true);
  for (const auto& [name, value] : root.members()) {
    if (value.As<Value::Object>() != nullptr) add(name, Dict(value, root.Path(name)));
    if (!value.IsNull()) continue;
    LayerType nope;
    nope.name = name;
    nope.config.scaling = ROPE_SCALING_NOPE;
    out->types.push_back(std::move(nope));
  }
}

}  // namespace rope::model
