"""Language-independent features of each sentence of a cluster: place, size, centrality, title, form and cue words.

M sentences of a row, D its documents, T its different words, C cues in sequence, W the size of a table of cues.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from zlib import crc32

import numpy as np

from raysum.data.rows import Row
from raysum.prepare.ranking import centrality, positions
from raysum.text.tfidf import TfIdf, words

# Columns that also have their rank among all sentences of the cluster (0 to 1).
RANKED = ("words", "central", "near_centroid", "near_other_documents", "rarity", "spread", "near_title", "digits")
# The features by name, as reports call them; those with the same words are reported together.
LABELS = {
    "place": "position in the cluster",
    "share_before": "position in the cluster",
    "document": "position of the document",
    "documents_before": "position of the document",
    "documents": "number of documents",
    "sentences": "number of sentences",
    "place_in_document": "position in the document",
    "share_in_document": "position in the document",
    "left_in_document": "position in the document",
    "paragraph": "position of the paragraph",
    "place_in_paragraph": "position in the paragraph",
    "words": "number of its words",
    "letters_a_word": "length of its words",
    "words_of_document": "length of the document",
    "share_of_document": "share of the document's words",
    "central": "centrality (LexRank)",
    "near_centroid": "similarity to the cluster",
    "near_own_document": "similarity to its document",
    "near_other_documents": "similarity to other documents",
    "rarity": "rarity of its words",
    "spread": "documents with its words",
    "near_title": "similarity to the title",
    "share_of_title": "similarity to the title",
    "digits": "digits",
    "capitals": "capital letters",
    "brackets": "brackets",
    "commas": "commas",
}
_WORD_CUES = ("values of its words", "words of the sentence before", "words of the sentence after")
# The labels of all inputs: features, ranks, and the features of cues.
INPUTS = (
    *(*LABELS.values(), *(LABELS[name] for name in RANKED)),
    *(label for of_words in _WORD_CUES for label in (of_words, of_words, *["name of the document"] * 2)),
    _WORD_CUES[0],
)
_TOKEN = re.compile(r"\w+|[^\w\s]")
_DIGITS = re.compile(r"\d+")


def features(row: Row) -> np.ndarray:
    """Return [M, F] float32: :func:`columns`, then the ranks of ``RANKED``, of a row of kind extraction."""
    named = columns(row)
    return np.stack([*named.values(), *(_ranks(named[name]) for name in RANKED)], 1).astype(np.float32)


def columns(row: Row) -> dict[str, np.ndarray]:
    """Return the features [M] by name."""
    texts, documents, paragraphs = row["text"], row["document"].astype(np.int64), row["paragraph"].astype(np.int64)
    known, titled = [words(text) for text in texts], {*words(row["title"])}
    vectors = TfIdf(known)
    count, sizes = len(texts), np.bincount(documents)
    lengths = np.bincount(vectors.rows, minlength=count).astype(float)  # different words
    centroid = vectors.total(np.ones(count))
    total = np.array([max(len(text.split()), 1) for text in texts])
    of_document = np.bincount(documents, total)[documents]
    inside = positions(documents)
    own, others, spread = _near_documents(vectors, documents, sizes)
    place = np.arange(count)
    return {
        "place": place,
        "share_before": place / count,
        "document": documents / len(sizes),
        "documents_before": documents,
        "documents": np.full(count, len(sizes)),
        "sentences": np.full(count, count),
        "place_in_document": inside,
        "share_in_document": inside / sizes[documents],
        "left_in_document": sizes[documents] - inside,
        "paragraph": paragraphs,
        "place_in_paragraph": positions(documents * (paragraphs.max() + 1) + paragraphs),
        "words": total,
        "letters_a_word": np.array([len(text) for text in texts]) / total,
        "words_of_document": of_document,
        "share_of_document": total / of_document,
        "central": centrality(vectors) * count,
        "near_centroid": vectors.project(centroid / (np.linalg.norm(centroid) or 1)),
        "near_own_document": own,
        "near_other_documents": others,
        "rarity": np.bincount(vectors.rows, vectors.idf[vectors.cells], minlength=count) / np.maximum(lengths, 1),
        "spread": spread,
        "near_title": vectors.cosine([*titled]),
        "share_of_title": np.array([len(titled.intersection(one)) for one in known]) / max(len(titled), 1),
        "digits": _share(texts, str.isdigit),
        "capitals": _share(texts, str.isupper),
        "brackets": np.array([text.count("(") + text.count("[") for text in texts]),
        "commas": np.array([text.count(",") for text in texts]),
    }


def _near_documents(vectors: TfIdf, documents: np.ndarray, sizes: np.ndarray) -> tuple[np.ndarray, ...]:
    """Return three [M]: the mean cosine to other sentences of the document, that to sentences of other documents, and
    the mean share of documents that have a word. Sums of vectors are multiplied, never all pairs.
    """
    from scipy.sparse import csr_array

    matrix, count = vectors.matrix(), len(documents)
    members = csr_array((np.ones(count), (documents, np.arange(count))), shape=(len(sizes), count))
    sums = (members @ matrix).tocsr()  # [D, T]
    all_of = matrix @ np.asarray(sums.sum(0)).ravel()
    own = np.asarray(matrix.multiply(sums[documents]).sum(1)).ravel()
    has = np.bincount(sums.indices, minlength=matrix.shape[1]) / len(sizes)
    known = matrix.astype(bool).astype(float)
    spread = (known @ has) / np.maximum(np.diff(matrix.indptr), 1)
    size = sizes[documents]
    return (own - 1) / np.maximum(size - 1, 1), (all_of - own) / np.maximum(count - size, 1), spread


def _share(texts: Sequence[str], counted: Callable[[str], bool]) -> np.ndarray:
    return np.array([sum(map(counted, text)) / max(len(text), 1) for text in texts])


def _ranks(values: np.ndarray) -> np.ndarray:
    """Return [M]: the rank of each value, 0 to 1."""
    return np.argsort(np.argsort(values, kind="stable")) / max(len(values) - 1, 1)


@dataclass(frozen=True)
class Cues:
    """The words, signs and pairs of them of each sentence or document name, as indices into a table (feature hashing).

    ``places`` [C]; ``counts`` [M], all >= 1. Cues with the same index count as one.
    """

    places: np.ndarray
    counts: np.ndarray

    @classmethod
    def of(cls, texts: Sequence[str], width: int) -> "Cues":
        indices = [{_index(cue, width) for cue in _named(text)} or {0} for text in texts]
        places = np.fromiter(chain.from_iterable(indices), np.int32)
        return cls(places, np.array([len(part) for part in indices], np.int64))

    def having(self, indices: Sequence[int]) -> np.ndarray:
        """Return the numbers of the texts with a cue of ``indices``."""
        return np.unique(np.repeat(np.arange(len(self.counts)), self.counts)[np.isin(self.places, indices)])

    def values(self, table: np.ndarray) -> np.ndarray:
        """Return [M, 2]: mean and highest value of ``table`` [W] over the cues of each sentence."""
        values, starts = table[self.places], np.cumsum(self.counts) - self.counts
        return np.stack([np.add.reduceat(values, starts) / self.counts, np.maximum.reduceat(values, starts)], 1)


def _named(text: str) -> Iterator[str]:
    """Yield the words, signs and pairs of them of a text."""
    tokens = _TOKEN.findall(text.lower())
    yield from tokens
    yield from (f"{first} {second}" for first, second in pairwise(tokens))


def _index(cue: str, width: int) -> int:
    return crc32(cue.encode()) % width


def cue_names(texts: Iterable[str], wanted: Container[int], width: int) -> dict[int, str]:
    """Return the most frequent cue in ``texts`` of each index in ``wanted``; several cues may have the same index."""
    counts = defaultdict[int, Counter[str]](Counter)
    for text in texts:
        for cue in _named(text):
            if (index := _index(cue, width)) in wanted:
                counts[index][cue] += 1
    return {index: counter.most_common(1)[0][0] for index, counter in counts.items()}


def cue_texts(row: Row) -> tuple[list[str], list[str]]:
    """Return the sentences, and the name of the document of each, with all digits replaced by 0."""
    names = [_DIGITS.sub("0", name) for name in row["source"]]
    return row["text"], [names[number] for number in row["document"]]


def cues_of(row: Row, width: int) -> tuple[Cues, Cues]:
    """Return the cues of both :func:`cue_texts`."""
    texts, names = cue_texts(row)
    return Cues.of(texts, width), Cues.of(names, width)


def cue_features(cues: tuple[Cues, Cues], tables: Sequence[np.ndarray]) -> np.ndarray:
    """Return [M, 13] float32: mean and highest value of the words and of the document name of each sentence, the one
    before and the one after; rank by the first."""
    own = np.concatenate([part.values(table) for part, table in zip(cues, tables, strict=True)], 1)
    before, after = own[[0, *range(len(own) - 1)]], own[[*range(1, len(own)), -1]]
    return np.concatenate([own, before, after, _ranks(own[:, 0])[:, None]], 1).astype(np.float32)


class CueValues:
    """The values of cues: the mean ``labels`` of sentences with a cue, minus the mean of all sentences.

    ``prior``: the number of average sentences that are added to each cue, so that rare cues have small values.
    """

    def __init__(self, width: int, prior: float, examples: Iterable[tuple[Cues, np.ndarray]]):
        self._prior = prior
        self._sums, self._counts = np.zeros(width), np.zeros(width)
        self._of_all = np.zeros(2)  # sum of labels, and how many
        for cues, labels in examples:
            np.add.at(self._sums, cues.places, np.repeat(labels, cues.counts))
            np.add.at(self._counts, cues.places, 1)
            self._of_all += labels.sum(), len(labels)

    def table(self, *left_out: tuple[Cues, np.ndarray]) -> np.ndarray:
        """Return [W] float32: the values of all examples but those ``left_out``, whose labels must not leak."""
        sums, counts, (total, number) = self._sums.copy(), self._counts.copy(), self._of_all
        for cues, labels in left_out:
            np.subtract.at(sums, cues.places, np.repeat(labels, cues.counts))
            np.subtract.at(counts, cues.places, 1)
            total, number = total - labels.sum(), number - len(labels)
        mean, known = total / max(number, 1), counts + self._prior
        values = np.divide(sums + self._prior * mean, known, out=np.full(len(sums), mean), where=known > 0) - mean
        return values.astype(np.float32)
