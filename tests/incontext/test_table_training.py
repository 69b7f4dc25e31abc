"""The synthetic tables, and training that resumes where it stopped."""

import math

import numpy as np
import pytest
import torch

from isthmus.errors import InvalidInputError
from isthmus.incontext import ICLTables, TableConfig, TableTraining, pretrained, train_tables
from isthmus.incontext.storage import Checkpoint
from isthmus.incontext.tables.prior import FAMILIES, draw_batch
from isthmus.incontext.tables.training import write_memory
from isthmus.memories import StudentMixture

TINY = TableTraining(
    model=TableConfig(width=8, cell_width=8, layers=1, heads=2, max_columns=3),
    updates=6,
    context_rows=64,
    tables=4,
    rows=8,
    size_high=32,
    warmup=2,
)


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.__name__)
@pytest.mark.parametrize("columns", [1, 3, 16])
def test_every_family_draws_finite_tables(family, columns):
    rng = np.random.default_rng(0)
    for _ in range(20):
        x = family(rng, 60, columns)
        assert x.shape == (60, columns)
        assert np.isfinite(x).all()


def test_batches_are_standard_and_follow_their_seed():
    assert sum(FAMILIES.values()) == pytest.approx(1)
    batch = draw_batch(np.random.default_rng(0), 30, 40, 50, 4)
    np.testing.assert_allclose(batch.context.mean(1), 0, atol=1e-5)
    np.testing.assert_allclose(batch.context.std(1), 1, atol=1e-4)
    assert batch.rows.shape == (30, 50, 4)
    again = draw_batch(np.random.default_rng(0), 30, 40, 50, 4)
    np.testing.assert_array_equal(batch.rows, again.rows)
    # Fresh rows come from the density of the context: medians of both agree.
    assert np.abs(np.median(batch.rows, 1)).mean() < 0.5
    gaps = draw_batch(np.random.default_rng(0), 10, 40, 50, 4, missing=0.3)
    assert np.isnan(gaps.context).mean() == pytest.approx(0.3, abs=0.05)
    assert not np.isnan(gaps.rows).any()


def test_the_training_likelihood_is_that_of_the_memory():
    network = pretrained("tables").network
    batch = draw_batch(np.random.default_rng(1), 3, 30, 20, 3)
    context, rows = (torch.from_numpy(x).double() for x in (batch.context, batch.rows))
    with torch.no_grad():
        written = write_memory(network, context)
        found, _ = written.log_probs(rows, torch.zeros(3, 20, 0))
    for table in range(3):
        memory = StudentMixture(*(part[table] for part in written[:4]))
        torch.testing.assert_close(found[table], memory.log_prob(rows[table]), rtol=1e-6, atol=1e-6)


def test_a_stopped_run_ends_as_it_would_have(tmp_path):
    whole, rows = train_tables(TINY, log_every=2, evaluate_every=6)
    assert [row["update"] for row in rows] == [2, 4, 6]
    assert math.isfinite(rows[-1]["held_out_nll"])

    class StopError(Exception):
        pass

    def stop(row):
        if row["update"] == 4:
            raise StopError

    with pytest.raises(StopError):
        train_tables(TINY, tmp_path, log_every=2, checkpoint_every=1, report=stop)
    kept = Checkpoint.load(tmp_path / "checkpoint.pt").objective[0]
    with pytest.warns(UserWarning, match="has made 3 of its 6 updates"):
        halfway = pretrained(tmp_path)
    assert torch.equal(halfway.network.row_in.weight, kept["module.row_in.weight"].double())
    model, resumed = train_tables(TINY, tmp_path, log_every=2, checkpoint_every=1)
    for name, value in whole.state_dict().items():
        assert torch.equal(model.state_dict()[name], value)
    assert [row["loss"] for row in resumed] == [row["loss"] for row in rows]
    stored = ICLTables.from_pretrained(tmp_path / "model")
    assert torch.equal(stored.network.row_in.weight, whole.network.row_in.weight)
    other = TableTraining(model=TINY.model, updates=7)
    with pytest.raises(InvalidInputError, match="other settings: updates"):
        train_tables(other, tmp_path)
