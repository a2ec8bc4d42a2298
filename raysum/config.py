"""Configuration: presets and YAML files, `key=value` overrides, strict sections, errors that name the nearest key."""

from collections.abc import Iterator
from difflib import get_close_matches
from importlib import resources
from pathlib import Path
from typing import Any, Literal, get_args

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from raysum.errors import UserError
from raysum.models.specs import SYSTEMS, ModelSpec, Seq2SeqSpec


class Section(BaseModel):
    """Base of all sections: unknown keys are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class SourceConfig(Section):
    """How much of a prepared example a model reads: the dataset may hold more."""

    max_paragraphs: int = Field(30, gt=0, description="best-ranked paragraphs read")
    paragraph_tokens: int = Field(100, gt=0, description="tokens read of each paragraph")
    max_tokens: int | None = Field(None, gt=0, description="tokens read of the whole source, None = all")
    target_tokens: int = Field(400, gt=1, description="tokens of a target in training; longer ones are cut")


class TrainConfig(Section):
    steps: int = Field(1000, gt=0, description="optimizer steps")
    batch_tokens: int = Field(8000, gt=0, description="source + target tokens of a micro-batch, at most")
    micro_batches: int = Field(8, gt=0, description="micro-batches of a step (A); the number of workers divides it")
    label_smoothing: float = Field(0.1, ge=0, lt=1)
    seed: int = Field(0, ge=0)
    workers: int = Field(1, ge=0, description="Ray Train workers; 0 trains in this process, without a cluster")
    threads: int | None = Field(None, gt=0, description="CPU threads a worker; None = cores / workers")
    address: str | None = Field(None, description="address of a running Ray cluster to join; None = a local one")
    validate_every: int = Field(500, gt=0, description="steps between validations")
    validate_examples: int | None = Field(1000, gt=0, description="examples of the valid split used; None = all")
    label_examples: int | None = Field(20000, gt=0, description="alignment: train examples labelled; None = all")
    save_every: int = Field(500, gt=0, description="steps between checkpoints")
    keep: int = Field(3, gt=0, description="newest checkpoints kept, besides the best")
    log_every: int = Field(10, gt=0, description="steps between lines of metrics.jsonl")
    window: int = Field(64, gt=0, description="row groups whose rows are bucketed by length together")

    @model_validator(mode="after")
    def _check(self) -> "TrainConfig":
        if self.workers and self.micro_batches % self.workers:
            allowed = ", ".join(str(w) for w in range(1, self.micro_batches + 1) if self.micro_batches % w == 0)
            raise ValueError(
                f"{self.workers} workers do not divide micro_batches {self.micro_batches}; use one of {allowed} workers"
            )
        return self


class OptimConfig(Section):
    """Adam; ``noam`` is the schedule of Vaswani et al. 2017, eq. 3: ``lr * width^-0.5 * min(t^-0.5, t * w^-1.5)``."""

    lr: float = Field(2.0, gt=0, description="peak factor ('noam') or the rate itself ('constant', 'linear')")
    schedule: Literal["noam", "constant", "linear"] = Field(
        "noam", description="'constant' and 'linear' warm up linearly; 'linear' then falls to 0 at train.steps"
    )
    warmup_steps: int = Field(8000, ge=0)
    betas: tuple[float, float] = (0.9, 0.998)
    eps: float = Field(1e-9, gt=0)
    weight_decay: float = Field(0.0, ge=0)


_OTHER_NAMES = {
    "beam_size": "num_beams",
    "block_ngram_repeat": "no_repeat_ngram_size",
    "num_return_sequences": "n_best",
}


class DecodeConfig(Section):
    """Beam search and its score terms. Names known from other toolkits are accepted too."""

    num_beams: int = Field(5, gt=0)
    length_normalization: Literal["gnmt", "length", "none"] = Field(
        "gnmt", description="divide log-probability by ((5 + n) / 6)^p, by n^p, or by nothing; p = length_penalty"
    )
    length_penalty: float = Field(0.4, ge=0, description="HT's alpha; 1 with 'length' is PHT's eq. 17")
    min_length: int = Field(0, ge=0, description="tokens before EOS is allowed")
    max_length: int = Field(200, gt=0, description="tokens, EOS included")
    no_repeat_ngram_size: int = Field(3, ge=0, description="n-grams of tokens that may not repeat; 0 = off")
    block_across_sentences: bool = Field(False, description="whether n-grams across sentence ends count as repeated")
    no_repeat_last: int = Field(0, ge=0, description="a token may not repeat one of the last so many, but for commas")
    n_best: int = Field(1, gt=0, description="summaries returned, best first; at most num_beams")
    beta: float = Field(0.0, ge=0, description="weight of attention alignment (PHT eq. 17)")
    alignment_reduction: Literal["sum", "mean"] = Field("sum", description="over paragraphs: eq. 18, or its mean")
    alignment_when: Literal["step", "final"] = Field("step", description="at every step, or when ranking finished ones")
    extractive: float = Field(
        0.0, ge=0, description="weight of eq. 18 with a ranker's scores (extProb); alignment_* hold here"
    )
    ranker: str | None = Field(None, description="run of that ranker, trained with the preset ranker")
    structural_coverage: float = Field(0.0, ge=0, description="gamma of eq. 13")
    gnmt_coverage: float = Field(0.0, ge=0, description="weight of GNMT's coverage of source tokens (eq. 11)")
    coverage_when: Literal["step", "final"] = Field("final", description="that one, as alignment_when; GNMT: final")
    keep_paragraphs: int | None = Field(None, gt=0, description="compression: read those of most predicted attention")
    citations: Literal["attention", "lexical"] = Field(
        "attention", description="a sentence cites what it attended to, or the paragraph of nearest tf-idf"
    )
    batch_examples: int = Field(16, gt=0, description="examples decoded together")

    @model_validator(mode="before")
    @classmethod
    def _rename(cls, values: Any) -> Any:
        """Other toolkits' names become ours; the later of two names for one setting counts."""
        if not isinstance(values, dict):
            return values
        return {_OTHER_NAMES.get(key, key): value for key, value in values.items()}

    @model_validator(mode="after")
    def _check(self) -> "DecodeConfig":
        if self.n_best > self.num_beams:
            raise ValueError(f"n_best {self.n_best} needs num_beams of at least as many, not {self.num_beams}")
        if self.min_length > self.max_length:
            raise ValueError(f"min_length {self.min_length} is above max_length {self.max_length}")
        return self


class Config(Section):
    """Everything of one training, decoding or search; written to the run folder before the first step."""

    model: ModelSpec = Field(default_factory=Seq2SeqSpec)
    source: SourceConfig = Field(default_factory=SourceConfig)
    train: TrainConfig = Field(default_factory=TrainConfig)
    optim: OptimConfig = Field(default_factory=OptimConfig)
    deepspeed: dict[str, Any] = Field(default_factory=dict, description="DeepSpeed's own keys; raysum sets batch sizes")
    decode: DecodeConfig = Field(default_factory=DecodeConfig)
    data: str | None = Field(None, description="dataset folder")
    out: str | None = Field(None, description="run folder to write")
    run: str | None = Field(None, description="run folder to read (alignment, search)")


def presets() -> list[str]:
    """Names of the presets in the package, sorted."""
    folder = resources.files("raysum") / "presets"
    return sorted(item.name.removesuffix(".yaml") for item in folder.iterdir() if item.name.endswith(".yaml"))


def load_config(name: str | None, overrides: list[str] | None = None) -> Config:
    """The config of a preset or YAML file, changed by dotted ``key=value`` overrides.

    Raises UserError that lists every problem with its file, line and the nearest valid key.
    """
    values, places = read_values(name) if name else ({}, {})
    for override in overrides or []:
        apply_override(values, places, override)
    return validate(values, places)


def validate(values: dict[str, Any], places: dict[str, str] | None = None, root: type[Section] = Config) -> Any:
    """``values`` as a ``root`` section; ``places`` says where each dotted key was written, for the messages."""
    try:
        return root.model_validate(values)
    except ValidationError as error:
        problems = [_explain(problem, places or {}, root) for problem in error.errors()]
        raise UserError("\n".join(problems)) from None


def dump(config: Section) -> str:
    """The fully resolved config as YAML."""
    return yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False)


def keys(section: type[BaseModel] = Config, prefix: str = "") -> Iterator[str]:
    """Every valid dotted key."""
    for name, field in section.model_fields.items():
        parts = _sections(field.annotation)
        yield prefix + name
        for part in parts:
            yield from keys(part, f"{prefix}{name}.")


def _sections(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [part for argument in get_args(annotation) for part in _sections(argument)]


def read_values(name: str) -> tuple[dict[str, Any], dict[str, str]]:
    """Values of a preset or file, with what it extends below it, and the place of each dotted key."""
    if name in presets():
        label, text = f"preset {name}", (resources.files("raysum") / "presets" / f"{name}.yaml").read_text()
    elif Path(name).is_file():
        label, text = name, _decode(Path(name))
    else:
        near = get_close_matches(name, presets(), 1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise UserError(f"no preset or file {name!r}; {hint}the presets are {', '.join(presets())}")
    values, places = parse_yaml(text, label)
    base = values.pop("extends", None)
    if base is None:
        return values, places
    base_values, base_places = read_values(base)
    if "system" in (values.get("model") or {}):
        del base_values["model"]  # another system has other keys
    return merge(base_values, values), base_places | places


def _decode(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8 text (byte {error.start}); save it as UTF-8") from None
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from None


def parse_yaml(text: str, label: str) -> tuple[dict[str, Any], dict[str, str]]:
    """A YAML mapping and, for each dotted key, ``"label, line n"``. Raises UserError where the YAML is broken."""
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        values = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise UserError(f"{label} is not valid YAML: {' '.join(str(error).split())}") from None
    if values is None:
        return {}, {}
    if not isinstance(values, dict):
        raise UserError(f"{label} must be a mapping of sections to values")
    return values, dict(_places(node, "", label))


def _places(node: yaml.Node | None, prefix: str, label: str) -> Iterator[tuple[str, str]]:
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            dotted = f"{prefix}{key.value}"
            yield dotted, f"{label}, line {key.start_mark.line + 1}"
            yield from _places(value, f"{dotted}.", label)


def merge(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """``base`` with ``changes`` over it, mapping by mapping."""
    merged = dict(base)
    for key, value in changes.items():
        both = isinstance(value, dict) and isinstance(merged.get(key), dict)
        merged[key] = merge(merged[key], value) if both else value
    return merged


def apply_override(values: dict[str, Any], places: dict[str, str], override: str) -> None:
    """Change ``values`` by one ``key=value`` of the command line. Raises UserError where it is no such pair."""
    dotted, equals, text = override.partition("=")
    if not equals or not dotted:
        raise UserError(f"{override!r} is not key=value; write for example train.steps=2000")
    try:
        value = yaml.safe_load(text) if text else ""
    except yaml.YAMLError:
        value = text
    assign(values, places, dotted, value, "on the command line")


def assign(values: dict[str, Any], places: dict[str, str], dotted: str, value: Any, place: str) -> None:
    """Put ``value`` at a dotted key of ``values``; ``place`` says in messages where it was written."""
    target = values
    *parents, last = dotted.split(".")
    for parent in parents:
        target = target.setdefault(parent, {})
        if not isinstance(target, dict):
            raise UserError(f"{dotted!r} {place}: {parent!r} is a value, not a section")
    target[last] = value
    places[dotted] = place


def _explain(problem: Any, places: dict[str, str], root: type[Section]) -> str:
    """One line for one problem that pydantic found."""
    dotted = ".".join(str(part) for part in problem["loc"] if part not in SYSTEMS)
    place = next((places[key] for key in _ancestors(dotted) if key in places), "")
    where = f" ({place})" if place else ""
    if problem["type"] == "extra_forbidden":
        spec = next((SYSTEMS[part] for part in problem["loc"] if part in SYSTEMS), Seq2SeqSpec)
        other = {f"model.{name}" for one in SYSTEMS.values() for name in set(one.model_fields) - set(spec.model_fields)}
        near = _nearest(dotted, [key for key in keys(root) if key not in other])
        return f"unknown key {dotted!r}{where}" + (f"; did you mean {near!r}?" if near else "")
    message = problem["msg"].removeprefix("Value error, ")
    given = "" if isinstance(problem["input"], dict | BaseModel) else f" (got {problem['input']!r})"
    subject = f"{dotted}: " if dotted else ""
    return f"{subject}{message}{given}{where}"


def _ancestors(dotted: str) -> Iterator[str]:
    while dotted:
        yield dotted
        dotted = dotted.rpartition(".")[0]


def _nearest(dotted: str, valid: list[str]) -> str | None:
    """The valid key most like ``dotted``: the same last word in another section first, then close spellings."""
    last = dotted.rpartition(".")[2]
    same = [key for key in valid if key.rpartition(".")[2] == last]
    if same:
        return same[0]
    close = get_close_matches(dotted, valid, 1, cutoff=0.75)
    if close:
        return close[0]
    words = get_close_matches(last, [key.rpartition(".")[2] for key in valid], 1, cutoff=0.6)
    return next((key for key in valid if key.rpartition(".")[2] == words[0]), None) if words else None
