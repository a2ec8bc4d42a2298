"""Streaming speed of a dataset: start-up, rows and tokens per second, padding, and the time a model waits.

With ``ranks``: what one more rank costs.
"""

import time
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import psutil
import torch
from pydantic import Field

from raysum.bench.base import Number, PresetBench, Row, Threads
from raysum.bench.inputs import wikisum_like
from raysum.bench.machine import Machine
from raysum.bench.train import ENDLESS, training_step, wait_share
from raysum.config.sections import Config
from raysum.data.dataset import Dataset
from raysum.models.batch import move
from raysum.runtime.placement import device
from raysum.runtime.processes import peak_rss_mb, quiet_data
from raysum.runtime.session import ray_session
from raysum.stream.collators.base import kind_of
from raysum.stream.loader import MicroBatch, Reader, batches, ray_dataset, step_ranges
from raysum.stream.plan import PlanSettings
from raysum.stream.stream import Stream, plan_of
from raysum.tokenizers.loading import load_tokenizer

_DRIVER_STEPS = 500_000  # of a long training


class StreamBench(PresetBench):
    """A row for each preset, or for each preset and number of ranks."""

    NAME: ClassVar[str] = "stream"
    presets: list[str] = Field(["pht"], min_length=1, description="models that consume the batches")
    data: str | None = Field(None, description="dataset, split train; None = a generated one like WikiSum")
    rows: int = Field(20_000, gt=0, description="rows of the generated dataset")
    seconds: float = Field(5.0, gt=0, description="duration of the measurement of throughput")
    steps: int = Field(6, ge=0, description="micro-batches to train on, to measure waiting; 0 = none")
    threads: Threads = Field(2, description="CPU threads")
    ranks: list[Number] = Field([], description="measure reading an epoch for these numbers of ranks instead")

    def cases(self, scratch: Path) -> Iterable[tuple[Any, ...]]:
        configs = self.configs()
        data = self.data or str(wikisum_like(scratch / "data", self.rows))
        return [(data, *preset, ranks) for preset in configs for ranks in self.ranks or [0]]

    def row(self, _: Machine, data: str, preset: str, config: Config, ranks: int) -> Row:
        if ranks:
            return {"preset": preset, "ranks": ranks} | ranks_row(data, config, ranks, max(self.ranks))
        return {"preset": preset, "dtype": "fp32", "threads": self.threads} | self.stream_row(data, config)

    def stream_row(self, data: str, config: Config) -> Row:
        """Return the figures of one model, measured in this process. The wait for the first batch is start-up time."""
        torch.set_num_threads(self.threads)
        times = [time.perf_counter()]
        dataset = Dataset.open(data)
        dataset.check_shards()
        times.append(time.perf_counter())
        stream = _stream(dataset, config, config.train.micro_batches)
        steps = plan_of(stream).epoch(0).num_steps
        times.append(time.perf_counter())
        stream_batches = batches(stream, 0, 1, 0, ENDLESS)
        next(stream_batches)
        times.append(time.perf_counter())
        opened, planned, arrived = np.diff(times).tolist()
        row: Row = {"open_s": opened, "plan_s": planned, "rows": dataset.rows("train"), "steps": steps}
        row["first_batch_s"] = arrived
        row |= _throughput(stream, stream_batches, self.seconds) | {"peak_rss_mb": peak_rss_mb()}
        if self.steps:
            given: Any = config.model
            model = given.with_tokenizer(load_tokenizer(dataset.vocabulary_path))
            if self.data or model.vocabulary > given.vocabulary:  # generated rows need few of the ids
                config = config.model_copy(update={"model": model})
            first = stream.kind.collate(next(stream_batches).arrays)
            step, _ = training_step(config, move(first, device()), "fp32")
            row["wait_share"] = wait_share(stream, step, self.steps)
        return row


def ranks_row(data: str, config: Config, ranks: int, micro_batches: int) -> Row:
    """Return what reading an epoch for ``ranks`` ranks costs, with steps of ``micro_batches`` micro-batches.

    The CPU time is that of a reading task's work in this process. ``driver_mb`` is the memory of this process as the
    driver of a training of ``_DRIVER_STEPS`` steps, after it handed out the first blocks of all ranks, and
    ``driver_stream_mb`` what the stream added to it.
    """
    dataset = Dataset.open(data)
    stream = _stream(dataset, config, micro_batches)
    steps = plan_of(stream).epoch(0).num_steps
    row: Row = {"rows": dataset.rows("train"), "steps": steps} | _driver_memory(stream, ranks)
    opened = used = 0
    began = time.process_time()
    for some in step_ranges(plan_of(stream), 0, steps):
        reader = Reader(stream, some, range(ranks), ranks)
        for block in reader.blocks():
            used += sum(len(batch.arrays["counts"]) for batches in block for batch in batches if batch.real)
        opened += reader.opened
    return row | {"opened_per_row": opened / used, "cpu_us_per_row": (time.process_time() - began) / used * 1e6}


def _driver_memory(stream: Stream, ranks: int) -> Row:
    process = psutil.Process()
    with ray_session(cpus=4, purpose="data"):
        quiet_data()
        before = process.memory_info().rss
        dataset = ray_dataset(stream, ranks, 0, _DRIVER_STEPS)
        dataset.context.execution_options.preserve_order = True
        for _ in islice(dataset.iter_internal_ref_bundles(), 2 * ranks):  # without their data, as in a training
            pass
        after = process.memory_info().rss
    return {"driver_mb": after / (1 << 20), "driver_stream_mb": (after - before) / (1 << 20)}


def _stream(dataset: Dataset, config: Config, micro_batches: int) -> Stream:
    train = config.train
    plans = PlanSettings(train.most_tokens, micro_batches, train.window, train.seed)
    return Stream(dataset.address, "train", config.source, plans, kind_of(config.model, dataset))


def _throughput(stream: Stream, stream_batches: Iterator[MicroBatch], seconds: float) -> Row:
    """Return the figures of the micro-batches that arrive in ``seconds``."""
    rows = micro_batches = tokens = padding = 0
    began = time.perf_counter()
    while (spent := time.perf_counter() - began) < seconds:
        micro_batch = next(stream_batches)
        micro_batches, rows = micro_batches + 1, rows + len(micro_batch.arrays["counts"])
        tokens += sum(stream.kind.tokens(micro_batch.arrays))
        padding += stream.kind.padding(micro_batch.arrays)
    return {
        "rows_per_s": rows / spent,
        "tokens_per_s": tokens / spent,
        "micro_batches_per_s": micro_batches / spent,
        "padding_share": padding / (tokens + padding),
        "seconds": spent,
    }
