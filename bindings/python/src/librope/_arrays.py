"""Arrays of any library as addresses, shapes and strides. Nothing is ever copied."""

from __future__ import annotations

import functools
import itertools
import math
import operator
import sys
from collections.abc import Callable
from typing import Any

from . import _dlpack
from ._ffi import ffi
from ._frameworks import load
from ._untraced import untraced

np: Any = None
ndarray: Any = ()
try:
    import numpy
except ImportError:  # NumPy is optional
    pass
else:
    np, ndarray = numpy, numpy.ndarray


Meta = tuple[tuple[int, ...], tuple[int, ...], str]  # shape, strides in elements, dtype

# One array: what decides the template, in the library's own words; the function that turns
# these into a Meta (when they are new); address; device (a CUDA index, -1 is the CPU); owner of the
# memory. A plain tuple, because one is made per array and call.
View = tuple[Any, Callable[[Any, str], Meta], int, int, object]
Reader = Callable[[Any, str, bool], View]

LEAST_ADDRESS = 1 << 22  # below it is no memory of arrays
_RARE_ADDRESS = 1 << 40  # and below this rarely
_NATIVE = "@=" + ("<" if sys.byteorder == "little" else ">")
_from_buffer = ffi.from_buffer
_cast = ffi.cast
_uintptr = ffi.typeof("uintptr_t")
_INTERFACE_TYPES = {
    "<f4": "float32", "<f2": "float16", "<i4": "int32", "<i8": "int64", "|i1": "int8", "|u1": "uint8",
}  # fmt: skip
_BUFFER_TYPES = {"f": "float32", "e": "float16", "i": "int32", "q": "int64"}
if ffi.sizeof("long") == 8:
    _BUFFER_TYPES["l"] = "int64"
else:
    _BUFFER_TYPES["l"] = "int32"


def _refuse_write(name: str) -> ValueError:
    return ValueError(f"{name} is read-only, and would be written")


def _normal(shape: tuple[int, ...], strides: tuple[int, ...]) -> tuple[int, ...]:
    """A stride that is never taken may be anything: 0."""
    return tuple(0 if n == 1 else s for n, s in zip(shape, strides, strict=True))


def _same(meta: Any, name: str) -> Meta:
    return (meta[0], _normal(meta[0], meta[1]), meta[2])


def _numpy_meta(meta: Any, name: str) -> Meta:
    shape, strides, dtype = meta
    if not dtype.isnative:
        raise TypeError(f"{name} has dtype {dtype!r}, which is not in this machine's byte order")
    if dtype.name == "void16":
        raise TypeError(
            f"{name} has dtype {dtype.str}: .npy files do not keep bfloat16. If it was that, "
            "x.view(ml_dtypes.bfloat16) is the array"
        )
    size = dtype.itemsize
    if any(s % size for s in strides):
        raise ValueError(f"{name} has strides {strides} bytes, not whole elements of {size}")
    return (shape, _normal(shape, tuple(s // size for s in strides)), dtype.name)


@untraced
def read_numpy(x: Any, name: str, write: bool) -> View:
    if write and not x.flags.writeable:
        raise _refuse_write(name)
    if type(x) is ndarray and x.ndim:
        # A view without elements is contiguous, so it has a buffer, which begins where x does.
        address = int(_cast(_uintptr, _from_buffer(x[:0])))
    else:
        address = x.__array_interface__["data"][0]
    return ((x.shape, x.strides, x.dtype), _numpy_meta, address, -1, x)


def read_masked(x: Any, name: str, write: bool) -> View:
    raise TypeError(f"{name} is a masked array, and its mask would be lost: pass {name}.data")


def _torch_meta(meta: Any, name: str) -> Meta:
    shape = tuple(meta[0])
    return (shape, _normal(shape, meta[1]), str(meta[2])[6:])


def torch_dtype(x: Any) -> str:
    return str(x.dtype)[6:]


def torch_meta(x: Any, name: str) -> Meta:
    """The Meta of a tensor that may have no memory."""
    return _torch_meta((x.shape, x.stride(), x.dtype), name)


def not_strided(x: Any, name: str) -> TypeError:
    way = ""
    if str(x.layout) == "torch.jagged":
        way = ": rotate x.values() with layout='thd' and cu_seqlens=x.offsets().int()"
    elif x.is_nested:
        return TypeError(f"{name} is a nested tensor, and must be a plain one: librope.Rope takes its parts, {name}.unbind()")
    return TypeError(f"{name} is a {x.layout} tensor, and must be strided{way}")


def _no_memory(x: Any, name: str) -> Exception:
    torch = sys.modules["torch"]
    if type(x) in (torch.Tensor, torch.nn.Parameter):
        if x._is_zerotensor():
            return TypeError(f"{name} is zeros without memory, as PyTorch makes for gradients: give {name}.clone()")
        return ValueError(f"{name} has no memory: its storage was freed")
    return TypeError(
        f"{name} is a {type(x).__module__}.{type(x).__qualname__}, a tensor without memory of its own, which is not "
        "taken here: it must be a plain torch.Tensor"
    )


def read_torch(x: Any, name: str, write: bool) -> View:
    if x.layout is not sys.modules["torch"].strided or x.is_nested:
        raise not_strided(x, name)
    if not (x.is_cpu or x.is_cuda):
        raise TypeError(f"{name} is on {x.device}, and must be on the CPU or a CUDA device")
    if x.is_neg():
        raise TypeError(f"{name} is a lazily negated view: resolve_neg() it first")
    address = x.data_ptr()
    if address < _RARE_ADDRESS:
        if not x.numel():
            address = LEAST_ADDRESS  # for the library, which speaks of shapes where 0 would be no array
        elif address == x.storage_offset() * x.element_size():  # 0 is that of a freed storage
            raise _no_memory(x, name)
    return ((x.shape, x.stride(), x.dtype), _torch_meta, address, x.get_device(), x)


def read_dlpack(x: Any, name: str, write: bool) -> View:
    if framework(x) == "jax":
        _check_jax(x, name, write)
    stream = None
    if x.__dlpack_device__()[0] == 2:
        stream = current_stream(x) or 1  # DLPack's number of the legacy default stream
    memory = _dlpack.read(x, stream)
    if write and not memory.writable:
        raise _refuse_write(name)
    meta = (memory.shape, memory.strides, memory.dtype)
    return (meta, _same, memory.address, memory.device, memory.owner)


def _check_jax(x: Any, name: str, write: bool) -> None:
    """XLA may share the memory of an array with others, and compiled code its values."""
    if write:
        raise TypeError(f"{name} is a JAX array, which is immutable: use apply_qk without out=")
    if isinstance(x, sys.modules["jax"].core.Tracer):
        raise TypeError(
            f"{name} is traced by JAX, which needs q and k to be JAX arrays, and no out=: "
            "jnp.asarray them"
        )


def read_buffer(x: Any, name: str, write: bool) -> View:
    view = memoryview(x)
    if write and view.readonly:
        raise _refuse_write(name)
    if not view.c_contiguous:
        raise ValueError(f"{name} is a buffer with gaps: wrap it in a NumPy array")
    dtype = _BUFFER_TYPES.get(view.format.lstrip(_NATIVE), f"format {view.format!r}")
    strides = tuple(s // view.itemsize for s in view.strides or ())
    shape = tuple(view.shape or ())
    address = int(_cast(_uintptr, _from_buffer(view)))
    return ((shape, strides, dtype), _same, address, -1, view)


def read_cuda_interface(x: Any, name: str, write: bool) -> View:
    interface = x.__cuda_array_interface__
    address, read_only = interface["data"]
    if write and read_only:
        raise _refuse_write(name)
    dtype = _INTERFACE_TYPES.get(interface["typestr"], interface["typestr"])
    shape = tuple(interface["shape"])
    size = int(interface["typestr"][2:])
    strides = interface.get("strides")
    if strides is None:
        strides = _dlpack.compact(shape)
    else:
        strides = tuple(s // size for s in strides)
    device = getattr(getattr(x, "device", None), "id", 0)
    return ((shape, strides, dtype), _same, address, device, x)


def _find_reader(kind: type) -> Reader:
    torch = sys.modules.get("torch")
    if np is not None and issubclass(kind, np.ndarray):
        return read_masked if issubclass(kind, np.ma.MaskedArray) else read_numpy
    if torch is not None and issubclass(kind, torch.Tensor):
        return read_torch
    if hasattr(kind, "__dlpack__"):
        return read_dlpack
    if hasattr(kind, "__cuda_array_interface__"):
        return read_cuda_interface

    def read_any(x: Any, name: str, write: bool) -> View:
        try:
            memoryview(x)
        except TypeError:
            raise TypeError(
                f"{name} is a {kind.__module__}.{kind.__qualname__}, and must be an array: NumPy, "
                "torch, or anything with __dlpack__, __cuda_array_interface__ or the buffer protocol"
            ) from None
        return read_buffer(x, name, write)

    return read_any


_readers: dict[type, Reader] = {}


@untraced
def read(x: Any, name: str, write: bool = False) -> View:
    kind = type(x)
    reader = _readers.get(kind)
    if reader is None:
        reader = _readers[kind] = _find_reader(kind)
    return reader(x, name, write)


def framework(x: Any) -> str:
    """The first part of the type's module: "numpy", "torch", "jax", ..."""
    kind = type(x)
    if kind is ndarray or (np is not None and isinstance(x, np.ndarray)):
        return "numpy"
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(x, torch.Tensor):
        return "torch"
    jax = sys.modules.get("jax")
    if jax is not None and isinstance(x, jax.Array):
        return "jax"
    return kind.__module__.partition(".")[0]


def empty_like(x: Any, name: str) -> Any:
    """A new array of x's library, shape, dtype and order of axes, with adjacent channels."""
    library = framework(x)
    if library == "numpy":
        new = np.empty_like(x, subok=False)
        if new.strides[-1:] != (new.itemsize,):
            new = np.empty(x.shape, x.dtype)
        return new
    if library == "torch":
        torch = sys.modules["torch"]
        if x.is_nested:
            raise not_strided(x, name)
        new = torch.empty_like(x)
        if new.stride()[-1:] != (1,):
            if x.layout is not torch.strided:
                raise not_strided(x, name)
            new = torch.empty_like(x, memory_format=torch.contiguous_format)
        return new
    if library == "cupy":
        return sys.modules["cupy"].empty_like(x, order="C")
    raise TypeError(
        f"{name} is a {type(x).__module__}.{type(x).__qualname__}, of which librope cannot make a "
        "new one: pass out=, or rotate in place"
    )


def repeated(value: int, count: int, x: Any, dtype: str, name: str) -> Any:
    """[count] of one value on the device of x, for an int that the library takes as an array alone."""
    library = framework(x)
    if library == "torch":
        torch = sys.modules["torch"]
        return torch.full((count,), value, dtype=getattr(torch, dtype), device=x.device)
    if library == "cupy":
        return sys.modules["cupy"].full(count, value, dtype)
    raise TypeError(f"{name} is an int, and must be an array on the device")


@untraced
def guard(named: Any, written: Any) -> tuple[Callable[[], None] | None, Callable[[], None] | None]:
    """What a bound call does before each step, and after it; None where nobody wants to know.

    named: every array with its name. written: those that are written, or None.
    """
    tensors = [(name, x) for name, x in named if framework(x) == "torch"]
    if not tensors:
        return None, None
    outputs = [x for x in written if x is not None and framework(x) == "torch"]
    around: tuple[Callable[[], None], Callable[[], None]] = load("torch").guard(tensors, outputs)
    return around


@untraced
def announcer(*written: Any) -> Callable[[], None] | None:
    """Refuses writes into these arrays that autograd would not see. Gives what to call after every one; None where
    nobody wants to know."""
    tensors = [x for x in written if x is not None and framework(x) == "torch"]
    if not tensors:
        return None
    _torch = load("torch")
    _torch.refuse_unseen_write()
    return functools.partial(_torch.announce_all, _torch.writable(*tensors))


def place(device: int) -> str:
    """The device of a View, in words."""
    return "the CPU" if device < 0 else f"CUDA device {device}"


def current_stream(x: Any) -> int:
    """The CUDA stream on which the library of x runs now; 0 is the legacy default stream."""
    library = framework(x)
    if library == "torch":
        torch = sys.modules["torch"]
        return int(torch.cuda.current_stream(x.get_device()).cuda_stream)
    if library == "cupy":
        return int(sys.modules["cupy"].cuda.get_current_stream().ptr)
    return 0


def check_finite(meta: Meta, address: int, name: str) -> None:
    """Refuses float32 values in main memory that are not finite: an angle of NaN is none."""
    shape, strides, _ = meta
    if 0 in shape:
        return
    last = sum((n - 1) * s for n, s in zip(shape, strides, strict=True))
    values = ffi.cast("float*", address)
    if np is None:
        places = itertools.product(*map(range, shape))
        every: Any = [values[sum(map(operator.mul, at, strides))] for at in places]
        bad = [x for x in every if not math.isfinite(x)]
    else:
        memory = np.frombuffer(ffi.buffer(values, 4 * (last + 1)), np.float32)
        every = np.lib.stride_tricks.as_strided(memory, shape, [4 * s for s in strides])
        bad = every[~np.isfinite(every)]
    if len(bad):
        raise not_finite(name, bad[0])


def not_finite(name: str, value: Any) -> ValueError:
    return ValueError(f"{name} has {float(value)}, and must be finite")
