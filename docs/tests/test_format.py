"""The tables of the format page are those of the source, and each field has the place they say."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[1]
SOURCE = (DOCS.parent / "native/src/zrecord/format.zig").read_text("utf-8")
PAGE = (DOCS / "zrecord/format.md").read_text("utf-8")
HEAD = ["| offset | size | field |", "|---|---|---|"]
SIZES = {"u8": 1, "u16": 2, "u32": 4, "u64": 8}


def source_tables() -> dict[str, list[str]]:
    found = {}
    for comment, name in re.findall(r"((?:/// \|.*\n)+)pub const (\w+) =", SOURCE):
        found[name] = [line.removeprefix("/// ") for line in comment.splitlines()]
    return found


def page_tables() -> dict[str, list[str]]:
    """Return the tables of fields, by the last word of the heading they stand under."""
    found = {}
    name = ""
    for part in PAGE.split("\n\n"):
        lines = part.strip().splitlines()
        if lines[0].startswith("#"):
            name = re.split(r"[ :]+", lines[0])[-1]
        elif lines[:2] == HEAD:
            found[name] = lines
    return found


def structure(name: str) -> list[tuple[str, int]]:
    """Return the fields of an extern struct, with their sizes."""
    body = re.search(
        rf"pub const {name} = extern struct \{{\n(.*?)\n\n", SOURCE, re.DOTALL
    )[1]
    fields = []
    for field, kind in re.findall(r"^    (\w+): ([\[\]\w]+)", body, re.MULTILINE):
        many = re.fullmatch(r"\[(\d+)\]u8", kind)
        fields.append((field, int(many[1]) if many else SIZES[kind]))
    return fields


TABLES = source_tables()


def test_every_structure_has_a_table():
    structures = re.findall(r"pub const (\w+) = extern struct", SOURCE)
    assert sorted(TABLES) == sorted(structures)
    assert sorted(page_tables()) == sorted(structures)


@pytest.mark.parametrize("name", TABLES)
def test_the_page_has_the_table_of_the_source(name):
    assert TABLES[name][:2] == HEAD
    assert page_tables()[name] == TABLES[name]


@pytest.mark.parametrize("name", TABLES)
def test_the_table_has_the_fields_of_the_structure(name):
    offset = 0
    rows = [re.split(r" *\| *", row.strip("| ")) for row in TABLES[name][2:]]
    for (field, size), (at, row_size, words) in zip(
        structure(name), rows, strict=False
    ):
        assert (int(at), int(row_size)) == (offset, size), f"{name}.{field}"
        shown = re.match(r"\w+", words)[0]
        assert field in (shown, f"{shown}_{offset}") or (
            field == "sum" and "XXH3-64" in words
        )
        offset += size


def test_the_version():
    version = re.search(r"pub const version = (\d+);", SOURCE)[1]
    assert f"\nVersion {version}. " in PAGE


def test_codes_on_the_page():
    for name, pattern in (("Kind", r"(\w+) = (\d+)"), ("Codec", r"(\w+) = (\d+)")):
        body = re.search(
            rf"pub const {name} = enum\(u8\) \{{(.*?)(pub|\}})", SOURCE, re.DOTALL
        )[1]
        row = next(row for row in TABLES["Slot" if name == "Codec" else "TypedHeader"]
                   if name.lower() in row)  # fmt: skip
        for code, number in re.findall(pattern, body):
            words = code.replace("zstd_dict", "zstd with dictionary")
            assert f"{number} {words}" in row


def test_places_that_the_page_names():
    assert re.search(r"slot_size = 4096;", SOURCE)
    assert "lazy_slot_offset = 2 * slot_size;" in SOURCE
    assert "D1 at 4096" in PAGE
    assert "L at 8192" in PAGE
