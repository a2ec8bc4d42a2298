"""Searching: checks before the first trial, ranking and figures; slow: real searches by Ray Tune."""

import json
import os
import pickle
import re
import shutil
import subprocess
import time
import urllib.request
from pathlib import Path
from types import SimpleNamespace

import pandas
import pytest
import yaml

from helpers.factbook_data import write_factbook, write_run
from helpers.processes import Command
from raysum.config.loading import load_config
from raysum.data.dataset import Dataset
from raysum.errors import UserError
from raysum.evaluate.evaluation import evaluate
from raysum.metrics.statistics import Interval
from raysum.pages.charts import save
from raysum.runs.folder import Run
from raysum.runtime.placement import Capacity
from raysum.runtime.storage import read_lines
from raysum.systems import count_parameters
from raysum.tune.page import result_charts
from raysum.tune.record import RECORD
from raysum.tune.results import Adoption, SearchResult, Trial, decide_adoption, ranked
from raysum.tune.search import _check, _claim, _concurrency, tune
from raysum.tune.spaces import Job, load_space


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Dataset:
    return write_factbook(tmp_path_factory.mktemp("factbook") / "data", {"train": 40, "valid": 10})


@pytest.fixture
def run(tmp_path, data) -> Run:
    return write_run(tmp_path / "pht", data, predictor=True)


def trial(beta: float, rouge2: float, error: str | None = None) -> Trial:
    metrics = {} if error else {"rouge2": rouge2, "rouge2_low": rouge2 - 1, "rouge2_high": rouge2 + 2, "words": 7.0}
    config = {"decode.beta": beta, "decode.alignment_when": "final"}
    return Trial(f"beta={beta:g},alignment_when=final", config, metrics, 1.0, error)


def test_best_first_then_smaller_values_failed_last():
    trials = [trial(1.0, 5.0), trial(0.2, 9.0), trial(0.0, 0.0, "broken"), trial(0.8, 9.0), trial(10.0, 5.0)]
    order = [t.config["decode.beta"] for t in ranked(load_space("beta").config, trials)]
    assert order == [0.2, 0.8, 1.0, 10.0, 0.0]


@pytest.mark.parametrize(
    ("space", "results", "order"),
    [
        # Trials that were stopped early come after those that were scored on all examples.
        ("beta", [(8, 30.0), (40, 10.0), (8, 40.0), (40, 20.0)], [20.0, 10.0, 40.0, 30.0]),
        ("layer_mix", [("LLL", 3.0), ("LLG", 2.0), ("LGG", 2.0)], ["LGG", "LLG", "LLL"]),  # a lower loss is better
    ],
)
def test_trials_are_ranked_by_examples_metric_and_letters(space, results, order):
    config = load_space(space).config
    trials = []
    for key, value in results:
        metrics = {config.metric: value, **({"examples": key} if space == "beta" else {})}
        trials.append(Trial(str(key), {"model.encoder": "L" if space == "beta" else key}, metrics, 1.0))
    ranks = [t.metrics["rouge2"] if space == "beta" else t.name for t in ranked(config, trials)]
    assert ranks == order


GAINS = {"clear": [2.0, 3.0, 4.0, 5.0] * 5, "noise": [2.0, -3.0, 4.0, -2.0] * 5}  # of each of 20 examples, in ROUGE-2


@pytest.mark.parametrize("gains", GAINS)
@pytest.mark.parametrize(("tried", "present", "over"), [(0.4, 0.0, 0.0), (0.4, 0.8, 0.0), (0.0, 0.8, 0.8)])
def test_a_beta_is_adopted_where_its_gain_is_more_than_noise(tmp_path, data, run, gains, tried, present, over):
    run.set_decode({"beta": present, "alignment_when": "step"})
    given = [f"data={data.path}", f"run={run.path}", f"out={tmp_path / 'search'}"]
    more = "  decode.alignment_when: {grid: [final, step]}\n  decode.num_beams: {grid: [2]}\n"
    job = _check(load_space(betas(tmp_path, [0.0, 0.4, 0.8], more), given))
    wanted = GAINS[gains]
    trials = [scored(job, tried, "final", [20.0 + gain for gain in wanted]), scored(job, over, "step", [20.0] * 20)]
    found = decide_adoption(job, trials, run.decode)
    assert found.gain.value == pytest.approx(sum(wanted) / 20) and found.over == over
    kept = {"decode.num_beams": 2}
    if gains == "clear":
        assert found.settings == kept | {"decode.beta": tried, "decode.alignment_when": "final"}
        assert re.fullmatch(rf"gain \+3.50 \[\+3\..., \+[34]\...\] over beta {over:g}: adopted by the run", str(found))
    else:
        assert found.settings == kept | {"decode.beta": present, "decode.alignment_when": "step"}
        noise = rf"gain \+0.25 \[-1\..., \+1\...\] over beta {over:g}: within noise, the run keeps beta {present:g}"
        assert re.fullmatch(noise, str(found))
    assert json.loads(json.dumps(found.to_dict()))["gain"]["low"] == found.gain.low


def scored(job: Job, beta: float, when: str, rouge2: list[float]) -> Trial:
    """A trial of the ``job`` whose examples have these scores."""
    config = {"decode.num_beams": 2, "decode.beta": beta, "decode.alignment_when": when}
    job.folder(f"{beta}").mkdir(parents=True)
    pandas.DataFrame({"rouge2": rouge2}).to_parquet(job.folder(f"{beta}") / "scores.parquet")
    return Trial(f"{beta}", config, {"rouge2": sum(rouge2) / len(rouge2)}, 1.0)


def test_the_beta_that_a_run_has_is_not_compared_with_itself(tmp_path, data, run):
    job = _check(load_space("beta", [f"data={data.path}", f"run={run.path}", f"out={tmp_path / 'search'}"]))
    found = decide_adoption(job, [trial(0.0, 9.0)], run.decode)
    assert (found.settings, found.gain, str(found)) == (trial(0.0, 9.0).config, None, "")


@pytest.mark.parametrize("name", ["beta", "layer_mix"])
def test_result_as_json_table_and_figure(tmp_path, name):
    from rich.console import Console

    space = load_space(name).config
    if name == "beta":
        trials = ranked(space, [trial(0.0, 5.0), trial(0.4, 6.5), trial(0.2, 0, "out of memory")])
    else:
        found = {"valid_loss": 2.5, "step": 9, "parameters": 23_000_000, "train_seconds": 61.2}
        trials = [Trial(mix, {"model.encoder": mix}, found, 1.0) for mix in ("L", "LG")]
    adopted = Adoption({"decode.beta": 0.0}, Interval(0.02, -0.53, 0.51)) if name == "beta" else None
    result = SearchResult(space, trials, Run(tmp_path / "run"), 12.34, adopted=adopted)
    values = json.loads(json.dumps(result.to_dict()))
    assert values["best"] == {"config": trials[0].config, "metrics": trials[0].metrics, "run": str(tmp_path / "run")}
    gain = {"value": 0.02, "low": -0.53, "high": 0.51, "over": 0.0}
    assert values.get("adopted") == ({"settings": {"decode.beta": 0.0}, "gain": gain} if adopted else None)
    assert len(values["trials"]) == len(trials) and values["seconds"] == 12.3
    console = Console(width=120, record=True, file=open(os.devnull, "w"))  # noqa: SIM115
    console.print(result.render())
    text = console.export_text()
    assert ("95 % interval" in text) == (name == "beta")  # the loss has none
    assert (
        ("6.50 ±1.50" in text and "out of memory" in text)
        if name == "beta"
        else re.search(r"2.5000 .* 23,000,000 .* 61 ", text)
    )
    noise = "gain +0.02 [-0.53, +0.51] over beta 0: within noise, the run keeps beta 0"
    assert (noise in " ".join(text.split())) == (name == "beta") and ("now used by" in text) == (name != "beta")
    save(tmp_path / "figure.png", space.about, result_charts(space, [t for t in trials if not t.error]))
    assert (tmp_path / "figure.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("space", "settings", "message"),
    [
        ("beta", {"out": None}, "needs a dataset and a folder"),
        ("beta", {"run": None}, "name it with run=RUN"),
        ("beta", {"run": "none"}, "no run folder"),
        ("beta", {"run": "bare"}, "raysum train alignment run=.*bare"),
        ("beta", {"split": "test"}, "no split 'test'"),
        ("beta", {"out": "full"}, "not empty"),
        ("layer_mix", {}, "leave run= out"),
        ("layer_mix", {"run": None, "data": "unvalidated"}, "no split 'valid'"),
    ],
)
def test_mistakes_are_found_before_ray_starts(tmp_path, data, run, monkeypatch, space, settings, message):
    write_run(tmp_path / "bare", data)
    write_factbook(tmp_path / "unvalidated", {"train": 2})
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes.txt").write_text("mine")
    given = {"data": str(data.path), "run": str(run.path), "out": str(tmp_path / "search")}
    changed = {
        key: value if key == "split" or value is None else str(tmp_path / value) for key, value in settings.items()
    }
    with pytest.raises(UserError, match=message):
        tune(space, *(f"{key}={value}" for key, value in (given | changed).items() if value))
    assert not (tmp_path / "search").exists()


def test_a_resumed_search_reports_results(tmp_path):
    """Tune unpickles the callbacks of a search that it resumes."""
    from raysum.tune.tuner import TrialProgress

    progress = pickle.loads(pickle.dumps(TrialProgress("rouge2", 1, tmp_path)))
    progress.setup()
    trial = SimpleNamespace(config={"decode.beta": 0.5}, storage=SimpleNamespace(storage_fs_path=str(tmp_path)))
    progress.on_trial_result(1, [], trial, {"rouge2": 3.0, "time_total_s": 2.0, "pid": 7})
    (line,) = read_lines(tmp_path / RECORD)
    assert (line["config"], line["metrics"], line["seconds"]) == ({"decode.beta": 0.5}, {"rouge2": 3.0}, 2.0)


def test_a_trial_ends_when_a_metric_reaches_its_value():
    from raysum.tune.tuner import TrialLimits

    ends = TrialLimits({"valid_loss": 2.0, "step": 10})
    results = [{"valid_loss": 2.1, "step": 9}, {"valid_loss": 2.0}, {"valid_loss": 3.0, "step": 10}, {"examples": 99}]
    assert [ends("trial", result) for result in results] == [False, True, True, False]


@pytest.mark.parametrize(
    ("settings", "trials"),
    [
        ([], 2),
        (["max_concurrent=1"], 1),
        (["max_concurrent=9"], 2),
        (["resources.cpus=2"], 4),
        (["resources.gpus=0.5"], 4),
        (["resources.gpus=0.4"], 4),  # a third trial of each GPU would need parts of two
        (["resources.gpus=2"], 1),
        (["resources.gpus=0.1", "resources.cpus=3"], 2),
    ],
)
def test_trials_run_side_by_side_within_their_resources(settings, trials):
    space = load_space("layer_mix", ["budget.parameters=null", *settings])
    assert _concurrency(space, Capacity(cpus=8, gpus=2)) == trials


def test_resources_that_never_fit_are_found_before_ray_starts(tmp_path, data, run):
    given = [f"data={data.path}", f"run={run.path}", f"out={tmp_path / 'search'}"]
    with pytest.raises(UserError, match="a trial with resources.cpus=99999 does not fit on .* lower them"):
        tune("beta", *given, "resources.cpus=99999")
    workers = ["train.workers=2", "train.micro_batches=2", "resources.gpus=0.5"]
    with pytest.raises(UserError, match="resources.gpus=0.5 does not fit|does not fit on .* 0 GPUs"):
        tune("layer_mix", *given[::2], *workers)


@pytest.mark.parametrize(
    ("scheduler", "rungs"), [("asha", [[100, 300]]), ("hyperband", [[30, 90, 270], [90, 270], [270], []])]
)
def test_hyperband_has_brackets_from_a_small_part_to_a_whole_trial(tmp_path, data, scheduler, rungs):
    from raysum.tune.tuner import _scheduler

    given = [f"scheduler={scheduler}", "train.steps=800", "budget.seconds=null", f"data={data.path}"]
    brackets = _scheduler(_check(load_space("layer_mix", [*given, f"out={tmp_path}"])))._brackets
    assert [sorted(milestone for milestone, _ in bracket._rungs) for bracket in brackets] == rungs


def test_a_search_that_has_not_ended_cannot_be_served(tmp_path):
    (tmp_path / "search.yaml").write_text("name: beta\n")
    with pytest.raises(UserError, match="has not ended"):
        Run.resolve(tmp_path)


@pytest.mark.slow
def test_beta_search_is_seen_adopted_and_not_repeated(tmp_path, data, run, ray_session, capsys):
    from ray.util.state import list_actors

    from raysum.runtime.compat import dashboard

    space = betas(tmp_path, [0.4, 0.8], "  decode.alignment_when: {grid: [final, step]}\n")
    command = [f"data={data.path}", f"run={run.path}", f"out={tmp_path / 'search'}", "examples=6"]
    result = tune(space, *command)
    top = max(t.metrics["rouge2"] for t in result.trials)
    assert len(result.trials) == 4 and all(t.error is None and t.metrics["examples"] == 6 for t in result.trials)
    best = min(tuple(t.config.values()) for t in result.trials if t.metrics["rouge2"] == top)
    assert tuple(result.best.config.values()) == best
    plain = evaluate(str(run.path), data.path, split="valid", limit=6, decode={"beta": 0.0}, out=tmp_path / "plain")
    gain = result.adopted.gain  # over beta 0, which is no trial
    assert gain.value == pytest.approx(top - next(iter(plain.systems.values()))["rouge2"])
    told = {"beta": best[0], "alignment_when": best[1]} if gain.low > 0 else {}
    assert Run.resolve(tmp_path / "search").decode == run.config.decode.model_copy(update=told)
    assert json.loads((tmp_path / "search" / "best.json").read_text())["adopted"] == result.adopted.to_dict()
    assert (tmp_path / "search" / "search.png").is_file()
    actors, name = list_actors(address=dashboard(), limit=1000), "beta=0.8,alignment_when=step"
    assert {t.name for t in result.trials} <= {actor.name for actor in actors}
    assert all(actor.state == "DEAD" for actor in actors if actor.class_name == "Decoder")  # it would hold a CPU
    assert gauge("raysum_trial_metric", name) == pytest.approx(metric(result, name), abs=1e-6)
    assert hparams(tmp_path / "search" / "tune" / name)["decode.beta"] == 0.8

    for when in ("final", "step"):  # betas are decoded together
        decode = {"beta": 0.8, "alignment_when": when}
        alone = evaluate(str(run.path), data.path, split="valid", limit=6, decode=decode, out=tmp_path / "alone")
        expected = next(iter(alone.systems.values()))["rouge2"]
        assert metric(result, f"beta=0.8,alignment_when={when}") == pytest.approx(expected)

    scores = {file: file.stat().st_mtime_ns for file in (tmp_path / "search").rglob("scores.parquet")}
    again = tune(space, *command)
    assert again.trials == result.trials and again.adopted == result.adopted
    assert len(scores) == 5 and all(file.stat().st_mtime_ns == at for file, at in scores.items())
    with pytest.raises(UserError, match="another search"):
        tune(space, *command[:3], "examples=5")

    capsys.readouterr()
    (tmp_path / "search" / "tune" / "tuner.pkl").write_bytes(b"craysum.gone\nThing\n.")  # a class of another version
    again = tune(space, *command)
    assert {t.name: t.metrics for t in again.trials} == {t.name: t.metrics for t in result.trials}
    assert all(file.stat().st_mtime_ns == at for file, at in scores.items())  # nothing is decoded again
    assert f"another version of raysum and is now {tmp_path}/search/tune.1: " in capsys.readouterr().err


def test_a_search_goes_on_at_another_address_and_by_its_owner_only(tmp_path, data, run, monkeypatch):
    def claim(*more: str) -> None:
        given = [f"data={data.path}", f"run={run.path}", f"out={tmp_path / 'search'}", *more]
        _claim(_check(load_space("beta", given)))

    (tmp_path / "search").mkdir()  # by the lock
    claim("train.address=one:1")
    (tmp_path / "search" / "tune").mkdir()
    (tmp_path / "search" / "tune" / "tuner.pkl").write_bytes(b"")
    claim("train.address=two:2", "train.threads=3")
    claim()
    file = tmp_path / "search" / "search.yaml"
    former = yaml.safe_load(file.read_text())  # as 19c3897 wrote it: an old name, and keys that it did not have
    former["config"]["train"]["start"] = former["config"]["train"].pop("init_from")
    del former["config"]["train"]["check_hook_order"], former["space"]["seed"]
    file.write_text(yaml.safe_dump(former | {"format": 2}))
    claim()
    assert not (tmp_path / "search" / "tune").exists() and (tmp_path / "search" / "tune.1" / "tuner.pkl").exists()
    (tmp_path / "search" / "tune").mkdir()
    with pytest.raises(UserError, match="another search"):
        claim("train.seed=1")
    monkeypatch.setattr(os, "getuid", lambda: 54321)
    with pytest.raises(UserError, match="belongs to another user"):
        claim()
    monkeypatch.setenv("RAYSUM_TRUST_OTHERS", "1")
    claim()
    (tmp_path / "search" / "search.yaml").write_text("format: 1\n")
    with pytest.raises(UserError, match="does not contain the search space"):
        claim()


@pytest.mark.slow
def test_a_failed_trial_is_reported_and_tried_again(tmp_path, data, run, ray_session, monkeypatch):
    monkeypatch.setenv("TUNE_GLOBAL_CHECKPOINT_S", "0.1")  # Tune also saves its state between the failures
    space = tmp_path / "beams.yaml"
    space.write_text(
        "about: x\nkind: decode\nexamples: 4\nconfig: {decode.max_length: 5}\n"
        "search:\n  decode.ranker: {grid: [null, /nowhere]}\n"
        "retries: 2\nmax_concurrent: 1\nresources: {cpus: 0.5}\nstop: {examples: 4}\n"
    )
    command = [f"data={data.path}", f"run={run.path}", f"out={tmp_path / 'search'}"]
    for searches in (1, 2):
        result = tune(str(space), *command)
        lines = [*read_lines(tmp_path / "search" / RECORD)]
        running = [line["trial"] for line in lines if "config" in line and "metrics" not in line]
        assert running == ["ranker=None"] + ["ranker=nowhere"] * 3 * searches  # one after the other, with two retries
        good, bad = result.trials
        assert good.config == {"decode.ranker": None} and good.error is None
        assert (good.name, bad.name) == ("ranker=None", "ranker=nowhere")  # also when it was tried again
        assert bad.metrics == {} and bad.error and "no run folder" in result.render().columns[0]._cells[1]


@pytest.mark.long
@pytest.mark.slow
def test_a_killed_search_goes_on_where_it_stopped(tmp_path, data, run):
    space = betas(tmp_path, [number / 20 for number in range(24)])
    arguments = [space, f"data={data.path}", f"run={run.path}", f"out={tmp_path / 'search'}", "examples=4"]
    often = os.environ | {"TUNE_GLOBAL_CHECKPOINT_S": "0.1"}  # seconds between what Tune writes; 10 by default
    search = Command("tune", *arguments, env=often, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    states = tmp_path / "search" / "tune"
    deadline = time.monotonic() + 200
    while ended(states) < 2:
        assert search.process.poll() is None and time.monotonic() < deadline
        time.sleep(0.05)
    search.kill()
    saved = tmp_path / "search" / "trials"
    before = {file: file.stat().st_mtime_ns for file in saved.glob("*/scores.parquet")}
    assert 2 <= len(before) < 24
    assert Command("tune", *arguments, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL).process.wait(250) == 0
    after = {file: file.stat().st_mtime_ns for file in saved.glob("*/scores.parquet")}
    kept = [file for file in before if before[file] == after[file]]
    assert len(after) == 24 and len(kept) >= 2
    assert Run.resolve(tmp_path / "search").path == run.path


@pytest.mark.slow
def test_the_best_mix_within_the_budget_gets_its_best_beta(tmp_path, data, ray_session):
    search_mixes = (
        "model.encoder: {mixes: {letters: LG, layers: [1]}}, model.decoder: {mixes: {letters: P, layers: [1, 2]}}"
    )
    space = tiny_space(
        tmp_path,
        f"search: {{{search_mixes}}}\nbudget: {{seconds: 0.01}}\n"
        f"then: {betas(tmp_path, [0.0, 0.8])}\nalignment: {{train.steps: 3, train.workers: 0}}\nexamples: 4\n",
        "train.steps: 40",
    )
    sizes = [
        f"model.{key}={value}" for key, value in {**TINY, "vocabulary": 400, "encoder": "L", "decoder": "P"}.items()
    ]
    most = count_parameters(load_config("pht", sizes).model)
    command = [f"data={data.path}", f"out={tmp_path / 'search'}", f"budget.parameters={most}"]
    result = tune(space, *command)
    assert sorted(t.name for t in result.trials) == ["encoder=G,decoder=P", "encoder=L,decoder=P"]
    for found in result.trials:
        trained = Run(tmp_path / "search" / "trials" / found.name)
        losses = trained.validations()
        assert found.error is None and found.metrics["valid_loss"] == min(losses.values())
        assert 2 <= found.metrics["step"] == max(losses) < 40 == trained.config.train.steps  # the time was over before
        assert found.metrics["train_seconds"] >= 0.01
        assert found.metrics["parameters"] == count_parameters(trained.config.model) <= most
        assert (trained.path / "familiar.json").is_file()  # the training has ended, and was not killed
    best = Run.resolve(tmp_path / "search")
    assert best.path.name == result.best.name and best.alignment.latest().step == 3
    assert result.then.run.path == best.path and len(result.then.trials) == 2
    assert best.decode.beta == result.to_dict()["then"]["adopted"]["settings"]["decode.beta"]
    assert (tmp_path / "search" / "search.png").is_file()
    assert gets_back_all_cpus()  # of the trials that were stopped, too

    (tmp_path / "search" / "best.json").unlink()  # as if it had been killed at its end
    weights = best.alignment.best().weights.stat().st_mtime_ns
    again = tune(space, *command)
    assert (again.trials, again.then.trials) == (result.trials, result.then.trials)
    assert best.alignment.best().weights.stat().st_mtime_ns == weights
    assert Run.resolve(tmp_path / "search").decode == best.decode

    best.add_validation(38, {"valid_loss": 99.0})  # trained further, after the search has ended
    assert [t.metrics for t in tune(space, *command).trials] == [t.metrics for t in result.trials]


@pytest.mark.long
@pytest.mark.slow
def test_a_trial_goes_on_that_was_killed_between_a_validation_and_its_checkpoint(tmp_path, data, ray_session):
    space = tiny_space(tmp_path, "search: {optim.lr: {grid: [0.001]}}\n", "train.steps: 8, train.workers: 0")
    command = [space, f"data={data.path}", f"out={tmp_path / 'search'}"]
    (before,) = tune(*command).trials
    run = Run(tmp_path / "search" / "trials" / before.name)
    last = run.validations()[8]
    run.rewind(0)  # the checkpoints of steps 2 to 8 stay, without a validation
    run.add_validation(10, {"valid_loss": 1.0})
    (tmp_path / "search" / "best.json").unlink()
    shutil.rmtree(tmp_path / "search" / "tune")
    (after,) = tune(*command).trials
    assert after.error is None and run.validations() == {8: last} and after.metrics["valid_loss"] == last


@pytest.mark.long
@pytest.mark.slow
def test_the_budget_ends_trainings_in_one_process(tmp_path, data, ray_session):
    search = "search: {optim.lr: {grid: [0.001, 0.002]}}\nbudget: {seconds: 2}\n"
    space = tiny_space(tmp_path, search, "train.steps: 5000, train.workers: 0")
    for found in tune(space, data=str(data.path), out=str(tmp_path / "search")).trials:
        assert found.error is None and found.metrics["step"] < 5000 and 2 <= found.metrics["train_seconds"] < 20


@pytest.mark.long
@pytest.mark.slow
def test_optimizer_search_ends(tmp_path, data, ray_session):
    sizes = [f"model.{key}={value}" for key, value in {**TINY, "encoder": "L", "decoder": "P"}.items()]
    training = ["train.steps=4", "train.validate_every=2", "train.save_every=2", "train.batch_tokens=600"]
    command = [f"data={data.path}", f"out={tmp_path / 'search'}", "trials=2", *sizes, *training]
    result = tune("optimizer", *command)
    assert len(result.trials) == 2 and all(t.error is None and t.metrics["step"] >= 2 for t in result.trials)


@pytest.mark.slow
def test_a_trial_that_falls_behind_goes_on_from_the_weights_of_the_other(tmp_path, data, ray_session):
    space = tiny_space(
        tmp_path,
        "search: {optim.lr: {loguniform: [0.00001, 0.01]}}\nscheduler: pbt\nsearcher: random\ntrials: 2\n",
        "train.steps: 4, optim.schedule: constant, optim.warmup_steps: 0",
    )
    result = tune(space, data=str(data.path), out=str(tmp_path / "search"))
    assert [(t.error, t.metrics["step"]) for t in result.trials] == [(None, 4)] * 2
    runs = [Run(tmp_path / "search" / "trials" / t.name) for t in result.trials]
    lines = [{line["step"]: line for line in read_lines(run.metrics) if "lr" in line} for run in runs]
    assert lines[0][2] == lines[1][2] and lines[0][4] != lines[1][4]  # one history, two ways from it
    assert sum(line[4]["lr"] == line[2]["lr"] for line in lines) == 1  # one went on with other settings
    for found, run, line in zip(result.trials, runs, lines, strict=True):
        assert line[4]["lr"] == found.config["optim.lr"] == run.config.optim.lr
        assert [checkpoint.step for checkpoint in run.checkpoints()] == [2, 4]
    assert not list((tmp_path / "search" / "tune").rglob("*.safetensors"))  # weights are in the runs alone


@pytest.mark.long
@pytest.mark.slow
def test_pb2_selects_new_rates_within_their_range(tmp_path, data, ray_session):
    space = tiny_space(
        tmp_path,
        "search: {optim.lr: {uniform: [0.0001, 0.05]}}\nscheduler: pb2\nsearcher: random\ntrials: 2\n",
        "train.steps: 6, optim.schedule: constant, optim.warmup_steps: 0, train.workers: 0",
    )
    result = tune(space, data=str(data.path), out=str(tmp_path / "search"))
    assert [(t.error, t.metrics["step"]) for t in result.trials] == [(None, 6)] * 2
    runs = [Run(tmp_path / "search" / "trials" / found.name) for found in result.trials]
    rates = [[line["lr"] for line in read_lines(run.metrics) if "lr" in line] for run in runs]
    for found, run, own in zip(result.trials, runs, rates, strict=True):
        assert own[-1] == run.config.optim.lr == found.config["optim.lr"]
    assert all(0.0001 <= rate <= 0.05 for own in rates for rate in own)
    first, second = rates
    assert first[:2] == second[:2] and first[2] != second[2]  # one history until the last copy, then its own rate


TINY = {"width": 16, "ffn": 32, "heads": 2, "pooling_heads": 2}


def tiny_space(folder: Path, text: str, config: str = "") -> str:
    """A train space of small models, which are validated every 2 steps."""
    shared = ", ".join(f"model.{key}: {value}" for key, value in TINY.items())
    training = "train.validate_every: 2, train.save_every: 2, train.batch_tokens: 600"
    config = ", ".join(part for part in (shared, "model.encoder: L, model.decoder: P", training, config) if part)
    header = f"about: x\nkind: train\npreset: pht\nmetric: valid_loss\nconfig: {{{config}}}\n"
    (folder / "tiny.yaml").write_text(header + text)
    return str(folder / "tiny.yaml")


def gets_back_all_cpus() -> bool:
    """Whether the session has all its CPUs again soon. Ray's clean-up asks the address that workers know."""
    import ray

    from raysum.runtime.compat import dashboard

    known = ray.remote(num_cpus=0)(lambda: os.environ["RAY_API_SERVER_ADDRESS"]).remote()
    assert ray.get(known) == dashboard() and "RAY_API_SERVER_ADDRESS" not in os.environ
    for _ in range(60):
        if ray.available_resources()["CPU"] == ray.cluster_resources()["CPU"]:
            return True
        time.sleep(0.5)
    return False


def betas(folder: Path, values: list[float], more: str = "") -> str:
    """A smaller space than the shipped one."""
    search = f"search:\n  decode.beta: {{grid: {values}}}\n{more}"
    (folder / "some_betas.yaml").write_text(f"about: x\nkind: decode\n{search}")
    return str(folder / "some_betas.yaml")


def ended(states: Path) -> int:
    """The trials that have ended by what Tune wrote last."""
    found = [file.read_text() for file in sorted(states.glob("experiment_state-*.json"))[-1:]]
    return sum(text.count("TERMINATED") for text in found)


def metric(result: SearchResult, name: str) -> float:
    return next(t.metrics["rouge2"] for t in result.trials if t.name == name)


def gauge(name: str, trial_name: str) -> float | None:
    """The value among Ray's metrics; the agent gets it every few seconds."""
    import ray

    (node,) = [node for node in ray.nodes() if node["Alive"]]
    url = f"http://{node['NodeManagerAddress']}:{node['MetricsExportPort']}/metrics"
    for _ in range(60):
        for line in urllib.request.urlopen(url).read().decode().splitlines():
            if line.startswith(f"ray_{name}{{") and f'trial="{trial_name}"' in line:
                return float(line.rpartition(" ")[2])
        time.sleep(0.5)
    return None


def hparams(folder: Path) -> dict[str, float]:
    """What TensorBoard's HParams page reads of a trial."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

    events = EventAccumulator(str(folder))
    events.Reload()
    content = events.summary_metadata["_hparams_/session_start_info"].plugin_data.content
    started = HParamsPluginData.FromString(content).session_start_info
    return {name: value.number_value for name, value in started.hparams.items()}
