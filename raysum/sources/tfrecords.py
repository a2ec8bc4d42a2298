"""TFRecord files of examples with fields of bytes, read without TensorFlow."""

import gzip
import struct
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from raysum.errors import UserError
from raysum.sources.staging import present

_MEND = "fetch it again"
_LARGEST = 1 << 30  # bytes of a record: a length beyond is a damaged one
_MASK = 0xA282EAD8  # the format's: checksums of data that hold checksums are weak


def read_examples(path: Path) -> Iterator[dict[str, list[bytes]]]:
    """The fields of each record that hold bytes, by name. Raises UserError where a checksum differs or bytes lack."""
    parsed = _message("Example")
    with _reading(path), present(path), gzip.open(path) if ".gz" in path.name else path.open("rb") as file:
        number = 0
        while head := file.read(12):
            number += 1
            length, checksum = struct.unpack("<QI", head) if len(head) == 12 else (_LARGEST + 1, 0)
            if length > _LARGEST or _masked(head[:8]) != checksum:
                raise UserError(f"{path} is damaged at record {number}: its length is not what was written; {_MEND}")
            body = file.read(length + 4)
            if len(body) < length + 4 or _masked(body[:-4]) != struct.unpack("<I", body[-4:])[0]:
                raise UserError(f"{path} is damaged at record {number}: its bytes are not what was written; {_MEND}")
            features = parsed.FromString(body[:-4]).features.feature
            yield {one.key: list(one.value.bytes_list.value) for one in features}


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, EOFError, zlib.error) as error:
        raise UserError(f"{path} does not read to its end ({error}); {_MEND}") from None


def _masked(data: bytes) -> int:
    import google_crc32c

    value = google_crc32c.value(data)
    return ((value >> 15 | value << 17) + _MASK) & 0xFFFFFFFF


@cache
def _message(name: str) -> Any:
    """A message of tensorflow/core/example: an Example's map of features is a list of entries on the wire."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    file = descriptor_pb2.FileDescriptorProto(name="raysum/example.proto", package="raysum", syntax="proto3")
    kinds = descriptor_pb2.FieldDescriptorProto
    one, many = kinds.LABEL_OPTIONAL, kinds.LABEL_REPEATED
    messages: dict[str, list[tuple[str, int, int, str]]] = {
        "BytesList": [("value", many, kinds.TYPE_BYTES, "")],
        "Feature": [("bytes_list", one, kinds.TYPE_MESSAGE, "BytesList")],
        "Entry": [("key", one, kinds.TYPE_STRING, ""), ("value", one, kinds.TYPE_MESSAGE, "Feature")],
        "Features": [("feature", many, kinds.TYPE_MESSAGE, "Entry")],
        "Example": [("features", one, kinds.TYPE_MESSAGE, "Features")],
    }
    for message, fields in messages.items():
        made = file.message_type.add(name=message)
        for number, (field, label, kind, of) in enumerate(fields, 1):
            made.field.add(name=field, number=number, label=label, type=kind, type_name=f".raysum.{of}" if of else None)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"raysum.{name}"))
