"""What librope diff compares: a config.json, a GGUF file, a folder with one, or a model that the Hugging
Face cache has. Nothing is downloaded."""

from __future__ import annotations

import pathlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ... import Model
from ..._config_text import config_text, left_open
from ..._folder import located
from .. import kinds
from ..source import completed, is_gguf


@dataclass
class Source:
    """One description."""

    name: str  # as the user has it
    path: pathlib.Path
    gguf: bool
    model: Model
    told: str | None  # model_type, or the architecture of the file
    longest: int | None  # the longest sequence, if the text says
    given: dict[str, Any]  # what the user adds
    accepted: bool = False  # whether it was read because of the user's --accept

    @property
    def dialect(self) -> str:
        """Which program's: GGUF, config.json, or what the library's note says."""
        if self.gguf:
            return "GGUF"
        read_as = [n.removeprefix(_READ_AS) for n in self.model.notes if n.startswith(_READ_AS)]
        return read_as[0].partition(":")[0] if read_as else "config.json"

    def fields(self, kind: str) -> dict[str, Any]:
        return completed(self.model.config(kind), self.given)

    def leaves_open(self, name: str) -> bool:
        """Whether a field is left to the user in some kind of layer."""
        return any(name in left_open(self.model.config(kind)) for kind in self.model.layer_types)


_READ_AS = "read as "  # how the note of another program's text begins
_ID = re.compile(r"[\w.-]+/[\w.-]+")


def locate(text: str) -> pathlib.Path:
    """The file that a path, a folder or a model id names."""
    path = pathlib.Path(text)
    if not path.exists() and _ID.fullmatch(text):
        path = _cached(text)
    return pathlib.Path(located(path))


def _cached(model_id: str) -> pathlib.Path:
    try:
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import LocalEntryNotFoundError
    except ModuleNotFoundError:
        raise FileNotFoundError(
            f"{model_id} is no file or folder; if it is a model in the Hugging Face cache: pip install "
            "huggingface_hub"
        ) from None
    try:
        return pathlib.Path(snapshot_download(model_id, local_files_only=True))
    except LocalEntryNotFoundError:
        raise FileNotFoundError(
            f"{model_id} is no file or folder, and the Hugging Face cache has no such model"
        ) from None


def read(text: str, given: dict[str, Any], accept: Sequence[str] = ()) -> Source:
    """accept: keys of a config.json that change nothing; one that is read without them needs none."""
    path = locate(text)
    if is_gguf(path):
        return Source(text, path, True, Model.from_gguf(path), architecture(path), None, given)
    content, accepted = config_text(path), False
    try:
        model = Model(content)
    except NotImplementedError:
        if not accept:
            raise
        model, accepted = Model(content, accepted_keys=accept), True
    longest = kinds.longest(path)
    return Source(text, path, False, model, kinds.model_type(path), longest, given, accepted)


def architecture(path: pathlib.Path) -> str | None:
    """general.architecture, which writers put first; None if it stands elsewhere."""
    with path.open("rb") as file:
        head = file.read(256)
    name = b"general.architecture"
    key = len(name).to_bytes(8, "little") + name + (8).to_bytes(4, "little")
    at = head.find(key)
    if at < 0:
        return None
    start = at + len(key) + 8
    length = int.from_bytes(head[start - 8 : start], "little")
    return head[start : start + length].decode("ascii", "replace") if length <= 64 else None
