"""The specification of HIBERT."""

from typing import ClassVar, Literal

from pydantic import Field

from raysum.models.specs.family import TransformerSpec
from raysum.systems import Layers, Size


class HibertSpec(TransformerSpec):
    """HIBERT (Zhang et al. 2019): a Transformer over the words of each sentence, another over the sentences.

    It learns to predict masked sentences, then, from those weights (``train.start``), to label the sentences to take.
    """

    MODEL: ClassVar = "raysum.models.systems.hibert:Hibert"
    OBJECTIVE: ClassVar = "raysum.models.systems.hibert:objective"
    KIND: ClassVar = "raysum.stream.kinds.sentences:Sentences"
    summarizes: ClassVar = False
    attends_to_paragraphs: ClassVar = False

    system: Literal["hibert"] = "hibert"
    task: Literal["extraction", "pretraining"] = Field(
        "extraction", description="label the sentences to take (eq. 8), or predict masked sentences (eq. 3-7)"
    )
    layers: Layers = Field(6, description="of the sentence and of the document Transformer, and of the decoder")
    window: Size = Field(30, description="sentences that the document Transformer reads together")
    norm: Literal["pre", "post"] = "post"

    @property
    def extracts(self) -> bool:
        return self.task == "extraction"
