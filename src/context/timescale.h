// Timescales, the inverses of frequencies, as JAX code makes them: what ROPE_ANGLE_DIVIDE divides
// positions by.
//
// MaxText's embeddings.py has, in f32:
//
//     fraction = 2 * arange(0, D / 2) / D
//     timescale = min_timescale * (max_timescale / min_timescale) ** fraction
//     timescale = timescale * rope_linear_scaling_factor          (where that is not 1)
//     sinusoid_inp = position / timescale
//
// and Praxis and the JAX code of Gemma have the same with fewer knobs. JAX takes the power by powf
// of the C library where it runs one operation at a time on a CPU, and makes products of divisions
// by numbers: 2 i * (1 / D).
#ifndef LIBROPE_SRC_CONTEXT_TIMESCALE_H_
#define LIBROPE_SRC_CONTEXT_TIMESCALE_H_

#include <vector>

#include "context/config.h"

namespace rope {

// One for each pair, infinite for pairs that do not turn. `config` has a scaling with
// kHasTimescale. inv_freq of the configuration has their inverses.
std::vector<float> Timescales(const Config& config);

}  // namespace rope

#endif  // LIBROPE_SRC_CONTEXT_TIMESCALE_H_
