"""bench/peers on cases of one and three tokens, with the contenders that need no package.

    python bench/peers_test.py LIBRARIES         the folder of peer_core.so
"""

import contextlib
import csv
import ctypes
import importlib.util
import io
import pathlib
import sys
import tempfile
import unittest
from unittest import mock

from peers import install, readme, run, table
from peers.protocol import Case, Core, Memory, Tensors

LIBRARIES = pathlib.Path(sys.argv.pop(1)) if len(sys.argv) > 1 else pathlib.Path()
CASES = "^(in_place_f32_halves|out_of_place_bf16_halves|in_place_f16_interleaved)"


def measure(folder, *more):
    """(lines of the CSV, the table) of a run."""
    out = pathlib.Path(folder) / "out"
    command = ["run", "--libraries", str(LIBRARIES), "--cache", folder, "--out", str(out), "--quick", "--peers", "none",
               "--tokens", "1,3", "--match", CASES, "--fact", "CPU=this one", *more]
    with mock.patch.object(sys, "argv", command), contextlib.redirect_stderr(io.StringIO()):
        run.main()
    with open(f"{out}.csv", newline="") as file:
        return list(csv.DictReader(file)), pathlib.Path(f"{out}.md").read_text()


class Runs(unittest.TestCase):
    def test_contenders_agree_and_have_times(self):
        numpy = ["--module", "numpy_loop"] if importlib.util.find_spec("numpy") else []
        with tempfile.TemporaryDirectory() as folder:
            lines, text = measure(folder, "--threads", "1", *numpy)
        done = {}
        for line in lines:
            case = f"{line['place']}_{line['dtype']}_{line['pairing']}_{line['tokens']}"
            if line["median_ns"]:
                done.setdefault(case, set()).add(line["contender"])
                self.assertGreater(float(line["median_ns"]), 0)
                self.assertLessEqual(float(line["q1_ns"]), float(line["q3_ns"]))
            else:
                self.assertTrue(line["why_not"], line)
            self.assertNotIn("another result", line["why_not"])
        self.assertEqual(len(done), 6)
        for case, names in done.items():
            self.assertLessEqual({"librope", "librope_rows", "librope_prepared", "c", "c_native"}, names, case)
            limit = "rmw_" if case.startswith("in_place") else "memcpy"
            self.assertTrue(any(name.startswith(limit) for name in names), case)
            self.assertEqual("highway" in names, "halves" in case, case)
        if numpy:
            self.assertIn("numpy", done["in_place_f32_halves_3"])
        self.assertIn("| f32 halves 3 |", text)
        self.assertIn("- CPU: this one", text)

    def test_a_failing_contender_is_a_reason_and_harms_no_other(self):
        with tempfile.TemporaryDirectory() as folder:
            lines, text = measure(folder, "--threads", "1", "--module", "broken")
        reasons = {}
        for line in lines:
            if line["contender"].startswith("broken"):
                self.assertEqual(line["median_ns"], "", line)
                reasons.setdefault(line["contender"], set()).add(line["why_not"])
            elif line["contender"] in ("librope", "c"):
                self.assertNotEqual(line["median_ns"], "", line)
        self.assertTrue(all(reason.startswith("another result") for reason in reasons["broken_idle"]), reasons)
        self.assertEqual(reasons["broken_dies"], {"died by signal 9"})
        self.assertEqual(reasons["broken_complains"], {"ValueError: no such shape"})
        self.assertEqual(reasons["broken_unable"], {"cannot"})
        self.assertIn("| broken_dies | 6 | died by signal 9 |", text)

    def test_a_run_is_resumed_where_it_ended(self):
        with tempfile.TemporaryDirectory() as folder:
            one, _ = measure(folder, "--threads", "1", "--match", "in_place_f32_halves_1$")
            two, text = measure(folder, "--threads", "1", "--match", "in_place_f32_halves", "--resume")
        self.assertEqual(two[:len(one)], one)
        self.assertEqual({line["tokens"] for line in two[len(one):]}, {"3"})
        self.assertIn("| f32 halves 1 |", text)
        self.assertIn("| f32 halves 3 |", text)

    def test_two_threads(self):
        with tempfile.TemporaryDirectory() as folder:
            lines, _ = measure(folder, "--threads", "2")
        times = {line["contender"] for line in lines if line["median_ns"]}
        if times or len(run.os.sched_getaffinity(0)) > 1:
            self.assertLessEqual({"librope", "c", "highway", "memcpy"}, times)


class Comparison(unittest.TestCase):
    """A wrong bit is seen, a rounding is not."""

    def setUp(self):
        self.core, self.memory = Core(LIBRARIES), Memory(4, 4)
        self.tensors = Tensors(Case(1, "out_of_place", "f32", "halves", 4), self.memory)
        for name, seed in (("q", 1), ("q_out", 1)):
            self.core.library.peers_fill(1, self.memory.address(name), 4 * 32 * 128, seed)
        self.out = (ctypes.c_float * (4 * 32 * 128)).from_address(self.tensors.address("q_out"))

    def error(self):
        return self.core.library.peers_error(1, 1, self.tensors.address("q_out"), self.tensors.address("q"), 4, 32, 128,
                                             64, 1) / run.UNIT["f32"]

    def test_errors(self):
        self.assertEqual(self.error(), 0)
        self.out[-1] *= 1 + 2.0**-23
        self.assertGreater(self.error(), 0.5)
        self.assertLess(self.error(), run.STEPS_F32)
        self.out[-1] *= 1 + 2.0**-19
        self.assertGreater(self.error(), run.STEPS_F32)
        self.out[0] = float("nan")
        self.assertEqual(self.error(), float("inf"))


class Tables(unittest.TestCase):
    def about(self, *names):
        fields = {"version": "", "arithmetic": "once", "angles": "rows", "note": "", "noop": None}
        contenders = {name: {"name": name, "limit": name == "memcpy", **fields} for name in names}
        return {"facts": {}, "absent": {"gone": "no package"}, "contenders": contenders, "failures": {}}

    def line(self, contender, median, why=""):
        case = dict(zip(table.CASE, (1, "in_place", "f32", "halves", 64), strict=True))
        return {**case, "contender": contender, "median_ns": median, "q1_ns": median, "q3_ns": median, "rounds": 3,
                "error": 0, "why_not": why}

    def text(self, **times):
        lines = [self.line(name, str(value)) for name, value in times.items()]
        return table.markdown(lines, self.about(*times))

    def test_first_and_not_first(self):
        self.assertIn("first in 1 of 1 rows", self.text(librope=100, peer=150, memcpy=50))
        text = self.text(librope=100, peer=80, memcpy=50)
        self.assertIn("first in 0 of 1 rows", text)
        self.assertIn("| f32 halves 64 | 1 | in place | peer | 1.25 x |", text)

    def test_a_limit_is_no_peer_and_an_absent_peer_has_its_reason(self):
        text = self.text(librope=100, peer=150, memcpy=50)
        self.assertIn("| f32 halves 64 | 50.0 | 100 | 0 % | 0.50 |  |  | 1.50 |", text)
        self.assertIn("| gone | all | no package |", text)


class Readme(unittest.TestCase):
    def test_its_speed_section_is_that_of_the_run_it_names(self):
        text = (readme.ROOT / "README.md").read_text()
        out = readme.ROOT / readme.MARKERS.search(text).group(2).removesuffix(".md")
        self.assertEqual(readme.rewritten(text, out), text, "python -m peers.readme OUT writes it")
        self.assertTrue(pathlib.Path(f"{out}.png").exists())


class Installs(unittest.TestCase):
    def test_a_failure_is_reported_by_its_first_error(self):
        with tempfile.TemporaryDirectory() as folder:
            installer = install.Installer(folder)
            with self.assertRaisesRegex(install.Failure, "ERROR: no such thing"):
                install.run(installer.log("x"), "sh", "-c", "echo fine; echo ERROR: no such thing >&2; exit 3")
            with self.assertRaises(install.Failure):
                installer.once("build", "x", "key", lambda made: install.run(installer.log("x"), "false"))
            # What failed is tried again; what is complete is not.
            made = [installer.once("build", "x", "key", lambda made: None) for _ in range(2)]
            self.assertEqual(made[0], made[1])
            with self.assertRaises(AssertionError):
                installer.once("build", "x", "another key", lambda made: self.fail("called"))

    def test_a_peer_that_cannot_be_installed_is_absent_with_a_reason(self):
        with tempfile.TemporaryDirectory() as folder, mock.patch.object(
                install.Installer, "environment", side_effect=install.Failure("no network")):
            workers, absent = install.install(folder, lambda peer: peer in ("jax", "torch", "vllm"), lambda text: None)
        self.assertEqual([worker.name for worker in workers], ["native"])
        self.assertEqual(absent["jax"], "no network")
        self.assertEqual(absent["vllm"], "needs the environment of torch")


if __name__ == "__main__":
    unittest.main()
