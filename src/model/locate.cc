#include "model/locate.h"

#include <algorithm>
#include <string>

#include "model/families.h"
#include "model/unread.h"

namespace rope::model {

ConfigParts Locate(const Dict& root) {
  ConfigParts parts;
  parts.outer_type = root.String("model_type").value_or("");
  const Dict thinker = root.Child("thinker_config");  // Qwen Omni
  const Dict& model = thinker.exists() ? thinker : root;
  const OuterModel& outer = FindOuterModel(parts.outer_type);
  if (outer.other_rope != nullptr) root.Find(outer.other_rope);
  const Value* language = nullptr;
  parts.vision = model.Child("vision_config");
  parts.whole = parts.text = model;
  for (const char* key : {"text_config", "llm_config", "language_config", outer.text_key}) {
    if (key == nullptr || (parts.text_nested && key == outer.text_key)) break;
    const Dict nested = model.Child(key);
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
  parts.text_type = parts.text.String("model_type").value_or(parts.outer_type);
  return parts;
}

bool MayHaveRope(const ConfigParts& parts) {
  if (FindFamily(parts.text_type) != nullptr) return true;
  const Value::Object& members = parts.text.members();
  return !IsWithoutRope(parts.text_type) &&
         std::any_of(members.begin(), members.end(),
                     [](const auto& member) { return SpeaksOfRope(member.first); });
}

void RejectWithoutRope(const ConfigParts& parts) {
  if (parts.text_type.empty()) {
    parts.text.RejectMissing("model_type", "there is no key of RoPE either, such as rope_theta");
  }
  Reject(ROPE_ERROR_UNSUPPORTED, "%s (\"%s\") %s", parts.text.Path("model_type").c_str(),
         Printable(parts.text_type).c_str(),
         IsWithoutRope(parts.text_type)
             ? "is known to this version without RoPE only"
             : "is not known to this version, and there is no key of RoPE, such as rope_theta");
}

}  // namespace rope::model
