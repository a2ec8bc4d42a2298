"""HIBERT (Zhang et al. 2019): the hierarchical encoder and what it is trained for, masked sentences and labels.

S tokens of all sentences, P sentences, B windows of sentences, K masked sentences, T tokens of the longest of these,
D width. A sentence ends with the mark of the end, and a document is what one window holds.

The paper leaves open, and here is done: embeddings are multiplied by sqrt(D), as in Vaswani et al. (2017), and the
vectors of sentences go through dropout after eq. 2, as words do; eq. 3 and 5 stand inside residual connections with
LayerNorm, as its encoder's layers do.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from raysum.models.batch import Source, scatter_padded
from raysum.models.generator import TokenEmbedding, final_norm, output_layer
from raysum.models.kernels.cache import StepContext
from raysum.models.kernels.cross_entropy import smoothed_cross_entropy
from raysum.models.kernels.dropout import Dropout
from raysum.models.layers import (
    CausalSelfAttention,
    FeedForward,
    Residual,
    TransformerBlock,
    position_codes,
    xavier_linear,
)
from raysum.models.specs.scorers import HibertSpec

_SELECTED = 0.15  # of the sentences of a document
_MASKED, _KEPT = 0.8, 0.1  # of those; the others are replaced
_PART = 4096  # tokens that are encoded together where nothing is kept for backward


@dataclass(frozen=True)
class SentenceBatch:
    """``labels`` [P]: 1 for a sentence to take; None where there are none."""

    source: Source
    labels: Tensor | None


class SentenceLabeller(nn.Module):
    """What gives [P, 2] logits, of leaving and of taking each sentence of a source."""

    @torch.no_grad()
    def sentence_scores(self, batch: SentenceBatch) -> Tensor:
        """[P]: the probability of eq. 8 that a sentence is taken, a few windows at a time."""
        parts = batch.source.parts(_PART)
        return torch.cat([self(part).softmax(-1, dtype=torch.float32)[:, 1] for part in parts])


class Hibert(SentenceLabeller):
    """The encoder, and the layer for labels or the decoder of masked sentences, by ``spec.task``."""

    def __init__(self, spec: HibertSpec):
        super().__init__()
        self.spec = spec
        self.embedding = TokenEmbedding(spec, is_output=False)  # its bias is the decoder's
        self.dropout = Dropout(spec.dropout)
        self.sentence = nn.ModuleList(TransformerBlock(spec) for _ in range(spec.layers))
        self.sentence_norm = final_norm(spec)
        self.document = nn.ModuleList(TransformerBlock(spec) for _ in range(spec.layers))
        self.document_norm = final_norm(spec)
        if spec.task == "extraction":
            self.label = xavier_linear(spec.width, 2)
        else:
            self.decoder = SentenceDecoder(spec)

    def forward(self, source: Source) -> Tensor:
        """[P, 2]: the logits of eq. 8, of leaving and of taking each sentence."""
        return self.label(self.encode(source))

    def encode(self, source: Source) -> Tensor:
        """[P, D]: the vectors d of sentences in their document."""
        layout = source.layout
        x = self.dropout(self._placed(self.embedding(source.ids), layout.token_position))
        ends = source.lengths.cumsum(0) - 1
        for number, layer in enumerate(self.sentence, 1):
            x = layer(x, layout.in_paragraphs, layout.token_mask, wanted=ends if number == len(self.sentence) else None)
        h = self.dropout(self._placed(self.sentence_norm(x), layout.rank))  # eq. 2
        for layer in self.document:
            h = layer(h, layout.in_examples, layout.paragraph_mask)
        return self.document_norm(h)

    def _placed(self, x: Tensor, places: Tensor) -> Tensor:
        """Eq. 1-2: words and sentences have the same position codes."""
        codes = position_codes(places, int(places.max()) + 1, x.shape[-1], self.spec.sinusoid)
        return x + codes.to(x.dtype)

    def sentence_loss(self, vectors: Tensor, ids: Tensor, lengths: Tensor, smoothing: float) -> Tensor:
        """Minus the log of eq. 7, summed: sentences ``ids`` with their end, packed, of ``lengths`` [K] predicted from
        their ``vectors`` [K, D]."""
        longest = int(lengths.max())
        mask = torch.arange(longest, device=ids.device) < lengths[:, None]
        index = mask.flatten().nonzero().squeeze(1)
        starts = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)[:-1]])
        known = ids.roll(1).index_fill(0, starts, self.spec.marks.start)
        places = index % longest
        x = self.dropout(self._placed(self.embedding(known), places))
        hidden = self.decoder(scatter_padded(x, index, *mask.shape), vectors[:, None])
        matrix, bias = self.decoder.matrix(self.embedding)
        real, pad = hidden.flatten(0, 1).index_select(0, index), self.spec.marks.pad
        return smoothed_cross_entropy(real, matrix, bias, ids, smoothing, pad=pad)


class SentenceDecoder(nn.Module):
    """Eq. 3-6: predicts a sentence token by token, given the vector of its place in the document."""

    def __init__(self, spec: HibertSpec):
        super().__init__()
        self.layers = nn.ModuleList(SentenceDecoderLayer(spec) for _ in range(spec.layers))
        self.norm = final_norm(spec)
        self.output = output_layer(spec)
        self.bias = nn.Parameter(torch.zeros(spec.vocabulary)) if spec.tied_output else None

    def forward(self, x: Tensor, vectors: Tensor) -> Tensor:
        """x [K, T, D] of the tokens before, vectors [K, 1, D] -> [K, T, D]."""
        for layer in self.layers:
            x = layer(x, vectors)
        return self.norm(x)

    def matrix(self, embedding: TokenEmbedding) -> tuple[Tensor, Tensor | None]:
        """W of eq. 6, which may be the embedding's, and its bias."""
        return (embedding.weight, self.bias) if self.output is None else (self.output.weight, self.output.bias)


class SentenceDecoderLayer(nn.Module):
    """One attention, to the tokens before; the vector of the document is added."""

    def __init__(self, spec: HibertSpec):
        super().__init__()
        self.attention = CausalSelfAttention(spec)
        self.around_attention = Residual(spec)
        self.ffn = FeedForward(spec)
        self.around_ffn = Residual(spec)

    def forward(self, x: Tensor, vectors: Tensor) -> Tensor:
        x = self.around_attention.leave(x, self.attention(self.around_attention.enter(x), StepContext()))  # eq. 3
        x = x + vectors  # eq. 4
        return self.around_ffn.leave(x, self.ffn(self.around_ffn.enter(x)))  # eq. 5


def objective(model: Hibert, smoothing: float) -> nn.Module:
    """What trains ``model`` for its task."""
    return Labelling(model, smoothing) if model.spec.task == "extraction" else SentencePrediction(model, smoothing)


class Labelling(nn.Module):
    """Cross-entropy of the sentences' labels (section 3.3)."""

    def __init__(self, model: SentenceLabeller, smoothing: float):
        super().__init__()
        self.model, self.smoothing = model, smoothing

    def forward(self, batch: SentenceBatch) -> Tensor:
        """The sum over sentences, a scalar in fp32."""
        assert batch.labels is not None, "rows of kind extraction have labels"
        smoothing = self.smoothing if self.training else 0.0
        logits = self.model(batch.source).float()
        return functional.cross_entropy(logits, batch.labels, reduction="sum", label_smoothing=smoothing)


class SentencePrediction(nn.Module):
    """The prediction of masked sentences (section 3.2).

    What is masked is drawn from torch's generator, which training seeds for each micro-batch; in evaluation mode from
    one of its own, so that it is the same each time.
    """

    def __init__(self, model: Hibert, smoothing: float):
        super().__init__()
        self.model, self.smoothing = model, smoothing

    def forward(self, batch: SentenceBatch) -> Tensor:
        """The mean over predicted tokens, times the sentences of the batch: those are known before it is drawn."""
        source = batch.source
        generator = None if self.training else torch.Generator().manual_seed(0)
        given, selected = masked(source, generator, self.model.spec.marks.mask)
        ids = source.ids[torch.isin(source.layout.token_paragraph, selected)]
        smoothing = self.smoothing if self.training else 0.0
        vectors = self.model.encode(given)[selected]
        loss = self.model.sentence_loss(vectors, ids, source.lengths[selected], smoothing)
        return loss * (len(source.lengths) / len(ids))


def masked(source: Source, generator: torch.Generator | None, mask: int) -> tuple[Source, Tensor]:
    """``source`` with 15 % of the sentences of each window, one at least, changed; and which these are, [K] ascending.

    Of them the words of 80 % are ``mask``, 10 % stay, and for 10 % another sentence of the batch stands there.
    """
    device, layout, total = source.ids.device, source.layout, len(source.lengths)

    def drawn(count: int) -> Tensor:
        return torch.rand(count, generator=generator, dtype=torch.float64).to(device)

    number = (_SELECTED * source.counts + drawn(len(source.counts))).floor().clamp(min=1)
    order = (layout.paragraph_example + drawn(total)).argsort()  # within each window by chance
    selected = torch.zeros(total, dtype=torch.bool, device=device)
    selected[order] = layout.rank < number[layout.paragraph_example]
    fate = drawn(total)
    hidden, replaced = selected & (fate < _MASKED), selected & (fate >= _MASKED + _KEPT)
    own = torch.arange(total, device=device)
    origin = torch.where(replaced, (drawn(total) * total).long(), own)
    lengths = source.lengths[origin]
    starts = source.lengths.cumsum(0) - source.lengths
    sentence = torch.repeat_interleave(own, lengths)
    place = torch.arange(len(sentence), device=device) - (lengths.cumsum(0) - lengths)[sentence]
    ids = source.ids[starts[origin][sentence] + place]
    is_word = place < lengths[sentence] - 1
    ids = torch.where(hidden[sentence] & is_word, mask, ids)
    return Source(ids, lengths, source.counts), selected.nonzero().squeeze(1)
