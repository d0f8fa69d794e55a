// rope_model_* with texts and arguments that are wrong: always a status with a message that names
// the key, never a crash, nothing written, no byte read beyond the text.
#include <cstddef>
#include <string>

#include "support/memory.h"
#include "testing.h"

namespace rope::testing {
namespace {

using nlohmann::json;

// Accepted, or refused in the proper way.
rope_status CheckAnswer(const std::string& text) {
  rope_model* model = nullptr;
  const rope_status status = Create(text, &model);
  if (status == ROPE_OK) {
    ExpectContexts(model, text);
    rope_model_destroy(model);
  } else {
    EXPECT_TRUE(status == ROPE_ERROR_PARSE || status == ROPE_ERROR_UNSUPPORTED) << text;
    EXPECT_EQ(model, nullptr);
    EXPECT_LT(std::strlen(rope_last_error()), 512u);
  }
  return status;
}

TEST(ModelMalformed, TextsCutAnywhereAreRefused) {
  for (size_t entry : {2u, 37u, 49u, 65u, 89u}) {
    const std::string text = PublishedModels()[entry]["config"].dump();
    for (size_t length = 0; length < text.size(); ++length) {
      ASSERT_EQ(CheckAnswer(text.substr(0, length)), ROPE_ERROR_PARSE) << length;
    }
  }
}

TEST(ModelMalformed, TextThatIsNotJsonIsRefused) {
  ExpectRefused("", {"0 bytes"});
  ExpectRefused("null", {"the text (null)", "object"});
  ExpectRefused("[]", {"object"});
  ExpectRefused("{} {}", {"byte 4"});
  ExpectRefused("{}", {"model_type is missing"});
  ExpectRefused("{'model_type': 1}", {"byte 2"});
  ExpectRefused(R"({"model_type": "llama", /* no */ "head_dim": 64})", {"byte"});
}

TEST(ModelMalformed, TooDeepTooLongTooManyIsRefused) {
  for (size_t depth : {65u, 1000u, 1000000u}) {
    ExpectRefused(std::string(depth, '['), {"64 levels"});
    std::string objects;
    for (size_t i = 0; i < depth; ++i) objects += R"({"a":)";
    ExpectRefused(objects, {"64 levels"});
  }
  ExpectRefused(R"({"a": )" + std::string(63, '[') + std::string(63, ']') + "}", {"model_type"});
  ExpectRefused(std::string((16u << 20) + 1, ' '), {"length (16777217)"});
  std::string many = R"({"a": [0)";
  for (int i = 0; i < 1 << 19; ++i) many += ",0";
  ExpectRefused(many + "]}", {"524288 values"});
}

TEST(ModelMalformed, NumbersOutOfRangeAreRefused) {
  const auto with = [](const std::string& key, const std::string& value) {
    return R"({"model_type": "llama", "hidden_size": 64, "num_attention_heads": 2, ")" + key +
           "\": " + value + "}";
  };
  ExpectRefused(with("rope_theta", "1e999"),
                {"the number '1e999' at byte",
                 "after the key \"rope_theta\", must be one that a double "
                 "holds"});
  ExpectRefused(with("rope_theta", "NaN"), {"rope_theta (NaN) must be a finite number"});
  ExpectRefused(with("rope_theta", "Infinity"), {"rope_theta (Infinity) must be a finite number"});
  ExpectRefused(with("rope_theta", "-Infinity"),
                {"rope_theta (-Infinity) must be a finite number"});
  ExpectRefused(with("rope_theta", "\"NaN\""), {"rope_theta (\"NaN\") must be a number"});
  ExpectRefused(with("rope_theta", "-Inf"), {"byte"});
  ExpectRefused(with("rope_theta", "0"), {"rope_theta (0) must be positive"});
  ExpectRefused(with("rope_theta", "-1"), {"rope_theta (-1) must be positive"});
  ExpectRefused(with("rope_theta", "true"), {"rope_theta (true) must be a number"});
  ExpectRefused(with("head_dim", "64.5"), {"head_dim (64.5) must be an integer"});
  ExpectRefused(with("head_dim", "63"), {"head_dim (63", "even"});
  ExpectRefused(with("head_dim", "2048"), {"head_dim (2048", "1024"});
  ExpectRefused(with("head_dim", "99999999999999999999"), {"head_dim (1e+20) must be from 0"});
  ExpectRefused(with("head_dim", "-9223372036854775808"), {"head_dim", "must be from 0"});
  ExpectRefused(with("head_dim", std::string(400, '9')), {"byte", "\"head_dim\""});
  ExpectRefused(with("num_hidden_layers", "1000000"), {"num_hidden_layers (1000000)"});
  ExpectRefused(with("num_hidden_layers", "0"), {"num_hidden_layers (0)"});
  // Python's literals in keys that RoPE does not need, as published files have them
  EXPECT_EQ(CheckAnswer(with("time_step_limit", "[0.0, Infinity, -Infinity, NaN]")), ROPE_OK);
  EXPECT_EQ(CheckAnswer(with("a", R"("NaN, \"Infinity")")), ROPE_OK);
}

TEST(ModelMalformed, RepeatedKeysAndBrokenTextAreRefused) {
  ExpectRefused(R"({"model_type": "llama", "head_dim": 64, "head_dim": 128})",
                {"head_dim", "twice"});
  ExpectRefused(Llama(R"({"type": "linear", "factor": 2, "factor": 2})"), {"factor", "twice"});
  ExpectRefused("{\"model_type\": \"\xff\xfe\"}", {"UTF-8"});
  ExpectRefused("{\"\xc0\x80\": 1}", {"UTF-8"});
  ExpectRefused(Llama("{\"type\": \"\\u0001\\u001b\xc3\xa4\"}"),
                {R"(rope_scaling.type ("\u0001\u001b\u00e4"))"});
  const std::string long_name(100000, 'x');
  ExpectRefused(Llama("{\"type\": \"" + long_name + "\"}"), {"rope_scaling.type (\"xxx", ".."});
  const std::string llama = Llama("null");
  for (const std::string& after :
       {std::string(1, '\0'), std::string("\0{\"rope_theta\": 5}", 18)}) {
    ExpectRefused(llama + after, {"is 0, and length", "must not count a final 0"});
  }
  EXPECT_EQ(CheckAnswer("{\"" + long_name + "\": {\"rope_type\": \"a\"}}"), ROPE_ERROR_PARSE);
}

TEST(ModelMalformed, MissingAndWrongKeysOfEveryTypeAreNamed) {
  const struct {
    const char* type;
    std::initializer_list<const char*> required;
    const char* rest;
  } kTypes[] = {
      {"linear", {"factor"}, ""},
      {"dynamic", {"factor"}, ""},
      {"yarn", {"factor"}, R"(, "original_max_position_embeddings": 64)"},
      {"llama3",
       {"factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"},
       ""},
  };
  for (const auto& type : kTypes) {
    for (const char* broken : type.required) {
      for (const char* value : {"", "null", "\"8\"", "true", "[8]", "{}", "0", "-1"}) {
        std::string dictionary = std::string(R"({"rope_type": ")") + type.type + "\"" + type.rest;
        for (const char* key : type.required) {
          const bool is_broken = key == broken;
          if (is_broken && *value == 0) continue;
          dictionary += std::string(", \"") + key + "\": " + (is_broken ? value : "4");
        }
        SCOPED_TRACE(dictionary);
        const std::string path = std::string("rope_scaling.") + broken;
        if (std::string(value) == "null" && std::string(type.type) == "yarn") {
          EXPECT_EQ(CheckAnswer(Llama(dictionary + "}")), ROPE_OK);  // their ratio
        } else {
          ExpectRefused(Llama(dictionary + "}"), {path.c_str()});
        }
      }
    }
  }
  const std::string longrope = R"({"type": "longrope", "original_max_position_embeddings": 64)";
  const std::string ones = json(std::vector<int>(64, 1)).dump();
  EXPECT_EQ(CheckAnswer(Llama(longrope + ", \"short_factor\": " + ones +
                              ", \"long_factor\": " + ones + "}")),
            ROPE_OK);
  ExpectRefused(Llama(longrope + ", \"short_factor\": " + ones + "}"), {"long_factor is missing"});
  ExpectRefused(Llama(longrope + ", \"long_factor\": " + ones + "}"), {"short_factor is missing"});
  ExpectRefused(Llama(longrope + ", \"short_factor\": [1], \"long_factor\": " + ones + "}"),
                {"short_factor has 1 entries", "64 pairs"});
  ExpectRefused(Llama(longrope + ", \"short_factor\": 1, \"long_factor\": " + ones + "}"),
                {"short_factor (1) must be a list"});
  ExpectRefused(R"({"factor": {}})", {"rope_type is missing"});
  ExpectRefused(Llama(R"({"factor": 8})"), {"rope_scaling.rope_type is missing"});
  ExpectRefused(Llama(R"({"rope_type": "lama3"})"),
                {"rope_scaling.rope_type (\"lama3\")", "one of default", "llama3", "gptj"});
  ExpectRefused(Llama(R"({"rope_type": 3})"), {"rope_scaling.rope_type (3) must be a string"});
  ExpectRefused(Llama("[]"), {"rope_scaling ([]) must be an object"});
  ExpectRefused(Llama(R"({"type": "yarn", "factor": 4, "attention_factor": 0})"),
                {"attention_factor (0) must be positive"});
  ExpectRefused(Llama(R"({"type": "yarn", "factor": 4, "truncate": 1})"), {"truncate (1)"});
  ExpectRefused(R"({"model_type": "hunyuan_vl", "head_dim": 128})", {"mrope_section is missing"});
  ExpectRefused(R"({"model_type": "qwen2_vl", "head_dim": 128, "rope_scaling":
      {"type": "mrope", "mrope_section": [16, 24, 25]}})",
                {"mrope_section", "65", "64"});
  ExpectRefused(R"({"model_type": "deepseek_v3", "qk_rope_head_dim": "64"})",
                {"qk_rope_head_dim (\"64\") must be a number"});
  ExpectRefused(R"({"model_type": "llama", "head_dim": 64, "num_hidden_layers": 3,
                    "layer_types": ["full_attention"]})",
                {"layer_types has 1 entries", "3 layers"});
  ExpectRefused(
      R"({"model_type": "nobody_knows", "head_dim": 64, "layer_types": ["a"],
          "rope_parameters": {"full_attention": {"rope_theta": 1e4}}})",
      {"layer_types[0] (\"a\") must be a kind that rope_parameters is about", "full_attention"});
}

// At the top level most keys are none of ours; those that nearly are take a number away.
TEST(ModelMalformed, MisspeltKeysAtTheTopLevelAreNamed) {
  const auto with = [](const std::string& entry) {
    return R"({"model_type": "llama", "hidden_size": 256, "num_attention_heads": 4,
              "num_hidden_layers": 2, "max_position_embeddings": 4096, )" +
           entry + "}";
  };
  ExpectRefused(with(R"("rope_thetta": 500000.0)"), {"rope_thetta (500000", "spelt rope_theta"});
  ExpectRefused(with(R"("rope_teta": 1e6)"), {"spelt rope_theta"});
  ExpectRefused(with(R"("ropeTheta": 1e6)"), {"spelt rope_theta"});
  ExpectRefused(with(R"("rope-theta": 1e6)"), {"spelt rope_theta"});
  ExpectRefused(with(R"("head_dims": 32)"), {"spelt head_dim"});
  ExpectRefused(with(R"("headDim": 32)"), {"spelt head_dim"});
  ExpectRefused(with(R"("partial_rotary_facter": 0.5)"), {"spelt partial_rotary_factor"});
  ExpectRefused(with(R"("rope_scalling": {"rope_type": "linear", "factor": 8})"),
                {"spelt rope_scaling"});
  ExpectRefused(with(R"("rope-scaling": {"rope_type": "linear", "factor": 8})"),
                {"spelt rope_scaling"});
  ExpectRefused(with(R"("rope_parameter": {"rope_type": "linear", "factor": 8})"),
                {"spelt rope_parameters"});
  ExpectRefused(with(R"("orignal_max_position_embeddings": 1024)"),
                {"spelt original_max_position_embeddings"});
  ExpectRefused(R"({"model_type": "llava", "text_config": )" + with(R"("rope_thetta": 5e5)") + "}",
                {"rope_thetta", "spelt rope_theta"});
  ExpectRefused(with(R"("rope_theta": 5e5, "rope_thetta": 1e6)"),
                {"rope_thetta (1000000)", "the nearest key is rope_theta"}, ROPE_ERROR_UNSUPPORTED);
  ExpectRefused(R"({"model_type": "nobody_knows", "hidden_size": 256, "num_attention_heads": 4,
                    "rope_teta": 1e6})",
                {"spelt rope_theta"});
  // Other keys, other kinds of value, and what stands beside the right key.
  for (const char* fine : {R"("v_head_dim": 32)", R"("hidden_sizes": [1, 2])",
                           R"("rope_scalling": null)", R"("rope_ratio": 1)"}) {
    rope_model* model = nullptr;
    const std::string text = with(fine);
    EXPECT_EQ(rope_model_create(text.data(), text.size(), &model), ROPE_OK)
        << fine << ": " << rope_last_error();
    rope_model_destroy(model);
  }
}

TEST(ModelMalformed, MisspeltKeysInADictionaryAreNamed) {
  ExpectRefused(Llama(R"({"type": "yarn", "factor": 4, "orginal_max_position_embeddings": 64})"),
                {"orginal_max_position_embeddings (64) must be spelt original_"});
  ExpectRefused(Llama(R"({"typ": "yarn", "factor": 4})"), {"rope_scaling.typ"});
  ExpectRefused(Llama(R"({"rope_type": "linear", "factr": 4})"), {"spelt factor"});
  EXPECT_EQ(
      CheckAnswer(Llama(R"({"type": "linear", "factor": 4, "finetuned": true, "attn_factor": 1,
      "extrapolation_factor": 1, "llama_4_scaling_beta": 0.1})")),
      ROPE_OK);
}

// Every value of every published configuration replaced by something else.
TEST(ModelMalformed, AnyValueReplacedGivesAStatus) {
  const json kOthers[] = {nullptr,
                          true,
                          "8",
                          0,
                          -1,
                          1e300,
                          0.5,
                          json::array(),
                          json::object(),
                          json::array({1, "a", nullptr}),
                          {{"rope_type", "yarn"}}};
  for (const json& entry : PublishedModels()) {
    const json flat = entry["config"].flatten();
    for (const auto& [pointer, old] : flat.items()) {
      for (const json& other : kOthers) {
        json config = entry["config"];
        config[json::json_pointer(pointer)] = other;
        CheckAnswer(config.dump());
      }
    }
  }
}

TEST(ModelMalformed, NothingIsReadBeyondTheText) {
  const std::string whole = R"({"model_type": "llama", "head_dim": 64, "rope_theta": 10000.0})";
  for (size_t length = 0; length <= whole.size(); ++length) {
    const Guarded memory(length, Edge::kEnd);
    char* const text = memory.as<char>();
    std::memcpy(text, whole.data(), length);
    rope_model* model = nullptr;
    EXPECT_EQ(rope_model_create(text, length, &model),
              length == whole.size() ? ROPE_OK : ROPE_ERROR_PARSE);
    rope_model_destroy(model);
  }
}

// --- arguments ----------------------------------------------------------------------------------

TEST(ModelArguments, NullPointersAreRefused) {
  rope_model* model = nullptr;
  EXPECT_EQ(rope_model_create(nullptr, 0, &model), ROPE_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(rope_model_create("{}", 2, nullptr), ROPE_ERROR_INVALID_ARGUMENT);
  rope_model_destroy(nullptr);
  EXPECT_EQ(rope_model_layer_type_count(nullptr), 0);
  EXPECT_EQ(rope_model_layer_type_name(nullptr, 0), nullptr);
  int32_t type = 0;
  EXPECT_EQ(rope_model_layer_type(nullptr, 0, &type), ROPE_ERROR_INVALID_ARGUMENT);
  rope_config config = ROPE_INIT(rope_config);
  EXPECT_EQ(rope_model_config(nullptr, 0, &config), ROPE_ERROR_INVALID_ARGUMENT);
  const Model llama(Llama("null"));
  EXPECT_EQ(rope_model_layer_type(llama.get(), 0, nullptr), ROPE_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(rope_model_config(llama.get(), 0, nullptr), ROPE_ERROR_INVALID_ARGUMENT);
}

TEST(ModelArguments, IndicesOutOfRangeAreRefused) {
  const Model llama(Llama("null"));
  int32_t type = 77;
  for (int32_t layer : {-1, 2, INT32_MAX, INT32_MIN}) {
    EXPECT_EQ(rope_model_layer_type(llama.get(), layer, &type), ROPE_ERROR_INVALID_ARGUMENT);
    EXPECT_EQ(type, 77);
  }
  rope_config config = ROPE_INIT(rope_config);
  config.theta = 42;
  for (int32_t t : {-1, 1, INT32_MAX, INT32_MIN}) {
    EXPECT_EQ(rope_model_config(llama.get(), t, &config), ROPE_ERROR_INVALID_ARGUMENT);
    EXPECT_EQ(rope_model_layer_type_name(llama.get(), t), nullptr);
  }
  EXPECT_EQ(config.theta, 42);
}

TEST(ModelArguments, EveryStructSizeIsClearedOrRefused) {
  const Model llama(Llama(R"({"type": "linear", "factor": 4})"));
  const auto needed = static_cast<uint32_t>(offsetof(rope_config, factor) + sizeof(double));
  struct {
    rope_config config;
    unsigned char newer[16];
  } buffer;
  for (uint32_t size = 0; size <= sizeof(buffer); ++size) {
    std::memset(&buffer, 0xaa, sizeof(buffer));
    buffer.config.struct_size = size;
    const rope_status status = rope_model_config(llama.get(), 0, &buffer.config);
    const auto* bytes = reinterpret_cast<const unsigned char*>(&buffer);
    if (size < sizeof(uint32_t) || size % sizeof(uint32_t) != 0) {
      EXPECT_EQ(status, ROPE_ERROR_INVALID_ARGUMENT) << size;
    } else if (size < needed - 1) {  // the last bytes of 4.0 are its exponent
      EXPECT_EQ(status, ROPE_ERROR_UNSUPPORTED) << size;
      EXPECT_EQ(bytes[sizeof(uint32_t)], 0xaa);
    } else if (size >= needed) {
      EXPECT_EQ(status, ROPE_OK) << size;
      EXPECT_EQ(buffer.config.factor, 4);
      EXPECT_EQ(buffer.config.struct_size, size);
      for (size_t i = sizeof(rope_config); i < size; ++i) EXPECT_EQ(bytes[i], 0);
    }
    for (size_t i = std::max<size_t>(size, sizeof(uint32_t)); i < sizeof(buffer); ++i) {
      ASSERT_EQ(bytes[i], 0xaa) << size << " wrote " << i;
    }
  }
  // What was in memory where ROPE_INIT was forgotten is not taken for a size to clear.
  for (uint32_t size : {4100u, 0x7fff1234u, 0xccccccccu}) {
    buffer.config.struct_size = size;
    EXPECT_EQ(rope_model_config(llama.get(), 0, &buffer.config), ROPE_ERROR_INVALID_ARGUMENT);
  }
}

}  // namespace
}  // namespace rope::testing
