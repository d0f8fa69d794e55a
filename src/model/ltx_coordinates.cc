#include "model/ltx_coordinates.h"

#include <algorithm>

namespace rope::model {
namespace {

float ToFloat(double value) { return static_cast<float>(value); }

// From a share of the size of training.
float Centred(float share) { return share * 2 - 1; }

float Middle(float start, float end, double base) {
  return Centred((start + end) / 2 / ToFloat(base));
}

// The first frame that a causal VAE makes stands for one frame of the video, the others for
// `pixels` each.
float Causal(float frames, double causal_offset, double pixels) {
  return std::max(frames + ToFloat(causal_offset) - ToFloat(pixels), 0.f);
}

}  // namespace

float LtxCoordinate(const LtxCoordinates& model, const rope_latent_args& args, int side,
                    int64_t index) {
  constexpr double kPixels[] = {8, 32, 32};  // of LTXPipeline
  const double given[] = {args.scale_t, args.scale_h, args.scale_w};
  const double pixels = given[side] != 0 ? given[side] : kPixels[side];
  const float scale = ToFloat(side == 0 ? pixels / args.fps : pixels);
  return Centred(static_cast<float>(index) * scale * ToFloat(model.patch[side]) /
                 ToFloat(model.base[side]));
}

float Ltx2Coordinate(const LtxCoordinates& model, double fps, int side, int64_t index) {
  const float patch = ToFloat(model.patch[side]), pixels = ToFloat(model.pixels[side]);
  float ends[2];
  for (int end = 0; end < 2; ++end) {
    ends[end] = static_cast<float>(index + end) * patch * pixels;
    if (side == 0) ends[end] = Causal(ends[end], model.causal_offset, pixels) / ToFloat(fps);
  }
  return Middle(ends[0], ends[1], model.base[side]);
}

float Ltx2AudioCoordinate(const LtxCoordinates& model, int64_t index) {
  const float patch = ToFloat(model.patch[0]), frames = ToFloat(model.pixels[0]);
  float ends[2];
  for (int end = 0; end < 2; ++end) {
    const float heard =
        Causal(static_cast<float>(index + end) * patch * frames, model.causal_offset, frames);
    ends[end] = heard * ToFloat(model.hop) / ToFloat(model.rate);
  }
  return Middle(ends[0], ends[1], model.base[0]);
}

}  // namespace rope::model
