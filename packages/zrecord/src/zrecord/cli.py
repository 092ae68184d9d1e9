"""The command line: ``zrecord`` and ``python -m zrecord``.

Exit codes: 0 for success, 1 where damage was found, 2 for wrong usage and for what cannot be read,
130 where Ctrl-C stopped the work.
Results go to standard output, messages and progress to standard error. Commands that make a store
or a file make it under another name first, so that a failure leaves nothing behind.
"""

from __future__ import annotations

import argparse
import errno
import json
import math
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from ._dense import DenseStore
from ._dictionary import DICT_TIERS, train_dict
from ._identity import describe
from ._numpy_files import AnyStore, export_file, import_file
from ._opening import CODECS, stored_kind
from ._progress import ProgressLine
from ._ragged import RaggedStore
from .errors import CorruptRecord, ZrecordError

_OK, _FINDING, _UNREADABLE = 0, 1, 2
_INTERRUPTED = 130
_COPY_SIZE = 16 * 2**20
_SHOWN_ITEMS = 16


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line.

    Parameters
    ----------
    arguments : sequence of str, optional
        What follows the program's name; ``sys.argv[1:]`` if not given.

    Returns
    -------
    int
        The exit code: 0, 1 (damage found), 2 (wrong usage, or unreadable) or 130 (stopped).
    """
    options = _parser().parse_args(arguments)
    command: Callable[[argparse.Namespace], int] = options.command
    try:
        code = command(options)
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        sys.stderr.write("zrecord: stopped\n")
        return _INTERRUPTED
    except BrokenPipeError:
        # The reader of our output went away; what is still buffered has nowhere to go.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _OK
    except (ZrecordError, OSError, ValueError, TypeError, MemoryError) as error:
        sys.stderr.write(f"zrecord: {error}\n")
        if options.json:
            _print_json({"error": str(error), "type": type(error).__name__})
        return _FINDING if isinstance(error, CorruptRecord) else _UNREADABLE


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="zrecord", description="Look into, check and make stores."
    )
    parser.add_argument("--version", action="version", version=f"zrecord {version('zrecord')}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")

    def add(name: str, command: Callable[[Any], int], text: str) -> argparse.ArgumentParser:
        added = commands.add_parser(name, help=text, description=text)
        added.set_defaults(command=command)
        added.add_argument("--json", action="store_true", help="print one JSON document")
        return added

    info = add("info", _info, "Show what a store is and how large it is.")
    info.add_argument("store")
    head = add("head", _head, "Show the first records of a store.")
    head.add_argument("store")
    head.add_argument("-n", type=_count, default=5, metavar="N", help="how many (default 5)")
    verify = add("verify", _verify, "Read every record and compare it with its checksum.")
    verify.add_argument("store")
    compact = add("compact", _compact, "Give the space of deleted records back.")
    compact.add_argument("store")

    copy = add("copy", _copy, "Copy a store in index order, with another codec if asked.")
    copy.add_argument("store")
    copy.add_argument("target")
    _add_codec(copy, "the source's")
    copy.add_argument(
        "--tier",
        choices=DICT_TIERS,
        default="balanced",
        help="what to train for codec zstd_dict without --dict (default balanced)",
    )
    import_ = add("import", _import, "Make a store of a .npy or .npz file.")
    import_.add_argument("file")
    import_.add_argument("target")
    _add_codec(import_, "zstd")
    export = add("export", _export, "Write a store into a .npy or .npz file.")
    export.add_argument("store")
    export.add_argument("file")

    train = add("train-dict", _train_dict, "Train a dictionary on the records of a store.")
    train.add_argument("store")
    train.add_argument("file")
    train.add_argument("--tier", choices=DICT_TIERS, default="balanced")
    return parser


def _add_codec(parser: argparse.ArgumentParser, default: str) -> None:
    parser.add_argument("--codec", choices=CODECS, help=f"default: {default}")
    parser.add_argument("--dict", metavar="FILE", help="dictionary for codec zstd_dict")


def _count(text: str) -> int:
    count = int(text)
    if count < 0:
        raise argparse.ArgumentTypeError("at least 0")
    return count


# ---- commands that read -------------------------------------------------------------------------


def _info(options: argparse.Namespace) -> int:
    with _open(options.store) as store:
        facts: dict[str, Any] = {
            "path": store.path,
            "kind": "dense" if isinstance(store, DenseStore) else "ragged",
            "dtype": describe(store.dtype),
        }
        if isinstance(store, DenseStore):
            facts["item_shape"] = list(store.item_shape)
        uuid, epoch = store.fingerprint[:2]
        header = store._handle.info()
        facts |= {
            "codec": store.codec,
            "has_dict": store.has_dict,
            "dict_bytes": header.dict_size,
            "format_version": header.format_version,
            "uuid": uuid,
            "epoch": epoch,
            **store.stats(),
        }
    if options.json:
        _print_json(facts)
        return _OK
    for name, value in facts.items():
        shown = f"{value} ({_size(value)})" if name in _SIZES and value >= 1024 else str(value)
        print(f"{name:<15} {shown}")
    return _OK


_SIZES = ("live_bytes", "chunk_bytes", "reclaimable", "dict_bytes")


def _head(options: argparse.Namespace) -> int:
    with _open(options.store) as store:
        shown = []
        for index in range(min(options.n, len(store))):
            record = store[index]
            if options.json:
                items = record.reshape(-1)[:_SHOWN_ITEMS].tolist()
                shown.append({"index": index, "shape": list(record.shape), "items": _plain(items)})
            else:
                text = np.array2string(record, threshold=_SHOWN_ITEMS, separator=", ")
                print(index, record.shape, " ".join(text.split()))
        if options.json:
            _print_json({"dtype": describe(store.dtype), "length": len(store), "records": shown})
    return _OK


def _verify(options: argparse.Namespace) -> int:
    with _open(options.store) as store, ProgressLine("verify") as progress:
        report = store.verify(progress.show)
    if options.json:
        damaged = [{"index": index, "reason": reason} for index, reason in report.damaged]
        _print_json({**report._asdict(), "path": options.store, "damaged": damaged})
    else:
        for index, reason in report.damaged:
            print(f"record {index}: {reason}")
        for note in report.notes:
            print(note)
        damage = f"{len(report.damaged)} damaged" if report.damaged else "none damaged"
        print(f"{report.records} records, {_size(report.bytes)} read, {damage}")
    return _OK if report.ok else _FINDING


def _export(options: argparse.Namespace) -> int:
    with _open(options.store, "always") as store, ProgressLine("export", len(store)) as progress:
        export_file(store, options.file, progress.advance)
        count = len(store)
    _done(options, {"file": options.file, "records": count})
    return _OK


def _train_dict(options: argparse.Namespace) -> int:
    with _open(options.store, "always") as store:
        trained = train_dict(store, tier=options.tier, path=options.file)
    _done(options, {"file": options.file, "dict_bytes": len(trained)})
    return _OK


# ---- commands that write ------------------------------------------------------------------------


def _compact(options: argparse.Namespace) -> int:
    kind = _class(options.store)
    with kind(options.store) as store, ProgressLine("compact") as progress:
        before = store.stats()["chunk_bytes"]
        store.compact(progress.show)
        freed = before - store.stats()["chunk_bytes"]
    _done(options, {"store": options.store, "freed_bytes": freed})
    return _OK


def _copy(options: argparse.Namespace) -> int:
    with (
        _open(options.store, "always") as source,
        ProgressLine("copy", len(source)) as progress,
        _new_folder(options.target) as folder,
    ):
        codec = options.codec or source.codec
        dictionary = None
        if options.dict is not None:
            dictionary = Path(options.dict).read_bytes()
        elif codec == "zstd_dict":
            dictionary = train_dict(source, tier=options.tier)
        if isinstance(source, DenseStore):
            target: AnyStore = DenseStore(
                folder, source.dtype, source.item_shape, codec, dictionary
            )
        else:
            target = RaggedStore(folder, source.dtype, codec, dictionary)
        with target:
            for span in source._batches(_COPY_SIZE):
                batch: Any = (
                    source.gather(span)
                    if isinstance(source, DenseStore)
                    else source.gather_packed(span)
                )
                target.append(batch)
                progress.advance(len(batch))
            facts = {"store": options.target, "codec": codec, **target.stats()}
    _done(options, facts)
    return _OK


def _import(options: argparse.Namespace) -> int:
    size = os.stat(options.file).st_size
    codec = options.codec or "zstd"
    with (
        ProgressLine("import", size) as progress,
        _new_folder(options.target) as folder,
    ):
        dictionary = None if options.dict is None else Path(options.dict).read_bytes()

        def create(dense: bool, dtype: Any, item_shape: Any) -> AnyStore:
            if dense:
                return DenseStore(folder, dtype, item_shape, codec, dictionary)
            return RaggedStore(folder, dtype, codec, dictionary)

        with import_file(options.file, create, progress.advance) as store:
            facts = {"store": options.target, "codec": codec, **store.stats()}
    _done(options, facts)
    return _OK


@contextmanager
def _new_folder(target: str) -> Iterator[str]:
    """Give a folder beside `target` to fill, which takes its name when all went well."""
    if os.path.lexists(target) and not (os.path.isdir(target) and not os.listdir(target)):
        raise FileExistsError(errno.EEXIST, "something is there already", target)
    plain = os.path.abspath(target)
    parent = os.path.dirname(plain)
    os.makedirs(parent, exist_ok=True)
    partial = f"{plain}.{os.getpid()}.partial"
    try:
        yield partial
        if os.path.isdir(plain):
            os.rmdir(plain)
        os.rename(partial, plain)
        _sync_folder(parent)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def _sync_folder(folder: str) -> None:
    if os.name == "posix":
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


# ---- what all need ------------------------------------------------------------------------------


def _class(path: str) -> type[DenseStore] | type[RaggedStore]:
    return DenseStore if stored_kind(path) == "dense" else RaggedStore


def _open(path: str, checksums: str | None = None) -> AnyStore:
    return _class(path)(path, mode="r", checksums=checksums)


def _done(options: argparse.Namespace, facts: dict[str, Any]) -> None:
    if options.json:
        _print_json(facts)
    else:
        print(", ".join(f"{name} {value}" for name, value in facts.items()))


def _print_json(facts: dict[str, Any]) -> None:
    print(json.dumps(facts, ensure_ascii=False))


def _plain(value: Any) -> Any:
    """Return `value` as JSON can hold it; what JSON lacks becomes text."""
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, (bool, int, str)) or value is None:
        return value
    return str(value)


def _size(count: int) -> str:
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.4g} {unit}"
        size /= 1024
    return f"{size:.4g} TiB"
