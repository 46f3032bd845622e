"""The errors a user can cause, and checks that raise them. The command line prints no traceback."""

import os
import sys
import warnings
from types import FrameType
from typing import Any


class GeoRouteNetError(Exception):
    """Base of every error that is about the input or the environment, not a bug."""


class InputError(GeoRouteNetError, ValueError):
    """A value, file or option that cannot be used; the message says what was given and what is allowed."""


class MissingDependencyError(GeoRouteNetError, ImportError):
    """An optional package is not installed; the message holds the install line."""


class GeoRouteNetWarning(UserWarning):
    """Something worth knowing that does not stop the work."""


def whole(name: str, value: Any, *, least: int = 1, most: int | None = None) -> int:
    """``value`` as an int from ``least`` to ``most``; anything else is an ``InputError`` that names it."""
    try:
        good = not isinstance(value, bool) and int(value) == value and value >= least
        good = good and (most is None or value <= most)
    except Exception:  # whatever else may be asked for a number
        good = False
    if not good:
        limit = "" if most is None else f" and at most {most:,}"
        raise InputError(f"{name} must be a whole number of at least {least}{limit}, got {value!r}")
    return int(value)


def warn(text: str) -> None:
    """Warn at the line outside of the package that called it, through however many of its functions."""
    level = 1
    here: FrameType | None = sys._getframe()
    while here is not None and here.f_globals.get("__name__", "").partition(".")[0] == "georoutenet":
        level, here = level + 1, here.f_back
    warnings.warn(text, GeoRouteNetWarning, stacklevel=level)


def path_name(value: Any) -> str:
    """A path as text; what is neither text nor a path is an ``InputError``."""
    try:
        name = os.fspath(value)
    except TypeError:
        name = None
    if not isinstance(name, str):
        raise InputError(f"a file's name is needed, text or a Path, got {type(value).__name__}")
    return name
