# The compiled module: cffi declares its contents from rope.h and model.h.
from typing import Any

ffi: Any
lib: Any
