"""Command lines that make no sense: exit code 2, one line on stderr, and no file changed.

tests/contract runs others; these need files of their own, or would overwrite one.
"""

from pathlib import Path

import numpy as np
import pytest
import torch

from isthmus.cli.main import main
from isthmus.cluster import ClAMELBO
from isthmus.incontext import ICLEBM, ICLEBMConfig

FILES = {
    "data.csv": "a,b\n" + "\n".join(f"{n % 7},{n * n % 5}.5" for n in range(20)),
    "gaps.csv": "a,b,c\n1,2,x\n,3,y\n4,,z\n",
    "other.csv": "c,d\n1,2\n",
    "one.csv": "name,x\nAda,1\n",
    "two.csv": "name,x\nAda,1\nBob,2\n",
    "tiny.csv": "a,b\n1e-200,2\n3e-200,3\n",
    "huge.csv": "a,b\n" + "1e300,2\n3e300,3\n" * 5,
    "same.csv": "a,b\n" + "1,2\n" * 20,
    "wide.csv": ",".join("abcdefghijklmnopq") + "\n" + (",".join(["1"] * 17) + "\n") * 20,
    "fake.model": "not a model",
}
LINES = """
cluster data.csv --method elbo
cluster data.csv -k 3 --alpha 1
cluster data.csv -k 21
cluster data.csv --method mean-shift --save m
cluster gaps.csv --method mean-shift
cluster data.csv --plot a.gif
cluster data.csv -o data.csv
cluster data.csv -o a.csv --plot data.csv
cluster data.csv --plot q.png --save ./q.png
cluster data.csv --save data.clusters.csv
cluster data.csv --model fake.model
cluster data.csv --model bare.model
cluster data.csv --model m -k 2
cluster tiny.csv
cluster data.csv -o nowhere/a.csv
cluster data.csv -o loop.csv
cluster data.csv -o - --json
cluster data.csv --drop 1,2
cluster .
certify data.csv --sigma 1 --beta 1
certify data.csv --model hopfield
certify data.csv --model hopfield --sigma 1e-300
certify data.csv --sigma 1 --stored 0.5
certify data.csv --delta 0.1
certify data.csv --noise --delta 0.5
complete gaps.csv --energy kde
complete gaps.csv --sigma 1 --energy crp
complete gaps.csv --memory other.csv
complete gaps.csv --model other.csv
complete gaps.csv -o gaps.csv
complete gaps.csv --memory other.csv -o other.csv
sample fake.model -o out.csv
sample gaps.csv --energy kde -o out.csv
sample data.csv --energy clam -o out.csv
sample data.csv -k 2 -o out.csv
sample data.csv --energy crp --sigma 1 -o out.csv
sample data.csv --sigma 1 --beta 1 -o out.csv
sample data.csv --step-size 1 -o out.csv
sample two.csv --sampler langevin --step-size 1e6 -o out.csv
sample data.csv -o data.csv
sample one.csv -o out.csv
sample data.csv --energy crp --outside -o out.csv
sample data.csv --energy tables --sampler mala -o out.csv
sample two.csv --energy tables -o out.csv
ask data.csv
ask data.csv --predict size
ask data.csv --predict a --given b
ask data.csv --predict a --given b=many
ask data.csv --predict a --given c=3
ask data.csv --predict a --given a=3
density two.csv
density same.csv
density wide.csv
density data.csv --level 100
sample data.csv --privacy -1
density huge.csv
density data.csv --score other.csv
icl train
icl train --prior fog --out run
icl train --preset tables --prior paper --out run
icl train --preset tiny --init tables --out run
icl sample --model tables
icl sample --model small --context wide.csv
icl plot --model small --context gaps.csv -o a.png
icl plot --model small -o a.txt
icl eval --model small --references guess
icl eval --model tables
reproduce --limit nan
reproduce --only
reproduce --out data.csv/inside
datasets list --data data.csv
datasets fetch
datasets fetch iris --all
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("refusals")
    for name, text in FILES.items():
        (found / name).write_text(text)
    (found / "loop.csv").symlink_to(found / "loop.csv")
    ClAMELBO(1).fit(np.eye(4)).save(found / "bare.model")
    with torch.random.fork_rng():
        ICLEBM(ICLEBMConfig(layers=1, heads=2, width=8, box=5.5)).save_pretrained(found / "small")
    return found


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() if path.is_file() else b"" for path in folder.rglob("*")}


@pytest.mark.parametrize("line", LINES.strip().splitlines())
def test_what_makes_no_sense_is_one_line_and_leaves_no_file(
    line, folder, monkeypatch, capsys
) -> None:
    monkeypatch.chdir(folder)
    before = contents(folder)
    assert main(line.split()) == 2
    streams = capsys.readouterr()
    assert streams.out == ""
    assert streams.err.startswith("isthmus: ")
    assert streams.err.count("\n") == 1
    assert contents(folder) == before
