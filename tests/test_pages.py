"""What the pages name is there: files, functions in them, links, commands and their options."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest
from typer.main import get_command

import georoutenet as grn
from georoutenet.cli.commands import app

ROOT = Path(__file__).parent.parent
PAGES = [*sorted((ROOT / "docs").glob("*.md")), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
if not (ROOT / "docs").exists():
    pytest.skip("docs are not part of this installation", allow_module_level=True)
FILES = [
    path.relative_to(ROOT).as_posix()
    for folder in ("src", "research", "benchmarks", "tests", "examples")
    for path in (ROOT / folder).rglob("*")
    if path.suffix in (".py", ".cu", ".cuh", ".sh")
]

pages = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)


@pages
def test_files_and_what_is_in_them(page: Path) -> None:
    for name, inside in re.findall(
        r"[`\s]([\w/.]+\.(?:py|cuh?|sh))\b(?:: ([\w.]+)`)?", page.read_text("utf-8")
    ):
        if "NAME" in name:
            continue
        found = [file for file in FILES if f"/{file}".endswith(f"/{name}")]
        assert found, name
        last = inside.rpartition(".")[2]
        assert any(re.search(rf"\b{last}\b", (ROOT / file).read_text("utf-8")) for file in found), inside


@pages
def test_links(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#:]+)[^):]*\)", page.read_text("utf-8")):
        assert (page.parent / target).exists(), target


@pages
def test_commands(page: Path) -> None:
    text = page.read_text("utf-8").replace("\\\n", " ")
    for name, rest in re.findall(r"(?:^|`)georoutenet ([a-z]+)([^`\n|#]*)", text, re.MULTILINE):
        command = get_command(app).commands[name]  # type: ignore[attr-defined]
        if hasattr(command, "commands"):
            command = command.commands[rest.split()[0]]
        allowed = {option for each in command.params for option in (*each.opts, *each.secondary_opts)}
        assert set(re.findall(r"(?<!\S)--[a-z][\w-]*", rest)) <= allowed | {"--help"}, rest


def test_everything_in_the_reference_is_a_name_of_the_package() -> None:
    """The page says that all it lists is called ``grn.NAME``."""
    page = (ROOT / "docs" / "api.md").read_text("utf-8")
    listed = []
    for target, options in re.findall(r"^::: (\S+)\n((?: +.*\n)*)", page, re.MULTILINE):
        members = re.search(r"members: \[(.*)\]", options)
        module, _, name = target.rpartition(".")
        if members:
            listed += [(target, each) for each in members[1].split(", ")]
        else:
            listed.append((module, name))
    assert len(listed) == page.count("\n:::") + 5  # six of one module
    for module, name in listed:
        assert name in grn.__all__
        assert getattr(grn, name) is getattr(importlib.import_module(module), name)
