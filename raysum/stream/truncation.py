"""What of the rows of a dataset a model does not read, as its limits are lower than those of the dataset."""

from collections.abc import Mapping, Sequence
from itertools import chain, islice

from raysum import systems
from raysum.config.sources import SourceConfig
from raysum.data.dataset import Dataset
from raysum.data.rows import Row
from raysum.systems import Spec

# Limits by the keys that raise them.
TRAINING = {name: f"source.{name}" for name in ("max_paragraphs", "paragraph_tokens", "max_tokens")}
DECODING = {"max_paragraphs": "--set source_paragraphs", "max_tokens": "--set source_tokens"}

_COLUMNS = ("ids", "paragraph_offsets")
_LOOKED_AT = 500  # rows
_ALL = SourceConfig.model_construct(max_paragraphs=10**9, paragraph_tokens=10**9, max_tokens=None)


def unread_of(
    dataset: Dataset, split: str, spec: Spec, source: SourceConfig, keys: Mapping[str, str], limit: int | None = None
) -> str | None:
    """:func:`unread` of the first rows of a split, at most ``limit``."""
    if not {*_COLUMNS} <= {*systems.kind(spec).columns}:
        return None
    most = min(limit or _LOOKED_AT, _LOOKED_AT)
    told = unread([*islice(dataset.read(split, _COLUMNS), most)], spec, source, keys)
    rows = f"the first {most} rows" if dataset.rows(split) > most else "all rows"
    return told and f"{dataset.place}, {rows} of {split}: {told}"


def unread(rows: Sequence[Row], spec: Spec, source: SourceConfig, keys: Mapping[str, str]) -> str | None:
    """What share of the tokens of ``rows``, with marks, a model of ``spec`` reads by the limits of ``source``, and what
    by ``keys`` reads more; None where it reads all, to the percent."""
    kind = systems.kind(spec)

    def read(limits: SourceConfig) -> list[list[int]]:
        """The tokens of each paragraph that is read, row by row."""
        return [kind.cut(row, limits)[1].tolist() for row in rows]

    whole, found = read(_ALL), read(source)
    total, count = (sum(map(sum, one)) for one in (whole, found))
    if count >= 0.995 * total:
        return None
    wanted = {
        "max_paragraphs": max(map(len, whole)),
        "paragraph_tokens": max(chain.from_iterable(whole)),
        "max_tokens": max(map(sum, whole)),
    }
    limits = {name: getattr(source, name) for name in wanted}
    needed = [name for name in wanted if sum(map(sum, read(_ALL.model_copy(update={name: limits[name]})))) < total]
    bounded = "max_tokens" if spec.joins_paragraphs else "paragraph_tokens"
    reached = wanted | {bounded: min(wanted[bounded], spec.max_positions or wanted[bounded])}
    raised = [name for name in needed if name in keys and reached[name] > limits[name]]
    told = f"{100 * count / total:.0f} % of the tokens are read"
    if "max_paragraphs" in needed:
        told += f", {limits['max_paragraphs']} of up to {wanted['max_paragraphs']} paragraphs"
    if not raised:
        return told
    reads = "all" if all(reached[name] == wanted[name] for name in needed) and raised == needed else "more"
    return f"{told}; {' '.join(f'{keys[name]}={reached[name]}' for name in raised)} reads {reads}"
