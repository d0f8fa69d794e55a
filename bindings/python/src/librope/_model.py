"""Model: the kinds of RoPE that a config.json or a GGUF file describes."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from ._config_text import ModelText
from ._rope import Rope
from ._types import Layout

if TYPE_CHECKING:
    from typing_extensions import Buffer, Unpack

    from ._types import ModelChanges


class Model(ModelText):
    """The kinds of RoPE of one model: Model("config.json").layer_types.

    Args:
        config: as for Rope.from_config.
        accepted_keys: keys that the program knows to change nothing, by name ("attn_factor") or path
            ("text_config.rope_scaling.attn_factor"): the text is not refused because of them.

    Raises:
        ValueError: the text is no JSON, a key is missing or has an impossible value; a name of
            accepted_keys spares no key.
        NotImplementedError: the model has no RoPE, or one that is not offered; the message names
            the model_type.
        OSError: the file cannot be read. TypeError: config is something else.
    """

    @classmethod
    def from_gguf(cls, source: str | os.PathLike[str] | Buffer) -> Model:
        """The kinds of RoPE of a GGUF file: Model.from_gguf("model.gguf").rope(layer=0).

        The pairing is that of the weights in the file. docs/gguf.md lists the architectures.

        Args:
            source: a path, or the bytes of the file (bytes, memoryview, mmap, ..), of which the
                beginning without the weights is enough. Bytes are needed again to pickle the model.

        Raises:
            ValueError: it is no GGUF file, ends too early, a key is missing or has an impossible
                value. NotImplementedError: an architecture, or a key of RoPE, that is not read.
            OSError: the file cannot be read. TypeError: source is something else.
        """
        model = cls.__new__(cls)
        model._read_gguf(source)
        return model

    def __reduce__(self) -> Any:
        source = getattr(self, "_gguf", None)
        if source is not None:
            return Model.from_gguf, (source,)
        return _again, (self._text, self._accepted)

    def rope(
        self,
        *,
        layer: int | None = None,
        layer_type: str | None = None,
        layout: Layout = None,
        seq_len: int | None = None,
        **changes: Unpack[ModelChanges],
    ) -> Rope:
        """The Rope of a layer or of a kind; arguments and errors as for Rope.from_config."""
        fields = self.fields_of(layer, layer_type, seq_len, changes)
        return Rope.from_fields(fields, layout=layout)

    def ropes(
        self, *, layout: Layout = None, seq_len: int | None = None, **changes: Unpack[ModelChanges]
    ) -> dict[str, Rope]:
        """The Rope of every kind, by name: for layer i, ropes[model.layers[i]].

        seq_len: tokens of the sequence when attention runs, for kinds whose frequencies depend on
        it (dynamic NTK, LongRoPE). They are right for rope.valid_from to rope.valid_below - 1 tokens;
        for others make them anew. Errors as for Rope.from_config.
        """
        return {
            t: self.rope(layer_type=t, layout=layout, seq_len=seq_len, **changes)
            for t in self.layer_types
        }


def _again(text: bytes, accepted_keys: tuple[str, ...]) -> Model:
    """What pickle calls."""
    return Model(text, accepted_keys=accepted_keys)
