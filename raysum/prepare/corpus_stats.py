"""What a dataset tells of its clusters beside their rows: languages, and what of the references is still there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from raysum.text.cleaning import held_bigrams
from raysum.text.languages import LANGUAGE, language
from raysum.text.tfidf import words

if TYPE_CHECKING:
    from raysum.data.recipe import Recipe
    from raysum.data.rows import Row
    from raysum.prepare.cluster import Cluster
    from raysum.tokenizers.tokenizer import Tokenizer

TAUGHT = "summaries by "  # begins the name of a count: references that a teacher wrote
_LONGEST = 200  # characters of such a name
_DOCUMENTS, _CHARACTERS = 4, 300  # of a cluster that are looked at; of each, out of its middle


def language_counts(cluster: Cluster) -> Counter[str]:
    """How many of a few documents, evenly over the cluster, are in which language."""
    texts = [text for _, text in cluster.documents[:: -(-len(cluster.documents) // _DOCUMENTS)]]
    starts = (max(len(text) - _CHARACTERS, 0) // 2 for text in texts)
    return Counter(
        LANGUAGE + language(text[at : at + _CHARACTERS]) for text, at in zip(texts, starts, strict=True) if text.strip()
    )


def teacher_counts(raw: Mapping[str, Any]) -> Counter[str]:
    """A summary by the model and to the prompt that a raw cluster names as its ``teacher``, as of `raysum teach`."""
    told = raw.get("teacher")
    if not isinstance(told, Mapping) or not raw.get("summary") or "model" not in told:
        return Counter()
    return Counter({f"{TAUGHT}{told['model']}, prompt {told.get('prompt')}"[:_LONGEST]: 1})


def bigram_counts(
    row: Row,
    tokens: Sequence[int],
    kept: Iterable[Sequence[str]],
    everything: Iterable[Sequence[str]],
    recipe: Recipe,
    vocabulary: Tokenizer,
) -> Counter[str]:
    """How many different bigrams of the reference stand in ``everything``, the words of all paragraphs, and how many
    of these in what the row holds of those that are ``kept``, which had so many ``tokens`` [M] before they were cut."""
    wanted = {*zip(reference := words(row["summary"]), reference[1:], strict=False)}
    found = held_bigrams(wanted, everything) if wanted else set()
    left = held_bigrams(found, _held(row, tokens, kept, recipe, vocabulary)) if found else found
    return Counter(reference_bigrams=len(found), reference_bigrams_kept=len(left))


def _held(
    row: Row, tokens: Sequence[int], kept: Iterable[Sequence[str]], recipe: Recipe, vocabulary: Tokenizer
) -> Iterator[Sequence[str]]:
    """The words of each paragraph of a row, of one that was cut those of the ids that are left."""
    starts = [row["title_tokens"], *row["paragraph_offsets"][1:]]
    for number, (own, size) in enumerate(zip(kept, tokens, strict=True)):
        cut = row["ids"][starts[number] : starts[number + 1]] if size > recipe.paragraph_tokens else None
        yield own if cut is None else words(vocabulary.decode(cut.tolist()))
