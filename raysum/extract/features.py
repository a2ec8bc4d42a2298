"""Language-independent features of each sentence of a cluster: place, size, centrality, title, form.

M sentences of a row, D its documents, T its different words.
"""

from collections.abc import Callable, Sequence

import numpy as np

from raysum.data.rows import Row
from raysum.prepare.ranking import centrality
from raysum.text.tfidf import TfIdf, words

# Of a sentence; of some of them, RANKED, also the rank among all sentences of the cluster (0..1).
FEATURES = (
    *("place", "share_before", "document", "documents_before", "documents", "sentences"),
    *("place_in_document", "share_in_document", "left_in_document", "paragraph", "place_in_paragraph"),
    *("words", "letters_a_word", "words_of_document", "share_of_document"),
    *("central", "near_centroid", "near_own_document", "near_other_documents", "rarity", "spread"),
    *("near_title", "share_of_title", "digits", "capitals", "brackets", "commas"),
)
RANKED = ("words", "central", "near_centroid", "near_other_documents", "rarity", "spread", "near_title", "digits")


def features(row: Row) -> np.ndarray:
    """[M, F] float32 of ``FEATURES``, then the ranks of ``RANKED``, of the sentences of a row of kind extraction."""
    texts, documents, paragraphs = row["text"], row["document"].astype(np.int64), row["paragraph"].astype(np.int64)
    known, titled = [words(text) for text in texts], {*words(row["title"])}
    vectors = TfIdf(known)
    count, sizes = len(texts), np.bincount(documents)
    lengths = np.bincount(vectors.rows, minlength=count).astype(float)  # different words
    total = np.array([max(len(text.split()), 1) for text in texts])
    of_document = np.bincount(documents, total)[documents]
    inside = _places(documents)
    own, others, spread = _near_documents(vectors, documents, sizes)
    place = np.arange(count)
    columns = {
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
        "place_in_paragraph": _places(documents * (paragraphs.max() + 1) + paragraphs),
        "words": total,
        "letters_a_word": np.array([len(text) for text in texts]) / total,
        "words_of_document": of_document,
        "share_of_document": total / of_document,
        "central": centrality(vectors) * count,
        "near_centroid": vectors.project(_unit(vectors.total(np.ones(count)))),
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
    ranks = [np.argsort(np.argsort(columns[name], kind="stable")) / max(count - 1, 1) for name in RANKED]
    return np.stack([*(columns[name] for name in FEATURES), *ranks], 1).astype(np.float32)


def _places(groups: np.ndarray) -> np.ndarray:
    """[M] how many of the same group stand before each, where groups stand together."""
    starts = np.flatnonzero(np.diff(groups, prepend=groups[:1] - 1))
    return np.arange(len(groups)) - np.repeat(starts, np.diff([*starts, len(groups)]))


def _near_documents(vectors: TfIdf, documents: np.ndarray, sizes: np.ndarray) -> tuple[np.ndarray, ...]:
    """[M] mean cosine to the sentences of the own document and of the others; mean share of documents that have a word.

    Sums of vectors are multiplied, never all pairs.
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


def _unit(vector: np.ndarray) -> np.ndarray:
    return vector / (np.linalg.norm(vector) or 1)


def _share(texts: Sequence[str], counted: Callable[[str], bool]) -> np.ndarray:
    return np.array([sum(map(counted, text)) / max(len(text), 1) for text in texts])
