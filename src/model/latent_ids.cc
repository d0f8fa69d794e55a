#include "model/latent_ids.h"

#include <algorithm>
#include <cmath>

#include "base/aligned.h"
#include "base/status.h"
#include "model/json.h"

namespace rope::model {
namespace {

constexpr int kFrames = 0, kRows = 1, kColumns = 2, kNoSide = 3;
constexpr int32_t kMostGrids = 1 << 16;
// Of sides and text: ids stay below 2^24, to where every whole number is a float.
constexpr int64_t kMostIds = 1 << 23;
constexpr int64_t kMostTokens = int64_t{1} << 40;
constexpr int64_t kPadding = 32;       // of Z-Image: SEQ_MULTI_OF
constexpr int64_t kReferenceStep = 10; // of Flux 2: from one grid to the next
constexpr double kCosmosFps = 24;      // at which a frame is one id

// The ids of text.
enum class Text : uint8_t {
  kNone,     // it is in no attention that turns
  kZero,     // it is there, and does not turn
  kAllAxes,  // a run on all axes
  kFrames,   // a run on the axis of frames
  kSides,    // a run on the axes of rows and columns
  kFourth    // a run on the last of four axes
};

struct Rule {
  Text text;
  bool text_last;  // behind the latents
  int most_grids;
  bool image;      // grids have one frame
};

Rule RuleOf(LatentRule rule) {
  switch (rule) {
    case LatentRule::kImage: return {Text::kZero, false, 1, true};
    case LatentRule::kFlux: return {Text::kZero, false, 2, true};
    case LatentRule::kReferences: return {Text::kZero, false, kMostGrids, true};
    case LatentRule::kLongCat: return {Text::kSides, false, 2, true};
    case LatentRule::kFlux2: return {Text::kFourth, false, kMostGrids, true};
    case LatentRule::kOvis: return {Text::kSides, false, 1, true};
    case LatentRule::kQwenImage:
    case LatentRule::kQwenImageLayered: return {Text::kAllAxes, false, kMostGrids, false};
    case LatentRule::kNucleus: return {Text::kAllAxes, true, 1, true};
    case LatentRule::kVideo:
    case LatentRule::kChronoEdit:
    case LatentRule::kCosmos:
    case LatentRule::kAllegro:
    case LatentRule::kLtx:
    case LatentRule::kLtx2:
    case LatentRule::kLtx2Audio:
    case LatentRule::kKandinsky: return {Text::kNone, false, 1, false};
    case LatentRule::kVideoThenText:
    case LatentRule::kJoyImage: return {Text::kZero, true, 1, false};
    case LatentRule::kJoyImageCounted: return {Text::kAllAxes, true, 1, false};
    case LatentRule::kCogVideo:
    case LatentRule::kEasyAnimate: return {Text::kZero, false, 1, false};
    case LatentRule::kCogView4: return {Text::kZero, false, 1, true};
    case LatentRule::kLumina2: return {Text::kFrames, false, 1, true};
    case LatentRule::kZImage: return {Text::kFrames, true, 1, false};
    case LatentRule::kHiDream: return {Text::kZero, true, 1, true};
    case LatentRule::kKandinskyText: break;
  }
  return {Text::kFrames, false, 0, false};
}

int64_t Padded(int64_t tokens) { return (tokens + kPadding - 1) / kPadding * kPadding; }

// Where an image of one shape lies in that of training: get_resize_crop_region_for_grid of
// CogVideoX, along one side.
struct Stretch {
  float start, end;  // of the first and the last token
};

Stretch StretchOf(const rope_latent_grid& grid, const int64_t (&trained)[2], int side) {
  const double h = grid.h, w = grid.w;
  const auto th = static_cast<double>(trained[0]), tw = static_cast<double>(trained[1]);
  const bool high = h / w > th / tw;
  const double size = side == kRows ? (high ? th : std::nearbyint(tw / w * h))
                                    : (high ? std::nearbyint(th / h * w) : tw);
  const double start = std::nearbyint(((side == kRows ? th : tw) - size) / 2);
  const double count = side == kRows ? h : w;
  return {static_cast<float>(start), static_cast<float>((start + size) * (count - 1) / count)};
}

// torch.linspace of `count` values.
float Between(const Stretch& ends, int64_t index, int64_t count) {
  if (count == 1) return ends.start;
  const float step = (ends.end - ends.start) / static_cast<float>(count - 1);
  if (index < count / 2) return ends.start + step * static_cast<float>(index);
  return ends.end - step * static_cast<float>(count - index - 1);
}

// The whole call: checked first, then written.
class Call {
 public:
  Call(const char* function, const LatentIds& model, const rope_latent_args& args)
      : function_(function), model_(model), args_(args), rule_(RuleOf(model.rule)) {}

  // Sets tokens().
  rope_status Check();
  int64_t tokens() const { return tokens_; }
  void Write(float* ids);

 private:
  bool Is(LatentRule rule) const { return model_.rule == rule; }
  bool IsCentred() const {
    return Is(LatentRule::kQwenImage) || Is(LatentRule::kQwenImageLayered) ||
           Is(LatentRule::kNucleus);
  }
  // The tokens of text, and those that the model appends to an image.
  int64_t TextTokens() const { return Is(LatentRule::kZImage) ? Padded(args_.text) : args_.text; }
  int64_t PaddingTokens() const;

  rope_status CheckCount() const;
  rope_status CheckGrid(int32_t index) const;
  rope_status CheckScales() const;
  rope_status CheckSize() const;

  int64_t FirstTextId() const;
  int64_t FirstFrame(int32_t index) const;
  float IdOf(const rope_latent_grid& grid, int64_t frame, int side, int64_t index) const;
  int SideOf(int axis) const;

  void Put(int axis, float id) { ids_[axis * tokens_ + token_] = id; }
  void WriteText();
  void WriteGrid(int32_t index);
  void WritePadding();

  const char* const function_;
  const LatentIds& model_;
  const rope_latent_args& args_;
  const Rule rule_;
  int64_t tokens_ = 0;
  float* ids_ = nullptr;
  int64_t token_ = 0;
};

rope_status Call::CheckCount() const {
  const int32_t count = args_.count;
  if (count < 0 || count > rule_.most_grids) {
    return Fail(ROPE_ERROR_INVALID_ARGUMENT,
                "%s: args->count (%d) must be from 0 to %d for this class", function_, count,
                rule_.most_grids);
  }
  if ((count > 0 && args_.grids == nullptr) ||
      !IsAligned(args_.grids, alignof(rope_latent_grid))) {
    return Fail(ROPE_ERROR_INVALID_ARGUMENT,
                "%s: args->grids must point to args->count (%d) aligned elements", function_,
                count);
  }
  if (args_.text < 0 || args_.text > kMostIds) {
    return Fail(ROPE_ERROR_INVALID_ARGUMENT, "%s: args->text (%lld) must be from 0 to 2^23",
                function_, static_cast<long long>(args_.text));
  }
  if (rule_.text == Text::kNone && args_.text != 0) {
    return Fail(ROPE_ERROR_INVALID_ARGUMENT,
                "%s: args->text (%lld) must be 0: text is in no attention that these layers rotate",
                function_, static_cast<long long>(args_.text));
  }
  return ROPE_OK;
}

rope_status Call::CheckGrid(int32_t index) const {
  const auto fault = [&](const char* rule) {
    return Fail(ROPE_ERROR_INVALID_ARGUMENT, "%s: args->grids[%d] must have %s", function_, index,
                rule);
  };
  const rope_latent_grid& grid = args_.grids[index];
  if (std::min({grid.t, grid.h, grid.w}) < 1 || std::max({grid.t, grid.h, grid.w}) > kMostIds) {
    return fault("t, h and w from 1 to 2^23");
  }
  if (grid.reserved != 0) return fault("reserved 0");
  const bool condition = Is(LatentRule::kQwenImageLayered) && index == args_.count - 1;
  if ((rule_.image || condition || model_.axes == 2) && grid.t != 1) {
    return fault("t 1 in this class");
  }
  if (Is(LatentRule::kLtx2Audio) && (grid.h != 1 || grid.w != 1)) {
    return fault("h and w 1 for audio");
  }
  return ROPE_OK;
}

rope_status Call::CheckScales() const {
  const bool timed = Is(LatentRule::kLtx) || Is(LatentRule::kLtx2);
  const bool fps = timed || Is(LatentRule::kCosmos),
             scales = Is(LatentRule::kKandinsky) || Is(LatentRule::kLtx);
  const struct {
    const char* name;
    double value;
    bool allowed;
  } fields[] = {{"fps", args_.fps, fps},
                {"scale_t", args_.scale_t, scales},
                {"scale_h", args_.scale_h, scales},
                {"scale_w", args_.scale_w, scales}};
  if (timed && args_.fps == 0) {
    return Fail(ROPE_ERROR_INVALID_ARGUMENT,
                "%s: args->fps (0) must be given for this class: its ids are seconds", function_);
  }
  for (const auto& field : fields) {
    constexpr double kLeast = 0x1p-20, kMost = 0x1p20;
    if (field.value == 0) continue;
    if (!field.allowed) {
      return Fail(ROPE_ERROR_INVALID_ARGUMENT, "%s: args->%s (%s) must be 0 for this class",
                  function_, field.name, ToText(field.value).c_str());
    }
    if (!(field.value >= kLeast && field.value <= kMost)) {
      return Fail(ROPE_ERROR_INVALID_ARGUMENT,
                  "%s: args->%s (%s) must be 0, or from 2^-20 to 2^20", function_, field.name,
                  ToText(field.value).c_str());
    }
  }
  return ROPE_OK;
}

int64_t Call::PaddingTokens() const {
  if (args_.count == 0) return 0;
  const rope_latent_grid& grid = args_.grids[0];
  const int64_t size = int64_t{grid.t} * grid.h * grid.w;
  if (Is(LatentRule::kZImage)) return Padded(size) - size;
  // HiDream pads images that are not square to the largest one.
  return Is(LatentRule::kHiDream) && grid.h != grid.w ? model_.side[0] - size : 0;
}

rope_status Call::CheckSize() const {
  if (PaddingTokens() >= 0) return ROPE_OK;
  return Fail(ROPE_ERROR_INVALID_ARGUMENT,
              "%s: args->grids[0] (%d x %d) must have at most %lld tokens, those of max_resolution",
              function_, args_.grids[0].h, args_.grids[0].w,
              static_cast<long long>(model_.side[0]));
}

rope_status Call::Check() {
  if (rope_status s = CheckCount()) return s;
  if (rope_status s = CheckScales()) return s;
  for (int32_t g = 0; g < args_.count; ++g) {
    if (rope_status s = CheckGrid(g)) return s;
    const rope_latent_grid& grid = args_.grids[g];
    int64_t size;
    if (__builtin_mul_overflow(int64_t{grid.t} * grid.h, int64_t{grid.w}, &size) ||
        __builtin_add_overflow(tokens_, size, &tokens_) || tokens_ > kMostTokens) {
      return Fail(ROPE_ERROR_INVALID_ARGUMENT, "%s: args->grids[%d] makes more than 2^40 tokens",
                  function_, g);
    }
  }
  if (rope_status s = CheckSize()) return s;
  tokens_ += PaddingTokens() + TextTokens();
  return ROPE_OK;
}

// The first id of a run of text.
int64_t Call::FirstTextId() const {
  if (Is(LatentRule::kZImage)) return 1;
  int64_t first = 0;
  if (Is(LatentRule::kJoyImageCounted) && args_.count == 1) {
    return std::max({args_.grids[0].t, args_.grids[0].h, args_.grids[0].w});
  }
  if (!IsCentred()) return first;
  // Above the rows and columns of all grids, as far as their centre is from their end.
  for (int32_t g = 0; g < args_.count; ++g) {
    first = std::max<int64_t>({first, args_.grids[g].h / 2, args_.grids[g].w / 2});
  }
  if (Is(LatentRule::kQwenImageLayered)) first = std::max<int64_t>(first, args_.count - 1);
  return first;
}

// The id of the first frame of a grid.
int64_t Call::FirstFrame(int32_t index) const {
  switch (model_.rule) {
    case LatentRule::kFlux:
    case LatentRule::kReferences:
    case LatentRule::kQwenImage: return index;
    case LatentRule::kLongCat: return index + 1;
    case LatentRule::kQwenImageLayered: return index == args_.count - 1 ? -1 : index;
    case LatentRule::kFlux2: return kReferenceStep * index;
    case LatentRule::kLumina2: return args_.text;
    case LatentRule::kZImage: return TextTokens() + 1;
    default: return 0;
  }
}

// The side of a grid that an axis counts.
int Call::SideOf(int axis) const { return model_.axes == 2 ? axis + 1 : std::min(axis, kNoSide); }

float Call::IdOf(const rope_latent_grid& grid, int64_t frame, int side, int64_t index) const {
  if (side == kNoSide) return 0;
  const int32_t size = side == kRows ? grid.h : grid.w;
  switch (model_.rule) {
    case LatentRule::kQwenImage:
    case LatentRule::kQwenImageLayered:
    case LatentRule::kNucleus:
      if (side != kFrames) return static_cast<float>(index - (size - size / 2));
      break;
    case LatentRule::kLongCat:
      if (side != kFrames) return static_cast<float>(args_.text + index);
      break;
    case LatentRule::kChronoEdit:
      if (side == kFrames && grid.t == 2 && index == 1) return static_cast<float>(model_.side[0]);
      break;
    case LatentRule::kCogVideo:
    case LatentRule::kEasyAnimate:
      if (side != kFrames && model_.side[0] != 0) {
        return Between(StretchOf(grid, model_.side, side), index, size);
      }
      break;
    case LatentRule::kCogView4: return static_cast<float>(index * model_.side[side - 1] / size);
    case LatentRule::kCosmos:
      if (side == kFrames && args_.fps != 0) {
        return static_cast<float>(index) / static_cast<float>(args_.fps) *
               static_cast<float>(kCosmosFps);
      }
      break;
    case LatentRule::kAllegro:
      return static_cast<float>(index) / static_cast<float>(model_.scale[side]);
    case LatentRule::kKandinsky: {
      const double scales[] = {args_.scale_t, args_.scale_h, args_.scale_w};
      if (scales[side] == 0) break;
      return static_cast<float>(index) / static_cast<float>(scales[side]);
    }
    case LatentRule::kLtx: return LtxCoordinate(model_.ltx, args_, side, index);
    case LatentRule::kLtx2: return Ltx2Coordinate(model_.ltx, args_.fps, side, index);
    case LatentRule::kLtx2Audio: return Ltx2AudioCoordinate(model_.ltx, index);
    default: break;
  }
  return static_cast<float>(side == kFrames ? frame + index : index);
}

void Call::WriteText() {
  const int64_t first = FirstTextId();
  for (int64_t i = 0; i < TextTokens(); ++i, ++token_) {
    for (int axis = 0; axis < model_.axes; ++axis) {
      const int side = SideOf(axis);
      const bool counts = rule_.text == Text::kAllAxes ||
                          (rule_.text == Text::kFrames && side == kFrames) ||
                          (rule_.text == Text::kSides && side != kFrames) ||
                          (rule_.text == Text::kFourth && side == kNoSide);
      Put(axis, counts ? static_cast<float>(first + i) : 0.f);
    }
  }
}

void Call::WriteGrid(int32_t index) {
  const rope_latent_grid& grid = args_.grids[index];
  const int64_t frame = FirstFrame(index);
  for (int64_t t = 0; t < grid.t; ++t) {
    for (int64_t h = 0; h < grid.h; ++h) {
      for (int64_t w = 0; w < grid.w; ++w, ++token_) {
        const int64_t at[] = {t, h, w, 0};
        for (int axis = 0; axis < model_.axes; ++axis) {
          Put(axis, IdOf(grid, frame, SideOf(axis), at[SideOf(axis)]));
        }
      }
    }
  }
}

void Call::WritePadding() {
  for (int64_t i = PaddingTokens(); i > 0; --i, ++token_) {
    for (int axis = 0; axis < model_.axes; ++axis) Put(axis, 0);
  }
}

void Call::Write(float* ids) {
  ids_ = ids;
  if (!rule_.text_last) WriteText();
  for (int32_t g = 0; g < args_.count; ++g) WriteGrid(g);
  WritePadding();
  if (rule_.text_last) WriteText();
}

}  // namespace

rope_status WriteLatentIds(const char* function, const LatentIds& model,
                           const rope_latent_args& args, float* ids, int64_t capacity,
                           int64_t* tokens) {
  Call call(function, model, args);
  if (rope_status s = call.Check()) return s;
  const int64_t values = model.axes * call.tokens();
  if (!IsAligned(ids, alignof(float))) {
    return Fail(ROPE_ERROR_INVALID_ARGUMENT, "%s: ids must be aligned to its element", function);
  }
  if (ids == nullptr ? capacity != 0 : capacity != values) {
    return Fail(ROPE_ERROR_INVALID_ARGUMENT,
                "%s: capacity (%lld) must be %lld: %d axes of %lld tokens, or 0 with ids NULL",
                function, static_cast<long long>(capacity), static_cast<long long>(values),
                model.axes, static_cast<long long>(call.tokens()));
  }
  if (ids != nullptr) call.Write(ids);
  *tokens = call.tokens();
  return ROPE_OK;
}

}  // namespace rope::model
