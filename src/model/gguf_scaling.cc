#include "model/gguf_scaling.h"

#include <cmath>
#include <string>

#include "model/layers.h"

namespace rope::model {
namespace {

constexpr char kFreqsName[] = "rope_freqs.weight";
constexpr char kLongName[] = "rope_factors_long.weight";
constexpr char kShortName[] = "rope_factors_short.weight";

constexpr char kTypeKey[] = "rope.scaling.type";
constexpr char kFactorKey[] = "rope.scaling.factor";
constexpr char kAttentionKey[] = "rope.scaling.attn_factor";

// What the keys say, before it is known which of them count.
struct Numbers {
  std::string_view type;  // none, linear, yarn, longrope
  double factor = 0;      // 0: none
  double attention = 1;   // multiplies cos and sin, beside what follows from YaRN
  int64_t context = 0;    // 0: not given
  int64_t original = 0;
};

double Positive(const GgufKeys& keys, std::string_view key, double otherwise) {
  const auto number = keys.Number(key);
  if (number && *number <= 0) keys.RejectKey(key, "be positive");
  return number.value_or(otherwise);
}

// llama.cpp takes 0 for "none", and reads the name of older files if the newer one is absent.
double Factor(const GgufKeys& keys) {
  constexpr char kOlder[] = "rope.scale_linear";
  const auto newer = keys.Number(kFactorKey), older = keys.Number(kOlder);
  if (newer && older && *newer != *older) {
    keys.RejectKey(kOlder, "be rope.scaling.factor (" + ToText(*newer) + ")");
  }
  const double factor = newer ? *newer : older.value_or(0);
  if (factor < 0) keys.RejectKey(newer ? kFactorKey : kOlder, "not be negative");
  return factor;
}

Numbers Read(const GgufKeys& keys) {
  Numbers numbers;
  numbers.type = keys.String(kTypeKey).value_or("linear");
  if (numbers.type != "none" && numbers.type != "linear" && numbers.type != "yarn" &&
      numbers.type != "longrope") {
    keys.RejectKey(kTypeKey, "be one of none, linear, yarn, longrope");
  }
  numbers.factor = Factor(keys);
  numbers.attention = Positive(keys, kAttentionKey, 1);
  numbers.context = keys.Integer("context_length", 1, kMaxLength).value_or(0);
  numbers.original =
      keys.Integer("rope.scaling.original_context_length", 0, kMaxLength).value_or(0);
  if (numbers.original == 0) numbers.original = numbers.context;
  const bool scales = numbers.factor != 0 && numbers.factor != 1;
  if (scales && (numbers.type == "none" || numbers.type == "longrope")) {
    keys.RejectKey(kFactorKey, "be 1 with the scaling type \"" + std::string(numbers.type) + "\"");
  }
  return numbers;
}

bool HasTensor(const GgufFile& file, std::string_view name) {
  return file.rope_tensors.find(name) != file.rope_tensors.end();
}

// Tensors that count, of which none is in this part, may be in another one.
void CheckParts(const GgufFile& file) {
  if (file.whole || !file.rope_tensors.empty()) return;
  const GgufKeys split(file, "split.");
  if (split.Integer("count", 0, UINT16_MAX).value_or(0) <= 1) return;
  split.RejectKey("count",
                  "be 1, or the tensors of RoPE be in this part: they may be in another one (load "
                  "the first part by its path, or merge the parts)",
                  ROPE_ERROR_UNSUPPORTED);
}

// Which tensors count. One that does not would be forgotten silently.
struct Tensors {
  bool freqs = false, long_short = false;
};

Tensors TensorsOf(const GgufFile& file, const GgufArchitecture& architecture,
                  const Numbers& numbers) {
  const bool longrope = numbers.type == "longrope";
  const bool may_freqs = architecture.Is(kFreqs) && !(architecture.Is(kLongShort) && longrope);
  const bool may_long =
      architecture.Is(kLongShortAlways) || (architecture.Is(kLongShort) && longrope);
  for (const auto& [name, tensor] : file.rope_tensors) {
    const bool may = name == kFreqsName                        ? may_freqs
                     : name == kLongName || name == kShortName ? may_long
                                                               : false;
    if (may) continue;
    Reject(ROPE_ERROR_UNSUPPORTED,
           "tensor \"%s\" is in the file, and does not count for general.architecture \"%s\" with "
           "the scaling type \"%s\"",
           Printable(name).c_str(), std::string(architecture.name).c_str(),
           std::string(numbers.type).c_str());
  }
  Tensors tensors;
  tensors.freqs = HasTensor(file, kFreqsName);
  const bool has_long = HasTensor(file, kLongName), has_short = HasTensor(file, kShortName);
  if (has_long != has_short) {
    Reject(ROPE_ERROR_PARSE, "tensor \"%s\" is missing, and \"%s\" is there",
           has_long ? kShortName : kLongName, has_long ? kLongName : kShortName);
  }
  tensors.long_short = has_long;
  if (may_freqs || may_long) CheckParts(file);
  return tensors;
}

// One factor for each pair. Step-3.5 keeps those of its widest layers; others use the first.
std::vector<double> Factors(const GgufFile& file, const GgufArchitecture& architecture,
                            const char* name, const rope_config& config) {
  std::vector<double> values = TensorValues(file, name);
  const auto pairs = static_cast<size_t>(SpanOf(config)) / 2;
  const bool twice = architecture.Is(kHalfInFull) && values.size() == 2 * pairs;
  if (twice) values.resize(pairs);
  if (values.size() != pairs) {
    Reject(ROPE_ERROR_PARSE, "tensor \"%s\" has %zu values and must have one for each of %zu pairs",
           name, values.size(), pairs);
  }
  return values;
}

void FillLongrope(const GgufFile& file, const GgufKeys& keys, const GgufArchitecture& architecture,
                  const Numbers& numbers, LayerType* type) {
  rope_config& config = type->config;
  if (numbers.type == "yarn" || (numbers.factor != 0 && numbers.factor != 1)) {
    keys.RejectKey(kTypeKey, "be longrope or none where the file has factors for two lengths",
                   ROPE_ERROR_UNSUPPORTED);
  }
  if (numbers.original == 0) {
    keys.RejectMissing("rope.scaling.original_context_length", "the factors change at it");
  }
  type->short_factor = Factors(file, architecture, kShortName, config);
  type->long_factor = Factors(file, architecture, kLongName, config);
  config.scaling = ROPE_SCALING_LONGROPE;
  config.original_max_position_embeddings = numbers.original;
  config.max_position_embeddings = numbers.context != 0 ? numbers.context : numbers.original;
  config.attention_factor = numbers.attention;
}

// mscale_all_dim of the model, 0 if the file says none. DeepSeek's files have a tenth of it, in
// f32.
double AllDim(const GgufKeys& keys, const GgufArchitecture& architecture) {
  constexpr char kKey[] = "rope.scaling.yarn_log_multiplier";
  const double given = keys.Number(kKey).value_or(0);
  if (given < 0) keys.RejectKey(kKey, "not be negative");
  if (given != 0 && !architecture.Is(kYarnLog)) {
    keys.RejectKey(kKey, "be absent or 0: this architecture does not take it",
                   ROPE_ERROR_UNSUPPORTED);
  }
  return architecture.Is(kYarnLogTenth) ? static_cast<float>(given) / 0.1f : given;
}

void FillMscale(const GgufKeys& keys, const GgufArchitecture& architecture, const Numbers& numbers,
                LayerType* type) {
  rope_config& config = type->config;
  if (const double all_dim = AllDim(keys, architecture); all_dim != 0) {
    config.mscale = architecture.Is(kMscaleIsAllDim) ? all_dim : 1;
    config.mscale_all_dim = all_dim;
  }
  const bool scales_softmax = architecture.Is(kYarnLogTenth) && config.mscale_all_dim != 0;
  if (scales_softmax && numbers.attention != 1) {
    keys.RejectKey(kAttentionKey, "be 1 beside rope.scaling.yarn_log_multiplier",
                   ROPE_ERROR_UNSUPPORTED);
  }
  if (scales_softmax || (config.mscale_all_dim == 0 && numbers.attention == 1)) return;
  const double of_yarn = FrequenciesOf(*type, 0).attention_factor;
  config.mscale = config.mscale_all_dim = 0;
  config.attention_factor = of_yarn * numbers.attention;
}

// Converters write yarn_attn_factor where a config.json has an attention_factor, and llama.cpp does
// not read it: the two must agree.
void CheckYarnKeys(const GgufKeys& keys, const GgufArchitecture& architecture,
                   const LayerType& type) {
  constexpr char kExt[] = "rope.scaling.yarn_ext_factor";
  constexpr char kAttention[] = "rope.scaling.yarn_attn_factor";
  const bool yarn = type.config.scaling == ROPE_SCALING_YARN;
  const double ext = yarn ? 1 : 0;
  if (keys.Number(kExt).value_or(ext) != ext) {
    keys.RejectKey(kExt, yarn ? "be 1" : "be 0 without YaRN", ROPE_ERROR_UNSUPPORTED);
  }
  const auto given = keys.Number(kAttention);
  if (!given) return;
  const bool follows = yarn && !architecture.Is(kYarnGrok);
  const double expected = follows ? FrequenciesOf(type, 0).attention_factor : 1;
  constexpr double kRounding = 1e-6;  // of f32
  if (std::fabs(*given - expected) > kRounding * expected) {
    keys.RejectKey(kAttention, "be " + ToText(expected) + ", which is what follows from other keys",
                   ROPE_ERROR_UNSUPPORTED);
  }
}

void FillYarn(const GgufKeys& keys, const GgufArchitecture& architecture, const Numbers& numbers,
              LayerType* type) {
  rope_config& config = type->config;
  if (numbers.factor == 0) {
    keys.RejectMissing(kFactorKey, "the scaling type \"yarn\" requires it");
  }
  if (numbers.original == 0) {
    keys.RejectMissing("rope.scaling.original_context_length",
                       "the scaling type \"yarn\" requires it, or context_length");
  }
  config.scaling = ROPE_SCALING_YARN;
  config.factor = numbers.factor;
  config.original_max_position_embeddings = numbers.original;
  config.yarn_no_truncate = architecture.Is(kYarnExact) ? 1 : 0;
  constexpr char kFast[] = "rope.scaling.yarn_beta_fast", kSlow[] = "rope.scaling.yarn_beta_slow";
  constexpr double kOfGrok = 8;
  config.beta_fast = Positive(keys, kFast, architecture.Is(kYarnGrok) ? kOfGrok : 0);
  config.beta_slow = Positive(keys, kSlow, 0);
  if (BetaFastOf(config) < BetaSlowOf(config)) {
    keys.RejectKey(kFast, "not be below yarn_beta_slow (" + ToText(BetaSlowOf(config)) + ")");
  }
  FillMscale(keys, architecture, numbers, type);
}

}  // namespace

void FillGgufScaling(const GgufFile& file, const GgufKeys& keys,
                     const GgufArchitecture& architecture, bool window, LayerType* type) {
  const Numbers numbers = Read(keys);
  const Tensors tensors = TensorsOf(file, architecture, numbers);
  rope_config& config = type->config;
  const bool linear = numbers.type == "linear" && numbers.factor != 0 && numbers.factor != 1;
  const bool yarn = numbers.type == "yarn";
  if (numbers.type == "longrope" && !tensors.long_short) {
    Reject(ROPE_ERROR_PARSE, "tensor \"%s\" is missing: the scaling type \"longrope\" requires it",
           kLongName);
  }
  if (architecture.Is(kFixed) && (linear || yarn)) {
    keys.RejectKey(kTypeKey, "be none: this architecture has no scaling", ROPE_ERROR_UNSUPPORTED);
  }
  if (architecture.Is(kWindowPlain) && numbers.attention != 1) {
    keys.RejectKey(kAttentionKey, "be 1 in models whose layers are not all scaled",
                   ROPE_ERROR_UNSUPPORTED);
  }
  if (window && architecture.Is(kWindowPlain)) return;
  if (tensors.freqs && !(window && architecture.Is(kFactorsOfFull))) {
    type->freq_factors = Factors(file, architecture, kFreqsName, config);
  }
  if (tensors.long_short) {
    FillLongrope(file, keys, architecture, numbers, type);
  } else if (yarn) {
    FillYarn(keys, architecture, numbers, type);
  } else {
    if (linear) config.scaling = ROPE_SCALING_LINEAR;
    if (linear) config.factor = numbers.factor;
    if (numbers.attention != 1) config.attention_factor = numbers.attention;
  }
  CheckYarnKeys(keys, architecture, *type);
}

}  // namespace rope::model
