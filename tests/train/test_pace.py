"""The comparison of the workers' speeds, in two processes."""

import json
import subprocess
import sys

RANK = """
import json, sys, time
import torch
from torch import distributed
from raysum.train import pace

rank, seconds, store = int(sys.argv[1]), json.loads(sys.argv[2]), sys.argv[3]
distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
pace._SECONDS = 0.1
measured, found = pace.Pace(torch.device("cpu")), []
for spent in seconds:
    for _ in range(20):
        with measured.forward(100):
            time.sleep(spent)
    found.append(measured.slow_host(["a", "b"]))
distributed.barrier()
distributed.destroy_process_group()
print(json.dumps(found))
"""


def compared(folder, first: list[float], second: list[float]) -> list:
    """What both processes find if a micro-batch takes so many seconds until each comparison."""
    found = []
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", RANK, str(rank), json.dumps(seconds), str(folder / "store")],
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank, seconds in enumerate((first, second))
    ]
    for process in processes:
        out, _ = process.communicate(timeout=120)
        assert process.returncode == 0
        found.append(json.loads(out))
    assert found[0] == found[1]
    return found[0]


def test_a_slow_host_is_found_once_until_it_recovers(tmp_path):
    first, second = [0.02] * 5, [0.02, 0.2, 0.2, 0.02, 0.2]
    found = compared(tmp_path, first, second)
    assert [each and each[0] for each in found] == [None, "b", None, None, "b"]
    assert found[1][1].startswith("worker 1 on b computes ")
