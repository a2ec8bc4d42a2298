"""The driver of a training: it checks the settings, prepares the run folder, and starts the workers.

The workers run under Ray Train, or in this process if ``train.workers`` is 0.
"""

from collections.abc import Sequence
from contextlib import ExitStack, closing, suppress
from typing import Any

from raysum.config.base import with_settings
from raysum.config.loading import load_config, pairs
from raysum.config.sections import Config
from raysum.data.dataset import Dataset
from raysum.decode.domain_shift import learn, rehearse
from raysum.errors import UserError
from raysum.runs.folder import Checkpoint, Run, RunResult
from raysum.runs.trackers import check_trackers, tracked
from raysum.runtime.lock import LOCK, folder_lock
from raysum.runtime.processes import configure_process
from raysum.runtime.progress import logged_run, say
from raysum.runtime.remote import url_of
from raysum.runtime.run_sync import push_so_far, refresh, sync_up
from raysum.runtime.session import make_ready, ray_session, reason
from raysum.runtime.storage import check_own, check_vacant, writing
from raysum.stream.loader import batches
from raysum.stream.truncation import TRAINING, split_truncation
from raysum.systems import part
from raysum.train import checkpoints
from raysum.train.job_spec import JobSpec, epochs_warning, job_spec_of, out_of_patience
from raysum.train.lines import PostedLines, WrittenLines
from raysum.train.optim import check_batch_tokens, check_engine_config, check_start, compiles_layers, schedule_warning
from raysum.train.progress_bar import show_progress

_AUTO = "auto"
_CALIBRATION_SHARE, _MAX_CALIBRATION = 0.03, 60  # share of the training's seconds, and seconds at most
# A resumed run may change these settings; all others must stay.
_RUNNING = {
    "steps", "minutes", "patience", "workers", "threads", "placement", "cpus_per_worker", "gpus_per_worker",
    "wait_minutes", "address", "keep", "log_every", "trackers", "recompute", "compile",
}  # fmt: skip
_CHECKING = {"validate_every", "validate_examples", "save_every", "save_minutes", "check_hook_order"}
_CHANGEABLE: Any = {**dict.fromkeys(("decode", "data", "mixed", "out", "run"), True), "train": _RUNNING | _CHECKING}


@with_settings(Config)
def train(preset: str | None, *overrides: str, **values: Any) -> RunResult:
    """Train a preset or YAML file on ``data`` into ``out``, or resume the run in ``out``.

    Settings change the preset; ``overrides`` are dotted ``key=value`` pairs. A system that predicts attention learns
    from the attention of ``run``, and is saved inside that run. The preset ``auto`` chooses all open settings, and
    compares the result with other systems: see ``raysum.auto.training.train``.
    Raises UserError for a wrong config, dataset or run.

    >>> raysum.train("pht", data="data", out="runs/pht", train={"steps": 2000}, model={"encoder": "LLG"})
    """
    if preset == _AUTO:  # in a room above this one, because it evaluates
        return part("raysum.trainers", "auto")(*overrides, **values)
    config = load_config(preset, overrides, values)
    if config.train.address and not config.train.workers:
        say("train.workers=0 trains in this process, not on the cluster of train.address; set train.workers=1 or more")
    run = _folder_of(config)
    with logged_run(run.place), folder_lock(run.path, run.path / LOCK), sync_up(run.path):
        if not run.exists and not config.model.predicts_attention:
            check_vacant(run.path)  # never write into a folder with other files
        run = fit(config)
        if config.model.summarizes and config.data and (newest := run.latest()):
            seconds = _CALIBRATION_SHARE * newest.state.get("seconds", 0)
            rehearse(run, Dataset.open(config.data), min(seconds, _MAX_CALIBRATION))
        return RunResult(run)


def _folder_of(config: Config) -> Run:
    """Return the run that a training of ``config`` writes. Raises UserError if a folder is missing in the config."""
    example = "alignment run=RUN data=DATA" if config.model.predicts_attention else "pht data=DATA out=RUN"
    for setting in example.split()[1:]:
        if not getattr(config, setting.partition("=")[0]):
            raise UserError(f"training needs {setting}; write for example `raysum train {example}`")
    return Run.open(config.run or "").alignment if config.model.predicts_attention else Run(config.out or "")


def fit(config: Config, callbacks: Sequence[Any] = ()) -> Run:
    """Train a checked config as :func:`train` does; ``callbacks`` are Ray Train ``UserCallback`` objects."""
    if config.model.TRAINER:
        return part("raysum.trainers", config.model.TRAINER)(config)
    run = _folder_of(config)
    dataset = None if config.model.predicts_attention else Dataset.open(config.data or "")
    if dataset is not None:
        dataset.check_shards()
    if config.train.workers:
        make_ready("train", config.train.address)
    check_start(config)
    if config.decode.citing_layers:
        from raysum.decode.attention import citing  # loads torch

        citing(config.decode, config.model)
    if config.train.batch_tokens == "auto":
        check_batch_tokens(config)
    check_engine_config(config)
    check_trackers(config.train.trackers)
    if dataset is None:
        from raysum.train.labels import labelled_dataset

        dataset, config = labelled_dataset(config)
    newest = checkpoints.newest_sound(run)
    job_spec = job_spec_of(dataset, config, run, newest.step if newest else 0)
    check_resumable(job_spec, dataset)
    limit = _reached_limit(job_spec, newest)
    if newest and limit and (job_spec.valid is None or newest.step in run.validations()):
        say(f"{run.place} is trained: {newest.step} steps are done; raise train.{limit} to continue")
    else:
        _begin(job_spec, dataset, newest)
        if compiles_layers(config):
            say("train.compile: the first steps compile the layers, which takes seconds to minutes")
        _train(job_spec, newest, callbacks)
        _say_end(job_spec, run.latest())
    if config.model.summarizes:
        learn(run, dataset)
    if config.model.extracts and dataset.kind == "extraction" and _reached_limit(job_spec, run.latest()):
        from raysum.train.validation_metric import choose_length

        choose_length(run, dataset)
    return run


def check_resumable(job_spec: JobSpec, dataset: Dataset) -> None:
    """Raises UserError if the run was trained with another vocabulary, dataset or config. Untrained runs pass."""
    run, newest = job_spec.run, job_spec.run.latest()
    if not run.exists or is_untrained(run):
        return
    run.check()
    if newest is None and run.checkpoints():
        fix = f"start a new training from them: train.init_from={run.place} and another out="
        raise UserError(f"{run.place} has weights but no training state; {fix}")
    run.check_vocabulary(dataset.vocabulary_hash, dataset.place)
    before, now = ([*pairs(each.model_dump(exclude=_CHANGEABLE))] for each in (run.config, job_spec.config))
    if changed := [pair for pair in (*before, *now) if pair not in before or pair not in now]:
        keys = ", ".join(dict.fromkeys(pair.partition("=")[0] for pair in changed))
        fix = f"keep them ({' '.join(pair for pair in changed if pair in before)}), or choose another out="
        raise UserError(f"{run.place} was trained with other values of {keys}; {fix}")
    if newest and (newest.state["data"], *newest.state["mixed"]) != job_spec.fingerprints:
        others = ", ".join([dataset.place, *job_spec.config.mixed])
        fix = "list the same in data, or choose another out="
        raise UserError(f"{run.place} was trained on other datasets than {others}; {fix}")


def is_untrained(run: Run) -> bool:
    """Return whether a run folder has no checkpoint, not even a damaged one."""
    return not run.checkpoints() and not any(run.checkpoint_folder.glob("damaged-*"))


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


def _begin(job_spec: JobSpec, dataset: Dataset, newest: Checkpoint | None) -> None:
    """Write the run folder of a training that starts, or resumes from the checkpoint ``newest``, and report both."""
    run, config, start = job_spec.run, job_spec.config, job_spec.start
    if newest:
        check_own(newest.path)  # DeepSpeed unpickles it
    if start:
        say(str(start))
        if config.adapters.rank:
            from raysum.models.adapters import trained_share  # loads torch

            say(trained_share(config.model, config.adapters, start.new))
    if not newest and run.exists:
        say(f"{run.place} has no checkpoint: training starts over with the current settings")
        run.metrics.unlink(missing_ok=True)  # of the lost steps
    run.create(config, dataset.manifest["recipe"], dataset.vocabulary_path)
    run.rewind(newest.step if newest else 0)
    if newest:
        say(f"{run.place} resumes from step {newest.step}")
        return
    for warning in (schedule_warning(config), epochs_warning(job_spec)):
        if warning:
            say(warning)
    for stream in job_spec.train.parts:
        if warning := split_truncation(Dataset.open(stream.path), stream.split, config.model, config.source, TRAINING):
            say(warning)


def _train(job_spec: JobSpec, newest: Checkpoint | None, callbacks: Sequence[Any]) -> None:
    """Run the workers, under Ray Train or in this process, and record a failure in the run folder."""
    run, settings = job_spec.run, job_spec.config.train
    is_remote = bool(settings.workers and url_of(run.path))  # then rank 0 may write metrics.jsonl on another host
    lines = PostedLines(run, job_spec.token) if is_remote else WrittenLines(run)
    try:
        with (
            tracked(settings.trackers, run.path, run.name, job_spec.config.model_dump(mode="json")) as log,
            show_progress(f"training {run.path.name}", lines, newest.step if newest else 0, settings, log),
        ):
            if settings.workers:
                push_so_far(run.path)  # rank 0 may run on a host without the run folder
                (run.path / checkpoints.TOKEN).write_text(job_spec.token)
                cpus = settings.workers * max(settings.cpus_per_worker or 1, 1) + 1
                with ray_session(settings.address, cpus, "train"):
                    from raysum.train.ray_trainer import train_on_ray  # loads Ray Train while workers start

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


def _train_here(job_spec: JobSpec) -> None:
    from raysum.train.group import lone_group
    from raysum.train.metrics_logger import Reporter
    from raysum.train.requests import STOP, Requests, stoppable
    from raysum.train.worker import work

    configure_process(job_spec.config.train.threads, neighbours=1)
    with ExitStack() as stack:
        stack.enter_context(lone_group())
        stack.enter_context(writing(job_spec.run.path))
        reporter = stack.enter_context(closing(Reporter(job_spec.run, is_first=True)))
        requests = stack.enter_context(closing(Requests(own=STOP)))
        stack.enter_context(stoppable(requests.ask))
        steps = job_spec.config.train.steps
        work(job_spec, lambda start: batches(job_spec.train, 0, 1, start, steps), reporter, requests)


def _say_end(job_spec: JobSpec, newest: Checkpoint | None) -> None:
    """Report why a training ended before its last step, its time spent waiting for data and its share of padding."""
    if newest is None:
        return
    run, settings, limit = job_spec.run, job_spec.config.train, _reached_limit(job_spec, newest)
    if limit == "patience":
        validations = "1 validation" if settings.patience == 1 else f"{settings.patience} validations"
        say(f"Training ends after step {newest.step}: {validations} were no better than that of step {run.best().step}")
    elif limit == "minutes" and newest.step < settings.steps:
        limits = f"train.minutes={settings.minutes:g} are over"
        say(f"Training ends after step {newest.step} of {settings.steps}: {limits}")
    state, padding = newest.state, newest.state["padding"]
    if state["stepped"]:
        waited = f"{state['waited'] / state['stepped']:.1%} of the steps' time was spent waiting for data"
        computed = padding + state["source_tokens"] + state["target_tokens"]
        say(f"{waited}, and {padding / computed:.1%} of the tokens computed were padding")
