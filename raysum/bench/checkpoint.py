"""Cost of saving checkpoints during a training: the time that training stops, the time of writing, size and memory."""

import os
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any, ClassVar, Literal

from pydantic import Field
from torch import distributed

from raysum import systems
from raysum.bench.base import Bench, Row, Threads, alone, ending_processes
from raysum.bench.inputs import full_size
from raysum.bench.machine import Machine
from raysum.config.sections import Config
from raysum.data.dataset import Dataset
from raysum.runs.folder import Run
from raysum.runtime.compat import leave_process_group
from raysum.runtime.processes import configure_process, peak_rss_mb
from raysum.stream.loader import batches
from raysum.train.checkpoint_writer import CheckpointWriter
from raysum.train.engine import build_engine
from raysum.train.group import from_all_ranks
from raysum.train.job_spec import JobSpec, job_spec_of
from raysum.train.metrics_logger import Meter
from raysum.train.worker import step

_SIZES = {25: (384, 6, 6), 140: (768, 9, 8), 400: (1024, 13, 14)}  # width, encoder and decoder layers
_TARGET, _STEPS, _VOCABULARY = 40, 3, 60  # tokens of a target; steps before the first save; of the generated dataset
_SETTINGS = {
    "source": {"max_paragraphs": 4, "paragraph_tokens": 40},
    "optim": {"lr": 1e-5, "schedule": "constant", "warmup_steps": 0},
}


class CheckpointBench(Bench):
    """A row for each size of the model and ZeRO stage. The workers train while their checkpoints are written."""

    NAME: ClassVar[str] = "checkpoint"
    parameters: list[Literal[25, 140, 400]] = Field([25, 140, 400], min_length=1, description="millions, a row each")
    stages: list[Literal[0, 1, 2, 3]] = Field([2], min_length=1, description="ZeRO stages")
    bf16: bool = Field(False, description="train in bf16 instead of fp32")
    workers: int = Field(2, gt=0, le=256, description="processes of the training")
    threads: Threads = Field(1, description="threads of each worker")
    saves: int = Field(3, gt=1, description="checkpoints; the median of those after the first counts")

    def cases(self, scratch: Path) -> Iterable[tuple[Any, ...]]:
        cases = dict.fromkeys(product(self.parameters, self.stages))
        return [(scratch / f"{size}-{stage}", size, stage) for size, stage in cases]

    def measured(self, _: Machine, folder: Path, size: int, stage: int) -> Row:
        """Return the figures of rank 0, the largest peak memory of a worker, and the size of a checkpoint."""
        config, ranks = self._config(size, stage), range(self.workers)
        (folder / "data").mkdir(parents=True)
        full_size(folder / "data", config, _TARGET)
        with ThreadPoolExecutor(self.workers) as threads, ending_processes():
            rows = [*threads.map(lambda rank: alone(self.row, folder, config, rank), ranks)]
        dtype = "bf16" if self.bf16 else "fp32"
        row = {"parameters": systems.count_parameters(config.model), "zero_stage": stage, "dtype": dtype}
        return row | rows[0] | {name: max(row[name] for row in rows) for name in ("training_rss_mb", "peak_rss_mb")}

    def row(self, folder: Path, config: Config, rank: int) -> Row:
        """Train and save as one rank of the group, and return its figures.

        ``first_stop_s`` and ``stop_s`` are the seconds that a save stops training, ``write_s`` those from then until
        the checkpoint is complete, and ``alone_s`` both together if training waits for it.
        """
        names = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": self.workers, "LOCAL_WORLD_SIZE": self.workers}
        os.environ |= {name: str(value) for name, value in names.items()} | {"GLOO_SOCKET_IFNAME": "lo"}
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
        configure_process(self.threads, self.workers)
        store = distributed.FileStore(str(folder / "store"), self.workers)
        distributed.init_process_group("gloo", store=store, rank=rank, world_size=self.workers)
        job_spec = job_spec_of(Dataset.open(folder / "data"), config, Run(folder / "run"), 0)
        trained = _Training(job_spec)
        trained.step()
        steps = [trained.step() for _ in range(_STEPS)]
        row = {"training_rss_mb": peak_rss_mb()}
        stops, writes, beside, ends = list[float](), list[float](), list[float](), list[float]()
        with closing(CheckpointWriter(job_spec.run)) as writer:
            for number in range(self.saves + 1):
                began = time.perf_counter()
                writer.save(trained.engine, {"step": number})
                stops.append(time.perf_counter() - began)
                writer.then(lambda: ends.append(time.perf_counter()))
                while number < self.saves and min(from_all_ranks(len(ends))) <= number:
                    beside.append(trained.step())
                writer.wait()
                writes.append(ends[-1] - began - stops[-1])
            distributed.barrier()
        leave_process_group()
        files = (path for path in job_spec.run.checkpoint_path(0).rglob("*") if path.is_file())
        stop, write = median(stops[1:]), median(writes[1:-1])
        row |= {"first_stop_s": stops[0], "stop_s": stop, "write_s": write, "stop_share": stop / write}
        row |= {"first_stop_share": stops[0] / writes[0], "alone_s": stops[-1] + writes[-1]}
        row |= {"step_s": median(steps), "step_while_writing_s": median(beside)}
        return row | {"size_mb": sum(path.stat().st_size for path in files) / (1 << 20)}

    def _config(self, size: int, stage: int) -> Config:
        width, encoder, decoder = _SIZES[size]
        model = {
            "width": width,
            "ffn": 4 * width,
            "heads": 8,
            "vocabulary": _VOCABULARY,
            "encoder": "L" * encoder,
            "decoder": "F" * decoder,
        }
        train = {"micro_batches": self.workers, "batch_tokens": 400, "workers": 0, "steps": 1 << 20}
        deepspeed = {"zero_optimization": {"stage": stage}, "bf16": {"enabled": self.bf16}}
        return Config.model_validate(_SETTINGS | {"model": model, "train": train, "deepspeed": deepspeed})


class _Training:
    """The engine of a job, and its next step."""

    def __init__(self, job_spec: JobSpec):
        self.engine, self._job_spec, self._done = build_engine(job_spec, None), job_spec, 0
        rank, world = distributed.get_rank(), distributed.get_world_size()
        self._coming = batches(job_spec.train, rank, world, 0, job_spec.config.train.steps)
        self._meter = Meter(self.engine.device, {})

    def step(self) -> float:
        """Train one step, and return its seconds."""
        began = time.perf_counter()
        step(self.engine, self._job_spec, self._done, self._coming, self._meter)
        self._done += 1
        return time.perf_counter() - began
