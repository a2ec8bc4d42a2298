"""The versions of raysum and its engines on the hosts of a cluster, which must be equal on all of them."""

import hashlib
import platform
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from raysum.errors import UserError

_PACKAGES = ("raysum", "ray", "torch", "deepspeed")
_FIX = "install the same on all hosts: the same image, or the same wheel and constraints.txt"
_TIMEOUT = 120.0  # seconds; a node that does not answer is checked when a worker starts there


@cache
def own_versions() -> dict[str, str]:
    """Return the versions of this process by name. "code of raysum" is a hash of its modules."""
    import raysum

    versions = {package: version(package).partition("+")[0] for package in _PACKAGES}  # without +cpu, +cu128
    folder, content = Path(raysum.__file__).parent, hashlib.sha256()
    for file in sorted(folder.rglob("*.py")):
        if file.parent.name == "spaces":  # search spaces, which a checkout has in another folder
            continue
        content.update(f"{file.relative_to(folder)}\n".encode() + file.read_bytes())
    versions["Python"] = ".".join(platform.python_version_tuple()[:2])
    return versions | {"code of raysum": content.hexdigest()[:8]}


def check_versions(expected: dict[str, str], host: str, found: dict[str, str]) -> None:
    """Raises UserError that names the ``host`` and each version that differs from the ``expected`` one."""
    if differences := [
        f"{name} {found.get(name, 'is missing')} instead of {value}"
        for name, value in expected.items()
        if found.get(name) != value
    ]:
        raise UserError(f"host {host} has other versions than the command: {', '.join(differences)}; {_FIX}")


def check_nodes() -> None:
    """Raises UserError if a node of the joined cluster has other versions than this process."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    nodes = [node for node in ray.nodes() if node["Alive"]]
    if len(nodes) == 1:
        return

    def versions() -> dict[str, str]:  # a nested function is sent as code, also to a host without raysum
        from raysum.runtime.versions import own_versions

        return own_versions()

    task: Any = ray.remote(num_cpus=0, max_retries=0)(versions)
    answers = {}
    for node in nodes:
        there = NodeAffinitySchedulingStrategy(node["NodeID"], soft=True)
        answers[task.options(scheduling_strategy=there).remote()] = node["NodeManagerHostname"]
    ready, _ = ray.wait(list(answers), num_returns=len(answers), timeout=_TIMEOUT)
    for answer in ready:
        try:
            found = ray.get(answer)
        except ray.exceptions.RayTaskError:
            message = f"has no raysum, or another one than {own_versions()['raysum']}"
            raise UserError(f"host {answers[answer]} {message}; {_FIX}") from None
        except ray.exceptions.RayError:  # the node is gone
            continue
        check_versions(own_versions(), answers[answer], found)
