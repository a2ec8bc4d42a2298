"""The driver of a training: it checks the settings, prepares the run folder, and starts the workers.

The workers run under Ray Train, or in this process if ``train.workers`` is 0.
"""

import os
from collections.abc import Sequence
from contextlib import closing, suppress
from typing import Any

from raysum.config.loading import load_config, pairs, presets
from raysum.config.sections import Config
from raysum.config.signatures import with_settings
from raysum.data.dataset import Dataset
from raysum.decode.domain_shift import learn, rehearse
from raysum.errors import UserError
from raysum.runs.folder import Checkpoint, Run, RunResult
from raysum.runtime.lock import LOCK, folder_lock
from raysum.runtime.processes import configure_process
from raysum.runtime.progress import say
from raysum.runtime.run_sync import push_so_far, refresh, sync_up
from raysum.runtime.session import make_ready, reason
from raysum.runtime.storage import check_own, check_vacant, writing
from raysum.stream.loader import batches
from raysum.stream.stream import Stream
from raysum.stream.truncation import TRAINING, split_truncation
from raysum.systems import part
from raysum.tokenizers.loading import load_tokenizer
from raysum.train import checkpoints
from raysum.train.job_spec import JobSpec, epochs_warning, job_spec_of, out_of_patience
from raysum.train.optim import check_engine_config, check_start, schedule_warning
from raysum.train.progress_bar import show_progress

_AUTO = "auto"
_MODEL_FILES = ("config.yaml", "config.json")  # in folders of runs, and of published models
_CALIBRATION_SHARE, _MAX_CALIBRATION = 0.03, 60  # share of the training's seconds, and seconds at most
# A resumed run may change these settings; all others must stay.
_RUNNING = {
    "steps",
    "minutes",
    "patience",
    "workers",
    "threads",
    "placement",
    "address",
    "keep",
    "log_every",
    "recompute",
}
_CHECKING = {"validate_every", "validate_examples", "save_every", "save_minutes", "check_hook_order"}
_CHANGEABLE: Any = {
    "decode": True,
    "data": True,
    "mixed": True,
    "out": True,
    "run": True,
    "train": _RUNNING | _CHECKING,
}


@with_settings(Config)
def train(preset: str | None, *overrides: str, **values: Any) -> RunResult:
    """Train a preset or YAML file on ``data`` into ``out``, or resume the run in ``out``.

    Settings change the preset; ``overrides`` are dotted ``key=value`` pairs. A system that predicts attention learns
    from the attention of ``run``, and is saved inside that run. The preset ``auto`` chooses all open settings, and
    compares the result with other systems: see ``raysum.auto.training.train``.
    Raises UserError for a wrong config, dataset or run.

    >>> raysum.train("pht", data="data", out="runs/pht", train={"steps": 2000}, model={"encoder": "LLG"})
    """
    if preset in presets() and any(os.path.isfile(os.path.join(preset, name)) for name in _MODEL_FILES):
        say(f"{preset} is the preset of that name; write ./{preset} to train from the folder {preset}")
    if preset == _AUTO:  # in a room above this one, because it evaluates
        return part("raysum.trainers", "auto")(*overrides, **values)
    config = load_config(preset, overrides, values)
    if config.model.predicts_attention:
        run = Run.open(config.run).alignment if config.run else None
    else:
        run = Run(config.out) if config.out else None
    if run is None:
        return RunResult(fit(config))  # raises the error about the missing setting
    with folder_lock(run.path, run.path / LOCK), sync_up(run.path):
        if not run.exists and not config.model.predicts_attention:
            check_vacant(run.path)  # never write into a folder with other files
        run = fit(config)
        if config.model.summarizes and config.data and (newest := run.latest()):
            seconds = _CALIBRATION_SHARE * newest.state.get("seconds", 0)
            rehearse(run, Dataset.open(config.data), min(seconds, _MAX_CALIBRATION))
        return RunResult(run)


def fit(config: Config, callbacks: Sequence[Any] = ()) -> Run:
    """Train a checked config as :func:`train` does; ``callbacks`` are Ray Train ``UserCallback`` objects."""
    if config.model.TRAINER:
        return part("raysum.trainers", config.model.TRAINER)(config)
    if config.model.predicts_attention:
        from raysum.train.labels import labelled_dataset

        dataset, config = labelled_dataset(config)
    else:
        dataset, config = _open_dataset(config)
    assert config.out is not None, "the config has a run folder"
    if config.train.workers:
        make_ready("train", config.train.address)
    run = Run(config.out)
    check_start(config)
    check_engine_config(config)
    newest = checkpoints.newest_sound(run)
    check_resumable(run, config, dataset)
    done = newest.step if newest else 0
    job_spec = job_spec_of(dataset, config, run, done)
    if newest and newest.state.get("mixed", []) != [*job_spec.fingerprints[1:]]:
        others = ", ".join(fingerprint[:8] for fingerprint in newest.state.get("mixed", []))
        mixture = f"a mixture with other datasets (fingerprints {others})" if others else "one dataset alone"
        raise UserError(f"{run.place} was trained on {mixture}; list the same in data, or choose another out=")
    if (limit := _reached_limit(job_spec, newest)) and (job_spec.valid is None or done in run.validations()):
        say(f"{run.place} is trained: {done} steps are done; raise train.{limit} to continue")
        return _finish(run, config, dataset)
    if newest:
        check_own(newest.path)  # DeepSpeed unpickles it
    if job_spec.start:
        say(str(job_spec.start))
        if config.adapters.rank:
            from raysum.models.adapters import trained_share  # loads torch

            say(trained_share(config.model, config.adapters, job_spec.start.new))
    if not newest and run.exists:
        say(f"{run.place} has no checkpoint: training starts over with the current settings")
        run.metrics.unlink(missing_ok=True)  # of the lost steps
    run.create(config, dataset.manifest["recipe"], dataset.vocabulary_path)
    run.rewind(done)
    if newest:
        say(f"{run.place} resumes from step {done}")
        if checkpoints.needs_conversion(newest, max(config.train.workers, 1)):
            checkpoints.convert(newest)
    else:
        truncations = (_truncation_warning(part, config) for part in job_spec.train.parts)
        for warning in (schedule_warning(config), epochs_warning(job_spec), *truncations):
            if warning:
                say(warning)
    try:
        with show_progress(run, done, config.train):
            if config.train.workers:
                from raysum.train.ray_trainer import train_on_ray  # loads Ray

                push_so_far(run.path)  # rank 0 may run on a host without the run folder
                (run.path / checkpoints.TOKEN).write_text(job_spec.token)
                train_on_ray(job_spec, callbacks)
                refresh(run.path)
            else:
                _train_here(job_spec)
    except Exception as error:
        with suppress(OSError):  # a full disk
            run.add_event("failure", message=reason(error))
        raise
    finally:
        (run.path / checkpoints.TOKEN).unlink(missing_ok=True)
        checkpoints.clear(run)
    if newest := run.latest():
        _say_why(run, config, newest.step, _reached_limit(job_spec, newest))
        _say_costs(newest)
    return _finish(run, config, dataset)


def _reached_limit(job_spec: JobSpec, newest: Checkpoint | None) -> str:
    """Return the key of the limit that a training has reached with its newest checkpoint, or an empty string."""
    settings = job_spec.config.train
    if newest is None:
        return ""
    if settings.minutes and newest.state.get("seconds", 0) >= 60 * settings.minutes:
        return "minutes"
    if newest.step >= settings.steps:
        return "steps"
    scores = job_spec.run.validation_scores(settings)
    return "patience" if out_of_patience(settings.patience, scores, newest.step) else ""


def _say_why(run: Run, config: Config, step: int, limit: str) -> None:
    """Report why a training ended before its last step."""
    if limit == "patience":
        validations = "1 validation" if config.train.patience == 1 else f"{config.train.patience} validations"
        say(f"Training ends after step {step}: {validations} were no better than that of step {run.best().step}")
    elif limit == "minutes" and step < config.train.steps:
        say(f"Training ends after step {step} of {config.train.steps}: train.minutes={config.train.minutes:g} are over")


def _truncation_warning(part: Stream, config: Config) -> str | None:
    return split_truncation(Dataset.open(part.path), part.split, config.model, config.source, TRAINING)


def _say_costs(newest: Checkpoint) -> None:
    """Report the time spent waiting for data and the share of padding."""
    state = newest.state
    if state.get("stepped"):  # runs of earlier versions lack it
        waited = state["waited"] / state["stepped"]
        computed = state["padding"] + state["source_tokens"] + state["target_tokens"]
        say(
            f"{waited:.1%} of the steps' time was spent waiting for data, and {state['padding'] / computed:.1%} of the "
            "tokens computed were padding"
        )


def _finish(run: Run, config: Config, dataset: Dataset) -> Run:
    """Write the reference ranges and the summary length of a trained ``run``, and return it."""
    if config.model.summarizes:
        learn(run, dataset)
    if config.model.extracts and dataset.kind == "extraction":
        from raysum.train.validation_metric import choose_length

        choose_length(run, dataset)
    return run


def _open_dataset(config: Config) -> tuple[Dataset, Config]:
    """Return the dataset of the config, and the config with the vocabulary size of the dataset."""
    if not config.data or not config.out:
        missing = "out=RUN" if config.data else "data=DATA"
        raise UserError(f"training needs {missing}; write for example `raysum train pht data=DATA out=RUN`")
    dataset = Dataset.open(config.data)
    dataset.check_shards()
    model = config.model.with_tokenizer(load_tokenizer(dataset.vocabulary_path))
    return dataset, config.model_copy(update={"model": model})


def check_resumable(run: Run, config: Config, dataset: Dataset) -> None:
    """Raises UserError if ``run`` was trained with another vocabulary, dataset or config. Untrained runs pass."""
    if not run.exists or is_untrained(run):
        return
    run.check()
    if run.recipe.get("vocabulary_sha256") != dataset.vocabulary_hash:
        raise UserError(
            f"{run.place} was trained with another vocabulary than {dataset.place} has; choose another out="
        )
    before, now = (list(pairs(each.model_dump(exclude=_CHANGEABLE))) for each in (run.config, config))
    changed = dict.fromkeys(pair.partition("=")[0] for pair in (*before, *now) if (pair in before) != (pair in now))
    if changed:
        old_values = " ".join(pair for pair in before if pair not in now)
        raise UserError(
            f"{run.place} was trained with other values of {', '.join(changed)}; keep them ({old_values}), or choose "
            "another out="
        )
    newest = run.latest()
    if newest is None and run.checkpoints():
        raise UserError(
            f"{run.place} has weights but no training state; start a new training from them: "
            f"train.init_from={run.place} and another out="
        )
    if newest and newest.state["data"] != dataset.fingerprint:
        raise UserError(f"{run.place} was trained on another dataset than {dataset.place}; choose another out=")


def is_untrained(run: Run) -> bool:
    """Return whether a run folder has no checkpoint, not even a damaged one."""
    return not run.checkpoints() and not any(run.checkpoint_folder.glob("damaged-*"))


def _train_here(job_spec: JobSpec) -> None:
    from raysum.train.group import lone_group
    from raysum.train.metrics_logger import Reporter
    from raysum.train.worker import work

    configure_process(job_spec.config.train.threads, neighbours=1)
    with lone_group(), writing(job_spec.run.path), closing(Reporter(job_spec.run, is_first=True)) as reporter:
        work(job_spec, lambda start: batches(job_spec.train, 0, 1, start, job_spec.config.train.steps), reporter)
