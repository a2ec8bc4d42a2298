"""Arrow files, such as `datasets` of Hugging Face writes with ``save_to_disk``: one cluster a row."""

from collections.abc import Iterator
from pathlib import Path

from raysum.errors import UserError
from raysum.prepare.sources.parquet import records_of
from raysum.prepare.sources.record import Record


def read_arrow(path: Path) -> Iterator[Record]:
    """One cluster a row of a file or a stream. Raises UserError where it does not read as either."""
    import pyarrow as pa

    try:
        with pa.memory_map(str(path)) as source:
            try:
                reader = pa.ipc.open_stream(source)
                batches = iter(reader)
            except pa.ArrowInvalid:
                source.seek(0)
                file = pa.ipc.open_file(source)
                reader, batches = file, (file.get_batch(number) for number in range(file.num_record_batches))
            yield from records_of(path, reader.schema.names, batches)
    except pa.ArrowException as error:
        raise UserError(f"{path} does not read as Arrow ({error}); make or fetch the file again") from None
