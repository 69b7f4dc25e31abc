"""Names, commands and saved files that users rely on keep working.

``python tests/contract/test_contract.py`` records names and commands again, after a change that is
meant. The files in `saved` were written by version 0.1.0.
"""

import contextlib
import inspect
import io
import json
import os
import re
import tempfile
import warnings
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import isthmus as ist
from isthmus import cluster
from isthmus.attend import Index
from isthmus.capacity import Certificate
from isthmus.cli.main import main
from isthmus.incontext import ICLEBM

HERE = Path(__file__).parent
API = HERE.parents[1] / "docs" / "api"
NAMES, COMMANDS, SAVED = HERE / "names.json", HERE / "commands.json", HERE / "saved"


def documented() -> Iterator[str]:
    """Yield the full name of everything that the summaries of the API reference list."""
    for page in sorted(API.glob("*.rst")):
        module, summary = "isthmus", False
        for line in page.read_text().splitlines():
            if found := re.match(r"\.\. (?:current|auto)module:: (\S+)", line):
                module = found[1]
            if line and not line.startswith(" "):
                summary = line.startswith(".. autosummary")
            elif summary and (found := re.fullmatch(r"   ([\w.]+)", line)):
                yield f"{module}.{found[1]}"


def resolve(name: str) -> Any:
    """Return the object of a dotted name."""
    parts = name.split(".")
    for count in range(len(parts), 0, -1):
        with contextlib.suppress(ModuleNotFoundError):
            value = import_module(".".join(parts[:count]))
            for part in parts[count:]:
                value = getattr(value, part)
            return value
    raise AttributeError(name)


def parameters(value: Any) -> str:
    """Return the public parameters of a callable; those that may be left out end in =."""
    try:
        found = inspect.signature(value).parameters.values()
    except (TypeError, ValueError):
        return ""
    return " ".join(
        f"{each.name}{'' if each.default is each.empty else '='}"
        for each in found
        if each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD) and each.name != "self"
    )


def described(name: str) -> dict[str, str]:
    """Return the parameters of a function, or of a class and its public methods."""
    value = resolve(name)
    if inspect.ismodule(value) or not callable(value):
        return {name: ""}
    found = {name: parameters(value)}
    if inspect.isclass(value) and not issubclass(value, Exception):
        for base in reversed(value.__mro__):
            if not base.__module__.startswith("isthmus"):
                continue
            for member in vars(base):
                if not member.startswith("_"):
                    method = inspect.getattr_static(value, member)
                    callable_ = inspect.isfunction(method) or isinstance(method, classmethod)
                    found[f"{name}.{member}"] = (
                        parameters(getattr(value, member)) if callable_ else ""
                    )
    return found


def tables(folder: Path) -> None:
    """Write the files that the commands read."""
    rng = np.random.default_rng(0)
    centres = np.array([[0.0, 0, 0], [8, 8, 0], [0, 9, 9]])
    rows = centres[np.repeat([0, 1, 2], 20)] + rng.normal(size=(60, 3))
    frame = pd.DataFrame(rows.round(2), columns=["length", "width", "depth"])
    frame.to_csv(folder / "plain.csv", index=False)
    frame.to_parquet(folder / "plain.parquet")
    np.save(folder / "plain.npy", rows)
    frame.iloc[:, :2].iloc[:24].to_csv(folder / "plane.csv", index=False)
    frame.insert(0, "id", [f"r{row}" for row in range(60)])
    frame["kind"] = np.repeat(["a", "b", "c"], 20)
    frame.to_csv(folder / "named.csv", index=False)
    frame.loc[[3, 30], "width"] = np.nan
    frame.loc[[7], "kind"] = None
    frame.to_csv(folder / "gaps.csv", index=False)
    frame.to_json(folder / "gaps.jsonl", orient="records", lines=True)
    (folder / "german.csv").write_text("a;b\n1,5;2\n2,5;3\n3,5;1\n1,25;2,5\n2,0;2\n")
    (folder / "empty.csv").write_text("")
    (folder / "words.csv").write_text("name\nann\nbob\n")
    (folder / "ragged.csv").write_text("a,b\n1,2\n1,2,3,4\n")
    (folder / "noise.parquet").write_bytes(b"PAR1 not really")


def runs() -> list[str]:
    """Return the command lines, in the order in which they run in one folder."""
    wrong = [
        *("", "--version", "--help", "frobnicate", "cluster", "cluster missing.csv"),
        *("cluster empty.csv", "cluster words.csv", "cluster ragged.csv", "cluster noise.parquet"),
        *("cluster plain.csv --nonsense", "cluster plain.csv -k 0", "cluster plain.csv -k 1000"),
        *("cluster plain.csv --seed -1", "cluster plain.csv --label colour"),
        *("cluster plain.csv -o out.docx", "certify words.csv", "certify plain.csv --sigma -1"),
        *("complete words.csv", "complete gaps.csv --how median", "sample empty.csv"),
        *("sample plain.csv -n -3", "density noise.parquet", "density plain.csv --score no.csv"),
        *("icl sample --context missing.csv -n 5", "icl eval --prior nonsense", "icl swim"),
        *("study table nowhere", "study run --methods Nonsense", "reproduce --only nonsense"),
        *("datasets fetch nonsense", "play missing.csv", "cluster plain.csv --model no.model"),
    ]
    right = [
        *("cluster plain.csv --json -o c1.csv", "cluster named.csv --label kind --json -o c2.csv"),
        "cluster plain.csv --method crp --json -o c3.csv --save crp.model",
        "cluster plain.csv --method elbo -k 3 --json -o c4.parquet",
        "cluster plain.csv --method clam -k 3 --json -o c5.jsonl",
        "cluster plain.csv --method crp-elbo --json -o c6.csv",
        "cluster plain.csv --method mean-shift --bandwidth 1 --json -o c7.csv",
        "cluster plain.csv --model crp.model --json -o c8.csv",
        "cluster plain.parquet --json --resolution 1 -o c9.csv --plot c9.png",
        "cluster german.csv --method elbo -k 2 --json -o c10.csv",
        "cluster gaps.csv --quiet -o c11.csv",
        *("certify plain.csv --json -o e1.csv", "certify plain.npy --sigma 0.5 --json"),
        "certify plain.csv --model hopfield --beta 1 --json --iterate none",
        "certify plain.csv --noise --json --standardise -o e2.csv",
        "certify plain.csv --phases --json",
        *("complete gaps.csv --json", "complete gaps.jsonl --json -o f1.jsonl"),
        *("complete gaps.csv --energy kde --json -o f2.csv", "complete plain.csv --json"),
        "complete gaps.csv --energy crp --how mode --json -o f3.csv",
        *("sample plain.csv -n 7 --json", "sample named.csv -n 7 -o s1.csv --json --no-check"),
        "sample plain.csv -n 5 --energy kde --sigma 0.3 -o s2.csv",
        "sample plain.csv -n 5 --energy crp --sampler mala --steps 20 -o s3.csv",
        "sample crp.model -n 4 -o s4.csv",
        *("density plain.csv --json", "density plain.csv -o d1.csv"),
        *("icl eval --tasks 2 --points 4 --contexts 0,4 --references kde-best --json",),
        "icl sample --context plane.csv -n 5 -o i1.csv",
        *("study run --datasets nothing", "datasets list --json", "bench --list"),
        "reproduce --list",
    ]
    return wrong + right


def keys(value: Any) -> Any:
    """Return the keys of JSON, as deep as they are the same for any data; lists by one item."""
    if isinstance(value, dict):
        return {key: keys(each) for key, each in value.items()}
    if isinstance(value, list):
        return [keys(value[0])] if value and isinstance(value[0], dict) else []
    return type(value).__name__ if isinstance(value, bool | str) or value is None else "number"


def columns(path: Path) -> list[str]:
    """Return the columns of a table that was written, but p2, p3, ... of further clusters."""
    if path.suffix == ".parquet":
        frame = pd.read_parquet(path)
    elif path.suffix == ".jsonl":
        frame = pd.read_json(path, lines=True)
    else:
        frame = pd.read_csv(path, sep=None, engine="python")
    return [name for name in frame.columns if not re.fullmatch(r"p([2-9]|\d\d+)", name)]


def answer(line: str, folder: Path) -> dict[str, Any]:
    """Run a command line in the folder; return exit code, keys of its JSON, and files written."""
    before = {path.name for path in folder.iterdir()}
    out, err = io.StringIO(), io.StringIO()
    with (
        contextlib.chdir(folder),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")
        try:
            code = main(line.split())
        except SystemExit as stop:
            code = int(stop.code or 0)
    found: dict[str, Any] = {"exit": code}
    if "--json" in line and code == 0:
        found["json"] = keys(json.loads(out.getvalue()))
    written = sorted(path for path in folder.iterdir() if path.name not in before)
    found["files"] = {
        path.name: columns(path) if path.suffix in (".csv", ".parquet", ".jsonl") else []
        for path in written
    }
    if code == 2:
        assert err.getvalue().count("\n") == 1, err.getvalue()
    return found


def answers(folder: Path) -> dict[str, Any]:
    """Return what each command line answers."""
    tables(folder)
    return {line: answer(line, folder) for line in runs()}


POINTS = np.array([[0.2, -0.4], [1.0, 2.0], [-3.0, 0.5]])


def test_public_names_take_the_same_parameters() -> None:
    changed = []
    for name, frozen in json.loads(NAMES.read_text()).items():
        try:
            found = parameters(resolve(name)).split()
        except AttributeError:
            changed.append(f"{name} is gone")
            continue
        wanted = frozen.split()
        # Parameters may be added if they can be left out.
        more = [each for each in found if each not in wanted]
        if [each for each in found if each in wanted] != wanted or any(
            not each.endswith("=") for each in more
        ):
            changed.append(f"{name}({frozen}) is now ({' '.join(found)})")
    assert not changed


def contains(found: object, frozen: object) -> bool:
    """Return True if all that was frozen is still there; more may have come."""
    if isinstance(frozen, dict) and isinstance(found, dict):
        return all(key in found and contains(found[key], frozen[key]) for key in frozen)
    if isinstance(frozen, list) and isinstance(found, list) and frozen and found:
        if isinstance(frozen[0], str):
            return [each for each in found if each in frozen] == frozen
        return contains(found[0], frozen[0])
    return True if isinstance(frozen, str) else found == frozen or frozen == []


def test_commands_answer_alike(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ISTHMUS_DATA", raising=False)
    found = answers(tmp_path)
    frozen = json.loads(COMMANDS.read_text())
    assert {line: each for line, each in found.items() if not contains(each, frozen[line])} == {}


VALUES = json.loads((SAVED / "values.json").read_text())


@pytest.mark.parametrize("name", VALUES["energies"])
def test_saved_energies_load(name: str) -> None:
    energy = ist.load(SAVED / f"{name}.safetensors")
    points = POINTS / np.linalg.norm(POINTS, axis=1)[:, None] if name == "vmf" else POINTS
    np.testing.assert_allclose(energy.energy(points), VALUES["energies"][name], rtol=1e-6)


@pytest.mark.parametrize("name", VALUES["estimators"])
def test_saved_estimators_load(name: str) -> None:
    path = SAVED / f"{name}.model"
    if name == "TableModel":
        model = cluster.TableModel.load(path)
        np.testing.assert_allclose(
            model.describe(POINTS).log_density, VALUES["estimators"][name], rtol=1e-5
        )
    else:
        model = getattr(cluster, name).load(path)
        np.testing.assert_array_equal(model.predict(POINTS), VALUES["estimators"][name])


def test_saved_index_certificate_and_in_context_model_load() -> None:
    assert Index.load(SAVED / "index.npz").n_memories == 40
    stored = Certificate.load(SAVED / "certified.npz").stored
    np.testing.assert_array_equal(stored, VALUES["stored"])
    model = ICLEBM.from_pretrained(SAVED / "icl")
    energy = model.condition(POINTS).energy(POINTS)
    np.testing.assert_allclose(energy, VALUES["icl"], rtol=1e-4)


def record() -> None:
    """Record names and commands."""
    found: dict[str, str] = {}
    for name in documented():
        found |= described(name)
    NAMES.write_text(json.dumps(found, indent=0) + "\n")
    os.environ.pop("ISTHMUS_DATA", None)
    with tempfile.TemporaryDirectory() as folder:
        lines = [
            f"{json.dumps(key)}: {json.dumps(each)}" for key, each in answers(Path(folder)).items()
        ]
        COMMANDS.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    record()
