"""What all trials of a search share."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from raysum.tune.spaces import Space, label


@dataclass(frozen=True)
class Job:
    """Paths are absolute: Tune runs each trial in a folder of its own."""

    space: Space
    data: str
    out: str  # the search folder; a trial's own files go to out/trials/NAME
    run: str  # the run whose decoding is searched; "" where trials train their own
    length: int  # examples scored, or steps trained, in a whole trial
    at_once: int  # trials that run side by side
    threads: int  # of each of them

    def name(self, trial: Any) -> str:
        """What Tune's ``trial``, its actor and its folder are called: ``beta=0.8``."""
        if self.space.config.scheduler == "pbt":  # settings change
            return trial.trial_id
        named = label(trial.config)
        return named if self.space.config.searcher == "grid" else f"{named},{trial.trial_id}"  # draws may repeat

    def folder(self, name: str) -> Path:
        return Path(self.out) / "trials" / name
