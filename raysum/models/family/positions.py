"""Positions: the papers' codes; in pretrained models tables, norms after them, and T5's bias of scores by distance.

S tokens of all sources, B examples, K target positions, H heads, D width.
"""

import math
from collections.abc import Iterable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from raysum.errors import UserError
from raysum.models.batch import Layout
from raysum.models.family.spec import Backbone, FamilySpec
from raysum.models.layers import norm_layer, positions_2d, sinusoids

_SHORTEN_SOURCE = "lower source.paragraph_tokens and source.max_tokens, or source_tokens in decoding"
_SHORTEN_TARGET = "lower decode.max_length, and source.target_tokens in training"


class Positions(nn.Module):
    """The papers' position codes."""

    def __init__(self, spec: FamilySpec):
        super().__init__()
        self.spec = spec

    def source(self, x: Tensor, layout: Layout) -> Tensor:
        """Return the first layer's input for embeddings [S, D] (HT eq. 7-9). Raises UserError if a text is too long."""
        spec = self.spec
        if spec.positions == "2d":
            token, rank = positions_2d(layout, spec.width, spec.sinusoid)
            codes = torch.cat([token, rank] if spec.form == "code" else [rank, token], -1)
        else:
            positions, length = self._places(layout)
            codes = sinusoids(positions, spec.width, spec.sinusoid, length)
        return x + codes.to(x.dtype)

    def _places(self, layout: Layout) -> tuple[Tensor, int]:
        """Return the positions of tokens [S] in the source or in the paragraph, and their number."""
        if self.spec.positions == "flat":
            return layout.token_offset, layout.source_mask.shape[1]
        return layout.token_position, layout.token_mask.shape[1]

    def target(self, x: Tensor, positions: Tensor, length: int) -> Tensor:
        """Return the first layer's input for embeddings [B, K, D] at ``positions``, which are below ``length``.

        Raises UserError if ``length`` is too large.
        """
        return x + sinusoids(positions, x.shape[-1], self.spec.sinusoid).to(x.dtype)

    def source_biases(self, layout: Layout) -> Iterable[Tensor | None]:
        """Return the bias of the scores of each encoder layer, [1, H, T, T]."""
        return [None] * len(self.spec.encoder)

    def target_biases(self, queries: Tensor, keys: Tensor) -> Iterable[Tensor | None]:
        """Return for each decoder layer the bias of scores of positions [..., Q] at others [..., T]: [..., H, Q, T]."""
        return [None] * len(self.spec.decoder)


class PretrainedPositions(Positions):
    """Positions by the specification's backbone."""

    def __init__(self, spec: FamilySpec):
        super().__init__(spec)
        backbone = spec.backbone
        assert backbone is not None
        self.source_places = self.target_places = None
        if backbone.places == "learned":
            self.source_places = PositionTable(spec.width, backbone, backbone.source_places, _SHORTEN_SOURCE)
            self.target_places = PositionTable(spec.width, backbone, backbone.target_places, _SHORTEN_TARGET)
        self.source_distances = self.target_distances = None
        if backbone.places == "relative":
            source_layers, target_layers = len(spec.encoder) - spec.encoder.count("G"), len(spec.decoder)
            self.source_distances = Distances(spec.heads, backbone, source_layers, both_ways=True)
            self.target_distances = Distances(spec.heads, backbone, target_layers, both_ways=False)
        self.source_norm = norm_layer(spec) if backbone.embedding_norm else nn.Identity()
        self.target_norm = norm_layer(spec) if backbone.embedding_norm else nn.Identity()

    def source(self, x: Tensor, layout: Layout) -> Tensor:
        return self.source_norm(self._add_positions(x, self.source_places, *self._places(layout)))

    def target(self, x: Tensor, positions: Tensor, length: int) -> Tensor:
        return self.target_norm(self._add_positions(x, self.target_places, positions, length))

    def _add_positions(self, x: Tensor, table: nn.Module | None, positions: Tensor, length: int) -> Tensor:
        if table is not None:
            return x + table(positions, length)
        return x if self.source_distances is not None else super().target(x, positions, length)

    def source_biases(self, layout: Layout) -> Iterable[Tensor | None]:
        distances, number = self.source_distances, 0  # pretrained layers before
        lengths = {"L": layout.token_mask.shape[1], "S": layout.source_mask.shape[1]}
        biases: dict[str, Tensor | None] = {}
        for letter in self.spec.encoder:
            if distances is not None and letter in lengths and (letter not in biases or distances.by_layer):
                positions = torch.arange(lengths[letter], device=distances.weight.device)
                biases[letter] = distances(positions, positions, number)[None]
            yield biases.get(letter)
            number += letter != "G"

    def target_biases(self, queries: Tensor, keys: Tensor) -> Iterable[Tensor | None]:
        distances = self.target_distances
        if distances is None:
            return super().target_biases(queries, keys)
        if not distances.by_layer:
            return [distances(queries, keys)] * len(self.spec.decoder)
        return (distances(queries, keys, layer) for layer in range(len(self.spec.decoder)))


class PositionTable(nn.Module):
    """A learned vector for each position, from a row of the table on."""

    def __init__(self, width: int, backbone: Backbone, rows: int, remedy: str):
        """``remedy`` is the advice for users with too long a text."""
        super().__init__()
        self.weight = nn.Parameter(torch.empty(rows, width), requires_grad=backbone.places_trained)
        nn.init.normal_(self.weight, std=0.02)
        self.offset, self.remedy = backbone.place_offset, remedy
        self.num_positions = rows - self.offset

    def forward(self, positions: Tensor, length: int) -> Tensor:
        """Return [..., D] for positions [...] below ``length``. Raises UserError if the table has fewer."""
        most = self.num_positions
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
