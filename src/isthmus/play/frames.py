"""What the page draws, computed by the library: heights, basins, paths, balls, chains, clusters."""

from __future__ import annotations

import math
import warnings
from contextlib import suppress
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from isthmus.capacity import certify, phases
from isthmus.cluster import BasinFlow
from isthmus.dynamics.retrieve import retrieve
from isthmus.dynamics.samplers import HMC, MALA, Langevin
from isthmus.energy import Energy
from isthmus.errors import InvalidInputError, UnknownNormalizerError
from isthmus.memories.base import Memory
from isthmus.memories.crp import CRPMixture
from isthmus.memories.hopfield import Hopfield
from isthmus.play.basins import downhill, label_basins
from isthmus.play.energies import PlayEnergy
from isthmus.play.messages import MOST_QUERIES, MOST_WALKERS, Scene, as_floats
from isthmus.validation import as_choice, as_count

Arrays = dict[str, NDArray[Any]]
Reply = tuple[dict[str, Any], Arrays]

# Heights above this quantile are drawn alike.
HIGHEST = 0.88
MOST_PATH, MOST_BALLS = 160, 500
# The grid of the share of a new cluster is coarser by this factor while something is dragged.
# Slow energies are evaluated in blocks, which stay in the cache and can be cancelled in between.
COARSER, NODES_PER_BLOCK = 3, 1024
# Phases of more memories than this are those of a sample of them.
MOST_IN_PHASES, FEWEST_ROWS = 150, 5


@torch.no_grad()
def landscape(kind: PlayEnergy, scene: Scene, request: dict[str, Any]) -> Reply:
    """Return the heights and basins of a scene on a grid.

    A request of the kind "final" has exact borders of basins, "frame" borders to about a cell.
    """
    columns, rows = (
        as_count(request.get(name), name, at_least=8, at_most=kind.fine)
        for name in ("columns", "rows")
    )
    view = as_choice(request.get("view", "energy"), "view", ("energy", "density"))
    final, wants_basins = request["kind"] == "final", bool(request.get("basins", True))
    header: dict[str, Any] = {"columns": columns, "rows": rows, "view": view}
    if not len(scene.memories) and kind.name not in ("incontext", "given"):
        return {**header, "empty": True}, {}
    if kind.train is not None and not final:
        header["training"] = kind.train(scene)
    energy, nodes = kind.build(scene), scene.grid(columns, rows)
    arrays: Arrays = {}
    moved, blocks = None, nodes.reshape(-1, 2).split(NODES_PER_BLOCK)
    if wants_basins and isinstance(energy, Memory):
        pairs = [energy.step_and_energy(block) for block in blocks]
        moved = torch.cat([step for step, _ in pairs]).view(nodes.shape)
        heights = torch.cat([height for _, height in pairs]).view(nodes.shape[:2])
    else:
        heights = torch.cat([energy.energy(block) for block in blocks]).view(nodes.shape[:2])
    if wants_basins and len(scene.memories):
        exact = final and moved is not None
        moved = downhill(heights, nodes) if moved is None else moved
        labels, modes, names = label_basins(energy, scene, nodes, moved, exact)
        arrays["labels"] = np.where(torch.isfinite(heights).numpy(), labels, np.int16(-1))
        header["modes"] = np.column_stack([modes, names]).tolist()
    if isinstance(energy, CRPMixture):
        coarser = 1 if final else COARSER
        grid = scene.grid(columns // coarser, rows // coarser)
        shares = map(energy.responsibilities, grid)  # row by row, of up to 2,000 memories
        lead = [each[:, -1] - each[:, :-1].amax(1) for each in shares]  # of a new cluster
        arrays["new"] = torch.stack(lead).float().numpy()
    arrays["height"], facts = _values(energy, heights, view)
    beta: Any = getattr(energy, "beta", None)
    single = isinstance(beta, Tensor) and beta.ndim == 0
    return {**header, **facts, "beta": float(beta) if single else None}, arrays


def _values(
    energy: Energy, heights: Tensor, view: str
) -> tuple[NDArray[np.float32], dict[str, Any]]:
    """Return what is coloured: energies, or densities relative to their peak; and their range."""
    finite = heights[torch.isfinite(heights)]
    if not len(finite):
        return heights.float().numpy(), {"range": [0.0, 1.0]}
    low, high = float(finite.min()), float(torch.quantile(finite.float(), HIGHEST))
    if view == "energy" or isinstance(energy, Hopfield):
        facts = {"range": [low, high if high > low else low + 1.0], "view": "energy"}
        # That of a classical network has no lower bound.
        return heights.float().numpy(), {**facts, "no_density": view == "density"}
    scale, peak = float(energy.inverse_temperature), None
    if isinstance(energy, Memory):  # others may integrate for seconds
        with suppress(UnknownNormalizerError):
            peak = math.exp(min(-scale * low - float(energy.log_normalizer()), 700.0))
    density = torch.exp(-scale * (heights - low)).float().numpy()
    return density, {"range": [0.0, 1.0], "peak": peak}


@torch.no_grad()
def details(kind: PlayEnergy, scene: Scene, request: dict[str, Any]) -> Reply:
    """Return the paths of queries, their posteriors, and the balls that are proved."""
    arrays: Arrays = {}
    header: dict[str, Any] = {}
    if not len(scene.memories) and kind.name != "given":
        return header, arrays
    energy = kind.build(scene)
    queries = as_floats(request.get("queries", []), "queries", (-1, 2), MOST_QUERIES)
    if len(queries):
        points = queries.to(scene.memories)
        trace = retrieve(energy, points, tol=1e-4, max_steps=400, trace=True).trace
        assert trace is not None
        keep = np.linspace(0, len(trace) - 1, min(len(trace), MOST_PATH)).round().astype(int)
        arrays["paths"] = trace.double().numpy()[np.unique(keep)]
        if kind.shares and isinstance(energy, Memory):  # kinds with shares have responsibilities
            arrays["shares"] = energy.responsibilities(points).float().numpy()
    if kind.certified and request.get("balls") and len(scene.memories) <= MOST_BALLS:
        mixture = kind.name == "mixture"
        memory, sigma = (scene.memories, scene.sigma) if mixture else (energy, None)
        found = certify(memory, sigma, iterate="none")
        # One pattern alone attracts the whole plane.
        radius = found.guaranteed_radius
        arrays["balls"] = np.where(np.isfinite(radius), radius, 0.0)
        header["proved"] = int((found.decided == "proved").sum())
    return header, arrays


def clusters(scene: Scene) -> Reply:
    """Return how many clusters BasinFlow finds among the memories, which, and why."""
    rows = _rows(scene)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # few points leave the decision open, which is shown
        flow = BasinFlow(random_state=0).fit(rows)
    names = ("resolution", "n_clusters", "gap")
    curve = np.nan_to_num(np.column_stack([flow.gap_curve_[name] for name in names])).tolist()
    header = {"k": int(flow.n_clusters_), "probabilities": flow.k_probabilities_.tolist()}
    return {**header, "curve": curve}, {"labels": flow.labels_.astype(np.int16)}


def regions(scene: Scene) -> Reply:
    """Return the phases of a Gaussian KDE of the memories: name, lowest and highest sigma."""
    rows = _rows(scene)
    if len(rows) > MOST_IN_PHASES:
        chosen = np.random.default_rng(0).choice(len(rows), MOST_IN_PHASES, replace=False)
        rows = rows[np.sort(chosen)]
    found = phases(rows)
    collapse, likeliest = float(found.collapse_sigma), float(found.likelihood_sigma)
    return {"regions": found.regions, "collapse": collapse, "likeliest": likeliest}, {}


def _rows(scene: Scene) -> NDArray[np.float64]:
    rows: NDArray[np.float64] = scene.memories.double().numpy()
    if len(np.unique(rows, axis=0)) < FEWEST_ROWS:
        raise InvalidInputError(f"This needs at least {FEWEST_ROWS} different memories.")
    return rows


@torch.no_grad()
def walk(kind: PlayEnergy, scene: Scene, request: dict[str, Any]) -> Reply:
    """Move the chains of a request by a few steps; without positions, start new ones."""
    name = as_choice(request.get("sampler"), "sampler", kind.samplers)
    steps = as_count(request.get("steps", 1), "steps", at_most=20)
    seed = as_count(request.get("seed", 0), "seed", at_least=0, at_most=2**32 - 1)
    count = as_count(request.get("count", 100), "count", at_most=MOST_WALKERS)
    points = as_floats(request.get("walkers", []), "walkers", (-1, 2), MOST_WALKERS)
    if not len(scene.memories) and kind.name != "given":
        return {}, {"walkers": np.zeros((0, 2))}
    energy = kind.build(scene)
    generator = torch.Generator().manual_seed(seed)
    if not len(points):
        low, high = torch.tensor(scene.box, dtype=torch.float64).view(2, 2)
        points = low + torch.rand(count, 2, generator=generator, dtype=torch.float64) * (high - low)
    points = _inside(energy, scene, points.to(scene.memories), generator)
    width = scene.sigma if isinstance(energy, Memory) else 0.08 * scene.unit
    sampler: Any = {
        "langevin": Langevin(step_size=0.05 * width**2),
        "mala": MALA(step_size=0.3 * width**2),
        "hmc": HMC(step_size=0.35 * width, n_leapfrog=5, jitter=0.3),
    }[name]
    state = sampler.init(energy, points)
    for _ in range(steps):
        state, _ = sampler.step(energy, state, generator)
    return {}, {"walkers": state.position.double().numpy()}


def _inside(energy: Energy, scene: Scene, points: Tensor, generator: torch.Generator) -> Tensor:
    """Put chains that are outside of the support, or far away, on memories drawn at random."""
    low, high = points.new_tensor(scene.box).view(2, 2)
    middle = (low + high) / 2
    far = (points - middle).abs().amax(1) > 4 * (high - low).max()
    points = torch.where(far[:, None], middle, points)
    lost = far | ~torch.isfinite(energy.energy(points))
    if len(scene.memories):
        chosen = torch.randint(len(scene.memories), (len(points),), generator=generator)
        points = torch.where(lost[:, None], scene.memories[chosen], points)
    return points
