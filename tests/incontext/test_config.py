"""Every dataclass of settings refuses numbers and words without a meaning."""

import math
from dataclasses import fields, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isthmus.errors import InvalidInputError
from isthmus.incontext import ICLEBMConfig, TrainingSettings
from isthmus.incontext.objectives import (
    BranchLangevin,
    ContrastiveDivergence,
    DenoisingScoreMatching,
    PersistentContrastiveDivergence,
    Proposal,
    RankingNCE,
)
from isthmus.incontext.priors import GaussianMixtures, Rings

KINDS = (
    ICLEBMConfig, TrainingSettings, BranchLangevin, Proposal, GaussianMixtures, Rings, RankingNCE,
    ContrastiveDivergence, DenoisingScoreMatching, PersistentContrastiveDivergence,
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
