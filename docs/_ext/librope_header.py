"""Sphinx: `{librope-header} ../../include/librope/rope.h` writes the reference of a header.

header.py reads it; here its comments become reStructuredText, and its declarations those of
Sphinx's C and C++ domains. Names of the library in a comment are links. One that nothing declares
is a warning, and so an error of the build: a comment that speaks of a function by its old name.
"""

from __future__ import annotations

import pathlib
import re
import sys
from typing import Any

from docutils import nodes
from docutils.statemachine import StringList
from sphinx.application import Sphinx
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import header  # noqa: E402

_log = logging.getLogger(__name__)
_NAME = re.compile(r"\b(rope_\w+|ROPE_\w+)(?:\.(\w+))?(\(\))?(\*|\.\.)?")
# Words of config.json and of others that look like names of the library.
_NOT_OURS = re.compile(
    r"rope_(type|theta|parameters|scaling|interleave|freqs|local_base_freq)$|rope_\w*_$|rope_init_$"
    r"|ROPE_(CUDA|BUILD|SANITIZE|HIGHWAY|JSON)"
)
_ROLES = {"function": "func", "class": "struct"}


class Names:
    """What the C headers declare: name -> kind, and the members of structs."""

    def __init__(self, include: pathlib.Path) -> None:
        self.kinds: dict[str, str] = {}
        for path in sorted(include.glob("*.h")):
            for section in header.read(path.read_text("utf-8")):
                for declaration in section.declarations:
                    for name in declaration.names:
                        self.kinds[name] = declaration.kind
                    for member in declaration.members:
                        for name in member.names:
                            inside = "" if member.kind == "enumerator" else f"{declaration.name}."
                            self.kinds[inside + name] = member.kind

    def link(self, match: re.Match[str], where: str) -> str:
        name, member, call, more = match.groups()
        text = _escape(match[0])
        if _NOT_OURS.match(name) and not call:
            return text
        if more == "*" or name.endswith("_"):  # rope_model_*
            if any(k.startswith(name) for k in self.kinds):
                return text
        elif name in self.kinds:
            full = f"{name}.{member}" if f"{name}.{member}" in self.kinds else name
            rest = match[0][len(full) :]
            rest = rest.removeprefix("()") if call and full == name else rest
            kind = self.kinds[full]
            return rf"\ :c:{_ROLES.get(kind, kind)}:`{full}`\ {_escape(rest)}"
        _log.warning("%s: nothing declares %s", where, match[0])
        return text


def _escape(text: str) -> str:
    return re.sub(r"([\\*`|_<>\[\]:])", r"\\\1", text)


def prose(text: str, names: Names, where: str) -> list[str]:
    """A comment as reStructuredText: paragraphs, lists by dashes, and code where it is deeper."""

    def line(words: str) -> str:
        out, at = [], 0
        for match in _NAME.finditer(words):
            out += [_escape(words[at : match.start()]), names.link(match, where)]
            at = match.end()
        return "".join([*out, _escape(words[at:])])

    out: list[str] = []
    code: list[str] = []
    state = ""  # of the line before: "", paragraph, item

    def flush() -> None:
        while code and not code[-1].strip():
            code.pop()
        if code:
            language = "c" if any(";" in c for c in code) else "text"
            out.extend(["", f".. code-block:: {language}", "", *("   " + c[4:] for c in code), ""])
            code.clear()

    for words in text.split("\n"):
        if not words.strip():
            if code:
                code.append("")
            out.append("")
            state = "" if state != "item" else state
        elif words.startswith("    "):
            code.append(words)
            state = ""
        elif words.startswith("- "):
            flush()
            out += ([""] if state != "item" else []) + ["* " + line(words[2:])]
            state = "item"
        elif words.startswith("  ") and state == "item":
            out.append("  " + line(words[2:]))
        else:
            flush()
            if state == "item":
                out.append("")
            out.append(line(words))
            state = "paragraph"
    flush()
    return out


def declared(d: header.Declaration, domain: str, names: Names, where: str) -> list[str]:
    """A directive of the domain, with what it holds."""
    first, *more = d.signatures
    out = [f".. {domain}:{d.kind}:: {first}"]
    out += [" " * (len(out[0]) - len(first)) + m for m in more]
    body = prose(d.comment, names, f"{where}:{d.line}")
    if d.kind == "type" and d.members:
        body += ["", ".. c:namespace:: NULL", ""]  # enumerators belong to the file
    for member in d.members:
        body += ["", *declared(member, domain, names, where)]
    return [*out, "", *("   " + b if b else "" for b in body), ""]


class HeaderDirective(SphinxDirective):
    """One argument: the header, relative to the page. `:c++:` for rope.hpp."""

    required_arguments = 1
    option_spec = {"c++": lambda _: True}

    def run(self) -> list[nodes.Node]:
        page = pathlib.Path(self.env.doc2path(self.env.docname))
        path = (page.parent / self.arguments[0]).resolve()
        self.env.note_dependency(str(path))
        names = Names(path.parent)
        domain = "cpp" if "c++" in self.options else "c"
        found: list[nodes.Node] = []
        for section in header.read(path.read_text("utf-8")):
            # Without the table of contents: the page has its own.
            words = re.sub(r"^ +\d+\. .*\n?", "", section.comment, flags=re.MULTILINE)
            lines = prose(words, names, str(path))
            if domain == "cpp":
                lines += ["", ".. cpp:namespace:: rope", ""]
            for declaration in section.declarations:
                lines += ["", *declared(declaration, domain, names, path.name)]
            into: nodes.Element = nodes.section()
            if section.title:
                into += nodes.title(section.title, section.title)
                into["ids"] = [nodes.make_id(f"{path.name}-{section.title}")]
                found.append(into)
            self.state.nested_parse(StringList(lines, str(path)), 0, into, match_titles=True)
            if not section.title:
                found += into.children
        return found


def from_c(app: Sphinx, env: Any, node: Any, content: Any) -> Any:
    """A name that the C++ domain does not know may be one of rope.h."""
    if node.get("refdomain") != "cpp" or not node["reftarget"].startswith(("rope_", "ROPE_")):
        return None
    domain = env.get_domain("c")
    found = domain.resolve_any_xref(
        env, node["refdoc"], app.builder, node["reftarget"], node, content
    )
    return found[0][1] if found else None


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_directive("librope-header", HeaderDirective)
    app.connect("missing-reference", from_c)
    return {"parallel_read_safe": True, "version": "1"}
