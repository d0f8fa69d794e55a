// Every tower has words of its own for the width of its heads and for theta, as its class reads
// them (transformers' configuration and modelling files; kimi_k3, dots_ocr and mimo_v2 as engines
// do). Those of other classes are refused unless they repeat what is used.
#include <cmath>
#include <initializer_list>
#include <string>
#include <vector>

#include "answer.h"
#include "testing.h"

namespace rope::testing {
namespace {

std::string Whole(const std::string& model_type, const std::string& tower) {
  return R"({"model_type": ")" + model_type +
         R"(", "text_config": {"model_type": "qwen2", "hidden_size": 2048, "num_attention_heads": 16,
           "num_hidden_layers": 1}, "vision_config": {)" +
         tower + "}}";
}

int HeadOf(const std::string& model_type, const std::string& tower) {
  const Model model(Whole(model_type, tower));
  return model ? model.Config("vision").head_dim : 0;
}

void ExpectNoTower(const std::string& model_type, const std::string& tower) {
  EXPECT_EQ(Model(Whole(model_type, tower)).Types(), std::vector<std::string>{"full_attention"});
}

void ExpectWordRefused(const std::string& model_type, const std::string& tower,
                       std::initializer_list<const char*> parts) {
  ExpectRefused(Whole(model_type, tower), parts, ROPE_ERROR_UNSUPPORTED);
}

TEST(ModelTowers, ReadTheWordsOfTheirClass) {
  constexpr struct {
    const char *model_type, *sizes;
    int head_dim;
  } kOwn[] = {
      {"qwen2_vl", R"("embed_dim": 1280, "num_heads": 16)", 80},
      {"qwen2_vl", R"("embed_dim": 1280, "num_heads": 16, "hidden_size": 3584)", 80},
      {"dots_ocr", R"("embed_dim": 1536, "num_attention_heads": 12, "hidden_size": 4096)", 128},
      {"qwen2_5_vl", R"("hidden_size": 1280, "num_heads": 16)", 80},
      {"qwen2_5_vl", R"("hidden_size": 1280, "num_attention_heads": 16)", 80},
      {"qwen2_5_omni", R"("hidden_size": 1280, "embed_dim": 1280, "num_heads": 16)", 80},
      {"paddleocr_vl", R"("hidden_size": 1152, "num_attention_heads": 16)", 72},
      {"dots3_note", R"("embed_dim": 1536, "num_heads": 12)", 128},
      {"dots3_note", R"("hidden_size": 1536, "num_attention_heads": 24)", 64},
      {"step3p7", R"("width": 1536, "heads": 16)", 96},
      {"step3p7", R"("hidden_size": 1536, "num_attention_heads": 12)", 128},
      {"kimi_k25", R"("vt_hidden_size": 1152, "vt_num_attention_heads": 8)", 144},
      {"kimi_k25", R"("hidden_size": 1152, "num_attention_heads": 8)", 144},
      {"kimi_k25", R"("depth": 27)", 72},
      {"llama4", R"("hidden_size": 1408, "num_attention_heads": 16, "head_dim": 88)", 88},
      {"gemma4", R"("hidden_size": 1152, "num_attention_heads": 16, "head_dim": 72)", 72},
      {"gemma4", R"("hidden_size": 1152, "num_attention_heads": 16)", 64},
      {"mimo_v2", R"("hidden_size": 1280, "num_heads": 16, "qk_channels": 48)", 48},
      {"mimo_v2", R"("hidden_size": 1280, "num_heads": 16)", 64},
      {"qwen3_vl", R"("head_dim": 72)", 72},
  };
  for (const auto& tower : kOwn) {
    EXPECT_EQ(HeadOf(tower.model_type, tower.sizes), tower.head_dim)
        << tower.model_type << " " << tower.sizes;
  }
}

TEST(ModelTowers, WordsOfOtherClassesMustSayTheSame) {
  ExpectWordRefused("qwen2_5_vl", R"("hidden_size": 1280, "num_heads": 16, "embed_dim": 1024)",
                    {"vision_config.embed_dim (1024)", "hidden_size (1280)"});
  ExpectWordRefused("qwen2_5_vl", R"("embed_dim": 1280, "num_heads": 16)",
                    {"vision_config.embed_dim (1280)", "hidden_size or its default"});
  ExpectWordRefused("paddleocr_vl", R"("hidden_size": 1152, "num_heads": 16)",
                    {"vision_config.num_heads (16)", "num_attention_heads or its default"});
  ExpectWordRefused("qwen3_vl", R"("hidden_size": 1152, "num_heads": 16, "width": 1024)",
                    {"vision_config.width (1024)"});
  ExpectWordRefused("pixtral", R"("model_type": "pixtral", "hidden_size": 1024,
                        "num_attention_heads": 16, "vt_num_attention_heads": 8)",
                    {"vision_config.vt_num_attention_heads (8)"});
  ExpectRefused(Whole("qwen2_5_vl", R"("hidden_size": 1280, "num_heads": 16,
                    "num_attention_heads": 8)"),
                {"vision_config.num_attention_heads (8) must be num_heads (16)"});
  ExpectRefused(Whole("step3p7", R"("width": 1536, "hidden_size": 1024, "heads": 16)"),
                {"vision_config.hidden_size (1024) must be width (1536)"});
  for (const char* type : {"llama4", "qwen2_5_vl", "lfm3_vl"}) {
    for (const char* word : {"head_dim", "qk_channels"}) {
      ExpectWordRefused(
          type,
          R"("hidden_size": 1280, "num_attention_heads": 16, ")" + std::string(word) + R"(": 96)",
          {word, "(96) must be 80"});
    }
  }
  ExpectWordRefused("gemma4", R"("hidden_size": 768, "num_attention_heads": 12, "qk_channels": 32)",
                    {"vision_config.qk_channels (32) must be 64"});
}

TEST(ModelTowers, AWidthThatIsNotSaidIsNotGuessed) {
  ExpectNoTower("qwen2_vl", R"("hidden_size": 3584, "num_heads": 16)");
  ExpectNoTower("qwen3_vl", R"("hidden_size": 1152)");
  ExpectRefused(Whole("kimi_k25", R"("hidden_size": 1152)"),
                {"vision_config.vt_num_attention_heads is missing"});
  ExpectRefused(Whole("qwen3_vl", R"("hidden_size": 1150, "num_heads": 16)"),
                {"vision_config.num_heads (16) must divide hidden_size (1150)"});
  ExpectWordRefused("gemma4", R"("head_dim": null)", {"vision_config.head_dim (null)"});
}

// It turns by them in transformers, be its sizes those of the class.
TEST(ModelTowers, WithoutATypeSayNoMoreOfTheirRopeThanTheClass) {
  constexpr struct {
    const char *model_type, *sizes, *theta;
  } kTowers[] = {
      {"qwen2_vl", R"("hidden_size": 3584)", "10000"},
      {"qwen2_5_vl", R"("hidden_size": 1280)", "10000"},
      {"qwen3_vl", R"("num_heads": 16)", "10000"},
      {"lfm3_vl", R"("depth": 27)", "1000000"},
      {"paddleocr_vl", R"("num_attention_heads": 16)", "10000"},
  };
  for (const auto& tower : kTowers) {
    const auto with = [&tower](const std::string& entry) {
      return std::string(tower.sizes) + ", " + entry;
    };
    const std::string theta = R"("rope_theta": )" + std::string(tower.theta);
    ExpectNoTower(tower.model_type, with(theta));
    ExpectNoTower(tower.model_type,
                  with(R"("rope_parameters": {"rope_type": "axial", )" + theta + "}"));
    for (const char* other :
         {R"("rope_theta": 5000)", R"("rope_theta": null)", R"("partial_rotary_factor": 0.5)",
          R"("rope_scaling": {"rope_type": "linear", "factor": 2})"}) {
      const std::string key = std::string(other).substr(1, std::string(other).find(':') - 2);
      ExpectWordRefused(tower.model_type, with(other), {("vision_config." + key).c_str()});
    }
    ExpectWordRefused(tower.model_type, with(R"("rope_parameters": {"rope_theta": 5000})"),
                      {"vision_config.rope_parameters.rope_theta (5000)"});
    ExpectRefused(Whole(tower.model_type, with(R"("rope_parameters": {"rope_type": "dynamic"})")),
                  {"vision_config.rope_parameters.rope_type (\"dynamic\")"});
  }
}

// The class of the whole has one for its tower, too; others go by what the tower calls itself.
TEST(ModelTowers, AreOfTheClassOfTheWhole) {
  const std::string sizes = R"("hidden_size": 1024, "num_attention_heads": 16, "model_type": )";
  for (const char* type : {R"("clip_vision_model")", R"("pixtral")", R"("llama4_vision_model")"}) {
    EXPECT_EQ(Answer(Whole("qwen3_vl", sizes + type)),
              Answer(Whole("qwen3_vl", sizes + R"("qwen3_vl")")));
  }
  EXPECT_EQ(Model(Whole("llava", sizes + R"("pixtral")")).Config("vision").rounding,
            ROPE_ROUNDING_EAGER);
  ExpectNoTower("llava", sizes + R"("clip_vision_model")");
}

// SigLIP 2 with learned positions.
TEST(ModelTowers, ThatOfCosmos3EdgeHasNoRope) {
  ExpectNoTower("cosmos3_edge", R"("model_type": "cosmos3_edge_vision", "hidden_size": 1152,
      "num_attention_heads": 16)");
}

double SecondFrequency(const std::string& text) {
  const Model model(text);
  return model ? model.Config("vision").inv_freq[1] : 0;
}

TEST(ModelTowers, ThetaStandsInsideOrBesideTheDictionary) {
  const std::string sizes = R"("hidden_size": 1024, "num_heads": 16)";
  const double want = std::pow(77.0, -4.0 / 64);
  for (const char* theta : {R"("rope_theta": 77)", R"("rope_parameters": {"rope_theta": 77})",
                            R"("rope_theta": 77.0, "rope_parameters": {"rope_theta": 77})"}) {
    EXPECT_NEAR(SecondFrequency(Whole("qwen3_vl", sizes + ", " + theta)), want, 4e-7 * want);
  }
  ExpectWordRefused("qwen3_vl",
                    sizes + R"(, "rope_theta": 77, "rope_parameters": {"rope_theta": 7})",
                    {"vision_config.rope_theta (77)"});
  ExpectWordRefused("qwen3_vl", sizes + R"(, "rope_theta": null)",
                    {"vision_config.rope_theta (null)"});
  ExpectWordRefused("qwen3_vl", sizes + R"(, "rope_parameters": {"rope_theta": null})",
                    {"vision_config.rope_parameters.rope_theta (null)"});
}

// DINOv3's class has no dictionary, and SAM 2's has a word of its own.
TEST(ModelTowers, ThetaOfVisionModels) {
  const auto dino = [](const char* theta) {
    return R"({"model_type": "dinov3_vit", "hidden_size": 384, "num_attention_heads": 6, )" +
           std::string(theta) + "}";
  };
  const double want = std::pow(77.0, -4.0 / 64);
  EXPECT_NEAR(SecondFrequency(dino(R"("rope_theta": 77)")), want, 4e-7 * want);
  ExpectRefused(dino(R"("rope_parameters": {"rope_theta": 77})"),
                {"rope_parameters.rope_theta (77)"}, ROPE_ERROR_UNSUPPORTED);
  const auto sam = [](const char* theta) {
    return R"({"model_type": "sam2_video", "memory_attention_hidden_size": 128,
        "memory_attention_num_attention_heads": 1, "memory_attention_downsample_rate": 2, )" +
           std::string(theta) + "}";
  };
  for (const char* theta : {R"("memory_attention_rope_theta": 77)", R"("rope_theta": 77)",
                            R"("rope_parameters": {"rope_theta": 77})"}) {
    EXPECT_NEAR(SecondFrequency(sam(theta)), want, 4e-7 * want) << theta;
  }
  ExpectRefused(sam(R"("memory_attention_rope_theta": 7, "rope_parameters": {"rope_theta": 77})"),
                {"memory_attention_rope_theta (7)"}, ROPE_ERROR_UNSUPPORTED);
}

}  // namespace
}  // namespace rope::testing
