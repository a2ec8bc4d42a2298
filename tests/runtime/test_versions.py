"""Hosts with other versions than the command are refused by name."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from helpers.project import ROOT
from raysum.errors import UserError
from raysum.runtime.versions import check_versions, own_versions


def test_each_version_that_differs_is_named():
    own = own_versions()
    assert {"raysum", "ray", "torch", "deepspeed", "Python", "code of raysum"} == own.keys()
    check_versions(own, "node-a", dict(own))
    other = {name: value for name, value in own.items() if name != "deepspeed"} | {"ray": "2.59.0"}
    with pytest.raises(
        UserError, match=r"host node-b has other versions .*: ray 2.59.0 instead of 2.\S+, deepspeed is"
    ):
        check_versions(own, "node-b", other)


CHECKED = """
import sys
import ray
from ray.cluster_utils import Cluster
from raysum.errors import UserError
from raysum.runtime.versions import check_nodes

cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "object_store_memory": 80 << 20})
ray.init(cluster.address, logging_level="error")
for path in sys.argv[1:]:
    node = cluster.add_node(num_cpus=1, object_store_memory=80 << 20, env_vars={"PYTHONPATH": path})
    try:
        check_nodes()
        print("accepted")
    except UserError as error:
        print(error)
    cluster.remove_node(node)
ray.shutdown()
cluster.shutdown()
"""


@pytest.mark.slow
def test_a_node_with_another_raysum_is_refused(tmp_path: Path):
    same, other, none = (tmp_path / name for name in ("same", "other", "none"))
    for folder in (same, other):
        shutil.copytree(ROOT / "raysum", folder / "raysum", ignore=shutil.ignore_patterns("__pycache__"))
    (other / "raysum-0.0.9.dist-info").mkdir()
    (other / "raysum-0.0.9.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: raysum\nVersion: 0.0.9\n")
    with (other / "raysum" / "errors.py").open("a") as file:
        file.write("# another line\n")
    (none / "raysum").mkdir(parents=True)
    (none / "raysum" / "__init__.py").write_text("raise ImportError('broken')")
    command = [sys.executable, "-c", CHECKED, str(same), str(other), str(none)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stderr
    accepted, refused, missing = done.stdout.splitlines()[-3:]
    assert accepted == "accepted"
    code = r"code of raysum \w{8} instead of \w{8}; install the same"
    assert re.search(rf"has other versions .*: raysum 0.0.9 instead of \S+, {code}", refused), refused
    assert "has no raysum, or another one than" in missing
