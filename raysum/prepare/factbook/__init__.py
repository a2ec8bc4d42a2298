"""An invented encyclopedia made to order (``generate``, ``write``), and a reader of its facts that scores summaries."""

from raysum.prepare.factbook.corpus import generate, write
from raysum.prepare.factbook.reader import (
    CitationScore,
    FactScore,
    Statement,
    facts_f1,
    read_facts,
    score_citations,
    score_facts,
)
from raysum.prepare.factbook.scorer import KEPT

__all__ = [
    "KEPT",
    "CitationScore",
    "FactScore",
    "Statement",
    "facts_f1",
    "generate",
    "read_facts",
    "score_citations",
    "score_facts",
    "write",
]
