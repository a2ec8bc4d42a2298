"""Parquet and Arrow files: one cluster a row."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from raysum.errors import UserError
from raysum.sources.record import LONGEST, TOO_LONG, Record, check_unique_columns, table_record

if TYPE_CHECKING:
    from pyarrow import RecordBatch

_ROWS = 16  # rows read at a time, since each may have LONGEST bytes
_UNREADABLE = (ValueError, OverflowError)  # text that is not UTF-8, a date that Python does not support


def read_parquet(path: Path) -> Iterator[Record]:
    """Yield one cluster a row; ``documents`` is a list of strings, a list of {source, text}, or a string."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            yield from _records(path, file.schema_arrow.names, file.iter_batches(_ROWS))
    except pa.ArrowException as error:
        raise UserError(f"{path} is not valid Parquet ({error}); make or fetch the file again") from None


def read_arrow(path: Path) -> Iterator[Record]:
    """Yield one cluster a row of an Arrow file or stream, such as ``save_to_disk`` of Hugging Face datasets writes.

    Raises UserError if the content is neither.
    """
    import pyarrow as pa

    try:
        with pa.OSFile(str(path)) as source:  # a memory-mapped file with a wrong length kills the process (SIGBUS)
            try:
                reader = pa.ipc.open_stream(source)
                batches = iter(reader)
            except pa.ArrowInvalid:
                source.seek(0)
                file = pa.ipc.open_file(source)
                reader, batches = file, (file.get_batch(number) for number in range(file.num_record_batches))
            yield from _records(path, reader.schema.names, _validated(batches))
    except pa.ArrowException as error:
        raise UserError(f"{path} is not valid Arrow ({error}); make or fetch the file again") from None


def _validated(batches: "Iterable[RecordBatch]") -> "Iterator[RecordBatch]":
    """Raises ArrowInvalid if a damaged file has offsets beyond its values, which would crash the process."""
    for batch in batches:
        batch.validate(full=True)
        yield batch


def _records(path: Path, columns: Sequence[str], batches: "Iterable[RecordBatch]") -> Iterator[Record]:
    """Yield the rows of ``batches`` of any size. Raises UserError if two ``columns`` have the same name."""
    check_unique_columns(path, columns)
    number = 0
    for batch in batches:
        for part in (batch.slice(start, _ROWS) for start in range(0, batch.num_rows, _ROWS)):
            for row in _rows(part):
                number += 1
                where = f"{path}:{number}"
                yield table_record(where, row) if isinstance(row, dict) else _single_record(where, row)


def _rows(batch: "RecordBatch") -> "Iterator[dict[str, Any] | RecordBatch]":
    """Yield the rows of ``batch``; if one is unreadable or all are too long, each is a batch of one row."""
    try:
        if batch.nbytes <= LONGEST:
            return iter(batch.to_pylist())
    except _UNREADABLE:
        pass
    return (batch.slice(row, 1) for row in range(batch.num_rows))


def _single_record(where: str, row: "RecordBatch") -> Record:
    """Return the record of a batch of one row, with the readable fields before the first unreadable one."""
    if row.nbytes > LONGEST:
        return Record(where, "", TOO_LONG)
    values: dict[str, Any] = {}
    for name, column in zip(row.schema.names, row.columns, strict=True):
        try:
            (values[name],) = column.to_pylist()
        except _UNREADABLE as error:
            return Record(where, values, "a field is unreadable", f"{name}: {error}")
    return table_record(where, values)
