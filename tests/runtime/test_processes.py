"""What this process may use of its machine."""

import os
import subprocess
import sys

import pytest

from raysum.runtime.processes import cores, cpu_limit


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
    expected = given or {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "1000"}
    assert done.stdout.split() == [*(str(expected.get(name)) for name in names), "False"]
