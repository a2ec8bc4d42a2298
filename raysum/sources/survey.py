"""The files of folders and archives by kind, and the encodings of their texts, before anything is read."""

import os
import zlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from raysum.sources.archives import archive_of, member
from raysum.sources.documents.read import DOCUMENT_FORMATS, identify
from raysum.sources.documents.text import encoding_of
from raysum.sources.folders import is_about_folder, leads_out
from raysum.sources.formats import format_by_name
from raysum.sources.staging import head, opened

_MAX_FILES = 20_000
_MAX_TEXTS, _HEAD = 200, 1 << 16  # texts with a detected encoding, and bytes read of each
ABOUT = "never data"  # the kind of a README or LICENSE


@dataclass(frozen=True)
class Survey:
    """The visible files by kind, the largest kind first, and the number of texts by encoding."""

    kinds: dict[str, list[Path]]
    encodings: Counter[str]
    size: int  # bytes

    @classmethod
    def of(cls, paths: Iterable[Path]) -> "Survey":
        """Return the survey of files, folders and archives; of more than 20,000 files, the first ones."""
        kinds, size = defaultdict[str, list[Path]](list), 0
        for file in islice((file for path in paths for file in _files(path, path)), _MAX_FILES):
            kinds[_kind(file)].append(file)
            size += file.stat().st_size
        by_count = dict(sorted(kinds.items(), key=lambda kind: (kind[0] == ABOUT, -len(kind[1]))))
        files = [file for kind, found in by_count.items() if kind != ABOUT for file in found]
        sample = files[:: len(files) // _MAX_TEXTS + 1]
        return cls(by_count, Counter(filter(None, map(_encoding, sample))), size)


def root_of(path: Path) -> Path:
    """Return where an archive, or a path in one, is unpacked, and any other path unchanged."""
    archive = archive_of(path)
    return member(archive, path.relative_to(archive)) if archive else path


def _files(path: Path, corpus: Path) -> Iterator[Path]:
    path = root_of(path)
    if path.is_file():
        yield path
    for folder, inner, names in os.walk(path):
        inner[:] = sorted(name for name in inner if not name.startswith("."))
        files = (Path(folder, name) for name in sorted(names) if not name.startswith("."))
        yield from (file for file in files if file.is_file() and not leads_out(file, corpus))


def _kind(file: Path) -> str:
    if is_about_folder(file):
        return ABOUT
    document = next((form.title for form in DOCUMENT_FORMATS if file.suffix.lower() in form.suffixes), "")
    if form := format_by_name(file):
        return form.name
    return document or identify(head(file, 128)).partition(";")[0] or f"other ({file.suffix or 'no suffix'})"


def _encoding(file: Path) -> str:
    """Return the encoding of a text, or "" for any other file."""
    try:
        with opened(file) as content:
            start = content.read(_HEAD)
    except (OSError, EOFError, zlib.error):
        return ""
    return "" if not start or identify(start) else encoding_of(start)
