"""Private names of other libraries: every function of raysum/runtime/compat.py still has its effect.

Others are tested where their effect is seen: `loopback_only`, `stop_half_started` and `no_sigterm_handler` in
test_session.py, `worker_script` in test_forkserver.py, `boosted_trees` in extract/, `openai_client` in teach/.
"""

import inspect
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import grpc
import psutil
import pytest
import ray
import torch
from torch.nn.functional import linear

from raysum.runtime import compat


def test_a_packed_matrix_gives_the_plain_product():
    torch.manual_seed(0)
    weight, bias, x = torch.randn(300, 64), torch.randn(300), torch.randn(7, 64)
    for term in (bias, None):
        packed = compat.packed_weight(weight)
        torch.testing.assert_close(compat.onednn_linear(x, packed, term), linear(x, weight, term))
        torch.testing.assert_close(compat.onednn_linear(x, weight, term), linear(x, weight, term))
    assert compat.packed_weight(weight.bfloat16()) is None


def test_compiled_functions_serve_all_sizes_also_after_deepspeed_is_loaded():
    compat.load_deepspeed()
    graphs = []

    def backend(graph, _):
        graphs.append(graph)
        return graph.forward

    function = compat.compiled(lambda left, right: left.sum() * right, backend)
    for sizes in ((4, 4), (5, 5), (6, 7)):
        left, right = (torch.ones(size) for size in sizes)
        assert torch.equal(function(left, right), left.sum() * right)
    assert len(graphs) == 1


def test_the_search_path_is_absolute_and_in_order(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["b", "/a", "", "b", "/a"])
    assert compat.search_path() == [f"{tmp_path}/b", "/a", str(tmp_path)]


def test_workers_search_modules_where_the_driver_does_and_not_in_its_folder(ray_session):
    """The session's job config is from `same_modules`. Ray puts the script's folder first, and would the driver's."""
    found = ray.get(ray.remote(num_cpus=0)(lambda: list(sys.path)).remote())
    script = os.path.dirname(os.path.realpath(sys.argv[0]))
    known = [folder for folder in compat.search_path() if folder in found and folder != script]
    assert known and sorted(known, key=found.index) == known
    assert os.getcwd() in compat.search_path() or os.getcwd() not in found


def test_a_submitted_job_keeps_its_own_config(monkeypatch):
    monkeypatch.setenv("RAY_JOB_CONFIG_JSON_ENV_VAR", "{}")
    assert compat.same_modules() is None


def test_a_session_has_a_folder_and_processes_that_no_signal_to_this_group_reaches(ray_session):
    assert os.path.exists(f"{compat.session_folder()}/sockets")
    children = psutil.Process().children(recursive=True)
    assert not [child for child in children if "log_monitor" in " ".join(child.cmdline())]
    servers = [child for child in children if child.name() in ("raylet", "gcs_server")]
    assert len(servers) == 2
    assert os.getpgid(0) not in {os.getpgid(server.pid) for server in servers}


FORKS = """
import os, sys
from contextlib import nullcontext
from raysum.runtime.compat import no_ids_drawn

with no_ids_drawn() if sys.argv[1] == "kept" else nullcontext():
    import ray
    @ray.remote
    class Actor: ...
    import ray.data

def drawn():
    reader, writer = os.pipe()
    if os.fork() == 0:
        os.write(writer, ray.NodeID.from_random().binary())
        os._exit(0)
    os.close(writer)
    return open(reader, "rb").read()

sys.exit(drawn() == drawn())
"""


@pytest.mark.parametrize(("generator", "equal"), [("kept", False), ("drawn", True)])
def test_copies_of_a_process_draw_different_ids_if_it_drew_none(generator, equal):
    """If `drawn` fails, Ray's generator survives forks and `no_ids_drawn` can go."""
    done = subprocess.run([sys.executable, "-c", FORKS, generator], timeout=120, check=False)
    assert done.returncode == equal


TRAINING = """
import torch
from torch import distributed
from raysum.runtime.compat import full_precision_copies, leave_process_group, load_deepspeed
from raysum.runtime.processes import quiet_training
from raysum.train.group import lone_group

quiet_training()
load_deepspeed()
import sys, deepspeed
built = []
import deepspeed.ops.op_builder.builder as builder
builder.OpBuilder.jit_load = lambda self, verbose=True: built.append(self.name)
builder.probe_is_compatible = lambda *_: built.append("probed")
for attempt in range(2):
    with lone_group():
        model = torch.nn.Linear(4, 4)
        config = {"train_batch_size": 1, "bf16": {"enabled": True}, "zero_optimization": {"stage": 0}}
        config["optimizer"] = {"type": "Adam", "params": {"lr": 0.1, "torch_adam": True}}
        engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
        copies = full_precision_copies(engine.optimizer)
        assert {copy.dtype for copy in copies.values()} <= {torch.float32}
        assert all(parameter.dtype == torch.bfloat16 for parameter in engine.module.parameters())
        assert {id(parameter) for parameter in engine.module.parameters()} == {*copies}
        distributed.all_reduce(torch.ones(1))
    assert not distributed.is_initialized()
assert not built, built
assert "torch._inductor.compile_fx" not in sys.modules, "torch's compiler is loaded"
"""


def test_deepspeed_compiles_nothing_and_its_group_ends():
    done = subprocess.run([sys.executable, "-c", TRAINING], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr


def test_a_replica_opens_its_grpc_port_at_one_address(monkeypatch):
    from ray.serve._private import replica

    monkeypatch.setattr(replica, "add_port_to_grpc_server", replica.add_port_to_grpc_server)  # put back at the end
    compat.serve_grpc_at("127.0.0.1")
    server = grpc.server(ThreadPoolExecutor(1))
    port = replica.add_port_to_grpc_server(server, "[::]:0")  # as replica.py calls it
    server.start()
    try:
        listening = [one.laddr for one in psutil.Process().net_connections("inet") if one.laddr.port == port]
        assert [address.ip.removeprefix("::ffff:") for address in listening] == ["127.0.0.1"]
    finally:
        server.stop(None)
    assert "add_port_to_grpc_server(self._server" in inspect.getsource(replica)


@pytest.mark.parametrize(("mode", "required"), [("token", True), ("disabled", False)])
def test_it_is_known_whether_a_cluster_asks_for_its_token(mode, required):
    program = "from raysum.runtime.compat import requires_token; print(requires_token())"
    environment = {**os.environ, "RAY_AUTH_MODE": mode, "RAY_AUTH_TOKEN": "0" * 32}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment, timeout=60)
    assert done.stdout == f"{required}\n", done.stderr


DEATH = """
import os, ray, signal
from raysum.runtime.compat import dashboard, session_folder
from raysum.runtime.session import ray_session

@ray.remote(max_retries=0)
def die():
    print("a word of a worker")
    os._exit(1)

def end(number, frame):
    raise SystemExit(3)

assert dashboard() is None and session_folder() is None
signal.signal(signal.SIGTERM, end)
with ray_session(cpus=1):
    assert signal.getsignal(signal.SIGTERM) is end
    host, _, port = dashboard().removeprefix("http://").partition(":")
    assert host == "127.0.0.1" and int(port) > 0
    try:
        ray.get(die.remote())
    except ray.exceptions.WorkerCrashedError:
        pass
"""


@pytest.mark.slow
def test_a_session_tells_its_dashboard_and_keeps_workers_words_from_stdout(with_dashboard):
    done = subprocess.run([sys.executable, "-c", DEATH], capture_output=True, text=True, timeout=120, env=os.environ)
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""


TOLD = """
import sys
from raysum.runtime.compat import dashboard
from raysum.runtime.session import ray_session

with ray_session(cpus=1):
    print(dashboard(), flush=True)
    sys.stdin.read()
"""


@pytest.mark.long
@pytest.mark.slow
def test_sessions_that_start_at_one_moment_have_dashboards_of_their_own(with_dashboard):
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    sessions = [subprocess.Popen([sys.executable, "-c", TOLD], **pipes) for _ in range(2)]
    told = [session.stdout.readline() for session in sessions]
    assert len(set(told)) == 2 and all(address.startswith("http://127.0.0.1:") for address in told)
    for session in sessions:
        session.communicate(timeout=60)
        assert session.returncode == 0
