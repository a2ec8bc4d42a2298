"""The specification of the attention predictor."""

from typing import ClassVar, Literal

from pydantic import Field, model_validator

from raysum.systems import Layers, Size, Spec


class PredictorSpec(Spec):
    """The attention predictor (PHT paper, section 4.2.1): Transformer layers over paragraph embeddings, softmax."""

    MODEL: ClassVar = "raysum.models.systems.predictor:AttentionPredictor"
    OBJECTIVE: ClassVar = "raysum.models.systems.predictor:AttentionPrediction"
    KIND: ClassVar = "raysum.stream.collators.alignment:Alignment"
    predicts_attention: ClassVar = True
    norm: ClassVar = "post"
    attention_dropout: ClassVar = 0.0  # the published code drops out sub-layer outputs only
    ffn_dropout: ClassVar = 0.0

    system: Literal["predictor"] = "predictor"
    layers: Layers = 2
    width: Size = 256
    ffn: Size = 1024
    heads: Size = 4
    dropout: float = Field(0.5, ge=0, lt=1)

    @model_validator(mode="after")
    def _check(self) -> "PredictorSpec":
        if self.width % self.heads:
            raise ValueError(f"width {self.width} is not a multiple of heads {self.heads}")
        return self
