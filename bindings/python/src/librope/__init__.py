"""librope: rotary position embedding (RoPE) for NumPy, PyTorch, JAX and anything with DLPack.

    rope = librope.Rope.from_config("config.json")
    q, k = rope.apply_qk(q, k, positions)       # new arrays
    rope.apply_qk_(q, k, positions)             # in place
"""

from ._backward import Gradients
from ._bound import Bound
from ._choices import (
    Angle,
    CosSinFormat,
    Digest,
    DType,
    NormKind,
    NormOrder,
    NormRounding,
    NormSpan,
    Operation,
    Pairing,
    Rounding,
    Scaling,
    ShardScheme,
)
from ._core import VERSION, LibropeWarning
from ._kv_cache import KVCache
from ._model import Model
from ._norm import Norm, Norms
from ._pool import Pool
from ._prepared import PreparedCall
from ._prepared_append import PreparedAppend
from ._prompt import PromptPart, prompt_ids
from ._rope import Rope
from ._scale import Scale, Scales
from ._shard import Shard

__version__ = ".".join(map(str, VERSION))
__all__ = [
    "Angle", "Bound", "CosSinFormat", "Digest", "DType", "Gradients", "KVCache", "LibropeWarning", "Model", "Norm",
    "NormKind", "NormOrder", "NormRounding", "NormSpan", "Norms", "Operation", "Pairing", "Pool", "PreparedAppend",
    "PreparedCall", "PromptPart", "Rope", "Rounding", "Scale", "Scales", "Scaling", "Shard", "ShardScheme", "__version__", "prompt_ids",
]  # fmt: skip
