"""save and load: one file, all or nothing, and nothing in it is executed."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import make_blobs

from isthmus.cluster import ClAM, ClAMCRPELBO, ClAMELBO
from isthmus.errors import InvalidInputError


@pytest.fixture
def path(tmp_path):
    return tmp_path / "model.safetensors"


def test_a_loaded_model_answers_the_same(make, with_gaps, path):
    model = make().fit(pd.DataFrame(with_gaps, columns=list("abc")))
    model.save(path)
    loaded = type(model).load(str(path))
    assert type(loaded) is type(model)
    frame = pd.DataFrame(with_gaps, columns=list("abc"))
    for method in ("predict", "predict_proba", "score_samples", "transform", "complete"):
        np.testing.assert_array_equal(getattr(loaded, method)(frame), getattr(model, method)(frame))
    np.testing.assert_array_equal(loaded.sample(5)[0], model.sample(5)[0])
    for name, value in vars(model).items():
        if name.endswith("_"):
            np.testing.assert_array_equal(getattr(loaded, name), value)
            assert type(getattr(loaded, name)) is type(value)
    assert loaded.get_params() == model.get_params()
    if hasattr(model, "novelty"):
        np.testing.assert_array_equal(loaded.novelty(frame), model.novelty(frame))


@pytest.mark.parametrize("first", ["fit", "partial_fit"])
def test_a_loaded_model_goes_on_with_its_stream(make, overlapping, path, first):
    model = getattr(make(), first)(overlapping[:100])
    model.save(path)
    loaded = type(model).load(path)
    for part in (slice(100, 130), slice(130, 150)):
        model.partial_fit(overlapping[part])
        loaded.partial_fit(overlapping[part])
    np.testing.assert_array_equal(loaded.memories_, model.memories_)
    np.testing.assert_array_equal(loaded.weights_, model.weights_)
    assert loaded.beta_ == model.beta_


def test_a_model_of_another_kind_is_refused_with_its_name(blobs, path):
    ClAMELBO(3, random_state=0).fit(blobs).save(path)
    with pytest.raises(InvalidInputError, match="ClAMELBO"):
        ClAM.load(path)


OLD = Path(__file__).parent / "saved"
# Mean log-density of the rows below, as the version that wrote the files computed it; beta and the
# mean of the memories after one more batch, which follow the present rule for streams.
WRITTEN = {
    ClAMELBO: (-4.462290199248441, 0.5210394343050146, 2.848724394679982),
    ClAMCRPELBO: (-4.470140476379753, 0.4491747848799699, 3.0397116161284248),
}


@pytest.mark.parametrize("kind", WRITTEN)
def test_files_of_the_first_format_still_load_and_continue(kind):
    rows = make_blobs(150, 3, centers=3, random_state=0)[0]
    rows[np.random.RandomState(0).random(rows.shape) < 0.15] = np.nan
    model = kind.load(OLD / f"{kind.__name__}-format-1.safetensors")
    score = model.score(rows)
    np.testing.assert_array_equal(model.predict(rows), model.labels_)
    model.partial_fit(rows[:50] + 1)
    found = score, model.beta_, model.memories_.mean()
    np.testing.assert_allclose(found, WRITTEN[kind], rtol=1e-8)
