"""Models that label the sentences to take: HIBERT (Zhang et al. 2019), with its pre-training, and BERT.

S tokens of all sentences, P sentences, B windows of sentences, K masked sentences, T tokens of the longest of these,
D width. A sentence ends with the end mark, and one window is a document.

HIBERT's paper leaves some points open. Here, embeddings are multiplied by sqrt(D), as in Vaswani et al. (2017); the
vectors of sentences go through dropout after eq. 2, as words do; eq. 3 and 5 are inside residual connections with
LayerNorm, as in the encoder's layers.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from raysum.models.batch import Source, scatter_padded
from raysum.models.generator import TokenEmbedding, final_norm, output_layer
from raysum.models.kernels.cross_entropy import smoothed_cross_entropy
from raysum.models.kernels.dropout import Dropout
from raysum.models.keys import StepContext
from raysum.models.layers import (
    AttentionLayer,
    CausalSelfAttention,
    Objective,
    TransformerBlock,
    sinusoids,
    xavier_linear,
)
from raysum.models.systems.specs import BertSpec, HibertSpec
from raysum.runtime.extras import needs

_SELECTED = 0.15  # share of a document's sentences
_MASKED, _KEPT = 0.8, 0.1  # shares of those; the others are replaced
_MAX_TOKENS = 4096  # tokens encoded together without gradients


@dataclass(frozen=True)
class SentenceBatch:
    """Sentences with ``labels`` [P]: 1 for a sentence to take. None if there are no labels."""

    source: Source
    labels: Tensor | None


class SentenceLabeller(nn.Module):
    """The base of models that return [P, 2]: logits of skipping and of taking each sentence of a source."""

    @torch.no_grad()
    def sentence_scores(self, batch: SentenceBatch) -> Tensor:
        """Return [P]: the probability (eq. 8) that a sentence is taken, computed for a few windows at a time."""
        parts = batch.source.split(_MAX_TOKENS)
        return torch.cat([self(part).softmax(-1, dtype=torch.float32)[:, 1] for part in parts])


class Hibert(SentenceLabeller):
    """The encoder with, by ``spec.task``, the layer for labels or the decoder of masked sentences."""

    def __init__(self, spec: HibertSpec):
        super().__init__()
        self.spec = spec
        self.embedding = TokenEmbedding(spec, is_output=False)  # the decoder has the bias
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
        """Return [P, 2]: the logits (eq. 8) of skipping and of taking each sentence."""
        return self.label(self.encode(source))

    def encode(self, source: Source) -> Tensor:
        """Return [P, D]: the vectors d of sentences in their document."""
        layout = source.layout
        x = self.dropout(self._add_positions(self.embedding(source.ids), layout.token_position))
        ends = source.lengths.cumsum(0) - 1
        for number, layer in enumerate(self.sentence, 1):
            x = layer(x, layout.by_paragraph, selected=ends if number == len(self.sentence) else None)
        h = self.dropout(self._add_positions(self.sentence_norm(x), layout.rank))  # eq. 2
        for layer in self.document:
            h = layer(h, layout.by_example)
        return self.document_norm(h)

    def _add_positions(self, x: Tensor, positions: Tensor) -> Tensor:
        """Add position codes; words and sentences have the same ones (eq. 1-2)."""
        return x + sinusoids(positions, x.shape[-1], self.spec.sinusoid, int(positions.max()) + 1).to(x.dtype)

    def sentence_loss(self, vectors: Tensor, ids: Tensor, lengths: Tensor, smoothing: float) -> Tensor:
        """Return minus the log of eq. 7, summed over sentences.

        ``ids`` are the sentences with their end, packed, of ``lengths`` [K], predicted from their ``vectors`` [K,
        D].
        """
        longest = int(lengths.max())
        mask = torch.arange(longest, device=ids.device) < lengths[:, None]
        index = mask.flatten().nonzero().squeeze(1)
        starts = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)[:-1]])
        inputs = ids.roll(1).index_fill(0, starts, self.spec.marks.start)
        positions = index % longest
        x = self.dropout(self._add_positions(self.embedding(inputs), positions))
        hidden = self.decoder(scatter_padded(x, index, *mask.shape), vectors[:, None])
        matrix, bias = self.decoder.matrix(self.embedding)
        real, pad = hidden.flatten(0, 1).index_select(0, index), self.spec.marks.pad
        return smoothed_cross_entropy(real, matrix, bias, ids, smoothing, pad=pad)


class SentenceDecoder(nn.Module):
    """Eq. 3-6: predicts a sentence token by token, given the vector of its position in the document."""

    def __init__(self, spec: HibertSpec):
        super().__init__()
        self.layers = nn.ModuleList(SentenceDecoderLayer(spec) for _ in range(spec.layers))
        self.norm = final_norm(spec)
        self.output = output_layer(spec)
        self.bias = nn.Parameter(torch.zeros(spec.vocabulary)) if spec.tied_output else None

    def forward(self, x: Tensor, vectors: Tensor) -> Tensor:
        """Return [K, T, D] from x [K, T, D], the preceding tokens, and vectors [K, 1, D]."""
        for layer in self.layers:
            x = layer(x, vectors)
        return self.norm(x)

    def matrix(self, embedding: TokenEmbedding) -> tuple[Tensor, Tensor | None]:
        """Return W of eq. 6, which may be the embedding's, and its bias."""
        return (embedding.weight, self.bias) if self.output is None else (self.output.weight, self.output.bias)


class SentenceDecoderLayer(AttentionLayer):
    """One attention, to the preceding tokens; the vector of the document is added."""

    def __init__(self, spec: HibertSpec):
        super().__init__(spec, CausalSelfAttention(spec))

    def forward(self, x: Tensor, vectors: Tensor) -> Tensor:
        x = self.around_attention.leave(x, self.attention(self.around_attention.enter(x), StepContext()))  # eq. 3
        return self.feed_forward(x + vectors)  # eq. 4-5


class Bert(SentenceLabeller):
    """BERT, and a linear layer over its output at each [CLS] (Zhang et al. 2019, section 4.4).

    Each sentence begins with [CLS] and ends with [SEP]; all tokens are of BERT's first segment.
    """

    def __init__(self, spec: BertSpec):
        super().__init__()
        needs("transformers", "a bert")
        from transformers import BertConfig, BertModel

        self.spec = spec
        config = BertConfig(
            vocab_size=spec.vocabulary,
            hidden_size=spec.width,
            num_hidden_layers=spec.layers,
            num_attention_heads=spec.heads,
            intermediate_size=spec.ffn,
            max_position_embeddings=spec.positions,
            hidden_dropout_prob=spec.dropout,
            attention_probs_dropout_prob=spec.attention_dropout,
        )
        self.bert = BertModel(config, add_pooling_layer=False)
        self.label = xavier_linear(spec.width, 2)

    def forward(self, source: Source) -> Tensor:
        """Return [P, 2]: the logits of skipping and of taking each sentence."""
        layout = source.layout
        hidden = self.bert(layout.to_source(source.ids), attention_mask=layout.source_mask.long()).last_hidden_state
        opening = layout.in_source[source.lengths.cumsum(0) - source.lengths]
        return self.label(hidden.flatten(0, 1).index_select(0, opening))


def hibert_objective(model: Hibert, smoothing: float) -> nn.Module:
    """Return the objective of ``model`` for its task."""
    return Labelling(model, smoothing) if model.spec.task == "extraction" else SentencePrediction(model, smoothing)


class Labelling(Objective):
    """Cross-entropy of the sentences' labels (section 3.3)."""

    def forward(self, batch: SentenceBatch) -> Tensor:
        """Return the sum over sentences, a scalar in fp32."""
        assert batch.labels is not None, "rows of kind extraction have labels"
        logits = self.model(batch.source).float()
        return functional.cross_entropy(logits, batch.labels, reduction="sum", label_smoothing=self.smoothing)


class SentencePrediction(Objective):
    """The prediction of masked sentences (section 3.2).

    Masks come from torch's generator, which training seeds for each micro-batch. In evaluation mode they come from a
    generator with a fixed seed, so they are the same each time.
    """

    def forward(self, batch: SentenceBatch) -> Tensor:
        """Return the mean over predicted tokens, times the number of sentences in the batch.

        That number is known in advance; the number of predicted tokens is random.
        """
        source = batch.source
        generator = None if self.training else torch.Generator().manual_seed(0)
        masked, selected = mask_sentences(source, generator, self.model.spec.marks.mask)
        ids = source.ids[torch.isin(source.layout.token_paragraph, selected)]
        vectors = self.model.encode(masked)[selected]
        loss = self.model.sentence_loss(vectors, ids, source.lengths[selected], self.smoothing)
        return loss * (len(source.lengths) / len(ids))


def mask_sentences(source: Source, generator: torch.Generator | None, mask: int) -> tuple[Source, Tensor]:
    """Return ``source`` with 15 % of the sentences of each window masked, and their indices [K], ascending.

    At least one sentence is selected. The words of 80 % become ``mask``, 10 % do not change, and 10 % become another
    sentence of the batch.
    """
    device, layout, total = source.ids.device, source.layout, len(source.lengths)

    def random(count: int) -> Tensor:
        return torch.rand(count, generator=generator, dtype=torch.float64).to(device)

    number = (_SELECTED * source.counts + random(len(source.counts))).floor().clamp(min=1)
    order = (layout.paragraph_example + random(total)).argsort()  # random within each window
    selected = torch.zeros(total, dtype=torch.bool, device=device)
    selected[order] = layout.rank < number[layout.paragraph_example]
    fate = random(total)
    hidden, replaced = selected & (fate < _MASKED), selected & (fate >= _MASKED + _KEPT)
    own = torch.arange(total, device=device)
    origin = torch.where(replaced, (random(total) * total).long(), own)
    lengths = source.lengths[origin]
    starts = source.lengths.cumsum(0) - source.lengths
    sentence = torch.repeat_interleave(own, lengths)
    position = torch.arange(len(sentence), device=device) - (lengths.cumsum(0) - lengths)[sentence]
    ids = source.ids[starts[origin][sentence] + position]
    is_word = position < lengths[sentence] - 1
    ids = torch.where(hidden[sentence] & is_word, mask, ids)
    return Source(ids, lengths, source.counts), selected.nonzero().squeeze(1)
