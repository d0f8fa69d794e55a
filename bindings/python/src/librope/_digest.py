"""Digests: whether two descriptions rotate alike (docs/digest.md)."""

from __future__ import annotations

from typing import Any

from . import _core
from ._choices import Digest
from ._ffi import ffi, lib


class Digested:
    """What has a configuration."""

    __slots__ = ()

    @property
    def config(self) -> Any:
        raise NotImplementedError

    def digest(self, same: Digest = "rotation") -> str:
        """A text that is equal for Ropes that rotate alike, however they were described.

        It is another as soon as one bit of a frequency, a factor or a channel is (docs/digest.md).
        seq_len and layout do not count. ValueError with several frequency sets.
        """
        struct, keep = _core.to_struct(self.config)
        text = _made(lib.rope_config_digest, struct, same=same)
        del keep
        return text


def of_model(model: Any, number: int, same: Digest) -> str:
    """Of a kind of a rope_model, or with -1 of the whole."""
    return _made(lib.rope_model_digest, model, number, same=same)


def _made(function: Any, *arguments: Any, same: Digest) -> str:
    out = ffi.new("rope_digest_text*")
    _core.check(function(*arguments, _core.number(_core.DIGESTS, same, "same"), out))
    return str(ffi.string(out.text).decode())
