#include "model/language_model.h"

#include <algorithm>
#include <map>
#include <string>

#include "base/limits.h"
#include "model/families.h"
#include "model/head.h"
#include "model/layers.h"
#include "model/own_keys.h"
#include "model/per_layer.h"
#include "model/rope_dictionary.h"
#include "model/scaling.h"
#include "model/typo.h"
#include "model/unread.h"

namespace rope::model {
namespace {

bool LacksRope(const Dict& text, const Family* family) {
  if (family == nullptr) return false;
  return family->layers->none || Holds(family->lacks_rope, text);
}

class LanguageModel {
 public:
  LanguageModel(const ConfigParts& parts, ParsedModel* out)
      : text_(parts.text),
        whole_(parts.whole),
        family_(FindFamily(parts.text_type)),
        entries_(text_),
        out_(out) {
    dict_ = RopeDictionaryOf(text_, family_);
    const bool given = !dict_.empty();
    if (!given && family_ != nullptr && family_->rope != nullptr) {
      RejectEmptyDictionary();
      default_rope_ = ParseJson(family_->rope);
      dict_ = Dict(default_rope_, text_.Path("rope_parameters"));
    }
    nested_ = IsNested(dict_);
    if (nested_) RejectTooMany(dict_);
  }

  void Build() {
    RejectNotOffered();
    RejectOtherShape();
    LayerLabels layers = LabelLayers(text_, family_, HasKinds());
    labels_ = std::move(layers.labels);
    std::vector<std::string_view>& labels = labels_;
    entries_.Label(labels);
    const std::vector<double> thetas = LayerThetas();
    if (LacksRope(text_, family_)) {
      std::fill(labels.begin(), labels.end(), kNope);
      if (labels.empty()) labels.assign(kMaxLayers, kNope);
    } else if (!thetas.empty() && (family_ == nullptr || family_->layers->thetas)) {
      AddThetas(thetas);
      entries_.CheckTypes(*out_, IsLatent(text_, family_));
      RejectLeftovers();
      return;
    } else if (IsOf(Kinds::kCompressed)) {
      AddCompressed();
    } else if (family_ != nullptr && family_->two_ropes != nullptr) {
      AddTwoRopes(*family_->two_ropes);
    } else if (IsOf(Kinds::kScaledLayers) && text_.Find("rope_scaling_layers") != nullptr) {
      AddScaledLayers();
    } else if (nested_) {
      AddNested();
    } else if (IsOf(Kinds::kByLayer)) {
      AddByLayer();
    } else {
      Add(MainName(), Keys(dict_));
    }
    const bool ropes = !out_->types.empty();
    AssignLayers(labels);
    entries_.CheckTypes(*out_, IsLatent(text_, family_));
    if (!layers.counted) out_->layers.clear();
    if (!thetas.empty()) CheckThetas(thetas);
    if (!ropes) {
      RejectRopeBesideNope(text_, dict_);
      return;
    }
    AddIndexer();
    RejectLeftovers();
  }

 private:
  // The rope dictionary has one for each of several kinds of layer.
  bool HasKinds() const {
    size_t kinds = 0;
    for (const auto& [name, value] : dict_.members()) {
      const bool is_kind = value.As<Value::Object>() != nullptr || value.IsNull();
      if (is_kind && !IsRopeKey(name)) ++kinds;
    }
    return nested_ && kinds > 1;
  }

  // Programs differ in whether it switches off what the class has instead of none at all.
  void RejectEmptyDictionary() const {
    for (const char* key : {"rope_scaling", "rope_parameters"}) {
      if (!text_.Mentions(key)) continue;
      Reject(ROPE_ERROR_UNSUPPORTED,
             "%s says nothing, and a %s without it is scaled: give its numbers, or {\"rope_type\": "
             "\"default\"} for none",
             text_.Path(key).c_str(), family_->model_type);
    }
  }

  void ReadStrayPositions() const {
    constexpr char kKey[] = "position_embedding_type";
    const Value* kind = text_.Peek(kKey);
    for (const char* stray : family_->stray_positions) {
      const bool is = kind != nullptr && stray != nullptr && Same(*kind, Value{std::string(stray)});
      if (is) text_.Find(kKey);
    }
  }

  // After all types are made.
  void RejectLeftovers() const {
    if (family_ != nullptr) ReadStrayPositions();
    RejectUnread(text_);
    RejectUnreadOfAttention(text_, text_);
    RejectUnreadOfRope(dict_, nested_);
    if (!nested_) return;
    for (const auto& [name, value] : dict_.members()) {
      if (value.As<Value::Object>() == nullptr) continue;
      RejectUnreadOfRope(Dict(value, dict_.Path(name)), false);
    }
  }

  bool IsOf(Kinds kinds) const { return family_ != nullptr && family_->kinds == kinds; }

  void RejectNotOffered() const {
    if (family_ == nullptr) return;
    for (const char* const* key = family_->not_offered.keys; *key != nullptr; ++key) {
      if (!text_.Mentions(*key)) continue;
      Reject(ROPE_ERROR_UNSUPPORTED, "%s: %s is not read in this version", text_.Path(*key).c_str(),
             family_->not_offered.kind);
    }
  }

  // A class reads one dictionary for all layers, or one for each kind of them. Those that know two
  // kinds read rope_scaling for all, and rope_parameters by kind.
  void RejectOtherShape() const {
    if (family_ == nullptr || dict_.empty() || LacksRope(text_, family_)) return;
    const TwoRopes* two = family_->two_ropes;
    const bool alone = two != nullptr && two->flat == Flat::kAlone;
    const bool two_kinds = (two != nullptr && !alone) || IsOf(Kinds::kByLayer);
    const bool newer = !text_.Child("rope_parameters").empty();
    const bool by_kind = family_->by_kind || IsOf(Kinds::kCompressed) || (two_kinds && newer);
    const bool flat_applies = two == nullptr || two->flat != Flat::kNeither;
    const bool for_all = two_kinds ? flat_applies && !newer : !family_->by_kind;
    if (nested_ ? by_kind : for_all) return;
    const std::string kind = two != nullptr ? two->full_name : std::string(kFull);
    const std::string form = nested_ ? "have its numbers for all layers, and none of one kind"
                                     : "have a dictionary for each kind of layer, such as " + kind;
    Reject(ROPE_ERROR_UNSUPPORTED,
           "%s must %s: the class of a %s does not read the other form of it", dict_.Name().c_str(),
           form.c_str(), family_->model_type);
  }

  RopeKeys Keys(const Dict& dict) const {
    RopeKeys keys;
    keys.dict = dict;
    keys.text = text_;
    keys.whole = whole_;
    keys.family = family_;
    keys.default_theta = 0;
    if (family_ == nullptr) return keys;
    keys.theta_key = family_->theta_key;
    keys.older_theta_key = family_->older_theta_key;
    keys.share_key = family_->share_key;
    keys.default_theta = family_->theta;
    keys.default_partial = family_->partial;
    return keys;
  }

  std::string_view MainName() const {
    if (family_ == nullptr) return kFull;
    if (family_->main_name != nullptr) return family_->main_name;
    return family_->layers->full_nope != FullNope::kNo ? kSliding : kFull;
  }

  LayerType Begin(std::string_view name, const KindDefaults* kind = nullptr) const {
    LayerType type;
    type.name = name;
    FillHead(text_, family_, kind, entries_.OfLabel(name), &type.config);
    return type;
  }

  void Add(std::string_view name, RopeKeys keys, const KindDefaults* kind = nullptr) {
    LayerType type = Begin(name, kind);
    keys.latent = IsLatent(text_, family_);
    FillRope(keys, &type);
    if (family_ != nullptr) FinishAsFamily(text_, dict_, *family_, &type);
    out_->types.push_back(std::move(type));
  }

  void AddNested() {
    for (const auto& [name, value] : dict_.members()) {
      if (value.As<Value::Object>() == nullptr) continue;
      const Dict kind(value, dict_.Path(name));
      if (family_ != nullptr && family_->theta_key == nullptr) RequireTheta(name, kind);
      if (IsOf(Kinds::kByLayer)) RequireTheta(name, kind, "rope_theta");
      Add(name, Keys(kind));
    }
  }

  // The dictionary of one kind of layer, in either form of the file.
  Dict DictOf(std::string_view name, bool flat_applies) const {
    if (nested_) return dict_.Child(name);
    return flat_applies ? dict_ : Dict();
  }

  void AddTwoRopes(const TwoRopes& ropes) {
    AddKind(ropes.full_name, ropes.full, ropes.flat != Flat::kNeither, ropes.proportional);
    AddKind(ropes.sliding_name, ropes.sliding,
            ropes.flat == Flat::kBoth || ropes.flat == Flat::kAlone, false);
    for (const auto& [name, value] : dict_.members()) {  // kinds that the class does not know
      const bool known = name == ropes.full_name || name == ropes.sliding_name;
      const bool listed = std::find(labels_.begin(), labels_.end(), name) != labels_.end();
      if (nested_ && !known && listed && value.As<Value::Object>() != nullptr) {
        Add(name, Keys(Dict(value, dict_.Path(name))));
      }
    }
  }

  Dict FullDict() const { return DictOf(family_->two_ropes->full_name, true); }

  // Of the layers that the file lists, if it does.
  bool IsUsed(std::string_view name) const {
    const bool main = name == family_->two_ropes->full_name;
    return labels_.empty() || std::any_of(labels_.begin(), labels_.end(), [&](auto label) {
             return label == name || (main && label == kFull);
           });
  }

  // Where dictionaries of kinds are there, classes that read no theta beside them have no default.
  // `unread`: the key that counts without dictionaries alone; nullptr: there is none.
  void RequireTheta(std::string_view name, const Dict& kind, const char* unread = nullptr) const {
    if (!nested_ || kind.Mentions("rope_theta")) return;
    const std::string reason = "the class reads none beside its dictionaries, and has no default";
    dict_.RejectMissing(std::string(name) + ".rope_theta",
                        unread != nullptr ? "the class does not take " + std::string(unread) +
                                                " for it beside its dictionaries"
                                          : reason + " for them");
  }

  void AddKind(std::string_view name, const KindDefaults& kind, bool flat_applies,
               bool proportional) {
    RejectNullKind(name);
    const bool omitted = nested_ && !dict_.Mentions(name);
    if (omitted && !family_->two_ropes->completes) return;  // no layer may be of it
    if (family_->layers == &kMiniCpmSalaLayers && !IsUsed(name)) return;
    RopeKeys keys = Keys(DictOf(name, flat_applies));
    keys.theta_key = kind.theta_key;
    keys.default_theta = kind.theta;
    keys.theta = OfKind(ListedThetas(), "rope_theta", name);
    if (kind.theta_beside) keys.theta = text_.Positive(kind.theta_key).value_or(kind.theta);
    const bool required = kind.theta_key == nullptr || kind.theta_inside;
    if (!omitted && keys.theta == 0 && required && IsUsed(name)) {
      RequireTheta(name, keys.dict, kind.theta_key);
    }
    keys.default_partial =
        keys.dict.exists() && kind.nested_partial != 0 ? kind.nested_partial : kind.partial;
    keys.default_proportional = proportional && !keys.dict.exists();
    Add(name, keys, &kind);
  }

  // Molmo 2: layers that rope_scaling_layers does not list have the same theta and no scaling. A
  // kind that no layer is of is none of the model's: files that list all layers say what others say
  // by leaving the list out.
  void AddScaledLayers() {
    constexpr std::string_view kScaled = "scaled", kUnscaled = "unscaled";
    const std::set<int64_t> scaled = ListedLayers(text_, "rope_scaling_layers");
    for (size_t i = 0; i < labels_.size(); ++i) {
      labels_[i] = scaled.count(static_cast<int64_t>(i)) != 0 ? kScaled : kUnscaled;
    }
    entries_.Label(labels_);
    Add(kScaled, Keys(dict_));
    RopeKeys unscaled = Keys(Dict());
    unscaled.theta = dict_.Positive("rope_theta").value_or(0);
    Add(kUnscaled, unscaled);
    const auto is_idle = [this](const LayerType& type) {
      return std::find(labels_.begin(), labels_.end(), type.name) == labels_.end();
    };
    auto& types = out_->types;
    types.erase(std::remove_if(types.begin(), types.end(), is_idle), types.end());
  }

  // What a list with a number for every layer says of all layers of a kind. 0 if it is absent.
  double OfKind(const std::vector<double>& numbers, const char* key, std::string_view label) const {
    double found = 0;
    for (size_t i = 0; i < std::min(numbers.size(), labels_.size()); ++i) {
      if (labels_[i] != label) continue;
      if (numbers[i] == 0) {
        Reject(ROPE_ERROR_PARSE, "%s[%zu] must be positive", text_.Path(key).c_str(), i);
      }
      if (found == 0) found = numbers[i];
      if (found == numbers[i]) continue;
      Reject(ROPE_ERROR_UNSUPPORTED, "%s[%zu] (%s) must be that of all layers of type \"%s\", %s",
             text_.Path(key).c_str(), i, ToText(numbers[i]).c_str(), Printable(label).c_str(),
             ToText(found).c_str());
    }
    return found;
  }

  // rope_theta as a list with an entry for every layer. None: one for all, as in other models.
  std::vector<double> ListedThetas() const {
    const Value* theta = text_.Peek("rope_theta");
    const bool listed = theta != nullptr && theta->As<Value::Array>() != nullptr;
    return listed ? LayerNumbers(text_, "rope_theta", LayerCount(text_, family_))
                  : std::vector<double>();
  }

  // Step 3.5: theta and the rotated share by layer, the same in all layers of a kind, and a scaling
  // that only the kinds of yarn_only_types have, whatever its rope_type.
  void AddByLayer() {
    if (const Value::Array* use = text_.Array("use_rope_layers"); use != nullptr && !use->empty()) {
      Reject(ROPE_ERROR_UNSUPPORTED, "%s must be empty in this version",
             text_.Path("use_rope_layers").c_str());
    }
    const std::vector<double> thetas = ListedThetas();
    const std::vector<double> partials =
        LayerNumbers(text_, "partial_rotary_factors", LayerCount(text_, family_));
    const Value::Array* scaled = text_.Array("yarn_only_types");
    std::vector<std::string_view> kinds;
    for (std::string_view label : labels_) {
      if (label == kNope || std::find(kinds.begin(), kinds.end(), label) != kinds.end()) continue;
      kinds.push_back(label);
      if (kinds.size() > kMaxEntries) {
        Reject(ROPE_ERROR_UNSUPPORTED, "%s has more than %zu different entries",
               text_.Path("layer_types").c_str(), kMaxEntries);
      }
      const auto names_it = [label](const Value& entry) {
        const auto* name = entry.As<std::string>();
        return name != nullptr && *name == label;
      };
      const bool plain = scaled != nullptr && !scaled->empty() &&
                         std::none_of(scaled->begin(), scaled->end(), names_it);
      if (!dict_.empty() && plain == (label == kFull)) RejectScaledKind(label);
      RopeKeys keys = Keys(plain ? Dict() : dict_);
      keys.theta = OfKind(thetas, "rope_theta", label);
      if (plain && keys.theta == 0) keys.theta = dict_.Positive("rope_theta").value_or(0);
      keys.partial = OfKind(partials, "partial_rotary_factors", label);
      Add(label, keys);
    }
    if (kinds.empty()) Add(kFull, Keys(dict_));
  }

  [[noreturn]] void RejectScaledKind(std::string_view label) const {
    Reject(ROPE_ERROR_UNSUPPORTED,
           "%s must be [\"full_attention\"] beside %s, as transformers scales that kind alone, and "
           "the model's own code %s \"%s\"",
           text_.Path("yarn_only_types").c_str(), dict_.Name().c_str(),
           label == kFull ? "not" : "also", Printable(label).c_str());
  }

  bool IsNull(std::string_view name) const {
    return dict_.Mentions(name) && dict_.Find(name) == nullptr;
  }

  // A kind that the class knows. Elsewhere null is a kind without RoPE.
  void RejectNullKind(std::string_view name) const {
    if (!nested_ || !IsNull(name)) return;
    Reject(
        ROPE_ERROR_UNSUPPORTED,
        "%s (null) must be a dictionary, or absent: some classes take their defaults for it, and "
        "others none",
        dict_.Path(name).c_str());
  }

  // DeepSeek-V4: plain RoPE where attention is not compressed, the scaled one of another theta
  // where it is, with no attention factor but one that the file gives.
  void AddCompressed() {
    for (const std::string_view kind : {kMain, kCompress}) {
      RejectNullKind(kind);
      if (nested_ && !dict_.Mentions(kind)) dict_.RejectMissing(kind, "the other kind is there");
      RequireTheta(kind, dict_.Child(kind));
    }
    for (const char* theta : {"rope_theta", "compress_rope_theta"}) text_.RejectNull(theta);
    RopeKeys main = Keys(nested_ ? dict_.Child(kMain) : Dict());
    if (!nested_) {
      main.theta = text_.Positive("rope_theta").value_or(family_->theta);
      ReadRepeated(dict_, {"rope_theta"}, main.theta);
    }
    Add(kMain, main);
    Add(kCompress, CompressKeys());
  }

  RopeKeys CompressKeys() const {
    RopeKeys compress = Keys(nested_ ? dict_.Child(kCompress) : dict_);
    compress.default_theta = family_->compress_theta;
    const double theta = text_.Positive("compress_rope_theta").value_or(family_->compress_theta);
    if (!nested_) compress.theta = theta;
    if (nested_) compress.theta_key = "compress_rope_theta";
    compress.default_attention_factor = 1;
    const bool yarn = compress.dict.String("rope_type").value_or("") == "yarn" ||
                      compress.dict.String("type").value_or("") == "yarn";
    if (nested_ && yarn && compress.dict.Find("attention_factor") == nullptr) {
      compress.dict.RejectMissing("attention_factor",
                                  "it is 1 in the model's code, and another one in transformers");
    }
    return compress;
  }

  // layer_rope_theta, of the classes that read it, and of those that are not known.
  std::vector<double> LayerThetas() const {
    constexpr char kKey[] = "layer_rope_theta";
    const bool is_mask = family_ != nullptr && family_->layers->keys[0] == std::string_view(kKey);
    if (family_ != nullptr && !family_->layers->thetas && !is_mask) return {};
    return LayerNumbers(text_, kKey, LayerCount(text_, family_));
  }

  // Muse: which layers have RoPE. Their theta is that of all layers.
  void CheckThetas(const std::vector<double>& thetas) const {
    for (size_t i = 0; i < thetas.size() && !LacksRope(text_, family_); ++i) {
      const double theta = out_->types[0].config.theta;
      if (thetas[i] == 0 || thetas[i] == theta) continue;
      Reject(ROPE_ERROR_UNSUPPORTED,
             "%s (%s) must be 0 or %s, the rope_theta that the class of a %s takes for all layers",
             Entry(text_, "layer_rope_theta", i).c_str(), ToText(thetas[i]).c_str(),
             ToText(theta).c_str(), family_->model_type);
    }
  }

  // The same where each layer has its theta: a type per theta.
  void AddThetas(const std::vector<double>& thetas) {
    std::vector<double> distinct;
    for (double theta : thetas) {
      if (theta != 0 && std::find(distinct.begin(), distinct.end(), theta) == distinct.end()) {
        distinct.push_back(theta);
      }
    }
    if (distinct.size() > kMaxEntries) {
      Reject(ROPE_ERROR_UNSUPPORTED, "%s has %zu different values and must have at most %zu",
             text_.Path("layer_rope_theta").c_str(), distinct.size(), kMaxEntries);
    }
    for (double theta : distinct) {
      const std::string name = "theta_" + ToText(theta);
      RopeKeys keys = Keys(nested_ ? Dict() : dict_);
      keys.theta = theta;
      if (!default_rope_.IsNull()) dict_.Find("rope_theta");  // the class's, which these replace
      Add(distinct.size() == 1 ? kFull : std::string_view(name), keys);
    }
    for (size_t i = 0; i < std::min(thetas.size(), labels_.size()); ++i) {
      if (thetas[i] == 0 || labels_[i] != kNope) continue;
      Reject(ROPE_ERROR_UNSUPPORTED, "%s[%zu] (%s) must be 0: the layer has no RoPE by another key",
             text_.Path("layer_rope_theta").c_str(), i, ToText(thetas[i]).c_str());
    }
    for (double theta : thetas) {
      const auto found = std::find(distinct.begin(), distinct.end(), theta);
      out_->layers.push_back(theta == 0 ? NopeType()
                                        : static_cast<int32_t>(found - distinct.begin()));
    }
  }

  // The type without RoPE, made when the first layer needs it.
  int32_t NopeType() {
    for (size_t i = 0; i < out_->types.size(); ++i) {
      if (out_->types[i].config.scaling == ROPE_SCALING_NOPE) return static_cast<int32_t>(i);
    }
    LayerType type = Begin(kNope);
    rope_config nope = ROPE_INIT(rope_config);
    nope.head_dim = type.config.head_dim;
    nope.pairing = type.config.pairing;
    nope.scaling = ROPE_SCALING_NOPE;
    type.config = nope;
    out_->types.push_back(std::move(type));
    return static_cast<int32_t>(out_->types.size() - 1);
  }

  void AssignLayers(const std::vector<std::string_view>& labels) {
    const size_t ropes = out_->types.size();
    std::map<std::string_view, int32_t> types;  // labels repeat, and may be long
    for (size_t i = 0; i < labels.size(); ++i) {
      auto found = types.find(labels[i]);
      if (found == types.end()) {
        found = types.emplace(labels[i], TypeOf(labels[i], i, ropes)).first;
      }
      out_->layers.push_back(found->second);
    }
    if (labels.empty() && nested_ &&
        std::any_of(dict_.members().begin(), dict_.members().end(),
                    [](const auto& member) { return member.second.IsNull(); })) {
      NopeType();
    }
  }

  // Where the text says of what kind a layer is; the layer, where a rule says it.
  std::string PathOfLabel(size_t layer) const {
    for (const char* key : {"layer_types", "layers_block_type", "block_types"}) {
      const Value::Array* list = text_.Array(key);
      if (list == nullptr || list->empty()) continue;
      return text_.Path(key) + "[" + std::to_string(layer % list->size()) + "]";
    }
    return "layer " + std::to_string(layer);
  }

  int32_t TypeOf(std::string_view label, size_t layer, size_t ropes) {
    if (label == kNope || (nested_ && IsNull(label))) return NopeType();
    for (size_t i = 0; i < ropes; ++i) {
      if (out_->types[i].name == label) return static_cast<int32_t>(i);
    }
    if (ropes == 1 && !nested_ && !IsKnownAttention(label)) {
      Reject(ROPE_ERROR_UNSUPPORTED,
             "%s (\"%s\") is no kind of layer that this version knows, and may have no RoPE: write "
             "full_attention where q and k turn, or nope",
             PathOfLabel(layer).c_str(), Printable(label).c_str());
    }
    if (ropes == 1 && !nested_) return 0;
    const TwoRopes* kinds = family_ != nullptr ? family_->two_ropes : nullptr;
    if (label == kFull && kinds != nullptr && kinds->full_name != kFull) {
      return TypeOf(kinds->full_name, layer, ropes);  // the name of older files
    }
    std::string given;
    for (size_t i = 0; i < ropes; ++i) given += (i == 0 ? "" : ", ") + out_->types[i].name;
    Reject(ROPE_ERROR_PARSE, "%s (\"%s\") must be a kind that %s is about, which are %s",
           PathOfLabel(layer).c_str(), Printable(label).c_str(), dict_.Name().c_str(),
           Printable(given).c_str());
  }

  // The lightning indexer of sparse attention has heads of its own: [rope | nope], but trailing in
  // DeepSeek-V4. Its softmax is not scaled by mscale_all_dim.
  void AddIndexer() {
    const Indexer rule = family_ != nullptr ? family_->indexer : Indexer::kNone;
    if (rule == Indexer::kNone) return;
    const bool trailing = rule == Indexer::kTrailing, interleaved = rule == Indexer::kInterleaved;
    CheckPairsOfIndexer(text_, trailing || interleaved);
    const auto width = text_.Integer("index_head_dim", 2, kMaxHeadDim);
    if (!width) return;
    LayerType type = Begin("indexer");
    rope_config& config = type.config;
    if (config.rotary_dim > *width || *width % 2 != 0) {
      Reject(ROPE_ERROR_PARSE, "%s (%lld) must be even and at least qk_rope_head_dim (%d)",
             text_.Path("index_head_dim").c_str(), static_cast<long long>(*width),
             config.rotary_dim);
    }
    config.head_dim = static_cast<int32_t>(*width);
    config.rotary_offset = trailing ? config.head_dim - config.rotary_dim : 0;
    if (!trailing) SetStyle(interleaved ? Style::kInterleavedToHalves : Style::kHalves, &config);
    const Dict& dict = family_->two_ropes != nullptr ? FullDict() : dict_;
    RopeKeys keys = trailing ? CompressKeys() : Keys(dict);
    keys.indexer = true;
    FillRope(keys, &type);
    out_->types.push_back(std::move(type));
  }

  const Dict& text_;
  const Dict& whole_;
  const Family* family_;
  std::vector<std::string_view> labels_;
  PerLayer entries_;
  ParsedModel* out_;
  Dict dict_;
  Value default_rope_;
  bool nested_ = false;
};

}  // namespace

void AddLanguageModel(const ConfigParts& parts, ParsedModel* out) {
  LanguageModel(parts, out).Build();
}

}  // namespace rope::model
