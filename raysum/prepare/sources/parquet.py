"""Parquet: one cluster a row."""

from collections.abc import Iterator
from pathlib import Path

from raysum.errors import UserError
from raysum.prepare.sources.record import Record, check_columns, listed_texts


def read_parquet(path: Path) -> Iterator[Record]:
    """One cluster a row; ``documents`` is a list of strings, a list of {source, text}, or a string."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            check_columns(path, file.schema_arrow.names)
            rows = (row for batch in file.iter_batches(batch_size=64) for row in batch.to_pylist())
            for number, row in enumerate(rows, 1):
                yield Record(f"{path}:{number}", {key: listed_texts(key, value) for key, value in row.items()})
    except pa.ArrowException as error:
        raise UserError(f"{path} does not read as Parquet: {error}") from None
