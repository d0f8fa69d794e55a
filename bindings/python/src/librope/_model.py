"""Model: the kinds of RoPE that a config.json or a GGUF file describes."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ._changes import check_shared
from ._config_text import ModelText, turns
from ._digest import of_model
from ._latent import latent_ids
from ._rope import Rope, _rebuild
from ._types import Layout

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from typing_extensions import Buffer, Unpack

    from ._choices import Digest
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
    def from_gguf(
        cls,
        source: str | os.PathLike[str] | Buffer | Mapping[str, Any],
        *,
        factors: Mapping[str, Any] | None = None,
    ) -> Model:
        """The kinds of RoPE of a GGUF file: Model.from_gguf("model.gguf").rope(layer=0).

        The pairing is that of the weights in the file. docs/gguf.md lists the architectures.

        Args:
            source: a path, or the bytes of the file (bytes, memoryview, mmap, ..), of which the
                beginning without the weights is enough; or the keys of a file that the program has
                parsed already, as a dictionary. They are needed again to pickle the model.
            factors: with such a dictionary, which is not all that says how a model rotates: the
                tensors of frequency factors by name ("rope_freqs.weight"), {} if the file has none.

        Raises:
            ValueError: it is no GGUF file, ends too early, a key is missing or has an impossible
                value. NotImplementedError: an architecture, or a key of RoPE, that is not read.
            OSError: the file cannot be read. TypeError: source is something else, or a dictionary
                without factors.
        """
        model = cls.__new__(cls)
        model._read_gguf(source, factors)
        return model

    def digest(self, layer_type: str | None = None, same: Digest = "rotation") -> str:
        """A text that is equal for models that rotate alike, whatever describes them.

        Of one kind, or of the model: which RoPE each layer has, and the kinds that no layer has, by
        name. That of a model looks like that of a kind and is never equal to it, even where the model
        has one kind: compare digest(layer_type) with Rope.digest. With same="angles" the order of
        channels does not count: a GGUF file, whose q and k may be permuted, is then the same as its
        config.json (docs/digest.md).

        Raises:
            ValueError: an unknown kind; the text leaves something to the caller, such as the pairing of
                an unknown model_type: complete it, and take Rope.digest.
        """
        number = -1 if layer_type is None else self._kind(layer_type)
        return of_model(self._model, number, same)

    def __reduce__(self) -> Any:
        gguf = getattr(self, "_gguf", None)
        if gguf is not None:
            return _of_gguf, gguf
        return _again, (self._text, self._accepted)

    def __repr__(self) -> str:
        layers = self.layers
        kinds = ", ".join(
            f"{name}: {layers.count(name)} layers" if name in layers else name
            for name in self.layer_types
        )
        return f"<librope.Model: {kinds}>"

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
        kind = self.kind_of(layer, layer_type)
        return _rebuild([self.fields_of(kind, seq_len, changes)], layout, self.follows(kind))

    def ropes(
        self, *, layout: Layout = None, seq_len: int | None = None, **changes: Unpack[ModelChanges]
    ) -> dict[str, Rope]:
        """The Rope of every kind, by name: for layer i, ropes[model.layers[i]].

        seq_len: tokens of the sequence when attention runs, for kinds whose frequencies depend on
        it (dynamic NTK, LongRoPE). They are right for rope.valid_from to rope.valid_below - 1 tokens;
        for others make them anew. Errors as for Rope.from_config, and ValueError if changes has a number
        in which the kinds differ.
        """
        configs = {t: self.config(t) for t in self.layer_types}
        check_shared({t: c for t, c in configs.items() if turns(c)}, changes)
        return {
            t: self.rope(layer_type=t, layout=layout, seq_len=seq_len, **changes)
            for t in self.layer_types
        }

    def latent_ids(
        self,
        grids: Iterable[Sequence[int]],
        text: int = 0,
        *,
        layer_type: str | None = None,
        fps: float | None = None,
        scale: Sequence[float] | None = None,
    ) -> Any:
        """The ids that the pipeline of diffusers gives to the tokens of its transformer.

            model = librope.Model("transformer/config.json")            # FluxTransformer2DModel
            ids = model.latent_ids([(64, 96)], text=512)                # an image of 1024 x 1536
            q, k = model.rope(layout="bshd").apply_qk(q, k, ids[:, None])   # [axes, batch, tokens]

        docs/diffusers.md lists the classes, their ids, and the order of text and latents.

        Args:
            grids: of the image or video that is made, then of those that it is made from: (rows,
                columns) or (frames, rows, columns) of tokens, after patching or packing.
            text: tokens of text in the attention with the latents.
            layer_type: the kind of layers, where there are several.
            fps: frames per second of a video. Cosmos: None: an image; LTX-Video, LTX-2: needed.
            scale: of frames, rows and columns. Kandinsky 5: what ids are divided by; None: 1.
                LTX-Video: pixels of a latent; None: 8, 32, 32.

        Returns:
            float32 [axes, tokens], in the order of the model's attention: a NumPy array, or a
            memoryview without NumPy.

        Raises:
            ValueError: a size that is not positive or too large, more grids or text than the class
                has. NotImplementedError: the model is none of diffusers. TypeError: a size that is no
                int. MemoryError: there is no memory for the ids.
        """
        names = self.layer_types
        if layer_type is None and len(names) == 1:
            layer_type = names[0]
        if layer_type not in names:
            raise ValueError(f"layer_type is {layer_type!r}, and must be one of {', '.join(names)}")
        return latent_ids(self._model, names.index(layer_type), grids, text, fps, scale)


def _of_gguf(source: Any, factors: Any) -> Model:
    """What pickle calls."""
    return Model.from_gguf(source, factors=factors)


def _again(text: bytes, accepted_keys: tuple[str, ...]) -> Model:
    """What pickle calls."""
    return Model(text, accepted_keys=accepted_keys)
