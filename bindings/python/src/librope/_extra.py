"""The extras: what parts of the package need beside librope, and what is said without it."""

from __future__ import annotations

from importlib.util import find_spec

#: Of the extra cli, as in pyproject.toml: the command line and librope.record.
PACKAGES = ("numpy", "ml_dtypes", "safetensors", "rich", "matplotlib")
#: Of those that come on top of it: librope.kv, and who runs its jobs.
MORE = {"kv": ("fsspec", "xxhash"), "dask": ("dask", "distributed"), "ray": ("ray",)}


def missing(what: str, e: ModuleNotFoundError, extra: str = "cli") -> str:
    """What a program lacks: of the extra all at once, since the next import would fail as well."""
    name = (e.name or "").partition(".")[0]
    packages = PACKAGES if extra == "cli" else (*PACKAGES, *MORE["kv"])
    if extra not in ("cli", "kv"):
        packages += MORE[extra]
    if name not in packages:
        return f"{what} needs {name}: pip install {name}"
    lacks = [p for p in packages if p == name or find_spec(p) is None]
    return (f"{what} needs {', '.join(lacks)}: pip install {' '.join(lacks)}, or in librope's sources "
            f'pip install "bindings/python[{extra}]"')  # fmt: skip
