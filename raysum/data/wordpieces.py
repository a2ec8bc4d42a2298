"""The word pieces of a published BERT, from its tokenizer.json: to encode with; nothing is decoded from them."""

import hashlib
from collections.abc import Sequence

from raysum.data.clean import Normalization
from raysum.data.vocabulary import Vocabulary
from raysum.errors import UserError
from raysum.runtime.extras import needs

_MARKS = {"cls": "[CLS]", "sep": "[SEP]"}


class WordPieces(Vocabulary):
    """A tokenizer that has [CLS] and [SEP], and cleans text itself."""

    pieces = "WordPiece"

    def __init__(self, model: bytes, name: str = "tokenizer.json"):
        """``model`` is the content of a tokenizer.json. Raises UserError where it is none, or lacks the two marks."""
        needs("tokenizers", "a tokenizer.json")
        from tokenizers import Tokenizer

        try:
            self._tokenizer = Tokenizer.from_str(model.decode())
        except Exception as error:  # the library has no class of its own
            raise UserError(f"{name} is no tokenizer.json that reads: {' '.join(str(error).split())}") from None
        found = [self._tokenizer.token_to_id(mark) for mark in _MARKS.values()]
        self.marks = {name: place for name, place in zip(_MARKS, found, strict=True) if place is not None}
        if missing := [mark for name, mark in _MARKS.items() if name not in self.marks]:
            raise UserError(f"{name} has no {missing[0]}: it is not the tokenizer of a bert, which alone is read")
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._tokenizer.encode_special_tokens = True  # a literal [SEP] in a text is spelled by its characters
        self.model, self.sha256 = model, hashlib.sha256(model).hexdigest()

    def __len__(self) -> int:
        return self._tokenizer.get_vocab_size()

    def suggested_normalization(self) -> Normalization:
        return "none"

    def encode_all(self, texts: Sequence[str]) -> list[list[int]]:
        return [self._tokenizer.encode(text, add_special_tokens=False).ids for text in texts]

    def _summary(self, sentences: list[list[int]]) -> list[int]:
        """[CLS], the sentences with [SEP] behind each."""
        cls, sep = self.marks["cls"], self.marks["sep"]
        return [cls, *(piece for sentence in sentences for piece in (*sentence, sep))] if sentences else [cls, sep]
