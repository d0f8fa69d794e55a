// What the tests of rope_model_* share: fixtures, a model as a value, errors as expectations.
#ifndef LIBROPE_TESTS_MODEL_TESTING_H_
#define LIBROPE_TESTS_MODEL_TESTING_H_

#include <gtest/gtest.h>

#include <cstring>
#include <initializer_list>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "librope/model.h"
#include "librope/rope.h"
#include "support/errors.h"
#include "support/load_json.h"

namespace rope::testing {

// Published configurations: records with "id" and "config".
inline const nlohmann::json& PublishedModels() {
  static const nlohmann::json models = LoadJson("models.json");
  EXPECT_FALSE(models.empty());
  return models;
}

inline std::string Published(const std::string& id) {
  for (const nlohmann::json& entry : PublishedModels()) {
    if (entry["id"] == id) return entry["config"].dump();
  }
  ADD_FAILURE() << "no fixture " << id;
  return "{}";
}

// Parses from a heap buffer of exactly the text's size, without a final 0: with AddressSanitizer
// any read beyond it is an error.
inline rope_status Create(std::string_view text, rope_model** out) {
  const std::unique_ptr<char[]> exact(new char[text.size()]);
  std::memcpy(exact.get(), text.data(), text.size());
  return rope_model_create(exact.get(), text.size(), out);
}

class Model {
 public:
  explicit Model(std::string_view text) {
    rope_model* model = nullptr;
    const rope_status status = Create(text, &model);
    EXPECT_EQ(status, ROPE_OK) << rope_last_error() << "\n" << text.substr(0, 400);
    handle_.reset(model);
  }

  // Takes over a model that something else has made.
  explicit Model(rope_model* made) : handle_(made) {}

  explicit operator bool() const { return handle_ != nullptr; }
  const rope_model* get() const { return handle_.get(); }

  std::vector<std::string> Types() const {
    std::vector<std::string> names;
    for (int32_t t = 0; handle_ && t < rope_model_layer_type_count(get()); ++t) {
      names.emplace_back(rope_model_layer_type_name(get(), t));
    }
    return names;
  }

  rope_config Config(int32_t type = 0) const {
    rope_config config = ROPE_INIT(rope_config);
    if (!handle_) return config;
    EXPECT_EQ(rope_model_config(get(), type, &config), ROPE_OK) << rope_last_error();
    return config;
  }

  rope_config Config(std::string_view name) const {
    const std::vector<std::string> names = Types();
    for (size_t t = 0; t < names.size(); ++t) {
      if (names[t] == name) return Config(static_cast<int32_t>(t));
    }
    ADD_FAILURE() << "the model has no type " << name;
    return ROPE_INIT(rope_config);
  }

  // Names of the types of the first layers, or an empty string where the layer does not exist.
  std::string LayerName(int32_t layer) const {
    int32_t type = -1;
    if (!handle_ || rope_model_layer_type(get(), layer, &type) != ROPE_OK) return "";
    return rope_model_layer_type_name(get(), type);
  }

  // First letters of LayerName: "sssf" for three sliding layers and a full one.
  std::string Layers(int32_t count) const {
    std::string letters;
    for (int32_t layer = 0; layer < count; ++layer) {
      const std::string name = LayerName(layer);
      letters += name.empty() ? '.' : name[0];
    }
    return letters;
  }

 private:
  struct Destroy {
    void operator()(rope_model* model) const { rope_model_destroy(model); }
  };
  std::unique_ptr<rope_model, Destroy> handle_;
};

// A context can be made of every type, once the program has added what the text leaves to it: a
// length, and for a rope dictionary alone or an unknown model also pairing, head_dim and theta.
inline void ExpectContexts(const rope_model* model, std::string_view text) {
  for (int32_t t = 0; t < rope_model_layer_type_count(model); ++t) {
    rope_config config = ROPE_INIT(rope_config);
    ASSERT_EQ(rope_model_config(model, t, &config), ROPE_OK);
    int sum = 0;
    for (int32_t section : config.mrope_section) sum += section;
    const int pairs = config.table_length != 0 ? config.table_length : sum != 0 ? sum : 64;
    if (config.pairing == 0) config.pairing = ROPE_PAIRING_HALVES;
    if (config.head_dim == 0) config.head_dim = 2 * pairs;
    const bool plain = config.scaling == ROPE_SCALING_NOPE || config.inv_freq != nullptr;
    if (config.theta == 0 && !plain) config.theta = 10000;
    const bool dynamic =
        config.scaling == ROPE_SCALING_DYNAMIC || config.scaling == ROPE_SCALING_DYNAMIC_STEPS;
    const bool longrope = config.scaling == ROPE_SCALING_LONGROPE;
    const bool yarn = config.scaling == ROPE_SCALING_YARN;
    if ((longrope || yarn) && config.original_max_position_embeddings == 0) {
      config.original_max_position_embeddings = 4096;
    }
    if (config.max_position_embeddings == 0 && (dynamic || (longrope && config.factor == 0))) {
      config.max_position_embeddings = 4096;
    }
    for (int64_t seq_len : {int64_t{1}, int64_t{1} << 41}) {
      if (dynamic || longrope) config.seq_len = seq_len;
      rope_context* context = nullptr;
      ASSERT_EQ(rope_context_create(&config, &context), ROPE_OK)
          << rope_last_error() << "\ntype " << rope_model_layer_type_name(model, t) << " of\n"
          << text.substr(0, 2000);
      rope_context_destroy(context);
      if (config.seq_len == 0) break;
    }
  }
}

// The text is refused with a message that contains all of `parts`.
inline void ExpectRefused(std::string_view text, std::initializer_list<const char*> parts,
                          rope_status status = ROPE_ERROR_PARSE) {
  rope_model* model = nullptr;
  EXPECT_EQ(Create(text, &model), status) << text.substr(0, 400);
  EXPECT_EQ(model, nullptr);
  rope_model_destroy(model);
  ExpectMessage("rope_model_create", parts);
}

// A Llama of head_dim 128 whose rope dictionary is `dictionary`.
inline std::string Llama(const std::string& dictionary) {
  return R"({"model_type": "llama", "hidden_size": 4096, "num_attention_heads": 32,
             "num_hidden_layers": 2, "max_position_embeddings": 8192, "rope_theta": 10000.0,
             "rope_scaling": )" +
         dictionary + "}";
}

}  // namespace rope::testing

#endif  // LIBROPE_TESTS_MODEL_TESTING_H_
