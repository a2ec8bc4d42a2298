"""The section that tells how much of an example is read."""

from pydantic import Field

from raysum.config.base import Count, Section
from raysum.systems import Size


class SourceConfig(Section):
    """How much of a prepared example a model reads: the dataset may hold more."""

    max_paragraphs: Size = Field(30, description="best-ranked paragraphs read")
    paragraph_tokens: Size = Field(100, description="tokens read of each paragraph")
    max_tokens: Count | None = Field(None, description="tokens read of the whole source, None = all")
    target_tokens: int = Field(400, gt=1, le=10**6, description="tokens of a target in training; longer ones are cut")
