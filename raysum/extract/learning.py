"""`raysum train extractor`: learn from a dataset which sentences to select, in about a minute on one core.

Regression trees score each sentence by its features: T trees of N nodes at most, M sentences, F features.
"""

import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import islice
from typing import Any

import numpy as np

from raysum.config.sections import Config, LoadConfig
from raysum.data.dataset import Dataset
from raysum.data.recipe import read_recipe
from raysum.data.rows import Row, references
from raysum.errors import UserError
from raysum.extract.explanation import Explanation, gain_shares
from raysum.extract.features import Cues, CueValues, cue_features, cue_names, cue_texts, cues_of, features
from raysum.extract.systems import TrainedExtractive
from raysum.extract.targets import sentence_targets
from raysum.extract.untrained import MOST_COMPARED, compare_untrained
from raysum.metrics import rouge
from raysum.prepare.row_builder import as_sentences, sentence_row
from raysum.runs.folder import Run
from raysum.runtime.checksums import damaged
from raysum.runtime.compat import boosted_trees
from raysum.runtime.progress import bar, say
from raysum.runtime.storage import append_line, load_tensors, writing
from raysum.text.tfidf import count_words
from raysum.tokenizers.loading import load_tokenizer

_COLUMNS = (
    *("id", "title", "source", "text", "document", "paragraph", "char_start", "labels"),
    *("summary", "other_summaries"),
)
_REDUNDANCY = 0.7  # cosine above which a sentence repeats a taken one
_CUES, _TINY = 12, 1e-6  # highest and lowest cues that are stored by name; values that are rounding errors of 0
_IDLE = ("source", "train", "optim", "deepspeed", "decode", "mixed", "data_weights")
FEWEST = 10  # clusters with a summary to learn from
_TABLES = ("words", "names")


@dataclass(frozen=True)
class Trees:
    """Regression trees as plain arrays, which are stored beside other weights and read without running foreign code.

    ``feature``, ``left`` and ``right`` [T, N] int32, ``threshold`` and ``value`` [T, N] float64; ``base`` [1] is added
    to the sum of all trees' values. At a leaf, left and right are the node itself.
    """

    feature: np.ndarray
    threshold: np.ndarray
    left: np.ndarray
    right: np.ndarray
    value: np.ndarray
    base: np.ndarray

    @classmethod
    def read(cls, arrays: Mapping[str, np.ndarray]) -> "Trees":
        """Return the trees of ``arrays``. Raises KeyError or ValueError if sizes differ or a node is not there."""
        trees = cls(**{field.name: arrays[field.name] for field in fields(cls)})
        of_nodes = (trees.threshold, trees.left, trees.right, trees.value)
        if trees.base.shape != (1,) or any(array.shape != trees.feature.shape for array in of_nodes):
            raise ValueError("arrays of different sizes")
        for name, nodes in (("left", trees.left), ("right", trees.right)):
            if ((nodes < 0) | (nodes >= nodes.shape[1])).any():
                raise ValueError(f"{name} names a node that is not there")
        return trees

    def predict(self, features: np.ndarray) -> np.ndarray:
        """[M, F] -> [M]"""
        rows, trees = np.arange(len(features)), np.arange(len(self.feature))[:, None]
        node, before = np.zeros((len(self.feature), len(features)), np.int32), None  # [T, M]
        while before is None or (node != before).any():
            before = node
            small = features[rows, self.feature[trees, node]] <= self.threshold[trees, node]
            node = np.where(small, self.left[trees, node], self.right[trees, node])
        return self.base[0] + self.value[trees, node].sum(0)


@dataclass(frozen=True)
class Inputs:
    """``features`` [M, F] of the sentences of a cluster, and their cues."""

    features: np.ndarray
    cues: tuple[Cues, Cues]

    @classmethod
    def of(cls, row: Row, width: int) -> "Inputs":
        return cls(features(row), cues_of(row, width))

    def array(self, tables: Sequence[np.ndarray]) -> np.ndarray:
        """Return [M, F']: the features and those of the cues, whose values are in ``tables``."""
        return np.concatenate([self.features, cue_features(self.cues, tables)], 1)


class FeatureScorer:
    """The scores of a trained extractor. Raises UserError if the checkpoint is missing."""

    def __init__(self, run: Run, config: LoadConfig, device: str | None = None):
        if config.dtype != LoadConfig.model_fields["dtype"].default:
            raise UserError(f"dtype={config.dtype} is for matrices, but {run.path} has trees: leave it out")
        weights = run.checkpoint(config.checkpoint).weights
        self.vocabulary, self.recipe = load_tokenizer(run.vocabulary), read_recipe(run.recipe, str(run.path))
        try:
            arrays = load_tensors(weights, "numpy")
            self._trees, self._tables = Trees.read(arrays), [arrays[name] for name in _TABLES]
        except (KeyError, ValueError) as error:
            raise damaged(weights, f"holds no trained extractor ({error})") from None

    def row(self, cluster: Mapping[str, Any]) -> Row:
        """Return a raw cluster as a row of kind extraction, without labels. Raises Rejected if it has no sentence."""
        return sentence_row(cluster, self.recipe, self.vocabulary)

    def scores(self, row: Row) -> np.ndarray:
        """Return [M] estimates of the share of each sentence that a summary contains."""
        return self._trees.predict(Inputs.of(row, len(self._tables[0])).array(self._tables))


@dataclass(frozen=True)
class TrainingCluster:
    """The ``inputs`` of the M sentences of a cluster, their target values [M] and :func:`cue_texts`.

    ``words`` are those of its first reference.
    """

    inputs: Inputs
    targets: np.ndarray
    words: int
    texts: Sequence[Sequence[str]]


def train(config: Config, compared: bool = True) -> Run:
    """Train an extractor on ``config.data`` into ``config.out``, unless it is trained already.

    If ``compared``, and the dataset has a valid split, it is compared with the systems without training.
    Raises UserError if the dataset or run is wrong, or has too few clusters.
    """
    spec: Any = config.model
    if not config.data or not config.out:
        raise UserError("write `raysum train extractor data=DATA out=RUN`")
    if idle := [name for name in _IDLE if getattr(config, name) != getattr(Config(), name)]:
        raise UserError(f"an extractor trains in one call and does not use {idle[0]} settings: leave them out")
    dataset, run = Dataset.open(config.data), Run(config.out)
    if run.exists and run.checkpoints():
        run.check()
        if run.config.model != config.model or run.checkpoint().state.get("data") != dataset.fingerprint:
            raise UserError(f"{run.path} was trained with another config or dataset; choose another out=")
        say(f"{run.path} is trained already; choose another out= to train again")
        return run
    import torch  # takes a second, and other commands do not need it

    began = time.monotonic()
    known = _examples(dataset, "train", spec)
    if len(known) < FEWEST:
        raise UserError(f"{dataset.place} has {len(known)} clusters with a summary to learn from; {FEWEST} are needed")
    run.create(config, dataset.manifest["recipe"], dataset.vocabulary_path)
    trees, tables = _fitted(known, spec)
    word_cues, name_cues = (_cues(known, part, table) for part, table in enumerate(tables))
    explanation = Explanation(target=spec.target, gains=gain_shares(trees), word_cues=word_cues, name_cues=name_cues)
    del trees["gain"]
    arrays = {**trees, **dict(zip(_TABLES, tables, strict=True))}
    losses = {"train_loss": _loss(known, trees, tables)}
    if "valid" in dataset.splits and (held := _examples(dataset, "valid", spec)):
        losses["valid_loss"] = _loss(held, trees, tables)
    state = {"seconds": round(time.monotonic() - began, 3), "data": dataset.fingerprint}
    with writing(run.path):
        append_line(run.metrics, {"step": spec.trees, **losses})
        if "valid_loss" in losses:
            run.add_validation(spec.trees, {"valid_loss": losses["valid_loss"]})
        usual = int(statistics.median(example.words for example in known))
        run.set_extract({"words": usual, "redundancy": _REDUNDANCY})
        explanation.write(run)
        run.add_weights(spec.trees, {name: torch.from_numpy(array) for name, array in arrays.items()}, state)
    losses_text = ", ".join(f"{name.replace('_', ' ')} {value:.5f}" for name, value in losses.items())
    say(f"{run.path} is trained on {len(known)} clusters: {losses_text}, {state['seconds']:.0f} s")
    if compared and "valid_loss" in losses:
        _compare(run, [*_rows(dataset, "valid", MOST_COMPARED)], explanation)
    return run


def _compare(run: Run, rows: Sequence[Row], explanation: Explanation) -> None:
    """Compare ``run`` with the systems without training, and add the result to its ``explanation``."""
    if problem := rouge.unread(row["summary"] for row in rows):
        say(f"not compared with systems without training: {problem}")
        return
    comparison = compare_untrained(TrainedExtractive(run, LoadConfig()), run.extract, rows)
    with writing(run.path):
        explanation.model_copy(update={"comparison": comparison}).write(run)
    say(comparison.sentence(run.name))


def _examples(dataset: Dataset, split: str, spec: Any) -> list[TrainingCluster]:
    total, rows = min(dataset.references(split), spec.examples), _rows(dataset, split, spec.examples)
    return [_example(row, spec) for row in bar(rows, total=total, label=f"features of {split}", unit="cluster")]


def _rows(dataset: Dataset, split: str, most: int) -> Iterator[Row]:
    """Yield the clusters with a summary, or an even sample if there are more than ``most``."""
    step = max(1, dataset.references(split) // most)
    rows = (row for row in dataset.read(split, _COLUMNS) if row["summary"].strip())
    return islice(rows, 0, step * most, step)


def _example(row: Row, spec: Any) -> TrainingCluster:
    sentences = as_sentences(row)
    targets = sentence_targets(spec.target, sentences["text"], [text for text in references(row) if text.strip()])
    length = max(count_words(row["summary"]), 1)
    return TrainingCluster(Inputs.of(sentences, spec.width), targets, length, cue_texts(sentences))


def _fitted(examples: Sequence[TrainingCluster], spec: Any) -> tuple[dict[str, np.ndarray], list[np.ndarray]]:
    """Return the trees and the tables of cue values. Each example is learned with tables without its own part."""
    from sklearn.ensemble import HistGradientBoostingRegressor

    pairs = [[(example.inputs.cues[part], example.targets) for example in examples] for part in range(len(_TABLES))]
    values = [CueValues(spec.width, spec.cue_prior, of_part) for of_part in pairs]
    inputs = []
    for number, example in enumerate(examples):
        tables = [value.table(of_part[number]) for value, of_part in zip(values, pairs, strict=True)]
        inputs.append(example.inputs.array(tables))
    model = HistGradientBoostingRegressor(
        max_iter=spec.trees,
        learning_rate=spec.rate,
        max_leaf_nodes=spec.leaves,
        min_samples_leaf=spec.leaf_sentences,
        max_features=spec.feature_share,
        early_stopping=False,
        random_state=0,
    )
    model.fit(np.concatenate(inputs), np.concatenate([example.targets for example in examples]))
    return boosted_trees(model), [value.table() for value in values]


def _cues(examples: Sequence[TrainingCluster], part: int, table: np.ndarray) -> dict[str, float]:
    """Return the words, signs and pairs of them with the highest and the lowest values in ``table`` of a ``part``."""
    order = np.argsort(-table, kind="stable").tolist()
    wanted = [number for number in (*order[:_CUES], *order[-_CUES:]) if abs(table[number]) > _TINY]
    texts = (one.texts[part][number] for one in examples for number in one.inputs.cues[part].having(wanted))
    names = cue_names(texts, {*wanted}, len(table))
    return {names[number]: float(table[number]) for number in wanted if number in names}


def _loss(examples: Sequence[TrainingCluster], arrays: Mapping[str, np.ndarray], tables: Sequence[np.ndarray]) -> float:
    """Return the mean squared error of the sentences' values."""
    trees = Trees.read(arrays)
    gaps = [trees.predict(example.inputs.array(tables)) - example.targets for example in examples]
    return float(np.square(np.concatenate(gaps)).mean())
