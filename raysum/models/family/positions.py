"""Positions in pretrained models: tables, the norms after them, and T5's bias of scores by distance.

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

_SHORTEN_SOURCE = {
    True: "lower source.max_tokens, and source_tokens in decoding",  # flat positions
    False: "lower source.paragraph_tokens",
}
_SHORTEN_TARGET = "lower decode.max_length, and source.target_tokens in training"


class PretrainedPositions(nn.Module):
    """The positions of source and target tokens."""

    def __init__(self, spec: FamilySpec, backbone: Backbone):
        super().__init__()
        self.flat, self.sinusoid = spec.positions == "flat", spec.sinusoid
        self.source_places = self.target_places = None
        if backbone.places == "learned":
            self.source_places = PositionTable(spec.width, backbone, backbone.source_places, _SHORTEN_SOURCE[self.flat])
            self.target_places = PositionTable(spec.width, backbone, backbone.target_places, _SHORTEN_TARGET)
        self.source_distances = self.target_distances = None
        if backbone.places == "relative":
            source_layers, target_layers = len(spec.encoder) - spec.encoder.count("G"), len(spec.decoder)
            self.source_distances = Distances(spec.heads, backbone, source_layers, both_ways=True)
            self.target_distances = Distances(spec.heads, backbone, target_layers, both_ways=False)
        self.source_norm = norm_layer(spec) if backbone.embedding_norm else nn.Identity()
        self.target_norm = norm_layer(spec) if backbone.embedding_norm else nn.Identity()
        self.is_sinusoid, self.by_layer = backbone.places == "sinusoid", backbone.layer_distances

    def source(self, x: Tensor, layout: Layout) -> Tensor:
        """Return the first layer's input for embeddings [S, D]. Raises UserError if a sequence is too long."""
        positions, mask = layout.token_position, layout.token_mask
        if self.flat:
            positions, mask = layout.token_offset, layout.source_mask
        return self.source_norm(self._add_positions(x, self.source_places, positions, mask.shape[1]))

    def target(self, x: Tensor, positions: Tensor, length: int) -> Tensor:
        """Return the first layer's input for embeddings [B, K, D] at ``positions``, which are below ``length``.

        Raises UserError if ``length`` is too large.
        """
        return self.target_norm(self._add_positions(x, self.target_places, positions, length))

    def _add_positions(self, x: Tensor, table: nn.Module | None, positions: Tensor, length: int) -> Tensor:
        if table is not None:
            return x + table(positions, length)
        return x + sinusoids(positions, x.shape[-1], self.sinusoid).to(x.dtype) if self.is_sinusoid else x

    def source_bias(self, length: int, layer: int) -> Tensor | None:
        """Return the bias of the scores between ``length`` tokens in a pretrained layer, [1, H, length, length]."""
        if self.source_distances is None:
            return None
        positions = torch.arange(length, device=self.source_distances.weight.device)
        return self.source_distances(positions, positions, layer)[None]


class PositionTable(nn.Module):
    """A learned vector for each position, from a row of the table on."""

    def __init__(self, width: int, backbone: Backbone, rows: int, remedy: str):
        """``remedy`` is the advice for users with too long a text."""
        super().__init__()
        self.weight = nn.Parameter(torch.empty(rows, width), requires_grad=backbone.places_trained)
        nn.init.normal_(self.weight, std=0.02)
        self.offset, self.remedy = backbone.place_offset, remedy

    def forward(self, positions: Tensor, length: int) -> Tensor:
        """Return [..., D] for positions [...] below ``length``. Raises UserError if the table has fewer."""
        most = len(self.weight) - self.offset
        if length > most:
            raise UserError(f"this model has positions for {most} tokens, but the text has {length}: {self.remedy}")
        return F.embedding(positions + self.offset, self.weight)


class Distances(nn.Module):
    """T5's bias of scores (Raffel et al. 2020, section 2.1): a number for each head and bucket of distances.

    Half of the buckets contain one distance each; the others grow logarithmically up to the farthest distance. If
    tokens attend in both directions, half of all buckets are for later tokens. All layers share one table, or each
    layer has its own (UMT5): then the tables are one parameter, in the order of layers.
    """

    def __init__(self, heads: int, backbone: Backbone, layers: int, both_ways: bool):
        super().__init__()
        self.buckets, self.by_layer = backbone.buckets, backbone.layer_distances
        self.weight = nn.Parameter(torch.empty(backbone.buckets * (layers if self.by_layer else 1), heads))
        nn.init.normal_(self.weight, std=0.02)
        self.farthest, self.both_ways = backbone.farthest, both_ways

    def forward(self, queries: Tensor, keys: Tensor, layer: int = 0) -> Tensor:
        """Return the bias [..., H, Q, T] for positions [..., Q] and [..., T] in a ``layer``."""
        ahead = keys[..., None, :] - queries[..., None]
        bucket = self._bucket(ahead) + self.buckets * (layer if self.by_layer else 0)
        return F.embedding(bucket, self.weight).movedim(-1, -3)

    def _bucket(self, ahead: Tensor) -> Tensor:
        buckets = self.buckets // 2 if self.both_ways else self.buckets
        distance = ahead.abs() if self.both_ways else -ahead.clamp_max(0)
        exact = buckets // 2
        share = torch.log(distance.clamp_min(1).float() / exact) / math.log(self.farthest / exact)
        far = (exact + (share * (buckets - exact)).long()).clamp_max(buckets - 1)
        bucket = torch.where(distance < exact, distance, far)
        return bucket + buckets * (ahead > 0) if self.both_ways else bucket
