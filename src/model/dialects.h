// Configurations that are not in transformers' words: which they are, and who reads them.
//
// A dialect is known by keys that no other has, and a text that could be two of them is refused.
// What is read is what the program of that dialect computes, for weights as that program stores
// them: Meta's and Mistral's pairs are neighbours, those of the same models in transformers are
// halves apart. A note says which dialect it was.
#ifndef LIBROPE_SRC_MODEL_DIALECTS_H_
#define LIBROPE_SRC_MODEL_DIALECTS_H_

#include <cstdint>
#include <string_view>
#include <vector>

#include "model/json.h"
#include "model/parsed_model.h"

namespace rope::model {

struct Dialect {
  const char* name;
  const char* note;  // what follows the name in the model's note
  bool (*is)(const Dict& root);
  void (*read)(const Dict& root, ParsedModel* out);
};

extern const Dialect kMetaParams;     // meta_params.cc
extern const Dialect kMistralParams;  // mistral_params.cc
extern const Dialect kMegatronArgs;   // megatron_args.cc
extern const Dialect kMaxText;        // maxtext_config.cc

// Whose words `root` is in; nullptr if in none of these dialects. Throws Error if it may be two.
const Dialect* FindDialect(const Dict& root);

// Reads `root` if it is in one of these dialects, and says whether it is.
bool ReadDialect(const Dict& root, ParsedModel* out);

// What several dialects need.

// A whole number that must be there; `reason` says why.
int64_t Required(const Dict& dict, std::string_view key, int64_t low, int64_t high,
                 const char* reason);

// The width of a head: `key` if it is there, else `width` / `heads`. Throws Error unless that is
// even and at most kMaxHeadDim.
int32_t HeadOf(const Dict& dict, std::string_view key, std::string_view width,
               std::string_view heads);

// `width` / `heads` in a program that does not read head_dim, which must say the same.
int32_t QuotientOf(const Dict& dict, std::string_view width, std::string_view heads);

// For `layers` layers, whether each is the last of `every`; none is if `every` is 0.
std::vector<bool> LastOf(int64_t every, int64_t layers);

// The kind of each layer: type 0, or one without RoPE, which is added if there are such layers.
void AssignLayers(const std::vector<bool>& without_rope, ParsedModel* out);

}  // namespace rope::model

#endif  // LIBROPE_SRC_MODEL_DIALECTS_H_
