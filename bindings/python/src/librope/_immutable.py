"""What makes a Rope a value: it cannot change, and two with the same fields are equal."""

from __future__ import annotations

from ._types import Layout


class Immutable:
    spec: str
    layout: Layout

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(
            f"{name} of a Rope cannot be set: it is immutable; rope.replace({name}=...) is a changed "
            "copy"
        )

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"{name} of a Rope cannot be deleted: it is immutable")

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Immutable):
            return NotImplemented
        return self.spec == other.spec and self.layout == other.layout

    def __hash__(self) -> int:
        return hash((self.spec, self.layout))
