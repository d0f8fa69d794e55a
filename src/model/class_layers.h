// How the classes of model/families.cc tell their layers apart: the keys of config.json that each
// of them reads, and what it does without them. A key of another class is refused, unless it says
// what is so anyway (model/layers.cc); the forms of the keys are in model/layer_keys.cc.
#ifndef LIBROPE_SRC_MODEL_CLASS_LAYERS_H_
#define LIBROPE_SRC_MODEL_CLASS_LAYERS_H_

#include <cstdint>
#include <string_view>

namespace rope::model {

constexpr std::string_view kFull = "full_attention", kSliding = "sliding_attention", kNope = "nope",
                           kMain = "main", kCompress = "compress",
                           kLightning = "lightning_attention";

// Whether full_attention layers are those without RoPE.
enum class FullNope : uint8_t {
  kNo,
  kYes,
  kBesideWindows  // unless the file says "sliding_window": null
};

struct LayerRule {
  // The first that the file has decides. Lists that are there as well must say the same; a period
  // beside a list is not used.
  const char* keys[4] = {"layer_types", nullptr, nullptr, nullptr};

  // Without them: one layer of each period is `named`, the others are `rest`.
  int period = 0;  // 0: all are named
  int at = -1;     // the place in the period; -1: the last one, kMiddle: half of it
  std::string_view named = kFull, rest = kSliding;
  bool from_end = false;                     // counted from the last layer
  bool empty_is_none = false;                // an empty list of flags is none
  bool first = false, last = false;          // these are named, too
  bool some = false;                         // the last is, if no other would be
  bool remainder = false;                    // and those beyond the last whole period
  const char *begin = "", *cycle = nullptr;  // instead: letters of layers (F, S, N for nope)
  bool untold = false;                       // the class has no default that is known

  FullNope full_nope = FullNope::kNo;
  bool mixes = false;  // some layers are no attention
  // The only label of layers that are attention; nullptr: all that are known as such.
  const char* attention = nullptr;
  const char* off_by = nullptr;  // a key: false or null, and all layers are full_attention
  bool forces_last = false;      // the last layer is full_attention, whatever a list says
  bool spelled = false;          // the period may be letters: "LLLG"
  bool kinds_beside = false;     // layer_types tells the kinds of the layers that turn
  bool dense_turns = false;      // Cohere 2 MoE: see DensePrefix of model/layers.cc
  bool thetas = false;           // layer_rope_theta has the theta of every layer
  bool none = false;             // no layer has RoPE
  // A key: the numbers of layers without RoPE, whatever their attention is.
  const char* nope_by = nullptr;

  static constexpr int kMiddle = -2;

  template <class Field, class Given>
  constexpr LayerRule With(Field LayerRule::*field, const Given& given) const {
    LayerRule rule = *this;
    rule.*field = given;
    return rule;
  }
  constexpr LayerRule Keys(const char* a, const char* b = nullptr, const char* c = nullptr,
                           const char* d = nullptr) const {
    LayerRule rule = *this;
    rule.keys[0] = a;
    rule.keys[1] = b;
    rule.keys[2] = c;
    rule.keys[3] = d;
    return rule;
  }
  constexpr LayerRule Or(const char* key) const { return Keys("layer_types", key); }
  constexpr LayerRule Named(std::string_view label, std::string_view others) const {
    return With(&LayerRule::named, label).With(&LayerRule::rest, others);
  }
  // The other layers are no attention.
  constexpr LayerRule Mixes() const {
    return With(&LayerRule::rest, kNope).With(&LayerRule::mixes, true);
  }
  constexpr LayerRule Nope(FullNope when) const { return With(&LayerRule::full_nope, when); }
  constexpr LayerRule First() const { return With(&LayerRule::first, true); }
  constexpr LayerRule Last() const { return With(&LayerRule::last, true); }
  constexpr LayerRule OffBy(const char* key) const { return With(&LayerRule::off_by, key); }
};

// A layer of each period, at its end or in another place.
constexpr LayerRule Every(int period, int at = -1) {
  return LayerRule().With(&LayerRule::period, period).With(&LayerRule::at, at);
}

constexpr LayerRule Letters(const char* begin, const char* cycle) {
  return LayerRule().With(&LayerRule::begin, begin).With(&LayerRule::cycle, cycle);
}

// What all layers are.
constexpr LayerRule All(std::string_view label) { return LayerRule().Named(label, label); }

constexpr LayerRule Untold() { return LayerRule().With(&LayerRule::untold, true); }

inline constexpr LayerRule kAllLayers = {};
inline constexpr LayerRule kNoLayers =
    All(kNope).Keys("layers_block_type").With(&LayerRule::none, true);

// Full and sliding attention.
inline constexpr LayerRule kEvery4Layers = Every(4), kEvery5Layers = Every(5);
inline constexpr LayerRule kBeamLayers = Every(6).Last();  // and NeoMME
inline constexpr LayerRule kDots3NoteLayers = Every(4, 1).First().OffBy("use_sliding_window");
inline constexpr LayerRule kGemma3Layers = Every(6).Or("sliding_window_pattern");
inline constexpr LayerRule kGemma4Layers = Every(6).Last().With(&LayerRule::forces_last, true);
inline constexpr LayerRule kEmbeddingGemma2Layers = kGemma4Layers.Or("sliding_window_pattern");
inline constexpr LayerRule kIquestQ1Layers =
    Untold()
        .Keys("hybrid_layers_types_block", "num_hybrid_layers_block", "first_layers_types",
              "last_layers_types")
        .OffBy("use_sliding_window")
        .With(&LayerRule::nope_by, "no_rope_layers");
inline constexpr LayerRule kMimoLayers = Every(6).First().Or("hybrid_layer_pattern");
inline constexpr LayerRule kMimoV2Layers = Untold().Or("hybrid_layer_pattern");
inline constexpr LayerRule kModernBertLayers = Every(3, 0).Or("global_attn_every_n_layers");
inline constexpr LayerRule kPlamo3Layers = Untold().Or("sliding_window_pattern");
inline constexpr LayerRule kUltrabertLayers = Every(3).Or("attention_windows");

// Layers without RoPE.
inline constexpr LayerRule kAfmoeLayers =
    Every(4).Or("global_attn_every_n_layers").Nope(FullNope::kYes);
inline constexpr LayerRule kCohere2Layers =
    Every(4).Or("sliding_window_pattern").Nope(FullNope::kYes);
inline constexpr LayerRule kCohere2MoeLayers = kCohere2Layers.With(&LayerRule::dense_turns, true);
inline constexpr LayerRule kExaone4Layers = Every(4)
                                                .Or("sliding_window_pattern")
                                                .Nope(FullNope::kBesideWindows)
                                                .With(&LayerRule::spelled, true);
inline constexpr LayerRule kFlintLayers = Every(4, 1).First().Last().Nope(FullNope::kYes);
inline constexpr LayerRule kKolibri1Layers = Every(5).Nope(FullNope::kBesideWindows);
inline constexpr LayerRule kMuseLayers = Every(4)
                                             .Named(kNope, kFull)
                                             .Keys("layer_rope_theta")
                                             .With(&LayerRule::from_end, true)
                                             .With(&LayerRule::kinds_beside, true);
inline constexpr LayerRule kSmolLm3Layers = Every(4)
                                                .Named(kNope, kFull)
                                                .Keys("no_rope_layers", "no_rope_layer_interval")
                                                .With(&LayerRule::kinds_beside, true);
inline constexpr LayerRule kLlama4Layers = kSmolLm3Layers.With(&LayerRule::empty_is_none, true);
inline constexpr LayerRule kThetaLayers = LayerRule().With(&LayerRule::thetas, true);

// Layers that are no attention.
inline constexpr LayerRule kBailingHybridLayers = Every(6).Mixes().Or("layer_group_size");
inline constexpr LayerRule kBailingV3Layers =
    Every(5)
        .Mixes()
        .Keys("layer_types", "layers_block_type", "layer_group_size")
        .With(&LayerRule::remainder, true);
inline constexpr LayerRule kBambaLayers = All(kNope).Mixes().Keys("attn_layer_indices");
inline constexpr LayerRule kGigaChat35Layers =
    All(kNope).Mixes().Keys("full_attention_layers", "layer_types").OffBy("linear_attention_type");
inline constexpr LayerRule kGraniteHybridLayers = All(kNope).Mixes().Or("layers_block_type");
inline constexpr LayerRule kJetNemotronLayers = Untold().Mixes();
inline constexpr LayerRule kLfm2Layers = LayerRule().Mixes().Or("full_attn_idxs");
inline constexpr LayerRule kLfm2MoeLayers = Untold().Mixes().Or("full_attn_idxs");
inline constexpr LayerRule kLfm3Layers = Letters("N", "NFNS").Mixes();
inline constexpr LayerRule kMiniCpmSalaLayers = LayerRule().Mixes().Keys("mixer_types");
inline constexpr LayerRule kMiniMaxLayers = Letters("", "FN").Mixes().Or("attn_type_list");
inline constexpr LayerRule kMllamaLayers = Letters(
                                               "FFFN"
                                               "FFFFN"
                                               "FFFFN"
                                               "FFFFN"
                                               "FFFFN"
                                               "FFFFN"
                                               "FFFFN"
                                               "FFFFN",
                                               "F")
                                               .Mixes()
                                               .Keys("cross_attention_layers");
inline constexpr LayerRule kOlmoHybridLayers = Every(4).Mixes().With(&LayerRule::some, true);
inline constexpr LayerRule kPlamo2Layers = Every(2, LayerRule::kMiddle)
                                               .Mixes()
                                               .Keys("mamba_step")
                                               .OffBy("mamba_enabled")
                                               .With(&LayerRule::some, true);
inline constexpr LayerRule kQwen3NextLayers = Every(4).Mixes().Or("full_attention_interval");
inline constexpr LayerRule kRecurrentGemmaLayers = Letters("", "NNF").Mixes().Keys("block_types");
inline constexpr LayerRule kZamba2Layers = Letters(
                                               "N"
                                               "NNNNNF"
                                               "NNNNNF"
                                               "NNNNNF"
                                               "NNNNNF"
                                               "NNNNNF"
                                               "NNNNNF"
                                               "NNNNNF"
                                               "NNNNF"
                                               "NNNF"
                                               "NN",
                                               nullptr)
                                               .Mixes()
                                               .Keys("layers_block_type", "layer_types")
                                               .With(&LayerRule::attention, "hybrid");

// DeepSeek-V4: main where attention is not compressed, compress where it is.
inline constexpr LayerRule kDeepSeekV4Layers =
    All(kCompress).Keys("layer_types", "compress_ratios");
inline constexpr LayerRule kDeepSeekV41Layers = kDeepSeekV4Layers.With(&LayerRule::untold, true);

}  // namespace rope::model

#endif  // LIBROPE_SRC_MODEL_CLASS_LAYERS_H_
