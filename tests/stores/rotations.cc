// Calls that rotate q and k, and nothing else: sizes of heads that fill vectors and that do not.
#include <functional>
#include <string>
#include <vector>

#include "stores/work.h"

namespace rope::testing::stores {
namespace {

enum class Where { kInPlace, kApart, kSpanAlone };
constexpr const char* kNamesOfWhere[] = {"in place", "apart", "the span alone"};

// What is done to a call before it is made.
using Change = std::function<void(Work*, rope_qk_args*)>;

// A call on q and k, whose outputs are where the case says.
struct Rotation {
  rope_config config;
  rope_dtype dtype;
  Where where;
  int64_t rows, tokens;
  int q_heads, k_heads;
  rope_layout layout;

  void Watch(const std::string& name, bool prepared, Content content = Content::kOrdinary,
             const Change& change = nullptr) const {
    Work work(name + " " + NameOf(dtype) + " " + NameOfLayout(layout) + " " +
                  kNamesOfWhere[static_cast<int>(where)] + ", " + std::to_string(rows) + " x " +
                  std::to_string(tokens) + (prepared ? ", prepared" : ""),
              content);
    rope_qk_args args = Args(rows, tokens);
    args.positions = Offset(4711);
    AddTensor(&work, "q", q_heads, &args.q, &args.q_out);
    if (k_heads != 0) AddTensor(&work, "k", k_heads, &args.k, &args.k_out);
    if (change != nullptr) change(&work, &args);
    const Context& context = ContextOf(config);
    prepared ? work.MakePrepared(context, args) : work.Make(context, args);
  }

 private:
  void AddTensor(Work* work, const char* name, int heads, rope_tensor* in, rope_tensor* out) const {
    const int span = config.rotary_dim != 0 ? config.rotary_dim : config.head_dim;
    const Shape whole = {rows, tokens, heads, config.head_dim};
    const Heads input = work->Tensor(name, dtype, whole, layout);
    *in = input.tensor;
    Heads output = input;
    int first = config.rotary_offset, channels = span;
    if (where != Where::kInPlace) {
      const bool alone = where == Where::kSpanAlone;
      const Shape shape = {rows, tokens, heads, alone ? span : config.head_dim};
      output = work->Tensor((std::string(name) == "q") ? "q_out" : "k_out", dtype, shape, layout);
      if (alone) output.tensor.head_dim = span;
      *out = output.tensor;
      first = 0;
      if (!alone) channels = config.head_dim;
    }
    for (const Place& token : Tokens(rows, tokens)) work->Stores(output, token, first, channels);
  }
};

constexpr rope_dtype kDtypesOfHeads[] = {ROPE_DTYPE_F32, ROPE_DTYPE_F16, ROPE_DTYPE_BF16};
constexpr rope_layout kLayouts[] = {ROPE_LAYOUT_BSHD, ROPE_LAYOUT_BHSD, ROPE_LAYOUT_SBHD,
                                    ROPE_LAYOUT_STRIDED};

void Sizes() {
  Random r(1);
  for (const int head_dim : kHeadDims) {
    for (const rope_pairing pairing :
         {ROPE_PAIRING_HALVES, ROPE_PAIRING_INTERLEAVED, ROPE_PAIRING_INTERLEAVED_TO_HALVES}) {
      for (const rope_dtype dtype : kDtypesOfHeads) {
        for (const Where where : {Where::kInPlace, Where::kApart, Where::kSpanAlone}) {
          for (const bool partial : {false, true}) {
            rope_config config = Config(head_dim, pairing);
            if (partial) {
              config.rotary_dim = head_dim / 2;
              config.rotary_offset = r.Of({0, head_dim / 4, head_dim / 2});
            } else if (where == Where::kSpanAlone) {
              continue;
            }
            const Rotation call = {
                config,          dtype,        where,           r.Pick(1, 2),
                r.Of({1, 1, 3}), r.Of({1, 5}), r.Of({0, 1, 2}), kLayouts[r.Below(4)]};
            call.Watch("rotate " + std::to_string(head_dim) + (partial ? " partial " : " ") +
                           NameOfPairing(pairing),
                       r.Sometimes(4));
          }
        }
      }
    }
  }
}

// What changes how rows are made, rounded or read, and kernels with them.
void Kinds() {
  const auto both = [](const std::string& name, const rope_config& config, rope_dtype dtype,
                       Content content = Content::kOrdinary, const Change& change = nullptr) {
    for (const Where where : {Where::kInPlace, Where::kApart}) {
      const Rotation call = {config, dtype, where, 1, 3, 3, 1, ROPE_LAYOUT_BSHD};
      call.Watch(name, false, content, change);
    }
  };
  for (const int head_dim : {64, 80}) {
    for (const rope_pairing pairing : {ROPE_PAIRING_HALVES, ROPE_PAIRING_INTERLEAVED}) {
      const std::string heads = " " + std::to_string(head_dim) + " " + NameOfPairing(pairing);
      const rope_config plain = Config(head_dim, pairing);
      rope_config eager = plain, cos_sin = plain, native = plain, exact = plain, times = plain;
      eager.rounding = ROPE_ROUNDING_EAGER;
      cos_sin.rounding = ROPE_ROUNDING_COS_SIN;
      native.rounding = ROPE_ROUNDING_NATIVE;
      exact.angle = ROPE_ANGLE_EXACT;
      times.attention_factor = 1.5;
      for (const rope_dtype dtype : kDtypesOfHeads) {
        both("eager" + heads, eager, dtype);
        both("cos and sin rounded" + heads, cos_sin, dtype);
        both("rare numbers" + heads, plain, dtype, Content::kRare);
        // Products with 1.5, as nothing turns: of bf16 every other one is a tie.
        both("ties" + heads, times, dtype, Content::kOrdinary, [](Work* work, rope_qk_args* args) {
          args->positions =
              Ids(ROPE_POSITIONS_IDS_T, work->Array("ids", std::vector<int64_t>{0, 0, 0}));
        });
        both("inverse" + heads, plain, dtype, Content::kOrdinary,
             [](Work*, rope_qk_args* args) { args->operation = ROPE_OPERATION_INVERSE; });
        both("a gradient" + heads, plain, dtype, Content::kOrdinary,
             [](Work*, rope_qk_args* args) { args->operation = ROPE_OPERATION_BACKWARD; });
        both("a shift" + heads, exact, dtype, Content::kOrdinary,
             [](Work* work, rope_qk_args* args) {
               args->operation = ROPE_OPERATION_SHIFT;
               args->positions =
                   Ids(ROPE_POSITIONS_IDS_T, work->Array("ids", std::vector<int64_t>{3, 0, -40}));
             });
      }
      both("native" + heads, native, ROPE_DTYPE_F16);
    }
  }
  rope_config axes = Config(96, ROPE_PAIRING_HALVES_PER_AXIS);
  axes.axes = 2;
  axes.mrope_section[0] = 20, axes.mrope_section[1] = 28;
  rope_config nope = Config(96);
  nope.scaling = ROPE_SCALING_NOPE;
  for (const rope_dtype dtype : kDtypesOfHeads) {
    both("axes 96 per axis", axes, dtype, Content::kOrdinary, [](Work* work, rope_qk_args* args) {
      args->positions = Ids(ROPE_POSITIONS_IDS_ABT,
                            work->Array("ids", std::vector<int64_t>{1, 2, 3, 40, 50, 60}));
    });
    const Rotation copied = {nope, dtype, Where::kApart, 1, 3, 3, 1, ROPE_LAYOUT_BHSD};
    copied.Watch("copied 96", false);
    // Rows of the caller, with two values for each pair: they differ, so that heads turn channel by
    // channel.
    for (const rope_pairing pairing : {ROPE_PAIRING_HALVES, ROPE_PAIRING_INTERLEAVED}) {
      rope_cos_sin rows;
      both(std::string("a row per channel 80 ") + NameOfPairing(pairing), Config(80, pairing),
           dtype, Content::kOrdinary, [&](Work* work, rope_qk_args* args) {
             rows = Rows(ROPE_COS_SIN_FULL_HALVES, ROPE_DTYPE_F32, 40, 1,
                         work->Numbers("cos", ROPE_DTYPE_F32, 3 * 80),
                         work->Numbers("sin", ROPE_DTYPE_F32, 3 * 80));
             args->positions = rope_positions{};
             args->cos_sin = &rows;
           });
    }
  }
}

// More than the last cache that valgrind's CPU has, so that outputs go past the caches.
void BeyondCaches() {
  for (const rope_pairing pairing : {ROPE_PAIRING_HALVES, ROPE_PAIRING_INTERLEAVED}) {
    const Rotation call = {Config(128, pairing), ROPE_DTYPE_BF16, Where::kApart, 1, 116, 64, 8,
                           ROPE_LAYOUT_BSHD};
    call.Watch(std::string("beyond the caches 128 ") + NameOfPairing(pairing), false);
  }
}

}  // namespace

void WatchRotations() {
  Sizes();
  Kinds();
  BeyondCaches();
}

}  // namespace rope::testing::stores
