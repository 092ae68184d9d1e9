"""The store's commit protocol in its smallest form, on a medium that loses what was not synced.

Medium   files and a folder whose changes are updates that a power cut keeps or loses one by one;
         a kill keeps the page cache and only releases the process.
Store    two durable slots D, one lazy slot L, a redo journal, a table in segments, chunks that are
         only appended to. Raw records of one kind, no threads.

Each rule of the protocol can be left out by its name in MISTAKES. `protocol_model.py` searches.
"""

from __future__ import annotations

import hashlib
import itertools
import random
import struct
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

MISTAKES = {
    "lazy_slot_first": "append writes L before payload and entries",
    "chunks_not_synced": "sync leaves the chunks' fsync out",
    "table_not_synced": "sync leaves the table's fsync out",
    "directory_not_synced": "sync leaves the folder's fsync out",
    "slot_not_synced": "no D is followed by an fsync",
    "durable_slot_first": "sync writes D before it syncs the data",
    "sync_not_exclusive": "an append may return between sync's fsyncs and its D",
    "delete_without_sync": "delete does not sync what was appended",
    "journal_not_synced": "the journal's fsync is left out",
    "journal_after_entries": "entries are changed before the journal is written",
    "journal_not_redone": "open ignores the journal",
    "entries_not_synced": "changed entries are not synced before the next D",
    "slot_before_entries": "the next D is written before the changed entries",
    "compact_chunk_not_synced": "compact does not sync the chunk that it wrote",
    "compact_directory_not_synced": "compact does not sync the folder",
    "compact_unlinks_first": "compact removes the victim before its journal",
    "found_slot_not_synced": "open builds on a D that may only be in the page cache",
    "found_journal_not_synced": "open redoes a journal that may only be in the page cache",
    "no_fence": "open does not commit a fresh D after a recovery",
    "no_orphan_removal": "open leaves files beyond the tail",
    "sums_not_checked": "recovery believes L's records without their sums",
    "digest_not_checked": "recovery does not compare the table's digest",
    "lost_slot_ignored": "an L or journal of a newer D than the newest valid one is ignored",
    "foreign_boot_trusted": "an L of another boot is believed unchecked",
    "stale_lazy_slot_trusted": "an L counts whatever D it extends",
    "abort_keeps_tail": "an aborted append leaves its files as they are",
}

SLOT_SIZE = 64
CHUNK_SIZE = 160
SEGMENT_CAPACITY = 4
NO_CHUNK = 0xFFFFFFFF


class CorruptStore(Exception):
    """The store refuses to open, or a record does not have its sum."""


class MediumError(Exception):
    """A file that should not be there is, or the other way round."""


def hash64(data: bytes, seed: int = 0) -> int:
    key = seed.to_bytes(8, "little")
    return int.from_bytes(hashlib.blake2b(data, digest_size=8, key=key).digest(), "little")


# Medium


@dataclass(frozen=True)
class Write:
    file: str
    offset: int
    data: bytes


@dataclass(frozen=True)
class Resize:
    file: str
    size: int


@dataclass(frozen=True)
class Link:
    file: str


@dataclass(frozen=True)
class Unlink:
    file: str


Update = Write | Resize | Link | Unlink


def applied(content: bytes, update: Write | Resize) -> bytes:
    if isinstance(update, Resize):
        return content[: update.size].ljust(update.size, b"\0")
    start = content[: update.offset].ljust(update.offset, b"\0")
    return start + update.data + content[update.offset + len(update.data) :]


class Medium:
    """Files by name. `cache` is what processes see, `durable` what the medium holds."""

    def __init__(self, content: dict[str, bytes], page_size: int, boot: int) -> None:
        self.cache = dict(content)
        self.durable = dict(content)
        self.names = set(content)
        self.updates: list[Update] = []
        self.page_size = page_size
        self.boot = boot
        self.hook: Callable[[Medium], None] | None = None

    def _expect(self, file: str) -> None:
        if file not in self.cache:
            raise MediumError(f"{file} is missing")

    def _happened(self) -> None:
        if self.hook is not None:
            self.hook(self)

    def create(self, file: str) -> None:
        if file in self.cache:
            raise MediumError(f"{file} exists")
        self.cache[file] = b""
        self.durable[file] = b""
        self.updates.append(Link(file))
        self._happened()

    def unlink(self, file: str) -> None:
        self._expect(file)
        del self.cache[file]
        self.updates.append(Unlink(file))
        self._happened()

    def write(self, file: str, offset: int, data: bytes) -> None:
        self._expect(file)
        if offset + len(data) > len(self.cache[file]):
            self.updates.append(Resize(file, offset + len(data)))
        self.cache[file] = applied(self.cache[file], Write(file, offset, data))
        while data:
            size = min(len(data), self.page_size - offset % self.page_size)
            self.updates.append(Write(file, offset, data[:size]))
            offset, data = offset + size, data[size:]
        self._happened()

    def truncate(self, file: str, size: int) -> None:
        self._expect(file)
        self.cache[file] = self.cache[file][:size]
        self.updates.append(Resize(file, size))
        self._happened()

    def sync(self, file: str) -> None:
        self._expect(file)
        self.durable[file] = self.cache[file]
        self.updates = [u for u in self.updates if isinstance(u, Link | Unlink) or u.file != file]
        self._happened()

    def sync_directory(self) -> None:
        for update in self.updates:
            if isinstance(update, Link):
                self.names.add(update.file)
            elif isinstance(update, Unlink):
                self.names.discard(update.file)
        self.updates = [u for u in self.updates if not isinstance(u, Link | Unlink)]
        self._happened()

    def read(self, file: str, offset: int = 0, size: int = 1 << 30) -> bytes:
        return self.cache.get(file, b"")[offset : offset + size]

    def killed(self) -> Medium:
        """The page cache lives on, and so does what it owes the medium."""
        copy = Medium({}, self.page_size, self.boot)
        copy.cache, copy.durable = dict(self.cache), dict(self.durable)
        copy.names, copy.updates = set(self.names), list(self.updates)
        return copy

    def cut(self, kept: Iterable[bool]) -> Medium:
        """After a power cut that left the chosen updates on the medium."""
        names, content = set(self.names), dict(self.durable)
        for update, keep in zip(self.updates, kept, strict=True):
            if not keep:
                continue
            if isinstance(update, Link):
                names.add(update.file)
            elif isinstance(update, Unlink):
                names.discard(update.file)
            else:
                content[update.file] = applied(content[update.file], update)
        return Medium({f: content[f] for f in names}, self.page_size, self.boot + 1)

    def cuts(self, rng: random.Random, most: int) -> Iterator[Medium]:
        """Every subset of the updates if they are few, else singles, complements and samples."""
        n = len(self.updates)
        if 2**n <= most:
            choices: Iterable[tuple[bool, ...]] = itertools.product((False, True), repeat=n)
        else:
            lone = [tuple(j == i for j in range(n)) for i in range(n)]
            missing = [tuple(j != i for j in range(n)) for i in range(n)]
            prefix = [tuple(j < i for j in range(n)) for i in range(n + 1)]
            sampled = [tuple(rng.random() < 0.5 for _ in range(n)) for _ in range(most // 4)]
            everything = lone + missing + prefix + sampled
            choices = rng.sample(everything, min(most, len(everything)))
        for kept in choices:
            yield self.cut(kept)


# Store


@dataclass(frozen=True)
class State:
    """What a commit makes true."""

    epoch: int = 0
    length: int = 0
    chunk: int = 0
    offset: int = 0
    digest: int = 0


SLOT = struct.Struct("<4sQQQQQIIQ")
ENTRY = struct.Struct("<IIIQ")
JOURNAL = struct.Struct("<QQQIIQII")


@dataclass(frozen=True)
class Slot:
    seq: int
    base_seq: int
    boot: int
    state: State

    def encode(self) -> bytes:
        s = self.state
        fields = (self.seq, self.base_seq, self.boot, s.epoch, s.length, s.chunk, s.offset)
        body = SLOT.pack(b"SLOT", *fields, s.digest)
        return body + hash64(body).to_bytes(8, "little")

    @staticmethod
    def decode(data: bytes) -> Slot | None:
        body, seal = data[: SLOT.size], data[SLOT.size : SLOT.size + 8]
        if len(seal) < 8 or int.from_bytes(seal, "little") != hash64(body):
            return None
        _, seq, base_seq, boot, *state = SLOT.unpack(body)
        return Slot(seq, base_seq, boot, State(*state))


assert SLOT.size + 8 <= 2 * SLOT_SIZE


class Store:
    """One writer. Entries are looked up by index, records by their entries."""

    def __init__(self, medium: Medium, mistake: str | None) -> None:
        self.medium = medium
        self.mistake = mistake
        self.dirty = False
        self.directory_dirty = False
        self.slot = Slot(0, 0, 0, State())
        self.state = State()

    # Layout: D0, D1 and L start on pages of their own.

    @staticmethod
    def _slot_offset(seq: int) -> int:
        return 2 * SLOT_SIZE * (seq & 1)

    LAZY_OFFSET = 4 * SLOT_SIZE

    @staticmethod
    def _place(index: int) -> tuple[str, int]:
        return f"{index // SEGMENT_CAPACITY}.loc", index % SEGMENT_CAPACITY * ENTRY.size

    def entry(self, index: int) -> bytes:
        file, offset = self._place(index)
        return self.medium.read(file, offset, ENTRY.size)

    def record(self, entry: bytes) -> bytes | None:
        """Null if the stored bytes do not have the entry's sum."""
        if len(entry) < ENTRY.size:
            return None
        offset, size, chunk, total = ENTRY.unpack(entry)
        data = self.medium.read(f"{chunk}.chunk", offset, size)
        if len(data) != size or hash64(data + entry[:12]) != total:
            return None
        return data

    def records(self) -> tuple[bytes, ...]:
        found = [self.record(self.entry(i)) for i in range(self.state.length)]
        for index, data in enumerate(found):
            if data is None:
                raise CorruptStore(f"record {index} does not have its sum")
        return tuple(found)  # type: ignore[arg-type]

    @staticmethod
    def _digest(index: int, entry: bytes) -> int:
        return hash64(entry, index + 1)

    def _write_durable(self, state: State) -> None:
        self.slot = Slot(self.slot.seq + 1, 0, 0, state)
        self.medium.write("meta", self._slot_offset(self.slot.seq), self.slot.encode())
        if self.mistake != "slot_not_synced":
            self.medium.sync("meta")
        self.state, self.dirty = state, False

    # Create

    @staticmethod
    def create(page_size: int) -> Medium:
        """A finished, empty store; creation itself is one rename and not modelled."""
        medium = Medium({}, page_size, boot=1)
        for file in ("meta", "journal", "0.loc", "0.chunk"):
            medium.create(file)
        medium.write("meta", 0, bytes(6 * SLOT_SIZE))
        medium.write("meta", Store._slot_offset(1), Slot(1, 0, 0, State()).encode())
        medium.write("journal", 0, bytes(256))
        medium.sync("meta")
        medium.sync("journal")
        medium.sync_directory()
        return medium

    # Append: payload, entries, L. Nothing is synced.

    def append(self, parts: list[list[bytes]], abort: bool = False) -> None:
        old, state, entries = self.state, self.state, []
        created = set()
        if self.mistake == "lazy_slot_first" and not abort:
            self._predict(parts)
        for part in parts:
            for data in part:
                if state.offset and state.offset + len(data) > CHUNK_SIZE:
                    state = replace(state, chunk=state.chunk + 1, offset=0)
                    self.medium.create(f"{state.chunk}.chunk")
                    created.add(f"{state.chunk}.chunk")
                self.medium.write(f"{state.chunk}.chunk", state.offset, data)
                body = struct.pack("<III", state.offset, len(data), state.chunk)
                entry = body + hash64(data + body).to_bytes(8, "little")
                entries.append(entry)
                state = replace(
                    state,
                    offset=state.offset + len(data),
                    length=state.length + 1,
                    digest=(state.digest + self._digest(state.length, entry)) % 2**64,
                )
            start = state.length - len(part)
            for index, entry in enumerate(entries[-len(part) :], start):
                file, offset = self._place(index)
                if file not in self.medium.cache:
                    self.medium.create(file)
                    created.add(file)
                self.medium.write(file, offset, entry)
        if abort:
            self._roll_back(old, created)
            return
        if self.mistake != "lazy_slot_first":
            self._write_lazy(state)
        self.state, self.dirty = state, True
        self.directory_dirty = self.directory_dirty or bool(created)

    def _write_lazy(self, state: State) -> None:
        lazy = Slot(self.slot.seq, self.slot.seq, self.medium.boot, state)
        self.medium.write("meta", self.LAZY_OFFSET, lazy.encode())

    def _predict(self, parts: list[list[bytes]]) -> None:
        """Runs the append on a copy, to know the L that it ends with."""
        trial = Store(self.medium.killed(), None)
        trial.slot, trial.state = self.slot, self.state
        trial.append(parts)
        self._write_lazy(trial.state)

    def _roll_back(self, state: State, created: set[str]) -> None:
        if self.mistake == "abort_keeps_tail":
            return
        for file in sorted(created):
            self.medium.unlink(file)
        self.medium.truncate(f"{state.chunk}.chunk", state.offset)

    # Sync: data, folder, D.

    def _sync_data(self) -> None:
        first, last = self.slot.state, self.state
        if self.mistake != "chunks_not_synced":
            for chunk in range(first.chunk, last.chunk + 1):
                self.medium.sync(f"{chunk}.chunk")
        if self.mistake != "table_not_synced":
            begin, end = first.length // SEGMENT_CAPACITY, -(-last.length // SEGMENT_CAPACITY)
            for segment in range(begin, end):
                self.medium.sync(f"{segment}.loc")

    def sync(self, meanwhile: Callable[[], None] = lambda: None, force: bool = False) -> None:
        """`meanwhile` is another thread's append, let in where the protocol lets it in."""
        if not (self.dirty or force):
            meanwhile()
            return
        self._sync_data()  # beside appends
        if self.mistake != "sync_not_exclusive":
            meanwhile()
        if self.mistake == "durable_slot_first":
            self._write_durable(self.state)
        self._sync_data()  # alone
        if (self.directory_dirty or force) and self.mistake != "directory_not_synced":
            self.medium.sync_directory()
        self.directory_dirty = False
        state = self.state
        if self.mistake == "sync_not_exclusive":
            meanwhile()
        if self.mistake != "durable_slot_first":
            later = self.state
            self._write_durable(state)
            self.state = later

    # Changes in place: journal, entries, D.

    def _change(self, state: State, changes: dict[int, bytes], retired: int = NO_CHUNK) -> None:
        header = (self.slot.seq, state.epoch, state.length, state.chunk, state.offset)
        body = JOURNAL.pack(*header, state.digest, retired, len(changes))
        body += b"".join(struct.pack("<Q", i) + e for i, e in sorted(changes.items()))
        sealed = body + hash64(body).to_bytes(8, "little")
        if self.mistake == "journal_after_entries":
            self._apply(changes)
        self.medium.write("journal", 0, sealed)
        if self.mistake != "journal_not_synced":
            self.medium.sync("journal")
        if self.mistake == "slot_before_entries":
            self._write_durable(state)
            self._apply(changes)
        else:
            self._apply(changes)
            self._write_durable(state)

    def _apply(self, changes: dict[int, bytes]) -> None:
        for index, entry in changes.items():
            file, offset = self._place(index)
            self.medium.write(file, offset, entry)
        if self.mistake != "entries_not_synced":
            for file in sorted({self._place(index)[0] for index in changes}):
                self.medium.sync(file)

    def delete(self, indices: set[int]) -> None:
        if self.mistake != "delete_without_sync":
            self.sync()
        length, digest = self.state.length, self.state.digest
        changes: dict[int, bytes] = {}
        for index in sorted(indices, reverse=True):
            length -= 1
            last = changes.get(length, self.entry(length))
            digest -= self._digest(length, last)
            if index != length:
                old = changes.get(index, self.entry(index))
                digest += self._digest(index, last) - self._digest(index, old)
                changes[index] = last
        changes = {i: e for i, e in changes.items() if i < length}
        epoch = self.state.epoch + 1
        self._change(
            replace(self.state, epoch=epoch, length=length, digest=digest % 2**64), changes
        )

    def compact(self, rng: random.Random) -> None:
        """Copies the live records of one chunk behind the tail, then removes the chunk."""
        self.sync()
        owners: dict[int, list[int]] = {}
        for index in range(self.state.length):
            owners.setdefault(ENTRY.unpack(self.entry(index))[2], []).append(index)
        if not owners:
            return
        victim = rng.choice(sorted(owners))
        state = replace(
            self.state, chunk=self.state.chunk + 1, offset=0, epoch=self.state.epoch + 1
        )
        target = f"{state.chunk}.chunk"
        self.medium.create(target)
        changes, digest = {}, state.digest
        for index in owners[victim]:
            old = self.entry(index)
            data = self.record(old)
            assert data is not None
            self.medium.write(target, state.offset, data)
            body = struct.pack("<III", state.offset, len(data), state.chunk)
            new = body + hash64(data + body).to_bytes(8, "little")
            digest += self._digest(index, new) - self._digest(index, old)
            changes[index] = new
            state = replace(state, offset=state.offset + len(data))
        if self.mistake != "compact_chunk_not_synced":
            self.medium.sync(target)
        if self.mistake != "compact_directory_not_synced":
            self.medium.sync_directory()
        if self.mistake == "compact_unlinks_first":
            self.medium.unlink(f"{victim}.chunk")
        self._change(replace(state, digest=digest % 2**64), changes, victim)
        if self.mistake != "compact_unlinks_first":
            self.medium.unlink(f"{victim}.chunk")

    # Open

    def _journal(self) -> tuple[int, State, int, dict[int, bytes]] | None:
        """base_seq, state after the change, retired chunk, entries."""
        data = self.medium.read("journal")
        base, epoch, length, chunk, offset, digest, retired, count = JOURNAL.unpack_from(data)
        size = JOURNAL.size + count * (8 + ENTRY.size)
        body, seal = data[:size], data[size : size + 8]
        if base == 0 or len(seal) < 8 or int.from_bytes(seal, "little") != hash64(body):
            return None
        changes = {}
        for at in range(JOURNAL.size, size, 8 + ENTRY.size):
            changes[int.from_bytes(body[at : at + 8], "little")] = body[
                at + 8 : at + 8 + ENTRY.size
            ]
        return base, State(epoch, length, chunk, offset, digest), retired, changes

    def _lazy_holds(self, lazy: Slot) -> bool:
        """Whether an L that another boot wrote, or whose pages a medium lost, is true."""
        if lazy.boot == self.medium.boot or self.mistake == "foreign_boot_trusted":
            return True
        digest = self.state.digest
        for index in range(self.state.length, lazy.state.length):
            entry = self.entry(index)
            if self.record(entry) is None and self.mistake != "sums_not_checked":
                return False
            digest += self._digest(index, entry)
        return digest % 2**64 == lazy.state.digest or self.mistake == "digest_not_checked"

    @classmethod
    def open(cls, medium: Medium, mistake: str | None) -> Store:
        self = cls(medium, mistake)
        slots = [
            Slot.decode(medium.read("meta", cls._slot_offset(seq), 2 * SLOT_SIZE)) for seq in (0, 1)
        ]
        valid = [slot for slot in slots if slot is not None]
        if not valid:
            raise CorruptStore("no durable slot")
        self.slot = max(valid, key=lambda slot: slot.seq)
        self.state = self.slot.state
        # A writer that was killed may have left its last D in the page cache.
        if mistake != "found_slot_not_synced":
            medium.sync("meta")
        lazy = Slot.decode(medium.read("meta", cls.LAZY_OFFSET, 2 * SLOT_SIZE))
        journal = self._journal()
        retired = NO_CHUNK
        recovered = False

        bases = [lazy.base_seq] if lazy else []
        bases += [journal[0]] if journal else []
        if any(base > self.slot.seq for base in bases) and mistake != "lost_slot_ignored":
            raise CorruptStore("a durable slot was lost")
        if journal and journal[0] in (self.slot.seq, self.slot.seq - 1):
            retired = journal[2]
        if journal and journal[0] == self.slot.seq and mistake != "journal_not_redone":
            if mistake != "found_journal_not_synced":
                medium.sync("journal")
            self._apply(journal[3])
            self.state = journal[1]
            recovered = True
        elif lazy and (lazy.base_seq == self.slot.seq or mistake == "stale_lazy_slot_trusted"):
            recovered = True
            if lazy.state.length >= self.state.length and self._lazy_holds(lazy):
                self.state = lazy.state
        # The fence: no old L or journal can match the new D.
        if recovered and mistake != "no_fence":
            self.sync(force=True)
        elif recovered:
            self.dirty = True
        if mistake != "no_orphan_removal":
            self._remove_orphans(retired)
        return self

    @classmethod
    def lose_newest_slot(cls, medium: Medium) -> bool:
        """Damages the newest D. False if nothing that stands on it would tell."""
        read = [medium.read("meta", cls._slot_offset(seq), 2 * SLOT_SIZE) for seq in (0, 1)]
        newest = max((slot.seq for slot in map(Slot.decode, read) if slot), default=0)
        lazy = Slot.decode(medium.read("meta", cls.LAZY_OFFSET, 2 * SLOT_SIZE))
        journal = cls(medium, None)._journal()
        witnesses = [lazy.base_seq] if lazy else []
        witnesses += [journal[0]] if journal else []
        if newest < 2 or newest not in witnesses:
            return False
        medium.write("meta", cls._slot_offset(newest), bytes(2 * SLOT_SIZE))
        return True

    def _remove_orphans(self, retired: int) -> None:
        segments = max(1, -(-self.state.length // SEGMENT_CAPACITY))
        removed = False
        for file in sorted(self.medium.cache):
            stem, _, kind = file.partition(".")
            if (kind == "chunk" and (int(stem) > self.state.chunk or int(stem) == retired)) or (
                kind == "loc" and int(stem) >= segments
            ):
                self.medium.unlink(file)
                removed = True
        if removed:
            self.medium.sync_directory()
