"""The types of arguments: names of choices, the fields of a configuration, the options of a call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypedDict

from ._choices import Angle, DType, Operation, Pairing, Rounding, Scaling

if TYPE_CHECKING:
    from ._norm import Norms
    from ._pool import Pool
    from ._scale import Scales
    from ._shard import Shard

Layout = str | tuple[str, str] | None
CacheLayout = str | tuple[str, str]


class _Rare(TypedDict, total=False):
    """Fields beyond those that Rope names, but seq_len; see the docstring of Rope."""

    rotary_offset: int
    inv_freq_dtype: DType
    yarn_no_truncate: bool
    factor: float
    attention_factor: float
    max_position_embeddings: int
    original_max_position_embeddings: int
    beta_fast: float
    beta_slow: float
    mscale: float
    mscale_all_dim: float
    low_freq_factor: float
    high_freq_factor: float
    axes: int
    ids_per_axis: bool
    mrope_interleaved: bool
    mrope_section: Sequence[int]
    short_factor: Any  # tables: sequences or arrays of numbers
    long_factor: Any
    freq_factors: Any
    inv_freq: Any
    pair_axis: Any
    frequency: Any
    freq_heads: int


class Fields(_Rare, total=False):
    """Fields of a configuration beyond those that Rope names."""

    seq_len: int


class ModelChanges(_Rare, total=False):
    """Fields that replace those of a model's config; seq_len is an argument of its own."""

    head_dim: int
    theta: float
    pairing: Pairing
    rotary_dim: int
    angle: Angle
    rounding: Rounding
    scaling: Scaling


class Changes(ModelChanges, total=False):
    """All fields."""

    seq_len: int


class BindOptions(TypedDict, total=False):
    """Options of bind, but its outputs; see apply_qk."""

    layout: Layout
    operation: Operation
    offsets: Any
    cu_seqlens: Any
    freq_sets: Any
    positions_layout: str | None
    pool: Pool | None
    shard: Shard | None
    batch_repeat: int | None


class PrepareOptions(BindOptions, total=False):
    """Options of prepare_qk; see apply_qk."""

    cos_sin: Any
    cos_sin_format: str | None


class CallOptions(PrepareOptions, total=False):
    """Options of apply_qk_ and apply_; see apply_qk."""

    norms: Norms | None


class OutOptions(CallOptions, total=False):
    """Options of calls with outputs; see apply_qk."""

    scales: Scales | None


def check_options(function: str, options: Mapping[str, Any], known: frozenset[str]) -> None:
    for name in sorted(set(options) - known):
        raise TypeError(f"{function}() got an unexpected keyword argument {name!r}")
