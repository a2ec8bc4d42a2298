"""What of a training does not serve it: positions computed without a token, and the time spent waiting for data."""

import time
from pathlib import Path

import numpy as np
import pytest
import torch

from helpers.small_datasets import write_dataset
from helpers.small_models import SYSTEMS
from raysum import systems
from raysum.config.decoding import SourceConfig
from raysum.config.sections import Config
from raysum.data.dataset import Dataset
from raysum.models.layers import FeedForward
from raysum.runtime.storage import read_lines
from raysum.stream.collators.alignment import Alignment
from raysum.stream.collators.base import kind_of
from raysum.stream.collators.sentences import Blocks
from raysum.stream.loader import batches
from raysum.stream.plan import PlanSettings
from raysum.stream.stream import Stream, plan_of
from raysum.train.fit import fit
from raysum.train.group import lone_group
from raysum.train.metrics_logger import Meter


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    return write_dataset(tmp_path_factory.mktemp("costs") / "data", {"train": 90, "valid": 9}, graph=True)


def streamed(data: Path, spec) -> Stream:
    return Stream(str(data), "train", SourceConfig(), PlanSettings(300, 4), kind_of(spec, Dataset.open(data)))


@pytest.mark.parametrize("name", SYSTEMS)
def test_padding_is_what_the_layers_of_each_system_compute_beside_the_tokens(name, data):
    spec = systems.spec_class(name).model_validate({"system": name, "vocabulary": 200, **SYSTEMS[name]})
    stream, model = streamed(data, spec), systems.build(spec)
    computed: set[int] = set()
    for layer in (module for module in model.modules() if isinstance(module, FeedForward)):
        layer.register_forward_pre_hook(lambda _, inputs: computed.add(inputs[0].numel() // spec.width))
    batch = max(batches(stream, 0, 1, 0, 4), key=lambda batch: stream.kind.padding(batch.arrays))
    source, target = stream.kind.tokens(batch.arrays)
    padding, paragraphs = stream.kind.padding(batch.arrays), len(batch.arrays["lengths"])
    assert padding > 0
    with torch.no_grad():
        systems.objective(spec, model, 0.0)(stream.kind.collate(batch.arrays))
    assert {source, target + padding} <= computed <= {source, target + padding, paragraphs}


def test_rows_that_are_padded_to_the_longest_count():
    lengths = np.array([4, 3, 9, 2, 5], np.int32)
    assert Blocks().padding({"lengths": lengths, "counts": np.array([2, 1, 2], np.int32)}) == 3 * 9 - 23
    assert Alignment().padding({"counts": np.array([5, 2, 5], np.int32)}) == 3


def test_waiting_is_counted_after_the_first_batch_and_pauses_are_not_part_of_it(data):
    spec = systems.spec_class("family").model_validate(SYSTEMS["family"])
    stream = streamed(data, spec)

    def slowly():
        for batch in batches(stream, 0, 1, 0, 6):
            time.sleep(0.1)
            yield batch

    with lone_group():
        meter, coming, held = Meter(torch.device("cpu"), {}), slowly(), 0
        for number in range(5):
            batch = meter.next_batch(coming)
            time.sleep(0.05)
            meter.add(1.0, stream.kind, batch)
            held += stream.kind.tokens(batch.arrays)[1]
            if number == 2:
                with meter.paused():
                    time.sleep(0.5)
        meter.step_done(held, None)
        line, state = meter.line(1, {"lr": 0.1}), meter.state()
    assert line["wait_share"] == pytest.approx(0.4 / 0.65, abs=0.1)
    assert state["waited"] == pytest.approx(0.4, abs=0.1) and state["stepped"] == pytest.approx(0.65, abs=0.15)


def test_a_stand_in_is_computed_for_nothing(data):
    stream = streamed(data, systems.spec_class("family").model_validate(SYSTEMS["family"]))
    steps = plan_of(stream).epoch(0).num_steps
    stand_in = next(batch for batch in batches(stream, 0, 1, steps - 1, steps) if not batch.real)
    with lone_group():
        meter = Meter(torch.device("cpu"), {})
        meter.add(1.0, stream.kind, stand_in)
        state = meter.state()
    tokens, padding = stream.kind.tokens(stand_in.arrays), stream.kind.padding(stand_in.arrays)
    assert (state["source_tokens"], state["target_tokens"], state["padding"]) == (0, 0, sum(tokens) + padding)


def test_a_training_writes_and_tells_what_did_not_serve_it(data, tmp_path, capsys):
    train = {"batch_tokens": 300, "micro_batches": 2, "workers": 0, "threads": 1, "log_every": 2}
    model = {"system": "family", **SYSTEMS["family"]}
    values = {"model": model, "data": str(data), "out": str(tmp_path / "run")}
    run = fit(Config(**values, train={**train, "steps": 3}))
    capsys.readouterr()
    run = fit(Config(**values, train={**train, "steps": 6}))
    lines = [line for line in read_lines(run.metrics) if "loss" in line]
    assert all(0 <= line["wait_share"] < 1 and 0 < line["padding_share"] < 0.5 for line in lines)
    state = run.latest().state
    stream = streamed(data, run.config.model)
    made = [*batches(Stream(str(data), "train", SourceConfig(), PlanSettings(300, 2), stream.kind), 0, 1, 0, 6)]
    empty = sum(sum(stream.kind.tokens(batch.arrays)) for batch in made if not batch.real)
    assert state["padding"] == empty + sum(stream.kind.padding(batch.arrays) for batch in made)
    share = state["padding"] / (state["padding"] + state["source_tokens"] + state["target_tokens"])
    told = capsys.readouterr().err
    assert "of the steps' time was spent waiting for data" in told and f"{share:.1%} of the tokens computed" in told
