"""Reads a header of librope: its sections, its declarations, and the comments that belong to them.

The headers are their own manual: plain comments in the order of learning, without the marks of a
documentation tool. clang-format keeps their form, so a reader of that form is enough, and neither
the order nor the sections get lost. It needs Python's standard library only:
tests/docs/docs_test.py reads the headers with it, too.

A comment belongs to the declaration after it, or to the one before it on the same line. One that
begins with a line of dashes begins a section.
"""

from __future__ import annotations

import dataclasses
import re


@dataclasses.dataclass
class Declaration:
    """kind: function, struct, class, type, macro, enumerator or member."""

    kind: str
    names: list[str]  # several of `double beta_fast, beta_slow;`
    signatures: list[str]
    comment: str = ""
    members: list[Declaration] = dataclasses.field(default_factory=list)
    line: int = 0

    @property
    def name(self) -> str:
        return self.names[0]


@dataclasses.dataclass
class Section:
    """title is empty for what stands before the first section."""

    title: str
    comment: str
    declarations: list[Declaration] = dataclasses.field(default_factory=list)


_TOKEN = re.compile(
    r"""(?P<comment>/\*.*?\*/|//[^\n]*)
      | (?P<directive>^\#(?:[^\n]*\\\n)*[^\n]*)
      | (?P<string>"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')
      | (?P<word>\w+)
      | (?P<space>\s+)
      | (?P<sign>::|\.\.\.|.)""",
    re.VERBOSE | re.DOTALL | re.MULTILINE,
)
_BANNER = re.compile(r"^-{20,}\n(?P<title>[^\n]*)\n?", re.MULTILINE)


def text_of(comment: str) -> str:
    """A comment without its marks; what stands deeper than the rest stays so."""
    if comment.startswith("//"):
        return comment[2:].strip()
    lines = comment[2:-2].split("\n")
    rest = [re.sub(r"^\s*\* ?", "", line) for line in lines[1:]]
    if any(not re.match(r"\s*(\*( |$)|$)", line) for line in lines[1:]):  # beside a field: no stars
        rest = [line.strip() for line in lines[1:]]
    return "\n".join([lines[0].strip(), *(line.rstrip() for line in rest)]).strip("\n ")


class Reader:
    """One pass over the tokens of a header."""

    def __init__(self, text: str) -> None:
        text = _without_cplusplus(text)
        self.tokens: list[tuple[str, str, int]] = []
        line = 1
        for m in _TOKEN.finditer(text):
            self.tokens.append((m.lastgroup or "", m.group(), line))
            line += m.group().count("\n")
        self.at = 0
        self.sections = [Section("", "")]
        self.comment = ""  # of the declaration to come
        self.apart = ""  # the same, if an empty line follows it: a macro's
        self.last: Declaration | None = None
        self.last_line = 0

    def read(self) -> list[Section]:
        self._scope(self._top, public=True)
        return self.sections

    def _top(self, declaration: Declaration) -> None:
        into = self.sections[-1].declarations
        if declaration.kind == "enum":  # values of the typedef before it
            into[-1].members += declaration.members
        elif declaration.kind:
            into.append(declaration)

    def _scope(self, add, public: bool, name: str = "") -> None:
        """What stands between braces, or in the file."""
        while self.at < len(self.tokens):
            kind, text, line = self.tokens[self.at]
            if kind == "space":
                if text.count("\n") > 1 and self.comment:  # an empty line after it
                    self.comment, self.apart = "", self.comment
                self.at += 1
            elif kind == "comment":
                self._comment(text, line)
                self.at += 1
            elif kind == "directive":
                self._directive(text, line, add)
                self.at += 1
            elif text == "}":
                self.at += 1
                return
            elif text in ("public", "private", "protected") and self._next(1) == ":":
                public = text == "public"
                self.at += 2
            else:
                declaration = self._declaration(name, line)
                if declaration is not None and public:
                    add(declaration)
                    self.last = declaration
                    self.last_line = self.tokens[self.at - 1][2]
                self.comment = ""

    def _next(self, ahead: int) -> str:
        return self.tokens[self.at + ahead][1] if self.at + ahead < len(self.tokens) else ""

    def _comment(self, text: str, line: int) -> None:
        words = text_of(text)
        if self.last is not None and line == self.last_line:
            self.last.comment = (self.last.comment + "\n\n" + words).strip()
            return
        self.last = None
        banner = _BANNER.search(words)
        if banner is None and not self.sections[0].comment:
            self.sections[0].comment = words
            return
        if banner is None:
            self.comment = words
            return
        if banner.start():
            self.sections[-1].comment = words[: banner.start()].strip("\n ")
        self.sections.append(Section(banner["title"], words[banner.end() :].strip("\n")))
        self.comment = ""

    def _directive(self, text: str, line: int, add) -> None:
        told = re.match(r"#ifndef \w+ /\* (.*) \*/", text)
        if told:
            self.comment = told[1]
        macro = re.match(r"#define (ROPE_\w+)(\([^)]*\))?", text)
        known = {d.name for s in self.sections for d in s.declarations}
        if macro is None or macro[1] in known:
            return
        told = self.comment or self.apart
        add(Declaration("macro", [macro[1]], [macro[1] + (macro[2] or "")], told, [], line))
        self.comment = self.apart = ""

    def _statement(self) -> tuple[str, str]:
        """Up to a `;`, a `{` or a `,` of enumerators: the text, and which of them it was."""
        parts, depth = [], 0
        while True:
            kind, text, _ = self.tokens[self.at]
            if kind == "comment":
                break
            if text in "([<" and not (text == "<" and kind != "sign"):
                depth += text != "<"
            elif text in ")]":
                depth -= 1
            if depth == 0 and text in (";", "{", "}"):
                break
            parts.append(" " if kind == "space" else text)
            self.at += 1
        return re.sub(r"\s+", " ", "".join(parts)).strip(), text

    def _skip_body(self) -> None:
        depth = 0
        while True:
            text = self.tokens[self.at][1]
            depth += (text == "{") - (text == "}")
            self.at += 1
            if depth == 0:
                return

    def _declaration(self, scope: str, line: int) -> Declaration | None:
        comment, (text, end) = self.comment, self._statement()
        if end == "{" and re.match(r'(inline )?namespace |extern "C"', text):
            self.at += 1
            self._scope(self._top, public=True)
            return None
        if end == "{" and (owner := re.fullmatch(r"(typedef struct|class) (\w+)(.*)", text)):
            return self._owner(owner[2], owner[1] == "class", text, comment, line)
        if end == "{" and text == "enum":
            self.at += 1
            return self._enum(line)
        if end == "{":
            text = _without_initialisers(text)
            self._skip_body()
        elif end == ";":
            self.at += 1
        else:
            raise ValueError(f"line {line}: {text!r} ends with {end!r}")
        return _of(text, comment, line, scope)

    def _owner(self, name: str, is_class: bool, text: str, comment: str, line: int) -> Declaration:
        made = Declaration("class" if is_class else "struct", [name], [], comment, [], line)
        made.signatures = [text.removeprefix("class ").removeprefix("typedef struct ")]
        self.at += 1
        self.comment, self.last = "", None
        self._scope(made.members.append, public=not is_class, name=name)
        while self.tokens[self.at][1] != ";":
            self.at += 1
        self.at += 1
        return made

    def _enum(self, line: int) -> Declaration:
        made = Declaration("enum", [""], [""], "", [], line)
        self.comment, self.last = "", None
        while True:
            kind, text, line = self.tokens[self.at]
            self.at += 1
            if kind == "comment":
                self._comment(text, line)
            elif text == "}":
                break
            elif kind == "word":
                value = ""
                while self._next(0) not in (",", "}") and not self._next(0).startswith("/"):
                    value += self._next(0)
                    self.at += 1
                if self._next(0) == ",":
                    self.at += 1
                signature = text + re.sub(r"\s*=\s*", " = ", value.rstrip())
                self.last = Declaration("enumerator", [text], [signature], self.comment, [], line)
                self.last_line, self.comment = line, ""
                made.members.append(self.last)
        while self.tokens[self.at][1] != ";":
            self.at += 1
        self.at += 1
        return made


def _without_cplusplus(text: str) -> str:
    """What C sees of #ifdef __cplusplus .. [#else ..] #endif; lines keep their numbers."""

    def chosen(m: re.Match[str]) -> str:
        return "\n" * m[1].count("\n") + (m[2] or "").removeprefix("#else")

    return re.sub(
        r"^(#ifdef __cplusplus\n(?:(?!#else|#endif).*\n)*)(#else(?:.*\n(?!#endif))*.*\n)?#endif",
        chosen, text, flags=re.MULTILINE,
    )  # fmt: skip


def _without_initialisers(text: str) -> str:
    """A constructor without what follows the colon after its parameters."""
    depth = 0
    for i, c in enumerate(text):
        depth += (c == "(") - (c == ")")
        if depth == 0 and re.match(r"(?<!:):(?!:)", text[i : i + 2]) and ")" in text[:i]:
            if text[i - 1] != ":":
                return text[:i].rstrip()
    return text


def _of(text: str, comment: str, line: int, scope: str) -> Declaration | None:
    """One declaration that is no struct with members, from its text."""
    if not text or re.fullmatch(r"struct \w+", text) or "= delete" in text and scope:
        return None
    if pointer := re.fullmatch(r"typedef (.*\(\*(\w+)\)\(.*\))", text):
        return Declaration("type", [pointer[2]], [pointer[1]], comment, [], line)
    if alias := re.fullmatch(r"typedef (?:struct )?(.*?) ?(\w+)", text):
        if alias[1] == alias[2]:  # opaque
            return Declaration("struct", [alias[2]], [alias[2]], comment, [], line)
        return Declaration("type", [alias[2]], [f"{alias[1]} {alias[2]}"], comment, [], line)
    if field := re.fullmatch(r"([^(]*)\(\*(\w+)\)\((.*)\)", text):
        return Declaration("member", [field[2]], [text], comment, [], line)
    if "(" in text:
        signature = re.sub(r"\b(ROPE_API|ROPE_MUST_CHECK|inline) ?", "", text).strip()
        name = re.search(r"([~\w]+|operator\W+)\s*\(", re.sub(r"^template <[^>]*> ", "", signature))
        if name is None:
            raise ValueError(f"line {line}: {text!r}")
        return Declaration("function", [name[1]], [signature], comment, [], line)
    first, *more = text.split(", ")
    declared = re.fullmatch(r"(.*?[ *])(\w+(?:\[\w+\])?)", first)
    if declared is None:
        raise ValueError(f"line {line}: {text!r}")
    full = [declared[2], *more]
    names = [re.sub(r"\[.*", "", d) for d in full]
    return Declaration("member", names, [declared[1] + d for d in full], comment, [], line)


def read(text: str) -> list[Section]:
    """The sections of a header, in their order; the first holds what stands before them."""
    return Reader(text).read()
