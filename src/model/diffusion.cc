#include "model/diffusion.h"

#include <cmath>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/limits.h"
#include "model/axes.h"
#include "model/dialects.h"
#include "model/diffusion_classes.h"
#include "model/layers.h"
#include "model/ltx.h"
#include "model/unread.h"

namespace rope::model {
namespace {

constexpr char kClassName[] = "_class_name", kHeadDim[] = "attention_head_dim";

[[noreturn]] void RejectClass(const Dict& root, std::string_view name) {
  const std::string path = root.Path(kClassName), shown = Printable(name);
  if (const char* why = WhyDiffusionClassIsRefused(name)) {
    Reject(ROPE_ERROR_UNSUPPORTED, "%s (\"%s\") is not read: %s", path.c_str(), shown.c_str(), why);
  }
  constexpr std::string_view kPipeline = "Pipeline";
  const bool pipeline =
      name.size() > kPipeline.size() && name.substr(name.size() - kPipeline.size()) == kPipeline;
  Reject(ROPE_ERROR_UNSUPPORTED, "%s (\"%s\") %s", path.c_str(), shown.c_str(),
         pipeline ? "is a pipeline, whose RoPE stands in the config.json of its transformer"
                  : "is no class of diffusers whose RoPE this version reads");
}

// The class, and what the text says about it.
class Reader {
 public:
  Reader(const Dict& root, const DiffusionClass& known) : root_(root), known_(known) {}

  void Read(ParsedModel* out);

 private:
  int WidthOfHead() const;
  std::vector<int> ListedDims() const;
  std::vector<int> Dims(int head_dim) const;
  std::vector<double> Frequencies(double theta, int dim) const;
  double ThetaOf(size_t axis, int dim) const;
  LatentIds Ids(int axes) const;
  LayerType Kind() const;
  LayerType TextKind(int head_dim) const;
  void AddLayers(ParsedModel* out) const;
  double Positive(const char* key, double otherwise) const;
  int64_t Side(const char* key, int64_t otherwise) const;

  const Dict& root_;
  const DiffusionClass& known_;
};

double Reader::Positive(const char* key, double otherwise) const {
  return root_.Positive(key).value_or(otherwise);
}

int64_t Reader::Side(const char* key, int64_t otherwise) const {
  return root_.Integer(key, 1, kMaxWidth).value_or(otherwise);
}

// Of kSum only as far as the axes do not tell: 0.
int Reader::WidthOfHead() const {
  if (known_.width == Width::kSum) return 0;
  if (known_.width != Width::kKey) {
    const bool dim = known_.width == Width::kDimByHeads;
    const char *width_key = dim ? "dim" : "hidden_size",
               *heads_key = dim ? "n_heads" : "num_attention_heads";
    const int64_t width = Side(width_key, known_.head_dim), heads = Side(heads_key, known_.heads);
    const int64_t head_dim = width / heads;
    if (width % heads != 0 || head_dim < 2 || head_dim > kMaxHeadDim || head_dim % 2 != 0) {
      Reject(ROPE_ERROR_PARSE, "%s (%lld) / %s (%lld) must be an even number from 2 to %d",
             root_.Path(width_key).c_str(), static_cast<long long>(width), heads_key,
             static_cast<long long>(heads), kMaxHeadDim);
    }
    return static_cast<int>(head_dim);
  }
  return static_cast<int>(root_.Integer(kHeadDim, 2, kMaxHeadDim).value_or(known_.head_dim));
}

std::vector<int> Reader::ListedDims() const {
  std::vector<int> dims;
  const Value::Array* list = root_.Array(known_.dims_key);
  size_t axes = 0;
  while (axes < std::size(known_.dims) && known_.dims[axes] != 0) ++axes;
  if (known_.split == Split::kListedHalf) axes = 3;  // without a default that works
  if (list == nullptr) {
    if (known_.dims[0] == 0)
      root_.RejectMissing(known_.dims_key, "the class has no default that works");
    return {known_.dims, known_.dims + axes};
  }
  const std::string path = root_.Path(known_.dims_key);
  const bool image = known_.name == "HunyuanImageTransformer2DModel";  // with frames, or without
  if (list->size() != axes && !(image && list->size() == 3)) {
    Reject(ROPE_ERROR_PARSE, "%s has %zu entries and must have %zu", path.c_str(), list->size(),
           axes);
  }
  for (size_t a = 0; a < list->size(); ++a) {
    const std::string entry = path + "[" + std::to_string(a) + "]";
    dims.push_back(static_cast<int>(ToInteger(entry, (*list)[a], 2, kMaxHeadDim)));
    if (dims.back() % 2 != 0) RejectValue(entry, (*list)[a], "be even");
  }
  return dims;
}

// The channels of each axis. `head_dim` 0: their sum.
std::vector<int> Reader::Dims(int head_dim) const {
  std::vector<int> dims;
  switch (known_.split) {
    case Split::kListed:
    case Split::kListedHalf: dims = ListedDims(); break;
    case Split::kThirds: {
      const int side = 2 * (head_dim / 6);
      dims = {head_dim - 2 * side, side, side};
      break;
    }
    case Split::kEqual: dims = {head_dim / 3, head_dim / 3, head_dim / 3}; break;
    case Split::kEighths: dims = {head_dim / 4, head_dim / 8 * 3, head_dim / 8 * 3}; break;
    case Split::kTwoHalves: dims = {head_dim / 2, head_dim / 2}; break;
  }
  int sum = 0;
  bool pairs = true;
  for (int dim : dims) {
    sum += dim;
    pairs = pairs && dim % 2 == 0 && dim > 0;
  }
  const bool half = known_.split == Split::kListedHalf && 2 * sum == head_dim;
  if (head_dim == 0 || (sum == head_dim && pairs) || half) {
    if (sum > kMaxHeadDim) {
      Reject(ROPE_ERROR_PARSE, "%s adds up to %d and must add up to at most %d",
             root_.Path(known_.dims_key).c_str(), sum, kMaxHeadDim);
    }
    return dims;
  }
  if (known_.dims_key == nullptr) {
    Reject(ROPE_ERROR_PARSE,
           "%s (%d) must be a width that this class can divide into pairs of %zu axes",
           root_.Path(kHeadDim).c_str(), head_dim, dims.size());
  }
  Reject(ROPE_ERROR_PARSE, "%s adds up to %d and must add up to the width of a head, %d",
         root_.Path(known_.dims_key).c_str(), sum, head_dim);
}

// Those of one axis, in the precision of the class.
std::vector<double> Reader::Frequencies(double theta, int dim) const {
  if (known_.power == Power::kFloat32) return DefaultFrequencies(kFull, theta, dim);
  std::vector<double> frequencies;
  for (int i = 0; i < dim / 2; ++i) {
    if (known_.power == Power::kFloat64) {
      frequencies.push_back(1 / std::pow(theta, 2.0 * i / dim));
      continue;
    }
    const float product = static_cast<float>(-std::log(theta)) * static_cast<float>(i);
    const float exponent = product / static_cast<float>(dim / 2);
    frequencies.push_back(static_cast<float>(std::exp(double{exponent})));
  }
  return frequencies;
}

double Reader::ThetaOf(size_t axis, int dim) const {
  if (known_.ids == LatentRule::kCosmos) {  // NTK, by axis
    constexpr double kDefault[] = {2, 1, 1};
    const Value::Array* list = root_.Array("rope_scale");
    const std::string path = root_.Path("rope_scale");
    if (list != nullptr && list->size() != 3) {
      Reject(ROPE_ERROR_PARSE, "%s has %zu entries and must have 3", path.c_str(), list->size());
    }
    const double scale = list == nullptr
                             ? kDefault[axis]
                             : ToPositive(path + "[" + std::to_string(axis) + "]", (*list)[axis]);
    if (dim <= 2) RejectValue(root_.Path(kHeadDim), *root_.Find(kHeadDim), "be at least 12");
    return known_.theta * std::pow(scale, static_cast<double>(dim) / (dim - 2));
  }
  return known_.theta_key != nullptr ? Positive(known_.theta_key, known_.theta) : known_.theta;
}

// What the ids depend on beside the sizes of a call.
LatentIds Reader::Ids(int axes) const {
  LatentIds ids = {known_.ids, axes, {}, {}, {}};
  switch (known_.ids) {
    case LatentRule::kQwenImage:
      if (root_.Bool("use_layer3d_rope").value_or(false)) ids.rule = LatentRule::kQwenImageLayered;
      break;
    case LatentRule::kCogVideo: {
      constexpr char kUse[] = "use_rotary_positional_embeddings";
      if (!root_.Bool(kUse).value_or(false)) {
        Reject(ROPE_ERROR_UNSUPPORTED, "%s must be true: this model has no RoPE",
               root_.Path(kUse).c_str());
      }
      const int64_t patch = Side("patch_size", 2);
      if (root_.Find("patch_size_t") == nullptr) {  // CogVideoX 1.5 does not stretch
        ids.side[0] = Side("sample_height", 60) / patch;
        ids.side[1] = Side("sample_width", 90) / patch;
        if (ids.side[0] == 0 || ids.side[1] == 0) {
          Reject(ROPE_ERROR_PARSE, "%s must not be beyond sample_height and sample_width",
                 root_.Path("patch_size").c_str());
        }
      }
      break;
    }
    case LatentRule::kJoyImage: {
      constexpr char kType[] = "rope_type";
      const std::string_view type = root_.String(kType).value_or("rope");
      if (type == "mrope") {
        ids.rule = LatentRule::kJoyImageCounted;
      } else if (type != "rope") {
        RejectValue(root_.Path(kType), *root_.Find(kType), "be \"rope\" or \"mrope\"");
      }
      break;
    }
    case LatentRule::kEasyAnimate: {
      const auto patch = root_.Integer("patch_size", 1, 60);
      if (!patch) root_.RejectMissing("patch_size", "the class has no default");
      ids.side[0] = 60 / *patch;
      ids.side[1] = 90 / *patch;
      break;
    }
    case LatentRule::kChronoEdit: {
      const Value::Array* patch = root_.Array("patch_size");
      if (patch != nullptr && (patch->empty() || !Same((*patch)[0], Value{int64_t{1}}))) {
        Reject(ROPE_ERROR_UNSUPPORTED, "%s[0] must be 1: frames are told apart by their number",
               root_.Path("patch_size").c_str());
      }
      ids.side[0] = Side("rope_temporal_skip_len", 8) - 1;
      break;
    }
    case LatentRule::kCogView4: {
      const Value::Array* list = root_.Array("rope_axes_dim");
      const std::string path = root_.Path("rope_axes_dim");
      if (list != nullptr && list->size() != 2) {
        Reject(ROPE_ERROR_PARSE, "%s has %zu entries and must have 2", path.c_str(), list->size());
      }
      for (int a = 0; a < 2; ++a) {
        ids.side[a] = list == nullptr ? 256
                                      : ToInteger(path + "[" + std::to_string(a) + "]",
                                                  (*list)[static_cast<size_t>(a)], 1, kMaxWidth);
      }
      break;
    }
    case LatentRule::kHiDream: {
      constexpr char kMax[] = "max_resolution", kPatch[] = "patch_size";
      const auto patch = root_.Integer(kPatch, 1, kMaxWidth);
      if (!patch) root_.RejectMissing(kPatch, "the class has no default");
      const Value::Array* list = root_.Array(kMax);
      int64_t side[2] = {128, 128};
      for (size_t a = 0; list != nullptr && a < 2; ++a) {
        if (list->size() != 2) {
          Reject(ROPE_ERROR_PARSE, "%s has %zu entries and must have 2", root_.Path(kMax).c_str(),
                 list->size());
        }
        side[a] =
            ToInteger(root_.Path(kMax) + "[" + std::to_string(a) + "]", (*list)[a], 1, kMaxWidth);
      }
      ids.side[0] = side[0] * side[1] / (*patch * *patch);
      break;
    }
    case LatentRule::kZImage:  // of Omni, whose images begin behind text that is not padded
      if (root_.Peek("siglip_feat_dim") != nullptr) {
        Reject(ROPE_ERROR_UNSUPPORTED,
               "%s (%s) must be null in this version, as Omni's pipeline has other ids",
               root_.Path("siglip_feat_dim").c_str(), Show(*root_.Peek("siglip_feat_dim")).c_str());
      }
      break;
    case LatentRule::kAllegro:
      ids.scale[0] = Positive("interpolation_scale_t", 2.2);
      ids.scale[1] = Positive("interpolation_scale_h", 2.0);
      ids.scale[2] = Positive("interpolation_scale_w", 2.0);
      break;
    default: break;
  }
  return ids;
}

LayerType Reader::Kind() const {
  LayerType type;
  type.name = known_.ids == LatentRule::kKandinsky ? "visual" : std::string(kFull);
  rope_config& config = type.config;
  config.head_dim = WidthOfHead();
  config.pairing = known_.pairing;
  config.angle = known_.power == Power::kFloat64 ? ROPE_ANGLE_EXACT : ROPE_ANGLE_FLOAT32;
  config.rounding = ROPE_ROUNDING_FLOAT32;
  const std::vector<int> dims = Dims(config.head_dim);
  int sum = 0;
  SetImageAxes(static_cast<int>(dims.size()), &config);
  for (size_t axis = 0; axis < dims.size(); ++axis) {
    sum += dims[axis];
    const double theta = ThetaOf(axis, dims[axis]);
    for (double frequency : Frequencies(theta, dims[axis])) {
      type.inv_freq.push_back(frequency);
      if (config.pairing == ROPE_PAIRING_HALVES_PER_AXIS) continue;  // the pairing tells the axis
      type.pair_axis.push_back(static_cast<uint8_t>(axis));
    }
    if (config.pairing == ROPE_PAIRING_HALVES_PER_AXIS) config.mrope_section[axis] = dims[axis] / 2;
  }
  if (config.head_dim == 0) config.head_dim = sum;
  if (sum != config.head_dim) config.rotary_dim = sum;
  return type;
}

// Kandinsky 5: blocks over the text alone, with one axis.
LayerType Reader::TextKind(int head_dim) const {
  LayerType type;
  type.name = "text";
  type.config.head_dim = head_dim;
  type.config.pairing = known_.pairing;
  type.inv_freq = Frequencies(known_.theta, head_dim);
  return type;
}

void Reader::AddLayers(ParsedModel* out) const {
  const bool two_kinds = out->types.size() == 2;
  for (size_t i = 0; i < std::size(known_.layers_keys); ++i) {
    const char* key = known_.layers_keys[i];
    if (key == nullptr) continue;
    const int64_t layers = root_.Integer(key, 0, kMaxLayers / 2).value_or(known_.layers[i]);
    out->layers.insert(out->layers.end(), static_cast<size_t>(layers),
                       two_kinds ? static_cast<int32_t>(i) : 0);
  }
}

void Reader::Read(ParsedModel* out) {
  LayerType type = Kind();
  if (known_.ids == LatentRule::kKandinsky) {
    out->types.push_back(TextKind(type.config.head_dim));
    out->latent_ids.push_back({LatentRule::kKandinskyText, 1, {}, {}, {}});
  }
  out->latent_ids.push_back(Ids(type.config.axes));
  out->types.push_back(std::move(type));
  AddLayers(out);
  for (const char* key : known_.ignored) {
    if (key != nullptr) root_.Find(key);
  }
  RejectUnread(root_);
}

}  // namespace

bool IsDiffusion(const Dict& root) { return root.Mentions(kClassName); }

void AddDiffusion(const Dict& root, ParsedModel* out) {
  const auto name = root.String(kClassName);
  if (!name) root.RejectMissing(kClassName, "it is there, and null");
  const DiffusionClass* known = FindDiffusionClass(*name);
  if (known == nullptr && !IsLtx(*name)) RejectClass(root, *name);
  const Dialect* other = FindDialect(root);
  if (other != nullptr || root.Peek("model_type") != nullptr) {
    Reject(ROPE_ERROR_UNSUPPORTED, "%s (\"%s\") must not stand beside %s: the text has one program",
           root.Path(kClassName).c_str(), Printable(*name).c_str(),
           other != nullptr ? other->name : "model_type");
  }
  RejectNulls(root, *name == "PRXTransformer2DModel" ? "axes_dim" : "");  // null is its default
  if (IsLtx(*name)) {
    AddLtx(root, *name, out);
    return;
  }
  Reader(root, *known).Read(out);
}

}  // namespace rope::model
