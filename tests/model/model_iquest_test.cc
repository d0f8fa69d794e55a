// IQuest Q1, whose layers are told by a block that repeats, as vLLM and SGLang read it.
#include <string>

#include "answer.h"
#include "testing.h"

namespace rope::testing {
namespace {

// The words of the released model with fewer blocks, and `more`.
std::string Q1(const std::string& more, const std::string& layers = "10") {
  return R"({"model_type": "iquest_q1", "hidden_size": 3072, "num_attention_heads": 48,
      "head_dim": 128, "num_hidden_layers": )" +
         layers + R"(, "rope_theta": 1000000.0, "swa_rope_theta": 10000.0,
      "rotary_dim": 32, "sliding_window": 4096, "num_hybrid_layers_block": 2)" +
         (more.empty() ? "" : ", ") + more + "}";
}

// With the class's lists: one full, blocks of one full and three sliding, three full; here as the
// file says them.
constexpr char kLists[] = R"("first_layers_types": ["full_attention"],
    "hybrid_layers_types_block": ["full_attention", "sliding_attention", "sliding_attention"],
    "last_layers_types": ["full_attention", "sliding_attention", "full_attention"])";

TEST(ModelIquest, LayersAreABlockThatRepeatsAndTheirEnds) {
  const Model model(Q1(kLists));
  EXPECT_EQ(model.Layers(10), "ffssfssfsf");
  EXPECT_EQ(model.Config("full_attention").theta, 1e6);
  EXPECT_EQ(model.Config("sliding_attention").theta, 1e4);
  EXPECT_EQ(model.Config("sliding_attention").rotary_dim, 32);
  EXPECT_EQ(Model(Q1("", "12")).Layers(12), "ffsssfsssfff");  // the class's lists
}

TEST(ModelIquest, LayerTypesMustSayTheSame) {
  const std::string lists = std::string(kLists) + R"(, "layer_types": )";
  const std::string rest = R"("full_attention", "sliding_attention", "sliding_attention",
      "full_attention", "sliding_attention", "sliding_attention", "full_attention",
      "sliding_attention", "full_attention"])";
  EXPECT_EQ(Model(Q1(lists + R"(["full_attention", )" + rest)).Layers(10), "ffssfssfsf");
  ExpectRefused(Q1(lists + R"(["sliding_attention", )" + rest),
                {"layer_types (", "says otherwise of the layers than hybrid_layers_types_block"},
                ROPE_ERROR_UNSUPPORTED);
}

TEST(ModelIquest, TheWordsMustGiveAsManyLayers) {
  ExpectRefused(Q1(kLists, "9"), {"num_hidden_layers (9) must be the number of layers that "
                                  "first_layers_types,",
                                  "give, 10"});
  ExpectRefused(Q1(R"("last_layers_types": ["conv"])"), {"last_layers_types[0] (\"conv\")"});
  ExpectRefused(Q1(R"("first_layer_types": [])", "12"), {"be spelt first_layers_types"});
  ExpectRefused(R"({"model_type": "llama", "hidden_size": 256, "num_attention_heads": 4,
      "num_hidden_layers": 2, "last_layers_types": ["linear_attention"]})",
                {"last_layers_types ("}, ROPE_ERROR_UNSUPPORTED);
}

TEST(ModelIquest, SwitchesOfTheHybrid) {
  for (const char* off : {R"("use_hybrid_layers": false)", R"("use_sliding_window": false)",
                          R"("use_hybrid_layers": null)"}) {
    EXPECT_EQ(Model(Q1(off, "12")).Layers(12), "ffffffffffff") << off;
  }
  EXPECT_EQ(Model(Q1(R"("use_hybrid_layers": false)", "3")).Layers(3), "fff");
  const std::string text = Q1("", "12");
  const size_t at = text.find("4096");
  EXPECT_EQ(Model(text.substr(0, at) + "null" + text.substr(at + 4)).Layers(12), "ffffffffffff");
}

TEST(ModelIquest, NumbersOfLayersWithoutRope) {
  EXPECT_EQ(Model(Q1(R"("no_rope_layers": [0, 3])", "12")).Layers(12), "nfsnsfsssfff");
  EXPECT_EQ(Model(Q1(R"("no_rope_layers": [])", "12")).Layers(12), "ffsssfsssfff");
}

TEST(ModelIquest, OneDictionaryIsOfBothKindsButForTheta) {
  const Model model(Q1(R"("rope_parameters": {"rope_type": "linear", "factor": 2.0,
      "rope_theta": 1000000.0, "partial_rotary_factor": 0.25})",
                       "12"));
  for (const char* kind : {"full_attention", "sliding_attention"}) {
    EXPECT_EQ(model.Config(kind).factor, 2) << kind;
  }
  EXPECT_EQ(model.Config("full_attention").theta, 1e6);
  EXPECT_EQ(model.Config("sliding_attention").theta, 1e4);
  ExpectRefused(Q1(R"("rope_parameters": {"full_attention": {"rope_theta": 777}})", "12"),
                {"have its numbers for all layers"}, ROPE_ERROR_UNSUPPORTED);
}

}  // namespace
}  // namespace rope::testing
