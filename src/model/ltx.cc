#include "model/ltx.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "base/limits.h"
#include "model/axes.h"
#include "model/layers.h"
#include "model/unread.h"

namespace rope::model {
namespace {

constexpr std::string_view kLtx = "LTXVideoTransformer3DModel",
                           kLtx2 = "LTX2VideoTransformer3DModel";
constexpr double kPi = 3.14159265358979323846;

// torch.linspace(0, 1, count) of either precision, as on CPUs with fused multiply-add.
template <class Real>
Real Between0And1(int index, int count) {
  if (count == 1) return 0;
  const Real step = 1 / static_cast<Real>(count - 1);
  if (index < count / 2) return step * static_cast<Real>(index);
  return std::fma(-step, static_cast<Real>(count - index - 1), Real{1});
}

// theta ** x * pi / 2 for x from 0 to 1, rounded to f32 at every step, or at the end.
double FrequencyOf(double theta, int index, int count, bool f64) {
  if (f64) {
    const double power = std::pow(theta, Between0And1<double>(index, count));
    return static_cast<float>(power * kPi / 2);
  }
  const auto power = static_cast<float>(
      std::pow(double{static_cast<float>(theta)}, double{Between0And1<float>(index, count)}));
  return power * static_cast<float>(kPi) / 2;
}

// The heads of one attention.
struct Heads {
  int count, dim;
};

class Reader {
 public:
  explicit Reader(const Dict& root) : root_(root) {}

  void ReadLtx(ParsedModel* out) const;
  void ReadLtx2(ParsedModel* out) const;

 private:
  double Whole(const std::string& key, int64_t otherwise) const {
    return static_cast<double>(root_.Integer(key, 1, kMaxWidth).value_or(otherwise));
  }
  Heads HeadsOf(const std::string& prefix, int dim) const;
  void ReadPixels(double (&pixels)[3]) const;
  bool IsSplit() const;
  void RejectCrossWidth(const Heads& heads, const Heads& audio, bool split) const;
  void AddLayers(int64_t otherwise, ParsedModel* out) const;

  const Dict& root_;
};

Heads Reader::HeadsOf(const std::string& prefix, int dim) const {
  const std::string count_key = prefix + "num_attention_heads",
                    dim_key = prefix + "attention_head_dim";
  const auto count = root_.Integer(count_key, 1, kMaxFrequencyHeads).value_or(32);
  const auto width = root_.Integer(dim_key, 2, kMaxHeadDim).value_or(dim);
  if (width % 2 != 0) RejectValue(root_.Path(dim_key), *root_.Find(dim_key), "be even");
  return {static_cast<int>(count), static_cast<int>(width)};
}

void Reader::ReadPixels(double (&pixels)[3]) const {
  constexpr char kKey[] = "vae_scale_factors";
  const Value::Array* list = root_.Array(kKey);
  if (list == nullptr) return;
  const std::string path = root_.Path(kKey);
  if (list->size() != 3) {
    Reject(ROPE_ERROR_PARSE, "%s has %zu entries and must have 3", path.c_str(), list->size());
  }
  for (size_t side = 0; side < 3; ++side) {
    const std::string entry = path + "[" + std::to_string(side) + "]";
    pixels[side] = static_cast<double>(ToInteger(entry, (*list)[side], 1, kMaxWidth));
  }
}

bool Reader::IsSplit() const {
  constexpr char kKey[] = "rope_type";
  const std::string_view type = root_.String(kKey).value_or("interleaved");
  if (type != "interleaved" && type != "split") {
    RejectValue(root_.Path(kKey), *root_.Find(kKey), "be \"interleaved\" or \"split\"");
  }
  return type == "split";
}

// Attention between video and audio has the heads of audio's; where pairs are halves, its angles
// are cut by the number of video's.
void Reader::RejectCrossWidth(const Heads& heads, const Heads& audio, bool split) const {
  constexpr char kWidth[] = "audio_cross_attention_dim";
  const auto width = root_.Integer(kWidth, 2, kMaxWidth).value_or(2048);
  if (width != int64_t{audio.count} * audio.dim) {
    Reject(ROPE_ERROR_PARSE, "%s (%lld) must be that of audio's heads, %d * %d",
           root_.Path(kWidth).c_str(), static_cast<long long>(width), audio.count, audio.dim);
  }
  if (split && heads.count != audio.count) {
    Reject(ROPE_ERROR_PARSE, "%s (%d) must be %s (%d) with rope_type \"split\"",
           root_.Path("audio_num_attention_heads").c_str(), audio.count, "num_attention_heads",
           heads.count);
  }
}

void Reader::AddLayers(int64_t otherwise, ParsedModel* out) const {
  const int64_t layers = root_.Integer("num_layers", 0, kMaxLayers).value_or(otherwise);
  out->layers.assign(static_cast<size_t>(layers), 0);
}

// The pairs of all heads, one after the other, turn by axis 0, 1, .. with the first frequency, then
// with the second; the first few, where the axes do not divide them, by none.
LayerType KindOf(std::string name, const Heads& heads, int axes, double theta, bool f64) {
  LayerType type;
  type.name = std::move(name);
  rope_config& config = type.config;
  config.head_dim = heads.dim;
  config.pairing = ROPE_PAIRING_INTERLEAVED;
  config.rounding = ROPE_ROUNDING_FLOAT32;
  SetImageAxes(axes, &config);
  config.freq_heads = heads.count;
  const int pairs = heads.count * (heads.dim / 2), count = pairs / axes;
  type.frequency.assign(static_cast<size_t>(axes) * static_cast<size_t>(pairs), 0);
  for (int n = 0, pair = pairs - axes * count; n < count; ++n) {
    const double frequency = FrequencyOf(theta, n, count, f64);
    for (int axis = 0; axis < axes; ++axis, ++pair) {
      type.frequency[static_cast<size_t>(axis) * static_cast<size_t>(pairs) +
                     static_cast<size_t>(pair)] = frequency;
    }
  }
  return type;
}

void Reader::ReadLtx(ParsedModel* out) const {
  LatentIds ids = {LatentRule::kLtx, 3, {}, {}, {}};
  const double side = Whole("patch_size", 1);
  ids.ltx = {{Whole("patch_size_t", 1), side, side}, {}, {20, 2048, 2048}, 0, 0, 0};
  out->types.push_back(KindOf(std::string(kFull), HeadsOf("", 64), 3, 10000, false));
  out->latent_ids.push_back(ids);
  AddLayers(28, out);
}

void Reader::ReadLtx2(ParsedModel* out) const {
  const bool split = IsSplit(), f64 = root_.Bool("rope_double_precision").value_or(true);
  const double theta = root_.Positive("rope_theta").value_or(10000);
  const Heads heads = HeadsOf("", 128), audio = HeadsOf("audio_", 64);
  RejectCrossWidth(heads, audio, split);
  const double offset =
      static_cast<double>(root_.Integer("causal_offset", 0, kMaxWidth).value_or(1));
  const double seconds = Whole("pos_embed_max_pos", 20),
               heard = Whole("audio_pos_embed_max_pos", 20), most = std::max(seconds, heard);
  const double side = Whole("patch_size", 1);
  LtxCoordinates video = {{Whole("patch_size_t", 1), side, side},
                          {8, 32, 32},
                          {seconds, Whole("base_height", 2048), Whole("base_width", 2048)},
                          offset,
                          0,
                          0};
  ReadPixels(video.pixels);
  root_.Find("audio_patch_size");  // audio has no rows
  const LtxCoordinates sound = {{Whole("audio_patch_size_t", 1), 0, 0},
                                {Whole("audio_scale_factor", 4), 0, 0},
                                {heard, 0, 0},
                                offset,
                                Whole("audio_hop_length", 160),
                                Whole("audio_sampling_rate", 16000)};
  const auto add = [&](const char* name, const Heads& of, LatentRule rule, int axes,
                       LtxCoordinates at, double base) {
    at.base[0] = base;
    out->types.push_back(KindOf(name, of, axes, theta, f64));
    if (split) out->types.back().config.pairing = ROPE_PAIRING_HALVES;
    out->latent_ids.push_back({rule, axes, {}, {}, at});
  };
  add("video", heads, LatentRule::kLtx2, 3, video, seconds);
  add("audio", audio, LatentRule::kLtx2Audio, 1, sound, heard);
  add("cross_video", audio, LatentRule::kLtx2, 1, video, most);
  add("cross_audio", audio, LatentRule::kLtx2Audio, 1, sound, most);
  root_.Find("use_keyframes_abs_pos_embedding");  // is added to tokens, and turns nothing
  AddLayers(48, out);
}

}  // namespace

bool IsLtx(std::string_view class_name) { return class_name == kLtx || class_name == kLtx2; }

void AddLtx(const Dict& root, std::string_view class_name, ParsedModel* out) {
  const Reader reader(root);
  if (class_name == kLtx) {
    reader.ReadLtx(out);
  } else {
    reader.ReadLtx2(out);
  }
  RejectUnread(root);
}

}  // namespace rope::model
