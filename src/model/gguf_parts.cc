#include "model/gguf_parts.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "model/gguf.h"
#include "model/gguf_keys.h"

namespace rope::model {
namespace {

struct CloseFile {
  void operator()(std::FILE* file) const { std::fclose(file); }
};

// Reads more and more of the file, until `use` has enough of it: it throws GgufEndsEarly before.
template <class Use>
void ReadBeginning(const std::string& path, Use use) {
  constexpr size_t kFirst = size_t{1} << 20;
  errno = 0;
  const std::unique_ptr<std::FILE, CloseFile> file(std::fopen(path.c_str(), "rb"));
  const auto fail = [&path](const char* what) {
    Reject(ROPE_ERROR_INVALID_ARGUMENT, "path (\"%s\") %s: %s", Printable(path, 200).c_str(), what,
           Printable(std::strerror(errno)).c_str());
  };
  if (file == nullptr) fail("cannot be opened");
  std::vector<char> bytes;
  for (size_t wanted = kFirst;; wanted *= 2) {  // whatever it claims to need: the work is linear
    const size_t had = bytes.size();
    bytes.resize(wanted);
    bytes.resize(had + std::fread(bytes.data() + had, 1, wanted - had, file.get()));
    if (std::ferror(file.get()) != 0) fail("cannot be read");
    try {
      use(std::string_view(bytes.data(), bytes.size()));
      return;
    } catch (const GgufEndsEarly&) {
      if (bytes.size() < wanted) throw;  // there is no more
    }
  }
}

// "model-00002-of-00003.gguf" of "model-00001-of-00003.gguf"; empty if the name is another.
std::string PathOfPart(const std::string& first, int64_t part, int64_t count) {
  const auto ending = [count](int64_t number) {
    char text[64];
    std::snprintf(text, sizeof(text), "-%05lld-of-%05lld.gguf", static_cast<long long>(number),
                  static_cast<long long>(count));
    return std::string(text);
  };
  const std::string own = ending(1);
  const size_t rest = first.size() - own.size();
  const bool named = first.size() > own.size() && first.compare(rest, own.size(), own) == 0;
  return named ? first.substr(0, rest) + ending(part) : "";
}

// The tensors of RoPE of all other parts.
GgufTensors TensorsOfOtherParts(const std::string& first, int64_t count) {
  GgufTensors found;
  for (int64_t part = 2; part <= count; ++part) {
    const std::string path = PathOfPart(first, part, count);
    if (path.empty()) {
      Reject(ROPE_ERROR_INVALID_ARGUMENT,
             "path (\"%s\") must end with -00001-of-%05lld.gguf: other parts may have the tensors "
             "of RoPE",
             Printable(first, 200).c_str(), static_cast<long long>(count));
    }
    ReadBeginning(path, [&](std::string_view bytes) {
      const GgufFile file = ParseGguf(bytes);
      CheckPart(file, part, count);
      for (const auto& [name, tensor] : file.rope_tensors) {
        GgufTensor taken = tensor;
        taken.values = TensorValues(file, name);
        found.insert_or_assign(std::string(name), std::move(taken));
      }
    });
  }
  return found;
}

}  // namespace

void LoadGguf(const char* path, ParsedModel* out) {
  int64_t parts = 0;
  ReadBeginning(path, [&](std::string_view bytes) {
    ParsedModel parsed;
    const GgufFile file = ParseGguf(bytes);
    parts = PartsToSearch(file);
    if (parts == 0) ReadGguf(file, &parsed);
    *out = std::move(parsed);
  });
  if (parts == 0) return;
  const GgufTensors tensors = TensorsOfOtherParts(path, parts);
  ReadBeginning(path, [&](std::string_view bytes) {
    ParsedModel parsed;
    GgufFile file = ParseGguf(bytes);
    for (const auto& [name, tensor] : tensors) file.rope_tensors.emplace(name, tensor);
    file.whole = true;
    ReadGguf(file, &parsed);
    *out = std::move(parsed);
  });
}

}  // namespace rope::model
