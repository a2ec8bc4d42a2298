"""Which datasets a training mixes, and in what shares."""

from raysum.config.sections import Config
from raysum.data.dataset import Dataset
from raysum.errors import UserError
from raysum.runtime.progress import say


def mixed(config: Config, dataset: Dataset) -> list[Dataset]:
    """The datasets that ``config`` mixes into ``dataset``, whose recipe is the one that holds for new texts.

    Raises UserError where one cannot be read by the same model, or is damaged.
    """
    found = [Dataset.open(path) for path in config.mixed]
    for number, other in enumerate(found):
        if other.path in [one.path for one in (dataset, *found[:number])]:
            raise UserError(f"{other.place} is named twice; data_weights tells how often its rows come")
        differs = [name for name, own, its in _needed(dataset, other) if own != its]
        if differs:
            raise UserError(
                f"{other.place} cannot be mixed with {dataset.place}: they differ in {' and '.join(differs)}; prepare "
                f"it again with --kind {dataset.kind} --vocab {dataset.vocabulary_path}"
            )
        other.split("train")
        other.check_shards()
        told = dataset.recipe.model_dump().items()
        if changed := [name for name, value in told if value != getattr(other.recipe, name)]:
            say(
                f"{other.place} was prepared with other values of {', '.join(changed)} than {dataset.place}, "
                "whose recipe holds for new texts"
            )
    return found


def _needed(one: Dataset, other: Dataset) -> list[tuple[str, str, str]]:
    """What must be the same of both, by name."""
    return [
        ("kind", one.kind, other.kind),
        ("vocabulary", one.vocabulary_hash, other.vocabulary_hash),
        ("normalization of text", one.recipe.normalize, other.recipe.normalize),
    ]


def shares(weights: list[float], rows: list[int]) -> tuple[float, ...]:
    """Of the rows of an epoch: by ``weights``, or where there is none as many as each dataset has."""
    given = weights or rows
    return tuple(weight / sum(given) for weight in given)
