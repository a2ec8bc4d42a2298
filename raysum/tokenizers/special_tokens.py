"""The ids by which a model is told where texts begin and end: data of its tokenizer, carried by its specification.

No torch here, as preparing processes need them too.
"""

from typing import Annotated, Any

from pydantic import BaseModel, Field

# The first pieces of the published WikiSum vocabulary, and of those that raysum trains: no text holds them.
SPECIAL_PIECES = ("<unk>", "<s>", "</s>", "<T>", "<S>", "</S>", "<PAD>", "<P>", "<Q>")

Id = Annotated[int, Field(ge=0, le=100_000_000)]


class SpecialTokens(BaseModel, extra="forbid", frozen=True):
    """Ids of what stands for no text. By default those of the published WikiSum vocabulary, which vocabularies trained
    by raysum have too; there ``mask``, ``<s>``, stands for nothing else, and hides a word in pre-training.

    A target is ``start``, ``target_prefix``, its pieces, ``end``. A paragraph that an encoder reads by itself stands
    between ``prefix`` and ``suffix``; joined paragraphs between ``prefix`` and ``joined_end``.
    """

    pad: Id = 6
    start: Id = 4
    end: Id = 5
    unknown: Id | None = 0
    mask: Id = 1
    title_end: tuple[Id, ...] = Field(
        (3,), min_length=1, description="behind the title, which opens the first paragraph"
    )
    paragraph_end: tuple[Id, ...] = Field((7,), description="between paragraphs that are joined")
    sentence_end: Id | None = Field(8, description="between sentences of a target; None where nothing marks them")
    prefix: tuple[Id, ...] = ()
    suffix: tuple[Id, ...] = ()
    joined_end: tuple[Id, ...] = Field((5,), description="behind the last of the paragraphs that are joined")
    target_prefix: tuple[Id, ...] = ()

    @property
    def around(self) -> int:
        """How many stand around a paragraph that an encoder reads by itself."""
        return len(self.prefix) + len(self.suffix)


PUBLISHED = SpecialTokens()


def marks_of(spec: Any) -> SpecialTokens:
    """Those of a specification; a system of another package may have none."""
    return getattr(spec, "marks", PUBLISHED)
