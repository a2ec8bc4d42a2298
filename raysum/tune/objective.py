"""The objective of a search: any metric that trainings log or that a registered scorer computes."""

from raysum.config.problems import did_you_mean
from raysum.data.dataset import Dataset
from raysum.errors import UserError
from raysum.evaluate.scorers import FIGURES as SCORES
from raysum.evaluate.scorers import scorer_of, selectable
from raysum.metrics.statistics import Figure
from raysum.systems import Spec
from raysum.tune.schema import SpaceConfig

COSTS = {
    "valid_loss": Figure("valid loss", 4),
    "step": Figure("step", 0),
    "parameters": Figure("parameters", 0),
    "train_seconds": Figure("training s", 0),
}
LOGGED = {  # from the last line of metrics.jsonl before a report
    "loss": Figure("training loss", 4),
    "tokens_per_s": Figure("tokens/s", 0),
    "grad_norm": Figure("gradient norm", 3),
    "wait_share": Figure("waiting", 3),
    "padding_share": Figure("padding", 3),
    "peak_rss_mb": Figure("peak MiB", 0),
}
FIGURES = SCORES | COSTS | LOGGED


def metric_figure(metric: str) -> Figure:
    """Return the figure of a metric, also if the package of its scorer is no longer installed."""
    return FIGURES.get(metric, Figure(metric.replace("_", " "), 4))


def check_metric(config: SpaceConfig, location: str) -> None:
    """Raises UserError with all known metrics if the metric, or one in ``stop``, is unknown. ``location`` is its line.

    A training measures one metric of summaries, so a metric in ``stop`` is the objective or one that trainings log.
    """
    known = [*(COSTS | LOGGED if config.kind == "train" else ()), *selectable()]
    if config.metric not in known:
        raise UserError(
            f"metric: {config.metric!r} is no metric of a {config.kind} space ({location}); "
            f"{did_you_mean(config.metric, known)}use one of {', '.join(known)}"
        )
    limits = [config.metric, *COSTS, *LOGGED] if config.kind == "train" else ["examples", *known]
    if wrong := [name for name in config.stop if name not in limits]:
        raise UserError(
            f"stop cannot name {wrong[0]!r} in a {config.kind} space; {did_you_mean(wrong[0], limits)}"
            f"use one of {', '.join(dict.fromkeys(limits))}"
        )


def best_by(config: SpaceConfig) -> str | None:
    """Return the value of ``train.best_by`` that makes trainings measure the metric; None if they log it anyway."""
    if config.kind != "train" or config.metric in COSTS | LOGGED:
        return None
    return config.metric if config.goal == "max" else f"-{config.metric}"


def check_measurable(config: SpaceConfig, spec: Spec, dataset: Dataset) -> None:
    """Raises UserError if the dataset or the system lacks something that the metric needs."""
    scorer = scorer_of(config.metric)
    if scorer and (problem := scorer.problem(dataset)):
        raise UserError(f"metric={config.metric} cannot be measured: {problem}; use a ROUGE metric")
    if scorer and spec.extracts and not config.metric.startswith("rouge"):
        raise UserError(f"metric={config.metric} does not apply to a {spec.system}; use valid_loss or a ROUGE metric")
