"""Turns one Rope into the JSON record that README.md describes."""

from __future__ import annotations

import sys
import zlib

import torch

import probe
import thin
from probe import DTYPES, array

# Positions of the rows of cos and sin.
TEXT = [0, 1, 2, 7, 63, 511, 1023, 4095, 8191, 32767, 65535, 131071]
TEXT_OF = {"hand": TEXT, "fixture": [0, 1, 4095, 131071], "class-default": [0, 4095, 131071]}
TEXT_AXES = [[0] * 4, [1] * 4, [5, 9, 13, 6], [100, 120, 140, 90], [4095] * 4, [4000, 4017, 4031, 3990],
             [131071, 131000, 130999, 130000]]
VISION = [[0, 0, 0], [1, 2, 3], [7, 3, 5], [31, 45, 2], [63, 17, 11], [127, 99, 23]]
# Positions of the rotated q and k.
APPLY, APPLY_SHORT = [3, 1023, 4095, 40000], [1023, 40000]
APPLY_AXES = [[17] * 4, [100, 120, 140, 90], [40000, 39990, 39970, 39900]]
APPLY_VISION = [[3, 5, 7], [60, 41, 2]]


def positions_of(rope, kind):
    """(positions of the rows, positions of the rotated tensors), each [tokens, axes]."""
    dtype = torch.float32 if rope.float_positions else torch.int64
    if rope.positions:
        rows = apply = rope.positions
    elif rope.role == "vision":
        rows, apply = ([p[:rope.axes] for p in some] for some in (VISION, APPLY_VISION))
    elif rope.axes > 1:
        rows, apply = ([p[:rope.axes] for p in some] for some in (TEXT_AXES, APPLY_AXES))
    else:
        rows, apply = ([[p] for p in some] for some in ((TEXT_OF[kind], APPLY if kind == "hand" else APPLY_SHORT)))
    if rope.max_position:
        last = rope.max_position - 1
        rows, apply = ([[min(p[0], last)] for p in some] for some in (rows, apply))
        rows, apply = ([p for i, p in enumerate(some) if p not in some[:i]] for some in (rows, apply))
    return torch.tensor(rows, dtype=dtype), torch.tensor(apply, dtype=dtype)


def lengths_of(rope):
    """Sequence lengths whose frequencies are recorded: None where the length does not matter."""
    parameters = rope.rope_parameters() or {}
    maximum = getattr(rope.config, "max_position_embeddings", None)
    if rope.rope_type() == "dynamic" and not parameters.get("alpha"):
        return [maximum // 2, maximum, maximum + 1, 2 * maximum, 4 * maximum + 3]
    if rope.rope_type() == "longrope":
        original = parameters["original_max_position_embeddings"]
        return [original // 2, original, original + 1, max(maximum, original + 2)]
    return [None]


def within(positions, seq_len):
    """Positions below seq_len, and the last of the sequence, which makes the model see that length."""
    if seq_len is None:
        return positions
    kept = positions[(positions < seq_len - 1).all(dim=1)]
    return torch.cat([kept, torch.full((1, positions.shape[1]), seq_len - 1)])


def softmax_factor(rope):
    """What the attention multiplies into its softmax scale, by the model's own function."""
    module = sys.modules[rope.rotary_class.rsplit(".", 1)[0]]
    apply_mscale = getattr(module, "yarn_apply_mscale", None)
    return float(apply_mscale(rope.config.rope_parameters, 1.0)) if apply_mscale and rope.role == "text" else 1.0


def apply_record(rope, positions, channels, rows_at, seed):
    """Rotated q and k in each dtype with the cos and sin used, and the rounding found for each."""
    q, k = (probe.inputs(seed + i, len(positions), 1, rope.head_dim) for i in range(2))
    record = {"positions": array(positions), "q": array(q), "k": array(k)}
    rows32, roundings = rows_at(torch.float32, positions), {}
    for name in rope.dtypes:
        dtype, module = DTYPES[name], rope.fresh()
        x, y = q.to(dtype), k.to(dtype)
        q_out, k_out = rope.rotate(x, y, rope.embed(module, dtype, positions))
        if q_out.dtype != dtype:
            raise TypeError(f"{name} input leaves as {q_out.dtype}")
        part = {"q": array(q_out), "k": array(k_out)}
        if name != "f32":
            rows16 = rows_at(dtype, positions)
            roundings[name] = probe.find_rounding(dtype, x, q_out, channels, rows16, rows32)
            used = rows32 if roundings[name] == "float32" else rows16
            part.update(rows_json(used))
        record[name] = part
    return record, roundings


def rows_json(rows):
    """cos and sin, and those of the second channel where a pair has two angles."""
    cos, sin, cos2, sin2 = rows
    record = {"cos": array(cos), "sin": array(sin)}
    if not (torch.equal(cos, cos2) and torch.equal(sin, sin2)):
        record.update({"cos2": array(cos2), "sin2": array(sin2)})
    return record


def make(rope, kind, case_name):
    """The record of one Rope of a case; hand-written cases get more positions."""
    rows_positions, apply_positions = positions_of(rope, kind)
    seed = zlib.crc32(f"{case_name}/{rope.name}".encode())
    record = {
        "name": rope.name, "part": rope.part, "role": rope.role, "layer_type": rope.layer_type,
        "rotary_class": rope.rotary_class, "apply_function": rope.apply_function,
        "rope_type": rope.rope_type(), "rope_parameters": rope.rope_parameters(),
        "max_position_embeddings": getattr(rope.config, "max_position_embeddings", None),
    }
    lengths, roundings = [], set()
    wanted = lengths_of(rope)
    for seq_len in wanted:
        module = rope.fresh()
        positions = within(rows_positions, seq_len)
        maps = probe.linear_map(rope, module, torch.float32, positions)
        frequencies = rope.inv_freq(module).float()
        if not lengths:
            per_axis = rope.role == "vision" and "pixtral" not in rope.rotary_class
            span = rope.rotary_dim or 2 * len(frequencies) * (rope.axes if per_axis else 1)
            if "deepseek_v4" in rope.rotary_class:
                rope.rotary_offset = rope.head_dim - span
            pairing, channels = probe.find_pairing(rope, maps, span)
        rows = probe.coefficients(maps, channels)
        two_angles = not (torch.equal(rows[0], rows[2]) and torch.equal(rows[1], rows[3]))
        still = (positions == 0).all(dim=1).nonzero()
        measured = float(rows[0][still[0], 0]) if len(still) else float(rope.attention_factor(module))
        stated = float(rope.attention_factor(module))
        factor = stated if torch.tensor(stated).float() == measured else measured
        inv_freq, axis = probe.match_frequencies(frequencies, rope.axes, rows[0], rows[1], positions, measured,
                                                  rope.tolerance)

        def rows_at(dtype, at):
            return probe.coefficients(probe.linear_map(rope, rope.fresh(), dtype, at), channels)

        entry = {"seq_len": seq_len, "attention_factor": factor, "inv_freq": array(inv_freq)}
        if two_angles:
            inv_freq2, axis2 = probe.match_frequencies(frequencies, rope.axes, rows[2], rows[3], positions, measured,
                                                        rope.tolerance)
            entry["inv_freq2"] = array(inv_freq2)
        entry["rows"] = {"positions": array(positions), **rows_json(rows)}
        if seq_len in (wanted[0], wanted[-1]):
            entry["apply"], found = apply_record(rope, within(apply_positions, seq_len), channels, rows_at, seed)
            roundings |= set(found.values())
        if rope.kept:
            entry.update({key: thin.thin(entry[key], rope.kept) for key in ("rows", "apply") if key in entry})
        lengths.append(entry)
    if len(roundings) > 1:
        rope.notes.append(f"roundings differ between dtypes or lengths: {sorted(map(str, roundings))}")
    record.update({
        "pairing": pairing, "head_dim": rope.head_dim, "rotary_dim": span, "rotary_offset": rope.rotary_offset,
        "pairs": span // 2, "axes": rope.axes, "pair_axis": axis if rope.axes > 1 else None,
        "two_angles": two_angles, "negated": bool((inv_freq < 0).any()),
        "rounding": roundings.pop() if len(roundings) == 1 else None,
        "float_positions": rope.float_positions, "attention_factor": lengths[0]["attention_factor"],
        "softmax_factor": softmax_factor(rope), "notes": rope.notes, "lengths": lengths,
    })
    if two_angles and rope.axes > 1:
        record["pair_axis2"] = axis2
    return record
