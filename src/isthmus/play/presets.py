"""Scenes to begin with, drawn once from fixed seeds."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

UNIT = 4.0


def _scene(points: NDArray[np.float64], energy: str, sigma: float, **others: Any) -> dict[str, Any]:
    counts = others.pop("counts", [5.0] * len(points))
    settings = {
        "energy": energy,
        "sigma": sigma,
        "alpha": 1.0,
        "prior": 2.0,
        "sparsity": 1.5,
        **others,
    }
    place = {"centre": [0.0, 0.0], "unit": UNIT}
    return {"memories": points.round(3).tolist(), "counts": counts, **settings, **place}


def _clusters(seed: int, centres: list[tuple[float, float]], each: int, spread: float) -> Any:
    noise = np.random.default_rng(seed).normal(size=(len(centres), each, 2))
    return (np.array(centres)[:, None] + spread * noise).reshape(-1, 2)


def _polygon(count: int, radius: float) -> NDArray[np.float64]:
    angle = 2 * np.pi * (np.arange(count) / count) + np.pi / 2
    return radius * np.stack([np.cos(angle), np.sin(angle)], 1)


def _moons() -> NDArray[np.float64]:
    angle = np.linspace(0, np.pi, 14)
    upper = np.stack([np.cos(angle) - 0.5, np.sin(angle) - 0.2], 1)
    points = np.concatenate([upper, -upper])
    return 1.7 * points + 0.06 * np.random.default_rng(2).normal(size=points.shape)


def _many() -> NDArray[np.float64]:
    rng = np.random.default_rng(3)
    centres = rng.uniform(-3, 3, size=(9, 2))
    return (centres[rng.integers(9, size=200)] + 0.45 * rng.normal(size=(200, 2))).clip(-3.8, 3.8)


_FIVE = np.array([[-2.2, 1.4], [-0.6, 2.1], [1.9, 1.6], [1.2, -1.7], [-1.8, -1.5]])
_GROUPS = _clusters(1, [(-2, 1.2), (1.6, 1.5), (0.3, -1.9)], 8, 0.45)

PRESETS: list[dict[str, Any]] = [
    {"name": "five", "title": "Five memories", "scene": _scene(_FIVE, "kde", 0.5)},
    {"name": "groups", "title": "Three groups", "scene": _scene(_GROUPS, "kde", 0.5)},
    {"name": "ring", "title": "A circle", "scene": _scene(_polygon(8, 2.4), "modern", 0.9)},
    {"name": "moons", "title": "Two moons", "scene": _scene(_moons(), "kde", 0.35)},
    {
        "name": "restaurant",
        "title": "Counted clusters",
        "scene": _scene(
            np.array([[-1.6, 1.0], [1.7, 0.6], [0.1, -1.9]]), "crp", 0.5, counts=[12.0, 6.0, 2.0]
        ),
    },
    {"name": "context", "title": "In context", "scene": _scene(_GROUPS, "incontext", 0.5)},
    {"name": "many", "title": "200 memories", "scene": _scene(_many(), "kde", 0.3)},
]
"""Name, title and scene of each; the first is shown unless there is data."""
