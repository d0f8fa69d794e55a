// What the classes of model/families.cc have beside the numbers of their rows: defaults of two
// kinds of layers, and whole rope dictionaries.
#ifndef LIBROPE_SRC_MODEL_CLASS_ROPES_H_
#define LIBROPE_SRC_MODEL_CLASS_ROPES_H_

#include <cstdint>

namespace rope::model {

// The defaults of one of two kinds of RoPE in a model.
struct KindDefaults {
  const char* theta_key;  // nullptr: no key beside the dictionary, as in OLMo 3
  double theta;
  double partial = 1;
  const char* head_dim_key = nullptr;  // nullptr: head_dim
  int head_dim = 0;
  const char* nope_key = nullptr;  // replaces qk_nope_head_dim, with its default
  int nope = 0;
  const char* rope_key = nullptr;  // replaces qk_rope_head_dim
  double nested_partial = 0;       // not 0: instead of `partial` in a dictionary of the file
  bool theta_inside = false;       // a dictionary of the file has to say its theta
  bool theta_beside = false;       // theta_key or its default counts, whatever a dictionary says
};

// To which kinds a rope dictionary applies that does not tell them apart.
enum class Flat : uint8_t {
  kFull,
  kBoth,
  kNeither,
  kAlone  // to both, and the class knows no other dictionary
};

// Two kinds of RoPE, for full_attention and for sliding_attention.
struct TwoRopes {
  KindDefaults full, sliding;
  Flat flat;
  bool proportional = false;  // the default rope_type of full_attention
  const char* full_name = "full_attention";
  const char* sliding_name = "sliding_attention";
  bool completes = false;  // the class has its defaults for a kind that rope_parameters omits
};

constexpr TwoRopes Completing(TwoRopes ropes) {
  ropes.completes = true;
  return ropes;
}

inline constexpr TwoRopes kDots3Note = {
    {"rope_theta", 8e7},
    {"swa_rope_theta", 5e4, 1, nullptr, 0, "swa_qk_nope_head_dim", 192, "swa_qk_rope_head_dim", 0,
     true},
    Flat::kNeither,
    false,
    "indexed_attention"};
inline constexpr TwoRopes kEmbeddingGemma2 = {
    {nullptr, 1e6, 1, "global_head_dim", 512}, {nullptr, 1e4}, Flat::kNeither};
inline constexpr TwoRopes kGemma3 =
    Completing({{"rope_theta", 1e6}, {"rope_local_base_freq", 1e4}, Flat::kFull});
inline constexpr TwoRopes kGemma4 = {
    {nullptr, 1e6, 0.25, "global_head_dim", 512, nullptr, 0, nullptr, 1},
    {nullptr, 1e4},
    Flat::kNeither,
    true};
inline constexpr TwoRopes kIquestQ1 = {
    {"rope_theta", 1e6},
    {"swa_rope_theta", 1e4, 1, nullptr, 0, nullptr, 0, nullptr, 0, false, true},
    Flat::kAlone};
inline constexpr TwoRopes kLaguna = {
    {nullptr, 5e5, 0.5, nullptr, 0, nullptr, 0, nullptr, 1}, {nullptr, 1e4}, Flat::kNeither};
inline constexpr TwoRopes kLfm3 = {
    {nullptr, 1e6, 0.5, nullptr, 0, nullptr, 0, nullptr, 1}, {nullptr, 1e4}, Flat::kNeither, true};
inline constexpr TwoRopes kMellum = {{nullptr, 5e5}, {nullptr, 1e4}, Flat::kNeither};
inline constexpr TwoRopes kMimo = {
    {"rope_theta", 5e6, 0.334}, {"swa_rope_theta", 1e4, 0.334, "swa_head_dim"}, Flat::kNeither};
inline constexpr TwoRopes kMimoV2 = {
    {"rope_theta", 0}, {"swa_rope_theta", 0, 1, "swa_head_dim"}, Flat::kNeither};
inline constexpr TwoRopes kMiniCpmSala = {
    {"rope_theta", 1e4}, {"rope_theta", 1e4, 1, "lightning_head_dim"},
    Flat::kBoth,         false,
    "full_attention",    "lightning_attention"};
inline constexpr TwoRopes kModernBert =
    Completing({{"global_rope_theta", 160000}, {"local_rope_theta", 1e4}, Flat::kBoth});
inline constexpr TwoRopes kNeomme =
    Completing({{"rope_theta", 1e6, 0.25}, {"rope_theta", 1e4}, Flat::kNeither});
inline constexpr TwoRopes kOlmo3 = Completing({{"rope_theta", 5e5}, {nullptr, 5e5}, Flat::kFull});
inline constexpr TwoRopes kPlamo3 = {{"rope_theta", 0}, {"rope_local_theta", 0}, Flat::kFull};
inline constexpr TwoRopes kSpark = {
    {nullptr, 5e6, 0.25, nullptr, 0, nullptr, 0, nullptr, 1}, {nullptr, 1e4}, Flat::kNeither};
inline constexpr TwoRopes kUltrabert = {{nullptr, 2560000}, {nullptr, 1e4}, Flat::kNeither};
inline constexpr TwoRopes kZaya = {{nullptr, 5e6, 0.5, nullptr, 0, nullptr, 0, nullptr, 1},
                                   {nullptr, 1e4, 0.5, nullptr, 0, nullptr, 0, nullptr, 1},
                                   Flat::kNeither,
                                   false,
                                   "hybrid",
                                   "hybrid_sliding"};

// What a class falls back to if the configuration has no rope dictionary at all. Where it has a
// theta, that one counts even against a key beside it, and a dictionary of the file without theta
// has the default of all models, 10000, unless the row says another.
inline constexpr const char kApertusRope[] =
    R"({"rope_type": "llama3", "rope_theta": 12000000.0, "factor": 8.0,
        "original_max_position_embeddings": 8192, "low_freq_factor": 1.0,
        "high_freq_factor": 4.0})";
// null: a kind of layer without RoPE.
inline constexpr const char kBeamRope[] =
    R"({"sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
        "full_attention": null})";
inline constexpr const char kCosmos3EdgeRope[] =
    R"({"rope_type": "default", "rope_theta": 100000000.0, "mrope_section": [24, 20, 20]})";
inline constexpr const char kCwmRope[] =
    R"({"rope_type": "llama3", "rope_theta": 1000000.0, "factor": 16.0,
        "original_max_position_embeddings": 8192, "low_freq_factor": 1.0,
        "high_freq_factor": 4.0})";
inline constexpr const char kGptOssRope[] =
    R"({"rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0,
        "truncate": false, "original_max_position_embeddings": 4096})";
inline constexpr const char kHiggsAudioRope[] =
    R"({"rope_type": "llama3", "rope_theta": 500000.0, "factor": 32.0,
        "original_max_position_embeddings": 1024, "low_freq_factor": 0.125,
        "high_freq_factor": 0.5})";
inline constexpr const char kMinistral3Rope[] =
    R"({"rope_type": "yarn", "rope_theta": 1000000.0, "factor": 16.0, "beta_fast": 32.0,
        "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0,
        "original_max_position_embeddings": 16384})";
inline constexpr const char kMistral4Rope[] =
    R"({"rope_type": "yarn", "rope_theta": 10000.0, "factor": 128.0, "beta_fast": 32.0,
        "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0,
        "original_max_position_embeddings": 8192})";
inline constexpr const char kMoonshineStreamingRope[] =
    R"({"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.8})";
inline constexpr const char kMuseSparkRope[] =
    R"({"rope_type": "default", "rope_theta": 500000.0})";
// Checkpoints also hold a tensor that scales the frequencies, which is for freq_factors.
inline constexpr const char kMistralLarge4Rope[] =
    R"({"rope_type": "yarn", "rope_theta": 10000.0, "factor": 2048.0, "beta_fast": 32.0,
        "beta_slow": 1.0, "attention_factor": 1.0, "original_max_position_embeddings": 512})";

}  // namespace rope::model

#endif  // LIBROPE_SRC_MODEL_CLASS_ROPES_H_
