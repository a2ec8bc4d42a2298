"""The content of a summary in the best paragraphs [M] of a cluster, by a learned ranker and others (HT, Table 1)."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pandas as pd

from raysum.data.dataset import Dataset
from raysum.data.rows import Row
from raysum.evaluate.config import EvaluateConfig
from raysum.evaluate.examples import read_examples
from raysum.evaluate.scorers import BEST
from raysum.evaluate.table import Evaluation
from raysum.metrics import rouge
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
    """Return the ROUGE-L recall (0 to 100) of the reference by the best 5, 10, 20 and 40 paragraphs together.

    They are in the order of the ranker ``run``, of the tf-idf cosine with the title, and of LexRank. The second value
    has the best paragraphs of each example. Raises UserError if the split has no references.
    """
    orders: dict[str, Callable[[Row], np.ndarray]] = {run.name: learned(run, config, dataset), "tf-idf": similarity}
    orders["LexRank"] = lambda row: lexrank(row["text"])
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
    result = Evaluation.of(
        pd.DataFrame(lines),
        [*BEST],
        protocol=rouge.signature([output[run.name] for output in outputs], _PROTOCOL),
        examples=len(outputs),
        data={"fingerprint": dataset.fingerprint, "split": split},
        how={
            run.name: f"all paragraphs by the learned ranker {run.path}",
            "tf-idf": "by their tf-idf cosine with the title",
            "LexRank": "by their centrality",
        },
    )
    return result, outputs


def recalls(row: Row, order: np.ndarray, best: Mapping[str, int] = BEST) -> dict[str, float]:
    """Return the ROUGE-L recall of the summary by the ``best`` so many paragraphs of ``row`` in ``order``, by name."""
    texts = [" ".join(row["text"][place] for place in order[:most]) for most in best.values()]
    found = rouge.score(texts, [row["summary"]] * len(texts), _PROTOCOL)["rougeL_recall"]
    return dict(zip(best, found.tolist(), strict=True))


def learned(run: Run, config: EvaluateConfig, dataset: Dataset) -> Callable[[Row], np.ndarray]:
    """Return the function of a row that scores its paragraphs [M] by the ranker ``run``."""
    model = restore(run, config.checkpoint, device())
    tokens = run.config.source.paragraph_tokens
    ranker = LearnedRanker(model, load_tokenizer(dataset.vocabulary_path), dataset.recipe.normalize, tokens)
    return lambda row: ranker.scores(row["title"], row["text"])


def similarity(row: Row) -> np.ndarray:
    """Return the tf-idf cosine [M] of each paragraph with the title."""
    return rank_scores("tfidf", words(row["title"]), [words(text) for text in row["text"]])
