// Texts made to cost memory, time or stack, and names that must not depend on the surroundings.
#include <string>

#include "support/comma_locale.h"
#include "testing.h"

namespace rope::testing {
namespace {

using nlohmann::json;
using Names = std::vector<std::string>;

// {"k0": {..}, "k1": {..}, ..}
json Kinds(int count) {
  json kinds;
  for (int i = 0; i < count; ++i) kinds["k" + std::to_string(i)] = {{"rope_theta", 10000 + i}};
  return kinds;
}

json Unknown(const json& rope_parameters) {
  return {{"model_type", "nobody_knows"},
          {"hidden_size", 1024},
          {"num_attention_heads", 1},
          {"layer_types", {"k0"}},
          {"rope_parameters", rope_parameters}};
}

// --- costs --------------------------------------------------------------------------------------

TEST(ModelHostile, KindsAreLimited) {  // each may need a table of frequencies
  EXPECT_EQ(Model(Unknown(Kinds(256)).dump()).Types().size(), 256u);
  ExpectRefused(Unknown(Kinds(257)).dump(), {"rope_parameters has 257 keys", "256"},
                ROPE_ERROR_UNSUPPORTED);
  EXPECT_EQ(Model(Kinds(256).dump()).Types().size(), 256u);
  ExpectRefused(Kinds(257).dump(), {"the text has 257 keys"}, ROPE_ERROR_UNSUPPORTED);
  json llama = Unknown(Kinds(300));
  llama["model_type"] = "llama";
  ExpectRefused(llama.dump(), {"300 keys"}, ROPE_ERROR_UNSUPPORTED);
}

TEST(ModelHostile, KeysOfADictionaryAreLimited) {  // each is compared with all known spellings
  json keys = {{"rope_type", "default"}};
  for (int i = 0; i < 300; ++i) keys["zzzzzzzzzz" + std::to_string(i)] = 1;
  ExpectRefused(Llama(keys.dump()), {"rope_scaling has 301 keys"}, ROPE_ERROR_UNSUPPORTED);
  ExpectRefused(keys.dump(), {"the text has 301 keys"}, ROPE_ERROR_UNSUPPORTED);
}

TEST(ModelHostile, ThetasAreLimited) {
  const auto with = [](int count) {
    json thetas;
    for (int i = 0; i < count; ++i) thetas.push_back(10000 + i);
    return json{{"model_type", "granite_swa"}, {"head_dim", 64}, {"layer_rope_theta", thetas}}
        .dump();
  };
  EXPECT_EQ(Model(with(256)).Types().size(), 256u);
  ExpectRefused(with(257), {"layer_rope_theta has 257 different values", "256"},
                ROPE_ERROR_UNSUPPORTED);
}

TEST(ModelHostile, LayersAreLimited) {
  const auto with = [](size_t count) {
    return json{{"model_type", "llama"},
                {"head_dim", 64},
                {"layer_types", json(std::vector<std::string>(count, "full_attention"))}}
        .dump();
  };
  EXPECT_EQ(Model(with(4096)).LayerName(4095), "full_attention");
  ExpectRefused(with(4097), {"layer_types has 4097 entries", "4096"});
  // counts that are a multiple of what the text says
  ExpectRefused(R"({"model_type": "longcat_flash", "num_layers": 2049})",
                {"num_layers gives 4098 attention layers", "4096"});
  ExpectRefused(R"({"model_type": "hrm_text", "num_hidden_layers": 4096})",
                {"num_hidden_layers gives 32768 attention layers"});
}

// One suffix names a part of a model. Any number of them once meant as many calls on the stack.
TEST(ModelHostile, OneSuffixOfTheModelTypeIsTakenOff) {
  const auto with = [](const std::string& type) {
    return R"({"model_type": ")" + type + R"(", "head_dim": 64})";
  };
  EXPECT_TRUE(Model(with("llama_text")));
  ExpectRefused(with("llama_text_text"), {"llama_text_text", "not known"}, ROPE_ERROR_UNSUPPORTED);
  std::string suffixes;
  for (int i = 0; i < 1000000; ++i) suffixes += "_text";
  ExpectRefused(with("llama" + suffixes), {"llama_text_text"}, ROPE_ERROR_UNSUPPORTED);
  const auto tower = [](const std::string& suffixes) {
    return Model(R"({"model_type": "llama", "head_dim": 64, "vision_config": {"head_dim": 64,
                     "model_type": "qwen2_vl)" +
                 suffixes + "\"}}")
        .Types();
  };
  EXPECT_EQ(tower("_vision"), (Names{"full_attention", "vision"}));
  EXPECT_EQ(tower("_vision_vision"), Names{"full_attention"});
}

// --- names --------------------------------------------------------------------------------------

std::string Thetas(const char* list) {
  return std::string(R"({"model_type": "granite_swa", "head_dim": 64, "layer_rope_theta": )") +
         list + "}";
}

TEST(ModelNames, TellThetasApart) {
  EXPECT_EQ(Model(Thetas("[1000000.0000001, 1000000.0000002]")).Types(),
            (Names{"theta_1000000.0000001", "theta_1000000.0000002"}));
  EXPECT_EQ(Model(Thetas("[10000, 10000.5, 500000.0, 1e20]")).Types(),
            (Names{"theta_10000", "theta_10000.5", "theta_500000", "theta_1e+20"}));
}

TEST(ModelNames, DoNotDependOnTheLocale) {
  const CommaLocale comma;
  if (!comma.is_set()) GTEST_SKIP() << "no locale with a decimal comma, and no localedef for one";
  EXPECT_EQ(Model(Thetas("[10000.5, 20000.25]")).Types(),
            (Names{"theta_10000.5", "theta_20000.25"}));
  ExpectRefused(R"({"model_type": "llama", "head_dim": 64, "rope_theta": -1.5})", {"(-1.5)"});
  ExpectRefused(Llama(R"({"type": "yarn", "factor": 4, "beta_fast": 1.5, "beta_slow": 2.5})"),
                {"(1.5)", "(2.5)"});
}

}  // namespace
}  // namespace rope::testing
