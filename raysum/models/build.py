"""From a spec to its model, with fresh weights."""

from typing import Any

from torch import nn

from raysum.models.family.model import Seq2Seq
from raysum.models.specs import (
    GraphSumSpec,
    ModelSpec,
    PredictorSpec,
    RankerSpec,
    Seq2SeqSpec,
    Spec,
    TdmcaSpec,
    TxlSpec,
)
from raysum.models.systems.graphsum import GraphSum
from raysum.models.systems.predictor import AttentionPredictor
from raysum.models.systems.ranker import Ranker
from raysum.models.systems.tdmca import Tdmca
from raysum.models.systems.txl import TransformerXL

_MODELS: dict[type[Spec], Any] = {
    Seq2SeqSpec: Seq2Seq,
    TdmcaSpec: Tdmca,
    TxlSpec: TransformerXL,
    GraphSumSpec: GraphSum,
    RankerSpec: Ranker,
    PredictorSpec: AttentionPredictor,
}


def build(spec: ModelSpec) -> nn.Module:
    """The model of ``spec``; seed torch before for repeatable weights."""
    return _MODELS[type(spec)](spec)
