"""The options of ``solve``: listed once, checked always."""

from __future__ import annotations

import inspect
import math
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any, get_type_hints

import numpy as np
import pytest
from typer.main import get_command

import georoutenet as grn
from georoutenet.cli import app
from georoutenet.decode.decoding import Decoding
from georoutenet.errors import InputError
from georoutenet.policy.policy import Policy
from georoutenet.solver.api import threads
from georoutenet.solver.options import HELP, SolveKeywords, SolveOptions

CITIES = np.random.default_rng(0).random((20, 2)) * 1000


def test_keywords_are_the_options() -> None:
    names = {"Policy": Policy, "Path": Path}
    options = get_type_hints(SolveOptions, localns=names)
    assert get_type_hints(SolveKeywords, localns=names) == options
    assert list(options) == list(SolveKeywords.__annotations__) == list(HELP)


@pytest.mark.parametrize(
    ("function", "own"),
    [
        (grn.solve, ["problem", "initial_tour"]),
        (grn.solve_many, ["problems"]),
        (grn.solve_batch, ["coordinates", "rule", "tours"]),
    ],
)
def test_signatures_and_docstrings_list_the_options(function: Any, own: list[str]) -> None:
    parameters = inspect.signature(function).parameters
    assert list(parameters) == [*own, *HELP]
    for option in fields(SolveOptions):
        assert parameters[option.name].default == option.default
        assert parameters[option.name].kind is inspect.Parameter.KEYWORD_ONLY
        assert f"{option.name} = {option.default!r}: {HELP[option.name]}" in function.__doc__


def test_the_command_line_has_the_options() -> None:
    command = get_command(app).commands["solve"]  # type: ignore[attr-defined]
    found = {each.name: each for each in command.params}
    for option in fields(SolveOptions):
        if option.name in ("stop", "progress", "closed"):  # of Python alone; the last one is --open here
            assert option.name not in found
        else:
            assert found[option.name].default == option.default
            assert found[option.name].help == HELP[option.name]
    assert found["open_path"].default is not SolveOptions().closed


WRONG = [
    ({"decoder": "bean"}, "unknown decoder 'bean'; allowed: greedy, sample, beam"),
    ({"decoder": 5}, "unknown decoder 5; they are written like greedy, beam-100"),
    ({"decoder": "beam-"}, "unknown decoder 'beam-'; they are written like"),
    ({"decoder": "beam-100-improve-0.1"}, "-improve- belongs to evaluate"),
    ({"decoder": "beam-100", "beam_width": 5}, "decoder 'beam-100' says all"),
    ({"decoder": "greedy-views-3", "views": 3}, "or a name .greedy, sample, beam. with beam_width and views"),
    ({"decoder": Decoding("beam"), "views": 3}, "decoder 'beam-1000' says all"),
    ({"beam_width": 0}, "beam_width must be a whole number of at least 1, got 0"),
    ({"beam_width": math.inf}, "beam_width must be a whole number of at least 1, got inf"),
    ({"beam_width": 2.5}, "beam_width must be"),
    ({"views": -1}, "views must be"),
    ({"views": 10**9}, "views must be a whole number of at least 1 and at most 10,000, got 1000000000"),
    (
        {"decoder": "greedy-views-99999999999"},
        "views must be a whole number of at least 1 and at most 10,000",
    ),
    ({"views": "x"}, "views must be a whole number of at least 1 and at most 10,000, got 'x'"),
    ({"first": "best"}, "unknown first tour 'best'; allowed: auto, network, greedy-edge, curve"),
    ({"first": "curve", "decoder": "beam"}, "decoder is of the network, which first='curve' does not ask"),
    ({"first": "greedy-edge", "views": 2}, "views is of the network"),
    ({"weights": "georoutenet-7"}, "no weights 'georoutenet-7'"),
    ({"weights": 7}, "weights must be a name, a file or a Policy, got 7"),
    ({"weights": "w" * 300}, "no weights 'www"),
    ({"weights": "a\0b"}, "no weights"),
    ({"device": "cuda:99999999999999"}, "unknown device 'cuda:99999999999999'; allowed"),
    ({"device": "gpu"}, "unknown device 'gpu'; allowed: auto, cpu, cuda"),
    ({"precision": "half"}, "unknown precision 'half'; allowed: auto, float32, bfloat16"),
    ({"precision": 16}, "unknown precision 16; allowed"),
    ({"precision": "float32", "decoder": "beam-9-bfloat16"}, "decoder 'beam-9-bfloat16' says bfloat16, not"),
    ({"max_seconds": -1}, "max_seconds must be a number >= 0, got -1"),
    ({"max_seconds": math.nan}, "max_seconds must be"),
    ({"max_seconds": "1"}, "max_seconds must be a number >= 0, got '1'"),
    ({"stop": 3}, "stop must be a stopping criterion"),
    ({"stop": grn.MaxTime}, "stop must be a stopping criterion"),
    ({"stop": grn.MaxTime(1), "max_seconds": 1}, "not both"),
    ({"seed": -1}, "seed must be"),
    ({"seed": "a"}, "seed must be a whole number of at least 0, got 'a'"),
    ({"seed": None}, "seed must be"),
    ({"start": 0.5}, "start must be a whole number of at least 0, got 0.5"),
    ({"end": -1}, "end must be a whole number of at least 0, got -1"),
    ({"workers": "x"}, "workers must be a whole number of at least 1 and at most 1,024, got 'x'"),
    ({"workers": 10**9}, "workers must be a whole number of at least 1 and at most 1,024, got 1000000000"),
    ({"workers": 0}, "workers must be"),
    ({"improve": "no"}, "improve must be True or False, got 'no'"),
    ({"first": np.ones(2)}, "unknown first tour array"),
    ({"decoder": np.ones(2)}, "unknown decoder array"),
    ({"improve": np.ones(2)}, "improve must be True or False, got array"),
    ({"closed": None}, "closed must be True or False, got None"),
    ({"progress": 3}, "progress must be a function"),
    ({"colour": 3}, "has no option 'colour'; allowed: weights, decoder, beam_width"),
]


@pytest.mark.parametrize(("options", "message"), WRONG)
def test_wrong_options_are_refused_even_where_they_are_not_used(
    options: dict[str, Any], message: str
) -> None:
    for solve in (
        lambda: grn.solve(CITIES, **options),
        lambda: grn.solve(CITIES, initial_tour=np.arange(20), **{"improve": False, **options}),
        lambda: grn.solve(CITIES[:2], **options),
        lambda: grn.solve_many([], **options),
        lambda: grn.solve_batch(np.empty((0, 20, 2)), **options),
    ):
        with pytest.raises(InputError, match=message):
            solve()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"start": 20}, r"start must be a city in 0..19, got 20"),
        ({"start": 1, "end": 1}, "same city 1"),
        ({"first": "curve", "initial_tour": np.arange(20)}, "initial_tour or first='curve', not both"),
    ],
)
def test_what_one_instance_cannot_have(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        grn.solve(CITIES, **options)


def test_numbers_of_any_kind_are_accepted() -> None:
    options = SolveOptions(
        beam_width=np.int64(4),  # type: ignore[arg-type]
        max_seconds=np.float32(0.5),  # type: ignore[arg-type]
        improve=np.bool_(True),  # type: ignore[arg-type]
        workers=1,
    )
    assert options.beam_width == 4


def test_few_cities_have_few_threads() -> None:
    assert [threads(SolveOptions(workers=1024), n) for n in (1, 19, 30, 20_000)] == [1, 1, 3, 1024]
    assert threads(SolveOptions(workers=2), 30) == 2


def test_options_need_neither_torch_nor_numba() -> None:
    code = (
        "import sys; from georoutenet.solver.options import SolveOptions;"
        "assert SolveOptions(decoder='beam-9', device='cuda:1').decoding.width == 9;"
        "assert not {'torch', 'numba', 'numpy'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
