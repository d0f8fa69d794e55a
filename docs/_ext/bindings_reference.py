"""Sphinx: the references of the bindings.

Python's is written by autodoc; here is what it needs for docstrings that are plain text, and
`librope-command`, which writes the help of the command line. `librope-go` writes what `go doc`
says. Rust's is made by rustdoc, in scripts/docs.
"""

from __future__ import annotations

import argparse
import pathlib
import re
import shutil
import subprocess
from collections.abc import Iterator
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

_NAME_WITH_UNDERSCORE = re.compile(r"(?<![\w`*])(\w+_)(?![\w`])")  # a target, says reStructuredText


# It begins at the margin and may go on there; what is said of it has four spaces.
_DECLARATION = re.compile(
    r"((?:^(?! {4}|\n).*\n)(?:^(?! {4}).*\n)*)((?:^ {4}.*\n|^\n)*)", re.MULTILINE
)
_plain: dict[str, list[str]] = {}


def _before_napoleon(
    app: Sphinx, what: str, name: str, thing: object, options: object, lines: list[str]
) -> None:
    """It takes words before a colon of an attribute for its type: keeps these as they are."""
    if what in ("property", "attribute"):
        _plain[name] = list(lines)


def _after_napoleon(
    app: Sphinx, what: str, name: str, thing: object, options: object, lines: list[str]
) -> None:
    lines[:] = [_NAME_WITH_UNDERSCORE.sub(r"``\1``", line) for line in _plain.pop(name, lines)]


def _helps(parser: argparse.ArgumentParser) -> Iterator[str]:
    """Of a command and of those below it."""
    yield parser.format_help()
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for below in action.choices.values():
                yield from _helps(below)


class LibropeCommand(SphinxDirective):
    """The help of `librope` and of each of its commands, as it prints it."""

    def run(self) -> list[nodes.Node]:
        from librope import cli

        parser = cli.parser()
        parser.prog = "librope"
        texts = list(_helps(parser))
        return [nodes.literal_block(text, text, language="text") for text in texts]


class LibropeGo(SphinxDirective):
    """`go doc -all`: declarations as code, what is said of them as text, types as sections."""

    def run(self) -> list[nodes.Node]:
        if shutil.which("go") is None:
            words = "This site was built without Go. The reference: go doc -all in bindings/go."
            return [nodes.paragraph(words, words)]
        folder = pathlib.Path(__file__).parents[2] / "bindings/go"
        done = subprocess.run(
            ["go", "doc", "-all", "."], cwd=folder, capture_output=True, text=True, check=True
        )
        introduction, *parts = re.split(r"^([A-Z]{5,})$", done.stdout, flags=re.MULTILINE)
        package, _, words = introduction.partition("\n\n")
        words = "    " + words.replace("\n", "\n    ")
        found: list[nodes.Node] = [_code(package, "go"), *_said(words)]
        for title, text in zip(parts[::2], parts[1::2], strict=True):
            section = into = _section(title.capitalize(), found)
            for match in _DECLARATION.finditer(text):
                kind = re.match(r"type (\w+)", match[1])
                if kind:
                    into = _section(kind[1], section)
                into += [_code(match[1], "go"), *_said(match[2])]
        return found


def _section(title: str, parent: Any) -> nodes.section:
    section = nodes.section("", nodes.title(title, title), ids=[nodes.make_id("go-" + title)])
    parent.append(section)
    return section


def _code(text: str, language: str) -> nodes.literal_block:
    text = text.strip("\n").replace("\t", "    ")
    return nodes.literal_block(text, text, language=language)


def _said(text: str) -> list[nodes.Node]:
    """Paragraphs of a documentation comment; what is deeper is code."""
    found: list[nodes.Node] = []
    for block in re.split(r"\n\s*\n", text.strip("\n")):
        lines = [line[4:] for line in block.split("\n")]
        if not any(lines):
            continue
        if lines[0].startswith("    "):
            found.append(_code("\n".join(line[4:] for line in lines), "text"))
        else:
            words = " ".join(line.strip() for line in lines)
            found.append(nodes.paragraph(words, words))
    return found


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("autodoc-process-docstring", _before_napoleon, priority=400)
    app.connect("autodoc-process-docstring", _after_napoleon, priority=600)
    app.add_directive("librope-command", LibropeCommand)
    app.add_directive("librope-go", LibropeGo)
    return {"parallel_read_safe": True, "version": "1"}
