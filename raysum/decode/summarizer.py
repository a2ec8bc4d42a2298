"""The summarizer: raw text or dataset rows to summaries that cite their sources. Needs neither Ray nor DeepSpeed.

B rows, M paragraphs of a row, R paragraphs that the model reads, K tokens of a summary.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from raysum import systems
from raysum.config.decoding import DecodeConfig, SourceConfig
from raysum.config.problems import changed, validate
from raysum.config.sections import LoadConfig
from raysum.data.recipe import Recipe, read_recipe
from raysum.data.rows import Row, title_of
from raysum.decode.attention import attention_of, citing, pad_ids
from raysum.decode.beam import IsCancelled, SearchStep, Steps, exhaust
from raysum.decode.citations import annotated
from raysum.decode.domain_shift import Familiar, doubts, figures
from raysum.decode.grounding.constraint import Grounding
from raysum.decode.hypotheses import Hypothesis
from raysum.decode.multi_beta import beta_steps
from raysum.decode.scores import shares
from raysum.decode.summary import Alternative, NoSummary, Summary, attempted, name_of
from raysum.errors import UserError
from raysum.metrics import citations
from raysum.models.batch import Memory, move, scatter_padded
from raysum.models.generator import Generator
from raysum.models.kernels.linear import optimize_for_inference
from raysum.prepare.learned import LearnedRanker
from raysum.prepare.row_builder import Rejected, prepare_example
from raysum.runs.folder import Run
from raysum.runs.restore import restore, restore_predictor, restore_ranker
from raysum.runtime.lanes import in_lanes, lanes_of
from raysum.runtime.placement import device as find_device
from raysum.runtime.processes import keep_freed_memory, return_freed_memory
from raysum.runtime.progress import bar, say
from raysum.stream.truncation import DECODING, truncation
from raysum.tokenizers.loading import load_tokenizer
from raysum.tokenizers.special_tokens import marks_of
from raysum.tokenizers.tokenizer import Tokenizer


@dataclass(frozen=True)
class DecodedRow:
    """The results of the searches of one row, one search for each beta."""

    read: list[int]  # [R] the paragraphs of the row that the model read
    hypotheses: list[list[Hypothesis]]  # best first
    attention: list[np.ndarray]  # [K, R] of the best hypothesis
    predicted: np.ndarray | None  # [M] attention, if there is a predictor


@dataclass(frozen=True)
class Progress:
    """The searches of some rows after a step; valid until the search continues."""

    rows: Sequence[int]
    step: SearchStep
    vocabulary: Tokenizer

    def text(self, row: int) -> str:
        """Return the beginning of the summary of a row that the rest of the search cannot change.

        Its last word may be incomplete. If the vocabulary finds sentences by their text, a later step may move a space.
        """
        ids = self.step.shared_ids(self.rows.index(row))
        return " ".join(self.vocabulary.sentences(ids)).rstrip("\ufffd")  # an incomplete character


@dataclass(frozen=True)
class SummarizedRow:
    """The summaries of a row, one for each beta, and the number of tokens of the first, EOS included.

    ``is_truncated``: the first has no EOS, because it was as long as ``max_length``.
    """

    row: int
    summaries: list[Summary]
    num_tokens: int
    is_truncated: bool


@dataclass(eq=False, repr=False)
class Summarizer:
    """A trained model with its vocabulary, recipe and decoding settings.

    ``settings`` are those of the run with the overrides of ``load``; ``source`` limits what the model reads of a row.
    If there are any: its attention ``predictor``, the ``ranker`` of extractive probabilities, the ``paragraph_ranker``
    of its recipe, and its reference ranges ``familiar``. ``dtype``: of products; scores are always fp32.
    """

    model: Generator
    vocabulary: Tokenizer
    recipe: Recipe
    settings: DecodeConfig
    name: str
    source: SourceConfig = SourceConfig()
    predictor: Any = None
    ranker: Any = None
    paragraph_ranker: LearnedRanker | None = None
    familiar: Familiar | None = None
    dtype: str = "fp32"

    def __post_init__(self) -> None:
        self._grounding = Grounding(self.vocabulary, self.recipe.normalize)
        encoded = [*self.vocabulary.encode(","), *self.vocabulary.encode("a,")]
        self._commas = tuple(sorted({i for i in encoded if self.vocabulary.decode([i]) == ","}))
        self.choose({})

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
        """Load a run folder. ``checkpoint`` is ``best``, ``latest`` or a step; ``decode`` overrides decoding settings.

        ``dtype`` of products: ``fp32``, ``bf16`` by autocast, or ``int8`` (linear layers, on a CPU). ``device``
        defaults to CUDA if available. Raises UserError if the run is incomplete, if a setting is unknown or needs a
        predictor or ranker that is missing, and for int8 on CUDA.
        """
        values = {"checkpoint": checkpoint, "dtype": dtype, "decode": decode}
        return cls.of(run, validate(values, None, LoadConfig), device)

    @classmethod
    def of(cls, run: str | os.PathLike[str], config: LoadConfig, device: str | None = None) -> "Summarizer":
        """Load a run folder as in :meth:`load`, with the settings of ``config``."""
        keep_freed_memory()
        opened, torch_device = Run.resolve(run), find_device(device)
        vocabulary, recipe = load_tokenizer(opened.vocabulary), read_recipe(opened.recipe, str(opened.path))
        settings = changed(opened.decode, config.decode)
        model = optimize_for_inference(restore(opened, config.checkpoint, torch_device, "summarizes"), config.dtype)
        return_freed_memory()  # of the layers that were replaced
        return cls(
            model,
            vocabulary,
            recipe,
            settings,
            str(run),
            opened.config.source,
            restore_predictor(opened, torch_device),
            restore_ranker(settings.ranker, vocabulary.sha256, torch_device) if settings.ranker else None,
            LearnedRanker.beside(opened.vocabulary, recipe, torch_device),
            Familiar.read(opened, vocabulary),
            dtype=config.dtype,
        )

    def choose(self, changes: Mapping[str, Any]) -> DecodeConfig:
        """Return the settings with ``changes`` of decoding keys. Raises UserError if the model lacks support."""
        settings = changed(self.settings, changes)
        for key in ("beta", "keep_paragraphs"):
            if getattr(settings, key) and self.predictor is None:
                raise UserError(
                    f"{key}={getattr(settings, key)} needs the attention predictor, but {self.name} has none; train it "
                    f"with `raysum train alignment run={self.name} data=DATA`, or leave {key} out"
                )
        if settings.extractive and self.ranker is None:
            raise UserError(
                f"extractive={settings.extractive} needs a learned ranker; train one with `raysum train ranker "
                "data=DATA out=RANKER` and name it by ranker=RANKER, or leave extractive out"
            )
        if settings.ranker != self.settings.ranker:
            raise UserError("the ranker is loaded with the model; name it there")
        spec = self.model.spec
        words = [("bad_words_ids", token) for word in settings.bad_words_ids for token in word]
        forced = [(key, getattr(settings, key) or 0) for key in ("forced_bos_token_id", "forced_eos_token_id")]
        for key, token in (*words, *forced):
            if token >= spec.vocabulary:
                raise UserError(f"{key}={token} is no token: {self.name} has ids up to {spec.vocabulary - 1}")
        if settings.forced_bos_token_id == (pad := marks_of(spec).pad):
            raise UserError(f"forced_bos_token_id={pad} is padding, which begins no summary; leave it out")
        citing(settings, spec)
        if settings.gnmt_coverage and not spec.attends_to_tokens:
            raise UserError(f"a {spec.system} does not attend to all source tokens at each layer: no gnmt_coverage")
        return settings

    def summarize(self, title: str = "", documents: list[str | dict[str, str]] | None = None) -> Summary:
        """Summarize one cluster; a document is its text, or ``{"source": name, "text": text}``.

        Raises UserError if the documents have no text.
        """
        return self.summarize_many([{"title": title, "documents": documents}])[0]

    def summarize_many(self, clusters: Sequence[Mapping[str, Any]], progress: bool = False) -> list[Summary]:
        """Summarize raw clusters (``title``, ``documents`` or ``paragraphs``, ``id``), in their order.

        Raises UserError with the name of the first cluster without usable text.
        """
        rows = [self.prepare(cluster, number) for number, cluster in enumerate(clusters, 1)]
        summaries = self.summarize_rows(rows, progress=progress)
        return [summary.located(raw) for summary, raw in zip(summaries, clusters, strict=True)]

    def summarize_each(
        self, clusters: Sequence[Mapping[str, Any]], progress: bool = False
    ) -> list[Summary | NoSummary]:
        """Summarize raw clusters, with a :class:`NoSummary` for each cluster without usable text."""
        prepared = [attempted(self.prepare, cluster, number) for number, cluster in enumerate(clusters, 1)]
        rows = [row for row in prepared if not isinstance(row, NoSummary)]
        limits = self.settings.reading(self.source)
        if message := truncation(rows, self.model.spec, limits, DECODING):
            say(message)
        summaries = iter(self.summarize_rows(rows, progress=progress))
        return [
            row if isinstance(row, NoSummary) else next(summaries).located(raw)
            for row, raw in zip(prepared, clusters, strict=True)
        ]

    def prepare(self, cluster: Mapping[str, Any], number: int = 1) -> Row:
        """Return a raw cluster as a dataset row. A UserError names it by id, title or ``number``."""
        try:
            return prepare_example(cluster, self.recipe, self.vocabulary, self.paragraph_ranker)
        except Rejected as reason:
            raise UserError(f"cluster {name_of(cluster, number)!r} cannot be summarized: {reason}") from None

    def summarize_rows(
        self,
        rows: Sequence[Row],
        settings: DecodeConfig | None = None,
        progress: bool = False,
        is_cancelled: IsCancelled | None = None,
    ) -> list[Summary]:
        """Summarize dataset rows, in their order; rows of similar length are decoded together.

        If ``is_cancelled`` returns true for the index of a row, its summary ends at once.
        """
        settings = settings or self.settings
        (summaries,) = self.summarize_betas(rows, settings, [settings.beta], progress, is_cancelled)
        return summaries

    def summarize_betas(
        self,
        rows: Sequence[Row],
        settings: DecodeConfig,
        betas: Sequence[float],
        progress: bool = False,
        is_cancelled: IsCancelled | None = None,
    ) -> list[list[Summary]]:
        """Summarize dataset rows with each of ``betas`` instead of ``settings.beta``; return a list for each beta.

        The source is encoded once, and searches share equal steps (see ``decode.multi_beta``). If alignment only ranks
        finished hypotheses, there is one search.
        """

        def summarized(batch: Sequence[int]) -> Iterator[SummarizedRow | None]:
            for event in self._batch_steps(rows, batch, settings, betas, is_cancelled):
                yield event if isinstance(event, SummarizedRow) else None

        size = min(settings.batch_examples, -(-len(rows) // lanes_of(self._device)))
        batches = self._batches(rows, max(1, size))
        summaries: dict[int, list[Summary]] = {}
        shown = bar(total=len(rows), label="summarize", unit="example") if progress else nullcontext()
        with shown as updated:
            for row in in_lanes(summarized, batches, self._device):
                summaries[row.row] = row.summaries
                if updated is not None:
                    updated.update()
        return [[summaries[index][number] for index in range(len(rows))] for number in range(len(betas))]

    def summarize_steps(
        self,
        rows: Sequence[Row],
        settings: DecodeConfig,
        betas: Sequence[float],
        is_cancelled: IsCancelled | None = None,
    ) -> Iterator[Progress | SummarizedRow]:
        """Yield a :class:`Progress` after each step of a search, and a :class:`SummarizedRow` for each row.

        Several of these generators can take turns in a thread.
        """
        for batch in self._batches(rows, settings.batch_examples):
            yield from self._batch_steps(rows, batch, settings, betas, is_cancelled)

    def _batches(self, rows: Sequence[Row], size: int) -> list[list[int]]:
        """Return the indices of ``rows`` in batches of at most ``size`` rows of similar length, the longest first."""
        order = sorted(range(len(rows)), key=lambda index: -len(rows[index]["ids"]))
        return [order[start : start + size] for start in range(0, len(order), size)]

    def _batch_steps(
        self,
        rows: Sequence[Row],
        batch: Sequence[int],
        settings: DecodeConfig,
        betas: Sequence[float],
        is_cancelled: IsCancelled | None,
    ) -> Iterator[Progress | SummarizedRow]:
        """Yield the events of :meth:`summarize_steps` for the rows of one batch."""
        cancelled = None if is_cancelled is None else lambda index: is_cancelled(batch[index])
        steps = self._find([rows[index] for index in batch], settings, betas, cancelled)
        while True:
            try:
                with self._precision():
                    step = next(steps)
            except StopIteration as end:
                results: list[DecodedRow] = end.value
                break
            yield Progress(batch, step, self.vocabulary)
        for index, result in zip(batch, results, strict=True):
            summaries = self._summaries(rows[index], result, settings)
            ids = result.hypotheses[0][0].ids
            yield SummarizedRow(index, summaries, len(ids), ids[-1] != self.vocabulary.marks.end)

    def _precision(self) -> torch.autocast:
        """Return the context of computations; no other search may run in it."""
        return torch.autocast(self._device.type, dtype=torch.bfloat16, enabled=self.dtype == "bf16")

    @property
    def _device(self) -> torch.device:
        return next(self.model.parameters()).device

    def find(
        self,
        rows: Sequence[Row],
        settings: DecodeConfig,
        betas: Sequence[float],
        is_cancelled: IsCancelled | None = None,
    ) -> list[DecodedRow]:
        """Search each row once with each of ``betas`` instead of ``settings.beta``.

        If ``is_cancelled`` returns true for the index of a row, its search stops at once. Raises UserError if scores
        are not finite, or if the model lacks one of ``settings.citing_layers``.
        """
        with self._precision():
            return exhaust(self._find(rows, settings, betas, is_cancelled))

    @torch.inference_mode()
    def _find(
        self, rows: Sequence[Row], settings: DecodeConfig, betas: Sequence[float], is_cancelled: IsCancelled | None
    ) -> Steps[list[DecodedRow]]:
        """Yield after each step of the searches of ``rows`` and return their results, as :meth:`find`."""
        limits, device = settings.reading(self.source), self._device
        spec, marks = self.model.spec, marks_of(self.model.spec)
        source = _collated(spec, rows, limits).source
        read = [list(range(count)) for count in source.counts.tolist()]
        memory = self.model.encode(move(source, device))
        predicted, hats = None, list[Any]([None] * len(rows))  # attention [B, M], and [M] of each row
        if self.predictor is not None:
            predicted = self.predictor(self.model.paragraphs(memory), memory.paragraph_mask)
            hats = [hat[: len(own)] for hat, own in zip(predicted.float().cpu().numpy(), read, strict=True)]
        extracted = self._extract(rows, limits, memory) if settings.extractive else None
        if predicted is not None and settings.keep_paragraphs:
            for example, hat in enumerate(hats):  # PHT paper, Table 6
                strongest = np.argsort(-hat, kind="stable")[: settings.keep_paragraphs]
                read[example] = sorted(strongest.tolist())  # in rank order
            memory = self.model.encode(move(source.restrict(read, marks, spec.joins_paragraphs), device))
            predicted = _chosen(predicted, read)
            extracted = None if extracted is None else _chosen(extracted, read)
        options: dict[str, Any] = {"marks": marks, "exempt": self._commas, "is_cancelled": is_cancelled}
        if settings.title_prompt:
            options["prompt"] = pad_ids([torch.from_numpy(title_of(row, marks)) for row in rows], marks).to(device)
        if settings.grounded:
            options["constraint"] = self._grounding.constraint(rows, settings.grounded, device)
        if settings.encoder_no_repeat_ngram_size:
            options["source"] = pad_ids(memory.source.ids.split(memory.source.layout.sizes.tolist()), marks)
        found = yield from beta_steps(self.model, memory, settings, betas, predicted, extracted, **options)
        if not all(hypotheses for example in found for hypotheses in example):
            raise UserError("no score is finite: the training of the model, its predictor or ranker diverged")
        best = [[hypotheses[0].ids for hypotheses in example] for example in found]
        attention = attention_of(self.model, memory, best, citing(settings, spec))
        return [DecodedRow(*parts) for parts in zip(read, found, attention, hats, strict=True)]

    def _extract(self, rows: Sequence[Row], limits: SourceConfig, memory: Memory) -> Tensor:
        """Return extractive probabilities [B, M] (extProb): the ranker's scores of the paragraphs, as shares."""
        device = memory.paragraph_mask.device
        batch = move(_collated(self.ranker.spec, rows, limits), device)
        with torch.autocast(device.type, enabled=False):  # torch has no LSTM in bf16 on every CPU
            logits = self.ranker(batch.titles, batch.source)
        layout, mask = batch.source.layout, memory.paragraph_mask
        scores = scatter_padded(logits.float().sigmoid(), layout.in_examples, *layout.paragraph_mask.shape)
        return shares(scores[:, : mask.shape[1]] * mask)

    def _summaries(self, row: Row, decoded: DecodedRow, settings: DecodeConfig) -> list[Summary]:
        """Return the summary of ``row`` for each beta; equal ones of several betas are written once."""
        written: dict[tuple[int, ...], Summary] = {}
        summaries = []
        hat = [] if decoded.predicted is None else decoded.predicted.tolist()
        hat += [0.0] * (len(row["document"]) - len(hat)) if hat else []
        for (best, *others), attention in zip(decoded.hypotheses, decoded.attention, strict=True):
            ids = tuple(best.ids)
            if ids not in written:
                everywhere = np.zeros((len(attention), len(row["document"])), attention.dtype)  # [K, M]
                everywhere[:, decoded.read] = attention[:, : len(decoded.read)]
                spans = self.vocabulary.token_spans(best.ids)
                parts = [(self.vocabulary.decode(best.ids[a:b]), everywhere[a:b]) for a, b in spans]
                texts = [text for text, _ in parts if text]
                weights = [citations.overall(share) for text, share in parts if text]
                whole = citations.overall(everywhere).tolist()
                summary = annotated(row, texts, weights, settings.citations, attention=whole, predicted=hat)
                written[ids] = self._with_warnings(row, summary, settings)
            next_best = [(self.vocabulary.decode(other.ids), other.score) for other in others]
            alternatives = [Alternative(summary=text, score=score) for text, score in next_best]
            changes: dict[str, Any] = {"score": best.score, "alternatives": alternatives}
            summaries.append(written[ids].model_copy(update=changes))
        return summaries

    def _with_warnings(self, row: Row, summary: Summary, settings: DecodeConfig) -> Summary:
        warnings, found = doubts(summary.summary, summary.support), list[str]()
        if self.familiar:
            values, usual = figures(summary.support, summary.attention), self.familiar.decode
            other_layers = settings.citing_layers != usual.citing_layers
            if warnings or other_layers or settings.citations != usual.citations:  # support depends on the citations
                values.pop("support", None)
            if other_layers or settings.max_length < usual.max_length:  # a truncated summary uses fewer paragraphs
                values.pop("entropy", None)
            found = self.familiar.warnings(row, values)
        return summary.model_copy(update={"warnings": found + warnings})


def _collated(spec: systems.Spec, rows: Sequence[Row], limits: SourceConfig) -> Any:
    kind = systems.kind(spec)
    return kind.collate(kind.pack(list(rows), limits))


def _chosen(predicted: Tensor, read: Sequence[Sequence[int]]) -> Tensor:
    """Return ``predicted`` [B, M] at the paragraphs ``read`` only, normalized to a sum of one."""
    chosen = predicted.new_zeros(len(read), max(map(len, read)))
    for example, paragraphs in enumerate(read):
        chosen[example, : len(paragraphs)] = predicted[example, list(paragraphs)]
    return shares(chosen)
