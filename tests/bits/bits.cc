// Hashes of what the library gives: every byte of random calls, rows, frequencies, models and error
// messages. Two libraries with the same lines have the same bits.
//
//     bits [--data DIR] GROUP..   a line for each part of a group: group/part, hash
//     bits --check FILE           calls and fill on every target of this CPU against FILE
//
//   calls      rope_apply_qk and rope_apply_thd with the caller's frequencies, so without libm
//   fill       rope_cos_sin_fill, likewise
//   append, norm, move, gradient
//              what rope_fused does besides: caches, outputs of other dtypes and codes, norms,
//              moves of keys in slots, BACKWARD of norms and of repeated heads; likewise
//   large      calls that are cut into tasks, and outputs that are written around the cache
//   scalings   both with the library's frequencies: libm's pow and log have a say
//   models     the configs in DIR, and mutations of them: status, message, all that they give
//   errors     broken configs and calls: status and message
//
// Uses the C API alone, so that one binary runs against the library of before and of after a change
// (LD_LIBRARY_PATH). A NaN counts as one and the same: which of its operands' NaN a sum keeps is
// the compiler's choice. Inputs hold no other NaN.
#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "broken_call.h"
#include "call.h"
#include "fused_call.h"
#include "hash.h"
#include "librope/model.h"
#include "librope/rope.h"

namespace bits {
namespace {

using nlohmann::json;

uint64_t HashOfCalls(uint64_t first, uint64_t count, bool own_frequencies, bool fill) {
  Hash hash;
  for (uint64_t seed = first; seed < first + count; ++seed) {
    Call call(seed + (own_frequencies ? 0 : 1u << 20) + (fill ? 1u << 21 : 0), own_frequencies);
    call.MakeConfig();
    const rope_status created = call.Create();
    hash.Status(created);
    if (created != 0) continue;
    call.HashInfo(&hash);
    if (fill) {
      call.Fill(&hash);
      continue;
    }
    if (call.random().Sometimes(20) && call.info_.axes == 1 && call.info_.freq_sets == 1) {
      call.ShortCall(&hash);
      continue;
    }
    call.MakeArgs();
    const rope_status applied = rope_apply_qk(call.context_, &call.args_);
    hash.Status(applied);
    call.Unshift();
    call.HashBuffers(&hash);
  }
  return hash.value();
}

// The tasks of a call, the last one first.
int32_t Backwards(void*, rope_task_fn run, void* task, uint32_t count) {
  while (count-- > 0) run(task, count);
  return 0;
}

uint64_t HashOfLargeCalls(uint64_t part) {
  Hash hash;
  const rope_runner runner = {&Backwards, nullptr};
  for (uint64_t seed = 0; seed < 12; ++seed) {
    Call call(part * 100 + seed + (1u << 22), true);
    Random& r = call.random();
    rope_config& c = call.config_;
    c = ROPE_INIT(rope_config);
    c.head_dim = c.table_length = 128;
    c.table_length /= 2;
    c.pairing = 1 + static_cast<int>(seed % 3);
    c.rounding = static_cast<int>(seed / 6 % 2);
    std::vector<double> inv_freq;
    for (double f = 1; inv_freq.size() < 64; f *= 0.87) inv_freq.push_back(f);
    c.inv_freq = inv_freq.data();
    hash.Status(call.Create());
    call.HashInfo(&hash);
    rope_qk_args& args = call.args_;
    args = ROPE_INIT(rope_qk_args);
    args.batch = 2;
    args.tokens = part == 0 ? r.Pick(40, 90) : 2100;  // of 16 heads: beyond 32 MiB
    args.positions.kind = 1;
    args.positions.offset = 1000;
    args.runner = r.Sometimes(2) ? &runner : nullptr;
    const int dtype = part == 0 ? r.Pick(1, 3) : 1 + static_cast<int>(seed % 3);
    if (part == 1 && dtype != kF32) args.tokens *= 2;
    args.q = call.MakeTensor(dtype, 16, part == 1);
    if (part == 1) args.q_out = call.MakeTensor(dtype, 16, false);
    hash.Status(rope_apply_qk(call.context_, &args));
    call.Unshift();
    call.HashBuffers(&hash);
  }
  return hash.value();
}

// Calls with rope_fused, all of which are valid.
uint64_t HashOfFused(Fused what) {
  Hash hash;
  for (uint64_t seed = 0; seed < 800; ++seed) {
    FusedCall call(seed + 10000 * static_cast<uint64_t>(what) + (1u << 24));
    if (!call.Make(what)) continue;
    if (rope_apply_qk(call.context_, &call.args_) != ROPE_OK) {
      std::fprintf(stderr, "bits: call %" PRIu64 ": %s\n", seed, rope_last_error());
      std::exit(1);
    }
    call.Unshift();
    call.HashBuffers(&hash);
  }
  return hash.value();
}

// --- Models --------------------------------------------------------------------------------------

void HashModel(const std::string& text, Hash* hash) {
  rope_model* model = nullptr;
  const rope_status status = rope_model_create(text.data(), text.size(), &model);
  hash->Status(status);
  if (status != 0) return;
  for (int32_t t = 0; rope_model_layer_type_name(model, t) != nullptr; ++t) {
    hash->Text(rope_model_layer_type_name(model, t));
    rope_config config = ROPE_INIT(rope_config);
    hash->Status(rope_model_config(model, t, &config));
    const auto table = [&](auto*& from, size_t size) {
      hash->Number(from != nullptr);
      if (from != nullptr) hash->Bytes(from, static_cast<size_t>(config.table_length) * size);
      from = nullptr;
    };
    table(config.short_factor, 8);
    table(config.long_factor, 8);
    table(config.freq_factors, 8);
    table(config.inv_freq, 8);
    table(config.pair_axis, 1);
    hash->Number(config);
  }
  for (int32_t layer = 0; layer < 5000; ++layer) {
    int32_t type = -1;
    const rope_status s = rope_model_layer_type(model, layer, &type);
    hash->Number(type);
    if (s != 0) {
      hash->Status(s);
      break;
    }
  }
  rope_model_destroy(model);
}

// Every value of a document, with the object or list that has it.
void Collect(json& node, std::vector<json*>* all) {
  for (json& child : node) {
    all->push_back(&child);
    if (child.is_structured() && child.size() < 100) Collect(child, all);
  }
}

json Mutated(json document, Random& r) {
  for (int n = r.Pick(1, 2); n > 0; --n) {
    std::vector<json*> all;
    Collect(document, &all);
    if (all.empty()) return document;
    json& at = *all[static_cast<size_t>(r.Below(static_cast<int64_t>(all.size())))];
    switch (r.Pick(0, 6)) {
      case 0: at = json(); break;
      case 1: at = r.Of({-1, 0, 1, 2, 3, 64, 100000, 1 << 30}); break;
      case 2: at = r.Of({0.5, 0.25, 1e300, -0.5, 4.0, 1.0}); break;
      case 3: at = r.Of({"", "yarn", "default", "llama", "linear", "x", "full_attention"}); break;
      case 4: at = r.Sometimes(2); break;
      case 5: {  // the key goes, or gets a typo
        std::vector<json*> objects;
        for (json* o : all) {
          if (o->is_object() && !o->empty()) objects.push_back(o);
        }
        json& object =
            objects.empty() || r.Sometimes(2)
                ? document
                : *objects[static_cast<size_t>(r.Below(static_cast<int64_t>(objects.size())))];
        auto member = object.begin();
        std::advance(member, r.Below(static_cast<int64_t>(object.size())));
        if (r.Sometimes(3))
          object[member.key() + "s"] = member.value();
        else
          object.erase(member.key());
        break;
      }
      default: {  // another document's key
        const char* key = r.Of({"rope_theta", "rope_scaling", "partial_rotary_factor", "head_dim",
                                "rotary_dim", "rope_interleave", "mrope_section", "truncate",
                                "original_max_position_embeddings", "layer_types", "model_type"});
        document[key] = at;
      }
    }
  }
  return document;
}

std::vector<json> ReadConfigs(const std::string& directory) {
  std::vector<json> configs;
  std::vector<std::filesystem::path> paths;
  for (const auto& entry : std::filesystem::directory_iterator(directory + "/oracle")) {
    paths.push_back(entry.path());
  }
  std::sort(paths.begin(), paths.end());
  for (const auto& path : paths) {
    const json document = json::parse(std::ifstream(path));
    if (document.contains("config")) configs.push_back(document["config"]);
  }
  for (const json& one : json::parse(std::ifstream(directory + "/models.json"))) {
    configs.push_back(one["config"]);
  }
  return configs;
}

uint64_t HashOfModels(const std::vector<json>& configs, uint64_t part) {
  Hash hash;
  if (part == 0) {
    for (const json& config : configs) HashModel(config.dump(), &hash);
    return hash.value();
  }
  for (uint64_t seed = 0; seed < 2000; ++seed) {
    Random r(part * 100000 + seed);
    HashModel(
        Mutated(configs[static_cast<size_t>(r.Below(static_cast<int64_t>(configs.size())))], r)
            .dump(),
        &hash);
  }
  return hash.value();
}

// --- Errors --------------------------------------------------------------------------------------

uint64_t HashOfErrors(uint64_t part) {
  Hash hash;
  for (uint64_t seed = 0; seed < 5000; ++seed) {
    Call call(part * 100000 + seed + (1u << 23), part % 2 == 0);
    call.MakeConfig();
    Random& r = call.random();
    if (part < 2) {
      struct {  // a larger struct_size reads zeros
        rope_config config;
        char zeros[1024];
      } given = {call.config_, {}};
      for (int n = r.Pick(1, 3); n > 0; --n) BreakConfig(r, &given.config);
      rope_context* context = nullptr;
      const rope_status status = rope_context_create(&given.config, &context);
      hash.Status(status);
      rope_context_destroy(context);
      int64_t next = 0;
      hash.Status(rope_config_next_change(&given.config, r.Of({-1, 0, 100, 70000}), &next));
      hash.Number(next);
      continue;
    }
    if (call.Create() != 0) continue;
    Hash unused;
    call.HashInfo(&unused);
    call.MakeArgs(1);
    for (int n = r.Pick(1, 2); n > 0; --n) BreakCall(r, &call.args_, &call.rows_);
    const rope_status status = rope_apply_qk(call.context_, &call.args_);
    hash.Status(status);
    if (call.args_.cos_sin != nullptr) {
      const rope_positions positions{};
      hash.Status(
          rope_cos_sin_fill(call.context_, r.Of({-1, 0, 1}), 1, &positions, &call.rows_, nullptr));
    }
  }
  return hash.value();
}

// --- The groups ----------------------------------------------------------------------------------

std::string Target() {
  rope_config config = ROPE_INIT(rope_config);
  config.head_dim = 2;
  config.pairing = 1;
  config.theta = 1;
  rope_context* context = nullptr;
  if (rope_context_create(&config, &context) != 0) return rope_last_error();
  const std::string name = rope_context_backend(context);
  rope_context_destroy(context);
  return name.substr(name.find(' ') + 1);
}

uint64_t HashOf(const std::string& group, uint64_t part, const std::vector<json>& configs) {
  if (group == "calls") return HashOfCalls(part * 2000, 2000, true, false);
  if (group == "fill") return HashOfCalls(part * 2000, 2000, true, true);
  if (group == "append") return HashOfFused(Fused::kAppend);
  if (group == "norm") return HashOfFused(Fused::kNorm);
  if (group == "move") return HashOfFused(Fused::kMove);
  if (group == "gradient") return HashOfFused(Fused::kGradient);
  if (group == "large") return HashOfLargeCalls(part);
  if (group == "scalings") return HashOfCalls(part * 2000, 2000, false, part >= 2);
  if (group == "models") return HashOfModels(configs, part);
  return HashOfErrors(part);
}

const std::map<std::string, uint64_t> kParts = {
    {"calls", 10},   {"fill", 3},  {"append", 1},   {"norm", 1},    {"move", 1},
    {"gradient", 1}, {"large", 2}, {"scalings", 4}, {"models", 11}, {"errors", 4}};

std::string LineOf(const std::string& group, uint64_t part, const std::vector<json>& configs) {
  char line[80];
  std::snprintf(line, sizeof(line), "%s/%" PRIu64 " %016" PRIx64, group.c_str(), part,
                HashOf(group, part, configs));
  return line;
}

// The names that LIBROPE_CPU_TARGET may have, from the message that refuses another.
std::vector<std::string> Targets() {
  setenv("LIBROPE_CPU_TARGET", "none", 1);
  std::string message = Target();
  message.erase(0, message.find("CPU: ") + 5);
  std::replace(message.begin(), message.end(), ',', ' ');
  std::istringstream words(message);
  return {std::istream_iterator<std::string>(words), {}};
}

// Targets without fused multiply-add have other bits.
bool IsFused(const std::string& target) {
  return target.compare(0, 3, "SSE") != 0 && target.compare(0, 4, "SSSE") != 0;
}

// FILE has lines of: group/part, the hash with fused multiply-add, and the one without.
int Check(const std::string& path) {
  std::ifstream file(path);
  std::string name, fused, separate;
  std::vector<std::string> expected[2];
  while (file >> name >> fused >> separate) {
    expected[1].push_back(name + " " + fused);
    expected[0].push_back(name + " " + separate);
  }
  int wrong = expected[0].empty() ? 1 : 0;
  bool is_best = true;
  for (const std::string& target : Targets()) {
    setenv("LIBROPE_CPU_TARGET", target.c_str(), 1);
    for (const std::string& line : expected[IsFused(target)]) {
      const std::string group = line.substr(0, line.find('/'));
      const uint64_t part = std::stoull(line.substr(group.size() + 1));
      if (part != 0 && !is_best) continue;  // a second or two for each of the others
      const std::string got = LineOf(group, part, {});
      if (got == line) continue;
      std::printf("%s: %s, expected %s\n", target.c_str(), got.c_str(), line.c_str());
      ++wrong;
    }
    is_best = false;
  }
  return wrong == 0 ? 0 : 1;
}

int Run(const std::vector<std::string>& words) {
  std::string data = ".";
  std::vector<std::string> groups;
  for (size_t i = 0; i < words.size(); ++i) {
    const bool has_value = i + 1 < words.size();
    if (words[i] == "--check" && has_value) return Check(words[i + 1]);
    if (words[i] == "--data" && has_value) {
      data = words[++i];
    } else if (kParts.count(words[i]) != 0) {
      groups.push_back(words[i]);
    } else {
      std::fprintf(stderr, "bits: what is %s?\n", words[i].c_str());
      return 2;
    }
  }
  const bool models = std::find(groups.begin(), groups.end(), "models") != groups.end();
  const std::vector<json> configs = models ? ReadConfigs(data) : std::vector<json>();
  std::printf("target %s\n", Target().c_str());
  for (const std::string& group : groups) {
    for (uint64_t part = 0; part < kParts.at(group); ++part) {
      std::printf("%s\n", LineOf(group, part, configs).c_str());
    }
  }
  return 0;
}

}  // namespace
}  // namespace bits

int main(int argc, char** argv) { return bits::Run({argv + 1, argv + argc}); }
