"""Keys that the program accepts by name, and the notes of a model."""

from __future__ import annotations

import pickle

import pytest

from librope import Model

YARN = {
    "model_type": "llama",
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_hidden_layers": 2,
    "rope_theta": 10000.0,
    "max_position_embeddings": 16384,
    "rope_scaling": {"rope_type": "yarn", "factor": 4, "attn_factor": 0.5},
}


def test_a_key_is_accepted_by_name_and_by_path():
    with pytest.raises(NotImplementedError, match=r"rope_scaling\.attn_factor"):
        Model(YARN)
    for name in ("attn_factor", "rope_scaling.attn_factor"):
        model = Model(YARN, accepted_keys=[name])
        assert model.config("full_attention")["factor"] == 4
        assert pickle.loads(pickle.dumps(model)).layers == model.layers


def test_a_name_that_spares_nothing_is_an_error():
    for name in ("rope_theta", "no_such_key"):
        with pytest.raises(ValueError, match=rf'Model: accepted_keys\[1\] \("{name}"\)'):
            Model(YARN, accepted_keys=("attn_factor", name))
    with pytest.raises(ValueError, match="NUL"):
        Model(YARN, accepted_keys=["attn\0factor"])
    with pytest.raises(TypeError, match="a list of names"):
        Model(YARN, accepted_keys="attn_factor")
    with pytest.raises(TypeError, match=r"accepted_keys\[0\] is 3"):
        Model(YARN, accepted_keys=[3])


def test_notes():
    plain = {**YARN, "rope_scaling": None}
    assert Model(plain).notes == ()
    (note,) = Model({**plain, "dual_chunk_attention_config": {"chunk_size": 262144}}).notes
    assert "dual_chunk_attention_config" in note
