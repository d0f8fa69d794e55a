// Nothing but a status crosses the C edge: exceptions end here.
#ifndef LIBROPE_SRC_BASE_GUARD_H_
#define LIBROPE_SRC_BASE_GUARD_H_

#include <exception>
#include <new>

#include "base/status.h"

namespace rope {

template <class Body>
rope_status Guard(const char* function, Body body) noexcept {
  try {
    return body();
  } catch (const std::bad_alloc&) {
    return Fail(ROPE_ERROR_OUT_OF_MEMORY, "%s: out of memory", function);
  } catch (const std::exception& e) {
    return Fail(ROPE_ERROR_INTERNAL, "%s: internal error: %.200s", function, e.what());
  } catch (...) {
    return Fail(ROPE_ERROR_INTERNAL, "%s: internal error", function);
  }
}

}  // namespace rope

#endif  // LIBROPE_SRC_BASE_GUARD_H_
