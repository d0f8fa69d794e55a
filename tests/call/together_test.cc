// Tensors of one call do not disturb each other: q, keys that go to an output and to slots, and
// values have the bits that calls with one of them give, whatever the dtype of each is, and with it
// the kernel, the order of its rows and the way through them. On every instruction set.
#include <gtest/gtest.h>

#include <cstdint>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "math/element.h"
#include "support/elements.h"
#include "support/enumerators.h"
#include "support/handles.h"
#include "support/prepared_call.h"
#include "support/q8_0.h"
#include "support/random.h"
#include "support/targets.h"

namespace rope::testing {
namespace {

enum Part { kQ = 1, kKOut = 2, kKSlots = 4, kVOut = 8, kVSlots = 16, kAll = 31 };

// A random call, of which parts can be made.
class Together {
 public:
  explicit Together(uint64_t seed) : r_(seed) {
    config_ = Config(r_.Of({64, 80, 128}), r_.Pick(1, ROPE_PAIRING_INTERLEAVED_TO_HALVES));
    if (!r_.Sometimes(3)) {
      config_.rotary_dim = r_.Of({2, 24, 32, 40, 64});
      config_.rotary_offset = r_.Of({0, config_.head_dim - config_.rotary_dim});
    }
    config_.angle =
        r_.Of({ROPE_ANGLE_FLOAT32, ROPE_ANGLE_DIVIDE, ROPE_ANGLE_GGML, ROPE_ANGLE_EXACT});
    config_.attention_factor = r_.Of({0.0, 1.25});
    if (r_.Sometimes(3)) config_.rounding = r_.Pick(ROPE_ROUNDING_EAGER, kLastRounding);
    operation_ = r_.Of({ROPE_OPERATION_FORWARD, ROPE_OPERATION_INVERSE, ROPE_OPERATION_SHIFT,
                        ROPE_OPERATION_REROTATE, ROPE_OPERATION_REROTATE});
    moves_ = operation_ == ROPE_OPERATION_SHIFT || r_.Sometimes(2);
    in_slots_ = moves_ && r_.Sometimes(2);
    tokens_ = r_.Of({1, 5, 40});
    for (int t = 0; t < tokens_; ++t) {
      before_.push_back(r_.Pick(0, 4000));
      after_.push_back(r_.Pick(0, 4000));
      slots_.push_back((t * 7 + 3) % (tokens_ + 1));
    }
    const int heads = r_.Pick(1, 3);
    const rope_dtype turned = r_.Of({0, 0, r_.Pick(1, kLastDtype)});
    const auto dtype = [&](bool any) -> rope_dtype {
      if (turned != 0 && r_.Sometimes(2)) return turned;
      if (any && config_.head_dim % kBlock == 0 && r_.Sometimes(6)) return ROPE_DTYPE_Q8_0;
      return any ? r_.Pick(1, ROPE_DTYPE_I8) : r_.Pick(1, kLastDtype);
    };
    const bool native = config_.rounding == ROPE_ROUNDING_NATIVE;  // f16, which may become codes
    const auto turning = [&](bool any) -> rope_dtype {
      const rope_dtype drawn = dtype(any);
      return native && drawn <= kLastDtype ? ROPE_DTYPE_F16 : drawn;
    };
    q_ = Make(turning(false), r_.Pick(1, 4));
    k_ = Make(turning(moves_ && !native), heads);
    v_ = Make(dtype(moves_), heads);
    k_out_ = Make(turning(true), heads);
    v_out_ = Make(dtype(true), heads);
    k_slots_ = Make(turning(true), heads);
    v_slots_ = Make(dtype(true), heads);
    weights_ = std::vector<float>(config_.head_dim, 1.25f);
    with_norms_ = !moves_ && operation_ == ROPE_OPERATION_FORWARD && r_.Sometimes(3);
  }

  struct Heads {
    rope_dtype dtype;
    int heads, head_dim;
    std::vector<char> bytes;
    rope_scale scale = ROPE_INIT(rope_scale);

    rope_tensor At(rope_layout layout) {
      rope_tensor t = Tensor(bytes.data(), dtype, heads, layout);
      t.head_dim = head_dim;
      if (IsCode(dtype)) t.scale = &scale;
      return t;
    }
  };
  struct Result {
    rope_status status;
    Heads q, k_out, k_slots, v_out, v_slots;
  };

  const rope_config& config() const { return config_; }
  bool moves() const { return moves_; }
  bool has_blocks() const {
    for (const Heads* heads : {&k_, &v_, &k_out_, &v_out_, &k_slots_, &v_slots_}) {
      if (heads->dtype == ROPE_DTYPE_Q8_0) return true;
    }
    return false;
  }

  Result Apply(const Context& context, int parts, bool prepared = false) {
    Heads q = q_, k = k_, v = v_, k_out = k_out_, v_out = v_out_, k_slots = k_slots_,
          v_slots = v_slots_;
    rope_kv_cache source = ROPE_INIT(rope_kv_cache);
    source.kind = ROPE_SLOTS_MAPPED;
    source.pages = 1;
    source.page_size = tokens_ + 1;
    source.slots_i32 = slots_.data();
    source.slots_length = tokens_;
    rope_kv_cache cache = source;
    const bool with_v = (parts & (kVOut | kVSlots)) != 0, with_k = (parts & (kKOut | kKSlots)) != 0;
    source.k = k.At(ROPE_LAYOUT_NHD);
    if (with_v) source.v = v.At(ROPE_LAYOUT_NHD);
    if ((parts & kKSlots) != 0) cache.k = in_slots_ ? source.k : k_slots.At(ROPE_LAYOUT_NHD);
    if ((parts & kVSlots) != 0) cache.v = in_slots_ ? source.v : v_slots.At(ROPE_LAYOUT_NHD);
    rope_norm norm = ROPE_INIT(rope_norm);
    norm.kind = ROPE_NORM_KIND_RMS;
    norm.eps = 1e-6;
    norm.weight = weights_.data();
    norm.weight_dtype = ROPE_DTYPE_F32;
    rope_fused fused = ROPE_INIT(rope_fused);
    const rope_positions from = Ids(ROPE_POSITIONS_IDS_T, before_.data());
    if (operation_ == ROPE_OPERATION_REROTATE) fused.from_positions = &from;
    rope_qk_args args = Args(1, tokens_);
    args.operation = operation_;
    args.positions = Ids(ROPE_POSITIONS_IDS_T, after_.data());
    args.fused = &fused;
    if ((parts & kQ) != 0) args.q = q.At(ROPE_LAYOUT_BSHD);
    if (with_norms_ && (parts & kQ) != 0) fused.q_norm = &norm;
    if (with_k && moves_) fused.source = &source;
    if (with_k && !moves_) args.k = k.At(ROPE_LAYOUT_BSHD);
    if (with_k && with_norms_) fused.k_norm = &norm;
    if (with_v && !moves_) fused.v = v.At(ROPE_LAYOUT_BSHD);
    if ((parts & kKOut) != 0) args.k_out = k_out.At(ROPE_LAYOUT_BSHD);
    if ((parts & kVOut) != 0) fused.v_out = v_out.At(ROPE_LAYOUT_BSHD);
    if ((parts & (kKSlots | kVSlots)) != 0) fused.cache = &cache;
    const rope_status status =
        prepared ? ApplyPrepared(context.get(), args) : rope_apply_qk(context.get(), &args);
    return {status,           std::move(q),
            std::move(k_out), std::move(in_slots_ ? k : k_slots),
            std::move(v_out), std::move(in_slots_ ? v : v_slots)};
  }

  std::string Describe() const {
    std::string text = "head_dim " + std::to_string(config_.head_dim);
    const auto add = [&](const char* name, int64_t value) {
      text += std::string(", ") + name + " " + std::to_string(value);
    };
    add("rotary_dim", config_.rotary_dim), add("offset", config_.rotary_offset);
    add("pairing", config_.pairing), add("angle", config_.angle);
    add("rounding", config_.rounding), add("operation", operation_), add("tokens", tokens_);
    add("q", q_.dtype), add("k", k_.dtype), add("k_out", k_out_.dtype);
    add("slots of k", k_slots_.dtype), add("v", v_.dtype), add("v_out", v_out_.dtype);
    add("slots of v", v_slots_.dtype), add("moves", moves_), add("in its slots", in_slots_);
    add("norms", with_norms_);
    return text;
  }

 private:
  // One token more than the call has: room for a slot that is not used.
  Heads Make(rope_dtype dtype, int heads) {
    Heads made{dtype, heads, config_.head_dim, {}};
    const int count = (tokens_ + 1) * heads * config_.head_dim;
    made.scale.value = 0.0625f;
    made.bytes.resize(static_cast<size_t>(BytesInMemory(dtype, count)));
    if (dtype > kLastDtype) {
      for (char& byte : made.bytes) byte = static_cast<char>(r_.Pick(0, 100));
      return made;
    }
    for (int i = 0; i < count; ++i) {
      WriteElement(dtype, &made.bytes[i * SizeOf(dtype)], r_.Pick(-900, 900) / 256.0);
    }
    return made;
  }

  Random r_;
  rope_config config_;
  rope_operation operation_;
  bool moves_, in_slots_, with_norms_;
  int tokens_;
  std::vector<int64_t> before_, after_;
  std::vector<int32_t> slots_;
  std::vector<float> weights_;
  Heads q_, k_, v_, k_out_, v_out_, k_slots_, v_slots_;
};

class TogetherTest : public TargetTest {};
INSTANTIATE_TARGETS(TogetherTest);

TEST_P(TogetherTest, EachTensorIsThatOfACallOnIt) {
  const int seeds = LongTests() ? 60000 : ShortTests() ? 600 : 3000;
  int made = 0, moved = 0, native = 0, with_blocks = 0;
  for (int seed = 1; seed <= seeds; ++seed) {
    Together call(static_cast<uint64_t>(seed));
    SCOPED_TRACE("seed " + std::to_string(seed) + ": " + call.Describe());
    const Context context = Create(call.config());
    const Together::Result all = call.Apply(context, kAll);
    if (all.status == ROPE_ERROR_UNSUPPORTED) continue;
    ASSERT_EQ(all.status, ROPE_OK) << rope_last_error();
    ++made;
    moved += call.moves();
    native += call.config().rounding == ROPE_ROUNDING_NATIVE;
    with_blocks += call.has_blocks();
    const auto apart = [&](int parts) {
      Together::Result result = call.Apply(context, parts);
      EXPECT_EQ(result.status, ROPE_OK) << rope_last_error();
      return result;
    };
    ASSERT_TRUE(all.q.bytes == apart(kQ).q.bytes) << "q";
    ASSERT_TRUE(all.k_out.bytes == apart(kKOut).k_out.bytes) << "k_out";
    ASSERT_TRUE(all.k_slots.bytes == apart(kKSlots).k_slots.bytes) << "slots of k";
    ASSERT_TRUE(all.v_out.bytes == apart(kKOut | kVOut).v_out.bytes) << "v_out";
    ASSERT_TRUE(all.v_slots.bytes == apart(kKSlots | kVSlots).v_slots.bytes) << "slots of v";
    if (call.moves()) continue;  // which are not prepared
    const Together::Result prepared = call.Apply(context, kAll, true);
    ASSERT_EQ(prepared.status, ROPE_OK) << rope_last_error();
    ASSERT_TRUE(all.q.bytes == prepared.q.bytes && all.k_out.bytes == prepared.k_out.bytes &&
                all.k_slots.bytes == prepared.k_slots.bytes &&
                all.v_out.bytes == prepared.v_out.bytes &&
                all.v_slots.bytes == prepared.v_slots.bytes)
        << "prepared";
  }
  EXPECT_GT(made, seeds / 3);
  EXPECT_GT(moved, seeds / 6);
  EXPECT_GT(native, seeds / 40);
  EXPECT_GT(with_blocks, seeds / 10);
}

}  // namespace
}  // namespace rope::testing
