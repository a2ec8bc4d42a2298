"""What the attention predictor learns: a trained model's paragraph embeddings, and the attention it pays to each.

The dataset of kind ``alignment`` has the rows ``id``, ``embeddings`` (Generator.paragraphs, flat [M * D] in fp16) and
``label`` (eta of eq. 15, [M], summing to 1).
"""

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
from raysum.stream.loader import Stream, read_rows, rows_with_targets
from raysum.stream.plan import PlanSettings, cut
from raysum.tokenizers.loading import load_tokenizer
from raysum.tokenizers.special_tokens import marks_of


def labelled(config: Config) -> tuple[Dataset, Config]:
    """What the predictor of ``config`` learns from, made of ``config.data`` by the best checkpoint of ``config.run``;
    and the config with that run's width and the place inside it.

    Raises UserError for a wrong config, run or dataset, and for a model without attention to paragraphs.
    """
    if config.run is None or config.data is None:
        missing = "run=RUN" if config.run is None else "data=DATA"
        raise UserError(
            f"{missing} is missing: the attention predictor learns from a run and its data; "
            "write `raysum train alignment run=RUN data=DATA`"
        )
    if config.mixed:
        raise UserError("the attention predictor learns from one dataset; leave the others out of data")
    run, dataset = Run.open(config.run), Dataset.open(config.data)
    trained = run.config.model
    if not trained.attends_to_paragraphs:
        raise UserError(f"{run.place} is no summarizing model, so there is no attention to predict")
    if dataset.vocabulary_hash != run.recipe.get("vocabulary_sha256"):
        raise UserError(
            f"{config.data} has another vocabulary than {run.path}; prepare it with --vocab {run.vocabulary}"
        )
    if config.out and Run(config.out).path != run.alignment.path:
        raise UserError(
            f"out={config.out} cannot be: the attention predictor goes into {run.alignment.path}; leave it out"
        )
    inside = {"model": config.model.model_dump() | {"width": trained.width}, "out": str(run.alignment.path)}
    fitted = validate(config.model_dump() | inside, None, Config)
    return write_labels(run, dataset, fitted), fitted


class Labeler:
    """A checkpoint of a run in evaluation mode, as an actor or in this process."""

    def __init__(self, run: Run, checkpoint: str, stream: Stream, threads: int | None, neighbours: int):
        configure_process(threads, neighbours)
        self.stream, self.device = stream, device()
        self.model = restore(run, checkpoint, self.device)

    def label(self, block: pa.Table) -> pa.Table:
        """A table of labels for the ascending numbers in the column ``row``, of rows of the stream."""
        stream, kind = self.stream, self.stream.kind
        examples = [*read_rows(stream.path, stream.split, block["row"].to_numpy(), ("id", *kind.columns)).values()]
        costs = np.array([len(example["ids"]) + len(example["target_ids"]) for example in examples])
        labels: list[dict[str, np.ndarray]] = []
        for part in np.split(np.arange(len(examples)), np.cumsum(cut(costs, stream.settings.batch_tokens))[:-1]):
            batch = kind.collate(kind.pack([examples[i] for i in part.tolist()], stream.source))
            phi, eta = attention_labels(self.model, move(batch, self.device))
            for counted, embeddings, label in zip(batch.source.counts.tolist(), phi.cpu(), eta.cpu(), strict=True):
                flat = embeddings[:counted].flatten().half().numpy()
                labels.append({"embeddings": flat, "label": label[:counted].numpy()})
        named = [{"id": example["id"], **label} for example, label in zip(examples, labels, strict=True)]
        return table_of(named, "alignment")


@torch.no_grad()
def attention_labels(model: Generator, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
    """Phi [B, M, D] and eta [B, M] in fp32 of a teacher-forced model in evaluation mode.

    Eta (PHT eq. 15): attention to each paragraph, summed over the predicted tokens, as a share. That of a token sums to
    one over paragraphs, as in the search's ``History``: decoder-only models attend to the target, too.
    """
    memory = model.encode(batch.source)
    _, attention = model.decode(batch.target[:, :-1], memory, attention=True)
    assert attention is not None, "it was asked for"
    predicted = (batch.target[:, 1:] != marks_of(model.spec).pad)[..., None]
    return model.paragraphs(memory).float(), shares((shares(attention) * predicted).sum(1))


def write_labels(run: Run, dataset: Dataset, config: Config) -> Dataset:
    """The alignment dataset of ``run`` for the train and valid splits of ``dataset``; written once, then opened.

    Raises UserError where it was written for another dataset, or for another checkpoint than the best one.
    """
    folder, best = run.alignment.path / "labels", run.checkpoint("best")
    origin = {"checkpoint": best.step, "data": dataset.fingerprint}
    if (folder / MANIFEST).is_file():
        labels = Dataset.open(folder)
        if labels.manifest.get("origin") != origin:
            raise UserError(
                f"{run.alignment.path} was made for another checkpoint than {best.step}, which is the best one now, "
                "or for another dataset; remove that folder to train it anew"
            )
        return labels
    trained, most = run.config, {"train": config.train.label_examples, "valid": config.train.validate_examples}
    batching = PlanSettings(trained.train.batch_tokens, trained.train.micro_batches)
    stream = Stream(dataset.address, "train", trained.source, batching, kind_of(trained.model, dataset))
    streams = [replace(stream, split=split, examples=most[split]) for split in most if split in dataset.splits]
    for split in (each.split for each in streams):  # what actors find damaged is no message
        for file in dataset.files(split):
            dataset.check(file)
    address, workers = config.train.address, config.train.workers
    session = ray_session(address, workers + 1, "train") if workers else nullcontext()
    with new_folder(folder) as unfinished, session:
        recipe = dataset.recipe.model_copy(update={"ranker_sha256": None})  # what it ranked is ranked
        writer = DatasetWriter(unfinished, "alignment", recipe, load_tokenizer(dataset.vocabulary_path))
        step, settings = str(best.step), config.train
        shards = [writer.add(one.split, one.split, _labelled(run, step, one, settings)) for one in streams]
        writer.finish(shards, origin=origin)
    return Dataset.open(folder)


def _labelled(run: Run, checkpoint: str, stream: Stream, settings: TrainConfig) -> Iterator[pa.Table]:
    """The labels of a stream, a row group at a time: by this process without workers, else by actors."""
    rows, workers = rows_with_targets(stream), settings.workers
    blocks = [pa.table({"row": rows[start : start + ROW_GROUP]}) for start in range(0, len(rows), ROW_GROUP)]
    shown = partial(bar, total=len(blocks), label=f"labelling {stream.split}", unit="chunk")
    if not blocks:
        return
    if not workers:
        yield from shown(map(Labeler(run, checkpoint, stream, settings.threads, 1).label, blocks))
        return
    import ray
    from ray.util import ActorPool

    each = share("labeller", workers)
    place = {"num_cpus": each.cpus, "num_gpus": each.gpus, "max_restarts": -1, "max_task_retries": -1}
    actor: Any = ray.remote(Labeler).options(**place)
    given = (run, checkpoint, stream, settings.threads, workers)
    pool = ActorPool([actor.remote(*given) for _ in range(min(workers, len(blocks)))])
    yield from shown(pool.map(lambda labeler, block: labeler.label.remote(block), blocks))
