// Every configuration that rope_context_create refuses: its status, its message, and an out-pointer
// left alone.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "support/comma_locale.h"
#include "support/enumerators.h"
#include "support/errors.h"
#include "support/handles.h"
#include "support/memory.h"

namespace rope::testing {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();
const double kTable[32] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1,
                           1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
const double kBadTable[32] = {1, kNan};
const double kHuge[32] = {1, 0x1p33};
const uint8_t kAxes[32] = {0, 1, 2};
using Bad = BadInput<rope_config>;
using C = rope_config;

void WithTable(C* c, const double* C::*field, const double* table, int length = 32) {
  c->*field = table;
  c->table_length = length;
}
const double* Misaligned() {
  alignas(double) static const char bytes[33 * sizeof(double)] = {};
  return reinterpret_cast<const double*>(bytes + 4);
}
void Yarn(C* c) {
  c->scaling = ROPE_SCALING_YARN;
  c->factor = 4;
  c->original_max_position_embeddings = 4096;
}
void Longrope(C* c) {
  c->scaling = ROPE_SCALING_LONGROPE;
  c->factor = 4;
  c->original_max_position_embeddings = 4096;
  c->seq_len = 1;
  WithTable(c, &C::short_factor, kTable);
  WithTable(c, &C::long_factor, kTable);
}
void Llama3(C* c) {
  Yarn(c);
  c->scaling = ROPE_SCALING_LLAMA3;
  c->low_freq_factor = 1;
  c->high_freq_factor = 4;
}
void Dynamic(C* c) {
  c->scaling = ROPE_SCALING_DYNAMIC;
  c->factor = 2;
  c->max_position_embeddings = 2048;
  c->seq_len = 1;
}
void Mrope(C* c) {
  c->axes = 3;
  c->mrope_section[0] = 8;
  c->mrope_section[1] = c->mrope_section[2] = 12;
}

const Bad kBad[] = {
    {"head_dim 0", [](C* c) { c->head_dim = 0; }, kInvalid, {"head_dim (0)", "even", "1024"}},
    {"head_dim odd", [](C* c) { c->head_dim = 63; }, kInvalid, {"head_dim (63)", "even"}},
    {"head_dim negative", [](C* c) { c->head_dim = -2; }, kInvalid, {"head_dim (-2)"}},
    {"head_dim large", [](C* c) { c->head_dim = 1026; }, kInvalid, {"head_dim (1026)", "1024"}},
    {"theta missing", [](C* c) { c->theta = 0; }, kInvalid, {"theta (0)", "required"}},
    {"theta negative", [](C* c) { c->theta = -1; }, kInvalid, {"theta (-1)", "positive"}},
    {"theta NaN", [](C* c) { c->theta = kNan; }, kInvalid, {"theta (", "finite"}},
    {"theta infinite", [](C* c) { c->theta = kInf; }, kInvalid, {"theta (inf)", "finite"}},
    {"theta so small that frequencies overflow",
     [](C* c) { c->theta = 1e-300; },
     kInvalid,
     {"theta", "inv_freq"}},
    {"pairing missing", [](C* c) { c->pairing = 0; }, kInvalid, {"pairing (0)", "required"}},
    {"pairing unknown",
     [](C* c) { c->pairing = kLastPairing + 1; },
     kUnsupported,
     {"pairing (", "not known to this version"}},
    {"pairing negative", [](C* c) { c->pairing = -1; }, kUnsupported, {"pairing (-1)"}},
    {"rotary_dim odd", [](C* c) { c->rotary_dim = 33; }, kInvalid, {"rotary_dim (33)", "even"}},
    {"rotary_dim negative", [](C* c) { c->rotary_dim = -2; }, kInvalid, {"rotary_dim (-2)"}},
    {"rotary_dim beyond the head",
     [](C* c) { c->rotary_dim = 66; },
     kInvalid,
     {"rotary_dim (66)", "head_dim (64)"}},
    {"rotary_offset negative",
     [](C* c) { c->rotary_offset = -1; },
     kInvalid,
     {"rotary_offset (-1)"}},
    {"span beyond the head",
     [](C* c) { c->rotary_dim = 32, c->rotary_offset = 33; },
     kInvalid,
     {"rotary_offset (33)", "(32)"}},
    {"angle unknown", [](C* c) { c->angle = 99; }, kUnsupported, {"angle (99)"}},
    {"rounding unknown", [](C* c) { c->rounding = 4; }, kUnsupported, {"rounding (4)"}},
    {"inv_freq_dtype unknown",
     [](C* c) { c->inv_freq_dtype = kLastDtype + 1; },
     kUnsupported,
     {"inv_freq_dtype (ROPE_DTYPE_F8_E4M3) must be 0, F32, F16 or BF16"}},
    {"scaling unknown",
     [](C* c) { c->scaling = kLastScaling + 1; },
     kUnsupported,
     {"scaling (", "not known to this version"}},
    {"scaling negative", [](C* c) { c->scaling = -1; }, kUnsupported, {"scaling (-1)"}},
    {"device unknown", [](C* c) { c->device = 3; }, kUnsupported, {"device (3)"}},
    {"device_index on the CPU",
     [](C* c) { c->device_index = 1; },
     kInvalid,
     {"device_index (1)", "must be 0 on the CPU"}},
    {"device_index negative",
     [](C* c) { c->device = ROPE_DEVICE_CUDA, c->device_index = -1; },
     kInvalid,
     {"device_index (-1)", "must not be negative"}},
    {"no CUDA",
     [](C* c) { c->device = ROPE_DEVICE_CUDA, c->device_index = 1000; },
     ROPE_ERROR_UNAVAILABLE,
     {}},
    {"ids_per_axis with one axis",
     [](C* c) { c->ids_per_axis = 1; },
     kInvalid,
     {"ids_per_axis (1)", "0 with one axis"}},
    {"ids_per_axis beyond a truth value",
     [](C* c) {
       c->axes = 2, c->mrope_section[0] = 16, c->mrope_section[1] = 16, c->ids_per_axis = 2;
     },
     kInvalid,
     {"ids_per_axis (2)", "0 or 1"}},
    {"reserved", [](C* c) { c->reserved = kTable; }, kUnsupported, {"reserved", "0"}},
    {"struct_size 0", [](C* c) { c->struct_size = 0; }, kInvalid, {"struct_size (0)", "ROPE_INIT"}},
    {"struct_size small", [](C* c) { c->struct_size = 16; }, kInvalid, {"struct_size (16)"}},
    // Numbers that the scaling does not use, lacks, or that are no numbers.
    {"factor without scaling", [](C* c) { c->factor = 2; }, kInvalid, {"factor (2)", "DEFAULT"}},
    {"max_position_embeddings unused",
     [](C* c) { c->max_position_embeddings = 4096; },
     kInvalid,
     {"max_position_embeddings (4096)", "DEFAULT"}},
    {"beta_fast unused", [](C* c) { c->beta_fast = 32; }, kInvalid, {"beta_fast (32)"}},
    {"mscale unused", [](C* c) { c->mscale = 1; }, kInvalid, {"mscale (1)"}},
    {"low_freq_factor unused",
     [](C* c) { Yarn(c), c->low_freq_factor = 1; },
     kInvalid,
     {"low_freq_factor (1)", "YARN"}},
    {"yarn_no_truncate unused",
     [](C* c) { c->yarn_no_truncate = 1; },
     kInvalid,
     {"yarn_no_truncate (1)"}},
    {"yarn_no_truncate 2",
     [](C* c) { Yarn(c), c->yarn_no_truncate = 2; },
     kInvalid,
     {"yarn_no_truncate (2)", "0 or 1"}},
    {"LINEAR without factor",
     [](C* c) { c->scaling = ROPE_SCALING_LINEAR; },
     kInvalid,
     {"factor (0)", "LINEAR", "requires"}},
    {"factor NaN",
     [](C* c) { c->scaling = ROPE_SCALING_LINEAR, c->factor = kNan; },
     kInvalid,
     {"factor (", "finite"}},
    {"factor negative",
     [](C* c) { c->scaling = ROPE_SCALING_LINEAR, c->factor = -1; },
     kInvalid,
     {"factor (-1)", "negative"}},
    {"DYNAMIC without seq_len",
     [](C* c) { Dynamic(c), c->seq_len = 0; },
     kInvalid,
     {"seq_len (0)", "DYNAMIC"}},
    {"DYNAMIC without max",
     [](C* c) { Dynamic(c), c->max_position_embeddings = 0; },
     kInvalid,
     {"max_position_embeddings (0)", "DYNAMIC"}},
    {"DYNAMIC with two channels",
     [](C* c) { Dynamic(c), c->rotary_dim = 2; },
     kInvalid,
     {"rotary_dim (2)", "DYNAMIC"}},
    {"DYNAMIC_STEPS with two channels",
     [](C* c) { Dynamic(c), c->scaling = ROPE_SCALING_DYNAMIC_STEPS, c->rotary_dim = 2; },
     kInvalid,
     {"rotary_dim (2)", "DYNAMIC_STEPS"}},
    {"DYNAMIC_STEPS without seq_len",
     [](C* c) { Dynamic(c), c->scaling = ROPE_SCALING_DYNAMIC_STEPS, c->seq_len = 0; },
     kInvalid,
     {"seq_len (0)", "DYNAMIC_STEPS"}},
    {"YARN with exchanged betas",
     [](C* c) { Yarn(c), c->beta_fast = 1, c->beta_slow = 32; },
     kInvalid,
     {"beta_fast (1)", "beta_slow (32)"}},
    {"YARN with a beta beyond the other's default",
     [](C* c) { Yarn(c), c->beta_slow = 33; },
     kInvalid,
     {"beta_fast (32)", "beta_slow (33)"}},
    {"YARN with an infinite softmax factor",
     [](C* c) { Yarn(c), c->mscale_all_dim = 1e200; },
     kInvalid,
     {"mscale_all_dim (1e+200)", "softmax_factor"}},
    {"YARN without original",
     [](C* c) { Yarn(c), c->original_max_position_embeddings = 0; },
     kInvalid,
     {"original_max_position_embeddings (0)", "YARN"}},
    {"seq_len negative",
     [](C* c) { Dynamic(c), c->seq_len = -1; },
     kInvalid,
     {"seq_len (-1) must not be negative"}},
    {"seq_len negative where it is not used",
     [](C* c) { c->seq_len = INT64_MIN; },
     kInvalid,
     {"seq_len (-9223372036854775808) must not be negative"}},
    {"LLAMA3 without high_freq_factor",
     [](C* c) { Llama3(c), c->high_freq_factor = 0; },
     kInvalid,
     {"high_freq_factor (0)", "LLAMA3"}},
    {"LONGROPE without a factor",
     [](C* c) { Longrope(c), c->factor = 0; },
     kInvalid,
     {"factor (0)", "max_position_embeddings (0)", "LONGROPE"}},
    {"LONGROPE without original",
     [](C* c) { Longrope(c), c->original_max_position_embeddings = 0; },
     kInvalid,
     {"original_max_position_embeddings (0)", "LONGROPE"}},
    {"LONGROPE without tables",
     [](C* c) { Longrope(c), c->long_factor = nullptr; },
     kInvalid,
     {"long_factor (NULL)", "required"}},
    {"LONGROPE with a factor of 0",
     [](C* c) {
       static const double zero[32] = {};
       Longrope(c), c->short_factor = zero;
     },
     kInvalid,
     {"short_factor[0] (0)", "positive"}},
    {"short_factor unused",
     [](C* c) { WithTable(c, &C::short_factor, kTable); },
     kInvalid,
     {"short_factor", "LONGROPE"}},
    {"attention_factor negative",
     [](C* c) { c->attention_factor = -1; },
     kInvalid,
     {"attention_factor (-1)"}},
    {"attention_factor NaN",
     [](C* c) { c->attention_factor = kNan; },
     kInvalid,
     {"attention_factor (", "finite"}},
    {"attention_factor beyond f32",
     [](C* c) { c->attention_factor = 1e300; },
     kInvalid,
     {"attention_factor"}},
    {"attention_factor that is 0 in f32",
     [](C* c) { c->attention_factor = 1e-46; },
     kInvalid,
     {"attention_factor", "1e-46", "2^-126"}},
    {"attention_factor whose inverse is infinite in f32",
     [](C* c) { c->attention_factor = 1e-39; },
     kInvalid,
     {"attention_factor", "2^-126"}},
    {"attention_factor whose inverse is not a normal f32",
     [](C* c) { c->attention_factor = 3e38; },
     kInvalid,
     {"attention_factor", "2^126"}},
    {"NOPE with an attention_factor",
     [](C* c) { c->scaling = ROPE_SCALING_NOPE, c->attention_factor = 2; },
     kInvalid,
     {"attention_factor (2)", "must be 0", "NOPE"}},
    {"LLAMA3 with its bounds exchanged",
     [](C* c) { Llama3(c), c->low_freq_factor = 4, c->high_freq_factor = 1; },
     kInvalid,
     {"high_freq_factor (1)", "low_freq_factor (4)"}},
    {"PROPORTIONAL with an offset",
     [](C* c) { c->scaling = ROPE_SCALING_PROPORTIONAL, c->rotary_dim = 32, c->rotary_offset = 2; },
     kInvalid,
     {"rotary_offset (2)", "PROPORTIONAL"}},
    // Tables.
    {"table_length without a table",
     [](C* c) { c->table_length = 32; },
     kInvalid,
     {"table_length (32)"}},
    {"table_length wrong",
     [](C* c) { WithTable(c, &C::inv_freq, kTable, 31); },
     kInvalid,
     {"table_length (31)", "32"}},
    {"inv_freq NaN",
     [](C* c) { WithTable(c, &C::inv_freq, kBadTable); },
     kInvalid,
     {"inv_freq[1] (", "finite"}},
    {"inv_freq huge", [](C* c) { WithTable(c, &C::inv_freq, kHuge); }, kInvalid, {"inv_freq[1]"}},
    {"inv_freq with a scaling",
     [](C* c) {
       WithTable(c, &C::inv_freq, kTable), c->scaling = ROPE_SCALING_LINEAR, c->factor = 2;
     },
     kInvalid,
     {"scaling (ROPE_SCALING_LINEAR)", "inv_freq"}},
    {"freq_factors NaN",
     [](C* c) { WithTable(c, &C::freq_factors, kBadTable); },
     kInvalid,
     {"freq_factors[1] (", "finite"}},
    {"inv_freq misaligned",
     [](C* c) { WithTable(c, &C::inv_freq, Misaligned()); },
     kInvalid,
     {"inv_freq (0x", "aligned to 8"}},
    {"freq_factors misaligned",
     [](C* c) { WithTable(c, &C::freq_factors, Misaligned()); },
     kInvalid,
     {"freq_factors (0x", "aligned to 8"}},
    {"short_factor misaligned",
     [](C* c) { Longrope(c), c->short_factor = Misaligned(); },
     kInvalid,
     {"short_factor (0x", "aligned to 8"}},
    {"long_factor misaligned",
     [](C* c) { Longrope(c), c->long_factor = Misaligned(); },
     kInvalid,
     {"long_factor (0x", "aligned to 8"}},
    {"GGML with inv_freq",
     [](C* c) { WithTable(c, &C::inv_freq, kTable), c->angle = ROPE_ANGLE_GGML; },
     kUnsupported,
     {"GGML", "inv_freq"}},
    // Axes.
    {"axes negative", [](C* c) { c->axes = -1; }, kInvalid, {"axes (-1)", "8"}},
    {"axes 9", [](C* c) { c->axes = 9; }, kInvalid, {"axes (9)", "8"}},
    {"axes without map", [](C* c) { c->axes = 3; }, kInvalid, {"axes (3)", "mrope_section"}},
    {"both maps",
     [](C* c) { Mrope(c), c->pair_axis = kAxes, c->table_length = 32; },
     kInvalid,
     {"axes (3)", "not both"}},
    {"sections of one axis",
     [](C* c) { c->mrope_section[0] = 32; },
     kInvalid,
     {"mrope_section", "one axis"}},
    {"pair_axis of one axis",
     [](C* c) { c->pair_axis = kAxes, c->table_length = 32; },
     kInvalid,
     {"pair_axis", "one axis"}},
    {"sections add up to less",
     [](C* c) { Mrope(c), c->mrope_section[2] = 11; },
     kInvalid,
     {"mrope_section", "31", "(32)"}},
    {"section negative",
     [](C* c) { Mrope(c), c->mrope_section[1] = -1; },
     kInvalid,
     {"mrope_section[1] (-1)"}},
    {"section beyond axes",
     [](C* c) { Mrope(c), c->axes = 2; },
     kInvalid,
     {"mrope_section[2] (12)"}},
    {"sections overflow",
     [](C* c) { Mrope(c), c->mrope_section[0] = c->mrope_section[1] = INT32_MAX; },
     kInvalid,
     {"mrope_section"}},
    {"pair_axis out of range",
     [](C* c) { c->axes = 2, c->pair_axis = kAxes, c->table_length = 32; },
     kInvalid,
     {"pair_axis[2] (2)", "axes (2)"}},
    {"mrope_interleaved 2",
     [](C* c) { Mrope(c), c->mrope_interleaved = 2; },
     kInvalid,
     {"mrope_interleaved (2)"}},
    {"mrope_interleaved with one axis",
     [](C* c) { c->mrope_interleaved = 1; },
     kInvalid,
     {"mrope_interleaved"}},
    {"sections of more than four axes",
     [](C* c) { c->axes = 5, c->mrope_section[0] = 32; },
     kInvalid,
     {"axes (5)", "at most 4", "pair_axis"}},
    {"HALVES_PER_AXIS of more than four axes, with a table behind the sections",
     [](C* c) {
       c->pairing = ROPE_PAIRING_HALVES_PER_AXIS, c->axes = 8;
       for (int a = 0; a < 4; ++a) c->mrope_section[a] = 8;
       WithTable(c, &C::freq_factors, kTable);
     },
     kInvalid,
     {"axes (8)", "at most 4"}},
    {"mrope_interleaved with four axes",
     [](C* c) {
       c->axes = 4, c->mrope_interleaved = 1;
       for (int32_t& pairs : c->mrope_section) pairs = 8;
     },
     kInvalid,
     {"mrope_interleaved (1)", "3 axes"}},
    {"mrope_interleaved with pair_axis",
     [](C* c) {
       c->axes = 3, c->mrope_interleaved = 1, c->pair_axis = kAxes, c->table_length = 32;
     },
     kInvalid,
     {"mrope_interleaved (1)", "mrope_section"}},
    {"HALVES_PER_AXIS with one axis",
     [](C* c) { c->pairing = ROPE_PAIRING_HALVES_PER_AXIS; },
     kInvalid,
     {"HALVES_PER_AXIS", "mrope_section"}},
};

rope_config Good() { return Config(64); }

TEST(ConfigErrors, EachIsRefusedWithItsMessage) {
  for (const Bad& bad : kBad) {
    rope_config config = Good();
    bad.change(&config);
    auto* const untouched = reinterpret_cast<rope_context*>(0x1234);
    rope_context* out = untouched;
    ExpectParts("rope_context_create", bad, rope_context_create(&config, &out));
    EXPECT_EQ(out, untouched) << bad.name;

    if (bad.status == ROPE_ERROR_UNAVAILABLE) continue;  // on its own only: devices must be equal
    const rope_config good = Good();
    const rope_config* both[] = {&good, &config};
    EXPECT_EQ(rope_context_create_sets(both, 2, &out), bad.status) << bad.name;
    ExpectMessage("rope_context_create_sets", {});
    EXPECT_EQ(out, untouched) << bad.name;
  }
}

TEST(ConfigErrors, NextChangeChecksTheConfiguration) {
  for (const Bad& bad : kBad) {
    rope_config config = Good();
    bad.change(&config);
    int64_t next = -7;
    const rope_status status = rope_config_next_change(&config, 5, &next);
    // What only the frequencies or the device show is not asked here.
    if (status == ROPE_OK) continue;
    ExpectParts("rope_config_next_change", bad, status);
    EXPECT_EQ(next, -7) << bad.name;
  }
  const rope_config good = Good();
  int64_t next = -7;
  EXPECT_EQ(rope_config_next_change(nullptr, 5, &next), kInvalid);
  ExpectMessage("rope_config_next_change", {"config", "NULL"});
  EXPECT_EQ(rope_config_next_change(&good, 5, nullptr), kInvalid);
  ExpectMessage("rope_config_next_change", {"next", "NULL"});
  EXPECT_EQ(rope_config_next_change(&good, -5, &next), kInvalid);
  ExpectMessage("rope_config_next_change", {"seq_len (-5)", "negative"});
  EXPECT_EQ(next, -7);
}

TEST(ConfigErrors, NamePointersThatAreNull) {
  const rope_config good = Good();
  rope_context* out = nullptr;
  EXPECT_EQ(rope_context_create(nullptr, &out), kInvalid);
  ExpectMessage("rope_context_create", {"config", "NULL"});
  EXPECT_EQ(rope_context_create(&good, nullptr), kInvalid);
  ExpectMessage("rope_context_create", {"out", "NULL"});
  const rope_config* configs[] = {&good, nullptr};
  EXPECT_EQ(rope_context_create_sets(nullptr, 1, &out), kInvalid);
  EXPECT_EQ(rope_context_create_sets(configs, 2, &out), kInvalid);
  EXPECT_EQ(rope_context_create_sets(configs, 1, nullptr), kInvalid);
  for (int count : {0, -1, 257}) {
    EXPECT_EQ(rope_context_create_sets(configs, count, &out), kInvalid);
    ExpectMessage("rope_context_create_sets", {"count", "256"});
  }
  EXPECT_EQ(out, nullptr);
  rope_context_destroy(nullptr);
}

// Tables as long as table_length honestly says, at the end of readable memory: their length is
// compared before an entry is read.
TEST(ConfigErrors, ShortTablesAreNotRead) {
  const Guarded axes(1, Edge::kEnd), table(sizeof(double), Edge::kEnd);
  *table.as<double>() = 1;
  rope_config config = Good();
  config.axes = 2;
  config.pair_axis = axes.as<uint8_t>();
  config.table_length = 1;
  rope_context* out = nullptr;
  EXPECT_EQ(rope_context_create(&config, &out), kInvalid);
  ExpectMessage("rope_context_create", {"table_length (1)", "32"});
  for (const double* C::*field : {&C::inv_freq, &C::freq_factors}) {
    config = Good();
    WithTable(&config, field, table.as<double>(), 1);
    EXPECT_EQ(rope_context_create(&config, &out), kInvalid);
    ExpectMessage("rope_context_create", {"table_length (1)", "32"});
  }
  EXPECT_EQ(out, nullptr);
}

// Sets differ in frequencies and attention factor, and in nothing else.
TEST(ConfigErrors, NameTheFieldInWhichSetsDiffer) {
  const struct {
    const char* field;
    void (*both)(rope_config*);
    void (*change)(rope_config*);
  } cases[] = {
      {"head_dim", [](C* c) { c->rotary_dim = 64; }, [](C* c) { c->head_dim = 66; }},
      {"rotary_dim", [](C*) {}, [](C* c) { c->rotary_dim = 32; }},
      {"rotary_offset", [](C* c) { c->rotary_dim = 32; }, [](C* c) { c->rotary_offset = 32; }},
      {"pairing", [](C*) {}, [](C* c) { c->pairing = ROPE_PAIRING_INTERLEAVED; }},
      {"angle", [](C*) {}, [](C* c) { c->angle = ROPE_ANGLE_EXACT; }},
      {"rounding", [](C*) {}, [](C* c) { c->rounding = ROPE_ROUNDING_EAGER; }},
      {"scaling (NOPE)", [](C*) {}, [](C* c) { c->scaling = ROPE_SCALING_NOPE; }},
      {"axes", [](C* c) { c->axes = 3, c->pair_axis = kAxes, c->table_length = 32; },
       [](C* c) { c->axes = 4; }},
      {"mrope_section", Mrope, [](C* c) { std::swap(c->mrope_section[0], c->mrope_section[1]); }},
      {"device", [](C*) {}, [](C* c) { c->device = ROPE_DEVICE_CUDA; }},
      {"device", [](C* c) { c->device = ROPE_DEVICE_CUDA, c->device_index = 1000; },
       [](C* c) { c->device_index = 1001; }},
  };
  for (const auto& bad : cases) {
    rope_config a = Good();
    bad.both(&a);
    rope_config b = a;
    bad.change(&b);
    const rope_config* configs[] = {&a, &b};
    rope_context* out = nullptr;
    EXPECT_EQ(rope_context_create_sets(configs, 2, &out), kInvalid) << bad.field;
    ExpectMessage("rope_context_create_sets", {"configs[1]", bad.field});
    EXPECT_EQ(out, nullptr);
  }
}

TEST(ConfigErrors, SetsMayNameTheCpuOrNot) {
  rope_config a = Good(), b = Good();
  b.device = ROPE_DEVICE_CPU;
  const rope_config* configs[] = {&a, &b};
  rope_context* out = nullptr;
  EXPECT_OK(rope_context_create_sets(configs, 2, &out));
  rope_context_destroy(out);
}

// A newer program's larger struct: accepted while its tail is zero.
TEST(ConfigErrors, NameFieldsOfNewerStructs) {
  struct Newer {
    rope_config known;
    double later[2];
  } newer = {};
  newer.known = Good();
  newer.known.struct_size = sizeof(newer);
  rope_context* out = nullptr;
  ASSERT_OK(rope_context_create(&newer.known, &out));
  rope_context_destroy(out);
  out = nullptr;
  newer.later[1] = 1;
  EXPECT_EQ(rope_context_create(&newer.known, &out), kUnsupported);
  ExpectMessage("rope_context_create", {"config", "field at byte"});
  EXPECT_EQ(out, nullptr);
}

TEST(ConfigErrors, NumbersAreWrittenAlikeInEveryLocale) {
  const CommaLocale comma;
  if (!comma.is_set()) GTEST_SKIP() << "no locale with a decimal comma, and no localedef for one";
  rope_context* out = nullptr;
  rope_config config = Good();
  config.theta = -1.5;
  EXPECT_EQ(rope_context_create(&config, &out), kInvalid);
  ExpectMessage("rope_context_create", {"theta (-1.5)"});
  config = Good();
  Llama3(&config);
  config.low_freq_factor = 4.25;
  EXPECT_EQ(rope_context_create(&config, &out), kInvalid);
  ExpectMessage("rope_context_create", {"high_freq_factor (4)", "low_freq_factor (4.25)"});
}

// Each scaling's helper above is valid as it stands, so that each row breaks one rule.
TEST(ConfigErrors, TheStartingPointsAreGood) {
  for (void (*change)(C*) : {Yarn, Longrope, Llama3, Dynamic, Mrope}) {
    rope_config config = Good();
    change(&config);
    EXPECT_NE(Create(config), nullptr);
  }
}

}  // namespace
}  // namespace rope::testing
