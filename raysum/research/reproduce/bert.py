"""The start of BERT's row: a folder of published weights, or word pieces of the data and random weights."""

from pathlib import Path
from typing import Any

from raysum.data.dataset import Dataset
from raysum.errors import UserError
from raysum.models.systems.specs import SIZES
from raysum.research.reproduce.workspace import BASE, Workspace
from raysum.runtime.storage import read_json

_PIECES = 4000  # about twice the sentence pieces of the size small, because pieces with and without ## differ
_MARKS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
UNPUBLISHED = (
    "of random weights and small, in word pieces of the data, as no bert=FOLDER of published weights was given"
)


def word_pieces(place: Workspace) -> Path:
    """Return the folder with the tokenizer.json of the row's dataset."""
    if place.config.bert:
        return Path(place.config.bert)
    folder = place.out / "bert"
    if not (file := folder / "tokenizer.json").is_file():
        from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

        tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
        tokenizer.normalizer = normalizers.BertNormalizer()
        tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        trainer = trainers.WordPieceTrainer(vocab_size=_PIECES, special_tokens=_MARKS, show_progress=False)
        rows = Dataset.open(place.data(BASE)).read("train", ["text"])
        tokenizer.train_from_iterator((text for row in rows for text in row["text"]), trainer)
        folder.mkdir(exist_ok=True)
        tokenizer.save(str(file))
    return folder


def begins(place: Workspace) -> dict[str, Any]:
    """Return the config sections for the row. Raises UserError if the folder of weights has no sizes."""
    if not place.config.bert:
        return {"model": {"layers": 2, "width": 128, "ffn": 512, "heads": 4}, "optim": {"lr": 0.001}}
    values = read_json(Path(place.config.bert) / "config.json")
    if not isinstance(values, dict):
        raise UserError(f"{place.config.bert}/config.json has no sizes of a BERT")
    sizes = {own: values[name] for own, name in SIZES.items() if name in values}
    return {"model": sizes, "train": {"init_from": place.config.bert}}
