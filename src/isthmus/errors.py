"""Every error that isthmus raises on purpose, each saying what to do next."""

__all__ = [
    "CheckFailedError",
    "DatasetChangedError",
    "DatasetNotFoundError",
    "DivergenceError",
    "DtypeError",
    "InvalidInputError",
    "IsthmusError",
    "OutsideSupportError",
    "RunInProgressError",
    "ShapeError",
    "UnknownNormalizerError",
    "UnsupportedOperationError",
]


class IsthmusError(Exception):
    """Base class: ``except IsthmusError`` catches everything below."""


class InvalidInputError(IsthmusError, ValueError):
    """A value that no answer exists for: NaN, an infinity, a negative bandwidth, no rows."""


class ShapeError(InvalidInputError):
    """An array whose shape does not fit the others."""


class DtypeError(IsthmusError, TypeError):
    """An array that does not hold float32 or float64 numbers."""


class UnknownNormalizerError(IsthmusError, RuntimeError):
    """``log_prob`` of an energy whose partition function is not known in closed form."""


class UnsupportedOperationError(IsthmusError, TypeError):
    """An operation that this kind of energy does not have."""


class OutsideSupportError(IsthmusError, ValueError):
    """A question about a place where the density is zero, so that it has no answer."""


class DivergenceError(IsthmusError, ArithmeticError):
    """A chain or a flow that left the representable numbers."""


class CheckFailedError(IsthmusError, AssertionError):
    """An energy that broke one of the promises in :func:`isthmus.checks.check_energy`."""


class DatasetNotFoundError(IsthmusError, FileNotFoundError):
    """A dataset that is not on this machine and could not be downloaded."""


class DatasetChangedError(IsthmusError, ValueError):
    """A dataset's file, or a download of it, that is not what it should be."""


class RunInProgressError(IsthmusError, RuntimeError):
    """A study's directory that another run is writing to."""
