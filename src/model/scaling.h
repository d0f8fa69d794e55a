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

#include <initializer_list>

#include "model/layer_type.h"
#include "model/rope_keys.h"

namespace rope::model {

// Whether two values of rope_type mean the same: "mrope" and "default" do, "su" and "longrope".
bool NameTheSameScaling(const Value& a, const Value& b);

// Marks those of `keys` as read that repeat `number`, which another place gave; one that differs
// stays unread, and is refused.
void ReadRepeated(const Dict& dict, std::initializer_list<const char*> keys, double number);

// Expects config.head_dim to be set (0: unknown, a bare dictionary), and rotary_dim and
// rotary_offset if the model's code fixes the span and no factor does.
void FillRope(const RopeKeys& keys, LayerType* type);

}  // namespace rope::model

#endif  // LIBROPE_SRC_MODEL_SCALING_H_
