"""What turns text into the ids that a model reads, and back; of which kind is told by the file or folder it is in."""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from raysum.errors import UserError
from raysum.runtime.remote import is_url, read
from raysum.text.cleaning import Normalization, normalize, paragraph_spans
from raysum.text.sentences import quick_sentence_spans, sentence_spans
from raysum.tokenizers.special_tokens import SpecialTokens

STORED = "vocabulary.model"  # its file in a dataset and in a run


class Tokenizer(ABC):
    """What datasets and runs are written in. Its ids from text are never marks: these stand in no text.

    ``pieces`` names their kind. ``model`` is the content of its file, all that there is of it, and ``sha256`` tells it
    from others.
    """

    pieces: str
    marks: SpecialTokens

    def __init__(self, model: bytes):
        self.model, self.sha256 = model, hashlib.sha256(model).hexdigest()

    @staticmethod
    def load(path: str | Path, language: str | None = None) -> "Tokenizer":
        """That of a SentencePiece model with the special pieces, of what a dataset or run has, or of the folder of one
        of these or of a published model.

        ``language`` is a published tokenizer's code of the texts', where it knows several.
        Raises UserError where ``path`` does not read or is none of these.
        """
        place = Path(path).expanduser()
        is_folder = not is_url(path) and place.is_dir()
        file = place / STORED if is_folder else place
        try:
            if is_folder and not file.is_file():
                from raysum.tokenizers.published import read_folder

                return made(read_folder(place, language), str(place / "tokenizer.json"))
            content = read(str(path)) if is_url(path) else file.read_bytes()
        except OSError as error:
            raise UserError(
                f"cannot read the vocabulary {error.filename or path}: {error.strerror}; give a .model file made by "
                "SentencePiece, or the folder of a published model with its tokenizer.json, or put back a copy"
            ) from None
        if content is None:
            raise UserError(f"there is no vocabulary {path}; name a file made by SentencePiece")
        if language is not None:
            raise UserError(f"language {language!r} is of a published folder, which {path} is not; leave it out")
        return made(content, str(file))

    def __reduce__(self) -> tuple:
        return type(self), (self.model,)

    @abstractmethod
    def __len__(self) -> int:
        """The ids of a model that reads it, 0 to this; of some there may be no piece."""

    @abstractmethod
    def encode_all(self, texts: Sequence[str]) -> list[list[int]]:
        """``encode`` of each text, in one thread."""

    @abstractmethod
    def decode(self, ids: Sequence[int]) -> str:
        """Text up to the first end; marks leave no text, but for a space between sentences."""

    @abstractmethod
    def token_spans(self, ids: Sequence[int]) -> list[tuple[int, int]]:
        """Where each sentence of a summary's ``ids``, without their start, begins and ends."""

    @abstractmethod
    def spellings(self) -> list[bytes]:
        """What each id adds to a text, in UTF-8: with a space before it where it begins a word, or a byte alone.

        Special tokens add nothing, but for one between sentences, which is a space.
        """

    @abstractmethod
    def normalized(self, text: str) -> str:
        """``text`` as the pieces spell it."""

    @abstractmethod
    def suggested_normalization(self) -> Normalization:
        """How text must look for these pieces."""

    @property
    @abstractmethod
    def shapes(self) -> tuple[np.ndarray, np.ndarray]:
        """[pieces] how many characters of text each stands for, and whether a word begins with it."""

    def encode(self, text: str) -> list[int]:
        """Ids of user text. None of them is a mark: a literal ``</S>`` in the text is spelled by its characters."""
        return self.encode_all([text])[0]

    def encode_sentences(self, texts: Sequence[str], how: Normalization) -> list[list[list[int]]]:
        """The ids of the sentences of each paragraph, normalized as ``how`` says: each encoded by itself."""
        parted = [[text[start:end] for start, end in quick_sentence_spans(text)] for text in texts]
        left = iter(self.encode_all([normalize(sentence, how) for group in parted for sentence in group]))
        return [[next(left) for _ in group] for group in parted]

    def counts(self, texts: Sequence[str]) -> list[int]:
        """How many ids each text has within a paragraph, at most."""
        return [*map(len, self.encode_all(texts))]

    def within(self, text: str, most: int) -> bool:
        """Whether ``text`` is known to have ``most`` ids or fewer, also cut between words; False: it must be seen."""
        return False

    def encode_summary(self, text: str, how: Normalization = "none") -> list[int]:
        """The start, the sentences of ``text`` with a mark between them where there is one, the end; each sentence
        normalized as ``how`` says."""
        lines = (text[start:end] for start, end in paragraph_spans(text))
        sentences = [normalize(line[start:end], how) for line in lines for start, end in sentence_spans(line)]
        marks = self.marks
        if marks.sentence_end is None:
            ids = self.encode(" ".join(sentences)) if sentences else []
        else:
            ids = [id for part in self.encode_all(sentences) if part for id in (marks.sentence_end, *part)][1:]
        return [marks.start, *marks.target_prefix, *ids, marks.end]

    def sentences(self, ids: Sequence[int]) -> list[str]:
        """The text of each sentence of a summary's ``ids``, their start included or not; none is empty."""
        ids = [*map(int, ids)]
        ids = ids[1:] if ids[:1] == [self.marks.start] else ids
        return [text for start, end in self.token_spans(ids) if (text := self.decode(ids[start:end]))]


def made(content: bytes, name: str) -> Tokenizer:
    """The tokenizer of the ``content`` of a file. Raises UserError, with its ``name``, where it is none."""
    if content.lstrip()[:1] == b"{":
        from raysum.tokenizers.fast import FastTokenizer

        return FastTokenizer(content, name)
    from raysum.tokenizers.sentence_piece import Vocabulary

    return Vocabulary(content, name)
