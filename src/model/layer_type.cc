#include "model/layer_type.h"

#include <initializer_list>

#include "context/config.h"
#include "context/scaling_rules.h"
#include "model/json.h"

namespace rope::model {
namespace {

// The core's own rules, so that a table made here has the same bits as a context's. Its messages
// name fields of rope_config, which are the keys of config.json.
Frequencies Compute(std::string_view name, const rope_config& config) {
  constexpr const char* kFunction = "rope_model_create";
  Config checked;
  Frequencies frequencies;
  rope_status status = CheckConfig(kFunction, &config, &checked);
  if (status == ROPE_OK) status = ComputeFrequencies(kFunction, checked, &frequencies);
  if (status == ROPE_OK) return frequencies;
  std::string reason =
      std::string(rope_last_error()).substr(std::string_view(kFunction).size() + 2);
  constexpr std::string_view kPrefix = "config->";
  for (size_t at = 0; (at = reason.find(kPrefix, at)) != std::string::npos;) {
    reason.erase(at, kPrefix.size());
  }
  // The text is to blame, unless it asks for what this version does not have.
  Reject(status == ROPE_ERROR_UNSUPPORTED ? status : ROPE_ERROR_PARSE, "layer type \"%s\": %s",
         Printable(name).c_str(), reason.c_str());
}

// The number of pairs where a rope dictionary on its own tells it, else that of a usual head.
int Pairs(const rope_config& config) {
  if (config.table_length != 0) return config.table_length;
  int sum = 0;
  for (int32_t section : config.mrope_section) sum += section;
  return sum != 0 ? sum : 64;
}

// The configuration as a program would complete it: with a length, and with harmless values where a
// rope dictionary on its own or an unknown model leaves them to its caller.
rope_config Completed(const LayerType& type, int64_t seq_len) {
  constexpr int64_t kLength = 4096;
  rope_config config = ConfigOf(type);
  if (config.pairing == 0) config.pairing = ROPE_PAIRING_HALVES;
  if (config.head_dim == 0) config.head_dim = 2 * Pairs(config);
  if (config.scaling == ROPE_SCALING_NOPE) return config;
  const bool given = config.inv_freq != nullptr || config.frequency != nullptr;
  if (config.theta == 0 && !given) config.theta = 10000;
  const ScalingRule& rule = kScalingRules[config.scaling];
  if (config.original_max_position_embeddings == 0 && (rule.needs & kOriginal) != 0) {
    config.original_max_position_embeddings = kLength;
  }
  const bool longrope_without_factor = rule.Is(kHasTables) && config.factor == 0;
  if (config.max_position_embeddings == 0 &&
      ((rule.needs & kMaxPosition) != 0 || longrope_without_factor)) {
    config.max_position_embeddings = kLength;
  }
  if (DependsOnLength(config.scaling)) config.seq_len = seq_len;
  return config;
}

}  // namespace

rope_config ConfigOf(const LayerType& type) {
  const auto data = [](const auto& table) { return table.empty() ? nullptr : table.data(); };
  rope_config config = type.config;
  config.short_factor = data(type.short_factor);
  config.long_factor = data(type.long_factor);
  config.freq_factors = data(type.freq_factors);
  config.inv_freq = data(type.inv_freq);
  config.pair_axis = data(type.pair_axis);
  config.frequency = data(type.frequency);
  for (size_t length : {type.short_factor.size(), type.freq_factors.size(), type.inv_freq.size(),
                        type.pair_axis.size()}) {
    if (length != 0) config.table_length = static_cast<int32_t>(length);
  }
  if (config.frequency != nullptr) config.table_length = config.head_dim / 2;
  return config;
}

Frequencies FrequenciesOf(const LayerType& type, int64_t seq_len) {
  return Compute(type.name, Completed(type, seq_len));
}

void RejectUncreatable(const LayerType& type) {
  constexpr int64_t kShort = 1, kLong = int64_t{1} << 41;  // above any length that a text may name
  if (Printable(type.name, type.name.size()) != type.name) {  // names end at a 0, too
    Reject(ROPE_ERROR_PARSE, "the kind of layer \"%s\" must have a name of printable ASCII",
           Printable(type.name).c_str());
  }
  FrequenciesOf(type, kShort);
  if (DependsOnLength(type.config.scaling)) FrequenciesOf(type, kLong);
}

void TabulateFrequencies(LayerType* type, bool negate) {
  const Frequencies computed = FrequenciesOf(*type, 0);
  const rope_config& from = type->config;
  rope_config config = ROPE_INIT(rope_config);
  config.head_dim = from.head_dim;
  config.pairing = from.pairing;
  config.rotary_dim = kScalingRules[from.scaling].Is(kWholeHead) ? 0 : from.rotary_dim;
  config.rotary_offset = from.rotary_offset;
  config.angle = from.angle;
  config.rounding = from.rounding;
  config.attention_factor = computed.attention_factor == 1 ? 0 : computed.attention_factor;
  type->config = config;
  type->inv_freq = computed.inv_freq;
  for (double& f : type->inv_freq) f = negate ? -f : f;
  type->short_factor.clear();
  type->long_factor.clear();
}

std::vector<double> DefaultFrequencies(std::string_view name, double theta, int dim) {
  rope_config config = ROPE_INIT(rope_config);
  config.head_dim = dim;
  config.theta = theta;
  config.pairing = ROPE_PAIRING_HALVES;
  return Compute(name, config).inv_freq;
}

}  // namespace rope::model
