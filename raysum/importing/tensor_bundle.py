"""Read TensorFlow checkpoints (tensor bundles) without TensorFlow.

A bundle is a table of entries by tensor name (``PREFIX.index``: LevelDB's sorted table, uncompressed) and the bytes of
the tensors (``PREFIX.data-00000-of-00001``, or more shards). Every block and tensor has a CRC-32C, which is checked.
"""

import math
import re
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError

from raysum.errors import UserError
from raysum.runtime.storage import check_regular
from raysum.sources.tensor2tensor import masked_crc32c, message_fields

_FOOTER = 48  # bytes: two block handles, zeros, the magic number
_MAGIC = 0xDB4775248B80FB57  # of LevelDB's tables
_TRAILER = 5  # bytes after a block: its compression and the masked CRC of both
_DTYPES = {1: "<f4", 9: "<i8"}  # by TensorFlow's type number: weights, and the step counter
_NUMBERS = {"dtype": 1, "shard_id": 3, "offset": 4, "size": 5, "crc32c": 6}  # of the fields of an entry
_SUFFIX = re.compile(r"\.(index|data-\d{5}-of-\d{5})$")


@dataclass(frozen=True)
class _Entry:
    """The location of a tensor: a BundleEntryProto of tensorflow/core/protobuf/tensor_bundle.proto."""

    dtype: int
    shape: list[int]
    shard_id: int
    offset: int
    size: int
    crc32c: int
    is_sliced: bool

    @classmethod
    def of(cls, message: bytes) -> "_Entry":
        fields = message_fields(message)
        shape = [_number(dim, 1) for value in fields[2] for dim in map(message_fields, message_fields(value)[2])]
        numbers = {name: _number(fields, number) for name, number in _NUMBERS.items()}
        return cls(shape=shape, is_sliced=bool(fields[7]), **numbers)


class TensorBundle:
    """The tensors of a checkpoint by name, read on demand. ``prefix`` is that of its files, or one of them.

    Raises UserError if the index is missing, damaged or of another format.
    """

    def __init__(self, prefix: str | Path):
        self.prefix = _SUFFIX.sub("", str(prefix))
        self._index = Path(f"{self.prefix}.index")
        table = _read(self._index)
        try:
            self.entries, self._shards = self._parse(table)
        except UserError:
            raise
        except (LookupError, ValueError, struct.error, DecodeError):
            raise _damaged(self._index, "its entries cannot be parsed") from None

    def read(self, name: str) -> np.ndarray:
        """Return the tensor ``name``. Raises KeyError if it is missing, UserError if it is damaged or unsupported."""
        entry = self.entries[name]
        path = Path(f"{self.prefix}.data-{entry.shard_id:05d}-of-{self._shards:05d}")
        if entry.dtype not in _DTYPES or entry.is_sliced:
            kind = "is stored in slices" if entry.is_sliced else f"has TensorFlow's type number {entry.dtype}"
            raise UserError(f"{path}: {name} {kind}; save the checkpoint with whole float32 tensors")
        data = _read(path, entry.offset, entry.size)
        if len(data) != entry.size:
            raise _damaged(path, f"{name} ends too early")
        if masked_crc32c(data) != entry.crc32c:
            raise _damaged(path, f"the checksum of {name} differs")
        values, shape = np.frombuffer(data, _DTYPES[entry.dtype]), entry.shape
        if values.size != math.prod(shape):
            raise _damaged(path, f"{name} does not have its shape {shape}")
        return values.reshape(shape)

    def _parse(self, table: bytes) -> tuple[dict[str, _Entry], int]:
        """Return all entries, and the number of shards."""
        if len(table) < _FOOTER or struct.unpack("<Q", table[-8:])[0] != _MAGIC:
            raise UserError(f"{self._index} is not the index of a TensorFlow checkpoint, or was cut off: copy it again")
        footer = BytesIO(table[-_FOOTER:])
        for _ in range(2):  # skip the handle of the table's properties, which checkpoints do not use
            _varint(footer)
        values: dict[bytes, bytes] = {}
        for _, handle in self._block(table, footer):
            values |= dict(self._block(table, BytesIO(handle)))
        header = message_fields(values.pop(b""))
        if _number(header, 2):
            raise UserError(f"{self._index} was written by a big-endian machine: save it on a little-endian one")
        return {name.decode(): _Entry.of(value) for name, value in values.items()}, _number(header, 1)

    def _block(self, table: bytes, handle: BytesIO) -> Iterator[tuple[bytes, bytes]]:
        """Yield the keys and values of the block at ``handle``."""
        start, size = _varint(handle), _varint(handle)
        block, trailer = table[start : start + size], table[start + size : start + size + _TRAILER]
        compression, crc = struct.unpack("<BI", trailer)
        if masked_crc32c(block + trailer[:1]) != crc:
            raise _damaged(self._index, "the checksum of a block differs")
        if compression:
            raise UserError(f"{self._index} is compressed: save the checkpoint again with tf.train.Checkpoint")
        end = size - 4 * (1 + struct.unpack("<I", block[-4:])[0])  # where the list of restarts begins
        entries, key = BytesIO(block[:end]), b""
        while entries.tell() < end:
            shared, fresh, length = (_varint(entries) for _ in range(3))
            key = key[:shared] + entries.read(fresh)
            yield key, entries.read(length)


def _number(fields: Mapping[int, list[Any]], number: int) -> int:
    """Return the value of a field, or 0, which is the default of all numbers."""
    return fields[number][-1] if fields[number] else 0


def _varint(stream: BytesIO) -> int:
    """Return the next number, seven bits a byte. Raises ValueError at the end of the stream."""
    value = shift = 0
    while True:
        (byte,) = stream.read(1)
        value, shift = value | (byte & 127) << shift, shift + 7
        if byte < 128:
            return value


def _read(path: Path, offset: int = 0, size: int = -1) -> bytes:
    try:
        with check_regular(path).open("rb") as file:
            file.seek(offset)
            return file.read(size)
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}; give the prefix of a checkpoint's files") from None


def _damaged(path: Path, problem: str) -> UserError:
    return UserError(f"{path} is damaged: {problem}; copy the checkpoint again")
