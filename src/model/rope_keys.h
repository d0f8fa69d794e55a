// Where the values of one kind of layer are: the rope dictionary, the keys around it, and the
// defaults of the model's class.
#ifndef LIBROPE_SRC_MODEL_ROPE_KEYS_H_
#define LIBROPE_SRC_MODEL_ROPE_KEYS_H_

#include "model/families.h"
#include "model/json.h"

namespace rope::model {

// Where the values of one kind of layer are.
struct RopeKeys {
  Dict dict;                       // may be absent: all values are defaults then
  Dict text;                       // the keys around it; absent for a bare dictionary
  Dict whole;                      // what holds the language model
  const Family* family = nullptr;  // nullptr: unknown, or a bare dictionary
  // Beside the dictionary; nullptr: none.
  const char* theta_key = "rope_theta";
  const char* older_theta_key = nullptr;
  const char* share_key = "partial_rotary_factor";
  double default_theta = 10000;  // 0: left to the caller
  double theta = 0;              // not 0: this one, whatever the keys say
  double default_partial = 1;
  double partial = 0;                   // not 0: this one, whatever the keys say
  bool default_proportional = false;    // rope_type if the dictionary does not tell
  double default_attention_factor = 0;  // of YaRN; 0: it follows from the factor
  bool latent = false;                  // mscale_all_dim scales the softmax, too (DeepSeek)
  bool indexer = false;  // of a lightning indexer: shares of a head are not of its heads
};

}  // namespace rope::model

#endif  // LIBROPE_SRC_MODEL_ROPE_KEYS_H_
