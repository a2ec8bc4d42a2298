"""The special tokens of a model, which belong to its tokenizer and to its specification.

This module must not import torch, because preparing processes need it.
"""

from typing import Annotated, Any

from pydantic import BaseModel, Field

# The first pieces of the published WikiSum vocabulary and of those that raysum trains.
SPECIAL_PIECES = ("<unk>", "<s>", "</s>", "<T>", "<S>", "</S>", "<PAD>", "<P>", "<Q>")

Id = Annotated[int, Field(ge=0, le=100_000_000)]


class SpecialTokens(BaseModel, extra="forbid", frozen=True):
    """Ids without text. The defaults are those of the published WikiSum vocabulary and of vocabularies that raysum
    trains; their ``mask``, ``<s>``, only hides words in pre-training.

    A target is ``start``, ``target_prefix``, its pieces, ``end``. A separately encoded paragraph has ``prefix`` and
    ``suffix`` around it; joined paragraphs have ``prefix`` and ``joined_end``.
    """

    pad: Id = 6
    start: Id = 4
    end: Id = 5
    unknown: Id | None = 0
    mask: Id = 1
    title_end: tuple[Id, ...] = Field(
        (3,), min_length=1, description="after the title, which opens the first paragraph"
    )
    paragraph_end: tuple[Id, ...] = Field((7,), description="between paragraphs that are joined")
    sentence_end: Id | None = Field(8, description="between sentences of a target; None if no token marks them")
    prefix: tuple[Id, ...] = ()
    suffix: tuple[Id, ...] = ()
    joined_end: tuple[Id, ...] = Field((5,), description="after the last of the joined paragraphs")
    target_prefix: tuple[Id, ...] = ()

    @property
    def around(self) -> int:
        """The number of special tokens around a separately encoded paragraph."""
        return len(self.prefix) + len(self.suffix)


PUBLISHED = SpecialTokens()


def marks_of(spec: Any) -> SpecialTokens:
    """Return the special tokens of a specification; a system of another package may have none."""
    return getattr(spec, "marks", PUBLISHED)
