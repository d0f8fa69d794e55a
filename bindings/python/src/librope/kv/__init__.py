"""KV files: keys and values of a stretch of tokens that say how they were rotated, and move as a job.

In a few lines::

    from librope import kv

    kv.write("doc/layer0.safetensors", k, v, rope=rope, first_position=0, layout="nhd", layer=0)
    kv.inspect("doc/layer0.safetensors")             # what it says of itself: an Info
    kv.move("doc", "moved", to=4096)                 # every file of a folder, re-rotated
    info, k, v = kv.read("moved/layer0.safetensors", rope=rope)
    kv.verify("moved")                               # structure, digests, checksums, finite values

Files and folders are local or in an object store: "s3://bucket/doc" is what fsspec opens. The format is that of
docs/kv-file.md in librope's sources. A file that breaks it is refused by name, and nothing is written.
"""

from __future__ import annotations

from .._extra import missing

try:
    import fsspec  # noqa: F401
    import ml_dtypes  # noqa: F401
    import numpy  # noqa: F401
    import xxhash  # noqa: F401
except ModuleNotFoundError as e:
    raise ModuleNotFoundError(missing("librope.kv", e, "kv"), name=e.name) from None

from ._engines import on_dask, on_ray
from ._file import inspect, read, write
from ._job import Outcome, Refused, move, verify
from ._schema import Info, Moved

__all__ = ["Info", "Moved", "Outcome", "Refused", "inspect", "move", "on_dask", "on_ray", "read", "verify", "write"]
