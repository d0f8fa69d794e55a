#include "base/status.h"

#include <pthread.h>

#include <cstdarg>
#include <cstdio>
#include <cstdlib>

namespace rope {
namespace {

constexpr size_t kMessageSize = 512;

// What stands for a message that there was no memory for. It is never written.
char lost[] = "out of memory: the message of this error could not be kept";

void FreeMessage(void* message) {
  if (message != lost) std::free(message);
}

// Each thread's message, in memory of its own that its first error allocates. Not thread_local: of a
// library that dlopen has loaded, glibc allocates a thread's copy at the first use, and aborts the
// program if it cannot. The key goes when the library is unloaded, before FreeMessage does.
class Messages {
 public:
  Messages() : made_(pthread_key_create(&key_, &FreeMessage) == 0) {}
  ~Messages() {
    if (!made_) return;
    FreeMessage(pthread_getspecific(key_));
    made_ = false;  // threads may outlive static objects
    pthread_key_delete(key_);
  }

  // This thread's, null before its first error; `lost` if there is no memory.
  char* Find() const { return made_ ? static_cast<char*>(pthread_getspecific(key_)) : lost; }

  char* FindOrMake() {
    char* message = Find();
    if (!made_ || (message != nullptr && message != lost)) return message;
    message = static_cast<char*>(std::malloc(kMessageSize));
    if (message != nullptr && pthread_setspecific(key_, message) == 0) return message;
    std::free(message);
    pthread_setspecific(key_, lost);
    return lost;
  }

 private:
  pthread_key_t key_;
  bool made_;
};

Messages messages;

}  // namespace

rope_status Fail(rope_status status, const char* format, ...) {
  char* const message = messages.FindOrMake();
  if (message == lost) return status;
  va_list values;
  va_start(values, format);
  std::vsnprintf(message, kMessageSize, format, values);
  va_end(values);
  return status;
}

}  // namespace rope

extern "C" const char* rope_last_error(void) {
  const char* message = rope::messages.Find();
  return message != nullptr ? message : "";
}

extern "C" const char* rope_status_string(rope_status status) {
  switch (status) {
    case ROPE_OK: return "ok";
    case ROPE_ERROR_INVALID_ARGUMENT: return "invalid argument";
    case ROPE_ERROR_UNSUPPORTED: return "not supported by this version";
    case ROPE_ERROR_OUT_OF_MEMORY: return "out of memory";
    case ROPE_ERROR_UNAVAILABLE: return "not available on this system";
    case ROPE_ERROR_PARSE: return "cannot parse the model configuration";
    case ROPE_ERROR_RUNNER: return "the runner did not run all tasks";
    case ROPE_ERROR_DEVICE: return "the device refused the work";
    case ROPE_ERROR_INTERNAL: return "internal error";
    default: return "unknown status";
  }
}
