"""Evaluation: the scores of a model and its references, task by task."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from isthmus.errors import InvalidInputError
from isthmus.files import write_atomically

if TYPE_CHECKING:
    import pandas

__all__ = ["Evaluation"]

FloatArray = NDArray[np.float64]
ARRAYS = ("tempered", "kl", "order", "descent", "normalizer_error")


@dataclass(frozen=True, eq=False, repr=False)
class Evaluation:
    """Scores in nats, for every context size and task.

    Attributes
    ----------
    prior : str
        The ``repr`` of the prior of the tasks.
    seed, points : int
        The seed of the tasks, and the number of held-out points of each.
    contexts : tuple of int
        Context sizes n; contexts of a task are the first n points of one sequence.
    nll : dict of ndarray (contexts, tasks)
        Mean negative log-likelihood of a task's held-out points: "model", "truth", and each
        reference; NaN where a reference is not defined.
    temperature : float
        The temperature T with the lowest mean negative log-likelihood of p^(1/T).
    tempered : ndarray (contexts, tasks)
        The model's negative log-likelihood at that temperature.
    kl : ndarray (contexts, tasks)
        Kullback-Leibler divergence of the model's density from the true one.
    order : ndarray (contexts, some tasks)
        Divergence between the model's densities for two orders of one context.
    descent : ndarray (contexts, some tasks)
        Squared distance of descent end points, not in nats
        (:func:`~isthmus.incontext.evaluation.descent_error`).
    normalizer_error : ndarray (contexts, tasks)
        Bound or standard error of the model's log-normaliser.
    reference_error : dict of ndarray (contexts, tasks)
        Monte Carlo error of those references that have one.
    """

    prior: str
    seed: int
    points: int
    contexts: tuple[int, ...]
    nll: dict[str, FloatArray]
    temperature: float
    tempered: FloatArray
    kl: FloatArray
    order: FloatArray
    descent: FloatArray
    normalizer_error: FloatArray
    reference_error: dict[str, FloatArray]

    @property
    def tasks(self) -> int:
        """Number of tasks."""
        return self.kl.shape[1]

    @property
    def references(self) -> tuple[str, ...]:
        """Names of everything that the model is compared with, the truth included."""
        return tuple(name for name in self.nll if name != "model")

    def mean(self, name: str = "model") -> FloatArray:
        """Return the mean negative log-likelihood over tasks. (contexts,)."""
        return self._scores(name).mean(1)

    def standard_error(self, name: str = "model") -> FloatArray:
        """Return the standard error of that mean, over tasks. (contexts,)."""
        return _standard_error(self._scores(name))

    def difference(self, name: str) -> tuple[FloatArray, FloatArray]:
        """Return mean and standard error of model minus reference, paired over tasks.

        Both are (contexts,). The model is better where the mean is below zero.
        """
        paired = self._scores("model") - self._scores(name)
        return paired.mean(1), _standard_error(paired)

    def _scores(self, name: str) -> FloatArray:
        if name not in self.nll:
            raise InvalidInputError(
                f"{name!r} was not evaluated. Choose from: {', '.join(self.nll)}."
            )
        return self.nll[name]

    def __repr__(self) -> str:
        return f"Evaluation(prior={self.prior}, contexts={self.contexts}, tasks={self.tasks})"

    def __str__(self) -> str:
        size = f"{self.tasks} tasks, {self.points} held-out points each, seed {self.seed}"
        scores = {name: _cells(self.mean(name), self.standard_error(name)) for name in self.nll}
        against = {name: _cells(*self.difference(name)) for name in self.references}
        other = {
            f"NLL at T={self.temperature:.3g}": _summary(self.tempered),
            "KL from truth": _summary(self.kl),
            "KL of two orders": _summary(self.order),
            "descent error": _summary(self.descent),
            "error of log Z": [f"{value:.1e}" for value in self.normalizer_error.mean(1)],
        }
        other |= {
            f"error of {name}": [f"{value:.1e}" for value in error.mean(1)]
            for name, error in self.reference_error.items()
        }
        tables = (
            ("Negative log-likelihood, nats ± standard error", scores),
            ("Model minus reference, paired over tasks (below 0: the model is better)", against),
            ("The model itself", other),
        )
        parts = [f"{heading}\n{_table(self.contexts, rows)}" for heading, rows in tables]
        return "\n\n".join([f"{self.prior}\n{size}", *parts])

    def to_frame(self) -> pandas.DataFrame:
        """Return a pandas frame with a row for each context size and task."""
        import pandas

        index = pandas.MultiIndex.from_product(
            [self.contexts, range(self.tasks)], names=["context", "task"]
        )
        columns = {f"nll_{name}": scores.ravel() for name, scores in self.nll.items()}
        columns |= {"nll_tempered": self.tempered.ravel(), "kl": self.kl.ravel()}
        columns |= {"normalizer_error": self.normalizer_error.ravel()}
        for name in ("order", "descent"):
            some = getattr(self, name)
            padded = np.full(self.kl.shape, np.nan)
            padded[:, : some.shape[1]] = some
            columns[name] = padded.ravel()
        columns |= {f"error_{name}": error.ravel() for name, error in self.reference_error.items()}
        return pandas.DataFrame(columns, index=index).reset_index()

    def to_json(self, path: str | Path | None = None) -> str:
        """Return everything as JSON, for :meth:`from_json`, and write it if a path is given."""
        text = json.dumps(_plain(asdict(self)), allow_nan=False) + "\n"
        if path is not None:
            write_atomically(path, text)
        return text

    @classmethod
    def from_json(cls, path: str | Path) -> Evaluation:
        """Read the file of :meth:`to_json`."""
        content = json.loads(Path(path).read_text())
        content["contexts"] = tuple(content["contexts"])
        for name in ARRAYS:
            content[name] = np.array(content[name], dtype=float)
        for name in ("nll", "reference_error"):
            content[name] = {
                key: np.array(rows, dtype=float) for key, rows in content[name].items()
            }
        return cls(**content)


def _standard_error(scores: FloatArray) -> FloatArray:
    tasks = scores.shape[1]
    if tasks < 2:
        return np.full(len(scores), np.nan)
    error: FloatArray = scores.std(1, ddof=1) / math.sqrt(tasks)
    return error


def _summary(scores: FloatArray) -> list[str]:
    if scores.shape[1] == 0:
        return ["-"] * len(scores)
    return _cells(scores.mean(1), _standard_error(scores))


def _cells(means: FloatArray, errors: FloatArray) -> list[str]:
    pairs = zip(means, errors, strict=True)
    return ["-" if np.isnan(mean) else f"{mean:.3f} ± {error:.3f}" for mean, error in pairs]


def _table(contexts: tuple[int, ...], rows: dict[str, list[str]]) -> str:
    table = [["n", *map(str, contexts)], *([name, *cells] for name, cells in rows.items())]
    widths = [max(len(row[column]) for row in table) for column in range(len(table[0]))]
    return "\n".join(
        "  ".join(cell.rjust(width) if i else cell.ljust(width) for i, (cell, width) in pairs)
        for row in table
        for pairs in [enumerate(zip(row, widths, strict=True))]
    )


def _plain(value: Any) -> Any:
    """Return lists for arrays and None for NaN and infinities, as JSON has no others."""
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, np.ndarray | list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, float | np.floating):
        return float(value) if math.isfinite(value) else None
    return value
