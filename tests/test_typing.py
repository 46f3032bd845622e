"""What a user's type checker sees."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import georoutenet

SOURCE = Path(georoutenet.__file__)

PROGRAM = """
from pathlib import Path

import numpy as np
import georoutenet as grn
from georoutenet import Instance, Result, solve

result: Result = solve([[0, 0], [1, 1], [0, 2]], max_seconds=1.0, start="a", seed=1)
grn.solve(np.zeros((3, 2)))
grn.solve([[1.0, 2], [3, 4]])
grn.solve_many([[[1.0, 2], [3, 4]], "cities.csv"])
grn.Instance(matrix=[[0, 2.5], [2.5, 0]])
grn.Asymmetric([[0, 2.5], [2, 0]])
grn.solve(Path("cities.csv"))
grn.solve(Instance([[0, 0], [1, 1]], name="two", rule="EUC_2D", columns={"name": ["a", "b"]}))
length: float = result.length
doubled: float = 2 * grn.tour_length(result.instance, result.tour)
gap: float = grn.gap(result.length, 3.0)
order: list[int] = result.tour.tolist()
reveal_type(result.length)
reveal_type(grn.tour_length(result.instance, result.tour))
reveal_type(grn.gap(result.length, 3.0))
tours, lengths = grn.solve_batch(np.zeros((2, 3, 2)))
reveal_type(lengths)
reveal_type(tours)
reveal_type(grn.solve_batch(np.zeros((2, 3, 2)), tours=False))
result.lenght
"""


def test_the_names_are_listed_once_for_each_reader() -> None:
    """`__all__` is a list that type checkers can read, and has the names of both other lists."""
    tree = ast.parse(SOURCE.read_text(encoding="utf-8"))
    (listed,) = (
        ast.literal_eval(each.value)
        for each in tree.body
        if isinstance(each, ast.Assign) and [ast.unparse(name) for name in each.targets] == ["__all__"]
    )
    (checked,) = (each for each in tree.body if isinstance(each, ast.If))
    imports = [each for each in checked.body if isinstance(each, ast.ImportFrom) and each.module != "typing"]
    imported = {name.name for each in imports for name in each.names}
    assert set(listed) - {"__version__"} == imported == set(georoutenet._EXPORTS)
    for name in listed:
        assert getattr(georoutenet, name) is not None


def test_a_program_passes_the_strict_checker(tmp_path: Path) -> None:
    pytest.importorskip("mypy", reason="mypy is not installed")
    (tmp_path / "program.py").write_text(PROGRAM)
    # Libraries are not analyzed, which takes a minute; nothing here is about them.
    skipped = "".join(
        f"[mypy-{name}.*]\nfollow_imports = skip\nignore_missing_imports = True\n"
        for name in ("torch", "numba", "scipy", "matplotlib", "pandas", "triton")
    )
    (tmp_path / "mypy.ini").write_text(
        f"[mypy]\nstrict = True\nfollow_imports = silent\nmypy_path = {SOURCE.parent.parent}\n{skipped}"
    )
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "program.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
    )
    lines = [line.partition(": ")[2] for line in done.stdout.splitlines() if line.startswith("program.py")]
    revealed = [line for line in lines if line.startswith("note: Revealed")]
    assert [line.replace("builtins.", "") for line in revealed[:3]] == ['note: Revealed type is "float"'] * 3
    assert [re.findall(r"float64|signedinteger|int64", line) for line in revealed[3:]] in (
        [["float64"], ["signedinteger"], ["float64"]],
        [["float64"], ["int64"], ["float64"]],
    ), revealed
    errors = [line for line in lines if line.startswith("error")]
    assert len(errors) == 1, done.stdout
    assert 'has no attribute "lenght"' in errors[0]
