"""A crash-safe store of typed records, dense and ragged.

`DenseStore` keeps records of one dtype and shape, `RaggedStore` records of one dtype that each have
a shape of their own. Both read any set of records by index, in parallel and without Python's lock.

Examples
--------
>>> import tempfile, numpy as np
>>> from zrecord import DenseStore
>>> folder = tempfile.mkdtemp()
>>> with DenseStore(folder + "/images", np.uint8, (8, 8)) as store:
...     first = store.append(np.zeros((100, 8, 8), np.uint8))
...     store[[3, 1, 4]].shape
(3, 8, 8)
"""

import logging
from typing import TYPE_CHECKING

from ._batch import RaggedBatch
from ._dense import DenseStore
from ._dictionary import DICT_TIERS, train_dict
from ._native import get_include, get_library
from ._ragged import RaggedStore
from ._store import VerifyReport
from ._threads import configure_threads, get_num_threads, set_num_threads
from ._versions import show_versions
from .errors import (
    CorruptRecord,
    CorruptStore,
    ForkedHandle,
    ReadOnlyStore,
    RecordIndexError,
    StoreBusy,
    StoreChanged,
    StoreClosed,
    StoreFailed,
    UnsupportedFormat,
    ZrecordError,
)

if TYPE_CHECKING:
    __version__: str
else:

    def __getattr__(name: str) -> str:
        """Look the version up where it stands; reading metadata costs more than all the rest."""
        if name == "__version__":
            from importlib.metadata import version

            return version("zrecord")
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "DICT_TIERS",
    "CorruptRecord",
    "CorruptStore",
    "DenseStore",
    "ForkedHandle",
    "RaggedBatch",
    "RaggedStore",
    "ReadOnlyStore",
    "RecordIndexError",
    "StoreBusy",
    "StoreChanged",
    "StoreClosed",
    "StoreFailed",
    "UnsupportedFormat",
    "VerifyReport",
    "ZrecordError",
    "__version__",
    "get_include",
    "get_library",
    "get_num_threads",
    "set_num_threads",
    "show_versions",
    "train_dict",
]

logging.getLogger("zrecord").addHandler(logging.NullHandler())
configure_threads()
