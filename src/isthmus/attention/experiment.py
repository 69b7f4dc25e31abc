"""The former place of :mod:`isthmus.paper.attention`, whose names are found here too."""

from importlib import import_module
from typing import Any


def __getattr__(name: str) -> Any:
    return getattr(import_module("isthmus.paper.attention"), name)
