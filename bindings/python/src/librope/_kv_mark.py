"""What KV files are known by (docs/kv-file.md), for those who are given one in the place of something else."""

from __future__ import annotations

import os

KEY = "librope_kv"  # of safetensors' metadata


def is_safetensors(head: bytes) -> bool:
    """By the first 9 bytes: a length below 4 GiB, and the object of that length. No text has zeros."""
    return head[4:9] == b"\0\0\0\0{"


def is_kv_file(path: str | os.PathLike[str]) -> bool:
    """Whether its header speaks of librope_kv; what cannot be read is none."""
    try:
        with open(path, "rb") as file:
            head = file.read(9)
            return is_safetensors(head) and f'"{KEY}"'.encode() in file.read(min(int.from_bytes(head[:8], "little"), 1 << 20))
    except OSError:
        return False
