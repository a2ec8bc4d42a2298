"""CSV files that people fill in with any spreadsheet."""

import csv
from collections.abc import Iterable, Iterator, Sequence
from io import StringIO
from pathlib import Path

from raysum.config.loading import read_text
from raysum.errors import UserError
from raysum.runtime.storage import write_text

_FORMULA = ("=", "+", "-", "@", "\t")  # a spreadsheet would run a text that begins so


def read_table(path: Path, columns: Sequence[str]) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield the last line and the stripped cells of each row that is not blank, by column.

    Separators may be , ; or tab. Raises UserError if the file is empty or not UTF-8, one of ``columns`` is missing or
    occurs twice, or a row does not fit.
    """
    text = read_text(path)
    first = text.partition("\n")[0]
    rows = csv.reader(StringIO(text, newline=""), delimiter=max(",;\t", key=first.count), strict=True)
    try:
        header = [name.strip() for name in next(rows, [])]
        for name in columns:
            if header.count(name) != 1:
                wrong = "occurs twice" if name in header else "is missing"
                raise UserError(f"{path}, line 1: column {name!r} {wrong}; there must be {', '.join(columns)}")
        for row in rows:
            cells = [cell.strip() for cell in row]
            if any(cells) and len(cells) != len(header):
                message = f"has {len(cells)} cells, not {len(header)}; quote cells with commas"
                raise UserError(f"{path}, line {rows.line_num} {message}")
            if any(cells):
                yield rows.line_num, dict(zip(header, cells, strict=True))
    except csv.Error as error:
        raise UserError(f"{path}, line {rows.line_num} is no CSV ({error}); save the sheet as CSV once more") from None


def write_table(path: Path, header: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Write a CSV with a byte-order mark, so that spreadsheets read UTF-8. Texts never become formulas."""
    text = StringIO(newline="")
    writer = csv.writer(text)
    writer.writerow(header)
    writer.writerows(
        [f" {cell}" if cell.startswith(_FORMULA) and cell != "-" else cell for cell in row] for row in rows
    )
    write_text(path, "\ufeff" + text.getvalue())
