#include "model/scaling.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <string>
#include <vector>

#include "base/limits.h"
#include "context/scaling_rules.h"
#include "model/axes.h"
#include "model/larger_theta.h"
#include "model/typo.h"

namespace rope::model {
namespace {

constexpr std::string_view kTelechatYarn = "telechat3-yarn";

struct TypeName {
  std::string_view name;
  rope_scaling scaling;
  bool has_own_rule = false;  // its frequencies or factors are not those of the others
};

// "mrope" and "xdrope" say how ids are used, not how frequencies are made, but that "xdrope" may
// have an alpha; "su" is the first name of longrope; "gptj" is what one converter wrote for
// "default"; "deepseek_yarn" is what engines call the YaRN that mscale belongs to.
constexpr TypeName kTypeNames[] = {
    {"default", ROPE_SCALING_DEFAULT},        {"linear", ROPE_SCALING_LINEAR},
    {"dynamic", ROPE_SCALING_DYNAMIC},        {"yarn", ROPE_SCALING_YARN},
    {"longrope", ROPE_SCALING_LONGROPE},      {"su", ROPE_SCALING_LONGROPE},
    {"llama3", ROPE_SCALING_LLAMA3},          {"proportional", ROPE_SCALING_PROPORTIONAL},
    {"mrope", ROPE_SCALING_DEFAULT},          {"xdrope", ROPE_SCALING_DEFAULT, true},
    {"gptj", ROPE_SCALING_DEFAULT},           {"deepseek_yarn", ROPE_SCALING_YARN},
    {kTelechatYarn, ROPE_SCALING_YARN, true},
};

std::string KnownTypes() {
  std::string names;
  for (const TypeName& type : kTypeNames) {
    names += (names.empty() ? "" : ", ") + std::string(type.name);
  }
  return names;
}

// rope_type wins over type: files carry both.
const char* TypeKey(const Dict& dict) {
  return dict.Find("rope_type") != nullptr ? "rope_type" : "type";
}

const TypeName* FindType(std::string_view name) {
  for (const TypeName& type : kTypeNames) {
    if (type.name == name) return &type;
  }
  return nullptr;
}

// "type" beside "rope_type" must mean the same: programs differ in which of them they read.
void CheckBothTypes(const Dict& dict) {
  const auto first = dict.String("rope_type"), second = dict.String("type");
  if (!first || !second || *first == *second) return;
  if (NameTheSameScaling(*dict.Find("rope_type"), *dict.Find("type"))) return;
  RejectValue(dict.Path("type"), *dict.Find("type"),
              "mean the same as rope_type (\"" + Printable(*first) + "\")");
}

std::string_view TypeString(const RopeKeys& keys) {
  const auto name = keys.dict.String(TypeKey(keys.dict));
  if (!name && !keys.default_proportional && keys.dict.Find("factor") != nullptr) {
    keys.dict.RejectMissing("rope_type", "it tells what factor means");
  }
  return name.value_or(keys.default_proportional ? "proportional" : "default");
}

// GTE's remote code: see FillNtk.
bool IsNtk(const RopeKeys& keys, std::string_view type) {
  return type == "ntk" && keys.family != nullptr && keys.family->own_keys == OwnKeys::kNtk;
}

rope_scaling Scaling(const RopeKeys& keys) {
  const std::string_view name = TypeString(keys);
  const bool of_family = keys.family != nullptr && keys.family->yarn_is_longrope;
  if (name == "yarn" && (of_family || keys.dict.Find("short_factor") != nullptr)) {
    return ROPE_SCALING_LONGROPE;
  }
  if (IsNtk(keys, name)) return ROPE_SCALING_LINEAR;
  if (const TypeName* type = FindType(name)) return type->scaling;
  RejectValue(keys.dict.Path(TypeKey(keys.dict)), *keys.dict.Find(TypeKey(keys.dict)),
              "be one of " + KnownTypes() +
                  (name == "axial" ? "; it is that of a vision tower, which is read from the "
                                     "configuration of its whole model"
                                   : ""));
}

double Required(const Dict& dict, std::string_view key, std::string_view type) {
  const auto number = dict.Positive(key);
  if (!number) dict.RejectMissing(key, "rope_type \"" + std::string(type) + "\" requires it");
  return *number;
}

std::optional<int64_t> Length(const Dict& dict, std::string_view key) {
  return dict.Integer(key, 1, kMaxLength);
}

// In the words of all families. A dictionary on its own is its own surroundings; inside a
// configuration its max_position_embeddings is inert (Ministral 3).
std::optional<int64_t> MaxPosition(const RopeKeys& keys) {
  if (!keys.text.exists()) return Length(keys.dict, "max_position_embeddings");
  return keys.text.FirstInteger({"max_position_embeddings", "n_positions", "max_seq_len",
                                 "seq_length", "max_sequence_length"},
                                1, kMaxLength);
}

// Beside the dictionary or inside. Classes that have a default beside it (Phi-3) take that even if
// the dictionary says something else, which is refused: it is not what the model's code computes.
std::optional<int64_t> GivenOriginal(const RopeKeys& keys) {
  constexpr char kKey[] = "original_max_position_embeddings";
  const auto beside = Length(keys.text, kKey), inside = Length(keys.dict, kKey);
  const int64_t of_class = keys.family != nullptr ? keys.family->original : 0;
  if (beside && inside && *beside != *inside) {
    RejectValue(keys.dict.Path(kKey), *keys.dict.Find(kKey),
                "be " + keys.text.Path(kKey) + " (" + std::to_string(*beside) + ")");
  }
  if (beside || of_class == 0) return beside ? beside : inside;
  if (inside && *inside != of_class) {
    RejectValue(keys.dict.Path(kKey), *keys.dict.Find(kKey),
                "stand beside the dictionary, where " + std::string(keys.family->model_type) +
                    " reads it and else takes " + std::to_string(of_class));
  }
  return of_class;
}

// 0 only for a bare dictionary, whose caller has to supply it.
int64_t OriginalOrMax(const RopeKeys& keys, std::string_view type) {
  const auto given = GivenOriginal(keys);
  const auto length = given ? given : MaxPosition(keys);
  if (!length && keys.text.exists()) {
    keys.dict.RejectMissing(
        "original_max_position_embeddings",
        "rope_type \"" + std::string(type) + "\" requires it, or max_position_embeddings");
  }
  return length.value_or(0);
}

// In a dictionary on its own the caller gives theta.
void RejectNull(const RopeKeys& keys, const Dict& dict, const char* name) {
  if (keys.text.exists()) dict.RejectNull(name);
}

// Words for theta and for the rotated share of the head beside the dictionary, of all families.
using Words = std::vector<const char*>;
constexpr const char* kThetas[] = {"rope_theta", "rotary_emb_base", "rotary_embedding_base"};
constexpr const char* kShares[] = {"partial_rotary_factor", "rotary_pct", "rope_pct"};

// Those that the class reads (nullptr: none), of which the first counts that is there. What a
// family that is not known reads is not known, either.
template <size_t kCount>
Words OwnWords(const RopeKeys& keys, const Words& of_class, const char* const (&all)[kCount]) {
  Words own = keys.family != nullptr ? of_class : Words(std::begin(all), std::end(all));
  own.erase(std::remove(own.begin(), own.end(), nullptr), own.end());
  return own;
}

// What other classes read may repeat the value in use.
double Repeated(const RopeKeys& keys, const char* const* words, size_t count, double value) {
  for (size_t i = 0; i < count; ++i) {
    ReadRepeated(keys.dict, {words[i]}, value);
    ReadRepeated(keys.text, {words[i]}, value);
  }
  return value;
}

double Theta(const RopeKeys& keys, std::string* follows) {
  const auto repeated = [&keys](double theta) {
    ReadRepeated(keys.text, {keys.theta_key, "theta"}, theta);
    return Repeated(keys, kThetas, std::size(kThetas), theta);
  };
  if (keys.theta != 0) return repeated(keys.theta);
  if (const auto inside = keys.dict.Positive("rope_theta")) return repeated(*inside);
  RejectNull(keys, keys.dict, "rope_theta");
  const Words own = OwnWords(keys, {keys.theta_key, keys.older_theta_key}, kThetas);
  for (const char* word : own) {
    if (const auto beside = keys.text.Positive(word)) return repeated(*beside);
  }
  for (const char* word : own) RejectNull(keys, keys.text, word);
  double theta = keys.default_theta;
  const OwnKeys reads = keys.family != nullptr ? keys.family->own_keys : OwnKeys::kRopeRatio;
  if (reads == OwnKeys::kAttentionTheta) {
    if (const auto nested = keys.text.Child("attn_config").Positive("rope_theta")) return *nested;
  }
  if (reads == OwnKeys::kRopeRatio) {
    if (keys.family != nullptr) RejectNull(keys, keys.text, "rope_ratio");
    if (const auto ratio = keys.text.Positive("rope_ratio")) FoldRatio(*ratio, &theta, follows);
  }
  if (theta == 0 && keys.text.exists()) {
    keys.text.RejectMissing(keys.theta_key != nullptr ? keys.theta_key : "rope_theta",
                            "this version knows no default of this model_type");
  }
  return repeated(theta);
}

std::optional<double> GivenPartial(const RopeKeys& keys, std::string* path) {
  const auto repeated = [&keys](double share) {
    return Repeated(keys, kShares, std::size(kShares), share);
  };
  *path = keys.dict.Path("partial_rotary_factor");
  if (keys.partial != 0) return repeated(keys.partial);
  if (keys.family == nullptr || keys.family->share_inside) {
    if (const auto inside = keys.dict.Positive("partial_rotary_factor")) return repeated(*inside);
  }
  for (const char* word : OwnWords(keys, {keys.share_key}, kShares)) {
    *path = keys.text.Path(word);
    if (const auto beside = keys.text.Positive(word)) return repeated(*beside);
  }
  *path = keys.dict.Path("partial_rotary_factor");
  return std::nullopt;
}

// Keys that a class does not read, but that say what it does anyway.
void ReadInertSpan(const RopeKeys& keys, const rope_config& config) {
  if (keys.indexer) return;
  const int rotated = SpanOf(config);
  const double share = static_cast<double>(rotated) / config.head_dim;
  Repeated(keys, kShares, std::size(kShares), share);
  ReadRepeated(keys.text, {"rope_percent", "rope_percentage"}, share);  // Nemotron
  ReadRepeated(keys.text, {"rotary_dim", "attn_rotary_emb", "rotary_emb_dim"}, rotated);
}

// Latent attention rotates qk_rope_head_dim channels. Files repeat that as a share of the head (of
// qk_nope_head_dim + qk_rope_head_dim, or of the key head_dim); any other factor would cut the
// frequencies in classes that read it, and contradicts the others.
void CheckLatentPartial(const RopeKeys& keys, const rope_config& config) {
  std::string path;
  const auto given = GivenPartial(keys, &path);
  if (!given || *given == 1) return;
  for (int64_t head_dim :
       {int64_t{config.head_dim}, keys.text.Integer("head_dim", 0, kMaxHeadDim).value_or(0)}) {
    if (*given * static_cast<double>(head_dim) == config.rotary_dim) return;
  }
  Reject(ROPE_ERROR_UNSUPPORTED,
         "%s (%s) must be 1, or the share of the head that qk_rope_head_dim (%d) is", path.c_str(),
         ToText(*given).c_str(), config.rotary_dim);
}

// The first channels of the head: sets rotary_dim where that is not all of them.
void FillSpan(const RopeKeys& keys, rope_config* config) {
  const Family* family = keys.family;
  const rope_scaling scaling = config->scaling;
  if (keys.latent && config->rotary_dim != 0) CheckLatentPartial(keys, *config);
  const bool class_reads_it = family == nullptr || family->span == Span::kPartial;
  if (config->rotary_dim != 0 || (!class_reads_it && scaling == ROPE_SCALING_DEFAULT)) {
    ReadInertSpan(keys, *config);
    return;
  }

  std::string path;
  const auto given = GivenPartial(keys, &path);
  const double partial = given.value_or(keys.default_partial);
  if (!given && family != nullptr && keys.share_key != nullptr) {
    RejectNull(keys, keys.text, keys.share_key);
  }
  if (partial > 1) {
    Reject(ROPE_ERROR_PARSE, "%s (%s) must be at most 1", path.c_str(), ToText(partial).c_str());
  }
  if (config->head_dim == 0) {
    if (partial != 1) {
      Reject(ROPE_ERROR_PARSE,
             "%s (%s) needs a head_dim: give the whole config.json, or add head_dim to the "
             "dictionary",
             path.c_str(), ToText(partial).c_str());
    }
    return;
  }
  // Python: int(head_dim * partial), and for proportional pairs int(partial * head_dim // 2).
  int64_t rotary = scaling == ROPE_SCALING_PROPORTIONAL
                       ? 2 * static_cast<int64_t>(std::floor(partial * config->head_dim / 2))
                       : static_cast<int64_t>(config->head_dim * partial);
  int64_t own = 0;  // rotary_dim says it directly
  if (family == nullptr || family->reads_rotary_dim) {
    own = keys.text.Integer("rotary_dim", 2, kMaxHeadDim).value_or(0);
    if (family != nullptr && !keys.text.Mentions("rotary_dim")) own = family->rotary_dim;
  }
  if (own != 0 && given && own != rotary) {
    Reject(ROPE_ERROR_PARSE, "%s (%lld) and %s (%s) of head_dim %d must agree",
           keys.text.Path("rotary_dim").c_str(), static_cast<long long>(own), path.c_str(),
           ToText(*given).c_str(), config->head_dim);
  }
  if (own != 0) rotary = own;
  if (rotary < 2 || rotary > config->head_dim || rotary % 2 != 0) {
    Reject(ROPE_ERROR_PARSE,
           "%s (giving %lld channels) must give an even number from 2 to head_dim "
           "(%d)",
           own != 0 ? keys.text.Path("rotary_dim").c_str() : path.c_str(),
           static_cast<long long>(rotary), config->head_dim);
  }
  if (!class_reads_it && rotary != config->head_dim && scaling != ROPE_SCALING_PROPORTIONAL) {
    Reject(
        ROPE_ERROR_UNSUPPORTED,
        "%s (%s) must be 1 for model_type \"%s\": its class rotates whole heads, and transformers "
        "fails on the shorter cosines of the scaled types",
        path.c_str(), ToText(partial).c_str(), family->model_type);
  }
  if (rotary != config->head_dim) config->rotary_dim = static_cast<int32_t>(rotary);
  ReadInertSpan(keys, *config);
}

void FillFactorList(const RopeKeys& keys, const char* key, int pairs, std::vector<double>* out) {
  const Value::Array* list = keys.dict.Array(key);
  if (list == nullptr) keys.dict.RejectMissing(key, "rope_type \"longrope\" requires it");
  if (pairs != 0 && list->size() != static_cast<size_t>(pairs)) {
    Reject(ROPE_ERROR_PARSE, "%s has %zu entries and must have one for each of %d pairs",
           keys.dict.Path(key).c_str(), list->size(), pairs);
  }
  if (list->empty() || list->size() > kMaxPairs) {
    Reject(ROPE_ERROR_PARSE, "%s has %zu entries and must have from 1 to %lld",
           keys.dict.Path(key).c_str(), list->size(), static_cast<long long>(kMaxPairs));
  }
  for (size_t i = 0; i < list->size(); ++i) {
    out->push_back(ToPositive(keys.dict.Path(key) + "[" + std::to_string(i) + "]", (*list)[i]));
  }
}

// Phi-3's own code, and engines, have the attention factor follow from the two lengths, and
// transformers from a factor if there is one.
void CheckFactorOfLengths(const RopeKeys& keys, double factor, const rope_config& config) {
  const bool of_lengths = keys.family != nullptr && keys.family->yarn_is_longrope;
  const auto length = MaxPosition(keys);
  if (!of_lengths || !length || config.attention_factor != 0) return;
  const double ratio =
      static_cast<double>(*length) / static_cast<double>(config.original_max_position_embeddings);
  if (factor == ratio) return;
  Reject(ROPE_ERROR_UNSUPPORTED,
         "%s (%s) must be max_position_embeddings / original_max_position_embeddings (%s), which "
         "other programs than transformers take: remove it, or give attention_factor",
         keys.dict.Path("factor").c_str(), ToText(factor).c_str(), ToText(ratio).c_str());
}

void FillLongrope(const RopeKeys& keys, LayerType* type) {
  rope_config& config = type->config;
  const int span = SpanOf(config);
  FillFactorList(keys, "short_factor", span / 2, &type->short_factor);
  FillFactorList(keys, "long_factor", span / 2, &type->long_factor);
  if (type->short_factor.size() != type->long_factor.size()) {
    Reject(ROPE_ERROR_PARSE, "%s has %zu entries and must have as many as short_factor, %zu",
           keys.dict.Path("long_factor").c_str(), type->long_factor.size(),
           type->short_factor.size());
  }
  config.original_max_position_embeddings = OriginalOrMax(keys, "longrope");
  if (const auto factor = keys.dict.Positive("factor")) {
    CheckFactorOfLengths(keys, *factor, config);
    config.factor = *factor;
  } else if (const auto length = MaxPosition(keys)) {
    config.max_position_embeddings = *length;
  } else if (keys.text.exists()) {
    keys.text.RejectMissing("max_position_embeddings",
                            "rope_type \"longrope\" requires it or a factor");
  }
  // Phi-3.5-MoE names the attention factor of either side of the switch.
  const auto below = keys.dict.Positive("short_mscale"), above = keys.dict.Positive("long_mscale");
  if (!below && !above) return;
  if (!below || !above || *below != *above) {
    Reject(
        ROPE_ERROR_UNSUPPORTED,
        "%s (%s) and long_mscale (%s) must be equal, as a configuration has one attention_factor "
        "for all lengths: remove both keys, and set attention_factor with seq_len",
        keys.dict.Path("short_mscale").c_str(), below ? ToText(*below).c_str() : "none",
        above ? ToText(*above).c_str() : "none");
  }
  if (config.attention_factor != 0 && config.attention_factor != *below) {
    Reject(ROPE_ERROR_UNSUPPORTED, "%s (%s) must be short_mscale (%s)",
           keys.dict.Path("attention_factor").c_str(), ToText(config.attention_factor).c_str(),
           ToText(*below).c_str());
  }
  config.attention_factor = *below;
}

// mscale_all_dim scales the softmax only in models with multi-head latent attention. Elsewhere it
// just takes part in the attention factor, which is resolved here so that the core's softmax factor
// stays 1.
void FillMscale(const RopeKeys& keys, LayerType* type) {
  rope_config* config = &type->config;
  const double mscale = keys.dict.Number("mscale").value_or(0);
  const double all_dim = keys.dict.Number("mscale_all_dim").value_or(0);
  for (const char* key : {"mscale", "mscale_all_dim"}) {
    if (const Value* value = keys.dict.Find(key); value != nullptr && ToNumber(key, *value) < 0) {
      RejectValue(keys.dict.Path(key), *value, "not be negative");
    }
  }
  if (mscale == 0 && all_dim != 0) {  // transformers ignores it, and others take 1 for mscale
    Reject(ROPE_ERROR_UNSUPPORTED, "%s (%s) must be 0 without mscale",
           keys.dict.Path("mscale_all_dim").c_str(), ToText(all_dim).c_str());
  }
  if (all_dim == 0 && mscale != 0 && mscale != 1) {  // alone it has no effect
    Reject(ROPE_ERROR_UNSUPPORTED, "%s (%s) must be 1 without mscale_all_dim",
           keys.dict.Path("mscale").c_str(), ToText(mscale).c_str());
  }
  if (keys.latent) {
    config->mscale = mscale;
    config->mscale_all_dim = all_dim;
    return;
  }
  if (mscale == 0 || all_dim == 0) return;  // 0 means unset
  LayerType probe = *type;
  probe.config.mscale = mscale;
  probe.config.mscale_all_dim = all_dim;
  config->attention_factor = FrequenciesOf(probe, 0).attention_factor;
}

// TeleChat 3: YaRN with another coefficient of the logarithm, and no default of its lengths.
void FillTelechat(const RopeKeys& keys, rope_config* config) {
  if (!GivenOriginal(keys)) {
    keys.dict.RejectMissing("original_max_position_embeddings",
                            "rope_type \"telechat3-yarn\" requires it");
  }
  const double factor = 0.07 * std::log(config->factor) + 1;
  if (config->attention_factor != 0 && config->attention_factor != factor) {
    RejectValue(keys.dict.Path("attention_factor"), *keys.dict.Find("attention_factor"),
                "be " + ToText(factor) + ", which follows from factor");
  }
  config->attention_factor = factor;
}

void FillYarn(const RopeKeys& keys, LayerType* type) {
  rope_config* config = &type->config;
  const Dict& dict = keys.dict;
  const int64_t original = OriginalOrMax(keys, "yarn");
  config->original_max_position_embeddings = original;
  if (dict.Mentions("factor") && dict.Find("factor") == nullptr && GivenOriginal(keys)) {
    const auto length = MaxPosition(keys);  // "factor": null
    if (!length) dict.RejectMissing("max_position_embeddings", "factor is null");
    config->factor = static_cast<double>(*length) / static_cast<double>(original);
    type->follows = "factor (" + ToText(config->factor) + ") follows from the two lengths";
  } else {
    config->factor = Required(dict, "factor", "yarn");
  }
  for (const auto& [key, field] :
       {std::pair{"beta_fast", &config->beta_fast}, std::pair{"beta_slow", &config->beta_slow}}) {
    *field = dict.Number(key).value_or(0);  // 0 means unset, too
    if (*field < 0) RejectValue(dict.Path(key), *dict.Find(key), "not be negative");
  }
  const double fast = BetaFastOf(*config);
  const double slow = BetaSlowOf(*config);
  if (fast < slow) {
    Reject(ROPE_ERROR_PARSE, "%s (%s) must not be below beta_slow (%s)",
           dict.Path("beta_fast").c_str(), ToText(fast).c_str(), ToText(slow).c_str());
  }
  if (TypeString(keys) == kTelechatYarn) FillTelechat(keys, config);
  dict.RejectNull("truncate");  // transformers hands null on, which is false, and others take true
  config->yarn_no_truncate = dict.Bool("truncate").value_or(true) ? 0 : 1;
  FillMscale(keys, type);
}

void FillLlama3(const RopeKeys& keys, rope_config* config) {
  const Dict& dict = keys.dict;
  config->factor = Required(dict, "factor", "llama3");
  config->low_freq_factor = Required(dict, "low_freq_factor", "llama3");
  config->high_freq_factor = Required(dict, "high_freq_factor", "llama3");
  if (config->high_freq_factor < config->low_freq_factor) {
    Reject(ROPE_ERROR_PARSE, "%s (%s) must not be below low_freq_factor (%s)",
           dict.Path("high_freq_factor").c_str(), ToText(config->high_freq_factor).c_str(),
           ToText(config->low_freq_factor).c_str());
  }
  const auto original = GivenOriginal(keys);
  if (!original) {
    dict.RejectMissing("original_max_position_embeddings", "rope_type \"llama3\" requires it");
  }
  config->original_max_position_embeddings = *original;
}

void FillDynamic(const RopeKeys& keys, rope_config* config) {
  config->factor = Required(keys.dict, "factor", "dynamic");
  const int dim = SpanOf(*config);
  if (dim == 2) {
    Reject(ROPE_ERROR_PARSE,
           "%s (\"dynamic\") needs at least 4 rotated channels, and this head has 2",
           keys.dict.Path(TypeKey(keys.dict)).c_str());
  }
  const auto length = MaxPosition(keys);
  if (!length && keys.text.exists()) {
    keys.text.RejectMissing("max_position_embeddings", "rope_type \"dynamic\" requires it");
  }
  config->max_position_embeddings = length.value_or(0);
  const auto original = GivenOriginal(keys);
  if (original && length && *original != *length) {
    Reject(ROPE_ERROR_UNSUPPORTED,
           "%s (%lld): rope_type \"dynamic\" counts from max_position_embeddings (%lld), and other "
           "programs from this: the two must be equal",
           keys.dict.Path("original_max_position_embeddings").c_str(),
           static_cast<long long>(*original), static_cast<long long>(*length));
  }
}

void FillProportional(const RopeKeys& keys, rope_config* config) {
  config->factor = keys.dict.Positive("factor").value_or(0);
  if (config->rotary_offset != 0) {
    Reject(
        ROPE_ERROR_UNSUPPORTED,
        "%s (\"proportional\") spans whole heads, and only the channels from %d on rotate in this "
        "model",
        keys.dict.Path(TypeKey(keys.dict)).c_str(), config->rotary_offset);
  }
}

}  // namespace

void ReadRepeated(const Dict& dict, std::initializer_list<const char*> keys, double number) {
  for (const char* key : keys) {
    if (key == nullptr) continue;
    if (const Value* value = dict.Peek(key); value != nullptr && Same(*value, Value{number})) {
      dict.Find(key);
    }
  }
}

bool NameTheSameScaling(const Value& a, const Value& b) {
  const auto *first = a.As<std::string>(), *second = b.As<std::string>();
  if (first == nullptr || second == nullptr) return false;
  const TypeName *x = FindType(*first), *y = FindType(*second);
  if (x == nullptr || y == nullptr || x->scaling != y->scaling) return false;
  return x == y || (!x->has_own_rule && !y->has_own_rule);
}

namespace {

// A class may know few of the scalings.
void CheckKnown(const RopeKeys& keys, rope_scaling scaling) {
  const Scalings known = keys.family != nullptr ? keys.family->scalings : Scalings::kAll;
  if (known == Scalings::kAll || scaling == ROPE_SCALING_DEFAULT) return;
  if (known == Scalings::kLongrope && scaling == ROPE_SCALING_LONGROPE) return;
  Reject(ROPE_ERROR_UNSUPPORTED, "%s (\"%s\"): the class of a %s knows %s",
         keys.dict.Path(TypeKey(keys.dict)).c_str(), Printable(TypeString(keys)).c_str(),
         keys.family->model_type,
         known == Scalings::kLongrope ? "\"default\" and \"longrope\"" : "\"default\" alone");
}

}  // namespace

void FillRope(const RopeKeys& keys, LayerType* type) {
  rope_config& config = type->config;
  RejectTypos(keys.dict);
  CheckBothTypes(keys.dict);
  const std::string_view name = TypeString(keys);
  config.scaling = Scaling(keys);
  config.theta = Theta(keys, &type->follows);
  FillSpan(keys, &config);
  // Only YaRN and LongRoPE have one.
  if (config.scaling == ROPE_SCALING_YARN || config.scaling == ROPE_SCALING_LONGROPE) {
    const bool yarn = config.scaling == ROPE_SCALING_YARN;
    config.attention_factor =
        keys.dict.Positive("attention_factor").value_or(yarn ? keys.default_attention_factor : 0);
  }
  CheckKnown(keys, config.scaling);
  const bool of_hunyuan = keys.family != nullptr && keys.family->own_keys == OwnKeys::kAlpha;
  const bool may_have_alpha =
      name == "xdrope" || (of_hunyuan && config.scaling == ROPE_SCALING_DYNAMIC);
  if (!may_have_alpha || !FoldAlpha(keys.dict, type)) {
    switch (config.scaling) {
      case ROPE_SCALING_LINEAR:
        if (IsNtk(keys, name)) {
          FillNtk(Required(keys.dict, "factor", "ntk"), type);
        } else {
          config.factor = Required(keys.dict, "factor", name);
        }
        break;
      case ROPE_SCALING_DYNAMIC: FillDynamic(keys, &config); break;
      case ROPE_SCALING_YARN: FillYarn(keys, type); break;
      case ROPE_SCALING_LONGROPE: FillLongrope(keys, type); break;
      case ROPE_SCALING_LLAMA3: FillLlama3(keys, &config); break;
      case ROPE_SCALING_PROPORTIONAL: FillProportional(keys, &config); break;
      default: break;
    }
  }
  FillAxes(keys, name == "mrope" || name == "xdrope", type);
}

}  // namespace rope::model
