"""Shards of torch tensors: gradients, compiled code, and the orders of PyTorch's own load balancers."""

import librope
import pytest

torch = pytest.importorskip("torch")

DIM, HEADS = 16, 2
ROPE = librope.Rope(head_dim=DIM, theta=10000.0, pairing="halves", layout="bshd")


def values(tokens, dtype=torch.float32):
    x = torch.arange(2 * tokens * HEADS * DIM) % 251 - 100
    return x.to(dtype).reshape(2, tokens, HEADS, DIM)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("scheme", ["contiguous", "zigzag", "striped"])
def test_ranks_together_have_the_bits_of_one_call(dtype, scheme):
    x = values(16, dtype)
    x.requires_grad_()
    whole = ROPE.apply(x, 9)
    weight = values(16, dtype).flip(1)
    (whole * weight).sum().backward()
    for rank in range(4):
        shard = librope.Shard(scheme, rank, 4)
        numbers = torch.from_numpy(shard.numbers(4))
        own = x.detach()[:, numbers].requires_grad_()
        rotated = ROPE.apply(own, 9, shard=shard)
        (rotated * weight[:, numbers]).sum().backward()
        assert torch.equal(rotated, whole[:, numbers])
        assert torch.equal(own.grad, x.grad[:, numbers])


def test_compiled_code_keeps_the_shard():
    x = values(8)
    shard = librope.Shard("zigzag", 1, 2, inner=librope.Shard("contiguous", 0, 2))

    def rotate(q, offsets):
        q, _ = ROPE.apply_qk(q, None, offsets=offsets, shard=shard)
        return q * 2

    offsets = torch.tensor([5, 70])
    compiled = torch.compile(rotate, fullgraph=True)
    assert torch.equal(compiled(x, offsets), rotate(x, offsets))

    def in_place(q):
        ROPE.apply_(q, 3, shard=shard)
        return q + 1

    assert torch.equal(torch.compile(in_place, fullgraph=True)(x.clone()), in_place(x.clone()))


def test_what_is_refused_with_a_gradient():
    x = values(3).requires_grad_()
    shard = librope.Shard("zigzag", 0, 2)
    with pytest.raises(ValueError, match=r"tokens \(3\) must be a multiple of 2"):
        ROPE.apply(x, 0, shard=shard)
    with pytest.raises(ValueError, match="shard= is not for positions as an array"):
        ROPE.apply(x, torch.arange(3), shard=shard)
    with pytest.raises(ValueError, match="shard= is not for operation 'shift'"):
        ROPE.replace(angle="exact").apply(x, 1, operation="shift", shard=shard)
    with pytest.raises(TypeError, match="shard is a int"):
        ROPE.apply(x, 0, shard=1)
    meta = torch.empty(2, 4, HEADS, DIM, device="meta")
    assert ROPE.apply(meta, 0, shard=shard).shape == meta.shape


def test_zigzag_is_the_head_tail_order_of_pytorch():
    module = pytest.importorskip("torch.distributed.tensor.experimental._context_parallel._load_balancer")
    for ranks in (1, 2, 3, 4, 8):
        length = 6 * ranks
        order = module._HeadTailLoadBalancer(length, ranks, "cpu")._generate_indices().flatten()
        for rank in range(ranks):
            numbers = librope.Shard("zigzag", rank, ranks).numbers(length // ranks)
            assert order.chunk(ranks)[rank].tolist() == numbers.tolist()


@pytest.mark.skipif(torch.__version__ < "2.15", reason="torch 2.11 has document by document what 2.15 has rank by rank")
def test_zigzag_of_documents_is_that_of_pytorch():
    module = pytest.importorskip("torch.distributed.tensor.experimental._context_parallel._load_balancer")
    ranks, lengths = 2, [8, 4, 16]
    order = module._PerDocumentHeadTailLoadBalancer([lengths], ranks, "cpu")._generate_indices().flatten()
    cuts = [0, 8, 12, 28]
    for rank in range(ranks):
        shard = librope.Shard("zigzag", rank, ranks, per_document=True)
        numbers = shard.numbers(14, cu_seqlens=cuts)
        assert order.chunk(ranks)[rank].tolist() == numbers.tolist()


@pytest.fixture
def mesh():
    """Process 5 of 8, in a mesh of 2 x 4; nothing is sent."""
    fake = pytest.importorskip("torch.testing._internal.distributed.fake_pg")
    dist = torch.distributed
    dist.init_process_group("fake", rank=5, world_size=8, store=fake.FakeStore())
    yield torch.distributed.device_mesh.init_device_mesh("cpu", (2, 4), mesh_dim_names=("ring", "ulysses"))
    dist.destroy_process_group()


def test_a_mesh_says_who_this_process_is(mesh):
    ulysses = librope.Shard.of_mesh(mesh["ulysses"], "contiguous")
    assert ulysses == librope.Shard("contiguous", 1, 4)
    both = librope.Shard.of_mesh(mesh["ring"], "zigzag", inner=ulysses)
    assert both == librope.Shard("zigzag", 1, 2, inner=ulysses)
    with pytest.raises(ValueError, match="mesh has 2 dimensions"):
        librope.Shard.of_mesh(mesh, "zigzag")


def test_dtensors_know_their_tokens(mesh):
    from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

    x = values(16)
    whole = ROPE.apply(x, 9)
    for placements, part in (
        ((Shard(1), Shard(1)), slice(10, 12)),  # rank 1 of 2, then 1 of 4
        ((Replicate(), Shard(1)), slice(4, 8)),
        ((Shard(1), Replicate()), slice(8, 16)),
        ((Shard(-3), Replicate()), slice(8, 16)),
        ((Replicate(), Replicate()), slice(0, 16)),
    ):
        own = x[:, part].clone().requires_grad_()
        q = DTensor.from_local(own, mesh, placements, run_check=False)
        assert q.shape == x.shape
        rotated, k = ROPE.apply_qk(q, q, 9)
        assert rotated.placements == q.placements and rotated.shape == x.shape
        assert torch.equal(rotated.to_local(), whole[:, part])
        assert torch.equal(k.to_local(), whole[:, part])
        rotated.to_local().sum().backward()
        ones = ROPE.apply(torch.ones_like(x), 9, operation="backward")
        assert torch.equal(own.grad, ones[:, part])

    heads = DTensor.from_local(x[:, :, :1], mesh, (Shard(2), Replicate()), run_check=False)
    assert torch.equal(ROPE.apply(heads, 9).to_local(), whole[:, :, :1])

    q = DTensor.from_local(x[:, :2], mesh, (Shard(1), Shard(1)), run_check=False)
    moved = ROPE.apply(x, 9, operation="shift")
    for distance in (9, torch.tensor(9)):
        assert torch.equal(ROPE.apply(q, distance, operation="shift").to_local(), moved[:, :2])
    with pytest.raises(NotImplementedError, match="^positions as an array are not available for operation 'shift'"):
        ROPE.apply(q, torch.full((16,), 9), operation="shift")
    k = DTensor.from_local(x, mesh, (Replicate(), Replicate()), run_check=False)
    with pytest.raises(ValueError, match="tokens are placed differently"):
        ROPE.apply_qk(q, k, 0)
    with pytest.raises(TypeError, match="k is a Tensor"):
        ROPE.apply_qk(q, x, 0)
    with pytest.raises(ValueError, match="the placements of a DTensor"):
        ROPE.apply_qk(q, None, 0, shard=librope.Shard("contiguous", 0, 2))
    partial = DTensor.from_local(x, mesh, (Partial(), Replicate()), run_check=False)
    with pytest.raises(NotImplementedError, match="q is placed as"):
        ROPE.apply(partial, 0)
    channels = DTensor.from_local(x[..., :8], mesh, (Shard(3), Replicate()), run_check=False)
    with pytest.raises(NotImplementedError, match="q is placed as"):
        ROPE.apply(channels, 0)


def test_results_of_dtensors_have_the_strides_of_their_parts(mesh):
    """q may be a part of a packed QKV, or expanded: new parts have no gaps."""
    from torch.distributed.tensor import DTensor, Replicate, Shard

    placements = (Shard(1), Replicate())
    packed = DTensor.from_local(values(8).repeat(1, 1, 3, 1), mesh, placements, run_check=False)
    one = DTensor.from_local(values(8)[:, :, :1], mesh, placements, run_check=False)
    turned = DTensor.from_local(values(8).transpose(1, 2), mesh, (Shard(2), Replicate()), run_check=False)
    for q, axes, layout in (
        (packed[:, :, :HEADS], (0, 1, 2, 3), "bshd"),
        (one.expand(2, 16, HEADS, DIM), (0, 1, 2, 3), "bshd"),
        (turned, (0, 2, 1, 3), "bhsd"),  # where tokens lie before heads
    ):
        result = ROPE.apply(q, 9, layout=layout)
        assert result.shape == q.shape
        dense = result.permute(axes)
        assert dense.is_contiguous() and dense.to_local().is_contiguous()
        assert dense.view(*dense.shape[:2], -1).shape == (*dense.shape[:2], dense.shape[2] * DIM)


def test_positions_of_batch_rows_are_those_that_are_here(mesh):
    from torch.distributed.tensor import DTensor, Replicate, Shard

    x = values(5)
    q = DTensor.from_local(x, mesh, (Shard(0), Replicate()), run_check=False)
    own = torch.stack([torch.arange(5), torch.arange(5) + 7])
    assert torch.equal(ROPE.apply(q, own).to_local(), ROPE.apply(x, own))
    assert torch.equal(ROPE.apply(q, own[:1]).to_local(), ROPE.apply(x, own[:1]))
    with pytest.raises(ValueError, match=r"positions has shape \(4, 5\).* the 2 rows that this process has of 4"):
        ROPE.apply(q, own.repeat(2, 1))


def test_what_is_not_offered_for_dtensors_is_said(mesh):
    from torch.distributed.tensor import DTensor, Replicate

    q = DTensor.from_local(values(5), mesh, (Replicate(), Replicate()), run_check=False)
    norms = librope.Norms(librope.Norm(torch.ones(DIM), kind="rms", eps=1e-6))
    for call in (
        lambda: ROPE.apply(q, 3, out=torch.empty_like(q)),
        lambda: ROPE.apply_(q, 3),
        lambda: ROPE.apply_qk(q, None, 3, norms=norms),
    ):
        with pytest.raises(NotImplementedError, match="DTensors? .*only apply_qk that makes new ones"):
            call()
