"""SentencePiece vocabularies: train, encode so that user text never gives special ids, and decode."""

import re
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from itertools import chain, pairwise
from pathlib import Path

import sentencepiece

from raysum.errors import UserError
from raysum.text.cleaning import Normalization
from raysum.tokenizers.sentence_piece_training import TrainingError, train_model
from raysum.tokenizers.special_tokens import PUBLISHED, SPECIAL_PIECES
from raysum.tokenizers.tokenizer import Tokenizer

_UNKNOWN, _END, _SENTENCE_END = 0, PUBLISHED.end, PUBLISHED.sentence_end
_MARKS = frozenset(range(1, len(SPECIAL_PIECES)))  # ids without text
_CONTROL = 3  # SentencePiece recognizes the special pieces from this id by name only
_CAPITAL_SHARE, _COMMON_PIECES = 0.01, 100  # of the pieces; ids
# Pieces never cross the edge between a digit and a sign: "1386." and "1386" then share the pieces of the number, which
# a model needs to copy it.
_EDGE = re.compile(r"(?<=\d)(?=[^\w\s])|(?<=[^\w\s])(?=\d)")
_EDGE_MARK = "\u241f"
_TRAINING = {
    "pretokenization_delimiter": _EDGE_MARK,
    "hard_vocab_limit": False,
    "model_type": "bpe",  # unigram omits pieces that one character always follows, as in formulaic text
    "normalization_rule_name": "nmt_nfkc",
    "byte_fallback": False,
    "character_coverage": 0.9995,  # the trainer's default: rare characters become <unk>
    "pad_id": -1,
    "control_symbols": SPECIAL_PIECES[_CONTROL:],  # control: no text ever encodes to them
    "minloglevel": 2,
}
_CAUSES = {  # by a part of the trainer's message
    "sentences_.empty()": "the training split has no text; --split train adds any file to it",
    "required_chars_": "the text has more different characters than that: increase the number of pieces",
}

_SPACE = "▁"
_NORMALIZATIONS = ("nmt_nfkc", "nfkc", "nmt_nfkc_cf", "nfkc_cf", "identity")
_MAX_WORDS, _MAX_WORD_LENGTH = 200_000, 64  # of the cache, which takes about 50 MB
# With a unigram model, the best pieces of a word may depend on the rounded score of the text before it, unless the
# second-best pieces are worse by this margin: the rounding errors of texts of this length are far smaller.
_MARGIN, _MAX_TEXT_LENGTH = 0.1, 8192


class Vocabulary(Tokenizer):
    """The pieces of a SentencePiece model that begins with ``SPECIAL_PIECES``."""

    pieces = "SentencePiece"
    marks = PUBLISHED

    def __init__(self, model: bytes, name: str = "vocabulary"):
        """``model`` is the content of a model file. Raises UserError if it is none, or lacks the special pieces."""
        try:
            if not model:  # SentencePiece accepts it, and prints errors later
                raise RuntimeError
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
        """Return a byte-pair vocabulary of at most ``size`` pieces, with the special ones, trained on lines of text.

        It has fewer pieces (see ``len``) if ``texts`` do not contain more. It is also written to the file ``out``.
        Raises UserError if there is no text, or if there are more different characters than pieces.
        """
        try:
            model = train_model((_EDGE.sub(_EDGE_MARK, text) for text in texts), {**_TRAINING, "vocab_size": size})
        except TrainingError as error:
            message = str(error)
            cause = next((cause for part, cause in _CAUSES.items() if part in message), message.splitlines()[0])
            raise UserError(f"cannot train a vocabulary of {size} pieces: {cause}") from None
        if out is not None:
            Path(out).write_bytes(model)
        return cls(model)

    def __len__(self) -> int:
        return self._processor.get_piece_size()

    def suggested_normalization(self) -> Normalization:
        """Return the normalization that these pieces need, judged by the pieces themselves.

        If almost no piece has a capital Latin letter (0.01 % of the published pieces), the training text was in lower
        case. If a separate comma is then one of the most frequent pieces, which have the lowest ids, punctuation was
        split off, too (the comma has id 10 in the published WikiSum vocabulary, 886 in one of unchanged text).
        """
        pieces = [self._processor.id_to_piece(i) for i in range(len(SPECIAL_PIECES), len(self))]
        capital = sum(any("A" <= character <= "Z" for character in piece) for piece in pieces)
        if capital > _CAPITAL_SHARE * len(pieces):
            return "none"
        comma = self._processor.piece_to_id("▁,")
        return "lower-split" if _UNKNOWN < comma < _COMMON_PIECES else "lower"

    def encode_all(self, texts: Sequence[str]) -> list[list[int]]:
        encoded = [*map(self._word_cache.ids, texts)]
        return [self._encode(text) if ids is None else ids for text, ids in zip(texts, encoded, strict=True)]

    def within(self, text: str, most: int) -> bool:
        return self._word_cache.within(text, most)

    @cached_property
    def _word_cache(self) -> "WordCache":
        return WordCache(self._processor, self.model, self._encode)

    def _encode(self, text: str) -> list[int]:
        ids = self._processor.encode(text)
        if _MARKS.isdisjoint(ids):
            return ids
        return [part for piece in ids for part in self._escapes.get(piece, (piece,))]

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text up to the first EOS. Sentence marks become spaces and unknown pieces ``⁇``."""
        ids = [*map(int, ids)]
        parts = ([id for id in ids[start:end] if id not in _MARKS] for start, end in self.token_spans(ids))
        return " ".join(filter(None, (self._processor.decode(part).strip() for part in parts if part)))

    def token_spans(self, ids: Sequence[int]) -> list[tuple[int, int]]:
        ids = [*map(int, ids)]
        stop = ids.index(_END) if _END in ids else len(ids)
        marks = [-1, *(i for i in range(stop) if ids[i] == _SENTENCE_END), stop]
        return [(before + 1, after) for before, after in pairwise(marks) if after > before + 1]

    def spellings(self) -> list[bytes]:
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
        return self._processor.normalize(text).replace("▁", " ").strip()

    def _spelled(self, piece: str) -> tuple[int, ...]:
        """Return the ids of the characters of a special piece, in lower case if the vocabulary has no capitals."""
        exact, small = (self._processor.piece_to_id(list(text)) for text in (piece, piece.lower()))
        return tuple(first if first != _UNKNOWN else second for first, second in zip(exact, small, strict=True))


class WordCache(dict[str, list[int] | None]):
    """The ids of words, encoded once and cached; None if they depend on the neighbouring words.

    Pieces never cross a space, and the common normalizations have no rule that does, so the ids of a text are those of
    its words. The cache takes a fifth of the library's time for whole texts.
    """

    def __init__(
        self, processor: sentencepiece.SentencePieceProcessor, model: bytes, encode: Callable[[str], list[int]]
    ):
        from sentencepiece import sentencepiece_model_pb2

        super().__init__()
        self._processor, self._encode = processor, encode
        proto = sentencepiece_model_pb2.ModelProto.FromString(model)  # type: ignore[attr-defined]
        rules, trained = proto.normalizer_spec, proto.trainer_spec
        spaced = rules.add_dummy_prefix and rules.remove_extra_whitespaces and rules.escape_whitespaces
        plain = spaced and rules.name in _NORMALIZATIONS and not trained.treat_whitespace_as_suffix
        pieces = [piece.piece for piece in proto.pieces]
        self._scored = trained.model_type == trained.UNIGRAM
        self._separable = plain and _SPACE in pieces and not any(_SPACE in piece[1:] for piece in pieces)

    def ids(self, text: str) -> list[int] | None:
        """Return the ids of a text; None if it must be encoded as a whole."""
        if not self._separable or (self._scored and len(text) > _MAX_TEXT_LENGTH):
            return None
        if len(self) > _MAX_WORDS:
            self.clear()
        try:
            return [*chain.from_iterable(map(self.__getitem__, text.split(" ")))]  # type: ignore[arg-type]
        except TypeError:  # None is no list
            return None

    def within(self, text: str, most: int) -> bool:
        """Return whether ``text`` is known to have at most ``most`` ids however it is cut between words, and each word
        at least one; False if that is unknown."""
        readable = text.isprintable()  # spaces are its only white space
        if not self._separable or not readable or (self._scored and len(text) > _MAX_TEXT_LENGTH):
            return False
        try:
            sizes = [*map(len, map(self.__getitem__, text.split()))]  # type: ignore[arg-type]
        except TypeError:
            return False
        return 0 not in sizes and sum(sizes) <= most

    def __missing__(self, word: str) -> list[int] | None:
        if len(word) > _MAX_WORD_LENGTH:
            return None if self._scored else self._encode(word)
        ids = self[word] = None if self._scored and self._is_close(word) else self._encode(word)
        return ids

    def _is_close(self, word: str) -> bool:
        best = self._processor.nbest_encode(word, nbest_size=2, return_type="proto").nbests
        return len(best) > 1 and best[0].score - best[1].score < _MARGIN
