"""A file beside another that takes its place when it is complete, and goes when it does not become so."""

from __future__ import annotations

import fcntl
import os
import pathlib
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Any]:
    """The file beside path, open to be written: on the disk when it has the name, which it gets when the block
    ends well. It is locked, so that remove_left() sees whether somebody still writes it."""
    target = pathlib.Path(path)
    handle, beside = _locked_beside(target)
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            os.fchmod(handle, _mode(target))  # mkstemp's files are private
            os.fsync(handle)
            os.replace(beside, target)
    except BaseException:
        pathlib.Path(beside).unlink(missing_ok=True)
        raise
    folder = os.open(target.parent, os.O_RDONLY)
    try:
        os.fsync(folder)  # the name, too
    finally:
        os.close(folder)


def _locked_beside(target: pathlib.Path) -> tuple[int, str]:
    """A new file, locked. Between its making and its lock it looks like one that was left: then another."""
    while True:
        try:
            handle, beside = tempfile.mkstemp(prefix=f".{target.name}.librope-", suffix=target.suffix,
                                              dir=target.parent)  # fmt: skip
        except OSError as e:  # which names the file beside
            raise OSError(e.errno, e.strerror, os.fspath(target)) from None
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
        except BaseException:
            os.close(handle)
            os.unlink(beside)
            raise
        if os.fstat(handle).st_nlink:
            return handle, beside
        os.close(handle)


def _mode(target: pathlib.Path) -> int:
    """That of the file whose place is taken, or of a new one."""
    with suppress(FileNotFoundError):
        return target.stat().st_mode & 0o7777
    mask = os.umask(0)
    os.umask(mask)
    return 0o666 & ~mask


def remove_left(folder: str | os.PathLike[str], suffix: str) -> None:
    """Removes the files beside others that killed programs have left in a folder."""
    beside = re.compile(rf"\..*\.librope-\w{{8}}{re.escape(suffix)}")  # as mkstemp names them
    for path in pathlib.Path(folder).glob(f".*{suffix}"):
        if not beside.fullmatch(path.name):
            continue
        with suppress(OSError), open(path, "rb") as file:  # gone meanwhile, or locked by who writes it
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink()
