// What the comparison with the models' own code has measured, summed up: the last lines of the
// test's output, and docs/models.md.
#ifndef LIBROPE_TESTS_MODEL_ORACLE_TABLE_H_
#define LIBROPE_TESTS_MODEL_ORACLE_TABLE_H_

#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>
#include <ostream>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "librope/rope.h"
#include "oracle_check.h"
#include "oracle_deviations.h"

namespace rope::testing {

inline std::string Scientific(double value) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.0e", value);
  return value == 0 ? "0" : text;
}

inline std::string Join(const std::set<std::string>& words, const char* between = ", ") {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : between) + word;
  return text;
}

class Table {
 public:
  void SetVersion(const std::string& version) { version_ = version; }

  // One rope of one case. Without numbers if it differs on purpose.
  void Add(const nlohmann::json& test, const nlohmann::json& rope, const std::string& type,
           const rope_config& config, const Measured* numbers) {
    const std::string family = Family(test["model_type"]);
    const std::string role = rope["role"];
    const std::string part = role == "vision" || role == "indexer" ? role : "";
    Row& row = rows_[{family, part, Style(rope, config)}];
    row.cases.insert(test["name"]);
    if (test["origin"]["kind"] == "fixture") row.real.insert(test["name"]);
    row.types.insert(type.substr(0, 6) == "theta_" ? "theta_..." : type);
    row.rope_types.insert(rope["rope_type"]);
    row.spans.insert(Span(config));
    std::string against = version_;
    if (test["run_as"].is_string()) against += " (" + test["run_as"].get<std::string>() + ")";
    row.against.insert(against);
    if (numbers == nullptr) {
      row.differs = true;
      return;
    }
    const Measured& measured = *numbers;
    row.measured = true;
    row.rotated = std::max(row.rotated, measured.rotated);
    row.equal16 += measured.equal16;
    row.unequal16 += measured.unequal16;

    Rope& entry = ropes_[{test["name"], rope["name"]}];
    entry.eager = config.rounding == ROPE_ROUNDING_EAGER;
    entry.rotated = std::max(entry.rotated, measured.rotated);
    entry.equal16 += measured.equal16;
    entry.unequal16 += measured.unequal16;
  }

  // The lines that show what was demanded.
  void Summary(std::ostream& out) const {
    int eager = 0, other = 0;
    int64_t eager_elements = 0, eager_unequal = 0, elements = 0, unequal = 0;
    double rotated = 0;
    for (const auto& [key, rope] : ropes_) {
      rotated = std::max(rotated, rope.rotated);
      if (rope.equal16 + rope.unequal16 == 0) continue;
      (rope.eager ? eager : other) += 1;
      (rope.eager ? eager_elements : elements) += rope.equal16 + rope.unequal16;
      (rope.eager ? eager_unequal : unequal) += rope.unequal16;
    }
    out << ropes_.size() << " ropes compared. inv_freq: the same f32 numbers in all\n"
        << "rotated f32 below position 4096: within " << Scientific(rotated) << " of the pair\n"
        << "16 bit, EAGER: " << eager << " ropes, " << eager_elements << " elements, "
        << eager_unequal << " differ\n16 bit, arithmetic in f32: " << other << " ropes, "
        << elements << " elements, " << unequal << " differ by one rounding\n";
  }

  void WriteRows(std::ostream& out) const {
    out << "| model_type | configs | layer types | rope_type | style | verified against | "
           "rotated f32 | 16 bit |\n|---|--:|---|---|---|---|--:|---|\n";
    for (const auto& [key, row] : rows_) {
      const auto& [family, part, style] = key;
      std::set<std::string> spans = row.spans;
      spans.erase("");
      out << "| " << family << (part.empty() ? "" : ", " + part) << (row.differs ? " (*)" : "")
          << " | " << row.cases.size()
          << (row.real.empty() ? "" : ", " + std::to_string(row.real.size()) + " real") << " | "
          << Join(row.types) << " | " << Join(row.rope_types) << " | " << style
          << (spans.empty() ? "" : ", " + Join(spans, " or ")) << " | " << Join(row.against)
          << " | ";
      if (!row.measured) {
        out << "| |\n";
        continue;
      }
      out << Scientific(row.rotated) << " | "
          << (row.equal16 + row.unequal16 == 0 ? "not run"
              : row.unequal16 == 0             ? "exact"
                                               : "1 rounding")
          << " |\n";
    }
  }

  size_t families() const {
    std::set<std::string> names;
    for (const auto& [key, row] : rows_) names.insert(std::get<0>(key));
    return names.size();
  }

 private:
  struct Row {
    std::set<std::string> cases, real, types, rope_types, spans, against;
    bool measured = false, differs = false;
    double rotated = 0;
    int64_t equal16 = 0, unequal16 = 0;
  };
  struct Rope {
    bool eager = false;
    double rotated = 0;
    int64_t equal16 = 0, unequal16 = 0;
  };

  static std::string Family(std::string model_type) {
    for (const std::string suffix : {"_text_model", "_text", "_vision_model"}) {
      const size_t at = model_type.size() - std::min(model_type.size(), suffix.size());
      if (at > 0 && model_type.compare(at, std::string::npos, suffix) == 0) model_type.resize(at);
    }
    return model_type;
  }

  static std::string Style(const nlohmann::json& rope, const rope_config& config) {
    std::string style = rope["pairing"];
    for (char& c : style) c = c == '_' ? ' ' : c;
    static const char* const kRoundings[] = {"float32", "eager", "cos_sin"};
    style += std::string(", ") + kRoundings[config.rounding];
    if (rope["negated"].get<bool>()) style += ", backwards";
    if (config.angle == ROPE_ANGLE_EXACT) style += ", exact angle";
    if (config.axes > 1) style += ", " + std::to_string(config.axes) + " ids";
    if (config.mrope_interleaved != 0) style += " interleaved";
    return style;
  }

  static std::string Span(const rope_config& config) {
    if (config.scaling == ROPE_SCALING_PROPORTIONAL || config.rotary_dim == 0) return "";
    if (config.rotary_dim == config.head_dim) return "";
    return config.rotary_offset != 0 ? "last channels" : "first channels";
  }

  std::string version_;
  std::map<std::tuple<std::string, std::string, std::string>, Row> rows_;
  std::map<std::pair<std::string, std::string>, Rope> ropes_;
};

}  // namespace rope::testing

#endif  // LIBROPE_TESTS_MODEL_ORACLE_TABLE_H_
