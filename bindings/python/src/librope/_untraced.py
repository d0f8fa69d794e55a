"""Functions that torch.compile must not compile: those that take the addresses of arrays.

After a call that it cannot trace Dynamo goes on with the frames of librope itself. An array of NumPy is a tensor
there, so that a view of it is other memory, and its address that of something else. What torch.compiler.disable()
says of a function is said here without its wrapper, which every call would pay for, and without an import of torch.
"""

from __future__ import annotations

import sys
from types import CodeType
from typing import Any, TypeVar

_Function = TypeVar("_Function")
_codes: list[CodeType] = []

#: Whether there is something to tell Dynamo, once torch is here: see keep_out().
waiting = True


def untraced(function: _Function) -> _Function:
    """A function that Dynamo calls, and neither traces nor compiles, nor what it calls."""
    kept: Any = function
    kept._torchdynamo_disable = True
    kept._torchdynamo_disable_msg = "it takes the addresses of arrays, which compiled code has not"
    _codes.append(kept.__code__)
    return function


@untraced
def keep_out() -> None:
    """Tells Dynamo of these functions, if torch is here. Whoever is the first to see arrays calls it while `waiting`."""
    global waiting
    torch = sys.modules.get("torch")
    frames = getattr(getattr(torch, "_C", None), "_dynamo", None)
    if frames is None:
        return
    try:
        hook, skip = frames.eval_frame, frames.eval_frame._FrameAction.SKIP
        strategy = hook._FrameExecStrategy(skip, skip)
        for code in _codes:
            hook.set_code_exec_strategy(code, strategy)
    except AttributeError:  # a torch with other names: frames that get that far are then compiled, and slow
        pass
    waiting = False
