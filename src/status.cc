#include "status.h"

#include <cstdarg>
#include <cstdio>

namespace rope {
namespace {

// A plain array: no constructor or destructor, so it is safe with dlclose, fork and thread exit.
thread_local char message[512];

}  // namespace

rope_status Fail(rope_status status, const char* format, ...) {
  va_list values;
  va_start(values, format);
  std::vsnprintf(message, sizeof(message), format, values);
  va_end(values);
  return status;
}

}  // namespace rope

extern "C" const char* rope_last_error(void) { return rope::message; }

extern "C" const char* rope_status_string(rope_status status) {
  switch (status) {
    case ROPE_OK: return "ok";
    case ROPE_ERROR_INVALID_ARGUMENT: return "invalid argument";
    case ROPE_ERROR_UNSUPPORTED: return "not supported by this version";
    case ROPE_ERROR_OUT_OF_MEMORY: return "out of memory";
    case ROPE_ERROR_UNAVAILABLE: return "device not available";
    case ROPE_ERROR_PARSE: return "cannot parse the model configuration";
    case ROPE_ERROR_RUNNER: return "the runner did not run all tasks";
    case ROPE_ERROR_DEVICE: return "the device refused the work";
    case ROPE_ERROR_INTERNAL: return "internal error";
    default: return "unknown status";
  }
}
