"""A small factbook dataset and runs of random weights on it, written without Ray."""

from pathlib import Path
from typing import Any

import torch

from raysum.config.decoding import DecodeConfig
from raysum.config.sections import Config
from raysum.data.dataset import Dataset
from raysum.data.recipe import Graph, Recipe
from raysum.data.rows import table_of
from raysum.data.writer import DatasetWriter
from raysum.examples.factbook.corpus import generate
from raysum.examples.factbook.scorer import KEPT
from raysum.models.family.spec import FamilySpec
from raysum.models.systems.specs import PredictorSpec, RankerSpec
from raysum.prepare.row_builder import prepare_example
from raysum.runs.folder import Run
from raysum.systems import Spec, build
from raysum.tokenizers.loading import load_tokenizer
from raysum.tokenizers.sentence_piece import Vocabulary


def write_factbook(
    path: Path, counts: dict[str, int], summaries: bool = True, pieces: int = 400, graph: Graph = "none"
) -> Dataset:
    """A dataset with ``counts`` examples a split; its vocabulary depends on ``pieces`` alone."""
    path.mkdir(parents=True)
    texts = [text for raw in generate("train", 60) for text in (raw["summary"], *(d["text"] for d in raw["documents"]))]
    vocabulary = Vocabulary.train([line for text in texts for line in text.splitlines()], pieces)
    limits: dict[str, Any] = {"max_paragraphs": 10, "paragraph_tokens": 40, "graph": graph, "keep": [KEPT]}
    recipe = Recipe(**limits, vocabulary_sha256=vocabulary.sha256)
    writer = DatasetWriter(path, "summarization", recipe, vocabulary)
    changes: dict[str, Any] = {} if summaries else {"summary": "", KEPT: None}
    written = []
    for split, count in counts.items():
        rows = [prepare_example(raw | changes, recipe, vocabulary) for raw in generate(split, count)]
        written.append(writer.add(split, split, [table_of(rows, writer.kind)]))
    return writer.finish(written)


def write_run(path: Path, dataset: Dataset, predictor: bool = False, **shape: str) -> Run:
    """A PHT (or of another ``shape``) of random weights, with an attention predictor if asked for; decodes up to 16
    tokens with 2 beams."""
    sizes = {"width": 16, "ffn": 32, "heads": 2}
    pieces = len(load_tokenizer(dataset.vocabulary_path))
    run = Run(path)
    form: dict[str, Any] = {"encoder": "L", "decoder": "P", **shape}
    write_model(run, FamilySpec(vocabulary=pieces, pooling_heads=2, **form, **sizes), dataset)
    if predictor:
        write_model(run.alignment, PredictorSpec(layers=1, **sizes), dataset)
    return run


def write_ranker(path: Path, dataset: Dataset) -> Run:
    """A ranker of random weights."""
    run = Run(path)
    write_model(run, RankerSpec(vocabulary=len(load_tokenizer(dataset.vocabulary_path)), width=8, hidden=8), dataset)
    return run


def write_model(run: Run, spec: Spec, dataset: Dataset) -> None:
    """The ``run`` of a model with random weights."""
    torch.manual_seed(0)
    model = build(spec)
    for parameter in model.parameters():  # wide, so that hypotheses differ clearly
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.3)
    decode = DecodeConfig(num_beams=2, max_length=16, batch_examples=4)
    run.create(Config(model=spec, decode=decode), dataset.recipe.model_dump(), dataset.vocabulary_path)
    run.add_weights(1, model.state_dict(), {"data": dataset.fingerprint})
