"""Where the text of a document in a raw cluster comes from, as its reader knows it."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from raysum.sources.documents.file_positions import Piece

ORIGIN = "origin"  # the field of a document


class Origin(NamedTuple):
    """The pages, headings or speakers of a document as (first character, name), and its characters in its file.

    ``is_extracted``: the text is not the file as it is. ``pieces`` are the positions in the file, as far as they are
    known. Only readers of documents make it: a row of a user may have a field of the same name, with any value.
    """

    places: Sequence[tuple[int, str]] = ()
    pieces: Sequence[Piece] = ()
    is_extracted: bool = False

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> "Origin":
        found = document.get(ORIGIN)
        return found if isinstance(found, cls) else cls()
