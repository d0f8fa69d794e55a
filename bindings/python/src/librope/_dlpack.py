"""The memory behind __dlpack__, read through ctypes. The capsule stays ours and is freed with it."""

from __future__ import annotations

import ctypes
from typing import Any, NamedTuple


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class _Versioned(ctypes.Structure):
    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("manager_ctx", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", _Tensor),
    )


_READ_ONLY = 1
_CPU, _CUDA, _CUDA_HOST, _CUDA_MANAGED = 1, 2, 3, 13
_DTYPES = {
    (2, 32): "float32",
    (2, 16): "float16",
    (4, 16): "bfloat16",
    (0, 32): "int32",
    (0, 64): "int64",
    (0, 8): "int8",
    (1, 8): "uint8",
    (10, 8): "float8_e4m3fn",
    (12, 8): "float8_e5m2",
    (14, 8): "float8_e8m0fnu",
}

_get = ctypes.pythonapi.PyCapsule_GetPointer
_get.restype = ctypes.c_void_p
_get.argtypes = (ctypes.py_object, ctypes.c_char_p)
_is_valid = ctypes.pythonapi.PyCapsule_IsValid
_is_valid.argtypes = (ctypes.py_object, ctypes.c_char_p)


def compact(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The strides, in elements, of an array without gaps: what protocols mean that give none."""
    strides: tuple[int, ...] = ()
    step = 1
    for n in reversed(shape):
        strides, step = (step, *strides), step * n
    return strides


class Memory(NamedTuple):
    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]  # in elements
    dtype: str
    device: int  # CUDA index, -1 is the CPU
    writable: bool
    owner: object


def read(x: Any, stream: int | None = None) -> Memory:
    """stream: where the memory will be used, as __dlpack__ takes it; None on the CPU."""
    device = x.__dlpack_device__()[0]
    options = {} if device != _CUDA or stream is None else {"stream": stream}
    try:
        capsule = x.__dlpack__(max_version=(1, 0), **options)
    except TypeError:  # a producer older than DLPack 1.0
        capsule = x.__dlpack__(**options)
    if _is_valid(capsule, b"dltensor_versioned"):
        versioned = _Versioned.from_address(_get(capsule, b"dltensor_versioned"))
        tensor, writable = versioned.tensor, not versioned.flags & _READ_ONLY
    else:
        tensor, writable = _Tensor.from_address(_get(capsule, b"dltensor")), True
    shape = tuple(tensor.shape[0 : tensor.ndim])
    if tensor.strides:
        strides = tuple(tensor.strides[0 : tensor.ndim])
    else:
        strides = compact(shape)
    if tensor.device_type in (_CPU, _CUDA_HOST):
        index = -1
    elif tensor.device_type in (_CUDA, _CUDA_MANAGED):
        index = tensor.device_id
    else:
        raise TypeError(f"a tensor on DLPack device {tensor.device_type}: CPU and CUDA are known")
    dtype = _DTYPES.get((tensor.code, tensor.bits)) if tensor.lanes == 1 else None
    return Memory(
        (tensor.data or 0) + tensor.byte_offset,
        shape,
        strides,
        dtype or f"DLPack type {tensor.code} of {tensor.bits} bits",
        index,
        writable,
        capsule,
    )
