"""Trained-looking norms and attention in float64: nothing is zero or one by chance."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

DOUBLE = torch.float64

NORMS: dict[str, Callable[[int], nn.Module]] = {
    "layer": lambda width: nn.LayerNorm(width),
    "layer-no-bias": lambda width: nn.LayerNorm(width, bias=False),
    "layer-no-affine": lambda width: nn.LayerNorm(width, elementwise_affine=False),
    "layer-large-epsilon": lambda width: nn.LayerNorm(width, eps=0.3),
    "rms": lambda width: nn.RMSNorm(width),
    "rms-no-affine": lambda width: nn.RMSNorm(width, elementwise_affine=False),
    "rms-large-epsilon": lambda width: nn.RMSNorm(width, eps=0.3),
}


@pytest.fixture(params=NORMS)
def make_norm(request: pytest.FixtureRequest) -> Callable[[int], nn.Module]:
    """Each norm in each of its settings, as a function of its width."""
    return lambda width: randomized(NORMS[request.param](width))


@pytest.fixture
def randomize() -> Callable[..., nn.Module]:
    return randomized


@pytest.fixture
def draw() -> Callable[..., Tensor]:
    return drawn


def randomized(module: nn.Module, seed: int = 0, scale: float = 0.5) -> nn.Module:
    """The module in float64, without dropout, with parameters that are all random."""
    generator = torch.Generator().manual_seed(seed)
    module = module.double().eval()
    with torch.no_grad():
        for parameter in module.parameters():
            random = torch.randn(parameter.shape, generator=generator, dtype=DOUBLE)
            parameter.copy_(scale * random)
    return module


def drawn(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(*shape, dtype=DOUBLE, generator=torch.Generator().manual_seed(seed))
