"""The table of scripts/gpu-check, from the JSON lines of cuda_bench and cuda_peers.py."""

import json
import sys

PREFILL_BAR, PREFILL_STRETCH, DECODE_BAR, SEPARATE_BAR = 0.93, 0.97, 1.1, 1
ROTATIONS = ("prefill", "decode", "append")  # of whose calls, in one dtype, the bars are


def verdict(good, text):
    return f"{text} {'met' if good else 'MISSED'}"


def judge(row, bandwidth):
    """What a librope row shows, and for each bar that it has whether it is met.

    A decode step, and an append of as few tokens, is held against a copy kernel of the same bytes, as
    a node of the same kind of graph: every kernel that loads and stores waits for memory once. The
    second number is the time against an empty kernel plus the bytes at the bandwidth of a large copy:
    no kernel reaches it. Calls that do more than rotate and store have a bar against the same in two
    calls; how near they come to a copy is only shown.
    """
    barred = row["kind"] in ROTATIONS and ">" not in row["dtype"]
    met = []

    def shown(good, text, bar, has_bar):
        if not has_bar:
            return text
        met.append(good)
        return verdict(good, f"{text}, {bar}:")

    if row["empty_us"]:
        times = row["us"] / row["copy_us"]
        floor = row["empty_us"] + row["bytes"] / bandwidth
        text = shown(times <= DECODE_BAR, f"{times:.2f} x copy kernel", f"bar {DECODE_BAR}", barred)
        text += f"; {row['us'] / floor:.2f} x (empty + bytes)"
    else:
        share = row["copy_us"] / row["us"]
        bars = f"bar {PREFILL_BAR}, stretch {PREFILL_STRETCH}"
        text = shown(share >= PREFILL_BAR, f"{share:.2f} of copy", bars,
                     barred and row["tokens"] >= 8192)
    if row["separate_us"]:
        ratio = row["separate_us"] / row["us"]
        text += "; " + shown(ratio >= SEPARATE_BAR, f"{ratio:.2f} x as fast as two calls",
                             f"bar {SEPARATE_BAR}", True)
    return text, met


def main():
    rows, own = [], {}
    for line in sys.stdin:
        if not line.startswith("{"):
            continue
        row = json.loads(line)
        if "device" in row:
            print(f"{row['device']}, {row['multiprocessors']} multiprocessors, "
                  f"CUDA runtime {row['runtime']}")
            continue
        rows.append(row)
        if row["library"] == "librope" and row["place"] == "in":
            own[tuple(row[k] for k in ("kind", "shape", "tokens", "dtype", "pairing"))] = row["us"]
    missed = 0
    bandwidth = max((r["bytes"] / r["copy_us"] for r in rows if r.get("copy_us")), default=1)
    print(f"{'':9}{'tokens':>7} {'heads':10}{'dtype':10}{'pairing':13}{'library':20}{'us':>9}")
    for row in rows:
        place = f" ({row['place']})" if row.get("place") else ""
        if row["library"] == "librope":
            shown, met = judge(row, bandwidth)
            missed += met.count(False)
        else:
            key = tuple(row[k] for k in ("kind", "shape", "tokens", "dtype", "pairing"))
            ratio = row["us"] / own[key] if key in own else float("nan")
            shown = verdict(ratio >= 1, f"librope is {ratio:.2f} x as fast, bar 1")
            missed += ratio < 1
        print(f"{row['kind']:9}{row['tokens']:>7} {row['shape']:10}{row['dtype']:10}"
              f"{row['pairing']:13}{row['library'] + place:20}{row['us']:9.2f}  {shown}")
    print(f"{len(rows)} rows, {missed} bars missed")
    return 0 if rows else 1


if __name__ == "__main__":
    sys.exit(main())
