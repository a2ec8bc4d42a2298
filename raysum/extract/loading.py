"""The factory behind ``raysum.load``: a run or an extractive system, ready to summarize raw text."""

from typing import TYPE_CHECKING, Any

from raysum import systems
from raysum.config.decoding import DecodeConfig, ExtractConfig
from raysum.config.problems import validate
from raysum.config.sections import LoadConfig
from raysum.config.signatures import with_settings
from raysum.errors import UserError
from raysum.extract.summarizer import Extractor, extracts
from raysum.runs.folder import Run

if TYPE_CHECKING:
    from raysum.decode.summarizer import Summarizer


@with_settings(DecodeConfig, ExtractConfig)
def load(
    run: str, checkpoint: str = "best", *, device: str | None = None, dtype: str | None = None, **decode: Any
) -> "Extractor | Summarizer":
    """Return a trained run, or ``lexrank``, ``lead`` or ``mmr``, ready to summarize raw text in this process, without
    Ray.

    ``checkpoint`` is ``best``, ``latest``, a step, or ``average:3``: the mean weights of the three best. ``device`` and
    ``dtype`` are as in :meth:`Summarizer.load`. Settings replace those of the run, which are the defaults. ``words``,
    ``sentences`` and ``redundancy`` apply to extractive systems and runs.
    Raises UserError if ``run`` is not a run folder with a complete checkpoint.

    >>> raysum.load("runs/pht").summarize("Florence", ["text of a document", "text of another"]).summary
    """
    values = {"checkpoint": checkpoint, "decode": decode} | ({} if dtype is None else {"dtype": dtype})
    return summarizer_of(run, validate(values, None, LoadConfig), device)


def summarizer_of(name: str, config: LoadConfig, device: str | None = None) -> "Extractor | Summarizer":
    """Return the summarizer of the run or system ``name``. Raises UserError if it lacks a setting of ``config``."""
    if extracts(name):
        return Extractor.of(name, config)
    run = Run.resolve(name)
    if run.config.model.extracts:
        return Extractor.trained(run, config, device)
    for key in ExtractConfig.model_fields:
        if key in config.decode:
            known = ", ".join(systems.extractive_names())
            raise UserError(f"{key} is for {known} and runs that extract; for this run, use --set max_length (tokens)")
    from raysum.decode.summarizer import Summarizer

    return Summarizer.of(name, config, device)
