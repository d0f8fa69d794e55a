"""The compiled declarations against the headers: nothing has drifted, nothing is forgotten."""

import importlib.util
import re

import pytest
from conftest import REPOSITORY

import librope
from librope import _core
from librope._ffi import ffi, lib

INCLUDE = REPOSITORY / "include"
BUILD = REPOSITORY / "bindings" / "python" / "build_ffi.py"


@pytest.fixture(scope="module")
def build():
    spec = importlib.util.spec_from_file_location("build_ffi", BUILD)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def header(build):
    if not INCLUDE.exists():
        pytest.skip("no headers: outside of the repository")
    assert {path.name for path in (INCLUDE / "librope").glob("*.h")} == set(build.HEADERS)
    return build.read_headers(INCLUDE)


@pytest.fixture(scope="module")
def declarations(build, header):
    return build.declarations(header)


def test_functions(header):
    code = re.sub(r"/\*.*?\*/", "", header, flags=re.S)
    functions = set(re.findall(r"\b(rope_\w+)\s*\(", code)) - {"rope_init_"}
    assert {"rope_apply_qk", "rope_model_create"} <= functions <= set(dir(lib))


def test_constants(header):
    for name, value in re.findall(r"^\s*(ROPE_\w+) = (-?\d+)", header, re.M):
        assert getattr(lib, name) == int(value)


def test_structs_are_those_of_the_installed_module(declarations):
    """A header changed after the module was built has other fields."""
    fresh = pytest.importorskip("cffi").FFI()
    fresh.cdef(re.sub(r"#define .*", "", declarations))
    for name in ("rope_config", "rope_qk_args", "rope_tensor", "rope_positions", "rope_cos_sin",
                 "rope_info", "rope_prompt_part", "rope_runner"):  # fmt: skip
        want, got = (
            [(n, f.type.cname.replace("struct ", ""), f.offset) for n, f in of.typeof(name).fields]
            for of in (fresh, ffi)
        )
        assert got == want and ffi.sizeof(name) == fresh.sizeof(name)


def test_every_config_field_has_a_name_in_python():
    fields = {n for n, _ in ffi.typeof("rope_config").fields}
    assert fields == set(_core.FIELDS) | _core._HIDDEN
    tables = {n for n, f in ffi.typeof("rope_config").fields if f.type.kind == "pointer"}
    assert tables == set(_core._TABLES) | {"reserved"}


@pytest.mark.parametrize("function", [librope.Rope.apply_qk, librope.Rope.cos_sin])
def test_rows_of_two_arrays_are_those_that_the_manual_names(function):
    named = re.search(r'\(cos, sin\) for ((?:"\w+",?\s*)+)', function.__doc__)[1]
    two = {name for name in _core.COS_SIN_FORMATS if _core.arrays_of(name) == 2}
    assert two == set(re.findall(r"\w+", named))


def test_one_version(header):
    parts = [re.search(rf"ROPE_VERSION_{p} (\d+)", header)[1] for p in ("MAJOR", "MINOR", "PATCH")]
    assert librope.__version__ == ".".join(parts)
    assert lib.rope_version() == int(parts[0]) * 10000 + int(parts[1]) * 100 + int(parts[2])
    from importlib.metadata import PackageNotFoundError, version

    try:
        assert version("librope") == librope.__version__
    except PackageNotFoundError:
        pytest.skip("not installed")
