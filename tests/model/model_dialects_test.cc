// Configurations of other programs than transformers, against what these programs rotate: recorded
// by tests/oracle/dialects.py.
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "answer.h"
#include "oracle_array.h"
#include "support/handles.h"
#include "testing.h"

namespace rope::testing {
namespace {

using nlohmann::json;

const json& Recorded() {
  static const json recorded = LoadJson("dialects.json");
  return recorded;
}

// Vectors at positions, each with one id or a row of them.
std::vector<float> Rotated(rope_config config, const std::vector<float>& before,
                           const std::vector<int64_t>& ids) {
  config.rounding = ROPE_ROUNDING_FLOAT32;  // the vectors are f32
  const Context context = Create(config);
  std::vector<float> x = before;
  rope_qk_args args = Args(1, static_cast<int64_t>(before.size()) / config.head_dim);
  args.q = Tensor(x.data(), ROPE_DTYPE_F32, 1);
  args.positions = Ids(ROPE_POSITIONS_IDS_BTA, ids.data());
  EXPECT_OK(rope_apply_qk(context.get(), &args));
  return x;
}

TEST(ModelDialects, RotateAsTheirProgramsDo) {
  for (const auto& [dialect, cases] : Recorded()["dialects"].items()) {
    ASSERT_FALSE(cases.empty());
    for (const json& record : cases) {
      const std::string kind = record.value("kind", "full_attention");
      SCOPED_TRACE(dialect + ": " + record["name"].get<std::string>() + ", " + kind);
      const Model model(record["config"].dump());
      ASSERT_TRUE(model);
      std::vector<int64_t> ids;
      for (const json& id : record.contains("ids") ? record["ids"] : Recorded()["positions"]) {
        if (!id.is_array()) ids.push_back(id);
        for (size_t a = 0; id.is_array() && a < id.size(); ++a) ids.push_back(id[a]);
      }
      const std::vector<float> want = OracleArray(record["after"]).ToFloat();
      const std::vector<float> got =
          Rotated(model.Config(kind), OracleArray(record["before"]).ToFloat(), ids);
      ASSERT_EQ(got.size(), want.size());
      // Values up to 4 * sqrt 2: cos and sin within 3e-7 of each other, three roundings on each
      // side. MaxText's frequencies of YaRN are made with XLA's power and may be off by an ulp, of
      // angles up to 1000.
      const bool other_power =
          dialect == "maxtext" && model.Config(kind).scaling == ROPE_SCALING_YARN;
      const double bound = 4e-6 + (other_power ? 4 * std::sqrt(2.0) * 1000 * 0x1p-23 : 0);
      double worst = 0;
      for (size_t i = 0; i < got.size(); ++i) {
        worst = std::max(worst, std::fabs(static_cast<double>(got[i]) - want[i]));
      }
      EXPECT_LT(worst, bound);
    }
  }
}

// Every recorded configuration: contexts can be made, the first note says how it was read, and a
// key of RoPE that its program does not have is refused.
TEST(ModelDialects, AreNamedAndStrict) {
  for (const auto& [dialect, cases] : Recorded()["dialects"].items()) {
    for (const json& record : cases) {
      const std::string text = record["config"].dump();
      const Model model(text);
      ExpectContexts(model.get(), text);
      const char* note = rope_model_note(model.get(), 0);
      ASSERT_NE(note, nullptr);
      EXPECT_EQ(std::string(note).rfind("read as M", 0), 0u) << note;
      json changed = record["config"];
      changed["rope_wobble"] = 3;
      ExpectRefused(changed.dump(), {"rope_wobble (3)", "was not used"}, ROPE_ERROR_UNSUPPORTED);
    }
  }
}

json Case(const std::string& dialect, size_t n) {
  return Recorded()["dialects"][dialect][n]["config"];
}

json With(json config, const json& changes) {
  config.update(changes);
  return config;
}

TEST(ModelDialects, TransformersTextHasNoSuchNote) {
  EXPECT_EQ(rope_model_note(Model(Llama("null")).get(), 0), nullptr);
}

TEST(ModelDialects, ATextOfTwoDialectsIsRefused) {
  json both = Case("mistral", 0);
  both["multiple_of"] = 256;
  ExpectRefused(both.dump(), {"Meta's", "Mistral's"}, ROPE_ERROR_UNSUPPORTED);
}

// DistilBERT has dim, n_layers, n_heads and hidden_dim as well, and a model_type.
TEST(ModelDialects, AModelTypeIsTransformers) {
  json config = Case("mistral", 0);
  config["model_type"] = "distilbert";
  ExpectRefused(config.dump(), {"distilbert"}, ROPE_ERROR_UNSUPPORTED);
}

TEST(MetaParams, ThetaIsThatOfLlama2OnlyInFilesOfLlama2) {
  EXPECT_EQ(Model(Case("meta", 0).dump()).Config().theta, 10000);
  json config = Case("meta", 1);
  config.erase("rope_theta");
  ExpectRefused(config.dump(), {"rope_theta", "Llama 1 and 2"});
}

// 8 in Meta's code, 32 in transformers' files of the same models.
TEST(MetaParams, SmallLlama32MustSayItsFactor) {
  const json small = With(Case("meta", 2), {{"dim", 2048}, {"n_layers", 16}});
  ExpectRefused(small.dump(), {"rope_scaling_factor", "Llama 3.2"});
  const rope_config config = Model(With(small, {{"rope_scaling_factor", 32}}).dump()).Config();
  EXPECT_EQ(config.factor, 32);
  EXPECT_EQ(config.head_dim, 64);
}

// The code of Llama 1 and 2 has no such arguments.
TEST(MetaParams, LaterFilesSayTheirTheta) {
  for (const char* key : {"use_scaled_rope", "moe_args", "nope_layer_interval", "rope_theta"}) {
    const json value = key == std::string("use_scaled_rope") ? json(true) : json(nullptr);
    ExpectRefused(With(Case("meta", 0), {{key, value}}).dump(), {"rope_theta is missing"});
  }
}

TEST(MetaParams, FactorsBelongToUseScaledRope) {
  json config = Case("meta", 1);
  config.erase("use_scaled_rope");
  ExpectRefused(With(config, {{"rope_scaling_factor", 32}}).dump(),
                {"use_scaled_rope is missing", "rope_scaling_factor is there"});
  ExpectRefused(With(config, {{"rope_high_freq_factor", 4}}).dump(),
                {"use_scaled_rope is missing"});
  for (const char* key : {"rope_scaling_factor", "rope_high_freq_factor"}) {
    ExpectRefused(With(config, {{key, 16}, {"use_scaled_rope", false}}).dump(),
                  {"use_scaled_rope (false) must be true", key});
  }
}

// Llama 4's arguments have a head_dim, which its attention does not read.
TEST(MetaParams, HeadsAreQuotients) {
  EXPECT_EQ(Model(With(Case("meta", 3), {{"head_dim", 128}}).dump()).Config().head_dim, 128);
  for (size_t n : {size_t{1}, size_t{3}}) {
    ExpectRefused(With(Case("meta", n), {{"head_dim", 64}}).dump(), {"head_dim (64) must be 128"},
                  ROPE_ERROR_UNSUPPORTED);
  }
  ExpectRefused(With(Case("meta", 1), {{"dim", 4095}}).dump(), {"dim (4095) / n_heads (32)"});
}

// Llama 3's code scales by 8 and 4, Llama 4's by 16 and 1.
TEST(MetaParams, NullTellsNoLlama4) {
  const json scaled = With(Case("meta", 2), {{"moe_args", nullptr}});
  ExpectRefused(scaled.dump(), {"rope_scaling_factor is missing"});
  ExpectRefused(With(scaled, {{"rope_scaling_factor", 8}}).dump(),
                {"rope_high_freq_factor is missing"});
  const json both = {{"rope_scaling_factor", 8}, {"rope_high_freq_factor", 4}};
  EXPECT_EQ(Model(With(scaled, both).dump()).Config().high_freq_factor, 4);
}

TEST(MetaParams, EveryFourthLayerOfLlama4HasNoRope) {
  const Model model(Case("meta", 3).dump());
  EXPECT_EQ(model.Layers(9), "fffnfffnf");
  EXPECT_EQ(model.LayerName(48), "");
  EXPECT_EQ(model.Config("nope").head_dim, 128);
}

TEST(MistralParams, ThetaHasNoDefault) {
  json config = Case("mistral", 0);
  config.erase("rope_theta");
  ExpectRefused(config.dump(), {"rope_theta"});
}

const json kYarn = {{"factor", 16},
                    {"original_max_position_embeddings", 16384},
                    {"beta", 32},
                    {"alpha", 1},
                    {"apply_scale", false}};

// What transformers' text of Ministral 3 says, whose mscales cancel each other.
TEST(MistralParams, YarnIsThatOfTransformersText) {
  const rope_config ours = Model(With(Case("mistral", 0), {{"yarn", kYarn}}).dump()).Config();
  const rope_config theirs = Model(R"({"model_type": "ministral3", "hidden_size": 4096,
      "num_attention_heads": 32, "head_dim": 128, "num_hidden_layers": 32,
      "max_position_embeddings": 262144, "rope_parameters": {"rope_type": "yarn",
      "rope_theta": 1000000.0, "factor": 16.0, "original_max_position_embeddings": 16384,
      "beta_fast": 32.0, "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0,
      "llama_4_scaling_beta": 0.1}})")
                                 .Config();
  EXPECT_EQ(ours.pairing, ROPE_PAIRING_INTERLEAVED);
  EXPECT_EQ(theirs.pairing, ROPE_PAIRING_HALVES);
  std::vector<double> a(64), b(64);
  rope_info info_a = ROPE_INIT(rope_info), info_b = ROPE_INIT(rope_info);
  const Context x = Create(ours), y = Create(theirs);
  ASSERT_OK(rope_context_inv_freq(x.get(), 0, a.data(), 64));
  ASSERT_OK(rope_context_inv_freq(y.get(), 0, b.data(), 64));
  ASSERT_OK(rope_context_info(x.get(), 0, &info_a));
  ASSERT_OK(rope_context_info(y.get(), 0, &info_b));
  EXPECT_EQ(a, b);
  EXPECT_EQ(info_a.attention_factor, info_b.attention_factor);
}

TEST(MistralParams, YarnIsReadWholeOrRefused) {
  json yarn = kYarn;
  yarn["gamma"] = 2;
  ExpectRefused(With(Case("mistral", 0), {{"yarn", yarn}}).dump(), {"yarn.gamma (2)"},
                ROPE_ERROR_UNSUPPORTED);
  yarn = kYarn;
  yarn.erase("apply_scale");
  ExpectRefused(With(Case("mistral", 0), {{"yarn", yarn}}).dump(), {"yarn.apply_scale"});
}

TEST(MistralParams, DictionariesAreReadWhole) {
  for (const char* dictionary : {"moe", "multimodal"}) {
    const json stray = {{"rope_theta", 5}};
    ExpectRefused(With(Case("mistral", 0), {{dictionary, stray}}).dump(),
                  {dictionary, ".rope_theta (5)"}, ROPE_ERROR_UNSUPPORTED);
  }
}

TEST(MistralParams, AModelHasOneTower) {
  const json tower = {{"hidden_size", 1024}, {"num_attention_heads", 16}};
  const json multimodal = {{"vision_encoder_args", tower}};
  EXPECT_EQ(Model(With(Case("mistral", 0), {{"multimodal", multimodal}}).dump()).Types().size(),
            2u);
  ExpectRefused(
      With(Case("mistral", 0), {{"vision_encoder", tower}, {"multimodal", multimodal}}).dump(),
      {"vision_encoder and multimodal.vision_encoder_args must not both"}, ROPE_ERROR_UNSUPPORTED);
}

TEST(MistralParams, HeadsOfATowerAreQuotients) {
  const auto with = [](int head_dim) {
    json config = Case("mistral", 1);
    config["vision_encoder"]["head_dim"] = head_dim;
    return config.dump();
  };
  EXPECT_EQ(Model(with(64)).Config("vision").head_dim, 64);
  ExpectRefused(with(96), {"vision_encoder.head_dim (96) must be 64"}, ROPE_ERROR_UNSUPPORTED);
}

TEST(MistralParams, TowersOfSoundAreANote) {  // Voxtral
  const json multimodal = {{"whisper_model_args", {{"encoder_args", {{"dim", 1280}}}}}};
  const Model model(With(Case("mistral", 0), {{"multimodal", multimodal}}).dump());
  EXPECT_EQ(model.Types().size(), 1u);
  const char* note = rope_model_note(model.get(), 1);
  ASSERT_NE(note, nullptr);
  EXPECT_NE(std::string(note).find("multimodal.whisper_model_args"), std::string::npos) << note;
}

TEST(ModelDialects, KindsOfLayersAreTransformersWord) {
  for (const char* dialect : {"meta", "mistral"}) {
    const json kinds = {{"layer_types", {"full_attention", "no_rope"}}};
    ExpectRefused(With(Case(dialect, 0), kinds).dump(),
                  {"layer_types ([\"full_attention\", \"no_rope\"]) must be absent"},
                  ROPE_ERROR_UNSUPPORTED);
  }
}

TEST(MistralParams, LatentAttentionTurnsTheEndOfAHead) {
  const rope_config config =
      Model(With(Case("mistral", 0), {{"qk_rope_head_dim", 64}, {"qk_nope_head_dim", 128}}).dump())
          .Config();
  EXPECT_EQ(config.head_dim, 192);
  EXPECT_EQ(config.rotary_dim, 64);
  EXPECT_EQ(config.rotary_offset, 128);
}

TEST(MegatronArgs, OtherKindsOfPositionsAreRefused) {
  ExpectRefused(With(Case("megatron", 0), {{"position_embedding_type", "learned_absolute"}}).dump(),
                {"position_embedding_type (\"learned_absolute\")", "do not rotate"});
  json config = Case("megatron", 0);
  config.erase("rotary_base");
  ExpectRefused(config.dump(), {"rotary_base"});
}

TEST(MegatronArgs, YarnHasAFactorOfItsOwn) {
  const json yarn = {{"position_embedding_type", "yarn"}, {"rotary_scaling_factor", 4}};
  ExpectRefused(With(Case("megatron", 0), yarn).dump(),
                {"yarn_rotary_scaling_factor is missing", "multi_latent_attention"});
}

// Without YaRN, too, Megatron scales the softmax; a context of DEFAULT has no such factor.
TEST(MegatronArgs, AScaleOfTheSoftmaxWithoutYarnIsRefused) {
  const json config = With(Case("megatron", 5), {{"rope_type", "rope"}});
  ExpectRefused(config.dump(), {"mscale_all_dim (0.5)"});
}

// What Megatron's own parser writes for a DeepSeek: no argument for the length, the betas and the
// type. The length was max_position_embeddings before megatron-core 0.14.
TEST(MegatronArgs, LatentAttentionHasTheDefaultsOfItsClass) {
  json config = Case("megatron", 5);
  const rope_config full = Model(config.dump()).Config();
  for (const char* key : {"original_max_position_embeddings", "beta_fast", "beta_slow"}) {
    config.erase(key);
  }
  config["rope_type"] = nullptr;
  ExpectRefused(With(config, {{"max_position_embeddings", 163840}}).dump(),
                {"original_max_position_embeddings is missing", "4096", "megatron-core 0.14"});
  const rope_config bare = Model(With(config, {{"max_position_embeddings", 4096}}).dump()).Config();
  EXPECT_EQ(bare.scaling, ROPE_SCALING_YARN);
  EXPECT_EQ(bare.original_max_position_embeddings, full.original_max_position_embeddings);
  EXPECT_EQ(bare.beta_fast, 32);
  EXPECT_EQ(bare.beta_slow, 1);
  EXPECT_EQ(bare.attention_factor, full.attention_factor);
  const json unscaled = {{"rotary_scaling_factor", 1}, {"max_position_embeddings", 8192}};
  EXPECT_EQ(Model(With(config, unscaled).dump()).Config().factor, 1);
  ExpectRefused(With(config, {{"max_position_embeddings", 4096}, {"beta_fast", nullptr}}).dump(),
                {"beta_fast (null)"}, ROPE_ERROR_UNSUPPORTED);
  ExpectRefused(With(Case("megatron", 5), {{"no_rope_freq", 4}}).dump(),
                {"no_rope_freq (4) must be null with latent attention"});
}

// Arguments of newer versions, written in any case.
TEST(MegatronArgs, OfOtherModelsPassWhereTheyAreOff) {
  const json off = {{"dsa_indexer_rope_interleaved", false},
                    {"is_hybrid_model", false},
                    {"hybrid_layer_pattern", nullptr},
                    {"experimental_attention_variant", nullptr}};
  EXPECT_EQ(Answer(With(Case("megatron", 0), off).dump()), Answer(Case("megatron", 0).dump()));
  ExpectRefused(With(Case("megatron", 0), {{"is_hybrid_model", true}}).dump(),
                {"is_hybrid_model (true)"}, ROPE_ERROR_UNSUPPORTED);
  ExpectRefused(With(Case("megatron", 0), {{"experimental_attention_variant", "dsa"}}).dump(),
                {"experimental_attention_variant"}, ROPE_ERROR_UNSUPPORTED);
}

// Its code of sections knows neither, and cuts neighbours into other sections.
TEST(MegatronArgs, SectionsExcludeScalingAndNeighbours) {
  const json mrope = {{"position_embedding_type", "mrope"}, {"mrope_section", {16, 24, 24}}};
  EXPECT_EQ(Model(With(Case("megatron", 0), mrope).dump()).Config().rounding, ROPE_ROUNDING_EAGER);
  for (const char* key : {"use_rope_scaling", "rotary_interleaved"}) {
    ExpectRefused(With(With(Case("megatron", 0), mrope), {{key, true}}).dump(),
                  {key, "(true) must be false", "mrope"});
  }
  const json older = {{"use_rotary_position_embeddings", true}};
  EXPECT_TRUE(Model(With(Case("megatron", 0), older).dump()));
  ExpectRefused(With(With(Case("megatron", 0), mrope), older).dump(),
                {"use_rotary_position_embeddings (true)"});
}

// megatron/core: null for either mscale is 0.1 * ln(factor) + 1.
TEST(MegatronArgs, MscalesOfYarnMayBeNull) {
  const json yarn = {{"position_embedding_type", "yarn"},
                     {"yarn_rotary_scaling_factor", 32.0},
                     {"yarn_original_max_position_embeddings", 4096},
                     {"yarn_beta_fast", 32.0},
                     {"yarn_beta_slow", 1.0},
                     {"yarn_mscale", nullptr},
                     {"yarn_mscale_all_dim", nullptr},
                     {"yarn_correction_range_round_to_int", false}};
  const rope_config config = Model(With(Case("megatron", 0), yarn).dump()).Config();
  EXPECT_DOUBLE_EQ(config.attention_factor, 0.1 * std::log(32.0) + 1);
  EXPECT_EQ(config.yarn_no_truncate, 1);
  EXPECT_EQ(config.rounding, ROPE_ROUNDING_EAGER);
}

TEST(MegatronArgs, LayersWithoutRopeAreCountedOrListed) {
  EXPECT_EQ(Model(With(Case("megatron", 0), {{"no_rope_freq", 4}}).dump()).Layers(5), "fffnf");
  const json list = {{"num_layers", 3}, {"no_rope_freq", {1, 0, 1}}};
  EXPECT_EQ(Model(With(Case("megatron", 0), list).dump()).Layers(4), "nfn.");
  ExpectRefused(With(Case("megatron", 0), {{"no_rope_freq", {1, 0}}}).dump(), {"no_rope_freq"});
}

TEST(MegatronArgs, FusionDecidesTheRounding) {
  EXPECT_EQ(Model(Case("megatron", 0).dump()).Config().rounding, ROPE_ROUNDING_FLOAT32);
  const json unfused = With(Case("megatron", 0), {{"apply_rope_fusion", false}});
  EXPECT_EQ(Model(unfused.dump()).Config().rounding, ROPE_ROUNDING_EAGER);
}

TEST(MegatronArgs, SectionsAreThoseOfThePairs) {
  const json mrope = {{"position_embedding_type", "mrope"}, {"mrope_section", {16, 24, 24}}};
  const rope_config config = Model(With(Case("megatron", 0), mrope).dump()).Config();
  EXPECT_EQ(config.axes, 3);
  EXPECT_EQ(config.mrope_section[2], 24);
  ExpectRefused(With(Case("megatron", 0), {{"position_embedding_type", "mrope"}}).dump(),
                {"mrope_section"});
}

TEST(MaxText, DividesButForYarn) {
  EXPECT_EQ(Model(Case("maxtext", 0).dump()).Config().angle, ROPE_ANGLE_DIVIDE);
  EXPECT_EQ(Model(Case("maxtext", 4).dump()).Config().angle, ROPE_ANGLE_FLOAT32);
}

TEST(MaxText, KindsOfGemma3) {
  const Model model(Case("maxtext", 2).dump());
  EXPECT_EQ(model.Layers(8), "sssssfss");
  EXPECT_EQ(model.Config("full_attention").factor, 8);
  EXPECT_EQ(model.Config("sliding_attention").theta, 10000);
}

TEST(MaxText, LeastTimescaleIsAFactor) {
  const json config = With(Case("maxtext", 0), {{"rope_min_timescale", 2}});
  EXPECT_EQ(Model(config.dump()).Config().theta, 250000);
  EXPECT_EQ(Model(config.dump()).Config().factor, 2);
  EXPECT_EQ(Model(config.dump()).Config().scaling, ROPE_SCALING_LINEAR);
}

TEST(MaxText, AsksForTheNameAndRefusesOtherModels) {
  json config = Case("maxtext", 0);
  config.erase("model_name");
  ExpectRefused(config.dump(), {"model_name"});
  ExpectRefused(With(Case("maxtext", 0), {{"model_name", "gemma4-26b"}}).dump(), {"gemma4-26b"});
  ExpectRefused(With(Case("maxtext", 0), {{"use_mrope", true}}).dump(), {"use_mrope (true)"},
                ROPE_ERROR_UNSUPPORTED);
  ExpectRefused(With(Case("maxtext", 0), {{"partial_rotary_factor", 0.5}}).dump(),
                {"partial_rotary_factor (0.5) must be 1", "decoder_block", "qwen3_next"});
  const json hybrid = {{"decoder_block", "qwen3_next"}, {"partial_rotary_factor", 0.01}};
  ExpectRefused(With(Case("maxtext", 0), hybrid).dump(),
                {"partial_rotary_factor (0.01) must be at most 1"});
}

// base.yml has them in every configuration.
TEST(MaxText, NumbersOfOtherPartsPass) {
  const json others = {{"max_timescale_for_audio", 10000.0},
                       {"rope_theta_for_vit", 10000},
                       {"compressed_rope_max_timescale", 160000},
                       {"global_rope_max_timescale", -1},
                       {"mrope_section", {24, 20, 20}},
                       {"use_mrope", false},
                       {"nope_layer_interval", -1}};
  for (size_t n : {size_t{0}, size_t{3}}) {
    EXPECT_EQ(Answer(With(Case("maxtext", n), others).dump()), Answer(Case("maxtext", n).dump()));
  }
}

// What the code of a decoder decides, and no key.
TEST(MaxText, LayersTurnAsTheCodeOfTheirDecoder) {
  const auto of = [](const char* block, const json& more) {
    return With({{"model_name", "default"},
                 {"decoder_block", block},
                 {"head_dim", 64},
                 {"base_num_decoder_layers", 8},
                 {"rope_max_timescale", 10000}},
                more)
        .dump();
  };
  EXPECT_EQ(Model(of("llama2", json::object())).Layers(9), "ffffffff.");
  const Model gpt(of("gpt3", json::object()));
  EXPECT_EQ(gpt.Types(), std::vector<std::string>{"nope"});
  EXPECT_EQ(gpt.Layers(9), "nnnnnnnn.");
  EXPECT_EQ(Model(of("gemma2", json::object())).Layers(17), std::string(16, 'f') + ".");
  const json cycle = {{"inhomogeneous_layer_cycle_interval", 4}};
  EXPECT_EQ(Model(of("qwen3_next", cycle)).Layers(9), "nnnfnnnf.");
  EXPECT_EQ(Model(of("olmo3", cycle)).Layers(9), "ffffffff.");
  const json nope = {{"nope_layer_interval", 4}};
  EXPECT_EQ(Model(of("llama4", nope)).Layers(9), "fffnfffn.");
  ExpectRefused(of("llama2", nope), {"nope_layer_interval (4)", "llama4"});
  for (const char* block : {"gemma4", "deepseek4", "simple", "nobody_knows"}) {
    ExpectRefused(of(block, json::object()), {"decoder_block", block});
  }
  ExpectRefused(of("llama2", {{"global_parameter_scale", 2}}), {"global_parameter_scale (2)"});
}

TEST(MaxText, LatentAttentionScalesTheSoftmaxWithoutYarn) {
  json config = Case("maxtext", 3);
  config["rope_type"] = "default";
  ExpectRefused(config.dump(), {"max_position_embeddings (163840)", "softmax"},
                ROPE_ERROR_UNSUPPORTED);
  config["max_position_embeddings"] = 4096;
  EXPECT_EQ(Model(config.dump()).Config().scaling, ROPE_SCALING_DEFAULT);
}

// mlx writes transformers' text with the widths of its numbers beside it; its weights keep their
// order.
TEST(QuantizedRepositories, OfMlxAreReadAsTransformersText) {
  const std::string plain = Llama("null");
  const std::string bits = R"({"group_size": 64, "bits": 4, "mode": "affine",
      "model.layers.0.self_attn.q_proj": {"group_size": 32, "bits": 8}})";
  const std::string quantized = plain.substr(0, plain.size() - 1) + R"(, "quantization": )" + bits +
                                R"(, "quantization_config": )" + bits + "}";
  const rope_config a = Model(plain).Config(), b = Model(quantized).Config();
  EXPECT_EQ(std::memcmp(&a, &b, sizeof(a)), 0);
}

// The config.json beside GGUF files often says no more: the GGUF file itself is to be read.
TEST(QuantizedRepositories, OfGgufWithoutSizesAreRefused) {
  ExpectRefused(R"({"model_type": "llama"})", {"hidden_size"});
}

}  // namespace
}  // namespace rope::testing
