#!/usr/bin/env python3
"""The enumerators of include/librope/*.h in every binding, with the header's comments as their
documentation. Their names, numbers and order stand in the header, and nowhere else by hand.

    bindings/enums.py           writes the files that WRITTEN lists: after a change of an enum, or of
                                a comment on it
    bindings/enums.py --check   fails if a file is not what would be written, or if a binding leaves
                                out an enumerator of a type that is no enum there

The header's form, which is checked: `typedef int32_t rope_pairing;`, then `enum { .. };`, whose
enumerators have a prefix that no other enum's have, and each a comment: after it on the same line, or
before it. Two spaces in a comment separate columns.
"""

from __future__ import annotations

import difflib
import os
import pathlib
import re
import sys
import textwrap
from collections.abc import Callable, Iterable
from typing import NamedTuple

HERE = pathlib.Path(__file__).resolve().parent
HEADERS = HERE.parent / "include" / "librope"
WIDTH = 100

# Words that are not CamelCase by capitalize().
WORDS = {"DTYPE": "DType", "LONGROPE": "LongRope"} | {w: w for w in ("E4M3", "E5M2", "E8M0")}
WORDS_OF_GO = WORDS | {word: word for word in ("BF16", "BHSD", "BSHD", "GGML", "HND", "NHD", "RMS", "SBHD")}

# Which types are enums there. The others have another form: see left_out().
NORMS = ("norm_kind", "norm_span", "norm_order", "norm_rounding")
IN_GO = ("pairing", "scaling", "angle", "rounding", "dtype", "layout", "operation", "digest", *NORMS)
IN_RUST = ("pairing", "angle", "rounding", "dtype", "operation", "digest", *NORMS)
IN_PYTHON = (
    "pairing", "scaling", "angle", "rounding", "dtype", "operation", "cos_sin_format", "digest", "shard_scheme",
    *NORMS,
)  # fmt: skip
# Of two positions: a method of its own there, Rope.move. In 8 bits: not computed with.
NOT_IN_PYTHON = (
    "ROPE_OPERATION_REROTATE",
    "ROPE_DTYPE_F8_E4M3",
    "ROPE_DTYPE_F8_E5M2",
    "ROPE_DTYPE_I8",
    "ROPE_DTYPE_E8M0",
    "ROPE_DTYPE_Q8_0",
)  # fmt: skip


class Enumerator(NamedTuple):
    name: str  # ROPE_PAIRING_HALVES
    tail: str  # HALVES
    number: int
    doc: list[str]  # paragraphs


class Enum(NamedTuple):
    word: str  # of rope_pairing: pairing
    doc: list[str]
    values: list[Enumerator]

    @property
    def prefix(self) -> str:
        return self.values[0].name.removesuffix(self.values[0].tail)


Enums = dict[str, Enum]


def paragraphs(comment: str) -> list[str]:
    """The text of a comment of C: one line per paragraph."""
    lines = [re.sub(r"^\s*\*(?=\s|$)", "", line).strip() for line in comment[2:-2].split("\n")]
    text = "\n".join(re.sub(r" {2,}", ": ", line) for line in lines)
    return [" ".join(p.split("\n")) for p in re.split(r"\n{2,}", text.strip())]


def enums_of(header: str) -> list[Enum]:
    """The enums of one header, in its order."""
    comments = re.findall(r"/\*.*?\*/", header, re.S)
    numbers = iter(range(len(comments)))
    code = re.sub(r"/\*.*?\*/", lambda _: f"/*{next(numbers)}*/", header, flags=re.S)
    before = r"(?:/\*(\d+)\*/\s*)?"
    form = before + r"typedef int32_t rope_(\w+);\s*enum\s*\{(.*?)\}"
    one = before + r"\b(ROPE_\w+) = (-?\d+),?[ \t]*(?:/\*(\d+)\*/)?"
    found = []
    for above, word, body in re.findall(form, code, re.S):
        values = re.findall(one, body)
        if len(values) != body.count("ROPE_") or not all(v[0] or v[3] for v in values):
            sys.exit(f"enums.py: an enumerator of rope_{word} has another form, or no comment")
        if word == "status":  # ROPE_OK is no error, and needs no name elsewhere
            values = values[1:]
        prefix = os.path.commonprefix([v[1] for v in values]).rpartition("_")[0] + "_"
        found.append(Enum(word, paragraphs(comments[int(above)]) if above else [], [
            Enumerator(name, name.removeprefix(prefix), int(number), paragraphs(comments[int(b or a)]))
            for a, name, number, b in values
        ]))  # fmt: skip
    if len(found) != len(re.findall(r"\benum\b", code)):
        sys.exit("enums.py: an enum does not stand directly after its typedef int32_t")
    return found


def read() -> Enums:
    """All enums by their word."""
    enums = [e for path in sorted(HEADERS.glob("*.h")) for e in enums_of(path.read_text())]
    for e in enums:
        for other in enums:
            if e is not other and any(v.name.startswith(e.prefix) for v in other.values):
                sys.exit(f"enums.py: rope_{other.word} has enumerators with rope_{e.word}'s prefix")
    return {e.word: e for e in enums}


def camel(words: str, special: dict[str, str] = WORDS) -> str:
    return "".join(special.get(w, w.capitalize()) for w in words.upper().split("_"))


def translated(text: str, own: Enum, enums: Enums, names: dict[str, str]) -> str:
    """A comment with `names` in place of C's enumerators, which stand there with their prefix or
    without; then one of the same enum is meant, else the only one."""

    def name(match: re.Match[str]) -> str:
        meant = [v.name for e in enums.values() for v in e.values if match[0] in (v.name, v.tail)]
        meant = [n for n in meant if n.startswith(own.prefix)] or [n for n in meant if n in names]
        return names[meant[0]] if len(meant) == 1 else match[0]

    return re.sub(r"\b[A-Z][A-Z0-9_]+\b(?!\*)", name, text)


def comment(doc: Iterable[str], start: str) -> list[str]:
    """Paragraphs as comment lines."""
    lines: list[str] = []
    for paragraph in doc:
        lines += [start.rstrip()] if lines else []
        lines += textwrap.wrap(paragraph, WIDTH, initial_indent=start, subsequent_indent=start,
                               break_long_words=False, break_on_hyphens=False)  # fmt: skip
    return lines


def go(enums: Enums) -> list[str]:
    kinds = {"Status": enums["status"], **{camel(w, WORDS_OF_GO): enums[w] for w in IN_GO}}
    names = {
        v.name: kind.replace("Status", "Err") + camel(v.tail, WORDS_OF_GO)
        for kind, e in kinds.items()
        for v in e.values
    }
    out = [
        "// Code generated by bindings/enums.py from librope/rope.h; DO NOT EDIT.", "",
        "package rope", "", '// #include "shim.h"', 'import "C"',
    ]  # fmt: skip
    for kind, e in kinds.items():
        out += ["", f"// The values of {kind}.", "const ("]
        for v in e.values:
            doc = (translated(p, e, enums, names) for p in v.doc)
            doc = (re.sub(r"\brope_context_(\w+)", lambda m: f"Context.{camel(m[1])}", p) for p in doc)
            out += [*comment(doc, "\t// "), f"\t{names[v.name]} {kind} = C.{v.name}"]
        out.append(")")
        if kind != "Status":  # which is an error, and has the library's words
            call = f'nameOf("{kind}", int32(value))'
            out += ["", "// String is the name of the constant.",
                    f"func (value {kind}) String() string {{ return {call} }}"]  # fmt: skip
    out += ["", "var constants = [...]constant{"]
    for kind, e in kinds.items():
        rows = [(v.name, names[v.name]) for v in e.values if kind != "Status"]
        out += [f'\t{{"{kind}", "{c}", "{name}", int32({name})}},' for c, name in rows]
    return [*out, "}"]


def markdown(chunk: str) -> str:
    """One word of prose, without white space: names as code, signs as themselves."""
    if "`" in chunk:
        return chunk
    before, name, after = re.findall(r"^(\(*)(.*?)([,.;:]*)$", chunk)[0]
    while name.endswith(")") and name.count(")") > name.count("("):
        name, after = name[:-1], ")" + after
    if re.search(r"\w_|_\w|\w\*", name):
        return f"{before}`{name}`{after}"
    return re.sub(r"([][*<>_])", r"\\\1", chunk)


def rust(enums: Enums) -> list[str]:
    links = {}
    for word in (*IN_RUST, "scaling", "layout"):
        for v in enums[word].values:
            name = f"{camel(word)}::{camel(v.tail)}"
            links[v.name] = f"[`{name}`]" + ("" if word in IN_RUST else f"(crate::{name})")

    def doc(text: list[str], e: Enum, start: str) -> list[str]:
        text = [translated(p, e, enums, links) for p in text]
        link = r"[`Context::\1`](crate::Context::\1)"
        text = [re.sub(r"\brope_context_(\w+)", link, p) for p in text]
        return comment((" ".join(map(markdown, p.split(" "))) for p in text), start)

    out = [
        "//! Written by bindings/enums.py from librope/rope.h, whose comments these are: not by hand.",
        '#![allow(clippy::doc_markdown, reason = "names of models and programs")]', "",
        "use librope_sys as sys;", "",
        "/// An enum with the numbers of the C API.", "pub(crate) trait Numbered: Copy {",
        "    /// The variant with this number.", "    fn of(number: i32) -> Option<Self>;", "}",
    ]  # fmt: skip
    for e in (enums[word] for word in IN_RUST):
        kind = camel(e.word)
        default = "Default, " if any(v.number == 0 for v in e.values) else ""
        out += ["", *doc(e.doc[:1], e, "/// "),
                f"#[derive(Clone, Copy, Debug, {default}PartialEq, Eq, Hash)]", "#[repr(i32)]",
                "#[non_exhaustive]", f"pub enum {kind} {{"]  # fmt: skip
        for v in e.values:
            out += doc(v.doc, e, "    /// ") + ["    #[default]"] * (v.number == 0)
            out.append(f"    {camel(v.tail)} = sys::{v.name},")
        arms = [f"            sys::{v.name} => Some({kind}::{camel(v.tail)})," for v in e.values]
        out += ["}", "", f"impl Numbered for {kind} {{",
                f"    fn of(number: i32) -> Option<{kind}> {{", "        match number {",
                *arms, "            _ => None,", "        }", "    }", "}"]  # fmt: skip
    return out


def python(enums: Enums) -> list[str]:
    def name(word: str, tail: str) -> str:
        if word == "dtype":  # NumPy's names
            tail = re.sub(r"F(\d)", r"float\1", tail)
        return f'"{tail.lower()}"'

    names = {v.name: name(word, v.tail) for word in IN_PYTHON for v in enums[word].values}
    out = ['"""The names of choices as types. Written by bindings/enums.py from librope/rope.h."""',
           "", "from typing import Literal"]  # fmt: skip
    for e in (enums[word] for word in IN_PYTHON):
        values = [v for v in e.values if v.name not in NOT_IN_PYTHON]
        quoted = ", ".join(names[v.name] for v in values)
        line = f"{camel(e.word)} = Literal[{quoted}]"
        out += ["", line]
        if len(line) > WIDTH:
            out[-1:] = [f"{camel(e.word)} = Literal[", *comment([f"{quoted},"], "    "), "]"]
        # A string behind a name is its documentation in editors.
        doc = []
        for v in values:
            said = (translated(p, e, enums, names) for p in v.doc)
            first, *more = (re.sub(r"\brope_context_(\w+)", r"Rope.\1", p) for p in said)
            lines = comment([f"{names[v.name]}: {first}", *more], "  ")
            doc += [f"- {lines[0].lstrip()}", *lines[1:]]
        out += ['"""', *doc, '"""']
    return out


WRITTEN: dict[str, Callable[[Enums], list[str]]] = {
    "go/enums.go": go,
    "rust/librope/src/enums.rs": rust,
    "python/src/librope/_choices.py": python,
}


def left_out(enums: Enums) -> list[str]:
    """The enumerators that the code of a binding does not name: kinds of positions, formats of rows
    and scalings are functions there, or variants with fields. Python asks the library by prefix."""
    complaints = []
    for folder, files, before in (("go", "*.go", "C."), ("rust/librope/src", "**/*.rs", "sys::")):
        paths = [p for p in (HERE / folder).glob(files) if not p.stem.endswith("_test")]
        code = "\n".join(re.sub(r"//.*", "", p.read_text()) for p in paths)
        named = set(re.findall(rf"\b{re.escape(before)}(ROPE_\w+)", code))
        names = [v.name for e in enums.values() for v in e.values]
        complaints += [f"bindings/{folder} has no {name}" for name in names if name not in named]
    return complaints


def main(arguments: list[str]) -> int:
    if arguments not in ([], ["--check"]):
        print("usage: bindings/enums.py [--check]", file=sys.stderr)
        return 2
    enums = read()
    complaints = left_out(enums) if arguments else []
    for path, write in WRITTEN.items():
        file, want = HERE / path, [*write(enums), ""]
        have = file.read_text().split("\n") if file.exists() else []
        if not arguments:
            file.write_text("\n".join(want))
        elif have != want:
            complaints += difflib.unified_diff(have, want, path, "now", n=0, lineterm="")
            complaints.append("run bindings/enums.py")
    print("\n".join(complaints) if complaints else f"{len(enums)} enums")
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
