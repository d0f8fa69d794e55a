// Every key that speaks of RoPE is used, known to change nothing, or refused by name: one at a time
// as they stand in files. model_insertion_test puts them everywhere.
#include <string>
#include <utility>
#include <vector>

#include "answer.h"
#include "testing.h"

namespace rope::testing {
namespace {

std::string With(const std::string& model_type, const std::string& entries) {
  return R"({"model_type": ")" + model_type +
         R"(", "hidden_size": 4096, "num_attention_heads": 32, "num_hidden_layers": 4,
           "max_position_embeddings": 8192, "rope_theta": 10000.0, )" +
         entries + "}";
}

void ExpectUnread(const std::string& text, const char* key) {
  ExpectRefused(text, {key}, ROPE_ERROR_UNSUPPORTED);
}

// --- beside the dictionary ----------------------------------------------------------------------

TEST(ModelUnread, SharesAreRefusedInClassesThatTurnTheWholeHead) {
  for (const char* type : {"llama", "mistral", "jetmoe", "qwen3"}) {
    for (const char* key : {"partial_rotary_factor", "rotary_pct", "rotary_percent"}) {
      ExpectUnread(With(type, '"' + std::string(key) + R"(": 0.5)"), key);
    }
    ExpectUnread(With(type, R"("rotary_dim": 32)"), "rotary_dim");
    EXPECT_EQ(Answer(With(type, R"("partial_rotary_factor": 1.0)")),
              Answer(With(type, R"("x": 1)")));
  }
}

TEST(ModelUnread, LayersWithoutRopeAreRefusedInClassesWithoutThem) {
  for (const char* type : {"qwen3", "llama"}) {
    ExpectUnread(With(type, R"("no_rope_layers": [1, 1, 1, 0])"), "no_rope_layers");
    ExpectUnread(With(type, R"("no_rope_layer_interval": 4)"), "no_rope_layer_interval");
    ExpectUnread(With(type, R"("nope_layer_interval": 4)"), "nope_layer_interval");
  }
  for (const char* label : {"no_rope", "full_attention_nope", "nope_attention", "rope_2d"}) {
    ExpectUnread(With("llama", R"("layer_types": ["full_attention", "full_attention", ")" +
                                   std::string(label) + R"(", "full_attention"])"),
                 label);
  }
  EXPECT_EQ(Model(With("llama", R"("layer_types": ["nope", "full_attention", "nope", "nope"])"))
                .Layers(4),
            "nfnn");
}

// What to say instead is told: a kind of layer, or of configuration.
TEST(ModelUnread, RopeThatIsOffIsRefused) {
  for (const char* off : {R"("use_rope": false)", R"("rotary": false)", R"("no_rope": true)",
                          R"("use_rotary_pos_emb": false)", R"("no_pos_emb": true)"}) {
    ExpectRefused(With("granite", off), {"\"nope\"", "layer_types", "ROPE_SCALING_NOPE"},
                  ROPE_ERROR_UNSUPPORTED);
  }
  EXPECT_EQ(Model(With("granite", R"("layer_types": ["nope", "nope", "nope", "nope"])")).Layers(4),
            "nnnn");
  ExpectUnread(With("granite", R"("use_rope": false)"), "use_rope (false)");
  ExpectUnread(With("llama", R"("attn_use_rope": false)"), "attn_use_rope");
  for (const char* kind : {"alibi", "nope", "learned", "relative_key", "absolute", "rope_2d"}) {
    ExpectUnread(With("granite", R"("position_embedding_type": ")" + std::string(kind) + '"'),
                 kind);
  }
  for (const char* kind : {"rope", "rotary", "rope_gpt_neox", "RoPE", "Rotary_Embedding"}) {
    EXPECT_TRUE(
        Model(With("granite", R"("position_embedding_type": ")" + std::string(kind) + '"')));
  }
}

// Keys that published files carry, and that change nothing in them.
TEST(ModelUnread, StrayKeysOfPublishedFilesPass) {
  constexpr struct {
    const char *model_type, *entries;
  } kFiles[] = {
      {"bamba", R"("attn_rotary_emb": 64, "attn_layer_indices": [1])"},
      {"chatglm", R"("kv_channels": 128, "original_rope": true, "rope_ratio": 1)"},
      {"cohere2", R"("position_embedding_type": "rope_gptj", "rotary_pct": 1.0)"},
      {"ernie4_5", R"("compression_ratio": 1.0, "rope_is_neox_style": false)"},
      {"glm4", R"("rope_traditional": true)"},
      {"gptj", R"("rotary": true, "rotary_dim": 64)"},
      {"hunyuan_v1_dense", R"("use_rotary_pos_emb": true, "rope_scaling": {"alpha": 1000.0,
          "beta_fast": 32, "beta_slow": 1, "factor": 1.0, "mscale": 1.0, "mscale_all_dim": 0.0,
          "type": "dynamic"})"},
      {"hunyuan_v1_moe", R"("position_embedding_xdrope": false)"},
      {"internlm2", R"("rope_scaling": {"type": "dynamic", "factor": 2.0}, "rope_scale": 1.0,
          "rope_pos_id_version": "default")"},
      {"lfm2", R"("theta": 10000.0)"},
      {"llama", R"("rope_interleaved": false, "rope_traditional": false, "use_fused_rope": true,
          "rope_scaling_type": null, "rope_scaling_factor": 1.0, "apply_rope_fusion": false)"},
      {"modernbert", R"("position_embedding_type": "absolute")"},
      {"modernbert", R"("position_embedding_type": "sans_pos")"},  // mmBERT
      {"modernbert-decoder", R"("position_embedding_type": "sans_pos")"},
      {"nemotron", R"("partial_rotary_factor": 0.5, "rope_percent": 0.5, "rope_percentage": 0.5)"},
      {"nomic_bert", R"("rotary_emb_fraction": 1.0, "rotary_emb_interleaved": false,
          "rotary_emb_scale_base": null, "rotary_scaling_factor": null)"},
      {"phi", R"("partial_rotary_factor": 0.5, "rotary_dim": 64)"},
      {"phi-msft", R"("rotary_dim": 32, "flash_rotary": false)"},  // Phixtral
      {"qwen2", R"("use_mrope": false)"},
      {"stablelm_epoch", R"("rope_pct": 0.25, "rotary_scaling_factor": 1.0)"},
  };
  for (const auto& file : kFiles) EXPECT_TRUE(Model(With(file.model_type, file.entries)));
}

// The same keys, where they say something.
TEST(ModelUnread, StrayKeysWithOtherValuesAreRefused) {
  ExpectUnread(With("modernbert", R"("position_embedding_type": "alibi")"), "(\"alibi\")");
  ExpectUnread(With("llama", R"("position_embedding_type": "sans_pos")"), "(\"sans_pos\")");
  ExpectUnread(With("nemotron", R"("rope_percentage": 0.25)"), "rope_percentage (0.25)");
  ExpectUnread(With("hunyuan_v1_moe", R"("position_embedding_xdrope": true)"), "(true)");
  ExpectUnread(With("internlm2", R"("rope_pos_id_version": "v2pe_fix")"), "(\"v2pe_fix\")");
}

// What a message shows can be copied into accepted_keys, or found in the text.
TEST(ModelUnread, UnusualKeysAreShownAsJsonWritesThem) {
  ExpectUnread(With("llama",
                    "\"rope_gr\xc3\xb6\xc3\x9f"
                    "e\": 5"),
               R"(rope_gr\u00f6\u00dfe (5))");
  ExpectUnread(With("llama", R"("rope\u0001theta": 5)"), R"(rope\u0001theta (5))");
  ExpectUnread(With("llama", "\"rope_\xf0\x9f\x98\x80\": 5"), R"(rope_\ud83d\ude00 (5))");
  const std::string deep = "\"" + std::string(200, 'x') + "\"";
  ExpectRefused(
      With("llama", "\"layers\": [{" + deep + R"(: {"rope_theta": 77}}])"),
      {"layers[0].xxx", "...rope_theta (77)", "may change the rotation", "accept it by name"},
      ROPE_ERROR_UNSUPPORTED);
}

TEST(ModelUnread, ListsAreShown) {
  ExpectUnread(With("llama", R"("mrope_section": [16, 24, 24])"), "mrope_section ([16, 24, 24])");
  ExpectUnread(
      With("llama", R"("nope_layers": [])" + std::string(R"(, "rope_list": [[1], {"a": 2}])")),
      "rope_list ([[..], {..}])");
  ExpectUnread(
      With("llama", R"("no_rope_layers": [1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0])"),
      "no_rope_layers ([1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, ..])");
}

TEST(ModelUnread, WordsOfOtherProgramsAreTranslated) {
  constexpr struct {
    const char *theirs, *ours;
  } kWords[] = {{"rope_factor", "factor"},
                {"rope_scale", "factor"},
                {"rope_percent", "partial_rotary_factor"},
                {"rotary_percentage", "partial_rotary_factor"}};
  for (const auto& word : kWords) {
    const std::string nearest = std::string("the nearest key is ") + word.ours + ":";
    ExpectUnread(With("llama", '"' + std::string(word.theirs) + R"(": 0.25)"), nearest.c_str());
  }
}

// Olmo Hybrid's released files have it so, and no RoPE.
// Zamba 2's own code raises theta then, transformers does not.
TEST(ModelUnread, LongContextOfZamba2IsRefused) {
  const char* const rope = R"("use_mem_rope": true, "attention_head_dim": 160, )";
  const auto zamba = [&](const char* flag) {
    return With("zamba2", std::string(rope) + R"("use_long_context": )" + flag);
  };
  EXPECT_TRUE(Model(zamba("false")));
  ExpectUnread(zamba("true"), "use_long_context (true)");
}

TEST(ModelUnread, ThetaThatIsNullMeansNoRope) {
  const std::string head = R"("layer_types": ["linear_attention", "full_attention",
      "linear_attention", "full_attention"], "rope_parameters": )";
  const auto hybrid = [&head](const std::string& dictionary) {
    return R"({"model_type": "olmo_hybrid", "hidden_size": 256, "num_attention_heads": 4,
        "num_hidden_layers": 4, )" +
           head + dictionary + "}";
  };
  EXPECT_EQ(Model(hybrid(R"({"rope_theta": null})")).Types(), std::vector<std::string>{"nope"});
  EXPECT_EQ(Model(hybrid(R"({"rope_theta": null, "rope_type": "default"})")).Types(),
            std::vector<std::string>{"nope"});
  EXPECT_EQ(Model(hybrid(R"({"rope_theta": 5e5})")).Config().theta, 5e5);
  ExpectUnread(hybrid("null"), "rope_parameters (null)");
}

TEST(ModelUnread, PairsThatTheModelDoesNotHaveAreRefused) {
  ExpectUnread(With("granite", R"("position_embedding_type": "rope_gptj")"), "rope_gptj");
  ExpectUnread(With("cohere2", R"("position_embedding_type": "rope_gpt_neox")"), "rope_gpt_neox");
  ExpectUnread(With("llama", R"("is_neox_style": false)"), "is_neox_style (false)");
  ExpectUnread(With("llama", R"("rope_traditional": true)"), "rope_traditional (true)");
  for (const char* key : {"rope_interleave", "rope_interleaved"}) {
    ExpectUnread(With("llama", '"' + std::string(key) + R"(": true)"), "of two halves");
    ExpectUnread(With("glm4", '"' + std::string(key) + R"(": false)"), "neighbours");
    EXPECT_TRUE(Model(With("llama", '"' + std::string(key) + R"(": false)")));
    EXPECT_TRUE(Model(With("glm4", '"' + std::string(key) + R"(": true)")));
  }
}

TEST(ModelUnread, ThetasOfOtherFamiliesAreRefused) {
  for (const char* key : {"rope_local_theta", "swa_rope_theta", "rope_local_base_freq_theta",
                          "fope_init_factor", "ropeLocalTheta"}) {
    const std::string word = key;
    if (word.rfind("fope", 0) == 0) {
      ExpectUnread(With("llama", R"("rope_scaling": {"type": "default", ")" + word + R"(": 0.5})"),
                   key);
    } else {
      ExpectUnread(With("llama", '"' + word + R"(": 1e6)"), key);
      ExpectUnread(With("nobody_knows", '"' + word + R"(": 1e6)"), key);
    }
  }
  ExpectUnread(With("llama", "\"rope_" + std::string(size_t{1} << 22, 'a') + "\": 1"), "rope_aaaa");
  ExpectUnread(With("ernie4_5", R"("compression_ratio": 2)"), "compression_ratio (2)");
  EXPECT_TRUE(Model(With("ernie4_5", R"("compression_ratio": 1.0)")));
}

TEST(ModelUnread, KeysAroundTheLanguageModelMustSayTheSame) {
  const std::string text = R"("text_config": {"model_type": "qwen2", "hidden_size": 3584,
      "num_attention_heads": 28, "rope_theta": 1e6})";
  const auto around = [&text](const std::string& entries) {
    return R"({"model_type": "nobody_knows", )" + entries + ", " + text + "}";
  };
  EXPECT_TRUE(Model(around(R"("rope_theta": 1000000)")));  // says it again
  ExpectUnread(around(R"("rope_theta": 5e5)"), "rope_theta (500000)");
  ExpectUnread(around(R"("mrope_section": [16, 24, 24])"), "mrope_section ([16, 24, 24])");
  ExpectUnread(around(R"("rope_parameters": {"rope_type": "yarn"})"), "rope_parameters");
  ExpectUnread(
      R"({"model_type": "qwen3_omni_moe", "thinker_config": {"rope_theta": 5, )" + text + "}}",
      "thinker_config.rope_theta (5)");
  ExpectUnread(around(R"("llm_config": {"model_type": "llama"})"), "text_config and llm_config");
  ExpectUnread(around(R"("attention": {"rope_theta": 5e5})"), "attention.rope_theta (500000)");
  EXPECT_TRUE(Model(around(R"("attention": {"rope_theta": 1e6})")));
}

// A multimodal file may repeat what the language model's class has anyway.
TEST(ModelUnread, ThetaAroundTheLanguageModelMayBeThatOfItsClass) {
  const auto around = [](const char* theta, const char* text) {
    return R"({"model_type": "llava", "rope_theta": )" + std::string(theta) +
           R"(, "text_config": {"model_type": ")" + text + R"("}})";
  };
  EXPECT_EQ(Model(around("10000.0", "llama")).Config().theta, 1e4);
  EXPECT_EQ(Model(around("1000000", "mixtral")).Config().theta, 1e6);
  ExpectUnread(around("1000000", "llama"), "rope_theta (1000000)");
  ExpectUnread(around("10000", "mixtral"), "rope_theta (10000)");
  // two kinds of layers, two thetas
  ExpectUnread(around("10000", "gemma3_text"), "rope_theta (10000)");
  ExpectUnread(around("1000000", "gemma3_text"), "rope_theta (1000000)");
}

// --- in the dictionary --------------------------------------------------------------------------

TEST(ModelUnread, ADictionaryInsideADictionaryIsToldFromAKind) {
  for (const char* outer : {"rope_parameters", "rope_scaling"}) {
    for (const char* inner : {"rope_parameters", "rope_scaling"}) {
      const std::string path = std::string(outer) + "." + inner;
      for (const char* type : {"llama", "gemma4", "nobody_knows"}) {
        ExpectRefused(With(type, '"' + std::string(outer) + R"(": {"rope_theta": 10000, ")" +
                                     inner + R"(": {"type": "yarn", "factor": 4}})"),
                      {path.c_str(), "must not stand inside a rope dictionary"},
                      ROPE_ERROR_UNSUPPORTED);
      }
    }
  }
}

TEST(ModelUnread, NumbersOfOtherProgramsAreRefused) {
  const auto yarn = [](const std::string& entry) {
    return Llama(R"({"rope_type": "yarn", "factor": 4, )" + entry + "}");
  };
  ExpectUnread(yarn(R"("attn_factor": 0.5)"), "rope_scaling.attn_factor (0.5)");
  ExpectUnread(yarn(R"("extrapolation_factor": 0.5)"), "extrapolation_factor");
  ExpectUnread(yarn(R"("apply_yarn_scaling": false)"), "apply_yarn_scaling");
  ExpectUnread(yarn(R"("mscale": 0.7)"), "mscale");
  ExpectUnread(yarn(R"("low_freq_factor": 2)"), "low_freq_factor");
  const std::string plain = Answer(yarn(R"("beta_fast": 32)"));
  for (const char* harmless :
       {R"("attn_factor": 1)", R"("extrapolation_factor": 1.0)", R"("apply_yarn_scaling": true)",
        R"("finetuned": true)", R"("llama_4_scaling_beta": 0.1)", R"("low_freq_factor": null)"}) {
    EXPECT_EQ(Answer(yarn(R"("beta_fast": 32, )" + std::string(harmless))), plain) << harmless;
  }
  ExpectUnread(Llama(R"({"rope_type": "default", "factor": 4})"), "rope_scaling.factor (4)");
  ExpectUnread(Llama(R"({"rope_type": "llama3", "factor": 8, "low_freq_factor": 1,
      "high_freq_factor": 4, "original_max_position_embeddings": 8192, "beta_fast": 16})"),
               "beta_fast (16)");
  ExpectUnread(Llama(R"({"rope_type": "dynamic", "factor": 8,
      "original_max_position_embeddings": 4096})"),
               "count");
}

TEST(ModelUnread, DictionariesAloneAreReadWhole) {
  ExpectUnread(R"({"rope_type": "linear", "factor": 4, "attn_factor": 2})", "attn_factor (2)");
  ExpectUnread(R"({"full_attention": {"rope_type": "default", "rope_theta": 1e4},
      "sliding_attention": {"rope_type": "default", "rope_theta": 1e4, "fope": 1}})",
               "sliding_attention.fope");
}

TEST(ModelUnread, InterleavedSectionsMustBeThoseOfTheClass) {
  const auto with = [](const char* type, const char* entry) {
    return R"({"model_type": ")" + std::string(type) + R"(", "head_dim": 128, "rope_parameters":
        {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [24, 20, 20], )" +
           entry + "}}";
  };
  EXPECT_TRUE(Model(with("qwen3_vl_text", R"("mrope_interleaved": true)")));
  EXPECT_TRUE(Model(with("qwen2_vl_text", R"("mrope_interleaved": false)")));
  ExpectRefused(with("qwen3_vl_text", R"("mrope_interleaved": false)"), {"must be true"});
  ExpectRefused(with("qwen2_vl_text", R"("mrope_interleaved": true)"), {"must be false"});
}

// --- in towers ----------------------------------------------------------------------------------

TEST(ModelUnread, VisionTowersAreReadWhole) {
  const auto tower = [](const std::string& entry) {
    return R"({"model_type": "pixtral", "head_dim": 64, )" + entry + "}";
  };
  EXPECT_TRUE(Model(tower(R"("rope_parameters": {"rope_type": "default", "rope_theta": 1e4})")));
  ExpectRefused(tower(R"("rope_parameters": {"rope_type": "linear", "factor": 2})"),
                {"rope_parameters.rope_type (\"linear\")"});
  ExpectUnread(tower(R"("rope_parameters": {"rope_theta": 1e4, "rope_mixed": true})"),
               "rope_mixed");
  ExpectUnread(tower(R"("use_mixed_rope": true)"), "use_mixed_rope");
}

// --- where a reader does not look ----------------------------------------------------------------

constexpr char kYarn[] =
    R"({"rope_type": "yarn", "factor": 4, "original_max_position_embeddings": 4096})";

TEST(ModelUnread, DictionariesInsideDictionariesAreRefused) {
  const std::string kinds =
      R"({"full_attention": {"rope_theta": 1e6, "rope_scaling": )" + std::string(kYarn) + "}}";
  ExpectUnread(R"({"model_type": "gemma3", "head_dim": 64, "rope_parameters": )" + kinds + "}",
               "full_attention.rope_scaling");
  ExpectUnread(kinds, "full_attention.rope_scaling");
  ExpectUnread(R"({"rope_theta": 777, "rope_type": "yarn", "full_attention": {"rope_theta": 1e6}})",
               "rope_theta (777)");
  ExpectRefused(R"({"rope_thta": 777, "full_attention": {"rope_theta": 1e6}})",
                {"rope_thta (777) must be spelt rope_theta"});
  ExpectUnread(With("nobody_knows", R"("attn_config": {"rope": false})"),
               "attn_config.rope (false)");
  ExpectUnread(With("llama", R"("attention": {"rope_theta": 5e5})"), "attention.rope_theta");
  EXPECT_TRUE(Model(With("llama", R"("attention": {"rope_theta": 1e4})")));
}

TEST(ModelUnread, EntriesOfLayersAreReadWhole) {
  for (const char* layer : {"1", "9", "03"}) {
    ExpectUnread(With("llama", R"("per_layer_config": {")" + std::string(layer) +
                                   R"(": {"rope_theta": 777}})"),
                 "rope_theta (777)");
  }
  ExpectUnread(With("nobody_knows", R"("no_rope_layers": [0, 1, 1, 1],
      "layer_rope_theta": [1e4, 1e4, 1e4, 1e4])"),
               "layer_rope_theta[0] (10000)");
  const Model model(R"({"model_type": "nobody_knows", "head_dim": 64, "num_hidden_layers": 4,
      "no_rope_layers": [1, 1, 1, 0], "layer_types": ["sliding_attention", "sliding_attention",
      "full_attention", "full_attention"], "rope_parameters": {
      "full_attention": {"rope_theta": 1e6}, "sliding_attention": {"rope_theta": 1e4}}})");
  EXPECT_EQ(model.Layers(4), "ssfn");
}

TEST(ModelUnread, SwitchesOfPositionsAreSeen) {
  ExpectUnread(With("llama", R"("use_pos_emb": false)"), "use_pos_emb (false)");
  ExpectUnread(With("llama", R"("no_pos_emb": true)"), "no_pos_emb (true)");
  ExpectUnread(With("llama", R"("position_interpolation": true)"), "position_interpolation");
  for (const char* key : {"no_pe_layers", "nopos_layers"}) {
    ExpectUnread(With("llama", '"' + std::string(key) + R"(": [1])"), key);
  }
  ExpectUnread(With("llama", R"("interleaved": true)"), "interleaved (true)");
  ExpectUnread(With("llama", R"("is_neox": false)"), "is_neox (false)");
  ExpectUnread(With("glm4", R"("rotate_half": true)"), "rotate_half (true)");
  EXPECT_TRUE(Model(With("llama", R"("use_pos_emb": true, "no_pos_emb": false, "is_neox": true,
      "rotate_half": true, "interleaved": false, "position_interpolation": false)")));
}

TEST(ModelUnread, WordsInCapitalsAreSeen) {
  for (const char* key : {"useRoPE", "useROPE", "NTKAlpha", "dynamicNTK", "mrope2", "rotarypct",
                          "rotary_emb2", "use_xpos", "RoPE"}) {
    ExpectUnread(With("llama", '"' + std::string(key) + R"(": 3)"), key);
  }
  ExpectUnread(With("llama", R"("layer_types": ["NoPE", "NoPE", "full_attention", "NoPE"])"),
               "NoPE");
  EXPECT_TRUE(Model(With("llama", R"("europe": 1, "property": 2, "dropePoint": null)")));
}

TEST(ModelUnread, OtherPositionsAreSeenInTheWordsOfAllPrograms) {
  for (const char* key :
       {"position_embedding", "position_embeddings", "pos_emb", "pos_embd", "pos_type",
        "position_type", "pos_embedding_style", "posenc", "pos_embedding_type",
        "positional_embedding_type", "positional_encoding", "pos_enc", "pe_type", "pe"}) {
    for (const char* kind : {"alibi", "learned", "none"}) {
      ExpectUnread(With("llama", '"' + std::string(key) + R"(": ")" + kind + '"'), key);
    }
    ExpectUnread(With("llama", '"' + std::string(key) + R"(": {"kind": "alibi"})"), key);
    for (const char* harmless : {R"("rope")", R"("rotary")", "null", "64", "{}"}) {
      EXPECT_TRUE(Model(With("llama", '"' + std::string(key) + "\": " + harmless)));
    }
  }
}

TEST(ModelUnread, NumbersOfRopeAreSeenBesideTheDictionary) {
  for (const char* key : {"short_factor", "long_factor", "inv_freq", "freq_base", "freqBase",
                          "local_base_freq", "yarnfactor", "yarnFactor", "ntkfactor"}) {
    ExpectUnread(With("llama", '"' + std::string(key) + R"(": [2, 3])"), key);
    ExpectUnread(With("nobody_knows", '"' + std::string(key) + R"(": 3)"), key);
  }
}

// Keys of a rope dictionary that stand beside it, where no class reads them.
TEST(ModelUnread, KeysOfADictionaryAreSeenBesideIt) {
  constexpr const char* kNumbers[] = {"alpha",           "attention_factor", "base",
                                      "beta_fast",       "beta_slow",        "factor",
                                      "freqs_base",      "long_mscale",      "frequency_base",
                                      "low_freq_factor", "high_freq_factor", "max_wavelength",
                                      "mscale",          "position_scale",   "rot_dim",
                                      "qk_rot_dim",      "scaling_factor",   "short_mscale",
                                      "timescale"};
  for (const char* type : {"llama", "qwen3", "glm4", "gemma3", "nobody_knows"}) {
    for (const char* key : kNumbers) {
      ExpectUnread(With(type, '"' + std::string(key) + R"(": 7)"), key);
    }
    ExpectUnread(With(type, R"("truncate": false)"), "truncate (false)");
  }
  const std::string plain = Answer(With("llama", R"("x": 1)"));
  for (const char* harmless :
       {R"("alpha": 1.0)", R"("base": "somebody/model")", R"("beta_fast": 32, "beta_slow": 1)",
        R"("factor": 1, "mscale": 1.0)", R"("truncate": true)", R"("scaling_factor": 1.0)",
        R"("original_max_position_embeddings": 4096)", R"("LFE_num_scale": 5)"}) {
    EXPECT_EQ(Answer(With("llama", harmless)), plain) << harmless;
  }
}

TEST(ModelUnread, DictionariesInListsAreReadWhole) {
  ExpectUnread(With("llama", R"("layers": [{"size": 1}, {"rope_theta": 5e5}])"),
               "layers[1].rope_theta (500000)");
  ExpectUnread(With("llama", R"("blocks": [{"attention": {"use_rope": false}}])"),
               "blocks[0].attention.use_rope (false)");
  EXPECT_TRUE(Model(With("llama", R"("layers": [{"rope_theta": 10000}, 3, [], "rope"])")));
}

TEST(ModelUnread, LayersOfAnUnknownKindAreRefused) {
  for (const char* label :
       {"full_attention_no_position", "attention_without_positions", "absolute"}) {
    ExpectUnread(With("llama", R"("layer_types": ["full_attention", ")" + std::string(label) +
                                   R"(", "full_attention", "full_attention"])"),
                 label);
  }
  EXPECT_TRUE(Model(With("llama", R"("layer_types": ["attention", "sliding_attention", "attention",
      "chunked_attention"])")));
}

// transformers makes a configuration of its class's defaults then.
TEST(ModelUnread, AnEmptyLanguageModelIsRefused) {
  ExpectUnread(With("t5gemma", R"("decoder": {})"), "decoder ({}) must not be empty");
  ExpectUnread(With("qwen2_vl", R"("text_config": {})"), "text_config ({}) must not be empty");
}

// transformers does not read the keys around it.
TEST(ModelUnread, AnAbsentDecoderIsRefused) {
  for (const auto& [type, key] :
       {std::pair{"t5gemma", "decoder"}, {"t5gemma2", "decoder"}, {"dia", "decoder_config"}}) {
    ExpectRefused(With(type, R"("head_dim": 64)"), {key, "is missing"});
    for (const char* size : {"head_dim", "hidden_size", "num_hidden_layers"}) {
      ExpectRefused(R"({"model_type": ")" + std::string(type) + R"(", ")" + size + R"(": 64})",
                    {key, "is missing"});
    }
    EXPECT_TRUE(Model(R"({"model_type": ")" + std::string(type) + R"(", "vocab_size": 64})"));
  }
}

TEST(ModelUnread, RopeOfModelsWithoutRopeIsRefused) {
  const std::string yarn = R"("rope_scaling": )" + std::string(kYarn);
  ExpectUnread(With("kimi_linear", R"("mla_use_nope": false)"), "mla_use_nope");
  ExpectUnread(With("falcon", R"("alibi": true, )" + yarn), "rope_scaling.rope_type");
  ExpectUnread(With("jamba", R"("use_rope": true)"), "use_rope");
  ExpectUnread(With("granitemoehybrid", R"("position_embedding_type": "Rope")"), "Rope");
  ExpectUnread(R"({"model_type": "olmo_hybrid", "head_dim": 64, "num_hidden_layers": 2,
      "layer_types": ["full_attention", "full_attention"],
      "rope_parameters": {"rope_theta": null, "rope_type": "yarn", "factor": 3}})",
               "rope_type");
  EXPECT_TRUE(Model(With("nemotron_h", R"("partial_rotary_factor": 1.0)")));
}

TEST(ModelUnread, SwitchesThatProgramsReadInTwoWaysAreRefused) {
  ExpectUnread(With("gpt_oss", R"("rope_scaling": null)"), "rope_scaling says nothing");
  ExpectUnread(With("apertus", R"("rope_parameters": {})"), "rope_parameters says nothing");
  ExpectUnread(With("phi", R"("partial_rotary_factor": null)"), "partial_rotary_factor (null)");
  for (const char* key : {"rope_3d", "use_3d_rope"}) {
    ExpectUnread(With("llama", "\"" + std::string(key) + "\": true"), key);
  }
  const std::string latent = R"("qk_nope_head_dim": 128, "qk_rope_head_dim": 0)";
  for (const char* type : {"deepseek_v3", "llama", "nobody_knows"}) {
    ExpectRefused(With(type, latent), {"qk_rope_head_dim (0) must be positive"});
  }
  const auto phimoe = [](const std::string& entries) {
    return R"({"model_type": "phimoe", "head_dim": 4, "max_position_embeddings": 8192,
        "rope_scaling": {"rope_type": "longrope", "short_factor": [1, 1], "long_factor": [2, 2],
        "original_max_position_embeddings": 4096, )" +
           entries + "}}";
  };
  ExpectUnread(phimoe(R"("short_mscale": 1.3)"), "short_mscale (1.3)");
  ExpectUnread(phimoe(R"("attention_factor": 1.0, "short_mscale": 1.3, "long_mscale": 1.3)"),
               "attention_factor (1)");
  ExpectUnread(Llama(R"({"rope_type": "yarn", "factor": 4, "mscale_all_dim": 0.5})"),
               "mscale_all_dim (0.5)");
  ExpectUnread(R"({"model_type": "deepseek_v4", "head_dim": 512, "rope_theta": 1e4,
      "compress_ratios": [0, 4], "rope_scaling": {"rope_type": "yarn", "factor": 4,
      "original_max_position_embeddings": 4096, "rope_theta": 777}})",
               "rope_theta (777)");
  ExpectRefused(Llama(R"({"rope_type": "default", "mrope_section": [7]})"), {"adds up to 7"});
  ExpectUnread(R"({"model_type": "qwen3_omni_moe", "rope_scaling": )" + std::string(kYarn) +
                   R"(, "thinker_config": )" + With("qwen3_moe", R"("x": 1)") + "}",
               "rope_scaling");
}

TEST(ModelUnread, OtherWordsForTheHeadMustAgree) {
  for (const char* key : {"attention_head_dim", "kv_channels", "head_size", "d_head"}) {
    ExpectUnread(With("nobody_knows", '"' + std::string(key) + R"(": 64)"), key);
    EXPECT_TRUE(Model(With("nobody_knows", '"' + std::string(key) + R"(": 128)")));
    EXPECT_TRUE(
        Model(With("nobody_knows", R"("head_dim": 64, ")" + std::string(key) + R"(": 64)")));
  }
}

TEST(ModelUnread, TheSameInOtherWordsPasses) {
  const std::string text = R"("text_config": {"model_type": "qwen2_vl_text", "head_dim": 128,
      "rope_parameters": {"rope_theta": 1e6, "rope_type": "default", "mrope_section": [16, 24, 24]}})";
  EXPECT_TRUE(Model(R"({"model_type": "qwen2_vl", "rope_theta": 1e6, )" + text + "}"));
  EXPECT_TRUE(Model(R"({"model_type": "qwen2_vl_text", "head_dim": 128, "rope_theta": 1e6,
      "rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]},
      "rope_parameters": {"rope_type": "default", "mrope_section": [16, 24, 24]}})"));
  ExpectRefused(Llama(R"({"rope_type": "yarn", "factor": 4, "attn_factor": 0.878})"),
                {"the nearest key is attention_factor"}, ROPE_ERROR_UNSUPPORTED);
}

// --- published configurations that were once read as plain RoPE
// -----------------------------------

TEST(ModelUnread, SectionsBesideTheLanguageModelAreRefused) {  // but in bailing_moe_v3_vl
  ExpectUnread(R"({"model_type": "nobody_knows", "mrope_section": [12, 10, 10],
      "text_config": {"model_type": "bailing_hybrid", "hidden_size": 2048, "num_attention_heads": 16,
      "num_hidden_layers": 20, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128,
      "rope_theta": 600000}})",
               "mrope_section ([12, 10, 10])");
}

TEST(ModelUnread, TheSecondThetaOfPlamo3IsThatOfItsSlidingLayers) {
  const Model model(With("plamo3", R"("rope_local_theta": 20000, "sliding_window_pattern": 4)"));
  EXPECT_EQ(model.Layers(4), "sssf");
  EXPECT_EQ(model.Config("full_attention").theta, 10000);
  EXPECT_EQ(model.Config("sliding_attention").theta, 20000);
  ExpectRefused(With("plamo3", R"("sliding_window_pattern": 4)"), {"rope_local_theta is missing"});
  ExpectUnread(With("nobody_knows", R"("rope_local_theta": 20000)"), "rope_local_theta (20000)");
}

TEST(ModelUnread, AttentionWithoutRopeIsRefused) {  // but in minicpm_sala
  ExpectUnread(With("minicpm", R"("attn_use_rope": false, "lightning_use_rope": true)"),
               "attn_use_rope (false)");
}

TEST(ModelUnread, RopeTypeBesideTheDictionaryIsGroks) {
  EXPECT_EQ(Model(With("grok-1", R"("rope_type": "original", "scaling_factor": 16.0,
      "rope_rotate_half_dims": false)"))
                .Config()
                .scaling,
            ROPE_SCALING_DEFAULT);
  ExpectUnread(With("grok-1", R"("rope_type": "yarn_log")"), "rope_type (\"yarn_log\")");
  ExpectUnread(With("grok-1", R"("rope_rotate_half_dims": true)"), "rope_rotate_half_dims (true)");
  for (const char* type : {"git", "nobody_knows", "llama"}) {
    ExpectUnread(With(type, R"("rope_type": "original")"), "rope_type (\"original\")");
  }
}

TEST(ModelUnread, FourierSeriesInAKnownFamilyAreRefused) {  // FoPE: Intern-S1-Pro
  for (const char* key : {"fope_sep_head", "fope_init_factor", "num_inv_freq", "use_fope"}) {
    for (const char* type : {"qwen3", "qwen3_moe"}) {
      ExpectUnread(With(type, R"("rope_scaling": {"rope_type": "default", ")" + std::string(key) +
                                  R"(": 1})"),
                   key);
    }
  }
}

TEST(ModelUnread, InterleavingOfAnotherProgramIsRefused) {
  for (const char* type : {"glm4v_text", "glm4v_moe_text"}) {
    ExpectUnread(R"({"model_type": ")" + std::string(type) + R"(", "head_dim": 128,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5,
        "mrope_section": [8, 12, 12], "mrope_interleaved_glm": true}})",
                 "mrope_interleaved_glm (true)");
  }
}

}  // namespace
}  // namespace rope::testing
