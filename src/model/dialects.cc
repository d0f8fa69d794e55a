#include "model/dialects.h"

#include <string>
#include <utility>

#include "base/limits.h"
#include "model/accept.h"
#include "model/layers.h"
#include "model/unread.h"

namespace rope::model {
namespace {

// No such program has it.
void RejectKindsOfLayers(const Dict& root) {
  const Value* types = root.Peek("layer_types");
  if (types == nullptr || types->read || IsSpared(*types)) return;
  Reject(ROPE_ERROR_UNSUPPORTED,
         "%s (%s) must be absent, as it is transformers' key, and may say that layers differ: %s",
         root.Path("layer_types").c_str(), Show(*types).c_str(), kAcceptIt);
}

// DeepSeek's own code scales by numbers that its files do not name.
void RejectDeepSeekInference(const Dict& root) {
  constexpr char kKey[] = "moe_inter_dim";
  if (root.Peek("model_type") != nullptr || root.Peek("n_heads") == nullptr) return;
  if (root.Peek(kKey) == nullptr) return;
  Reject(
      ROPE_ERROR_UNSUPPORTED,
      "%s (%s) is a key of DeepSeek's inference code, whose defaults (rope_factor 40) are not in "
      "the text: give the model's config.json",
      root.Path(kKey).c_str(), Show(*root.Peek(kKey)).c_str());
}

int32_t DividedWidth(const Dict& dict, std::string_view width, std::string_view heads) {
  constexpr char kReason[] = "the width of a head follows from it";
  const int64_t all = Required(dict, width, 1, kMaxWidth, kReason);
  const int64_t count = Required(dict, heads, 1, kMaxWidth, kReason);
  const int64_t head = all / count;
  if (all % count != 0 || head % 2 != 0 || head < 2 || head > kMaxHeadDim) {
    Reject(ROPE_ERROR_PARSE,
           "%s (%lld) / %s (%lld) is the width of a head, and must be even and from 2 to %d",
           dict.Path(width).c_str(), static_cast<long long>(all), std::string(heads).c_str(),
           static_cast<long long>(count), kMaxHeadDim);
  }
  return static_cast<int32_t>(head);
}

}  // namespace

const Dialect* FindDialect(const Dict& root) {
  const Dialect* found = nullptr;
  for (const Dialect* dialect : {&kMetaParams, &kMistralParams, &kMegatronArgs, &kMaxText}) {
    if (!dialect->is(root)) continue;
    if (found != nullptr) {
      Reject(ROPE_ERROR_UNSUPPORTED, "%s has keys of %s and of %s, and must be one of them",
             root.Name().c_str(), found->name, dialect->name);
    }
    found = dialect;
  }
  return found;
}

bool ReadDialect(const Dict& root, ParsedModel* out) {
  const Dialect* found = FindDialect(root);
  if (found == nullptr) {
    RejectDeepSeekInference(root);
    return false;
  }
  out->notes.push_back(std::string("read as ") + found->name + found->note);
  found->read(root, out);
  RejectUnread(root);
  RejectKindsOfLayers(root);
  return true;
}

int64_t Required(const Dict& dict, std::string_view key, int64_t low, int64_t high,
                 const char* reason) {
  const auto number = dict.Integer(key, low, high);
  if (!number) dict.RejectMissing(key, reason);
  return *number;
}

int32_t HeadOf(const Dict& dict, std::string_view key, std::string_view width,
               std::string_view heads) {
  const auto given = dict.Integer(key, 2, kMaxHeadDim);
  if (!given) return DividedWidth(dict, width, heads);
  if (*given % 2 != 0) RejectValue(dict.Path(key), *dict.Find(key), "be even");
  return static_cast<int32_t>(*given);
}

int32_t QuotientOf(const Dict& dict, std::string_view width, std::string_view heads) {
  constexpr char kKey[] = "head_dim";
  const int32_t head = DividedWidth(dict, width, heads);
  const auto given = dict.Integer(kKey, 1, kMaxWidth);
  if (given && *given != head) {
    Reject(ROPE_ERROR_UNSUPPORTED, "%s (%lld) must be %d, which this program's code takes instead",
           dict.Path(kKey).c_str(), static_cast<long long>(*given), head);
  }
  return head;
}

std::vector<bool> LastOf(int64_t every, int64_t layers) {
  std::vector<bool> last(static_cast<size_t>(layers), false);
  for (int64_t i = every; every != 0 && i <= layers; i += every) {
    last[static_cast<size_t>(i - 1)] = true;
  }
  return last;
}

void AssignLayers(const std::vector<bool>& without_rope, ParsedModel* out) {
  const auto unrotated = static_cast<int32_t>(out->types.size());
  bool some = false;
  for (const bool without : without_rope) {
    out->layers.push_back(without ? unrotated : 0);
    some |= without;
  }
  if (!some) return;
  LayerType type;
  type.name = kNope;
  type.config.head_dim = out->types.front().config.head_dim;
  type.config.scaling = ROPE_SCALING_NOPE;
  out->types.push_back(std::move(type));
}

}  // namespace rope::model
