"""Newer checkpoints of a served run: each answer comes from one of them, and a damaged one is never served."""

import asyncio
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

import raysum
from helpers.small_runs import TEXTS, write_run
from raysum.errors import UserError
from raysum.runs.folder import Run
from raysum.serve.config import ModelConfig, ServeConfig
from raysum.serve.replicas import Model
from raysum.serve.served import Served, all_served

CLUSTER = {"id": "x", "title": "Florence", "documents": TEXTS}


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(write_run(tmp_path))


def add_checkpoint(run: Run, step: int, content: bytes | None = None) -> None:
    """Write the weights of step 3, scaled by the step, or ``content``, as a newer checkpoint appears: at once."""
    part = run.path / f".{step}"
    part.mkdir()
    weights = load_file(run.checkpoint_path(3) / "weights.safetensors")
    save_file({name: value * step for name, value in weights.items()}, part / "weights.safetensors")
    if content is not None:
        (part / "weights.safetensors").write_bytes(content)
    part.rename(run.checkpoint_path(step))


async def until(condition: Callable[[], Any]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.02)


def test_three_newer_checkpoints_are_served_without_a_failed_request(run: Run):
    earlier = {*threading.enumerate()}  # schedulers of other tests
    model = Model(Served.of(ModelConfig(run=str(run.path), follow=0.05)))
    answers: list[dict[str, Any]] = []

    async def client(is_over: asyncio.Event) -> None:
        while not is_over.is_set():
            answers.append(await model.summarize(CLUSTER, {}))

    async def ask() -> None:
        is_over = asyncio.Event()
        clients = [asyncio.create_task(client(is_over)) for _ in range(8)]
        for step in (4, 5, 6):
            add_checkpoint(run, step)
            await until(lambda step=step: model.describe()["step"] == step)
            seen = len(answers)
            await until(lambda seen=seen: len(answers) > seen + 16)
        is_over.set()
        await asyncio.gather(*clients)

    asyncio.run(ask())
    expected = {step: raysum.load(run.path, str(step)).summarize_many([CLUSTER])[0] for step in (3, 4, 5, 6)}
    steps = {answer["model"]["step"] for answer in answers}
    assert steps == {3, 4, 5, 6}
    for answer in answers:
        assert answer["model"]["run"] == "tiny"
        assert answer["summary"] == expected[answer["model"]["step"]].summary
    assert len({summary.summary for summary in expected.values()}) > 1, "otherwise the steps could be mixed up"
    deadline = time.monotonic() + 20  # the threads of the old schedulers end
    while len(decoding := [t for t in {*threading.enumerate()} - earlier if "_decode" in t.name]) > 1:
        assert time.monotonic() < deadline, decoding
        time.sleep(0.1)
    assert len(decoding) == 1


def test_a_damaged_checkpoint_is_rejected_with_its_reason_and_the_next_one_served(run: Run):
    model = Model(Served.of(ModelConfig(run=str(run.path), follow=0.05)))

    async def ask() -> None:
        add_checkpoint(run, 4, b"not weights")
        await until(lambda: model.describe()["rejected"])
        description = model.describe()
        assert (description["step"], description["rejected"]["step"]) == (3, 4)
        assert "weights.safetensors" in description["rejected"]["reason"]
        assert (await model.summarize(CLUSTER, {}))["model"] == {"run": "tiny", "step": 3}
        shutil.rmtree(run.checkpoint_path(4))
        add_checkpoint(run, 5)
        await until(lambda: model.describe()["step"] == 5)
        assert model.describe()["rejected"] is None

    asyncio.run(ask())


def test_a_named_step_and_follow_0_stay(run: Run):
    models = [
        Model(Served.of(ModelConfig(run=str(run.path), **how)))
        for how in ({"checkpoint": "3", "follow": 0.05}, {"follow": 0})
    ]
    add_checkpoint(run, 4)
    time.sleep(1)
    assert [model.describe()["step"] for model in models] == [3, 3]


def test_settings_apply_to_the_models_that_have_them(run: Run):
    config = ServeConfig(
        run={"fast": "lexrank", "own": str(run.path)}, dtype="int8", checkpoint="3", decode={"words": 9}
    )
    fast, own = (served.config for served in all_served(config).values())
    assert (fast.dtype, fast.checkpoint, fast.decode) == ("fp32", "best", {"words": 9})
    assert (own.dtype, own.checkpoint, own.decode) == ("int8", "3", {})
    with pytest.raises(UserError, match="dtype=int8 is for trained runs"):
        all_served(ServeConfig(run="lexrank", dtype="int8"))
