"""What cannot be answered is refused by a named error that says what to do."""

import numpy as np
import pytest
import torch
from scipy.sparse import csr_array

import isthmus as ist
from isthmus.errors import DtypeError, InvalidInputError, IsthmusError, ShapeError

GOOD = np.array([[0.0, 1.0], [2.0, 3.0], [1.0, 1.0]])
KINDS = {
    "Hopfield": ist.Hopfield,
    "ModernHopfield": ist.ModernHopfield,
    "GaussianKDE": ist.GaussianKDE,
    "EpanechnikovKDE": ist.EpanechnikovKDE,
    "Mixture": ist.Mixture,
    "CRPMixture": lambda means, *scale: ist.CRPMixture(means, np.ones(3), *scale),
}
BAD_MEMORIES = {
    "none": (None, DtypeError, "not numbers"),
    "text": ([["a", "b"]], DtypeError, "text columns"),
    "mixed": (np.array([[1.0, "b"]], dtype=object), DtypeError, "not numbers"),
    "booleans": (GOOD > 1, DtypeError, "float32 or float64"),
    "complex": (GOOD + 1j, DtypeError, "complex128"),
    "half": (GOOD.astype(np.float16), DtypeError, "float16"),
    "no rows": (GOOD[:0], InvalidInputError, "at least one memory"),
    "no columns": (GOOD[:, :0], InvalidInputError, "at least one memory"),
    "empty list": ([], ShapeError, r"\(N, D\)"),
    "a single row": (GOOD[0], ShapeError, "table of one row"),
    "a cube": (GOOD[None], ShapeError, r"\(N, D\)"),
    "a number": (3.0, ShapeError, "single number"),
    "ragged": ([[1.0, 2.0], [3.0]], ShapeError, "rectangular"),
    "nan": (np.where(GOOD > 2, np.nan, GOOD), InvalidInputError, "1 NaN value"),
    "infinite": (np.where(GOOD > 0, np.inf, GOOD), InvalidInputError, "infinite"),
    "sparse": (torch.eye(3).to_sparse(), InvalidInputError, "to_dense"),
    "sparse of SciPy": (csr_array(np.eye(3)), InvalidInputError, "is sparse. .*toarray"),
}


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize(
    ("memories", "error", "complaint"), BAD_MEMORIES.values(), ids=BAD_MEMORIES
)
def test_bad_memories(kind, memories, error, complaint):
    with pytest.raises(error, match=complaint) as caught:
        kind(memories)
    assert isinstance(caught.value, IsthmusError)
    assert "me" in str(caught.value).split(" ")[0]  # it names the argument: memories or means


BAD_POINTS = {
    "text": (["a", "b"], DtypeError, "x holds"),
    "complex": (torch.ones(1, 2, dtype=torch.complex64), DtypeError, "x holds"),
    "other dimension": (np.zeros((4, 3)), ShapeError, r"3 coordinates.*should end in 2"),
    "a number": (1.0, ShapeError, "single number"),
    "nan": ([[np.nan, 0.0]], InvalidInputError, r"isthmus\.complete"),
    "infinite": ([[np.inf, 0.0]], InvalidInputError, "infinite"),
}


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize(("x", "error", "complaint"), BAD_POINTS.values(), ids=BAD_POINTS)
def test_bad_points(kind, x, error, complaint):
    energy = kind(GOOD)
    for method in (energy.energy, energy.score, energy.step, lambda x: ist.retrieve(energy, x)):
        with pytest.raises(error, match=complaint):
            method(x)


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_an_observed_coordinate_must_be_known(kind):
    x = np.array([[0.5, np.nan]])
    with pytest.raises(InvalidInputError, match="marked as observed is unknown"):
        kind(GOOD).conditional_mean(x, np.array([True, True]))


BAD_COUNTS = {
    "below the discount": ([1.0, 0.2, 3.0], InvalidInputError, "above the discount 0.5.*Drop"),
    "at the discount": ([1.0, 0.5, 3.0], InvalidInputError, "above the discount"),
    "negative": ([1.0, -2.0, 3.0], InvalidInputError, "smallest here: -2"),
    "nan": ([1.0, np.nan, 3.0], InvalidInputError, "finite"),
    "infinite": ([1.0, np.inf, 3.0], InvalidInputError, "finite"),
    "too few": ([1.0, 2.0], ShapeError, "one per mean"),
    "a table": (np.ones((3, 1)), ShapeError, "one per mean"),
    "text": (["a", "b", "c"], DtypeError, "counts holds"),
    "complex": (np.ones(3) * 1j, DtypeError, "counts holds"),
    "booleans": ([True, True, True], DtypeError, "counts holds"),
}


@pytest.mark.parametrize(("counts", "error", "complaint"), BAD_COUNTS.values(), ids=BAD_COUNTS)
def test_bad_counts(counts, error, complaint):
    with pytest.raises(error, match=complaint):
        ist.CRPMixture(GOOD, counts, discount=0.5)


@pytest.mark.parametrize(
    "step",
    [
        lambda x: ist.ModernHopfield(GOOD, beta=1e308).step(x),
        lambda x: ist.CRPMixture(GOOD, np.ones(3), beta=1e308).step(x),
        lambda x: ist.CRPMixture(GOOD * 1e300, np.ones(3)).responsibilities(x),
        lambda x: ist.StudentMixture([[0.0, 0.0], [3e300, 1e300]]).score(x),
        lambda x: ist.StudentMixture([[0.0, 0.0], [3e300, 1e300]]).step(x),
        lambda x: ist.attend(x, GOOD, beta=1e308),
        lambda x: ist.Hopfield(torch.tensor(GOOD) * 1e150).energy(x * 1e20),
        lambda x: ist.Hopfield(torch.tensor(GOOD).float() * 1e20).step(x),
        lambda x: ist.DenseAssociativeMemory(GOOD * 1e120).score(x),
        lambda x: ist.DenseAssociativeMemory(GOOD * 1e120).energy(x),
        lambda x: ist.DenseAssociativeMemory(torch.tensor(GOOD).float() * 1e30).step(x * 1e20),
    ],
)
def test_an_overflow_is_an_error_not_nan(step):
    with pytest.raises(InvalidInputError, match="beyond the range of float"):
        step(torch.tensor([[3.0, -5.0], [9.0, 9.0]]).double())


@pytest.mark.parametrize("size", [1e19, 1e30, 3e38])
@pytest.mark.parametrize(
    "make",
    [
        ist.Hopfield,
        ist.DenseAssociativeMemory,
        ist.ModernHopfield,
        ist.SparseHopfield,
        ist.GaussianKDE,
        ist.LaplaceKDE,
        ist.StudentMixture,
        lambda memories: ist.CRPMixture(memories, torch.ones(3)),
    ],
)
def test_huge_points_give_infinities_or_errors_but_no_nan(make, size):
    for memories in (torch.tensor(GOOD).float(), torch.tensor(GOOD).float() * 1e19):
        for name in ("energy", "score", "step", "log_prob"):
            try:
                found = getattr(make(memories), name)(torch.full((1, 2), size))
            except IsthmusError:
                continue
            assert not found.isnan().any(), name


def test_observed_coordinates_far_from_all_memories_are_an_error():
    with pytest.raises(InvalidInputError, match="no memory within reach"):
        ist.LaplaceKDE(GOOD).conditional_mean(np.array([1e300, 0.0]), [True, False])
