"""Start Ray's workers by fork: a server process imports their modules once, and each worker is a copy of it.

Ray Train and Tune start a dozen processes, which would each import Ray, pandas, torch and DeepSpeed for seconds.
Mechanism: a private session starts workers by ``start_worker.py`` in place of Ray's script. It sends the worker's
arguments, environment and streams to the server; the server forks, and the copy runs Ray's worker script.
Assumptions: Linux, no GPU (CUDA does not survive a fork), the tested version of Ray (the copy replaces what its set-up
script does), no threads in the server, and one job per server.
Fallback: if an assumption fails, no server starts, or it declines or ends, and Ray's own script runs.
"""

import atexit
import gc
import importlib
import json
import os
import runpy
import select
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from importlib.metadata import entry_points, version
from pathlib import Path
from typing import Any, NoReturn

from raysum.runtime import start_worker
from raysum.runtime.compat import no_ids_drawn, search_path, worker_script
from raysum.runtime.lock import PrivateFolder
from raysum.runtime.processes import environment
from raysum.runtime.progress import say

# Libraries that workers load for a task. Modules of raysum register for a task by entry points of the group
# ``raysum.preload``; names of those that import Ray contain ``.ray``.
_ANY = ("uvloop", "requests", "jsonschema", "pandas", "pyarrow.dataset", "pyarrow.parquet", "fsspec", "pydantic")
_LIBRARIES = {
    "reading": ("ray.data",),
    "training": (
        *("torch.distributed", "torch._dynamo", "deepspeed"),
        *("ray.data", "ray.train.v2.api.data_parallel_trainer"),
    ),
    "decoding": ("safetensors.torch", "syntok.segmenter", "ray.data", "ray.tune"),
    "serving": ("safetensors.torch", "ray.serve"),
    "searching": (),
}
PURPOSES = {
    "data": ("reading",),
    "train": ("training",),
    "decode": ("decoding",),
    "serve": ("serving",),
    "search": ("training", "decoding", "searching"),
}

_TESTED = "2.60.0"  # version of Ray
_OFF = "RAYSUM_FORKS"  # environment variable; 0: Ray starts its workers itself
_GPUS = ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg")  # NVIDIA, AMD, either under Windows
_WORKER = "/default_worker.py"  # end of the path of Ray's worker script
_IDENTITY = ("RAY_JOB_ID", "RAY_RAYLET_PID")  # Ray's library reads these when it is imported
# `-m` would search the current folder first.
_PROGRAM = "import sys; sys.path[:] = filter(None, sys.path); from raysum.runtime.forkserver import main; main()"
_NAME = 120  # characters reserved in the command line, into which Ray writes the title of a worker
# Keep imports from starting threads, which a fork does not copy.
_QUIET = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "JE_ARROW_MALLOC_CONF": "background_thread:false"}

_server: "Server | None" = None


class Server:
    """The server's process, and its socket in a private folder."""

    def __init__(self, modules: list[str], ray_modules: list[str]):
        self.folder = PrivateFolder(tempfile.gettempdir())
        self.address = os.path.join(self.folder.path, "server")
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
            listener.bind(self.address)
            listener.listen(128)
            arguments = [str(listener.fileno()), ",".join(modules), ",".join(ray_modules), "-" * _NAME]
            path = {"PYTHONPATH": os.pathsep.join(search_path())}
            self.process = subprocess.Popen(
                [sys.executable, "-c", _PROGRAM, *arguments],
                stdin=subprocess.PIPE,  # the server ends when stdin closes, and so with this process
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env={**os.environ, **_QUIET, **path, "DS_ACCELERATOR": "cpu"},
                pass_fds=[listener.fileno()],
                start_new_session=True,
            )

    def close(self) -> None:
        """End the server and remove its folder."""
        self.process.kill()
        self.process.communicate()
        self.folder.close()


def start(purpose: str) -> None:
    """Start the server with the modules of ``purpose``, unless it runs or an assumption fails."""
    global _server
    is_possible = sys.platform == "linux" and not any(map(os.path.exists, _GPUS))
    if _server is None and is_possible and os.environ.get(_OFF, "1") != "0" and _is_tested():
        _server = Server(*preloaded(purpose))
        atexit.register(stop)


@cache
def _is_tested() -> bool:
    if (installed := version("ray")) != _TESTED:
        say(f"workers start more slowly: starting them by fork is tested with Ray {_TESTED}, not with {installed}")
    return installed == _TESTED


def preloaded(purpose: str) -> tuple[list[str], list[str]]:
    """Return the modules that workers load for ``purpose``: those that do not import Ray, and those that do."""
    points = [(*point.name.partition("."), point.value) for point in entry_points(group="raysum.preload")]
    modules, ray_modules = [*_ANY], list[str]()
    for task in PURPOSES[purpose]:
        for name in _LIBRARIES[task]:
            (ray_modules if name.startswith("ray.") else modules).append(name)
        for registered, _, rest, name in points:
            if registered == task:
                (ray_modules if "ray" in rest.split(".") else modules).append(name)
    return modules, ray_modules


def stop() -> None:
    global _server
    if _server is not None:
        _server.close()
        _server = None


@contextmanager
def forked_workers() -> Iterator[None]:
    """Make a Ray that starts in the block start its workers by the server, if it runs."""
    if _server is None:
        yield
    else:
        with worker_script(start_worker.__file__), environment({start_worker.ADDRESS: _server.address}):
            yield


def main() -> None:
    """Run the server, which :class:`Server` starts as a process: fork a worker for each request until stdin closes.

    Ray and the modules that import it are imported at the first request, with its environment: Ray reads its job's
    identity once, when it is imported. Requests of other jobs get no answer, so their clients start Python.
    """
    number, modules, ray_modules, *_ = sys.argv[1:]
    listener, server = socket.socket(fileno=int(number)), os.getpid()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # no zombies
    _load(modules)
    served: list[str | None] | None = None
    while sys.stdin not in select.select([listener, sys.stdin], [], [])[0]:
        with listener.accept()[0] as connection:
            request, streams = _receive(connection)
            identity = [request["env"].get(name) for name in _IDENTITY] if request else []
            if request and served is None:
                served = identity
                _replace_environment(request["env"] | _QUIET)
                with no_ids_drawn():
                    _load(ray_modules)
                if len(os.listdir("/proc/self/task")) > 1 or _drawn_by_copy() == _drawn_by_copy():
                    break  # copies would lack the other threads, or generate the same ids
            if request and identity == served and os.fork() == 0:
                start_worker.end_with(server)
                with suppress(OSError):  # the client timed out
                    connection.send(b"1")
                connection.close()
                listener.close()
                _become(request, streams)
            for stream in streams:
                os.close(stream)
    os._exit(0)  # without clean-up of modules, which takes seconds


def _load(modules: str) -> None:
    gc.disable()
    for name in modules.split(","):
        with suppress(ImportError):
            importlib.import_module(name)
    gc.enable()
    gc.freeze()  # the collector would touch, and so copy, the memory of these objects in each fork


def _receive(connection: socket.socket) -> tuple[dict[str, Any] | None, list[int]]:
    """Return a client's request and its streams; None if the connection broke."""
    connection.settimeout(10)
    streams: list[int] = []
    with suppress(OSError, ValueError):
        _, streams, *_ = socket.recv_fds(connection, 1, 3)
        return json.load(connection.makefile()), streams
    return None, streams


def _drawn_by_copy() -> bytes:
    """Return an id that a fork of this process generates."""
    import ray

    reader, writer = os.pipe()
    if os.fork() == 0:
        os.write(writer, ray.NodeID.from_random().binary())
        os._exit(0)
    os.close(writer)
    with open(reader, "rb") as found:
        return found.read()


def _replace_environment(values: dict[str, str]) -> None:
    os.environ.clear()
    os.environ.update(values)


def _become(request: dict[str, Any], streams: list[int]) -> NoReturn:
    """Turn this fork into the process that ``request`` describes.

    Ray's set-up script executes a shell, which executes the worker's script in Python; this runs that script directly.
    """
    os.setsid()  # Ray kills the process group of a worker
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for target, stream in enumerate(streams):
        os.dup2(stream, target)
        os.close(stream)
    _replace_environment(request["env"])
    os.chdir(request["cwd"])
    signal.pthread_sigmask(signal.SIG_SETMASK, request["blocked"])
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")  # the value of Ray's workers
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed()
    execvp = os.execvp

    def execute(file: str, args: list[str]) -> NoReturn:
        os.execvp = execvp
        match shlex.split(args[-1]) if args[:-1] == ["bash", "-c"] else []:
            case ["exec", python, worker, *options] if python == request["python"] and worker.endswith(_WORKER):
                _run([worker, *options])
        execvp(file, args)

    os.execvp = execute  # type: ignore[assignment]
    _run(request["argv"])


def _run(argv: list[str]) -> NoReturn:
    sys.argv = argv
    sys.path.insert(0, os.path.dirname(argv[0]))
    runpy.run_path(argv[0], run_name="__main__")
    sys.exit(0)
