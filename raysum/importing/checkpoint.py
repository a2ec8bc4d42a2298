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
from raysum.importing.mapping import Published
from raysum.models.specs.family import FamilySpec
from raysum.runs.folder import Run, RunResult
from raysum.runs.restore import fill, listed, restore
from raysum.runtime.progress import say
from raysum.runtime.rendering import Shown
from raysum.runtime.storage import new_folder
from raysum.systems import Spec, count_parameters, parameters
from raysum.tokenizers.special_tokens import marks_of
from raysum.tokenizers.tokenizer import Tokenizer

KINDS = ("hiersumm", "wiki_sum", "huggingface")
_PRESETS = {"F": "ht", "P": "pht", "V": "vht"}  # by the letter of the decoder
_LEAST = 8  # tokens of a paragraph, in a recipe
_SETTINGS = "bart-base"  # the preset that tells how imported weights are read, trained and decoded
_SETTLED = (
    "system", "vocabulary", "marks", "width", "ffn", "heads", "norm", "sinusoid", "tied_output", "positions",
    "backbone",
)  # fmt: skip


@dataclass(frozen=True)
class Imported(RunResult):
    """A run that was imported."""

    ignored: Mapping[str, Any] = field(default_factory=dict)  # published decoding settings that raysum does not apply

    def to_dict(self) -> dict[str, Any]:
        """Besides what every run tells: its layers, parameters, and those that no weights came for."""
        spec: Any = self.run.config.model
        told = {"encoder": spec.encoder, "decoder": spec.decoder, "parameters": count_parameters(spec)}
        return {**super().to_dict(), **told, "new": self.run.best().state.get("untrained", []),
                "ignored": {**self.ignored}}  # fmt: skip

    def render(self) -> str:
        told, spec, source = self.to_dict(), self.run.config.model, self.run.config.source
        around = marks_around(spec)
        read = f"{source.max_paragraphs} paragraphs of {source.paragraph_tokens} tokens"
        read += f" ({around} of them marks)" if around else ""
        read += f", {source.max_tokens:,} in all" if source.max_tokens else ""
        places = f"; it has places for {spec.places:,} tokens" if spec.places else ""
        places += " of a paragraph" if places and not spec.joins_paragraphs else ""
        kept = f"--max-paragraphs {source.max_paragraphs} --paragraph-tokens {source.paragraph_tokens - around}"
        lines = [f"run: {told['run']}, {told['encoder']}/{told['decoder']}, {told['parameters']:,} parameters"]
        if told["new"]:
            trained = [name for name in parameters(spec) if name not in told["new"]]
            lines.append(f"new, without published weights: {listed(told['new'], trained)}")
        lines.append(f"reads {read}{places}")
        if told["ignored"]:
            values = ", ".join(f"{name}={json.dumps(value)}" for name, value in told["ignored"].items())
            lines.append(f"not applied, so summaries may differ from transformers': {values} (generation settings)")
        lines.append(f"data for it: raysum prepare ... --vocab {self.run.vocabulary} {kept}")
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
    """Write the run ``out`` with the weights of ``file``, a checkpoint of the code ``kind``; of ``huggingface`` the
    folder of a pretrained model: see ``raysum.importing.checkpoint.import_pretrained``.

    ``vocab`` is the SentencePiece model that it was trained with. ``heads`` and ``dropout`` are for ``wiki_sum``, whose
    files do not tell them (by default the code's own). The recipe is that of the published data, the rest of the config
    that of the paper's preset. Raises UserError for a mistake in any of these; nothing is then written.
    """
    if kind not in KINDS:
        raise UserError(f"{kind!r} is no kind of checkpoint that is read; the kinds are {', '.join(KINDS)}")
    if kind == "huggingface":
        if given := [name for name, value in (("vocab", vocab), ("heads", heads), ("dropout", dropout)) if value]:
            raise UserError(f"the folder of a pretrained model tells that itself; leave --{given[0]} out")
        return import_pretrained(file, out, overrides, language)
    if language or [*overrides]:
        raise UserError(f"a checkpoint of {kind} has no language, and its config follows from it; leave these out")
    if vocab is None:
        raise UserError(f"a checkpoint of {kind} needs --vocab FILE, the SentencePiece model that it was trained with")
    vocabulary = Tokenizer.load(vocab)
    with new_folder(Path(out).expanduser().absolute()) as folder:
        found = _load(kind, Path(file).expanduser(), heads, dropout)
        if found.spec.vocabulary != len(vocabulary):
            raise UserError(
                f"{vocab} has {len(vocabulary)} pieces, the model of {file} {found.spec.vocabulary}; "
                "give the vocabulary that it was trained with"
            )
        model = fill(systems.build(found.spec), found.weights, file)
        weights = {name: parameter.detach() for name, parameter in model.named_parameters()}
        preset = load_config("ft" if found.spec.positions == "flat" else _PRESETS[found.spec.decoder[0]])
        source = preset.source.model_copy(update=found.source)
        config = preset.model_copy(update={"model": found.spec, "source": source})
        # Published data: up to 40 paragraphs of up to 100 tokens; its ranker, a trained one, was never published.
        how = vocabulary.suggested_normalization()
        recipe = Recipe(normalize=how, max_paragraphs=40, paragraph_tokens=100, vocabulary_sha256=vocabulary.sha256)
        run = Run(folder)
        run.create(config, recipe.model_dump(), Path(vocab))
        run.add_weights(found.step, weights, {"imported": kind, "file": Path(file).name})
    say("The optimizer's state is not imported: train.start=RUN begins a new training with these weights")
    return Imported(Run(out))


def _load(kind: str, file: Path, heads: int | None, dropout: float | None) -> Published:
    if kind == "wiki_sum":
        return wiki_sum.load(file, heads, dropout)
    if heads is not None or dropout is not None:
        raise UserError("a hiersumm checkpoint tells its heads and dropout itself; leave --heads and --dropout out")
    return hiersumm.load(file)


def import_pretrained(folder: str, out: str, overrides: Iterable[str] = (), language: str | None = None) -> Imported:
    """Write the run ``out`` with the model, tokenizer and decoding settings of a published ``folder``.

    ``overrides`` are dotted ``key=value`` pairs over the config that comes with it; ``model.encoder`` and
    ``model.decoder`` choose the mix. ``language`` is a tokenizer's code of the texts' language, where it knows several.
    Raises UserError for a mistake in any of these; nothing is then written.
    """
    place, overrides = Path(folder).expanduser(), [*overrides]
    given: dict[str, Any] = {}
    for override in overrides:
        apply_override(given, {}, override)
    asked = given.get("model")
    mix = {name: mix for name, mix in asked.items() if isinstance(mix, str)} if isinstance(asked, dict) else {}
    with new_folder(Path(out).expanduser().absolute()) as run_folder:
        found = load(place, mix.get("encoder"), mix.get("decoder"))
        tokenizer = Tokenizer.load(place, language)
        base = load_config(_SETTINGS).model_dump(mode="json", exclude={"model"})
        fitted = _fitted(found.spec, tokenizer)
        if len(tokenizer) != found.spec.vocabulary:
            ids = f"{len(tokenizer)} ids by its config.json and tokenizer, and rows for {found.spec.vocabulary}"
            raise UserError(f"{place} has {ids} in its weights; copy all its files again")
        told = {"model": fitted.model_dump(mode="json"), "source": _reading(found.spec, base["source"])}
        decoding, ignored = read_decoding(place)
        config = section_of(Config, merge(base, told | {"decode": decoding}), overrides)
        if settled := [name for name in _SETTLED if getattr(config.model, name, None) != getattr(fitted, name)]:
            raise UserError(f"model.{settled[0]} is told by the weights of {place}; leave it out")
        _check_source(config)
        recipe = Recipe(
            normalize=tokenizer.suggested_normalization(),
            max_paragraphs=config.source.max_paragraphs,
            paragraph_tokens=max(config.source.paragraph_tokens - marks_around(config.model), _LEAST),
            parted_by="blank-lines",
            long_paragraphs="split",
            vocabulary_sha256=tokenizer.sha256,
        )
        run = Run(run_folder)
        run.create(config, recipe.model_dump(), None)
        run.vocabulary.write_bytes(tokenizer.model)
        weights = with_new(FamilySpec.model_validate(config.model), found.weights)
        untrained = [name for name in weights if name not in found.weights]
        run.add_weights(0, weights, {"imported": "huggingface", "file": place.name, "untrained": untrained})
    return Imported(Run(out), ignored)


def _check_source(config: Config) -> None:
    """Raises UserError where more is to be read than the model has positions for."""
    places, name = config.model.places, "max_tokens" if config.model.joins_paragraphs else "paragraph_tokens"
    limit = getattr(config.source, name)
    if places is not None and (limit is None or limit > places):
        told = "null" if limit is None else limit
        raise UserError(
            f"source.{name}={told} is more than the {places} tokens that the model has places for; "
            f"source.{name}={places} is the most"
        )


def _fitted(spec: FamilySpec, tokenizer: Tokenizer) -> Spec:
    """With the tokenizer's ids; PRIMERA's marks between documents are seen by all tokens."""
    fitted, made, marks = spec.fitted(tokenizer), spec.backbone, tokenizer.marks
    if made is None or not made.window:
        return fitted
    documents = marks.joined_end[: len(marks.joined_end) - len(marks.suffix)]
    return fitted.model_copy(update={"backbone": made.model_copy(update={"global_ids": documents})})


def _reading(spec: FamilySpec, usual: dict[str, Any]) -> dict[str, int]:
    """How much is read and learned to write, where the tables of positions end before what is ``usual``."""
    made = spec.backbone
    if made is None or spec.places is None:
        return {}
    most = {"paragraph_tokens": spec.places, "target_tokens": made.target_places - made.place_offset}
    most |= {"max_tokens": spec.places} if spec.joins_paragraphs else {}
    return {name: min(usual[name] or places, places) for name, places in most.items()}


def marks_around(spec: Spec) -> int:
    """The tokens around each paragraph that ``source.paragraph_tokens`` counts, too."""
    return 0 if spec.joins_paragraphs else marks_of(spec).around


def export_checkpoint(kind: str, run: str, out: str, checkpoint: str = "best") -> "Exported":
    """Write the folder ``out`` with the model of ``run`` as another library loads it; ``kind`` is ``huggingface``."""
    if kind != "huggingface":
        raise UserError(f"{kind!r} is no kind of checkpoint that is written; the one that is is huggingface")
    return export_pretrained(run, out, checkpoint)


@dataclass(frozen=True)
class Exported(Shown):
    """A folder that was written."""

    folder: str

    def to_dict(self) -> dict[str, Any]:
        return {"folder": self.folder}

    def render(self) -> str:
        return f"{self.folder}: AutoModelForSeq2SeqLM.from_pretrained({self.folder!r}) loads it"


def export_pretrained(run: str, out: str, checkpoint: str = "best") -> Exported:
    """Write the folder ``out`` with the model of ``run`` as transformers loads it: weights, config and tokenizer.

    Raises UserError where its mix is none that transformers has.
    """
    import torch

    opened = Run.resolve(run)
    spec: Any = opened.config.model
    with new_folder(Path(out).expanduser().absolute()) as folder:
        model = restore(opened, checkpoint, torch.device("cpu"))
        weights = {name: value.detach() for name, value in model.named_parameters()}
        save(folder, spec, weights)
        save_tokenizer(folder, Tokenizer.load(opened.vocabulary))
        save_decoding(folder, spec, opened.decode)
    if "L" in spec.encoder:
        say("transformers reads paragraphs joined, and this model was made to read each alone: its summaries differ")
    return Exported(str(out))
