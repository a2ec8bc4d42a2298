"""Tokenizers of the ``tokenizers`` library: byte-level pieces, those with a sign for spaces, and BERT's word pieces."""

import codecs
import json
import re
from collections.abc import Sequence
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np

from raysum.errors import UserError
from raysum.text.cleaning import Normalization, normalize
from raysum.text.sentences import quick_sentence_spans, sentence_spans
from raysum.tokenizers.special_tokens import SpecialTokens
from raysum.tokenizers.tokenizer import Tokenizer

_CHARACTERS_PER_TOKEN = 64  # longer texts are not encoded to count their tokens
_UNKNOWN_CHARACTER = "\U0010fffe"  # in no vocabulary
_BYTE = re.compile(r"<0x([0-9A-F]{2})>")
_NEWLINE, _AROUND_NEWLINE = "<n>", re.compile(" ?<n> ?")  # the line break of PEGASUS
# Byte-level pieces consist of visible characters: the invisible bytes are written as the characters from 256.
_VISIBLE = [*range(33, 127), *range(161, 173), *range(174, 256)]
_INVISIBLE = [byte for byte in range(256) if byte not in _VISIBLE]
_BYTES = {chr(byte): byte for byte in _VISIBLE} | {chr(256 + index): byte for index, byte in enumerate(_INVISIBLE)}


class FastTokenizer(Tokenizer):
    """A published tokenizer with the special tokens of ``raysum.tokenizers.published``, or the tokenizer of a BERT.

    If no token marks sentences, texts are encoded whole, as the tokenizer itself would.
    """

    def __init__(self, model: bytes, name: str = "tokenizer.json"):
        """``model`` is the content of a file of a dataset or run, or of the tokenizer.json of a BERT.

        Raises UserError if it is neither.
        """
        super().__init__(model)
        try:
            stored = json.loads(model)
            tokenizer = stored.get("tokenizer", stored)
            marks = SpecialTokens.model_validate(stored["marks"]) if "marks" in stored else None
        except (ValueError, RecursionError, AttributeError) as error:
            raise _invalid(name, error) from None
        self._tokenizer = create_tokenizer(tokenizer, name)
        self.pieces = type(self._tokenizer.model).__name__
        self.marks = marks or _bert_marks(self._tokenizer, name)
        self._size = stored.get("vocabulary") or self._tokenizer.get_vocab_size()
        self._decoder = json.dumps(tokenizer.get("decoder"))
        self._is_byte_level = "ByteLevel" in self._decoder
        self._has_newline = self._tokenizer.token_to_id(_NEWLINE) is not None
        added = self._tokenizer.get_added_tokens_decoder()
        self._special = {id: token.content for id, token in added.items() if token.special}
        hidden = {id: content for id, content in self._special.items() if id != self.marks.unknown}
        self._escapes = {id: self._characters(content) for id, content in hidden.items()}

    def __len__(self) -> int:
        return self._size

    def suggested_normalization(self) -> Normalization:
        return "none"  # the tokenizer normalizes as its model needs

    def encode_all(self, texts: Sequence[str]) -> list[list[int]]:
        return [[id for id, _ in self._encode(text)] for text in texts]

    def encode_sentences(self, texts: Sequence[str], how: Normalization) -> list[list[list[int]]]:
        if self.marks.sentence_end is not None:
            return super().encode_sentences(texts, how)
        return [self._encode_paragraph(text, how) for text in texts]

    def counts(self, texts: Sequence[str]) -> list[int]:
        counts = super().counts(texts)
        if not self._is_byte_level:
            return counts
        # A space before a word changes its byte-level pieces.
        return [*map(max, counts, super().counts([f" {text}" for text in texts]))]

    def within(self, text: str, most: int) -> bool:
        return len(text) <= _CHARACTERS_PER_TOKEN * most and self.counts([text])[0] <= most

    def decode(self, ids: Sequence[int]) -> str:
        start, end = self._text_span(ids)
        text = self._tokenizer.decode([*map(int, ids[start:end])], skip_special_tokens=True)
        return _AROUND_NEWLINE.sub(" ", text).strip() if self._has_newline else text.strip()

    def token_spans(self, ids: Sequence[int]) -> list[tuple[int, int]]:
        """Return the spans of the sentences of the text; the token with the first byte of a sentence begins it."""
        first, last = self._text_span(ids)
        decoder, text, ends = codecs.getincrementaldecoder("utf-8")("replace"), "", []
        for id in ids[first:last]:
            text += decoder.decode(self._spellings[id])
            ends.append(len(text) + bool(decoder.getstate()[0]))
        starts = [int(np.searchsorted(ends, start, "right")) for start, _ in sentence_spans(text)]
        return [(first + a, first + b) for a, b in pairwise([*starts, last - first]) if a < b]

    def spellings(self) -> list[bytes]:
        return [*self._spellings]

    def normalized(self, text: str) -> str:
        normalizer = self._tokenizer.normalizer
        return (normalizer.normalize_str(text) if normalizer else text).replace("▁", " ").strip()

    def _encode(self, text: str) -> list[tuple[int, int]]:
        """Return ids, each with the end of its piece in ``text``."""
        encoding = self._tokenizer.encode(text, add_special_tokens=False)
        ends = [end for _, end in encoding.offsets]
        parts = zip(encoding.ids, ends, strict=True)
        if self._escapes.keys().isdisjoint(encoding.ids):
            return [*parts]
        return [(part, end) for id, end in parts for part in self._escapes.get(id, (id,))]

    def _encode_paragraph(self, text: str, how: Normalization) -> list[list[int]]:
        """Return the ids of a paragraph, split at the beginnings of its sentences."""
        normal, starts, last = "", [], 0
        for start, end in quick_sentence_spans(text):
            normal += text[last:start]
            starts.append(len(normal))
            normal, last = normal + normalize(text[start:end], how), end
        encoded = self._encode(normal)
        ids, ends = zip(*encoded, strict=True) if encoded else ((), ())
        cuts = np.searchsorted(np.maximum.accumulate([*ends, len(normal)]), starts[1:], "right").tolist()
        return [[*ids[a:b]] for a, b in pairwise([0, *cuts, len(ids)])] if starts else []

    def _text_span(self, ids: Sequence[int]) -> tuple[int, int]:
        """Return where the text of a target begins and ends; the target may lack the start."""
        first = int(len(ids) > 0 and ids[0] == self.marks.start)
        return first, next((at for at in range(first, len(ids)) if ids[at] == self.marks.end), len(ids))

    def _characters(self, content: str) -> tuple[int, ...]:
        """Return the ids of the characters of a special token."""
        ids = (self._tokenizer.token_to_id(character) for character in content)
        return tuple(id for id in (self.marks.unknown if id is None else id for id in ids) if id is not None)

    @cached_property
    def _spellings(self) -> list[bytes]:
        return [self._spelling(id) for id in range(len(self))]

    def _spelling(self, id: int) -> bytes:
        token = self._tokenizer.id_to_token(id)
        if token is None or token in self._special.values():
            return b""
        if self._is_byte_level:
            known = all(character in _BYTES for character in token)
            return bytes(_BYTES[character] for character in token) if known else token.encode()
        byte = _BYTE.fullmatch(token) if "ByteFallback" in self._decoder else None
        return bytes([int(byte[1], 16)]) if byte else (" " if token == _NEWLINE else token.replace("▁", " ")).encode()


def create_tokenizer(values: dict[str, Any], name: str) -> Any:
    """Return the library's tokenizer of a tokenizer.json, which never truncates and spells special tokens in texts by
    their characters. Raises UserError if ``values`` are not valid."""
    import tokenizers

    try:
        tokenizer = tokenizers.Tokenizer.from_str(json.dumps(values))
        tokenizer.encode(_UNKNOWN_CHARACTER)
    except Exception as error:  # the library has no class of its own
        raise _invalid(name, error) from None
    tokenizer.no_truncation()
    tokenizer.no_padding()
    tokenizer.encode_special_tokens = True
    return tokenizer


def _bert_marks(tokenizer: Any, name: str) -> SpecialTokens:
    """Return the special tokens of a BERT, found by their names. Raises UserError for any other tokenizer."""
    if type(tokenizer.model).__name__ != "WordPiece":
        raise UserError(f"{name} does not define its special ids: give its folder, with config.json")
    known = {mark: tokenizer.token_to_id(mark) for mark in ("[CLS]", "[SEP]", "[PAD]", "[UNK]", "[MASK]")}
    if missing := [mark for mark in ("[CLS]", "[SEP]") if known[mark] is None]:
        raise UserError(f"{name} has no {missing[0]}: it is not the tokenizer of a BERT")
    cls, sep, *others = known.values()
    pad, unknown, mask = (cls if id is None else id for id in others)
    around = {"title_end": (sep,), "paragraph_end": (sep,), "prefix": (cls,), "suffix": (sep,), "joined_end": (sep,)}
    return SpecialTokens(pad=pad, start=cls, end=sep, unknown=unknown, mask=mask, sentence_end=sep, **around)


def _invalid(name: str, error: Exception) -> UserError:
    return UserError(f"{name} is not a valid tokenizer.json: {' '.join(str(error).split())}; copy it again")
