"""Holds the headers of the C interfaces to include/abi.txt.

    python abi.py           compare, and report each difference
    python abi.py --write   bring the list up to date

Every built library is held to the same list by packages/check_wheel.py, and the code to the headers
by header_test.zig.

The list has one line an item, by the version of its interface. What a program that was compiled
against the list relies on may change only when the version in the header is raised: a function, its
parameters, a constant's value, a field's place. What such a program cannot notice is only to be
added to the list: a function, a constant, a field at the end of a struct that carries its size.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import NamedTuple

import cffi

_INCLUDE = Path(__file__).resolve().parents[1] / "include"
_LIST = _INCLUDE / "abi.txt"
_LIBRARIES = {"zrecord": "ZR", "zsampler": "ZS"}

# What is returned, the name (of a callback in parentheses), the parameters.
_DECLARATION = re.compile(r"\s*(typedef )?([^()]+?)(\(\*\w+\)|\bz[rs]_\w+) ?\((.*)\)")

_HEADING = """\
# The C interfaces of both libraries as programs were compiled against them.
# `python native/test/abi.py --write` adds what is new, and refuses to change what is not.
"""


class Interface(NamedTuple):
    """A library's interface: its version, and its items by name."""

    version: int
    items: dict[str, str]

    def lines(self, library: str) -> list[str]:
        """Return the lines of the list."""
        return [
            f"{library} version = {self.version}",
            *(f"{library} {name} = {value}" for name, value in self.items.items()),
        ]


def interface(library: str, header: str) -> Interface:
    """Read a header: the functions as text, constants and layouts as cffi compiles them."""
    prefix = _LIBRARIES[library]
    version = re.search(rf"#define {prefix}_ABI_VERSION (\d+)", header)
    region = re.search(r"/\* CFFI-BEGIN \*/(.*)/\* CFFI-END \*/", header, re.DOTALL)
    assert version, f"{library}.h defines no {prefix}_ABI_VERSION"
    assert region, f"{library}.h has no region for bindings"
    ffi = cffi.FFI()
    ffi.cdef(region[1])
    text = " ".join(re.sub(r"/\*.*?\*/", " ", region[1], flags=re.DOTALL).split())
    items = {}
    for statement in re.sub(r"\{[^}]*\}", "", text).split(";"):
        called = re.fullmatch(
            r"\s*(typedef )?([^()]+?)(\(\*\w+\)|\bz[rs]_\w+) ?\((.*)\)", statement
        )
        if called:
            # The names of parameters are no part of the interface.
            types = [re.sub(r"(?<=[ *])\w+$", "", part.strip()) for part in called[4].split(",")]
            kind = "callback" if called[1] else "function"
            name = called[3].strip("(*)")
            value = f"{called[2].strip()} ({', '.join(part.strip() for part in types)})"
            items[f"{kind} {name}"] = value
    typedefs, structs, _ = ffi.list_types()
    for name in re.findall(r"enum (\w+) \{", text):
        for number, constant in sorted(ffi.typeof(f"enum {name}").elements.items()):
            items[f"constant {constant}"] = f"{number} of {name}"
    for name in sorted({*typedefs, *structs} - {"zr_progress", "zr_finding"}):
        fields = ffi.typeof(name).fields
        if fields is None:  # a handle, known by its pointer only
            continue
        items[f"struct {name}"] = f"{ffi.sizeof(name)} bytes"
        for field, place in fields:
            value = f"{place.type.cname} at {place.offset}"
            items[f"field {name}.{field}"] = value
    return Interface(int(version[1]), items)


def read_list(text: str) -> dict[str, Interface]:
    """Read the committed list."""
    listed = {library: Interface(0, {}) for library in _LIBRARIES}
    for line in text.splitlines():
        if line.startswith("#"):
            continue
        name, _, value = line.partition(" = ")
        library, _, item = name.partition(" ")
        if item == "version":
            listed[library] = Interface(int(value), {})
        else:
            listed[library].items[item] = value
    return listed


def breaks(library: str, listed: Interface, declared: Interface) -> list[str]:
    """Return how programs that were compiled against the list would break."""
    found = []
    for item, before in listed.items.items():
        now = declared.items.get(item)
        kind, _, name = item.partition(" ")
        grows = kind == "struct" and library == "zrecord" and _carries_size(name, listed, declared)
        longer = grows and now and int(now.split()[0]) > int(before.split()[0])
        if now is None:
            found.append(f"{item} is gone")
        elif now != before and not longer:
            found.append(f"{item} was {before}, is {now}")
    sizes = {item: int(v.split()[0]) for item, v in listed.items.items() if item[:6] == "struct"}
    for item, now in declared.items.items():
        kind, _, name = item.partition(" ")
        size = sizes.get(f"struct {name.partition('.')[0]}")
        if kind == "field" and item not in listed.items and size is not None:
            offset = int(now.rpartition(" ")[2])
            if offset < size:
                found.append(f"{item} lies within the struct's {size} bytes")
    return found


def _carries_size(name: str, *interfaces: Interface) -> bool:
    """Tell whether a struct of libzrecord may grow. libzsampler takes its own sizes only."""
    return all(i.items.get(f"field {name}.size") == "uint64_t at 0" for i in interfaces)


def compare(library: str, listed: Interface, declared: Interface) -> list[str]:
    """Return what has to be done before list and header agree."""
    if declared.version < listed.version:
        return [f"{library}: version {declared.version} is below the list's {listed.version}"]
    broken = breaks(library, listed, declared) if declared.version == listed.version else []
    if broken:
        advice = f"take it back, or raise {_LIBRARIES[library]}_ABI_VERSION and abi_version"
        return [f"{library}: {change}; {advice}" for change in broken]
    if declared != listed:
        different = sorted({*declared.lines(library)} ^ {*listed.lines(library)})
        return [f"not in both: {line}; run abi.py --write" for line in different]
    return []


def check_that_breaks_are_seen(library: str, header: str) -> int:
    """Change the header in every way that breaks programs, one at a time: each must be seen."""
    listed = interface(library, header)
    changed = []
    for item in listed.items:
        kind, _, name = item.partition(" ")
        if kind == "function":
            changed.append(re.sub(rf"\n[^\n/]*\b{name}\([^;]*;", "", header))
            without = header.replace(f"{name}(void)", f"{name}()")
            more = re.sub(rf"\b{name}\((?!\))", f"{name}(int32_t more, ", without)
            changed.append(more.replace(f"{name}()", f"{name}(int32_t more)"))
        elif kind == "constant":
            changed.append(re.sub(rf"\b{name} = \d+", f"{name} = 77", header))
            changed.append(re.sub(rf"\b{name} = ", f"{name}_NEW = ", header))
        elif kind == "field":
            struct, _, field = name.partition(".")
            start = header.index(f"typedef struct {struct} {{")
            line = re.compile(rf"[^{{;]*\b{field}(\[16\])?;").search(header, start)
            assert line is not None
            before, after = header[: line.start()], header[line.end() :]
            changed += [before + after, before + "\n    uint64_t moved_in;" + line[0] + after]
    _check_that_additions_pass(library, header, listed)
    for text in changed:
        assert text != header, "a change that changes nothing proves nothing"
        declared = interface(library, text)
        assert breaks(library, listed, declared), f"a break passes for compatible:\n{text}"
    return len(changed)


def _check_that_additions_pass(library: str, header: str, listed: Interface) -> None:
    prefix = _LIBRARIES[library]
    added = f"enum added {{ {prefix}_ADDED = 7 }}; int32_t {prefix.lower()}_added(void); "
    text = header.replace("/* CFFI-END", added + "/* CFFI-END")
    if library == "zrecord":
        text = text.replace("} zr_stats;", "uint64_t added_last; } zr_stats;")
    declared = interface(library, text)
    assert not breaks(library, listed, declared), "an addition passes for a break"
    assert all("--write" in line for line in compare(library, listed, declared))
    assert compare(library, listed, declared), "an addition that the list lacks is not seen"


def main(arguments: list[str]) -> int:
    """Compare everything; return how many differences there are."""
    listed = read_list(_LIST.read_text("utf-8") if _LIST.exists() else "")
    differences, written = [], []
    for library in _LIBRARIES:
        header = (_INCLUDE / f"{library}.h").read_text("utf-8")
        declared = interface(library, header)
        found = compare(library, listed[library], declared)
        if "--write" in arguments:
            found = [line for line in found if not line.endswith("--write")]
            written += declared.lines(library)
        differences += found
        count = check_that_breaks_are_seen(library, header)
        print(f"lib{library}: version {declared.version}, {len(declared.items)} items; ", end="")
        print(f"{count} changes that break programs are all seen")
    if "--write" in arguments and not differences:
        _LIST.write_text(_HEADING + "\n".join(written) + "\n", "utf-8")
    for difference in differences:
        print(difference, file=sys.stderr)
    return min(len(differences), 1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
