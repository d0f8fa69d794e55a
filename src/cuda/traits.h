// What CUDA is like, for the backend and for its stand-in in a library built without it.
#ifndef LIBROPE_SRC_CUDA_TRAITS_H_
#define LIBROPE_SRC_CUDA_TRAITS_H_

#include "context/backend.h"

namespace rope::cuda {

constexpr Backend MakeBackend(decltype(Backend::attach) attach, decltype(Backend::apply) apply,
                              decltype(Backend::fill) fill) {
  return {
      ROPE_DEVICE_CUDA,
      "CUDA",
      false,  // host_memory
      true,   // has_streams
      false,  // has_runner
      true,   // is_numbered
      false,  // has_ggml
      attach,
      apply,
      fill,
  };
}

}  // namespace rope::cuda

#endif  // LIBROPE_SRC_CUDA_TRAITS_H_
