// Meta's params.json, which comes with the original weights of Llama 1 to 4
// ("original/params.json").
//
// Sources: llama_models/llama3/{args,model}.py and llama4/{args,model}.py of the package
// llama-models 0.3.0. Pairs are neighbours (view_as_complex), in f32, whatever the weights are in.
// The numbers of Llama 3.1's scaling are constants of the code; Llama 4's are 16 and 1 unless the
// file says otherwise.
#include <algorithm>
#include <iterator>
#include <string>

#include "model/dialects.h"
#include "model/layers.h"

namespace rope::model {
namespace {

bool IsMetaParams(const Dict& root) {
  const bool sizes = root.Peek("dim") != nullptr && root.Peek("n_layers") != nullptr &&
                     root.Peek("n_heads") != nullptr;
  return sizes && root.Peek("model_type") == nullptr &&
         (root.Mentions("multiple_of") || root.Mentions("ffn_dim_multiplier"));
}

constexpr const char* kOfLlama4[] = {"moe_args", "nope_layer_interval"};

bool IsLlama4(const Dict& root) {
  return std::any_of(std::begin(kOfLlama4), std::end(kOfLlama4),
                     [&root](const char* key) { return root.Peek(key) != nullptr; });
}

// Arguments that only Llama 4's code has, all null.
bool MayBeLlama4(const Dict& root) {
  return !IsLlama4(root) && std::any_of(std::begin(kOfLlama4), std::end(kOfLlama4),
                                        [&root](const char* key) { return root.Mentions(key); });
}

// The code of Llama 1 and 2 has no such argument, nor the others of later models; their files say
// -1 where later ones have a size.
double Theta(const Dict& root) {
  if (const auto theta = root.Positive("rope_theta")) return *theta;
  constexpr double kOfLlama2 = 10000;
  const bool later = IsLlama4(root) || MayBeLlama4(root) || root.Mentions("rope_theta") ||
                     root.Mentions("use_scaled_rope");
  if (later || root.Integer("vocab_size", -1, kMaxWidth).value_or(0) != -1) {
    root.RejectMissing("rope_theta",
                       "only files of Llama 1 and 2, whose vocab_size is -1, lack it");
  }
  return kOfLlama2;
}

void FillScaling(const Dict& root, rope_config* config) {
  constexpr int64_t kWidthOfLlama31 = 4096;
  const auto factor = root.Positive("rope_scaling_factor");
  const auto high = root.Positive("rope_high_freq_factor");
  const auto scaled = root.Bool("use_scaled_rope");
  if (!scaled && (factor || high)) {
    root.RejectMissing("use_scaled_rope",
                       "Meta's code scales nothing without it, and " +
                           root.Path(factor ? "rope_scaling_factor" : "rope_high_freq_factor") +
                           " is there");
  }
  if (scaled && !*scaled && (factor || high)) {
    RejectValue(
        root.Path("use_scaled_rope"), *root.Find("use_scaled_rope"),
        "be true beside " + root.Path(factor ? "rope_scaling_factor" : "rope_high_freq_factor"));
  }
  if (!scaled.value_or(false)) return;
  const bool llama4 = IsLlama4(root);
  if (MayBeLlama4(root) && !(factor && high)) {
    root.RejectMissing(
        factor ? "rope_high_freq_factor" : "rope_scaling_factor",
        "Llama 3's and Llama 4's code have different ones, and what tells them apart "
        "is null");
  }
  if (!llama4 && !factor && *root.Integer("dim", 1, kMaxWidth) < kWidthOfLlama31) {
    root.RejectMissing("rope_scaling_factor",
                       "it is 8 in Meta's code, and 32 in transformers' files of the same small "
                       "models (Llama 3.2 1B and 3B)");
  }
  config->scaling = ROPE_SCALING_LLAMA3;
  config->factor = factor.value_or(llama4 ? 16 : 8);
  config->low_freq_factor = 1;
  config->high_freq_factor = high.value_or(llama4 ? 1 : 4);
  config->original_max_position_embeddings = 8192;
}

void Read(const Dict& root, ParsedModel* out) {
  LayerType type;
  type.name = kFull;
  rope_config& config = type.config;
  config.head_dim = QuotientOf(root, "dim", "n_heads");
  config.pairing = ROPE_PAIRING_INTERLEAVED;
  config.theta = Theta(root);
  FillScaling(root, &config);
  out->types.push_back(type);
  const int64_t layers = Required(root, "n_layers", 1, kMaxLayers, "it counts the layers");
  const int64_t interval = root.Integer("nope_layer_interval", 1, kMaxLayers).value_or(0);
  AssignLayers(LastOf(interval, layers), out);
  if (root.Peek("vision_args") != nullptr) {
    out->notes.push_back(root.Path("vision_args") +
                         " is not read: transformers' config.json of the model has its tower");
  }
}

}  // namespace

const Dialect kMetaParams = {"Meta's params.json", ": pairs are neighbours, as in Meta's weights",
                             &IsMetaParams, &Read};

}  // namespace rope::model
