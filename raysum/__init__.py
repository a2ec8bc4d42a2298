"""raysum: train, tune and serve hierarchical multi-document summarizers on Ray.

>>> import raysum
>>> summarizer = raysum.load("runs/pht")
>>> summarizer.summarize("Florence", ["text of a document", "text of another"]).summary
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from raysum.decode.summarizer import Summarizer

__version__ = "0.1.0"
__all__ = ["load"]


def load(run: str, checkpoint: str = "best", **decode: Any) -> "Summarizer":
    """A trained run, ready to summarize raw text in this process, without Ray.

    ``checkpoint`` is ``best``, ``latest`` or a step; ``decode`` overrides decoding settings (``num_beams=8``).
    Raises UserError where ``run`` is not a run folder with a complete checkpoint.
    """
    from raysum.decode.summarizer import Summarizer

    return Summarizer.load(run, checkpoint=checkpoint, **decode)
