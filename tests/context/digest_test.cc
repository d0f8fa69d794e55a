// Digests of configurations: equal for one rotation however it is described, different as soon as
// an angle, a factor or a channel is; and no field of rope_config is forgotten.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/sha256.h"
#include "support/enumerators.h"
#include "support/errors.h"
#include "support/handles.h"

namespace rope::testing {
namespace {

std::string Digest(const rope_config& config, rope_digest same = ROPE_DIGEST_ROTATION) {
  rope_digest_text digest;
  std::memset(&digest, 'x', sizeof(digest));
  EXPECT_OK(rope_config_digest(&config, same, &digest));
  const size_t length = std::strlen(digest.text);
  for (size_t i = length; i < sizeof(digest.text); ++i) EXPECT_EQ(digest.text[i], 0) << i;
  return digest.text;
}

// FIPS 180-4's examples, and lengths around the end of a block (Python's hashlib).
TEST(Sha256, IsThatOfTheStandard) {
  const std::pair<std::string, const char*> cases[] = {
      {"", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"},
      {"abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"},
      {"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq",
       "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1"},
      {std::string(55, 'a'), "9f4390f8d30c2dd92ec9f095b65e2b9ae9b0a925a5258e241c9f1e910f734318"},
      {std::string(56, 'a'), "b35439a4ac6f0948b6d6f9e3c6af0f5f590ce20f1bde7090ef7970686ec6738a"},
      {std::string(63, 'a'), "7d3e74a05d7db15bce4ad9ec0658ea98e3f06eeecf16b4c6fff2da457ddc2f34"},
      {std::string(64, 'a'), "ffe054fe7ae0cb6dc65c3af9b61d5209f439851db43d0ba5997337df154668eb"},
      {std::string(1000000, 'a'),
       "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0"},
  };
  for (const auto& [text, want] : cases) EXPECT_EQ(Sha256(text), want) << text.size();
}

// A program that keeps digests may compare them with those of the next release. The texts are those
// of docs/digest.md, which test_digest.py of the Python binding makes anew.
TEST(Digest, KeepsItsForm) {
  const rope_config config = Config(4);
  EXPECT_EQ(Digest(config),
            "rotation1:4ae1ec9bee9c588b1b6d933cc68fed41752f1d46da0f480e5c053aa4558b18c4");
  EXPECT_EQ(Digest(config, ROPE_DIGEST_ANGLES),
            "angles1:8c243f506d02b43aaa7cb36996cd4e15d835949748a35884dd8e4fe8652e7a8e");
  EXPECT_EQ(Digest(config, ROPE_DIGEST_BITS),
            "bits1:f7df81b74d8ac9cd1985102c1f83d62af046e9129c10a8db023e888edaf3d64c");
}

// -------------------------------------------------------------------------------------------------
// Every field

struct Field {
  const char* name;
  size_t offset, size;
};
#define FIELD(name) \
  { #name, offsetof(rope_config, name), sizeof(rope_config::name) }
constexpr Field kFields[] = {FIELD(struct_size),
                             FIELD(head_dim),
                             FIELD(theta),
                             FIELD(pairing),
                             FIELD(rotary_dim),
                             FIELD(rotary_offset),
                             FIELD(angle),
                             FIELD(rounding),
                             FIELD(inv_freq_dtype),
                             FIELD(scaling),
                             FIELD(yarn_no_truncate),
                             FIELD(factor),
                             FIELD(attention_factor),
                             FIELD(max_position_embeddings),
                             FIELD(original_max_position_embeddings),
                             FIELD(seq_len),
                             FIELD(beta_fast),
                             FIELD(beta_slow),
                             FIELD(mscale),
                             FIELD(mscale_all_dim),
                             FIELD(low_freq_factor),
                             FIELD(high_freq_factor),
                             FIELD(axes),
                             FIELD(mrope_interleaved),
                             FIELD(mrope_section),
                             FIELD(table_length),
                             FIELD(ids_per_axis),
                             FIELD(short_factor),
                             FIELD(long_factor),
                             FIELD(freq_factors),
                             FIELD(inv_freq),
                             FIELD(pair_axis),
                             FIELD(reserved),
                             FIELD(device),
                             FIELD(device_index),
                             FIELD(frequency),
                             FIELD(freq_heads),
                             FIELD(reserved2)};
#undef FIELD

// No rotation depends on these.
const std::set<std::string> kNotOfTheRotation = {
    "struct_size",   // of the caller's header
    "seq_len",       // of a call: all lengths are in the digest
    "table_length",  // follows from the number of pairs
    "ids_per_axis",  // of calls: which ids they may give
    "reserved",      // none yet
    "device",       "device_index",
    "reserved2",  // none yet
};

std::vector<double> Table(double value, int length = 32) {
  return std::vector<double>(static_cast<size_t>(length), value);
}
const std::vector<double> kTwos = Table(2), kThrees = Table(3), kFours = Table(4);
const std::vector<uint8_t> kAxes = [] {
  std::vector<uint8_t> axes(32, 0);
  axes[5] = 1;
  return axes;
}();

rope_config Scaled(rope_scaling scaling) {
  rope_config config = Config(64);
  config.scaling = scaling;
  const ScalingRule& rule = kScalingRules[scaling];
  if (rule.uses & kFactor) config.factor = 4;
  if (rule.uses & kMaxPosition) config.max_position_embeddings = 16384;
  if (rule.uses & kOriginal) config.original_max_position_embeddings = 4096;
  if (rule.uses & kLlamaNumbers) config.low_freq_factor = 1, config.high_freq_factor = 4;
  if (rule.Is(kHasTables)) {
    config.short_factor = kTwos.data();
    config.long_factor = kThrees.data();
    config.table_length = 32;
  }
  return config;
}

rope_config WithSections() {
  rope_config config = Config(64);
  config.axes = 3;
  config.mrope_section[0] = 16, config.mrope_section[1] = 8, config.mrope_section[2] = 8;
  return config;
}

// The general angle, of 64 frequencies in all.
rope_config Sums(int axes, int heads) {
  static const std::vector<double> kFrequency = Table(0.5, 64);
  rope_config config = Config(64);
  config.axes = axes;
  config.freq_heads = heads;
  config.frequency = kFrequency.data();
  config.table_length = 32;
  return config;
}

struct Change {
  const char* field;
  rope_config from;
  std::function<void(rope_config*)> change;
};

std::vector<Change> Changes() {
  using C = rope_config;
  const C plain = Config(64), yarn = Scaled(ROPE_SCALING_YARN);
  C with_offset = plain;
  with_offset.rotary_dim = 32;
  C longrope_of_lengths = Scaled(ROPE_SCALING_LONGROPE);
  longrope_of_lengths.factor = 0;
  std::vector<Change> changes = {
      {"head_dim", plain, [](C* c) { c->rotary_dim = 64, c->head_dim = 66; }},
      {"theta", plain, [](C* c) { c->theta = 10001; }},
      {"theta", plain, [](C* c) { c->theta = std::nextafterf(10000, 20000); }},
      {"pairing", plain, [](C* c) { c->pairing = ROPE_PAIRING_INTERLEAVED; }},
      {"pairing", plain, [](C* c) { c->pairing = ROPE_PAIRING_INTERLEAVED_TO_HALVES; }},
      {"pairing", WithSections(), [](C* c) { c->pairing = ROPE_PAIRING_HALVES_PER_AXIS; }},
      {"rotary_dim", plain, [](C* c) { c->rotary_dim = 32; }},
      {"rotary_offset", with_offset, [](C* c) { c->rotary_offset = 32; }},
      {"angle", plain, [](C* c) { c->angle = ROPE_ANGLE_EXACT; }},
      {"angle", plain, [](C* c) { c->angle = ROPE_ANGLE_GGML; }},
      {"inv_freq_dtype", plain, [](C* c) { c->inv_freq_dtype = ROPE_DTYPE_BF16; }},
      {"scaling", plain, [](C* c) { c->scaling = ROPE_SCALING_NOPE; }},
      {"scaling", Scaled(ROPE_SCALING_DYNAMIC),
       [](C* c) { c->scaling = ROPE_SCALING_DYNAMIC_STEPS; }},
      {"yarn_no_truncate", yarn, [](C* c) { c->yarn_no_truncate = 1; }},
      {"attention_factor", plain, [](C* c) { c->attention_factor = 1.25; }},
      {"attention_factor", plain, [](C* c) { c->attention_factor = 1 + 0x1p-23; }},
      {"max_position_embeddings", Scaled(ROPE_SCALING_DYNAMIC),
       [](C* c) { c->max_position_embeddings = 16385; }},
      {"max_position_embeddings", Scaled(ROPE_SCALING_DYNAMIC_STEPS),
       [](C* c) { c->max_position_embeddings = 16385; }},
      {"max_position_embeddings", longrope_of_lengths,
       [](C* c) { c->max_position_embeddings = 32768; }},
      {"original_max_position_embeddings", Scaled(ROPE_SCALING_LONGROPE),
       [](C* c) { c->original_max_position_embeddings = 4097; }},
      {"original_max_position_embeddings", yarn,
       [](C* c) { c->original_max_position_embeddings = 8192; }},
      {"beta_fast", yarn, [](C* c) { c->beta_fast = 64; }},
      {"beta_slow", yarn, [](C* c) { c->beta_slow = 2; }},
      {"mscale", yarn, [](C* c) { c->mscale = 0.5, c->mscale_all_dim = 1; }},
      // cos and sin as before, another factor on the softmax
      {"mscale_all_dim", yarn, [](C* c) { c->mscale_all_dim = 0.5; }},
      {"low_freq_factor", Scaled(ROPE_SCALING_LLAMA3), [](C* c) { c->low_freq_factor = 2; }},
      {"high_freq_factor", Scaled(ROPE_SCALING_LLAMA3), [](C* c) { c->high_freq_factor = 8; }},
      {"axes", plain, [](C* c) { *c = WithSections(); }},
      {"mrope_interleaved", WithSections(), [](C* c) { c->mrope_interleaved = 1; }},
      {"mrope_section", WithSections(),
       [](C* c) { c->mrope_section[1] = 7, c->mrope_section[2] = 9; }},
      {"short_factor", Scaled(ROPE_SCALING_LONGROPE),
       [](C* c) { c->short_factor = kFours.data(); }},
      {"long_factor", Scaled(ROPE_SCALING_LONGROPE), [](C* c) { c->long_factor = kFours.data(); }},
      {"freq_factors", plain, [](C* c) { c->freq_factors = kTwos.data(), c->table_length = 32; }},
      {"inv_freq", plain, [](C* c) { c->inv_freq = kTwos.data(), c->table_length = 32; }},
      {"pair_axis", plain,
       [](C* c) { c->pair_axis = kAxes.data(), c->axes = 2, c->table_length = 32; }},
      {"frequency", plain, [](C* c) { c->frequency = kTwos.data(), c->table_length = 32; }},
      {"freq_heads", Sums(2, 1), [](C* c) { c->axes = 1, c->freq_heads = 2; }},
  };
  for (rope_scaling scaling = 1; scaling <= kLastScaling; ++scaling) {
    if ((kScalingRules[scaling].uses & kFactor) == 0) continue;
    changes.push_back({"factor", Scaled(scaling), [](C* c) { c->factor = 4.5; }});
  }
  return changes;
}

TEST(Digest, EveryFieldIsInItOrKnownNotToMatter) {
  std::set<std::string> changed;
  for (const Change& change : Changes()) changed.insert(change.field);
  changed.insert("rounding");  // below: of SAME_BITS alone
  size_t end = 0;
  for (const Field& field : kFields) {
    EXPECT_EQ(field.offset, end) << "a field before " << field.name << " is not in kFields";
    end = field.offset + field.size;
    EXPECT_NE(changed.count(field.name), kNotOfTheRotation.count(field.name)) << field.name;
  }
  EXPECT_EQ(end, sizeof(rope_config)) << "a new field: add it to kFields, and to Changes or to "
                                         "kNotOfTheRotation";
}

TEST(Digest, IsAnotherIfARotationIs) {
  for (const Change& change : Changes()) {
    rope_config to = change.from;
    change.change(&to);
    EXPECT_NE(Digest(change.from), Digest(to)) << change.field;
    EXPECT_NE(Digest(change.from, ROPE_DIGEST_BITS), Digest(to, ROPE_DIGEST_BITS)) << change.field;
    // Where channels are is nothing that angles depend on.
    const std::set<std::string> of_channels = {"head_dim", "pairing", "rotary_offset"};
    EXPECT_EQ(of_channels.count(change.field) != 0,
              Digest(change.from, ROPE_DIGEST_ANGLES) == Digest(to, ROPE_DIGEST_ANGLES))
        << change.field;
  }
}

TEST(Digest, RoundingIsOfTheBitsAlone) {
  std::set<std::string> bits;
  for (rope_rounding rounding = 0; rounding <= kLastRounding; ++rounding) {
    rope_config config = Config(64);
    config.rounding = rounding;
    EXPECT_EQ(Digest(config), Digest(Config(64)));
    EXPECT_EQ(Digest(config, ROPE_DIGEST_ANGLES), Digest(Config(64), ROPE_DIGEST_ANGLES));
    bits.insert(Digest(config, ROPE_DIGEST_BITS));
  }
  EXPECT_EQ(bits.size(), size_t{kLastRounding + 1});
}

TEST(Digest, LengthAndDeviceAreNotRead) {
  for (rope_scaling scaling = 0; scaling <= kLastScaling; ++scaling) {
    rope_config config = Scaled(scaling);
    const std::string want = Digest(config);
    for (int64_t length : {int64_t{-1}, int64_t{1}, int64_t{100000}}) {
      config.seq_len = length;
      EXPECT_EQ(Digest(config), want) << scaling;
    }
    config.device = ROPE_DEVICE_CUDA;  // whether there is one or not
    config.device_index = 7;
    EXPECT_EQ(Digest(config), want) << scaling;
  }
}

// -------------------------------------------------------------------------------------------------
// One rotation, two descriptions

std::vector<double> FrequenciesOf(rope_config config) {
  if (config.scaling == ROPE_SCALING_LONGROPE) config.seq_len = 1;
  const Context context = Create(config);
  const rope_info info = Info(context);
  std::vector<double> inv_freq(static_cast<size_t>(info.pairs));
  EXPECT_OK(rope_context_inv_freq(context.get(), 0, inv_freq.data(), info.pairs));
  return inv_freq;
}

TEST(Digest, ATableOfTheSameFrequenciesIsTheSame) {
  for (rope_scaling scaling : {ROPE_SCALING_DEFAULT, ROPE_SCALING_LINEAR, ROPE_SCALING_LLAMA3,
                               ROPE_SCALING_PROPORTIONAL, ROPE_SCALING_YARN}) {
    rope_config config = Scaled(scaling);
    if (scaling == ROPE_SCALING_PROPORTIONAL) config.rotary_dim = 16;
    const std::vector<double> inv_freq = FrequenciesOf(config);
    rope_config table = Config(64);
    table.theta = 0;
    table.inv_freq = inv_freq.data();
    table.table_length = 32;
    table.attention_factor = Info(Create(config)).attention_factor;
    EXPECT_EQ(Digest(config), Digest(table)) << scaling;
  }
}

TEST(Digest, DefaultsThatAreWrittenOutAreTheSame) {
  rope_config config = Config(64);
  config.rotary_dim = 64;
  config.axes = 1;
  config.attention_factor = 1;
  EXPECT_EQ(Digest(config), Digest(Config(64)));
  rope_config linear = Scaled(ROPE_SCALING_LINEAR);
  linear.factor = 1;
  EXPECT_EQ(Digest(linear), Digest(Config(64)));
  rope_config yarn = Scaled(ROPE_SCALING_YARN);
  yarn.beta_fast = 32, yarn.beta_slow = 1;
  yarn.attention_factor = 0.1 * std::log(4.0) + 1;
  EXPECT_EQ(Digest(yarn), Digest(Scaled(ROPE_SCALING_YARN)));
  rope_config longrope = Scaled(ROPE_SCALING_LONGROPE);
  longrope.factor = 0;  // 16384 / 4096
  EXPECT_EQ(Digest(longrope), Digest(Scaled(ROPE_SCALING_LONGROPE)));
}

TEST(Digest, FactorsThatDoNotChangeWithTheLengthAreNoLongRope) {
  rope_config longrope = Scaled(ROPE_SCALING_LONGROPE);
  longrope.attention_factor = 1;
  longrope.long_factor = longrope.short_factor;
  rope_config factors = Config(64);
  factors.freq_factors = kTwos.data();
  factors.table_length = 32;
  EXPECT_EQ(Digest(longrope), Digest(factors));
  longrope.long_factor = kThrees.data();
  EXPECT_NE(Digest(longrope), Digest(factors));
}

TEST(Digest, AxesAreTheSameHoweverTheyAreDealtOut) {
  const rope_config sections = WithSections();
  rope_config fourth = sections;  // a fourth axis that drives nothing: GGUF
  fourth.axes = 4;
  EXPECT_EQ(Digest(fourth), Digest(sections));
  std::vector<uint8_t> axis(32, 0);
  std::fill(axis.begin() + 16, axis.begin() + 24, uint8_t{1});
  std::fill(axis.begin() + 24, axis.end(), uint8_t{2});
  rope_config table = Config(64);
  table.axes = 3;
  table.pair_axis = axis.data();
  table.table_length = 32;
  EXPECT_EQ(Digest(table), Digest(sections));
  std::fill(axis.begin(), axis.end(), uint8_t{0});
  EXPECT_EQ(Digest(table), Digest(Config(64)));  // one axis drives all
  // So do sums of one term.
  std::vector<double> frequency(64, 0);
  const std::vector<double> usual = FrequenciesOf(Config(64));
  for (size_t i = 0; i < 32; ++i) frequency[i + (i < 16 ? 0 : 32)] = usual[i];
  rope_config sums = Sums(2, 1);
  sums.frequency = frequency.data();
  std::fill(axis.begin() + 16, axis.end(), uint8_t{1});
  table.axes = 2;
  EXPECT_EQ(Digest(sums), Digest(table));
  EXPECT_EQ(Digest(sums, ROPE_DIGEST_BITS), Digest(table, ROPE_DIGEST_BITS));
}

// The phases are those of the frequency given alone, but they are reduced from another side.
TEST(Digest, SumsOfExactPhasesHaveBitsOfTheirOwn) {
  const std::vector<double> usual = FrequenciesOf(Config(64));
  rope_config alone = Config(64);
  alone.theta = 0;
  alone.inv_freq = usual.data();
  alone.table_length = 32;
  rope_config sums = Sums(1, 1);
  sums.frequency = usual.data();
  for (rope_angle angle : {ROPE_ANGLE_FLOAT32, ROPE_ANGLE_EXACT}) {
    alone.angle = sums.angle = angle;
    EXPECT_EQ(Digest(alone), Digest(sums));
    EXPECT_EQ(Digest(alone, ROPE_DIGEST_BITS) == Digest(sums, ROPE_DIGEST_BITS),
              angle == ROPE_ANGLE_FLOAT32);
  }
}

TEST(Digest, APairThatStandsStillCountsIfItIsScaled) {
  std::vector<double> inv_freq = FrequenciesOf(Config(32));
  rope_config half = Config(64, ROPE_PAIRING_INTERLEAVED);
  half.rotary_dim = 32;
  half.table_length = 16;
  inv_freq.resize(32, 0);
  half.inv_freq = inv_freq.data();
  rope_config whole = half;
  whole.rotary_dim = 0;
  whole.table_length = 32;
  EXPECT_EQ(Digest(half), Digest(whole));
  EXPECT_NE(Digest(half, ROPE_DIGEST_BITS), Digest(whole, ROPE_DIGEST_BITS));  // signs of zeros
  half.attention_factor = whole.attention_factor = 1.25;
  EXPECT_NE(Digest(half), Digest(whole));
}

TEST(Digest, OnePairHasOneOrder) {
  std::set<std::string> digests;
  for (rope_pairing pairing :
       {ROPE_PAIRING_HALVES, ROPE_PAIRING_INTERLEAVED, ROPE_PAIRING_INTERLEAVED_TO_HALVES}) {
    digests.insert(Digest(Config(2, pairing)));
  }
  EXPECT_EQ(digests.size(), 1u);
}

TEST(Digest, ALayerWithoutRopeIsOneWhateverElseItSays) {
  rope_config nope = Config(64);
  nope.scaling = ROPE_SCALING_NOPE;
  const std::string want = Digest(nope, ROPE_DIGEST_BITS);
  nope.theta = 0;
  nope.pairing = 0;
  nope.rounding = ROPE_ROUNDING_EAGER;
  EXPECT_EQ(Digest(nope, ROPE_DIGEST_BITS), want);
  rope_config zeros = Config(64);
  const std::vector<double> none = Table(0);
  zeros.inv_freq = none.data();
  zeros.table_length = 32;
  EXPECT_EQ(Digest(zeros), Digest(nope));
  EXPECT_NE(Digest(zeros, ROPE_DIGEST_BITS), want);  // signs of zeros
}

TEST(Digest, ThePairingMayBeOpenForAnglesAlone) {
  rope_config config = Config(64);
  const std::string want = Digest(config, ROPE_DIGEST_ANGLES);
  config.pairing = 0;
  EXPECT_EQ(Digest(config, ROPE_DIGEST_ANGLES), want);
  rope_digest_text digest = {"as before"};
  EXPECT_EQ(rope_config_digest(&config, ROPE_DIGEST_ROTATION, &digest), kInvalid);
  ExpectMessage("rope_config_digest", {"pairing (0)", "required"});
  EXPECT_STREQ(digest.text, "as before");
}

// -------------------------------------------------------------------------------------------------
// One bit

TEST(Digest, OneFrequencyByOneUlpIsAnother) {
  const std::vector<double> usual = FrequenciesOf(Config(64));
  for (rope_angle angle : {ROPE_ANGLE_FLOAT32, ROPE_ANGLE_EXACT}) {
    std::set<std::string> seen[2];
    for (size_t pair = 0; pair <= usual.size(); ++pair) {
      std::vector<double> inv_freq = usual;
      if (pair < usual.size()) {
        inv_freq[pair] = std::nextafterf(static_cast<float>(usual[pair]), 2);
      }
      rope_config config = Config(64);
      config.angle = angle;
      config.inv_freq = inv_freq.data();
      config.table_length = 32;
      for (rope_digest same : {ROPE_DIGEST_ROTATION, ROPE_DIGEST_ANGLES}) {
        seen[same].insert(Digest(config, same));
      }
    }
    for (const auto& digests : seen) EXPECT_EQ(digests.size(), usual.size() + 1) << angle;
  }
}

// What a context does not see is no difference: FLOAT32 rounds a frequency to f32.
TEST(Digest, WhatAContextRoundsAwayIsTheSame) {
  std::vector<double> inv_freq = FrequenciesOf(Config(64));
  rope_config config = Config(64);
  config.inv_freq = inv_freq.data();
  config.table_length = 32;
  const std::string rounded = Digest(config);
  rope_config exact = config;
  exact.angle = ROPE_ANGLE_EXACT;
  const std::string turns = Digest(exact);
  inv_freq[1] = std::nextafter(inv_freq[1], 2);
  EXPECT_EQ(Digest(config), rounded);
  EXPECT_NE(Digest(exact), turns);
}

TEST(Digest, SeesFrequenciesUnderEveryPolicy) {
  std::set<std::string> seen;
  rope_angle angle = 0;
  for (;; ++angle) {
    rope_config config = Config(64);
    config.angle = angle;
    rope_digest_text digest;
    if (rope_config_digest(&config, ROPE_DIGEST_ANGLES, &digest) != ROPE_OK) break;
    seen.insert(digest.text);
    config.theta = 20000;
    seen.insert(Digest(config, ROPE_DIGEST_ANGLES));
  }
  ExpectMessage("rope_config_digest", {"angle", "not known"});
  EXPECT_GT(angle, ROPE_ANGLE_GGML);
  EXPECT_EQ(seen.size(), static_cast<size_t>(2 * angle));
}

TEST(Digest, GgmlsRecurrenceCountsEveryNumberOfIt) {
  rope_config config = Scaled(ROPE_SCALING_YARN);
  config.angle = ROPE_ANGLE_GGML;
  const std::string yarn = Digest(config);
  config.beta_fast = 40;
  EXPECT_NE(Digest(config), yarn);
  rope_config factors = Config(64);
  factors.angle = ROPE_ANGLE_GGML;
  const std::string none = Digest(factors);
  factors.table_length = 32;
  const std::vector<double> ones = Table(1);
  factors.freq_factors = ones.data();
  EXPECT_EQ(Digest(factors), none);  // x / 1 is x
  factors.freq_factors = kTwos.data();
  EXPECT_NE(Digest(factors), none);
}

TEST(Digest, ErrorsNameTheirArgument) {
  const rope_config config = Config(64);
  rope_digest_text digest = {"as before"};
  EXPECT_EQ(rope_config_digest(nullptr, 0, &digest), kInvalid);
  ExpectMessage("rope_config_digest", {"config (NULL)"});
  EXPECT_EQ(rope_config_digest(&config, 0, nullptr), kInvalid);
  ExpectMessage("rope_config_digest", {"digest (NULL)"});
  for (rope_digest same : {-1, 3}) {
    EXPECT_EQ(rope_config_digest(&config, same, &digest), kUnsupported);
    ExpectMessage("rope_config_digest", {"same (", "not known"});
  }
  rope_config odd = config;
  odd.head_dim = 63;
  EXPECT_EQ(rope_config_digest(&odd, 0, &digest), kInvalid);
  ExpectMessage("rope_config_digest", {"head_dim (63)"});
  EXPECT_STREQ(digest.text, "as before");
}

}  // namespace
}  // namespace rope::testing
