"""Rope: one kind of rotary embedding, applied to arrays of any library."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, overload

from . import _arrays, _core
from ._backward import Differentiator
from ._bound import Bound
from ._call import Call, Caller, checked_layout, library_of, outputs
from ._choices import Angle, Operation, Pairing, Rounding, Scaling
from ._changes import KnownFields, changed
from ._config_text import ModelText
from ._conventions import transposed_specs
from ._core import Config, check
from ._digest import Digested
from ._ffi import ffi, lib
from ._frameworks import load
from ._immutable import Immutable
from ._kv_cache import KVCache, checked
from ._move import Mover
from ._norm import Norms, checked_norms
from ._pool import Pool
from ._prepare import Preparer
from ._rows import rows_of
from ._rules import one_layout
from ._scale import Scales, checked_scales
from ._shard import Shard
from ._step import refuse_gradients, run_fused
from ._types import BindOptions, CallOptions, Layout, OutOptions, check_options

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ._types import Changes, Fields, ModelChanges

A = TypeVar("A")
B = TypeVar("B")

_ndarray = _arrays.ndarray
_from_buffer = ffi.from_buffer
_WITHOUT_GRADIENT = (_ndarray, int)  # as positions, beside which there are no cos and sin
_BYTES = ffi.typeof("char[]")
_NULL = ffi.NULL
_call_buffers = lib.call_buffers


class Rope(Immutable, Preparer, Differentiator, Digested):
    """Rotary position embedding with the frequencies and conventions of one kind of layer.

    Immutable, hashable, and safe to share between threads. It holds no table: every position is
    valid. Two with the same fields are equal.

    Args:
        head_dim: channels of a head of q and k; even, 2 to 1024.
        theta: rope_theta of config.json.
        pairing: which channels form a pair: a librope.Pairing, such as "halves" (transformers, NeoX)
            or "interleaved" (GPT-J, Meta). Required: a wrong guess is fluent nonsense.
        rotary_dim: channels that turn; all, if not given.
        angle: how precisely angles are computed: a librope.Angle; "float32", as models were trained,
            if not given.
        rounding: where values are rounded: a librope.Rounding; "float32", once, on store, if not
            given.
        scaling: a librope.Scaling, which says the fields that each uses; "default", if not given.
            "nope" is a layer that does not rotate: it needs no theta and no pairing.
        layout: what the axes of arrays are, as an order of b (batch), s or t (tokens), h (heads)
            and a final d (channels): "bshd", "bhsd", "thd"; or one for q and one for k. Without it
            every call must say it: nothing in an array tells tokens from heads.
        rotary_offset: first channel that turns (0).
        factor: how many times longer the context gets.
        attention_factor: multiplies cos and sin; the scaling's own, if not given.
        original_max_position_embeddings, max_position_embeddings: tokens that the model was trained
            with, and that it takes now, as config.json has them.
        seq_len: tokens of the sequence when attention runs; required by the scalings whose frequencies
            depend on it (dynamic NTK, LongRoPE): see valid_from and valid_below. The others ignore it.
        beta_fast, beta_slow, mscale, mscale_all_dim, yarn_no_truncate: of yarn.
        low_freq_factor, high_freq_factor: of llama3.
        short_factor, long_factor: of longrope; one number per pair.
        freq_factors: one number per pair, which divide the frequencies.
        inv_freq: radians per position of every pair, instead of theta and scaling.
        inv_freq_dtype: "float32", "float16" or "bfloat16": frequencies are rounded to it.
        axes: ids per token (images, video), with mrope_section, the pairs of each axis
            (mrope_interleaved: spread), or pair_axis, the axis of every pair.
        ids_per_axis: True where a token's ids differ (rows and columns of an image): positions without
            axes are then an error. Towers and diffusion models of a Model have it.
        frequency: the general angle, sum over axes of position * frequency, instead of theta,
            scaling and the axes of pairs: [axes, heads, pairs], or [axes, pairs] for all heads.
            The heads of q and k are a multiple of these (freq_heads): each serves adjacent ones.

    Raises:
        ValueError: a field breaks its rule; the message names it.
        TypeError: an unknown field, or a value of the wrong kind.
        NotImplementedError: a combination that is not offered.
    """

    @overload
    def __init__(
        self,
        *,
        head_dim: int,
        pairing: Pairing,
        theta: float | None = None,
        rotary_dim: int | None = None,
        angle: Angle | None = None,
        rounding: Rounding | None = None,
        scaling: Scaling | None = None,
        layout: Layout = None,
        **fields: Unpack[Fields],
    ) -> None: ...

    @overload
    def __init__(self, *, head_dim: int, scaling: Any, layout: Layout = None, **fields: Unpack[Fields]) -> None: ...

    def __init__(
        self,
        *,
        head_dim: int,
        theta: float | None = None,
        pairing: Pairing | None = None,
        rotary_dim: int | None = None,
        angle: Angle | None = None,
        rounding: Rounding | None = None,
        scaling: Scaling | None = None,
        layout: Layout = None,
        **fields: Any,
    ) -> None:
        config = {
            "head_dim": head_dim, "theta": theta, "pairing": pairing, "rotary_dim": rotary_dim,
            "angle": angle, "rounding": rounding, "scaling": scaling, **fields,
        }  # fmt: skip
        self._init([config], layout)

    def _init(self, configs: Sequence[Mapping[str, Any]], layout: Layout, follows: Sequence[str] = ()) -> None:
        state = self.__dict__  # attributes are read-only: remembered calls depend on them
        state["_follows"] = tuple(follows)  # what replace() must leave: see _changes.py
        state["_configs"] = kept = [_core.plain(c) for c in configs]
        #: The fields as text: equal texts are equal Ropes. Operators of PyTorch and JAX carry it.
        state["spec"] = _core.spec_of(kept)
        state["layout"] = checked_layout(layout)
        state["_templates"], state["_fast"], state["_contexts"] = {}, {}, {}
        state["_lock"] = threading.Lock()
        state["_cpu"] = self._context(-1)
        self._read_info(state, len(kept))
        state["_dims"] = (self.head_dim, self.rotary_dim)
        state["_transposed_specs"] = transposed_specs(self.spec, kept, self.attention_factors)
        state["ids_per_axis"] = any(c.get("ids_per_axis") for c in kept)

    @classmethod
    def from_config(
        cls,
        config: Any,
        *,
        layer: int | None = None,
        layer_type: str | None = None,
        layout: Layout = None,
        seq_len: int | None = None,
        **changes: Unpack[ModelChanges],
    ) -> Rope:
        """The RoPE of a model.

        Args:
            config: path of a config.json or of a folder with a config.json, a params.json or a
                pipeline of diffusers; its content (dict or bytes), or a transformers config. A
                rope_parameters dictionary alone needs head_dim= and pairing=.
            layer, layer_type: which, where layers differ: a number, or a name of
                Model(config).layer_types such as "sliding_attention".
            seq_len: tokens of the sequence when attention runs. Dynamic NTK and LongRoPE need it;
                others have no use for it and leave it.
            changes: fields that replace those of the config, as in Rope.replace: angle=, ...

        Raises:
            ValueError: the text is no JSON, a key is missing or impossible, layers differ and
                none is named, or pairing= is required because the model_type is unknown.
            NotImplementedError: the model has no RoPE, or one that is not offered.
            OSError: the file cannot be read.
        """
        text = config if isinstance(config, ModelText) else ModelText(config)
        kind = text.kind_of(layer, layer_type)
        return _rebuild([text.fields_of(kind, seq_len, changes)], layout, text.follows(kind))

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any], *, layout: Layout = None) -> Rope:
        """The inverse of the attribute config, which also holds what replace() must not change alone
        (HunYuan's theta); a copy as a plain dictionary or JSON does not. Raises what Rope() raises."""
        return _rebuild([fields], layout, getattr(fields, "follows", ()))

    @classmethod
    def sets(cls, ropes: Sequence[Rope], *, layout: Layout = None) -> Rope:
        """One Rope with the frequencies of several, for batches whose sequences differ in them.

        Calls then need freq_sets, int32 [sequences]: the index into ropes of every sequence. The
        ropes may differ in frequencies and attention factor, and in nothing else: ValueError. Also in their
        layouts, unless layout says one for all.
        """
        configs = [c for r in ropes for c in r.configs]
        if not configs:
            raise ValueError("ropes is empty, and must have one entry or more")
        follows = dict.fromkeys(f for r in ropes for f in r._follows)
        return _rebuild(configs, one_layout([r.layout for r in ropes]) if layout is None else layout, [*follows])

    @property
    def configs(self) -> tuple[Config, ...]:
        """The fields of every frequency set, by their names in rope.h."""
        return tuple(KnownFields(c, self._follows) for c in self._configs)

    @property
    def config(self) -> Config:
        """The fields that were given, by their names in rope.h. ValueError with several sets."""
        if len(self._configs) > 1:
            raise ValueError(f"the Rope has {len(self._configs)} frequency sets: use configs")
        return KnownFields(self._configs[0], self._follows)

    @property
    def pairing(self) -> str | None:
        """Which channels form a pair; None for a layer without RoPE."""
        return self._configs[0].get("pairing")

    def replace(self, *, layout: Layout = None, **changes: Unpack[Changes]) -> Rope:
        """A Rope with some fields changed, in every frequency set: rope.replace(angle="exact").

        None takes a field away. Raises what Rope() raises, and ValueError where another field would keep
        what followed from the replaced one (attention_factor, from factor), or the text of a model made
        the replaced one of several numbers (HunYuan's theta and alpha).
        """
        configs = [changed(c, changes, self._follows) for c in self._configs]
        return _rebuild(configs, layout if layout is not None else self.layout, self._follows)

    def next_change(self, seq_len: int) -> int | None:
        """The smallest length above seq_len with other frequencies (dynamic NTK, LongRoPE).

        None: there is none. ValueError with several frequency sets.
        """
        struct, keep = _core.to_struct(self.config)
        out = ffi.new("int64_t*")
        check(lib.rope_config_next_change(struct, _core.integer(seq_len, "seq_len", low=0), out))
        del keep
        return _core.length_or_none(out[0])

    def inv_freq_of(self, freq_set: int) -> list[float]:
        """Radians per position of every pair, of one frequency set; of frequency all, in a row."""
        count = self.pairs
        if "frequency" in self._configs[0]:
            count *= self.axes * max(1, self.freq_heads)
        out = ffi.new("double[]", count)
        freq_set = _core.integer(freq_set, "freq_set", low=0, high=self.freq_sets - 1)
        check(lib.rope_context_inv_freq(self._cpu, freq_set, out, count))
        return list(out)

    @property
    def inv_freq(self) -> Any:
        """Radians per position of every pair: float64 [pairs], a list without NumPy."""
        values = self.inv_freq_of(0)
        return values if _arrays.np is None else _arrays.np.array(values)

    @property
    def backend(self) -> str:
        """What runs: "cpu AVX3"."""
        return str(ffi.string(lib.rope_context_backend(self._cpu)).decode())

    def __repr__(self) -> str:
        fields = ", ".join(f"{k}={_core.short(v)}" for k, v in self._configs[0].items())
        if self.layout is not None:
            fields += f", layout={self.layout!r}"
        more = f", {self.freq_sets} frequency sets" if self.freq_sets > 1 else ""
        return f"Rope({fields}{more})"

    def __reduce__(self) -> Any:
        return _rebuild, (self._configs, self.layout, self._follows)

    # -- applying -------------------------------------------------------------------------------

    @overload
    def apply_qk(
        self,
        q: A,
        k: None = None,
        positions: Any = None,
        *,
        out: tuple[Any, Any] | None = None,
        **options: Unpack[OutOptions],
    ) -> tuple[A, None]: ...

    @overload
    def apply_qk(
        self,
        q: A,
        k: B,
        positions: Any = None,
        *,
        out: tuple[Any, Any] | None = None,
        **options: Unpack[OutOptions],
    ) -> tuple[A, B]: ...

    @overload
    def apply_qk(
        self,
        q: A,
        k: B,
        positions: Any = None,
        *,
        v: Any = None,
        cache: KVCache | None = None,
        rest: Any = None,
        out: tuple[Any, ...] | None = None,
        **options: Unpack[OutOptions],
    ) -> tuple[A, B | None]: ...

    def apply_qk(
        self,
        q: Any,
        k: Any = None,
        positions: Any = None,
        *,
        v: Any = None,
        cache: KVCache | None = None,
        rest: Any = None,
        norms: Norms | None = None,
        scales: Scales | None = None,
        layout: Layout = None,
        out: tuple[Any, ...] | None = None,
        operation: Operation = "forward",
        offsets: Any = None,
        cu_seqlens: Any = None,
        freq_sets: Any = None,
        positions_layout: str | None = None,
        cos_sin: Any = None,
        cos_sin_format: str | None = None,
        pool: Pool | None = None,
        shard: Shard | None = None,
        batch_repeat: int | None = None,
    ) -> tuple[Any, Any]:
        """Rotates q and k into new arrays, or into out. On an error nothing has been written.

        Args:
            q, k: arrays of float32, float16 or bfloat16 with axes as layout says. Any strides, but channels
                adjacent. Either may be None. channels: head_dim, or rotary_dim for the span alone.
            positions: an int p, token i of every sequence being at p + i (operation "shift": every
                token moves by p); a list or range of ints; or int32, int64 or float32 [tokens],
                [batch, tokens], [axes, batch, tokens], or [axes, tokens] without a batch.
            v: values of the tokens, with the axes of k and any heads and channels. They do not turn:
                they are copied to cache.v, or to a third array in out, or to both. New values, with a gradient:
                librope.torch.apply_qkv.
            cache: a librope.KVCache: k and v are stored in its slots, k with the bits that out would
                have. k itself is only read, and not returned, unless out has an array for it. No
                gradient goes through a cache, and "backward" stores nothing.
            norms: a librope.Norms: q and k, and v on its way, are normed in the same pass. A Rope without
                rotation ("nope") norms alone. "forward" only. Gradients of torch tensors go through norms, to
                their weights and biases, too, in new arrays without v and a cache.
            layout: such as "bhsd", or one for q and one for k: ("bhsd", "bsd"). Required, unless the Rope has one.
            rest: a second such array as v, with the axes of q (or, without q, of k): the channels of MLA
                that do not turn, beside those that do. It is copied to a fourth array in out.
            out: (q_out, k_out), or with v (q_out, k_out, v_out), or with rest (q_out, k_out, v_out, rest_out),
                each an array like its input, which may be the input itself, or None. Its dtype may be another,
                float32, float16 or bfloat16, to which results are rounded once, float8_e4m3fn, float8_e5m2 or
                int8, or uint8: the bytes of ggml's Q8_0, 34 in place of 32 channels. Its heads may be m times as
                many, each written m times in a row ("backward": the input's, which are added).
            scales: a librope.Scales: what the codes of outputs of 8 bits stand for.
            operation: "forward" a R(p) x; "backward" a R(-p) x, the gradient; "inverse" 1/a R(-p) x, which undoes
                forward; "shift" R(p) x, which moves rotated keys by the distances p. a: attention_factor.
            offsets: int32 or int64 [sequences], a list or a range, instead of positions: the position of the
                first token of each sequence (operation "shift": the distance of all its tokens).
            cu_seqlens: [sequences + 1], with "thd": starts of packed sequences, and tokens. Like freq_sets
                int32, or in main memory int64 and lists, which each call copies (bind: int32 and lists).
            freq_sets: [sequences]; see Rope.sets.
            positions_layout: what the axes of positions are, if not "t", "bt" or "abt": "bta", ...
                An axis that is missing is shared. Required for two axes where the batch has as many
                rows as a token has ids: "bt" or "at".
            cos_sin, cos_sin_format: rows of cos and sin instead of positions, as cos_sin() makes
                them: (cos, sin) for "split", "full_halves", "full_interleaved", else one array.
                Four axes, those of layout, are [batch or 1, tokens, heads, row]: adjacent heads share.
            pool: threads for a long call.
            shard: a librope.Shard, where q and k are the tokens of one of several ranks; it says what
                positions are then.
            batch_repeat: so many batch rows, one after the other, share positions, offsets and freq_sets, of
                which there are those of batch / batch_repeat rows: the groups of a grouped QKV.

        Returns:
            (q, k): new arrays of the same libraries, shapes and dtypes; out if given; None for k in a
            cache alone. torch tensors that require gradients get them; JAX arrays go through librope.jax.

        Raises:
            ValueError: a shape, stride or value that breaks a rule; layout or positions missing; a
                position that takes valid_below tokens or more.
            TypeError: a dtype or kind of object that cannot be taken.
            NotImplementedError: pool= under a gradient or in compiled code; out=, v=, cache= and rest=
                under a gradient, and norms= beside them, in place, of span "given" or order "after".
            RuntimeError: an output that requires a gradient; a device without its backend.
        """
        call = Call(
            q, k, positions, v, checked(cache), checked_norms(norms), layout, operation, offsets,
            cu_seqlens, freq_sets, positions_layout, cos_sin, cos_sin_format, pool, shard,
            batch_repeat, rest, checked_scales(scales),
        )  # fmt: skip
        made = outputs(out, call)
        if not call.rotates:
            return run_fused(self, call, made, False)
        q_out, k_out = made[:2]
        library = library_of(q, k)
        rotated: tuple[Any, Any]
        if library == "torch":
            torch = load("torch")
            if torch.needs_dispatcher(q, k, positions) or (cos_sin is not None and torch.rows_want_gradient(cos_sin)):
                rotated = torch.apply_qk(self, call) if out is None else torch.apply_fused(self, call, made, False)
                return rotated
        elif library == "jax" and out is None:
            rotated = load("jax").apply_qk(self, call)
            return rotated
        elif type(positions) not in _WITHOUT_GRADIENT:
            refuse_gradients(call)
        announce = None if out is None else _arrays.announcer(q_out, k_out)
        if q_out is None and q is not None:
            q_out = _arrays.empty_like(q, "q")
        if k_out is None and k is not None:
            k_out = _arrays.empty_like(k, "k")
        self._run(call, q_out, k_out)
        if announce is not None:
            announce()
        return q_out, k_out

    def apply_qk_(
        self,
        q: Any,
        k: Any = None,
        positions: Any = None,
        *,
        v: Any = None,
        cache: KVCache | None = None,
        norms: Norms | None = None,
        layout: Layout = None,
        operation: Operation = "forward",
        offsets: Any = None,
        cu_seqlens: Any = None,
        freq_sets: Any = None,
        positions_layout: str | None = None,
        cos_sin: Any = None,
        cos_sin_format: str | None = None,
        pool: Pool | None = None,
        shard: Shard | None = None,
        batch_repeat: int | None = None,
    ) -> None:
        """Rotates q and k in place; k that goes to a cache stays as it is. Arguments as for apply_qk.

        Raises:
            RuntimeError: a torch tensor that requires a gradient.
            TypeError: JAX arrays, which are immutable. Otherwise as apply_qk.
        """
        # The way of a decode step in NumPy: attributes, one dictionary, one crossing.
        if (
            type(q) is _ndarray
            and type(k) is _ndarray
            and offsets is cu_seqlens is freq_sets is cos_sin is cos_sin_format is v is cache is None
            and norms is None
            and pool is None
            and shard is None
            and batch_repeat is None
            and positions_layout is None
        ):
            try:
                if type(positions) is _ndarray:
                    template = self._fast[
                        q.shape, k.shape, positions.shape, q.dtype, k.dtype, positions.dtype,
                        layout, operation,
                    ]  # fmt: skip
                    status = _call_buffers(
                        self._cpu, template, _from_buffer(_BYTES, q, True),
                        _from_buffer(_BYTES, k, True), _from_buffer(_BYTES, positions), 0,
                    )  # fmt: skip
                elif type(positions) is int:
                    template = self._fast[q.shape, k.shape, None, q.dtype, k.dtype, layout, operation]
                    status = _call_buffers(
                        self._cpu, template, _from_buffer(_BYTES, q, True),
                        _from_buffer(_BYTES, k, True), _NULL, positions,
                    )  # fmt: skip
                else:
                    raise KeyError
            except (KeyError, ValueError, TypeError, BufferError, OverflowError):
                pass  # seen for the first time, not contiguous, or wrong: below
            else:
                if status:
                    raise _core.error(status, "apply_qk_")
                return
        call = Call(
            q, k, positions, v, checked(cache), checked_norms(norms), layout, operation, offsets,
            cu_seqlens, freq_sets, positions_layout, cos_sin, cos_sin_format, pool, shard, batch_repeat,
        )  # fmt: skip
        if not call.rotates:
            run_fused(self, call, (None, None, None, None), True)
            return
        library = library_of(q, k)
        if library == "torch":
            load("torch").apply_qk_(self, call)
            return
        if library == "jax":
            raise TypeError("JAX arrays are immutable: use apply_qk")
        if type(positions) not in _WITHOUT_GRADIENT:
            refuse_gradients(call)
        self._run(call)

    def apply(self, x: A, positions: Any = None, *, out: Any = None, **options: Unpack[OutOptions]) -> A:
        """apply_qk of one array. Raises what it raises."""
        rotated: A = self.apply_qk(x, None, positions, out=None if out is None else (out, None), **options)[0]
        return rotated

    def apply_(self, x: Any, positions: Any = None, **options: Unpack[CallOptions]) -> None:
        """apply_qk_ of one array. Raises what it raises."""
        self.apply_qk_(x, None, positions, **options)

    def bind(
        self,
        q: Any,
        k: Any = None,
        positions: Any = None,
        *,
        v: Any = None,
        cache: KVCache | None = None,
        rest: Any = None,
        norms: Norms | None = None,
        scales: Scales | None = None,
        out: tuple[Any, ...] | None = None,
        **options: Unpack[BindOptions],
    ) -> Bound:
        """A call that is made many times on the same arrays, in place or into out.

            step = rope.bind(q, k, positions)      # q, k, positions are kept and may change content
            for ...: step()

        The call costs one crossing, and a look at float positions. With an int as positions, step(p)
        rotates by p, and so does step() from then on. It goes by the memory that the arrays have now:
        torch tensors that are given other memory later (x.data = .., set_, resize_, a storage that was
        freed and has another address or size now) are refused in every step, and where gradients are
        enabled those that require them, weights of norms too: call it under torch.no_grad() then.
        Lists and ranges are read here. CUDA: the stream is the one that was current here. Not traceable
        by torch.compile.

        options: those of apply_qk, but cos_sin. Raises what apply_qk raises, and ValueError for positions
        and starts that are an array without dimensions, whose content would be read here.
        """
        check_options("bind", options, BindOptions.__optional_keys__)
        call = Call(
            q, k, positions, v=v, cache=checked(cache), norms=checked_norms(norms), rest=rest,
            scales=checked_scales(scales), **options,
        )  # fmt: skip
        return self._bind(call, *outputs(out, call))

    def cos_sin(
        self,
        positions: Any,
        *,
        format: str = "full_halves",
        dtype: Any = None,
        out: Any = None,
        positions_layout: str | None = None,
        batch: int | None = None,
        tokens: int | None = None,
    ) -> Any:
        """Rows of cos and sin of positions, with the attention factor in them.

        Args:
            positions: as for apply_qk; with an int p, tokens= rows from p on. Without a gradient.
            format: what a row holds: a librope.CosSinFormat, such as "full_halves" (transformers),
                "packed" (vLLM) or "split" (flash-attn).
            dtype: "float32", "float16" or "bfloat16" (ml_dtypes). None: that of out, or float32.
            out: an array, or (cos, sin), to write into. If it is missing, torch positions give
                torch tensors on their device, JAX positions JAX arrays, and others NumPy arrays.
            positions_layout: the axes of positions, if not "t", "bt" or "abt". Required for two
                axes if the Rope has several: "bt" or "at".
            batch, tokens: rows of a batch, and tokens, where positions do not tell; all are alike then, but
                the tokens of one number p.

        Returns:
            (cos, sin) for "split", "full_halves", "full_interleaved", else one array:
            [batch, tokens, width], or [tokens, width] for positions [tokens] or an int. With
            frequencies for each head [.., tokens, heads, width], which apply_qk takes as
            [batch, tokens, heads, width] with the layout "bshd".

        Raises:
            ValueError: an unknown format or dtype, a shape that does not fit, missing tokens= or
                positions_layout=, or a position that takes valid_below tokens.
            TypeError: a dtype of positions that cannot be taken; no NumPy and no out=.
        """
        return rows_of(self, positions, format, dtype, out, positions_layout, batch, tokens)


# So that Python's own messages, of missing arguments for instance, name the class that a user knows.
for _part in (Mover, Caller, Preparer, Differentiator):
    for _method in vars(_part).values():
        if callable(_method) and not isinstance(_method, type):
            _method.__qualname__ = f"Rope.{_method.__name__}"


def _rebuild(configs: Sequence[Mapping[str, Any]], layout: Layout, follows: Sequence[str] = ()) -> Rope:
    self = Rope.__new__(Rope)
    self._init(configs, layout, follows)
    return self
