"""Recomputes the golden files with numpy from the formulas of the survey of RoPE variants alone, and
compares. It shares no code with the generator; it says where transformers and the formulas differ."""

from __future__ import annotations

import argparse
import base64
import collections
import json
import math
from pathlib import Path

import numpy as np

DATA = Path(__file__).resolve().parent.parent / "data" / "oracle"
TYPES = {"f32": "<f4", "i64": "<i8", "f16": "<f2", "bf16": "<u2"}


def decode(array):
    """An array of the files in float32 (or int64); bf16 is the upper half of a float32."""
    values = np.frombuffer(base64.b64decode(array["data"]), TYPES[array["dtype"]]).reshape(array["shape"])
    if array["dtype"] == "bf16":
        return (values.astype(np.uint32) << 16).view(np.float32)
    return values if array["dtype"] == "i64" else values.astype(np.float32)


def to_bf16(x):
    bits = np.asarray(x, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000).astype(np.uint32).view(np.float32)


ROUND = {"bf16": to_bf16, "f16": lambda x: x.astype(np.float16).astype(np.float32), "f32": lambda x: x}


def mscale(factor, m=1.0):
    return 1.0 if factor <= 1 else 0.1 * m * math.log(factor) + 1.0


def yarn(p, dim, base, maximum, nested):
    original, factor = p["original_max_position_embeddings"], p.get("factor")
    factor = factor or maximum / original
    attention = p.get("attention_factor")
    if attention is None:
        both = p.get("mscale") and p.get("mscale_all_dim")
        attention = mscale(factor, p["mscale"]) / mscale(factor, p["mscale_all_dim"]) if both else mscale(factor)

    def corr(rotations):
        return dim * math.log(original / (rotations * 2 * math.pi)) / (2 * math.log(base))

    low, high = corr(p.get("beta_fast") or 32), corr(p.get("beta_slow") or 1)
    if nested or p.get("truncate", True):  # transformers ignores the key in a dict per layer type
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    high += 0.001 if low == high else 0
    i = np.arange(dim // 2)
    keep = 1 - np.clip((i - low) / (high - low), 0, 1)
    power = base ** (2 * i / dim)
    return (1 - keep) / (factor * power) + keep / power, attention


def frequencies(rope, seq_len):
    """(inv_freq in float64, attention factor) by section 1 of the survey, or None for another scheme."""
    p, kind, maximum = rope["rope_parameters"] or {}, rope["rope_type"], rope["max_position_embeddings"]
    base, dim = float(p.get("rope_theta", 10000.0)), rope["rotary_dim"]
    i = np.arange(dim // 2)
    width = int(rope["head_dim"] * p.get("partial_rotary_factor", 1.0))
    plain = base ** (-2 * i / (width if width == dim - 1 else dim))  # an odd width gets one pair more
    if kind == "default" or kind == "dynamic" and p.get("alpha"):
        if kind == "dynamic":
            plain = (base * p["alpha"] ** (dim / (dim - 2))) ** (-2 * i / dim)
        return plain, 1.0
    if kind == "linear":
        return plain / p["factor"], 1.0
    if kind == "dynamic":
        s = max(seq_len, maximum)
        grown = base * (p["factor"] * s / maximum - (p["factor"] - 1)) ** (dim / (dim - 2))
        return grown ** (-2 * i / dim), 1.0
    if kind == "yarn":
        return yarn(p, dim, base, maximum, rope["layer_type"] is not None)
    if kind == "llama3":
        wave, length = 2 * math.pi / plain, p["original_max_position_embeddings"]
        low, high = p["low_freq_factor"], p["high_freq_factor"]
        with np.errstate(all="ignore"):
            smooth = (length / wave - low) / (high - low)
            mixed = (1 - smooth) * plain / p["factor"] + smooth * plain
        mixed = np.where(wave > length / low, plain / p["factor"], mixed)
        return np.where(wave < length / high, plain, mixed), 1.0
    if kind == "longrope" and "phimoe" in rope["rotary_class"]:
        original = p["original_max_position_embeddings"]
        return plain / np.array(p["short_factor"]), p["long_mscale" if seq_len > original else "short_mscale"]
    if kind == "longrope":
        original = p["original_max_position_embeddings"]
        factor = p.get("factor") or maximum / original
        attention = p.get("attention_factor")
        if attention is None:
            attention = 1.0 if factor <= 1 else math.sqrt(1 + math.log(factor) / math.log(original))
        use = p["long_factor"] if seq_len > original else p["short_factor"]
        return plain / np.array(use), attention
    if kind == "proportional":
        turned = int(p.get("partial_rotary_factor", 1.0) * dim // 2)
        return np.where(i < turned, plain, 0) / p.get("factor", 1.0), 1.0
    return None


def vision_frequencies(rope):
    """(inv_freq, axes) of a tower with head_dim / 2 channels per axis, or None for other schemes."""
    theta, dim = (rope["rope_parameters"] or {}).get("rope_theta"), rope["head_dim"]
    if rope["style"] == "VP":
        i = np.arange(dim // 2)
        order = np.concatenate([i[0::2], i[1::2]])
        return theta ** (-2 * order / dim), [0] * (dim // 4) + [1] * (dim // 4)
    if rope["style"] in ("VH", "VG", "VS") and rope["rope_type"] == "axial":
        own = theta ** (-4.0 * np.arange(dim // 4) / dim)
        folder = rope["rotary_class"].split(".")[2]
        if folder == "kimi_k25":
            return np.repeat(own, 2), [1, 0] * (dim // 4)
        first = 1 if folder in ("inkling2", "step3p7") else 0
        return np.concatenate([own, own]), [first] * (dim // 4) + [1 - first] * (dim // 4)
    return None


def text_axes(rope):
    """Axis of every pair by section 1.9 of the survey, or None for other schemes."""
    section = (rope["rope_parameters"] or {}).get("mrope_section")
    if not section or rope["axes"] != 3 or rope["style"] == "IE":
        return None
    if rope["style"] == "MI":
        return [j % 3 if j % 3 and j < 3 * section[j % 3] else 0 for j in range(rope["pairs"])]
    return [axis for axis, count in enumerate(section) for _ in range(count)]


class Report:
    def __init__(self):
        self.worst, self.count, self.differences = collections.Counter(), collections.Counter(), []

    def check(self, what, error, bound, where):
        self.count[what] += 1
        self.worst[what] = max(self.worst[what], float(error))
        if not error <= bound:
            self.differences.append(f"{where}: {what}: {float(error):.3g} > {bound:.3g}")


def channels(rope):
    """(in0, in1, out0, out1) of every pair."""
    span, i = rope["rotary_dim"], np.arange(rope["pairs"])
    halves, interleaved = (i, i + span // 2), (2 * i, 2 * i + 1)
    block = span // max(rope["axes"], 1)
    first = i // (block // 2) * block + i % (block // 2)
    found = {"halves": halves * 2, "interleaved": interleaved * 2, "interleaved_to_halves": interleaved + halves,
             "halves_per_axis": (first, first + block // 2) * 2}[rope["pairing"]]
    return [c + rope["rotary_offset"] for c in found]


def rotate(x, rows, at, rounding, dtype):
    """Products and sum in float32, rounded as the policy says; channels outside the pairs stay."""
    cos, sin = rows["cos"][:, None], rows["sin"][:, None]
    cos2 = rows.get("cos2", rows["cos"])[:, None]
    sin2 = rows.get("sin2", rows["sin"])[:, None]
    step = ROUND[dtype] if rounding == "eager" else ROUND["f32"]
    y = x.copy()
    x0, x1 = x[..., at[0]], x[..., at[1]]
    y[..., at[2]] = ROUND[dtype](step(step(x0 * cos) - step(x1 * sin)))
    y[..., at[3]] = ROUND[dtype](step(step(x1 * cos2) + step(x0 * sin2)))
    return y


def verify_length(rope, length, where, report):
    inv_freq = decode(length["inv_freq"]).astype(np.float64)
    axes = rope["pair_axis"] or [0] * rope["pairs"]
    expected, factor = None, None
    if rope["role"] == "vision":
        expected = vision_frequencies(rope)
        if expected:
            expected, wanted = expected
            report.check("vision axis map", sum(a != b for a, b in zip(axes, wanted)), 0, where)
    elif rope["rope_parameters"]:
        found = frequencies(rope, length["seq_len"])
        expected, factor = found if found else (None, None)
        wanted = text_axes(rope)
        if wanted:
            report.check("mrope axis map", sum(a != b for a, b in zip(axes, wanted)), 0, where)
    if expected is not None:
        expected = -expected if rope["negated"] else expected
        bad = np.abs(inv_freq - expected) / np.where(expected == 0, 1, np.abs(expected)) * 2.0**23
        report.check("inv_freq (ulp)", bad.max(), 16, where)
    if factor is not None:
        report.check("attention factor", abs(factor - length["attention_factor"]), 1e-7, where)
    rows = {k: decode(v) for k, v in length["rows"].items()}
    positions = rows["positions"].astype(np.float32)
    for suffix in ("", "2") if "cos2" in rows else ("",):
        use = decode(length["inv_freq" + suffix]) if suffix else decode(length["inv_freq"])
        axis = rope.get("pair_axis" + suffix) or axes
        angle = (positions[:, axis] * use).astype(np.float32).astype(np.float64)
        bound = 2.5e-4 if rope["style"] == "IR" else 3e-7 * max(1, length["attention_factor"])
        for name, function in (("cos", np.cos), ("sin", np.sin)):
            wanted = function(angle) * length["attention_factor"]
            report.check("cos and sin", np.abs(wanted - rows[name + suffix]).max(), bound, where)
    if "apply" in length:
        verify_apply(rope, length["apply"], rows, where, report)


def verify_apply(rope, apply, rows, where, report):
    at = channels(rope)
    for dtype in ("bf16", "f16"):
        if dtype in apply:
            part = apply[dtype]
            used = {k: decode(v) for k, v in part.items()}
            for name in "qk":
                y = rotate(decode(apply[name]), used, at, rope["rounding"], dtype)
                report.check(f"{dtype} bits", np.count_nonzero(y != decode(part[name])), 0, f"{where} {name}")
    if rope["rounding"] == "float32":  # the rows in use are float32 ones: the f32 result must follow too
        used = {k: decode(v) for k, v in apply["bf16"].items()}
        for name in "qk":
            y = rotate(decode(apply[name]), used, at, "float32", "f32")
            report.check("f32 bits", np.count_nonzero(y != decode(apply["f32"][name])), 0, f"{where} {name}")


def run_ids(runs):
    """Section 1.9: text counts up on all axes; a grid counts per axis; the next id is max(h, w) on."""
    ids, start = [], 0
    for run in runs:
        ids += [[start + i] * 3 for i in range(run["text"])]
        start += run["text"]
        t, h, w = run["grid"]
        ids += [[start + a * run["t_interval"], start + b, start + c]
                for a in range(t) for b in range(h) for c in range(w)]
        start += max(h, w)
    return ids


def verify_prompts(report):
    for case in json.loads((DATA / "position_ids.json").read_text())["cases"]:
        if all(run["t_interval"] is not None for run in case["runs"]):
            ids = run_ids(case["runs"])
            report.check("position ids", ids != [list(column) for column in zip(*case["ids"])], 0, case["name"])
            report.check("next position", abs(max(map(max, ids)) + 1 - case["next"]), 0, case["name"])


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.parse_args()
    report = Report()
    for entry in json.loads((DATA / "index.json").read_text())["cases"]:
        case = json.loads((DATA / entry["file"]).read_text())
        for rope in case["ropes"]:
            for length in rope["lengths"]:
                at = f" at {length['seq_len']}" if length["seq_len"] else ""
                verify_length(rope, length, f"{case['name']}/{rope['name']}{at}", report)
    verify_prompts(report)
    for what, count in sorted(report.count.items()):
        print(f"{what}: {count} checks, worst {report.worst[what]:.3g}")
    print(f"{len(report.differences)} differences")
    for line in report.differences:
        print("  " + line)


if __name__ == "__main__":
    main()
