"""What a run writes: OUT.csv, a line for each contender of each case, and OUT.md, the same as tables."""

import csv
import datetime
import pathlib

COLUMNS = ("threads", "place", "dtype", "pairing", "tokens", "contender", "median_ns", "q1_ns", "q3_ns",
           "rounds", "error", "why_not")
CASE = COLUMNS[:5]
OURS = ("librope", "librope_rows", "librope_prepared")
DTYPES = ("f32", "bf16", "f16")
LIMITS = ("rmw_", "memcpy", "nt_copy_")  # what their names begin with


def ns(value):
    return "" if value is None else f"{value:.1f}" if value < 100 else f"{value:.0f}"


def times(ratio):
    """How many times as long."""
    return f"{ratio:.2f}" if ratio < 9.995 else f"{ratio:.1f}" if ratio < 99.95 else f"{ratio:.0f}"


class Results:
    """Rows as they come; the files are complete after every case."""

    def __init__(self, out, facts, absent):
        self.out, self.lines = out, []
        date = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%S+00:00")
        self.about = {"facts": {"date": date, **facts}, "absent": absent, "contenders": {}, "failures": {}}

    def resume(self):
        """Takes up the lines of an earlier run: their cases, as text."""
        if pathlib.Path(f"{self.out}.csv").exists():
            with open(f"{self.out}.csv", newline="") as file:
                self.lines = list(csv.DictReader(file))
        return {tuple(line[name] for name in CASE) for line in self.lines}

    def add_contenders(self, contenders, failures):
        for name, contender in contenders.items():
            self.about["contenders"].setdefault(name, contender)
        self.about["failures"].update(failures)

    def add(self, rows):
        for row in rows:
            if self.about["contenders"][row.contender]["limit"] and not row.times:
                continue  # a sweep out of place, a copy in place
            case, quartiles = row.case, row.quartiles if row.times else (None, None)
            values = [row.median, *quartiles]
            self.lines.append(dict(zip(COLUMNS, [
                case.threads, case.place, case.dtype, case.pairing, case.tokens, row.contender,
                *("" if v is None else f"{v:.5g}" for v in values), len(row.times),
                "" if row.error is None else f"{row.error:.3g}", row.reason], strict=True)))
        self.write()

    def write(self):
        with open(f"{self.out}.csv", "w", newline="") as file:
            lines = csv.DictWriter(file, COLUMNS, lineterminator="\n")
            lines.writeheader()
            lines.writerows(self.lines)
        pathlib.Path(f"{self.out}.md").write_text(markdown(self.lines, self.about))

    def finish(self, load, seconds):
        self.about["facts"].update({"load average before, after": load, "took": f"{seconds / 60:.0f} minutes"})
        self.write()


def by_case(lines):
    """{case: {contender: line}}, in the order of the run."""
    cases = {}
    for line in lines:
        key = tuple(str(line[name]) for name in CASE)
        cases.setdefault(key, {})[line["contender"]] = line
    return cases


def median(line):
    return float(line["median_ns"]) if line and line["median_ns"] != "" else None


def limit_of(contenders, about):
    """The fastest sweep or copy: (ns, name), or (None, "")."""
    found = [(median(line), name) for name, line in contenders.items()
             if about["contenders"].get(name, {}).get("limit") and median(line) is not None]
    return min(found, default=(None, ""))


def peers_of(about):
    return [name for name, c in about["contenders"].items() if not c["limit"] and name not in OURS]


def title(case):
    threads, place, dtype, pairing, tokens = case
    return f"{dtype} {pairing} {tokens}"


def head(about):
    lines = ["# librope beside its peers", ""]
    lines += [f"- {name}: {value}" for name, value in about["facts"].items()]
    lines += ["- q 32 heads, k 8 heads, head_dim 128, both rotated; one buffer for all contenders, who take "
              "turns in random order; medians. One thread: CPU time of the process. Two: real time.", ""]
    return lines


def ranking(cases, about):
    """How often librope is first, and where it is not."""
    first, behind, total = 0, [], 0
    for case, contenders in cases.items():
        ours = [median(contenders.get(name)) for name in OURS]
        ours = [value for value in ours if value is not None]
        others = [(median(line), name) for name, line in contenders.items()
                  if name in peers_of(about) and median(line) is not None]
        if not ours or not others:
            continue
        total += 1
        best, name = min(others)
        if min(ours) <= best:
            first += 1
        else:
            behind.append((case, name, min(ours) / best))
    lines = [f"**librope is first in {first} of {total} rows**, by its fastest form (positions given, rows of cos and "
             "sin given, or prepared)." + (" It is not in these:" if behind else ""), ""]
    if behind:
        lines += ["| row | threads | place | first | librope takes |", "|---|--:|---|---|--:|"]
        lines += [f"| {title(case)} | {case[0]} | {case[1].replace('_', ' ')} | {name} | {ratio:.2f} x |"
                  for case, name, ratio in behind]
        lines.append("")
    return lines


def section(threads, place, cases, about):
    """One table: a row for each case, a column for each peer that can do any of them."""
    peers = [p for p in peers_of(about) if any(median(c.get(p)) is not None for c in cases.values())]
    many = "one thread" if threads == "1" else f"{threads} threads"
    lines = [f"## {place.replace('_', ' ').capitalize()}, {many}", "",
             "| case | limit, ns | librope, ns | +- | of the limit | rows given | prepared | " + " | ".join(peers) + " |",
             "|---|--:|--:|--:|--:|--:|--:|" + "--:|" * len(peers)]
    for case, contenders in cases.items():
        limit, _ = limit_of(contenders, about)
        ours = median(contenders.get("librope"))
        cells = [title(case), ns(limit), ns(ours)]
        if ours is None:
            cells += ["", "", "", ""]
        else:
            line = contenders["librope"]
            spread = (float(line["q3_ns"]) - float(line["q1_ns"])) / 2 / ours
            others = [median(contenders.get(name)) for name in OURS[1:]]
            cells += [f"{100 * spread:.0f} %", "" if limit is None else f"{limit / ours:.2f}",
                      *("" if value is None else f"{value / ours:.2f}" for value in others)]
        for peer in peers:
            value = median(contenders.get(peer))
            if value is None:
                wrong = contenders.get(peer, {}).get("why_not", "").startswith("another result")
                cells.append("wrong" if wrong else "-")
            else:
                cells.append(times(value / ours) if ours else f"{ns(value)} ns")
        lines.append("| " + " | ".join(cells) + " |")
    return [*lines, ""]


def who(lines, about):
    """The contenders: what they are, what a call costs, their largest errors, what they cannot do."""
    text = ["## The contenders", "",
            "| name | version | how | arithmetic | angles | empty call, ns | error f32 | bf16 | f16 |",
            "|---|---|---|---|---|--:|--:|--:|--:|"]
    for name, c in about["contenders"].items():
        if c["limit"]:
            continue
        cells = []
        for dtype in DTYPES:
            errors = [float(line["error"]) for line in lines
                      if line["contender"] == name and line["dtype"] == dtype and line["error"] != ""]
            cells.append(f"{max(errors):.3g}" if errors else "-")
        call = "" if c["noop"] is None else ns(c["noop"] * 1e9)
        text.append(f"| {name} | {c['version'] or 'this tree'} | {c['note']} | {c['arithmetic']} | {c['angles']} "
                    f"| {call} | " + " | ".join(cells) + " |")
    text += ["", "Errors: the largest distance from librope's result in any case, in roundings of the dtype (half an "
             "ulp of 1) and units of the pair's length.", ""]
    reasons = {}
    for line in lines:
        if line["why_not"] and not about["contenders"].get(line["contender"], {}).get("limit"):
            kind = (line["contender"], line["why_not"])
            reasons.setdefault(kind, []).append(line)
    text += ["## What is missing, and why", "", "| contender | rows | reason |", "|---|--:|---|"]
    text += [f"| {name} | {len(found)} | {reason} |" for (name, reason), found in reasons.items()]
    text += [f"| {name} | all | {reason} |" for name, reason in {**about["absent"], **about["failures"]}.items()]
    return [*text, ""]


def markdown(lines, about):
    cases = by_case(lines)
    text = head(about) + ranking(cases, about)
    text += ["Columns of peers: how many times librope's time they take (librope from positions). `rows given`, "
             "`prepared`: the same for librope with cos and sin handed in, and for one layer of a prepared call. `-`: does not do this; `wrong`: its result differs. "
             "`limit`: the fastest sweep (in place) or copy (out of place) of the same bytes.", ""]
    for key in dict.fromkeys((case[0], case[1]) for case in cases):
        text += section(*key, {case: c for case, c in cases.items() if case[:2] == key}, about)
    text += who(lines, about)
    return "\n".join(text)
