"""Sections that tell how summaries are written, or sentences taken."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from raysum.config.base import Count, Most, Section
from raysum.config.sources import SourceConfig
from raysum.systems import Size, Weight
from raysum.tokenizers.special_tokens import Id

# Decoding settings by the names that other toolkits have for them.
DECODE_ALIASES = {
    "beam_size": "num_beams",
    "block_ngram_repeat": "no_repeat_ngram_size",
    "num_return_sequences": "n_best",
    "max_new_tokens": "max_length",
    "min_new_tokens": "min_length",
}


def _check_layer(number: int) -> int:
    if number:
        return number
    raise ValueError("layers are counted from 1, or by -1 from the last")


# A layer of a decoder: 1 is the first, -1 the last.
Layer = Annotated[int, Field(ge=-1000, le=1000), AfterValidator(_check_layer)]


Word = Annotated[list[Id], Field(min_length=1, max_length=100)]


def _check_stopping(value: Any) -> Any:
    if value is None or isinstance(value, bool) or value == "never":
        return value
    raise ValueError("must be true, false or never; null is raysum's own rule")


class DecodeConfig(Section):
    """Beam search and its score terms. Names known from other toolkits are accepted too."""

    num_beams: int = Field(5, gt=0, le=256, description="hypotheses kept at each step")
    length_normalization: Literal["gnmt", "length", "none"] = Field(
        "gnmt", description="divide log-probability by ((5 + n) / 6)^p, by n^p, or by nothing; p = length_penalty"
    )
    length_penalty: float = Field(0.4, ge=0, le=5, description="HT's alpha; 1 with 'length' is PHT's eq. 17")
    min_length: Most = Field(0, description="tokens before EOS is allowed")
    max_length: Size = Field(200, description="tokens, EOS included")
    early_stopping: Annotated[bool | Literal["never"] | None, BeforeValidator(_check_stopping)] = Field(
        None,
        description="the search of transformers: an example ends with num_beams finished hypotheses (true), when no "
        "live one has a better score (false), or could have (never); None = raysum's, as true but for all that finish",
    )
    forced_bos_token_id: Id | None = Field(None, description="id of the token that summaries begin with")
    forced_eos_token_id: Id | None = Field(None, description="id of the token at max_length, where one gets so long")
    no_repeat_ngram_size: Most = Field(3, description="n-grams of tokens that may not repeat; 0 = off")
    encoder_no_repeat_ngram_size: Most = Field(0, description="n-grams of the source that may not be written; 0 = off")
    repetition_penalty: float = Field(
        1.0, gt=0, le=100, description="factor of the log-probability of tokens that a hypothesis has; 1 = off"
    )
    bad_words_ids: list[Word] = Field([], max_length=1000, description="token sequences that are never written")
    block_across_sentences: bool = Field(False, description="whether n-grams across sentence ends count as repeated")
    no_repeat_last: Most = Field(0, description="a token may not repeat one of the last so many, but for commas")
    n_best: int = Field(1, gt=0, description="summaries returned, best first; at most num_beams")
    grounded: Literal["numbers", "names", "all"] | None = Field(
        None,
        description="numbers, also names, or also rare words only as title and sources have them; None = all is free",
    )
    title_prompt: bool = Field(False, description="summaries begin with the title, as in the code of PHT and VHT")
    beta: Weight = Field(0.0, description="weight of attention alignment (PHT eq. 17)")
    alignment_reduction: Literal["sum", "mean"] = Field("sum", description="over paragraphs: eq. 18, or its mean")
    alignment_when: Literal["step", "final"] = Field(
        "final", description="when a hypothesis ends, as the authors' code, or at every step of the search"
    )
    extractive: Weight = Field(
        0.0, description="weight of eq. 18 with a ranker's scores (extProb); alignment_* hold here"
    )
    ranker: str | None = Field(None, description="run of that ranker, trained with the preset ranker")
    structural_coverage: Weight = Field(0.0, description="gamma of eq. 13")
    structural_when: Literal["step", "final"] = Field("step", description="at every step, or in the final ranking")
    gnmt_coverage: Weight = Field(0.0, description="weight of GNMT's coverage of source tokens (eq. 11)")
    coverage_when: Literal["step", "final"] = Field("final", description="likewise; GNMT has it there")
    keep_paragraphs: Size | None = Field(None, description="compression: read those of most predicted attention")
    source_paragraphs: Size | None = Field(None, description="paragraphs read in place of source.max_paragraphs")
    source_tokens: Count | None = Field(
        None, description="tokens read in place of source.max_tokens (HT: trained on 1,600, tested on 3,000)"
    )
    citations: Literal["attention", "lexical", "both"] = Field(
        "both",
        description="a sentence cites what it attended to, or the paragraph of nearest tf-idf, or of what it attended "
        "to the paragraphs that hold its names, numbers and other words",
    )
    citing_layers: Annotated[list[Layer], Field(min_length=1, max_length=1000)] | None = Field(
        None,
        description="decoder layers by whose attention sentences cite: 1 is the first, -1 the last; None = all of them",
    )
    batch_examples: Size = Field(16, description="examples decoded together")

    @classmethod
    def renamed(cls, values: Any) -> Any:
        """Other toolkits' names become ours; the later of two names for one setting counts."""
        if not isinstance(values, dict):
            return values
        return {DECODE_ALIASES.get(key, key): value for key, value in values.items()}

    _rename = model_validator(mode="before")(renamed)

    @model_validator(mode="after")
    def _check(self) -> "DecodeConfig":
        if self.n_best > self.num_beams:
            raise ValueError(f"n_best {self.n_best} needs num_beams of at least as many, not {self.num_beams}")
        if self.min_length > self.max_length:
            raise ValueError(f"min_length {self.min_length} is above max_length {self.max_length}")
        return self

    def reading(self, trained: SourceConfig) -> SourceConfig:
        """How much of an example is read: as in training, but for what these settings say."""
        own = {"max_paragraphs": self.source_paragraphs, "max_tokens": self.source_tokens}
        return trained.model_copy(update={name: most for name, most in own.items() if most is not None})


def _check_redundancy(value: Any) -> Any:
    is_share = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 1
    if value in (None, "trigram", "mmr") or is_share:
        return value
    raise ValueError("must be a number from 0 to 1, trigram or mmr")


class ExtractConfig(Section):
    """Settings of the systems that take sentences of the source, in place of those of beam search."""

    words: Count | None = Field(
        None,
        le=10_000,
        description="words of a summary, at most; 100 by default where sentences are not told; if every sentence is "
        "longer, one is taken, the best of at most 20 % more or else the shortest",
    )
    sentences: Count | None = Field(
        None, le=10_000, description="sentences of a summary, at most; a trained run's own are tuned on its valid split"
    )
    redundancy: Annotated[float | Literal["trigram", "mmr"] | None, BeforeValidator(_check_redundancy)] = Field(
        None,
        description="cosine with a sentence above which others repeat it (0.7 by default, 1 is off, which is a trained "
        "run's default); 'trigram': those that share three words in a row; 'mmr': the order is by scores and newness",
    )

    def changed(self, changes: Mapping[str, Any]) -> dict[str, Any]:
        """Values with ``changes``: one limit that is told takes the place of the other."""
        limits = {"words": None, "sentences": None} if {"words", "sentences"} & changes.keys() else {}
        return self.model_dump() | limits | dict(changes)
