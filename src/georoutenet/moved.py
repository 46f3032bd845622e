"""Modules that 0.1 had elsewhere: importing them still works, with a warning that names the new place."""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.machinery import ModuleSpec

TYPE_CHECKING = False  # see the package's first lines
if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import ModuleType
    from typing import Any

MOVED: dict[str, tuple[str, ...]] = {
    "evaluate.datasets": ("io.datasets",),
    "export": ("io.export",),
    "files": ("io.files",),
    "generate": ("problem.generate",),
    "geographic": ("problem.globe",),
    "improve": ("search", "stop"),
    "improve.construct": ("search.construct",),
    "improve.local_search": ("search.local_search",),
    "improve.neighbors": ("search.neighbors",),
    "improve.stop": ("stop",),
    "instance": ("problem.instance",),
    "io.geographic": ("problem.globe",),
    "model.weights": ("policy.weights",),
    "result": ("solver.result",),
    "table": ("io.table",),
    "tour": ("problem.tour",),
    "tsplib": ("io.tsplib",),
}
"""Old names, and where what they held is now."""


class Moved:
    """Finds and loads the old names after everything else has failed to."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname.removeprefix("georoutenet.") not in MOVED or not fullname.startswith("georoutenet."):
            return None
        is_package = fullname == "georoutenet.improve"
        return ModuleSpec(fullname, self, is_package=is_package)  # type: ignore[arg-type]  # by shape

    def create_module(self, spec: ModuleSpec) -> None:
        """As usual."""

    def exec_module(self, module: ModuleType) -> None:
        import warnings

        places = [f"georoutenet.{name}" for name in MOVED[module.__name__.removeprefix("georoutenet.")]]
        warnings.warn(
            f"{module.__name__} is now {' and '.join(places)}, and will go in 0.3",
            DeprecationWarning,
            stacklevel=2,  # frames of the import system do not count
        )

        def find(name: str) -> Any:
            for place in places:
                if hasattr(new := import_module(place), name):
                    return getattr(new, name)
            raise AttributeError(f"{' and '.join(places)} have no attribute {name!r}")

        module.__getattr__ = find  # type: ignore[method-assign]


def register() -> None:
    """Have the old names found; once."""
    if not any(isinstance(finder, Moved) for finder in sys.meta_path):
        sys.meta_path.append(Moved())
