"""ROUGE-1, 2, L and Lsum by the rouge-score library, under named protocols, with a signature to print beside them.

The same summaries score up to 25 points apart under different protocols, so figures of different protocols must not
stand in one table. rouge-score is used for all; where a paper used another program, its protocol here is the nearest
setting, and what still differs is said at its entry.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import version
from typing import Literal

import pandas as pd

from raysum.errors import UserError

METRICS = ("rouge1", "rouge2", "rougeL", "rougeLsum")
_PARTS = {"fmeasure": "", "precision": "_precision", "recall": "_recall"}  # and what a column's name ends with


@dataclass(frozen=True)
class Protocol:
    """How texts are cut up before they are compared; all are lower-cased.

    ``stem``: Porter's stemmer on words of more than three letters. ``words``: ``alphanumeric`` knows only a-z and 0-9
    (text in other scripts scores 0), ``whitespace`` keeps punctuation. ``one_line``: a summary is one sentence, so that
    rougeLsum equals rougeL; else each line is one. ``published_l``: which of ours a paper of this protocol calls
    ROUGE-L.
    """

    stem: bool
    words: Literal["alphanumeric", "whitespace"]
    one_line: bool
    published_l: Literal["rougeL", "rougeLsum"]


PROTOCOLS = {
    # The library's own tokens with its stemmer, as in most papers since 2020.
    "google": Protocol(stem=True, words="alphanumeric", one_line=False, published_l="rougeL"),
    # ROUGE-1.5.5 -c 95 -m -r 1000 -n 2 -a on one line; its stemmer knows WordNet's exceptions, ours does not.
    "ht-paper": Protocol(stem=True, words="alphanumeric", one_line=True, published_l="rougeL"),
    # The `rouge` package on one line of decoded pieces; that counts a repeated n-gram once and unites LCS for L.
    "pht-paper": Protocol(stem=False, words="whitespace", one_line=True, published_l="rougeL"),
    # ROUGE-1.5.5 as above, but with a line for each sentence.
    "graphsum": Protocol(stem=True, words="alphanumeric", one_line=False, published_l="rougeLsum"),
}


def score(predictions: Sequence[str], references: Sequence[str], protocol: str = "google") -> pd.DataFrame:
    """One row a pair: F1 in ``rouge1, rouge2, rougeL, rougeLsum``, and ``rouge1_precision``, ``rouge1_recall`` ...

    Scores are 0 to 100; an empty prediction scores 0. Texts have one sentence a line, which rougeLsum needs.
    Raises UserError for an unknown protocol, or where there are not as many predictions as references.
    """
    from rouge_score.rouge_scorer import RougeScorer

    if len(predictions) != len(references):
        raise UserError(
            f"{len(predictions)} predictions for {len(references)} references; give one prediction for each reference"
        )
    chosen = find_protocol(protocol)
    scorer = RougeScorer(METRICS, tokenizer=_Tokenizer(chosen))
    rows = []
    for prediction, reference in zip(predictions, references, strict=True):
        if chosen.one_line:
            prediction, reference = prediction.replace("\n", " "), reference.replace("\n", " ")
        scores = scorer.score(reference, prediction)
        rows.append([100 * getattr(scores[metric], part) for part in _PARTS for metric in METRICS])
    columns = [f"{metric}{suffix}" for suffix in _PARTS.values() for metric in METRICS]
    return pd.DataFrame(rows, columns=columns, dtype="float64")


def signature(predictions: Sequence[str], protocol: str = "google") -> str:
    """One line that says how ``score`` counts, to be printed beside every figure. Raises UserError as that does."""
    chosen = find_protocol(protocol)
    return (
        f"{protocol}: rouge-score {version('rouge-score')} | stemmer {'porter' if chosen.stem else 'none'}"
        f" | words {chosen.words} | lower-cased | sentences {'one line' if chosen.one_line else 'one a line'}"
        f" | published R-L = {chosen.published_l} | n {len(predictions)}"
        f" | empty {sum(not prediction.strip() for prediction in predictions)}"
    )


def find_protocol(name: str) -> Protocol:
    """Raises UserError where there is none of that name."""
    if name not in PROTOCOLS:
        raise UserError(f"unknown ROUGE protocol {name!r}; use one of {', '.join(PROTOCOLS)}")
    return PROTOCOLS[name]


class _Tokenizer:
    """What rouge-score takes as a tokenizer: its own words, with each stem computed once (twice as fast)."""

    def __init__(self, protocol: Protocol) -> None:
        from nltk.stem.porter import PorterStemmer

        self.protocol = protocol
        self.stem = lru_cache(maxsize=100_000)(PorterStemmer().stem)

    def tokenize(self, text: str) -> list[str]:
        from rouge_score.tokenize import tokenize

        if self.protocol.words == "whitespace":
            return text.lower().split()
        return tokenize(text, self if self.protocol.stem else None)
