"""Other implementations of RoPE on the GPU, on the shapes of cuda_bench, as JSON lines.

transformers' eager code, the same through torch.compile, a Triton kernel, Liger and FlashInfer:
those that can be imported. Every peer gets what it is made for: its own layout, cos and sin rows
ready made, in place where it can; of several ways to use it the fastest that turns right. CUDA events,
warm, median of seven; buffers rotate as those of cuda_bench do. Decode steps are nodes of a CUDA graph,
as librope's are; prefills are calls, or nodes of a graph where that is faster, so that no peer waits for
Python. The rows that matter most come first: --seconds ends it wherever it is.
"""

import argparse
import functools
import importlib.metadata
import json
import sys
import time

try:
    import torch
except ImportError:
    print("cuda_peers: PyTorch is not installed: no peers", file=sys.stderr)
    sys.exit(0)

DEVICE = "cuda"
DTYPES = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}
Q_HEADS, K_HEADS, DIM, THETA = 32, 8, 128, 500000.0
NODES = 200
STEPS = {"prefill": (32768, 8192, 1024), "decode": (1, 8, 32, 128, 256, 64)}
FIRST = {"prefill": (32768, 8192), "decode": (1, 8, 32, 128, 256)}  # in bf16


def rows(tokens, dtype=torch.float32):
    inv = 1.0 / THETA ** (torch.arange(0, DIM, 2, device=DEVICE, dtype=torch.float32) / DIM)
    angles = torch.arange(tokens, device=DEVICE, dtype=torch.float32)[:, None] * inv
    return angles.cos().to(dtype), angles.sin().to(dtype)


class Data:
    """q and k in several copies, [tokens, heads, dim]."""

    def __init__(self, tokens, dtype):
        size = tokens * (Q_HEADS + K_HEADS) * DIM * dtype.itemsize
        most = max(4 * torch.cuda.get_device_properties(0).L2_cache_size, 1 << 30)
        self.sets = []
        for _ in range(max(1, min(NODES, most // size))):
            q = torch.randn(tokens, Q_HEADS, DIM, device=DEVICE).to(dtype)
            k = torch.randn(tokens, K_HEADS, DIM, device=DEVICE).to(dtype)
            self.sets.append((q, k))

    def at(self, n):
        return self.sets[n % len(self.sets)]


def median_us(work, calls):
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    rounds = []
    for _ in range(7):
        begin.record()
        work()
        end.record()
        end.synchronize()
        rounds.append(begin.elapsed_time(end) * 1000 / calls)
    return sorted(rounds)[3]


def time_calls(call, data):
    for n in range(20):
        call(*data.at(n))

    def work():
        for n in range(50):
            call(*data.at(n))

    return median_us(work, 50)


def time_graph(call, data, nodes=NODES):
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for n in range(3):
            call(*data.at(n))
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.stream(side):  # torch.cuda.graph would first collect garbage, each time
        graph.capture_begin()
        try:
            for n in range(nodes):
                call(*data.at(n))
        finally:
            graph.capture_end()
    for _ in range(5):
        graph.replay()
    return median_us(graph.replay, nodes)


def time_prefill(call, data):
    return min(time_calls(call, data), time_graph(call, data, 50))


def check(call, data, interleaved):
    """Whether it is this rotation at all, not how exact it is."""
    q, k = (x.clone() for x in data.at(0))
    cos, sin = (r[:, None, :] for r in rows(q.shape[0]))
    wanted = []
    for x in (q.float(), k.float()):
        a, b = (x[..., 0::2], x[..., 1::2]) if interleaved else x.chunk(2, dim=-1)
        turned = (a * cos - b * sin, b * cos + a * sin)
        wanted.append(torch.stack(turned, -1).flatten(-2) if interleaved else torch.cat(turned, -1))
    got = call(q, k) or (q, k)
    error = max((g.float() - w).abs().max().item() for g, w in zip(got, wanted))
    if not error < 0.1:
        raise ValueError(f"turns wrong, by {error}")


def rotate_half(x):
    a, b = x.chunk(2, dim=-1)
    return torch.cat((-b, a), dim=-1)


def rotate(q, k, cos, sin):
    return q * cos + rotate_half(q) * sin, k * cos + rotate_half(k) * sin


def eager_of(tokens, dtype, function=rotate):
    cos, sin = (torch.cat((r, r), -1)[:, None, :] for r in rows(tokens, dtype))
    return {"": lambda q, k: function(q, k, cos, sin)}


def compiled_of(tokens, dtype):
    return eager_of(tokens, dtype, compiled())


@functools.cache
def compiled():
    import torch._dynamo
    import torch._inductor.config

    torch._dynamo.config.recompile_limit = 64  # beyond it, it would silently be eager
    torch._inductor.config.compile_threads = 1  # one kernel a graph: no pool of processes
    # Compiled for every shape: divisions by constants.
    return torch.compile(rotate, dynamic=False, options={"max_autotune_pointwise": True})


@functools.cache
def triton_kernel():
    import triton
    import triton.language as tl

    globals()["tl"] = tl  # kernels see only globals

    @triton.jit
    def turn(x, first, c, s, HEADS: tl.constexpr, HALF: tl.constexpr):
        head = first + tl.arange(0, HEADS)[:, None]
        at = head * (2 * HALF) + tl.arange(0, HALF)[None, :]
        a = tl.load(x + at).to(tl.float32)
        b = tl.load(x + at + HALF).to(tl.float32)
        tl.store(x + at, (a * c - b * s).to(x.dtype.element_ty))
        tl.store(x + at + HALF, (b * c + a * s).to(x.dtype.element_ty))

    globals()["turn"] = turn

    # BLOCK heads of a token; 0: all of them.
    @triton.jit
    def kernel(q, k, cos, sin, HQ: tl.constexpr, HK: tl.constexpr, HALF: tl.constexpr,
               BLOCK: tl.constexpr):
        token = tl.program_id(0)
        pair = token * HALF + tl.arange(0, HALF)
        c = tl.load(cos + pair)[None, :]
        s = tl.load(sin + pair)[None, :]
        if BLOCK == 0:
            turn(q, token * HQ, c, s, HQ, HALF)
            turn(k, token * HK, c, s, HK, HALF)
        else:
            first = tl.program_id(1) * BLOCK
            if first < HQ:
                turn(q, token * HQ + first, c, s, BLOCK, HALF)
            else:
                turn(k, token * HK + first - HQ, c, s, BLOCK, HALF)

    return kernel


def triton_of(tokens, dtype):
    kernel = triton_kernel()
    cos, sin = rows(tokens)

    def way(block, warps):
        grid = (tokens, (Q_HEADS + K_HEADS) // block if block else 1)

        def call(q, k):
            kernel[grid](q, k, cos, sin, Q_HEADS, K_HEADS, DIM // 2, block, num_warps=warps)

        return call

    ways = ((0, 2), (0, 4), (0, 8), (8, 1), (8, 2), (8, 4), (2, 1))
    return {f"{block or 'all'} heads, {warps} warps": way(block, warps) for block, warps in ways}


def liger_of(tokens, dtype):
    from liger_kernel.ops.rope import rope_forward

    def way(table):
        cos, sin = (torch.cat((r, r), -1)[None] for r in rows(tokens, table))

        def call(q, k):  # [1, heads, tokens, dim], as transformers hands them over: a view
            rope_forward(q[None].transpose(1, 2), k[None].transpose(1, 2), cos, sin)

        return call

    # Its products are of the tables' type, which transformers makes that of q.
    return {f"tables of {str(t)[6:]}": way(t) for t in dict.fromkeys((dtype, torch.float32))}


def flashinfer_of(tokens, dtype, interleaved=False):
    import flashinfer

    cache = torch.cat(rows(tokens), -1).contiguous()
    positions = torch.arange(tokens, device=DEVICE, dtype=torch.int32)

    def table(q, k):
        flashinfer.rope.apply_rope_with_cos_sin_cache_inplace(
            positions, q.view(tokens, -1), k.view(tokens, -1), DIM, cache, is_neox=not interleaved
        )

    def angles(q, k):
        flashinfer.rope.apply_rope_pos_ids_inplace(
            q, k, positions, interleave=interleaved, rope_theta=THETA
        )

    return {"table": table, "angles in the kernel": angles}


PEERS = {  # and the packages whose versions count
    "FlashInfer": (flashinfer_of, "flashinfer-python"),
    "Triton": (triton_of, "triton"),
    "Liger": (liger_of, "liger-kernel"),
    "transformers eager": (eager_of, "torch"),
    "torch.compile": (compiled_of, "torch"),
}


def version_of(package):
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "absent"


def say(text):
    print(f"cuda_peers: {text}"[:240], file=sys.stderr, flush=True)


def measure(kind, peer, data, ways, interleaved):
    """Microseconds and name of the fastest way that turns right."""
    best, failure = None, None
    for way, call in ways.items():
        try:
            check(call, data, interleaved)
            us = (time_prefill if kind == "prefill" else time_graph)(call, data)
        except Exception as error:
            torch.cuda.synchronize()
            failure = error
            if len(ways) > 1:
                say(f"{peer}, {way}: {type(error).__name__}: {error}")
            continue
        if best is None or us < best[0]:
            best = (us, way)
    if best is None:
        raise failure
    return best


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60, help="no row begins later")
    parser.add_argument("--compiles", type=int, default=7, help="rows of torch.compile")
    parser.add_argument("--first", action="store_true", help="only the rows that matter most")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        say("PyTorch sees no GPU: no peers")
        return
    began = time.monotonic()
    say(", ".join(f"{p} {version_of(p)}" for p in dict.fromkeys(p for _, p in PEERS.values())))

    def rank(row):
        kind, tokens, name, peer = row
        return name != "bf16" or tokens not in FIRST[kind], peer == "torch.compile"

    table = [(kind, tokens, name, peer) for name in DTYPES for kind, all_tokens in STEPS.items()
             for tokens in all_tokens for peer in PEERS]
    table = sorted((r for r in table if not (options.first and rank(r)[0])), key=rank)
    given_up, compiles, held, data = set(), 0, None, None
    for at, (kind, tokens, name, peer) in enumerate(table):
        if time.monotonic() - began > options.seconds:
            say(f"{len(table) - at} of {len(table)} were left out after {options.seconds:.0f} s")
            break
        if (peer, name) in given_up:
            continue
        if peer == "torch.compile":
            if compiles == options.compiles:
                continue
            compiles += 1
        if held != (tokens, name):
            data = None
            data, held = Data(tokens, DTYPES[name]), (tokens, name)
        make, package = PEERS[peer]
        for pairing in ("halves", "interleaved") if peer == "FlashInfer" else ("halves",):
            interleaved = pairing == "interleaved"
            try:
                ways = make(tokens, DTYPES[name], **({"interleaved": True} if interleaved else {}))
                us, way = measure(kind, peer, data, ways, interleaved)
            except Exception as error:  # a peer that is absent or cannot do it
                given_up.add((peer, name))
                torch.cuda.synchronize()
                say(f"{peer} {name}: {type(error).__name__}: {error}")
                break
            row = dict(kind=kind, library=peer, version=version_of(package), way=way,
                       shape="32+8x128", tokens=tokens, dtype=name, pairing=pairing, us=round(us, 3))
            print(json.dumps(row), flush=True)
    say(f"{time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
