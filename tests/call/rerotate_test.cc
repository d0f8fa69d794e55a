// REROTATE: keys that FORWARD has put at one position, moved to another one and other frequencies,
// are those that FORWARD puts there.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <iterator>
#include <string>
#include <vector>

#include "cpu/kernels.h"
#include "math/element.h"
#include "support/enumerators.h"
#include "support/errors.h"
#include "support/handles.h"
#include "support/random.h"
#include "support/reference.h"
#include "support/targets.h"

namespace rope::testing {
namespace {

constexpr int kTokens = 64, kHeads = 2;

// Positions of kTokens tokens on several axes, in a set of frequencies.
struct Places {
  std::vector<int64_t> ids;  // [axes, 1, tokens]
  int32_t set = 0;
};

Places RandomPlaces(int axes, int64_t end, Random* r, int32_t set = 0) {
  Places places;
  for (int i = 0; i < axes * kTokens; ++i) places.ids.push_back(r->Below(end));
  places.set = set;
  return places;
}

class Keys {
 public:
  Keys(rope_dtype dtype, int dim) : dtype_(dtype), dim_(dim) {
    bytes_.resize(kTokens * kHeads * dim * ElementSize(dtype));
  }
  int64_t count() const { return int64_t{kTokens} * kHeads * dim_; }
  double operator[](int64_t i) const { return LoadElement(dtype_, bytes_.data(), i); }
  void Set(int64_t i, float value) { StoreElement(dtype_, bytes_.data(), i, value); }

  void Turn(const Context& context, rope_operation operation, const Places& to,
            const Places* from = nullptr) {
    const bool sets = Info(context).freq_sets > 1;
    const auto positions = [&](const Places& places) {
      rope_positions p = Ids(ROPE_POSITIONS_IDS_ABT, places.ids.data());
      p.freq_sets = sets ? &places.set : nullptr;
      return p;
    };
    rope_qk_args args = Args(1, kTokens);
    args.operation = operation;
    args.k = Tensor(bytes_.data(), dtype_, kHeads);
    args.positions = positions(to);
    rope_fused fused = ROPE_INIT(rope_fused);
    rope_positions before{};
    if (from != nullptr) {
      before = positions(*from);
      fused.from_positions = &before;
      args.fused = &fused;
    }
    ASSERT_OK(rope_apply_qk(context.get(), &args));
  }

 private:
  const rope_dtype dtype_;
  const int dim_;
  std::vector<char> bytes_;
};

Keys RandomKeys(rope_dtype dtype, int dim, Random* r) {
  Keys keys(dtype, dim);
  for (int64_t i = 0; i < keys.count(); ++i) {
    keys.Set(i, static_cast<float>(r->Pick(-1000, 1000)) / 500);
  }
  return keys;
}

// FORWARD at `from` and REROTATE to `to` against FORWARD at `to`: what is stored in between is
// rounded once more. Both results are rounded, each to `unit` of its own size; the stored pair,
// whose length is a times that of what was given, by `unit` of both of its members, of which the
// rotation makes at most `unit` of the length of the result. Beside them are errors of cos and sin,
// and of f32.
void ExpectForwardOnTarget(const std::vector<rope_config>& sets, const Places& from,
                           const Places& to) {
  Random r(5);
  const Context context = CreateSets(sets);
  const rope_config& config = sets[0];
  const int dim = config.head_dim, span = config.rotary_dim != 0 ? config.rotary_dim : dim;
  std::vector<int> partner(static_cast<size_t>(dim), -1);  // the other channel of a pair
  for (int p = 0; p < span / 2; ++p) {
    const Channels c = ChannelsOfPair(config, ROPE_OPERATION_REROTATE, p);
    const int first = config.rotary_offset + c.in0, second = config.rotary_offset + c.in1;
    partner[first] = second, partner[second] = first;
  }
  for (rope_dtype dtype = 1; dtype <= kLastDtype; ++dtype) {
    const Keys keys = RandomKeys(dtype, dim, &r);
    Keys moved = keys, want = keys;
    moved.Turn(context, ROPE_OPERATION_FORWARD, from);
    moved.Turn(context, ROPE_OPERATION_REROTATE, to, &from);
    want.Turn(context, ROPE_OPERATION_FORWARD, to);
    const double unit = dtype == ROPE_DTYPE_F32   ? 0x1p-24
                        : dtype == ROPE_DTYPE_F16 ? 0x1p-11
                                                  : 0x1p-8;
    bool differs = false;
    for (int64_t i = 0; i < keys.count(); ++i) {
      const auto channel = static_cast<int>(i % dim);
      if (partner[channel] < 0) {
        ASSERT_EQ(moved[i], want[i]) << "channel " << channel;
        continue;
      }
      const double length = std::hypot(want[i], want[i - channel + partner[channel]]);
      const double bound =
          1.01 * unit * (length + std::fabs(moved[i]) + std::fabs(want[i])) + 2e-6 * length;
      ASSERT_LE(std::fabs(moved[i] - want[i]), bound)
          << "dtype " << dtype << ", channel " << channel << " of head " << i / dim;
      differs |= moved[i] != want[i];
    }
    EXPECT_TRUE(differs) << "dtype " << dtype;  // one rounding more
  }
}

void ExpectForward(const std::vector<rope_config>& sets, const Places& from, const Places& to) {
  for (const cpu::Kernels* kernels : cpu::ListKernels()) {
    const OnTarget target(kernels);
    SCOPED_TRACE(kernels->target);
    ExpectForwardOnTarget(sets, from, to);
    if (::testing::Test::HasFatalFailure()) return;
  }
}

rope_config Yarn(rope_angle angle, double factor) {
  rope_config config = Config(64);
  config.angle = angle;
  config.scaling = ROPE_SCALING_YARN;
  config.factor = factor;
  config.original_max_position_embeddings = 4096;
  return config;
}

TEST(Rerotate, MovesKeysOfYarn) {
  for (rope_angle angle : {ROPE_ANGLE_FLOAT32, ROPE_ANGLE_EXACT, ROPE_ANGLE_GGML}) {
    Random r(1);
    ExpectForward({Yarn(angle, 4)}, RandomPlaces(1, 16384, &r), RandomPlaces(1, 16384, &r));
  }
}

TEST(Rerotate, GoesFromOneYarnToAnother) {
  for (rope_angle angle : {ROPE_ANGLE_FLOAT32, ROPE_ANGLE_EXACT}) {
    Random r(2);
    ExpectForward({Yarn(angle, 4), Yarn(angle, 32)}, RandomPlaces(1, 16384, &r),
                  RandomPlaces(1, 100000, &r, 1));
  }
}

TEST(Rerotate, CrossesLongRopesSwitch) {
  std::vector<double> narrow(32), wide(32);
  for (int i = 0; i < 32; ++i) narrow[i] = 1 + 0.01 * i, wide[i] = 1 + 2.0 * i;
  std::vector<rope_config> configs(2, Config(64));
  for (int set = 0; set < 2; ++set) {
    rope_config& c = configs[set];
    c.scaling = ROPE_SCALING_LONGROPE;
    c.table_length = 32;
    c.short_factor = narrow.data();
    c.long_factor = wide.data();
    c.original_max_position_embeddings = 4096;
    c.factor = 32;
    c.seq_len = set == 0 ? 4096 : 4097;
  }
  const Context context = CreateSets(configs);
  Random r(3);
  const Places before = RandomPlaces(1, 4096, &r), after = {before.ids, 1};
  ExpectForward(configs, before, after);
  // The set of the old places is that of from_positions: the short one does not reach further.
  Keys keys = RandomKeys(ROPE_DTYPE_F32, 64, &r);
  Places beyond = before;
  beyond.ids[7] = 5000;
  rope_positions to = Ids(ROPE_POSITIONS_IDS_ABT, before.ids.data()), from = to;
  from.ids_i64 = beyond.ids.data();
  const int32_t short_set = 0, long_set = 1;
  to.freq_sets = &long_set;
  from.freq_sets = &short_set;
  rope_qk_args args = Args(1, kTokens);
  rope_fused fused = ROPE_INIT(rope_fused);
  fused.from_positions = &from;
  args.fused = &fused;
  std::vector<float> memory(kTokens * 64);
  args.k = Tensor(memory.data(), ROPE_DTYPE_F32, 1);
  args.positions = to;
  args.operation = ROPE_OPERATION_REROTATE;
  EXPECT_EQ(rope_apply_qk(context.get(), &args), kInvalid);
  ExpectMessage("rope_apply_qk", {"args->fused->from_positions: position 5000 of token 7"});
}

TEST(Rerotate, MovesDynamicNtkToAnotherLength) {
  std::vector<rope_config> configs(2, Config(64));
  for (int set = 0; set < 2; ++set) {
    configs[set].scaling = ROPE_SCALING_DYNAMIC;
    configs[set].factor = 4;
    configs[set].max_position_embeddings = 2048;
    configs[set].seq_len = set == 0 ? 3000 : 8000;
  }
  Random r(4);
  const Places before = RandomPlaces(1, 2999, &r);
  ExpectForward(configs, before, {before.ids, 1});
}

TEST(Rerotate, MovesEachAxisOfMrope) {
  for (rope_angle angle : {ROPE_ANGLE_FLOAT32, ROPE_ANGLE_EXACT}) {
    for (int32_t interleaved : {0, 1}) {
      rope_config config = Config(128);
      config.angle = angle;
      config.axes = 3;
      config.mrope_interleaved = interleaved;
      config.mrope_section[0] = 24, config.mrope_section[1] = 20, config.mrope_section[2] = 20;
      Random r(5);
      ExpectForward({config}, RandomPlaces(3, 30000, &r), RandomPlaces(3, 30000, &r));
      rope_config other = config;
      other.theta = 500000;
      ExpectForward({config, other}, RandomPlaces(3, 30000, &r), RandomPlaces(3, 30000, &r, 1));
    }
  }
}

TEST(Rerotate, MovesTheSpanOfMla) {
  for (rope_pairing pairing = 1; pairing <= ROPE_PAIRING_INTERLEAVED_TO_HALVES; ++pairing) {
    for (rope_angle angle : {ROPE_ANGLE_FLOAT32, ROPE_ANGLE_EXACT, ROPE_ANGLE_DIVIDE}) {
      rope_config config = Config(192, pairing);
      config.angle = angle;
      config.rotary_dim = 64;
      config.rotary_offset = 128;
      Random r(6);
      ExpectForward({config}, RandomPlaces(1, 60000, &r), RandomPlaces(1, 60000, &r));
    }
  }
}

// The table of docs/serving.md: keys that move again and again to random positions, against those
// that FORWARD puts there.
void ExpectRandomWalk(const rope_config& config) {
  const Context context = Create(config);
  Random r(10);
  constexpr int kMoves[] = {1, 4, 16, 64, 256};
  constexpr double kUnits[] = {0x1p-24, 0x1p-11, 0x1p-8};  // f32, f16, bf16
  for (rope_dtype dtype = 1; dtype <= kLastDtype; ++dtype) {
    const Keys raw = RandomKeys(dtype, 64, &r);
    Keys moved = raw;
    Places at = RandomPlaces(1, 100000, &r);
    moved.Turn(context, ROPE_OPERATION_FORWARD, at);
    std::printf("dtype %d:", dtype);
    for (int n = 1; n <= 256; ++n) {
      const Places to = RandomPlaces(1, 100000, &r);
      moved.Turn(context, ROPE_OPERATION_REROTATE, to, &at);
      at = to;
      if (std::find(std::begin(kMoves), std::end(kMoves), n) == std::end(kMoves)) continue;
      Keys fresh = raw;
      fresh.Turn(context, ROPE_OPERATION_FORWARD, at);
      double error = 0, sum = 0;
      for (int64_t i = 0; i < fresh.count(); ++i) {
        error += std::pow(moved[i] - fresh[i], 2);
        sum += std::pow(fresh[i], 2);
      }
      // Roundings are independent: a random walk of 1 + n steps, and one of the other keys.
      const double drift = std::sqrt(error / sum);
      std::printf(" %.2g after %d", drift, n);
      EXPECT_LT(drift, std::sqrt(n + 2) * kUnits[dtype - 1] * (dtype == 1 ? 3 : 0.5)) << n;
    }
    std::printf("\n");
  }
}

TEST(Rerotate, ManyMovesAddUpTheirRoundings) { ExpectRandomWalk(Config(64)); }
TEST(Rerotate, ManyMovesUnderYarnDoNoMore) { ExpectRandomWalk(Yarn(ROPE_ANGLE_FLOAT32, 4)); }

// A key (1, 0) becomes the cos and sin of the difference of the angles.
TEST(Rerotate, TurnsByTheDifferenceOfBothAngles) {
  for (rope_angle angle : {ROPE_ANGLE_FLOAT32, ROPE_ANGLE_EXACT}) {
    rope_config config = Config(64);
    config.angle = angle;
    const Context context = Create(config);
    const std::vector<double> inv_freq = InvFreq(context);
    Random r(7);
    const Places from = RandomPlaces(1, 1 << 20, &r), to = RandomPlaces(1, 1 << 20, &r);
    Keys keys(ROPE_DTYPE_F32, 64);
    for (int64_t i = 0; i < keys.count(); ++i) keys.Set(i, i % 64 < 32 ? 1.0f : 0.0f);
    keys.Turn(context, ROPE_OPERATION_REROTATE, to, &from);
    double farthest = 0;
    for (int t = 0; t < kTokens; ++t) {
      for (int pair = 0; pair < 32; ++pair) {
        const auto turn = [&](const Places& places) {
          return TurnOf(angle, Quad(inv_freq[pair]), Position{false, places.ids[t], 0});
        };
        const testing::Turn a = turn(to), b = turn(from);
        const long double cos = a.cos * b.cos + a.sin * b.sin, sin = a.sin * b.cos - a.cos * b.sin;
        const int64_t at = int64_t{t} * kHeads * 64 + pair;
        farthest = std::max({farthest, std::fabs(static_cast<double>(keys[at] - cos)),
                             std::fabs(static_cast<double>(keys[at + 32] - sin))});
      }
    }
    // Under EXACT inv_freq has less digits than the frequency: 2^20 * 2^-53.
    EXPECT_LT(farthest, angle == ROPE_ANGLE_EXACT ? 1.6e-7 : 4e-7) << angle;
    EXPECT_GT(farthest, 5e-8);
  }
}

// Where a key stays, in a set that has the same first frequency, its first pair turns by +0: x0 cos
// - x1 sin of a zero x0 has the sign of rotate.h in every order of rows, on every target.
TEST(Rerotate, SignsOfZerosAreThoseOfTheDefinition) {
  for (const cpu::Kernels* kernels : cpu::ListKernels()) {
    const OnTarget target(kernels);
    for (rope_pairing pairing : {ROPE_PAIRING_HALVES, ROPE_PAIRING_INTERLEAVED}) {
      const rope_config config = Config(32, pairing), other = Config(32, pairing, 500000);
      const Context context = CreateSets({config, other});
      const Channels pair = ChannelsOfPair(config, ROPE_OPERATION_REROTATE, 0);
      for (rope_dtype dtype = 1; dtype <= kLastDtype; ++dtype) {
        for (const float x1 : {-0.5f, 0.5f}) {
          Keys keys(dtype, 32);
          for (int64_t i = 0; i < keys.count(); ++i) {
            const auto channel = static_cast<int>(i % 32);
            keys.Set(i, channel == pair.in0 ? -0.0f : channel == pair.in1 ? x1 : 1.0f);
          }
          Places from, to;
          from.ids = std::vector<int64_t>(kTokens, 2139);
          to.ids = from.ids;
          to.set = 1;
          keys.Turn(context, ROPE_OPERATION_REROTATE, to, &from);
          for (int64_t i = pair.in0; i < keys.count(); i += 32) {
            ASSERT_EQ(keys[i], 0);
            ASSERT_EQ(std::signbit(keys[i]), x1 > 0)
                << kernels->target << ", pairing " << pairing << ", dtype " << dtype;
          }
        }
      }
    }
  }
}

TEST(Rerotate, LeavesWhatStaysUnderExact) {
  rope_config config = Config(64);
  config.angle = ROPE_ANGLE_EXACT;
  const Context context = Create(config);
  Random r(8);
  const Places places = RandomPlaces(1, 1 << 20, &r);
  const Keys keys = RandomKeys(ROPE_DTYPE_F32, 64, &r);
  Keys same = keys;
  same.Turn(context, ROPE_OPERATION_REROTATE, places, &places);
  for (int64_t i = 0; i < keys.count(); ++i) ASSERT_EQ(same[i], keys[i]) << i;
}

TEST(Rerotate, HasTheBitsOfShiftWithinOneSetUnderExact) {
  for (rope_pairing pairing = 1; pairing <= kLastPairing; ++pairing) {
    rope_config config = Config(64, pairing);
    config.angle = ROPE_ANGLE_EXACT;
    config.axes = 2;
    config.mrope_section[0] = config.mrope_section[1] = 16;
    const Context context = Create(config);
    Random r(11);
    const Places from = RandomPlaces(2, int64_t{1} << 40, &r), to = RandomPlaces(2, 5000, &r);
    Places distance = to;
    for (size_t i = 0; i < to.ids.size(); ++i) distance.ids[i] = to.ids[i] - from.ids[i];
    for (rope_dtype dtype = 1; dtype <= kLastDtype; ++dtype) {
      const Keys keys = RandomKeys(dtype, 64, &r);
      Keys moved = keys, want = keys;
      moved.Turn(context, ROPE_OPERATION_REROTATE, to, &from);
      want.Turn(context, ROPE_OPERATION_SHIFT, distance);
      for (int64_t i = 0; i < keys.count(); ++i) ASSERT_EQ(moved[i], want[i]) << i;
    }
  }
}

// The kernel by itself, with a factor of its own.
TEST(Rerotate, TurnsBackWithTheSameBitsOnEveryTarget) {
  const cpu::Kernels* const first = cpu::ListKernels().front();
  ASSERT_NE(first->turn_back, nullptr);
  Random r(12);
  constexpr int kCount = 48;
  float rows[4][kCount];
  for (auto& row : rows) {
    for (float& x : row) x = static_cast<float>(r.Below(1 << 25)) / (1 << 24) - 1;
  }
  for (const cpu::Kernels* kernels : cpu::ListKernels()) {
    if (kernels->turn_back == nullptr) continue;
    float cos[kCount], sin[kCount];
    std::copy_n(rows[0], kCount, cos);
    std::copy_n(rows[1], kCount, sin);
    kernels->turn_back(rows[2], rows[3], 1.25, kCount, cos, sin);
    for (int i = 0; i < kCount; ++i) {
      const double c = rows[0][i], s = rows[1][i], from_c = rows[2][i], from_s = rows[3][i];
      ASSERT_EQ(cos[i], static_cast<float>((c * from_c + s * from_s) * 1.25)) << kernels->target;
      ASSERT_EQ(sin[i], static_cast<float>((s * from_c - c * from_s) * 1.25)) << kernels->target;
    }
  }
}

// Float ids, among them some that are no numbers.
TEST(Rerotate, TakesCoordinates) {
  for (rope_angle angle : {ROPE_ANGLE_FLOAT32, ROPE_ANGLE_EXACT}) {
    rope_config config = Config(32, ROPE_PAIRING_INTERLEAVED);
    config.angle = angle;
    const Context context = Create(config);
    const float from[] = {0.5f, -3.25f, 7, NAN}, to[] = {2.5f, 11, INFINITY, 3};
    const int64_t whole[] = {3, 4, 5, 6};
    float keys[4][32], want[4][32];
    for (int t = 0; t < 4; ++t) {
      for (int i = 0; i < 32; ++i) keys[t][i] = want[t][i] = 1.0f + static_cast<float>((t + i) % 7);
    }
    const auto apply = [&](float* k, rope_operation operation, const rope_positions& p,
                           const rope_positions* before) {
      rope_qk_args args = Args(1, 4);
      args.operation = operation;
      args.k = Tensor(k, ROPE_DTYPE_F32, 1);
      args.positions = p;
      rope_fused fused = ROPE_INIT(rope_fused);
      fused.from_positions = before;
      if (before != nullptr) args.fused = &fused;
      ASSERT_OK(rope_apply_qk(context.get(), &args));
    };
    const rope_positions before = Ids(ROPE_POSITIONS_IDS_T, from),
                         between = Ids(ROPE_POSITIONS_IDS_T, whole),
                         after = Ids(ROPE_POSITIONS_IDS_T, to);
    apply(keys[0], ROPE_OPERATION_FORWARD, before, nullptr);
    apply(keys[0], ROPE_OPERATION_REROTATE, between, &before);
    apply(keys[0], ROPE_OPERATION_REROTATE, after, &between);
    apply(want[0], ROPE_OPERATION_FORWARD, after, nullptr);
    for (int i = 0; i < 32; ++i) {
      EXPECT_NEAR(keys[0][i], want[0][i], 3e-5);
      EXPECT_NEAR(keys[1][i], want[1][i], 3e-5);
      EXPECT_TRUE(std::isnan(keys[2][i]) && std::isnan(keys[3][i]));
    }
  }
}

// Prepared, by each order of rows that kernels read.
TEST(Rerotate, PreparedCallsHaveTheBitsOfTheCall) {
  for (rope_pairing pairing = 1; pairing <= kLastPairing; ++pairing) {
    rope_config config = Config(64, pairing);
    if (pairing == ROPE_PAIRING_HALVES_PER_AXIS) {
      config.axes = 2;
      config.mrope_section[0] = config.mrope_section[1] = 16;
    }
    const Context context = Create(config);
    Random r(9);
    const Places from = RandomPlaces(2, 5000, &r), to = RandomPlaces(2, 5000, &r);
    for (rope_dtype dtype = 1; dtype <= kLastDtype; ++dtype) {
      const Keys keys = RandomKeys(dtype, 64, &r);
      Keys want = keys;
      want.Turn(context, ROPE_OPERATION_REROTATE, to, &from);
      std::vector<char> bytes(keys.count() * ElementSize(dtype));
      for (int64_t i = 0; i < keys.count(); ++i) {
        StoreElement(dtype, bytes.data(), i, static_cast<float>(keys[i]));
      }
      const rope_positions before = Ids(ROPE_POSITIONS_IDS_ABT, from.ids.data());
      rope_fused fused = ROPE_INIT(rope_fused);
      fused.from_positions = &before;
      rope_qk_args args = Args(1, kTokens);
      args.operation = ROPE_OPERATION_REROTATE;
      args.k = Tensor(bytes.data(), dtype, kHeads);
      args.positions = Ids(ROPE_POSITIONS_IDS_ABT, to.ids.data());
      args.fused = &fused;
      const Prepared prepared = Prepare(context, args);
      ASSERT_NE(prepared, nullptr);
      const rope_qk_data data = DataOf(args);
      ASSERT_OK(rope_prepared_apply(prepared.get(), &data));
      for (int64_t i = 0; i < keys.count(); ++i) {
        ASSERT_EQ(LoadElement(dtype, bytes.data(), i), want[i]) << i;
      }
    }
  }
}

}  // namespace
}  // namespace rope::testing
