// The text leaves out whatever does not move a value: names, tables that say the same as a formula,
// axes that drive no pair, pairs that stand still, the order in which a pairing numbers pairs.
#include "context/digest.h"

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <iterator>
#include <vector>

#include "base/sha256.h"
#include "base/status.h"
#include "base/struct_size.h"
#include "context/context.h"
#include "context/scaling_rules.h"
#include "math/pairing.h"

namespace rope {
namespace {

// Of each rope_digest: its name, with the version of the form. Another form has another version, so
// that digests of two releases are either comparable or seen not to be.
constexpr const char* kNames[] = {"rotation1", "angles1", "bits1"};
static_assert(std::size(kNames) == ROPE_DIGEST_BITS + 1);

template <class... Numbers>
std::string Format(const char* format, Numbers... numbers) {
  char text[160];
  std::snprintf(text, sizeof(text), format, numbers...);
  return text;
}

// Bits of floats, in which no two of them are alike but the zeros.
std::string Bits(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return Format("%08x", bits);
}

std::string Bits(double value) {
  uint64_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return Format("%016llx", static_cast<unsigned long long>(bits));
}

// Where FORWARD reads and writes a pair: channels of the head.
struct Channels {
  PairIndex read, written;

  bool Stay() const { return read.first == written.first && read.second == written.second; }
};

Channels ChannelsOfPair(const rope_context& context, int pair) {
  const auto segment = std::find_if(
      context.segments.begin(), context.segments.end(),
      [pair](const Segment& s) { return pair >= s.first_pair && pair < s.first_pair + s.pairs; });
  const ChannelOrder order = kPairings[context.pairing].forward;
  const int first = context.rotary_offset + segment->first_channel;
  const auto at = [&](bool interleaved) {
    const PairIndex of_segment =
        ChannelsOf(interleaved, pair - segment->first_pair, segment->pairs);
    return PairIndex{first + of_segment.first, first + of_segment.second};
  };
  return {at(ReadsInterleaved(order)), at(WritesInterleaved(order))};
}

// What the angle of a pair is made of, under the policy of the context.
// `i`: its place in the set.
std::string FrequencyOf(const rope_context& context, const FrequencySet& set, size_t i) {
  const auto pair = static_cast<int>(i);
  if (context.angle == ROPE_ANGLE_GGML) {  // the number of the pair counts, too
    const GgmlNumbers ggml = set.ggml.numbers();
    return std::to_string(pair) + " " +
           Bits(ggml.freq_factors != nullptr ? ggml.freq_factors[pair] : 1.0f) + " " +
           Bits(ggml.extrapolated != nullptr ? ggml.extrapolated[pair] : 0.0f);
  }
  if (context.angle == ROPE_ANGLE_FLOAT32) return Bits(set.inv_freq_f32[i]);
  if (context.angle == ROPE_ANGLE_DIVIDE) return Bits(set.timescale[i]);
  const Turns turns = set.TurnsOf(i);
  return Format("%lld %016llx", static_cast<long long>(turns.whole),
                static_cast<unsigned long long>(turns.fraction));
}

bool StandsStill(const rope_context& context, const FrequencySet& set, size_t i) {
  switch (context.angle) {
    case ROPE_ANGLE_GGML: return false;
    case ROPE_ANGLE_EXACT: return set.turns_whole[i] == 0 && set.TurnsOf(i).fraction == 0;
    default: return set.inv_freq_f32[i] == 0;
  }
}

// What turns a pair of a head: axes and their frequencies. A pair that stands still is one of axis
// 0.
struct Angle {
  bool still;
  std::string text;
};

Angle AngleOf(const rope_context& context, const FrequencySet& set, int head, int pair) {
  const auto term = [&](int axis, size_t i) {
    return " axis " + std::to_string(axis) + " angle " + FrequencyOf(context, set, i);
  };
  if (!context.sums) {
    const auto i = static_cast<size_t>(pair);
    const bool still = StandsStill(context, set, i);
    return {still, term(still ? 0 : context.AxisOf(pair), i)};
  }
  const PairFrequency first = context.SummedFrequency(set, head, pair);
  std::string terms;  // of one axis: the text of a pair that this axis turns alone
  for (int a = 0; a < context.axes; ++a) {
    const size_t i = first.OfAxis(a).pair;
    if (!StandsStill(context, set, i)) terms += term(a, i);
  }
  if (terms.empty()) return {true, term(0, first.pair)};
  return {false, terms};
}

// The lines of one frequency set; none if no value changes.
std::string Lines(const rope_context& context, rope_digest same) {
  if (context.nope) return "";
  const FrequencySet& set = context.sets[0];
  const auto factor = static_cast<float>(set.attention_factor);
  const auto softmax = static_cast<float>(set.softmax_factor);
  std::vector<std::pair<int, std::string>> pairs;  // by their first channel, or number
  for (int n = 0; n < context.freq_heads * context.pairs; ++n) {
    const int head = n / context.pairs, i = n % context.pairs;
    const Channels channels = ChannelsOfPair(context, i);
    const Angle angle = AngleOf(context, set, head, i);
    // Its values stay, but for the sign of zeros, and infinities beside them become NaN.
    const bool left_alone = angle.still && factor == 1 && same != ROPE_DIGEST_BITS;
    if (left_alone && (same == ROPE_DIGEST_ANGLES || channels.Stay())) continue;
    std::string line = "pair ";
    if (context.freq_heads > 1) {
      line = Format("head %d of %d ", head, context.freq_heads) + line;
    }
    line += same == ROPE_DIGEST_ANGLES
                ? std::to_string(i)
                : Format("%d %d %d %d", channels.read.first, channels.read.second,
                         channels.written.first, channels.written.second);
    line += angle.text + "\n";
    pairs.emplace_back(same == ROPE_DIGEST_ANGLES ? i : channels.read.first, std::move(line));
  }
  if (pairs.empty() && softmax == 1) return "";
  std::sort(pairs.begin(), pairs.end());
  std::string lines = "factor " + Bits(factor) + " softmax " + Bits(softmax);
  if (context.angle == ROPE_ANGLE_GGML) {
    lines += " ggml " + Bits(set.ggml.theta_scale) + " " + Bits(set.ggml.freq_scale);
  }
  lines += "\n";
  for (const auto& [channel, line] : pairs) lines += line;
  return lines;
}

// DYNAMIC, whose frequencies are others at every length: the numbers of its formula.
std::string LinesOfEachLength(const rope_config& config) {
  std::string line = "each length theta " + Bits(config.theta) + " factor " + Bits(config.factor) +
                     " rounded to " + std::to_string(config.inv_freq_dtype);
  for (int i = 0; config.freq_factors != nullptr && i < config.table_length; ++i) {
    line += " " + Bits(config.freq_factors[i]);
  }
  return line + "\n";
}

}  // namespace

rope_status CheckSame(const char* function, rope_digest same) {
  if (same >= 0 && same < static_cast<rope_digest>(std::size(kNames))) return ROPE_OK;
  return Fail(ROPE_ERROR_UNSUPPORTED, "%s: same (%d) is not known to this version", function, same);
}

rope_digest_text AsDigest(const std::string& digest) {
  rope_digest_text out{};
  digest.copy(out.text, sizeof(out.text) - 1);
  return out;
}

std::string DigestOfLines(rope_digest same, std::string_view lines) {
  const std::string name = kNames[same];
  return name + ":" + Sha256("librope " + name + "\n" + std::string(lines));
}

rope_status DigestOf(const char* function, const rope_config* given, rope_digest same,
                     std::string* digest) {
  rope_config config;
  if (rope_status s = CopyStruct(function, "config", given, &config)) return s;
  config.struct_size = sizeof(config);
  config.device = 0;
  config.device_index = 0;
  // Which channels form a pair is nothing that angles depend on.
  if (same == ROPE_DIGEST_ANGLES && config.pairing == 0) config.pairing = kAnyPairing;
  config.seq_len = 0;

  std::string lines, last;
  for (int64_t length = 1;;) {
    if (DependsOnLength(config.scaling)) config.seq_len = length;
    rope_context context{};
    const rope_config* const configs[] = {&config};
    if (rope_status s = ResolveContext(function, configs, 1, &context)) return s;
    std::string block = Lines(context, same);
    if (lines.empty()) {
      if (same != ROPE_DIGEST_ANGLES) lines += "head " + std::to_string(context.head_dim) + "\n";
      const std::string angles = "angles " + std::to_string(context.angle);
      if (!block.empty() && same == ROPE_DIGEST_BITS) {
        // The same phases, but reduced from the other side: other last bits of cos and sin.
        const bool sums = context.sums && context.angle == ROPE_ANGLE_EXACT;
        lines += angles + (sums ? " as sums" : "") + "\nrounding " +
                 std::to_string(config.rounding) + "\n";
      } else if (!block.empty()) {
        lines += angles + "\n";
      }
    }
    if (length == 1 || block != last) {
      lines += "from " + std::to_string(context.sets[0].valid_from) + "\n" + block;
      last = std::move(block);
    }
    length = context.valid_below;
    if (length == INT64_MAX) break;
    if (kScalingRules[config.scaling].lengths == Lengths::kEach) {
      lines += "from " + std::to_string(length) + "\n" + LinesOfEachLength(config);
      break;
    }
  }
  *digest = DigestOfLines(same, lines);
  return ROPE_OK;
}

}  // namespace rope
