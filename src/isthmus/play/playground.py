"""The playground itself: what the page starts with, and an answer to each of its messages."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.overrides import TorchFunctionMode

from isthmus.energy import Energy
from isthmus.errors import InvalidInputError, IsthmusError, ShapeError
from isthmus.memories.base import Memory
from isthmus.play.data import Columns
from isthmus.play.energies import BUILT_IN, PlayEnergy, as_scene, given_energy
from isthmus.play.frames import clusters, details, landscape, regions, walk
from isthmus.play.messages import (
    LIMITS,
    MOST_IN_CONTEXT,
    MOST_MEMORIES,
    Scene,
    pack,
    read_request,
)

PAGE = Path(__file__).with_name("page")
# Name, title and scene of each; the first is shown unless there is data.
PRESETS: list[dict[str, Any]] = json.loads((PAGE / "presets.json").read_text(encoding="utf-8"))
# Low and high ends of sliders, on a logarithmic scale; those of lengths are in units of the plane.
SLIDERS = {
    "sigma": {"label": "Width σ", "low": 0.02, "high": 1.0, "length": True},
    "alpha": {"label": "Concentration α", "low": 0.01, "high": 100.0, "length": False},
    "sparsity": {"label": "Sparsity α", "low": 1.05, "high": 2.0, "length": False},
    "prior": {"label": "Prior width", "low": 0.1, "high": 4.0, "length": True},
}
# Space about the points, as a share of half their range, and the width of kernels at the start.
MARGIN, FIRST_SIGMA = 1.2, 0.1
log = logging.getLogger("isthmus.play")


class Cancelled(Exception):  # noqa: N818
    """Nobody waits for an answer any more."""


class Cancellable(TorchFunctionMode):
    """Ends a computation between two operations of torch, once it is stale."""

    def __init__(self, stale: Callable[[], bool]) -> None:
        super().__init__()
        self.stale = stale

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Run one operation, unless its result is of no use."""
        if self.stale():
            raise Cancelled
        return function(*args, **(kwargs or {}))


class Playground:
    """Answers the messages of a page, which starts with an energy, points, or the first preset."""

    def __init__(self, start: Any = None) -> None:
        self.energies = {energy.name: energy for energy in BUILT_IN}
        self.table: Columns | None = None
        self.start: dict[str, Any] = {"axes": ("x₁", "x₂"), "notes": (), "columns": ()}
        if start is None:
            self.start["scene"] = PRESETS[0]["scene"]
        elif isinstance(start, Energy):
            self.start["scene"] = self._scene_of_energy(start)
        else:
            self.table = start if isinstance(start, Columns) else Columns.of(start)
            self.start = self._plane(self.table)

    def _scene_of_energy(self, energy: Energy) -> dict[str, Any]:
        if energy.dim not in (2, None):
            raise ShapeError(
                f"The playground is a plane, but the energy has {energy.dim} coordinates. Pass "
                "its memories instead: their first two principal components are shown."
            )
        context = getattr(energy, "context", None)
        if isinstance(context, torch.Tensor) and context.ndim == 2:
            return {**scene_of(context.double().numpy()), "energy": "incontext"}
        if not isinstance(energy, Memory):
            self.energies["given"] = given_energy(energy)
            return {**scene_of(np.zeros((0, 2))), "energy": "given"}
        if energy.n_memories > MOST_MEMORIES:
            raise InvalidInputError(
                f"The playground shows up to {MOST_MEMORIES:,} memories, not "
                f"{energy.n_memories:,}. Pass energy.subset(range({MOST_MEMORIES}))."
            )
        scene = scene_of(energy.memories.detach().double().cpu().numpy()) | as_scene(energy)
        if scene["energy"] == "given":
            self.energies["given"] = given_energy(energy)
        # The prior of a CRP mixture lies at the centre, so that the plane grows about it.
        reach = np.abs(np.array(scene["memories"]) - scene["centre"]).max()
        return {**scene, "unit": max(scene["unit"], MARGIN * float(reach))}

    def hello(self) -> bytes:
        """Return the first frame: energies, sliders, presets, limits and the scene."""
        energies = [energy.describe() for energy in self.energies.values()]
        fixed = {"energies": energies, "sliders": SLIDERS, "presets": PRESETS, "limits": LIMITS}
        return pack({"kind": "hello", **fixed, **self.start})

    def answer(
        self, message: str | bytes, stale: Callable[[], bool] = lambda: False
    ) -> bytes | None:
        """Return the reply to a message; None if it became stale meanwhile.

        A message that is wrong is answered by a frame with an ``error``.
        """
        number = 0
        try:
            request = read_request(message)
            number = request["id"]
            with Cancellable(stale):
                header, arrays = self._answer(request)
            return pack({"kind": request["kind"], "id": number, **header}, arrays)
        except Cancelled:
            return None
        except IsthmusError as error:
            words = str(error)
        except Exception as error:
            log.exception("A message could not be answered")
            words = f"This is a bug in isthmus: {type(error).__name__}. Please report it."
        return pack({"kind": "error", "id": number, "error": words})

    def _answer(self, body: dict[str, Any]) -> tuple[dict[str, Any], Any]:
        kind = body["kind"]
        if kind == "table":
            axes, name, content = body.get("axes", []), body.get("name"), body.get("content")
            table = self.table
            if isinstance(name, str) and isinstance(content, str):
                table = Columns.of_file(name, content)
            if table is None or not isinstance(axes, list):
                raise InvalidInputError("A table needs a name and its content, axes two names.")
            return self._plane(table, axes), {}
        scene = Scene.read(body.get("scene"))
        if kind in ("clusters", "phases"):
            return (clusters if kind == "clusters" else regions)(scene)
        answer = {"details": details, "walk": walk}.get(kind, landscape)
        return answer(self._kind(scene), scene, body)

    @staticmethod
    def _plane(table: Columns, axes: Any = ()) -> dict[str, Any]:
        """Return the start of a page about two columns of a table, or its main directions."""
        points, names, notes = table.plane(axes)
        found = {"scene": scene_of(points), "axes": names, "notes": notes}
        return {**found, "columns": table.names, "chosen": axes}

    def _kind(self, scene: Scene) -> PlayEnergy:
        kind = self.energies.get(scene.energy)
        if kind is None:
            raise InvalidInputError(f"{scene.energy[:40]!r} is not an energy of this playground.")
        if scene.energy == "incontext" and len(scene.memories) > MOST_IN_CONTEXT:
            raise InvalidInputError(
                f"The in-context model takes up to {MOST_IN_CONTEXT} points here; delete some."
            )
        return kind


def scene_of(points: NDArray[np.float64]) -> dict[str, Any]:
    """Return a scene of a Gaussian KDE with these memories (n, 2), as the page holds it."""
    low, high = (points.min(0), points.max(0)) if len(points) else (np.full(2, -4.0), np.full(2, 4))
    unit = float((high - low).max()) / 2 * (MARGIN if len(points) else 1.0) or 1.0
    return {
        "energy": "kde",
        "memories": points.tolist(),
        "counts": [5.0] * len(points),
        "sigma": FIRST_SIGMA * unit,
        "alpha": 1.0,
        "prior": 0.5 * unit,
        "sparsity": 1.5,
        "centre": ((low + high) / 2).tolist(),
        "unit": unit,
    }
