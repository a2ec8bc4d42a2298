"""Train the pieces of a SentencePiece model in another process.

The trainer is a thread of C++ that no signal ends: if Ctrl-C ends the interpreter meanwhile, that thread aborts it.
"""

import json
import signal
import subprocess
import sys
from collections.abc import Iterable
from typing import Any

from raysum.runtime.processes import child_command


class TrainingError(Exception):
    """The message of SentencePiece's trainer."""


def train_model(texts: Iterable[str], options: dict[str, Any]) -> bytes:
    """Return the model file that SentencePiece trains on lines of text, with its ``options``.

    Raises TrainingError with the trainer's message.
    """
    request = json.dumps({"texts": [*texts], "options": options}).encode()
    done = subprocess.run(child_command(__name__), input=request, capture_output=True)
    if done.returncode:
        raise TrainingError(done.stderr.decode(errors="replace").strip() or f"it ended with code {done.returncode}")
    return done.stdout


def main() -> None:
    """Write the model of the request on standard input to standard output."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C ends it without a traceback
    import sentencepiece

    request = json.load(sys.stdin.buffer)
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(request["texts"]), model_writer=sys.stdout.buffer, **request["options"]
        )
    except RuntimeError as error:
        sys.exit(str(error))
