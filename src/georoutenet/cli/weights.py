"""``georoutenet weights``: what is packaged, or what a file holds."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from georoutenet.cli.screen import say


def register(app: typer.Typer) -> None:
    app.command("weights")(weights)


def weights(
    name: Annotated[str | None, typer.Argument(help="Packaged name or path of a .safetensors file.")] = None,
) -> None:
    """List the packaged weights, or print the configuration and card of one file."""
    from georoutenet.io.packaged import packaged_weights
    from georoutenet.policy.weights import read_card

    if name is not None:
        config, card = read_card(name)
        typer.echo(json.dumps({"config": config.to_dict(), "card": card}, indent=2))
        return
    found = packaged_weights()
    if not found:
        typer.echo("no weights are packaged with this version")
    for packaged, path in found.items():
        config, card = read_card(path)
        size = path.stat().st_size / 1e6
        say(f"{packaged}  {config.encoder}, {size:.1f} MB  {card.get('description', '')}")
