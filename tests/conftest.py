"""Fixtures shared by all tests: the shared data, one Ray session."""

import os
import signal
from pathlib import Path

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ |= {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "3000"}  # as raysum sets it
os.environ.setdefault("RAYSUM_NO_DASHBOARD", "1")  # of the commands that tests start: it takes 10 s of a core each
# What a test starts takes signals as from a terminal, also where the tests themselves run under nohup or in background.
signal.signal(signal.SIGHUP, signal.SIG_DFL)
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with slow tests come first, so that no worker runs one alone at the end."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of shared data (RAYSUM_SHARED, by default beside the project)."""
    folder = Path(os.environ.get("RAYSUM_SHARED", Path(__file__).resolve().parents[2] / "shared"))
    if not folder.is_dir():
        if os.environ.get("RAYSUM_REQUIRE_SHARED") == "1":
            pytest.fail(f"no shared data at {folder}; set RAYSUM_SHARED")
        pytest.skip(f"no shared data at {folder}; set RAYSUM_SHARED to its folder")
    return folder


@pytest.fixture(scope="session")
def ray_session():
    """One local Ray session for all tests that need one."""
    from raysum.runtime.session import ray_session

    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("RAYSUM_NO_DASHBOARD", raising=False)
        with ray_session(cpus=4, purpose="search"):
            yield


@pytest.fixture
def with_dashboard(monkeypatch):
    """Sessions that the test starts have a dashboard."""
    monkeypatch.delenv("RAYSUM_NO_DASHBOARD", raising=False)  # a session of this process may have removed it
