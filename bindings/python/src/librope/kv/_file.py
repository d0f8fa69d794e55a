"""One KV file: its blocks, read and checked; arrays to a file and back."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import xxhash
from ml_dtypes import bfloat16

from .. import Rope, _arrays
from .._core import integer
from .._ffi import ffi
from . import _schema
from ._layers import Given, Ropes, given, rope_for
from ._schema import CHECKSUM_BYTES, SIZES, Info, Moved
from ._store import AHEAD, AHEAD_OF_HEADER, SUFFIX, Place, place

DTYPES: dict[str, Any] = {"float32": np.float32, "float16": np.float16, "bfloat16": bfloat16}
BLOCK = 2 << 20  # bytes in memory at once: they stay in a core's caches from reading to writing


@dataclass(frozen=True)
class Block:
    """A stretch of a tensor: heads of adjacent tokens, in the order of the file."""

    name: str  # of the tensor
    array: Any  # [tokens, heads, channels], or [heads, tokens, channels] under "hnd"
    token: int  # the first, counted from that of the file
    memory: Any  # its bytes


class Reader:
    """An open KV file. ValueError: it is none, truncated, or contradicts itself."""

    def __init__(self, where: Place, ahead: int = AHEAD) -> None:
        self.where = where
        self._file = where.read(ahead)
        try:
            size = self._file.seek(0, os.SEEK_END)
            self._file.seek(0)
            first = self._file.read(8)
            text = self._file.read(_schema.header_size(first, size))
            self.info, self.metadata = _schema.parse(text, size)
            self._start = 8 + len(text)
            self._file.seek(size - CHECKSUM_BYTES * (1 + len(self.info.shapes())))
            self._table = self._file.read()
            self._expect(0, xxhash.xxh3_128_digest(self.metadata.encode()), "the metadata")
        except ValueError as e:
            self.close()
            raise ValueError(f"{where}: {e}") from None
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._file.close()

    @property
    def checksum(self) -> str:
        """Of the whole file: of its table of checksums."""
        return str(xxhash.xxh3_128_hexdigest(self._table))

    def checksum_of(self, name: str) -> bytes:
        row = 1 + list(self.info.shapes()).index(name)
        return self._table[CHECKSUM_BYTES * row :][:CHECKSUM_BYTES]

    def blocks(self, memory: int = BLOCK) -> Iterator[Block]:
        """All of it, in the order of the file, through one buffer, whose content may be changed: of that many
        bytes, or of a token if that is more. ValueError behind the last block of a tensor: its data are
        damaged."""
        self._file.seek(self._start)
        for number, (name, shape) in enumerate(self.info.shapes().items()):
            told, buffer = xxhash.xxh3_128(), memoryview(bytearray(0))
            for token, part in _parts(shape, self.info.layout, memory // SIZES[self.info.dtype]):
                size = SIZES[self.info.dtype] * part[0] * part[1] * part[2]
                if len(buffer) < size:
                    buffer = memoryview(bytearray(size))
                self._fill(buffer[:size])
                told.update(buffer[:size])
                array = np.frombuffer(buffer[:size], DTYPES[self.info.dtype]).reshape(part)
                yield Block(name, array, token, buffer[:size])
            try:
                self._expect(1 + number, told.digest(), name)
            except ValueError as e:
                raise ValueError(f"{self.where}: {e}") from None

    def _fill(self, memory: memoryview) -> None:
        while memory:
            count = self._file.readinto(memory)
            if not count:
                raise ValueError(f"{self.where}: it has become shorter while it was read")
            memory = memory[count:]

    def _expect(self, row: int, found: bytes, what: str) -> None:
        if found != self._table[CHECKSUM_BYTES * row :][:CHECKSUM_BYTES]:
            raise ValueError(f"the checksum of {what} does not match: the file is damaged")


def _parts(shape: tuple[int, int, int], layout: str, elements: int) -> Iterator[tuple[int, tuple[int, int, int]]]:
    """Cuts a tensor into stretches of at most that many elements, but of a token of a head at least: the first
    token of each, and its shape."""
    outer, inner, dim = shape
    if layout == "nhd":
        step = max(1, elements // (inner * dim))
        for token in range(0, outer, step):
            yield token, (min(step, outer - token), inner, dim)
        return
    heads = max(1, elements // (inner * dim))  # whole ones, where they fit
    tokens = min(inner, max(1, elements // dim))
    for head in range(0, outer, heads):
        for token in range(0, inner, tokens):
            yield token, (min(heads, outer - head), min(tokens, inner - token), dim)


def write_blocks(where: Place, info: Info, blocks: Iterator[Block], known: Mapping[str, bytes]) -> None:
    """A file of these blocks. known: checksums of tensors that need not be made."""
    header = memoryview(_schema.header(info))
    rows = [xxhash.xxh3_128_digest(_schema.text_of(info).encode())]
    sums = {name: xxhash.xxh3_128() for name in info.shapes()}
    with where.replacing() as file:
        _write(file, header)
        for block in blocks:
            if block.name not in known:
                sums[block.name].update(block.memory)
            _write(file, block.memory)
        rows += [known.get(name) or told.digest() for name, told in sums.items()]
        _write(file, memoryview(b"".join(rows)))


def _write(file: Any, memory: memoryview) -> None:
    while memory:
        memory = memory[file.write(memory) :]


def inspect(path: str | os.PathLike[str]) -> Info:
    """What a file says of itself. ValueError: it is no KV file, or it contradicts itself; the name of the file is
    in the message. Its keys and values are not read: verify() does."""
    return info_of(place(path))


def info_of(where: Place) -> Info:
    with Reader(where, AHEAD_OF_HEADER) as file:
        return file.info


def read(
    path: str | os.PathLike[str], *, rope: Ropes | None = None, frequency_set: int | None = None
) -> tuple[Info, Any, Any]:
    """Info, keys and values (None, if the file has none) as NumPy arrays, bfloat16 those of ml_dtypes. In torch::

        torch.from_numpy(k.view(numpy.int16)).view(torch.bfloat16)      # or torch.from_numpy(k) for the others

    Args:
        rope, frequency_set: how the keys must have been rotated: by this set of rope; None: by one of them. A
            librope.Model, or a dictionary of the Rope of each layer: by that of the file's layer.

    Raises:
        ValueError: no KV file, a damaged one, or keys of another RoPE.
    """
    with Reader(place(path)) as file:
        info = file.info
        if rope is not None:
            check_rope(file, given(rope), frequency_set)
        arrays = {n: np.empty(s, DTYPES[info.dtype]) for n, s in info.shapes().items()}
        flat = {n: x.reshape(-1).view(np.uint8) for n, x in arrays.items()}
        at = dict.fromkeys(flat, 0)
        for block in file.blocks():
            end = at[block.name] + len(block.memory)
            flat[block.name][at[block.name] : end] = block.memory
            at[block.name] = end
    return info, arrays["k"], arrays.get("v")


def check_rope(file: Reader, ropes: Given, frequency_set: int | None) -> None:
    """ValueError: no set of the rope, or not this one, turns keys as those of the file, at its positions."""
    try:
        rope = rope_for(file.info, ropes)
    except ValueError as e:
        raise ValueError(f"{file.where}: {e}") from None
    digests = {n: _schema.digest_of(rope, n) for n in _schema.sets_of(rope, frequency_set)}
    why = (f"its keys are of another RoPE: digest is {file.info.digest}, and must be "
           + " or ".join(dict.fromkeys(digests.values())))  # fmt: skip
    if len(digests) == 1:
        why += f" ({_schema.difference(file.info.own_rope, _schema.one_of(rope, min(digests)))})"
    for number, digest in digests.items():
        if digest == file.info.digest:
            try:
                file.info.at(rope=rope, frequency_set=number)
            except ValueError as e:
                why = str(e)
            else:
                return
    raise ValueError(f"{file.where}: {why}")


def write(
    path: str | os.PathLike[str],
    k: Any,
    v: Any = None,
    *,
    rope: Rope,
    first_position: int,
    layout: str,
    layer: int | None = None,
    keys: str = "rotated",
    frequency_set: int | None = None,
    note: str = "",
) -> Info:
    """A file of keys and values of adjacent tokens of one layer, complete or not at all. One that is there is replaced.

    Args:
        path: ends in .safetensors: jobs over a folder look at no others.
        k, v: float32, float16 or bfloat16, without gaps, as layout says; v may have another number of channels.
            Arrays of NumPy, torch on the CPU, or anything else in main memory.
        rope: what rotated the keys, or will.
        frequency_set: the set of rope that does; it must be given if rope has several.
        first_position: of the first token; each other has the position behind the one before.
        layout: "nhd" [tokens, heads, channels] or "hnd" [heads, tokens, channels].
        keys: "rotated", or "raw" where the cache holds keys before the rotation.
        note: free text, such as a hash of the prompt.

    Raises:
        ValueError, TypeError: an argument breaks its rule. Nothing has been written.
    """
    if not os.fspath(path).endswith(SUFFIX):
        raise ValueError(f"path is {os.fspath(path)!r}, and must end in {SUFFIX}: jobs over a folder look at no other files")
    views = {"k": _bytes("k", k)} | ({} if v is None else {"v": _bytes("v", v)})
    shape, dtype, _ = views["k"]
    if layout not in ("nhd", "hnd"):
        raise ValueError(f"layout is {layout!r}, and must be 'nhd' or 'hnd'")
    if len(shape) != 3:
        raise ValueError(f"k has shape {shape}, and must be [tokens, heads, channels] (nhd) or "
                         "[heads, tokens, channels] (hnd)")  # fmt: skip
    tokens, heads = shape[:2] if layout == "nhd" else shape[1::-1]
    for name, (other, kind, _) in views.items():
        if kind not in DTYPES:
            raise TypeError(f"{name} is {kind}, and must be one of {', '.join(DTYPES)}")
        if other[:-1] != shape[:-1] or kind != dtype:
            raise ValueError(f"{name} is {kind} {other}, and k {dtype} {shape}: both must have the same tokens, heads and "
                             "dtype")  # fmt: skip
    if isinstance(rope, Rope) and rope.freq_sets > 1 and frequency_set is None:
        raise ValueError(f"rope has {rope.freq_sets} frequency sets: frequency_set must say which turned the keys")
    first_position = integer(first_position, "first_position")
    layer = None if layer is None else integer(layer, "layer")
    frequency_set = None if frequency_set is None else integer(frequency_set, "frequency_set")
    info = Info(
        rope=rope, first_position=first_position, tokens=tokens, heads=heads, head_dim=shape[2], dtype=dtype,
        layout=layout, v_head_dim=views["v"][0][2] if v is not None else None, keys=keys,
        frequency_set=0 if frequency_set is None else frequency_set, layer=layer, note=note,
    )  # fmt: skip
    blocks = (Block(name, None, 0, memory) for name, (_, _, memory) in views.items())
    write_blocks(place(path), info, blocks, {})
    return info


def _bytes(name: str, x: Any) -> tuple[tuple[int, ...], str, memoryview]:
    """Shape, dtype and memory of an array without gaps."""
    view = _arrays.read(x, name, False)
    shape, strides, dtype = view[1](view[0], name)
    size = 1
    for n, stride in zip(shape[::-1], strides[::-1], strict=True):
        if n > 1 and stride != size:
            raise ValueError(f"{name} has strides {strides}, and must lie in memory without gaps: such a copy is what "
                             ".contiguous() of torch and numpy.ascontiguousarray() make")  # fmt: skip
        size *= n
    if view[3] >= 0:
        raise ValueError(f"{name} is on a CUDA device, and must be in main memory")
    return shape, dtype, memoryview(ffi.buffer(ffi.cast("char*", view[2]), size * SIZES.get(dtype, 1)))


def moved_info(file: Reader, job: str | None, **changes: Any) -> Info:
    """What the file says after a move."""
    last = file.info.moved
    earlier = () if last is None else last.earlier + (() if last.job is None else (last.job,))
    before = Moved(job, file.info.first_position, file.info.family, file.checksum, earlier)
    return file.info.at(moved=before, **changes)
