"""certify: the patterns that a memory stores, from how far, and with what error."""

from __future__ import annotations

import io
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from isthmus.bandwidth.rules import as_rows
from isthmus.capacity.contraction import (
    LARGEST_DELTA,
    ROUNDING_SLACK,
    Neighbors,
    guaranteed_balls,
    hopfield_terms,
    kde_terms,
    nearest_neighbors,
    noise_levels,
)
from isthmus.capacity.iteration import iterate_patterns
from isthmus.capacity.ramsauer import guaranteed_radius, required_separation
from isthmus.capacity.sparse import one_step
from isthmus.dynamics.modes import require_squares
from isthmus.errors import InvalidInputError, UnsupportedOperationError
from isthmus.extras import require
from isthmus.io.archive import digest_of
from isthmus.io.arrays import open_npz
from isthmus.io.files import write_atomically
from isthmus.memories.gaussian import GaussianKDE
from isthmus.memories.modern import ModernHopfield
from isthmus.memories.sparse import SparseHopfield
from isthmus.plotting import Plottable
from isthmus.printing import Summarised, counted, definitions
from isthmus.validation import as_choice, as_count, as_flag, as_number

if TYPE_CHECKING:
    import pandas


Iterate = Literal["all", "undecided", "none"]
CertifiedMemory = GaussianKDE | ModernHopfield | SparseHopfield
FloatArray = NDArray[np.float64]

# Below this share of stored patterns, the summary gives advice.
FEW = 0.5
# Up to this many patterns, every pair enters the bound one by one.
ALL_PAIRS = 2048
SCALARS = ("kind", "sigma", "required_separation", "delta")
KINDS = {
    "kde": "Gaussian KDE",
    "hopfield": "modern Hopfield network",
    "sparse": "sparse Hopfield network",
}
KIND_OF = dict(zip((GaussianKDE, ModernHopfield, SparseHopfield), KINDS, strict=True))


@dataclass(frozen=True, eq=False, repr=False)
class Certificate(Plottable, Summarised):
    """Proved bounds and measured results for each of N patterns in D dimensions.

    Attributes
    ----------
    kind : {"kde", "hopfield", "sparse"}
    sigma : float
        The bandwidth; for a modern or sparse Hopfield network 1/sqrt(beta).
    separation : ndarray (N,)
        Half the squared distance to the nearest other pattern; for a modern or sparse Hopfield
        network min_j x_n . (x_n - x_j), which is the same on a sphere (erratum E14).
    required_separation : float
        The separation that Ramsauer et al. require; for a sparse network that at which a pattern
        becomes its own update, the margin over beta.
    ramsauer_radius : ndarray (N,)
        Their guaranteed radius where the separation suffices, else 0; for a sparse network that of
        Santos et al. (2024).
    guaranteed_radius : ndarray (N,)
        Proved radius of a ball from which every start reaches the same fixed point, or 0. For a
        sparse network, of the largest ball from which one update ends exactly at the pattern.
    error_bound : ndarray (N,)
        Proved bound on the distance between the pattern and that fixed point, or ``inf``.
    fixed_point : ndarray (N, D)
        The fixed point that the pattern flows to; NaN where it was not iterated.
    retrieval_error : ndarray (N,)
        Distance between the pattern and its fixed point; NaN where it was not iterated.
    stored : ndarray (N,) of bool
        True for patterns with a stable fixed point of their own, nearer than half the distance
        to the next pattern, that every start reaches that is no farther from the pattern. It is
        their own if no other pattern flows to it; in a network, also if they lead it.
    decided : ndarray (N,) of str
        The origin of `stored`: "proved" by the bound, "iterated", or "open".
    basin : ndarray (N,)
        Patterns of one basin flow to the same fixed point; -1 where not iterated.
    noise : ndarray (N,) or None
        With ``noise=True``: the largest standard deviation s, per coordinate, at which a query
        x_n + N(0, s^2 I) is proved to reach the fixed point with a probability of at least
        1 - `delta`; 0 without a certified ball.
    delta : float or None
    """

    kind: str
    sigma: float
    separation: FloatArray
    required_separation: float
    ramsauer_radius: FloatArray
    guaranteed_radius: FloatArray
    error_bound: FloatArray
    fixed_point: FloatArray
    retrieval_error: FloatArray
    stored: NDArray[np.bool_]
    decided: NDArray[np.str_]
    basin: NDArray[np.int64]
    noise: FloatArray | None = None
    delta: float | None = None

    def __len__(self) -> int:
        return len(self.separation)

    @property
    def fraction_stored(self) -> float:
        """The share of patterns known to be stored."""
        return float(self.stored.mean())

    @property
    def summary(self) -> dict[str, Any]:
        """The contents of the printed summary as plain numbers and words, for JSON."""
        proved = self.decided == "proved"
        noise: dict[str, Any] = {}
        basins = np.bincount(self.basin[self.basin >= 0])
        if self.noise is not None:
            level, root = self.noise[proved], self.fixed_point.shape[1] ** 0.5
            noise = {"noise": _spread(level), "noise_norm": _spread(root * level)}
            noise["delta"] = self.delta
        return {
            "model": self.kind,
            "sigma": self.sigma,
            "beta": self.sigma**-2,
            "stored": int(self.stored.sum()),
            "fraction_stored": self.fraction_stored,
            "proved": int(proved.sum()),
            "found_by_iterating": int((self.stored & ~proved).sum()),
            "open": int((self.decided == "open").sum()),
            "ramsauer": int((self.ramsauer_radius > 0).sum()),
            "guaranteed_radius": _spread(self.guaranteed_radius[proved]),
            "largest_proved_error": float(self.error_bound[proved].max()) if proved.any() else None,
            "retrieval_error": _spread(self.retrieval_error),
            "basins": len(basins) or None,
            "largest_basin": int(basins.max()) if len(basins) else None,
            **noise,
        }

    def __str__(self) -> str:
        found = self.summary
        # Users give networks an inverse temperature, and densities a bandwidth.
        width, narrower = f"beta {self.sigma**-2:.4g}", "larger beta"
        if self.kind == "kde":
            width, narrower = f"sigma {self.sigma:.4g}", "smaller sigma"
        author = "Santos'" if self.kind == "sparse" else "Ramsauer's"
        dims = counted(self.fixed_point.shape[1], "dimension")
        facts = {
            "memory": f"{KINDS[self.kind]}, {width}, {dims}",
            "proved": counted(found["proved"], "pattern"),
            "by iterating": counted(found["found_by_iterating"], "more pattern"),
            f"{author} bound": f"holds for {found['ramsauer']}",
        }
        if found["guaranteed_radius"]:
            facts["proved"] += (
                f"; a query may be off by {_range(found['guaranteed_radius'])} and ends within "
                f"{found['largest_proved_error']:.3g}"
            )
        if found.get("noise"):
            facts["noise"] = (
                f"normal noise of deviation {_range(found['noise'])} per coordinate, of length "
                f"{found['noise_norm']['median']:.3g}, is recalled with probability "
                f"{1 - found['delta']:.6g}"
            )
        if found["open"]:
            facts["open"] = f"{counted(found['open'], 'pattern')}, not iterated"
        if found["retrieval_error"]:
            facts["retrieval error"] = _range(found["retrieval_error"])
        if found["basins"]:
            largest = counted(found["largest_basin"], "pattern")
            facts["basins"] = f"{found['basins']:,}, the largest shared by {largest}"
        if self.kind == "kde" and (twins := int((self.separation <= 0).sum())):
            facts["duplicates"] = f"{twins} patterns have an exact duplicate"
        opening = f"{found['stored']:,} of {counted(len(self), 'pattern')} stored"
        lines = [f"{opening} ({self.fraction_stored:.1%})", "", *definitions(facts)]
        if self.fraction_stored < FEW:
            lines += ["", f"Few patterns are stored: use a {narrower} or drop duplicates."]
        return "\n".join(lines)

    __repr__ = __str__

    def to_frame(self) -> pandas.DataFrame:
        """Return a pandas frame with a row per pattern."""
        require("pandas")
        import pandas

        columns = {name: values for name, values in vars(self).items() if np.ndim(values) == 1}
        return pandas.DataFrame(columns)

    def save(self, path: str | Path) -> None:
        """Write the certificate to an ``.npz`` file, atomically, with a digest."""
        buffer = io.BytesIO()
        known = {name: np.asarray(each) for name, each in vars(self).items() if each is not None}
        # Typed so that no array is mistaken for the argument allow_pickle.
        contents: dict[str, Any] = {**known, "digest": np.array(digest_of("", known))}
        np.savez_compressed(buffer, **contents)
        write_atomically(path, buffer.getvalue())

    @classmethod
    def load(cls, path: str | Path) -> Certificate:
        """Read a certificate that :meth:`save` wrote, unless it was altered since."""
        with open_npz(path, "certificate", "Save or copy it again.") as file:
            # Only what may be missing has a default, which is None.
            names = [each.name for each in fields(cls) if each.default or each.name in file.shapes]
            values = file.read(names)
            shapes = {name: each.shape for name, each in values.items()}
            count = len(values["separation"])
            wanted = {name: () if name in SCALARS else (count,) for name in values}
            if shapes != wanted | {"fixed_point": (count, *shapes["fixed_point"][1:2])}:
                raise ValueError(f"its arrays have shapes {shapes}")
            # Earlier versions wrote no digest.
            digest = file.read(["digest"]) if "digest" in file.shapes else None
            if digest is not None and str(digest["digest"]) != digest_of("", values):
                raise ValueError("it was altered after it was saved")
        content: Any = {name: each if each.ndim else each.item() for name, each in values.items()}
        return cls(**content)


def certify(
    X: Any,
    sigma: float | None = None,
    *,
    iterate: Iterate = "all",
    n_neighbors: int = 128,
    tol: float = 1e-6,
    max_steps: int = 2000,
    noise: bool = False,
    delta: float = 1e-3,
) -> Certificate:
    r"""Decide for each pattern whether a memory of all of them stores it, and how firmly.

    Parameters
    ----------
    X : array (N, D), GaussianKDE, ModernHopfield or SparseHopfield
        Patterns, taken as they are and not standardised, or a memory of them, of equal weights. If
        its kernels have a shape, distances and radii are in their metric, in which they are round
        and sigma is 1. For a sparse network, the condition for exact retrieval in one update is
        necessary and sufficient, up to rounding.
    sigma : float
        Bandwidth of the Gaussian KDE, if X is an array. Default: 1.
    iterate : {"all", "undecided", "none"}
        The patterns to iterate to their fixed points. "undecided" leaves out those that the
        bound proves stored.
    n_neighbors : int
        Number of neighbours that enter the bound one by one; all others enter through a bound
        on their sum. Up to 2,048 patterns, all are neighbours.
    tol : float
        A pattern rests when a step moves it by no more than this share of sigma.
    noise : bool
        Compute also the normal noise that each pattern survives.
    delta : float in (0, 1/3]
        The probability with which such a query may fail to reach the fixed point.

    Examples
    --------
    >>> from isthmus.capacity import certify
    >>> print(certify([[0.0, 0.0], [6.0, 0.0], [6.1, 0.0]], sigma=1.0))
    1 of 3 patterns stored (33.3%)
    <BLANKLINE>
    memory            Gaussian KDE, sigma 1, 2 dimensions
    proved            1 pattern; a query may be off by 2.31 (median; 2.31 to 2.31) and ends ...
    ...
    """
    as_choice(iterate, "iterate", get_args(Iterate))
    delta = as_number(delta, "delta", above=0, at_most=LARGEST_DELTA)
    settings = Settings(
        iterate,
        as_count(n_neighbors, "n_neighbors"),
        as_number(tol, "tol", above=0),
        as_count(max_steps, "max_steps"),
        delta if as_flag(noise, "noise") else None,
    )
    if sigma is not None and isinstance(X, CertifiedMemory):
        raise InvalidInputError("sigma is for an array of patterns; this memory has its own.")
    if not isinstance(X, GaussianKDE) or X.is_round:
        return certify_memory(as_memory(X, sigma), settings)
    plain, shape = X.whitened()
    found = certify_memory(as_memory(plain), settings)
    moved = shape.to_data(torch.from_numpy(found.fixed_point).to(shape.root))
    return replace(found, fixed_point=(shape.centre + moved).detach().double().numpy())


class Settings(NamedTuple):
    """The options of :func:`certify`, checked; `delta` is None without noise."""

    iterate: Iterate = "all"
    n_neighbors: int = 128
    tol: float = 1e-6
    max_steps: int = 2000
    delta: float | None = None


def listed_neighbors(n: int, n_neighbors: int = 128) -> int:
    """Return the number of neighbours that enter the bound of each of n patterns one by one."""
    return n - 1 if n <= ALL_PAIRS else min(n_neighbors, n - 1)


def certify_memory(
    memory: CertifiedMemory, settings: Settings, neighbors: Neighbors | None = None
) -> Certificate:
    """Certify a memory; the neighbours of a KDE do not depend on sigma and may be known."""
    patterns = memory.memories.detach().double().numpy()
    if isinstance(memory, SparseHopfield):
        sigma = float(memory.beta) ** -0.5
    else:
        sigma = float(memory.sigma)
    if isinstance(memory, SparseHopfield):
        nearest, proved, bounds = one_step(memory, settings.delta)
    else:
        nearest, proved, bounds = _contractions(memory, patterns, sigma, neighbors, settings)
    everyone = np.ones(len(proved), bool)
    chosen = {"all": everyone, "undecided": ~proved, "none": ~everyone}[settings.iterate]
    fixed, error, basin, stored = iterate_patterns(
        memory, sigma, nearest, chosen, proved, settings.tol, settings.max_steps
    )
    return Certificate(
        kind=KIND_OF[type(memory)],
        sigma=sigma,
        fixed_point=fixed,
        retrieval_error=error,
        stored=proved | stored,
        decided=np.where(proved, "proved", np.where(chosen, "iterated", "open")).astype("<U8"),
        basin=basin,
        delta=settings.delta,
        **bounds,
    )


def _contractions(
    memory: GaussianKDE | ModernHopfield,
    patterns: FloatArray,
    sigma: float,
    neighbors: Neighbors | None,
    settings: Settings,
) -> tuple[FloatArray, NDArray[np.bool_], dict[str, Any]]:
    """Return nearest distances, the patterns proved stored, and the bounds of a certificate."""
    n, dim = patterns.shape
    k, delta = listed_neighbors(n, settings.n_neighbors), settings.delta
    is_kde = isinstance(memory, GaussianKDE) or n == 1
    neighbors = neighbors or nearest_neighbors(patterns, k if is_kde else 1)
    nearest = neighbors.distances.min(1, initial=np.inf)
    # A pattern that the search passed over could be nearer than those it found, by rounding.
    closest = np.minimum(nearest, neighbors.beyond)
    if is_kde:
        terms = kde_terms(neighbors, n, dim, sigma)
        # The radius of a ball that holds all patterns; its centre does not matter.
        centres = 0.5 * (patterns.max(0) + patterns.min(0)), patterns.mean(0)
        separation, norm = 0.5 * nearest**2, min(_longest(patterns - each) for each in centres)
    else:
        terms = hopfield_terms(patterns, sigma, k)
        separation, norm = -terms.exponents.max(1) / terms.sharpness, _longest(patterns)
    radius, bound = guaranteed_balls(terms)
    needed = required_separation(n, norm, sigma) if norm > 0 or n == 1 else np.inf
    # For a huge sigma the condition always holds, and its balls would overlap.
    disjoint = n == 1 or 2 * (n - 1) * n * norm**2 > sigma**2
    ramsauer = guaranteed_radius(n, norm, sigma) if disjoint else 0.0
    bounds = {
        "separation": separation,
        "required_separation": float(needed),
        "ramsauer_radius": np.where(separation >= needed, ramsauer, 0.0),
        "guaranteed_radius": radius,
        "error_bound": bound,
        "noise": None if delta is None else noise_levels(terms, radius, delta),
    }
    return nearest, bound < 0.5 * closest * (1 - ROUNDING_SLACK), bounds


def as_memory(X: Any, sigma: float | None = None) -> CertifiedMemory:
    """Return a memory as it is, and rows of patterns as a Gaussian KDE in float64."""
    if not isinstance(X, CertifiedMemory):
        sigma = 1.0 if sigma is None else as_number(sigma, "sigma", above=0)
        return GaussianKDE(as_patterns(X), sigma)
    require_squares(X.memories.detach().double())
    weights = X.log_weights if isinstance(X, GaussianKDE) else None
    if weights is not None and bool((weights != weights[0]).any()):
        raise UnsupportedOperationError(
            "The bounds are for memories of equal weight, and these have log_weights. Pass the "
            "patterns without weights."
        )
    return X


def as_patterns(X: Any) -> Tensor:
    """Return rows of patterns (N, D) in float64."""
    patterns = torch.from_numpy(as_rows(X))
    require_squares(patterns)
    return patterns


def _longest(patterns: FloatArray) -> float:
    return float(np.linalg.norm(patterns, axis=1).max())


def _spread(values: FloatArray) -> dict[str, float] | None:
    """Return the smallest, median and largest of the finite values."""
    values = values[np.isfinite(values)]
    if not len(values):
        return None
    low, middle, high = np.quantile(values, [0, 0.5, 1]).tolist()
    return {"smallest": low, "median": middle, "largest": high}


def _range(spread: dict[str, float]) -> str:
    return "{median:.3g} (median; {smallest:.3g} to {largest:.3g})".format(**spread)
