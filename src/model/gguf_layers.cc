#include "model/gguf_layers.h"

#include <cstdlib>

#include "model/layers.h"

namespace rope::model {
namespace {

constexpr char kWindow[] = "attention.sliding_window";
constexpr char kPattern[] = "attention.sliding_window_pattern";

// A list with an entry for each layer; the blocks after them may have entries, too.
std::vector<int64_t> Listed(const GgufKeys& keys, std::string_view key, int layers, int blocks) {
  return keys.Array(key, static_cast<size_t>(layers), static_cast<size_t>(blocks));
}

bool HasWindows(const GgufKeys& keys, const GgufArchitecture& architecture, int layers) {
  const auto window = keys.Integer(kWindow, 0, kMaxLength);
  switch (architecture.windows) {
    case GgufWindows::kNone: return false;
    case GgufWindows::kPeriod:
    case GgufWindows::kListed:
      if (!window) keys.RejectMissing(kWindow, "layers of this architecture have windows");
      return true;
    case GgufWindows::kPeriodAlways: return true;
    case GgufWindows::kPeriodIfWindow: return window.value_or(0) > 0;
    case GgufWindows::kOf64Layers:
      if (layers != 64 && window.value_or(0) > 0) {
        keys.RejectKey(kWindow,
                       "be absent or 0: models of this architecture have windows if they "
                       "have 64 layers",
                       ROPE_ERROR_UNSUPPORTED);
      }
      return layers == 64;
    case GgufWindows::kChunks:
      if (window == 0) {
        keys.RejectKey(kWindow, "not be 0: which layers such a model rotates is not known",
                       ROPE_ERROR_UNSUPPORTED);
      }
      return true;
  }
  return false;
}

std::vector<bool> Windows(const GgufKeys& keys, const GgufArchitecture& architecture, int layers,
                          int blocks) {
  std::vector<bool> windows(layers, false);
  if (keys.IsArray(kPattern)) {
    const std::vector<int64_t> list = Listed(keys, kPattern, layers, blocks);
    for (int i = 0; i < layers; ++i) windows[i] = list[i] != 0;
    return windows;
  }
  if (architecture.windows == GgufWindows::kListed) {
    if (keys.Mentions(kPattern)) keys.RejectKey(kPattern, "be a list with an entry for each layer");
    keys.RejectMissing(kPattern, "it says which layers have windows");
  }
  const int own = std::abs(architecture.period);
  const int64_t period = keys.Integer(kPattern, 0, kMaxLayers).value_or(own);
  const int64_t full = architecture.period < 0 ? 0 : period - 1;
  for (int i = 0; i < layers; ++i) windows[i] = period == 0 || i % period != full;
  return windows;
}

std::vector<bool> Recurrent(const GgufKeys& keys, const GgufArchitecture& architecture, int layers,
                            int blocks) {
  std::vector<bool> recurrent(layers, false);
  constexpr char kInterval[] = "full_attention_interval", kList[] = "attention.recurrent_layers";
  if (architecture.recurrent == GgufRecurrent::kIntervals) {
    const int64_t interval = keys.Integer(kInterval, 1, kMaxLayers).value_or(architecture.interval);
    const std::vector<int64_t> list = Listed(keys, kList, layers, blocks);
    for (int i = 0; i < layers; ++i) {
      recurrent[i] = list.empty() ? (i + 1) % interval != 0 : list[i] != 0;
    }
  }
  // A layer without heads, of keys or at all, is no attention.
  for (const char* key : {"attention.head_count", "attention.head_count_kv"}) {
    if (!keys.IsArray(key)) continue;
    const std::vector<int64_t> heads = Listed(keys, key, layers, blocks);
    for (int i = 0; i < layers; ++i) recurrent[i] = recurrent[i] || heads[i] == 0;
  }
  return recurrent;
}

// Attention without RoPE.
std::vector<bool> Unrotated(const GgufKeys& keys, const GgufArchitecture& architecture,
                            bool has_windows, const std::vector<bool>& windows, int blocks) {
  const int layers = static_cast<int>(windows.size());
  std::vector<bool> unrotated(layers, false);
  const auto mark = [&](auto rule) {
    for (int i = 0; i < layers; ++i) unrotated[i] = rule(i);
  };
  // Files of every architecture may say it; where it is no switch it is a note about the training.
  const bool on = keys.Bool("rope.scaling.finetuned").value_or(true);
  switch (architecture.unrotated) {
    case GgufUnrotated::kNone: break;
    case GgufUnrotated::kFull:
      if (has_windows) mark([&](int i) { return !windows[i]; });
      break;
    case GgufUnrotated::kFullBeyondDense: {
      const int64_t dense = keys.Integer("leading_dense_block_count", 0, kMaxLayers).value_or(0);
      mark([&](int i) { return !windows[i] && i >= dense; });
      break;
    }
    case GgufUnrotated::kFourth: mark([](int i) { return (i + 1) % 4 == 0; }); break;
    case GgufUnrotated::kFirstIfWindow:
      if (has_windows) mark([](int i) { return i % 4 == 0; });
      break;
    case GgufUnrotated::kListed: {
      const auto list = Listed(keys, "attention.rope_pattern", layers, blocks);
      if (!list.empty()) mark([&](int i) { return list[i] == 0; });
      break;
    }
    case GgufUnrotated::kBySwitch: mark([on](int) { return !on; }); break;
  }
  return unrotated;
}

}  // namespace

std::vector<GgufLayer> GgufLayers(const GgufKeys& keys, const GgufArchitecture& architecture) {
  const auto blocks = static_cast<int>(keys.Required("block_count", 1, kMaxLayers));
  const auto further = keys.Integer("nextn_predict_layers", 0, blocks - 1).value_or(0);
  const int layers = blocks - static_cast<int>(further);
  constexpr int kBaichuan7B = 32;
  if (architecture.Is(kOf32Layers) && layers != kBaichuan7B) {
    keys.RejectKey("block_count", "be 32: the larger model of this architecture has ALiBi",
                   ROPE_ERROR_UNSUPPORTED);
  }
  const bool has_windows = HasWindows(keys, architecture, layers);
  std::vector<bool> windows(layers, false);
  if (has_windows) windows = Windows(keys, architecture, layers, blocks);
  const std::vector<bool> unrotated = Unrotated(keys, architecture, has_windows, windows, blocks);
  const std::vector<bool> recurrent = Recurrent(keys, architecture, layers, blocks);
  std::vector<GgufLayer> result;
  for (int i = 0; i < layers; ++i) {
    result.push_back(unrotated[i] || recurrent[i] ? GgufLayer::kUnrotated
                     : windows[i]                 ? GgufLayer::kWindow
                                                  : GgufLayer::kFull);
  }
  return result;
}

}  // namespace rope::model
