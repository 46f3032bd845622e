"""``georoutenet weights``: what is packaged, or what a file holds."""

from __future__ import annotations

import json
import textwrap
from typing import Annotated, Any

import typer

from georoutenet.cli.screen import say


def register(app: typer.Typer) -> None:
    app.command("weights")(weights)


def weights(
    name: Annotated[str | None, typer.Argument(help="Packaged name or path of a .safetensors file.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="All of the file's header, as JSON.")] = False,
) -> None:
    """List the packaged weights, or print the card of one file."""
    from georoutenet.io.packaged import packaged_weights
    from georoutenet.policy.weights import read_card

    if name is not None:
        config, card = read_card(name)
        if as_json:
            typer.echo(json.dumps({"config": config.to_dict(), "card": card}, indent=2))
        else:
            say(*describe(name, config.to_dict(), card))
        return
    found = packaged_weights()
    if not found:
        typer.echo("no weights are packaged with this version")
    for packaged, path in found.items():
        config, card = read_card(path)
        size = path.stat().st_size / 1e6
        say(f"{packaged}  {config.encoder}, {size:.1f} MB  {card.get('description', '')}")


def describe(name: str, config: dict[str, Any], card: dict[str, Any]) -> list[str]:
    """What a person wants to know of weights, in lines; numbers and texts of the card, not its tables."""
    sizes = ", ".join(f"{key} {value}" for key, value in config.items() if key != "encoder")
    lines = [f"{name}: {config['encoder']} ({sizes})"]
    for key, value in card.items():
        if isinstance(value, str | int | float) and not isinstance(value, bool):
            shown = f"{value:,}" if isinstance(value, int) else f"{value}"
            lines += textwrap.wrap(f"{key.replace('_', ' ')}: {shown}", 78, subsequent_indent="  ")
    left = [key.replace("_", " ") for key, value in card.items() if isinstance(value, dict | list)]
    return [*lines, f"with --json also: {', '.join(left)}"] if left else lines
