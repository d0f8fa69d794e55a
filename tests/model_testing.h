// What the tests of rope_model_* share: fixtures, a model as a value, errors as expectations.
#ifndef LIBROPE_TESTS_MODEL_TESTING_H_
#define LIBROPE_TESTS_MODEL_TESTING_H_

#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <initializer_list>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "librope/rope.h"

namespace rope::testing {

inline nlohmann::json LoadData(const std::string& file) {
  const char* folder = std::getenv("ROPE_TEST_DATA");  // a build elsewhere may name it
  return nlohmann::json::parse(
      std::ifstream((folder != nullptr ? folder : ROPE_TEST_DATA) + ("/" + file)));
}

// Published configurations: records with "id" and "config".
inline const nlohmann::json& PublishedModels() {
  static const nlohmann::json models = LoadData("models.json");
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

  explicit operator bool() const { return handle_ != nullptr; }
  const rope_model* get() const { return handle_.get(); }

  std::vector<std::string> Types() const {
    std::vector<std::string> names;
    for (int32_t t = 0; handle_ && t < rope_model_layer_types(get()); ++t) {
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

// The text is refused with a message that contains all of `parts`.
inline void ExpectRefused(std::string_view text, std::initializer_list<const char*> parts,
                          rope_status status = ROPE_ERROR_PARSE) {
  rope_model* model = nullptr;
  EXPECT_EQ(Create(text, &model), status) << text.substr(0, 400);
  EXPECT_EQ(model, nullptr);
  rope_model_destroy(model);
  const std::string message = rope_last_error();
  EXPECT_EQ(message.rfind("rope_model_create: ", 0), 0u) << message;
  for (const char* part : parts) {
    EXPECT_NE(message.find(part), std::string::npos) << message << "\n  must contain " << part;
  }
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
