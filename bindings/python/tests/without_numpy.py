"""The package without NumPy: buffers in, lists out. Not a pytest file: pytest is not there either."""

import array
import importlib.util

assert importlib.util.find_spec("numpy") is None

import librope  # noqa: E402

rope = librope.Rope(head_dim=4, theta=10000.0, pairing="interleaved", layout="thd")
assert isinstance(rope.inv_freq, list) and rope.inv_freq[0] == 1.0
x = array.array("f", [1.0, 0.0, 1.0, 0.0] * 2)
view = memoryview(x).cast("B").cast("f", (2, 1, 4))
rope.apply_(view, array.array("q", [0, 0]))
assert list(x) == [1.0, 0.0, 1.0, 0.0] * 2
rope.apply_(view, 1)
assert abs(x[0] - 0.5403023) < 1e-6 and abs(x[1] - 0.8414710) < 1e-6
try:
    rope.apply(view, 1)
except TypeError as e:
    assert "out=" in str(e)
else:
    raise AssertionError("a new array without a library to make it")
ids, next_id = librope.prompt_ids([librope.PromptPart(text=1, t=1, h=1, w=2)], 4)
assert ids.tolist() == [[4, 5, 5], [4, 5, 5], [4, 5, 6]] and next_id == 7
turned = array.array("f", [1.0, 0.0, 1.0, 0.0] * 3)
three = librope.Rope(head_dim=4, theta=1e4, pairing="halves", axes=3, pair_axis=[0, 2], layout="thd")
three.apply_(memoryview(turned).cast("B").cast("f", (3, 1, 4)), ids)
assert librope.prompt_ids([])[0].shape == (3, 0)
try:
    import librope.record
except ModuleNotFoundError as e:
    assert "librope.record needs numpy, ml_dtypes, safetensors, rich, matplotlib: pip install" in str(e)
else:
    raise AssertionError("librope.record without NumPy")
