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

_READ = 64  # characters for each token: what is longer is not encoded to be counted
_UNHEARD_OF = "\U0010fffe"  # a character that no vocabulary has
_BYTE = re.compile(r"<0x([0-9A-F]{2})>")
_NEWLINE, _AROUND_NEWLINE = "<n>", re.compile(" ?<n> ?")  # how PEGASUS writes the end of a line
# Byte-level pieces are written in characters that can be seen: a byte that is none by itself has one from 256 on.
_SEEN = [*range(33, 127), *range(161, 173), *range(174, 256)]
_HIDDEN = [byte for byte in range(256) if byte not in _SEEN]
_BYTES = {chr(byte): byte for byte in _SEEN} | {chr(256 + place): byte for place, byte in enumerate(_HIDDEN)}


class FastTokenizer(Tokenizer):
    """A published tokenizer, with its marks as ``raysum.tokenizers.published`` found them; or a bert's, that tells
    its own.

    Where nothing marks sentences, texts are encoded whole, as the tokenizer would by itself.
    """

    def __init__(self, model: bytes, name: str = "tokenizer.json"):
        """``model`` is the content of a file of a dataset or run, or of a bert's tokenizer.json. Raises UserError where
        it is neither."""
        super().__init__(model)
        told = _parsed(model, name)
        self._tokenizer = opened(told.get("tokenizer", told), name)
        self.pieces = type(self._tokenizer.model).__name__
        self.marks = bert_marks(self._tokenizer, name) if "marks" not in told else _stored_marks(told["marks"], name)
        self._size = told.get("vocabulary") or self._tokenizer.get_vocab_size()
        self._decoder = json.dumps(told.get("tokenizer", told).get("decoder"))
        self._is_byte_level = "ByteLevel" in self._decoder
        added = self._tokenizer.get_added_tokens_decoder()
        self._special = {id: token.content for id, token in added.items() if token.special}
        hidden = {id: content for id, content in self._special.items() if id != self.marks.unknown}
        self._escapes = {id: self._characters(content) for id, content in hidden.items()}

    def __len__(self) -> int:
        return self._size

    def suggested_normalization(self) -> Normalization:
        """None: the tokenizer does what its model needs."""
        return "none"

    def encode_all(self, texts: Sequence[str]) -> list[list[int]]:
        return [[id for id, _ in self._encode(text)] for text in texts]

    def encode_sentences(self, texts: Sequence[str], how: Normalization) -> list[list[list[int]]]:
        if self.marks.sentence_end is not None:
            return super().encode_sentences(texts, how)
        return [self._parted(text, how) for text in texts]

    def counts(self, texts: Sequence[str]) -> list[int]:
        """A byte-level piece that begins a word is another behind a space."""
        counts = super().counts(texts)
        if not self._is_byte_level:
            return counts
        return [*map(max, counts, super().counts([f" {text}" for text in texts]))]

    def within(self, text: str, most: int) -> bool:
        return len(text) <= _READ * most and self.counts([text])[0] <= most

    def decode(self, ids: Sequence[int]) -> str:
        start, end = self._said(ids)
        text = self._tokenizer.decode([*map(int, ids[start:end])], skip_special_tokens=True)
        return _AROUND_NEWLINE.sub(" ", text).strip() if self._has_newline else text.strip()

    def token_spans(self, ids: Sequence[int]) -> list[tuple[int, int]]:
        """By the sentences of the text: a token is of the one whose first character, or its first byte, it writes."""
        first, last = self._said(ids)
        decoder, text, begun = codecs.getincrementaldecoder("utf-8")("replace"), "", []
        for id in ids[first:last]:
            text += decoder.decode(self._spelled[id])
            begun.append(len(text) + bool(decoder.getstate()[0]))
        starts = [int(np.searchsorted(begun, start, "right")) for start, _ in sentence_spans(text)]
        return [(first + a, first + b) for a, b in pairwise([*starts, last - first]) if a < b]

    def spellings(self) -> list[bytes]:
        return [*self._spelled]

    def normalized(self, text: str) -> str:
        normalizer = self._tokenizer.normalizer
        return (normalizer.normalize_str(text) if normalizer else text).replace("▁", " ").strip()

    @cached_property
    def shapes(self) -> tuple[np.ndarray, np.ndarray]:
        """Of a piece that is a part of a character, the part with the character's first byte counts."""
        letters = [sum(byte & 0xC0 != 0x80 for byte in spelling.lstrip(b" ")) for spelling in self._spelled]
        starts = [spelling.startswith(b" ") for spelling in self._spelled]
        if self.marks.unknown is not None:
            letters[self.marks.unknown] = 1
        return np.array(letters), np.array(starts)

    def _encode(self, text: str) -> list[tuple[int, int]]:
        """Ids, and where in ``text`` what each stands for ends."""
        found = self._tokenizer.encode(text, add_special_tokens=False)
        ends = [end for _, end in found.offsets]
        if self._escapes.keys().isdisjoint(found.ids):
            return [*zip(found.ids, ends, strict=True)]
        parts = zip(found.ids, ends, strict=True)
        return [(part, end) for id, end in parts for part in self._escapes.get(id, (id,))]

    def _parted(self, text: str, how: Normalization) -> list[list[int]]:
        """The ids of a paragraph, cut where its sentences begin."""
        normal, starts, last = "", [], 0
        for start, end in quick_sentence_spans(text):
            normal += text[last:start]
            starts.append(len(normal))
            normal, last = normal + normalize(text[start:end], how), end
        found = self._encode(normal)  # of a text that the tokenizer leaves out as a whole nothing
        ids, ends = zip(*found, strict=True) if found else ((), ())
        cuts = np.searchsorted(np.maximum.accumulate([*ends, len(normal)]), starts[1:], "right").tolist()
        return [[*ids[a:b]] for a, b in pairwise([0, *cuts, len(ids)])] if starts else []

    def _said(self, ids: Sequence[int]) -> tuple[int, int]:
        """Where the text of a target begins and ends, which has its start or not: start and end may be the same."""
        first = int(len(ids) > 0 and ids[0] == self.marks.start)
        return first, next((at for at in range(first, len(ids)) if ids[at] == self.marks.end), len(ids))

    def _characters(self, content: str) -> tuple[int, ...]:
        """The ids of the single characters of a special token."""
        found = (self._tokenizer.token_to_id(character) for character in content)
        return tuple(id for id in (self.marks.unknown if id is None else id for id in found) if id is not None)

    @cached_property
    def _has_newline(self) -> bool:
        return self._tokenizer.token_to_id(_NEWLINE) is not None

    @cached_property
    def _spelled(self) -> list[bytes]:
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


def opened(told: dict[str, Any], name: str) -> Any:
    """A tokenizer of the library, with which a literal special token in a text is spelled by its characters, and no
    text is cut. Raises UserError where ``told`` is no tokenizer.json."""
    import tokenizers

    try:
        tokenizer = tokenizers.Tokenizer.from_str(json.dumps(told))
        tokenizer.encode(_UNHEARD_OF)
    except Exception as error:  # the library has no class of its own
        raise UserError(f"{name} is no tokenizer.json that reads: {' '.join(str(error).split())}") from None
    tokenizer.no_truncation()
    tokenizer.no_padding()
    tokenizer.encode_special_tokens = True
    return tokenizer


def bert_marks(tokenizer: Any, name: str) -> SpecialTokens:
    """Those that a bert's tokenizer has by their names. Raises UserError where it is another's."""
    if type(tokenizer.model).__name__ != "WordPiece":
        raise UserError(f"{name} alone does not tell its special ids; name its folder, where config.json does")
    known = {mark: tokenizer.token_to_id(mark) for mark in ("[CLS]", "[SEP]", "[PAD]", "[UNK]", "[MASK]")}
    if missing := [mark for mark in ("[CLS]", "[SEP]") if known[mark] is None]:
        raise UserError(f"{name} has no {missing[0]}: it is not the tokenizer of a bert")
    cls, sep, *others = known.values()
    pad, unknown, mask = (cls if id is None else id for id in others)
    return SpecialTokens(
        pad=pad,
        start=cls,
        end=sep,
        unknown=unknown,
        mask=mask,
        title_end=(sep,),
        paragraph_end=(sep,),
        sentence_end=sep,
        prefix=(cls,),
        suffix=(sep,),
        joined_end=(sep,),
    )


def _stored_marks(told: dict[str, Any], name: str) -> SpecialTokens:
    try:
        return SpecialTokens.model_validate(told)
    except ValueError:
        raise UserError(f"{name} does not tell the marks of its tokenizer; put back a copy") from None


def _parsed(content: bytes, name: str) -> dict[str, Any]:
    try:
        told = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{name} is no tokenizer.json that reads: {error}") from None
    return told if isinstance(told, dict) else {}
