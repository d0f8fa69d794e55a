"""The step of an engine in NumPy alone: QK norm, a paged cache, several sequences.

    python numpy_engine.py

Each layer of a tiny Qwen3 makes one call of librope: it norms q and k by the weights of the layer, turns q where
it lies in the packed projection, and stores the turned k, and v, in the pages of their sequences. Prompts of
several lengths share the first step, and then each step has a token of every sequence. The weights are random; at
the end every token is compared with that of plain code, which has one sequence at a time, no cache, and norm and
rotation as models write them.
"""

import numpy as np

import librope

Q_HEADS, KV_HEADS, DIM, HIDDEN, LAYERS, VOCABULARY = 4, 2, 32, 64, 3, 200
CONFIG = {
    "model_type": "qwen3", "head_dim": DIM, "hidden_size": HIDDEN, "num_attention_heads": Q_HEADS,
    "num_key_value_heads": KV_HEADS, "num_hidden_layers": LAYERS, "vocab_size": VOCABULARY,
    "max_position_embeddings": 4096, "rope_theta": 1000000.0, "rms_norm_eps": 1e-6,
}  # fmt: skip
EPS = np.float32(CONFIG["rms_norm_eps"])
PAGE_SIZE, PAGES = 4, 40


def rms_norm(x, weight=1):
    return x / np.sqrt(np.mean(x * x, -1, keepdims=True) + EPS) * weight


class Qwen:
    """Weights, and a forward pass that is told how to attend."""

    def __init__(self, seed):
        random = np.random.default_rng(seed)

        def weight(*shape):
            return random.standard_normal(shape, np.float32) / np.float32(shape[0] ** 0.5)

        def norm():
            return 1 + random.standard_normal(DIM, np.float32) / 4

        self.embedding = weight(VOCABULARY, HIDDEN)
        self.head = weight(HIDDEN, VOCABULARY)
        self.layers = [
            {"qkv": weight(HIDDEN, (Q_HEADS + 2 * KV_HEADS) * DIM), "o": weight(Q_HEADS * DIM, HIDDEN),
             "up": weight(HIDDEN, 4 * HIDDEN), "down": weight(2 * HIDDEN, HIDDEN),
             "q_norm": norm(), "k_norm": norm()}
            for _ in range(LAYERS)
        ]  # fmt: skip

    def logits(self, ids, last, attend):
        """Of the tokens at the indices `last`. attend(layer, q, k, v): heads of [tokens, heads, DIM]."""
        x = self.embedding[ids]
        for layer, weights in enumerate(self.layers):
            packed = (rms_norm(x) @ weights["qkv"]).reshape(len(ids), -1, DIM)
            q, k, v = np.split(packed, [Q_HEADS, Q_HEADS + KV_HEADS], 1)  # views
            x = x + attend(layer, q, k, v).reshape(len(ids), -1) @ weights["o"]
            gate, up = np.split(rms_norm(x) @ weights["up"], 2, 1)
            x = x + (gate / (1 + np.exp(-gate)) * up) @ weights["down"]
        return rms_norm(x[last]) @ self.head


def attention(q, keys, values):
    """q of the last tokens of a sequence, keys and values of all of them."""
    keys, values = (np.repeat(x, Q_HEADS // KV_HEADS, 1) for x in (keys, values))
    scores = np.einsum("thd,shd->hts", q, keys) / np.float32(DIM**0.5)
    future = np.arange(len(keys)) > len(keys) - len(q) + np.arange(len(q))[:, None]
    weights = np.exp(np.where(future, -np.inf, scores - scores.max(-1, keepdims=True)))
    return np.einsum("hts,shd->thd", weights / weights.sum(-1, keepdims=True), values)


class Engine:
    def __init__(self, model):
        self.model = model
        self.rope = librope.Rope.from_config(CONFIG, layout="thd")

        def norm(weight):
            return librope.Norm(weight, kind="rms", eps=CONFIG["rms_norm_eps"])

        memory = np.zeros((LAYERS, 2, PAGES, PAGE_SIZE, KV_HEADS, DIM), np.float32)
        self.norms = [librope.Norms(norm(w["q_norm"]), norm(w["k_norm"])) for w in model.layers]
        self.caches = [librope.KVCache(k, v, layout="nhd") for k, v in memory]
        self.free = list(np.random.default_rng(1).permutation(PAGES))

    def generate(self, prompts, count):
        """The ids that follow each prompt."""
        ids, pages = [list(prompt) for prompt in prompts], [[] for _ in prompts]
        starts = np.zeros(len(prompts), np.int32)  # tokens of each sequence that are in the cache
        for _ in range(count):
            new = [own[start:] for own, start in zip(ids, starts, strict=True)]
            for own, table in zip(ids, pages, strict=True):
                while len(table) * PAGE_SIZE < len(own):
                    table.append(self.free.pop())
            logits = self.step(new, starts, pages)
            starts = starts + np.array([len(own) for own in new], np.int32)
            for own, best in zip(ids, logits.argmax(-1), strict=True):
                own.append(int(best))
        return [own[-count:] for own in ids]

    def step(self, new, starts, pages):
        """Logits after the last new token of each sequence."""
        ends = np.cumsum([len(own) for own in new])
        cu_seqlens = np.concatenate([[0], ends]).astype(np.int32)
        width = max(len(own) for own in pages)
        table = np.array([own + [-1] * (width - len(own)) for own in pages], np.int32)

        def attend(layer, q, k, v):
            cache = self.caches[layer]
            where = cache.at(page_table=table, starts=starts)
            self.rope.apply_qk_(
                q, k, offsets=starts, cu_seqlens=cu_seqlens, v=v, cache=where, norms=self.norms[layer]
            )
            return np.concatenate([
                attention(rows, *(x[own].reshape(-1, KV_HEADS, DIM)[: start + len(rows)] for x in (cache.k, cache.v)))
                for rows, own, start in zip(np.split(q, ends[:-1]), pages, starts, strict=True)
            ])  # fmt: skip

        return self.model.logits(np.concatenate(new), ends - 1, attend)


def plain_logits(model, ids):
    """After the last of these ids: nothing of librope, every token anew."""
    inv_freq = CONFIG["rope_theta"] ** -(np.arange(0, DIM, 2) / DIM)
    angles = np.arange(len(ids))[:, None, None] * inv_freq
    cos, sin = (np.concatenate([x, x], -1).astype(np.float32) for x in (np.cos(angles), np.sin(angles)))

    def rotate(x, weight):
        x = rms_norm(x, weight)
        x0, x1 = np.split(x, 2, -1)
        return x * cos + np.concatenate([-x1, x0], -1) * sin

    def attend(layer, q, k, v):
        weights = model.layers[layer]
        return attention(rotate(q, weights["q_norm"]), rotate(k, weights["k_norm"]), v)

    return model.logits(ids, [-1], attend)[0]


def main():
    model, count = Qwen(seed=11), 12
    random = np.random.default_rng(2)
    prompts = [random.integers(VOCABULARY, size=length).tolist() for length in (5, 17, 1, 8)]
    closest = np.inf
    for prompt, found in zip(prompts, Engine(model).generate(prompts, count), strict=True):
        ids = list(prompt)
        for given in found:
            logits = plain_logits(model, ids)
            second, best = np.sort(logits)[-2:]
            closest = min(closest, best - second)
            assert given == logits.argmax(), (prompt, found)
            ids.append(given)
        print(f"{len(prompt):2} tokens, then", *found)
    print(f"the tokens of plain code, whose two best logits are never closer than {closest:.1e}")
    assert closest > 1e-3  # far more than sums in another order may change


if __name__ == "__main__":
    main()
