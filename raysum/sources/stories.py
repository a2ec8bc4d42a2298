"""CNN/DailyMail's stories: a text, and its highlights."""

import codecs
import re
from collections.abc import Iterator
from pathlib import Path

from raysum.sources.record import LONGEST, TOO_LONG, Record, decoded_row

_MARK = re.compile(r"^@highlight[^\S\n]*$", re.MULTILINE)


def read_story(path: Path) -> Iterator[Record]:
    """The one cluster of a file: what stands before the first ``@highlight``, and each line after one."""
    if path.stat().st_size > LONGEST:
        yield Record(str(path), path.name, TOO_LONG)
        return
    try:
        text = decoded_row(str(path), path.read_bytes().removeprefix(codecs.BOM_UTF8))
    except UnicodeDecodeError as error:
        yield Record(str(path), path.name, "not UTF-8", f"byte {error.start}")
        return
    body, *highlights = _MARK.split(text.replace("\r\n", "\n"))
    summary = "\n".join(filter(None, (" ".join(one.split()) for one in highlights)))
    told = {"summary": summary} if highlights else {}
    yield Record(str(path), {"id": path.stem, "documents": [body.strip()] if body.strip() else [], **told})
