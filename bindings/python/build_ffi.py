"""Writes the C source of librope._ffi: build_ffi.py ROPE_H OUT_C [OUT_CDEF].

The declarations are those of rope.h, with comments and preprocessor lines taken out. The compiler
checks each against the header itself, so that neither can drift from the other.
"""

from __future__ import annotations

import pathlib
import re
import sys

HERE = pathlib.Path(__file__).resolve().parent


def declarations(header: str) -> str:
    """The declarations of rope.h in the form cffi reads."""
    versions = re.findall(r"^#define (ROPE_VERSION_\w+) \d+", header, re.M)
    text = re.sub(r"/\*.*?\*/", "", header, flags=re.S)
    text = re.sub(r"#ifdef __cplusplus.*?(#else.*?)?#endif", "", text, flags=re.S)
    text = re.sub(r"^[ \t]*#.*$", "", text, flags=re.M)
    text = re.sub(r"\bROPE_(API|MUST_CHECK)\b", "", text)
    text = re.sub(r"[ \t]+;", ";", re.sub(r"[ \t]+$", "", text, flags=re.M))
    text = re.sub(r"\n{2,}", "\n\n", text).strip()
    return "".join(f"#define {name} ...\n" for name in versions) + "\n" + text + "\n"


def ffi_source(header: pathlib.Path) -> tuple[str, str]:
    """The cdef and the C prelude."""
    shim = (HERE / "shim.c").read_text()
    functions = re.findall(r"^/\* cffi \*/ static ([^{]*?)\s*\{", shim, re.M | re.S)
    cdef = declarations(header.read_text()) + "".join(f"{f};\n" for f in functions)
    return cdef, '#define ROPE_MUST_CHECK\n#include <librope/rope.h>\n\n' + shim


def main(header: str, out: str, cdef_out: str | None = None) -> None:
    import cffi

    cdef, prelude = ffi_source(pathlib.Path(header))
    ffi = cffi.FFI()
    ffi.cdef(cdef)
    ffi.set_source("librope._ffi", prelude)
    ffi.emit_c_code(out)
    if cdef_out:
        pathlib.Path(cdef_out).write_text(cdef)


if __name__ == "__main__":
    main(*sys.argv[1:])
