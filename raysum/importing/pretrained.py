"""`raysum import huggingface` and `raysum export huggingface`: published folders to runs, and runs to such folders."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from raysum.config.loading import apply_override, load_config, merge, section_of
from raysum.config.sections import Config
from raysum.data.recipe import Recipe
from raysum.errors import UserError
from raysum.importing.huggingface.generation import read_decoding, save_decoding
from raysum.importing.huggingface.loading import load, with_new
from raysum.importing.huggingface.saving import save, save_tokenizer
from raysum.importing.imported import Imported, marks_around
from raysum.models.specs.family import FamilySpec
from raysum.runs.folder import Run
from raysum.runs.restore import restore
from raysum.runtime.progress import say
from raysum.runtime.rendering import Shown
from raysum.runtime.storage import new_folder
from raysum.systems import Spec
from raysum.tokenizers.tokenizer import Tokenizer

_LEAST = 8  # tokens of a paragraph, in a recipe
_SETTINGS = "bart-base"  # the preset that tells how imported weights are read, trained and decoded
_SETTLED = (
    "system", "vocabulary", "marks", "width", "ffn", "heads", "norm", "sinusoid", "tied_output", "positions",
    "backbone",
)  # fmt: skip


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
