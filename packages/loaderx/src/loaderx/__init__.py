"""Ordered, exactly resumable batches from stores and arrays.

`Sampler` draws the indices of any step as a pure function of seed and position. `DataLoader`
gathers, transforms and hands over the batches of consecutive steps, ahead of time and in order.
"""

from importlib.metadata import version as _version

from loaderx.dataloader import DataLoader
from loaderx.errors import LoaderClosed, LoaderxError, StateMismatch
from loaderx.zsampler import Sampler

__version__ = _version("loaderx")

__all__ = [
    "DataLoader",
    "LoaderClosed",
    "LoaderxError",
    "Sampler",
    "StateMismatch",
    "__version__",
]
