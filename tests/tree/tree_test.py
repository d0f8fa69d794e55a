#!/usr/bin/env python3
"""What keeps the tree in order: arrows between folders, facts in one place, names that exist.

    tests/tree/tree_test.py [-v] [Class.test]     reads files only; needs Python's own library
"""

import pathlib
import re
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
    "cpu": "base math context call",
    "gpu": "base math call",
    "cuda": "base context call gpu",
}

# Where enumerators of the header may be named, by their prefix: rules are rows of the tables there.
# What src/model writes into a configuration is named by it, too.
ENUMERATORS = {
    "ROPE_COS_SIN_": "math/cos_sin_format.h",
    "ROPE_PAIRING_": "math/pairing.h model/",
    "ROPE_OPERATION_": "math/operation.h cpu/cos_sin_rows.cc gpu/launch.cc",  # rows: as FORWARD's
    "ROPE_SCALING_": "context/scaling_rules.h context/config.cc context/frequencies.cc model/",
    "ROPE_LAYOUT_": "call/check_tensors.cc api.cc",
    "ROPE_POSITIONS_": "call/check_positions.cc call/plan.cc api.cc",
    "ROPE_DEVICE_": "cpu/backend.cc cuda/traits.h",
}

# Numbers of base/limits.h that mean something else elsewhere: file, text, what it means.
OTHER_NUMBERS = [
    ("src/base/status.cc", "kMessageSize = 512", "bytes of a message"),
    ("src/cpu/backend.cc", "512 << 10", "bytes that the L2 cache holds"),
    ("src/cpu/cos_sin_rows.h", "cos and sin of 1024 pairs", "a block of rows; asserted there"),
    ("src/gpu/params.h", "kMaxThreads = 512", "threads of a block; asserted there"),
    ("src/gpu/params.h", "kFrequencyBytes = 1024", "bytes of parameters; asserted there"),
    ("src/model/families.cc", '"global_head_dim", 512', "a model's head"),
    ("src/model/families.cc", ".HeadDim(512)", "a model's head"),
    ("src/model/families.cc", '"original_max_position_embeddings": 1024', "a model's length"),
    ("src/model/families.cc", '"original_max_position_embeddings": 512', "a model's length"),
]

LONGEST = 600  # lines of a file
# Longer: generated, and a manual that is read as one.
LONG = {"bindings/rust/librope-sys/src/bindings.rs", "include/librope/rope.h"}
CODE = {".h", ".cc", ".cu", ".c", ".hpp", ".py", ".go", ".rs", ".sh"}
BUILT = {"build", "target", "vendor", "node_modules", "__pycache__", ".git", "dist"}


def files(*folders: str) -> list[pathlib.Path]:
    """The files of the repository below some folders, without what builds leave there."""
    return sorted(p for folder in folders for p in (ROOT / folder).rglob("*")
                  if p.is_file() and not BUILT.intersection(p.relative_to(ROOT).parts))


def name(path: pathlib.Path) -> str:
    return str(path.relative_to(ROOT))


def without_comments(text: str) -> str:
    return re.sub(r"//[^\n]*|/\*.*?\*/", "", text, flags=re.S)


class Includes(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.boxes, cls.units, cls.lost = include_graph.read(ROOT)

    def test_every_include_names_a_file_by_its_path_below_src(self):
        self.assertEqual(self.lost, [])

    def test_folders_include_only_what_lies_below_them(self):
        self.assertEqual(self.boxes.nodes, set(MAY_INCLUDE))
        wrong = [line for (start, to), lines in self.boxes.arrows.items()
                 if to not in MAY_INCLUDE[start].split() for line in lines]
        self.assertEqual(wrong, [])

    def test_the_table_allows_nothing_that_nobody_needs(self):
        allowed = {(start, to) for start, below in MAY_INCLUDE.items() for to in below.split()}
        self.assertEqual(allowed - set(self.boxes.arrows), set())

    def test_there_are_no_circles(self):
        self.assertEqual(self.boxes.circles(), [])
        self.assertEqual(self.units.circles(), [])
        for what, graph in (("folders", self.boxes), ("files", self.units)):
            print(f"include graph by {what}: {len(graph.nodes)} boxes, {len(graph.arrows)} arrows, "
                  f"{max(graph.floors().values())} floors, no circle")

    def test_guards_are_paths(self):
        for path in files("src", "tests"):
            if path.suffix != ".h" or "scenarios" in path.parts:
                continue
            guard = "LIBROPE_" + re.sub(r"[/.\-]", "_", name(path)).upper() + "_"
            found = set(re.findall(r"\bLIBROPE_(?:SRC|TESTS)_\w+_H_\b", path.read_text()))
            self.assertEqual(found, {guard}, name(path))


class Facts(unittest.TestCase):
    """Each stands in one place."""

    def test_enumerators_are_named_where_their_table_is(self):
        for path in files("src"):
            text, below = without_comments(path.read_text()), name(path).removeprefix("src/")
            for prefix, places in ENUMERATORS.items():
                if not below.startswith(tuple(places.split())):
                    self.assertNotRegex(text, rf"\b{prefix}[A-Z]", name(path))

    def test_every_place_of_enumerators_has_some(self):
        for prefix, places in ENUMERATORS.items():
            for place in places.split():
                found = [p for p in files("src") if name(p).startswith("src/" + place)]
                self.assertTrue(any(prefix in p.read_text() for p in found), f"{prefix} in {place}")

    def test_sizes_of_limits_h_stand_nowhere_else(self):
        for path in files("src"):
            if name(path) == "src/base/limits.h":
                continue
            text = path.read_text()
            for file, other, _ in OTHER_NUMBERS:
                if file == name(path):
                    self.assertIn(other, text, file)
                    text = text.replace(other, "")
            for number, line in enumerate(text.split("\n"), 1):
                self.assertNotRegex(line, r"(?<![\w.])(512|1024)(?![\w.])",
                                    f"{name(path)}:{number}")

    def test_model_types_are_named_in_their_tables_alone(self):
        tables = {"src/model/families.cc", "src/model/vision.cc"}
        text = "".join((ROOT / t).read_text() for t in sorted(tables))
        types = set(re.findall(r'\b(?:Row|Also)\(\s*"(\w+)"', text))
        types |= set(re.findall(r'^\s*\{"(\w+)",', (ROOT / "src/model/vision.cc").read_text(), re.M))
        self.assertGreater(len(types), 150)
        types -= {"gptj"}  # a rope_type, too
        for path in files("src"):
            if name(path) in tables:
                continue
            said = set(re.findall(r'"(\w+)"', without_comments(path.read_text())))
            self.assertEqual(said & types, set(), name(path))

    def test_enumerators_begin_with_the_word_of_their_type(self):
        prefixes = {}
        for header in files("include/librope"):
            text = re.sub(r"/\*.*?\*/", "", header.read_text(), flags=re.S)
            pattern = r"typedef int32_t (rope_\w+);\s*enum \{(.*?)\};"
            for kind, body in re.findall(pattern, text, re.S):
                names = re.findall(r"\b(ROPE_\w+) = (-?\d+)", body)
                self.assertEqual(len(names), len([b for b in body.split(",") if b.strip()]), kind)
                prefixes[kind] = [n for n, _ in names]
            self.assertEqual(text.count("enum {"), len(re.findall(pattern, text, re.S)), name(header))
        self.assertGreaterEqual(len(prefixes), 10)
        word = {"rope_position_kind": "POSITIONS", "rope_cos_sin_format": "COS_SIN"}
        for kind, names in prefixes.items():
            if kind == "rope_status":
                self.assertTrue(all(n == "ROPE_OK" or n.startswith("ROPE_ERROR_") for n in names))
                continue
            prefix = f"ROPE_{word.get(kind, kind.removeprefix('rope_').upper())}_"
            for other, theirs in prefixes.items():
                own = [n.startswith(prefix) for n in theirs]
                self.assertTrue(all(own) if other == kind else not any(own), f"{prefix}: {other}")


class Files(unittest.TestCase):
    def test_files_say_what_they_are_and_are_short(self):
        folders = ("src", "include", "tests", "examples", "bench", "bindings", "scripts")
        for path in files(*folders):
            if path.suffix not in CODE or name(path) in LONG:
                continue
            lines = path.read_text().split("\n")
            self.assertLessEqual(len(lines) - 1, LONGEST, name(path))
            if path.suffix in {".go", ".rs", ".sh"} or path.with_suffix(".h").exists() and path.suffix == ".cc":
                continue  # its header says it, or the language's own tools ask for it
            first = next((line for line in lines if line and not line.startswith(("#!", "#include"))), "//")
            self.assertRegex(first, r'^(//|/\*|#|r?"""|from __future__)', name(path))

    def test_no_file_is_named_by_what_it_is_not(self):
        for path in files("src", "include", "tests", "bench", "bindings"):
            self.assertNotRegex(path.stem, r"^(utils?|helpers?|common|misc|semantics|geometry|structs)$",
                                name(path))

    def test_paths_in_documents_exist(self):
        known = {name(p) for p in files("src", "tests", "include", "examples", "bench", "bindings",
                                        "scripts", "cmake", "docs", "pkgconfig", ".ci")}
        known |= {str(pathlib.PurePath(k).parent) for k in known} | {"CMakeLists.txt", "build"}
        pattern = re.compile(r"(?<![\w./-])((?:src|tests|include|examples|bench|scripts|cmake|docs)"
                             r"/[\w./*-]*\w)")
        for path in [*ROOT.glob("*.md"), *files("docs"), *files("tests"), *files("src")]:
            if path.suffix not in {".md", ".h", ".cc", ".cu"} or path.name == "CHANGELOG.md":
                continue
            for number, line in enumerate(path.read_text().split("\n"), 1):
                for said in pattern.findall(line):
                    bare = said.split("*")[0].rstrip("./")
                    there = any(k == said or k.startswith(bare) for k in known) if bare else True
                    self.assertTrue(there, f"{name(path)}:{number}: {said}")

    def test_every_mutant_applies_once(self):
        entries = re.split(r"\n\s*\n", (ROOT / "tests/mutants/list.txt").read_text())
        count = 0
        for entry in entries:
            lines = [line for line in entry.splitlines() if line and not line.startswith("#")]
            if not lines:
                continue
            said = dict((line + " ").split(" ", 1) for line in lines)
            text = (ROOT / said["file"].strip()).read_text()
            where = said.get("in", said["was"]).split()
            found = re.findall(r"\s+".join(map(re.escape, where)), text)
            self.assertEqual(len(found), 1, entry)
            count += 1
        self.assertGreater(count, 150)


if __name__ == "__main__":
    unittest.main()
