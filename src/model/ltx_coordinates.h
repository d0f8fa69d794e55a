// Where the tokens of LTX-Video and LTX-2 are: coordinates from -1 to 1 in a video of the size of
// training, in the f32 steps of diffusers.
#ifndef LIBROPE_SRC_MODEL_LTX_COORDINATES_H_
#define LIBROPE_SRC_MODEL_LTX_COORDINATES_H_

#include <cstdint>

#include "librope/model.h"

namespace rope::model {

// Of frames, rows and columns; audio has frames alone.
struct LtxCoordinates {
  double patch[3];   // latents of a token
  double pixels[3];  // of a latent, by the VAE: of LTX-2
  double base[3];    // seconds, and pixels, of training
  double causal_offset;
  double hop, rate;  // audio: samples of a frame, and of a second
};

// LTX-Video, where the call has the VAE's numbers: the corner of a patch.
float LtxCoordinate(const LtxCoordinates& model, const rope_latent_args& args, int side,
                    int64_t index);
// LTX-2: the middle of a patch.
float Ltx2Coordinate(const LtxCoordinates& model, double fps, int side, int64_t index);
float Ltx2AudioCoordinate(const LtxCoordinates& model, int64_t index);

}  // namespace rope::model

#endif  // LIBROPE_SRC_MODEL_LTX_COORDINATES_H_
