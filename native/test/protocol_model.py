"""Searches the model of the commit protocol for a crash that it does not survive.

    python protocol_model.py [--seconds N] [--seed N] [--mistake NAME]

Scripts of operations run on the model. After every change of the medium each crash image is opened;
what is found must be a state that the promises allow: after a kill the last acknowledged one, after
a power cut the last synced one or a later whole append; or the operation in flight as a whole.

Without --mistake the protocol as it stands is searched first: it must show no violation. Then each
rule is left out in turn, and each time the search must notice. The closing line counts both.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import random
import sys
import time
from collections import Counter
from collections.abc import Iterable

from protocol_store import MISTAKES, CorruptStore, Medium, MediumError, Store

Records = tuple[bytes, ...]


def swap_removed(records: Records, indices: set[int]) -> Records:
    left = list(records)
    for index in sorted(indices, reverse=True):
        left[index] = left[-1]
        left.pop()
    return tuple(left)


class Violation(Exception):
    """The store came back in a state that no promise allows, or not at all."""


class _Killed(Exception):
    pass


class Search:
    """Runs scripts and opens every crash image on the way."""

    def __init__(self, mistake: str | None, deadline: float) -> None:
        self.mistake = mistake
        self.deadline = deadline
        self.counts: Counter[str] = Counter()
        self.seen: dict[int, Records] = {}

    def script(self, seed: int, operations: Iterable[str], page_size: int, most: int) -> None:
        self.rng = random.Random(seed)
        self.most = most
        self.serial = 0
        self.medium = Store.create(page_size)
        self.store = Store.open(self.medium, self.mistake)
        self.truth: Records = ()
        # States that a power cut may go back to; the last one is what a kill must keep.
        self.allowed: list[Records] = [()]
        self.next: Records | None = None
        self.watch()
        for operation in operations:
            getattr(self, "do_" + operation)()
            self.next = None
            if self.store.records() != self.truth:
                raise Violation(f"{operation}: the live store differs from the model")
            if time.process_time() > self.deadline:
                return
        self.counts["scripts"] += 1

    def watch(self) -> None:
        self.medium.hook = self.crash

    # Operations

    def fresh(self) -> list[bytes]:
        count, scale = self.rng.randint(1, 3), self.rng.choice((1, 3, 12))
        made = []
        for _ in range(count):
            self.serial += 1
            made.append(b"%06d." % self.serial * scale)
        return made

    def do_append(self) -> None:
        parts = [self.fresh() for _ in range(self.rng.choice((1, 1, 2)))]
        self.next = self.truth + tuple(itertools.chain(*parts))
        self.store.append(parts)
        self.truth = self.next
        self.allowed.append(self.truth)

    def do_abort(self) -> None:
        self.store.append([self.fresh(), self.fresh()], abort=True)

    def do_sync(self) -> None:
        self.store.sync()
        self.allowed = [self.truth]

    def do_sync_append(self) -> None:
        """An append of another thread returns while sync runs: sync need not make it durable."""
        before = self.truth
        self.store.sync(meanwhile=self.do_append)
        self.allowed = [before, self.truth]

    def do_delete(self) -> None:
        if len(self.truth) < 2:
            return
        count = self.rng.randint(1, min(3, len(self.truth) - 1))
        indices = set(self.rng.sample(range(len(self.truth)), count))
        self.next = swap_removed(self.truth, indices)
        self.store.delete(indices)
        self.truth = self.next
        self.allowed = [self.truth]

    def do_compact(self) -> None:
        self.store.compact(self.rng)
        self.allowed = [self.truth]

    def do_reopen(self) -> None:
        """The process is killed and comes back."""
        self.medium = self.medium.killed()
        self.watch()
        self.store = Store.open(self.medium, self.mistake)

    def do_kill(self) -> None:
        """The process is killed within an operation; life goes on with what it left."""
        operation = self.rng.choice(("append", "sync", "delete", "compact"))
        left = self.rng.randrange(12)

        def stop(medium: Medium) -> None:
            nonlocal left
            self.crash(medium)
            left -= 1
            if left < 0:
                raise _Killed

        self.medium.hook = stop
        with contextlib.suppress(_Killed):
            getattr(self, "do_" + operation)()
        reachable = [self.truth] if self.next is None else [self.truth, self.next]
        self.do_reopen()
        self.truth = self.store.records()
        if self.truth not in reachable:
            raise Violation("kill: the store came back in a state that is not allowed")
        # What the recovery found, it has made durable.
        self.allowed.append(self.truth)

    def do_power(self) -> None:
        """Life goes on from one cut state."""
        image = self.rng.choice(list(self.medium.cuts(self.rng, self.most)))
        self.medium = image
        self.store = Store.open(image, self.mistake)
        self.truth = self.store.records()
        if self.truth not in self.allowed:
            raise Violation("power cut: the store came back in a state that is not allowed")
        self.allowed = [self.truth]
        self.watch()

    # Crashes

    def crash(self, medium: Medium) -> None:
        if time.process_time() > self.deadline:
            return
        medium.hook = None
        after = [self.next] if self.next is not None else []
        self.check(medium.killed(), [self.truth, *after], "kill")
        for image in medium.cuts(self.rng, self.most):
            self.check(image, [*self.allowed, *after], "power cut")
        self.lose_slot(medium.killed())
        medium.hook = self.crash

    def check(self, image: Medium, allowed: list[Records], what: str) -> None:
        self.counts["states"] += 1
        key = hash((frozenset(image.cache.items()), what))
        found = self.seen.get(key)
        if found is None:
            self.counts["distinct"] += 1
            if self.rng.random() < 0.03:
                reachable = [*self.allowed, *allowed]
                image.hook = lambda inner: self.crash_again(inner, reachable)
            try:
                found = Store.open(image, self.mistake).records()
            except (CorruptStore, MediumError) as error:
                raise Violation(f"{what}: {type(error).__name__} {error}") from error
            self.seen[key] = found
        if found not in allowed:
            raise Violation(f"{what}: a state that is not allowed")

    def crash_again(self, medium: Medium, allowed: list[Records]) -> None:
        """The recovery is cut as well."""
        hook, medium.hook = medium.hook, None
        for image in medium.cuts(self.rng, 16):
            self.counts["during recovery"] += 1
            try:
                found = Store.open(image, self.mistake).records()
            except (CorruptStore, MediumError) as error:
                raise Violation(f"recovery cut: {type(error).__name__} {error}") from error
            if found not in allowed:
                raise Violation("recovery cut: a state that is not allowed")
        medium.hook = hook

    def lose_slot(self, image: Medium) -> None:
        """The medium loses the newest D although something that stands on it is there."""
        if not Store.lose_newest_slot(image):
            return
        self.counts["lost slots"] += 1
        try:
            Store.open(image, self.mistake)
        except CorruptStore:
            return
        raise Violation("a lost durable slot went unnoticed")


OPERATIONS = ("append", "sync", "delete", "compact", "reopen")


def search(mistake: str | None, seconds: float, seed: int) -> tuple[Counter[str], str | None]:
    """Every script of up to three operations, then random ones until the time is over."""
    run = Search(mistake, time.process_time() + seconds)
    trying = ""
    try:
        for length in (1, 2, 3):
            for number, operations in enumerate(itertools.product(OPERATIONS, repeat=length)):
                trying = f"script {'-'.join(operations)}, seed {seed + number}"
                run.script(seed + number, operations, 64, 64)
                run.counts["short scripts"] += 1
                if time.process_time() > run.deadline:
                    return run.counts, None
        for number in itertools.count(seed):
            run.seen.clear()
            rng = random.Random(number)
            weights = rng.choice([(6, 1, 2, 3, 2, 1, 2, 2), (8, 1, 1, 0, 0, 1, 6, 1)])
            kinds = ("append", "abort", "sync", "delete", "compact", "sync_append", "power", "kill")
            operations = tuple(rng.choices(kinds, weights, k=14))
            trying = f"script {'-'.join(operations)}, seed {number}"
            run.script(number, operations, rng.choice((4096, 64, 16)), rng.choice((16, 64)))
            if time.process_time() > run.deadline:
                return run.counts, None
    except (Violation, CorruptStore, MediumError) as error:
        return run.counts, f"{trying}: {type(error).__name__} {error}"
    return run.counts, None


def main() -> int:
    parser = argparse.ArgumentParser(description="Searches the commit protocol for lost records.")
    parser.add_argument("--seconds", type=float, default=50, help="processor time of the whole run")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--mistake", choices=sorted(MISTAKES), help="leave out one rule only")
    arguments = parser.parse_args()
    passed = failed = 0
    if arguments.mistake is None:
        counts, violation = search(None, arguments.seconds / 2, arguments.seed)
        print("protocol:", ", ".join(f"{value} {name}" for name, value in sorted(counts.items())))
        print("protocol:", "0 violations" if violation is None else violation)
        passed, failed = (1, 0) if violation is None else (0, 1)
    chosen = [arguments.mistake] if arguments.mistake else sorted(MISTAKES)
    share = arguments.seconds / 2 / len(chosen)
    for mistake in chosen:
        # Most are found within a second, none needs a minute; the search ends with the find.
        counts, violation = search(mistake, max(share, 60), arguments.seed)
        if violation is None:
            print(f"{mistake} ({MISTAKES[mistake]}): NOT caught in {counts['states']} states")
            failed += 1
        else:
            print(f"{mistake}: caught after {counts['states']} states: {violation}")
            passed += 1
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
