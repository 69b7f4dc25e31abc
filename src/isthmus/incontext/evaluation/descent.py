"""The measure of the paper's authors: end points of descent on the model and on the truth."""

from __future__ import annotations

import torch
from torch import Tensor

from isthmus.energy import Energy
from isthmus.incontext.priors import Tasks

__all__ = ["descent_error"]

# Maximum of the rescaled true energy, and divisor of its step.
CEILING = 10.0


@torch.no_grad()
def descent_error(
    energy: Energy,
    tasks: Tasks,
    starts: Tensor,
    *,
    box: float,
    step_size: float = 3.16,
    steps: int = 15,
) -> Tensor:
    r"""Return squared distances between end points of descent on a model and on the truth.

    As in the authors' evaluation, both descend without noise from the same starts. The true
    energy, :math:`-\log p`, is rescaled so that its maximum (here: over the starts) is 10, and
    its step is a tenth of the model's. Unlike theirs, descents stay in the box, because the
    authors' step is unstable on most energies.

    Parameters
    ----------
    energy : Energy
        Of a batch of B contexts.
    tasks : Tasks
        The B densities.
    starts : Tensor (B, S, D)
    box : float
        Half-width of the cube that descents are clamped to.
    step_size, steps
        Default: the authors'. For a density that is smooth on the scale s, a step below s^2 and
        many more steps give a better measure.

    Returns
    -------
    Tensor (B,)
        Mean over the starts; NaN where the true energy is infinite.

    Examples
    --------
    >>> import torch
    >>> from isthmus.incontext import ICLEBM, ICLEBMConfig
    >>> from isthmus.incontext.evaluation import descent_error
    >>> from isthmus.incontext.priors import prior
    >>> generator = torch.Generator().manual_seed(0)
    >>> tasks = prior("paper").draw(3, generator)
    >>> model = ICLEBM(ICLEBMConfig(layers=1, heads=1, width=4, box=20.0))
    >>> energy = model.condition(tasks.sample(5, generator))
    >>> descent_error(energy, tasks, torch.zeros(3, 2, 2), box=20.0).shape
    torch.Size([3])
    """
    mine, true = starts.clone(), starts.clone()
    highest = (-tasks.log_prob(starts)).amax(1)[:, None, None]
    for _ in range(steps):
        mine = (mine + step_size * energy.score(mine).to(mine.dtype)).clamp(-box, box)
        slope = _slope(tasks, true) * CEILING / highest
        true = (true + step_size / CEILING * slope).clamp(-box, box)
    error = (mine - true).square().sum(-1).mean(-1)
    return torch.where(torch.isfinite(highest[:, 0, 0]), error, torch.nan)


def _slope(tasks: Tasks, x: Tensor) -> Tensor:
    """Return the gradient of the true log-density. (B, S, D) -> (B, S, D)."""
    with torch.enable_grad():
        leaf = x.detach().requires_grad_()
        log_prob = tasks.log_prob(leaf)
        if not log_prob.requires_grad:  # a flat density
            return torch.zeros_like(x)
        (slope,) = torch.autograd.grad(log_prob.sum(), leaf)
    return slope
