"""The command librope.

Exit status: 0 well, 1 the answer of check, diff or kv verify is no, 2 wrong use or input (also a config that leaves
open what no option gives), 3 check cannot tell, 130 interrupted. What a command writes appears complete, or not at all.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.resources
import re
import sys
from typing import Any

from .._config_text import PAIRINGS
from .._core import ACCEPT, ANGLES, DIGESTS, DTYPES, OPERATIONS
from .._extra import missing


#: What a config may leave open, in words, and the option that gives it.
UNTOLD = {
    "seq_len": ("how long the sequence is, by which the frequencies differ", "--seq-len"),
    "pairing": ("which channels form a pair",
                " or ".join(f"--pairing {p} ({who})" for p, who in PAIRINGS.items())),
    "head_dim": ("the channels of a head", "--head-dim"),
}  # fmt: skip


_CONFIG = "config.json, params.json, a GGUF file, or a folder with one of them"


def _model_options(parser: argparse.ArgumentParser, config: str = "config") -> None:
    parser.add_argument(config, help=_CONFIG)
    parser.add_argument("--layer", type=int, help="number of a layer, where layers differ")
    parser.add_argument("--layer-type", help="kind of layer, such as sliding_attention")
    parser.add_argument("--seq-len", type=int, help="tokens of the sequence (dynamic NTK, LongRoPE)")
    _untold_options(parser)


def _untold_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--pairing", help="if the config does not tell: halves, interleaved, ...")
    parser.add_argument("--head-dim", type=int, help="if the config does not tell")
    parser.add_argument("--accept", action="append", default=[], metavar="KEY",
                        help="a key of the config that is known to change nothing, by name or path, such "
                        "as rope_scaling.attn_factor; as often as needed")  # fmt: skip


class _Command(argparse.ArgumentParser):
    """A command, which says its own usage where it is given what it does not know."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        known, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return known, unknown


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(
        prog="librope", description="Look at, draw, apply and check rotary position embeddings.",
        epilog="Exit status: 0 well; 1 check: it does not match, diff: not the same, kv verify: a file is not well; 2 wrong "
        "use or input; 3 check: the data cannot tell.",
    )  # fmt: skip
    top.add_argument("--version", action="store_true", help="print the version, the commit and the backend")
    commands = top.add_subparsers(dest="command", metavar="command", parser_class=_Command)

    p = commands.add_parser(
        "inspect", help="what a config.json or a GGUF file says about RoPE",
        epilog="Exit status: 0 well; 2 wrong use or input, or a config that does not tell the pairing or "
        "head_dim, where no option gives it: what it tells is shown.",
    )  # fmt: skip
    p.add_argument("config", help=_CONFIG)
    p.add_argument("--seq-len", type=int, help="tokens of the sequence (dynamic NTK, LongRoPE)")
    _untold_options(p)
    p.add_argument("--json", action="store_true", help="for programs")

    p = commands.add_parser("plot", help="four pictures of a model's RoPE as PNG or SVG")
    _model_options(p)
    p.add_argument("-o", "--out", default="rope.png", help="file, .png or .svg (rope.png)")
    p.add_argument("--only", choices=("wavelengths", "rows", "decay", "error"), help="one picture")

    p = commands.add_parser(
        "diff", help="whether two descriptions have the same RoPE, and what differs",
        description="A and B: config.json, a GGUF file, a folder with one of them, or a model id that "
        "the Hugging Face cache has.",
        epilog="Exit status: 0 the same; 1 not the same; 2 wrong use or input.",
    )  # fmt: skip
    p.add_argument("a", metavar="A")
    p.add_argument("b", metavar="B")
    p.add_argument("--bound", type=float, default=1e-3, help="radians by which angles may be off, and by "
                   "how much factors; 0: rounding counts, too (0.001)")  # fmt: skip
    p.add_argument("--length", type=int, help="the longest sequence that counts (that of the texts)")
    p.add_argument("--same", choices=("model", *DIGESTS), default="model", help="model: channels may be in "
                   "another order where converters permute weights; angles: in any; rotation: in none; "
                   "bits: rounded in the same places, too (model)")  # fmt: skip
    _untold_options(p)
    p.add_argument("--plot", metavar="FILE", help="a picture, .png or .svg")
    p.add_argument("--json", action="store_true", help="for programs")

    p = commands.add_parser("apply", help="rotate tensors of a .npy or .safetensors file")
    _model_options(p)
    p.add_argument("input", help=".npy, or .safetensors with q and k (other names are kept)")
    p.add_argument("output", help="a file of the same kind")
    p.add_argument("--name", action="append", help="tensor to rotate, as often as needed (q and k)")
    p.add_argument("--positions", help="first position, or a .npy of ids (those named positions in the input, "
                   "else 0)")  # fmt: skip
    p.add_argument("--layout", help="order of the axes: thd (three axes), bshd, bhsd, ...; four axes "
                   "need it")  # fmt: skip
    p.add_argument("--operation", default="forward",
                   choices=tuple(OPERATIONS))  # fmt: skip
    p.add_argument("--threads", type=int, default=0, help="0: one per CPU")

    p = commands.add_parser(
        "check", help="measure how a tensor was rotated, and compare that with the config",
        description="Compares every value with the rule of the config, within the bound of the dtype, "
        "and every other rule that librope knows with the same data. Of a recording, all layers at once.",
        epilog="Exit status: 0 it matches, and no other rule explains the data; 1 it does not match; "
        "2 wrong use or input; 3 another rule fits as well: the output names it, and the position "
        "from which tokens would decide.",
    )  # fmt: skip
    _model_options(p)
    p.add_argument("before", help="a recording (.safetensors or .npz with NAME.before and NAME.after, as "
                   "librope.record writes it), or tensors before the rotation")  # fmt: skip
    p.add_argument("after", nargs="?", help="without a recording: the same tensors, rotated by somebody")
    p.add_argument("--name", action="append", help="tensor of a file, or a pattern such as 'layers.*.q'; as often "
                   "as needed (all of them)")  # fmt: skip
    p.add_argument("--positions", help="first position, or a .npy of ids (those of the recording; 0 for two files)")
    p.add_argument("--layout", help="order of the axes: thd (three axes), bshd, bhsd, ...; four axes "
                   "need it")  # fmt: skip
    p.add_argument("--picture", metavar="FILE", help="draw the error by pair of channels and token, .png or .svg")
    p.add_argument("--json", action="store_true", help="for programs")

    p = commands.add_parser("bench", help="how long a call takes on this machine")
    p.add_argument("--head-dim", type=int, default=128)
    p.add_argument("--heads", type=int, nargs=2, default=(32, 8), metavar=("Q", "K"))
    p.add_argument("--tokens", type=int, nargs="+", default=(1, 512, 4096))
    p.add_argument("--dtype", nargs="+", default=("float32", "bfloat16"),
                   choices=tuple(DTYPES))  # fmt: skip
    p.add_argument("--json", action="store_true", help="for programs")

    _kv_commands(commands.add_parser(
        "kv", help="look at, move and verify files of cached keys and values (docs/kv-file.md)",
    ))  # fmt: skip
    return top


def _kv_commands(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(extra="kv")
    actions = parser.add_subparsers(dest="action", metavar="action", parser_class=_Command, required=True)
    where = "a KV file, or a folder of them, with all .safetensors files in it and below; also an address that fsspec opens, such as s3://bucket/folder"

    p = actions.add_parser("inspect", help="what KV files say of themselves",
                           epilog="Exit status: 0 well; 2 wrong use or input, or a file is none: the others are shown.")  # fmt: skip
    p.add_argument("path", help=where)
    p.add_argument("--json", action="store_true", help="for programs: the metadata of each file, or why it has none")

    p = actions.add_parser(
        "move", help="rotate the keys to other positions, or by another RoPE; values are copied",
        description="Started again after it was interrupted, it goes on: what is moved already is read, and stays. With "
        "--config each file has the RoPE of its layer, where layers differ; --layer-type or --layer: files of that "
        "kind alone, and the others are refused.",
        epilog="Exit status: 0 all files are moved; 2 wrong use or input, or a file was refused: it is as it was, "
        "and the others are moved.",
    )  # fmt: skip
    p.add_argument("path", help=where)
    p.add_argument("target", nargs="?", help="a folder for the moved files, which keep their names; without it they "
                   "take the places of the old ones")  # fmt: skip
    p.add_argument("--to", type=int, metavar="P", help="the first position of every file then; chunks of "
                   "one document keep their order by --by")  # fmt: skip
    p.add_argument("--by", type=int, metavar="N", help="how far every file moves; in place with --job")
    p.add_argument("--job", metavar="NAME", help="moved files keep it, and are not moved by the same job again")
    p.add_argument("--keys", choices=("rotated", "raw"), help="rotate raw keys, or undo the rotation")
    p.add_argument("--frequency-set", type=int, metavar="I", help="the one of the files' several")
    _rope_options(p)
    p.add_argument("--block", type=int, default=2 << 20, metavar="BYTES", help="of a file in memory at once (2 MiB)")
    p.add_argument("--trust", action="store_true", help="of a file that is moved already, do not read the data again")
    p.add_argument("--json", action="store_true", help="for programs: what became of each file")
    _engine_options(p)

    p = actions.add_parser(
        "verify", help="read KV files, and check structure, digests, checksums and that values are finite",
        description="With --config the keys must be of its RoPE: that of the file's layer, where layers differ.",
        epilog="Exit status: 0 all files are well; 1 one is not; 2 wrong use or input.",
    )  # fmt: skip
    p.add_argument("path", help=where)
    _rope_options(p)
    p.add_argument("--json", action="store_true", help="for programs")
    _engine_options(p)


def _rope_options(parser: argparse.ArgumentParser) -> None:
    _model_options(parser, "--config")
    parser.add_argument("--angle", choices=tuple(ANGLES), help="how the angles of the keys were made, where it is not float32")


def _engine_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--on", choices=("dask", "ray"), help="who runs the job; this process, if not given")
    parser.add_argument("--workers", type=int, help="with --on: of a cluster on this machine (2)")
    parser.add_argument("--address", help="with --on: of a cluster that runs already")


def kind_of(model: Any, arguments: Any) -> str:
    """The kind of layer that the options name, in words of the command line if they do not."""
    kinds = model.layer_types
    if arguments.layer is not None and arguments.layer_type is not None:
        raise ValueError("--layer and --layer-type: at most one of them")
    if arguments.layer is not None:
        return str(model.layer_type(arguments.layer))
    if arguments.layer_type is not None:
        if arguments.layer_type not in kinds:
            raise ValueError(f"--layer-type is {arguments.layer_type}, and must be one of {', '.join(kinds)}")
        return str(arguments.layer_type)
    if len(kinds) > 1:  # towers and indexers beside one kind of layer are no choice
        kinds = tuple(dict.fromkeys(model.layers)) or kinds
    if len(kinds) > 1:
        raise ValueError(f"the model has several kinds of layers: say --layer-type {' or '.join(kinds)}")
    return str(kinds[0])


def fields_of(model: Any, kind: str, arguments: Any) -> dict[str, Any]:
    """The configuration of one kind of layer with the options; ValueError if something is missing, or if
    they contradict the config."""
    from .._config_text import left_open
    from . import source

    given = {"pairing": arguments.pairing, "head_dim": arguments.head_dim}
    config: dict[str, Any] = source.fields_of(model, kind, given)
    if arguments.seq_len is not None:
        config["seq_len"] = arguments.seq_len
    for name in left_open(config):
        what, option = UNTOLD[name]
        raise ValueError(f"the config does not tell {what}: say {option}")
    return config


def model_of(arguments: Any) -> Any:
    """The Model that the options of a command name."""
    from .source import open_model

    return open_model(arguments.config, arguments.accept)


def rope_of(arguments: Any) -> Any:
    """The Rope that the options of a command name."""
    from .. import Rope
    from .._config_text import turns

    model = model_of(arguments)
    fields = fields_of(model, kind_of(model, arguments), arguments)
    if not turns(fields):
        raise ValueError("this kind of layer has no RoPE")
    return Rope.from_fields(fields)


def main(argv: list[str] | None = None) -> int:
    top = parser()
    arguments = top.parse_args(argv)
    if arguments.version:
        import librope

        rope = librope.Rope(head_dim=2, theta=1.0, pairing="halves")
        built = _commit()
        of = f" ({built})" if built else ""
        print(f"librope {librope.__version__}{of}, {rope.backend}")
        return 0
    if arguments.command is None:
        top.print_help()
        return 2
    try:
        return int(importlib.import_module(f".{arguments.command}", __name__).run(arguments))
    except ModuleNotFoundError as e:
        print(missing(f"librope {arguments.command}", e, getattr(arguments, "extra", "cli")), file=sys.stderr)
        return 2
    except Exception as e:  # a traceback would exit with 1, which is an answer of check
        print(f"librope {arguments.command}: {_message(e)}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"librope {arguments.command}: interrupted", file=sys.stderr)
        return 130


def _commit() -> str:
    """Of the sources that this package was built from; "" where nothing told it."""
    written = importlib.resources.files("librope") / "commit"
    return written.read_text().strip() if written.is_file() else ""


def _message(e: BaseException) -> str:
    if isinstance(e, OSError) and e.filename is not None and e.strerror:
        return f"{e.filename}: {e.strerror}"
    if not isinstance(e, (ValueError, TypeError, OSError, RuntimeError)) or not str(e):
        return f"{type(e).__name__}: {e}".removesuffix(": ")
    text = str(e).replace(ACCEPT, "with --accept KEY")
    return re.sub(r"\b(layout|by|job)=", r"--\1", text)


if __name__ == "__main__":
    sys.exit(main())
