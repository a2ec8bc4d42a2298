"""What this process may use of its machine."""

import json
import os
import subprocess
import sys

import psutil
import pytest

from raysum.runtime.processes import available_memory, cores, cpu_limit


@pytest.mark.parametrize(
    "files, expected",
    [
        ({"cpu.max": "200000 100000\n"}, 2),
        ({"cpu.max": "150000 100000\n"}, 2),
        ({"cpu.max": "10000 100000\n"}, 1),
        ({"cpu.max": "max 100000\n"}, None),
        ({"cpu.max": ""}, None),
        ({"cpu/cpu.cfs_quota_us": "300000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 3),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, None),
        ({}, None),
    ],
)
def test_cpu_limit_of_a_container(tmp_path, files, expected):
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert cpu_limit(tmp_path) == expected


V2 = {"memory.max": "1000\n", "memory.current": "900\n", "memory.stat": "file 300\ninactive_file 200\n"}
V1 = {"memory.limit_in_bytes": "1000\n", "memory.usage_in_bytes": "900\n"}
UNLIMITED = {"memory.limit_in_bytes": f"{2**63 - 4096}\n"}
V1 |= {"memory.stat": "inactive_file 7\nhierarchical_memory_limit 1000\ntotal_inactive_file 250\n"}


@pytest.mark.parametrize(
    "files, expected",
    [
        (V2, 300),
        (V2 | {"memory.max": "max\n"}, None),
        ({f"memory/{name}": text for name, text in V1.items()}, 350),
        (
            {f"memory/{name}": text for name, text in (V1 | UNLIMITED).items()},
            None,
        ),
        ({}, None),
    ],
)
def test_memory_is_limited_by_the_control_group(tmp_path, files, expected):
    """Cached files that the kernel drops first count as free; None is the memory of the machine."""
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    found, machine = available_memory(tmp_path), psutil.virtual_memory().available
    assert found == expected if expected else found == pytest.approx(machine, rel=0.2)


def test_no_more_cores_are_used_than_the_process_may():
    allowed = os.sched_getaffinity(0)
    assert 1 <= cores() <= len(allowed)
    os.sched_setaffinity(0, {min(allowed)})
    try:
        assert cores() == 1
    finally:
        os.sched_setaffinity(0, allowed)


@pytest.mark.parametrize("given", [{}, {"OMP_WAIT_POLICY": "ACTIVE"}, {"GOMP_SPINCOUNT": "5"}])
def test_threads_that_wait_sleep_from_the_import_on_also_in_a_notebook(given):
    names = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")
    code = f"import raysum, os, sys; print(*(os.environ.get(one) for one in {names}), 'torch' in sys.modules)"
    values = {name: value for name, value in os.environ.items() if name not in names} | given
    done = subprocess.run([sys.executable, "-c", code], env=values, capture_output=True, text=True, check=True)
    expected = given or {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "3000"}
    assert done.stdout.split() == [*(str(expected.get(name)) for name in names), "False"]


RUN_NEAR = """
import json, os, sys, threading
from pathlib import Path
from raysum.runtime.processes import run_near

def affinities():
    return [sorted(os.sched_getaffinity(int(thread))) for thread in os.listdir("/proc/self/task")]

stop = threading.Event()
threading.Thread(target=stop.wait).start()
run_near(sys.argv[2], Path(sys.argv[1]))
threading.Thread(target=stop.wait).start()
print(json.dumps(affinities()))
stop.set()
"""
OWN = sorted(os.sched_getaffinity(0))


@pytest.mark.parametrize(
    "cores_near, expected",
    [
        (f"{OWN[-1]}", OWN[-1:]),
        (f"{OWN[0]},4000-4003", OWN[:1]),
        ("0-5000", OWN),
        ("4000-4003", OWN),  # none that the process may use
        ("", OWN),  # unknown to the kernel
        (None, OWN),
    ],
)
def test_all_threads_run_on_the_cores_next_to_a_device(tmp_path, cores_near, expected):
    if cores_near is not None:
        (tmp_path / "0000:4f:00.0").mkdir()
        (tmp_path / "0000:4f:00.0" / "local_cpulist").write_text(cores_near + "\n")
    command = [sys.executable, "-c", RUN_NEAR, str(tmp_path), "0000:4f:00.0"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == [expected] * 3
