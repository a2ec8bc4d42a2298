"""What the attention predictor learns: a trained model's paragraph embeddings, and the attention it pays to each.

The dataset of kind ``alignment`` has the rows ``id``, ``embeddings`` (Memory.paragraphs, flat [M * D] in fp16) and
``label`` (eta of eq. 15, [M], summing to 1).
"""

import hashlib
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from safetensors.torch import load_file

from raysum.config.sections import Config
from raysum.data.dataset import FORMAT, MANIFEST, ROW_GROUP, VOCABULARY, Dataset
from raysum.errors import UserError
from raysum.models.batch import PAD, Batch
from raysum.models.build import build
from raysum.models.generator import Generator
from raysum.run import Run, write_json
from raysum.runtime.progress import track
from raysum.runtime.session import ray_session
from raysum.stream.kinds.collate import Summarization, kind_of, move
from raysum.stream.loader import read_rows, spread
from raysum.stream.plan import cut
from raysum.train.group import cpu_share, settle

_SCHEMA = pa.schema([("id", pa.string()), ("embeddings", pa.list_(pa.float16())), ("label", pa.list_(pa.float32()))])


class Labeler:
    """The best checkpoint of a run in evaluation mode, as an actor or in this process."""

    def __init__(self, run: str, data: str, threads: int | None, neighbours: int):
        settle(threads, neighbours)
        opened = Run.open(run)
        self.source, self.budget = opened.config.source, opened.config.train.batch_tokens
        self.data, self.kind = data, Summarization.of(opened.config.model)
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        model = build(opened.config.model)
        assert isinstance(model, Generator)
        self.model = model
        self.model.load_state_dict(load_file(opened.best().weights))
        self.model.eval().to(self.device)

    def label(self, split: str, rows: np.ndarray) -> pa.Table:
        """A table of ``_SCHEMA`` for the ascending ``rows`` of the dataset's ``split``."""
        found = read_rows(self.data, split, rows, ("id", *self.kind.columns))
        examples = [found[row] for row in rows.tolist()]
        costs = np.array([len(example["ids"]) + len(example["target_ids"]) for example in examples])
        columns: dict[str, list[np.ndarray]] = {"embeddings": [], "label": []}
        for part in np.split(np.arange(len(rows)), np.cumsum(cut(costs, self.budget))[:-1]):
            batch = self.kind.collate(self.kind.pack([examples[i] for i in part.tolist()], self.source))
            phi, eta = paragraph_attention(self.model, move(batch, self.device))
            for counted, embeddings, label in zip(batch.source.counts.tolist(), phi.cpu(), eta.cpu(), strict=True):
                columns["embeddings"].append(embeddings[:counted].flatten().half().numpy())
                columns["label"].append(label[:counted].numpy())
        return pa.table({"id": [example["id"] for example in examples], **columns}, _SCHEMA)

    def __call__(self, block: pa.Table) -> pa.Table:
        """:meth:`label` for a Ray Data block with the columns ``split`` and ``row``."""
        return self.label(block["split"][0].as_py(), block["row"].to_numpy())


@torch.no_grad()
def paragraph_attention(model: Generator, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
    """Phi [B, M, D] and eta [B, M] in fp32 of a teacher-forced model in evaluation mode.

    Eta (PHT eq. 15): attention to each paragraph, summed over the predicted tokens and over layers, as a share.
    """
    memory = model.encode(batch.source)
    _, attention = model.decode(batch.target[:, :-1], memory, attention=True)
    assert attention is not None, "it was asked for"
    predicted = (batch.target[:, 1:] != PAD)[..., None]
    total = (attention.float() * predicted).sum(1)
    return memory.paragraphs().float(), total / total.sum(-1, keepdim=True)


def write_labels(run: Run, dataset: Dataset, config: Config) -> Dataset:
    """The alignment dataset of ``run`` for the train and valid splits of ``dataset``; written once, then opened.

    Raises UserError where it was written for another dataset, or for another checkpoint than the best one.
    """
    folder, best = run.alignment.path / "labels", run.best()
    origin = {"checkpoint": best.step, "data": dataset.fingerprint}
    if (folder / MANIFEST).is_file():
        labels = Dataset.open(folder)
        if labels.manifest["origin"] != origin:
            raise UserError(
                f"{run.alignment.path} was made for checkpoint {labels.manifest['origin']['checkpoint']} or another "
                f"dataset, the best checkpoint is now {best.step}; remove that folder to train it anew"
            )
        return labels
    partial = folder.with_name(".partial-labels")
    shutil.rmtree(partial, ignore_errors=True)
    manifest = {"format": FORMAT, "kind": "alignment", "recipe": dataset.manifest["recipe"], "origin": origin}
    digest = hashlib.sha256(json.dumps(manifest).encode())
    try:
        partial.mkdir(parents=True)
        shutil.copyfile(dataset.vocabulary_path, partial / VOCABULARY)
        splits = {}
        for split, most in (("train", config.train.label_examples), ("valid", config.train.validate_examples)):
            chunks = _chunks(run, dataset, split, most) if split in dataset.splits else []
            if chunks:
                splits[split] = _write_split(partial, split, _labelled(run, dataset, split, chunks, config), digest)
        write_json(partial / MANIFEST, manifest | {"splits": splits, "fingerprint": digest.hexdigest()})
        partial.rename(folder)
    except OSError as error:
        raise UserError(f"cannot write {partial}: {error.strerror}; free space there, or change its rights") from None
    return Dataset.open(folder)


def _chunks(run: Run, dataset: Dataset, split: str, most: int | None) -> list[np.ndarray]:
    """Row numbers that are labelled, a row group's worth each."""
    _, weights = kind_of(dataset, run.config.model).costs(dataset.lengths(split), run.config.source)
    rows = spread(np.flatnonzero(weights > 0), most)
    return [rows[start : start + ROW_GROUP] for start in range(0, len(rows), ROW_GROUP)]


def _labelled(run: Run, dataset: Dataset, split: str, chunks: list[np.ndarray], config: Config) -> Iterator[pa.Table]:
    """A labelled table for each chunk, in order: by this process without workers, else by actors in Ray Data."""
    label = f"labelling {split}"
    workers, settings = config.train.workers, (str(run.path), str(dataset.path), config.train.threads)
    if not workers:
        labeler = Labeler(*settings, 1)
        yield from track((labeler.label(split, rows) for rows in chunks), len(chunks), label, unit="chunk")
        return
    with ray_session(config.train.address, cpus=workers + 1):
        import ray.data

        tables = [pa.table({"split": [split] * len(rows), "row": rows}) for rows in chunks]
        labelled = ray.data.from_arrow(tables).map_batches(
            Labeler,
            fn_constructor_args=(*settings, workers),
            batch_size=None,
            batch_format="pyarrow",
            concurrency=min(workers, len(chunks)),
            num_cpus=cpu_share(workers),
            num_gpus=1 if torch.cuda.is_available() else 0,
        )
        labelled.context.execution_options.preserve_order = True
        yield from track(
            labelled.iter_batches(batch_size=None, batch_format="pyarrow"), len(chunks), label, unit="chunk"
        )


def _write_split(folder: Path, split: str, tables: Iterator[pa.Table], digest: Any) -> dict[str, Any]:
    """Write one shard and its lengths; the split's entry of the manifest."""
    name, counts = f"{split}-00000.parquet", []
    with pq.ParquetWriter(folder / name, _SCHEMA, compression="zstd") as writer:
        for table in tables:
            writer.write_table(table)  # a row group: ROW_GROUP rows, but for the last
            counts += [len(label) for label in table["label"]]
            for column in ("embeddings", "label"):
                digest.update(table[column].combine_chunks().values.to_numpy())
    paragraphs = np.array(counts, np.int32)
    np.save(folder / f"{split}.lengths.npy", np.stack([paragraphs, paragraphs, paragraphs], 1))
    return {"rows": len(counts), "shards": [{"file": name, "rows": len(counts)}]}
