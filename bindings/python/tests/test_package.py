"""What is shipped beside the code: licences, metadata, links that work on a package index."""

import importlib.metadata
import re

import pytest
from conftest import REPOSITORY

HERE = REPOSITORY / "bindings" / "python"
LICENCES = ("LICENSE", "NOTICE", "THIRD-PARTY-NOTICES")


@pytest.fixture
def distribution():
    try:
        return importlib.metadata.distribution("librope")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("not installed")


def test_licences_are_those_of_the_repository():
    if not HERE.is_dir():
        pytest.skip("outside of the repository")
    for name in LICENCES:
        assert (HERE / name).read_text() == (REPOSITORY / name).read_text()


def test_wheel_names_its_authors_and_contains_the_licences(distribution):
    names = {file.name for file in distribution.files or ()}
    assert names >= set(LICENCES)
    text = next(f for f in distribution.files if f.name == "THIRD-PARTY-NOTICES").read_text()
    assert "Highway" in text and "Niels Lohmann" in text
    metadata = distribution.metadata
    assert metadata["Author"] == "The librope authors"
    assert any(u.startswith("Source, https://") for u in metadata.get_all("Project-URL"))


def test_links_of_the_readme_work_elsewhere():
    readme = HERE / "README.md"
    if not readme.is_file():
        pytest.skip("outside of the repository")
    targets = re.findall(r"\]\(([^)]+)\)", readme.read_text())
    assert targets and all(t.startswith(("https://", "#")) for t in targets)


def test_the_module_needs_no_other_library():
    """Of Highway and nlohmann/json the headers are used alone."""
    from librope import _ffi

    with open(_ffi.__file__, "rb") as file:
        content = file.read()
    assert b"libhwy" not in content
