"""SentencePiece vocabularies: load, train, encode without letting user text reach the special ids, decode."""

import hashlib
import heapq
import io
import re
from collections.abc import Iterable, Sequence
from functools import cached_property, partial
from itertools import pairwise
from pathlib import Path

import numpy as np
import sentencepiece

from raysum.errors import UserError
from raysum.runtime.processes import interruptible
from raysum.text.cleaning import Normalization
from raysum.tokenizers.encode_cache import Wordwise
from raysum.tokenizers.special_tokens import PUBLISHED, SPECIAL_PIECES
from raysum.tokenizers.tokenizer import Tokenizer

_UNKNOWN, _END, _SENTENCE_END = 0, PUBLISHED.end, PUBLISHED.sentence_end
_MARKS = frozenset(range(1, len(SPECIAL_PIECES)))  # ids that stand for no text
_CONTROL = 3  # from this one on SentencePiece knows them by their names alone
_CAPITAL_SHARE, _COMMON_PIECES = 0.01, 100  # of the pieces; ids
_SAMPLE_CHARACTERS = 1000  # of training text for each piece: 32,000 pieces train in some 5 s of one core
_EXAMPLE_CHARACTERS = 20_000  # most of one example, so that a few huge clusters cannot fill the sample
# No piece reaches over the edge between a digit and a sign: "1386." and "1386" are to have the pieces of the number in
# common, by which a model copies it.
_EDGE = re.compile(r"(?<=\d)(?=[^\w\s])|(?<=[^\w\s])(?=\d)")
_EDGE_MARK = "\u241f"
_CAUSES = {  # by what the trainer says
    "sentences_.empty()": "the training split holds no text; --split train makes any file part of it",
    "required_chars_": "the text has more different characters than that; ask for more pieces",
}


class Vocabulary(Tokenizer):
    """The pieces of a SentencePiece model whose first nine are ``SPECIAL_PIECES``."""

    pieces = "SentencePiece"
    marks = PUBLISHED

    def __init__(self, model: bytes, name: str = "vocabulary"):
        """``model`` is the content of a model file. Raises UserError where it is none, or lacks the special pieces."""
        try:
            self._processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        except RuntimeError:
            raise UserError(f"{name} is not a SentencePiece model; give a .model file made by SentencePiece") from None
        first = tuple(self._processor.id_to_piece(i) for i in range(min(len(SPECIAL_PIECES), len(self))))
        if first != SPECIAL_PIECES:
            raise UserError(
                f"{name} begins with the pieces {' '.join(first)}; ids 0 to 8 must be {' '.join(SPECIAL_PIECES)}. "
                "Leave --vocab out to train such a vocabulary"
            )
        super().__init__(model)
        self._escapes = {mark: self._spelled(SPECIAL_PIECES[mark]) for mark in _MARKS}

    @classmethod
    def train(cls, texts: Iterable[str], size: int, out: str | Path | None = None) -> "Vocabulary":
        """A byte-pair vocabulary of at most ``size`` pieces, the special ones included, from lines of text.

        Fewer pieces come out where ``texts`` hold no more (``len`` tells). Written to ``out`` when given.
        Raises UserError where there is no text, or more different characters than pieces.
        """
        buffer = io.BytesIO()
        try:
            train = partial(
                sentencepiece.SentencePieceTrainer.train,
                sentence_iterator=(_EDGE.sub(_EDGE_MARK, text) for text in texts),
                pretokenization_delimiter=_EDGE_MARK,
                model_writer=buffer,
                vocab_size=size,
                hard_vocab_limit=False,
                model_type="bpe",  # unigram proposes no piece that one character always follows, as in formulaic text
                normalization_rule_name="nmt_nfkc",
                byte_fallback=False,
                character_coverage=0.9995,  # the trainer's default: rare characters become <unk>
                pad_id=-1,
                control_symbols=list(SPECIAL_PIECES[_CONTROL:]),  # control: no text ever encodes to them
                minloglevel=2,
            )
            interruptible(train)
        except RuntimeError as error:
            told = str(error)
            cause = next((cause for part, cause in _CAUSES.items() if part in told), told.splitlines()[0])
            raise UserError(f"cannot train a vocabulary of {size} pieces: {cause}") from None
        if out is not None:
            Path(out).write_bytes(buffer.getvalue())
        return cls(buffer.getvalue())

    def __len__(self) -> int:
        return self._processor.get_piece_size()

    @cached_property
    def shapes(self) -> tuple[np.ndarray, np.ndarray]:
        """[pieces] how many characters of text each stands for, and whether a word begins with it."""
        pieces = [self._processor.id_to_piece(i) for i in range(len(SPECIAL_PIECES), len(self))]
        letters = [1, *[0] * (len(SPECIAL_PIECES) - 1), *(len(piece.lstrip("▁")) for piece in pieces)]
        starts = [False] * len(SPECIAL_PIECES) + [piece.startswith("▁") for piece in pieces]
        return np.array(letters), np.array(starts)

    def suggested_normalization(self) -> Normalization:
        """How text must look for these pieces, judged by the pieces themselves.

        With next to no capital Latin letters (0.01 % of the published pieces have one) the vocabulary was trained on
        lower-cased text. If a comma as a word of its own is then one of the commonest pieces, which have the lowest
        ids, punctuation was split off too (10 in the published WikiSum vocabulary; 886 in one of text left whole).
        """
        pieces = [self._processor.id_to_piece(i) for i in range(len(SPECIAL_PIECES), len(self))]
        capital = sum(any("A" <= character <= "Z" for character in piece) for piece in pieces)
        if capital > _CAPITAL_SHARE * len(pieces):
            return "none"
        comma = self._processor.piece_to_id("▁,")
        return "lower-split" if _UNKNOWN < comma < _COMMON_PIECES else "lower"

    def encode_all(self, texts: Sequence[str]) -> list[list[int]]:
        """``encode`` of each text, in one thread."""
        encoded = [*map(self._wordwise.ids, texts)]
        return [self._encode(text) if ids is None else ids for text, ids in zip(texts, encoded, strict=True)]

    def within(self, text: str, most: int) -> bool:
        """Whether ``text`` is known to have ``most`` ids or fewer, also cut between words; False: it must be seen."""
        return self._wordwise.within(text, most)

    @cached_property
    def _wordwise(self) -> Wordwise:
        return Wordwise(self._processor, self.model, self._encode)

    def _encode(self, text: str) -> list[int]:
        ids = self._processor.encode(text)
        if _MARKS.isdisjoint(ids):
            return ids
        return [part for piece in ids for part in self._escapes.get(piece, (piece,))]

    def decode(self, ids: Sequence[int]) -> str:
        """Text up to the first EOS; special ids leave no text, sentence marks become spaces, unknown pieces ``⁇``."""
        return " ".join(filter(None, (self._processor.decode(sentence).strip() for sentence in self._parts(ids))))

    def _parts(self, ids: Sequence[int]) -> list[list[int]]:
        """The ids of each sentence: up to the first EOS, split at ``<Q>``, special ids left out, empty ones too."""
        sentences: list[list[int]] = [[]]
        for piece in map(int, ids):
            if piece == _END:
                break
            if piece == _SENTENCE_END:
                sentences.append([])
            elif piece not in _MARKS:
                sentences[-1].append(piece)
        return [sentence for sentence in sentences if sentence]

    def token_spans(self, ids: Sequence[int]) -> list[tuple[int, int]]:
        """They end before ``<Q>`` and the first EOS."""
        ids = [*map(int, ids)]
        stop = ids.index(_END) if _END in ids else len(ids)
        marks = [-1, *(i for i in range(stop) if ids[i] == _SENTENCE_END), stop]
        return [(before + 1, after) for before, after in pairwise(marks) if after > before + 1]

    def spellings(self) -> list[bytes]:
        """What each id adds to a text, in UTF-8: pieces that begin a word with a space before it, or a byte alone.

        Special tokens add nothing, but for ``<Q>``, a space.
        """
        processor = self._processor
        texts = [processor.id_to_piece(i).replace("▁", " ").encode() for i in range(len(self))]
        for i in range(len(self)):
            if processor.is_byte(i):
                texts[i] = bytes([int(processor.id_to_piece(i)[1:-1], 16)])
            elif processor.is_control(i) or i in _MARKS:
                texts[i] = b" " if i == _SENTENCE_END else b""
        texts[_UNKNOWN] = processor.decode([_UNKNOWN]).encode()
        return texts

    def normalized(self, text: str) -> str:
        """``text`` as the pieces spell it: in NFKC form where they were trained so."""
        return self._processor.normalize(text).replace("▁", " ").strip()

    def _spelled(self, piece: str) -> tuple[int, ...]:
        """The ids of the single characters of a special piece; small letters where the vocabulary has no capitals."""
        exact, small = (self._processor.piece_to_id(list(text)) for text in (piece, piece.lower()))
        return tuple(first if first != _UNKNOWN else second for first, second in zip(exact, small, strict=True))


def sample_texts(examples: Iterable[tuple[str, list[str]]], size: int) -> list[str]:
    """Lines to train ``size`` pieces from, out of (id, texts) of any number of examples, in bounded memory.

    The examples whose ids have the smallest hashes are kept until they hold 1,000 characters for each piece: the same
    sample for the same corpus in any order, spread evenly over it.
    """
    budget, held = size * _SAMPLE_CHARACTERS, 0
    heap: list[tuple[int, str, str]] = []  # largest hash on top
    for name, texts in examples:
        text = "\n".join(texts)[:_EXAMPLE_CHARACTERS]
        order = -int.from_bytes(hashlib.blake2b(name.encode(errors="replace"), digest_size=8).digest(), "big")
        heapq.heappush(heap, (order, name, text))
        held += len(text)
        while held - len(heap[0][2]) >= budget:
            held -= len(heapq.heappop(heap)[2])
    return [line for _, _, text in sorted(heap, reverse=True) for line in text.splitlines() if line.strip()]
