"""The datasets of a reproduction, all in one vocabulary."""

import shutil
from itertools import chain, islice
from typing import Any

from raysum.data.dataset import VOCABULARY, Dataset
from raysum.errors import UserError
from raysum.examples.factbook import corpus as factbook
from raysum.prepare.config import PrepareConfig
from raysum.prepare.job import prepare
from raysum.research.reproduce.bert import word_pieces
from raysum.research.reproduce.workspace import BASE, Workspace
from raysum.sources.find import RawSource
from raysum.sources.record import SPLITS

OPEN = "open"
_SENTENCES = {"kind": "extraction", "paragraph_tokens": 50}  # HIBERT, section 4.1
_BARE = {"kind": "pretraining", "paragraph_tokens": 50}
_RECIPES: dict[str, dict[str, Any]] = {
    BASE: {"graph": "similarity"},
    "unranked": {"ranker": "none"},
    "discourse": {"graph": "discourse"},
    "many": {"max_paragraphs": 1000},  # a ranker finds the best of them
    "sentences": _SENTENCES,
    "bert": _SENTENCES,
    "in-domain": _BARE,
    OPEN: _BARE,
}
_PIECES, _PARAGRAPH_TOKENS = 2000, 40  # of the size small, as in the quickstart
_OPEN_CLUSTERS = 4000  # of the factbook, which are the open domain where none is given
OPEN_TOLD = (
    "The open domain is raysum's own samples and a factbook of other invented names, as no open=RAW was given; where "
    "the data is a factbook, too, it is no other domain."
)


def prepare_dataset(place: Workspace, name: str) -> None:
    """Prepare the dataset ``name``. Raises UserError if the raw data lacks a split."""
    small = place.config.size == "small"
    settings = ({"paragraph_tokens": _PARAGRAPH_TOKENS} if small else {}) | _RECIPES[name]
    if name == "bert":
        settings["vocab"] = str(word_pieces(place))
    elif name == BASE:
        settings |= {"vocab_size": _PIECES} if small else {}
    else:
        settings["vocab"] = str(place.data(BASE) / VOCABULARY)
    sources = _open_sources(place) if name == OPEN else [place.config.data]
    place.data(name).parent.mkdir(parents=True, exist_ok=True)
    dataset = prepare(sources, place.data(name), **settings).dataset
    if name == BASE:
        _check_splits(place, dataset)


def _open_sources(place: Workspace) -> list[str]:
    if place.config.open:
        return [place.config.open]
    folder = place.out / "open"
    if not folder.is_dir():
        unfinished = folder.with_name(".open.unfinished")
        factbook.write(unfinished, train=_OPEN_CLUSTERS, valid=200, test=1, seed=1)
        unfinished.replace(folder)
    return ["samples", str(folder)]


def check_splits(place: Workspace, sources: list[RawSource]) -> None:
    """Raise UserError if a split has no rows in the raw data. The first rows are enough for most data."""
    config, lacking = PrepareConfig(out=str(place.out)), {*SPLITS}
    firsts = ((source, islice(source.records(), 1)) for source in sources)
    for source, records in chain(firsts, ((source, source.records()) for source in sources)):
        for record in records:
            lacking.discard(config.choose_split(record, source.split) or "")
            if not lacking:
                return
    raise _lacks(place, min(lacking, key=SPLITS.index))


def _check_splits(place: Workspace, dataset: Dataset) -> None:
    missing = [split for split in SPLITS if split not in dataset.splits or not dataset.references(split)]
    if missing:
        shutil.rmtree(dataset.path)
        (place.out / "settings.json").unlink()
        raise _lacks(place, missing[0])


def _lacks(place: Workspace, split: str) -> UserError:
    return UserError(
        f"{place.config.data} has no clusters with summaries of the split {split}; name its files "
        f"{', '.join(SPLITS)}, as in {split}.jsonl"
    )
