"""The rules of tensors and positions: shapes, dtypes, strides, and the messages where one is broken.

Here alone, for NumPy, torch and JAX: arrays with memory, traced ones and meta tensors go through the
same functions, with what is known of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache

from ._conventions import is_gradient, rule_of
from ._core import COS_SIN_FORMATS, DTYPES, integer, number
from ._types import Layout

INTEGERS = ("int32", "int64")
POSITIONS = (*INTEGERS, "float32")
_WORDS = {"a": "axes", "b": "batch rows", "t": "tokens"}


# -- layouts ----------------------------------------------------------------------------------------


@lru_cache(maxsize=64)
def axes_of(layout: str) -> tuple[int | None, int, int | None]:
    """Where batch, tokens and heads are in a layout such as "bshd", "hsd" or "td"."""
    letters = layout.replace("t", "s") if "s" not in layout else layout
    if (
        letters[-1:] != "d"
        or "s" not in letters
        or set(letters) - set("bshd")
        or len(set(letters)) != len(letters)
    ):
        raise ValueError(
            f"layout is {layout!r}, and must be an order of b (batch), s or t (tokens), h (heads) "
            "and a final d (channels), such as 'bshd', 'bhsd', 'sbhd' or 'thd'"
        )
    find = letters.find
    return (
        None if find("b") < 0 else find("b"),
        find("s"),
        None if find("h") < 0 else find("h"),
    )


def both_layouts(layout: str | tuple[str, str]) -> tuple[str, str]:
    """That of q and that of k."""
    return layout if isinstance(layout, tuple) else (layout, layout)


def one_layout(layouts: Sequence[Layout]) -> Layout:
    """Of Ropes that become one."""
    first = layouts[0] and both_layouts(layouts[0])
    for i, layout in enumerate(layouts):
        if (layout and both_layouts(layout)) != first:
            raise ValueError(
                f"ropes[{i}] has layout {layout!r}, and ropes[0] {layouts[0]!r}: they must agree, or layout= says one"
            )
    return layouts[0]


def missing_layout(name: str, shape: Iterable[int]) -> ValueError:
    return ValueError(
        f"layout= is required: {name} has shape {tuple(shape)}, and nothing tells which axes are "
        "tokens and heads. Such as layout='bshd' (batch, tokens, heads, channels), 'bhsd' inside "
        "transformers, or 'thd'; for all calls: Rope(..., layout=)"
    )


def default_layout(dimensions: int, name: str) -> str:
    """What the command line takes for the layout of a file that does not say it."""
    try:
        return {4: "bshd", 3: "thd", 2: "td"}[dimensions]
    except KeyError:
        raise ValueError(
            f"{name} has {dimensions} dimensions: layout= must say what they are, as in 'bshd'"
        ) from None


# -- dtypes and strides -----------------------------------------------------------------------------


def check_dtype(name: str, dtype: str, allowed: Iterable[str] = DTYPES) -> None:
    if dtype not in allowed:
        *most, last = allowed
        listed = f"{', '.join(most)} or {last}" if most else last
        raise TypeError(f"{name} has dtype {dtype}, and must be {listed}")


def check_not_negative(name: str, strides: Sequence[int]) -> None:
    if any(s < 0 for s in strides):
        raise ValueError(f"{name} has strides {strides}: negative ones are not supported")


def check_strides(name: str, shape: Sequence[int], strides: Sequence[int]) -> None:
    """Of q, k or an output."""
    if shape[-1] != 1 and strides[-1] != 1 and 0 not in shape:
        raise ValueError(
            f"{name} has stride {strides[-1]} in its last axis: channels must be adjacent in memory"
        )
    check_not_negative(name, strides)


# -- q, k and outputs -------------------------------------------------------------------------------


class Sizes:
    """Batch rows and tokens of a call, and which array said so."""

    def __init__(self) -> None:
        self._values: dict[str, tuple[int, str]] = {}

    def agree(self, letter: str, value: int, name: str) -> None:
        known, by = self._values.setdefault(letter, (value, name))
        if known != value:
            raise ValueError(f"{name} has {value} {_WORDS[letter]}, and {by} {known} (see layout=)")

    @property
    def batch(self) -> int:
        return self._values["b"][0]

    @property
    def tokens(self) -> int:
        return self._values["t"][0]


def check_channels(name: str, channels: int, dims: tuple[int, int]) -> None:
    """dims: head_dim and rotary_dim."""
    if channels not in dims:
        head_dim, rotary_dim = dims
        rule = f"{head_dim}" if head_dim == rotary_dim else f"{head_dim} or {rotary_dim}"
        raise ValueError(f"{name} has {channels} channels per head, and must have {rule}")


def check_tensor(
    name: str, shape: Sequence[int], dtype: str, layout: str, dims: tuple[int, int] | None, sizes: Sizes,
    allowed: Iterable[str] = DTYPES,
) -> None:  # fmt: skip
    """All but strides, which traced arrays do not have. dims: None for v and rest, whose heads are their own.
    allowed: of an output, which may have more dtypes than an input."""
    check_dtype(name, dtype, allowed)
    b, s, _ = axes_of(layout)
    if len(shape) != len(layout):
        raise ValueError(f"{name} has shape {shape}, which is not {layout!r}")
    if dims is not None:
        check_channels(name, shape[-1], dims)
    sizes.agree("b", 1 if b is None else shape[b], name)
    sizes.agree("t", shape[s], name)


def check_output_heads(name: str, found: int, of: str, given: int, operation: str) -> None:
    """An output may have each head m times in a row; a gradient adds them up again."""
    more, fewer = (given, found) if is_gradient(operation) else (found, given)
    if fewer and more % fewer:
        rule = "a divisor" if is_gradient(operation) else "a multiple"
        raise ValueError(f"{name} has {found} heads, and must have {rule} of the {given} of {of}")


# -- caches -----------------------------------------------------------------------------------------

#: Where slots and heads are, behind the pages.
_CACHE_AXES: dict[str, tuple[int, int | None]] = {"nhd": (1, 2), "hnd": (2, 1), "nd": (1, None)}
_MOST_SLOTS = 2**30


def cache_axes(layout: object) -> tuple[int, int | None]:
    """Where the slots of a page and the heads are in a layout of a cache."""
    if not isinstance(layout, str) or layout not in _CACHE_AXES:
        raise ValueError(
            f"layout of a cache is {layout!r}, and must be 'nhd' ([pages, page_size, heads, channels]), "
            "'hnd' ([pages, heads, page_size, channels]) or 'nd' ([pages, page_size, channels])"
        )
    return _CACHE_AXES[layout]


def check_cache(name: str, shape: Sequence[int], layout: str) -> None:
    n, _ = cache_axes(layout)
    if len(shape) != len(layout) + 1:
        hint = ": with x[None] it is one page" if len(shape) == len(layout) else ""
        raise ValueError(f"{name} has shape {shape}, which is not [pages, ..] of layout {layout!r}{hint}")
    if shape[0] < 1 or not 1 <= shape[n] <= _MOST_SLOTS:
        raise ValueError(
            f"{name} has {shape[0]} pages of {shape[n]} slots, and must have one page or more, of 1 to "
            "2^30 slots"
        )


def check_alike(
    name: str, shape: Sequence[int], heads: int | None, other: str,
    like: tuple[Sequence[int], Sequence[int], str], layout: str,
) -> None:  # fmt: skip
    """The memory of a cache has the heads of what is stored. heads: their axis."""
    at = axes_of(layout)[2]
    found, wanted = 1 if heads is None else shape[heads], 1 if at is None else like[0][at]
    if found != wanted:
        raise ValueError(f"{name} has {found} heads, and {other} {wanted}")


def check_slots(shape: Sequence[int], dtype: str, batch: int, tokens: int) -> None:
    check_dtype("slots", dtype, INTEGERS)
    if len(shape) == 2 and tuple(shape) == (batch, tokens):
        return
    if len(shape) != 1:
        raise ValueError(f"slots has shape {tuple(shape)}, and must be [{batch}, {tokens}], or [tokens]")
    if shape[0] < batch * tokens:  # the library would take these tokens for padding
        raise ValueError(
            f"slots has {shape[0]} entries, and there are {batch} batch rows of {tokens} tokens: each "
            "token has its own, and padding has -1"
        )


def check_page_table(shape: Sequence[int], dtype: str, sequences: int, ragged: bool) -> None:
    check_dtype("page_table", dtype, ("int32",))
    if ragged:
        if len(shape) != 1:
            raise ValueError(f"page_table has shape {tuple(shape)}, and with page_starts one dimension")
    elif len(shape) != 2 or shape[0] != sequences or not shape[1]:
        raise ValueError(
            f"page_table has shape {tuple(shape)}, and must be [{sequences} sequences, pages of each], or "
            "one list with page_starts="
        )


# -- positions --------------------------------------------------------------------------------------


def default_order(dimensions: int, batched: bool, axes: int) -> str:
    """What the axes of positions are where nobody says it. 1: t. 2: bt, or at where there is no batch
    and several axes. 3: abt."""
    if dimensions == 2 and axes > 1 and not batched:
        return "at"
    return {0: "", 1: "t", 2: "bt", 3: "abt"}.get(dimensions, "?")


def check_words(positions_layout: object, cos_sin_format: object = None) -> None:
    """Refuses what is no such word, also in a call that does not read it."""
    if cos_sin_format is not None:
        number(COS_SIN_FORMATS, cos_sin_format, "cos_sin_format")
    if positions_layout is None:
        return
    if isinstance(positions_layout, str):
        letters = set(positions_layout)
        if positions_layout and letters <= set(_WORDS) and len(letters) == len(positions_layout):
            return
    raise ValueError(
        f"positions_layout is {positions_layout!r}, and must be an order of a (axes), b (batch) and t (tokens), "
        "such as 't', 'bt' or 'abt'"
    )


def check_beside_rows(cu_seqlens: object, freq_sets: object) -> None:
    """Refuses what says of which sequence a token is where its angles are given."""
    for name, x in (("cu_seqlens", cu_seqlens), ("freq_sets", freq_sets)):
        if x is not None:
            raise ValueError(
                f"{name}= is not for cos_sin=, whose rows are the angles of each token: {name} must be None"
            )


def is_ambiguous(shape: Sequence[int], axes: int, batch: int) -> bool:
    """Whether two axes of positions may be batch rows and tokens as well as axes and tokens."""
    return len(shape) == 2 and 1 < axes == batch == shape[0]


def order_of_positions(
    shape: Sequence[int], dtype: str, given: str | None, batched: bool, expected: dict[str, int]
) -> str:
    """What the axes of positions are: an order of a, b and t.

    given: positions_layout, or None. expected: the sizes of a, b and t.
    """
    check_dtype("positions", dtype, POSITIONS)
    if given is None and batched and is_ambiguous(shape, expected["a"], expected["b"]):
        raise ValueError(
            f"positions has shape {tuple(shape)}, and there are as many axes as batch rows: "
            "positions_layout must say which they are, 'bt' or 'at'"
        )
    order = given or default_order(len(shape), batched, expected["a"])
    if len(order) != len(shape) or len(set(order)) != len(order) or set(order) - set(expected):
        raise ValueError(
            f"positions has shape {shape}, which is not positions_layout {order!r}: "
            "an order of a (axes), b (batch) and t (tokens)"
        )
    for letter, size in zip(order, shape, strict=True):
        if size != expected[letter] and not (letter == "b" and size == 1):
            sizes = ", ".join(f"{expected[c]} {_WORDS[c]}" for c in order)
            raise ValueError(f"positions has shape {shape}, and must have {sizes} (see layout=)")
    if "t" not in order and expected["t"] != 1 and given is None:
        raise ValueError(f"positions has shape {shape}, and there are {expected['t']} tokens")
    return order


def check_ids_per_axis(
    shape: Sequence[int] | None, given: str | None, batched: bool, axes: int
) -> None:
    """Refuses one id of a token for all axes, where a Rope says that each axis has its own.

    shape: of positions, () for an int; None: they are offsets. given: positions_layout, which may say
    that an id is shared.
    """
    if given is not None:
        return
    if shape is not None and default_order(len(shape), batched, axes)[:1] == "a":
        return
    raise ValueError(
        f"{'offsets' if shape is None else 'positions'} gives each token one id, and this model has "
        f"{axes}, which are not alike (rows and columns of an image): positions must be "
        f"{'[axes, batch, tokens]' if batched else '[axes, tokens]'}. Where the axes of a token do share one, "
        "positions must be an array [tokens] with positions_layout='t'"
    )


def check_batch_repeat(repeat: object, batch: int, by_rows: bool) -> int:
    """The batch rows that positions are of. by_rows: the angles are rows of cos and sin."""
    if type(repeat) is not int or repeat < 1:  # Dynamo warns of what integer() looks up
        repeat = integer(repeat, "batch_repeat", low=1)
    if by_rows:
        raise ValueError("batch_repeat= is not for cos_sin=, whose rows are those of all batch rows, or of one")
    if batch % repeat:
        raise ValueError(f"batch_repeat is {repeat}, and must divide the {batch} batch rows")
    return batch // repeat


def check_vector(
    name: str, shape: Sequence[int], dtype: str, allowed: Sequence[str], sequences: int | None
) -> None:
    """sequences: as many entries are required; None: any number."""
    check_dtype(name, dtype, allowed)
    if len(shape) != 1:
        raise ValueError(f"{name} has shape {shape}, and must have one dimension")
    if sequences is not None and shape[0] != sequences:
        raise ValueError(f"{name} has {shape[0]} entries, and there are {sequences} sequences")


def contiguous(name: str, meta: tuple[tuple[int, ...], tuple[int, ...], str]) -> None:
    """meta: shape, strides and dtype."""
    shape, strides, _ = meta
    if 0 in shape:  # strides of NumPy are 0 then
        return
    step = 1
    for n, stride in zip(reversed(shape), reversed(strides), strict=True):
        if n > 1 and stride != step:
            raise ValueError(f"{name} has stride {stride}, and must be contiguous")
        step *= n


def check_sequences(sequences: int) -> None:
    """Those of cu_seqlens."""
    if sequences < 1:
        raise ValueError(f"cu_seqlens has {sequences + 1} entries, and must have one more than sequences")


def check_offsets(
    shape: Sequence[int], dtype: str, sequences: int, operation: str, packed: bool
) -> None:
    """packed: with cu_seqlens."""
    check_vector("offsets", shape, dtype, INTEGERS, sequences)
    if packed and rule_of(operation).by_distance:
        raise ValueError(
            f"offsets= with cu_seqlens= and operation={operation!r}: give the distance of every "
            "token, as positions [tokens]"
        )
