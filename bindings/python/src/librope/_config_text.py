"""The text of a config.json or a GGUF file, and the fields of the kinds of RoPE that it describes."""

from __future__ import annotations

import json
import os
import pathlib
from collections.abc import Iterable, Mapping
from typing import Any

from ._changes import KnownFields, changed, follows_of
from ._core import Config, check, from_struct, integer, real
from ._ffi import ffi, lib
from ._folder import located
from ._kv_mark import is_kv_file, is_safetensors

# Scalings with other frequencies in longer sequences. The library cannot be asked, because a config
# tells it before the configuration is complete; a test compares.
_DEPEND_ON_LENGTH = ("dynamic", "dynamic_steps", "longrope")


#: The pairings that an unknown model may have, and whose they are.
PAIRINGS = {"halves": "transformers", "interleaved": "GPT-J, Meta"}
#: Kinds beside the language model.
TOWERS = ("vision", "audio")
#: How a GGUF file begins.
GGUF_MAGIC = b"GGUF"


def turns(config: Mapping[str, Any]) -> bool:
    """False for layers without RoPE."""
    return config.get("scaling") != "nope"


def depends_on_length(config: Mapping[str, Any]) -> bool:
    """Whether sequences of other lengths have other frequencies."""
    return config.get("scaling") in _DEPEND_ON_LENGTH and config.get("inv_freq") is None


def length_before_scaling(config: Mapping[str, Any]) -> int | None:
    """The tokens that the model was trained with, before its context was made longer."""
    length: int | None = config.get("original_max_position_embeddings")
    if length is None and depends_on_length(config):
        length = config.get("max_position_embeddings")
    return length


def left_open(config: Mapping[str, Any]) -> list[str]:
    """The fields that a model's config may leave to the caller, and has left."""
    if not turns(config):
        return []
    needed = ["seq_len"] if depends_on_length(config) else []
    return [name for name in (*needed, "pairing", "head_dim") if not config.get(name)]


def config_text(config: Any) -> bytes:
    """The JSON of a path, folder, dictionary, bytes or transformers config."""
    if isinstance(config, (bytes, bytearray)):
        _refuse_gguf(bytes(config[: len(GGUF_MAGIC)]))
        return bytes(config)
    if isinstance(config, str) and config.lstrip()[:1] == "{":
        raise TypeError("config is JSON text, and a str must be a path: pass json.loads(text)")
    if isinstance(config, str) and "\0" in config:  # no path, and perhaps the text of a file
        _refuse_gguf(config[: len(GGUF_MAGIC)].encode())
    if isinstance(config, (str, os.PathLike)):
        path = pathlib.Path(located(config))
        with path.open("rb") as file:
            head = file.read(9)
            _refuse_gguf(head[: len(GGUF_MAGIC)], "" if path == pathlib.Path(config) else f" ({path})")
            if is_safetensors(head):
                raise ValueError(f"{path} is a {'KV file: librope kv inspect shows it' if is_kv_file(path) else '.safetensors file'}, "
                                 "and a config must be JSON")  # fmt: skip
            return head + file.read()
    if isinstance(config, Mapping):
        return json.dumps(config, default=_plain).encode()
    to_json = getattr(config, "to_json_string", None)  # transformers, and what imitates it
    if to_json is not None:
        return str(to_json(use_diff=False)).encode()
    raise TypeError(
        f"config is a {type(config).__qualname__}, and must be a path, a dict, bytes of JSON or a "
        "transformers config"
    )


def _refuse_gguf(head: bytes, where: str = "") -> None:
    """head: the first bytes of a config."""
    if head == GGUF_MAGIC:
        raise ValueError(f"config is a GGUF file{where}, and must be JSON: librope.Model.from_gguf reads GGUF")


def _plain(value: Any) -> Any:
    """Scalars and arrays of NumPy in a dictionary."""
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"config has {value!r}, a {type(value).__qualname__}, which JSON does not have")


def _names(accepted_keys: Any) -> tuple[str, ...]:
    if isinstance(accepted_keys, (str, bytes)):
        raise TypeError("accepted_keys is one text, and must be a list of names")
    names = tuple(accepted_keys)
    for i, name in enumerate(names):
        if not isinstance(name, str):
            kind = type(name).__qualname__
            raise TypeError(f"accepted_keys[{i}] is {name!r}, a {kind}, and must be a str")
        if "\0" in name:
            raise ValueError(f"accepted_keys[{i}] ({name!r}) must not have a NUL character")
    return names


# The numbers that GGUF has for types: of what Python's are given as, whatever the file's were.
_GGUF_FLAG, _GGUF_STRING, _GGUF_ARRAY, _GGUF_INTEGER, _GGUF_NUMBER = 7, 8, 9, 11, 12
_GGUF_LISTS = {bool: (_GGUF_FLAG, "uint8_t[]"), int: (_GGUF_INTEGER, "int64_t[]"),
               float: (_GGUF_NUMBER, "double[]")}  # fmt: skip


def _gguf_value(key: str, value: Any, keep: list[Any]) -> tuple[int, int, int, Any]:
    """Type, type of the elements, count and data of a value; `keep` is what owns the data."""
    if hasattr(value, "tolist"):  # of NumPy
        value = value.tolist()

    def owned(what: str, content: Any) -> Any:
        keep.append(ffi.new(what, content))
        return keep[-1]

    if isinstance(value, bool):
        return _GGUF_FLAG, 0, 1, owned("uint8_t[]", [value])
    if isinstance(value, int):
        return _GGUF_INTEGER, 0, 1, owned("int64_t[]", [integer(value, f"source[{key!r}]")])
    if isinstance(value, float):
        return _GGUF_NUMBER, 0, 1, owned("double[]", [value])
    if isinstance(value, str):
        text = value.encode()
        return _GGUF_STRING, 0, len(text), owned("char[]", text)
    if isinstance(value, (list, tuple)):
        kinds = {type(entry) for entry in value}
        if kinds <= {str, bytes}:  # of a vocabulary: not looked at
            return _GGUF_ARRAY, _GGUF_STRING, len(value), ffi.NULL
        if len(kinds) == 1 and (kind := kinds.pop()) in _GGUF_LISTS:
            number, what = _GGUF_LISTS[kind]
            return _GGUF_ARRAY, number, len(value), owned(what, list(value))
    raise TypeError(
        f"source[{key!r}] is a {type(value).__qualname__}, and must be a bool, int, float, str, or a "
        "list of one of them"
    )


def _numbers_of(values: Any, name: str) -> list[float]:
    if isinstance(values, (str, bytes, bytearray)) or not hasattr(values, "__iter__"):
        raise TypeError(f"{name} is {values!r}, and must be a sequence of numbers")
    return [real(number, f"{name}[{i}]") for i, number in enumerate(values)]


def _create_of_values(source: Mapping[Any, Any], factors: Mapping[Any, Any], out: Any) -> int:
    keep: list[Any] = []  # C's pointers do not own

    def name(text: Any, where: str) -> Any:
        if not isinstance(text, str) or "\0" in text:
            raise TypeError(f"{where} has a key {text!r}, and must have names")
        keep.append(ffi.new("char[]", text.encode()))
        return keep[-1]

    values = ffi.new("rope_gguf_value[]", len(source))
    for given, (key, value) in zip(values, source.items()):
        given.key = name(key, "source")
        given.type, given.element, given.count, given.data = _gguf_value(key, value, keep)
    tensors = ffi.new("rope_gguf_factors[]", len(factors))
    for given, (key, value) in zip(tensors, factors.items()):
        numbers = ffi.new("float[]", _numbers_of(value, f"factors[{key!r}]"))
        keep.append(numbers)
        given.name, given.values, given.count = name(key, "factors"), numbers, len(numbers)
    status: int = lib.rope_model_create_gguf_values(values, len(source), tensors, len(factors), out)
    return status


class ModelText:
    """A model as its text says it. Model makes Ropes of it."""

    def __init__(self, config: Any, *, accepted_keys: Iterable[str] = ()) -> None:
        self._text = text = config_text(config)
        self._accepted = accepted = _names(accepted_keys)
        out = ffi.new("rope_model**")
        if accepted:
            names = [ffi.new("char[]", name.encode()) for name in accepted]
            keys = ffi.new("char*[]", names)
            check(lib.rope_model_create_accepting(text, len(text), keys, len(names), out))
        else:
            check(lib.rope_model_create(text, len(text), out))
        self._take(out[0])

    def _read_gguf(self, source: Any, factors: Mapping[str, Any] | None) -> None:
        """What from_gguf makes, instead of __init__."""
        self._text = b"{}"  # there is none
        self._gguf = source, factors
        out = ffi.new("rope_model**")
        if isinstance(source, Mapping):
            if factors is None:
                raise TypeError(
                    "factors is missing: with a dictionary of keys, the tensors whose names begin with "
                    "'rope_' (Llama 3.1, Phi-3 and others are scaled by them), or {} if the file has none"
                )
            if not isinstance(factors, Mapping):
                raise TypeError(
                    f"factors is a {type(factors).__qualname__}, and must be a dictionary of tensors by "
                    'name, such as {"rope_freqs.weight": numbers}'
                )
            check(_create_of_values(source, factors, out))
        elif factors is not None:
            raise TypeError("factors are for a source of keys: files and bytes have them")
        elif isinstance(source, (str, os.PathLike)):
            name = os.fsencode(source)
            if b"\0" in name:
                raise ValueError(f"source is {source!r}, and must have no zero byte")
            with open(source, "rb"):  # OSError, with its own reason
                pass
            check(lib.rope_model_load_gguf(name, out))
        else:
            with memoryview(source) as view:  # TypeError if it is no buffer
                check(lib.rope_model_create_gguf(ffi.from_buffer(view), view.nbytes, out))
        self._take(out[0])

    def _take(self, model: Any) -> None:
        self._model = ffi.gc(model, lib.rope_model_destroy)
        #: Names of the kinds: "full_attention", "sliding_attention", "nope", "vision", ...
        self.layer_types: tuple[str, ...] = tuple(
            ffi.string(lib.rope_model_layer_type_name(self._model, i)).decode()
            for i in range(lib.rope_model_layer_type_count(self._model))
        )

    @property
    def notes(self) -> tuple[str, ...]:
        """What the text says that programs treat differently and that is no part of a configuration
        (dual_chunk_attention_config), and how a text of another program than transformers was read."""
        found: list[str] = []
        while (note := lib.rope_model_note(self._model, len(found))) != ffi.NULL:
            found.append(ffi.string(note).decode())
        return tuple(found)

    def layer_type(self, layer: int) -> str:
        """The kind of one layer of the language model. ValueError beyond the last."""
        out = ffi.new("int32_t*")
        layer = integer(layer, "layer", ffi.typeof(lib.rope_model_layer_type).args[1])
        check(lib.rope_model_layer_type(self._model, layer, out))
        name: str = self.layer_types[out[0]]
        return name

    @property
    def layers(self) -> tuple[str, ...]:
        """The kind of every layer of the language model; empty if there are none, and if the config
        does not tell their number."""
        found: list[str] = []
        try:
            while True:
                found.append(self.layer_type(len(found)))
        except (ValueError, NotImplementedError):
            return tuple(found)

    def config(self, layer_type: str) -> Config:
        """The fields of one kind, by their names in rope.h. ValueError for an unknown kind."""
        number = self._kind(layer_type)
        struct = ffi.new("rope_config*")
        struct.struct_size = ffi.sizeof("rope_config")
        check(lib.rope_model_config(self._model, number, struct))
        return KnownFields(from_struct(struct), self.follows(layer_type))

    def _kind(self, layer_type: str) -> int:
        if layer_type not in self.layer_types:
            raise ValueError(
                f"layer_type is {layer_type!r}, and must be one of {', '.join(self.layer_types)}"
            )
        return self.layer_types.index(layer_type)

    def follows(self, layer_type: str) -> tuple[str, ...]:
        """What the notes say of fields of a kind that follow from several numbers of the text."""
        return follows_of(self.notes, layer_type)

    def kind_of(self, layer: int | None, layer_type: str | None) -> str:
        """The kind of a layer, or the one that is named, or the only one."""
        if layer is not None and layer_type is not None:
            raise ValueError("layer and layer_type: at most one of them")
        if layer is not None:
            layer_type = self.layer_type(layer)
        if layer_type is None:
            kinds = self.layer_types
            if len(kinds) > 1:  # towers and indexers beside one kind of layer are no choice
                kinds = tuple(dict.fromkeys(self.layers)) or kinds
            if len(kinds) != 1:
                raise ValueError(
                    f"the model has several kinds of RoPE ({', '.join(self.layer_types)}): say "
                    "layer= or layer_type="
                )
            layer_type = kinds[0]
        return layer_type

    def fields_of(self, layer_type: str, seq_len: int | None, changes: Mapping[str, Any]) -> Config:
        """The fields of the Rope of a kind, with changes."""
        config = changed(self.config(layer_type), changes, self.follows(layer_type))
        if seq_len is not None:
            seq_len = integer(seq_len, "seq_len", low=0)
        if depends_on_length(config):
            if seq_len is None:
                raise ValueError(
                    f"seq_len= is required: the frequencies of {config['scaling']} depend on how "
                    "many tokens the sequence has when attention runs"
                )
            config["seq_len"] = seq_len
        if "pairing" in left_open(config):
            raise ValueError(
                f"pairing= is required: {self._name()} does not tell which channels form a pair. "
                f"Pass {' or '.join(f'{p!r} ({who})' for p, who in PAIRINGS.items())}"
            )
        return config

    def _name(self) -> str:
        content = json.loads(self._text)
        name = content.get("model_type") if isinstance(content, dict) else None
        return f"the model_type {name!r}" if name else "a config without model_type"
