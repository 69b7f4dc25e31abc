"""What the page draws is what the library says, checked against formulas and other libraries."""

import json

import numpy as np
import pytest
import torch
from sklearn.neighbors import KernelDensity

import isthmus as ist
from isthmus.capacity import certify
from isthmus.cluster import BasinFlow
from isthmus.play.playground import Playground

KINDS = ["kde", "modern", "sparse", "epanechnikov", "mixture", "crp", "hopfield"]


def nodes(columns: int, rows: int) -> np.ndarray:
    """The grid of the scene's box, rows from the top."""
    x, y = np.linspace(-5, 5, columns), np.linspace(4, -4, rows)
    return np.stack(np.meshgrid(x, y), -1)


def energy_of(kind: str, memories: torch.Tensor) -> ist.Energy:
    """The energy of a kind, with the parameters of the scene."""
    build = {
        "kde": lambda: ist.GaussianKDE(memories, 0.5),
        "modern": lambda: ist.ModernHopfield(memories, beta=4.0),
        "sparse": lambda: ist.SparseHopfield(memories, beta=4.0, alpha=1.5),
        "epanechnikov": lambda: ist.EpanechnikovKDE(memories, 6**0.5 * 0.5),
        "mixture": lambda: ist.Mixture(memories, beta=2.0),
        "crp": lambda: ist.CRPMixture(
            memories, [5.0, 4.0, 3.0, 2.0, 1.0], beta=2.0, rho=0.125, alpha=1.0
        ),
        "hopfield": lambda: ist.Hopfield(memories, states="continuous"),
    }
    return build[kind]()


@pytest.mark.parametrize("kind", KINDS)
def test_heights_are_the_energies_of_the_library(ask, scene, kind) -> None:
    header, arrays = ask("frame", {"energy": kind}, columns=20, rows=16)
    memories = torch.tensor(scene["memories"], dtype=torch.float64)
    expected = energy_of(kind, memories).energy(torch.from_numpy(nodes(20, 16))).numpy()
    # The logarithm of a kernel about to end has few digits in float32.
    tolerance = 2e-3 if kind == "epanechnikov" else 2e-5
    np.testing.assert_allclose(arrays["height"], expected, rtol=tolerance, atol=tolerance)
    finite = expected[np.isfinite(expected)]
    assert header["range"][0] == pytest.approx(finite.min(), abs=1e-4)


def test_the_density_is_that_of_scikit_learn(ask, scene) -> None:
    header, arrays = ask("frame", columns=64, rows=64, view="density")
    oracle = KernelDensity(bandwidth=0.5).fit(scene["memories"])
    expected = np.exp(oracle.score_samples(nodes(64, 64).reshape(-1, 2)))
    np.testing.assert_allclose(header["peak"] * arrays["height"].ravel(), expected, atol=1e-6)
    cell = (10 / 63) * (8 / 63)
    assert header["peak"] * arrays["height"].sum() * cell == pytest.approx(1, abs=1e-3)


@pytest.mark.parametrize("kind", KINDS)
def test_borders_of_basins_are_where_retrieval_puts_them(ask, scene, kind) -> None:
    """Oracle: every node of the grid is retrieved, one by one, in float64."""
    columns, rows = 40, 32
    _, arrays = ask("final", {"energy": kind}, columns=columns, rows=rows)
    memories = torch.tensor(scene["memories"], dtype=torch.float64)
    energy = energy_of(kind, memories)
    starts = torch.from_numpy(nodes(columns, rows).reshape(-1, 2))
    options = {"tol": 1e-9, "max_steps": 5000}
    ends = ist.retrieve(energy, starts, **options).state
    rests = ist.retrieve(energy, memories, **options).state
    if kind == "hopfield":
        ends, rests = (each / each.norm(dim=-1, keepdim=True) for each in (ends, rests))
    distance = torch.cdist(ends, rests)
    # Memories of one basin share the label of the first of them.
    first = (torch.cdist(rests, rests) < 1e-3).double().argmax(1)
    expected = first[distance.argmin(1)].numpy()
    expected[distance.min(1).values.numpy() > 0.05] = -1
    found = arrays["labels"].ravel().astype(int)
    found[found < 0] = -1
    assert (found == expected).mean() > 0.995


def test_a_stale_request_is_abandoned(scene) -> None:
    request = {"id": 1, "kind": "final", "scene": scene, "columns": 64, "rows": 64}
    assert Playground().answer(json.dumps(request), stale=lambda: True) is None


def test_queries_end_where_retrieval_ends(ask, scene) -> None:
    queries = [[0.0, 0.3], [3.0, 3.0]]
    _, arrays = ask("details", queries=queries)
    memory = ist.GaussianKDE(torch.tensor(scene["memories"], dtype=torch.float64), 0.5)
    np.testing.assert_allclose(arrays["paths"][0], queries, atol=1e-6)
    expected = ist.retrieve(memory, torch.tensor(queries, dtype=torch.float64)).state
    np.testing.assert_allclose(arrays["paths"][-1], expected, atol=1e-3)
    heights = memory.energy(arrays["paths"])
    assert (np.diff(heights, axis=0) < 1e-5).all()


def test_balls_are_those_of_certify(ask, scene) -> None:
    header, arrays = ask("details", balls=True)
    expected = certify(np.array(scene["memories"], dtype=np.float32), 0.5)
    np.testing.assert_allclose(arrays["balls"], expected.guaranteed_radius, rtol=1e-4)
    assert header["proved"] == int((expected.decided == "proved").sum()) > 0


def test_pies_are_the_posterior(ask, scene) -> None:
    query = np.array([0.4, 0.2])
    _, arrays = ask("details", {"energy": "crp"}, queries=[query.tolist()])
    beta, rho = 2.0, 0.125
    squares = np.square(query - np.array(scene["memories"])).sum(1)
    kappa = 1 / (1 / beta + 1 / rho)
    terms = np.append(
        np.array(scene["counts"]) * np.exp(-beta * squares),
        kappa / beta * np.exp(-kappa * np.square(query).sum()),
    )
    np.testing.assert_allclose(arrays["shares"][0], terms / terms.sum(), rtol=1e-4)


def test_the_new_cluster_leads_far_from_all_memories(ask) -> None:
    _, arrays = ask("frame", {"energy": "crp"}, columns=30, rows=30)
    new = arrays["new"]
    assert new.shape == (10, 10)
    assert ask("final", {"energy": "crp"}, columns=30, rows=30)[1]["new"].shape == (30, 30)
    assert new[0, 0] > 0.9
    assert new.min() < 0
    _, more = ask("frame", {"energy": "crp", "alpha": 50.0}, columns=30, rows=30)
    assert (more["new"] > 0).sum() > (new > 0).sum()


@pytest.mark.parametrize("sampler", ["langevin", "mala", "hmc"])
def test_chains_come_from_the_density(ask, sampler) -> None:
    """One memory: the density is a normal of width 0.5 about it."""
    alone, walkers = {"memories": [[1.0, -1.0]], "counts": [1.0]}, []
    for seed in range(12):
        body = {"sampler": sampler, "steps": 20, "count": 500, "seed": seed, "walkers": walkers}
        _, arrays = ask("walk", alone, **body)
        walkers = arrays["walkers"].tolist()
    points = np.array(walkers)
    np.testing.assert_allclose(points.mean(0), [1.0, -1.0], atol=0.09)
    np.testing.assert_allclose(points.std(0), 0.5, atol=0.06)


def test_a_plane_far_from_the_origin_keeps_its_digits(ask, scene) -> None:
    away = 1e6
    moved = {
        "memories": [[x + away, y + away] for x, y in scene["memories"]],
        "box": [value + away for value in scene["box"]],
        "centre": [away, away],
    }
    _, here = ask("frame", columns=24, rows=24)
    _, there = ask("frame", moved, columns=24, rows=24)
    np.testing.assert_allclose(there["height"], here["height"], atol=1e-4)
    np.testing.assert_array_equal(there["labels"], here["labels"])


def test_a_network_learns_the_blurred_points_while_it_is_watched(ask, scene, monkeypatch) -> None:
    monkeypatch.setattr("isthmus.play.energies.LEARNED_ROUNDS", 4)
    memories = torch.tensor(scene["memories"], dtype=torch.float64)
    expected = energy_of("kde", memories).energy(torch.from_numpy(nodes(24, 20))).numpy()
    near = expected < np.quantile(expected, 0.4)
    agreement, training = [], []
    for _ in range(4):
        header, arrays = ask("frame", {"energy": "learned"}, columns=24, rows=20)
        training.append(header["training"])
        agreement.append(np.corrcoef(arrays["height"][near], expected[near])[0, 1])
        ask("final", {"energy": "learned", "sigma": 1.0}, columns=8, rows=8)  # another page
    assert training == [True, True, True, False]
    assert agreement[-1] > agreement[0] + 0.1
    _, arrays = ask("final", {"energy": "learned"}, columns=24, rows=20)
    assert np.corrcoef(arrays["height"][near], expected[near])[0, 1] == pytest.approx(agreement[-1])


def test_clusters_and_phases_are_those_of_the_library(ask, monkeypatch) -> None:
    monkeypatch.setattr("isthmus.play.frames.MOST_IN_PHASES", 24)
    rng = np.random.default_rng(0)
    points = np.concatenate([rng.normal(size=(20, 2)), rng.normal(size=(20, 2)) + 6])
    groups = {"memories": points.tolist(), "counts": None}
    header, arrays = ask("clusters", groups)
    flow = BasinFlow(random_state=0).fit(points)
    assert header["k"] == flow.n_clusters_ == 2
    np.testing.assert_array_equal(arrays["labels"], flow.labels_)
    assert np.argmax(header["probabilities"]) == 1
    header, _ = ask("phases", groups)
    names = [name for name, _, _ in header["regions"]]
    assert names[0] == "stores"
    assert names[-1] == "forgets"
    assert ask("clusters", {"memories": [[0.0, 0.0]] * 9, "counts": None})[0]["kind"] == "error"
