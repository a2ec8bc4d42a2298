"""The datasets of a reproduction, all in one vocabulary, except BERT's."""

from itertools import islice
from pathlib import Path
from typing import Any

from raysum.data.dataset import VOCABULARY, Dataset
from raysum.errors import UserError
from raysum.examples.factbook import corpus as factbook
from raysum.prepare.config import PrepareConfig
from raysum.prepare.job import prepare
from raysum.research.reproduce.tables import BASE
from raysum.research.reproduce.workspace import Workspace
from raysum.sources.find import RawSource
from raysum.sources.record import SPLITS, Record

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
_WORD_PIECES = 4000  # about twice the sentence pieces of the size small, because pieces with and without ## differ
_OPEN_CLUSTERS = 4000  # of the factbook, which are the open domain if none is given
DEFAULT_OPEN = (
    "The open domain is raysum's own samples and a factbook of other invented names, as no open=RAW was given; where "
    "the data is a factbook, too, it is no other domain."
)


def prepare_dataset(place: Workspace, name: str) -> None:
    small = place.config.size == "small"
    settings = ({"paragraph_tokens": _PARAGRAPH_TOKENS} if small else {}) | _RECIPES[name]
    if name == "bert":
        settings["vocab"] = str(_word_pieces(place))
    elif name == BASE:
        settings |= {"vocab_size": _PIECES} if small else {}
    else:
        settings["vocab"] = str(place.data(BASE) / VOCABULARY)
    sources = _open_sources(place) if name == OPEN else [place.config.data]
    place.data(name).parent.mkdir(parents=True, exist_ok=True)
    prepare(sources, place.data(name), **settings)


def _open_sources(place: Workspace) -> list[str]:
    if place.config.open:
        return [place.config.open]
    folder = place.out / "open"
    if not folder.is_dir():
        unfinished = folder.with_name(".open.unfinished")
        factbook.write(unfinished, train=_OPEN_CLUSTERS, valid=200, test=1, seed=1)
        unfinished.replace(folder)
    return ["samples", str(folder)]


def _word_pieces(place: Workspace) -> Path:
    """Return the folder with BERT's tokenizer.json: the published one, or one with word pieces of the data."""
    if place.config.bert:
        return Path(place.config.bert)
    folder = place.out / "bert"
    if not (file := folder / "tokenizer.json").is_file():
        from tokenizers import BertWordPieceTokenizer

        tokenizer = BertWordPieceTokenizer()
        rows = Dataset.open(place.data(BASE)).read("train", ["text"])
        texts = (text for row in rows for text in row["text"])
        tokenizer.train_from_iterator(
            texts, vocab_size=_WORD_PIECES, min_frequency=0, limit_alphabet=_WORD_PIECES, show_progress=False
        )
        folder.mkdir(exist_ok=True)
        tokenizer.save(str(file))
    return folder


def check_splits(place: Workspace, sources: list[RawSource]) -> None:
    """Raise UserError if the raw data has no cluster with a summary in a split.

    The first rows are read first, which are enough for most data.
    """
    config, lacking = PrepareConfig(out=str(place.out)), {*SPLITS}
    for most in (1, None):
        for source in sources:
            for record in islice(source.records(), most):
                if _has_summary(record):
                    lacking.discard(config.choose_split(record, source.split) or "")
                if not lacking:
                    return
    split = min(lacking, key=SPLITS.index)
    raise UserError(
        f"{place.config.data} has no clusters with summaries of the split {split}; name its files "
        f"{', '.join(SPLITS)}, as in {split}.jsonl"
    )


def _has_summary(record: Record) -> bool:
    return isinstance(record.raw, dict) and bool(record.raw.get("summary") or record.raw.get("summaries"))
