"""What the page draws, computed by the library: heights, basins, paths, balls and chains."""

from __future__ import annotations

import math
from contextlib import suppress
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from isthmus.capacity import certify
from isthmus.dynamics.retrieve import retrieve
from isthmus.dynamics.samplers import HMC, MALA, Langevin
from isthmus.energy import Energy
from isthmus.errors import UnknownNormalizerError
from isthmus.memories.base import Memory
from isthmus.memories.crp import CRPMixture
from isthmus.memories.hopfield import Hopfield
from isthmus.memories.kernels import BallKDE
from isthmus.memories.sparse import SparseHopfield
from isthmus.play.basins import downhill, label_basins
from isthmus.play.energies import PlayEnergy, beta_of
from isthmus.play.scene import MOST_QUERIES, MOST_WALKERS, Request, Scene, as_plane
from isthmus.validation import as_choice, as_count

Arrays = dict[str, NDArray[Any]]

# Heights above this quantile are drawn alike.
HIGHEST = 0.88
MOST_PATH = 160
MOST_BALLS = 500
# The grid of the share of a new cluster is coarser by this factor while something is dragged.
# Slow energies are evaluated in blocks, which stay in the cache and can be cancelled in between.
COARSER, NODES_PER_BLOCK = 3, 1024
# Memories whose nodes are too slow to move while something is dragged.
SLOW = (BallKDE, SparseHopfield)


@torch.no_grad()
def landscape(kind: PlayEnergy, scene: Scene, request: Request) -> tuple[dict[str, Any], Arrays]:
    """Return the heights and basins of a scene on a grid.

    A request of the kind "final" has exact borders of basins, "frame" borders to about a cell.
    """
    columns, rows = (
        as_count(request.body.get(name), name, at_least=8, at_most=kind.fine)
        for name in ("columns", "rows")
    )
    view = as_choice(request.body.get("view", "energy"), "view", ("energy", "density"))
    final, wants_basins = request.kind == "final", bool(request.body.get("basins", True))
    header: dict[str, Any] = {"columns": columns, "rows": rows, "view": view}
    if not len(scene.memories) and kind.name not in ("incontext", "given"):
        return {**header, "empty": True}, {}
    if kind.train is not None and not final:
        header["training"] = kind.train(scene)
    energy, nodes = kind.build(scene), scene.grid(columns, rows)
    heights, moved = _heights(
        energy, nodes, wants_basins and (final or not isinstance(energy, SLOW))
    )
    arrays: Arrays = {}
    if wants_basins and len(scene.memories):
        exact = final and moved is not None
        moved = downhill(heights, nodes) if moved is None else moved
        basins = label_basins(energy, scene, nodes, moved, heights, exact)
        inside = torch.isfinite(heights).numpy()
        arrays["labels"] = np.where(inside, basins.labels, np.int16(-1)).astype(np.int16)
        header["modes"] = [
            [*map(float, mode), int(label)]
            for mode, label in zip(basins.modes, basins.mode_labels, strict=True)
        ]
    if isinstance(energy, CRPMixture):
        coarser = 1 if final else COARSER
        arrays["new"] = _new_cluster(energy, scene, columns // coarser, rows // coarser)
    values, facts = _values(energy, heights, view)
    arrays["height"] = values
    return {**header, **facts, "beta": beta_of(energy)}, arrays


def _heights(energy: Energy, nodes: Tensor, move: bool) -> tuple[Tensor, Tensor | None]:
    """Return the energy of the nodes (rows, columns) and, of memories on request, their update."""
    blocks = nodes.reshape(-1, 2).split(NODES_PER_BLOCK)
    if not (move and isinstance(energy, Memory)):
        heights = [_near(energy, block).energy(block) for block in blocks]
        return torch.cat(heights).view(nodes.shape[:2]), None
    pairs = [_near(energy, block).step_and_energy(block) for block in blocks]
    moved, energies = (torch.cat(parts) for parts in zip(*pairs, strict=True))
    return energies.view(nodes.shape[:2]), moved.view(nodes.shape)


def _near(energy: Energy, block: Tensor) -> Energy:
    """Return kernels that end with those memories only that can reach a block of nodes."""
    if not isinstance(energy, BallKDE):
        return energy
    memories = energy.memories
    away = (block.amin(0) - memories).clamp(min=0) + (memories - block.amax(0)).clamp(min=0)
    near = torch.nonzero(away.square().sum(1) < energy.bandwidth.square())[:, 0]
    return energy.subset(near) if len(near) else energy


def _values(
    energy: Energy, heights: Tensor, view: str
) -> tuple[NDArray[np.float32], dict[str, Any]]:
    """Return what is coloured: energies, or densities relative to their peak; and their range."""
    finite = heights[torch.isfinite(heights)]
    if not len(finite):
        return heights.float().numpy(), {"range": [0.0, 1.0]}
    low, high = float(finite.min()), float(torch.quantile(finite.float(), HIGHEST))
    facts: dict[str, Any] = {"range": [low, high if high > low else low + 1.0]}
    if view == "energy" or isinstance(energy, Hopfield):
        if view == "density":
            facts["no_density"] = "This energy has no lower bound, so it has no density."
        return heights.float().numpy(), {**facts, "view": "energy"}
    scale = float(energy.inverse_temperature)
    peak = None
    if isinstance(energy, Memory):  # others may integrate for seconds
        with suppress(UnknownNormalizerError):
            peak = math.exp(min(-scale * low - float(energy.log_normalizer()), 700.0))
    density = torch.exp(-scale * (heights - low)).float().numpy()
    return density, {"range": [0.0, 1.0], "peak": peak}


def _new_cluster(energy: CRPMixture, scene: Scene, columns: int, rows: int) -> NDArray[np.float32]:
    """Return the probability of a new cluster less the largest of the others. (rows, columns)."""
    lead = []
    for block in scene.grid(columns, rows).reshape(-1, 2).split(NODES_PER_BLOCK):
        shares = energy.responsibilities(block)
        lead.append(shares[:, -1] - shares[:, :-1].amax(1))
    found: NDArray[np.float32] = torch.cat(lead).reshape(rows, columns).float().numpy()
    return found


@torch.no_grad()
def details(kind: PlayEnergy, scene: Scene, request: Request) -> tuple[dict[str, Any], Arrays]:
    """Return the paths of queries, their posteriors, and the balls that are proved."""
    arrays: Arrays = {}
    header: dict[str, Any] = {}
    if not len(scene.memories) and kind.name != "given":
        return header, arrays
    energy = kind.build(scene)
    queries = as_plane(request.body.get("queries", []), "queries", MOST_QUERIES)
    if len(queries):
        points = queries.to(scene.memories)
        arrays["paths"] = paths_of(energy, points, 1e-4 * scene.unit)
        if kind.shares and isinstance(energy, Memory):  # kinds with shares have responsibilities
            arrays["shares"] = energy.responsibilities(points).float().numpy()
    if kind.certified and request.body.get("balls") and len(scene.memories) <= MOST_BALLS:
        mixture = kind.name == "mixture"
        memory, sigma = (scene.memories, scene.sigma) if mixture else (energy, None)
        found = certify(memory, sigma, iterate="none")
        # One pattern alone attracts the whole plane.
        radius = np.where(np.isfinite(found.guaranteed_radius), found.guaranteed_radius, 0.0)
        arrays["balls"] = radius
        header["proved"] = int((found.decided == "proved").sum())
    return header, arrays


def paths_of(energy: Energy, points: Tensor, tol: float) -> NDArray[np.float64]:
    """Return the states of queries (n, 2) on their way down, thinned. (T, n, 2)."""
    trace = retrieve(energy, points, tol=tol, max_steps=400, trace=True).trace
    assert trace is not None
    keep = np.unique(np.linspace(0, len(trace) - 1, min(len(trace), MOST_PATH)).round().astype(int))
    found: NDArray[np.float64] = trace.double().numpy()[keep]
    return found


@torch.no_grad()
def walk(kind: PlayEnergy, scene: Scene, request: Request) -> tuple[dict[str, Any], Arrays]:
    """Move the chains of a request by a few steps; without positions, start new ones."""
    name = as_choice(request.body.get("sampler"), "sampler", kind.samplers)
    steps = as_count(request.body.get("steps", 1), "steps", at_most=20)
    seed = as_count(request.body.get("seed", 0), "seed", at_least=0, at_most=2**32 - 1)
    count = as_count(request.body.get("count", 100), "count", at_most=MOST_WALKERS)
    if not len(scene.memories) and kind.name != "given":
        return {}, {"walkers": np.zeros((0, 2))}
    energy = kind.build(scene)
    generator = torch.Generator().manual_seed(seed)
    given = as_plane(request.body.get("walkers", []), "walkers", MOST_WALKERS)
    points = given.to(scene.memories) if len(given) else _scattered(scene, count, generator)
    points = _inside(energy, scene, points, generator)
    sampler = sampler_for(name, energy, scene)
    state: Any = sampler.init(energy, points)
    for _ in range(steps):
        state, _ = sampler.step(energy, state, generator)
    return {}, {"walkers": state.position.double().numpy()}


def sampler_for(name: str, energy: Energy, scene: Scene) -> Langevin | MALA | HMC:
    """Return a sampler whose steps suit kernels of the scene's width."""
    width = scene.sigma
    if not isinstance(energy, Memory):
        width = 0.08 * scene.unit
    if name == "langevin":
        return Langevin(step_size=0.05 * width**2)
    if name == "mala":
        return MALA(step_size=0.3 * width**2)
    return HMC(step_size=0.35 * width, n_leapfrog=5, jitter=0.3)


def _scattered(scene: Scene, count: int, generator: torch.Generator) -> Tensor:
    """Return uniform points of the box. (count, 2)."""
    left, bottom, right, top = scene.box
    share = torch.rand(count, 2, generator=generator, dtype=torch.float64)
    corner, size = torch.tensor([left, bottom]), torch.tensor([right - left, top - bottom])
    return (corner + share * size).to(scene.memories)


def _inside(energy: Energy, scene: Scene, points: Tensor, generator: torch.Generator) -> Tensor:
    """Put chains that are outside of the support, or far away, on memories drawn at random."""
    left, bottom, right, top = scene.box
    middle = points.new_tensor([(left + right) / 2, (bottom + top) / 2])
    far = (points - middle).abs().amax(1) > 4 * max(right - left, top - bottom)
    points = torch.where(far[:, None], middle, points)
    lost = far | ~torch.isfinite(energy.energy(points))
    if len(scene.memories):
        chosen = torch.randint(len(scene.memories), (len(points),), generator=generator)
        points = torch.where(lost[:, None], scene.memories[chosen], points)
    return points
