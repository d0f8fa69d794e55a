#include "model/larger_theta.h"

#include <cmath>
#include <string>

#include "context/scaling_rules.h"

namespace rope::model {

bool FoldAlpha(const Dict& dict, LayerType* type) {
  constexpr char kKey[] = "alpha";
  rope_config& config = type->config;
  const double alpha = dict.Number(kKey).value_or(0), base = config.theta;
  if (alpha == 0) return false;
  if (alpha < 0) RejectValue(dict.Path(kKey), *dict.Find(kKey), "be positive");
  const int dim = SpanOf(config);
  if (dim <= 2) {
    Reject(ROPE_ERROR_PARSE, "%s (%s) needs a head_dim above 2", dict.Path(kKey).c_str(),
           ToText(alpha).c_str());
  }
  config.theta *= std::pow(alpha, static_cast<double>(dim) / (dim - 2));
  if (!std::isfinite(config.theta)) {
    RejectValue(dict.Path(kKey), *dict.Find(kKey), "keep theta finite");
  }
  config.scaling = ROPE_SCALING_DEFAULT;
  type->follows = "theta (" + ToText(config.theta) + ") follows from rope_theta (" + ToText(base) +
                  "), alpha (" + ToText(alpha) + ") and the number of channels that turn";
  return true;
}

void FillNtk(double factor, LayerType* type) {
  rope_config& config = type->config;
  const double base = config.theta;
  config.theta *= factor;
  config.factor = std::pow(factor, 2.0 / SpanOf(config));
  type->follows = "theta (" + ToText(config.theta) + ") follows from rope_theta (" + ToText(base) +
                  ") and factor (" + ToText(factor) + ")";
}

void FoldRatio(double ratio, double* theta, std::string* follows) {
  const double base = *theta;
  *theta *= ratio;
  *follows = "theta (" + ToText(*theta) + ") follows from rope_ratio (" + ToText(ratio) +
             ") and that of the class (" + ToText(base) + ")";
}

}  // namespace rope::model
