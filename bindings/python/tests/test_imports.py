"""The order of the package's files: each imports those before it alone, so that there is no circle."""

import ast
import pathlib

import librope

ORDER = (
    "_ffi _extra _replace _kv_mark _folder _dlpack _choices _core _digest _types _conventions _rules _frameworks _untraced _pool _arrays _int32 _shard "
    "_prompt _latent _scale _template _bound _immutable _kv_cache _norm _fused _move _call _step _backward _prepared _rows _changes "
    "_config_text _prepared_append _prepare _rope _model _watch _operators _rotation_gradients _norm_gradients _tensor_step _dtensor _tensor_arguments _qkv _move_operator torch "
    "jax transformers kv cli"
).split()
# Plug-ins, which are imported when they are needed. Types alone do not count.
LATER = {"_frameworks": {"torch", "jax"}}


def imported(tree):
    """Names of modules of the package that a file imports, inside functions too."""
    typing_only = {
        child
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and getattr(node.test, "id", "") == "TYPE_CHECKING"
        for child in ast.walk(node)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.level == 1 and node not in typing_only:
            yield from [node.module] if node.module else [name.name for name in node.names]


def test_files_import_earlier_ones_alone():
    folder = pathlib.Path(librope.__file__).parent
    files = [p for p in sorted(folder.glob("*.py")) if not p.stem.startswith("__")]
    assert len(files) > 10
    found = 0
    for path in files:
        for name in imported(ast.parse(path.read_text())):
            found += 1
            if name not in LATER.get(path.stem, ()):
                assert ORDER.index(name) < ORDER.index(path.stem), f"{path.stem} imports {name}"
    assert found > 40
