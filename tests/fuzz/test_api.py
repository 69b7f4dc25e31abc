"""Random arguments for public functions: an error of isthmus, or an answer without NaN.

A call that works is repeated with another value for one of its arguments. Estimators may also raise
the ValueError or TypeError of scikit-learn's validation. A public name in no list fails a test.
"""

import inspect
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields, is_dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_array

import isthmus as ist
from isthmus import attention, bandwidth, capacity, incontext, nn, normalizer, tables
from isthmus.attend import CompressedKeys, Index, attend
from isthmus.checks import check_energy
from isthmus.cluster import (
    BasinFlow,
    ClAM,
    ClAMCRP,
    ClAMCRPELBO,
    ClAMELBO,
    GaussianMeanShift,
    TableModel,
    elbo_energy,
    elbo_flow,
    refit_agreement,
)
from isthmus.dynamics.diagnostics import effective_sample_size, split_r_hat
from isthmus.errors import IsthmusError, UnsupportedOperationError
from isthmus.impute import MemoryImputer, fill_gaps
from isthmus.synthesis import draw_rows

TABLE = np.array([[0.0, 0.0], [3.0, 1.0], [-1.0, 4.0], [2.0, 2.0]])
NAN = float("nan")
NUMBERS = (0.0, 1.0, -1.0, 0.3, 2.0, 1e-308, 1e-30, 1e30, -1e200, 1e308, NAN, np.inf, -np.inf)
SHAPES = ((), (0,), (1,), (2,), (4,), (0, 2), (1, 2), (4, 2), (3, 1), (2, 3), (4, 4), (2, 3, 2))
KINDS = ("float64", "float32", "float16", "int8", "int64", "uint64", "bool", "complex128", "object")
ODD = (
    *(None, "1", "auto", "", b"1", {}, {"a": 1.0}, set(), object(), 10**400, True, Ellipsis, max),
    *([[1.0, 2.0], [3.0]], [["1", "2"]], [[None, 1.0]], np.array([["1", "2"]]), Path("nowhere")),
    np.array([["2020-01-01", "2021-01-01"]], dtype="datetime64[D]"),
    np.zeros(2, dtype=[("a", float), ("b", float)]),
    np.random.default_rng(0),
    csr_array(np.eye(2)),
    pd.DataFrame({"a": pd.array([1, None], dtype="Int64"), "b": [0.5, 2.0]}),
    pd.DataFrame({"a": pd.Categorical([1.0, 2.0]), "b": [[1], [2]]}),
    pd.DataFrame([[1.0, 2.0], [3.0, 4.0]], columns=["a", "a"]),
    pd.DataFrame({"a": ["1", "2"], "b": pd.to_datetime(["2020", "2021"])}),
    pd.DataFrame({"a": [1.0, 2.0], "b": [3.0, 4.0]}).astype("float64[pyarrow]"),
    pd.DataFrame(index=range(3)),
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
student = ist.StudentMixture(TABLE, 0.5, 3.0)
fitted = ClAM(2, random_state=0).fit(TABLE)
memory_imputer = MemoryImputer().fit(TABLE)
MEMORIES = {
    type(energy).__name__: energy
    for energy in (
        *(kde, hopfield, student, ist.CRPMixture(TABLE, [1.0, 2.0, 3.0, 4.0])),
        *(ist.EpanechnikovKDE(TABLE, 2.0), ist.LaplaceKDE(TABLE), ist.Hopfield(TABLE)),
        *(ist.DenseAssociativeMemory(TABLE), ist.SparseHopfield(TABLE)),
        ist.Affine(kde, [1.0, 2.0]),
    )
}
SEEN = np.array([True, False])
rows = np.random.default_rng(0).normal(size=(12, 2))
gaps = np.where(np.arange(24).reshape(12, 2) == 7, NAN, rows)
reader = incontext.ICLTables(incontext.TableConfig(width=8, cell_width=4, layers=1, heads=1)).eval()
mixed = pd.DataFrame(rows, columns=["a", "b"]).assign(kind=["x", "y", None] * 4)
asked = reader.condition(mixed)
model = incontext.ICLEBM(incontext.ICLEBMConfig(layers=1, heads=1, width=4, box=6.0)).eval()
layer = attention.PreNormAttention(4, 2, batch_first=True)


def use(energy: ist.Energy) -> Any:
    """Evaluate a new energy once."""
    x = torch.zeros(2, energy.dim, dtype=torch.float64) + 0.5
    return energy.energy(x), energy.score(x), energy.step(x) if energy.has_step else None


@dataclass(frozen=True)
class Call:
    """A function, arguments that work, and what is done with the answer.

    `only` names the arguments to be changed; by default they are those of the signature.
    """

    function: Callable[..., Any]
    arguments: dict[str, Any] = field(default_factory=dict)
    then: Callable[[Any], Any] = lambda answer: answer
    only: tuple[str, ...] = ()

    def parameters(self) -> tuple[str, ...]:
        if self.only:
            return self.only
        found = inspect.signature(self.function).parameters.values()
        kinds = inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY
        return tuple(each.name for each in found if each.kind in kinds and each.name not in SKIPPED)


# They change what is printed, not what is computed.
SKIPPED = {"progress", "show_progress", "verbose"}
# Numbers above 10,000 for these would take long, or much memory.
WORK = """
batch burn_in chains count counts dim dims draws hidden_size embed_dim input_size leapfrogs
max_depth max_iter max_steps most n n_clusters n_features n_init n_leapfrog n_particles n_samples
n_sigmas num_heads output_size particles quantity resolution seeds steps depth stored_size
temperatures thin width n_steps max_memories levels schedule
"""
OF_MEMORIES = {
    "energy": ("x",),
    "score": ("x",),
    "log_prob": ("x", "observed"),
    "step": ("x", "observed"),
    "responsibilities": ("x", "observed"),
    "conditional_mean": ("x", "observed"),
    "recall": ("x", "values"),
    "sample": ("n", "seed"),
    "subset": ("index",),
    "with_memories": ("memories",),
    "marginal": ("columns",),
}
GOOD = {"x": TABLE[:2], "observed": SEEN, "values": TABLE, "n": 2, "seed": 0, "index": [0, 1]} | {
    "memories": TABLE,
    "columns": [0],
}


def memory_calls() -> dict[str, Call]:
    found = {}
    for kind, energy in MEMORIES.items():
        for name, wanted in OF_MEMORIES.items():
            method = getattr(energy, name, None)
            if method is None:
                continue
            known = set(inspect.signature(method).parameters)
            good = {each: GOOD[each] for each in wanted if each in known}
            try:
                method(**good)
            except UnsupportedOperationError:
                continue
            found[f"{kind}.{name}"] = Call(method, good, drawn, tuple(good))
    return found


def drawn(answer: Any) -> Any:
    """Return draws of an energy, and anything else as it is."""
    return answer.sample(2) if isinstance(answer, ist.GaussianKDE | ist.StudentMixture) else answer


def chains(sampler: Any) -> Any:
    return ist.sample(kde, 2, sampler, burn_in=1)


def of_rows(kind: Any, **settings: Any) -> Call:
    """Fit an estimator with changed settings."""
    make = lambda **changed: kind(**changed).fit(rows)  # noqa: E731
    return Call(make, settings, lambda found: None, Call(kind).parameters())


short = {"max_iter": 3, "random_state": 0}
CALLS: dict[str, Call] = {
    **{
        kind.__name__: Call(kind, {"memories": TABLE}, use)
        for kind in (
            *(ist.Hopfield, ist.ModernHopfield, ist.GaussianKDE, ist.EpanechnikovKDE),
            *(ist.UniformKDE, ist.LaplaceKDE, ist.StudentKDE, ist.SparseHopfield),
            ist.DenseAssociativeMemory,
        )
    },
    "CRPMixture": Call(ist.CRPMixture, {"means": TABLE, "counts": np.ones(4)}, use),
    "Mixture": Call(ist.Mixture, {"means": TABLE}, use),
    "StudentMixture": Call(ist.StudentMixture, {"means": TABLE}, use),
    "TableMixture": Call(ist.TableMixture, {"means": TABLE, "shares": [np.full((4, 2), 0.5)]}, use),
    "VonMisesFisherMixture": Call(ist.VonMisesFisherMixture, {"directions": TABLE + 1}, use),
    "Affine": Call(ist.Affine, {"energy": kde}, use, only=("energy", "scale", "matrix", "shift")),
    **memory_calls(),
    "condition": Call(kde.condition, {"x": np.array([1.0, NAN])}, drawn),
    "retrieve": Call(ist.retrieve, {"energy": kde, "x": TABLE, "max_steps": 20}),
    "complete": Call(ist.complete, {"energy": kde, "x": [[1.0, NAN]], "max_steps": 20}),
    "sample": Call(ist.sample, {"energy": kde, "n": 2, "sampler": ist.MALA(0.1), "burn_in": 1}),
    "sample_chains": Call(
        ist.sample_chains, {"energy": kde, "draws": 4, "sampler": ist.MALA(0.1), "burn_in": 1}
    ),
    "MALA": Call(ist.MALA, {"step_size": 0.1}, chains),
    "HMC": Call(ist.HMC, {"n_leapfrog": 2}, chains),
    "NUTS": Call(ist.NUTS, {"max_depth": 2}, chains),
    "Langevin": Call(ist.Langevin, {}, chains),
    "Tempering": Call(ist.Tempering, {"inverse_temperatures": (1.0, 0.5)}, chains),
    "anneal": Call(
        ist.anneal,
        {"energy_at": lambda s: ist.GaussianKDE(TABLE, s), "schedule": [2.0, 1.0], "n": 2},
        only=("schedule", "n", "method", "steps", "step_size", "init", "seed"),
    ),
    "judge_draws": Call(ist.judge_draws, {"energy": kde, "draws": TABLE}),
    "noise_schedule": Call(ist.noise_schedule, {"largest": 3.0, "smallest": 1.0, "levels": 4}),
    "as_energy": Call(ist.as_energy, {"module": torch.nn.Linear(2, 1), "dim": 2}),
    "NeuralEnergy": Call(ist.NeuralEnergy, {"dim": 2, "width": 4, "depth": 1}, use),
    "widen": Call(ist.widen, {"energy": kde, "sigma": 1.0}, use),
    "with_normalizer": Call(ist.with_normalizer, {"energy": kde, "tol": 1e-3}, use),
    "with_normalizer(annealing)": Call(
        ist.with_normalizer,
        {"energy": kde, "method": "annealing", "particles": 8, "temperatures": 4},
    ),
    "split_r_hat": Call(split_r_hat, {"draws": np.ones((8, 2, 2))}),
    "effective_sample_size": Call(effective_sample_size, {"draws": np.ones((8, 2, 2))}),
    "annealed_log_normalizer": Call(
        normalizer.annealed_log_normalizer,
        {"energy": kde, "scale": 2.0, "particles": 8, "temperatures": 4},
    ),
    "Grid": Call(normalizer.Grid, {"dim": 1, "half_width": 2.0, "resolution": 9}),
    "load": Call(ist.load, {"path": "nowhere"}),
    "attend": Call(attend, {"queries": TABLE, "memories": TABLE}),
    "attend(index)": Call(attend, {"queries": TABLE, "memories": TABLE, "index": Index(TABLE)}),
    "Index": Call(Index, {"memories": TABLE}),
    "CompressedKeys": Call(CompressedKeys, {"memories": TABLE}, lambda keys: attend(TABLE, keys)),
    "check_energy": Call(check_energy, {"energy": kde}),
    "choose": Call(bandwidth.choose, {"X": rows}, lambda found: found.sigma),
    "leave_one_out": Call(bandwidth.leave_one_out, {"X": rows}),
    "left_out_log_density": Call(bandwidth.left_out_log_density, {"X": TABLE, "sigma": 1.0}),
    "scott": Call(bandwidth.scott, {"X": TABLE}, lambda found: found.sigma),
    "silverman": Call(bandwidth.silverman, {"X": TABLE}, lambda found: found.sigma),
    "certify": Call(capacity.certify, {"X": TABLE}, lambda found: found.stored),
    "phases": Call(capacity.phases, {"X": TABLE}, only=("X",)),
    "choose_sigma": Call(capacity.choose_sigma, {"X": TABLE}, lambda found: found.sigma),
    "basins": Call(capacity.basins, {"X": TABLE, "max_steps": 50}),
    "capacity_curve": Call(capacity.capacity_curve, {"X": TABLE, "sigmas": [1.0]}),
    "capacity_bound": Call(capacity.capacity_bound, {"dim": 3}),
    "capacity_rate": Call(capacity.capacity_rate),
    "regular_polygon": Call(capacity.regular_polygon, {"count": 4}),
    "spread_on_sphere": Call(capacity.spread_on_sphere, {"count": 4, "dim": 3, "steps": 5}),
    "measured_capacity": Call(capacity.measured_capacity, {"dim": 2, "most": 4}),
    "sweep": Call(
        capacity.sweep,
        {"dims": [2], "counts": [3], "seeds": 1, "n_particles": 3, "max_steps": 5},
        only=("dims", "counts", "seeds", "sigma", "radius_factor", "perturbation", "n_particles"),
    ),
    **{
        function.__name__: Call(function, {"n_patterns": 4, "max_norm": 3.0})
        for function in (capacity.required_separation, capacity.guaranteed_radius)
    },
    "elbo_energy": Call(elbo_energy, {"logits": torch.zeros(4, 2), "log_joint": torch.zeros(4, 2)}),
    "elbo_flow": Call(
        elbo_flow, {"log_joint": torch.zeros(4, 2), "dynamics": "mirror", "max_steps": 20}
    ),
    "refit_agreement": Call(
        refit_agreement, {"estimator": ClAM(2, **short), "X": rows}, only=("X", "seed")
    ),
    "TableModel": Call(
        TableModel.fit,
        {"X": rows, "method": "kde"},
        lambda found: found.sample(2),
        only=("X", "columns", "method", "sigma", "beta", "standardise", "seed"),
    ),
    "fill_gaps": Call(fill_gaps, {"X": gaps, "sigma": 0.5}, lambda found: found.X),
    "draw_rows": Call(
        draw_rows, {"table": rows, "n": 2, "model": "kernel", "check": False}, lambda d: d.rows
    ),
    "score_rows": Call(
        incontext.score_rows, {"X": rows, "model": reader, "draws": 9}, lambda found: found.outlier
    ),
    "ICLTables": Call(reader.condition, {"X": rows}, use, only=("X",)),
    "ConditionedTable": Call(reader.condition, {"X": mixed}, lambda found: found.log_prob(mixed)),
    "log_prob of a table": Call(asked.log_prob, {"rows": mixed}),
    "conditional of a table": Call(asked.conditional, {"given": {"a": 1.0}}, lambda found: None),
    "predict a category": Call(asked.predict, {"column": "kind", "rows": mixed}),
    "predict a number": Call(asked.predict, {"column": "a", "rows": mixed}),
    "quantile of a table": Call(asked.quantile, {"column": "a", "q": 0.5, "rows": mixed}),
    "interval of a table": Call(asked.interval, {"column": "a", "level": 0.9, "rows": mixed}),
    "cdf of a table": Call(asked.cdf, {"column": "a", "value": 0.5, "rows": mixed}),
    "fill a table": Call(asked.fill, {"rows": mixed}),
    "sample of a table": Call(asked.sample, {"n": 2, "given": {"kind": "x"}}),
    "ask a table": Call(asked.ask, {"column": "a", "given": {"b": 0.0}}, lambda found: None),
    "outliers of a table": Call(
        asked.outliers, {"rows": mixed, "draws": 9}, lambda found: found.p_value
    ),
    "ICLEBM": Call(model.condition, {"context": TABLE}, use),
    "ContextEnergy": Call(model.condition(TABLE).append, {"points": TABLE[:1]}, use),
    "pretrained": Call(incontext.pretrained, {"name": "nowhere"}),
    "preset": Call(incontext.preset, {"name": "tiny"}),
    "Hopfield of nn": Call(
        lambda **changed: nn.Hopfield(**changed)(torch.zeros(2, 3, 4)),
        {"input_size": 4},
        only=Call(nn.Hopfield).parameters(),
    ),
    "HopfieldLayer": Call(nn.HopfieldLayer(4).forward, {"x": torch.zeros(2, 3, 4)}),
    "HopfieldPooling": Call(nn.HopfieldPooling(4).forward, {"x": torch.zeros(2, 3, 4)}),
    "ClAMLoss": Call(nn.ClAMLoss(2, 2).forward, {"z": torch.zeros(5, 2)}, only=("z",)),
    **{
        kind.__name__: Call(kind, {"embed_dim": 4, "num_heads": 2}, lambda found: None)
        for kind in (attention.PreNormAttention, attention.SALNAttention)
    },
    "vmf_view": Call(
        lambda x=None, mask=None: attention.vmf_view(layer, x, mask=mask),
        {"x": torch.ones(2, 3, 4)},
        lambda found: None,
    ),
    "entanglement": Call(attention.entanglement, {"mixture": None}),
    "read_table": Call(tables.read_table, {"path": __file__.replace(".py", ".csv")}),
    "encode": Call(tables.encode, {"frame": pd.DataFrame({"a": [1.0, 2.0], "b": ["x", "y"]})}),
    "check_output": Call(tables.check_output, {"target": "out.csv"}, only=("target",)),
}
ESTIMATORS: dict[str, Call] = {
    "ClAM": of_rows(ClAM, n_clusters=2, **short),
    "ClAMCRP": of_rows(ClAMCRP, **short),
    "ClAMELBO": of_rows(ClAMELBO, n_clusters=2, **short),
    "ClAMCRPELBO": of_rows(ClAMCRPELBO, **short),
    "BasinFlow": of_rows(BasinFlow, random_state=0),
    "GaussianMeanShift": of_rows(GaussianMeanShift, max_iter=9),
    "MemoryImputer": of_rows(MemoryImputer),
    "TableDensity": Call(incontext.TableDensity().fit, {"X": rows}, lambda found: None, ("X",)),
    "TableClassifier": Call(
        incontext.TableClassifier().fit, {"X": rows, "y": ["x", "y"] * 6}, lambda found: None
    ),
    "TableRegressor": Call(
        incontext.TableRegressor().fit, {"X": rows, "y": rows[:, 0]}, lambda found: None
    ),
    **{
        f"{type(model).__name__}.fit": Call(model.fit, {"X": rows}, lambda found: None, ("X",))
        for model in (ClAM(1, **short), ClAMCRP(**short), GaussianMeanShift(), BasinFlow())
    },
    "sample_weight": Call(
        ClAM(2, **short).fit, {"X": rows, "sample_weight": np.ones(12)}, only=("sample_weight",)
    ),
    **{
        name: Call(getattr(fitted, name), {"X": TABLE}, only=("X",))
        for name in ("predict", "predict_proba", "score_samples", "transform", "complete")
    },
    "fit imputer": Call(MemoryImputer().fit_transform, {"X": gaps}, only=("X",)),
    "impute": Call(memory_imputer.transform, {"X": TABLE}),
    "draw": Call(memory_imputer.draw, {"X": TABLE}),
}
MODULES = (
    *("attend", "attention", "bandwidth", "capacity", "checks", "cluster", "impute", "incontext"),
    *("memories", "nn", "normalizer", "synthesis", "tables"),
)
# Made by the functions above, or bases of the classes.
RESULTS = """
Annealed Answer Attention Bandwidth Basins CapacityCurve Certificate Chains CheckReport
ConfidenceBound Draws Energy
Entanglement ErrorBound Evaluation FileFormat FilledTable Flow GaussianMemory IndexReport Keys
LogIntegral MeasuredCapacity Memory Metric NormalizedEnergy Phases RadialKDE RandomCoding
Retrieval RowScores SigmaChoice StreamedClusters Sweep Table TableClusters
TabulatedDensity Trained VMFMixture Verdicts
"""
# Without arguments, of checked arguments, or of files and runs, which other tests attack.
ELSEWHERE = """
EnergyTransformer ICLEBMConfig TableConfig TableTraining TrainingSettings attention_logits cell_600
cite plot
cluster_file default_output e8_shell evaluate needs_float64 save train train_tables write_table
"""
# Their arguments name files that are not there, or nothing.
REFUSED = {"load", "pretrained", "read_table", "entanglement"}
# NaN is the documented answer where chains do not move, and of rows with unknown values.
MAY_BE_NAN = {
    *("split_r_hat", "effective_sample_size", "transform", "impute", "draw"),
    "outliers of a table",  # of a row without a known cell
}


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


def takes_long(value: Any) -> bool:
    """Return True if a number in a value is above 10,000."""
    try:
        with warnings.catch_warnings(action="ignore"):
            return bool(np.max(np.abs(np.asarray(value, dtype=float)), initial=0) > 1e4)
    except (TypeError, ValueError, OverflowError, RuntimeError):
        return False


def check(name: str, call: Call, changed: str, value: Any, allowed: Iterable[type]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            result = call.then(call.function(**(call.arguments | {changed: value})))
        except tuple(allowed):
            return
        except Exception as error:
            words = f"{name}({changed}={value!r}): {type(error).__name__}: {error}"
            raise AssertionError(words) from error
        if name not in MAY_BE_NAN and has_nan(result):
            raise AssertionError(f"{name}({changed}={value!r}) is NaN: {result!r}")


def fuzz(examples: int) -> None:
    options = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]
    every = {**CALLS, **ESTIMATORS}
    places = [(name, changed) for name, call in every.items() for changed in call.parameters()]

    @settings(max_examples=examples, suppress_health_check=options)
    @given(st.sampled_from(places), arguments())
    def attack(place: tuple[str, str], value: Any) -> None:
        name, changed = place
        if changed in WORK.split() and takes_long(value):
            return
        more = (ValueError, TypeError) if name in ESTIMATORS else ()
        check(name, every[name], changed, value, (IsthmusError, *more))

    attack()


@pytest.mark.parametrize("module", ["", *MODULES])
def test_every_public_name_is_in_a_list(module) -> None:
    found = import_module(f"isthmus.{module}".rstrip("."))
    listed = {name.split()[0] for name in (*CALLS, *ESTIMATORS)}
    assert set(found.__all__) - listed - {*RESULTS.split(), *ELSEWHERE.split()} == set()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", sorted({*CALLS, *ESTIMATORS} - REFUSED))
def test_calls_work_as_they_are(name) -> None:
    call = {**CALLS, **ESTIMATORS}[name]
    result = call.then(call.function(**call.arguments))
    assert name in MAY_BE_NAN or not has_nan(result)


def test_300_calls() -> None:
    fuzz(300)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_5000_calls() -> None:
    fuzz(5000)
