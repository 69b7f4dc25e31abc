"""ClAM+CRP and ClAM+CRP+ELBO: as many memories as the data ask for."""

import numpy as np
import pytest
from scipy import stats
from scipy.spatial.distance import cdist
from sklearn.datasets import make_blobs, make_moons
from sklearn.metrics import adjusted_rand_score

import isthmus as ist
from isthmus.cluster import ClAMCRP
from isthmus.cluster.crp_inference import partition_log_prior

ALPHAS = (1e-300, 1e-12, 1.0, 1e6, 1e12)


@pytest.mark.parametrize(
    ("n_clusters", "size", "dim", "far"),
    [(2, 25, 2, 10), (4, 25, 4, 10), (7, 25, 7, 10), (2, 100, 2, 4.5), (2, 100, 50, 4.5)],
)
def test_the_clusters_of_the_data_are_found(make_crp, n_clusters, size, dim, far):
    centres = far * np.eye(n_clusters, dim)
    x, labels = make_blobs([size] * n_clusters, centers=centres, random_state=0)
    model = make_crp().fit(x)
    assert model.memories_.shape == (n_clusters, dim)
    assert adjusted_rand_score(labels, model.labels_) > (0.9 if far < 10 else 0.999)
    assert (np.diff(model.counts_) <= 1e-9).all()  # largest first
    np.testing.assert_allclose(model.weights_, model.counts_ / len(x))


def test_memories_are_posterior_means_about_the_centre(blobs, make_crp):
    model = make_crp(beta=0.5, rho=0.05).fit(blobs)
    centre = blobs.mean(0)
    for label, memory in enumerate(model.memories_):
        own = blobs[model.labels_ == label]
        shrunk = 0.5 * len(own) / (0.5 * len(own) + 0.05)
        np.testing.assert_allclose(memory, centre + shrunk * (own.mean(0) - centre), atol=1e-3)


@pytest.mark.parametrize("stray", [False, True], ids=["clear", "with-a-stray-row"])
def test_the_objective_is_minus_the_log_evidence_per_row(blobs, stray):
    # Also where a cluster of one was dissolved at the end.
    x = np.concatenate([blobs, [[20.0, 20.0]]]) if stray else blobs
    model = ClAMCRP(beta=0.5, rho=0.05, alpha=2.0, discount=0.3, random_state=0).fit(x)
    assert model.n_clusters_ == 3
    inside = (x - x.mean(0)) / model._units.scale
    beta, rho = 0.5 * model._units.scale**2, 0.05 * model._units.scale**2
    evidence = partition_log_prior(np.bincount(model.labels_), 2.0, 0.3)
    for label in range(model.n_clusters_):
        own = inside[model.labels_ == label]
        covariance = np.eye(len(own)) / (2 * beta) + 1 / (2 * rho)
        normal = stats.multivariate_normal(np.zeros(len(own)), covariance)
        evidence += normal.logpdf(own.T).sum()
    assert model.objective_ == pytest.approx(-evidence / len(x), rel=1e-9)
    assert model.objective_ == model.objective_trace_[-1]


@pytest.mark.parametrize("rho", ["auto", 0.05])
def test_no_memory_is_created_as_alpha_vanishes_and_more_as_it_grows(make_crp, blobs, rho):
    # The first row has nobody to join, so there is one.
    found = [
        make_crp(alpha=alpha, beta=0.5, rho=rho, min_cluster_size=0).fit(blobs).n_clusters_
        for alpha in ALPHAS
    ]
    assert found[0] == 1
    assert found[2] == 3
    assert found == sorted(found)
    assert found[-1] > 80


def test_as_printed_far_too_many_memories_are_opened(make_crp):
    # Erratum E8: in 13 dimensions the new cluster's term is inflated millions of times.
    x, labels = make_blobs(150, 13, centers=3, center_box=(-10, 10), random_state=3)
    rules = {"beta": 0.5, "rho": 0.01, "min_cluster_size": 0}
    model = make_crp(**rules).fit(x)
    assert adjusted_rand_score(labels, model.labels_) == 1
    assert make_crp(**rules, normalized=False).fit(x).n_clusters_ > 10 * model.n_clusters_


def test_a_cluster_at_the_origin_is_not_taken_for_a_new_one(make_crp):
    # Erratum E10: rows of the middle cluster flow to the origin, where "new" sits too.
    around = np.array([[0, 0], [9, 0], [-9, 0], [0, 9], [0, -9]])
    x = np.repeat(around, 30, 0) + np.random.default_rng(1).normal(size=(150, 2))
    x -= x.mean(0)
    model = make_crp().fit(x)
    assert model.n_clusters_ == 5
    middle = x[:30]
    assert len(set(model.predict(middle))) == 1
    nearest = model.memories_[model.predict([[0.0, 0.0]])[0]]
    assert np.linalg.norm(nearest) < 0.5
    assert model.novelty(middle).max() < 0.5
    retrieved = ist.retrieve(model.energy_, middle).state
    assert np.linalg.norm(retrieved, axis=1).max() < 0.5


def test_the_same_seed_finds_the_same_in_any_order_of_rows(make_crp, overlapping):
    model = make_crp().fit(overlapping)
    order = np.random.default_rng(5).permutation(len(overlapping))
    other = make_crp().fit(overlapping[order])
    np.testing.assert_array_equal(other.memories_, model.memories_)
    np.testing.assert_array_equal(other.counts_, model.counts_)
    np.testing.assert_array_equal(other.labels_, model.labels_[order])


def test_small_clusters_are_dissolved_unless_they_are_wanted(make_crp, blobs):
    stray = np.concatenate([blobs, [[400.0, 400.0]]])
    rules = {"beta": 0.5, "rho": 0.05}
    model = make_crp(**rules).fit(stray)
    assert model.n_clusters_ == 3
    assert model.counts_.sum() == pytest.approx(91)
    kept = make_crp(**rules, min_cluster_size=0).fit(stray)
    assert kept.n_clusters_ == 4
    assert kept.counts_.min() == pytest.approx(1)
    # If all are too small, all stay.
    assert make_crp(**rules, min_cluster_size=40).fit(blobs).n_clusters_ == 3


@pytest.mark.parametrize("dim", [2, 5])
def test_a_small_cluster_far_away_is_kept(make_crp, dim):
    X = np.random.default_rng(dim).normal(size=(1000, dim))
    X[:45, 0] += 20
    model = make_crp().fit(X)
    np.testing.assert_allclose(model.counts_, [955, 45], atol=1)
    assert model.novelty(X[:45]).mean() < 0.1


@pytest.mark.parametrize("dim", [2, 50])
@pytest.mark.parametrize("shape", ["round", "elongated"])
def test_one_gaussian_blob_stays_whole(make_crp, dim, shape):
    widths = np.ones(dim) if shape == "round" else 1 / np.arange(1, dim + 1)
    X = np.random.default_rng(dim).normal(size=(1000, dim)) * widths
    model = make_crp().fit(X)
    assert model.n_clusters_ == 1
    np.testing.assert_allclose(0.5 / model.beta_, X.var(0).mean(), rtol=0.01)
    assert model.novelty(X).mean() < 0.2
    assert model.novelty(30 + X[:5]).min() > 0.9


@pytest.mark.parametrize(("n_clusters", "dim"), [(3, 2), (8, 3)])
def test_clusters_far_apart_are_neither_merged_nor_split(make_crp, n_clusters, dim):
    """They keep less than a hundredth of the variance inside them."""
    for seed in range(3):
        rng = np.random.default_rng([seed, dim])
        y = rng.integers(0, n_clusters, 100 * n_clusters)
        places = rng.permutation(5**dim)[:n_clusters]  # of a grid
        centres = 12.0 * np.transpose(np.unravel_index(places, (5,) * dim))
        X = centres[y] + rng.normal(size=(len(y), dim))
        assert adjusted_rand_score(y, make_crp().fit(X).labels_) > 0.9


def test_lines_and_curves_are_not_cut_into_many(make_crp):
    line = np.random.default_rng(0).random((300, 1))
    assert make_crp().fit(line).n_clusters_ <= 3
    assert make_crp().fit(make_moons(300, noise=0.05, random_state=0)[0]).n_clusters_ <= 8


CENTRES = np.array([[0.0, 0.0], [12.0, 0.0], [0.0, 12.0], [12.0, 12.0]])


def batch(generator, n_clusters, size=200):
    labels = generator.integers(0, n_clusters, size)
    return CENTRES[labels] + generator.normal(size=(size, 2)), labels


@pytest.mark.parametrize("settings", [{}, {"beta": 0.5}], ids=["auto", "given-beta"])
def test_memories_appear_with_the_clusters_of_a_stream(make_crp, settings):
    generator = np.random.default_rng(0)
    model, found, names = make_crp(**settings), [], {}
    for n_clusters in (2, 2, 2, 3, 3, 3, 4, 4, 4):
        rows, labels = batch(generator, n_clusters)
        model.partial_fit(rows)
        found.append(model.n_clusters_)
        assert adjusted_rand_score(labels, model.labels_) == 1
        for cluster, label in zip(labels, model.labels_, strict=True):
            assert names.setdefault(cluster, label) == label  # it keeps its name
    assert found == [2, 2, 2, 3, 3, 3, 4, 4, 4]
    assert cdist(CENTRES, model.memories_).min(1).max() < 0.5
    assert model.counts_.sum() == pytest.approx(1800)


@pytest.mark.parametrize("order", ["shuffled", "sorted"])
def test_a_stream_ends_near_the_batch_fit(make_crp, order):
    # Tails of rows far from every cluster must not leave a memory in each batch.
    generator = np.random.default_rng(7)
    labels = generator.integers(0, 4, 4000)
    rows = 2 * CENTRES[labels] + generator.standard_t(4, size=(4000, 2))
    whole = make_crp().fit(rows)
    assert whole.n_clusters_ == 4
    places = np.argsort(labels, kind="stable") if order == "sorted" else np.arange(4000)
    model, found = make_crp(), []
    for start in range(0, 4000, 500):
        found.append(model.partial_fit(rows[places[start : start + 500]]).n_clusters_)
    assert found[-1] == 4
    assert max(found) <= 5
    assert adjusted_rand_score(whole.labels_, model.predict(rows)) > 0.98
    np.testing.assert_allclose(model.counts_.sum(), 4000)


@pytest.mark.parametrize("discount", [0.0, 0.4])
def test_novelty_is_that_of_the_predictive_by_quadrature_over_the_means(blobs, discount):
    beta, rho, alpha = 0.5, 0.02, 1.5
    model = ClAMCRP(beta=beta, rho=rho, alpha=alpha, discount=discount, random_state=0)
    line = blobs[::9, :1] + 3 * (blobs[::9, 1:] > 4)  # clusters of a few rows each
    x = np.linspace(-20, 30, 41)
    novelty = model.fit(line).novelty(x[:, None])
    means, step = np.linspace(-80, 80, 16_001, retstep=True)
    prior = stats.norm.pdf(means, line.mean(), np.sqrt(0.5 / rho))
    width = np.sqrt(0.5 / beta)
    near = stats.norm.pdf(x[:, None], means, width)
    masses = [(alpha + discount * model.n_clusters_) * near @ prior * step]
    for label in range(model.n_clusters_):
        own = line[model.labels_ == label, 0]
        posterior = prior * stats.norm.pdf(own[:, None], means, width).prod(0)
        masses.append((len(own) - discount) * near @ posterior / posterior.sum())
    np.testing.assert_allclose(novelty, masses[0] / np.sum(masses, 0), atol=1e-9)
