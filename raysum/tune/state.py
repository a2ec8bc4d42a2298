"""The state of a search that Ray Tune saves in its folder: check it before a search resumes."""

import pickle
from itertools import count
from pathlib import Path

from raysum.errors import UserError
from raysum.runtime.progress import say

FORMAT = 3  # version of the classes in the state


def find_state(folder: Path) -> bool:
    """Return whether ``folder`` has an undamaged state of a search; rename newer, damaged states.

    Without a state, or with a damaged one, Tune would run only one trial. Tune writes states with a new name whenever a
    search is resumed. The state of a version with other modules is set aside. Raises UserError if all states are
    damaged.
    """
    damages, newer = list[str](), list[Path]()
    for state in sorted(folder.glob("experiment_state-*.json"), reverse=True):
        parts = sorted(folder.glob(f"*{state.stem.removeprefix('experiment_state')}.*"))
        try:
            damage = _damage(state, [folder / "tuner.pkl", *parts])
        except (ImportError, AttributeError):
            set_aside(folder)
            return False
        if damage:
            damages.append(damage)
            newer += parts
            continue
        for part in newer:
            part.rename(part.with_name(f"damaged-{part.name}"))
        for message in damages:
            say(f"{message}. The search resumes from an older state: trials that ended since then run again")
        return True
    if damages:
        raise UserError(
            f"{damages[0]}, so the search cannot be resumed; remove {folder} and repeat the command: the search starts "
            f"over, but a grid reuses the trials in {folder.parent}/trials"
        )
    return False


def set_aside(folder: Path) -> None:
    """Rename the ``folder`` with the state of another version, if it exists. The search then starts over."""
    if folder.is_dir():
        former = next(path for number in count(1) if not (path := folder.with_name(f"{folder.name}.{number}")).exists())
        folder.rename(former)
        reused = f"the search starts over, and a grid reuses the finished trials in {folder.parent}/trials"
        say(f"The state of the search was written by another version of raysum and is now {former}: {reused}")


def _damage(state: Path, files: list[Path]) -> str | None:
    """Return what is wrong with a ``state`` of Tune that consists of ``files``, or None.

    Raises ImportError or AttributeError if a file refers to a class that does not exist in this version.
    """
    from ray.tune import ExperimentAnalysis  # reads variables that a session sets

    if not any(file.name.startswith(("searcher-state", "basic-variant-state")) for file in files):
        return f"{state} is incomplete: the state of the searcher is missing"
    for file in files:
        try:
            ExperimentAnalysis(str(file)) if file == state else pickle.loads(file.read_bytes())
        except (ImportError, AttributeError):
            raise
        except Exception as error:  # damaged pickles raise anything
            return f"{file} is damaged ({type(error).__name__}: {error})"
    return None
