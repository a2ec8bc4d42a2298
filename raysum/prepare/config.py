"""The settings of `raysum prepare`."""

from pydantic import ConfigDict, Field, model_validator

from raysum.data.clean import Normalization
from raysum.data.recipe import Choices, Recipe
from raysum.prepare.splits import SPLITS


class PrepareConfig(Choices):
    model_config = ConfigDict(strict=False)

    out: str = Field(description="dataset folder to write")
    vocab: str | None = Field(None, description="SentencePiece model; without it one is trained")
    pieces: int = Field(32000, gt=0, description="pieces of a trained vocabulary (HT, section 4)")
    normalize: Normalization | None = Field(
        None, description="none, lower or lower-split; by default what the vocabulary needs"
    )
    split: str | None = Field(None, description="split of all sources, where names do not tell it")
    valid: float = Field(0.0, ge=0, le=1, description="share of clusters of no named split held out for validation")
    test: float = Field(0.0, ge=0, le=1, description="share of clusters of no named split held out for testing")
    max_rejected: float = Field(0.1, ge=0, le=1, description="share of rows that may be rejected")
    address: str | None = Field(None, description="address of a running Ray cluster")

    @model_validator(mode="after")
    def _check(self) -> "PrepareConfig":
        if self.split is not None and self.split not in SPLITS:
            raise ValueError(f"no split {self.split!r}; the splits are {', '.join(SPLITS)}")
        if self.valid + self.test > 1:
            raise ValueError(f"valid {self.valid:g} and test {self.test:g} hold out more than there is")
        return self

    def recipe(self, vocabulary_sha256: str, normalize: Normalization) -> Recipe:
        choices = {name: getattr(self, name) for name in Choices.model_fields}
        return Recipe(**choices, normalize=normalize, vocabulary_sha256=vocabulary_sha256)
