"""How much of a summary the best paragraphs of a cluster hold, put in order by a learned ranker and otherwise: HT's
Table 1, of all the paragraphs that a dataset of kind ranking has.

M paragraphs of a cluster.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import pandas as pd

from raysum.data.dataset import Dataset
from raysum.data.rows import Row
from raysum.evaluate.config import EvaluateConfig
from raysum.evaluate.examples import read_examples
from raysum.evaluate.scorers import BEST, FIGURES, means
from raysum.evaluate.table import Evaluation
from raysum.metrics import rouge
from raysum.metrics.statistics import difference_of
from raysum.prepare.learned import LearnedRanker
from raysum.prepare.ranking import best_first, lexrank, rank_scores
from raysum.runs.folder import Run
from raysum.runs.restore import restore
from raysum.runtime.placement import device
from raysum.runtime.progress import bar
from raysum.text.tfidf import words
from raysum.tokenizers.loading import load_tokenizer

_PROTOCOL = "ht-paper"  # HT's figures are of ROUGE-1.5.5
_SHOWN = 5  # paragraphs of an output


def evaluate_ranker(run: Run, dataset: Dataset, split: str, config: EvaluateConfig) -> tuple[Evaluation, list[Any]]:
    """ROUGE-L recall (0 to 100) of the reference against the best 5, 10, 20 and 40 paragraphs together, in the order of
    the ranker ``run``, of the tf-idf cosine with the title, and of LexRank; and what each example's best ones are.

    If a cluster has no more paragraphs than are taken, all rankers take all of them, in different orders.
    Raises UserError where the split has no references.
    """
    orders = {run.name: learned(run, config, dataset)} | {"tf-idf": similarity, "LexRank": _central}
    known = dataset.references(split)
    lines: list[dict[str, Any]] = []
    outputs: list[dict[str, Any]] = []
    examples = read_examples(dataset, split, config.limit)
    for row in bar(examples, total=min(config.limit or known, known), label=f"evaluate {split}", unit="example"):
        outputs.append({"id": row["id"], "reference": row["summary"], "notes": {}})
        for name, scores in orders.items():
            order = best_first(scores(row))
            lines.append({"id": row["id"], "system": name, **recalls(row, order)})
            outputs[-1][name] = "\n".join(row["text"][place] for place in order[:_SHOWN])
    scores = pd.DataFrame(lines)
    parts = {str(name): part.reset_index(drop=True) for name, part in scores.groupby("system", sort=False)}
    main, *rest = parts
    result = Evaluation(
        systems={name: means(part) for name, part in parts.items()},
        differences={f"{main} - {name}": dict(_gaps(parts[main], parts[name])) for name in rest},
        protocol=rouge.signature([output[main] for output in outputs], _PROTOCOL),
        examples=len(outputs),
        scores=scores,
        data={"fingerprint": dataset.fingerprint, "split": split},
        how={
            main: f"all paragraphs by the learned ranker {run.path}",
            "tf-idf": "by their tf-idf cosine with the title",
            "LexRank": "by their centrality",
        },
    )
    return result, outputs


def recalls(row: Row, order: np.ndarray, best: Mapping[str, int] = BEST) -> dict[str, float]:
    """ROUGE-L recall of the summary of ``row`` against the ``best`` so many of its paragraphs in ``order``, by name."""
    texts = [" ".join(row["text"][place] for place in order[:most]) for most in best.values()]
    found = rouge.score(texts, [row["summary"]] * len(texts), _PROTOCOL)["rougeL_recall"]
    return dict(zip(best, found.tolist(), strict=True))


def learned(run: Run, config: EvaluateConfig, dataset: Dataset) -> Callable[[Row], np.ndarray]:
    """What gives [M] the scores of a row's paragraphs by the ranker ``run``."""
    model = restore(run, config.checkpoint, device())
    tokens = run.config.source.paragraph_tokens
    ranker = LearnedRanker(model, load_tokenizer(dataset.vocabulary_path), dataset.recipe.normalize, tokens)
    return lambda row: ranker.scores(row["title"], row["text"])


def similarity(row: Row) -> np.ndarray:
    """[M] tf-idf cosines with the title."""
    return rank_scores("tfidf", words(row["title"]), [words(text) for text in row["text"]])


def _central(row: Row) -> np.ndarray:
    return lexrank(row["text"])


def _gaps(scores: pd.DataFrame, others: pd.DataFrame) -> Iterator[tuple[str, float]]:
    for name in BEST:
        yield from difference_of(name, FIGURES[name], scores, others).items()
