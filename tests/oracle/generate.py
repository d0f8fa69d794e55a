"""Writes the golden files: what the models' own rotary code computes. See README.md."""

from __future__ import annotations

import argparse
import datetime
import inspect
import json
import os
import platform
import sys
import warnings
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"  # configs are built here; nothing is downloaded
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
warnings.filterwarnings("ignore")
sys.dont_write_bytecode = True

import numpy
import torch
import transformers

import cases
import families
import prompts
import record
import special
import styles


KNOWN = {}  # what a rotation depends on besides cos and sin: the first record that has one


def drop_known_rotations(case, kept, made):
    """Keeps rotated tensors only of the first Rope with some apply function, by its source, and shape;
    the others name that record. Without this the files would be three times as large."""
    for rope, entry in zip(kept, made):
        path, _, name = rope.apply_function.rpartition(".")
        function = getattr(sys.modules.get(path), name, None)
        source = inspect.getsource(function) if function else rope.apply_function
        shape = [entry[k] for k in ("pairing", "head_dim", "rotary_dim", "rotary_offset", "axes", "rounding",
                                    "two_angles", "negated", "float_positions")]
        key = (source, str(shape), entry["attention_factor"] == 1.0)
        first = KNOWN.setdefault(key, f"{case['name']}.json#{entry['name']}")
        if first != f"{case['name']}.json#{entry['name']}":
            entry["apply_like"] = first
            for length in entry["lengths"]:
                length.pop("apply", None)


def run(case):
    """The JSON of one case, and the reasons for what is missing from it."""
    config = cases.build(case, case["config"])
    ropes, problems = families.find(config)
    made, kept = [], []
    for rope in ropes:
        try:
            entry = record.make(rope, case["origin"]["kind"], case["name"])
        except Exception as error:
            problems.append(f"{rope.name} ({rope.rotary_class}): {type(error).__name__}: {error}")
            continue
        made.append({"name": entry["name"], "style": styles.of(entry), **entry})
        kept.append(rope)
    layers = families.layers(config, kept)
    if not made and not layers:
        return None, problems
    if not made:  # hybrids derive their layers from a pattern that the source of a config may lack
        layers = [-1] * case["config"].get("num_hidden_layers", len(layers))
    drop_known_rotations(case, kept, made)
    text = config.get_text_config()
    result = {
        "format": 1, "name": case["name"], "origin": case["origin"], "model_type": case["config"]["model_type"],
        "run_as": cases.RUN_AS.get(case["config"]["model_type"]), "overrides": case.get("overrides", {}),
        "config": case["config"], "config_saved": case.get("config_saved"),
        "layers": layers, "layer_types": getattr(text, "layer_types", None), "ropes": made,
    }
    if case.get("config_saved"):
        check_saved(case, kept, made)
    return result, problems


def check_saved(case, kept, made):
    """The config as saved must give the same frequencies as the one without rope parameters."""
    again, _ = families.find(cases.build(case, case["config_saved"]))
    again = {rope.name: rope for rope in again}
    for rope in kept:
        if not torch.equal(rope.inv_freq(rope.fresh()), again[rope.name].inv_freq(again[rope.name].fresh())):
            raise ValueError(f"config and config_saved disagree on {rope.name}")


def summary(result):
    keys = ("name", "role", "style", "rope_type", "pairing", "rounding", "head_dim", "rotary_dim", "axes")
    return {
        "file": f"{result['name']}.json", "model_type": result["model_type"], "origin": result["origin"]["kind"],
        "id": result["origin"].get("id"), "ropes": [{k: rope[k] for k in keys} for rope in result["ropes"]],
    }


def versions():
    """torch's cos and sin differ in the last bit between instruction sets, so these are named too."""
    return {
        "transformers": transformers.__version__, "torch": torch.__version__, "numpy": numpy.__version__,
        "python": platform.python_version(), "machine": platform.machine(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=cases.DATA / "oracle")
    parser.add_argument("--only", help="cases whose name contains this text; index.json is left alone")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)

    found, skipped = cases.fixtures()
    defaults, failed = cases.class_defaults()
    todo, used, index = found + cases.hand() + defaults, set(), []
    skipped += failed
    skipped += [{"name": name, "reason": reason} for name, reason in special.SKIPPED.items()]
    arguments.out.mkdir(parents=True, exist_ok=True)
    if not arguments.only:
        for old in arguments.out.glob("*.json"):
            old.unlink()
    for case in todo:
        while case["name"] in used:
            case["name"] += "-b"
        used.add(case["name"])
        if arguments.only and arguments.only not in case["name"]:
            continue
        try:
            result, problems = run(case)
        except Exception as error:
            result, problems = None, [f"{type(error).__name__}: {error}"]
        label = case["origin"].get("id") or case["name"]
        skipped += [{"name": label, "file": case["name"], "reason": problem[:400]} for problem in problems]
        if result:
            text = json.dumps(result, separators=(",", ":"), ensure_ascii=False)
            (arguments.out / f"{case['name']}.json").write_text(text + "\n")
            index.append(summary(result))
        elif not problems and case["origin"]["kind"] != "class-default":
            skipped.append({"name": label, "file": case["name"], "reason": "no rotary class found"})
    if arguments.only:
        print(json.dumps({"cases": index, "skipped": skipped}, indent=1))
        return
    (arguments.out / "position_ids.json").write_text(json.dumps(prompts.make(skipped), separators=(",", ":")) + "\n")
    contents = {"format": 1, "date": datetime.date.today().isoformat(), "versions": versions(),
                "cases": index, "skipped": skipped}
    (arguments.out / "index.json").write_text(json.dumps(contents, indent=1, ensure_ascii=False) + "\n")
    print(f"{len(index)} cases, {sum(len(c['ropes']) for c in index)} ropes, {len(skipped)} skipped", file=sys.stderr)


if __name__ == "__main__":
    main()
