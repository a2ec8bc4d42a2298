"""From a spec to its model, with fresh weights."""

from typing import Any

from torch import nn

from raysum.models.graphsum import GraphSum
from raysum.models.predictor import AttentionPredictor
from raysum.models.ranker import Ranker
from raysum.models.seq2seq import Seq2Seq
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
from raysum.models.tdmca import Tdmca
from raysum.models.txl import TransformerXL

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
