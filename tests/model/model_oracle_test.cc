// librope against the models' own code: every case of tests/data/oracle (transformers' rotary
// classes and apply functions, run by tests/oracle) goes through rope_model_create and a context,
// and must give the same layers, frequencies, factors, rows of cos and sin, and rotated q and k:
//
//   inv_freq bit for bit; attention and softmax factor within 1e-6;
//   rotated f32 tensors within 2e-6 of the size of the pair, and cos and sin within 4e-7, at any
//   position;
//   16-bit tensors rotated by the model's cos and sin bit for bit under EAGER, else to one
//   rounding.
//
// What differs on purpose is listed in oracle_deviations.h. With LIBROPE_MODELS_TABLE=FILE the
// table of docs/models.md is written from what was measured.
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "librope/rope.h"
#include "oracle_check.h"
#include "oracle_deviations.h"
#include "oracle_document.h"
#include "oracle_table.h"
#include "support/load_json.h"

namespace rope::testing {
namespace {

using nlohmann::json;

json Record(const std::string& file) { return LoadJson("oracle/" + file); }

class ParsedModel {
 public:
  explicit ParsedModel(const std::string& text) {
    if (rope_model_create(text.data(), text.size(), &model_) != ROPE_OK) error_ = rope_last_error();
  }
  ParsedModel(const ParsedModel&) = delete;
  ParsedModel& operator=(const ParsedModel&) = delete;
  ~ParsedModel() { rope_model_destroy(model_); }

  const rope_model* get() const { return model_; }
  const std::string& error() const { return error_; }

  // -1 if there is none of that name.
  int32_t Find(const std::string& name) const {
    for (int32_t t = 0; t < rope_model_layer_type_count(model_); ++t) {
      if (name == rope_model_layer_type_name(model_, t)) return t;
    }
    return -1;
  }

 private:
  rope_model* model_ = nullptr;
  std::string error_;
};

// Encoders: where the case has no layers of a language model, its only rope that is not that of a
// tower (of BLT: the one of its global transformer) is that of the layers that librope found.
void MatchOnly(const json& test, const ParsedModel& model, std::vector<std::set<int32_t>>* types) {
  std::vector<size_t> candidates;
  for (size_t r = 0; r < types->size(); ++r) {
    const json& rope = test["ropes"][r];
    if (rope["part"] == "global_config") candidates = {r};
    if (rope["part"] == "global_config") break;
    if (rope["role"] == "text" || rope["role"] == "audio") candidates.push_back(r);
  }
  const int32_t type = model.Find("full_attention");
  if (candidates.size() == 1 && type >= 0) (*types)[candidates[0]].insert(type);
}

// The text with the number of layers, where it leaves that to the configuration class: librope
// looks up layers only where the text tells how many there are.
json WithLayerCount(const json& test, json config) {
  if (!test["layers"].is_array()) return config;
  std::string part = config.contains("text_config") ? "text_config" : "";
  for (const json& index : test["layers"]) {
    if (index >= 0) part = test["ropes"][index.get<size_t>()]["part"];
  }
  json* text = &config;
  for (size_t from = 0; from < part.size();) {
    const size_t dot = std::min(part.find('.', from), part.size());
    const std::string key = part.substr(from, dot - from);
    // an older file, whose keys of the text are the model's
    if (!text->contains(key) && key != "decoder") break;
    text = &(*text)[key];
    from = dot + 1;
  }
  // A list that the class leaves null, and its model is not made without.
  if (text->contains("layer_types") && (*text)["layer_types"].is_null()) {
    (*text)["layer_types"] = std::vector<std::string>(test["layers"].size(), "full_attention");
  }
  for (const char* key : {"num_hidden_layers", "n_layer", "n_layers", "num_layers",
                          "decoder_num_hidden_layers", "layer_types", "layers_block_type"}) {
    if (text->contains(key)) return config;
  }
  (*text)["num_hidden_layers"] = test["layers"].size();
  return config;
}

// The librope types of every rope of the case: those of the layers that use it, or of its name.
std::vector<std::set<int32_t>> MatchTypes(const json& test, const ParsedModel& model,
                                          std::vector<Problem>* problems) {
  std::vector<std::set<int32_t>> types(test["ropes"].size());
  std::string wrong;
  for (size_t layer = 0; test["layers"].is_array() && layer < test["layers"].size(); ++layer) {
    const int index = test["layers"][layer];
    const std::string name = "layer " + std::to_string(layer);
    int32_t type = -1;
    rope_config config = ROPE_INIT(rope_config);
    if (rope_model_layer_type(model.get(), static_cast<int32_t>(layer), &type) != ROPE_OK ||
        rope_model_config(model.get(), type, &config) != ROPE_OK) {
      if (wrong.empty()) wrong = rope_last_error();
      continue;
    }
    const bool turns = config.scaling != ROPE_SCALING_NOPE;
    if (turns != (index >= 0)) {
      if (wrong.empty()) wrong = name + (turns ? " must not turn" : " must turn");
    } else if (turns) {
      types[static_cast<size_t>(index)].insert(type);
    }
  }
  if (!wrong.empty()) problems->push_back({"", "layers", wrong});
  for (size_t r = 0; r < types.size(); ++r) {
    const json& role = test["ropes"][r]["role"];
    if (!types[r].empty() || (role != "vision" && role != "indexer")) continue;
    const int32_t type = model.Find(role);
    if (type >= 0) types[r].insert(type);
  }
  if (test["layers"].is_null()) MatchOnly(test, model, &types);
  return types;
}

// A tower of librope's in a model that has none with RoPE. (Indexers are not always recorded.)
void FindExtra(const ParsedModel& model, const std::vector<std::set<int32_t>>& types,
               std::vector<Problem>* problems) {
  const int32_t type = model.Find("vision");
  const auto is_of = [type](const std::set<int32_t>& rope) { return rope.count(type) != 0; };
  if (type < 0 || std::any_of(types.begin(), types.end(), is_of)) return;
  problems->push_back({"", "extra", "the model has no tower with RoPE"});
}

// "file#rope": the record that has the tensors of rope["apply_like"].
json ApplyLike(const json& rope) {
  if (!rope.contains("apply_like")) return nullptr;
  const std::string link = rope["apply_like"];
  const size_t hash = link.find('#');
  const json test = Record(link.substr(0, hash));
  for (const json& other : test["ropes"]) {
    if (other["name"] == link.substr(hash + 1)) return other["lengths"][0]["apply"];
  }
  ADD_FAILURE() << "no record " << link;
  return nullptr;
}

// A rope of the language model that no layer uses, or of an encoder, decoder or codec beside it:
// rope.h gives no access to these.
bool IsOutOfReach(const json& test, size_t rope) {
  const json& role = test["ropes"][rope]["role"];
  if (role == "vision" || role == "indexer") return false;
  if (!test["layers"].is_array()) return true;
  for (const json& index : test["layers"]) {
    if (index == rope) return false;
  }
  return true;
}

// What the skipped rope belongs to.
std::string PartOf(const json& test, size_t rope) {
  const json& part = test["ropes"][rope]["part"];
  bool used = part.get<std::string>().empty();
  for (size_t r = 0; r < test["ropes"].size() && !used; ++r) {
    used = test["ropes"][r]["part"] == part && !IsOutOfReach(test, r);
  }
  return used ? "a rope that no layer uses" : part.get<std::string>();
}

struct Totals {
  int cases = 0, nothing_compared = 0;
  std::set<std::string> deviating;
  Table table;
  std::vector<std::string> out_of_reach;
};
Totals totals;

// Every difference must have an entry and every entry a difference.
void CompareWithDeviations(const std::string& test, const std::vector<Problem>& problems) {
  std::set<const Deviation*> found;
  for (const Problem& problem : problems) {
    const Deviation* entry = nullptr;
    for (const Deviation& deviation : Deviations()) {
      if (deviation.test == test && deviation.rope == problem.rope &&
          deviation.kind == problem.kind &&
          problem.text.find(deviation.message) != std::string::npos) {
        entry = &deviation;
      }
    }
    if (entry == nullptr) {
      ADD_FAILURE() << problem.rope << ": " << problem.kind << ": " << problem.text;
    }
    found.insert(entry);
  }
  for (const Deviation& deviation : Deviations()) {
    if (deviation.test != test) continue;
    EXPECT_EQ(found.count(&deviation), 1u)
        << "the entry \"" << deviation.rope << "\", " << deviation.kind
        << " in oracle_deviations.h does not hold";
    totals.deviating.insert(test);
  }
}

class ModelOracle : public ::testing::TestWithParam<std::string> {};

TEST_P(ModelOracle, SameAsTheModelsOwnCode) {
  const json test = Record(GetParam());
  const std::string name = test["name"];
  if (totals.cases++ == 0) {
    totals.table.SetVersion(Record("index.json")["versions"]["transformers"]);
  }
  bool compared = false;
  std::vector<Problem> problems;
  for (const char* key : {"config", "config_saved"}) {
    if (!test.contains(key) || test[key].is_null()) continue;
    SCOPED_TRACE(key);
    const ParsedModel model(WithLayerCount(test, test[key]).dump());
    if (model.get() == nullptr) {
      problems.push_back({"", "refused", model.error()});
      continue;
    }
    const auto types = MatchTypes(test, model, &problems);
    FindExtra(model, types, &problems);
    for (size_t r = 0; r < types.size(); ++r) {
      const json& rope = test["ropes"][r];
      if (types[r].empty() && IsOutOfReach(test, r)) {
        if (std::string(key) == "config") {
          totals.out_of_reach.push_back(test["model_type"].get<std::string>() + ": " +
                                        PartOf(test, r));
        }
        continue;
      }
      if (types[r].empty()) {
        problems.push_back({rope["name"], "missing", "librope has no layer type for it"});
        continue;
      }
      const json borrowed = ApplyLike(rope);
      for (int32_t type : types[r]) {
        RopeCheck check(rope, borrowed);
        check.Run(model.get(), type);
        compared = true;
        totals.table.Add(test, rope, rope_model_layer_type_name(model.get(), type), check.config(),
                         check.problems.empty() ? &check.measured : nullptr);
        problems.insert(problems.end(), check.problems.begin(), check.problems.end());
      }
    }
  }
  if (!compared && problems.empty()) ++totals.nothing_compared;
  CompareWithDeviations(name, problems);
}

std::vector<std::string> CaseFiles() {
  std::vector<std::string> files;
  const json index = Record("index.json");
  for (const json& entry : index["cases"]) files.push_back(entry["file"]);
  return files;
}

std::string CaseName(const ::testing::TestParamInfo<std::string>& info) {
  std::string name = info.param.substr(0, info.param.rfind('.'));
  std::replace_if(
      name.begin(), name.end(), [](unsigned char c) { return !std::isalnum(c); }, '_');
  return name;
}

TEST(ModelOracleList, EveryEntryIsACase) {
  const std::vector<std::string> files = CaseFiles();
  for (const Deviation& deviation : Deviations()) {
    EXPECT_EQ(std::count(files.begin(), files.end(), deviation.test + ".json"), 1)
        << deviation.test;
  }
}

// After the last test: the counts, and the document if all cases have run.
class Summary : public ::testing::Environment {
 public:
  void TearDown() override {
    if (totals.cases == 0) return;
    std::cout << totals.cases << " cases, " << totals.deviating.size()
              << " with listed deviations; " << totals.out_of_reach.size()
              << " ropes beside the language model skipped, " << totals.nothing_compared
              << " cases have no others\n";
    totals.table.Summary(std::cout);
    const char* file = std::getenv("LIBROPE_MODELS_TABLE");
    if (file == nullptr || totals.cases != static_cast<int>(CaseFiles().size())) return;
    const json versions = Record("index.json")["versions"];
    std::ofstream out(file);
    WriteDocument(totals.table, totals.out_of_reach,
                  "transformers " + versions["transformers"].get<std::string>() + " and torch " +
                      versions["torch"].get<std::string>(),
                  out);
    out.flush();
    EXPECT_TRUE(out.good()) << "cannot write " << file;
  }
};
const ::testing::Environment* const summary =
    ::testing::AddGlobalTestEnvironment(new Summary);  // owned by GoogleTest

INSTANTIATE_TEST_SUITE_P(All, ModelOracle, ::testing::ValuesIn(CaseFiles()), CaseName);

}  // namespace
}  // namespace rope::testing
