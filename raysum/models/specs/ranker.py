"""The specification of the paragraph ranker."""

from typing import ClassVar, Literal

from pydantic import Field

from raysum.systems import Size, Spec
from raysum.tokenizers.special_tokens import PUBLISHED, SpecialTokens


class RankerSpec(Spec):
    """The paragraph ranker (HT eq. 1-6): two LSTMs, max pooling, tanh, sigmoid."""

    MODEL: ClassVar = "raysum.models.systems.ranker:Ranker"
    OBJECTIVE: ClassVar = "raysum.models.systems.ranker:ParagraphRanking"
    KIND: ClassVar = "raysum.stream.collators.ranking:Ranking"
    SCORER: ClassVar = "raysum.decode.ranker_scorer:RankerScorer"
    ranks: ClassVar = True

    system: Literal["ranker"] = "ranker"
    vocabulary: int = Field(32000, gt=8, le=100_000_000, description="number of pieces")
    marks: SpecialTokens = Field(
        PUBLISHED, description="ids that tell where texts begin and end: those of the vocabulary"
    )
    width: Size = Field(256, description="of the word embeddings")
    hidden: Size = Field(256, description="of both LSTMs and of the matching features")
    dropout: float = Field(0.2, ge=0, lt=1, description="before all linear layers")

    @property
    def extracts(self) -> bool:
        return True
