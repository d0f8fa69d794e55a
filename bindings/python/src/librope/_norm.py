"""Norm and Norms: the norms of q, k and v that a layer has beside its rotation."""

from __future__ import annotations

from typing import Any, NamedTuple

from ._arrays import View, read
from ._choices import NormKind, NormOrder, NormRounding, NormSpan
from ._core import NORM_KINDS, NORM_ORDERS, NORM_ROUNDINGS, NORM_SPANS, number, positive


class Norm:
    """A norm of q, k or v, in the pass that rotates q and k::

        norm = librope.Norm(weight, kind="rms", eps=1e-6, rounding="eager")    # of Qwen3
        q, k = rope.apply_qk(q, k, positions, norms=librope.Norms(q=norm, k=k_norm))

    It covers all channels that its array has: whole heads, or the span alone. Arithmetic is that of
    float32; the dtypes of weight and of the array may differ.

    Args:
        weight: float32, float16 or bfloat16 [channels], or [heads, channels] where each head has its
            own, as it has with the spans of all heads. None for kind "rms_plain".
        kind: "rms" x / rms(x) * weight; "rms_one_plus" x / rms(x) * (1 + weight); "rms_plain"
            x / rms(x); "layer" (x - mean) / std * weight; "layer_bias" that + bias.
        eps: added under the root, positive. Required, but None with span "given", whose rstd contains it.
        bias: of kind "layer_bias", like weight.
        span: "head": each head on its own; "all_heads": all heads of a token together; "given": the
            same, by rstd, of the heads that this rank has.
        order: "before" the rotation, or "after" it.
        rounding: where float16 and bfloat16 are rounded: "float32": nowhere between norm and
            rotation; "rounded": the result of the norm, as by a norm that has a kernel of its own;
            "eager": each step of it, as Qwen3 and others do in transformers.
        rstd: float32 [batch, tokens] or [tokens]: 1 / sqrt(mean of squares + eps) of each token, from
            whoever knows the heads of all ranks.

    Raises:
        ValueError: an unknown kind, span, order or rounding; an eps that is missing, not positive or not finite, or
            beside rstd.
        TypeError: an eps that is no number.
    """

    __slots__ = ("bias", "eps", "kind", "order", "rounding", "rstd", "span", "weight")

    def __init__(
        self,
        weight: Any = None,
        *,
        kind: NormKind,
        eps: float | None = None,
        bias: Any = None,
        span: NormSpan = "head",
        order: NormOrder = "before",
        rounding: NormRounding = "float32",
        rstd: Any = None,
    ) -> None:
        number(NORM_KINDS, kind, "kind")
        number(NORM_SPANS, span, "span")
        number(NORM_ORDERS, order, "order")
        number(NORM_ROUNDINGS, rounding, "rounding")
        self.weight = weight
        self.kind = kind
        self.eps = _checked_eps(eps, kind, span)
        self.bias = bias
        self.span = span
        self.order = order
        self.rounding = rounding
        self.rstd = rstd

    @property
    def settings(self) -> tuple[NormKind, float, NormSpan, NormOrder, NormRounding]:
        """All of it but its arrays."""
        return self.kind, float(self.eps or 0), self.span, self.order, self.rounding

    @property
    def form(self) -> str:
        """The same as text."""
        kind, eps, span, order, rounding = self.settings
        return f"{kind} {eps!r} {span} {order} {rounding}"

    def __repr__(self) -> str:
        shape = list(getattr(self.weight, "shape", ()))
        return f"Norm({'' if self.weight is None else f'{shape}, '}kind={self.kind!r}, eps={self.eps})"


def _checked_eps(eps: Any, kind: str, span: str) -> float | None:
    if eps is None:
        if span != "given":
            raise ValueError(f"eps is None, and is required by kind={kind!r} with span={span!r}: that of the model's norm")
        return None
    if span == "given":
        raise ValueError(f"eps is {eps!r}, and must be None with span='given', whose rstd contains it")
    return positive(eps, "eps")


class Norms:
    """The norms of a layer, for norms= of its calls; those that are None are none. Keep it: one object
    for each layer."""

    __slots__ = ("k", "q", "v")

    def __init__(self, q: Norm | None = None, k: Norm | None = None, v: Norm | None = None) -> None:
        for name, norm in (("q", q), ("k", k), ("v", v)):
            if norm is not None and not isinstance(norm, Norm):
                raise TypeError(f"{name} is a {type(norm).__qualname__}, and must be a librope.Norm")
        self.q = q
        self.k = k
        self.v = v

    def __repr__(self) -> str:
        return f"Norms(q={self.q}, k={self.k}, v={self.v})"


def checked_norms(norms: Any) -> Norms | None:
    """The argument norms of a call."""
    if norms is None or isinstance(norms, Norms):
        return norms
    raise TypeError(f"norms is a {type(norms).__qualname__}, and must be a librope.Norms")


#: Of what read_norms() gives, in its order.
NAMES = tuple(f"norms.{x}.{array}" for x in "qkv" for array in ("weight", "bias", "rstd"))


def norm_arrays(norms: Norms | None) -> tuple[Any, ...]:
    """In the order of NAMES; none without norms."""
    if norms is None:
        return ()
    arrays: list[Any] = []
    for norm in (norms.q, norms.k, norms.v):
        arrays += (None, None, None) if norm is None else (norm.weight, norm.bias, norm.rstd)
    return tuple(arrays)


#: norm_settings() of none.
NO_NORMS = (None, None, None)


def norm_settings(norms: Norms | None) -> tuple[Any, ...]:
    """Those of q, k and v."""
    if norms is None:
        return NO_NORMS
    q, k, v = norms.q, norms.k, norms.v
    return q and q.settings, k and k.settings, v and v.settings


def check_settings(norms: Norms | None, prepared: tuple[Any, ...]) -> None:
    """Refuses norms of a layer that differ from those of a prepared call in more than their arrays."""
    for name, found, must in zip("qkv", norm_settings(norms), prepared, strict=True):
        if found != must:
            raise ValueError(f"norms.{name} is {_text(found)}, and the call was prepared for {_text(must)}")


def _text(settings: tuple[Any, ...] | None) -> str:
    return "None" if settings is None else f"one of {', '.join(map(str, settings))}"


def check_arrays(norms: Norms) -> None:
    """Refuses norms that lack an array which they read, or have another: those of a call that is prepared, of
    whose arrays the library sees the form alone."""
    for name, norm in (("q", norms.q), ("k", norms.k), ("v", norms.v)):
        if norm is None:
            continue
        kind, span = f"kind={norm.kind!r}", f"span={norm.span!r}"
        for array, x, needed, why in (
            ("weight", norm.weight, norm.kind != "rms_plain", kind),
            ("bias", norm.bias, norm.kind == "layer_bias", kind),
            ("rstd", norm.rstd, norm.span == "given", span),
        ):
            if (x is not None) != needed:
                rule = "is required by" if needed else "must be None with"
                raise ValueError(f"norms.{name}.{array} {rule} {why}")


def norm_forms(norms: Norms | None) -> str:
    """What decides a template beside the forms of the arrays: of q, k and v; "" without norms."""
    if norms is None:
        return ""
    return ",".join("" if norm is None else norm.form for norm in (norms.q, norms.k, norms.v))


def norms_from(forms: str, arrays: Any) -> Norms | None:
    """The inverse of norm_forms() and norm_arrays()."""
    if not forms:
        return None
    made: list[Norm | None] = []
    for i, form in enumerate(forms.split(",")):
        if not form:
            made.append(None)
            continue
        kind, eps, *rest = form.split(" ")
        names: Any = dict(zip(("span", "order", "rounding"), rest, strict=True))
        weight, bias, rstd = arrays[3 * i : 3 * i + 3]
        made.append(Norm(weight, kind=kind, eps=float(eps) or None, bias=bias, rstd=rstd, **names))  # type: ignore[arg-type]
    return Norms(*made)


def read_norms(norms: Norms) -> list[View | None]:
    return [
        None if x is None else read(x, name, False)
        for name, x in zip(NAMES, norm_arrays(norms), strict=True)
    ]


class Normed(NamedTuple):
    """Norms that were read once, good as long as the memory of their weights stays."""

    norms: Norms
    form: Any  # what decides a template
    addresses: tuple[int, ...]


def read_once(norms: Norms) -> Normed:
    views = read_norms(norms)
    form = (*[x and x[0] for x in views], norm_forms(norms))
    return Normed(norms, form, tuple(0 if x is None else x[2] for x in views))
