"""Help teaches by examples that can be typed, and cuts nothing at 80 columns."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from typing import Any

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from georoutenet.cli import app
from georoutenet.cli.examples import EXAMPLES


def commands(command: Any, name: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    yield name, command
    for each, below in getattr(command, "commands", {}).items():
        yield from commands(below, (*name, each))


ALL = dict(commands(get_command(app)))
NAMED = [name for name, command in ALL.items() if not hasattr(command, "commands")]


def test_every_command_has_examples() -> None:
    assert {" ".join(name) for name in ALL} == set(EXAMPLES)


@pytest.mark.parametrize("name", ALL)
def test_help_begins_with_examples_and_cuts_nothing(name: tuple[str, ...]) -> None:
    done = CliRunner().invoke(app, [*name, "--help"], env={"COLUMNS": "80", "TERMINAL_WIDTH": "80"})
    assert done.exit_code == 0, done.output
    lines = [line.strip() for line in done.output.splitlines() if line.strip()]
    examples = EXAMPLES[" ".join(name)]
    assert 2 <= len(examples) <= 3
    assert lines[1 : 1 + len(examples)] == list(examples)
    assert "…" not in done.output
    assert max(map(len, done.output.splitlines())) <= 80
    letters = "".join(done.output.split())  # a long word may go on in the next line
    for parameter in ALL[name].params:
        if hasattr(ALL[name], "commands") and parameter.name != "version":
            continue  # the library's own, which it words anew
        assert "".join((getattr(parameter, "help", "") or "").split()) in letters


def test_lists_of_commands_keep_their_sentences() -> None:
    for group in [name for name in ALL if name not in NAMED]:
        listed = CliRunner().invoke(app, [*group, "--help"]).output.partition("Commands:")[2]
        for name in [name for name in ALL if name[:-1] == group and name]:
            own = str(ALL[name].short_help).split()
            assert " ".join(own) in " ".join(listed.split())
            assert own[0] != "georoutenet"


@pytest.mark.parametrize("name", NAMED)
def test_examples_are_understood(name: tuple[str, ...]) -> None:
    for example in EXAMPLES[" ".join(name)]:
        words = shlex.split(example.partition(" > ")[0])
        assert words[: 1 + len(name)] == ["georoutenet", *name]
        ALL[name].make_context(name[-1], words[1 + len(name) :])


def test_weights_prints_a_card_for_people_and_the_rest_as_json() -> None:
    card = CliRunner().invoke(app, ["weights", "georoutenet"]).output
    assert "description: GeoRouteNet trained on instances of 20 to 500 cities" in card
    assert "instances: 22,701,568" in card
    assert "{" not in card
    assert len(card.splitlines()) < 25
    whole = json.loads(CliRunner().invoke(app, ["weights", "georoutenet", "--json"]).output)
    assert whole["config"]["hidden"] == 128
    assert whole["card"]["recipe"]["name"] == "georoutenet"
