"""The extra cli: what the command line and librope.record need beside librope, and what is said without it."""

from __future__ import annotations

from importlib.util import find_spec

#: As in pyproject.toml.
PACKAGES = ("numpy", "ml_dtypes", "safetensors", "rich", "matplotlib")


def missing(what: str, e: ModuleNotFoundError) -> str:
    """What a program lacks: of the extra all at once, since the next import would fail as well."""
    name = (e.name or "").partition(".")[0]
    if name not in PACKAGES:
        return f"{what} needs {name}: pip install {name}"
    lacks = [p for p in PACKAGES if p == name or find_spec(p) is None]
    return (f"{what} needs {', '.join(lacks)}: pip install {' '.join(lacks)}, or in librope's sources "
            'pip install "bindings/python[cli]"')  # fmt: skip
