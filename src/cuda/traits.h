// What CUDA is like, for the backend and for its stand-in in a library built without it.
#ifndef LIBROPE_SRC_CUDA_TRAITS_H_
#define LIBROPE_SRC_CUDA_TRAITS_H_

#include "context/backend.h"

namespace rope::cuda {

constexpr Backend MakeBackend(decltype(Backend::attach) attach, decltype(Backend::apply) apply,
                              decltype(Backend::fill) fill) {
  Backend backend;
  backend.name = "CUDA";
  backend.has_streams = true;
  backend.is_numbered = true;
  backend.has_moves = true;
  backend.has_gradients = true;
  backend.attach = attach;
  backend.apply = apply;
  backend.fill = fill;
  return backend;
}

}  // namespace rope::cuda

#endif  // LIBROPE_SRC_CUDA_TRAITS_H_
