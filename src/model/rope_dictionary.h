// The dictionary of a configuration that holds the numbers of RoPE: rope_scaling of older files,
// rope_parameters of newer ones, flat or with an entry for each kind of layer; or such a dictionary
// on its own, without a configuration around it.
#ifndef LIBROPE_SRC_MODEL_ROPE_DICTIONARY_H_
#define LIBROPE_SRC_MODEL_ROPE_DICTIONARY_H_

#include "model/families.h"
#include "model/json.h"
#include "model/parsed_model.h"

namespace rope::model {

// The dictionary of `text`, of those that the family (nullptr: not known) reads; absent if it has
// none. Throws Error if the old and the new one differ.
Dict RopeDictionaryOf(const Dict& text, const Family* family);

// Whether it has a dictionary for each kind of layer. Real files have stray numbers beside them
// (Laguna), and null for a kind without RoPE.
bool IsNested(const Dict& dict);

// Whether the text is a rope dictionary and not a model's configuration.
bool IsBareDictionary(const Dict& root);

void AddBareDictionary(const Dict& root, ParsedModel* out);

}  // namespace rope::model

#endif  // LIBROPE_SRC_MODEL_ROPE_DICTIONARY_H_
