"""pretrained: load a model that ships with isthmus, or one from a folder."""

from __future__ import annotations

from importlib.resources import as_file, files
from pathlib import Path

from isthmus.incontext.model import ICLEBM
from isthmus.validation import as_choice

__all__ = ["pretrained"]


def pretrained(name: str | Path = "mixtures-2d") -> ICLEBM:
    """Load a model that is ready to condition.

    Its parameters are frozen, so that energies are computed without a graph. ``train(init=model)``
    trains a copy, and ``model.requires_grad_()`` makes the parameters trainable again.

    Parameters
    ----------
    name : str or Path
        ``"mixtures-2d"``, the model that ships with isthmus: mixtures of three Gaussians in two
        dimensions, means in [-3, 3]^2, standard deviations 0.3 to 0.6; bring data to that scale
        first. Or a folder of ``save_pretrained``, or of a training run.

    Examples
    --------
    >>> import torch
    >>> from isthmus.incontext import pretrained
    >>> energy = pretrained("mixtures-2d").condition([[1.0, 1.0], [1.2, 0.9], [-2.0, 0.5]])
    >>> bool(energy.energy([1.1, 1.0]) < energy.energy([-2.0, -2.0]))
    True
    """
    shipped = files("isthmus.incontext") / "weights"
    names = sorted(entry.name for entry in shipped.iterdir() if entry.is_dir())
    folder = Path(name)
    if str(name) not in names and (folder.is_dir() or len(folder.parts) > 1):
        inner = folder / "model"
        model = ICLEBM.from_pretrained(inner if inner.is_dir() else folder)
    else:
        with as_file(shipped / as_choice(str(name), "name", names)) as path:
            model = ICLEBM.from_pretrained(path)
    return model.eval().requires_grad_(False)
