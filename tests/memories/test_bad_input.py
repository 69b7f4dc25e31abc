"""What cannot be answered is refused by a named error."""

import numpy as np
import pytest
import torch
from scipy.sparse import csr_array

import isthmus as ist
from isthmus.errors import DtypeError, InvalidInputError, IsthmusError, ShapeError

GOOD = np.array([[0.0, 1.0], [2.0, 3.0], [1.0, 1.0]])
BAD_MEMORIES = [
    (None, DtypeError),
    ([["a", "b"]], DtypeError),
    (GOOD > 1, DtypeError),
    (GOOD + 1j, DtypeError),
    (GOOD.astype(np.float16), DtypeError),
    (GOOD[:0], InvalidInputError),
    (GOOD[0], ShapeError),
    ([[1.0, 2.0], [3.0]], ShapeError),
    (np.where(GOOD > 2, np.nan, GOOD), InvalidInputError),
    (np.where(GOOD > 0, np.inf, GOOD), InvalidInputError),
    (csr_array(np.eye(3)), InvalidInputError),
]
BAD_POINTS = [
    (["a", "b"], DtypeError),
    (np.zeros((4, 3)), ShapeError),
    (1.0, ShapeError),
    ([[np.nan, 0.0]], InvalidInputError),
    ([[np.inf, 0.0]], InvalidInputError),
]


@pytest.mark.parametrize("kind", [ist.Hopfield, ist.EpanechnikovKDE, ist.Mixture])
def test_bad_memories_points_and_masks(kind):
    for memories, error in BAD_MEMORIES:
        with pytest.raises(error, match=r"^(memories|means)"):
            kind(memories)
    energy = kind(GOOD)
    for x, error in BAD_POINTS:
        for method in (energy.energy, energy.score, energy.step, lambda x: ist.retrieve(energy, x)):
            with pytest.raises(error, match="x"):
                method(x)
    for mask, error in ((np.ones((3, 2)), DtypeError), (np.ones((2, 2), bool), ShapeError)):
        for call in (energy.step, energy.conditional_mean, lambda *a: ist.retrieve(energy, *a)):
            with pytest.raises(error):
                call(GOOD, mask)
    with pytest.raises(InvalidInputError, match="unknown"):
        energy.conditional_mean(np.array([[0.5, np.nan]]), np.array([True, True]))


def test_bad_counts():
    at_the_discount, unknown = [1.0, 0.5, 3.0], [1.0, np.nan, 3.0]
    for counts, error in (
        *((at_the_discount, InvalidInputError), (unknown, InvalidInputError)),
        *(([1.0, 2.0], ShapeError), ([True, True, True], DtypeError)),
    ):
        with pytest.raises(error):
            ist.CRPMixture(GOOD, counts, discount=0.5)


@pytest.mark.parametrize(
    "step",
    [
        lambda x: ist.ModernHopfield(GOOD, beta=1e308).step(x),
        lambda x: ist.CRPMixture(GOOD, np.ones(3), beta=1e308).step(x),
        lambda x: ist.StudentMixture([[0.0, 0.0], [3e300, 1e300]]).step(x),
        lambda x: ist.attend(x, GOOD, beta=1e308),
        lambda x: ist.Hopfield(torch.tensor(GOOD).float() * 1e20).step(x),
        lambda x: ist.DenseAssociativeMemory(GOOD * 1e120).score(x),
    ],
)
def test_an_overflow_is_an_error_not_nan(step):
    with pytest.raises(InvalidInputError, match="beyond the range of float"):
        step(torch.tensor([[3.0, -5.0], [9.0, 9.0]]).double())


@pytest.mark.parametrize("size", [1e19, 3e38])
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
        lambda memories: ist.Affine(ist.GaussianKDE(memories), 2.0),
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
