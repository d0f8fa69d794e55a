// The RoPE of vision towers: two or three coordinates per patch, each turning a fixed share of the
// pairs, always at fixed theta without scaling. A tower that this version does not know, or whose
// sizes are missing from the text, has no type; engines see that by its name being absent.
//
// Order of the ids (axes) per tower: (row, column) for Qwen-VL and all towers like it, Pixtral and
// DINOv3; (column, row) for Llama 4, Muse, Gemma 4 and SAM; (frame, row, column) for MiniMax-M3.
// Llama 4 and Muse count from 1. DINOv3 takes patch centres in [-1, 1] times 2 pi as float
// coordinates.
#ifndef LIBROPE_SRC_MODEL_VISION_H_
#define LIBROPE_SRC_MODEL_VISION_H_

#include <string_view>

#include "model/locate.h"
#include "model/parsed_model.h"

namespace rope::model {

inline constexpr std::string_view kVisionType = "vision";  // the name of its type

// Whether the configuration is that of a vision model without a language model (DINOv3, SAM). Its
// tower is the `text` of the parts.
bool IsVisionModel(const ConfigParts& parts);

// Appends the type "vision" if the model has a known tower and its sizes are there. Throws Error if
// a key of RoPE in a known tower is not used and may change the rotation, be its sizes there or
// not.
void AddVisionTower(const ConfigParts& parts, ParsedModel* out);

}  // namespace rope::model

#endif  // LIBROPE_SRC_MODEL_VISION_H_
