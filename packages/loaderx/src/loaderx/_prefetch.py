"""Ordered hand-over by step: the last arrow of the gather flow.

Protocol
--------
*What is shared.* A `Ring` is all that worker threads hold. One re-entrant lock guards every field
of it and of its runs. A `Run` is one generation: the steps from a start, in order, until a seek.
The ring works on one run at a time, and a run belongs to one activation of the ring only.

*Tickets.* Step ``t`` is a ticket of its run and lands in slot ``t % prefetch``. A worker takes
the next ticket while ``in_flight + ready < prefetch``. Both counts are about batches that exist
or are being made: `in_flight` includes tickets of retired runs, so a seek cannot exceed the bound.
Tickets are taken in order and without gaps, so a free slot is always there, and the ticket that
the consumer needs next is in its slot, in flight, or the next one to be taken: no order of events
can leave everybody waiting. More threads than slots could never work, so none are started.

*Parking.* One lock, and a gate for each thread that waits: a plain lock of its own, registered
under the ring's lock and waited for while nothing is held. Whoever wakes a thread takes its gate
out of the list and opens it. This is what `threading.Condition` does inside, except for two
points: an interrupt inside `Condition.wait` can leave the lock released or the waiter registered,
and a waiter here looks once more *after* it has registered, so a close that interrupts the very
thread that is about to park (see *End*) is not missed. Nothing polls.

*Waking.* Whoever changes the state wakes those whom the change concerns:

====================================  =====================================================
change                                wakes
====================================  =====================================================
step ``run.next`` enters its slot     one consumer
a batch is taken                      one worker; one more consumer if the next is ready too
a consumer parks                      one worker, if a ticket is free
a worker takes a ticket               one more worker if another ticket is free
the last step of a run is taken       all consumers
an error is taken, seek, close        all consumers and all workers
====================================  =====================================================

*Errors.* An error sits in the slot of its step. From then on no tickets are taken. When the
consumer reaches it, it moves to ``run.failure`` and the ring lets go of the run: a traceback holds
frames, frames hold the loader, and neither a thread nor the exit handler may hold the loader.

*Hand-over.* An interrupt strikes between two bytecodes, at a call or a backward jump. Taking a
batch changes a few fields with no call between them, and puts step and batch into the `hand` of the
``__next__`` that asked, which gives the step back if anything is raised before its last
instruction, the return. From there on the batch is the caller's.

*Generations.* A seek retires the run and activates another. Results that arrive for a retired run
are dropped. Threads stay.

*End.* `Ring.close` raises the flag, wakes everybody, then joins for a bounded time. The lock is
re-entrant because both a signal handler and the collector, which runs a dropped loader's
finalizer, can interrupt a thread that holds it. For the same reason a test and what depends on it
have no call in between, or the test is made again. Threads are daemons: the interpreter joins
others before exit handlers run.

*Fork.* Threads do not exist in a forked child, and the lock may be held there for ever. So every
entry compares the process first.

*No workers.* With no threads the consumer takes the ticket and makes the batch itself. In that
case an interrupt is not an error of the step: the step is made again.
"""

from __future__ import annotations

import enum
import os
import threading
import time
import warnings
from _thread import allocate_lock, get_ident
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Any, NoReturn

from loaderx._lock import Lock
from loaderx.errors import LoaderClosed, LoaderxError

JOIN_SECONDS = 1.0

# What the work function returns for a step: batch, samples, bytes, gather and transform seconds.
Made = tuple[Any, int, int, float, float]


class Failure:
    """The exception of one step, with the traceback that it had when it was caught."""

    __slots__ = ("error", "traceback")

    def __init__(self, error: BaseException) -> None:
        self.error = error
        self.traceback: TracebackType | None = error.__traceback__


class Answer(enum.Enum):
    """What `Ring.take` returns when it has no batch."""

    END = "every step of the run was delivered"
    RETIRED = "the run was replaced by another"


class Progress:
    """What one thread is doing now; written by that thread, read for messages."""

    __slots__ = ("stage", "step")

    def __init__(self) -> None:
        self.step = 0
        self.stage = ""


class Run:
    """One generation of steps. All fields but `source` and `end` are guarded by the ring's lock.

    Parameters
    ----------
    source : object
        Handed to the work function with each step.
    start : int
        The first step.
    end : int or None
        One past the last step; None for a run without end.
    failure : Failure or None
        The error that this run starts with.
    """

    __slots__ = (
        "end", "failed", "failure", "halted", "next", "ready", "retired", "returned", "slots",
        "source", "ticket",
    )  # fmt: skip

    def __init__(
        self, source: Any, start: int, end: int | None = None, failure: Failure | None = None
    ) -> None:
        self.source = source
        self.next = start  # the step to deliver next
        self.ticket = start  # the step to be taken next by a worker
        self.end = end
        self.slots: list[Made | Failure | None] = []
        self.ready = 0  # slots that are filled
        self.returned: dict[int, Made] = {}  # taken, but given back by an interrupt
        self.halted = failure is not None  # no more tickets
        self.failed: int | None = None  # the first step whose slot holds a failure
        self.failure = failure
        self.retired = False

    def position(self) -> int:
        """Return the first step that was not delivered."""
        return min(self.returned, default=self.next)

    def drop(self) -> None:
        """Let go of every batch that was made and not delivered."""
        self.halted = True
        self.failed = None
        self.slots = [None] * len(self.slots)
        self.ready = 0
        self.returned = {}


class Ring:
    """The state that the worker threads share with the consumer.

    Parameters
    ----------
    work : callable
        ``work(source, step, progress)`` makes the batch of a step; called without the lock.
    prefetch : int
        Bound on batches in flight plus batches ready.
    workers : int
        Threads; 0 makes batches in the thread that asks for them.
    """

    def __init__(
        self, work: Callable[[Any, int, Progress], Made], prefetch: int, workers: int
    ) -> None:
        self.work = work
        self.prefetch = prefetch
        self.thread_count = min(workers, prefetch)
        self.process = os.getpid()
        self.lock = Lock()
        self.waiting: deque[Any] = deque()  # gates of consumers that wait for a batch
        self.parked: deque[Any] = deque()  # gates of workers that wait for a ticket
        self.threads: dict[threading.Thread, Progress] = {}
        self.run: Run | None = None
        self.in_flight = 0
        self.maker: int | None = None  # the consumer thread that makes a batch itself
        self.closed = False
        self.exiting = False  # closed by the end of the interpreter
        self.warned = False
        # Metrics of the delivered steps.
        self.steps = self.samples = self.bytes = self.starved = 0
        self.gather_s = self.transform_s = self.wait_s = 0.0
        self.first_call: float | None = None
        self.last_call = 0.0

    # ---- the consumer's side

    def take(self, run: Run, hand: list[Any]) -> Failure | Answer | None:
        """Put the next step of `run` and its batch into `hand`, and return None. Any thread.

        Otherwise return the failure of the step, or why there is none. The run becomes the active
        one if it is not. Raises `LoaderClosed` after or during close.

        The caller passes an empty list, and calls `give_back` with it if anything is raised before
        the batch has left the caller.
        """
        self.check_process()
        lock = self.lock
        entered = time.perf_counter()
        gate: Any = None
        making = waited = False
        try:
            while True:
                with lock:
                    if self.closed:
                        self._refuse()
                    if run.retired:
                        return Answer.END if run.next == run.end else Answer.RETIRED
                    if run.failure is not None:
                        if self.run is not None and self.run is not run:
                            self._activate(None)
                        return run.failure
                    if self.run is not run:
                        self._activate(run)
                    if run.returned:
                        step = min(run.returned)
                        made = run.returned[step]
                        hand += (step, made)
                        del run.returned[step]
                        self._count(made, 1)
                        return None
                    step = run.next
                    index = step % self.prefetch
                    outcome = run.slots[index]
                    if step == run.failed:
                        return self._fail(run)
                    if outcome is not None:
                        # No call between reading the slot and the last field: see *Hand-over*.
                        hand += (step, outcome)
                        run.slots[index] = None
                        run.ready -= 1
                        run.next = step + 1
                        self.steps += 1
                        self.samples += outcome[1]  # type: ignore[index]
                        self.bytes += outcome[2]  # type: ignore[index]
                        self.gather_s += outcome[3]  # type: ignore[index]
                        self.transform_s += outcome[4]  # type: ignore[index]
                        if self.first_call is None:
                            self.first_call = entered
                        self.last_call = entered
                        if waited:
                            self.starved += 1
                            self.wait_s += time.perf_counter() - entered
                        if self.waiting:
                            self._wake_after_take(run)
                        if self.parked:
                            self._wake_worker()
                        return None
                    if step == run.end:
                        return Answer.END
                    waited = True
                    if self.thread_count == 0 and self.maker is None:
                        ident = get_ident()
                        making = True
                        self.maker = ident
                    else:
                        self._before_waiting()
                        gate = allocate_lock()
                        gate.acquire()
                        self.waiting.append(gate)
                        self._wake_worker()
                        if self.closed or run.retired:
                            self._wake_all()
                if making:
                    result = _attempt(self.work, run.source, step, Progress(), interruptible=True)
                    with lock:
                        making = False
                        self.maker = None
                        if not run.retired and run.failure is None:
                            self._fill(run, step, result)
                        self._wake_consumer()
                else:
                    gate.acquire()
                    gate = None
        except BaseException:
            if making:  # interrupted: the step is made again by whoever asks next
                self.maker = None
            with lock:
                if making:
                    self._wake_consumer()
                if gate is not None:
                    if gate in self.waiting:
                        self.waiting.remove(gate)
                    else:
                        self._wake_consumer()  # the wake that came for this thread
            raise

    def _refuse(self) -> NoReturn:
        if self.exiting and threading.current_thread() is not threading.main_thread():
            # A daemon thread that reads until the interpreter ends: end it without a traceback.
            raise SystemExit
        raise LoaderClosed("the DataLoader is closed; build another one")

    def _before_waiting(self) -> None:
        if self.maker == get_ident() or threading.current_thread() in self.threads:
            raise LoaderxError(
                "next() was called by the loader's own transform or stream, which would wait "
                "for itself; take batches outside of it"
            )
        if len(self.threads) < self.thread_count:
            self._start_threads()

    def give_back(self, run: Run, hand: list[Any]) -> None:
        """Undo `take` after an interrupt, so that the step is delivered by the next one."""
        if not hand:
            return
        step, made = hand
        with self.lock:
            if run.retired:
                return
            if run.next == step:  # nothing was changed yet
                run.slots[step % self.prefetch] = made
                run.ready = sum(slot is not None for slot in run.slots)
            elif step not in run.returned:
                run.returned[step] = made
                self._count(made, -1)
            self._wake_consumer()

    def _count(self, made: Made, sign: int) -> None:
        self.steps += sign
        self.samples += sign * made[1]
        self.bytes += sign * made[2]
        self.gather_s += sign * made[3]
        self.transform_s += sign * made[4]

    def _fail(self, run: Run) -> Failure:
        failure = run.slots[run.next % self.prefetch]
        assert type(failure) is Failure
        run.failure = failure
        run.drop()
        self.run = None
        self._wake_all()
        return failure

    # ---- waking; the caller holds the lock

    @staticmethod
    def _open_first(gates: deque[Any]) -> None:
        # No call between the test and the release, so that no interrupt loses an open gate.
        if gates:
            gate = gates[0]
            del gates[0]
            gate.release()

    def _wake_consumer(self) -> None:
        self._open_first(self.waiting)

    def _wake_worker(self) -> None:
        if self._free_ticket() is not None:
            self._open_first(self.parked)

    def _wake_after_take(self, run: Run) -> None:
        if run.next == run.end:
            self._wake_all()
        elif self.thread_count == 0 or run.slots[run.next % self.prefetch] is not None:
            self._wake_consumer()

    def _wake_all(self) -> None:
        # The loop is a call, as its jump back may lie outside of the try around it.
        try:
            self._open_all()
        except BaseException:  # interrupted: nobody is left asleep for that
            self._open_all()
            raise

    def _open_all(self) -> None:
        while self.waiting or self.parked:
            self._open_first(self.waiting)
            self._open_first(self.parked)

    # ---- runs; the caller holds the lock

    def replace(self, old: Run, new: Run) -> None:
        """Retire `old` and work on `new`. Takes the lock itself."""
        with self.lock:
            self._retire(old)
            self._activate(new)

    def _activate(self, run: Run | None) -> None:
        if run is not None:
            if run.retired:
                return  # a signal handler has replaced it since
            if run.halted:
                run = None
            else:
                run.slots = [None] * self.prefetch
        previous = self.run
        self.run = run
        if previous is not None and previous is not run:
            self._retire(previous)
        self._wake_all()

    @staticmethod
    def _retire(run: Run) -> None:
        run.retired = True
        run.drop()

    # ---- the workers' side

    def _free_ticket(self) -> Run | None:
        """Return the active run if a ticket of it may be taken now."""
        run = self.run
        if (
            run is None
            or run.halted
            or self.in_flight + run.ready >= self.prefetch
            or run.ticket == run.end
        ):
            return None
        return run

    def _publish(self, run: Run, step: int, outcome: Made | Failure) -> None:
        self.in_flight -= 1
        if run.retired or run.failure is not None:
            return  # nobody will ask for it
        self._fill(run, step, outcome)
        if step == run.next:
            self._wake_consumer()

    def _fill(self, run: Run, step: int, outcome: Made | Failure) -> None:
        if type(outcome) is Failure:
            run.halted = True
            if run.failed is None or step < run.failed:
                run.failed = step
        run.slots[step % self.prefetch] = outcome
        run.ready += 1

    def _start_threads(self) -> None:
        while len(self.threads) < self.thread_count:
            progress = Progress()
            thread = threading.Thread(
                target=_serve,
                args=(self, progress),
                name=f"loaderx-{len(self.threads)}",
                daemon=True,
            )
            self.threads[thread] = progress
            try:
                thread.start()
            except BaseException as error:
                if thread.ident is not None:  # it runs; an interrupt struck after that
                    raise
                del self.threads[thread]
                if not self.threads or not isinstance(error, RuntimeError):
                    raise
                # The machine gives no more threads. Any number of them delivers the same batches.
                self.thread_count = len(self.threads)

    # ---- the end

    def check_process(self) -> None:
        """Refuse to go on in a forked child, where the threads do not exist."""
        if os.getpid() != self.process:
            raise LoaderxError(
                f"this DataLoader was built in process {self.process} and cannot be used in "
                f"process {os.getpid()}, which was forked from it; build a DataLoader in the child"
            )

    def signal_close(self) -> None:
        """Raise the flag and wake everybody, without waiting for anybody."""
        with self.lock:
            self.closed = True
            if self.run is not None:
                self._retire(self.run)
                self.run = None
            self._wake_all()

    def close(self, describe: Callable[[Progress], str]) -> None:
        """Signal, then join the threads for at most `JOIN_SECONDS`; warn of one that is stuck."""
        if os.getpid() != self.process:
            self.closed = True
            return
        # A signal handler may interrupt a holder of the lock, for which the threads then wait.
        interrupted_holder = self.lock._is_owned()  # type: ignore[attr-defined]
        self.signal_close()
        if interrupted_holder or self.warned:
            return
        stuck = self._join()
        if stuck and threading.main_thread().is_alive():
            self.warned = True
            warnings.warn(
                f"DataLoader.close() waited {JOIN_SECONDS} s and gave up: "
                + "; ".join(describe(progress) for progress in stuck)
                + ". The thread ends when that call returns.",
                RuntimeWarning,
                stacklevel=3,
            )

    def abandon(self) -> None:
        """Stop the threads of a dropped loader; at interpreter exit also join them, silently."""
        if os.getpid() != self.process:
            return
        self.exiting = not threading.main_thread().is_alive()
        self.signal_close()
        if self.exiting:
            self._join()

    def _join(self) -> list[Progress]:
        deadline = time.monotonic() + JOIN_SECONDS
        stuck = []
        for thread, progress in list(self.threads.items()):
            if thread is threading.current_thread() or thread.ident is None:
                continue
            thread.join(max(0.0, deadline - time.monotonic()))
            if thread.is_alive():
                stuck.append(progress)
        return stuck


def _serve(ring: Ring, progress: Progress) -> None:
    """One worker: publish the finished step and take the next ticket, under one lock."""
    lock, work = ring.lock, ring.work
    run: Run | None = None
    outcome: Made | Failure | None = None
    gate: Any = None
    step = 0
    while True:
        with lock:
            if run is not None and outcome is not None:
                ring._publish(run, step, outcome)
            outcome = None  # a parked thread keeps no batch alive
            run = ring._free_ticket()
            if run is not None:
                step = run.ticket
                run.ticket = step + 1
                ring.in_flight += 1
                if ring.parked:
                    ring._wake_worker()
            else:
                gate = allocate_lock()
                gate.acquire()
                ring.parked.append(gate)
            if ring.closed:
                return
        if run is None:
            gate.acquire()
        else:
            outcome = _attempt(work, run.source, step, progress)


def _attempt(
    work: Callable[[Any, int, Progress], Made],
    source: Any,
    step: int,
    progress: Progress,
    interruptible: bool = False,
) -> Made | Failure:
    """Make a batch, or catch what prevented it. Its frame is the outermost of the traceback."""
    try:
        return work(source, step, progress)
    except KeyboardInterrupt as error:
        if interruptible:
            raise
        return Failure(error)
    except BaseException as error:
        return Failure(error)
