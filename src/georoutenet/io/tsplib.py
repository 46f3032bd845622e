"""TSPLIB as a library: where its files are, which instances belong to a set, and how to load one."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from georoutenet.errors import InputError
from georoutenet.io.cache import cache_folder
from georoutenet.io.files import read_instance, read_tour
from georoutenet.io.optima import known_optimum, published_optima
from georoutenet.io.tsplib_format import format_tour, format_tsp, parse_tour, parse_tsp
from georoutenet.problem.instance import DistanceRule, Instance
from georoutenet.problem.tour import Tour

__all__ = [
    "TSPLIB27",
    "TSPLIB_SETS",
    "format_tour",
    "format_tsp",
    "known_optimum",
    "load_optimal_tour",
    "load_tsplib",
    "parse_tour",
    "parse_tsp",
    "size_group",
    "size_groups",
    "tsplib_folder",
    "tsplib_names",
]

# The paper gives only how many instances each size group has. The two smaller groups are thereby fixed;
# from each of the others this project takes seven, evenly spaced in order of size (ties by name).
# fmt: off
TSPLIB27 = (
    "eil51", "berlin52", "st70", "eil76", "pr76",
    "rat99", "kroA100", "kroB100", "kroC100", "kroD100", "kroE100", "rd100", "eil101",
    "lin105", "pr124", "bier127", "ch130", "pr144", "kroA150", "kroB150",
    "u159", "d198", "kroB200", "tsp225", "pr226", "pr264", "pr299",
)
# fmt: on

TSPLIB_SETS = ("tsplib36", "tsplib27", "tsplib-large", "all")

_GROUPS = {
    "51-76": 76,
    "99-101": 101,
    "105-150": 150,
    "159-299": 299,
}  # name: largest n; pr152 is in the last


def tsplib_names(group: str = "tsplib36") -> list[str]:
    """Names of a set of instances in order of size.

    ``tsplib36``: every EUC_2D instance of 51 to 299 cities; ``tsplib27``: the declared 27 of these;
    ``tsplib-large``: EUC_2D from 318 to 5,934 cities; ``all``: these and the other rules of coordinates.
    """
    table = [entry for entry in published_optima().values() if entry.rule is not DistanceRule.EXPLICIT]
    if group == "all":
        return [entry.name for entry in table]
    if group == "tsplib27":
        return list(TSPLIB27)
    if group not in TSPLIB_SETS:
        raise InputError(f"unknown set of TSPLIB instances {group!r}; allowed: {', '.join(TSPLIB_SETS)}")
    low, high = (51, 299) if group == "tsplib36" else (318, 5934)
    return [e.name for e in table if e.rule is DistanceRule.EUC_2D and low <= e.n <= high]


def size_group(n: int) -> str:
    """The size group of the evaluation protocol that ``n`` cities belong to."""
    if n >= 51:
        for group, largest in _GROUPS.items():
            if n <= largest:
                return group
    raise InputError(f"size groups cover 51 to 299 cities, got {n}")


def size_groups(names: Iterable[str]) -> dict[str, list[str]]:
    """Instance names by size group, groups in order of size; every group is present, possibly empty."""
    groups: dict[str, list[str]] = {group: [] for group in _GROUPS}
    for name in names:
        if name not in published_optima():
            raise InputError(_unknown(name))
        groups[size_group(published_optima()[name].n)].append(name)
    return groups


def tsplib_folder() -> Path | None:
    """The folder of TSPLIB files: ``$GEOROUTENET_TSPLIB``, else ``tsplib`` in the user cache, else None."""
    named = os.environ.get("GEOROUTENET_TSPLIB")
    if named:
        folder = Path(os.path.expanduser(named))
        if not folder.is_dir():
            raise InputError(f"GEOROUTENET_TSPLIB names {named!r}, which is not a folder")
        return folder
    with suppress(InputError):  # no home folder
        folder = cache_folder() / "tsplib"
        return folder if folder.is_dir() else None
    return None


def load_tsplib(name: str) -> Instance:
    """The TSPLIB instance of that name, for example ``"berlin52"``, with its published optimum."""
    return read_instance(_find(name, ".tsp"))


def load_optimal_tour(name: str) -> Tour:
    """The optimal tour that TSPLIB publishes for an instance; it has one for some of them only."""
    return read_tour(_find(name, ".opt.tour"), load_tsplib(name).n)


def _find(name: str, extension: str) -> Path:
    folder = tsplib_folder()
    if folder is None:
        raise InputError(
            "TSPLIB is not here: run 'georoutenet data tsplib' to download it, or set GEOROUTENET_TSPLIB "
            "to a folder of .tsp files"
        )
    if name == Path(name).name:  # a name, not a path that leads elsewhere
        for file in (folder / f"{name}{extension}", folder / f"{name}{extension}.gz"):
            if file.is_file():
                return file
    if name in published_optima():
        raise InputError(f"{folder} has no {name}{extension}")
    raise InputError(_unknown(name))


def _unknown(name: str) -> str:
    similar = difflib.get_close_matches(name, published_optima(), n=3)
    hint = f"; similar: {', '.join(similar)}" if similar else "; names are like berlin52 or pr2392"
    return f"unknown TSPLIB instance {name!r}{hint}"
