"""What tests of many rooms make their cases of."""

import torch
from torch import Tensor

import isthmus as ist


def draw(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    """Return standard normal numbers."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)


def signs(*shape: int, seed: int = 0) -> Tensor:
    """Return random corners of the cube [-1, 1]^D."""
    generator = torch.Generator().manual_seed(seed)
    return 2.0 * torch.randint(2, shape, generator=generator).double() - 1


class Bowl(ist.Energy):
    """N(centre, scale^2 I) by its energy alone; scores come from autograd."""

    def __init__(self, dim: int | None = None, centre: float = 0.0, scale: float = 1.0) -> None:
        super().__init__()
        self._dim, self.centre, self.scale = dim, centre, scale

    @property
    def dim(self) -> int | None:
        return self._dim

    def energy(self, x: Tensor) -> Tensor:
        return 0.5 * ((x - self.centre) / self.scale).square().sum(-1)
