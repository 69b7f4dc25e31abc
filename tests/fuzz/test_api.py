"""Random arguments for public functions: an error of isthmus, or an answer without NaN.

Estimators may also raise the ValueError or TypeError of scikit-learn's validation.
"""

import warnings
from collections.abc import Callable, Iterable
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import isthmus as ist
from isthmus import bandwidth, capacity
from isthmus.attend import attend
from isthmus.cluster import ClAM, ClAMCRP, GaussianMeanShift
from isthmus.dynamics.diagnostics import effective_sample_size, split_r_hat
from isthmus.errors import IsthmusError
from isthmus.impute import MemoryImputer

TABLE = np.array([[0.0, 0.0], [3.0, 1.0], [-1.0, 4.0], [2.0, 2.0]])
NAN = float("nan")
NUMBERS = (0.0, 1.0, -1.0, 0.3, 2.0, 1e-308, 1e-30, 1e30, -1e200, 1e308, NAN, np.inf, -np.inf)
SHAPES = ((), (0,), (1,), (2,), (4,), (0, 2), (1, 2), (4, 2), (3, 1), (2, 3), (4, 4), (2, 3, 2))
KINDS = ("float64", "float32", "float16", "int8", "int64", "uint64", "bool", "complex128", "object")
ODD = (
    None,
    "1",
    "auto",
    "",
    b"1",
    {},
    {"a": 1.0},
    set(),
    object(),
    10**400,
    True,
    Ellipsis,
    [[1.0, 2.0], [3.0]],
    [["1", "2"]],
    [[None, 1.0]],
    np.array([["2020-01-01", "2021-01-01"]], dtype="datetime64[D]"),
    np.array([["1", "2"]]),
    np.zeros(2, dtype=[("a", float), ("b", float)]),
)


@st.composite
def arrays(draw: st.DrawFn) -> np.ndarray:
    """Arrays of any kind of number, most with ordinary values."""
    shape, kind = draw(st.sampled_from(SHAPES)), draw(st.sampled_from(KINDS))
    ordinary = st.integers(-3, 3).map(float)
    numbers = ordinary if draw(st.integers(0, 3)) else st.sampled_from(NUMBERS)
    size = int(np.prod(shape))
    values = np.array(draw(st.lists(numbers, min_size=size, max_size=size)), dtype=float)
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return values.reshape(shape).astype(kind)


@st.composite
def arguments(draw: st.DrawFn) -> Any:
    """What a careless user might pass."""
    form = draw(st.integers(0, 13))
    if form == 0:
        return draw(st.sampled_from(ODD))
    if form == 1:
        return draw(st.one_of(st.sampled_from(NUMBERS), st.integers(-3, 5)))
    array = draw(arrays())
    forms: dict[int, Callable[[], Any]] = {
        2: lambda: array.tolist(),
        3: lambda: array[::-1] if array.ndim else array,
        4: lambda: np.ma.masked_equal(array, array.flat[0] if array.size else 0),
        5: lambda: pd.DataFrame(np.atleast_2d(array)) if array.ndim < 3 else array,
        6: lambda: array.astype(">f8") if array.dtype == np.float64 else array,
        7: lambda: torch.from_numpy(array) if array.dtype.kind in "fiub" else array,
        8: lambda: torch.from_numpy(array).requires_grad_() if array.dtype == float else array,
        9: lambda: torch.zeros(array.shape, device="meta"),
        10: lambda: torch.zeros(array.shape, dtype=torch.bfloat16),
        11: lambda: torch.zeros(array.shape).to_sparse() if array.ndim else array,
    }
    return forms.get(form, lambda: array)()


kde = ist.GaussianKDE(TABLE, 1.0)
hopfield = ist.ModernHopfield(TABLE, 2.0)
crp = ist.CRPMixture(TABLE, [1.0, 2.0, 3.0, 4.0])
ball = ist.EpanechnikovKDE(TABLE, 2.0)
student = ist.StudentMixture(TABLE, 0.5, 3.0)
fitted = ClAM(2, random_state=0).fit(TABLE)
MEMORIES = (kde, hopfield, crp, ball, student, ist.Hopfield(TABLE))
POINTS = TABLE[:2]
SEEN = np.array([True, False])


def use(energy: ist.Energy) -> Any:
    """Evaluate a new energy once."""
    x = torch.zeros(2, energy.dim, dtype=torch.float64) + 0.5
    step = getattr(energy, "step", lambda x: None)
    return energy.energy(x), energy.score(x), step(x)


CALLS: dict[str, Callable[[Any], Any]] = {
    **{
        f"{kind.__name__}(memories)": lambda value, kind=kind: use(kind(value))
        for kind in (
            ist.Hopfield,
            ist.ModernHopfield,
            ist.GaussianKDE,
            ist.EpanechnikovKDE,
            ist.UniformKDE,
            ist.LaplaceKDE,
            ist.StudentKDE,
            ist.Mixture,
            ist.StudentMixture,
            ist.SparseHopfield,
            ist.VonMisesFisherMixture,
        )
    },
    "ModernHopfield(beta)": lambda v: use(ist.ModernHopfield(TABLE, v)),
    "GaussianKDE(sigma)": lambda v: use(ist.GaussianKDE(TABLE, v)),
    "GaussianKDE(covariance)": lambda v: use(ist.GaussianKDE(TABLE, covariance=v)),
    "GaussianKDE(factors)": lambda v: use(ist.GaussianKDE(TABLE, factors=v)),
    "GaussianKDE(log_weights)": lambda v: use(ist.GaussianKDE(TABLE, log_weights=v)),
    "Mixture(covariance)": lambda v: use(ist.Mixture(TABLE, covariance=v)),
    "CRPMixture(counts)": lambda v: use(ist.CRPMixture(TABLE, v)),
    "CRPMixture(rho)": lambda v: use(ist.CRPMixture(TABLE, np.ones(4), rho=v)),
    "CRPMixture(discount)": lambda v: use(ist.CRPMixture(TABLE, np.ones(4), discount=v)),
    "CRPMixture(prior_mean)": lambda v: use(ist.CRPMixture(TABLE, np.ones(4), prior_mean=v)),
    "StudentKDE(dof)": lambda v: use(ist.StudentKDE(TABLE, dof=v)),
    "EpanechnikovKDE(bandwidth)": lambda v: use(ist.EpanechnikovKDE(TABLE, v)),
    "StudentMixture(scales)": lambda v: use(ist.StudentMixture(TABLE, v)),
    "StudentMixture(dof)": lambda v: use(ist.StudentMixture(TABLE, 1.0, v)),
    "SparseHopfield(alpha)": lambda v: use(ist.SparseHopfield(TABLE, alpha=v)),
    **{
        f"{type(energy).__name__}.{name}": lambda value, energy=energy, name=name: getattr(
            energy, name
        )(value)
        for energy in MEMORIES
        for name in ("energy", "score", "log_prob", "step", "responsibilities")
        if not (name in ("log_prob", "responsibilities") and isinstance(energy, ist.Hopfield))
    },
    "conditional_mean(x)": lambda v: kde.conditional_mean(v, SEEN),
    "conditional_mean(observed)": lambda v: kde.conditional_mean(POINTS, v),
    "log_prob(observed)": lambda v: kde.log_prob(POINTS, v),
    "step(observed)": lambda v: hopfield.step(POINTS, v),
    "condition": lambda v: kde.condition(v).sample(2),
    "StudentMixture.condition": lambda v: student.condition(v).sample(2),
    "marginal": lambda v: kde.marginal(v).sample(2),
    "subset": lambda v: kde.subset(v).sample(2),
    "with_memories": lambda v: kde.with_memories(v).sample(2),
    "Memory.sample(n)": lambda v: kde.sample(v),
    "Memory.sample(seed)": lambda v: kde.sample(2, seed=v),
    "retrieve(x)": lambda v: ist.retrieve(kde, v, max_steps=20),
    "retrieve(energy)": lambda v: ist.retrieve(v, POINTS),
    "retrieve(observed)": lambda v: ist.retrieve(ball, POINTS, v, max_steps=20),
    "retrieve(tol)": lambda v: ist.retrieve(kde, POINTS, tol=v, max_steps=20),
    "retrieve(max_steps)": lambda v: ist.retrieve(kde, POINTS, max_steps=v),
    "complete(x)": lambda v: ist.complete(kde, v),
    "complete(x, mode)": lambda v: ist.complete(student, v, how="mode", max_steps=20),
    "complete(init)": lambda v: ist.complete(kde, [[1.0, NAN]], init=v, max_steps=20),
    "complete(how)": lambda v: ist.complete(kde, [[1.0, NAN]], how=v, max_steps=20),
    "sample(n)": lambda v: ist.sample(kde, v, ist.MALA(0.1), burn_in=1),
    "sample(init)": lambda v: ist.sample(kde, 2, ist.MALA(0.1), init=v, burn_in=1),
    "sample(sampler)": lambda v: ist.sample(kde, 2, v, burn_in=1),
    "sample(seed)": lambda v: ist.sample(kde, 2, ist.MALA(0.1), burn_in=1, seed=v),
    "MALA(step_size)": lambda v: ist.MALA(v),
    "split_r_hat": split_r_hat,
    "effective_sample_size": effective_sample_size,
    "attend(queries)": lambda v: attend(v, torch.eye(2), beta=1.0),
    "attend(memories)": lambda v: attend(torch.eye(2), v, beta=1.0),
    "attend(beta)": lambda v: attend(torch.eye(2), torch.eye(2), beta=v),
    "attend(bias)": lambda v: attend(torch.eye(2), torch.eye(2), beta=1.0, bias=v),
    "bandwidth.choose": lambda v: bandwidth.choose(v).sigma,
    "certify": lambda v: capacity.certify(v, 1.0).stored,
    "certify(sigma)": lambda v: capacity.certify(TABLE, v).stored,
    "choose_sigma": lambda v: capacity.choose_sigma(v).sigma,
    "basins": lambda v: capacity.basins(v, 1.0),
    "basins(sigma)": lambda v: capacity.basins(TABLE, v),
    "merge_tree": lambda v: capacity.merge_tree(v, n_sigmas=3),
    "merge_tree(sigmas)": lambda v: capacity.merge_tree(TABLE, v, n_sigmas=3),
    "capacity_curve": lambda v: capacity.capacity_curve(v, [1.0]),
    "capacity_curve(sigmas)": lambda v: capacity.capacity_curve(TABLE, v),
    "required_separation": lambda v: capacity.required_separation(v, 1.0),
    "guaranteed_radius": lambda v: capacity.guaranteed_radius(4, v),
    "capacity_bound": lambda v: capacity.capacity_bound(v),
}
ESTIMATORS: dict[str, Callable[[Any], Any]] = {
    "ClAM.fit": lambda v: ClAM(1, max_iter=3, random_state=0).fit(v).memories_,
    "ClAMCRP.fit": lambda v: ClAMCRP(max_iter=3, random_state=0).fit(v).memories_,
    "GaussianMeanShift.fit": lambda v: GaussianMeanShift(max_iter=9).fit(v).cluster_centers_,
    "MemoryImputer.fit": lambda v: MemoryImputer().fit(v).bandwidth_,
    "predict": fitted.predict,
    "predict_proba": fitted.predict_proba,
    "score_samples": fitted.score_samples,
    "transform": fitted.transform,
    "complete": fitted.complete,
    "ClAM(n_clusters)": lambda v: ClAM(v).fit(TABLE).memories_,
    "ClAM(beta)": lambda v: ClAM(2, beta=v, max_iter=3).fit(TABLE).memories_,
    "sample_weight": lambda v: ClAM(2, max_iter=3).fit(TABLE, sample_weight=v).memories_,
}
# NaN is the documented answer where chains do not move, and of rows with unknown values.
MAY_BE_NAN = {"split_r_hat", "effective_sample_size", "transform"}


def has_nan(result: Any) -> bool:
    """Return True if a result, or a part of it, is NaN."""
    if isinstance(result, torch.Tensor):
        return bool(torch.isnan(result.detach()).any()) if result.is_floating_point() else False
    if isinstance(result, np.ndarray | np.floating | float):
        array = np.asarray(result)
        return array.dtype.kind == "f" and bool(np.isnan(array).any())
    if is_dataclass(result):
        return any(has_nan(getattr(result, field.name)) for field in fields(result))
    return isinstance(result, tuple | list) and any(map(has_nan, result))


def check(name: str, call: Callable[[Any], Any], value: Any, allowed: Iterable[type]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            result = call(value)
        except tuple(allowed):
            return
        except Exception as error:
            raise AssertionError(f"{name} of {value!r}: {type(error).__name__}: {error}") from error
    assert name in MAY_BE_NAN or not has_nan(result), f"{name} of {value!r} is NaN: {result!r}"


def fuzz(examples: int) -> None:
    options = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]

    @settings(max_examples=examples, suppress_health_check=options)
    @given(st.sampled_from([*CALLS, *ESTIMATORS]), arguments())
    def attack(name: str, value: Any) -> None:
        if name in CALLS:
            check(name, CALLS[name], value, (IsthmusError,))
        else:
            check(name, ESTIMATORS[name], value, (IsthmusError, ValueError, TypeError))

    attack()


def test_300_calls() -> None:
    fuzz(300)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_5000_calls() -> None:
    fuzz(5000)
