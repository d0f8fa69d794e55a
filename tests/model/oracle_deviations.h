// Where librope and transformers differ, each with its reason. The list is strict: the comparison
// must find a difference of exactly these kinds at exactly these ropes, so that an entry which is
// no longer true fails, like a difference that has no entry.
#ifndef LIBROPE_TESTS_MODEL_ORACLE_DEVIATIONS_H_
#define LIBROPE_TESTS_MODEL_ORACLE_DEVIATIONS_H_

#include <string>
#include <vector>

namespace rope::testing {

struct Deviation {
  std::string test;     // name of the case
  std::string rope;     // "": the case as a whole
  std::string kind;     // that of Problem
  std::string message;  // part of its text
  std::string reason;
};

inline const std::vector<Deviation>& Deviations() {
  static const std::vector<Deviation> kDeviations = {
      // The trained model, or the keys of the file, against transformers.
      {"facebook-esm2-t6-8m-ur50d", "text", "inv_freq", "pair 1: 0.75,",
       "ESM-2's checkpoints hold frequencies rounded to f16, which replace those that the class "
       "computes; librope rounds them as the checkpoints do"},
      {"tencent-hunyuanocr-hunyuan-vl-text", "text", "two_angles", "different angles",
       "the port doubles every section, so that the two channels of a pair turn by different ids "
       "of an image; librope turns each pair by one id, as the original code. Text is the same"},
      {"hand-gemma3-yarn-nested", "full_attention", "inv_freq", "pair 7:",
       "transformers ignores \"truncate\" in a dictionary per layer type; librope honours it"},
      {"hand-mimo-v2-flash-thetas", "full_attention", "sizes", "24 pairs, theirs 32",
       "the class ignores rope_theta and partial_rotary_factor beside the dictionary; librope "
       "honours them. The released files have the class's own numbers"},
      {"hand-mimo-v2-flash-thetas", "sliding_attention", "sizes", "24 pairs, theirs 32",
       "the same of swa_rope_theta"},
      {"class-minimax-m3-vl", "text", "sizes", "32 pairs, theirs 64",
       "the class ignores its rotary_dim of 64 unless partial_rotary_factor says it, too; "
       "librope honours it, as in MiniMax-M2"},
      {"class-mllama", "", "layers", "layer 3 must turn",
       "cross-attention layers get cos and sin and do not use them; librope says that they have "
       "no RoPE"},
      {"meta-llama-llama-3-2-90b-vision-instruct", "", "layers", "layer 3 must turn", "the same"},
      {"class-esm", "", "layers", "layer 0 must turn",
       "the class's default position_embedding_type is \"absolute\": the RoPE module is there "
       "and unused; librope says that no layer has RoPE"},
      {"class-esm", "text", "missing", "no layer type", "the same"},
      {"openbmb-minicpm-2b-sft-bf16", "text", "rounding", "theirs \"eager\"",
       "the class of llama stood for MiniCPM's remote code, whose frequencies are the same; that "
       "code keeps cos and sin in f32 and rounds once, and so does librope"},
      {"openbmb-minicpm-2b-sft-bf16", "text", "rotated_16", "bf16 q", "the same"},
      {"model-minicpm-2b-128k", "text", "rounding", "theirs \"eager\"", "the same"},
      {"model-minicpm-2b-128k", "text", "rotated_16", "bf16 q", "the same"},
      {"hand-phimoe-mscale-equal", "text", "inv_freq", "pair 1: 0.324691, theirs 0.639391",
       "transformers' class takes the short factors at every length; librope takes the long ones "
       "beyond original_max_position_embeddings, as lmdeploy does"},
      // Not offered.
      {"class-vjepa2", "", "refused", "model_type (\"vjepa2\")",
       "V-JEPA 2 turns the two channels of a pair by different angles: no rotation. Rows hold it, "
       "see "
       "above"},
      {"hand-phimoe-mscale", "", "refused", "short_mscale",
       "short_mscale and long_mscale that differ (those of PhiMoE's files are equal; "
       "Phi-3-small-128k "
       "has both keys, too): a configuration has one attention_factor for all lengths, and "
       "programs "
       "differ in the factors that go with long_mscale (transformers: the short ones). Without "
       "both keys the text is read; then set "
       "attention_factor with seq_len, or make one context of two configurations "
       "(rope_context_create_sets)"},
      {"class-glm4-moe", "", "refused", "(96) must divide hidden_size (4096)",
       "the class's default sizes do not divide: refused"},
      // Texts that contradict themselves, or say what the class does not read: programs differ.
      {"hand-default-both-thetas", "", "refused", "rope_theta (10000)",
       "two values of theta: transformers takes the one in the dictionary; librope refuses"},
      {"hand-default-both-dicts", "", "refused", "must say the same",
       "rope_scaling and rope_parameters that differ: transformers takes the first; librope "
       "refuses"},
      {"hand-default-partial-ignored", "", "refused", "partial_rotary_factor (0.5)",
       "Llama's class ignores partial_rotary_factor, and other programs turn half of the head"},
      {"hand-partial-both", "", "refused", "partial_rotary_factor (0.25)",
       "two shares of the head: transformers takes the one in the dictionary; librope refuses"},
      // Sizes that librope wants from the file.
      {"class-dbrx", "", "refused", "hidden_size is missing",
       "the file leaves d_model to the class: librope wants the keys that head_dim follows from"},
      {"hand-zamba2-rope", "", "refused", "hidden_size is missing", "the same of hidden_size"},
      // Class defaults that do not fit together; no released model has them.
      {"class-glm4v", "", "refused", "adds up to 32",
       "the class's default sections add up to half of its pairs"},
      {"class-glm4v-moe", "", "refused", "(96) must divide hidden_size (4096)",
       "the class's default sizes do not divide"},
      {"class-qwen3-omni-moe", "", "refused", "(28) must divide hidden_size (2048)",
       "the class's default sizes do not divide"},
      {"class-qwen4-exp", "", "refused", "adds up to 32",
       "the class's default sections are those of a quarter of its head, and it has no factor "
       "of a quarter"},
  };
  return kDeviations;
}

}  // namespace rope::testing

#endif  // LIBROPE_TESTS_MODEL_ORACLE_DEVIATIONS_H_
