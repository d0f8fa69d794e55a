"""Scale: what the codes of a cache in 8 bits stand for."""

from __future__ import annotations

from typing import Any, NamedTuple

from ._arrays import Meta, read
from ._core import DTYPES
from ._ffi import ffi, lib
from ._rules import check_dtype, check_not_negative

#: Of 8 bits, by the names of ml_dtypes and torch.
CODES = {
    "float8_e4m3fn": lib.ROPE_DTYPE_F8_E4M3,
    "float8_e5m2": lib.ROPE_DTYPE_F8_E5M2,
    "int8": lib.ROPE_DTYPE_I8,
}
#: Of the memory of a cache.
STORED = {**DTYPES, **CODES}
_SCALES = {"float32": lib.ROPE_DTYPE_F32, "float8_e8m0fnu": lib.ROPE_DTYPE_E8M0}


class ScaleForm(NamedTuple):
    """All of a Scale, as a key: of an array its form and address."""

    value: float
    computed: bool
    group: int
    power_of_two: bool
    min_scale: float
    round_first: bool
    data: Meta | None
    address: int


class Scale:
    """The scales of a cache in 8 bits, where value = code * scale::

        fp8 = np.zeros((pages, page_size, heads, 128), ml_dtypes.float8_e4m3fn)
        cache = librope.KVCache(fp8, fp8_v, layout="nhd", k_scale=librope.Scale(0.02), v_scale=..)

        scales = np.zeros((pages, page_size, heads), np.float32)      # of the slots that are filled
        librope.Scale(data=scales, computed=True)

    Args:
        value: one scale for all, given: 2^-126 to 2^126.
        data: instead: an array with the axes of the memory, but groups of channels in place of channels;
            with one group for each head, that axis may be left out. float32, or float8_e8m0fnu.
        computed: False: the scales in data are given. True: they are computed from what is stored, and
            written there: max(largest size in the group / MAX, min_scale), where MAX is 448
            (float8_e4m3fn), 57344 (float8_e5m2) or 127 (int8).
        group: adjacent channels that share a scale; 0: all of a head.
        power_of_two: computed scales are rounded up to a power of two, as float8_e8m0fnu requires.
        min_scale: computed scales are never smaller; 0: 2^-126.
        round_first: results are rounded to the dtype of k or v first, as two kernels would do.

    Raises:
        ValueError: value and data, or neither.
    """

    __slots__ = ("computed", "data", "group", "min_scale", "power_of_two", "round_first", "value")

    def __init__(
        self,
        value: float | None = None,
        *,
        data: Any = None,
        computed: bool = False,
        group: int = 0,
        power_of_two: bool = False,
        min_scale: float = 0.0,
        round_first: bool = False,
    ) -> None:
        if (value is None) == (data is None):
            raise ValueError("value and data of a Scale: exactly one of them is required")
        self.value = value
        self.data = data
        self.computed = computed
        self.group = group
        self.power_of_two = power_of_two
        self.min_scale = min_scale
        self.round_first = round_first

    def __repr__(self) -> str:
        if self.data is None:
            return f"Scale({self.value!r})"
        return f"Scale(data={list(getattr(self.data, 'shape', ()))}, computed={self.computed}, group={self.group})"


def checked_scale(scale: Any, name: str) -> Scale | None:
    if scale is None or isinstance(scale, Scale):
        return scale
    raise TypeError(f"{name} is a {type(scale).__qualname__}, and must be a librope.Scale")


def form_of(scale: Scale | None, name: str) -> ScaleForm | None:
    """What decides a template. Of arrays in main memory: the library has codes there alone."""
    if scale is None:
        return None
    meta, address = None, 0
    if scale.data is not None:
        view = read(scale.data, f"data of {name}", bool(scale.computed))
        if view[3] >= 0:
            raise NotImplementedError(f"data of {name} is on CUDA device {view[3]}, and must be on the CPU")
        meta, address = view[1](view[0], f"data of {name}"), view[2]
    return ScaleForm(
        0.0 if scale.value is None else float(scale.value), bool(scale.computed), scale.group,
        bool(scale.power_of_two), float(scale.min_scale), bool(scale.round_first), meta, address,
    )  # fmt: skip


def scale_struct(form: ScaleForm, name: str, shape: tuple[int, ...], n: int, h: int | None) -> Any:
    """A rope_scale* of memory of this shape, whose slots and heads are axes n and h."""
    struct = ffi.new("rope_scale*")
    struct.struct_size = ffi.sizeof("rope_scale")
    struct.computed, struct.power_of_two, struct.round_first = form.computed, form.power_of_two, form.round_first
    struct.value, struct.group, struct.min_scale = form.value, form.group, form.min_scale
    if form.data is None:
        return struct
    given, strides, dtype = form.data
    check_dtype(f"data of {name}", dtype, _SCALES)
    check_not_negative(f"data of {name}", strides)
    channels = shape[-1]
    group = form.group or channels
    if not 0 < group <= channels or channels % group:
        raise ValueError(f"group of {name} is {form.group}, and must divide {channels}")
    expected = (*shape[:-1], channels // group)
    if given == shape[:-1] and group == channels:
        given, strides = (*given, 1), (*strides, 0)
    if given != expected:
        raise ValueError(f"data of {name} has shape {form.data[0]}, and must have {expected}")
    if expected[-1] > 1 and strides[-1] != 1:
        raise ValueError(f"data of {name} has strides {strides}: the scales of a head must be adjacent")
    struct.dtype = _SCALES[dtype]
    struct.data = ffi.cast("void*", form.address)
    struct.stride_batch, struct.stride_token = strides[0], strides[n]
    struct.stride_head = 0 if h is None else strides[h]
    return struct
