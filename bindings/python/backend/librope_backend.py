"""scikit-build-core, and for an sdist the C++ sources of the repository copied into native/.

An archive made from this folder alone would lack the library, which lies two folders up.
"""

from __future__ import annotations

import contextlib
import pathlib
import shutil
import subprocess
from collections.abc import Iterator
from typing import Any

from scikit_build_core import build as _build
from scikit_build_core.build import (  # noqa: F401  (the hooks that need no change)
    build_editable,
    build_wheel,
    get_requires_for_build_editable,
    get_requires_for_build_sdist,
    get_requires_for_build_wheel,
    prepare_metadata_for_build_editable,
    prepare_metadata_for_build_wheel,
)

HERE = pathlib.Path(__file__).resolve().parents[1]
ROOT = HERE.parents[1]
CORE = (
    "CHANGELOG.md", "CMakeLists.txt", "LICENSE", "NOTICE", "THIRD-PARTY-NOTICES", "cmake", "include",
    "pkgconfig", "src",
)  # fmt: skip


def commit() -> str:
    """Of the checkout; "" where it is none, or there is no git."""
    if not (ROOT / ".git").exists():
        return ""
    command = ["git", "-C", str(ROOT), "rev-parse", "--short=12", "HEAD"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


@contextlib.contextmanager
def native_sources() -> Iterator[None]:
    native = HERE / "native"
    if native.exists():  # we are an unpacked sdist already
        yield
        return
    try:
        for name in CORE:
            source, target = ROOT / name, native / name
            if source.is_dir():
                shutil.copytree(source, target)
            else:
                target.parent.mkdir(exist_ok=True)
                shutil.copy2(source, target)
        (native / "COMMIT").write_text(commit())
        yield
    finally:
        shutil.rmtree(native, ignore_errors=True)


def build_sdist(sdist_directory: str, config_settings: dict[str, Any] | None = None) -> str:
    with native_sources():
        return _build.build_sdist(sdist_directory, config_settings)
