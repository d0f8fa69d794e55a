// One RoPE of the oracle against one layer type of librope: what differs, and how far the numbers
// are apart. Nothing here asserts, so that a listed deviation can be checked for what it is.
#ifndef LIBROPE_TESTS_MODEL_ORACLE_CHECK_H_
#define LIBROPE_TESTS_MODEL_ORACLE_CHECK_H_

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "librope/model.h"
#include "librope/rope.h"
#include "math/element.h"
#include "oracle_array.h"

namespace rope::testing {

// What differs. The deviations name the kinds that they expect.
//   refused, layers, missing, sizes, pairing, rounding, axes, attention_factor, softmax_factor,
//   inv_freq, two_angles, rows, rotated_f32, rotated_16, api
struct Problem {
  std::string rope, kind, text;
};

// Numbers of one rope: a part of a line of the table.
struct Measured {
  double rotated = 0;                  // f32, below position 4096, relative to the size of the pair
  int64_t equal16 = 0, unequal16 = 0;  // elements of rotated 16-bit tensors
};

class RopeCheck {
 public:
  RopeCheck(const nlohmann::json& rope, const nlohmann::json& borrowed_apply)
      : rope_(rope), borrowed_apply_(borrowed_apply) {}

  void Run(const rope_model* model, int32_t type) {
    for (const nlohmann::json& length : rope_["lengths"]) {
      if (!Prepare(model, type, length)) return;
      CheckLength(length);
      rope_context_destroy(context_);
      context_ = nullptr;
    }
  }

  const rope_config& config() const { return config_; }

  std::vector<Problem> problems;
  Measured measured;

 private:
  template <class... Parts>
  void Report(const char* kind, const Parts&... parts) {
    for (const Problem& problem : problems) {
      if (problem.kind == kind) return;  // the first of a kind tells enough
    }
    std::ostringstream text;
    (text << ... << parts);
    problems.push_back({rope_["name"], kind, text.str()});
  }

  bool Prepare(const rope_model* model, int32_t type, const nlohmann::json& length) {
    config_ = ROPE_INIT(rope_config);
    if (rope_model_config(model, type, &config_) != ROPE_OK) {
      Report("api", rope_last_error());
      return false;
    }
    if (config_.scaling == ROPE_SCALING_DYNAMIC || config_.scaling == ROPE_SCALING_LONGROPE) {
      config_.seq_len = length["seq_len"].is_null() ? 1 : length["seq_len"].get<int64_t>();
    }
    if (rope_context_create(&config_, &context_) != ROPE_OK) {
      Report("api", rope_last_error());
      return false;
    }
    info_ = ROPE_INIT(rope_info);
    if (rope_context_info(context_, 0, &info_) != ROPE_OK) Report("api", rope_last_error());
    return true;
  }

  void CheckLength(const nlohmann::json& length) {
    CheckStyle();
    const double attention = length["attention_factor"];
    if (!(std::fabs(attention - info_.attention_factor) <= 1e-6 * attention)) {
      Report("attention_factor", info_.attention_factor, ", theirs ", attention);
    }
    if (!CheckFrequencies(OracleArray(length["inv_freq"]))) return;
    if (rope_["two_angles"].get<bool>()) {
      Report("two_angles", "the channels of a pair turn by different angles");
      return;
    }
    CheckRows(length["rows"]);
    // Rotated tensors are kept once per apply function. Those of another rope have its angles, so
    // that only their 16-bit results by given cos and sin count here.
    const bool own = length.contains("apply");
    if (own) CheckRotatedF32(length["apply"]);
    const nlohmann::json& apply = own ? length["apply"] : borrowed_apply_;
    if (apply.is_null() || !rope_["rounding"].is_string()) return;
    CheckRotated16(apply, "bf16", ROPE_DTYPE_BF16);
    CheckRotated16(apply, "f16", ROPE_DTYPE_F16);
  }

  void CheckStyle() {
    static const std::map<std::string, rope_pairing> kPairings = {
        {"halves", ROPE_PAIRING_HALVES},
        {"interleaved", ROPE_PAIRING_INTERLEAVED},
        {"interleaved_to_halves", ROPE_PAIRING_INTERLEAVED_TO_HALVES},
        {"halves_per_axis", ROPE_PAIRING_HALVES_PER_AXIS}};
    static const std::map<std::string, rope_rounding> kRoundings = {
        {"float32", ROPE_ROUNDING_FLOAT32},
        {"eager", ROPE_ROUNDING_EAGER},
        {"cos_sin", ROPE_ROUNDING_COS_SIN}};
    if (kPairings.at(rope_["pairing"]) != config_.pairing) {
      Report("pairing", config_.pairing, ", theirs ", rope_["pairing"]);
    }
    if (rope_["rounding"].is_string() && kRoundings.at(rope_["rounding"]) != config_.rounding) {
      Report("rounding", config_.rounding, ", theirs ", rope_["rounding"]);
    }
    if (rope_["axes"] != info_.axes) Report("axes", info_.axes, ", theirs ", rope_["axes"]);
    const double softmax = rope_["softmax_factor"];
    if (!(std::fabs(softmax - info_.softmax_factor) <= 1e-6)) {
      Report("softmax_factor", info_.softmax_factor, ", theirs ", softmax);
    }
    // Their apply function gets the rotated span alone (MLA) or whole heads.
    const int head_dim = rope_["head_dim"];
    if (head_dim != info_.rotary_dim &&
        (head_dim != info_.head_dim || rope_["rotary_offset"] != info_.rotary_offset)) {
      Report("sizes", info_.rotary_dim, " of ", info_.head_dim, " channels from ",
             info_.rotary_offset, ", theirs ", rope_["rotary_dim"], " of ", head_dim, " from ",
             rope_["rotary_offset"]);
    }
  }

  // Whether they are the same f32 numbers, so that more can be compared.
  bool CheckFrequencies(const OracleArray& theirs) {
    if (theirs.shape[0] != info_.pairs) {
      Report("sizes", info_.pairs, " pairs, theirs ", theirs.shape[0]);
      return false;
    }
    std::vector<double> ours(static_cast<size_t>(info_.pairs));
    if (rope_context_inv_freq(context_, 0, ours.data(), info_.pairs) != ROPE_OK) {
      Report("api", rope_last_error());
      return false;
    }
    for (int i = 0; i < info_.pairs; ++i) {
      const auto value = static_cast<float>(ours[static_cast<size_t>(i)]);  // EXACT has more bits
      const float other = theirs.as<float>()[i];
      if (value == other) continue;
      Report("inv_freq", "pair ", i, ": ", value, ", theirs ", other);
      return false;
    }
    return true;
  }

  // Positions [n, axes] as the argument of a call; holds the arrays.
  struct Positions {
    explicit Positions(const nlohmann::json& array) : source(array) {
      argument = rope_positions{};
      argument.kind = ROPE_POSITIONS_IDS_BTA;
      if (source.dtype == "i64") {
        argument.ids_i64 = source.as<int64_t>();
      } else {
        argument.ids_f32 = source.as<float>();
      }
    }
    int64_t tokens() const { return source.shape[0]; }
    // The largest size of a position of token t.
    double Largest(int64_t t) const {
      double largest = 0;
      for (int64_t at = t * source.shape[1]; at < (t + 1) * source.shape[1]; ++at) {
        const double value = source.dtype == "i64" ? static_cast<double>(source.as<int64_t>()[at])
                                                   : static_cast<double>(source.as<float>()[at]);
        largest = std::max(largest, std::fabs(value));
      }
      return largest;
    }
    OracleArray source;
    rope_positions argument;
  };

  void CheckRows(const nlohmann::json& rows) {
    const Positions positions(rows["positions"]);
    const OracleArray cos(rows["cos"]), sin(rows["sin"]);
    std::vector<float> our_cos(static_cast<size_t>(positions.tokens() * info_.pairs));
    std::vector<float> our_sin(our_cos.size());
    rope_cos_sin out = ROPE_INIT(rope_cos_sin);
    out.format = ROPE_COS_SIN_SPLIT;
    out.dtype = ROPE_DTYPE_F32;
    out.pairs = info_.pairs;
    out.batch = 1;
    out.data = our_cos.data();
    out.sin = our_sin.data();
    if (positions.source.shape[1] != info_.axes) return;  // reported as such
    if (rope_cos_sin_fill(context_, 1, positions.tokens(), &positions.argument, &out, nullptr) !=
        ROPE_OK) {
      Report("api", rope_last_error());
      return;
    }
    // Both sides' cos and sin are within 1.5e-7 of the true ones; the factor adds a rounding.
    constexpr double kAccuracy = 4e-7;
    for (int64_t t = 0; t < positions.tokens(); ++t) {
      const double position = positions.Largest(t);
      for (int i = 0; i < info_.pairs; ++i) {
        const auto at = static_cast<size_t>(t * info_.pairs + i);
        const double dc = std::fabs(static_cast<double>(our_cos[at]) - cos.as<float>()[at]);
        const double ds = std::fabs(static_cast<double>(our_sin[at]) - sin.as<float>()[at]);
        const double allowed = info_.attention_factor * kAccuracy;
        if (!(std::max(dc, ds) <= allowed)) {
          Report("rows", "token ", t, " pair ", i, ": ", our_cos[at], " ", our_sin[at], ", theirs ",
                 cos.as<float>()[at], " ", sin.as<float>()[at], ", off by ", std::max(dc, ds),
                 ", allowed ", allowed);
        }
        if (position < 4096) {
          measured.rotated =
              std::max(measured.rotated, std::hypot(dc, ds) / info_.attention_factor);
        }
      }
    }
  }

  // The pair of every channel of the heads that their apply function gets; -1: passes through.
  std::vector<int> PairOfChannel(int head_dim) const {
    std::vector<int> pair(static_cast<size_t>(head_dim), -1);
    const int first = head_dim == info_.rotary_dim ? 0 : info_.rotary_offset;
    const int span = 2 * info_.pairs;
    for (int c = 0; c < span && first + c < head_dim; ++c) {
      int i = c % info_.pairs;
      if (config_.pairing == ROPE_PAIRING_INTERLEAVED) i = c / 2;
      if (config_.pairing == ROPE_PAIRING_HALVES_PER_AXIS) {
        const int block = config_.mrope_section[0];  // blocks of equal size
        i = c / (2 * block) * block + c % block;
      }
      pair[static_cast<size_t>(first + c)] = i;
    }
    return pair;
  }

  rope_tensor OneHead(void* data, rope_dtype dtype) const {
    rope_tensor tensor{};
    tensor.data = data;
    tensor.dtype = dtype;
    tensor.layout = ROPE_LAYOUT_BSHD;
    tensor.heads = 1;
    tensor.head_dim = rope_["head_dim"];
    return tensor;
  }

  // f32 q and k, rotated from positions: 2e-6 of the size of the pair.
  void CheckRotatedF32(const nlohmann::json& apply) {
    const Positions positions(apply["positions"]);
    if (positions.source.shape[1] != info_.axes) return;
    const auto head_dim = rope_["head_dim"].get<size_t>();
    const std::vector<int> pair = PairOfChannel(static_cast<int>(head_dim));
    for (const char* name : {"q", "k"}) {
      std::vector<float> x = OracleArray(apply[name]).ToFloat();
      const std::vector<float> before = x, want = OracleArray(apply["f32"][name]).ToFloat();
      rope_qk_args args = ROPE_INIT(rope_qk_args);
      args.batch = 1;
      args.tokens = positions.tokens();
      args.q = OneHead(x.data(), ROPE_DTYPE_F32);
      args.positions = positions.argument;
      if (rope_apply_qk(context_, &args) != ROPE_OK) {
        Report("api", rope_last_error());
        return;
      }
      for (int64_t t = 0; t < positions.tokens(); ++t) {
        const size_t row = static_cast<size_t>(t) * head_dim;
        const double position = positions.Largest(t);
        // A rotation keeps the size of a pair, up to the attention factor.
        std::vector<double> size(static_cast<size_t>(info_.pairs));
        for (size_t c = 0; c < head_dim; ++c) {
          if (pair[c] < 0) continue;
          double& square = size[static_cast<size_t>(pair[c])];
          square += static_cast<double>(want[row + c]) * want[row + c];
        }
        for (size_t c = 0; c < head_dim; ++c) {
          const double error = std::fabs(static_cast<double>(want[row + c]) - x[row + c]);
          const int i = pair[c];
          const double length = i < 0 ? 0 : std::sqrt(size[static_cast<size_t>(i)]);
          const double allowed = i < 0 ? 0 : length * 2e-6;
          if (!(error <= allowed)) {
            Report("rotated_f32", name, " token ", t, " channel ", c, ": ", x[row + c], ", theirs ",
                   want[row + c], ", before ", before[row + c]);
          }
          if (position < 4096 && length > 0) {
            measured.rotated = std::max(measured.rotated, error / length);
          }
        }
      }
    }
  }

  // 16-bit q and k, rotated by the model's own cos and sin: EAGER bit for bit; the policies in f32
  // to one rounding of the element, because torch rounds every product and librope may fuse.
  void CheckRotated16(const nlohmann::json& apply, const char* name, rope_dtype dtype) {
    const nlohmann::json& part = apply[name];
    OracleArray cos(part["cos"]), sin(part["sin"]);
    if (cos.shape[1] != info_.pairs) return;
    rope_cos_sin rows = ROPE_INIT(rope_cos_sin);
    rows.format = ROPE_COS_SIN_SPLIT;
    rows.dtype = cos.dtype == "f32" ? ROPE_DTYPE_F32 : dtype;
    rows.pairs = info_.pairs;
    rows.batch = 1;
    rows.data = cos.bytes.data();
    rows.sin = sin.bytes.data();
    for (const char* tensor : {"q", "k"}) {
      const std::vector<float> values = OracleArray(apply[tensor]).ToFloat();
      std::vector<uint16_t> x(values.size());
      for (size_t i = 0; i < x.size(); ++i) {
        StoreElement(dtype, x.data(), static_cast<int64_t>(i), values[i]);
      }
      rope_qk_args args = ROPE_INIT(rope_qk_args);
      args.batch = 1;
      args.tokens = cos.shape[0];
      args.q = OneHead(x.data(), dtype);
      args.cos_sin = &rows;
      if (rope_apply_qk(context_, &args) != ROPE_OK) {
        Report("api", rope_last_error());
        return;
      }
      const OracleArray want(part[tensor]);
      for (size_t i = 0; i < x.size(); ++i) {
        const uint16_t ours = x[i], theirs = want.as<uint16_t>()[i];
        ++(ours == theirs ? measured.equal16 : measured.unequal16);
        if (ours == theirs) continue;
        const auto value = [dtype](uint16_t bits) {
          return dtype == ROPE_DTYPE_BF16 ? FloatFromBf16(bits) : FloatFromF16(bits);
        };
        const float a = value(ours), b = value(theirs);
        const float unit = dtype == ROPE_DTYPE_BF16 ? 0x1p-7f : 0x1p-10f;
        // Cancellation leaves less than a unit of the inputs.
        const bool close = std::fabs(a - b) <= std::max(std::fabs(b) * unit, 1e-6f);
        if (config_.rounding == ROPE_ROUNDING_EAGER || !close) {
          Report("rotated_16", name, " ", tensor, " element ", i, ": ", a, ", theirs ", b);
        }
      }
    }
  }

  const nlohmann::json& rope_;
  const nlohmann::json& borrowed_apply_;
  rope_config config_ = ROPE_INIT(rope_config);
  rope_info info_ = ROPE_INIT(rope_info);
  rope_context* context_ = nullptr;
};

}  // namespace rope::testing

#endif  // LIBROPE_TESTS_MODEL_ORACLE_CHECK_H_
