#include "model/vision.h"

#include <initializer_list>
#include <optional>
#include <string>

#include "base/limits.h"
#include "model/accept.h"
#include "model/axes.h"
#include "model/families.h"
#include "model/scaling.h"
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

// The words of a tower's class for what the width of its heads follows from. All that are there
// must say the same.
struct Sizes {
  const char* widths[2];
  const char* heads[2];
  const char* unrelated = nullptr;  // a word of other classes that means something else here
  const char* rate = nullptr;       // divides the width
};

constexpr Sizes kPlain = {{"hidden_size"}, {"num_attention_heads"}};
constexpr Sizes kMapped = {{"hidden_size"}, {"num_heads", "num_attention_heads"}};
// hidden_size is that of the language model.
constexpr Sizes kEmbed = {{"embed_dim"}, {"num_heads", "num_attention_heads"}, "hidden_size"};
constexpr Sizes kDots = {{"embed_dim", "hidden_size"}, {"num_heads", "num_attention_heads"}};
constexpr Sizes kStep = {{"width", "hidden_size"}, {"heads", "num_attention_heads"}};
constexpr Sizes kMoonshot = {{"vt_hidden_size", "hidden_size"},
                             {"vt_num_attention_heads", "num_attention_heads"}};
constexpr Sizes kQkv = {{"qkv_hidden_size"}, {"vt_num_attention_heads"}, "vt_hidden_size"};
constexpr Sizes kMemory = {{"memory_attention_hidden_size"},
                           {"memory_attention_num_attention_heads"},
                           nullptr,
                           "memory_attention_downsample_rate"};

struct Tower {
  std::string_view model_type;
  Order order;
  rope_pairing pairing;
  rope_rounding rounding;
  double theta;
  const Sizes& sizes;
  bool alone = false;              // a model of its own
  int head_dim = 0;                // class default, where published files rely on it
  const char* head_key = nullptr;  // of the class that does not divide its width
  bool theta_beside = false;       // its theta stands beside rope_parameters, and never inside
};

constexpr rope_pairing kHalves = ROPE_PAIRING_HALVES, kInterleaved = ROPE_PAIRING_INTERLEAVED,
                       kPerAxis = ROPE_PAIRING_HALVES_PER_AXIS;
constexpr rope_rounding kFloat32 = ROPE_ROUNDING_FLOAT32, kEager = ROPE_ROUNDING_EAGER,
                        kCosSin = ROPE_ROUNDING_COS_SIN;

constexpr Tower kTowers[] = {
    {"Keye", Order::kRowColumn, kHalves, kFloat32, 10000, kMapped},
    {"KeyeVL1_5", Order::kRowColumn, kHalves, kFloat32, 10000, kMapped},
    {"bailing_moe_v3_vl", Order::kRowColumn, kHalves, kFloat32, 10000, kMapped},
    {"bailingmm_moe_v2_lite", Order::kRowColumn, kHalves, kFloat32, 10000, kMapped},
    {"cohere_compass", Order::kRowColumn, kHalves, kFloat32, 10000, kMapped},
    {"deepseek_v41", Order::kRowColumn, kHalves, kFloat32, 10000, kMapped},
    {"dinov3_vit", Order::kRowColumn, kHalves, kEager, 100, kPlain, true, 0, nullptr, true},
    {"dots_ocr", Order::kRowColumn, kHalves, kFloat32, 10000, kEmbed},
    {"dots3_note", Order::kRowColumn, kHalves, kFloat32, 10000, kDots},
    {"dots_vlm", Order::kRowColumn, kHalves, kFloat32, 10000, kEmbed},
    {"edgetam_video", Order::kRowColumn, kInterleaved, kFloat32, 10000, kMemory, true},
    {"eomt_dinov3", Order::kRowColumn, kHalves, kEager, 100, kPlain, true},
    {"ernie4_5_vl_moe", Order::kRowColumn, kHalves, kFloat32, 10000, kMapped},
    {"exaone4_5", Order::kRowColumn, kHalves, kFloat32, 10000, kMapped},
    {"gemma4", Order::kBlocks, kPerAxis, kEager, 100, kPlain, false, 64, "head_dim"},
    {"glm4v", Order::kRowColumn, kHalves, kFloat32, 10000, kMapped},
    {"glm4v_moe", Order::kRowColumn, kHalves, kFloat32, 10000, kMapped},
    {"glm5_next", Order::kRowColumn, kHalves, kFloat32, 10000, kMapped},
    {"glm_ocr", Order::kRowColumn, kHalves, kFloat32, 10000, kMapped},
    {"inkling2", Order::kColumnRow, kInterleaved, kFloat32, 10000, kPlain},
    {"intern_s2_preview", Order::kRowColumn, kHalves, kFloat32, 10000, kMapped},
    {"interns2_mobius", Order::kRowColumn, kHalves, kFloat32, 10000, kMapped},
    {"keye", Order::kRowColumn, kHalves, kFloat32, 10000, kMapped},
    {"kimi_k25", Order::kAlternating, kHalves, kFloat32, 10000, kMoonshot, false, 72},
    {"kimi_k3", Order::kAlternating, kInterleaved, kFloat32, 10000, kQkv, false, 128},
    {"kimi_vl", Order::kAlternating, kInterleaved, kFloat32, 10000, kMoonshot},
    {"lfm3_vl", Order::kRowColumn, kHalves, kFloat32, 1000000, kPlain},
    {"llama4", Order::kRowColumn, kInterleaved, kFloat32, 10000, kPlain},
    {"locateanything", Order::kAlternating, kInterleaved, kFloat32, 10000, kMoonshot, false, 72},
    {"mimo_v2", Order::kRowColumn, kHalves, kFloat32, 10000, kMapped, false, 64, "qk_channels"},
    {"minimax_m3_vl", Order::kThreeAxes, kHalves, kEager, 10000, kPlain},
    {"mlcd", Order::kRowColumn, kHalves, kFloat32, 10000, kPlain, true},
    {"moss_vl", Order::kRowColumn, kHalves, kFloat32, 10000, kMapped},
    {"muse_glimmer", Order::kRowColumn, kHalves, kCosSin, 10000, kPlain},
    {"muse_spark", Order::kRowColumn, kHalves, kCosSin, 10000, kPlain},
    {"paddleocr_vl", Order::kRowColumn, kHalves, kFloat32, 10000, kPlain},
    {"pixtral", Order::kSharedSpectrum, kHalves, kEager, 10000, kPlain, true},
    {"qwen2_5_omni", Order::kRowColumn, kHalves, kFloat32, 10000, kMapped},
    {"qwen2_5_vl", Order::kRowColumn, kHalves, kFloat32, 10000, kMapped},
    {"qwen2_vl", Order::kRowColumn, kHalves, kFloat32, 10000, kEmbed},
    {"qwen3_5", Order::kRowColumn, kHalves, kFloat32, 10000, kMapped},
    {"qwen3_5_moe", Order::kRowColumn, kHalves, kFloat32, 10000, kMapped},
    {"qwen3_omni_moe", Order::kRowColumn, kHalves, kFloat32, 10000, kMapped},
    {"qwen3_vl", Order::kRowColumn, kHalves, kFloat32, 10000, kMapped},
    {"qwen3_vl_moe", Order::kRowColumn, kHalves, kFloat32, 10000, kMapped},
    {"qwen4_exp", Order::kRowColumn, kHalves, kFloat32, 10000, kMapped},
    {"sam2_video", Order::kRowColumn, kInterleaved, kFloat32, 10000, kMemory, true},
    {"sam3_tracker_video", Order::kRowColumn, kInterleaved, kFloat32, 10000, kMemory, true},
    {"sam3_vit_model", Order::kRowColumn, kInterleaved, kFloat32, 10000, kPlain, true},
    {"sapiens2", Order::kRowColumn, kHalves, kEager, 100, kPlain, true, 0, nullptr, true},
    {"step3p7", Order::kColumnRow, kHalves, kFloat32, 10000, kStep},
    {"video_llama_3", Order::kRowColumn, kHalves, kFloat32, 10000, kPlain},
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

// What the first of a class's words says that is there; the others must say the same.
std::optional<int64_t> Said(const Dict& dict, const char* const (&words)[2]) {
  std::optional<int64_t> said;
  const char* first = nullptr;
  for (const char* word : words) {
    const auto value = word != nullptr ? dict.Integer(word, 1, kMaxWidth) : std::nullopt;
    if (!value) continue;
    if (said && *said != *value) {
      RejectValue(dict.Path(word), *dict.Find(word),
                  std::string("be ") + first + " (" + std::to_string(*said) + ")");
    }
    if (!said) first = word;
    said = value;
  }
  return said;
}

// Words of other classes may repeat what this one says.
void RejectOthers(const Dict& dict, const Sizes& sizes, std::initializer_list<const char*> all,
                  const char* const (&own)[2], std::optional<int64_t> said) {
  for (const char* word : all) {
    const std::string_view name = word;
    const auto is = [name](const char* known) { return known != nullptr && name == known; };
    if (is(own[0]) || is(own[1]) || is(sizes.unrelated)) continue;
    const auto other = dict.Integer(word, 1, kMaxWidth);
    if (!other || other == said) continue;
    Reject(ROPE_ERROR_UNSUPPORTED, "%s (%lld) is no word of this tower's class, which takes %s%s",
           dict.Path(word).c_str(), static_cast<long long>(*other), own[0],
           said ? (" (" + std::to_string(*said) + ")").c_str() : " or its default");
  }
}

// Of a class that reads it, or as an absent one follows from the sizes.
std::optional<int64_t> ByClass(const Dict& dict, const Tower& tower) {
  const Sizes& sizes = tower.sizes;
  const auto width = Said(dict, sizes.widths), heads = Said(dict, sizes.heads);
  RejectOthers(dict, sizes,
               {"embed_dim", "hidden_size", "memory_attention_hidden_size", "qkv_hidden_size",
                "vt_hidden_size", "width"},
               sizes.widths, width);
  RejectOthers(dict, sizes,
               {"heads", "memory_attention_num_attention_heads", "num_attention_heads", "num_heads",
                "vt_num_attention_heads"},
               sizes.heads, heads);
  if (tower.head_key != nullptr) {
    dict.RejectNull(tower.head_key);
    return dict.Integer(tower.head_key, 1, kMaxWidth).value_or(tower.head_dim);
  }
  if (width && heads) {
    const int64_t rate =
        sizes.rate != nullptr ? dict.Integer(sizes.rate, 1, 1 << 10).value_or(1) : 1;
    if (*width % (rate * *heads) != 0) {
      Reject(ROPE_ERROR_PARSE, "%s (%lld) must divide %s (%lld)", dict.Path(sizes.heads[0]).c_str(),
             static_cast<long long>(rate * *heads), sizes.widths[0],
             static_cast<long long>(*width));
    }
    return *width / rate / *heads;
  }
  if (tower.head_dim == 0) return std::nullopt;
  if (!width && !heads) return tower.head_dim;
  dict.RejectMissing(width ? sizes.heads[0] : sizes.widths[0],
                     "the width of this tower's heads follows from it");
}

std::optional<int64_t> WidthOfHead(const Dict& dict, const Tower& tower) {
  auto width = ByClass(dict, tower);
  for (const char* word : {"head_dim", "qk_channels"}) {
    const auto said = dict.Integer(word, 1, kMaxWidth);
    if (!width) width = said;  // its sizes are not there
    if (!said || said == width) continue;
    Reject(ROPE_ERROR_UNSUPPORTED, "%s (%lld) must be %lld, which this tower's code takes instead",
           dict.Path(word).c_str(), static_cast<long long>(*said), static_cast<long long>(*width));
  }
  return width;
}

const char* OwnTheta(const Tower& tower) {
  return tower.sizes.rate != nullptr ? "memory_attention_rope_theta" : "rope_theta";
}

// What repeats `theta`, wherever a tower may say it.
void ReadThetas(const Dict& dict, const Tower& tower, double theta) {
  const Dict inside = dict.Child("rope_parameters");
  inside.RejectNull("rope_theta");
  for (const char* beside : {OwnTheta(tower), "rope_theta"}) dict.RejectNull(beside);
  ReadRepeated(inside, {"rope_theta"}, theta);
  ReadRepeated(dict, {OwnTheta(tower), "rope_theta", "memory_attention_rope_theta"}, theta);
}

double Theta(const Dict& dict, const Tower& tower) {
  const Dict inside = dict.Child("rope_parameters");
  auto theta = tower.theta_beside ? std::nullopt : inside.Positive("rope_theta");
  for (const char* beside : {OwnTheta(tower), "rope_theta"}) {
    if (!theta) theta = dict.Positive(beside);
  }
  const double used = theta.value_or(tower.theta);
  ReadThetas(dict, tower, used);
  return used;
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

void RejectUnreadOfTower(const Dict& dict) {
  RejectUnread(dict);
  const Dict rope = dict.Child("rope_parameters");
  const std::string_view kind = rope.String("rope_type").value_or("default");
  if (kind != "default" && kind != "axial" && !IsSpared(*rope.Find("rope_type"))) {
    RejectValue(rope.Path("rope_type"), *rope.Find("rope_type"),
                std::string("be \"default\" or \"axial\" in a vision tower: ") + kAcceptIt);
  }
  RejectUnreadOfRope(rope, false);
}

}  // namespace

bool IsVisionModel(const ConfigParts& parts) {
  const Tower* tower = FindTower(parts.outer_type);
  return tower != nullptr && tower->alone && !parts.text_nested;
}

void AddVisionTower(const ConfigParts& parts, ParsedModel* out) {
  const Dict& dict = IsVisionModel(parts) ? parts.text : parts.vision;
  if (!dict.exists()) return;
  const std::string_view own_type = dict.String("model_type").value_or("");
  const Tower* tower = FindTower(parts.outer_type);  // whose class has one for it
  if (tower == nullptr) tower = FindTower(own_type);
  if (tower == nullptr) return;
  const auto head_dim = WidthOfHead(dict, *tower);
  if (!head_dim) {
    ReadThetas(dict, *tower, tower->theta);  // there is no type that another one would count in
    RejectUnreadOfTower(dict);
    return;
  }
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
  type.name = kVisionType;
  type.config.head_dim = static_cast<int32_t>(*head_dim);
  type.config.pairing = tower->pairing;
  type.config.rounding = tower->rounding;
  FillTable(*tower, Theta(dict, *tower), static_cast<int>(*head_dim), &type);
  out->types.push_back(std::move(type));
  RejectUnreadOfTower(dict);
}

}  // namespace rope::model
