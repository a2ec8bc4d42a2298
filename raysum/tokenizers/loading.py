"""Load a tokenizer from a file of a dataset or run, or from the folder of a published model."""

from pathlib import Path

from raysum.errors import UserError
from raysum.runtime.remote import is_url, read
from raysum.tokenizers.fast import FastTokenizer
from raysum.tokenizers.published import read_tokenizer_folder
from raysum.tokenizers.sentence_piece import Vocabulary
from raysum.tokenizers.tokenizer import STORED, Tokenizer


def load_tokenizer(path: str | Path, language: str | None = None) -> Tokenizer:
    """Return the tokenizer of a SentencePiece model, of the file of a dataset or run, or of the folder of either or of
    a published model.

    ``language`` is the code of the texts' language, for published tokenizers of several languages.
    Raises UserError if ``path`` cannot be read or is none of these.
    """
    local_path = Path(path).expanduser()
    is_folder = not is_url(path) and local_path.is_dir()
    file = local_path / STORED if is_folder else local_path
    try:
        if is_folder and not file.is_file():
            return tokenizer_from_bytes(read_tokenizer_folder(local_path, language), str(local_path / "tokenizer.json"))
        content = read(str(path)) if is_url(path) else file.read_bytes()
    except OSError as error:
        raise UserError(
            f"cannot read the vocabulary {error.filename or path}: {error.strerror}; give a .model file made by "
            "SentencePiece, or the folder of a published model with its tokenizer.json, or put back a copy"
        ) from None
    if content is None:
        raise UserError(f"there is no vocabulary {path}; give a .model file made by SentencePiece")
    if language is not None:
        raise UserError(f"language {language!r} needs a published folder, which {path} is not: remove the option")
    return tokenizer_from_bytes(content, str(file))


def tokenizer_from_bytes(content: bytes, name: str) -> Tokenizer:
    """Return the tokenizer of the ``content`` of a file. Raises UserError with its ``name`` if it is none."""
    return FastTokenizer(content, name) if content.lstrip()[:1] == b"{" else Vocabulary(content, name)
