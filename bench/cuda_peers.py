"""Other implementations of RoPE on the GPU, on the shapes of cuda_bench, as JSON lines.

transformers' eager code, the same through torch.compile, a Triton kernel, Liger and FlashInfer:
those that can be imported. Every peer gets what it is made for: its own layout, cos and sin rows
ready made, in place where it can. CUDA events, warm, median of seven; buffers rotate over four times the
L2 cache; decode steps are nodes of a CUDA graph, as librope's are.
"""

import json
import sys

try:
    import torch
except ImportError:
    print("cuda_peers: PyTorch is not installed: no peers", file=sys.stderr)
    sys.exit(0)
if not torch.cuda.is_available():
    print("cuda_peers: PyTorch sees no GPU: no peers", file=sys.stderr)
    sys.exit(0)

DTYPES = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}
Q_HEADS, K_HEADS, DIM, THETA = 32, 8, 128, 500000.0
NODES = 200
STEPS = {"prefill": (1024, 8192, 32768), "decode": (1, 8, 32, 64, 128, 256)}


def rows(tokens, dtype=torch.float32):
    inv = 1.0 / THETA ** (torch.arange(0, DIM, 2, device="cuda", dtype=torch.float32) / DIM)
    angles = torch.arange(tokens, device="cuda", dtype=torch.float32)[:, None] * inv
    return angles.cos().to(dtype), angles.sin().to(dtype)


class Data:
    """q and k in several copies, [tokens, heads, dim]."""

    def __init__(self, tokens, dtype):
        size = tokens * (Q_HEADS + K_HEADS) * DIM * dtype.itemsize
        l2 = torch.cuda.get_device_properties(0).L2_cache_size
        self.sets = []
        for _ in range(max(2, min(NODES, (4 * l2 + size - 1) // size))):
            q = torch.randn(tokens, Q_HEADS, DIM, device="cuda").to(dtype)
            k = torch.randn(tokens, K_HEADS, DIM, device="cuda").to(dtype)
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


def time_graph(call, data):
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for n in range(3):
            call(*data.at(n))
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for n in range(NODES):
            call(*data.at(n))
    for _ in range(3):
        graph.replay()
    return median_us(graph.replay, NODES)


def rotate_half(x):
    a, b = x.chunk(2, dim=-1)
    return torch.cat((-b, a), dim=-1)


def rotate(q, k, cos, sin):
    return q * cos + rotate_half(q) * sin, k * cos + rotate_half(k) * sin


def eager_of(tokens, dtype, function=rotate):
    cos, sin = (torch.cat((r, r), -1)[:, None, :] for r in rows(tokens, dtype))
    return lambda q, k: function(q, k, cos, sin)


compiled = torch.compile(rotate, dynamic=True)  # compiled once per dtype, and for one token


def compiled_of(tokens, dtype):
    return eager_of(tokens, dtype, compiled)


def triton_of(tokens, dtype):
    import triton
    import triton.language as tl

    global triton_kernel
    if triton_kernel is None:

        @triton.jit
        def kernel(q, k, cos, sin, HQ: tl.constexpr, HK: tl.constexpr, HALF: tl.constexpr):
            token = tl.program_id(0)
            pair = tl.arange(0, HALF)
            c = tl.load(cos + token * HALF + pair)[None, :]
            s = tl.load(sin + token * HALF + pair)[None, :]
            at = tl.arange(0, HQ)[:, None] * (2 * HALF) + pair[None, :]
            base = q + token * (HQ * 2 * HALF)
            a = tl.load(base + at).to(tl.float32)
            b = tl.load(base + at + HALF).to(tl.float32)
            tl.store(base + at, (a * c - b * s).to(q.dtype.element_ty))
            tl.store(base + at + HALF, (b * c + a * s).to(q.dtype.element_ty))
            at = tl.arange(0, HK)[:, None] * (2 * HALF) + pair[None, :]
            base = k + token * (HK * 2 * HALF)
            a = tl.load(base + at).to(tl.float32)
            b = tl.load(base + at + HALF).to(tl.float32)
            tl.store(base + at, (a * c - b * s).to(k.dtype.element_ty))
            tl.store(base + at + HALF, (b * c + a * s).to(k.dtype.element_ty))

        triton_kernel = kernel
    cos, sin = rows(tokens)

    def call(q, k):
        triton_kernel[(tokens,)](q, k, cos, sin, Q_HEADS, K_HEADS, DIM // 2)

    return call


triton_kernel = None


def liger_of(tokens, dtype):
    from liger_kernel.ops.rope import rope_forward

    cos, sin = (torch.cat((r, r), -1)[None] for r in rows(tokens, dtype))

    def call(q, k):  # [1, heads, tokens, dim], as transformers hands them over: a view
        return rope_forward(q[None].transpose(1, 2), k[None].transpose(1, 2), cos, sin)

    return call


def flashinfer_of(tokens, dtype, interleaved=False):
    import flashinfer

    cos, sin = rows(tokens)
    cache = torch.cat((cos, sin), -1).contiguous()
    positions = torch.arange(tokens, device="cuda", dtype=torch.int64)

    def call(q, k):
        flashinfer.rope.apply_rope_with_cos_sin_cache_inplace(
            positions, q.view(tokens, -1), k.view(tokens, -1), DIM, cache, is_neox=not interleaved
        )

    return call


PEERS = {
    "transformers eager": eager_of,
    "torch.compile": compiled_of,
    "Triton": triton_of,
    "Liger": liger_of,
    "FlashInfer": flashinfer_of,
}


def main():
    given_up = set()
    for kind, all_tokens in STEPS.items():
        for tokens in all_tokens:
            for name, dtype in DTYPES.items():
                data = Data(tokens, dtype)
                for peer, make in PEERS.items():
                    pairings = ("halves", "interleaved") if peer == "FlashInfer" else ("halves",)
                    for pairing in pairings:
                        if (peer, name) in given_up:
                            continue
                        try:
                            if pairing == "interleaved":
                                call = make(tokens, dtype, interleaved=True)
                            else:
                                call = make(tokens, dtype)
                            us = (time_calls if kind == "prefill" else time_graph)(call, data)
                        except Exception as error:  # a peer that is absent or cannot do it
                            given_up.add((peer, name))
                            torch.cuda.synchronize()
                            reason = f"{type(error).__name__}: {error}"[:200]
                            print(f"cuda_peers: {peer} {name}: {reason}", file=sys.stderr)
                            continue
                        row = dict(kind=kind, library=peer, shape="32+8x128", tokens=tokens,
                                   dtype=name, pairing=pairing, us=round(us, 3))
                        print(json.dumps(row), flush=True)
                del data


if __name__ == "__main__":
    main()
