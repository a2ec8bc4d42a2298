"""Report the tokens of a dataset that the limits of a model truncate."""

from collections.abc import Mapping, Sequence
from itertools import chain, islice

from raysum import systems
from raysum.config.decoding import SourceConfig
from raysum.data.dataset import Dataset
from raysum.data.rows import Row
from raysum.systems import Spec

# The options that raise each limit.
TRAINING = {name: f"source.{name}" for name in ("max_paragraphs", "paragraph_tokens", "max_tokens")}
DECODING = {"max_paragraphs": "--set source_paragraphs", "max_tokens": "--set source_tokens"}

_COLUMNS = ("ids", "paragraph_offsets")
_MAX_ROWS = 500
_UNLIMITED = SourceConfig.model_construct(max_paragraphs=10**9, paragraph_tokens=10**9, max_tokens=None)


def split_truncation(
    dataset: Dataset, split: str, spec: Spec, source: SourceConfig, options: Mapping[str, str], limit: int | None = None
) -> str | None:
    """Return the message of ``truncation`` for the first rows of a split, at most ``limit`` of them."""
    if not {*_COLUMNS} <= {*systems.kind(spec).columns}:
        return None
    count = min(limit or _MAX_ROWS, _MAX_ROWS)
    message = truncation([*islice(dataset.read(split, _COLUMNS), count)], spec, source, options)
    rows = f"the first {count} rows" if dataset.rows(split) > count else "all rows"
    return message and f"{dataset.place}, {rows} of {split}: {message}"


def truncation(rows: Sequence[Row], spec: Spec, source: SourceConfig, options: Mapping[str, str]) -> str | None:
    """Return the share of the tokens of ``rows``, with marks, that a model of ``spec`` reads within the limits of
    ``source``, and the ``options`` that raise it. None if it reads at least 99.5 %."""
    kind = systems.kind(spec)

    def read(limits: SourceConfig) -> list[list[int]]:
        """Return the number of tokens that the model reads of each paragraph of each row."""
        return [kind.cut(row, limits)[1].tolist() for row in rows]

    full, truncated = read(_UNLIMITED), read(source)
    total, count = (sum(map(sum, lengths)) for lengths in (full, truncated))
    if count >= 0.995 * total:
        return None
    needed = {
        "max_paragraphs": max(map(len, full)),
        "paragraph_tokens": max(chain.from_iterable(full)),
        "max_tokens": max(map(sum, full)),
    }
    limits = {name: getattr(source, name) for name in needed}
    effective = [
        name for name in needed if sum(map(sum, read(_UNLIMITED.model_copy(update={name: limits[name]})))) < total
    ]
    bounded = "max_tokens" if spec.joins_paragraphs else "paragraph_tokens"
    possible = needed | {bounded: min(needed[bounded], spec.max_positions or needed[bounded])}
    raised = [name for name in effective if name in options and possible[name] > limits[name]]
    message = f"{100 * count / total:.0f} % of the tokens are read"
    if "max_paragraphs" in effective:
        message += f", {limits['max_paragraphs']} of up to {needed['max_paragraphs']} paragraphs"
    if not raised:
        return message
    amount = "all" if all(possible[name] == needed[name] for name in effective) and raised == effective else "more"
    return f"{message}; use {' '.join(f'{options[name]}={possible[name]}' for name in raised)} to read {amount}"
