"""What a dataset tells of its clusters beside their rows: languages, and what of the references is still there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from raysum.data.clean import held_bigrams
from raysum.metrics.languages import LANGUAGE, language
from raysum.metrics.tfidf import words

if TYPE_CHECKING:
    from raysum.data.recipe import Recipe
    from raysum.data.rows import Row
    from raysum.data.vocabulary import Vocabulary
    from raysum.prepare.cluster import Cluster

_DOCUMENTS, _CHARACTERS = 4, 300  # of a cluster that are looked at; of each, out of its middle


def language_counts(cluster: Cluster) -> Counter[str]:
    """How many of a few documents, evenly over the cluster, are in which language."""
    texts = [text for _, text in cluster.documents[:: -(-len(cluster.documents) // _DOCUMENTS)]]
    starts = (max(len(text) - _CHARACTERS, 0) // 2 for text in texts)
    return Counter(
        LANGUAGE + language(text[at : at + _CHARACTERS]) for text, at in zip(texts, starts, strict=True) if text.strip()
    )


def bigram_counts(
    row: Row, tokens: Sequence[int], everything: Sequence[Sequence[str]], recipe: Recipe, vocabulary: Vocabulary
) -> Counter[str]:
    """How many different bigrams of the reference stand in ``everything``, the words of all paragraphs, and how many
    of these in what the row holds of them; ``tokens`` [M] are those that its paragraphs had before they were cut."""
    wanted = {*zip(reference := words(row["summary"]), reference[1:], strict=False)}
    found = held_bigrams(wanted, everything) if wanted else set()
    kept = held_bigrams(found, _held(row, tokens, recipe, vocabulary))
    return Counter(reference_bigrams=len(found), reference_bigrams_kept=len(kept))


def _held(row: Row, tokens: Sequence[int], recipe: Recipe, vocabulary: Vocabulary) -> Iterator[list[str]]:
    """The words of each paragraph of a row, of one that was cut those of the ids that are left."""
    starts = [row["title_tokens"], *row["paragraph_offsets"][1:]]
    for number, (text, own) in enumerate(zip(row["text"], tokens, strict=True)):
        if own > recipe.paragraph_tokens:
            text = vocabulary.decode(row["ids"][starts[number] : starts[number + 1]].tolist())
        yield words(text)
