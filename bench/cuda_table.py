"""The table of scripts/gpu-check, from the JSON lines of cuda_bench and cuda_peers.py."""

import json
import sys

PREFILL_BAR, PREFILL_STRETCH, DECODE_BAR = 0.93, 0.97, 1.1


def verdict(good, text):
    return f"{text} {'met' if good else 'MISSED'}"


def judge(row, bandwidth):
    """What a librope row shows, and whether its bar is met; None where there is no bar.

    A decode step, and an append of as few tokens, is held against a copy kernel of the same bytes, as
    a node of the same kind of graph: every kernel that loads and stores waits for memory once. The
    second number is the time against an empty kernel plus the bytes at the bandwidth of a large copy:
    no kernel reaches it.
    """
    if row["kind"] == "prefill" or (row["kind"] == "append" and not row["empty_us"]):
        share = row["copy_us"] / row["us"]
        if row["tokens"] < 8192:
            return f"{share:.2f} of copy", None
        text = f"{share:.2f} of copy, bar {PREFILL_BAR}, stretch {PREFILL_STRETCH}:"
        return verdict(share >= PREFILL_BAR, text), share >= PREFILL_BAR
    times = row["us"] / row["copy_us"]
    floor = row["empty_us"] + row["bytes"] / bandwidth
    text = f"{times:.2f} x copy kernel, bar {DECODE_BAR}:"
    return (verdict(times <= DECODE_BAR, text) + f"; {row['us'] / floor:.2f} x (empty + bytes)",
            times <= DECODE_BAR)


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
    print(f"{'':8}{'tokens':>7} {'heads':10}{'dtype':6}{'pairing':13}{'library':20}{'us':>9}")
    for row in rows:
        place = f" ({row['place']})" if row.get("place") else ""
        if row["library"] == "librope":
            shown, good = judge(row, bandwidth)
            missed += good is False
        else:
            key = tuple(row[k] for k in ("kind", "shape", "tokens", "dtype", "pairing"))
            ratio = row["us"] / own[key] if key in own else float("nan")
            shown = verdict(ratio >= 1, f"librope is {ratio:.2f} x as fast, bar 1")
            missed += ratio < 1
        print(f"{row['kind']:8}{row['tokens']:>7} {row['shape']:10}{row['dtype']:6}"
              f"{row['pairing']:13}{row['library'] + place:20}{row['us']:9.2f}  {shown}")
    print(f"{len(rows)} rows, {missed} bars missed")
    return 0 if rows else 1


if __name__ == "__main__":
    sys.exit(main())
