"""How tokens enter a pretrained model: tables of positions, norms behind them, and T5's bias of scores by distance.

S tokens of all sources, B examples, K target positions, H heads, D width.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from raysum.errors import UserError
from raysum.models.batch import Layout
from raysum.models.layers import norm_layer, sinusoids
from raysum.models.specs.backbone import Backbone
from raysum.models.specs.family import FamilySpec

_READ = {
    True: "read less of it, by source.max_tokens, and by source_tokens in decoding",  # joined
    False: "read less of each paragraph, by source.paragraph_tokens",
}
_WRITTEN = "write less, by decode.max_length, and source.target_tokens in training"


class Entry(nn.Module):
    """The places of tokens, for either side of the model."""

    def __init__(self, spec: FamilySpec, made: Backbone):
        super().__init__()
        self.flat, self.sinusoid = spec.positions == "flat", spec.sinusoid
        self.source_places = self.target_places = None
        if made.places == "learned":
            self.source_places = PlaceTable(spec.width, made, made.source_places, _READ[self.flat])
            self.target_places = PlaceTable(spec.width, made, made.target_places, _WRITTEN)
        self.source_distances = self.target_distances = None
        if made.places == "relative":
            own, theirs = len(spec.encoder) - spec.encoder.count("G"), len(spec.decoder)
            self.source_distances = Distances(spec.heads, made, own, both_ways=True)
            self.target_distances = Distances(spec.heads, made, theirs, both_ways=False)
        self.source_norm = norm_layer(spec) if made.embedding_norm else nn.Identity()
        self.target_norm = norm_layer(spec) if made.embedding_norm else nn.Identity()
        self.waves, self.by_layer = made.places == "sinusoid", made.layer_distances

    def source(self, x: Tensor, layout: Layout) -> Tensor:
        """Embeddings [S, D] -> what the first layer gets. Raises UserError where a sequence is too long."""
        places, mask = layout.token_position, layout.token_mask
        if self.flat:
            places, mask = layout.token_offset, layout.source_mask
        return self.source_norm(self._placed(x, self.source_places, places, mask.shape[1]))

    def target(self, x: Tensor, places: Tensor, length: int) -> Tensor:
        """Embeddings [B, K, D] at ``places``, which are below ``length``. Raises UserError where it is too long."""
        return self.target_norm(self._placed(x, self.target_places, places, length))

    def _placed(self, x: Tensor, table: nn.Module | None, places: Tensor, length: int) -> Tensor:
        if table is not None:
            return x + table(places, length)
        return x + sinusoids(places, x.shape[-1], self.sinusoid).to(x.dtype) if self.waves else x

    def source_bias(self, length: int, layer: int) -> Tensor | None:
        """The bias of the scores between ``length`` tokens in a pretrained layer, [1, H, length, length]."""
        if self.source_distances is None:
            return None
        places = torch.arange(length, device=self.source_distances.weight.device)
        return self.source_distances(places, places, layer)[None]


class PlaceTable(nn.Module):
    """A vector for each position, from a row of the table on."""

    def __init__(self, width: int, made: Backbone, rows: int, told: str):
        """``told`` says how there can be fewer tokens, for people."""
        super().__init__()
        self.weight = nn.Parameter(torch.empty(rows, width), requires_grad=made.places_trained)
        nn.init.normal_(self.weight, std=0.02)
        self.offset, self.told = made.place_offset, told

    def forward(self, places: Tensor, length: int) -> Tensor:
        """Places [...] below ``length`` -> [..., D]. Raises UserError where there are fewer."""
        most = len(self.weight) - self.offset
        if length > most:
            raise UserError(f"this model has places for {most} tokens, and here are {length}: {self.told}")
        return F.embedding(places + self.offset, self.weight)


class Distances(nn.Module):
    """T5's bias of a score (Raffel et al. 2020, section 2.1): one number a head and bucket of distances.

    Half of the buckets are of one distance each, the others grow logarithmically up to the farthest; where tokens look
    both ways, half of all are for those ahead. All layers share one table, or each has its own (UMT5): these are one
    parameter, the first layer's table first.
    """

    def __init__(self, heads: int, made: Backbone, layers: int, both_ways: bool):
        super().__init__()
        self.buckets, self.by_layer = made.buckets, made.layer_distances
        self.weight = nn.Parameter(torch.empty(made.buckets * (layers if self.by_layer else 1), heads))
        nn.init.normal_(self.weight, std=0.02)
        self.farthest, self.both_ways = made.farthest, both_ways

    def forward(self, queries: Tensor, keys: Tensor, layer: int = 0) -> Tensor:
        """Places [..., Q] and [..., T] -> [..., H, Q, T] of a ``layer``; if layers share a table, of all."""
        ahead = keys[..., None, :] - queries[..., None]
        bucket = self._bucket(ahead) + self.buckets * (layer if self.by_layer else 0)
        return F.embedding(bucket, self.weight).movedim(-1, -3)

    def _bucket(self, ahead: Tensor) -> Tensor:
        buckets = self.buckets // 2 if self.both_ways else self.buckets
        distance = ahead.abs() if self.both_ways else -ahead.clamp_max(0)
        exact = buckets // 2
        share = torch.log(distance.clamp_min(1).float() / exact) / math.log(self.farthest / exact)
        far = (exact + (share * (buckets - exact)).long()).clamp_max(buckets - 1)
        found = torch.where(distance < exact, distance, far)
        return found + buckets * (ahead > 0) if self.both_ways else found
