"""Each touch of what another library keeps to itself still does what it is there for: see raysum/runtime/compat.py."""

import inspect
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import grpc
import psutil
import pytest
import torch
from torch.nn.functional import linear

from raysum.runtime import compat


def test_a_packed_matrix_gives_the_plain_product():
    torch.manual_seed(0)
    weight, bias, x = torch.randn(300, 64), torch.randn(300), torch.randn(7, 64)
    for term in (bias, None):
        packed = compat.packed_linear(weight, term)
        assert packed is not None
        torch.testing.assert_close(packed(x), linear(x, weight, term))
    assert compat.packed_linear(weight.bfloat16(), bias.bfloat16()) is None


TRAINING = """
import torch
from torch import distributed
from raysum.runtime.compat import full_precision_copies, leave_process_group, load_deepspeed
from raysum.runtime.log_filters import quiet_training
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
import os, ray
from raysum.runtime.compat import dashboard
from raysum.runtime.session import ray_session

@ray.remote(max_retries=0)
def die():
    print("a word of a worker")
    os._exit(1)

assert dashboard() is None
with ray_session(cpus=1):
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
