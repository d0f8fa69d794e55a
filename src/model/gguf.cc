#include "model/gguf.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <tuple>
#include <utility>

#include "base/limits.h"
#include "model/gguf_architectures.h"
#include "model/gguf_keys.h"
#include "model/gguf_layers.h"
#include "model/gguf_scaling.h"
#include "model/layers.h"

namespace rope::model {
namespace {

constexpr double kUsualBase = 10000;  // of llama.cpp, where the file gives none

int32_t Even(const GgufKeys& keys, std::string_view key, int64_t value) {
  if (value % 2 != 0) keys.RejectKey(key, "be even");
  return static_cast<int32_t>(value);
}

// The width of a head of q and k. `suffix`: of layers with a window, whose keys come first.
int32_t HeadDim(const GgufKeys& keys, const GgufArchitecture& architecture, const char* suffix) {
  std::vector<std::string> names;
  const std::string length = "attention.key_length";
  if (architecture.Is(kLatent)) names.push_back(length + "_mla");
  if (architecture.Is(kWindowSpans)) names.push_back(length + suffix);
  names.push_back(length);
  constexpr char kOfWindows[] = "attention.key_length_swa";
  if (!architecture.Is(kWindowSpans) && keys.Mentions(kOfWindows)) {
    keys.RejectKey(kOfWindows, "be absent: heads of this architecture have one width",
                   ROPE_ERROR_UNSUPPORTED);
  }
  for (const std::string& name : names) {
    if (const auto given = keys.Integer(name, 2, kMaxHeadDim)) return Even(keys, name, *given);
  }
  constexpr char kHeads[] = "attention.head_count";
  const int64_t width = keys.Required("embedding_length", 1, kMaxWidth);
  const bool array = keys.IsArray(kHeads);
  const int64_t heads =
      array ? keys.Array(kHeads, 1, kMaxLayers)[0] : keys.Required(kHeads, 1, kMaxWidth);
  if (heads < 1) keys.RejectMissing(length, "the first layer has no heads to compute it from");
  const int64_t head_dim = width / heads;
  if (width % heads != 0 || head_dim < 2 || head_dim > kMaxHeadDim || head_dim % 2 != 0) {
    keys.RejectMissing(length, "embedding_length (" + std::to_string(width) + ") / head_count (" +
                                   std::to_string(heads) + ") is no even width of a head");
  }
  return static_cast<int32_t>(head_dim);
}

void FillSpan(const GgufKeys& keys, const GgufArchitecture& architecture, bool window,
              rope_config* config) {
  config->head_dim = HeadDim(keys, architecture, window ? "_swa" : "");
  const char* key = "rope.dimension_count";
  auto count = keys.Integer(key, 2, kMaxHeadDim);
  constexpr char kOfWindows[] = "rope.dimension_count_swa";
  if (window && architecture.Is(kWindowSpans) && keys.Mentions(kOfWindows)) {
    count = keys.Integer(key = kOfWindows, 2, kMaxHeadDim);
  }
  int64_t span = count.value_or(config->head_dim);
  if (architecture.Is(kWholeHead) && span != config->head_dim) {
    keys.RejectKey(key, "be the width of a head (" + std::to_string(config->head_dim) + ")");
  }
  if (architecture.Is(kHalfInFull) && !window) span /= 2;
  if (span > config->head_dim) {
    keys.RejectKey(key,
                   "be at most the width of a head (" + std::to_string(config->head_dim) + ")");
  }
  config->rotary_dim = Even(keys, key, span);
  if (architecture.Is(kLatent)) config->rotary_offset = config->head_dim - config->rotary_dim;
  if (config->rotary_dim == config->head_dim) config->rotary_dim = 0;
}

// The axis that drives each pair, as ggml goes round the sections. librope's sections add up to the
// pairs, and ggml's need not.
void FillSections(const GgufKeys& keys, bool interleaved, LayerType* type) {
  constexpr char kKey[] = "rope.dimension_sections";
  constexpr int kSections = 4;
  std::vector<int64_t> sections = keys.Array(kKey, 3, kSections);
  if (sections.empty()) keys.RejectMissing(kKey, "pairs of this architecture have several axes");
  sections.resize(kSections, 0);
  rope_config& config = type->config;
  const int pairs = SpanOf(config) / 2;
  int64_t sum = 0;
  for (int64_t section : sections) {
    if (section < 0 || section > kMaxPairs) keys.RejectKey(kKey, "have entries from 0 on");
    sum += section;
  }
  if (sum != pairs) {
    Reject(ROPE_ERROR_UNSUPPORTED,
           "%s adds up to %lld, and must add up to the number of pairs (%d)",
           keys.Path(kKey).c_str(), static_cast<long long>(sum), pairs);
  }
  if (interleaved && sections[3] != 0) {
    Reject(ROPE_ERROR_UNSUPPORTED,
           "%s has a fourth section (%lld), which must be 0 where axes are "
           "interleaved",
           keys.Path(kKey).c_str(), static_cast<long long>(sections[3]));
  }
  config.axes = sections[3] != 0 ? kSections : 3;
  config.mrope_interleaved = interleaved ? 1 : 0;
  for (int a = 0; a < kSections; ++a) config.mrope_section[a] = static_cast<int32_t>(sections[a]);
}

// Sections that are there and not all on the first axis make some architectures multimodal.
bool HasSections(const GgufKeys& keys) {
  const std::vector<int64_t> sections = keys.Array("rope.dimension_sections", 3, 4);
  return !sections.empty() && sections[0] > 0 && sections[1] > 0;
}

void FillPairs(const GgufKeys& keys, const GgufArchitecture& architecture, LayerType* type) {
  const GgufMode mode = architecture.mode;
  const bool may = mode == GgufMode::kNormOrMrope || mode == GgufMode::kNeoxOrMrope;
  const bool sections =
      mode == GgufMode::kMrope || mode == GgufMode::kImrope || (may && HasSections(keys));
  const bool neighbours = !sections && (mode == GgufMode::kNorm || mode == GgufMode::kNormOrMrope);
  type->config.pairing = neighbours ? ROPE_PAIRING_INTERLEAVED : ROPE_PAIRING_HALVES;
  if (sections) FillSections(keys, mode == GgufMode::kImrope, type);
}

double Base(const GgufKeys& keys, std::string_view key, double otherwise) {
  const auto base = keys.Number(key);
  if (base && *base <= 0) keys.RejectKey(key, "be positive");
  return base.value_or(otherwise);
}

double ThetaOf(const GgufKeys& keys, const GgufArchitecture& architecture, bool window) {
  constexpr char kBase[] = "rope.freq_base", kOfWindows[] = "rope.freq_base_swa";
  const double full = Base(keys, kBase, kUsualBase);
  if (architecture.Is(kFixed) && full != kUsualBase) {
    keys.RejectKey(kBase, "be 10000, which is what this architecture takes",
                   ROPE_ERROR_UNSUPPORTED);
  }
  if (!window) return full;
  switch (architecture.window_base) {
    case GgufWindowBase::kOwn: return Base(keys, kOfWindows, full);
    case GgufWindowBase::kLocal: return Base(keys, kOfWindows, kUsualBase);
    case GgufWindowBase::kSame: break;
  }
  if (Base(keys, kOfWindows, full) != full) {
    keys.RejectKey(kOfWindows, "be rope.freq_base, which all layers of this architecture take",
                   ROPE_ERROR_UNSUPPORTED);
  }
  return full;
}

// Hunyuan: a larger base, once and for all.
void FoldAlpha(const GgufKeys& keys, const GgufArchitecture& architecture, LayerType* type) {
  constexpr char kKey[] = "rope.scaling.alpha";
  if (!architecture.Is(kAlpha)) return;
  const double theta = type->config.theta;
  const int head_dim = type->config.head_dim;
  const double alpha = keys.Number(kKey).value_or(0);
  if (alpha < 0) keys.RejectKey(kKey, "not be negative");
  if (alpha == 0) return;
  if (head_dim <= 2) keys.RejectKey(kKey, "be absent where heads have 2 channels");
  type->config.theta *= std::pow(alpha, static_cast<double>(head_dim) / (head_dim - 2));
  type->follows = "theta (" + ToText(type->config.theta) + ") follows from rope.freq_base (" +
                  ToText(theta) + "), alpha (" + ToText(alpha) + ") and the width of a head";
}

LayerType Kind(const GgufFile& file, const GgufKeys& keys, const GgufArchitecture& architecture,
               bool window) {
  LayerType type;
  type.name = window ? kSliding : kFull;
  rope_config& config = type.config;
  FillSpan(keys, architecture, window, &config);
  FillPairs(keys, architecture, &type);
  config.theta = ThetaOf(keys, architecture, window);
  FoldAlpha(keys, architecture, &type);
  FillGgufScaling(file, keys, architecture, window, &type);
  return type;
}

LayerType UnrotatedKind(const GgufKeys& keys, const GgufArchitecture& architecture) {
  LayerType type;
  type.name = kNope;
  type.config.head_dim = HeadDim(keys, architecture, "");
  type.config.scaling = ROPE_SCALING_NOPE;
  return type;
}

// The rotation of the layers, for the indexer's own heads.
void AddIndexer(const GgufKeys& keys, GgufIndexer indexer, const LayerType& full,
                ParsedModel* out) {
  constexpr char kWidth[] = "attention.indexer.key_length";
  const auto width = keys.Integer(kWidth, 2, kMaxHeadDim);
  if (indexer == GgufIndexer::kNone || !width) return;
  LayerType type = full;
  type.name = "indexer";
  const int span = SpanOf(full.config);
  if (*width < span) {
    keys.RejectKey(kWidth,
                   "be at least the number of rotated channels (" + std::to_string(span) + ")");
  }
  type.config.head_dim = Even(keys, kWidth, *width);
  type.config.rotary_dim = span == *width ? 0 : span;
  const bool tail = indexer == GgufIndexer::kInterleavedTail;
  type.config.rotary_offset = tail ? type.config.head_dim - span : 0;
  type.config.pairing =
      indexer == GgufIndexer::kHalves ? ROPE_PAIRING_HALVES : ROPE_PAIRING_INTERLEAVED;
  out->types.push_back(std::move(type));
}

// One kind where layers with and without a window rotate alike.
bool SameRotation(const LayerType& a, const LayerType& b) {
  const auto numbers = [](const rope_config& c) {
    return std::make_tuple(c.head_dim, c.rotary_dim, c.theta, c.scaling, c.factor,
                           c.attention_factor);
  };
  return numbers(a.config) == numbers(b.config) && a.freq_factors == b.freq_factors &&
         a.long_factor == b.long_factor;
}

void AddKinds(const GgufFile& file, const GgufKeys& keys, const GgufArchitecture& architecture,
              ParsedModel* out) {
  const std::vector<GgufLayer> layers = GgufLayers(keys, architecture);
  const auto has = [&layers](GgufLayer kind) {
    return std::find(layers.begin(), layers.end(), kind) != layers.end();
  };
  // That without a window is made in any case, so that its keys are read and checked.
  const LayerType full = Kind(file, keys, architecture, false);
  const LayerType window = Kind(file, keys, architecture, true);
  const bool one = has(GgufLayer::kFull) && SameRotation(full, window);
  int32_t number_of[] = {-1, -1, -1};
  for (GgufLayer layer : layers) {
    if (one && layer == GgufLayer::kWindow) layer = GgufLayer::kFull;
    int32_t& number = number_of[static_cast<int>(layer)];
    if (number < 0) {
      number = static_cast<int32_t>(out->types.size());
      out->types.push_back(layer == GgufLayer::kFull     ? full
                           : layer == GgufLayer::kWindow ? window
                                                         : UnrotatedKind(keys, architecture));
    }
    out->layers.push_back(number);
  }
  AddIndexer(keys, architecture.indexer, full, out);
}

}  // namespace

GgufParts PartsOf(const GgufFile& file) {
  const GgufKeys general(file, "general."), split(file, "split.");
  const auto name = general.String("architecture");
  GgufParts parts;
  if (!name || split.Integer("no", 0, UINT16_MAX).value_or(0) != 0) return parts;
  parts.count = split.Integer("count", 0, UINT16_MAX).value_or(1);
  if (parts.count <= 1 || !file.rope_tensors.empty()) return parts;
  const GgufArchitecture& architecture = FindGgufArchitecture(*name);
  parts.needed =
      architecture.Is(kFreqs) || architecture.Is(kLongShort) || architecture.Is(kLongShortAlways);
  return parts;
}

void CheckPart(const GgufFile& file, int64_t part, int64_t count) {
  const GgufKeys split(file, "split.");
  for (const char* key : {"count", "no"}) {
    if (!split.Mentions(key)) split.RejectMissing(key, "the file is to be a part of a model");
  }
  if (split.Integer("count", 0, UINT16_MAX) != count) {
    split.RejectKey("count", "be that of the first part (" + std::to_string(count) + ")");
  }
  if (split.Integer("no", 0, UINT16_MAX) != part - 1) {
    split.RejectKey("no", "be " + std::to_string(part - 1) + " in this part");
  }
}

void ReadGguf(const GgufFile& file, ParsedModel* out) {
  const GgufKeys split(file, "split.");
  if (split.Integer("no", 0, UINT16_MAX).value_or(0) != 0) {
    split.RejectKey("no", "be 0: the first part of a model has its keys", ROPE_ERROR_UNSUPPORTED);
  }
  const GgufKeys general(file, "general.");
  const auto type = general.String("type");
  if (type && *type != "model") {
    general.RejectKey("type", "be \"model\": adapters and towers do not describe a rotation",
                      ROPE_ERROR_UNSUPPORTED);
  }
  const auto name = general.String("architecture");
  if (!name) general.RejectMissing("architecture", "it tells which channels form a pair");
  const GgufArchitecture& architecture = FindGgufArchitecture(*name);
  const GgufKeys keys(file, std::string(*name) + ".");
  AddKinds(file, keys, architecture, out);
  RejectUnread(file);
}

}  // namespace rope::model
