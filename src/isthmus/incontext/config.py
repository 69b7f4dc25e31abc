"""ICLEBMConfig: the shape of an in-context energy transformer."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any

from isthmus.errors import InvalidInputError
from isthmus.incontext.fields import check_fields

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
        Number of learned position embeddings, which also bounds the length of a context.
        Default: none, so that a context is (nearly) a set and may have any length.
    scale : float
        Divisor of the points before they are embedded: about the size of the data.
    box : float, optional
        Half-width of the cube that holds the data. Inside, the transformer alone is the energy.
        Outside, it is evaluated at the nearest point of the cube and a quadratic wall is added,
        so that the density has a finite integral. Default: no wall.
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
        check_fields(self)
        if self.width % self.heads:
            raise InvalidInputError(
                f"width must be a multiple of heads, but {self.width} is not one of {self.heads}."
            )

    @property
    def feedforward_width(self) -> int:
        """Hidden width of the feed-forward part, with its default."""
        return self.feedforward or 4 * self.width

    def to_dict(self) -> dict[str, Any]:
        """Return the settings as a dictionary, for a JSON file."""
        return asdict(self)

    @classmethod
    def from_dict(cls, settings: dict[str, Any]) -> ICLEBMConfig:
        """Return the settings of a dictionary from :meth:`to_dict`; unknown names raise."""
        unknown = set(settings) - {field.name for field in fields(cls)}
        if unknown:
            raise InvalidInputError(
                f"Unknown settings {sorted(unknown)}: written by a newer version of isthmus?"
            )
        return cls(**settings)
