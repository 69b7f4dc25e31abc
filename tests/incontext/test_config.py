"""Every dataclass of settings refuses numbers and words without a meaning."""

import math
from dataclasses import fields, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isthmus.errors import InvalidInputError
from isthmus.incontext import ICLEBM, ICLEBMConfig, ICLTables, TrainingSettings
from isthmus.incontext.objectives import (
    BranchLangevin,
    ContrastiveDivergence,
    DenoisingScoreMatching,
    PersistentContrastiveDivergence,
    Proposal,
    RankingNCE,
)
from isthmus.incontext.priors import GaussianMixtures, Moons, Rings, Spirals, UniformShapes

KINDS = (
    ICLEBMConfig, TrainingSettings, BranchLangevin, Proposal, GaussianMixtures, Moons, Rings,
    Spirals, UniformShapes, RankingNCE, ContrastiveDivergence,
    DenoisingScoreMatching, PersistentContrastiveDivergence,
)  # fmt: skip
NUMBERS = [
    (kind, each.name, each.type)
    for kind in KINDS
    for each in fields(kind)
    if each.type.split()[0] in ("int", "float")
]
WRONG = st.sampled_from([math.nan, math.inf, -1, -0.5, True, "3", [1]])


@given(case=st.sampled_from(NUMBERS), value=WRONG)
def test_numbers_out_of_range_are_refused_by_name(case, value):
    kind, name, _ = case
    with pytest.raises(InvalidInputError, match=name):
        replace(kind(), **{name: value})


@given(case=st.sampled_from([case for case in NUMBERS if case[2].startswith("int")]))
def test_whole_floats_become_ints_and_fractions_are_refused(case):
    kind, name, _ = case
    number = getattr(kind(), name) or 8
    changed = getattr(replace(kind(), **{name: float(number)}), name)
    assert (changed, type(changed)) == (number, int)
    with pytest.raises(InvalidInputError, match=name):
        replace(kind(), **{name: 2.5})


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: GaussianMixtures(std_low=0.6, std_high=0.3), "std_low must .* at most 0.3"),
        (lambda: GaussianMixtures(mean_law="cauchy"), "'uniform', 'normal'"),
        (lambda: ICLEBMConfig(width=10, heads=3), "multiple of heads"),
        (lambda: Proposal(uniform=1.5), "uniform"),
        (lambda: TrainingSettings(batch=3, micro_batch=2), "multiple of micro_batch"),
        (lambda: TrainingSettings(model=ICLEBMConfig(dim=3)), "2 dimensions"),
        (lambda: TrainingSettings(optimizer="SGD"), "AdamW"),
        (lambda: ICLEBM(3), "config"),
        (lambda: ICLTables(0), "config"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(make, message):
    with pytest.raises(InvalidInputError, match=message):
        make()
