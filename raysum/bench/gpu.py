"""The first hour with a GPU: are its losses and beams those of the CPU, does it ever wait, and how fast is it?

On a machine without a GPU it compares and measures the CPU with itself, which shows only that it runs.
"""

import json
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar, Literal, get_args

import torch
from pandas import DataFrame
from pydantic import Field

from raysum import systems
from raysum.bench.base import Bench, BenchResult, Number, PresetBench, Row, Threads, alone, as_cell
from raysum.bench.checkpoint import CheckpointBench
from raysum.bench.decode import DecodeBench
from raysum.bench.machine import Machine, measure
from raysum.bench.packed_rows import KINDS, packed_rows_row
from raysum.bench.stream import StreamBench
from raysum.bench.train import TrainBench, training_step
from raysum.config.sections import Config
from raysum.decode.beam import beam_search
from raysum.models.batch import move
from raysum.pages.parts import conclusion, document, note, numbers, section
from raysum.runtime.placement import device
from raysum.runtime.progress import say
from raysum.runtime.storage import check_writable, writing
from raysum.stream.random_rows import batch_of

_LOSS_LIMITS = {"bf16": 1e-2, "fp32": 1e-4}  # largest relative difference of a loss to the CPU's in fp32
_SCORE_LIMIT = 1e-3  # largest difference of a hypothesis's score to the CPU's
_RATE = 1e-4  # learning rate of the compared steps
_DRY = {"dropout": 0.0, "attention_dropout": 0.0, "ffn_dropout": 0.0}  # devices draw different numbers
_PACKAGE = Path(__file__).parents[1]
Stage = Literal["attention", "losses", "beams", "training", "decoding", "streaming", "checkpoints"]


class GpuBench(PresetBench):
    """Rows of comparisons with the CPU, and the rows of the other benchmarks that need a GPU."""

    NAME: ClassVar[str] = "gpu"
    presets: list[str] = Field(["ft", "ht", "pht", "vht", "bart-base"], min_length=1, description="models to measure")
    stages: list[Stage] = Field([*get_args(Stage)], min_length=1, description="what to compare and to measure")
    dtype: Literal["bf16", "fp32"] = Field(
        default_factory=lambda: "bf16" if device().type == "cuda" else "fp32",
        description="of training and decoding; bf16 on a GPU, otherwise fp32",
    )
    examples: int = Field(4, gt=0, description="examples of a training step")
    target_tokens: int = Field(140, gt=1, description="tokens of each target in training")
    steps: int = Field(20, gt=0, description="compared losses; timed steps are half as many")
    batches: list[Number] = Field([1, 16, 128], min_length=1, description="examples decoded together")
    length: int = Field(200, gt=1, description="tokens of every decoded summary")
    rows: int = Field(4096, gt=0, description="rows of the streamed dataset")
    parameters: Literal[25, 140, 400] = Field(140, description="millions, of the model for the stage checkpoints")
    threads: Threads = Field(2, description="CPU threads")
    out: str = Field("bench-gpu", description="folder for gpu.json and gpu.html")

    def cases(self, scratch: Path) -> Iterable[tuple[Any, ...]]:
        if device().type == "cpu":
            say("there is no GPU here: the CPU is compared with itself, which takes hours unless you set smaller sizes")
        return [case for stage in dict.fromkeys(self.stages) for case in self._cases_of(stage, scratch)]

    def _cases_of(self, stage: str, scratch: Path) -> Iterator[tuple[Any, ...]]:
        if stage == "attention":
            yield from ((stage, packed_rows_row, (kind, device())) for kind in KINDS)
            return
        if stage in ("losses", "beams"):
            work: Callable[..., Row] = self.losses_row if stage == "losses" else self.beams_row
            for preset, config in self.configs(are_decoded=stage == "beams"):
                yield stage, work, (preset, config)
            return
        bench = self._bench_of(stage)
        folder = scratch / stage
        folder.mkdir()
        for case in bench.cases(folder):
            yield stage, bench, case

    def _bench_of(self, stage: str) -> Bench:
        """Return the benchmark that measures a stage."""
        common: dict[str, Any] = {"presets": self.presets, "config": self.config}
        if stage == "training":
            common |= {"steps": max(self.steps // 2, 1), "examples": self.examples, "target_tokens": self.target_tokens}
            compiled = [False, True] if device().type == "cuda" else [False]
            return TrainBench(**common, compiled=compiled, dtypes=[self.dtype], threads=self.threads)
        if stage == "decoding":
            common |= {"batches": self.batches, "length": self.length}
            return DecodeBench(**common, dtypes=[self.dtype], threads=[self.threads])
        if stage == "streaming":
            return StreamBench(**common | {"presets": self.presets[-1:]}, rows=self.rows, threads=self.threads)
        return CheckpointBench(parameters=[self.parameters], workers=1, threads=self.threads, bf16=self.dtype == "bf16")

    def machine(self) -> Machine:
        return measure(self.threads, [*dict.fromkeys(["fp32", self.dtype])])

    def measured(self, machine: Machine, stage: str, bench: Any, case: tuple[Any, ...]) -> Row:
        row = bench.measured(machine, *case) if isinstance(bench, Bench) else alone(bench, *case)
        return {"stage": stage} | row

    def losses_row(self, preset: str, config: Config) -> Row:
        """Return the largest relative difference of the losses of some steps to those of the CPU in fp32.

        ``waits_at`` are the places in the steps where the host waits for the GPU.
        """
        torch.set_num_threads(self.threads)
        dry = {name: value for name, value in _DRY.items() if name in type(config.model).model_fields}
        config = config.model_copy(update={"model": config.model.model_copy(update=dry)})
        batches = [batch_of(config, 1, self.target_tokens, seed) for seed in range(4)]
        expected = self._losses(config, batches, torch.device("cpu"), "fp32", [])
        waits = list[str]()
        losses = self._losses(config, batches, device(), self.dtype, waits)
        difference = float((losses / expected - 1).abs().max())
        verdict = "right" if difference <= _LOSS_LIMITS[self.dtype] and not waits else "WRONG"
        row = {"preset": preset, "dtype": self.dtype, "steps": self.steps, "first_loss": float(expected[0])}
        row |= {"last_loss": float(expected[-1]), "largest_difference": difference, "limit": _LOSS_LIMITS[self.dtype]}
        return row | {"waits_at": ", ".join(dict.fromkeys(waits)) or "never", "verdict": verdict}

    def _losses(
        self, config: Config, batches: list[Any], target: torch.device, dtype: str, waits: list[str]
    ) -> torch.Tensor:
        """Return the losses for each token of training steps on ``batches`` in turn, the same on every device."""
        first, *others = (batches[number % len(batches)] for number in range(self.steps))
        step, _ = training_step(config, move(first, target), dtype, target, _RATE)
        losses = [step()]  # alone, because it loads kernels and allocates the moments
        for batch in others:
            with found_waits(target, waits):
                losses.append(step(move(batch, target)))
        return torch.stack(losses).double().cpu() / self.target_tokens

    def beams_row(self, preset: str, config: Config) -> Row:
        """Return how many summaries of random weights, in fp32, are those of the CPU, and the difference of scores.

        ``warning`` tells whether steps could not be captured as CUDA graphs.
        """
        torch.set_num_threads(self.threads)
        torch.manual_seed(0)
        model = systems.build(config.model).eval()
        source = batch_of(config, 4, self.length).source
        settings = config.decode.model_copy(update={"max_length": self.length, "min_length": self.length // 2})
        found = []
        with torch.inference_mode(), warnings.catch_warnings(record=True) as caught:
            for target in (torch.device("cpu"), device()):
                on_device: Any = model.to(target)
                best = beam_search(on_device, on_device.encode(move(source, target)), settings)
                found.append([hypotheses[0] for hypotheses in best])
        pairs = [*zip(*found, strict=True)]
        difference = max(abs(one.score - other.score) for one, other in pairs)
        same = sum(one.ids == other.ids for one, other in pairs) / len(pairs)
        row = {"preset": preset, "dtype": "fp32", "beams": settings.num_beams, "same_share": same}
        row |= {"largest_difference": difference, "limit": _SCORE_LIMIT}
        messages = (str(one.message) for one in caught if "CUDA graphs" in str(one.message))
        row["warning"] = next(messages, "none")
        return row | {"verdict": "right" if difference <= _SCORE_LIMIT else "WRONG"}

    def run(self) -> BenchResult:
        folder = Path(self.out).expanduser()
        check_writable(folder)
        result = super().run()
        say(f"{verdict_of(result)} {folder / 'gpu.html'} shows all figures.")
        return result

    def keep(self, result: BenchResult) -> None:
        folder = Path(self.out).expanduser()
        with writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "gpu.json").write_text(json.dumps(result.to_dict(), indent=1) + "\n")
            (folder / "gpu.html").write_text(page(result))


@contextmanager
def found_waits(target: torch.device, waits: list[str]) -> Iterator[None]:
    """Add to ``waits`` the places in the block where the host waits for a GPU ``target``.

    torch warns of each; its warnings of a backward pass come when that ends, so they name the line that began it.
    """
    if target.type != "cuda":
        yield
        return

    def note_place(*_: Any, **__: Any) -> None:
        own = [frame for frame in traceback.extract_stack()[:-1] if Path(frame.filename).is_relative_to(_PACKAGE)]
        waits.append(f"{Path(own[-1].filename).relative_to(_PACKAGE)}:{own[-1].lineno}")

    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = note_place
        torch.cuda.set_sync_debug_mode("warn")
        try:
            yield
        finally:
            torch.cuda.set_sync_debug_mode("default")


def verdict_of(result: BenchResult) -> str:
    """Return one sentence on the comparisons."""
    compared = [row for row in result.rows if row.get("verdict") in ("right", "WRONG")]
    wrong = [f"{row['stage']} of {row['preset']}" for row in compared if row["verdict"] == "WRONG"]
    if result.machine.device == "cpu":
        return f"There is no GPU here: {'the CPU was compared with itself' if compared else 'nothing was compared'}."
    if wrong:
        return f"The {result.machine.processor} differs from the CPU or waits: {', '.join(wrong)}."
    missing = " It has no kernels for packed rows." * any("no kernel" in row.get("verdict", "") for row in result.rows)
    return f"The {result.machine.processor} agrees with the CPU in all {len(compared)} comparisons.{missing}"


def _heading(row: Row) -> str:
    """Return the heading of a column: the preset, and what differs between its rows."""
    parts = row.get("preset", row["stage"]), "compiled" if row.get("compiled") else "", str(row.get("batch", ""))
    return " ".join(filter(None, parts))


def page(result: BenchResult) -> str:
    """Return the page of a result: the verdict, and a table for each stage."""
    sections = []
    for stage in dict.fromkeys(row["stage"] for row in result.rows):
        rows = [row for row in result.rows if row["stage"] == stage]
        names = [_heading(row) for row in rows]
        columns = {key: [as_cell(row.get(key)) for row in rows] for key in rows[0] if key not in ("stage", "preset")}
        frame = DataFrame(columns, index=names).T.rename(index=lambda name: name.replace("_", " "))
        sections.append(section(stage, stage.capitalize(), numbers(frame)))
    top = conclusion(verdict_of(result)) + note(str(result.machine))
    return document("The first hour with a GPU", top, sections)
