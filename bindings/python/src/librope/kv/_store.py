"""Where KV files are: local folders and object stores, by fsspec.

A file is written beside its place and renamed when it is complete, a local one when it is on the disk; in an object
store a rename is a copy by the store.
"""

from __future__ import annotations

import os
import pathlib
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from fsspec.core import url_to_fs
from fsspec.implementations.local import LocalFileSystem

from .._replace import remove_left, replacing

SUFFIX = ".safetensors"
#: Bytes that a client of a store fetches at once: a move costs few requests, and who looks at headers alone little else.
AHEAD, AHEAD_OF_HEADER = 8 << 20, 64 << 10


@dataclass(frozen=True)
class Place:
    """A file or folder of a filesystem of fsspec."""

    fs: Any
    path: str

    @property
    def local(self) -> bool:
        return isinstance(self.fs, LocalFileSystem)

    def __str__(self) -> str:
        return self.path if self.local else str(self.fs.unstrip_protocol(self.path))

    @property
    def real(self) -> str:
        """Where symbolic links lead."""
        return os.path.realpath(self.path) if self.local else self.path

    @property
    def now(self) -> Any:
        """The filesystem, without the listings that it remembers: others write into a store, too."""
        self.fs.invalidate_cache()
        return self.fs

    def exists(self) -> bool:
        return bool(self.now.exists(self.path))

    def is_folder(self) -> bool:
        return bool(self.now.isdir(self.path))

    def read(self, ahead: int) -> Any:
        """Open to be read; OSError if it is not there."""
        return open(self.path, "rb") if self.local else self.now.open(self.path, "rb", block_size=ahead)

    @contextmanager
    def replacing(self) -> Iterator[Any]:
        """Open to be written; it appears complete, or stays as it is. ValueError: a symbolic link, of which a
        rename would make a file, and whoever has the other name would keep the old one."""
        if self.local:
            if os.path.islink(self.path):
                raise ValueError(f"{self}: it is a symbolic link, which is not replaced: name {self.real} itself")
            pathlib.Path(self.path).parent.mkdir(parents=True, exist_ok=True)
            with replacing(self.path) as file:
                yield file
            return
        folder, _, name = self.path.rpartition("/")
        if any(c in self.path for c in "*?["):
            raise ValueError(f"{self}: names in an object store must be without *, ? and [, which fsspec expands")
        beside = f"{folder}/.{name}.librope-{uuid.uuid4().hex[:8]}{SUFFIX}"
        try:
            with self.fs.open(beside, "wb") as file:
                yield file
            self.fs.mv(beside, self.path)
        except BaseException:
            if self.fs.exists(beside):
                self.fs.rm(beside)
            raise

    def is_same(self, other: Place) -> bool:
        return self.fs == other.fs and self.real == other.real

    def is_below(self, folder: Place) -> bool:
        return self.fs == folder.fs and self.real.startswith(folder.real.rstrip("/") + "/")


def place(where: str | os.PathLike[str]) -> Place:
    return Place(*url_to_fs(os.fspath(where)))


def files(where: Place) -> list[Place]:
    """The files of a folder and those below it, in the order of their names; of a file itself. FileNotFoundError:
    there are none. ValueError: a link to a folder, which a job neither follows nor passes over."""
    if not where.is_folder():
        if not where.exists():
            raise FileNotFoundError(f"{where}: no such file or folder")
        return [where]
    every = [p for p in sorted(where.now.find(where.path)) if not _name(p).startswith(".")]
    for path in every if where.local else []:
        if os.path.islink(path) and os.path.isdir(path):
            raise ValueError(f"{path}: it is a symbolic link to a folder, which a job does not follow: name that folder itself")
    found = [p for p in every if p.endswith(SUFFIX)]
    if not found:
        raise FileNotFoundError(f"{where} has no {SUFFIX} files")
    return [Place(where.fs, p) for p in found]


def counterpart(file: Place, folder: Place, other: Place) -> Place:
    """The file of another folder that has the same name below it."""
    below = file.path[len(folder.path) :].lstrip("/") or _name(file.path)
    return Place(other.fs, f"{other.path.rstrip('/')}/{below}")


def remove_left_beside(places: list[Place]) -> None:
    """Removes what killed jobs have left in the folders of these files: no complete file."""
    for folder in sorted({os.path.dirname(p.path) for p in places if p.local}):
        remove_left(folder, SUFFIX)


def _name(path: str) -> str:
    return path.rpartition("/")[2]
