"""ROUGE-1, 2, L and Lsum under named protocols, with a signature to print beside them.

The same summaries score up to 25 points apart under different protocols, so figures of different protocols must not
stand in one table. All but ``pht-paper`` count as rouge-score does; where a paper used another program, its protocol
here is the nearest setting, and what still differs is said at its entry.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from statistics import fmean
from typing import Literal

import pandas as pd

from raysum.errors import UserError
from raysum.metrics import set_rouge, word_rouge

METRICS = ("rouge1", "rouge2", "rougeL", "rougeLsum")
_Scores = Mapping[str, tuple[float, ...]]  # F1, precision and recall by metric
Several = Literal["best", "mean", "jackknife"]
_SEVERAL = {"best": "maximum F1", "mean": "mean", "jackknife": "jackknifed maximum F1"}
_PARTS = {"fmeasure": "", "precision": "_precision", "recall": "_recall"}  # and what a column's name ends with


@dataclass(frozen=True)
class Protocol:
    """As rouge-score: lower-cased words of a-z and 0-9 (text in other scripts scores 0), with Porter's stemmer.

    ``one_line``: a summary is one sentence, so that rougeLsum equals rougeL; else each line is one. ``published_l``:
    which of ours a paper of this protocol calls ROUGE-L. ``sets``: as the package ``rouge`` does it instead.
    """

    one_line: bool
    published_l: Literal["rougeL", "rougeLsum"]
    sets: bool = False


PROTOCOLS = {
    # The library's own tokens with its stemmer, as in most papers since 2020.
    "google": Protocol(one_line=False, published_l="rougeL"),
    # ROUGE-1.5.5 -c 95 -m -r 1000 -n 2 -a on one line, of full length (no -l or -b): it has the same words, clipping,
    # union and means over examples. Its stemmer knows WordNet's exceptions (went is go), ours does not.
    "ht-paper": Protocol(one_line=True, published_l="rougeL"),
    # The package `rouge` 1.0.1 (see set_rouge), by which the code of PHT and VHT scores decoded pieces.
    "pht-paper": Protocol(one_line=True, published_l="rougeL", sets=True),
    # ROUGE-1.5.5 as above, but with a line for each sentence.
    "graphsum": Protocol(one_line=False, published_l="rougeLsum"),
    "hibert-paper": Protocol(one_line=False, published_l="rougeLsum"),
}


def score(
    predictions: Sequence[str],
    references: Sequence[str | list[str]],
    protocol: str = "google",
    several: Several = "best",
) -> pd.DataFrame:
    """One row a pair: F1 in ``rouge1, rouge2, rougeL, rougeLsum``, and ``rouge1_precision``, ``rouge1_recall`` ...

    Of ``several`` references for a prediction, for each metric by itself: ``best``, that of the highest F1, as in
    rouge-score's ``score_multi``; their ``mean``; or ``jackknife``, the mean of the best of all but one, each left out
    once (Lin, 2004, section 2.1), so that people can be scored beside systems. ROUGE-1.5.5 itself has no jackknife any
    more (since 1.4): its -f A adds up matches and words of all references, its -f B takes the highest recall.
    Scores are 0 to 100; an empty prediction scores 0. Texts have one sentence a line, which rougeLsum needs.
    Raises UserError for an unknown protocol, or where there are not as many predictions as references.
    """
    if len(predictions) != len(references):
        raise UserError(
            f"{len(predictions)} predictions for {len(references)} references; give one prediction for each reference"
        )
    count = _sets if find_protocol(protocol).sets else _words(find_protocol(protocol).one_line)
    pairs = (
        _joined(count(prediction, [reference] if isinstance(reference, str) else reference), several)
        for prediction, reference in zip(predictions, references, strict=True)
    )
    rows = [[100 * values[metric][part] for part in range(len(_PARTS)) for metric in METRICS] for values in pairs]
    columns = [f"{metric}{suffix}" for suffix in _PARTS.values() for metric in METRICS]
    return pd.DataFrame(rows, columns=columns, dtype="float64")


def _joined(scores: Sequence[_Scores], several: Several) -> _Scores:
    """The scores of one prediction by each of its references as one."""
    if len(scores) == 1:
        return scores[0]
    if several == "best":
        return _best(scores)
    if several == "jackknife":
        scores = [_best([*scores[:left_out], *scores[left_out + 1 :]]) for left_out in range(len(scores))]
    return {metric: tuple(map(fmean, zip(*(one[metric] for one in scores), strict=True))) for metric in METRICS}


def _best(scores: Sequence[_Scores]) -> _Scores:
    return {metric: max((one[metric] for one in scores), key=itemgetter(0)) for metric in METRICS}


def _sets(prediction: str, references: Sequence[str]) -> list[_Scores]:
    found = [set_rouge.scores(prediction, reference) for reference in references]
    return [{**one, "rougeLsum": one["rougeL"]} for one in found]


def _words(one_line: bool) -> Callable[[str, Sequence[str]], list[_Scores]]:
    def read(text: str) -> word_rouge.Text:
        return word_rouge.Text(text.replace("\n", " ") if one_line else text)

    def count(prediction: str, references: Sequence[str]) -> list[_Scores]:
        found = read(prediction)
        return [word_rouge.scores(found, read(reference)) for reference in references]

    return count


def signature(
    predictions: Sequence[str], protocol: str = "google", references: int = 1, several: Several = "best"
) -> str:
    """One line that says how ``score`` counts, to be printed beside every figure. Raises UserError as that does.

    ``references``: as many has an example at most.
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


def find_protocol(name: str) -> Protocol:
    """Raises UserError where there is none of that name."""
    if name not in PROTOCOLS:
        raise UserError(f"unknown ROUGE protocol {name!r}; use one of {', '.join(PROTOCOLS)}")
    return PROTOCOLS[name]
