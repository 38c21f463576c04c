"""Checks of single settings: each takes the setting's name and value and returns the value, or says what is wrong.

Pure, and shared by all that resolve a dictionary into a frozen dataclass.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from difflib import get_close_matches
from numbers import Integral, Real
from typing import Any

from art.errors import ConfigurationError

Check = Callable[[str, object], Any]


def real(
    *,
    at_least: float | None = None,
    above: float | None = None,
    at_most: float | None = None,
) -> Check:
    """A check for a finite number within the bounds; it returns a float."""
    bounds = _bounds(at_least, above, at_most)

    def check(name: str, value: object) -> float:
        if isinstance(value, bool) or not isinstance(value, Real):
            raise _wrong(name, value, f"a number{bounds}")
        number = float(value)
        if not math.isfinite(number) or not _within(number, at_least, above, at_most):
            raise _wrong(name, value, f"a finite number{bounds}")
        return number

    return check


def whole(*, at_least: int | None = None, at_most: int | None = None) -> Check:
    """A check for an integer within the bounds."""
    bounds = _bounds(at_least, None, at_most)

    def check(name: str, value: object) -> int:
        if isinstance(value, bool) or not isinstance(value, Integral):
            raise _wrong(name, value, f"an integer{bounds}")
        if not _within(int(value), at_least, None, at_most):
            raise _wrong(name, value, f"an integer{bounds}")
        return int(value)

    return check


def flag(name: str, value: object) -> bool:
    """Check for True or False."""
    if not isinstance(value, bool):
        raise _wrong(name, value, "True or False")
    return value


def text(name: str, value: object) -> str:
    """Check for a string that is not empty."""
    if not isinstance(value, str) or not value:
        raise _wrong(name, value, "a string that is not empty")
    return value


def one_of(*choices: str) -> Check:
    """A check for one of these words."""

    def check(name: str, value: object) -> str:
        if not isinstance(value, str) or value not in choices:
            raise _wrong(
                name,
                value,
                f"one of {', '.join(map(repr, choices))}{_suggestion(value, choices)}",
            )
        return value

    return check


def optional(check: Check) -> Check:
    """The same check, which lets None through."""

    def check_unless_none(name: str, value: object) -> Any:
        return None if value is None else check(name, value)

    return check_unless_none


def check_section(where: str, given: Mapping[str, object], checks: Mapping[str, Check]) -> dict[str, Any]:
    """Check every value of a dictionary whose keys are all known.

    Args:
        where: Name of the dictionary, for messages.
        given: The dictionary.
        checks: The check of each key that may occur.

    Raises:
        ConfigurationError: A key is unknown (the nearest known one is named), or a value is wrong.
    """
    refuse_unknown_keys(where, given, checks)
    return {key: checks[key](f"{where}[{key!r}]", value) for key, value in given.items()}


def refuse_unknown_keys(where: str, given: Mapping[str, object], known: Collection[str]) -> None:
    """Raise a ConfigurationError that names every unknown key and the known one nearest to each."""
    unknown = [key for key in given if key not in known]
    if unknown:
        listed = ", ".join(f"{key!r}{_suggestion(key, known)}" for key in unknown)
        raise ConfigurationError(
            f"unknown key{'s' if len(unknown) > 1 else ''} in {where}: {listed}. Known: {', '.join(sorted(known))}."
        )


def nearest(key: object, known: Collection[str]) -> str | None:
    """Return the known word that a misspelled one is most likely meant to be, if any is near."""
    matches = get_close_matches(str(key), list(known), n=1, cutoff=0.7)
    return matches[0] if matches else None


def _suggestion(key: object, known: Collection[str]) -> str:
    match = nearest(key, known)
    return f" (did you mean {match!r}?)" if match else ""


def _wrong(name: str, value: object, wanted: str) -> ConfigurationError:
    return ConfigurationError(f"{name} is {value!r}: it must be {wanted}")


def _within(number: float, at_least: float | None, above: float | None, at_most: float | None) -> bool:
    return (
        (at_least is None or number >= at_least)
        and (above is None or number > above)
        and (at_most is None or number <= at_most)
    )


def _bounds(at_least: float | None, above: float | None, at_most: float | None) -> str:
    parts = [
        *([f"at least {at_least:g}"] if at_least is not None else []),
        *([f"above {above:g}"] if above is not None else []),
        *([f"at most {at_most:g}"] if at_most is not None else []),
    ]
    return f", {' and '.join(parts)}" if parts else ""
