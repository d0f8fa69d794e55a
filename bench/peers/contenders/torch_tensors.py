"""The shared tensors as PyTorch's, without a copy. Two environments have a PyTorch of their own."""

import numpy
import torch


def as_torch(tensors, name):
    array = tensors.array(name)
    if array.dtype == numpy.uint16:  # bf16
        return torch.from_numpy(array.view(numpy.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def as_numpy(tensor):
    tensor = tensor.detach().contiguous()
    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.int16).numpy().view(numpy.uint16)
    return tensor.numpy()
