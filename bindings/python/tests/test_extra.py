"""What the command line and librope.record say where packages are missing."""

import importlib
import importlib.metadata
import re
import sys

import numpy as np
import pytest
from test_cli import config, run  # noqa: F401

from librope import _extra, record


def test_missing_packages_are_named_at_once(config, capsys, monkeypatch):
    """librope itself is on no index, so that librope[cli] would be somebody else's."""
    for name in ("rich.console", "rich", "safetensors"):
        monkeypatch.setitem(sys.modules, name, None)
    status, _, err = run(capsys, "inspect", config)
    assert status == 2 and err == (
        "librope inspect needs safetensors, rich: pip install safetensors rich, or in librope's sources "
        'pip install "bindings/python[cli]"\n'
    )


def test_the_extra_is_that_of_the_package():
    told = importlib.metadata.requires("librope") or []
    extra = {r.split(">")[0] for r in told if "extra" in r and "cli" in r.split("extra")[1]}
    assert extra - {"librope[cli]"} == set(_extra.PACKAGES)
    for name, packages in _extra.MORE.items():
        extra = {re.split("[>;]", r)[0].strip() for r in told if re.search(rf"extra == .{name}\b", r)}
        assert {p for e in extra for p in re.split(r"[\[\]]", e) if p} == {*packages, "librope", "kv" if name != "kv" else "cli"}


def test_kv_files_say_what_they_need(monkeypatch):
    for name in ("xxhash", "librope.kv"):
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delitem(sys.modules, "librope.kv")
    with pytest.raises(ModuleNotFoundError, match=r"^librope.kv needs xxhash: pip install xxhash, .*python\[kv\]"):
        importlib.import_module("librope.kv")


def test_recordings_say_what_they_need(monkeypatch, tmp_path):
    recording = record.Recording()
    recording.add("q", np.ones((1, 1, 2)), np.ones((1, 1, 2)), layout="thd")
    for name in ("safetensors", "safetensors.numpy"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ModuleNotFoundError, match=r"a recording needs safetensors: .*python\[cli\]"):
        recording.save(tmp_path / "run.safetensors")
    recording.save(tmp_path / "run.npz")
    monkeypatch.setitem(sys.modules, "numpy", None)
    with pytest.raises(ModuleNotFoundError, match=r"^librope.record needs numpy, safetensors: .*python\[cli\]"):
        importlib.reload(record)
