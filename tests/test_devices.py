"""Everything stays on the device of its memories: "meta", which has shapes but no numbers.

Operations on meta tensors refuse operands from the CPU, as a GPU does, except for scalars.
"""

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import isthmus as ist
from isthmus.errors import MissingOperationError, UnknownNormalizerError
from isthmus.memories import Memory
from isthmus.nn import ClAMLoss, HopfieldLayer, HopfieldPooling


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> torch.device:
    """A device whose values cannot be read; checks of values are left out, as while tracing."""
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    return torch.device("meta")


# Corners and counts are checked when these are made, which reads them.
READ_WHEN_MADE = ("hopfield", "crp", "dense")
METHODS = ("energy", "score", "step", "log_prob", "responsibilities")


def test_energies_compute_where_their_memories_are(
    make_energy: Callable[[Tensor], Memory], device: torch.device, request: pytest.FixtureRequest
) -> None:
    name = request.node.callspec.params["make_energy"]
    if name.startswith(READ_WHEN_MADE) and "continuous" not in name:
        pytest.skip("reads values when it is made")
    energy = make_energy(torch.randn(7, 3, device=device))
    x = torch.randn(5, 3, device=device)
    for method in METHODS:
        # The normaliser of Laplace kernels reads the bandwidth.
        if (name, method) == ("laplace-kde", "log_prob"):
            continue
        with contextlib.suppress(UnknownNormalizerError, MissingOperationError):
            found = getattr(energy, method)(x)
            assert found.device.type == "meta"
            assert found.shape[0] == 5


@pytest.mark.parametrize(
    "sampler", [ist.Langevin(0.1), ist.MALA(0.1), ist.HMC(0.1, 3, jitter=0.2)], ids=repr
)
def test_samplers_step_where_the_chains_are(sampler: Any, device: torch.device) -> None:
    energy = ist.GaussianKDE(torch.randn(7, 3, device=device), sigma=0.5)
    state = ist.dynamics.samplers.LangevinState(torch.randn(4, 3, device=device))
    if not isinstance(sampler, ist.Langevin):
        x = state.position
        state = ist.dynamics.samplers.MetropolisState(x, energy.energy(x), energy.score(x))
    state, info = sampler.step(energy, state, torch.Generator())
    assert state.position.device.type == info.acceptance.device.type == "meta"


def test_layers_compute_where_their_weights_are(device: torch.device) -> None:
    bags = torch.randn(4, 9, 6, device=device)
    padding = torch.zeros(4, 9, dtype=torch.bool, device=device)
    for separation in ("softmax", "entmax"):
        pool = HopfieldPooling(6, num_heads=2, steps=2, separation=separation).to(device)
        pooled, weights = pool(bags, padding, need_weights=True)
        assert pooled.device.type == weights.device.type == "meta"
        assert pooled.shape == (4, 6)
    assert HopfieldLayer(6, quantity=5).to(device)(bags).device.type == "meta"
    assert ClAMLoss(3, 6).to(device)(bags[0]).device.type == "meta"
