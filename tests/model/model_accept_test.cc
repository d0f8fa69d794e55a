// Keys that the caller accepts by name, and notes about what a text says beside the rotation.
#include <string>
#include <vector>

#include "answer.h"
#include "testing.h"

namespace rope::testing {
namespace {

constexpr char kFunction[] = "rope_model_create_accepting";

rope_status Accept(const std::string& text, const std::vector<const char*>& keys,
                   rope_model** model) {
  return rope_model_create_accepting(text.data(), text.size(), keys.data(),
                                     static_cast<int32_t>(keys.size()), model);
}

// The factor that the rotation multiplies with, or -1 if the text is refused.
double FactorAccepting(const std::string& text, const std::vector<const char*>& keys) {
  rope_model* model = nullptr;
  if (Accept(text, keys, &model) != ROPE_OK) return -1;
  rope_config config = ROPE_INIT(rope_config);
  EXPECT_EQ(rope_model_config(model, 0, &config), ROPE_OK);
  rope_model_destroy(model);
  return config.factor;
}

void ExpectNotAccepted(const std::string& text, const std::vector<const char*>& keys,
                       std::initializer_list<const char*> message,
                       rope_status status = ROPE_ERROR_INVALID_ARGUMENT) {
  rope_model* model = nullptr;
  EXPECT_EQ(Accept(text, keys, &model), status);
  EXPECT_EQ(model, nullptr);
  rope_model_destroy(model);
  ExpectMessage(kFunction, message);
}

const std::string kYarn =
    Llama(R"({"rope_type": "yarn", "factor": 4, "attn_factor": 0.5, "extrapolation_factor": 0.5})");

TEST(ModelAccept, AKeyIsNamedByItselfOrByItsPath) {
  EXPECT_EQ(FactorAccepting(kYarn, {"attn_factor", "extrapolation_factor"}), 4);
  EXPECT_EQ(FactorAccepting(kYarn, {"rope_scaling.attn_factor", "extrapolation_factor"}), 4);
  ExpectNotAccepted(kYarn, {"attn_factor"}, {"extrapolation_factor (0.5)"}, ROPE_ERROR_UNSUPPORTED);
  ExpectNotAccepted(kYarn, {"rope_parameters.attn_factor", "extrapolation_factor"},
                    {"rope_scaling.attn_factor (0.5)"}, ROPE_ERROR_UNSUPPORTED);
  const std::string nested = R"({"model_type": "llava", "text_config": )" + kYarn + "}";
  EXPECT_EQ(FactorAccepting(nested, {"text_config.rope_scaling.attn_factor",
                                     "text_config.rope_scaling.extrapolation_factor"}),
            4);
  EXPECT_EQ(FactorAccepting(nested, {"extrapolation_factor", "attn_factor"}), 4);
}

TEST(ModelAccept, AKeyInAListIsNamedLikeAnyOther) {
  const std::string text = R"({"model_type": "llama", "head_dim": 64, "rope_scaling": {"type":
      "linear", "factor": 4}, "blocks": [{"rope_theta": 7}, {"attention": {"rope_theta": 7}}]})";
  EXPECT_EQ(FactorAccepting(text, {"rope_theta"}), 4);
  EXPECT_EQ(FactorAccepting(text, {"blocks[0].rope_theta", "blocks[1].attention.rope_theta"}), 4);
  ExpectNotAccepted(text, {"blocks[0].rope_theta"}, {"blocks[1].attention.rope_theta (7)"},
                    ROPE_ERROR_UNSUPPORTED);
  for (const char* other : {"blocks.rope_theta", "blocks[2].rope_theta", "blocks[00].rope_theta"}) {
    ExpectNotAccepted(text, {other}, {"blocks[0].rope_theta (7)"}, ROPE_ERROR_UNSUPPORTED);
  }
}

// It was taken for the end of every path that leads elsewhere.
TEST(ModelAccept, AKeyWithoutALetterIsNotNamedByOthers) {
  const std::string text =
      Llama(R"({"rope_type": "yarn", "factor": 4, "attn_factor": 0.5, "": 0.5})");
  ExpectNotAccepted(text, {"attn_factor"}, {"rope_scaling. (0.5)"}, ROPE_ERROR_UNSUPPORTED);
  EXPECT_EQ(FactorAccepting(text, {"attn_factor", "rope_scaling."}), 4);
}

TEST(ModelAccept, EveryPlaceOfARefusalKnowsIt) {
  const auto accepts = [](const std::string& text, const char* key) {
    rope_model* model = nullptr;
    EXPECT_NE(Create(text, &model), ROPE_OK) << text;
    EXPECT_EQ(Accept(text, {key}, &model), ROPE_OK) << rope_last_error();
    rope_model_destroy(model);
  };
  const std::string sizes = R"("head_dim": 64, "num_hidden_layers": 2)";
  accepts(R"({"model_type": "llama", "swa_rope_theta": 7, )" + sizes + "}", "swa_rope_theta");
  accepts(R"({"model_type": "jamba", "use_rope": true, )" + sizes + "}", "use_rope");
  accepts(R"({"model_type": "llama", "per_layer_config": {"1": {"rope_theta": 7}}, )" + sizes + "}",
          "per_layer_config.1.rope_theta");
  accepts(R"({"model_type": "pixtral", "use_mixed_rope": true, "head_dim": 64})", "use_mixed_rope");
  accepts(R"({"rope_type": "linear", "factor": 4, "attn_factor": 2})", "attn_factor");
  accepts(R"({"model_type": "llava", "rope_theta": 7, "text_config": {"model_type": "llama"}})",
          "rope_theta");
  // what contradicts the class
  accepts(R"({"model_type": "llama", "rope_interleaved": true, )" + sizes + "}",
          "rope_interleaved");
  accepts(R"({"model_type": "glm_moe_dsa", "rope_interleave": false})", "rope_interleave");
  accepts(R"({"model_type": "glm_moe_dsa", "indexer_rope_interleave": false})",
          "indexer_rope_interleave");
  accepts(R"({"model_type": "nobody_knows", "rope_theta": 7, "d_head": 32, )" + sizes + "}",
          "d_head");
  accepts(
      R"({"model_type": "pixtral", "head_dim": 64, "rope_parameters": {"rope_type": "dynamic"}})",
      "rope_parameters.rope_type");
  accepts(R"({"model_type": "qwen3_vl", "text_config": {"model_type": "qwen3_vl_text",
              "rope_scaling": {"mrope_interleaved": false, "mrope_section": [24, 20, 20]}}})",
          "mrope_interleaved");
  accepts(R"({"dim": 64, "n_layers": 2, "n_heads": 1, "hidden_dim": 64, "rope_theta": 1e4,
              "layer_types": ["full_attention"]})",
          "layer_types");
}

TEST(ModelAccept, ANameThatSparesNothingIsAnError) {
  const std::string plain = Llama("null");
  ExpectNotAccepted(plain, {"attn_factor"},
                    {"accepted_keys[0] (\"attn_factor\")", "not in the text"});
  ExpectNotAccepted(plain, {"rope_theta"}, {"accepted_keys[0] (\"rope_theta\")", "is read"});
  ExpectNotAccepted(kYarn, {"attn_factor", "extrapolation_factor", "vocab_size"},
                    {"accepted_keys[2] (\"vocab_size\")"});
  ExpectNotAccepted(plain, {""}, {"accepted_keys[0] (\"\")"});
  ExpectNotAccepted(Llama(R"({"type": "linear", "factor": "x"})"), {"factor"}, {"factor (\"x\")"},
                    ROPE_ERROR_PARSE);
}

TEST(ModelAccept, ArgumentsAreChecked) {
  rope_model* model = nullptr;
  const std::string text = Llama("null");
  const auto create = [&](const char* const* keys, int32_t count) {
    return rope_model_create_accepting(text.data(), text.size(), keys, count, &model);
  };
  const char* const null[] = {nullptr};
  const std::vector<const char*> many(257, "x");
  EXPECT_EQ(create(nullptr, 1), ROPE_ERROR_INVALID_ARGUMENT);
  ExpectMessage(kFunction, {"accepted_keys (NULL)"});
  EXPECT_EQ(create(null, 1), ROPE_ERROR_INVALID_ARGUMENT);
  ExpectMessage(kFunction, {"accepted_keys[0] (NULL)"});
  EXPECT_EQ(create(null, -1), ROPE_ERROR_INVALID_ARGUMENT);
  ExpectMessage(kFunction, {"count (-1)"});
  EXPECT_EQ(create(many.data(), 257), ROPE_ERROR_INVALID_ARGUMENT);
  ExpectMessage(kFunction, {"count (257)"});
  EXPECT_EQ(rope_model_create_accepting(nullptr, 1, nullptr, 0, &model),
            ROPE_ERROR_INVALID_ARGUMENT);
  ExpectMessage(kFunction, {"json (NULL)"});
  EXPECT_EQ(rope_model_create_accepting(text.data(), text.size(), nullptr, 0, nullptr),
            ROPE_ERROR_INVALID_ARGUMENT);
  ExpectMessage(kFunction, {"out (NULL)"});
  EXPECT_EQ(model, nullptr);
  ASSERT_EQ(create(nullptr, 0), ROPE_OK);
  rope_model_destroy(model);
}

// Qwen/Qwen2.5-7B-Instruct-1M: transformers ignores it, and so does the configuration.
TEST(ModelAccept, ANumberThatOthersMadeIsANote) {
  const auto note = [](const std::string& text) {
    const Model model(text);
    const char* found = rope_model_note(model.get(), 0);
    return std::string(found != nullptr ? found : "");
  };
  constexpr char kSizes[] = R"("hidden_size": 4096, "num_attention_heads": 32, )";
  const auto text = [&](const std::string& type, const std::string& rest) {
    return R"({"model_type": ")" + type + R"(", )" + kSizes + rest + "}";
  };
  EXPECT_EQ(note(text("hunyuan_v1_dense", R"("rope_theta": 10000.0, "rope_scaling":
      {"type": "dynamic", "alpha": 1000.0, "factor": 1.0})"))
                .substr(0, 59),
            "full_attention: theta (11158839.92507748) follows from rope");
  EXPECT_EQ(note(text("new", R"("rope_theta": 20000, "max_position_embeddings": 8192,
      "rope_scaling": {"type": "ntk", "factor": 8.0})")),
            "full_attention: theta (160000) follows from rope_theta (20000) and factor (8)");
  EXPECT_EQ(note(text("chatglm", R"("kv_channels": 128, "rope_ratio": 50)")),
            "full_attention: theta (500000) follows from rope_ratio (50) and that of the class "
            "(10000)");
  EXPECT_EQ(note(text("llama", R"("rope_theta": 10000.0, "max_position_embeddings": 4096,
      "rope_scaling": {"rope_type": "yarn", "factor": null,
                       "original_max_position_embeddings": 1024})")),
            "full_attention: factor (4) follows from the two lengths");
  EXPECT_EQ(note(text("llama", R"("rope_theta": 10000.0)")), "");
}

TEST(ModelAccept, DualChunkAttentionIsANote) {
  const std::string plain = R"({"model_type": "qwen2", "head_dim": 128, "rope_theta": 1e7)";
  const std::string chunks = plain + R"(, "dual_chunk_attention_config": {"chunk_size": 262144,
      "local_size": 8192, "original_max_position_embeddings": 262144}})";
  const Model model(chunks);
  const char* note = rope_model_note(model.get(), 0);
  ASSERT_NE(note, nullptr);
  EXPECT_NE(std::string(note).find("dual_chunk_attention_config"), std::string::npos) << note;
  EXPECT_EQ(rope_model_note(model.get(), 1), nullptr);
  EXPECT_EQ(rope_model_note(model.get(), -1), nullptr);
  EXPECT_EQ(rope_model_note(Model(plain + "}").get(), 0), nullptr);
  EXPECT_EQ(Answer(chunks), Answer(plain + "}"));
}

}  // namespace
}  // namespace rope::testing
