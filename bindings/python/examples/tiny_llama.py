"""A tiny llama in NumPy that generates text ids with librope: prefill, then a KV cache.

    python tiny_llama.py

Its weights are random, so it says nothing of sense; the point is where RoPE goes. At the end the
cached generation is compared with one that computes every token anew.
"""

import numpy as np

import librope

CONFIG = {
    "model_type": "llama", "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2,
    "num_hidden_layers": 2, "intermediate_size": 128, "vocab_size": 100, "rope_theta": 10000.0,
    "max_position_embeddings": 256, "rms_norm_eps": 1e-6,
}  # fmt: skip


class Llama:
    def __init__(self, config, seed=0):
        self.config = config
        self.heads, self.kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
        self.dim = config["hidden_size"] // self.heads
        self.rope = librope.Rope.from_config(config, layout="thd")  # one for all layers and lengths
        rng = np.random.default_rng(seed)
        hidden, inner = config["hidden_size"], config["intermediate_size"]

        def weight(*shape):
            return rng.standard_normal(shape, np.float32) / np.float32(shape[0] ** 0.5)

        self.embedding = weight(config["vocab_size"], hidden)
        self.layers = [
            {
                "q": weight(hidden, self.heads * self.dim),
                "k": weight(hidden, self.kv_heads * self.dim),
                "v": weight(hidden, self.kv_heads * self.dim),
                "o": weight(self.heads * self.dim, hidden),
                "gate": weight(hidden, inner), "up": weight(hidden, inner),
                "down": weight(inner, hidden),
            }
            for _ in range(config["num_hidden_layers"])
        ]  # fmt: skip

    def norm(self, x):
        return x / np.sqrt(np.mean(x * x, -1, keepdims=True) + self.config["rms_norm_eps"])

    def new_cache(self, length):
        shape = (2, length, self.kv_heads, self.dim)
        return [np.zeros(shape, np.float32) for _ in self.layers]

    def forward(self, ids, start, cache):
        """Logits of the last token. ids: [tokens], the first of them at position start."""
        x = self.embedding[ids]
        tokens, end = len(ids), start + len(ids)
        for layer, (keys, values) in zip(self.layers, cache):
            h = self.norm(x)
            q = (h @ layer["q"]).reshape(tokens, self.heads, self.dim)
            k = (h @ layer["k"]).reshape(tokens, self.kv_heads, self.dim)
            values[start:end] = (h @ layer["v"]).reshape(tokens, self.kv_heads, self.dim)
            # q in place, k straight into the cache.
            self.rope.apply_qk(q, k, start, out=(q, keys[start:end]))
            x = x + self.attention(q, keys[:end], values[:end], start) @ layer["o"]
            h = self.norm(x)
            gate = h @ layer["gate"]
            x = x + (gate / (1 + np.exp(-gate)) * (h @ layer["up"])) @ layer["down"]
        return self.norm(x[-1]) @ self.embedding.T

    def attention(self, q, keys, values, start):
        group = self.heads // self.kv_heads
        keys, values = np.repeat(keys, group, 1), np.repeat(values, group, 1)
        scores = np.einsum("thd,shd->hts", q, keys) / np.float32(self.dim**0.5)
        future = np.arange(len(keys)) > start + np.arange(len(q))[:, None]
        scores = np.where(future, -np.inf, scores)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        return np.einsum("hts,shd->thd", weights, values).reshape(len(q), -1)

    def generate(self, prompt, count):
        """Greedy, one token at a time, with a KV cache."""
        cache = self.new_cache(len(prompt) + count)
        ids, start = list(prompt), 0
        while len(ids) < len(prompt) + count:
            logits = self.forward(np.array(ids[start:]), start, cache)
            start = len(ids)
            ids.append(int(logits.argmax()))
        return ids

    def generate_anew(self, prompt, count):
        """The same without a cache."""
        ids = list(prompt)
        for _ in range(count):
            ids.append(int(self.forward(np.array(ids), 0, self.new_cache(len(ids))).argmax()))
        return ids


def main():
    model = Llama(CONFIG)
    prompt = [3, 14, 15, 92, 65]
    ids = model.generate(prompt, 20)
    print("prompt   ", prompt)
    print("generated", ids[len(prompt) :])
    assert ids == model.generate_anew(prompt, 20)
    print("the same without a cache")
    return ids


if __name__ == "__main__":
    main()
