"""Position ids of prompts with images and video, against what transformers' get_rope_index gave."""

import json

import numpy as np
import pytest
from conftest import REPOSITORY

import librope
from librope import PromptPart, prompt_ids

# tests/model/model_position_ids_test.cc says why these differ.
TEXT_AFTER_LONG_VIDEO = {
    "qwen2_vl/video-longer-than-wide", "qwen2_5_vl/video-longer-than-wide", "qwen2_5_vl/video",
    "qwen2_5_vl/video-2s", "qwen2_5_vl/video-half-second", "qwen2_5_vl/video-fractional",
}  # fmt: skip


def interval(part):
    """Of Qwen2.5-VL where it is no whole number, which says 2 ids a second here."""
    if part["grid"][0] == 0:
        return 0
    return 2 * part["seconds"] if part["t_interval"] is None else part["t_interval"]


def recorded():
    path = REPOSITORY / "tests" / "data" / "oracle" / "position_ids.json"
    return json.loads(path.read_text())["cases"] if path.exists() else []


@pytest.mark.parametrize("case", recorded(), ids=lambda case: case["name"])
def test_ids_are_those_of_the_models(case):
    parts = [PromptPart(p["text"], *p["grid"], interval(p)) for p in case["runs"]]
    ids, next_id = prompt_ids(parts, case["start"])
    want = np.array(case["ids"])
    assert ids.dtype == np.int64 and ids.shape == want.shape == (3, case["tokens"])
    if case["name"] in TEXT_AFTER_LONG_VIDEO:
        assert not np.array_equal(ids, want)
        behind = parts[-1].text  # the video is the last but one, text the last
        np.testing.assert_array_equal(ids[:, :-behind], want[:, :-behind])
        assert (ids[:, -behind] == ids[:, :-behind].max() + 1).all()
        return
    np.testing.assert_array_equal(ids, want)
    assert next_id == case["next"]


def test_the_recorded_prompts_are_there(oracle_folder):
    names = {case["name"].partition("/")[0] for case in recorded()}
    assert {"qwen2_vl", "qwen2_5_vl", "qwen3_vl", "glm4v"} <= names


def test_start_and_interval():
    ids, next_id = prompt_ids([PromptPart(text=1, t=3, h=1, w=2, t_interval=25)], start=10)
    assert ids.tolist() == [[10, 11, 11, 36, 36, 61, 61], [10, 11, 11, 11, 11, 11, 11],
                            [10, 11, 12, 11, 12, 11, 12]]  # fmt: skip
    assert next_id == 62
    assert prompt_ids([(2,)], -1)[0].tolist() == [[-1, 0]] * 3
    ids, next_id = prompt_ids([], 7)
    assert ids.shape == (3, 0) and next_id == 7


def test_ids_rotate_in_two_steps_as_in_one(rng):
    """A prompt, and its next token at next_id."""
    rope = librope.Rope(head_dim=16, theta=1e6, pairing="halves", axes=3, mrope_section=[2, 3, 3], layout="bshd")
    parts = [PromptPart(5, t=1, h=4, w=3), PromptPart(2)]
    ids, next_id = prompt_ids(parts)
    longer, _ = prompt_ids([parts[0], PromptPart(3)])
    q = rng.standard_normal((1, longer.shape[1], 2, 16), np.float32)
    whole = rope.apply(q, longer[:, None])
    np.testing.assert_array_equal(rope.apply(q[:, :-1], ids[:, None]), whole[:, :-1])
    np.testing.assert_array_equal(rope.apply(q[:, -1:], next_id), whole[:, -1:])


@pytest.mark.parametrize(
    ("parts", "start", "error", "says"),
    [
        ([PromptPart(-1)], 0, ValueError, r"^prompt_ids: parts\[0\] has a negative text"),
        ([PromptPart(4), PromptPart(0, 1, 0, 4)], 0, ValueError, r"parts\[1\] must have t, h and w positive"),
        ([PromptPart(4, t_interval=2)], 0, ValueError, r"parts\[0\] must have"),
        ([PromptPart(0, 2**31 - 1, 2**31 - 1, 2**31 - 1)], 0, ValueError, r"parts\[0\] makes the number of tokens"),
        ([PromptPart(2**63 - 1), PromptPart(1)], 0, ValueError, r"parts\[1\] makes the number of tokens overflow"),
        ([PromptPart(4)], 2**63 - 2, ValueError, r"parts\[0\] makes the ids overflow"),
        ([PromptPart(2**63)], 0, ValueError, r"parts\[0\]\.text is 9223372036854775808, and must be from -2\*\*63"),
        ([PromptPart(1, 1, 2**31, 1)], 0, ValueError, r"parts\[0\]\.h is 2147483648, and must be from -2\*\*31"),
        ([PromptPart(1.5)], 0, TypeError, r"parts\[0\]\.text is 1\.5, and must be an int"),
        ([PromptPart(1), 7], 0, TypeError, r"parts\[1\] is 7, and must be a PromptPart"),
        ([(1, 2, 3, 4, 5, 6)], 0, TypeError, r"parts\[0\] is \(1, 2.*must be a PromptPart"),
        ([], 2**63, ValueError, r"start is 9223372036854775808"),
        ([], "0", TypeError, r"start is '0'"),
        ([PromptPart(2**62)], 0, MemoryError, "no memory for 3 ids of 4611686018427387904 tokens"),
    ],
)  # fmt: skip
def test_errors_name_the_part(parts, start, error, says):
    with pytest.raises(error, match=says):
        prompt_ids(parts, start)


def test_the_parts_of_python_are_those_of_c():
    from librope._ffi import ffi

    fields = [name for name, _ in ffi.typeof("rope_prompt_part").fields]
    assert list(PromptPart._fields) == fields


def test_frames_a_fraction_apart():
    video = PromptPart(text=1, t=5, h=1, w=1, t_interval=1.4)
    ids, next_id = prompt_ids([video, PromptPart(text=1)])
    assert list(ids[0]) == [0, 1, 2, 3, 5, 6, 7] and next_id == 8
    whole = prompt_ids([video._replace(t_interval=2.0)])
    assert list(whole[0][0]) == list(prompt_ids([video._replace(t_interval=2)])[0][0])
    for bad in (-0.5, float("nan"), float("inf")):
        with pytest.raises(ValueError, match=r"t_intervals\[0\]"):
            prompt_ids([video._replace(t_interval=bad)])
    with pytest.raises(ValueError, match=r"parts\[0\] must have a grid"):
        prompt_ids([PromptPart(text=1, t_interval=0.5)])
