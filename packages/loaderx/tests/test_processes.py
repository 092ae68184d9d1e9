"""Interpreter exit, signals and forks, each in an interpreter of its own."""

from __future__ import annotations

import os
import sys

import pytest

needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
needs_signals = pytest.mark.skipif(
    sys.platform == "win32", reason="os.kill sends no SIGINT to the process itself on Windows"
)

PREAMBLE = """
import os, signal, sys, threading, time
import numpy as np
from loaderx import DataLoader, LoaderClosed, LoaderxError
x = np.arange(1000)
def step_of(batch, info):
    return info.step
"""

# Another process interrupts: its signals come between any two instructions, those of a thread only
# where the interpreter changes threads. It sends the next one when the last was dealt with.
INTERRUPTED = """
import subprocess
INTERRUPTER = '''import os, random, signal, sys, time
while os.read(0, 1):
    time.sleep(random.random() * 0.001)
    os.kill(int(sys.argv[1]), signal.SIGINT)
'''
command = [sys.executable, "-c", INTERRUPTER, str(os.getpid())]
interrupter = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)
def go_on():
    try:
        os.write(interrupter.stdin.fileno(), b"x")
    except BrokenPipeError:
        pass
def stop():
    interrupter.kill()
    interrupter.wait()
"""


EXITS = {
    "one batch taken, reference kept": "loader = DataLoader({'x': x}, 4, 10); next(loader)",
    "never iterated": "loader = DataLoader({'x': x}, 4, 10)",
    "dropped": "next(DataLoader({'x': x}, 4, 10))",
    "in a cycle": "loader = DataLoader({'x': x}, 4, 10); loader.me = loader; next(loader)",
    "many": "all = [DataLoader({'x': x}, 2, 10) for _ in range(20)]; [next(l) for l in all]",
    "no workers": "loader = DataLoader({'x': x}, 0, 10); next(loader)",
    "in a pass": "loader = DataLoader({'x': x}, 4, 10); once = loader.once(); next(once)",
    "after an error": """
loader = DataLoader({'x': x}, 4, 10, transform=lambda b: 1 / 0)
try: next(loader)
except ZeroDivisionError: pass""",
    "with an error undelivered": """
def bad(batch, info):
    if info.step: raise ValueError("never seen")
loader = DataLoader({'x': x}, 4, 10, transform=bad); next(loader); time.sleep(0.05)""",
    "while workers are busy": """
loader = DataLoader({'x': x}, 4, 10, transform=lambda b: sum(range(20000)))
list(loader.take(20))""",
    "while a transform sleeps": """
def nap(batch, info):
    if info.step: time.sleep(0.3)
loader = DataLoader({'x': x}, 4, 10, transform=nap); next(loader)""",
    "while a transform is stuck": """
def stuck(batch, info):
    if info.step: threading.Event().wait()
loader = DataLoader({'x': x}, 4, 10, transform=stuck); next(loader)""",
    "read by a daemon thread": """
loader = DataLoader({'x': x}, 4, 10)
def read():
    for _ in loader: pass
threading.Thread(target=read, daemon=True).start(); time.sleep(0.05)""",
    "closed by an exit handler": """
import atexit
loader = DataLoader({'x': x}, 4, 10); next(loader); atexit.register(loader.close)""",
    "sys.exit in the loop": """
loader = DataLoader({'x': x}, 4, 10)
for batch in loader: sys.exit(0)""",
}


@pytest.mark.parametrize("name", EXITS)
def test_a_script_that_never_closes_ends_in_silence(name, run_script):
    finished = run_script(PREAMBLE + EXITS[name])
    assert finished.stderr == ""


def test_an_error_that_ends_the_script_is_shown_once_with_its_note(run_script):
    finished = run_script(
        PREAMBLE
        + """
def broken(batch, info):
    if info.step == 3: raise ValueError("the augmentation broke")
    return info.step
for step in DataLoader({'x': x}, 4, 10, transform=broken):
    print(step)
""",
        returncode=1,
    )
    assert finished.stdout.split() == ["0", "1", "2"]
    assert finished.stderr.count("ValueError: the augmentation broke") == 1
    assert "in broken" in finished.stderr
    if sys.version_info >= (3, 11):
        assert "step 3, transform broken" in finished.stderr


def test_system_exit_from_a_transform_ends_the_script_with_its_code(run_script):
    run_script(
        PREAMBLE
        + """
def leave(batch, info):
    if info.step == 2: sys.exit(7)
for _ in DataLoader({'x': x}, 4, 10, transform=leave): pass
""",
        returncode=7,
    )


SIGINT_STATES = {
    "waiting for a slow transform": ("time.sleep(0.004)", 4, 4),
    "waiting for one slot": ("time.sleep(0.003)", 1, 1),
    "never waiting": ("None", 4, 8),
    "always about to wait": ("None", 1, 1),
    "making the batch itself": ("time.sleep(0.003)", 0, 4),
    "making short batches itself": ("None", 0, 4),
}


@needs_signals
@pytest.mark.parametrize("name", SIGINT_STATES)
def test_an_interrupt_in_next_loses_no_step(name, run_script):
    work, workers, prefetch = SIGINT_STATES[name]
    finished = run_script(
        PREAMBLE
        + INTERRUPTED
        + f"""
# The handler interrupts only inside next(): between bytecodes of the script itself a batch that
# was already returned could be lost by the script, not by the loader.
interrupts = 0
def handler(number, frame):
    global interrupts
    while frame is not None:
        if frame.f_code.co_filename.startswith(PACKAGE) and frame.f_code.co_name == "__next__":
            interrupts += 1
            raise KeyboardInterrupt
        frame = frame.f_back
    go_on()
import loaderx
PACKAGE = os.path.dirname(loaderx.__file__)
signal.signal(signal.SIGINT, handler)
def work(batch, info):
    {work}
    return info.step
loader = DataLoader({{'x': x}}, {workers}, 10, {prefetch}, transform=work)
got = []
go_on()
deadline = time.monotonic() + 20
while interrupts < 150 and time.monotonic() < deadline:
    try:
        got.append(next(loader))
    except KeyboardInterrupt:
        go_on()
stop()
assert interrupts >= 20, interrupts
assert got == list(range(len(got))), [(a, b) for a, b in enumerate(got) if a != b][:5]
assert loader.tell() == len(got)
assert list(loader.take(50)) == list(range(len(got), len(got) + 50))
assert loader.stats()["steps"] == loader.tell()
loader.close()
print("ok", interrupts)
"""
    )
    assert finished.stdout.startswith("ok")
    assert finished.stderr == ""


@needs_signals
@pytest.mark.parametrize("workers", [0, 2])
def test_the_first_interrupt_ends_a_waiting_next_at_once(workers, run_script):
    finished = run_script(
        PREAMBLE
        + f"""
entered = threading.Event()
def blocked(batch):
    entered.set()
    while not os.path.exists("never"): time.sleep(0.01)
loader = DataLoader({{'x': x}}, {workers}, 10, transform=blocked)
def interrupt():
    entered.wait()
    time.sleep(0.05)
    os.kill(os.getpid(), signal.SIGINT)
threading.Thread(target=interrupt).start()
try:
    next(loader)
except KeyboardInterrupt:
    print("interrupted at", loader.tell())
"""
    )
    assert finished.stdout.split() == ["interrupted", "at", "0"]
    assert finished.stderr == ""


@needs_signals
def test_an_uncaught_interrupt_ends_the_script(run_script):
    finished = run_script(
        PREAMBLE
        + """
threading.Timer(0.2, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
for _ in DataLoader({'x': x}, 4, 10): pass
""",
        returncode=None,
    )
    assert finished.returncode != 0
    assert finished.stderr.rstrip().endswith("KeyboardInterrupt")


@needs_signals
@pytest.mark.parametrize("workers", [0, 4])
@pytest.mark.parametrize("action", ["loader.close()", "loader.seek(0)", "loader.state_dict()"])
def test_a_signal_handler_may_use_the_loader(workers, action, run_script):
    finished = run_script(
        PREAMBLE
        + f"""
calls = 0
def handler(number, frame):
    global calls
    calls += 1
    {action}
    signal.setitimer(signal.ITIMER_REAL, 0.001)
signal.signal(signal.SIGALRM, handler)
loader = DataLoader({{'x': x}}, {workers}, 10, 2, transform=step_of)
signal.setitimer(signal.ITIMER_REAL, 0.001)
try:
    while calls < 100: next(loader)
except LoaderClosed: pass
signal.signal(signal.SIGALRM, signal.SIG_IGN)
loader.close()
print("ok")
"""
    )
    assert finished.stdout == "ok\n"
    assert finished.stderr == ""


FORKS = {
    "before the first batch": "pass",
    "after the start": "next(loader)",
    "in a pass": "once = loader.once(); next(once)",
    "after close": "next(loader); loader.close()",
    "after an error": """
loader.seek(10**6)
try: next(loader)
except ValueError: pass
""",
}


@needs_fork
@pytest.mark.parametrize("workers", [0, 4])
@pytest.mark.parametrize("name", FORKS)
def test_a_forked_child_gets_a_clear_error(name, workers, run_script):
    finished = run_script(
        PREAMBLE
        + f"""
import warnings
warnings.simplefilter("ignore", DeprecationWarning)
def transform(batch, info):
    if info.step == 10**6: raise ValueError("bad")
    return info.step
loader = DataLoader({{'x': x}}, {workers}, 10, transform=transform)
{FORKS[name]}
child = os.fork()
if child == 0:
    refused = 0
    for use in (next, DataLoader.tell, DataLoader.state_dict, DataLoader.once, DataLoader.stats,
                lambda l: l.seek(0), lambda l: l.load_state_dict({{}})):
        try:
            use(loader)
        except (LoaderxError, ValueError) as error:
            refused += "process" in str(error) or "missing" in str(error)
    repr(loader)
    loader.close()
    own = DataLoader({{'x': x}}, {workers}, 10, transform=transform)
    fine = list(own.take(30)) == list(range(30))
    del loader, own
    sys.exit(0 if refused == 7 and fine else 3)
_, status = os.waitpid(child, 0)
assert os.waitstatus_to_exitcode(status) == 0, status
if not loader.closed:
    loader.seek(0)
    assert list(loader.take(30)) == list(range(30))
print("ok")
"""
    )
    assert finished.stdout == "ok\n"
    assert finished.stderr == ""


@needs_fork
def test_forks_while_the_lock_is_busy_never_hang(run_script):
    finished = run_script(
        PREAMBLE
        + """
import warnings
warnings.simplefilter("ignore", DeprecationWarning)
loader = DataLoader({'x': x}, 4, 10, 8)
stop = False
def read():
    while not stop: next(loader)
readers = [threading.Thread(target=read) for _ in range(2)]
[r.start() for r in readers]
bad = 0
for _ in range(40):
    child = os.fork()
    if child == 0:
        try:
            next(loader)
        except LoaderxError:
            loader.close()
            del loader
            os._exit(0)
        os._exit(1)
    bad += os.waitpid(child, 0)[1] != 0
stop = True
[r.join() for r in readers]
loader.close()
print("bad", bad)
"""
    )
    assert finished.stdout == "bad 0\n"
    assert finished.stderr == ""


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_workers_of_every_start_method_build_loaders_of_their_own(method, run_script):
    import multiprocessing

    if method not in multiprocessing.get_all_start_methods():
        pytest.skip(f"this system has no start method {method!r}")
    finished = run_script(
        """
import multiprocessing, sys, warnings
import numpy as np
from loaderx import DataLoader
warnings.simplefilter("ignore", DeprecationWarning)

def work(rank, answers):
    with DataLoader({"x": np.arange(100)}, 2, 5, rank=rank, world_size=2, seed=4) as loader:
        answers.put((rank, [batch["x"].tolist() for batch in loader.take(10)]))

if __name__ == "__main__":
    context = multiprocessing.get_context(sys.argv[1] if sys.argv[1:] else "METHOD")
    parent = DataLoader({"x": np.arange(100)}, 2, 5, seed=4)
    next(parent)
    answers = context.Queue()
    children = [context.Process(target=work, args=(rank, answers)) for rank in range(2)]
    [child.start() for child in children]
    got = dict(answers.get() for _ in children)
    [child.join() for child in children]
    with DataLoader({"x": np.arange(100)}, 0, 10, seed=4) as whole:
        expected = [batch["x"].tolist() for batch in whole.take(10)]
    assert [a + b for a, b in zip(got[0], got[1])] == expected
    assert [child.exitcode for child in children] == [0, 0]
    print("ok")
""".replace("METHOD", method)
    )
    assert finished.stdout == "ok\n"
    assert finished.stderr == ""


@needs_signals
def test_an_interrupt_leaves_no_sampler_locked(run_script):
    run_script(
        PREAMBLE
        + INTERRUPTED
        + """
import loaderx
PACKAGE = os.path.dirname(loaderx.__file__)
sampler = loaderx.Sampler(1000, 10)
interrupts = 0
def handler(number, frame):
    global interrupts
    if frame.f_code.co_filename.startswith(PACKAGE):
        interrupts += 1
        raise KeyboardInterrupt
    go_on()
signal.signal(signal.SIGINT, handler)
go_on()
deadline = time.monotonic() + 20
while interrupts < 1000 and time.monotonic() < deadline:
    try:
        sampler.next()
        sampler.seek(5)
    except KeyboardInterrupt:
        go_on()
stop()
assert interrupts >= 50, interrupts
# A lock left behind would be the main thread's: another one meets it.
other = threading.Thread(target=sampler.seek, args=(7,), daemon=True)
other.start()
other.join(10)
assert not other.is_alive() and sampler.tell() == 7
"""
    )
