// MaxText's configuration: base.yml with a model's file over it, as JSON. What such a text does not
// say is MaxText's default.
//
// Source: attentions.py, attention_mla.py and embeddings.py of MaxText's layers, its models, and
// types.py of its configs, at e591f30cbbf2. MaxText chooses by model_name as well as by keys. It
// divides positions by timescales, but with YaRN, whose frequencies multiply; XLA decides what
// becomes of it (docs/guides/precision.md). Where values are rounded is what the code says; XLA may
// keep more digits.
#include <algorithm>
#include <cmath>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "base/limits.h"
#include "model/dialects.h"
#include "model/layers.h"
#include "model/unread.h"

namespace rope::model {
namespace {

bool IsMaxText(const Dict& root) {
  if (root.Peek("model_type") != nullptr) return false;
  for (const char* key : {"base_emb_dim", "base_num_decoder_layers", "rope_max_timescale",
                          "rope_min_timescale", "local_rope_max_timescale"}) {
    if (root.Mentions(key)) return true;
  }
  return false;
}

bool Begins(std::string_view text, std::string_view prefix) {
  return text.substr(0, prefix.size()) == prefix;
}

// How the layers of a decoder turn.
enum class Turns : uint8_t {
  kAll,
  kTwice,         // two attention layers in one: Gemma 2
  kWindows,       // one in six without a window: Gemma 3
  kLastOfCycle,   // the others are linear attention: Qwen3-Next, Qwen3.5
  kNopeInterval,  // but one in so many: Llama 4
  kNone           // learned positions: GPT-3
};

struct Decoder {
  std::string_view block;
  Turns turns = Turns::kAll;
};

// Those that are not here have no attention, or pass numbers of RoPE to it that this version does
// not read (Gemma 4, DeepSeek-V4).
constexpr Decoder kDecoders[] = {
    {"deepseek"},
    {"default"},
    {"envy"},
    {"gemma"},
    {"gemma2", Turns::kTwice},
    {"gemma3", Turns::kWindows},
    {"gpt3", Turns::kNone},
    {"gpt_oss"},
    {"llama2"},
    {"llama4", Turns::kNopeInterval},
    {"mistral"},
    {"mixtral"},
    {"olmo3"},
    {"qwen2"},
    {"qwen3"},
    {"qwen3_5", Turns::kLastOfCycle},
    {"qwen3_custom_moe"},
    {"qwen3_moe"},
    {"qwen3_next", Turns::kLastOfCycle},
};

bool IsPowerOfTwo(double value) {
  int exponent;
  return std::frexp(value, &exponent) == 0.5;
}

class MaxText {
 public:
  MaxText(const Dict& root, ParsedModel* out) : root_(root), out_(out) {
    const auto name = root.String("model_name");
    if (!name) {
      root.RejectMissing("model_name",
                         "MaxText chooses the kind of RoPE by it, too; for a file of "
                         "configs/models it is the file's name");
    }
    name_ = *name;
    kind_ = root.String("rope_type").value_or("default");
    const std::string_view block = root.String("decoder_block").value_or("llama2");
    const auto* found =
        std::find_if(std::begin(kDecoders), std::end(kDecoders),
                     [block](const Decoder& decoder) { return decoder.block == block; });
    if (found == std::end(kDecoders)) {
      RejectValue(root.Path("decoder_block"), *root.Find("decoder_block"),
                  "be one whose RoPE this version reads");
    }
    turns_ = found->turns;
  }

  void Read() {
    RejectOthers();
    FillHead();
    Add(kFull, false);
    if (turns_ == Turns::kNone) {
      ReplaceByNone();
      return;
    }
    const bool windows = IsPlain() && local_ > 0;
    if (windows) Add(kSliding, true);
    FindLayers(windows);
  }

 private:
  // Models whose classes of RoPE this version does not read.
  void RejectOthers() {
    for (const char* prefix : {"gemma4", "deepseek4"}) {
      if (!Begins(name_, prefix)) continue;
      RejectValue(root_.Path("model_name"), *root_.Find("model_name"),
                  "be of another model: its kinds of RoPE are not read in this version");
    }
    if (root_.Bool("use_mrope").value_or(false)) {
      Reject(ROPE_ERROR_UNSUPPORTED, "%s (true) must be false in this version",
             root_.Path("use_mrope").c_str());
    }
    for (const char* key : {"mrope_section", "global_rope_max_timescale", "global_rope_proportion",
                            "local_rope_proportion", "compressed_rope_max_timescale",
                            "max_timescale_for_audio", "rope_theta_for_vit"}) {
      root_.Find(key);  // of models that are refused, and of towers; written with their defaults
    }
    if (kind_ != "default" && !IsLlama() && !IsYarn()) {
      RejectValue(root_.Path("rope_type"), *root_.Find("rope_type"),
                  "be \"default\", \"llama3.1\" or \"yarn\"");
    }
  }

  bool IsLlama() const { return Begins(name_, "llama3.1") || Begins(kind_, "llama3.1"); }
  bool IsYarn() const { return !IsLlama() && Begins(kind_, "yarn"); }
  bool IsPlain() const { return !IsLlama() && !IsYarn(); }
  bool IsHybrid() const { return turns_ == Turns::kLastOfCycle; }

  void FillHead() {
    rope_config& c = base_;
    const double partial = root_.Positive("partial_rotary_factor").value_or(1);
    if (root_.String("attention_type").value_or("global") == "mla") {
      const int64_t still = root_.Integer("qk_nope_head_dim", 1, kMaxHeadDim).value_or(128);
      const int64_t rotated = root_.Integer("qk_rope_head_dim", 2, kMaxHeadDim).value_or(64);
      if (rotated % 2 != 0 || still + rotated > kMaxHeadDim) {
        Reject(ROPE_ERROR_PARSE, "%s (%lld) must be even, and with qk_nope_head_dim at most %d",
               root_.Path("qk_rope_head_dim").c_str(), static_cast<long long>(rotated),
               kMaxHeadDim);
      }
      latent_ = true;
      c.head_dim = static_cast<int32_t>(still + rotated);
      c.rotary_dim = static_cast<int32_t>(rotated);
      c.rotary_offset = static_cast<int32_t>(still);
    } else {
      constexpr int kDefault = 128;
      const int64_t head = root_.Integer("head_dim", 2, kMaxHeadDim).value_or(kDefault);
      for (const char* key : {"qk_nope_head_dim", "qk_rope_head_dim"}) root_.Find(key);
      if (head % 2 != 0) RejectValue(root_.Path("head_dim"), *root_.Find("head_dim"), "be even");
      c.head_dim = static_cast<int32_t>(head);
    }
    if (partial == 1) return;
    const int span = static_cast<int>(c.head_dim * partial);
    const bool reads_it = IsHybrid() && !latent_ && IsPlain();
    if (!reads_it || partial > 1 || span < 2 || span % 2 != 0) {
      RejectValue(root_.Path("partial_rotary_factor"), *root_.Find("partial_rotary_factor"),
                  reads_it ? "be at most 1, and give an even number of channels"
                           : "be 1: MaxText reads it where decoder_block is \"qwen3_next\" or "
                             "\"qwen3_5\" alone, with rope_type \"default\"");
    }
    c.rotary_dim = span;
  }

  void Add(std::string_view name, bool window) {
    LayerType type;
    type.name = name;
    type.config = base_;
    rope_config& c = type.config;
    least_ = root_.Positive("rope_min_timescale").value_or(1);
    c.theta = root_.Positive("rope_max_timescale").value_or(10000);
    local_ = root_.Number("local_rope_max_timescale").value_or(-1);
    linear_ = root_.Positive("rope_linear_scaling_factor").value_or(1);
    use_scale_ = root_.Bool("rope_use_scale").value_or(true);
    ReadYarn();
    RejectSoftmaxScale();
    if (IsYarn()) {
      FillYarn(&c);
    } else {
      c.angle = ROPE_ANGLE_DIVIDE;
      if (window) c.theta = local_;
      FillTimescales(window, &type);
    }
    out_->types.push_back(std::move(type));
  }

  void FillTimescales(bool window, LayerType* type) {
    rope_config* c = &type->config;
    const bool llama = IsLlama();
    c->pairing = llama ? ROPE_PAIRING_INTERLEAVED : ROPE_PAIRING_HALVES;
    c->rounding = llama ? ROPE_ROUNDING_FLOAT32 : ROPE_ROUNDING_EAGER;
    double factor = llama || IsHybrid() || (window && Begins(name_, "gemma3")) ? 1 : linear_;
    if (least_ != 1) {
      // Two factors are one if the product is exact.
      const bool one = IsPowerOfTwo(factor) || IsPowerOfTwo(least_);
      if ((llama && use_scale_) || !one) {
        RejectValue(root_.Path("rope_min_timescale"), *root_.Find("rope_min_timescale"),
                    "be 1 beside another scaling in this version");
      }
      c->theta /= least_;
      factor *= least_;
      type->follows = "theta (" + ToText(c->theta) + ") follows from " +
                      (window ? "local_rope_max_timescale" : "rope_max_timescale") +
                      " and rope_min_timescale (" + ToText(least_) + ")";
    }
    if (llama && use_scale_) {
      c->scaling = ROPE_SCALING_LLAMA3;
      c->factor = 8;
      c->low_freq_factor = 1;
      c->high_freq_factor = 4;
      c->original_max_position_embeddings = 8192;
    } else if (factor != 1) {
      c->scaling = ROPE_SCALING_LINEAR;
      c->factor = factor;
    }
  }

  // Its numbers stand in every configuration.
  void ReadYarn() {
    length_ = root_.Integer("max_position_embeddings", 1, kMaxLength).value_or(163840);
    original_ = root_.Integer("original_max_position_embeddings", 1, kMaxLength).value_or(4096);
    factor_ = root_.Positive("rope_factor").value_or(40);
    fast_ = root_.Positive("beta_fast").value_or(32);
    slow_ = root_.Positive("beta_slow").value_or(1);
    mscale_ = root_.Number("mscale").value_or(1);
    neighbours_ = root_.Bool("rope_interleave").value_or(true);
    truncate_ = root_.Bool("rope_truncate").value_or(true);
    scales_ = root_.Bool("rope_attention_scaling").value_or(false);
    pairwise_ = root_.Bool("rope_pairwise").value_or(false);
  }

  // Latent attention scales the softmax by YaRN's numbers whatever the kind of RoPE.
  void RejectSoftmaxScale() const {
    const bool scales = length_ > original_ && mscale_ != 0 && factor_ != 1;
    if (!latent_ || IsYarn() || !scales) return;
    Reject(
        ROPE_ERROR_UNSUPPORTED,
        "%s (%lld) must not be above original_max_position_embeddings (%lld) with attention_type "
        "\"mla\" and without rope_type \"yarn\" in this version: MaxText scales the softmax then",
        root_.Path("max_position_embeddings").c_str(), static_cast<long long>(length_),
        static_cast<long long>(original_));
  }

  void FillYarn(rope_config* c) const {
    c->pairing = !neighbours_ ? ROPE_PAIRING_HALVES
                 : pairwise_  ? ROPE_PAIRING_INTERLEAVED
                              : ROPE_PAIRING_INTERLEAVED_TO_HALVES;
    c->scaling = ROPE_SCALING_YARN;
    c->factor = factor_;
    c->original_max_position_embeddings = original_;
    c->beta_fast = fast_;
    c->beta_slow = slow_;
    c->yarn_no_truncate = truncate_ ? 0 : 1;
    if (!scales_) c->attention_factor = 1;
    // Of latent attention: the scale of the softmax.
    if (latent_ && length_ > original_) c->mscale_all_dim = mscale_;
  }

  // 0: the text does not tell.
  int64_t CountLayers() const {
    const int64_t scale = root_.Integer("global_parameter_scale", 1, kMaxLayers).value_or(1);
    if (scale != 1) {
      RejectValue(root_.Path("global_parameter_scale"), *root_.Find("global_parameter_scale"),
                  "be 1 in this version, as it multiplies the layers");
    }
    const int64_t layers =
        root_.FirstInteger({"base_num_decoder_layers", "num_decoder_layers"}, 1, kMaxLayers / 2)
            .value_or(0);
    return turns_ == Turns::kTwice ? 2 * layers : layers;
  }

  // The keys of RoPE are written with their defaults.
  void ReplaceByNone() {
    NopeInterval();
    LayerType& type = out_->types.front();
    type = LayerType();
    type.name = kNope;
    type.config.head_dim = base_.head_dim;
    type.config.scaling = ROPE_SCALING_NOPE;
    out_->layers.assign(static_cast<size_t>(CountLayers()), 0);
  }

  int64_t NopeInterval() const {
    constexpr char kKey[] = "nope_layer_interval";
    const int64_t interval = std::max<int64_t>(root_.Integer(kKey, -1, kMaxLayers).value_or(-1), 0);
    if (interval != 0 && turns_ != Turns::kNopeInterval) {
      RejectValue(root_.Path(kKey), *root_.Find(kKey),
                  "be -1 unless decoder_block is \"llama4\", which alone reads it");
    }
    return interval;
  }

  // Layers with a window are told by the code of a decoder alone. Known here: Gemma 3's.
  void FindLayers(bool windows) {
    const int64_t layers = CountLayers(), interval = NopeInterval();
    if (interval != 0 && windows) {
      RejectValue(root_.Path("nope_layer_interval"), *root_.Find("nope_layer_interval"),
                  "be -1 beside local_rope_max_timescale");
    }
    if (layers == 0) return;
    if (turns_ == Turns::kLastOfCycle) {
      const int64_t cycle =
          root_.Integer("inhomogeneous_layer_cycle_interval", 1, kMaxLayers).value_or(1);
      std::vector<bool> without = LastOf(cycle, layers);
      without.flip();
      AssignLayers(without, out_);
      return;
    }
    if (!windows) {
      AssignLayers(LastOf(interval, layers), out_);
      return;
    }
    constexpr int kPeriod = 6;  // five with a window, one without
    for (int64_t i = 0; turns_ == Turns::kWindows && i < layers; ++i) {
      out_->layers.push_back((i + 1) % kPeriod == 0 ? 0 : 1);
    }
  }

  const Dict& root_;
  ParsedModel* out_;
  std::string_view name_, kind_;
  Turns turns_ = Turns::kAll;
  rope_config base_ = ROPE_INIT(rope_config);
  bool latent_ = false, use_scale_ = true;
  double least_ = 1, local_ = -1, linear_ = 1;
  int64_t length_ = 0, original_ = 0;
  double factor_ = 0, fast_ = 0, slow_ = 0, mscale_ = 0;
  bool neighbours_ = true, truncate_ = true, scales_ = false, pairwise_ = false;
};

void Read(const Dict& root, ParsedModel* out) {
  RejectNulls(root);
  MaxText(root, out).Read();
}

}  // namespace

const Dialect kMaxText = {"MaxText's configuration", "", &IsMaxText, &Read};

}  // namespace rope::model
