"""Which settings of the best trial a run takes over: its beta only where the gain is more than noise."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from raysum.config.decoding import DecodeConfig
from raysum.evaluate.scorers import FIGURES
from raysum.metrics.statistics import Interval, difference_of
from raysum.tune.spaces import BETA, WHEN, Job

if TYPE_CHECKING:
    from raysum.tune.results import Trial


@dataclass(frozen=True)
class Adoption:
    """``settings``: the run's values, from now on, of the keys that were searched. ``gain`` is that of the best trial's
    beta over the beta ``over``, all else the same; None where no other beta was to be adopted."""

    settings: dict[str, Any]
    gain: Interval | None = None
    over: float = 0.0

    @property
    def is_noise(self) -> bool:
        """Whether the paired bootstrap interval of the gain does not lie above 0."""
        return self.gain is not None and not self.gain.low > 0

    def to_dict(self) -> dict[str, Any]:
        gain = self.gain and {**self.gain._asdict(), "over": self.over}
        return {"settings": self.settings, "gain": gain}

    def __str__(self) -> str:
        """What was found, for people; empty where beta was not the question."""
        if self.gain is None:
            return ""
        told = "gain {:+.2f} [{:+.2f}, {:+.2f}] over beta {:g}".format(*self.gain, self.over)
        ends = f"within noise, the run keeps beta {self.settings[BETA]:g}" if self.is_noise else "adopted by the run"
        return f"{told}: {ends}"


def adoption(job: Job, trials: "Sequence[Trial]", present: DecodeConfig) -> Adoption:
    """What a run whose decoding settings are ``present`` adopts of the best of the ``trials``, which comes first.

    A beta above 0 must gain over beta 0, and beta 0 over the run's present beta; what was not scored by a trial is
    decoded now.
    """
    from raysum.tune.decoding import trial_scores  # loads Ray

    best = trials[0]
    own = {key: getattr(present, key.removeprefix("decode.")) for key in (BETA, WHEN) if key in best.config}
    over = 0.0 if best.config.get(BETA) else present.beta
    if BETA not in best.config or best.config[BETA] == over:
        return Adoption(best.config)
    metric, control = job.space.config.metric, best.config | own | {BETA: over}
    name = next((one.name for one in trials if one.config == control and not one.error), f"{best.name},beta={over:g}")
    scores = [trial_scores(job, *each) for each in ((best.name, best.config), (name, control))]
    found = difference_of(metric, FIGURES[metric], *scores)
    gain = Interval(*(found[metric + end] for end in ("", "_low", "_high")))
    adopted = Adoption(best.config, gain, over)
    return Adoption(best.config | own, gain, over) if adopted.is_noise else adopted
