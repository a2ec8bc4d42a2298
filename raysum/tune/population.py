"""Population-based training (Jaderberg et al. 2017): trials that fall behind go on from the weights of those ahead.

Tune's checkpoints hold no weights, only where they are: the run of a trial and a step.
"""

import json
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from ray import tune
from ray.tune.schedulers import PopulationBasedTraining

from raysum.run import Run, read_json, read_lines, write_json, write_text
from raysum.tune.job import Job
from raysum.tune.searchers import domain
from raysum.tune.values import Values

_POINTER = "run.json"


def population(job: Job) -> PopulationBasedTraining:
    """At each validation the worst quarter of the trials takes over weights and settings of one of the best quarter.

    Of the settings each is then drawn anew (one time in four), or moved: a number by a factor of 0.8 or 1.2, a choice
    to the next.
    """
    search = job.space.config.search
    every = job.space.resolve(next(job.space.samples())).train.validate_every
    return PopulationBasedTraining(
        time_attr="step",
        perturbation_interval=every,
        hyperparam_mutations={key: values.listed or domain(values) for key, values in search.items()},
        custom_explore_fn=partial(_within, search),
        synch=True,  # a trial waits for all to be validated at its step: fair, and it repeats
    )


def _within(search: dict[str, Values], config: dict[str, Any]) -> dict[str, Any]:
    """``config`` with numbers that left their range put back on its bounds."""
    ranges = {key: values.bounds for key, values in search.items() if values.bounds}
    return config | {key: min(max(config[key], low), high) for key, (low, high) in ranges.items()}


@contextmanager
def pointer(run: Run) -> Iterator[tune.Checkpoint]:
    """What a trial hands to Tune as its checkpoint: the path of its newest one."""
    newest = run.latest()
    assert newest, "a part of the training has ended"
    with tempfile.TemporaryDirectory() as folder:
        write_json(Path(folder) / _POINTER, {"run": str(run.path), "step": newest.step})
        yield tune.Checkpoint(folder)


def inherit(run: Run) -> None:
    """Make ``run`` a copy of the run that Tune says to go on from, up to that step, if it is another one.

    Its config is that of its next part, whose settings may be new.
    """
    (run.path / "config.yaml").unlink(missing_ok=True)
    given = tune.get_checkpoint()
    if given is None:
        return
    with given.as_directory() as folder:
        found = read_json(Path(folder) / _POINTER)
    if Path(found["run"]) != run.path:
        copy(Run(found["run"]), found["step"], run)


def copy(donor: Run, step: int, run: Run) -> None:
    """Let ``run`` hold the ``donor``'s checkpoint of ``step``, and its metrics so far, instead of its own.

    Where that checkpoint is gone, the newest counts.
    """
    held = {checkpoint.step: checkpoint for checkpoint in donor.checkpoints() if checkpoint.resumable}
    chosen = held.get(step) or held[max(held)]
    shutil.rmtree(run.path, ignore_errors=True)
    arrived = run.checkpoint_folder / ".partial-inherited"
    shutil.copytree(chosen.path, arrived)
    lines = (json.dumps(line) + "\n" for line in read_lines(donor.metrics) if line["step"] <= chosen.step)
    write_text(run.metrics, "".join(lines))
    arrived.replace(run.checkpoint_path(chosen.step))
