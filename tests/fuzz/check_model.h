// What a fuzzer asks of a model, whatever bytes it was made from: a message where they are refused,
// consistent answers where they are not, and configurations that the core accepts.
#ifndef LIBROPE_TESTS_FUZZ_CHECK_MODEL_H_
#define LIBROPE_TESTS_FUZZ_CHECK_MODEL_H_

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <memory>
#include <string>

#include "context/backend.h"
#include "context/config.h"
#include "context/frequencies.h"
#include "librope/model.h"
#include "librope/rope.h"

namespace rope {

// The only part of a device that configurations ask for is whether it is there.
const Backend* FindBackend(rope_device) {
  static constexpr Backend kCpu = [] {
    Backend backend;
    backend.name = "CPU";
    backend.has_ggml = true;
    return backend;
  }();
  return &kCpu;
}

}  // namespace rope

namespace rope::fuzz {

inline void Require(bool condition, const char* what) {
  if (condition) return;
  std::fprintf(stderr, "violated: %s (%s)\n", what, rope_last_error());
  std::abort();
}

inline void CheckMessage(const std::string& function) {
  const char* message = rope_last_error();
  Require(std::strlen(message) < 512, "a message has less than 512 bytes");
  const std::string start = function + ": ";
  Require(std::strncmp(message, start.c_str(), start.size()) == 0, "it names the function");
  for (; *message != 0; ++message) {
    Require(*message >= 0x20 && *message <= 0x7e, "it is printable ASCII");
  }
}

inline void CheckType(const rope_model* model, int32_t type) {
  Require(rope_model_layer_type_name(model, type) != nullptr, "every type has a name");
  rope_config config = ROPE_INIT(rope_config);
  Require(rope_model_config(model, type, &config) == ROPE_OK, "every type has a configuration");
  // A dictionary alone and an unknown model leave these to the program, which knows their pairs.
  if (config.head_dim == 0) return;
  if (config.pairing == 0) config.pairing = ROPE_PAIRING_HALVES;
  const bool plain = config.scaling == ROPE_SCALING_NOPE || config.inv_freq != nullptr;
  if (config.theta == 0 && !plain) config.theta = 10000;
  for (int64_t seq_len : {int64_t{1}, int64_t{1} << 41}) {
    if (rope::DependsOnLength(config.scaling)) config.seq_len = seq_len;
    const bool length_left = (config.scaling == ROPE_SCALING_DYNAMIC ||
                              (config.scaling == ROPE_SCALING_LONGROPE && config.factor == 0)) &&
                             config.max_position_embeddings == 0;
    if (length_left) config.max_position_embeddings = 4096;
    if (config.original_max_position_embeddings == 0 &&
        (config.scaling == ROPE_SCALING_LONGROPE || config.scaling == ROPE_SCALING_YARN)) {
      config.original_max_position_embeddings = 4096;
    }
    rope::Config checked;
    rope::Frequencies frequencies;
    Require(rope::CheckConfig("check_model", &config, &checked) == ROPE_OK, "the core accepts it");
    Require(rope::ComputeFrequencies("check_model", checked, &frequencies) == ROPE_OK,
            "and its frequencies");
  }
}

// `create(&model)` is the call in question.
template <class Create>
void CheckModel(const std::string& function, Create create) {
  rope_model* model = nullptr;
  const rope_status status = create(&model);
  if (status != ROPE_OK) {
    Require(status == ROPE_ERROR_PARSE || status == ROPE_ERROR_UNSUPPORTED,
            "the bytes are to blame");
    Require(model == nullptr, "out is untouched");
    CheckMessage(function);
    return;
  }
  const int32_t types = rope_model_layer_type_count(model);
  Require(types >= 1, "a model has a type");
  for (int32_t type = 0; type < types; ++type) CheckType(model, type);
  Require(rope_model_layer_type_name(model, types) == nullptr, "there are no more");
  int32_t type = -1;
  for (int32_t layer : {0, 1, 2, 3, 4095}) {
    if (rope_model_layer_type(model, layer, &type) == ROPE_OK) {
      Require(type >= 0 && type < types, "a layer has an existing type");
    }
  }
  rope_model_destroy(model);
}

}  // namespace rope::fuzz

#endif  // LIBROPE_TESTS_FUZZ_CHECK_MODEL_H_
