"""A small factbook dataset and runs of random weights on it, written without Ray."""

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from safetensors.torch import save_file

from raysum.config.sections import Config, DecodeConfig
from raysum.data.dataset import ROW_GROUP, SCHEMA, Dataset
from raysum.data.recipe import Recipe
from raysum.data.vocabulary import Vocabulary
from raysum.models.build import build
from raysum.models.specs import PredictorSpec, RankerSpec, Seq2SeqSpec
from raysum.prepare.factbook import generate
from raysum.prepare.pipeline import prepare_example
from raysum.run import Run


def write_factbook(path: Path, counts: dict[str, int], summaries: bool = True, pieces: int = 400) -> Dataset:
    """A dataset with ``counts`` examples a split; its vocabulary depends on ``pieces`` alone."""
    path.mkdir(parents=True)
    texts = [text for raw in generate("train", 60) for text in (raw["summary"], *(d["text"] for d in raw["documents"]))]
    vocabulary = Vocabulary.train(
        [line for text in texts for line in text.splitlines()], pieces, path / "vocabulary.model"
    )
    recipe = Recipe(max_paragraphs=10, paragraph_tokens=40, vocabulary_sha256=vocabulary.sha256)
    splits = {}
    for split, count in counts.items():
        changes: dict[str, Any] = {} if summaries else {"summary": "", "facts": None}
        rows = [prepare_example(raw | changes, recipe, vocabulary) for raw in generate(split, count)]
        columns = {field.name: pa.array([row[field.name] for row in rows], field.type) for field in SCHEMA}
        pq.write_table(pa.table(columns, SCHEMA), path / f"{split}-00000.parquet", row_group_size=ROW_GROUP)
        lengths = [(len(row["ids"]), len(row["document"]), len(row["target_ids"])) for row in rows]
        np.save(path / f"{split}.lengths.npy", np.array(lengths, np.int32))
        splits[split] = {"rows": count, "shards": [{"file": f"{split}-00000.parquet", "rows": count}]}
    fingerprint = hashlib.sha256(repr((counts, summaries, pieces)).encode()).hexdigest()
    manifest = {"format": 1, "kind": "summarization", "recipe": recipe.model_dump(), "splits": splits}
    (path / "manifest.json").write_text(json.dumps(manifest | {"fingerprint": fingerprint, "pieces": len(vocabulary)}))
    return Dataset.open(path)


def write_run(path: Path, dataset: Dataset, predictor: bool = False) -> Run:
    """A PHT of random weights, with an attention predictor if asked for; decodes up to 16 tokens with 2 beams."""
    sizes = {"width": 16, "ffn": 32, "heads": 2}
    pieces = len(Vocabulary.load(dataset.vocabulary_path))
    run = Run(path)
    _write(run, Seq2SeqSpec(encoder="L", decoder="P", vocabulary=pieces, pooling_heads=2, **sizes), dataset)
    if predictor:
        _write(run.alignment, PredictorSpec(layers=1, **sizes), dataset)
    return run


def write_ranker(path: Path, dataset: Dataset) -> Run:
    """A ranker of random weights."""
    run = Run(path)
    _write(run, RankerSpec(vocabulary=len(Vocabulary.load(dataset.vocabulary_path)), width=8, hidden=8), dataset)
    return run


def _write(run: Run, spec: Seq2SeqSpec | PredictorSpec | RankerSpec, dataset: Dataset) -> None:
    torch.manual_seed(0)
    model = build(spec)
    for parameter in model.parameters():  # wide, so that hypotheses differ clearly
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.3)
    decode = DecodeConfig(num_beams=2, max_length=16, batch_examples=4)
    run.create(Config(model=spec, decode=decode), dataset.recipe.model_dump(), dataset.vocabulary_path)
    run.checkpoint_path(1).mkdir()
    save_file(model.state_dict(), run.checkpoint_path(1) / "weights.safetensors")
