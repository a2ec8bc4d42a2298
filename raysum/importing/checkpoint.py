"""Import published checkpoints as runs (`raysum import`), and export runs (`raysum export`)."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from raysum import systems
from raysum.config.loading import apply_override, load_config, merge, section_of
from raysum.config.sections import Config
from raysum.data.recipe import Recipe
from raysum.errors import UserError
from raysum.importing import hiersumm, wiki_sum
from raysum.importing.huggingface.generation import read_decoding, save_decoding
from raysum.importing.huggingface.loading import load, with_new
from raysum.importing.huggingface.saving import save, save_tokenizer
from raysum.models.family.spec import FamilySpec
from raysum.runs.folder import Run, RunResult
from raysum.runs.restore import fill, listed_names, restore
from raysum.runtime.progress import say
from raysum.runtime.rendering import Shown
from raysum.runtime.storage import new_folder
from raysum.systems import Spec, count_parameters, parameters
from raysum.tokenizers.loading import load_tokenizer
from raysum.tokenizers.special_tokens import marks_of
from raysum.tokenizers.tokenizer import Tokenizer

KINDS = ("hiersumm", "wiki_sum", "huggingface")
_PRESETS = {"F": "ht", "P": "pht", "V": "vht"}  # by the decoder's letter
_MIN_TOKENS = 8  # of a paragraph, in a recipe
_SETTINGS = "bart-base"  # the preset with the other settings of imported models
_FIXED = (
    "system", "vocabulary", "marks", "width", "ffn", "heads", "norm", "sinusoid", "tied_output", "positions",
    "backbone",
)  # fmt: skip


@dataclass(frozen=True)
class Imported(RunResult):
    """An imported run."""

    ignored: Mapping[str, Any] = field(default_factory=dict)  # published decoding settings that raysum does not apply

    def to_dict(self) -> dict[str, Any]:
        """Return a run's values with its layers, parameters, new parameters and ignored settings."""
        spec: Any = self.run.config.model
        return {
            **super().to_dict(),
            "encoder": spec.encoder,
            "decoder": spec.decoder,
            "parameters": count_parameters(spec),
            "new": self.run.best().state.get("untrained", []),
            "ignored": {**self.ignored},
        }

    def render(self) -> str:
        values, spec, source = self.to_dict(), self.run.config.model, self.run.config.source
        marks = marks_around(spec)
        limits = f"{source.max_paragraphs} paragraphs of {source.paragraph_tokens} tokens"
        limits += f" ({marks} of them special tokens)" if marks else ""
        limits += f", {source.max_tokens:,} in all" if source.max_tokens else ""
        if spec.max_positions:
            sequence = "tokens" if spec.joins_paragraphs else "tokens of a paragraph"
            limits += f"; it has positions for {spec.max_positions:,} {sequence}"
        options = f"--max-paragraphs {source.max_paragraphs} --paragraph-tokens {source.paragraph_tokens - marks}"
        lines = [f"run: {values['run']}, {values['encoder']}/{values['decoder']}, {values['parameters']:,} parameters"]
        if values["new"]:
            trained = [name for name in parameters(spec) if name not in values["new"]]
            lines.append(f"new, without published weights: {listed_names(values['new'], trained)}")
        lines.append(f"reads {limits}")
        if values["ignored"]:
            ignored = ", ".join(f"{name}={json.dumps(value)}" for name, value in values["ignored"].items())
            lines.append(f"not applied, so summaries may differ from transformers': {ignored} (generation settings)")
        lines.append(f"prepare its data: raysum prepare ... --vocab {self.run.vocabulary} {options}")
        return "\n".join(lines)


def import_checkpoint(
    kind: str,
    file: str,
    out: str,
    vocab: str | None = None,
    heads: int | None = None,
    dropout: float | None = None,
    language: str | None = None,
    overrides: Iterable[str] = (),
) -> Imported:
    """Write the run ``out`` with the weights of ``file``, a checkpoint of the code ``kind``, and return it.

    For ``huggingface``, ``file`` is the folder of a pretrained model: see :func:`import_pretrained`. ``vocab`` is
    the SentencePiece model with which the checkpoint was trained. ``heads`` and ``dropout`` are for ``wiki_sum``,
    whose files do not contain them (by default its code's values). The recipe is that of the published data, the
    rest of the config that of the paper's preset. If one of these is wrong, raises UserError and writes nothing.
    """
    if kind not in KINDS:
        raise UserError(f"unknown kind of checkpoint {kind!r}: choose one of {', '.join(KINDS)}")
    if kind == "huggingface":
        if options := [name for name, value in (("vocab", vocab), ("heads", heads), ("dropout", dropout)) if value]:
            raise UserError(f"the folder of a pretrained model defines its {options[0]}: leave --{options[0]} out")
        return import_pretrained(file, out, overrides, language)
    if language or [*overrides]:
        raise UserError(f"a checkpoint of {kind} defines its config and has no language: leave these options out")
    if vocab is None:
        raise UserError(f"a checkpoint of {kind} needs --vocab FILE, the SentencePiece model of its training")
    vocabulary = load_tokenizer(vocab)
    with new_folder(Path(out).expanduser().absolute()) as folder:
        path = Path(file).expanduser()
        if kind == "wiki_sum":
            published = wiki_sum.load(path, heads, dropout)
        elif heads is not None or dropout is not None:
            raise UserError("a hiersumm checkpoint contains its heads and dropout: leave --heads and --dropout out")
        else:
            published = hiersumm.load(path)
        spec = published.spec
        if spec.vocabulary != len(vocabulary):
            raise UserError(
                f"{vocab} has {len(vocabulary)} pieces, but the model of {file} {spec.vocabulary}: "
                "give the vocabulary of its training"
            )
        model = fill(systems.build(spec), published.weights, file)
        weights = {name: parameter.detach() for name, parameter in model.named_parameters()}
        preset = load_config("ft" if spec.positions == "flat" else _PRESETS[spec.decoder[0]])
        source = preset.source.model_copy(update=published.source)
        config = preset.model_copy(update={"model": spec, "source": source})
        recipe = Recipe(
            normalize=vocabulary.suggested_normalization(),
            max_paragraphs=40,  # of the published data, like paragraph_tokens; its trained ranker was never published
            paragraph_tokens=100,
            vocabulary_sha256=vocabulary.sha256,
        )
        run = Run(folder)
        run.create(config, recipe.model_dump(), Path(vocab))
        run.add_weights(published.step, weights, {"imported": kind, "file": Path(file).name})
    say("The optimizer's state is not imported: train.init_from=RUN starts a new training from these weights")
    return Imported(Run(out))


def import_pretrained(folder: str, out: str, overrides: Iterable[str] = (), language: str | None = None) -> Imported:
    """Write the run ``out`` with model, tokenizer and decoding settings of a published ``folder``; return it.

    ``overrides`` are dotted ``key=value`` pairs over its config; ``model.encoder`` and ``model.decoder`` choose the
    mix. ``language`` is the tokenizer's code of the texts' language, if it has several. If one of these is wrong,
    raises UserError and writes nothing.
    """
    path, overrides = Path(folder).expanduser(), [*overrides]
    sections: dict[str, Any] = {}
    for override in overrides:
        apply_override(sections, {}, override)
    options = sections.get("model")
    mix = {name: mix for name, mix in options.items() if isinstance(mix, str)} if isinstance(options, dict) else {}
    with new_folder(Path(out).expanduser().absolute()) as run_folder:
        published = load(path, mix.get("encoder"), mix.get("decoder"))
        tokenizer = load_tokenizer(path, language)
        base = load_config(_SETTINGS).model_dump(mode="json", exclude={"model"})
        spec = _with_tokenizer(published.spec, tokenizer)
        if len(tokenizer) != published.spec.vocabulary:
            ids = f"{len(tokenizer)} ids by its config.json and tokenizer, but rows for {published.spec.vocabulary}"
            raise UserError(f"{path} has {ids} in its weights: copy all its files again")
        decoding, ignored = read_decoding(path)
        values = {
            "model": spec.model_dump(mode="json"),
            "source": _source_limits(published.spec, base["source"]),
            "decode": decoding,
        }
        config = section_of(Config, merge(base, values), overrides)
        if fixed := [name for name in _FIXED if getattr(config.model, name, None) != getattr(spec, name)]:
            raise UserError(f"model.{fixed[0]} comes from the weights of {path}: leave it out")
        _check_source(config)
        recipe = Recipe(
            normalize=tokenizer.suggested_normalization(),
            max_paragraphs=config.source.max_paragraphs,
            paragraph_tokens=max(config.source.paragraph_tokens - marks_around(config.model), _MIN_TOKENS),
            paragraph_separator="blank-lines",
            long_paragraphs="split",
            vocabulary_sha256=tokenizer.sha256,
        )
        run = Run(run_folder)
        run.create(config, recipe.model_dump(), None)
        run.vocabulary.write_bytes(tokenizer.model)
        weights = with_new(FamilySpec.model_validate(config.model), published.weights)
        untrained = [name for name in weights if name not in published.weights]
        run.add_weights(0, weights, {"imported": "huggingface", "file": path.name, "untrained": untrained})
    return Imported(Run(out), ignored)


def _check_source(config: Config) -> None:
    """Raise UserError if the source has more tokens than the model has positions."""
    most, name = config.model.max_positions, "max_tokens" if config.model.joins_paragraphs else "paragraph_tokens"
    limit = getattr(config.source, name)
    if most is not None and (limit is None or limit > most):
        problem = f"source.{name}={json.dumps(limit)} is more than the model's {most} positions"
        raise UserError(f"{problem}: set source.{name}={most} or less")


def _with_tokenizer(spec: FamilySpec, tokenizer: Tokenizer) -> Spec:
    """Return ``spec`` with the tokenizer's ids. PRIMERA's marks between documents are global tokens."""
    changed, backbone, marks = spec.with_tokenizer(tokenizer), spec.backbone, tokenizer.marks
    if backbone is None or not backbone.window:
        return changed
    documents = marks.joined_end[: len(marks.joined_end) - len(marks.suffix)]
    return changed.model_copy(update={"backbone": backbone.model_copy(update={"global_ids": documents})})


def _source_limits(spec: FamilySpec, defaults: dict[str, Any]) -> dict[str, int]:
    """Return the source settings that the position tables limit, at most ``defaults``."""
    backbone = spec.backbone
    if backbone is None or spec.max_positions is None or backbone.max_target is None:
        return {}
    limits = {"paragraph_tokens": spec.max_positions, "target_tokens": backbone.max_target}
    limits |= {"max_tokens": spec.max_positions} if spec.joins_paragraphs else {}
    return {name: min(defaults[name] or limit, limit) for name, limit in limits.items()}


def marks_around(spec: Spec) -> int:
    """Return the number of special tokens around each paragraph, which ``source.paragraph_tokens`` includes."""
    return 0 if spec.joins_paragraphs else marks_of(spec).around


@dataclass(frozen=True)
class Exported(Shown):
    """An exported folder."""

    folder: str

    def render(self) -> str:
        return f"{self.folder}: AutoModelForSeq2SeqLM.from_pretrained({self.folder!r}) loads it"


def export_checkpoint(kind: str, run: str, out: str, checkpoint: str = "best") -> Exported:
    """Write the folder ``out`` with weights, config and tokenizer of ``run``; ``kind`` is ``huggingface``.

    Raises UserError for another kind, or if transformers has no model with its mix.
    """
    if kind != "huggingface":
        raise UserError(f"cannot export to {kind!r}: the only kind is huggingface")
    import torch

    source = Run.resolve(run)
    spec: Any = source.config.model
    with new_folder(Path(out).expanduser().absolute()) as folder:
        model = restore(source, checkpoint, torch.device("cpu"))
        weights = {name: value.detach() for name, value in model.named_parameters()}
        save(folder, spec, weights)
        save_tokenizer(folder, load_tokenizer(source.vocabulary))
        save_decoding(folder, spec, source.decode)
    if "L" in spec.encoder:
        say("transformers joins paragraphs, but this model encodes each separately: its summaries will differ")
    return Exported(str(out))
