#!/usr/bin/env python3
"""Every code block of docs/ is a part of a program that is compiled and run, every link leads
somewhere, and the list of missed bars is that of the results.

    docs_test.py REPOSITORY C-COMPILER C++-COMPILER
    docs_test.py REPOSITORY --links     writes the links below the blocks

A block of code is a `{literalinclude}` of a file that a build or a binding's tests run; this tells
which files those are. The headers' own examples are compiled here, and the reader that the
reference is written by must find every declaration. Below each block of a Markdown page stands a link
to its lines, because a forge shows the options of the block and no code. Needs Python's standard
library only: the site itself is built, and its links are followed, by scripts/docs.
"""

from __future__ import annotations

import hashlib
import pathlib
import re
import subprocess
import sys
import tempfile

FENCE = re.compile(r"^( *)(`{3,}|~{3,}|:{3,})([^\n]*)\n(.*?)^\1\2 *$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?!\w+:|#)([^)\s]+)\)")
# A block, and the link below it, which is written here.
INCLUDED = re.compile(
    r"^( *)```\{literalinclude\} (\S+)\n((?: *:.*\n)*) *```\n(?:\n\1\[[\w.]+, lines? [^\n]*\n)?",
    re.MULTILINE,
)
# Blocks that hold no code, and directives that hold none.
HARMLESS = {"text", "{toctree}", "{repository-page}", "{csv-table}"}


class Repository:
    """What is run, by its path."""

    def __init__(self, root: pathlib.Path) -> None:
        self.root = root
        text = lambda path: (root / path).read_text("utf-8")  # noqa: E731
        self.lists = {
            "examples": "".join(
                text(f"examples/{name}")
                for name in ("CMakeLists.txt", "cuda_examples.cmake", "mpi_examples.cmake")
            ),
            "tests/docs": text("tests/docs/CMakeLists.txt"),
            "tests/docs/figures": text("tests/docs/CMakeLists.txt"),
            "bindings/python/examples": text("bindings/python/tests/test_examples.py"),
            "bindings/rust/librope/examples": text("bindings/rust/run-tests"),
        }

    def is_run(self, path: pathlib.Path) -> bool:
        folder, name = str(path.parent), path.stem
        if folder == "bindings/go":  # go test runs the examples of *_test.go
            return path.name.endswith("_test.go")
        if path.suffix in (".csv", ".txt"):
            name = path.name
        listed = self.lists.get(folder, "")
        return re.search(rf"(?<![\w.]){re.escape(name)}(?!\w)", listed) is not None


def problems_of_include(
    repository: Repository, page: pathlib.Path, info: str, body: str
) -> list[str]:
    named = (page.parent / info.split()[1]).resolve()
    if not named.is_file():
        return [f"{info}: no such file"]
    path = named.relative_to(repository.root)
    out = [] if repository.is_run(path) else [f"{path} is run by nothing"]
    lines = named.read_text("utf-8").split("\n")
    at, markers = 0, dict(re.findall(r"^:([\w-]+): *(.*)$", body, re.MULTILINE))
    for option in ("start-at", "start-after", "end-at", "end-before"):
        if option not in markers:
            continue
        marker = re.sub(r"^(['\"])(.*)\1$", r"\2", markers[option])
        found = [i for i, line in enumerate(lines) if marker in line and i >= at]
        if not found:
            out.append(f"{path} has no line with {marker!r}")
        elif option.startswith("start"):
            at = found[0] + 1
            if len(found) > 1:
                out.append(f"{path} has several lines with {marker!r}")
    function = "\n".join(lines[at:]).partition("\n}\n")[0]
    if path.name.endswith("_test.go") and "// Output:" not in function:
        out.append(f"{path} has no output to compare there, so go test does not run it")
    if "lines" in markers:
        out.append(f"{path} by line numbers: they do not move with the code")
    return out


def lines_of(named: pathlib.Path, body: str) -> tuple[int, int]:
    """The first and the last line, from 1, that a literalinclude with these options shows."""
    lines = named.read_text("utf-8").rstrip("\n").split("\n")
    first, last = 0, len(lines)
    for option, marker in re.findall(r"^ *:(start-[\w]+|end-[\w]+): *(.*)$", body, re.MULTILINE):
        marker = re.sub(r"^(['\"])(.*)\1$", r"\2", marker)
        behind = first + 1 if option.startswith("end") else 0
        at = next((i for i in range(behind, len(lines)) if marker in lines[i]), behind)
        if option.startswith("start"):
            first = at + (option == "start-after")
        else:
            last = at + (option == "end-at")
    while last > first + 1 and not lines[last - 1].strip():
        last -= 1
    return first + 1, last


def with_links(page: pathlib.Path, text: str) -> str:
    """The page with a link below each block."""

    def link(match: re.Match[str]) -> str:
        named = page.parent / match[2]
        if not named.is_file():
            return match[0]
        block = match[0][: match[0].rindex("```") + 4]
        first, last = lines_of(named, match[3])
        words = f"line {first}" if first == last else f"lines {first} to {last}"
        where = f"#L{first}" if first == last else f"#L{first}-L{last}"
        return f"{block}\n{match[1]}[{named.name}, {words}]({match[2]}{where})\n"

    return INCLUDED.sub(link, text)


def problems(repository: Repository, page: pathlib.Path, text: str) -> list[str]:
    out = []
    for match in FENCE.finditer(text):
        info = match[3].strip()
        kind = info.split()[0] if info else ""
        if kind == "{literalinclude}":
            out += problems_of_include(repository, page, info, match[4])
        elif kind not in HARMLESS:
            out.append(f"a block of {kind or 'no language'}: include it from a file that is run")
    rest = FENCE.sub("", text)
    if page.suffix == ".rst":
        out += [f".. {d}:: holds code" for d in re.findall(r"\.\. (code[\w-]*|sourcecode)::", rest)]
        return out
    if page.name != "models.md":  # written by a test, which says how to run it
        without_lists = re.sub(r"^[-*\d].*\n(?:(?: +.*)?\n)*", "", rest, flags=re.MULTILINE)
        code = re.findall(r"(?:^|\n\n)( {4,}\S[^\n]*)", without_lists)
        out += [f"an indented block, {line.strip()!r}" for line in code]
    for link in LINK.findall(rest):
        if not (page.parent / link.partition("#")[0]).exists():
            out.append(f"no such file: {link}")
    return out


def check_pages(repository: Repository) -> list[str]:
    out = []
    pages = sorted(p for p in (repository.root / "docs").rglob("*") if p.suffix in (".md", ".rst"))
    blocks = 0
    for page in pages:
        text = page.read_text("utf-8")
        blocks += text.count("{literalinclude}")
        name = page.relative_to(repository.root)
        out += [f"{name}: {problem}" for problem in problems(repository, page, text)]
        if page.suffix == ".md" and with_links(page, text) != text:
            again = f"{sys.argv[0]} {sys.argv[1]} --links"
            out.append(f"{name}: links below blocks are missing or old: {again}")
    shown_as_they_are = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "bench/README.md", "bench/missed.md")
    for name in shown_as_they_are:
        page = repository.root / name
        for link in LINK.findall(page.read_text("utf-8")):
            if not (page.parent / link.partition("#")[0]).exists():
                out.append(f"{name}: no such file: {link}")
    print(f"{len(pages)} pages, {blocks} blocks of code")
    return out


def check_pictures(repository: Repository) -> list[str]:
    """Drawn from the figures that are there now: a picture carries their hash."""
    out = []
    for script in sorted((repository.root / "docs/images").glob("*.py")):
        figures = repository.root / "tests/docs/figures" / f"{script.stem}.csv"
        picture = script.with_name(script.stem.replace("_", "-") + ".png").read_bytes()
        if hashlib.sha256(figures.read_bytes()).hexdigest().encode() not in picture:
            out.append(f"{script.name}: its picture shows other figures; draw it anew")
    return out


def check_readme_lines(repository: Repository) -> list[str]:
    """README.md's block of lines of examples/generate.c has them, in their order."""
    text = (repository.root / "README.md").read_text("utf-8")
    block = re.search(r"lines of \[generate\.c\].*?\n```c\n(.*?)```", text, re.DOTALL)
    if block is None:
        return ["README.md: no lines of generate.c"]
    code = iter(map(str.strip, (repository.root / "examples/generate.c").read_text("utf-8").split("\n")))
    lines = [line for line in block[1].split("\n") if line]
    return [f"README.md: generate.c has no such line there: {line}" for line in lines if line not in code][:1]


def check_missed_bars(repository: Repository) -> list[str]:
    """bench/missed.md is what bench/results say."""
    script, page = (repository.root / name for name in ("scripts/bench-table", "bench/missed.md"))
    with tempfile.TemporaryDirectory() as folder:
        again = pathlib.Path(folder) / "missed.md"
        subprocess.run([sys.executable, script, "--missed", again], check=True)
        same = again.read_bytes() == page.read_bytes()
    return [] if same else ["bench/missed.md is old: scripts/bench-table --missed"]


def check_the_check(repository: Repository) -> list[str]:
    """Pages with a mistake are found, each mistake once."""
    page = repository.root / "docs/guides/wrong.md"
    start = "```{literalinclude} ../../"
    wrong = {
        "```c\nint x;\n```\n": "a block of c",
        "```sh\nmake\n```\n": "a block of sh",
        "```\nmake\n```\n": "a block of no language",
        "Words.\n\n    int x;\n": "an indented block",
        f"{start}examples/nothing.c\n```\n": "no such file",
        f"{start}src/api.cc\n```\n": "is run by nothing",
        f"{start}tests/docs/check.h\n```\n": "is run by nothing",
        f"{start}examples/quickstart.c\n:start-at: nowhere\n```\n": "has no line with",
        f"{start}examples/quickstart.c\n:start-at: for (int t\n```\n": "has several lines",
        f"{start}examples/quickstart.c\n:lines: 3-5\n```\n": "by line numbers",
        f"{start}bindings/go/rope_test.go\n```\n": "no output to compare",
        "[x](../nothing.md)\n": "no such file",
    }
    out = []
    for text, what in wrong.items():
        found = problems(repository, page, text)
        if len(found) != 1 or what not in found[0]:
            out.append(f"this check finds {found} in {text!r}")
    right = f"{start}examples/quickstart.c\n:start-at: int main\n```\n\n- a list\n\n    of two\n"
    block = f"{start}examples/quickstart.c\n:start-at: int main\n:end-before: head_dim\n```\n"
    linked = with_links(page, block)
    code = (repository.root / "examples/quickstart.c").read_text("utf-8").split("\n")
    first = code.index("int main(void) {") + 1
    if f"quickstart.c, lines {first} to" not in linked or with_links(page, linked) != linked:
        out.append(f"this check links {block!r} as {linked!r}")
    if problems(repository, page, right):
        out.append(f"this check finds {problems(repository, page, right)} in {right!r}")
    return out


def check_reader(repository: Repository, header) -> list[str]:
    """The reference has every function, enumerator and field."""
    out, functions = [], set()
    for path in sorted((repository.root / "include/librope").glob("*.h")):
        text = path.read_text("utf-8")
        declarations = [d for s in header.read(text) for d in s.declarations]
        functions |= {d.name for d in declarations if d.kind == "function"}
        members = [name for d in declarations for m in d.members for name in m.names]
        code = re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)
        for value in re.findall(r"^\s+(ROPE_\w+) = ", code, re.MULTILINE):
            if value not in members:
                out.append(f"{path.name}: {value} is not in the reference")
        for name, body in re.findall(r"typedef struct (\w+) \{(.*?)\n\}", code, re.DOTALL):
            body = re.sub(r"\(\*(\w+)\)\(.*?\)", r"\1", body)
            fields = re.findall(r"(\w+)(?:\[\w+\])?[,;]", body)
            found = [n for d in declarations if d.name == name for m in d.members for n in m.names]
            if fields != found:
                out.append(f"{path.name}: {name} has {fields}, and in the reference {found}")
    exported = set((repository.root / "tests/package/symbols.txt").read_text("utf-8").split())
    if functions != exported:
        out.append(f"functions in the reference, or exported, but not both: {functions ^ exported}")
    return out


# What the examples in the headers leave to the reader.
AROUND = {
    "rope.h": "rope_status status; int64_t tokens = 0, positions[1]; void *q = 0, *k = 0;",
    "model.h": "const char* json = 0; size_t length = 0; rope_model* model; rope_config config;"
    " rope_context* rope[8]; int32_t t, type, layer = 0; int64_t tokens = 0;",
    "rope.hpp": "int64_t tokens = 0, positions[1]; void *q = 0, *k = 0;",
}
# Blocks with one of these names, instead.
AROUND_CALLS = {
    "rope_kv_cache": "rope_status status; int64_t pages = 1, tokens = 1, slot_mapping[1] = {0};"
    " rope_tensor k_cache = {0}, v_cache = {0}, v = {0};"
    " rope_context* rope = 0; rope_qk_args args = ROPE_INIT(rope_qk_args);",
    "from_positions": "rope_status status; rope_kv_cache cache = ROPE_INIT(rope_kv_cache);"
    " rope_fused fused = ROPE_INIT(rope_fused); rope_positions before = {0};"
    " rope_context* rope = 0; rope_qk_args args = ROPE_INIT(rope_qk_args);",
    "rope::Move": "int64_t cut = 0; rope_kv_cache cache = ROPE_INIT(rope_kv_cache);"
    " rope_qk_args args = ROPE_INIT(rope_qk_args);",
    "rope_shard shard": "rope_status status; int rank = 0, ranks = 1; int64_t length = 1;"
    " rope_context* rope = 0; rope_qk_args args = ROPE_INIT(rope_qk_args);",
    "weight_grad": "rope_norm norm = ROPE_INIT(rope_norm); rope_qk_args args = ROPE_INIT(rope_qk_args);"
    " rope_tensor q_before = {0}, q_grad = {0}; float parts[1];",
    "rope_norm": "uint16_t q_norm_weight[1] = {0}; rope_fused fused = ROPE_INIT(rope_fused);",
    "rope_model": AROUND["model.h"],
    "rope_prepared_create": "rope_status status; int layers = 0; void *q_of[1], *k_of[1];"
    " rope_context* rope = 0; rope_qk_args args = ROPE_INIT(rope_qk_args);",
}


def check_header_examples(repository: Repository, header, cc: str, cxx: str) -> list[str]:
    out = []
    for name, variables in AROUND.items():
        path = repository.root / "include/librope" / name
        if not path.exists():
            continue
        for section in header.read(path.read_text("utf-8")):
            for block in re.findall(r"(?:^ {4}.*\n?|^\n)+", section.comment, re.MULTILINE):
                if ";" not in block:
                    continue
                used = next((v for n, v in AROUND_CALLS.items() if n in block), variables)
                code = re.sub(r"^\s*\.\.\..*$", "", block, flags=re.MULTILINE)
                program = f"#include <stdio.h>\n#include <librope/{name}>\n"
                program += f"int main(void) {{\n{used}\n{code}\n"
                with tempfile.TemporaryDirectory() as folder:
                    source = pathlib.Path(folder) / ("x.cc" if name.endswith("pp") else "x.c")
                    source.write_text(program + "return 0; }\n", "utf-8")
                    compiler = [cxx, "-std=c++17"] if name.endswith("pp") else [cc, "-std=c99"]
                    done = subprocess.run(
                        [*compiler, "-fsyntax-only", f"-I{repository.root}/include", str(source)],
                        capture_output=True, text=True,
                    )  # fmt: skip
                if done.returncode != 0:
                    out.append(f"the example of {name} does not compile:\n{program}\n{done.stderr}")
    return out


def main() -> int:
    root = pathlib.Path(sys.argv[1]).resolve()
    if sys.argv[2] == "--links":
        for page in (root / "docs").rglob("*.md"):
            text = page.read_text("utf-8")
            if (linked := with_links(page, text)) != text:
                page.write_text(linked, "utf-8")
        return 0
    cc, cxx = sys.argv[2:4]
    sys.path.insert(0, str(root / "docs/_ext"))
    sys.dont_write_bytecode = True
    import header

    repository = Repository(root)
    out = check_the_check(repository)
    out += check_pages(repository)
    out += check_pictures(repository)
    out += check_readme_lines(repository)
    out += check_missed_bars(repository)
    out += check_reader(repository, header)
    out += check_header_examples(repository, header, cc, cxx)
    for problem in out:
        print(problem)
    return 1 if out else 0


if __name__ == "__main__":
    sys.exit(main())
