"""Trained-looking norms and attention in float64: nothing is zero or one by chance."""

from collections.abc import Callable

import pytest
from helpers import randomized
from torch import nn

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
