"""Config sections for the source of an example, for beam search, and for the extraction of sentences."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from raysum.config.base import Count, Most, Section
from raysum.systems import Size, Weight
from raysum.tokenizers.special_tokens import Id

# Names of decoding settings in other toolkits, which are accepted too.
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
    raise ValueError("layers are counted from 1, or from the last as -1")


# A layer of a decoder: 1 is the first, -1 the last.
Layer = Annotated[int, Field(ge=-1000, le=1000), AfterValidator(_check_layer)]
Word = Annotated[list[Id], Field(min_length=1, max_length=100)]


def _check_stopping(value: Any) -> Any:
    if value is None or isinstance(value, bool) or value == "never":
        return value
    raise ValueError("must be true, false or never; null selects raysum's own rule")


class SourceConfig(Section):
    """How much of a prepared example a model reads. The dataset may have more."""

    max_paragraphs: Size = Field(30, description="number of best-ranked paragraphs to read")
    paragraph_tokens: Size = Field(100, description="tokens to read from each paragraph")
    max_tokens: Count | None = Field(None, description="tokens to read from the whole source; None = all")
    target_tokens: int = Field(400, gt=1, le=10**6, description="maximum tokens of a target in training")


class DecodeConfig(Section):
    """Beam search and its score terms. The names of other toolkits are accepted too."""

    SYNONYMS: ClassVar[dict[str, str]] = DECODE_ALIASES

    num_beams: int = Field(5, gt=0, le=256, description="number of hypotheses at each step")
    num_beam_groups: int = Field(1, gt=0, le=256, description="groups of hypotheses, in diverse beam search")
    diversity_penalty: Weight = Field(
        0.0, description="subtracted from a token's log-probability for each hypothesis of earlier groups that adds it"
    )
    length_normalization: Literal["gnmt", "length", "none"] = Field(
        "gnmt", description="divide the log-probability by ((5 + n) / 6)^p, by n^p, or not; p = length_penalty"
    )
    length_penalty: float = Field(0.4, ge=0, le=5, description="HT's alpha; 1 with 'length' is PHT's eq. 17")
    min_length: Most = Field(0, description="minimum number of tokens before EOS")
    max_length: Size = Field(200, description="maximum number of tokens, EOS included")
    early_stopping: Annotated[bool | Literal["never"] | None, BeforeValidator(_check_stopping)] = Field(
        None,
        description="stop as transformers does: with num_beams finished hypotheses (true), when no live hypothesis has "
        "a better score (false) or can reach one (never); None = as true, but every finished hypothesis counts",
    )
    forced_bos_token_id: Id | None = Field(None, description="id of the first token of every summary")
    forced_eos_token_id: Id | None = Field(None, description="id of the last token of a summary of max_length tokens")
    no_repeat_ngram_size: Most = Field(3, description="no n-gram of this many tokens may repeat; 0 = off")
    encoder_no_repeat_ngram_size: Most = Field(0, description="no such n-gram may be copied from the source; 0 = off")
    repetition_penalty: float = Field(
        1.0, ge=0.01, le=100, description="factor for the log-probability of tokens already in the hypothesis; 1 = off"
    )
    bad_words_ids: list[Word] = Field([], max_length=1000, description="token sequences that are never written")
    block_across_sentences: bool = Field(False, description="n-grams that cross a sentence end also count as repeated")
    no_repeat_last: Most = Field(0, description="no token except a comma may repeat one of this many last tokens")
    n_best: int = Field(1, gt=0, description="number of summaries to return, best first; at most num_beams")
    grounded: Literal["numbers", "names", "all"] | None = Field(
        None, description="copy only from title and sources: numbers; names = also names; all = also rare words"
    )
    title_prompt: bool = Field(False, description="summaries begin with the title, as in the code of PHT and VHT")
    beta: Weight = Field(0.0, description="weight of attention alignment (PHT eq. 17)")
    alignment_reduction: Literal["sum", "mean"] = Field("sum", description="over paragraphs: eq. 18, or its mean")
    alignment_when: Literal["step", "final"] = Field("final", description="at every step, or when a hypothesis ends")
    extractive: Weight = Field(0.0, description="weight of eq. 18 with a ranker's scores; alignment_* apply to it too")
    ranker: str | None = Field(None, description="run of that ranker, trained with the preset ranker")
    structural_coverage: Weight = Field(0.0, description="gamma of eq. 13")
    structural_when: Literal["step", "final"] = Field("step", description="at every step, or in the final ranking")
    gnmt_coverage: Weight = Field(0.0, description="weight of GNMT's coverage of source tokens (eq. 11)")
    coverage_when: Literal["step", "final"] = Field("final", description="at every step, or in the ranking as in GNMT")
    keep_paragraphs: Size | None = Field(None, description="read only the paragraphs with the most predicted attention")
    source_paragraphs: Size | None = Field(None, description="paragraphs to read; replaces source.max_paragraphs")
    source_tokens: Count | None = Field(None, description="tokens to read; replaces source.max_tokens (HT: 3,000)")
    citations: Literal["attention", "lexical", "both"] = Field(
        "both",
        description="a sentence cites the paragraphs that it attended to, or the nearest one by tf-idf, or (both) "
        "those it attended to that contain its names, numbers and other words",
    )
    citing_layers: Annotated[list[Layer], Field(min_length=1, max_length=1000)] | None = Field(
        None, description="decoder layers whose attention gives citations: 1 is the first, -1 the last; None = all"
    )
    batch_examples: Size = Field(16, description="examples decoded together; on a CPU two such batches at a time")

    @model_validator(mode="after")
    def _check(self) -> "DecodeConfig":
        if self.n_best > self.num_beams:
            raise ValueError(f"n_best {self.n_best} needs at least {self.n_best} beams; num_beams is {self.num_beams}")
        if self.num_beams % self.num_beam_groups:
            raise ValueError(f"num_beams {self.num_beams} is no multiple of num_beam_groups {self.num_beam_groups}")
        if self.diversity_penalty and self.num_beam_groups == 1:
            raise ValueError("diversity_penalty acts between groups: set num_beam_groups above 1")
        if self.min_length > self.max_length:
            lengths = f"min_length {self.min_length} is above max_length {self.max_length}"
            raise ValueError(f"{lengths}: lower min_length, or raise max_length")
        return self

    def reading(self, trained: SourceConfig) -> SourceConfig:
        """Return the source limits of the training, changed by these settings."""
        own = {"max_paragraphs": self.source_paragraphs, "max_tokens": self.source_tokens}
        return trained.model_copy(update={name: limit for name, limit in own.items() if limit is not None})

    def limited(self, tokens: int) -> "DecodeConfig":
        """Return the settings for summaries of at most ``tokens`` tokens."""
        lengths = {name: min(tokens, getattr(self, name)) for name in ("min_length", "max_length")}
        return self.model_copy(update=lengths)


def _check_redundancy(value: Any) -> Any:
    is_share = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 1
    if value in (None, "trigram", "mmr") or is_share:
        return value
    raise ValueError("must be a number from 0 to 1, trigram or mmr")


LIMITS = ("words", "sentences", "characters", "percent")  # of the length of a summary that extracts
WORDS = 100  # of a summary without any of these limits


class ExtractConfig(Section):
    """Decoding settings of the systems that extract sentences."""

    words: Count | None = Field(
        None,
        le=10_000,
        description="maximum words of a summary, 100 if no length is set; if every sentence is longer, the best "
        "one that is at most 20 % longer, or the shortest one",
    )
    sentences: Count | None = Field(
        None, le=10_000, description="maximum sentences of a summary; training tunes the default on the valid split"
    )
    characters: Count | None = Field(None, le=100_000, description="maximum characters of a summary, instead of words")
    percent: Annotated[float, Field(gt=0, le=100)] | None = Field(
        None, description="maximum words of a summary, in percent of the words of its sources"
    )
    readable: bool | None = Field(
        None,
        description="print sentences that can be read alone: those that continue another only after it, the first "
        "person only with its speaker, no fragments and citation marks (default true, except lead3 and oracle)",
    )
    redundancy: Annotated[float | Literal["trigram", "mmr"] | None, BeforeValidator(_check_redundancy)] = Field(
        None,
        description="skip sentences with a higher cosine to a chosen one (default 0.7; 1 = off, the default of trained "
        "runs); 'trigram' skips those that share three words in a row; 'mmr' ranks by score and novelty",
    )

    def changed(self, changes: Mapping[str, Any]) -> dict[str, Any]:
        """Return the values with ``changes``; setting one of the limits removes the others."""
        limits = dict.fromkeys(LIMITS) if changes.keys() & {*LIMITS} else {}
        return super().changed(limits | dict(changes))

    def limited(self, words: int) -> "ExtractConfig":
        """Return the settings for summaries of at most ``words`` words; limits in other units stay as they are."""
        if self.characters or self.percent:
            return self
        most = self.words or (words if self.sentences else WORDS)
        return self.model_copy(update={"words": min(words, most)})
