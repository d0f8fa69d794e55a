"""Keys that move inside a cache: the oldest tokens leave, the others take their positions."""

import numpy as np

import librope

rope = librope.Rope(head_dim=64, theta=10000.0, pairing="halves", angle="exact", layout="thd")
keys = np.random.default_rng(0).standard_normal((1000, 8, 64), np.float32)
cache = rope.apply(keys, 0)  # tokens 0 to 999

drop = 200
cache[:-drop] = cache[drop:]
kept = cache[:-drop]
rope.apply_(kept, -drop, operation="shift")  # one distance for all; an array: one for each

direct = rope.apply(keys[drop:], 0)  # what a fresh run over the kept tokens would have cached
print(f"largest difference {np.abs(kept - direct).max():.1e}")
assert np.abs(kept - direct).max() < 2e-6

# In the pages of a cache, from known positions to others, which need no exact angles.
paged = librope.Rope(head_dim=64, theta=10000.0, pairing="halves", layout="thd")
pages = np.zeros((70, 16, 8, 64), np.float32)  # [pages, page_size, heads, head_dim]
slots = np.random.default_rng(1).permutation(70 * 16)[:1000]
store = librope.KVCache(pages, layout="nhd", slots=slots)
paged.apply_qk(None, keys, 0, cache=store)
paged.move(store.at(slots=slots[drop:]), np.arange(1000 - drop), np.arange(drop, 1000))

moved = pages.reshape(-1, 8, 64)[slots[drop:]]
direct = paged.apply(keys[drop:], 0)
print(f"in pages {np.abs(moved - direct).max():.1e}")
assert np.abs(moved - direct).max() < 2e-6

# Attention sinks (StreamingLLM): the first four stay, the window behind the tokens that leave moves down in its
# slots, and new tokens go to the slots that are free.
sinks, left, kept = slots[drop : drop + 4], slots[drop + 4 : drop + 104], slots[drop + 104 :]
mover = paged.replace(rounding="float32")  # of moves, whatever the model's rounding is
mover.move(store.at(slots=kept), range(4, 4 + len(kept)), range(104, 104 + len(kept)))
new = np.random.default_rng(2).standard_normal((100, 8, 64), np.float32)
paged.apply_qk(None, new, 4 + len(kept), cache=store.at(slots=left))

moved = pages.reshape(-1, 8, 64)[np.concatenate([sinks, kept, left])]
direct = paged.apply(np.concatenate([keys[drop : drop + 4], keys[drop + 104 :], new]), 0)
print(f"behind sinks {np.abs(moved - direct).max():.1e}")
assert np.abs(moved - direct).max() < 2e-6
