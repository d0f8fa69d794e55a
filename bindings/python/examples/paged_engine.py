"""A small engine in PyTorch: continuous batching over a paged KV cache.

    python paged_engine.py [float32 or bfloat16]

Each layer makes one call of librope: it norms q and k, as Qwen3 does, rotates q in place, and stores the rotated k,
and v, in their pages. Positions and pages are those of all layers, so the call is prepared once per step, and each
layer brings its heads, its cache and its norms. Requests come and go, long prompts are cut into chunks, and pages are
used again. The weights are random; the point is that every token is that of plain code, which has one sequence, a
cache that grows by torch.cat, and the rotation as models write it. In bfloat16 sums in another order round to other
numbers: there tokens are the same wherever plain code's two best logits are not nearly alike, and these are counted.
"""

import sys

import torch
import torch.nn.functional as F

import librope

CONFIG = {
    "model_type": "qwen3", "head_dim": 32, "hidden_size": 256, "num_attention_heads": 8, "num_key_value_heads": 2,
    "num_hidden_layers": 4, "intermediate_size": 512, "vocab_size": 1000, "rope_theta": 500000.0,
}  # fmt: skip
Q_HEADS, KV_HEADS, DIM, LAYERS = 8, 2, 32, 4
PAGE_SIZE, PAGES, BUDGET = 8, 30, 24  # slots of a page; pages; tokens of a step
EPS = 1e-6  # of the norms of q and k
# How far the logit of a token may be below the best one of plain code, in standard deviations of the logits: not at
# all, or four steps of bfloat16 between 2 and 4, where the best ones are.
NEARLY = {torch.float32: 0.0, torch.bfloat16: 1 / 16}


class Qwen:
    """Weights, and a forward pass that is told how to attend."""

    def __init__(self, seed, dtype):
        torch.manual_seed(seed)
        self.dtype = dtype
        hidden, inner = CONFIG["hidden_size"], CONFIG["intermediate_size"]

        def weight(rows, columns):
            return (torch.randn(rows, columns) * rows**-0.5).to(dtype)

        def norm():
            return (1 + torch.randn(DIM) / 4).to(dtype)

        self.embedding = (torch.randn(CONFIG["vocab_size"], hidden) / 4).to(dtype)
        self.head = weight(hidden, CONFIG["vocab_size"])
        self.layers = [
            {"qkv": weight(hidden, (Q_HEADS + 2 * KV_HEADS) * DIM), "o": weight(Q_HEADS * DIM, hidden),
             "up": weight(hidden, 2 * inner), "down": weight(inner, hidden),
             "q_norm": norm(), "k_norm": norm()}
            for _ in range(LAYERS)
        ]  # fmt: skip

    def __call__(self, ids, attend):
        """Hidden states after the last layer. attend(layer, q, k, v): heads of [tokens, heads, DIM]."""
        x = self.embedding[ids]
        for layer, weights in enumerate(self.layers):
            packed = F.rms_norm(x, x.shape[-1:]) @ weights["qkv"]
            q, k, v = packed.view(len(ids), -1, DIM).split([Q_HEADS, KV_HEADS, KV_HEADS], 1)
            x = x + attend(layer, q, k, v).flatten(1) @ weights["o"]
            gate, up = (F.rms_norm(x, x.shape[-1:]) @ weights["up"]).chunk(2, -1)
            x = x + (F.silu(gate) * up) @ weights["down"]
        return F.rms_norm(x, x.shape[-1:])

    def logits(self, hidden):
        return (hidden @ self.head).float()


def attention(q, keys, values):
    """q of the last tokens of a sequence, keys and values of all of them."""
    mask = torch.ones(len(q), len(keys), dtype=torch.bool).tril(len(keys) - len(q))
    heads = (x.transpose(0, 1) for x in (q, keys, values))
    return F.scaled_dot_product_attention(*heads, attn_mask=mask, enable_gqa=True).transpose(0, 1)


class Engine:
    def __init__(self, model):
        self.model = model
        self.rope = librope.Rope.from_config(CONFIG, layout="thd")
        memory = torch.zeros(LAYERS, 2, PAGES, PAGE_SIZE, KV_HEADS, DIM, dtype=model.dtype)

        def norm(weight):  # its result is rounded to 16 bits, as that of F.rms_norm is
            return librope.Norm(weight, kind="rms", eps=EPS, rounding="rounded")

        self.norms = [librope.Norms(norm(w["q_norm"]), norm(w["k_norm"])) for w in model.layers]
        self.caches = [librope.KVCache(k, v, layout="nhd") for k, v in memory]
        self.free = torch.randperm(PAGES).tolist()
        self.pages = {}  # of each sequence
        self.done = {}  # tokens of each sequence that are in the cache

    def step(self, new):
        """The hidden state of the last token of each sequence. new: lists of ids by sequence."""
        counts = torch.tensor([len(ids) for ids in new.values()], dtype=torch.int32)
        starts = torch.tensor([self.done.setdefault(s, 0) for s in new], dtype=torch.int32)
        ends = (starts + counts).tolist()
        for s, end in zip(new, ends):
            pages = self.pages.setdefault(s, [])
            while len(pages) * PAGE_SIZE < end:
                pages.append(self.free.pop())
        width = max(len(self.pages[s]) for s in new)
        table = torch.tensor([self.pages[s] + [-1] * (width - len(self.pages[s])) for s in new], dtype=torch.int32)
        cu_seqlens = F.pad(counts.cumsum(0), (1, 0)).int()

        call = None

        def attend(layer, q, k, v):
            nonlocal call
            cache, norms = self.caches[layer], self.norms[layer]
            if call is None:
                where = cache.at(page_table=table, starts=starts)
                call = self.rope.prepare_qk(
                    q, k, offsets=starts, cu_seqlens=cu_seqlens, v=v, cache=where, norms=norms, out=(q, None)
                )
            call.apply_qk_(q, k, v=v, cache=cache, norms=norms)
            return torch.cat([
                attention(rows, cache.k[self.pages[s]].flatten(0, 1)[:end], cache.v[self.pages[s]].flatten(0, 1)[:end])
                for s, end, rows in zip(new, ends, q.split(counts.tolist()))
            ])  # fmt: skip

        hidden = self.model(torch.tensor(sum(new.values(), [])), attend)
        self.done.update(zip(new, ends))
        return dict(zip(new, hidden[cu_seqlens[1:].long() - 1]))

    def generate(self, requests):
        """The ids that follow each prompt. requests: (first step, prompt, number of ids) by name."""
        ids = {name: list(prompt) for name, (_, prompt, _) in requests.items()}
        ends = {name: len(prompt) + count for name, (_, prompt, count) in requests.items()}
        waiting, running, steps = list(requests), [], 0
        while waiting or running:
            running += [name for name in waiting if requests[name][0] <= steps]
            waiting = [name for name in waiting if name not in running]
            new, room = {}, BUDGET
            for name in running:  # one id to decode, or as much of a prompt as there is room for
                rest = ids[name][self.done.get(name, 0) :][:room]
                if rest:
                    new[name], room = rest, room - len(rest)
            for name, hidden in self.step(new).items():
                if self.done[name] == len(ids[name]):
                    ids[name].append(int(self.model.logits(hidden).argmax()))
                if len(ids[name]) == ends[name]:
                    running.remove(name)
                    self.free += self.pages.pop(name)
            steps += 1
        print(f"{steps} steps")
        return {name: ids[name][len(requests[name][1]) :] for name in requests}


def plain_choices(model, prompt, generated):
    """For each generated id: the best one of plain code after the ids before it, how far its logit is above the
    second one, and how far above that of the generated id. One sequence, and nothing of librope."""
    inv_freq = 1 / CONFIG["rope_theta"] ** (torch.arange(0, DIM, 2).float() / DIM)
    cache = [torch.zeros(2, 0, KV_HEADS, DIM, dtype=model.dtype)] * LAYERS
    found, new = [], prompt
    for given in generated:
        past = cache[0].shape[1]
        angles = torch.arange(past, past + len(new))[:, None].float() * inv_freq
        cos, sin = (torch.cat([t, t], -1)[:, None].to(model.dtype) for t in (angles.cos(), angles.sin()))

        def rotate(x, weight):
            x = F.rms_norm(x, (DIM,), weight, EPS)
            x0, x1 = x.chunk(2, -1)
            return x * cos + torch.cat([-x1, x0], -1) * sin

        def attend(layer, q, k, v):
            weights = model.layers[layer]
            cache[layer] = torch.cat([cache[layer], torch.stack([rotate(k, weights["k_norm"]), v])], 1)
            return attention(rotate(q, weights["q_norm"]), *cache[layer])

        logits = model.logits(model(torch.tensor(new), attend)[-1])
        logits = logits / logits.std()
        (best, second), (choice, _) = (x.tolist() for x in logits.topk(2))
        found.append((choice, best - second, best - float(logits[given])))
        new = [given]
    return found


def main(dtype="float32"):
    model = Qwen(seed=0, dtype=getattr(torch, dtype))
    lengths = {"a": (0, 50, 20), "b": (0, 3, 40), "c": (4, 17, 25), "d": (9, 30, 30), "e": (30, 9, 12)}
    requests = {
        name: (first, torch.randint(CONFIG["vocab_size"], (tokens,)).tolist(), count)
        for name, (first, tokens, count) in lengths.items()
    }
    nearly, clear, tokens = NEARLY[model.dtype], 0, 0
    with torch.inference_mode():
        generated = Engine(model).generate(requests)
        for name, (_, prompt, count) in requests.items():
            assert len(generated[name]) == count
            for given, (best, lead, below) in zip(generated[name], plain_choices(model, prompt, generated[name])):
                assert below <= nearly, name
                if lead > nearly:  # farther ahead than another rounding brings any token
                    assert given == best, name
                    clear += 1
            tokens += count
            print(f"{name}: {len(prompt)} tokens, then {generated[name][:8]} ..")
    print(f"{dtype}: the best tokens of plain code, of which one is clear, and the same, in {clear} of {tokens} places")


if __name__ == "__main__":
    main(*sys.argv[1:])
