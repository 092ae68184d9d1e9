"""Every dtype comes back as it was; what a store says of its type is not trusted."""

from __future__ import annotations

import sys

import msgpack
import numpy as np
import pytest
from conftest import assert_same, assert_same_list
from zrecord import CorruptStore, DenseStore, RaggedStore, UnsupportedFormat
from zrecord._identity import as_dtype, decode, encode, same_dtype

PADDED = {"names": ["a", "b"], "formats": ["<u4", "u1"], "offsets": [0, 4], "itemsize": 8}
OVERLAID = {"names": ["whole", "low"], "formats": ["<u4", "<u2"], "offsets": [0, 0]}
SWAPPED = {"names": ["b", "a"], "formats": ["u1", "<u4"], "offsets": [4, 0], "itemsize": 9}
DTYPES = [
    *("?", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8"),
    *(">i2", ">u2", ">i4", ">u4", ">i8", ">u8"),
    *("f2", "f4", "f8", ">f2", ">f4", ">f8", "g", "c8", "c16", ">c8", ">c16", "G"),
    *("q", "Q", "l", "L", "intc", "uintp"),
    *("M8[D]", "M8[ns]", "m8[s]", "m8[25us]", ">M8[7D]", "M8", "m8", "m8[W]", "M8[Y]", "m8[as]"),
    *("S1", "S5", "U1", "U7", ">U3", "V1", "V16"),
    [("x", "f4"), ("y", ">i2")],
    PADDED,
    OVERLAID,
    SWAPPED,
    np.dtype([("a", "u1"), ("b", "f8"), ("c", "u1")], align=True),
    [("a", "f4", (3, 2)), ("b", "u1", (1,))],
    [("outer", [("inner", [("leaf", "M8[ms]"), ("text", "U2")]), ("n", "i1", (2,))]), ("z", "S3")],
    [("inner", PADDED), ("aligned", np.dtype([("a", "u1"), ("b", "i8")], align=True), (2,))],
    [("größe", "f4"), ("名前", "i4"), ("with space", "u1")],
    [("one", "?")],
    {"names": [], "formats": [], "offsets": [], "itemsize": 4},
]


def _random(dtype: np.dtype, shape: tuple[int, ...]) -> np.ndarray:
    """Values of any type, made of harmless random bytes; the padding is not compared."""
    values = np.zeros(shape, dtype)
    if dtype.names is None and dtype.kind in "US":
        values[...] = np.array(["ab", "", "ü" if dtype.kind == "U" else "z"])[
            np.arange(values.size).reshape(shape) % 3
        ]
    elif dtype.names is not None:
        for number, name in enumerate(dtype.names):
            if values[name].dtype.kind in "biufc":
                values[name] = number + 1
    elif dtype.kind == "V":
        values.reshape(-1).view(np.uint8)[:] = np.arange(values.nbytes) % 251
    else:
        values.reshape(-1).view(np.uint8)[:: dtype.itemsize] = np.arange(values.size) % 2
    return values


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_dtype_round_trips_exactly(tmp_path, dtype):
    dtype = np.dtype(dtype)
    rows = _random(dtype, (4, 3))
    with DenseStore(tmp_path / "d", dtype, (3,)) as store:
        assert store.dtype == dtype
        store.append(rows)
    with DenseStore(tmp_path / "d", mode="r") as store:
        _assert_equal(store.dtype, dtype)
        assert_same(store[:], rows)
        assert_same(store[2], rows[2])
    with RaggedStore(tmp_path / "r", dtype) as store:
        store.append([rows[0], rows[:2], rows[3, 0:1].reshape(())])
    with RaggedStore(tmp_path / "r", dtype, mode="r") as store:
        _assert_equal(store.dtype, dtype)
        assert_same_list(store[:], [rows[0], rows[:2], rows[3, 0:1].reshape(())])
    DenseStore(tmp_path / "d", dtype, (3,)).close()


def _assert_equal(got: np.dtype, expected: np.dtype) -> None:
    assert got == expected
    assert got.str == expected.str
    assert got.itemsize == expected.itemsize
    assert got.isalignedstruct == expected.isalignedstruct
    assert got.alignment == expected.alignment
    assert got.names == expected.names
    for name in expected.names or ():
        assert got.fields[name][1] == expected.fields[name][1]
        base, other = got.fields[name][0], expected.fields[name][0]
        assert base.shape == other.shape
        _assert_equal(base.base, other.base)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_stored_bytes_are_canonical(dtype):
    dtype = np.dtype(dtype)
    encoded = encode(as_dtype(dtype), (3,))
    again, shape = decode(encoded, True, "path")
    assert shape == (3,)
    assert encode(again, shape) == encoded
    assert set(msgpack.unpackb(encoded)) == {"dtype", "item_shape"}
    ragged = encode(as_dtype(dtype), None)
    assert set(msgpack.unpackb(ragged)) == {"dtype"}
    assert decode(ragged, False, "path") == (again, ())


def test_one_dtype_spelled_in_many_ways_is_stored_once():
    for spellings in (
        ["i4", "<i4", np.int32, np.intc, "int32", np.dtype("i4", metadata={"a": 1})],
        ["?", bool, np.bool_, "bool", "|b1"],
        [[("x", "f4")], {"names": ["x"], "formats": ["f4"]}, np.dtype((np.record, [("x", "f4")]))],
        ["f8", float, "d", "double"],
    ):
        assert len({encode(as_dtype(spelling), None) for spelling in spellings}) == 1


def test_plain_types_are_stored_under_the_names_numpy_gives_them():
    dense = msgpack.unpackb(encode(np.dtype("<f4"), (2, 3)))
    assert dense == {"dtype": "<f4", "item_shape": [2, 3]}
    assert msgpack.unpackb(encode(np.dtype("|u1"), None)) == {"dtype": "|u1"}


def test_values_that_are_easily_lost(tmp_path):
    days = np.array(["2020-02-29", "NaT", "1969-12-31"], "M8[D]")
    with DenseStore(tmp_path / "days", "M8[D]", ()) as store:
        store.append(days)
        assert_same(store[:], days)
        assert np.isnat(store[1])
    special = np.array([0.0, -0.0, np.inf, -np.inf, np.nan], "f4")
    special.view("u4")[4] = 0x7FC12345
    with RaggedStore(tmp_path / "special", "f4") as store:
        store.append([special])
        assert_same(store[0], special)
    texts = np.array(["", "a\0b", "a\0", "ü"], "U3")
    with DenseStore(tmp_path / "texts", "U3", ()) as store:
        store.append(texts)
        assert_same(store[:], texts)


def test_a_padded_structure_keeps_its_padding_bytes(tmp_path):
    dtype = np.dtype(PADDED)
    rows = np.frombuffer(bytes(range(40)), dtype)
    with DenseStore(tmp_path / "s", dtype, ()) as store:
        store.append(rows)
        assert_same(store[:], rows)
        assert store.dtype == dtype


@pytest.mark.parametrize("dtype", [np.longdouble, np.clongdouble])
def test_a_long_double_of_another_machine_is_refused(dtype):
    encoded = encode(np.dtype(dtype), None)
    name = msgpack.unpackb(encoded)["dtype"]
    if ":" not in name:
        pytest.skip("a long double is a double here, and stored as one")
    other = msgpack.packb({"dtype": name.split(":")[0] + ":106"})
    with pytest.raises(UnsupportedFormat, match="106 bits"):
        decode(other, False, "path")


def test_bfloat16_by_name(tmp_path):
    ml_dtypes = pytest.importorskip("ml_dtypes", reason="the package ml_dtypes is not installed")
    rows = np.array([42, -1.5, np.nan], ml_dtypes.bfloat16)
    with DenseStore(tmp_path / "s", ml_dtypes.bfloat16, ()) as store:
        store.append(rows)
    with DenseStore(tmp_path / "s", mode="r") as store:
        assert store.dtype == ml_dtypes.bfloat16
        assert store[0] == 42
        assert_same(store[:], rows)
        assert store.fingerprint[3]["dtype"] == "bfloat16"
    with DenseStore(tmp_path / "s", "bfloat16", ()) as store:
        for wrong in (rows.view("V2"), rows.view("u2"), rows.view("f2")):
            with pytest.raises(TypeError):
                store.append(wrong)
    with DenseStore(tmp_path / "v", "V2", ()) as store, pytest.raises(TypeError):
        store.append(rows)
    struct = np.dtype([("a", ml_dtypes.bfloat16), ("b", "f4")])
    with RaggedStore(tmp_path / "r", struct) as store:
        assert store.dtype == struct
        store.append([np.ones(3, struct)])
        assert_same(store[0], np.ones(3, struct))
    with pytest.raises(TypeError, match="float8"):
        DenseStore(tmp_path / "t", ml_dtypes.float8_e5m2, ())


def test_bfloat16_without_its_package_is_a_clear_error(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    with pytest.raises(UnsupportedFormat, match="ml_dtypes"):
        decode(msgpack.packb({"dtype": "bfloat16"}), False, "path")
    with pytest.raises(TypeError, match="ml_dtypes"):
        DenseStore(tmp_path / "s", "bfloat16", ())


@pytest.mark.parametrize(
    ("dtype", "error"),
    [
        (object, TypeError),
        ([("a", "f4"), ("b", object)], TypeError),
        ([("a", [("b", object)])], TypeError),
        ([("a", object, (2,))], TypeError),
        ([(("title", "name"), "f4")], TypeError),
        ([("a", [(("title", "name"), "f4")])], TypeError),
        (("f4", (2,)), TypeError),
        ("S", ValueError),
        ("U", ValueError),
        ("V", ValueError),
        ("S0", ValueError),
        ([], ValueError),
        ([("a", "S0")], ValueError),
        ("nonsense", TypeError),
        ([("a\ud800", "f4")], TypeError),
        (f"V{2**31 - 1}", None),
    ],
    ids=lambda value: str(value).encode("ascii", "replace").decode()[:40],
)
def test_what_is_no_record_type_creates_nothing(tmp_path, dtype, error):
    if error is None:
        assert as_dtype(dtype).itemsize == 2**31 - 1
        return
    with pytest.raises(error):
        DenseStore(tmp_path / "s", dtype, ())
    with pytest.raises(error):
        RaggedStore(tmp_path / "s", dtype)
    assert list(tmp_path.iterdir()) == []


def test_a_top_level_sub_array_gets_the_advice(tmp_path):
    with pytest.raises(TypeError, match=r"item_shape \(2, 3\)"):
        DenseStore(tmp_path / "s", ("f4", (2, 3)), ())


def test_strings_of_variable_size_are_refused(tmp_path):
    if not hasattr(np.dtypes, "StringDType"):
        pytest.skip("this numpy has no StringDType")
    with pytest.raises(TypeError):
        RaggedStore(tmp_path / "s", np.dtypes.StringDType())


def test_structures_that_differ_in_layout_only_are_different(tmp_path):
    packed = np.dtype([("a", "u1"), ("b", "<u4")])
    padded = np.dtype([("a", "u1"), ("b", "<u4")], align=True)
    later = np.dtype({"names": ["a", "b"], "formats": ["u1", "<u4"], "offsets": [4, 0]})
    longer = np.dtype(
        {"names": ["a", "b"], "formats": ["u1", "<u4"], "offsets": [0, 1], "itemsize": 6}
    )
    with DenseStore(tmp_path / "s", packed, ()) as store:
        for other in (padded, later, longer, np.dtype([("x", "u1"), ("b", "<u4")])):
            with pytest.raises(TypeError):
                store.append(np.zeros(1, other))
            with pytest.raises(ValueError, match="dtype"):
                DenseStore(tmp_path / "s", other, ())
        store.append(np.zeros(1, packed))
    aligned = np.dtype([("b", "<u4"), ("a", "<u4")], align=True)
    assert same_dtype(aligned, np.dtype([("b", "<u4"), ("a", "<u4")]))


def test_too_many_fields_are_refused(tmp_path):
    fields = [(f"a field with a long name and the number {i}", "u1") for i in range(2000)]
    with pytest.raises(ValueError, match="65536"):
        RaggedStore(tmp_path / "s", fields)
    assert list(tmp_path.iterdir()) == []


def test_too_deep_a_nesting_is_refused(tmp_path):
    dtype = np.dtype("u1")
    for _ in range(40):
        dtype = np.dtype([("a", dtype)])
    with pytest.raises(TypeError, match="deep"):
        RaggedStore(tmp_path / "s", dtype)


def _struct(**changes):
    return {"names": ["a"], "formats": ["<f4"], "offsets": [0], "itemsize": 4} | changes


HOSTILE = [
    *("|O", "O", "|O8", "f4", "=f4", "float32", "<f3", "<i1", "|i4", "", "<", "<f4 ", "<f4,<f4"),
    *("2<f4", "<M8[qq]", "<M8[s][s]", "<V8", "|V0", "|S0", "<U0", "<S4", "|b2", "|S9999999999"),
    *("<U999999999", "<f4[s]", "<M8[0s]", "<M8[1s]"),
    *("<f4\0", "os.system('x')", "<f16:63:1", "<f16", "<c32:63x", "bfloat17"),
    *(None, 5, 1.5, True, b"<f4", [], {}, ["<f4"], ["<f4", [2]], ["<f4", 2], [["<f4", [2]], [2]]),
    _struct(names=["a", "b"]),
    _struct(names=["a", "a"], formats=["<f4", "<f4"], offsets=[0, 4], itemsize=8),
    _struct(names=[5]),
    _struct(names="a"),
    _struct(names=None),
    _struct(formats=["|O"]),
    _struct(formats=[["|O", [2]]]),
    _struct(formats=[["<f4", [-1]]]),
    _struct(formats=[["<f4", [2**40]]], itemsize=2**42),
    _struct(formats=[["<f4", 1]]),
    _struct(formats="<f4"),
    _struct(offsets=[-4]),
    _struct(offsets=[0.0]),
    _struct(offsets=[2**62]),
    _struct(offsets=[1]),
    _struct(itemsize=3),
    _struct(itemsize=0, names=[], formats=[], offsets=[]),
    _struct(itemsize=2**31),
    _struct(itemsize=2**70 // 2**7),
    _struct(aligned=False),
    _struct(aligned=1),
    _struct(aligned=True, formats=["<f4"], offsets=[1], itemsize=5),
    _struct(titles=["b"]),
    _struct(extra=1),
    {"names": ["a"]},
]


@pytest.mark.parametrize("description", HOSTILE, ids=lambda value: repr(value)[:50])
def test_a_hostile_description_is_refused(description):
    with pytest.raises((CorruptStore, UnsupportedFormat), match="path"):
        decode(msgpack.packb({"dtype": description}), False, "path")


@pytest.mark.parametrize(
    "identity",
    [
        {},
        [],
        None,
        "<f4",
        {"dtype": "<f4"},
        {"item_shape": [2]},
        {"dtype": "<f4", "item_shape": [2], "user": 1},
        {"dtype": "<f4", "item_shape": None},
        {"dtype": "<f4", "item_shape": 2},
        {"dtype": "<f4", "item_shape": [0]},
        {"dtype": "<f4", "item_shape": [-2]},
        {"dtype": "<f4", "item_shape": [2.0]},
        {"dtype": "<f4", "item_shape": [True]},
        {"dtype": "<f4", "item_shape": ["2"]},
        {"dtype": "<f4", "item_shape": [1] * 40},
        {"dtype": "<f4", "item_shape": [2**20, 2**20]},
        {1: 2},
    ],
    ids=repr,
)
def test_a_hostile_dense_identity_is_refused(identity):
    with pytest.raises(CorruptStore, match="path"):
        decode(msgpack.packb(identity), True, "path")


@pytest.mark.parametrize(
    "encoded",
    [
        b"",
        b"\xc1",
        b"\x81",
        b"\x81\xa5dtype\xa3<f4\x00",
        b"\x82\xa5dtype\xa3<f4\xa5dtype\xa3<f8",
        b"\x81\xa5dtype\xdd\xff\xff\xff\xff",
        b"\x81\xa5dtype\xdf\xff\xff\xff\xff",
        b"\x81\xa5dtype\xdb\xff\xff\xff\xff",
        b"\x81\xa5dtype\xc7\x01\x05\x00",
        b"\x81\xa5dtype\xd6\xff\x00\x00\x00\x00",
        b"\x81\xa5dtype\xa3\xff\xfe\xfd",
        b"\x91" * 60_000 + b"\xc0",
        b"\x81\xa5dtype" + b"\x91" * 1000 + b"\xc0",
        b"\x81\xa5dtype" + b"\x92" * 500 + b"\xa3<f4" + b"\x91\x02" * 500,
    ],
    ids=lambda value: repr(value)[:40],
)
def test_bytes_that_are_no_identity_are_refused(encoded):
    with pytest.raises(CorruptStore, match="path"):
        decode(encoded, False, "path")


def test_any_bytes_decode_or_are_refused():
    rng = np.random.default_rng(0)
    good = encode(as_dtype([("a", "<f4", (2,)), ("b", "M8[s]")]), (2, 3))
    refused = 0
    for _ in range(20_000):
        data = bytearray(good)
        for _ in range(rng.integers(1, 4)):
            data[rng.integers(len(data))] = rng.integers(256)
        try:
            dtype, shape = decode(bytes(data), True, "path")
        except (CorruptStore, UnsupportedFormat):
            refused += 1
        else:
            assert decode(encode(dtype, shape), True, "path") == (dtype, shape)
    assert refused > 1000
