"""Parts beside the text of a summary: a headline, its sentences by theme, and where the documents disagree."""

from collections.abc import Collection, Mapping
from typing import Any

from raysum.decode.summary import Summary, name_of
from raysum.errors import UserError
from raysum.extract.disagreements import disagreements
from raysum.extract.headline import headline
from raysum.extract.parts import PARTS, Part, chosen_parts
from raysum.extract.source_texts import SourceTexts
from raysum.extract.summarizer import passage_row
from raysum.extract.themes import themes
from raysum.prepare.cluster import read_cluster
from raysum.sources.record import Rejected


def outline(summary: Summary, cluster: Mapping[str, Any], parts: Collection[Part] = PARTS) -> Summary:
    """Return the ``summary`` of the raw ``cluster`` with the ``parts``, all with citations.

    They need no model, and add to summaries of all systems. Raises UserError if the cluster has no sentence, or if a
    part is unknown.

    >>> raysum.outline(summary, {"documents": ["text of a document", "text of another"]}).headline
    """
    try:
        parts = chosen_parts(parts if isinstance(parts, str) else [*parts])
    except ValueError as error:
        raise UserError(str(error)) from None
    try:
        checked = read_cluster(cluster)
        row = passage_row(checked)
    except Rejected as reason:
        raise UserError(f"cluster {name_of(cluster, 1)!r} has no outline: {reason}") from None
    source, found = SourceTexts.of(row, readable=True), dict[str, Any]()
    if "headline" in parts:
        found["headline"] = headline(summary, checked, source)
    if "themes" in parts:
        found["themes"] = themes(summary, source)
    if "disagreements" in parts:
        found["disagreements"] = disagreements(row, source)
    return summary.model_copy(update=found).located(cluster)
