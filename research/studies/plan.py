"""What a study holds: runs, each a recipe or given weights, and what they are evaluated on.

about = "..."                     one sentence, for lists and tables
recipe = "paper-georoutenet-mcs"  packaged, or a file beside the study; a run may name another
set = { precision = "bfloat16" }  settings of all runs, as in a recipe; a run's own come after
seeds = [1234, 2]                 every run with each; the second and later ones are called NAME-seedS
together = 2                      runs side by side
seconds = 100                     of training such runs on one H200, about: none is begun with less time left
sources = "carry/older/src"       train with the package in this folder instead of the present one
weights = "keep"                  or "drop": weights of finished runs are not brought home (default: keep)
base = "short-full"               what the tables compare with
tables = "studies"                where the results belong: results/studies, or "main" for results
given = "carry/weights*/*.safetensors"  evaluation alone, a run for each file and its seed

[[run]]                           name, and of its own: recipe, set, seeds
[[evaluate]]                      sets, decoders, and optionally batch, limit, statistics (NAR4TSP alone)
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from georoutenet.errors import InputError
from georoutenet.evaluate.evaluation import weights_name
from georoutenet.evaluate.settings import Settings, parse_decoder
from georoutenet.io.datasets import parse_sets
from georoutenet.policy.weights import read_card
from georoutenet.train.recipe import Recipe, find_recipe, recipe_from_dict

HERE = Path(__file__).parent
FIRST_SEED = 1234
KEYS = {
    "about",
    "recipe",
    "set",
    "seeds",
    "together",
    "seconds",
    "sources",
    "weights",
    "base",
    "tables",
    "given",
}
TABLES = {"run": {"name", "recipe", "set", "seeds"}}
TABLES["evaluate"] = {"sets", "decoders", "batch", "limit", "statistics"}


@dataclass(frozen=True)
class Run:
    """Training by a recipe, given as its settings, or given weights."""

    name: str
    settings: Mapping[str, Any]
    given: Path | None = None
    study: str = ""

    @property
    def folder(self) -> str:
        """In the folders of runs. Weights that one study trained may be given to others, and each has its own
        results and note."""
        return self.name if self.given is None else f"{self.study}-{self.name}"

    def recipe(self) -> Recipe:
        return recipe_from_dict(self.settings)


@dataclass(frozen=True)
class Study:
    name: str
    about: str
    runs: tuple[Run, ...]
    evaluations: tuple[tuple[str, Settings], ...]
    """Sets, one by one, and how they are solved."""
    together: int = 1
    sources: str = ""
    keeps_weights: bool = True
    base: str = ""
    tables: str = "studies"
    seconds: float = 0.0

    def tasks(self, encoder: str) -> list[tuple[str, Settings]]:
        """What weights with this encoder are evaluated on."""
        return [each for each in self.evaluations if encoder == "nar4tsp" or each[1].statistics == "frozen"]


def packaged() -> list[str]:
    """The studies that lie beside this file."""
    return sorted(path.stem for path in HERE.glob("*.toml") if not path.stem.startswith("recipe-"))


def read_study(name: str | Path) -> Study:
    """A study by its name or file."""
    path = Path(name) if Path(name).suffix == ".toml" else HERE / f"{name}.toml"
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(
            f"study {str(name)!r} cannot be read: {error} (beside it: {', '.join(packaged())})"
        ) from None
    tables = {key: values.pop(key, []) for key in TABLES}
    _check(values, KEYS, path.name)
    for key, each in tables.items():
        for table in each:
            _check(table, TABLES[key], f"{path.name}, {key}")
    asked = [
        (number, table, seed)
        for table in tables["run"]
        for number, seed in enumerate(table.get("seeds", values.get("seeds", [FIRST_SEED])))
    ]
    asked.sort(key=lambda each: each[0])  # all runs with the first seed come first
    runs = [_run(table, values, seed, path.parent) for _, table, seed in asked]
    if pattern := values.get("given"):
        runs += [Run(_given_name(file), {}, file, path.stem) for file in sorted(Path().glob(pattern))]
    names = [run.name for run in runs]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise InputError(f"{path.name}: two runs have one name, {twice}")
    return Study(
        path.stem,
        values.get("about", ""),
        tuple(runs),
        tuple(each for table in tables["evaluate"] for each in _evaluations(table)),
        values.get("together", 1),
        values.get("sources", ""),
        values.get("weights", "keep") == "keep",
        values.get("base", ""),
        values.get("tables", "studies"),
        values.get("seconds", 0.0),
    )


def _check(values: Mapping[str, Any], allowed: set[str], where: str) -> None:
    if unknown := sorted(values.keys() - allowed):
        raise InputError(f"{where}: unknown {unknown[0]!r}; allowed: {', '.join(sorted(allowed))}")


def _given_name(file: Path) -> str:
    """The seeds of a recipe may have files of one name in folders of their own."""
    name, seed = weights_name(file), None
    with suppress(InputError):  # a damaged file is told of when it is to be evaluated
        recipe = read_card(file)[1].get("recipe")
        seed = recipe.get("seed") if isinstance(recipe, dict) else None
    plain = seed in (None, FIRST_SEED) or name.endswith(f"-seed{seed}")
    return name if plain else f"{name}-seed{seed}"


def _run(table: Mapping[str, Any], study: Mapping[str, Any], seed: int, folder: Path) -> Run:
    recipe = table.get("recipe", study.get("recipe", ""))
    file = folder / recipe if (folder / recipe).is_file() else find_recipe(recipe)
    settings = tomllib.loads(file.read_text(encoding="utf-8"))
    for own in (study.get("set", {}), table.get("set", {})):
        policy = {**settings.get("policy", {}), **own.get("policy", {})}
        settings = {**settings, **own, "policy": policy}
    name = table["name"] + ("" if seed == FIRST_SEED else f"-seed{seed}")
    run = Run(name, {**settings, "name": name, "seed": seed})
    run.recipe()  # its settings are checked
    return run


def _evaluations(table: Mapping[str, Any]) -> list[tuple[str, Settings]]:
    others = {key: table[key] for key in ("batch", "limit", "statistics") if key in table}
    decoders = [each.strip() for each in table["decoders"].split(",")]
    return [(name, parse_decoder(each, **others)) for name in parse_sets(table["sets"]) for each in decoders]


def as_toml(settings: Mapping[str, Any]) -> str:
    """Settings as the text of a recipe; tables come last."""
    plain = [f"{key} = {_value(value)}\n" for key, value in settings.items() if not isinstance(value, dict)]
    for key, value in settings.items():
        if isinstance(value, dict):
            plain.append(f"\n[{key}]\n")
            plain += [f"{name} = {_value(each)}\n" for name, each in value.items()]
    return "".join(plain)


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        if not value.isprintable() or '"' in value or "\\" in value:
            raise InputError(f"{value!r} is not understood; allowed: printable text without quotes")
        return f'"{value}"'
    if isinstance(value, list):
        return f"[{', '.join(map(_value, value))}]"
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {_value(each)}" for key, each in value.items()) + " }"
    return repr(value)
