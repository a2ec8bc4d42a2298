"""Lists of clusters that torch has saved: the published ranked WikiSum, and PRIMERA's."""

import re
import warnings
import zipfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from raysum.errors import UserError
from raysum.sources.record import Record


def read_list(path: Path) -> Iterator[Record]:
    """The items of a saved list, of which nothing but lists, dictionaries, numbers and texts is loaded.

    Raises UserError where the file holds other objects, or no list.
    """
    import pickle

    import torch

    _refuse_compressed(path)

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            rows = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        named = re.search(r"GLOBAL (\S+)", str(error))
        told = f"holds more than lists, numbers and texts ({named[1]})" if named else "was not saved by torch"
        raise UserError(
            f"{path} {told}, and is not loaded, since that could run code; save it as lists, or as JSON lines"
        ) from None
    except (RuntimeError, EOFError, ValueError, KeyError, AttributeError, IndexError):
        told = "cut, damaged or no list that torch has saved"
        raise UserError(f"{path} does not read as a saved list: it is {told}; fetch the file again") from None
    if not isinstance(rows, list):
        raise UserError(f"{path} holds no list of clusters, but one {type(rows).__name__}; save a list of dictionaries")
    for number, row in enumerate(rows, 1):
        yield Record(f"{path}:{number}", row)


def _refuse_compressed(path: Path) -> None:
    """torch never compresses what it saves; a part that is may unpack to any size."""
    with suppress(zipfile.BadZipFile), zipfile.ZipFile(path) as parts:
        if any(part.compress_type != zipfile.ZIP_STORED for part in parts.infolist()):
            raise UserError(f"{path} is compressed, as torch saves no list; save it again, or as JSON lines")
