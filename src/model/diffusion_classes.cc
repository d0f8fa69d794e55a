#include "model/diffusion_classes.h"

namespace rope::model {
namespace {

using Rule = LatentRule;

constexpr Power kFloat32 = Power::kFloat32, kFloat64 = Power::kFloat64;
constexpr rope_pairing kInterleaved = ROPE_PAIRING_INTERLEAVED, kHalves = ROPE_PAIRING_HALVES,
                       kPerAxis = ROPE_PAIRING_HALVES_PER_AXIS;

#define ROPE_FLUX_DIMS Split::kListed, {16, 56, 56}, "axes_dims_rope"
#define ROPE_HUNYUAN_DIMS Split::kListed, {16, 56, 56}, "rope_axes_dim"
#define ROPE_WAN_DIMS Split::kThirds, {}, nullptr

// name, ids, power, theta, split, dims, their key, key of theta, keys of layers, layers, head_dim,
// heads, width, pairing, ignored keys
constexpr DiffusionClass kClasses[] = {
    {"AllegroTransformer3DModel", Rule::kAllegro, kFloat32, 10000, Split::kEqual, {}, nullptr,
     nullptr, {"num_layers"}, {32}, 96, 0, Width::kKey, kPerAxis},
    {"AnyFlowTransformer3DModel", Rule::kVideo, kFloat64, 10000, ROPE_WAN_DIMS, nullptr,
     {"num_layers"}, {40}, 128, 0, Width::kKey, kInterleaved, {"rope_max_seq_len"}},
    {"BriaFiboTransformer2DModel", Rule::kReferences, kFloat64, 10000, ROPE_FLUX_DIMS, "rope_theta",
     {"num_layers", "num_single_layers"}, {19, 38}, 128, 0, Width::kKey,
     kInterleaved, {"time_theta"}},
    {"BriaTransformer2DModel", Rule::kImage, kFloat64, 10000, ROPE_FLUX_DIMS, "rope_theta",
     {"num_layers", "num_single_layers"}, {19, 38}, 128, 0, Width::kKey,
     kInterleaved, {"time_theta"}},
    {"ChromaTransformer2DModel", Rule::kImage, kFloat64, 10000, ROPE_FLUX_DIMS, nullptr,
     {"num_layers", "num_single_layers"}, {19, 38}},
    {"ChronoEditTransformer3DModel", Rule::kChronoEdit, kFloat64, 10000, ROPE_WAN_DIMS, nullptr,
     {"num_layers"}, {40}, 128, 0, Width::kKey, kInterleaved, {"rope_max_seq_len"}},
    {"CogVideoXTransformer3DModel", Rule::kCogVideo, kFloat32, 10000, Split::kEighths, {}, nullptr,
     nullptr, {"num_layers"}, {30}, 64},
    {"CogView4Transformer2DModel", Rule::kCogView4, kFloat32, 10000, Split::kTwoHalves, {}, nullptr,
     nullptr, {"num_layers"}, {30}, 40, 0, Width::kKey, kHalves},
    {"ConsisIDTransformer3DModel", Rule::kCogVideo, kFloat32, 10000, Split::kEighths, {}, nullptr,
     nullptr, {"num_layers"}, {30}, 64},
    {"CosmosTransformer3DModel", Rule::kCosmos, kFloat32, 10000, ROPE_WAN_DIMS, nullptr,
     {"num_layers"}, {28}, 128, 0, Width::kKey, kHalves},
    {"EasyAnimateTransformer3DModel", Rule::kEasyAnimate, kFloat32, 10000, Split::kEighths, {},
     nullptr, nullptr, {"num_layers"}, {48}, 64, 0, Width::kKey, kInterleaved,
     {"time_position_encoding_type"}},
    {"Flux2Transformer2DModel", Rule::kFlux2, kFloat64, 2000, Split::kListed, {32, 32, 32, 32},
     "axes_dims_rope", "rope_theta", {"num_layers", "num_single_layers"}, {8, 48}},
    {"FluxTransformer2DModel", Rule::kFlux, kFloat64, 10000, ROPE_FLUX_DIMS, nullptr,
     {"num_layers", "num_single_layers"}, {19, 38}},
    {"GlmImageTransformer2DModel", Rule::kImage, kFloat32, 10000, Split::kTwoHalves, {}, nullptr,
     nullptr, {"num_layers"}, {30}, 40, 0, Width::kKey, kHalves},
    {"HiDreamImageTransformer2DModel", Rule::kHiDream, kFloat64, 10000, Split::kListedHalf,
     {0, 0, 0}, "axes_dims_rope", nullptr, {"num_layers", "num_single_layers"}, {16, 32}},
    {"HunyuanImageTransformer2DModel", Rule::kVideoThenText, kFloat32, 256, Split::kListed,
     {64, 64}, "rope_axes_dim", "rope_theta", {"num_layers", "num_single_layers"}, {20, 40}},
    {"HunyuanVideo15Transformer3DModel", Rule::kVideoThenText, kFloat32, 256, ROPE_HUNYUAN_DIMS,
     "rope_theta", {"num_layers"}, {54}},
    {"HunyuanVideoTransformer3DModel", Rule::kVideoThenText, kFloat32, 256, ROPE_HUNYUAN_DIMS,
     "rope_theta", {"num_layers", "num_single_layers"}, {20, 40}},
    {"JoyImageEditTransformer3DModel", Rule::kJoyImage, kFloat32, 256, Split::kListed, {16, 56, 56},
     "rope_dim_list", "theta", {"num_layers"}, {20}, 3072, 24, Width::kHiddenByHeads},
    {"Kandinsky5Transformer3DModel", Rule::kKandinsky, Power::kExponential, 10000, Split::kListed,
     {16, 24, 24}, "axes_dims", nullptr, {"num_text_blocks", "num_visual_blocks"}, {2, 32}, 0, 0,
     Width::kSum},
    {"Krea2Transformer2DModel", Rule::kImage, kFloat64, 1000, Split::kListed, {32, 48, 48},
     "axes_dims_rope", "rope_theta", {"num_layers"}, {28}},
    {"LongCatImageTransformer2DModel", Rule::kLongCat, kFloat64, 10000, ROPE_FLUX_DIMS, nullptr,
     {"num_layers", "num_single_layers"}, {19, 38}},
    {"Lumina2Transformer2DModel", Rule::kLumina2, kFloat64, 10000, Split::kListed, {32, 32, 32},
     "axes_dim_rope", nullptr, {"num_layers"}, {26}, 2304, 24, Width::kHiddenByHeads, kInterleaved,
     {"axes_lens"}},
    {"MotifVideoTransformer3DModel", Rule::kVideoThenText, kFloat64, 256, ROPE_HUNYUAN_DIMS,
     "rope_theta", {"num_layers", "num_single_layers"}, {20, 40}},
    {"NucleusMoEImageTransformer2DModel", Rule::kNucleus, kFloat32, 10000, ROPE_FLUX_DIMS, nullptr,
     {"num_layers"}, {24}},
    {"OvisImageTransformer2DModel", Rule::kOvis, kFloat64, 10000, ROPE_FLUX_DIMS, nullptr,
     {"num_layers", "num_single_layers"}, {6, 27}},
    {"PRXTransformer2DModel", Rule::kVideo, kFloat64, 10000, Split::kListed, {32, 32}, "axes_dim",
     "theta", {"depth"}, {16}, 0, 0, Width::kSum},
    {"QwenImageTransformer2DModel", Rule::kQwenImage, kFloat32, 10000, ROPE_FLUX_DIMS, nullptr,
     {"num_layers"}, {60}},
    {"SanaVideoTransformer3DModel", Rule::kVideo, kFloat64, 10000, ROPE_WAN_DIMS, nullptr,
     {"num_layers"}, {20}, 112, 0, Width::kKey, kInterleaved, {"rope_max_seq_len"}},
    {"SkyReelsV2Transformer3DModel", Rule::kVideo, kFloat64, 10000, ROPE_WAN_DIMS, nullptr,
     {"num_layers"}, {32}, 128, 0, Width::kKey, kInterleaved, {"rope_max_seq_len"}},
    {"WanTransformer3DModel", Rule::kVideo, kFloat64, 10000, ROPE_WAN_DIMS, nullptr,
     {"num_layers"}, {40}, 128, 0, Width::kKey, kInterleaved, {"rope_max_seq_len"}},
    {"WanVACETransformer3DModel", Rule::kVideo, kFloat64, 10000, ROPE_WAN_DIMS, nullptr,
     {"num_layers"}, {40}, 128, 0, Width::kKey, kInterleaved, {"rope_max_seq_len"}},
    {"ZImageTransformer2DModel", Rule::kZImage, kFloat64, 256, Split::kListed, {32, 48, 48},
     "axes_dims", "rope_theta", {"n_layers"}, {30}, 3840, 30, Width::kDimByHeads, kInterleaved,
     {"axes_lens"}},
};

#undef ROPE_FLUX_DIMS
#undef ROPE_HUNYUAN_DIMS
#undef ROPE_WAN_DIMS

struct Refused {
  std::string_view name;
  const char* why;
};

constexpr char kLearned[] = "its frequencies are a weight, pos_frequencies, which is no part of this text: give it "
                            "as rope_config.frequency, [3][heads][pairs] in f64, with freq_heads, 3 axes "
                            "and ROPE_PAIRING_INTERLEAVED",
               kTwoAngles[] = "it turns the two channels of a pair by different angles, which is no rotation",
               kIds[] = "its ids depend on more than sizes, and this version does not make them",
               kNotYet[] = "its frequencies or ids follow rules that this version does not have",
               kOfWan[] = "it is Wan's own; give the config.json of the same model in diffusers' form, "
                          "a WanTransformer3DModel";

constexpr Refused kRefused[] = {
    {"AceStepTransformer1DModel", kNotYet},
    {"AnyFlowFARTransformer3DModel", kIds},
    {"BriaFibo2Transformer2DModel", kNotYet},
    {"Cosmos3OmniTransformer", kNotYet},
    {"ErnieImageTransformer2DModel", kTwoAngles},
    {"Flux3Transformer2DModel", kNotYet},
    {"HeliosTransformer3DModel", kIds},
    {"HunyuanDiT2DModel", kNotYet},
    {"HunyuanVideoFramepackTransformer3DModel", kIds},
    {"Ideogram4Transformer2DModel", kNotYet},
    {"JoyImageEditPlusTransformer3DModel", kNotYet},
    {"Kandinsky6SRTransformer3DModel", kNotYet},
    {"Kandinsky6Transformer3DModel", kNotYet},
    {"LongCatAudioDiTTransformer", kNotYet},
    {"LuminaNextDiT2DModel", kNotYet},
    {"MiniMaxH3Transformer3DModel", kNotYet},
    {"MiniMaxMusic3Transformer1DModel", kNotYet},
    {"MochiTransformer3DModel", kLearned},
    {"OmniGenTransformer2DModel", kNotYet},
    {"QwenImage21Transformer2DModel", kIds},
    {"SanaWMLTX2RefinerTransformer3DModel", kIds},
    {"SanaWMTransformer3DModel", kNotYet},
    {"StableAudio3DiTModel", kNotYet},
    {"StableAudioDiTModel", kNotYet},
    {"WanAnimate2Transformer3DModel", kIds},
    {"WanAnimateTransformer3DModel", kIds},
    {"WanModel", kOfWan},
};

}  // namespace

const DiffusionClass* FindDiffusionClass(std::string_view name) {
  for (const DiffusionClass& known : kClasses) {
    if (known.name == name) return &known;
  }
  return nullptr;
}

const char* WhyDiffusionClassIsRefused(std::string_view name) {
  for (const Refused& refused : kRefused) {
    if (refused.name == name) return refused.why;
  }
  return nullptr;
}

}  // namespace rope::model
