"""`raysum import`: a checkpoint of a published code as a run that `summarize`, `evaluate` and `serve` take."""

from collections.abc import Iterable
from pathlib import Path

from raysum import systems
from raysum.config.loading import load_config
from raysum.data.recipe import Recipe
from raysum.errors import UserError
from raysum.importing import hiersumm, wiki_sum
from raysum.importing.imported import Imported
from raysum.importing.mapping import Published
from raysum.importing.pretrained import Exported, export_pretrained, import_pretrained
from raysum.runs.folder import Run
from raysum.runs.restore import fill
from raysum.runtime.progress import say
from raysum.runtime.storage import new_folder
from raysum.tokenizers.tokenizer import Tokenizer

KINDS = ("hiersumm", "wiki_sum", "huggingface")
_PRESETS = {"F": "ht", "P": "pht", "V": "vht"}  # by the letter of the decoder


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
    folder of a pretrained model: see ``raysum.importing.pretrained.import_pretrained``.

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


def export_checkpoint(kind: str, run: str, out: str, checkpoint: str = "best") -> Exported:
    """Write the folder ``out`` with the model of ``run`` as another library loads it; ``kind`` is ``huggingface``."""
    if kind != "huggingface":
        raise UserError(f"{kind!r} is no kind of checkpoint that is written; the one that is is huggingface")
    return export_pretrained(run, out, checkpoint)
