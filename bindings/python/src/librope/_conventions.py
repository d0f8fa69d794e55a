"""What the names of operations and pairings mean, as far as Python has to know it: one table, and how
names of pairings are made. The tests compare both with the library.

An operation or a pairing of a newer rope.h that is not understood here is an error that names it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from ._core import OPERATIONS, PAIRINGS, Config, number, spec_of


class OperationRule(NamedTuple):
    """Operations are linear. Their transposes, which gradients need, are operations as well: this
    one in a Rope whose attention factor a may be changed, because channels that do not turn must not be
    multiplied, or of negative distances, which no length of sequences limits."""

    transpose: str
    factor: Callable[[float], float] | None  # of the transpose, by a; None: a itself
    negates: bool  # the transpose goes by negative positions
    takes_rows: bool  # of cos and sin, instead of positions
    by_distance: bool  # positions say how far tokens move: an int is the same for all


_RULES = {
    # a R(p) x
    "forward": OperationRule("backward", None, False, takes_rows=True, by_distance=False),
    # a R(-p) x
    "backward": OperationRule("forward", None, False, takes_rows=True, by_distance=False),
    # 1/a R(-p) x
    "inverse": OperationRule("forward", lambda a: 1 / a, False, takes_rows=False, by_distance=False),
    # R(p) x
    "shift": OperationRule("shift", None, True, takes_rows=False, by_distance=True),
}
OPERATION_NAMES = {n: name for name, n in OPERATIONS.items()}


def rule_of(operation: str) -> OperationRule:
    """What an operation does. ValueError for an unknown one, NotImplementedError for one of rope.h
    that has no rule here."""
    number(OPERATIONS, operation, "operation")
    rule = _RULES.get(operation)
    if rule is None:
        raise NotImplementedError(f"operation {operation!r} has no rule in librope._conventions")
    return rule


def transposed_specs(spec: str, configs: Sequence[Config], attention_factors: Sequence[float]) -> dict[str, str]:
    """Of which Rope the transpose of each operation is, which itself is of these frequency sets. spec: their text."""
    specs = dict.fromkeys(_RULES, spec)
    if all(a == 1 for a in attention_factors):
        return specs
    for operation, rule in _RULES.items():
        if rule.factor is None:
            continue
        changed = []
        for config, a in zip(configs, attention_factors, strict=True):
            if a != 1:  # mscale says nothing but the factor
                config = {k: v for k, v in config.items() if not k.startswith("mscale")}
                config["attention_factor"] = rule.factor(a)
            changed.append(config)
        specs[operation] = spec_of(changed)
    return specs


class ChannelOrder(NamedTuple):
    """Where the members of a pair are: "halves" or "interleaved"."""

    reads: str
    writes: str
    per_axis: bool  # each axis has a block of channels of its own

    @property
    def moves(self) -> bool:
        return self.reads != self.writes


_PER_AXIS = "_per_axis"


def is_gradient(operation: str) -> bool:
    """Whether it turns gradients of what "forward" has turned."""
    return operation == "backward"


def takes_norms(operation: str) -> bool:
    """Whether q and k may be normed beside it."""
    return operation == "forward"


def channel_order(pairing: str) -> ChannelOrder:
    """The channel order of a pairing, from its name: a, a_to_b, a_per_axis. NotImplementedError for
    a name of another form."""
    name = pairing.removesuffix(_PER_AXIS)
    reads, _, writes = name.partition("_to_")
    order = ChannelOrder(reads, writes or reads, name != pairing)
    if not {order.reads, order.writes} <= {"halves", "interleaved"}:
        raise NotImplementedError(
            f"pairing {pairing!r} has a channel order that librope._conventions does not know"
        )
    return order


def in_one_segment() -> list[str]:
    """The pairings whose channels the number of pairs alone decides."""
    return [name for name in PAIRINGS if not channel_order(name).per_axis]
