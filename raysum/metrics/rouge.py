"""ROUGE-1, 2, L and Lsum under named protocols, with a signature to print beside the scores.

The same summaries score up to 25 points apart under different protocols, so one table must not mix protocols. All but
``pht-paper`` use the package rouge-score, or rouge-score-rs, which gives the same figures faster. If a paper used
another program, its protocol here is the nearest setting, and a comment names the remaining differences.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from itertools import chain, pairwise
from typing import Any, Literal, NamedTuple

import numpy as np
import pandas as pd

from raysum.errors import UserError

METRICS = ("rouge1", "rouge2", "rougeL", "rougeLsum")
_MIN_SHARE = 0.3  # of the letters of references: text in another script has a-z and 0-9 only in names and numbers
_LONGEST_WORD = 15  # mean number of letters between blanks; more means a script without blanks
_EPSILON = 1e-8  # in the denominator of F1 by the package ``rouge``, so that a perfect score is just below 1
Several = Literal["best", "mean", "jackknife"]
_SEVERAL = {"best": "maximum F1", "mean": "mean", "jackknife": "jackknifed maximum F1"}
_COLUMNS = [f"{metric}{suffix}" for suffix in ("", "_precision", "_recall") for metric in METRICS]  # F1 has no suffix
# (reference, prediction): the F1 of each metric by rouge-score 0.1.2, which a test computes again
_RIVERS = (
    "The rivers joined the sea.\nBoats were sailing slowly.",
    "Boats sailed slowly, rivers.\nThe river joins the sea.",
)
_LETTERS = "a b c\nc b a\n\nGrößen İx 2,000 kings", "c a b\nb a c b\nGröße ix king 2000"
_STEMS = "generalizations of operational hopefulness", "general operations, hope, dying skies"
CHECKED = {
    _RIVERS: (0.8888888888888888, 0.625, 0.5555555555555556, 0.8888888888888888),
    _LETTERS: (0.64, 0.2608695652173913, 0.48000000000000004, 0.48000000000000004),
    _STEMS: (0.6666666666666665, 0.28571428571428575, 0.6666666666666665, 0.6666666666666665),
}


@dataclass(frozen=True)
class Protocol:
    """How summaries are scored: by default as rouge-score does.

    rouge-score lower-cases text, keeps words of a-z and 0-9 (text in other scripts scores 0) and stems them by Porter's
    algorithm. ``one_line``: a summary is one sentence, so rougeLsum equals rougeL; otherwise each line is a sentence.
    ``published_l``: which of our two L metrics papers with this protocol call ROUGE-L. ``sets``: count as the package
    ``rouge`` does.
    """

    one_line: bool
    published_l: Literal["rougeL", "rougeLsum"]
    sets: bool = False


PROTOCOLS = {
    # The library's own tokens with its stemmer, as in most papers since 2020.
    "google": Protocol(one_line=False, published_l="rougeL"),
    # ROUGE-1.5.5 -c 95 -m -r 1000 -n 2 -a on one line, of full length (no -l or -b): same words, clipping, union and
    # means over examples. Its stemmer knows WordNet's exceptions (went is go), that of rouge-score does not.
    "ht-paper": Protocol(one_line=True, published_l="rougeL"),
    # The package `rouge` 1.0.1 (see ``_set_scores``), which the code of PHT and VHT applies to decoded pieces.
    "pht-paper": Protocol(one_line=True, published_l="rougeL", sets=True),
    # ROUGE-1.5.5 as above, but with one sentence a line.
    "graphsum": Protocol(one_line=False, published_l="rougeLsum"),
    "hibert-paper": Protocol(one_line=False, published_l="rougeLsum"),
}


def score(
    predictions: Sequence[str],
    references: Sequence[str | list[str]],
    protocol: str = "google",
    several: Several = "best",
) -> pd.DataFrame:
    """Return one row a pair: F1 in ``rouge1, rouge2, rougeL, rougeLsum``, and ``rouge1_precision`` and so on.

    Scores are 0 to 100; an empty prediction scores 0. Texts have one sentence a line, which rougeLsum needs.
    If a prediction has several references, ``several`` reduces them, for each metric by itself: ``best`` takes the
    highest F1, as in rouge-score's ``score_multi``; ``mean`` averages; ``jackknife`` averages the best of all but one,
    leaving out each once (Lin, 2004, section 2.1), so that people can be scored beside systems. ROUGE-1.5.5 itself has
    no jackknife since 1.4: its -f A adds up matches and words of all references, its -f B takes the highest recall.
    Raises UserError if the protocol is unknown, or if predictions and references differ in number.
    """
    if len(predictions) != len(references):
        raise UserError(
            f"{len(predictions)} predictions for {len(references)} references; give one prediction for each reference"
        )
    chosen = find_protocol(protocol)
    targets = [[texts] if isinstance(texts, str) else texts for texts in references]
    if chosen.one_line and not chosen.sets:
        predictions, targets = [_joined(text) for text in predictions], [[*map(_joined, texts)] for texts in targets]
    pairs = [(text, target) for text, some in zip(predictions, targets, strict=True) for target in some]
    scores = _scores(pairs, _set_scores if chosen.sets else library().scorer.score)
    if len(scores) > len(targets):
        ends = np.cumsum([len(texts) for texts in targets])[:-1]
        scores = np.stack([_reduced(part, several) for part in np.split(scores, ends)])
    return pd.DataFrame(100 * scores.reshape(len(scores), len(_COLUMNS)), columns=_COLUMNS)


def _joined(text: str) -> str:
    return text.replace("\n", " ")


def _scores(pairs: Sequence[tuple[str, str]], score_pair: Callable[[str, str], Mapping[str, Any]]) -> np.ndarray:
    """Return F1, precision and recall of the ``METRICS`` of (prediction, reference) pairs, [pairs, 3, 4], 0 to 1."""
    scores = (score_pair(reference, prediction) for prediction, reference in pairs)
    values = chain.from_iterable(by[metric] for by in scores for metric in METRICS)
    precision, recall, f1 = np.fromiter(values, float, 12 * len(pairs)).reshape(-1, 4, 3).transpose(2, 0, 1)
    return np.stack([f1, precision, recall], axis=1)


class Library(NamedTuple):
    """The scorer of a package with the interface of rouge-score, and its tokenizer, which stems words."""

    scorer: Any
    tokenizer: Any


@cache
def library() -> Library:
    """Return rouge-score-rs if it is installed and gives the scores ``CHECKED``, else rouge-score.

    The check compares with stored scores because loading rouge-score, and with it NLTK, takes 2 s.
    """
    try:
        fast = _load("rouge_score_rs")
        scores = {pair: fast.scorer.score(*pair) for pair in CHECKED}
    except ImportError:
        return _load("rouge_score")
    agrees = all(tuple(by[metric].fmeasure for metric in METRICS) == CHECKED[pair] for pair, by in scores.items())
    return fast if agrees else _load("rouge_score")


def _load(package: str) -> Library:
    tokenizer = import_module(f"{package}.tokenizers").DefaultTokenizer(use_stemmer=True)
    return Library(import_module(f"{package}.rouge_scorer").RougeScorer([*METRICS], tokenizer=tokenizer), tokenizer)


def _set_scores(reference: str, prediction: str) -> dict[str, tuple[float, float, float]]:
    """Return precision, recall and F1 as counted by the package ``rouge`` 1.0.1; 0 if a text has no sentence.

    It differs from ROUGE-1.5.5 in almost everything: words end at blanks and keep case and punctuation, but full stops
    end sentences and are dropped; n-grams are sets, so that repetition costs nothing, and run over sentence ends; L
    counts the different words of all longest common subsequences of a reference sentence with a predicted one. A
    sentence of blanks is one empty word. The package raises ValueError if a text has no sentence, and RecursionError if
    two sentences have about 1,000 words.
    """
    found, wanted = ([part.split() or [""] for part in text.split(".") if part] for text in (prediction, reference))
    words, true_words = ([*chain(*sentences)] for sentences in (found, wanted))
    ones, twos, true_ones, true_twos = {*words}, {*pairwise(words)}, {*true_words}, {*pairwise(true_words)}
    common = set().union(*(_subsequence(true, own) for true in wanted for own in found))
    longest = _ratios(len(common), len(ones), len(true_ones))
    return {
        "rouge1": _ratios(len(ones & true_ones), len(ones), len(true_ones)),
        "rouge2": _ratios(len(twos & true_twos), len(twos), len(true_twos)),
        "rougeL": longest,
        "rougeLsum": longest,
    }


def _ratios(common: int, found: int, wanted: int) -> tuple[float, float, float]:
    precision, recall = (common / number if number else 0.0 for number in (found, wanted))
    return precision, recall, 2 * precision * recall / (precision + recall + _EPSILON)


def _subsequence(wanted: Sequence[str], found: Sequence[str]) -> set[str]:
    """Return the words of the longest common subsequence, traced from the end and stepping back in ``found`` first."""
    lengths = [[0] * (len(found) + 1)]
    for word in wanted:
        above, row = lengths[-1], [0]
        for column, other in enumerate(found):
            row.append(above[column] + 1 if word == other else max(above[column + 1], row[column]))
        lengths.append(row)
    words, i, j = set[str](), len(wanted), len(found)
    while i and j:
        if wanted[i - 1] == found[j - 1]:
            words.add(wanted[i - 1])
            i, j = i - 1, j - 1
        elif lengths[i - 1][j] > lengths[i][j - 1]:
            i -= 1
        else:
            j -= 1
    return words


def _reduced(scores: np.ndarray, several: Several) -> np.ndarray:
    """Reduce the scores of one prediction by each of its references, [n, 3, 4], to [3, 4]."""
    if several == "best" or len(scores) == 1:
        return _best(scores)
    if several == "jackknife":
        scores = np.stack([_best(np.delete(scores, left_out, axis=0)) for left_out in range(len(scores))])
    return scores.mean(axis=0)


def _best(scores: np.ndarray) -> np.ndarray:
    """Return the scores [3, 4] by the reference with the highest F1, for each metric by itself."""
    return np.take_along_axis(scores, scores[:, :1].argmax(axis=0)[None], axis=0)[0]


def signature(
    predictions: Sequence[str], protocol: str = "google", references: int = 1, several: Several = "best"
) -> str:
    """Return one line that describes how ``score`` counts, to print beside every figure.

    ``references`` is the largest number of references of an example. Raises UserError if the protocol is unknown.
    """
    chosen = find_protocol(protocol)
    sentences = "one line" if chosen.one_line else "one a line"
    how = "as rouge-score 0.1.2 | stemmer porter | words alphanumeric | lower-cased"
    if chosen.sets:
        how, sentences = "as rouge 1.0.1 | sets of n-grams | stemmer none | words by blanks", "by full stops"
    return (
        f"{protocol}: {how} | sentences {sentences} | published R-L = {chosen.published_l}"
        + (f" | references up to {references}, {_SEVERAL[several]}" if references > 1 else "")
        + f" | n {len(predictions)} | empty {sum(not prediction.strip() for prediction in predictions)}"
    )


def unread(references: Iterable[str], protocol: str = "google") -> str | None:
    """Return why ROUGE is meaningless for the script of ``references``, and what to do; None if it is meaningful."""
    text = " ".join(references)
    letters = sum(map(str.isalnum, text))
    if find_protocol(protocol).sets:
        if letters <= _LONGEST_WORD * len(text.split()):
            return None
        problem = f"ROUGE by {protocol} counts words between blanks, and the references have almost no blanks"
    else:
        counted = sum(character.isascii() and character.isalnum() for character in text)
        if counted > _MIN_SHARE * letters or not letters:
            return None
        share = f"{100 * counted / letters:.0f} % of the references' letters are"
        problem = f"ROUGE by {protocol} counts only a-z and 0-9, and {share}; --protocol pht-paper counts other scripts"
    return f"{problem}; if a text has no blanks, put some between its words or characters before `raysum prepare`"


def find_protocol(name: str) -> Protocol:
    """Return the protocol with this name. Raises UserError if there is none."""
    if name not in PROTOCOLS:
        raise UserError(f"unknown ROUGE protocol {name!r}; use one of {', '.join(PROTOCOLS)}")
    return PROTOCOLS[name]
