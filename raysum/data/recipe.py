"""The recipe: every choice that turns a raw cluster into a dataset row, so that inference repeats exactly the same."""

from typing import Any, Literal

from pydantic import ConfigDict, Field, ValidationError

from raysum.config.base import Section
from raysum.errors import UserError
from raysum.text.cleaning import Normalization, Parting

RANKER = "ranker.safetensors"  # a learned ranker, beside the vocabulary that it reads

Ranker = Literal["tfidf", "lexrank", "none", "learned"]
Graph = Literal["none", "similarity", "discourse"]
LongParagraphs = Literal["split", "cut"]
Kind = Literal["summarization", "ranking", "extraction", "pretraining"]


class Choices(Section):
    """Those that a user makes; what is left open follows from the vocabulary."""

    kind: Kind = Field(
        "summarization",
        description="what rows are for: 'ranking' has all paragraphs, 'extraction' labelled sentences, 'pretraining' "
        "sentences without summaries",
    )
    max_paragraphs: int = Field(40, gt=0, le=32767, description="L: best-ranked paragraphs kept (HT is tested on 40)")
    paragraph_tokens: int = Field(
        100, ge=8, le=1_000_000, description="N: most tokens of a paragraph (100 in the published shards)"
    )
    parted_by: Parting = Field(
        "blank-lines", description="what parts paragraphs: blank lines in a document that has any, or all 'lines'"
    )
    long_paragraphs: LongParagraphs = Field(
        "split", description="one of more than N tokens is 'split' at ends of sentences, or 'cut' to N"
    )
    ranker: str = Field(
        "tfidf", description="order of the paragraphs: tfidf, lexrank, none (the documents'), or the run of a ranker"
    )
    clone_recall: float = Field(0.8, ge=0, le=1, description="bigram recall above which a paragraph is a clone (HT, 4)")
    min_words: int = Field(
        6, ge=1, le=1_000_000, description="words of a paragraph, at least (tensor2tensor's WikiSum filter)"
    )
    near_duplicates: float | None = Field(
        None, gt=0, le=1, description="Jaccard similarity of three-word shingles from which on a later paragraph goes"
    )
    boilerplate: float | None = Field(
        None, gt=0, le=1, description="share of the clusters from which on a paragraph that stands in them goes"
    )
    graph: Graph = Field(
        "none", description="edges between paragraphs: tf-idf 'similarity', or 'discourse' by entities and markers"
    )
    keep: list[str] = Field([], description="other fields of a raw cluster that are kept beside it, as JSON")


# Those that hold of paragraphs alone: sentences are all kept, in the documents' order.
OF_PARAGRAPHS = (
    "max_paragraphs", "parted_by", "long_paragraphs", "ranker", "clone_recall", "min_words", "near_duplicates",
    "boilerplate", "graph",
)  # fmt: skip


class Recipe(Choices):
    """Stored in the manifest of a dataset and in the run trained on it."""

    model_config = ConfigDict(strict=True)

    # What was done before there was a choice holds where a recipe does not say.
    parted_by: Parting = "lines"
    long_paragraphs: LongParagraphs = "cut"
    ranker: Ranker = "tfidf"
    normalize: Normalization = Field("none", description="what is done to text before the vocabulary sees it")
    vocabulary_sha256: str = Field(description="hash of the vocabulary file")
    boilerplate_marks: list[str] | None = Field(None, description="hashes of the paragraphs that are boilerplate")
    ranker_sha256: str | None = Field(None, description="hash of the learned ranker's file beside it")


def read_recipe(values: Any, where: str) -> Recipe:
    """``values`` as a Recipe. Raises UserError naming ``where`` and each wrong key."""
    try:
        return Recipe.model_validate(values)
    except ValidationError as error:
        problems = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors())
        raise UserError(f"the recipe of {where} is not valid: {problems}") from None
