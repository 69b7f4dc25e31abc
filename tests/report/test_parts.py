"""The parts of `isthmus reproduce`: verdicts that follow numbers, and numbers that are right."""

import ast
import math
import re
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from report_sections import section_of
from scipy import stats
from scipy.spatial.distance import cdist
from scipy.special import logsumexp, softmax

from isthmus.paper.report.parts import attention, capacity, clustering, clustering_errata, study
from isthmus.paper.report.parts.incontext import energy_distance
from isthmus.paper.report.section import CLAIMS
from isthmus.paper.sweep import Sweep, SweepCell
from isthmus.report import Section

CORRECTED = "held with a correction"
JUDGES = {"judged", "corrected_by"}


def verdicts(section: Section) -> list[str]:
    return [each.verdict for each in section.findings]


@pytest.mark.parametrize(
    ("part", "expected"),
    [
        ("landscapes-1d", [CORRECTED, "held"]),
        ("basins-merging", ["held", "held"]),
        ("hopfield-equivalence", ["held", CORRECTED]),
        ("four-models", ["held", CORRECTED, "held"]),
        ("elbo-dynamics", [CORRECTED, "held", "held", "did not hold"]),
        pytest.param("engrams", [CORRECTED], marks=pytest.mark.slow),
        pytest.param("capacity-sweep", ["held", CORRECTED], marks=pytest.mark.slow),
        pytest.param("landscapes-2d", ["held"], marks=pytest.mark.slow),
        pytest.param("incontext-landscapes", ["held", "held", CORRECTED], marks=pytest.mark.slow),
        pytest.param("incontext-likelihood", ["held"], marks=pytest.mark.slow),
        pytest.param("incontext-samples", ["did not hold"], marks=pytest.mark.slow),
    ],
)
def test_verdicts(part: str, expected: list[str]) -> None:
    assert verdicts(section_of(part)) == expected


def test_the_page_judges_the_claims_of_the_list_each_once() -> None:
    """Compare the list with the names in calls of `judged` and `corrected_by` in the source."""
    names = []
    for path in Path(study.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") in JUDGES:
                name = ast.unparse(node.args[0])
                names += ["labelled", "unlabelled"] if "{group}" in name else [name.strip("'")]
    names = [f"competitive-{name}" if "labelled" in name else name for name in names]
    names.remove("claim")  # the parameter of `corrected_by` itself
    assert sorted(names) == sorted(CLAIMS)
    for claim, place in CLAIMS.values():
        assert claim.endswith(".")
        assert re.match(r"(§\d|App\. C), sentence \d|.*(Fig\. \d|App\. C|draft)", place), claim


@pytest.mark.slow
def test_numbers_of_clusters_where_the_model_is_right() -> None:
    for table, share in zip(study.numbers_on_known_clusters(0), (0.75, 0.85), strict=True):
        factors = {
            dim: [max(k / n, n / k) for k, found in by_k.items() for n in found]
            for dim, by_k in table.items()
        }
        assert np.mean([factor <= 1.5 for row in factors.values() for factor in row]) >= share
        assert sum(map(len, factors.values())) == 42
        assert np.median(factors[5] + factors[10]) == 1


def test_energy_gap_by_hand() -> None:
    # Off the sphere E_MCHN - sigma^2 E_KDE of one pattern is -|x_1|^2 / 2 wherever one looks.
    one = torch.tensor([[2.0, 0.0]], dtype=torch.float64)
    queries = torch.randn(5, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert capacity.energy_gap(one, queries, 0.7) < 1e-12
    two = torch.tensor([[2.0, 0.0], [0.0, 1.0]], dtype=torch.float64)
    far = torch.tensor([[50.0, 0.0], [0.0, 50.0]], dtype=torch.float64)
    # Far out along either pattern only that one counts: 4/2 - 1/2.
    assert capacity.energy_gap(two, far, 1.0) == pytest.approx(1.5)


def test_time_of_the_elbo_flow_by_small_steps_and_its_law() -> None:
    joint, v, time = clustering_errata.LOG_JOINT.numpy(), np.array([0.0, 0.0, 0.0, 5.0]), 0.0
    while np.abs(softmax(v) - softmax(joint)).max() > 1e-3:
        q = softmax(v)
        v = v + 0.005 * (np.diag(q) - np.outer(q, q)) @ (joint - np.log(q))
        time += 0.005
    assert clustering.time_of_the_flow(5.0) == pytest.approx(time, rel=1e-3)
    assert time == pytest.approx(81, abs=1)
    times = [clustering.time_of_the_flow(each) for each in (10.0, 15.0, 20.0)]
    assert times[::2] == pytest.approx([584, 5.8e6], rel=0.01)
    # Near a vertex the logit s falls at a rate of about s exp(-s): the time is about exp(s) / s.
    slope = math.log(times[2] / times[1]) / 5
    assert slope == pytest.approx(1 + math.log(15 / 20) / 5, abs=0.01)


@pytest.mark.slow
def test_the_claimed_number_is_not_the_capacity_and_open_as_a_bound() -> None:
    section = capacity.capacity_bounds(0)
    assert verdicts(section) == ["did not hold", "open", "held", CORRECTED]
    assert section.numbers["certified_growth_by_M"] == pytest.approx(
        {"2.0": 3.28, "1.7": 2.9}, abs=0.05
    )


def test_contradictions_of_a_sweep_are_those_of_welch() -> None:
    generator = np.random.default_rng(0)
    means = {(2, 4): 1.0, (2, 9): 2.0, (3, 4): 0.5, (3, 9): 3.0}  # at N = 9 it rises with D
    cells = [
        SweepCell(*place, draw, 0.5, mean + 0.3 * generator.standard_normal(), 0.1)
        for place, mean in means.items()
        for draw in range(8)
    ]
    found = Sweep(tuple(cells))
    draws = {
        place: [each.ratio for each in cells if (each.dim, each.count) == place] for place in means
    }
    p_value = stats.ttest_ind(draws[2, 9], draws[3, 9], equal_var=False, alternative="less").pvalue
    assert p_value < 0.05 / 2
    assert capacity.contradictions(found, "ratio", "D") == 1
    assert capacity.contradictions(found, "ratio", "N") == 0
    assert capacity.contradictions(found, "retrieved", "D") == 0  # no spread at all


@pytest.mark.parametrize(
    ("qk", "diverging", "verdict"),
    [
        (0.5, 0.0, "held"),
        (0.5, 0.01, "held"),
        (0.5, 0.3, CORRECTED),
        (1.5, 0.0, "did not hold"),
    ],
)
def test_training_is_judged_above_the_best_rate_of_plain_attention(
    qk: float, diverging: float, verdict: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Five seeds at two rates; pre-norm does best at 0.01, QK-norm diverges at the rate given."""
    losses = {"pre-norm": 1.0, "QK-norm": qk, "SALN": 0.5}
    keys = list(product(losses, (0.01, 0.3), range(5)))
    found = pd.DataFrame(keys, columns=["variant", "learning_rate", "seed"])
    found["loss"] = found["test_loss"] = found.variant.map(losses) + found.learning_rate
    normal = found.variant == "QK-norm"
    found["diverged"] = normal & (found.learning_rate == diverging)
    found["largest_logit"] = np.where(normal, 5.0, 100.0)
    found["entanglement"] = 0.4
    monkeypatch.setattr(attention, "runs_of_the_experiment", lambda _: (found, "here"))
    section = attention.attention_training(0)
    assert verdicts(section) == [verdict]
    assert "5 of 5 seeds" in section.observations[0]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("alpha", "normalized", "share"),
    [(30.0, False, 0.297), (300.0, False, 1.0), (30.0, True, 0.0), (300.0, True, 0.163)],
)
def test_share_of_new_points_that_flow_to_the_origin(
    alpha: float, normalized: bool, share: float
) -> None:
    axis = clustering.REACH * (np.arange(40) - 19.5) / 20
    x = np.stack(np.meshgrid(axis, axis), -1).reshape(-1, 1, 2)
    beta, rho = clustering_errata.BETA, clustering.RHO
    kappa = beta * rho / (beta + rho)
    centres = np.array([*clustering_errata.MEANS, [0.0, 0.0]])
    widths = np.array([beta] * 3 + [kappa])
    weights = np.array([*clustering.COUNTS, alpha * (kappa / beta if normalized else 1)])

    def shares(x):
        return softmax(np.log(weights) - widths * np.square(x - centres).sum(-1), 1)

    new = shares(x).argmax(1) == 3
    for _ in range(5000):  # descent by hand, with all pulls in their own strength
        x = x + 0.1 * ((shares(x) * widths / beta)[..., None] * (centres - x)).sum(1, keepdims=True)
    ends = np.square(x - centres).sum(-1).argmin(1) == 3
    if (alpha, normalized) == (30.0, False):
        z = np.stack(np.meshgrid(axis, axis), -1).reshape(-1, 1, 2)[new]
        for _ in range(3000):  # the mean of the centres, by the precision of each
            pulls = shares(z) * widths
            z = ((pulls / pulls.sum(1, keepdims=True))[..., None] * centres).sum(1, keepdims=True)
        by_mean = (np.square(z - centres).sum(-1).argmin(1) == 3).mean()
        assert clustering.retrieved_to_the_origin(alpha) == pytest.approx(by_mean, abs=2e-3)
    found = clustering.flow_to_the_origin(alpha, normalized)
    assert found[:2] == pytest.approx((new.mean(), ends.mean()), abs=2 / 1600)
    assert ends[new].mean() == pytest.approx(share, abs=2e-3)
    assert found[2] == (ends & ~new).sum() == 0


@pytest.mark.parametrize("discount", clustering.DISCOUNTS)
def test_mass_of_the_first_memory_by_seating_everybody(discount: float) -> None:
    generator, masses = np.random.default_rng(1), []
    for _ in range(150):
        counts = [1.0]
        for _ in range(1, 60):
            weights = np.array([*(np.array(counts) - discount), 1 + discount * len(counts)])
            place = int(np.searchsorted(np.cumsum(weights), generator.random() * weights.sum()))
            counts[place : place + 1] = [counts[place] + 1 if place < len(counts) else 1.0]
        masses.append(counts[0])
    expected = discount + (1 - discount) * (60 + 1) / 2
    assert np.mean(masses) == pytest.approx(expected, abs=5 * np.std(masses) / math.sqrt(150))
    mean, error = clustering.mass_of_the_first(discount, 0)
    assert mean == pytest.approx(discount + (1 - discount) * 201 / 2, abs=4 * error)


def test_losses_of_clam_and_em_in_numpy() -> None:
    found = clustering.losses_of_both_algorithms(0)
    data = clustering.blobs(0)[::4]
    data = (data - data.mean(0)) / data.std(ddof=1)
    order = torch.randperm(len(data), generator=torch.Generator().manual_seed(0))[:4]
    means, start = data[order.numpy()], data[order.numpy()]

    def reconstruction(means):
        x = data
        for _ in range(10):
            x = x + 0.1 * (softmax(-0.5 * cdist(x, means, "sqeuclidean"), 1) @ means - x)
        return np.square(x - data).sum(1).mean()

    def likelihood(means):
        return -logsumexp(-0.5 * cdist(data, means, "sqeuclidean"), 1).mean()

    for _ in range(clustering.GEM_STEPS - 1):
        shares = softmax(-0.5 * cdist(data, means, "sqeuclidean"), 1)
        means = shares.T @ data / shares.sum(0)[:, None]
    for loss, trace in zip((reconstruction, likelihood), found["EM"], strict=True):
        assert trace[:: len(trace) - 1] == pytest.approx([loss(start), loss(means)])
    assert found["ClAM"][0][-1] < found["EM"][0][-1]
    assert found["EM"][1][-1] < found["ClAM"][1][-1]


def test_a_memory_between_others_has_a_bounded_basin() -> None:
    at_hull, inside = clustering.finite_basins()
    # Far out, the memory with the largest inner product with the direction wins.
    angles = np.linspace(0, 2 * np.pi, 3600, endpoint=False)
    directions = np.stack([np.cos(angles), np.sin(angles)], 1)
    nearest = (directions @ np.array(clustering_errata.MEANS).T).argmax(1)
    assert at_hull == pytest.approx(np.bincount(nearest) / 3600, abs=0.01)
    assert inside == 0


def test_memories_respond_to_evidence_and_states_with_opposite_signs() -> None:
    log_joint = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64).log()
    step = 1e-6 * torch.eye(3, dtype=torch.float64)
    moved = [clustering.flow(log_joint, log_joint + one) for one in step]
    by_evidence = torch.stack(moved, 1) / 1e-6
    by_state = torch.stack([clustering.flow(log_joint + one, log_joint) for one in step], 1) / 1e-6
    expected = torch.tensor([[0.25, -0.15, -0.1], [-0.15, 0.21, -0.06], [-0.1, -0.06, 0.16]])
    torch.testing.assert_close(by_evidence, expected.double(), atol=1e-5, rtol=0)
    torch.testing.assert_close(by_state, -expected.double(), atol=1e-5, rtol=0)


def test_energy_distance_on_a_line_is_that_of_scipy() -> None:
    generator = np.random.default_rng(0)
    first, second = generator.normal(size=50), generator.normal(0.5, 2, size=70)
    ours = energy_distance(torch.from_numpy(first)[:, None], torch.from_numpy(second)[:, None])
    assert math.sqrt(ours) == pytest.approx(stats.energy_distance(first, second))
