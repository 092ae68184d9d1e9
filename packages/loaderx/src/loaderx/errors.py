"""The exceptions that loaderx raises for itself.

::

    Exception
    └── LoaderxError
        ├── LoaderClosed    (also RuntimeError)
        └── StateMismatch   (also ValueError)

A bad argument is an ordinary ``TypeError``, ``ValueError`` or ``IndexError``. What a stream or a
transform raises reaches the caller unchanged: the same object, with its own traceback.
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["LoaderClosed", "LoaderxError", "StateMismatch"]


class LoaderxError(Exception):
    """Base of every error that loaderx raises for itself."""


class LoaderClosed(LoaderxError, RuntimeError):
    """The loader was closed, so it has no more batches to give."""


class StateMismatch(LoaderxError, ValueError):
    """A saved state does not belong to this sampler or loader.

    Parameters
    ----------
    message : str
        The whole sentence, differences included.
    differences : sequence of str, optional
        One entry for each difference that was found.

    Attributes
    ----------
    differences : tuple of str
        Every difference between the saved state and the present, in the order found.
    """

    def __init__(self, message: str, differences: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.differences: tuple[str, ...] = tuple(differences)
