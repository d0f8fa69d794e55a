#include "model/vision.h"

#include <optional>
#include <string>

#include "base/limits.h"
#include "model/accept.h"
#include "model/axes.h"
#include "model/families.h"
#include "model/unread.h"

namespace rope::model {
namespace {

enum class Order : uint8_t {
  kRowColumn,       // first half of the pairs rows, second half columns, each with all frequencies
  kColumnRow,       // the other way round, ids still (row, column): Step 3.7
  kAlternating,     // pair by pair, columns first, both with the same frequency: Kimi-K2.5
  kSharedSpectrum,  // rows take the even, columns the odd frequencies of the whole head: Pixtral
  kBlocks,          // a block of channels for each coordinate: Gemma 4
  kThreeAxes        // frames, rows, columns; the channels that are left over pass: MiniMax-M3
};

struct Tower {
  std::string_view model_type;
  Order order;
  rope_pairing pairing;
  rope_rounding rounding;
  double theta;
  bool alone;                       // a model of its own
  int head_dim = 0;                 // class default, where published files rely on it
  bool fixed = false;               // head_dim holds whatever hidden_size says
  const char* width_key = nullptr;  // instead of hidden_size; must be there beside other sizes
};

constexpr rope_pairing kHalves = ROPE_PAIRING_HALVES, kInterleaved = ROPE_PAIRING_INTERLEAVED,
                       kPerAxis = ROPE_PAIRING_HALVES_PER_AXIS;
constexpr rope_rounding kFloat32 = ROPE_ROUNDING_FLOAT32, kEager = ROPE_ROUNDING_EAGER,
                        kCosSin = ROPE_ROUNDING_COS_SIN;

constexpr Tower kTowers[] = {
    {"Keye", Order::kRowColumn, kHalves, kFloat32, 10000, false},
    {"KeyeVL1_5", Order::kRowColumn, kHalves, kFloat32, 10000, false},
    {"bailing_moe_v3_vl", Order::kRowColumn, kHalves, kFloat32, 10000, false},
    {"bailingmm_moe_v2_lite", Order::kRowColumn, kHalves, kFloat32, 10000, false},
    {"cohere_compass", Order::kRowColumn, kHalves, kFloat32, 10000, false},
    {"cosmos3_edge", Order::kRowColumn, kHalves, kFloat32, 10000, false},
    {"deepseek_v41", Order::kRowColumn, kHalves, kFloat32, 10000, false},
    {"dinov3_vit", Order::kRowColumn, kHalves, kEager, 100, true},
    {"dots_ocr", Order::kRowColumn, kHalves, kFloat32, 10000, false},
    {"dots3_note", Order::kRowColumn, kHalves, kFloat32, 10000, false},
    {"dots_vlm", Order::kRowColumn, kHalves, kFloat32, 10000, false},
    {"edgetam_video", Order::kRowColumn, kInterleaved, kFloat32, 10000, true},
    {"eomt_dinov3", Order::kRowColumn, kHalves, kEager, 100, true},
    {"ernie4_5_vl_moe", Order::kRowColumn, kHalves, kFloat32, 10000, false},
    {"exaone4_5", Order::kRowColumn, kHalves, kFloat32, 10000, false},
    {"gemma4", Order::kBlocks, kPerAxis, kEager, 100, false},
    {"glm4v", Order::kRowColumn, kHalves, kFloat32, 10000, false},
    {"glm4v_moe", Order::kRowColumn, kHalves, kFloat32, 10000, false},
    {"glm5_next", Order::kRowColumn, kHalves, kFloat32, 10000, false},
    {"glm_ocr", Order::kRowColumn, kHalves, kFloat32, 10000, false},
    {"inkling2", Order::kColumnRow, kInterleaved, kFloat32, 10000, false},
    {"intern_s2_preview", Order::kRowColumn, kHalves, kFloat32, 10000, false},
    {"interns2_mobius", Order::kRowColumn, kHalves, kFloat32, 10000, false},
    {"keye", Order::kRowColumn, kHalves, kFloat32, 10000, false},
    {"kimi_k25", Order::kAlternating, kHalves, kFloat32, 10000, false, 72},
    {"kimi_k3", Order::kAlternating, kInterleaved, kFloat32, 10000, false, 128, false,
     "qkv_hidden_size"},
    {"kimi_vl", Order::kAlternating, kInterleaved, kFloat32, 10000, false},
    {"lfm3_vl", Order::kRowColumn, kHalves, kFloat32, 1000000, false},
    {"llama4", Order::kRowColumn, kInterleaved, kFloat32, 10000, false},
    {"locateanything", Order::kAlternating, kInterleaved, kFloat32, 10000, false, 72},
    {"mimo_v2", Order::kRowColumn, kHalves, kFloat32, 10000, false, 64, true},
    {"minimax_m3_vl", Order::kThreeAxes, kHalves, kEager, 10000, false},
    {"mlcd", Order::kRowColumn, kHalves, kFloat32, 10000, true},
    {"moss_vl", Order::kRowColumn, kHalves, kFloat32, 10000, false},
    {"muse_glimmer", Order::kRowColumn, kHalves, kCosSin, 10000, false},
    {"muse_spark", Order::kRowColumn, kHalves, kCosSin, 10000, false},
    {"paddleocr_vl", Order::kRowColumn, kHalves, kFloat32, 10000, false},
    {"pixtral", Order::kSharedSpectrum, kHalves, kEager, 10000, true},
    {"qwen2_5_omni", Order::kRowColumn, kHalves, kFloat32, 10000, false},
    {"qwen2_5_vl", Order::kRowColumn, kHalves, kFloat32, 10000, false},
    {"qwen2_vl", Order::kRowColumn, kHalves, kFloat32, 10000, false},
    {"qwen3_5", Order::kRowColumn, kHalves, kFloat32, 10000, false},
    {"qwen3_5_moe", Order::kRowColumn, kHalves, kFloat32, 10000, false},
    {"qwen3_omni_moe", Order::kRowColumn, kHalves, kFloat32, 10000, false},
    {"qwen3_vl", Order::kRowColumn, kHalves, kFloat32, 10000, false},
    {"qwen3_vl_moe", Order::kRowColumn, kHalves, kFloat32, 10000, false},
    {"qwen4_exp", Order::kRowColumn, kHalves, kFloat32, 10000, false},
    {"sam2_video", Order::kRowColumn, kInterleaved, kFloat32, 10000, true},
    {"sam3_tracker_video", Order::kRowColumn, kInterleaved, kFloat32, 10000, true},
    {"sam3_vit_model", Order::kRowColumn, kInterleaved, kFloat32, 10000, true},
    {"sapiens2", Order::kRowColumn, kHalves, kEager, 100, true},
    {"step3p7", Order::kColumnRow, kHalves, kFloat32, 10000, false},
    {"video_llama_3", Order::kRowColumn, kHalves, kFloat32, 10000, false},
};

const Tower* FindExactly(std::string_view model_type) {
  for (const Tower& tower : kTowers) {
    if (tower.model_type == model_type) return &tower;
  }
  return nullptr;
}

const Tower* FindTower(std::string_view model_type) {
  const Tower* tower = FindExactly(model_type);
  for (std::string_view suffix : {"_vision_encoder", "_vision_model", "_vision"}) {
    if (tower != nullptr) break;
    if (EndsWith(model_type, suffix)) {
      tower = FindExactly(model_type.substr(0, model_type.size() - suffix.size()));
    }
  }
  return tower;
}

// Qwen2-VL calls the width of its tower embed_dim; its hidden_size is that of the language model.
// SAM's is that of the memory attention.
std::optional<int64_t> WidthOfHead(const Dict& dict, const Tower& tower) {
  if (const auto given = dict.FirstInteger({"head_dim", "qk_channels"}, 1, kMaxWidth)) return given;
  const auto width = dict.FirstInteger({"embed_dim", "memory_attention_hidden_size",
                                        "qkv_hidden_size", "hidden_size", "vt_hidden_size"},
                                       1, kMaxWidth);
  const auto heads = dict.FirstInteger({"memory_attention_num_attention_heads", "num_heads",
                                        "num_attention_heads", "vt_num_attention_heads"},
                                       1, kMaxWidth);
  if (tower.fixed || (!width && !heads && tower.head_dim != 0)) return tower.head_dim;
  if (tower.width_key != nullptr && dict.Find(tower.width_key) == nullptr) {
    dict.RejectMissing(tower.width_key, "the width of this tower's heads follows from it");
  }
  if (!width || !heads) return std::nullopt;
  const int64_t rate = dict.Integer("memory_attention_downsample_rate", 1, 1 << 10).value_or(1);
  return *width / rate / *heads;
}

double Theta(const Dict& dict, const Tower& tower) {
  if (const auto nested = dict.Child("rope_parameters").Positive("rope_theta")) return *nested;
  for (const char* key : {"rope_theta", "memory_attention_rope_theta"}) {
    if (const auto theta = dict.Positive(key)) return *theta;
  }
  return tower.theta;
}

void FillTable(const Tower& tower, double theta, int head_dim, LayerType* type) {
  rope_config& config = type->config;
  std::vector<double>& inv_freq = type->inv_freq;
  const auto add = [type](double frequency, int axis) {
    type->inv_freq.push_back(frequency);
    type->pair_axis.push_back(static_cast<uint8_t>(axis));
  };
  SetImageAxes(2, &config);
  if (tower.order == Order::kSharedSpectrum) {
    const std::vector<double> spectrum = DefaultFrequencies(type->name, theta, head_dim);
    for (int axis : {0, 1}) {
      for (size_t i = axis; i < spectrum.size(); i += 2) add(spectrum[i], axis);
    }
    return;
  }
  if (tower.order == Order::kThreeAxes) {
    const int axis_dim = 2 * (head_dim / 3 / 2);
    SetImageAxes(3, &config);
    config.rotary_dim = 3 * axis_dim;
    const std::vector<double> spectrum = DefaultFrequencies(type->name, theta, axis_dim);
    for (int axis : {0, 1, 2}) {
      for (double frequency : spectrum) add(frequency, axis);
    }
    return;
  }
  const std::vector<double> spectrum = DefaultFrequencies(type->name, theta, head_dim / 2);
  if (tower.order == Order::kAlternating) {
    for (double frequency : spectrum) {
      for (int axis : {1, 0}) add(frequency, axis);
    }
    return;
  }
  for (int axis : {0, 1}) {
    for (double frequency : spectrum) {
      add(frequency, tower.order == Order::kColumnRow ? 1 - axis : axis);
    }
  }
  if (tower.order == Order::kBlocks) {  // the pairing itself tells the axis
    type->pair_axis.clear();
    for (int axis : {0, 1}) config.mrope_section[axis] = static_cast<int32_t>(inv_freq.size() / 2);
  }
}

}  // namespace

bool IsVisionModel(const ConfigParts& parts) {
  const Tower* tower = FindTower(parts.outer_type);
  return tower != nullptr && tower->alone && !parts.text_nested;
}

void AddVisionTower(const ConfigParts& parts, ParsedModel* out) {
  const Dict& dict = IsVisionModel(parts) ? parts.text : parts.vision;
  if (!dict.exists()) return;
  const Tower* tower = FindTower(dict.String("model_type").value_or(""));
  if (tower == nullptr) tower = FindTower(parts.outer_type);
  if (tower == nullptr) return;
  const auto head_dim = WidthOfHead(dict, *tower);
  if (!head_dim) return;
  // A pair for each coordinate; with two coordinates each has the same number of pairs, at least
  // two.
  const bool three = tower->order == Order::kThreeAxes;
  const int64_t unit = three ? 2 : 4, least = three ? 6 : 8;
  if (*head_dim < least || *head_dim > kMaxHeadDim || *head_dim % unit != 0) {
    Reject(ROPE_ERROR_PARSE,
           "%s (%lld, given or width / heads) must be a multiple of %lld from "
           "%lld to %d",
           dict.Path("head_dim").c_str(), static_cast<long long>(*head_dim),
           static_cast<long long>(unit), static_cast<long long>(least), kMaxHeadDim);
  }
  LayerType type;
  type.name = "vision";
  type.config.head_dim = static_cast<int32_t>(*head_dim);
  type.config.pairing = tower->pairing;
  type.config.rounding = tower->rounding;
  FillTable(*tower, Theta(dict, *tower), static_cast<int>(*head_dim), &type);
  out->types.push_back(std::move(type));
  RejectUnread(dict);
  const Dict rope = dict.Child("rope_parameters");
  const std::string_view kind = rope.String("rope_type").value_or("default");
  if (kind != "default" && kind != "axial" && !IsSpared(*rope.Find("rope_type"))) {
    RejectValue(rope.Path("rope_type"), *rope.Find("rope_type"),
                std::string("be \"default\" or \"axial\" in a vision tower: ") + kAcceptIt);
  }
  RejectUnreadOfRope(rope, false);
}

}  // namespace rope::model
