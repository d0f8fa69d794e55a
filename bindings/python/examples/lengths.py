"""LongRoPE and dynamic NTK: frequencies that follow from the length of the sequence."""

import numpy as np

import librope

CONFIG = {
    "model_type": "phi3", "hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 2,
    "max_position_embeddings": 131072, "rope_theta": 10000.0,
    "original_max_position_embeddings": 4096,
    "rope_scaling": {
        "type": "longrope",
        "short_factor": [1, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7],
        "long_factor": [1, 2, 4, 8, 16, 24, 32, 64],
    },
}  # fmt: skip

model = librope.Model(CONFIG)
made: list[librope.Rope] = []


def rope_for(seq_len: int) -> librope.Rope:
    """seq_len: tokens of the sequence when attention runs, prompt and decoded ones together."""
    for rope in made:
        if seq_len >= rope.valid_from and (rope.valid_below is None or seq_len < rope.valid_below):
            return rope
    made.append(model.rope(seq_len=seq_len, layout="bshd"))
    return made[-1]


short, long = rope_for(1), rope_for(131072)
assert rope_for(4096) is short and rope_for(4097) is long
print(f"the frequencies change at {short.valid_below} tokens")

# A decode step of sequences on both sides: one Rope with both sets, and the set of each sequence.
both = librope.Rope.sets([short, long])
past = np.array([100, 4095, 90000], np.int32)
sets = (past + 1 >= short.valid_below).astype(np.int32)
q = np.random.default_rng(0).standard_normal((3, 1, 4, 16), np.float32)
rotated, _ = both.apply_qk(q, None, offsets=past, freq_sets=sets)
for s in range(3):
    alone, _ = rope_for(int(past[s]) + 1).apply_qk(q[s : s + 1], None, int(past[s]))
    assert np.array_equal(rotated[s], alone[0])

# A sequence has grown to the change. Its keys take the other frequencies in the slots of the cache, by one call of
# both sets, and are those of a sequence that was long from the start. (Engines that leave them need no call.)
mover = both.replace(rounding="float32")  # of moves, whatever the model's rounding is
past = range(4096)
x = np.random.default_rng(1).standard_normal((1, len(past), 2, 16), np.float32)
keys = short.apply(x, 0)  # as they are cached: [pages, page_size, heads, head_dim]
cache = librope.KVCache(keys, layout="nhd", starts=0)
mover.move(cache, past, past, freq_sets=[1], from_freq_sets=[0])
direct = long.apply(x, 0)
print(f"keys that have moved differ from them by at most {np.abs(keys - direct).max():.1e}")
assert np.abs(keys - direct).max() < 1e-5
