"""Studies as in the papers: their settings, the content of a sheet, the values of answers, and the tasks of each judge.

In the tasks every system is equally often at every position.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from random import Random
from string import ascii_uppercase
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from raysum.config.base import Section

Most = Annotated[int, Field(gt=0, le=10_000)]
Answers = Mapping[str, str]  # a judge's answer to a task, by column
Value = tuple[int, str, float]  # the position of a summary in a task, a measure, and the summary's value

UNKNOWN = "-"  # the answer to a question that the summary does not answer
_QUALITY = ("very poor", "poor", "fair", "good", "very good")


class SheetsConfig(Section):
    """The settings of `raysum human sheets`."""

    design: Literal["best-worst", "pairwise", "rating", "ranking", "questions"] = Field(
        description="what judges do: best-worst, pairwise, rating, ranking or questions"
    )
    out: str = Field(description="folder to write: sheets/ for the judges, key.json for you alone")
    items: Most = Field(20, description="examples, drawn from those that all evaluations have")
    judges: Most = Field(3, description="judges; each has a sheet of their own")
    seed: int = Field(0, description="the same seed and outputs give the same sheets")
    systems: list[str] | None = Field(
        None,
        description="systems to judge, by default all but those named -paper, which cut sentences; `reference` may be "
        "one, and is then not shown besides",
    )
    questions: str | None = Field(None, description="CSV of id, question, answer; by default the factbook's facts")


@dataclass(frozen=True)
class Asked:
    """A column to fill in: its prompt, and its choices with their meanings; without choices, a text."""

    column: str
    prompt: str
    choices: dict[str, str]


class Design:
    """The content of a sheet and the meaning of its answers. ``columns`` are those of a task's summaries."""

    name: ClassVar[str]
    instruction: ClassVar[str]
    test: ClassVar[str] = "one-way ANOVA, Tukey HSD"
    most: ClassVar[int] = 1000  # systems of each item that a judge sees
    shows_reference: ClassVar[bool] = True
    together: ClassVar[bool] = True  # a task counts when all of it is answered
    level: ClassVar[float] = 0.01  # of significance
    agreement: ClassVar[Literal["nominal", "ordinal"]] = "ordinal"  # how answers of two judges are compared
    lower_is_better: ClassVar[bool] = False

    def asked(self, columns: Sequence[str]) -> list[Asked]:
        """Return the columns to fill in."""
        raise NotImplementedError

    def problem(self, answers: Answers) -> str | None:
        """Return what is wrong with a whole answer whose cells are all allowed."""
        return None

    def values(self, answers: Answers, columns: Sequence[str]) -> list[Value]:
        """Return the values that an answer gives the summaries of its task."""
        raise NotImplementedError


class BestWorst(Design):
    """HT paper, Human Evaluation: three summaries beside the gold one; a system's rating is the percentage of times
    it was chosen as best minus that as worst, here -100 to 100 (the paper's table divides by 100); one-way ANOVA with
    posthoc Tukey HSD, p < 0.01."""

    name = "best-worst"
    most = 3
    instruction = (
        "Read the reference, then the summaries. Choose the best and the worst of them against the reference: "
        "does it convey the important facts (informativeness), is it fluent and grammatical (fluency), does it avoid "
        "repetition (succinctness)?"
    )

    def asked(self, columns: Sequence[str]) -> list[Asked]:
        return [Asked(end, f"Which one is the {end}?", dict.fromkeys(columns, "")) for end in ("best", "worst")]

    def problem(self, answers: Answers) -> str | None:
        return "best and worst are the same summary" if answers["best"] == answers["worst"] else None

    def values(self, answers: Answers, columns: Sequence[str]) -> list[Value]:
        ratings = {answers["best"]: 100.0, answers["worst"]: -100.0}
        return [(position, "rating", ratings.get(column, 0.0)) for position, column in enumerate(columns)]


class Pairwise(Design):
    """VHT paper, section 5.3: a side-by-side preference test; judges select a side and may say why."""

    name = "pairwise"
    test = "exact binomial test, Holm"
    most = 2
    level = 0.05
    agreement = "nominal"
    instruction = "Read the reference, then both summaries. Choose the side you prefer; you may say why in few words."

    def asked(self, columns: Sequence[str]) -> list[Asked]:
        return [Asked("preferred", "Which one do you prefer?", dict.fromkeys(columns, ""))]

    def values(self, answers: Answers, columns: Sequence[str]) -> list[Value]:
        return [(side, "preferred", 100.0 * (column == answers["preferred"])) for side, column in enumerate(columns)]


class Rating(Design):
    """PHT paper, section 6.2, and VHT paper, section 5.3: four aspects, three of them from very poor (1) to very good
    (5), factual consistency as much better (2), better (1) and hard to score (0). (Averages of it in the papers'
    tables, such as 3.04, exceed that scale; they are not comparable with these.)"""

    name = "rating"
    together = False
    instruction = "Read the reference, then the summary. Rate the summary in four aspects."

    def asked(self, columns: Sequence[str]) -> list[Asked]:
        five = {str(number): meaning for number, meaning in enumerate(_QUALITY, 1)}
        three = {"0": "hard to score", "1": "better", "2": "much better"}
        mistakes = "Does it avoid mistakes such as a wrong date or place, or anything against facts?"
        return [
            Asked("informativeness", "Does it include the important information of the reference?", five),
            Asked("fluency", "Is it fluent and grammatically correct?", five),
            Asked("conciseness", "Does it avoid repetition and redundancy?", five),
            Asked("consistency", mistakes, three),
        ]

    def values(self, answers: Answers, columns: Sequence[str]) -> list[Value]:
        return [(0, aspect, float(given)) for aspect, given in answers.items()]


class RankingDesign(Design):
    """HIBERT paper, section 4.3 and Table 4: judges rank all systems, ties allowed; the share of each rank, the mean
    rank, and Student's t test on the ranks, paired here (p < 0.05). Ranks are closed up: 1, 1, 3 reads as 1, 1, 2."""

    name = "ranking"
    test = "paired t test, Holm"
    most = len(ascii_uppercase)
    level = 0.05
    lower_is_better = True
    instruction = (
        "Read the reference, then the summaries. Rank them by informativeness (do they capture the important "
        "information?) and fluency (are they grammatical?): 1 is the best, and summaries as good as each other get the "
        "same rank."
    )

    def asked(self, columns: Sequence[str]) -> list[Asked]:
        ranks = {str(rank): "" for rank in range(1, len(columns) + 1)}
        return [Asked(f"rank_{column}", f"Rank of {column}", ranks) for column in columns]

    def values(self, answers: Answers, columns: Sequence[str]) -> list[Value]:
        given = [int(answers[f"rank_{column}"]) for column in columns]
        order = sorted(set(given))
        return [(position, "rank", 1.0 + order.index(rank)) for position, rank in enumerate(given)]


class Questions(Design):
    """HT paper, Human Evaluation: questions about the gold summary, answered by reading a system's alone; 1 for a
    correct answer, 0.5 for a partly correct one, else 0, here times 100 as in the paper's table; ANOVA and Tukey HSD.

    A judge reads one system's summary of an example: another's would give answers away.
    """

    name = "questions"
    shows_reference = False
    instruction = (
        "Answer each question from the summary alone, in few words, even if you know better. "
        f"Where the summary does not say, answer with a dash: {UNKNOWN}"
    )

    def asked(self, columns: Sequence[str]) -> list[Asked]:
        return [Asked("answer", f"Answer ({UNKNOWN} if the summary does not say)", {})]

    def values(self, answers: Answers, columns: Sequence[str]) -> list[Value]:
        return [(0, "score", 100.0 * float(answers["mark"]))]


DESIGNS: dict[str, Design] = {
    design.name: design for design in (BestWorst(), Pairwise(), Rating(), RankingDesign(), Questions())
}


@dataclass(frozen=True)
class JudgeTask:
    """A task of a judge: summaries of ``systems`` in columns A, B, ... to compare, or a ``question`` of an item."""

    item: str
    systems: tuple[str, ...]
    question: int | None = None

    @property
    def columns(self) -> list[str]:
        """The columns of the summaries."""
        return [*ascii_uppercase[: len(self.systems)]] if len(self.systems) > 1 else ["summary"]

    @property
    def shown(self) -> dict[str, str]:
        """The systems by column."""
        return dict(zip(self.columns, self.systems, strict=True))


def tasks_of(
    design: Design, items: Sequence[str], systems: Sequence[str], judges: int, questions: Mapping[str, int], seed: int
) -> list[list[JudgeTask]]:
    """Return the tasks of each judge, for ``questions`` of each item.

    Judges have the same items, each in an own order, and see the same systems of an item, so that they can agree; but
    of questions each sees one system, in turn.
    """
    draw = Random(f"raysum {design.name} {seed}")
    if design.name == "pairwise":
        sheets = _pairs(items, systems, judges, draw)
    else:
        sheets = _blocks(items, systems, judges, min(design.most, len(systems)), draw)
    for sheet in sheets:
        draw.shuffle(sheet)
    return [[part for tasks in sheet for task in tasks for part in _parts(design, task, questions)] for sheet in sheets]


def _parts(design: Design, task: JudgeTask, questions: Mapping[str, int]) -> Iterator[JudgeTask]:
    """Split a task with several summaries or questions, if the design shows them one after another."""
    if design.name == "rating":
        yield from (JudgeTask(task.item, (system,)) for system in task.systems)
    elif design.name == "questions":
        yield from (JudgeTask(task.item, task.systems[:1], number) for number in range(questions[task.item]))
    else:
        yield task


def _blocks(
    items: Sequence[str], systems: Sequence[str], judges: int, shown: int, draw: Random
) -> list[list[list[JudgeTask]]]:
    """Return for each judge and item one task with ``shown`` of the systems.

    Of as many items as there are systems, one after another, the systems shown are a circle of them moved on by one,
    so each system stands once at each position; judges have the positions turned on by one.
    """
    sheets: list[list[list[JudgeTask]]] = [[] for _ in range(judges)]
    for number, item in enumerate(items):
        turn = number % len(systems)
        if turn == 0:
            circle, positions = draw.sample(systems, len(systems)), draw.sample(range(shown), shown)
        for judge, sheet in enumerate(sheets):
            turned = [positions[(position + judge) % shown] for position in range(shown)]
            sheet.append([JudgeTask(item, tuple(circle[(turn + step) % len(systems)] for step in turned))])
    return sheets


def _pairs(items: Sequence[str], systems: Sequence[str], judges: int, draw: Random) -> list[list[list[JudgeTask]]]:
    """Return for each judge and item one task a pair of systems, whose sides change by item and judge."""
    pairs = [draw.sample(pair, 2) for pair in combinations(systems, 2)]
    return [
        [
            [JudgeTask(item, (pair[turn % 2], pair[1 - turn % 2])) for pair in draw.sample(pairs, len(pairs))]
            for turn, item in enumerate(items, judge)
        ]
        for judge in range(judges)
    ]
