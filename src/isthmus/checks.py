"""check_energy: tests of everything that the Energy contract promises."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from isthmus.energy import Energy
from isthmus.errors import CheckFailedError, InvalidInputError, UnknownNormalizerError
from isthmus.memories.base import Memory
from isthmus.validation import as_seed, as_tensor, require_kind

__all__ = ["CheckReport", "check_energy"]


@dataclass(frozen=True)
class CheckReport:
    """Names of the checks that passed and of those that do not apply to this energy."""

    passed: tuple[str, ...]
    not_applicable: tuple[str, ...]

    def __str__(self) -> str:
        lines = [f"{len(self.passed)} checks passed"]
        lines += [f"  {name}" for name in self.passed]
        if self.not_applicable:
            lines.append("not applicable: " + ", ".join(self.not_applicable))
        return "\n".join(lines)


class _NotApplicableError(Exception):
    """Raised by a check that does not apply to this energy."""


def check_energy(energy: Energy, x: Any = None, *, seed: int = 0) -> CheckReport:
    """Check that `energy` keeps the :class:`~isthmus.Energy` contract.

    Checks the score against autograd and finite differences, batch shapes, arrays, dtypes, the
    density, and ``step``: it never raises the energy, and holds observed coordinates.

    Parameters
    ----------
    energy : Energy
        It is not changed.
    x : array or Tensor (n, D), optional
        Points to check at; required if the energy is not a memory and has no ``dim``.
    seed : int
        Seed of the points that are drawn if `x` is not given.

    Raises
    ------
    CheckFailedError
        If a check fails; the message names the check and the size of the error.

    Examples
    --------
    >>> import torch, isthmus as ist
    >>> from isthmus.checks import check_energy
    >>> report = check_energy(ist.GaussianKDE(torch.randn(9, 3), sigma=0.8))
    >>> len(report.passed)
    11
    """
    require_kind(energy, "energy", Energy)
    # A copy without the graph that the memories may belong to.
    detached = {id(tensor): tensor.detach() for tensor in energy.buffers()}
    double = copy.deepcopy(energy, detached).double()
    points = _points(double, x, seed)
    passed, not_applicable = [], []
    for check in CHECKS:
        name = check.__name__.removeprefix("_check_").replace("_", " ")
        try:
            check(double, points)
        except _NotApplicableError:
            not_applicable.append(name)
        except CheckFailedError as failure:
            raise CheckFailedError(f"{type(energy).__name__}, {name}: {failure}") from None
        except Exception as error:
            raise CheckFailedError(f"{type(energy).__name__}, {name}: {error!r}") from error
        else:
            passed.append(name)
    return CheckReport(tuple(passed), tuple(not_applicable))


def _points(energy: Energy, x: Any, seed: int) -> Tensor:
    """Return float64 points: those given, or some between and around the memories."""
    if x is not None:
        given = energy.as_input(as_tensor(x, "x").double())
        points = given.reshape(-1, given.shape[-1])
        if points.shape[0] < 1:
            raise InvalidInputError("check_energy needs at least one point in x.")
        return points
    generator = torch.Generator().manual_seed(as_seed(seed))
    if isinstance(energy, Memory):
        memories = energy.memories.detach().cpu()
        chosen = torch.randint(len(memories), (2, 12), generator=generator)
        share = torch.rand(12, 1, generator=generator, dtype=torch.float64)
        spread = (memories - memories.mean(0)).square().mean().sqrt()
        noise = torch.randn(12, energy.dim, generator=generator, dtype=torch.float64)
        mixed = torch.lerp(memories[chosen[0]], memories[chosen[1]], 0.3 * share)
        return (mixed + 0.05 * (spread + 0.1) * noise).to(energy.memories.device)
    if energy.dim is None:
        raise InvalidInputError("This energy has no dim; pass points x to check it at.")
    return torch.randn(12, energy.dim, generator=generator, dtype=torch.float64)


def _require(condition: bool | Tensor, message: str) -> None:
    if not bool(condition):
        raise CheckFailedError(message)


def _require_close(
    found: Tensor, expected: Tensor, what: str, rtol: float = 1e-9, atol: float = 1e-9
) -> None:
    shapes = tuple(found.shape), tuple(expected.shape)
    _require(shapes[0] == shapes[1], f"{what}: shape {shapes[0]} instead of {shapes[1]}")
    close = torch.isclose(found, expected, rtol=rtol, atol=atol)
    if not bool(close.all()):
        worst = (found - expected).abs()[~close].max().item()
        raise CheckFailedError(f"{what}: off by {worst:.3g}")


def _inside(energy: Energy, x: Tensor) -> Tensor:
    """Return the points where the energy is finite, and so has a gradient."""
    inside = x[torch.isfinite(energy.energy(x)).detach()]
    if inside.shape[0] == 0:
        raise _NotApplicableError
    return inside


def _check_no_nan(energy: Energy, x: Tensor) -> None:
    _require(~torch.isnan(energy.energy(x)).any(), "energy is NaN")
    _require(torch.isfinite(energy.score(x)).all(), "score is not finite")


def _check_batch_shapes(energy: Energy, x: Tensor) -> None:
    for name, values in (("energy", energy.energy), ("score", energy.score)):
        flat, folded = values(x), values(x[None, :, None])
        _require_close(values(x[0]), flat[0], f"{name} of one point")
        _require_close(folded, flat[None, :, None], f"{name} of a folded batch")
    _require(energy.energy(x[:0]).shape == (0,), "energy of no points should be empty")


def _check_numpy_input(energy: Energy, x: Tensor) -> None:
    array = x.numpy(force=True)
    names = ["energy", "score"]
    names += [name for name in ("step", "responsibilities") if getattr(energy, f"has_{name}")]
    for name in names:
        method = getattr(energy, name)
        found = method(array)
        _require(isinstance(found, np.ndarray), f"{name} of an array is a {type(found).__name__}")
        _require_close(torch.as_tensor(found), method(x).detach().cpu(), f"{name} of an array")


def _check_dtypes_and_device(energy: Energy, x: Tensor) -> None:
    for dtype, rtol in ((torch.float64, 1e-9), (torch.float32, 1e-3)):
        typed = copy.deepcopy(energy).to(dtype)
        found = typed.energy(x.to(dtype))
        _require(found.dtype == dtype, f"energy of {dtype} points has {found.dtype}")
        _require(found.device == x.device, f"energy is on {found.device}, not {x.device}")
        _require(typed.score(x.to(dtype)).dtype == dtype, f"score of {dtype} points changes dtype")
        finite = torch.isfinite(energy.energy(x)).detach()
        expected = energy.energy(x)[finite].to(dtype)
        _require_close(found[finite], expected, f"energy in {dtype}", rtol, rtol)


def _check_score_is_minus_gradient(energy: Energy, x: Tensor) -> None:
    leaf = _inside(energy, x).clone().requires_grad_()
    (gradient,) = torch.autograd.grad(energy.energy(leaf).sum(), leaf)
    _require_close(energy.score(leaf).detach(), -gradient, "score against autograd", 1e-7, 1e-7)


def _check_score_against_finite_differences(energy: Energy, x: Tensor) -> None:
    x = _inside(energy, x)
    width = 1e-5 * (1 + x.abs().max().item())
    offsets = width * torch.eye(x.shape[1], dtype=x.dtype, device=x.device)
    above, below = energy.energy(x[:, None] + offsets), energy.energy(x[:, None] - offsets)
    slope = (above - below) / (2 * width)
    smooth = torch.isfinite(slope)
    score = energy.score(x)
    scale = 1 + score.abs().max().item()
    _require_close(
        score[smooth], -slope[smooth], "score against finite differences", 1e-4, 1e-5 * scale
    )


def _check_second_derivatives(energy: Energy, x: Tensor) -> None:
    leaf = _inside(energy, x)[:2].clone().requires_grad_()
    score = energy.score(leaf)
    _require(score.requires_grad, "score is cut off from the graph")
    direction = torch.ones_like(leaf)
    (curvature,) = torch.autograd.grad(score, leaf, direction)
    width = 1e-6 * (1 + leaf.detach().abs().max().item())
    moved = energy.score(leaf.detach() + width) - energy.score(leaf.detach() - width)
    # The Hessian is symmetric, so its product from the left is the one from the right.
    scale = 1 + curvature.abs().max().item()
    _require_close(curvature, moved / (2 * width), "second derivative", 1e-3, 1e-4 * scale)


def _check_parameters_get_gradients(energy: Energy, x: Tensor) -> None:
    learnable = copy.deepcopy(energy).requires_grad_()
    parameters = dict(learnable.named_parameters())
    if not parameters:
        raise _NotApplicableError
    total = learnable.energy(_inside(energy, x)).sum()
    _require(total.requires_grad, "energy is cut off from its parameters")
    found = torch.autograd.grad(total, list(parameters.values()), allow_unused=True)
    for name, gradient in zip(parameters, found, strict=True):
        arrives = gradient is not None and torch.isfinite(gradient).all()
        _require(arrives, f"no finite gradient reaches {name}")


def _check_density_matches_energy(energy: Energy, x: Tensor) -> None:
    inside = _inside(energy, x)
    try:
        log_prob = energy.log_prob(inside)
    except UnknownNormalizerError:
        raise _NotApplicableError from None
    scaled = -energy.inverse_temperature * energy.energy(inside)
    _require_close(log_prob, scaled - energy.log_normalizer(), "log_prob", 1e-8, 1e-8)


def _check_step_never_raises_the_energy(energy: Energy, x: Tensor) -> None:
    if not energy.has_step or not energy.step_descends:
        raise _NotApplicableError
    state = energy.step(x)
    height = energy.energy(state)
    for _ in range(20):
        state = energy.step(state)
        _require(torch.isfinite(state).all(), "step is not finite")
        new = energy.energy(state)
        finite = torch.isfinite(height)
        slack = 1e-10 * (1 + height[finite].abs())
        _require((new[finite] <= height[finite] + slack).all(), "step raised the energy")
        height = new


def _check_step_holds_observed_coordinates(energy: Energy, x: Tensor) -> None:
    if not (energy.has_step and energy._step_holds):
        raise _NotApplicableError
    held = torch.zeros_like(x, dtype=torch.bool)
    held[:, 0] = True
    _require((energy.step(x, held)[:, 0] == x[:, 0]).all(), "step changed an observed coordinate")


CHECKS: tuple[Callable[[Energy, Tensor], None], ...] = tuple(
    function for name, function in [*globals().items()] if name.startswith("_check_")
)
"""All checks, in the order in which they are defined and run."""
