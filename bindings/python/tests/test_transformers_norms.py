"""patch(norms=True): norm and rotation of q and k in one call, in tiny random models."""

import copy
import functools

import pytest

torch = pytest.importorskip("torch")
tf = pytest.importorskip("transformers")

from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

import librope  # noqa: E402
import librope.torch  # noqa: E402
import librope.transformers as lt  # noqa: E402
from librope.transformers import _norms  # noqa: E402
from test_transformers import HEAD, IDS, TINY  # noqa: E402

torch.set_num_threads(1)
FAMILIES = {
    "qwen3": ("Qwen3Config", HEAD, "rms, eager rounding"),
    "gemma3": ("Gemma3TextConfig", HEAD, "rms_one_plus, rounded rounding"),
    "olmo2": ("Olmo2Config", {}, "rms, rounded rounding"),
    "cohere": ("CohereConfig", dict(use_qk_norm=True), "layer, rounded rounding"),
}
EXAONE4 = dict(HEAD, num_hidden_layers=4, sliding_window=8, sliding_window_pattern=4)


@pytest.fixture(autouse=True)
def clean():
    yield
    lt.unpatch()


@pytest.fixture
def fused(monkeypatch):
    """The norms of calls: what always falls back would pass every comparison."""
    calls = []
    real = librope.torch.rotate_by_rows

    def record(*a):
        if a[11] is not None:
            calls.append(a[11].norms)
        return real(*a)

    monkeypatch.setattr(librope.torch, "rotate_by_rows", record)
    return calls


def make(family, dtype=torch.float32):
    name, extra, _ = FAMILIES.get(family) or (family, EXAONE4, "")
    torch.manual_seed(0)
    config = getattr(tf, name)(**{**TINY, **extra})
    model = tf.AutoModelForCausalLM.from_config(config, attn_implementation="eager", dtype=dtype).eval()
    for layer in attention(model):
        for norm in (layer.q_norm, layer.k_norm):
            norm.weight.data.normal_()
    return model


def attention(model):
    return [m for m in model.modules() if hasattr(m, "q_norm")]


def apart(monkeypatch, model):
    """librope's norms in place of the modules' own, each in a call of its own."""

    def use(module):
        kind, rounding, eps = _norms.recognise(module)
        whole = module.weight.dim() == 1 and len(module.weight) > 16
        weight = module.weight.view(-1, 16) if whole else module.weight
        norm = librope.Norm(weight, kind=kind, eps=eps, rounding=rounding, span="all_heads" if whole else "head")
        rope = librope.Rope(head_dim=16, scaling="nope", layout="bshd")

        def forward(x):
            heads = x.unflatten(-1, (-1, 16)) if whole else x
            return rope.apply(heads, 0, norms=librope.Norms(q=norm)).view(x.shape)

        monkeypatch.setattr(module, "forward", forward)

    for layer in attention(model):
        use(layer.q_norm)
        use(layer.k_norm)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["f32", "bf16"])
@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_logits_and_generation(family, dtype, fused, monkeypatch):
    """Those of the model, but for the order in which squares are summed; bit for bit those of the norm
    in a call of its own, then the rotation."""
    model = make(family, dtype)
    mask = torch.ones_like(IDS)
    mask[0, :3] = 0

    def run():
        return (
            model(IDS).logits,
            model(IDS, attention_mask=mask).logits,
            model.generate(IDS, max_new_tokens=4, min_new_tokens=4, do_sample=False),
        )

    plain = run()
    with lt.patched(model, norms=True) as report:
        assert f"Attention x 2: normed in the same call: {FAMILIES[family][2]}" in str(report)
        fused.clear()
        got = run()
    assert len(fused) == len(attention(model)) * (1 + 1 + 4)
    for g, w in zip(got[:2], plain[:2], strict=True):
        size = float(w.abs().max())
        if dtype == torch.float32:
            assert float((g - w).abs().max()) <= 2e-6 * size
        else:
            assert float((g != w).float().mean()) < 0.01 and float((g - w).abs().max()) <= 2**-6 * size
    assert torch.equal(got[2], plain[2])

    if family == "olmo2" and dtype == torch.bfloat16:
        return  # cosines are f32: patch() alone converts q and k before they turn, and rounds products
    apart(monkeypatch, model)
    with lt.patched(model):
        for g, w in zip(got, run(), strict=True):
            assert torch.equal(g, w)
    assert len(fused) == len(attention(model)) * (1 + 1 + 4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["f32", "bf16"])
@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_bits_are_the_models_where_sums_are_exact(family, dtype, fused):
    """q and k are small whole numbers, whose squares have one sum in any order: all else is rounded as
    the layer rounds it."""
    model = make(family, dtype)
    layer = attention(model)[0]
    torch.manual_seed(2)
    for linear in (layer.q_proj, layer.k_proj):
        linear.weight.zero_().scatter_(1, torch.randint(64, (len(linear.weight), 4)), 1)
    hidden = torch.randint(-3, 4, (2, 9, 64)).to(dtype)
    rows = tuple(x.to(dtype) for x in tables(9))
    want = layer(hidden, position_embeddings=rows, attention_mask=None)[0]
    lt.patch(model, norms=True)
    assert torch.equal(layer(hidden, position_embeddings=rows, attention_mask=None)[0], want)
    assert len(fused) == 3 * len(attention(model)) + 1  # patch tries each layer three times


def tables(tokens, pairs=8):
    angles = torch.randn(1, tokens, pairs)
    return tuple(torch.cat([t, t], -1) for t in (angles.cos(), angles.sin()))


@torch.no_grad()
def test_layers_without_a_rotation_keep_their_norms(fused):
    """EXAONE 4 has NoPE layers: their norms would be lost."""
    model = make("Exaone4Config")
    want = model(IDS).logits
    report = lt.patch(model, norms=True)
    assert [(e.layers, bool(e.norms)) for e in report.norms] == [(3, True), (1, False)]
    assert "Exaone4Attention x 1: left alone: its norms do not come directly before the rotation" in str(report)
    fused.clear()
    torch.testing.assert_close(model(IDS).logits, want, rtol=1e-5, atol=1e-5)
    assert len(fused) == 3


def test_unpatch_restores(fused):
    model = make("qwen3")
    cls = type(attention(model)[0])
    before = dict(vars(cls))
    lt.patch(model, norms=True)
    lt.patch(model, norms=True)
    assert vars(cls)["forward"] is not before["forward"]
    lt.unpatch(model)
    assert vars(cls)["forward"] is not before["forward"]
    lt.unpatch(model)
    assert dict(vars(cls)) == before
    fused.clear()
    with torch.no_grad():
        model(IDS)
    assert not fused
    lt.patch(model, norms=True)
    ours = cls.forward
    try:
        cls.forward = mine = lambda *a, **k: ours(*a, **k)
        with pytest.warns(librope.LibropeWarning, match=r"Qwen3Attention.forward was replaced by somebody else"):
            lt.unpatch(model)
        assert cls.forward is mine
        fused.clear()
        with torch.no_grad():
            model(IDS)
        assert not fused
    finally:
        cls.forward = before["forward"]


@torch.no_grad()
def test_norms_are_taken_back_with_the_patch_that_asked_for_them(fused):
    """Whatever else patches the function; layers of other models keep theirs."""
    model, other = make("qwen3"), make("qwen3")

    def count():
        fused.clear()
        model(IDS), other(IDS)
        return len(fused)

    lt.patch(model)
    with lt.patched(model, norms=True):
        assert count() == 2
        with lt.patched(other, norms=True):
            lt.patch(model, norms=True)
            assert count() == 4
        assert count() == 2
        lt.unpatch(other)  # which was not patched: the last that is, of the same functions
    assert count() == 0
    layer = attention(model)[0]
    lt.patch(model, norms=True)
    one, layer.q_norm = layer.q_norm, copy.deepcopy(layer.q_norm)
    assert count() == 1
    with lt.patched(model, norms=True):
        assert count() == 2
    assert count() == 1
    layer.q_norm = one
    assert count() == 2


def counted(function, calls):
    """As transformers' `deprecate_kwarg`, which renames an argument of the forward of newer releases."""

    @functools.wraps(function)
    def wrapped(*args, **kwargs):
        calls.append("hidden" in kwargs)
        if "hidden" in kwargs:
            kwargs["hidden_states"] = kwargs.pop("hidden")
        return function(*args, **kwargs)

    return wrapped


@pytest.mark.parametrize("times", [1, 2])
def test_decorators_of_a_forward_stay_around_it(times, fused, monkeypatch):
    model = make("qwen3")
    layer = attention(model)[0]
    cls, calls = type(layer), []
    for _ in range(times):
        monkeypatch.setattr(cls, "forward", counted(cls.forward, calls))
    given = {"position_embeddings": model.model.rotary_emb(torch.zeros(1, 5, 64), torch.arange(5)[None])}
    x = torch.randn(1, 5, 64)
    with torch.no_grad():
        before = layer(hidden=x, attention_mask=None, **given)[0]
        assert "normed in the same call" in str(lt.patch(model, norms=True))
        fused.clear(), calls.clear()
        after = layer(hidden=x, attention_mask=None, **given)[0]
    assert len(fused) == 1
    assert calls == [True, False][:times]
    assert torch.allclose(before, after, 1e-4, 1e-5)
    lt.unpatch(model)


def test_decorators_that_hide_what_they_call_are_left_alone(fused, monkeypatch):
    model = make("qwen3")
    cls = type(attention(model)[0])

    class Hidden:
        def __init__(self, function):
            functools.update_wrapper(self, function)

        def __get__(self, layer, owner):
            return self if layer is None else functools.partial(self.__wrapped__, layer)

    forward = cls.forward
    monkeypatch.setattr(cls, "forward", Hidden(forward))
    assert "left alone: its forward has a decorator that is not known" in str(lt.patch(model, norms=True))
    lt.unpatch(model)

    later = forward

    def elsewhere(*args, **kwargs):
        return later(*args, **kwargs)  # noqa: F821

    del later
    monkeypatch.setattr(cls, "forward", functools.update_wrapper(elsewhere, forward))  # with an empty cell
    assert "left alone: its forward has a decorator that is not known" in str(lt.patch(model, norms=True))


def test_gradients_are_those_of_the_model(fused):
    model = make("qwen3")
    model(IDS, labels=IDS).loss.backward()
    want = {n: p.grad.clone() for n, p in model.named_parameters()}
    model.zero_grad()
    lt.patch(model, norms=True)
    fused.clear()
    model(IDS, labels=IDS).loss.backward()
    assert not fused
    for name, p in model.named_parameters():
        assert torch.allclose(p.grad, want[name], rtol=1e-5, atol=1e-7), name
    with torch.inference_mode():
        model(IDS)
    assert len(fused) == 2


def test_gradients_of_norms_alone(fused):
    """Nothing else is trained, so that q and k of the first layer need no gradient."""
    model = make("qwen3").requires_grad_(False)
    weights = [layer.k_norm.weight.requires_grad_() for layer in attention(model)]
    want = torch.autograd.grad(model(IDS, labels=IDS).loss, weights)
    lt.patch(model, norms=True)
    fused.clear()
    got = torch.autograd.grad(model(IDS, labels=IDS).loss, weights)
    assert not fused
    for g, w in zip(got, want, strict=True):
        torch.testing.assert_close(g, w, rtol=1e-5, atol=1e-7)


@torch.no_grad()
def test_dispatch_modes_see_the_norms(fused):
    model = make("qwen3")
    want = model(IDS).logits
    lt.patch(model, norms=True)
    fused.clear()
    with FlopCounterMode(display=False):
        assert torch.equal(model(IDS).logits, want)
    assert not fused


@torch.no_grad()
def test_weights_that_change(fused):
    """In place, by assignment, and in memory elsewhere: never those of before. Other models, also
    copies, keep their norms."""
    model = make("olmo2")
    lt.patch(model, norms=True)

    def check(model, count):
        fused.clear()
        got = model(IDS).logits
        assert len(fused) == count
        with lt_off(model):
            assert torch.allclose(got.float(), model(IDS).logits.float(), rtol=1e-2, atol=1e-2)
        return got

    seen = [check(model, 2)]
    for layer in attention(model):
        layer.q_norm.weight.data.normal_()
        layer.k_norm.weight = torch.nn.Parameter(torch.randn_like(layer.k_norm.weight))
    seen.append(check(model, 2))
    for layer in attention(model):
        layer.q_norm.weight.data = torch.randn_like(layer.q_norm.weight)
    seen.append(check(model, 2))
    assert not any(torch.allclose(a, b, 1e-2, 1e-2) for a, b in zip(seen, seen[1:]))
    check(model.to(torch.bfloat16), 2)
    check(copy.deepcopy(model), 0)
    for layer in attention(model):
        layer.q_norm.float()  # which this norm allows, and librope's does not
    check(model, 0)
    model.float()
    check(model, 2)
    hooks = [layer.q_norm.register_forward_hook(lambda *_: seen.clear()) for layer in attention(model)]
    check(model, 0)
    assert not seen
    for hook in hooks:
        hook.remove()
    check(model, 2)


@pytest.mark.parametrize("family", ["qwen3", "cohere"])  # variance_epsilon, both
@torch.no_grad()
def test_eps_and_signs_that_change(family, fused):
    """They are those of now: where librope has read others, the model's own norms are called."""
    model = make(family)
    lt.patch(model, norms=True)

    def check(count):
        fused.clear()
        got = model(IDS).logits
        assert len(fused) == count
        with lt_off(model):
            assert torch.allclose(got, model(IDS).logits, rtol=1e-4, atol=1e-4)
        return got

    first = check(2)
    eps = attention(model)[0].q_norm.variance_epsilon
    for norm in (attention(model)[0].q_norm, attention(model)[1].k_norm):
        norm.variance_epsilon = 0.5
    assert not torch.allclose(check(0), first, 1e-3, 1e-3)
    for norm in (attention(model)[0].q_norm, attention(model)[1].k_norm):
        norm.variance_epsilon = eps
    assert torch.equal(check(2), first)
    weight = attention(model)[0].q_norm.weight
    weight.data = torch._neg_view(weight.data)
    assert not torch.allclose(check(1), first, 1e-3, 1e-3)


class lt_off:
    """The model's own code, for a moment."""

    def __init__(self, model):
        self.cls = type(attention(model)[0])

    def __enter__(self):
        self.forward = self.cls.forward
        self.cls.forward = self.forward.__wrapped__

    def __exit__(self, *_):
        self.cls.forward = self.forward


@torch.no_grad()
def test_what_else_somebody_replaces_is_called(fused, monkeypatch):
    model = make("qwen3")
    module = tf.models.qwen3.modeling_qwen3
    lt.patch(model, norms=True)
    fused.clear()
    rotation, calls = module.apply_rotary_pos_emb, []
    monkeypatch.setattr(module, "apply_rotary_pos_emb", lambda *a: (calls.append(a), rotation(*a))[1])
    model(IDS)
    assert len(calls) == 2 and not fused


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@torch.no_grad()
def test_autocast(dtype, fused):
    """Its q and k are bfloat16, which weights may be, too."""
    model = make("qwen3", dtype)
    with torch.autocast("cpu", torch.bfloat16):
        want = model(IDS).logits
        lt.patch(model, norms=True)
        fused.clear()
        got = model(IDS).logits
    assert len(fused) == (2 if dtype == torch.bfloat16 else 0)
    torch.testing.assert_close(got, want, rtol=0, atol=2**-6 if fused else 0)


@torch.no_grad()
def test_cosines_that_widen_q(fused):
    """bfloat16 beside float32 gives float32 in Qwen3's function, of norms that are rounded before."""
    norm = tf.models.qwen3.modeling_qwen3.Qwen3RMSNorm(16)
    layer, x, rows = Attention(norm, "before").bfloat16().eval(), torch.randn(1, 5, 64).bfloat16(), tables(5)
    want = layer(x, rows)[0]
    lt.patch(layer, norms=True)
    fused.clear()
    got = layer(x, rows)[0]
    assert got.dtype == torch.float32 and torch.equal(got, want) and not fused


class Attention(torch.nn.Module):
    """A layer of nobody's, whose norms come where `order` says."""

    def __init__(self, norm, order, dim=16):
        super().__init__()
        self.config = tf.Qwen3Config(**{**TINY, **HEAD})
        self.head_dim, self.order = dim, order
        self.q_proj, self.k_proj = torch.nn.Linear(64, 4 * dim), torch.nn.Linear(64, 2 * dim)
        self.q_norm, self.k_norm = norm, copy.deepcopy(norm)

    def forward(self, hidden_states, position_embeddings, attention_mask=None):
        q, k = (p(hidden_states).unflatten(-1, (-1, self.head_dim)) for p in (self.q_proj, self.k_proj))
        if self.order in ("before", "scaled", "clipped", "none"):
            q, k = self.q_norm(q), self.k_norm(k)
        if self.order == "query":
            q = self.q_norm(q)
        if self.order == "scaled":
            q = 1.5 * q
        if self.order == "clipped":
            q = q.clamp(-50, 50)
        if self.order != "none":
            q, k = apply_rotary_pos_emb(q.transpose(1, 2), k.transpose(1, 2), *position_embeddings)
        if self.order == "after":
            q, k = self.q_norm(q), self.k_norm(k)
        return (torch.cat([q, k], 1 if self.order != "none" else 2),)


def apply_rotary_pos_emb(q, k, cos, sin, unsqueeze_dim=1):
    return tf.models.qwen3.modeling_qwen3.apply_rotary_pos_emb(q, k, cos, sin, unsqueeze_dim=unsqueeze_dim)


@torch.no_grad()
@pytest.mark.parametrize("order", ["before", "query", "scaled", "clipped", "after", "none"])
def test_where_the_norms_are(order, fused):
    norm = tf.models.qwen3.modeling_qwen3.Qwen3RMSNorm(16)
    layer, x, rows = Attention(norm, order).eval(), torch.randn(1, 5, 64), tables(5)
    want = layer(x, rows)[0]
    report = str(lt.patch(layer, norms=True))
    fused.clear()
    torch.testing.assert_close(layer(x, rows)[0], want, rtol=1e-5, atol=1e-5)
    assert bool(fused) == (order == "before"), report
    assert ("rms, eager rounding" in report) == (order == "before"), report
    if order == "before":  # never a norm that is lost
        for other in ("query", "after", "none"):
            layer.order = other
            with pytest.raises(RuntimeError, match=r"Attention.forward did not norm q and k directly before"):
                layer(x, rows)
        layer.order = "before"
        torch.testing.assert_close(layer(x, rows)[0], want, rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_q_and_k_are_within_the_bound_of_the_readme(fused):
    torch.manual_seed(4)
    norm = tf.models.qwen3.modeling_qwen3.Qwen3RMSNorm(128)
    norm.weight.normal_()
    layer, x, rows = Attention(norm, "before", 128).eval(), torch.randn(4, 64, 64), tables(64, 64)
    lt.patch(layer, norms=True)
    for dtype in (torch.float32, torch.bfloat16):
        layer, x, rows = layer.to(dtype), x.to(dtype), [t.to(dtype) for t in rows]
        fused.clear()
        got = layer(x, rows)[0]
        assert fused
        with lt_off(layer):
            want = layer(x, rows)[0]
        size = want.float().abs().amax(-1, keepdim=True)
        off = float(((got.float() - want.float()).abs() / size).max())
        if dtype == torch.float32:
            assert off <= 10 * 2**-24
        else:
            assert off <= 2**-7 and float((got != want).float().mean()) < 1e-4


def test_norms_that_librope_has_not(fused):
    base = tf.models.qwen3.modeling_qwen3.Qwen3RMSNorm

    class Clamped(base):
        def forward(self, x):
            return super().forward(x).clamp(-1, 1)

    class RootPlusEps(base):
        def forward(self, x):
            return self.weight * (x / (x.float().pow(2).mean(-1, keepdim=True).sqrt() + 1e-6)).to(x.dtype)

    class Elsewhere(base):
        """The rounding of nobody: of the root."""

        def forward(self, x):
            root = torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + self.variance_epsilon)
            return self.weight * (x * root.to(x.dtype))

    for cls in (Clamped, RootPlusEps, Elsewhere):
        report = str(lt.patch(Attention(cls(16), "before"), norms=True))
        assert "Attention x 1: left alone: its norm is none that librope has" in report, cls
    without_weight = Attention(torch.nn.RMSNorm(16, eps=1e-6, elementwise_affine=False), "before")
    assert "its norm has no weight or no eps" in str(lt.patch(without_weight, norms=True))
    assert "its norm is on meta" in str(lt.patch(Attention(base(16), "before").to("meta"), norms=True))
    hooked = Attention(base(16), "before")
    hooked.k_norm.register_forward_hook(lambda *_: None)
    assert "its norm has hooks, or a forward of its own" in str(lt.patch(hooked, norms=True))
    assert "no layer with q_norm and k_norm found" in str(lt.patch(torch.nn.Linear(1, 1), norms=True))
    with pytest.raises(TypeError, match="norms=True needs a model"):
        lt.patch(Attention, norms=True)


@torch.no_grad()
def test_norms_with_an_attention_of_the_gpu(fused):
    """Attention that runs on another device or dtype alone does not keep a layer from being tried."""

    def attention_of_the_gpu(*_, **__):
        raise RuntimeError("needs a GPU")

    tf.AttentionInterface.register("of_the_gpu", attention_of_the_gpu)
    model = make("qwen3")
    model.config._attn_implementation = "of_the_gpu"
    assert "normed in the same call: rms, eager rounding" in str(lt.patch(model, norms=True))
    assert model.config._attn_implementation == "of_the_gpu"


@torch.no_grad()
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("family", FAMILIES)
def test_on_a_device(family, fused):
    model, ids = make(family, torch.bfloat16).cuda(), IDS.cuda()
    plain = model(ids).logits
    report = lt.patch(model, norms=True)
    if report.left_devices:
        pytest.skip("built without CUDA")
    fused.clear()
    got = model(ids).logits
    assert len(fused) == len(attention(model))
    assert float((got - plain).abs().max()) <= 2**-6 * float(plain.abs().max())


def test_modules_of_torch(fused):
    for norm, name in (
        (torch.nn.RMSNorm(16, eps=1e-6), "rms, rounded"),
        (torch.nn.LayerNorm(16, eps=1e-5), "layer_bias, rounded"),
        (torch.nn.LayerNorm(16, eps=1e-5, bias=False), "layer, rounded"),
    ):
        layer, x, rows = Attention(norm, "before").eval(), torch.randn(2, 5, 64), tables(5)
        for parameter in (*layer.q_norm.parameters(), *layer.k_norm.parameters()):
            parameter.data.normal_()
        with torch.no_grad():
            want = layer(x, rows)[0]
            assert name in str(lt.patch(layer, norms=True))
            fused.clear()
            torch.testing.assert_close(layer(x, rows)[0], want, rtol=1e-5, atol=1e-5)
        assert fused


def test_compiled_code_keeps_its_norms(fused):
    model = make("qwen3")
    with torch.no_grad():
        want = model(IDS, use_cache=False).logits
        lt.patch(model, norms=True)
        fused.clear()
        got = torch.compile(model, backend="aot_eager", fullgraph=True)(IDS, use_cache=False).logits
    assert not fused
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)
