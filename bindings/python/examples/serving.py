"""A step of a serving engine: packed sequences, a fused QKV projection, layers of two kinds.

Checks that it does not matter who shares a step: each sequence gets the bits that it gets alone.
"""

import numpy as np

import librope

CONFIG = {
    "model_type": "gemma3_text", "hidden_size": 512, "num_hidden_layers": 12,
    "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 64,
    "max_position_embeddings": 131072, "rope_theta": 1000000, "rope_local_base_freq": 10000,
    "rope_scaling": {"rope_type": "linear", "factor": 8.0},
}  # fmt: skip
Q_HEADS, KV_HEADS, HEAD_DIM = 8, 2, 64

# At load time: one Rope per kind of layer.
model = librope.Model(CONFIG)  # or the path of a config.json
ropes = model.ropes(layout="thd")
print(model.layer_types, "; layer 5:", model.layer_type(5))

# A step: sequence s has past[s] tokens in the cache; its new tokens lie between two cu_seqlens.
past = np.array([0, 4000, 17], np.int32)
cu_seqlens = np.array([0, 20, 21, 22], np.int32)
random = np.random.default_rng(0)
qkv = random.standard_normal((22, Q_HEADS + 2 * KV_HEADS, HEAD_DIM), np.float32)
q = qkv[:, :Q_HEADS]  # views of the projection: nothing is copied
k = qkv[:, Q_HEADS : Q_HEADS + KV_HEADS]
before = qkv.copy()
for layer in range(len(model.layers)):
    qkv[:] = before  # stands for the projection of this layer
    ropes[model.layer_type(layer)].apply_qk_(q, k, offsets=past, cu_seqlens=cu_seqlens)
    # store k and v in the cache, attend

    rope = ropes[model.layer_type(layer)]
    for s in range(3):
        own = slice(cu_seqlens[s], cu_seqlens[s + 1])
        alone, _ = rope.apply_qk(before[own, :Q_HEADS], None, int(past[s]))
        assert np.array_equal(q[own], alone)
    assert np.array_equal(qkv[:, Q_HEADS + KV_HEADS :], before[:, Q_HEADS + KV_HEADS :])  # v
print("packed or alone: the same bits")
