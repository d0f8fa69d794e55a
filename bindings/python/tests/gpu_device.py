"""What test_gpu_*.py share: their device, calls there and on the CPU, and comparisons of the two bit for bit.

LIBROPE_TEST_GPU is the device, "cuda" if it is not given. With "cpu" all that needs no CUDA runs there, where no GPU
is at hand: a rehearsal, so that tests which meet a GPU have run before."""

import os

import pytest

torch = pytest.importorskip("torch")

import librope  # noqa: E402
import librope.torch  # noqa: E402
from librope import KVCache, Scale  # noqa: E402

DEVICE = torch.device(os.environ.get("LIBROPE_TEST_GPU", "cuda"))
ON_CUDA = DEVICE.type == "cuda"

if ON_CUDA:
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device", allow_module_level=True)
    DEVICE = torch.device("cuda", torch.cuda.current_device())
    try:
        librope.Rope(head_dim=2, theta=1.0, pairing="halves")._context(DEVICE.index)
    except RuntimeError as e:
        if "without CUDA" not in str(e):  # a failure of the library or the driver is one
            raise
        pytest.skip(str(e), allow_module_level=True)

torch.set_num_threads(1)
cuda_only = pytest.mark.skipif(not ON_CUDA, reason="streams, graphs and arrays of CUDA")

DIM, HEADS, GROUPS, BATCH = 64, 8, 2, 2
DTYPES = [torch.float32, torch.float16, torch.bfloat16]
IDS = ["float32", "float16", "bfloat16"]
ROPES = {
    "halves": librope.Rope(head_dim=DIM, theta=1e4, pairing="halves", layout="bshd"),
    "interleaved": librope.Rope(head_dim=DIM, theta=1e4, pairing="interleaved", layout="bshd", rounding="eager"),
    "part": librope.Rope(head_dim=DIM, rotary_dim=24, theta=5e5, pairing="halves", layout="bshd", angle="exact"),
    "yarn": librope.Rope(head_dim=DIM, theta=1e4, pairing="interleaved", layout="bshd", scaling="yarn", factor=8.0,
                         original_max_position_embeddings=64),
}  # fmt: skip
ROPE = ROPES["halves"]


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def there(x):
    """A copy on the device."""
    return x.to(DEVICE, copy=True)


def here(x):
    """A copy where it is: of what the CPU is given."""
    return x.clone()


def bits(x):
    return x.detach().cpu().contiguous().view(torch.uint8)


def same(got, want):
    """Bit for bit, wherever they are."""
    assert len(got) == len(want)
    for g, w in zip(got, want, strict=True):
        assert g.dtype == w.dtype and g.shape == w.shape
        assert torch.equal(bits(g), bits(w))


def check(run, *tensors):
    """run of copies on the device gives what run of copies on the CPU gives."""
    want = run(*map(here, tensors))
    got = run(*map(there, tensors))
    assert all(x.device == DEVICE for x in got)
    same(got, want)
    return got


def qk(tokens, dtype=torch.float32, batch=BATCH):
    return tuple(torch.randn(batch, tokens, heads, DIM).to(dtype) for heads in (HEADS, GROUPS))


def wait_long():
    """Work for the current stream, some hundredths of a second long: who does not wait for it is early."""
    torch.cuda._sleep(60_000_000)


@pytest.fixture
def compiler():
    """torch.compile without what it knows from before."""
    if not ON_CUDA:
        pytest.skip("minutes of compilers; test_torch*.py and test_transformers*.py compile on the CPU")
    torch._dynamo.reset()
    with torch._inductor.config.patch(force_disable_caches=True):
        yield torch.compile


PAGES, PAGE = 16, 8
CODES = [torch.bfloat16, torch.float8_e4m3fn, torch.int8, torch.float8_e5m2, torch.uint8]
CODE_IDS = ["bfloat16", "e4m3", "int8", "e5m2", "q8_0"]


def memory(dtype, where, value=0):
    """A memory of keys or values, and the array of its scales."""
    channels = DIM // 32 * 34 if dtype == torch.uint8 else DIM
    keys = torch.full((PAGES, PAGE, GROUPS, channels), value, dtype=torch.uint8).to(dtype)
    return where(keys), where(torch.zeros(PAGES, PAGE, GROUPS))


def scale_of(dtype, scales):
    if dtype in (torch.float32, torch.bfloat16, torch.uint8):
        return None
    return Scale(0.03) if dtype == torch.float8_e5m2 else Scale(data=scales, computed=True)


def cache_of(dtype, where):
    """A KVCache, and all of its memory."""
    (keys, k_scales), (values, v_scales) = (memory(dtype, where) for _ in "kv")
    cache = KVCache(
        keys, values, layout="nhd", k_scale=scale_of(dtype, k_scales), v_scale=scale_of(dtype, v_scales)
    )  # fmt: skip
    return cache, [keys, values, k_scales, v_scales]


SLOTS = torch.tensor([[3, 90, -1, 0, 23], [8, 127, 64, 65, -7]])
