// The first error of a thread when no memory is left, in a library loaded by dlopen as a plug-in or
// a language's binding does it: a status and a text, where glibc's thread_local would abort.
// Replaces malloc, so it is not built with sanitizers, which do the same.
#include <dlfcn.h>

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>

namespace {
std::atomic<bool> failing{false};
}

extern "C" {
void* __libc_malloc(size_t size);                      // NOLINT: glibc's own names
void* __libc_calloc(size_t count, size_t size);        // NOLINT
void* __libc_realloc(void* memory, size_t size);       // NOLINT
void* __libc_memalign(size_t alignment, size_t size);  // NOLINT

void* malloc(size_t size) { return failing ? nullptr : __libc_malloc(size); }
void* calloc(size_t count, size_t size) { return failing ? nullptr : __libc_calloc(count, size); }
void* realloc(void* memory, size_t size) {
  return failing ? nullptr : __libc_realloc(memory, size);
}
void* memalign(size_t alignment, size_t size) {
  return failing ? nullptr : __libc_memalign(alignment, size);
}
void* aligned_alloc(size_t alignment, size_t size) { return memalign(alignment, size); }
}

int main(int argc, char** argv) {
  void* const library = argc == 2 ? dlopen(argv[1], RTLD_NOW) : nullptr;
  if (library == nullptr) {
    std::fprintf(stderr, "usage: error_memory_test librope.so\n");
    return 1;
  }
  const auto info = reinterpret_cast<int32_t (*)(const void*, int32_t, void*)>(
      dlsym(library, "rope_context_info"));
  const auto last_error = reinterpret_cast<const char* (*)()>(dlsym(library, "rope_last_error"));
  bool good = true;
  const auto expect = [&good](bool condition, const char* what) {
    if (!condition) std::fprintf(stderr, "failed: %s\n", what);
    good = good && condition;
  };
  std::thread([&] {
    expect(std::strcmp(last_error(), "") == 0, "no text before the first error");
    failing = true;
    int32_t status = info(nullptr, 0, nullptr);
    const bool told = std::strstr(last_error(), "out of memory") != nullptr;
    failing = false;
    expect(status == -1, "the status of the error, not of the memory");
    expect(told, "a text that says why there is no message");
    status = info(nullptr, 0, nullptr);
    expect(status == -1 && std::strstr(last_error(), "context (NULL)") != nullptr,
           "the message of the next error, when there is memory again");
  }).join();
  dlclose(library);  // while the thread's text is gone with its thread
  return good ? 0 : 1;
}
