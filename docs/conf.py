"""The documentation site: scripts/docs builds it into build/docs/html; warnings are errors."""

import os
import pathlib
import re
import sys

here = pathlib.Path(__file__).parent
sys.path.insert(0, str(here / "_ext"))

header = (here.parent / "include/librope/rope.h").read_text("utf-8")
release = version = ".".join(
    re.findall(r"#define ROPE_VERSION_(?:MAJOR|MINOR|PATCH) (\d+)", header)
)
del header

project = "librope"
author = "The librope authors"
copyright = author
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "bindings_reference",
    "librope_header",
    "repository",
]
exclude_patterns = ["_ext", "images"]
myst_heading_anchors = 3  # page.md#a-heading, as GitHub names them
smartquotes = False  # text is what it is: two points and straight quotes
highlight_language = "text"

html_theme = "furo"
html_title = f"librope {release}"
html_copy_source = False

# What other tools have written, by scripts/docs.
if "LIBROPE_DOCS_EXTRA" in os.environ:
    html_extra_path = [os.environ["LIBROPE_DOCS_EXTRA"]]
    if (pathlib.Path(html_extra_path[0]) / "rust/librope/index.html").exists():
        tags.add("rustdoc")  # noqa: F821 - Sphinx defines it

# Every name in a signature must be known. Those of the languages are not documented here.
nitpicky = True
nitpick_ignore_regex = [
    (r"c:identifier", r"u?int\d+_t|size_t"),
    (r"cpp:identifier", r"u?int\d+_t|std(::\w+)*|Integer"),
    (
        r"py:.*",
        r"(collections|typing|typing_extensions|torch|librope\._types)\..*|[A-Z]|Unpack\[.*",
    ),
]

autodoc_mock_imports = ["numpy", "ml_dtypes", "fsspec", "xxhash", "torch", "jax", "transformers"]
autodoc_typehints = "none"  # docstrings say what arrays are taken
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
napoleon_use_rtype = False
