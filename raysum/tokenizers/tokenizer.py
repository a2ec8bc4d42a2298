"""The interface of tokenizers: text to the ids that a model reads, and back."""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cached_property

import numpy as np

from raysum.text.cleaning import Normalization, normalize, paragraph_spans
from raysum.text.sentences import quick_sentence_spans, sentence_spans
from raysum.tokenizers.special_tokens import SpecialTokens

STORED = "vocabulary.model"  # its file in a dataset and in a run


class Tokenizer(ABC):
    """A tokenizer of datasets and runs. Text never encodes to special tokens.

    ``pieces`` names the kind of its pieces. ``model`` is the content of its only file, and ``sha256`` is its hash.
    """

    pieces: str
    marks: SpecialTokens

    def __init__(self, model: bytes):
        self.model, self.sha256 = model, hashlib.sha256(model).hexdigest()

    def __reduce__(self) -> tuple:
        return type(self), (self.model,)

    @abstractmethod
    def __len__(self) -> int:
        """Return the vocabulary size of a model; some ids may have no piece."""

    @abstractmethod
    def encode_all(self, texts: Sequence[str]) -> list[list[int]]:
        """Return ``encode`` of each text, in one thread."""

    @abstractmethod
    def decode(self, ids: Sequence[int]) -> str:
        """Return the text up to the first end. Special tokens give no text, except a space between sentences."""

    @abstractmethod
    def token_spans(self, ids: Sequence[int]) -> list[tuple[int, int]]:
        """Return where each sentence of a summary begins and ends in its ``ids``, which exclude the start."""

    @abstractmethod
    def spellings(self) -> list[bytes]:
        """Return the UTF-8 text of each id: with a space first if it begins a word, or a single byte.

        Special tokens have no text, except that a mark between sentences is a space.
        """

    @abstractmethod
    def normalized(self, text: str) -> str:
        """Return ``text`` as the pieces spell it."""

    @abstractmethod
    def suggested_normalization(self) -> Normalization:
        """Return the normalization that these pieces need."""

    @cached_property
    def shapes(self) -> tuple[np.ndarray, np.ndarray]:
        """[pieces] the number of characters of each piece, and whether it begins a word.

        A character of several pieces counts for the piece with its first byte.
        """
        spellings, marks = self.spellings(), self.marks
        letters = [sum(byte & 0xC0 != 0x80 for byte in spelling.lstrip(b" ")) for spelling in spellings]
        starts = [spelling.startswith(b" ") for spelling in spellings]
        if marks.unknown is not None:
            letters[marks.unknown], starts[marks.unknown] = 1, False
        if marks.sentence_end is not None:
            starts[marks.sentence_end] = False
        return np.array(letters), np.array(starts)

    def encode(self, text: str) -> list[int]:
        """Return the ids of user text. A literal ``</S>`` in the text is spelled by its characters."""
        return self.encode_all([text])[0]

    def encode_sentences(self, texts: Sequence[str], how: Normalization) -> list[list[list[int]]]:
        """Return the ids of each sentence of each paragraph, normalized by ``how`` and encoded separately."""
        paragraphs = [[text[start:end] for start, end in quick_sentence_spans(text)] for text in texts]
        ids = iter(self.encode_all([normalize(sentence, how) for sentences in paragraphs for sentence in sentences]))
        return [[next(ids) for _ in sentences] for sentences in paragraphs]

    def counts(self, texts: Sequence[str]) -> list[int]:
        """Return the largest number of ids that each text can have within a paragraph."""
        return [*map(len, self.encode_all(texts))]

    def within(self, text: str, most: int) -> bool:
        """Return whether ``text``, also cut between words, is known to have at most ``most`` ids; False if unknown."""
        return False

    def encode_summary(self, text: str, how: Normalization = "none") -> list[int]:
        """Return the start, the sentences of ``text``, each normalized by ``how``, and the end.

        The mark between sentences, if the tokenizer has one, separates them.
        """
        lines = (text[start:end] for start, end in paragraph_spans(text))
        sentences = [normalize(line[start:end], how) for line in lines for start, end in sentence_spans(line)]
        marks = self.marks
        if marks.sentence_end is None:
            ids = self.encode(" ".join(sentences)) if sentences else []
        else:
            ids = [id for part in self.encode_all(sentences) if part for id in (marks.sentence_end, *part)][1:]
        return [marks.start, *marks.target_prefix, *ids, marks.end]

    def sentences(self, ids: Sequence[int]) -> list[str]:
        """Return the text of each non-empty sentence of a summary's ``ids``, with or without the start."""
        ids = [*map(int, ids)]
        ids = ids[1:] if ids[:1] == [self.marks.start] else ids
        return [text for start, end in self.token_spans(ids) if (text := self.decode(ids[start:end]))]
