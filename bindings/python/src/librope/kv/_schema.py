"""What a KV file says of itself: the header of docs/kv-file.md, written and strictly read.

The header of a file is what header() makes of its Info, and nothing else: parse() makes it anew from what it
has read, and refuses what differs by name.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from .. import Rope
from .._core import integer
from .._kv_mark import KEY

VERSION = 1
CHECKSUM = "xxh3_128"
CHECKSUM_BYTES = 16
_CODES = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}
SIZES = {"float32": 4, "float16": 2, "bfloat16": 2}
#: Bytes of a header. 512 pairs of dozens of frequency sets fit; read as JSON they are some twenty times as many.
LIMIT = 1 << 20


@dataclass(frozen=True)
class Moved:
    """The last move of a file: by which job, and what it was before."""

    job: str | None
    first_position: int
    rope: str  # digest of its RoPE, at all lengths
    checksum: str  # of the table of checksums that the file had, in hexadecimal
    earlier: tuple[str, ...] = ()  # the names of the jobs before it


#: Fields of an Info that are integers, and the least that each may be.
_INTEGERS = {"first_position": -(2**63), "tokens": 1, "heads": 1, "head_dim": 1, "frequency_set": 0, "v_head_dim": 1,
             "layer": 0}  # fmt: skip


@dataclass(frozen=True)
class Info:
    """What a KV file says of itself."""

    rope: Rope  #: of one frequency set or several
    first_position: int
    tokens: int
    heads: int
    head_dim: int  #: channels of a head of the keys, as they lie in the file
    dtype: str  #: of keys and values
    layout: str  #: "nhd" [tokens, heads, channels] or "hnd" [heads, tokens, channels]
    v_head_dim: int | None = None  #: channels of a head of the values; None: keys alone
    keys: str = "rotated"  #: or "raw"
    frequency_set: int = 0  #: the one of rope that turned these keys
    layer: int | None = None
    note: str = ""  #: anybody's words
    moved: Moved | None = None

    def __post_init__(self) -> None:
        _check(self)

    @property
    def digest(self) -> str:
        """Of the rotation that turned these keys (docs/digest.md)."""
        return digest_of(self.rope, self.frequency_set)

    @property
    def own_rope(self) -> Rope:
        """The Rope of this file's frequency set."""
        return one_of(self.rope, self.frequency_set)

    @property
    def family(self) -> str:
        """Digest of its RoPE at all lengths: keys of LongRoPE's short and long frequencies are of one."""
        return self.own_rope.digest()

    @property
    def state(self) -> tuple[Any, ...]:
        """What a move changes: equal ones need none. A digest speaks of angles, and not of how far they are right."""
        return self.digest, self.own_rope.valid_from, self.own_rope.valid_below, self.first_position, self.keys

    def at(self, **changes: Any) -> Info:
        return replace(self, **changes)

    def shapes(self) -> dict[str, tuple[int, int, int]]:
        """Of the tensors of keys and values, in the order of the file."""
        dims = {"k": self.head_dim} | ({} if self.v_head_dim is None else {"v": self.v_head_dim})
        rows = (self.tokens, self.heads) if self.layout == "nhd" else (self.heads, self.tokens)
        return {name: (*rows, dim) for name, dim in dims.items()}

    def sizes(self) -> dict[str, int]:
        """Bytes of each of them."""
        return {n: SIZES[self.dtype] * a * b * c for n, (a, b, c) in self.shapes().items()}

    def told(self) -> dict[str, Any]:
        """The metadata as plain values."""
        roles = {"k": "key", "v": "value"}
        return {
            "version": VERSION,
            "digest": self.digest,
            "rope": [dict(c) for c in self.rope.configs],
            "frequency_set": self.frequency_set,
            "keys": self.keys,
            "layer": self.layer,
            "first_position": self.first_position,
            "tokens": self.tokens,
            "heads": self.heads,
            "head_dim": self.head_dim,
            "rotary_dim": self.rope.rotary_dim,
            "v_head_dim": self.v_head_dim,
            "dtype": self.dtype,
            "layout": self.layout,
            "tensors": {n: roles[n] for n in self.shapes()} | {"checksum": CHECKSUM},
            "note": self.note,
            "moved": None if self.moved is None else vars(self.moved) | {"earlier": list(self.moved.earlier)},
        }


def sets_of(rope: Rope, frequency_set: int | None) -> range:
    """The numbers of frequency sets that are meant: this one, or with None all. ValueError: there is no such."""
    every = range(rope.freq_sets)
    if frequency_set is None:
        return every
    frequency_set = integer(frequency_set, "frequency_set")
    if frequency_set not in every:
        raise ValueError(f"frequency_set is {frequency_set}, and the rope has {rope.freq_sets}")
    return every[frequency_set : frequency_set + 1]


@lru_cache(64)
def one_of(rope: Rope, frequency_set: int) -> Rope:
    return Rope.from_fields(rope.configs[frequency_set])


@lru_cache(64)
def digest_of(rope: Rope, frequency_set: int) -> str:
    """Of the frequencies that turn keys. Where they depend on the length of the sequence, Rope.digest speaks of
    all lengths; keys were turned at one, and their digest is that of its frequencies."""
    return at_any_length(one_of(rope, frequency_set)).digest()


@lru_cache(64)
def at_any_length(one: Rope) -> Rope:
    """The same angles, without the lengths for which the scaling means them."""
    if one.valid_from == 0 and one.valid_below is None:
        return one
    kept = {n: getattr(one, n) for n in ("head_dim", "pairing", "rotary_dim", "rotary_offset", "attention_factor")}
    return Rope.from_fields({**kept, "angle": one.config.get("angle"), "inv_freq": one.inv_freq_of(0)})


def setting(rope: Rope, name: str) -> Any:
    """A field of a Rope of one set, also where its config does not tell it, since it is the usual one."""
    usual = "float32" if name == "angle" else getattr(rope, name, None)
    return rope.config.get(name, usual)


def difference(keys: Rope, wanted: Rope) -> str:
    """In words: the fields in which two Ropes of one set differ."""
    told = []
    for name in sorted({*keys.config, *wanted.config}):
        was, must = setting(keys, name), setting(wanted, name)
        if was != must:
            told.append(f"other {name}" if isinstance(was or must, (list, tuple)) else f"{name} {was}, and not {must}")
    return "; ".join(told)


def _check(info: Info) -> None:
    """ValueError: a field breaks its rule, named as in docs/kv-file.md."""
    for name, low in _INTEGERS.items():
        value = getattr(info, name)
        if value is None and name in ("v_head_dim", "layer"):
            continue
        if type(value) is not int or not low <= value < 2**63:
            raise ValueError(f"{name} is {value!r}, and must be an integer from {low} on")
    if info.first_position + info.tokens > 2**63:
        raise ValueError(f"first_position is {info.first_position}, and {info.tokens} tokens from there on pass 2^63")
    for name, choices in (("dtype", tuple(_CODES)), ("layout", ("nhd", "hnd")), ("keys", ("rotated", "raw"))):
        if getattr(info, name) not in choices:
            raise ValueError(f"{name} is {getattr(info, name)!r}, and must be one of {', '.join(choices)}")
    if not _is_text(info.note):
        raise ValueError(f"note is {info.note!r}, and must be a text")
    moved = info.moved
    if moved is not None and not (
        type(moved.first_position) is int and (moved.job is None or _is_text(moved.job)) and all(map(_is_text, (moved.rope, moved.checksum, *moved.earlier)))
    ):
        raise ValueError(f"moved is {moved}, and must be job (a text or null), first_position, rope, checksum and earlier (texts)")
    rope = info.rope
    if not isinstance(rope, Rope):
        raise TypeError(f"rope is a {type(rope).__qualname__}, and must be a librope.Rope")
    sets_of(rope, info.frequency_set)
    if rope.axes > 1:
        raise ValueError(f"the rope has {rope.axes} axes, and a KV file one position for each token")
    if rope.freq_heads > 1:
        raise ValueError("the rope has frequencies of each head, and the blocks of a KV file any heads")
    if info.head_dim not in (rope.head_dim, rope.rotary_dim):
        raise ValueError(f"head_dim is {info.head_dim}, and must be {rope.head_dim}, that of the rope, or "
                         f"{rope.rotary_dim}, its rotary_dim")  # fmt: skip
    last, reach = info.first_position + info.tokens - 1, info.own_rope.valid_below
    if reach is not None and last >= reach - 1:
        raise ValueError(f"first_position is {info.first_position}, and the last of {info.tokens} tokens at {last}: it must be "
                         f"below {reach - 1}, because in a sequence of {reach} tokens the rope has other frequencies "
                         "than for its seq_len")  # fmt: skip


def _is_text(value: Any) -> bool:
    """Unicode: halves of a character can be written in JSON, and other languages read none."""
    return isinstance(value, str) and not any("\ud800" <= c <= "\udfff" for c in value)


def text_of(info: Info) -> str:
    return json.dumps(info.told(), allow_nan=False)


def header(info: Info) -> bytes:
    """The bytes in front of the tensors, in safetensors' format."""
    entries: dict[str, Any] = {"__metadata__": {KEY: text_of(info)}, **_entries(info)}
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    if len(text) > LIMIT:
        raise ValueError(f"the header has {len(text)} bytes, and must have at most {LIMIT}: note has {len(info.note)} characters, "
                         f"the rope {len(info.rope.spec)}, and the names of jobs {len(str(info.moved))}")  # fmt: skip
    return len(text).to_bytes(8, "little") + text


def _entries(info: Info) -> dict[str, Any]:
    """The tensors of the header. The table of checksums is the last: who streams a file knows it at the end."""
    entries, at, sizes = {}, 0, info.sizes()
    for name, shape in info.shapes().items():
        entries[name] = {"dtype": _CODES[info.dtype], "shape": list(shape), "data_offsets": [at, at + sizes[name]]}
        at += sizes[name]
    table = [1 + len(sizes), CHECKSUM_BYTES]
    entries["checksum"] = {"dtype": "U8", "shape": table, "data_offsets": [at, at + table[0] * table[1]]}
    return entries


def header_size(first: bytes, size: int) -> int:
    """Of the header behind its first 8 bytes, in a file of that size."""
    length = int.from_bytes(first, "little")
    if len(first) < 8 or length > size - 8:
        raise ValueError("no KV file, or truncated: it does not begin with the header of a .safetensors file")
    if length > LIMIT:
        raise ValueError(f"no KV file: its header has {length} bytes, and must have at most {LIMIT}")
    return length


def _json(text: str) -> Any:
    """Of JSON, in which a name stands once: readers differ in which of two they take. ValueError: it is none."""

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        entries = dict(pairs)
        if len(entries) < len(pairs):
            names = [name for name, _ in pairs]
            raise _Twice(next(name for name in entries if names.count(name) > 1))
        return entries

    def none(constant: str) -> Any:
        raise ValueError(f"{constant} is no JSON")

    try:
        return json.loads(text, object_pairs_hook=once, parse_constant=none)
    except RecursionError:
        raise ValueError("too deep") from None


class _Twice(Exception):
    """The name that stands twice in an object."""


def parse(text: bytes, size: int) -> tuple[Info, str]:
    """The Info of a header and its metadata as they stand there. size: of the file. ValueError: what differs
    from docs/kv-file.md, by name."""
    try:
        # As safetensors demands: UTF-8 from { to }, and blanks behind.
        if text[:1] != b"{" or text.rstrip(b" ")[-1:] != b"}":
            raise ValueError
        entries = _json(text.decode())
        metadata = entries.pop("__metadata__", {})
        said = metadata[KEY]
    except _Twice as e:
        raise ValueError(f"{e.args[0]!r} stands twice in its header") from None
    except (ValueError, AttributeError, KeyError, TypeError):
        raise ValueError(f"no KV file: its header has no metadata {KEY}") from None
    others = sorted(set(metadata) - {KEY})
    if others:
        raise ValueError(f"its metadata has {others[0]!r} beside {KEY}, which no checksum covers")
    info = _parse_metadata(said)
    wanted = _entries(info)
    for name in sorted(set(entries) ^ set(wanted)):
        raise ValueError(f"tensor {name!r} is {'not there' if name in wanted else 'none of a KV file'}")
    for name in wanted:
        if _plain(entries[name]) != _plain(wanted[name]):
            raise ValueError(f"tensor {name!r} is {_plain(entries[name])}, and its metadata say {_plain(wanted[name])}")
    whole = 8 + len(text) + int(wanted["checksum"]["data_offsets"][1])
    if size != whole:
        raise ValueError(f"it has {size} bytes, and must have {whole}: {'truncated' if size < whole else 'too long'}")
    return info, said


def _parse_metadata(said: Any) -> Info:
    try:
        told = _json(said)
        version = told["version"]
    except _Twice as e:
        raise ValueError(f"{e.args[0]!r} stands twice in its metadata {KEY}") from None
    except (ValueError, TypeError, KeyError):
        raise ValueError(f"its metadata {KEY} is not that of a KV file: {said!r:.60}") from None
    if version != VERSION:
        raise ValueError(f"version is {version!r}, and this librope reads {VERSION}")
    try:
        rope = Rope.sets([Rope.from_fields(fields) for fields in told["rope"]])
    except (ValueError, TypeError, KeyError, AttributeError, NotImplementedError) as e:
        raise ValueError(f"its rope is none: {e}") from None
    try:
        last = told.get("moved")
        moved = None if last is None else Moved(**{n: last[n] for n in ("job", "first_position", "rope", "checksum")}, earlier=tuple(last["earlier"]))
    except (KeyError, TypeError):
        raise ValueError(f"moved is {last}, and must be job, first_position, rope, checksum and earlier") from None
    try:
        names = ("first_position", "tokens", "heads", "head_dim", "dtype", "layout", "v_head_dim", "keys",
                 "frequency_set", "layer", "note")  # fmt: skip
        info = Info(rope=rope, moved=moved, **{n: told[n] for n in names})
    except KeyError as e:
        raise ValueError(f"{e.args[0]} is not in its metadata") from None
    wanted = info.told()
    for name in sorted((set(told) | set(wanted)) - {"rope"}):  # a number of rope may be written in several ways
        if name not in wanted or name not in told:
            raise ValueError(f"{name} is {'not in its metadata' if name in wanted else 'no metadata of a KV file'}")
        if _plain(told[name]) != _plain(wanted[name]):
            raise ValueError(f"{name} is {_plain(told[name])}, and the rest of the metadata say {_plain(wanted[name])}")
    return info


def _plain(value: Any) -> str:
    return json.dumps(value, sort_keys=True)
