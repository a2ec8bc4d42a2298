"""BERT as a labeller of sentences (Zhang et al. 2019, section 4.4), in the layers of the transformers library.

S tokens of all sentences, P sentences, B blocks of sentences, N tokens of the longest block, D width. Each sentence
begins with [CLS] and ends with [SEP]; all tokens are of BERT's first segment.
"""

from torch import Tensor

from raysum.models.batch import Source, scatter_padded
from raysum.models.layers import xavier_linear
from raysum.models.specs.scorers import BertSpec
from raysum.models.systems.hibert import SentenceLabeller
from raysum.runtime.extras import needs

needs("transformers", "a bert")

from transformers import BertConfig, BertModel  # noqa: E402 - only if it is installed


class Bert(SentenceLabeller):
    """The encoder, and a linear layer over its output at each [CLS]."""

    def __init__(self, spec: BertSpec):
        super().__init__()
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
        ids = scatter_padded(source.ids, layout.in_source, *layout.source_mask.shape)
        hidden = self.bert(ids, attention_mask=layout.source_mask.long()).last_hidden_state  # [B, N, D]
        opening = layout.in_source[source.lengths.cumsum(0) - source.lengths]
        return self.label(hidden.flatten(0, 1).index_select(0, opening))
