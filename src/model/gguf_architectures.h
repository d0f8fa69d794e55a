// What no key of a GGUF file tells: for each value of general.architecture which channels form a
// pair, which layers have a rotation of their own or none, and which keys and tensors count.
//
// The facts are those of llama.cpp, as llama-cpp-python 0.3.36 carries it: llama_model_rope_type
// and the graphs of its models. Where the graph rotates in another way than llama_model_rope_type
// says (bert, starcoder, deepseek2-ocr), the graph counts.
#ifndef LIBROPE_SRC_MODEL_GGUF_ARCHITECTURES_H_
#define LIBROPE_SRC_MODEL_GGUF_ARCHITECTURES_H_

#include <cstdint>
#include <string_view>

namespace rope::model {

// ggml's modes. With sections of M-RoPE, pairs are those of NEOX.
enum class GgufMode : uint8_t {
  kNorm,    // neighbours
  kNeox,    // two halves
  kMrope,   // sections are required, in blocks
  kImrope,  // sections are required, interleaved
  kNormOrMrope,
  kNeoxOrMrope
};

// Which layers have a sliding window. Where the file has a list or a period, it counts.
enum class GgufWindows : uint8_t {
  kNone,
  kPeriod,          // all but the last of each period; sliding_window is required
  kPeriodAlways,    // the same, and sliding_window has a default (Gemma 2)
  kPeriodIfWindow,  // the same if sliding_window is there and not 0
  kListed,          // sliding_window_pattern is required, and is a list
  kOf64Layers,      // kPeriod if there are 64 layers (EXAONE 4), and none otherwise
  kChunks           // kPeriod, unless sliding_window is 0 (Llama 4)
};

// The base of the frequencies in layers with a window.
enum class GgufWindowBase : uint8_t {
  kSame,  // that of all layers
  kOwn,   // rope.freq_base_swa, or else that of all layers
  kLocal  // rope.freq_base_swa, or else 10000
};

// Attention layers without RoPE.
enum class GgufUnrotated : uint8_t {
  kNone,
  kFull,             // those without a window
  kFullBeyondDense,  // the same, but for the first leading_dense_block_count layers
  kFourth,           // the last of four
  kFirstIfWindow,    // the first of four, in models with windows
  kListed,           // attention.rope_pattern, a list
  kBySwitch          // all, if rope.scaling.finetuned is false
};

// Layers that are no attention.
enum class GgufRecurrent : uint8_t {
  kNone,
  kWithoutKv,  // attention.head_count_kv is 0
  kIntervals   // all but every full_attention_interval-th, or attention.recurrent_layers
};

// Heads of the indexer of sparse attention.
enum class GgufIndexer : uint8_t { kNone, kHalves, kInterleaved, kInterleavedTail };

enum GgufTraits : uint32_t {
  kWholeHead = 1 << 0,  // all channels of a head turn
  kLatent = 1 << 1,     // the last channels turn: those of q, and k apart from the latent vector
  kFreqs = 1 << 2,      // the tensor rope_freqs counts
  kLongShort = 1 << 3,  // rope_factors_long and _short count under the scaling "longrope"
  kLongShortAlways = 1 << 4,
  kFactorsOfFull = 1 << 5,  // the tensors count in layers without a window only
  kWindowSpans = 1 << 6,    // rope.dimension_count_swa and attention.key_length_swa count
  kHalfInFull = 1 << 7,     // layers without a window turn half of rope.dimension_count channels
  kWindowPlain = 1 << 8,    // layers with a window have no scaling
  kYarnLog = 1 << 9,        // rope.scaling.yarn_log_multiplier is mscale_all_dim
  kYarnLogTenth = 1 << 10,  // it is a tenth of it, which scales the softmax, too
  kMscaleIsAllDim = 1 << 11,
  kYarnGrok = 1 << 12,   // the default of yarn_beta_fast is 8, and yarn_attn_factor is 1
  kAlpha = 1 << 13,      // rope.scaling.alpha makes the base larger
  kFixed = 1 << 14,      // the base is 10000 and there is no scaling, whatever the file says
  kYarnExact = 1 << 15,  // YaRN's range is not rounded to whole pairs (gpt-oss)
  kOf32Layers = 1 << 16  // models of 40 layers have ALiBi, and others no graph (Baichuan)
};

struct GgufArchitecture {
  std::string_view name;
  GgufMode mode;
  uint32_t traits = 0;
  GgufWindows windows = GgufWindows::kNone;
  int period = 0;  // negative: the first of each period is the one without a window
  GgufWindowBase window_base = GgufWindowBase::kSame;
  GgufUnrotated unrotated = GgufUnrotated::kNone;
  GgufRecurrent recurrent = GgufRecurrent::kNone;
  int interval = 0;  // the default of full_attention_interval
  GgufIndexer indexer = GgufIndexer::kNone;

  constexpr bool Is(GgufTraits trait) const { return (traits & trait) != 0; }
};

// Throws Error if this version does not read it, with the reason.
const GgufArchitecture& FindGgufArchitecture(std::string_view name);

}  // namespace rope::model

#endif  // LIBROPE_SRC_MODEL_GGUF_ARCHITECTURES_H_
