"""Reads a store of format 5 and shares nothing with the engine: plain Python.

    python second_reader.py FOLDER

Checks every sum on the way and prints one line a record: index, shape, bytes, XXH3-64 of the bytes.
`read` returns the same as Python objects. Raises Damaged for what it does not believe.
"""

from __future__ import annotations

import struct
import sys
from collections import namedtuple
from pathlib import Path

from xxh3 import xxh3

MASK = 2**64 - 1
HEADER = struct.Struct("<4sBBHQQQ")
SLOT = struct.Struct("<4sBBBBII16s16sQQQQQIIQQQQII")
JOURNAL = struct.Struct("<4sBBHQ16sQQQQQQIIII")
# A wrong layout would take a journal that has to be redone for one that is not whole.
assert (HEADER.size, SLOT.size + 8, JOURNAL.size) == (32, 144, 96)


class Damaged(Exception):
    """The store, or one of its records, is not what its sums say."""


def word(data: bytes, at: int) -> int:
    return int.from_bytes(data[at : at + 8], "little")


def _sealed(data: bytes, size: int) -> bool:
    return len(data) >= size + 8 and word(data, size) == xxh3(data[:size])


Slot = namedtuple(
    "Slot",
    "magic version codec filter kind incompatible read_only uuid boot seq base_seq epoch length"
    " live_bytes tail_chunk tail_offset digest chunk_bytes dict_size dict_hash writer reserved",
)


class Reader:
    """An open store: `kind`, `identity`, `codec`, `length`, `record(index)`."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        head = (self.folder / "store.zr").read_bytes()
        magic, version, self.kind, zero, self.width, identity_size, zeros = HEADER.unpack_from(head)
        if magic != b"ZRTY" or version != 5 or not _sealed(head, len(head) - 8) or zero or zeros:
            raise Damaged("store.zr")
        self.identity = head[HEADER.size : HEADER.size + identity_size]
        meta = (self.folder / "meta.zr").read_bytes()
        found = [self._slot(meta[at : at + SLOT.size + 8]) for at in (0, 4096, 8192)]
        durable = max((s for s in found[:2] if s), key=lambda s: s.seq, default=None)
        if durable is None:
            raise Damaged("meta.zr: no durable slot")
        self.slot, lazy = durable, found[2]
        self.codec, self.uuid = durable.codec, durable.uuid
        self.entry_size = 24 if self.kind == 1 else 32
        self.changes: dict[int, bytes] = {}
        self.length, self.digest = durable.length, durable.digest
        self.files: dict[str, bytes] = {}
        self._apply_journal(durable.seq)
        if lazy and lazy.base_seq > durable.seq:
            raise Damaged("meta.zr: a durable slot was lost")
        if self.codec == 2:
            dictionary = (self.folder / "dict.zr").read_bytes()
            if len(dictionary) != durable.dict_size or xxh3(dictionary) != durable.dict_hash:
                raise Damaged("dict.zr")
            self.dictionary = dictionary
        if lazy and lazy.base_seq == durable.seq and not self.changes and self._holds(lazy):
            self.length, self.digest = lazy.length, lazy.digest

    def _slot(self, data: bytes) -> Slot | None:
        if not _sealed(data, SLOT.size):
            return None
        slot = Slot(*SLOT.unpack_from(data))
        if slot.magic != b"ZREC":
            return None
        if (
            slot.version != 5
            or slot.filter
            or slot.incompatible
            or slot.reserved
            or slot.kind != self.kind
        ):
            raise Damaged("meta.zr: not format 5")
        return slot

    def _apply_journal(self, seq: int) -> None:
        data = (self.folder / "journal.zr").read_bytes()
        if len(data) < JOURNAL.size or data[:5] != b"ZRJL\5":
            return
        _, _, _, _, count, uuid, base, _, length, _, digest, *_ = JOURNAL.unpack_from(data)
        step = 8 + self.entry_size
        if uuid != self.uuid or not _sealed(
            data[: JOURNAL.size + count * step + 8], JOURNAL.size + count * step
        ):
            return
        if base > seq:
            raise Damaged("meta.zr: a durable slot was lost")
        if base == seq:
            for at in range(JOURNAL.size, JOURNAL.size + count * step, step):
                self.changes[word(data, at)] = data[at + 8 : at + step]
            self.length, self.digest = length, digest

    def _holds(self, lazy: Slot) -> bool:
        try:
            for index in range(self.length, lazy.length):
                self.record(index)
        except Damaged:
            return False
        fresh = range(self.length, lazy.length)
        return (self.digest + sum(xxh3(self.entry(i), i) for i in fresh)) & MASK == lazy.digest

    def _read(self, name: str, at: int, size: int) -> bytes:
        if name not in self.files:
            path = self.folder / name
            self.files[name] = path.read_bytes() if path.exists() else b""
        data = self.files[name][at : at + size]
        if len(data) != size:
            raise Damaged(f"{name}: shorter than {at + size} bytes")
        return data

    def entry(self, index: int) -> bytes:
        """The table entry of a record, as it lies there."""
        if index in self.changes:
            return self.changes[index]
        return self._read(
            f"{index >> 28}.loc", (index & 0xFFFFFFF) * self.entry_size, self.entry_size
        )

    def table_holds(self) -> bool:
        """Whether the whole table has the committed digest."""
        return sum(xxh3(self.entry(i), i) for i in range(self.length)) & MASK == self.digest

    def record(self, index: int) -> tuple[tuple[int, ...], bytes]:
        """Shape (ragged; empty for dense) and payload."""
        entry = self.entry(index)
        offset, stored_size, size, chunk = struct.unpack_from("<IIII", entry)
        stored = self._read(f"{chunk}.chunk", offset, stored_size)
        bound = self.uuid + index.to_bytes(8, "little") + entry[:-8]
        if xxh3(stored) ^ xxh3(bound) != word(entry, len(entry) - 8):
            raise Damaged(f"record {index}: sum")
        shape: tuple[int, ...] = ()
        if self.kind == 2:
            rank, first, items = entry[16], word(entry, 16) >> 8, size // self.width
            if rank >= 3:
                shape = struct.unpack(f"<{rank}Q", stored[-8 * rank :])
                stored = stored[: -8 * rank]
            elif rank:
                shape = (first,) if rank == 1 else (first, items // first)
        payload = stored if self.codec == 0 else self._decode(stored)
        if len(payload) != size:
            raise Damaged(f"record {index}: {len(payload)} bytes, expected {size}")
        return shape, payload

    def _decode(self, frame: bytes) -> bytes:
        try:
            try:
                from compression import zstd  # Python 3.14
            except ImportError:
                from backports import zstd
        except ImportError:
            import zstandard

            known = zstandard.ZstdCompressionDict(self.dictionary) if self.codec == 2 else None
            return zstandard.ZstdDecompressor(dict_data=known).decompress(frame)
        trained = self.codec == 2 and self.dictionary.startswith(b"\x37\xa4\x30\xec")
        known = zstd.ZstdDict(self.dictionary, is_raw=not trained) if self.codec == 2 else None
        return zstd.decompress(frame, zstd_dict=known)


def read(folder: str | Path) -> list[tuple[tuple[int, ...], bytes]]:
    """All records, after checking the whole table."""
    reader = Reader(folder)
    if not reader.table_holds():
        raise Damaged("the record table does not have its digest")
    return [reader.record(index) for index in range(reader.length)]


if __name__ == "__main__":
    for number, (dims, data) in enumerate(read(sys.argv[1])):
        print(number, dims, len(data), f"{xxh3(data):016x}")
