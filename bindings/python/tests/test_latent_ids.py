"""Model.latent_ids: ids of latents and text, and what is refused."""


import librope
import pytest
from librope._ffi import ffi

FLUX = {"_class_name": "FluxTransformer2DModel"}
QWEN = {"_class_name": "QwenImageTransformer2DModel"}


def rows(ids):
    return [list(axis) for axis in (ids.tolist() if hasattr(ids, "tolist") else ids)]


def test_text_and_two_images_of_flux():
    ids = librope.Model(FLUX).latent_ids([(1, 2), (1, 2, 1)], text=1)
    assert rows(ids) == [[0, 0, 0, 1, 1], [0, 0, 0, 0, 1], [0, 0, 1, 0, 0]]
    assert memoryview(ids).format == "f"


def test_centred_ids_of_qwen_image():
    ids = librope.Model(QWEN).latent_ids([(3, 2)], text=2)
    assert rows(ids) == [
        [1, 2, 0, 0, 0, 0, 0, 0],
        [1, 2, -2, -2, -1, -1, 0, 0],
        [1, 2, -1, 0, -1, 0, -1, 0],
    ]


def test_coordinates_of_ltx():
    model = librope.Model({"_class_name": "LTXVideoTransformer3DModel"})
    ids = rows(model.latent_ids([(2, 1, 2)], fps=8))
    assert ids == [[-1, -1, ids[0][2], ids[0][2]], [-1] * 4, [-1, -0.96875, -1, -0.96875]]
    assert abs(ids[0][2] - (2 / 20 - 1)) < 1e-7
    ids = rows(model.latent_ids([(1, 1, 2)], fps=8, scale=(1, 1, 1024)))
    assert ids == [[-1, -1], [-1, -1], [-1, 0]]
    with pytest.raises(ValueError, match=r"fps \(0\) must be given"):
        model.latent_ids([(2, 1, 2)])


def test_no_tokens():
    assert memoryview(librope.Model(FLUX).latent_ids([])).shape == (3, 0)


def test_ids_rotate():
    numpy = pytest.importorskip("numpy")
    model = librope.Model(FLUX)
    q = numpy.ones((1, 7, 2, 128), "float32")
    turned = model.rope(layout="bshd").apply(q, model.latent_ids([(2, 3)], text=1)[:, None])
    assert (turned[0, 0] == q[0, 0]).all()  # text does not turn
    assert abs(turned[0, 6, 0, 72] - (numpy.cos(2.0) - numpy.sin(2.0))) < 1e-6


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"grids": [(0, 2)]}, ValueError, r"grids\[0\] must have t, h and w from 1 to 2\^23"),
        ({"grids": [(2,)]}, ValueError, r"grids\[0\] is \(2,\)"),
        ({"grids": [(2, 2.5)]}, TypeError, r"grids\[0\].w"),
        ({"grids": [(2, 2)], "text": -1}, ValueError, r"text \(-1\) must be from 0"),
        ({"grids": [(2, 2)], "fps": 24}, ValueError, r"fps \(24\) must be 0 for this class"),
        ({"grids": [(2, 2)], "scale": (1, 2)}, ValueError, "scale is"),
        ({"grids": [(2, 2)], "scale": (0, 0, 0)}, ValueError, r"scale\[0\] is 0, and must be positive"),
        ({"grids": [(2, 2)], "scale": (1, 1, float("nan"))}, ValueError, r"scale\[2\] is nan"),
        ({"grids": [(2, 2)], "scale": "111"}, TypeError, r"scale\[0\] is '1', and must be a number"),
        ({"grids": [(2, 2)], "fps": 0}, ValueError, "fps is 0, and must be positive"),
        ({"grids": (64, 96)}, TypeError, r"grids\[0\] is 64, .* grids is \[\(rows, columns\)\]"),
        ({"grids": [(2, 2)], "layer_type": "text"}, ValueError, "full_attention"),
    ],
)
def test_refused(arguments, error, message):
    with pytest.raises(error, match=message):
        librope.Model(FLUX).latent_ids(**arguments)


def test_other_models_have_none():
    with pytest.raises(NotImplementedError, match="_class_name"):
        librope.Model(
            {"model_type": "llama", "hidden_size": 64, "num_attention_heads": 1}
        ).latent_ids([(2, 2)])


def test_fields_are_those_of_the_header():
    assert [name for name, _ in ffi.typeof("rope_latent_grid").fields] == ["t", "h", "w", "reserved"]
