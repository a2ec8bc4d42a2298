"""TFRecord files of examples with fields of bytes, read without TensorFlow."""

import gzip
import struct
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from raysum.errors import UserError
from raysum.sources.staging import downloaded

# Fields of messages by name: name, number, type (a scalar or a message), is repeated.
Schema = Mapping[str, Sequence[tuple[str, int, str, bool]]]

_REMEDY = "fetch it again"
_MAX_BYTES = 1 << 30  # of a record: a greater length is damaged
_MASK = 0xA282EAD8  # of the format, because checksums of data with checksums are weak


def read_tfrecords(path: Path) -> Iterator[dict[str, list[bytes]]]:
    """Yield the fields of bytes of each record, by name. Raises UserError if the file is damaged."""
    example_class = message_class(_EXAMPLE, "Example")
    with _reading(path), downloaded(path), gzip.open(path) if ".gz" in path.name else path.open("rb") as file:
        number = 0
        while head := file.read(12):
            number += 1
            length, checksum = struct.unpack("<QI", head) if len(head) == 12 else (_MAX_BYTES + 1, 0)
            if length > _MAX_BYTES or masked_crc32c(head[:8]) != checksum:
                raise UserError(f"{path} is damaged at record {number}: the checksum of its length differs; {_REMEDY}")
            body = file.read(length + 4)
            if len(body) < length + 4 or masked_crc32c(body[:-4]) != struct.unpack("<I", body[-4:])[0]:
                raise UserError(f"{path} is damaged at record {number}: the checksum of its bytes differs; {_REMEDY}")
            features = example_class.FromString(body[:-4]).features.feature
            yield {entry.key: list(entry.value.bytes_list.value) for entry in features}


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, EOFError, zlib.error) as error:
        raise UserError(f"{path} cannot be read to its end ({error}); {_REMEDY}") from None


def masked_crc32c(data: bytes) -> int:
    """Return the CRC-32C of ``data`` as TensorFlow's formats store it: rotated, plus a constant."""
    import google_crc32c

    value = google_crc32c.value(data)
    return ((value >> 15 | value << 17) + _MASK) & 0xFFFFFFFF


# The messages of tensorflow/core/example: an Example's map of features is a list of entries on the wire.
_EXAMPLE: Schema = {
    "BytesList": [("value", 1, "bytes", True)],
    "Feature": [("bytes_list", 1, "BytesList", False)],
    "Entry": [("key", 1, "string", False), ("value", 2, "Feature", False)],
    "Features": [("feature", 1, "Entry", True)],
    "Example": [("features", 1, "Features", False)],
}


def message_class(schema: Schema, name: str) -> Any:
    """Return the protocol buffer class of the message ``name`` of ``schema``."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    file = descriptor_pb2.FileDescriptorProto(name="raysum/schema.proto", package="raysum", syntax="proto3")
    types = descriptor_pb2.FieldDescriptorProto
    for message, fields in schema.items():
        descriptor = file.message_type.add(name=message)
        for field, number, kind, is_repeated in fields:
            label = types.LABEL_REPEATED if is_repeated else types.LABEL_OPTIONAL
            added = descriptor.field.add(name=field, number=number, label=label)
            if kind in schema:
                added.type, added.type_name = types.TYPE_MESSAGE, f".raysum.{kind}"
            else:
                added.type = types.Type.Value(f"TYPE_{kind.upper()}")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"raysum.{name}"))
