"""File formats of published datasets: CNN/DailyMail's stories, Multi-News' pairs of files, and lists saved by torch."""

import codecs
import os
import re
import warnings
import zipfile
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import zip_longest
from pathlib import Path

from raysum.errors import UserError
from raysum.sources.folders import leads_out
from raysum.sources.published_datasets import multi_news
from raysum.sources.record import LONGEST, TOO_LONG, Record, bounded_lines, decode_utf8, non_utf8_record
from raysum.sources.staging import downloaded

SOURCES = re.compile(r"(^|\.)src(\.cleaned|\..*\.txt)?$")  # names of files
_HIGHLIGHT = re.compile(r"^@highlight[^\S\n]*$", re.MULTILINE)


def read_story(path: Path) -> Iterator[Record]:
    """Yield the one cluster of a story: the text before the first ``@highlight``, and each highlight as a line of the
    summary."""
    if path.stat().st_size > LONGEST:
        yield Record(str(path), path.name, TOO_LONG)
        return
    try:
        text = decode_utf8(str(path), path.read_bytes().removeprefix(codecs.BOM_UTF8))
    except UnicodeDecodeError as error:
        yield Record(str(path), path.name, "not UTF-8", f"byte {error.start}")
        return
    body, *highlights = _HIGHLIGHT.split(text.replace("\r\n", "\n"))
    lines = filter(None, (" ".join(highlight.split()) for highlight in highlights))
    summary = {"summary": "\n".join(lines)} if highlights else {}
    yield Record(str(path), {"id": path.stem, "documents": [body.strip()] if body.strip() else [], **summary})


def read_pairs(path: Path) -> Iterator[Record]:
    """Yield the clusters of ``NAME.src...``, one a line, with the summaries of ``NAME.tgt...`` if that file exists.

    ``|||||`` or ``story_separator_special_tag`` separate the documents of a line, and ``NEWLINE_CHAR`` is a line break.
    Raises UserError if the files have different numbers of lines.
    """
    targets = targets_of(path)
    if targets is None:
        yield from (_pair(path, number, line, None) for number, line in _lines(path))
        return
    for source, target in zip_longest(_lines(path), _lines(targets)):
        if source is None or target is None:
            longer, extra = (path, source) if source else (targets, target)
            raise UserError(
                f"{path} and {targets} must have the same number of lines: {longer.name} has a line "
                f"{extra and extra[0]} that the other lacks; fetch both again"
            )
        yield _pair(path, source[0], source[1], target[1])


def targets_of(path: Path) -> Path | None:
    """Return the file of summaries beside ``path``, or None. Cleaned sources use the summaries of the original ones.

    Raises UserError if that file is a link that leads out of both the folder of ``path`` and the folder of its target.
    """
    name = re.sub(r"(?<=\.)src(?=\.|$)", "tgt", path.name)
    candidates = [path.with_name(other) for other in (name, name.removesuffix(".cleaned")) if other != path.name]
    targets = next(filter(Path.is_file, candidates), None)
    if targets and all(leads_out(targets, folder) for folder in (path.parent, Path(os.path.realpath(path)).parent)):
        raise UserError(f"{targets} is a link out of its folder; copy the file of summaries there")
    return targets


def unpaired(paths: Iterable[Path]) -> Iterator[str]:
    """Yield a message for each file of sources without summaries, and of summaries without sources, in ``paths``."""
    for path in paths:
        files = [path] if path.is_file() else [*path.glob("*src*"), *path.glob("*tgt*")]
        pairs = {file: targets_of(file) for file in files if SOURCES.search(file.name)}
        for file, targets in sorted(pairs.items()):
            if targets is None:
                yield f"{file} has no file of summaries beside it (expected {file.name.replace('src', 'tgt')})"
        for file in sorted({*files} - {*pairs} - {*pairs.values()}):
            if path.is_dir() and SOURCES.search(file.name.replace("tgt", "src")):
                sources = file.name.replace("tgt", "src")
                yield f"{file} is skipped: it has no file of sources beside it (expected {sources})"


def _lines(path: Path) -> Iterator[tuple[int, bytes | None]]:
    with downloaded(path), path.open("rb") as file:
        for number, line in enumerate(bounded_lines(file.readline), 1):
            yield number, line and (line.removeprefix(codecs.BOM_UTF8) if number == 1 else line)


def _pair(path: Path, number: int, source: bytes | None, target: bytes | None) -> Record:
    where = f"{path}:{number}"
    if source is None:
        return Record(where, "", TOO_LONG)
    try:
        raw = {"document": decode_utf8(where, source)}
        raw |= {} if target is None else {"summary": decode_utf8(where, target)}
    except UnicodeDecodeError as error:
        return non_utf8_record(where, source, error)
    return Record(where, multi_news(raw), size=len(source))


def read_torch_list(path: Path) -> Iterator[Record]:
    """Yield the items of a list saved by torch: ranked WikiSum and PRIMERA's datasets.

    Only lists, dictionaries, numbers and texts are loaded. Raises UserError if the file holds other objects or no list.
    """
    import pickle

    import torch

    _refuse_compressed(path)

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            rows = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        object_name = re.search(r"GLOBAL (\S+)", str(error))
        content = f"more than lists, numbers and texts ({object_name[1]})" if object_name else "no data saved by torch"
        raise UserError(
            f"{path} holds {content}; loading it could run code, so save it as plain lists or as JSON lines"
        ) from None
    except (RuntimeError, EOFError, ValueError, KeyError, AttributeError, IndexError):
        raise UserError(
            f"{path} is not a readable list saved by torch: it is cut, damaged or of another format; fetch it again"
        ) from None
    if not isinstance(rows, list):
        raise UserError(f"{path} holds one {type(rows).__name__} and no list of clusters; save a list of dictionaries")
    for number, row in enumerate(rows, 1):
        yield Record(f"{path}:{number}", row)


def _refuse_compressed(path: Path) -> None:
    """Raises UserError if a part of the file is compressed: torch never compresses, and it may unpack to any size."""
    with suppress(zipfile.BadZipFile), zipfile.ZipFile(path) as parts:
        if any(part.compress_type != zipfile.ZIP_STORED for part in parts.infolist()):
            raise UserError(f"{path} is compressed, which torch never does; save it again, or as JSON lines")
