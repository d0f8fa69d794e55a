"""patch(norms=True) where norms are more than a module with a weight that stays: computed weights, weights of another
shape, and hooks of all modules."""

import threading

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

import librope.transformers as lt  # noqa: E402
from librope.transformers import _norms  # noqa: E402
from test_transformers import IDS  # noqa: E402
from test_transformers_norms import attention, clean, fused, lt_off, make  # noqa: E402, F401  (fixtures)

torch.set_num_threads(1)


class Times(torch.nn.Module):
    """A parametrization by a number that changes."""

    factor = 1.0

    def forward(self, weight):
        return weight * self.factor


@pytest.mark.parametrize("patched_first", [True, False])
@torch.no_grad()
def test_weights_that_are_computed(patched_first, fused):
    """They are another tensor in every call, often where the last one was."""
    model = make("qwen3")
    if patched_first:
        lt.patch(model, norms=True)
    times = [Times(), Times()]
    for layer, by in zip(attention(model), times, strict=True):
        torch.nn.utils.parametrize.register_parametrization(layer.q_norm, "weight", by)
    if not patched_first:
        assert "its norm has a weight that is no parameter" in str(lt.patch(model, norms=True))
    fused.clear()
    for factor in range(1, 9):
        times[0].factor = times[1].factor = float(factor)
        got = model(IDS).logits
        with lt_off(model):
            assert torch.equal(got, model(IDS).logits)
    assert not fused


@torch.no_grad()
def test_norms_are_made_of_the_tensors_that_they_are_known_by(fused, monkeypatch):
    """Of those that a module gave when it was asked for their addresses, whatever it gives when it is asked again."""
    model = make("qwen3")
    lt.patch(model, norms=True)
    monkeypatch.setattr(_norms, "_is_bare", lambda norm: True)
    one, given = attention(model)[0].q_norm, []

    def weight(norm):
        if norm is not one:
            return norm._parameters["weight"]
        given.append(norm._parameters["weight"] * 2)
        return given[-1]

    monkeypatch.setattr(type(one), "weight", property(weight), raising=False)
    for _ in range(2):
        fused.clear(), given.clear()
        model(IDS)
        assert fused[0].q.weight.data_ptr() == given[0].data_ptr()


def test_weights_that_move_while_another_thread_reads_them(fused, monkeypatch):
    """No thread norms by those of before."""
    model = make("qwen3")
    lt.patch(model, norms=True)
    inside, go = threading.Event(), threading.Event()

    @torch.no_grad()
    def run():
        return model(IDS).logits

    def held(norms):
        if threading.current_thread() is thread and not inside.is_set():
            inside.set()
            assert go.wait(60)
        return real(norms)

    before, real = run(), _norms.read_once
    monkeypatch.setattr(_norms, "read_once", held)
    for layer in attention(model):
        layer.q_norm.weight.data = layer.q_norm.weight.data * 5
    thread = threading.Thread(target=run)
    thread.start()
    try:
        assert inside.wait(60)
        got = run()
    finally:
        go.set()
        thread.join()
    assert len(fused) == 3 * 2 + 3 * 2  # patch tries each layer three times
    assert torch.equal(got, run()) and not torch.allclose(got, before, 1e-3, 1e-3)


@torch.no_grad()
def test_weights_that_move_as_they_are_read(fused, monkeypatch):
    """By another thread, after their addresses were asked for: norms are known by the memory that they have."""
    model = make("qwen3")
    lt.patch(model, norms=True)
    weight = attention(model)[0].q_norm.weight
    first, second, real = weight.data, weight.data * 5, _norms.Plan._key
    want = model(IDS).logits
    weight.data = second
    model(IDS)

    def key(*args):
        found = real(*args)
        weight.data = second
        return found

    weight.data = first
    with monkeypatch.context() as moved:
        moved.setattr(_norms.Plan, "_key", key)
        model(IDS)
    weight.data = first
    assert torch.equal(model(IDS).logits, want)


@torch.no_grad()
def test_weights_of_another_shape(fused):
    """What the model's own norm broadcasts, and a memory that is larger than the weight is now."""
    model = make("qwen3")
    lt.patch(model, norms=True)
    model(IDS)
    weight = attention(model)[0].q_norm.weight
    whole = weight.data
    weight.data = whole[:1]
    fused.clear()
    got = model(IDS).logits
    assert len(fused) == 1
    with lt_off(model):
        assert torch.allclose(got, model(IDS).logits, 1e-4, 1e-4)
    weight.data = whole[:8]
    with pytest.raises(RuntimeError, match="must match the size"):
        model(IDS)


@pytest.mark.parametrize("register", ["register_module_forward_hook", "register_module_forward_pre_hook"])
@torch.no_grad()
def test_hooks_of_all_modules_see_the_norms(register, fused):
    model = make("qwen3")
    lt.patch(model, norms=True)
    norms, seen = {layer.q_norm for layer in attention(model)}, []

    def hook(module, args, *out):
        if module in norms:
            seen.append(module)
            return out[0] * 1.5 if out else (args[0] + 1,)

    fused.clear()
    before = model(IDS).logits
    assert len(fused) == 2
    handle = getattr(torch.nn.modules.module, register)(hook)
    try:
        fused.clear()
        got = model(IDS).logits
        assert len(seen) == 2 and not fused
        with lt_off(model):
            assert torch.equal(got, model(IDS).logits)
    finally:
        handle.remove()
    assert not torch.allclose(got, before, 1e-3, 1e-3)
    assert torch.equal(model(IDS).logits, before) and len(fused) == 2
