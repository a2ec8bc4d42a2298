"""Ray's workers by fork: one process imports what they need, once, and each of them is a copy of it.

A start of Ray Train or Tune makes a dozen processes, which would each import Ray, pandas, torch and DeepSpeed for
seconds. While a session of our own starts, Ray is told another Python (``forked_python``): a shell script that runs
``forkclient.py`` for workers of Ray, which asks the server for a copy of itself, and Python for everything else. What
is not as expected - no server, threads in it, another job - ends in the start of a Python as ever.
"""

import atexit
import gc
import importlib
import json
import os
import runpy
import select
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NoReturn
from unittest import mock

from raysum.runtime.compat import no_ids_drawn, search_path
from raysum.runtime.forkclient import end_with
from raysum.runtime.private_folder import PrivateFolder

# What workers load, first without Ray and then of it.
_ANY = ("uvloop", "requests", "jsonschema", "pandas", "pyarrow.dataset", "pyarrow.parquet", "fsspec", "pydantic")
_TRAINING = ("torch.distributed", "torch._dynamo", "deepspeed", "raysum.train.worker")
_DECODING = ("safetensors.torch", "raysum.decode.summarizer", "raysum.evaluate.scorers", "syntok.segmenter")
_RAY_TRAINING = ("ray.data", "ray.train.v2.api.data_parallel_trainer", "raysum.train.backend", "raysum.train.fit")
_RAY_DECODING = ("ray.data", "ray.tune", "raysum.tune.decoding")

PURPOSES = {
    "data": (_ANY, ("ray.data",)),
    "train": ((*_ANY, *_TRAINING), _RAY_TRAINING),
    "decode": ((*_ANY, *_DECODING), _RAY_DECODING),
    "serve": ((*_ANY, "safetensors.torch", "raysum.decode.summarizer"), ("ray.serve", "raysum.serve.replicas")),
    "search": ((*_ANY, *_TRAINING, *_DECODING), (*_RAY_TRAINING, *_RAY_DECODING, "raysum.tune.training")),
}

_OFF = "RAYSUM_FORKS"  # set to 0 in the environment: workers are started as Ray does
_GPUS = ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg")  # of NVIDIA, of AMD, and of either under Windows
_CLIENT = Path(__file__).with_name("forkclient.py")
_WORKER = "/default_worker.py"  # Ray's script
_IDENTITY = ("RAY_JOB_ID", "RAY_RAYLET_PID")  # what Ray's library reads when it is loaded
# Not by `-m`, which looks for packages in the current folder first.
_PROGRAM = "import sys; sys.path[:] = filter(None, sys.path); from raysum.runtime.forkserver import run; run()"
_NAME = 120  # characters that a process may call itself; its command has as many
# So that importing starts no threads: a fork copies none.
_QUIET = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "JE_ARROW_MALLOC_CONF": "background_thread:false"}

_server: "Server | None" = None


class Server:
    """The server's process, and the script that stands for Python, in a folder of their own."""

    def __init__(self, modules: tuple[str, ...], ray_modules: tuple[str, ...]):
        self.folder = PrivateFolder(tempfile.gettempdir())
        address, self.python = os.path.join(self.folder.path, "server"), os.path.join(self.folder.path, "python")
        client = shlex.join([sys.executable, "-IS", str(_CLIENT), address, sys.executable])
        Path(self.python).write_text(
            f'#!/bin/sh\ncase "$1" in\n  */_private/workers/*) exec {client} "$@" ;;\nesac\n'
            f'exec {shlex.quote(sys.executable)} "$@"\n'
        )
        os.chmod(self.python, 0o700)
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
            listener.bind(address)
            listener.listen(128)
            command = [sys.executable, "-c", _PROGRAM, str(listener.fileno())]
            path = {"PYTHONPATH": os.pathsep.join(search_path())}
            self.process = subprocess.Popen(
                [*command, ",".join(modules), ",".join(ray_modules), "-" * _NAME],
                stdin=subprocess.PIPE,  # the server ends where that does, and so with us
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env={**os.environ, **_QUIET, **path, "DS_ACCELERATOR": "cpu"},
                pass_fds=[listener.fileno()],
                start_new_session=True,
            )

    def close(self) -> None:
        """End the server, and what Ray has left of its copies."""
        self.process.kill()
        self.process.communicate()
        self.folder.remove()


def start(purpose: str) -> None:
    """Let the server import what workers of ``purpose`` load, if it does not yet; not beside GPUs, for CUDA's sake."""
    global _server
    wanted = os.environ.get(_OFF, "1") != "0" and sys.platform == "linux" and not any(map(os.path.exists, _GPUS))
    if wanted and _server is None:
        _server = Server(*PURPOSES[purpose])
        atexit.register(stop)


def stop() -> None:
    global _server
    if _server is not None:
        _server.close()
        _server = None


@contextmanager
def forked_python() -> Iterator[None]:
    """Ray, started in the block, starts its workers by the server, if there is one."""
    if _server is None or not os.access(_server.python, os.X_OK):  # where temporary files cannot be run
        yield
        return
    import multiprocessing.spawn  # noqa: F401 - remembers which Python there is

    with mock.patch.object(sys, "executable", _server.python):
        yield


def run() -> None:
    """The server as a process of its own: what :class:`Server` starts."""
    listener, before_ray, with_ray, *_ = sys.argv[1:]
    main(socket.socket(fileno=int(listener)), before_ray.split(","), with_ray.split(","))


def main(listener: socket.socket, modules: list[str], ray_modules: list[str]) -> None:
    """The server: import ``modules``, then become a worker at each request, in a copy, until stdin is at its end.

    Ray and ``ray_modules`` are imported at the first request, as its worker would: Ray's library reads then, once, of
    which job it is part. Requests of other jobs are declined: they get no answer.
    """
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the copies
    _load(modules)
    served: list[str | None] | None = None
    server = os.getpid()
    while sys.stdin not in select.select([listener, sys.stdin], [], [])[0]:
        with listener.accept()[0] as connection:
            request, streams = _receive(connection)
            identity = [request["env"].get(name) for name in _IDENTITY] if request else []
            if request and served is None:
                served = identity
                _replace_environment(request["env"] | _QUIET)
                with no_ids_drawn():
                    _load(ray_modules)
                if not _may_be_copied():
                    break
            if request and identity == served and os.fork() == 0:
                end_with(server)
                with suppress(OSError):  # the client has given up
                    connection.send(b"1")
                connection.close()
                listener.close()
                _become(request, streams)
            for stream in streams:
                os.close(stream)
    else:  # the driver has ended, perhaps without a word
        shutil.rmtree(os.path.dirname(listener.getsockname()), ignore_errors=True)
    os._exit(0)  # at once: to take apart what is loaded takes seconds


def _load(modules: list[str]) -> None:
    gc.disable()
    for name in modules:
        with suppress(ImportError):
            importlib.import_module(name)
    gc.enable()
    gc.freeze()  # not to be looked at, and so copied, by each copy


def _receive(connection: socket.socket) -> tuple[dict[str, Any] | None, list[int]]:
    """A request of the client and its streams; None where it broke off."""
    connection.settimeout(10)
    streams: list[int] = []
    with suppress(OSError, ValueError):
        _, streams, *_ = socket.recv_fds(connection, 1, 3)
        return json.load(connection.makefile()), streams
    return None, streams


def _may_be_copied() -> bool:
    """Whether this process has no other threads, and copies of it draw different ids."""
    return len(os.listdir("/proc/self/task")) == 1 and _drawn_by_copy() != _drawn_by_copy()


def _drawn_by_copy() -> bytes:
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
    """Turn this copy into the process that ``request`` describes.

    Ray's script that sets up a worker becomes a shell that becomes the worker; one in our Python is run here instead.
    """
    os.setsid()  # Ray ends a worker with its group of processes
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for target, stream in enumerate(streams):
        os.dup2(stream, target)
        os.close(stream)
    _replace_environment(request["env"])
    os.chdir(request["cwd"])
    signal.pthread_sigmask(signal.SIG_SETMASK, request["blocked"])
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")  # as Ray's workers have
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
