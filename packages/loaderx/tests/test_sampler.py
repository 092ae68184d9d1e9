"""The sampler's interface: arguments, drawing, position, state, epochs."""

from __future__ import annotations

import copy
import json
import pickle
import re

import numpy as np
import pytest
from loaderx import Sampler
from loaderx.errors import LoaderxError, StateMismatch

LAST = 2**64 - 1
#: Too long for Python to write in decimal.
HUGE = 1 << 20_000


# Arguments


def test_defaults_and_attributes() -> None:
    sampler = Sampler(1000, 256)
    assert sampler.mode is Sampler.Mode.CYCLIC
    assert (sampler.length, sampler.batch_size, sampler.seed) == (1000, 256, 42)
    assert (sampler.rank, sampler.world_size, sampler.global_batch) == (0, 1, 256)
    assert (sampler.remainder, sampler.weights) == ("drop", None)
    for name in (
        "length",
        "batch_size",
        "mode",
        "seed",
        "rank",
        "world_size",
        "remainder",
        "weights",
        "global_batch",
        "steps_per_cycle",
        "algorithm",
    ):
        with pytest.raises(AttributeError):
            setattr(sampler, name, 1)


@pytest.mark.parametrize(
    ("member", "name"),
    [
        (Sampler.Mode.SEQUENTIAL, "sequential"),
        (Sampler.Mode.IID, "iid"),
        (Sampler.Mode.CYCLIC, "cyclic"),
    ],
)
def test_modes_by_member_number_and_name(member: Sampler.Mode, name: str) -> None:
    for mode in (member, int(member), np.int32(member), name):
        sampler = Sampler(100, 10, mode)
        assert sampler.mode is member
        assert (sampler.at(3) == Sampler(100, 10, member).at(3)).all()


def test_mode_numbers_are_fixed() -> None:
    assert [int(m) for m in Sampler.Mode] == [0, 1, 2]


GOOD = {"length": 100, "batch_size": 10}
BAD = [
    ("length", 0, ValueError),
    ("length", -1, ValueError),
    ("length", 2**63 + 1, ValueError),
    ("length", 2**64 + 5, ValueError),
    pytest.param("length", HUGE, ValueError, id="length-huge"),
    ("length", 10.0, TypeError),
    ("length", "10", TypeError),
    ("length", None, TypeError),
    ("length", True, TypeError),
    ("length", np.array([10]), TypeError),
    ("batch_size", 0, ValueError),
    ("batch_size", -5, ValueError),
    ("batch_size", 2**28 + 1, ValueError),
    ("batch_size", 2**64, ValueError),
    ("batch_size", 2.5, TypeError),
    ("batch_size", np.True_, TypeError),
    ("seed", -1, ValueError),
    ("seed", 2**64, ValueError),
    ("seed", 1.5, TypeError),
    ("seed", None, TypeError),
    ("seed", False, TypeError),
    ("rank", -1, ValueError),
    ("rank", 1, ValueError),
    ("rank", 0.0, TypeError),
    ("rank", "first", ValueError),
    ("rank", True, TypeError),
    ("world_size", 0, ValueError),
    ("world_size", -2, ValueError),
    ("world_size", 2**31 + 1, ValueError),
    ("world_size", "2", TypeError),
    ("world_size", True, TypeError),
    ("mode", 3, ValueError),
    ("mode", -1, ValueError),
    pytest.param("mode", HUGE, ValueError, id="mode-huge"),
    ("mode", "shuffle", ValueError),
    ("mode", "CYCLIC", ValueError),
    ("mode", 2.0, TypeError),
    ("mode", True, TypeError),
    ("mode", None, TypeError),
    ("remainder", "keep", ValueError),
    ("remainder", None, ValueError),
    ("remainder", [], ValueError),
]


@pytest.mark.parametrize(("name", "value", "error"), BAD)
def test_bad_arguments_are_named(name: str, value: object, error: type[Exception]) -> None:
    with pytest.raises(error, match=name):
        Sampler(**{**GOOD, name: value})


@pytest.mark.parametrize("name", ["length", "batch_size", "seed"])
def test_any_integer_type_is_accepted(name: str) -> None:
    for kind in (np.int8, np.uint16, np.int64, np.uint64):
        sampler = Sampler(**{**GOOD, name: kind(50)})
        assert getattr(sampler, name) == 50
        assert type(getattr(sampler, name)) is int


@pytest.mark.parametrize("length", [5, 7])
def test_a_cycle_shorter_than_a_step(length: int) -> None:
    with pytest.raises(ValueError, match=rf"length {length}.*8.*wrap"):
        Sampler(length, 8)
    assert len(Sampler(length, 8, remainder="wrap").next()) == 8
    assert len(Sampler(length, 8, "iid").next()) == 8
    assert len(Sampler(length, 8, "sequential").next()) == 8
    with pytest.raises(ValueError, match=r"length 3.*world_size 7"):
        Sampler(3, 1, rank=0, world_size=7)


BAD_WEIGHTS = [
    ([1.0] * 9, ValueError, "shape"),
    ([[1.0] * 10], ValueError, "shape"),
    (1.0, ValueError, "shape"),
    ([0.0] * 10, ValueError, "all be zero"),
    ([1.0] * 9 + [-1.0], ValueError, "at 9"),
    ([1.0] * 9 + [np.nan], ValueError, "nan at 9"),
    ([np.inf] + [1.0] * 9, ValueError, "inf at 0"),
    (["a"] * 10, TypeError, "real"),
    ([1j] * 10, TypeError, "real"),
    ([None] * 10, TypeError, "real"),
]


@pytest.mark.parametrize(("weights", "error", "text"), BAD_WEIGHTS)
def test_bad_weights(weights: object, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=f"weights.*{text}"):
        Sampler(10, 4, "iid", weights=weights)


@pytest.mark.parametrize("mode", ["sequential", "cyclic"])
def test_weights_need_iid(mode: str) -> None:
    with pytest.raises(ValueError, match="weights need mode"):
        Sampler(10, 4, mode, weights=[1.0] * 10)


def test_weights_are_copied_and_read_only() -> None:
    given = np.arange(10.0)
    sampler = Sampler(10, 100, "iid", weights=given)
    before = sampler.at(0)
    given[:] = 0
    assert (sampler.at(0) == before).all()
    assert (sampler.weights == np.arange(10)).all()
    with pytest.raises(ValueError, match="read-only"):
        sampler.weights[0] = 1


def test_weights_of_any_real_type_and_size() -> None:
    expected = Sampler(4, 50, "iid", weights=[0.0, 1.0, 0.0, 1.0]).at(0)
    for weights in (
        [0, 1, 0, 1],
        (False, True, False, True),
        np.array([0, 1, 0, 1], np.float16),
        np.array([0, 1, 0, 1, 0, 1, 0, 1], ">f8")[:4],
        np.array([0, 2**63, 0, 2**63]),
        [-0.0, 5e-324, -0.0, 5e-324],
        [0, 1.7e308, 0, 1.7e308],
    ):
        assert (Sampler(4, 50, "iid", weights=weights).at(0) == expected).all()
    # A zero is never drawn, at the end either, beyond 2**24 records either.
    weights = np.zeros(2**24 + 2)
    weights[2**24] = 1.0
    assert (Sampler(len(weights), 1000, "iid", weights=weights).at(5) == 2**24).all()


def test_rank_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "2")
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert (Sampler(100, 5).rank, Sampler(100, 5).world_size) == (0, 1)
    auto = Sampler(100, 5, rank="auto")
    assert (auto.rank, auto.world_size) == (2, 4)
    assert Sampler(100, 5, rank="auto", world_size=4).rank == 2
    with pytest.raises(ValueError, match=r"world_size is 3, but WORLD_SIZE says 4"):
        Sampler(100, 5, rank="auto", world_size=3)
    monkeypatch.setenv("RANK", "4")
    with pytest.raises(ValueError, match="RANK must be 0 to 3"):
        Sampler(100, 5, rank="auto")
    monkeypatch.setenv("RANK", "two")
    with pytest.raises(ValueError, match="an integer in RANK, got 'two'"):
        Sampler(100, 5, rank="auto")
    monkeypatch.delenv("RANK")
    with pytest.raises(ValueError, match="an integer in RANK, got nothing"):
        Sampler(100, 5, rank="auto")
    monkeypatch.delenv("WORLD_SIZE")
    assert (Sampler(100, 5, rank="auto").rank, Sampler(100, 5, rank="auto").world_size) == (0, 1)


def test_repr_is_the_call() -> None:
    for sampler in (
        Sampler(1000, 256),
        Sampler(10, 4, "iid", 7, rank=1, world_size=2),
        Sampler(10, 40, 2, 0, remainder="wrap"),
    ):
        same = eval(repr(sampler), {"Sampler": Sampler})
        assert same.state_dict() == sampler.state_dict()
        assert (same.rank, same.world_size) == (sampler.rank, sampler.world_size)
    assert "weights=<3 weights>" in repr(Sampler(3, 1, "iid", weights=[1, 2, 3]))


# Drawing

MODES = ["sequential", "iid", "cyclic"]


@pytest.mark.parametrize("mode", MODES)
def test_batches_are_arrays_of_uint64(mode: str) -> None:
    sampler = Sampler(1000, 7, mode)
    for batch in (sampler.at(0), sampler.next(), next(sampler), next(iter(sampler))):
        assert batch.dtype == np.uint64
        assert batch.shape == (7,)
        assert batch.flags.c_contiguous
        assert batch.flags.writeable
        assert batch.max() < 1000


@pytest.mark.parametrize("mode", MODES)
def test_what_the_caller_writes_stays_with_the_caller(mode: str) -> None:
    sampler, untouched = Sampler(1000, 8, mode), Sampler(1000, 8, mode)
    for step in range(100):
        batch = sampler.next()
        assert (batch == untouched.at(step)).all()
        batch[:] = 999_999
    sampler.seek(90)
    assert (sampler.next() == untouched.at(90)).all()


@pytest.mark.parametrize("mode", MODES)
def test_out(mode: str) -> None:
    sampler, other = Sampler(1000, 8, mode), Sampler(1000, 8, mode)
    out = np.zeros(8, np.uint64)
    assert sampler.at(9, out) is out
    assert (out == other.at(9)).all()
    assert sampler.tell() == 0
    # Batches with and without out are one sequence.
    for step in range(40):
        batch = sampler.next(out) if step % 3 else sampler.next()
        assert (batch is out) == (step % 3 > 0)
        assert (batch == other.at(step)).all()
    assert sampler.tell() == 40


READ_ONLY = np.zeros(8, np.uint64)
READ_ONLY.flags.writeable = False


@pytest.mark.parametrize(
    ("out", "error"),
    [
        (np.zeros(8, np.int64), TypeError),
        (np.zeros(8, ">u8"), TypeError),
        (np.zeros(8), TypeError),
        ([0] * 8, TypeError),
        (bytearray(64), TypeError),
        (np.zeros(7, np.uint64), ValueError),
        (np.zeros(9, np.uint64), ValueError),
        (np.zeros((8, 1), np.uint64), ValueError),
        (np.zeros((2, 4), np.uint64), ValueError),
        (np.zeros(16, np.uint64)[::2], ValueError),
        (READ_ONLY, ValueError),
        (np.frombuffer(bytearray(65), np.uint64, 8, offset=1), ValueError),
    ],
)
def test_bad_out(out: object, error: type[Exception]) -> None:
    sampler = Sampler(100, 8)
    with pytest.raises(error, match="out must"):
        sampler.at(0, out)
    with pytest.raises(error, match="out must"):
        sampler.next(out)
    assert sampler.tell() == 0


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("length", [1, 2, 1000, 2**32, 2**32 + 1, 2**63 - 1, 2**63])
def test_extreme_steps(mode: str, length: int) -> None:
    for world_size in (1, 2**31):
        rank = world_size - 1
        sampler = Sampler(length, 9, mode, LAST, rank=rank, world_size=world_size, remainder="wrap")
        for step in (0, 2**32, 2**63 - 1, 2**63, LAST - 1, LAST):
            batch = sampler.at(step)
            assert int(batch.max()) < length
            if mode == "sequential":
                first = (step * world_size + rank) * 9
                assert batch.tolist() == [(first + j) % length for j in range(9)]


@pytest.mark.parametrize("step", [-1, 2**64, pytest.param(HUGE, id="huge")])
def test_step_out_of_range(step: int) -> None:
    sampler = Sampler(100, 10)
    for method in (sampler.at, sampler.seek):
        with pytest.raises(ValueError, match="step must be 0 to 18446744073709551615"):
            method(step)


@pytest.mark.parametrize("step", [1.0, "1", None, True, np.array([1, 2])])
def test_step_of_another_type(step: object) -> None:
    sampler = Sampler(100, 10)
    for method in (sampler.at, sampler.seek):
        with pytest.raises(TypeError, match="step must be an integer"):
            method(step)


def test_after_the_last_step() -> None:
    sampler = Sampler(100, 10)
    sampler.seek(LAST - 2)
    for step in (LAST - 2, LAST - 1, LAST):
        assert (sampler.next() == Sampler(100, 10).at(step)).all()
    for _ in range(2):
        with pytest.raises(ValueError, match="step must be"):
            sampler.next()
    with pytest.raises(ValueError, match="step must be"):
        sampler.next(np.zeros(10, np.uint64))
    sampler.seek(0)
    assert (sampler.next() == sampler.at(0)).all()


def test_positions_and_seeking() -> None:
    sampler = Sampler(100, 10)
    assert sampler.tell() == 0
    passes = [[sampler.next() for _ in range(10)] for _ in range(3)]
    assert sampler.tell() == 30
    orders = [np.concatenate(batches) for batches in passes]
    for order in orders:
        assert sorted(order.tolist()) == list(range(100))
    assert len({order.tobytes() for order in orders}) == 3
    sampler.seek(np.int64(10))
    assert (sampler.next() == passes[1][0]).all()
    assert sampler.tell() == 11


def test_seeds_differ() -> None:
    for mode in ("iid", "cyclic"):
        batches = {Sampler(1000, 100, mode, seed).at(0).tobytes() for seed in (0, 1, 42, LAST)}
        assert len(batches) == 4


def test_steps_per_cycle() -> None:
    assert Sampler(100, 8).steps_per_cycle == 12
    assert Sampler(100, 8, remainder="wrap").steps_per_cycle == 13
    assert Sampler(100, 8, "iid").steps_per_cycle == 13
    assert Sampler(100, 8, "sequential").steps_per_cycle == 13
    assert Sampler(100, 4, rank=1, world_size=2).steps_per_cycle == 12
    assert Sampler(96, 8, remainder="wrap").steps_per_cycle == 12
    assert Sampler(1, 8, "iid").steps_per_cycle == 1
    assert Sampler(2**63, 1).steps_per_cycle == 2**63


def test_drop_reaches_every_record_over_cycles() -> None:
    sampler = Sampler(11, 4)
    seen = set()
    for _ in range(30):
        cycle = np.concatenate([sampler.next(), sampler.next()]).tolist()
        assert len(set(cycle)) == 8
        seen |= set(cycle)
    assert seen == set(range(11))


def test_wrap_leaves_nothing_out() -> None:
    sampler = Sampler(11, 4, remainder="wrap")
    stream = np.concatenate([sampler.next() for _ in range(33)])
    for cycle in stream.reshape(12, 11):
        assert sorted(cycle.tolist()) == list(range(11))
    # The stream does not depend on the batch size.
    assert (Sampler(11, 132, remainder="wrap").next() == stream).all()


# Copies and states


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("drawn", [0, 1, 5, 40])
def test_copies_keep_the_position(mode: str, drawn: int) -> None:
    weights = np.arange(1000) if mode == "iid" else None
    sampler = Sampler(1000, 4, mode, 9, rank=1, world_size=2, remainder="wrap", weights=weights)
    for _ in range(drawn):
        sampler.next()
    copies = [pickle.loads(pickle.dumps(sampler, protocol)) for protocol in (2, 5)]
    for other in (*copies, copy.copy(sampler), copy.deepcopy(sampler)):
        assert other.tell() == drawn
        assert other.state_dict() == sampler.state_dict()
        assert repr(other) == repr(sampler)
        assert (other.next() == sampler.at(drawn)).all()
    assert sampler.tell() == drawn


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("drawn", [0, 5, 25, 26])
def test_a_state_continues(mode: str, drawn: int) -> None:
    sampler = Sampler(100, 4, mode)
    for _ in range(drawn):
        sampler.next()
    state = json.loads(json.dumps(sampler.state_dict()))
    other = Sampler(100, 4, mode)
    other.next()
    other.load_state_dict(state)
    assert other.tell() == drawn
    for _ in range(60):
        assert (other.next() == sampler.next()).all()


def test_a_state_with_other_ranks() -> None:
    whole = Sampler(1000, 24, remainder="wrap")
    whole.seek(17)
    for world_size in (2, 3, 8):
        ranks = [
            Sampler(1000, 24 // world_size, rank=r, world_size=world_size, remainder="wrap")
            for r in range(world_size)
        ]
        for sampler in ranks:
            sampler.load_state_dict(whole.state_dict())
        assert (np.concatenate([s.next() for s in ranks]) == whole.at(17)).all()


def test_a_state_holds_what_decides_the_order() -> None:
    sampler = Sampler(1000, 8, "iid", 3, world_size=2, weights=np.ones(1000))
    sampler.seek(7)
    state = sampler.state_dict()
    assert set(state) == {
        "version",
        "algorithm",
        "mode",
        "seed",
        "length",
        "global_batch",
        "remainder",
        "weights",
        "position",
    }
    assert (state["position"], state["global_batch"]) == (112, 16)
    sampler.seek(LAST)
    assert sampler.state_dict()["position"] == LAST * 16
    other = Sampler(1000, 16, "iid", 3, weights=np.ones(1000, np.float32))
    other.load_state_dict(sampler.state_dict())
    assert other.tell() == LAST


def test_algorithms_are_told_apart() -> None:
    samplers = [
        Sampler(10, 1, "sequential"),
        Sampler(10, 1, "iid"),
        Sampler(2**32 + 1, 1, "iid"),
        Sampler(10, 1, "iid", weights=[1] * 10),
        Sampler(1023, 1),
        Sampler(1024, 1),
    ]
    assert len({sampler.algorithm for sampler in samplers}) == 6


def test_a_state_of_another_sampler() -> None:
    sampler = Sampler(1000, 8)
    sampler.seek(5)
    state = Sampler(1001, 4, "iid", 7, remainder="wrap", weights=[1] * 1001).state_dict()
    with pytest.raises(StateMismatch) as caught:
        sampler.load_state_dict(state)
    assert isinstance(caught.value, ValueError)
    assert isinstance(caught.value, LoaderxError)
    names = ("algorithm", "mode", "seed", "length", "global_batch", "remainder", "weights")
    for name in names:
        assert re.search(rf"\b{name}: state has ", str(caught.value)), name
    assert "length: state has 1001, this sampler has 1000" in str(caught.value)
    assert len(caught.value.differences) == len(names)
    assert sampler.tell() == 5

    good = sampler.state_dict()
    for name in good:
        broken = dict(good)
        del broken[name]
        with pytest.raises(StateMismatch, match=f"{name}: state has nothing"):
            sampler.load_state_dict(broken)
    for name in names:
        with pytest.raises(StateMismatch, match=f"{name}: state has 'x'"):
            sampler.load_state_dict({**good, name: "x"})


def test_weights_belong_to_the_state() -> None:
    weights = np.ones(50)
    state = Sampler(50, 5, "iid", weights=weights).state_dict()
    weights[7] = 1.0 + 1e-15
    with pytest.raises(StateMismatch, match="weights"):
        Sampler(50, 5, "iid", weights=weights).load_state_dict(state)


def test_a_state_after_the_last_step() -> None:
    sampler = Sampler(300, 64)
    sampler.seek(LAST)
    sampler.next()
    other = Sampler(300, 64)
    other.load_state_dict(sampler.state_dict())
    with pytest.raises(ValueError, match="step must be"):
        other.next()


def test_a_state_without_strictness() -> None:
    sampler = Sampler(1000, 8)
    sampler.seek(5)
    other = Sampler(2000, 6, "iid", 3)
    other.load_state_dict(sampler.state_dict(), strict=False)
    assert other.tell() == 40 // 6
    with pytest.raises(StateMismatch, match="version"):
        other.load_state_dict({**sampler.state_dict(), "version": 99}, strict=False)


@pytest.mark.parametrize(
    ("position", "error"),
    [
        (-8, ValueError),
        (3, ValueError),
        (2**64 * 8 + 8, ValueError),
        pytest.param(HUGE, ValueError, id="huge"),
        (8.0, TypeError),
        ("8", TypeError),
        (None, TypeError),
        (True, TypeError),
    ],
)
def test_a_state_with_a_bad_position(position: object, error: type[Exception]) -> None:
    sampler = Sampler(1000, 8)
    with pytest.raises(error, match="position"):
        sampler.load_state_dict({**sampler.state_dict(), "position": position})
    assert sampler.tell() == 0


@pytest.mark.parametrize("state", [None, [], "state", 5])
def test_a_state_that_is_none(state: object) -> None:
    with pytest.raises(TypeError, match="state must be a mapping"):
        Sampler(1000, 8).load_state_dict(state)


# Epochs


@pytest.mark.parametrize("length", [1, 2, 3, 20, 21, 24, 100, 101])
@pytest.mark.parametrize("world_size", [1, 2, 3, 7])
def test_epoch_covers_every_record_once(length: int, world_size: int) -> None:
    ranks = [
        list(Sampler(length, 4, rank=r, world_size=world_size, remainder="wrap").epoch())
        for r in range(world_size)
    ]
    assert len({len(batches) for batches in ranks}) == 1
    stream = []
    for step in zip(*ranks, strict=True):
        sizes = [len(batch) for batch in step]
        assert max(sizes) - min(sizes) <= 1
        assert max(sizes) <= 4
        assert sizes == sorted(sizes, reverse=True)
        for batch in step:
            assert batch.dtype == np.uint64
            assert batch.ndim == 1
            stream += batch.tolist()
    assert stream == list(range(length))


def test_epoch_has_no_position() -> None:
    sampler = Sampler(21, 4, "iid")
    sampler.seek(100)
    first = sampler.epoch()
    assert next(first).tolist() == [0, 1, 2, 3]
    assert sampler.tell() == 100
    assert next(sampler.epoch()).tolist() == [0, 1, 2, 3]
    assert next(first).tolist() == [4, 5, 6, 7]


def test_epoch_of_a_huge_length() -> None:
    length = 2**63
    share = 2**28
    tail = list(Sampler(share * 2**31 - 1, 1, rank=0, world_size=2**31).epoch().__next__())
    assert tail == [0]
    last = Sampler(length, 3, "iid", rank=2**31 - 1, world_size=2**31).epoch()
    assert next(last).tolist() == [3 * (2**31 - 1) + j for j in range(3)]


def test_huge_batches_are_refused_or_fit() -> None:
    for batch_size in (2**28 + 1, 2**31, 2**40, 2**62, 2**64 - 1, 2**70):
        with pytest.raises(ValueError, match="batch_size must be 1 to 268435456"):
            Sampler(2**63, batch_size)
