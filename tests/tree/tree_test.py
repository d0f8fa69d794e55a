#!/usr/bin/env python3
"""What keeps the tree in order: arrows between folders, facts in one place, names that exist.

    tests/tree/tree_test.py [-v] [Class.test]     reads files only; needs Python's own library

A failure names the lines, and the table below to change if they are meant.
"""

import os
import pathlib
import re
import runpy
import unittest

import include_graph

ROOT = pathlib.Path(__file__).resolve().parents[2]

# What each folder of src/ may include. From below to above; nothing includes what stands after it.
MAY_INCLUDE = {
    "base": "",
    "math": "",
    "context": "base math",
    "pool": "base",
    "backends": "context",
    "call": "base math context",
    "model": "base context",
    "api": "base math context call",
    "gpu": "base math call",
    "cuda": "base context call gpu",
}
# The same for every other folder with a backend.cc.
BACKEND = "base math context call"
BACKENDS = {p.parent.name for p in (ROOT / "src").glob("*/backend.cc")} - set(MAY_INCLUDE)
MAY_INCLUDE |= dict.fromkeys(BACKENDS, BACKEND)

# Where enumerators of the header may be named, by their prefix: rules are rows of the tables there.
# What src/model writes into a configuration is named by it, too.
ENUMERATORS = {
    "ROPE_COS_SIN_": "math/cos_sin_format.h",
    "ROPE_PAIRING_": "math/pairing.h model/",
    "ROPE_OPERATION_": "math/operation.h",
    "ROPE_SCALING_": "context/scaling_rules.h context/config.cc context/frequencies.cc model/",
    "ROPE_LAYOUT_": "call/check_tensors.cc call/check_token.cc api.cc",
    "ROPE_SLOTS_": "math/slots.h call/check_cache.cc call/slot_run.cc",
    "ROPE_SHARD_": "math/shard.h call/check_shard.cc",
    "ROPE_POSITIONS_": "call/check_positions.cc call/check_token.cc call/plan.cc api.cc",
    "ROPE_DEVICE_": "backends.cc",
}

# Numbers of base/limits.h that mean something else elsewhere: file, text, what it means.
OTHER_NUMBERS = [
    ("src/base/status.cc", "kMessageSize = 512", "bytes of a message"),
    ("src/cpu/caches.cc", "512 * kKiB", "bytes of an L2 cache"),
    ("src/cpu/cos_sin_rows.h", "cos and sin of 1024 pairs", "a block of rows; asserted there"),
    ("src/gpu/params.h", "kMaxThreads = 512", "threads of a block; asserted there"),
    ("src/gpu/params.h", "kFrequencyBytes = 1024", "bytes of parameters; asserted there"),
    ("src/model/class_sizes.cc", '", 512, ', "a model's width"),
    ("src/model/class_sizes.cc", '", 1024, ', "a model's width"),
    ("src/model/class_ropes.h", '"global_head_dim", 512', "a model's head"),
    ("src/model/families.cc", ".HeadDim(512)", "a model's head"),
    ("src/model/model_types.cc", '"hidden_size": 1024', "a model's width"),
    ("src/model/class_ropes.h", '"original_max_position_embeddings": 1024', "a model's length"),
    ("src/model/class_ropes.h", '"original_max_position_embeddings": 512', "a model's length"),
]

LONGEST = 600  # lines of a file
# Longer: generated, and a manual that is read as one.
LONG = {"bindings/rust/librope-sys/src/bindings.rs", "include/librope/rope.h",
        "include/librope/rope.hpp"}
CODE = {".h", ".cc", ".cu", ".c", ".hpp", ".py", ".go", ".rs", ".sh"}
BUILT = {"build", "target", "vendor", "node_modules", "__pycache__", ".git", "dist"}


def files(*folders: str) -> list[pathlib.Path]:
    """The files of the repository below some folders, without what builds leave there."""
    return sorted(p for folder in folders for p in (ROOT / folder).rglob("*")
                  if p.is_file() and not BUILT.intersection(p.relative_to(ROOT).parts))


def name(path: pathlib.Path) -> str:
    return str(path.relative_to(ROOT))


def lines_of(path: pathlib.Path) -> list[str]:
    return path.read_text().split("\n")


def without_comments(text: str) -> str:
    """The same lines, so that their numbers stay."""
    return re.sub(r"//[^\n]*|/\*.*?\*/", lambda m: "\n" * m[0].count("\n"), text, flags=re.S)


class Tree(unittest.TestCase):
    def expect_none(self, problems: list[str], advice: str = "") -> None:
        """Each problem is a line of its own: where, and what stands there."""
        if problems:
            self.fail("\n".join(["", *problems, *([advice] if advice else [])]))


class Includes(Tree):
    @classmethod
    def setUpClass(cls):
        cls.boxes, cls.units, cls.lost = include_graph.read(ROOT)

    def test_every_include_names_a_file_by_its_path_below_src(self):
        self.expect_none(self.lost, "No such file below src/: an include says \"folder/file.h\".")

    def test_every_folder_has_its_row(self):
        folders, rows = self.boxes.nodes, set(MAY_INCLUDE)
        self.expect_none([f"src/{box} has no row" for box in sorted(folders - rows)]
                         + [f"the row of {box}: no such file or folder in src/"
                            for box in sorted(rows - folders)],
                         "The rows are those of MAY_INCLUDE in tests/tree/tree_test.py.")

    def test_folders_include_only_what_lies_below_them(self):
        wrong = [f"{line} ({start} includes {to})"
                 for (start, to), lines in self.boxes.arrows.items()
                 if to not in MAY_INCLUDE.get(start, "").split() for line in lines]
        self.expect_none(wrong, "If it is meant: MAY_INCLUDE in tests/tree/tree_test.py, and the "
                                "drawing in CONTRIBUTING.md.")

    def test_the_table_allows_nothing_that_nobody_needs(self):
        allowed = {(start, to) for start, below in MAY_INCLUDE.items() if start not in BACKENDS
                   for to in below.split()}
        self.expect_none([f"{start} may include {to}, and no file of it does"
                          for start, to in sorted(allowed - set(self.boxes.arrows))],
                         "Take it out of MAY_INCLUDE in tests/tree/tree_test.py.")

    def test_there_are_no_circles(self):
        for graph in (self.boxes, self.units):
            for circle in graph.circles():
                lines = [line for (start, to), lines in graph.arrows.items()
                         if {start, to} <= set(circle) for line in lines]
                self.expect_none(lines, f"These includes are a circle: {', '.join(circle)}.")
        for what, graph in (("folders", self.boxes), ("files", self.units)):
            print(f"include graph by {what}: {len(graph.nodes)} boxes, {len(graph.arrows)} arrows, "
                  f"{max(graph.floors().values())} floors, no circle")

    def test_guards_are_paths(self):
        wrong = []
        for path in files("src", "tests"):
            if path.suffix != ".h" or "scenarios" in path.parts:
                continue
            guard = "LIBROPE_" + re.sub(r"[/.\-]", "_", name(path)).upper() + "_"
            found = set(re.findall(r"\bLIBROPE_(?:SRC|TESTS)_\w+_H_\b", path.read_text()))
            if found != {guard}:
                wrong.append(f"{name(path)}: {', '.join(sorted(found)) or 'no guard'}, not {guard}")
        self.expect_none(wrong)


class Facts(Tree):
    """Each stands in one place."""

    def test_enumerators_are_named_where_their_table_is(self):
        wrong = []
        for path in files("src"):
            below = name(path).removeprefix("src/")
            elsewhere = [prefix for prefix, places in ENUMERATORS.items()
                         if not below.startswith(tuple(places.split()))]
            for number, line in enumerate(without_comments(path.read_text()).split("\n"), 1):
                for said in re.findall(r"\bROPE_[A-Z]\w*", line):
                    for prefix in elsewhere:
                        if said.startswith(prefix) and said != prefix:
                            wrong.append(f"{name(path)}:{number}: {said} belongs to "
                                         f"{ENUMERATORS[prefix]}: {line.strip()}")
        self.expect_none(wrong, "Ask the table there. If the place is a new one: ENUMERATORS in "
                                "tests/tree/tree_test.py.")

    def test_messages_name_enumerators_and_write_numbers_in_one_way(self):
        wrong = []
        for path in files("src"):
            for literal in re.findall(r'"%s: (?:[^"\\]|\\.)*"(?:\s*"(?:[^"\\]|\\.)*")*', path.read_text()):
                message = re.sub(r'"\s*"', "", literal)
                if re.search(r"%[\d.]*l?[efg]", message):
                    wrong.append(f"{name(path)}: {message} depends on the locale: Decimal")
                if re.search(r"(kind|dtype|layout|format|operation|scaling|pairing|angle|rounding|order|span|scheme)"
                             r" \(%d\) (?!is not known)", message):
                    wrong.append(f"{name(path)}: {message} has a number for an enumerator")
        self.expect_none(wrong)

    def test_every_place_of_enumerators_has_some(self):
        wrong = []
        for prefix, places in ENUMERATORS.items():
            for place in places.split():
                found = [p for p in files("src") if name(p).startswith("src/" + place)]
                if not any(prefix in p.read_text() for p in found):
                    wrong.append(f"src/{place}: {prefix}* may be named there, and is not")
        self.expect_none(wrong, "Take it out of ENUMERATORS in tests/tree/tree_test.py.")

    def test_sizes_of_limits_h_stand_nowhere_else(self):
        wrong, gone = [], []
        for path in files("src"):
            if name(path) == "src/base/limits.h":
                continue
            text = path.read_text()
            for file, other, means in OTHER_NUMBERS:
                if file == name(path):
                    if other not in text:
                        gone.append(f"{file}: `{other}` ({means}) no longer stands there")
                    text = text.replace(other, "")
            for number, line in enumerate(text.split("\n"), 1):
                if re.search(r"(?<![\w.])(512|1024)(?![\w.])", line):
                    wrong.append(f"{name(path)}:{number}: {line.strip()}")
        self.expect_none(wrong, "Name the constant of src/base/limits.h; if the number means another "
                                "thing: OTHER_NUMBERS in tests/tree/tree_test.py.")
        self.expect_none(gone, "Adapt OTHER_NUMBERS in tests/tree/tree_test.py.")

    def test_model_types_are_named_in_their_tables_alone(self):
        tables = {f"src/model/{table}.cc" for table in ("class_sizes", "families", "model_types", "vision")}
        text = "".join((ROOT / t).read_text() for t in sorted(tables))
        types = set(re.findall(r'\b(?:Row|Also)\(\s*"(\w+)"', text))
        types |= set(re.findall(r'^\s*\{"(\w+)",', (ROOT / "src/model/vision.cc").read_text(), re.M))
        self.assertGreater(len(types), 150, "model types of families.cc and vision.cc")
        types -= {"gptj", "minicpm"}  # a rope_type, and one of MiniCPM-SALA's mixers
        wrong = []
        for path in files("src"):
            others = {"src/model/gguf_architectures.cc", "src/model/maxtext_config.cc"}  # words of their own
            if name(path) in tables | others:
                continue
            for number, line in enumerate(without_comments(path.read_text()).split("\n"), 1):
                wrong += [f"{name(path)}:{number}: \"{said}\" is a model_type: {line.strip()}"
                          for said in re.findall(r'"(\w+)"', line) if said in types]
        self.expect_none(wrong, f"What holds for one model stands in {' or '.join(sorted(tables))}. A "
                                "word that means something else, too, is left out in this test.")

    def test_architectures_of_gguf_are_those_of_the_guide(self):
        source = (ROOT / "src/model/gguf_architectures.cc").read_text()
        known = set(re.findall(r'^    \{"([\w.-]+)",', source, re.M))
        self.assertGreater(len(known), 140, "architectures of gguf_architectures.cc")
        guide = (ROOT / "docs/gguf.md").read_text()
        listed = set(re.findall(r"`([\w.-]+)`", guide[guide.index("\n## Architectures"):]))
        self.expect_none([f"docs/gguf.md: no `{name}`" for name in sorted(known - listed)])
        read = len(re.findall(r'^    \{"[\w.-]+", k(?!Without)', source, re.M))
        self.assertIn(f"{read} values of `general.architecture`", guide)

    def test_enumerators_begin_with_the_word_of_their_type(self):
        prefixes = {}
        for header in files("include/librope"):
            text = re.sub(r"/\*.*?\*/", "", header.read_text(), flags=re.S)
            pattern = r"typedef int32_t (rope_\w+);\s*enum \{(.*?)\};"
            for kind, body in re.findall(pattern, text, re.S):
                names = re.findall(r"\b(ROPE_\w+) = (-?\d+)", body)
                self.assertEqual(len(names), len([b for b in body.split(",") if b.strip()]),
                                 f"{kind}: an enumerator is not `ROPE_NAME = number`")
                prefixes[kind] = [n for n, _ in names]
            self.assertEqual(text.count("enum {"), len(re.findall(pattern, text, re.S)),
                             f"{name(header)}: an enum is not after its `typedef int32_t rope_..;`")
        self.assertGreaterEqual(len(prefixes), 10, "enums of include/librope")
        word = {"rope_position_kind": "POSITIONS", "rope_slot_kind": "SLOTS",
                "rope_cos_sin_format": "COS_SIN", "rope_shard_scheme": "SHARD"}
        wrong = []
        for kind, names in prefixes.items():
            if kind == "rope_status":
                wrong += [f"{n} of rope_status is neither ROPE_OK nor ROPE_ERROR_*" for n in names
                          if n != "ROPE_OK" and not n.startswith("ROPE_ERROR_")]
                continue
            prefix = f"ROPE_{word.get(kind, kind.removeprefix('rope_').upper())}_"
            for other, theirs in prefixes.items():
                wrong += [f"{n} of {other} " + ("does not begin" if other == kind else "begins")
                          + f" with {prefix}, the prefix of {kind}"
                          for n in theirs if n.startswith(prefix) != (other == kind)]
        self.expect_none(wrong, "A type whose prefix is no word of it: `word` in this test.")


class Files(Tree):
    def test_files_say_what_they_are_and_are_short(self):
        folders = ("src", "include", "tests", "examples", "bench", "bindings", "scripts")
        wrong = []
        for path in files(*folders):
            if path.suffix not in CODE or name(path) in LONG:
                continue
            lines = lines_of(path)
            if len(lines) - 1 > LONGEST:
                wrong.append(f"{name(path)}: {len(lines) - 1} lines, more than {LONGEST}: two files")
            if path.suffix in {".go", ".rs", ".sh"} or path.with_suffix(".h").exists() and path.suffix == ".cc":
                continue  # its header says it, or the language's own tools ask for it
            number, first = next(((n, line) for n, line in enumerate(lines, 1)
                                  if line and not line.startswith(("#!", "#include"))), (1, "//"))
            if not re.match(r'(//|/\*|#|r?"""|from __future__)', first):
                wrong.append(f"{name(path)}:{number}: a comment says what the file is; here stands: "
                             f"{first}")
        self.expect_none(wrong, "Generated files, and manuals that are read as one: LONG in "
                                "tests/tree/tree_test.py.")

    def test_no_file_is_named_by_what_it_is_not(self):
        self.expect_none([f"{name(path)}: say what is in it"
                          for path in files("src", "include", "tests", "bench", "bindings")
                          if re.search(r"^(utils?|helpers?|common|misc|semantics|geometry|structs)$", path.stem)])

    def test_every_binding_has_tests_that_run(self):
        folders = sorted({path.relative_to(ROOT).parts[1] for path in files("bindings")
                          if len(path.relative_to(ROOT).parts) > 2})
        self.assertGreaterEqual(len(folders), 3, "folders of bindings/")
        self.expect_none([f"bindings/{folder}/run-tests: no such executable file" for folder in folders
                          if not os.access(ROOT / "bindings" / folder / "run-tests", os.X_OK)],
                         "scripts/test runs it; CONTRIBUTING.md says what it does. chmod +x?")

    def test_paths_in_documents_exist(self):
        known = {name(p) for p in files("src", "tests", "include", "examples", "bench", "bindings",
                                        "scripts", "cmake", "docs", "pkgconfig", ".ci")}
        known |= {str(pathlib.PurePath(k).parent) for k in known} | {"CMakeLists.txt", "build"}
        pattern = re.compile(r"(?<![\w./-])((?:src|tests|include|examples|bench|scripts|cmake|docs)"
                             r"/[\w./*-]*\w)")
        wrong = []
        for path in [*ROOT.glob("*.md"), *files("docs"), *files("tests"), *files("src")]:
            if path.suffix not in {".md", ".h", ".cc", ".cu"} or path.name == "CHANGELOG.md":
                continue
            for number, line in enumerate(lines_of(path), 1):
                for said in pattern.findall(line):
                    bare = said.split("*")[0].rstrip("./")
                    if bare and not any(k == said or k.startswith(bare) for k in known):
                        wrong.append(f"{name(path)}:{number}: {said} is not there")
        self.expect_none(wrong)

    def test_every_mutant_applies_once(self):
        mutants = runpy.run_path(str(ROOT / "tests/mutants/run"))["read_list"]()
        count, wrong = len(mutants), []
        for m in mutants:
            path = ROOT / m.file
            if problem := m.problem(path.read_text() if path.exists() else ""):
                wrong.append(f"{m.file}: {m.context} {problem}")
        self.expect_none(wrong, "Adapt the entry in tests/mutants/list/, or remove it.")
        self.assertGreater(count, 150, "entries in tests/mutants/list/")


if __name__ == "__main__":
    unittest.main()
