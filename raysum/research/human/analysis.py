"""The analysis of judges' answers: scores of the systems, significance tests, agreement of the judges."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, Any

from raysum.metrics.agreement import krippendorff
from raysum.metrics.significance import Compared, anova, binomial, paired_t, tukey
from raysum.research.human.answers import MARKS, AnswerPlace, Judged, Study, write_marks
from raysum.research.human.designs import Design
from raysum.runtime.rendering import Shown

if TYPE_CHECKING:
    import pandas as pd

    from raysum.runtime.grid import Grid

_TESTS = {"pairwise": "exact binomial test, Holm", "ranking": "paired t test, Holm"}
_TUKEY = "one-way ANOVA, Tukey HSD"


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
        by_judge = {judge: {"answered": done, "asked": asked} for judge, (done, asked) in self.judges.items()}
        whole = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return whole | counted | {"judges": by_judge}

    def to_pandas(self) -> "pd.DataFrame":
        """Return a row for each system and a column for each figure; ``pd.DataFrame(result.tests)`` has the tests."""
        import pandas as pd

        return pd.DataFrame.from_dict(self.scores, orient="index").rename_axis("system")

    def render(self) -> "Grid":
        """Return a table with a line for each system; its caption has the answers, the tests and the agreement."""
        from raysum.runtime.grid import Grid

        table = Grid(
            title=f"{self.design}: {self.answered} of {self.asked} answers ({100 * self.answered / self.asked:.0f} %)",
            caption="\n".join(self._notes()),
            caption_justify="left",
        )
        figures = list(dict.fromkeys(name for one in self.scores.values() for name in one))
        for name in ("system", *figures):
            table.add_column(name, justify="left" if name == "system" else "right", no_wrap=True)
        for system, one in self.scores.items():
            cells = (
                f"{one[name]:.0f}" if name == "n" else f"{one[name]:.2f}" if name in one else "" for name in figures
            )
            table.add_row(system, *cells)
        return table

    def _notes(self) -> list[str]:
        late = [f"{judge} {given} of {asked}" for judge, (given, asked) in self.judges.items() if given < asked]
        notes = [f"not all answered: {', '.join(late)}"] if late else []
        notes += (
            [f"scores wait for the marks (1, 0.5 or 0) of {self.waiting} answers in {MARKS}"] if self.waiting else []
        )
        notes.append(f"{self.test}; * is p < {self.level}")
        notes += [f"{name}: ANOVA F {_cell(one['F'])}, p {_p(one['p'])}" for name, one in self.anova.items()]
        for one in self.tests:
            said = f"{one['share']:.1f} % of {one['n']}" if "share" in one else f"{one['difference']:+.2f}"
            star = " *" if one["significant"] else ""
            notes.append(f"{one['measure']}: {one['first']} - {one['second']}: {said}, p {_p(one['p'])}{star}")
        known = (f"{name} {_cell(alpha)}" for name, alpha in self.agreement.items())
        notes += [f"Krippendorff's alpha: {', '.join(known)}"] if self.agreement else []
        return [*notes, *([f"{len(self.comments)} comments: see --json"] if self.comments else [])]


def human_analyze(folder: str | Path) -> Judgement:
    """Return scores, tests and agreement of a study of :func:`human_sheets`, from the sheets of its judges.

    A sheet may be incomplete: its answers count. Raises UserError with the file and line of a wrong cell.

    >>> raysum.human_analyze("study").to_pandas()
    """
    study = Study.read(Path(folder))
    counts = study.counts()
    waiting = write_marks(study) if study.design.name == "questions" else 0
    judged = [] if waiting else study.judged()
    by_measure: dict[str, list[Judged]] = defaultdict(list)
    for one in judged:
        by_measure[one.measure].append(one)
    systems = study.key["systems"]
    tests, variance = [], {}
    for measure, given in by_measure.items():
        values = {system: [one.value for one in given if one.system == system] for system in systems}
        if study.design.name not in _TESTS:
            variance[measure] = anova(values)
        for (first, second), figures in _compared(study.design, given, values).items():
            p = figures["p"]
            significant = p is not None and p < study.design.level
            tests.append({"measure": measure, "first": first, "second": second, **figures, "significant": significant})
    return Judgement(
        design=study.design.name,
        test=_TESTS.get(study.design.name, _TUKEY),
        level=study.design.level,
        judges=counts,
        waiting=waiting,
        scores=_scores(study.design, by_measure, systems),
        anova=variance,
        tests=tests,
        agreement={measure: _agreement(study.design, given) for measure, given in by_measure.items()},
        comments=[_comment(study, place, said) for place, said in study.comments.items()],
    )


def _comment(study: Study, place: AnswerPlace, said: str) -> dict[str, Any]:
    task = study.tasks[place]
    systems = dict(zip(study.design.places(len(task.systems)), task.systems, strict=True))
    return {"judge": place[0], "item": task.item, "systems": systems, "comment": said}


def _compared(design: Design, given: Sequence[Judged], values: dict[str, list[float]]) -> Compared:
    if design.name == "pairwise":
        wins = {}
        for pair in combinations(values, 2):
            won = [one.system for one in given if one.value and set(one.unit[1:]) == set(pair)]
            wins[pair] = won.count(pair[0]), won.count(pair[1])
        return binomial(wins)
    if design.name == "ranking":
        return paired_t({name: {one[:2]: one.value for one in given if one.system == name} for name in values})
    return tukey(values)


def _scores(design: Design, by_measure: dict[str, list[Judged]], systems: Sequence[str]) -> dict[str, dict[str, float]]:
    """Return the means of each system's measures and the number of answers; the best system first."""
    scores: dict[str, dict[str, float]] = {}
    for system in systems:
        values = {name: [one.value for one in given if one.system == system] for name, given in by_measure.items()}
        own = {name: mean(some) for name, some in values.items() if some}
        first = next(iter(values.values()), [])
        if design.name == "best-worst" and first:
            own |= {end: 100 * first.count(worth) / len(first) for end, worth in (("best", 100), ("worst", -100))}
        if design.name == "ranking" and first:
            own |= {f"rank_{rank}": 100 * first.count(rank) / len(first) for rank in range(1, len(systems) + 1)}
        scores[system] = own | {"n": max(map(len, values.values()), default=0)}
    key = next(iter(by_measure), "n")
    sign = 1 if design.lower_is_better else -1
    return dict(sorted(scores.items(), key=lambda item: sign * item[1].get(key, -sign * float("inf"))))


def _agreement(design: Design, given: Sequence[Judged]) -> float | None:
    """Over what several judges gave one system of one item; of a pair one system says it all."""
    units = (((one.unit, one.system), one.value) for one in given if len(one.unit) < 3 or one.system == one.unit[1])
    return krippendorff(units, design.agreement)  # type: ignore[arg-type]


def _p(value: float | None) -> str:
    return "unknown" if value is None else "< 0.0001" if value < 1e-4 else f"{value:.4f}"


def _cell(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.2f}"
