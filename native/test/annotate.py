"""Writes out every byte of a small store with the names of its fields, and compares golden stores.

    python annotate.py FOLDER    prints the bytes of one store, then its records
    python annotate.py           compares each folder in testdata/ with the text beside it

Runs of zeros are one line. The second reader supplies the records, so a text fixes both.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

from second_reader import HEADER, JOURNAL, SLOT, Reader, word
from xxh3 import xxh3

HEADER_FIELDS = "magic version kind reserved record_width identity_size reserved"
SLOT_FIELDS = (
    "magic version codec filter kind features_incompatible features_read_only uuid boot_id seq"
    " base_seq epoch length live_bytes tail_chunk tail_offset table_digest chunk_bytes dict_size"
    " dict_hash writer_version reserved sum"
)
JOURNAL_FIELDS = (
    "magic version kind reserved count uuid base_seq epoch length live_bytes table_digest"
    " chunk_bytes tail_chunk tail_offset retired_chunk reserved"
)
ENTRY_FIELDS = {
    24: ("<IIIIQ", "offset stored_size logical_size chunk sum"),
    32: ("<IIIIQQ", "offset stored_size logical_size chunk shape sum"),
}


def _fields(layout: str, names: str, data: bytes, at: int) -> Iterator[str]:
    parts = struct.unpack_from(layout, data, at)
    codes = list(layout.lstrip("<").replace("16s", "U").replace("4s", "M"))
    for code, name, value in zip(codes, names.split(), parts, strict=True):
        size = {"U": 16, "M": 4}.get(code) or struct.calcsize("<" + code)
        shown = value.hex() if code == "U" else value.decode("latin-1") if code == "M" else value
        yield f"{at:6d} {size:2d}  {data[at : at + size].hex():32s}  {name} = {shown}"
        at += size


def _plain(data: bytes, at: int, end: int, name: str) -> Iterator[str]:
    """Bytes without structure; rows of zeros in one line."""
    rows = [(start, data[start : min(start + 16, end)]) for start in range(at, end, 16)]
    for has_content, run in groupby(rows, key=lambda row: any(row[1])):
        if has_content:
            for start, row in run:
                yield f"{start:6d} {len(row):2d}  {row.hex():32s}  {name}"
        else:
            sizes = [(start, len(row)) for start, row in run]
            yield f"{sizes[0][0]:6d} {sum(size for _, size in sizes):2d}  zeros"


def _store(data: bytes, _: Reader) -> Iterator[str]:
    yield from _fields(HEADER.format, HEADER_FIELDS, data, 0)
    yield from _plain(data, HEADER.size, len(data) - 8, "identity")
    yield from _fields("<Q", "sum", data, len(data) - 8)


def _meta(data: bytes, _: Reader) -> Iterator[str]:
    for at in range(0, 16384, 4096):
        used = at
        if data[at : at + 4] == b"ZREC":
            yield from _fields(SLOT.format + "Q", SLOT_FIELDS, data, at)
            used += SLOT.size + 8
        yield from _plain(data, used, at + 4096, "")


def _journal(data: bytes, reader: Reader) -> Iterator[str]:
    end = 0
    if data[:4] == b"ZRJL":
        yield from _fields(JOURNAL.format, JOURNAL_FIELDS, data, 0)
        layout, names = ENTRY_FIELDS[reader.entry_size]
        end = JOURNAL.size
        for _ in range(word(data, 8)):
            yield from _fields("<Q" + layout[1:], "index " + names, data, end)
            end += 8 + reader.entry_size
        yield from _fields("<Q", "sum", data, end)
        end += 8
    yield from _plain(data, end, len(data), "older journal")


def _segment(data: bytes, reader: Reader) -> Iterator[str]:
    layout, names = ENTRY_FIELDS[reader.entry_size]
    for at in range(0, len(data), reader.entry_size):
        yield f"entry {at // reader.entry_size}"
        yield from _fields(layout, names, data, at)


def _bytes(data: bytes, _: Reader) -> Iterator[str]:
    yield from _plain(data, 0, len(data), "stored bytes")


def annotate(folder: Path) -> str:
    """Return the whole store as text."""
    reader = Reader(folder)
    writers = {"store.zr": _store, "meta.zr": _meta, "journal.zr": _journal}
    lines = []
    for path in sorted(folder.iterdir()):
        data = path.read_bytes()
        lines += ["", f"{path.name}, {len(data)} bytes"]
        write = writers.get(path.name) or (_segment if path.suffix == ".loc" else _bytes)
        lines += write(data, reader)
    lines += ["", f"{reader.length} records: index, shape, bytes, XXH3-64 of the bytes"]
    for index in range(reader.length):
        shape, payload = reader.record(index)
        lines.append(f"{index:3d}  {shape}  {len(payload)}  {xxh3(payload):016x}")
    lines.append(f"table digest {'holds' if reader.table_holds() else 'FAILS'}")
    return "\n".join(line.rstrip() for line in lines[1:]) + "\n"


def main() -> int:
    if len(sys.argv) > 1:
        print(annotate(Path(sys.argv[1])), end="")
        return 0
    passed = failed = 0
    for text in sorted(Path(__file__).with_name("testdata").glob("*.txt")):
        same = annotate(text.with_suffix("")) == text.read_text()
        print(f"{text.stem}: {'as it was' if same else 'DIFFERS'}")
        passed, failed = passed + same, failed + (not same)
    print(f"{passed} passed, {failed} failed")
    return 0 if passed and not failed else 1


if __name__ == "__main__":
    sys.exit(main())
