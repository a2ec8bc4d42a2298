"""Encoding word by word: where the pieces of a text are those of its words, each word is encoded once, and remembered.

That is so because no piece reaches over a space, and no rule of the common normalizations does. It takes a fifth of the
library's time for whole texts.
"""

from collections.abc import Callable
from itertools import chain
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sentencepiece import SentencePieceProcessor

_SPACE = "▁"
_NORMALIZATIONS = ("nmt_nfkc", "nfkc", "nmt_nfkc_cf", "nfkc_cf", "identity")
_MOST, _LONGEST = 200_000, 64  # words that are remembered, in some 50 MB; characters of such a word
# The best pieces of a word by a unigram model may depend on the rounding of the sum up to it, unless the next best are
# so much worse; texts of so many characters have sums that are rounded by far less.
_MARGIN, _LONGEST_TEXT = 0.1, 8192


class Wordwise(dict[str, list[int] | None]):
    """The ids of words, found when they are asked for first; None where they depend on what is around them."""

    def __init__(self, processor: "SentencePieceProcessor", model: bytes, encode: Callable[[str], list[int]]):
        from sentencepiece import sentencepiece_model_pb2

        super().__init__()
        self._processor, self._encode = processor, encode
        read = sentencepiece_model_pb2.ModelProto.FromString(model)  # type: ignore[attr-defined]
        rules, trained = read.normalizer_spec, read.trainer_spec
        spaced = rules.add_dummy_prefix and rules.remove_extra_whitespaces and rules.escape_whitespaces
        plain = spaced and rules.name in _NORMALIZATIONS and not trained.treat_whitespace_as_suffix
        pieces = [piece.piece for piece in read.pieces]
        self._scored = trained.model_type == trained.UNIGRAM
        self._separable = plain and _SPACE in pieces and not any(_SPACE in piece[1:] for piece in pieces)

    def ids(self, text: str) -> list[int] | None:
        """Those of a text; None where it has to be encoded as a whole."""
        if not self._separable or (self._scored and len(text) > _LONGEST_TEXT):
            return None
        if len(self) > _MOST:
            self.clear()
        try:
            return [*chain.from_iterable(map(self.__getitem__, text.split(" ")))]  # type: ignore[arg-type]
        except TypeError:  # None is no list
            return None

    def within(self, text: str, most: int) -> bool:
        """Whether ``text`` is known to have ``most`` ids or fewer, however it is cut between words, and each word some.

        False where that is not known.
        """
        readable = text.isprintable()  # has no white space but spaces
        if not self._separable or not readable or (self._scored and len(text) > _LONGEST_TEXT):
            return False
        try:
            sizes = [*map(len, map(self.__getitem__, text.split()))]  # type: ignore[arg-type]
        except TypeError:
            return False
        return 0 not in sizes and sum(sizes) <= most

    def __missing__(self, word: str) -> list[int] | None:
        if len(word) > _LONGEST:
            return None if self._scored else self._encode(word)
        ids = self[word] = None if self._scored and self._is_close(word) else self._encode(word)
        return ids

    def _is_close(self, word: str) -> bool:
        found = self._processor.nbest_encode(word, nbest_size=2, return_type="proto").nbests
        return len(found) > 1 and found[0].score - found[1].score < _MARGIN
