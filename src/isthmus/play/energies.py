"""The energies of the playground: how each is built from points of a plane, and what it offers."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import torch

import isthmus as ist
from isthmus.energy import Energy
from isthmus.memories.base import PER_MEMORY, Memory
from isthmus.play.scene import Scene

if TYPE_CHECKING:
    from isthmus.incontext import ICLEBM

# Half the width of the plane on which the in-context model was trained.
TRAINED_UNIT = 4.0
# An Epanechnikov kernel of radius h has the variance h^2 / (D + 4) along each axis.
EPANECHNIKOV_RADIUS = math.sqrt(6.0)
ALL_SAMPLERS = ("langevin", "mala", "hmc")


@dataclass(frozen=True)
class PlayEnergy:
    """An energy that the page offers.

    `build` makes it of a scene. All kernels have the standard deviation sigma of the scene, so that
    one slider serves every energy. `sliders` names the others. `draft` and `fine` are the sizes of
    the grid while something is dragged and afterwards.
    """

    name: str
    title: str
    formula: str
    build: Callable[[Scene], Energy]
    sliders: tuple[str, ...] = ("sigma",)
    samplers: tuple[str, ...] = ALL_SAMPLERS
    certified: bool = False
    shares: bool = False
    draft: int = 96
    fine: int = 256
    editable: bool = True
    note: str = ""

    def describe(self) -> dict[str, Any]:
        """Return everything but the function, for the page."""
        return {name: value for name, value in vars(self).items() if name != "build"}


@lru_cache(maxsize=1)
def _model() -> ICLEBM:
    from isthmus.incontext import pretrained

    model = pretrained("mixtures-2d")
    return model.requires_grad_(False)


def _in_context(scene: Scene) -> Energy:
    centre, scale = scene.memories.new_tensor(scene.centre), scene.unit / TRAINED_UNIT
    inner = _model().condition(((scene.memories - centre) / scale).float())
    return ist.Affine(inner, scale, shift=centre.float())


def _crp(scene: Scene) -> Energy:
    return ist.CRPMixture(
        scene.memories,
        scene.counts,
        beta=0.5 / scene.sigma**2,
        rho=0.5 / scene.prior**2,
        alpha=scene.alpha,
        prior_mean=scene.memories.new_tensor(scene.centre),
    )


BUILT_IN = (
    PlayEnergy(
        "kde",
        "Gaussian KDE",
        "E(x) = −log Σ exp(−|x − xₙ|² / 2σ²)",
        lambda scene: ist.GaussianKDE(scene.memories, scene.sigma),
        certified=True,
    ),
    PlayEnergy(
        "modern",
        "Modern Hopfield",
        "E(x) = ½|x|² − β⁻¹ log Σ exp(β x·xₙ)",
        lambda scene: ist.ModernHopfield(scene.memories, beta=scene.sigma**-2),
        certified=True,
    ),
    PlayEnergy(
        "sparse",
        "Sparse Hopfield",
        "E(x) = ½|x|² − β⁻¹ Ω*(β x·x₁, …, β x·xₙ)",
        lambda scene: ist.SparseHopfield(
            scene.memories, beta=scene.sigma**-2, alpha=scene.sparsity
        ),
        sliders=("sigma", "sparsity"),
        draft=48,
        fine=128,
        certified=True,
        note="α-entmax weights: a memory in the lead takes all of it, and is retrieved exactly.",
    ),
    PlayEnergy(
        "epanechnikov",
        "Epanechnikov KDE",
        "E(x) = −log Σ max(0, 1 − |x − xₙ|² / h²)",
        lambda scene: ist.EpanechnikovKDE(scene.memories, EPANECHNIKOV_RADIUS * scene.sigma),
        samplers=("mala", "hmc"),
        note="Beyond h from every memory the energy is infinite: nothing moves there.",
    ),
    PlayEnergy(
        "mixture",
        "ClAM mixture",
        "E(x) = −β⁻¹ log Σ exp(−β |μₖ − x|²)",
        lambda scene: ist.Mixture(scene.memories, beta=0.5 / scene.sigma**2),
        certified=True,
        shares=True,
    ),
    PlayEnergy(
        "crp",
        "CRP mixture",
        "E(x) = −β⁻¹ log [ α · new(x) + Σ nₖ exp(−β |μₖ − x|²) ]",
        _crp,
        sliders=("sigma", "alpha", "prior"),
        shares=True,
        note="Hatched: a point here most likely starts a new cluster.",
    ),
    PlayEnergy(
        "hopfield",
        "Classical Hopfield",
        "E(x) = −½ xᵀ W x,  W = mean of xₙ xₙᵀ",
        lambda scene: ist.Hopfield(scene.memories, states="continuous"),
        sliders=(),
        samplers=(),
        note="States move on the circle through the query; in the plane there is no lower bound.",
    ),
    PlayEnergy(
        "incontext",
        "In-context transformer",
        "E(x | x₁ … xₙ), one forward pass",
        _in_context,
        sliders=(),
        draft=24,
        fine=64,
        note="No parameter changes: the points are the context of a pretrained transformer.",
    ),
)


def given_energy(energy: Energy) -> PlayEnergy:
    """Return an energy of the caller's, whose memories, if it has some, can be moved."""
    memory = isinstance(energy, Memory)

    def build(scene: Scene) -> Energy:
        if not isinstance(energy, Memory):
            return energy
        return energy.with_memories(scene.memories.to(energy.memories))

    settings = energy._settings() if isinstance(energy, Memory) else {}
    own = any(name in PER_MEMORY and getattr(value, "ndim", 0) for name, value in settings.items())
    note = "Memories can be moved; each has settings of its own." if own else ""
    name = type(energy).__name__
    return PlayEnergy(
        "given",
        name,
        repr(energy)[:80],
        build,
        sliders=(),
        draft=96 if memory else 32,
        fine=256 if memory else 96,
        editable=memory,
        note=note,
    )


def as_scene(energy: Energy) -> dict[str, Any] | None:
    """Return the settings of a scene that has this energy, or None if no built-in one is equal."""
    found: dict[str, Any] | None = None
    if isinstance(energy, ist.GaussianKDE) and energy.is_round and energy.log_weights is None:
        found = {"energy": "kde", "sigma": float(energy.sigma)}
    elif isinstance(energy, ist.ModernHopfield):
        found = {"energy": "modern", "sigma": float(energy.sigma)}
    elif isinstance(energy, ist.EpanechnikovKDE):
        found = {
            "energy": "epanechnikov",
            "sigma": float(energy.bandwidth) / EPANECHNIKOV_RADIUS,
        }
    elif isinstance(energy, ist.Mixture) and energy.log_weights is energy.covariance is None:
        found = {"energy": "mixture", "sigma": float(energy.sigma)}
    elif isinstance(energy, ist.SparseHopfield) and energy.separation == "entmax":
        width = float(energy.beta) ** -0.5
        found = {"energy": "sparse", "sigma": width, "sparsity": energy.alpha}
    elif isinstance(energy, ist.CRPMixture) and energy.normalized and not energy.discount:
        found = {
            "energy": "crp",
            "sigma": float(energy.sigma),
            "alpha": float(energy.alpha),
            "prior": (2 * float(energy.rho)) ** -0.5,
            "counts": energy.counts.tolist(),
            "centre": [0.0, 0.0] if energy.prior_mean is None else energy.prior_mean.tolist(),
        }
    elif isinstance(energy, ist.Hopfield):
        plain = energy.states == "continuous" and not energy.zero_diagonal
        found = {"energy": "hopfield"} if plain else None
    return found


def beta_of(energy: Energy) -> float | None:
    """Return the inverse temperature of an energy that has one as a parameter."""
    beta = getattr(energy, "beta", None)
    return float(beta) if isinstance(beta, torch.Tensor) and beta.ndim == 0 else None
