"""TensorFlow checkpoints without TensorFlow: a small reader of its tensor bundles.

A bundle is a table of entries by tensor name (``PREFIX.index``: LevelDB's sorted table, uncompressed) and the bytes of
the tensors (``PREFIX.data-00000-of-00001``, or more shards). Every block and every tensor has a CRC-32C, and all that
is read is checked by it.
"""

import math
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np

from raysum.errors import UserError

_FOOTER = 48  # bytes: two block handles, zeros, the magic number
_MAGIC = 0xDB4775248B80FB57  # of LevelDB's tables
_TRAILER = 5  # bytes behind a block: its compression and the masked CRC of both
_TABLE = np.arange(256, dtype=np.uint32)  # the CRC's register after one byte, by that byte
for _ in range(8):
    _TABLE = (_TABLE >> 1) ^ np.where(_TABLE & 1, np.uint32(0x82F63B78), np.uint32(0))  # Castagnoli's, reflected
_DTYPES = {1: "<f4", 9: "<i8"}  # by TensorFlow's number of the type: weights, and the counter of steps
_SUFFIX = re.compile(r"\.(index|data-\d{5}-of-\d{5})$")


@dataclass(frozen=True)
class Entry:
    """Where a tensor lies: ``size`` bytes at ``offset`` of the file of ``shard``; ``crc`` is masked."""

    dtype: int
    shape: tuple[int, ...]
    shard: int
    offset: int
    size: int
    crc: int
    sliced: bool


class TensorBundle:
    """The tensors of a checkpoint, each read when it is asked for, by the ``prefix`` of its files or one of them.

    Raises UserError where the index is missing, damaged, or not one.
    """

    def __init__(self, prefix: str | Path):
        self.prefix = _SUFFIX.sub("", str(prefix))
        self._index = Path(f"{self.prefix}.index")
        table = _read(self._index)
        try:
            self.entries, self._shards = self._parse(table)
        except UserError:
            raise
        except (LookupError, ValueError, struct.error):
            raise _damaged(self._index, "its entries do not read") from None

    def read(self, name: str) -> np.ndarray:
        """The tensor ``name``. Raises KeyError where there is none, UserError where it is damaged or of no use here."""
        entry = self.entries[name]
        path = Path(f"{self.prefix}.data-{entry.shard:05d}-of-{self._shards:05d}")
        if entry.dtype not in _DTYPES or entry.sliced:
            kind = "is stored in slices" if entry.sliced else f"has TensorFlow's type number {entry.dtype}"
            raise UserError(f"{path}: {name} {kind}; only whole float32 tensors are read")
        data = _read(path, entry.offset, entry.size)
        if len(data) != entry.size:
            raise _damaged(path, f"{name} ends too early")
        if _masked(crc32c(data)) != entry.crc:
            raise _damaged(path, f"{name} is not what was written")
        values = np.frombuffer(data, _DTYPES[entry.dtype])
        if values.size != math.prod(entry.shape):
            raise _damaged(path, f"{name} is not of its shape {entry.shape}")
        return values.reshape(entry.shape)

    def _parse(self, table: bytes) -> tuple[dict[str, Entry], int]:
        """All entries, and the number of shards."""
        if len(table) < _FOOTER or struct.unpack("<Q", table[-8:])[0] != _MAGIC:
            raise UserError(f"{self._index} is not the index of a TensorFlow checkpoint, or only its beginning")
        footer = BytesIO(table[-_FOOTER:])
        for _ in range(2):  # the handle of the table's own properties, which checkpoints have none of, is passed over
            _varint(footer)
        found: dict[bytes, bytes] = {}
        for _, handle in self._block(table, footer):
            found |= dict(self._block(table, BytesIO(handle)))
        header = dict(_fields(found.pop(b"")))
        if header.get(2, 0):
            raise UserError(f"{self._index} was written by a big-endian machine; only little-endian files are read")
        return {name.decode(): _entry(value) for name, value in found.items()}, header[1]

    def _block(self, table: bytes, handle: BytesIO) -> Iterator[tuple[bytes, bytes]]:
        """Keys and values of the block that ``handle`` points to."""
        start, size = _varint(handle), _varint(handle)
        block, trailer = table[start : start + size], table[start + size : start + size + _TRAILER]
        compression, crc = struct.unpack("<BI", trailer)
        if _masked(crc32c(block + trailer[:1])) != crc:
            raise _damaged(self._index, "a block is not what was written")
        if compression:
            raise UserError(f"{self._index} is compressed; save the checkpoint again by tf.train.Checkpoint")
        end = size - 4 * (1 + struct.unpack("<I", block[-4:])[0])  # where the list of restarts begins
        entries, key = BytesIO(block[:end]), b""
        while entries.tell() < end:
            shared, fresh, length = (_varint(entries) for _ in range(3))
            key = key[:shared] + entries.read(fresh)
            yield key, entries.read(length)


def crc32c(data: bytes) -> int:
    """CRC-32C of ``data``, by as many lanes as each has bytes: 5 ns a byte, where a loop over bytes takes 90.

    The CRC is linear: a lane's register, moved on over as many zeros as there are bytes behind it, adds its share.
    """
    width = lanes = math.isqrt(len(data))
    columns = np.frombuffer(data, np.uint8, lanes * width).reshape(lanes, width).T
    unit = np.uint32(1) << np.arange(32, dtype=np.uint32)
    registers = np.concatenate([np.zeros(lanes, np.uint32), unit])
    for column in np.pad(columns, ((0, 0), (0, 32))):
        registers = _TABLE[(registers ^ column) & 255] ^ (registers >> 8)
    moved = registers[lanes:]  # each bit of a register after ``width`` zeros
    crc = np.uint32(0xFFFFFFFF)
    for lane in registers[:lanes]:
        crc = lane ^ np.bitwise_xor.reduce(moved[crc & unit != 0])
    for byte in data[lanes * width :]:
        crc = _TABLE[(crc ^ byte) & 255] ^ (crc >> 8)
    return int(crc) ^ 0xFFFFFFFF


def _masked(crc: int) -> int:
    """As bundles store a CRC: turned by 15 bits, plus a constant."""
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def _entry(data: bytes) -> Entry:
    """From a BundleEntryProto."""
    fields = dict(_fields(data))
    sizes = [dict(_fields(size)).get(1, 0) for number, size in _fields(fields.get(2, b"")) if number == 2]
    shard, offset, size, crc = (fields.get(number, 0) for number in (3, 4, 5, 6))
    return Entry(fields[1], tuple(sizes), shard, offset, size, crc, sliced=7 in fields)


def _fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """Number and value (a number, or bytes) of each field of a protocol buffer message."""
    message = BytesIO(data)
    while message.tell() < len(data):
        number, kind = divmod(_varint(message), 8)
        if kind == 0:
            yield number, _varint(message)
        elif kind == 2:
            yield number, message.read(_varint(message))
        else:
            yield number, int.from_bytes(message.read({1: 8, 5: 4}[kind]), "little")


def _varint(stream: BytesIO) -> int:
    """The next number, seven bits a byte. Raises ValueError where the stream ends."""
    value = shift = 0
    while True:
        (byte,) = stream.read(1)
        value, shift = value | (byte & 127) << shift, shift + 7
        if byte < 128:
            return value


def _read(path: Path, offset: int = 0, size: int = -1) -> bytes:
    try:
        with path.open("rb") as file:
            file.seek(offset)
            return file.read(size)
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}; give the prefix of a checkpoint's files") from None


def _damaged(path: Path, what: str) -> UserError:
    return UserError(f"{path} is damaged: {what}; copy the checkpoint again")
