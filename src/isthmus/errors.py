"""The exceptions that isthmus raises. Each message says what to do next.

All derive from :class:`IsthmusError`, and all are a ``ValueError`` or a ``TypeError`` as well, so
that code written for scikit-learn or NumPy catches them too.
"""


class IsthmusError(Exception):
    """Base class of all exceptions below."""


class InvalidInputError(IsthmusError, ValueError):
    """An argument has no valid meaning: NaN, an infinity, a negative bandwidth, no rows."""


class ShapeError(InvalidInputError):
    """The shape of an array does not match the other arguments."""


class DtypeError(InvalidInputError, TypeError):
    """An array does not hold numbers of a supported type."""


class UnsupportedOperationError(IsthmusError, TypeError):
    """The energy does not have the requested operation."""


class MissingOperationError(UnsupportedOperationError, AttributeError):
    """The energy has no such method, but another function does the job."""


class UnknownNormalizerError(UnsupportedOperationError, RuntimeError):
    """The energy has no closed-form normaliser, so its ``log_prob`` is unknown."""


class OutsideSupportError(InvalidInputError):
    """The density is zero at the given point, so the result is undefined there."""


class DivergenceError(InvalidInputError, ArithmeticError):
    """A chain or a flow left the representable numbers."""


class CheckFailedError(IsthmusError, AssertionError, ValueError):
    """An energy failed a check of :func:`isthmus.checks.check_energy`."""


class MissingFileError(InvalidInputError, FileNotFoundError):
    """There is no file with the given path."""


class DatasetNotFoundError(IsthmusError, FileNotFoundError, ValueError):
    """A dataset is not on this machine and could not be downloaded."""


class DatasetChangedError(InvalidInputError):
    """The file of a dataset, or its download, does not match its checksum."""


class RunInProgressError(IsthmusError, RuntimeError, ValueError):
    """Another process is writing to the same directory."""


class ClusterError(InvalidInputError, RuntimeError):
    """A Dask cluster cannot be reached, was lost, or could not finish a task."""
