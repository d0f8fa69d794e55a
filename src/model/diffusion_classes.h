// What the classes of diffusers decide, as a table: which key of transformer/config.json holds the
// channels of each axis, which theta, in which precision angles are computed, which channels form a
// pair, and which ids the pipeline gives to text and latents. The defaults are those of the class.
//
// Sources: models/transformers and pipelines of diffusers 0.42.1, compared with the running classes
// by tests/model/diffusion_oracle_test.cc.
#ifndef LIBROPE_SRC_MODEL_DIFFUSION_CLASSES_H_
#define LIBROPE_SRC_MODEL_DIFFUSION_CLASSES_H_

#include <cstdint>
#include <string_view>

#include "librope/rope.h"

namespace rope::model {

// How the channels of a head are divided among the axes.
enum class Split : uint8_t {
  kListed,      // a key lists them
  kListedHalf,  // the same, and where they add up to half of a head that half rotates: HiDream
  kThirds,      // 2 * (head_dim / 6) for rows and columns, and the rest for frames: Wan, Cosmos
  kEqual,       // a third for each: Allegro
  kEighths,     // 2, 3 and 3 eighths: CogVideoX
  kTwoHalves    // for rows and columns: CogView 4
};

// Where head_dim comes from.
enum class Width : uint8_t {
  kKey,          // attention_head_dim
  kSum,          // of the axes
  kDimByHeads,   // dim / n_heads
  kHiddenByHeads // hidden_size / num_attention_heads
};

// How the frequencies of an axis are computed.
enum class Power : uint8_t {
  kFloat32,    // theta ** x in f32, and angles in f32
  kFloat64,    // in f64, and angles in f64
  kExponential // exp(-log(theta) * x) in f32, and angles in f32: Kandinsky 5
};

// The ids of text and of grids of latents; model/latent_ids.cc has the rules.
enum class LatentRule : uint8_t {
  kImage,             // (0, row, column), or (row, column); text first: 0
  kFlux,              // (0 or 1, row, column); text first: 0
  kReferences,        // (number of the grid, row, column); text first: 0
  kLongCat,           // (1 + number of the grid, row, column), from behind the text: (0, number, number)
  kFlux2,             // (10 * number of the grid, row, column, 0); text first: (0, 0, 0, number)
  kOvis,              // (0, row, column); text first: (0, number, number)
  kQwenImage,         // (number of the grid + frame, centred row, centred column); text above them
  kQwenImageLayered,  // the same, and the last grid is a condition in frame -1
  kNucleus,           // (0, centred row, centred column); text last, above them
  kVideo,             // (frame, row, column) from 0; text is not in the attention
  kChronoEdit,        // the same; of two frames the second is the last of those that were left out
  kVideoThenText,     // (frame, row, column) from 0; text last: 0
  kJoyImage,          // the same
  kJoyImageCounted,   // the same, but text is a run on all axes, behind the largest of the sides
  kCogVideo,          // text first: 0; rows and columns are stretched over the size of training
  kEasyAnimate,       // the same, over a size that no key tells
  kCogView4,          // the same, in whole numbers
  kCosmos,            // frames by the clock
  kAllegro,           // each side is divided by a scale
  kLumina2,           // (tokens of text, row, column); text first: (number, 0, 0)
  kZImage,            // (padded text + 1, row, column); text last, from (1, 0, 0); padded to 32
  kHiDream,           // (0, row, column), padded unless square; text last: 0
  kKandinskyText,     // one axis, of text alone
  kKandinsky,         // each side is divided by a scale that the caller gives
  kLtx,               // coordinates from -1 to 1 (model/ltx_coordinates.h): LTX-Video
  kLtx2,              // of the video of LTX-2; one axis: its frames alone
  kLtx2Audio          // one axis, of sound
};

struct DiffusionClass {
  std::string_view name;
  LatentRule ids;
  Power power;
  double theta;
  Split split;
  int dims[4] = {};  // kListed: of the class; 0 ends. {0}: the class has none that work
  const char* dims_key = nullptr;
  const char* theta_key = nullptr;  // nullptr: no key tells
  // Blocks, one after the other; nullptr ends.
  const char* layers_keys[2] = {"num_layers", nullptr};
  int layers[2] = {};
  int head_dim = 128;  // of the class; kDimByHeads, kHiddenByHeads: the dividend
  int heads = 0;       // the divisor
  Width width = Width::kKey;
  rope_pairing pairing = ROPE_PAIRING_INTERLEAVED;
  // Lengths of tables, which librope does not have, and other frequencies; nullptr ends.
  const char* ignored[2] = {};
};

// nullptr if the class is not known.
const DiffusionClass* FindDiffusionClass(std::string_view name);

// Why a class of diffusers cannot be read although it has RoPE; nullptr if nothing is known of it.
const char* WhyDiffusionClassIsRefused(std::string_view name);

}  // namespace rope::model

#endif  // LIBROPE_SRC_MODEL_DIFFUSION_CLASSES_H_
