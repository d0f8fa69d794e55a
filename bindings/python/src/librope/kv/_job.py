"""Jobs over the KV files of a folder: a function per file, which any engine may run in any order, or twice.

What has been done is in the files themselves: a moved file says from where and by which job, so that a job that
was killed is simply started again.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from .._core import integer
from ._engines import Engine, here
from ._file import BLOCK, Block, Reader, check_rope, info_of, moved_info, write_blocks
from ._layers import Given, Ropes, check_one_family, every, given, one_for_all, rope_for
from ._schema import Info, sets_of, text_of
from ._store import SUFFIX, Place, counterpart, files, place, remove_left_beside
from ._turn import Turn, turn_of


@dataclass(frozen=True)
class Outcome:
    """What became of a file."""

    path: str
    what: str  #: "moved", "already" (moved before, by this job), "well" (verified) or "refused"
    bytes: int = 0
    before: Info | None = None
    after: Info | None = None
    why: str = ""  #: it was refused


class Refused(ValueError):
    """Files of a job were refused; the others are done. outcomes: of all, in the order of their names."""

    def __init__(self, outcomes: list[Outcome]) -> None:
        self.outcomes = outcomes
        refused = [o.why for o in outcomes if o.what == "refused"]
        super().__init__(f"{len(refused)} of {len(outcomes)} files were refused: {'; '.join(refused[:3])}"
                         + ("; ..." if len(refused) > 3 else ""))  # fmt: skip

    def __reduce__(self) -> Any:
        return type(self), (self.outcomes,)


@dataclass(frozen=True)
class Change:
    """What a move asks of every file; None: as it is."""

    to: int | None
    by: int | None
    rope: Given
    frequency_set: int | None
    keys: str | None
    job: str | None

    def of(self, info: Info) -> dict[str, Any]:
        """The fields of an Info that change."""
        fields: dict[str, Any] = {}
        if self.to is not None:
            fields["first_position"] = self.to
        if self.by is not None:
            fields["first_position"] = info.first_position + self.by
        if self.rope is not None:
            fields |= {"rope": rope_for(info, self.rope), "frequency_set": 0}
        for name in ("frequency_set", "keys"):
            if getattr(self, name) is not None:
                fields[name] = getattr(self, name)
        return fields


@dataclass(frozen=True)
class _Task:
    source: Place
    target: Place
    change: Change
    block: int
    trust: bool

    def __call__(self) -> Outcome:
        with Reader(self.source) as file:
            info = file.info
            size = sum(info.sizes().values())
            if self.source == self.target and self._is_done(info):
                self._check_data(file)
                return Outcome(str(self.source), "already", size, info, info)
            after = moved_info(file, self.change.job, **self.change.of(info))
            turn = turn_of(info, after)
            known = {n: file.checksum_of(n) for n in info.shapes() if n != "k" or turn is None}
            if self.source != self.target and self.target.exists():
                self._check_same(after, known)
                return Outcome(str(self.source), "already", size, info, after)
            write_blocks(self.target, after, _turned(file.blocks(self.block), turn), known)
        return Outcome(str(self.source), "moved", size, info, after)

    def _is_done(self, info: Info) -> bool:
        """Whether a file that is moved in its place has been moved."""
        change, moved = self.change, info.moved
        if change.by is None:
            return info.at(**change.of(info)).state == info.state
        if moved is not None and change.job in moved.earlier:
            raise ValueError(f"{self.source}: job {change.job!r} has moved it before, and job {moved.job!r} since: a new move "
                             "needs a name of its own")  # fmt: skip
        if moved is None or moved.job != change.job:
            return False
        wanted = info.at(**change.of(info) | {"first_position": moved.first_position + change.by})
        if wanted.state != info.state:
            raise ValueError(f"{self.source}: job {change.job!r} has moved it from {moved.first_position} to "
                             f"{info.first_position}, and that is another move than this: give this one a name of its "
                             "own")  # fmt: skip
        return True

    def _check_same(self, after: Info, known: dict[str, bytes]) -> None:
        """ValueError: the target is there, and another file than this move makes, or damaged. Of turned keys the
        checksum is believed that stands beside the metadata."""
        with Reader(self.target) as there:
            if there.metadata != text_of(after) or any(there.checksum_of(n) != told for n, told in known.items()):
                raise ValueError(f"{self.target}: it is there, and not what this move makes of {self.source}")
            self._check_data(there)

    def _check_data(self, file: Reader) -> None:
        if not self.trust:
            for _ in file.blocks(self.block):
                pass


def _turned(blocks: Iterator[Block], turn: Turn | None) -> Iterator[Block]:
    for block in blocks:
        if turn is not None and block.name == "k":
            turn(block.array, block.token)
        yield block


@dataclass(frozen=True)
class _Look:
    """At a header, by which the files of a job are compared before it begins."""

    source: Place

    def __call__(self) -> Outcome:
        return Outcome(str(self.source), "well", 0, info_of(self.source))


@dataclass(frozen=True)
class _Check:
    source: Place
    rope: Given
    frequency_set: int | None

    def __call__(self) -> Outcome:
        with Reader(self.source) as file:
            if self.rope is not None:
                check_rope(file, self.rope, self.frequency_set)
            for block in file.blocks():
                bad = block.array.size - np.count_nonzero(np.isfinite(block.array))
                if bad:
                    raise ValueError(f"{self.source}: {bad} values of {block.name} are not finite, at tokens "
                                     f"{block.token} and behind")  # fmt: skip
            return Outcome(str(self.source), "well", sum(file.info.sizes().values()), file.info, file.info)


def _run(task: Any) -> Outcome:
    """A task; what it refuses is an outcome, so that the others go on."""
    try:
        outcome: Outcome = task()
    except FileNotFoundError:
        why = f"{task.source}: not found: does the process that moves it see this store?"
        return Outcome(str(task.source), "refused", why=why)
    except (ValueError, TypeError, NotImplementedError, OSError) as e:
        why = str(e) if str(task.source) in str(e) else f"{task.source}: {str(e) or type(e).__name__}"
        return Outcome(str(task.source), "refused", why=why)
    return outcome


def _finish(tasks: list[Any], engine: Engine | None, seen: Callable[[Outcome, int], None] | None) -> list[Outcome]:
    outcomes = []
    for outcome in (engine or here)(_run, tasks):
        outcomes.append(outcome)
        if seen is not None:
            seen(outcome, len(tasks))
    outcomes.sort(key=lambda o: o.path)
    if any(o.what == "refused" for o in outcomes):
        raise Refused(outcomes)
    return outcomes


def move(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str] | None = None,
    *,
    to: int | None = None,
    by: int | None = None,
    rope: Ropes | None = None,
    frequency_set: int | None = None,
    keys: str | None = None,
    job: str | None = None,
    block: int = BLOCK,
    trust: bool = False,
    engine: Engine | None = None,
    seen: Callable[[Outcome, int], None] | None = None,
) -> list[Outcome]:
    """Moves the keys of a file, or of every file of a folder, to other positions or another RoPE; values are
    copied. Started again after it was killed, it ends with the same bytes: what is moved already stays.

    Args:
        source: a file or folder; of a folder every .safetensors file, also in the folders below it.
        target: the folder of the moved files, which keep their names; None: they take the places of the old ones,
            each when it is complete.
        to: the first position of every file then: each begins there, also chunks of one document, which by keeps
            behind one another.
        by: how far every file moves. In place it needs job.
        rope: what the keys are rotated by then, of one frequency set or several; it may differ from the file's
            in frequencies and attention factor. One Rope is for every file, whose keys must have one, too: where
            the layers of a model differ, give the librope.Model, or a dictionary of the Rope of each layer, and
            each file has that of its layer.
        frequency_set: the set of rope, which must be given if it has several, or of the file's own.
        keys: "rotated" or "raw".
        job: a name, which moved files keep. A file that has it is not moved by the same job again, and refused by it
            when another job has moved the file since.
        block: bytes of a file in memory at once.
        trust: True: a file that is moved already is known by its header alone. Otherwise it is read, and refused if
            its data do not have the checksums that it tells.
        engine: on_dask(), on_ray(); this process, if not given.
        seen: called with each outcome, and the number of files, as they come.

    Returns:
        What became of each file, in the order of their names.

    Raises:
        Refused: a ValueError with the outcomes: a file is damaged, or none, or cannot be moved so. Such a file
            is as it was, and the others are moved.
        ValueError: arguments that contradict each other, or one Rope for files of several. Nothing has been
            written.
        OSError: source cannot be read.
    """
    if all(x is None for x in (to, by, rope, frequency_set, keys)):
        raise ValueError("move needs one of to, by, rope, frequency_set and keys")
    if to is not None and by is not None:
        raise ValueError("to and by: at most one of them")
    to, by, frequency_set = (
        value if value is None else integer(value, name)
        for name, value in (("to", to), ("by", by), ("frequency_set", frequency_set))
    )
    ropes = given(rope)
    for one in every(ropes):
        if one.freq_sets > 1 and frequency_set is None:
            raise ValueError(f"rope has {one.freq_sets} frequency sets: frequency_set must say which turns the keys")
        sets_of(one, frequency_set)
    block = integer(block, "block")
    if block < 1:
        raise ValueError(f"block is {block}, and must be positive: bytes of a file in memory at once")
    change = Change(to, by, ropes, frequency_set, keys, job)
    where = place(source)
    other = where if target is None else place(target)
    found = files(where)
    if not other.is_same(where) and other.path.endswith(SUFFIX) and not other.is_folder():
        raise ValueError(f"target is {other}, and must be a folder: moved files keep their names")
    targets = found if other.is_same(where) else [counterpart(f, where, other) for f in found]
    targets = [f if t.is_same(f) else t for f, t in zip(found, targets, strict=True)]
    if targets != found:
        for file in (other, *targets):
            if file.is_below(where):
                raise ValueError(f"{file} lies in {where}, whose files are moved")
    if by is not None and job is None and targets == found:
        raise ValueError("by= in place needs job=, the name by which a job that is started again knows what it has moved")
    if len(found) > 1 and one_for_all(ropes) is not None:
        looks = (engine or here)(_run, [_Look(f) for f in found])
        infos = {o.path: o.before for o in sorted(looks, key=lambda o: o.path) if o.before is not None}
        check_one_family(infos, ropes, frequency_set or 0)
    remove_left_beside(targets)
    return _finish([_Task(f, t, change, block, trust) for f, t in zip(found, targets, strict=True)], engine, seen)


def verify(
    path: str | os.PathLike[str],
    *,
    rope: Ropes | None = None,
    frequency_set: int | None = None,
    engine: Engine | None = None,
    seen: Callable[[Outcome, int], None] | None = None,
) -> list[Outcome]:
    """Reads a file, or every file of a folder, and checks its structure, its digest, its checksums, and that every
    value is finite.

    Args:
        rope, frequency_set: how the keys must have been rotated: by this set of rope; None: by one of them. Where
            the layers of a model differ, rope is as of move().
        engine, seen: as of move().

    Raises:
        Refused: with the outcomes; the message names the files and what is wrong.
        OSError: path cannot be read.
    """
    ropes = given(rope)
    for one in every(ropes):
        sets_of(one, frequency_set)
    return _finish([_Check(f, ropes, frequency_set) for f in files(place(path))], engine, seen)
