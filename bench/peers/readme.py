"""Writes the speed section of README.md from a run of scripts/bench --peers.

    python -m peers.readme OUT          from OUT.csv and OUT.md, below bench/results; needs no package

README.md says between its markers which run it is from; peers_test.py holds it to that file.
"""

import pathlib
import re
import sys
import textwrap

from . import table

ROOT = pathlib.Path(__file__).resolve().parents[2]
MARKERS = re.compile(r"(<!-- performance: from )(\S+)( -->\n).*?(<!-- /performance -->)", re.DOTALL)
CASES = (("f32", 1, "one token, f32"), ("bf16", 1, "one token, bf16"), ("f16", 1, "one token, f16"),
         ("f32", 64, "64 tokens, f32"), ("bf16", 64, "64 tokens, bf16"), ("f32", 2048, "2048 tokens, f32"),
         ("bf16", 2048, "2048 tokens, bf16"), ("f32", 8192, "8192 tokens, f32"), ("bf16", 8192, "8192 tokens, bf16"),
         ("f32", 65536, "65536 tokens, f32"), ("bf16", 65536, "65536 tokens, bf16"))
PEERS = {"highway": "Highway, a loop over a table", "c_native": "C, `-march=native`", "c": "C", "ggml": "ggml",
         "vllm": "vLLM", "xnnpack": "XNNPACK", "torch_compile": "`torch.compile`", "jax": "JAX"}


def facts(text):
    return dict(re.findall(r"^- ([^:\n]+): (.*)$", text, re.MULTILINE))


def paragraph(text):
    return textwrap.fill(text, 100, break_long_words=False, break_on_hyphens=False)


def block(out):
    """The section, from the files of a run."""
    text = pathlib.Path(f"{out}.md").read_text()
    with open(f"{out}.csv", newline="") as file:
        cases = table.by_case(table.csv.DictReader(file))
    about, name = facts(text), pathlib.Path(out).name
    rows = []
    for dtype, tokens, label in CASES:
        lines = cases.get(("1", "in_place", dtype, "halves", str(tokens)))
        if lines is None or (ours := table.median(lines.get("librope"))) is None:
            continue
        limit = min(table.median(line) for c, line in lines.items() if c.startswith(table.LIMITS) and line["median_ns"])
        prepared = table.median(lines.get("librope_prepared"))
        cells = [label, table.ns(ours), "" if prepared is None else table.ns(prepared), table.ns(limit)]
        for peer in PEERS:
            value = table.median(lines.get(peer))
            cells.append("-" if value is None else table.times(value / ours))
        rows.append("| " + " | ".join(cells) + " |")
    first = re.search(r"\*\*librope is first in (\d+ of \d+) rows\*\*", text).group(1)
    head = ["", "librope, ns", "prepared, ns", "limit, ns", *PEERS.values()]
    return "\n".join([
        f"![nanoseconds per token beside other implementations](bench/results/{name}.png)", "",
        paragraph(
            "q and k of 32 + 8 heads of 128, pairs as halves, in place, one thread of an "
            f"{about['CPU']} ({about['backend'].removeprefix('cpu ')}; {about['caches as the system tells']}). "
            "*librope*: nanoseconds per token, from positions. *Prepared*: one layer of a prepared call. *Limit*: the "
            "fastest loop that only multiplies the same bytes. The others: how many times librope's time they take, with "
            "tables made before."), "",
        "| " + " | ".join(head) + " |", "|---|" + "--:|" * (len(head) - 1), *rows, "",
        paragraph(
            f"librope is first in {first} rows of [the whole table](bench/results/{name}.md), which names the others and "
            "the versions of all; `scripts/bench --peers` installs them and repeats it."), ""])


def rewritten(readme, out):
    relative = f"bench/results/{pathlib.Path(out).name}.md"
    return MARKERS.sub(lambda found: found[1] + relative + found[3] + block(out) + found[4], readme)


if __name__ == "__main__":
    path = ROOT / "README.md"
    path.write_text(rewritten(path.read_text(), sys.argv[1]))
