"""ROUGE-1, 2, L and Lsum under named protocols, with a signature to print beside them.

The same summaries score up to 25 points apart under different protocols, so figures of different protocols must not
stand in one table. All but ``pht-paper`` count as rouge-score does; where a paper used another program, its protocol
here is the nearest setting, and what still differs is said at its entry.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pandas as pd

from raysum.errors import UserError
from raysum.metrics import set_rouge, word_rouge

_READ = 0.3  # of the letters of references, which are of numbers and names where a text is of another script
_LONGEST_WORD = 15  # letters, on average, of a text that has blanks
METRICS = ("rouge1", "rouge2", "rougeL", "rougeLsum")
Several = Literal["best", "mean", "jackknife"]
_SEVERAL = {"best": "maximum F1", "mean": "mean", "jackknife": "jackknifed maximum F1"}
_PARTS = ("", "_precision", "_recall")  # what a column's name ends with: F1 has no ending


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
    chosen = find_protocol(protocol)
    wanted = [[one] if isinstance(one, str) else one for one in references]
    if chosen.one_line and not chosen.sets:
        predictions, wanted = [_joined(one) for one in predictions], [[*map(_joined, some)] for some in wanted]
    each = (_sets if chosen.sets else word_rouge.scores)(predictions, wanted)
    if len(each) > len(wanted):
        ends = np.cumsum([len(some) for some in wanted])[:-1]
        each = np.stack([_as_one(found, several) for found in np.split(each, ends)])
    columns = [f"{metric}{suffix}" for suffix in _PARTS for metric in METRICS]
    return pd.DataFrame(100 * each.reshape(len(each), len(columns)), columns=columns)


def _joined(text: str) -> str:
    return text.replace("\n", " ")


def _as_one(scores: np.ndarray, several: Several) -> np.ndarray:
    """The scores of one prediction by each of its references, [n, 3, 4], as one."""
    if several == "best" or len(scores) == 1:
        return _best(scores)
    if several == "jackknife":
        scores = np.stack([_best(np.delete(scores, left_out, axis=0)) for left_out in range(len(scores))])
    return scores.mean(axis=0)


def _best(scores: np.ndarray) -> np.ndarray:
    """[3, 4] of the reference of the highest F1, for each metric by itself."""
    return np.take_along_axis(scores, scores[:, :1].argmax(axis=0)[None], axis=0)[0]


def _sets(predictions: Sequence[str], references: Sequence[Sequence[str]]) -> np.ndarray:
    """As :func:`word_rouge.scores`."""
    found = (set_rouge.scores(one, other) for one, some in zip(predictions, references, strict=True) for other in some)
    values = [[one[metric] for metric in ("rouge1", "rouge2", "rougeL", "rougeL")] for one in found]
    return np.array(values).reshape(-1, 4, 3).transpose(0, 2, 1)


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


def unread(references: Iterable[str], protocol: str = "google") -> str | None:
    """Why figures say nothing where ``references`` are in another script, and what to do; None where they do."""
    text = " ".join(references)
    letters = sum(map(str.isalnum, text))
    if find_protocol(protocol).sets:
        if letters <= _LONGEST_WORD * len(text.split()):
            return None
        told = f"ROUGE by {protocol} counts words between blanks, and the references have next to none"
    else:
        counted = sum(one.isascii() and one.isalnum() for one in text)
        if counted > _READ * letters or not letters:
            return None
        share = f"of the references' letters {100 * counted / letters:.0f} % are"
        told = f"ROUGE by {protocol} counts a-z and 0-9 alone, and {share}; --protocol pht-paper counts other scripts"
    return f"{told}; a text without blanks needs some between its words or characters before `raysum prepare`"


def find_protocol(name: str) -> Protocol:
    """Raises UserError where there is none of that name."""
    if name not in PROTOCOLS:
        raise UserError(f"unknown ROUGE protocol {name!r}; use one of {', '.join(PROTOCOLS)}")
    return PROTOCOLS[name]
