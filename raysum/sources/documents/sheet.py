"""The cells of spreadsheets."""

from io import BytesIO
from typing import Any

from raysum.runtime.extras import needs
from raysum.runtime.processes import hushed

Sheets = dict[str, list[tuple[int, list[str]]]]  # the rows with text of each sheet, and their numbers from 1


def read_sheets(content: bytes, name: str) -> Sheets:
    """Return the sheets of a workbook (Excel or OpenDocument), without rows and columns that are empty.

    The library holds all cells up to the farthest, and ends the process if they do not fit into memory.
    """
    calamine = needs("python_calamine", name)
    with hushed():
        book = calamine.CalamineWorkbook.from_filelike(BytesIO(content))
        return {sheet: _rows(book, sheet) for sheet in book.sheet_names}


def _rows(book: Any, sheet: str) -> list[tuple[int, list[str]]]:
    numbered = enumerate(book.get_sheet_by_name(sheet).iter_rows(), 1)
    rows = [(number, [*map(str, row)]) for number, row in numbered if any(cell != "" for cell in row)]
    used = [column for column, cells in enumerate(zip(*(row for _, row in rows), strict=True)) if any(cells)]
    return [(number, [row[column] for column in used]) for number, row in rows]
