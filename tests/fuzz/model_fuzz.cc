// libFuzzer target: any text is either refused with a message or gives a model whose every answer
// is consistent, and whose configurations the core accepts once the program's own fields are set.
//
//   clang++ -std=c++17 -g -O1 -fsanitize=fuzzer,address,undefined -Isrc -Iinclude -Itests/fuzz
//       tests/fuzz/model_fuzz.cc src/{model,base,context}/*.cc -o model_fuzz
//   python3 tests/fuzz/model_corpus.py corpus
//   ./model_fuzz -dict=tests/fuzz/model.dict -max_len=8192 corpus
#include <cstring>
#include <memory>

#include "check_model.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  // An exact-size heap copy: reading one byte beyond it is an error.
  const std::unique_ptr<char[]> text(new char[size]);
  std::memcpy(text.get(), data, size);
  rope::fuzz::CheckModel("rope_model_create", [&](rope_model** out) {
    return rope_model_create(text.get(), size, out);
  });
  return 0;
}
