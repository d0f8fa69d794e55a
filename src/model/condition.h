// A condition on a configuration, as a value: families of models state in their row of the table
// what a file has to say for their code to take another way.
#ifndef LIBROPE_SRC_MODEL_CONDITION_H_
#define LIBROPE_SRC_MODEL_CONDITION_H_

#include <cstdint>

#include "model/json.h"

namespace rope::model {

enum class Says : uint8_t {
  kTrue,
  kNotTrue,  // false or absent
  kFalse,
  kNot,       // another word than `word`, or none
  kNumber,    // `number`
  kAbove,     // more than `number`
  kNullTheta  // a rope dictionary with "rope_theta": null
};

struct Condition {
  const char* key = nullptr;  // nullptr: never holds
  Says says = Says::kTrue;
  const char* word = nullptr;
  int64_t number = 0;
};

// Throws Error if the value is of another type than the condition is about.
bool Holds(const Condition& condition, const Dict& text);

}  // namespace rope::model

#endif  // LIBROPE_SRC_MODEL_CONDITION_H_
