#include "model/locate.h"

#include <algorithm>
#include <string>
#include <vector>

#include "model/class_sizes.h"
#include "model/families.h"
#include "model/layer_keys.h"
#include "model/unread.h"

namespace rope::model {
namespace {

// A size that the text says in another family's word is said. So is the number of layers by a list
// of the class that has an entry for each.
void AddClassSizes(const Dict& text, const ClassSizes& sizes, const Family* family,
                   Value::Object* unsaid) {
  const auto add = [&](int size, const std::vector<const char*>& names) {
    const auto said = [&text](const char* name) { return text.Mentions(name); };
    if (std::none_of(names.begin(), names.end(), said)) {
      unsaid->emplace(names.front(), Value{int64_t{size}});  // unless it is there
    }
  };
  add(sizes.hidden_size, {"hidden_size", "n_embd", "d_model", "dim"});
  add(sizes.num_attention_heads, {"num_attention_heads", "n_head", "n_heads", "num_heads"});
  std::vector<const char*> layers = {"num_hidden_layers", "n_layer", "n_layers", "num_layers",
                                     "layer_types"};
  if (family != nullptr && family->layers->thetas) layers.push_back("layer_rope_theta");
  for (const char* own : family != nullptr ? family->layers->keys : kAllLayers.keys) {
    const LayerKey* key = own != nullptr ? FindLayerKey(own) : nullptr;
    if (key != nullptr && key->CountsLayers()) layers.push_back(own);
  }
  add(sizes.num_hidden_layers, layers);
}

// What the class around the language model gives it. A rope_scaling goes before its
// rope_parameters.
void AddDefaultsOf(const OuterModel& outer, const Dict& text, Value::Object* unsaid) {
  if (outer.text_defaults == nullptr) return;
  const Value* older = text.Peek("rope_scaling");
  const bool has_older = older != nullptr && !Same(*older, Value{Value::Object()});
  const Value defaults = ParseJson(outer.text_defaults);
  for (const auto& [key, value] : *defaults.As<Value::Object>()) {
    if (text.Mentions(key) || (has_older && key == "rope_parameters")) continue;
    unsaid->emplace(key, value);
  }
}

// The model_type that a model has by its architectures, where it calls itself by another's name.
std::string_view TypeByArchitecture(const Dict& root, std::string_view model_type) {
  const Value* list = root.Peek("architectures");
  const auto* names = list != nullptr ? list->As<Value::Array>() : nullptr;
  if (names == nullptr) return "";
  for (const Value& name : *names) {
    const auto* text = name.As<std::string>();
    const std::string_view found = text != nullptr ? RenamedType(model_type, *text) : "";
    if (!found.empty()) return found;
  }
  return "";
}

// Models inside a model: of Qwen Omni, with the type of the whole, and what a retriever (ColPali)
// or a robot (pi0) is built on, with a type of its own.
constexpr const char *kThinker = "thinker_config", *kBackbone = "vlm_config";

// The path of a key of RoPE in a dictionary of `dict`; empty if there is none.
std::string PathOfRopeInside(const Dict& dict) {
  for (const auto& [key, value] : dict.members()) {
    if (value.As<Value::Object>() == nullptr) continue;
    const Dict inside(value, dict.Path(key));
    for (const auto& [name, member] : inside.members()) {
      if (TellsOfRope(name, member)) return inside.Path(name);
    }
    if (std::string deeper = PathOfRopeInside(inside); !deeper.empty()) return deeper;
  }
  return "";
}

bool HasKeyOfRope(const Dict& dict) {
  const Value::Object& members = dict.members();
  return std::any_of(members.begin(), members.end(),
                     [](const auto& member) { return TellsOfRope(member.first, member.second); });
}

// Whether it says anything that a language model's configuration would.
bool SpeaksOfLayers(const Dict& dict) {
  for (const char* key :
       {"head_dim", "hidden_size", "num_attention_heads", "num_hidden_layers", "layer_types"}) {
    if (dict.Mentions(key)) return true;
  }
  return HasKeyOfRope(dict);
}

// A model whose own configuration may be empty: all of it is its class's then.
bool IsOfItsClass(const OuterModel& outer, const ConfigParts& parts) {
  return outer.inner_key != nullptr && !parts.text_nested;
}

}  // namespace

const char* InnerModel(const Dict& root) {
  for (const char* key : {kThinker, kBackbone}) {
    if (root.Peek(key) != nullptr) return key;
  }
  return nullptr;
}

ConfigParts Locate(const Dict& root) {
  ConfigParts parts;
  parts.outer_type = root.String("model_type").value_or("");
  const char* inner = InnerModel(root);
  const Dict model = inner != nullptr ? root.Child(inner) : root;
  if (inner == kBackbone) {
    const auto type = model.String("model_type");
    if (!type) model.RejectMissing("model_type", "the model is built on this one");
    parts.outer_type = *type;
  }
  const OuterModel& outer = FindOuterModel(parts.outer_type);
  if (outer.other_rope != nullptr) root.Find(outer.other_rope);
  const Value* language = nullptr;
  parts.vision = model.Child("vision_config");
  parts.whole = parts.text = model;
  for (const char* key : {"text_config", "llm_config", "language_config", outer.text_key}) {
    if (key == nullptr || (parts.text_nested && key == outer.text_key)) break;
    Dict nested = model.Child(key);
    if (key == outer.text_key && outer.inner_key != nullptr) nested = nested.Child(outer.inner_key);
    const bool of_its_class = key == outer.text_key && outer.inner_key != nullptr;
    if (nested.exists() && nested.empty() && !of_its_class) {
      Reject(ROPE_ERROR_UNSUPPORTED,
             "%s ({}) must not be empty: its class's defaults are not those of the keys around it",
             nested.Name().c_str());
    }
    if (nested.empty()) continue;
    if (parts.text_nested && !Same(*model.Peek(key), *language)) {
      Reject(ROPE_ERROR_UNSUPPORTED,
             "%s and %s must not both be there and differ: each may be the language model",
             parts.text.Name().c_str(), nested.Name().c_str());
    }
    language = model.Peek(key);
    parts.text = nested;
    parts.text_nested = true;
  }
  const bool is_part = !outer.model_type.empty() && outer.text_key != nullptr &&
                       outer.inner_key == nullptr && parts.outer_type == outer.model_type;
  if (is_part && !parts.text_nested && SpeaksOfLayers(model)) {
    model.RejectMissing(outer.text_key, "it is the language model, and the keys around it are not");
  }
  static const Value kEmpty = {Value::Object()};
  if (IsOfItsClass(outer, parts)) {
    parts.text = Dict(kEmpty, model.Path(outer.text_key) + "." + outer.inner_key);
    parts.text_nested = true;
  }
  parts.unsaid = std::make_unique<Value::Object>();
  if (parts.text_nested) {
    AddDefaultsOf(outer, parts.text, parts.unsaid.get());
    parts.text = parts.text.WithDefaults(parts.unsaid.get());
  }
  parts.text_type = parts.text.String("model_type").value_or(parts.outer_type);
  const std::string_view of_class = parts.text_nested ? TextTypeOf(parts.outer_type) : "";
  if (!of_class.empty()) parts.text_type = of_class;
  if (outer.text_type != nullptr) parts.text_type = outer.text_type;
  const std::string_view renamed = TypeByArchitecture(root, parts.text_type);
  if (!renamed.empty()) parts.text_type = renamed;
  const std::string_view rotary = RotaryVariant(parts.text_type);
  if (!rotary.empty() && parts.text.String("position_embedding_type").value_or("") == "rotary") {
    parts.text_type = rotary;
    if (parts.text.Peek("rotary_emb_base") == nullptr) {  // its own class has another default
      parts.text.RejectMissing("rotary_emb_base", "position_embedding_type is \"rotary\"");
    }
  }
  const ClassSizes* sizes = FindClassSizes(parts.text_type);
  if (parts.text_nested && sizes != nullptr) {
    AddClassSizes(parts.text, *sizes, FindFamily(parts.text_type), parts.unsaid.get());
  }
  return parts;
}

bool MayHaveRope(const ConfigParts& parts) {
  if (FindFamily(parts.text_type) != nullptr) return true;
  return !IsWithoutRope(parts.text_type) && HasKeyOfRope(parts.text);
}

void RejectNotOffered(const ConfigParts& parts) {
  for (const std::string_view type : {parts.text_type, parts.outer_type}) {
    const char* reason = WhyRefused(type);
    if (reason == nullptr) continue;
    Reject(ROPE_ERROR_UNSUPPORTED, "%s (\"%s\") %s", parts.text.Path("model_type").c_str(),
           Printable(type).c_str(), reason);
  }
}

void RejectWithoutRope(const ConfigParts& parts) {
  if (parts.text_type.empty()) {
    parts.text.RejectMissing("model_type", "there is no key of RoPE either, such as rope_theta");
  }
  const bool without = IsWithoutRope(parts.text_type);
  const std::string inside = without ? "" : PathOfRopeInside(parts.whole);
  if (!inside.empty()) {
    Reject(ROPE_ERROR_UNSUPPORTED,
           "%s (\"%s\") is not known to this version, and %s is a key of a part of it: give that "
           "part as a text of its own",
           parts.text.Path("model_type").c_str(), Printable(parts.text_type).c_str(),
           inside.c_str());
  }
  Reject(ROPE_ERROR_UNSUPPORTED, "%s (\"%s\") %s", parts.text.Path("model_type").c_str(),
         Printable(parts.text_type).c_str(),
         without ? "is known to this version without RoPE only"
                 : "is not known to this version, and there is no key of RoPE, such as rope_theta");
}

}  // namespace rope::model
