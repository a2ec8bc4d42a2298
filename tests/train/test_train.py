"""Objectives against their formulas, and trainings in this process."""

import json
import os
import shutil
import time
from itertools import count
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

import raysum.train.worker
from helpers.small_datasets import as_formerly, write_dataset
from helpers.small_models import objective_of, pack
from helpers.small_runs import without_times
from helpers.small_trainings import RATE, STEPS, forget_validation, same, weights
from helpers.special_ids import PAD
from raysum.config.decoding import DecodeConfig, SourceConfig
from raysum.config.loading import load_config, presets
from raysum.config.sections import Config, OptimConfig
from raysum.data.dataset import Dataset
from raysum.decode.summarizer import Summarizer
from raysum.errors import UserError
from raysum.models.kernels import cross_entropy
from raysum.models.kernels.cross_entropy import smoothed_cross_entropy
from raysum.runs.folder import Run
from raysum.runtime.checksums import SEAL
from raysum.runtime.compat import dashboard
from raysum.runtime.storage import read_lines
from raysum.stream.collators.summarization import Summarization
from raysum.stream.loader import read_rows
from raysum.stream.plan import PlanSettings, cut
from raysum.stream.stream import Stream, plan_of
from raysum.systems import build
from raysum.train.fit import fit, train
from raysum.train.job_spec import epochs_warning, job_spec_of
from raysum.train.labels import labelled_dataset
from raysum.train.optim import engine_config, learning_rate, schedule_warning

SMALL = {"width": 16, "ffn": 32, "heads": 2, "pooling_heads": 2, "encoder": "L", "decoder": "P"}
DRY = {"dropout": 0, "attention_dropout": 0, "vocabulary": 200}


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    return write_dataset(tmp_path_factory.mktemp("train") / "data", {"train": 300, "valid": 40})


def config(data: Path, out: Path, steps: int = 12, **train: Any) -> Config:
    """A config with the sections in ``train`` that are mappings, and its other values as settings of the training."""
    sections = {name: train.pop(name) for name in [*train] if isinstance(train[name], dict)}
    sections["optim"] = RATE | sections.get("optim", {})
    settings = STEPS | {"micro_batches": 4, "steps": steps} | train
    return Config(**{"model": SMALL} | sections, train=settings, data=str(data), out=str(out))


@pytest.fixture(scope="module")
def twelve_steps(data, tmp_path_factory) -> Run:
    return fit(config(data, tmp_path_factory.mktemp("runs") / "whole", validate_every=6))


def losses(run: Run) -> dict[int, float]:
    return {line["step"]: line["loss"] for line in read_lines(run.metrics) if "loss" in line}


# Objectives


def scores():
    torch.manual_seed(3)
    hidden, weight = torch.randn(70, 8, requires_grad=True), torch.randn(30, 8, requires_grad=True)
    return hidden, weight, torch.randn(30, requires_grad=True), torch.randint(PAD + 1, 30, (70,))


@pytest.mark.parametrize("smoothing", [0.1, 0.0])
@pytest.mark.parametrize("biased", [True, False])
def test_smoothed_cross_entropy_is_the_formula(biased, smoothing, monkeypatch):
    monkeypatch.setattr(cross_entropy, "_CHUNK", 32)
    hidden, weight, bias, gold = scores()
    inputs = [hidden, weight, bias] if biased else [hidden, weight]
    log_p = functional.linear(hidden, weight, bias if biased else None).log_softmax(-1)
    q = torch.full_like(log_p, smoothing / 28)
    q[:, PAD] = 0
    q.scatter_(1, gold[:, None], 1 - smoothing)
    expected = -(q * log_p).sum()
    found = smoothed_cross_entropy(hidden, weight, bias if biased else None, gold, smoothing, pad=PAD)
    torch.testing.assert_close(found, expected)
    gradients = zip(torch.autograd.grad(3 * found, inputs), torch.autograd.grad(3 * expected, inputs), strict=True)
    for ours, theirs in gradients:
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
    divergence = functional.kl_div(log_p, q, reduction="sum")
    torch.testing.assert_close(found - torch.special.entr(q).sum(), divergence)


def test_no_targets_give_no_loss_and_zero_gradients():
    hidden, weight, bias, gold = scores()
    loss = smoothed_cross_entropy(hidden[:0], weight, bias, gold[:0], 0.1, pad=PAD)
    loss.backward()
    assert loss == 0 and not weight.grad.any()


def batches_of(data: Path, tokens: int, rows: range):
    """Batches of the rows of ``data``, cut at ``tokens``; and their targets' number."""
    kind = Summarization()
    found = list(read_rows(str(data), "train", np.array(rows), kind.columns).values())
    sizes = cut(np.array([len(row["ids"]) + len(row["target_ids"]) for row in found]), tokens)
    parts = np.split(np.arange(len(found)), np.cumsum(sizes)[:-1])
    packed = [kind.pack([found[i] for i in part.tolist()], SourceConfig()) for part in parts]
    return [kind.collate(arrays) for arrays in packed], [kind.tokens(arrays)[1] for arrays in packed]


def test_micro_batches_on_ranks_are_one_big_batch_and_the_naive_mean_is_not(data):
    torch.manual_seed(0)
    objective = objective_of(build(config(data, Path("unused"), model=SMALL | DRY).model), 0.1)
    world, accumulation = 2, 3
    parts, counts = (each[: world * accumulation] for each in batches_of(data, 60, range(30)))
    (big,), (total,) = batches_of(data, 10**6, range(sum(len(part.target) for part in parts)))
    assert total == sum(counts) and len(set(counts)) > 1

    def gradient(losses) -> torch.Tensor:
        """As DeepSpeed does: each backward divided by the accumulation, gradients averaged over the ranks."""
        objective.zero_grad()
        for loss in losses:
            (loss / accumulation / world).backward()
        return torch.cat([p.grad.flatten() for p in objective.parameters()])

    expected = gradient([objective(big) * accumulation * world / total])
    found = gradient([objective(part) * world * accumulation / total for part in parts])
    naive = gradient([objective(part) / count for part, count in zip(parts, counts, strict=True)])
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-6)
    assert (naive - expected).norm() > 0.01 * expected.norm()


def test_smoothing_is_for_training_only(data):
    objective = objective_of(build(config(data, Path("unused"), model=SMALL | DRY).model), 0.1)
    (batch,), _ = batches_of(data, 10**6, range(4))
    smoothed, plain = objective.train()(batch), objective.eval()(batch)
    logits, gold = objective.model(batch.source, batch.target[:, :-1]).flatten(0, 1), batch.target[:, 1:].flatten()
    torch.testing.assert_close(plain, functional.cross_entropy(logits, gold, ignore_index=PAD, reduction="sum"))
    assert abs(smoothed - plain) > 1e-3


# Schedules and DeepSpeed's config


def test_schedules():
    noam = OptimConfig(lr=2, schedule="noam", warmup_steps=100)
    assert learning_rate(noam, 64, 100, 1000) == pytest.approx(2 * 64**-0.5 * 100**-0.5)
    assert learning_rate(noam, 64, 25, 1000) == pytest.approx(learning_rate(noam, 64, 100, 1000) / 4)
    assert learning_rate(noam, 64, 400, 1000) == pytest.approx(learning_rate(noam, 64, 100, 1000) / 2)
    constant = OptimConfig(lr=0.5, schedule="constant", warmup_steps=10)
    assert [learning_rate(constant, 64, step, 100) for step in (1, 10, 100)] == [0.05, 0.5, 0.5]
    linear = OptimConfig(lr=0.5, schedule="linear", warmup_steps=10)
    rates = [learning_rate(linear, 64, step, 100) for step in range(1, 101)]
    assert rates[4] == 0.25 and max(rates) == 0.5 and 0 < rates[-1] < 0.006
    assert learning_rate(OptimConfig(warmup_steps=0), 64, 1, 10) == pytest.approx(2 / 8)


def test_a_schedule_that_does_not_fit_the_steps_is_told(twelve_steps, data, tmp_path, capsys):
    told = schedule_warning(load_config("pht", ["train.steps=20"]))
    rate = 256**-0.5 * 20 * 16000**-1.5  # eq. 3 of Vaswani et al. at step 20
    peak = 256**-0.5 * 16000**-0.5
    assert f"{rate:.1e}" in told and "0.1 %" in told and "16000" in told
    mended = load_config("pht", ["train.steps=20", *told.rpartition("set ")[2].split()])
    assert max(learning_rate(mended.optim, 256, step, 20) for step in range(1, 21)) == pytest.approx(peak, rel=0.05)
    constant = load_config("pht", ["optim.schedule=linear", "optim.warmup_steps=0", "train.steps=1"])
    assert not any(map(schedule_warning, (mended, load_config("pht"), twelve_steps.config, constant)))
    values = config(data, tmp_path / "run", 3, optim={"schedule": "linear", "warmup_steps": 30})
    train(None, **values.model_dump(exclude_unset=True))
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "optim.warmup_steps=30" in line]
    assert "1.0e-03" in line and "set optim.warmup_steps=0" in line


def test_a_training_of_very_many_passes_is_told(tmp_path, capsys):
    data = write_dataset(tmp_path / "data", {"train": 12, "valid": 3})

    def told(**changes) -> tuple[str | None, int]:
        brief = job_spec_of(Dataset.open(data), config(data, tmp_path, micro_batches=1, **changes), Run(tmp_path), 0)
        return epochs_warning(brief), plan_of(brief.train).epoch(0).num_steps

    _, each = told()
    line = f"train.steps={101 * each} are 101 passes over the 12 rows: train.steps={10 * each} are 10, and train."
    assert str(told(steps=101 * each)[0]).startswith(line)
    assert not any(told(**few)[0] for few in ({"steps": 100 * each}, {"steps": 9999, "minutes": 1}))
    assert not told(steps=9999, patience=2)[0]
    fit(config(data, tmp_path / "run", 102, batch_tokens=10**6, log_every=200))
    assert "are 102 passes over the 12 rows" in capsys.readouterr().err


def test_the_users_deepspeed_block_wins_over_ours(data):
    block = {"zero_optimization": {"stage": 2}, "optimizer": {"params": {"eps": 1e-3}}, "gradient_clipping": 2.0}
    engine = engine_config(made := config(data, Path("x"), deepspeed=block), world=2, cuda=True)
    assert engine["gradient_accumulation_steps"] == 2 and engine["zero_optimization"] == {"stage": 2}
    assert engine["optimizer"]["params"]["eps"] == 1e-3 and engine["optimizer"]["params"]["torch_adam"]
    assert engine["optimizer"]["params"]["fused"], "on a GPU"
    assert engine["bf16"] == {"enabled": True} and "bf16" not in engine_config(made, world=2, cuda=False)
    assert engine["gradient_clipping"] == 2.0


def test_clipping_is_off_unless_a_config_asks_for_it():
    """DeepSpeed clips at 1.0 where it is told nothing; the published codes do not clip."""
    clipped = {name: engine_config(load_config(name), 1, cuda=True)["gradient_clipping"] for name in presets()}
    assert {name: most for name, most in clipped.items() if most} == {"auto": 1.0, "graphsum": 2.0}


# Training in this process

GOLDEN = json.loads(Path(__file__).with_name("golden_losses.json").read_text())


@pytest.mark.parametrize("preset", GOLDEN)
def test_the_first_losses_at_small_sizes_are_those_of_19c3897_or_for_hibert_m_of_2f87dcc(preset, tmp_path):
    kind = "extraction" if preset.startswith("hibert") else "summarization"
    data = write_dataset(tmp_path / "data", {"train": 120}, graph=True, kind=kind)
    settings = STEPS | {"steps": 20, "batch_tokens": 300, "seed": 7}
    sizes, optim = {"width": 32, "ffn": 64, "heads": 2}, {"lr": 0.01, "schedule": "constant"}
    values = {"model": sizes, "train": settings, "optim": optim, "data": str(data), "out": str(tmp_path / "run")}
    found = losses(fit(load_config(preset, values=values)))
    assert [*found.values()] == pytest.approx(GOLDEN[preset], abs=1e-4)


def test_the_loss_falls_and_everything_is_written(twelve_steps):
    found = losses(twelve_steps)
    assert list(found) == list(range(1, 13)) and found[12] < 0.95 * found[1]
    assert list(twelve_steps.validations()) == [c.step for c in twelve_steps.checkpoints()] == [6, 12]
    assert not list(twelve_steps.path.rglob("*partial*")) and any(twelve_steps.tensorboard.iterdir())
    assert twelve_steps.config.model.vocabulary != Config().model.vocabulary, "the dataset's size was written"
    counts = {"source_tokens", "target_tokens", "seconds", "peak_rss_mb", "batch_hash", "wait_share", "padding_share"}
    assert {"step", "loss", "lr", "tokens_per_s"} | counts <= {*next(read_lines(twelve_steps.metrics))}
    state = twelve_steps.latest().state
    assert (state["step"], state["workers"], state["dtype"], state["stage"]) == (12, 1, "fp32", 0)
    build(twelve_steps.config.model).load_state_dict(weights(twelve_steps))  # strict


def test_the_validation_loss_is_that_of_the_best_checkpoints_weights(twelve_steps, data):
    model = build(twelve_steps.config.model)
    model.load_state_dict(weights(twelve_steps, "12"))
    kind = Summarization()
    arrays = kind.pack(list(Dataset.open(data).read("valid", kind.columns)), SourceConfig())
    with torch.no_grad():
        loss = objective_of(model, 0.1).eval()(kind.collate(arrays))
    assert float(loss) / kind.tokens(arrays)[1] == pytest.approx(twelve_steps.validations()[12], rel=1e-5)


def test_five_and_seven_steps_are_twelve_bit_for_bit(twelve_steps, data, tmp_path):
    for steps in (5, 12):
        run = fit(config(data, tmp_path / "run", steps))
    assert losses(run) == losses(twelve_steps)
    assert same(weights(run, "12"), weights(twelve_steps, "12"))


class Killed(BaseException):
    """Ends a training where a kill might."""


def killed_at(function, number: int):
    """``function``, whose call of that ``number`` ends the training, after its work if the number is positive."""
    calls = count(1)

    def call(*values):
        done = next(calls) == abs(number)
        found = function(*values) if not done or number > 0 else None
        if done:
            raise Killed
        return found

    return call


def test_the_metrics_of_a_killed_and_resumed_training_are_those_of_an_uninterrupted_one(data, tmp_path, monkeypatch):
    # Lines at steps 3, 6 ... 18 and 20; validations at 7, 14 and 20; checkpoints at 4, 7, 8, 12, 14, 16 and 20.
    settings = {"steps": 20, "log_every": 3, "save_every": 4, "validate_every": 7, "keep": 9}
    whole = fit(config(data, tmp_path / "whole", **settings))
    parts = config(data, tmp_path / "parts", **settings)
    for name, number, resumes_from in (
        ("worker.Reporter.write", 2, 4),  # the line of step 6 is written, no checkpoint after that of 4
        ("worker.CheckpointWriter.save", 2, 8),  # of step 8, two steps after a line
        ("worker.step", 4, 8),  # in the middle
        ("worker.CheckpointWriter.save", -1, 8),  # before that of step 12, whose line is written
        ("worker.CheckpointWriter.save", 2, 14),  # before the validation of step 14
        ("worker.run_validation", 2, 20),  # the one of step 20, after that of 14 was made up for
    ):
        with monkeypatch.context() as patch, pytest.raises(Killed):
            patch.setattr(f"raysum.train.{name}", killed_at(attrgetter(name)(raysum.train), number))
            fit(parts)
        assert Run(parts.out).latest().step == resumes_from
    resumed = fit(parts)
    found, expected = (without_times(read_lines(run.metrics)) for run in (resumed, whole))
    assert found == expected and board_of(resumed) == board_of(whole)
    assert same(weights(resumed, "latest"), weights(whole, "latest"))


def board_of(run: Run) -> dict[str, list]:
    """What TensorBoard shows of a run, but times."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(run.tensorboard))
    events.Reload()
    names = {*events.Tags()["scalars"]} - {"tokens_per_s", "wait_share", "seconds", "peak_rss_mb"}
    return {name: [(event.step, event.value) for event in events.Scalars(name)] for name in names}


def test_a_checkpoint_of_a_former_version_is_resumed_though_it_has_no_sums(data, tmp_path):
    run = fit(config(data, tmp_path / "run", 5, log_every=3))
    state = json.loads((run.latest().path / "state.json").read_text())
    del state["since_line"], state["sealed"]
    (run.latest().path / "state.json").write_text(json.dumps(state))
    (run.latest().path / SEAL).unlink()
    assert [*losses(fit(config(data, tmp_path / "run", 7, log_every=3)))] == [3, 5, 6, 7]


def test_a_run_goes_on_where_its_config_is_still_to_be_written(twelve_steps, data, tmp_path):
    """As the trials of a population, whose settings change between two parts."""
    shutil.copytree(twelve_steps.path, tmp_path / "run")
    (tmp_path / "run" / "config.yaml").unlink()
    run = fit(config(data, tmp_path / "run", 14, validate_every=2, patience=9, optim={"lr": 0.02}))
    assert [*run.validations()] == [6, 12, 14] and Run.open(run.path).config.optim.lr == 0.02


def test_a_resumed_training_draws_the_same_references(tmp_path):
    data = write_dataset(tmp_path / "data", {"train": 60, "valid": 9}, references=3)
    plan = plan_of(Stream(str(data), "train", SourceConfig(), PlanSettings(200, 4), Summarization()))
    steps = plan.epoch(0).num_steps
    whole = fit(config(data, tmp_path / "whole", steps + 4))
    for more in (1, 4):  # both in the second epoch
        run = fit(config(data, tmp_path / "run", steps + more))
    assert losses(run) == losses(whole) and same(weights(run, "latest"), weights(whole, "latest"))


def test_the_speed_of_training_is_its_own_also_where_a_validation_is_made_up_for(data, tmp_path, monkeypatch):
    settings = {"validate_every": 4, "save_every": 4}
    forget_validation(run := fit(config(data, tmp_path / "run", 4, **settings)))
    monkeypatch.setattr("raysum.train.worker.plan_of", lambda stream: time.sleep(3) or plan_of(stream))
    fit(config(data, tmp_path / "run", 9, **settings))
    assert sorted(run.validations()) == [4, 8, 9]
    tokens, spent = 0, {}
    for line in (line for line in read_lines(run.metrics) if "loss" in line):
        before, tokens = tokens, line["source_tokens"] + line["target_tokens"]
        spent[line["step"]] = (tokens - before) / line["tokens_per_s"]
    assert max(spent[step] for step in (5, 9)) < 2.5


def test_a_training_ends_when_validation_gets_no_better_at_the_same_step_after_any_restart(tmp_path, capsys):
    data = write_dataset(tmp_path / "data", {"train": 12, "valid": 40})
    settings = {"validate_every": 2, "save_every": 2, "keep": 1, "optim": {"lr": 0.005}}

    def trained(name: str, steps: int = 24, **train) -> Run:
        return fit(config(data, tmp_path / name, steps, **settings, **train))

    whole = trained("whole")
    steps, found = zip(*sorted(whole.validations().items()), strict=True)
    expected = next(n for n in range(2, len(found)) if min(found[n - 1 : n + 1]) >= min(found[: n - 1]))
    assert steps[expected] < 24, "it learns too well to show anything"
    capsys.readouterr()

    run = trained("run", patience=2)
    assert run.validations() == dict(list(whole.validations().items())[: expected + 1])
    assert run.latest().step == steps[expected] and run.best().step > 3
    assert run.best().step == steps[expected - 2] == min(run.validations(), key=run.validations().get)
    assert f"Training ends after step {run.latest().step}: 2 validations were no better" in capsys.readouterr().err
    before = run.metrics.read_text()
    trained("run", patience=2)
    assert "raise train.patience to continue" in capsys.readouterr().err and run.metrics.read_text() == before

    for stop in (steps[expected] - 1, steps[expected]):  # the second without its validation
        forget_validation(trained(f"to {stop}", stop, patience=2))
        parted = trained(f"to {stop}", patience=2)
        assert parted.latest().step == run.latest().step and parted.validations() == run.validations()
    assert losses(trained("run", patience=None)) == losses(whole)


def test_a_run_of_another_user_is_not_unpickled_unasked(twelve_steps, data, tmp_path, monkeypatch):
    shutil.copytree(twelve_steps.path, tmp_path / "run")
    more = config(data, tmp_path / "run", 13)
    with monkeypatch.context() as other:
        other.setattr(os, "getuid", lambda: 54321)
        fit(twelve_steps.config.model_copy(update={"out": str(tmp_path / "run")}))  # nothing to be done
        with pytest.raises(UserError, match="step-00000012 belongs to another user.*RAYSUM_TRUST_OTHERS=1"):
            fit(more)
        other.setenv("RAYSUM_TRUST_OTHERS", "1")
        assert fit(more).latest().step == 13


def test_old_checkpoints_go_but_the_best_and_the_newest(data, tmp_path):
    settings = {"save_every": 2, "validate_every": 100, "keep": 2}
    run = fit(config(data, tmp_path / "run", 10, **settings))
    assert [(c.step, c.resumable) for c in run.checkpoints()] == [(8, True), (10, True)]
    with run.metrics.open("a") as metrics:
        metrics.write('{"step": 9, "los')
    run.add_validation(8, {"valid_loss": 0.0})
    run = fit(config(data, tmp_path / "run", 16, **settings))
    assert [(c.step, c.resumable) for c in run.checkpoints()] == [(8, False), (14, True), (16, True)]
    assert sorted(losses(run)) == list(range(1, 17)), "a torn line harms no other"


def test_few_slow_steps_are_saved_by_the_clock(data, tmp_path):
    settings = {"steps": 7, "save_every": 100, "validate_every": 100, "log_every": 2, "keep": 9}
    more = {"often": {"save_minutes": 1e-6}, "plain": {}}
    run, plain = (fit(config(data, tmp_path / name, **settings, **more[name])) for name in more)
    assert [[one.step for one in each.checkpoints()] for each in (run, plain)] == [[2, 4, 6, 7], [7]]
    assert losses(run) == losses(plain)


# Mistakes


def test_a_run_goes_on_only_as_it_began(twelve_steps, data, tmp_path):
    with pytest.raises(UserError, match=r"other values of train\.seed, optim\.lr"):
        fit(config(data, twelve_steps.path, 20, seed=1, optim={"lr": 0.5}))
    other = write_dataset(tmp_path / "other", {"train": 30}, seed=9)
    with pytest.raises(UserError, match="another vocabulary"):
        fit(config(other, twelve_steps.path))


def test_a_run_without_a_checkpoint_takes_other_settings(twelve_steps, data, tmp_path, capsys):
    """It ended before its first: what it was to be does not bind."""
    out = tmp_path / "run"
    with pytest.raises(UserError, match="the loss is .* lower optim.lr"):
        fit(config(data, out, 9, seed=5, optim={"lr": 1e4, "weight_decay": 1e4}))
    assert losses(Run(out)) and not Run(out).checkpoints()
    run = fit(config(data, out, validate_every=6))
    assert "has no checkpoint: training starts over" in capsys.readouterr().err
    assert losses(run) == losses(twelve_steps) and run.config.train.seed == 0
    assert same(weights(run, "12"), weights(twelve_steps, "12"))
    with pytest.raises(UserError, match=r"other values of train\.seed"):
        fit(config(data, out, validate_every=6, seed=5))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"decode": DecodeConfig(citing_layers=[-1, 99])}, "citing_layers names decoder layer 99"),
        ({"data": None}, "training needs data=DATA"),
        ({"out": None}, "training needs out=RUN"),
        ({"deepspeed": {"train_batch_size": 8}}, "deepspeed.train_batch_size is set by raysum"),
        ({"deepspeed": {"zero_optimization": {"stage": 7}}}, "DeepSpeed rejects"),
        ({"data": "nowhere"}, "no dataset nowhere"),
    ],
)
def test_mistakes_are_named(changes, message, data, tmp_path):
    with pytest.raises(UserError, match=message):
        fit(config(data, tmp_path / "run").model_copy(update=changes))


def test_patience_needs_something_to_validate_by(tmp_path):
    data = write_dataset(tmp_path / "data", {"train": 12})
    with pytest.raises(UserError, match="train.patience needs summaries to validate by; prepare .* with --valid"):
        fit(config(data, tmp_path / "run", patience=2))


def test_what_another_put_there_is_not_trained_over(data, tmp_path):
    (tmp_path / "vocabulary.model").write_text("mine")
    with pytest.raises(UserError, match="exists already"):
        train("quickstart", data=str(data), out=str(tmp_path))
    assert [file.read_text() for file in tmp_path.iterdir()] == ["mine"]


@pytest.mark.parametrize("mode", [0o500, None])
def test_an_unwritable_folder_or_a_file_in_its_way_is_named(data, tmp_path, mode):
    if mode and os.geteuid() == 0:
        pytest.skip("root may write everywhere")
    (tmp_path / "file").touch()
    tmp_path.chmod(mode or 0o700)
    with pytest.raises(UserError, match="cannot write the run folder"):
        fit(config(data, tmp_path / "run" if mode else tmp_path / "file" / "run"))


def test_a_dataset_without_summaries_is_refused(tmp_path):
    bare = write_dataset(tmp_path / "bare", {"train": 10})
    lengths = np.load(bare / "train.lengths.npy")
    lengths[:, 2] = 0
    np.save(bare / "train.lengths.npy", lengths)
    as_formerly(bare)
    with pytest.raises(UserError, match="no row of .* has a summary"):
        fit(config(bare, tmp_path / "run"))


# The attention predictor

SHORT = ["train.workers=0", "train.threads=1", "model.heads=2"]


def alignment_config(run: Run, data: Path, *overrides: str) -> Config:
    return load_config("alignment", [f"run={run.path}", f"data={data}", *SHORT, *overrides])


@pytest.fixture(scope="module")
def alignment(twelve_steps, data) -> Run:
    steps = ["train.steps=40", "train.batch_tokens=60", "train.log_every=1", "optim.lr=0.01", "optim.warmup_steps=0"]
    return fit(alignment_config(twelve_steps, data, *steps, "model.dropout=0"))


def test_the_predictors_place_is_in_its_run(twelve_steps, data, tmp_path):
    with pytest.raises(UserError, match="goes into .*alignment; leave it out"):
        train("alignment", data=str(data), run=str(twelve_steps.path), out=str(tmp_path / "elsewhere"))
    assert not (tmp_path / "elsewhere").exists()


def test_labels_are_the_models_attention(alignment, twelve_steps, data):
    labels = Dataset.open(alignment.path / "labels")
    assert (labels.kind, labels.rows("train"), labels.rows("valid")) == ("alignment", 300, 40)
    row, raw = (list(dataset.read("train"))[70] for dataset in (labels, Dataset.open(data)))
    assert row["id"] == raw["id"]
    model = build(twelve_steps.config.model).eval()
    model.load_state_dict(weights(twelve_steps))
    paragraphs = np.split(raw["ids"], raw["paragraph_offsets"][1:-1])
    with torch.no_grad():
        memory = model.encode(pack([paragraphs]))
        _, attention = model.decode(torch.tensor(raw["target_ids"][None, :-1]), memory, attention=True)
    eta = attention[0].sum(0) / attention.sum()
    np.testing.assert_allclose(row["label"], eta, rtol=1e-4, atol=1e-6)
    phi = row["embeddings"].reshape(len(paragraphs), -1).astype(np.float32)
    np.testing.assert_allclose(phi, model.paragraphs(memory)[0], atol=0.01)


@pytest.mark.slow
def test_actors_label_as_one_process_does_and_ray_has_no_remark(twelve_steps, data, tmp_path, ray_session, capfd):
    from ray.util.state import list_actors

    made = []
    for workers in (0, 2):
        skipped = shutil.ignore_patterns("alignment")
        run = Run(shutil.copytree(twelve_steps.path, tmp_path / str(workers), ignore=skipped))
        options = [f"train.workers={workers}", "train.label_examples=150"]
        labels, _ = labelled_dataset(alignment_config(run, data, *options))
        made.append([(row["id"], row["label"].tolist()) for row in labels.read("train")])
    assert made[0] == made[1] and len(made[0]) == 150
    names = {actor.name for actor in list_actors(address=dashboard(), limit=1000)}
    assert {name.rpartition("-")[2] for name in names if name.startswith("2-labeller-")} == {"0", "1"}
    assert "core_worker" not in capfd.readouterr().err


def test_the_predictor_learns_and_resumes(alignment, twelve_steps, data, capsys):
    found = losses(alignment)
    assert np.mean([found[step] for step in range(36, 41)]) < 0.9 * np.mean([found[step] for step in range(1, 6)])
    assert alignment.path == twelve_steps.alignment.path and alignment.config.model.width == 16
    fit(alignment.config.model_copy(update={"run": str(twelve_steps.path), "data": str(data)}))
    assert "is trained" in capsys.readouterr().err


@pytest.mark.parametrize("decoder", ["F", "V"])
def test_models_without_paragraph_embeddings_are_aligned_by_means(data, tmp_path, decoder):
    run = fit(config(data, tmp_path / "run", 1, model=SMALL | {"decoder": decoder}))
    fit(alignment_config(run, data, "train.steps=2", "train.label_examples=8", "train.validate_examples=8"))
    row = next(Dataset.open(run.alignment.path / "labels").read("train"))
    predictor = Summarizer.load(run.path, beta=0.5).predictor
    embeddings = torch.tensor(row["embeddings"].reshape(1, len(row["label"]), -1), dtype=torch.float32)
    predicted = predictor(embeddings, torch.ones(1, len(row["label"]), dtype=torch.bool))
    assert predicted.sum().item() == pytest.approx(1) and embeddings.abs().sum() > 0
