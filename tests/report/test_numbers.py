"""Numbers behind verdicts, computed again from their definitions in NumPy."""

from collections import defaultdict
from typing import Any

import numpy as np
import pytest
import torch
from report_sections import section_of
from scipy.integrate import quad
from scipy.spatial.distance import cdist
from scipy.special import logsumexp, softmax
from scipy.stats import multivariate_normal
from sklearn.datasets import load_digits

from isthmus.io.files import shipped
from isthmus.paper.report.parts import capacity, clustering, energies
from isthmus.paper.report.parts.clustering_errata import BETA, MEANS
from isthmus.study import Store, make_report


def test_basins_are_the_modes_on_a_fine_grid() -> None:
    axis = np.linspace(-6, 6, 60_001)[:, None]
    table = section_of("basins-merging").numbers["basins_by_sigma_and_N"]
    for sigma, row in table.items():
        for count, basins in row.items():
            memories = np.ravel(capacity.LINE[: int(count)])
            density = logsumexp(-0.5 * ((axis - memories) / float(sigma)) ** 2, 1)
            assert basins == (np.diff(np.sign(np.diff(density))) < 0).sum()


def test_gradients_of_log_densities_from_the_printed_formulas() -> None:
    """Score and density of ClAM and Hopfield energies at beta, each by hand."""
    x, memories = energies.LINE_QUERIES.numpy(), np.ravel(energies.LINE.numpy())
    weights, square = np.array([1.0, 1, 1, 6]), 0.32**2
    clam = weights * np.exp(-0.5 * (x - memories) ** 2 / square)
    clam_score = 2 * ((clam * (memories - x)).sum(1) / clam.sum(1))
    hopfield_score = softmax(x * memories / square, 1) @ memories - x[:, 0]
    printed = [(0.5 / square - 1) * clam_score, (1 / square - 1) * hopfield_score]
    section = section_of("landscapes-1d")
    assert f"gradient off printed {np.abs(printed).max():.4g}" in section.findings[0].because
    for name, logit in (
        ("Mixture (ClAM)", lambda t: logsumexp(-0.5 * (t - memories) ** 2 / square, b=weights)),
        ("Gaussian KDE", lambda t: logsumexp(-0.5 * (t - memories) ** 2 / square)),
    ):
        # The integral over R by quadrature is the normaliser that the density is divided by.
        total = quad(lambda t, f=logit: np.exp(f(t)), -9, 9, limit=200)[0]
        count = weights.sum() if "ClAM" in name else len(memories)
        assert total == pytest.approx(count * np.sqrt(2 * np.pi * square))
        assert section.numbers[name]["integral_of_density"] == pytest.approx(1, abs=1e-6)


@pytest.mark.slow
def test_completed_digits_by_mean_shift_with_clamped_pixels() -> None:
    numbers = section_of("completion").numbers
    pixels, labels = load_digits(return_X_y=True)
    order = torch.randperm(len(pixels), generator=torch.Generator().manual_seed(0)).numpy()
    kept, others = order[: -energies.HELD_OUT], order[-energies.HELD_OUT :]
    memories, queries = pixels[kept] / 16, pixels[others] / 16
    seen = cdist(queries[:, :32], memories[:, :32], "sqeuclidean")
    width = 2 * numbers["sigma"] ** 2
    below = softmax(-seen / width, 1) @ memories[:, 32:]

    def error() -> float:
        return float(np.sqrt(np.mean((below - queries[:, 32:]) ** 2)))

    assert numbers["rms_error_of_conditional_mean"] == pytest.approx(error())
    for _ in range(300):
        hidden = cdist(below, memories[:, 32:], "sqeuclidean")
        shares = softmax(-(seen + hidden) / width, 1)
        below = shares @ memories[:, 32:]
    assert numbers["rms_error_of_completion"] == pytest.approx(error(), rel=0.02)
    right = np.mean(labels[kept][shares.argmax(1)] == labels[others])
    assert numbers["share_with_the_right_digit"] == pytest.approx(right, abs=0.01)


def test_points_that_create_a_memory_by_bayes_rule() -> None:
    generator = torch.Generator().manual_seed(0)
    data = 1.6 * torch.randn(16, 2, generator=generator, dtype=torch.float64).numpy()
    variance, alpha = 0.5 / BETA, 3.0
    joint = [
        n * multivariate_normal(mean, variance).pdf(data)
        for n, mean in zip(clustering.COUNTS, MEANS, strict=True)
    ]
    joint.append(alpha * multivariate_normal([0, 0], variance + 0.5 / clustering.RHO).pdf(data))
    created = (np.argmax(joint, 0) == len(MEANS)).sum()
    finding = section_of("four-models").findings[0]
    assert f"{created} of 16 points create a memory" in finding.because


def test_numbers_of_clusters_of_the_published_fits() -> None:
    place = shipped("docs/study")
    if place is None:
        pytest.skip("the docs are not here")
    rows = Store(place).read()
    best: dict[tuple[str, int], dict[str, Any]] = {}
    for row in rows:
        if row["method"] == "ClAM+CRP" and row["status"] == "ok":
            cell = row["dataset"], row["seed"]
            if cell not in best or row["objective"] < best[cell]["objective"]:
                best[cell] = row
    ratios = defaultdict(list)
    for (dataset, _), row in best.items():
        ratios[dataset].append(row["n_clusters"] / row["n_classes"])
    medians = [np.median(each) for each in ratios.values()]
    factors = [max(each, 1 / each) for each in medians]
    found = {each.method: each for each in make_report(rows).cluster_numbers}["ClAM+CRP"]
    assert found.median_factor == pytest.approx(np.median(factors))
    assert found.within == sum(each <= 1.5 for each in factors)
