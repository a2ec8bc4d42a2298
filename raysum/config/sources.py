"""The config section that limits how much of an example a model reads."""

from pydantic import Field

from raysum.config.base import Count, Section
from raysum.systems import Size


class SourceConfig(Section):
    """How much of a prepared example a model reads. The dataset may have more."""

    max_paragraphs: Size = Field(30, description="number of best-ranked paragraphs to read")
    paragraph_tokens: Size = Field(100, description="tokens to read from each paragraph")
    max_tokens: Count | None = Field(None, description="tokens to read from the whole source; None = all")
    target_tokens: int = Field(
        400, gt=1, le=10**6, description="maximum tokens of a target in training; the rest is cut"
    )
