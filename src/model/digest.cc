// A kind's name does not count, for dialects differ in it: a layer is told by its number. Only
// kinds that no layer has (towers, indexers) are told by their names.
#include "model/digest.h"

#include <algorithm>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "context/digest.h"

namespace rope::model {
namespace {

rope_status DigestOfType(const char* function, const LayerType& type, rope_digest same,
                         std::string* digest) {
  const rope_config config = ConfigOf(type);
  const rope_status status = DigestOf(function, &config, same, digest);
  if (status == ROPE_OK) return ROPE_OK;
  const size_t prefix = std::string_view(function).size() + 2;
  const std::string reason = std::string(rope_last_error()).substr(prefix);
  return Fail(status, "%s: layer type \"%s\": %s", function, type.name.c_str(), reason.c_str());
}

}  // namespace

rope_status DigestOfModel(const char* function, const ParsedModel& parsed, int32_t type,
                          rope_digest same, std::string* digest) {
  if (type >= 0) return DigestOfType(function, parsed.types[type], same, digest);
  std::vector<std::string> of_type(parsed.types.size());
  for (size_t t = 0; t < of_type.size(); ++t) {
    if (rope_status s = DigestOfType(function, parsed.types[t], same, &of_type[t])) return s;
  }
  std::string lines;
  for (int32_t t : parsed.layers) lines += "layer " + of_type[t] + "\n";
  std::vector<std::string> beside;
  for (size_t t = 0; t < of_type.size(); ++t) {
    const auto& layers = parsed.layers;
    if (std::find(layers.begin(), layers.end(), static_cast<int32_t>(t)) != layers.end()) continue;
    beside.push_back("beside " + parsed.types[t].name + " " + of_type[t] + "\n");
  }
  std::sort(beside.begin(), beside.end());
  for (const std::string& line : beside) lines += line;
  *digest = DigestOfLines(same, lines);
  return ROPE_OK;
}

}  // namespace rope::model
