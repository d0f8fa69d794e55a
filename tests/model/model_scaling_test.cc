// Scalings as files spell them: their words, lengths, factors and betas, in the fields of
// rope_config and, where it shows there, in the frequencies.
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "oracle_array.h"
#include "support/handles.h"
#include "testing.h"

namespace rope::testing {
namespace {

using nlohmann::json;

std::string Lists(size_t below, size_t above) {
  return R"("short_factor": )" + json(std::vector<int>(below, 1)).dump() + R"(, "long_factor": )" +
         json(std::vector<int>(above, 2)).dump();
}

TEST(ModelScaling, SuMropeAndXdropeMeanOtherTypes) {
  // "su" with the original length beside the dictionary, as the first Phi-3 files have it
  const Model su(R"({"model_type": "phi3", "head_dim": 4, "max_position_embeddings": 131072,
      "original_max_position_embeddings": 4096,
      "rope_scaling": {"type": "su", "short_factor": [1, 2], "long_factor": [3, 4]}})");
  EXPECT_EQ(su.Config().scaling, ROPE_SCALING_LONGROPE);
  EXPECT_EQ(su.Config().original_max_position_embeddings, 4096);
  const rope_config mrope = Model(R"({"model_type": "qwen2_vl", "hidden_size": 3584,
      "num_attention_heads": 28,
      "rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]}})")
                                .Config();
  EXPECT_EQ(mrope.scaling, ROPE_SCALING_DEFAULT);
  EXPECT_EQ(mrope.axes, 3);
  const rope_config xdrope = Model(R"({"model_type": "hunyuan_vl_text", "head_dim": 128,
      "rope_scaling": {"type": "xdrope", "alpha": 1000.0, "factor": 1.0,
                       "xdrope_section": [16, 16, 16, 16]}})")
                                 .Config();
  EXPECT_EQ(xdrope.scaling, ROPE_SCALING_DEFAULT);
  EXPECT_EQ(xdrope.axes, 4);
  EXPECT_NEAR(xdrope.theta, 1e4 * std::pow(1000, 128.0 / 126), 1);
}

TEST(ModelScaling, YarnWithListsMeansLongrope) {
  // by the family alone, and by the lists alone
  ExpectRefused(R"({"model_type": "phi3", "head_dim": 64, "max_position_embeddings": 64,
                    "rope_scaling": {"type": "yarn", "factor": 4}})",
                {"rope_scaling.short_factor is missing"});
  EXPECT_EQ(
      Model(Llama(R"({"type": "yarn", "factor": 4, )" + Lists(64, 64) + "}")).Config().scaling,
      ROPE_SCALING_LONGROPE);
}

TEST(ModelScaling, Phi3SpellsLongropeInThreeWays) {
  for (const char* name : {"longrope", "su", "yarn"}) {
    const Model model(
        std::string(R"({"model_type": "phi3", "head_dim": 4, "max_position_embeddings":
        131072, "original_max_position_embeddings": 4096, "rope_scaling": {"type": ")") +
        name + R"(", "short_factor": [1, 2], "long_factor": [3, 4]}})");
    EXPECT_EQ(model.Config().scaling, ROPE_SCALING_LONGROPE) << name;
    EXPECT_EQ(model.Config().attention_factor, 0) << name;
  }
}

// transformers takes the factor for the attention factor, Phi-3's own code and engines the ratio.
TEST(ModelScaling, TheFactorOfPhi3IsTheRatioOfItsLengths) {
  const auto phi3 = [](const std::string& entries) {
    return R"({"model_type": "phi3", "hidden_size": 128, "num_attention_heads": 2,
        "num_hidden_layers": 2, "max_position_embeddings": 131072, "rope_theta": 10000.0,
        "original_max_position_embeddings": 4096, "rope_scaling": {"type": "longrope", )" +
           entries + Lists(32, 32) + "}}";
  };
  ExpectRefused(phi3(R"("factor": 4, )"), {"rope_scaling.factor (4) must be", "(32)"},
                ROPE_ERROR_UNSUPPORTED);
  EXPECT_EQ(Model(phi3(R"("factor": 32.0, )")).Config().factor, 32);
  EXPECT_EQ(Model(phi3(R"("factor": 4, "attention_factor": 1.25, )")).Config().attention_factor,
            1.25);
  EXPECT_EQ(Model(phi3("")).Config().max_position_embeddings, 131072);
}

TEST(ModelScaling, FactorListsHaveAnEntryForEachPair) {
  const std::string longrope = R"({"type": "longrope", "factor": 4, )";
  EXPECT_EQ(Model(longrope + Lists(2, 2) + "}").Config().table_length, 2);
  EXPECT_EQ(Model(longrope + Lists(512, 512) + "}").Config().table_length, 512);
  ExpectRefused(longrope + Lists(0, 0) + "}", {"short_factor has 0 entries", "from 1 to 512"});
  ExpectRefused(longrope + Lists(513, 513) + "}",
                {"short_factor has 513 entries", "from 1 to 512"});
  ExpectRefused(longrope + Lists(2, 3) + "}",
                {"long_factor has 3 entries", "as many as short_factor, 2"});
}

TEST(ModelScaling, OriginalLengthIsBesideElseInsideElseThatOfTheModel) {
  // yarn: the model's length if there is none; longrope and yarn: the key beside wins
  EXPECT_EQ(
      Model(Llama(R"({"type": "yarn", "factor": 4})")).Config().original_max_position_embeddings,
      8192);
  const std::string beside =
      R"({"model_type": "llama", "head_dim": 4, "max_position_embeddings": 64,
      "original_max_position_embeddings": 16, "rope_scaling": )";
  const Model longrope(beside + R"({"type": "longrope", "original_max_position_embeddings": 16,
      "short_factor": [1, 1], "long_factor": [2, 2]}})");
  ExpectRefused(beside + R"({"type": "longrope", "original_max_position_embeddings": 8,
      "short_factor": [1, 1], "long_factor": [2, 2]}})",
                {"rope_scaling.original_max_position_embeddings (8) must be ",
                 "original_max_position_embeddings (16)"});
  EXPECT_EQ(longrope.Config().original_max_position_embeddings, 16);
  EXPECT_EQ(longrope.Config().max_position_embeddings, 64);
  // inert inside the dictionary
  EXPECT_EQ(Model(Llama(R"({"type": "dynamic", "factor": 4, "max_position_embeddings": 1})"))
                .Config()
                .max_position_embeddings,
            8192);
  EXPECT_EQ(Model(Llama(R"({"type": "yarn", "factor": null,
      "original_max_position_embeddings": 2048})"))
                .Config()
                .factor,
            4);
}

// Phi3Config has a default of its own, which transformers prefers to the dictionary's entry.
TEST(ModelScaling, Phi3TakesItsOriginalLengthFromBesideTheDictionary) {
  const auto phi3 = [](const std::string& beside, const std::string& inside) {
    return R"({"model_type": "phi3", "head_dim": 64, "max_position_embeddings": 131072, )" +
           beside + R"("rope_scaling": {"type": "longrope", )" + inside + Lists(32, 32) + "}}";
  };
  const std::string key = R"("original_max_position_embeddings": )";
  const auto original = [](const std::string& text) {
    return Model(text).Config().original_max_position_embeddings;
  };
  EXPECT_EQ(original(phi3("", "")), 4096);
  EXPECT_EQ(original(phi3("", key + "4096, ")), 4096);
  EXPECT_EQ(original(phi3(key + "8192, ", "")), 8192);
  EXPECT_EQ(original(phi3(key + "8192, ", key + "8192, ")), 8192);
  ExpectRefused(phi3("", key + "8192, "),
                {"rope_scaling.original_max_position_embeddings (8192) must stand beside", "4096"});
}

TEST(ModelScaling, MscaleAllDimZeroIsUnset) {
  const std::string yarn = R"({"rope_type": "yarn", "factor": 64.0, "mscale": 1.0,
      "original_max_position_embeddings": 4096, "llama_4_scaling_beta": 0.1, "mscale_all_dim": )";
  const Model unset(Llama(yarn + "0.0}"));
  EXPECT_EQ(unset.Config().attention_factor, 0);  // the core's 0.1 ln 64 + 1
  EXPECT_EQ(unset.Config().mscale_all_dim, 0);
  // Set in a model without latent attention: part of the attention factor, not of the softmax.
  EXPECT_EQ(Model(Llama(yarn + "1.0}")).Config().attention_factor, 1);
  EXPECT_EQ(Model(Llama(yarn + "1.0}")).Config().mscale_all_dim, 0);
  EXPECT_NEAR(Model(Llama(yarn + "0.5}")).Config().attention_factor,
              (0.1 * std::log(64) + 1) / (0.05 * std::log(64) + 1), 1e-15);
}

TEST(ModelScaling, GivenAttentionFactorWinsAndIsRefusedElsewhere) {
  EXPECT_EQ(Model(Llama(R"({"type": "yarn", "factor": 4, "attention_factor": 1.5, "mscale": 1,
                            "mscale_all_dim": 0.5})"))
                .Config()
                .attention_factor,
            1.5);
  ExpectRefused(Llama(R"({"type": "linear", "factor": 4, "attention_factor": 1.5})"),
                {"rope_scaling.attention_factor (1.5)"}, ROPE_ERROR_UNSUPPORTED);
  EXPECT_EQ(Model(Llama(R"({"type": "linear", "factor": 4, "attention_factor": 1})"))
                .Config()
                .attention_factor,
            0);
}

TEST(ModelScaling, YarnBetasAreToldAsTheyAreAndMustBeInOrder) {
  const std::string yarn =
      R"({"type": "yarn", "factor": 32, "original_max_position_embeddings": 4096)";
  EXPECT_EQ(Model(Llama(yarn + R"(, "beta_fast": 0, "beta_slow": 0})")).Config().beta_fast, 0);
  const rope_config kimi = Model(Llama(yarn + R"(, "beta_fast": 1.0, "beta_slow": 1.0})")).Config();
  EXPECT_EQ(kimi.beta_fast, 1);
  EXPECT_EQ(kimi.beta_slow, 1);
  ExpectRefused(Llama(yarn + R"(, "beta_fast": 1, "beta_slow": 32})"), {"beta_fast", "beta_slow"});
  ExpectRefused(Llama(yarn + R"(, "beta_fast": -1})"), {"beta_fast (-1)"});
}

TEST(ModelScaling, NegativeBetasAreRefused) {
  ExpectRefused(Llama(R"({"type": "yarn", "factor": 4, "beta_fast": -1})"),
                {"beta_fast (-1) must not be negative"});
  ExpectRefused(Llama(R"({"type": "yarn", "factor": 4, "beta_slow": -1})"),
                {"beta_slow (-1) must not be negative"});
}

TEST(ModelScaling, EqualBetasGiveARampOfOneStep) {  // Kimi K2
  const std::vector<double> f =
      InvFreq(Model(Llama(R"({"type": "yarn", "factor": 32, "beta_fast": 1.0, "beta_slow": 1.0,
                      "original_max_position_embeddings": 4096})"))
                  .Config());
  const std::vector<double> plain = InvFreq(Model(Llama("null")).Config());
  size_t extrapolated = 0, interpolated = 0;
  for (size_t i = 0; i < f.size(); ++i) {
    extrapolated += std::fabs(f[i] / plain[i] - 1) < 1e-6 ? 1 : 0;
    interpolated += std::fabs(32 * f[i] / plain[i] - 1) < 1e-6 ? 1 : 0;
  }
  EXPECT_EQ(extrapolated + interpolated, 64u);
  EXPECT_EQ(extrapolated, 46u);  // 64 ln(4096 / 2 pi) / ln(1e4) = 45.03, floor and ceil: 45, 46
}

TEST(ModelScaling, ZeroBetasAndAbsentOnesAreTheSame) {
  const std::string yarn =
      R"({"type": "yarn", "factor": 4, "original_max_position_embeddings": 4096)";
  EXPECT_EQ(InvFreq(Model(Llama(yarn + R"(, "beta_fast": 0, "beta_slow": 0})")).Config()),
            InvFreq(Model(Llama(yarn + "}")).Config()));
}

TEST(ModelScaling, TruncateCountsWhenNested) {
  const Model model(R"({"model_type": "gemma3_text", "max_position_embeddings": 131072,
      "layer_types": ["sliding_attention", "full_attention"], "rope_parameters": {
      "full_attention": {"rope_type": "yarn", "factor": 32, "truncate": false,
                         "original_max_position_embeddings": 4096},
      "sliding_attention": {"rope_type": "default"}}})");
  EXPECT_EQ(model.Config("full_attention").yarn_no_truncate, 1);
  EXPECT_EQ(model.Layers(2), "sf");
}

// transformers hands null on, which is false; others take true.
TEST(ModelScaling, TruncateThatIsNullIsRefused) {
  ExpectRefused(Llama(R"({"rope_type": "yarn", "factor": 4, "truncate": null})"),
                {"truncate (null)"}, ROPE_ERROR_UNSUPPORTED);
}

TEST(ModelScaling, NestedTruncateChangesTheRamp) {
  const auto nested = [](const std::string& truncate) {
    return InvFreq(Model(R"({"model_type": "gemma3_text", "head_dim": 64,
        "rope_parameters": {"sliding_attention": {"rope_type": "default", "rope_theta": 10000},
        "full_attention": {"rope_type": "yarn", "factor": 8, "rope_theta": 1000000,
                           "original_max_position_embeddings": 4096, "truncate": )" +
                         truncate + "}}}")
                       .Config("full_attention"));
  };
  EXPECT_NE(nested("false"), nested("true"));
}

TEST(ModelScaling, Llama3FactorsInTheWrongOrderAreRefused) {
  ExpectRefused(Llama(R"({"rope_type": "llama3", "factor": 8, "low_freq_factor": 4,
                          "high_freq_factor": 1, "original_max_position_embeddings": 8192})"),
                {"rope_scaling.high_freq_factor (1)", "low_freq_factor (4)"});
}

TEST(ModelScaling, EqualLlama3FactorsDivideByZeroOnlyWhereMasked) {  // Llama 4 Scout
  const std::vector<double> f =
      InvFreq(Model(Llama(R"({"rope_type": "llama3", "factor": 16, "low_freq_factor": 1.0,
                      "high_freq_factor": 1.0, "original_max_position_embeddings": 8192})"))
                  .Config());
  const std::vector<double> plain = InvFreq(Model(Llama("null")).Config());
  ASSERT_EQ(f.size(), 64u);
  for (size_t i = 0; i < f.size(); ++i) {
    const bool slow = 2 * M_PI / plain[i] > 8192;
    EXPECT_EQ(f[i], slow ? plain[i] / 16 : plain[i]) << i;
  }
}

TEST(ModelScaling, AlphaMustKeepThetaFinite) {
  const auto hunyuan = [](const char* head_dim, const char* alpha) {
    return std::string(R"({"model_type": "hunyuan_v1_dense", "head_dim": )") + head_dim +
           R"(, "rope_scaling": {"type": "dynamic", "alpha": )" + alpha + "}}";
  };
  EXPECT_GT(Model(hunyuan("4", "1000")).Config().theta, 1e9);
  ExpectRefused(hunyuan("2", "1000"), {"alpha (1000) needs a head_dim above 2"});
  ExpectRefused(hunyuan("4", "1e300"), {"alpha (1e+300) must keep theta finite"});
}

TEST(ModelScaling, HunyuanAlphaRaisesThetaOnce) {
  const Model model(R"({"model_type": "hunyuan_v1_dense", "head_dim": 128,
      "max_position_embeddings": 32768, "rope_theta": 10000.0, "rope_scaling": {"alpha": 1000.0,
      "beta_fast": 32, "beta_slow": 1, "factor": 1.0, "mscale": 1.0, "type": "dynamic"}})");
  EXPECT_NEAR(model.Config().theta, 11158839.92507748, 1e-6);
  EXPECT_EQ(model.Config().scaling, ROPE_SCALING_DEFAULT);  // static: never rewritten by length
  EXPECT_EQ(model.Config().factor, 0);
  EXPECT_EQ(model.Config().rounding, ROPE_ROUNDING_EAGER);
  for (const char* type : {"llama", "internlm2", "nobody_knows"}) {
    ExpectRefused(R"({"model_type": ")" + std::string(type) + R"(", "head_dim": 128,
        "max_position_embeddings": 32768, "rope_theta": 10000.0,
        "rope_scaling": {"alpha": 1000.0, "factor": 1.0, "type": "dynamic"}})",
                  {"rope_scaling.alpha (1000)"}, ROPE_ERROR_UNSUPPORTED);
  }
}

// Alibaba-NLP/gte-multilingual-base. The formula is that of NTKScalingRotaryEmbedding in vLLM
// (layers/rotary_embedding/ntk_scaling_rope.py) and in the model's own code, without mixed_b.
TEST(ModelScaling, NtkOfGteIsALargerThetaAndADivisor) {
  const auto gte = [](const char* entry) {
    return R"({"model_type": "new", "hidden_size": 768, "num_attention_heads": 12,
        "max_position_embeddings": 8192, "position_embedding_type": "rope", "rope_theta": 20000,
        "rope_scaling": {"type": "ntk", "factor": 8.0)" +
           std::string(entry) + "}}";
  };
  const Model model(gte(""));
  const rope_config config = model.Config();
  EXPECT_EQ(config.pairing, ROPE_PAIRING_HALVES);
  rope_context* context = nullptr;
  ASSERT_EQ(rope_context_create(&config, &context), ROPE_OK);
  double frequencies[32];
  ASSERT_EQ(rope_context_inv_freq(context, 0, frequencies, 32), ROPE_OK);
  rope_context_destroy(context);
  for (int i = 0; i < 32; ++i) {
    const long double plain = 1 / std::pow(20000.0L * 8, 2.0L * i / 64);
    const long double want = plain / std::pow(8.0L, 2.0L / 64);
    EXPECT_NEAR(frequencies[i], want, 3e-7 * want) << i;
  }
  ExpectRefused(gte(R"(, "mixed_b": 0.625)"), {"mixed_b"}, ROPE_ERROR_UNSUPPORTED);
  ExpectRefused(Llama(R"({"type": "ntk", "factor": 8.0})"), {"type (\"ntk\") must be one of"});
}

// What transformers makes of two factors on cos and sin, by hand as the refusal says: without the
// keys, and attention_factor with seq_len. Its long factors are the short ones.
TEST(ModelScaling, TwoMscalesAreAContextOfTwoConfigurations) {
  const json test = LoadJson("oracle/hand-phimoe-mscale.json");
  json text = test["config"];
  ExpectRefused(text.dump(), {"short_mscale (1.24", "long_mscale (1.3)", "seq_len"},
                ROPE_ERROR_UNSUPPORTED);
  text["rope_scaling"].erase("short_mscale");
  text["rope_scaling"].erase("long_mscale");
  text["rope_scaling"]["long_factor"] = text["rope_scaling"]["short_factor"];
  const Model model(text.dump());
  std::vector<rope_config> configs;
  for (const json& length : test["ropes"][0]["lengths"]) {
    rope_config config = model.Config();
    config.seq_len = length["seq_len"];
    const bool is_long = config.seq_len > config.original_max_position_embeddings;
    config.attention_factor =
        test["config"]["rope_scaling"][is_long ? "long_mscale" : "short_mscale"];
    configs.push_back(config);
  }
  const Context context = CreateSets(configs);
  for (size_t set = 0; set < configs.size(); ++set) {
    const json& length = test["ropes"][0]["lengths"][set];
    const std::vector<float> want = OracleArray(length["inv_freq"]).ToFloat();
    std::vector<double> got(want.size());
    rope_info info = ROPE_INIT(rope_info);
    const auto index = static_cast<int32_t>(set);
    ASSERT_EQ(rope_context_info(context.get(), index, &info), ROPE_OK);
    ASSERT_EQ(rope_context_inv_freq(context.get(), index, got.data(), info.inv_freq_count),
              ROPE_OK);
    EXPECT_EQ(got, std::vector<double>(want.begin(), want.end()));
    EXPECT_NEAR(info.attention_factor, length["attention_factor"].get<double>(), 1e-7);
  }
}

TEST(ModelScaling, Qwen1GrowsInSteps) {
  const std::string qwen = R"({"model_type": "qwen", "kv_channels": 128, "rotary_pct": 1.0,
      "rotary_emb_base": 10000, "seq_length": 2048)";
  const rope_config c = Model(qwen + R"(, "use_dynamic_ntk": true})").Config();
  EXPECT_EQ(c.scaling, ROPE_SCALING_DYNAMIC_STEPS);
  EXPECT_EQ(c.factor, 2);
  EXPECT_EQ(c.max_position_embeddings, 2048);
  EXPECT_EQ(Model(qwen + "}").Config().scaling, ROPE_SCALING_DYNAMIC_STEPS);  // class default
  EXPECT_EQ(Model(qwen + R"(, "use_dynamic_ntk": false})").Config().scaling, ROPE_SCALING_DEFAULT);
  ExpectRefused(R"({"model_type": "qwen", "kv_channels": 128})", {"seq_length is missing"});
  ExpectRefused(qwen + R"(, "rope_scaling": {"type": "linear", "factor": 2}})", {"use_dynamic_ntk"},
                ROPE_ERROR_UNSUPPORTED);
  // the model's own formula, by which a prompt of `tokens` is turned
  for (int64_t tokens : {1, 2048, 2049, 4096, 4097, 8192, 8193, 30000}) {
    const double value = std::log2(static_cast<double>(tokens) / 2048) + 1;
    const double alpha = std::max(std::pow(2, std::ceil(value)) - 1, 1.0);
    rope_config config = c;
    config.seq_len = tokens;
    const std::vector<double> inv_freq = InvFreq(config);
    ASSERT_EQ(inv_freq.size(), 64u);
    const double theta = 10000 * std::pow(alpha, 128.0 / 126);
    for (int i = 0; i < 64; ++i) {
      const double expected = std::pow(theta, -i / 64.0);
      ASSERT_NEAR(inv_freq[i], expected, 1e-6 * expected) << tokens << " tokens, pair " << i;
    }
    int64_t next = 0;
    ASSERT_EQ(rope_config_next_change(&config, tokens, &next), ROPE_OK);
    int64_t last = 2048;
    while (last < tokens) last *= 2;
    EXPECT_EQ(next, last + 1) << tokens;
  }
  int64_t next = 0;
  EXPECT_EQ(rope_config_next_change(&c, INT64_MAX, &next), ROPE_OK);
  EXPECT_EQ(next, INT64_MAX);
}

}  // namespace
}  // namespace rope::testing
