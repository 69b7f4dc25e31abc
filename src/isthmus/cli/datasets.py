"""`isthmus datasets list|fetch`: list and download the datasets of the study."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from isthmus.cli import options
from isthmus.errors import InvalidInputError
from isthmus.printing import definitions

if TYPE_CHECKING:
    from isthmus.paper.datasets.manifest import Entry


def run_list(arguments: argparse.Namespace) -> int:
    """List the datasets."""
    from isthmus.datasets import describe

    found = describe()
    places = [(one, *_place(one, arguments.data)) for one in found.entries]
    if arguments.json:
        print(json.dumps([_as_dict(*each) for each in places], indent=1))
        return 0
    shown = {one.name: str(place or how) for one, how, place in places}
    print(found, "", "On this machine:", *definitions(shown), sep="\n")
    return 0


def run_fetch(arguments: argparse.Namespace) -> int:
    """Download datasets."""
    from isthmus.datasets import load, names
    from isthmus.errors import DatasetChangedError, DatasetNotFoundError
    from isthmus.paper.datasets.manifest import entry

    if bool(arguments.names) == arguments.all:
        raise InvalidInputError("Name datasets to fetch, or say --all, but not both.")
    wanted = [entry(name) for name in (names() if arguments.all else arguments.names)]
    failed = 0
    for one in wanted:
        try:
            load(one.name, arguments.data)  # verifies a file, or downloads it
        except (DatasetNotFoundError, DatasetChangedError) as error:
            failed += 1
            options.warn(" ".join(str(error).split()))
        else:
            how, place = _place(one, arguments.data)
            print(f"{one.name}: {place or how}", flush=True)
    return 2 if failed else 0


def _place(one: Entry, data: Path | None) -> tuple[str, Path | None]:
    """Return how a dataset was found on this machine, and its file."""
    from isthmus.paper.datasets.loading import directories, find

    found = find(one.name, directories(data))
    if found is not None:
        return "cached" if found.parent == directories(None)[-1] else "local", found
    return "bundled with scikit-learn" if one.home.is_bundled else "missing", None


def _as_dict(one: Entry, found: str, place: Path | None) -> dict[str, Any]:
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
        "found": found,
        "path": None if place is None else str(place),
    }
