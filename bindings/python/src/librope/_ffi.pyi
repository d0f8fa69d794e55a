# The compiled module: cffi declares its contents from rope.h.
from typing import Any

ffi: Any
lib: Any
