// The C edge of the parser: rope_model_* of section 11 of the header. Checks arguments, turns
// exceptions into statuses, copies configurations out.
#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/guard.h"
#include "base/status.h"
#include "base/struct_size.h"
#include "context/digest.h"
#include "librope/model.h"
#include "model/accept.h"
#include "model/dialects.h"
#include "model/diffusion.h"
#include "model/digest.h"
#include "model/gguf.h"
#include "model/gguf_given.h"
#include "model/gguf_parts.h"
#include "model/json.h"
#include "model/language_model.h"
#include "model/locate.h"
#include "model/rope_dictionary.h"
#include "model/scaling.h"
#include "model/typo.h"
#include "model/unread.h"
#include "model/vision.h"

struct rope_model {
  rope::model::ParsedModel parsed;
};

namespace rope::model {
namespace {

// The theta of all layers of the language model; 0 if they have several, or none.
double ThetaOfAll(const ParsedModel& parsed) {
  double theta = 0;
  for (const LayerType& type : parsed.types) {
    if (type.name == kVisionType || type.config.scaling == ROPE_SCALING_NOPE) continue;
    if (theta != 0 && theta != type.config.theta) return 0;
    theta = type.config.theta;
  }
  return theta;
}

// The language model's and the tower's own keys have had their turn.
void RejectUnreadAround(const ConfigParts& parts, const Dict& root, const ParsedModel& parsed) {
  const double theta = ThetaOfAll(parsed);
  const auto reject = [&parts, theta](const Dict& around) {
    if (theta != 0) ReadRepeated(around, {"rope_theta"}, theta);  // be it that of the class
    RejectUnread(around, parts.text);
    RejectUnreadOfAttention(around, parts.text);
  };
  const bool has_inner = InnerModel(root) != nullptr;
  if (parts.text_nested || has_inner) reject(root);
  if (!has_inner) return;
  if (parts.text_nested) reject(parts.whole);
  reject(root.Child("text_config"));  // of older files of ColPali
}

// What a text says of the attention around the rotation, and transformers does not do.
void AddNotes(const ConfigParts& parts, ParsedModel* parsed) {
  constexpr char kChunks[] = "dual_chunk_attention_config";
  const Value* chunks = parts.text.Peek(kChunks);
  if (chunks == nullptr) return;
  parsed->notes.push_back(
      parts.text.Path(kChunks) +
      " is not used: programs that have dual chunk attention (vLLM) give q and k "
      "of tokens beyond one chunk other positions; transformers does not");
}

void Read(const Dict& root, ParsedModel* parsed) {
  if (IsDiffusion(root)) {
    AddDiffusion(root, parsed);
    return;
  }
  if (ReadDialect(root, parsed)) return;
  if (IsBareDictionary(root)) {
    AddBareDictionary(root, parsed);
    return;
  }
  const ConfigParts parts = Locate(root);
  RejectNotOffered(parts);
  RejectTyposOfModel(root, parts.outer_type);
  if (parts.text_nested) RejectTyposOfModel(parts.text, parts.text_type);
  const bool vision = IsVisionModel(parts);
  if (!vision && MayHaveRope(parts)) AddLanguageModel(parts, parsed);
  AddVisionTower(parts, parsed);
  if (!parsed->types.empty()) {
    RejectUnreadAround(parts, root, *parsed);
    AddNotes(parts, parsed);
    return;
  }
  if (!vision) RejectWithoutRope(parts);
  root.RejectMissing("hidden_size", "the head_dim of a vision model follows from it");
}

// What holds for all readers.
void Finish(ParsedModel* parsed) {
  for (const LayerType& type : parsed->types) {
    RejectUncreatable(type);
    if (!type.follows.empty()) {
      parsed->notes.push_back(Printable(type.name) + ": " + type.follows);
    }
  }
}

void Parse(std::string_view json, const std::vector<std::string_view>& accepted,
           ParsedModel* parsed) {
  const Value value = ParseJson(json);
  const AcceptedKeys keys(value, accepted);
  Read(Dict(value, ""), parsed);
  Finish(parsed);
  keys.RejectIdle();
}

// Readers of all dialects record their errors in the name of rope_model_create.
rope_status FailAs(const char* function, rope_status status) {
  constexpr std::string_view kRecorded = "rope_model_create: ";
  const std::string message = std::string(rope_last_error()).substr(kRecorded.size());
  return Fail(status, "%s: %s", function, message.c_str());
}

// `read` makes the model, or throws Error.
template <class Read>
rope_status CreateBy(const char* function, rope_model** out, Read read) {
  try {
    auto model = std::make_unique<rope_model>();
    read(&model->parsed);
    *out = model.release();
    return ROPE_OK;
  } catch (const Error& error) {
    return FailAs(function, error.status);
  }
}

// The same for GGUF, whose kinds are checked here.
template <class Read>
rope_status CreateGgufBy(const char* function, rope_model** out, Read read) {
  return CreateBy(function, out, [&](ParsedModel* parsed) {
    read(parsed);
    Finish(parsed);
  });
}

rope_status Create(const char* function, std::string_view json,
                   const std::vector<std::string_view>& accepted, rope_model** out) {
  return CreateBy(function, out, [&](ParsedModel* parsed) { Parse(json, accepted, parsed); });
}

rope_status FailNull(const char* function, const char* argument) {
  return Fail(ROPE_ERROR_INVALID_ARGUMENT, "%s: %s (NULL) must not be NULL", function, argument);
}

rope_status CheckType(const char* function, const ParsedModel& parsed, int32_t type) {
  if (type >= 0 && static_cast<size_t>(type) < parsed.types.size()) return ROPE_OK;
  return Fail(ROPE_ERROR_INVALID_ARGUMENT, "%s: type (%d) must be from 0 to %zu", function, type,
              parsed.types.size() - 1);
}

}  // namespace
}  // namespace rope::model

using rope::Fail;
using rope::model::FailNull;
using rope::model::ParsedModel;

extern "C" rope_status rope_model_create(const char* json, size_t length, rope_model** out) {
  if (json == nullptr) return FailNull("rope_model_create", "json");
  if (out == nullptr) return FailNull("rope_model_create", "out");
  return rope::Guard("rope_model_create", [=] {
    return rope::model::Create("rope_model_create", {json, length}, {}, out);
  });
}

extern "C" rope_status rope_model_create_accepting(const char* json, size_t length,
                                                   const char* const* accepted_keys, int32_t count,
                                                   rope_model** out) {
  constexpr const char* kFunction = "rope_model_create_accepting";
  constexpr int32_t kMost = 256;  // each is looked for in the whole text
  if (json == nullptr) return FailNull(kFunction, "json");
  if (out == nullptr) return FailNull(kFunction, "out");
  if (count < 0 || count > kMost) {
    return Fail(ROPE_ERROR_INVALID_ARGUMENT, "%s: count (%d) must be from 0 to %d", kFunction,
                count, kMost);
  }
  if (count != 0 && accepted_keys == nullptr) return FailNull(kFunction, "accepted_keys");
  for (int32_t i = 0; i < count; ++i) {
    if (accepted_keys[i] != nullptr) continue;
    return Fail(ROPE_ERROR_INVALID_ARGUMENT, "%s: accepted_keys[%d] (NULL) must not be NULL",
                kFunction, i);
  }
  return rope::Guard(kFunction, [=] {
    const std::vector<std::string_view> accepted(accepted_keys, accepted_keys + count);
    return rope::model::Create(kFunction, {json, length}, accepted, out);
  });
}

extern "C" const char* rope_model_note(const rope_model* model, int32_t index) {
  if (model == nullptr || index < 0) return nullptr;
  const std::vector<std::string>& notes = model->parsed.notes;
  return static_cast<size_t>(index) < notes.size() ? notes[index].c_str() : nullptr;
}

extern "C" rope_status rope_model_create_gguf(const void* data, size_t size, rope_model** out) {
  constexpr const char* kFunction = "rope_model_create_gguf";
  if (data == nullptr) return FailNull(kFunction, "data");
  if (out == nullptr) return FailNull(kFunction, "out");
  return rope::Guard(kFunction, [=] {
    return rope::model::CreateGgufBy(kFunction, out, [=](ParsedModel* parsed) {
      ReadGguf(rope::model::ParseGguf({static_cast<const char*>(data), size}), parsed);
    });
  });
}

extern "C" rope_status rope_model_create_gguf_values(const rope_gguf_value* values, int32_t count,
                                                     const rope_gguf_factors* factors,
                                                     int32_t factor_count, rope_model** out) {
  constexpr const char* kFunction = "rope_model_create_gguf_values";
  if (out == nullptr) return FailNull(kFunction, "out");
  return rope::Guard(kFunction, [=] {
    return rope::model::CreateGgufBy(kFunction, out, [=](ParsedModel* parsed) {
      rope::model::GivenGguf given;
      TakeGgufValues(values, count, factors, factor_count, &given);
      ReadGguf(given.file, parsed);
    });
  });
}

extern "C" rope_status rope_model_load_gguf(const char* path, rope_model** out) {
  constexpr const char* kFunction = "rope_model_load_gguf";
  if (path == nullptr) return FailNull(kFunction, "path");
  if (out == nullptr) return FailNull(kFunction, "out");
  return rope::Guard(kFunction, [=] {
    return rope::model::CreateGgufBy(
        kFunction, out, [=](ParsedModel* parsed) { rope::model::LoadGguf(path, parsed); });
  });
}

extern "C" void rope_model_destroy(rope_model* model) { delete model; }

extern "C" int32_t rope_model_layer_type_count(const rope_model* model) {
  return model == nullptr ? 0 : static_cast<int32_t>(model->parsed.types.size());
}

extern "C" const char* rope_model_layer_type_name(const rope_model* model, int32_t type) {
  if (type < 0 || type >= rope_model_layer_type_count(model)) return nullptr;
  return model->parsed.types[type].name.c_str();
}

extern "C" rope_status rope_model_layer_type(const rope_model* model, int32_t layer,
                                             int32_t* type) {
  constexpr const char* kFunction = "rope_model_layer_type";
  if (model == nullptr) return FailNull(kFunction, "model");
  if (type == nullptr) return FailNull(kFunction, "type");
  const ParsedModel& parsed = model->parsed;
  if (parsed.layers.empty()) {
    return Fail(ROPE_ERROR_INVALID_ARGUMENT,
                "%s: layer (%d): the text that the model was made from %s", kFunction, layer,
                parsed.bare ? "was a rope dictionary, which has no layers"
                            : "does not tell how many layers there are, or their kinds");
  }
  if (layer < 0 || static_cast<size_t>(layer) >= parsed.layers.size()) {
    return Fail(ROPE_ERROR_INVALID_ARGUMENT, "%s: layer (%d) must be from 0 to %zu", kFunction,
                layer, parsed.layers.size() - 1);
  }
  *type = parsed.layers[layer];
  return ROPE_OK;
}

extern "C" rope_status rope_model_config(const rope_model* model, int32_t type,
                                         rope_config* config) {
  constexpr const char* kFunction = "rope_model_config";
  if (model == nullptr) return FailNull(kFunction, "model");
  if (config == nullptr) return FailNull(kFunction, "config");
  if (rope_status s = rope::model::CheckType(kFunction, model->parsed, type)) return s;
  const uint32_t size = config->struct_size;
  if (rope_status s = rope::CheckStructSize(kFunction, "config", size, sizeof(size))) return s;
  rope_config full = ConfigOf(model->parsed.types[type]);
  full.struct_size = size;
  const auto* bytes = reinterpret_cast<const unsigned char*>(&full);
  for (size_t i = size; i < sizeof(full); ++i) {
    if (bytes[i] != 0) {
      return Fail(
          ROPE_ERROR_UNSUPPORTED,
          "%s: config->struct_size (%u) has no room for a field at byte %zu that this model "
          "needs",
          kFunction, size, i);
    }
  }
  std::memset(config, 0, size);  // the part of a newer program's struct that this version lacks
  std::memcpy(config, &full, std::min<size_t>(size, sizeof(full)));
  return ROPE_OK;
}

extern "C" rope_status rope_model_latent_ids(const rope_model* model, int32_t type,
                                             const rope_latent_args* args, float* ids,
                                             int64_t capacity, int64_t* tokens) {
  constexpr const char* kFunction = "rope_model_latent_ids";
  if (model == nullptr) return FailNull(kFunction, "model");
  if (args == nullptr) return FailNull(kFunction, "args");
  if (tokens == nullptr) return FailNull(kFunction, "tokens");
  const ParsedModel& parsed = model->parsed;
  if (rope_status s = rope::model::CheckType(kFunction, parsed, type)) return s;
  if (parsed.latent_ids.empty()) {
    return Fail(ROPE_ERROR_UNSUPPORTED, "%s: model is none of diffusers (no _class_name)",
                kFunction);
  }
  rope_latent_args known;
  if (rope_status s = rope::CopyStruct(kFunction, "args", args, &known)) return s;
  return WriteLatentIds(kFunction, parsed.latent_ids[type], known, ids, capacity, tokens);
}

extern "C" rope_status rope_model_digest(const rope_model* model, int32_t type, rope_digest same,
                                         rope_digest_text* digest) {
  constexpr const char* kFunction = "rope_model_digest";
  if (model == nullptr) return FailNull(kFunction, "model");
  if (digest == nullptr) return FailNull(kFunction, "digest");
  if (type != -1) {
    if (rope_status s = rope::model::CheckType(kFunction, model->parsed, type)) return s;
  }
  if (rope_status s = rope::CheckSame(kFunction, same)) return s;
  return rope::Guard(kFunction, [=]() -> rope_status {
    std::string text;
    const ParsedModel& parsed = model->parsed;
    if (rope_status s = rope::model::DigestOfModel(kFunction, parsed, type, same, &text)) return s;
    *digest = rope::AsDigest(text);
    return ROPE_OK;
  });
}
