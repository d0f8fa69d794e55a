"""The command librope. Exit status: 0 well, 1 the answer is no, 2 wrong use or input."""

from __future__ import annotations

import argparse
import sys
from typing import Any


def _model_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("config", help="config.json, or its folder")
    parser.add_argument("--layer", type=int, help="number of a layer, where layers differ")
    parser.add_argument("--layer-type", help="kind of layer, such as sliding_attention")
    parser.add_argument("--seq-len", type=int, help="tokens of the sequence (dynamic NTK, LongRoPE)")
    parser.add_argument("--pairing", help="if the config does not tell: halves, interleaved, ...")
    parser.add_argument("--head-dim", type=int, help="if the config does not tell")


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(
        prog="librope", description="Look at, draw, apply and check rotary position embeddings."
    )
    top.add_argument("--version", action="store_true", help="print the version and the backend")
    commands = top.add_subparsers(dest="command", metavar="command")

    p = commands.add_parser("inspect", help="what a config.json says about RoPE")
    p.add_argument("config", help="config.json, or its folder")
    p.add_argument("--seq-len", type=int, help="tokens of the sequence (dynamic NTK, LongRoPE)")
    p.add_argument("--json", action="store_true", help="for programs")

    p = commands.add_parser("plot", help="four pictures of a RoPE as PNG or SVG")
    _model_options(p)
    p.add_argument("-o", "--out", default="rope.png", help="file, .png or .svg (rope.png)")
    p.add_argument("--only", choices=("wavelengths", "rows", "decay", "error"), help="one picture")

    p = commands.add_parser("apply", help="rotate tensors of a .npy or .safetensors file")
    _model_options(p)
    p.add_argument("input", help=".npy, or .safetensors with q and k (other names are kept)")
    p.add_argument("output", help="a file of the same kind")
    p.add_argument("--positions", default=None, help="first position (0), or a .npy of ids; a tensor "
                   "named positions in the input comes first")  # fmt: skip
    p.add_argument("--layout", help="order of the axes: bshd, thd (default), bhsd, ...")
    p.add_argument("--operation", default="forward",
                   choices=("forward", "backward", "inverse", "shift"))  # fmt: skip
    p.add_argument("--threads", type=int, default=0, help="0: one per CPU")

    p = commands.add_parser("check", help="does a rotated tensor fit the config, and if not, why")
    _model_options(p)
    p.add_argument("before", help=".npy, or .safetensors with q")
    p.add_argument("after", help="the same tensor, rotated by somebody")
    p.add_argument("--name", default="q", help="tensor of a .safetensors file (q)")
    p.add_argument("--positions", help="first position (0), or a .npy of ids")
    p.add_argument("--layout", help="order of the axes: bshd, thd (default), bhsd, ...")
    p.add_argument("--json", action="store_true", help="for programs")

    p = commands.add_parser("bench", help="how long a call takes on this machine")
    p.add_argument("--head-dim", type=int, default=128)
    p.add_argument("--heads", type=int, nargs=2, default=(32, 8), metavar=("Q", "K"))
    p.add_argument("--tokens", type=int, nargs="+", default=(1, 512, 4096))
    p.add_argument("--dtype", nargs="+", default=("float32", "bfloat16"))
    p.add_argument("--json", action="store_true", help="for programs")
    return top


def rope_of(arguments: Any, **changes: Any) -> Any:
    """The Rope that the options of a command name."""
    from .. import Model

    model = Model(arguments.config)
    for name in ("pairing", "head_dim", "seq_len"):
        value = getattr(arguments, name)
        if value is not None:
            changes[name] = value
    return model.rope(layer=arguments.layer, layer_type=arguments.layer_type, **changes)


def main(argv: list[str] | None = None) -> int:
    top = parser()
    arguments = top.parse_args(argv)
    if arguments.version:
        import librope

        rope = librope.Rope(head_dim=2, theta=1.0, pairing="halves")
        print(f"librope {librope.__version__}, {rope.backend}")
        return 0
    if arguments.command is None:
        top.print_help()
        return 2
    try:
        import importlib

        return int(importlib.import_module(f".{arguments.command}", __name__).run(arguments))
    except ModuleNotFoundError as e:
        print(f"librope {arguments.command} needs {e.name}: pip install librope[cli]", file=sys.stderr)
        return 2
    except (ValueError, TypeError, OSError, KeyError, NotImplementedError, RuntimeError) as e:
        print(f"librope {arguments.command}: {e}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
