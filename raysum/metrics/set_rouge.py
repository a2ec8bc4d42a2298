"""ROUGE as counted by the package ``rouge`` 1.0.1, which the code of the PHT and VHT papers uses.

It differs from ROUGE-1.5.5 in almost everything: words end at blanks and keep case and punctuation, but full stops end
sentences and are dropped; n-grams are sets, so that repetition costs nothing, and run over sentence ends; L counts the
different words of all longest common subsequences of a reference sentence with a predicted one. A sentence of blanks is
one empty word.
"""

_EPSILON = 1e-8  # in the denominator of F1, so that a perfect score is just below 1


def scores(prediction: str, reference: str) -> dict[str, tuple[float, float, float]]:
    """Return F1, precision and recall (0 to 1) of ``rouge1``, ``rouge2`` and ``rougeL``; 0 if a text has no sentence.

    The package raises ValueError in that case, and RecursionError if two sentences have about 1,000 words.
    """
    found, wanted = _sentences(prediction), _sentences(reference)
    parts = {"rouge1": _overlap(_ngrams(found, 1), _ngrams(wanted, 1))}
    parts["rouge2"] = _overlap(_ngrams(found, 2), _ngrams(wanted, 2))
    common = set().union(*(_subsequence(one, other) for one in wanted for other in found))
    parts["rougeL"] = _ratios(len(common), len(_ngrams(found, 1)), len(_ngrams(wanted, 1)))
    return parts


def _sentences(text: str) -> list[list[str]]:
    return [sentence.split() or [""] for sentence in text.split(".") if sentence]


def _ngrams(sentences: list[list[str]], size: int) -> set[tuple[str, ...]]:
    words = [word for sentence in sentences for word in sentence]
    return set(zip(*(words[start:] for start in range(size)), strict=False))


def _overlap(found: set[tuple[str, ...]], wanted: set[tuple[str, ...]]) -> tuple[float, float, float]:
    return _ratios(len(found & wanted), len(found), len(wanted))


def _ratios(common: int, found: int, wanted: int) -> tuple[float, float, float]:
    precision, recall = (common / number if number else 0.0 for number in (found, wanted))
    return 2 * precision * recall / (precision + recall + _EPSILON), precision, recall


def _subsequence(wanted: list[str], found: list[str]) -> set[str]:
    """Return the words of the longest common subsequence, traced from the end and stepping back in ``found`` first."""
    lengths = [[0] * (len(found) + 1)]
    for word in wanted:
        above, row = lengths[-1], [0]
        for column, other in enumerate(found):
            row.append(above[column] + 1 if word == other else max(above[column + 1], row[column]))
        lengths.append(row)
    words, i, j = set(), len(wanted), len(found)
    while i and j:
        if wanted[i - 1] == found[j - 1]:
            words.add(wanted[i - 1])
            i, j = i - 1, j - 1
        elif lengths[i - 1][j] > lengths[i][j - 1]:
            i -= 1
        else:
            j -= 1
    return words
