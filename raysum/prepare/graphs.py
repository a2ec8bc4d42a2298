"""Graphs over the paragraphs of a cluster, for graph-informed attention (HT, section 3).

Edges are three arrays: rows and columns (int16) and values (float32), symmetric, without self loops, sorted by row and
column. M paragraphs.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from itertools import chain, combinations, groupby

import numpy as np

from raysum.text.sentences import quick_sentence_spans
from raysum.text.tfidf import TfIdf, words

Edges = tuple[np.ndarray, np.ndarray, np.ndarray]
NO_EDGES: Edges = (np.empty(0, np.int16), np.empty(0, np.int16), np.empty(0, np.float32))

_THRESHOLD = 0.1  # minimum cosine of an edge (Erkan and Radev, 2004)
_ENTITY_WEIGHT = 0.2  # of an entity that two paragraphs share; a discourse marker has weight 1 (HT, appendix)
# Entities in lower-cased text: words of at least so many letters in at most this share of the paragraphs.
_RARE, _RARE_LENGTH = 0.1, 4
# The 36 explicit markers of HT's appendix ("example" as it opens a sentence).
_MARKERS = re.compile(
    "(?:again|also|another|comparatively|furthermore|at the same time|however|immediately|indeed|instead|to be sure"
    "|likewise|meanwhile|moreover|nevertheless|nonetheless|notably|otherwise|regardless|similarly|unlike|in addition"
    "|even|in turn|in exchange|in this case|in any event|finally|later|as well|especially|as a result|for example"
    r"|in fact|then|the day before)\b",
    re.IGNORECASE,
)
_TOKEN = re.compile(r"\w[\w’'-]*|\S")


def similarity_graph(paragraphs: Sequence[Sequence[str]]) -> Edges:
    """Return edges between paragraphs (lists of words) with a tf-idf cosine above 0.1."""
    vectors = TfIdf(paragraphs).matrix()
    edges = (vectors @ vectors.T).tocoo()
    kept = (edges.row != edges.col) & (edges.data > _THRESHOLD)
    return _sorted(edges.row[kept], edges.col[kept], edges.data[kept])


def discourse_graph(texts: Sequence[str], positions: Sequence[tuple[int, int]]) -> Edges:
    """Return the approximate discourse graph (Christensen et al. 2013) as HT simplifies it.

    The weight of an edge is 0.2 x the number of common entities, plus 1 if one paragraph opens with a discourse marker
    and directly follows the other. ``texts`` are the paragraphs, ``positions`` their documents and numbers within them.
    HT finds entities by a tagger; here they are capitalized names (see ``_entities``). As in HT, deverbal nouns do not
    count.
    """
    holders: dict[str, list[int]] = defaultdict(list)
    for number, entities in enumerate(_entities(texts)):
        for entity in entities:
            holders[entity].append(number)
    shared = Counter(chain.from_iterable(combinations(numbers, 2) for numbers in holders.values()))
    weights = {pair: _ENTITY_WEIGHT * count for pair, count in shared.items()}
    number_of = {position: number for number, position in enumerate(positions)}
    for number, (document, position) in enumerate(positions):
        before = number_of.get((document, position - 1))
        if before is not None and _MARKERS.match(texts[number]):
            pair = min(before, number), max(before, number)
            weights[pair] = weights.get(pair, 0) + 1
    pairs = np.array(list(weights), np.int64).reshape(-1, 2)
    values = np.array(list(weights.values()), np.float32)
    return _sorted(np.append(pairs[:, 0], pairs[:, 1]), np.append(pairs[:, 1], pairs[:, 0]), np.append(values, values))


def _entities(texts: Sequence[str]) -> list[set[str]]:
    """Return the lower-cased entities of each text: runs of capitalized words, or in texts without capitals, rare words
    of at least four letters.

    The first word of a sentence counts only if the texts never have it in lower case.
    """
    tokenized = [[_TOKEN.findall(text, *span) for span in quick_sentence_spans(text)] for text in texts]
    lower_case = {word for sentences in tokenized for tokens in sentences for word in tokens if word.islower()}
    names = [set(_names(sentences, lower_case)) for sentences in tokenized]
    if any(names):
        return names
    long_words = [{word for word in words(text) if len(word) >= _RARE_LENGTH and word.isalpha()} for text in texts]
    frequency, most = Counter(chain.from_iterable(long_words)), max(2, _RARE * len(texts))
    return [{word for word in text_words if frequency[word] <= most} for text_words in long_words]


def _names(sentences: list[list[str]], lower_case: set[str]) -> Iterator[str]:
    for tokens in sentences:
        if tokens[0].lower() in lower_case:
            tokens[0] = tokens[0].lower()
        for capitalized, run in groupby(tokens, lambda token: len(token) > 1 and token[0].isupper()):
            if capitalized:
                yield " ".join(run).lower()


def _sorted(rows: np.ndarray, columns: np.ndarray, values: np.ndarray) -> Edges:
    order = np.lexsort((columns, rows))
    return rows[order].astype(np.int16), columns[order].astype(np.int16), values[order].astype(np.float32)
