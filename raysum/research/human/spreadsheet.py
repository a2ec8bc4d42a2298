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
    """The first line and the stripped cells of each row that is not blank, by column; separators may be , ; or tab.

    Raises UserError where the file is empty or not UTF-8, one of ``columns`` is missing, or a row does not fit.
    """
    text = read_text(path)
    first = text.partition("\n")[0]
    rows = csv.reader(StringIO(text, newline=""), delimiter=max(",;\t", key=first.count), strict=True)
    try:
        header = [name.strip() for name in next(rows, [])]
        if not any(header):
            raise UserError(f"{path} is empty; put back the sheet as it was made")
        for name in columns:
            if header.count(name) != 1:
                wrong = "is missing" if name not in header else "occurs twice"
                raise UserError(f"{path}, line 1: column {name!r} {wrong}; there must be {', '.join(columns)}")
        line = rows.line_num + 1
        for row in rows:
            if any(cell.strip() for cell in row):
                if len(row) != len(header):
                    raise UserError(
                        f"{path}, line {line} has {len(row)} cells, not {len(header)}; quote cells with commas"
                    )
                yield line, {name: cell.strip() for name, cell in zip(header, row, strict=True)}
            line = rows.line_num + 1
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
