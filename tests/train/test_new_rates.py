"""Rates of their own for what the weights of a start do not have, what decays, and the schedule of transformers."""

import pytest
import torch

from helpers.small_datasets import write_dataset
from helpers.small_trainings import losses, same, trained, weights
from raysum.config.loading import load_config
from raysum.config.sections import Config, OptimConfig
from raysum.errors import UserError
from raysum.runs.folder import Run
from raysum.runtime.storage import read_lines
from raysum.train.optim import learning_rate, schedule_warning

SMALL = {"width": 16, "ffn": 32, "heads": 2, "pooling_heads": 2, "encoder": "L", "decoder": "F"}
NEW = SMALL | {"encoder": "LG", "decoder": "P"}  # with layers that SMALL has not
OWN = {"lr": 1e-12, "new_lr": 0.01}
STAGES = [0, 2, pytest.param(3, marks=pytest.mark.slow), pytest.param(1, marks=pytest.mark.long)]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_dataset(tmp_path_factory.mktemp("rates") / "data", {"train": 200, "valid": 10})


@pytest.fixture(scope="module")
def donor(data, tmp_path_factory) -> Run:
    return trained(data, tmp_path_factory.mktemp("runs") / "donor", 2, SMALL)


@pytest.fixture
def begin(data, donor, tmp_path):
    """Trains so many steps into the folder of that name, from the weights of the donor."""

    def begin(name: str, steps: int, model=NEW, train=None, **sections) -> Run:
        train = {"init_from": str(donor.path)} | (train or {})
        return trained(data, tmp_path / name, steps, model, train=train, **sections)

    return begin


def rates(run: Run) -> list[tuple[float, float | None]]:
    return [(line["lr"], line.get("new_lr")) for line in read_lines(run.metrics) if "loss" in line]


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("low", [False, True], ids=["fp32", "bf16"])
def test_what_the_start_has_not_learns_at_its_own_rate_also_in_a_run_gone_on_with(begin, stage, low):
    sections = {"optim": OWN, "deepspeed": {"zero_optimization": {"stage": stage}, "bf16": {"enabled": low}}}
    whole = begin("whole", 3, **sections)
    for steps in (1, 3):
        parts = begin("parts", steps, **sections)
    assert losses(parts) == losses(whole) and same(weights(parts, "3"), weights(whole, "3"))
    assert {*rates(parts)} == {(1e-12, 0.01)}
    fresh = parts.latest().state["new"]
    assert any(name.startswith("encoder.1") for name in fresh) and any(".paragraphs." in name for name in fresh)
    first, last = weights(parts, "1"), weights(parts, "3")
    moved = {name for name in first if (last[name] - first[name]).abs().max() > 1e-4}
    assert moved <= {*fresh} and len(moved) > 0.8 * len(fresh)


def test_the_same_rate_for_both_is_no_rate_of_its_own(begin):
    plain, both = begin("plain", 2), begin("both", 2, optim={"new_lr": 0.01})
    for name, value in weights(plain, "2").items():
        torch.testing.assert_close(weights(both, "2")[name], value, rtol=1e-5, atol=1e-7)
    assert rates(plain)[0] == (0.01, None) and rates(both)[0] == (0.01, 0.01)


def test_schedules_move_both_rates(begin, capsys):
    run = begin("run", 4, optim={"new_lr": 0.04, "schedule": "linear", "warmup_steps": 2})
    assert [new / old for old, new in rates(run)] == pytest.approx([4] * 4) and len({*rates(run)}) > 2
    assert "new and untrained: encoder.1.*" in capsys.readouterr().err


@pytest.mark.long
@pytest.mark.slow
def test_other_numbers_of_workers_keep_the_rates_apart(begin, ray_session):
    """A checkpoint of two workers is converted for one; sums in another order move the last bits."""
    sections = {"optim": OWN, "deepspeed": {"zero_optimization": {"stage": 2}}}
    whole = begin("whole", 3, **sections)
    begin("run", 1, **sections, train={"workers": 2})
    run = begin("run", 3, **sections)
    for name, value in weights(whole, "3").items():
        torch.testing.assert_close(weights(run, "3")[name], value, rtol=1e-3, atol=1e-4)


def test_a_rate_of_its_own_needs_a_start(data, tmp_path):
    with pytest.raises(UserError, match="optim.new_lr .* train.init_from=RUN"):
        trained(data, tmp_path / "run", 1, SMALL, optim={"new_lr": 0.1})
    assert not (tmp_path / "run").exists()
    with pytest.raises(UserError, match="greater than 0"):
        load_config("pht", ["optim.new_lr=0"])


@pytest.mark.parametrize("stage", STAGES)
def test_biases_and_norms_do_not_decay_where_matrices_alone_do(begin, donor, stage):
    """At a rate of 1e-4 a decay of 5,000 halves what decays; what gradients add is some 1e-4 a step."""
    optim = {"lr": 1e-4, "weight_decay": 5e3, "decay": "matrices"}
    run = begin("run", 2, SMALL, optim=optim, deepspeed={"zero_optimization": {"stage": stage}})
    before = weights(donor)
    for name, value in weights(run, "2").items():
        factor = 0.25 if value.dim() > 1 else 1.0
        torch.testing.assert_close(value, factor * before[name], rtol=0, atol=4e-4, msg=name)


@pytest.mark.parametrize(("warm", "steps"), [(0, 1), (0, 20), (1, 20), (5, 20), (20, 20), (30, 20)])
def test_the_schedule_of_transformers_is_its_own_step_by_step(warm, steps):
    """By its formula, as its wheel is no part of the tests; and by the function itself where it is installed."""
    optim = OptimConfig(lr=3e-5, schedule="transformers", warmup_steps=warm)
    found = [learning_rate(optim, 64, step, steps) for step in range(1, steps + 1)]
    formula = [n / warm if n < warm else max(0, (steps - n) / max(1, steps - warm)) for n in range(steps)]
    assert found == pytest.approx([3e-5 * part for part in formula], rel=1e-12)
    assert (schedule_warning(Config(optim=optim, train={"steps": steps})) is None) == (steps >= warm)
    transformers = pytest.importorskip("transformers")
    optimizer = torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))], lr=3e-5)
    schedule, theirs = transformers.get_linear_schedule_with_warmup(optimizer, warm, steps), []
    for _ in range(steps):
        theirs += schedule.get_last_lr()
        optimizer.step()
        schedule.step()
    assert found == pytest.approx(theirs, rel=1e-12)
