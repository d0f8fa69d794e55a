"""Outputs and caches in 8 bits: Scale and Scales, what codes stand for, and blocks of Q8_0."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

from ._arrays import Meta, View, read
from ._core import DTYPES, real
from ._ffi import ffi, lib
from ._rules import check_dtype, check_not_negative

#: Of 8 bits, by the names of ml_dtypes and torch.
CODES = {
    "float8_e4m3fn": lib.ROPE_DTYPE_F8_E4M3,
    "float8_e5m2": lib.ROPE_DTYPE_F8_E5M2,
    "int8": lib.ROPE_DTYPE_I8,
}
#: ggml's blocks, as their bytes: what gguf-py and torch hold them in.
BLOCKS = {"uint8": lib.ROPE_DTYPE_Q8_0}
_BLOCK_BYTES, _BLOCK_CHANNELS = 34, 32
#: Of outputs, and of the memory of a cache.
STORED = {**DTYPES, **CODES, **BLOCKS}
_SCALES = {"float32": lib.ROPE_DTYPE_F32, "float8_e8m0fnu": lib.ROPE_DTYPE_E8M0}


class ScaleForm(NamedTuple):
    """All of a Scale but its array, as a key."""

    value: float
    computed: bool
    group: int
    power_of_two: bool
    min_scale: float
    round_first: bool
    has_data: bool


class Scale:
    """The scales of an output or a cache in 8 bits, where value = code * scale. Immutable::

        fp8 = np.zeros((pages, page_size, heads, 128), ml_dtypes.float8_e4m3fn)
        cache = librope.KVCache(fp8, fp8_v, layout="nhd", k_scale=librope.Scale(0.02), v_scale=..)

        scales = np.zeros((pages, page_size, heads), np.float32)      # of the slots that are filled
        librope.Scale(data=scales, computed=True)

    Args:
        value: one scale for all, given: 2^-126 to 2^126.
        data: instead: an array with the axes of the output or the memory, but groups of channels in place
            of channels; with one group for each head, that axis may be left out. One that is given may
            broadcast to that: [] is one number for all, [heads] one for each head of "nhd" ([1, heads, 1, 1] of
            "hnd"). float32, or float8_e8m0fnu, on the device of the output or the memory.
        computed: False: the scales in data are given. True: they are computed from what is stored, and
            written there: max(largest size in the group / MAX, min_scale), where MAX is 448
            (float8_e4m3fn), 57344 (float8_e5m2) or 127 (int8).
        group: adjacent channels that share a scale; 0: all of a head.
        power_of_two: computed scales are rounded up to a power of two, as float8_e8m0fnu requires.
        min_scale: computed scales are never smaller; 0: 2^-126.
        round_first: results are rounded to the dtype of the input first, as two kernels would do.

    Other scales are another Scale, for another KVCache. What the array of data holds may change.

    Raises:
        ValueError: value and data, or neither; a value out of range.
        TypeError: a value that is no number.
        AttributeError: an attribute is set.
    """

    __slots__ = ("computed", "data", "group", "min_scale", "power_of_two", "round_first", "value")

    value: float | None
    data: Any
    computed: bool
    group: int
    power_of_two: bool
    min_scale: float
    round_first: bool

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
        self.__setstate__((None, {
            "value": None if value is None else _checked_value(value), "data": data, "computed": computed,
            "group": group, "power_of_two": power_of_two, "min_scale": min_scale, "round_first": round_first,
        }))  # fmt: skip

    def __setattr__(self, name: str, value: object) -> None:
        # Calls know a Scale by its identity.
        raise AttributeError(f"{name} of a Scale cannot be set: it is immutable; make a new Scale, and a KVCache with it")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"{name} of a Scale cannot be deleted: it is immutable")

    def __setstate__(self, state: tuple[None, dict[str, Any]]) -> None:
        """Of a new object: of the constructor, of copy and pickle."""
        for name, value in state[1].items():
            object.__setattr__(self, name, value)

    def __repr__(self) -> str:
        if self.data is None:
            return f"Scale({self.value!r})"
        return f"Scale(data={list(getattr(self.data, 'shape', ()))}, computed={self.computed}, group={self.group})"


def _checked_value(value: Any) -> float:
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor) and torch.compiler.is_compiling():
        raise TypeError(
            "value of a Scale is a tensor, whose content compiled code does not know: Scale(data=..) takes it as it is, "
            "float32, also with no dimension"
        )
    found = real(value, "value of a Scale")
    if not 2.0**-126 <= found <= 2.0**126:
        raise ValueError(f"value of a Scale is {found:g}, and must be from 2^-126 to 2^126")
    return found


class Scales:
    """The scales of the outputs of a call in 8 bits, for its scales=::

        q8 = np.empty(q.shape, ml_dtypes.float8_e4m3fn)
        each = np.empty(q.shape[:-1], np.float32)                 # of each token and head
        scales = librope.Scales(q=librope.Scale(data=each, computed=True))
        rope.apply_qk(q, None, positions, out=(q8, None), scales=scales)

    Args:
        q, k, v, rest: a Scale of each output of out= that is of codes, and of no other. Those of
            a cache are k_scale and v_scale of the KVCache.

    Raises:
        TypeError: one that is no Scale.
    """

    __slots__ = ("k", "q", "rest", "v")

    def __init__(
        self, q: Scale | None = None, k: Scale | None = None, v: Scale | None = None, rest: Scale | None = None
    ) -> None:
        self.q = checked_scale(q, "q")
        self.k = checked_scale(k, "k")
        self.v = checked_scale(v, "v")
        self.rest = checked_scale(rest, "rest")

    def __repr__(self) -> str:
        given = [(name, getattr(self, name)) for name in ("q", "k", "v", "rest")]
        return f"Scales({', '.join(f'{name}={scale!r}' for name, scale in given if scale is not None)})"


def checked_scale(scale: Any, name: str) -> Scale | None:
    if scale is None or isinstance(scale, Scale):
        return scale
    raise TypeError(f"{name} is a {type(scale).__qualname__}, and must be a librope.Scale")


def checked_scales(scales: Any) -> Scales | None:
    """The argument scales of a call."""
    if scales is None or isinstance(scales, Scales):
        return scales
    raise TypeError(f"scales is a {type(scales).__qualname__}, and must be a librope.Scales")


#: Of the scales of a call, of its outputs and of its cache, in the order of rope_qk_data.
NAMES = ("scales.q", "scales.k", "k_scale", "scales.v", "v_scale", "scales.rest")
#: Of their arrays.
DATA_NAMES = tuple(f"data of {name}" for name in NAMES)

#: What they belong to.
OUTPUTS = ("out of q", "out of k", "cache.k", "out of v", "cache.v", "out of rest")

AllScales = tuple[Scale | None, ...]  # in the order of NAMES
ScaleForms = tuple[ScaleForm | None, ...]


def all_scales(scales: Scales | None, of_cache: tuple[Scale | None, Scale | None] | None) -> AllScales | None:
    """None: there are none."""
    if scales is None and of_cache is None:
        return None
    q, k, v, rest = (None,) * 4 if scales is None else (scales.q, scales.k, scales.v, scales.rest)
    k_scale, v_scale = of_cache or (None, None)
    return q, k, k_scale, v, v_scale, rest


def form_of(scale: Scale) -> ScaleForm:
    return ScaleForm(
        0.0 if scale.value is None else scale.value, bool(scale.computed), scale.group,
        bool(scale.power_of_two), float(scale.min_scale), bool(scale.round_first), scale.data is not None,
    )  # fmt: skip


def scale_forms(scales: AllScales | None) -> ScaleForms | None:
    """What decides a template beside the forms of the arrays."""
    if scales is None:
        return None
    return tuple(None if x is None else form_of(x) for x in scales)


def _words(form: ScaleForm | None) -> str:
    if form is None:
        return "none"
    value, computed, group, power_of_two, min_scale, round_first, has_data = form
    words = "computed" if computed else "an array" if has_data else f"value {value}"
    for name, field in (("group", group), ("power_of_two", power_of_two), ("min_scale", min_scale),
                        ("round_first", round_first)):  # fmt: skip
        if field:
            words += f", {name} {field}"
    return words


def other_scales(given: ScaleForms | None, prepared: ScaleForms | None) -> str:
    """What a prepared call says of other scales than its own: the first that differ."""
    none = (None,) * len(NAMES)
    for name, now, before in zip(NAMES, given or none, prepared or none, strict=True):
        if now != before:
            where = name if "." in name else f"cache.{name}"
            return f"{where} has other scales than those that were prepared: {_words(now)}, and not {_words(before)}"
    return "cache or scales= has other scales than those that were prepared"


def scale_arrays(scales: AllScales | None) -> tuple[Any, ...]:
    """The arrays of scales, in the order of NAMES; none without scales."""
    return () if scales is None else tuple(None if x is None else x.data for x in scales)


def text_of_scales(scales: AllScales | None) -> str:
    """All of scales but their arrays, as an operator of PyTorch carries it; "" without scales."""
    if scales is None:
        return ""
    return ",".join(
        "" if x is None else f"{x.value!r} {bool(x.computed)} {x.group} {bool(x.power_of_two)} "
        f"{float(x.min_scale)!r} {bool(x.round_first)}"
        for x in scales
    )  # fmt: skip


def given_and_computed(scales: AllScales | None) -> tuple[Any, ...]:
    """The arrays that are read, and behind them those that are written, each in the order of NAMES."""
    every = scales or (None,) * len(NAMES)
    given = [None if x is None or x.computed else x.data for x in every]
    return (*given, *[None if x is None or not x.computed else x.data for x in every])


def scales_from(text: str, arrays: Any) -> AllScales | None:
    """The inverse of text_of_scales() and given_and_computed()."""
    if not text:
        return None
    made: list[Scale | None] = []
    half = len(arrays) // 2
    for one, given, computed in zip(text.split(","), arrays[:half], arrays[half:], strict=True):
        if not one:
            made.append(None)
            continue
        value, *flags, least, first = one.split(" ")
        made.append(Scale(
            None if value == "None" else float(value), data=computed if given is None else given,
            computed=flags[0] == "True", group=int(flags[1]), power_of_two=flags[2] == "True",
            min_scale=float(least), round_first=first == "True",
        ))  # fmt: skip
    return tuple(made)


def apart(scales: AllScales | None) -> tuple[Scales | None, tuple[Scale | None, Scale | None]]:
    """The inverse of all_scales(): those of outputs, and those of a cache."""
    if scales is None:
        return None, (None, None)
    q, k, k_scale, v, v_scale, rest = scales
    return Scales(q, k, v, rest), (k_scale, v_scale)


def written_scales(scales: AllScales | None) -> tuple[Any, ...]:
    """Those that are computed."""
    return tuple(x.data for x in scales or () if x is not None and x.computed and x.data is not None)


def read_scales(scales: AllScales) -> list[View | None]:
    """In the order of NAMES; None: no scale, or one without an array."""
    return [
        None if scale is None or scale.data is None else read(scale.data, name, bool(scale.computed))
        for scale, name in zip(scales, DATA_NAMES, strict=True)
    ]


def check_codes(dtypes: Sequence[str | None], scales: Sequence[object] | None) -> None:
    """Codes have a scale, and nothing else has. dtypes: of OUTPUTS, None: there is none. scales: theirs."""
    for name, output, dtype, scale in zip(NAMES, OUTPUTS, dtypes, scales or (None,) * len(NAMES), strict=True):
        if dtype is not None:
            check_code(name, output, dtype, scale)
        elif scale is not None:
            raise ValueError(f"{name} is a Scale, and {output} is None")


def check_code(name: str, output: str, dtype: str, scale: object) -> None:
    """check_codes() of one output, or of one memory that is read."""
    if dtype in CODES and scale is None:
        raise ValueError(f"{output} has dtype {dtype}, and {name} must be a Scale")
    if dtype in DTYPES and scale is not None:
        raise ValueError(f"{output} has dtype {dtype}, which is none of 8 bits, and {name} must be None")
    if dtype in BLOCKS and scale is not None:
        raise ValueError(
            f"{output} has dtype {dtype}, blocks of Q8_0 with scales of their own, and {name} must be None: "
            f"codes have a dtype of their own, {', '.join(CODES)}; where an engine holds those in bytes, give "
            f"{output}.view(torch.float8_e4m3fn)"
        )


def in_channels(name: str, meta: Meta) -> Meta:
    """The Meta of an output, or of memory, whose last axis counts channels. That of blocks counts bytes."""
    shape, strides, dtype = meta
    if dtype not in BLOCKS or not shape:
        return meta
    if shape[-1] % _BLOCK_BYTES:
        raise ValueError(
            f"{name} has {shape[-1]} bytes of {dtype} per head, and must have whole blocks of Q8_0: "
            f"{_BLOCK_BYTES} for each {_BLOCK_CHANNELS} channels"
        )
    if any(s % _BLOCK_BYTES for s in strides[:-1]):
        raise ValueError(
            f"{name} has strides {strides}, and must have whole blocks of Q8_0, {_BLOCK_BYTES} bytes, between heads"
        )
    channels, *steps = (x // _BLOCK_BYTES * _BLOCK_CHANNELS for x in (shape[-1], *strides[:-1]))
    return (*shape[:-1], channels), (*steps, strides[-1]), dtype


def _broadcast(
    shape: tuple[int, ...], strides: tuple[int, ...], wanted: tuple[int, ...]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Shape and strides as NumPy broadcasts them, or what was given. Groups, which must be adjacent, are not shared."""
    more = len(wanted) - len(shape)
    if more < 0:
        return shape, strides
    every, steps = (1,) * more + shape, (0,) * more + strides
    for n, must in zip((*every[:-1], None), wanted, strict=True):
        if n not in (1, must, None):
            return shape, strides
    if every[-1] != wanted[-1]:
        return shape, strides
    return wanted, tuple(0 if n == 1 else s for n, s in zip(every, steps, strict=True))


def fill_scale(
    struct: Any, form: ScaleForm, data: Meta | None, name: str, shape: tuple[int, ...],
    axes: tuple[int | None, int, int | None],
) -> None:  # fmt: skip
    """Fills a rope_scale of an output of this shape, but the address of its data. axes: those of batch rows
    (or pages), tokens (or slots) and heads."""
    struct.struct_size = ffi.sizeof("rope_scale")
    struct.computed, struct.power_of_two, struct.round_first = form.computed, form.power_of_two, form.round_first
    struct.value, struct.group, struct.min_scale = form.value, form.group, form.min_scale
    if data is None:
        return
    given, strides, dtype = data
    check_dtype(f"data of {name}", dtype, _SCALES)
    check_not_negative(f"data of {name}", strides)
    channels = shape[-1]
    group = form.group or channels
    if not 0 < group <= channels or channels % group:
        raise ValueError(f"group of {name} is {form.group}, and must divide {channels}")
    expected = (*shape[:-1], channels // group)
    readings = [(given, strides)]
    if group == channels and len(given) < len(expected):  # groups left out
        readings.insert(0, ((*given, 1), (*strides, 0)))
    if not form.computed:  # those that are given may be shared
        readings = [_broadcast(*reading, expected) for reading in readings]
    fitting = [reading for reading in readings if reading[0] == expected]
    if given != expected[:-1] and any(reading != fitting[0] for reading in fitting[1:]):
        raise ValueError(
            f"data of {name} has shape {given}, which broadcasts to {expected} with and without its last axis as that "
            f"of groups: give all {len(expected)} axes"
        )
    if fitting:
        given, strides = fitting[0]
    else:
        rule = "" if form.computed else ", or one that broadcasts to it"
        raise ValueError(f"data of {name} has shape {data[0]}, and must have {expected}{rule}")
    if expected[-1] > 1 and strides[-1] != 1:
        raise ValueError(f"data of {name} has strides {strides}: the scales of a head must be adjacent")
    struct.dtype = _SCALES[dtype]
    struct.stride_batch, struct.stride_token, struct.stride_head = (0 if a is None else strides[a] for a in axes)
