"""Draw from in-context energies, by chains that start in the right proportions."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from isthmus.dynamics.sample import sample
from isthmus.dynamics.samplers import MALA, Sampler
from isthmus.energy import as_arrays, draws_as_given
from isthmus.errors import ShapeError
from isthmus.incontext.model import ICLEBM, ContextEnergy
from isthmus.memories.base import draw_index, generator_for
from isthmus.memories.gaussian import GaussianKDE
from isthmus.scaling import Scaling
from isthmus.validation import as_count, as_points

# Share of trial points near the context, and the bandwidth there; the others are uniform.
NEAR_SHARE, NEAR_WIDTH = 0.5, 0.6
TRIALS_PER_POINT, FEWEST_TRIALS = 20, 4000
# Trial points reach this many widths of the wall beyond the box, where the density is e^-8;
# without a box, they reach beyond the context by this factor.
WALLS, MARGIN = 4.0, 1.5
# Points in a box are read as they are if they span at least this share of it; others are scaled to
# span the second share, as data of the prior do.
LEAST_SPAN, USUAL_SPAN = 0.1, 0.55


def box_scaling(model: ICLEBM, X: Any) -> Scaling:
    """Return the map that brings points into the box of a model, column by column.

    It is the identity for points (n, D) that lie in the box and span at least a tenth of it, and
    for models without a box. A column without spread is centred only.

    >>> from isthmus.incontext import pretrained
    >>> scaling = box_scaling(pretrained("mixtures-2d"), [[1000.0, 0.01], [1200.0, 0.03]])
    >>> scaling.into(np.array([[1100.0, 0.02], [1200.0, 0.03]])).round(3) + 0.0
    array([[0.   , 0.   ],
           [3.025, 3.025]])
    """
    points: NDArray[np.float64] = as_points(X, "X", dim=model.dim).double().cpu().numpy()
    if points.ndim != 2:
        raise ShapeError(f"X must be points (n, {model.dim}), not {points.shape}.")
    box = model.config.box
    if box is None or len(points) == 0:
        return Scaling.of(points, standardise=False)
    low, high = points.min(0), points.max(0)
    half = high / 2 - low / 2
    inside = max(abs(low).max(), abs(high).max()) <= box
    if inside and half.max() >= LEAST_SPAN * box:
        return Scaling.of(points, standardise=False)
    scale = np.where(half > 0, half / (USUAL_SPAN * box), 1.0)
    return Scaling(low / 2 + high / 2, scale)


def draw_points(
    model: ICLEBM,
    X: Any,
    n: int,
    sampler: Sampler[Any] | None = None,
    *,
    seed: int = 0,
    steps: int = 100,
    progress: bool | None = None,
) -> NDArray[np.float64]:
    """Draw n points that resemble those of a dataset (m, D), in its units.

    The dataset is brought into the model's box by :func:`box_scaling`, and the points back from
    it. The other parameters are those of :func:`draw`.

    Examples
    --------
    >>> from isthmus.incontext import pretrained
    >>> heights_and_weights = [[1.62, 55.0], [1.70, 66.0], [1.75, 71.0], [1.83, 80.0]]
    >>> drawn = draw_points(pretrained("mixtures-2d"), heights_and_weights, 100, steps=10)
    >>> bool(1.6 < drawn[:, 0].mean() < 1.9), bool(50 < drawn[:, 1].mean() < 90)
    (True, True)
    """
    scaling = box_scaling(model, X)
    energy = model.condition(scaling.into(as_points(X, "X").double().cpu().numpy()))
    drawn = as_arrays(draw(energy, n, sampler, seed=seed, steps=steps, progress=progress))
    if not scaling.standardises:
        # Through text, so that single precision is not written with the digits of double.
        drawn = drawn.astype(str)
    return scaling.back(drawn)


def draw(
    energy: ContextEnergy,
    n: int,
    sampler: Sampler[Any] | None = None,
    *,
    seed: int | torch.Generator = 0,
    steps: int = 100,
    progress: bool | None = None,
) -> Tensor:
    """Draw n points from the density of a dataset in context.

    Each has a chain of :func:`isthmus.sample` from one of the :func:`starting_points`. Chains need
    not cross from one cluster to the next, so a hundred steps suffice.

    Parameters
    ----------
    energy : ContextEnergy
        Of one context.
    n, steps : int
        Points, and steps of each chain.
    sampler : Langevin, MALA, HMC, or one of your own
        Default: ``MALA(step_size=0.05)``.
    seed : int or torch.Generator
    progress : bool, optional
        Show a progress bar on stderr. Default: on a terminal, once the run takes long.

    Returns
    -------
    Tensor (n, D)
        An array if the context was given as one.
    """
    generator = generator_for(seed, energy.context.device)
    options: Any = {"seed": generator, "burn_in": as_count(steps, "steps") - 1, "thin": 1}
    starts = starting_points(energy, n, seed=generator)
    chain = MALA(step_size=0.05) if sampler is None else sampler
    drawn = sample(energy, n, chain, init=starts, progress=progress, **options)
    return draws_as_given(drawn, energy, None)


@torch.no_grad()
def starting_points(energy: ContextEnergy, n: int, *, seed: int | torch.Generator = 0) -> Tensor:
    """Return points (n, D) that roughly follow the density, by importance resampling.

    Shares of clusters far apart are right up to Monte Carlo error. Parameters as of :func:`draw`.
    """
    context, n = energy.context, as_count(n, "n")
    if context.ndim != 2:
        raise ShapeError(
            f"energy has a batch of {context.shape[0]} contexts; condition on one of them."
        )
    generator = generator_for(seed, context.device)
    trials = max(FEWEST_TRIALS, TRIALS_PER_POINT * n)
    config = energy.model.config
    if config.box is not None:
        reach = config.box + WALLS * config.wall
    else:
        reach = MARGIN * max(1.0, *context.abs().flatten().tolist())
    options: Any = {"generator": generator, "dtype": context.dtype, "device": context.device}
    points = (2 * torch.rand((trials, energy.dim), **options) - 1) * reach
    log_proposal = context.new_full((trials,), -energy.dim * math.log(2 * reach))
    if len(context):
        near = GaussianKDE(context, sigma=NEAR_WIDTH)
        count = round(NEAR_SHARE * trials)
        points[:count] = near.sample(count, seed=generator)
        log_proposal[(points.abs() > reach).any(-1)] = -math.inf
        log_proposal = torch.logaddexp(
            log_proposal + math.log1p(-NEAR_SHARE), near.log_prob(points) + math.log(NEAR_SHARE)
        )
    weights = (-energy.energy(points) - log_proposal).softmax(0)
    return points[draw_index(weights, n, generator)]
