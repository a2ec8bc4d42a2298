"""From dataset rows to summaries: the model reads a batch of rows, beam search writes, and summaries cite paragraphs.

B rows, M paragraphs of a row, R paragraphs that the model reads, K tokens of a summary.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from raysum import systems
from raysum.config.decoding import DecodeConfig, SourceConfig
from raysum.data.rows import Row, title_of
from raysum.decode.beam import IsCancelled
from raysum.decode.citations import annotated
from raysum.decode.hypotheses import Hypothesis
from raysum.decode.multi_beta import search_betas
from raysum.decode.scores import shares
from raysum.decode.summary import Alternative, Summary
from raysum.errors import UserError
from raysum.metrics import citations
from raysum.models.batch import AttentionRequest, Memory, move, scatter_padded
from raysum.models.generator import Generator
from raysum.tokenizers.special_tokens import SpecialTokens, marks_of
from raysum.tokenizers.tokenizer import Tokenizer


@dataclass(frozen=True)
class DecodedRow:
    """The results of the searches of one row, one search for each beta."""

    read: list[int]  # [R] the paragraphs of the row that the model read
    hypotheses: list[list[Hypothesis]]  # best first
    attention: list[np.ndarray]  # [K, R] of the best hypothesis


@dataclass(frozen=True)
class Searcher:
    """A summarizing model with its predictor and ranker.

    ``source`` limits what it reads of a row. ``bf16``: products by autocast; scores are always fp32. ``commas``: ids
    that ``no_repeat_last`` does not block. Settings with ``grounded`` need ``grounding``.
    """

    model: Generator
    source: SourceConfig
    predictor: Any = None
    ranker: Any = None
    bf16: bool = False
    commas: tuple[int, ...] = ()
    grounding: Any = None

    @torch.inference_mode()
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
        limits, device = settings.reading(self.source), next(self.model.parameters()).device
        spec, marks = self.model.spec, marks_of(self.model.spec)
        source = self._collated(spec, rows, limits).source
        read = [list(range(count)) for count in source.counts.tolist()]
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=self.bf16):
            memory = self.model.encode(move(source, device))
            predicted = None  # attention [B, M]
            if any(betas) or settings.keep_paragraphs:
                predicted = self.predictor(self.model.paragraphs(memory), memory.paragraph_mask)
            extracted = self._extract(rows, limits, memory) if settings.extractive else None
            if predicted is not None and settings.keep_paragraphs:
                for example, hat in enumerate(predicted.float().cpu().numpy()):  # PHT paper, Table 6
                    strongest = np.argsort(-hat[: len(read[example])], kind="stable")[: settings.keep_paragraphs]
                    read[example] = sorted(strongest.tolist())  # in rank order
                memory = self.model.encode(move(source.restrict(read, marks, spec.joins_paragraphs), device))
                predicted = _chosen(predicted, read)
                extracted = None if extracted is None else _chosen(extracted, read)
            options: dict[str, Any] = {"marks": marks, "exempt": self.commas, "is_cancelled": is_cancelled}
            if settings.title_prompt:
                options["prompt"] = _padded([torch.from_numpy(title_of(row, marks)) for row in rows], marks).to(device)
            if settings.grounded:
                options["constraint"] = self.grounding.constraint(rows, settings.grounded, device)
            if settings.encoder_no_repeat_ngram_size:
                options["source"] = _padded(memory.source.ids.split(memory.source.layout.sizes.tolist()), marks)
            found = search_betas(self.model, memory, settings, betas, predicted, extracted, **options)
            if not all(hypotheses for example in found for hypotheses in example):
                raise UserError("no score is finite: the training of the model, its predictor or ranker diverged")
            best = [[hypotheses[0].ids for hypotheses in example] for example in found]
            attention = attention_of(self.model, memory, best, citing(settings, spec))
        return [DecodedRow(*parts) for parts in zip(read, found, attention, strict=True)]

    def _extract(self, rows: Sequence[Row], limits: SourceConfig, memory: Memory) -> Tensor:
        """Return extractive probabilities [B, M] (extProb): the ranker's scores of the paragraphs, as shares."""
        device = memory.paragraph_mask.device
        batch = move(self._collated(self.ranker.spec, rows, limits), device)
        with torch.autocast(device.type, enabled=False):  # torch has no LSTM in bf16 on every CPU
            logits = self.ranker(batch.titles, batch.source)
        layout, mask = batch.source.layout, memory.paragraph_mask
        scores = scatter_padded(logits.float().sigmoid(), layout.in_examples, *layout.paragraph_mask.shape)
        return shares(scores[:, : mask.shape[1]] * mask)

    def _collated(self, spec: systems.Spec, rows: Sequence[Row], limits: SourceConfig) -> Any:
        kind = systems.kind(spec)
        return kind.collate(kind.pack(list(rows), limits))


def _padded(rows: Sequence[Tensor], marks: SpecialTokens) -> Tensor:
    """Return ``rows`` of ids as [B, longest]."""
    return pad_sequence([row.long() for row in rows], batch_first=True, padding_value=marks.pad)


def _chosen(predicted: Tensor, read: Sequence[Sequence[int]]) -> Tensor:
    """Return ``predicted`` [B, M] at the paragraphs ``read`` only, normalized to a sum of one."""
    chosen = predicted.new_zeros(len(read), max(map(len, read)))
    for example, paragraphs in enumerate(read):
        chosen[example, : len(paragraphs)] = predicted[example, list(paragraphs)]
    return shares(chosen)


def citing(settings: DecodeConfig, spec: systems.Spec) -> AttentionRequest:
    """Return the layers for citations. Raises UserError if ``spec`` lacks a layer that ``settings`` name."""
    if settings.citing_layers is None:
        return True
    count = spec.attending_layers
    for layer in settings.citing_layers:
        if abs(layer) > count:
            there = f"the {spec.system} has {count}, 1 to {count}" if count else f"a {spec.system} has none to choose"
            raise UserError(f"citing_layers names decoder layer {layer}, and {there}")
    return frozenset(layer % count if layer < 0 else layer - 1 for layer in settings.citing_layers)


@torch.inference_mode()
def attention_of(
    model: Any, memory: Any, summaries: Sequence[Sequence[Sequence[int]]], layers: AttentionRequest = True
) -> list[list[np.ndarray]]:
    """Return the attention [K, M] of the tokens of each summary to the paragraphs; each row sums to one.

    ``summaries`` are the ids of the hypotheses of each example of ``memory``, equally many for each. The passes are
    teacher-forced; equal summaries of an example are computed once. ``layers`` are the layers to read, or all. A row is
    0 if these layers attend to no text, only to special tokens of a pretrained model or beyond their memory.
    """
    different = [list(dict.fromkeys(map(tuple, hypotheses))) for hypotheses in summaries]
    attention: dict[tuple[int, tuple[int, ...]], np.ndarray] = {}
    marks = marks_of(model.spec)
    for turn in range(max(map(len, different))):
        examples = [example for example, hypotheses in enumerate(different) if turn < len(hypotheses)]
        part = memory if len(examples) == len(different) else memory.select(examples)
        forced = [different[example][turn] for example in examples]
        tokens = _padded([torch.tensor([marks.start, *ids[:-1]]) for ids in forced], marks)
        _, weights = model.decode(tokens.to(part.paragraph_mask.device), part, attention=layers)
        for example, ids, rows in zip(examples, forced, shares(weights).cpu().numpy(), strict=True):
            attention[example, ids] = rows[: len(ids)]
    return [[attention[example, tuple(ids)] for ids in hypotheses] for example, hypotheses in enumerate(summaries)]


def write_summaries(row: Row, decoded: DecodedRow, settings: DecodeConfig, vocabulary: Tokenizer) -> list[Summary]:
    """Return the summary of ``row`` for each beta; equal ones of several betas are written once."""
    written: dict[tuple[int, ...], Summary] = {}
    summaries = []
    for (best, *others), attention in zip(decoded.hypotheses, decoded.attention, strict=True):
        ids = tuple(best.ids)
        if ids not in written:
            everywhere = np.zeros((len(attention), len(row["document"])), attention.dtype)  # [K, M]
            everywhere[:, decoded.read] = attention[:, : len(decoded.read)]
            spans = [(vocabulary.decode(best.ids[a:b]), everywhere[a:b]) for a, b in vocabulary.token_spans(best.ids)]
            sentences = [(text, citations.overall(weights)) for text, weights in spans if text]
            texts, shares_of = [text for text, _ in sentences], [weights for _, weights in sentences]
            whole = citations.overall(everywhere).tolist()
            written[ids] = annotated(row, texts, shares_of, settings.citations, attention=whole)
        alternatives = [Alternative(summary=vocabulary.decode(other.ids), score=other.score) for other in others]
        changes: dict[str, Any] = {"score": best.score, "alternatives": alternatives}
        summaries.append(written[ids].model_copy(update=changes))
    return summaries
