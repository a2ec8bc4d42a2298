"""The conclusion of a report or a board in one sentence."""

from collections import Counter
from collections.abc import Sequence

from raysum.evaluate.scorers import FIGURES, HEADLINES
from raysum.evaluate.table import cell
from raysum.report.gather import EvaluationRecord, Gathered, RunRecord
from raysum.tune.page import metric_title
from raysum.tune.record import SearchRecord
from raysum.tune.spaces import label

_MAIN = (*HEADLINES, "rouge2")  # the first that is known decides
_PLURALS = {"run": "runs", "search": "searches"}
_STATES = ("running", "damaged", "interrupted", "finished")


def verdict(content: Gathered) -> str:
    """Return the conclusion of the first evaluation, else of the first search, else of the first run."""
    for evaluated in content.evaluations:
        if text := _of_evaluation(evaluated):
            return text if len(content.evaluations) == 1 else f"{evaluated.name}: {text}"
    for search in content.searches:
        return _of_search(search)
    return _of_run(content.runs[0]) if content.runs else ""


def _of_evaluation(evaluated: EvaluationRecord) -> str:
    """Compare the first system with the best of the others, or return an empty string if no main figure is known."""
    table = evaluated.table
    first, *others = table.systems
    metric = next((name for name in _MAIN if name in table.systems[first]), None)
    if metric is None:
        return ""
    figure, examples = FIGURES[metric], f"{table.examples} example{'s' * (table.examples != 1)}"
    gaps = {name: table.differences.get(f"{first} - {name}", {}) for name in others}
    gaps = {name: gap for name, gap in gaps.items() if f"{metric}_low" in gap}
    if not gaps:
        value = cell(table.systems[first], metric, figure)
        return f"{first} has {value} {figure.label} on {examples}; no other system is compared with it."
    best = min(gaps, key=lambda name: gaps[name][metric])
    gap, low, high = (gaps[best][metric + end] for end in ("", "_low", "_high"))
    other = f"{best} (the best of {len(gaps)} others)" if len(gaps) > 1 else best
    if low <= 0 <= high:
        interval = f"{low:+.{figure.digits}f} to {high:+.{figure.digits}f} {figure.label}"
        return f"{examples} show no difference between {first} and {other}: its 95 % interval is {interval}."
    better, worse, sign = (first, other, 1) if gap > 0 else (other, first, -1)
    bounds = " to ".join(f"{bound:.{figure.digits}f}" for bound in sorted((sign * low, sign * high)))
    by = f"{sign * gap:.{figure.digits}f} {figure.label} (95 % interval {bounds}, {examples})"
    return f"{better} is better than {worse} by {by}."


def _of_search(search: SearchRecord) -> str:
    metric, ended = search.space.metric, [trial.state for trial in search.trials].count("ended")
    trials = f"{ended} of {search.total} trials of {search.name} have ended"
    best = next((trial for trial in search.trials if trial.metrics), None)
    if best is None:
        return f"{trials}; none has a {metric_title(metric)} yet."
    return f"{trials}; the best is {label(best.config)} with {metric_title(metric)} {best.metrics[metric]:.4g}."


def _of_run(run: RunRecord) -> str:
    if run.explanation and run.explanation.comparison:
        return run.explanation.comparison.sentence(run.name)
    losses, steps = run.validations, run.run.config.train.steps
    at = min(losses, key=lambda step: losses[step]) if losses else None
    lowest = f" with the lowest validation loss at step {at:,} ({losses[at]:.4f})" if at is not None else ""
    ended = "has finished" if run.is_finished else f"has trained {run.step:,} of {steps:,} steps"
    return f"{run.name} {ended}{lowest}, and is not evaluated."


def verdict_of_states(kinds: Sequence[str], states: Sequence[str], newest: str) -> str:
    """Return how many runs and searches of a board are in each state; ``newest`` is the last changed one."""
    amounts = [f"{count} {kind if count == 1 else _PLURALS[kind]}" for kind, count in Counter(kinds).items()]
    counts = [f"{states.count(state)} {state}" for state in _STATES if state in states]
    return f"{' and '.join(amounts)}: {', '.join(counts)}. The last change was in {newest}."
