#include "model/head.h"

#include <algorithm>
#include <initializer_list>
#include <optional>
#include <string>

#include "base/limits.h"
#include "model/accept.h"

namespace rope::model {
namespace {

// A size that head_dim follows from: of a family in the words of its class, whose default counts
// beside those of others, and of one that is not known in the words of `all`.
std::optional<int64_t> Size(const Dict& text, const Family* family, const char* name,
                            const char* own, std::initializer_list<const char*> all) {
  auto size = text.Integer(name, 1, kMaxWidth);
  if (!size && own != nullptr) size = text.Integer(own, 1, kMaxWidth);
  if (!size && family == nullptr) size = text.FirstInteger(all, 1, kMaxWidth);
  return size;
}

// hidden_size / num_attention_heads.
int64_t Quotient(const Dict& text, const Family* family, int64_t times) {
  const auto hidden =
      Size(text, family, "hidden_size", family != nullptr ? family->hidden_key : nullptr,
           {"n_embd", "d_model", "dim"});
  if (!hidden) text.RejectMissing("hidden_size", "head_dim follows from it");
  const auto heads =
      Size(text, family, "num_attention_heads", family != nullptr ? family->heads_key : nullptr,
           {"n_head", "n_heads", "num_heads", "decoder_num_attention_heads"});
  if (!heads) text.RejectMissing("num_attention_heads", "head_dim follows from it");
  if (times * *hidden % *heads != 0) {
    Reject(ROPE_ERROR_PARSE, "%s (%lld) must divide hidden_size (%lld), as head_dim is not given",
           text.Path("num_attention_heads").c_str(), static_cast<long long>(*heads),
           static_cast<long long>(*hidden));
  }
  return times * *hidden / *heads;
}

int64_t ByRule(const Dict& text, const Family* family, const KindDefaults* kind,
               const Dict& layer) {
  const HeadDim rule = family != nullptr ? family->head_rule : HeadDim::kKey;
  const auto own = layer.Integer("head_dim", 1, kMaxWidth);
  if (own && rule == HeadDim::kKey) return *own;
  if (rule == HeadDim::kQuotient) return Quotient(text, family, 1);
  if (rule == HeadDim::kTwice) {
    const auto given = text.Integer("attention_head_dim", 1, kMaxWidth);
    return given ? *given : Quotient(text, family, 2);
  }
  // Latent attention without rotated channels: GLM-5.3. (0 of both: there is none, DeepSeek-OCR.)
  const auto latent = text.Integer("qk_nope_head_dim", 0, kMaxHeadDim);
  if (latent.value_or(0) != 0 && text.Integer("qk_rope_head_dim", 0, kMaxHeadDim) == 0) {
    if (family != nullptr && family->layers->none) return *latent;
    RejectValue(text.Path("qk_rope_head_dim"), *text.Find("qk_rope_head_dim"),
                "be positive beside qk_nope_head_dim");
  }
  const int class_default = family != nullptr ? family->head_dim : 0;
  if (rule == HeadDim::kKvChannels || rule == HeadDim::kPerHead) {
    const char* key = rule == HeadDim::kPerHead ? "hidden_size_per_head" : "kv_channels";
    return text.Integer(key, 1, kMaxWidth).value_or(class_default);
  }
  if (kind != nullptr && kind->head_dim_key != nullptr) {
    if (const auto given = text.Integer(kind->head_dim_key, 1, kMaxWidth)) return *given;
    if (kind->head_dim != 0) return kind->head_dim;
  }
  if (const int64_t given = text.Integer("head_dim", 0, kMaxWidth).value_or(0)) return given;
  // null and 0 ask for the quotient, absence for the class default; most classes that have one fail
  // on null
  if (class_default != 0 && !text.Mentions("head_dim")) return class_default;
  const int64_t quotient = Quotient(text, family, 1);
  if (class_default != 0 && quotient != class_default) text.RejectNull("head_dim");
  return quotient;
}

// head_dim beside the rule of a class that does not read it.
int64_t Agreed(const Dict& text, int64_t by_rule) {
  const int64_t said = text.Integer("head_dim", 0, kMaxWidth).value_or(0);
  if (said == 0 || said == by_rule) return by_rule;
  Reject(ROPE_ERROR_UNSUPPORTED, "%s (%lld) must be %lld, which this model's code takes instead",
         text.Path("head_dim").c_str(), static_cast<long long>(said),
         static_cast<long long>(by_rule));
}

// Words for head_dim that only known families are known to mean.
void CheckOtherWords(const Dict& text, int64_t head_dim) {
  for (const char* key : {"attention_head_dim", "d_head", "head_size", "hidden_size_per_head",
                          "kv_channels", "qk_head_dim"}) {
    const auto given = text.Integer(key, 0, kMaxWidth);
    if (!given || *given == 0 || *given == head_dim || IsSpared(*text.Find(key))) continue;
    Reject(ROPE_ERROR_UNSUPPORTED,
           "%s (%lld) may be the head_dim (%lld is what follows from other keys) of this unknown "
           "model_type: say head_dim, or %s",
           text.Path(key).c_str(), static_cast<long long>(*given), static_cast<long long>(head_dim),
           kAcceptIt);
  }
}

// A width of latent attention: of the layers of one kind, of the kind, of all layers.
int32_t Width(const Dict& text, const Dict& layer, const char* key, int class_default,
              const char* kind_key, int kind_default) {
  auto width = layer.Integer(key, 1, kMaxHeadDim);
  if (!width && kind_key != nullptr) width = text.Integer(kind_key, 1, kMaxHeadDim);
  if (!width && kind_default != 0) width = kind_default;
  if (!width) width = text.Integer(key, 1, kMaxHeadDim);
  return static_cast<int32_t>(width.value_or(class_default));
}

// CLVP rotates the first channels, q, k and v alike.
int32_t ProjectionSpan(const Dict& text) {
  const int64_t heads = text.Integer("num_attention_heads", 1, kMaxWidth).value_or(1);
  const auto width = text.Integer("projection_dim", 1, kMaxWidth);
  if (!width)
    text.RejectMissing("projection_dim", "the number of rotated channels follows from it");
  return static_cast<int32_t>(std::max<int64_t>(*width / (2 * heads), 32));
}

Style StyleOf(const Dict& text, const Family& family, bool latent) {
  if (Holds(family.other.when, text)) return family.other.style;
  if (family.span == Span::kMla && !latent) return Style::kHalves;
  if (family.style != Style::kInterleavedToHalves) return family.style;
  text.RejectNull("rope_interleave");  // which is false to Python
  const bool reads = family.reads_interleave;
  return reads && !text.Bool("rope_interleave").value_or(true) ? Style::kHalves : family.style;
}

// `key` says of `pairs` what the model's code does not do.
void RejectOtherPairs(const Dict& text, const char* key, bool interleaved, const char* pairs) {
  if (IsSpared(*text.Find(key))) return;
  Reject(ROPE_ERROR_UNSUPPORTED, "%s (%s) is not true of this model, whose %s are %s: %s",
         text.Path(key).c_str(), Show(*text.Find(key)).c_str(), pairs,
         interleaved ? "neighbours" : "of two halves", kAcceptIt);
}

// What files say of their pairs must be what the model's code does. No key tells it where the
// family is not known: the pairing is left to the caller then, and so are these.
void CheckPairing(const Dict& text, const rope_config& config) {
  const bool interleaved = config.pairing == ROPE_PAIRING_INTERLEAVED ||
                           config.pairing == ROPE_PAIRING_INTERLEAVED_TO_HALVES;
  const auto check = [&](const char* key, bool says_interleaved) {
    if (config.pairing == 0 || says_interleaved == interleaved) return;
    RejectOtherPairs(text, key, interleaved, "pairs");
  };
  for (const char* key :
       {"rope_interleave", "rope_interleaved", "rotary_interleaved", "rotary_emb_interleaved",
        "interleaved_rope", "rope_traditional", "interleaved"}) {
    if (const auto said = text.Bool(key)) check(key, *said);
  }
  for (const char* key : {"rope_is_neox_style", "is_neox_style", "is_neox", "rotate_half"}) {
    if (const auto said = text.Bool(key)) check(key, !*said);
  }
  constexpr char kKind[] = "position_embedding_type";
  if (const Value* kind = text.Peek(kKind); kind != nullptr) {
    if (Same(*kind, Value{std::string("rope_gptj")})) check(kKind, true);
    if (Same(*kind, Value{std::string("rope_gpt_neox")})) check(kKind, false);
  }
}

// A class that does not read the switch has one kind of attention.
void CheckUseMla(const Dict& text, const Family& family, bool latent) {
  constexpr char kKey[] = "use_mla";
  const auto said = text.Bool(kKey);
  if (!said || *said == latent || IsSpared(*text.Find(kKey))) return;
  Reject(ROPE_ERROR_UNSUPPORTED,
         "%s (%s) is not true of a %s, whose class has %s attention alone: %s",
         text.Path(kKey).c_str(), *said ? "true" : "false", family.model_type,
         latent ? "latent" : "no latent", kAcceptIt);
}

}  // namespace

void CheckPairsOfIndexer(const Dict& text, bool interleaved) {
  constexpr char kKey[] = "indexer_rope_interleave";
  if (interleaved) text.RejectNull(kKey);  // which is false to Python
  if (text.Bool(kKey).value_or(interleaved) != interleaved) {
    RejectOtherPairs(text, kKey, interleaved, "indexer's pairs");
  }
}

bool IsLatent(const Dict& text, const Family* family) {
  // DeepSeek-V2 without latent attention (DeepSeek-OCR) says so, or has no width for it.
  const bool switches = family == nullptr || family->own_keys == OwnKeys::kUseMla;
  if (switches && !text.Bool("use_mla").value_or(true)) {
    for (const char* key : {"qk_nope_head_dim", "qk_rope_head_dim"}) text.Find(key);  // not in use
    return false;
  }
  const bool named = family == nullptr ? text.Find("qk_nope_head_dim") != nullptr &&
                                             text.Find("qk_rope_head_dim") != nullptr
                                       : family->span == Span::kMla;
  if (!switches) CheckUseMla(text, *family, named);
  return named && text.Integer("qk_rope_head_dim", 0, kMaxHeadDim).value_or(1) != 0;
}

void FillHead(const Dict& text, const Family* family, const KindDefaults* kind, const Dict& layer,
              rope_config* config) {
  const bool latent = IsLatent(text, family);
  if (family != nullptr) SetStyle(StyleOf(text, *family, latent), config);
  CheckPairing(text, *config);
  int64_t head_dim;
  if (latent) {
    // An unknown family is latent only if it has both keys.
    config->rotary_dim =
        Width(text, layer, "qk_rope_head_dim", family != nullptr ? family->qk_rope_head_dim : 0,
              kind != nullptr ? kind->rope_key : nullptr, 0);
    config->rotary_offset =
        Width(text, layer, "qk_nope_head_dim", family != nullptr ? family->qk_nope_head_dim : 0,
              kind != nullptr ? kind->nope_key : nullptr, kind != nullptr ? kind->nope : 0);
    head_dim = config->rotary_offset + config->rotary_dim;
  } else {
    head_dim = ByRule(text, family, kind, layer);
    if (family == nullptr) CheckOtherWords(text, head_dim);
    const bool by_rule = family != nullptr && family->head_rule != HeadDim::kKey;
    if (by_rule) head_dim = Agreed(layer, Agreed(text, head_dim));
  }
  if (head_dim < 2 || head_dim > kMaxHeadDim || head_dim % 2 != 0) {
    Reject(ROPE_ERROR_PARSE,
           "%s (%lld, given or hidden_size / num_attention_heads) must be even "
           "and from 2 to %lld",
           text.Path("head_dim").c_str(), static_cast<long long>(head_dim),
           static_cast<long long>(kMaxHeadDim));
  }
  config->head_dim = static_cast<int32_t>(head_dim);
  if (config->rotary_dim % 2 != 0) {
    Reject(ROPE_ERROR_PARSE, "%s (%d) must be even", text.Path("qk_rope_head_dim").c_str(),
           config->rotary_dim);
  }
  if (family != nullptr && family->span == Span::kProjection) {
    config->rotary_dim = ProjectionSpan(text);
    if (config->rotary_dim > head_dim || config->rotary_dim % 2 != 0) {
      Reject(ROPE_ERROR_PARSE,
             "%s (giving %d channels) must give an even number up to head_dim (%lld)",
             text.Path("projection_dim").c_str(), config->rotary_dim,
             static_cast<long long>(head_dim));
    }
  }
  if (family != nullptr && family->span == Span::kTrailing) {
    const auto given = text.Integer("qk_rope_head_dim", 2, head_dim);
    int64_t rotary = given.value_or(0);
    if (!given) {
      const double partial = text.Positive("partial_rotary_factor").value_or(family->partial);
      rotary = static_cast<int64_t>(static_cast<double>(head_dim) * partial);
    }
    if (rotary < 2 || rotary > head_dim || rotary % 2 != 0) {
      Reject(ROPE_ERROR_PARSE, "%s (%lld) must be even and from 2 to head_dim (%lld)",
             text.Path("qk_rope_head_dim").c_str(), static_cast<long long>(rotary),
             static_cast<long long>(head_dim));
    }
    config->rotary_dim = static_cast<int32_t>(rotary);
    config->rotary_offset = config->head_dim - config->rotary_dim;
  }
}

}  // namespace rope::model
