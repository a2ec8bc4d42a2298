"""The recipe: all choices that turn a raw cluster into a dataset row, so that inference can repeat them exactly."""

from typing import Any, ClassVar, Literal

from pydantic import ConfigDict, Field, ValidationError

from raysum.config.base import Section
from raysum.errors import UserError
from raysum.text.cleaning import Normalization, ParagraphSeparator

RANKER = "ranker.safetensors"  # a learned ranker, beside its vocabulary

Ranker = Literal["tfidf", "lexrank", "none", "learned"]
Graph = Literal["none", "similarity", "discourse"]
LongParagraphs = Literal["split", "cut"]
Kind = Literal["summarization", "ranking", "extraction", "pretraining"]


class Choices(Section):
    """The choices of the user. The vocabulary decides the others."""

    ALIASES: ClassVar[dict[str, str]] = {"parted_by": "paragraph_separator"}

    kind: Kind = Field(
        "summarization",
        description="what rows are for: 'ranking' has all paragraphs, 'extraction' labelled sentences, 'pretraining' "
        "sentences without summaries",
    )
    max_paragraphs: int = Field(40, gt=0, le=32767, description="L: best-ranked paragraphs kept (HT is tested on 40)")
    paragraph_tokens: int = Field(
        100, ge=8, le=1_000_000, description="N: most tokens of a paragraph (100 in the published shards)"
    )
    paragraph_separator: ParagraphSeparator = Field(
        "blank-lines", description="separator of paragraphs: blank lines, if a document has any, or every line: 'lines'"
    )
    long_paragraphs: LongParagraphs = Field(
        "split", description="'split' a paragraph of more than N tokens at the ends of sentences, or 'cut' it to N"
    )
    ranker: str = Field(
        "tfidf", description="order of the paragraphs: tfidf, lexrank, none (the documents'), or the run of a ranker"
    )
    clone_recall: float = Field(0.8, ge=0, le=1, description="bigram recall above which a paragraph is a clone (HT, 4)")
    min_words: int = Field(
        6, ge=1, le=1_000_000, description="minimum words of a paragraph (tensor2tensor's WikiSum filter)"
    )
    near_duplicates: float | None = Field(
        None, gt=0, le=1, description="minimum Jaccard similarity of three-word shingles that drops a later paragraph"
    )
    boilerplate: float | None = Field(
        None, gt=0, le=1, description="minimum share of the clusters with the same paragraph that drops the paragraph"
    )
    graph: Graph = Field(
        "none", description="edges between paragraphs: tf-idf 'similarity', or 'discourse' by entities and markers"
    )
    keep: list[str] = Field([], description="other fields of a raw cluster to store with its row, as JSON")


# Choices for paragraphs only: all sentences are kept, in document order.
OF_PARAGRAPHS = (
    "max_paragraphs", "paragraph_separator", "long_paragraphs", "ranker", "clone_recall", "min_words",
    "near_duplicates", "boilerplate", "graph",
)  # fmt: skip


class Recipe(Choices):
    """All choices, stored in the manifest of a dataset and in each run trained on it."""

    model_config = ConfigDict(strict=True)

    # Defaults for old recipes, which lack these choices.
    paragraph_separator: ParagraphSeparator = "lines"
    long_paragraphs: LongParagraphs = "cut"
    ranker: Ranker = "tfidf"
    normalize: Normalization = Field("none", description="normalization of texts before encoding")
    vocabulary_sha256: str = Field(description="hash of the vocabulary file")
    boilerplate_marks: list[str] | None = Field(None, description="hashes of the paragraphs that are boilerplate")
    ranker_sha256: str | None = Field(None, description="hash of the learned ranker's file beside it")


def read_recipe(values: Any, where: str) -> Recipe:
    """Return ``values`` as a Recipe. Raises UserError with ``where`` and all wrong keys."""
    try:
        return Recipe.model_validate(Recipe.with_current_names(values))
    except ValidationError as error:
        problems = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors())
        raise UserError(f"the recipe of {where} is not valid: {problems}") from None
