"""The compiled declarations against the headers: nothing has drifted, nothing is forgotten."""

import importlib.util
import re
from typing import get_args

import cffi
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
    fresh = cffi.FFI()
    fresh.cdef(re.sub(r"#define .*", "", declarations))
    for name in ("rope_config", "rope_qk_args", "rope_tensor", "rope_positions", "rope_cos_sin",
                 "rope_info", "rope_prompt_part", "rope_qk_data", "rope_runner", "rope_kv_cache",
                 "rope_fused", "rope_norm"):  # fmt: skip
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


def test_choices_of_the_configuration_are_those_of_the_header(header):
    struct = re.search(r"typedef struct rope_config \{(.*?)\} rope_config;", header, re.S)[1]
    typed = dict(re.findall(r"^  rope_(\w+) (\w+);", struct, re.M))
    del typed["device"]
    assert set(typed.values()) == set(_core._NAMED)
    types = {n.lower(): getattr(librope, n) for n in ("Pairing", "Scaling", "Angle", "Rounding", "DType")}
    for kind, field in typed.items():
        assert set(get_args(types[kind])) == set(_core._NAMED[field])
    assert set(get_args(librope.Operation)) == set(_core.OPERATIONS)
    assert set(get_args(librope.CosSinFormat)) == set(_core.COS_SIN_FORMATS)


@pytest.mark.parametrize("field", _core._RULES)
def test_what_cffi_refuses_has_the_rule_of_the_library(field):
    fields = {"head_dim": 128, "theta": 1e4, "pairing": "halves"}
    said = []
    for wrong in (2**31 - 1, 2**31):
        with pytest.raises(ValueError, match=field) as e:
            librope.Rope(**{**fields, field: wrong})
        said.append(re.search(r"must be (.*)", str(e.value))[1])
    assert said[0] == said[1].replace("head_dim", "head_dim (128)")


def test_manuals_leave_the_names_of_choices_to_their_types():
    """A new scaling or format needs no other text: nobody lists all of them by hand."""
    for names, text in ((_core.SCALINGS, librope.Rope.__doc__), (_core.COS_SIN_FORMATS, librope.Rope.cos_sin.__doc__)):
        assert sum(f'"{name}"' in text for name in names) < len(names) / 2


def test_one_version(header):
    parts = [re.search(rf"ROPE_VERSION_{p} (\d+)", header)[1] for p in ("MAJOR", "MINOR", "PATCH")]
    assert librope.__version__ == ".".join(parts)
    assert lib.rope_version() == int(parts[0]) * 10000 + int(parts[1]) * 100 + int(parts[2])
    from importlib.metadata import PackageNotFoundError, version

    try:
        assert version("librope") == librope.__version__
    except PackageNotFoundError:
        pytest.skip("not installed")
