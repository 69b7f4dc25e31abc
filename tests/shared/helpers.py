"""What tests of many rooms make their cases of."""

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import isthmus as ist


def draw(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    """Return standard normal numbers."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)


def signs(*shape: int, seed: int = 0) -> Tensor:
    """Return random corners of the cube [-1, 1]^D."""
    generator = torch.Generator().manual_seed(seed)
    return 2.0 * torch.randint(2, shape, generator=generator).double() - 1


def randomized(module: nn.Module, seed: int = 0, scale: float = 0.5) -> nn.Module:
    """Return the module in float64, without dropout, with parameters that are all random."""
    module = module.double().eval()
    with torch.no_grad():
        for place, parameter in enumerate(module.parameters()):
            parameter.copy_(scale * draw(*parameter.shape, seed=100 * seed + place))
    return module


def set_partitions(n: int, labels: tuple[int, ...] = ()) -> Iterator[tuple[int, ...]]:
    """Yield every partition of n rows, as labels in order of first appearance."""
    if len(labels) == n:
        yield labels
        return
    for label in range(max(labels, default=-1) + 2):
        yield from set_partitions(n, (*labels, label))


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


class Gaussian(ist.Energy):
    """N(mean, covariance), in units of 1 / beta, with the score in closed form."""

    def __init__(self, covariance: Tensor, mean: Tensor | float = 0.0, beta: float = 1.0) -> None:
        super().__init__()
        self.register_buffer("precision", torch.linalg.inv(covariance) / beta)
        self.mean, self.beta = mean, beta

    @property
    def dim(self) -> int:
        return len(self.precision)

    @property
    def inverse_temperature(self) -> Tensor:
        return torch.tensor(self.beta)

    def energy(self, x: Tensor) -> Tensor:
        return -0.5 * (self.score(x) * (x - self.mean)).sum(-1)

    def score(self, x: Tensor) -> Tensor:
        return -(x - self.mean) @ self.precision


def unpack(frame: bytes) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Return the header and the arrays of a frame of the playground, as its page reads them."""
    end = 4 + int.from_bytes(frame[:4], "little")
    header, arrays = json.loads(frame[4:end]), {}
    for entry in header.pop("arrays"):
        place, count = end + entry["offset"], int(np.prod(entry["shape"]))
        values = np.frombuffer(frame, np.dtype(f"<{entry['dtype']}"), count, place)
        arrays[entry["name"]] = values.reshape(entry["shape"])
    return header, arrays
