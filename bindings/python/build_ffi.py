"""Writes the C source of librope._ffi: build_ffi.py INCLUDE OUT_C [OUT_CDEF].

The declarations are those of the headers in INCLUDE/librope, with comments and preprocessor lines taken out. The compiler
checks each against the headers themselves, so that neither can drift from the other.
"""

from __future__ import annotations

import pathlib
import re
import sys

HERE = pathlib.Path(__file__).resolve().parent
HEADERS = ("rope.h", "model.h")  # each after those that it includes


def read_headers(include: pathlib.Path) -> str:
    """The text of all headers of C."""
    return "\n".join((include / "librope" / name).read_text() for name in HEADERS)


def declarations(headers: str) -> str:
    """Their declarations in the form cffi reads."""
    versions = re.findall(r"^#define (ROPE_VERSION_\w+) \d+", headers, re.M)
    text = re.sub(r"/\*.*?\*/", "", headers, flags=re.S)
    text = re.sub(r"#ifdef __cplusplus.*?(#else.*?)?#endif", "", text, flags=re.S)
    text = re.sub(r"^[ \t]*#.*$", "", text, flags=re.M)
    text = re.sub(r"\bROPE_(API|MUST_CHECK)\b", "", text)
    text = re.sub(r"[ \t]+;", ";", re.sub(r"[ \t]+$", "", text, flags=re.M))
    text = re.sub(r"\n{2,}", "\n\n", text).strip()
    return "".join(f"#define {name} ...\n" for name in versions) + "\n" + text + "\n"


def ffi_source(include: pathlib.Path) -> tuple[str, str]:
    """The cdef and the C prelude."""
    shim = (HERE / "shim.c").read_text()
    functions = re.findall(r"^/\* cffi \*/ static ([^{]*?)\s*\{", shim, re.M | re.S)
    cdef = declarations(read_headers(include)) + "".join(f"{f};\n" for f in functions)
    includes = "".join(f"#include <librope/{name}>\n" for name in HEADERS)
    return cdef, f"#define ROPE_MUST_CHECK\n{includes}\n{shim}"


def main(include: str, out: str, cdef_out: str | None = None) -> None:
    import cffi

    cdef, prelude = ffi_source(pathlib.Path(include))
    ffi = cffi.FFI()
    ffi.cdef(cdef)
    ffi.set_source("librope._ffi", prelude)
    ffi.emit_c_code(out)
    if cdef_out:
        pathlib.Path(cdef_out).write_text(cdef)


if __name__ == "__main__":
    main(*sys.argv[1:])
