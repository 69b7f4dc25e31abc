"""check_fields: the checks of every dataclass of settings, read from its annotations."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, Literal, get_args, get_origin, get_type_hints

from isthmus.errors import InvalidInputError
from isthmus.validation import as_choice, as_count, as_number

__all__ = ["check_fields"]


def check_fields(settings: Any, *, zero: tuple[str, ...] = ()) -> None:
    """Check the numbers and words of a dataclass, and store numbers in their own type.

    An ``int`` must be a whole number of at least 1, a ``float`` finite and above 0, a ``Literal``
    one of its words; None passes where the annotation allows it. A field whose name ends in
    ``_low`` must not exceed its partner in ``_high``. Other types are not checked.

    Parameters
    ----------
    settings : dataclass
    zero : tuple of str
        Fields that may also be 0.
    """
    hints = get_type_hints(type(settings))
    for name in (each.name for each in fields(settings) if each.init):
        value, options = getattr(settings, name), get_args(hints[name]) or (hints[name],)
        if value is None and type(None) in options:
            continue
        if get_origin(hints[name]) is Literal:
            as_choice(value, name, options)
        elif int in options:
            value = as_count(value, name, at_least=0 if name in zero else 1)
        elif float in options and get_origin(hints[name]) is not tuple:
            bound = {"at_least": 0} if name in zero else {"above": 0}
            value = as_number(value, name, **bound)
        object.__setattr__(settings, name, value)
        if name.endswith("_high"):
            low = name.removesuffix("high") + "low"
            if getattr(settings, low) > value:
                raise InvalidInputError(
                    f"{low} ({getattr(settings, low):g}) must not exceed {name} ({value:g})."
                )
