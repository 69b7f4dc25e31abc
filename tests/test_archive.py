"""Archives are read back equal, are equal for equal content, and are refused if altered."""

import numpy as np
import pytest
from safetensors.numpy import load_file

from isthmus.errors import InvalidInputError
from isthmus.io.archive import read_archive, write_archive

ARRAYS = {
    "number": np.array(3.5),
    "ints": np.arange(5),
    "columns": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    "nothing": np.empty((0, 2)),
}


@pytest.fixture
def archive(tmp_path):
    path = tmp_path / "model.safetensors"
    write_archive(path, "kind-1", 'content é "\n', ARRAYS, label="a", another="b")
    return path


def test_arrays_and_description_come_back(archive):
    metadata, arrays = read_archive(archive, ("kind-1",))
    assert metadata["content"] == 'content é "\n'
    assert (metadata["label"], metadata["another"]) == ("a", "b")
    for found in (arrays, load_file(archive)):
        assert found.keys() == ARRAYS.keys()
        for name, array in ARRAYS.items():
            np.testing.assert_array_equal(found[name], array, strict=True)


def test_equal_content_gives_equal_bytes(archive, tmp_path):
    # The writer of safetensors puts metadata in a random order.
    for _ in range(20):
        again = tmp_path / "again.safetensors"
        write_archive(again, "kind-1", 'content é "\n', ARRAYS, label="a", another="b")
        assert again.read_bytes() == archive.read_bytes()


def test_every_altered_byte_is_noticed(archive):
    whole = archive.read_bytes()
    metadata, _ = read_archive(archive, ("kind-1",))
    covered = {key: metadata[key] for key in ("format", "content", "digest")}
    for place in np.random.default_rng(0).integers(len(whole), size=300):
        archive.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        try:
            found, arrays = read_archive(archive, ("kind-1",))
        except InvalidInputError:
            continue
        # Only a label or a space of the header can have changed.
        assert {key: found[key] for key in covered} == covered
        for name, array in ARRAYS.items():
            np.testing.assert_array_equal(arrays[name], array, strict=True)
