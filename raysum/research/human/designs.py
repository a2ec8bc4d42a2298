"""The five designs of studies, as in the papers: the content of a sheet, its questions, the values of answers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from string import ascii_uppercase
from typing import ClassVar, NamedTuple

Answers = Mapping[str, str]  # what a judge gave for one task, by column

UNKNOWN = "-"  # the answer to a question that the summary does not answer
_QUALITY = ("very poor", "poor", "fair", "good", "very good")


@dataclass(frozen=True)
class Asked:
    """A column to fill in: its prompt, and its choices with their meanings; without choices, a text."""

    column: str
    prompt: str
    choices: dict[str, str]


class Value(NamedTuple):
    """What a judge's answer says of the system at a ``place`` of a task."""

    place: int
    measure: str
    value: float


@dataclass(frozen=True)
class Design:
    """Best-worst scaling is the plainest; the others change what is their own."""

    name: ClassVar[str]
    instruction: ClassVar[str]
    most: ClassVar[int] = 1000  # systems of each item that a judge sees
    shows_reference: ClassVar[bool] = True
    together: ClassVar[bool] = True  # a task counts when all of it is answered
    level: ClassVar[float] = 0.01  # of significance
    agreement: ClassVar[str] = "ordinal"  # how answers of two judges are compared
    lower_is_better: ClassVar[bool] = False

    def places(self, shown: int) -> list[str]:
        """Columns of the summaries of a task."""
        return list(ascii_uppercase[:shown]) if shown > 1 else ["summary"]

    def asked(self, shown: int) -> list[Asked]:
        """Return the columns to fill in for a task with ``shown`` summaries."""
        raise NotImplementedError

    def problem(self, answers: Answers) -> str | None:
        """What is wrong with whole answers that are each allowed."""
        return None

    def values(self, answers: Answers, shown: int) -> list[Value]:
        """What answers to a task say."""
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

    def asked(self, shown: int) -> list[Asked]:
        letters = dict.fromkeys(self.places(shown), "")
        return [Asked("best", "Which one is the best?", letters), Asked("worst", "Which one is the worst?", letters)]

    def problem(self, answers: Answers) -> str | None:
        return "best and worst are the same summary" if answers["best"] == answers["worst"] else None

    def values(self, answers: Answers, shown: int) -> list[Value]:
        worth = {answers["best"]: 100.0, answers["worst"]: -100.0}
        return [Value(place, "rating", worth.get(name, 0.0)) for place, name in enumerate(self.places(shown))]


class Pairwise(Design):
    """VHT paper, section 5.3: a side-by-side preference test; judges select a side and may say why."""

    name = "pairwise"
    most = 2
    level = 0.05
    agreement = "nominal"
    instruction = "Read the reference, then both summaries. Choose the side you prefer; you may say why in few words."

    def asked(self, shown: int) -> list[Asked]:
        return [Asked("preferred", "Which one do you prefer?", dict.fromkeys(self.places(shown), ""))]

    def values(self, answers: Answers, shown: int) -> list[Value]:
        sides = enumerate(self.places(shown))
        return [Value(place, "preferred", 100.0 * (name == answers["preferred"])) for place, name in sides]


class Rating(Design):
    """PHT paper, section 6.2, and VHT paper, section 5.3: four aspects, three of them from very poor (1) to very good
    (5), factual consistency as much better (2), better (1) and hard to score (0). (Averages of it in the papers'
    tables, such as 3.04, exceed that scale; they are not comparable with these.)"""

    name = "rating"
    together = False
    instruction = "Read the reference, then the summary. Rate the summary in four aspects."

    def asked(self, shown: int) -> list[Asked]:
        five = {str(number): meaning for number, meaning in enumerate(_QUALITY, 1)}
        three = {"0": "hard to score", "1": "better", "2": "much better"}
        return [
            Asked("informativeness", "Does it include the important information of the reference?", five),
            Asked("fluency", "Is it fluent and grammatically correct?", five),
            Asked("conciseness", "Does it avoid repetition and redundancy?", five),
            Asked(
                "consistency", "Does it avoid mistakes such as a wrong date or place, or anything against facts?", three
            ),
        ]

    def values(self, answers: Answers, shown: int) -> list[Value]:
        return [Value(0, aspect, float(given)) for aspect, given in answers.items()]


class RankingDesign(Design):
    """HIBERT paper, section 4.3 and Table 4: judges rank all systems, ties allowed; the share of each rank, the mean
    rank, and Student's t test on the ranks, paired here (p < 0.05). Ranks are closed up: 1, 1, 3 reads as 1, 1, 2."""

    name = "ranking"
    most = len(ascii_uppercase)
    level = 0.05
    lower_is_better = True
    instruction = (
        "Read the reference, then the summaries. Rank them by informativeness (do they capture the important "
        "information?) and fluency (are they grammatical?): 1 is the best, and summaries as good as each other get the "
        "same rank."
    )

    def asked(self, shown: int) -> list[Asked]:
        ranks = {str(rank): "" for rank in range(1, shown + 1)}
        return [Asked(f"rank_{name}", f"Rank of {name}", ranks) for name in self.places(shown)]

    def values(self, answers: Answers, shown: int) -> list[Value]:
        given = [int(answers[f"rank_{name}"]) for name in self.places(shown)]
        order = sorted(set(given))
        return [Value(place, "rank", 1.0 + order.index(rank)) for place, rank in enumerate(given)]


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

    def asked(self, shown: int) -> list[Asked]:
        return [Asked("answer", f"Answer ({UNKNOWN} if the summary does not say)", {})]

    def values(self, answers: Answers, shown: int) -> list[Value]:
        return [Value(0, "score", 100.0 * float(answers["mark"]))]


_ALL: Sequence[Design] = (BestWorst(), Pairwise(), Rating(), RankingDesign(), Questions())
DESIGNS = {design.name: design for design in _ALL}
