"""Each next token by the last one and by the paragraphs it attends to, which are means of their tokens."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from raysum.models.batch import Memory, Source


@dataclass
class ToyState:
    phi: Tensor
    mask: Tensor
    beams: int

    def reorder(self, parent: Tensor) -> None:
        """Nothing is remembered of a hypothesis."""

    def keep(self, examples: Tensor) -> None:
        self.phi, self.mask = self.phi[examples], self.mask[examples]


class Toy(nn.Module):
    source_loss = 0.0
    output = None

    def __init__(self, spec):
        super().__init__()
        self.spec = spec
        self.embedding = nn.Linear(spec.width, spec.vocabulary)  # its rows are the tokens' vectors, too
        self.mix = nn.Linear(2 * spec.width, spec.width)

    def encode(self, source: Source) -> Memory:
        layout, tokens = source.layout, self.embedding.weight[source.ids]
        phi = tokens.new_zeros(*layout.paragraph_mask.shape, tokens.shape[1]).flatten(0, 1)
        phi = phi.index_add(0, layout.in_examples[layout.token_paragraph], tokens)
        return Memory(source, tokens, phi.view(*layout.paragraph_mask.shape, -1))

    def paragraphs(self, memory: Memory) -> Tensor:
        return memory.phi

    def decode(self, tokens: Tensor, memory: Memory, attention=False):
        return self._read(tokens, memory.phi, memory.paragraph_mask)

    def start(self, memory: Memory, beams: int) -> ToyState:
        return ToyState(memory.phi, memory.paragraph_mask, beams)

    def step(self, tokens: Tensor, state: ToyState, attention=False):
        hidden, share = self._read(tokens.view(-1, state.beams), state.phi, state.mask)
        return self.logits(hidden).flatten(0, 1), share.flatten(0, 1)

    def logits(self, hidden: Tensor) -> Tensor:
        return self.embedding(hidden)

    def _read(self, tokens: Tensor, phi: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        own = self.embedding.weight[tokens]
        scores = (own @ phi.transpose(1, 2)).masked_fill(~mask[:, None], -torch.inf)
        share = scores.softmax(-1)
        return self.mix(torch.cat([own, share @ phi], -1)).tanh(), share
