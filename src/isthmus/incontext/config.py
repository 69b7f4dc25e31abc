"""ICLEBMConfig, and the checks of every dataclass of settings."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, fields
from typing import Any, ClassVar, Literal, Self, cast, get_args, get_origin, get_type_hints

from isthmus.errors import InvalidInputError
from isthmus.validation import as_choice, as_count, as_number


class CheckedFields:
    """Settings, each int at least 1 and each float above 0, or 0 in the fields of `zero`."""

    zero: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        hints = get_type_hints(type(self))
        for name in (each.name for each in fields(cast(Any, self))):
            value, kind = getattr(self, name), get_origin(hints[name])
            options = get_args(hints[name]) or (hints[name],)
            if value is None and type(None) in options:
                continue
            if kind is Literal:
                as_choice(value, name, options)
            elif int in options:
                value = as_count(value, name, at_least=0 if name in self.zero else 1)
            elif float in options and kind is not tuple:
                bound = {"at_least": 0} if name in self.zero else {"above": 0}
                value = as_number(value, name, **bound)
            object.__setattr__(self, name, value)
            if name.endswith("_high"):
                low = name.removesuffix("high") + "low"
                as_number(getattr(self, low), low, at_most=value)

    def to_dict(self) -> dict[str, Any]:
        """Return the settings as a dictionary, for a JSON file."""
        return asdict(cast(Any, self))

    @classmethod
    def from_dict(cls, settings: dict[str, Any]) -> Self:
        """Return the settings of a dictionary from :meth:`to_dict`; unknown names raise."""
        unknown = set(settings) - {field.name for field in fields(cast(Any, cls))}
        if unknown:
            raise InvalidInputError(
                f"Unknown settings {sorted(unknown)}: written by a newer version of isthmus?"
            )
        return cls(**settings)


def cosine_at(update: int, updates: int, warmup: int) -> float:
    """Return the share of the learning rate at an update: a linear rise, then a cosine."""
    rise = min(1.0, (update + 1) / (warmup + 1))
    return rise * (0.5 + 0.5 * math.cos(math.pi * update / updates))


@dataclass(frozen=True, kw_only=True)
class ICLEBMConfig(CheckedFields):
    """Settings of :class:`isthmus.incontext.ICLEBM`; the defaults are the paper's.

    Parameters
    ----------
    dim, layers, heads, width : int
        Coordinates D of a point, transformer blocks, attention heads, and the width of the
        residual stream.
    feedforward : int, optional
        Hidden width of each block's feed-forward part. Default: four times `width`.
    positions : int, optional
        Number of learned position embeddings, which also bounds the length of a context.
        Default: none, so that a context is (nearly) a set and may have any length.
    scale : float
        Divisor of the points before they are embedded: about the size of the data.
    box : float, optional
        Half-width of the cube that holds the data. Outside, the energy is that of the nearest
        point of the cube plus a quadratic wall, so that the density is finite. Default: no wall.
    wall : float
        Width of the wall: the energy rises by ``(distance / wall)**2 / 2``.

    >>> ICLEBMConfig(dim=2, box=5.5).feedforward_width
    512
    """

    dim: int = 2
    layers: int = 6
    heads: int = 8
    width: int = 128
    feedforward: int | None = None
    positions: int | None = None
    scale: float = 1.0
    box: float | None = None
    wall: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.width % self.heads:
            raise InvalidInputError(f"width ({self.width}) must be a multiple of heads.")

    @property
    def feedforward_width(self) -> int:
        """Hidden width of the feed-forward part, with its default."""
        return self.feedforward or 4 * self.width
