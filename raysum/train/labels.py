"""Labels for the attention predictor: a trained model's paragraph embeddings and its attention to each paragraph.

The dataset of kind ``alignment`` has the columns ``id``, ``embeddings`` (Generator.paragraphs, flat [M * D] in fp16)
and ``label`` (eta of eq. 15, [M], summing to 1).
"""

import secrets
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from raysum.config.problems import validate
from raysum.config.sections import Config, TrainConfig
from raysum.data.dataset import MANIFEST, ROW_GROUP, Dataset
from raysum.data.rows import table_of
from raysum.data.writer import DatasetWriter
from raysum.decode.scores import shares
from raysum.errors import UserError
from raysum.models.batch import Batch, move
from raysum.models.generator import Generator
from raysum.runs.folder import Run
from raysum.runs.restore import restore
from raysum.runtime.placement import device, share
from raysum.runtime.processes import configure_process
from raysum.runtime.progress import bar
from raysum.runtime.session import ray_session
from raysum.runtime.storage import new_folder
from raysum.stream.collators.base import kind_of
from raysum.stream.loader import read_rows
from raysum.stream.plan import PlanSettings, cut
from raysum.stream.stream import Stream, rows_with_targets
from raysum.tokenizers.loading import load_tokenizer
from raysum.tokenizers.special_tokens import marks_of


def labelled_dataset(config: Config) -> tuple[Dataset, Config]:
    """Return the labels of ``config.data`` by the best checkpoint of ``config.run``, and the predictor's config.

    That config has the width of the run, and a folder inside it as ``out``.
    Raises UserError for a wrong config, run or dataset, and for a model without attention to paragraphs.
    """
    if config.mixed:
        raise UserError("the attention predictor learns from one dataset; leave the others out of data")
    run, dataset = Run.open(config.run or ""), Dataset.open(config.data or "")
    trained, out = run.config.model, run.alignment.path
    if not trained.attends_to_paragraphs:
        raise UserError(f"{run.place} does not attend to paragraphs; name a run of a summarizing model that does")
    run.check_vocabulary(dataset.vocabulary_hash, dataset.place)
    if config.out and Run(config.out).path != out:
        raise UserError(f"out={config.out} cannot be: the attention predictor goes into {out}; leave it out")
    changes = {"model": config.model.model_dump() | {"width": trained.width}, "out": str(out)}
    predictor = validate(config.model_dump() | changes, None, Config)
    return write_labels(run, dataset, predictor), predictor


class Labeler:
    """A checkpoint of a run in evaluation mode that labels rows, as an actor or in this process."""

    def __init__(self, run: Run, checkpoint: str, stream: Stream, threads: int | None, neighbours: int):
        configure_process(threads, neighbours)
        self.stream, self.device = stream, device()
        self.model = restore(run, checkpoint, self.device)

    def label(self, rows: np.ndarray) -> pa.Table:
        """Return a table of labels for the rows of the stream with these ascending numbers."""
        stream, kind = self.stream, self.stream.kind
        examples = [*read_rows(stream.path, stream.split, rows, ("id", *kind.columns)).values()]
        costs = np.array([len(example["ids"]) + len(example["target_ids"]) for example in examples])
        ends, labelled = np.cumsum(cut(costs, stream.settings.batch_tokens)), list[dict[str, Any]]()
        for start, end in zip((0, *ends), ends, strict=False):
            batch = kind.collate(kind.pack(examples[start:end], stream.source))
            phi, eta = attention_labels(self.model, move(batch, self.device))
            counts = batch.source.counts.tolist()
            for example, count, embeddings, label in zip(
                examples[start:end], counts, phi.cpu(), eta.cpu(), strict=True
            ):
                flat = embeddings[:count].flatten().half().numpy()
                labelled.append({"id": example["id"], "embeddings": flat, "label": label[:count].numpy()})
        return table_of(labelled, "alignment")


@torch.no_grad()
def attention_labels(model: Generator, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
    """Return phi [B, M, D] and eta [B, M] in fp32 of a teacher-forced model in evaluation mode.

    Eta (PHT eq. 15) is the attention to each paragraph, summed over the predicted tokens, as a share. The attention of
    each token is first divided by its sum over paragraphs: decoder-only models also attend to the target.
    """
    memory = model.encode(batch.source)
    _, attention = model.decode(batch.target[:, :-1], memory, attention=True)
    assert attention is not None, "the call requests attention"
    predicted = (batch.target[:, 1:] != marks_of(model.spec).pad)[..., None]
    return model.paragraphs(memory).float(), shares((shares(attention) * predicted).sum(1))


def write_labels(run: Run, dataset: Dataset, config: Config) -> Dataset:
    """Return the alignment dataset of ``run``; write it the first time. Raises UserError if it has another origin."""
    folder, best = run.alignment.path / "labels", run.checkpoint("best")
    origin = {"checkpoint": best.step, "data": dataset.fingerprint}
    if (folder / MANIFEST).is_file():
        labels = Dataset.open(folder)
        if labels.manifest.get("origin") == origin:
            return labels
        reason = f"another dataset, or another checkpoint than the best one, {best.step}"
        raise UserError(f"{run.alignment.path} was made for {reason}; remove that folder to train it again")
    dataset.check_shards()  # here, because actors do not raise readable messages
    settings, trained, tokenizer = config.train, run.config, load_tokenizer(dataset.vocabulary_path)
    limits = {"train": settings.label_examples, "valid": settings.validate_examples}
    batching = PlanSettings(trained.train.most_tokens, trained.train.micro_batches)
    stream = Stream(dataset.address, "train", trained.source, batching, kind_of(trained.model, dataset))
    streams = [replace(stream, split=split, examples=limits[split]) for split in limits if split in dataset.splits]
    session = ray_session(settings.address, settings.workers + 1, "train") if settings.workers else nullcontext()
    with new_folder(folder) as unfinished, session:
        recipe = dataset.recipe.model_copy(update={"ranker_sha256": None})  # its rows are already ranked
        writer = DatasetWriter(unfinished, "alignment", recipe, tokenizer)
        step = str(best.step)
        shards = [writer.add(each.split, each.split, _label_tables(run, step, each, settings)) for each in streams]
        writer.finish(shards, origin=origin)
    return Dataset.open(folder)


def _label_tables(run: Run, checkpoint: str, stream: Stream, settings: TrainConfig) -> Iterator[pa.Table]:
    """Yield the labels of a stream by row groups, computed by actors, or in this process if there are no workers."""
    rows, workers = rows_with_targets(stream), settings.workers.least
    blocks = [rows[start : start + ROW_GROUP] for start in range(0, len(rows), ROW_GROUP)]
    with_bar = partial(bar, total=len(blocks), label=f"labelling {stream.split}", unit="chunk")
    if not blocks:
        return
    if not workers:
        yield from with_bar(map(Labeler(run, checkpoint, stream, settings.threads, 1).label, blocks))
        return
    import ray
    from ray.util import ActorPool

    each = share("labeller", workers)
    options = {"num_cpus": each.cpus, "num_gpus": each.gpus, "max_restarts": -1, "max_task_retries": -1}
    actor: Any = ray.remote(Labeler)
    arguments = (run, checkpoint, stream, settings.threads, workers)
    label = f"{run.path.name}-labeller-{secrets.token_hex(3)}"  # the names in the dashboard
    names = [f"{label}-{number}" for number in range(min(workers, len(blocks)))]
    pool = ActorPool([actor.options(name=name, **options).remote(*arguments) for name in names])
    yield from with_bar(pool.map(lambda labeler, block: labeler.label.remote(block), blocks))
