"""The analysis of judges' answers: scores of the systems, significance tests, agreement of the judges."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from pathlib import Path
from statistics import mean
from typing import Any

import pandas as pd

from raysum.metrics.significance import Compared, anova, binomial, krippendorff, paired_t, tukey
from raysum.research.human.answers import MARKS, Judged, Study, write_marks
from raysum.research.human.designs import Design
from raysum.runtime.rendering import Grid, Shown


@dataclass(frozen=True)
class Judgement(Shown):
    """``scores`` of each system; ``tests`` of each pair, at ``level``; Krippendorff's alpha of each measure.

    ``judges``: the answered and all questions of each judge. While ``waiting`` answers have no mark yet, nothing is
    scored: answers that need no mark are mostly right. ``comments`` name the judge, the item and the position of
    each system. Answers count as independent, as in the papers; ``p`` is None if a test has too few answers.
    """

    design: str
    test: str
    level: float
    judges: dict[str, tuple[int, int]]
    waiting: int
    scores: dict[str, dict[str, float]]
    anova: dict[str, dict[str, float | None]]
    tests: list[dict[str, Any]]
    agreement: dict[str, float | None]
    comments: list[dict[str, Any]]

    @property
    def answered(self) -> int:
        return sum(done for done, _ in self.judges.values())

    @property
    def asked(self) -> int:
        return sum(asked for _, asked in self.judges.values())

    def to_dict(self) -> dict[str, Any]:
        counted = {"answered": self.answered, "asked": self.asked, "share": round(100 * self.answered / self.asked, 1)}
        judges = {judge: {"answered": done, "asked": asked} for judge, (done, asked) in self.judges.items()}
        return asdict(self) | counted | {"judges": judges}

    def to_pandas(self) -> pd.DataFrame:
        """Return a row for each system and a column for each figure; ``pd.DataFrame(result.tests)`` has the tests."""
        return pd.DataFrame.from_dict(self.scores, orient="index").rename_axis("system")

    def render(self) -> Grid:
        """Return a table with a line for each system; its caption has the answers, the tests and the agreement."""
        figures = self.to_pandas()
        for name in figures:
            form = "{:.0f}" if name == "n" else "{:.2f}"
            figures[name] = figures[name].map(form.format, na_action="ignore").fillna("")
        title = f"{self.design}: {self.answered} of {self.asked} answers ({100 * self.answered / self.asked:.0f} %)"
        return Grid.of(figures, no_wrap=True, title=title, caption="\n".join(self._notes()), caption_justify="left")

    def _notes(self) -> Iterator[str]:
        if late := [f"{judge} {done} of {asked}" for judge, (done, asked) in self.judges.items() if done < asked]:
            yield f"not all answered: {', '.join(late)}"
        if self.waiting:
            yield f"scores wait for the marks (1, 0.5 or 0) of {self.waiting} answers in {MARKS}"
        yield f"{self.test}; * is p < {self.level}"
        for name, one in self.anova.items():
            yield f"{name}: ANOVA F {_cell(one['F'])}, p {_p(one['p'])}"
        for test in self.tests:
            gap = f"{test['share']:.1f} % of {test['n']}" if "share" in test else f"{test['difference']:+.2f}"
            star = " *" if test["significant"] else ""
            yield f"{test['measure']}: {test['first']} - {test['second']}: {gap}, p {_p(test['p'])}{star}"
        if self.agreement:
            known = (f"{name} {_cell(alpha)}" for name, alpha in self.agreement.items())
            yield f"Krippendorff's alpha: {', '.join(known)}"
        if self.comments:
            yield f"{len(self.comments)} comments: see --json"


def human_analyze(folder: str | Path) -> Judgement:
    """Return scores, tests and agreement of a study of :func:`human_sheets`, from the sheets of its judges.

    A sheet may be incomplete: its answers count. Raises UserError with the file and line of a wrong cell.

    >>> raysum.human_analyze("study").to_pandas()
    """
    study = Study.read(Path(folder))
    design, systems = study.design, study.key["systems"]
    waiting = write_marks(study) if design.name == "questions" else 0
    by_measure: dict[str, list[Judged]] = defaultdict(list)
    for one in [] if waiting else study.judged():
        by_measure[one.measure].append(one)
    tests, variance, agreement = [], {}, {}
    for measure, judged in by_measure.items():
        values = {system: [one.value for one in judged if one.system == system] for system in systems}
        if design.name not in ("pairwise", "ranking"):
            variance[measure] = anova(values)
        for (first, second), figures in _compared(design, judged, values).items():
            significant = figures["p"] is not None and figures["p"] < design.level
            tests.append({"measure": measure, "first": first, "second": second, **figures, "significant": significant})
        agreement[measure] = _agreement(design, judged)
    return Judgement(
        design=design.name,
        test=design.test,
        level=design.level,
        judges=study.counts(),
        waiting=waiting,
        scores=_scores(design, by_measure, systems),
        anova=variance,
        tests=tests,
        agreement=agreement,
        comments=[
            {"judge": judge, "item": task.item, "systems": task.shown, "comment": comment}
            for (judge, number), comment in study.comments.items()
            for task in [study.tasks[judge, number]]
        ],
    )


def _compared(design: Design, judged: Sequence[Judged], values: dict[str, list[float]]) -> Compared:
    if design.name == "pairwise":
        wins = {}
        for pair in combinations(values, 2):
            won = [one.system for one in judged if one.value and {*one.task.systems} == {*pair}]
            wins[pair] = won.count(pair[0]), won.count(pair[1])
        return binomial(wins)
    if design.name == "ranking":
        return paired_t(
            {name: {(one.judge, one.task.item): one.value for one in judged if one.system == name} for name in values}
        )
    return tukey(values)


def _scores(design: Design, by_measure: dict[str, list[Judged]], systems: Sequence[str]) -> dict[str, dict[str, float]]:
    """Return the means of each system's measures and the number of answers; the best system first."""
    shares: dict[str, float] = {"best": 100, "worst": -100} if design.name == "best-worst" else {}
    if design.name == "ranking":
        shares = {f"rank_{rank}": rank for rank in range(1, len(systems) + 1)}
    scores: dict[str, dict[str, float]] = {}
    for system in systems:
        values = {name: [one.value for one in judged if one.system == system] for name, judged in by_measure.items()}
        own = {name: mean(some) for name, some in values.items() if some}
        for some in values.values():
            own |= {name: 100 * some.count(value) / len(some) for name, value in shares.items() if some}
        scores[system] = own | {"n": max(map(len, values.values()), default=0)}
    key, sign = next(iter(by_measure), "n"), 1 if design.lower_is_better else -1
    return dict(sorted(scores.items(), key=lambda item: sign * item[1].get(key, -sign * float("inf"))))


def _agreement(design: Design, judged: Sequence[Judged]) -> float | None:
    """Return the agreement of judges on a system of an item; of a pair the value of one system implies the other's."""
    pairs = design.name == "pairwise"
    units = (
        ((one.task.item, one.task.question, one.system, pairs and frozenset(one.task.systems)), one.value)
        for one in judged
        if not pairs or one.system == min(one.task.systems)
    )
    return krippendorff(units, design.agreement)


def _p(value: float | None) -> str:
    return "unknown" if value is None else "< 0.0001" if value < 1e-4 else f"{value:.4f}"


def _cell(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.2f}"
