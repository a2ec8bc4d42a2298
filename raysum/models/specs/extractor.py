"""The specification of the extractor that is trained in a minute."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from raysum.systems import Size, Spec


class ExtractorSpec(Spec):
    """Boosted regression trees over what can be told of a sentence from outside, as the share of a summary that it is.

    Trained by scikit-learn at one go, not step by step.
    """

    TRAINER: ClassVar = "raysum.extract.learning:train"
    SCORER: ClassVar = "raysum.extract.learned:FeatureScorer"
    system: Literal["extractor"] = "extractor"
    width: Size = Field(1 << 18, description="places of the tables of cue words")
    cue_prior: float = Field(100, ge=0, le=10**6, description="sentences of mean worth that each cue starts with")
    trees: Size = Field(200, description="regression trees")
    leaves: int = Field(31, ge=2, le=1000, description="of a tree, at most")
    leaf_sentences: Size = Field(50, description="training sentences of a leaf, at least")
    rate: Annotated[float, Field(gt=0, le=1)] = Field(0.07, description="of what each tree adds")
    feature_share: Annotated[float, Field(gt=0, le=1)] = Field(0.3, description="of features, drawn anew at each split")
    examples: Size = Field(2000, description="training clusters used at most, evenly drawn: more take longer")

    @property
    def extracts(self) -> bool:
        return True
