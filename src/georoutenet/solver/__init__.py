"""Cities in, short tour out: options, stages, result."""

from __future__ import annotations

from typing import Any


def __getattr__(name: str) -> Any:
    if name in ("solve", "solve_many"):  # where 0.1 had them
        import warnings

        import georoutenet

        message = f"georoutenet.solver.{name} is georoutenet.{name}, and will go from here in 0.3"
        warnings.warn(message, DeprecationWarning, stacklevel=2)
        return getattr(georoutenet, name)
    raise AttributeError(f"module 'georoutenet.solver' has no attribute {name!r}")
