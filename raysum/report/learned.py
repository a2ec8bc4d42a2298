"""The section of trained extractors: which features and words decide, and the systems without training beside it."""

from collections.abc import Mapping, Sequence
from itertools import zip_longest

from raysum.extract.explanation import Explanation
from raysum.extract.untrained import UntrainedComparison
from raysum.pages import charts, parts
from raysum.pages.charts import Line, Point, RowChart
from raysum.report.gather import RunRecord

_MOST = 15  # features of a chart
_GAIN = "% of the total gain"
_NOTE = (
    "Gain: how much the splits of the trees by a feature reduce the squared error of the training sentences. The value "
    "of a word or sign: the mean target of the training sentences with it, less that of all sentences, in points."
)


def learned_features(runs: Sequence[RunRecord]) -> str:
    """Return the features and cues of each extractor; "" without one that has stored them."""
    found = [(run.name, run.explanation) for run in runs if run.explanation]
    blocks = [_explained(name if len(found) > 1 else "", explanation) for name, explanation in found]
    return parts.section("features", "What the extractor has learned", parts.note(_NOTE), *blocks) if found else ""


def _explained(name: str, explanation: Explanation) -> str:
    comparison = explanation.comparison
    drawn = [_gains(explanation), *([_differences(comparison)] if comparison else [])]
    cues = {"words and signs": explanation.word_cues, "words in names of documents": explanation.name_cues}
    tables = "".join(_cues(title, values) for title, values in cues.items() if values)
    heading = parts.heading(name) if name else ""
    return heading + charts.side_by_side(*drawn) + f'<div class="charts">{tables}</div>' * bool(tables)


def _gains(explanation: Explanation) -> RowChart:
    rows = [
        Line(name, [Point(100 * share, 0, f"{name}: {100 * share:.1f} {_GAIN}", 0, 100 * share)])
        for name, share in [*explanation.gains.items()][:_MOST]
    ]
    return RowChart(f"Features that decide the score of a sentence (target: {explanation.target})", rows, _GAIN)


def _differences(comparison: UntrainedComparison) -> RowChart:
    rows = [
        Line(f"above {name}", [Point(other.difference, 0, low=other.low, high=other.high)], 1)
        for name, other in comparison.others.items()
    ]
    title = f"ROUGE-2 above systems without training ({comparison.clusters} validation clusters)"
    return RowChart(title, rows, "points", from_zero=True)


def _cues(title: str, values: Mapping[str, float]) -> str:
    """Return a table of the cues with the highest values beside those with the lowest."""
    high = [(cue, f"{100 * value:+.1f}") for cue, value in values.items() if value > 0]
    low = [(cue, f"{100 * value:+.1f}") for cue, value in [*values.items()][::-1] if value < 0]
    lines = [[*one, *other] for one, other in zip_longest(high, low, fillvalue=("", ""))]
    return f"<div>{parts.table([f'{title}: highest', 'value', 'lowest', 'value'], lines)}</div>"
