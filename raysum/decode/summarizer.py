"""The public face: raw text, or dataset rows, to summaries that cite their sources. Needs neither Ray nor DeepSpeed."""

import os
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor

from raysum.config.loading import validate
from raysum.config.sections import DecodeConfig, SourceConfig
from raysum.data.recipe import Recipe, read_recipe
from raysum.data.vocabulary import Vocabulary
from raysum.decode import citations, extraction
from raysum.decode.attention import paragraph_attention
from raysum.decode.betas import search_betas
from raysum.decode.compression import restrict, strongest
from raysum.decode.hypotheses import Hypothesis
from raysum.decode.scores import shares
from raysum.decode.summary import Alternative, Citation, Sentence, Summary
from raysum.errors import UserError
from raysum.models.batch import Source
from raysum.models.generator import Generator
from raysum.models.kernels.int8 import quantize
from raysum.models.memory import Memory
from raysum.models.systems.predictor import AttentionPredictor
from raysum.models.systems.ranker import Ranker
from raysum.prepare.pipeline import Rejected, prepare_example
from raysum.restore import restore_generator, restore_predictor, restore_ranker
from raysum.run import Run
from raysum.runtime.allocator import keep_freed_memory
from raysum.runtime.progress import bar
from raysum.stream.cut import cut_graph
from raysum.stream.kinds.collate import Summarization

Row = dict[str, Any]
DTYPES = ("fp32", "bf16", "int8")


class Summarizer:
    """A trained model with all that turns raw text into its input and its output into text.

    ``settings`` are the run's decoding settings with the overrides given to ``load``. ``dtype`` is what matrices are
    multiplied in: ``fp32``, ``bf16`` by autocast, or ``int8`` (linear layers of the model, on a CPU); scores are always
    fp32. ``kind``: what the model reads of a row. ``ranker``: where extractive probabilities come from.
    """

    def __init__(
        self,
        model: Generator,
        vocabulary: Vocabulary,
        recipe: Recipe,
        source: SourceConfig,
        settings: DecodeConfig,
        kind: Summarization,
        predictor: AttentionPredictor | None = None,
        ranker: Ranker | None = None,
        dtype: str = "fp32",
        name: str = "the run",
    ):
        self.model = model.eval()
        self.predictor, self.ranker = predictor, ranker
        self.vocabulary, self.recipe, self.source, self.settings = vocabulary, recipe, source, settings
        self.dtype, self.name, self.kind = dtype, name, kind
        self.device = next(model.parameters()).device
        self._commas = sorted(
            {i for text in (",", "a,") for i in vocabulary.encode(text) if vocabulary.decode([i]) == ","}
        )

    @classmethod
    def load(
        cls,
        run: str | os.PathLike[str],
        checkpoint: str = "best",
        *,
        device: str | None = None,
        dtype: str = "fp32",
        **decode: Any,
    ) -> "Summarizer":
        """From a run folder: ``checkpoint`` is ``best``, ``latest`` or a step, ``decode`` overrides decoding settings.

        ``device`` defaults to CUDA where there is one. Raises UserError for a folder that is no complete run, for an
        unknown setting, for one that needs an attention predictor or ranker which is not there, and for int8 on CUDA.
        """
        if dtype not in DTYPES:
            raise UserError(f"no dtype {dtype!r}; there are {', '.join(DTYPES)}")
        keep_freed_memory()
        opened = Run.resolve(run)
        place = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        vocabulary, recipe = Vocabulary.load(opened.vocabulary), read_recipe(opened.recipe, str(opened.path))
        if vocabulary.sha256 != recipe.vocabulary_sha256:
            raise UserError(f"{opened.vocabulary} is not the vocabulary that {run} was trained with; restore its own")
        settings = validate(opened.decode.model_dump() | decode, root=DecodeConfig)
        model = restore_generator(opened, checkpoint, place)
        if dtype == "int8":
            quantize(model)
        summarizer = cls(
            model=model,
            vocabulary=vocabulary,
            recipe=recipe,
            source=opened.config.source,
            settings=settings,
            kind=Summarization.of(opened.config.model),
            predictor=restore_predictor(opened, place),
            ranker=restore_ranker(settings.ranker, vocabulary.sha256, place) if settings.ranker else None,
            dtype=dtype,
            name=str(run),
        )
        summarizer.choose({})
        return summarizer

    def choose(self, changes: Mapping[str, Any]) -> DecodeConfig:
        """The settings with ``changes`` (decoding keys). Raises UserError where they cannot work here."""
        settings = validate(self.settings.model_dump() | dict(changes), root=DecodeConfig)
        wants = [key for key in ("beta", "keep_paragraphs") if getattr(settings, key)]
        if wants and self.predictor is None:
            raise UserError(
                f"{wants[0]}={getattr(settings, wants[0])} needs the attention predictor, which {self.name} does not "
                f"have; train it with `raysum train alignment run={self.name} data=DATA`, or leave {wants[0]} out"
            )
        if settings.extractive and self.ranker is None:
            raise UserError(
                f"extractive={settings.extractive} needs a learned ranker; train one with `raysum train ranker "
                "data=DATA out=RANKER` and name it by ranker=RANKER, or leave extractive out"
            )
        if settings.ranker != self.settings.ranker:
            raise UserError("the ranker is loaded with the model; name it there")
        if settings.gnmt_coverage and not self.model.attends_to_tokens:
            system = type(self.model).__name__
            raise UserError(f"{system} does not attend to all source tokens at each layer; leave gnmt_coverage out")
        return settings

    def summarize(self, title: str, documents: list[str | dict[str, str]]) -> Summary:
        """The summary of one cluster; a document is its text, or ``{"source": name, "text": text}``.

        Raises UserError where the documents hold no text.
        """
        return self.summarize_many([{"title": title, "documents": documents}])[0]

    def summarize_many(self, clusters: Sequence[Mapping[str, Any]], progress: bool = False) -> list[Summary]:
        """The summaries of raw clusters (``title``, ``documents`` or ``paragraphs``, ``id``), in their order.

        Raises UserError naming the first cluster without usable text.
        """
        rows = [self.prepare(cluster, number) for number, cluster in enumerate(clusters, 1)]
        return self.summarize_rows(rows, progress=progress)

    def prepare(self, cluster: Mapping[str, Any], number: int = 1) -> Row:
        """A raw cluster as a dataset row; ``number`` names it in the UserError if it has neither id nor title."""
        try:
            return prepare_example(cluster, self.recipe, self.vocabulary)
        except Rejected as reason:
            given = cluster if isinstance(cluster, Mapping) else {}
            name = given.get("id") or given.get("title") or number
            raise UserError(f"cluster {name!r} cannot be summarized: {reason}") from None

    def summarize_rows(
        self, rows: Sequence[Row], settings: DecodeConfig | None = None, progress: bool = False
    ) -> list[Summary]:
        """The summaries of dataset rows, in their order; rows of like length are decoded together."""
        settings = settings or self.settings
        (summaries,) = self.summarize_betas(rows, settings, [settings.beta], progress)
        return summaries

    def summarize_betas(
        self, rows: Sequence[Row], settings: DecodeConfig, betas: Sequence[float], progress: bool = False
    ) -> list[list[Summary]]:
        """:meth:`summarize_rows` with each of ``betas`` in place of ``settings.beta``, for the price of less.

        The source is encoded once for all, and what the searches have in common is computed once (see
        ``decode.sharing``); where alignment only ranks finished hypotheses, there is one search.
        """
        order = iter(sorted(range(len(rows)), key=lambda place: -len(rows[place]["ids"])))
        summaries: dict[int, list[Summary]] = {}
        with bar(total=len(rows), label="summarize", unit="example") if progress else nullcontext() as shown:
            while batch := list(islice(order, settings.batch_examples)):
                found = self._summarize_batch([rows[place] for place in batch], settings, betas)
                summaries |= dict(zip(batch, found, strict=True))
                if shown is not None:
                    shown.update(len(batch))
        return [[summaries[place][number] for place in range(len(rows))] for number in range(len(betas))]

    @torch.inference_mode()
    def _summarize_batch(
        self, rows: Sequence[Row], settings: DecodeConfig, betas: Sequence[float]
    ) -> list[list[Summary]]:
        """For each row the summaries by all betas."""
        source = settings.reading(self.source)
        paragraphs = [self._paragraphs(row, source) for row in rows]
        kept = [list(range(len(example))) for example in paragraphs]
        graphs = [self._graph(row, len(example)) for row, example in zip(rows, paragraphs, strict=True)]
        with torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=self.dtype == "bf16"):
            memory = self._encode(paragraphs, graphs)
            predicted = self._predict(memory) if any(betas) or settings.keep_paragraphs else None
            extracted = self._extract(paragraphs) if settings.extractive else None
            if predicted is not None and settings.keep_paragraphs:
                rows_hat = predicted.float().cpu().numpy()
                kept = [
                    strongest(hat[: len(example)], settings.keep_paragraphs)
                    for hat, example in zip(rows_hat, paragraphs, strict=True)
                ]
                memory = self._encode(
                    [restrict(*pair) for pair in zip(paragraphs, kept, strict=True)],
                    [graph[np.ix_(places, places)] for graph, places in zip(graphs, kept, strict=True)],
                )
                predicted = _chosen(predicted, kept)
                extracted = None if extracted is None else _chosen(extracted, kept)
            found = search_betas(self.model, memory, settings, betas, predicted, extracted, exempt=self._commas)
            if not all(hypotheses for example in found for hypotheses in example):
                raise UserError(f"{self.name} gives no finite probabilities; its training diverged")
            best = [[hypotheses[0].ids for hypotheses in example] for example in found]
            attention = paragraph_attention(self.model, memory, best)
        return [
            self._summaries(row, places, example, weights, settings)
            for row, places, example, weights in zip(rows, kept, found, attention, strict=True)
        ]

    def _paragraphs(self, row: Row, source: SourceConfig) -> list[list[int]]:
        """The ids of each paragraph that the model reads."""
        ids, lengths = self.kind.read(row, source)
        return [part.tolist() for part in np.split(ids, np.cumsum(lengths)[:-1])]

    def _graph(self, row: Row, count: int) -> np.ndarray:
        """[count, count]: the edges between the paragraphs that the model reads; none where it reads no graph."""
        graph = np.zeros((count, count), np.float32)
        if self.kind.graph:
            first, second, values = cut_graph(row, count)
            graph[first, second] = values
        return graph

    def _encode(self, paragraphs: Sequence[list[list[int]]], graphs: Sequence[np.ndarray]) -> Memory:
        source = Source.pack(paragraphs)
        if self.kind.graph:
            dense = torch.zeros(len(graphs), *[max(map(len, graphs))] * 2)
            for example, graph in zip(dense, graphs, strict=True):
                example[: len(graph), : len(graph)] = torch.from_numpy(graph)
            source = replace(source, graph=dense)
        return self.model.encode(source.to(self.device))

    def _predict(self, memory: Memory) -> Tensor:
        """Predicted attention [B, M]."""
        assert self.predictor is not None, "choose() checks that there is a predictor"
        return self.predictor(memory.paragraphs(), memory.paragraph_mask)

    def _extract(self, paragraphs: Sequence[list[list[int]]]) -> Tensor:
        """Extractive probabilities [B, M]."""
        assert self.ranker is not None, "choose() checks that there is a ranker"
        return extraction.probabilities(self.ranker, paragraphs, self.device)

    def _summaries(
        self,
        row: Row,
        kept: list[int],
        found: list[list[Hypothesis]],
        attention: list[np.ndarray],
        settings: DecodeConfig,
    ) -> list[Summary]:
        """The summary by each beta; ``attention`` [K, kept] of the best hypothesis it found, which many betas share."""
        written: dict[tuple[int, ...], Summary] = {}
        summaries = []
        for (best, *others), weights in zip(found, attention, strict=True):
            ids = tuple(best.ids)
            if ids not in written:
                written[ids] = self._summary(row, kept, best, weights, settings)
            alternatives = [Alternative(self.vocabulary.decode(other.ids), other.score) for other in others]
            summaries.append(replace(written[ids], score=best.score, alternatives=alternatives))
        return summaries

    def _summary(
        self, row: Row, kept: list[int], best: Hypothesis, attention: np.ndarray, settings: DecodeConfig
    ) -> Summary:
        """What ``best`` says and cites, with its ``attention`` [K, kept]."""
        everywhere = np.zeros((len(attention), len(row["document"])), attention.dtype)
        everywhere[:, kept] = attention[:, : len(kept)]
        spans = [
            (self.vocabulary.decode(best.ids[a:b]), everywhere[a:b]) for a, b in citations.sentence_spans(best.ids)
        ]
        spans = [(text, weights) for text, weights in spans if text]
        weights = [citations.overall(part) for _, part in spans]
        if settings.citations == "lexical" and spans:
            weights = list(citations.lexical([text for text, _ in spans], row["text"]))
        sentences = [
            Sentence(text, [_citation(row, *pair) for pair in citations.cited(shares)])
            for (text, _), shares in zip(spans, weights, strict=True)
        ]
        return Summary(
            id=row["id"],
            summary=self.vocabulary.decode(best.ids),
            sentences=sentences,
            attention=citations.overall(everywhere).tolist(),
            score=best.score,
        )


def _citation(row: Row, paragraph: int, weight: float) -> Citation:
    return Citation(int(row["document"][paragraph]), int(row["paragraph"][paragraph]), weight)


def _chosen(predicted: Tensor, kept: Sequence[Sequence[int]]) -> Tensor:
    """``predicted`` [B, M] at the paragraphs ``kept``, summing to one again; [B, most kept]."""
    chosen = predicted.new_zeros(len(kept), max(map(len, kept)))
    for example, places in enumerate(kept):
        chosen[example, : len(places)] = predicted[example, list(places)]
    return shares(chosen)
