"""Names of the C numbers, errors, and rope_config as a dictionary."""

from __future__ import annotations

import json
import math
import operator
import re
from collections.abc import Mapping, Sequence
from typing import Any

from ._ffi import ffi, lib

Config = dict[str, Any]


def _numbers(word: str) -> dict[str, int]:
    """The enumerators of C's type that begins with this word, by name, in C's order."""
    prefix = f"ROPE_{word}_"
    names = [name for name in dir(lib) if name.startswith(prefix)]
    names.sort(key=lambda name: int(getattr(lib, name)))
    return {name.removeprefix(prefix).lower(): getattr(lib, name) for name in names}


PAIRINGS = _numbers("PAIRING")
SCALINGS = _numbers("SCALING")
ANGLES = _numbers("ANGLE")
ROUNDINGS = _numbers("ROUNDING")
COS_SIN_FORMATS = _numbers("COS_SIN")
OPERATIONS = _numbers("OPERATION")
del OPERATIONS["rerotate"]  # of two positions: Rope.move
DIGESTS = _numbers("DIGEST")
SHARD_SCHEMES = _numbers("SHARD")
NORM_KINDS = _numbers("NORM_KIND")
NORM_SPANS = _numbers("NORM_SPAN")
NORM_ORDERS = _numbers("NORM_ORDER")
NORM_ROUNDINGS = _numbers("NORM_ROUNDING")


def _dtype(name: str) -> str:
    """NumPy's name of one of C's: f16 is float16."""
    return re.sub(r"^i(?=\d)", "int", re.sub(r"f(?=\d)", "float", name.lower()))


# Those of 8 bits are of outputs and caches alone.
DTYPES = {_dtype(name): n for name, n in _numbers("DTYPE").items() if n <= lib.ROPE_DTYPE_BF16}

VERSION = (lib.ROPE_VERSION_MAJOR, lib.ROPE_VERSION_MINOR, lib.ROPE_VERSION_PATCH)


def check_version(loaded: int) -> None:
    """Refuses a library with another ABI; loaded is what its rope_version() says.

    Only possible where the module was linked with an installed librope, which may be exchanged.
    """
    major, minor = loaded // 10000, loaded // 100 % 100
    if (major, minor) != VERSION[:2]:
        raise ImportError(
            f"the loaded librope has version {major}.{minor}, and this package was built with "
            f"{VERSION[0]}.{VERSION[1]}: they must agree until 1.0"
        )


check_version(lib.rope_version())


class LibropeWarning(UserWarning):
    """Something worked, but not as its caller may think."""


_EXCEPTIONS: dict[int, type[Exception]] = {
    lib.ROPE_ERROR_INVALID_ARGUMENT: ValueError,
    lib.ROPE_ERROR_PARSE: ValueError,
    lib.ROPE_ERROR_UNSUPPORTED: NotImplementedError,
    lib.ROPE_ERROR_OUT_OF_MEMORY: MemoryError,
}


# Who speaks, in words of Python.
_SPEAKERS = {
    "rope_apply_qk": "apply_qk",
    "rope_prepared_create": "prepare_qk",
    "rope_prepared_apply": "apply_qk",
    "rope_cos_sin_fill": "cos_sin",
    "rope_config_next_change": "next_change",
    "rope_config_digest": "digest",
    "rope_model_digest": "digest",
    "rope_pool_create": "Pool",
    "rope_model_layer_type": "",  # its text begins with layer
}
_PREFIXES = {"rope_context": "Rope", "rope_model": "Model", "rope_prompt_ids": "prompt_ids"}
_PATHS = re.compile(
    r"\b(?:configs?(?:\[\d+\])?|args|data|info|out)->(?:positions\.|fused->(?:cache->(?![kv]\b))?)?"
    r"|\bpositions->"
)
_SLOTS = re.compile(r"\bslots_i(?:32|64)\b")
_DTYPE = re.compile(r"\bROPE_DTYPE_(\w+)")
# As the value of a field, in brackets or as one that it must have, or as a keyword.
_CHOICES = re.compile(
    r"(\(|must be )?\bROPE_(?:NORM_)?(PAIRING|SCALING|ANGLE|ROUNDING|LAYOUT|OPERATION|KIND|SPAN|ORDER)_(\w+)"
)
_NORMS = re.compile(r"\b([qkv])_norm(?:(->|_)|\b)")
_SCALES = re.compile(r"\b(?:(cache|source)->([kv])|([qkv]|rest)_out)\.scale\b(->)?")
_POINTERS = re.compile(r" \((?:NULL|0x[0-9a-f]+)\)")
_MEMORY = re.compile(r"\bcache_([kv])\b")
_FREED = re.compile(r"\b(norms\.[qkv]\.\w+|[qkv]\w*|cache\.[kv])(?:\.data)? \(NULL\) must not be NULL.*")


#: How a key that changes nothing is accepted, where a text is refused because of it.
ACCEPT = "with Model(.., accepted_keys=[..])"


def translated(message: str, who: str | None = None) -> str:
    """A message of the library with the names that its user knows: no structs, no pointers. who: speaks, if
    not the method that has the name of the function."""
    speaker, colon, text = message.partition(": ")
    if not colon or not speaker.startswith("rope_"):
        return message
    if speaker.startswith(("rope_apply", "rope_prepared")):
        text = text.replace("config->", "the Rope's ")
    text = _DTYPE.sub(lambda m: _dtype(m[1]), _PATHS.sub("", text).replace("_norm->x[0]", "_norm->x"))
    text = _CHOICES.sub(lambda m: (m[1] or f"{m[2].lower()}=") + repr(m[3].lower()), text)
    text = text.replace("must be ROUNDED or EAGER", "must be 'rounded' or 'eager'")
    text = _SCALES.sub(lambda m: (f"{m[1]}.{m[2]}_scale" if m[1] else f"scales.{m[3]}") + ("." if m[4] else ""), text)
    text = text.replace("cache->", "cache.").replace("source->", "source.")
    text = _MEMORY.sub(r"cache.\1", _SLOTS.sub("slots", text))
    text = _NORMS.sub(lambda m: f"norms.{m[1]}" + ("." if m[2] else ""), text)
    text = _FREED.sub(r"\1 has no memory: its storage was freed", text)
    text = text.replace("accept it by name", f"accept it by name {ACCEPT}")
    text = _POINTERS.sub("", text).replace("must be NULL", "must be None")
    text = text.replace("the context has", "the Rope has")
    if who is None:
        who = _SPEAKERS.get(speaker)
    if who is None:
        prefixes = (new for old, new in _PREFIXES.items() if speaker.startswith(old))
        who = next(prefixes, speaker)
    for name, table in _NAMED.items():
        text = text.replace(f"{name} (0) is required", f"{name} is required: {', '.join(table)}")
    return f"{who}: {text}" if who else text


def error(status: int, who: str | None = None) -> Exception:
    """The exception of a failed call on this thread, with the library's message. who: of translated().

    Anything not listed is a RuntimeError, as is NotImplementedError.
    """
    message = ffi.string(lib.rope_last_error()).decode(errors="replace")
    return _EXCEPTIONS.get(status, RuntimeError)(translated(message, who))


def check(status: int) -> None:
    if status:
        raise error(status)


def range_of(kind: Any) -> range:
    """The numbers that an integer type of C has. kind: its name, or what cffi.typeof gives."""
    known = _RANGES.get(kind)
    if known is None:
        bits = 8 * int(ffi.sizeof(kind))
        negative = int(ffi.cast(kind, -1)) < 0
        known = _RANGES[kind] = range(-(1 << bits - 1), 1 << bits - 1) if negative else range(1 << bits)
    return known


_RANGES: dict[Any, range] = {}
for _kind in ("int32_t", "int64_t"):  # known before Dynamo, which cannot ask cffi, comes here
    range_of(_kind)


def integer(
    value: Any, name: str, kind: Any = "int64_t", low: int | None = None, high: int | None = None
) -> int:
    """value as an int of Python, or an error that names the argument and the rule.

    kind: the type of C that takes it, whose range it has where low or high does not narrow it.
    """
    found: int = value
    if type(value) is not int:  # a symbol of Dynamo, which is one, cannot be asked more
        try:
            if is_bool(value):
                raise TypeError
            found = operator.index(value)
        except TypeError:
            raise TypeError(f"{name} is {value!r}, and must be an int") from None
    known = range_of(kind)
    low, high = known[0] if low is None else low, known[-1] if high is None else high
    if not low <= found <= high:
        raise ValueError(f"{name} is {found}, and must be from {_power(low)} to {_power(high)}")
    return found


def is_bool(value: Any) -> bool:
    """Whether it is a bool, of Python or of a library of arrays, whose __index__ gives 0 or 1."""
    if isinstance(value, bool):
        return True
    dtype = getattr(value, "dtype", None)
    if dtype is None:
        return False
    kind = getattr(dtype, "kind", None)  # those of torch have none
    return str(dtype).endswith("bool") if kind is None else bool(kind == "b")


def is_integer(value: Any) -> bool:
    """Whether it is taken for the int in it, as numpy.int64(7) and an array without dimensions are."""
    return type(value) is int or (hasattr(value, "__index__") and not getattr(value, "shape", None))


def ints(values: Sequence[Any], name: str, kind: str = "int64_t") -> list[int]:
    """The ints of a list. kind: the type of C that takes them."""
    found = []
    for i, value in enumerate(values):
        if not is_integer(value):
            raise TypeError(f"{name} as a list must hold ints; nested ones need an array")
        found.append(integer(value, f"{name}[{i}]", kind))
    return found


def real(value: Any, name: str) -> float:
    """value as a float, or an error that names the argument: texts are no numbers."""
    try:
        if isinstance(value, (str, bytes, bytearray)):
            raise TypeError
        return float(value)
    except (TypeError, ValueError, OverflowError):
        raise TypeError(f"{name} is {value!r}, and must be a number") from None


def positive(value: Any, name: str) -> float:
    """value as a positive, finite float, or an error that names the argument and the rule."""
    found = real(value, name)
    if not 0 < found < math.inf:
        raise ValueError(f"{name} is {found:g}, and must be positive and finite")
    return found


def _range(kind: Any) -> str:
    if kind.cname == "double":
        return "a number that a double holds"
    return f"from {_power(range_of(kind)[0])} to {_power(range_of(kind)[-1])}"


def _power(bound: int) -> str:
    """-2**63, 2**63 - 1, or a small number."""
    bits = (-bound if bound < 0 else bound + 1).bit_length() - 1
    if bits < 31 or bound not in (-(1 << bits), (1 << bits) - 1):
        return str(bound)
    return f"-2**{bits}" if bound < 0 else f"2**{bits} - 1"


def length_or_none(length: int) -> int | None:
    """A length of sequences, where the library says INT64_MAX for any."""
    return None if length == range_of("int64_t")[-1] else int(length)


def number(table: Mapping[str, int], name: object, what: str) -> int:
    """table[name], or a ValueError that lists the names."""
    try:
        return table[name]  # type: ignore[index]
    except (KeyError, TypeError):
        raise ValueError(f"{what} is {name!r}, and must be one of {', '.join(table)}") from None


def arrays_of(format: str) -> int:
    """Of how many arrays rows of cos and sin are: 2 is (cos, sin)."""
    return int(lib.rope_cos_sin_tensors(number(COS_SIN_FORMATS, format, "format")))


def width_of(format: str, pairs: int) -> int:
    """Elements of a row in each of its arrays."""
    return int(lib.rope_cos_sin_width(number(COS_SIN_FORMATS, format, "format"), pairs))


# rope_config: which fields are names, and which are tables or lists, with their C type.
_NAMED = {
    "pairing": PAIRINGS,
    "angle": ANGLES,
    "rounding": ROUNDINGS,
    "inv_freq_dtype": DTYPES,
    "scaling": SCALINGS,
}
_HIDDEN = {"struct_size", "reserved", "reserved2", "device", "device_index", "table_length"}
_FIELDS = {
    name: field.type for name, field in ffi.typeof("rope_config").fields if name not in _HIDDEN
}
_TABLES = {name: f"{kind.item.cname}[]" for name, kind in _FIELDS.items() if kind.kind == "pointer"}
_LISTS = {name: kind for name, kind in _FIELDS.items() if kind.kind == "array"}
FIELDS = tuple(_FIELDS)
# What cffi refuses before the library can say its rule; other integers have the range of their type.
_RULES = {"head_dim": "be even and from 2 to 1024", "rotary_dim": "be even and from 0 to head_dim"}


def _plain_frequency(value: Any) -> Any:
    """frequency as lists: [axes, heads, pairs], or [axes, pairs] for all heads."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    try:
        rows = [head if hasattr(head[0], "__len__") else [head] for head in value]
        plain = [[[real(x, "frequency") for x in pairs] for pairs in heads] for heads in rows]
    except (TypeError, ValueError, IndexError):
        raise TypeError("frequency must be numbers [axes, heads, pairs] or [axes, pairs]") from None
    shapes = {(len(heads), len(pairs)) for heads in plain for pairs in heads}
    if len(shapes) != 1:
        raise ValueError("frequency must have as many heads and pairs for every axis and head")
    return plain


def _plain(name: str, value: Any) -> Any:
    """A value of NumPy, torch or Python as Python's own: configurations are kept as text."""
    if name == "frequency":
        return _plain_frequency(value)
    if len(getattr(value, "shape", ())) > 1:
        raise ValueError(f"{name} has shape {tuple(value.shape)}, and must have one dimension")
    if hasattr(value, "tolist"):  # arrays, and scalars of NumPy
        value = value.tolist()
    if name in _TABLES or name in _LISTS:
        if isinstance(value, (str, bytes)) or not hasattr(value, "__iter__"):
            raise TypeError(f"{name} is {value!r}, and must be a sequence of numbers")
        return [_entry(_FIELDS[name].item, v, f"{name}[{i}]") for i, v in enumerate(value)]
    if isinstance(value, bool):
        return int(value)
    return value


def _entry(kind: Any, value: Any, name: str) -> Any:
    """kind: of C."""
    return real(value, name) if kind.cname == "double" else integer(value, name, kind)


def plain(config: Mapping[str, Any]) -> Config:
    """A configuration in Python's own values, without those that were not given."""
    return {name: _plain(name, value) for name, value in config.items() if value is not None}


def to_struct(config: Mapping[str, Any], device: int = -1) -> tuple[Any, list[Any]]:
    """rope_config of a plain() dictionary, and what must outlive it. device: a CUDA index, or -1."""
    struct = ffi.new("rope_config*")
    struct.struct_size = ffi.sizeof("rope_config")
    struct.device = lib.ROPE_DEVICE_CPU if device < 0 else lib.ROPE_DEVICE_CUDA
    struct.device_index = max(device, 0)
    keep: list[Any] = []
    length = None
    for name, value in config.items():
        if value is None:
            continue
        if name not in _FIELDS:
            raise TypeError(f"{name!r} is not a field of a configuration: {', '.join(FIELDS)}")
        if name in _TABLES:
            entries = value
            if name == "frequency":
                sizes = {"axes": len(value), "freq_heads": len(value[0])}
                for size, own in sizes.items():
                    if config.get(size) not in (None, own):
                        raise ValueError(f"{size} is {config[size]}, and frequency has {own}")
                    setattr(struct, size, own)
                entries = [x for heads in value for pairs in heads for x in pairs]
                value = value[0][0]
            if length not in (None, len(value)):
                raise ValueError(f"{name} has {len(value)} entries, another table {length}")
            length = len(value)
            table = ffi.new(_TABLES[name], entries)
            keep.append(table)
            setattr(struct, name, table)
        elif name in _NAMED:
            setattr(struct, name, number(_NAMED[name], value, name))
        elif name in _LISTS:
            most = _LISTS[name].length
            if len(value) > most:
                raise ValueError(f"{name} has {len(value)} entries, and must have {most} at most")
            setattr(struct, name, value + [0] * (most - len(value)))
        else:
            try:
                setattr(struct, name, value)
            except OverflowError:
                rule = _RULES.get(name) or f"be {_range(_FIELDS[name])}"
                raise ValueError(f"{name} is {value}, and must {rule}") from None
            except TypeError:
                kind = "a number" if _FIELDS[name].cname == "double" else "an int"
                raise TypeError(f"{name} is {value!r}, and must be {kind}") from None
    struct.table_length = length or 0
    return struct, keep


def from_struct(struct: Any) -> Config:
    """The fields of a rope_config that are not zero, by name."""
    config: Config = {}
    for name in FIELDS:
        value = getattr(struct, name)
        if name in _TABLES:
            if value != ffi.NULL and name == "frequency":
                pairs, heads = struct.table_length, max(1, struct.freq_heads)
                flat = [list(value[i * pairs : (i + 1) * pairs]) for i in range(
                    max(1, struct.axes) * heads)]  # fmt: skip
                config[name] = [flat[i : i + heads] for i in range(0, len(flat), heads)]
            elif value != ffi.NULL:
                config[name] = list(value[0 : struct.table_length])
        elif name in _NAMED:
            if value:
                config[name] = next(k for k, v in _NAMED[name].items() if v == value)
        elif name in _LISTS:  # one entry per axis
            sections = list(value)
            if any(sections):
                config[name] = sections[: max(struct.axes, 1)]
        elif value:
            config[name] = value
    return config


def short(value: Any) -> str:
    """A value of a field, for people."""
    if isinstance(value, list) and len(value) > 6:
        return f"[{len(value)} numbers]"
    if isinstance(value, list) and value and isinstance(value[0], list):  # frequency
        return f"[{len(value)} x {len(value[0])} x {len(value[0][0])} numbers]"
    return repr(value)


def spec_of(configs: Sequence[Mapping[str, Any]]) -> str:
    """Configurations as text, a list of them if there are several: equal texts are equal Ropes."""
    texts = [json.dumps(c, sort_keys=True) for c in configs]
    return texts[0] if len(texts) == 1 else f"[{', '.join(texts)}]"
