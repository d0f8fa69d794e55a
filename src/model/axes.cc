#include "model/axes.h"

#include <string>

#include "base/limits.h"
#include "context/scaling_rules.h"
#include "model/accept.h"

namespace rope::model {
namespace {

// ERNIE 4.5 VL and Bailing alternate h and w pair by pair, and end with t. Ids are in the usual
// order t, h, w.
void FillSpaceThenTime(int space, int time, LayerType* type) {
  for (int i = 0; i < space + time; ++i) {
    type->pair_axis.push_back(i >= space ? 0 : i % 2 == 0 ? 1 : 2);
  }
}

// openPangu-VL: each pair is of the axis of which the smallest share is placed, of the first one if
// there are several, but never of the same as the pair before while there is another. The last pair
// is of t.
void FillEvenly(const int32_t (&section)[4], LayerType* type) {
  const int32_t counts[3] = {section[0] - 1, section[1], section[2]};
  int32_t placed[3] = {};
  int last = -1;
  for (int i = counts[0] + counts[1] + counts[2]; i > 0; --i) {
    int best = -1;
    for (int a : {0, 1, 2}) {
      if (placed[a] == counts[a] || a == last) continue;
      if (best < 0 || int64_t{placed[a]} * counts[best] < int64_t{placed[best]} * counts[a]) {
        best = a;
      }
    }
    if (best < 0) best = last;
    ++placed[best];
    type->pair_axis.push_back(static_cast<uint8_t>(best));
    last = best;
  }
  type->pair_axis.push_back(0);
}

// The sections of Bailing stand in the rope dictionary, beside it, or around the language model.
Dict DictWithSections(const RopeKeys& keys) {
  constexpr char kKey[] = "mrope_section";
  Dict found = keys.dict;
  for (const Dict* dict : {&keys.text, &keys.whole}) {
    const Value *here = dict->Find(kKey), *before = found.Peek(kKey);
    if (here == nullptr) continue;
    if (before == nullptr) found = *dict;
    if (before != nullptr && !Same(*here, *before)) {
      RejectValue(dict->Path(kKey), *here, "be that of " + found.Path(kKey));
    }
  }
  return found;
}

// The channels in which pairs lie, 0 if a bare dictionary leaves that to the caller. The pairs of
// PROPORTIONAL span the whole head, also those that stand still.
int PairSpan(const rope_config& config) {
  return config.rotary_dim != 0 && !kScalingRules[config.scaling].Is(kWholeHead) ? config.rotary_dim
                                                                                 : config.head_dim;
}

// A switch that the class of this model does not have.
void RejectFlag(const Dict& dict, const char* key, bool of_class) {
  const Value& flag = *dict.Find(key);
  if (IsSpared(flag)) return;
  RejectValue(dict.Path(key), flag,
              std::string(of_class ? "be true" : "be false") + " in this model: " + kAcceptIt);
}

// A class that orders its sections in one way must not be told another one.
bool IsInterleaved(const RopeKeys& keys, Axes rule) {
  const bool of_class = rule == Axes::kInterleaved;
  if (rule == Axes::kOne || rule == Axes::kQuarters) {
    return keys.dict.Bool("mrope_interleaved").value_or(false);
  }
  for (const char* key : {"mrope_interleaved", "interleaved"}) {  // Qwen3-Omni has the second
    if (keys.dict.Bool(key).value_or(of_class) == of_class) continue;
    RejectFlag(keys.dict, key, of_class);
  }
  return of_class;
}

// Rules whose sections are those of t, h and w, none of them missing.
bool ListsThree(Axes rule) {
  return rule == Axes::kBailing || rule == Axes::kQuarters || rule == Axes::kEvenly;
}

// Engines differ where the sections of h and w do.
void CheckBailing(const Dict& dict, const char* key, const int32_t (&section)[4]) {
  if (section[1] != section[2]) {
    Reject(ROPE_ERROR_UNSUPPORTED, "%s must give h (%d) and w (%d) the same number of pairs",
           dict.Path(key).c_str(), section[1], section[2]);
  }
  for (const char* flag : {"video_rope", "use_video_rope"}) {
    if (!dict.Bool(flag).value_or(true)) RejectFlag(dict, flag, true);
  }
}

void CheckEvenly(const Dict& dict, const char* key, const int32_t (&section)[4]) {
  constexpr char kFlag[] = "mrope_interleaved";
  if (!dict.Bool(kFlag).value_or(false)) {
    Reject(ROPE_ERROR_UNSUPPORTED, "%s must be true in this model", dict.Path(kFlag).c_str());
  }
  for (int a : {0, 1, 2}) {
    if (section[a] >= (a == 0 ? 2 : 1)) continue;
    Reject(ROPE_ERROR_PARSE, "%s[%d] (%d) must be at least %d", dict.Path(key).c_str(), a,
           section[a], a == 0 ? 2 : 1);
  }
}

// Even pairs turn by the first id, odd ones by the second.
void FillAlternating(LayerType* type) {
  type->config.axes = 2;
  for (int i = 0; i < PairSpan(type->config) / 2; ++i) {
    type->pair_axis.push_back(static_cast<uint8_t>(i % 2));
  }
}

}  // namespace

void FillAxes(const RopeKeys& keys, bool named_mrope, LayerType* type) {
  rope_config& config = type->config;
  const Family* family = keys.family;
  const Axes rule = family != nullptr ? family->axes : Axes::kOne;
  int32_t section[4] = {};
  int axes = 0;
  if (rule == Axes::kAlternating) {
    FillAlternating(type);
    return;
  }
  const int span = PairSpan(config);

  const Dict dict = rule == Axes::kBailing ? DictWithSections(keys) : keys.dict;
  const char* key = dict.Find("xdrope_section") != nullptr ? "xdrope_section" : "mrope_section";
  if (const Value::Array* list = dict.Array(key)) {
    axes = static_cast<int>(list->size());
    const bool three = ListsThree(rule);
    const int least = three ? 3 : 1;
    const int most = three || rule == Axes::kInterleaved || rule == Axes::kErnie ? 3 : 4;
    if (axes < least || axes > most) {
      Reject(ROPE_ERROR_PARSE, "%s has %d entries and must have from %d to %d",
             dict.Path(key).c_str(), axes, least, most);
    }
    for (int a = 0; a < axes; ++a) {
      const std::string path = dict.Path(key) + "[" + std::to_string(a) + "]";
      section[a] = static_cast<int32_t>(ToInteger(path, (*list)[a], 0, kMaxPairs));
    }
  } else if (family != nullptr && family->section[0] != 0) {
    axes = 3;
    for (int a = 0; a < 3; ++a) section[a] = family->section[a];
  } else if (rule == Axes::kQuarters) {
    axes = 3;
    for (int a = 0; a < 3; ++a) section[a] = span / (a == 0 ? 4 : 8);
  } else if (named_mrope || (rule != Axes::kOne)) {
    // An alias in rope_type, or a class that cannot run without sections.
    keys.dict.RejectMissing("mrope_section", "it tells which id turns which pairs");
  }
  for (const char* three : {"rope_3d", "use_3d_rope"}) {  // of ERNIE, of PaddleOCR
    if (rule == Axes::kOne || keys.text.Bool(three).value_or(true)) continue;
    RejectFlag(keys.text, three, true);
  }
  const int sum = section[0] + section[1] + section[2] + section[3];
  if (axes != 0 && span != 0 && sum != span / 2) {
    Reject(ROPE_ERROR_PARSE, "%s adds up to %d and must add up to the number of pairs, %d",
           dict.Path(key).c_str(), sum, span / 2);
  }
  if (axes < 2) return;
  if (rule == Axes::kQuarters && section[0] != span / 4) {
    RejectValue(dict.Path(key), *dict.Find(key), "be what follows from head_dim in this model");
  }
  if (rule == Axes::kBailing) {
    CheckBailing(dict, key, section);
    config.axes = 3;
    FillSpaceThenTime(section[1] + section[2], section[0], type);
    return;
  }
  if (rule == Axes::kEvenly) {
    CheckEvenly(keys.dict, key, section);
    config.axes = 3;
    FillEvenly(section, type);
    return;
  }
  if (rule == Axes::kErnie) {
    config.axes = 3;
    FillSpaceThenTime(section[0] + section[1], section[2], type);
    return;
  }
  config.axes = axes;
  config.mrope_interleaved = IsInterleaved(keys, rule) ? 1 : 0;
  if (config.mrope_interleaved != 0 && axes > 3) {
    Reject(ROPE_ERROR_UNSUPPORTED, "%s has %d entries and must have at most 3 if interleaved",
           keys.dict.Path(key).c_str(), axes);
  }
  for (int a = 0; a < axes; ++a) config.mrope_section[a] = section[a];
}

}  // namespace rope::model
