"""Shard: the tokens of a sequence that one of several ranks has (context parallelism)."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from . import _arrays, _core
from ._choices import ShardScheme
from ._core import SHARD_SCHEMES, check, integer, ints, number
from ._ffi import ffi, lib
from ._int32 import read_int32
from ._rules import INTEGERS, check_sequences, check_vector, contiguous

_LEVELS = "/"  # between the two levels in a text


@dataclass(frozen=True)
class Shard:
    """Which tokens of the sequences this process has: rope.apply_qk(q, k, 0, shard=shard).

    Arrays are then those of this rank, and positions (an int), offsets, cu_seqlens and freq_sets those
    of whole sequences, the same on every rank. No position ids are made. What the ranks compute, put
    together, has the bits that one process computes.

    Args:
        scheme: a librope.ShardScheme: "contiguous" (Ulysses, plain ring attention, DTensor), "zigzag"
            (Megatron-LM, TransformerEngine, PyTorch's context_parallel, MaxText), "striped", "heads".
        rank: of this process, 0 to world - 1.
        world: how many ranks share the tokens.
        block: tokens of a stripe of "striped"; 1, if not given.
        per_document: True: each sequence of cu_seqlens is divided by itself, and its length must
            divide (packed sequences of Megatron-LM). False: the row is divided as a whole.
        inner: how a second group of ranks divides what a rank of this one has: ring attention and
            Ulysses are Shard("zigzag", ring_rank, ring, inner=Shard("contiguous", rank, ulysses)).

    Raises:
        ValueError: an unknown scheme, a rank that is not below world, a level of a level.
    """

    scheme: ShardScheme
    rank: int
    world: int
    block: int = 0
    per_document: bool = False
    inner: Shard | None = None
    #: The shard as text: equal texts are equal shards. Operators of PyTorch carry it.
    text: str = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        scheme = number(SHARD_SCHEMES, self.scheme, "scheme")
        level = [self.scheme, *(_whole(getattr(self, name), name) for name in ("rank", "world", "block"))]
        if not 0 <= self.rank < self.world:
            raise ValueError(f"rank is {self.rank}, and must be from 0 to {self.world - 1}: world is {self.world}")
        if self.block < 0 or (self.block > 0 and scheme != SHARD_SCHEMES["striped"]):
            raise ValueError(f"block is {self.block}, and must be 0 with {self.scheme!r}, or positive with 'striped'")
        if type(self.per_document) is not bool:
            raise TypeError(f"per_document is {self.per_document!r}, and must be True or False")
        text = ",".join(map(str, [*level, int(self.per_document)]))
        if self.inner is not None:
            if not isinstance(self.inner, Shard):
                raise TypeError(f"inner is a {type(self.inner).__qualname__}, and must be a librope.Shard")
            if self.inner.inner is not None or self.inner.per_document:
                raise ValueError("inner has an inner or per_document itself, which it must not: it divides a row")
            text += _LEVELS + self.inner.text
        object.__setattr__(self, "text", text)

    @classmethod
    def of_mesh(
        cls, mesh: Any, scheme: ShardScheme, *, block: int = 0, per_document: bool = False, inner: Shard | None = None
    ) -> Shard:
        """That of this process in a torch.distributed.DeviceMesh of one dimension, such as mesh["cp"].

        Ring attention and Ulysses are Shard.of_mesh(mesh["ring"], "zigzag",
        inner=Shard.of_mesh(mesh["ulysses"], "contiguous")). PyTorch's context_parallel(mesh) shares as
        "zigzag", with its default load balancer.
        """
        if mesh.ndim != 1:
            raise ValueError(f"mesh has {mesh.ndim} dimensions, and must have one: mesh['cp'] is that of a name")
        return cls(scheme, mesh.get_local_rank(), mesh.size(), block, per_document, inner)

    @staticmethod
    def of_text(text: str) -> Shard:
        """The inverse of the attribute text."""
        return _of_text(text)

    def ids(self, tokens: int, positions: int = 0, *, offsets: Any = None, cu_seqlens: Any = None) -> Any:
        """The positions of the tokens of this rank, for what needs them: int64 [tokens].

        tokens: of this rank. positions, offsets, cu_seqlens: as in calls, in main memory, or lists of
        ints. Raises what a call would raise.
        """
        return self._write(tokens, positions, offsets, cu_seqlens)[0]

    def numbers(self, tokens: int, *, cu_seqlens: Any = None) -> Any:
        """Which tokens of a row of all ranks the `tokens` of this rank are: int64 [tokens].

        x[shard.numbers(len(x) // world)] is what the rank has of x.
        """
        return self._write(tokens, 0, None, cu_seqlens)[1]

    def _write(self, tokens: int, positions: int, offsets: Any, cu_seqlens: Any) -> tuple[Any, Any]:
        np = _arrays.np
        if np is None:
            raise TypeError("the ids of a librope.Shard are NumPy arrays: install numpy")
        count = integer(tokens, "tokens", low=0)
        p = ffi.new("rope_positions*")
        p.kind, p.offset = lib.ROPE_POSITIONS_OFFSET, integer(positions, "positions")
        p.shard = struct = self._struct()
        keep: list[Any] = [struct]

        def vector(x: Any, name: str, allowed: tuple[str, ...], sequences: int | None) -> int:
            """Its length. allowed: dtypes, of which lists get the last."""
            if isinstance(x, (range, list, tuple)):
                kind = allowed[-1]
                x = np.array([integer(n, f"{name}[{i}]", f"{kind}_t") for i, n in enumerate(ints(x, name))], kind)
            view = read_int32(x, name) if name == "cu_seqlens" else _arrays.read(x, name)
            if view[3] >= 0:
                raise ValueError(f"{name} is on CUDA device {view[3]}, and must be in main memory")
            meta = view[1](view[0], name)
            check_vector(name, meta[0], meta[2], allowed, sequences)
            contiguous(name, meta)
            keep.append(view)
            field = "cu_seqlens" if name == "cu_seqlens" else f"offsets_i{meta[2].removeprefix('int')}"
            setattr(p, field, ffi.cast("void*", view[2]))
            return meta[0][0]

        sequences = 1
        if cu_seqlens is not None:
            sequences = p.sequences = vector(cu_seqlens, "cu_seqlens", ("int32",), None) - 1
            check_sequences(sequences)
        if offsets is not None:
            p.kind, p.offset = lib.ROPE_POSITIONS_SEQ_OFFSETS, 0
            vector(offsets, "offsets", INTEGERS, sequences)
        out = [np.empty(count, np.int64) for _ in range(2)]
        check(lib.rope_shard_ids(1, count, p, *[ffi.cast("int64_t*", x.ctypes.data) for x in out]))
        return out[0], out[1]

    def _struct(self) -> Any:
        """rope_shard*."""
        struct = ffi.new("rope_shard*")
        struct.scheme = SHARD_SCHEMES[self.scheme]
        struct.rank, struct.world, struct.block = self.rank, self.world, self.block
        struct.per_document = self.per_document
        if self.inner is not None:
            struct.inner_scheme = SHARD_SCHEMES[self.inner.scheme]
            struct.inner_rank, struct.inner_world = self.inner.rank, self.inner.world
            struct.inner_block = self.inner.block
        return struct


def _whole(value: object, name: str) -> int:
    return integer(value, name, "int32_t")


def checked_shard(shard: object) -> Shard | None:
    if shard is None or isinstance(shard, Shard):
        return shard
    raise TypeError(f"shard is a {type(shard).__qualname__}, and must be a librope.Shard")


@lru_cache(maxsize=64)
def _of_text(text: str) -> Shard:
    outer, _, inner = text.partition(_LEVELS)
    scheme, rank, world, block, per_document = outer.split(",")
    return Shard(
        scheme, int(rank), int(world), int(block), per_document != "0",  # type: ignore[arg-type]
        _of_text(inner) if inner else None,
    )  # fmt: skip
