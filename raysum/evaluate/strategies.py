"""The decoding strategies of the PHT paper's Table 2: one model, beam search with one score term more in each row."""

from collections.abc import Iterator

from raysum.decode.summarizer import Summarizer
from raysum.evaluate.systems import Trained
from raysum.runtime.progress import say

PLAIN = "plain"
# The rows after plain beam search, by the decoding key that weights their term.
ROWS = {"strCov": "structural_coverage", "extProb": "extractive", "attAlign": "beta"}
WEIGHT = 0.4  # where the run has chosen none; the paper searches beta from 0.2 to 1


def strategies(summarizer: Summarizer) -> Iterator[tuple[Trained, dict[str, float]]]:
    """The systems, ``plain`` first, each with the weight of its term; what is left out is said on stderr.

    Weights are the run's own where it has some; extProb goes with beta otherwise, as in the paper, where it has another
    eta_hat and nothing else. GNMT's coverage and compression are in no row.
    """
    run = summarizer.settings
    beta = run.beta or WEIGHT
    weights = {
        "structural_coverage": run.structural_coverage or WEIGHT,
        "extractive": run.extractive or beta,
        "beta": beta,
    }
    off = dict.fromkeys([*ROWS.values(), "gnmt_coverage"], 0.0)
    plain = run.model_copy(update={**off, "keep_paragraphs": None})
    yield Trained(PLAIN, summarizer, plain), {}
    for name, key in ROWS.items():
        missing = _missing(summarizer, key)
        if missing:
            say(f"without the row {name}: {missing}")
            continue
        weight = {key: weights[key]}
        yield Trained(name, summarizer, plain.model_copy(update=weight)), weight


def _missing(summarizer: Summarizer, key: str) -> str:
    """What the term of ``key`` needs and is not there."""
    if key == "extractive" and summarizer.searcher.ranker is None:
        return "it needs a learned ranker (`raysum train ranker data=DATA out=RANKER`, then --set ranker=RANKER)"
    if key == "beta" and summarizer.searcher.predictor is None:
        return f"it needs an attention predictor (`raysum train alignment run={summarizer.name} data=DATA`)"
    return ""
