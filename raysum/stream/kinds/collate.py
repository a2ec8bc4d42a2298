"""From dataset rows to micro-batches of flat arrays, and from those to tensors: one small class a dataset kind."""

import zlib
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from raysum.config.sections import SourceConfig
from raysum.data.clean import bigram_recall, bigrams, words
from raysum.errors import UserError
from raysum.models.specs import RankerSpec, Seq2SeqSpec, Spec, TransformerSpec
from raysum.stream.cut import Arrays, cut_graph, cut_source, cut_target, split_title

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from raysum.data.dataset import Dataset
    from raysum.models.batch import Batch
    from raysum.models.systems.ranker import RankingBatch

# Columns of the edges between paragraphs.
GRAPH: dict[str, type] = {"graph_row": np.int16, "graph_col": np.int16, "graph_value": np.float32}


class Kind(Protocol):
    """How rows of one dataset kind are counted, packed flat (numpy only), and turned into tensors (torch)."""

    @property
    def columns(self) -> tuple[str, ...]:
        """Those that are read."""

    def costs(self, lengths: np.ndarray, source: SourceConfig) -> tuple[np.ndarray, np.ndarray]:
        """From ``lengths`` [rows, 3]: units of the batch budget [rows], weights in the loss denominator [rows]."""

    def pack(self, rows: list[Arrays], source: SourceConfig) -> Arrays:
        """Flat arrays of one micro-batch of at least one row."""

    def tokens(self, arrays: Arrays) -> tuple[int, int]:
        """Source and target tokens of one micro-batch, for the statistics; the second is its weight."""

    def collate(self, arrays: Arrays) -> Any:
        """Tensors of one micro-batch."""


@dataclass(frozen=True)
class Summarization:
    """Cost: source and target tokens; weight: predicted target tokens (all but BOS).

    What a model reads: its paragraphs as they are, or ``joined`` to one sequence by marks (see ``cut_source``); and
    with ``graph`` the edges between them.
    """

    joined: bool = False
    graph: bool = False

    @classmethod
    def of(cls, spec: Spec) -> "Summarization":
        """As the model of ``spec`` wants it: the flat Transformer reads one sequence."""
        joined = isinstance(spec, Seq2SeqSpec) and spec.positions == "flat"
        return cls(joined, isinstance(spec, TransformerSpec) and spec.needs_graph)

    @property
    def columns(self) -> tuple[str, ...]:
        return ("ids", "paragraph_offsets", "target_ids", *(GRAPH if self.graph else ()))

    def costs(self, lengths: np.ndarray, source: SourceConfig) -> tuple[np.ndarray, np.ndarray]:
        """Where paragraphs are cut the cost is an upper bound: ``lengths`` tells totals only. Weights are exact."""
        tokens, paragraphs, target = lengths.astype(np.int64).T
        paragraphs = np.minimum(paragraphs, source.max_paragraphs)
        tokens = np.minimum(tokens, paragraphs * source.paragraph_tokens) + self.joined * paragraphs
        tokens = np.minimum(tokens, source.max_tokens or tokens)
        target = np.minimum(target, source.target_tokens)
        return tokens + target, np.maximum(target - 1, 0)

    def pack(self, rows: list[Arrays], source: SourceConfig) -> Arrays:
        """``ids`` [S], ``lengths`` [P], ``counts`` [B] as in a Source; ``target`` flat, ``target_lengths`` [B].

        With a graph also ``edges`` [B], their number in each example, and their ``graph_`` columns, flat.
        """
        sources = [self.read(row, source) for row in rows]
        targets = [cut_target(row["target_ids"], source.target_tokens) for row in rows]
        arrays = {
            "ids": _flat([ids for ids, _ in sources], np.int32),
            "lengths": _flat([lengths for _, lengths in sources], np.int32),
            "counts": np.array([len(lengths) for _, lengths in sources], np.int32),
            "target": _flat(targets, np.int32),
            "target_lengths": np.array([len(target) for target in targets], np.int32),
        }
        if self.graph:
            edges = [cut_graph(row, len(lengths)) for row, (_, lengths) in zip(rows, sources, strict=True)]
            arrays["edges"] = np.array([len(columns[0]) for columns in edges], np.int32)
            for number, (name, dtype) in enumerate(GRAPH.items()):
                arrays[name] = _flat([columns[number] for columns in edges], dtype)
        return arrays

    def read(self, row: Arrays, source: SourceConfig) -> tuple[np.ndarray, np.ndarray]:
        """Ids [S'] and the tokens [P'] of the paragraphs that the model reads of a row."""
        return cut_source(row["ids"], row["paragraph_offsets"], source, self.joined)

    def tokens(self, arrays: Arrays) -> tuple[int, int]:
        return len(arrays["ids"]), len(arrays["target"]) - len(arrays["target_lengths"])

    def collate(self, arrays: Arrays) -> "Batch":
        import torch

        from raysum.models.batch import PAD, Batch, Source

        counts = arrays["counts"]
        graph = None
        if self.graph:
            examples = np.repeat(np.arange(len(counts)), arrays["edges"])
            dense = np.zeros((len(counts), counts.max(), counts.max()), np.float32)
            dense[examples, arrays["graph_row"], arrays["graph_col"]] = arrays["graph_value"]
            graph = torch.from_numpy(dense)
        target = _pad(arrays["target"].astype(np.int64), arrays["target_lengths"], PAD)
        source = Source(_long(arrays["ids"]), _long(arrays["lengths"]), _long(counts), graph)
        return Batch(source, _long(target))


@dataclass(frozen=True)
class AlignmentBatch:
    """``embeddings`` [B, M, D] fp32, ``mask`` [B, M] true = a real paragraph, ``label`` [B, M] summing to 1."""

    embeddings: "Tensor"
    mask: "Tensor"
    label: "Tensor"


class Alignment:
    """Cost and weight: paragraphs."""

    columns = ("embeddings", "label")

    def costs(self, lengths: np.ndarray, source: SourceConfig) -> tuple[np.ndarray, np.ndarray]:
        paragraphs = lengths[:, 1].astype(np.int64)
        return paragraphs, paragraphs

    def pack(self, rows: list[Arrays], source: SourceConfig) -> Arrays:
        """``embeddings`` [P * D] fp16, ``counts`` [B] paragraphs of each example, ``label`` [P]."""
        return {
            "embeddings": _flat([row["embeddings"] for row in rows], np.float16),
            "counts": np.array([len(row["label"]) for row in rows], np.int32),
            "label": _flat([row["label"] for row in rows], np.float32),
        }

    def tokens(self, arrays: Arrays) -> tuple[int, int]:
        return 0, len(arrays["label"])

    def collate(self, arrays: Arrays) -> AlignmentBatch:
        import torch

        counts = arrays["counts"]
        embeddings = arrays["embeddings"].reshape(int(counts.sum()), -1).astype(np.float32)
        return AlignmentBatch(
            embeddings=torch.from_numpy(_pad(embeddings, counts, 0)),
            mask=torch.from_numpy(np.arange(counts.max()) < counts[:, None]),
            label=torch.from_numpy(_pad(arrays["label"], counts, 0)),
        )


class Ranking:
    """Cost: source tokens; weight: paragraphs of an example with a summary.

    What the ranker learns, the ROUGE-2 recall of paragraphs (HT, section 3.1), is counted here: that costs less than
    reading. ``max_tokens`` does not hold, as paragraphs are read one by one.
    """

    columns = ("ids", "paragraph_offsets", "text", "summary")

    def costs(self, lengths: np.ndarray, source: SourceConfig) -> tuple[np.ndarray, np.ndarray]:
        tokens, paragraphs, target = lengths.astype(np.int64).T
        paragraphs = np.minimum(paragraphs, source.max_paragraphs)
        return np.minimum(tokens, paragraphs * source.paragraph_tokens), np.where(target > 0, paragraphs, 0)

    def pack(self, rows: list[Any], source: SourceConfig) -> Arrays:
        """``title`` flat, ``title_lengths`` [B]; ``ids`` [S], ``lengths`` [P], ``counts`` [B]; ``recall`` [P]."""
        whole = source.model_copy(update={"max_tokens": None})
        titles, paragraphs, counts, recall = [], [], [], []
        for row in rows:
            ids, lengths = cut_source(row["ids"], row["paragraph_offsets"], whole)
            title, found = split_title(np.split(ids, np.cumsum(lengths)[:-1]))
            summary = bigrams(words(row["summary"]))
            titles.append(title)
            paragraphs += found
            counts.append(len(found))
            recall += [bigram_recall(words(text), summary) for text in row["text"][: len(found)]]
        return {
            "title": _flat(titles, np.int32),
            "title_lengths": np.array([len(title) for title in titles], np.int32),
            "ids": _flat(paragraphs, np.int32),
            "lengths": np.array([len(paragraph) for paragraph in paragraphs], np.int32),
            "counts": np.array(counts, np.int32),
            "recall": np.array(recall, np.float32),
        }

    def tokens(self, arrays: Arrays) -> tuple[int, int]:
        return len(arrays["title"]) + len(arrays["ids"]), len(arrays["recall"])

    def collate(self, arrays: Arrays) -> "RankingBatch":
        import torch

        from raysum.models.batch import Source
        from raysum.models.systems.ranker import RankingBatch, Titles

        source = Source(_long(arrays["ids"]), _long(arrays["lengths"]), _long(arrays["counts"]))
        titles = Titles(_long(arrays["title"]), _long(arrays["title_lengths"]))
        return RankingBatch(titles, source, torch.from_numpy(arrays["recall"]))


def kind_of(dataset: "Dataset", spec: Spec) -> Kind:
    """How the rows of ``dataset`` reach the model of ``spec``. Raises UserError where they lack a graph it needs."""
    if dataset.kind == "alignment":
        return Alignment()
    if isinstance(spec, RankerSpec):
        return Ranking()
    kind = Summarization.of(spec)
    if kind.graph and dataset.recipe.graph == "none":
        raise UserError(
            f"{dataset.path} holds no graph between paragraphs, which this model needs; "
            "prepare it with --graph similarity or --graph discourse"
        )
    return kind


def move(batch: Any, device: "torch.device") -> Any:
    """A dataclass of tensors, or of such dataclasses, on ``device``; to CUDA through pinned memory, without waiting."""
    if is_dataclass(batch) and not isinstance(batch, type):
        return replace(batch, **{field.name: move(getattr(batch, field.name), device) for field in fields(batch)})
    if batch is None or device.type == "cpu":
        return batch
    return batch.pin_memory().to(device, non_blocking=True)


def digest(arrays: Arrays) -> int:
    """A number that tells whether two micro-batches hold the same data (CRC-32 of all arrays)."""
    value = 0
    for array in arrays.values():
        value = zlib.crc32(np.ascontiguousarray(array).data, value)
    return value


def _flat(parts: list[np.ndarray], dtype: type) -> np.ndarray:
    return np.concatenate(parts).astype(dtype, copy=False)


def _pad(values: np.ndarray, lengths: np.ndarray, fill: int) -> np.ndarray:
    """Flat ``values`` [sum of lengths, ...] -> [B, longest, ...], ``fill`` where there is none."""
    padded = np.full((len(lengths), int(lengths.max()), *values.shape[1:]), fill, values.dtype)
    padded[np.arange(padded.shape[1]) < lengths[:, None]] = values
    return padded


def _long(array: np.ndarray) -> "Tensor":
    import torch

    return torch.from_numpy(array.astype(np.int64))
