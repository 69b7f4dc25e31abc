"""Every message of the page gets an answer, and a wrong one an error in words."""

import json

import numpy as np
import pytest
import torch
from helpers import unpack

import isthmus as ist
from isthmus.play.messages import pack
from isthmus.play.playground import Playground


def answered(message: object, playground: Playground | None = None) -> dict:
    text = message if isinstance(message, str) else json.dumps(message)
    return unpack((playground or Playground()).answer(text) or b"")[0]


def test_frames_survive_the_wire() -> None:
    arrays = {
        "height": np.arange(6, dtype=np.float32).reshape(2, 3),
        "labels": np.array([[1, -1, 300]], dtype=np.int16),
        "paths": np.array([1e300, np.pi]),
    }
    frame = pack({"id": 3, "words": "β ‹<script>›"}, arrays)
    header, found = unpack(frame)
    assert header == {"id": 3, "words": "β ‹<script>›"}
    for name, values in arrays.items():
        np.testing.assert_array_equal(found[name], values)
        assert found[name].dtype == values.dtype


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[" * 100_000,
        "[1]",
        '{"kind": "frame"}',
        '{"id": 1, "kind": "shutdown"}',
        '{"id": 1, "kind": "frame"}',
        '{"id": 1, "kind": "frame", "scene": {"sigma": NaN}}',
        '{"id": 1, "kind": "table", "name": 3, "content": "a"}',
        '{"id": 1, "kind": "table", "name": "x.csv", "content": "ä"}',
        '{"id": 1, "kind": "table", "name": "x.exe", "content": "YSxiCg=="}',
        '{"id": 1, "kind": "table", "name": "../../x.csv", "content": "YSxiCg=="}',
    ],
)
def test_what_is_no_request_is_answered_by_an_error(text) -> None:
    header = answered(text)
    assert header["kind"] == "error"
    assert "bug" not in header["error"]


@pytest.mark.parametrize(
    ("scene_changes", "body"),
    [
        ({"energy": "quantum"}, {}),
        ({"memories": [[1.0]]}, {}),
        ({"memories": [[1e308, 0.0]]}, {}),
        ({"memories": [[0.0, 0.0]] * 2001}, {}),
        ({"counts": [1.0]}, {}),
        ({"sigma": 0}, {}),
        ({"box": [0, 0, 0, 0]}, {}),
        ({"centre": None}, {}),
        ({"energy": "incontext", "memories": [[0.0, 0.0]] * 501, "counts": None}, {}),
        ({}, {"columns": 4096}),
        ({}, {"rows": None}),
        ({}, {"view": "colour"}),
        ({}, {"kind": "details", "queries": [[0, 0]] * 65}),
        ({}, {"kind": "walk", "sampler": "gibbs"}),
        ({}, {"kind": "walk", "sampler": "hmc", "steps": 1000}),
        ({}, {"kind": "walk", "sampler": "hmc", "count": 10**9}),
        ({}, {"kind": "walk", "sampler": "hmc", "walkers": [[0, None]]}),
    ],
)
def test_what_is_wrong_or_too_much_is_answered_by_an_error(scene, scene_changes, body) -> None:
    request = {"id": 5, "kind": "frame", "columns": 16, "rows": 16}
    header = answered({**request, "scene": {**scene, **scene_changes}, **body})
    assert (header["kind"], header["id"]) == ("error", 5)
    assert "bug" not in header["error"]


def test_a_bug_is_named_without_a_traceback(monkeypatch, scene, caplog) -> None:
    playground = Playground()
    monkeypatch.setattr(playground, "_kind", lambda scene: 1 / 0)
    header = answered({"id": 2, "kind": "frame", "scene": scene}, playground)
    assert "bug" in header["error"]
    assert "Traceback" not in header["error"]
    assert caplog.records


def start(given: object) -> tuple[dict, Playground]:
    playground = Playground(given)
    return unpack(playground.hello())[0], playground


@pytest.mark.parametrize(
    ("energy", "name", "sigma"),
    [
        (ist.GaussianKDE([[0.0, 0.0], [3.0, 1.0]], 0.7), "kde", 0.7),
        (ist.ModernHopfield([[0.0, 0.0], [3.0, 1.0]], beta=4.0), "modern", 0.5),
        (ist.EpanechnikovKDE([[0.0, 0.0], [3.0, 1.0]], 6**0.5), "epanechnikov", 1.0),
        (ist.Mixture([[0.0, 0.0], [3.0, 1.0]], beta=2.0), "mixture", 0.5),
        (ist.SparseHopfield([[0.0, 0.0], [3.0, 1.0]], 4.0, 1.8), "sparse", 0.5),
        (ist.CRPMixture([[0.0, 0.0], [3.0, 1.0]], [3.0, 1.0], 2.0, 0.5, 2.0), "crp", 0.5),
        (ist.StudentKDE([[0.0, 0.0], [3.0, 1.0]], bandwidth=0.4), "given", 0.4),
    ],
    ids=lambda value: type(value).__name__,
)
def test_the_page_starts_with_the_energy_it_is_given(energy, name, sigma) -> None:
    header, playground = start(energy)
    scene = header["scene"]
    assert scene["energy"] == name
    assert scene["sigma"] == pytest.approx(sigma, rel=1e-6)
    box = [scene["centre"][0] - 2, scene["centre"][1] - 2, scene["centre"][0] + 2, 3.0]
    request = {"id": 1, "kind": "frame", "columns": 12, "rows": 12, "scene": {**scene, "box": box}}
    _, arrays = unpack(playground.answer(json.dumps(request)) or b"")
    corner = torch.tensor([box[0], box[3]], dtype=energy.memories.dtype)
    assert arrays["height"][0, 0] == pytest.approx(float(energy.energy(corner)), rel=1e-4)
