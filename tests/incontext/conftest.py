import pytest
import torch

from isthmus.incontext import ICLEBM, ICLEBMConfig

SHAPES = {
    "plain": {},
    "positions": {"positions": 12},
    "box": {"box": 1.0, "wall": 3.0},
    "box and positions, 3-D": {"box": 1.0, "wall": 2.0, "positions": 12, "dim": 3},
    "1-D, scaled": {"dim": 1, "feedforward": 10, "scale": 3.0},
}


@pytest.fixture(params=SHAPES.values(), ids=SHAPES.keys())
def model(request):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return ICLEBM(
            ICLEBMConfig(**{"layers": 3, "heads": 4, "width": 16, **request.param})
        ).double()


@pytest.fixture
def points(model):
    """A sequence (3, 7, D) and candidates (3, 7, 4, D), some of them outside a box."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(3, 7, model.dim, generator=generator, dtype=torch.float64)
    return x, torch.randn(3, 7, 4, model.dim, generator=generator, dtype=torch.float64)
