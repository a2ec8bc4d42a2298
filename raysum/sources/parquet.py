"""Parquet: one cluster a row."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from raysum.errors import UserError
from raysum.sources.record import LONGEST, TOO_LONG, Record, check_columns, table_record

if TYPE_CHECKING:
    from pyarrow import RecordBatch

_ROWS = 16  # read at a time: each may be as long as a row may be
_UNREADABLE = (ValueError, OverflowError)  # text that is not UTF-8, a date that Python does not know


def read_parquet(path: Path) -> Iterator[Record]:
    """One cluster a row; ``documents`` is a list of strings, a list of {source, text}, or a string."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            yield from records_of(path, file.schema_arrow.names, file.iter_batches(_ROWS))
    except pa.ArrowException as error:
        raise UserError(f"{path} does not read as Parquet ({error}); make or fetch the file again") from None


def records_of(path: Path, columns: Sequence[str], batches: "Iterable[RecordBatch]") -> Iterator[Record]:
    """The rows of a table in ``batches`` of any size. Raises UserError where two of its ``columns`` have one name."""
    check_columns(path, columns)
    number = 0
    for batch in batches:
        for part in (batch.slice(start, _ROWS) for start in range(0, batch.num_rows, _ROWS)):
            for row in _rows(part):
                number += 1
                where = f"{path}:{number}"
                yield table_record(where, row) if isinstance(row, dict) else _record(where, row)


def _rows(batch: "RecordBatch") -> "Iterator[dict[str, Any] | RecordBatch]":
    """The rows of ``batch``, each as a batch of its own where they cannot be had at once."""
    try:
        if batch.nbytes <= LONGEST:
            return iter(batch.to_pylist())
    except _UNREADABLE:
        pass
    return (batch.slice(row, 1) for row in range(batch.num_rows))


def _record(where: str, row: "RecordBatch") -> Record:
    """What there is of a row by itself."""
    if row.nbytes > LONGEST:
        return Record(where, "", TOO_LONG)
    values: dict[str, Any] = {}
    for name, column in zip(row.schema.names, row.columns, strict=True):
        try:
            (values[name],) = column.to_pylist()
        except _UNREADABLE as error:
            return Record(where, values, "a field does not read", f"{name}: {error}")
    return table_record(where, values)
