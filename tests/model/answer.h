// What a model is read as, as one value that tests compare.
#ifndef LIBROPE_TESTS_MODEL_ANSWER_H_
#define LIBROPE_TESTS_MODEL_ANSWER_H_

#include <string>

#include "testing.h"

namespace rope::testing {

// All that rope_model_* tell of the model.
inline std::string AnswerOf(const rope_model* model) {
  std::string answer;
  for (int32_t t = 0; t < rope_model_layer_type_count(model); ++t) {
    rope_config config = ROPE_INIT(rope_config);
    EXPECT_EQ(rope_model_config(model, t, &config), ROPE_OK);
    const auto add = [&answer](const void* data, size_t size) {
      answer.append(static_cast<const char*>(data), size);
    };
    const auto table = [&](const auto* entries) {
      if (entries != nullptr) add(entries, config.table_length * sizeof(*entries));
    };
    answer += rope_model_layer_type_name(model, t);
    table(config.short_factor);
    table(config.long_factor);
    table(config.freq_factors);
    table(config.inv_freq);
    table(config.pair_axis);
    config.short_factor = config.long_factor = config.freq_factors = config.inv_freq = nullptr;
    config.pair_axis = nullptr;
    add(&config, sizeof(config));
  }
  for (int32_t layer = 0, type; rope_model_layer_type(model, layer, &type) == ROPE_OK; ++layer) {
    answer += static_cast<char>('0' + type);
  }
  return answer;
}

// Of the text; empty if it is refused.
inline std::string Answer(const std::string& text) {
  rope_model* model = nullptr;
  if (Create(text, &model) != ROPE_OK) return "";
  const std::string answer = AnswerOf(model);
  rope_model_destroy(model);
  return answer;
}

}  // namespace rope::testing

#endif  // LIBROPE_TESTS_MODEL_ANSWER_H_
