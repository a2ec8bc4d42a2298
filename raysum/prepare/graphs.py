"""Given graphs over the paragraphs of a cluster, for graph-informed attention (HT, section 3).

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

_THRESHOLD = 0.1  # cosines below are no edge: the threshold of Erkan and Radev (2004)
_ENTITY_WEIGHT = 0.2  # of an entity that two paragraphs share, where a discourse marker weighs 1 (HT, appendix)
_RARE = 0.1  # share of the paragraphs, at most, that hold a word which stands for an entity in lower-cased text
_RARE_LENGTH = 4  # letters of such a word, at least
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
    """Edges between paragraphs (given as words) of tf-idf cosine above 0.1."""
    vectors = TfIdf(paragraphs).matrix()
    edges = (vectors @ vectors.T).tocoo()
    kept = (edges.row != edges.col) & (edges.data > _THRESHOLD)
    return _sorted(edges.row[kept], edges.col[kept], edges.data[kept])


def discourse_graph(texts: Sequence[str], places: Sequence[tuple[int, int]]) -> Edges:
    """The approximate discourse graph (Christensen et al. 2013) as HT simplifies it: 0.2 x entities in common, plus 1
    where a paragraph opens with a discourse marker, to the one right before it in its document.

    ``texts`` are the paragraphs, ``places`` their documents and numbers within them. HT finds entities by a tagger;
    here they are capitalized names (see ``_entities``). The deverbal nouns of the first paper are left out, as in HT.
    """
    holders: dict[str, list[int]] = defaultdict(list)
    for number, entities in enumerate(_entities(texts)):
        for entity in entities:
            holders[entity].append(number)
    shared = Counter(chain.from_iterable(combinations(numbers, 2) for numbers in holders.values()))
    weights = {pair: _ENTITY_WEIGHT * count for pair, count in shared.items()}
    number_of = {place: number for number, place in enumerate(places)}
    for number, (document, place) in enumerate(places):
        before = number_of.get((document, place - 1))
        if before is not None and _MARKERS.match(texts[number]):
            pair = min(before, number), max(before, number)
            weights[pair] = weights.get(pair, 0) + 1
    pairs = np.array(list(weights), np.int64).reshape(-1, 2)
    values = np.array(list(weights.values()), np.float32)
    return _sorted(np.append(pairs[:, 0], pairs[:, 1]), np.append(pairs[:, 1], pairs[:, 0]), np.append(values, values))


def _entities(texts: Sequence[str]) -> list[set[str]]:
    """The entities of each text, lower-cased: runs of capitalized words; where the texts have no capitals, words of
    four letters or more that few of the texts hold.

    The first word of a sentence counts only where the texts have it in no other place in small letters.
    """
    tokenized = [[_TOKEN.findall(text, *span) for span in quick_sentence_spans(text)] for text in texts]
    small = {word for sentences in tokenized for tokens in sentences for word in tokens if word.islower()}
    found = [set(_names(sentences, small)) for sentences in tokenized]
    if any(found):
        return found
    own = [{word for word in words(text) if len(word) >= _RARE_LENGTH and word.isalpha()} for text in texts]
    spread, most = Counter(chain.from_iterable(own)), max(2, _RARE * len(texts))
    return [{word for word in held if spread[word] <= most} for held in own]


def _names(sentences: list[list[str]], small: set[str]) -> Iterator[str]:
    for tokens in sentences:
        if tokens[0].lower() in small:
            tokens[0] = tokens[0].lower()
        for capitalized, run in groupby(tokens, lambda token: len(token) > 1 and token[0].isupper()):
            if capitalized:
                yield " ".join(run).lower()


def _sorted(rows: np.ndarray, columns: np.ndarray, values: np.ndarray) -> Edges:
    order = np.lexsort((columns, rows))
    return rows[order].astype(np.int16), columns[order].astype(np.int16), values[order].astype(np.float32)
