"""Multi-News as text: a file of sources and one of summaries, a cluster a line in both."""

import codecs
import os
import re
from collections.abc import Iterable, Iterator
from itertools import zip_longest
from pathlib import Path

from raysum.errors import UserError
from raysum.sources.folders import leads_out
from raysum.sources.published_datasets import multi_news
from raysum.sources.record import TOO_LONG, Record, bounded_lines, decoded_row, not_utf8
from raysum.sources.staging import present

SOURCES = re.compile(r"(^|\.)src(\.cleaned|\..*\.txt)?$")  # names of files


def read_pairs(path: Path) -> Iterator[Record]:
    """The clusters of ``NAME.src...`` with the summaries of ``NAME.tgt...``, where there is such a file.

    A line's documents are parted by ``|||||`` or ``story_separator_special_tag``, its line breaks are ``NEWLINE_CHAR``.
    Raises UserError where the files have not as many lines.
    """
    targets = targets_of(path)
    if targets is None:
        yield from (_record(path, number, line, None) for number, line in _lines(path))
        return
    for source, target in zip_longest(_lines(path), _lines(targets)):
        if source is None or target is None:
            longer, at = (path, source) if source else (targets, target)
            raise UserError(f"{path} and {targets} are not pairs: {longer.name} goes on at line {at and at[0]}")
        yield _record(path, source[0], source[1], target[1])


def targets_of(path: Path) -> Path | None:
    """The file of summaries beside ``path``; of the cleaned sources they are those of the others.

    Raises UserError where it is a link out of the folders that ``path`` stands and lies in.
    """
    name = re.sub(r"(?<=\.)src(?=\.|$)", "tgt", path.name)
    found = (path.with_name(one) for one in (name, name.removesuffix(".cleaned")) if one != path.name)
    targets = next((one for one in found if one.is_file()), None)
    if targets and all(leads_out(targets, folder) for folder in (path.parent, Path(os.path.realpath(path)).parent)):
        raise UserError(f"{targets} is a link out of its folder; copy the file of summaries there")
    return targets


def unpaired(folders: Iterable[Path]) -> Iterator[str]:
    """A line for each file of sources or summaries in ``folders``, or given itself, that has none of the other."""
    for given in folders:
        files = [given] if given.is_file() else [*given.glob("*src*"), *given.glob("*tgt*")]
        pairs = {file: targets_of(file) for file in files if SOURCES.search(file.name)}
        for file, targets in sorted(pairs.items()):
            if targets is None:
                yield f"{file} has no file of summaries beside it, as {file.name.replace('src', 'tgt')} would be"
        for file in sorted({*files} - {*pairs} - {*pairs.values()}):
            if given.is_dir() and SOURCES.search(file.name.replace("tgt", "src")):
                yield f"{file} is left out: it has no file of sources beside it, as {file.name.replace('tgt', 'src')}"


def _lines(path: Path) -> Iterator[tuple[int, bytes | None]]:
    with present(path), path.open("rb") as file:
        for number, line in enumerate(bounded_lines(file.readline), 1):
            yield number, line and (line.removeprefix(codecs.BOM_UTF8) if number == 1 else line)


def _record(path: Path, number: int, source: bytes | None, target: bytes | None) -> Record:
    where = f"{path}:{number}"
    if source is None:
        return Record(where, "", TOO_LONG)
    try:
        raw = {"document": decoded_row(where, source)}
        raw |= {} if target is None else {"summary": decoded_row(where, target)}
    except UnicodeDecodeError as error:
        return not_utf8(where, source, error)
    return Record(where, multi_news(raw), size=len(source))
