#include "model/layer_type.h"

#include "config.h"
#include "frequencies.h"
#include "model/json.h"

namespace rope::model {
namespace {

// The core's own rules, so that a table made here has the same bits as a context's.
Frequencies Compute(const rope_config& config) {
  Config checked;
  Frequencies frequencies;
  rope_status status = ReadConfig("rope_model_create", &config, &checked);
  if (status == ROPE_OK) status = ComputeFrequencies("rope_model_create", checked, &frequencies);
  if (status == ROPE_ERROR_INVALID_ARGUMENT) status = ROPE_ERROR_PARSE;  // the text is to blame
  if (status != ROPE_OK) throw Error{status};
  return frequencies;
}

}  // namespace

rope_config ConfigOf(const LayerType& type) {
  const auto data = [](const auto& table) { return table.empty() ? nullptr : table.data(); };
  rope_config config = type.config;
  config.short_factor = data(type.short_factor);
  config.long_factor = data(type.long_factor);
  config.inv_freq = data(type.inv_freq);
  config.pair_axis = data(type.pair_axis);
  for (size_t length : {type.short_factor.size(), type.inv_freq.size(), type.pair_axis.size()}) {
    if (length != 0) config.table_length = static_cast<int32_t>(length);
  }
  return config;
}

void TabulateFrequencies(LayerType* type, bool negate) {
  const Frequencies computed = Compute(ConfigOf(*type));
  const rope_config& from = type->config;
  rope_config config = ROPE_INIT(rope_config);
  config.head_dim = from.head_dim;
  config.pairing = from.pairing;
  config.rotary_dim = from.scaling == ROPE_SCALING_PROPORTIONAL ? 0 : from.rotary_dim;
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

std::vector<double> DefaultFrequencies(double theta, int dim) {
  rope_config config = ROPE_INIT(rope_config);
  config.head_dim = dim;
  config.theta = theta;
  config.pairing = ROPE_PAIRING_HALVES;
  return Compute(config).inv_freq;
}

}  // namespace rope::model
