// The ids that a diffusion pipeline gives to its text and latents.
#ifndef LIBROPE_SRC_MODEL_LATENT_IDS_H_
#define LIBROPE_SRC_MODEL_LATENT_IDS_H_

#include <cstddef>
#include <cstdint>

#include "base/struct_size.h"
#include "librope/model.h"
#include "model/diffusion_classes.h"
#include "model/ltx_coordinates.h"

namespace rope {

template <>
inline constexpr size_t kMinimumSize<rope_latent_args> = offsetof(rope_latent_args, scale_w) +
                                                         sizeof(rope_latent_args::scale_w);

}  // namespace rope

namespace rope::model {

// What the ids of a model depend on beside the sizes of a call.
struct LatentIds {
  LatentRule rule;
  int axes;
  // CogVideoX: rows and columns of training (0: not stretched); CogView 4: the range of ids;
  // HiDream: tokens of the largest image, and 0; ChronoEdit: the second of two frames, and 0.
  int64_t side[2];
  double scale[3];     // Allegro: of frames, rows and columns
  LtxCoordinates ltx;  // LTX-Video, LTX-2
};

// rope_model_latent_ids for a model of diffusers, whose struct_size has been checked.
rope_status WriteLatentIds(const char* function, const LatentIds& model,
                           const rope_latent_args& args, float* ids, int64_t capacity,
                           int64_t* tokens);

}  // namespace rope::model

#endif  // LIBROPE_SRC_MODEL_LATENT_IDS_H_
