"""What the attention predictor learns: a trained model's paragraph embeddings, and the attention it pays to each.

The dataset of kind ``alignment`` has the rows ``id``, ``embeddings`` (Memory.paragraphs, flat [M * D] in fp16) and
``label`` (eta of eq. 15, [M], summing to 1).
"""

import shutil
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import torch

from raysum.config.problems import validate
from raysum.config.sections import Config
from raysum.data.dataset import MANIFEST, ROW_GROUP, Dataset
from raysum.data.rows import table_of
from raysum.data.vocabulary import Vocabulary
from raysum.data.writer import DatasetWriter, Shard
from raysum.errors import UserError
from raysum.models.batch import Batch, move
from raysum.models.generator import Generator
from raysum.models.special_ids import PAD
from raysum.restore import restore
from raysum.run import Run
from raysum.runtime.placement import device, share
from raysum.runtime.processes import settle
from raysum.runtime.progress import bar
from raysum.runtime.session import ray_session
from raysum.runtime.silence import quiet_data
from raysum.stream.kinds.base import kind_of
from raysum.stream.loader import read_rows, spread
from raysum.stream.plan import cut


def labelled(config: Config) -> tuple[Dataset, Config]:
    """What the predictor of ``config`` learns from, labels of ``config.data`` by the best checkpoint of ``config.run``;
    and the config with the width of that run's paragraph embeddings, and the place inside the run.

    Labels are written once. Raises UserError for a wrong config, run or dataset, and for a model without attention to
    paragraphs.
    """
    if config.run is None or config.data is None:
        missing = "run=RUN" if config.run is None else "data=DATA"
        raise UserError(
            f"{missing} is missing: the attention predictor learns from a run and its data; "
            "write `raysum train alignment run=RUN data=DATA`"
        )
    run, dataset = Run.open(config.run), Dataset.open(config.data)
    trained = run.config.model
    if not trained.attends_to_paragraphs:
        raise UserError(f"{run.path} is no summarizing model, so there is no attention to predict")
    if dataset.vocabulary_hash != run.recipe["vocabulary_sha256"]:
        raise UserError(
            f"{config.data} has another vocabulary than {run.path}; prepare it with --vocab {run.vocabulary}"
        )
    inside = {"model": config.model.model_dump() | {"width": trained.width}, "out": str(run.alignment.path)}
    fitted = validate(config.model_dump() | inside, None, Config)
    return write_labels(run, dataset, fitted), fitted


class Labeler:
    """The best checkpoint of a run in evaluation mode, as an actor or in this process."""

    def __init__(self, run: str, data: str, threads: int | None, neighbours: int):
        settle(threads, neighbours)
        opened = Run.open(run)
        self.source, self.budget = opened.config.source, opened.config.train.batch_tokens
        self.data, self.kind = data, kind_of(opened.config.model, Dataset.open(data))
        self.device = device()
        self.model = restore(opened, "best", self.device)

    def label(self, split: str, rows: np.ndarray) -> pa.Table:
        """A table of labels for the ascending ``rows`` of the dataset's ``split``."""
        found = read_rows(self.data, split, rows, ("id", *self.kind.columns))
        examples = [found[row] for row in rows.tolist()]
        costs = np.array([len(example["ids"]) + len(example["target_ids"]) for example in examples])
        labels: list[dict[str, np.ndarray]] = []
        for part in np.split(np.arange(len(rows)), np.cumsum(cut(costs, self.budget))[:-1]):
            batch = self.kind.collate(self.kind.pack([examples[i] for i in part.tolist()], self.source))
            phi, eta = attention_labels(self.model, move(batch, self.device))
            for counted, embeddings, label in zip(batch.source.counts.tolist(), phi.cpu(), eta.cpu(), strict=True):
                flat = embeddings[:counted].flatten().half().numpy()
                labels.append({"embeddings": flat, "label": label[:counted].numpy()})
        named = [{"id": example["id"], **label} for example, label in zip(examples, labels, strict=True)]
        return table_of(named, "alignment")

    def __call__(self, block: pa.Table) -> pa.Table:
        """:meth:`label` for a Ray Data block with the columns ``split`` and ``row``."""
        return self.label(block["split"][0].as_py(), block["row"].to_numpy())


@torch.no_grad()
def attention_labels(model: Generator, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
    """Phi [B, M, D] and eta [B, M] in fp32 of a teacher-forced model in evaluation mode.

    Eta (PHT eq. 15): attention to each paragraph, summed over the predicted tokens and over layers, as a share.
    """
    memory = model.encode(batch.source)
    _, attention = model.decode(batch.target[:, :-1], memory, attention=True)
    assert attention is not None, "it was asked for"
    predicted = (batch.target[:, 1:] != PAD)[..., None]
    total = (attention.float() * predicted).sum(1)
    return model.paragraphs(memory).float(), total / total.sum(-1, keepdim=True)


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
    examples = {"train": config.train.label_examples, "valid": config.train.validate_examples}
    try:
        partial.mkdir(parents=True)
        writer = DatasetWriter(partial, "alignment", dataset.recipe, Vocabulary.load(dataset.vocabulary_path))
        shards = [
            _shard(writer, run, dataset, split, config, most)
            for split, most in examples.items()
            if split in dataset.splits
        ]
        writer.finish(shards, origin=origin)
        partial.rename(folder)
    except OSError as error:
        raise UserError(f"cannot write {partial}: {error.strerror}; free space there, or change its rights") from None
    return Dataset.open(folder)


def _shard(writer: DatasetWriter, run: Run, dataset: Dataset, split: str, config: Config, most: int | None) -> Shard:
    """The labels of ``most`` examples of a split, a row group at a time."""
    kind = kind_of(run.config.model, dataset)
    _, weights = kind.costs(dataset.lengths(split), run.config.source)
    rows = spread(np.flatnonzero(weights > 0), most)
    chunks = [rows[start : start + ROW_GROUP] for start in range(0, len(rows), ROW_GROUP)]
    return writer.add(split, split, _labelled(run, dataset, split, chunks, config))


def _labelled(run: Run, dataset: Dataset, split: str, chunks: list[np.ndarray], config: Config) -> Iterator[pa.Table]:
    """A labelled table for each chunk, in order: by this process without workers, else by actors in Ray Data."""
    label = f"labelling {split}"
    workers, settings = config.train.workers, (str(run.path), str(dataset.path), config.train.threads)
    if not chunks:
        return
    if not workers:
        labeler = Labeler(*settings, 1)
        yield from bar((labeler.label(split, rows) for rows in chunks), len(chunks), label, unit="chunk")
        return
    with ray_session(config.train.address, workers + 1, "train"):
        import ray.data

        quiet_data()
        each = share("labeller", workers)
        tables = [pa.table({"split": [split] * len(rows), "row": rows}) for rows in chunks]
        found = ray.data.from_arrow(tables).map_batches(
            Labeler,
            fn_constructor_args=(*settings, workers),
            batch_size=None,
            batch_format="pyarrow",
            concurrency=min(workers, len(chunks)),
            num_cpus=each.cpus,
            num_gpus=each.gpus,
        )
        found.context.execution_options.preserve_order = True
        yield from bar(found.iter_batches(batch_size=None, batch_format="pyarrow"), len(chunks), label, unit="chunk")
