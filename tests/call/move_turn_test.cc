// SHIFT and REROTATE turn keys as the definition has it (support/move_reference.h), on every
// instruction set: by the difference of both angles within the header's bounds, and with known bits
// where the rows that a move is made of are known. In tensors and in the slots of a cache.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "librope/rope.h"
#include "support/elements.h"
#include "support/enumerators.h"
#include "support/handles.h"
#include "support/move_reference.h"
#include "support/random.h"
#include "support/targets.h"

namespace rope::testing {
namespace {

// Frequencies of one or two sets, between which keys move.
struct Case {
  std::string name;
  std::vector<rope_config> sets;
  std::vector<double> factors;  // of attention, by their formulas
  std::vector<int64_t> ends;    // positions of each set are below
};

// Of 32 pairs, each larger by so much than the one before.
std::vector<double> Growing(double by) {
  std::vector<double> factors;
  for (int i = 0; i < 32; ++i) factors.push_back(1 + by * i);
  return factors;
}

rope_config Yarn(double factor) {
  rope_config config = Config(64);
  config.scaling = ROPE_SCALING_YARN;
  config.factor = factor;
  config.original_max_position_embeddings = 4096;
  return config;
}

rope_config LongRope(int64_t seq_len) {
  static const std::vector<double> kNarrow = Growing(0.01), kWide = Growing(2);
  rope_config config = Config(64);
  config.scaling = ROPE_SCALING_LONGROPE;
  config.table_length = 32;
  config.short_factor = kNarrow.data();
  config.long_factor = kWide.data();
  config.original_max_position_embeddings = 4096;
  config.factor = 32;
  config.seq_len = seq_len;
  return config;
}

rope_config Dynamic(int64_t seq_len) {
  rope_config config = Config(64);
  config.scaling = ROPE_SCALING_DYNAMIC;
  config.factor = 4;
  config.max_position_embeddings = 2048;
  config.seq_len = seq_len;
  return config;
}

rope_config Mrope(bool interleaved, double theta) {
  rope_config config = Config(128, ROPE_PAIRING_HALVES, theta);
  config.axes = 3;
  config.mrope_interleaved = interleaved ? 1 : 0;
  config.mrope_section[0] = 24, config.mrope_section[1] = 20, config.mrope_section[2] = 20;
  return config;
}

rope_config Blocks(double theta) {
  rope_config config = Config(72, ROPE_PAIRING_HALVES_PER_AXIS, theta);
  config.axes = 2;
  config.mrope_section[0] = 19, config.mrope_section[1] = 17;
  return config;
}

// The last 64 channels, interleaved, of heads with others: k_pe of MLA beside what does not turn.
rope_config Mla(rope_pairing pairing, double theta) {
  rope_config config = Config(192, pairing, theta);
  config.rotary_dim = 64;
  config.rotary_offset = 128;
  return config;
}

std::vector<Case> Cases() {
  const auto yarn = [](double factor) { return 0.1 * std::log(factor) + 1; };
  const double long_rope = std::sqrt(1 + std::log(32.0) / std::log(4096.0));
  return {
      {"default", {Config(64)}, {1}, {100000}},
      {"default of f16's width", {Config(34)}, {1}, {100000}},
      {"thetas", {Config(64), Config(64, ROPE_PAIRING_HALVES, 500000)}, {1, 1}, {100000, 100000}},
      {"YaRN", {Yarn(4)}, {yarn(4)}, {16384}},
      {"two of YaRN", {Yarn(4), Yarn(32)}, {yarn(4), yarn(32)}, {16384, 100000}},
      {"LongRoPE", {LongRope(4096), LongRope(4097)}, {long_rope, long_rope}, {4096, 100000}},
      {"dynamic NTK", {Dynamic(3000), Dynamic(8000)}, {1, 1}, {2999, 7999}},
      {"M-RoPE", {Mrope(false, 1e6)}, {1}, {30000}},
      {"M-RoPE, interleaved", {Mrope(true, 1e6), Mrope(true, 5e6)}, {1, 1}, {30000, 30000}},
      {"blocks", {Blocks(100), Blocks(10000)}, {1, 1}, {5000, 5000}},
      {"MLA", {Mla(ROPE_PAIRING_INTERLEAVED, 10000)}, {1}, {60000}},
      {"MLA of two thetas",
       {Mla(ROPE_PAIRING_INTERLEAVED, 10000), Mla(ROPE_PAIRING_INTERLEAVED, 500000)},
       {1, 1},
       {60000, 60000}},
      {"MLA to halves", {Mla(ROPE_PAIRING_INTERLEAVED_TO_HALVES, 10000)}, {1}, {60000}},
  };
}

// Of these sets with an angle and a rounding; `plain`: without their attention factors.
std::vector<rope_config> ConfigsOf(const Case& c, rope_angle angle, rope_rounding rounding,
                                   bool plain) {
  std::vector<rope_config> configs = c.sets;
  for (rope_config& config : configs) {
    config.angle = angle;
    config.rounding = rounding;
    if (plain) config.attention_factor = 1;
  }
  return configs;
}

// Packed keys, where they are and where they go: two sequences in each, with a set of frequencies
// each.
class Keys {
 public:
  Keys(const Case& c, rope_operation operation, rope_dtype dtype, Random* r)
      : config_(c.sets[0]), dtype_(dtype), tokens_(r->Of({1, 3, 12})), heads_(r->Of({1, 2, 9})) {
    span_alone_ = r->Sometimes(3);
    const auto sets = static_cast<int64_t>(c.sets.size());
    for (Places* places : {&to_, &from_}) {  // runs of their own
      const auto first = static_cast<int32_t>(r->Pick(0, tokens_));
      places->cu = {0, first, static_cast<int32_t>(tokens_)};
      for (int s = 0; s < 2; ++s) places->sets.push_back(static_cast<int32_t>(r->Below(sets)));
      for (int i = 0; i < std::max(1, config_.axes) * tokens_; ++i) {
        const int64_t end = c.ends[places->sets[i % tokens_ < first ? 0 : 1]];
        places->ids.push_back(operation == ROPE_OPERATION_SHIFT ? r->Pick(-2000, 2000)
                                                                : r->Below(end));
      }
    }
    before_.resize(static_cast<size_t>(tokens_ * heads_ * width() * SizeOf(dtype)));
    for (int64_t i = 0; i < tokens_ * heads_ * width(); ++i) {
      WriteElement(dtype, before_.data() + i * SizeOf(dtype), r->Pick(-1000000, 1000000) / 5e5);
    }
    after_ = before_;
    args_ = Args(1, tokens_);
    args_.operation = operation;
    args_.positions = PositionsOf(to_, sets);
    before_positions_ = PositionsOf(from_, sets);
    if (operation == ROPE_OPERATION_REROTATE) fused_.from_positions = &before_positions_;
    args_.fused = &fused_;
  }
  Keys(const Keys&) = delete;

  const rope_qk_args& args() const { return args_; }
  int width() const {
    return span_alone_ && config_.rotary_dim != 0 ? config_.rotary_dim : config_.head_dim;
  }

  // In place: in a tensor, and in the slots of a cache, which leaves the same bytes.
  void Move(const Context& context) {
    after_ = before_;
    rope_tensor k = Tensor(after_.data(), dtype_, heads_);
    k.head_dim = width();
    args_.k = k;
    ASSERT_OK(rope_apply_qk(context.get(), &args_));

    std::vector<char> pages = before_;
    std::vector<int64_t> slots;
    for (int64_t t = 0; t < tokens_; ++t) slots.push_back(t);
    rope_kv_cache cache = ROPE_INIT(rope_kv_cache);
    cache.kind = ROPE_SLOTS_MAPPED;
    cache.pages = 1;
    cache.page_size = static_cast<int32_t>(tokens_);
    cache.slots_i64 = slots.data();
    cache.slots_length = tokens_;
    cache.k = k;
    cache.k.data = pages.data();
    cache.k.layout = ROPE_LAYOUT_NHD;
    rope_fused fused = fused_;
    fused.source = fused.cache = &cache;
    rope_qk_args in_slots = args_;
    in_slots.k = rope_tensor{};
    in_slots.fused = &fused;
    ASSERT_OK(rope_apply_qk(context.get(), &in_slots));
    ASSERT_TRUE(pages == after_) << "in slots";
  }

  // `rows_at(t)`: those of a token. What does not turn is as it was.
  template <class RowsAt>
  void Expect(const rope_config& config, const RowsAt& rows_at, int64_t* exact) {
    const int size = SizeOf(dtype_), span = 2 * static_cast<int>(rows_at(0).size()),
              first = width() == config.head_dim ? config.rotary_offset : 0;
    std::vector<char> rest = before_;
    for (int64_t t = 0; t < tokens_; ++t) {
      const std::vector<MoveRow> rows = rows_at(t);
      for (int h = 0; h < heads_; ++h) {
        SCOPED_TRACE("head " + std::to_string(h) + " of token " + std::to_string(t));
        const int64_t at = ((t * heads_ + h) * width() + first) * size;
        ExpectTurned(config, args_.operation, dtype_, rows, &before_[at], &after_[at], exact);
        if (::testing::Test::HasFatalFailure()) return;
        std::memcpy(&rest[at], &after_[at], static_cast<size_t>(span * size));
      }
    }
    ASSERT_TRUE(rest == after_) << "beside the span";
    turned_ = tokens_ * heads_ * span;
  }
  int64_t turned() const { return turned_; }

  // The distances of REROTATE in one set, as positions of SHIFT.
  rope_qk_args AsShift(std::vector<int64_t>* distances) const {
    distances->clear();
    for (size_t i = 0; i < to_.ids.size(); ++i) distances->push_back(to_.ids[i] - from_.ids[i]);
    rope_qk_args shift = args_;
    shift.operation = ROPE_OPERATION_SHIFT;
    shift.positions.ids_i64 = distances->data();
    return shift;
  }

 private:
  struct Places {
    std::vector<int64_t> ids;  // [axes, 1, tokens]
    std::vector<int32_t> sets, cu;
  };
  static rope_positions PositionsOf(const Places& places, int64_t sets) {
    rope_positions p = Ids(ROPE_POSITIONS_IDS_ABT, places.ids.data());
    p.cu_seqlens = places.cu.data();
    p.sequences = static_cast<int32_t>(places.sets.size());
    if (sets > 1) p.freq_sets = places.sets.data();
    return p;
  }

  const rope_config config_;
  const rope_dtype dtype_;
  const int tokens_, heads_;
  bool span_alone_;
  int64_t turned_ = 0;
  Places to_, from_;
  std::vector<char> before_, after_;
  rope_qk_args args_;
  rope_positions before_positions_;
  rope_fused fused_ = ROPE_INIT(rope_fused);
};

class MoveTurnTest : public TargetTest {
 protected:
  // Each rounding, dtype and operation: visit(config, context, keys, dtype).
  template <class Visit>
  void ForEachMove(const Case& c, rope_angle angle, const Visit& visit) {
    Random r(static_cast<uint64_t>(angle) + 10 * c.name.size());
    for (rope_rounding rounding = 0; rounding <= kLastRounding; ++rounding) {
      const std::vector<rope_config> configs = ConfigsOf(c, angle, rounding, false);
      const Context context = CreateSets(configs);
      for (rope_dtype dtype : DtypesOf(rounding)) {
        for (rope_operation operation : {ROPE_OPERATION_SHIFT, ROPE_OPERATION_REROTATE}) {
          SCOPED_TRACE(c.name + ", angle " + std::to_string(angle) + ", rounding " +
                       std::to_string(rounding) + ", dtype " + std::to_string(dtype) +
                       ", operation " + std::to_string(operation));
          for (int n = 0; n < (ShortTests() ? 1 : 3); ++n) {
            Keys keys(c, operation, dtype, &r);
            keys.Move(context);
            if (!HasFatalFailure()) visit(configs[0], context, keys, dtype);
            if (HasFatalFailure()) return;
          }
        }
      }
    }
  }
};
INSTANTIATE_TARGETS(MoveTurnTest);

TEST_P(MoveTurnTest, IsTheDifferenceOfBothAngles) {
  int64_t exact = 0, turned = 0;
  for (const Case& c : Cases()) {
    for (rope_angle angle : {ROPE_ANGLE_FLOAT32, ROPE_ANGLE_EXACT, ROPE_ANGLE_DIVIDE}) {
      if (angle == ROPE_ANGLE_DIVIDE && c.sets[0].scaling != ROPE_SCALING_DEFAULT) continue;
      ForEachMove(
          c, angle,
          [&](const rope_config& config, const Context& context, Keys& keys, rope_dtype dtype) {
            const MoveReference reference(context, config);
            keys.Expect(
                config, [&](int64_t t) { return reference.RowsAt(keys.args(), 0, t); },
                dtype == ROPE_DTYPE_F32 ? nullptr : &exact);
            if (dtype != ROPE_DTYPE_F32) turned += keys.turned();
          });
      if (HasFatalFailure()) return;
    }
  }
  EXPECT_GT(exact, turned * 98 / 100);  // of 16 bits the bounds leave few a choice
}

TEST_P(MoveTurnTest, HasTheBitsOfTheRowsThatItIsMadeOf) {
  for (const Case& c : Cases()) {
    for (rope_angle angle : {ROPE_ANGLE_FLOAT32, ROPE_ANGLE_EXACT, ROPE_ANGLE_GGML}) {
      const rope_scaling scaling = c.sets[0].scaling;
      if (angle == ROPE_ANGLE_GGML && scaling != ROPE_SCALING_DEFAULT &&
          scaling != ROPE_SCALING_YARN) {
        continue;
      }
      const Context plain = CreateSets(ConfigsOf(c, angle, ROPE_ROUNDING_FLOAT32, true));
      ForEachMove(c, angle, [&](const rope_config& config, const Context&, Keys& keys, rope_dtype) {
        rope_qk_args args = keys.args();
        std::vector<int64_t> distances;
        if (angle == ROPE_ANGLE_EXACT && args.operation == ROPE_OPERATION_REROTATE) {
          if (c.sets.size() > 1) return;  // no row is that of two frequencies
          args = keys.AsShift(&distances);
        }
        const KnownRows known(plain, c.factors, args);
        int64_t exact = 0;
        keys.Expect(
            config, [&](int64_t t) { return known.RowsAt(0, t); }, &exact);
        if (config.rounding == ROPE_ROUNDING_EAGER || config.rounding == ROPE_ROUNDING_NATIVE) {
          EXPECT_EQ(exact, keys.turned());
        }
      });
      if (HasFatalFailure()) return;
    }
  }
}

// The attention factor is there once, whatever sets a key has been in: those of the formulas.
TEST(MoveTurn, FactorsAreThoseOfTheFormulas) {
  for (const Case& c : Cases()) {
    const Context context = CreateSets(c.sets);
    for (size_t set = 0; set < c.sets.size(); ++set) {
      rope_info info = ROPE_INIT(rope_info);
      ASSERT_OK(rope_context_info(context.get(), static_cast<int32_t>(set), &info));
      EXPECT_NEAR(info.attention_factor, c.factors[set], 1e-15) << c.name;
    }
  }
}

}  // namespace
}  // namespace rope::testing
