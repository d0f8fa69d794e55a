"""Sphinx: files of the repository in the site, and links to those that are not in it.

`{repository-page} README.md` shows a Markdown file of the repository's root, or the part of it
between `:start-at:` and `:end-before:`. Relative links of all pages are checked, and those that
leave docs/ lead to the repository's address.
"""

from __future__ import annotations

import os
import pathlib
import re
from typing import Any

from docutils import nodes
from docutils.statemachine import StringList
from sphinx.application import Sphinx
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective

ROOT = pathlib.Path(__file__).resolve().parents[2]
ADDRESS = "https://github.com/librope/librope"
_log = logging.getLogger(__name__)
_LINK = re.compile(r"(\]\()(?!\w+:|#|/)([^)\s]+)(\))")


def with_links(text: str, folder: pathlib.Path, page: pathlib.Path) -> str:
    """Markdown whose relative links are those of `folder`, as it must be to stand in `page`."""

    def link(match: re.Match[str]) -> str:
        path, mark, anchor = match[2].partition("#")
        target = (folder / path).resolve()
        if not target.exists() or not target.is_relative_to(ROOT):
            _log.warning("%s: no such file: %s", page, match[2])
            return match[0]
        if target.is_relative_to(ROOT / "docs") and target.is_file():
            inside = os.path.relpath(target, page.parent)
            return match[1] + inside + mark + anchor + match[3]
        kind = "tree" if target.is_dir() else "blob"
        where = f"{ADDRESS}/{kind}/main/{target.relative_to(ROOT)}"
        return match[1] + where + mark + anchor + match[3]

    return _LINK.sub(link, text)


class RepositoryPage(SphinxDirective):
    """One argument: a file in the root. The part begins with a line and ends before another."""

    required_arguments = 1
    option_spec = {"start-at": str, "start-after": str, "end-before": str}

    def run(self) -> list[nodes.Node]:
        path = ROOT / self.arguments[0]
        self.env.note_dependency(str(path))
        lines = path.read_text("utf-8").split("\n")
        for option, first in (("start-at", 0), ("start-after", 1)):
            if option in self.options:
                lines = lines[self._line(lines, self.options[option]) + first :]
        if "end-before" in self.options:
            lines = lines[: self._line(lines, self.options["end-before"])]
        page = pathlib.Path(self.env.doc2path(self.env.docname))
        text = with_links("\n".join(lines), path.parent, page)
        holder = nodes.section()
        self.state.nested_parse(
            StringList(text.split("\n"), str(path)), 0, holder, match_titles=True
        )
        return holder.children

    def _line(self, lines: list[str], begins: str) -> int:
        found = [i for i, line in enumerate(lines) if line.startswith(begins)]
        if not found:
            raise self.error(f"{self.arguments[0]}: no line begins with {begins!r}")
        return found[0]


def _on_read(app: Sphinx, docname: str, source: list[str]) -> None:
    page = pathlib.Path(app.env.doc2path(docname))
    if page.suffix == ".md":
        source[0] = with_links(source[0], page.parent, page)


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_directive("repository-page", RepositoryPage)
    app.connect("source-read", _on_read)
    return {"parallel_read_safe": True, "version": "1"}
