"""ICLEBMConfig: the shape of an in-context energy transformer."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any

from isthmus.errors import InvalidInputError
from isthmus.validation import as_count

__all__ = ["ICLEBMConfig"]


@dataclass(frozen=True, kw_only=True)
class ICLEBMConfig:
    """Settings of :class:`isthmus.incontext.ICLEBM`; the defaults are the paper's.

    Parameters
    ----------
    dim : int
        Coordinates D of a point.
    layers, heads, width : int
        Transformer blocks, attention heads, and the width of the residual stream.
    feedforward : int, optional
        Hidden width of each block's feed-forward part. Default: four times `width`.
    positions : int, optional
        Learn an embedding for each of so many positions, which also bounds the length of a
        context. Default: none, so that a context is (nearly) a set and may have any length.
    scale : float
        What points are divided by before they are embedded: about the size of the data.
    box : float, optional
        Half-width of the cube where the data lie. Inside, the transformer alone is the energy;
        outside, it is read at the nearest point of the cube and a quadratic wall is added, so
        that the energy grows and the density has a finite integral. Default: no wall.
    wall : float
        Width of the wall: the energy rises by ``(distance / wall)**2 / 2``.

    Examples
    --------
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
        for name in ("dim", "layers", "heads", "width"):
            as_count(getattr(self, name), name)
        for name in ("feedforward", "positions"):
            if getattr(self, name) is not None:
                as_count(getattr(self, name), name)
        if self.width % self.heads:
            raise InvalidInputError(
                f"width must be a multiple of heads, but {self.width} is not one of {self.heads}."
            )
        for name in ("scale", "box", "wall"):
            value = getattr(self, name)
            if value is not None and not 0 < value < float("inf"):
                raise InvalidInputError(f"{name} must be finite and above zero, not {value!r}.")

    @property
    def feedforward_width(self) -> int:
        """Hidden width of the feed-forward part."""
        return self.feedforward or 4 * self.width

    def to_dict(self) -> dict[str, Any]:
        """The settings as a dictionary, for a JSON file."""
        return asdict(self)

    @classmethod
    def from_dict(cls, settings: dict[str, Any]) -> ICLEBMConfig:
        """Read what :meth:`to_dict` wrote; a setting that is not known is an error."""
        unknown = set(settings) - {field.name for field in fields(cls)}
        if unknown:
            raise InvalidInputError(
                f"Unknown settings {sorted(unknown)}: written by a newer version of isthmus?"
            )
        return cls(**settings)
