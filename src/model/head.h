// The size of a head and the channels of it that rotate, where the model's code fixes them.
#ifndef LIBROPE_SRC_MODEL_HEAD_H_
#define LIBROPE_SRC_MODEL_HEAD_H_

#include "model/families.h"
#include "model/json.h"

namespace rope::model {

// Writes head_dim, pairing and rounding; for multi-head latent attention and spans that the model's
// code fixes also rotary_dim and rotary_offset. `kind` (nullptr: none) has keys and defaults that
// one kind of layer has instead (Gemma 4's global_head_dim); `layer` (may be absent) is what
// per_layer_config says of its layers, and wins.
void FillHead(const Dict& text, const Family* family, const KindDefaults* kind, const Dict& layer,
              rope_config* config);

// Throws Error if the text says of the pairs of a lightning indexer what its code does not do.
// Engines read such a key, and no class of transformers does.
void CheckPairsOfIndexer(const Dict& text, bool interleaved);

// Whether q and k are [nope | rope] with the widths qk_nope_head_dim and qk_rope_head_dim.
bool IsLatent(const Dict& text, const Family* family);

}  // namespace rope::model

#endif  // LIBROPE_SRC_MODEL_HEAD_H_
