"""pretrained: models that come with the package."""

from __future__ import annotations

from importlib.resources import as_file, files

from isthmus.errors import InvalidInputError
from isthmus.incontext.model import ICLEBM

__all__ = ["pretrained"]


def pretrained(name: str = "mixtures-2d") -> ICLEBM:
    """Load a model that ships with isthmus, ready to condition.

    Its parameters are frozen, so that energies come without a graph; ``train(init=model)``
    trains a copy, and ``model.requires_grad_()`` thaws it.

    Parameters
    ----------
    name : str
        ``"mixtures-2d"``: mixtures of three Gaussians in two dimensions, means in [-3, 3]^2,
        standard deviations 0.3 to 0.6. Bring data to that scale first.

    Examples
    --------
    >>> import torch
    >>> from isthmus.incontext import pretrained
    >>> energy = pretrained("mixtures-2d").condition([[1.0, 1.0], [1.2, 0.9], [-2.0, 0.5]])
    >>> bool(energy.energy([1.1, 1.0]) < energy.energy([-2.0, -2.0]))
    True
    """
    folder = files("isthmus.incontext") / "weights"
    entries = folder.iterdir() if folder.is_dir() else ()
    names = sorted(entry.name for entry in entries if entry.is_dir())
    if name not in names:
        raise InvalidInputError(f"No model is called {name!r}. Choose from: {', '.join(names)}.")
    with as_file(folder / name) as path:
        return ICLEBM.from_pretrained(path).eval().requires_grad_(False)
