"""Rope: one kind of rotary embedding, applied to arrays of any library."""

from __future__ import annotations

import threading
from array import array
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from . import _arrays, _core
from ._bound import Bound
from ._core import OPERATIONS, Angle, Config, Operation, Pairing, Rounding, check
from ._ffi import ffi, lib
from ._pool import Pool
from ._prepare import Key, Prepared, prepare, split_layout

A = TypeVar("A")
B = TypeVar("B")
Layout = str | tuple[str, str] | None

_ndarray = _arrays.ndarray
_from_buffer = ffi.from_buffer
_BYTES = ffi.typeof("char[]")
_NULL = ffi.NULL
_call_buffers = lib.call_buffers
_call_addresses = lib.call_addresses
_NAMES = ("q", "k", "out of q", "out of k", "positions", "cu_seqlens", "freq_sets", "cos", "sin")
_CACHE = 512  # prepared calls kept per Rope; decode with growing shapes must not fill memory


class Rope:
    """Rotary position embedding with the frequencies and conventions of one kind of layer.

    Immutable, and safe to share between threads. It holds no table: every position is valid.

    Args:
        head_dim: channels of a head of q and k.
        theta: rope_theta of config.json.
        pairing: which channels form a pair: "halves" (transformers, NeoX), "interleaved" (GPT-J,
            Meta), "interleaved_to_halves" (DeepSeek-V3), "halves_per_axis". Required: a wrong
            guess is fluent nonsense.
        rotary_dim: channels that turn; all, if not given.
        angle: "float32" as models were trained, or "exact".
        rounding: "float32" (once, on store), "eager" (as eager PyTorch, bit for bit), "cos_sin".
        layout: what the axes of arrays are, unless a call says otherwise. Without it, four axes
            are "bshd" (batch, tokens, heads, channels) and three are "thd".
        fields: the other fields of rope_config in rope.h, by their names: scaling="yarn", factor=,
            original_max_position_embeddings=, seq_len=, mrope_section=, inv_freq=, ...
    """

    def __init__(
        self,
        *,
        head_dim: int,
        theta: float | None = None,
        pairing: Pairing | None = None,
        rotary_dim: int | None = None,
        angle: Angle | None = None,
        rounding: Rounding | None = None,
        layout: Layout = None,
        **fields: Any,
    ) -> None:
        config = {
            "head_dim": head_dim,
            "theta": theta,
            "pairing": pairing,
            "rotary_dim": rotary_dim,
            "angle": angle,
            "rounding": rounding,
            **fields,
        }
        self._init([config], layout)

    def _init(self, configs: Sequence[Mapping[str, Any]], layout: Layout) -> None:
        self._configs = [{k: v for k, v in c.items() if v is not None} for c in configs]
        self.layout = layout
        self.spec = _core.to_text(self._configs[0]) if len(configs) == 1 else ""
        self._prepared: dict[Any, Prepared] = {}
        self._fast: dict[Any, Any] = {}
        self._contexts: dict[int, Any] = {}
        self._lock = threading.Lock()
        self._cpu = self._context(-1)
        info = ffi.new("rope_info*")
        info.struct_size = ffi.sizeof("rope_info")
        check(lib.rope_context_info(self._cpu, 0, info))
        self.head_dim: int = info.head_dim
        self.rotary_dim: int = info.rotary_dim
        self.rotary_offset: int = info.rotary_offset
        self.pairs: int = info.pairs
        self.axes: int = info.axes
        self.freq_sets: int = info.freq_sets
        #: Multiplies cos and sin, so q.k by its square (YaRN, LongRoPE).
        self.attention_factor: float = info.attention_factor
        #: For the caller to multiply into the softmax scale; 1 except for YaRN of DeepSeek.
        self.softmax_factor: float = info.softmax_factor
        self._dims = (self.head_dim, self.rotary_dim)

    @classmethod
    def from_config(
        cls,
        config: Any,
        *,
        layer: int | None = None,
        layer_type: str | None = None,
        layout: Layout = None,
        **changes: Any,
    ) -> Rope:
        """The RoPE of a model.

        Args:
            config: path of a config.json or of its folder, its content (dict or bytes), or a
                transformers config. A rope_parameters dictionary alone needs head_dim= and
                pairing=.
            layer, layer_type: which, where layers differ: a number, or a name of
                Model(config).layer_types such as "sliding_attention".
            changes: fields that replace those of the config: seq_len= (required by dynamic NTK and
                LongRoPE), angle=, rounding=, ...
        """
        from ._model import Model

        model = config if isinstance(config, Model) else Model(config)
        return model.rope(layer=layer, layer_type=layer_type, layout=layout, **changes)

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any], *, layout: Layout = None) -> Rope:
        """The inverse of the attribute config."""
        self = cls.__new__(cls)
        self._init([fields], layout)
        return self

    @classmethod
    def sets(cls, ropes: Sequence[Rope], *, layout: Layout = None) -> Rope:
        """One Rope with the frequencies of several, for batches whose sequences differ in them.

        Calls then need freq_sets, int32 [sequences]: the index into ropes of every sequence. The
        ropes may differ in frequencies and attention factor, and in nothing else.
        """
        self = cls.__new__(cls)
        self._init([r.config for r in ropes], layout if layout is not None else ropes[0].layout)
        return self

    @property
    def config(self) -> Config:
        """The fields that were given, by their names in rope.h."""
        return dict(self._configs[0])

    def replace(self, **changes: Any) -> Rope:
        """A Rope with some fields changed: rope.replace(seq_len=8192, angle="exact")."""
        layout = changes.pop("layout", self.layout)
        return Rope.from_fields({**self._configs[0], **changes}, layout=layout)

    def next_change(self, seq_len: int) -> int | None:
        """The smallest length above seq_len with other frequencies (dynamic NTK, LongRoPE)."""
        struct, keep = _core.to_struct(self._configs[0])
        out = ffi.new("int64_t*")
        check(lib.rope_config_next_change(struct, seq_len, out))
        del keep
        return None if out[0] == 2**63 - 1 else int(out[0])

    def inv_freq_of(self, freq_set: int) -> list[float]:
        """Radians per position of every pair, of one frequency set."""
        out = ffi.new("double[]", self.pairs)
        check(lib.rope_context_inv_freq(self._cpu, freq_set, out, self.pairs))
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
        fields = ", ".join(f"{k}={_short(v)}" for k, v in self._configs[0].items())
        more = f", {self.freq_sets} frequency sets" if self.freq_sets > 1 else ""
        return f"Rope({fields}{more})"

    def __reduce__(self) -> Any:
        return _rebuild, (self._configs, self.layout)

    # -- applying -------------------------------------------------------------------------------

    def apply_qk(
        self,
        q: A,
        k: B = None,  # type: ignore[assignment]
        positions: Any = None,
        *,
        layout: Layout = None,
        out: tuple[Any, Any] | None = None,
        operation: Operation = "forward",
        offsets: Any = None,
        cu_seqlens: Any = None,
        freq_sets: Any = None,
        positions_layout: str | None = None,
        cos_sin: Any = None,
        cos_sin_format: str | None = None,
        pool: Pool | None = None,
    ) -> tuple[A, B]:
        """Rotates q and k into new arrays, or into out.

        Args:
            q, k: arrays of float32, float16 or bfloat16 with axes as layout says: [batch, tokens,
                heads, channels] or [tokens, heads, channels] by default. Any strides, but channels
                adjacent. Either may be None. channels: head_dim, or rotary_dim for the span alone.
            positions: an int p, token i of every sequence being at p + i; or int32, int64 or
                float32 [tokens], [batch, tokens], [axes, batch, tokens].
            layout: such as "bhsd", or one for q and one for k: ("bhsd", "bsd").
            out: (q_out, k_out), each an array like its input, which may be the input itself.
            operation: "forward" a R(p) x; "backward" a R(-p) x, the gradient; "inverse"
                1/a R(-p) x, which undoes forward; "shift" R(p) x, which moves rotated keys.
                a: attention_factor.
            offsets: int32 or int64 [sequences], instead of positions: the position of the first
                token of each sequence.
            cu_seqlens: int32 [sequences + 1], with "thd": the first token of each packed sequence,
                and the number of tokens.
            freq_sets: int32 [sequences]; see Rope.sets.
            positions_layout: what the axes of positions are, if not "t", "bt" or "abt": "bta", ...
            cos_sin, cos_sin_format: rows of cos and sin instead of positions, as cos_sin() makes
                them: (cos, sin) for "split", "full_halves", "full_interleaved", else one array.
            pool: threads for a long call.

        Returns:
            (q, k): new arrays of the same libraries, shapes and dtypes; out if given. torch
            tensors that require gradients get them, and JAX arrays go through librope.jax.
        """
        if (
            type(q) is _ndarray
            and out is offsets is cu_seqlens is freq_sets is cos_sin is pool is None
        ):
            library = "numpy"
        else:
            library = _arrays.framework(q if q is not None else k)
        if library == "torch":
            from . import torch as _torch

            if _torch.needs_dispatcher(q, k):
                _refuse(
                    "a gradient or torch.compile",
                    out=out, cu_seqlens=cu_seqlens, freq_sets=freq_sets, cos_sin=cos_sin, pool=pool,
                )  # fmt: skip
                return _torch.apply_qk(
                    self, q, k, positions, layout=layout, operation=operation, offsets=offsets,
                    positions_layout=positions_layout,
                )  # fmt: skip
        elif library == "jax" and out is None:
            from . import jax as _jax

            _refuse("JAX arrays", cu_seqlens=cu_seqlens, freq_sets=freq_sets, cos_sin=cos_sin,
                    pool=pool)  # fmt: skip
            return _jax.apply_qk(
                self, q, k, positions, layout=layout, operation=operation, offsets=offsets,
                positions_layout=positions_layout,
            )  # fmt: skip
        q_out: Any = None
        k_out: Any = None
        if out is not None:
            q_out, k_out = out
        if q_out is None and q is not None:
            q_out = _arrays.empty_like(q, "q")
        if k_out is None and k is not None:
            k_out = _arrays.empty_like(k, "k")
        self._run(
            q, k, q_out, k_out, positions, layout, operation, offsets, cu_seqlens, freq_sets,
            positions_layout, cos_sin, cos_sin_format, pool,
        )  # fmt: skip
        return q_out, k_out

    def apply_qk_(
        self,
        q: Any,
        k: Any = None,
        positions: Any = None,
        *,
        layout: Layout = None,
        operation: Operation = "forward",
        offsets: Any = None,
        cu_seqlens: Any = None,
        freq_sets: Any = None,
        positions_layout: str | None = None,
        cos_sin: Any = None,
        cos_sin_format: str | None = None,
        pool: Pool | None = None,
    ) -> None:
        """Rotates q and k in place. Arguments as for apply_qk.

        Raises RuntimeError for torch tensors that require gradients, TypeError for JAX arrays.
        """
        # The way of a decode step in NumPy: attributes, one dictionary, one crossing.
        if (
            type(q) is _ndarray
            and type(k) is _ndarray
            and offsets is cu_seqlens is freq_sets is cos_sin is None
            and pool is None
            and positions_layout is None
        ):
            try:
                if type(positions) is _ndarray:
                    prepared = self._fast[
                        q.shape, k.shape, positions.shape, q.dtype, k.dtype, positions.dtype,
                        layout, operation,
                    ]  # fmt: skip
                    status = _call_buffers(
                        self._cpu,
                        prepared,
                        _from_buffer(_BYTES, q, True),
                        _from_buffer(_BYTES, k, True),
                        _from_buffer(_BYTES, positions),
                        0,
                    )
                elif type(positions) is int:
                    prepared = self._fast[
                        q.shape, k.shape, None, q.dtype, k.dtype, layout, operation
                    ]
                    status = _call_buffers(
                        self._cpu,
                        prepared,
                        _from_buffer(_BYTES, q, True),
                        _from_buffer(_BYTES, k, True),
                        _NULL,
                        positions,
                    )
                else:
                    raise KeyError
            except (KeyError, ValueError, TypeError, BufferError, OverflowError):
                pass  # seen for the first time, not contiguous, or wrong: below
            else:
                if status:
                    raise _core.error(status)
                return
        library = _arrays.framework(q if q is not None else k)
        if library == "torch":
            from . import torch as _torch

            _torch.before_write(q, k)
        elif library == "jax":
            raise TypeError("JAX arrays are immutable: use apply_qk")
        self._run(
            q, k, None, None, positions, layout, operation, offsets, cu_seqlens, freq_sets,
            positions_layout, cos_sin, cos_sin_format, pool,
        )  # fmt: skip

    def apply(self, x: A, positions: Any = None, **options: Any) -> A:
        """apply_qk of one array."""
        out = options.pop("out", None)
        return self.apply_qk(x, None, positions, out=None if out is None else (out, None), **options)[0]

    def apply_(self, x: Any, positions: Any = None, **options: Any) -> None:
        """apply_qk_ of one array."""
        self.apply_qk_(x, None, positions, **options)

    def bind(
        self,
        q: Any,
        k: Any = None,
        positions: Any = None,
        *,
        layout: Layout = None,
        out: tuple[Any, Any] | None = None,
        operation: Operation = "forward",
        offsets: Any = None,
        cu_seqlens: Any = None,
        freq_sets: Any = None,
        positions_layout: str | None = None,
        pool: Pool | None = None,
    ) -> Bound:
        """A call that is made many times on the same arrays, in place or into out.

            step = rope.bind(q, k, positions)      # q, k, positions are kept and may change content
            for ...: step()

        The call costs one crossing. With an int as positions, step(p) rotates by p. CUDA: the
        stream is the one that was current here.
        """
        q_out, k_out = out if out is not None else (None, None)
        bound: Bound = self._run(
            q, k, q_out, k_out, positions, layout, operation, offsets, cu_seqlens, freq_sets,
            positions_layout, None, None, pool, bind=True,
        )  # fmt: skip
        return bound

    def cos_sin(
        self,
        positions: Any,
        *,
        format: str = "full_halves",
        dtype: Any = "float32",
        out: Any = None,
        positions_layout: str | None = None,
        batch: int | None = None,
        tokens: int | None = None,
    ) -> Any:
        """Rows of cos and sin of positions, with the attention factor in them.

        Args:
            positions: as for apply_qk; with an int p, tokens= rows from p on.
            format: "packed" (c s), "packed_sin_first", "split", "full_halves" (transformers),
                "full_interleaved", "complex" (freqs_cis), "sinusoidal", "angles", "angles_full".
            dtype: "float32", "float16" or "bfloat16" (ml_dtypes).
            out: an array, or (cos, sin), to write into; NumPy arrays are made if it is missing.

        Returns:
            (cos, sin) for "split", "full_halves", "full_interleaved", else one array:
            [batch, tokens, width], or [tokens, width] for positions [tokens] or an int.
        """
        from ._rows import fill

        return fill(self, positions, format, dtype, out, positions_layout, batch, tokens)

    # -- inside ---------------------------------------------------------------------------------

    def _context(self, device: int) -> Any:
        """The context of a device, made when first needed."""
        context = self._contexts.get(device)
        if context is None:
            with self._lock:
                structs = [_core.to_struct(c, device) for c in self._configs]
                out = ffi.new("rope_context**")
                if len(structs) == 1:
                    check(lib.rope_context_create(structs[0][0], out))
                else:
                    pointers = ffi.new("rope_config*[]", [s for s, _ in structs])
                    check(lib.rope_context_create_sets(pointers, len(structs), out))
                context = ffi.gc(out[0], lib.rope_context_destroy)
                self._contexts[device] = context
        return context

    def _run(
        self,
        q: Any,
        k: Any,
        q_out: Any,
        k_out: Any,
        positions: Any,
        layout: Layout,
        operation: str,
        offsets: Any,
        cu_seqlens: Any,
        freq_sets: Any,
        positions_layout: str | None,
        cos_sin: Any,
        cos_sin_format: str | None,
        pool: Pool | None,
        bind: bool = False,
    ) -> Any:
        read = _arrays.read
        qv = None if q is None else read(q, "q", q_out is None)
        kv = None if k is None else read(k, "k", k_out is None)
        qo = None if q_out is None else read(q_out, "out of q", True)
        ko = None if k_out is None else read(k_out, "out of k", True)
        pv = cu = fs = cv = sv = None
        offset = 0
        if cos_sin is not None:
            if positions is not None or offsets is not None:
                raise ValueError("positions or offsets, and cos_sin: exactly one gives the angles")
            if not isinstance(cos_sin, (tuple, list)):
                cos_sin = (cos_sin, None)
            cv = read(cos_sin[0], "cos")
            sv = None if cos_sin[1] is None else read(cos_sin[1], "sin")
        elif offsets is not None:
            if positions is not None:
                raise ValueError("positions and offsets: exactly one of them says where tokens are")
            pv = read(offsets, "offsets")
        else:
            positions = as_positions(positions)
            if type(positions) is int:
                offset = positions
            else:
                pv = read(positions, "positions")
        if cu_seqlens is not None:
            cu = read(cu_seqlens, "cu_seqlens")
        if freq_sets is not None:
            fs = read(freq_sets, "freq_sets")

        if layout is None:
            layout = self.layout
        key = (
            qv and qv[0], kv and kv[0], qo and qo[0], ko and ko[0], layout, operation, pv and pv[0],
            positions_layout, offsets is None, cu and cu[0], fs and fs[0], cv and cv[0],
            sv and sv[0], cos_sin_format, pool,
        )  # fmt: skip
        prepared = self._prepared.get(key)
        views = (qv, kv, qo, ko, pv, cu, fs, cv, sv)
        if prepared is None:
            prepared = self._prepare(
                key, views, layout, operation, positions_layout, offsets is not None,
                cos_sin_format, pool,
            )  # fmt: skip
            self._remember(prepared, q, k, positions, key, layout, operation)

        device = (qv or kv)[3]  # type: ignore[index]
        for view in views:
            if view is not None and view[3] != device:
                name = _NAMES[views.index(view)]
                raise ValueError(f"{name} is on {_place(view[3])}, and q or k on {_place(device)}")
        context = self._cpu if device < 0 else self._context(device)
        stream = 0 if device < 0 else _arrays.current_stream(q if q is not None else k)
        addresses = [0 if v is None else v[2] for v in views]
        if bind:
            owners = (self, q, k, q_out, k_out, positions, views)
            return Bound(context, prepared, addresses, offset, stream, owners)
        if prepared.rows is not None:
            status = lib.call_rows(
                context, prepared.args, prepared.rows, *addresses[:4], *addresses[7:9], stream
            )
        else:
            status = _call_addresses(
                context, prepared.args, *addresses[:5], offset, *addresses[5:7], stream
            )
        if status:
            raise _core.error(status)
        return prepared

    def _prepare(
        self, key: Any, views: Sequence[_arrays.View | None], layout: Layout, operation: str,
        positions_layout: str | None, offsets: bool, cos_sin_format: str | None, pool: Pool | None,
    ) -> Prepared:  # fmt: skip
        if views[0] is None and views[1] is None:
            raise ValueError("q and k are both None")
        metas = [
            None if v is None else v[1](v[0], name) for v, name in zip(views, _NAMES, strict=True)
        ]
        q, k, q_out, k_out, positions, cu_seqlens, freq_sets, cos, sin = metas
        named = Key(
            q, k, q_out, k_out, layout if layout is not None else split_layout(q, k),
            _core.number(OPERATIONS, operation, "operation"), positions, positions_layout, offsets,
            cu_seqlens, freq_sets, cos, sin, cos_sin_format,
        )  # fmt: skip
        prepared = prepare(named, self._dims, self.pairs, self.axes, pool)
        if len(self._prepared) >= _CACHE:
            self._prepared.clear()
            self._fast.clear()
        self._prepared[key] = prepared
        return prepared

    def _remember(
        self, prepared: Prepared, q: Any, k: Any, positions: Any, key: Any, layout: Layout,
        operation: str,
    ) -> None:  # fmt: skip
        """Lets apply_qk_ find this call by attributes of the arrays alone, if they are compact."""
        if (
            not (type(q) is type(k) is _ndarray)
            or any(x is not None for x in (*key[2:4], key[7], *key[9:]))  # out, cu_seqlens, ...
            or not key[8]  # offsets
            or not (q.flags.c_contiguous and k.flags.c_contiguous)
        ):
            return
        if type(positions) is int:
            name: tuple[Any, ...] = (q.shape, k.shape, None, q.dtype, k.dtype)
        elif type(positions) is _ndarray and positions.flags.c_contiguous:
            name = (q.shape, k.shape, positions.shape, q.dtype, k.dtype, positions.dtype)
        else:
            return
        for text in {layout, None} if layout == self.layout else {layout}:
            full = (*name, text, operation)
            self._fast[full] = prepared.args


def as_positions(positions: Any) -> Any:
    """An int, or an array: ranges and lists of ints are given one."""
    kind = type(positions)
    if kind is int:
        return positions
    if positions is None:
        raise ValueError("positions is required: an int, or an array of int32, int64 or float32")
    if isinstance(positions, (range, list, tuple)):
        if not all(isinstance(p, int) for p in positions):
            raise TypeError("positions as a list must hold ints; nested ones need an array")
        return array("q", positions)
    if hasattr(positions, "__index__") and not getattr(positions, "shape", None):
        return int(positions)  # numpy.int64(7) and the like
    return positions


def _place(device: int) -> str:
    return "the CPU" if device < 0 else f"CUDA device {device}"


def _short(value: Any) -> str:
    if isinstance(value, list) and len(value) > 6:
        return f"[{len(value)} numbers]"
    return repr(value)


def _refuse(where: str, **options: Any) -> None:
    for name, value in options.items():
        if value is not None:
            raise NotImplementedError(f"{name}= is not available with {where}")


def _rebuild(configs: list[Config], layout: Layout) -> Rope:
    self = Rope.__new__(Rope)
    self._init(configs, layout)
    return self

