#include "model/layers.h"

#include <algorithm>
#include <string>
#include <utility>

#include "model/accept.h"

namespace rope::model {
namespace {

constexpr LayerRule kUnknownLayers = LayerRule().Mixes();

// MiniCPM-SALA: a list of mixers, which begins again where it is too short.
std::vector<std::string_view> MixerLabels(const Dict& text, int count) {
  constexpr char kKey[] = "mixer_types";
  const bool attention_turns = text.Bool("attn_use_rope").value_or(true);
  const bool lightning_turns = text.Bool("lightning_use_rope").value_or(true);
  std::vector<std::string_view> labels(static_cast<size_t>(count), kFull);
  const Value::Array* mixers = text.Array(kKey);
  if (mixers != nullptr && static_cast<int>(mixers->size()) > count) {
    Reject(ROPE_ERROR_PARSE, "%s has %zu entries and must have at most one for each of %d layers",
           text.Path(kKey).c_str(), mixers->size(), count);
  }
  const bool listed = mixers != nullptr && !mixers->empty();
  for (size_t i = 0; i < labels.size(); ++i) {
    const size_t entry = listed ? i % mixers->size() : 0;
    const auto* name = listed ? (*mixers)[entry].As<std::string>() : nullptr;
    const auto is = [&](std::initializer_list<std::string_view> names) {
      return name != nullptr && std::find(names.begin(), names.end(), *name) != names.end();
    };
    const bool lightning = is({"lightning", "lightning_attn", "lightning-attn"});
    if (listed && !lightning && !is({"minicpm4", "minicpm", "standard", "attention", "attn"})) {
      RejectValue(Entry(text, kKey, entry), (*mixers)[entry], "be minicpm4 or lightning-attn");
    }
    const bool turns = lightning ? lightning_turns : attention_turns;
    labels[i] = !turns ? kNope : lightning ? kLightning : kFull;
  }
  return labels;
}

[[noreturn]] void RejectTooMany(const Dict& text, const char* key) {
  Reject(ROPE_ERROR_PARSE, "%s gives too many layers and must give at most %d",
         text.Path(key).c_str(), kMaxLayers);
}

// IQuest Q1: layers of the beginning, a block so many times, and layers of the end. layer_types is
// what the configuration classes of its engines make of them, and they do not read it.
std::vector<std::string_view> BlockLabels(const Dict& text, int count) {
  constexpr char kTimes[] = "num_hybrid_layers_block", kWindow[] = "sliding_window";
  std::vector<std::string_view> labels;
  const auto add = [&](const char* key, std::initializer_list<std::string_view> of_class) {
    const Value::Array* list = text.Array(key);
    if (list == nullptr) labels.insert(labels.end(), of_class);
    for (size_t i = 0; list != nullptr && i < list->size(); ++i) {
      const auto* label = (*list)[i].As<std::string>();
      if (label == nullptr || (*label != kFull && *label != kSliding)) {
        RejectValue(Entry(text, key, i), (*list)[i], "be full_attention or sliding_attention");
      }
      labels.push_back(*label);
      if (labels.size() > kMaxLayers) RejectTooMany(text, key);
    }
  };
  add("first_layers_types", {kFull});
  const size_t begin = labels.size();
  add("hybrid_layers_types_block", {kFull, kSliding, kSliding, kSliding});
  const auto block = static_cast<int64_t>(labels.size() - begin);
  const int64_t times = text.Integer(kTimes, 0, kMaxLayers).value_or(21);
  if (block * times > kMaxLayers) RejectTooMany(text, kTimes);
  labels.resize(begin + static_cast<size_t>(block * times));
  for (size_t i = begin + static_cast<size_t>(block); i < labels.size(); ++i) {
    labels[i] = labels[i - static_cast<size_t>(block)];
  }
  add("last_layers_types", {kFull, kFull, kFull});
  const bool windows = !text.Mentions(kWindow) || text.Integer(kWindow, 1, kMaxLength).has_value();
  const bool hybrid =
      !text.Mentions("use_hybrid_layers") || text.Bool("use_hybrid_layers").value_or(false);
  if (hybrid && count != 0 && labels.size() != static_cast<size_t>(count)) {
    Reject(ROPE_ERROR_PARSE,
           "%s (%d) must be the number of layers that first_layers_types, "
           "hybrid_layers_types_block, num_hybrid_layers_block and last_layers_types give, %zu",
           text.Path("num_hidden_layers").c_str(), count, labels.size());
  }
  if (!hybrid) labels.resize(static_cast<size_t>(count != 0 ? count : kMaxLayers));
  if (!hybrid || !windows) std::fill(labels.begin(), labels.end(), kFull);
  return labels;
}

// Cohere 2 MoE: the first layers are dense and have a pattern of their own. If that is 1, dense
// layers turn, whatever their attention is.
class DensePrefix {
 public:
  DensePrefix() = default;
  explicit DensePrefix(const Dict& text) : types_(text.Array("mlp_layer_types")) {
    constexpr char kPeriod[] = "prefix_dense_sliding_window_pattern";
    layers_ = static_cast<size_t>(text.Integer("first_k_dense_replace", 0, kMaxLayers).value_or(0));
    period_ = static_cast<size_t>(text.Integer(kPeriod, 1, kMaxLayers).value_or(1));
  }

  size_t layers() const { return layers_; }
  bool IsFull(size_t i) const { return (i + 1) % period_ == 0; }
  bool Turns(size_t i) const {
    if (period_ != 1) return false;
    if (types_ == nullptr) return i < layers_;
    return i < types_->size() && Same((*types_)[i], Value{std::string("dense")});
  }

 private:
  size_t layers_ = 0, period_ = 1;
  const Value::Array* types_ = nullptr;
};

class Labeller {
 public:
  Labeller(const Dict& text, const Family* family, bool by_kind)
      : text_(text),
        family_(family),
        rule_(family != nullptr ? *family->layers : kUnknownLayers),
        count_(LayerCount(text, family)),
        by_kind_(by_kind),
        dense_(rule_.dense_turns ? DensePrefix(text) : DensePrefix()) {}

  LayerLabels Label() {
    out_.counted = count_ != 0;
    if (rule_.none) {
      LabelNone();
      return std::move(out_);
    }
    if (rule_.off_by != nullptr && IsOff(rule_.off_by)) {
      by_ = rule_.off_by;
      labels_.assign(Layers(), kFull);
    } else if (!ReadOwn()) {
      ByRule();
    }
    if (rule_.forces_last && out_.counted && !labels_.empty()) labels_.back() = kFull;
    RejectOthers();
    if (IsBeside()) AddKinds();
    if (rule_.full_nope != FullNope::kNo) SwitchOff();
    if (rule_.nope_by != nullptr) {
      for (int64_t i : ListedLayers(text_, rule_.nope_by)) {
        if (static_cast<size_t>(i) < labels_.size()) labels_[static_cast<size_t>(i)] = kNope;
      }
    }
    return std::move(out_);
  }

 private:
  // As many labels as a rule that needs no count is written out for.
  size_t Layers() const { return static_cast<size_t>(count_ != 0 ? count_ : kMaxLayers); }

  bool IsOff(const char* key) const {
    if (!text_.Mentions(key)) return false;
    const Value* value = text_.Find(key);
    return value == nullptr || Same(*value, Value{false});
  }

  // Nemotron-H: its blocks tell how many layers there are.
  void LabelNone() {
    const char* key = rule_.keys[0];
    const Value::Array* blocks = text_.Array(key);
    out_.counted = out_.counted || blocks != nullptr;
    const int told = blocks != nullptr ? Covered(text_, key, *blocks, count_) : count_;
    labels_.assign(told != 0 ? told : kMaxLayers, kNope);
  }

  bool IsOwn(const LayerKey& key) const {
    if (family_ == nullptr) return key.of_unknown;
    return std::any_of(std::begin(rule_.keys), std::end(rule_.keys), [&key](const char* own) {
      return own != nullptr && std::string_view(own) == key.key;
    });
  }

  // By the first of the class's keys; false if the text has none of them.
  bool ReadOwn() {
    if (family_ == nullptr) {
      return std::any_of(AllLayerKeys().begin(), AllLayerKeys().end(),
                         [this](const LayerKey& key) { return key.of_unknown && Read(key); });
    }
    return std::any_of(std::begin(rule_.keys), std::end(rule_.keys), [this](const char* key) {
      return key != nullptr && Read(*FindLayerKey(key));
    });
  }

  bool Read(const LayerKey& key) {
    const Value* value = text_.Find(key.key);
    if (key.form == Form::kMixers) {  // without a list, too: for its switches
      labels_ = MixerLabels(text_, count_);
      if (value != nullptr) told_ = &key;
      return true;
    }
    if (key.form == Form::kBlocks) {  // without a list, too: the class has one
      labels_ = BlockLabels(text_, count_);
      told_ = &key;
      by_ = key.key;
      return true;
    }
    if (value == nullptr) return false;
    if (!key.IsList()) {
      ReadPeriod(key, *value);
    } else {
      if (IsNoList(key, *value)) return false;
      labels_ = LabelsOf(text_, key, count_);
      out_.counted = out_.counted || key.CountsLayers();
      if (IsLabelled(key)) CheckLabels(key);
      if (key.form == Form::kRopeFlags) CheckInterval();
    }
    told_ = &key;
    by_ = key.key;
    return true;
  }

  static bool IsLabelled(const LayerKey& key) {
    return key.form == Form::kLabels || key.form == Form::kCycle;
  }

  // Throws Error where the class has no such layer.
  void CheckLabels(const LayerKey& key) {
    const Value::Array& list = *text_.Array(key.key);
    for (size_t i = 0; i < labels_.size(); ++i) {
      std::string_view& label = labels_[i];
      const auto check = [&](bool is, const std::string& rule) {
        const size_t entry = i % list.size();
        if (!is) RejectValue(Entry(text_, key.key, entry), list[entry], rule);
      };
      if (rule_.named == kCompress) {
        const bool compressed =
            label == "compressed_sparse_attention" || label == "heavily_compressed_attention";
        check(compressed || label == kSliding,
              "be sliding_attention, compressed_sparse_attention or heavily_compressed_attention");
        label = compressed ? kCompress : kMain;
      }
      if (rule_.full_nope != FullNope::kNo) {
        if (label == "attention") label = kFull;  // of older files
        check(label == kFull || label == kSliding || label == kNope,
              "be full_attention or sliding_attention");
      }
      if (rule_.attention != nullptr) {
        check(label == kNope || label == rule_.attention,
              "be " + std::string(rule_.attention) + " where the layer attends");
      }
      if (!rule_.mixes) CheckAttends(key, list, i % list.size());
    }
  }

  // Models take the list.
  void CheckInterval() const {
    constexpr char kInterval[] = "no_rope_layer_interval";
    const auto interval = text_.Integer(kInterval, 1, kMaxLayers);
    if (!interval) return;
    for (size_t i = 0; i < labels_.size(); ++i) {
      const bool nope = (i + 1) % static_cast<size_t>(*interval) == 0;
      if (nope == (labels_[i] == kNope)) continue;
      RejectValue(text_.Path(kInterval), *text_.Find(kInterval), "say the same as no_rope_layers");
    }
  }

  void CheckAttends(const LayerKey& key, const Value::Array& list, size_t i) const {
    const auto* label = list[i].As<std::string>();
    if (label == nullptr || IsAttention(*label)) return;
    Reject(ROPE_ERROR_UNSUPPORTED,
           "%s (%s) must be a kind of attention, which all layers of a %s are in its class",
           Entry(text_, key.key, i).c_str(), Show(list[i]).c_str(), family_->model_type);
  }

  void ReadPeriod(const LayerKey& key, const Value& value) {
    const auto* letters = value.As<std::string>();
    if (!rule_.spelled || letters == nullptr) {
      const int least = rule_.at == LayerRule::kMiddle ? 2 : 1;
      ByPeriod(ToInteger(text_.Path(key.key), value, least, kMaxLayers));
      return;
    }
    if (letters->empty() || letters->find_first_not_of("LG") != std::string::npos) {
      RejectValue(text_.Path(key.key), value, "consist of the letters L and G");
    }
    labels_.resize(static_cast<size_t>(count_));
    for (size_t i = 0; i < labels_.size(); ++i) {  // local, global; the last is full
      const bool full = i + 1 == labels_.size() || (*letters)[i % letters->size()] == 'G';
      labels_[i] = full ? kFull : kSliding;
    }
  }

  void ByRule() {
    if (rule_.untold || (family_ == nullptr && by_kind_)) return;
    const bool spelled = rule_.cycle != nullptr || rule_.begin[0] != '\0';
    if (spelled) {
      ByLetters();
    } else {
      ByPeriod(rule_.period);
    }
  }

  // A class whose letters do not begin again has a model of one size.
  void ByLetters() {
    const std::string_view begin = rule_.begin, cycle = rule_.cycle != nullptr ? rule_.cycle : "";
    if (cycle.empty() && static_cast<size_t>(count_) != begin.size()) return;
    labels_.resize(Layers());
    for (size_t i = 0; i < labels_.size(); ++i) {
      const char letter = i < begin.size() ? begin[i] : cycle[(i - begin.size()) % cycle.size()];
      labels_[i] = letter == 'F' ? kFull : letter == 'S' ? kSliding : kNope;
    }
  }

  void ByPeriod(int64_t given) {
    period_ = given;
    const bool from_count =
        rule_.last || rule_.from_end || rule_.remainder || rule_.some || rule_.dense_turns;
    if (from_count && count_ == 0) return;
    const auto period = static_cast<size_t>(given);
    const size_t layers = Layers(), prefix = dense_.layers();
    const size_t place = rule_.at == LayerRule::kMiddle ? period / 2
                         : rule_.at < 0                 ? period - 1
                                                        : static_cast<size_t>(rule_.at);
    const auto is_named = [&](size_t i) {
      if (period == 0 || (rule_.first && i == 0) || (rule_.last && i + 1 == layers)) return true;
      if (rule_.remainder && i >= layers / period * period) return true;
      if (i < prefix) return dense_.IsFull(i);
      return rule_.from_end ? (layers - 1 - i) % period == 0 : (i - prefix) % period == place;
    };
    labels_.resize(layers);
    for (size_t i = 0; i < layers; ++i) labels_[i] = is_named(i) ? rule_.named : rule_.rest;
    const bool any = std::find(labels_.begin(), labels_.end(), rule_.named) != labels_.end();
    if (rule_.some && !any) labels_.back() = rule_.named;
  }

  // Keys that are there and were not used.
  void RejectOthers() const {
    for (const LayerKey& key : AllLayerKeys()) {
      const bool own = IsOwn(key);
      // A period beside what decided, and keys of RoPE, which are refused by their name.
      if (&key == told_ || (own ? !key.IsList() : key.tells == Tells::kRope)) continue;
      if (IsBeside() && key.key == std::string_view(kBeside)) continue;
      const Value* value = text_.Peek(key.key);
      if (value == nullptr || (!own && IsIdle(key)) || (!own && IsSpared(*value))) continue;
      if (own && IsNoList(key, *value)) continue;
      if (!(key.IsList() ? Agrees(key) : IsPeriod(key, *value))) RejectOther(key, *value, own);
    }
  }

  bool IsNoList(const LayerKey& key, const Value& value) const {
    const auto* list = value.As<Value::Array>();
    return rule_.empty_is_none && key.form == Form::kRopeFlags && list != nullptr && list->empty();
  }

  // Whether the RoPE of layers with sliding attention is not, or may not be, that of the others.
  bool DoWindowsMatter() const {
    return family_ == nullptr || by_kind_ || rule_.full_nope != FullNope::kNo ||
           family_->two_ropes != nullptr || family_->kinds == Kinds::kByLayer;
  }

  // Whether a key of other classes is about nothing here: windows that RoPE does not depend on, a
  // period where a list says more.
  bool IsIdle(const LayerKey& key) const {
    if (key.tells == Tells::kWindows && !DoWindowsMatter()) return true;
    return !key.IsList() && told_ != nullptr && told_->IsList();
  }

  void RejectOther(const LayerKey& key, const Value& value, bool own) const {
    const std::string path = text_.Path(key.key), shown = Show(value);
    const std::string by = by_ != nullptr ? text_.Path(by_) : "";
    if (own) {
      Reject(ROPE_ERROR_UNSUPPORTED, "%s (%s) says otherwise of the layers than %s: remove one",
             path.c_str(), shown.c_str(), by.c_str());
    }
    if (family_ == nullptr) {
      Reject(ROPE_ERROR_UNSUPPORTED,
             "%s (%s) may say which layers of this unknown model_type have RoPE: say layer_types, "
             "or %s",
             path.c_str(), shown.c_str(), kAcceptIt);
    }
    const std::string instead = by.empty() ? "" : by + ", which ";
    Reject(ROPE_ERROR_UNSUPPORTED,
           "%s (%s) says otherwise of the layers than %sthe class of a %s%s: %s", path.c_str(),
           shown.c_str(), instead.c_str(), family_->model_type,
           by.empty() ? ", which does not read it" : " reads instead", kAcceptIt);
  }

  // Another word for the period in use, or one that makes all layers attention.
  bool IsPeriod(const LayerKey& key, const Value& value) const {
    if (key.form != Form::kPeriod) return false;
    const bool attention = key.tells == Tells::kAttention;
    if (attention && !rule_.mixes) return Same(value, Value{int64_t{1}});
    return attention == rule_.mixes && period_ != 0 && rule_.at == -1 &&
           Same(value, Value{period_});
  }

  bool Agrees(const LayerKey& key) const {
    const std::vector<std::string_view> theirs = LabelsOf(text_, key, count_);
    if (labels_.empty()) return false;
    for (size_t i = 0; i < std::min(labels_.size(), theirs.size()); ++i) {
      if (!AgreesOn(key, labels_[i], theirs[i])) return false;
    }
    return true;
  }

  bool AgreesOn(const LayerKey& key, std::string_view ours, std::string_view theirs) const {
    if (rule_.named == kCompress || key.form == Form::kRatios) {
      const auto is_compressed = [](std::string_view label) {
        return label != kMain && label != kSliding && label != kFull;
      };
      return is_compressed(ours) == is_compressed(theirs);
    }
    const bool attends = !rule_.mixes || ours != kNope;
    const bool labelled = IsLabelled(key);
    if (labelled && theirs != kNope && !IsKnownAttention(theirs)) return false;
    if (key.tells == Tells::kAttention && attends != (theirs != kNope)) return false;
    const bool of_windows = key.tells == Tells::kWindows || (labelled && DoWindowsMatter());
    return !of_windows || !attends || IsSliding(ours) == IsSliding(theirs);
  }

  bool IsSliding(std::string_view label) const {
    const TwoRopes* two = family_ != nullptr ? family_->two_ropes : nullptr;
    return label == kSliding || (two != nullptr && label == two->sliding_name);
  }

  // Whether layer_types tells the kinds of the layers that another key gives RoPE.
  bool IsBeside() const {
    const bool by_flags = told_ != nullptr && told_->form == Form::kRopeFlags;
    return rule_.kinds_beside || (family_ == nullptr && by_flags);
  }

  void AddKinds() {
    const Value::Array* list = text_.Array(kBeside);
    if (list == nullptr) return;
    const LayerKey& key = *FindLayerKey(kBeside);
    const std::vector<std::string_view> kinds = LabelsOf(text_, key, count_);
    for (size_t i = 0; i < std::min(kinds.size(), labels_.size()); ++i) {
      if (!rule_.mixes) CheckAttends(key, *list, i);
      if (labels_[i] != kNope) labels_[i] = kinds[i];
    }
  }

  // Full attention without RoPE.
  void SwitchOff() {
    constexpr char kWindow[] = "sliding_window";
    const bool no_window = text_.Mentions(kWindow) && text_.Find(kWindow) == nullptr;
    if (no_window && rule_.full_nope == FullNope::kBesideWindows) {
      std::fill(labels_.begin(), labels_.end(), kSliding);
      return;
    }
    for (size_t i = 0; i < labels_.size(); ++i) {
      if (labels_[i] == kFull && !dense_.Turns(i)) labels_[i] = kNope;
      if (no_window && labels_[i] == kSliding) {
        Reject(ROPE_ERROR_UNSUPPORTED,
               "%s (null) must be a number: layers of sliding_attention have none without it, and "
               "no RoPE",
               text_.Path(kWindow).c_str());
      }
    }
  }

  static constexpr char kBeside[] = "layer_types";

  const Dict& text_;
  const Family* family_;
  const LayerRule& rule_;
  const int count_;
  const bool by_kind_;
  const DensePrefix dense_;
  const LayerKey* told_ = nullptr;  // the key that decided; nullptr: the class
  const char* by_ = nullptr;        // the same, or the key that made all layers alike
  int64_t period_ = 0;              // in use; 0: none
  LayerLabels out_;
  std::vector<std::string_view>& labels_ = out_.labels;
};

}  // namespace

int LayerCount(const Dict& text, const Family* family) {
  int64_t times = 1;
  if (family != nullptr && text.Find("num_hidden_layers") == nullptr) times = family->layers_each;
  const bool cycles = family != nullptr && family->own_keys == OwnKeys::kCycles;
  if (cycles && text.Find("num_layers_per_stack") == nullptr) {
    constexpr int64_t kMaxCycles = 256;
    times = text.Integer("H_cycles", 1, kMaxCycles).value_or(2) *
            (text.Integer("L_cycles", 1, kMaxCycles).value_or(3) + 1);
  }
  const int64_t count = times * text.FirstInteger({"num_hidden_layers", "n_layer", "n_layers",
                                                   "num_layers", "decoder_num_hidden_layers"},
                                                  1, kMaxLayers)
                                    .value_or(0);
  if (count > kMaxLayers) {
    Reject(ROPE_ERROR_PARSE, "%s gives %lld attention layers and must give at most %d",
           text.Path(text.Find("num_hidden_layers") ? "num_hidden_layers" : "num_layers").c_str(),
           static_cast<long long>(count), kMaxLayers);
  }
  // LongCat: two of attention in each decoder layer, whose number is half of theirs, rounded down.
  const int64_t each = family != nullptr && times == 1 && !cycles ? family->layers_each : 1;
  return static_cast<int>(count - (count > each ? count % each : 0));
}

LayerLabels LabelLayers(const Dict& text, const Family* family, bool by_kind) {
  return Labeller(text, family, by_kind).Label();
}

}  // namespace rope::model
