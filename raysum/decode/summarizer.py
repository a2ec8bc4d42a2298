"""The summarizer: raw text or dataset rows to summaries that cite their sources. Needs neither Ray nor DeepSpeed."""

import os
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import islice
from typing import Any

from raysum.config.decoding import DecodeConfig
from raysum.config.problems import changed, validate
from raysum.config.sections import LoadConfig
from raysum.data.recipe import Recipe, read_recipe
from raysum.data.rows import Row
from raysum.decode.beam import IsCancelled
from raysum.decode.domain_shift import Familiar, doubts, figures
from raysum.decode.grounding.constraint import Grounding
from raysum.decode.searching import Searcher, citing, write_summaries
from raysum.decode.summary import NoSummary, Summary, attempted, name_of
from raysum.errors import UserError
from raysum.models.kernels.linear import optimize_for_inference
from raysum.prepare.learned import LearnedRanker
from raysum.prepare.row_builder import Rejected, prepare_example
from raysum.runs.folder import Run
from raysum.runs.restore import restore, restore_predictor, restore_ranker
from raysum.runtime.placement import device as find_device
from raysum.runtime.processes import keep_freed_memory
from raysum.runtime.progress import bar, say
from raysum.stream.truncation import DECODING, truncation
from raysum.tokenizers.loading import load_tokenizer
from raysum.tokenizers.tokenizer import Tokenizer


@dataclass(eq=False, repr=False)
class Summarizer:
    """A trained model with its vocabulary, recipe and decoding settings.

    ``settings`` are those of the run with the overrides of ``load``. ``familiar`` are the reference ranges of the run,
    if it has any; ``ranker`` is its learned ranker, if its recipe has one.
    """

    searcher: Searcher
    vocabulary: Tokenizer
    recipe: Recipe
    settings: DecodeConfig
    name: str
    familiar: Familiar | None = None
    ranker: LearnedRanker | None = None

    def __post_init__(self) -> None:
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
        commas = {i for text in (",", "a,") for i in vocabulary.encode(text) if vocabulary.decode([i]) == ","}
        searcher = Searcher(
            model,
            opened.config.source,
            restore_predictor(opened, torch_device),
            restore_ranker(settings.ranker, vocabulary.sha256, torch_device) if settings.ranker else None,
            bf16=config.dtype == "bf16",
            commas=tuple(sorted(commas)),
            grounding=Grounding(vocabulary, recipe.normalize),
        )
        familiar = Familiar.read(opened, vocabulary)
        ranker = LearnedRanker.beside(opened.vocabulary, recipe, torch_device)
        return cls(searcher, vocabulary, recipe, settings, str(run), familiar, ranker)

    def choose(self, changes: Mapping[str, Any]) -> DecodeConfig:
        """Return the settings with ``changes`` of decoding keys. Raises UserError if the model lacks support."""
        settings = changed(self.settings, changes)
        for key in ("beta", "keep_paragraphs"):
            if getattr(settings, key) and self.searcher.predictor is None:
                raise UserError(
                    f"{key}={getattr(settings, key)} needs the attention predictor, but {self.name} has none; train it "
                    f"with `raysum train alignment run={self.name} data=DATA`, or leave {key} out"
                )
        if settings.extractive and self.searcher.ranker is None:
            raise UserError(
                f"extractive={settings.extractive} needs a learned ranker; train one with `raysum train ranker "
                "data=DATA out=RANKER` and name it by ranker=RANKER, or leave extractive out"
            )
        if settings.ranker != self.settings.ranker:
            raise UserError("the ranker is loaded with the model; name it there")
        spec = self.searcher.model.spec
        words = [("bad_words_ids", token) for word in settings.bad_words_ids for token in word]
        forced = [(key, getattr(settings, key) or 0) for key in ("forced_bos_token_id", "forced_eos_token_id")]
        for key, token in (*words, *forced):
            if token >= spec.vocabulary:
                raise UserError(f"{key}={token} is no token: {self.name} has ids up to {spec.vocabulary - 1}")
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
        limits = self.settings.reading(self.searcher.source)
        if message := truncation(rows, self.searcher.model.spec, limits, DECODING):
            say(message)
        summaries = iter(self.summarize_rows(rows, progress=progress))
        return [
            row if isinstance(row, NoSummary) else next(summaries).located(raw)
            for row, raw in zip(prepared, clusters, strict=True)
        ]

    def prepare(self, cluster: Mapping[str, Any], number: int = 1) -> Row:
        """Return a raw cluster as a dataset row. A UserError names it by id, title or ``number``."""
        try:
            return prepare_example(cluster, self.recipe, self.vocabulary, self.ranker)
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
        order = iter(sorted(range(len(rows)), key=lambda index: -len(rows[index]["ids"])))
        summaries: dict[int, list[Summary]] = {}
        with bar(total=len(rows), label="summarize", unit="example") if progress else nullcontext() as shown:
            while batch := list(islice(order, settings.batch_examples)):
                cancelled = None if is_cancelled is None else lambda index, batch=batch: is_cancelled(batch[index])
                results = self.searcher.find([rows[index] for index in batch], settings, betas, cancelled)
                for index, result in zip(batch, results, strict=True):
                    written = write_summaries(rows[index], result, settings, self.vocabulary)
                    summaries[index] = [self._with_warnings(rows[index], summary, settings) for summary in written]
                if shown is not None:
                    shown.update(len(batch))
        return [[summaries[index][number] for index in range(len(rows))] for number in range(len(betas))]

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
