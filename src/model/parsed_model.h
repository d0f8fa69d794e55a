// What is read from a configuration: the kinds of RoPE of the model, and which layer has which.
#ifndef LIBROPE_SRC_MODEL_PARSED_MODEL_H_
#define LIBROPE_SRC_MODEL_PARSED_MODEL_H_

#include <cstdint>
#include <string>
#include <vector>

#include "model/latent_ids.h"
#include "model/layer_type.h"

namespace rope::model {

struct ParsedModel {
  std::vector<LayerType> types;
  std::vector<int32_t> layers;  // type of every layer; empty if their number or kinds are not known
  bool bare = false;            // made from a rope dictionary alone
  std::vector<std::string> notes;
  std::vector<LatentIds> latent_ids;  // of each type; empty unless it is a model of diffusers
};

}  // namespace rope::model

#endif  // LIBROPE_SRC_MODEL_PARSED_MODEL_H_
