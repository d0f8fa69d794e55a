#include "model/families.h"

namespace rope::model {
namespace {

// A row of the table: what is not said is the default of Family.
struct Row {
  Family family;

  // Before its callers, because Clang 14 knows no template of a class in constants otherwise.
  template <class Field, class Given>
  constexpr Row With(Field Family::*field, const Given& given) const {
    Row row = *this;
    row.family.*field = given;
    return row;
  }

  constexpr Row(const char* model_type, Style style) {
    family.model_type = model_type;
    family.style = style;
  }

  constexpr Row Theta(double theta) const { return With(&Family::theta, theta); }
  constexpr Row HeadDim(int head_dim) const { return With(&Family::head_dim, head_dim); }
  constexpr Row HeadBy(model::HeadDim rule) const { return With(&Family::head_rule, rule); }
  // What the class calls them.
  constexpr Row Sizes(const char* hidden_size, const char* num_attention_heads) const {
    return With(&Family::hidden_key, hidden_size).With(&Family::heads_key, num_attention_heads);
  }
  constexpr Row Original(int length) const { return With(&Family::original, length); }
  constexpr Row ThetaKey(const char* key, const char* older = nullptr) const {
    return With(&Family::theta_key, key).With(&Family::older_theta_key, older);
  }
  constexpr Row ShareKey(const char* key) const { return With(&Family::share_key, key); }
  constexpr Row NoShare() const {
    return With(&Family::share_key, static_cast<const char*>(nullptr))
        .With(&Family::share_inside, false);
  }
  constexpr Row Dicts(Dictionaries read) const { return With(&Family::dictionaries, read); }
  constexpr Row ByKind() const { return With(&Family::by_kind, true); }
  constexpr Row Only(Scalings known) const { return With(&Family::scalings, known); }
  constexpr Row RotaryDim(int rotary_dim = 0) const {
    return With(&Family::reads_rotary_dim, true).With(&Family::rotary_dim, rotary_dim);
  }
  constexpr Row Partial(double partial) const {
    return With(&Family::span, Span::kPartial).With(&Family::partial, partial);
  }
  constexpr Row Trailing(double partial) const {
    return With(&Family::span, Span::kTrailing).With(&Family::partial, partial);
  }
  constexpr Row Projection() const { return With(&Family::span, Span::kProjection); }
  constexpr Row Mla(int nope, int rope) const {
    return With(&Family::span, Span::kMla)
        .With(&Family::qk_nope_head_dim, nope)
        .With(&Family::qk_rope_head_dim, rope);
  }
  constexpr Row Layers(const LayerRule& rule) const { return With(&Family::layers, &rule); }
  constexpr Row LayersEach(int layers) const { return With(&Family::layers_each, layers); }
  constexpr Row Two(const TwoRopes& ropes) const { return With(&Family::two_ropes, &ropes); }
  constexpr Row Rope(const char* dictionary) const { return With(&Family::rope, dictionary); }
  constexpr Row Axes(model::Axes rule, int first = 0, int second = 0, int third = 0) const {
    Row row = With(&Family::axes, rule);
    row.family.section[0] = first;
    row.family.section[1] = second;
    row.family.section[2] = third;
    return row;
  }
  constexpr Row Kinds(model::Kinds rule) const { return With(&Family::kinds, rule); }
  constexpr Row Compressed(double theta) const {
    return Kinds(model::Kinds::kCompressed).With(&Family::compress_theta, theta);
  }
  constexpr Row MainName(const char* name) const { return With(&Family::main_name, name); }
  constexpr Row StrayPositions(const char* first, const char* second) const {
    Row row = *this;
    row.family.stray_positions[0] = first;
    row.family.stray_positions[1] = second;
    return row;
  }
  constexpr Row NopeIf(const Condition& condition) const {
    return With(&Family::lacks_rope, condition);
  }
  constexpr Row StyleIf(const Condition& condition, Style style) const {
    return With(&Family::other, OtherStyle{condition, style});
  }
  constexpr Row ReadsInterleave() const { return With(&Family::reads_interleave, true); }
  constexpr Row Reads(OwnKeys keys) const { return With(&Family::own_keys, keys); }
  constexpr Row Indexer(model::Indexer rule) const { return With(&Family::indexer, rule); }
  constexpr Row YarnIsLongrope() const { return With(&Family::yarn_is_longrope, true); }
  constexpr Row FrequenciesIn(rope_dtype dtype) const {
    return With(&Family::inv_freq_dtype, dtype);
  }
  constexpr Row NotOffered(const model::NotOffered& rule) const {
    return With(&Family::not_offered, rule);
  }
};

// The halves of its heads turn by two ids.
constexpr NotOffered kFirstChatGlm = {
    {"position_encoding_2d", "inner_hidden_size", "max_sequence_length", nullptr},
    "the first ChatGLM, whose RoPE has two ids per token,"};

// Baichuan 1 and 2 share a model_type and all keys of RoPE. Their vocabularies have 64000 and
// 125696 tokens, to which fine-tuned models add a few; 1 rotates in the dtype of x, 2 in f32.
constexpr Condition kBaichuan2 = {"vocab_size", Says::kAbove, nullptr, 100000};
// Those of 13B have ALiBi, which no key tells.
constexpr Condition kBaichuan13B = {"hidden_size", Says::kNumber, nullptr, 5120};

using S = Style;
using H = HeadDim;
using A = Axes;
using K = Kinds;
using I = Indexer;
using D = Dictionaries;
using Z = Scalings;

constexpr Row kFamilies[] = {
    Row("afmoe", S::kHalves).HeadDim(128).Layers(kAfmoeLayers),
    Row("alice_ai", S::kHalves).Layers(kQwen3NextLayers).Theta(0).Partial(1),
    Row("apertus", S::kHalves).Theta(12e6).Rope(kApertusRope),
    Row("aquila", S::kHalves),
    Row("arcee", S::kHalves),
    Row("arctic", S::kHalves).Theta(0),
    Row("aria", S::kHalves),
    Row("axk1", S::kInterleavedToHalves).ReadsInterleave().Mla(128, 64),
    Row("axk2", S::kInterleavedToHalves).Mla(64, 32).Indexer(I::kHalves),
    Row("baichuan", S::kHalves).NopeIf(kBaichuan13B).StyleIf(kBaichuan2, S::kHalvesFloat32),
    Row("bailing_hybrid", S::kInterleavedToHalves)
        .Theta(6e6)
        .Mla(128, 64)
        .Layers(kBailingHybridLayers),
    Row("bailing_moe", S::kHalves),
    Row("bailing_moe_v2", S::kHalves).Partial(1).RotaryDim(),
    Row("bailing_moe_v3_vl", S::kInterleavedToHalves)
        .ReadsInterleave()
        .Theta(0)
        .Mla(128, 64)
        .Layers(kBailingV3Layers)
        .Axes(A::kBailing, 12, 10, 10),
    Row("bailingmm_moe_v2_lite", S::kHalves)
        .Theta(0)
        .Partial(0.5)
        .Axes(A::kBailing, 8, 12, 12)
        .RotaryDim(),
    Row("bamba", S::kHalves).Partial(0.5).Layers(kBambaLayers).ShareKey(nullptr),
    Row("beam", S::kHalvesFloat32)
        .HeadDim(128)
        .Layers(kBeamLayers)
        .Rope(kBeamRope)
        .ThetaKey(nullptr)
        .ByKind(),
    Row("bitnet", S::kHalves).Theta(5e5),
    Row("blt", S::kInterleaved).Theta(5e5),
    Row("chameleon", S::kHalves),
    Row("chatglm", S::kInterleaved)
        .HeadDim(128)
        .Partial(0.5)
        .HeadBy(H::kKvChannels)
        .NotOffered(kFirstChatGlm)
        .ThetaKey(nullptr)
        .ShareKey(nullptr)
        .Reads(OwnKeys::kRopeRatio),
    Row("clvp_encoder", S::kHalves)
        .Projection()
        .NopeIf({"use_rotary_embedding", Says::kFalse})
        .ThetaKey(nullptr)
        .Dicts(D::kNone),
    Row("codegen", S::kInterleavedFloat32)
        .Sizes("n_embd", "n_head")
        .Partial(1)
        .RotaryDim(64)
        .ThetaKey(nullptr)
        .ShareKey(nullptr)
        .Dicts(D::kNone),
    Row("cohere", S::kInterleavedCosSin).Theta(5e5),
    Row("cohere2", S::kInterleavedCosSin).Layers(kCohere2Layers),
    Row("cohere2_moe", S::kInterleavedCosSin)
        .HeadDim(128)
        .Layers(kCohere2MoeLayers)
        .Dicts(D::kNewer),
    Row("cohere_compass", S::kHalves)
        .Axes(A::kInterleaved, 24, 20, 20)
        .ThetaKey(nullptr)
        .Dicts(D::kNewer)
        .ByKind(),
    Row("cosmos3_edge", S::kHalves)
        .Theta(1e8)
        .HeadDim(128)
        .Axes(A::kInterleaved)
        .Rope(kCosmos3EdgeRope)
        .Only(Z::kNone),
    Row("csm", S::kHalves).Theta(5e5),
    Row("csm_depth_decoder_model", S::kHalves).Theta(5e5),
    Row("cwm", S::kHalves).Theta(1e6).HeadDim(128).Rope(kCwmRope),
    Row("dbrx", S::kHalves).Sizes("d_model", "n_heads").Reads(OwnKeys::kAttentionTheta),
    Row("deepseek", S::kHalves),
    Row("deepseek_ocr2", S::kHalves).HeadBy(H::kQuotient),
    Row("deepseek_v2", S::kInterleavedFloat32).Mla(128, 64).Reads(OwnKeys::kUseMla),
    Row("deepseek_v3", S::kInterleavedToHalves).ReadsInterleave().Mla(128, 64),
    Row("deepseek_v32", S::kInterleavedToHalves).Mla(128, 64).Indexer(I::kHalves),
    Row("deepseek_v4", S::kInterleavedCosSin)
        .HeadDim(512)
        .Trailing(0.125)
        .Layers(kDeepSeekV4Layers)
        .Compressed(160000)
        .Indexer(I::kTrailing),
    Row("deepseek_v41", S::kInterleavedFloat32)
        .Trailing(0)
        .Layers(kDeepSeekV41Layers)
        .Compressed(160000)
        .Indexer(I::kTrailing),
    Row("dia", S::kHalves).HeadDim(128),
    Row("diffllama", S::kHalves),
    Row("diffusion_gemma", S::kHalves)
        .HeadDim(256)
        .Partial(1)
        .Layers(kGemma4Layers)
        .Two(kGemma4)
        .ShareKey(nullptr),
    Row("doge", S::kHalves),
    Row("dots1", S::kHalves),
    Row("dots3_note", S::kInterleavedToHalves)
        .Theta(8e7)
        .Mla(128, 64)
        .Layers(kDots3NoteLayers)
        .Two(kDots3Note)
        .Indexer(I::kInterleaved),
    Row("embedding_gemma2", S::kHalves)
        .HeadDim(256)
        .Layers(kEmbeddingGemma2Layers)
        .Two(kEmbeddingGemma2),
    Row("emu3", S::kHalves).Theta(1e6),
    Row("ernie4_5", S::kInterleavedFloat32).Theta(5e5).HeadDim(128),
    Row("ernie4_5_moe", S::kInterleavedFloat32).Theta(5e5),
    Row("ernie4_5_vl_moe", S::kInterleavedFloat32)
        .Theta(5e5)
        .Axes(A::kErnie, 22, 22, 20)
        .Only(Z::kNone),
    Row("esm", S::kHalvesCosSin)
        .NopeIf({"position_embedding_type", Says::kNot, "rotary"})
        .FrequenciesIn(ROPE_DTYPE_F16)
        .Dicts(D::kNone),
    Row("esmc", S::kHalves),
    Row("eurobert", S::kHalves),
    Row("evolla", S::kHalvesCosSin).Theta(5e5),
    Row("exaone", S::kHalves),
    Row("exaone4", S::kHalves).Layers(kExaone4Layers),
    Row("exaone4_5", S::kHalves).Layers(kExaone4Layers),
    Row("exaone_moe", S::kHalves).Layers(kExaone4Layers),
    Row("falcon", S::kHalves)
        .Sizes(nullptr, "n_head")
        .NopeIf({"alibi", Says::kTrue})
        .HeadBy(H::kQuotient),
    Row("falcon_h1", S::kHalves),
    Row("flex_olmo", S::kHalvesFloat32).Theta(5e5),
    Row("flint", S::kHalves).HeadDim(128).Layers(kFlintLayers),
    Row("fuyu", S::kHalves).Theta(25000).Partial(0.5),
    Row("gemma", S::kHalves).HeadDim(256),
    Row("gemma2", S::kHalves).HeadDim(256),
    Row("gemma3", S::kHalves).Theta(1e6).HeadDim(256).Layers(kGemma3Layers).Two(kGemma3),
    Row("gemma3n", S::kHalves).Theta(1e6).HeadDim(256).Layers(kEvery5Layers).Two(kGemma3),
    Row("gemma4", S::kHalves).HeadDim(256).Layers(kGemma4Layers).Two(kGemma4).ShareKey(nullptr),
    Row("gemma4_unified", S::kHalves)
        .HeadDim(256)
        .Layers(kGemma4Layers)
        .Two(kGemma4)
        .ShareKey(nullptr),
    Row("gigachat3_5", S::kInterleavedToHalves)
        .ReadsInterleave()
        .Theta(1e5)
        .Mla(128, 64)
        .Layers(kGigaChat35Layers),
    Row("glm", S::kInterleaved).HeadDim(128).Partial(0.5),
    Row("glm4", S::kInterleaved).HeadDim(128).Partial(0.5),
    Row("glm4_moe", S::kHalves).Partial(0.5),
    Row("glm4_moe_lite", S::kInterleavedToHalves).ReadsInterleave().Mla(192, 64),
    Row("glm4v", S::kInterleaved).Partial(1).Axes(A::kChunked, 8, 12, 12),
    Row("glm4v_moe", S::kHalves).Partial(0.5).Axes(A::kChunked, 8, 12, 12),
    Row("glm5_next", S::kHalves).Mla(256, 0).Layers(kNoLayers),
    Row("glm_image", S::kHalves).Partial(1).Axes(A::kChunked, 8, 12, 12),
    Row("glm_moe_dsa", S::kInterleavedToHalves).Mla(192, 64).Indexer(I::kInterleaved),
    Row("glm_ocr", S::kInterleaved).Partial(1).Axes(A::kChunked, 8, 12, 12),
    Row("glmasr", S::kHalves).Partial(0.5),
    Row("gpt_neox", S::kHalves).Partial(0.25).ThetaKey("rotary_emb_base").ShareKey("rotary_pct"),
    Row("gpt_neox_japanese", S::kHalves)
        .Partial(1)
        .ThetaKey("rotary_emb_base")
        .ShareKey("rotary_pct"),
    Row("gpt_oss", S::kHalves).Theta(150000).HeadDim(64).Rope(kGptOssRope),
    Row("gptj", S::kInterleaved)
        .Sizes("n_embd", "n_head")
        .Partial(1)
        .RotaryDim(64)
        .ThetaKey(nullptr)
        .ShareKey(nullptr)
        .Dicts(D::kNone),
    Row("gradium_phonon_tts", S::kHalves),
    Row("granite", S::kHalves),
    Row("granite4_vision", S::kHalves),
    Row("granite_docling", S::kHalves),
    Row("granite_swa", S::kHalves).Layers(kThetaLayers),
    Row("granitemoe", S::kHalves),
    Row("granitemoe_swa", S::kHalves).Layers(kThetaLayers),
    Row("granitemoehybrid", S::kHalves)
        .Layers(kGraniteHybridLayers)
        .NopeIf({"position_embedding_type", Says::kNot, "rope"}),
    Row("granitemoeshared", S::kHalves),
    Row("grok-1", S::kHalves).HeadDim(128).Reads(OwnKeys::kOriginalType),
    Row("gte", S::kHalves).Theta(160000).Reads(OwnKeys::kNtk),
    Row("helium", S::kInterleaved).Theta(1e5).HeadDim(128),
    Row("hf_olmo", S::kHalvesFloat32)
        .Sizes("d_model", "n_heads")
        .NopeIf({"rope", Says::kNotTrue})
        .StyleIf({"rope_full_precision", Says::kFalse}, S::kHalves)
        .ShareKey(nullptr)
        .Dicts(D::kNone),
    Row("higgs_audio_v2", S::kHalves).HeadDim(128).Rope(kHiggsAudioRope),
    Row("hrm_text", S::kHalves).HeadDim(128).Reads(OwnKeys::kCycles),
    Row("hunyuan_v1_dense", S::kHalves).Reads(OwnKeys::kAlpha),
    Row("hunyuan_v1_moe", S::kHalves).Reads(OwnKeys::kAlpha),
    Row("hunyuan_vl", S::kHalvesCosSin).Axes(A::kChunked).Reads(OwnKeys::kAlpha),
    Row("hy_v3", S::kHalves).Theta(11158840).HeadDim(128),
    Row("hy_v4", S::kHalves).Mla(192, 64),
    Row("hyperclovax", S::kHalves),
    Row("idefics", S::kHalves),
    Row("inkling", S::kHalves).Layers(kNoLayers),
    Row("internlm", S::kHalves).Reads(OwnKeys::kRotary),
    Row("internlm2", S::kHalves),
    Row("internlm3", S::kHalves),
    Row("iquest_q1", S::kHalves)
        .HeadDim(128)
        .Partial(1)
        .RotaryDim(32)
        .Layers(kIquestQ1Layers)
        .Two(kIquestQ1),
    Row("isaac", S::kHalves).HeadDim(128).Axes(A::kQuarters),
    Row("jais2", S::kHalves),
    Row("jamba", S::kHalves).Layers(kNoLayers),
    Row("jet_nemotron", S::kHalves).Layers(kJetNemotronLayers).Theta(0),
    Row("jetmoe", S::kHalves).HeadDim(128).HeadBy(H::kKvChannels),
    Row("jina_embeddings_v3", S::kHalves).Theta(20000).ThetaKey("rope_theta", "rotary_emb_base"),
    Row("k2_horizon", S::kHalves).Theta(0).Reads(OwnKeys::kRopeHeadDim),
    Row("kimi_linear", S::kHalves).Mla(128, 64).Layers(kNoLayers),
    Row("kolibri1", S::kHalves).HeadDim(128).Layers(kKolibri1Layers),
    Row("kyutai_speech_to_text", S::kHalves),
    Row("laguna", S::kHalves).HeadDim(128).Partial(1).Two(kLaguna).ShareKey(nullptr),
    Row("lasr", S::kHalves),
    Row("lfm2", S::kHalves).Layers(kLfm2Layers).Theta(1e6),
    Row("lfm2_moe", S::kHalves).Layers(kLfm2MoeLayers).Theta(1e6),
    Row("lfm3", S::kHalvesFloat32).HeadDim(128).Layers(kLfm3Layers).Two(kLfm3).ShareKey(nullptr),
    Row("llada2_moe", S::kHalves).Theta(0).Partial(1).RotaryDim(),
    Row("llama", S::kHalves),
    Row("llama4", S::kInterleavedFloat32)
        .Theta(5e5)
        .HeadDim(128)
        .Layers(kLlama4Layers)
        .MainName("chunked_attention"),
    Row("longcat_flash", S::kInterleavedToHalves).Theta(1e7).Mla(128, 64).LayersEach(2),
    Row("mellum", S::kHalves).HeadDim(128).Partial(1).Two(kMellum).ShareKey(nullptr),
    Row("mimi", S::kHalves),
    Row("mimo_v2", S::kHalves).Partial(1).Layers(kMimoV2Layers).Two(kMimoV2),
    Row("mimo_v2_flash", S::kHalves).HeadDim(192).Partial(1).Layers(kMimoLayers).Two(kMimo),
    Row("minicpm", S::kHalvesFloat32),
    Row("minicpm3", S::kHalves).Mla(64, 32),
    Row("minicpm_sala", S::kHalvesFloat32).Layers(kMiniCpmSalaLayers).Two(kMiniCpmSala),
    Row("minimax", S::kHalves).Layers(kMiniMaxLayers).Theta(1e6).Partial(1).NoShare().RotaryDim(),
    Row("minimax_m2", S::kHalves).Theta(5e6).HeadDim(128).Partial(1).RotaryDim(),
    Row("minimax_m3_vl", S::kHalves).Theta(5e6).HeadDim(128).Partial(1).RotaryDim(),
    Row("ministral", S::kHalves),
    Row("ministral3", S::kHalves).HeadDim(128).Rope(kMinistral3Rope),
    Row("mistral", S::kHalves),
    Row("mistral4", S::kInterleavedToHalves).ReadsInterleave().Mla(64, 64).Rope(kMistral4Rope),
    Row("mistral_large4", S::kInterleavedToHalves)
        .Mla(64, 64)
        .Layers(kSmolLm3Layers)
        .Rope(kMistralLarge4Rope)
        .Indexer(I::kInterleaved),
    Row("mixtral", S::kHalves).Theta(1e6),
    Row("mllama", S::kHalves).Layers(kMllamaLayers).Theta(5e5),
    Row("modernbert", S::kHalvesCosSin)
        .Theta(160000)
        .Layers(kModernBertLayers)
        .Two(kModernBert)
        .StrayPositions("absolute", "sans_pos"),
    Row("modernbert-decoder", S::kHalvesCosSin)
        .Theta(160000)
        .Layers(kModernBertLayers)
        .Two(kModernBert)
        .StrayPositions("absolute", "sans_pos"),
    Row("molmo2", S::kHalves).HeadDim(128).Kinds(K::kScaledLayers),
    Row("moondream3", S::kHalves).Sizes("dim", "n_heads").Theta(1.5e6).Partial(1).RotaryDim(32),
    Row("moonshine", S::kInterleaved).Sizes(nullptr, "decoder_num_attention_heads").Partial(0.9),
    Row("moonshine_streaming", S::kInterleaved).Partial(1).Rope(kMoonshineStreamingRope),
    Row("moshi", S::kHalves),
    Row("moss_vl", S::kHalves).Theta(0),
    Row("muse_glimmer", S::kHalves).HeadDim(128).Layers(kMuseLayers),
    Row("muse_glimmer_assistant", S::kHalves).Theta(5e5).HeadDim(128),
    Row("muse_spark", S::kHalves).HeadDim(64).Layers(kMuseLayers).Rope(kMuseSparkRope),
    Row("nanbeige", S::kHalves).Theta(50000),
    Row("nanochat", S::kHalvesNegated),
    Row("nemotron", S::kHalves).Partial(0.5),
    Row("nemotron-nas", S::kHalves),
    Row("nemotron_h", S::kHalves).Layers(kNoLayers),
    Row("neomme", S::kHalves)
        .HeadDim(64)
        .Partial(1)
        .Layers(kBeamLayers)
        .Two(kNeomme)
        .Axes(A::kAlternating)
        .ShareKey(nullptr),
    Row("neucodec", S::kHalves),
    Row("nomic_bert", S::kHalves)
        .Sizes("n_embd", "n_head")
        .Theta(1000)
        .StyleIf({"rotary_emb_interleaved", Says::kTrue}, S::kInterleaved)
        .ThetaKey("rope_theta", "rotary_emb_base"),
    Row("olmo", S::kHalvesFloat32),
    Row("olmo2", S::kHalvesFloat32),
    Row("olmo3", S::kHalvesFloat32).Theta(5e5).Layers(kEvery4Layers).Two(kOlmo3),
    Row("olmo_hybrid", S::kHalvesFloat32)
        .Layers(kOlmoHybridLayers)
        .NopeIf({"rope_parameters", Says::kNullTheta}),
    Row("olmoe", S::kHalves),
    Row("openai_privacy_filter", S::kInterleaved).Theta(150000).HeadDim(64).Rope(kGptOssRope),
    Row("openpangu_vl", S::kHalves).Theta(0).Axes(A::kEvenly),
    Row("orion", S::kHalves),
    Row("ouro", S::kHalves).Theta(0),
    Row("paddleocr_vl", S::kHalves).Theta(5e5).HeadDim(128).Axes(A::kChunked, 16, 24, 24),
    Row("pangu_embedded", S::kHalves).Theta(0),
    Row("pangu_ultra_moe", S::kInterleavedToHalves).ReadsInterleave().Mla(0, 0),
    Row("param2moe", S::kHalves).Theta(0),
    Row("pe_audio", S::kInterleaved).Theta(20000).HeadDim(128),
    Row("pe_audio_video", S::kInterleaved).Theta(20000).HeadDim(128),
    Row("pe_video", S::kInterleaved).Theta(20000).HeadDim(128),
    Row("persimmon", S::kHalves).Partial(0.5),
    Row("phi", S::kHalves).Partial(0.5),
    Row("phi-msft", S::kHalvesCosSin).Sizes("n_embd", "n_head").Partial(1).RotaryDim(),
    Row("phi3", S::kHalves).Partial(1).Original(4096).YarnIsLongrope().Only(Z::kLongrope),
    Row("phi3small", S::kHalves).Theta(1e6).ThetaKey("rope_embedding_base"),
    Row("phi4flash", S::kHalves).Layers(kNoLayers),
    Row("phi4_multimodal", S::kHalves)
        .Partial(1)
        .Original(4096)
        .YarnIsLongrope()
        .Only(Z::kLongrope),
    Row("phimoe", S::kHalves).Theta(1e6).Only(Z::kLongrope),
    Row("plamo2", S::kHalves).HeadDim(128).HeadBy(H::kPerHead).Layers(kPlamo2Layers),
    Row("plamo3", S::kHalves).Layers(kPlamo3Layers).Two(kPlamo3),
    Row("pocket_tts", S::kHalves),
    Row("qwen", S::kHalvesFloat32)
        .HeadDim(128)
        .Partial(1)
        .HeadBy(H::kKvChannels)
        .Reads(OwnKeys::kDynamicNtk)
        .ThetaKey("rotary_emb_base")
        .ShareKey("rotary_pct"),
    Row("qwen2", S::kHalves),
    Row("qwen2_5_omni", S::kHalves).Theta(1e6).Axes(A::kChunked, 16, 24, 24),
    Row("qwen2_5_vl", S::kHalves).Theta(1e6).Axes(A::kChunked, 16, 24, 24),
    Row("qwen2_moe", S::kHalves),
    Row("qwen2_vl", S::kHalves).Theta(1e6).Axes(A::kChunked, 16, 24, 24),
    Row("qwen3", S::kHalves).HeadDim(128),
    Row("qwen3_5", S::kHalves)
        .HeadDim(256)
        .Partial(0.25)
        .Layers(kQwen3NextLayers)
        .Axes(A::kInterleaved, 11, 11, 10),
    Row("qwen3_5_moe", S::kHalves)
        .HeadDim(256)
        .Partial(0.25)
        .Layers(kQwen3NextLayers)
        .Axes(A::kInterleaved, 11, 11, 10),
    Row("qwen3_moe", S::kHalves),
    Row("qwen3_next", S::kHalves).HeadDim(256).Partial(0.25).Layers(kQwen3NextLayers),
    Row("qwen3_omni_moe", S::kHalves).Theta(1e6).Axes(A::kInterleaved, 24, 20, 20),
    Row("qwen3_vl", S::kHalves).Theta(5e5).HeadDim(128).Axes(A::kInterleaved, 24, 20, 20),
    Row("qwen3_vl_moe", S::kHalves).Theta(5e5).Axes(A::kInterleaved, 24, 20, 20),
    Row("qwen4_exp", S::kHalves)
        .HeadDim(256)
        .Partial(1)
        .Layers(kQwen3NextLayers)
        .Axes(A::kInterleaved, 11, 11, 10),
    Row("recurrent_gemma", S::kHalves)
        .Layers(kRecurrentGemmaLayers)
        .Partial(0.5)
        .HeadBy(H::kQuotient)
        .Only(Z::kNone),
    Row("roformer", S::kInterleavedFloat64).ThetaKey(nullptr).Dicts(D::kNone).HeadBy(H::kQuotient),
    Row("sarvam_mla", S::kInterleavedToHalves).ReadsInterleave().Theta(0).Mla(0, 0),
    Row("sarvam_moe", S::kHalves).Theta(0).Partial(1),
    Row("sdar", S::kHalves),
    Row("seed_oss", S::kHalves).HeadDim(128),
    Row("smollm3", S::kHalves).Theta(2e6).Layers(kSmolLm3Layers),
    Row("solar", S::kHalves).Theta(0),
    Row("solar_open", S::kHalves).Theta(1e6).HeadDim(128).Partial(1),
    Row("spark2_5", S::kHalves).HeadDim(256).Partial(1).Layers(kEvery4Layers).Two(kSpark),
    Row("stablelm", S::kHalves).Partial(0.25),
    Row("stablelm_epoch", S::kHalves).Partial(0.25).ShareKey("rope_pct"),
    Row("starcoder2", S::kHalves),
    Row("step3_text", S::kHalves).Theta(0).HeadDim(256),
    Row("step3p5", S::kHalves).HeadDim(128).Partial(1).Kinds(K::kByLayer).ShareKey(nullptr),
    Row("t5gemma", S::kHalves).HeadDim(256),
    Row("t5gemma2", S::kHalves).Theta(1e6).HeadDim(256).Layers(kGemma3Layers).Two(kGemma3),
    Row("teleflm", S::kHalves).Theta(0),
    Row("telechat3", S::kHalves).Theta(0),
    Row("timesfm2_5", S::kHalves).HeadDim(80),
    Row("ultrabert", S::kHalves).Layers(kUltrabertLayers).Two(kUltrabert),
    Row("unlimited_ocr", S::kHalves).HeadBy(H::kQuotient),
    Row("vaultgemma", S::kHalves).HeadDim(256),
    Row("voxtral_realtime_text", S::kHalves),
    Row("voxtral_realtime_encoder", S::kHalves).HeadDim(64),
    Row("wav2vec2-bert", S::kHalves)
        .NopeIf({"position_embeddings_type", Says::kNot, "rotary"})
        .ThetaKey("rotary_embedding_base"),
    Row("wav2vec2-conformer", S::kHalves)
        .NopeIf({"position_embeddings_type", Says::kNot, "rotary"})
        .ThetaKey("rotary_embedding_base"),
    Row("xcodec2", S::kHalves).HeadDim(64),
    Row("xverse", S::kHalves),
    Row("youtu", S::kInterleavedToHalves).ReadsInterleave().Mla(128, 64),
    Row("zamba2", S::kHalves)
        .Layers(kZamba2Layers)
        .HeadBy(H::kTwice)
        .NopeIf({"use_mem_rope", Says::kNotTrue}),
    Row("zaya", S::kHalves).HeadDim(128).Partial(1).Two(kZaya).ShareKey(nullptr),
};

}  // namespace

const Family* FindRow(std::string_view model_type) {
  for (const Row& row : kFamilies) {
    if (row.family.model_type == model_type) return &row.family;
  }
  return nullptr;
}

void SetStyle(Style style, rope_config* config) {
  config->pairing = ROPE_PAIRING_HALVES;
  config->rounding = ROPE_ROUNDING_EAGER;
  switch (style) {
    case Style::kHalves:
    case Style::kHalvesNegated: break;
    case Style::kHalvesFloat32: config->rounding = ROPE_ROUNDING_FLOAT32; break;
    case Style::kHalvesCosSin: config->rounding = ROPE_ROUNDING_COS_SIN; break;
    case Style::kInterleavedFloat64: config->angle = ROPE_ANGLE_EXACT; [[fallthrough]];
    case Style::kInterleaved: config->pairing = ROPE_PAIRING_INTERLEAVED; break;
    case Style::kInterleavedFloat32:
      config->pairing = ROPE_PAIRING_INTERLEAVED;
      config->rounding = ROPE_ROUNDING_FLOAT32;
      break;
    case Style::kInterleavedCosSin:
      config->pairing = ROPE_PAIRING_INTERLEAVED;
      config->rounding = ROPE_ROUNDING_COS_SIN;
      break;
    case Style::kInterleavedToHalves: config->pairing = ROPE_PAIRING_INTERLEAVED_TO_HALVES; break;
  }
}

}  // namespace rope::model
