"""From a spec to its model, with fresh weights."""

from torch import nn

from raysum.models.predictor import AttentionPredictor
from raysum.models.seq2seq import Seq2Seq
from raysum.models.specs import PredictorSpec, Seq2SeqSpec


def build(spec: Seq2SeqSpec | PredictorSpec) -> nn.Module:
    """The model of ``spec``; seed torch before for repeatable weights."""
    return AttentionPredictor(spec) if isinstance(spec, PredictorSpec) else Seq2Seq(spec)
