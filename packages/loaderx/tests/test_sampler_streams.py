"""The sampler's streams: what each index is, and that it depends on the position alone."""

from __future__ import annotations

import json
import multiprocessing
import operator
import random
import threading
from pathlib import Path

import numpy as np
import pytest
import sampler_oracle as oracle
from loaderx import Sampler, _native

LAST = 2**64 - 1

GOLDEN = json.loads(Path(__file__).with_name("sampler_golden_1.json").read_text())


# What each index is


def native(length, batch_size, mode, seed, step, *, kernel, weights=None, **others) -> list[int]:
    columns = None if weights is None else _native.alias_table(np.array(weights, np.float64))
    configuration = _native.Configuration(
        length=length,
        batch_size=batch_size,
        mode=mode,
        seed=seed,
        columns=columns,
        kernel=kernel,
        **others,
    )
    indices = np.empty(batch_size, np.uint64)
    configuration.fill(step, 1, indices)
    return indices.tolist()


@pytest.mark.parametrize("kernel", ["best", "baseline"])
def test_golden_vectors(kernel: str) -> None:
    assert len(GOLDEN) > 200
    for case in GOLDEN:
        assert native(**case["sampler"], step=case["step"], kernel=kernel) == case["indices"], case


def test_golden_vectors_are_the_definition() -> None:
    for case in GOLDEN:
        assert oracle.indices(**case["sampler"], step=case["step"]) == case["indices"], case


def test_sampler_gives_the_golden_vectors() -> None:
    for case in GOLDEN:
        sampler = Sampler(**case["sampler"])
        assert sampler.at(case["step"]).tolist() == case["indices"], case
        sampler.seek(case["step"])
        assert next(sampler).tolist() == case["indices"], case


def test_any_configuration_follows_the_definition() -> None:
    choose = random.Random(11)
    lengths = [1, 2, 3, 63, 64, 65, 1023, 1024, 4096, 2**20 + 1, 2**31 + 1, 2**32, 2**32 + 1, 2**63]
    checked = 0
    for _ in range(600):
        length = choose.choice([*lengths, choose.randrange(1, 6000)])
        mode = choose.choice(["sequential", "iid", "cyclic"])
        world_size = choose.choice([1, 2, 3, 8, 2**20])
        case = {
            "length": length,
            "batch_size": choose.randrange(1, 200 if world_size == 1 else 20),
            "mode": mode,
            "seed": choose.choice([0, LAST, choose.getrandbits(64)]),
            "rank": choose.randrange(world_size),
            "world_size": world_size,
            "remainder": choose.choice(["drop", "wrap"]),
        }
        if mode == "iid" and length < 6000 and choose.random() < 0.5:
            weights = [
                choose.choice([0, 1, choose.random(), choose.random() * 1e-30])
                for _ in range(length)
            ]
            weights[choose.randrange(length)] = 2.0
            case["weights"] = weights
        if mode == "cyclic" and length < case["batch_size"] * world_size:
            case["remainder"] = "wrap"
        step = choose.choice([0, 1, choose.randrange(1000), choose.getrandbits(63), LAST])
        assert Sampler(**case).at(step).tolist() == oracle.indices(**case, step=step), (case, step)
        checked += 1
    assert checked == 600


def test_philox_against_numpy() -> None:
    # At length 2**32 nothing is reduced or refused: the indices are the words themselves.
    choose = random.Random(3)
    for i in range(100):
        seed, step = choose.getrandbits(64), choose.getrandbits(64)
        # With the greatest number of ranks the block's number needs more than 64 bits.
        world_size = 2**31 if i % 2 else 1
        block = step * world_size
        got = Sampler(2**32, 8, "iid", seed, world_size=world_size).at(step)
        counter = (block & oracle.WORD, 0, oracle.TAG_IID32, block >> 64)
        key = (seed, 2**32)
        words = oracle.numpy_block(counter, key)
        assert got.astype("<u4").view("<u8").tolist() == words
        assert [int(word) for word in oracle.philox(counter, key)] == words
        assert [int(word) for word in oracle.philox(counter, key, rounds=4)] != words


# The border to the library


def test_every_declaration_is_exported_and_every_status_mapped() -> None:
    from loaderx._cffi import ffi

    functions = [name for name in dir(_native._lib) if name.startswith("zs_")]
    assert len(functions) == 6
    for name in functions:
        assert ffi.typeof(getattr(_native._lib, name)).kind == "function"
    statuses = set(ffi.typeof("enum zs_status").elements) - {0}
    assert statuses == set(_native._STATUS_ERRORS)
    assert _native.kernel_name() in ("baseline", "x86-64-v3", "x86-64-v4")


def test_the_library_checks_for_itself() -> None:
    good = {"length": 100, "batch_size": 10, "mode": "cyclic", "seed": 0}
    sampler = _native.Configuration(**good)
    with pytest.raises(ValueError, match="steps"):
        sampler.fill(LAST, 2, np.empty(20, np.uint64))
    for name, value in (
        ("length", 0),
        ("length", 2**63 + 1),
        ("batch_size", 0),
        ("batch_size", 101),
        ("rank", 1),
        ("world_size", 0),
    ):
        with pytest.raises(ValueError, match=name):
            _native.Configuration(**{**good, name: value})
    with pytest.raises(ValueError, match="weights"):
        _native.alias_table(np.array([1.0, -1.0]))
    with pytest.raises(ValueError, match="weights"):
        _native.Configuration(**good, columns=np.zeros((100, 2), np.uint64))


# That it depends on the position alone

MODES = [
    pytest.param({"mode": "sequential"}, id="sequential"),
    pytest.param({"mode": "iid"}, id="iid"),
    pytest.param({"mode": "iid", "weights": np.arange(10_007) % 5}, id="weighted"),
    pytest.param({"mode": "cyclic"}, id="cyclic drop"),
    pytest.param({"mode": "cyclic", "remainder": "wrap"}, id="cyclic wrap"),
]


@pytest.mark.parametrize("options", MODES)
def test_steps_in_any_order(options: dict) -> None:
    sampler = Sampler(10_007, 96, **options)
    in_order = [sampler.next() for _ in range(300)]
    steps = list(range(300))
    random.Random(0).shuffle(steps)
    for step in steps:
        assert (sampler.at(step) == in_order[step]).all()
        sampler.seek(step)
        assert (sampler.next() == in_order[step]).all()
    assert (in_order[0] != in_order[1]).any()


@pytest.mark.parametrize("options", MODES)
def test_ranks_divide_one_stream(options: dict) -> None:
    whole = Sampler(10_007, 96, **options)
    for world_size in (1, 2, 3, 4, 8):
        ranks = [
            Sampler(10_007, 96 // world_size, rank=rank, world_size=world_size, **options)
            for rank in range(world_size)
        ]
        for step in (*range(250), 2**40, LAST):
            together = np.concatenate([sampler.at(step) for sampler in ranks])
            assert (together == whole.at(step)).all(), (world_size, step)


@pytest.mark.parametrize("options", MODES)
def test_threads_get_every_batch_once(options: dict) -> None:
    shared = Sampler(10_007, 96, **options)
    got: list[np.ndarray] = []
    start = threading.Barrier(8)

    def work() -> None:
        start.wait()
        got.extend(shared.next() for _ in range(200))

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    alone = Sampler(10_007, 96, **options)
    expected = sorted(alone.next().tobytes() for _ in range(1600))
    assert sorted(batch.tobytes() for batch in got) == expected
    assert shared.tell() == 1600


def test_threads_share_at() -> None:
    sampler = Sampler(10_007, 96)
    expected = [sampler.at(step).tobytes() for step in range(400)]
    wrong: list[int] = []

    def work(first: int) -> None:
        steps = [step % 400 for step in range(first, first + 400)]
        wrong.extend(step for step in steps if sampler.at(step).tobytes() != expected[step])

    threads = [threading.Thread(target=work, args=(37 * i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def start_methods() -> list[str]:
    return [m for m in ("fork", "spawn") if m in multiprocessing.get_all_start_methods()]


@pytest.mark.parametrize("method", start_methods())
def test_other_processes_continue_at_the_same_place(method: str) -> None:
    samplers = [
        Sampler(1009, 32, **option)
        for option in ({"mode": "sequential"}, {"mode": "iid", "weights": range(1009)}, {"seed": 5})
    ]
    for sampler in samplers:
        for _ in range(5):
            sampler.next()
    with multiprocessing.get_context(method).Pool(1) as pool:
        for sampler in samplers:
            far = pool.apply(operator.methodcaller("at", LAST), (sampler,))
            assert (far == sampler.at(LAST)).all()
            assert (pool.apply(next, (sampler,)) == sampler.at(5)).all()
            assert sampler.tell() == 5


@pytest.mark.skipif("fork" not in start_methods(), reason="this system cannot fork")
def test_fork_while_another_thread_draws() -> None:
    sampler = Sampler(1009, 32)
    with sampler._lock:  # as a thread holds it that the child does not have
        context = multiprocessing.get_context("fork")
        child = context.Process(target=next, args=(sampler,))
        child.start()
    child.join(20)
    assert child.exitcode == 0
