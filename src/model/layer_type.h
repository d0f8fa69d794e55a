// One kind of RoPE of a model: a name, a configuration, and the tables that the configuration
// points to. Pointers are set when the configuration is handed out, so that the struct may be
// moved.
#ifndef LIBROPE_SRC_MODEL_LAYER_TYPE_H_
#define LIBROPE_SRC_MODEL_LAYER_TYPE_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "context/frequencies.h"
#include "librope/rope.h"

namespace rope::model {

struct LayerType {
  std::string name;
  rope_config config = ROPE_INIT(rope_config);
  std::vector<double> short_factor, long_factor, freq_factors, inv_freq, frequency;
  std::vector<uint8_t> pair_axis;
  // A field of the configuration that follows from several numbers of the text, as a sentence for a
  // note; empty: there is none.
  std::string follows;
};

// The whole configuration, with pointers into `type`.
rope_config ConfigOf(const LayerType& type);

// What a context of `type` computes for sequences of seq_len tokens (any number for scalings that
// do not depend on it). Values that a text leaves to the program count as usual ones. Throws Error,
// with the name of the type, if rope_context_create would refuse it.
Frequencies FrequenciesOf(const LayerType& type, int64_t seq_len);

// Throws Error if rope_context_create would refuse `type` at some length: a text is refused when it
// is read, and not later in the words of another function.
void RejectUncreatable(const LayerType& type);

// Replaces theta and scaling of `type` by the table of frequencies that they give, negated if
// `negate`. The attention factor is kept.
void TabulateFrequencies(LayerType* type, bool negate);

// 1 / theta^(2i / dim) for i below dim / 2, in the f32 steps of the models. Throws Error, with the
// `name` of the type, if they are out of range.
std::vector<double> DefaultFrequencies(std::string_view name, double theta, int dim);

}  // namespace rope::model

#endif  // LIBROPE_SRC_MODEL_LAYER_TYPE_H_
