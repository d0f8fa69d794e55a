"""librope's append beside what com.microsoft.GroupQueryAttention of onnxruntime does before it attends.

    PYTHONPATH=bench python -m peers.onnxruntime_gqa [--quick] [--tokens N,..] [--past N] [--rounds N]

In an environment with the packages of [environments.onnx] of pins.toml, and librope. The operator rotates q
and k (do_rotary=1), appends k and v to the buffers of the past, and attends; no output lies between. What it
does before is therefore a difference of times: the same node with do_rotary=1 less with do_rotary=0 is the
rotation, with do_rotary=1 less without any cache (a prompt, whose present_key and present_value nobody asks
for) the rotation and the append. README.md says what is and is not in them. No contender of run.py, since its
cases have no cache.

One thread, CPU time, medians of rounds in which all take turns; of a difference, the median of the rounds'
differences. Before that the caches of both are compared: k within the bounds of run.py, v bit for bit, and
without do_rotary k bit for bit with the input, as the difference would else be no rotation alone.
"""

import argparse
import math
import os
import random
import statistics
import sys
import time

import librope
import numpy
import onnxruntime
from onnx import TensorProto, helper

from .contenders.onnxruntime_rope import TYPES, session
from .protocol import HEAD_DIM, K_HEADS, Q_HEADS, THETA, brief
from .run import ROUNDING, STEPS_F32, UNIT

NUMPY = {"f32": numpy.float32, "f16": numpy.float16}
BOUND = {"f32": STEPS_F32 * UNIT["f32"], "f16": ROUNDING["steps"] * UNIT["f16"]}
HEADS = {"q": Q_HEADS, "k": K_HEADS, "v": K_HEADS}
CACHES = {"past_key": "present_key", "past_value": "present_value"}


def model(dtype, tokens, slots, rotary, cached):
    """One node; its inputs in the operator's order, those that are missing as ""."""
    kind, info = TYPES[dtype], helper.make_tensor_value_info
    shapes = {name: [1, tokens, heads * HEAD_DIM] for name, heads in HEADS.items()}
    cache = [1, K_HEADS, slots, HEAD_DIM]
    ins = [info(name, kind, shape) for name, shape in shapes.items()]
    outs = [info("out", kind, shapes["q"])]
    if cached:
        ins += [info(name, kind, cache) for name in CACHES]
        outs += [info(name, kind, cache) for name in CACHES.values()]
    ins += [info("seqlens_k", TensorProto.INT32, [1]), info("total_sequence_length", TensorProto.INT32, [])]
    if rotary:
        ins += [info(name, kind, [slots, HEAD_DIM // 2]) for name in ("cos", "sin")]
    names = [x.name for x in ins]
    if not cached:
        names[3:3] = [""] * len(CACHES)
    node = helper.make_node("GroupQueryAttention", names, [x.name for x in outs], domain="com.microsoft",
                            num_heads=Q_HEADS, kv_num_heads=K_HEADS, do_rotary=int(rotary))
    opsets = [helper.make_opsetid("", 23), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(helper.make_graph([node], "gqa", ins, outs), opset_imports=opsets, ir_version=11)


class Operator:
    """A session with one node, bound to memory; past and present are the same, so that nothing is copied."""

    def __init__(self, dtype, tokens, past, rotary=False, cached=True):
        self.slots = past + tokens
        self.session = session(model(dtype, tokens, self.slots, rotary, cached), 1)
        self.binding, self.kept = self.session.io_binding(), []

    def bind(self, arrays):
        for x in self.session.get_inputs():
            array = arrays[x.name]
            self.kept.append(array)
            self.binding.bind_input(x.name, "cpu", 0, array.dtype.type, array.shape, array.ctypes.data)
        for x in self.session.get_outputs():
            array = arrays[x.name]
            self.kept.append(array)
            self.binding.bind_output(x.name, "cpu", 0, array.dtype.type, array.shape, array.ctypes.data)

    def __call__(self):
        self.session.run_with_iobinding(self.binding)


class Layer:
    """The arrays of both, and the ways to work on them by name."""

    def __init__(self, dtype, tokens, past):
        operators = {
            "do_rotary=1": Operator(dtype, tokens, past, rotary=True),
            "do_rotary=0": Operator(dtype, tokens, past),
        }
        if not past:
            operators["no cache"] = Operator(dtype, tokens, past, cached=False)
        numbers, slots = numpy.random.default_rng(tokens), past + tokens
        shapes = {name: (1, tokens, heads * HEAD_DIM) for name, heads in HEADS.items()}
        arrays = {name: numbers.standard_normal(shape).astype(NUMPY[dtype]) for name, shape in shapes.items()}
        # The operator's buffers, and librope's: one page of all slots, which lie in memory as the operator's do.
        cache, cache_shape = {}, (1, K_HEADS, slots, HEAD_DIM)
        for name, present in CACHES.items():
            arrays[name] = arrays[present] = numbers.standard_normal(cache_shape).astype(NUMPY[dtype])
            cache[name] = arrays[name].copy()
        arrays["out"] = numpy.empty(shapes["q"], NUMPY[dtype])
        arrays["seqlens_k"] = numpy.array([slots - 1], numpy.int32)
        arrays["total_sequence_length"] = numpy.array(slots, numpy.int32)
        rope = librope.Rope(head_dim=HEAD_DIM, theta=THETA, pairing="halves", layout="thd")
        arrays["cos"], arrays["sin"] = (
            rows.astype(NUMPY[dtype]) for rows in rope.cos_sin(numpy.arange(slots), format="split"))
        for operator in operators.values():
            operator.bind(arrays)

        q, k, v = (arrays[name].reshape(tokens, heads, HEAD_DIM) for name, heads in HEADS.items())
        positions = numpy.arange(past, slots)
        where = librope.KVCache(*cache.values(), layout="hnd", slots=positions)
        prepared = rope.prepare_qk(q, k, positions, v=v, cache=where)
        memory = librope.KVCache(*cache.values(), layout="hnd")
        self.ways = operators | {
            "librope, rotation": lambda: rope.apply_qk_(q, k, positions),
            "librope, append": lambda: rope.apply_qk_(q, k, positions, v=v, cache=where),
            "librope, prepared": lambda: prepared.apply_qk_(q, k, v=v, cache=memory),
        }
        self.dtype, self.past, self.arrays, self.cache, self.k = dtype, past, arrays, cache, k

    def check(self):
        """The caches of both, all slots. Raises where they differ by more than rounding."""
        before = {name: array.copy() for name, array in self.cache.items()}
        self.ways["do_rotary=0"]()
        if not numpy.array_equal(self.arrays["past_key"][0, :, self.past:], self.k.swapaxes(0, 1)):
            raise AssertionError("do_rotary=0 does not append k as it is")
        for name, array in before.items():
            self.arrays[name][...] = array
        self.ways["do_rotary=1"]()
        self.ways["librope, append"]()
        theirs, ours = (x["past_key"].astype(numpy.float32).reshape(-1, 2, HEAD_DIM // 2)
                        for x in (self.arrays, self.cache))
        lengths = numpy.linalg.norm(ours, axis=1, keepdims=True)
        error = float((abs(theirs - ours) / lengths).max())
        if not error <= BOUND[self.dtype]:  # nor NaN
            raise AssertionError(f"k in the caches differs by {error:.3g} of a pair's length")
        if numpy.array_equal(self.cache["past_key"], before["past_key"]):
            raise AssertionError("librope has stored nothing")
        if not numpy.array_equal(self.arrays["past_value"], self.cache["past_value"]):
            raise AssertionError("v differs in the caches")
        return error / UNIT[self.dtype]


def clock(ways, rounds, min_time):
    """Lists of microseconds by name, an entry for each round."""

    def seconds(way, repeat):
        start = time.process_time()
        for _ in range(repeat):
            way()
        return time.process_time() - start

    repeat = {}
    for name, way in ways.items():
        seconds(way, 3)
        repeat[name] = max(1, math.ceil(min_time / max(seconds(way, 3) / 3, 1e-7)))
    times, order = {name: [] for name in ways}, list(ways)
    for _ in range(rounds):
        random.shuffle(order)
        for name in order:
            times[name].append(1e6 * seconds(ways[name], repeat[name]) / repeat[name])
    return times


def difference(times, more, less):
    """The median of the rounds' differences and half the distance of their quartiles, as a cell."""
    if less not in times:
        return ""
    lower, median, upper = statistics.quantiles([a - b for a, b in zip(times[more], times[less], strict=True)], n=4)
    return f"{median:,.1f} +- {(upper - lower) / 2:,.1f}"


def row(dtype, tokens, past, rounds, min_time):
    layer = Layer(dtype, tokens, past)
    error = layer.check()
    times = clock(layer.ways, rounds, min_time)
    cells = [f"{dtype}, {tokens}{f' behind {past}' if past else ''}"]
    for name in ("do_rotary=1", "do_rotary=0", "no cache"):
        cells.append(f"{statistics.median(times[name]):,.1f}" if name in times else "")
    cells += [difference(times, "do_rotary=1", less) for less in ("do_rotary=0", "no cache")]
    for name in ("librope, rotation", "librope, append", "librope, prepared"):
        cells.append(f"{statistics.median(times[name]):,.1f}")
    return [*cells, f"{error:.2f}"]


def main():
    parser = argparse.ArgumentParser(description="librope's append beside GroupQueryAttention")
    parser.add_argument("--quick", action="store_true", help="1 and 16 tokens, three rounds: does all of it work?")
    parser.add_argument("--tokens", help="1: a token behind --past others; more: a prompt (1,16,64,256)")
    parser.add_argument("--past", type=int, default=15)
    parser.add_argument("--rounds", type=int)
    options = parser.parse_args()
    tokens = [int(n) for n in (options.tokens or ("1,16" if options.quick else "1,16,64,256")).split(",")]
    rounds = options.rounds or (3 if options.quick else 61)
    # Its tiled attention needs the caches as outputs: without them another one would be in the difference.
    os.environ["ORT_GQA_DISABLE_FLASH_ATTENTION"] = "1"
    # As run.py: the first CPUs get most interrupts.
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[-1:])
    print(f"onnxruntime {onnxruntime.__version__}, librope {librope.__version__}; us, medians of {rounds} rounds; "
          f"load {os.getloadavg()[0]:.2f}\n")
    print("| tokens | do_rotary=1 | do_rotary=0 | no cache | rotation | rotation, append | librope: rotation | "
          "librope: append | prepared | k, in roundings |")
    print(f"|---{'|--:' * 9}|", flush=True)
    refused = []
    for dtype in TYPES:
        for n in tokens:
            try:
                cells = row(dtype, n, options.past if n == 1 else 0, rounds, 0.001 if options.quick else 0.005)
            except onnxruntime.capi.onnxruntime_pybind11_state.NotImplemented as error:
                refused.append(f"{dtype}: {brief(error)}")
                break
            print(f"| {' | '.join(cells)} |", flush=True)
    print(*refused, sep="\n", file=sys.stderr)


if __name__ == "__main__":
    main()
