// From the rope dictionary of one kind of layer (rope_parameters, rope_scaling) and the keys around
// it to the fields of rope_config: theta, rotated span, scaling and its numbers, axes. Only the
// fields: what the numbers mean is the core's business.
//
// Precedence is that of transformers: a value in the dictionary, else the key beside it, else the
// default of the class. Deliberate differences, each where a silent mistake would follow:
// - a factor without rope_type is an error, not ignored;
// - llama3 without original_max_position_embeddings is an error, not max_position_embeddings;
// - tables whose length is not the number of pairs are an error, not a warning;
// - "truncate" of YaRN counts in nested dictionaries, too;
// - partial_rotary_factor and rotary_dim, where both are given, must agree.
#ifndef LIBROPE_SRC_MODEL_SCALING_H_
#define LIBROPE_SRC_MODEL_SCALING_H_

#include <string>

#include "model/families.h"
#include "model/json.h"
#include "model/layer_type.h"

namespace rope::model {

// Where the values of one kind of layer are.
struct RopeSource {
  Dict dict;                             // may be absent: all values are defaults then
  Dict text;                             // the keys around it; absent for a bare dictionary
  const Family* family = nullptr;        // nullptr: unknown, or a bare dictionary
  const char* theta_key = "rope_theta";  // beside the dictionary; nullptr: none
  double default_theta = 10000;          // 0: left to the caller
  double theta = 0;                      // not 0: this one, whatever the keys say
  double default_partial = 1;
  double partial = 0;                 // not 0: this one, whatever the keys say
  bool default_proportional = false;  // rope_type if the dictionary does not tell
  bool latent = false;                // mscale_all_dim scales the softmax, too (DeepSeek)
};

// Expects config.head_dim to be set (0: unknown, a bare dictionary), and rotary_dim and
// rotary_offset if the model's code fixes the span and no factor does.
void FillRope(const RopeSource& source, LayerType* type);

}  // namespace rope::model

#endif  // LIBROPE_SRC_MODEL_SCALING_H_
