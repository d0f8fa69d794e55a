"""The include graph of src/: who includes whom, by folder and by file.

A box is a folder of src/, or a file at its root; a unit is a header with the file that implements
it. A floor counts the longest way down: a box on floor 1 includes no other.
"""

import collections
import functools
import pathlib
import posixpath
import re

INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"')


def sources(root: pathlib.Path) -> list[str]:
    """The files of src/ that the compiler reads, relative to the root of the repository."""
    return sorted(str(p.relative_to(root)) for p in (root / "src").rglob("*")
                  if p.suffix in (".h", ".cc", ".cu"))


def unit(file: str) -> str:
    return re.sub(r"(-inl)?\.(h|cc|cu)$", "", file.removeprefix("src/"))


def box(file: str) -> str:
    return unit(file).split("/")[0]


class Graph:
    """Arrows between nodes, each with the lines that draw it."""

    def __init__(self) -> None:
        self.nodes: set[str] = set()
        self.arrows: dict[tuple[str, str], list[str]] = collections.defaultdict(list)

    def below(self, node: str) -> set[str]:
        return {to for start, to in self.arrows if start == node}

    def circles(self) -> list[list[str]]:
        """Sets of nodes that reach each other."""
        reach = {n: self._reach(n) for n in self.nodes}
        found = {frozenset(m for m in reach[n] if n in reach[m]) for n in self.nodes}
        return [sorted(c) for c in found if c]

    def floors(self) -> dict[str, int]:
        """Of a graph without circles."""

        @functools.lru_cache(None)
        def floor(node: str) -> int:
            return 1 + max((floor(n) for n in self.below(node)), default=0)

        return {n: floor(n) for n in self.nodes}

    def _reach(self, node: str) -> set[str]:
        seen: set[str] = set()
        todo = [node]
        while todo:
            for n in self.below(todo.pop()) - seen:
                seen.add(n)
                todo.append(n)
        return seen


def read(root: pathlib.Path) -> tuple[Graph, Graph, list[str]]:
    """The graphs by box and by unit, and the #include lines that name no file."""
    boxes, units, lost = Graph(), Graph(), []
    files = set(sources(root))
    for file in sorted(files):
        boxes.nodes.add(box(file))
        units.nodes.add(unit(file))
        for number, line in enumerate((root / file).read_text().split("\n"), 1):
            m = INCLUDE.match(line)
            if m is None or m[1].startswith(("librope/", "hwy/")):
                continue
            where = f"{file}:{number}: {m[1]}"
            beside = posixpath.normpath(posixpath.join(posixpath.dirname(file), m[1]))
            found = next((f for f in ("src/" + m[1], beside) if f in files), None)
            if found is None:
                lost.append(where)
                continue
            if box(found) != box(file):
                boxes.arrows[box(file), box(found)].append(where)
            if unit(found) != unit(file):
                units.arrows[unit(file), unit(found)].append(where)
    return boxes, units, lost
