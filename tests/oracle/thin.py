"""Keeps some tokens of a record's arrays. Needs no torch."""

from __future__ import annotations

import base64


def take(array, tokens):
    """The array whose first dimension is tokens, of these tokens alone."""
    data = base64.b64decode(array["data"])
    size = len(data) // array["shape"][0]
    kept = b"".join(data[t * size:(t + 1) * size] for t in tokens)
    return {"dtype": array["dtype"], "shape": [len(tokens), *array["shape"][1:]],
            "data": base64.b64encode(kept).decode()}


def thin(record, tokens):
    """`rows` or `apply` of a length, of these tokens alone."""
    return take(record, tokens) if "data" in record else {k: thin(v, tokens) for k, v in record.items()}
