"""The errors a user can cause, and a check that raises them. The command line prints no traceback."""

from typing import Any


class GeoRouteNetError(Exception):
    """Base of every error that is about the input or the environment, not a bug."""


class InputError(GeoRouteNetError, ValueError):
    """A value, file or option that cannot be used; the message says what was given and what is allowed."""


class MissingDependencyError(GeoRouteNetError, ImportError):
    """An optional package is not installed; the message holds the install line."""


class GeoRouteNetWarning(UserWarning):
    """Something worth knowing that does not stop the work."""


def whole(name: str, value: Any, *, least: int = 1) -> int:
    """``value`` as an int of at least ``least``; anything else is an ``InputError`` that names it."""
    try:
        good = not isinstance(value, bool) and int(value) == value and value >= least
    except (TypeError, ValueError, OverflowError):
        good = False
    if not good:
        raise InputError(f"{name} must be a whole number of at least {least}, got {value!r}")
    return int(value)
