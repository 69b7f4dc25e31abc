"""The energies of the playground: how each is built from points of a plane, and what it offers."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from threading import Lock
from typing import TYPE_CHECKING, Any

import torch

import isthmus as ist
from isthmus.energy import Energy
from isthmus.memories.base import PER_MEMORY, Memory
from isthmus.play.messages import Scene

if TYPE_CHECKING:
    from isthmus.incontext import ICLEBM

# Half the width of the plane on which the in-context model was trained.
TRAINED_UNIT = 4.0
# An Epanechnikov kernel of radius h has the variance h^2 / (D + 4) along each axis.
EPANECHNIKOV_RADIUS = math.sqrt(6.0)
# Draws, rounds and updates of a round of the learned network, about half a second each.
LEARNED_ROWS, LEARNED_ROUNDS, LEARNED_UPDATES = 512, 10, 40


@dataclass(frozen=True)
class PlayEnergy:
    """An energy that the page offers.

    `build` makes it of a scene, with kernels of the scene's standard deviation sigma. `draft` and
    `fine` are the sizes of the grid while something is dragged and afterwards.
    """

    name: str
    title: str
    formula: str
    build: Callable[[Scene], Energy]
    sliders: tuple[str, ...] = ("sigma",)
    samplers: tuple[str, ...] = ("langevin", "mala", "hmc")
    certified: bool = False
    shares: bool = False
    draft: int = 96
    fine: int = 256
    editable: bool = True
    note: str = ""
    train: Callable[[Scene], bool] | None = None
    """Train a few updates before a frame; return True if there are more to come."""

    def describe(self) -> dict[str, Any]:
        """Return everything but the functions, for the page."""
        return {name: value for name, value in vars(self).items() if name not in ("build", "train")}


@lru_cache(maxsize=1)
def _model() -> ICLEBM:
    from isthmus.incontext import pretrained

    return pretrained("mixtures-2d").requires_grad_(False)


def _in_context(scene: Scene) -> Energy:
    centre, scale = scene.memories.new_tensor(scene.centre), scene.unit / TRAINED_UNIT
    inner = _model().condition(((scene.memories - centre) / scale).float())
    return ist.Affine(inner, scale, shift=centre.float())


class _Learner:
    """A small network, trained on draws of a blurred scene while it is watched."""

    def __init__(self, memories: torch.Tensor, sigma: float) -> None:
        blurred = ist.GaussianKDE(memories, sigma).sample(LEARNED_ROWS)
        self.rows = torch.cat([blurred, memories]).float()
        network = ist.NeuralEnergy(2, width=32)
        network.place_at(self.rows)
        self.energy: Energy = network.requires_grad_(False)
        self.rounds, self.lock = 0, Lock()

    @torch.enable_grad()
    def train(self) -> bool:
        with self.lock:
            if self.rounds < LEARNED_ROUNDS:
                found = ist.fit(self.energy, self.rows, updates=LEARNED_UPDATES, progress=False)
                self.energy, self.rounds = found.energy, self.rounds + 1
            return self.rounds < LEARNED_ROUNDS


@lru_cache(maxsize=4)
def _learner(memories: tuple[tuple[float, ...], ...], sigma: float) -> _Learner:
    return _Learner(torch.tensor(memories, dtype=torch.float64), sigma)


def _learner_of(scene: Scene) -> _Learner:
    return _learner(tuple(map(tuple, scene.memories.tolist())), scene.sigma)


def _crp(scene: Scene) -> Energy:
    beta, rho = 0.5 / scene.sigma**2, 0.5 / scene.prior**2
    centre = scene.memories.new_tensor(scene.centre)
    more: dict[str, Any] = {"alpha": scene.alpha, "prior_mean": centre}
    return ist.CRPMixture(scene.memories, scene.counts, beta=beta, rho=rho, **more)


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
        lambda scene: ist.SparseHopfield(scene.memories, scene.sigma**-2, scene.sparsity),
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
    PlayEnergy(
        "learned",
        "Learned network",
        "E(x) = f(x) + |x − c|² / 8s², trained on points blurred by σ",
        lambda scene: _learner_of(scene).energy,
        draft=64,
        fine=128,
        note="Watch a small network learn the points: each frame is a few more updates.",
        train=lambda scene: _learner_of(scene).train(),
    ),
)


def given_energy(energy: Energy) -> PlayEnergy:
    """Return an energy of the caller's, whose memories, if it has some, can be moved."""
    look: dict[str, Any] = {"sliders": (), "draft": 32, "fine": 96, "editable": False}
    build: Callable[[Scene], Energy] = lambda scene: energy  # noqa: E731
    if isinstance(energy, Memory):
        memory = energy
        build = lambda scene: memory.with_memories(scene.memories.to(memory.memories))  # noqa: E731
        settings = memory._settings().items()
        own = any(name in PER_MEMORY and getattr(value, "ndim", 0) for name, value in settings)
        note = "Memories can be moved; each has settings of its own." if own else ""
        look = {"sliders": (), "note": note}
    return PlayEnergy("given", type(energy).__name__, repr(energy)[:80], build, **look)


def as_scene(energy: Energy) -> dict[str, Any]:
    """Return the settings of a scene that has this energy, which is "given" if none is equal."""
    name, width = "given", getattr(energy, "sigma", getattr(energy, "bandwidth", None))
    more: dict[str, Any] = {}
    match energy:
        case ist.GaussianKDE() if energy.is_round and energy.log_weights is None:
            name = "kde"
        case ist.ModernHopfield():
            name = "modern"
        case ist.EpanechnikovKDE():
            name, width = "epanechnikov", energy.bandwidth / EPANECHNIKOV_RADIUS
        case ist.Mixture() if energy.log_weights is energy.covariance is None:
            name = "mixture"
        case ist.SparseHopfield() if energy.separation == "entmax":
            name, width, more = "sparse", energy.beta**-0.5, {"sparsity": energy.alpha}
        case ist.CRPMixture() if energy.normalized and not energy.discount:
            name, centre = "crp", energy.prior_mean
            more = {"alpha": float(energy.alpha), "prior": (2 * float(energy.rho)) ** -0.5}
            more["centre"] = [0.0, 0.0] if centre is None else centre.tolist()
            more["counts"] = energy.counts.tolist()
        case ist.Hopfield() if energy.states == "continuous" and not energy.zero_diagonal:
            name = "hopfield"
    if isinstance(width, torch.Tensor) and width.ndim == 0:
        more = {"sigma": float(width), **more}
    return {"energy": name, **more}
