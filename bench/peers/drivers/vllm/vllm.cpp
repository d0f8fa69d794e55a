// Registers the function of vLLM's csrc/cpu/pos_encoding.cpp, which is compiled beside this file,
// as torch.ops.peer_vllm.rotary_embedding: the whole extension of vLLM needs oneDNN and more.
#include <torch/all.h>
#include <torch/library.h>

#include <optional>

void rotary_embedding(torch::Tensor& positions, torch::Tensor& query,
                      std::optional<torch::Tensor> key, int64_t head_size,
                      torch::Tensor& cos_sin_cache, bool is_neox, int64_t rope_dim_offset,
                      bool inverse);

TORCH_LIBRARY(peer_vllm, ops) {
  ops.def(
      "rotary_embedding(Tensor positions, Tensor! query, Tensor!? key, int head_size, Tensor "
      "cos_sin_cache, bool is_neox, int rope_dim_offset=0, bool inverse=False) -> ()");
  ops.impl("rotary_embedding", torch::kCPU, &rotary_embedding);
}
