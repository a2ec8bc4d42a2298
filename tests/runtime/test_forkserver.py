"""Ray's workers by fork: that they are copies, whole and different ones, and that Ray does without as well."""

import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import psutil
import pytest

from raysum.runtime import forkserver, start_worker
from raysum.runtime.forkserver import PURPOSES, preloaded
from raysum.runtime.lock import remove_leftovers
from raysum.runtime.session import make_ready

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

# Starts a session, an actor with an environment (as Ray Train's have) and three without, and tells what they are.
SCRIPT = """
import json, os, sys
import ray
from raysum.runtime.session import ray_session

class Told:
    def tell(self):
        import psutil, signal, threading
        ids = [ray.NodeID.from_random().hex()]
        thread = threading.Thread(target=lambda: ids.append(ray.NodeID.from_random().hex()))
        thread.start()
        thread.join()
        return {
            "module": __import__("raysum.runs.folder").__file__,
            "pid": os.getpid(), "ids": ids, "put": ray.put(1).hex(), "draw": __import__("numpy").random.random(),
            "copied": "raysum.runtime.forkserver" in " ".join(psutil.Process(os.getppid()).cmdline()),
            "loaded": "pandas" in sys.modules, "variable": os.environ.get("RAYSUM_TEST"), "group": os.getpgid(0),
            "child": signal.getsignal(signal.SIGCHLD) == signal.SIG_DFL,
        }

with ray_session(cpus=4):
    actors = [
        ray.remote(num_cpus=0, runtime_env={"env_vars": {"RAYSUM_TEST": "1"}})(Told).remote(),
        *[ray.remote(num_cpus=0)(Told).remote() for _ in range(3)],
    ]
    print(json.dumps(ray.get([actor.tell.remote() for actor in actors])), flush=True)
    if sys.argv[1:] == ["wait"]:
        sys.stdin.readline()
        print(json.dumps(ray.get(ray.remote(num_cpus=0)(Told).remote().tell.remote())), flush=True)
"""
PIPES = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}


def started(*arguments: str, **variables: str) -> tuple[subprocess.Popen, list[dict]]:
    """A process of the script, and what it tells of its actors."""
    process = subprocess.Popen([sys.executable, "-c", SCRIPT, *arguments], env=os.environ | variables, **PIPES)
    return process, json.loads(process.stdout.readline())


def left_after(family: list[psutil.Process], seconds: float) -> list[psutil.Process]:
    """What of ``family`` still runs after so many seconds."""
    _, alive = psutil.wait_procs(family, timeout=seconds)
    return [process for process in alive if process.is_running() and process.status() != psutil.STATUS_ZOMBIE]


has_forks = sys.platform == "linux" and not os.path.exists("/dev/nvidiactl")
needs_forks = pytest.mark.skipif(not has_forks, reason="processes are not copied here")


def test_what_is_loaded_ahead_is_there():
    names = {name for purpose in PURPOSES for group in preloaded(purpose) for name in group}
    assert {"raysum.train.fit", "raysum.evaluate.scorers", "raysum.serve.replicas", "deepspeed"} <= names
    assert not [name for name in names if importlib.util.find_spec(name) is None]
    before, after = preloaded("train")
    assert "raysum.train.worker" in before and {"ray.data", "raysum.train.ray_trainer"} <= {*after}


@needs_forks
def test_workers_are_copies_and_no_two_are_the_same():
    process, found = started()
    assert process.wait(60) == 0
    assert all(one["copied"] and one["loaded"] and one["child"] for one in found)
    assert [one["variable"] for one in found] == ["1", None, None, None]
    ids = [number for one in found for number in one["ids"]]
    assert len(set(ids)) == len(ids), "copies of Ray's library draw the same ids"
    assert len({one["put"] for one in found}) == len({one["draw"] for one in found}) == 4
    assert all(one["group"] == one["pid"] for one in found), "Ray ends a worker with its group of processes"


@needs_forks
@pytest.mark.long
def test_without_its_server_a_session_goes_on_with_processes_as_ever():
    process, found = started("wait")
    children = psutil.Process(process.pid).children()
    (server,) = [child for child in children if "raysum.runtime.forkserver" in " ".join(child.cmdline())]
    family = [server, *server.children(recursive=True)]
    server.send_signal(signal.SIGKILL)
    assert not left_after([server], 20)
    another = json.loads(process.communicate("\n", timeout=60)[0])
    assert not another["copied"] and another["pid"] not in {one["pid"] for one in found}
    assert process.returncode == 0
    assert not left_after(family, 20)


@needs_forks
def test_copies_end_with_a_killed_driver_and_the_next_session_removes_its_folders(request):
    folder = Path(tempfile.mkdtemp())  # a short path: Ray puts sockets there
    request.addfinalizer(lambda: shutil.rmtree(folder, ignore_errors=True))
    process, _ = started("wait", TMPDIR=str(folder))
    assert list(folder.glob("raysum-*/server"))
    family = psutil.Process(process.pid).children(recursive=True)
    family = [child for child in family if "Agent" not in " ".join(child.cmdline())]
    process.kill()
    process.wait()
    assert not left_after(family, 60)
    remove_leftovers(str(folder))
    assert not list(folder.glob("raysum-*"))


def test_with_an_untested_ray_no_server_starts_and_one_line_says_so(monkeypatch, capsys):
    monkeypatch.setattr(forkserver, "_server", None)
    monkeypatch.setattr(forkserver, "version", lambda package: {"ray": "2.61.0"}[package])
    forkserver._is_tested.cache_clear()
    try:
        forkserver.start("train")
        forkserver.start("train")
        assert forkserver._server is None
    finally:
        forkserver._is_tested.cache_clear()
    assert capsys.readouterr().err.count("2.61.0") == 1


def test_where_ray_runs_already_nothing_is_loaded_ahead(ray_session, monkeypatch):
    monkeypatch.setattr(forkserver, "_server", None)
    make_ready("train")
    assert forkserver._server is None


@pytest.mark.long
@pytest.mark.parametrize("forks", ["1", "0"])
def test_workers_import_what_the_driver_does_whatever_the_current_folder_holds(tmp_path, forks):
    other, script = tmp_path / "here" / "raysum", tmp_path / "scripts" / "driver.py"
    other.mkdir(parents=True)
    script.parent.mkdir()
    (other / "__init__.py").write_text("raise ImportError('this is another one')")
    script.write_text(SCRIPT)
    root = Path(forkserver.__file__).parents[2]
    environment = os.environ | {"RAYSUM_FORKS": forks, "PYTHONPATH": str(root)}
    done = subprocess.run([sys.executable, str(script)], cwd=other.parent, env=environment, check=True, **PIPES)
    found = json.loads(done.stdout)
    assert {one["module"] for one in found} == {str(root / "raysum" / "__init__.py")}
    assert all(one["copied"] == (forks == "1" and has_forks) for one in found)
    assert [one["variable"] for one in found] == ["1", None, None, None]


RAYLET = """
import os, subprocess, sys
subprocess.run(sys.argv[1:], env=os.environ | {"RAY_RAYLET_PID": str(os.getpid())})
"""


def test_a_process_as_ever_is_not_started_for_a_dead_raylet_and_ends_with_a_living_one(tmp_path):
    (tmp_path / "worker.py").write_text("print('started', flush=True)\nimport time\ntime.sleep(300)\n")
    command = [sys.executable, start_worker.__file__, str(tmp_path / "worker.py")]
    environment = os.environ | {start_worker.ADDRESS: str(tmp_path / "no-server")}
    gone = subprocess.run(command, env=environment | {"RAY_RAYLET_PID": "1"}, capture_output=True, timeout=60)
    assert (gone.returncode, gone.stdout) == (1, b"")
    raylet = subprocess.Popen([sys.executable, "-c", RAYLET, *command], env=environment, **PIPES)
    assert raylet.stdout is not None and raylet.stdout.readline() == "started\n"
    family = psutil.Process(raylet.pid).children(recursive=True)
    assert family
    raylet.kill()
    raylet.communicate()
    assert not left_after(family, 10)
