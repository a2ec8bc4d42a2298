"""The interface of a scorer. Other packages register theirs as an entry point of the group ``raysum.scorers``."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from raysum.metrics.statistics import Figure

if TYPE_CHECKING:
    from pandas import DataFrame


class Scorer:
    """Score summaries example by example.

    ``figures`` maps the name of each metric of a system to its ``Figure``, in the order of tables. ``headline`` names
    the metric that comes first in tables and by which systems are compared, if the dataset has it. ``correlations`` are
    the metrics that ``totals`` computes; the others are sums, means or ratios over examples.
    """

    figures: ClassVar[Mapping[str, Figure]]
    headline: ClassVar[str | None] = None
    correlations: ClassVar[tuple[str, ...]] = ()

    def score(self, rows: Sequence[Any], summaries: Sequence[Any]) -> list[dict[str, float]]:
        """Return the columns of each example from its dataset row (``raysum.data.rows.Row``) and its ``Summary``.

        The dictionary of an example is empty if the row lacks what the scorer compares with.
        """
        raise NotImplementedError

    def totals(self, scores: "DataFrame") -> dict[str, float]:
        """Return the ``correlations`` of a system from the columns of all scorers."""
        return {}

    def problem(self, dataset: Any) -> str | None:
        """Return the reason why this scorer cannot score a ``Dataset``, or None."""
        return None

    def questions(self, reference: str) -> list[tuple[str, str]]:
        """Return (question, answer) pairs about a reference, for ``raysum human sheets --design questions``."""
        return []
