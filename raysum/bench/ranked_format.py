"""The published ranked WikiSum format, and data like it, as a dataset to train on: token ids only, no texts."""

import pickle
from pathlib import Path

import numpy as np
import torch

from raysum.data.dataset import Dataset
from raysum.data.recipe import Recipe
from raysum.data.rows import Row, table_of, title_tokens
from raysum.data.vocabulary import Vocabulary
from raysum.data.writer import DatasetWriter
from raysum.errors import UserError


def as_dataset(shards: Path, vocabulary: Path, folder: Path) -> Dataset:
    """The clusters of ``shards``/WIKI.SPLIT.N.pt as a dataset in ``folder``; paragraph order is rank order.

    A shard is a list of mappings with ``src``, the token ids of each paragraph, and ``tgt``, those of the summary.
    Raises UserError where there are no such shards, or one does not read as such.
    """
    pieces = Vocabulary.load(vocabulary)
    recipe = Recipe(max_paragraphs=40, paragraph_tokens=100, vocabulary_sha256=pieces.sha256)
    folder.mkdir(parents=True, exist_ok=True)
    writer = DatasetWriter(folder, "summarization", recipe, pieces)
    written = []
    for split in ("train", "valid"):
        files = sorted(shards.glob(f"WIKI.{split}.*.pt"), key=lambda file: int(file.suffixes[-2][1:]))
        if not files:
            raise UserError(f"{shards} has no WIKI.{split}.N.pt; name the folder of ranked shards with data=FOLDER")
        rows = [row for file in files for row in _rows(file)]
        written.append(writer.add(split, split, [table_of(rows, writer.kind)]))
    return writer.finish(written)


def _rows(file: Path) -> list[Row]:
    try:
        clusters = enumerate(torch.load(file, weights_only=True))
        return [_row(f"{file.name}:{number}", cluster["src"], cluster["tgt"]) for number, cluster in clusters]
    except (OSError, RuntimeError, KeyError, TypeError, ValueError, EOFError, pickle.UnpicklingError):
        raise UserError(f"{file} is no shard of ranked clusters, or damaged; get it again") from None


def _row(name: str, source: list[list[int]], target: list[int]) -> Row:
    paragraphs = [ids for ids in source if ids]
    ids = np.concatenate(paragraphs)
    offsets = np.cumsum([0, *(len(ids) for ids in paragraphs)])
    return {
        "id": name,
        "ids": ids,
        "title_tokens": title_tokens(ids[: offsets[1]]),
        "paragraph_offsets": offsets,
        "target_ids": np.array(target),
    }
