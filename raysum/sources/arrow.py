"""Arrow files, such as `datasets` of Hugging Face writes with ``save_to_disk``: one cluster a row."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from raysum.errors import UserError
from raysum.sources.parquet import records_of
from raysum.sources.record import Record

if TYPE_CHECKING:
    from pyarrow import RecordBatch


def read_arrow(path: Path) -> Iterator[Record]:
    """One cluster a row of a file or a stream. Raises UserError where it does not read as either."""
    import pyarrow as pa

    try:
        with pa.OSFile(str(path)) as source:  # a mapped file with a wrong length kills the process (SIGBUS)
            try:
                reader = pa.ipc.open_stream(source)
                batches = iter(reader)
            except pa.ArrowInvalid:
                source.seek(0)
                file = pa.ipc.open_file(source)
                reader, batches = file, (file.get_batch(number) for number in range(file.num_record_batches))
            yield from records_of(path, reader.schema.names, _checked(batches))
    except pa.ArrowException as error:
        raise UserError(f"{path} does not read as Arrow ({error}); make or fetch the file again") from None


def _checked(batches: "Iterable[RecordBatch]") -> "Iterator[RecordBatch]":
    """Raises ArrowInvalid where a damaged file has offsets beyond its values: reading these would end the process."""
    for batch in batches:
        batch.validate(full=True)
        yield batch
