"""Installs the peers of pins.toml from their registries into a cache, and builds those that come as
source. What cannot be had on this machine is reported, not left out: every function here returns
what it made, or raises Failure with a reason for the table.
"""

import dataclasses
import hashlib
import os
import pathlib
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile

from .protocol import brief

HERE = pathlib.Path(__file__).parent
PINS = tomllib.loads((HERE / "pins.toml").read_text())


class Failure(Exception):
    pass


@dataclasses.dataclass
class Worker:
    """A process to start: a Python and the modules of contenders/ that it loads."""

    name: str
    python: str
    modules: list
    environment: dict = dataclasses.field(default_factory=dict)


def default_cache():
    base = os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache"
    return pathlib.Path(base) / "librope" / "peers"


def run(log, *command, **options):
    """Runs a command at the lowest priority, its output in a file; the last words of a failing one
    become the reason."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("w") as file:
        try:
            code = subprocess.run(["nice", "-n", "19", *map(str, command)], stdout=file, stderr=file,
                                  stdin=subprocess.DEVNULL, check=False, **options).returncode
        except OSError as error:
            raise Failure(f"{command[0]}: {error.strerror}") from error
    if code != 0:
        lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
        errors = [line for line in lines if "error" in line.lower()] or lines or [f"exit status {code}"]
        raise Failure(f"{pathlib.Path(command[0]).name}: {brief(errors[0])} (log: {log.name})")


class Installer:
    def __init__(self, cache, say=print):
        self.cache, self.say = pathlib.Path(cache), say

    def once(self, kind, name, key, make):
        """The folder cache/kind/name-KEY, filled by make(folder) if it was not there."""
        folder = self.cache / kind / f"{name}-{hashlib.sha256(key.encode()).hexdigest()[:12]}"
        if not (folder / ".complete").exists():
            self.say(f"peers: {kind} {name}")
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            make(folder)
            (folder / ".complete").touch()
        return folder

    def log(self, name):
        return self.cache / "log" / f"{name}.txt"

    def environment(self, name):
        """The Python of a virtual environment."""
        pins = PINS["environments"][name]

        def make(folder):
            run(self.log(f"{name}-venv"), sys.executable, "-m", "venv", folder)
            pip = [folder / "bin" / "python", "-m", "pip", "install", "--disable-pip-version-check"]
            run(self.log(f"{name}-pip"), *pip, *pins["packages"])
            if "no_deps" in pins:
                run(self.log(f"{name}-pip-no-deps"), *pip, "--no-deps", *pins["no_deps"])

        return self.once("environment", name, f"{sys.version_info[:2]} {pins}", make) / "bin" / "python"

    def source(self, name, members, python=sys.executable, options=(), environment=None):
        """A source package unpacked: its folder. members(path in the archive) says what is needed."""
        version = PINS["carriers"][name]

        def make(folder):
            run(self.log(f"{name}-source"), python, "-m", "pip", "download", "--disable-pip-version-check",
                "--no-deps", "--no-binary", name, *options, "-d", folder, f"{name}=={version}",
                env={**os.environ, **(environment or {})})
            (archive,) = folder.glob("*.tar.gz")
            with tarfile.open(archive) as file:
                wanted = [m for m in file.getmembers() if members(m.name.partition("/")[2])]
                file.extraction_filter = getattr(tarfile, "data_filter", None)  # Python 3.11.4
                file.extractall(folder / "all", wanted)
            archive.unlink()
            (top,) = (folder / "all").iterdir()
            top.rename(folder / "source")

        return self.once("source", name, version, make) / "source"

    def wheel(self, name):
        """A wheel unpacked, without what it depends on."""
        version = PINS["carriers"][name]

        def make(folder):
            run(self.log(f"{name}-wheel"), sys.executable, "-m", "pip", "download",
                "--disable-pip-version-check", "--no-deps", "--only-binary", ":all:", "-d", folder,
                f"{name}=={version}")
            (archive,) = folder.glob("*.whl")
            with zipfile.ZipFile(archive) as file:
                file.extractall(folder / "wheel")
            archive.unlink()

        return self.once("wheel", name, f"{version} {sys.version_info[:2]}", make) / "wheel"

    def build(self, name, version, make):
        """A library made from drivers/NAME: made again when that or the version changes."""
        files = sorted(p for p in (HERE / "drivers" / name).rglob("*") if p.is_file())
        header = HERE / "native" / "peer.h"
        key = "".join([version, *(p.read_text() for p in [*files, header])])
        folder = self.once("build", name, key, make)
        libraries = list(folder.rglob(f"*peer_{name}.so"))
        if not libraries:
            raise Failure(f"the build made no peer_{name}.so")
        return libraries[0]

    # --- The peers that are more than Python packages ---

    def ggml(self):
        version = PINS["carriers"]["llama-cpp-python"]
        ggml = self.source("llama-cpp-python", lambda path: path.startswith("vendor/llama.cpp/ggml/"))

        def make(folder):
            run(self.log("ggml-configure"), "cmake", "-S", HERE / "drivers" / "ggml", "-B", folder,
                "-DCMAKE_BUILD_TYPE=Release", f"-DGGML={ggml}/vendor/llama.cpp/ggml")
            run(self.log("ggml-build"), "cmake", "--build", folder, "-j2", "--target", "peer_ggml")

        return f"native={self.build('ggml', version, make)}|ggml of llama-cpp-python {version}"

    def candle(self):
        version = PINS["crates"]["candle"]

        def make(folder):
            driver = HERE / "drivers" / "candle"
            shutil.copytree(driver / "src", folder / "src")
            manifest = (driver / "Cargo.toml.in").read_text().replace("@candle@", version)
            (folder / "Cargo.toml").write_text(manifest)
            run(self.log("candle"), "cargo", "build", "--release", "--jobs", "2", cwd=folder,
                env={**os.environ, "RUSTFLAGS": "-C target-cpu=native", "CARGO_TARGET_DIR": str(folder / "target")})
            (folder / "target" / "release" / "libpeer_candle.so").rename(folder / "libpeer_candle.so")
            shutil.rmtree(folder / "target")

        return f"native={self.build('candle', version, make)}|candle-nn {version}, target-cpu=native"

    def xnnpack(self):
        version = PINS["carriers"]["executorch"]
        folder = self.wheel("executorch") / "executorch" / "lib"
        if not (folder / "libexecutorch_backend_xnnpack.so").exists():
            raise Failure(f"executorch {version} has no libexecutorch_backend_xnnpack.so for this machine")

        def make(out):
            run(self.log("xnnpack"), "cc", "-O2", "-shared", "-fPIC", "-I", HERE / "native",
                HERE / "drivers" / "xnnpack" / "xnnpack.c", "-o", out / "peer_xnnpack.so", f"-L{folder}",
                "-lexecutorch_backend_xnnpack", "-lexecutorch_threadpool", f"-Wl,-rpath,{folder}",
                "-Wl,--allow-shlib-undefined")

        return f"native={self.build('xnnpack', f'{version} {folder}', make)}|XNNPACK of executorch {version}"

    def vllm(self, python):
        version = PINS["carriers"]["vllm"]
        source = self.source("vllm", lambda path: path.startswith("csrc/"), python, ["--no-build-isolation"],
                             {"VLLM_TARGET_DEVICE": "empty", "VLLM_VERSION_OVERRIDE": version})

        def make(folder):
            path = f"{python.parent}{os.pathsep}{os.environ['PATH']}"  # ninja
            run(self.log("vllm"), python, HERE / "drivers" / "vllm" / "build.py", source / "csrc", folder,
                env={**os.environ, "PATH": path, "MAX_JOBS": "2"})

        return f"vllm_kernel={self.build('vllm', f'{version} {python}', make)}|{version}"


def install(cache, wanted, say=print):
    """(workers, absent): processes to start, the one for libraries in C first, and {peer: reason} of
    what is not there. `wanted`: a function of a peer's name."""
    installer = Installer(cache, say)
    workers = {"native": Worker("native", sys.executable, [])}
    absent = {name: reason for name, reason in PINS["absent"].items() if wanted(name)}

    def attempt(peer, make):
        if not wanted(peer):
            return None
        try:
            return make()
        except (Failure, OSError) as reason:
            say(f"peers: no {peer}: {reason}")
            absent[peer] = brief(reason)
            return None

    for peer in ("ggml", "candle", "xnnpack"):
        module = attempt(peer, getattr(installer, peer))
        if module:
            workers["native"].modules.append(module)
    for peer, name, module in (("onnxruntime", "onnx", "onnxruntime_rope"), ("jax", "jax", "jax_rope"),
                               ("torch", "torch", "torch_rope"), ("ipex", "ipex", "ipex")):
        python = attempt(peer, lambda name=name: installer.environment(name))
        if not python:
            continue
        workers[name] = Worker(name, str(python), [module])
        if name == "torch":
            vllm = attempt("vllm", lambda python=python: installer.vllm(python))
            if vllm:
                workers[name].modules.append(vllm)
            caches = {"TORCHINDUCTOR_CACHE_DIR": str(installer.cache / "inductor"),
                      "HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}
            workers[name].environment.update(caches)
    if wanted("vllm") and "torch" not in workers:
        absent.setdefault("vllm", "needs the environment of torch")
    # NumPy is in every environment; this one is the smallest.
    python = attempt("numpy", lambda: installer.environment("onnx"))
    if python:
        workers.setdefault("onnx", Worker("onnx", str(python), [])).modules.append("numpy_loop")
    return list(workers.values()), absent


def picture(cache, out):
    """OUT.png from OUT.csv and OUT.md."""
    installer = Installer(cache)
    try:
        python = installer.environment("plot")
        run(installer.log("plot"), python, "-m", "peers.plot", out, env={**os.environ, "PYTHONPATH": str(HERE.parent)})
    except Failure as reason:
        print(f"peers: no picture: {reason}", file=sys.stderr)
