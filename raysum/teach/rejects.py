"""Answers of no use: how many there may be, and what helps."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from raysum.teach.answers import CUT
from raysum.teach.config import TeachConfig
from raysum.teach.server import EMPTY, REFUSED, TOO_LARGE

REASONS = (CUT, EMPTY, REFUSED, TOO_LARGE)
_TELLING = 10  # answers, by which one that begins badly is ended


@dataclass
class Tally:
    """The answers about the clusters of one job, and those of no ``use`` among them."""

    most: float  # share of them that may be of no use
    answers: int = 0
    useless: int = 0

    def add(self, useless: bool) -> None:
        self.answers += 1
        self.useless += useless

    @property
    def is_over(self) -> bool:
        return self.useless > self.most * self.answers

    @property
    def ends_it(self) -> bool:
        """Whether no more is to be asked."""
        return self.is_over and self.answers >= _TELLING


def problem_of(taught: int, rejected: Mapping[str, int], config: TeachConfig) -> str:
    """What there is to say where too much of what the teacher answered is of no use; else nothing."""
    useless = {reason: count for reason, count in rejected.items() if reason in REASONS}
    number = sum(useless.values())
    if not Tally(config.max_rejected, taught + number, number).is_over:
        return ""
    told = ", ".join(f"{reason} ({count})" for reason, count in useless.items())
    limit = f"more than --max-rejected {config.max_rejected:g}"
    return f"{number} of {taught + number} answers are of no use, {limit}: {told}. {helps(useless, config)}"


def helps(reasons: Collection[str], config: TeachConfig) -> str:
    """What asks again for answers of no use, and for nothing else."""
    found = []
    if CUT in reasons:
        found.append(f"A --max-tokens above {config.max_tokens} asks again for what was cut, and for nothing else")
    if {*reasons} & {*REASONS} - {CUT}:
        found.append("--again asks once more where the answer is empty, refused or too long, and for nothing else")
    return ". ".join(found)
