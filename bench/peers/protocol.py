"""What runner, workers and contenders agree on: a case, where its tensors lie, what a contender is.

Standard library only, so that it runs under the Python of every environment.
"""

import ctypes
import dataclasses
import mmap
import os
import pathlib
import re

Q_HEADS, K_HEADS, HEAD_DIM, THETA = 32, 8, 128, 500000.0
TABLE_ROWS = 131072
DTYPES = {"f32": 1, "f16": 2, "bf16": 3}  # rope_dtype
PAIRINGS = {"halves": 1, "interleaved": 2}  # rope_pairing
PLACES = ("in_place", "out_of_place")


def size_of(dtype):
    return 4 if dtype == "f32" else 2


@dataclasses.dataclass(frozen=True)
class Case:
    threads: int
    place: str
    dtype: str
    pairing: str
    tokens: int

    @property
    def name(self):
        threads = "" if self.threads == 1 else f"_{self.threads}_threads"
        return f"{self.place}_{self.dtype}_{self.pairing}_{self.tokens}{threads}"

    @property
    def in_place(self):
        return self.place == "in_place"

    @property
    def tensor_bytes(self):
        """Of q and k together."""
        return self.tokens * (Q_HEADS + K_HEADS) * HEAD_DIM * size_of(self.dtype)


class Unable(Exception):
    """Raised by prepare() where a contender cannot run a case; the text says what it lacks."""


def brief(text):
    """A message as a cell of the table: one line, without addresses and this machine's folders."""
    text = re.sub(r"https?://\S+", "(address)", " ".join(str(text).split()))
    text = re.sub(r"(?<![\w.])/(?:[\w.+@-]+/)+", "", text)
    return text.replace("|", "/")[:160]


def one_line(error):
    return brief(f"{type(error).__name__}: {error}")


class Contender:
    """One implementation. A module of contenders/ returns its own from contenders(threads,
    argument), where the argument is what install.py found out for it."""

    name = ""
    version = ""
    # How its result is rounded: "once" (f32 arithmetic, rounded on store), "truncated" (the same,
    # but cut off), "steps" (cos, sin, products and sums in the dtype itself).
    arithmetic = "once"
    # "rows": cos and sin were given; "own": it forms them itself, from float angles.
    angles = "rows"
    # Not a peer but what it is compared with: neither checked nor ranked.
    limit = False
    # What a reader must know about the row.
    note = ""
    # The smallest call through the same door, to tell what of a short row is the way in; None for
    # what is called from C.
    noop = None

    def prepare(self, case, tensors):
        """Everything that is done once per shape: returns a Prepared, or raises Unable."""
        raise NotImplementedError


class Prepared:
    """A contender, ready to rotate q and k of one case."""

    def run(self):
        """One rotation: what is timed."""
        raise NotImplementedError

    def export(self):
        """Untimed, after a run(): puts the results into q_out and k_out where run() has not."""

    def forget(self):
        """Untimed, after some runs: lets go of results, as other contenders need the memory."""

    def release(self):
        """Frees what prepare() took."""


class Returning(Prepared):
    """Of a framework that returns new tensors: run() keeps them in self.result (q, k); to_numpy
    makes arrays [tokens, heads, head_dim] of them."""

    def __init__(self, tensors, run, to_numpy):
        self.tensors, self.result, self.to_numpy = tensors, None, to_numpy
        self.call = run

    def run(self):
        self.result = None  # as in a model: the memory of the last result is free again
        self.result = self.call()

    def export(self):
        for name, value in zip(("q_out", "k_out"), self.result, strict=True):
            array = self.tensors.array(name)
            array[...] = self.to_numpy(value).reshape(array.shape)

    def forget(self):
        self.result = None

    def release(self):
        self.result = self.call = None


class CCase(ctypes.Structure):
    """peer_case of native/peer.h."""

    _fields_ = [
        *((name, ctypes.c_int32) for name in ("dtype", "pairing", "threads")),
        *((name, ctypes.c_int32) for name in ("q_heads", "k_heads", "head_dim")),
        ("tokens", ctypes.c_int64),
        *((name, ctypes.c_void_p) for name in ("positions", "q", "k", "q_out", "k_out")),
        *((name, ctypes.c_void_p) for name in ("cos", "sin", "table_cos", "table_sin")),
        ("table_rows", ctypes.c_int64),
        ("theta", ctypes.c_double),
    ]


class Memory:
    """The memory that runner and workers share: one file without a name, laid out once for the
    largest case, so that every process reads and writes the very same q and k.

    Tables of cos and sin first, then positions and rows of the tokens, then q, k, q_out, k_out.
    """

    def __init__(self, max_tokens, max_size, fd=None):
        half = HEAD_DIM // 2
        sizes = {
            "table_cos": TABLE_ROWS * half * 4,
            "table_sin": TABLE_ROWS * half * 4,
            "positions": max_tokens * 8,
            "cos": max_tokens * half * 4,
            "sin": max_tokens * half * 4,
            "q": max_tokens * Q_HEADS * HEAD_DIM * max_size,
            "k": max_tokens * K_HEADS * HEAD_DIM * max_size,
            "q_out": max_tokens * Q_HEADS * HEAD_DIM * max_size,
            "k_out": max_tokens * K_HEADS * HEAD_DIM * max_size,
        }
        self.shape = (max_tokens, max_size)
        self.offsets, end = {}, 0
        for name, size in sizes.items():
            # A page apart from the last, so that no two tensors lie at the same place in a page set.
            self.offsets[name] = end
            end += (size + 4095) // 4096 * 4096 + 4096
        self.size = end
        self.fd = os.memfd_create("rope_peers", 0) if fd is None else fd
        if fd is None:
            os.ftruncate(self.fd, self.size)
        self.map = mmap.mmap(self.fd, self.size)
        self.base = ctypes.addressof(ctypes.c_char.from_buffer(self.map))

    def address(self, name):
        return self.base + self.offsets[name]

    def drop_tensors(self):
        """Gives the pages of q, k and the outputs back; they read as zero then."""
        os.ftruncate(self.fd, self.offsets["q"])
        os.ftruncate(self.fd, self.size)


class Tensors:
    """q, k and what belongs to them, for one case."""

    def __init__(self, case, memory):
        self.case, self.memory = case, memory

    def address(self, name):
        if self.case.in_place and name in ("q_out", "k_out"):
            name = name[0]
        return self.memory.address(name)

    def c_case(self):
        case = self.case
        return CCase(DTYPES[case.dtype], PAIRINGS[case.pairing], case.threads,
                     Q_HEADS, K_HEADS, HEAD_DIM, case.tokens,
                     *(self.address(name) for name in
                       ("positions", "q", "k", "q_out", "k_out", "cos", "sin", "table_cos", "table_sin")),
                     TABLE_ROWS, THETA)

    def array(self, name):
        """As NumPy: q, k and outputs [tokens, heads, head_dim] (bf16 as its bits), cos and sin
        [tokens, head_dim / 2], tables [TABLE_ROWS, head_dim / 2], positions [tokens]."""
        import numpy

        case, half = self.case, HEAD_DIM // 2
        if name.startswith("table_"):
            shape, dtype = (TABLE_ROWS, half), numpy.float32
        elif name == "positions":
            shape, dtype = (case.tokens,), numpy.int64
        elif name in ("cos", "sin"):
            shape, dtype = (case.tokens, half), numpy.float32
        else:
            shape = (case.tokens, Q_HEADS if name[0] == "q" else K_HEADS, HEAD_DIM)
            dtype = {"f32": numpy.float32, "f16": numpy.float16, "bf16": numpy.uint16}[case.dtype]
        size = int(numpy.prod(shape)) * numpy.dtype(dtype).itemsize
        buffer = (ctypes.c_char * size).from_address(self.address(name))
        return numpy.frombuffer(buffer, dtype).reshape(shape)


class Native:
    """A library with the functions of native/peer.h."""

    def __init__(self, path):
        library = ctypes.CDLL(str(pathlib.Path(path).resolve()))
        library.peer_contenders.restype = ctypes.c_char_p
        library.peer_prepare.restype = ctypes.c_void_p
        library.peer_prepare.argtypes = [ctypes.c_char_p, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t]
        for name in ("peer_run", "peer_export", "peer_release"):
            getattr(library, name).argtypes = [ctypes.c_void_p]
            getattr(library, name).restype = None
        self.library = library

    def names(self):
        return self.library.peer_contenders().decode().split()

    def prepare(self, name, case, tensors):
        why = ctypes.create_string_buffer(200)
        c_case = tensors.c_case()
        state = self.library.peer_prepare(name.encode(), ctypes.byref(c_case), why, len(why))
        if not state:
            raise Unable(why.value.decode())
        return NativePrepared(self.library, state, c_case)


class NativePrepared(Prepared):
    """The worker times peer_run from C, so that no call from Python counts."""

    def __init__(self, library, state, c_case):
        self.library, self.state, self.c_case = library, state, c_case

    def run(self):
        self.library.peer_run(self.state)

    def export(self):
        self.library.peer_export(self.state)

    def release(self):
        self.library.peer_release(self.state)


class Core:
    """native/core.cc."""

    def __init__(self, folder):
        library = ctypes.CDLL(str(pathlib.Path(folder).resolve() / "peer_core.so"))
        pointer, i32, i64 = ctypes.c_void_p, ctypes.c_int32, ctypes.c_int64
        library.peers_case_size.restype = i64
        library.peers_time.restype = ctypes.c_double
        library.peers_time.argtypes = [pointer, pointer, i64, i32]
        library.peers_fill.argtypes = [i32, pointer, i64, ctypes.c_uint32]
        library.peers_fill.restype = None
        library.peers_positions.argtypes = [pointer, i64]
        library.peers_positions.restype = None
        library.peers_rows.argtypes = [pointer, i64, i32, ctypes.c_double, pointer, pointer]
        library.peers_error.argtypes = [i32, i32, pointer, pointer, i64, i32, i32, i64, i64]
        library.peers_error.restype = ctypes.c_double
        if library.peers_case_size() != ctypes.sizeof(CCase):
            raise RuntimeError("protocol.py and native/peer.h disagree")
        self.library = library

    def time(self, prepared, repeat, wall):
        """Seconds of `repeat` runs of a NativePrepared."""
        run = ctypes.cast(prepared.library.peer_run, ctypes.c_void_p)
        return self.library.peers_time(run, prepared.state, repeat, wall)
