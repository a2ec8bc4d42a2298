"""Statistics of clusters beside their rows: languages, teachers, and the references' bigrams that the rows keep."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from raysum.text.cleaning import covered_bigrams
from raysum.text.languages import LANGUAGE, language
from raysum.text.tfidf import words

if TYPE_CHECKING:
    from raysum.data.recipe import Recipe
    from raysum.data.rows import Row
    from raysum.prepare.cluster import Cluster
    from raysum.tokenizers.tokenizer import Tokenizer

TAUGHT = "summaries by "  # prefix of the counts of references by teachers
_MAX_NAME = 200  # characters of the name of a count
_DOCUMENTS, _CHARACTERS = 4, 300  # sampled documents of a cluster; characters from the middle of each


def language_counts(cluster: Cluster) -> Counter[str]:
    """Count the languages of a few documents, evenly sampled from the cluster."""
    texts = [text for _, text in cluster.documents[:: -(-len(cluster.documents) // _DOCUMENTS)]]
    starts = (max(len(text) - _CHARACTERS, 0) // 2 for text in texts)
    return Counter(
        LANGUAGE + language(text[at : at + _CHARACTERS]) for text, at in zip(texts, starts, strict=True) if text.strip()
    )


def teacher_counts(raw: Mapping[str, Any]) -> Counter[str]:
    """Count the summary under the model and prompt of the raw cluster's ``teacher`` (see `raysum teach`)."""
    teacher = raw.get("teacher")
    if not isinstance(teacher, Mapping) or not raw.get("summary") or "model" not in teacher:
        return Counter()
    return Counter({f"{TAUGHT}{teacher['model']}, prompt {teacher.get('prompt')}"[:_MAX_NAME]: 1})


def bigram_counts(
    row: Row,
    tokens: Sequence[int],
    kept_words: Iterable[Sequence[str]],
    all_words: Iterable[Sequence[str]],
    recipe: Recipe,
    vocabulary: Tokenizer,
) -> Counter[str]:
    """Count the distinct bigrams of the reference that all paragraphs contain, and those that the row keeps.

    ``tokens`` [M] are the sizes of the kept paragraphs before truncation; paragraphs are lists of words.
    """
    reference = words(row["summary"])
    bigrams = {*zip(reference, reference[1:], strict=False)}
    in_source = covered_bigrams(bigrams, all_words) if bigrams else set()
    in_row = covered_bigrams(in_source, _row_words(row, tokens, kept_words, recipe, vocabulary)) if in_source else set()
    return Counter(reference_bigrams=len(in_source), reference_bigrams_kept=len(in_row))


def _row_words(
    row: Row, tokens: Sequence[int], kept_words: Iterable[Sequence[str]], recipe: Recipe, vocabulary: Tokenizer
) -> Iterator[Sequence[str]]:
    """Yield the words of each paragraph of a row; truncated paragraphs are decoded from their ids."""
    starts = [row["title_tokens"], *row["paragraph_offsets"][1:]]
    for number, (whole, size) in enumerate(zip(kept_words, tokens, strict=True)):
        ids = row["ids"][starts[number] : starts[number + 1]] if size > recipe.paragraph_tokens else None
        yield whole if ids is None else words(vocabulary.decode(ids.tolist()))
