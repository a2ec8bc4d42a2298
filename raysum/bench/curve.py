"""How fast HT learns, beside a recorded training of its published code: validation loss over steps and over seconds."""

import json
import tempfile
from pathlib import Path
from statistics import mean
from typing import Any, Literal

from pydantic import Field

from raysum.bench.isolate import Row, alone
from raysum.bench.machine import Machine, measure
from raysum.bench.plots import plot_curves
from raysum.bench.ranked_format import as_dataset
from raysum.bench.result import BenchResult
from raysum.config.sections import Config, OptimConfig, Section, SourceConfig, TrainConfig
from raysum.errors import UserError
from raysum.models.specs.family import FamilySpec
from raysum.run import Run
from raysum.runtime.progress import track

_RATE = 195.0  # GFLOP/s of fp32 matrix products where the curve was recorded


class CurveBench(Section):
    curve: str = Field(description="JSONL: the published code's settings, then its validation losses by step")
    data: str = Field(description="folder with the shards WIKI.{train,valid}.N.pt that it was trained on")
    vocab: str = Field(description="the SentencePiece model of the shards")
    seeds: list[int] = Field([0, 1, 2], min_length=1)
    steps: int = Field(1200, gt=0)
    batch_tokens: int = Field(6000, gt=0, description="source + target tokens a step, at most: about its 3.3 clusters")
    every: int = Field(100, gt=0, description="steps between validations")
    start: Literal["normal", "xavier"] = Field("xavier", description="model.embedding_start; its code's is xavier")
    threads: int = Field(2, gt=0)
    plot: str | None = Field(None, description="PNG to draw the curves to")


def bench_curve(settings: CurveBench) -> BenchResult:
    """A row for each step that the curve has and ours was judged at.

    Seconds are those of training alone, without validations, on a machine of 195 GFLOP/s: ours are scaled by the rate
    measured before and after each training. Raises UserError where the curve or the shards do not read.
    """
    recorded, theirs = read_curve(Path(settings.curve).expanduser())
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        data = as_dataset(Path(settings.data).expanduser(), Path(settings.vocab).expanduser(), folder / "data")
        config = config_of(recorded, settings, str(data.path))
        machine = measure(settings.threads, ["fp32"])
        work = [(folder / f"seed-{seed}", seed) for seed in settings.seeds]
        runs = [alone(train_seed, config, settings.threads, *one) for one in track(work, label="bench curve")]
    rows = compared(theirs, runs)
    if settings.plot:
        plot_curves(theirs, runs, _RATE, Path(settings.plot).expanduser())
    return BenchResult("curve", machine, rows)


def read_curve(file: Path) -> tuple[dict[str, Any], dict[int, dict[str, float]]]:
    """The settings of a recorded training, and its losses and seconds by step."""
    try:
        first, *lines = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
        measured = {line["step"]: {"loss": line["val_xent"], "seconds": line["train_wall_s"]} for line in lines}
        return first["settings"], measured
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"{file} does not read as a recorded learning curve ({error!r}); see curve= in the README"
        ) from None


def config_of(recorded: dict[str, Any], settings: CurveBench, data: str) -> Config:
    """The recorded settings, under our names."""
    layers, rate = range(recorded["enc_layers"]), recorded["enc_dropout"]
    model = FamilySpec(
        encoder="".join("G" if layer in recorded["inter_layers"] else "L" for layer in layers),
        decoder="F" * recorded["dec_layers"],
        width=recorded["enc_hidden_size"],
        ffn=recorded["ff_size"],
        heads=recorded["heads"],
        pooling_heads=recorded["inter_heads"],
        embedding_start=settings.start,
        dropout=rate,
        attention_dropout=rate,
        ffn_dropout=rate,
    )
    source = SourceConfig(max_paragraphs=recorded["trunc_src_nblock"], target_tokens=1000)  # its loader cuts no target
    train = TrainConfig(
        steps=settings.steps,
        batch_tokens=settings.batch_tokens,
        micro_batches=1,
        label_smoothing=recorded["label_smoothing"],
        workers=0,
        threads=settings.threads,
        validate_every=settings.every,
        validate_examples=None,
        save_every=settings.steps,
        keep=1,
    )
    betas = (recorded["beta1"], recorded["beta2"])
    optim = OptimConfig(lr=recorded["lr"], warmup_steps=recorded["warmup_steps"], betas=betas)
    return Config(model=model, source=source, train=train, optim=optim, data=data)


def train_seed(config: Config, threads: int, folder: Path, seed: int) -> Row:
    """One training, in this process: ``losses`` and scaled ``seconds`` by step, ``clusters`` it read a step."""
    from raysum.train.fit import fit

    before = measure(threads, ["fp32"])
    seeded = config.train.model_copy(update={"seed": seed})
    run = fit(config.model_copy(update={"train": seeded, "out": str(folder)}))
    scale = mean(_rate(machine) for machine in (before, measure(threads, ["fp32"]))) / _RATE
    return {"losses": run.validations(), "seconds": {step: scale * spent for step, spent in _seconds(run).items()}}


def _rate(machine: Machine) -> float:
    return machine.gflops["fp32"]


def _seconds(run: Run) -> dict[int, float]:
    """Seconds of training up to each line of metrics.jsonl, validations and checkpoints left out."""
    lines = [json.loads(line) for line in run.metrics.read_text().splitlines()]
    found, seconds, tokens = {}, 0.0, 0
    for line in lines:
        if "tokens_per_s" in line:
            total = line["source_tokens"] + line["target_tokens"]
            seconds, tokens = seconds + (total - tokens) / line["tokens_per_s"], total
            found[line["step"]] = seconds
    return found


def compared(theirs: dict[int, dict[str, float]], runs: list[Row]) -> list[Row]:
    """The rows: ours as mean, lowest and highest of the seeds, ``behind`` in nats at equal steps."""
    rows = []
    for step, their in theirs.items():
        losses = [run["losses"][step] for run in runs if step in run["losses"]]
        if losses:
            row: Row = {"step": step, "published_loss": their["loss"], "loss": mean(losses)}
            row |= {"lowest": min(losses), "highest": max(losses), "behind": mean(losses) - their["loss"]}
            row |= {"published_s": their["seconds"], "seconds": mean(run["seconds"][step] for run in runs)}
            rows.append(row | {"times_as_fast": their["seconds"] / row["seconds"]})
    return rows
