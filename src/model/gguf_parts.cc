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

// A program may have fetched no more than the first part, which is enough where it has the tensors.
bool CanBeOpened(const std::string& path) {
  return std::unique_ptr<std::FILE, CloseFile>(std::fopen(path.c_str(), "rb")) != nullptr;
}

// Adds the tensors of another part to `found`.
void ReadPart(const GgufFile& first, const std::string& path, int64_t part, int64_t count,
              GgufTensors* found) {
  try {
    ReadBeginning(path, [&](std::string_view bytes) {
      const GgufFile file = ParseGguf(bytes);
      CheckPart(file, part, count);
      RejectOtherKeys(first, file, part);
      GgufTensors own;
      for (const auto& [name, tensor] : file.rope_tensors) {
        const std::string known(name);
        if (first.rope_tensors.count(name) != 0 || found->count(known) != 0) {
          Reject(ROPE_ERROR_PARSE, "tensor \"%s\" of part %lld is in another part, too",
                 Printable(name).c_str(), static_cast<long long>(part));
        }
        GgufTensor& taken = own.emplace(known, tensor).first->second;
        taken.values = TensorValues(file, name);
      }
      found->merge(own);
    });
  } catch (const GgufEndsEarly& error) {
    throw Error(error);  // the first part's reader has no more of this one
  }
}

// The tensors of RoPE of the other parts.
GgufTensors TensorsOfOtherParts(const GgufFile& first, const std::string& first_path) {
  GgufTensors found;
  const GgufParts parts = PartsOf(first);
  for (int64_t part = 2; part <= parts.count; ++part) {
    const std::string path = PathOfPart(first_path, part, parts.count);
    if (path.empty() && parts.needed) {
      Reject(ROPE_ERROR_INVALID_ARGUMENT,
             "path (\"%s\") must end with -00001-of-%05lld.gguf: other parts may have the tensors "
             "of RoPE",
             Printable(first_path, 200).c_str(), static_cast<long long>(parts.count));
    }
    if (!parts.needed && (path.empty() || !CanBeOpened(path))) continue;
    ReadPart(first, path, part, parts.count, &found);
  }
  return found;
}

}  // namespace

void LoadGguf(const char* path, ParsedModel* out) {
  ReadBeginning(path, [&](std::string_view bytes) {
    ParsedModel parsed;
    GgufFile file = ParseGguf(bytes);
    file.whole = true;
    const GgufTensors tensors = TensorsOfOtherParts(file, path);
    for (const auto& [name, tensor] : tensors) file.rope_tensors.emplace(name, tensor);
    ReadGguf(file, &parsed);
    *out = std::move(parsed);
  });
}

}  // namespace rope::model
