// rope_model_latent_ids and the reader of diffusers' configurations: what is refused, and by which
// words. tests/model/diffusion_oracle_test.cc compares what is accepted.
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <string_view>
#include <vector>

#include "testing.h"

namespace rope::testing {
namespace {

constexpr std::string_view kFlux = R"({"_class_name": "FluxTransformer2DModel"})",
                           kQwen = R"({"_class_name": "QwenImageTransformer2DModel"})",
                           kWan = R"({"_class_name": "WanTransformer3DModel"})",
                           kCosmos = R"({"_class_name": "CosmosTransformer3DModel"})",
                           kLtx = R"({"_class_name": "LTXVideoTransformer3DModel"})",
                           kLtx2 = R"({"_class_name": "LTX2VideoTransformer3DModel"})",
                           kHiDream = R"({"_class_name": "HiDreamImageTransformer2DModel",
                               "axes_dims_rope": [64, 32, 32], "patch_size": 2})";

rope_latent_args Args(const std::vector<rope_latent_grid>& grids, int64_t text) {
  rope_latent_args args = ROPE_INIT(rope_latent_args);
  args.count = static_cast<int32_t>(grids.size());
  args.grids = grids.data();
  args.text = text;
  return args;
}

// The message of a call that must fail, without touching the ids or the number of tokens.
std::string Fault(std::string_view text, const rope_latent_args& args, int64_t capacity = 0,
                  int32_t type = 0) {
  const Model model(text);
  std::vector<float> ids(static_cast<size_t>(capacity), 7.f);
  int64_t tokens = -7;
  EXPECT_EQ(rope_model_latent_ids(model.get(), type, &args, capacity == 0 ? nullptr : ids.data(),
                                  capacity, &tokens),
            ROPE_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(tokens, -7);
  EXPECT_EQ(ids, std::vector<float>(ids.size(), 7.f));
  return rope_last_error();
}

std::string CreateFault(std::string_view text, rope_status want) {
  rope_model* model = nullptr;
  EXPECT_EQ(Create(text, &model), want) << text;
  EXPECT_EQ(model, nullptr);
  return rope_last_error();
}

TEST(LatentIds, AxesHaveIdsOfTheirOwn) {
  for (std::string_view text : {kFlux, kQwen, kWan, kCosmos, kLtx, kLtx2, kHiDream}) {
    EXPECT_EQ(Model(text).Config().ids_per_axis, 1) << text;
  }
}

TEST(LatentIds, ArgumentsAreChecked) {
  const std::vector<rope_latent_grid> one = {{1, 2, 3, 0}};
  EXPECT_EQ(Fault(kFlux, Args({{1, 0, 3, 0}}, 0)),
            "rope_model_latent_ids: args->grids[0] must have t, h and w from 1 to 2^23");
  EXPECT_EQ(Fault(kFlux, Args({{1, 2, 3, 4}}, 0)),
            "rope_model_latent_ids: args->grids[0] must have reserved 0");
  EXPECT_EQ(Fault(kFlux, Args({{2, 2, 3, 0}}, 0)),
            "rope_model_latent_ids: args->grids[0] must have t 1 in this class");
  EXPECT_EQ(Fault(kQwen, Args({{1, 2, (1 << 23) + 1, 0}}, 0)),
            "rope_model_latent_ids: args->grids[0] must have t, h and w from 1 to 2^23");
  EXPECT_EQ(Fault(kWan, Args({{1 << 20, 1 << 20, 2, 0}}, 0)),
            "rope_model_latent_ids: args->grids[0] makes more than 2^40 tokens");
  EXPECT_EQ(Fault(kWan, Args({{1, 2, 3, 0}, {1, 2, 3, 0}}, 0)),
            "rope_model_latent_ids: args->count (2) must be from 0 to 1 for this class");
  EXPECT_EQ(Fault(kWan, Args(one, 1)),
            "rope_model_latent_ids: args->text (1) must be 0: text is in no attention that these "
            "layers rotate");
  EXPECT_EQ(Fault(kFlux, Args(one, -1)),
            "rope_model_latent_ids: args->text (-1) must be from 0 to 2^23");
  EXPECT_EQ(Fault(kQwen, Args(one, (1 << 23) + 1)),
            "rope_model_latent_ids: args->text (8388609) must be from 0 to 2^23");
  EXPECT_EQ(Fault(kFlux, Args(one, 2), 23),
            "rope_model_latent_ids: capacity (23) must be 24: 3 axes of 8 tokens, or 0 with ids "
            "NULL");
  rope_latent_args args = Args(one, 0);
  args.fps = 24;
  EXPECT_EQ(Fault(kFlux, args), "rope_model_latent_ids: args->fps (24) must be 0 for this class");
  args = Args(one, 0);
  args.scale_h = 2;
  EXPECT_EQ(Fault(kWan, args), "rope_model_latent_ids: args->scale_h (2) must be 0 for this class");
  args = Args(one, 0);
  args.fps = -1;
  EXPECT_EQ(Fault(kCosmos, args),
            "rope_model_latent_ids: args->fps (-1) must be 0, or from 2^-20 to 2^20");
  args.fps = NAN;
  Fault(kCosmos, args);
  EXPECT_EQ(Fault(kHiDream, Args({{1, 64, 65, 0}}, 0)),
            "rope_model_latent_ids: args->grids[0] (64 x 65) must have at most 4096 tokens, those "
            "of max_resolution");
  args = Args(one, 0);
  args.count = -1;
  EXPECT_EQ(Fault(kFlux, args),
            "rope_model_latent_ids: args->count (-1) must be from 0 to 2 for this class");
  args = Args(one, 0);
  args.grids = nullptr;
  EXPECT_EQ(Fault(kFlux, args),
            "rope_model_latent_ids: args->grids must point to args->count (1) aligned elements");
}

TEST(LatentIds, AreOfDiffusersAlone) {
  const Model llama(R"({"model_type": "llama", "hidden_size": 64, "num_attention_heads": 1})");
  const rope_latent_args args = Args({}, 0);
  int64_t tokens;
  EXPECT_EQ(rope_model_latent_ids(llama.get(), 0, &args, nullptr, 0, &tokens),
            ROPE_ERROR_UNSUPPORTED);
  EXPECT_STREQ(rope_last_error(),
               "rope_model_latent_ids: model is none of diffusers (no _class_name)");
  const Model flux(kFlux);
  EXPECT_EQ(rope_model_latent_ids(flux.get(), 1, &args, nullptr, 0, &tokens),
            ROPE_ERROR_INVALID_ARGUMENT);
  EXPECT_STREQ(rope_last_error(), "rope_model_latent_ids: type (1) must be from 0 to 0");
  EXPECT_EQ(rope_model_latent_ids(nullptr, 0, &args, nullptr, 0, &tokens),
            ROPE_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(rope_model_latent_ids(flux.get(), 0, nullptr, nullptr, 0, &tokens),
            ROPE_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(rope_model_latent_ids(flux.get(), 0, &args, nullptr, 0, nullptr),
            ROPE_ERROR_INVALID_ARGUMENT);
}

TEST(Diffusion, ClassesThatAreNotReadAreRefused) {
  EXPECT_EQ(CreateFault(R"({"_class_name": "FluxPipeline"})", ROPE_ERROR_UNSUPPORTED),
            "rope_model_create: _class_name (\"FluxPipeline\") is a pipeline, whose RoPE stands in "
            "the config.json of its transformer");
  EXPECT_EQ(CreateFault(R"({"_class_name": "UNet2DConditionModel"})", ROPE_ERROR_UNSUPPORTED),
            "rope_model_create: _class_name (\"UNet2DConditionModel\") is no class of diffusers "
            "whose RoPE this version reads");
  EXPECT_EQ(
      CreateFault(R"({"_class_name": "MochiTransformer3DModel"})", ROPE_ERROR_UNSUPPORTED),
      "rope_model_create: _class_name (\"MochiTransformer3DModel\") is not read: its frequencies "
      "are a weight, pos_frequencies, which is no part of this text: give it as "
      "rope_config.frequency, [3][heads][pairs] in f64, with freq_heads, 3 axes and "
      "ROPE_PAIRING_INTERLEAVED");
  EXPECT_NE(
      CreateFault(R"({"_class_name": "ErnieImageTransformer2DModel"})", ROPE_ERROR_UNSUPPORTED)
          .find("by different angles"),
      std::string::npos);
  EXPECT_NE(CreateFault(R"({"_class_name": "WanModel", "model_type": "t2v", "dim": 5120})",
                        ROPE_ERROR_UNSUPPORTED)
                .find("a WanTransformer3DModel"),
            std::string::npos);
  CreateFault(R"({"_class_name": null})", ROPE_ERROR_PARSE);
  CreateFault(R"({"_class_name": 3})", ROPE_ERROR_PARSE);
}

TEST(Diffusion, ATextOfAnotherProgramIsRefused) {
  const std::string flux = R"({"_class_name": "FluxTransformer2DModel", )";
  EXPECT_NE(
      CreateFault(flux + R"("model_type": "llama", "rope_theta": 5e5})", ROPE_ERROR_UNSUPPORTED)
          .find("(\"FluxTransformer2DModel\") must not stand beside model_type"),
      std::string::npos);
  EXPECT_NE(CreateFault(flux + R"("base_emb_dim": 4096, "model_name": "llama3.1-8b"})",
                        ROPE_ERROR_UNSUPPORTED)
                .find("must not stand beside MaxText's configuration"),
            std::string::npos);
}

TEST(Diffusion, KeysOfRopeAreReadOrRefused) {
  const auto flux = [](const std::string& entries) {
    return R"({"_class_name": "FluxTransformer2DModel", )" + entries + "}";
  };
  const std::string unread = CreateFault(flux(R"("rope_theta": 2000)"), ROPE_ERROR_UNSUPPORTED);
  EXPECT_NE(unread.find("rope_theta (2000)"), std::string::npos) << unread;
  EXPECT_EQ(CreateFault(flux(R"("axes_dims_rope": [16, 56, 54])"), ROPE_ERROR_PARSE),
            "rope_model_create: axes_dims_rope adds up to 126 and must add up to the width of a "
            "head, 128");
  EXPECT_EQ(CreateFault(flux(R"("axes_dims_rope": [64, 64])"), ROPE_ERROR_PARSE),
            "rope_model_create: axes_dims_rope has 2 entries and must have 3");
  CreateFault(flux(R"("axes_dims_rope": [15, 57, 56])"), ROPE_ERROR_PARSE);
  CreateFault(flux(R"("axes_dims_rope": "16,56,56")"), ROPE_ERROR_PARSE);
  CreateFault(flux(R"("attention_head_dim": 127)"), ROPE_ERROR_PARSE);
  CreateFault(flux(R"("num_layers": 5000)"), ROPE_ERROR_PARSE);
  CreateFault(R"({"_class_name": "WanTransformer3DModel", "attention_head_dim": 4})",
              ROPE_ERROR_PARSE);
}

TEST(Diffusion, KeysOfSingleClassesAreChecked) {
  const auto fault = [](const std::string& name, const std::string& entries, rope_status status) {
    return CreateFault("{\"_class_name\": \"" + name + "\", " + entries + "}", status);
  };
  EXPECT_NE(fault("CogVideoXTransformer3DModel", R"("num_layers": 1)", ROPE_ERROR_UNSUPPORTED)
                .find("use_rotary_positional_embeddings must be true"),
            std::string::npos);
  fault("CogVideoXTransformer3DModel",
        R"("use_rotary_positional_embeddings": true, "patch_size": 61)", ROPE_ERROR_PARSE);
  fault("CogVideoXTransformer3DModel",
        R"("use_rotary_positional_embeddings": true, "attention_head_dim": 66)", ROPE_ERROR_PARSE);
  fault("CosmosTransformer3DModel", R"("rope_scale": [2, 1])", ROPE_ERROR_PARSE);
  fault("CosmosTransformer3DModel", R"("rope_scale": [2, 1, 0])", ROPE_ERROR_PARSE);
  fault("CosmosTransformer3DModel", R"("attention_head_dim": 6)", ROPE_ERROR_PARSE);
  fault("CogView4Transformer2DModel", R"("rope_axes_dim": [256])", ROPE_ERROR_PARSE);
  fault("CogView4Transformer2DModel", R"("attention_head_dim": 42)", ROPE_ERROR_PARSE);
  fault("AllegroTransformer3DModel", R"("attention_head_dim": 98)", ROPE_ERROR_PARSE);
  fault("AllegroTransformer3DModel", R"("interpolation_scale_h": 0)", ROPE_ERROR_PARSE);
  EXPECT_NE(fault("HiDreamImageTransformer2DModel", R"("patch_size": 2)", ROPE_ERROR_PARSE)
                .find("axes_dims_rope"),
            std::string::npos);
  fault("HiDreamImageTransformer2DModel", R"("axes_dims_rope": [64, 32, 32])", ROPE_ERROR_PARSE);
  fault("HiDreamImageTransformer2DModel",
        R"("axes_dims_rope": [64, 32, 32], "patch_size": 2, "max_resolution": [128])",
        ROPE_ERROR_PARSE);
  EXPECT_NE(fault("EasyAnimateTransformer3DModel", R"("num_layers": 1)", ROPE_ERROR_PARSE)
                .find("patch_size"),
            std::string::npos);
  fault("JoyImageEditTransformer3DModel", R"("rope_type": "yarn")", ROPE_ERROR_PARSE);
  fault("EasyAnimateTransformer3DModel", R"("patch_size": 61)", ROPE_ERROR_PARSE);
  fault("ChronoEditTransformer3DModel", R"("patch_size": [2, 2, 2])", ROPE_ERROR_UNSUPPORTED);
  fault("ChronoEditTransformer3DModel", R"("rope_temporal_skip_len": 0)", ROPE_ERROR_PARSE);
  fault("Lumina2Transformer2DModel", R"("hidden_size": 2305)", ROPE_ERROR_PARSE);
  fault("ZImageTransformer2DModel", R"("dim": 3840, "n_heads": 7)", ROPE_ERROR_PARSE);
  EXPECT_NE(fault("ZImageTransformer2DModel", R"("siglip_feat_dim": 1152)", ROPE_ERROR_UNSUPPORTED)
                .find("siglip_feat_dim (1152) must be null"),
            std::string::npos);
  fault("Kandinsky5Transformer3DModel", R"("axes_dims": [512, 512, 512])", ROPE_ERROR_PARSE);
}

TEST(LatentIds, OfLtxNeedSeconds) {
  const std::vector<rope_latent_grid> one = {{3, 2, 2, 0}};
  for (const std::string_view text : {kLtx, kLtx2}) {
    EXPECT_EQ(
        Fault(text, Args(one, 0)),
        "rope_model_latent_ids: args->fps (0) must be given for this class: its ids are seconds");
  }
  rope_latent_args args = Args(one, 0);
  args.fps = 24;
  args.scale_w = 16;
  EXPECT_EQ(Fault(kLtx2, args),
            "rope_model_latent_ids: args->scale_w (16) must be 0 for this class");
  args.scale_w = 0;
  constexpr int32_t kAudio = 1;
  EXPECT_EQ(Fault(kLtx2, args, 0, kAudio),
            "rope_model_latent_ids: args->fps (24) must be 0 for this class");
  args.fps = 0;
  EXPECT_EQ(Fault(kLtx2, args, 0, kAudio),
            "rope_model_latent_ids: args->grids[0] must have h and w 1 for audio");
  EXPECT_EQ(Fault(kLtx, Args(one, 1)),
            "rope_model_latent_ids: args->text (1) must be 0: text is in no attention that these "
            "layers rotate");
}

TEST(Diffusion, KeysOfLtxAreChecked) {
  const auto fault = [](const char* name, const std::string& entries) {
    return CreateFault(
        std::string("{\"_class_name\": \"") + name + "VideoTransformer3DModel\", " + entries + "}",
        ROPE_ERROR_PARSE);
  };
  EXPECT_EQ(fault("LTX", R"("attention_head_dim": 63)"),
            "rope_model_create: attention_head_dim (63) must be even");
  fault("LTX", R"("num_attention_heads": 1025)");
  fault("LTX", R"("patch_size": 0)");
  EXPECT_EQ(fault("LTX2", R"("rope_type": "halves")"),
            "rope_model_create: rope_type (\"halves\") must be \"interleaved\" or \"split\"");
  EXPECT_EQ(
      fault("LTX2", R"("audio_cross_attention_dim": 1024)"),
      "rope_model_create: audio_cross_attention_dim (1024) must be that of audio's heads, 32 * 64");
  EXPECT_EQ(
      fault("LTX2", R"("rope_type": "split", "num_attention_heads": 16)"),
      "rope_model_create: audio_num_attention_heads (32) must be num_attention_heads (16) with "
      "rope_type \"split\"");
  fault("LTX2", R"("vae_scale_factors": [8, 32])");
  fault("LTX2", R"("vae_scale_factors": [8, 32, 0])");
  fault("LTX2", R"("rope_theta": 1e30)");
  CreateFault(R"({"_class_name": "LTXVideoTransformer3DModel", "rope_theta": 5000})",
              ROPE_ERROR_UNSUPPORTED);
}

TEST(Diffusion, LtxHasFrequenciesOfEachHead) {
  const Model video(kLtx), both(kLtx2);
  EXPECT_EQ(video.Layers(28), std::string(28, 'f'));
  EXPECT_EQ(both.Types(),
            (std::vector<std::string>{"video", "audio", "cross_video", "cross_audio"}));
  EXPECT_EQ(both.Layers(48), std::string(48, 'v'));
  const rope_config config = both.Config(0);
  EXPECT_EQ(config.freq_heads, 32);
  EXPECT_EQ(config.table_length, 64);
  EXPECT_EQ(config.axes, 3);
  rope_digest_text of_model, of_config;
  ASSERT_EQ(rope_model_digest(both.get(), 0, ROPE_DIGEST_ROTATION, &of_model), ROPE_OK);
  ASSERT_EQ(rope_config_digest(&config, ROPE_DIGEST_ROTATION, &of_config), ROPE_OK);
  EXPECT_STREQ(of_model.text, of_config.text);
}

TEST(Diffusion, LayersAreThoseOfAllBlocks) {
  const Model model(
      R"({"_class_name": "FluxTransformer2DModel", "num_layers": 2, "num_single_layers": 1})");
  EXPECT_EQ(model.Layers(4), "fff.");
  const Model kinds(
      R"({"_class_name": "Kandinsky5Transformer3DModel", "num_text_blocks": 1,
          "num_visual_blocks": 2})");
  EXPECT_EQ(kinds.Types(), (std::vector<std::string>{"text", "visual"}));
  EXPECT_EQ(kinds.Layers(4), "tvv.");
}

}  // namespace
}  // namespace rope::testing
