// Position ids of multimodal prompts, against those that transformers' tests print.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <limits>
#include <vector>

#include "librope/model.h"
#include "support/errors.h"
#include "support/handles.h"
#include "support/load_json.h"

namespace rope::testing {
namespace {

using Ids = std::vector<std::vector<int64_t>>;

Ids PromptIds(const std::vector<rope_prompt_part>& parts, int64_t start, int64_t tokens,
              int64_t* next) {
  std::vector<int64_t> flat(3 * tokens, -99);
  EXPECT_OK(rope_prompt_ids(parts.data(), static_cast<int32_t>(parts.size()), start, flat.data(),
                            tokens, next));
  Ids ids;
  for (int a = 0; a < 3; ++a)
    ids.emplace_back(flat.begin() + a * tokens, flat.begin() + (a + 1) * tokens);
  return ids;
}

TEST(PromptIds, AreThoseOfTransformersTests) {
  int found = 0;
  for (const auto& record : Golden()["golden"]) {
    if (record["kind"] != "mrope_position_ids") continue;
    ++found;
    const Ids want = record["expected_thw"];
    // Qwen3-VL separates frames by text, so that each is an image of its own.
    std::vector<rope_prompt_part> parts = {{1, 1, 4, 3, 0}, {1, 0, 0, 0, 0}};
    if (record["name"] == "qwen2_vl_video_position_ids") parts[0].t = 2;
    if (record["name"] == "qwen3_vl_video_position_ids") parts.insert(parts.begin(), parts[0]);
    int64_t next = 0;
    EXPECT_EQ(PromptIds(parts, 0, static_cast<int64_t>(want[0].size()), &next), want)
        << record["name"];
    int64_t largest = 0;
    for (const auto& axis : want)
      largest = std::max(largest, *std::max_element(axis.begin(), axis.end()));
    EXPECT_EQ(next, largest + 1);
  }
  EXPECT_EQ(found, 3);
}

TEST(PromptIds, TextAloneCounts) {
  int64_t next = 0;
  EXPECT_EQ(PromptIds({{3, 0, 0, 0, 0}}, 40, 3, &next),
            (Ids{{40, 41, 42}, {40, 41, 42}, {40, 41, 42}}));
  EXPECT_EQ(next, 43);
  EXPECT_EQ(PromptIds({}, 7, 0, &next), (Ids{{}, {}, {}}));
  EXPECT_EQ(next, 7);
  EXPECT_OK(rope_prompt_ids(nullptr, 0, 9, nullptr, 0, &next));
  EXPECT_EQ(next, 9);
}

TEST(PromptIds, FramesAreAnIntervalApart) {
  int64_t next = 0;
  const Ids ids = PromptIds({{1, 3, 1, 2, 25}}, 10, 7, &next);
  EXPECT_EQ(ids[0], (std::vector<int64_t>{10, 11, 11, 36, 36, 61, 61}));
  EXPECT_EQ(ids[1], (std::vector<int64_t>{10, 11, 11, 11, 11, 11, 11}));
  EXPECT_EQ(ids[2], (std::vector<int64_t>{10, 11, 12, 11, 12, 11, 12}));
  EXPECT_EQ(next, 62);
}

// Rounded down frame by frame, the product being one of f32: 10 times 0.3 is 3.
TEST(PromptIds, FramesMayBeAFractionApart) {
  const std::vector<rope_prompt_part> parts = {{1, 5, 1, 1, 0}, {1, 3, 1, 1, 2}, {1, 0, 0, 0, 0}};
  const auto times_of = [&](double fraction, int64_t* next) {
    const double t_intervals[] = {fraction, 0, 0};
    std::vector<int64_t> ids(3 * 11);
    EXPECT_OK(rope_prompt_ids_timed(parts.data(), t_intervals, 3, 0, ids.data(), 11, next));
    ids.resize(11);
    return ids;
  };
  int64_t next = 0;
  EXPECT_EQ(times_of(1.4, &next), (std::vector<int64_t>{0, 1, 2, 3, 5, 6, 7, 8, 10, 12, 13}));
  EXPECT_EQ(next, 14);
  EXPECT_EQ(times_of(0.3, &next), (std::vector<int64_t>{0, 1, 1, 1, 1, 2, 3, 4, 6, 8, 9}));
  const rope_prompt_part longer = {0, 11, 1, 1, 0};
  const double third = 0.3;
  std::vector<int64_t> ids(33);
  ASSERT_OK(rope_prompt_ids_timed(&longer, &third, 1, 0, ids.data(), 11, &next));
  EXPECT_EQ(ids[10], 3);
}

TEST(PromptIds, BadFractionsAreNamedAndNothingIsWritten) {
  const rope_prompt_part video = {1, 2, 1, 1, 0}, spaced = {1, 2, 1, 1, 1}, text = {3, 0, 0, 0, 0};
  std::vector<int64_t> ids(9, -99);
  int64_t next = -99;
  const auto refuses = [&](const rope_prompt_part& part, const double* t_intervals,
                           std::initializer_list<const char*> message) {
    EXPECT_EQ(rope_prompt_ids_timed(&part, t_intervals, 1, 0, ids.data(), 3, &next),
              ROPE_ERROR_INVALID_ARGUMENT);
    ExpectMessage("rope_prompt_ids_timed", message);
  };
  for (const double bad : {-1.0, 1e10, std::nan(""), std::numeric_limits<double>::infinity()}) {
    refuses(video, &bad, {"t_intervals[0]", "must be from 0 to 2^30"});
  }
  const double good = 1.5;
  refuses(spaced, &good, {"parts[0] must have t_interval 0"});
  refuses(text, &good, {"parts[0] must have a grid"});
  refuses(video, nullptr, {"t_intervals must not be NULL"});
  const auto* odd = reinterpret_cast<const double*>(reinterpret_cast<const char*>(&good) + 1);
  refuses(video, odd, {"t_intervals must be aligned"});
  EXPECT_EQ(ids, std::vector<int64_t>(9, -99));
  EXPECT_EQ(next, -99);
  EXPECT_OK(rope_prompt_ids_timed(nullptr, nullptr, 0, 5, nullptr, 0, &next));
  EXPECT_EQ(next, 5);
}

TEST(PromptIds, NegativeStartsAreFine) {
  int64_t next = 0;
  EXPECT_EQ(PromptIds({{2, 0, 0, 0, 0}}, -1, 2, &next)[0], (std::vector<int64_t>{-1, 0}));
  EXPECT_EQ(next, 1);
}

TEST(PromptIds, BadArgumentsAreNamedAndNothingIsWritten) {
  using Parts = std::vector<rope_prompt_part>;
  const struct {
    const char* name;
    Parts parts;
    int64_t start, tokens;
    std::vector<const char*> words;
  } cases[] = {
      {"text negative", {{-1, 0, 0, 0, 0}}, 0, 4, {"parts[0]", "text"}},
      {"t negative", {{4, 0, 0, 0, 0}, {0, -1, 1, 1, 0}}, 0, 4, {"parts[1]", "negative"}},
      {"interval negative", {{0, 1, 2, 2, -1}}, 0, 4, {"parts[0]", "t_interval"}},
      {"h missing", {{0, 1, 0, 4, 0}}, 0, 4, {"parts[0]", "positive"}},
      {"w missing", {{0, 1, 4, 0, 0}}, 0, 4, {"parts[0]", "positive"}},
      {"h without t", {{4, 0, 1, 0, 0}}, 0, 4, {"parts[0]"}},
      {"interval without t", {{4, 0, 0, 0, 2}}, 0, 4, {"parts[0]"}},
      {"tokens too few", {{5, 0, 0, 0, 0}}, 0, 4, {"tokens (4)", "(5)"}},
      {"tokens too many", {{3, 0, 0, 0, 0}}, 0, 4, {"tokens (4)", "(3)"}},
      {"tokens negative", {}, 0, -1, {"tokens (-1)"}},
      {"tokens overflow", {{INT64_MAX, 0, 0, 0, 0}, {1, 0, 0, 0, 0}}, -5, 4, {"overflow"}},
      {"grid overflows", {{0, INT32_MAX, INT32_MAX, INT32_MAX, 0}}, 0, 4, {"parts[0]", "overflow"}},
      {"ids overflow", {{4, 0, 0, 0, 0}}, INT64_MAX - 2, 4, {"parts[0]", "ids", "overflow"}},
      {"ids of an image overflow", {{0, 1, 2, 2, 0}}, INT64_MAX, 4, {"parts[0]", "overflow"}},
  };
  for (const auto& bad : cases) {
    SCOPED_TRACE(bad.name);
    int64_t ids[12], next = -7;
    std::fill(ids, ids + 12, -99);
    EXPECT_EQ(rope_prompt_ids(bad.parts.data(), static_cast<int32_t>(bad.parts.size()), bad.start,
                              ids, bad.tokens, &next),
              kInvalid);
    ExpectMessageWith("rope_prompt_ids", bad.words);
    EXPECT_EQ(next, -7);
    for (int64_t id : ids) EXPECT_EQ(id, -99);
  }
}

TEST(PromptIds, MisalignedPointersAreNamed) {
  alignas(8) char memory[8 * sizeof(int64_t)] = {};
  auto* const parts = reinterpret_cast<const rope_prompt_part*>(memory + 4);
  const rope_prompt_part part = {2, 0, 0, 0, 0};
  int64_t ids[6] = {}, next = -7;
  EXPECT_EQ(rope_prompt_ids(parts, 1, 0, ids, 0, &next), kInvalid);
  ExpectMessage("rope_prompt_ids", {"parts", "aligned"});
  EXPECT_EQ(rope_prompt_ids(&part, 1, 0, reinterpret_cast<int64_t*>(memory + 4), 2, &next),
            kInvalid);
  ExpectMessage("rope_prompt_ids", {"ids", "aligned"});
  EXPECT_EQ(next, -7);
}

TEST(PromptIds, NullPointersAreNamed) {
  const rope_prompt_part part = {2, 0, 0, 0, 0};
  int64_t ids[6] = {}, next = -7;
  EXPECT_EQ(rope_prompt_ids(nullptr, 1, 0, ids, 2, &next), kInvalid);
  ExpectMessage("rope_prompt_ids", {"NULL"});
  EXPECT_EQ(rope_prompt_ids(&part, 1, 0, nullptr, 2, &next), kInvalid);
  EXPECT_EQ(rope_prompt_ids(&part, 1, 0, ids, 2, nullptr), kInvalid);
  ExpectMessage("rope_prompt_ids", {"next", "NULL"});
  EXPECT_EQ(rope_prompt_ids(&part, -1, 0, ids, 2, &next), kInvalid);
  ExpectMessage("rope_prompt_ids", {"count", "negative"});
  EXPECT_EQ(next, -7);
}

}  // namespace
}  // namespace rope::testing
