// rope_prompt_ids against the models' own get_rope_index: the prompts of tests/data/oracle/
// position_ids.json, run by five models of transformers. Ids and the id where decoding continues.
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "librope/model.h"
#include "librope/rope.h"
#include "support/load_json.h"

namespace rope::testing {
namespace {

using nlohmann::json;
using Ids = std::vector<std::vector<int64_t>>;

enum class Difference {
  // After a video with more frames (times interval) than it is high and wide, transformers 5 counts
  // the text from the height and width alone: it starts below the ids of the last frames. librope
  // starts each run above all ids before it, as the models were trained (model.h, section 2).
  kTextAfterLongVideo
};

// Strict: the prompts listed here must differ, and no other may.
const std::map<std::string, Difference>& Differences() {
  static const std::map<std::string, Difference> kDifferences = {
      {"qwen2_5_vl/video", Difference::kTextAfterLongVideo},
      {"qwen2_5_vl/video-2s", Difference::kTextAfterLongVideo},
      {"qwen2_5_vl/video-fractional", Difference::kTextAfterLongVideo},
      {"qwen2_5_vl/video-half-second", Difference::kTextAfterLongVideo},
      {"qwen2_5_vl/video-longer-than-wide", Difference::kTextAfterLongVideo},
      {"qwen2_vl/video-longer-than-wide", Difference::kTextAfterLongVideo},
  };
  return kDifferences;
}

struct Prompt {
  explicit Prompt(const json& record) : ids(record["ids"]), next(record["next"]) {
    for (const json& entry : record["runs"]) {
      rope_prompt_part run{};
      run.text = entry["text"];
      run.t = entry["grid"][0];
      run.h = entry["grid"][1];
      run.w = entry["grid"][2];
      // Of Qwen2.5-VL, which says 2 ids a second here.
      const bool fractional = entry["t_interval"].is_null();
      t_intervals.push_back(fractional ? 2 * entry["seconds"].get<double>() : 0);
      if (run.t != 0 && !fractional) run.t_interval = entry["t_interval"];
      runs.push_back(run);
    }
    start = record["start"];
  }

  int64_t tokens() const { return static_cast<int64_t>(ids[0].size()); }

  // The first token behind a video that is longer than it is high and wide; tokens() if none.
  int64_t BehindLongVideo() const {
    int64_t token = 0;
    for (size_t i = 0; i < runs.size(); ++i) {
      const rope_prompt_part& run = runs[i];
      token += run.text + int64_t{run.t} * run.h * run.w;
      const double apart = t_intervals[i] != 0 ? t_intervals[i] : std::max(run.t_interval, 1);
      if (std::floor((run.t - 1) * apart) >= std::max(run.h, run.w)) return token;
    }
    return tokens();
  }

  std::vector<rope_prompt_part> runs;
  std::vector<double> t_intervals;
  Ids ids;
  int64_t start = 0, next;
};

// By name.
const std::map<std::string, json>& Prompts() {
  static const std::map<std::string, json> prompts = [] {
    std::map<std::string, json> named;
    const json record = LoadJson("oracle/position_ids.json");
    for (const json& entry : record["cases"]) named[entry["name"]] = entry;
    return named;
  }();
  return prompts;
}

class PositionIds : public ::testing::TestWithParam<std::string> {};

TEST_P(PositionIds, SameAsTheModelsOwnCode) {
  const std::string& name = GetParam();
  const Prompt prompt(Prompts().at(name));
  const int64_t tokens = prompt.tokens();
  std::vector<int64_t> flat(static_cast<size_t>(3 * tokens));
  int64_t next = -1;
  ASSERT_EQ(ROPE_OK, rope_prompt_ids_timed(prompt.runs.data(), prompt.t_intervals.data(),
                                           static_cast<int32_t>(prompt.runs.size()), prompt.start,
                                           flat.data(), tokens, &next))
      << rope_last_error();
  Ids ours;
  for (int axis = 0; axis < 3; ++axis) {
    ours.emplace_back(flat.begin() + axis * tokens, flat.begin() + (axis + 1) * tokens);
  }
  const auto listed = Differences().find(name);
  if (listed == Differences().end()) {
    EXPECT_EQ(ours, prompt.ids);
    EXPECT_EQ(next, prompt.next);
    return;
  }
  EXPECT_NE(ours, prompt.ids) << "the entry of this prompt no longer holds";
  // Up to the end of the video the ids agree; then ours stay above all of it.
  const int64_t behind = prompt.BehindLongVideo();
  ASSERT_LT(behind, tokens);
  int64_t largest = 0;
  for (int axis = 0; axis < 3; ++axis) {
    const auto& theirs = prompt.ids[static_cast<size_t>(axis)];
    const auto& mine = ours[static_cast<size_t>(axis)];
    for (int64_t t = 0; t < behind; ++t) {
      EXPECT_EQ(mine[static_cast<size_t>(t)], theirs[static_cast<size_t>(t)]) << axis << " " << t;
      largest = std::max(largest, mine[static_cast<size_t>(t)]);
    }
    EXPECT_LE(theirs[static_cast<size_t>(behind)], largest);
  }
  for (const auto& axis : ours) EXPECT_EQ(axis[static_cast<size_t>(behind)], largest + 1);
}

TEST(PositionIdsList, EveryEntryIsAPrompt) {
  EXPECT_GE(Prompts().size(), 48u);
  std::map<Difference, int> counts;
  for (const auto& [name, difference] : Differences()) {
    EXPECT_EQ(Prompts().count(name), 1u) << name;
    ++counts[difference];
  }
  std::cout << Prompts().size() << " prompts; " << counts[Difference::kTextAfterLongVideo]
            << " with text below the ids of a long video\n";
}

std::vector<std::string> Names() {
  std::vector<std::string> names;
  for (const auto& [name, prompt] : Prompts()) names.push_back(name);
  return names;
}

std::string TestName(const ::testing::TestParamInfo<std::string>& info) {
  std::string name = info.param;
  std::replace_if(
      name.begin(), name.end(), [](unsigned char c) { return !std::isalnum(c); }, '_');
  return name;
}

INSTANTIATE_TEST_SUITE_P(All, PositionIds, ::testing::ValuesIn(Names()), TestName);

}  // namespace
}  // namespace rope::testing
