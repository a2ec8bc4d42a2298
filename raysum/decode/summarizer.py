"""The public face: raw text, or dataset rows, to summaries that cite their sources. Needs neither Ray nor DeepSpeed."""

import os
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from itertools import islice
from typing import Any

from raysum.config.decoding import DecodeConfig
from raysum.config.problems import validate
from raysum.config.sections import LoadConfig
from raysum.data.recipe import Recipe, read_recipe
from raysum.data.rows import Row
from raysum.decode.beam import IsCancelled
from raysum.decode.domain_shift import Familiar, doubts, figures
from raysum.decode.grounding.constraint import Grounding
from raysum.decode.searching import Searcher, citing, write_up
from raysum.decode.summary import NoSummary, Summary, attempted, name_of
from raysum.errors import UserError
from raysum.models.kernels.linear import optimize_for_inference
from raysum.prepare.learned import LearnedRanker
from raysum.prepare.row_builder import Rejected, prepare_example
from raysum.runs.folder import Run
from raysum.runs.restore import restore_generator, restore_predictor, restore_ranker
from raysum.runtime.placement import device as find_device
from raysum.runtime.processes import keep_freed_memory
from raysum.runtime.progress import bar, say
from raysum.stream.truncation import DECODING, truncation
from raysum.tokenizers.loading import load_tokenizer
from raysum.tokenizers.tokenizer import Tokenizer

DTYPES = ("fp32", "bf16", "int8")


class Summarizer:
    """A trained model with all that turns raw text into its input and its output into text.

    ``settings`` are the run's decoding settings with the overrides given to ``load``; ``familiar`` is None where the
    run has not learned what is usual, ``ranker`` where its recipe has no learned one.
    """

    def __init__(
        self,
        searcher: Searcher,
        vocabulary: Tokenizer,
        recipe: Recipe,
        settings: DecodeConfig,
        name: str,
        familiar: Familiar | None = None,
        ranker: LearnedRanker | None = None,
    ):
        self.searcher, self.vocabulary, self.recipe = searcher, vocabulary, recipe
        self.settings, self.name, self.familiar, self.ranker = settings, name, familiar, ranker
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
        """From a run folder: ``checkpoint`` is ``best``, ``latest`` or a step, ``decode`` overrides decoding settings.

        ``dtype`` is what matrices are multiplied in: ``fp32``, ``bf16`` by autocast, or ``int8`` (linear layers of the
        model, on a CPU). ``device`` defaults to CUDA where there is one. Raises UserError for a folder that is no
        complete run, for an unknown setting, for one that needs an attention predictor or ranker which is not there,
        and for int8 on CUDA.
        """
        if dtype not in DTYPES:
            raise UserError(f"no dtype {dtype!r}; there are {', '.join(DTYPES)}")
        return cls.of(
            run, validate({"checkpoint": checkpoint, "dtype": dtype, "decode": decode}, None, LoadConfig), device
        )

    @classmethod
    def of(cls, run: str | os.PathLike[str], config: LoadConfig, device: str | None = None) -> "Summarizer":
        """:meth:`load` as ``config`` says."""
        keep_freed_memory()
        opened, place = Run.resolve(run), find_device(device)
        vocabulary, recipe = load_tokenizer(opened.vocabulary), read_recipe(opened.recipe, str(opened.path))
        settings = validate(opened.decode.model_dump() | config.decode, None, DecodeConfig)
        model = optimize_for_inference(restore_generator(opened, config.checkpoint, place), config.dtype)
        commas = {i for text in (",", "a,") for i in vocabulary.encode(text) if vocabulary.decode([i]) == ","}
        searcher = Searcher(
            model,
            opened.config.source,
            restore_predictor(opened, place),
            restore_ranker(settings.ranker, vocabulary.sha256, place) if settings.ranker else None,
            bf16=config.dtype == "bf16",
            commas=tuple(sorted(commas)),
            grounding=Grounding(vocabulary, recipe.normalize),
        )
        familiar, ranker = Familiar.read(opened, vocabulary), LearnedRanker.beside(opened.vocabulary, recipe, place)
        return cls(searcher, vocabulary, recipe, settings, str(run), familiar, ranker)

    def choose(self, changes: Mapping[str, Any]) -> DecodeConfig:
        """The settings with ``changes`` (decoding keys). Raises UserError where they cannot work here."""
        settings = validate(self.settings.model_dump() | dict(changes), None, DecodeConfig)
        wants = [key for key in ("beta", "keep_paragraphs") if getattr(settings, key)]
        if wants and self.searcher.predictor is None:
            raise UserError(
                f"{wants[0]}={getattr(settings, wants[0])} needs the attention predictor, which {self.name} does not "
                f"have; train it with `raysum train alignment run={self.name} data=DATA`, or leave {wants[0]} out"
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
        """The summary of one cluster; a document is its text, or ``{"source": name, "text": text}``.

        Raises UserError where the documents hold no text.
        """
        return self.summarize_many([{"title": title, "documents": documents}])[0]

    def summarize_many(self, clusters: Sequence[Mapping[str, Any]], progress: bool = False) -> list[Summary]:
        """The summaries of raw clusters (``title``, ``documents`` or ``paragraphs``, ``id``), in their order.

        Raises UserError naming the first cluster without usable text.
        """
        rows = [self.prepare(cluster, number) for number, cluster in enumerate(clusters, 1)]
        found = self.summarize_rows(rows, progress=progress)
        return [one.located(raw) for one, raw in zip(found, clusters, strict=True)]

    def summarize_each(
        self, clusters: Sequence[Mapping[str, Any]], progress: bool = False
    ) -> list[Summary | NoSummary]:
        """:meth:`summarize_many`, where a cluster without usable text has a :class:`NoSummary` in its place."""
        prepared = [attempted(self.prepare, cluster, number) for number, cluster in enumerate(clusters, 1)]
        rows = [row for row in prepared if not isinstance(row, NoSummary)]
        if told := truncation(rows, self.searcher.model.spec, self.settings.reading(self.searcher.source), DECODING):
            say(told)
        found = iter(self.summarize_rows(rows, progress=progress))
        return [
            row if isinstance(row, NoSummary) else next(found).located(raw)
            for row, raw in zip(prepared, clusters, strict=True)
        ]

    def prepare(self, cluster: Mapping[str, Any], number: int = 1) -> Row:
        """A raw cluster as a dataset row; ``number`` names it in the UserError if it has neither id nor title."""
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
        """The summaries of dataset rows, in their order; rows of like length are decoded together.

        If ``is_cancelled`` returns true for the index of a row, its summary breaks off.
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
        """:meth:`summarize_rows` with each of ``betas`` in place of ``settings.beta``, for the price of less.

        The source is encoded once for all, and what the searches have in common is computed once (see
        ``decode.betas``); where alignment only ranks finished hypotheses, there is one search.
        """
        order = iter(sorted(range(len(rows)), key=lambda place: -len(rows[place]["ids"])))
        summaries: dict[int, list[Summary]] = {}
        with bar(total=len(rows), label="summarize", unit="example") if progress else nullcontext() as shown:
            while batch := list(islice(order, settings.batch_examples)):
                cancelled = None if is_cancelled is None else lambda index, batch=batch: is_cancelled(batch[index])
                found = self.searcher.find([rows[place] for place in batch], settings, betas, cancelled)
                for place, one in zip(batch, found, strict=True):
                    written = write_up(rows[place], one, settings, self.vocabulary)
                    summaries[place] = [self._warned(rows[place], one, settings) for one in written]
                if shown is not None:
                    shown.update(len(batch))
        return [[summaries[place][number] for place in range(len(rows))] for number in range(len(betas))]

    def _warned(self, row: Row, summary: Summary, settings: DecodeConfig) -> Summary:
        told = doubts(summary.summary, summary.support)
        if self.familiar is None:
            return summary.model_copy(update={"warnings": told})
        made, usual = figures(summary.support, summary.attention), self.familiar.decode
        other_layers = settings.citing_layers != usual.citing_layers
        if told or other_layers or settings.citations != usual.citations:  # support is by what is cited
            made.pop("support", None)
        if other_layers or settings.max_length < usual.max_length:  # what is cut short rests on fewer paragraphs
            made.pop("entropy", None)
        return summary.model_copy(update={"warnings": [*self.familiar.warnings(row, made), *told]})
