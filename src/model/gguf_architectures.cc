#include "model/gguf_architectures.h"

#include <algorithm>
#include <iterator>
#include <string>

#include "model/json.h"

namespace rope::model {
namespace {

constexpr GgufMode kNorm = GgufMode::kNorm, kNeox = GgufMode::kNeox, kMrope = GgufMode::kMrope,
                   kImrope = GgufMode::kImrope, kNormOrMrope = GgufMode::kNormOrMrope,
                   kNeoxOrMrope = GgufMode::kNeoxOrMrope;
using Windows = GgufWindows;
using Base = GgufWindowBase;
using Unrotated = GgufUnrotated;
using Recurrent = GgufRecurrent;
using Indexer = GgufIndexer;

constexpr uint32_t kLlamaFactors = kFreqs | kLongShort;
constexpr uint32_t kDeepseek = kLatent | kYarnLog | kYarnLogTenth;
constexpr uint32_t kGemmaSpans = kWindowSpans | kWindowPlain | kFreqs | kFactorsOfFull;

constexpr Unrotated kAll = Unrotated::kNone;  // layers rotate

constexpr GgufArchitecture kArchitectures[] = {
    {"afmoe", kNeox, 0, Windows::kPeriodIfWindow, 4, Base::kOwn, Unrotated::kFourth},
    {"apertus", kNeox, kWholeHead | kLlamaFactors},
    {"arcee", kNorm, kWholeHead | kFreqs},
    {"arctic", kNorm, kWholeHead},
    {"baichuan", kNorm, kWholeHead | kOf32Layers},
    {"bailingmoe", kNorm},
    {"bailingmoe2", kNeox},
    {"bitnet", kNeox},
    {"chameleon", kNorm, kWholeHead},
    {"chatglm", kNorm},
    {"codeshell", kNeox, kWholeHead},
    {"cogvlm", kNeox, kWholeHead | kFixed},
    {"cohere2", kNorm, 0, Windows::kPeriod, 4, Base::kSame, Unrotated::kFull},
    {"cohere2moe", kNorm, kWholeHead, Windows::kPeriod, -4, Base::kSame,
     Unrotated::kFullBeyondDense},
    {"command-r", kNorm},
    {"dbrx", kNeox, kWholeHead},
    {"deci", kNorm, kWholeHead | kLlamaFactors},
    {"deepseek", kNorm, kWholeHead},
    {"deepseek2", kNorm, kDeepseek | kMscaleIsAllDim},
    {"deepseek2-ocr", kNeox, kWholeHead | kFixed},
    {"deepseek32", kNorm, kDeepseek, Windows::kNone, 0, Base::kSame, kAll, Recurrent::kNone, 0,
     Indexer::kHalves},
    {"dots1", kNeox, kWholeHead},
    {"dream", kNeox, kWholeHead},
    {"eagle3", kNorm, kFreqs},
    {"ernie4_5", kNorm, kWholeHead},
    {"ernie4_5-moe", kNorm, kWholeHead},
    {"eurobert", kNeox},
    {"exaone", kNeox, kWholeHead | kFreqs},
    {"exaone-moe", kNeox, kWholeHead | kFreqs, Windows::kPeriod, 4, Base::kSame, Unrotated::kFull},
    {"exaone4", kNeox, kWholeHead | kFreqs, Windows::kOf64Layers, 4, Base::kSame, Unrotated::kFull},
    {"falcon", kNeox, kWholeHead},
    {"falcon-h1", kNeox},
    {"gemma", kNeox},
    {"gemma-embedding", kNeox, kWindowPlain, Windows::kPeriod, 6, Base::kLocal},
    {"gemma2", kNeox, 0, Windows::kPeriodAlways, 2, Base::kOwn},
    {"gemma3", kNeox, kWindowPlain, Windows::kPeriodIfWindow, 6, Base::kLocal},
    {"gemma3n", kNeox, kWindowPlain, Windows::kPeriod, 5, Base::kLocal},
    {"gemma4", kNeox, kGemmaSpans, Windows::kListed, 0, Base::kLocal},
    {"gemma4-assistant", kNeox, kGemmaSpans, Windows::kListed, 0, Base::kLocal},
    {"glm-dsa", kNorm, kLatent, Windows::kNone, 0, Base::kSame, kAll, Recurrent::kNone, 0,
     Indexer::kInterleaved},
    {"glm4", kNormOrMrope},
    {"glm4moe", kNeoxOrMrope},
    {"gpt-oss", kNeox, kYarnExact, Windows::kPeriod, 2, Base::kOwn},
    {"gptneox", kNeox},
    {"granite", kNorm, kWholeHead | kLlamaFactors, Windows::kNone, 0, Base::kSame,
     Unrotated::kBySwitch},
    {"granite_swa", kNorm, kWholeHead | kLlamaFactors, Windows::kListed, 0, Base::kSame,
     Unrotated::kListed},
    {"granitehybrid", kNorm, kFreqs, Windows::kNone, 0, Base::kSame, Unrotated::kBySwitch,
     Recurrent::kWithoutKv},
    {"granitemoe", kNorm, kWholeHead | kLlamaFactors},
    {"grok", kNeox, kWholeHead | kYarnGrok},
    {"grovemoe", kNeox, kWholeHead},
    {"hrm_text", kNeox},
    {"hunyuan-dense", kNeox, kWholeHead | kAlpha},
    {"hunyuan-moe", kNeox, kWholeHead},
    {"hunyuan_vl", kNeoxOrMrope, kWholeHead | kAlpha},
    {"hy_v3", kNeox, kWholeHead},
    {"hy_v4", kNorm, kLatent, Windows::kNone, 0, Base::kSame, kAll, Recurrent::kNone, 0,
     Indexer::kInterleavedTail},
    {"internlm2", kNorm, kWholeHead},
    {"jais2", kNeox, kWholeHead},
    {"jina-bert-v3", kNeox},
    {"laguna", kNeox, kWindowSpans | kWindowPlain, Windows::kPeriodIfWindow, -4, Base::kOwn},
    {"lfm2", kNeox, 0, Windows::kNone, 0, Base::kSame, kAll, Recurrent::kWithoutKv},
    {"lfm2moe", kNeox, 0, Windows::kNone, 0, Base::kSame, kAll, Recurrent::kWithoutKv},
    {"llada", kNorm, kWholeHead},
    {"llada-moe", kNeox, kWholeHead},
    {"llama", kNorm, kWholeHead | kLlamaFactors},
    {"llama-embed", kNorm, kWholeHead | kLlamaFactors},
    {"llama4", kNorm, kWholeHead | kFreqs, Windows::kChunks, 4, Base::kOwn, Unrotated::kFourth},
    {"maincoder", kNorm, kWholeHead},
    {"maple", kNeox, kWindowSpans, Windows::kListed, 0, Base::kOwn, Unrotated::kFull},
    {"mellum", kNeox, kWholeHead | kWindowPlain, Windows::kPeriodIfWindow, 4, Base::kSame},
    {"mimo2", kNeox, kWindowPlain, Windows::kListed, 0, Base::kLocal},
    {"minicpm", kNorm, kWholeHead | kLlamaFactors},
    {"minicpm3", kNeox, kLatent | kLongShort | kLongShortAlways},
    {"minimax-01", kNeox, 0, Windows::kNone, 0, Base::kSame, kAll, Recurrent::kIntervals, 8},
    {"minimax-m2", kNeox},
    {"minimax-m3", kNeox, 0, Windows::kNone, 0, Base::kSame, kAll, Recurrent::kNone, 0,
     Indexer::kHalves},
    {"mistral3", kNorm, kWholeHead | kLlamaFactors | kYarnLog},
    {"mistral4", kNorm, kDeepseek},
    {"modern-bert", kNeox, kWindowPlain, Windows::kPeriodIfWindow, -3, Base::kLocal},
    {"muse-glimmer", kNorm, kWindowPlain, Windows::kPeriod, 4, Base::kOwn, Unrotated::kFull},
    {"nanbeige", kNorm, kWholeHead | kFreqs},
    {"nemotron", kNeox},
    {"neo-bert", kNorm},
    {"nomic-bert", kNeox},
    {"nomic-bert-moe", kNeox},
    {"olmo", kNorm, kWholeHead},
    {"olmo2", kNeox, kWholeHead | kWindowPlain, Windows::kPeriodIfWindow, 4, Base::kSame},
    {"olmoe", kNeox, kWholeHead},
    {"openelm", kNeox},
    {"orion", kNeox, kWholeHead},
    {"paddleocr", kMrope, kWholeHead},
    {"pangu-embedded", kNeox, kWholeHead},
    {"phi2", kNeox},
    {"phi3", kNeox, kLongShort | kLongShortAlways},
    {"phimoe", kNeox, kLongShort | kLongShortAlways},
    {"plamo", kNeox, kWholeHead},
    {"plamo2", kNeox, 0, Windows::kNone, 0, Base::kSame, kAll, Recurrent::kWithoutKv},
    {"plamo3", kNeox, kWindowPlain, Windows::kPeriodIfWindow, 8, Base::kLocal},
    {"plm", kNorm, kLatent},
    {"pockettts", kNorm, kWholeHead},
    {"qwen", kNeox},
    {"qwen2", kNeox, kWholeHead},
    {"qwen2moe", kNeox, kWholeHead},
    {"qwen2vl", kMrope, kWholeHead},
    {"qwen3", kNeox, kWholeHead},
    {"qwen35", kImrope, 0, Windows::kNone, 0, Base::kSame, kAll, Recurrent::kIntervals, 4},
    {"qwen35moe", kImrope, 0, Windows::kNone, 0, Base::kSame, kAll, Recurrent::kIntervals, 4},
    {"qwen3moe", kNeox, kWholeHead},
    {"qwen3next", kNeox, 0, Windows::kNone, 0, Base::kSame, kAll, Recurrent::kIntervals, 4},
    {"qwen3tts", kImrope, kWholeHead},
    {"qwen3vl", kImrope, kWholeHead},
    {"qwen3vlmoe", kImrope, kWholeHead},
    {"rnd1", kNeox, kWholeHead},
    {"seed_oss", kNeox, kWholeHead},
    {"smallthinker", kNeox, kWholeHead, Windows::kPeriodIfWindow, -4, Base::kOwn,
     Unrotated::kFirstIfWindow},
    {"smollm3", kNorm, kWholeHead, Windows::kNone, 0, Base::kSame, Unrotated::kFourth},
    {"spark2_5", kNeox, kWindowSpans, Windows::kListed, 0, Base::kOwn},
    {"stablelm", kNeox},
    {"starcoder2", kNeox, kWholeHead},
    {"step35", kNeox, kWindowSpans | kWindowPlain | kHalfInFull | kLlamaFactors | kFactorsOfFull,
     Windows::kListed, 0, Base::kLocal},
    {"talkie", kNeox, kWholeHead},
    {"xverse", kNorm, kWholeHead},
};

struct Refused {
  std::string_view name;
  const char* reason;
};

constexpr char kWithout[] = "is known to this version without RoPE only";

constexpr Refused kRefused[] = {
    {"arwkv7", kWithout},
    {"bailingmoe3",
     "rotates the heads of some layers, between others of linear attention, by "
     "sections: this version does not read them"},
    {"bert", kWithout},
    {"bloom", kWithout},
    {"clip", "is a tower: its rotation is not described by keys"},
    {"deepseek4",
     "has layers of compressed positions, whose outputs are rotated back: this version "
     "does not read them"},
    {"dflash", "is a draft, whose rotation is that of another file's model"},
    {"dots3note", "has heads of two widths in latent attention: this version does not read them"},
    {"glm5-next", kWithout},
    {"gpt2", kWithout},
    {"gptj", "is in no graph of llama.cpp: nothing tells which pairs its weights are in"},
    {"graniteswitch", "has a layer that routes adapters: this version does not read it"},
    {"jais", kWithout},
    {"jamba", kWithout},
    {"jina-bert-v2", kWithout},
    {"kimi-k3", kWithout},
    {"kimi-linear", kWithout},
    {"mamba", kWithout},
    {"mamba2", kWithout},
    {"mpt", kWithout},
    {"nemotron_h", kWithout},
    {"nemotron_h_moe", kWithout},
    {"qwen4exp", "rotates keys of whole blocks, too: this version does not read them"},
    {"refact", kWithout},
    {"rwkv6", kWithout},
    {"rwkv6qwen2", kWithout},
    {"rwkv7", kWithout},
    {"starcoder", kWithout},
    {"t5", kWithout},
    {"t5encoder", kWithout},
    {"wavtokenizer-dec", kWithout},
};

}  // namespace

const GgufArchitecture& FindGgufArchitecture(std::string_view name) {
  for (const GgufArchitecture& architecture : kArchitectures) {
    if (architecture.name == name) return architecture;
  }
  const char* reason = "is not known to this version";
  for (const Refused& refused : kRefused) {
    if (refused.name == name) reason = refused.reason;
  }
  Reject(ROPE_ERROR_UNSUPPORTED, "general.architecture (\"%s\") %s", Printable(name).c_str(),
         reason);
}

}  // namespace rope::model
