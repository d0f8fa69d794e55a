// The keys of config.json by which classes tell their layers apart, as a table: in which form each
// says it, and of what it speaks. Which class reads which of them is in model/class_layers.h.
#ifndef LIBROPE_SRC_MODEL_LAYER_KEYS_H_
#define LIBROPE_SRC_MODEL_LAYER_KEYS_H_

#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "model/class_layers.h"
#include "model/json.h"

namespace rope::model {

constexpr int kMaxLayers = 4096;

enum class Form : uint8_t {
  kLabels,        // the label of every layer
  kCycle,         // the same, and the list begins again
  kMixers,        // the same, in words of its own: MiniCPM-SALA
  kBlocks,        // labels that repeat, how often, and those before and after them: IQuest Q1
  kRopeFlags,     // 1: has RoPE
  kFullFlags,     // 1: attention
  kSlidingFlags,  // 1: sliding attention
  kWindows,       // numbers of tokens, of layers that are sliding attention; others: 0 or null
  kFullNumbers,   // the numbers of layers that are attention
  kOtherNumbers,  // of those that are none
  kRatios,        // not 0: compressed
  kThetas,        // 0 or null: no RoPE
  kPeriod,        // one layer in so many
  kOpaque         // what it says is not read
};

// What the layers differ in.
enum class Tells : uint8_t {
  kAttention,  // whether they are attention
  kWindows,    // whether it is sliding attention
  kRope        // whether it has RoPE: such keys are refused by their name (model/unread.h)
};

struct LayerKey {
  const char* key;
  Form form;
  Tells tells;
  bool of_unknown = false;  // decides in families that are not known, in this order

  bool IsList() const {
    return form != Form::kPeriod && form != Form::kOpaque && form != Form::kBlocks;
  }
  // Whether it has an entry for every layer, and so tells how many there are.
  bool CountsLayers() const {
    return IsList() && form != Form::kCycle && form != Form::kMixers &&
           form != Form::kFullNumbers && form != Form::kOtherNumbers;
  }
};

struct LayerKeys {
  const LayerKey *first, *last;
  const LayerKey* begin() const { return first; }
  const LayerKey* end() const { return last; }
};
LayerKeys AllLayerKeys();

// nullptr if the key is none of them.
const LayerKey* FindLayerKey(std::string_view key);

// Whether layers with this label are attention.
bool IsAttention(std::string_view label);

// Whether a label is one by which files call attention, with RoPE where the model has one kind of
// it: another one may say that the layer has none.
bool IsKnownAttention(std::string_view label);

// The path of an entry.
std::string Entry(const Dict& text, std::string_view key, size_t i);

// How many entries of a list count: one for each of `count` layers; those beyond them belong to
// extra layers (multi-token prediction). `count` 0: the list decides. Throws Error if there are too
// few.
int Covered(const Dict& text, std::string_view key, const Value::Array& list, int count);

// A list of layers by number. Those beyond the last layer are extra ones, too.
std::set<int64_t> ListedLayers(const Dict& text, std::string_view key);

// A number for every layer: not negative, 0 also for null. Empty if absent.
std::vector<double> LayerNumbers(const Dict& text, std::string_view key, int count);

// The labels that a list gives the layers. Where neither the text nor the list tells how many there
// are, they are written out for kMaxLayers.
std::vector<std::string_view> LabelsOf(const Dict& text, const LayerKey& key, int count);

}  // namespace rope::model

#endif  // LIBROPE_SRC_MODEL_LAYER_KEYS_H_
