"""`isthmus datasets list|fetch`: list and download the datasets of the study."""

from __future__ import annotations

import argparse
import json
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from isthmus.cli.files import path
from isthmus.cli.options import add_json, epilog, make_parser, warn
from isthmus.errors import InvalidInputError

if TYPE_CHECKING:
    from isthmus.datasets.manifest import Entry

__all__ = ["run"]

FILES = "NAME.npz in the directory of --data, else of ISTHMUS_DATA, else in the user's cache"
EXAMPLES = {
    "list": "isthmus datasets list\nisthmus datasets list --json",
    "fetch": "isthmus datasets fetch zoo ecoli\nisthmus datasets fetch --all --data ~/data",
}


@dataclass(frozen=True)
class _Place:
    """The place of a dataset on this machine."""

    found: str
    path: Path | None = None


def run(argv: Sequence[str]) -> int:
    """Run the command and return its exit code."""
    arguments = _parser().parse_args(argv)
    code: int = arguments.action(arguments)
    return code


def _list(arguments: argparse.Namespace) -> int:
    from isthmus.datasets import describe

    entries = describe().entries
    places = {one.name: _place(one, arguments.data) for one in entries}
    if arguments.json:
        print(json.dumps([_as_dict(one, places[one.name]) for one in entries], indent=1))
        return 0
    print(describe())
    width = max(len(one.name) for one in entries)
    print("\nOn this machine:")
    for name, place in places.items():
        print(f"{name:<{width}}  {place.path or place.found}")
    return 0


def _fetch(arguments: argparse.Namespace) -> int:
    from isthmus.datasets import load, names
    from isthmus.datasets.manifest import entry
    from isthmus.errors import DatasetChangedError, DatasetNotFoundError

    if bool(arguments.names) == arguments.all:
        raise InvalidInputError("Name datasets to fetch, or say --all, but not both.")
    wanted = [entry(name) for name in (names() if arguments.all else arguments.names)]
    failed = 0
    for one in wanted:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # about network errors and retries
                load(one.name, arguments.data)  # verifies a file, or downloads it
        except (DatasetNotFoundError, DatasetChangedError) as error:
            failed += 1
            warn(" ".join(str(error).split()))
        else:
            place = _place(one, arguments.data)
            print(f"{one.name}: {place.path or place.found}", flush=True)
    return 2 if failed else 0


def _place(one: Entry, data: Path | None) -> _Place:
    from isthmus.datasets.archives import directories, find

    *_, cache = directories(None)
    found = find(one.name, directories(data))
    if found is not None:
        return _Place("cached" if found.parent == cache else "local", found)
    bundled = (one.home.fetcher or "").startswith("load_")
    return _Place("bundled with scikit-learn" if bundled else "missing")


def _as_dict(one: Entry, place: _Place) -> dict[str, Any]:
    return {
        "name": one.name,
        "samples": one.n_samples,
        "features": one.n_features,
        "classes": one.n_classes,
        "paper": dict(zip(("samples", "features", "classes"), one.paper_shape, strict=True)),
        "as_in_the_paper": one.matches_paper,
        "note": one.note,
        "home": str(one.home),
        "source": one.source,
        "licence": one.licence,
        "found": place.found,
        "path": None if place.path is None else str(place.path),
    }


def _parser() -> argparse.ArgumentParser:
    parser = make_parser(
        "datasets",
        "List and download the 15 labelled datasets of the paper's comparison.",
        "\n".join(EXAMPLES.values()),
        files=FILES,
    )
    commands = parser.add_subparsers(metavar="list|fetch", required=True)
    summaries = {
        "list": "list the datasets, their differences from the paper's, and their files",
        "fetch": "download missing datasets, and verify the others",
    }
    for name, action in (("list", _list), ("fetch", _fetch)):
        one = commands.add_parser(
            name,
            help=summaries[name],
            description=summaries[name].capitalize() + ".",
            epilog=epilog(EXAMPLES[name], FILES),
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        one.set_defaults(action=action)
        if name == "list":
            add_json(one)
        else:
            one.add_argument(
                "names", nargs="*", metavar="NAME", help="as in `isthmus datasets list`"
            )
            one.add_argument("--all", action="store_true", help="all 15 datasets, about 50 MB")
        one.add_argument("--data", type=path, metavar="DIR", help="directory of the files")
    return parser
