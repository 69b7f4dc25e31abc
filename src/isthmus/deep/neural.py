"""NeuralEnergy, a network that is an energy, and as_energy, which makes one of any network."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, cast, final

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from isthmus.energy import Energy
from isthmus.errors import InvalidInputError, ShapeError
from isthmus.validation import as_count, as_numbers, require_kind

# The quadratic term has this standard deviation, in those of the rows.
CONFINEMENT = 2.0
# Sines and cosines of so many learned directions are features of points with few coordinates.
# Points with more, up to many, are whitened, by a covariance with a ridge.
FREQUENCIES, FEW_COORDINATES, MANY_COORDINATES, LEAST_VARIANCE = 64, 3, 64, 1e-3


class Placed(Energy):
    """An energy of points that it shifts and scales; :func:`isthmus.fit` chooses by the rows."""

    is_placed = False
    whitens = False
    center: Tensor
    inverse: Tensor
    """The inverse of the scale of each coordinate, or of a lower triangular matrix."""

    def place_at(self, rows: Tensor) -> None:
        """Shift by the mean of rows (n, D); divide by deviations, or a factor of the covariance."""
        deviation, center = torch.std_mean(rows.double(), dim=0)
        scale = torch.where(deviation > 0, deviation, 1.0)
        inverse = 1 / scale
        if self.whitens:
            standard = (rows.double() - center) / scale
            covariance = standard.mT @ standard / len(rows)
            ridge = LEAST_VARIANCE * torch.eye(len(scale), dtype=torch.float64)
            factor = scale[:, None] * torch.linalg.cholesky(covariance + ridge)
            inverse = torch.linalg.inv(factor).contiguous()  # as it is read from a file
        self.center, self.inverse = center.to(self.center), inverse.to(self.center)
        self.is_placed = True

    def _standard(self, x: Tensor) -> Tensor:
        moved = x - self.center
        return moved * self.inverse if self.inverse.ndim < 2 else moved @ self.inverse.mT

    def _length(self) -> float:
        return 1 / float(self.inverse.abs().max())

    def _chain_starts(self, n: int, generator: torch.Generator) -> Tensor:
        options: Any = {"generator": generator, "dtype": self.center.dtype}
        noise = torch.randn(n, cast(int, self.dim), **options).to(self.center.device)
        if self.inverse.ndim < 2:
            return self.center + noise / self.inverse
        return self.center + torch.linalg.solve(self.inverse, noise.mT).mT


@final
class NeuralEnergy(Placed):
    r"""A residual network plus a quadratic term, which makes it normalisable.

    .. math:: E(x) = f_\theta(z) + \frac{\lVert z \rVert^2}{8}, \qquad z = S^{-1} (x - c)

    The network grows linearly at most, so that :math:`\exp(-E)` has an integral.
    :func:`isthmus.fit` puts the centre c at the mean of the rows, and S at their standard
    deviations or, with 4 to 64 coordinates, at the Cholesky factor of their covariance. Until then
    they are 0 and 1.

    Parameters
    ----------
    dim : int
        Coordinates D.
    width, depth : int
        Units of a layer, or channels of an image, and residual blocks.
    image : (channels, height, width), optional
        The shape of the points, for convolutions; its product is `dim`.
    seed : int
        Seed of the weights.

    Examples
    --------
    >>> import isthmus as ist
    >>> energy = ist.NeuralEnergy(2, width=16)
    >>> energy
    NeuralEnergy(D=2, width=16, depth=3)
    >>> energy.energy([[0.0, 0.0], [1.0, 2.0]]).shape
    (2,)
    """

    _is_pointwise = True

    def __init__(
        self,
        dim: int,
        *,
        width: int = 64,
        depth: int = 3,
        image: Sequence[int] | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self._dim = dim = as_count(dim, "dim")
        self.width = width = as_count(width, "width")
        self.depth = depth = as_count(depth, "depth")
        self.image = None
        self.whitens = image is None and FEW_COORDINATES < dim <= MANY_COORDINATES
        if image is not None:
            sides = np.asarray(as_numbers(image, "image"))
            if sides.shape != (3,) or sides.prod() != dim:
                raise ShapeError(f"image must be (channels, height, width) of {dim} values in all.")
            self.image = tuple(as_count(each, "image") for each in sides.tolist())
        self.register_buffer("center", torch.zeros(dim))
        self.register_buffer("inverse", torch.ones(dim))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(as_count(seed, "seed", at_least=0))
            few = self.image is None and dim <= FEW_COORDINATES
            self.frequencies = nn.Linear(dim, FREQUENCIES, bias=False) if few else None
            if self.frequencies is not None:
                nn.init.normal_(self.frequencies.weight, std=2.0)
            up: Callable[[], nn.Module] = partial(nn.Linear, width, width)
            down: Callable[[], nn.Module] = up
            self.first: nn.Module
            if self.image is None:
                self.first = nn.Linear(dim + 2 * FREQUENCIES * few, width)
            else:
                self.first = nn.Conv2d(self.image[0], width, 3, padding=1)
                down = partial(nn.Conv2d, width, width, 3, padding=1)
                up = partial(down, stride=2)
            self.blocks = nn.ModuleList(nn.ModuleList((up(), down())) for _ in range(depth))
            self.readout = nn.Linear(width, 1)
            nn.init.zeros_(self.readout.weight)
            nn.init.zeros_(self.readout.bias)

    def __repr__(self) -> str:
        image = f", image={self.image}" if self.image else ""
        return f"NeuralEnergy(D={self._dim}, width={self.width}, depth={self.depth}{image})"

    @property
    def dim(self) -> int:
        """Coordinates D."""
        return self._dim

    def _settings(self) -> dict[str, Any]:
        image = None if self.image is None else list(self.image)
        shape = {"dim": self._dim, "width": self.width, "depth": self.depth, "image": image}
        return {**shape, "is_placed": self.is_placed, "is_whitened": self.inverse.ndim == 2}

    @classmethod
    def _restored(cls, settings: dict[str, Any]) -> NeuralEnergy:
        is_placed, is_whitened = settings.pop("is_placed"), settings.pop("is_whitened")
        energy = cls(**settings)
        energy.is_placed = is_placed
        if is_whitened:
            energy.inverse = torch.empty(energy.dim, energy.dim)
        return energy

    def _features(self, z: Tensor) -> Tensor:
        """Return what the first layer reads of standardised points (..., D)."""
        if self.image is not None:
            return z.reshape(-1, *self.image)
        if self.frequencies is None:
            return z
        angle = self.frequencies(z)
        return torch.cat([z, angle.sin(), angle.cos()], dim=-1)

    def _energy(self, x: Tensor) -> Tensor:
        z = self._standard(x)  # (..., D)
        stream = self.first(self._features(z))  # (..., width), or (n, width, height, width)
        for up, down in cast(Any, self.blocks):
            if self.image is None:
                stream = stream + down(F.silu(up(F.silu(stream))))
            else:
                stream = up(F.silu(stream))
                stream = stream + down(F.silu(stream))
        if self.image is not None:
            stream = stream.mean(dim=(-1, -2)).view(*z.shape[:-1], self.width)
        network = self.readout(F.silu(stream)).squeeze(-1)
        return network + 0.5 * (z / CONFINEMENT).square().sum(dim=-1)

    def _score(self, x: Tensor) -> Tensor:
        """Return the score by the chain rule, in half the operations of autograd."""
        if self.image is not None:
            return super()._score(x)
        z = self._standard(x)  # (..., D)
        features = self._features(z)
        stream, slopes = self.first(features), []
        for up, down in cast(Any, self.blocks):
            value, slope = _silu(stream)
            inner, inner_slope = _silu(up(value))
            stream = stream + down(inner)
            slopes.append((slope, inner_slope))
        gradient = self.readout.weight[0] * _silu(stream)[1]  # (..., width)
        for (up, down), (slope, inner_slope) in zip(
            reversed(cast(Any, self.blocks)), reversed(slopes), strict=True
        ):
            inner = (gradient @ down.weight) * inner_slope
            gradient = gradient + (inner @ up.weight) * slope
        gradient = gradient @ cast(nn.Linear, self.first).weight
        if self.frequencies is not None:
            sizes = [self._dim, FREQUENCIES, FREQUENCIES]
            gradient, by_sine, by_cosine = gradient.split(sizes, dim=-1)
            _, sine, cosine = features.split(sizes, dim=-1)
            gradient = gradient + (by_sine * cosine - by_cosine * sine) @ self.frequencies.weight
        gradient = gradient + z / CONFINEMENT**2
        return -gradient * self.inverse if self.inverse.ndim == 1 else -gradient @ self.inverse


def _silu(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return x / (1 + exp(-x)) and its derivative."""
    share = x.sigmoid()
    value = x * share
    return value, torch.addcmul(share, value, 1 - share)


@final
class ModuleEnergy(Placed):
    """The energy that a module computes; :func:`isthmus.as_energy` returns it."""

    def __init__(self, module: nn.Module, dim: int | None = None) -> None:
        super().__init__()
        require_kind(module, "module", nn.Module)
        self.module, self._dim = module, None if dim is None else as_count(dim, "dim")
        like = next(module.parameters(), torch.empty(()))
        self.register_buffer("center", like.new_zeros(()))
        self.register_buffer("inverse", like.new_ones(()))

    def __repr__(self) -> str:
        return f"ModuleEnergy({type(self.module).__name__})"

    @property
    def dim(self) -> int | None:
        """Coordinates D, if they were given."""
        return self._dim

    def _energy(self, x: Tensor) -> Tensor:
        values = self.module(self._standard(x).reshape(-1, x.shape[-1]))
        if not isinstance(values, Tensor) or values.numel() != x.shape[:-1].numel():
            found = tuple(values.shape) if isinstance(values, Tensor) else type(values).__name__
            raise ShapeError(
                f"The module must return one number for each of {x.shape[:-1].numel()} points, "
                f"(n,) or (n, 1), but returned {found}."
            )
        return values.reshape(x.shape[:-1])


def as_energy(module: nn.Module, dim: int | None = None) -> ModuleEnergy:
    """Return a module that maps points (n, D) to (n,) or (n, 1) as an energy.

    :func:`isthmus.fit` standardises the points that the module reads, and the energy keeps their
    means and deviations. For a module that needs its own units, subclass :class:`isthmus.Energy`.
    :func:`isthmus.with_normalizer` and draws need `dim`, the number of coordinates.

    >>> import torch, isthmus as ist
    >>> energy = ist.as_energy(torch.nn.Linear(3, 1), dim=3)
    >>> energy.score(torch.zeros(5, 3)).shape
    torch.Size([5, 3])
    """
    if isinstance(module, Energy):
        raise InvalidInputError(f"{type(module).__name__} is an energy already.")
    return ModuleEnergy(module, dim)
