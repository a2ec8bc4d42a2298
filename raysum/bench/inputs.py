"""Inputs: random rows of a preset's sizes, as the speed of a model depends on sizes alone, and clusters of texts."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from raysum import systems
from raysum.config.sections import Config
from raysum.data.dataset import ROW_GROUP, Dataset
from raysum.data.recipe import Recipe
from raysum.data.rows import Row, table_of
from raysum.data.writer import DatasetWriter
from raysum.examples.factbook import corpus
from raysum.prepare.cluster import Cluster, read_cluster
from raysum.sources.find import find_sources
from raysum.sources.record import Rejected
from raysum.stream.random_rows import random_row, random_rows
from raysum.tokenizers.sentence_piece import Vocabulary

_REPEATED, _SHARD = 1024, 4  # generated rows, and how often a shard repeats them


def full_size(folder: Path, config: Config, target_tokens: int) -> Dataset:
    """Write a dataset of such rows to ``folder``."""
    form, rows = systems.kind(config.model).dataset_kinds[0], random_rows(config, 2 * ROW_GROUP, target_tokens, 0)
    graph: Any = "none" if form != "summarization" else "similarity"
    return _write_dataset(folder, [table_of(rows, form)], form, graph=graph)


def wikisum_like(folder: Path, rows: int) -> Path:
    """Write a dataset of ``rows`` rows that resemble WikiSum's, and return its folder.

    They have up to 40 paragraphs of 70 tokens on average, targets of 140, and the texts. The same 1,024 rows repeat,
    in shards of 4,096.
    """
    random, folder = np.random.default_rng(0), Path(folder)
    table = table_of([_wikisum_row(random, f"row {number}") for number in range(_REPEATED)], "summarization")
    whole, rest = divmod(rows, _REPEATED)
    folder.mkdir(parents=True)
    return _write_dataset(folder, [table] * whole + ([table[:rest]] if rest else []), "summarization").path


def clusters(files: Sequence[str], count: int) -> Iterator[Cluster]:
    """Yield the valid clusters of ``files``, or ``count`` of the factbook if there are none."""
    records = (record for source in find_sources(files) for record in source.records()) if files else ()
    raw = (record.raw for record in records) if files else corpus.generate("test", count)
    for values in raw:
        with suppress(Rejected):
            yield read_cluster(values)


def _write_dataset(folder: Path, tables: list[pa.Table], form: str, **choices: Any) -> Dataset:
    texts = ("".join(map(chr, range(97 + first, 123))) for first in range(20))
    vocabulary = Vocabulary.train(texts, 60)
    recipe = Recipe(vocabulary_sha256=vocabulary.sha256, **choices)
    writer = DatasetWriter(folder, form, recipe, vocabulary)
    parts = [tables[start : start + _SHARD] for start in range(0, len(tables), _SHARD)]
    return writer.finish([writer.add(f"{number:05d}", "train", part) for number, part in enumerate(parts)])


def _wikisum_row(random: np.random.Generator, name: str) -> Row:
    paragraphs, target = np.clip([random.normal(38, 6), random.lognormal(4.7, 0.6)], [3, 10], [40, 400]).astype(int)
    sizes = random.gamma(4, 70 / 4, paragraphs).clip(8, 100).astype(int).tolist()
    whole = random_row(random, 60, sizes, target)
    row: Any = {key: value for key, value in whole.items() if not key.startswith("graph")}
    texts = ["".join(map(chr, random.integers(97, 123, 4 * size))) for size in sizes]
    return row | {"id": name, "text": texts}
