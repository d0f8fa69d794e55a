// Keys of GGUF that a program has parsed already, and models in several files: what they give is
// what the bytes of one file give.
#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>
#include <string>
#include <vector>

#include "answer.h"
#include "gguf_bytes.h"
#include "model/gguf_file.h"
#include "testing.h"

namespace rope::testing {
namespace {

constexpr char kFunction[] = "rope_model_create_gguf_values";

// What a program would hold of the file: librope's own parser plays it.
struct Parsed {
  explicit Parsed(const GgufBytes& file) : bytes(file.Bytes()) {
    const model::GgufFile parsed = model::ParseGguf(bytes);
    for (const auto& [key, value] : parsed.values) {
      keys.emplace_back(key);
      const bool string = value.type == model::GgufType::kString;
      values.push_back({nullptr, static_cast<uint32_t>(value.type),
                        static_cast<uint32_t>(value.element),
                        string ? value.bytes.size() : value.count, value.bytes.data()});
    }
    for (size_t i = 0; i < keys.size(); ++i) values[i].key = keys[i].c_str();
    for (const auto& [name, tensor] : parsed.rope_tensors) {
      const std::vector<double> numbers = model::TensorValues(parsed, name);
      floats.emplace_back(numbers.begin(), numbers.end());
      names.emplace_back(name);
    }
    for (size_t i = 0; i < names.size(); ++i) {
      factors.push_back({names[i].c_str(), floats[i].data(), floats[i].size()});
    }
  }

  rope_status Create(rope_model** out) const {
    return rope_model_create_gguf_values(values.data(), static_cast<int32_t>(values.size()),
                                         factors.data(), static_cast<int32_t>(factors.size()), out);
  }

  std::string bytes;
  std::vector<std::string> keys, names;
  std::vector<rope_gguf_value> values;
  std::vector<std::vector<float>> floats;
  std::vector<rope_gguf_factors> factors;
};

TEST(ModelGgufGiven, PairsAreReadAsTheBytes) {
  const std::vector<float> twos(32, 2), threes(32, 3);
  for (const GgufBytes& file :
       {GgufBytes("llama").Float("rope.freq_base", 777).Tensor("rope_freqs.weight", twos),
        GgufBytes("phi3")
            .Uint("rope.scaling.original_context_length", 1024)
            .Tensor("rope_factors_long.weight", threes)
            .Tensor("rope_factors_short.weight", twos),
        GgufBytes("qwen2vl").List("rope.dimension_sections", {8, 12, 12, 0}),
        GgufBytes("gemma3").Uint("attention.sliding_window", 512).String("general.name", "rope"),
        GgufBytes("granite_swa")
            .Uint("attention.sliding_window", 512)
            .List("attention.sliding_window_pattern", {1, 0, 1, 0}, GgufBytes::kBool)
            .List("attention.rope_pattern", {1, 1, 0, 1}, GgufBytes::kBool),
        GgufBytes("qwen2").Word("rope.scaling.type", "yarn").Float("rope.scaling.factor", 4)}) {
    const Parsed parsed(file);
    rope_model *given = nullptr, *read = nullptr;
    ASSERT_EQ(parsed.Create(&given), ROPE_OK) << rope_last_error();
    ASSERT_EQ(rope_model_create_gguf(parsed.bytes.data(), parsed.bytes.size(), &read), ROPE_OK)
        << rope_last_error();
    EXPECT_EQ(AnswerOf(given), AnswerOf(read));
    rope_model_destroy(given);
    rope_model_destroy(read);
  }
}

TEST(ModelGgufGiven, KeysAreRefusedAsInAFile) {
  rope_model* model = nullptr;
  EXPECT_EQ(Parsed(GgufBytes("llama").Uint("rope.new", 1)).Create(&model), ROPE_ERROR_UNSUPPORTED);
  ExpectMessage(kFunction, {"llama.rope.new (1) speaks of RoPE"});
  EXPECT_EQ(Parsed(GgufBytes("bert")).Create(&model), ROPE_ERROR_UNSUPPORTED);
  EXPECT_EQ(Parsed(GgufBytes("llama").Tensor("rope_freqs.weight", {1, 2})).Create(&model),
            ROPE_ERROR_PARSE);
  ExpectMessage(kFunction, {"rope_freqs.weight", "2 values"});
  EXPECT_EQ(rope_model_create_gguf_values(nullptr, 0, nullptr, 0, &model), ROPE_ERROR_PARSE);
  ExpectMessage(kFunction, {"general.architecture is missing"});
  EXPECT_EQ(model, nullptr);
}

// Tokens of a vocabulary may be given with all other keys; their elements are not looked at.
TEST(ModelGgufGiven, ArraysOfStringsAreNotRead) {
  Parsed parsed(GgufBytes("llama"));
  parsed.values.push_back({"tokenizer.ggml.tokens", 9, 8, 128256, nullptr});
  parsed.values.push_back({"tokenizer.ggml.of_arrays", 9, 9, 3, nullptr});
  rope_model* model = nullptr;
  EXPECT_EQ(parsed.Create(&model), ROPE_OK) << rope_last_error();
  rope_model_destroy(model);
  parsed.values.push_back({"llama.rope.dimension_sections", 9, 8, 4, nullptr});
  EXPECT_NE(parsed.Create(&model), ROPE_OK);
}

TEST(ModelGgufGiven, ArgumentsAreChecked) {
  const Parsed parsed(GgufBytes("llama").Tensor("rope_freqs.weight", std::vector<float>(32, 2)));
  rope_model* model = nullptr;
  const auto refuses = [&](const rope_gguf_value& value, const char* part) {
    std::vector<rope_gguf_value> values = parsed.values;
    values.push_back(value);
    EXPECT_EQ(rope_model_create_gguf_values(values.data(), static_cast<int32_t>(values.size()),
                                            nullptr, 0, &model),
              ROPE_ERROR_INVALID_ARGUMENT)
        << part;
    ExpectMessage(kFunction, {part});
  };
  const uint32_t number = 1;
  refuses({nullptr, 4, 0, 0, &number}, "values[5].key (NULL)");
  refuses({"x", 13, 0, 0, &number}, "values[5].type (13) must be from 0 to 12");
  refuses({"x", 9, 13, 1, &number}, "values[5].element (13) must be from 0 to 12");
  refuses({"x", 4, 0, 0, nullptr}, "values[5].data (NULL)");
  refuses({"x", 8, 0, 1, nullptr}, "values[5].data (NULL)");
  refuses({"x", 9, 4, UINT64_MAX, &number}, "values[5].count (18446744073709551615)");
  refuses({"general.architecture", 4, 0, 0, &number}, "(\"general.architecture\") appears twice");
  const auto create = [&](const rope_gguf_factors* factors, int32_t count) {
    return rope_model_create_gguf_values(
        parsed.values.data(), static_cast<int32_t>(parsed.values.size()), factors, count, &model);
  };
  const rope_gguf_factors good = parsed.factors[0];
  rope_gguf_factors bad[] = {good, good};
  EXPECT_EQ(create(bad, 2), ROPE_ERROR_INVALID_ARGUMENT);
  ExpectMessage(kFunction, {"factors[1].name (\"rope_freqs.weight\") appears twice"});
  bad[0].values = nullptr;
  EXPECT_EQ(create(bad, 1), ROPE_ERROR_INVALID_ARGUMENT);
  ExpectMessage(kFunction, {"factors[0].values (NULL)"});
  bad[0].name = nullptr;
  EXPECT_EQ(create(bad, 1), ROPE_ERROR_INVALID_ARGUMENT);
  ExpectMessage(kFunction, {"factors[0].name (NULL)"});
  EXPECT_EQ(create(nullptr, 1), ROPE_ERROR_INVALID_ARGUMENT);
  ExpectMessage(kFunction, {"factor_count (1) must be 0"});
  EXPECT_EQ(create(&good, -1), ROPE_ERROR_INVALID_ARGUMENT);
  ExpectMessage(kFunction, {"factor_count (-1) must be from 0 to 8"});
  EXPECT_EQ(rope_model_create_gguf_values(nullptr, 65537, nullptr, 0, &model),
            ROPE_ERROR_INVALID_ARGUMENT);
  ExpectMessage(kFunction, {"count (65537) must be from 0 to 65536"});
  EXPECT_EQ(rope_model_create_gguf_values(parsed.values.data(), 1, nullptr, 0, nullptr),
            ROPE_ERROR_INVALID_ARGUMENT);
  ExpectMessage(kFunction, {"out (NULL)"});
  EXPECT_EQ(model, nullptr);
}

class Parts : public ::testing::Test {
 protected:
  ~Parts() override {
    for (const std::string& path : written_) std::remove(path.c_str());
  }
  std::string Path(int part) const {
    return ::testing::TempDir() + "gguf_parts-0000" + std::to_string(part) + "-of-00003.gguf";
  }
  void Write(const std::string& path, GgufBytes file, uint16_t part, uint16_t count = 3) {
    file.Add(GgufBytes::kU16, "split.no", Raw(part))
        .Add(GgufBytes::kU16, "split.count", Raw(count));
    std::ofstream(path, std::ios::binary) << file.Bytes(100);
    written_.push_back(path);
  }
  rope_status Load(const std::string& path) { return rope_model_load_gguf(path.c_str(), &model_); }

  rope_model* model_ = nullptr;

 private:
  std::vector<std::string> written_;
};

TEST_F(Parts, FactorsAreFoundInWhicheverPartTheyAre) {
  Write(Path(1), GgufBytes("llama"), 0);
  Write(Path(2), GgufBytes(), 1);
  Write(Path(3), GgufBytes().Tensor("rope_freqs.weight", std::vector<float>(32, 2)), 2);
  ASSERT_EQ(Load(Path(1)), ROPE_OK) << rope_last_error();
  const Model model(model_);
  ASSERT_EQ(model.Config().table_length, 32);
  EXPECT_EQ(model.Config().freq_factors[31], 2);
}

TEST_F(Parts, ThereMayBeNone) {
  for (int part : {1, 2, 3}) {
    Write(Path(part), part == 1 ? GgufBytes("llama") : GgufBytes(),
          static_cast<uint16_t>(part - 1));
  }
  ASSERT_EQ(Load(Path(1)), ROPE_OK) << rope_last_error();
  EXPECT_EQ(Model(model_).Config().freq_factors, nullptr);
}

// Those of an architecture without factors, and where the first part has them.
TEST_F(Parts, OtherPartsAreNotOpenedForNothing) {
  Write(Path(1), GgufBytes("qwen2"), 0);
  ASSERT_EQ(Load(Path(1)), ROPE_OK) << rope_last_error();
  rope_model_destroy(model_);
  Write(Path(1), GgufBytes("llama").Tensor("rope_freqs.weight", std::vector<float>(32, 2)), 0);
  ASSERT_EQ(Load(Path(1)), ROPE_OK) << rope_last_error();
  rope_model_destroy(model_);
}

// llama.cpp refuses a tensor of two parts whatever it holds, too.
TEST_F(Parts, ATensorIsInOnePart) {
  const auto factors = [](GgufBytes file, float value) {
    return file.Tensor("rope_freqs.weight", std::vector<float>(32, value));
  };
  Write(Path(1), factors(GgufBytes("llama"), 2), 0);
  Write(Path(2), GgufBytes(), 1);
  Write(Path(3), factors(GgufBytes(), 3), 2);
  EXPECT_EQ(Load(Path(1)), ROPE_ERROR_PARSE);
  ExpectMessage("rope_model_load_gguf", {"\"rope_freqs.weight\" of part 3 is in another part"});
  Write(Path(1), GgufBytes("llama"), 0);
  Write(Path(2), factors(GgufBytes(), 2), 1);
  EXPECT_EQ(Load(Path(1)), ROPE_ERROR_PARSE);
  ExpectMessage("rope_model_load_gguf", {"\"rope_freqs.weight\" of part 3 is in another part"});
}

TEST_F(Parts, WhatOtherPartsSayOfRopeIsWhatTheFirstOneSays) {
  for (const char* architecture : {"llama", "qwen2"}) {
    const auto with = [architecture](const char* key, float value) {
      return GgufBytes(architecture).Float(key, value);
    };
    Write(Path(1), with("rope.freq_base", 5e5f), 0);
    Write(Path(2), with("rope.freq_base", 5e5f), 1);
    Write(Path(3), GgufBytes(), 2);
    ASSERT_EQ(Load(Path(1)), ROPE_OK) << rope_last_error();
    EXPECT_EQ(Model(model_).Config().theta, 5e5);
    Write(Path(2), with("rope.freq_base", 1e4f), 1);
    EXPECT_EQ(Load(Path(1)), ROPE_ERROR_PARSE);
    ExpectMessage("rope_model_load_gguf", {"rope.freq_base (10000) of part 2", "500000"});
    Write(Path(2), GgufBytes().Float("yarn_x", 3), 1);
    EXPECT_EQ(Load(Path(1)), ROPE_ERROR_PARSE);
    ExpectMessage("rope_model_load_gguf", {"yarn_x (3) of part 2", "absent"});
    Write(Path(2), GgufBytes(architecture).Uint("block_count", 5), 1);
    EXPECT_EQ(Load(Path(1)), ROPE_ERROR_PARSE);
    ExpectMessage("rope_model_load_gguf", {"block_count (5) of part 2"});
  }
}

TEST_F(Parts, WrongPartsAreRefused) {
  Write(Path(1), GgufBytes("llama"), 0);
  EXPECT_EQ(Load(Path(1)), ROPE_ERROR_INVALID_ARGUMENT);
  ExpectMessage("rope_model_load_gguf", {"-00002-of-00003.gguf\") cannot be opened"});
  Write(Path(2), GgufBytes(), 2);
  EXPECT_EQ(Load(Path(1)), ROPE_ERROR_PARSE);
  ExpectMessage("rope_model_load_gguf", {"split.no (2) must be 1 in this part"});
  Write(Path(2), GgufBytes(), 1, 4);
  EXPECT_EQ(Load(Path(1)), ROPE_ERROR_PARSE);
  ExpectMessage("rope_model_load_gguf", {"split.count (4) must be that of the first part (3)"});
  Write(Path(2), GgufBytes(), 1);
  EXPECT_EQ(Load(Path(2)), ROPE_ERROR_UNSUPPORTED);
  ExpectMessage("rope_model_load_gguf", {"split.no (1) must be 0: the first part"});
  std::ofstream(Path(2), std::ios::binary) << GgufBytes().Bytes(100);
  EXPECT_EQ(Load(Path(1)), ROPE_ERROR_PARSE);
  ExpectMessage("rope_model_load_gguf", {"split.count is missing"});
  const std::string other = ::testing::TempDir() + "gguf_parts.gguf";
  Write(other, GgufBytes("llama"), 0);
  EXPECT_EQ(Load(other), ROPE_ERROR_INVALID_ARGUMENT);
  ExpectMessage("rope_model_load_gguf", {"must end with -00001-of-00003.gguf"});
  EXPECT_EQ(model_, nullptr);
}

}  // namespace
}  // namespace rope::testing
