"""The list of tests/README.md is whole, and every test that another file names is there.

usage: names_test.py ROOT
"""

import fnmatch
import pathlib
import re
import sys

ROOT = pathlib.Path(sys.argv[1])
TESTS = ROOT / "tests"
problems = []


def expect(condition, problem):
    if not condition:
        problems.append(problem)


def tests_of(path):
    """The names of a program's tests, as GoogleTest's filters see them."""
    text = path.read_text()
    names = re.findall(r"^TEST(?:_F)?\((\w+),\s*(\w+)\)", text, re.M)
    with_parameter = re.findall(r"^TEST_P\((\w+),\s*(\w+)\)", text, re.M)
    return {f"{suite}.{name}" for suite, name in names} | {
        f"Targets/{suite}.{name}/AVX2" for suite, name in with_parameter
    }


def programs():
    """By name: what is compiled or run as a test, or says by its place that it is one."""
    found = {p.stem: p for p in TESTS.rglob("*_test.*") if p.suffix in (".c", ".cc", ".py", ".sh")}
    for path in [*TESTS.glob("scenarios/*.c*"), *TESTS.glob("docs/*.c*")]:
        found[path.stem] = path
    found |= {"bits_test": TESTS / "bits/bits.cc"}
    found |= {path.stem: path for path in TESTS.glob("fuzz/*_fuzz.cc")}
    found |= {"run": TESTS / "package/run", "mutants/run": TESTS / "mutants/run"}
    return found | {"oracle/generate.py": TESTS / "oracle/generate.py"}


def check_readme(found):
    text = (TESTS / "README.md").read_text()
    rows = re.findall(r"^\| (`[^|]+?) \|", text, re.M)
    listed = {name for row in rows for name in re.findall(r"`([^`]+)`", row)}
    for name in found:
        expect(name in listed, f"README.md: no line for {name} ({found[name].relative_to(TESTS)})")
    for name in listed - set(found):
        there = [TESTS / name, TESTS / f"{name}.h"]
        expect(any(p.exists() for p in there), f"README.md: {name} is not there")
    for path in (TESTS / "support").iterdir():
        name = f"support/{path.name}"
        expect({name, f"support/{path.stem}"} & listed, f"README.md: no line for {name}")
    titles = " ".join(re.findall(r"^## (.*)", text, re.M))
    for folder in TESTS.iterdir():
        if folder.is_dir() and folder.name != "__pycache__":
            expect(re.search(rf"\b{folder.name}\b", titles), f"README.md: no title for {folder.name}/")
    for link in re.findall(r"\]\(([^)]+)\)", text):
        expect((TESTS / link).exists(), f"README.md: the link {link} leads nowhere")


def check_mutants(found):
    lines = [
        (f"mutants/list/{path.name}", line)
        for path in sorted((TESTS / "mutants/list").glob("*.txt"))
        for line in path.read_text().splitlines()
    ]
    for file, line in lines:
        if not line.startswith("test "):
            continue
        _, program, *patterns = line.split()
        if program not in found:
            problems.append(f"{file}: no program {program}")
            continue
        for pattern in patterns:
            expect(
                any(fnmatch.fnmatch(test, pattern) for test in tests_of(found[program])),
                f"{file}: {program} has no test {pattern}",
            )


def check_findings(found):
    """`program Test`, a part of a test's name, or `program` "row of a table"."""
    text = (TESTS / "findings.md").read_text()
    for program in set(re.findall(r"`(\w+_test)[`\s]", text)):
        expect(program in found, f"findings.md: no program {program}")
    for program, words in re.findall(r"`(\w+_test)\s+([\w.*]+)`", text):
        expect(
            program in found
            and any(fnmatch.fnmatch(test, f"*{words}*") for test in tests_of(found[program])),
            f"findings.md: {program} has no test {words}",
        )
    for program, rows in re.findall(r'`(\w+_test)` ((?:"[^"]+",?\s+)+)', text):
        for row in re.findall(r'"([^"]+?)(?: \.\.)?"', rows):
            expect(
                program in found and f'{{"{row}' in found[program].read_text(),
                f'findings.md: {program} has no row "{row}"',
            )


def check_filters(found):
    for path in filter(pathlib.Path.is_file, (ROOT / "scripts").iterdir()):
        for program, filters in re.findall(r"(\w+_test)\"? --gtest_filter='([^']+)'", path.read_text()):
            for pattern in filters.split(":"):
                expect(
                    any(fnmatch.fnmatch(test, pattern) for test in tests_of(found[program])),
                    f"{path.relative_to(ROOT)}: {program} has no test {pattern}",
                )


def main():
    found = programs()
    check_readme(found)
    check_mutants(found)
    check_findings(found)
    check_filters(found)
    for problem in problems:
        print(problem)
    print(f"{len(found)} programs, {len(problems)} problems")
    sys.exit(1 if problems else 0)


main()
