// How long rope_model_create takes for published and recorded configurations, and
// rope_context_create for each of their layer types. The limits are 1 ms and 100 us; they are not
// asserted, because machines differ.
//
//     rope_model_bench tests/data
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "librope/model.h"
#include "librope/rope.h"

namespace {

using nlohmann::json;

json Load(const std::string& path) {
  std::ifstream file(path);
  return json::parse(file);
}

// Microseconds of the fastest of some calls: the cost without the noise of the machine.
template <class Function>
double Fastest(const Function& function) {
  double fastest = 1e9;
  for (int i = 0; i < 7; ++i) {
    const auto start = std::chrono::steady_clock::now();
    function();
    const std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - start;
    fastest = std::min(fastest, took.count());
  }
  return fastest;
}

void Print(const char* what, std::vector<double> times) {
  std::sort(times.begin(), times.end());
  if (times.empty()) {
    std::printf("%s: none\n", what);
  } else {
    std::printf("%s: %zu, median %.1f us, most %.1f us\n", what, times.size(),
                times[times.size() / 2], times.back());
  }
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc != 2) {
    std::fprintf(stderr, "usage: rope_model_bench tests/data\n");
    return 2;
  }
  const std::string data = std::string(argv[1]) + "/";
  std::vector<std::string> texts;
  for (const json& entry : Load(data + "models.json")) texts.push_back(entry["config"].dump());
  const json index = Load(data + "oracle/index.json");
  for (const json& entry : index["cases"]) {
    const std::string file = entry["file"];
    texts.push_back(Load(data + "oracle/" + file)["config"].dump());
  }
  std::vector<double> parse, create;
  for (const std::string& text : texts) {
    rope_model* model = nullptr;
    if (rope_model_create(text.data(), text.size(), &model) != ROPE_OK) continue;
    parse.push_back(Fastest([&text] {
      rope_model* again = nullptr;
      rope_model_create(text.data(), text.size(), &again);
      rope_model_destroy(again);
    }));
    for (int32_t type = 0; type < rope_model_layer_type_count(model); ++type) {
      rope_config config = ROPE_INIT(rope_config);
      if (rope_model_config(model, type, &config) != ROPE_OK) continue;
      if (config.pairing == 0 && config.scaling != ROPE_SCALING_NOPE) {
        config.pairing = ROPE_PAIRING_HALVES;
      }
      if (config.scaling == ROPE_SCALING_DYNAMIC || config.scaling == ROPE_SCALING_LONGROPE) {
        config.seq_len = 1;
      }
      rope_status status = ROPE_OK;
      const double took = Fastest([&config, &status] {
        rope_context* context = nullptr;
        status = rope_context_create(&config, &context);
        if (status == ROPE_OK) rope_context_destroy(context);
      });
      if (status == ROPE_OK) create.push_back(took);  // a dictionary alone may lack theta
    }
    rope_model_destroy(model);
  }
  Print("rope_model_create, configurations", parse);
  Print("rope_context_create, layer types", create);
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "rope_model_bench: %s\n", error.what());
  return 1;
}
