"""The sampler's orders against the laws of uniform random permutations and draws.

Every statistic is turned into z, its distance from the expectation in standard deviations, and
must stay below 5. Seeds are fixed, so a passing test always passes. Each statistic must also
notice a weaker function: mostly the same network with 4 rounds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import sampler_oracle as oracle
from loaderx import Sampler

Z_MAX = 5.0

Orders = Callable[[int, int], np.ndarray]


def drawn_orders(n: int, cycles: int) -> np.ndarray:
    """Permutations of successive cycles, one a row."""
    sampler = Sampler(n, n * cycles, remainder="wrap")
    return sampler.at(0).reshape(cycles, n).astype(np.int64)


def orders_over_seeds(n: int, seeds: int) -> np.ndarray:
    """First permutations of the seeds 0, 1, 2 ..."""
    rows = [Sampler(n, n, seed=seed).at(0) for seed in range(seeds)]
    return np.array(rows).astype(np.int64)


def weak_orders(rounds: int = 4, swap: bool = True) -> Orders:
    def orders(n: int, cycles: int) -> np.ndarray:
        weak = oracle.permute(n, 42, np.arange(cycles), rounds=rounds, swap=swap)
        return weak.astype(np.int64)

    return orders


def weak_orders_over_seeds(n: int, seeds: int) -> np.ndarray:
    numbers = np.arange(seeds, dtype=np.uint64)
    return oracle.permute(n, numbers, np.zeros(seeds, np.uint64), rounds=4).astype(np.int64)


def chi_square(counts: np.ndarray, freedom: int | None = None) -> float:
    """z of counts that should be equal."""
    expected = counts.sum() / counts.size
    freedom = counts.size - 1 if freedom is None else freedom
    distance = ((counts - expected) ** 2 / expected).sum()
    return float((distance - freedom) / math.sqrt(2 * freedom))


# Statistics of permutations: each yields one z a size, given a source of orders


def all_orders(source: Orders) -> Iterator[float]:
    """How often each of the n! orders comes."""
    for n in range(2, 8):
        cycles = 100_000 if n == 7 else 20_000
        orders = source(n, cycles)
        number = np.zeros(len(orders), np.int64)
        for i in range(n):
            number = number * (n - i) + (orders[:, i : i + 1] > orders[:, i + 1 :]).sum(axis=1)
        yield chi_square(np.bincount(number, minlength=math.factorial(n)))


def all_orders_of_seeds(source: Orders) -> Iterator[float]:
    yield from all_orders(lambda n, _: source(n, 20_000))


def value_by_position(source: Orders) -> Iterator[float]:
    """How often each value takes each place. Rows and columns have fixed sums."""
    for n in (7, 8, 10, 16, 17, 32, 64, 100):
        orders = source(n, 12_000)
        counts = np.bincount((np.arange(n) * n + orders).ravel(), minlength=n * n)
        expected = len(orders) / n
        distance = ((counts - expected) ** 2 / expected).sum() * (n - 1) / n
        freedom = (n - 1) ** 2
        yield float((distance - freedom) / math.sqrt(2 * freedom))


def differences(source: Orders) -> Iterator[float]:
    """Differences modulo n between values that are some places apart."""
    for n in (16, 100, 256, 1000, 1024, 4096, 65536):
        cycles = min(4000, 500_000 // n)
        orders = source(n, cycles)
        for lag in (1, 2, 64):
            if lag < n:
                values = (orders[:, lag:] - orders[:, :-lag]) % n
                yield chi_square(np.bincount(values.ravel(), minlength=n)[1:])


def parity(source: Orders) -> Iterator[float]:
    """How many permutations are odd."""
    for n in (4, 7, 16, 64, 255, 256, 1000, 1024):
        power = source(n, 3000)
        # Every value learns the least of its cycle, over paths that double in length.
        least = np.broadcast_to(np.arange(n), power.shape).copy()
        for _ in range(math.ceil(math.log2(n))):
            least = np.minimum(least, np.take_along_axis(least, power, 1))
            power = np.take_along_axis(power, power, 1)
        cycle_count = (least == np.arange(n)).sum(axis=1)
        odd = ((n - cycle_count) % 2).mean()
        yield float((odd - 0.5) * 2 * math.sqrt(len(power)))


def inversions(source: Orders) -> Iterator[float]:
    """Mean and variance of Kendall's count of pairs out of order."""
    for n in (8, 16, 64, 100, 255):
        orders = source(n, 3000)
        count = np.zeros(len(orders))
        for i in range(n - 1):
            count += (orders[:, i : i + 1] > orders[:, i + 1 :]).sum(axis=1)
        variance = n * (n - 1) * (2 * n + 5) / 72
        yield float((count.mean() - n * (n - 1) / 4) / math.sqrt(variance / len(orders)))
        yield float((count.var() / variance - 1) / math.sqrt(2 / len(orders)))


def matches(source: Orders) -> Iterator[float]:
    """Fixed points, and equal places in successive cycles: mean and variance are 1."""
    for n in (8, 16, 64, 100, 255, 1000, 1024):
        orders = source(n, 3000)
        for equal in (orders == np.arange(n), orders[1:] == orders[:-1]):
            count = equal.sum(axis=1)
            yield float((count.mean() - 1) * math.sqrt(len(count)))
            yield float((count.var() - 1) / math.sqrt(3 / len(count)))


def class_balance(source: Orders) -> Iterator[float]:
    """Classes in batches of 256 from a store of 1e5 records that is sorted by class."""
    n, batch, classes = 100_000, 256, 10
    of_batches = (source(n, 5) * classes // n)[:, : n // batch * batch].reshape(-1, batch)
    counts = np.stack([(of_batches == c).sum(axis=1) for c in range(classes)], axis=1)
    expected = batch / classes
    distance = ((counts - expected) ** 2 / expected).sum(axis=1)
    # A batch is drawn without replacement from a finite store.
    mean = (classes - 1) * (n - batch) / (n - 1)
    yield float((distance.sum() - mean * len(distance)) / math.sqrt(2 * mean * len(distance)))


CASES = [
    pytest.param(all_orders, drawn_orders, weak_orders(), id="all orders, cycles"),
    pytest.param(
        all_orders_of_seeds, orders_over_seeds, weak_orders_over_seeds, id="all orders, seeds"
    ),
    pytest.param(value_by_position, drawn_orders, weak_orders(), id="value by position"),
    pytest.param(differences, drawn_orders, weak_orders(), id="differences"),
    # The transposition alone makes the parity right, with any number of rounds.
    pytest.param(parity, drawn_orders, weak_orders(swap=False), id="parity"),
    pytest.param(inversions, drawn_orders, weak_orders(), id="inversions"),
    pytest.param(matches, drawn_orders, weak_orders(), id="matches"),
    # Balance in the large is right with 4 rounds already.
    pytest.param(class_balance, drawn_orders, weak_orders(rounds=2), id="class balance"),
]


@pytest.mark.parametrize(("statistic", "source", "weak_source"), CASES)
def test_orders_are_uniform(
    statistic: Callable[[Orders], Iterator[float]], source: Orders, weak_source: Orders
) -> None:
    worst = max(abs(z) for z in statistic(source))
    assert worst < Z_MAX
    assert any(abs(z) >= Z_MAX for z in statistic(weak_source)), "a weaker function went unnoticed"


# Permutations


def is_permutation(indices: np.ndarray, n: int) -> bool:
    if len(indices) != n or int(indices.max()) >= n:
        return False
    return bool((np.bincount(indices.astype(np.int64), minlength=n) == 1).all())


def test_every_cycle_is_a_permutation() -> None:
    lengths = set(range(1, 601))
    lengths |= {2**k + d for k in range(10, 21) for d in (-1, 0, 1)}
    lengths |= {root**2 + d for root in (25, 31, 32, 33, 100, 317, 1000) for d in (-1, 0, 1)}
    lengths |= {601, 997, 1009, 4093, 65537, 99991, 999983}
    for n in sorted(lengths):
        assert is_permutation(Sampler(n, n, seed=n).at(3), n), n
    # Without the walk, values beyond n stay; 4 rounds are a permutation all the same.
    weak = oracle.permute(601, 601, [3], walk=False)[0]
    assert not is_permutation(weak, 601)


@pytest.mark.parametrize("n", [2**32 + 1, 2**40 + 1, 2**62, 2**63 - 1])
def test_long_cycles_are_invertible(n: int) -> None:
    sampler = Sampler(n, 1000, seed=7)
    cycle = 5
    steps_per_cycle = n // 1000
    chosen = np.random.default_rng(0).integers(steps_per_cycle, size=98).tolist()
    chosen = sorted({0, steps_per_cycle - 1, *chosen})
    got = np.concatenate([sampler.at(cycle * steps_per_cycle + step) for step in chosen])
    positions = np.concatenate(
        [np.arange(step * 1000, step * 1000 + 1000, dtype=np.uint64) for step in chosen]
    )
    assert len(got) >= 99_000
    assert int(got.max()) < n
    assert len(np.unique(got)) == len(got)
    assert (oracle.invert(n, 7, cycle, got) == positions).all()
    assert not (oracle.invert(n, 7, cycle + 1, got) == positions).any()


def test_walks_are_short_at_every_length() -> None:
    # What could make a length slow is the share of positions that are encrypted twice; steps of
    # any distance cost the same, or the second half would not end.
    for k in range(13, 63):
        for n in (2**k, 2**k + 1):
            rows, columns = oracle.grid(n)
            assert 0 <= (rows * columns - n) / (rows * columns) < 0.013
    for mode in ("sequential", "iid", "cyclic"):
        for n in (10**6, 2**40 + 1):
            Sampler(n, 256, mode).at(2**64 - 1)


# Different seeds, different cycles


def shared_places(pairs: list[tuple[np.ndarray, np.ndarray]]) -> float:
    """z of the places in which two orders agree; 1 is expected in each pair."""
    count = sum(int((a == b).sum()) for a, b in pairs)
    return (count - len(pairs)) / math.sqrt(len(pairs))


def test_seeds_and_cycles_share_no_order() -> None:
    n, size = 1000, 64

    def order(seed: int, cycle: int = 0) -> np.ndarray:
        return Sampler(n, n, seed=seed).at(cycle)

    seeds = [1000 + 77 * i for i in range(size)]
    related = {
        "one bit": [(order(s), order(s ^ (1 << bit))) for bit, s in enumerate(seeds)],
        "next seed": [(order(s), order(s + 1)) for s in seeds],
        "upper half": [(order(s), order(s + 2**32)) for s in seeds],
        "next cycle": [(order(s, c), order(s, c + 1)) for c, s in enumerate(seeds)],
        "seed for cycle": [(order(s, c + 1), order(s + 1, c)) for c, s in enumerate(seeds)],
    }
    for name, pairs in related.items():
        assert not any((a == b).all() for a, b in pairs), name
        assert abs(shared_places(pairs)) < Z_MAX, name
    # If seed and cycle were added up, the last pairs would be the same.
    added = [
        (oracle.permute(n, s + c + 1, [0])[0], oracle.permute(n, s + 1 + c, [0])[0])
        for c, s in enumerate(seeds)
    ]
    assert shared_places(added) >= Z_MAX


# Independent draws


def drawn(n: int, count: int) -> np.ndarray:
    return Sampler(n, count, "iid").at(0)


def weakly_drawn(n: int, count: int) -> np.ndarray:
    """The same with 4 rounds of Philox."""
    blocks = np.arange(count // 8, dtype=np.uint64)
    words = np.stack(oracle.philox((blocks, 0, oracle.TAG_IID32, 0), (42, n), 4), axis=1).ravel()
    halves = np.stack([words & np.uint64(oracle.HALF), words >> np.uint64(32)], axis=1).ravel()
    return halves * np.uint64(n) >> np.uint64(32)


def pairs(source: Callable[[int, int], np.ndarray]) -> Iterator[float]:
    values = source(32, 10**6).astype(np.int64)
    for lag in (1, 2, 3, 7, 8, 16):
        yield chi_square(np.bincount(values[:-lag] * 32 + values[lag:], minlength=1024))


def test_draws_are_uniform() -> None:
    for n in (2, 3, 10, 1000):
        counts = np.bincount(drawn(n, 10**6).astype(np.int64), minlength=n)
        assert len(counts) == n
        assert abs(chi_square(counts)) < Z_MAX, n


def test_pairs_of_draws_are_independent() -> None:
    assert max(abs(z) for z in pairs(drawn)) < Z_MAX
    assert any(abs(z) >= Z_MAX for z in pairs(weakly_drawn))


@pytest.mark.parametrize(("n", "bits"), [(3 * 2**29, 32), (3 * 2**61, 64)])
def test_rejection_removes_the_bias(n: int, bits: int) -> None:
    def residues(values: np.ndarray) -> float:
        return chi_square(np.bincount((values % np.uint64(3)).astype(np.int64), minlength=3))

    values = drawn(n, 300_000)
    assert int(values.max()) < n
    assert abs(residues(values)) < Z_MAX
    # The plain multiplication gives every third value twice as often.
    words = np.random.default_rng(1).integers(2**bits, size=20_000, dtype=np.uint64).tolist()
    assert residues(np.array([w * n >> bits for w in words], np.uint64)) >= Z_MAX


def test_draws_cover_as_much_as_they_should() -> None:
    n, windows = 1000, 1000

    def coverage(values: np.ndarray) -> float:
        rows = np.sort(values.reshape(windows, n), axis=1)
        distinct = 1 + (rows[:, 1:] != rows[:, :-1]).sum(axis=1)
        empty1, empty2 = (1 - 1 / n) ** n, (1 - 2 / n) ** n
        variance = n * empty1 + n * (n - 1) * empty2 - (n * empty1) ** 2
        return float((distinct.mean() - n * (1 - empty1)) / math.sqrt(variance / windows))

    values = drawn(n, n * windows)
    assert abs(coverage(values)) < Z_MAX
    assert abs(coverage(np.repeat(values[: n * windows // 2], 2))) >= Z_MAX


def test_weighted_draws_follow_the_weights() -> None:
    weights = np.array([0, 1, 2, 0, 3, 0.5, 10, 0, 0])

    def distance(values: np.ndarray) -> float:
        counts = np.bincount(values.astype(np.int64), minlength=len(weights))
        expected = len(values) * weights / weights.sum()
        possible = weights > 0
        assert counts[~possible].sum() == 0
        z = ((counts - expected)[possible] ** 2 / expected[possible]).sum()
        freedom = possible.sum() - 1
        return float((z - freedom) / math.sqrt(2 * freedom))

    values = Sampler(9, 10**6, "iid", weights=weights).at(0)
    assert abs(distance(values)) < Z_MAX
    other = Sampler(9, 10**6, "iid", weights=weights + 0.03 * (weights == 1)).at(0)
    assert abs(distance(other)) >= Z_MAX
