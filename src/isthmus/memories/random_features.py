"""A kernel density estimator of constant size, by random features."""

from __future__ import annotations

import math
import warnings
from typing import Any, final

import torch
from torch import Tensor

from isthmus.energy import Energy
from isthmus.errors import InvalidInputError, ShapeError
from isthmus.validation import as_count, as_number, as_points, as_positive, as_seed, require_range

ROWS_AT_ONCE = 2**13
# Frequencies are in this many groups, whose spread tells the error; probes measure it.
GROUPS, PROBES = 16, 64
MOST_FEATURES = 2**24


@final
class RandomFeatureKDE(Energy):
    r"""An approximate :class:`GaussianKDE` whose size does not depend on the number of memories.

    With frequencies :math:`\omega_j \sim N(0, I/\sigma^2)`,

    .. math::
        S(x) = \frac1N \sum_n e^{-\lVert x - x_n \rVert^2 / (2\sigma^2)}
        \approx \frac1m \sum_{j=1}^m a_j \cos \omega_j x + b_j \sin \omega_j x , \qquad
        a_j + i b_j = \frac1N \sum_n e^{i \omega_j x_n} ,

    so that only the 2 m sums are kept. :meth:`append` adds to them, :meth:`forget` subtracts. The
    energy is :math:`-\log N g(S)` with :math:`g(S) = (S + \sqrt{S^2 + \epsilon^2})/2`, which is S
    down to the noise level :math:`\epsilon` and stays above zero below it.

    **The error.** The error of S is about :math:`\epsilon \le (2m)^{-1/2}` everywhere, so that of
    the energy is :math:`\epsilon/S`: small among the memories, and large where S falls to
    :math:`\epsilon`, that is far from all memories, for a small sigma or in many dimensions.
    :meth:`error` measures it at any point from the spread of groups of
    frequencies, ``print`` shows its median at memories, and a warning is given where it is above
    `max_error`. Positive features :math:`e^{\omega x - \lVert x \rVert^2}` would keep S above zero,
    but their error grows like :math:`e^{\lVert x + x_n \rVert^2/\sigma^2}`, which is astronomic
    unless all data lie within about one sigma of the origin.

    Parameters
    ----------
    memories : array or Tensor (N, D)
    sigma : float
        The bandwidth.
    n_features : int
        Number m of frequencies. A point costs O(m D), whatever N; the error falls like
        :math:`m^{-1/2}`.
    seed : int
        Of the frequencies, which are orthogonal in groups of D (Yu et al., 2016).
    max_error : float
        Error of the energy, in nats, from which on warnings are given.

    References
    ----------
    Rahimi and Recht, Random features for large-scale kernel machines, NeurIPS 2007.
    Yu, Suresh, Choromanski, Holtmann-Rice and Kumar, Orthogonal random features, NeurIPS 2016.

    Examples
    --------
    >>> import torch, isthmus as ist
    >>> memories = torch.randn(5000, 2, generator=torch.Generator().manual_seed(0))
    >>> small = ist.RandomFeatureKDE(memories, sigma=0.5, n_features=1024)
    >>> small
    RandomFeatureKDE(N=5000, D=2, sigma=0.5, n_features=1024, error=0.0..., float32)
    >>> exact = ist.GaussianKDE(memories, sigma=0.5)
    >>> bool((small.energy(memories[:9]) - exact.energy(memories[:9])).abs().max() < 0.5)
    True
    >>> small.append(memories[:10]).forget(memories[:10]).count
    5000
    """

    frequencies: Tensor
    sums: Tensor
    probes: Tensor

    def __init__(
        self,
        memories: Any,
        sigma: float = 1.0,
        n_features: int = 2048,
        seed: int = 0,
        max_error: float = 0.5,
    ) -> None:
        super().__init__()
        rows = self._rows(memories, "memories", None)
        self.returns_arrays = not isinstance(memories, Tensor)
        self.sigma = float(as_positive(sigma, "sigma", rows))
        self.n_features = as_count(n_features, "n_features", at_least=GROUPS, at_most=MOST_FEATURES)
        self.seed = as_seed(seed)
        self.max_error = as_number(max_error, "max_error", above=0)
        drawn = _orthogonal(self.n_features, rows.shape[1], self.seed) / self.sigma
        require_range((drawn.norm(dim=1) * rows.norm(dim=1).max()).to(rows), "A point over sigma")
        self.register_buffer("frequencies", drawn.to(rows))
        self.register_buffer("probes", rows[:: max(len(rows) // PROBES, 1)][:PROBES].clone())
        self._set(self._sums(rows), len(rows))

    def _rows(self, points: Any, name: str, dim: int | None) -> Tensor:
        like = None if dim is None else self.frequencies
        rows = as_points(points, name, dim=dim, like=like).detach()
        if rows.ndim != 2:
            raise ShapeError(f"{name} must be a table (N, D), not {tuple(rows.shape)}.")
        if 0 in rows.shape:
            raise InvalidInputError(f"{name} is empty (shape {tuple(rows.shape)}).")
        return rows

    def _set(self, sums: Tensor, count: int) -> None:
        """Keep sums (2, m) over `count` memories, and measure the error."""
        self.register_buffer("sums", sums)
        self.count = count
        self.typical_error = float(self.error(self.probes).median())
        if self.typical_error > self.max_error:
            ratio = min(self.typical_error / self.max_error, 1e9)
            needed = self.n_features * ratio**2
            many = f"n_features of about {needed:.1g}"
            many = many if needed <= MOST_FEATURES else "GaussianKDE"
            warnings.warn(
                f"The error of the energy is {self.typical_error:.2g} nats at the memories, above "
                f"max_error={self.max_error:g}. Use a larger sigma than {self.sigma:g}, or {many}.",
                UserWarning,
                stacklevel=3,
            )

    def _sums(self, rows: Tensor) -> Tensor:
        total = self.frequencies.new_zeros(2, self.n_features, dtype=torch.float64)
        for block in rows.split(ROWS_AT_ONCE):
            phases = block @ self.frequencies.mT
            total += torch.stack([phases.cos().double().sum(0), phases.sin().double().sum(0)])
        return total

    @classmethod
    def from_sums(cls, state: dict[str, Tensor], settings: dict[str, Any]) -> RandomFeatureKDE:
        """Return the energy of saved sums: a ``state_dict`` and settings with their `count`."""
        other = object.__new__(cls)
        Energy.__init__(other)
        for name, value in settings.items():
            setattr(other, name, value)
        for name, tensor in state.items():
            other.register_buffer(name, tensor)
        return other

    def _changed(self, sums: Tensor, count: int) -> RandomFeatureKDE:
        kept = ("sigma", "n_features", "seed", "max_error", "returns_arrays")
        state = {"frequencies": self.frequencies, "probes": self.probes}
        other = self.from_sums(state, {name: getattr(self, name) for name in kept})
        other._set(sums, count)
        return other

    def append(self, points: Any) -> RandomFeatureKDE:
        """Return the energy with more memories (n, D), or one (D,), at the cost of those alone."""
        rows = self._more(points)
        return self._changed(self.sums + self._sums(rows).to(self.sums), self.count + len(rows))

    def forget(self, points: Any) -> RandomFeatureKDE:
        """Return the energy without some memories (n, D), or one (D,), that were stored before.

        That they were cannot be checked; forgetting others spoils the sums.
        """
        rows = self._more(points)
        if len(rows) >= self.count:
            raise InvalidInputError(
                f"Forgetting {len(rows)} of {self.count} memories would leave none."
            )
        return self._changed(self.sums - self._sums(rows).to(self.sums), self.count - len(rows))

    def _more(self, points: Any) -> Tensor:
        given = as_points(points, "points", dim=self.dim, like=self.frequencies)
        return self._rows(given[None] if given.ndim == 1 else given, "points", self.dim)

    @property
    def dim(self) -> int:
        """The number of coordinates D."""
        return self.frequencies.shape[1]

    @property
    def noise_level(self) -> float:
        """The standard deviation epsilon of S far away from all memories."""
        amplitudes = self.sums.double().square().sum() / self.count**2
        return float((0.5 * amplitudes).sqrt()) / self.n_features

    def _waves(self, x: Tensor) -> Tensor:
        """Return the m terms whose mean is S. (..., D) -> (..., m)"""
        phases = x @ self.frequencies.mT
        cosines, sines = (self.sums / self.count).to(x.dtype)
        return cosines * phases.cos() + sines * phases.sin()

    def energy(self, x: Any) -> Tensor:
        """Return the approximate energy of each point. x: (..., D) -> (...)."""
        mean = self._waves(self.as_input(x)).mean(-1)
        return -torch.log(0.5 * self.count * self._twice_positive(mean))

    def _twice_positive(self, mean: Tensor) -> Tensor:
        noise = self.noise_level
        root = (mean.square() + noise**2).sqrt()
        # The sum loses its digits where the mean is negative; the quotient is equal to it.
        return torch.where(
            mean > 0, mean + root, noise**2 / (root - torch.where(mean > 0, 0, mean))
        )

    def error(self, x: Any) -> Tensor:
        """Return the standard error of the energy, in nats, measured at each point.

        It is the spread of the frequencies' groups over S: infinite where S is not above zero.
        x: (..., D) -> (...).
        """
        return self._at(self._error, x)

    @torch.no_grad()
    def _error(self, x: Tensor) -> Tensor:
        waves = self._waves(x)
        groups = torch.stack([part.mean(-1) for part in waves.tensor_split(GROUPS, -1)], -1)
        mean = waves.mean(-1)
        spread = groups.std(-1) / math.sqrt(GROUPS)
        return torch.where(mean > 0, spread / mean.clamp(min=1e-38), torch.inf)

    def log_normalizer(self) -> Tensor:
        """Return log Z of the estimator that this approximates."""
        value = math.log(self.count) + 0.5 * self.dim * math.log(2 * math.pi * self.sigma**2)
        return self.frequencies.new_tensor(value)

    def log_prob(self, x: Any) -> Tensor:
        """Return the approximate log-density; warn where its error is above `max_error`.

        x: (..., D) -> (...).
        """
        x = self.as_input(x)
        poor = self.error(x) > self.max_error
        if bool(poor.any()):
            warnings.warn(
                f"The density of {int(poor.sum())} of {poor.numel()} points is too low for "
                f"{self.n_features} features: the error there is above {self.max_error:g} nats. "
                "Use GaussianKDE for them, or ignore them where error(x) is large.",
                UserWarning,
                stacklevel=2,
            )
        return -self.energy(x) - self.log_normalizer()

    def __repr__(self) -> str:
        kind = str(self.frequencies.dtype).removeprefix("torch.")
        return (
            f"RandomFeatureKDE(N={self.count}, D={self.dim}, sigma={self.sigma:g}, "
            f"n_features={self.n_features}, error={self.typical_error:.2g}, {kind})"
        )


def _orthogonal(count: int, dim: int, seed: int) -> Tensor:
    """Return standard normal directions that are orthogonal in groups of `dim`. (count, dim)"""
    generator = torch.Generator().manual_seed(seed)
    blocks = -(-count // dim)
    squares = torch.randn(blocks, dim, dim, generator=generator, dtype=torch.float64)
    directions = torch.linalg.qr(squares).Q.reshape(-1, dim)[:count]
    lengths = torch.randn(count, dim, generator=generator, dtype=torch.float64).norm(dim=1)
    return directions * lengths[:, None]
