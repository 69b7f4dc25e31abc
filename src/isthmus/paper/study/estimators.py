"""Clusterers that the study compares and no library has: DP-means, and ClAM as first published."""

from __future__ import annotations

import math
from dataclasses import KW_ONLY, dataclass
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClusterMixin
from sklearn.metrics import euclidean_distances
from sklearn.utils import check_random_state

from isthmus.rows import checked_table
from isthmus.validation import as_choice, as_count, as_number

# Training as Saha et al. do it stops at this learning rate.
LOWEST_LEARNING_RATE = 1e-6
# Number of batches in an epoch, at most: batches grow with the data.
BATCHES = 24


@dataclass(eq=False, repr=False)
class DPMeans(ClusterMixin, BaseEstimator):
    r"""Hard clustering with a price on each cluster (Kulis and Jordan, 2012).

    Minimises :math:`\sum_n \|x_n - \mu_{z_n}\|^2 + \lambda K`, the small-variance limit of a
    Dirichlet process mixture. Never rises from one iteration to the next.

    Parameters
    ----------
    penalty, max_iter : float, int
        Lambda, in units of the rows' mean squared distance from their mean, and most iterations.
    random_state : int, RandomState or None
        Decides the order in which rows may open clusters.

    Attributes
    ----------
    cluster_centers_, labels_ : ndarray (K, n_features), (n_samples,)
    objective_, objective_trace_ : float, ndarray
    n_iter_, converged_ : int, bool

    Examples
    --------
    >>> X = np.array([[0.0], [0.2], [5.0], [5.2], [9.0]])
    >>> DPMeans(penalty=0.2, random_state=0).fit(X).labels_.max() + 1
    np.int64(3)
    """

    penalty: float = 1.0
    _: KW_ONLY
    max_iter: int = 100
    random_state: Any = None

    def fit(self, X: Any, y: Any = None) -> Self:
        """Open clusters and move them until nothing changes."""
        penalty = as_number(self.penalty, "penalty", above=0)
        max_iter = as_count(self.max_iter, "max_iter")
        X = checked_table(self, X, dtype=np.float64)
        order = check_random_state(self.random_state).permutation(len(X))
        rows = X[order]
        centres = rows.mean(0, keepdims=True)
        price = penalty * float(((rows - centres) ** 2).sum(1).mean()) or 1.0
        trace: list[float] = []
        self.converged_ = False
        for _ in range(max_iter):
            centres = _opened(rows, centres, price)
            nearest = euclidean_distances(rows, centres).argmin(1)
            found, labels = np.unique(nearest, return_inverse=True)
            sums = np.zeros((len(found), rows.shape[1]))
            np.add.at(sums, labels, rows)
            centres = sums / np.bincount(labels)[:, None]
            cost = float(((rows - centres[labels]) ** 2).sum()) + price * len(centres)
            trace.append(cost)
            if len(trace) > 1 and trace[-2] - cost <= 1e-9 * abs(cost):
                self.converged_ = True
                break
        self.cluster_centers_ = centres
        self.labels_ = np.empty(len(X), dtype=np.int64)
        self.labels_[order] = labels
        self.objective_trace_, self.objective_ = np.array(trace), trace[-1]
        self.n_iter_ = len(trace)
        return self


def _opened(rows: NDArray[Any], centres: NDArray[Any], price: float) -> NDArray[Any]:
    """Return the centres and each row that is further than the price from all before it."""
    nearest = euclidean_distances(rows, centres, squared=True).min(1)
    lengths = (rows**2).sum(1)
    opened = []
    for place in np.flatnonzero(nearest > price):
        if nearest[place] > price:  # still: those opened meanwhile may be nearer
            opened.append(place)
            np.minimum(nearest, lengths - 2 * rows @ rows[place] + lengths[place], out=nearest)
    return np.concatenate([centres, rows[opened]])


@dataclass(eq=False, repr=False)
class SahaClAM(ClusterMixin, BaseEstimator):
    r"""ClAM as Saha et al. (2023) train it: pattern completion, from random memories.

    Some coordinates, never the first, are hidden behind `mask_value`. Only they move, for T steps
    of size 1 / T on the energy of the memories, and only they count in the loss. Memories start at
    :math:`N(0.1, 0.1^2)`, Adam follows the loss of mini-batches, and the epoch with the lowest loss
    is kept. A row belongs to the memory nearest to where it ends with nothing hidden.

    Unlike in the authors' code, at least one coordinate is hidden, and an epoch has at most 24
    batches: where their 8 rows would make more, batches are larger and hide as many sets of
    coordinates as before, each in an equal share of the rows. For other purposes than a comparison,
    use :class:`isthmus.cluster.ClAM`, which starts from k-means.

    Parameters
    ----------
    n_clusters, beta : int, float
        K, and beta in the authors' units: components have covariance I / beta.
    learning_rate : float
        Falls by a fifth when the mean loss of ten epochs has not fallen by 0.001 in five.
    mask_value : {"mean", "min", "max"}
        Value of hidden coordinates: that of the feature over all rows.
    mask_fraction : float
        Number of draws, with replacement, of coordinates to hide, as a share of their number. Rows
        hide coordinates of their own; in every third epoch, a batch hides the same.
    n_steps, batch_size, max_iter : int
        T, smallest number of rows of a batch, and largest number of epochs.
    random_state : int, RandomState or None

    Attributes
    ----------
    cluster_centers_, labels_ : ndarray (K, n_features), (n_samples,)
    objective_, n_iter_ : float, int
        The lowest loss, and the number of epochs.

    Examples
    --------
    >>> X = np.array([[-1.0, -1.1], [-1.1, -1.0], [1.0, 1.1], [1.1, 1.0]])
    >>> labels = SahaClAM(2, learning_rate=0.1, random_state=0).fit_predict(X)
    >>> labels[0] == labels[1] != labels[2] == labels[3]
    np.True_
    """

    n_clusters: int = 8
    _: KW_ONLY
    beta: float = 1.1
    learning_rate: float = 0.01
    mask_value: Literal["mean", "min", "max"] = "mean"
    mask_fraction: float = 0.2
    n_steps: int = 10
    batch_size: int = 8
    max_iter: int = 200
    random_state: Any = None

    def fit(self, X: Any, y: Any = None) -> Self:
        """Train memories to complete rows, then label the rows."""
        as_choice(self.mask_value, "mask_value", ("mean", "min", "max"))
        n_clusters = as_count(self.n_clusters, "n_clusters")
        rows = checked_table(self, X, dtype=np.float32)
        random = np.random.default_rng(check_random_state(self.random_state).randint(2**31))
        n_rows, dim = rows.shape
        masked = getattr(rows, self.mask_value)(0)
        means: NDArray[Any] = random.normal(0.1, 0.1, (n_clusters, dim)).astype(np.float32)
        first, second = np.zeros_like(means), np.zeros_like(means)
        n_batches = min(math.ceil(n_rows / self.batch_size), BATCHES)
        losses: list[float] = []
        rate, updates, waited = self.learning_rate, 0, 0
        lowest, lowest_mean, best = math.inf, math.inf, means
        while len(losses) < self.max_iter and rate >= LOWEST_LEARNING_RATE:
            epoch = 0.0
            for batch in np.array_split(random.permutation(n_rows), n_batches):
                share = max(1, len(batch) // (1 if len(losses) % 3 == 2 else self.batch_size))
                parts = rows[batch[: len(batch) // share * share]].reshape(-1, share, dim)
                hidden = draw_hidden(random, len(parts), dim, self.mask_fraction)
                loss, slope = completion(parts, hidden, masked, means, self.beta, self.n_steps)
                updates += 1
                first += 0.1 * (slope - first)
                second += 0.001 * (slope**2 - second)
                size = rate * math.sqrt(1 - 0.999**updates) / (1 - 0.9**updates)
                means = means - size * first / (np.sqrt(second) + 1e-8)
                epoch += loss * len(batch) / n_rows
            losses.append(epoch)
            if epoch < lowest:
                lowest, best = epoch, means
            mean = float(np.mean(losses[-10:]))
            waited += 1
            if mean < lowest_mean - 1e-3:
                lowest_mean, waited = mean, 0
            elif waited == 5:
                rate, waited = 0.8 * rate, 0
        gram = self.beta * best @ best.T
        ends = _retrieve(-gram.diagonal() / 2, self.beta * rows @ best.T, gram, self.n_steps)
        self.labels_ = ends[-1][2].argmax(1)
        self.cluster_centers_ = best
        self.objective_, self.n_iter_ = lowest, len(losses)
        return self


def draw_hidden(random: np.random.Generator, sets: int, dim: int, share: float) -> NDArray[Any]:
    """Return sets of coordinates to hide, (sets, h), with -1 in place of one that is drawn again.

    The first coordinate is never hidden, unless it is the only one.
    """
    draws = random.integers(min(1, dim - 1), dim, (sets, max(1, int(dim * share))))
    draws.sort(1)
    draws[:, 1:][draws[:, 1:] == draws[:, :-1]] = -1
    return draws


def completion(
    rows: NDArray[Any],
    hidden: NDArray[Any],
    masked: NDArray[Any],
    means: NDArray[Any],
    beta: float,
    steps: int,
) -> tuple[float, NDArray[Any]]:
    """Return the squared error of hidden coordinates at x(T), over all entries, and its gradient.

    Rows are (sets, n, D), all n with the same hidden coordinates. A state is a share of its start,
    which is equal for all rows, plus a blend of memories, so that the steps need the products of
    memories only. The gradient is by the means. (K, D)
    """
    # The first coordinate, which is not hidden, stands in with zeros for one drawn again.
    places, real, left = np.maximum(hidden, 0), (hidden >= 0)[:, None], 1 - 1 / steps
    inner = means[:, places].swapaxes(0, 1) * real
    start = masked[places][:, None] * real
    target = np.take_along_axis(rows, places[:, None], 2) * real
    turned = inner.swapaxes(1, 2)
    pull, gram = beta * start @ turned, beta * inner @ turned
    fixed = beta * (rows @ means.T - target @ turned - (means**2).sum(1) / 2)
    path = _retrieve(fixed, pull, gram, steps)
    blend = path[-1][1]
    error = left**steps * start + blend @ inner - target
    by_end = 2 / rows.size * error
    by_blend, by_inner = by_end @ turned, blend.swapaxes(1, 2) @ by_end
    by_fixed, by_pull, by_gram = np.zeros_like(fixed), np.zeros_like(pull), np.zeros_like(gram)
    for step in range(steps, 0, -1):
        shares, before = path[step][0], path[step - 1][1]
        flow = by_blend * shares
        by_logits = (flow - shares * flow.sum(-1, keepdims=True)) / steps
        by_fixed += by_logits
        by_pull += left ** (step - 1) * by_logits.sum(1, keepdims=True)
        by_gram += before.swapaxes(1, 2) @ by_logits
        by_blend = left * by_blend + by_logits @ gram
    by_gram += by_gram.swapaxes(1, 2)
    by_inner += beta * (by_pull.swapaxes(1, 2) * start + by_gram @ inner)
    by_inner -= beta * by_fixed.swapaxes(1, 2) @ target
    by_logit = by_fixed.reshape(-1, len(means))
    slope: NDArray[Any] = by_logit.T @ rows.reshape(-1, rows.shape[2])
    slope = beta * (slope - by_logit.sum(0)[:, None] * means)
    for place, part in zip(places, by_inner, strict=True):
        slope[:, place] += part
    return float((error**2).sum() / rows.size), slope


def _retrieve(
    fixed: NDArray[Any], pull: NDArray[Any], gram: NDArray[Any], steps: int
) -> list[tuple[NDArray[Any], NDArray[Any], NDArray[Any]]]:
    """Return shares, blend of memories and logits (..., K) at every step, the start included."""
    logits = fixed + pull
    blend = np.zeros_like(logits)
    path = [(blend, blend, logits)]
    for step in range(1, steps + 1):
        shares = np.exp(logits - logits.max(-1, keepdims=True))
        shares /= shares.sum(-1, keepdims=True)
        blend = blend + (shares - blend) / steps
        logits = fixed + (1 - 1 / steps) ** step * pull + blend @ gram
        path.append((shares, blend, logits))
    return path
